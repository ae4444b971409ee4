"""Stored values: what a reader of the newest version decodes, bit for bit, within the bound that was stated."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cnrfmt
from cnrfmt import Deleted, Dropped, Quantize, Rows, Table, TableData
from cnrfmt.checkpointing.stored_values import FromContainer, InMemory, StoredValues
from cnrfmt.commits import attempt
from cnrfmt.demo.orders import load_orders
from cnrfmt.plan import plan_delta
from cnrfmt.storage.directory import SEGMENTS, segment_name
from cnrfmt.writer import KnownRecipes

F32 = np.float32
DIM = 4
LIMIT = 1 << 24


def commit_on(path: Path, base: int, tables: dict[str, Any], quantize: Any = None) -> int:
    """Commits a delta on an older version, as a policy does that keeps one delta on a baseline."""
    with cnrfmt.open(path, version=base) as ck:
        manifest = ck.manifest
    with attempt(str(path)) as one:
        plan = plan_delta(tables, manifest.tables, quantize, KnownRecipes(one.tx, manifest).of)
        found = one.next(manifest, tables=plan.tables)
        return one.commit(one.write(found, plan.writes, None, threads=1)).version


def values(rng: random.Random, rows: int, dim: int = DIM) -> Any:
    return np.random.default_rng(rng.randrange(1 << 30)).normal(size=(rows, dim)).astype(F32)


def both(path: Path) -> tuple[StoredValues, ...]:
    return InMemory(LIMIT), FromContainer(path, LIMIT, threads=1)


def check(path: Path, version: int, stores: tuple[StoredValues, ...], rng: random.Random) -> None:
    """That each store has what a fresh reader decodes, whole and in any order."""
    with cnrfmt.open(path, version=version) as ck:
        for store in stores:
            store.update(ck)
    with cnrfmt.open(path, version=version) as ck:
        for name, t in ck.items():
            ids = np.arange(len(t)) if t.keys is None else t.keys.copy()
            for column in t.columns:
                want = t.read(ids, column=column)
                some = np.array(rng.choices(range(len(ids)), k=7), np.int64) if len(ids) else np.empty(0, np.int64)
                for store in stores:
                    found = store.read(name, ids, column)
                    assert (found.dtype, found.shape) == (want.dtype, want.shape)
                    assert found.tobytes() == want.tobytes()
                    assert store.read(name, ids[some], column).tobytes() == want[some].tobytes()


class Run:
    """A random run: deltas on any version, growth, deletions, new columns and tables, baselines."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path, self.rng = path, random.Random(seed)
        self.versions = [0]
        self.newest = 0
        self.save()

    def save(self) -> None:
        rng = self.rng
        keys = rng.sample(range(40), 12)
        rows = rng.randrange(1, 25)
        tables = {
            "d": TableData(values(rng, rows), columns={"acc": values(rng, rows)[:, 0]}, fill=0.25),
            "k": TableData(values(rng, 12, 3), keys=keys, columns={"m": values(rng, 12, 3).astype(np.float64)}),
        }
        quantize = {"d": Quantize(bits=rng.choice([2, 4, 8]))}
        self.newest = cnrfmt.save(self.path, tables, quantize=rng.choice([None, quantize]))
        self.versions = [self.newest]

    def step(self) -> None:
        rng = self.rng
        if rng.random() < 0.1:
            self.save()
            return
        # The next of the chain, another delta on the baseline, or one on what was restored.
        base = rng.choice([self.newest, self.versions[0], rng.choice(self.versions)])
        with cnrfmt.open(self.path, version=base) as ck:
            rows = max(0, len(ck["d"]) + rng.choice([0, 0, 0, 5, -4]))
            names = list(ck)
        ids = rng.sample(range(rows), min(rows, rng.randrange(6)))
        d: dict[str, Any] = {"acc": values(rng, len(ids))[:, 0]}
        if rng.random() < 0.2:
            d["new"] = values(rng, len(ids))
        some = rng.sample(range(45), rng.randrange(8))
        cut = rng.randrange(len(some) + 1)
        written = Rows(some[:cut], values(rng, cut, 3), columns={"m": values(rng, cut, 3).astype(np.float64)})
        tables: dict[str, Any] = {
            "d": Rows(ids, values(rng, len(ids)), columns=d, rows=rows),
            "k": (written, Deleted(some[cut:])),
        }
        if rng.random() < 0.3:
            tables["x"] = Dropped() if "x" in names else values(rng, 6)
        if rng.random() < 0.1:
            tables["d"] = values(rng, 7)
        quantize = rng.choice([None, {"d": Quantize(bits=rng.choice([3, 4, 8]))}])
        self.newest = commit_on(self.path, base, tables, quantize)
        self.versions.append(self.newest)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_stored_is_what_a_reader_decodes(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    path = tmp_path_factory.mktemp("run") / "run"
    run = Run(path, seed)
    stores = both(path)
    for _ in range(8):
        check(path, run.newest, stores, run.rng)
        if run.rng.random() < 0.2:
            # A restore of an older one; the run may go on from it or not.
            check(path, run.rng.choice(run.versions), stores, run.rng)
        run.step()
    check(path, run.newest, stores, run.rng)
    for store in stores:
        store.close()


@pytest.mark.parametrize("name", ["run", "run.cnr"])
def test_real_orders_in_a_chain(tmp_path: Path, name: str) -> None:
    """Rows of products, touched as real baskets touch them, at 4 bits."""
    path, rng = tmp_path / name, random.Random(5)
    dataset = load_orders(users=300)
    products, rows = dataset.stream.products, dataset.products
    table = values(rng, rows, 16)
    cnrfmt.save(path, {"product": table}, quantize=Quantize(bits=4))
    stores = both(path)
    check(path, 0, stores, rng)
    for part in np.array_split(products[:6000], 3):
        ids = np.unique(part).astype(np.int64)
        table[ids] += 0.1
        version = cnrfmt.append(path, {"product": Rows(ids, table[ids])})
        check(path, version, stores, rng)
    assert np.abs(stores[0].read("product", np.arange(rows)) - table).max() < 0.7


def test_an_update_reads_what_changed_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, rng = tmp_path / "run", random.Random(1)
    cnrfmt.save(path, {"t": values(rng, 5000), "k": TableData(values(rng, 100), keys=range(100))})
    store = InMemory(LIMIT)
    with cnrfmt.open(path) as ck:
        store.update(ck)
    counts: list[int] = []
    read = Table.read

    def counted(self: Table, rows: Any = None, **options: Any) -> Any:
        found = read(self, rows, **options)
        counts.append(len(found))
        return found

    monkeypatch.setattr(Table, "read", counted)
    # Another delta on the same baseline each time, as one-shot policies write: what either of two wrote is read.
    for number in range(3):
        tables = {"t": Rows(range(number, 9), values(rng, 9 - number)), "k": Rows([5], values(rng, 1))}
        version = commit_on(path, 0, tables)
        with cnrfmt.open(path, version=version) as ck:
            store.update(ck)
    assert counts == [9, 1, 9, 1, 8, 1]
    # What the store knows is all that it needs: that version needn't be retained.
    with attempt(str(path)) as one:
        assert one.head is not None
        last = one.commit(one.next(one.head, same_state=True, keep=lambda versions: versions[:1]))
    assert len(last.versions) == 1
    counts.clear()
    version = cnrfmt.append(path, {"t": Rows([4000], values(rng, 1))})
    with cnrfmt.open(path) as ck:
        store.update(ck)
    assert counts == [1]
    # Where the older version's segment is gone, all is read anew, and is right.
    with cnrfmt.open(path) as ck:
        gone = ck.manifest.chain[-1]
    commit_on(path, 0, {"t": Rows([7], values(rng, 1))})
    (path / SEGMENTS / segment_name(gone.segment)).unlink()
    with attempt(str(path)) as one:
        assert one.head is not None
        head = one.commit(one.next(one.head, same_state=True, keep=lambda versions: versions[:1]))
    counts.clear()
    with cnrfmt.open(path) as ck:
        store.update(ck)
    assert counts == [5000, 100]
    check(path, head.version, (store,), rng)


def test_the_bound_is_checked_before_memory_is_taken(tmp_path: Path) -> None:
    path, rng = tmp_path / "run", random.Random(2)
    cnrfmt.save(path, {"t": TableData(values(rng, 40_000), columns={"acc": values(rng, 40_000)[:, 0]})})
    need = 40_000 * (DIM + 1) * 4
    with cnrfmt.open(path, threads=1) as ck:
        with pytest.raises(cnrfmt.TooLargeError, match=r"table 't', column 'acc'.*stored_bytes allows"):
            InMemory(need - 1).update(ck)
        store = InMemory(need)
        store.update(ck)
        assert store.nbytes == need
    # Growth takes the old and the new array of one column at once.
    cnrfmt.append(path, {"t": Rows([45_000], values(rng, 1), rows=50_000)})
    peak = 50_000 * (DIM + 1) * 4 + 40_000 * DIM * 4
    with cnrfmt.open(path, threads=1) as ck:
        with pytest.raises(cnrfmt.TooLargeError, match="column 'weight'"):
            store.update(ck)
        with pytest.raises(cnrfmt.UsageError, match="no version is known"):
            store.read("t", [0])
        assert store.nbytes == 0
    with cnrfmt.open(path, version=0, threads=1) as ck:
        store = InMemory(peak)
        store.update(ck)
    with cnrfmt.open(path, threads=1) as ck:
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            store.update(ck)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        # Of what was there before only the growth is seen, and the ids and rows on their way.
        assert most - before < 50_000 * (DIM + 1) * 4 + 10_000 * (8 + 16) * 4
        assert store.nbytes == 50_000 * (DIM + 1) * 4
    check(path, 1, (store,), rng)


def test_row_indexes_are_bounded_where_the_container_is_read(tmp_path: Path) -> None:
    path, rng = tmp_path / "run", random.Random(3)
    cnrfmt.save(path, {"t": values(rng, 100_000, 1)})
    cnrfmt.append(path, {"t": Rows(np.sort(rng.sample(range(100_000), 30_000)), values(rng, 30_000, 1))})
    with cnrfmt.open(path) as ck:
        store = FromContainer(path, 239_999)
        with pytest.raises(cnrfmt.TooLargeError, match="row indexes of version 1"):
            store.update(ck)
        with pytest.raises(cnrfmt.UsageError, match="no version is known"):
            store.read("t", [0])
        store = FromContainer(path, 350_000)
        store.update(ck)
        assert store.nbytes == 240_000
        assert store.read("t", range(10)).shape == (10, 1)
        with pytest.raises(cnrfmt.TooLargeError):
            store.read("t", range(100_000))
        store.close()
    for wrong in (None, -1, 1.5, True):
        for make in (InMemory, lambda limit: FromContainer(path, limit)):
            with pytest.raises(cnrfmt.UsageError, match="max_bytes must be an integer"):
                make(wrong)  # type: ignore[arg-type]


def test_what_is_not_stored_is_named(tmp_path: Path) -> None:
    path, rng = tmp_path / "run", random.Random(4)
    cnrfmt.save(path, {"t": values(rng, 10), "k": TableData(values(rng, 3), keys=[-5, 7, 9])})
    for store in both(path):
        with pytest.raises(cnrfmt.UsageError, match="no version is known"):
            store.read("t", [0])
        with cnrfmt.open(path) as ck:
            store.update(ck)
        for name, ids, column, says in (
            ("u", [0], "weight", "no table 'u'; there are 't', 'k'"),
            ("t", [0], "acc", "no column 'acc'; it has weight"),
            ("t", [3, 10], "weight", "10"),
            ("t", [-1], "weight", "-1"),
            ("k", [7, 8], "weight", "no key 8"),
        ):
            with pytest.raises(cnrfmt.MissingKeyError, match=says):
                store.read(name, ids, column)
        rows = store.read("t", [1])
        rows[:] = 9
        assert (store.read("t", [1]) != 9).all()
        store.close()


def test_damage_leaves_nothing_known(tmp_path: Path) -> None:
    path, rng = tmp_path / "run", random.Random(6)
    cnrfmt.save(path, {"a": values(rng, 3000), "b": values(rng, 3000)})
    store = InMemory(LIMIT)
    with cnrfmt.open(path) as ck:
        store.update(ck)
    cnrfmt.append(path, {"a": Rows(range(2000), values(rng, 2000)), "b": Rows(range(2000), values(rng, 2000))})
    with cnrfmt.open(path) as ck:
        segment = ck.view.segments[ck.manifest.chain[-1].segment]
        part = segment.toc.by_table[ck["b"].schema.table_id].parts[0]
        offset = segment.toc.sections[part.section][0]
        file = path / SEGMENTS / segment_name(segment.entry.segment)
    data = bytearray(file.read_bytes())
    data[offset + 9] ^= 1
    file.write_bytes(data)
    with cnrfmt.open(path) as ck, pytest.raises(cnrfmt.DamagedError, match="piece-digest"):
        store.update(ck)
    with pytest.raises(cnrfmt.UsageError, match="no version is known"):
        store.read("a", [0])
    check(path, 0, (store,), rng)
