"""Merging parts of integers: sums are exact, whatever is between them, and what is read stays as it was."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cnrfmt
from cnrfmt import DamagedError, Quantize, TableData, UsageError
from cnrfmt.arrays import Ids
from cnrfmt.checkpointing.compacting.compaction import compact, merge
from cnrfmt.checkpointing.compacting.integer_columns import IntegerColumn
from cnrfmt.commits import attempt
from cnrfmt.format.encoding import CastLayout, GridLayout, IntegerLayout, LogLayout, RawLayout
from cnrfmt.format.schema import TableSchema
from cnrfmt.format.scheme import Step
from cnrfmt.part_integers import PartIntegers
from cnrfmt.plan import plan_baseline
from cnrfmt.run_record import CheckpointRecord, RunRecord, metadata_with, record_of
from cnrfmt.table_writes import RowIds, SliceSections, TableWrite
from cnrfmt.verification import contents
from tests.checkpointing.compaction_support import check_sound, read, slots
from tests.checkpointing.integer_chains import Array, GivenSlice, IntegerChain, commit, part_of
from tests.checkpointing.test_compaction import any_range, head_of, parts_of


@settings(max_examples=6)
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_any_chain_reads_the_same(seed: int, values: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        # Sums are made of few rows at a time.
        patch.setattr("cnrfmt.checkpointing.compacting.merged_slices._VALUES", values)
        path = Path(folder) / "model"
        chain = IntegerChain(path, seed)
        chain.check()
        for _ in range(int(chain.random.integers(1, 7))):
            chain.commit()
            chain.check()
        check_sound(path)
        while len(head_of(path).chain) > 1 and chain.random.integers(3):
            want = read(path)
            head = head_of(path)
            new = merge(path, *any_range(len(head.chain), chain.random), expect=head, threads=2)
            assert (new.version, new.state) == (head.version + 1, head.state)
            assert read(path) == want
            check_sound(path)
            chain.commit()
            chain.check()
        want = read(path)
        compact(path)
        assert len(head_of(path).chain) == 1
        assert read(path) == want
        check_sound(path)
        chain.commit()
        chain.check()
        other = Path(folder) / "other.cnr"
        compact(path, other)
        assert read(other) == read(path)
        check_sound(other)


def table(dim: int = 4, rows: int | None = 40, fill: float = 0.0) -> TableSchema:
    """A table with weights and a column of one value per row."""
    weight, sums = np.zeros((rows or 0, dim), np.float32), np.zeros(rows or 0, np.float32)
    keys = np.empty(0, np.int64) if rows is None else None
    data = TableData(weight, columns={"sum": sums}, keys=keys, fill={"weight": fill, "sum": 0.0})
    return plan_baseline({"user": data}, None).tables[0]


def ids_of(*ids: int) -> Ids:
    return np.array(ids, np.int64)


def write(schema: TableSchema, *parts: tuple[Ids, dict[str, tuple[IntegerLayout, Array]]]) -> TableWrite:
    """Rows, each with codes by column, in slices."""
    made = []
    for ids, columns in parts:
        encoded = []
        for name, (layout, codes) in columns.items():
            column = schema.column(name)
            assert column is not None
            encoded.append(part_of(column, layout, codes))
        made.append(GivenSlice(SliceSections(RowIds(len(ids), ids), tuple(encoded))))
    return TableWrite(schema, slices=tuple(made))


def weights(schema: TableSchema, ids: Ids, codes: Any, layout: IntegerLayout) -> TableWrite:
    return write(schema, (ids, {"weight": (layout, np.broadcast_to(codes, (len(ids), schema.dim)))}))


ABSOLUTE, RESIDUAL = GridLayout("absolute", -10, "packed", group=3), GridLayout("residual", -10, "packed", group=5)
LOG = LogLayout(12, 0x3A000000, 15, "residual", "rans", 4)


def grown(path: Path, *deltas: Ids, schema: TableSchema | None = None) -> TableSchema:
    """All rows of a table as 8, 16, 24, ..., and deltas that add 4 to some rows, 2 to others, and so on."""
    schema = schema or table()
    assert schema.rows is not None
    every = np.arange(schema.rows, dtype=np.int64)
    commit(path, [weights(schema, every, 8 * (every[:, None] + 1), ABSOLUTE)])
    for number, ids in enumerate(deltas):
        commit(path, [weights(schema, ids, 4 >> number, RESIDUAL)])
    return schema


def test_residual_parts_become_one(tmp_path: Path) -> None:
    """With the rows of all of them; the exponent of each row is as great as its sum allows."""
    path = tmp_path / "model"
    grown(path, ids_of(3, 5, 9), ids_of(5, 30), ids_of(5, 9))
    want = cnrfmt.load(path)["user"]
    merge(path, 1, 4, expect=head_of(path))
    (part,) = parts_of(path)["user"]
    assert (part.layout, part.scheme.step) == (replace(RESIDUAL, payload="rans"), Step(0.01, 1.0, None))
    with cnrfmt.open(path) as ck:
        segment = ck.view.segments[ck.manifest.chain[1].segment]
        (entry,) = segment.toc.tables
        assert segment.indexes.ids(entry.row_sets[part.rows]).tolist() == [3, 5, 9, 30]
        exponents, codes = np.empty(4, np.uint8), np.empty((4, 4), np.int32)
        opened = PartIntegers(segment, part, 4).opened
        data = segment.section(part.section)
        opened.decode(data, opened.span(0, 4)[0], 0, codes, exponents)
    assert codes[:, 0].tolist() == [4, 7, 5, 2]
    assert exponents.tolist() == [2, 0, 0, 1]
    assert np.array_equal(cnrfmt.load(path)["user"], want)
    check_sound(path)


def test_a_residual_part_on_an_absolute_one_is_absolute(tmp_path: Path) -> None:
    """And of a row that is absolute twice, nothing older counts."""
    path = tmp_path / "model"
    schema = grown(path, ids_of(3, 5))
    commit(path, [weights(schema, ids_of(5, 6), -100, ABSOLUTE)])
    commit(path, [weights(schema, ids_of(3, 5, 7), 1, RESIDUAL)])
    want = cnrfmt.load(path)["user"]
    assert (want[:, 0] * 1024).astype(int)[[3, 5, 6, 7]].tolist() == [37, -99, -100, 65]
    before = read(path)
    merge(path, 1, 4, expect=head_of(path))
    # Rows 3 and 7 still stand on the baseline, rows 5 and 6 don't.
    assert rows_by_layout(path) == {"residual": [3, 7], "absolute": [5, 6]}
    assert read(path) == before
    compact(path)
    (part,) = parts_of(path)["user"]
    assert part.layout == replace(ABSOLUTE, payload="rans", group=3)
    assert rows_by_layout(path) == {"absolute": list(range(40))}
    assert read(path) == before
    check_sound(path)


def rows_by_layout(path: Path) -> dict[str, list[int]]:
    """The rows of each kind of parts in the newest segment."""
    with cnrfmt.open(path) as ck:
        segment = ck.view.segments[ck.manifest.chain[-1].segment]
        (entry,) = segment.toc.tables
        return {p.layout.kind: contents.ids_of(segment, entry.row_sets[p.rows]).tolist() for p in entry.parts}


def test_columns_of_the_same_rows_share_row_indexes(tmp_path: Path) -> None:
    path = tmp_path / "model"
    schema = table()
    every = np.arange(40, dtype=np.int64)
    both = {"weight": (ABSOLUTE, np.ones((40, 4))), "sum": (replace(LOG, kind="absolute"), np.full((40, 1), 9))}
    commit(path, [write(schema, (every, both))])
    for ids in (ids_of(1, 7, 33), ids_of(2, 7, 30)):
        both = {"weight": (RESIDUAL, np.ones((3, 4))), "sum": (LOG, np.full((3, 1), -2))}
        commit(path, [write(schema, (ids, both))])
    before = read(path)
    merge(path, 1, 3, expect=head_of(path))
    with cnrfmt.open(path) as ck:
        (entry,) = ck.view.segments[ck.manifest.chain[1].segment].toc.tables
    assert [row_set.count for row_set in entry.row_sets] == [5]
    assert [part.layout for part in entry.parts] == [replace(RESIDUAL, payload="rans"), LOG]
    assert read(path) == before
    check_sound(path)


def squares(fill: float = 0.0, rows: int = 40) -> TableSchema:
    """A table with weights and a column of as many values per row."""
    zeros = np.zeros((rows, 4), np.float32)
    data = TableData(zeros, columns={"squares": zeros}, fill={"weight": 0.0, "squares": fill})
    return plan_baseline({"user": data}, None).tables[0]


def squared(schema: TableSchema, ids: Ids, codes: Any, layout: IntegerLayout) -> TableWrite:
    return write(schema, (ids, {"squares": (layout, np.broadcast_to(codes, (len(ids), schema.dim)))}))


def test_codes_of_several_values_per_row_become_one_part(tmp_path: Path) -> None:
    """Of each element its own sum, whatever the groups and the ranges of elements are that it comes from."""
    path, schema = tmp_path / "model", squares()
    every, absolute = np.arange(40, dtype=np.int64), replace(LOG, kind="absolute", group=65536 // 4)
    commit(path, [squared(schema, every, 100 + np.arange(160).reshape(40, 4), absolute)])
    commit(path, [squared(schema, ids_of(3, 5, 9), [1, -2, 3, -100], LOG)])
    column = schema.column("squares")
    assert column is not None
    halves = [((0, 1), [[7], [8]]), ((1, 4), [[-1, 0, 0], [0, 0, 4095 - 223]])]
    parts = tuple(part_of(column, replace(LOG, group=2), np.array(c), elements=elements) for elements, c in halves)
    commit(path, [TableWrite(schema, slices=(GivenSlice(SliceSections(RowIds(2, ids_of(0, 30)), parts)),))])
    want = 100 + np.arange(160).reshape(40, 4)
    want[[3, 5, 9]] += [1, -2, 3, -100]
    want[[0, 30]] += [[7, -1, 0, 0], [8, 0, 0, 4095 - 223]]
    assert want.max() == 4095
    before = read(path)
    merge(path, 1, 3, expect=head_of(path))
    assert {part.elements for part in parts_of(path)["user"]} == {(0, 1), (1, 4)}
    assert {part.layout for part in parts_of(path)["user"]} == {LOG}
    assert read(path) == before
    check_sound(path)
    compact(path)
    with cnrfmt.open(path) as ck:
        found, known = ck["user"].read_integers(every, "squares", LOG.grid)
    assert known.all()
    assert found.tolist() == want.tolist()
    assert read(path) == before
    check_sound(path)


@pytest.mark.parametrize("element", [0, 3])
def test_a_code_of_one_element_is_out_of_range(element: int, tmp_path: Path) -> None:
    path, schema = tmp_path / "model", squares()
    commit(path, [squared(schema, np.arange(40, dtype=np.int64), 4000, replace(LOG, kind="absolute"))])
    for _ in range(2):
        commit(path, [squared(schema, ids_of(7), np.where(np.arange(4) == element, 48, 1), LOG)])
    with pytest.raises(DamagedError, match=r"column 'squares', row 7: damaged \(grid-range\)"):
        merge(path, 0, 3, expect=head_of(path))
    with cnrfmt.open(path) as ck, pytest.raises(DamagedError, match=r"row 7: damaged \(grid-range\)"):
        ck["user"].read(column="squares")
    assert len(head_of(path).chain) == 3


def code_value(code: int) -> float:
    """What a code of LOG means."""
    return float(np.uint32(LOG.base + ((code - 1) << LOG.shift)).view(np.float32))


@pytest.mark.parametrize(("fill", "exact"), [(0.0, 0), (code_value(9), 0), (-0.0, 4), (1e-30, 4), (np.nan, 4)])
def test_rows_of_codes_that_were_never_written(fill: float, exact: int, tmp_path: Path) -> None:
    path, schema = tmp_path / "model", squares(fill)
    commit(path, [squared(schema, np.arange(40, dtype=np.int64), 77, replace(LOG, kind="absolute"))])
    commit(path, [squared(schema, ids_of(3), [1, 2, 3, 4], LOG)])
    commit(path, [TableWrite(replace(schema, rows=44))])
    before = read(path)
    compact(path)
    parts = [part for part in parts_of(path)["user"] if part.column == "squares"]
    assert [part.layout for part in parts] == [replace(LOG, kind="absolute"), RawLayout("float32")][: 1 + (exact > 0)]
    with cnrfmt.open(path) as ck:
        (entry,) = ck.view.segments[ck.manifest.chain[0].segment].toc.tables
        assert ck["user"].read(slice(40, 44), column="squares").tobytes() == np.full((4, 4), fill, "f4").tobytes()
    assert [entry.row_sets[part.rows].count for part in parts] == [44, exact][: len(parts)]
    assert read(path) == before
    check_sound(path)


def test_codes_that_are_all_absolute_are_copied(tmp_path: Path) -> None:
    """As they always were: logarithmic codes of one length are encoded anew only where something is added to them."""
    path = tmp_path / "model"
    values = np.arange(1, 41, dtype=np.float32)
    data = TableData(np.ones((40, 4), np.float32), columns={"sum": values})
    cnrfmt.save(path, {"user": data}, quantize=Quantize(8))
    with cnrfmt.open(path) as ck:
        schema = ck["user"].schema
        layout = next(p.layout for s in ck.view.segments.values() for p in s.toc.tables[0].parts if p.column == "sum")
    assert isinstance(layout, LogLayout)
    commit(path, [write(schema, (ids_of(3), {"sum": (layout, np.full((1, 1), 77))}))])
    old = slots(path)
    merge(path, 0, 2, expect=head_of(path))
    assert slots(path) == old
    residual = replace(layout, kind="residual", payload="rans", group=4)
    commit(path, [write(schema, (ids_of(3), {"sum": (residual, np.full((1, 1), 5))}))])
    before = read(path)
    compact(path)
    assert {p.column: p.layout for p in parts_of(path)["user"]}["sum"] == replace(layout, payload="rans", group=8192)
    assert read(path) == before
    check_sound(path)


@pytest.mark.parametrize(("fill", "exact"), [(0.0, 0), (-3.5, 0), (0.3, 4), (-0.0, 4), (20000.0, 4)])
def test_rows_that_were_never_written(fill: float, exact: int, tmp_path: Path) -> None:
    """A baseline has all rows: as the integer that reads as the fill value, or exactly."""
    path = tmp_path / "model"
    schema = grown(path, ids_of(3), schema=table(rows=40, fill=fill))
    commit(path, [TableWrite(replace(schema, rows=44))])
    before = read(path)
    compact(path)
    (main, *exceptions) = parts_of(path)["user"]
    assert (main.layout.kind, len(exceptions)) == ("absolute", int(exact > 0))
    with cnrfmt.open(path) as ck:
        (entry,) = ck.view.segments[ck.manifest.chain[0].segment].toc.tables
    assert [entry.row_sets[p.rows].count for p in entry.parts] == [44, exact][: len(entry.parts)]
    assert read(path) == before
    check_sound(path)


def test_residual_rows_without_a_base(tmp_path: Path) -> None:
    """A merge doesn't hide the damage, and commits nothing."""
    path = tmp_path / "keyed"
    schema = table(rows=None)
    finer, ones = replace(ABSOLUTE, floor=-9), np.ones((1, 4))
    first = (ids_of(1, 2, 3), {"weight": (ABSOLUTE, np.ones((3, 4)))})
    commit(path, [write(schema, first, (ids_of(4), {"weight": (finer, ones)}))])
    commit(path, [weights(schema, ids_of(1, 9), 1, RESIDUAL)])
    commit(path, [replace(weights(schema, ids_of(2), 1, RESIDUAL), deleted=ids_of(3))])
    commit(path, [weights(schema, ids_of(3), 1, RESIDUAL)])
    commit(path, [weights(schema, ids_of(2), 1, replace(RESIDUAL, floor=-9))])
    version = head_of(path).version
    for start, stop, found in ((0, 2, "row 9"), (2, 4, "tombstones"), (0, 5, ""), (2, 5, "")):
        with pytest.raises(DamagedError, match="residual-base") as caught:
            merge(path, start, stop, expect=head_of(path))
        assert found in str(caught.value)
    assert head_of(path).version == version
    assert len(list((path / "segments").iterdir())) == 5


