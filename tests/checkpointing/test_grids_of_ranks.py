"""Several ranks on one grid: they choose it together, by the rows of all, and never wait for it where it is known."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt import CheckpointManager, CommitError, Grid, Shard, TableData, UsageError
from cnrfmt.checkpointing.checkpointer import Checkpointer
from cnrfmt.checkpointing.ranks.coordinator import FileCoordinator
from cnrfmt.encodings.grid import CHECKPOINTS
from cnrfmt.errors import RankLostError
from tests.checkpointing.ranks import as_ranks, parts
from tests.checkpointing.support import sound
from tests.checkpointing.test_closed_loop_ranks import DIM, F32, RATE, ROWS, Whole
from tests.storage.support import Killed, QuickFs

KNOWN: dict[str, Any] = {"learning_rate": RATE, "expected_restores": 5}


class Uneven:
    """Tables whose first rows are the least active by far, cut in as many ways as there are."""

    def __init__(self, coordinator: FileCoordinator | None) -> None:
        self.rank, self.ranks = (0, 1) if coordinator is None else (coordinator.rank, coordinator.world_size)
        values = np.random.default_rng(8).normal(0, 0.1, (ROWS, DIM)).astype(F32)
        names = ("rows", "squares", "elements", "keyed", "plain", "one")
        self.weights = {name: values.copy() for name in names}
        self.state = np.concatenate([np.zeros(7), np.geomspace(1e-6, 1e6, ROWS - 7)]).astype(F32)
        self.squares = (self.state[:, None] * (1 + np.abs(values))).astype(F32)

    def tables(self) -> dict[str, Any]:
        (a, b), (c, d), w = parts(ROWS, self.ranks)[self.rank], parts(DIM, self.ranks)[self.rank], self.weights
        rows: dict[str, Any] = {"rows": (a, b), "of_rows": ROWS}
        elements: dict[str, Any] = {"elements": (c, d), "of_dim": DIM}
        keys, last = np.arange(self.rank, ROWS, self.ranks), self.rank == self.ranks - 1

        def one(some: Any) -> dict[str, Any]:
            return {"sum": self.state[some].copy(), "seen": self.state[some] * 3}

        found = {
            "rows": Shard(w["rows"][a:b], columns=one(slice(a, b)), **rows),
            "squares": Shard(w["squares"][a:b], columns={"exp_avg_sq": self.squares[a:b]}, **rows),
            "elements": Shard(w["elements"][:, c:d], columns=one(slice(None)) if last else None, **elements),
            "keyed": TableData(w["keyed"][keys], keys=keys, columns=one(keys)),
            "plain": Shard(w["plain"][:, c:d], **elements),
        }
        return {**found, "one": TableData(w["one"], columns=one(slice(None)))} if last else found

    def train(self, manager: CheckpointManager, tables: dict[str, Any]) -> None:
        """Changes all but the keyed table."""
        a, b = parts(ROWS, self.ranks)[self.rank]
        for name in set(tables) - {"keyed"}:
            self.weights[name] += F32(0.05)
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


def by(column: str) -> Grid:
    return Grid(learning_rate=RATE, restores=5, by=column)


BY_STATE = {"squares": by("exp_avg_sq"), **dict.fromkeys(("rows", "elements", "keyed", "one"), by("sum"))}


@pytest.mark.parametrize("encoding", ["auto", "grid", BY_STATE], ids=["auto", "grid", "by state"])
def test_all_ranks_take_the_plan_of_one_writer(tmp_path: Path, encoding: Any) -> None:
    def options(coordinator: FileCoordinator | None) -> dict[str, Any]:
        return {"coordinator": coordinator, "fs": QuickFs(), "threads": 1, "encoding": encoding, **KNOWN}

    def saved(path: Path, coordinator: FileCoordinator | None) -> None:
        me = Uneven(coordinator)
        with CheckpointManager(path, merge_share=None, **options(coordinator)) as m:
            tables = me.tables()
            if coordinator is None:
                whole = {name: x for name, x in tables.items() if isinstance(x, Shard)}
                tables |= {name: TableData(x.values, columns=x.columns or {}) for name, x in whole.items()}
            if m.restore(into={**tables, "keyed": None}) is not None:
                me.train(m, tables)
            m.save(0, tables).wait()

    saved(tmp_path / "alone", None)
    alone = constants(tmp_path / "alone")
    grids = {name for name, found in alone.items() if any(column == "weight" and step for column, _, step in found)}
    assert grids == set(alone) - (set() if encoding == "grid" else {"plain"})
    (step,) = [step for column, _, step in alone["rows"] if column == "weight"]
    is_counted = encoding is not BY_STATE
    reference = 2 if is_counted else float(np.median(Uneven(None).state[7:]))
    assert step.reference == pytest.approx(reference, rel=0.01)
    for ranks in (2, 3):
        path, others = tmp_path / str(ranks), 5 - ranks
        assert as_ranks(tmp_path / f"meet{ranks}", ranks, lambda one, path=path: saved(path, one)) == [None] * ranks
        assert constants(path) == alone
        # Others go on from there, with other shards.
        assert as_ranks(tmp_path / f"then{ranks}", others, lambda one, path=path: saved(path, one)) == [None] * others
        with cnrfmt.open(path) as ck:
            assert len(ck.manifest.steps()) == 2
        assert constants(path) == alone
        columns = {"weight", "sum", "seen", *([CHECKPOINTS] if is_counted else [])}
        assert {column for column, _, _ in constants(path, newest=True)["elements"]} == columns
        sound(path)


def test_ranks_wait_for_grids_of_new_tables_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where one of them doesn't know that there is a new one, and where one had no rows before."""
    path, state = tmp_path / "run", np.geomspace(1, 1e6, ROWS).astype(F32)
    real, met = FileCoordinator.gather, Counter[int]()

    def gather(coordinator: FileCoordinator, name: str, payload: bytes) -> list[bytes]:
        met[coordinator.rank] += name == "plan"
        return real(coordinator, name, payload)

    def shard(a: int, b: int, of: int) -> Shard:
        values = np.full((b - a, 4), 0.5, F32)
        return Shard(TableData(values, columns={"sum": state[a:b]}), rows=(a, b), of_rows=of)

    def body(coordinator: FileCoordinator) -> list[int]:
        rank = coordinator.rank
        first, grown = [(0, 20), (20, 40), (40, 40)][rank], [(0, 20), (20, 40), (40, ROWS)][rank]
        own = {f"own {rank}": TableData(np.ones((9, 4), F32), columns={"sum": state[:9]})}
        counts = []
        with CheckpointManager(path, coordinator=coordinator, fs=QuickFs(), merge_share=None, **KNOWN) as m:

            def save(tables: dict[str, Any], **options: Any) -> None:
                before = met[rank]
                m.save(0, {**own, **tables}, **options).wait()
                counts.append(met[rank] - before)

            save({})
            save({"t": shard(*first, 40)})
            save({"t": shard(*grown, ROWS)})
            new = {"new": shard(*[(0, 5), (5, ROWS)][rank], ROWS)} if rank < 2 else {}
            save({"t": shard(*grown, ROWS), **new})
            save({"t": shard(*grown, ROWS), **new}, kind="baseline")
        return counts

    monkeypatch.setattr(FileCoordinator, "gather", gather)
    assert as_ranks(tmp_path / "meet", 3, body) == [[1, 2, 1, 2, 2]] * 3
    for version in range(1, 5):
        with cnrfmt.open(path, version=version) as ck:
            for name in ck:
                steps = ck.view.steps_of(ck[name].schema.table_id)
                weights = [p for step in steps for _, e in step for p in e.parts if p.column == "weight"]
                assert len(weights) == {"t": [2, 3, 3, 3][version - 1], "new": 2}.get(name, 1)
                assert len({(part.layout.grid, part.scheme.step) for part in weights}) == 1  # type: ignore[union-attr]
    sound(path)


