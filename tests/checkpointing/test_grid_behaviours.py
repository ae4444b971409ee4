"""What docs/grid.md says of runs on a grid, behaviour by behaviour."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt import CheckpointManager, Grid, Quantize, TableData, UsageError
from cnrfmt.checkpointing.bases import Bases
from cnrfmt.checkpointing.compacting.compaction import compact
from cnrfmt.encodings.grid import CHECKPOINTS
from cnrfmt.encodings.grid_plan import GridPlan, is_counted
from cnrfmt.format.encoding import GridLayout, RowwiseLayout
from tests.checkpointing.support import sound
from tests.storage.support import QuickFs

RATE = 0.01
KNOWN: dict[str, Any] = {"learning_rate": RATE, "expected_restores": 3}
STEP = 1.5 * RATE
DIM = 4


class Run:
    """A dense table with row-wise Adagrad, and checkpoints of it; not merged, so that each is looked at by itself."""

    def __init__(self, path: Path, rows: int = 60, *, touched: bool = True, **options: Any) -> None:
        self.random, self.path = np.random.default_rng(3), path
        self.values = self.random.normal(0, 0.1, (rows, DIM)).astype(np.float32)
        self.state = (self.random.uniform(0.5, 2, rows) if touched else np.zeros(rows)).astype(np.float32)
        self.options = {**KNOWN, "merge_share": None, "fs": QuickFs(), "threads": 1, **options}
        self.manager = CheckpointManager(path, **self.options)
        self.step = 0

    def tables(self) -> dict[str, Any]:
        return {"t": TableData(self.values, columns={"accumulator": self.state})}

    def move(self, ids: Any, by: float) -> None:
        """Moves rows, and says so."""
        self.values[ids] += self.random.normal(0, by, (len(self.values[ids]), DIM)).astype(np.float32)
        self.state[ids] += np.float32(by * by)
        self.manager.track("t", np.arange(len(self.values))[ids])

    def save(self, **options: Any) -> int:
        self.step += 1
        version = self.manager.save(self.step, self.tables(), **options).wait()
        assert version is not None
        self.manager.wait()
        return version

    def again(self, **options: Any) -> None:
        """Another process goes on."""
        self.manager.close()
        self.manager = CheckpointManager(self.path, **{**self.options, **options})
        restored = self.manager.restore()
        assert restored is not None
        self.values, self.state = restored.tables["t"].values, restored.tables["t"].columns["accumulator"]

    @property
    def plan(self) -> GridPlan:
        """The grid that the newest version is on."""
        store = self.manager._run.bases._own
        assert store is not None
        plan = store.plan("t")
        assert plan is not None
        return plan

    def steps(self) -> np.ndarray[Any, Any]:
        """The step of each row in the newest version; where nobody counts checkpoints, by what the trainer has now."""
        plan = self.plan
        activity = self.counts().astype(np.float32) if is_counted(plan) else self.state
        return np.ldexp(1.0, plan.exponents(activity, len(activity)).astype(int) + plan.floor)

    def counts(self) -> np.ndarray[Any, Any]:
        """How many checkpoints each row was in."""
        with cnrfmt.open(self.path) as ck:
            return ck["t"].read(column=CHECKPOINTS).astype(int)

    def stored(self) -> np.ndarray[Any, Any]:
        with cnrfmt.open(self.path, verify="all") as ck:
            found: np.ndarray[Any, Any] = ck["t"][...]
            return found

    def rows_written(self) -> list[int]:
        """Rows of the newest version, by part of the weight: of the differences, and of those that stand alone."""
        with cnrfmt.open(self.path) as ck:
            newest = ck.view.segments[ck.manifest.chain[-1].segment].toc
            counts = [0, 0]
            for entry in newest.tables:
                for part in entry.parts:
                    if part.column == "weight" and part.exceptions_of is None:
                        counts[not part.layout.is_residual] += entry.row_sets[part.rows].count
            return counts


@pytest.fixture
def run(tmp_path: Path) -> Any:
    found = Run(tmp_path / "run")
    yield found
    found.manager.close()
    sound(found.path)


def test_errors_stay_below_half_a_step_however_many_deltas_there_are(run: Run) -> None:
    run.save()
    for _ in range(20):
        run.move(slice(None), 0.004)
        steps = run.steps()
        run.save()
        assert (np.abs(run.stored() - run.values) <= steps[:, None] / 2 * 1.0001).all()
    # They get finer with each checkpoint that a row is in, in powers of two.
    assert set(run.steps()) <= {2.0 ** round(np.log2(STEP * min(1, 2 / n))) for n in range(2, 22)}
    assert run.steps().min() < STEP / 4


def test_a_delta_of_all_rows_of_a_table(run: Run) -> None:
    """Its rows are a range, without a row index; and differences are taken from it."""
    run.save()
    for _ in range(3):
        run.move(slice(None), 0.1)
        run.save()
        assert run.rows_written() == [60, 0]
        assert np.abs(run.stored() - run.values).max() <= run.steps().max() / 2 * 1.0001


def test_new_rows_stand_alone_and_differ_from_then_on(run: Run) -> None:
    run.save()
    more = run.random.normal(0, 0.1, (5, DIM)).astype(np.float32)
    run.values = np.concatenate([run.values, more])
    run.state = np.concatenate([run.state, np.ones(5, np.float32)])
    run.save()
    assert run.rows_written() == [0, 5]
    assert np.abs(run.stored() - run.values)[60:].max() <= STEP
    run.move(slice(60, 65), 0.1)
    run.save()
    assert run.rows_written() == [5, 0]


def test_keys_that_are_admitted_stand_alone(tmp_path: Path) -> None:
    path, keys = tmp_path / "run", np.array([5, -3, 9])
    values, state = np.full((3, DIM), 0.3, np.float32), np.ones(3, np.float32)

    def tables() -> dict[str, Any]:
        return {"v": TableData(values, columns={"accumulator": state}, keys=keys)}

    with CheckpointManager(path, **KNOWN, merge_share=None, fs=QuickFs()) as manager:
        manager.save(0, tables()).wait()
        keys, values = np.append(keys, 77), np.concatenate([values, np.full((1, DIM), -0.6, np.float32)])
        state = np.ones(4, np.float32)
        values[0] += 0.1
        manager.track("v", [5, 77])
        manager.save(1, tables()).wait()
    with cnrfmt.open(path) as ck:
        assert np.abs(ck["v"][np.array([5, 77])] - values[[0, 3]]).max() <= STEP / 2 * 1.5
        newest = ck.view.segments[ck.manifest.chain[-1].segment].toc.tables[0]
        kinds = {(p.layout.is_residual, newest.row_sets[p.rows].count) for p in newest.parts if p.column == "weight"}
        assert kinds == {(True, 1), (False, 1)}


BY_STATE = {"encoding": Grid(learning_rate=RATE, restores=3, by="accumulator"), "learning_rate": None}
BY_STATE |= {"expected_restores": None}


def test_the_first_baseline_fixes_grid_reference_and_codes(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", **BY_STATE)
    run.save()
    first = run.plan
    assert first.step.column == "accumulator"
    assert first.step.reference == pytest.approx(float(np.median(run.state)), rel=0.1)
    run.state *= 16
    run.move(slice(None), 0.1)
    run.save()
    assert run.plan == first
    # The next baseline fixes them anew.
    run.save(kind="baseline")
    assert run.plan.step.reference == pytest.approx(16 * (first.step.reference or 0), rel=0.1)
    run.manager.close()


def test_a_baseline_before_any_training_has_equal_steps_until_the_next(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", touched=False, **BY_STATE)
    run.save()
    assert run.plan.step.reference is None
    run.state[:] = 10 ** run.random.uniform(-2, 2, len(run.state))
    run.move(slice(None), 0.05)
    run.save()
    assert set(run.steps()) == {2.0 ** round(np.log2(2 * RATE))}
    run.save(kind="baseline")
    assert len(set(run.steps())) > 2
    run.manager.close()


@pytest.mark.parametrize("where", [None, "container"])
def test_a_row_is_stored_in_finer_steps_with_each_checkpoint_that_it_is_in(tmp_path: Path, where: Any) -> None:
    """The counts survive restarts, merges, failed saves and baselines; rows that wait aren't counted."""
    run, counts = Run(tmp_path / "run", stored_values=where, expected_restores=10), np.ones(60, int)
    run.save()
    for step in range(1, 30):
        rows = slice(0, 59, 1 + step % 7)
        run.values[59] = run.stored()[59]
        run.manager.track("t", [59])
        run.move(rows, 0.3)
        run.save()
        counts[rows] += 1
        assert run.counts().tolist() == counts.tolist()
        if step % 5 == 0:
            run.again(merge_share=0.01 if step == 15 else None)
        if step == 12:
            run.save(kind="baseline")
    assert np.log2(run.steps()).tolist() == np.round(np.log2(0.625 * RATE * np.clip(2 / counts, 1 / 16, 1))).tolist()
    assert len(set(run.steps())) == 4
    sound(run.path)
    run.manager.close()


