"""Two writers on one container, in two processes: each version has one writer, and no acknowledged one is lost."""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import cnrfmt
from cnrfmt import ConflictError, DamagedError
from cnrfmt.storage.fs import PosixFs
from cnrfmt.storage.locks import WriterLock
from tests.concurrency.support import KINDS, append, running, save, version_of
from tests.storage.support import QuickFs, leftovers

COMMITS = 100 if os.environ.get("CNRFMT_HYPOTHESIS_PROFILE", "quick") != "quick" else 40
"""Of both writers together; a chain takes no more than 256 segments."""

WRITER = """
import json, sys
import numpy as np
import cnrfmt
from cnrfmt import ConflictError, LockedError, Rows
from tests.storage.support import QuickFs
path, number, commits = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
won, refusals = {}, {"LockedError": 0, "ConflictError": 0}
while len(won) < commits:
    token = number * 10_000 + len(won)
    # Each commit has a row of its own, so that the head shows it for ever.
    rows = Rows(np.array([token]), np.full((1, 5), token, np.float32))
    try:
        version = cnrfmt.append(path, {"keyed": rows}, step=token, threads=1, fs=QuickFs())
    except (ConflictError, LockedError) as error:
        refusals[type(error).__name__] += 1
    else:
        won[version] = token
print(json.dumps([won, refusals]))
"""


