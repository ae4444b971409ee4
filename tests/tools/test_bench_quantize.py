"""The benchmark of quantisation runs from end to end on tiny tables, and judges as it says. No test looks at a time."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnrfmt.encodings.rowwise import geometry
from cnrfmt.format.encoding import RowwiseLayout
from cnrfmt.kernels import layouts
from tools.bench._figures import Figure, Target
from tools.bench._quantize_codes import decoded, in_chunks, kernels_of, recipe, row_errors
from tools.bench._quantize_curves import PLAIN, SCHEMES
from tools.bench._quantize_exhaustive import best_parameters
from tools.bench._quantize_figures import Line, error, race, report, speed
from tools.bench._quantize_kmeans import nearest
from tools.bench._quantize_lsq import again, worse
from tools.bench._quantize_setting import ROWS, Setting, demo_tables, normal_rows

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "bench" / "quantize.py"
TARGETS: dict[int, set[tuple[str, float]]] = {
    1: {(">=", 1.5), (">=", 1.0), ("<=", 1.1), (">=", 1.8)},
    2: {(">=", 40.0), (">=", 1.0), ("<=", 1.0)},
    3: {(">=", 0.5), ("<=", 1.0), ("<=", 1.005)},
    4: {(">=", 5.0), (">=", 0.85)},
    5: {("<=", 1.000001)},
}


def run(folder: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    results, scratch = folder / "results.json", folder / "scratch"
    scratch.mkdir()
    command = [sys.executable, str(SCRIPT), "--quick", "--json", str(results), "--dir", str(scratch), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not list(scratch.iterdir()), "the benchmark left files behind"
    return json.loads(results.read_text()), done.stdout


@pytest.mark.parametrize("point", TARGETS)
def test_each_point_gives_its_figures(tmp_path: Path, point: int) -> None:
    if point == 5:
        pytest.importorskip("sklearn")
    results, told = run(tmp_path, "--point", str(point))
    figures = results["figures"]
    assert {f["point"] for f in figures} == {point}
    assert {f["rows"] for f in figures} == set(ROWS)
    assert {f["dim"] for f in figures} == {16, 64}
    assert {(f["target"]["sense"], f["target"]["bound"]) for f in figures if f["target"]} == TARGETS[point]
    for figure in figures:
        assert figure["figure"] in told
        check_figure(figure)
    assert results["settings"]["points"] == [point]
    assert results["curves"] == {}


def check_figure(figure: dict[str, Any]) -> None:
    own, peer, ratio, target = (figure[k] for k in ("cnrfmt", "peer", "ratio", "target"))
    assert (peer is None) == (ratio is None)
    if ratio is not None:
        pairs = zip(own["raw"], peer["raw"], strict=True)
        assert ratio["raw"] == [b / a if ratio["of"] == "speed" else a / b for a, b in pairs]
    if target is None:
        assert figure["met"] is None
        return
    rates = [] if figure["bytes"] is None else [figure["bytes"] / x / 1e9 for x in own["raw"]]
    held = {"ratio": ratio and ratio["raw"], "cnrfmt": own["raw"], "rate": rates}[target["of"]]
    value = statistics.median(held)
    assert figure["met"] == (value <= target["bound"] if target["sense"] == "<=" else value >= target["bound"])


def test_curves_are_measured_and_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "curves.png"
    results, told = run(tmp_path, "--point", "6", "--plot", str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")
    curves = results["curves"]
    assert len(curves) == 3
    for table, kept in curves.items():
        assert table in told
        assert set(kept) <= set(SCHEMES)
        for name, points in kept.items():
            most = 4 if "k-means" in name else 8
            assert [p["bits"] for p in points] == list(range(2, most + 1))
            assert all(p["stored_bits"] > p["bits"] for p in points)
            assert all(0 < p["mean_error"] <= p["max_error"] for p in points)
        plain, best = kept[PLAIN], kept["lsq, 4 starts"]
        assert all(b["mean_error"] <= p["mean_error"] for p, b in zip(plain, best, strict=True))


@pytest.mark.parametrize(
    "arguments", [["--point", "7"], ["--rows", "zipf"], ["--dim", "17"], ["--point", "1", "--plot", "x.png"]]
)
def test_unknown_arguments_are_refused(tmp_path: Path, arguments: list[str]) -> None:
    command = [sys.executable, str(SCRIPT), "--quick", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert arguments[-2] in done.stderr
    assert not list(tmp_path.iterdir())


def test_widths_stand_side_by_side_and_missed_ones_are_named() -> None:
    lines = [
        speed(1, "a", ("normal", dim), [1.0], 2_000_000_000, peer=("p", [ratio]), least=1.5)
        for dim, ratio in ((16, 2.0), (64, 1.4))
    ]
    lines.append(error(2, "b", ("normal", 16), 0.25, peer=("q", 0.5), most=1.0))
    lines.append(speed(3, "c", ("normal", 64), [1.0], 2_000_000_000, least_rate=2.0))
    lines.append(Line(3, "normal", 64, 1, Figure("point 3", "d", [0.1])))
    table = report(lines).splitlines()
    assert "2 : 1 = 2" in table[2]
    assert "2 : 1.43 = 1.4" in table[2]
    assert ">= 1.5 x speed" in table[2]
    assert table[2].endswith("NO: 64")
    assert "0.25 : 0.5 = 0.5000" in table[3]
    assert table[3].endswith("yes")
    assert ">= 2 GB/s" in table[4]
    assert table[4].endswith("yes")
    assert "100 ms" in table[5]
    assert table[-1] == "2 of 3 rows keep to their target at every width"


def test_a_target_may_be_a_rate() -> None:
    figure = Figure("g", "f", [0.5, 1.0, 2.0], bytes_moved=1_000_000_000, target=Target("rate", ">=", 1.0))
    assert figure.rates == [2.0, 1.0, 0.5]
    assert figure.met is True


def test_a_race_starts_with_a_run_that_does_not_count() -> None:
    order: list[str] = []
    times = race(2, {"a": lambda: order.append("a"), "b": lambda: order.append("b")})
    assert order == ["a", "b", "a", "b", "a", "b"]
    assert [len(found) for found in times.values()] == [2, 2]


def test_rows_are_what_they_are_called(tmp_path: Path) -> None:
    setting = Setting(tmp_path, True, 1)
    for rows in ROWS:
        for dim in (16, 64):
            many, few, sample = setting.many(rows, dim), setting.few(rows, dim), setting.sample(rows, dim)
            assert {many.shape[1], few.shape[1], sample.shape[1]} == {dim}
            assert len(sample) <= len(few) <= len(many)
            assert all((few == row).all(axis=1).any() for row in sample)
            assert all(x.dtype == np.float32 and x.flags.c_contiguous for x in (many, few, sample))
            assert sum(map(len, in_chunks(many))) == len(many)
    demo = np.concatenate([table.reshape(-1) for table in demo_tables(quick=True).values()])
    few = setting.few("demo", 64).reshape(-1)
    assert np.array_equal(few, demo[: few.size])


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_no_pair_near_by_beats_the_exhaustive_search(bits: int) -> None:
    rows = normal_rows(6, 16)
    how = recipe(bits, "adaptive")
    assert isinstance(how.layout, RowwiseLayout)
    places = geometry(how.layout, 16)

    def errors(scales: Any, biases: Any) -> Any:
        out = np.empty((len(rows), how.layout.row_bytes(16)), np.uint8)
        layouts.encode_codes(rows, scales, biases, np.zeros(len(rows), np.uint8), *places, out)
        return row_errors(rows, decoded(how.layout, out.reshape(-1), rows))

    scales, biases = best_parameters(rows, bits, 60)
    assert np.array_equal(scales, scales.astype(np.float16))
    assert np.array_equal(biases, biases.astype(np.float16))
    found = errors(scales, biases)
    assert (found <= row_errors(rows, again(how, rows))).all()
    reach = np.ptp(rows, axis=1, keepdims=True)
    for shrink in np.linspace(0.5, 1.1, 13):
        for shift in np.linspace(-0.1, 0.5, 13):
            other_scales = (reach * shrink / ((1 << bits) - 1)).astype(np.float16).astype(np.float32)
            other_biases = (rows.min(axis=1, keepdims=True) + reach * shift).astype(np.float16).astype(np.float32)
            # Its sums are float32, these aren't.
            assert (found <= errors(other_scales, other_biases) * (1 + 1e-5)).all()


def test_a_row_of_one_value_has_parameters_too() -> None:
    scales, biases = best_parameters(np.full((1, 16), 0.5, np.float32), 2, 8)
    assert (scales[0, 0], biases[0, 0]) == (0.0, 0.5)


def test_errors_are_relative_to_the_row() -> None:
    rows = np.array([[3, 4], [0, 0], [0, 2]], np.float32)
    assert row_errors(rows, np.array([[3, 4], [0, 0], [0, 1]], np.float32)).tolist() == [0.0, 0.5]
    assert worse(np.array([0.0, 1.0, 1.0]), np.array([0.0, 2.0, 0.0])).tolist() == [1.0, 0.5, np.inf]


def test_codes_by_codebooks_are_the_nearest_centres() -> None:
    rows = normal_rows(5, 16)
    how = recipe(2, "kmeans", params="float32")
    data = kernels_of(how, rows)().reshape(5, -1)
    centres = np.ascontiguousarray(data[:, :16]).view(np.float32)
    assert np.array_equal(decoded(how.layout, data.reshape(-1), rows), nearest(rows, centres))
