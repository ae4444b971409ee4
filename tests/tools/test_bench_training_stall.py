"""The benchmark of snapshots runs from end to end on tiny tables, and judges as it says. No test looks at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import cnrfmt
from tools.bench import _data
from tools.bench._training_stall import CASES, Saves, main, of_width, touched


def test_each_case_gives_its_figures(tmp_path: Path) -> None:
    found = of_width(tmp_path, 64, (0.1, 0.26), ("8", "4"), 2, quick=True)
    stalls = [figure for figure in found if figure.group == "stall"]
    assert [figure.peer_name for figure in stalls[4:]] == ["async_save of the table", "torch.save of the table"]
    targets = {figure.name.partition(", durable")[0]: figure.target for figure in stalls[:4]}
    assert {name: target.bound for name, target in targets.items() if target} == {
        "dim 64, 10% of the rows, 4": 0.2,
        "dim 64, 26% of the rows, 8": 0.4,
    }
    assert all(len(figure.cnrfmt) == len(figure.peer) == 2 for figure in stalls)
    memory = [figure for figure in found if figure.group == "memory"]
    rows = (1 << 20) // (4 * 64)
    sizes = [int(rows * share) * row_bytes for share in (0.1, 0.26) for row_bytes in (72, 36)]
    assert [figure.peer for figure in memory] == [[size] for size in sizes]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", CASES)
def test_what_is_saved_can_be_read(tmp_path: Path, name: str) -> None:
    table = _data.table(600, 24)
    ids = touched(600, 0.3)
    saves = Saves(tmp_path / "run", table, ids, CASES[name])
    saves.stall()
    cnrfmt.save(tmp_path / "plain.cnr", {"table": table[ids]}, quantize=CASES[name].quantize)
    with cnrfmt.open(tmp_path / "run") as found, cnrfmt.open(tmp_path / "plain.cnr") as plain:
        assert np.array_equal(found["table"][ids], plain["table"][:])
        assert found["table"].shape == (600, 24)


def test_touched_rows_are_distinct_and_scattered() -> None:
    for share in (0.01, 0.26, 1.0):
        ids = touched(10_000, share)
        assert len(ids) == int(10_000 * share)
        assert (np.diff(ids) > 0).all()
        assert ids[0] >= 0
        assert ids[-1] < 10_000
        # Each tenth of the table has its part of them.
        counts = np.bincount(ids // 1000, minlength=10)
        assert counts.min() > 0.4 * len(ids) / 10


def test_the_command_says_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--case", "5"])
    assert "no case is called '5'" in capsys.readouterr().err
    given = ["--quick", "--memory-only", "--dim", "16", "--share", "0.5", "--case", "2"]
    assert main(given) == 0
    assert "dim 16, 50% of the rows, 2" in capsys.readouterr().out