@pytest.mark.parametrize(("first", "last"), [(0, 3), (1, 4)])
def test_sums_that_are_out_of_range(first: int, last: int, tmp_path: Path) -> None:
    path = tmp_path / "model"
    schema = table()
    every, most = np.arange(40, dtype=np.int64), (1 << 24) - 1
    commit(path, [weights(schema, every, most, ABSOLUTE)])
    for _ in range(3):
        commit(path, [weights(schema, ids_of(7), most, RESIDUAL)])
    with pytest.raises(DamagedError, match=r"column 'weight', row 7: damaged \(grid-range\)"):
        merge(path, first, last, expect=head_of(path))
    assert len(head_of(path).chain) == 4


def test_the_bytes_depend_on_neither_threads_nor_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model"
    chain = IntegerChain(path, 12)
    for _ in range(5):
        chain.commit()
    found = []
    for number, (threads, block, window) in enumerate([(1, 64 << 10, 1 << 18), (3, 40, 7), (2, 10, 16)]):
        monkeypatch.setattr("cnrfmt.part_integers._BLOCK", block)
        monkeypatch.setattr("cnrfmt.checkpointing.compacting.strip_plan._WINDOW", window)
        target = tmp_path / f"{number}.cnr"
        compact(path, target, threads=threads)
        with cnrfmt.open(target) as ck:
            (segment,) = ck.view.segments.values()
            found.append([segment.section(k).tobytes() for k in range(len(segment.toc.sections))])
    assert found[0] == found[1] == found[2]


