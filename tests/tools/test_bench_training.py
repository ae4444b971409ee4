"""The benchmark of the checkpoint manager runs from end to end on little data. No test looks at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt.sizes import KEYS
from tools.bench import training
from tools.bench._training_data import Ids, Orders, Ratings, Source, Zipf
from tools.bench._training_throughput import Demo, Dlrm, Loop
from tools.bench._training_traces import POLICIES, RAW, Run, measure, report, run_of, times_less
from tools.bench._training_traces_plot import draw

BITS = (32, 8, 4)
ROOT = Path(__file__).resolve().parents[2]
SOURCES: dict[str, Callable[[], Source]] = {
    "orders": lambda: Orders(quick=True),
    "movielens": lambda: Ratings(quick=True),
    "zipf": lambda: Zipf(quick=True),
}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.bench.training", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("part", ["traces", "throughput"])
def test_a_part_reports_with_its_command_and_leaves_nothing_behind(tmp_path: Path, part: str) -> None:
    scratch, results = tmp_path / "scratch", tmp_path / "results"
    scratch.mkdir()
    more = ["--bits", "32,4"] if part == "traces" else ["--repeat", "2"]
    done = run(part, "--quick", "--dir", str(scratch), "--results", str(results), *more)
    assert done.returncode == 0, done.stderr
    text = (results / f"training_{part}.txt").read_text()
    assert text == done.stdout
    command, seed, *_ = text.splitlines()
    assert command.startswith(f"$ python -m tools.bench.training {part} --quick")
    assert seed.startswith("seed ")
    for name in ("orders", "movielens", "zipf") if part == "traces" else ("demo", "DLRM"):
        assert f"\n{name}" in text
    assert not list(scratch.iterdir())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["stal"], "there is no part 'stal'"),
        (["traces", "throughput", "--bits", "4"], "--bits goes with one part alone"),
        (["traces", "--only", "films"], "there is no 'films'"),
        (["traces", "--bits", "4"], "32 among them"),
        (["throughput", "--repeat", "0"], "at least 1"),
        (["traces", "--dir", "nowhere"], "no such directory"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        training.main([*arguments, "--quick"])
    assert end.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("part", training.PARTS)
def test_every_part_has_the_options_that_it_is_given(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        training.main([part, "--help"])
    assert end.value.code == 0
    told = capsys.readouterr().out
    assert all(f"--{name}" in told for name in ("quick", *training.PARTS[part]))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the traces of all sources took, as JSON says it."""
    return {
        name: json.loads(json.dumps(measure(make(), tmp_path_factory.mktemp(name), BITS)))
        for name, make in SOURCES.items()
    }


@pytest.mark.parametrize("name", SOURCES)
def test_traces_measure_files_and_their_parts(found: dict[str, Any], name: str) -> None:
    one = found[name]
    assert [(r["bits"], r["policy"]) for r in one["runs"]] == [(b, p) for b in BITS for p in POLICIES]
    for made in one["runs"]:
        assert len(made["written"]) == len(one["rows"]) == 4
        assert made["kinds"][0] == "baseline"
        assert [sum(parts.values()) for parts in made["parts"]] == made["written"]
        # What is kept is all that was written, or less; and it never is more than what was there at once.
        assert made["kept"][0] == made["written"][0]
        assert all(kept <= most for kept, most in zip(made["kept"], made["most"], strict=True))
        if made["policy"] == "full":
            assert made["kinds"] == ["baseline"] * 4
            assert made["kept"] == made["written"]
        if made["policy"] == "consecutive":
            segments = [sum(p.values()) - p["metadata"] for p in made["parts"]]
            assert made["kept"][-1] >= sum(segments)
    rows = [sum(tables.values()) for tables in one["rows"]]
    assert all(0 < touched <= n for touched, n in zip(one["touched"][1:], rows[1:], strict=True))


@pytest.mark.parametrize("name", SOURCES)
def test_ratios_are_those_of_what_was_written_and_kept(found: dict[str, Any], name: str) -> None:
    one = found[name]
    full, four = run_of(one, "full", RAW), run_of(one, "intermittent", 4)
    assert times_less(one, full, "written") == times_less(one, full, "kept") == 1
    assert times_less(one, four, "written") == mean(full["written"][1:]) / mean(four["written"][1:])
    assert times_less(one, four, "in all") == sum(full["written"]) / sum(four["written"])
    assert times_less(one, four, "kept") == max(full["kept"]) / max(four["kept"])
    assert times_less(one, four, "written") > times_less(one, run_of(one, "intermittent", 8), "written") > 1
    told = report(one)
    assert all(key in told for key in KEYS)
    assert sum(line.startswith("intermittent ") for line in told.splitlines()) == 2 * len(BITS)


def test_traces_are_drawn(found: dict[str, Any], tmp_path: Path) -> None:
    draw(list(found.values()), tmp_path / "costs.png")
    assert (tmp_path / "costs.png").read_bytes().startswith(b"\x89PNG")


def test_a_restore_that_differs_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(self: Run, *args: Any) -> None:
        step, source, touched, tables = args
        checkpoint(self, step, source, {n: ids[:1] for n, ids in touched.items()}, tables)

    checkpoint = Run.checkpoint
    monkeypatch.setattr(Run, "checkpoint", forgetful)
    with pytest.raises(SystemExit, match="isn't what it should be"):
        measure(SOURCES["zipf"](), tmp_path, [RAW])


@pytest.mark.parametrize("name", SOURCES)
def test_what_a_source_says_it_touched_is_all_that_changes(name: str) -> None:
    source: Source = SOURCES[name]()
    for interval in range(source.intervals + 1):
        before = {table: _rows(data) for table, data in source.tables().items()}
        source.train(interval)
        touched = source.touched()
        for table, data in source.tables().items():
            now, then = _rows(data), before[table]
            changed = {key for key, row in now.items() if key not in then or row != then[key]}
            assert changed <= set(touched[table].tolist())
            assert set(touched[table].tolist()) <= now.keys()


def _rows(data: cnrfmt.TableData) -> dict[int, bytes]:
    keys = range(len(data.values)) if data.keys is None else data.keys.tolist()
    accumulator = data.columns["accumulator"]
    return {key: data.values[n].tobytes() + accumulator[n].tobytes() for n, key in enumerate(keys)}


@pytest.mark.parametrize("make", [lambda: Demo(quick=True), lambda: Dlrm(5000)], ids=["demo", "dlrm"])
def test_loops_say_all_that_they_change(make: Any) -> None:
    loop: Loop = make()
    said: dict[str, list[Ids]] = {name: [] for name in loop.tables()}
    before = {name: data.values.copy() for name, data in loop.tables().items()}
    for _ in range(3):
        loop.step(lambda table, ids: said[table].append(ids))
    for name, data in loop.tables().items():
        changed = np.flatnonzero((data.values != before[name]).any(1))
        assert changed.size
        assert np.isin(changed, np.concatenate(said[name])).all()
    assert loop.dense()
