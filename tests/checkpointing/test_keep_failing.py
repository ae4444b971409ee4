"""A rule of what to keep that raises: no checkpoint is lost by it, nothing is given up, and it is told."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

import cnrfmt
from cnrfmt import CheckpointManager, Keep, Shard, UsageError
from cnrfmt.checkpointing.ranks.coordinator import FileCoordinator
from cnrfmt.run_record import CheckpointRecord
from tests.checkpointing.ranks import as_ranks
from tests.checkpointing.support import Trainer, check, sound
from tests.storage.support import QuickFs

TOLD = r"where\(\) of the checkpoint of version \d raised KeyError: 'auc'"


def good(checkpoint: CheckpointRecord) -> bool:
    """What somebody writes who forgets that the first checkpoints have no metric yet."""
    return checkpoint.metrics["auc"] > 0.5


def test_no_checkpoint_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, trainer, said = tmp_path / "run", Trainer(), {}
    metrics = [{"auc": 0.1}, {}, {"auc": 0.2}, {"auc": 0.9}]
    with CheckpointManager(path, bits=32, keep=Keep(where=good), grace=0, fs=QuickFs()) as m:
        for found in metrics:
            trainer.train(None)
            version = m.save(trainer.step, trainer.tables(), kind="baseline", metrics=found).wait()
            assert version is not None
            said[version] = trainer.copy()
            if len(said) == 2:
                # It is told once, by the next call.
                with pytest.raises(UsageError, match=TOLD) as caught:
                    m.track("user", [1])
                assert caught.value.__cause__ is caught.value.__context__ is None
    sound(path)
    with cnrfmt.open(path) as ck:
        kept = ck.versions
    assert kept == (0, 1, 2, 3)
    for version in kept:
        check(path, version, said[version])
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 3
    assert all("no version was given up: keep: where()" in text for text in warnings)


def test_it_gives_up_again_as_soon_as_the_rule_works(tmp_path: Path) -> None:
    path, broken = tmp_path / "run", [True]

    def where(checkpoint: CheckpointRecord) -> bool:
        if broken:
            raise RuntimeError("not yet")
        return checkpoint.version == 1

    with CheckpointManager(path, bits=32, keep=Keep(where=where), grace=0, fs=QuickFs()) as m:
        for step in range(2):
            m.save(step, {"t": np.ones((3, 2), np.float32)}, kind="baseline").wait()
        with pytest.raises(UsageError, match="RuntimeError: not yet"):
            m.wait()
        m.save(2, {"t": np.ones((3, 2), np.float32)}, kind="baseline").wait()
        m.wait()
        broken.clear()
        m.save(3, {"t": np.ones((3, 2), np.float32)}, kind="baseline").wait()
    with cnrfmt.open(path) as ck:
        assert ck.versions == (1, 3)


def test_several_ranks_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "run"

    def body(coordinator: FileCoordinator) -> list[int | None]:
        first = 2 * coordinator.rank
        mine = Shard(np.full((2, 4), coordinator.rank, np.float32), rows=(first, first + 2), of_rows=4)
        with CheckpointManager(path, bits=32, keep=Keep(where=good), coordinator=coordinator, fs=QuickFs()) as m:
            return [m.save(step, {"t": mine}, kind="baseline").wait() for step in range(3)]

    assert as_ranks(tmp_path / "meet", 2, body) == [[0, 1, 2]] * 2
    with cnrfmt.open(path) as ck:
        assert ck.versions == (0, 1, 2)
        assert ck["t"].read()[:, 0].tolist() == [0, 0, 1, 1]
    assert sum("no version was given up" in record.getMessage() for record in caplog.records) == 2


def test_collecting_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run"
    for _ in range(3):
        cnrfmt.save(path, {"t": np.ones((3, 2), np.float32)}, fs=QuickFs())
    before = sorted(path.rglob("*"))
    with pytest.raises(UsageError, match=TOLD) as caught:
        cnrfmt.collect(path, keep=Keep(where=good), grace=0, fs=QuickFs())
    assert isinstance(caught.value.__cause__, KeyError)
    assert sorted(path.rglob("*")) == before
