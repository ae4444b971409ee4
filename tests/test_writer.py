"""What save and append accept, refuse, and leave behind."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt import Deleted, Dropped, Quantize, Rows, TableData, segment_writer
from cnrfmt.format import limits
from cnrfmt.format.encoding import RawLayout, RowwiseLayout
from cnrfmt.storage.container import begin

F32 = np.float32


def matrix(rows: int = 10, dim: int = 4, dtype: Any = F32) -> Any:
    return np.arange(rows * dim).reshape(rows, dim).astype(dtype)


@pytest.fixture(params=["model.cnr", "model"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / request.param


def refused(path: Path, says: str, call: Any, *args: Any, **options: Any) -> None:
    """The call is a usage error, and leaves the container as it was."""
    before = cnrfmt.open(path).digest if path.exists() else None
    with pytest.raises(cnrfmt.UsageError, match=says):
        call(path, *args, **options)
    if before is None:
        assert not path.exists()
    else:
        with cnrfmt.open(path) as ck:
            assert ck.digest == before
        assert cnrfmt.verify(path).findings == []
    assert not [n for n in os.listdir(path.parent) if "tmp" in n]


def test_versions_count_on(path: Path) -> None:
    assert cnrfmt.save(path, {"t": matrix()}, step=5) == 0
    assert cnrfmt.append(path, {"t": Rows([1], matrix(1))}, step=6) == 1
    assert cnrfmt.append(path, {}, metadata={"a": 1}) == 2
    assert cnrfmt.save(path, {"t": matrix() + 1}) == 3
    assert cnrfmt.append(path, {"t": Rows([1], matrix(1))}) == 4
    with cnrfmt.open(path) as ck:
        assert ck.version == 4
        assert ck.versions == ((3, 4) if path.suffix else (0, 1, 2, 3, 4))
        assert ck["t"][1].tolist() == matrix(1)[0].tolist()
        assert ck["t"][2].tolist() == (matrix() + 1)[2].tolist()


def test_container_id_is_for_life(path: Path) -> None:
    cnrfmt.save(path, {"t": matrix()})
    first = cnrfmt.open(path).manifest.container_id
    cnrfmt.save(path, {"u": matrix()})
    cnrfmt.append(path, {"u": Dropped()})
    assert cnrfmt.open(path).manifest.container_id == first


def test_what_is_left_out_is_inherited(path: Path) -> None:
    cnrfmt.save(path, {"t": matrix()}, dense={"w": matrix()}, metadata={"run": 7}, step=1)
    cnrfmt.append(path, {"t": Rows([0], matrix(1))})
    with cnrfmt.open(path) as ck:
        assert ck.metadata == {"run": 7}
        assert (ck.dense["w"] == matrix()).all()
        assert ck.step is None
    cnrfmt.append(path, {}, dense={}, metadata={})
    with cnrfmt.open(path) as ck:
        assert ck.metadata == {}
        assert ck.dense == {}


def test_an_append_keeps_the_encoding_unless_told(path: Path) -> None:
    cnrfmt.save(path, {"a": matrix(), "b": matrix()}, quantize={"a": Quantize(8)})
    cnrfmt.append(path, {"a": Rows([1], matrix(1)), "b": Rows([1], matrix(1))})

    def bits(table: str) -> list[Any]:
        with cnrfmt.open(path) as ck:
            steps = ck.view.steps_of(ck[table].schema.table_id)
            return [getattr(p.layout, "bits", 32) for s in steps for _, e in s for p in e.parts]

    assert bits("a") == [8, 8]
    assert bits("b") == [32, 32]
    cnrfmt.append(path, {"a": Rows([1], matrix(1)), "b": Rows([1], matrix(1))}, quantize={"b": Quantize(4)})
    assert bits("a") == [8, 8, 8]
    assert bits("b") == [32, 32, 4]
    cnrfmt.append(path, {"a": Rows([1], matrix(1))}, quantize={"a": None})
    assert bits("a") == [8, 8, 8, 32]
    cnrfmt.append(path, {"b": Rows([0], matrix(1))})
    assert bits("b") == [32, 32, 4, 4]
    cnrfmt.append(path, {"a": matrix(3)}, quantize={"a": Quantize(2)})
    cnrfmt.append(path, {"a": matrix(5)})
    assert bits("a") == [2]


def test_an_append_looks_for_the_encoding_where_a_column_was_last_written(path: Path) -> None:
    cnrfmt.save(path, {"a": matrix(), "none": np.empty((0, 4), F32)}, quantize=Quantize(8))
    cnrfmt.append(path, {"a": Rows([1], columns={"g": matrix(1)})}, quantize={("a", "g"): Quantize(2)})
    cnrfmt.append(path, {"a": Rows([2], columns={"g": matrix(1)}), "none": Rows([3], matrix(1), rows=5)})
    with cnrfmt.open(path) as ck:
        newest = list(ck.view.segments.values())[-1]
        bits = {p.column: getattr(p.layout, "bits", 32) for t in newest.toc.tables for p in t.parts}
        # Of rows that were never there nothing is known.
        assert bits == {"g": 2, "weight": 32}


def test_a_table_that_takes_the_place_of_another_may_have_other_columns(path: Path) -> None:
    sums = np.arange(1, 11, dtype=F32)
    first = TableData(matrix(), columns={"a": sums, "b": matrix()})
    cnrfmt.save(path, {"t": first}, quantize={"t": Quantize(8), ("t", "b"): Quantize(2)})
    cnrfmt.append(path, {"t": TableData(matrix(10, 7), columns={"a": matrix(10, 7), "b": sums})})
    with cnrfmt.open(path) as ck:
        layouts = [p.layout for s in ck.view.segments.values() for t in s.toc.tables for p in t.parts]
        assert layouts[-3:] == [RowwiseLayout(8), RawLayout("float32"), RawLayout("float32")]
        assert ck["t"].read(column="a").tobytes() == matrix(10, 7).tobytes()
    assert cnrfmt.verify(path).findings == []


def test_rows_that_an_encoding_cannot_hold_stay_exact(path: Path) -> None:
    values = matrix(300, 5)
    values[7, 2] = np.nan
    values[8, 0] = -np.inf
    values[250] = 3e38 * np.array([1, -1, 1, -1, 1], F32)
    for bits in (8, 4, 2):
        cnrfmt.save(path, {"t": values}, quantize=Quantize(bits))
        cnrfmt.append(path, {"t": Rows([9, 3], values[[8, 3]])})
        with cnrfmt.open(path) as ck:
            found = ck["t"][...]
            assert found[[7, 8, 250]].tobytes() == values[[7, 8, 250]].tobytes()
            assert found[9].tobytes() == values[8].tobytes()
            assert np.isfinite(found[10:250]).all()
            assert ck["t"][[9, 7, 9]].tobytes() == values[[8, 7, 8]].tobytes()
        assert cnrfmt.verify(path).findings == []


def test_a_dropped_name_comes_back_as_another_table(path: Path) -> None:
    cnrfmt.save(path, {"t": matrix(), "u": matrix()})
    cnrfmt.append(path, {"t": Dropped()})
    assert list(cnrfmt.open(path)) == ["u"]
    cnrfmt.append(path, {"t": TableData(matrix(2, 3), fill=9)})
    cnrfmt.append(path, {"t": Rows([], rows=5)})
    with cnrfmt.open(path) as ck:
        assert ck["t"].shape == (5, 3)
        assert (ck["t"][2:] == 9).all()
        assert ck["t"].changed(since=0).rows.tolist() == [0, 1, 2, 3, 4]


def test_what_is_cut_off_is_gone_for_good(path: Path) -> None:
    cnrfmt.save(path, {"t": matrix()})
    cnrfmt.append(path, {"t": Rows([], rows=4)})
    cnrfmt.append(path, {"t": Rows([8], matrix(1) + 5, rows=10)})
    with cnrfmt.open(path) as ck:
        found = ck["t"][...]
        assert (found[:4] == matrix()[:4]).all()
        assert not found[4:8].any()
        assert found[8].tolist() == (matrix(1) + 5)[0].tolist()
        changes = ck["t"].changed(since=0)
        assert changes.rows.tolist() == [4, 5, 6, 7, 8, 9]
        assert changes.exact


def test_tombstones_are_no_zero_rows(path: Path) -> None:
    keys = np.array([-(1 << 63), -1, 5, (1 << 63) - 1])
    cnrfmt.save(path, {"t": TableData(matrix(4), keys=keys, columns={"g": np.ones(4, F32)})})
    cnrfmt.append(path, {"t": (Rows([7], matrix(1)), Deleted([5, 99]))})
    with cnrfmt.open(path) as ck:
        t = ck["t"]
        assert t.keys is not None
        assert t.keys.tolist() == [-(1 << 63), -1, 7, (1 << 63) - 1]
        with pytest.raises(cnrfmt.MissingKeyError, match="no key 5"):
            t[[7, 5]]
        assert t.read([5], missing="fill").tolist() == [[0, 0, 0, 0]]
        assert t.changed(since=0).deleted.tolist() == [5, 99]
    cnrfmt.append(path, {"t": Rows([5], matrix(1) + 1)})
    with cnrfmt.open(path) as ck:
        assert ck["t"][5].tolist() == (matrix(1) + 1)[0].tolist()
        # The old optimizer state was deleted with the row.
        assert ck["t"].read([5, -1], column="g").tolist() == [0, 1]
        with cnrfmt.open(path, version=0) as old:
            assert old["t"].read([5], column="g").tolist() == [1]


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ({"t": np.zeros(3, F32)}, "matrix of rows x dim"),
        ({"t": np.zeros((3, 0), F32)}, "dim from 1"),
        ({"t": np.zeros((3, 2), "U4")}, "float32"),
        ({"": matrix()}, "a name is"),
        ({"a\n": matrix()}, "a name is"),
        ({"t": TableData(matrix(), columns={"g": np.zeros(9, F32)})}, "9 where there are 10"),
        ({"t": TableData(matrix(), columns={"g": np.zeros((10, 3), F32)})}, "dim is 4"),
        ({"t": TableData(matrix(), columns={"weight": np.zeros(10, F32)})}, "name of the values"),
        ({"t": TableData(matrix(), keys=np.zeros(10, np.int64))}, "distinct: 0 occurs"),
        ({"t": TableData(matrix(), keys=np.arange(9))}, "9 where there are 10"),
        ({"t": TableData(matrix(), fill={"h": 1})}, "names no column"),
        ({"t": Rows([1], matrix(1))}, "changes a table that is there"),
        ([1, 2], "a dict of names"),
    ],
)
def test_what_save_refuses(path: Path, tables: Any, says: str) -> None:
    refused(path, says, cnrfmt.save, tables)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"step": 1.5}, "step must be an integer"),
        ({"step": True}, "step must be an integer"),
        ({"metadata": [1]}, "metadata must be a dict"),
        ({"metadata": {"a": np.float32(1)}}, "JSON can't hold"),
        ({"dense": {"a": {"b": np.ones(3)}}}, "JSON can't hold"),
        ({"dense": {"": 1}}, "a name is"),
        ({"dense": [1]}, "dense must be a dict"),
        ({"threads": 0}, "threads must be"),
        ({"quantize": 8}, "Quantize"),
        ({"quantize": {"nope": Quantize(8)}}, "nope"),
        ({"quantize": {("t", "nope"): Quantize(8)}}, "no column of 't' is named 'nope'"),
        ({"quantize": {("t",): None}}, "pairs of table and column"),
    ],
)
def test_what_options_are_refused(path: Path, options: Any, says: str) -> None:
    refused(path, says, cnrfmt.save, {"t": matrix()}, **options)


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ({"x": Rows([1], matrix(1))}, "no such table"),
        ({"x": Dropped()}, "no such table"),
        ({"t": Rows([1, 1], matrix(2))}, "distinct: 1 occurs"),
        ({"t": Rows([3, 1, 3, 1], matrix(4))}, "2 repeats"),
        ({"t": Rows([10], matrix(1))}, "0 to 9, found 10"),
        ({"t": Rows([-1], matrix(1))}, "found -1"),
        ({"t": Rows([1, 2], matrix(1))}, "1 where there are 2"),
        ({"t": Rows([1], matrix(1, 3))}, "3 elements per row"),
        ({"t": Rows([1], matrix(1, 4, np.float64))}, "holds float32"),
        ({"t": Rows([1])}, "needs values"),
        ({"t": Rows([1.5], matrix(1))}, "integer"),
        ({"t": Rows([], rows=-1)}, "rows go to"),
        ({"t": Rows([], rows=1.5)}, "must be an integer"),
        ({"t": Deleted([1])}, "is dense"),
        ({"k": Rows([1], matrix(1), rows=5)}, "is keyed"),
        ({"k": (Rows([1], matrix(1)), Deleted([1]))}, "both written and deleted"),
        ({"k": (Rows([1], matrix(1)), Rows([2], matrix(1)))}, "at most one"),
        ({"k": Deleted([4, 4])}, "distinct"),
        ({"t": Rows([1], matrix(1), columns={"g": np.zeros((1, 3), F32)})}, "3 elements"),
    ],
)
def test_what_append_refuses(path: Path, tables: Any, says: str) -> None:
    cnrfmt.save(path, {"t": matrix(), "k": TableData(matrix(), keys=np.arange(10))})
    refused(path, says, cnrfmt.append, tables)


def test_append_needs_a_container(path: Path) -> None:
    refused(path, "nothing to append to", cnrfmt.append, {})


def test_a_chain_has_a_bound(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_CHAIN", 4)
    cnrfmt.save(path, {"t": matrix()})
    for _ in range(3):
        cnrfmt.append(path, {"t": Rows([1], matrix(1))})
    refused(path, "save a new baseline", cnrfmt.append, {"t": Rows([1], matrix(1))})
    with pytest.raises(cnrfmt.ChainTooLongError):
        cnrfmt.append(path, {"t": Rows([1], matrix(1))})
    # A version that adds no segment may still be committed.
    assert cnrfmt.append(path, {}, metadata={"a": 1}) == 4


def test_a_failure_while_writing_leaves_nothing_behind(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cnrfmt.save(path, {"t": matrix()})
    before = cnrfmt.open(path).digest
    for commit in (cnrfmt.append, cnrfmt.save):
        with monkeypatch.context() as patch:

            def fail(*args: Any) -> None:
                raise RuntimeError("trouble of its own")

            patch.setattr(segment_writer, "pack_toc", fail)
            with pytest.raises(RuntimeError, match="of its own"):
                commit(path, {"t": matrix()})
        assert cnrfmt.open(path).digest == before
        assert cnrfmt.verify(path).findings == []
    assert cnrfmt.append(path, {"t": Rows([1], matrix(1))}) == 1


def test_saving_over_the_file_that_is_mapped(tmp_path: Path) -> None:
    path = tmp_path / "model.cnr"
    values = np.random.default_rng(0).normal(size=(5000, 16)).astype(F32)
    cnrfmt.save(path, {"t": values})
    with cnrfmt.open(path) as ck:
        segment = next(iter(ck.view.segments.values()))
        mapped = segment.section(0).view(F32).reshape(values.shape)
        cnrfmt.save(path, {"t": mapped})
        assert (mapped == values).all()
        refreshed = ck.refresh()
        assert refreshed is not None
        assert (refreshed.before, refreshed.version) == (0, 1)
        assert (ck["t"][...] == values).all()


def test_a_second_writer_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "model.cnr"
    cnrfmt.save(path, {"t": matrix()})
    with begin(str(path), replace=False):
        with ThreadPoolExecutor(1) as pool:
            error = pool.submit(cnrfmt.append, path, {"t": Rows([1], matrix(1))}).exception()
        assert isinstance(error, cnrfmt.LockedError)
        assert str(path) in str(error)
    assert cnrfmt.append(path, {"t": Rows([1], matrix(1))}) == 1


def test_states_form_a_path(path: Path) -> None:
    cnrfmt.save(path, {"t": matrix()})
    cnrfmt.append(path, {"t": Rows([1], matrix(1))})
    cnrfmt.append(path, {}, metadata={"x": 1})
    cnrfmt.append(path, {"t": Rows([2], matrix(1))})
    states = [cnrfmt.open(path, version=v).manifest.state for v in range(4)]
    assert states[1] == states[2]
    assert len(set(states)) == 3
    chain = cnrfmt.open(path).manifest.chain
    assert [e.from_state for e in chain] == [None, *[e.to_state for e in chain[:-1]]]


def test_a_container_holds_a_bounded_number_of_versions(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_VERSIONS", 3)
    cnrfmt.save(path, {"t": matrix()})
    for version in range(1, 4):
        cnrfmt.append(path, {}, metadata={"version": version})
    if path.suffix:
        # A manifest that nothing names any more would be neither a span nor zero.
        refused(path, "save a new baseline", cnrfmt.append, {}, metadata={})
    else:
        cnrfmt.append(path, {}, metadata={})
        with cnrfmt.open(path) as ck:
            assert ck.versions == (1, 2, 3, 4)
            assert ck["t"].changed(since=0).exact is False
        assert cnrfmt.verify(path).sound


@pytest.mark.parametrize(("dtype", "fill"), [(np.int32, 0.5), (F32, 1e300), (np.uint8, -1), (F32, "x")])
def test_a_fill_that_would_be_changed_is_refused(path: Path, dtype: Any, fill: Any) -> None:
    refused(path, "is no", cnrfmt.save, {"t": TableData(matrix(3, 2, dtype), fill=fill)})


def test_a_step_may_be_a_number_of_numpy(path: Path) -> None:
    cnrfmt.save(path, {"t": TableData(matrix(), fill=np.nan)}, step=np.int64(5))  # type: ignore[arg-type]
    with cnrfmt.open(path) as ck:
        assert ck.step == 5
