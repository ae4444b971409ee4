"""Optimizer state of `dim` values per row on a grid: Adam's moments, and the accumulator of an element-wise Adagrad."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import cnrfmt
from cnrfmt import CheckpointManager, Grid, TableData
from cnrfmt.format.encoding import GridLayout, Layout, LogLayout, RawLayout
from cnrfmt.sizes import commit_sizes
from tests.checkpointing.support import sound
from tests.storage.support import QuickFs

RATE, ROWS, DIM = 0.01, 600, 16
Rows = npt.NDArray[np.float32]


class Adam:
    """A table whose rows move by Adam, lazily: rows that aren't looked up keep their moments."""

    def __init__(self, *, keyed: bool = False, warm: int = 20) -> None:
        self.random = np.random.default_rng(5)
        self.values = self.random.normal(0, 0.1, (ROWS, DIM)).astype(np.float32)
        self.first, self.second = np.zeros((2, ROWS, DIM), np.float32)
        self.keys = np.arange(ROWS, dtype=np.int64) * 7 - 50 if keyed else None
        scale = np.exp(self.random.normal(-4, 0.7, (ROWS, DIM)))
        self.scale = scale.astype(np.float32)
        for _ in range(warm):
            self.train(np.arange(ROWS))

    def train(self, rows: Any) -> Any:
        """Steps some rows; gives their ids or keys."""
        gradient = self.scale[rows] * self.random.normal(size=(len(rows), DIM)).astype(np.float32)
        self.first[rows] = 0.9 * self.first[rows] + 0.1 * gradient
        self.second[rows] = 0.999 * self.second[rows] + 0.001 * gradient**2
        self.values[rows] -= RATE * self.first[rows] / (np.sqrt(self.second[rows]) + 1e-8)
        return rows if self.keys is None else self.keys[rows]

    def some(self) -> Any:
        return np.unique(self.random.integers(0, ROWS, 200))

    def tables(self) -> dict[str, TableData]:
        columns = {"exp_avg": self.first, "exp_avg_sq": self.second}
        return {"t": TableData(self.values, columns=columns, keys=self.keys)}

    def copies(self) -> dict[str, Rows]:
        return {"weight": self.values.copy(), "exp_avg": self.first.copy(), "exp_avg_sq": self.second.copy()}


def managed(path: Path, **options: Any) -> CheckpointManager:
    settings = {"learning_rate": RATE, "expected_restores": 3, "merge_share": None, "fs": QuickFs(), **options}
    return CheckpointManager(path, **settings)  # type: ignore[arg-type]


def layouts(path: Path) -> list[dict[str, Layout]]:
    """Of each segment of the newest version, the layouts of its columns, exceptions aside."""
    with cnrfmt.open(path) as ck:
        tocs = [ck.view.segments[one.segment].toc for one in ck.manifest.chain]
        parts = ([part for entry in toc.tables for part in entry.parts] for toc in tocs)
        return [{part.column: part.layout for part in some if part.exceptions_of is None} for some in parts]


def check(path: Path, live: dict[str, Rows]) -> None:
    """What is stored is as near to what was live as the codes of each column are."""
    sound(path)
    with cnrfmt.open(path, verify="all") as ck:
        table = ck["t"]
        found = {name: table.read(column=name) for name in live}
    assert np.abs(found["weight"] - live["weight"]).max() <= RATE
    mean = np.sqrt((live["exp_avg"].astype(np.float64) ** 2).mean(axis=1, keepdims=True))
    # Steps of half of that, to the nearest power of two.
    assert (np.abs(found["exp_avg"] - live["exp_avg"]) <= 0.25 * 2**0.5 * mean + 1e-7).all()
    ratio = found["exp_avg_sq"] / live["exp_avg_sq"]
    # Two codes to an octave.
    assert 1 / 1.5 <= ratio.min() <= ratio.max() <= 1.5
    assert abs(ratio.mean() - 1) < 0.01


@pytest.mark.parametrize("keyed", [False, True])
def test_moments_are_in_codes(tmp_path: Path, keyed: bool) -> None:
    path, adam = tmp_path / "run", Adam(keyed=keyed)
    with managed(path) as m:
        m.save(0, adam.tables()).wait()
        for step in range(1, 6):
            m.track("t", adam.train(adam.some()))
            m.save(step, adam.tables()).wait()
    baseline, *deltas = layouts(path)
    assert isinstance(baseline["exp_avg_sq"], LogLayout)
    for delta in deltas:
        weight, first, second = (delta[name] for name in ("weight", "exp_avg", "exp_avg_sq"))
        assert isinstance(weight, GridLayout)
        assert isinstance(first, GridLayout)
        assert isinstance(second, LogLayout)
        assert (weight.is_residual, first.is_residual, second.is_residual) == (True, False, True)
    with cnrfmt.open(path) as ck:
        stored = {name: ck["t"].read(column=name) for name in ("weight", "exp_avg", "exp_avg_sq")}
    # Rows that were never tracked after the baseline, and those that were: all are near what they were last marked as.
    live = adam.copies()
    assert {name: rows.shape for name, rows in stored.items()} == {name: rows.shape for name, rows in live.items()}
    check(path, live)


