"""The long run of the state machine `cnrfmt.testing.ContainerMachine`, on a disk in memory whose power can be cut.

    python -m tools.crash.machine --examples 20000 --steps 50 --seed 1 --state FILE --json OUT

Killed at any time, the same command goes on where it was. A batch that fails is tried again by itself with
``--batch NUMBER``; the run goes on with the next one, and its exit status is 1 at the end.
"""

from __future__ import annotations

import argparse
import errno
import inspect
import itertools
import json
import logging
import mmap
import os
import shlex
import time
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, ClassVar, cast

import hypothesis
from hypothesis.stateful import run_state_machine_as_test

from cnrfmt.errors import StorageError
from cnrfmt.storage.fs import Fs, byte_view
from cnrfmt.testing import ContainerMachine
from tools.crash._memory import Disk, File
from tools.crash.recording import FOLDER, RecordingFs
from tools.progress import Kept, at_least, counting, engine_parser, run_program, write_entry

# What a manager can't do behind a checkpoint it only logs, and here that is what is tried.
logging.getLogger("cnrfmt").addHandler(logging.NullHandler())
BATCH = 200
"""Examples between two checkpoints of the run's progress."""
_ON_HANDLES = {n for n, c in vars(Fs).items() if callable(c) and "handle" in inspect.signature(c).parameters}


class MappingFs(RecordingFs):
    """Maps show what is written after they were made, as the kernel's do: readers outlive the commits of a run."""

    def __init__(self, disk: Disk | None = None) -> None:
        super().__init__(disk)
        # By file: the memory behind a map, and what lets go of it with the map.
        self._maps: dict[int, list[tuple[int, weakref.finalize[Any, Any]]]] = {}

    def number_of(self, handle: int) -> int:
        """Which file a handle is of."""
        return self._opened(handle, "look at").file.number

    def reopened(self, number: int, path: str) -> int:
        """A handle of a file that somebody had open before this disk lost power; raises ESTALE if it is gone."""
        file = next((node for node in self.disk.reachable() if node.number == number), None)
        if not isinstance(file, File):
            raise StorageError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return self._handle(file, path, writable=False)

    def map(self, handle: int, length: int) -> mmap.mmap:
        """A map of memory that later writes go to, too."""
        file = self._opened(handle, "map").file
        memory = os.memfd_create("cnrfmt-machine")
        os.write(memory, bytes(file.data[:length]))
        found = mmap.mmap(memory, length, access=mmap.ACCESS_READ)
        self._maps.setdefault(file.number, []).append((memory, weakref.finalize(found, os.close, memory)))
        return found

    def pwrite(self, handle: int, offset: int, data: Any) -> None:
        """Writes to the file and to its maps, within their length."""
        super().pwrite(handle, offset, data)
        self._write_maps(handle, offset, bytes(byte_view(data)))

    def truncate(self, handle: int, size: int) -> None:
        """Cuts or extends; what was cut off a map reads as zero, which is kinder than the kernel's signal."""
        super().truncate(handle, size)
        self._write_maps(handle, size, None)

    def take_over(self, before: MappingFs) -> None:
        """Maps of another machine show what this disk has of their files, if it has them, after a loss of power."""
        for node in self.disk.reachable():
            if isinstance(node, File) and node.number in before._maps:
                self._maps[node.number] = before._maps[node.number]
                for memory, end in self._maps[node.number]:
                    if end.alive:
                        size = os.fstat(memory).st_size
                        os.pwrite(memory, bytes(node.data[:size]).ljust(size, b"\0"), 0)

    def _write_maps(self, handle: int, offset: int, data: bytes | None) -> None:
        number = self._opened(handle, "write").file.number
        alive = [(memory, end) for memory, end in self._maps.get(number, ()) if end.alive]
        self._maps[number] = alive
        for memory, _ in alive:
            room = os.fstat(memory).st_size - offset
            if room > 0:
                os.pwrite(memory, bytes(room) if data is None else data[:room], offset)


class AfarFs:
    """The calls of another machine on a disk, as a server of files gives them: handles outlive its losses of power.

    A file that is gone then is a stale handle.
    """

    def __init__(self, disk: RecordedDisk) -> None:
        self._disk = disk
        self._numbers = itertools.count(1)
        # By handle, the file system that it was opened on, its handle there, the file and its path.
        self._opened: dict[int, tuple[MappingFs, int, int, str]] = {}

    def __getattr__(self, name: str) -> Any:
        on_handle = name in _ON_HANDLES

        def call(*args: Any, **options: Any) -> Any:
            fs = self._disk.recording
            if name == "open":
                handle, number = fs.open(*args, **options), next(self._numbers)
                self._opened[number] = (fs, handle, fs.number_of(handle), args[0])
                return number
            return getattr(fs, name)(*((self._now(args[0]), *args[1:]) if on_handle else args), **options)

        return call

    def close(self, handle: int) -> None:
        """Lets go of a handle, stale or not."""
        fs, found, _, _ = self._opened.pop(handle)
        if fs is self._disk.recording:
            fs.close(found)

    def _now(self, handle: int) -> int:
        fs, found, number, path = self._opened[handle]
        now = self._disk.recording
        if fs is not now:
            found = now.reopened(number, path)
            self._opened[handle] = (now, found, number, path)
        return found


