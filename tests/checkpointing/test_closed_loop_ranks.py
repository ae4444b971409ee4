"""Several ranks on a grid: the same for all, and each takes differences from what is stored of the rows that it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt import CheckpointManager, CommitError, Grid, Shard, TableData, UsageError
from cnrfmt.checkpointing.checkpointer import Checkpointer
from cnrfmt.checkpointing.kept_columns import decoded, grids_of
from cnrfmt.checkpointing.ranks.coordinator import FileCoordinator
from cnrfmt.errors import RankLostError
from cnrfmt.format.encoding import GridLayout
from tests.checkpointing.ranks import as_ranks, parts
from tests.checkpointing.support import sound
from tests.storage.support import Killed, QuickFs

ROWS, DIM = 60, 8
F32 = np.float32
RATE = 0.01
KNOWN: dict[str, Any] = {"learning_rate": RATE, "expected_restores": 5}


class Whole:
    """The model of all ranks, which each of them makes alike; a rank changes what it has and tracks it."""

    def __init__(self, rank: int, ranks: int) -> None:
        random = np.random.default_rng(5)
        self.rank, self.ranks = rank, ranks
        self.by_row = random.normal(0, 0.1, (ROWS, DIM)).astype(F32)
        self.by_element = random.normal(0, 0.1, (ROWS, DIM)).astype(F32)
        self.by_key = random.normal(0, 0.1, (20, 3)).astype(F32)
        self.state = random.uniform(0.01, 3, ROWS).astype(F32)
        self.state_of_elements = self.state.copy()
        self.keys = np.arange(-8, 12, dtype=np.int64)
        self.rows, self.elements = parts(ROWS, ranks)[rank], parts(DIM, ranks)[rank]

    def tables(self, shift: int = 0) -> dict[str, Any]:
        (a, b), (c, d) = self.rows, self.elements
        mine = (self.keys + shift) % self.ranks == self.rank
        state = {"accumulator": self.state_of_elements} if self.rank == 0 else {}
        return {
            "rows": Shard(
                TableData(self.by_row[a:b], columns={"accumulator": self.state[a:b]}), rows=(a, b), of_rows=ROWS
            ),
            "elements": Shard(
                self.by_element[:, c:d], columns=state or None, elements=(c, d), of_dim=DIM
            ),
            "keyed": TableData(self.by_key[mine], keys=self.keys[mine]),
        }

    def train(self, manager: CheckpointManager, step: int, shift: int = 0) -> None:
        random = np.random.default_rng(100 + step)
        ids = np.unique(random.integers(0, ROWS, 15))
        for values in (self.by_row, self.by_element):
            values[ids] += random.normal(0, 0.03, (len(ids), DIM)).astype(F32)
        self.state[ids] += F32(0.2)
        self.state_of_elements[ids] += F32(0.2)
        keys = ids[ids < 20]
        self.by_key[keys] += F32(0.04)
        a, b = self.rows
        manager.track("rows", ids[(ids >= a) & (ids < b)] - a)
        manager.track("elements", ids)
        own = self.keys[keys]
        manager.track("keyed", own[(own + shift) % self.ranks == self.rank])

    def check(self, path: Path, version: int) -> None:
        with cnrfmt.open(path, version=version, verify="all") as ck:
            for name, values in (("rows", self.by_row), ("elements", self.by_element), ("keyed", self.by_key)):
                assert np.abs(ck[name].read() - values).max() <= 2 * RATE * 2**4, name

    def check_stored(self, manager: CheckpointManager, path: Path, version: int, shift: int = 0) -> None:
        """That this rank has what a reader decodes, of just what it holds."""
        run = manager._run
        store = run.bases._own
        assert store is not None
        assert store.state == run.lineage.base.state  # type: ignore[union-attr]
        (a, b), (c, d) = self.rows, self.elements
        mine = self.keys[(self.keys + shift) % self.ranks == self.rank]
        with cnrfmt.open(path, version=version) as ck:
            for name, ids, cut in (
                ("rows", np.arange(a, b), slice(None)),
                ("elements", np.arange(ROWS), slice(c, d)),
                ("keyed", mine, slice(None)),
            ):
                expected = np.ascontiguousarray(ck[name].read(ids)[:, cut])
                assert store.read(name, ids).tobytes() == expected.tobytes()
                grids = grids_of(store.plan(name))
                integers, known = store.integers(name, "weight", ids)
                assert known.all()
                assert decoded(grids["weight"], integers).tobytes() == expected.tobytes()
            _, known = store.integers("rows", "weight", np.arange(ROWS))
            assert known.tolist() == [a <= row < b for row in range(ROWS)]


@pytest.mark.parametrize("policy", [None, "intermittent"])
def test_ranks_take_differences_from_what_they_hold(tmp_path: Path, policy: str | None) -> None:
    path = tmp_path / "run"

    def run(ranks: int, first: int, shift: int = 0) -> None:
        def body(coordinator: FileCoordinator) -> Any:
            me, kinds = Whole(coordinator.rank, ranks), []
            options: dict[str, Any] = {"coordinator": coordinator, "fs": QuickFs(), "threads": 1}
            options |= {"encoding": "grid", "learning_rate": RATE, "expected_restores": 5, "policy": policy}
            options |= {"most_segments": 4 * ranks} if first else {"merge_share": None}
            with CheckpointManager(path, keep=2, grace=0, **options) as m:
                if first:
                    restored = m.restore(into={**me.tables(shift), "keyed": None})
                    assert restored is not None
                    me.keys, me.by_key = restored.tables["keyed"].keys, restored.tables["keyed"].values
                for step in range(first, first + 6):
                    me.train(m, step, shift)
                    version = m.save(step, me.tables(shift)).wait()
                    assert version is not None
                    kinds.append(m._run.lineage.checkpoints[-1].kind)
                    m.flush()
                    if policy is None:
                        me.check_stored(m, path, version, shift)
                    if coordinator.rank == 0 and not first:
                        me.check(path, version)
                    coordinator.barrier("checked")
            return kinds

        found = as_ranks(tmp_path / f"meet{first}", ranks, body)
        assert all(isinstance(one, list) for one in found), found
        # Which ranks have the keys that changed since a baseline isn't known after a restore.
        assert found[0][0] == ("delta" if first and policy is None else "baseline")
        assert "baseline" not in found[0][1:3]

    run(2, 0)
    with cnrfmt.open(path) as ck:
        layouts = [
            part.layout
            for step in ck.view.steps_of(ck["rows"].schema.table_id)[-1:]
            for _, entry in step
            for part in entry.parts
        ]
        assert any(isinstance(x, GridLayout) and x.is_residual for x in layouts)
    sound(path)
    run(3, 6, shift=1)
    sound(path)


def test_ranks_go_on_after_a_restore_of_other_shards(tmp_path: Path) -> None:
    """Another number of ranks restores all that it holds, and goes on with differences where the grid is the same."""
    path = tmp_path / "run"

    def body(coordinator: FileCoordinator) -> Any:
        ranks = coordinator.world_size
        me = Whole(coordinator.rank, ranks)
        a, b = me.rows
        options: dict[str, Any] = {"coordinator": coordinator, "fs": QuickFs(), "threads": 1}
        with CheckpointManager(path, encoding="grid", learning_rate=RATE, expected_restores=5, **options) as m:
            shard = me.tables()["rows"]
            restored = m.restore(into={"rows": shard})
            kinds = []
            for step in range(2):
                me.by_row[a:b] += F32(0.05)
                m.track("rows", range(b - a))
                version = m.save(step, {"rows": shard}).wait()
                m.flush()
                assert version is not None
                kinds.append(m._run.lineage.checkpoints[-1].kind)
                with cnrfmt.open(path, version=version) as ck:
                    expected = ck["rows"].read(np.arange(a, b))
                store = m._run.bases._own
                assert store is not None
                assert store.read("rows", np.arange(a, b)).tobytes() == expected.tobytes()
                assert np.abs(expected - me.by_row[a:b]).max() <= 2 * RATE * 2**4
                coordinator.barrier("checked")
            return restored is not None, kinds

    assert as_ranks(tmp_path / "meet2", 2, body) == [(False, ["baseline", "delta"])] * 2
    assert as_ranks(tmp_path / "meet3", 3, body) == [(True, ["delta", "delta"])] * 3
    sound(path)


def test_of_several_ranks_each_has_the_stored_values_of_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "run"

    def body(coordinator: FileCoordinator) -> None:
        me = Whole(coordinator.rank, 2)
        a, b = me.rows
        with CheckpointManager(path, bits=8, stored_values="memory", coordinator=coordinator, fs=QuickFs()) as m:
            m.save(0, me.tables()).wait()
            m.flush()
            with cnrfmt.open(path) as ck:
                expected = ck["rows"].read(np.arange(a, b))
            assert m.stored_values.read("rows", np.arange(a, b)).tobytes() == expected.tobytes()
            with pytest.raises(cnrfmt.MissingKeyError, match="among the stored values"):
                m.stored_values.read("rows", np.arange(ROWS))

    assert as_ranks(tmp_path / "meet", 2, body) == [None] * 2


# One grid for all


class Uneven:
    """Tables whose first rows are the least active by far, cut in as many ways as there are."""

    def __init__(self, coordinator: FileCoordinator | None) -> None:
        random = np.random.default_rng(8)
        self.rank, self.ranks = (0, 1) if coordinator is None else (coordinator.rank, coordinator.world_size)
        self.values = random.normal(0, 0.1, (ROWS, DIM)).astype(F32)
        self.state = np.concatenate([np.zeros(7), np.geomspace(1e-6, 1e6, ROWS - 7)]).astype(F32)
        self.squares = (self.state[:, None] * random.uniform(0.5, 1.5, (ROWS, DIM))).astype(F32)

    def tables(self) -> dict[str, Any]:
        (a, b), (c, d) = parts(ROWS, self.ranks)[self.rank], parts(DIM, self.ranks)[self.rank]
        mine = np.arange(ROWS) % self.ranks == self.rank
        one, last = {"sum": self.state, "seen": self.state * 3}, self.rank == self.ranks - 1
        if self.ranks == 1:
            return {
                "rows": TableData(self.values, columns=one),
                "squares": TableData(self.values, columns={"exp_avg_sq": self.squares}),
                "elements": TableData(self.values, columns=one),
                "keyed": TableData(self.values, keys=np.arange(ROWS), columns=one),
                "plain": TableData(self.values),
                "one": TableData(self.values, columns=one),
            }
        rows: dict[str, Any] = {"rows": (a, b), "of_rows": ROWS}
        elements: dict[str, Any] = {"elements": (c, d), "of_dim": DIM}
        found = {
            "rows": Shard(self.values[a:b], columns={name: x[a:b] for name, x in one.items()}, **rows),
            "squares": Shard(self.values[a:b], columns={"exp_avg_sq": self.squares[a:b]}, **rows),
            "elements": Shard(self.values[:, c:d], columns=one if last else None, **elements),
            "keyed": TableData(
                self.values[mine], keys=np.arange(ROWS)[mine], columns={name: x[mine] for name, x in one.items()}
            ),
            "plain": Shard(self.values[:, c:d], **elements),
        }
        return {**found, "one": TableData(self.values, columns=one)} if last else found

    def train(self, manager: CheckpointManager, tables: dict[str, Any]) -> None:
        """Changes all that isn't a copy."""
        self.values += F32(0.05)
        a, b = parts(ROWS, self.ranks)[self.rank]
        for name in set(tables) - {"keyed"}:
            manager.track(name, range(b - a if name in ("rows", "squares") else ROWS))


