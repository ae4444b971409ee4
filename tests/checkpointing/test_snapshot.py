"""Snapshots: the same bytes as without, from the moment that they were taken, in bounded memory."""

from __future__ import annotations

import gc
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given as examples
from hypothesis import strategies as st

from cnrfmt import Quantize, Rows, TableData, UsageError, segment_writer
from cnrfmt.checkpointing.slabs import Slabs
from cnrfmt.checkpointing.snapshot import Mode, Picked, Snapshot
from cnrfmt.encodings import Recipe
from cnrfmt.encodings.recipes import recipe_for
from cnrfmt.format.encoding import RawLayout
from cnrfmt.format.segment import NO_STATE, SegmentHeader
from cnrfmt.inputs import as_source
from cnrfmt.plan import Plan, plan_baseline, plan_delta
from cnrfmt.segment_writer import write_segment
from cnrfmt.table_writes import TableWrite
from tests.test_quantised import CHOICES, keys_of, values_of

CHUNK = 600
HEADER = SegmentHeader(b"s" * 16, b"c" * 16, NO_STATE, b"t" * 16)
MODES: list[Mode] = ["encode", "copy"]


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "_CHUNK", CHUNK)


class Memory:
    """A sink that keeps all, and may be slow or broken."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self.data, self._before = bytearray(), before

    def write(self, data: Any) -> None:
        self._before()
        self.data += memoryview(data).cast("B")


def segment(writes: Iterable[TableWrite], threads: int = 1) -> bytes:
    sink = Memory()
    write_segment(sink, HEADER, writes, None, threads=threads)
    return bytes(sink.data)


class Writer:
    """Writes a snapshot's tables behind its back."""

    def __init__(self, snapshot: Snapshot, *, threads: int = 1, sink: Memory | None = None) -> None:
        self.sink, self.error = sink or Memory(), None
        self._work = lambda: write_segment(self.sink, HEADER, snapshot.writes, None, threads=threads)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.error = error

    def join(self) -> bytes:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return bytes(self.sink.data)


def through(plan: Plan, *, threads: int = 2, limit: int | None = None, mode: Mode = "encode") -> bytes:
    snapshot = Snapshot(plan.writes, threads=threads, limit_bytes=limit, mode=mode)
    snapshot.start()
    writer = Writer(snapshot, threads=threads)
    snapshot.wait()
    found = writer.join()
    assert writer.error is None
    assert snapshot.nbytes == 0
    return found


def of_every_choice() -> Plan:
    """A table for each layout and method, with rows that codes can't hold and a column of one value per row."""
    tables = {}
    for name in CHOICES:
        rows, sums = values_of(name)
        tables[name] = TableData(rows, columns={"sums": sums}, keys=keys_of(name))
    return plan_baseline(tables, CHOICES)


def grown(plan: Plan, ids: Any, give: Callable[[Any, Any], Any]) -> Plan:
    """Some rows of each of these tables, anew; `give` says how they are handed over."""
    tables: dict[str, Any] = {}
    for name in CHOICES:
        rows, sums = (-values for values in values_of(name))
        keys = keys_of(name)
        tables[name] = Rows(ids if keys is None else keys[ids], give(rows, ids), columns={"sums": give(abs(sums), ids)})
    recipes = {(w.schema.name, c.column.name): c.recipe for w in plan.writes for c in w.columns}
    return plan_delta(tables, plan.tables, None, lambda t, c: recipes[t.name, c.name])


