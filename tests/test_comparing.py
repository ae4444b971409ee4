"""`diff`: the rows that changed and by how much, held against a plain comparison of plain dictionaries."""

from __future__ import annotations

import math
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cnrfmt
from cnrfmt import Deleted, Dropped, Quantize, Rows, TableData
from cnrfmt.comparing import ColumnComparison, SchemaDifference, TableComparison
from cnrfmt.comparing import tables as comparing_tables
from cnrfmt.comparing.errors import Spread
from cnrfmt.testing import Model, ModelTable, operations
from tests.cli.support import a_segment, damage

F32 = np.float32


def matrix(rows: int = 50, dim: int = 6, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(rows, dim)).astype(F32)


def plain_error(a: Any, b: Any) -> float:
    """The norm of b - a over that of a, an element after the other."""
    if a.dtype.kind in "iu":
        change = [float(int(y) - int(x)) for x, y in zip(a, b, strict=True)]
    else:
        with np.errstate(all="ignore"):
            change = [float(np.float64(y) - np.float64(x)) for x, y in zip(a, b, strict=True)]
    if not any(change):
        return 0.0
    norms = [np.sqrt(sum(np.longdouble(x) ** 2 for x in row)) for row in (change, map(float, a))]
    with np.errstate(all="ignore"):
        error = float(norms[0] / norms[1])
    return error if math.isfinite(error) else math.inf


def plain_errors(a: ModelTable, b: ModelTable, column: str, ids: list[int]) -> dict[int, float]:
    """The errors of the rows whose bits differ."""
    found = {}
    for row in ids:
        first, second = (t.array(column, [row]).reshape(-1) for t in (a, b))
        if first.dtype == second.dtype:
            same = first.tobytes() == second.tobytes()
        else:
            wide = [np.asarray(x, np.float64) for x in (first, second)]
            same = np.array_equal(*wide, equal_nan=True)
        if not same:
            found[row] = plain_error(first, second)
    return found


def check_column(found: ColumnComparison, errors: dict[int, float], rows: int, worst: int) -> None:
    finite = sorted(e for e in errors.values() if math.isfinite(e))
    assert (found.rows, found.changed, found.infinite) == (rows, len(errors), len(errors) - len(finite))
    ranked = sorted(errors.items(), key=lambda item: (-item[1], item[0]))
    assert [x.error for x in found.worst] == pytest.approx([error for _, error in ranked[:worst]], rel=1e-6)
    for row, error in found.worst:
        assert error == pytest.approx(errors[row], rel=1e-6)
    if not finite:
        assert (found.mean, found.median, found.p99, found.largest) == (None,) * 4
        return
    assert found.largest == pytest.approx(finite[-1], rel=1e-6)
    assert found.mean == pytest.approx(sum(e / len(finite) for e in finite), rel=1e-6, abs=1e-300)
    for share, quantile in ((0.5, found.median), (0.99, found.p99)):
        expected = finite[max(0, math.ceil(share * len(finite)) - 1)]
        assert quantile == pytest.approx(expected, rel=0.01, abs=1e-300)


def comparable(a: ModelTable, b: ModelTable, column: str) -> bool:
    if column not in b.dtypes or (a.rows is None) != (b.rows is None):
        return False
    (first, per_row), (second, also) = a.dtypes[column], b.dtypes[column]
    both_floating = first.kind not in "iu" and second.kind not in "iu"
    return (1 if per_row else a.dim) == (1 if also else b.dim) and (first == second or both_floating)


