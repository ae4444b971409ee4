"""The tables of docs/evidence.md, from the results that the engines' long runs left in the tree.

``python tools/evidence.py`` writes the tables anew; with ``--check`` it writes nothing, and exits with 1 if they don't
say what the results say.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "evidence.md"


@dataclass(frozen=True)
class Row:
    """What one run of an engine tried: how much of what, how many failures it left, and how to run it again."""

    engine: str
    tried: str
    left: int
    command: str
    date: str
    seconds: int

    def line(self) -> str:
        """The row of the table."""
        hours = f"{self.seconds / 3600:.1f} h" if self.seconds >= 3600 else f"{self.seconds / 60:.0f} min"
        return f"| {self.engine} | {self.tried} | {self.left} | {hours}, {self.date} | `{self.command}` |"


def _count(number: int) -> str:
    return f"{number:,}"


def _model(found: Any) -> Iterator[Row]:
    tried = (
        f"{_count(found['images'])} distinct images at {_count(found['points'])} crash points of "
        f"{_count(found['workloads'])} workloads; {_count(found['checks'])} checks run"
    )
    yield Row("crash states, by model", tried, found["failed"], found["command"], found["date"], found["seconds"])


def _filesystems(found: Any) -> Iterator[Row]:
    for name in dict.fromkeys(one["filesystem"] for one in found):
        runs = [one for one in found if one["filesystem"] == name]

        def total(what: str, runs: list[Any] = runs) -> str:
            return _count(sum(one.get(what, 0) for one in runs))

        refused = sum(sum(one["refused by the file system"].values()) for one in runs)
        tried = (
            f"{total('states')} distinct images: {total('prefixes')} prefixes, {total('reorderings')} reorderings, "
            f"{total('torn')} torn ({_count(refused)} of these refused by the file system itself)"
        )
        seeds = ", ".join(str(one["seed"]) for one in runs)
        command = f"{runs[0]['command'].rpartition(' ')[0]} {seeds}"
        left = sum(len(one["failures"]) for one in runs)
        yield Row(f"crash states, {name}", tried, left, command, runs[-1]["date"], max(one["seconds"] for one in runs))


def _kills(found: Any) -> Iterator[Row]:
    tried = f"{_count(found['counts']['kills'])} kills of {_count(found['containers'])} containers' writers"
    yield Row("kills", tried, len(found["failures"]), found["command"], found["date"], found["seconds"])


def _machine(found: Any) -> Iterator[Row]:
    tried = f"{_count(found['examples'])} sequences, {_count(found['outcomes']['steps'])} steps"
    yield Row("state machine", tried, len(found["failures"]), found["command"], found["date"], found["seconds"])


def _faults(engine: str) -> Callable[[Any], Iterator[Row]]:
    def rows(found: Any) -> Iterator[Row]:
        outcomes = ", ".join(f"{name} {_count(n)}" for name, n in sorted(found["outcomes"].items()))
        tried = f"{_count(found['trials'])} faults of {len(found['by_fault'])} kinds ({outcomes})"
        yield Row(engine, tried, len(found["failures"]), found["command"], found["date"], round(found["seconds"]))

    return rows


def _damage(found: Any) -> Iterator[Row]:
    done, of = (sum(kind[what] for kind in found["kinds"].values()) for what in ("done", "cases"))
    share = _count(done) if done == of else f"{_count(done)} of {_count(of)}"
    tried = f"{share} changes of {len(found['kinds'])} kinds to {len(found['containers'])} golden containers"
    yield Row("damage", tried, len(found["failures"]), found["command"], found["date"], found["seconds"])


def _fuzz(found: Any) -> Iterator[Row]:
    left = sum(target["failures_left"] for target in found["targets"].values())
    tried = f"{_count(found['executions'])} executions of {len(found['targets'])} targets"
    yield Row("fuzzing", tried, left, found["command"], found["date"], found["seconds"])


RESULTS: tuple[tuple[str, Callable[[Any], Iterator[Row]]], ...] = (
    ("tools/crash/results/model.json", _model),
    ("tools/crash/results/filesystems.json", _filesystems),
    ("tools/crash/results/kills.json", _kills),
    ("tools/crash/results/machine.json", _machine),
    ("tools/crash/results/faults.json", _faults("faults of storage calls")),
    ("tools/crash/results/system_calls.json", _faults("faults of system calls and disks")),
    ("tools/damage/results/damage.json", _damage),
    ("tools/fuzz/results/fuzz.json", _fuzz),
)


def engines() -> str:
    """The table of all engines."""
    lines = ["| engine | tried | failures left | took | command |", "|---|---|---|---|---|"]
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