Constants = dict[str, set[Any]]


def constants(path: Path, *, newest: bool = False) -> Constants:
    """What parts of each table say of its grid, its steps and its codes: in all steps, or in the newest."""
    found: Constants = {}
    with cnrfmt.open(path, verify="all") as ck:
        for name in ck:
            steps = ck.view.steps_of(ck[name].schema.table_id)
            found[name] = {
                (part.column, getattr(part.layout, "grid", part.layout), part.scheme and part.scheme.step)
                for step in (steps[-1:] if newest else steps)
                for _, entry in step
                for part in entry.parts
            }
    return found


@pytest.mark.parametrize("encoding", ["auto", "grid"])
def test_all_ranks_take_the_plan_of_one_writer(tmp_path: Path, encoding: str) -> None:
    def options(coordinator: FileCoordinator | None) -> dict[str, Any]:
        return {"coordinator": coordinator, "fs": QuickFs(), "threads": 1, "encoding": encoding, **KNOWN}

    def saved(path: Path, coordinator: FileCoordinator | None) -> None:
        me = Uneven(coordinator)
        with CheckpointManager(path, merge_share=None, **options(coordinator)) as m:
            tables = me.tables()
            into = {name: table for name, table in tables.items() if name != "keyed"}
            if m.restore(into=into, strict=False) is not None:
                me.train(m, tables)
            m.save(0, tables).wait()

    saved(tmp_path / "alone", None)
    alone = constants(tmp_path / "alone")
    grids = {name for name, found in alone.items() if any(column == "weight" and step for column, _, step in found)}
    assert grids == set(alone) - ({"plain"} if encoding == "auto" else set())
    (step,) = [step for column, _, step in alone["rows"] if column == "weight"]
    assert step.reference == pytest.approx(float(np.median(Uneven(None).state[7:])), rel=0.01)
    for ranks in (2, 3):
        path = tmp_path / str(ranks)
        assert as_ranks(tmp_path / f"meet{ranks}", ranks, lambda one, path=path: saved(path, one)) == [None] * ranks
        assert constants(path) == alone
        # Others go on from there, with other shards.
        others = 5 - ranks
        assert as_ranks(tmp_path / f"then{ranks}", others, lambda one, path=path: saved(path, one)) == [None] * others
        with cnrfmt.open(path) as ck:
            assert len(ck.manifest.steps()) == 2
        assert constants(path) == alone
        assert {column for column, _, _ in constants(path, newest=True)["elements"]} == {"weight", "sum", "seen"}
        sound(path)


