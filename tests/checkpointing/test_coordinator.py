"""Ranks that meet in a directory: what they say to each other, and what becomes of those that end."""

from __future__ import annotations

import errno
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cnrfmt.checkpointing.ranks import coordinator
from cnrfmt.checkpointing.ranks.coordinator import FileCoordinator, SingleRank
from cnrfmt.errors import CommitError, LockedError, RankLostError, StorageError, UsageError
from cnrfmt.storage.fs import OpenMode
from tests.checkpointing.ranks import as_ranks
from tests.storage.support import FORKS, QuickFs

ROOT = Path(__file__).parents[2]

RANK = """
import os, sys, time
from cnrfmt.checkpointing.ranks import coordinator
from cnrfmt.checkpointing.ranks.coordinator import FileCoordinator
coordinator = FileCoordinator(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), timeout=60)
coordinator.barrier("met")
{body}
"""


def process(folder: Path, rank: int, count: int, body: str = "time.sleep(600)") -> subprocess.Popen[bytes]:
    """A rank in a process of its own."""
    program = RANK.format(body=body)
    return subprocess.Popen([sys.executable, "-c", program, str(folder), str(rank), str(count)], cwd=ROOT)


def test_every_rank_gets_all_payloads_in_order(tmp_path: Path) -> None:
    def body(coordinator: FileCoordinator) -> Any:
        said = []
        for turn in range(20):
            said.append(coordinator.gather("turn", b"%d of rank %d" % (turn, coordinator.rank)))
            said.append(coordinator.gather("empty", b"" if coordinator.rank else b"\0\xff"))
        coordinator.barrier("end")
        return said

    found = as_ranks(tmp_path / "meet", 4, body)
    expected = [
        said
        for turn in range(20)
        for said in ([b"%d of rank %d" % (turn, rank) for rank in range(4)], [b"\0\xff", b"", b"", b""])
    ]
    assert found == [expected] * 4
    # What everybody has read is cleared away.
    assert len(list((tmp_path / "meet").glob("run-*/turn.*"))) == 5


