"""Each new version once, with what it changed."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt import Rows
from cnrfmt.serving.watching import Watch
from tests.serving.support import F32, QUICK, chain


def append(path: Path, ids: list[int], value: float, **more: Any) -> int:
    changed = {"dense": Rows(ids, np.full((len(ids), 8), value, F32)), **more}
    return cnrfmt.append(path, changed, step=int(value), fs=QUICK)


def test_versions_come_with_what_they_changed(tmp_path: Path) -> None:
    path = chain(tmp_path / "run", deltas=2)
    with cnrfmt.follow(path) as follower:
        assert follower.next_update() is None
        append(path, [5, 7], 1)
        update = follower.next_update()
        assert update is not None
        assert (update.before, update.version, update.step) == (2, 3, 1)
        assert update.changed["dense"].rows.tolist() == [5, 7]
        assert update.changed["dense"].exact
        assert (update.checkpoint["dense"][[5, 7]] == 1).all()
        assert list(update.changed) == ["dense", "keyed", "state"]
        assert len(update.changed["state"].rows) == 0
        with pytest.raises(cnrfmt.MissingKeyError, match="no table 'nobody' in version 3"):
            update.changed["nobody"]
        # Who comes late gets all of it at once.
        append(path, [7, 9], 2)
        append(path, [1], 3, new=np.zeros((2, 2), F32), keyed=cnrfmt.Dropped())
        update = next(iter(follower))
        assert (update.before, update.version) == (3, 5)
        assert update.changed["dense"].rows.tolist() == [1, 7, 9]
        assert (update.added, update.dropped) == (("new",), ("keyed",))


def test_from_a_version_that_is_known(tmp_path: Path) -> None:
    path = chain(tmp_path / "run", deltas=2)
    append(path, [4], 1)
    with cnrfmt.follow(path, since=2) as follower:
        update = follower.next_update()
        assert update is not None
        assert (update.before, update.version, update.changed["dense"].rows.tolist()) == (2, 3, [4])
    with pytest.raises(cnrfmt.VersionNotFoundError, match="no version 9"):
        cnrfmt.follow(path, since=9)
    with pytest.raises(cnrfmt.UsageError, match="poll is a number of seconds above 0"):
        cnrfmt.follow(path, poll=0)


def test_a_compaction_brings_nothing_new(tmp_path: Path) -> None:
    path = chain(tmp_path / "run", deltas=3)
    with cnrfmt.follow(path) as follower:
        cnrfmt.compact(path)
        update = follower.next_update()
        assert update is not None
        assert (update.before, update.version) == (3, 4)
        assert [len(update.changed[name].rows) for name in update.changed] == [0, 0, 0]
        append(path, [8], 1)
        update = follower.next_update()
        assert update is not None
        assert update.changed["dense"].rows.tolist() == [8]


def test_calls_back_from_a_thread_of_its_own(tmp_path: Path) -> None:
    path = chain(tmp_path / "run", deltas=0)
    came = threading.Event()
    seen: list[int] = []

    def on_update(update: cnrfmt.Update) -> None:
        assert threading.current_thread() is not threading.main_thread()
        seen.append(update.version)
        came.set()

    with cnrfmt.follow(path, on_update, poll=0.01):
        for value in (1, 2):
            came.clear()
            append(path, [0], value)
            assert came.wait(60)
    assert seen == [1, 2]


def test_what_is_wrong_is_raised_by_close(tmp_path: Path) -> None:
    path = chain(tmp_path / "run", deltas=1)

    def on_update(update: cnrfmt.Update) -> None:
        raise LookupError(f"can't apply {update.version}")

    follower = cnrfmt.follow(path, on_update, poll=0.01)
    append(path, [0], 1)
    end = time.monotonic() + 60
    while follower.error is None and time.monotonic() < end:
        time.sleep(0.005)
    with pytest.raises(LookupError, match="can't apply 2"):
        follower.close()
    follower.close()


def test_what_a_call_back_refused_comes_again_with_what_is_newer(tmp_path: Path) -> None:
    path = chain(tmp_path / "run", deltas=1)
    seen: list[tuple[int, int, list[int]]] = []
    refused = threading.Event()

    def on_update(update: cnrfmt.Update) -> None:
        seen.append((update.before, update.version, update.changed["dense"].rows.tolist()))
        if update.version == 2:
            refused.set()
            raise LookupError("the cache is away")

    with cnrfmt.follow(path, on_update, poll=0.01) as follower:
        append(path, [4], 1)
        assert refused.wait(60)
        append(path, [7], 2)
        end = time.monotonic() + 60
        while seen[-1][1] != 3 and time.monotonic() < end:
            time.sleep(0.005)
        while follower.error is not None and time.monotonic() < end:
            time.sleep(0.005)
    assert seen[0] == (1, 2, [4])
    assert seen[-1] == (1, 3, [4, 7])


def test_another_container_is_an_error(tmp_path: Path) -> None:
    path = chain(tmp_path / "run", deltas=1)
    other = chain(tmp_path / "other", deltas=4, seed=1)
    with cnrfmt.follow(path) as follower:
        shutil.rmtree(path)
        other.rename(path)
        with pytest.raises(cnrfmt.DamagedError, match="another container was put in its place"):
            follower.next_update()


def test_older_states_and_gaps_are_errors(tmp_path: Path) -> None:
    path = chain(tmp_path / "run", deltas=1)
    backup = tmp_path / "backup"
    shutil.copytree(path, backup)
    with cnrfmt.follow(path) as follower:
        append(path, [0], 1)
        assert follower.next_update() is not None
        shutil.rmtree(path)
        backup.rename(path)
        with pytest.raises(cnrfmt.DamagedError, match="an older state was put in its place"):
            follower.next_update()


@pytest.mark.parametrize("kind", ["told", "looks"])
@pytest.mark.parametrize("name", ["run", "run.cnr"])
def test_waiting_ends_with_a_commit_and_with_the_time(
    tmp_path: Path, kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "looks":
        monkeypatch.setitem(sys.modules, "watchfiles", None)
    path = tmp_path / name
    cnrfmt.save(path, {"dense": np.zeros((4, 8), F32)}, fs=QUICK)
    over = threading.Event()
    watch = Watch(str(path), 0.05, over)
    assert watch.is_told is (kind == "told")
    watch.wait()
    append(path, [1], 1)
    watch.wait()
    over.set()
    watch.wait()
    # What is watched is gone: then it is looked at.
    over.clear()
    watch.wait()
    watch.close()


def test_a_commit_wakes_who_waits(tmp_path: Path) -> None:
    path = chain(tmp_path / "run", deltas=0)
    over = threading.Event()
    watch = Watch(str(path), 60.0, over)
    timer = threading.Timer(0.3, lambda: append(path, [1], 1))
    timer.start()
    began = time.monotonic()
    watch.wait()
    assert time.monotonic() - began < 59
    timer.join()
    watch.close()
