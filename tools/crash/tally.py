"""What an engine of faults tries and finds: the loop over its trials, and the file that its result is written to."""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Protocol

from tools.crash.aftermath import LockProbe, Outcome
from tools.progress import write_json


class Trial(Protocol):
    """One attempt to come: what is done, in which way the disk fails, and a name that no other trial has."""

    @property
    def work(self) -> str:
        """The operation or the way to read."""
        ...

    @property
    def mode(self) -> str:
        """The fault."""
        ...

    @property
    def name(self) -> str:
        """What names it."""
        ...

    def go(self, probe: LockProbe) -> Outcome:
        """Does it; raises `AssertionError` where what must hold doesn't."""
        ...


@dataclass
class Tally:
    """What was tried and what was found."""

    seed: int
    trials: int = 0
    by_fault: Counter[str] = field(default_factory=Counter)
    by_work: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    unknown: dict[str, dict[str, int]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, work: str, fault: str, outcome: str) -> None:
        """One trial that went well."""
        self.trials += 1
        self.by_fault[fault] += 1
        self.by_work[work] += 1
        self.outcomes[outcome] += 1
        if outcome == "unknown":
            counts = self.unknown.setdefault(work, {})
            counts[fault] = counts.get(fault, 0) + 1

    def fail(self, name: str, error: BaseException) -> None:
        """One that didn't."""
        self.trials += 1
        self.failures.append(f"{name}: {type(error).__name__}: {error}"[:2000])

    def save(self, file: Path, **more: Any) -> None:
        """Writes it down, all at once."""
        write_json(file, {**more, **vars(self)})

    @classmethod
    def load(cls, file: Path, seed: int) -> Tally:
        """What `save` has written for this seed; an empty one if that is nothing."""
        found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        if found.get("seed") != seed:
            return cls(seed)
        for name in ("by_fault", "by_work", "outcomes"):
            found[name] = Counter(found[name])
        return cls(**found)


def run(
    todo: Sequence[Trial], seed: int, *, count: int | None = None, only: str = "", state: Path | None = None
) -> Tally:
    """Tries all, or a sample of so many, or those with `only` in their names; gives what was found.

    With `state`, a file, goes on where a run with the same arguments was ended.
    """
    if count is not None and count < len(todo):
        todo = Random(seed).sample(todo, count)
    todo = [trial for trial in todo if only in trial.name]
    tally = Tally(seed) if state is None else Tally.load(state, seed)
    started, before = time.monotonic(), tally.seconds
    with LockProbe() as probe:
        for trial in todo[tally.trials :]:
            try:
                tally.add(trial.work, trial.mode, trial.go(probe).name)
            except Exception as error:  # Whatever it is, it is a finding.
                tally.fail(f'--seed {seed} --only "{trial.name}"', error)
                # What its traceback holds must not look like a leak of the next trial.
                gc.collect()
            tally.seconds = round(before + time.monotonic() - started, 1)
            if state is not None and tally.trials % 200 == 0:
                tally.save(state)
                print(f"{tally.trials} of {len(todo)}, {len(tally.failures)} failures, {tally.seconds} s", flush=True)
    return tally


def command(
    module: str,
    description: str | None,
    trials: Callable[[int, Path], Sequence[Trial]],
    arguments: Sequence[str] | None,
    *,
    folder: str | None = None,
) -> int:
    """The command line of an engine whose `trials` for a seed use a scratch folder, which is made in `folder`."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trials", type=int, help="a sample of so many; all if left out")
    parser.add_argument("--only", default="", help="those whose name has this text")
    parser.add_argument("--state", type=Path, help="a file for its progress: the same command goes on from there")
    parser.add_argument("--json", type=Path, help="where to write the result")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=folder if folder and os.path.isdir(folder) else None) as scratch:
        todo = trials(options.seed, Path(scratch))
        tally = run(todo, options.seed, count=options.trials, only=options.only, state=options.state)
    print(f"seed {options.seed}: {tally.trials} faults in {tally.seconds} s, {dict(tally.outcomes)}")
    for failure in tally.failures:
        print(failure)
    if options.json:
        how = f"python -m {module} --seed {options.seed}" + (f" --trials {options.trials}" if options.trials else "")
        tally.save(options.json, command=how, date=time.strftime("%Y-%m-%d", time.gmtime()))
    return 1 if tally.failures else 0
