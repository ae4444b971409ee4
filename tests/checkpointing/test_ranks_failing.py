"""Disks that fail, ranks that end and coordinators that break down while many write one version."""

from __future__ import annotations

import errno
import gc
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import cnrfmt
from cnrfmt import (
    CommitError,
    CommitUnknownError,
    ConflictError,
    Rows,
    StorageError,
)
from cnrfmt.checkpointing.ranks.coordinator import Coordinator, FileCoordinator
from cnrfmt.errors import RankLostError, SilenceError
from cnrfmt.storage.directory_commit import DirectoryTransaction
from cnrfmt.storage.fs import Fs
from tests.checkpointing.ranks import (
    UNFINISHED,
    W,
    after,
    as_ranks,
    check_sound,
    halves,
    head_of,
    save_together,
    segments,
)
from tests.storage.support import FailAt, Killed, QuickFs, ScriptedFs

# Disks that fail, at every call of one rank


@pytest.mark.parametrize(("victim", "delta"), [(0, False), (0, True), (1, True)])
def test_refusal_of_every_call_of_one_rank_is_alike_on_all(tmp_path: Path, victim: int, delta: bool) -> None:
    def run(folder: Path, before: Any) -> tuple[list[Any], ScriptedFs, Path]:
        folder.mkdir()
        path = folder / "run"
        if delta:
            cnrfmt.save(path, {"t": W}, fs=QuickFs())
        fs = ScriptedFs(before)

        def body(coordinator: Coordinator) -> Any:
            return halves(coordinator, path, delta=delta, fs=fs if coordinator.rank == victim else None)

        return as_ranks(folder / "meet", 2, body), fs, path

    found, fs, _ = run(tmp_path / "count", None)
    assert found == [int(delta)] * 2
    calls = sum(name != "point" for name in fs.calls)
    outcomes = set()
    for k in range(1, calls + 1):
        found, fs, path = run(tmp_path / str(k), FailAt(k, errno.EIO, lasting=False))
        head = head_of(path)
        version = None if head is None else head.version
        if found == [int(delta)] * 2:
            assert version == int(delta)
        else:
            kinds = {type(error) for error in found}
            assert len(kinds) == 1, found
            assert kinds <= {StorageError, CommitUnknownError}
            if kinds == {StorageError}:
                assert version == (0 if delta else None)
                # Nothing is left of it, what couldn't be removed aside.
                assert segments(path) <= int(delta) + (fs.before.failed == ["unlink"])
            outcomes |= kinds
        # Errors hold what was open when they were raised.
        del found
        if fs.handles:
            gc.collect()
        assert not fs.handles
        if version is not None:
            check_sound(path, UNFINISHED)
        assert cnrfmt.save(path, {"t": W}, fs=QuickFs()) == (0 if version is None else version + 1)
        check_sound(path, frozenset({"garbage"}))
        assert not list(path.rglob(".tmp-*"))
    assert StorageError in outcomes
    assert (CommitUnknownError in outcomes) == (victim == 0)


# Ranks that end


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("victim", [0, 1])
def test_end_of_one_rank_at_every_point(tmp_path: Path, victim: int, delta: bool) -> None:
    """The others learn of it at once, and never take back what counts."""

    class Dying(QuickFs):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number, self.passed = number, list[str]()

        def point(self, name: str) -> None:
            self.passed.append(name)
            if len(self.passed) == self.number:
                raise Killed

    number, seen = 0, set()
    while True:
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        path = folder / "run"
        if delta:
            assert as_ranks(folder / "meet", 3, partial(halves, path=path)) == [0] * 3
        fs = Dying(number)

        def body(coordinator: Coordinator, fs: Fs = fs, path: Path = path) -> Any:
            return halves(coordinator, path, delta=delta, fs=fs if coordinator.rank == victim else None)

        with ended_processes_undo_nothing():
            found = as_ranks(folder / "meet", 3, body)
        if not isinstance(found[victim], Killed):
            break
        at = fs.passed[-1]
        others = [found[rank] for rank in range(3) if rank != victim]
        head = head_of(path)
        version = None if head is None else head.version
        if version == int(delta):
            assert others == [int(delta)] * 2, (at, found)
        else:
            assert version == (0 if delta else None)
            assert [type(error) for error in others] == [RankLostError] * 2, (at, found)
            assert all(error.reasons == {victim: "gone"} for error in others)
            # The segments of those who live are gone again.
            assert segments(path) <= (3 if delta else 0) + 1
        seen.add((at, version == int(delta)))
        after(path, folder / "meet", version)
    if victim == 0:
        assert ("ranks-accepted", False) in seen
        assert ("manifest-published", True) in seen
    else:
        assert ("rank-published", False) in seen
        assert ("rank-told", True) in seen


