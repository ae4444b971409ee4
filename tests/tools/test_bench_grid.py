"""The benchmark of the grid encoding runs from end to end on little data. No test looks at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cnrfmt
from cnrfmt import CheckpointManager
from tools.bench import grid
from tools.bench._grid_codes import LEAST, Case, lines, random_rows
from tools.bench._grid_codes import main as codes
from tools.bench._grid_data import KINDS, Training
from tools.bench._grid_restore import check, float32_files, train
from tools.bench._grid_stall import of_width

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("part", grid.PARTS)
def test_a_part_reports_with_its_command_and_leaves_nothing_behind(tmp_path: Path, part: str) -> None:
    scratch, results = tmp_path / "scratch", tmp_path / "results"
    scratch.mkdir()
    command = [sys.executable, "-m", "tools.bench.grid", part, "--quick", "--dir", str(scratch)]
    command += ["--results", str(results), "--repeat", "1", "--dim", "16"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text = (results / f"grid_{part}.txt").read_text()
    assert text == done.stdout
    assert text.startswith(f"$ python -m tools.bench.grid {part} --quick")
    assert {"codes": "rans, decode", "stall": "4 bits per row", "restore": "never merged (13 segments"}[part] in text
    assert not list(scratch.iterdir())


@pytest.mark.parametrize("part", grid.PARTS)
def test_every_part_has_the_options_that_it_is_given(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        grid.main([part, "--help"])
    assert end.value.code == 0
    told = capsys.readouterr().out
    assert all(f"--{name}" in told for name in ("quick", *grid.PARTS[part]))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["stal"], "there is no part 'stal'; there are codes"), (["codes", "--repeat", "0"], "at least 1")],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        grid.main([*arguments, "--quick"])
    assert end.value.code == 2
    assert told in capsys.readouterr().err
    with pytest.raises(SystemExit):
        codes(["--rows", "zipf"])
    assert "no rows are called 'zipf'" in capsys.readouterr().err


@pytest.mark.parametrize("dim", [16, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_codes_are_those_of_the_rows(kind: str, dim: int) -> None:
    rows = KINDS[kind](1 << 16 >> 6, dim, quick=True)
    case = Case(rows)
    case.decode()
    before = rows.stored[rows.positions] * 2.0**rows.floor if len(rows.stored) else 0
    error = np.abs(case.out + before - rows.values[rows.positions])
    assert (error <= 2.0 ** (rows.floor - 1 + rows.exponents.astype(np.int32))[:, None]).all()
    if kind == "laplace":
        # Codes of 2 bits, and what so few rows take for models.
        assert not error.any()
        assert 2 < case.bits < 3


def test_work_on_codes_does_what_it_says() -> None:
    case = Case(KINDS["demo"](4096, 16, quick=True))
    work = case.work()
    assert set(LEAST) < set(work)
    once = case.codes.copy()
    for one in work.values():
        one()
    assert np.array_equal(case.codes, once)
    assert [section.tobytes() for section in case.encode()] == [section.tobytes() for section in case.sections]
    case.sections = work["merge of three increments"]()
    case.decode()
    assert np.array_equal(case.out, np.float32(3 * 2.0**case.rows.floor) * once)


def test_figures_of_codes_have_their_targets(tmp_path: Path) -> None:
    found = {line.figure.name: line.figure for line in lines("laplace", 16, 2, quick=True)}
    assert {name: figure.target.bound for name, figure in found.items() if figure.target} == LEAST
    assert all(len(figure.cnrfmt) == 2 for figure in found.values() if figure.unit == "s")
    rows = random_rows(tmp_path, 16, 2, quick=True)
    assert [figure.verify for figure in rows] == ["none", "none", "touched", "touched"]
    assert all(figure.target is not None and len(figure.cnrfmt) == 2 for figure in rows)


def test_each_save_gives_its_figures(tmp_path: Path) -> None:
    found = of_width(tmp_path, 16, (0.1, 1.0), 2, quick=True)
    stalls = [figure for figure in found if figure.group == "stall"]
    assert [figure.target is not None for figure in stalls] == [True, False] * 2
    assert all(len(figure.cnrfmt) == len(figure.peer) == 2 for figure in stalls)
    assert [figure.name for figure in found if figure.group == "memory"][1:] == [
        "dim 16, 10% of the rows, grid",
        "dim 16, 100% of the rows, grid",
    ]
    assert not list(tmp_path.iterdir())


def test_chains_of_one_run_read_alike(tmp_path: Path) -> None:
    training = Training(2000, 16)
    paths = train(tmp_path, training)
    lengths = {}
    for name, path in paths.items():
        with cnrfmt.open(path) as ck:
            lengths[name] = len(ck.manifest.chain)
    assert lengths["never merged"] == 13
    assert lengths["merged by default"] < 13
    assert lengths["compacted"] == 1
    check(paths, training)
    training.values[7] += 100 * training.rate
    with pytest.raises(SystemExit, match="isn't what was trained"):
        check(paths, training)
    with CheckpointManager(paths["compacted"], encoding=training.grid, flush_on_sigterm=False) as manager:
        ids = np.array([7])
        restored = manager.restore()
        assert restored is not None
        manager.track("table", ids)
        manager.save(13, training.tables)
    with pytest.raises(SystemExit, match="don't read alike"):
        check(paths, training)


def test_files_of_float32_hold_the_tables(tmp_path: Path) -> None:
    training = Training(300, 16)
    loads = float32_files(tmp_path, training)
    weight, accumulator = loads["numpy.fromfile"]()
    assert np.array_equal(weight, training.values.reshape(-1))
    assert np.array_equal(accumulator, training.accumulator)
    for name in ("torch.load", "safetensors"):
        found = loads[name]()
        assert np.array_equal(np.asarray(found["weight"]), training.values)
        assert np.array_equal(np.asarray(found["accumulator"]), training.accumulator)


def test_training_moves_the_rows_that_it_visits() -> None:
    training = Training(500, 16)
    values, accumulator = training.values.copy(), training.accumulator.copy()
    ids = np.arange(0, 500, 3)
    training.visit(ids)
    changed = (training.values != values).any(axis=1)
    assert np.array_equal(np.flatnonzero(changed), ids)
    assert np.array_equal(np.flatnonzero(training.accumulator != accumulator), ids)