def test_untouched_rows_have_the_longest_steps(run: Run) -> None:
    run.state[:30] = 0
    run.save()
    steps = run.steps()
    assert set(steps[:30]) == {steps.max()}
    assert (np.abs(run.stored() - run.values) <= steps[:, None] / 2).all()


@pytest.mark.parametrize("mode", ["encode", "copy"])
def test_a_table_below_half_a_step_is_told_of(tmp_path: Path, mode: str, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(tmp_path / "run", mode=mode, learning_rate=4)
    lost = run.values
    run.save()
    assert not run.stored().any()
    (said,) = caplog.messages
    assert said.startswith(f"{run.path}: table 't' is stored as zeros, or nearly: its values are below half a step (")
    assert "(grid, steps of " in said
    assert "; a mean relative error of 1)" in said
    with cnrfmt.open(run.path) as ck:
        (entry,) = next(iter(ck.view.segments.values())).toc.tables
        errors = entry.parts[0].errors
    assert (errors.mean, errors.worst) == (1.0, 1.0)
    # A delta stores nothing of rows that don't move by half a step, and a table of zeros loses nothing.
    run.move(slice(0, 9), 0.01)
    run.save()
    run.values = np.zeros_like(lost)
    run.save(kind="baseline")
    # Some rows that are as long as a step say that it isn't out of all proportion.
    run.values = lost.copy()
    run.values[:9] += 20
    run.save(kind="baseline")
    assert len(caplog.messages) == 1
    run.values = lost
    run.save(kind="baseline")
    assert len(caplog.messages) == 2
    run.manager.close()


def test_rows_that_hardly_moved_wait_and_stay_marked(run: Run) -> None:
    run.save()
    run.values[:] = run.stored()
    run.values[:10] += run.steps()[:10, None] * np.float32(0.4)
    run.manager.track("t", range(10))
    before = run.stored()
    run.save()
    assert run.rows_written() == [0, 0]
    assert np.array_equal(run.stored(), before)
    # Further than half a step together, without a mark of their own.
    run.values[:10] += run.steps()[:10, None] * np.float32(0.4)
    run.save()
    assert run.rows_written() == [10, 0]
    assert np.abs(run.stored() - run.values)[:10].max() <= run.steps()[:10].max() / 2


def test_rows_changed_by_hand_are_stored_however_far_they_moved(run: Run) -> None:
    run.save()
    run.values[7] = 500
    run.manager.track("t", [7])
    run.values[8] = 500
    run.save()
    found = run.stored()
    assert np.abs(found[7] - 500).max() <= run.steps()[7] / 2
    # One that isn't marked isn't looked at.
    assert np.abs(found[8]).max() < 1


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e6])
def test_rows_that_a_grid_cannot_hold_stay_exact_and_come_back(run: Run, value: float) -> None:
    run.save()
    run.values[3, 1] = value
    run.manager.track("t", [3])
    run.save()
    assert run.stored()[3].tobytes() == run.values[3].tobytes()
    run.values[3] = 0.25
    run.manager.track("t", [3])
    run.save()
    assert run.rows_written() == [0, 1]
    assert np.abs(run.stored()[3] - 0.25).max() <= run.steps()[3] / 2
    run.values[3] = 0.75
    run.manager.track("t", [3])
    run.save()
    assert run.rows_written() == [1, 0]


