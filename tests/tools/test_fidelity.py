"""The fidelity benchmark runs from end to end on tiny models, and goes on where it was stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnrfmt.kernels._jit import INTERPRETED
from tools.bench import _fidelity_loss as loss
from tools.bench import fidelity
from tools.bench._fidelity_bytes import bandwidth, capacity, count, touched_by_the_end
from tools.bench._fidelity_data import QUICK, make
from tools.bench._fidelity_encodings import ENCODINGS, RAW
from tools.bench._fidelity_kernels import BATCH
from tools.bench._fidelity_learners import LEARNERS, STEPS, Learner
from tools.bench._fidelity_report import bound, changes

SOME = "float32;row-wise 4;grid for 3"


def warm(name: str, folder: Path) -> tuple[Learner, Path]:
    learner = LEARNERS[name](0, True)
    loss.warm_up(learner, folder / "warm")
    return learner, folder / "warm"


@pytest.mark.parametrize("name", LEARNERS)
def test_a_restore_in_float32_changes_nothing(name: str, tmp_path: Path) -> None:
    learner, path = warm(name, tmp_path)
    at = loss.restore_steps(3, learner.intervals)
    base = loss.run(learner, path, tmp_path, "uninterrupted", None, at)
    again = loss.run(learner, path, tmp_path, RAW, ENCODINGS[RAW](learner), at)
    assert again == base
    assert np.isfinite(list(base["judged"].values())).all()


def test_coarse_codes_change_the_run_and_the_placebo_does_so_less(tmp_path: Path) -> None:
    learner, path = warm("dlrm", tmp_path)
    at = loss.restore_steps(3, learner.intervals)
    base = loss.run(learner, path, tmp_path, "uninterrupted", None, at)

    def moved(encoding: str) -> float:
        settings = ENCODINGS[encoding](learner) if encoding in ENCODINGS else None
        return abs(loss.change(loss.run(learner, path, tmp_path, encoding, settings, at), base, at)["after"])

    placebo, fine, coarse = map(moved, (loss.PLACEBO, "row-wise 8", "row-wise 2"))
    assert 0 < placebo < fine < coarse


def test_training_learns_what_the_hidden_model_knows(tmp_path: Path) -> None:
    shape = QUICK._replace(samples=320 if INTERPRETED else 9600, held_out=1024)
    data = make(shape, 0)
    labels = data.stream.labels[-shape.held_out :]
    rate = labels.mean()
    blind = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
    learner: Any = LEARNERS["dlrm"](0, True)
    learner = type(learner)(data, shape, 0, optimizer="adagrad", steps=STEPS, dim=8)
    before = learner.judge()
    for step in range(learner.intervals + 1):
        learner.train(step)
    assert data.best < learner.judge() < before
    assert learner.position == shape.samples * (shape.warm_up + shape.intervals)
    assert learner.position % BATCH == 0
    if not INTERPRETED:
        assert learner.judge() < blind


def test_traffic_that_drifts_meets_other_rows_at_the_end() -> None:
    rows = {drift: make(QUICK._replace(drift=drift), 0).stream.rows for drift in (0.0, 0.1)}
    shares = {}
    for drift, looked_up in rows.items():
        first, last = np.unique(looked_up[:200]), np.unique(looked_up[-200:])
        shares[drift] = np.isin(last, first).mean()
    assert shares[0.1] < shares[0.0]


def test_bytes_are_those_of_files_and_touched_rows_are_fewer(tmp_path: Path) -> None:
    learner, path = warm("dlrm", tmp_path)
    learner, path = LEARNERS["dlrm"](0, True), tmp_path / "again"
    touched = touched_by_the_end(learner, loss.warm_up(learner, path))
    tables = learner.tables()
    assert all(0 < len(ids) < len(tables[name].values) for name, ids in touched.items())
    found = {n: count(learner, path, tmp_path, ENCODINGS[n](learner), touched) for n in (RAW, "grid for 3")}
    full, grid = found.values()
    assert full["touched"]["written"][0] < full["consecutive"]["written"][0]
    assert bandwidth(full, full, "consecutive") > 1
    assert bandwidth(grid, full, "consecutive") > bandwidth(full, full, "consecutive")
    assert capacity(full, full, "touched") == 1 < capacity(grid, full, "touched")
    assert full["rows"] == grid["rows"] > 0


def test_a_run_goes_on_from_its_state_and_writes_its_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, results, plot = tmp_path / "state.json", tmp_path / "results", tmp_path / "fidelity.png"
    small = [
        "--quick",
        "--only",
        "movielens",
        "--seeds",
        "2",
        "--restores",
        "1",
        "--encodings",
        SOME,
        "--dir",
        str(tmp_path),
    ]
    assert fidelity.main([*small, "--state", str(state)]) == 0
    first = capsys.readouterr().out
    kept = json.loads(state.read_text())
    del kept["learners"]["movielens"]["loss"]["1"][RAW]["1"]
    state.write_text(json.dumps(kept))
    assert fidelity.main([*small, "--state", str(state), "--results", str(results), "--plot", str(plot)]) == 0
    again = capsys.readouterr()
    assert again.err.count("restores") == 1
    tables = first.split("\n\n", 1)[1]
    assert "grid for 3" in tables
    assert again.out.endswith(tables)
    assert (results / "fidelity.txt").read_text() == again.out
    found = json.loads((results / "fidelity.json").read_text())["learners"]["movielens"]
    assert changes(found, RAW, 1, "end") == [0, 0]
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--only", "films"], "films"),
        (["--parts", "time"], "time"),
        (["--encodings", "row-wise 8"], "float32"),
        (["--encodings", "float32;row-wise 9"], "row-wise 9"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        fidelity.main(["--quick", *arguments])
    assert end.value.code == 2
    assert told in capsys.readouterr().err


def test_bounds_are_those_of_student(tmp_path: Path) -> None:
    # One-sided, 95 %: 2.132 standard errors for five values (Student, 1908).
    middle, upper = bound([1.0, 2.0, 3.0, 4.0, 5.0])
    assert middle == 3
    assert upper == pytest.approx(3 + 2.132 * (2.5 / 5) ** 0.5, abs=1e-3)
    assert bound([1.0]) == (1.0, float("inf"))


@pytest.mark.parametrize("restores", [1, 3, 10, 20])
def test_restores_are_spread_over_the_run(restores: int) -> None:
    steps = loss.restore_steps(restores, 60)
    assert len(set(steps)) == restores
    assert 0 < steps[0] <= steps[-1] < 60
    assert np.ptp(np.diff([0, *steps, 60])) <= 1
