"""The benchmark runs from end to end on tiny tables, and says what it promises to say. No test looks at a time."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tools.bench import _data
from tools.bench._figures import Figure, Target, in_turn, table_of

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "bench" / "io.py"
FIGURES = {
    "save": {"raw", "8-bit", "4-bit"},
    "load": {"raw", "raw, unverified", "raw, one thread", "8-bit", "4-bit"},
    "open": {
        "open + 1,000 consecutive rows of 1 MB",
        "open + 1,000 consecutive rows of 8 MB",
        "open + 1,000 random rows",
        "1,000 random rows, just opened",
        "4,000 random rows, 8-bit",
    },
    "append": {
        "1 % of the rows, raw",
        "1 % of the rows, raw: bytes",
        "1 % of the rows, 8-bit",
        "1 % of the rows, 8-bit: bytes",
        "load after ten deltas of 10 %, raw",
        "load after ten deltas of 10 %, 8-bit",
    },
    "start": {
        "import",
        *(f"{what}, {e}" for e in ("raw", "8-bit", "4-bit") for what in ("import and first save", "first save alone")),
    },
    "memory": {
        f"{what} of a 0.0037 GB save, {e}"
        for e in ("raw", "8-bit", "4-bit")
        for what in ("extra", "peak resident (VmHWM)")
    },
}


def run(folder: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    results = folder / "results.json"
    scratch = folder / "scratch"
    scratch.mkdir()
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--quick", "--json", str(results), "--dir", str(scratch), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not list(scratch.iterdir()), "the benchmark left files behind"
    return json.loads(results.read_text()), done.stdout


@pytest.mark.parametrize("group", ["save", "load", "open", "append", "memory"])
def test_each_group_gives_its_figures(tmp_path: Path, group: str) -> None:
    results, report = run(tmp_path, "--only", group)
    groups = {"memory", "start"} if group == "memory" else {group}
    assert {f["group"] for f in results["figures"]} == groups
    for name in groups:
        assert {f["figure"] for f in results["figures"] if f["group"] == name} == FIGURES[name]
    assert {"cores", "python", "packages", "file_system", "free_memory_bytes", "load_average"} <= set(
        results["machine"]
    )
    assert results["data"]["bytes"] == 4 * (6_000 * 16 + 4_000 * 64 + 1_000 * 128)
    assert results["settings"] == {"quick": True, "repeat": 2, "groups": [group]}
    for figure in results["figures"]:
        check_figure(figure)
        assert f"{figure['group']}: {figure['figure']}" in report


def check_figure(figure: dict[str, Any]) -> None:
    own, peer, ratio, target = (figure[k] for k in ("cnrfmt", "peer", "ratio", "target"))
    assert {"unit", "verify", "touch", "cache", "met"} <= set(figure)
    for values in filter(None, (own, peer, ratio)):
        # Memory that was never taken is no nonsense; time that never passed is.
        assert all(x > 0 or figure["unit"] == "bytes" for x in values["raw"])
        assert values["min"] <= values["median"] <= values["max"]
        assert values["median"] == statistics.median(values["raw"])
    assert (peer is None) == (ratio is None)
    if peer is not None:
        assert len(own["raw"]) == len(peer["raw"])
        pairs = zip(own["raw"], peer["raw"], strict=True)
        assert ratio["raw"] == [a / b if ratio["of"] == "time" else b / a for a, b in pairs]
    if target is None:
        assert figure["met"] is None
        return
    value = ratio["median"] if target["of"] == "ratio" else own["median"]
    assert figure["met"] == (value <= target["bound"] if target["sense"] == "<=" else value >= target["bound"])


def test_an_unknown_group_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--only", "save,sleep"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "'sleep'" in done.stderr
    assert not list(tmp_path.iterdir())


def test_contenders_take_turns() -> None:
    order: list[str] = []

    def contender(name: str) -> Any:
        def measure(number: int) -> float:
            order.append(f"{name}{number}")
            return float(number)

        return measure

    assert in_turn(3, {"a": contender("a"), "b": contender("b")}) == {"a": [0.0, 1.0, 2.0], "b": [0.0, 1.0, 2.0]}
    assert order == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_ratios_are_taken_round_by_round() -> None:
    figure = Figure("g", "f", [1.0, 2.0, 8.0], peer_name="p", peer=[2.0, 2.0, 2.0], target=Target("ratio", "<=", 1.0))
    assert figure.ratios == [0.5, 1.0, 4.0]
    assert figure.met is True
    speed = Figure("g", "f", [1.0], peer_name="p", peer=[3.0], ratio_of="speed", target=Target("ratio", ">=", 3.5))
    assert speed.ratios == [3.0]
    assert speed.met is False
    assert Figure("g", "f", [0.2], target=Target("cnrfmt", "<=", 0.1)).met is False
    lines = table_of([figure, speed]).splitlines()
    assert len(lines) == 4
    assert "yes" in lines[2]
    assert "NO" in lines[3]


def test_tiled_tables_are_trained_rows_and_no_two_are_alike() -> None:
    rows = 70_000
    values = _data.table(rows, 16)
    assert values.shape == (rows, 16)
    assert np.array_equal(values, _data.table(rows, 16)), "the same seed must give the same table"
    trained = _data.trained_rows()[:, :16].astype(np.float64)
    for start in range(0, rows, len(trained)):
        part = values[start : start + len(trained)].astype(np.float64)
        base = trained[: len(part)]
        alike = (part * base).sum(1) / np.linalg.norm(part, axis=1) / np.linalg.norm(base, axis=1)
        assert np.median(alike) > 0.999
    assert len(np.unique(values, axis=0)) == rows


def test_touched_rows_are_distinct_sorted_and_skewed() -> None:
    rows, count = 50_000, 5_000
    draws = [_data.touched_rows(rows, count, seed) for seed in range(4)]
    for ids in draws:
        assert len(ids) == count
        assert (np.diff(ids) > 0).all()
        assert ids[0] >= 0
        assert ids[-1] < rows
    common = len(np.intersect1d(draws[0], draws[1]))
    # Evenly drawn sets would share a tenth of their rows.
    assert count * 0.3 < common < count
    assert any(not np.array_equal(draws[0], other) for other in draws[1:])


def test_a_written_table_is_the_one_in_memory(tmp_path: Path) -> None:
    _data.write_table(tmp_path / "t.f32", 40_000, 64)
    found = np.fromfile(tmp_path / "t.f32", np.float32).reshape(-1, 64)
    assert np.array_equal(found, _data.table(40_000, 64, seed=1))
