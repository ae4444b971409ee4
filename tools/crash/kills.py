"""Kills processes that write, while others read and write, and looks at what is left after each.

    python -m tools.crash.kills --kills 10000 --seed 1 --state FILE --json OUT

Every container lives through some kills: at a random moment, before or behind some call of the file system, or at a
named point of the commit protocol; a killed process may have a rival, and readers look on all the while. After each
kill the versions are compared with what an oracle knows (`_kills_oracle.py`), `verify` and `cnrcheck` must find it
sound, what follows the container must go on to its head (`_kills_servers.py`), and the next writer must succeed and
leave nothing unfinished behind. A server that follows it is killed itself, which nobody may notice. Killed at any time
itself, the same command goes on where it was; ``--life NUMBER`` lives one container's life again. The folder of a life
that ended badly is kept.
"""

from __future__ import annotations

import gc
import mmap
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import cnrfmt
from cnrfmt.storage.fs import Fs
from cnrfmt.testing.followers import Followers
from tools import cnrcheck
from tools.crash._kills_oracle import Oracle
from tools.crash._kills_processes import Place, attempt, dying_fs, end, fork, head, read, wait, write
from tools.crash._kills_servers import BACKENDS, Beside
from tools.crash._lives import Lives
from tools.crash.expected import Expected, check_head
from tools.crash.operations import OPERATIONS, PATHS
from tools.crash.operations import step as next_step

_WRITING = {name: operation for name, operation in OPERATIONS.items() if operation.writes and not operation.first}
WRITERS = {kind: [name for name, o in _WRITING.items() if kind in o.kinds] for kind in PATHS}
"""What may be done to each kind of container, ..."""
# The version of a file that is compacted must not be lost before anybody could see whose it is.
AMONG_RIVALS = {
    kind: [name for name in names if not OPERATIONS[name].alone and (kind, name) != ("file", "compact")]
    for kind, names in WRITERS.items()
}
"""... and what while others write."""
_ANEW = ["replace", "compact"]
_ADDING = [name for name in WRITERS["file"] if name not in _ANEW]
_REMOVING = ["collect", "checkpoint", "grid"]
_SEGMENTS = [name for name in WRITERS["directory"] if name not in ("tag", "collect", "collect-later")]
POINTS = {
    "file": {
        **dict.fromkeys(("manifest-written", "manifest-synced", "slot-a-written", "slot-a-synced"), _ADDING),
        **dict.fromkeys(("slot-b-written", "slot-b-synced", "slot-repaired"), _ADDING),
        **dict.fromkeys(("file-written", "file-synced", "file-renamed", "folder-synced"), _ANEW),
    },
    "directory": {
        **dict.fromkeys(("segment-synced", "segment-published"), _SEGMENTS),
        **dict.fromkeys(
            ("segments-synced", "manifest-synced", "manifest-published", "manifests-synced"), WRITERS["directory"]
        ),
        **dict.fromkeys(("head-synced", "manifests-removed", "removal-synced", "segments-removed"), _REMOVING),
    },
}
"""The named points of each kind of container, and the operations that pass them."""
ATTEMPTS = 4
"""A process that is to die somewhere makes so many attempts at the most."""
MOST_VERSIONS = 16
KILLS_IN_A_LIFE = 12


