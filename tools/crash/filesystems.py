"""Crash states on a real file system: what ext4, XFS or btrfs makes of a disk that lost power under a container.

    python -m tools.crash.filesystems --filesystem ext4 --states 2000 --seed 1

Steps on a container run on the file system, on a disk that records all writes and flushes. Then the disk is put
into each state that a crash may leave there: everything up to some write, or any subset of what it hadn't
promised yet, now and then with a torn block. The kernel mounts each one, and the container on it must say what was
acknowledged or what was pending, be sound to both validators, and take the next commit. A recording may begin
with the state that a crash of the one before it left, so that the recovery is crashed into, too.

A torn block may be more than the file system copes with: ext4's superblock, for one, has a checksum over two sectors.
What can't be mounted, or is damaged by what the file system itself says, is counted apart where a block was torn,
and is a failure where none was.

Most of a state's time goes by in the kernel's mounting and unmounting, so that several runs with seeds of their own
get through more states, side by side, than one.

Needs root on Linux, with FUSE and loop devices. A seed repeats the steps and the choice of states, not the timing
of the kernel that the writes depend on; so a state that fails is kept, and is checked again by `--again FOLDER`.
"""

from __future__ import annotations

import json
import pickle
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from cnrfmt.storage.fs import Fs
from tools.crash._disk_check import Bench, RefusedError, bench
from tools.crash._disk_mounts import workplace
from tools.crash._disk_states import Bytes, Epoch, Image, State, digest, epochs, prefixes, subsets, tear, units
from tools.crash._disk_workload import (
    FILESYSTEMS,
    FileSystem,
    Recording,
    RestlessFs,
    Start,
    fresh,
    record,
    steps_from,
)
from tools.crash.expected import Expected
from tools.progress import Kept, at_least, counting, engine_parser, run_program, undisturbed, write_entry

# Reorderings of an epoch, for each write that is undecided in it.
_REORDERINGS = 2
# Of the reorderings, the share that is torn.
_TORN = 0.15
# The states that are tried of what a mount writes before the first step: its own recovery, after a crash.
_MOUNT_STATES = 20
# Failures that are enough to look at; each keeps an image.
_ENOUGH = 50
# The longest history that a recording goes on with.
_LONGEST = 6


@dataclass
class Tally:
    """What was tried, and what came of it. Images are counted once, however often they came up."""

    recordings: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, str]] = field(default_factory=list)
    seconds: float = 0.0
    digests: set[int] = field(default_factory=set)

    @property
    def states(self) -> int:
        """Distinct images so far."""
        return len(self.digests)

    def save(self, kept: Kept) -> None:
        """Writes it down, for a later run to go on from; all or nothing."""
        kept.save({**vars(self), "digests": sorted(self.digests)})

    @classmethod
    def load(cls, kept: Kept) -> Tally:
        """Goes on from what a run of the same command wrote down."""
        content = kept.load()
        if content is None:
            return cls()
        for name in ("counts", "refused"):
            content[name] = Counter(content[name])
        return cls(**{**content, "digests": set(content["digests"])})