def test_a_row_wise_chain_comes_onto_one_grid(tmp_path: Path) -> None:
    """Whoever writes nothing of a table when it does takes the same grid later on."""
    encoding = {"t": by("sum")}
    path, state = tmp_path / "run", np.geomspace(1, 1e6, ROWS).astype(F32)

    def body(coordinator: FileCoordinator) -> None:
        rank, options = coordinator.rank, {"coordinator": coordinator, "fs": QuickFs(), "merge_share": None}
        a, b = parts(ROWS, 2)[rank]
        values = np.ones((b - a, DIM), F32)
        table = Shard(TableData(values, columns={"sum": state[a:b].copy()}), rows=(a, b), of_rows=ROWS)
        with CheckpointManager(path, bits=8, policy="consecutive", **options) as m:
            m.save(0, {"t": table}).wait()
        with CheckpointManager(path, encoding=encoding, **options) as m:
            assert m.restore(into={"t": table}) is not None
            for step in (1, 2):
                values += F32(0.5)
                m.track("t", range(b - a) if rank == 0 or step == 2 else [])
                m.save(step, {"t": table}).wait()

    assert as_ranks(tmp_path / "meet", 2, body) == [None] * 2
    with cnrfmt.open(path) as ck:
        steps = [[p for _, e in step for p in e.parts] for step in ck.view.steps_of(ck["t"].schema.table_id)]
    weights = [[part for part in step if part.column == "weight"] for step in steps]
    assert [len(step) for step in weights] == [2, 1, 2]
    references = {part.scheme.step.reference for step in weights[1:] for part in step}  # type: ignore[union-attr]
    assert len(references) == 1
    assert len({part.layout.grid for step in weights[1:] for part in step}) == 1  # type: ignore[union-attr]
    assert next(iter(references)) == pytest.approx(float(np.median(state[1:])), rel=0.01)
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
