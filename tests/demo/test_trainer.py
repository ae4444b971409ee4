from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import cnrfmt
from cnrfmt import CheckpointManager, Event, StorageError
from cnrfmt.demo import trainer
from cnrfmt.demo.model import Model
from cnrfmt.demo.orders import Dataset
from cnrfmt.demo.store import Store, written
from tests.checkpointing.support import Disk
from tests.demo.support import same_bits


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


@pytest.mark.parametrize(
    ("die_at", "policy"),
    [(12, "consecutive"), (37, "consecutive"), (40, "intermittent"), (75, "one-shot"), (75, "full")],
)
def test_killed_and_restored_without_loss_it_ends_with_the_same_bits(
    some: Dataset, killed: list[int], die_at: int, policy: str, tmp_path: Path
) -> None:
    whole = Model(some, 6)
    whole.train(len(some.stream))
    store = Store(tmp_path / "demo.cnr", bits=32, policy=policy)
    events: list[dict[str, Any]] = []
    with pytest.raises(_Killed):
        trainer.run(store, some, events.append, every=10, seed=6, die_at=die_at)
    assert killed == [signal.SIGKILL]
    assert events[-1] == {"event": "dying", "order": die_at}
    before = [event["order"] for event in events if event["event"] == "checkpoint"]
    # A checkpoint that is due at the very order of the death never happens.
    assert before == list(range(10, die_at, 10))
    events.clear()
    model = trainer.run(store, some, events.append, every=10, seed=6)
    assert same_bits(model, whole)
    assert events[0]["event"] == "restored"
    assert (events[0]["order"], events[0]["version"]) == (before[-1], len(before) - 1)
    after = [event for event in events if event["event"] == "checkpoint"]
    end = len(some.stream)
    assert [event["order"] for event in after] == [*range(before[-1] + 10, end, 10), end]
    if policy != "intermittent":
        kind = {"full": "baseline", "consecutive": "delta", "one-shot": "since-baseline"}[policy]
        assert {event["kind"] for event in after} == {kind}


def test_what_is_told_of_a_checkpoint_is_what_was_stored(some: Dataset, tmp_path: Path) -> None:
    store, events = Store(tmp_path / "demo.cnr"), []
    trainer.run(store, some, events.append, every=25, seed=0)
    told = [event for event in events if event["event"] == "checkpoint"]
    orders = [25, 50, 75, len(some.stream)]
    assert [event["order"] for event in told] == orders
    assert [event["version"] for event in told] == [0, 1, 2, 3]
    for event in told:
        facts = written(store.path, event["version"])
        assert {key: event[key] for key in facts} == facts
        model = Model(some)
        model.train(event["order"])
        model.take_touched()
        assert (event["existing"], event["full_bytes"]) == (model.existing, model.nbytes)
        assert event["seconds"] > 0
        assert event["stall"] > 0
        with cnrfmt.open(store.path, version=event["version"]) as ck:
            assert ck.step == event["order"]
    progress = [event["order"] for event in events if event["event"] == "progress"]
    assert progress == sorted(progress)
    assert progress[-1] == len(some.stream)
    assert events[-1]["event"] == "finished"
    assert len(events[-1]["recall"]) == some.users


def test_progress_is_told_within_long_intervals(some: Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(trainer, "BLOCK", 7)
    events: list[dict[str, Any]] = []
    trainer.run(Store(tmp_path / "demo.cnr"), some, events.append, every=40, seed=0)
    orders = [event["order"] for event in events if event["event"] == "progress"]
    assert orders[:8] == [7, 14, 21, 28, 35, 40, 47, 54]


def test_a_rehearsal_leaves_nothing(some: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made: list[Path] = []
    of_disk = written

    def record(path: Path, version: int) -> dict[str, Any]:
        made.append(path)
        return of_disk(path, version)

    monkeypatch.setattr(trainer, "written", record)
    trainer.rehearse(Store(tmp_path / "demo.cnr"), some, 20)
    assert len(made) == 3
    assert not list(tmp_path.iterdir())


def test_training_ends_with_a_checkpoint_that_fails(
    some: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()

    def manager(store: Store, on_event: Any) -> CheckpointManager:
        def listen(event: Event) -> None:
            on_event(event)
            if event.kind == "committed" and event.version == 1:
                disk.failing = "sync"

        return CheckpointManager(store.path, policy="consecutive", bits=32, fs=disk, on_event=listen)

    monkeypatch.setattr(Store, "manager", manager)
    store = Store(tmp_path / "demo.cnr")
    with pytest.raises(StorageError, match="the disk failed"):
        trainer.run(store, some, lambda event: None, every=10, seed=0)
    with cnrfmt.open(store.path) as ck:
        assert (ck.versions, ck.step) == ((0, 1), 20)
