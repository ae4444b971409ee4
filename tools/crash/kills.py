"""Kills processes that write, while others read and write, and looks at what is left after each.

    python -m tools.crash.kills --kills 10000 --seed 1 --state FILE --json OUT

Every container lives through some kills: at a random moment, before or behind some call of the file system, or at a
named point of the commit protocol; a killed process may have a rival, and readers look on all the while. After each
kill the versions are compared with what an oracle knows (`_kills_oracle.py`), `verify` and `cnrcheck` must find it
sound, and the next writer must succeed and leave nothing unfinished behind. Killed at any time itself, the same command
goes on where it was; ``--life NUMBER`` lives one container's life again. The folder of a life that ended badly is kept.
"""

from __future__ import annotations

import argparse
import gc
import json
import mmap
import os
import secrets
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import cnrfmt
from cnrfmt.storage.fs import Fs
from cnrfmt.testing import Model
from tools import cnrcheck
from tools.crash._kills_oracle import Oracle
from tools.crash._kills_processes import Place, attempt, dying_fs, end, fork, head, read, wait, write
from tools.crash.operations import OPERATIONS, PATHS, check_head
from tools.crash.operations import step as next_step
from tools.progress import Kept, Pulse, at_least, counting, engine_parser, run_program, write_json

APPENDS = [name for name, o in OPERATIONS.items() if o.commit is cnrfmt.append]
SAVES = [name for name, o in OPERATIONS.items() if o.commit not in (None, cnrfmt.append) and not o.first]
POINTS = {
    "file": {
        **dict.fromkeys(("manifest-written", "manifest-synced", "slot-a-written", "slot-a-synced"), APPENDS),
        **dict.fromkeys(("slot-b-written", "slot-b-synced", "slot-repaired"), APPENDS),
        **dict.fromkeys(("file-written", "file-synced", "file-renamed", "folder-synced"), SAVES),
    },
    "directory": dict.fromkeys(
        (
            *("segment-synced", "segment-published", "segments-synced"),
            *("manifest-synced", "manifest-published", "manifests-synced"),
        ),
        APPENDS + SAVES,
    ),
}
"""The named points of each kind of container, and the operations that pass them."""
ATTEMPTS = 4
"""A process that is to die somewhere makes so many attempts at the most."""
MOST_VERSIONS = 16
KILLS_IN_A_LIFE = 12
READERS = ("mmap", "pread")


