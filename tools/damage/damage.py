"""The damage engine: every golden container, damaged in every way, is judged by both validators and by readers.

    python -m tools.damage.damage --state FILE --json tools/damage/results/damage.json       every case; resumable
    python -m tools.damage.damage --seed 7 --runs 200                           200 cases of each kind and container
    python -m tools.damage.damage --only 1.0/tiny --kinds bits,truncations      a container, some kinds
    python -m tools.damage.damage --case 1.0/keyed.cnr:bits:1234                one case, with all that is wrong

Each case must be found by `cnrfmt.verify` and by `tools/cnrcheck.py`, in the right place, and by a reader that
touches it; nobody may answer with a wrong value. Of the kinds with most cases, one reader in turn takes each case.
What is found is repeated by `--case`, whatever the seed.
Progress is kept in the file of `--state`, if one is given: killed at any time, the same command goes on. Exit status 1
where anything is wrong.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from random import Random
from typing import Any

from tools.damage.alike import Alike
from tools.damage.golden import Golden, goldens
from tools.damage.judge import READERS, Reader, Scratch, problems
from tools.damage.kinds import KINDS, Damage
from tools.damage.layout import Layout
from tools.progress import GOLDEN, Kept, at_least, chosen, counting, engine_parser, run_program, write_json

_CHUNK = 100
_MOST_FAILURES = 50
_OF_ONE_BYTE = ("bits", "bytes")
_MANY = 1000
"""From so many cases of a kind on, the readers take turns: the eight bits of a byte then meet each of them."""


def memory_folder() -> str | None:
    """A folder in memory, where there is one: the engine writes each case to a file."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def numbers(golden: Golden, kind: str, seed: int | None, runs: int | None) -> list[int]:
    """The cases to try: all, or as many as asked for, drawn by the seed."""
    count = len(KINDS[kind].cases(Layout(golden.files)))
    if runs is None or runs >= count:
        return list(range(count))
    return sorted(Random(f"{seed} {golden.name} {kind}").sample(range(count), runs))


def try_cases(golden: Golden, kind: str, wanted: list[int], folder: Path) -> tuple[Counter[str], list[str]]:
    """Try some cases of a kind; what was counted, and what is wrong, each with the command that repeats it."""
    counts: Counter[str] = Counter()
    failures = []
    scratch = Scratch(golden, folder)
    cases = KINDS[kind].cases(scratch.layout)
    alike = Alike(scratch.layout)
    for number in wanted:
        damage = KINDS[kind].make(scratch.layout, cases[number])
        if kind in _OF_ONE_BYTE and alike.is_known(*cases[number][:2], number, damage):
            counts["found by the digest alone"] += 1
            continue
        scratch.apply(damage)
        try:
            readers = READERS if len(cases) < _MANY else (READERS[number % len(READERS)],)
            for problem in _problems(scratch, damage, counts, readers):
                command = f"python -m tools.damage.damage --case {golden.name}:{kind}:{number}"
                failures.append(f"{damage.what}: {problem} [{command}]")
        finally:
            scratch.mend(damage)
    return counts, failures


def _problems(scratch: Scratch, damage: Damage, counts: Counter[str], readers: Iterable[Reader]) -> list[str]:
    """What isn't as it must be, an error that isn't one of ours included."""
    try:
        return list(problems(scratch, damage, counts, readers))
    except Exception as error:
        return [f"raised {type(error).__name__}: {error}"]


def _try_some(name: str, kind: str, wanted: list[int], home: str) -> tuple[int, Counter[str], list[str], float]:
    """Try some cases in a folder of their own; also how many they were and the seconds that they took."""
    started = time.monotonic()
    golden = next(golden for golden in goldens() if golden.name == name)
    with tempfile.TemporaryDirectory(dir=home) as folder:
        counts, failures = try_cases(golden, kind, wanted, Path(folder))
    return len(wanted), counts, failures, time.monotonic() - started


def _jobs(options: argparse.Namespace) -> list[tuple[str, str, list[int]]]:
    """Containers, kinds and cases; those with few cases first."""
    found = [
        (golden.name, kind, numbers(golden, kind, options.seed, options.runs))
        for golden in goldens()
        for kind in options.kinds.split(",")
        if options.only in (None, golden.name)
    ]
    return sorted(found, key=lambda job: len(job[2]))