@pytest.mark.parametrize("name", KINDS)
def test_two_processes_commit_to_one_container(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    save(path)
    won: dict[int, int] = {}
    refusals: Counter[str] = Counter()
    with ExitStack() as stack:
        writers = [stack.enter_context(running(WRITER, path, number, COMMITS // 2)) for number in (1, 2)]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
        for writer in writers:
            output, errors = writer.communicate()
            assert writer.returncode == 0, errors
            mine, refused = json.loads(output)
            refusals.update(refused)
            for version, token in mine.items():
                assert int(version) not in won, f"version {version} was acknowledged to both writers"
                won[int(version)] = token
    print(dict(refusals))
    # A single file refuses the second writer at once; in a directory, it loses the version, and wins a later one.
    assert refusals["ConflictError" if name.endswith(".cnr") else "LockedError"] == 0
    assert sum(refusals.values()) > 0, "the writers never met"
    assert sorted(won) == list(range(1, COMMITS + 1))
    for version, token in won.items():
        with cnrfmt.open(path, version=version, threads=1) as ck:
            assert ck.step == token
    with cnrfmt.open(path, threads=1) as ck:
        assert ck.versions == tuple(range(COMMITS + 1))
        for token in won.values():
            assert ck["keyed"].read(token).tolist() == [token] * 5
    assert cnrfmt.verify(path).verdict == "sound"
    assert not leftovers(path)


# Begins a commit, says so, and goes on when it is told to.
SLOW = """
import sys
import numpy as np
import cnrfmt
from cnrfmt.storage.fs import PosixFs
from tests.storage.support import QuickFs

class Slow(QuickFs):
    waited = False
    def pwrite(self, handle, offset, data):
        if not self.waited and len(data) > 1000:
            self.waited = True
            print("begun", flush=True)
            sys.stdin.readline()
        super().pwrite(handle, offset, data)

if sys.argv[3] == "unlocked":
    PosixFs.lock_record = PosixFs.lock_handle = lambda self, handle: True
commit = getattr(cnrfmt, sys.argv[2])
try:
    version = commit(sys.argv[1], {"dense": np.full((300, 5), 77, np.float32)}, threads=1, fs=Slow())
except cnrfmt.CnrError as error:
    print(type(error).__name__)
else:
    print(version)
"""


def _meanwhile(path: Path, slow: str, quick: str, locks: str) -> tuple[str, int | str]:
    """What becomes of a commit during which this process makes another one, and of that one."""
    with running(SLOW, path, slow, locks) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "begun\n"
        try:
            mine: int | str = getattr(cnrfmt, quick)(path, {"dense": _ones()}, threads=1, fs=QuickFs())
        except cnrfmt.CommitError as error:
            mine = type(error).__name__
        output, errors = other.communicate("go\n")
        assert other.returncode == 0, errors
        return output.strip(), mine


def _ones() -> np.ndarray:
    return np.full((300, 5), 1, np.float32)


@pytest.mark.parametrize("quick", ["append", "save"])
@pytest.mark.parametrize("slow", ["append", "save"])
@pytest.mark.parametrize("name", KINDS)
def test_second_writer_of_a_moment(tmp_path: Path, name: str, slow: str, quick: str) -> None:
    path = tmp_path / name
    save(path)
    theirs, mine = _meanwhile(path, slow, quick, "locked")
    if name.endswith(".cnr"):
        assert (theirs, mine) == ("1", "LockedError")
        winner = 77
    else:
        assert (theirs, mine) == ("ConflictError", 1)
        winner = 1
    with cnrfmt.open(path, threads=1) as ck:
        assert (ck.version, version_of(ck["dense"], 0)) == (1, winner)
    append_ones(path, 2)
    assert cnrfmt.verify(path).verdict == "sound"
    assert not leftovers(path)


def append_ones(path: Path, version: int) -> None:
    """The loser's next try."""
    assert cnrfmt.append(path, {"dense": _ones()}, threads=1, fs=QuickFs()) == version


@pytest.mark.parametrize("quick", ["append", "save"])
@pytest.mark.parametrize("slow", ["append", "save"])
@pytest.mark.parametrize("name", KINDS)
def test_locks_that_do_not_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, slow: str, quick: str
) -> None:
    """As on a mount without locks: the checks before a version counts find the other writer.

    They come too late for two that append to one file: both write behind its end, so one's bytes are over the other's.
    """
    path = tmp_path / name
    save(path)
    monkeypatch.setattr(PosixFs, "lock_record", lambda self, handle: True)
    monkeypatch.setattr(PosixFs, "lock_handle", lambda self, handle: True)
    theirs, mine = _meanwhile(path, slow, quick, "unlocked")
    # Where the other one's temporary file was taken for abandoned, linking it fails for want of it.
    assert theirs in ("ConflictError", "StorageError")
    assert mine == 1
    if (name, slow, quick) == ("model.cnr", "append", "append"):
        with pytest.raises(DamagedError):
            cnrfmt.open(path, verify="all", threads=1)
        return
    with cnrfmt.open(path, verify="all", threads=1) as ck:
        assert (ck.version, version_of(ck["dense"], 0)) == (1, 1)
    append_ones(path, 2)
    assert cnrfmt.verify(path).verdict == "sound"


@pytest.mark.parametrize("planted", [False, True], ids=["as it is", "without the check"])
def test_it_is_the_check_that_finds_the_other_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    """Two locks and no check would let one writer's version take the place of another's acknowledged one."""
    path = tmp_path / "model.cnr"
    save(path)
    monkeypatch.setattr(PosixFs, "lock_record", lambda self, handle: True)
    monkeypatch.setattr(WriterLock, "acquire", classmethod(_unregistered))
    if planted:
        monkeypatch.setattr("cnrfmt.storage.single_file_commit._Base.check_unchanged", lambda base, lock: None)

    class Interrupted(QuickFs):
        done = False

        def pwrite(self, handle: int, offset: int, data: object) -> None:
            if not self.done and offset > 3 * 4096:
                self.done = True
                append_ones(path, 1)
            super().pwrite(handle, offset, data)

    if planted:
        # Both are told that version 1 is theirs.
        append(path, 1, fs=Interrupted())
    else:
        with pytest.raises(ConflictError):
            append(path, 1, fs=Interrupted())


def _unregistered(cls: type[WriterLock], fs: PosixFs, container: str) -> WriterLock:
    path = container + ".lock"
    handle = fs.open(path, "lock")
    return cls(fs, path, handle, fs.stat_handle(handle).identity)
