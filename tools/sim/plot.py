"""The picture: bytes and storage by policy, bandwidth, stall and lost work by interval, overhead by cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tools.sim.cluster import COPY, Timeline, Way, plan
from tools.sim.failures import Outcome
from tools.sim.report import CLUSTER, INTERVALS, MINUTES, POLICIES, RANKS, Simulation

# Okabe and Ito's colours, which people with colour-blindness tell apart.
_POLICY_STYLES: dict[str, dict[str, Any]] = {
    "full": {"color": "#555555", "marker": "v"},
    "one-shot": {"color": "#e69f00", "marker": "s"},
    "consecutive": {"color": "#009e73", "marker": "^"},
    "intermittent": {"color": "#0072b2", "marker": "o"},
}
_COPY_STYLE: dict[str, Any] = {"color": "#d55e00", "marker": "X"}
_BITS = 4
_ROUND = [m * 10.0**e for e in range(-4, 4) for m in (1, 2, 5)]


def draw(sim: Simulation, path: Path) -> None:
    """Draws six panels to a file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(17, 9.5), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.14))
    FigureCanvasAgg(figure)
    ((written, held, bandwidth), (stall, lost, overhead)) = figure.subplots(2, 3)
    _draw_policies(written, sim, "Bytes that each checkpoint writes", lambda way: _plan(sim, way).costs.written)
    # Where no line runs.
    written.legend(frameon=False, fontsize=10, loc="upper center", bbox_to_anchor=(0.4, 0.93))
    _draw_policies(held, sim, "Bytes that are kept after each checkpoint", lambda way: _plan(sim, way).costs.held)
    terabytes = CLUSTER * sim.assumed.rank_bytes / 1e12
    cluster = f"{CLUSTER} ranks, {terabytes:.1f} TB"

    def rate(found: Timeline, _: Outcome) -> float:
        return float(found.nbytes.sum() / found.gaps.sum()) / 1e9

    _draw_intervals(bandwidth, sim, f"Average write bandwidth: {cluster}", "GB/s, all ranks", rate)
    _draw_intervals(stall, sim, f"Stall: {cluster}", "% of the time", lambda _, o: 100 * o.stall_share)
    _draw_intervals(lost, sim, f"Training lost per failure: {cluster}", "minutes", lambda _, o: o.lost_minutes)
    _draw_overhead(overhead, sim)
    figure.savefig(path, dpi=100)


def _plan(sim: Simulation, way: Way) -> Any:
    return plan(sim.assumed, way, 30.0, INTERVALS)


def _draw_policies(axes: Any, sim: Simulation, title: str, values: Callable[[Way], Sequence[int]]) -> None:
    for policy in POLICIES:
        way = Way(policy, _BITS)
        shares = [100 * n / _plan(sim, way).plain_bytes for n in values(way)]
        axes.plot(range(INTERVALS), shares, label=policy, linewidth=1.5, **_POLICY_STYLES[policy])
    _finish(axes, f"{title}: {_BITS} bits, every 30 minutes", "checkpoint", "% of the tables as float32")
    axes.set_ylim(bottom=0)
    axes.set_xticks(range(INTERVALS))


def _draw_intervals(
    axes: Any, sim: Simulation, title: str, unit: str, value: Callable[[Timeline, Outcome], float]
) -> None:
    for way in sim.ways(CLUSTER):
        values = [value(*sim.at(way, CLUSTER, minutes)) for minutes in MINUTES]
        axes.plot(MINUTES, values, label=way.name, linewidth=1.5, **_style(way))
    axes.set_xscale("log")
    axes.set_yscale("log")
    _ticks(axes.xaxis, MINUTES)
    _ticks(axes.yaxis, _within(axes))
    _finish(axes, title, "minutes between checkpoints, as asked for", unit)


def _draw_overhead(axes: Any, sim: Simulation) -> None:
    for number, first in enumerate(sim.ways(RANKS[0])):
        ways = [sim.ways(ranks)[number] for ranks in RANKS]
        shares = [
            100 * sim.at(way, ranks, sim.best(way, ranks))[1].overhead for way, ranks in zip(ways, RANKS, strict=True)
        ]
        same = len({way.bits for way in ways}) == 1
        label = first.name if same else f"{first.policy}, bits by expected restores"
        axes.plot(RANKS, shares, label=label, linewidth=1.5, **_style(first))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    # Which bits the expected restores come to stands with the ranks.
    _ticks(axes.xaxis, RANKS, [f"{ranks}\n({sim.bits(ranks)} bits)" for ranks in RANKS])
    _ticks(axes.yaxis, _within(axes))
    title = "Stalls, lost training and restarts, at the best interval"
    _finish(axes, title, f"ranks, {sim.assumed.rank_bytes / 1e9:g} GB each", "% of the time")


def _style(way: Way) -> dict[str, Any]:
    return _COPY_STYLE if way == COPY else _POLICY_STYLES[way.policy]


def _within(axes: Any) -> list[float]:
    """Round numbers on the vertical axis."""
    low, high = axes.get_ylim()
    return [value for value in _ROUND if low <= value <= high]


def _ticks(axis: Any, values: Sequence[float], labels: Sequence[str] | None = None) -> None:
    from matplotlib.ticker import NullLocator

    axis.set_ticks(list(values), [f"{value:g}" for value in values] if labels is None else list(labels))
    axis.set_minor_locator(NullLocator())


def _finish(axes: Any, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=10)