def test_they_take_a_fraction_of_what_they_took(tmp_path: Path) -> None:
    sizes = {}
    for moments in ("codes", "raw"):
        path, adam = tmp_path / moments, Adam()
        grid = Grid(learning_rate=RATE, restores=3, moments=moments)  # type: ignore[arg-type]
        with managed(path, encoding=grid, learning_rate=None, expected_restores=None) as m:
            m.save(0, adam.tables()).wait()
            for step in range(1, 4):
                m.track("t", adam.train(adam.some()))
                m.save(step, adam.tables()).wait()
        names = {type(found) for one in layouts(path) for name, found in one.items() if name != "weight"}
        assert (RawLayout in names) == (moments == "raw")
        sizes[moments] = commit_sizes(path)["optimizer"]
    assert sizes["codes"] < sizes["raw"] / 10


def test_a_run_goes_on_after_restores_and_merges(tmp_path: Path) -> None:
    path, adam = tmp_path / "run", Adam()
    with managed(path) as m:
        m.save(0, adam.tables()).wait()
    for step in range(1, 8):
        with managed(path) as m:
            # The trainer's own values stay what they are: what is stored is what differences are taken from.
            assert m.restore() is not None
            m.track("t", adam.train(adam.some()))
            m.save(step, adam.tables()).wait()
        if step == 4:
            cnrfmt.compact(path)
        check(path, adam.copies())
    with cnrfmt.open(path) as ck:
        before = {name: ck["t"].read(column=name) for name in adam.copies()}
    cnrfmt.compact(path, tmp_path / "other")
    with cnrfmt.open(tmp_path / "other", verify="all") as ck:
        for name, rows in before.items():
            assert np.array_equal(ck["t"].read(column=name), rows)


def test_second_moments_grow_by_less_than_a_code(tmp_path: Path) -> None:
    """Each checkpoint draws anew, so that what is restored grows as what was trained did, on the average."""
    path, adam = tmp_path / "run", Adam()
    exact = adam.second.astype(np.float64)
    with managed(path) as m:
        m.save(0, adam.tables()).wait()
    for step in range(1, 21):
        with managed(path) as m:
            assert m.restore(into=adam.tables()) is not None
            growth = adam.random.uniform(1, 1.02, exact.shape)
            exact *= growth
            adam.second *= growth.astype(np.float32)
            m.track("t", np.arange(ROWS))
            adam.values[:, 0] += RATE
            m.save(step, adam.tables()).wait()
    assert (adam.second / exact).mean() == pytest.approx(1, abs=0.03)


def test_moments_that_are_zero_at_first(tmp_path: Path) -> None:
    path, adam = tmp_path / "run", Adam(warm=0)
    with managed(path) as m:
        m.save(0, adam.tables()).wait()
        for step in range(1, 4):
            for _ in range(20):
                ids = adam.train(np.arange(ROWS))
            m.track("t", ids)
            m.save(step, adam.tables()).wait()
    assert {type(one["exp_avg_sq"]) for one in layouts(path)} == {LogLayout}
    assert {type(one["exp_avg"]) for one in layouts(path)} == {GridLayout}
    sound(path)
    with cnrfmt.open(path) as ck:
        second, first = ck["t"].read(column="exp_avg_sq"), ck["t"].read(column="exp_avg")
    ratio = second / adam.second
    assert 1 / 1.5 <= ratio.min() <= ratio.max() <= 1.5
    assert np.corrcoef(first.ravel(), adam.first.ravel())[0, 1] > 0.95


@pytest.mark.parametrize("times", [1e-6, 1e-3, 1e3])
@pytest.mark.parametrize("warm", [0, 20])
def test_gradients_of_another_size_than_at_the_baseline(tmp_path: Path, times: float, warm: int) -> None:
    """What an optimizer would do after a restore is no more than some times what it would have done."""
    path, adam = tmp_path / "run", Adam(warm=warm)
    with managed(path) as m:
        m.save(0, adam.tables()).wait()
        rows = np.arange(0, ROWS, 3)
        adam.first[rows], adam.second[rows] = 0, 0
        adam.scale[rows] *= np.float32(times)
        for _ in range(10):
            m.track("t", adam.train(rows))
        m.save(1, adam.tables()).wait()
    sound(path)
    with cnrfmt.open(path) as ck:
        first, second = (ck["t"].read(column=name)[rows] for name in ("exp_avg", "exp_avg_sq"))
    live = adam.second[rows]
    assert (second > 0).all()
    ratio = second / live
    assert 1 / 1.5 <= ratio.min() <= ratio.max() <= 1.5
    assert (np.abs(first / np.sqrt(second)) <= 2.5 * np.abs(adam.first[rows] / np.sqrt(live)) + 1e-6).all()
    assert np.corrcoef(first.ravel(), adam.first[rows].ravel())[0, 1] > 0.95
    assert isinstance(layouts(path)[-1]["exp_avg"], GridLayout)


