"""What the simulator prints: assumptions, then tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from cnrfmt.checkpointing.bits import bits_for
from tools.sim.cluster import COPY, CYCLE, RAW, Assumed, Measured, Timeline, Way, plan, timeline
from tools.sim.failures import Outcome, expected_lost_minutes, expected_overhead, read_seconds, simulate
from tools.sim.measuring import BITS

POLICIES = ("full", "one-shot", "consecutive", "intermittent")
RANKS = (8, 16, 32, 64, 128, 256, 512, 1024)
MINUTES = (1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0)
CLUSTER = 256
"""The ranks of the cluster that is looked at closely."""
INTERVALS = 12


class Simulation:
    """Rates, assumptions and a seed; each figure is made once."""

    def __init__(self, measured: Measured, assumed: Assumed, seed: int, runs: int) -> None:
        self.measured, self.assumed, self.seed, self.runs = measured, assumed, seed, runs
        self._known: dict[tuple[Way, int, float], tuple[Timeline, Outcome]] = {}

    def at(self, way: Way, ranks: int, minutes: float) -> tuple[Timeline, Outcome]:
        """The checkpoints of a way so far apart, and what becomes of runs with them."""
        key = way, ranks, minutes
        if key not in self._known:
            found = timeline(self.measured, self.assumed, way, ranks, minutes, seed=self.seed)
            outcome = simulate(self.measured, self.assumed, found, ranks, seed=self.seed, runs=self.runs)
            self._known[key] = found, outcome
        return self._known[key]

    def best(self, way: Way, ranks: int) -> float:
        """The interval at which most of the time is training that counts."""

        def expected(minutes: float) -> float:
            return expected_overhead(self.measured, self.assumed, self.at(way, ranks, minutes)[0], ranks)

        return min(MINUTES, key=expected)

    def bits(self, ranks: int) -> int:
        """By the restores that are expected in a run."""
        return bits_for(self.assumed.failure_rate(ranks) * self.assumed.run_hours)

    def ways(self, ranks: int) -> list[Way]:
        """What is compared on a cluster: what there was before, and the policies with the bits that it takes."""
        return [COPY, Way("full", 8), *(Way(policy, self.bits(ranks)) for policy in ("consecutive", "intermittent"))]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Columns side by side, the first to the left, the others to the right."""
    every = [list(header), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in every
    ]


def sections(sim: Simulation) -> Iterator[str]:
    """Everything, line by line."""
    yield "assumed"
    for line in sim.assumed.words():
        yield f"  {line}"
    tables: list[tuple[str, Callable[[Simulation], list[str]], list[str]]] = [
        (
            "bytes and storage, 30 minutes apart, against full float32 checkpoints",
            _bytes,
            [
                "times fewer bytes written on average over 12 checkpoints : times less storage at its peak",
                "(intermittent: the paper reports 6 to 17 times less bandwidth, 2.5 to 8 times less storage)",
            ],
        ),
        (
            "size of each checkpoint, 4 bits, as a share of a full one, 30 minutes apart",
            _growth,
            ["* a baseline; the paper's predictor takes its second at the eighth interval"],
        ),
        (
            f"stall of a save on {CLUSTER} ranks, 30 minutes apart",
            _stalls,
            [f"of {CYCLE} checkpoints: the longest, and the average of those after the first, always a baseline"],
        ),
        (
            f"by interval, {CLUSTER} ranks: minutes of training lost per failure, and overhead",
            _by_interval,
            [
                "lost: simulated (and expected); overhead: share of the time for stalls, lost work and restarts",
                "+ checkpoints can't be written that often: each waits for the one before",
            ],
        ),
        (
            "clusters, each at its best interval",
            _clusters,
            ["bandwidth: of all ranks, on average; storage: at its peak; bits: by the failures expected in a run"],
        ),
    ]
    for title, make, notes in tables:
        yield ""
        yield title
        for line in (*make(sim), *notes):
            yield f"  {line}".rstrip()


def _bytes(sim: Simulation) -> list[str]:
    rows = []
    for policy in POLICIES:
        cells = []
        for bits in reversed(BITS):
            found = plan(sim.assumed, Way(policy, bits), 30.0, INTERVALS)
            plain = found.plain_bytes
            cells.append(f"{plain / found.costs.average_written:.1f} : {plain / found.costs.peak_held:.1f}")
        rows.append([policy, *cells])
    return table(["", *("float32" if bits == RAW else f"{bits} bits" for bits in reversed(BITS))], rows)


def _growth(sim: Simulation) -> list[str]:
    rows = []
    for policy in POLICIES:
        found = plan(sim.assumed, Way(policy, 4), 30.0, INTERVALS)
        full = found.checkpoints[0].nbytes
        cells = [f"{c.nbytes / full:.2f}{'*' if c.kind == 'baseline' else ' '}" for c in found.checkpoints]
        rows.append([policy, *cells])
    return table(["", *(f"{n} " for n in range(INTERVALS))], rows)


def _stalls(sim: Simulation) -> list[str]:
    rows = []
    for way in (COPY, *(Way(policy, bits) for policy in POLICIES if policy != "one-shot" for bits in (8, 4, 3, 2))):
        found, _ = sim.at(way, CLUSTER, 30.0)
        later = found.stalls[1:]
        rows.append(
            [way.name, f"{found.stalls.max():.2f} s", f"{later.mean():.2f} s", f"{later.mean() / (60 * 30):.3%}"]
        )
    return table(["", "longest", "average", "of the time"], rows)


def _by_interval(sim: Simulation) -> list[str]:
    rows = []
    for way in sim.ways(CLUSTER):
        cells = []
        for minutes in MINUTES:
            found, outcome = sim.at(way, CLUSTER, minutes)
            late = "+" if found.gaps.mean() > 60 * minutes * 1.01 else ""
            lost = f"{outcome.lost_minutes:.1f} ({expected_lost_minutes(found):.1f})"
            cells.append(f"{lost} {outcome.overhead:.1%}{late}")
        rows.append([way.name, *cells])
    return table(["", *(f"{minutes:g} min" for minutes in MINUTES)], rows)


def _clusters(sim: Simulation) -> list[str]:
    rows = []
    for ranks in RANKS:
        for way in sim.ways(ranks):
            minutes = sim.best(way, ranks)
            found, outcome = sim.at(way, ranks, minutes)
            rows.append(
                [
                    f"{ranks} ranks, {found.plain / 1e12:.2f} TB: {way.name}",
                    f"{found.gaps.mean() / 60:.3g} min",
                    f"{found.stalls.mean():.1f} s",
                    f"{found.nbytes.mean() / found.gaps.mean() / 1e9:.2f} GB/s",
                    f"{found.held.max() / 1e12:.2f} TB",
                    f"{outcome.failures:.1f}",
                    f"{outcome.lost_minutes:.1f} min",
                    f"{read_seconds(sim.measured, sim.assumed, found, ranks) / 60:.1f} min",
                    f"{outcome.overhead:.2%}",
                ]
            )
    header = ["", "interval", "stall", "bandwidth", "storage", "failures", "lost each", "reading", "overhead"]
    return table(header, rows)