@dataclass
class Explorer:
    """Makes recordings and checks the states that they may crash into; counts in `tally`.

    `keep` is where the states that failed are kept; `enough` of them end it. `share` is how many of a recording's
    states are tried. `fs` stands between the steps and the file system: tests plant bugs there, otherwise it is None
    and chance decides.
    """

    filesystem: FileSystem
    place: Path
    bench: Bench
    tally: Tally
    seed: int
    keep: Path
    share: float
    enough: int
    fs: Fs | None
    crashed: Start | None = None

    def run(self, limit: int) -> None:
        """One recording with its states, until `limit` distinct images have been seen."""
        random = Random(f"{self.filesystem.name}/{self.seed}/{self.tally.recordings}")
        start = self.crashed if self.crashed is not None and random.random() < 0.5 else None
        self.crashed = None
        if start is None:
            start = fresh(self.place, self.filesystem, random)
        steps = steps_from(start.model, start.kind, random, random.randint(1, 4))
        fs = self.fs
        if fs is None and random.random() < 0.5:
            fs = RestlessFs(random, self.place / "recorded")
        with undisturbed():
            recording = record(self.place, self.filesystem, start, steps, fs)
        self._explore(recording, random, limit)
        self.tally.recordings += 1

    def _explore(self, recording: Recording, random: Random, limit: int) -> None:
        start = recording.start
        image = Image(self.filesystem.size, start.pages, units(recording.log, start.block))
        seen: set[tuple[int, int]] = set()
        candidates = 0
        for epoch in epochs(recording.log, start.block):
            image.apply(epoch.settled)
            states = _states(epoch, image, random)
            if "ready" not in epoch.marks:
                states = _some(states, random) if start.model.versions else iter(())
            for what, state in states:
                if self.tally.states >= limit or len(self.tally.failures) >= self.enough:
                    return
                if random.random() >= self.share:
                    continue
                pages = image.with_changes(state.survivors)
                mark = digest(pages)
                # The same image again is checked again where more was promised.
                if (mark, len(epoch.marks)) in seen:
                    continue
                seen.add((mark, len(epoch.marks)))
                if mark not in self.tally.digests:
                    self.tally.digests.add(mark)
                    self.tally.counts[what] += 1
                survivor = self._check(recording, state, image, pages, random.getrandbits(32))
                if survivor is None or state.torn or len(survivor.versions) > _LONGEST:
                    continue
                candidates += 1
                if random.randrange(candidates) == 0:
                    self.crashed = Start(start.kind, start.block, image.split(pages), survivor)

    def _check(self, recording: Recording, state: State, image: Image, pages: Bytes, seed: int) -> Expected | None:
        """What a state turns out to say; None if it doesn't stand."""
        promise = recording.promised(state.epoch)
        self.tally.counts["checks"] += 1
        try:
            with undisturbed():
                survivor = self.bench.check(image, pages, promise, seed)
        except RefusedError as error:
            self.tally.refused[f"{'torn' if state.torn else 'whole'}: {error}"] += 1
            if not state.torn:
                self._failed(recording, state, image, pages, seed, error)
        except Exception as error:
            self._failed(recording, state, image, pages, seed, error)
        else:
            if promise.pending:
                happened = survivor is not promise.acknowledged
                self.tally.counts["pending, happened" if happened else "pending, didn't happen"] += 1
            return survivor
        return None

    def _failed(
        self, recording: Recording, state: State, image: Image, pages: Bytes, seed: int, error: Exception
    ) -> None:
        folder = self.keep / f"{self.filesystem.name}-{self.seed}-{self.tally.recordings}-{len(self.tally.failures)}"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "image").open("w+b") as file:
            image.write(file.fileno(), pages)
        case = (self.filesystem.name, recording.promised(state.epoch), seed)
        (folder / "case").write_bytes(pickle.dumps(case))
        failure = {
            "error": f"{type(error).__name__}: {error}",
            "state": str(state),
            "steps": f"{recording.start.kind}: {' '.join(step.operation.name for step in recording.steps)}",
            "recording": str(self.tally.recordings),
            "again": f"python -m tools.crash.filesystems --again {folder}",
        }
        self.tally.failures.append(failure)
        print(f"FAILED {failure}", file=sys.stderr, flush=True)


def _states(epoch: Epoch, image: Image, random: Random) -> Iterator[tuple[str, State]]:
    """The states of an epoch that are tried, each with what it is counted as."""
    for state in prefixes(epoch):
        yield "prefixes", state
    for state in subsets(epoch, random, _REORDERINGS * len(epoch.open)):
        torn = tear(state, random, image) if random.random() < _TORN else state
        yield ("torn" if torn.torn else "reorderings"), torn


def _some(states: Iterator[tuple[str, State]], random: Random) -> Iterator[tuple[str, State]]:
    every = list(states)
    yield from random.sample(every, min(_MOUNT_STATES, len(every)))


