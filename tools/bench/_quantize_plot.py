"""The picture of point 6: what each scheme errs on real tables for the bits that it stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tools.bench._quantize_curves import PLAIN, SCHEMES, Curves

# Okabe and Ito's colours, which people with colour-blindness tell apart.
_STYLES: dict[str, dict[str, Any]] = dict(
    zip(
        SCHEMES,
        (
            {"color": "#999999", "marker": "v"},
            {"color": "#e69f00", "marker": "o"},
            {"color": "#56b4e9", "marker": "s"},
            {"color": "#cc79a7", "marker": "x", "linestyle": "--"},
            {"color": "#0072b2", "marker": "D"},
            {"color": "#000000", "marker": "P"},
            {"color": "#d55e00", "marker": "*", "linestyle": ":"},
            {"color": "#009e73", "marker": "^"},
        ),
        strict=True,
    )
)


def draw(found: Curves, path: Path) -> None:
    """Draws the curves to a file, a column of two panels for each table."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(found), 9), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, len(found), sharey="row", squeeze=False)
    for axes, (table, kept) in zip(above, found.items(), strict=True):
        for name, points in kept.items():
            _curve(axes, name, [p["stored_bits"] for p in points], [p["mean_error"] for p in points])
        axes.set_yscale("log")
        _finish(axes, f"{table}\nmean relative l2 error of a row", "bits stored per element, parameters included")
    for axes, kept in zip(below, found.values(), strict=True):
        plain = {p["bits"]: p["mean_error"] for p in kept[PLAIN]}
        for name, points in kept.items():
            ratios = [p["mean_error"] / plain[p["bits"]] for p in points]
            _curve(axes, name, [p["bits"] for p in points], ratios)
        _finish(axes, f"the same, {PLAIN} = 1", "bits of a code")
    below[0].set_ylim(bottom=0)
    handles, labels = above[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=10, frameon=False)
    figure.savefig(path, dpi=110)


def _curve(axes: Any, name: str, bits: list[float], values: list[float]) -> None:
    axes.plot(bits, values, label=name, markersize=6, linewidth=1.3, **_STYLES[name])


def _finish(axes: Any, title: str, unit: str) -> None:
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(unit)
    axes.grid(alpha=0.3, which="both")
    axes.spines[["top", "right"]].set_visible(False)
