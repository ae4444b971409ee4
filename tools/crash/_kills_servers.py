"""What follows a container whose writers are killed: a server of its own process, which is killed itself."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

from cnrfmt import DamagedError, LiveTables, Snapshot, StorageError, VersionNotFoundError
from cnrfmt.segment_reader import Backend
from cnrfmt.testing.followers import Followers, check_served
from tools.crash._kills_oracle import Oracle
from tools.crash._kills_processes import Place, fork, nothing_yet, wait

KEPT = 3
"""Snapshots that a server keeps at the most."""
BACKENDS: tuple[Backend, ...] = ("mmap", "pread")


class Beside:
    """Live tables and a follower in the process that checks, and a server in another one."""

    def __init__(self, place: Place, oracle: Oracle, seed: str) -> None:
        self._place, self._oracle, self._seed = place, oracle, seed
        self._random = Random(seed)
        self._followers: Followers | None = None
        self._servers: list[int] = []
        self.counts: Counter[str] = Counter()

    def advance(self, version: int | None) -> None:
        """Those in this process go on to the head, which is this version, if there is one; nobody writes."""
        if version is None:
            return
        model = self._oracle.model(version)
        if self._followers is None:
            self._followers = Followers(self._place.path, model, backend=self._backend())
        else:
            self.counts["versions followed"] += self._followers.advance(model, self._random)
        if self._random.random() < 0.2:
            # A server that is killed while nobody writes changes nothing.
            before = _listing(self._place)
            self.kill_server()
            after = _listing(self._place)
            assert before == after, f"a server that was killed left {sorted(before ^ after)}"

    def begin_server(self) -> None:
        """Another server."""
        seed = f"{self._seed}-{len(self._servers)}"
        fork(self._place, partial(serve, self._place, seed=seed, backend=self._backend()), self._servers)

    def kill_server(self) -> None:
        """The server is killed wherever it is, and another one begins."""
        os.kill(self._servers[-1], signal.SIGKILL)
        status = wait(self._servers[-1])
        assert status == -signal.SIGKILL, f"the server had ended with {status}"
        self.counts["servers killed"] += 1
        self.begin_server()

    def close(self) -> int:
        """All of them end; the status of the server."""
        if self._followers is not None:
            self._followers.close()
        return wait(self._servers[-1]) if self._servers else 0

    def _backend(self) -> Backend:
        return self._random.choice(BACKENDS)


def serve(place: Place, oracle: Oracle, seed: str, backend: Backend) -> None:
    """A server: live tables that go on at moments of their own, and what they serve is compared. No version goes back.

    It writes to the journal alone.
    """
    random, kept = Random(seed), list[Snapshot]()
    live: LiveTables | None = None
    while not place.stopped:
        try:
            if live is None:
                live = LiveTables(place.path, hold=2, backend=backend, threads=1)
            else:
                before = live.version
                # A version may be given up while it is read; then the one before is served.
                with suppress(VersionNotFoundError):
                    live.advance()
                assert live.version >= before, f"version {live.version} is served after {before}"
            snapshot = live.snapshot()
            _look(place, oracle, snapshot)
            older = [*kept, *map(live.snapshot, live.versions)]
            _look(place, oracle, random.choice(older))
            kept.append(snapshot)
            random.shuffle(kept)
            del kept[random.randint(0, KEPT) :]
        except VersionNotFoundError:
            # It was given up before all its rows were there.
            kept.clear()
            live = None
        except (StorageError, DamagedError) as error:
            if not nothing_yet(error) or live is not None:
                raise
        time.sleep(random.random() * 0.05)
    if live is not None:
        live.close()


def _look(place: Place, oracle: Oracle, snapshot: Snapshot) -> None:
    manifest = snapshot.manifest
    try:
        oracle.see_all(place.path, manifest, [retained.version for retained in manifest.versions])
    except VersionNotFoundError:
        # What is to be known of an older version can't be found out any more.
        return
    check_served(snapshot, oracle.model(snapshot.version).versions[snapshot.version])
    oracle.journal.write(served=1)


def _listing(place: Place) -> set[tuple[str, int, int]]:
    """All files beside the journal, with sizes and times."""
    files = [path for path in Path(place.path).parent.rglob("*") if path != place.journal]
    return {(str(path), stat.st_size, stat.st_mtime_ns) for path in files for stat in [path.stat()]}
