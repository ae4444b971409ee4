"""Managers of several ranks on one directory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt import CheckpointManager, CommitError, Shard, TableData, UsageError
from cnrfmt.checkpointing.ranks.coordinator import FileCoordinator
from tests.checkpointing.ranks import as_ranks, check_sound, parts
from tests.storage.support import QuickFs

ROOT = Path(__file__).parents[2]
ROWS, DIM = 64, 8


class Rank:
    """One rank's part of a model that any rank could make: rows of one table, elements of another, one whole, keys."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self.rows = parts(ROWS, ranks)[rank]
        self.elements = parts(DIM, ranks)[rank]
        self.model = Model()

    def tables(self) -> dict[str, Any]:
        (a, b), (c, d), m = self.rows, self.elements, self.model
        mine = m.keys % self.ranks == self.rank
        state = {"state": m.by_element[:, 0].copy()} if self.rank == 0 else None
        found: dict[str, Any] = {
            "rows": Shard(TableData(m.by_row[a:b], columns={"state": m.state[a:b]}), rows=(a, b), of_rows=ROWS),
            "elements": Shard(m.by_element[:, c:d], columns=state, elements=(c, d), of_dim=DIM),
            "keyed": TableData(m.by_key[mine], keys=m.keys[mine]),
        }
        if self.rank == self.ranks - 1:
            found["one"] = m.one
        return found

    def train(self, manager: CheckpointManager, step: int) -> None:
        """All ranks change their own rows of the same model; this one says which are its own."""
        ids = self.model.train(step)
        a, b = self.rows
        own = ids[(ids >= a) & (ids < b)]
        manager.track("rows", own - a)
        manager.track("elements", ids)
        keys = self.model.keys[ids % len(self.model.keys)]
        manager.track("keyed", keys[keys % self.ranks == self.rank])
        if self.rank == self.ranks - 1:
            manager.track("one", ids[:2] % 5)

    def into(self) -> dict[str, Any]:
        found = self.tables()
        found["keyed"] = None
        return found


class Model:
    """The whole model."""

    def __init__(self) -> None:
        random = np.random.default_rng(3)

        def values(*shape: int) -> np.ndarray:
            return random.normal(0, 1, shape).astype(np.float32)

        self.by_row, self.state, self.by_element, self.one = (
            values(ROWS, DIM), values(ROWS), values(ROWS, DIM), values(5, 2),
        )  # fmt: skip
        self.keys, self.by_key = np.arange(-8, 12, dtype=np.int64), values(20, 3)

    def train(self, step: int) -> np.ndarray:
        ids = np.random.default_rng(step).integers(0, ROWS, 12)
        self.by_row[ids] += 1
        self.state[ids] -= 1
        self.by_element[ids] *= 2
        self.by_key[ids % len(self.keys)] += 3
        self.one[ids[:2] % 5] += step
        return ids

    def check(self, path: Path, version: int) -> None:
        with cnrfmt.open(path, version=version, verify="all") as ck:
            pairs = [
                (ck["rows"][...], self.by_row),
                (ck["rows"].read(column="state"), self.state),
                (ck["elements"][...], self.by_element),
                (ck["elements"].read(column="state"), self.by_element[:, 0]),
                (ck["keyed"].keys, self.keys),
                (ck["keyed"][...], self.by_key),
                (ck["one"][...], self.one),
            ]
        for n, (found, expected) in enumerate(pairs):
            assert np.array_equal(found, expected), f"{n} of version {version}"


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("policy", ["full", "one-shot", "consecutive", "intermittent"])
def test_ranks_save_together_and_go_on(tmp_path: Path, policy: str, ranks: int) -> None:
    path = tmp_path / "run"

    def body(coordinator: FileCoordinator) -> list[int | None]:
        me, versions = Rank(coordinator.rank, ranks), []
        for start in range(2):
            options: dict[str, Any] = {"policy": policy, "bits": 32, "coordinator": coordinator, "fs": QuickFs()}
            with CheckpointManager(path, most_segments=max(6, 4 * ranks), keep=8, grace=0, **options) as m:
                restored = m.restore(into=me.into() if start else None, strict=False)
                assert (restored is not None) == (start == 1)
                for step in range(4 * start, 4 * start + 4):
                    me.train(m, step)
                    dense = {"step": step} if coordinator.rank == 0 else None
                    versions.append(m.save(step, me.tables(), dense=dense).wait())
                    if coordinator.rank == 0:
                        m.flush()
                        me.model.check(path, versions[-1])  # type: ignore[arg-type]
        return versions

    found = as_ranks(tmp_path / "meet", ranks, body)
    assert all(one == found[0] for one in found), found
    assert len(found[0]) == 8
    check_sound(path)
    with cnrfmt.open(path) as ck:
        assert ck.dense == {"step": 7}
        assert ck.manifest.steps()[0]


