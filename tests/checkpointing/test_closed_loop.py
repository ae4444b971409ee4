"""Runs on a grid: whatever happens, differences are taken from what a reader decodes, bit for bit."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

import cnrfmt
from cnrfmt import CheckpointManager, CnrError, Dropped, Keep, MissingKeyError, TableData
from cnrfmt.checkpointing.kept_columns import decoded, grids_of
from tests.checkpointing.support import Disk, integers_of, sound

RATE = 0.01
OCTAVES = 4


class Model:
    """Tables with optimizer state: dense ones, one of which comes and goes, and a keyed one."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.arrays: dict[str, Any] = {name: self._made(rows, 5) for name, rows in (("user", 30), ("item", 20))}
        self.keys = np.array([-7, 3, 11, 400], np.int64)
        self.arrays["visitor"] = self._made(len(self.keys), 2)
        self.dropped: set[str] = set()
        self.step = 0

    def _made(self, rows: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
        values = self.random.normal(0, 0.1, (rows, dim)).astype(np.float32)
        return values, self.random.uniform(0.01, 3, rows).astype(np.float32)

    def tables(self) -> dict[str, Any]:
        """The live tables as `save` takes them."""
        found: dict[str, Any] = dict.fromkeys(self.dropped, Dropped())
        for name, (values, state) in self.arrays.items():
            keys = self.keys if name == "visitor" else None
            found[name] = TableData(values, columns={"accumulator": state}, keys=keys)
        return found

    def train(self, manager: CheckpointManager, count: int, scale: float) -> None:
        """Moves some rows of all tables, and says which."""
        self.step += 1
        for name, (values, state) in self.arrays.items():
            if len(values):
                rows = np.unique(self.random.integers(0, len(values), count))
                moved = self.random.normal(0, scale, (len(rows), values.shape[1]))
                values[rows] += moved.astype(np.float32)
                state[rows] += (moved**2).mean(axis=1).astype(np.float32)
                # A table that no checkpoint has yet comes whole.
                with suppress(MissingKeyError) if name == "item" else nullcontext():
                    manager.track(name, self.keys[rows] if name == "visitor" else rows)

    def spoil(self, manager: CheckpointManager, value: float) -> None:
        """Values that no grid holds."""
        values, _ = self.arrays["user"]
        row = int(self.random.integers(0, len(values)))
        values[row, 1] = value
        manager.track("user", [row])

    def resize(self, manager: CheckpointManager, rows: int) -> None:
        values, state = self.arrays["user"]
        more = self._made(max(0, rows - len(values)), 5)
        self.arrays["user"] = np.concatenate([values[:rows], more[0]]), np.concatenate([state[:rows], more[1]])
        manager.resize("user", rows)

    def toggle(self, manager: CheckpointManager) -> None:
        """A table goes, or comes anew, with another dim as it happens."""
        if "item" in self.arrays:
            del self.arrays["item"]
            self.dropped.add("item")
        else:
            self.arrays["item"] = self._made(12, int(self.random.integers(4, 6)))
            self.dropped.clear()
            # Where no checkpoint was made meanwhile, it is the same table with other rows.
            with suppress(CnrError):
                manager.resize("item", 12)
                manager.track("item", range(12))

    def admit(self, manager: CheckpointManager, key: int) -> None:
        if key not in self.keys:
            self.keys = np.append(self.keys, np.int64(key))
            self.arrays["visitor"] = tuple(
                np.concatenate(both) for both in zip(self.arrays["visitor"], self._made(1, 2), strict=True)
            )
            manager.track("visitor", [key])

    def evict(self, manager: CheckpointManager, key: int) -> None:
        stays = self.keys != key
        self.keys = self.keys[stays]
        self.arrays["visitor"] = tuple(array[stays] for array in self.arrays["visitor"])
        manager.forget("visitor", [key])

    def take_over(self, restored: Any) -> None:
        self.arrays = {n: (t.values, t.columns["accumulator"]) for n, t in restored.tables.items()}
        self.dropped = {"item"} - set(self.arrays)
        self.keys = restored.tables["visitor"].keys
        self.step = restored.step


def read(path: Path, version: int | None = None) -> dict[tuple[str, str], bytes]:
    """All that a version says, as bytes, by table and column."""
    with cnrfmt.open(path, version=version, verify="all") as ck:
        found = {(name, column): t.read(column=column).tobytes() for name, t in ck.items() for column in t.columns}
        keys = {(name, "keys"): t.keys.tobytes() for name, t in ck.items() if t.keys is not None}
        return found | keys


def check_near(path: Path, version: int, model: Model) -> None:
    """That every row is as near as the coarsest step allows, and a row that no grid holds is what it was."""
    with cnrfmt.open(path, version=version) as ck:
        assert set(ck) == set(model.arrays)
        for name, (values, state) in model.arrays.items():
            t = ck[name]
            found = t[model.keys] if t.keyed else t[...]
            finite = np.isfinite(values).all(axis=1) & (np.abs(values) < 1e3).all(axis=1)
            assert found[~finite].tobytes() == values[~finite].tobytes()
            step = 2 * RATE * 2 ** (OCTAVES + 0.5)
            assert np.abs(found[finite] - values[finite]).max(initial=0) <= step / 2 * 1.0001
            kept = t.read(model.keys, column="accumulator") if t.keyed else t.read(column="accumulator")
            assert (kept > 0).all()
            assert len(kept) == len(state)


def check_stored(manager: CheckpointManager, path: Path) -> None:
    """That what differences are taken from is what a reader of that version decodes."""
    run = manager._run
    base = run.lineage.baseline if run.settings.policy.needs_since_baseline else run.lineage.base
    if base is None:
        return
    store = run.bases.of(run.lineage, base, None)
    assert store is not None
    assert store.state == base.state
    with cnrfmt.open(path, version=run.lineage.base.version) as ck:  # type: ignore[union-attr]
        view = ck.view.at(base)
        for schema in view.manifest.tables:
            t = cnrfmt.Table(view, schema)
            ids = np.arange(len(t)) if t.keys is None else t.keys
            grids = grids_of(store.plan(t.name))
            for column in t.columns:
                expected = t.read(ids, column=column)
                is_kept = column in grids or run.settings.stored_values is not None
                if base is run.lineage.base and is_kept:
                    assert store.read(t.name, ids, column).tobytes() == expected.tobytes()
                integers, known = integers_of(store, t.name, column, ids)
                assert known.any() <= (column in grids)
                if column in grids:
                    values = decoded(grids[column], integers).reshape(expected.shape)
                    assert values[known].tobytes() == expected[known].tobytes()


class Loop(RuleBasedStateMachine):
    """Every version that was acknowledged stays as it was read at once, and stored values are what is stored."""

    @initialize(
        policy=st.sampled_from([None, "one-shot", "consecutive", "intermittent"]),
        mode=st.sampled_from(["encode", "copy"]),
        where=st.sampled_from([None, "memory", "container"]),
        most=st.sampled_from([4, 32]),
        share=st.sampled_from(["auto", 0.3, None]),
        keep=st.sampled_from([None, 1, Keep(every_steps=3)]),
        busy=st.sampled_from(["wait", "skip", "replace"]),
        single=st.booleans(),
        seed=st.integers(0, 99),
    )
    def begin(
        self, policy: Any, mode: Any, where: Any, most: int, share: Any, keep: Any, busy: Any, single: bool, seed: int
    ) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / ("model.cnr" if single else "run")
        beside = {} if single else {"keep": keep, "merge_share": share}
        self.options = {"policy": policy, "mode": mode, "most_segments": most, "when_busy": busy, **beside}
        self.options |= {"stored_values": where}
        self.model, self.said = Model(seed), dict[int, dict[tuple[str, str], bytes]]()
        self.disk = Disk()
        self.rate = RATE
        self.manager = self._manager()

    def _manager(self) -> CheckpointManager:
        options: dict[str, Any] = {"learning_rate": self.rate, "expected_restores": 3, "threads": 2, "grace": 0}
        return CheckpointManager(self.path, fs=self.disk, **options, **self.options)

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            self.manager.close()
            if self.said:
                sound(self.path)
            self.folder.cleanup()

    def _check(self, version: int) -> None:
        self.said[version] = read(self.path, version)
        check_near(self.path, version, self.model)
        self.manager.flush()
        check_stored(self.manager, self.path)

    @rule(count=st.sampled_from([2, 12]), scale=st.sampled_from([0.001, 0.01, 0.3]))
    def train(self, count: int, scale: float) -> None:
        self.model.train(self.manager, count, scale)

    @rule(value=st.sampled_from([float("nan"), float("-inf"), 3e7, 2e4]))
    def spoil(self, value: float) -> None:
        self.model.spoil(self.manager, value)

    @rule(rows=st.integers(20, 34))
    def resize(self, rows: int) -> None:
        self.model.resize(self.manager, rows)

    @precondition(lambda self: self.said)
    @rule()
    def toggle(self) -> None:
        self.model.toggle(self.manager)

    @rule(key=st.integers(-5, 5))
    def admit(self, key: int) -> None:
        self.model.admit(self.manager, key)

    @rule(key=st.integers(-7, 5))
    def evict(self, key: int) -> None:
        self.model.evict(self.manager, key)

    @rule(kind=st.sampled_from([None, None, None, "baseline", "delta"]))
    def save(self, kind: Any) -> None:
        version = self.manager.save(self.model.step, self.model.tables(), kind=kind if self.said else None).wait()
        assert version is not None
        self._check(version)

    @precondition(lambda self: self.said)
    @rule()
    def save_twice(self) -> None:
        """The second is skipped, takes the first one's place, or waits."""
        first = self.manager.save(self.model.step, self.model.tables())
        self.model.train(self.manager, 5, 0.01)
        second = self.manager.save(self.model.step, self.model.tables())
        with suppress(cnrfmt.SupersededError):
            first.wait()
        if not second.skipped:
            version = second.wait()
            assert version is not None
            self._check(version)
        self.manager.flush()
        check_stored(self.manager, self.path)

    @rule(failing=st.sampled_from(["sync", "names"]))
    def fail(self, failing: str) -> None:
        self.disk.failing = failing
        pending = self.manager.save(self.model.step, self.model.tables())
        try:
            pending.wait()
        except CnrError:
            pass
        finally:
            self.disk.failing, self.disk.armed = None, False
        self.manager.flush()

    @precondition(lambda self: self.said)
    @rule(older=st.booleans(), rate=st.sampled_from([RATE, RATE, RATE / 8]), data=st.data())
    def restart(self, older: bool, rate: float, data: Any) -> None:
        self.manager.close()
        self.rate = rate
        self.manager = self._manager()
        with cnrfmt.open(self.path) as ck:
            versions = [v for v in ck.versions if v in self.said]
        wanted = data.draw(st.sampled_from(versions)) if older and versions else None
        restored = self.manager.restore(version=wanted)
        assert restored is not None
        self.model.take_over(restored)
        check_stored(self.manager, self.path)

    @precondition(lambda self: self.said)
    @rule(what=st.sampled_from(["tag", "compact", "collect"]))
    def meddle(self, what: str) -> None:
        self.manager.flush()
        if what == "compact":
            cnrfmt.compact(self.path)
        elif self.path.is_dir():
            if what == "tag":
                cnrfmt.tag(self.path, "prod")
            else:
                cnrfmt.collect(self.path, grace=0)

    @precondition(lambda self: self.said)
    @rule()
    def look(self) -> None:
        self.manager.flush()
        with cnrfmt.open(self.path) as ck:
            versions = ck.versions
        for version in versions:
            if version in self.said:
                assert read(self.path, version) == self.said[version]


def test_runs_on_a_grid_in_any_order_of_events() -> None:
    # What fails here is a story of a few events already, and takes minutes to make shorter.
    phases = [phase for phase in settings().phases if phase != Phase.shrink]
    run_state_machine_as_test(Loop, settings=settings(phases=phases, stateful_step_count=20, deadline=None))