@dataclass
class Life:
    """One container, from its creation through its kills."""

    number: int
    seed: int
    place: Place
    moment: float
    random: Random = field(init=False)
    oracle: Oracle = field(init=False)
    beside: Beside = field(init=False)
    counts: Counter[str] = field(default_factory=Counter)
    writers: int = 0
    writers_alive: list[int] = field(default_factory=list)
    """The processes of the kill that is going on."""
    halfway: bool = False
    """Whether the slots differ: the next writer has to repair them first."""

    def __post_init__(self) -> None:
        self.random = Random(f"{self.seed}-{self.number}")
        self.oracle = self.place.oracle()
        self.beside = Beside(self.place, self.oracle, f"{self.seed}-{self.number}-beside")

    def live(self, kills: int) -> None:
        """Lives through up to so many kills; raises `AssertionError` where anything is wrong."""
        readers: list[int] = []
        try:
            for backend in BACKENDS:
                seed = f"{self.seed}-{self.number}-{backend}"
                fork(self.place, partial(read, self.place, seed=seed, backend=backend), readers)
            self.beside.begin_server()
            for _ in range(2 * KILLS_IN_A_LIFE):
                if self.counts["kills"] == kills or self.oracle.floor > MOST_VERSIONS:
                    break
                self._kill()
                self.beside.advance(self._check())
                # Now and then the next kill comes before any writer has cleared up, mostly where there is much to do.
                if self.random.random() < (0.3 if self.halfway else 0.7):
                    self._next_writer()
            self._next_writer()
        finally:
            self.place.stop[0] = 1
            for writer in self.writers_alive:
                end(writer)
            statuses = [*(wait(reader) for reader in readers), self.beside.close()]
        self._check()
        assert statuses == [0, 0, 0], f"readers and the server ended with {statuses}"
        self.counts["looks of readers"] += self.oracle.looks
        self.counts["looks at what is served"] += self.oracle.served
        self.counts += self.beside.counts

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
        point, names, fs = None, WRITERS[self.place.kind], None
        if how == "point":
            point = "slot-repaired" if self.halfway else random.choice(list(points))
            names, fs = points[point], dying_fs(point)
        elif how == "call":
            fs = dying_fs(call=random.randint(1, 60), behind=random.random() < 0.5)
        rival = None
        if not self.halfway and random.random() < 0.4:
            allowed = AMONG_RIVALS[self.place.kind]
            names = [name for name in names if name in allowed] or allowed
            rival = self._writer(None, allowed, 2 * ATTEMPTS)
        victim = self._writer(fs, names, ATTEMPTS if fs else 1000)
        if how == "moment":
            time.sleep(random.random() * self.moment)
            os.kill(victim, signal.SIGKILL)
        elif random.random() < 0.3:
            time.sleep(random.random() * self.moment)
            self.beside.kill_server()
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

    def _check(self) -> int | None:
        """All that must hold while nobody writes; the newest version, None if there is none."""
        found = head(self.place, self.oracle)
        assert not self.oracle.errors, self._errors()
        if found is None:
            return None
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
            self.counts[f"killed in {self.oracle.attempts[last].operation}"] += 1
        return found[0]

    def _next_writer(self) -> None:
        """Does anything, or makes the container; then nothing unfinished is left."""
        self.writers += 1
        token = self.writers * 1000
        assert attempt(self.place, self.oracle, token, WRITERS[self.place.kind], self.random, None, rivals=False)
        found = head(self.place, self.oracle)
        assert found is not None
        self.beside.advance(found[0])
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
        model = Expected()
        for number, operation in enumerate(("create", *WRITERS[kind], "append", *WRITERS[kind])):
            made = next_step(operation, model, number, kind)
            started = time.monotonic()
            made.run(path)
            durations.append(time.monotonic() - started)
            model = made.after
        check_head(path, model)
        cnrcheck.check_path(str(path))
        cnrfmt.verify(path, threads=1)
        for backend in BACKENDS:
            Followers(str(path), model, backend=backend).close()
        with cnrfmt.open(path, threads=1) as found:
            for table in found.values():
                table.read()
    for _ in range(100):
        # The thread of a manager that was closed is about to end.
        if len(os.listdir("/proc/self/task")) == 1:
            break
        time.sleep(0.01)
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads can't be forked safely"
    gc.freeze()
    return sorted(durations)[len(durations) // 2]


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


LIVES = Lives("kills", __doc__, KILLS_IN_A_LIFE, warm_up, _live_in)


def main(arguments: list[str] | None = None) -> int:
    """Lives one life, or as many as it takes; the exit status."""
    return LIVES.main(arguments)


if __name__ == "__main__":
    LIVES.run()