def test_what_one_rank_refuses_all_do(tmp_path: Path) -> None:
    path = tmp_path / "run"

    def body(coordinator: FileCoordinator) -> Any:
        me = Rank(coordinator.rank, 2)
        with CheckpointManager(path, policy="consecutive", bits=32, coordinator=coordinator, fs=QuickFs()) as m:
            assert m.save(0, me.tables()).wait() == 0
            me.train(m, 1)
            errors = []
            tables = me.tables()
            if coordinator.rank == 1:
                tables["one"] = cnrfmt.Rows([0])
            for step, given in ((1, tables), (coordinator.rank, me.tables())):
                try:
                    m.save(step, given).wait()
                except UsageError as error:
                    errors.append(str(error))
            version = m.save(2, me.tables()).wait()
            assert version == 1
            if coordinator.rank == 0:
                me.model.check(path, 1)
            return errors

    first, second = as_ranks(tmp_path / "meet", 2, body)
    assert len(first) == len(second) == 2, (first, second)
    assert all("takes whole tables" in errors[0] for errors in (first, second))
    assert all("step is 0 on rank 0 and 1 on rank 1" in errors[1] for errors in (first, second))
    check_sound(path)


def test_settings_that_do_not_go_with_ranks(tmp_path: Path) -> None:
    with FileCoordinator(tmp_path / "meet", 0, 1, fs=QuickFs()) as coordinator:
        with pytest.raises(UsageError, match="when_busy"):
            CheckpointManager(tmp_path / "run", coordinator=coordinator, when_busy="skip")
        with pytest.raises(UsageError, match="a single file has one writer"):
            CheckpointManager(tmp_path / "run.cnr", coordinator=coordinator)


_PROGRAM = """
import json, sys
from cnrfmt import CheckpointManager, CnrError
from cnrfmt.checkpointing.ranks.coordinator import FileCoordinator
from tests.checkpointing.test_manager_ranks import Model, Rank

path, meet, rank, ranks, until = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
me = Rank(rank, ranks)
with FileCoordinator(meet, rank, ranks, timeout=60) as coordinator:
    options = {"bits": 32, "most_segments": 64, "keep": 2, "grace": 0}
    with CheckpointManager(path, policy="consecutive", coordinator=coordinator, **options) as m:
        restored = m.restore(into=me.into(), strict=False)
        done = -1 if restored is None else restored.step
        if restored is not None:
            # What the other ranks have is made anew; what this one has is what was restored.
            mine, me.model = me.model, Model()
            for step in range(done + 1):
                me.model.train(step)
            (a, b), (c, d) = me.rows, me.elements
            me.model.by_row[a:b], me.model.state[a:b] = mine.by_row[a:b], mine.state[a:b]
            me.model.by_element[:, c:d] = mine.by_element[:, c:d]
        for step in range(done + 1, until):
            me.train(m, step)
            version = m.save(step, me.tables()).wait()
            print(json.dumps([step, version]), flush=True)
"""


