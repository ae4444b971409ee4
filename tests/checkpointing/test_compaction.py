"""Compaction and merging: what is read stays as it was, codes are copied, and nothing else of a container changes."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cnrfmt
from cnrfmt import ConflictError, Deleted, Quantize, Rows, TableData, UsageError
from cnrfmt.checkpointing.compacting import compaction
from cnrfmt.checkpointing.compacting.compaction import compact, due, due_in, merge
from cnrfmt.checkpointing.compacting.merging import merged_table
from cnrfmt.commits import attempt
from cnrfmt.format.encoding import CodebookLayout, RawLayout
from cnrfmt.format.manifest import Manifest
from cnrfmt.run_record import CheckpointRecord, RunRecord, metadata_with, record_of
from cnrfmt.testing import Model, operations
from tests.checkpointing.compaction_support import Chain, check_sound, read, slots
from tests.test_properties import apply, check_checkpoint


def head_of(path: Path) -> Manifest:
    with cnrfmt.open(path) as ck:
        return ck.manifest


def parts_of(path: Path) -> dict[str, list[Any]]:
    """The parts of each table in the newest segment."""
    with cnrfmt.open(path) as ck:
        names = {ck[name].schema.table_id: name for name in ck}
        toc = ck.view.segments[ck.manifest.chain[-1].segment].toc
        return {names[t.table_id]: list(t.parts) for t in toc.tables}


def any_range(length: int, random: np.random.Generator) -> tuple[int, int]:
    first = int(random.integers(0, length - 1))
    return first, int(random.integers(first + 2, length + 1))


def check_codes(path: Path, before: int, after: int) -> None:
    """That every row that was stored before has the same bytes in the same layout, or raw ones."""
    old, new = slots(path, before), slots(path, after)
    for key, pieces in old.items():
        for first, end, slot in pieces:
            here = [piece for piece in new[key] if piece[0] <= first and end <= piece[1]]
            # A part that is cut by another one's elements can't be copied as it is.
            same = here and here[0][2] == slot
            assert same or all(isinstance(p[2][0], RawLayout) for p in new[key] if p[0] < end and first < p[1]), key
    # Only rows that were never written, or whose end is remembered, are new.
    assert set(old) <= set(new)


@given(st.integers(0, 2**32), st.booleans(), st.booleans())
def test_any_chain_reads_the_same(seed: int, single: bool, divided: bool) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder) / ("model.cnr" if single else "model")
        chain = Chain(path, seed, patch if divided else None)
        for _ in range(int(chain.random.integers(1, 7))):
            chain.append()
        patch.undo()
        while len(head_of(path).chain) > 1 and chain.random.integers(3):
            head = head_of(path)
            want = read(path)
            new = merge(path, *any_range(len(head.chain), chain.random), expect=head, threads=2)
            assert (new.version, new.state) == (head.version + 1, head.state)
            assert read(path) == want
            check_codes(path, head.version, new.version)
            check_sound(path)
            chain.append()
        want, before = read(path), head_of(path)
        version = compact(path)
        head = head_of(path)
        assert (len(head.chain), head.version, head.state) == (1, version, before.state)
        assert read(path) == want
        check_sound(path)
        if not single:
            assert read(path, before.version) == want
            check_codes(path, before.version, version)
        chain.append()
        other = Path(folder) / "other.cnr"
        compact(path, other)
        assert read(other) == read(path)
        assert slots(other).keys() >= slots(path).keys()
        check_sound(other)


@given(operations(), st.integers(0, 2**32))
def test_any_sequence_of_commits(commits: list[Any], seed: int) -> None:
    """Any data types, bit patterns, keys and growth, with merges in between, against a plain dictionary."""
    random = np.random.default_rng(seed)
    model = Model()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        for operation in commits:
            version = apply(path, operation)
            known = model.save if operation.kind == "save" else model.append
            known(version, operation.tables)
            tables = model.versions[version]
            head = head_of(path)
            if len(head.chain) > 1:
                new = merge(path, *any_range(len(head.chain), random), expect=head)
                model.versions[new.version] = tables
        version = compact(path)
        check_checkpoint(path, model.versions[max(model.versions)], Random(seed))
        check_sound(path)
        assert compact(path) == version


def save_chain(path: Path, quantize: Any = None, deltas: int = 6, **options: Any) -> np.ndarray[Any, Any]:
    """A table of 300 rows and deltas of 20 rows each; returns the values that were given."""
    random = np.random.default_rng(3)
    values = random.normal(size=(300, 8)).astype(np.float32)
    cnrfmt.save(path, {"user": values}, quantize=quantize, **options)
    for step in range(deltas):
        ids = np.sort(random.choice(300, 20, replace=False))
        values[ids] = random.normal(size=(20, 8))
        cnrfmt.append(path, {"user": Rows(ids, values[ids])}, step=step)
    return values


def test_a_compacted_chain_is_as_small_as_a_baseline(tmp_path: Path) -> None:
    """One layout gives one part over all rows, without a row index, whatever deltas wrote."""
    path = tmp_path / "model"
    save_chain(path, Quantize(bits=8))
    compact(path)
    (part,) = parts_of(path)["user"]
    assert part.elements == (0, 8)
    fresh = tmp_path / "fresh"
    cnrfmt.save(fresh, {"user": np.zeros((300, 8), np.float32)}, quantize=Quantize(bits=8))
    lengths = [head_of(p).chain[0].length for p in (path, fresh)]
    assert abs(lengths[0] - lengths[1]) < 100


def test_few_exact_rows_are_exceptions(tmp_path: Path) -> None:
    path = tmp_path / "model"
    values = np.random.default_rng(1).normal(size=(100, 8)).astype(np.float32)
    values[[3, 40], 0] = np.nan
    cnrfmt.save(path, {"user": values}, quantize=Quantize(bits=4))
    values[[5, 40], 0] = np.inf, 7
    cnrfmt.append(path, {"user": Rows([5, 40], values[[5, 40]])})
    want = read(path)
    compact(path)
    _, exact = parts_of(path)["user"]
    assert (exact.exceptions_of, exact.layout) == (0, RawLayout("float32"))
    with cnrfmt.open(path) as ck:
        assert np.flatnonzero(~np.isfinite(ck["user"].read()).all(axis=1)).tolist() == [3, 5]
    assert {key: value for key, value in read(path).items() if "facts" not in key} == {
        key: value for key, value in want.items() if "facts" not in key
    }
    check_sound(path)


def test_columns_of_the_same_rows_share_row_indexes(tmp_path: Path) -> None:
    path = tmp_path / "model"
    random = np.random.default_rng(1)
    values, sums = random.normal(size=(50, 4)).astype(np.float32), random.random(50).astype(np.float32)
    quantize = Quantize(bits=8, one_valued="raw")
    cnrfmt.save(path, {"user": TableData(values, columns={"sum": sums})}, quantize=quantize)
    for ids in ([1, 7, 40], [2, 7, 30]):
        cnrfmt.append(path, {"user": Rows(ids, values[ids] * 2, columns={"sum": sums[ids]})})
    merge(path, 1, 3, expect=head_of(path))
    with cnrfmt.open(path) as ck:
        (table,) = ck.view.segments[ck.manifest.chain[1].segment].toc.tables
    assert [r.count for r in table.row_sets] == [5]


def test_few_rows_are_left_of_a_segment(tmp_path: Path) -> None:
    """Where a later delta wrote nearly all that an earlier one did, the other rows are fetched one by one."""
    path = tmp_path / "model"
    random = np.random.default_rng(5)
    values, sums = random.normal(size=(900, 8)).astype(np.float32), random.random(900).astype(np.float32) + 1
    cnrfmt.save(path, {"user": TableData(values, columns={"sum": sums})}, quantize=Quantize(bits=8))
    every = np.arange(100, 801)
    for ids in (every, every[every % 50 != 3]):
        cnrfmt.append(path, {"user": Rows(ids, values[ids] * len(ids), columns={"sum": sums[ids] * len(ids)})})
    old, want = slots(path), read(path)
    merge(path, 1, 3, expect=head_of(path))
    assert slots(path) == old
    assert read(path) == want
    compact(path)
    assert slots(path) == old
    check_sound(path)


@pytest.mark.parametrize("block", [4, 5])
def test_whole_blocks_keep_their_codebooks(tmp_path: Path, block: int) -> None:
    path = tmp_path / "model"
    values = np.random.default_rng(1).normal(size=(22, 40)).astype(np.float32)
    quantize = Quantize(bits=2, method="kmeans", block=block)
    cnrfmt.save(path, {"user": values}, quantize=quantize)
    cnrfmt.append(path, {"user": Rows([9], -values[[9]])})
    want, old = read(path), slots(path)
    compact(path)
    kept = {key: value for key, value in read(path).items() if "facts" not in key}
    assert kept.items() <= want.items()
    assert slots(path) == old
    layouts = [part.layout for part in parts_of(path)["user"]]
    assert CodebookLayout(2, "float16", block) in layouts
    # The neighbours of row 9 have lost their block, and row 9 is a block of its own.
    assert CodebookLayout(2, "float16", None) in layouts
    # Each part tells errors, those of the parts that its rows come from.
    assert all(part.errors.worst > 0 for part in parts_of(path)["user"] if part.scheme is not None)
    check_sound(path)


def test_rows_that_were_cut_off_stay_so(tmp_path: Path) -> None:
    """A merged delta says of rows that were cut off and are back that they read as the fill value."""
    path = tmp_path / "model"
    cnrfmt.save(path, {"user": TableData(np.full((9, 2), 3, np.float32), fill=7)}, quantize=Quantize(bits=8))
    for rows in (4, 12):
        cnrfmt.append(path, {"user": Rows(np.empty(0, np.int64), np.empty((0, 2), np.float32), rows=rows)})
    want = cnrfmt.load(path)["user"]
    assert want[:, 0].tolist() == [3] * 4 + [7] * 8
    merge(path, 1, 3, expect=head_of(path))
    assert np.array_equal(cnrfmt.load(path)["user"], want)
    # Rows from 9 on were never there before, so nothing needs to be said of them.
    (part,) = parts_of(path)["user"]
    with cnrfmt.open(path) as ck:
        (table,) = ck.view.segments[ck.manifest.chain[1].segment].toc.tables
    assert (table.row_sets[part.rows].first, table.row_sets[part.rows].last) == (4, 8)
    compact(path)
    assert np.array_equal(cnrfmt.load(path)["user"], want)
    check_sound(path)


def test_tombstones(tmp_path: Path) -> None:
    """They are kept where older segments may need them; a key that is back hides what it was before."""
    path = tmp_path / "model"
    ones = np.ones((4, 2), np.float32)
    table = TableData(ones, columns={"sum": ones[:, 0]}, keys=[1, 2, 3, 4], fill=5)
    cnrfmt.save(path, {"visitor": table})
    cnrfmt.append(path, {"visitor": Deleted([1, 2, 9])})
    cnrfmt.append(path, {"visitor": Rows([2], 8 * ones[:1])})
    merge(path, 1, 3, expect=head_of(path))
    with cnrfmt.open(path) as ck:
        visitor = ck["visitor"]
        assert visitor.keys is not None
        assert visitor.keys.tolist() == [2, 3, 4]
        assert visitor.read(column="sum").tolist() == [5, 1, 1]
        segment = ck.view.segments[ck.manifest.chain[1].segment]
        (entry,) = segment.toc.tables
        assert entry.deleted is not None
        assert segment.indexes.ids(entry.row_sets[entry.deleted]).tolist() == [1, 9]
        # A follower of the baseline still hears which keys are gone.
        changes = visitor.changed(since=0)
        assert (changes.rows.tolist(), changes.deleted.tolist(), changes.exact) == ([2], [1, 9], True)
    compact(path)
    with cnrfmt.open(path) as ck:
        (entry,) = ck.view.segments[ck.manifest.chain[0].segment].toc.tables
        assert entry.deleted is None
        assert ck["visitor"].read(column="sum").tolist() == [5, 1, 1]
    check_sound(path)


def test_more_tombstones_than_a_segment_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model"
    cnrfmt.save(path, {"visitor": TableData(np.ones((4, 2)), keys=[1, 2, 3, 4])})
    for key in (1, 2, 3):
        cnrfmt.append(path, {"visitor": Deleted([key])})
    monkeypatch.setattr("cnrfmt.checkpointing.compacting.merging.limits.MAX_TOMBSTONES", 2)
    with pytest.raises(UsageError, match="delete 3 keys together, and one may name 2"):
        merge(path, 1, 4, expect=head_of(path))
    assert len(head_of(path).chain) == 4
    compact(path)
    assert cnrfmt.load(path)["visitor"].keys.tolist() == [4]


def test_dense_state_comes_along(tmp_path: Path) -> None:
    path = tmp_path / "model"
    first = {"w": np.arange(6.0).reshape(2, 3), "reader": {"at": 3}, "empty": b"", "none": np.empty((0, 2))}
    save_chain(path, deltas=2, dense=first)
    cnrfmt.append(path, {}, dense={"reader": {"at": 9}})
    cnrfmt.append(path, {"user": Rows([1], np.ones((1, 8), np.float32))})
    merge(path, 0, 3, expect=head_of(path))
    with cnrfmt.open(path) as ck:
        assert ck.dense == {"reader": {"at": 9}}
    with cnrfmt.open(path, version=2) as ck:
        assert ck.dense["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    merge(path, 0, 2, expect=head_of(path))
    compact(path, tmp_path / "other.cnr", version=2)
    with cnrfmt.open(path) as ck, cnrfmt.open(tmp_path / "other.cnr") as other:
        assert ck.dense == {"reader": {"at": 9}}
        assert other.dense["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert (other.dense["reader"], other.dense["empty"], other.dense["none"].shape) == ({"at": 3}, b"", (0, 2))
    check_sound(path)


def test_what_quantising_did_is_still_told(tmp_path: Path) -> None:
    path = tmp_path / "model"
    save_chain(path, Quantize(bits=4, method="adaptive", num_bins=9))
    with cnrfmt.open(path) as ck:
        known = [p for s in ck.view.segments.values() for p in s.toc.tables[0].parts]
    compact(path)
    (part,) = parts_of(path)["user"]
    assert part.scheme == known[0].scheme
    assert part.errors.worst == max(p.errors.worst for p in known)
    assert min(p.errors.mean for p in known) <= part.errors.mean <= max(p.errors.mean for p in known)
    # An append after it goes on in the same way.
    cnrfmt.append(path, {"user": Rows([0], np.ones((1, 8), np.float32))})
    assert parts_of(path)["user"][0].scheme == known[0].scheme


@pytest.mark.parametrize("name", ["model", "model.cnr"])
def test_a_version_of_its_own(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    save_chain(path, metadata={"run": "r7"})
    before = head_of(path)
    with cnrfmt.open(path) as reader:
        assert compact(path, threads=1) == before.version + 1
        # A reader goes on with what it has open until it moves on.
        assert reader.version == before.version
        values = reader["user"].read()
        refreshed = reader.refresh()
        assert refreshed is not None
        assert refreshed.version == before.version + 1
        # What a single file that was put in another's place has changed, nobody can say.
        changes = refreshed.changed["user"]
        assert (len(changes.rows), changes.exact) == ((0, True) if path.is_dir() else (300, False))
        assert np.array_equal(reader["user"].read(), values)
    head = head_of(path)
    assert (head.container_id, head.state, head.step) == (before.container_id, before.state, 5)
    assert head.metadata == {"run": "r7"}
    assert [r.version for r in head.versions] == (list(range(7)) if name == "model" else [])
    assert compact(path) == head.version
    assert head_of(path) == head


def test_another_container(tmp_path: Path) -> None:
    path, target = tmp_path / "model", tmp_path / "target"
    values = save_chain(path, metadata={"run": "r7"})
    assert compact(path, target, version=3) == 0
    with cnrfmt.open(target) as ck, cnrfmt.open(path, version=3) as old:
        assert np.array_equal(ck["user"].read(), old["user"].read())
        assert (ck.step, ck.metadata) == (2, {"run": "r7"})
        assert ck.manifest.container_id != old.manifest.container_id
    with pytest.raises(UsageError, match="is there already; force=True"):
        compact(path, target)
    assert compact(path, target, force=True) == 1
    assert np.array_equal(cnrfmt.load(target)["user"], values)
    with pytest.raises(UsageError, match="source and target are one container"):
        compact(path, tmp_path / "." / "model", force=True)
    with pytest.raises(UsageError, match="give a target"):
        compact(path, version=3)
    assert head_of(path).version == 6


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(cnrfmt.StorageError):
        compact(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_the_bytes_depend_on_neither_threads_nor_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model"
    chain = Chain(path, 12)
    for _ in range(6):
        chain.append()
    found = []
    for number, (threads, chunk, window) in enumerate([(1, 4 << 20, 1 << 18), (3, 100, 7), (2, 1000, 16)]):
        monkeypatch.setattr("cnrfmt.segment_writer._CHUNK", chunk)
        monkeypatch.setattr("cnrfmt.checkpointing.compacting.strip_plan._WINDOW", window)
        monkeypatch.setattr("cnrfmt.checkpointing.compacting.merged_rows._BATCH", threads)
        target = tmp_path / f"{number}.cnr"
        compact(path, target, threads=threads)
        with cnrfmt.open(target) as ck:
            (segment,) = ck.view.segments.values()
            found.append([segment.section(k).tobytes() for k in range(len(segment.toc.sections))])
    assert found[0] == found[1] == found[2]


def test_progress_reaches_its_end(tmp_path: Path) -> None:
    path = tmp_path / "model"
    save_chain(path)
    told: list[tuple[int, int]] = []
    compact(path, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (300 * 32, 300 * 32)


def test_a_run_goes_on_with_its_record(tmp_path: Path) -> None:
    path = tmp_path / "model"
    save_chain(path, Quantize(bits=4), metadata={"of": "user"})
    record = RunRecord("ab" * 16, checkpoints=(CheckpointRecord(7, 5, "", "delta", 20, 900, 4, 7),))
    with attempt(str(path)) as one:
        head = one.commit(one.next(one.head, same_state=True, metadata=metadata_with({"of": "user"}, record)))
    head = merge(path, 3, 7, expect=head)
    found = record_of(head)
    assert found is not None
    cost = found.checkpoints[-1]
    with cnrfmt.open(path) as ck:
        assert ck.metadata == {"of": "user"}
        rows = ck.view.segments[head.chain[3].segment].toc.tables[0].row_sets[0].count
    assert (cost.version, cost.kind, cost.chain, cost.bits) == (head.version, "merge", 4, 4)
    assert (cost.nbytes, cost.rows) == (head.chain[3].length, rows)
    assert found.checkpoints[:-1] == record.checkpoints
    # The record is the run's: what is compacted into another container isn't.
    compact(path, tmp_path / "other")
    assert record_of(head_of(tmp_path / "other")) is None


def test_a_merge_of_another_head_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model"
    save_chain(path)
    old = head_of(path)
    cnrfmt.append(path, {"user": Rows([1], np.ones((1, 8), np.float32))})
    with pytest.raises(ConflictError, match=r"version 6 .* was to be merged, and the head is version 7"):
        merge(path, 0, 3, expect=old)
    with pytest.raises(ConflictError, match="the head is no version"):
        merge(tmp_path / "nothing", 0, 3, expect=old)
    assert head_of(path).version == 7


def test_another_writer_in_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever commits first wins, and a merge that lost leaves nothing."""
    path = tmp_path / "model"
    save_chain(path)
    head = head_of(path)

    def late(*args: Any, **options: Any) -> Any:
        monkeypatch.undo()
        cnrfmt.append(path, {"user": Rows([1], np.ones((1, 8), np.float32))})
        return merged_table(*args, **options)

    monkeypatch.setattr(compaction, "merged_table", late)
    with pytest.raises(ConflictError):
        merge(path, 1, 4, expect=head)
    assert head_of(path).version == 7
    assert len(list((path / "segments").iterdir())) == 8


