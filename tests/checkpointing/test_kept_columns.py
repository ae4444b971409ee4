"""Columns that are kept as integers: in few bytes, rows without integers beside them, and only news are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cnrfmt
from cnrfmt import CheckpointManager, Deleted, Grid, Rows, Table, TableData
from cnrfmt.checkpointing.kept_columns import IntegerColumn, decoded
from cnrfmt.checkpointing.kept_tables import Held
from cnrfmt.checkpointing.stored_values import FromContainer, InMemory
from cnrfmt.format.encoding import LogLayout
from tests.checkpointing.support import integers_of
from tests.storage.support import QuickFs

F32 = np.float32
LIMIT = 1 << 24
GRID = Grid(step=2.0**-8, by=None)


def saved(path: Path, values: Any, **columns: Any) -> None:
    cnrfmt.save(path, {"t": TableData(values, columns=columns)}, quantize=GRID)


def column_of(store: InMemory, name: str = "weight") -> IntegerColumn:
    found = store._tables["t"].columns[name]
    assert isinstance(found, IntegerColumn)
    return found


def updated(path: Path, store: Any, held: Any = None, version: int | None = None) -> None:
    with cnrfmt.open(path, version=version) as ck:
        store.update(ck, held)


def test_integers_take_two_bytes_until_they_need_four(tmp_path: Path) -> None:
    path = tmp_path / "run"
    values = np.linspace(-100, 100, 4000, dtype=F32).reshape(1000, 4)
    saved(path, values, accumulator=np.ones(1000, F32))
    store = InMemory(LIMIT)
    updated(path, store)
    assert store.nbytes == 1000 * (4 * 2 + 2)
    saved(path, values * 2, accumulator=np.ones(1000, F32))
    updated(path, store)
    assert store.nbytes == 1000 * (4 * 4 + 2)
    with cnrfmt.open(path) as ck:
        assert store.read("t", range(1000)).tobytes() == ck["t"][...].tobytes()
    # Both arrays are there for a moment.
    tight = InMemory(1000 * (4 * 2 + 4 * 4) - 1)
    with pytest.raises(cnrfmt.TooLargeError, match="table 't', column 'weight'"):
        updated(path, tight)
    assert tight.nbytes == 0
    assert tight.state is None
    updated(path, InMemory(1000 * (4 * 2 + 4 * 4)))


@pytest.mark.parametrize("where", ["memory", "container"])
def test_rows_without_integers_are_told_and_kept(tmp_path: Path, where: str) -> None:
    path = tmp_path / "run"
    values = np.random.default_rng(0).normal(0, 1, (50, 4)).astype(F32)
    values[[3, 20], 1] = np.nan, 1e30
    saved(path, values)
    store: Any = InMemory(LIMIT) if where == "memory" else FromContainer(path, LIMIT)
    updated(path, store)
    ids = np.array([20, 3, 7, 60, -1], np.int64)
    integers, known = integers_of(store, "t", "weight", ids)
    assert known.tolist() == [False, False, True, False, False]
    assert integers[2].tolist() == np.rint(values[7] * 256).tolist()
    assert store.read("t", [20, 3, 7])[:2].tobytes() == values[[20, 3]].tobytes()
    plan = store.plan("t")
    assert plan is not None
    assert plan.floor == -8
    with pytest.raises(cnrfmt.MissingKeyError, match="no column"):
        integers_of(store, "t", "other", ids)
    with pytest.raises(cnrfmt.MissingKeyError, match="no table"):
        integers_of(store, "u", "weight", ids)


def test_what_a_rank_holds_is_all_that_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "run"
    values = np.random.default_rng(0).normal(0, 1, (50, 4)).astype(F32)
    keyed = TableData(values, keys=np.arange(100, 150))
    cnrfmt.save(path, {"t": values, "k": keyed, "other": values}, quantize=GRID)
    held = {"t": Held(rows=(10, 30), elements=(1, 3)), "k": Held(keys=np.array([90, 101, 149])), "gone": Held()}
    for store in (InMemory(LIMIT), FromContainer(path, LIMIT)):
        updated(path, store, held)
        integers, _ = integers_of(store, "t", "weight", np.array([12]))
        assert integers.tolist() == np.rint(values[[12], 1:3] * 256).tolist()
        _, known = integers_of(store, "k", "weight", np.array([90, 101]))
        assert known.tolist() == [False, True]
    memory = InMemory(LIMIT)
    updated(path, memory, held)
    assert memory.nbytes == 20 * 2 * 2 + 2 * (8 + 4 * 2)
    _, known = integers_of(memory, "t", "weight", np.array([9, 10, 29, 30]))
    assert known.tolist() == [False, True, True, False]
    # Keys that come later are read then, those that go aren't kept.
    updated(path, memory, {**held, "k": Held(keys=np.array([101, 102, 103]))})
    assert memory.read("k", [102]).tobytes() == stored_in(path, [102])
    with pytest.raises(cnrfmt.MissingKeyError):
        memory.read("k", [149])


def stored_in(path: Path, keys: list[int]) -> bytes:
    with cnrfmt.open(path) as ck:
        return ck["k"][keys].tobytes()


@settings(max_examples=30, deadline=None)
@given(
    layout=st.sampled_from([LogLayout(12, 0x33800000, 16), LogLayout(16, 0x33800000, 12)]),
    codes=st.lists(st.integers(0, 4095), min_size=1, max_size=20),
)
def test_codes_of_state_decode_as_the_specification_says(layout: LogLayout, codes: list[int]) -> None:
    patterns = [0 if k == 0 else layout.base + ((k - 1) << layout.shift) for k in codes]
    expected = np.array(patterns, np.uint32).view(F32)
    assert decoded(layout.grid, np.array(codes, np.int32)).tobytes() == expected.tobytes()


@settings(max_examples=30, deadline=None)
@given(floor=st.integers(-126, 103), integers=st.lists(st.integers(-(2**24) + 1, 2**24 - 1), min_size=1, max_size=20))
def test_integers_on_a_grid_decode_exactly(floor: int, integers: list[int]) -> None:
    found = decoded(("grid", floor), np.array(integers, np.int32))
    assert found.tolist() == [float(x) * 2.0**floor for x in integers]
    assert not np.signbit(found[np.array(integers) == 0]).any()


def test_an_update_reads_only_what_newer_steps_add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, random = tmp_path / "run", np.random.default_rng(1)
    live = TableData(
        random.normal(0, 1, (500, 4)).astype(F32), columns={"accumulator": random.uniform(1, 2, 500).astype(F32)}
    )
    counts: list[int] = []
    read = Table.read_integers

    def counted(self: Table, ids: Any, *args: Any, **options: Any) -> Any:
        counts.append(len(ids))
        return read(self, ids, *args, **options)

    monkeypatch.setattr(Table, "read_integers", counted)
    options: dict[str, Any] = {"learning_rate": 0.01, "expected_restores": 3, "merge_share": None, "fs": QuickFs()}
    with CheckpointManager(path, **options) as m:
        for step in range(5):
            rows = np.arange(step, 500, 50)
            live.values[rows] += 1
            live.columns["accumulator"][rows] += 1  # type: ignore[call-overload,index]
            m.track("t", rows)
            m.save(step, {"t": live}).wait()
            store = m._run.bases._own
            assert store is not None
            with cnrfmt.open(path) as ck:
                for column in ("weight", "accumulator"):
                    assert store.read("t", range(500), column).tobytes() == ck["t"].read(column=column).tobytes()
    # All rows, once, of each column: the number of checkpoints that rows were in is one.
    assert sum(counts) == 3 * 500


@pytest.mark.parametrize("where", ["memory", "container"])
def test_rows_that_went_and_came_back_between_two_updates(tmp_path: Path, where: str) -> None:
    path = tmp_path / "run"
    values = np.random.default_rng(0).normal(0, 1, (50, 4)).astype(F32)
    keyed = TableData(values, keys=np.arange(100, 150), columns={"accumulator": np.ones(50, F32)})
    cnrfmt.save(path, {"t": values, "k": keyed}, quantize=GRID)
    store: Any = InMemory(LIMIT) if where == "memory" else FromContainer(path, LIMIT)
    updated(path, store)
    cnrfmt.append(path, {"t": Rows([], rows=20), "k": Deleted([103, 104])})
    # What isn't written of a row that is there again reads as zeros, and is no difference from anything.
    again = Rows([103], columns={"accumulator": np.full(1, 2, F32)})
    cnrfmt.append(path, {"t": Rows([30], values[:1], rows=40), "k": again})
    updated(path, store)
    with cnrfmt.open(path) as ck:
        for name, t in ck.items():
            ids = np.arange(len(t)) if t.keys is None else t.keys
            for column in t.columns:
                assert store.read(name, ids, column).tobytes() == t.read(ids, column=column).tobytes()
    _, known = integers_of(store, "t", "weight", np.array([19, 20, 30, 39]))
    assert known.tolist() == [True, False, True, False]
    _, known = integers_of(store, "k", "weight", np.array([102, 103, 104]))
    assert known.tolist() == [True, False, False]


def test_another_table_of_the_same_name_begins_anew(tmp_path: Path) -> None:
    path, random = tmp_path / "run", np.random.default_rng(1)
    options: dict[str, Any] = {"encoding": GRID, "policy": "consecutive", "fs": QuickFs()}
    with CheckpointManager(path, **options) as m:
        m.save(0, {"t": random.normal(0, 1, (50, 4)).astype(F32)}).wait()
        other = random.normal(0, 1, (40, 6)).astype(F32)
        m.save(1, {"t": other}, kind="delta").wait()
        keyed = TableData(other, keys=range(40))
        with cnrfmt.open(path) as ck:
            assert np.abs(ck["t"][...] - other).max() <= 2.0**-9
        m.save(2, {"t": keyed}, kind="delta").wait()
        with cnrfmt.open(path) as ck:
            assert np.abs(ck["t"][range(40)] - other).max() <= 2.0**-9
