"""The picture of fidelity: loss against bandwidth, and where the bytes of a row go."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.bench._fidelity_bytes import bandwidth
from tools.bench._fidelity_encodings import RAW
from tools.bench._fidelity_report import Found, bound, changes, restores_tried

# Okabe and Ito's colours, which people with colour-blindness tell apart.
_FAMILIES = {"row-wise": ("#e69f00", "s"), "grid": ("#0072b2", "o")}
_KINDS = {
    "weights": "#0072b2",
    "optimizer": "#56b4e9",
    "ids": "#009e73",
    "dense": "#cc79a7",
    "metadata": "#e69f00",
    "others": "#999999",
}
_LIMIT = 0.01
"""What the paper allows a checkpoint to cost, in %."""


def draw(found: Mapping[str, Found], path: Path) -> None:
    """Draws a column for each learner to a file: a panel for each number of restores, and one of bits."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    restores = sorted({n for one in found.values() for n in restores_tried(one)})
    rows = len(restores) + 1
    layout = ConstrainedLayoutEngine(h_pad=0.12, w_pad=0.1)
    figure = Figure(figsize=(max(10, 5.4 * len(found)), 3.6 * rows), layout=layout)
    FigureCanvasAgg(figure)
    columns = figure.subplots(rows, len(found), squeeze=False).T
    for panels, (name, one) in zip(columns, found.items(), strict=True):
        for axes, number in zip(panels, restores, strict=False):
            _losses(axes, one, number)
            axes.set_title(f"{name}: {number} restore{'s' if number > 1 else ''} in a run", fontsize=11)
        _bits(panels[-1], one)
        panels[-1].set_title(f"{name}: where the bits of a row in a delta go", fontsize=11)
    figure.supxlabel(
        "Bandwidth: bytes of full float32 checkpoints over bytes written, consecutive deltas, the baseline counted.\n"
        "Loss: held-out loss at the end against the uninterrupted run of the same seed; means of all seeds,\n"
        f"bars up to the one-sided 95 % bound. Dashed: {_LIMIT} %.",
        fontsize=10,
        color="#444444",
    )
    figure.savefig(path, dpi=90)


def _losses(axes: Any, found: Found, restores: int) -> None:
    """A line for each family of encodings, from fine to coarse."""
    full = found["bytes"].get(RAW)
    for family, (color, marker) in _FAMILIES.items():
        points = []
        for name, counted in found["bytes"].items():
            values = changes(found, name, restores, "end")
            if name.startswith(family) and values and full is not None:
                middle, upper = bound(values)
                spread = upper - middle if upper < float("inf") else 0.0
                points.append((bandwidth(counted, full, "consecutive"), middle, spread, name))
        if not points:
            continue
        points.sort()
        x, y, spreads, names = zip(*points, strict=True)
        bars = {"yerr": ([0] * len(y), spreads), "capsize": 3, "linewidth": 1.5, "markersize": 6}
        axes.errorbar(x, y, color=color, marker=marker, label=family, **bars)
        for place, height, label in zip(x, y, names, strict=True):
            shown = label.removeprefix(family).strip(", ")
            axes.annotate(shown, (place, height), (4, 5), textcoords="offset points", fontsize=8)
    axes.axhline(_LIMIT, color="#444444", linestyle="--", linewidth=1)
    axes.set_yscale("symlog", linthresh=_LIMIT)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylabel("loss, % more")
    axes.set_xlabel("bandwidth, times less than float32")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.lines:
        axes.legend(fontsize=9, frameon=False, loc="upper left")


def _bits(axes: Any, found: Found) -> None:
    """Bars of what a changed row takes, float32 left out."""
    names = [name for name in found["bytes"] if name != RAW]
    bottoms = [0.0] * len(names)
    for kind, color in _KINDS.items():
        heights = []
        for name in names:
            counted = found["bytes"][name]
            parts = counted["consecutive"]["parts"][1:]
            keys = [k for k in parts[0] if k not in _KINDS] if kind == "others" else [kind]
            heights.append(8 * sum(part[key] for part in parts for key in keys) / counted["rows"])
        axes.bar(range(len(names)), heights, 0.7, bottoms, color=color, label=kind)
        bottoms = [a + b for a, b in zip(bottoms, heights, strict=True)]
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=8)
    axes.set_ylabel("bits")
    axes.grid(alpha=0.3, axis="y")
    axes.spines[["top", "right"]].set_visible(False)
    if names:
        axes.legend(fontsize=8, frameon=False)