@contextmanager
def _workers(processes: int) -> Iterator[Executor]:
    """Processes that try cases; they come to their end at once where this one is stopped."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        try:
            yield pool
        except KeyboardInterrupt:
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise


def run(options: argparse.Namespace) -> int:
    """Try what isn't tried yet, keep the progress, print the table; the exit status."""
    kept = Kept(options.state, {"seed": options.seed, "runs": options.runs}, GOLDEN, anyway=options.anyway)
    state = kept.load() or {"seconds": 0.0, "jobs": {}}
    until = time.monotonic() + options.seconds
    tried = 0
    with (
        counting(lambda: f"{tried} cases", options.state),
        tempfile.TemporaryDirectory(dir=memory_folder()) as home,
        _workers(options.processes) as pool,
    ):
        for name, kind, wanted in _jobs(options):
            empty = {"done": 0, "of": len(wanted), "counts": {}, "failures": []}
            job = state["jobs"].setdefault(f"{name}:{kind}", empty)
            while job["done"] < len(wanted) and time.monotonic() < until:
                starts = range(job["done"], len(wanted), _CHUNK)[: 4 * options.processes]
                chunks = [wanted[start : start + _CHUNK] for start in starts]
                for found in pool.map(_try_some, repeat(name), repeat(kind), chunks, repeat(home)):
                    done, counts, failures, seconds = found
                    job["counts"] = dict(Counter(job["counts"]) + counts)
                    job["failures"] = (job["failures"] + failures)[:_MOST_FAILURES]
                    job["counts"]["failures"] = job["counts"].get("failures", 0) + len(failures)
                    job["done"] += done
                    tried += done
                    state["seconds"] += seconds
                    kept.save(state)
                    shown = f"{name} {kind} {job['done']}/{len(wanted)}"
                    print(f"{shown}, {job['counts']['failures']} failures", flush=True)
    return report(state, options, kept, tried)


def report(state: Any, options: argparse.Namespace, kept: Kept, tried: int) -> int:
    """Print the totals, write them as JSON where that is asked for; the exit status."""
    kinds: dict[str, Counter[str]] = {kind: Counter() for kind in options.kinds.split(",")}
    failures: list[str] = []
    of: Counter[str] = Counter()
    done: Counter[str] = Counter()
    for name, job in state["jobs"].items():
        kind = name.rpartition(":")[2]
        if kind in kinds and options.only in (None, name.rpartition(":")[0]):
            kinds[kind].update(job["counts"])
            of[kind] += job["of"]
            done[kind] += job["done"]
            failures += job["failures"]
    if done.total() < of.total():
        print(f"unfinished after {options.seconds:.0f} s")
    elif not tried:
        kept.say_finished()
    for kind, counts in kinds.items():
        print(f"{kind}: {done[kind]} of {of[kind]}, {dict(counts)}")
    for failure in failures:
        print(failure)
    if options.json is not None:
        drawn = f" --seed {options.seed} --runs {options.runs}" if options.runs else ""
        write_json(
            options.json,
            {
                "command": f"python -m tools.damage.damage{drawn}",
                "code": kept.code,
                "date": kept.date,
                "seconds": round(state["seconds"]),
                "containers": [golden.name for golden in goldens() if options.only in (None, golden.name)],
                "kinds": {
                    kind: {"about": KINDS[kind].about, "cases": of[kind], "done": done[kind], **counts}
                    for kind, counts in kinds.items()
                },
                "failures": failures,
            },
        )
    return 1 if failures else 0


def run_case(golden: Golden, kind: str, number: int) -> int:
    """Try one case and print all that is wrong; the exit status."""
    with counting(lambda: "no case", None), tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        counts, failures = try_cases(golden, kind, [number], Path(folder))
    print(dict(counts))
    for failure in failures:
        print(failure)
    return 1 if failures else 0


def main(arguments: list[str] | None = None) -> int:
    """Run the program; its exit status."""
    parser = engine_parser("tools.damage.damage", __doc__)
    parser.add_argument("--seed", type=int, default=1, help="draws the cases where --runs is given")
    parser.add_argument("--runs", type=at_least(1), help="cases of each kind and container; all unless given")
    parser.add_argument("--only", help="one container, such as 1.0/tiny")
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of damage, with commas between")
    parser.add_argument("--case", help="one case: CONTAINER:KIND:NUMBER")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no more cases after so long")
    parser.add_argument("--processes", type=at_least(1), default=1, help="how many processes try cases")
    parser.add_argument("--json", type=Path, help="where the totals go")
    options = parser.parse_args(arguments)
    known = {golden.name: golden for golden in goldens()}
    if options.case is None:
        chosen(parser, "kind", options.kinds.split(","), KINDS)
        chosen(parser, "container", known if options.only is None else [options.only], known)
        return run(options)
    name, kind, number = ("::" + options.case).rsplit(":", 2)
    name = name.lstrip(":")
    chosen(parser, "container", [name], known)
    chosen(parser, "kind", [kind], KINDS)
    count = len(KINDS[kind].cases(Layout(known[name].files)))
    if not number.isdecimal() or int(number) >= count:
        parser.error(f"no such case: {number}; there are 0 to {count - 1}")
    return run_case(known[name], kind, int(number))


if __name__ == "__main__":
    run_program(main)