def test_small_growth_of_an_accumulator_is_not_lost_by_restores(tmp_path: Path) -> None:
    """Nearest codes would stand still: one of 12 bits is up to 1/128 of a value, and rows grow by 1/1000 or so."""
    run = Run(tmp_path / "run", rows=2000)
    start = run.state.copy()
    run.save()
    for _ in range(20):
        run.again()
        run.values[:] += 2 * run.steps().max()
        # All of them alike, so that a number that was restored becomes the same number each time.
        run.state *= np.float32(1.001)
        run.manager.track("t", range(2000))
        run.save()
    run.again()
    assert float(np.mean(run.state / start)) == pytest.approx(1.001**20, abs=0.002)
    run.manager.close()


def test_optimizers_without_state_have_equal_steps_where_a_grid_is_asked_for(tmp_path: Path) -> None:
    live = {"t": np.random.default_rng(0).normal(0, 0.1, (50, DIM)).astype(np.float32)}
    for name, options in (("auto", KNOWN), ("grid", {"encoding": "grid", **KNOWN}), ("by", {"encoding": _FLAT})):
        with CheckpointManager(tmp_path / name, fs=QuickFs(), **options) as manager:  # type: ignore[arg-type]
            manager.save(0, live).wait()
        with cnrfmt.open(tmp_path / name) as ck:
            assert isinstance(ck["t"].encoding, RowwiseLayout if name == "auto" else GridLayout)
            if name != "auto":
                assert np.abs(ck["t"][...] - live["t"]).max() <= 2.0 ** round(np.log2(STEP)) / 2


