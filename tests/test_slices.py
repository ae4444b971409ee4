"""Slices: what becomes of live rows, held against the plain rule; what isn't sent; what exact rows remain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cnrfmt
from cnrfmt import Grid, Quantize, TableData, slices, trainer_rows
from cnrfmt.arrays import Array, Bytes, Ids
from cnrfmt.checkpointing.snapshot import Mode, Snapshot
from cnrfmt.encodings import coder
from cnrfmt.encodings.grid_plan import GridPlan, plan_grid
from cnrfmt.encodings.integers import integer_coder
from cnrfmt.format.encoding import GridLayout, LogLayout
from cnrfmt.inputs import Picked, as_source
from cnrfmt.plan import plan_baseline, plan_delta
from cnrfmt.stored_integers import StoredIntegers
from cnrfmt.table_writes import SliceSections, TableWrite
from tests.checkpointing.test_snapshot import Writer

DIM = 5
PAYLOADS = ("fixed", "packed", "rans")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "_VALUES", 40 * DIM)
    monkeypatch.setattr(trainer_rows, "_BLOCK", 4 * DIM)
    monkeypatch.setattr(trainer_rows, "_BLOCKS", 3)


def rows_of(count: int, seed: int = 0) -> tuple[Array, Array]:
    """Weights and accumulators of a table that was trained a little."""
    rng = np.random.default_rng(seed)
    activity = rng.pareto(1.2, count).astype(np.float32)
    activity[: count // 4] = 0
    return rng.laplace(0, 0.05, (count, DIM)).astype(np.float32), activity


class Known:
    """Stored integers of some rows."""

    def __init__(self, ids: Ids, weights: Array, codes: Array) -> None:
        self._place = {int(row): number for number, row in enumerate(ids)}
        self._kept = {"weight": weights, "sums": codes.reshape(-1, 1)}

    def integers(self, table: str, columns: Sequence[str], ids: Ids) -> dict[str, StoredIntegers]:
        at = np.array([self._place.get(int(row), -1) for row in ids], np.int64)
        return {name: StoredIntegers(self._kept[name].astype(np.int32), at) for name in columns}


def planned(weights: Any, sums: Any, payload: Any = "packed", **options: Any) -> TableWrite:
    grid = Grid(learning_rate=0.02, restores=3, by="sums", payload=payload)
    plan = plan_baseline({"t": TableData(weights, columns={"sums": sums}, **options)}, grid)
    return plan.writes[0]


def exponents_of(write: TableWrite, sums: Array) -> npt.NDArray[np.int64]:
    """What the steps of rows are, as powers of two above the floor."""
    layout, scheme = write.columns[0].recipe
    assert isinstance(layout, GridLayout)
    assert scheme is not None
    assert scheme.step is not None
    return GridPlan(layout.floor, scheme.step, "rans", ()).exponents(sums, len(sums)).astype(np.int64)


def decoded(made: SliceSections) -> dict[str, tuple[Array, Array]]:
    """Integers of each column of a slice, and the exponents of its rows."""
    found = {}
    for column in made.columns:
        width, layout = column.elements[1] - column.elements[0], column.recipe.layout
        if not isinstance(layout, GridLayout | LogLayout):
            out = np.empty((made.rows.count, width), coder(layout).dtype)
            coder(layout).decode_range(column.data, 0, out)
            found[column.column.name] = out, np.empty(0)
            continue
        one = integer_coder(layout, made.rows.count, width, "here")
        part = one.opened(column.data[: one.prefix_bytes(column.data[:16])], len(column.data))
        integers, exponents = np.empty((made.rows.count, width), np.int32), np.empty(made.rows.count, np.uint8)
        start, length = part.span(0, made.rows.count)
        part.decode(column.data[start : start + length], 0, 0, integers, exponents)
        found[column.column.name] = integers, exponents
    return found


def ids_of(made: SliceSections) -> Ids:
    rows = made.rows
    return np.arange(rows.first, rows.first + rows.count) if rows.ids is None else rows.ids


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("count", [1, 12, 40, 41, 200])
def test_rows_that_nothing_is_known_of_are_written_as_they_are(count: int, payload: str) -> None:
    weights, sums = rows_of(count)
    write = planned(weights, sums, payload)
    layout = write.columns[0].recipe.layout
    assert isinstance(layout, GridLayout)
    sliced, found = slices.sliced(write)
    assert len(found) == -(-count // 40)
    done = 0
    for residual, absolute in zip(sliced.slices[::2], sliced.slices[1::2], strict=True):
        assert residual.sections().rows.count == 0
        made = absolute.sections()
        assert made.rows.ids is None
        some = slice(done, done + made.rows.count)
        integers, _ = decoded(made)["weight"]
        steps = 1 << exponents_of(write, sums[some])
        assert (abs(integers - weights[some] / 2.0**layout.floor) <= steps[:, None] / 2).all()
        assert (integers % steps[:, None] == 0).all()
        codes = decoded(made)["sums"][0]
        log = made.columns[1].recipe.layout
        assert isinstance(log, LogLayout)
        values = np.where(codes[:, 0] == 0, 0, log.base + ((codes[:, 0] - 1) << log.shift)).astype(np.int32)
        near = values.view(np.float32)
        assert (abs(near - sums[some]) <= sums[some] * 2.0 ** (log.shift - 23)).all()
        done += made.rows.count
    assert done == count


@pytest.mark.parametrize("payload", PAYLOADS)
@given(data=st.data())
def test_differences_lead_to_the_nearest_steps(payload: str, data: st.DataObject) -> None:
    count, seed = data.draw(st.integers(1, 90)), data.draw(st.integers(0, 99))
    weights, sums = rows_of(count, seed)
    rng = np.random.default_rng(seed)
    ids = np.sort(rng.choice(1000, count, replace=False)).astype(np.int64)
    write = planned(weights, sums, payload, keys=ids)
    layout = write.columns[0].recipe.layout
    assert isinstance(layout, GridLayout)
    there = ids[rng.random(count) < data.draw(st.sampled_from([0, 0.5, 1]))]
    base = rng.integers(-(1 << 20), 1 << 20, (len(there), DIM))
    near = np.rint(weights[np.searchsorted(ids, there)] / 2.0**layout.floor).astype(np.int64)
    # Some have hardly changed, some have nothing to do with what they were.
    base = np.where(rng.random(len(there))[:, None] < 0.7, near + rng.integers(-3, 4, near.shape), base)
    codes = rng.integers(0, 4096, len(there))
    known = Known(there, base, codes)
    steps = 1 << exponents_of(write, sums)
    sliced, found = slices.sliced(write, known)
    sent: list[int] = []
    for number, view in enumerate(sliced.slices):
        made, is_residual = view.sections(), number % 2 == 0
        if not made.rows.count:
            continue
        rows = ids_of(made)
        sent += rows.tolist()
        at = np.searchsorted(ids, rows)
        assert np.isin(rows, there).all() == is_residual
        integers, _ = decoded(made)["weight"]
        assert made.columns[0].recipe.layout.is_residual == is_residual
        before = base[np.searchsorted(there, rows)] if is_residual else np.zeros_like(integers, np.int64)
        exact = np.isin(np.arange(len(rows)), made.columns[0].bad)
        step = steps[at][:, None]
        want = before + np.rint((weights[at] / 2.0**layout.floor - before) / step) * step
        assert (before + integers == want)[~exact].all()
        assert (integers[exact] == 0).all()
    unsent = np.concatenate([one.unsent for one in found])
    assert sorted([*sent, *unsent.tolist()]) == ids.tolist()
    at = np.searchsorted(ids, unsent)
    left = abs(weights[at] / 2.0**layout.floor - base[np.searchsorted(there, unsent)])
    assert (left <= steps[at][:, None] / 2).all()


def test_rows_that_the_grid_cannot_hold_are_kept_exactly() -> None:
    weights, sums = rows_of(30)
    weights[3, 1], weights[17, 0], weights[20] = np.nan, np.inf, 3e38
    sums[5], sums[20] = -1.0, np.nan
    known = Known(np.arange(10), np.zeros((10, DIM)), np.zeros(10))
    sliced, _ = slices.sliced(planned(weights, sums), known)
    exact: dict[tuple[str, int], Bytes] = {}
    for view in sliced.slices:
        made = view.sections()
        for column in made.columns:
            for row, value in zip(ids_of(made)[column.bad], column.exact, strict=True):
                exact[column.column.name, int(row)] = value
    assert sorted(exact) == [("sums", 5), ("sums", 20), ("weight", 3), ("weight", 17), ("weight", 20)]
    for (name, row), value in exact.items():
        want = weights[row] if name == "weight" else sums[row : row + 1]
        assert value.tobytes() == want.tobytes()


def test_other_columns_go_with_the_rows_that_are_sent() -> None:
    weights, sums = rows_of(20)
    other = np.arange(20 * DIM, dtype=np.float32).reshape(20, DIM)
    data = TableData(weights, columns={"sums": sums, "momentum": other, "small": np.arange(20, dtype=np.int16)})
    grid = Grid(learning_rate=0.02, restores=3, by="sums")
    write = plan_baseline({"t": data}, {"t": grid, ("t", "momentum"): Quantize(bits=8)}).writes[0]
    layout = write.columns[0].recipe.layout
    assert isinstance(layout, GridLayout)
    near = np.rint(weights / 2.0**layout.floor).astype(np.int32)
    near[[4, 9]] += 1000
    near = near - near % 256 + 0
    write = replace(write, schema=write.schema)
    known = Known(np.arange(20), near, np.zeros(20))
    sliced, _ = slices.sliced(write, known)
    made = sliced.slices[0].sections()
    sent = ids_of(made)
    assert {4, 9} <= set(sent.tolist())
    assert [len(column.data) // len(sent) for column in made.columns[2:]] == [DIM + 8, 2]
    assert decoded(made)["momentum"][0] == pytest.approx(other[sent], abs=0.5)
    assert made.columns[3].data.view(np.int16).tolist() == sent.tolist()


@pytest.mark.parametrize("mode", ["encode", "copy"])
@pytest.mark.parametrize("limit", [None, 0, 3000])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_snapshot_gives_the_bytes_of_its_moment(threads: int, limit: int | None, mode: Mode) -> None:
    weights, sums = rows_of(300)
    order = np.random.default_rng(5).permutation(300)
    keys = np.arange(300)[order] * 7
    known = Known(keys[::2], np.zeros((150, DIM)), np.zeros(150))
    pick = np.arange(10, 290)

    def write() -> TableWrite:
        return planned(Picked(weights, pick), Picked(sums, pick), "rans", keys=keys[pick])

    first = write()
    alone, _ = slices.sliced(first, known)
    want = [view.sections() for view in alone.slices]
    snapshot = Snapshot([first], threads=threads, limit_bytes=limit, mode=mode, stored=known)
    snapshot.start()
    writer = Writer(snapshot, threads=threads)
    snapshot.wait()
    before = weights.copy(), sums.copy()
    weights[:], sums[:] = -1, -1
    data = writer.join()
    assert writer.error is None
    for made in want:
        for column in made.columns:
            assert column.data.tobytes() in data
    assert snapshot.nbytes == 0
    weights[:], sums[:] = before
    assert set(snapshot.unsent()["t"].tolist()) == set(keys[pick].tolist()) - {
        int(row) for made in want if made.rows.count for row in ids_of(made)
    }


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("name", ["t.cnr", "t"])
def test_saved_and_appended_on_the_grid(tmp_path: Path, name: str, payload: Any) -> None:
    weights, sums = rows_of(100)
    weights[50, 2] = np.nan
    path = tmp_path / name
    grid = Grid(learning_rate=0.02, restores=20, by="sums", payload=payload)
    cnrfmt.save(path, {"t": TableData(weights, columns={"sums": sums})}, quantize=grid)
    first = cnrfmt.load(path)["t"]
    changed = np.array([70, 3, 99])
    weights[changed] += 0.25
    cnrfmt.append(path, {"t": cnrfmt.Rows(changed, weights[changed], columns={"sums": sums[changed]})})
    second = cnrfmt.load(path)["t"]
    others = np.setdiff1d(np.arange(100), changed)
    assert second[others].tobytes() == first[others].tobytes()
    assert second[changed] == pytest.approx(weights[changed], abs=0.2)
    assert not np.array_equal(second[changed], first[changed])
    assert cnrfmt.verify(path).verdict == "sound"


def test_a_grid_is_for_tables() -> None:
    weights, sums = rows_of(3)
    tables = {"t": TableData(weights, columns={"sums": sums})}
    with pytest.raises(cnrfmt.UsageError, match="a Grid is for a table, not for the column 'sums'"):
        plan_baseline(tables, {("t", "sums"): Grid(step=0.1)})
    with pytest.raises(cnrfmt.UsageError, match="quantize must be a Quantize, a Grid, None or a dict"):
        plan_baseline(tables, "grid")  # type: ignore[arg-type]


def test_rows_go_on_as_their_baseline_began() -> None:
    weights, sums = rows_of(40)
    first = planned(weights, sums, "rans")
    sources = {"weight": as_source(weights, what=""), "sums": as_source(sums, what="")}
    plan = plan_grid(Grid(learning_rate=0.02, restores=3, by="sums"), first.schema, sources)
    rows = cnrfmt.Rows(np.arange(3), weights[:3] * 9, columns={"sums": sums[:3] * 9})
    write = plan_delta({"t": rows}, (first.schema,), {"t": plan}, lambda t, c: pytest.fail("asked")).writes[0]
    assert [column.recipe for column in write.columns] == [column.recipe for column in first.columns]