def test_a_row_that_is_far_larger_takes_nothing_from_others(tmp_path: Path) -> None:
    path, adam = tmp_path / "run", Adam()
    adam.first[0] *= 1e10
    with managed(path) as m:
        m.save(0, adam.tables()).wait()
    check(path, adam.copies())
    with cnrfmt.open(path) as ck:
        assert np.array_equal(ck["t"].read(column="exp_avg")[0], adam.first[0])


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1.0])
def test_what_has_no_code_stays_exact_and_comes_back(tmp_path: Path, wrong: float) -> None:
    path, adam = tmp_path / "run", Adam()
    with managed(path) as m:
        m.save(0, adam.tables()).wait()
        kept = adam.second[3, 2]
        for step, value in enumerate([wrong, kept], start=1):
            adam.values[:10] += RATE
            adam.second[3, 2] = value
            if not np.isfinite(wrong):
                adam.first[4, 1] = wrong if step == 1 else 0
            m.track("t", np.arange(10))
            m.save(step, adam.tables()).wait()
            with cnrfmt.open(path) as ck:
                second, first = ck["t"].read(column="exp_avg_sq"), ck["t"].read(column="exp_avg")
            if step == 1:
                assert np.array_equal(second[3], adam.second[3], equal_nan=True)
                assert np.isfinite(wrong) or np.array_equal(first[4], adam.first[4], equal_nan=True)
    check(path, adam.copies())


def test_rows_that_hardly_moved_keep_their_state_back(tmp_path: Path) -> None:
    path, adam = tmp_path / "run", Adam()
    with managed(path) as m:
        m.save(0, adam.tables()).wait()
        with cnrfmt.open(path) as ck:
            before = ck["t"].read(column="exp_avg")
            adam.values[:] = ck["t"][...]
        adam.first *= 2
        m.track("t", np.arange(ROWS))
        m.save(1, adam.tables()).wait()
        with cnrfmt.open(path) as ck:
            assert np.array_equal(ck["t"].read(column="exp_avg"), before)
        adam.values[5] += 1
        m.save(2, adam.tables()).wait()
    with cnrfmt.open(path) as ck:
        found = ck["t"].read(column="exp_avg")
    assert not np.array_equal(found[5], before[5])
    assert np.array_equal(np.delete(found, 5, axis=0), np.delete(before, 5, axis=0))


def test_rows_appended_by_hand_are_in_codes_too(tmp_path: Path) -> None:
    path, adam = tmp_path / "run", Adam()
    with managed(path) as m:
        m.save(0, adam.tables()).wait()
    ids = adam.train(np.arange(20))
    rows = cnrfmt.Rows(ids, adam.values[ids], columns={"exp_avg": adam.first[ids], "exp_avg_sq": adam.second[ids]})
    cnrfmt.append(path, {"t": rows})
    assert isinstance(layouts(path)[-1]["exp_avg_sq"], LogLayout)
    check(path, adam.copies())


def kinds(width: int) -> Iterator[tuple[str, Any, type[Layout]]]:
    positive = np.full((50, width), 0.3, np.float32)
    yield "accumulator", positive, LogLayout
    yield "momentum", positive, GridLayout
    yield "momentum1", positive, LogLayout
    yield "momentum1", -positive, GridLayout
    yield "average", positive, RawLayout
    yield "exp_avg_sq", -positive, RawLayout
    yield "exp_avg", np.zeros_like(positive), GridLayout


@pytest.mark.parametrize(("name", "rows", "kind"), list(kinds(8)))
def test_they_are_known_by_name_and_sign(tmp_path: Path, name: str, rows: Any, kind: type[Layout]) -> None:
    weights = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    with managed(tmp_path / "run", encoding="grid") as m:
        m.save(0, {"t": TableData(weights, columns={name: rows})}).wait()
    assert isinstance(layouts(tmp_path / "run")[0][name], kind)


def test_of_fbgemm_the_first_of_two_is_a_first_moment(tmp_path: Path) -> None:
    zeros = np.zeros((50, 8), np.float32)
    with managed(tmp_path / "run", encoding="grid") as m:
        m.save(0, {"t": TableData(zeros + 1, columns={"momentum1": zeros, "momentum2": zeros.copy()})}).wait()
    (found,) = layouts(tmp_path / "run")
    assert isinstance(found["momentum1"], GridLayout)
    assert isinstance(found["momentum2"], LogLayout)