def explore(
    filesystem: FileSystem,
    states: int,
    seed: int,
    *,
    keep: Path,
    kept: Kept | None = None,
    share: float = 1.0,
    fs: Fs | None = None,
    after: Callable[[Tally], None] | None = None,
    enough: int = _ENOUGH,
) -> Tally:
    """Checks distinct states until there are this many, or `enough` failures.

    Goes on from what `kept` says, and keeps it up to date. Of the states of a recording a `share` is
    tried, drawn by lot: a small number then comes from several recordings. `after` is called after each recording.
    A state that fails is printed, noted in the tally and kept under `keep`.
    """
    kept = kept or keep_for(filesystem, seed)
    tally = Tally.load(kept)
    before = tally.states
    done = before
    if before >= states or len(tally.failures) >= enough:
        kept.say_finished()
        if after is not None:
            after(tally)
        return tally
    with counting(lambda: f"{done - before} states", kept.file), workplace() as place, bench(place, filesystem) as one:
        explorer = Explorer(filesystem, place, one, tally, seed, keep, share, enough, fs)
        while tally.states < states and len(tally.failures) < enough:
            begun = time.monotonic()
            explorer.run(states)
            tally.seconds += time.monotonic() - begun
            tally.save(kept)
            done = tally.states
            if after is not None:
                after(tally)
            refused = f", {sum(tally.refused.values())} refused by the file system" if tally.refused else ""
            print(
                f"{filesystem.name}, seed {seed}: {tally.states} of {states} states, {tally.recordings} recordings, "
                f"{len(tally.failures)} failures{refused}, {tally.seconds:.0f} s",
                flush=True,
            )
    return tally


def keep_for(filesystem: FileSystem, seed: int, file: Path | None = None, *, anyway: bool = False) -> Kept:
    """The progress of a run, in a file if one is given."""
    return Kept(file, {"filesystem": filesystem.name, "seed": seed}, anyway=anyway)


def check_again(folder: Path) -> None:
    """Checks a state that was kept; raises what it raised then."""
    # Written by `Explorer`, on this machine.
    name, promise, seed = pickle.loads((folder / "case").read_bytes())
    with workplace() as place, bench(place, FILESYSTEMS[name]) as one:
        one.copy(folder / "image")
        one.check_written(promise, seed)


def command(filesystem: FileSystem, states: int, seed: int) -> str:
    """What starts a run."""
    return f"python -m tools.crash.filesystems --filesystem {filesystem.name} --states {states} --seed {seed}"


def result(filesystem: FileSystem, tally: Tally, states: int, seed: int, kept: Kept) -> dict[str, Any]:
    """What is worth keeping of a run."""
    return {
        "filesystem": filesystem.name,
        "made by": " ".join(filesystem.program),
        "blocks": list(filesystem.blocks),
        "kernel": platform.release(),
        "command": command(filesystem, states, seed),
        "seed": seed,
        "states": tally.states,
        "recordings": tally.recordings,
        **dict(sorted(tally.counts.items())),
        "refused by the file system": dict(tally.refused),
        "failures": tally.failures,
        "seconds": round(tally.seconds),
        "code": kept.code,
        "date": kept.date,
    }


def entry_key(entry: dict[str, Any]) -> tuple[int, int]:
    """Whose result it is, and where it stands among others: by file system, then by seed."""
    return list(FILESYSTEMS).index(entry["filesystem"]), entry["seed"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the engine; 0 if every state held, 1 if one didn't."""
    parser = engine_parser("tools.crash.filesystems", __doc__)
    parser.add_argument("--filesystem", choices=FILESYSTEMS, default="ext4")
    parser.add_argument("--states", type=at_least(1), default=2000, help="how many distinct states (default 2000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="a file for the result, one entry for each file system and seed")
    parser.add_argument(
        "--keep", type=Path, default=Path("crash-failures"), help="a folder for states that fail (./crash-failures)"
    )
    parser.add_argument("--again", type=Path, metavar="FOLDER", help="check one state again that was kept")
    options = parser.parse_args(arguments)
    if options.again is not None:
        with counting(lambda: "no state", None):
            check_again(options.again)
        print(f"{options.again} holds")
        return 0
    filesystem = FILESYSTEMS[options.filesystem]
    kept = keep_for(filesystem, options.seed, options.state, anyway=options.anyway)

    def write(tally: Tally) -> None:
        if options.json is not None:
            write_entry(options.json, result(filesystem, tally, options.states, options.seed, kept), entry_key)

    tally = explore(filesystem, options.states, options.seed, keep=options.keep, kept=kept, after=write)
    print(json.dumps(result(filesystem, tally, options.states, options.seed, kept), indent=2))
    return 1 if tally.failures else 0


if __name__ == "__main__":
    run_program(main)