@dataclass
class Life:
    """One container, from its creation through its kills."""

    number: int
    seed: int
    place: Place
    moment: float
    random: Random = field(init=False)
    oracle: Oracle = field(init=False)
    counts: Counter[str] = field(default_factory=Counter)
    writers: int = 0
    writers_alive: list[int] = field(default_factory=list)
    """The processes of the kill that is going on."""
    halfway: bool = False
    """Whether the slots differ: the next writer has to repair them first."""

    def __post_init__(self) -> None:
        self.random = Random(f"{self.seed}-{self.number}")
        self.oracle = self.place.oracle()

    def live(self, kills: int) -> None:
        """Lives through up to so many kills; raises `AssertionError` where anything is wrong."""
        readers: list[int] = []
        try:
            for backend in READERS:
                seed = f"{self.seed}-{self.number}-{backend}"
                fork(self.place, partial(read, self.place, seed=seed, backend=backend), readers)
            for _ in range(2 * KILLS_IN_A_LIFE):
                if self.counts["kills"] == kills or self.oracle.floor > MOST_VERSIONS:
                    break
                self._kill()
                self._check()
                # Now and then the next kill comes before any writer has cleared up, mostly where there is much to do.
                if self.random.random() < (0.3 if self.halfway else 0.7):
                    self._next_writer()
            self._next_writer()
        finally:
            self.place.stop[0] = 1
            for writer in self.writers_alive:
                end(writer)
            statuses = [wait(reader) for reader in readers]
        self._check()
        assert statuses == [0, 0], f"readers ended with {statuses}"
        self.counts["looks of readers"] += self.oracle.looks

    def _writer(self, fs: Fs | None, names: list[str], most: int) -> int:
        self.writers += 1
        seed = f"{self.seed}-{self.number}-{self.writers}"
        body = partial(write, self.place, number=self.writers, names=names, seed=seed, fs=fs, most=most)
        return fork(self.place, body, self.writers_alive)

    def _kill(self) -> None:
        """A writer, perhaps with a rival, that is killed; counts how."""
        random, points = self.random, POINTS[self.place.kind]
        self.writers_alive.clear()
        # A repair is seldom due, so a writer that has to begin with one is killed in it.
        how = "point" if self.halfway else random.choice(["moment", "call", "point"])
        point, names, fs = None, APPENDS + SAVES, None
        if how == "point":
            point = "slot-repaired" if self.halfway else random.choice(list(points))
            names, fs = points[point], dying_fs(point)
        elif how == "call":
            fs = dying_fs(call=random.randint(1, 60), behind=random.random() < 0.5)
        rival = None
        if not self.halfway and random.random() < 0.4:
            rival = self._writer(None, APPENDS + SAVES, 2 * ATTEMPTS)
        victim = self._writer(fs, names, ATTEMPTS if fs else 1000)
        if how == "moment":
            time.sleep(random.random() * self.moment)
            os.kill(victim, signal.SIGKILL)
        status = wait(victim)
        if rival is not None:
            other = wait(rival)
            assert other == 0, f"the rival ended with {other}\n{self._errors()}"
            self.counts["rivals"] += 1
        assert status in (0, -signal.SIGKILL), f"the writer ended with {status}\n{self._errors()}"
        if status == 0:
            self.counts["came to no end"] += 1
            return
        self.counts["kills"] += 1
        self.counts[f"killed at {point}" if point else f"killed at a random {how}"] += 1

    def _errors(self) -> str:
        self.oracle.update()
        return "\n".join(self.oracle.errors)

    def _check(self) -> None:
        """All that must hold while nobody writes."""
        found = head(self.place, self.oracle)
        assert not self.oracle.errors, self._errors()
        if found is None:
            return
        path = self.place.path
        check_head(path, self.oracle.model(found[0]))
        findings = cnrcheck.check_path(path)
        assert cnrcheck.verdict(findings) == "sound", "\n".join(map(str, findings))
        self.halfway = any(finding.error == "slots-differ" for finding in findings)
        report = cnrfmt.verify(path, threads=1)
        assert report.verdict == "sound", "\n".join(map(str, report.findings))
        mine = [token for token in self.oracle.attempts if token // 1000 == self.writers]
        last = max(mine, default=None)
        if last is not None and last not in self.oracle.acknowledged.values() and last not in self.oracle.refused:
            self.counts["killed, " + ("pending" if self.oracle.committed(last) else "not begun to count")] += 1

    def _next_writer(self) -> None:
        """Appends, or makes the container; then nothing unfinished is left."""
        self.writers += 1
        token = self.writers * 1000
        assert attempt(self.place, self.oracle, token, APPENDS, self.random, None, rivals=False)
        head(self.place, self.oracle)
        self.halfway = False
        left = sorted(str(p) for p in Path(self.place.path).parent.rglob(".tmp-*"))
        assert not left, f"left behind: {left}"
        notes = {finding.error for finding in cnrcheck.check_path(self.place.path)} - {"garbage"}
        assert not notes, f"after the next writer: {notes}"
        self.counts["next writers"] += 1


def warm_up(folder: Path) -> float:
    """Does everything once, so that forked processes have what they need; gives the seconds of a typical attempt."""
    durations = []
    for kind, name in PATHS.items():
        path = folder / f"warm-{name}"
        model = next_step("create", Model(), 0, kind).before
        for number, operation in enumerate(("create", *APPENDS, *SAVES, *APPENDS)):
            made = next_step(operation, model, number, kind)
            started = time.monotonic()
            made.run(path)
            durations.append(time.monotonic() - started)
            model = made.after
        check_head(path, model)
        cnrcheck.check_path(str(path))
        cnrfmt.verify(path, threads=1)
        with cnrfmt.open(path, threads=1) as found:
            for table in found.values():
                table.read()
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads can't be forked safely"
    gc.freeze()
    return sorted(durations)[len(durations) // 2]


def run_life(number: int, seed: int, kills: int, folder: Path, typical: float) -> Counter[str]:
    """One life in a folder of its own, which is kept if it ends badly."""
    home = folder / f"life-{number}-{secrets.token_hex(4)}"
    try:
        home.mkdir()
        counts = _live_in(home, number, seed, kills, typical)
    except KeyboardInterrupt:
        shutil.rmtree(home, ignore_errors=True)
        raise
    shutil.rmtree(home)
    return counts


def _live_in(home: Path, number: int, seed: int, kills: int, typical: float) -> Counter[str]:
    kind = list(PATHS)[number % len(PATHS)]
    place = Place(kind, str(home / PATHS[kind]), home / "journal", mmap.mmap(-1, 1), os.getpid())
    life = Life(number, seed, place, moment=4 * typical)
    try:
        life.live(kills)
    except Exception as error:
        error.add_note(f"{life._errors()}\nthe {kind} and its journal are kept in {home}")
        raise
    finally:
        life.oracle.journal.close()
    return life.counts


def _command(options: argparse.Namespace, life: int | None = None) -> str:
    words = ["python", "-m", "tools.crash.kills", "--kills", options.kills, "--seed", options.seed]
    words += [] if options.folder is None else ["--folder", options.folder]
    words += [] if life is None else ["--life", life]
    return shlex.join(map(str, words))


def _table(options: argparse.Namespace, progress: dict[str, Any], kept: Kept) -> dict[str, Any]:
    return {
        "engine": "kills",
        "command": _command(options),
        "code": kept.code,
        "date": kept.date,
        "seconds": round(progress["seconds"]),
        "containers": progress["lives"],
        "counts": dict(sorted(progress["counts"].items())),
        "failures": progress["failures"],
    }


@contextmanager
def _scratch(inside: Path | None) -> Iterator[Path]:
    """A folder for the lives; it goes when they are over, but for those that are kept."""
    folder = Path(tempfile.mkdtemp(prefix="cnrfmt-kills-", dir=inside))
    try:
        yield folder
    finally:
        for warm in folder.glob("warm-*"):
            shutil.rmtree(warm) if warm.is_dir() else warm.unlink()
        if not any(folder.iterdir()):
            folder.rmdir()


def _live(options: argparse.Namespace, progress: dict[str, Any], kept: Kept) -> None:
    """Lives lives until there were as many kills as were asked for, or too many failures."""
    pulse, lives = Pulse(), progress["lives"]
    before = kills = progress["counts"].get("kills", 0)
    with counting(lambda: f"{kills - before} kills", kept.file), _scratch(options.folder) as folder:
        typical = warm_up(folder)
        while kills < options.kills and len(progress["failures"]) < options.most_failures:
            started, number = time.monotonic(), progress["lives"]
            try:
                found = run_life(number, options.seed, min(KILLS_IN_A_LIFE, options.kills - kills), folder, typical)
                progress["counts"] = dict(Counter(progress["counts"]) + found)
            except Exception as error:
                failure = {"command": _command(options, number), "error": "".join(traceback.format_exception(error))}
                progress["failures"].append(failure)
                print(failure["command"], failure["error"], sep="\n", flush=True)
            progress["lives"] += 1
            progress["seconds"] += time.monotonic() - started
            kills = progress["counts"].get("kills", 0)
            kept.save(progress)
            if pulse.due() or kills >= options.kills:
                shown = f"{kills} of {options.kills} kills, {progress['seconds']:.0f} s"
                print(f"{shown}, {len(progress['failures'])} failures", flush=True)
    if progress["lives"] == lives:
        kept.say_finished()


def _parser() -> argparse.ArgumentParser:
    parser = engine_parser("tools.crash.kills", __doc__)
    parser.add_argument("--kills", type=at_least(1), default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--life", type=at_least(0), help="live this life alone")
    parser.add_argument("--most-failures", type=at_least(1), default=20, help="give up after so many")
    parser.add_argument("--folder", type=Path, help="where the containers lie: a file system to be tried")
    parser.add_argument("--json", type=Path, help="where the result is written")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Lives one life, or as many as it takes; the exit status."""
    options = _parser().parse_args(arguments)
    if options.life is not None:
        with counting(lambda: "no life", None), _scratch(options.folder) as folder:
            typical = warm_up(folder)
            print(dict(run_life(options.life, options.seed, KILLS_IN_A_LIFE, folder, typical)))
        return 0
    kept = Kept(options.state, {"kills": options.kills, "seed": options.seed}, anyway=options.anyway)
    progress: dict[str, Any] = kept.load() or {"lives": 0, "seconds": 0.0, "counts": {}, "failures": []}
    print(_command(options), flush=True)
    _live(options, progress, kept)
    if options.json:
        write_json(options.json, _table(options, progress, kept))
    print(json.dumps(_table(options, progress, kept), indent=2))
    return 1 if progress["failures"] else 0


if __name__ == "__main__":
    if os.environ.get("OPENBLAS_NUM_THREADS") != "1":
        # Else numpy starts threads of its own, and what is forked off a process with threads may wait for ever.
        program = [sys.executable, "-m", "tools.crash.kills", *sys.argv[1:]]
        os.execve(sys.executable, program, {**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    run_program(main)
