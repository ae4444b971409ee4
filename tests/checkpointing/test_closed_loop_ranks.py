"""Several ranks on a grid: each takes differences from what is stored of the rows that it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt import CheckpointManager, Shard, TableData
from cnrfmt.checkpointing.kept_columns import decoded, grids_of
from cnrfmt.checkpointing.ranks.coordinator import FileCoordinator
from cnrfmt.format.encoding import GridLayout
from tests.checkpointing.ranks import as_ranks, parts
from tests.checkpointing.support import integers_of, sound
from tests.storage.support import QuickFs

ROWS, DIM = 60, 8
F32 = np.float32
RATE = 0.01


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
                integers, known = integers_of(store, name, "weight", ids)
                assert known.all()
                assert decoded(grids["weight"], integers).tobytes() == expected.tobytes()
            _, known = integers_of(store, "rows", "weight", np.arange(ROWS))
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