class ended_processes_undo_nothing:  # noqa: N801
    """Within, a thread that is `Killed` leaves everything as a process that is killed would."""

    def __enter__(self) -> None:
        self.patch = pytest.MonkeyPatch()
        real = DirectoryTransaction.__exit__

        def leave(tx: Any, kind: Any, error: Any, trace: Any) -> None:
            if kind is Killed:
                tx._state = "pending"
            real(tx, kind, error, trace)

        self.patch.setattr(DirectoryTransaction, "__exit__", leave)

    def __exit__(self, *_: Any) -> None:
        self.patch.undo()


def test_rank_0_that_is_late_leaves_the_outcome_unknown_or_is_read_at_the_head(tmp_path: Path) -> None:
    for where, known in (("ranks-accepted", False), ("manifests-synced", True)):
        folder = tmp_path / where
        folder.mkdir()
        path, others_done = folder / "run", threading.Event()

        class Slow(QuickFs):
            at, event = where, others_done

            def point(self, name: str) -> None:
                if name == self.at:
                    assert self.event.wait(60)

        def body(
            coordinator: FileCoordinator, slow: Fs, path: Path = path, done: threading.Event = others_done
        ) -> Any:
            if coordinator.rank:
                coordinator.timeout = 1.0
            try:
                return halves(coordinator, path, fs=None if coordinator.rank else slow)
            finally:
                if coordinator.rank:
                    done.set()

        found = as_ranks(folder / "meet", 2, partial(body, slow=Slow()))
        assert found[0] == 0
        if known:
            assert found[1] == 0
        else:
            assert isinstance(found[1], CommitUnknownError)
            head = head_of(path)
            assert head is not None
            # It says by what the caller can tell.
            assert (found[1].version, found[1].commit_id) == (0, head.commit_id)
        after(path, folder / "meet", 0)


class Broken:
    """A coordinator whose network fails at one gather, on one rank, before or behind it."""

    def __init__(self, inner: FileCoordinator, name: str, victim: int, *, behind: bool) -> None:
        self.inner, self.name, self.behind = inner, name, behind
        self.victim = inner.rank == victim
        self.rank, self.world_size = inner.rank, inner.world_size

    def gather(self, name: str, payload: bytes) -> list[bytes]:
        if self.victim and name == self.name and not self.behind:
            raise ConnectionError("no network")
        found = self.inner.gather(name, payload)
        if self.victim and name == self.name:
            time.sleep(0.2)
            raise ConnectionError("no network")
        return found

    def barrier(self, name: str) -> None:
        self.gather(name, b"")


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("name", ["plan", "begin", "written", "outcome"])
@pytest.mark.parametrize("behind", [False, True])
def test_coordinator_that_cannot_say_what_others_heard(tmp_path: Path, name: str, victim: int, behind: bool) -> None:
    path = tmp_path / "run"
    assert as_ranks(tmp_path / "meet", 2, partial(halves, path=path)) == [0, 0]

    def body(coordinator: FileCoordinator) -> Any:
        return halves(Broken(coordinator, name, victim, behind=behind), path, delta=True)

    # Who waits for what was never said waits so long.
    found = as_ranks(tmp_path / "meet", 2, body, timeout=5)
    head = head_of(path)
    assert head is not None
    mine, other = found[victim], found[1 - victim]
    if (name, victim) == ("outcome", 0):
        # It has committed, whoever heard it.
        assert found == [1, 1]
    elif name == "outcome":
        # What couldn't be heard was read; or rank 0 hadn't got so far, and this one can't know what it will do.
        assert head.version == 1
        assert other == 1
        assert mine == 1 or isinstance(mine, CommitUnknownError)
    elif (name, victim) == ("written", 1):
        assert isinstance(mine, CommitUnknownError) or mine == head.version == 1
        assert other == 1 if behind else isinstance(other, RankLostError)
        assert head.version == (1 if behind else 0)
    else:
        assert isinstance(mine, SilenceError)
        assert "no network" in str(mine)
        assert isinstance(mine.__cause__, ConnectionError)
        assert isinstance(other, RankLostError)
        assert head.version == 0
    after(path, tmp_path / "meet", head.version)


def test_error_of_a_commit_is_told_though_the_network_fails(tmp_path: Path) -> None:
    path = tmp_path / "run"
    assert as_ranks(tmp_path / "meet", 2, partial(halves, path=path)) == [0, 0]

    class Rival(QuickFs):
        def point(self, name: str) -> None:
            if name == "ranks-accepted":
                cnrfmt.append(path, {"t": Rows([0], W[:1])}, fs=QuickFs())

    def body(coordinator: FileCoordinator) -> Any:
        fs = QuickFs() if coordinator.rank else Rival()
        return halves(Broken(coordinator, "outcome", 0, behind=False), path, delta=True, fs=fs)

    found = as_ranks(tmp_path / "meet", 2, body)
    # Rank 0 has gone with its error; what the other finds is another's version.
    assert [type(error) for error in found] == [ConflictError, RankLostError]
    assert segments(path) == 2 + 1
    check_sound(path)