def check_tables(found: cnrfmt.Comparison, a: dict[str, ModelTable], b: dict[str, ModelTable], worst: int) -> None:
    assert found.only_a == [name for name in a if name not in b]
    assert found.only_b == [name for name in b if name not in a]
    assert [t.name for t in found.tables] == [name for name in a if name in b]
    for table in found.tables:
        first, second = a[table.name], b[table.name]
        assert (table.rows_a, table.rows_b, table.keyed) == (len(first.ids), len(second.ids), second.rows is None)
        if (first.rows is None) != (second.rows is None):
            assert table.columns == ()
            assert "kind" in [d.what for d in table.schema]
            continue
        both = sorted({*first.ids} & {*second.ids})
        for ids, count, examples in (
            (first.ids, table.only_a, table.examples_a),
            (second.ids, table.only_b, table.examples_b),
        ):
            expected = [row for row in ids if row not in set(both)]
            assert (count, list(examples)) == (len(expected), expected[:worst])
        assert {c.name for c in table.columns} == {c for c in first.dtypes if comparable(first, second, c)}
        for column in table.columns:
            check_column(column, plain_errors(first, second, column.name, both), len(both), worst)


@given(commits=operations(), data=st.data(), chunk=st.sampled_from([1, 40, 1 << 20]), threads=st.sampled_from([1, 2]))
def test_any_two_versions(commits: list[Any], data: st.DataObject, chunk: int, threads: int) -> None:
    """Read where rows were written between the two, or everywhere where that can't be told."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparing_tables, "_CHUNK", chunk)
        path, model = Path(folder) / "run", Model()
        for version, operation in enumerate(commits):
            commit = cnrfmt.save if operation.kind == "save" else cnrfmt.append
            commit(path, operation.tables, threads=1)
            (model.save if operation.kind == "save" else model.append)(version, operation.tables)
        a, b = (data.draw(st.integers(0, len(commits) - 1)) for _ in range(2))
        worst = data.draw(st.integers(0, 4))
        found = cnrfmt.diff(path, path, version_a=a, version_b=b, worst=worst, threads=threads)
        check_tables(found, model.versions[a], model.versions[b], worst)
        if a == b:
            assert found.same
            assert all(table.looked_at == 0 for table in found.tables)


@given(
    errors=st.lists(st.one_of(st.floats(0, allow_infinity=True), st.sampled_from([0.0, 1.0, math.inf])), max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    worst=st.integers(0, 5),
)
def test_however_rows_are_cut_into_chunks(errors: list[float], cuts: list[int], worst: int) -> None:
    values, ids = np.array(errors, np.float64), np.arange(len(errors), dtype=np.int64) * 3
    whole, pieces = Spread(worst), Spread(worst)
    whole.add(ids, values)
    edges = sorted({0, len(errors), *(min(c, len(errors)) for c in cuts)})
    for start, stop in pairwise(edges):
        pieces.add(ids[start:stop], values[start:stop])
    one, many = whole.column("c", 99), pieces.column("c", 99)
    assert one.worst == many.worst
    assert (one.changed, one.infinite, one.median, one.p99, one.largest) == (
        many.changed,
        many.infinite,
        many.median,
        many.p99,
        many.largest,
    )
    assert (one.mean is None) == (many.mean is None)
    assert (one.mean or 0.0) == pytest.approx(many.mean or 0.0, rel=1e-12, abs=1e-300)


def compared(a: Any, b: Any, tmp_path: Path, **options: Any) -> TableComparison:
    """The comparison of a table of two containers."""
    for name, table in (("a", a), ("b", b)):
        cnrfmt.save(tmp_path / f"{name}.cnr", {"t": table})
    (found,) = cnrfmt.diff(tmp_path / "a.cnr", tmp_path / "b.cnr", **options).tables
    return found


def test_a_row_has_changed_where_a_bit_differs(tmp_path: Path) -> None:
    a = np.array([[np.nan, 1], [0.0, 1], [np.inf, 1], [3, 4], [0, 0], [5, 6]], F32)
    b = a.copy()
    b[1, 0], b[2, 1], b[3], b[4, 0] = -0.0, 2, (3, 9), 1
    b[0, 0] = a[0, 0]
    (column,) = compared(a, b, tmp_path).columns
    assert (column.changed, column.infinite) == (4, 2)
    assert [tuple(x) for x in column.worst] == [(2, math.inf), (4, math.inf), (3, 1.0), (1, 0.0)]
    assert (column.mean, column.largest) == (0.5, 1.0)
    other = a.copy()
    other.view(np.uint32)[0, 0] ^= 1
    cnrfmt.save(tmp_path / "c.cnr", {"t": other})
    (column,) = cnrfmt.diff(tmp_path / "a.cnr", tmp_path / "c.cnr").tables[0].columns
    assert [tuple(x) for x in column.worst] == [(0, math.inf)]


def test_floating_point_numbers_of_any_width_are_compared(tmp_path: Path) -> None:
    wide = np.array([[1, 2], [1.001, 2], [np.nan, 2], [-0.0, 3]])
    for narrow in (F32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2):
        table = compared(wide, wide.astype(narrow), tmp_path)
        (column,) = table.columns
        assert column.changed == 1
        assert column.worst[0].row == 1
        expected = abs(float(wide[1, 0].astype(narrow)) - 1.001) / math.hypot(1.001, 2)
        assert column.largest == pytest.approx(expected, rel=1e-4)
        name = "float32" if narrow is F32 else np.dtype(narrow).name
        assert table.schema == (SchemaDifference("dtype", "weight", "float64", name),)
        assert not table.same


def test_integers_are_compared_exactly(tmp_path: Path) -> None:
    a = np.array([[2**62, 1], [-(2**63), 5], [7, 7]])
    b = a + np.array([[1, 0], [0, 0], [0, 0]])
    b[1, 0] = 2**63 - 1
    (column,) = compared(a, b, tmp_path).columns
    assert column.changed == 2
    assert [x.row for x in column.worst] == [1, 0]
    assert [x.error for x in column.worst] == pytest.approx([2.0, 2.0**-62])
    # Integers of another type aren't.
    table = compared(a, a.astype(np.uint64), tmp_path)
    assert table.columns == ()
    assert [d.what for d in table.schema] == ["dtype"]


def test_what_differs_in_schemas(tmp_path: Path) -> None:
    values = matrix(4, 2)
    one = TableData(values, columns={"m": values, "g": values[:, 0], "x": values}, fill={"weight": 1.0})
    other = TableData(values, columns={"m": values[:, 0], "g": values[:, 0], "y": values[:, 0].astype(np.int8)})
    found = compared(one, other, tmp_path)
    assert found.schema == (
        SchemaDifference("fill", "weight", "0000803f", "00000000"),
        SchemaDifference("values per row", "m", 2, 1),
        SchemaDifference("column", "x", "float32", None),
        SchemaDifference("column", "y", None, "int8"),
    )
    assert [c.name for c in found.columns] == ["weight", "g"]
    assert compared(values, matrix(4, 3), tmp_path).schema == (SchemaDifference("dim", None, 2, 3),)
    kinds = compared(values, TableData(values, keys=[5, 1, 2, 3]), tmp_path)
    assert kinds.schema == (SchemaDifference("kind", None, "dense", "keyed"),)
    assert (kinds.only_a, kinds.only_b, kinds.examples_b) == (4, 4, (1, 2, 3, 5))
    alone = compared(one, other, tmp_path, columns=["g"])
    assert (alone.schema, [c.name for c in alone.columns], alone.same) == ((), ["g"], True)


def test_counts_of_checkpoints_are_compared_where_they_are_asked_for(tmp_path: Path) -> None:
    rows, sums = np.full((20, 4), 0.5, np.float32), np.ones(20, np.float32)
    tables = {"t": TableData(rows, columns={"accumulator": sums})}
    with cnrfmt.CheckpointManager(tmp_path / "run", encoding=cnrfmt.Grid(step=0.25)) as manager:
        for step in range(2):
            manager.save(step, tables).wait()
            rows[:3] += 1
            manager.track("t", range(3))
    with cnrfmt.open(tmp_path / "run") as ck:
        cnrfmt.save(tmp_path / "copy.cnr", {"t": TableData(ck["t"][...], columns={"accumulator": sums})})

    def compared(*others: Path, **options: Any) -> dict[str, int]:
        (table,) = cnrfmt.diff(tmp_path / "run", *others, **options).tables
        return {c.name: c.changed for c in table.columns}

    assert compared() == {"weight": 3, "accumulator": 0}
    assert compared(columns=["cnrfmt.*"]) == {"cnrfmt.checkpoints": 3}
    assert compared(columns=["*"]) == {"weight": 3, "accumulator": 0, "cnrfmt.checkpoints": 3}
    found = cnrfmt.diff(tmp_path / "run", tmp_path / "copy.cnr", tables=["t"], columns=["weight"])
    assert found.same
    (table,) = cnrfmt.diff(tmp_path / "run", tmp_path / "copy.cnr").tables
    assert table.schema == ()
    (table,) = cnrfmt.diff(tmp_path / "run", tmp_path / "copy.cnr", columns=["*"]).tables
    assert table.schema == (SchemaDifference("column", "cnrfmt.checkpoints", "float32", None),)


def test_the_dense_state_and_the_metadata(tmp_path: Path) -> None:
    array = np.arange(6, dtype=F32)
    same = {"same": array, "nan": np.array([np.nan]), "list": [1, {"a": 2}], "empty": b""}
    a = same | {"w": array, "c": np.array([3 + 4j]), "zero": np.zeros(3), "shape": array, "json": 1, "kind": b"1"}
    b = same | {"w": array * 2, "c": np.array([3 + 9j]), "zero": np.ones(3), "shape": array.reshape(2, 3)}
    b |= {"json": True, "kind": "1", "new": 5}
    del a["empty"]
    cnrfmt.save(tmp_path / "a.cnr", {"t": matrix()}, dense=a, metadata={"run": 1, "k": [1]}, step=1)
    cnrfmt.save(tmp_path / "b.cnr", {"t": matrix()}, dense=b, metadata={"run": 2, "k": [1], "n": None}, step=2)
    found = cnrfmt.diff(tmp_path / "a.cnr", tmp_path / "b.cnr")
    assert found.dense is not None
    assert {d.name: (d.a, d.b, d.error) for d in found.dense} == {
        "w": ("float32, 6", "float32, 6", 1.0),
        "c": ("complex128, 1", "complex128, 1", 1.0),
        "zero": ("float64, 3", "float64, 3", None),
        "shape": ("float32, 6", "float32, 2 x 3", None),
        "json": ("JSON", "JSON", None),
        "kind": ("bytes", "JSON", None),
        "empty": (None, "bytes", None),
        "new": (None, "JSON", None),
    }
    assert found.metadata == ["run", "n"]
    assert all(table.same for table in found.tables)
    assert not found.same
    chosen = cnrfmt.diff(tmp_path / "a.cnr", tmp_path / "b.cnr", tables=["t"])
    assert (chosen.dense, chosen.metadata, chosen.same) == (None, None, True)


def test_a_quantised_copy_errs_as_its_part_says(tmp_path: Path) -> None:
    weight = matrix(300, 16)
    cnrfmt.save(tmp_path / "a", {"t": weight})
    cnrfmt.save(tmp_path / "b.cnr", {"t": weight}, quantize=Quantize(bits=4))
    with cnrfmt.open(tmp_path / "b.cnr") as ck:
        (part,) = (p for s in ck.view.segments.values() for t in s.toc.tables for p in t.parts)
    (column,) = cnrfmt.diff(tmp_path / "a", tmp_path / "b.cnr").tables[0].columns
    assert column.mean == pytest.approx(part.errors.mean)
    assert column.largest == pytest.approx(part.errors.worst)


@pytest.mark.parametrize("name", ["run.cnr", "run"])
def test_rows_that_nothing_wrote_between_two_versions_arent_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    values = matrix(4000, 64)
    cnrfmt.save(path, {"t": values})
    ids = np.array([3000, 3999])
    cnrfmt.append(path, {"t": Rows(ids, values[ids] * 2)})
    cnrfmt.append(path, {"t": Rows([3000], values[[3000]])})
    damage(*a_segment(path))
    for first, second, expected in ((0, 1, [3000, 3999]), (1, 0, [3000, 3999]), (1, 2, [3000]), (0, 2, [3999])):
        (table,) = cnrfmt.diff(path, version_a=first, version_b=second).tables
        assert sorted(x.row for x in table.columns[0].worst) == expected
        assert table.looked_at == (1 if (first, second) == (1, 2) else 2)
    cnrfmt.save(tmp_path / "other.cnr", {"t": values})
    with pytest.raises(cnrfmt.DamagedError):
        cnrfmt.diff(path, tmp_path / "other.cnr")


def test_without_versions_the_newest_is_compared_with_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "run"
    values = matrix()
    cnrfmt.save(path, {"t": values})
    with pytest.raises(cnrfmt.VersionNotFoundError, match="no version before 0"):
        cnrfmt.diff(path)
    cnrfmt.append(path, {"t": Rows([1], values[[2]])})
    cnrfmt.append(path, {"t": Rows([5], values[[2]]), "u": values[:2]})
    cnrfmt.append(path, {"u": Dropped()})
    found = cnrfmt.diff(path)
    assert (found.a.version, found.b.version, found.only_a, found.tables[0].same) == (2, 3, ["u"], True)
    found = cnrfmt.diff(path, version_b=2)
    assert (found.a.version, found.b.version, found.only_b) == (1, 2, ["u"])
    assert [x.row for x in found.tables[0].columns[0].worst] == [5]
    found = cnrfmt.diff(path, version_a=0)
    assert (found.a.version, found.b.version) == (0, 3)
    assert found.tables[0].columns[0].changed == 2
    # A copy is another path of the same history.
    assert not cnrfmt.diff(path, path, version_a=0, version_b=0).tables[0].looked_at


def test_keys(tmp_path: Path) -> None:
    path = tmp_path / "run.cnr"
    values = matrix(5)
    cnrfmt.save(path, {"t": TableData(values, keys=[-9, 4, 7, 2**62, 11])})
    cnrfmt.append(path, {"t": (Rows([4, 5], values[:2]), Deleted([7]))})
    (table,) = cnrfmt.diff(path).tables
    assert (table.keyed, table.only_a, table.examples_a, table.only_b, table.examples_b) == (True, 1, (7,), 1, (5,))
    assert (table.columns[0].rows, table.columns[0].changed, table.looked_at) == (4, 1, 1)
    assert table.columns[0].worst[0].row == 4
    said = table.to_json()
    assert (said["columns"][0]["worst"][0]["row"], said["examples_a"], said["examples_b"]) == ("4", ["7"], ["5"])


def test_wrong_calls(tmp_path: Path) -> None:
    path = tmp_path / "run.cnr"
    cnrfmt.save(path, {"user": matrix()})
    cnrfmt.append(path, {"item": matrix()})
    for options, message in (
        ({"tables": ["usr*"]}, "no table matches 'usr\\*'; what could be tables: 'user', 'item'"),
        ({"tables": "user"}, r"use tables=\['user'\]"),
        ({"columns": ["accumulator"]}, "no column matches 'accumulator'; what could be columns: 'weight'"),
        ({"worst": -1}, "worst is an integer"),
        ({"threads": 0}, "threads must be"),
    ):
        with pytest.raises(cnrfmt.UsageError, match=message):
            cnrfmt.diff(path, **options)


def test_progress_ends_where_it_should(tmp_path: Path) -> None:
    path = tmp_path / "run.cnr"
    values = matrix(3000, 64)
    cnrfmt.save(path, {"t": TableData(values, columns={"g": values[:, 0]})})
    cnrfmt.append(path, {"t": Rows([1], values[[2]])})
    for other in (None, path):
        seen: list[tuple[int, int]] = []
        cnrfmt.diff(path, other, version_a=0, progress=lambda done, total, seen=seen: seen.append((done, total)))
        assert seen[-1] == (3000 * 65 * 4, 3000 * 65 * 4)
        assert seen == sorted(seen)