class RecordedDisk:
    """A disk in memory that knows what isn't durable yet."""

    can_lose_power = True
    make_fs: ClassVar[Callable[[Disk | None], MappingFs]] = MappingFs

    def __init__(self) -> None:
        self.folder = FOLDER
        self.recording = type(self).make_fs(None)
        self.afar = cast(Fs, AfarFs(self))

    @property
    def fs(self) -> Fs:
        """The calls on it as it is now."""
        return self.recording

    def lose_power(self, random: Random) -> None:
        """Goes on with one of the states that a crash may leave."""
        before, self.recording = self.recording, type(self).make_fs(self.recording.crash(random).disk)
        self.recording.take_over(before)

    def close(self) -> None:
        """Nothing is left of it."""


def run_batch(seed: int, examples: int, steps: int) -> Counter[str]:
    """So many examples of the machine; gives its outcomes. Raises what a failing one raises, with its steps noted."""

    class Machine(ContainerMachine):
        make_disk = RecordedDisk
        outcomes: ClassVar[Counter[str]] = Counter()

        def fs_afar(self) -> Fs:
            assert isinstance(self.disk, RecordedDisk)
            return self.disk.afar

    settings = hypothesis.settings(
        max_examples=examples,
        stateful_step_count=steps,
        database=None,
        deadline=None,
        derandomize=False,
        print_blob=False,
        report_multiple_bugs=False,
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    run_state_machine_as_test(hypothesis.seed(seed)(Machine), settings=settings)
    return Machine.outcomes


def _command(options: argparse.Namespace, batch: int | None = None) -> str:
    words = ["python", "-m", "tools.crash.machine", "--examples", options.examples, "--steps", options.steps]
    words += ["--seed", options.seed, *(() if batch is None else ("--batch", batch))]
    return shlex.join(map(str, words))


def _table(options: argparse.Namespace, progress: dict[str, Any], kept: Kept) -> dict[str, Any]:
    return {
        "engine": "state machine with crashes",
        "command": _command(options),
        "seed": options.seed,
        "code": kept.code,
        "date": kept.date,
        "seconds": round(progress["seconds"]),
        "examples": progress["examples"],
        "outcomes": dict(sorted(progress["outcomes"].items())),
        "failures": progress["failures"],
    }


def main(arguments: list[str] | None = None) -> int:
    """Runs the batches that are still to be run."""
    parser = engine_parser("tools.crash.machine", __doc__)
    parser.add_argument("--examples", type=at_least(1), default=500)
    parser.add_argument("--steps", type=at_least(1), default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch", type=at_least(0), help="run this batch alone, to see it fail again")
    parser.add_argument("--json", type=Path, help="a file for the result, one entry for each seed")
    options = parser.parse_args(arguments)
    asked = {"examples": options.examples, "steps": options.steps, "seed": options.seed}
    sizes = [min(BATCH, options.examples - start) for start in range(0, options.examples, BATCH)]
    seeds = [options.seed * 1_000_003 + number for number in range(len(sizes))]
    if options.batch is not None:
        if options.batch >= len(sizes):
            parser.error(f"no such batch: {options.batch}; there are 0 to {len(sizes) - 1}")
        with counting(lambda: "no batch", None):
            print(dict(run_batch(seeds[options.batch], sizes[options.batch], options.steps)))
        return 0
    kept = Kept(options.state, asked, anyway=options.anyway)
    progress: dict[str, Any] = kept.load() or {
        **{"batches": 0, "examples": 0, "seconds": 0.0},
        **{"outcomes": {}, "failures": []},
    }
    print(_command(options), flush=True)
    first = progress["batches"]
    if first == len(sizes):
        kept.say_finished()
    with counting(lambda: f"{progress['batches'] - first} batches", options.state):
        for batch in range(first, len(sizes)):
            started = time.monotonic()
            try:
                found = run_batch(seeds[batch], sizes[batch], options.steps)
                progress["outcomes"] = dict(Counter(progress["outcomes"]) + found)
            except Exception as error:
                failure = _failure(_command(options, batch), error)
                progress["failures"].append(failure)
                print(json.dumps(failure, indent=2), flush=True)
            progress["batches"] = batch + 1
            progress["examples"] += sizes[batch]
            progress["seconds"] += time.monotonic() - started
            kept.save(progress)
            print(
                f"{progress['examples']} of {options.examples} examples, {progress['outcomes'].get('steps', 0)} steps, "
                f"{progress['seconds']:.0f} s, {len(progress['failures'])} failures",
                flush=True,
            )
    if options.json:
        write_entry(options.json, _table(options, progress, kept))
    print(json.dumps(_table(options, progress, kept), indent=2))
    return 1 if progress["failures"] else 0


def _failure(command: str, error: Exception) -> dict[str, str]:
    steps = "\n".join(getattr(error, "__notes__", []))
    return {"command": command, "error": f"{type(error).__name__}: {error}", "steps": steps}


if __name__ == "__main__":
    run_program(main)