class Counting:
    """A coordinator that counts how often it is asked to meet where checkpoints are planned."""

    def __init__(self, coordinator: FileCoordinator) -> None:
        self.rank, self.world_size = coordinator.rank, coordinator.world_size
        self.count, self._coordinator = 0, coordinator

    def gather(self, name: str, payload: bytes) -> list[bytes]:
        self.count += name == "plan"
        return self._coordinator.gather(name, payload)

    def barrier(self, name: str) -> None:
        self._coordinator.barrier(name)


def test_ranks_wait_for_grids_of_new_tables_alone(tmp_path: Path) -> None:
    """Also where one of them doesn't know that there is a new one, and where one had no rows before."""
    path, state = tmp_path / "run", np.geomspace(1, 1e6, ROWS).astype(F32)

    def shard(a: int, b: int, of: int) -> Shard:
        values = np.full((b - a, 2), 0.5, F32)
        return Shard(TableData(values, columns={"sum": state[a:b]}), rows=(a, b), of_rows=of)

    def body(one: FileCoordinator) -> list[int]:
        rank, coordinator = one.rank, Counting(one)
        first, grown = [(0, 20), (20, 40), (40, 40)][rank], [(0, 20), (20, 40), (40, ROWS)][rank]
        own = {f"own {rank}": TableData(np.ones((9, 3), F32), columns={"sum": state[:9]})}
        counts = []
        with CheckpointManager(path, coordinator=coordinator, fs=QuickFs(), merge_share=None, **KNOWN) as m:

            def save(tables: dict[str, Any], **options: Any) -> None:
                before = coordinator.count
                m.save(0, {**own, **tables}, **options).wait()
                counts.append(coordinator.count - before)

            save({})
            save({"t": shard(*first, 40)})
            save({"t": shard(*grown, ROWS)})
            new = {"new": shard(*[(0, 5), (5, ROWS)][rank], ROWS)} if rank < 2 else {}
            save({"t": shard(*grown, ROWS), **new})
            save({"t": shard(*grown, ROWS), **new}, kind="baseline")
        return counts

    assert as_ranks(tmp_path / "meet", 3, body) == [[1, 2, 1, 2, 2]] * 3
    for version in range(1, 5):
        with cnrfmt.open(path, version=version) as ck:
            for name in ck:
                steps = ck.view.steps_of(ck[name].schema.table_id)
                weights = [p for step in steps for _, e in step for p in e.parts if p.column == "weight"]
                assert len(weights) == {"t": [2, 3, 3, 3][version - 1], "new": 2}.get(name, 1)
                assert len({(part.layout.grid, part.scheme.step) for part in weights}) == 1  # type: ignore[union-attr]
    sound(path)


