"""`max_bytes`: what one call may take for what the file claims, counted before it is taken."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt import Deleted, Rows, TableData, TooLargeError
from cnrfmt.memory import Budget, guarded

ROWS, DIM = 300, 7
SIZE = ROWS * DIM * 4
F32 = np.float32
METADATA = 200_000
"""Bytes that are enough for the metadata of these containers, at 32 for each of theirs."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A dense table, a keyed one with every third key, and dense state; then some rows, and fewer of them."""
    path = tmp_path / "model.cnr"
    values = np.arange(ROWS * DIM, dtype=F32).reshape(ROWS, DIM)
    keyed = TableData(values, keys=np.arange(ROWS) * 3, columns={"sum": np.ones(ROWS, F32)})
    cnrfmt.save(path, {"item": values, "visitor": keyed}, dense={"bias": np.zeros(40_000), "text": [1] * 4000})
    cnrfmt.append(path, {"item": Rows(np.arange(0, ROWS, 2), values[::2]), "visitor": Deleted([3, 6])})
    return path


def opened(path: Path, max_bytes: int) -> cnrfmt.Checkpoint:
    return cnrfmt.open(path, max_bytes=max_bytes, threads=1)


def test_metadata_are_counted_first(path: Path) -> None:
    with pytest.raises(TooLargeError, match="manifest of version 1"):
        opened(path, 1000)
    with cnrfmt.open(path) as ck:
        manifest = 32 * ck.manifest.length
    with pytest.raises(TooLargeError, match="table of contents"):
        opened(path, manifest + 100)
    with opened(path, METADATA) as ck:
        assert ck["item"][5].shape == (DIM,)


READS: list[tuple[str, Callable[[Any], Any], int]] = [
    ("item", lambda t: t[...], SIZE),
    ("item", lambda t: t.read(dtype=np.float64), 2 * SIZE),
    ("item", lambda t: t[::-1], SIZE + 8 * ROWS),
    ("item", lambda t: t[1:5], 4 * DIM * 4),
    ("visitor", lambda t: t[...], SIZE),
    ("visitor", lambda t: t.keys, 24 * ROWS),
    ("visitor", lambda t: len(t), 24 * ROWS),
    ("visitor", lambda t: 9 in t, 24 * ROWS),
    ("visitor", lambda t: t.read(column="sum"), 4 * ROWS),
]


@pytest.mark.parametrize(("table", "call", "least"), READS)
def test_a_read_is_refused_below_what_it_takes(path: Path, table: str, call: Callable[[Any], Any], least: int) -> None:
    with opened(path, METADATA) as ck:
        limited = ck[table]
        limited._view.options = cnrfmt.view.ReadOptions("mmap", "touched", 1, least - 1)
        with pytest.raises(TooLargeError, match=table) as caught:
            call(limited)
        assert caught.value.limit == least - 1
        assert caught.value.asked is not None
        assert caught.value.asked >= least
        # Whatever was refused is had under a limit that allows for a row index beside.
        limited._view.options = cnrfmt.view.ReadOptions("mmap", "touched", 1, least + 100_000)
        call(limited)


def test_memory_of_the_callers_isnt_counted(path: Path) -> None:
    out = np.empty((ROWS, DIM), F32)
    with opened(path, METADATA) as ck:
        table = ck["item"]
        table[0]
        table._view.options = cnrfmt.view.ReadOptions("mmap", "touched", 1, 100)
        assert table.read(out=out) is out
        wrong_order = np.empty((DIM, ROWS), F32).T
        table.read(out=wrong_order)
        assert np.array_equal(wrong_order, out)


def test_each_call_has_the_whole_limit(path: Path) -> None:
    with opened(path, METADATA) as ck:
        for _ in range(3 * METADATA // SIZE):
            ck["item"][...]


def test_load_counts_all_tables_together(path: Path) -> None:
    assert set(cnrfmt.load(path, max_bytes=10 * METADATA)) == {"item", "visitor"}
    for limit in range(METADATA // 2, METADATA, 100):
        try:
            cnrfmt.load(path, ["visitor"], max_bytes=limit)
        except TooLargeError:
            continue
        break
    with pytest.raises(TooLargeError, match="item"):
        cnrfmt.load(path, ["visitor", "item"], max_bytes=limit)


def test_dense_state_is_counted(path: Path) -> None:
    with opened(path, METADATA) as ck, pytest.raises(TooLargeError, match="bias"):
        _ = ck.dense
    with opened(path, 1_200_000) as ck:
        assert len(ck.dense["bias"]) == 40_000
    with opened(path, 700_000) as ck, pytest.raises(TooLargeError, match="text"):
        _ = ck.dense


def test_what_changed_is_counted(path: Path, tmp_path: Path) -> None:
    with opened(path, METADATA) as ck:
        assert len(ck["item"].changed(0).rows) == ROWS // 2
        assert ck["visitor"].changed(0).deleted.tolist() == [3, 6]
    cnrfmt.append(path, {"item": Rows([], rows=1 << 40), "new": np.ones((1 << 16, 1), np.uint8)})
    with opened(path, METADATA) as ck:
        for table in ("item", "new"):
            with pytest.raises(TooLargeError, match=table):
                ck[table].changed(0)
        with pytest.raises(TooLargeError, match="item"):
            ck["item"].changed(1)


def test_a_refresh_counts_all_that_it_lists(path: Path) -> None:
    with opened(path, METADATA) as ck:
        cnrfmt.append(path, {"item": Rows([], rows=1 << 40)})
        with pytest.raises(TooLargeError, match="item"):
            ck.refresh()
        # It has moved on, and goes on.
        assert len(ck["item"]) == 1 << 40
        assert ck.refresh() is None


def test_memory_that_the_machine_refuses(path: Path) -> None:
    cnrfmt.append(path, {"item": Rows([], rows=1 << 47)})
    with cnrfmt.open(path) as ck:
        table = ck["item"]
        for call in (lambda: table[...], lambda: table[::-1], lambda: table.changed(0)):
            with pytest.raises(TooLargeError, match="don't fit into memory") as caught:
                call()
            assert caught.value.limit is None


def test_a_limit_is_a_number(path: Path) -> None:
    for wrong in (-1, 1.5, "1G", True):
        for call in (cnrfmt.open, cnrfmt.load):
            with pytest.raises(cnrfmt.UsageError, match="max_bytes"):
                call(path, max_bytes=wrong)
    with pytest.raises(TooLargeError):
        cnrfmt.open(path, max_bytes=0)


def test_the_error_travels() -> None:
    error = TooLargeError("table 't'", 10, 5)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.what, copy.asked, copy.limit, str(copy)) == (error.what, 10, 5, str(error))
    assert isinstance(error, cnrfmt.UsageError)
    stored = pickle.loads(pickle.dumps(TooLargeError("table 't'", 10, 5, "stored_bytes")))
    assert (stored.argument, str(stored)) == (
        "stored_bytes",
        "table 't': the call takes 10 bytes by now, and stored_bytes allows 5; allow more",
    )


def test_a_budget_without_a_limit_takes_everything() -> None:
    Budget(None).take(1 << 90, "the moon")
    with pytest.raises(TooLargeError, match="the sun: don't fit"), guarded("the sun"):
        raise MemoryError
