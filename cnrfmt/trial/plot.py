"""A trial's picture: error against bytes, a line for each method."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import NullLocator

from cnrfmt.errors import UsageError
from cnrfmt.trial.report import Attempt, ColumnTrial, Trial

_MOST_SHOWN = 12
"""How many columns are drawn: those with the most bytes."""
_STYLES = {
    "symmetric": ("#777777", "v"),
    "asymmetric": ("#0072b2", "o"),
    "adaptive": ("#d55e00", "s"),
    "lsq": ("#009e73", "D"),
    "kmeans": ("#cc79a7", "^"),
    "log": ("#0072b2", "o"),
    "cast": ("#d55e00", "s"),
    "raw": ("#000000", "x"),
}
"""The colour and the marker of each method, in the order of the legend."""
_DASHES = ("-", "--", ":", "-.")
_NAMES = {"cast": "bfloat16", "log": "logarithmic"}
_LABEL_GAP, _TICK_GAP = 13.0, 36.0
"""Pixels between two labels at the points, and between two on the axis, at least."""


def check_path(path: Path) -> None:
    """Raises `UsageError` for a file that can't be drawn to."""
    known = FigureCanvasAgg(Figure()).get_supported_filetypes()
    if path.suffix.lstrip(".").lower() not in known:
        raise UsageError(f"plot: {path} must end in one of .{', .'.join(sorted(known))}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"plot: {path.parent} is no directory")


def draw(trials: Iterable[Trial], path: Path) -> int:
    """Draws the columns with the most bytes to a file; gives how many were left out."""
    every = [(trial, column) for trial in trials for column in trial.columns]
    every.sort(key=lambda item: -item[1].rows * item[1].plain_bytes)
    shown = every[:_MOST_SHOWN]
    across = min(3, math.ceil(math.sqrt(len(shown))))
    down = math.ceil(len(shown) / across)
    figure = Figure(figsize=(1 + 6 * across, 1 + 4.5 * down), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
    FigureCanvasAgg(figure)
    figure.suptitle("Relative l2 error against bytes; the numbers are bits", fontsize=13, fontweight="bold")
    grid = figure.subplots(down, across, squeeze=False).reshape(-1)
    for axes in grid[len(shown) :]:
        axes.set_axis_off()
    several = len({trial.source for trial, _ in shown}) > 1
    for axes, (trial, column) in zip(grid, shown, strict=False):
        _draw_column(axes, column, f"{trial.source}: " if several else "")
    figure.savefig(path, dpi=120)
    return len(every) - len(shown)


def _draw_column(axes: Axes, column: ColumnTrial, prefix: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    # Rows without any error have no place on a logarithmic axis.
    shown = [attempt for attempt in column.attempts if attempt.mean_error > 0]
    lines: dict[tuple[str, str], list[Attempt]] = {}
    for attempt in sorted(shown, key=lambda a: list(_STYLES).index(a.method)):
        lines.setdefault((attempt.method, _variant(attempt)), []).append(attempt)
    drawn: list[str] = []
    for (method, variant), attempts in lines.items():
        x, y = ([getattr(a, name) for a in attempts] for name in ("bytes_per_row", "mean_error"))
        colour, marker = _STYLES[method]
        dashes = _DASHES[drawn.count(method) % len(_DASHES)]
        drawn.append(method)
        label = ":".join(word for word in (_NAMES.get(method, method), variant) if word)
        # Hollow, since lines may lie on each other.
        axes.plot(x, y, dashes, color=colour, marker=marker, markerfacecolor="none", linewidth=1.2, label=label)
    _label_bits(axes, shown)
    _label_bytes(axes, shown)
    axes.set_title(f"{prefix}{column.table}.{column.column}: {column.rows:,} rows of {column.width}", fontsize=10)
    axes.set_xlabel(f"bytes per row (float32: {column.plain_bytes})")
    axes.set_ylabel("mean relative l2 error")
    axes.grid(which="both", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if lines:
        axes.legend(fontsize=9, framealpha=1, edgecolor="none")


def _label_bits(axes: Axes, attempts: list[Attempt]) -> None:
    """Writes bits above the points, the topmost ones first, and leaves out what would cover another."""
    taken: list[tuple[float, float, str]] = []
    for attempt in sorted(attempts, key=lambda a: -a.mean_error):
        x, y = axes.transData.transform((attempt.bytes_per_row, attempt.mean_error))
        label = _bits(attempt)
        if any(abs(x - a) < _LABEL_GAP and (abs(y - b) < _LABEL_GAP or label == text) for a, b, text in taken):
            continue
        taken.append((x, y, label))
        axes.annotate(
            label,
            (attempt.bytes_per_row, attempt.mean_error),
            (0, 6),
            textcoords="offset points",
            ha="center",
            fontsize=9,
        )


def _label_bytes(axes: Axes, attempts: list[Attempt]) -> None:
    """Puts a tick where there is a point, unless there is another close by."""
    ticks: list[float] = []
    for size in sorted({attempt.bytes_per_row for attempt in attempts}):
        places = [axes.transData.transform((x, 1))[0] for x in (*ticks[-1:], size)]
        if len(places) == 1 or places[1] - places[0] > _TICK_GAP:
            ticks.append(size)
    axes.set_xticks(ticks, [f"{size:.4g}" for size in ticks])
    axes.xaxis.set_minor_locator(NullLocator())


def _variant(attempt: Attempt) -> str:
    """What sets it apart from others of its method, bits aside."""
    words = attempt.word.split(":")
    if attempt.recipe.scheme is not None and attempt.method in ("log", "cast"):
        words = words[:1]
    return ":".join(word for word in words[1:] if word != attempt.method)


def _bits(attempt: Attempt) -> str:
    layout = attempt.recipe.layout
    return str(getattr(layout, "bits", "16"))
