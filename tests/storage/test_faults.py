"""A process that ends, at every single call of a commit. Disks that fail are in `tests/crash/test_faults.py`."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.storage.support import (
    FORKS,
    ExitAt,
    KillAt,
    Killed,
    Points,
    QuickFs,
    ScriptedFs,
    check_whole,
    commit,
    leftovers,
    payload,
    run_in_child,
)

CASES = {
    # name of the container, whether one is there before, whether the commit is a baseline
    "append to a file": ("model.cnr", True, False),
    "replace a file": ("model.cnr", True, True),
    "make a file": ("model.cnr", False, True),
    "append to a directory": ("run", True, False),
    "baseline in a directory": ("run", True, True),
    "make a directory": ("run", False, True),
}


def _prepare(folder: Path, case: str) -> tuple[Path, int | None, bool]:
    folder.mkdir()
    name, there, fresh = CASES[case]
    path = folder / name
    if there:
        commit(path, payload(0), fresh=True, fs=QuickFs())
        commit(path, payload(1), fs=QuickFs())
    return path, 1 if there else None, fresh


def _version(path: Path) -> int | None:
    """The head's version after a check that all is whole; None where no version was ever committed."""
    if path.is_dir() and not list(path.glob("manifests/*.cnrm")):
        return None
    return check_whole(path).version if path.exists() else None


def _attempts(tmp_path: Path, case: str) -> int:
    """How many calls the commit makes if nothing goes wrong."""
    path, _, fresh = _prepare(tmp_path / "count", case)
    fs = ScriptedFs()
    commit(path, payload(2), fresh=fresh, fs=fs)
    assert not fs.handles
    assert not leftovers(path)
    return len(fs.calls)


def _next_writer_succeeds(path: Path, before: int | None) -> None:
    committed = commit(path, payload(3), fresh=before is None, fs=QuickFs())
    assert committed == (0 if before is None else before + 1)
    assert _version(path) == committed
    assert not leftovers(path)


@pytest.mark.parametrize("case", CASES)
def test_process_that_ends_at_every_call(tmp_path: Path, case: str) -> None:
    seen = set()
    for k in range(1, _attempts(tmp_path, case) + 1):
        path, old, fresh = _prepare(tmp_path / str(k), case)
        fs = ScriptedFs(KillAt(k))
        with suppress(Killed):
            commit(path, payload(2), fresh=fresh, fs=fs)
        fs.end_process()
        now = _version(path)
        assert now in (old, 0 if old is None else old + 1)
        seen.add(now)
        _next_writer_succeeds(path, now)
    assert len(seen) == 2


# The points from which on the new version is there for a reader.
VISIBLE = {"slot-a-written", "file-renamed", "manifest-published"}


@FORKS
@pytest.mark.parametrize("case", CASES)
def test_real_process_that_ends_at_every_point(tmp_path: Path, case: str) -> None:
    path, _, fresh = _prepare(tmp_path / "count", case)
    fs = Points()
    commit(path, payload(2), fresh=fresh, fs=fs)
    visible = False
    for name in fs.passed:
        visible = visible or name in VISIBLE
        path, old, fresh = _prepare(tmp_path / name, case)
        body = partial(commit, path, payload(2), fresh=fresh, fs=ExitAt(name))
        assert run_in_child(body) == 77
        now = _version(path)
        assert now == ((0 if old is None else old + 1) if visible else old), name
        _next_writer_succeeds(path, now)
    assert visible