_FLAT = Grid(learning_rate=RATE, c=1.5, by=None)


def test_a_count_of_updates_tells_as_well(tmp_path: Path) -> None:
    counts = np.arange(1, 51, dtype=np.int64) ** 2
    live = {"t": TableData(np.zeros((50, DIM), np.float32), columns={"count": counts})}
    encoding = Grid(learning_rate=RATE, restores=3, by="count")
    with CheckpointManager(tmp_path / "run", fs=QuickFs(), encoding=encoding) as manager:
        manager.save(0, live).wait()
        plan = manager._run.bases._own.plan("t")  # type: ignore[union-attr]
        assert plan is not None
        exponents = plan.exponents(counts, 50)
        assert plan.step.column == "count"
        assert exponents[0] == exponents[24] == exponents[49] + 1
    restored = cnrfmt.load(tmp_path / "run", columns=True)["t"].columns["count"]
    assert np.array_equal(restored, counts)


def test_decay_of_all_rows_costs_those_that_moved(run: Run) -> None:
    run.save()
    # Shrunk by so little that most rows stay within half a step of what is stored.
    run.values *= np.float32(0.99)
    run.manager.track("t", np.arange(60))
    run.save()
    differences, alone = run.rows_written()
    assert (differences < 60, alone) == (True, 0)
    for _ in range(35):
        run.values *= np.float32(0.99)
        run.manager.track("t", np.arange(60))
        run.save()
    assert (np.abs(run.stored() - run.values) <= run.steps()[:, None] / 2 * 1.0001).all()


def test_a_smaller_learning_rate_brings_a_baseline_in_finer_steps_and_a_larger_one_nothing(run: Run) -> None:
    run.save()
    run.again(learning_rate=10 * RATE)
    run.move(slice(10), 0.1)
    run.save()
    assert (run.plan.step.size, run.manager._run.lineage.checkpoints[-1].kind) == (STEP, "delta")
    run.again(learning_rate=RATE / 10)
    run.move(slice(10), 0.1)
    run.save()
    assert run.plan.step.size == pytest.approx(STEP / 10)
    assert run.manager._run.lineage.checkpoints[-1].kind == "baseline"


