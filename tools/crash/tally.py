"""What the engines of faults share: their trials, the loop over these, what it finds, and the command line."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Protocol

from tools.crash.aftermath import LockProbe, Outcome
from tools.progress import Kept, Pulse, at_least, counting, engine_parser, write_json


class Work(Protocol):
    """What is tried: an operation or a way to read."""

    name: str


@dataclass(frozen=True)
class Trial(ABC):
    """One attempt to come: what is done, and in which way the disk fails."""

    on: Work

    @property
    def work(self) -> str:
        """The operation or the way to read."""
        return self.on.name

    @property
    @abstractmethod
    def mode(self) -> str:
        """The fault."""

    @property
    @abstractmethod
    def at(self) -> str:
        """Where it is met."""

    @property
    def name(self) -> str:
        """What names it, and no other."""
        return f"{self.work}: {self.mode}, {self.at}"

    @abstractmethod
    def go(self, probe: LockProbe) -> Outcome:
        """Does it; raises `AssertionError` where what must hold doesn't."""


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

    @classmethod
    def load(cls, seed: int, kept: Kept) -> Tally:
        """How far a run is; an empty tally where it is new."""
        found = kept.load()
        if found is None:
            return cls(seed)
        for name in ("by_fault", "by_work", "outcomes"):
            found[name] = Counter(found[name])
        return cls(**found)


def select(todo: Sequence[Trial], seed: int, *, count: int | None = None, only: str = "") -> list[Trial]:
    """All, those with `only` in their names, or a sample of so many."""
    found = [trial for trial in todo if only in trial.name]
    return found if count is None or count >= len(found) else Random(seed).sample(found, count)


def run(todo: Sequence[Trial], tally: Tally, kept: Kept | None = None) -> Tally:
    """Tries all that the tally doesn't count yet, adds it there and keeps it."""
    started, before, pulse = time.monotonic(), tally.seconds, Pulse()
    with LockProbe() as probe:
        for trial in todo[tally.trials :]:
            try:
                tally.add(trial.work, trial.mode, trial.go(probe).name)
            except Exception as error:  # Whatever it is, it is a finding.
                tally.fail(f'--seed {tally.seed} --only "{trial.name}"', error)
                # What its traceback holds must not look like a leak of the next trial.
                gc.collect()
            tally.seconds = round(before + time.monotonic() - started, 1)
            due = pulse.due()
            if kept is not None and (due or tally.trials == len(todo)):
                kept.save(vars(tally))
            if due:
                shown = f"{tally.trials} of {len(todo)}, {len(tally.failures)} failures, {tally.seconds} s"
                print(shown, flush=True)
    return tally


def command(
    module: str,
    about: str | None,
    trials: Callable[[int, Path], Sequence[Trial]],
    arguments: Sequence[str] | None,
    *,
    folder: str | None = None,
) -> int:
    """The command line of an engine whose `trials` for a seed use a scratch folder, which is made in `folder`."""
    parser = engine_parser(module, about)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trials", type=at_least(1), help="a sample of so many; all if left out")
    parser.add_argument("--only", default="", help="those whose name, 'WORK: FAULT, at call K', has this text")
    parser.add_argument("--json", type=Path, help="where to write the result")
    options = parser.parse_args(arguments)
    asked = {"seed": options.seed, "trials": options.trials, "only": options.only}
    kept = Kept(options.state, asked, anyway=options.anyway)
    tally = Tally.load(options.seed, kept)
    before = tally.trials
    with (
        counting(lambda: f"{tally.trials - before} faults", options.state),
        tempfile.TemporaryDirectory(dir=folder if folder and os.path.isdir(folder) else None) as scratch,
    ):
        print(f"seed {options.seed}: counting the calls of each operation", flush=True)
        every = trials(options.seed, Path(scratch))
        todo = select(every, options.seed, count=options.trials, only=options.only)
        if not todo:
            parser.error(f"no such trial: {options.only!r}\n{_choices(every)}")
        run(todo, tally, kept)
    if tally.trials == before:
        kept.say_finished()
    print(f"seed {options.seed}: {tally.trials} faults in {tally.seconds} s, {dict(tally.outcomes)}")
    for failure in tally.failures:
        print(failure)
    if options.json:
        how = f"python -m {module} --seed {options.seed}" + (f" --trials {options.trials}" if options.trials else "")
        write_json(options.json, {"command": how, "code": kept.code, "date": kept.date, **vars(tally)})
    return 1 if tally.failures else 0


def _choices(every: Sequence[Trial]) -> str:
    works, modes = (list(dict.fromkeys(names)) for names in zip(*((t.work, t.mode) for t in every), strict=True))
    return "\n".join(["there are, of works:", *works, "and of faults:", *modes])
