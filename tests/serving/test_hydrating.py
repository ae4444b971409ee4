"""Arrays that fill up, against what `load` gives."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt import TableData
from cnrfmt.serving import hydrated_table
from tests.serving.support import ENCODINGS, F32, Held, chain, damage


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of some rows, so that small tables have many."""
    monkeypatch.setattr(hydrated_table, "_BLOCK", 1 << 12)


@pytest.fixture
def held(blocks: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    found = Held(monkeypatch)
    yield found
    found.go.set()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_everything_comes(tmp_path: Path, blocks: None, encoding: str) -> None:
    path = chain(tmp_path / "run", quantize=ENCODINGS[encoding])
    want = cnrfmt.load(path, columns=True)
    with cnrfmt.open(path) as ck, ck.hydrate(columns=True) as found:
        assert found.wait(60)
        assert list(found) == list(ck)
        assert found.is_complete
        assert found.progress.rows == found.progress.of_rows == sum(map(len, found.values()))
        for name, table in found.items():
            assert table.array.tobytes() == want[name].values.tobytes()
            for column, values in want[name].columns.items():
                assert table.arrays[column].tobytes() == values.tobytes()
        assert np.array_equal(found["keyed"].ids, ck["keyed"].keys)
        assert found["dense"].ids == range(3000)


def test_rows_are_there_when_they_are_asked_for(tmp_path: Path, held: Held) -> None:
    path = chain(tmp_path / "run")
    want = cnrfmt.load(path)
    with cnrfmt.open(path, threads=1) as ck, ck.hydrate() as found:
        dense, keyed = found["dense"], found["keyed"]
        ids = np.array([2999, 5, 5, 17])
        assert (dense.gather(ids) == want["dense"][ids]).all()
        dense.ensure(ids)
        assert dense.progress == (3, 3000)
        out = np.empty((4, 8), F32)
        assert dense.gather(ids, out=out) is out
        assert (out == want["dense"][ids]).all()
        keys = want["keyed"].keys[[3, 1]]
        assert (keyed.gather(keys) == want["keyed"].values[[3, 1]]).all()
        assert not found.wait(0.01)
        held.go.set()
        assert found.wait(60)
        assert (dense.array == want["dense"]).all()


def test_what_a_trainer_wrote_is_never_written_over(tmp_path: Path, held: Held) -> None:
    path = chain(tmp_path / "run")
    want = cnrfmt.load(path)["dense"]
    with cnrfmt.open(path) as ck, ck.hydrate(["dense"]) as found:
        table = found["dense"]
        ids = np.arange(0, 3000, 7)
        table.ensure(ids)
        table.array[ids] = 7
        held.go.set()
        assert found.wait(60)
        want[ids] = 7
        assert (table.array == want).all()
        table.ensure()
        assert (table.array == want).all()


def test_many_threads_touch_at_once(tmp_path: Path, blocks: None) -> None:
    path = chain(tmp_path / "run", quantize=ENCODINGS["row-wise"])
    want = cnrfmt.load(path)["dense"]
    wrong: list[object] = []

    def touch(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(40):
            ids = random.integers(0, 3000, 50)
            if not (table.gather(ids) == want[ids]).all():
                wrong.append(ids)

    with cnrfmt.open(path) as ck, ck.hydrate(["dense"]) as found:
        table = found["dense"]
        threads = [threading.Thread(target=touch, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found.wait(60)
        assert (table.array == want).all()
    assert wrong == []


def test_who_touches_a_block_that_is_coming_waits_for_it(
    tmp_path: Path, blocks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = chain(tmp_path / "run", deltas=0)
    want = cnrfmt.load(path)["dense"]
    decode = hydrated_table.HydratedTable._decode
    begun, go = threading.Event(), threading.Event()

    def slow(table: hydrated_table.HydratedTable, positions: Any, out: Any) -> None:
        if isinstance(positions, slice):
            begun.set()
            assert go.wait(60)
        decode(table, positions, out)

    monkeypatch.setattr(hydrated_table.HydratedTable, "_decode", slow)
    with cnrfmt.open(path, threads=1) as ck, ck.hydrate(["dense"]) as found:
        assert begun.wait(60)
        threading.Timer(0.05, go.set).start()
        # The first block is coming, the last one isn't.
        ids = np.array([0, 1, 2999])
        assert (found["dense"].gather(ids) == want[ids]).all()


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({"rows": {"dense": (100, 900), "keyed": None}}, range(100, 900)),
        ({"rows": {"dense": [5, 3, 2999]}}, [3, 5, 2999]),
        ({"shard": (1, 3), "shard_by": "range"}, range(1000, 2000)),
        ({"shard": (1, 3)}, None),
    ],
)
def test_a_part_of_the_rows(tmp_path: Path, blocks: None, options: dict[str, Any], ids: Any) -> None:
    path = chain(tmp_path / "run")
    want = cnrfmt.load(path)
    with cnrfmt.open(path) as ck, ck.hydrate(["dense", "keyed"], **options) as found:
        assert found.wait(60)
        table = found["dense"]
        if ids is None:
            ids = [n for n in range(3000) if cnrfmt.shard_of([n], 3)[0] == 1]
        assert list(table.ids) == list(ids)
        assert (table.array == want["dense"][list(ids)]).all()
        assert (table.gather(list(ids)[-2:]) == want["dense"][list(ids)[-2:]]).all()
        keyed = found["keyed"]
        there = np.isin(want["keyed"].keys, keyed.ids)
        assert (keyed.array == want["keyed"].values[there]).all()
        other = next(n for n in range(3000) if n not in ids)
        with pytest.raises(cnrfmt.MissingKeyError, match=f"table 'dense': no row {other} among those that are held"):
            table.ensure([other])


def test_a_range_of_elements_and_chosen_columns(tmp_path: Path) -> None:
    path = chain(tmp_path / "run")
    want = cnrfmt.load(path, columns=True)
    with cnrfmt.open(path) as ck:
        with ck.hydrate(["state"], elements={"state": (2, 5)}, columns=["squares"]) as found:
            found["state"].ensure()
            assert (found["state"].array == want["state"].values[:, 2:5]).all()
            assert (found["state"].gather([3], column="squares") == want["state"].columns["squares"][3]).all()
        with ck.hydrate(["state"]) as found:
            assert list(found["state"].arrays) == ["weight"]
            with pytest.raises(cnrfmt.MissingKeyError, match="no column 'squares' here; there are weight"):
                found["state"].gather([3], column="squares")


def test_given_arrays_are_filled(tmp_path: Path, blocks: None) -> None:
    path = chain(tmp_path / "run")
    want = cnrfmt.load(path, columns=True)
    half = np.empty((3000, 8), np.float16)
    strided = np.zeros((1500, 16), F32)[:, ::2]
    target = TableData(strided, columns={"squares": np.zeros(1500, F32)})
    with cnrfmt.open(path) as ck, ck.hydrate(columns=True, into={"dense": half, "state": target}) as found:
        assert found.wait(60)
        assert (half == want["dense"].values.astype(np.float16)).all()
        assert (strided == want["state"].values).all()
        assert (target.columns["squares"] == want["state"].columns["squares"]).all()  # type: ignore[index]


def test_blocks_that_are_looked_up_much_come_first(tmp_path: Path, held: Held) -> None:
    path = chain(tmp_path / "run", deltas=0)
    counts = np.zeros(3000)
    counts[2990] = 5
    counts[1000] = 2
    with cnrfmt.open(path) as ck, ck.hydrate(["dense"], order={"dense": counts}) as found:
        table = found["dense"]
        order = table.blocks(counts)
        assert order[:2].tolist() == [2990 // table._block, 1000 // table._block]
        assert sorted(order.tolist()) == list(range(-(-3000 // table._block)))
        held.go.set()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_damage_is_told_at_the_next_touch(tmp_path: Path, blocks: None, encoding: str) -> None:
    path = chain(tmp_path / "run", quantize=ENCODINGS[encoding], deltas=0)
    damage(path, "dense")
    with cnrfmt.open(path) as ck, ck.hydrate(["dense", "keyed"]) as found:
        with pytest.raises(cnrfmt.DamagedError, match=r"piece \d+ .*column 'weight' of table 'dense'"):
            found.wait(60)
        with pytest.raises(cnrfmt.DamagedError, match="table 'dense'"):
            found["keyed"].ensure(found["keyed"].ids[:1])
        assert not found.is_complete


def test_a_row_in_a_damaged_place_raises_by_itself(tmp_path: Path, held: Held) -> None:
    path = chain(tmp_path / "run", deltas=0)
    damage(path, "dense")
    with cnrfmt.open(path) as ck, ck.hydrate(["dense"]) as found:
        found["dense"].ensure([0])
        with pytest.raises(cnrfmt.DamagedError, match="table 'dense'"):
            found["dense"].ensure([1500])
        found["dense"].ensure([1])
        held.go.set()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"tables": ["nobody"]}, cnrfmt.UsageError, "no table matches 'nobody'"),
        ({"rows": {"nobody": [1]}}, cnrfmt.MissingKeyError, "a table that isn't among those asked for: 'nobody'"),
        ({"into": {"dense": np.empty((3, 8), F32)}}, cnrfmt.UsageError, "column 'weight': a writable array of shape"),
        ({"into": {"dense": TableData(np.empty((3000, 8), F32), columns={"x": np.empty(3000)})}},
         cnrfmt.MissingKeyError, "has a column that isn't hydrated: 'x'"),
        ({"elements": {"dense": (3, 9)}}, cnrfmt.UsageError, r"elements\['dense'\]: \(first, end\) within 0 to 8"),
        ({"order": {"dense": np.ones(3)}}, cnrfmt.UsageError, r"order\['dense'\]: a number for each of 3000 rows"),
        ({"max_bytes": 3000 * 8 * 4 - 1, "tables": ["dense"]}, cnrfmt.TooLargeError, "table 'dense', column 'weight'"),
        ({"columns": "squares"}, cnrfmt.UsageError, r"use columns=\['squares'\]"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path: Path, options: dict[str, Any], error: type[Exception], text: str) -> None:
    path = chain(tmp_path / "run", deltas=0)
    with cnrfmt.open(path) as ck, pytest.raises(error, match=text):
        ck.hydrate(**options)


def test_a_closed_one_gives_what_it_is_asked_for(tmp_path: Path, held: Held) -> None:
    path = chain(tmp_path / "run", deltas=0)
    want = cnrfmt.load(path)["dense"]
    with cnrfmt.open(path) as ck:
        found = ck.hydrate(["dense"])
        held.go.set()
        found.close()
        assert (found["dense"].gather([5]) == want[5]).all()
        with pytest.raises(cnrfmt.MissingKeyError, match="no table 'keyed' is hydrated; there are dense"):
            found["keyed"]
        assert "of 3000 rows" in repr(found)


@pytest.mark.parametrize("is_closed", [False, True])
def test_nobody_keeps_arrays_that_were_dropped(tmp_path: Path, is_closed: bool) -> None:
    path = chain(tmp_path / "run", deltas=0)
    with cnrfmt.open(path) as ck:
        found = ck.hydrate(["dense"])
        assert found.wait(60)
        if is_closed:
            found.close()
        kept = weakref.ref(found)
        del found
        end = time.monotonic() + 60
        while kept() is not None and time.monotonic() < end:
            # A thread may be about to end.
            time.sleep(0.001)
            gc.collect()
        assert kept() is None
