"""What a measurement is, how it is repeated, and how it is held against its target."""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Times = list[float]


@dataclass(frozen=True)
class Target:
    """A bound on a figure: on the ratio of cnrfmt to its peer, on cnrfmt's own value, or on its GB/s."""

    of: Literal["ratio", "cnrfmt", "rate"]
    sense: Literal["<=", ">="]
    bound: float

    def met_by(self, value: float) -> bool:
        """Whether a value keeps to the bound."""
        return value <= self.bound if self.sense == "<=" else value >= self.bound


@dataclass(frozen=True)
class Figure:
    """One line of the report.

    `cnrfmt` and `peer` hold one value per round, in the same order; `unit` is theirs. The ratio is taken round
    by round, since what slows a shared machine down slows neighbours in time alike: ``"time"`` (or bytes) is
    cnrfmt over peer, ``"speed"`` is peer over cnrfmt.
    """

    group: str
    name: str
    cnrfmt: Times
    unit: Literal["s", "bytes", "error"] = "s"
    peer_name: str | None = None
    peer: Times = field(default_factory=list)
    ratio_of: Literal["time", "speed"] = "time"
    target: Target | None = None
    verify: str = "-"
    touch: str = "-"
    cache: str = "-"
    bytes_moved: int | None = None

    @property
    def ratios(self) -> Times:
        """The ratio in each round."""
        pairs = zip(self.cnrfmt, self.peer, strict=True) if self.peer else ()
        return [a / b if self.ratio_of == "time" else b / a for a, b in pairs]

    @property
    def rates(self) -> Times:
        """GB/s of cnrfmt in each round; none if no bytes are moved."""
        return [] if self.bytes_moved is None else [self.bytes_moved / seconds / 1e9 for seconds in self.cnrfmt]

    @property
    def met(self) -> bool | None:
        """Whether the median keeps to the target; None if there is no target."""
        if self.target is None:
            return None
        held = {"ratio": self.ratios, "cnrfmt": self.cnrfmt, "rate": self.rates}[self.target.of]
        return self.target.met_by(statistics.median(held))

    def as_json(self) -> dict[str, Any]:
        """Everything, raw values included."""
        return {
            "group": self.group,
            "figure": self.name,
            "unit": self.unit,
            "verify": self.verify,
            "touch": self.touch,
            "cache": self.cache,
            "bytes": self.bytes_moved,
            "cnrfmt": _spread(self.cnrfmt),
            "peer": {"name": self.peer_name, **_spread(self.peer)} if self.peer else None,
            "ratio": {"of": self.ratio_of, **_spread(self.ratios)} if self.peer else None,
            "target": None if self.target is None else vars(self.target),
            "met": self.met,
        }


def _spread(values: Times) -> dict[str, Any]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "raw": values}


def timed(work: Callable[[], Any]) -> float:
    """Seconds that a call takes. What it returns is let go after the clock has stopped."""
    start = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - start
    del result
    return seconds


def in_turn(rounds: int, contenders: Mapping[str, Callable[[int], float]]) -> dict[str, Times]:
    """The values of each contender, round after round: A B C, A B C, ...

    A contender gets the number of the round, does what it must beforehand, and returns its value.
    """
    found: dict[str, Times] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, measure in contenders.items():
            found[name].append(measure(number))
        gc.collect()
    return found


def settle_repeat(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """Sets how many rounds there are where `given` doesn't say, by `quick`; ends the program where they are too few."""
    if given.repeat is None:
        given.repeat = 2 if given.quick else 5
    if given.repeat < 1:
        parser.error("--repeat must be at least 1")


def say(text: str) -> None:
    """A line of progress, for whoever waits."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def table_of(figures: list[Figure]) -> str:
    """The report: one line per figure, medians with their spread."""
    head = ("figure", "cnrfmt", "peer", "ratio", "target", "met", "verify", "touch")
    lines = [head, *(_line(figure) for figure in figures)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    shown = [" | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    shown.insert(1, "-|-".join("-" * w for w in widths))
    return "\n".join(shown)


def _line(figure: Figure) -> tuple[str, ...]:
    ratio = f"{_range(figure.ratios, _plain)} {figure.ratio_of}" if figure.peer else ""
    target = ""
    if figure.target is not None:
        bound = figure.target.bound
        own = figure.target.of == "cnrfmt"
        target = f"{figure.target.sense} {_amount(bound, figure.unit) if own else _plain(bound)}"
    peer = f"{figure.peer_name}: {_range(figure.peer, lambda x: _amount(x, figure.unit))}" if figure.peer else ""
    return (
        f"{figure.group}: {figure.name}",
        _range(figure.cnrfmt, lambda x: _amount(x, figure.unit)) + _rate(figure),
        peer,
        ratio,
        target,
        {None: "", True: "yes", False: "NO"}[figure.met],
        figure.verify,
        figure.touch,
    )


def _rate(figure: Figure) -> str:
    if figure.bytes_moved is None:
        return ""
    return f" {figure.bytes_moved / statistics.median(figure.cnrfmt) / 1e9:.2f} GB/s"


def _range(values: Times, show: Callable[[float], str]) -> str:
    if len(values) == 1:
        return show(values[0])
    return f"{show(statistics.median(values))} ({show(min(values))}..{show(max(values))})"


def _plain(value: float) -> str:
    return f"{value:.3g}"


def _amount(value: float, unit: str) -> str:
    if unit == "bytes":
        return f"{value / (1 << 20):.4g} MiB"
    if unit == "error":
        return _plain(value)
    if value < 1e-3:
        return f"{value * 1e6:.0f} us"
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"