def test_nothing_is_held_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of few rows, in their order; and progress goes on with each of them."""
    path = tmp_path / "model"
    grown(path, ids_of(3, 5, 9), ids_of(5, 30))
    before = read(path)
    monkeypatch.setattr("cnrfmt.checkpointing.compacting.merged_slices._VALUES", 60)
    told: list[tuple[int, int]] = []
    compact(path, progress=lambda done, total: told.append((done, total)))
    with cnrfmt.open(path) as ck:
        (entry,) = ck.view.segments[ck.manifest.chain[0].segment].toc.tables
    assert [(r.first, r.last) for r in entry.row_sets] == [(0, 14), (15, 29), (30, 39)]
    assert read(path) == before
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert len(told) == 3
    assert told[-1][0] <= told[-1][1] < told[-1][0] + 3
    check_sound(path)


def test_a_merge_is_recorded_with_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "model"
    grown(path, ids_of(3, 5, 9), ids_of(5, 30))
    version = head_of(path).version + 1
    record = RunRecord("ab" * 16, checkpoints=(CheckpointRecord(version, 5, "", "delta", 2, 900, 4, 3),))
    with attempt(str(path)) as one:
        head = one.commit(one.next(one.head, same_state=True, metadata=metadata_with({}, record)))
    found = record_of(merge(path, 1, 3, expect=head))
    assert found is not None
    assert (found.checkpoints[-1].kind, found.checkpoints[-1].rows) == ("merge", 4)


@pytest.mark.parametrize("named", [False, True])
def test_encoded_anew_to_serve_from(named: bool, tmp_path: Path) -> None:
    """Weights are what `save` makes of the values; other columns read the same, unless they are named."""
    path, target, fresh = tmp_path / "model", tmp_path / "serving.cnr", tmp_path / "fresh.cnr"
    chain = IntegerChain(path, 3)
    chain.commit()
    quantize = Quantize(bits=4, layout="head")
    encoding: Any = {("dense", "sum"): Quantize(8, one_valued="bfloat16"), "*": quantize} if named else quantize
    assert compact(path, target, encoding=encoding) == 0
    tables = {}
    for name, data in cnrfmt.load(path, columns=True).items():
        tables[name] = TableData(data.values, keys=data.keys, fill=data.fill["weight"])
    cnrfmt.save(fresh, tables, quantize=quantize)
    with cnrfmt.open(path) as old, cnrfmt.open(target) as new, cnrfmt.open(fresh) as want:
        assert new["dense"].fill("weight") == old["dense"].fill("weight")
        for name in ("dense", "keyed"):
            assert new[name].read().tobytes() == want[name].read().tobytes()
            for column in ("squares", "sum") if name == "keyed" or not named else ("squares",):
                assert new[name].read(column=column).tobytes() == old[name].read(column=column).tobytes()
    layouts = {(name, part.column, part.layout) for name, parts in parts_of(target).items() for part in parts}
    assert ("dense", "weight", quantize.layout_of(4)) in layouts
    assert (("dense", "sum", CastLayout("bfloat16")) in layouts) == named
    check_sound(target)


def test_what_is_encoded_anew(tmp_path: Path) -> None:
    path, target = tmp_path / "model", tmp_path / "serving"
    grown(path)
    with pytest.raises(UsageError, match="encoded anew for another container alone; give a target"):
        compact(path, encoding=Quantize(8))
    with pytest.raises(UsageError, match="encoding: no table is named 'item'"):
        compact(path, target, encoding={"item": Quantize(8)})
    with pytest.raises(UsageError, match="encoding must be a Quantize"):
        compact(path, target, encoding="8")  # type: ignore[arg-type]
    assert not target.exists()
    compact(path, target, encoding={"user": None})
    assert [part.layout for part in parts_of(target)["user"]] == [RawLayout("float32")]


def test_damage_is_found_before_anything_is_committed(tmp_path: Path) -> None:
    path = tmp_path / "model"
    grown(path, ids_of(3, 5, 9), ids_of(5, 30))
    with cnrfmt.open(path) as ck:
        (entry,) = ck.manifest.chain[1:2]
        toc = ck.view.segments[entry.segment].toc
    file = path / "segments" / f"{entry.segment.hex()}.cnrs"
    data = bytearray(file.read_bytes())
    data[toc.sections[toc.tables[0].parts[0].section][0] + 20] ^= 1
    file.write_bytes(data)
    before = sorted((path / "segments").iterdir())
    with pytest.raises(DamagedError, match="piece-digest"):
        merge(path, 1, 3, expect=head_of(path))
    assert head_of(path).version == 2
    assert sorted((path / "segments").iterdir()) == before


@pytest.mark.parametrize("threads", [1, 3])
def test_an_interruption_leaves_all_as_it_was(threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model"
    grown(path, ids_of(3, 5, 9), ids_of(5, 30))
    want, files = read(path), sorted(path.rglob("*"))
    monkeypatch.setattr("cnrfmt.checkpointing.compacting.merged_slices._VALUES", 60)
    plain = IntegerColumn.encoded

    def interrupted(self: IntegerColumn, start: int, stop: int) -> Any:
        if start:
            raise KeyboardInterrupt
        return plain(self, start, stop)

    monkeypatch.setattr(IntegerColumn, "encoded", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compact(path, threads=threads)
    assert read(path) == want
    assert sorted(path.rglob("*")) == files