@pytest.mark.parametrize(("first", "last"), [(0, 0), (1, 2), (-1, 3), (5, 8), (3, 1)])
def test_entries_that_are_not_there(first: int, last: int, tmp_path: Path) -> None:
    path = tmp_path / "model"
    save_chain(path)
    with pytest.raises(UsageError, match="two or more of the entries 0 to 6 can be merged"):
        merge(path, first, last, expect=head_of(path))


def test_a_step_of_several_segments_is_merged_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "model"
    values = save_chain(path, deltas=1)
    with attempt(str(path)) as one:
        assert one.head is not None
        manifest = one.next(one.head)
        start = manifest.chain
        schema = one.head.tables[0]
        from cnrfmt.commits import replace as changed
        from cnrfmt.encodings import Recipe
        from cnrfmt.inputs import as_source
        from cnrfmt.table_writes import ColumnWrite, RowIds, TableWrite

        entries = []
        for rank in range(3):
            ids = np.arange(rank, 300, 7)
            values[ids] = rank
            write = ColumnWrite(schema.columns[0], as_source(values[ids], what="rows"), Recipe(RawLayout("float32")))
            part = changed(manifest, chain=start)
            part = one.write(part, [TableWrite(schema, RowIds(len(ids), ids), (write,))], None, threads=1)
            entries.append(changed(part.chain[-1], toc=None))
        toc_less = changed(manifest, chain=tuple(changed(e, toc=None) for e in start), attachments=b"")
        head = one.commit(changed(toc_less, chain=(*toc_less.chain, *entries)))
    cnrfmt.append(path, {"user": Rows([0], values[[0]])})
    head = head_of(path)
    assert [len(step) for step in head.steps()] == [1, 1, 3, 1]
    for first, last in ((0, 3), (3, 6), (2, 4)):
        with pytest.raises(UsageError, match="are one step; merge both or neither"):
            merge(path, first, last, expect=head)
    assert due_in(head, 4) in {(2, 6), (1, 6), (0, 6)}
    head = merge(path, 2, 5, expect=head)
    assert np.array_equal(cnrfmt.load(path)["user"], values)
    merge(path, 0, 3, expect=head)
    assert np.array_equal(cnrfmt.load(path)["user"], values)
    check_sound(path)


