"""The demo's picture: what was written, beside full saves, and what became of the quality."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cnrfmt.arrays import Array
from cnrfmt.demo.quality import TOP
from cnrfmt.demo.store import PARTS, words_of
from cnrfmt.errors import UsageError

_COLOURS = {
    "rows": "#0072b2",
    "ids": "#e69f00",
    "optimizer": "#009e73",
    "dense": "#cc79a7",
    "metadata": "#999999",
}
_LABELS = {
    "rows": "weights of rows",
    "ids": "row ids",
    "optimizer": "optimizer state of rows",
    "dense": "dense state",
    "metadata": "metadata, digests, padding",
}

_WRITTEN = {
    "consecutive": "a baseline, then touched rows",
    "one-shot": "a baseline, then all rows touched since",
    "intermittent": "baselines, then all rows touched since",
    "full": "baselines",
}
"""What the checkpoints of each policy are."""

_FULL, _OURS, _DEATH, _BESIDE = "#c8c8c8", "#0072b2", "#d55e00", "#e69f00"


def check_path(path: Path) -> None:
    """Raises `UsageError` for a file that can't be drawn to."""
    known = FigureCanvasAgg(Figure()).get_supported_filetypes()
    if path.suffix.lstrip(".").lower() not in known:
        raise UsageError(f"plot: {path} must end in one of .{', .'.join(sorted(known))}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"plot: {path.parent} is no directory")


def draw(result: dict[str, Any], path: Path) -> None:
    """Draws a result of `run.run_demo` to a file."""
    figure = Figure(figsize=(13, 9), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(_title(result), fontsize=14, fontweight="bold")
    (saves, parts), (total, recall) = figure.subplots(2, 2)
    _draw_saves(saves, result)
    _draw_parts(parts, result)
    _draw_total(total, result)
    _draw_recall(recall, result)
    figure.savefig(path, dpi=110)


def _title(result: dict[str, Any]) -> str:
    quality, stored = result["quality"], words_of(result["bits"])
    return (
        f"{_WRITTEN[result['policy']].capitalize()}, {stored}: {result['totals']['ratio']:.1f} times fewer bytes "
        "than full float32 saves.\n"
        f"recall@{TOP} of the killed and restored run: {quality['interrupted']['recall']:.2%}, "
        f"of the uninterrupted one: {quality['uninterrupted']['recall']:.2%}"
    )


def _versions(result: dict[str, Any]) -> Array:
    return np.array([c["version"] for c in result["checkpoints"]])


def _written(result: dict[str, Any]) -> Array:
    return np.array([sum(c["bytes"].values()) for c in result["checkpoints"]]) / 1e6


def _full(result: dict[str, Any]) -> Array:
    return np.array([c["full_bytes"] for c in result["checkpoints"]]) / 1e6


def _finish(axes: Axes, result: dict[str, Any], title: str, unit: str, *, columns: int = 1) -> None:
    death = result["death"]
    axes.axvline(
        death["restored_version"] + 0.5,
        color=_DEATH,
        linestyle="--",
        linewidth=1.5,
        label=f"killed at order {death['order']:,}",
    )
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(f"checkpoint (one every {result['checkpoint_every']:,} orders)")
    axes.set_ylabel(unit)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    # Opaque, so that the line of the death doesn't cross the words.
    axes.legend(loc="upper left", fontsize=9, framealpha=1, edgecolor="none", ncols=columns)


def _draw_saves(axes: Axes, result: dict[str, Any]) -> None:
    x, full = _versions(result), _full(result)
    axes.bar(x, full, color=_FULL, label="a full float32 save")
    axes.bar(x, _written(result), color=_OURS, label=f"written: {_WRITTEN[result['policy']]}")
    axes.set_ylim(0, 1.35 * full.max())
    _finish(axes, result, "Each checkpoint beside a full float32 save", "MB")


def _draw_parts(axes: Axes, result: dict[str, Any]) -> None:
    x = _versions(result)
    below = np.zeros(len(x))
    for part in PARTS:
        sizes = np.array([c["bytes"][part] for c in result["checkpoints"]]) / 1e3
        axes.bar(x, sizes, bottom=below, color=_COLOURS[part], label=_LABELS[part])
        below += sizes
    axes.set_ylim(0, 1.35 * below.max())
    _finish(axes, result, "What each checkpoint wrote", "kB", columns=2)


def _draw_total(axes: Axes, result: dict[str, Any]) -> None:
    x, full, ours = _versions(result), np.cumsum(_full(result)), np.cumsum(_written(result))
    axes.fill_between(x, ours, full, color=_FULL, alpha=0.4)
    axes.plot(x, full, color="#666666", marker=".", label="full float32 saves")
    axes.plot(x, ours, color=_OURS, marker=".", label="written")
    words: dict[str, Any] = {
        "ha": "right",
        "textcoords": "offset points",
        "fontsize": 10,
        "fontweight": "bold",
    }
    for run in result["beside"]:
        other = np.cumsum(_written(run))
        axes.plot(x, other, color=_BESIDE, marker=".", label=f"written, {words_of(run['bits'])}")
    axes.annotate(f"{full[-1]:.1f} MB", (x[-1], full[-1]), (-10, 0), **words)
    text = f"{ours[-1]:.1f} MB: {full[-1] / ours[-1]:.1f} times less"
    axes.annotate(text, (x[-1], ours[-1]), (-2, 8), color=_OURS, **words)
    _finish(axes, result, "All checkpoints so far", "MB")


def _draw_recall(axes: Axes, result: dict[str, Any]) -> None:
    quality = result["quality"]
    killed = [result, *result["beside"]]
    names = [
        "what everybody\nbuys most",
        "what the user\nbought most",
        "the model,\nuninterrupted",
        *(f"killed and restored,\n{words_of(run['bits'])}" for run in killed),
    ]
    models = [quality["uninterrupted"], *(run["quality"]["interrupted"] for run in killed)]
    values = [quality["popularity_recall"], quality["favourites_recall"], *(found["recall"] for found in models)]
    losses = [f"\nlog-loss {found['log_loss']:.5f}" for found in models]
    colours = [_FULL, _FULL, "#666666", _OURS, _BESIDE]
    bars = axes.barh(names, [100 * value for value in values], color=colours[: len(names)])
    labels = [f"{v:.2%}{more}" for v, more in zip(values, ["", "", *losses], strict=True)]
    axes.bar_label(bars, labels, padding=4, fontsize=10, fontweight="bold")
    axes.invert_yaxis()
    axes.set_xlim(0, 135 * max(values))
    axes.set_title("Quality on each user's last order, held out", fontsize=11)
    axes.set_xlabel(f"recall@{TOP} (%)")
    axes.spines[["top", "right"]].set_visible(False)
