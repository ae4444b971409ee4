"""The picture of what checkpoints cost: what each wrote, what was kept, and what a restore reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from cnrfmt.checkpointing.costs.cost_history import RESTATED, Cost, averages

_Floats = npt.NDArray[np.float64]

_COLOURS = {"baseline": "#0072b2", "delta": "#56b4e9", "since-baseline": "#e69f00", "merge": "#cc79a7"}
"""The kinds in the order of the legend."""
_LABELS = {
    "baseline": "baseline",
    "delta": "delta since the last one",
    "since-baseline": "delta since the baseline",
    "merge": "merge of segments",
}
_FULL, _AVERAGE, _KEPT, _READ, _OTHER = "#666666", "#0072b2", "#d55e00", "#009e73", "#bbbbbb"
_MOST_MARKERS = 40
"""With more points than this, lines go without markers."""
_FULL_IN_SIGHT = 2
"""The line of a full checkpoint is drawn where it is at most so many times as high as everything else."""
_MOST_ALIKE = 20
"""Bars stand on a logarithmic axis where the highest is more times as high as half of them."""
_LEAST_WIDE = 6
"""Places that the axis has at least, so that one bar isn't as wide as the picture."""
_LONGEST = 40


@dataclass(frozen=True)
class Picture:
    """What is drawn.

    Attributes
    ----------
    name
        Of the container.
    policy
        Of the run; empty where it isn't known.
    costs
        Of each version, ascending; at least one.
    full
        Bytes of a full checkpoint as plain arrays; 0 where there is nothing to compare with.
    notes
        What is counted: a line each.
    """

    name: str
    policy: str
    costs: Sequence[Cost]
    full: int
    notes: Sequence[str]


def draw(picture: Picture, path: Path) -> None:
    """Draws to a file, of a kind that its ending names."""
    figure = Figure(figsize=(13, 9), layout="constrained")
    FigureCanvasAgg(figure)
    # Tags and retention commit versions that cost nothing, and would only stretch the axis.
    places = [n for n, cost in enumerate(picture.costs) if cost.kind != RESTATED] or [len(picture.costs) - 1]
    costs = [picture.costs[n] for n in places]
    every = averages(picture.costs)
    average = [every[n] for n in places]
    figure.suptitle(_title(picture, costs, average), fontsize=14, fontweight="bold")
    figure.supxlabel("\n".join(picture.notes), fontsize=9, color="#444444")
    (written, averaged), (kept, read) = figure.subplots(2, 2)
    _draw_written(written, costs, picture.full)
    _draw_average(averaged, costs, average, picture.full)
    _draw_bytes(kept, costs, [cost.kept for cost in costs], picture.full, "Kept after each", _KEPT)
    _draw_bytes(read, costs, [cost.read for cost in costs], picture.full, "Read by a restore of each", _READ)
    figure.savefig(path, dpi=110)


def _title(picture: Picture, costs: Sequence[Cost], average: Sequence[float]) -> str:
    merges = sum(cost.kind == "merge" for cost in costs)
    checkpoints = _plural(len(costs) - merges, "checkpoint") + (f" and {_plural(merges, 'merge')}" if merges else "")
    written = sum(cost.checkpoint.nbytes for cost in costs)
    name = ", ".join(_plain(word) for word in (picture.name, picture.policy) if word)
    compared = ""
    if picture.full and average[-1]:
        ratio = picture.full / average[-1]
        less = f"{ratio:.1f} times less" if ratio > 1.05 else f"{1 / ratio:.1f} times more" if ratio < 0.95 else ""
        compared = f"{less} than full ones" if less else "about as much as full ones"
    each = f"{_bytes(average[-1])} a checkpoint" if len(costs) > 1 else ""
    more = ", ".join(word for word in (each, compared) if word)
    return f"{name}: {checkpoints} wrote {_bytes(written)}" + (f",\n{more}" if more else "")


def _draw_written(axes: Axes, costs: Sequence[Cost], full: int) -> None:
    nbytes = np.array([cost.checkpoint.nbytes for cost in costs])
    kinds = [cost.checkpoint.kind if cost.checkpoint.kind in _COLOURS else "" for cost in costs]
    for kind, label in {**_LABELS, "": "of another kind"}.items():
        places = [n for n, found in enumerate(kinds) if found == kind]
        if places:
            # Gaps between bars that are as thin as pixels would look like a pattern.
            width = 0.85 if len(costs) <= _MOST_MARKERS else 1.0
            axes.bar(places, nbytes[places], width=width, color=_COLOURS.get(kind, _OTHER), label=label)
    title = f"Written by each: at most {_bytes(nbytes.max())}"
    some = nbytes[nbytes > 0]
    if some.size and nbytes.max() > _MOST_ALIKE * np.median(some):
        _finish(axes, costs, f"{title} (logarithmic)")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _bytes(y)))
        axes.set_ylim(some.min() / 2, nbytes.max() * (nbytes.max() / some.min()) ** 0.3)
        _legend(axes)
    else:
        _finish(axes, costs, title)
        _finish_bytes(axes, nbytes.max(), full)