@pytest.fixture(scope="module")
def by_every_method() -> list[tuple[Plan, bytes]]:
    """Tables, and rows picked from them in several ways, each with what is written of it without a snapshot."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_writer, "_CHUNK", CHUNK)
        plan = of_every_choice()
        found = [(plan, segment(plan.writes))]
        some = np.random.default_rng(0).permutation(41)
        for ids in (some[:9], np.arange(3, 40), np.sort(some[:30])):
            picked = grown(plan, ids, Picked)
            found.append((picked, segment(grown(plan, ids, lambda values, at: values[at]).writes)))
            assert segment(picked.writes) == found[-1][1]
        return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("threads", "limit"), [(1, None), (4, None), (1, 0), (4, 0), (3, 2000)])
def test_the_same_bytes_by_every_method(
    by_every_method: list[tuple[Plan, bytes]], mode: Mode, threads: int, limit: int | None
) -> None:
    for plan, want in by_every_method:
        assert through(plan, threads=threads, limit=limit, mode=mode) == want


def test_trained_rows_that_lie_anywhere() -> None:
    from tools.bench._data import trained_rows

    table = np.ascontiguousarray(trained_rows()[:3000, :64])
    table[17], table[500, 3] = np.nan, np.inf
    state = np.abs(table[:, 0]) + 1
    for bits, method in ((8, None), (4, None), (2, None), (4, "adaptive"), (3, "adaptive")):
        quantize = Quantize(bits, method=method, max_error=0.4 if bits == 2 else None)
        schema = plan_baseline({"t": TableData(table, columns={"g": state})}, quantize).tables
        ids = np.sort(np.random.default_rng(bits).choice(3000, 800, replace=False))
        ids[:2] = 17, 500
        ids = np.unique(ids)

        def delta(give: Any, schema: Any = schema, quantize: Any = quantize, ids: Any = ids) -> Plan:
            rows = Rows(ids, give(table, ids), columns={"g": give(state, ids)})
            return plan_delta({"t": rows}, schema, quantize, lambda table, column: Recipe(RawLayout(column.dtype)))

        want = segment(delta(lambda values, at: values[at]).writes)
        for mode in MODES:
            assert through(delta(Picked), limit=1 << 16, mode=mode) == want


def sources(table: Any) -> dict[str, Any]:
    """The same rows from all kinds of hands."""
    twice = np.repeat(table, 2, axis=0)
    return {
        "numpy": table,
        "strided": twice[::2],
        "columns first": np.asfortranarray(table),
        "other bytes": table.astype(table.dtype.newbyteorder()),
        "read-only": np.frombuffer(table.tobytes(), table.dtype).reshape(table.shape),
        "torch": torch.from_numpy(table.copy()),
        "torch strided": torch.from_numpy(twice.copy())[::2],
    }


@pytest.mark.parametrize("quantize", [None, Quantize(8), Quantize(4, method="adaptive", layout="packed")], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_rows_from_all_kinds_of_hands(quantize: Quantize | None, mode: Mode) -> None:
    table = np.random.default_rng(0).normal(size=(90, 12)).astype(np.float32)
    schema = plan_baseline({"t": table}, quantize).tables
    ids = np.array([80, 3, 4, 5, 6, 7, 60, 61, 8, 9, *range(20, 50)])

    def delta(values: Any) -> Plan:
        return plan_delta({"t": Rows(ids, values)}, schema, quantize, lambda t, c: Recipe(RawLayout(c.dtype)))

    want = segment(delta(table[ids]).writes)
    for kind, values in sources(table).items():
        assert through(delta(Picked(values, ids)), mode=mode) == want, kind


@pytest.mark.parametrize("dtype", ["float64", "float16", "int64", "uint8", "bfloat16", "float8_e5m2"])
def test_raw_rows_of_any_type(dtype: str) -> None:
    import ml_dtypes

    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    table = np.random.default_rng(0).integers(0, 100, (90, 7)).astype(kind)
    ids = np.array([7, 9, 30, 31, 32, 88])
    schema = plan_baseline({"t": TableData(table, columns={"g": table[:, 0].copy()})}, None).tables

    def delta(give: Any) -> Plan:
        rows = Rows(ids, give(table, ids), columns={"g": give(table[:, 0], ids)})
        return plan_delta({"t": rows}, schema, None, lambda t, c: Recipe(RawLayout(c.dtype)))

    assert through(delta(Picked)) == segment(delta(lambda values, at: values[at]).writes)


def test_picked_rows_are_checked() -> None:
    table = np.zeros((10, 2), np.float32)
    for positions in ([10], [-1], [3, 11, 4]):
        with pytest.raises(UsageError, match=r"t: positions go from 0 to 9, found"):
            Picked(table, positions, what="t")
    with pytest.raises(UsageError, match="integers"):
        Picked(table, [0.5], what="t")
    picked = Picked(table + np.arange(10)[:, None].astype(np.float32), [4, 4, 0], what="t")
    assert as_source(picked, what="t") is picked
    assert picked.rows(1, 3).tolist() == [[4, 4], [0, 0]]
    assert picked.take(np.array([2, 0])).tolist() == [[0, 0], [4, 4]]


# The moment


def big(quantize: Any, count: int = 400) -> tuple[Any, Any, Plan]:
    """A table with many chunks, a raw state, some rows that codes can't hold, and what to write of it."""
    table = np.random.default_rng(0).normal(size=(count, 16)).astype(np.float32)
    table[::50, 3] = np.nan
    state = np.arange(count, dtype=np.float32)
    return table, state, plan_baseline({"t": TableData(table, columns={"g": state})}, quantize)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "quantize",
    [None, Quantize(8), Quantize(4), Quantize(3, method="adaptive"), Quantize(2, method="kmeans", block=16)],
    ids=lambda q: "raw" if q is None else f"{q.bits} {q.method}",
)
def test_what_changes_after_the_wait_is_not_written(quantize: Quantize | None, mode: Mode) -> None:
    table, state, plan = big(quantize)
    want = segment(plan.writes)
    snapshot = Snapshot(plan.writes, threads=3, mode=mode)
    snapshot.start()
    snapshot.wait()
    table[:], state[:] = 7, 8
    assert snapshot.stall_seconds > 0
    assert segment(snapshot.writes, threads=2) == want
    assert segment(plan.writes) != want


