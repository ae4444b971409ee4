"""A trainer that goes on before its restore is done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cnrfmt
from cnrfmt import CheckpointManager, DamagedError, MissingKeyError, TableData, UsageError
from cnrfmt.checkpointing.ranks.shards import Shard
from cnrfmt.serving import hydrated_table
from tests.checkpointing.ranks import as_ranks
from tests.checkpointing.support import Trainer, check, sound
from tests.serving.support import F32, Held, damage
from tests.storage.support import QuickFs

ENCODINGS: dict[str, dict[str, Any]] = {
    "raw": {"bits": 32},
    "4 bits": {"bits": 4},
    "grid": {"encoding": {"user": cnrfmt.Grid(step=0.01)}, "bits": None},
}


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """Holds the background up; tables are of many blocks."""
    monkeypatch.setattr(hydrated_table, "_BLOCK", 1 << 12)
    found = Held(monkeypatch)
    yield found
    found.go.set()


def manager(path: Path, **options: Any) -> CheckpointManager:
    return CheckpointManager(path, policy="consecutive", fs=QuickFs(), **{"bits": 32, **options})


def trained(path: Path, **options: Any) -> Trainer:
    """A run of three checkpoints."""
    trainer = Trainer(rows=2000, dim=8)
    trainer.user_state = np.abs(trainer.user_state) + 1
    with manager(path, **options) as m:
        for step in range(3):
            m.save(step, trainer.tables()).wait()
            trainer.train(m, 0.05)
        m.save(3, trainer.tables()).wait()
    return trainer


def go_soon(held: Held) -> None:
    threading.Timer(0.05, held.go.set).start()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_training_goes_on_before_all_rows_are_there(tmp_path: Path, held: Held, encoding: str) -> None:
    path, options = tmp_path / "run", ENCODINGS[encoding]
    trained(path, **options)
    trainer, stored = Trainer(), cnrfmt.load(path, columns=True)
    with manager(path, **options) as m:
        restored = m.restore(lazy=True)
        assert restored is not None
        assert not restored.is_complete
        assert not restored.wait(0.01)
        trainer.take_over(restored)
        trainer.step = 3
        ids = np.array([1999, 7, 7, 1200])
        m.track("user", ids)
        assert (trainer.user[ids] == stored["user"].values[ids]).all()
        assert (trainer.user_state[ids] == stored["user"].columns["state"][ids]).all()
        trainer.user[ids] += 1
        restored.ensure("visitor", trainer.keys)
        assert (trainer.visitor == stored["visitor"].values).all()
        assert not restored.is_complete
        go_soon(held)
        pending = m.save(4, trainer.tables())
        expected = trainer.copy()
        assert pending.wait() == 4
        assert restored.wait()
    want = stored["user"].values
    want[[1999, 7, 1200]] += 1
    assert (expected["user"] == want).all()
    assert (expected["item"] == stored["item"].values).all()
    with cnrfmt.open(path) as ck:
        # A delta: what was stored of the rows that nobody marked stays.
        assert len(ck.manifest.steps()) == 5
    if encoding == "raw":
        check(path, 4, expected)
    sound(path)


def test_into_the_arrays_of_a_model(tmp_path: Path, held: Held) -> None:
    path = tmp_path / "run"
    trainer = trained(path)
    # A tensor with more rows, a table under another name with more elements, new arrays for the third.
    user, state, wide = torch.ones(2100, 8), torch.ones(2100), np.ones((4000, 5), F32)
    into = {"user": TableData(user, columns={"state": state}), "ad": wide, "visitor": None}
    with manager(path) as m:
        restored = m.restore(into=into, rename={"item": "ad"}, resize={"user": "grow", "ad": "pad"}, lazy=True)
        assert restored is not None
        assert restored.tables["user"] is into["user"]
        ids = np.array([2, 1999, 2050])
        m.track("user", ids)
        m.track("ad", [3999])
        assert (user.numpy()[ids[:2]] == trainer.user[ids[:2]]).all()
        assert (wide[3999, :3] == trainer.item[3999]).all()
        go_soon(held)
        assert restored.wait(60)
        assert restored.is_complete
    assert (user[:2000].numpy() == trainer.user).all()
    assert (state[:2000].numpy() == trainer.user_state).all()
    assert (user[2000:] == 1).all()
    assert (wide[:, :3] == trainer.item).all()
    assert (wide[:, 3:] == 1).all()
    assert (restored.tables["visitor"].values == trainer.copy()["visitor"]).all()


def test_copies_that_may_lack_rows_are_not_saved(tmp_path: Path, held: Held) -> None:
    path = tmp_path / "run"
    trainer = trained(path)
    with manager(path) as m:
        restored = m.restore(lazy=True)
        assert restored is not None
        trainer.take_over(restored)
        trainer.item = trainer.item.copy()
        with pytest.raises(UsageError, match=r"'item', column 'weight': it was restored lazily, .* a copy perhaps"):
            m.save(4, trainer.tables())
        with pytest.raises(UsageError, match="a copy perhaps"):
            m.save(4, {**trainer.tables(), "item": trainer.item.tolist()})
        held.go.set()
        assert restored.wait()
        trainer.item = restored.tables["item"].values.copy()
        assert m.save(4, trainer.tables()).wait() == 4
        check(path, 4, trainer.copy())


def test_order_says_what_comes_first(tmp_path: Path, held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run"
    trained(path)
    held.go.set()
    fill, blocks = hydrated_table.HydratedTable.fill, list[int]()

    def noted(table: hydrated_table.HydratedTable, block: int) -> None:
        blocks.append(block)
        fill(table, block)

    monkeypatch.setattr(hydrated_table.HydratedTable, "fill", noted)
    with manager(path) as m:
        restored = m.restore(tables=["item"], lazy=True, order={"item": np.arange(4000) == 3000})
        assert restored is not None
        assert restored.wait(60)
    rows = (1 << 12) // 12
    assert blocks[:2] == [3000 // rows, 0]
    assert len(blocks) == -(-4000 // rows)


def test_what_can_not_be_restored_lazily(tmp_path: Path) -> None:
    path = tmp_path / "run"
    trainer = trained(path)
    with manager(path) as m:
        with pytest.raises(UsageError, match="leave out remap"):
            m.restore(lazy=True, remap={"item": np.arange(5)})
        with pytest.raises(UsageError, match="'item': lazy=True restores rows as they are stored"):
            m.restore(lazy=True, rows={"item": [5, 1]})
        with pytest.raises(UsageError, match="give lazy=True"):
            m.restore(order={"item": np.arange(5)})
        with pytest.raises(MissingKeyError, match="order names a table that isn't restored: 'other'"):
            m.restore(lazy=True, order={"other": np.arange(5)})
        with pytest.raises(UsageError, match="lazy is True or False"):
            m.restore(lazy=1)  # type: ignore[arg-type]
        # None of them began anything.
        restored = m.restore(lazy=True, rows={"item": (10, 20), "visitor": slice(1, 3)})
        assert restored is not None
        assert restored.wait(60)
        assert (restored.tables["item"].values == trainer.item[10:20]).all()
        assert (restored.tables["visitor"].keys == np.sort(trainer.keys)[1:3]).all()
        assert (restored.tables["visitor"].values == trainer.copy()["visitor"][1:3]).all()


def test_damage_reaches_the_trainer(tmp_path: Path) -> None:
    path = tmp_path / "run"
    trainer = trained(path)
    damage(path, "user")
    with manager(path) as m:
        restored = m.restore(lazy=True)
        assert restored is not None
        with pytest.raises(DamagedError, match="'user'"):
            restored.wait()
        trainer.take_over(restored)
        for touch in (lambda: m.track("item", [1]), lambda: m.save(4, trainer.tables())):
            with pytest.raises(DamagedError, match="'user'"):
                touch()
        # Another restore doesn't mind.
        restored = m.restore(lazy=True, tables=["item"])
        assert restored is not None
        assert restored.wait(60)
        m.restore(lazy=True)
        with pytest.raises(DamagedError, match="'user'"):
            m.close()
    with cnrfmt.open(path) as ck:
        assert ck.version == 3


class EndedError(Exception):
    """The end of a trainer."""


def test_a_wait_that_was_interrupted_waits_again(tmp_path: Path, held: Held) -> None:
    path = tmp_path / "run"
    trainer = trained(path)

    def interrupt(*_: object) -> None:
        raise EndedError

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with manager(path) as m:
            restored = m.restore(lazy=True)
            assert restored is not None
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(EndedError):
                restored.wait()
            go_soon(held)
            assert restored.wait()
            assert (restored.tables["user"].values == trainer.user).all()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_rows_that_come_while_somebody_reads_them_are_enough(
    tmp_path: Path, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    trainer = trained(path)
    with manager(path) as m:
        restored = m.restore(lazy=True)
        assert restored is not None

        def late(*_: object) -> Any:
            held.go.set()
            assert restored.wait(60)
            raise UsageError("the checkpoint was closed; open it again")

        monkeypatch.setattr(hydrated_table.HydratedTable, "_decoded", late)
        m.track("user", [1999])
        assert (restored.tables["user"].values[1999] == trainer.user[1999]).all()
        with pytest.raises(MissingKeyError, match="no table 'usr' was restored; there are 'user'"):
            restored.ensure("usr", [1])


def test_an_end_does_not_wait_for_rows(tmp_path: Path, held: Held) -> None:
    path = tmp_path / "run"
    trainer = trained(path)
    stored = trainer.copy()
    ended = manager(path)
    restored = ended.restore(lazy=True)
    assert restored is not None
    go_soon(held)
    ended.flush(ending=True)
    assert not restored.is_complete
    # Whoever goes on all the same lacks nothing.
    trainer.take_over(restored)
    assert ended.save(4, trainer.tables()).wait() == 4
    ended.close()
    check(path, 4, stored)

    held.go.clear()
    with pytest.raises(EndedError):
        _end_by_an_error(path, held)


def _end_by_an_error(path: Path, held: Held) -> None:
    with manager(path) as m:
        assert m.restore(lazy=True) is not None
        go_soon(held)
        raise EndedError


def test_stored_values_come_behind(tmp_path: Path) -> None:
    path = tmp_path / "run"
    trained(path)
    with manager(path, stored_values="memory") as m:
        restored = m.restore(lazy=True)
        assert restored is not None
        rows = m.stored_values.read("user", [5])
        assert (rows == cnrfmt.load(path)["user"][5]).all()


def test_ranks_restore_their_shards(tmp_path: Path, held: Held) -> None:
    path = tmp_path / "run"
    values = np.random.default_rng(0).normal(size=(3000, 8)).astype(F32)
    cnrfmt.save(path, {"rows": values, "elements": values})
    held.go.set()

    def body(coordinator: Any) -> Any:
        first = 1000 * coordinator.rank
        some = {"rows": (first, first + 1000), "of_rows": 2000}
        part = {"elements": (4 * coordinator.rank, 4 * coordinator.rank + 4), "of_dim": 8}
        into = {
            "rows": Shard(np.zeros((1000, 8), F32), **some),
            "elements": Shard(np.zeros((3000, 4), F32), **part),
        }
        with manager(path, coordinator=coordinator) as m:
            restored = m.restore(into=into, strict=False, lazy=True)
            assert restored is not None
            # The rows of a shard count from its first.
            m.track("rows", [0, 999])
            found = into["rows"].values[[0, 999]].copy()
            into["rows"].values[[0, 999]] += 1
            m.save(1, into, kind="baseline").wait()
        return found, into["rows"].values, into["elements"].values

    found = as_ranks(tmp_path / "meet", 2, body)
    want = values[:2000].copy()
    assert (np.concatenate([one[0] for one in found]) == want[[0, 999, 1000, 1999]]).all()
    want[[0, 999, 1000, 1999]] += 1
    assert (np.concatenate([one[1] for one in found]) == want).all()
    assert (np.concatenate([one[2] for one in found], axis=1) == values).all()
    assert (cnrfmt.load(path)["rows"] == want).all()
    sound(path)


def test_places_of_rows_that_are_gone_may_be_others(tmp_path: Path, held: Held) -> None:
    path, values = tmp_path / "run", np.full((2000, 8), 5, F32)
    keys = np.arange(0, 4000, 2)
    cnrfmt.save(path, {"k": TableData(values, keys=keys), "t": values})
    with manager(path) as m:
        restored = m.restore(lazy=True)
        assert restored is not None
        keyed, dense = restored.tables["k"], restored.tables["t"].values
        m.forget("k", [40])
        keyed.keys[20] = 41
        m.track("k", [41])
        keyed.values[20] = 9
        m.resize("t", 1000)
        m.resize("t", 2000)
        dense[1000:] = 9
        go_soon(held)
        m.save(1, {"k": keyed, "t": dense}).wait()
    with cnrfmt.open(path) as ck:
        assert (ck["k"][41] == 9).all()
        assert (ck["t"][...] == np.repeat([5, 9], 1000)[:, None]).all()


def test_a_touch_that_comes_too_late_changes_nothing(
    tmp_path: Path, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, values = tmp_path / "run", np.ones((2000, 8), F32)
    for step in (1, 2):
        cnrfmt.save(path, {"t": values * step})
    decoded, inside, go_on = hydrated_table.HydratedTable._decoded, threading.Event(), threading.Event()

    def late(self: hydrated_table.HydratedTable, positions: Any) -> Any:
        rows = decoded(self, positions)
        inside.set()
        assert go_on.wait(60)
        return rows

    monkeypatch.setattr(hydrated_table.HydratedTable, "_decoded", late)
    target, told = np.zeros((2000, 8), F32), list[str]()

    def touch() -> None:
        try:
            m.track("t", [5])
        except UsageError as error:
            told.append(str(error))

    with manager(path) as m:
        m.restore(version=0, into={"t": target}, columns=False, lazy=True)
        toucher = threading.Thread(target=touch)
        toucher.start()
        assert inside.wait(60)
        go_soon(held)
        m.restore(version=1, into={"t": target}, columns=False)
        go_on.set()
        toucher.join()
    assert (target == 2).all()
    assert "another restore was begun" in told[0]


def test_stored_values_say_why_they_are_not_there(tmp_path: Path) -> None:
    path = tmp_path / "run"
    trained(path)
    damage(path, "user")
    m = manager(path, stored_values="memory")
    m.restore(lazy=True)
    with pytest.raises(DamagedError, match="'user'"):
        m.stored_values  # noqa: B018
    with pytest.raises(DamagedError, match="'user'"):
        m.close()
