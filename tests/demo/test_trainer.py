from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from cnrfmt import StorageError
from cnrfmt.demo import trainer
from cnrfmt.demo.model import Model, Snapshot
from cnrfmt.demo.orders import Dataset
from tests.demo.support import ExactStore, same_bits


class _Killed(BaseException):
    """Stands for the death of the process, which would take the tests with it."""


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    signals: list[int] = []

    def kill(process: int, number: int) -> None:
        assert process == os.getpid()
        signals.append(number)
        raise _Killed

    monkeypatch.setattr(os, "kill", kill)
    return signals


@pytest.mark.parametrize("die_at", [12, 37, 40, 75])
def test_killed_and_restored_without_loss_it_ends_with_the_same_bits(
    some: Dataset, killed: list[int], die_at: int
) -> None:
    whole = Model(some, 6)
    whole.train(len(some.stream))
    store, events = ExactStore(), []
    with pytest.raises(_Killed):
        trainer.run(store, some, events.append, every=10, seed=6, resume=False, die_at=die_at)
    assert killed == [signal.SIGKILL]
    assert events[-1] == {"event": "dying", "order": die_at}
    before = [event["order"] for event in events if event["event"] == "checkpoint"]
    # A checkpoint that is due at the very order of the death never happens.
    assert before == list(range(10, die_at, 10))
    events.clear()
    model = trainer.run(store, some, events.append, every=10, seed=6, resume=True)
    assert same_bits(model, whole)
    assert events[0]["event"] == "restored"
    assert (events[0]["order"], events[0]["version"]) == (before[-1], len(before) - 1)
    after = [event["order"] for event in events if event["event"] == "checkpoint"]
    end = len(some.stream)
    assert after == [*range(before[-1] + 10, end, 10), end]
    assert store.baselines == [0]


def test_what_is_told_of_a_checkpoint_is_what_was_stored(some: Dataset) -> None:
    store, events = ExactStore(), []
    trainer.run(store, some, events.append, every=25, seed=0, resume=False)
    told = [event for event in events if event["event"] == "checkpoint"]
    assert len(told) == len(store.snapshots)
    for version, (event, snapshot) in enumerate(zip(told, store.snapshots, strict=True)):
        assert event["version"] == version
        assert event["order"] == snapshot.order
        assert event["rows"] == {name: len(rows.ids) for name, rows in snapshot.tables.items()}
        assert event["existing"] == snapshot.existing
        assert event["full_bytes"] == snapshot.full_bytes
        assert set(event["bytes"].values()) == {version}
        assert event["seconds"] >= 0
        assert event["stall"] >= 0
    orders = [event["order"] for event in events if event["event"] == "progress"]
    assert orders == sorted(orders)
    assert orders[-1] == len(some.stream)
    assert events[-1]["event"] == "finished"
    assert len(events[-1]["recall"]) == some.users


def test_progress_is_told_within_long_intervals(some: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "BLOCK", 7)
    events: list[dict[str, Any]] = []
    trainer.run(ExactStore(), some, events.append, every=40, seed=0, resume=False)
    orders = [event["order"] for event in events if event["event"] == "progress"]
    assert orders[:8] == [7, 14, 21, 28, 35, 40, 47, 54]


class _FullDisk(ExactStore):
    def append(self, snapshot: Snapshot) -> int:
        if len(self.snapshots) == 2:
            raise StorageError(28, "No space left on device")
        return super().append(snapshot)


def test_training_ends_with_a_checkpoint_that_fails(some: Dataset) -> None:
    store = _FullDisk()
    with pytest.raises(StorageError, match="No space left"):
        trainer.run(store, some, lambda event: None, every=10, seed=0, resume=False)
    assert [snapshot.order for snapshot in store.snapshots] == [10, 20]