def test_every_order_of_columns_tables_and_threads() -> None:
    rng = np.random.default_rng(0)
    tables = {
        f"t{n}": TableData(
            rng.normal(size=(rows, dim)).astype(np.float32),
            columns={f"c{k}": np.ones(rows, np.float32) for k in range(n % 4)},
        )
        for n, (rows, dim) in enumerate([(1, 1), (300, 2), (0, 5), (77, 40), (5, 300), (200, 16), (31, 1)])
    }
    plan = plan_baseline(tables, Quantize(4))
    want = segment(plan.writes)
    for encoders in (1, 2, 7):
        for writers in (1, 2, 5):
            for limit in (0, 100, 1000, 10**6):
                snapshot = Snapshot(plan.writes, threads=encoders, limit_bytes=limit)
                snapshot.start()
                writer = Writer(snapshot, threads=writers)
                snapshot.wait()
                assert writer.join() == want


def test_nothing_to_write() -> None:
    snapshot = Snapshot([], threads=2)
    snapshot.start()
    snapshot.wait()
    snapshot.ready()
    assert snapshot.writes == ()
    assert snapshot.encoded_bytes == 0


# Memory


@pytest.mark.parametrize("mode", MODES)
def test_memory_is_bounded(mode: Mode) -> None:
    _, _, plan = big(Quantize(8), 5000)
    limit, seen = 20_000, []
    snapshot = Snapshot(plan.writes, threads=2, limit_bytes=limit, mode=mode)
    assert snapshot.encoded_bytes > 3 * limit
    snapshot.start()
    # Nobody writes: encoders stop where they have to, and say that it is time.
    snapshot.ready()
    assert limit // 2 < snapshot.nbytes <= limit
    writer = Writer(snapshot, sink=Memory(lambda: seen.append(snapshot.nbytes)))
    snapshot.wait()
    assert writer.join() == segment(plan.writes)
    assert max(seen) <= snapshot.peak_bytes <= limit
    assert snapshot.nbytes == 0


def test_each_thread_may_hold_a_chunk_whatever_the_limit() -> None:
    _, _, plan = big(None, 500)
    snapshot = Snapshot(plan.writes, threads=3, limit_bytes=1)
    snapshot.start()
    writer = Writer(snapshot)
    snapshot.wait()
    assert writer.join() == segment(plan.writes)
    assert CHUNK // 2 < snapshot.peak_bytes <= 3 * CHUNK


def test_the_writer_may_begin_when_all_is_encoded() -> None:
    _, _, plan = big(Quantize(8))
    snapshot = Snapshot(plan.writes, threads=1)
    snapshot.start()
    snapshot.ready()
    assert snapshot.nbytes == snapshot.encoded_bytes
    assert snapshot.encoded_bytes == sum(write.data_bytes for write in plan.writes)
    snapshot.wait()


def test_nothing_is_left_when_all_is_written() -> None:
    _, _, plan = big(Quantize(8), 5000)
    snapshot = Snapshot(plan.writes, threads=2)
    source = weakref.ref(snapshot.writes[0].columns[0].source)
    room = weakref.ref(snapshot._queue._slabs)
    snapshot.start()
    snapshot.wait()
    segment(snapshot.writes, threads=2)
    gc.disable()
    try:
        # The threads may still be about to end.
        end = time.monotonic() + 60
        del snapshot
        while (source() or room()) is not None and time.monotonic() < end:
            time.sleep(0.01)
        assert source() is None
        assert room() is None
    finally:
        gc.enable()