@pytest.mark.parametrize("grid", [Grid(learning_rate=RATE, c=1.5), Grid(step=STEP)])
def test_steps_that_were_said_outright_stay(tmp_path: Path, grid: Grid) -> None:
    run = Run(tmp_path / "run", learning_rate=None, expected_restores=None, encoding=grid)
    run.save()
    for _ in range(5):
        run.again()
        run.move(slice(5), 0.1)
        run.save()
        assert run.manager._run.lineage.checkpoints[-1].kind == "delta"
    assert run.plan.step.size == STEP
    run.manager.close()


def test_merged_chains_read_the_same_and_go_on(run: Run) -> None:
    run.save()
    for _ in range(6):
        run.move(run.random.integers(0, 60, 20), 0.05)
        run.save()
    before = run.stored()
    run.manager.close()
    compact(run.path)
    with cnrfmt.open(run.path) as ck:
        assert len(ck.manifest.chain) == 1
    assert run.stored().tobytes() == before.tobytes()
    run.again()
    run.move(slice(5), 0.1)
    run.save()
    assert run.rows_written() == [5, 0]


def test_chains_are_merged_once_deltas_are_more_than_their_baseline(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", rows=3000, merge_share="auto")
    run.save()
    for _ in range(6):
        run.move(slice(None), 0.3)
        run.save()
    with cnrfmt.open(run.path) as ck:
        assert len(ck.manifest.chain) < 4
    run.manager.close()


def test_a_container_to_serve_from_has_rows_of_operators(run: Run, tmp_path: Path) -> None:
    run.save()
    run.move(slice(20), 0.1)
    run.save()
    target, fresh = tmp_path / "serving.cnr", tmp_path / "fresh.cnr"
    compact(run.path, target, encoding=Quantize(bits=4, layout="head"))
    cnrfmt.save(fresh, {"t": run.stored()}, quantize=Quantize(bits=4, layout="head"))
    with cnrfmt.open(target) as ck, cnrfmt.open(fresh) as want:
        assert ck["t"].encoding == want["t"].encoding
        assert ck["t"][...].tobytes() == want["t"][...].tobytes()
    with pytest.raises(UsageError, match="isn't put on a grid; give a Quantize"):
        compact(run.path, tmp_path / "other.cnr", encoding={"t": Grid(step=1.0)})
    assert not (tmp_path / "other.cnr").exists()


@pytest.mark.parametrize(("far", "per_value"), [(0.1, 2), (100.0, 4)])
def test_stored_values_take_two_bytes_each_or_four(tmp_path: Path, far: float, per_value: int) -> None:
    rows = 3000
    run = Run(tmp_path / "run", rows=rows)
    run.values[0, 0] = far
    run.save()
    store = run.manager._run.bases._own
    assert store is not None
    # And a code of two bytes for each accumulator and each count of checkpoints.
    assert store.nbytes == pytest.approx(rows * (DIM * per_value + 4), rel=0.02)
    run.manager.close()


def test_stored_values_read_from_the_container_make_the_same_versions(tmp_path: Path) -> None:
    found = []
    for where in (None, "container"):
        run = Run(tmp_path / str(where), stored_values=where)
        run.save()
        for _ in range(3):
            run.move(slice(30), 0.05)
            run.save()
        found.append(run.stored().tobytes())
        run.manager.close()
    assert found[0] == found[1]


def test_save_and_append_store_rows_as_they_are_on_the_grid(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(0, 1, (100, DIM)).astype(np.float32)
    cnrfmt.save(tmp_path / "a", {"t": rows}, quantize=Grid(step=1 / 64))
    cnrfmt.append(tmp_path / "a", {"t": cnrfmt.Rows([3, 5], rows[:2])})
    want = rows.copy()
    want[[3, 5]] = rows[:2]
    with cnrfmt.open(tmp_path / "a") as ck:
        assert np.abs(ck["t"][...] - want).max() <= 1 / 128
        parts = [p for s in ck.view.segments.values() for t in s.toc.tables for p in t.parts]
        assert [(type(p.layout), p.layout.is_residual) for p in parts] == [(GridLayout, False)] * 2
    sound(tmp_path / "a")


@pytest.mark.parametrize("asked", [None, "memory"])
def test_a_version_is_durable_though_what_is_stored_could_not_be_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: Any
) -> None:
    """Who asked for stored values is told; a delta that needs them reads them once more."""
    run, real, fails = Run(tmp_path / "run", stored_values=asked), Bases._update, [True]

    def update(self: Bases, *args: Any) -> None:
        if fails and fails.pop():
            raise cnrfmt.StorageError(5, "an accident", "a segment")
        real(self, *args)

    monkeypatch.setattr(Bases, "_update", update)
    with pytest.raises(cnrfmt.StorageError, match="an accident") if asked else nullcontext():
        assert run.save() == 0
    run.move(slice(9), 0.3)
    assert run.save() == 1
    assert run.rows_written() == [9, 0]
    run.manager.close()
    sound(run.path)


def test_counts_that_are_loaded_are_left_to_the_run(tmp_path: Path) -> None:
    """`load` gives the column like any other, and every way of storing it again takes it."""
    run = Run(tmp_path / "run")
    for _ in range(3):
        run.move(slice(20), 0.3)
        run.save()
    run.manager.close()
    loaded = cnrfmt.load(run.path, columns=True)
    counts = run.counts()
    assert counts.max() == 3
    for grid in (Grid(step=0.01), Grid(learning_rate=RATE, c=1, by="accumulator")):
        cnrfmt.save(tmp_path / "again", loaded, quantize=grid)
        with cnrfmt.open(tmp_path / "again") as ck:
            assert ck["t"].read(column=CHECKPOINTS).astype(int).tolist() == counts.tolist()
        sound(tmp_path / "again")
    for options in ({"policy": "one-shot"}, {"policy": "full"}, {"encoding": "rowwise", "learning_rate": None}):
        with CheckpointManager(
            tmp_path / str(len(options)), **{**KNOWN, "merge_share": None, "fs": QuickFs(), "start": "anew", **options}
        ) as manager:
            manager.save(0, loaded).wait()
            restored = manager.restore(into=loaded)
            assert restored is not None
            assert not restored.missing
            assert CHECKPOINTS not in str(restored)


def test_a_run_that_changes_its_ways_goes_on(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", learning_rate=None, expected_restores=None, bits=8, policy="consecutive")
    run.save()
    ways: list[dict[str, Any]] = [
        {"bits": None, "learning_rate": RATE / 4, "expected_restores": 3},
        {"bits": None, **KNOWN, "policy": "intermittent"},
        {"bits": None, **KNOWN, "policy": "one-shot"},
        {"bits": None, **KNOWN},
        {},
        {"bits": None, **KNOWN, "mode": "copy"},
    ]
    for options in ways:
        run.again(**options)
        for _ in range(2):
            run.move(slice(0, 60, 3), 0.3)
            run.save()
        assert np.abs(run.stored() - run.values)[::3].max() < 0.1
    run.manager.close()
    sound(run.path)


@pytest.mark.parametrize("policy", ["one-shot", "intermittent", "consecutive"])
def test_a_row_that_comes_back_to_the_baseline_keeps_its_state(tmp_path: Path, policy: str) -> None:
    run = Run(tmp_path / "run", policy=policy)
    run.save()
    begun = run.values.copy()
    for _ in range(2):
        run.values[:] = begun + np.float32(0.3) if run.step == 1 else begun
        run.state *= 4
        run.manager.track("t", np.arange(60))
        run.save(kind="since-baseline" if policy != "consecutive" else None)
    with cnrfmt.open(run.path) as ck:
        found = ck["t"].read(column="accumulator")
    assert np.abs(np.log2(found / run.state)).max() < 0.1
    run.manager.close()