@pytest.mark.parametrize("how", ["refuses", "is gone", "dies behind"])
def test_a_rank_that_fails_while_grids_are_chosen(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All get the same error, and whoever lives writes what was marked the next time."""
    path, real = tmp_path / "run", Checkpointer.plan

    def plan(run: Checkpointer, begun: Any) -> Any:
        assert run.coordinator is not None
        if how == "dies behind" and "new" in begun.asked.tables and run.coordinator.rank:
            raise Killed
        return real(run, begun)

    def body(coordinator: FileCoordinator) -> Any:
        me, rank = Whole(coordinator.rank, 2), coordinator.rank
        (a, b), options = me.rows, {"encoding": "grid", "merge_share": None, **KNOWN}
        with CheckpointManager(path, coordinator=coordinator, fs=QuickFs(), **options) as m:
            m.save(0, me.tables()).wait()
            me.train(m, 1)
            marked = m._run.trackers.count
            if how == "is gone" and rank:
                return None
            sums = me.state[: b - a - (how == "refuses" and rank == 1)]
            new = Shard(TableData(me.by_row[a:b], columns={"sum": sums}), rows=(a, b), of_rows=ROWS)
            with pytest.raises((CommitError, UsageError)) as caught:
                m.save(1, {**me.tables(), "new": new}).wait()
            assert m._run.trackers.count == marked > 0
            if how == "refuses":
                assert m.save(1, me.tables()).wait() == 1
                if rank == 0:
                    me.check(path, 1)
            return type(caught.value), str(caught.value)

    monkeypatch.setattr(Checkpointer, "plan", plan)
    first, second = as_ranks(tmp_path / "meet", 2, body)
    if how == "refuses":
        assert second == (UsageError, "table 'new', column 'sum': 29 where there are 30 rows")
        assert first == (UsageError, f"rank 1: {second[1]}")
    else:
        assert first[0] is RankLostError
        assert "rank 1 is gone" in first[1]
        assert second is None if how == "is gone" else isinstance(second, Killed)
    sound(path)


def test_ranks_that_want_other_grids(tmp_path: Path) -> None:
    """Be it that one of them has nothing of the table."""

    def body(coordinator: FileCoordinator) -> str:
        rank = coordinator.rank
        options: dict[str, Any] = {"encoding": Grid(learning_rate=RATE * (1 + rank), c=1), "coordinator": coordinator}
        tables = {"t": Shard(np.ones((5, 2), F32), rows=(5 * rank, 5 * rank + 5), of_rows=10)} if rank < 2 else {}
        with CheckpointManager(tmp_path / "run", fs=QuickFs(), **options) as m:
            with pytest.raises(UsageError) as caught:
                m.save(0, tables).wait()
            with pytest.raises(UsageError, match="the ranks save different checkpoints: step is 0 on rank 0 and 1 on"):
                m.save(min(rank, 1), tables).wait()
            return str(caught.value)

    first, *others = as_ranks(tmp_path / "meet", 3, body)
    assert others == [first] * 2
    assert "table 't': rank 0 asks for Grid(learning_rate=0.01, restores=None, c=1" in first
    assert "and rank 1 for Grid(learning_rate=0.02" in first