@examples(
    st.lists(st.integers(0, 3 << 20), min_size=1, max_size=30),
    st.none() | st.integers(0, 64 << 20),
)
def test_buffers_are_cut_out_of_blocks(sizes: list[int], limit: int | None) -> None:
    slabs = Slabs(sizes, limit)
    buffers = [slabs.take(size) for size in sizes]
    assert [len(buffer) for buffer in buffers] == sizes
    places = sorted((b.ctypes.data, b.ctypes.data + len(b)) for b in buffers if len(b))
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(places))
    assert all(b.flags.writeable and not b.ctypes.data % 16 for b in buffers)
    # What fits, fits beside a block of which only a rest is used.
    assert slabs.fits(0) or limit is not None
    if limit is not None:
        assert not slabs.fits(limit + 1)
        assert slabs.fits(limit - limit // 8)


def test_few_bytes_of_a_block_keep_it_no_longer_than_they_are_used() -> None:
    sizes = [1 << 20] * 9
    slabs = Slabs(sizes, None)
    buffers = [slabs.take(size) for size in sizes]
    memory = {id(buffer.base): weakref.ref(buffer.base) for buffer in buffers if buffer.base is not None}
    assert len(memory) == 1
    (block,) = memory.values()
    while buffers:
        assert block() is not None
        buffers.pop()
    assert block() is None


# Errors


class Broken:
    """Rows of which some can't be read."""

    read_by_slices = True
    shape, dtype = (500, 16), np.dtype(np.float32)

    def __getitem__(self, some: slice) -> Any:
        if some.stop > 300:
            raise OSError("the disk is gone")
        return np.zeros((some.stop - some.start, 16), np.float32)


def test_what_fails_in_an_encoder_reaches_both_sides() -> None:
    plan = plan_baseline({"t": Broken()}, Quantize(8))
    for limit in (None, 0):
        snapshot = Snapshot(plan.writes, threads=2, limit_bytes=limit)
        snapshot.start()
        writer = Writer(snapshot, threads=2)
        with pytest.raises(OSError, match="the disk is gone"):
            snapshot.wait()
        writer.join()
        assert isinstance(writer.error, OSError)
        with pytest.raises(OSError, match="the disk is gone"):
            snapshot.ready()
        assert snapshot.nbytes == 0


def test_a_writer_that_fails_wakes_the_trainer() -> None:
    _, _, plan = big(Quantize(8), 5000)
    snapshot = Snapshot(plan.writes, threads=2, limit_bytes=3000)
    snapshot.start()

    def full() -> None:
        raise OSError("no space left")

    def write() -> None:
        try:
            write_segment(Memory(full), HEADER, snapshot.writes, None, threads=2)
        except OSError as error:
            snapshot.cancel(error)

    thread = threading.Thread(target=write)
    thread.start()
    with pytest.raises(OSError, match="no space left"):
        snapshot.wait()
    thread.join(60)
    assert not thread.is_alive()


def test_cancelling_wakes_everybody() -> None:
    _, _, plan = big(Quantize(8), 5000)
    before = threading.active_count()
    snapshot = Snapshot(plan.writes, threads=2, limit_bytes=3000)
    snapshot.start()
    snapshot.ready()
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            snapshot.wait()
        except UsageError as error:
            caught.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    snapshot.cancel(UsageError("no more"))
    snapshot.cancel(UsageError("said before"))
    waiting.join(60)
    assert [str(error) for error in caught] == ["no more"]
    writer = Writer(snapshot)
    writer.join()
    assert str(writer.error) == "no more"
    end = time.monotonic() + 60
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() <= before
    assert snapshot.nbytes == 0


def test_cancelled_after_the_wait() -> None:
    _, _, plan = big(Quantize(8))
    snapshot = Snapshot(plan.writes, threads=2)
    snapshot.start()
    snapshot.wait()
    assert snapshot.error is None
    snapshot.cancel(error := UsageError("given up"))
    assert snapshot.error is error
    with pytest.raises(UsageError, match="given up"):
        segment(snapshot.writes)


def test_misuse() -> None:
    _, _, plan = big(None)
    for wrong in ({"threads": 0}, {"threads": True}, {"threads": 1, "limit_bytes": -1}, {"threads": 1, "mode": "both"}):
        with pytest.raises(UsageError, match=next(reversed(wrong))):
            Snapshot(plan.writes, **wrong)  # type: ignore[arg-type]
    snapshot = Snapshot(plan.writes, threads=1)
    with pytest.raises(UsageError, match="start"):
        snapshot.wait()
    snapshot.start()
    with pytest.raises(UsageError, match="already"):
        snapshot.start()
    snapshot.wait()


def test_sources_that_are_encoded_already_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, plan = big(Quantize(8))
    first = Snapshot(plan.writes, threads=1)
    again = Snapshot(first.writes, threads=1)
    assert again.encoded_bytes == 0
    assert [c.source for w in again.writes for c in w.columns] == [c.source for w in first.writes for c in w.columns]


def test_rows_keep_one_object_for_all_columns() -> None:
    rng = np.random.default_rng(0)
    ids = rng.permutation(40)[:25]
    table = rng.normal(size=(40, 4)).astype(np.float32)
    schema = plan_baseline({"t": TableData(table, columns={"g": table[:, 0].copy()})}, None).tables
    rows = Rows(ids, Picked(table, ids), columns={"g": Picked(table[:, 0], ids)})
    plan = plan_delta({"t": rows}, schema, None, lambda t, c: recipe_for(t.name, c, as_source(table, what=""), None))
    # The same column under rows of its own, twice.
    (write,) = plan.writes
    assert write.rows is not None
    own = replace(write.rows)
    write = replace(write, columns=tuple(replace(c, rows=own) for c in write.columns))
    assert through(Plan(plan.tables, (write,))) == segment([write]) == segment(plan.writes)