def test_a_rank_that_is_killed_costs_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    path, ranks = tmp_path / "run", 5
    random, acknowledged = np.random.default_rng(1), -1
    for life in range(3):
        command = [sys.executable, "-c", _PROGRAM, str(path), str(tmp_path / "meet")]
        until = 1000 if life < 2 else acknowledged + 4
        processes = [
            subprocess.Popen(
                [*command, str(rank), str(ranks), str(until)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            for rank in range(ranks)
        ]
        if life < 2:
            assert processes[0].stdout is not None
            processes[0].stdout.readline()
            time.sleep(float(random.uniform(0, 0.3)))
            processes[int(random.integers(ranks))].send_signal(signal.SIGKILL)
        outcomes = [process.communicate(timeout=120) for process in processes]
        for out, _ in outcomes:
            steps = [json.loads(line)[0] for line in out.splitlines() if line.endswith(b"]")]
            acknowledged = max([acknowledged, *steps])
        if life == 2:
            assert [p.returncode for p in processes] == [0] * ranks, outcomes[0][1].decode()
        assert path.exists(), [error.decode()[-500:] for _, error in outcomes]
        with cnrfmt.open(path) as ck:
            assert ck.step is not None
            assert ck.step >= acknowledged
            version, step = ck.version, ck.step
        model = Model()
        for n in range(step + 1):
            model.train(n)
        model.check(path, version)
        report = cnrfmt.verify(path)
        assert report.sound, report.findings


def test_a_lost_rank_is_named(tmp_path: Path) -> None:
    def body(coordinator: FileCoordinator) -> Any:
        me = Rank(coordinator.rank, 2)
        m = CheckpointManager(tmp_path / "run", bits=32, coordinator=coordinator, fs=QuickFs())
        if coordinator.rank == 1:
            m.close()
            return None
        pending = m.save(0, me.tables())
        with pytest.raises(CommitError, match="rank 1 is gone"):
            pending.wait()
        m.close()
        return os.path.exists(tmp_path / "run" / "manifests") and os.listdir(tmp_path / "run" / "manifests")

    found = as_ranks(tmp_path / "meet", 2, body)
    assert found[0] in (False, []), found


def test_ranks_that_go_on_from_different_versions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"

    def body(coordinator: FileCoordinator) -> Any:
        me, options = Rank(coordinator.rank, 2), {"policy": "consecutive", "bits": 32, "fs": QuickFs()}
        with CheckpointManager(path, coordinator=coordinator, **options) as m:
            for step in range(3):
                me.train(m, step)
                m.save(step, me.tables()).wait()
        with CheckpointManager(path, coordinator=coordinator, **options) as m:
            m.restore(version=1 + coordinator.rank, into=me.into(), strict=False)
            me.train(m, 3)
            with pytest.raises(UsageError, match="the ranks save different checkpoints: base is"):
                m.save(3, me.tables()).wait()
        return True

    assert as_ranks(tmp_path / "meet", 2, body) == [True, True]
    check_sound(path)


@pytest.mark.parametrize("policy", ["consecutive", "intermittent"])
def test_a_checkpoint_in_which_no_rank_marked_anything(tmp_path: Path, policy: str) -> None:
    path = tmp_path / "run"

    def body(coordinator: FileCoordinator) -> Any:
        me = Rank(coordinator.rank, 2)
        with CheckpointManager(path, policy=policy, bits=32, coordinator=coordinator, fs=QuickFs()) as m:
            found = [m.save(step, me.tables()).wait() for step in range(2)]
            if coordinator.rank == 0:
                me.model.check(path, 1)
            return found

    assert as_ranks(tmp_path / "meet", 2, body) == [[0, 1], [0, 1]]
    check_sound(path)


def test_a_shard_that_moves_asks_for_a_baseline(tmp_path: Path) -> None:
    path, table = tmp_path / "run", np.arange(20, dtype=np.float32).reshape(10, 2)

    def shard(rank: int, cut: int) -> dict[str, Any]:
        first, end = ((0, cut), (cut, 10))[rank]
        return {"t": Shard(table[first:end], rows=(first, end), of_rows=10)}

    def body(coordinator: FileCoordinator) -> Any:
        rank = coordinator.rank
        with CheckpointManager(path, bits=32, coordinator=coordinator, fs=QuickFs()) as m:
            m.save(0, shard(rank, 5)).wait()
            with pytest.raises(UsageError, match=r"save\(kind='baseline'\) on all ranks"):
                m.save(1, shard(rank, 6)).wait()
            return m.save(1, shard(rank, 6), kind="baseline").wait()

    assert as_ranks(tmp_path / "meet", 2, body) == [1, 1]
    assert np.array_equal(cnrfmt.load(path)["t"], table)


def test_a_rank_may_have_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run"

    def body(coordinator: FileCoordinator) -> Any:
        tables = {} if coordinator.rank else {"t": np.ones((3, 2), np.float32)}
        options = {"bits": 32, "coordinator": coordinator, "fs": QuickFs()}
        with CheckpointManager(path, **options) as m:
            m.save(0, tables).wait()
        with CheckpointManager(path, **options) as m:
            restored = m.restore(into=tables, strict=False)
            assert restored is not None
            if tables:
                m.track("t", [1])
            return sorted(restored.tables), m.save(1, tables, metrics={"auc": 1}).wait()

    assert as_ranks(tmp_path / "meet", 2, body) == [(["t"], 1), ([], 1)]
    check_sound(path)