def _draw_average(axes: Axes, costs: Sequence[Cost], average: Sequence[float], full: int) -> None:
    merged = ", merges too" if any(cost.kind == "merge" for cost in costs) else ""
    title = f"Average so far{merged}"
    if not full:
        _draw_bytes(axes, costs, average, 0, title, _AVERAGE)
        return
    shares = np.array(average) / full
    _draw_curve(axes, shares, _AVERAGE)
    _finish(axes, costs, f"{title}: {_bytes(average[-1])}, {shares[-1]:.3g} of a full one")
    axes.set_ylabel("full checkpoints")
    _finish_scale(axes, shares.max(), 1, "a full checkpoint")


def _draw_bytes(
    axes: Axes, costs: Sequence[Cost], values: Sequence[float | None], full: int, title: str, colour: str
) -> None:
    y = np.array([np.nan if value is None else value for value in values], np.float64)
    if np.isnan(y).all():
        _finish(axes, costs, f"{title}: not known")
        axes.set_yticks([])
        return
    _draw_curve(axes, y, colour)
    newest = "not known" if np.isnan(y[-1]) else _bytes(y[-1])
    _finish(axes, costs, f"{title}: now {newest}, at most {_bytes(np.nanmax(y))}")
    _finish_bytes(axes, np.nanmax(y), full)


def _draw_curve(axes: Axes, y: _Floats, colour: str) -> None:
    if len(y) == 1:
        axes.bar([0], y, width=0.85, color=colour)
        return
    marker = "o" if len(y) <= _MOST_MARKERS else ""
    axes.plot(np.arange(len(y)), y, color=colour, linewidth=1.8, marker=marker, markersize=4)
    axes.fill_between(np.arange(len(y)), y, color=colour, alpha=0.12, linewidth=0)


def _finish(axes: Axes, costs: Sequence[Cost], title: str) -> None:
    versions = [cost.checkpoint.version for cost in costs]
    margin = max(0.6, (_LEAST_WIDE - len(costs)) / 2)
    axes.set_xlim(-margin, len(costs) - 1 + margin)
    ticks = MaxNLocator(10, integer=True).tick_values(0, max(1, len(costs) - 1))
    places = [round(x) for x in ticks if 0 <= x < len(costs) and x == round(x)]
    axes.set_xticks(places, [str(versions[n]) for n in places])
    axes.set_title(title, fontsize=11)
    axes.set_xlabel("version")
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _finish_bytes(axes: Axes, highest: float, full: int) -> None:
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _bytes(y)))
    # Ticks at fractions of a byte would say the same twice.
    axes.yaxis.set_major_locator(MaxNLocator(nbins=7, integer=highest < 10))
    _finish_scale(axes, highest, full, f"a full checkpoint: {_bytes(full)}")


def _finish_scale(axes: Axes, highest: float, full: float, label: str) -> None:
    """Ends the axis above everything, with room for the legend."""
    if 0 < full <= _FULL_IN_SIGHT * highest:
        axes.axhline(full, color=_FULL, linestyle="--", linewidth=1.3, label=label)
        highest = max(highest, full)
    handles, _ = axes.get_legend_handles_labels()
    axes.set_ylim(0, (1.1 + 0.08 * -(-len(handles) // 2)) * highest or 1)
    _legend(axes)


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        # Opaque, so that no line crosses the words.
        axes.legend(loc="upper left", fontsize=9, framealpha=1, edgecolor="none", ncols=2)


def _bytes(count: float) -> str:
    units = ("B", "kB", "MB", "GB", "TB", "PB")
    power = 0
    while count >= 999.5 and power + 1 < len(units):
        count, power = count / 1000, power + 1
    return f"{count:.3g} {units[power]}"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _plain(text: str) -> str:
    """Text that is drawn as it is: fonts lack most characters, and a dollar sign begins a formula."""
    short = text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
    return short.encode("unicode_escape").decode("ascii").replace("$", r"\$")