@pytest.mark.parametrize("collected", [False, True])
def test_version_that_is_not_there_any_more_is_unknown(tmp_path: Path, collected: bool) -> None:
    """Others have gone on from it, or somebody has spoilt it, before a rank that heard nothing could look."""
    path = tmp_path / "run"
    assert as_ranks(tmp_path / "meet", 2, partial(halves, path=path)) == [0, 0]
    spoilt = threading.Event()

    class Late(QuickFs):
        def point(self, name: str) -> None:
            if name == "manifests-synced":
                raise Killed

    def body(coordinator: FileCoordinator) -> Any:
        if coordinator.rank == 0:
            try:
                return halves(coordinator, path, delta=True, fs=Late())
            finally:
                file = path / "manifests" / f"{1:020}.cnrm"
                if collected:
                    (path / "manifests" / f"{2:020}.cnrm").write_bytes(file.read_bytes())
                    file.unlink()
                else:
                    file.write_bytes(file.read_bytes()[:-1] + b"?")
                spoilt.set()

        class Waiting(QuickFs):
            def point(self, name: str) -> None:
                if name == "rank-reported":
                    assert spoilt.wait(60)

        return halves(coordinator, path, delta=True, fs=Waiting())

    with ended_processes_undo_nothing():
        found = as_ranks(tmp_path / "meet", 2, body)
    assert isinstance(found[0], Killed)
    assert isinstance(found[1], CommitUnknownError)
    assert segments(path) == 4


def test_disk_that_fails_while_the_outcome_is_looked_for(tmp_path: Path) -> None:
    path = tmp_path / "run"

    class Last(QuickFs):
        def point(self, name: str) -> None:
            if name == "manifest-published":
                raise Killed

    class Failing(QuickFs):
        failing = False

        def point(self, name: str) -> None:
            self.failing = self.failing or name == "rank-reported"

        def list_directory(self, path: str) -> list[str]:
            if self.failing:
                raise StorageError(errno.EIO, "I/O error", path)
            return super().list_directory(path)

    with ended_processes_undo_nothing():
        found = as_ranks(
            tmp_path / "meet", 2, lambda c: halves(c, path, fs=Failing() if c.rank else Last())
        )
    assert isinstance(found[1], CommitUnknownError)
    assert "I/O error" in str(found[1])
    after(path, tmp_path / "meet", 0)


def test_commit_that_fails_while_a_rank_is_lost_is_taken_back(tmp_path: Path) -> None:
    """Rank 0's own word says that nothing was committed, though no gather could bring it."""
    path = tmp_path / "run"
    assert as_ranks(tmp_path / "meet", 3, partial(halves, path=path)) == [0] * 3
    ended = threading.Event()

    class Rival(QuickFs):
        def point(self, name: str) -> None:
            if name == "ranks-accepted":
                assert ended.wait(60)
                cnrfmt.append(path, {"t": Rows([0], W[:1])}, fs=QuickFs())

    class Dying(QuickFs):
        def point(self, name: str) -> None:
            if name == "rank-reported":
                ended.set()
                raise Killed

    with ended_processes_undo_nothing():
        found = as_ranks(
            tmp_path / "meet", 3, lambda c: halves(c, path, delta=True, fs=[Rival, QuickFs, Dying][c.rank]())
        )
    assert [type(error) for error in found] == [ConflictError, ConflictError, Killed]
    # Those of the versions, and that of the rank that ended.
    assert segments(path) == 3 + 1 + 1
    check_sound(path, UNFINISHED)


def test_rank_that_wrote_nothing_looks_at_the_head_too(tmp_path: Path) -> None:
    path = tmp_path / "run"

    def body(coordinator: FileCoordinator, point: str) -> Any:
        class Dying(QuickFs):
            def point(self, name: str) -> None:
                if name == point:
                    raise Killed

        tables = {} if coordinator.rank else {"t": W}
        return save_together(coordinator, path, tables, fs=None if coordinator.rank else Dying()).version

    with ended_processes_undo_nothing():
        found = as_ranks(tmp_path / "meet", 2, partial(body, point="ranks-accepted"))
        assert isinstance(found[1], RankLostError)
        found = as_ranks(tmp_path / "meet", 2, partial(body, point="manifest-published"))
        assert found[1] == 0


def test_error_that_is_not_ours_in_the_midst_of_a_commit_takes_nothing_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"

    class Ill(QuickFs):
        def point(self, name: str) -> None:
            if name == self.at:
                raise MemoryError("no more")

    for at, kinds in (
        ("manifest-published", [CommitUnknownError, CommitUnknownError]),
        ("manifest-synced", [MemoryError, CommitError]),
    ):
        Ill.at = at  # type: ignore[attr-defined]
        found = as_ranks(tmp_path / "meet", 2, lambda c: halves(c, path, fs=None if c.rank else Ill()))
        assert [type(error) for error in found] == kinds
        head = head_of(path)
        assert head is not None
        assert head.version == 0
        check_sound(path)
    assert "rank 0: MemoryError: no more" in str(found[1])