def test_names_have_orders_of_their_own(tmp_path: Path) -> None:
    def body(coordinator: FileCoordinator) -> Any:
        said: dict[str, list[bytes]] = {}

        def wait(name: str) -> None:
            said[name] = coordinator.gather(name, f"{name} {coordinator.rank}".encode())

        names = ["front", "behind"] if coordinator.rank else ["behind", "front"]
        threads = [threading.Thread(target=wait, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return said

    for found in as_ranks(tmp_path / "meet", 2, body):
        assert found == {name: [f"{name} 0".encode(), f"{name} 1".encode()] for name in ("front", "behind")}


def test_single_rank_is_alone() -> None:
    one = SingleRank()
    assert (one.rank, one.world_size) == (0, 1)
    assert one.gather("x", b"said") == [b"said"]
    one.barrier("x")


def test_rank_that_left_is_noticed_at_once_by_all(tmp_path: Path) -> None:
    def body(coordinator: FileCoordinator) -> Any:
        coordinator.barrier("met")
        if coordinator.rank == 1:
            return None
        # This one comes when the others have noticed long since; the gather ends when all who live have spoken.
        time.sleep(0.1 if coordinator.rank == 3 else 0)
        return coordinator.gather("after", b"%d" % coordinator.rank)

    found = as_ranks(tmp_path / "meet", 4, body)
    for rank in (0, 2, 3):
        assert isinstance(found[rank], RankLostError)
        assert found[rank].reasons == {1: "gone"}
        assert found[rank].payloads == {0: b"0", 2: b"2", 3: b"3"}
        assert "after: rank 1 is gone (its process has ended); end all ranks and start" in str(found[rank])


def test_what_a_rank_said_before_it_left_counts(tmp_path: Path) -> None:
    def body(coordinator: FileCoordinator) -> Any:
        coordinator.barrier("met")
        if coordinator.rank == 1:
            coordinator._put("last.0.1", b"the last word", replace=True)
            return None
        return coordinator.gather("last", b"")

    assert as_ranks(tmp_path / "meet", 2, body)[0] == [b"", b"the last word"]


def test_killed_process_is_noticed_at_once_by_all(tmp_path: Path) -> None:
    with process(tmp_path / "meet", 0, 3) as rank_0, process(tmp_path / "meet", 2, 3) as rank_2:
        try:
            with FileCoordinator(tmp_path / "meet", 1, 3, timeout=600) as coordinator:
                coordinator.barrier("met")
                for victim in (rank_0, rank_2):
                    victim.send_signal(signal.SIGKILL)
                    victim.wait(60)
                with pytest.raises(RankLostError) as lost:
                    coordinator.gather("after", b"")
                assert lost.value.reasons == {0: "gone", 2: "gone"}
        finally:
            rank_0.kill()
            rank_2.kill()


def test_rank_that_is_late_is_given_up_alike_by_all(tmp_path: Path) -> None:
    waited = threading.Event()

    def body(coordinator: FileCoordinator) -> Any:
        coordinator.barrier("met")
        coordinator.timeout = 1.0
        if coordinator.rank == 2:
            assert waited.wait(60)
        try:
            return coordinator.gather("after", b"")
        except RankLostError as error:
            waited.set()
            coordinator.timeout = 60.0
            # All live and know the same, so that they may go on together.
            return error.reasons, coordinator.gather("again", b"%d" % coordinator.rank)

    found = as_ranks(tmp_path / "meet", 3, body)
    assert found == [({2: "late"}, [b"0", b"1", b"2"])] * 3


def test_what_an_earlier_run_left_does_not_count(tmp_path: Path) -> None:
    folder = tmp_path / "meet"

    def first(coordinator: FileCoordinator) -> None:
        coordinator.barrier("met")
        if coordinator.rank:
            coordinator._put("said.0.1", b"of an earlier run", replace=True)

    assert as_ranks(folder, 2, first) == [None, None]
    (left,) = folder.glob("run-*")
    (left / ".tmp-0000000000000000").write_bytes(b"unfinished")
    found = as_ranks(folder, 2, lambda coordinator: coordinator.gather("said", b"%d" % coordinator.rank))
    assert found == [[b"0", b"1"]] * 2
    assert not left.exists()


def test_run_of_which_a_process_lives_is_left_to_it(tmp_path: Path) -> None:
    folder, begun = tmp_path / "meet", threading.Event()

    def first(coordinator: FileCoordinator) -> Any:
        coordinator.barrier("met")
        if coordinator.rank == 0:
            return None
        assert begun.wait(60)
        return coordinator.gather("after", b"")

    found: list[Any] = []
    old = threading.Thread(target=lambda: found.extend(as_ranks(folder, 2, first)))
    old.start()
    while not list(folder.glob("run-*/met.0.end")):
        time.sleep(0.001)
    # Rank 0 of the new run waits until the old one has let go.
    assert as_ranks(folder, 2, lambda coordinator: coordinator.gather("new", b"")) == [[b"", b""]] * 2
    assert len(list(folder.glob("run-*"))) == 2
    begun.set()
    old.join(60)
    assert isinstance(found[1], RankLostError)
    assert found[1].reasons == {0: "gone"}


def test_one_job_at_a_time(tmp_path: Path) -> None:
    with (
        FileCoordinator(tmp_path / "meet", 0, 1),
        pytest.raises(LockedError, match="rank 0 of another job is using it"),
    ):
        FileCoordinator(tmp_path / "meet", 0, 1, timeout=0.05)
    FileCoordinator(tmp_path / "meet", 0, 1, timeout=0.05).close()


def test_rank_number_is_taken_once(tmp_path: Path) -> None:
    folder = tmp_path / "meet"
    with FileCoordinator(folder, 0, 2, timeout=60), FileCoordinator(folder, 1, 2, timeout=60) as first:
        with pytest.raises(UsageError, match="another process is, or was, rank 1 of this job"):
            FileCoordinator(folder, 1, 2, timeout=0.05)
        first.close()
        # Others may have heard that it is gone: it can't come back.
        with pytest.raises(UsageError, match="start all ranks together"):
            FileCoordinator(folder, 1, 2, timeout=0.05)
        assert not list(folder.glob("run-*/.tmp-*"))


def test_who_looks_whether_a_rank_lives_is_not_taken_for_that_rank(tmp_path: Path) -> None:
    """Ranks of a new job, of another number, which find the old job's run while others of them look at it, too."""
    folder, fs = tmp_path / "meet", QuickFs()
    assert as_ranks(folder, 2, lambda one: one.gather("hello", b"")) == [[b"", b""]] * 2
    (old,) = folder.glob("run-*/rank-0")
    looker = fs.open(str(old), "write")
    assert fs.lock_handle(looker, shared=True)
    joined = threading.Event()

    def join() -> None:
        with FileCoordinator(folder, 1, 3, timeout=60, fs=fs):
            joined.set()

    thread = threading.Thread(target=join)
    thread.start()
    assert not joined.wait(0.2)
    with FileCoordinator(folder, 0, 3, timeout=60, fs=fs):
        assert joined.wait(60)
    thread.join(60)
    fs.close(looker)


def test_ranks_must_agree_on_their_number(tmp_path: Path) -> None:
    with (
        FileCoordinator(tmp_path / "meet", 0, 2),
        pytest.raises(UsageError, match="rank 0 says that there are 2 ranks, and rank 1 says that there are 3"),
    ):
        FileCoordinator(tmp_path / "meet", 1, 3)


def test_rank_0_that_never_comes(tmp_path: Path) -> None:
    with pytest.raises(RankLostError, match="joining as rank 1: rank 0 is late"):
        FileCoordinator(tmp_path / "meet", 1, 2, timeout=0.05)
    # One that came and went is none either.
    FileCoordinator(tmp_path / "meet", 0, 2).close()
    with pytest.raises(RankLostError, match="joining as rank 1: rank 0 is late"):
        FileCoordinator(tmp_path / "meet", 1, 2, timeout=0.05)


def test_rank_that_never_came_is_late(tmp_path: Path) -> None:
    with FileCoordinator(tmp_path / "meet", 0, 2, timeout=0.05) as coordinator:
        with pytest.raises(RankLostError) as lost:
            coordinator.barrier("met")
        assert lost.value.reasons == {1: "late"}


@pytest.mark.parametrize(
    ("rank", "world_size", "timeout", "message"),
    [
        (2, 2, 1, "found rank 2 of 2"),
        (-1, 2, 1, "found rank -1 of 2"),
        (True, 2, 1, "rank must be an integer, found True"),
        (0, 2.0, 1, "world_size must be an integer, found 2.0"),
        (0, 1, 0, "timeout must be a number of seconds above 0, found 0"),
        (0, 1, float("nan"), "found nan"),
        (0, 1, "1", "found '1'"),
    ],
)
def test_numbers_that_make_no_sense(tmp_path: Path, rank: Any, world_size: Any, timeout: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        FileCoordinator(tmp_path / "meet", rank, world_size, timeout=timeout)
    assert not (tmp_path / "meet").exists()


@pytest.mark.parametrize("name", ["", "Name", "a/b", "..", "a.1", "1", "a" * 65])
def test_names_that_are_none(tmp_path: Path, name: str) -> None:
    with FileCoordinator(tmp_path / "meet", 0, 1) as coordinator, pytest.raises(UsageError, match="a name of a gather"):
        coordinator.gather(name, b"")


def test_closed_coordinator_is_over(tmp_path: Path) -> None:
    coordinator = FileCoordinator(tmp_path / "meet", 0, 1)
    coordinator.close()
    coordinator.close()
    with pytest.raises(UsageError, match="was closed"):
        coordinator.gather("x", b"")


@FORKS
def test_forked_child_keeps_no_lock_and_says_nothing(tmp_path: Path) -> None:
    """A data loader that outlives its rank doesn't let it seem to live."""
    with FileCoordinator(tmp_path / "meet", 0, 2, timeout=60) as coordinator:
        rank_1 = FileCoordinator(tmp_path / "meet", 1, 2, timeout=60)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with pytest.raises(UsageError, match="belongs to process"):
                    rank_1.gather("x", b"")
                rank_1.close()
                status = 0
            finally:
                os.write(writing, b"%d" % status)
                time.sleep(600)
                os._exit(status)
        try:
            assert os.read(reading, 1) == b"0"
            rank_1.close()
            with pytest.raises(RankLostError) as lost:
                coordinator.barrier("met")
            assert lost.value.reasons == {1: "gone"}
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reading)
            os.close(writing)


def test_what_a_fork_does_to_the_copy_in_the_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same without a fork, where it can be looked at: locks go, and nothing is said any more."""
    with FileCoordinator(tmp_path / "meet", 0, 2, timeout=60) as rank_0:
        rank_1 = FileCoordinator(tmp_path / "meet", 1, 2, timeout=60)
        parent = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: parent + 1)
        with pytest.raises(UsageError, match=f"belongs to process {parent}"):
            rank_1.gather("x", b"")
        # It isn't the child's to close.
        held = list(rank_1._handles)
        rank_1.close()
        rank_1._handles = held
        monkeypatch.undo()
        monkeypatch.setattr(coordinator, "_alive", {rank_1})
        coordinator._after_fork()
        with pytest.raises(RankLostError) as lost:
            rank_0.barrier("met")
        assert lost.value.reasons == {1: "gone"}


class Refusing(QuickFs):
    """Refuses one call, of some kind and on some path, for good."""

    def __init__(self, call: str, part: str, code: int = errno.EIO) -> None:
        super().__init__()
        self.refused, self.part, self.code = call, part, code

    def _refuse(self, call: str, path: str) -> None:
        if call == self.refused and self.part in path:
            raise StorageError(self.code, os.strerror(self.code), path)

    def open(self, path: str, mode: OpenMode, *, follow: bool = False) -> int:
        self._refuse(f"open-{mode}", path)
        return super().open(path, mode, follow=follow)

    def link(self, source: str, target: str) -> None:
        self._refuse("link", target)
        super().link(source, target)

    def mkdir(self, path: str) -> None:
        self._refuse("mkdir", path)
        super().mkdir(path)

    def unlink(self, path: str) -> None:
        self._refuse("unlink", path)
        super().unlink(path)


@pytest.mark.parametrize(
    ("call", "part"), [("mkdir", "meet"), ("mkdir", "run-"), ("open-create", ".tmp-"), ("link", "rank-0")]
)
def test_refusals_of_rank_0_are_raised_and_leave_the_directory_free(tmp_path: Path, call: str, part: str) -> None:
    with pytest.raises(StorageError):
        FileCoordinator(tmp_path / "meet", 0, 1, fs=Refusing(call, part))
    with FileCoordinator(tmp_path / "meet", 0, 1, timeout=0.05) as coordinator:
        assert coordinator.gather("x", b"y") == [b"y"]


@pytest.mark.parametrize(
    ("call", "part"), [("open-read", "current"), ("open-create", ".tmp-"), ("open-write", "rank-0"), ("link", "rank-1")]
)
def test_refusals_of_another_rank_are_raised(tmp_path: Path, call: str, part: str) -> None:
    with FileCoordinator(tmp_path / "meet", 0, 2), pytest.raises(StorageError):
        FileCoordinator(tmp_path / "meet", 1, 2, fs=Refusing(call, part))


def test_run_that_vanishes_while_it_is_joined(tmp_path: Path) -> None:
    with FileCoordinator(tmp_path / "meet", 0, 2):
        for call in ("open-create", "link"):
            with pytest.raises(UsageError, match="start all ranks together"):
                FileCoordinator(
                    tmp_path / "meet", 1, 2, timeout=0.05, fs=Refusing(call, "run-", errno.ENOENT)
                )


def test_end_that_cannot_be_written_down_is_an_error(tmp_path: Path) -> None:
    fs = Refusing("link", ".end")
    with FileCoordinator(tmp_path / "meet", 0, 1, fs=fs) as coordinator:
        with pytest.raises(StorageError):
            coordinator.gather("x", b"")
        fs.code = errno.EEXIST
        # Somebody was quicker to write it down; then it is there.
        (Path(coordinator._run) / "y.0.end").write_text(json.dumps({}))
        assert coordinator.gather("y", b"said") == [b"said"]
        assert not list(Path(coordinator._run).glob(".tmp-*"))


def test_what_cannot_be_cleared_away_is_in_nobodys_way(tmp_path: Path) -> None:
    fs = Refusing("unlink", "run-")
    with FileCoordinator(tmp_path / "meet", 0, 1, fs=fs) as coordinator:
        for turn in range(3):
            assert coordinator.gather("x", b"%d" % turn) == [b"%d" % turn]
    with FileCoordinator(tmp_path / "meet", 0, 1, fs=fs) as coordinator:
        assert coordinator.gather("x", b"anew") == [b"anew"]


def test_error_travels_between_processes(tmp_path: Path) -> None:
    error = RankLostError("saving", {3: "gone", 1: "late"}, {0: b"x"})
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, CommitError)
    assert (str(again), again.reasons, again.payloads) == (str(error), error.reasons, error.payloads)
    late = "rank 1 is late (it hasn't answered in time: it is slow, stuck, or was never started)"
    assert str(error).startswith(f"saving: {late}, rank 3 is gone")
