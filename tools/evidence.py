"""The tables of docs/evidence.md, from the results that the engines' long runs left in the tree.

``python tools/evidence.py`` writes the tables anew; with ``--check`` it writes nothing, and exits with 1 if they don't
say what the results say.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "evidence.md"


@dataclass(frozen=True)
class Row:
    """What an engine tried in all its runs: how much of what, how many failures they left, and how to run it again."""

    engine: str
    tried: str
    left: int
    runs: Sequence[Any]

    def line(self) -> str:
        """The row of the table."""
        seconds = sum(run["seconds"] for run in self.runs)
        hours = f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"
        date = max(run["date"] for run in self.runs)
        commands = ", ".join(f"`{command}`" for command in _commands(self.runs))
        return f"| {self.engine} | {self.tried} | {self.left} | {hours}, {date} | {commands} |"


def _commands(runs: Sequence[Any]) -> list[str]:
    """The commands of the runs; those that differ in their seeds alone as one with all of these."""
    seeds: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        before, option, after = run["command"].partition("--seed ")
        seed, blank, rest = after.partition(" ")
        seeds.setdefault((before + option, blank + rest), []).append(seed)
    return [before + ", ".join(each) + rest for (before, rest), each in seeds.items()]


def _count(number: int) -> str:
    return f"{number:,}"


def _total(runs: Sequence[Any], what: str) -> str:
    return _count(sum(run.get(what, 0) for run in runs))


def _failures(runs: Sequence[Any]) -> int:
    return sum(len(run["failures"]) for run in runs)


def _model(found: Any) -> Iterator[Row]:
    tried = (
        f"{_count(found['images'])} distinct images at {_count(found['points'])} crash points of "
        f"{_count(found['workloads'])} workloads; {_count(found['checks'])} checks run"
    )
    yield Row("crash states, by model", tried, found["failed"], [found])


def _filesystems(found: Any) -> Iterator[Row]:
    for name in dict.fromkeys(one["filesystem"] for one in found):
        runs = [one for one in found if one["filesystem"] == name]
        refused = sum(sum(one["refused by the file system"].values()) for one in runs)
        tried = (
            f"{_total(runs, 'states')} distinct images: {_total(runs, 'prefixes')} prefixes, "
            f"{_total(runs, 'reorderings')} reorderings, {_total(runs, 'torn')} torn "
            f"({_count(refused)} of these refused by the file system itself)"
        )
        yield Row(f"crash states, {name}", tried, _failures(runs), runs)


def _kills(found: Any) -> Iterator[Row]:
    for one in found if isinstance(found, list) else [found]:
        counts = one["counts"]
        tried = f"{_count(counts['kills'])} kills of {_count(one['containers'])} containers' writers"
        if "servers killed" in counts:
            tried += (
                f", and {_count(counts['servers killed'])} of servers that followed these; "
                f"{_count(counts['versions followed'])} versions followed, "
                f"{_count(counts['looks at what is served'])} looks at what servers had"
            )
        yield Row("kills", tried, _failures([one]), [one])


def _ranks(found: Any) -> Iterator[Row]:
    kills, containers = found["counts"]["kills"], found["containers"]
    tried = f"{_count(kills)} kills of ranks that wrote {_count(containers)} directories together"
    yield Row("kills among many writers", tried, _failures([found]), [found])


def _machine(found: Any) -> Iterator[Row]:
    outcomes = [one["outcomes"] for one in found]
    tried = f"{_total(found, 'examples')} sequences, {_total(outcomes, 'steps')} steps"
    if any("followed" in one for one in outcomes):
        tried += (
            f"; {_total(outcomes, 'followed')} versions followed, "
            f"{_total(outcomes, 'followed, another history refused')} histories refused that weren't the one followed"
        )
    yield Row("state machine", tried, _failures(found), found)


def _faults(engine: str) -> Callable[[Any], Iterator[Row]]:
    def rows(found: Any) -> Iterator[Row]:
        outcomes = ", ".join(f"{name} {_count(n)}" for name, n in sorted(found["outcomes"].items()))
        tried = f"{_count(found['trials'])} faults of {len(found['by_fault'])} kinds ({outcomes})"
        if following := sum(n for work, n in found["by_work"].items() if work.startswith(("live, ", "follow, "))):
            tried += f", {_count(following)} of them while something follows"
        yield Row(engine, tried, _failures([found]), [found])

    return rows


def _damage(found: Any) -> Iterator[Row]:
    done, of = (sum(kind[what] for kind in found["kinds"].values()) for what in ("done", "cases"))
    share = _count(done) if done == of else f"{_count(done)} of {_count(of)}"
    tried = f"{share} changes of {len(found['kinds'])} kinds to {len(found['containers'])} golden containers"
    if alike := sum(kind.get("found by the digest alone", 0) for kind in found["kinds"].values()):
        tried += f"; {_count(alike)} of them like others that were tried in full, by the digest that they break"
    yield Row("damage", tried, _failures([found]), [found])


def _fuzz(found: Any) -> Iterator[Row]:
    left = sum(target["failures_left"] for one in found for target in one["targets"].values())
    targets = {name for one in found for name in one["targets"]}
    yield Row("fuzzing", f"{_total(found, 'executions')} executions of {len(targets)} targets", left, found)


RESULTS: tuple[tuple[str, Callable[[Any], Iterator[Row]]], ...] = (
    ("tools/crash/results/model.json", _model),
    ("tools/crash/results/filesystems.json", _filesystems),
    ("tools/crash/results/kills.json", _kills),
    ("tools/crash/results/ranks.json", _ranks),
    ("tools/crash/results/machine.json", _machine),
    ("tools/crash/results/faults.json", _faults("faults of storage calls")),
    ("tools/crash/results/system_calls.json", _faults("faults of system calls and disks")),
    ("tools/damage/results/damage.json", _damage),
    ("tools/fuzz/results/fuzz.json", _fuzz),
)


def engines() -> str:
    """The table of all engines."""
    lines = ["| engine | tried | failures left | time of all runs | command |", "|---|---|---|---|---|"]
    for name, read in RESULTS:
        if (ROOT / name).exists():
            lines += [row.line() for row in read(json.loads((ROOT / name).read_text("utf-8")))]
        else:
            lines.append(f"| `{name}` | no long run yet | | | |")
    return "\n".join(lines)


def peers() -> str:
    """The table of what other formats do with the same kinds of damage."""
    return (ROOT / "tools/damage/results/peers.md").read_text("utf-8").strip()


TABLES: dict[str, Callable[[], str]] = {"engines": engines, "peers": peers}


def filled(page: str) -> str:
    """The page with its tables made anew, each between its two marks."""
    for name, table in TABLES.items():
        marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text = table() + "\n"
        page, places = marks.subn(lambda found, text=text: found[1] + text + found[2], page)  # type: ignore[misc]
        if places != 1:
            raise SystemExit(f"{PAGE}: expected one place for the table {name}, found {places}")
    return page


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    parser = argparse.ArgumentParser(description="The tables of docs/evidence.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; say whether the page is up to date")
    options = parser.parse_args(arguments)
    page = PAGE.read_text("utf-8")
    new = filled(page)
    if options.check:
        if new != page:
            print(f"{PAGE} doesn't say what the results say: run python tools/evidence.py", file=sys.stderr)
        return int(new != page)
    PAGE.write_text(new, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