def test_damage_is_found_before_anything_is_committed(tmp_path: Path) -> None:
    path = tmp_path / "model"
    save_chain(path)
    entry = head_of(path).chain[0]
    file = path / "segments" / f"{entry.segment.hex()}.cnrs"
    data = bytearray(file.read_bytes())
    data[5000] ^= 1
    file.write_bytes(data)
    with pytest.raises(cnrfmt.DamagedError, match="piece-digest"):
        compact(path)
    assert head_of(path).version == 6
    assert len(list((path / "segments").iterdir())) == 7


@given(st.integers(2, 9), st.lists(st.integers(1, 1000), min_size=1, max_size=200))
def test_a_chain_is_never_longer(most: int, sizes: list[int]) -> None:
    chain: list[int] = []
    for size in sizes:
        chain.append(size)
        found = due(chain, most)
        assert len(chain) <= most
        assert (found is None) == (len(chain) < most)
        if found is not None:
            first, last = found
            assert 0 <= first < last - 1 < len(chain)
            chain[first:last] = [sum(chain[first:last])]


def test_a_chain_that_is_too_long_is_shortened_at_once() -> None:
    assert due([100, *[1] * 49], 8) is not None
    first, last = due([100, *[1] * 49], 8) or (0, 0)
    assert 50 - (last - first) + 1 < 8
    assert due([5], 2) is None
    with pytest.raises(UsageError, match="most=1"):
        due([5], 1)


