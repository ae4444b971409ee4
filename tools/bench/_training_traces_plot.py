"""The picture of the traces: what each checkpoint writes, what is kept, how many times less that is than float32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.bench._training_traces import BITS, POLICIES, RAW, Results, run_of, times_less

# Okabe and Ito's colours, which people with colour-blindness tell apart.
_STYLES: dict[str, dict[str, Any]] = {
    "full": {"color": "#555555", "marker": "v"},
    "one-shot": {"color": "#e69f00", "marker": "s"},
    "consecutive": {"color": "#009e73", "marker": "^"},
    "intermittent": {"color": "#0072b2", "marker": "o"},
}
_BITS = 4
"""Of the lines over the intervals."""
_CLAIMS = {"written": (6, 17), "kept": (2.5, 8)}
"""Of the paper, for the intermittent policy from 8 to 2 bits."""


def draw(found: Sequence[Results], path: Path) -> None:
    """Draws a column of four panels for each source to a file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(h_pad=0.12, w_pad=0.1)
    figure = Figure(figsize=(max(10, 5.4 * len(found)), 16), layout=layout)
    FigureCanvasAgg(figure)
    columns = figure.subplots(4, len(found), squeeze=False, sharey=False)
    for panels, one in zip(columns.T, found, strict=True):
        shown = _shown(one)
        written, kept, less, least = panels
        written.text(0.5, 1.15, _title(one), transform=written.transAxes, ha="center", fontsize=14, fontweight="bold")
        _lines(written, one, "written", f"Written by each checkpoint, {shown} bits")
        _lines(kept, one, "kept", f"Kept after each checkpoint, {shown} bits")
        _bars(less, one, "written", "Written per interval, times less than float32")
        _bars(least, one, "kept", "Kept at most, times less than float32")
    # The same in all columns.
    handles, labels = columns[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), fontsize=11, frameon=False)
    figure.supxlabel(
        "Sizes of files: rows, row ids, optimizer state, dense state, digests, metadata, padding.\n"
        "float32: full checkpoints of raw rows with raw optimizer state. Written per interval: the first baseline left "
        "out.\nKept: one version, when what it doesn't need is gone. Shaded: what the paper reports for intermittent, "
        "8 to 2 bits.",
        fontsize=10,
        color="#444444",
    )
    figure.savefig(path, dpi=90)


def _shown(found: Results) -> int:
    bits = [run["bits"] for run in found["runs"]]
    return _BITS if _BITS in bits else min(bits)


def _title(found: Results) -> str:
    rows = sum(found["rows"][-1].values())
    return f"{found['name']}: {rows:,} rows of {found['dim']}"


def _lines(axes: Any, found: Results, what: str, title: str) -> None:
    """Bytes checkpoint by checkpoint, and those of a full one in float32."""
    runs = {policy: run_of(found, policy, _shown(found)) for policy in POLICIES}
    full = run_of(found, "full", RAW)[what]
    unit, word = _unit(max(full))
    axes.plot(range(len(full)), [n / unit for n in full], color="#000000", linestyle="--", label="full, float32")
    for policy, run in runs.items():
        values = [n / unit for n in run[what]]
        axes.plot(range(len(values)), values, label=policy, linewidth=1.5, markersize=5, **_STYLES[policy])
        if policy == "intermittent":
            _baselines(axes, run, values)
    # The line of float32 is far above all others.
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")
    axes.set_xticks(range(0, len(full), 2))
    _finish(axes, title, f"{word} (logarithmic)")
    axes.set_xlabel("interval")


def _baselines(axes: Any, run: Mapping[str, Any], values: Sequence[float]) -> None:
    """Rings round the checkpoints that were new baselines."""
    places = [n for n, kind in enumerate(run["kinds"]) if n and kind == "baseline"]
    style = {"marker": "o", "facecolors": "none", "edgecolors": "#0072b2", "zorder": 3, "s": 110}
    axes.scatter(places, [values[n] for n in places], label="its new baselines", **style)


def _bars(axes: Any, found: Results, what: str, title: str) -> None:
    """For each policy and number of bits, how many times less than full checkpoints in float32."""
    bits = [b for b in BITS if any(run["bits"] == b for run in found["runs"])]
    width = 0.8 / len(POLICIES)
    axes.axhspan(*_CLAIMS[what], color="#0072b2", alpha=0.1, linewidth=0)
    for n, policy in enumerate(POLICIES):
        values = [times_less(found, run_of(found, policy, b), what) for b in bits]
        places = [b + (n - (len(POLICIES) - 1) / 2) * width for b in range(len(bits))]
        bars = axes.bar(places, values, width, color=_STYLES[policy]["color"], label=policy)
        axes.bar_label(bars, [f"{value:.2g}" if value < 10 else f"{value:.0f}" for value in values], fontsize=8)
    axes.set_xticks(range(len(bits)), [f"{b} bits" if b != RAW else "float32" for b in bits])
    axes.margins(y=0.1)
    _finish(axes, title, "times less")


def _unit(most: float) -> tuple[float, str]:
    return (1e9, "GB") if most >= 1e9 else (1e6, "MB") if most >= 1e6 else (1e3, "kB")


def _finish(axes: Any, title: str, unit: str) -> None:
    axes.set_title(title, fontsize=11)
    axes.set_ylabel(unit)
    axes.grid(alpha=0.3, axis="y", which="both")
    axes.spines[["top", "right"]].set_visible(False)
