"""Figures for several widths and kinds of rows, and the report that sets the widths side by side."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tools.bench._figures import Figure, Target, Times, in_turn, timed

Work = Callable[[], Any]


@dataclass(frozen=True)
class Line:
    """A figure for rows of one kind and width, and for so many threads on either side."""

    point: int
    rows: str
    dim: int
    threads: int
    figure: Figure

    def as_json(self) -> dict[str, Any]:
        """Everything, raw values included."""
        return {
            "point": self.point,
            "rows": self.rows,
            "dim": self.dim,
            "threads": self.threads,
            **self.figure.as_json(),
        }


def race(rounds: int, contenders: Mapping[str, Work]) -> dict[str, Times]:
    """The seconds of each contender in turn, after one run that doesn't count."""
    for work in contenders.values():
        work()
    # What compiling left behind would be gone through after each round.
    gc.freeze()
    return in_turn(rounds, {name: lambda _, w=work: timed(w) for name, work in contenders.items()})


def report(lines: list[Line]) -> str:
    """One row per figure and kind of rows, one column per width, and how many rows keep to their targets."""
    dims = sorted({line.dim for line in lines})
    head = ["point", "figure", "against", "rows", "threads", *(f"dim {dim}" for dim in dims), "target", "met"]
    found: dict[tuple[str, ...], dict[int, Line]] = {}
    for line in lines:
        figure = line.figure
        against = figure.peer_name or ""
        key = (str(line.point), figure.name, against, line.rows, str(line.threads), _target(figure))
        found.setdefault(key, {})[line.dim] = line
    table = [head]
    verdicts: list[str] = []
    for (*what, target), cells in found.items():
        missed = [dim for dim, line in cells.items() if line.figure.met is False]
        verdict = "" if not target else f"NO: {', '.join(map(str, missed))}" if missed else "yes"
        verdicts.append(verdict)
        table.append([*what, *(_cell(cells[dim].figure) if dim in cells else "" for dim in dims), target, verdict])
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    shown = [" | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in table]
    shown.insert(1, "-|-".join("-" * w for w in widths))
    met, of = verdicts.count("yes"), sum(map(bool, verdicts))
    return "\n".join([*shown, "", f"{met} of {of} rows keep to their target at every width"])


def _cell(figure: Figure) -> str:
    own = _shown(figure.cnrfmt, figure)
    if not figure.peer:
        return own
    ratio = statistics.median(figure.ratios)
    # A bound on errors is a matter of a thousandth.
    shown = f"{ratio:.4f}" if figure.unit == "error" else f"{ratio:.3g}"
    return f"{own} : {_shown(figure.peer, figure)} = {shown}"


def _shown(values: Times, figure: Figure) -> str:
    """A time as GB/s of float32, where it is known of how many."""
    middle = statistics.median(values)
    if figure.unit == "error":
        return f"{middle:.4g}"
    return f"{middle * 1e3:.3g} ms" if figure.bytes_moved is None else f"{figure.bytes_moved / middle / 1e9:.3g}"


def _target(figure: Figure) -> str:
    target = figure.target
    if target is None:
        return ""
    unit = " GB/s" if target.of == "rate" else f" x {figure.ratio_of}" if target.of == "ratio" else ""
    if figure.unit == "error" and target.of == "ratio":
        unit = " x error"
    return f"{target.sense} {target.bound:.7g}{unit}"


def speed(
    point: int,
    name: str,
    case: tuple[str, int],
    own: Times,
    nbytes: int,
    *,
    threads: int = 1,
    peer: tuple[str, Times] | None = None,
    least: float | None = None,
    least_rate: float | None = None,
) -> Line:
    """How fast float32 is encoded or decoded; `least` bounds the peer's time over cnrfmt's, `least_rate` the GB/s."""
    target = None
    if least is not None:
        target = Target("ratio", ">=", least)
    elif least_rate is not None:
        target = Target("rate", ">=", least_rate)
    figure = Figure(
        group=f"point {point}",
        name=name,
        cnrfmt=own,
        peer_name=None if peer is None else peer[0],
        peer=[] if peer is None else peer[1],
        ratio_of="speed",
        target=target,
        bytes_moved=nbytes,
    )
    return Line(point, *case, threads, figure)


def error(
    point: int,
    name: str,
    case: tuple[str, int],
    own: float,
    *,
    peer: tuple[str, float] | None = None,
    most: float | None = None,
) -> Line:
    """An error, or a ratio of errors; `most` bounds its ratio to the peer's, or itself where there is no peer."""
    figure = Figure(
        group=f"point {point}",
        name=name,
        cnrfmt=[own],
        unit="error",
        peer_name=None if peer is None else peer[0],
        peer=[] if peer is None else [peer[1]],
        target=None if most is None else Target("cnrfmt" if peer is None else "ratio", "<=", most),
    )
    return Line(point, *case, 1, figure)