def test_deltas_have_no_more_than_a_share() -> None:
    assert due([100, 10, 10], 8, 0.2) is None
    assert due([100, 10, 11], 8, 0.2) == (0, 3)
    assert due([100], 8, 0) is None
    chain, written = [100], 0
    for _ in range(400):
        chain.append(1)
        found = due(chain, 8, 0.2)
        if found is not None:
            merged = sum(chain[slice(*found)])
            # Of a table of one size, rows that were written again take the place of others.
            chain[slice(*found)] = [min(merged, 100) if found[0] == 0 else merged]
            written += chain[found[0]]
        assert sum(chain[1:]) <= 20
    assert written < 400 * 7


def test_merging_costs_a_logarithm() -> None:
    """The bytes that merges write, against those that were appended, for deltas of one size on a baseline of 50."""
    costs = []
    for count in (50, 500, 3000):
        chain, written = [50], 0
        for _ in range(count):
            chain.append(1)
            found = due(chain, 8)
            if found is not None:
                chain[slice(*found)] = [sum(chain[slice(*found)])]
                written += chain[found[0]]
        costs.append(written / count)
    assert costs[0] < 2
    # Ten times the appends, or six, cost less than three times as much for each.
    assert all(b < 3 * a for a, b in pairwise(costs))
    assert costs[-1] < 7
