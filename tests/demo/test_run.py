from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import cnrfmt
from cnrfmt import CnrError, UsageError
from cnrfmt.demo import quality, run, worker
from cnrfmt.demo.model import Model
from cnrfmt.demo.orders import Dataset
from cnrfmt.demo.plot import check_path
from cnrfmt.demo.report import Screen
from cnrfmt.demo.run import run_demo
from cnrfmt.format.encoding import GridLayout, RowwiseLayout

_SCRIPT = """
import sys
from cnrfmt.demo.run import run_demo
run_demo(sys.argv[1], checkpoint_every=10, seed=5, users=7, json=True, **eval(sys.argv[2]))
"""


@dataclass(frozen=True)
class Told:
    result: dict[str, Any]
    text: str


def demo(folder: Path, **options: Any) -> Told:
    """Runs the demo on seven users in a process of its own; the result and what it told."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _SCRIPT, "demo.cnr", repr(options)],
        cwd=folder,
        env={**run.os.environ, "PYTHONPATH": str(Path(run.__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    return Told(json.loads(done.stdout), done.stderr)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def quantised(folder: Path) -> Told:
    return demo(folder, bits=4)


@pytest.fixture(scope="module")
def exact(folder: Path, quantised: Told) -> Told:
    """Without loss, at the path of an earlier demo."""
    return demo(folder, bits=32, plot="demo.png", threads=1)


def test_the_trainer_dies_for_real_and_another_one_goes_on(exact: Told) -> None:
    # Half of 94 orders is 47; the middle of that interval is order 45.
    death = exact.result["death"]
    assert (death["order"], death["signal"]) == (45, signal.SIGKILL)
    assert (death["restored_version"], death["restored_order"], death["lost_orders"]) == (3, 40, 5)
    assert [c["order"] for c in exact.result["checkpoints"]] == [*range(10, 91, 10), 94]
    # An earlier demo's container was replaced: versions start at 0 again.
    assert [c["version"] for c in exact.result["checkpoints"]] == list(range(10))
    assert "killed (signal 9, SIGKILL) at order 45" in exact.text
    assert "restored version 3" in exact.text


def test_without_loss_both_runs_end_alike(exact: Told, folder: Path, some: Dataset) -> None:
    found = exact.result["quality"]
    assert found["interrupted"] == found["uninterrupted"]
    assert found["recall_difference"] == {"value": 0, "standard_error": 0}
    assert found["log_loss_difference"] == {"relative": 0, "standard_error": 0}
    model = Model(some, 5)
    model.train(94)
    want = quality.judge(model, 5)
    assert found["uninterrupted"] == {"recall": want.mean_recall, "log_loss": want.mean_loss}
    assert found["popularity_recall"] == quality.popularity_recall(some)
    with cnrfmt.open(folder / "demo.cnr") as ck:
        assert ck.step == 94
        assert ck.versions == tuple(range(10))
        for name in ("user", "product"):
            assert ck[name][...].tobytes() == getattr(model.weights, name).tobytes()
    assert cnrfmt.verify(folder / "demo.cnr").sound


def test_the_picture_is_drawn(exact: Told, folder: Path) -> None:
    assert exact.result["plot"] == "demo.png"
    assert (folder / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_quantised_rows_take_fewer_bytes_and_change_little(quantised: Told, exact: Told) -> None:
    few, many = quantised.result, exact.result
    assert few["totals"]["ratio"] > many["totals"]["ratio"] > 1
    for result in (few, many):
        written = sum(sum(c["bytes"].values()) for c in result["checkpoints"])
        assert result["totals"]["bytes"] == written
        assert result["totals"]["full_bytes"] == sum(c["full_bytes"] for c in result["checkpoints"])
    assert few["quality"]["uninterrupted"] == many["quality"]["uninterrupted"]
    difference = few["quality"]["log_loss_difference"]
    assert 0 < abs(difference["relative"]) < 0.02
    assert difference["standard_error"] > 0


def test_what_it_tells_is_what_it_found(quantised: Told) -> None:
    result, text = quantised.result, quantised.text
    assert "94 real grocery orders of 7 users and 387 products" in text
    assert "policy consecutive, weights in rows of 4 bits" in text
    for checkpoint in result["checkpoints"]:
        start = f"{checkpoint['version']:3}{checkpoint['order']:7,}{sum(checkpoint['rows'].values()):8,}"
        (line,) = (line for line in text.splitlines() if line.startswith(start))
        assert len(line) <= 80
    assert f"{result['totals']['ratio']:.1f} times less" in text
    for name in ("uninterrupted", "interrupted"):
        assert f"{result['quality'][name]['recall']:.2%}" in text
        assert f"{result['quality'][name]['log_loss']:.5f}" in text
    commands = [line.strip() for line in text.splitlines()[-3:]]
    assert commands == [
        "cnrfmt info demo.cnr",
        "cnrfmt rows demo.cnr product 0:5",
        "cnrfmt verify demo.cnr",
    ]


def test_a_grid_is_compared_with_rows_of_few_bits(tmp_path: Path, exact: Told) -> None:
    found = demo(tmp_path, plot="demo.png")
    result, text = found.result, found.text
    assert (result["encoding"], result["bits"]) == ("grid", None)
    (rows,) = result["beside"]
    # One restore, and Check-N-Run has 2 bits for that.
    assert rows["bits"] == 2
    assert [c["order"] for c in rows["checkpoints"]] == [c["order"] for c in result["checkpoints"]]
    assert rows["totals"]["full_bytes"] == result["totals"]["full_bytes"] == exact.result["totals"]["full_bytes"]
    for run_, words in ((result, "on a grid"), (rows, "in rows of 2 bits")):
        totals, found_quality = run_["totals"], run_["quality"]
        assert totals["bytes"] == sum(sum(c["bytes"].values()) for c in run_["checkpoints"])
        assert found_quality["uninterrupted"] == exact.result["quality"]["uninterrupted"]
        assert 0 < abs(found_quality["log_loss_difference"]["relative"]) < 0.05
        (line,) = (line for line in text.splitlines() if line.startswith(f"killed and restored, {words}"))
        loss, megabytes = f"{found_quality['interrupted']['log_loss']:.5f}", f"{totals['bytes'] / 1e6:.2f}"
        assert line.split()[-4:-1] == [loss, megabytes, "MB"]
        assert len(line) <= 80
    weights = [sum(c["bytes"]["rows"] for c in one["checkpoints"]) for one in (result, rows)]
    assert weights[0] < weights[1]
    assert "weights on a grid" in text
    assert exact.result["beside"] == []
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    # What it was compared with is gone.
    assert [path.name for path in tmp_path.glob("*.cnr")] == ["demo.cnr"]
    with cnrfmt.open(tmp_path / "demo.cnr") as ck:
        assert [type(ck[name].encoding) for name in ("user", "pair")] == [GridLayout, RowwiseLayout]
    assert cnrfmt.verify(tmp_path / "demo.cnr").sound


def test_bad_arguments_change_nothing(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.cnr"
    cnrfmt.save(foreign, {"user": np.zeros((2, 4), np.float32)})
    before = foreign.read_bytes()
    free = tmp_path / "demo.cnr"
    for path, options, message in [
        (foreign, {}, "no demo made it"),
        (tmp_path, {}, "is a directory"),
        (tmp_path / "demo.bin", {}, "a name in .cnr"),
        (tmp_path / "none" / "demo.cnr", {}, "no directory"),
        (free, {"bits": 9}, "bits"),
        (free, {"policy": "never"}, "policy"),
        (free, {"users": 1}, "at least 2"),
        (free, {"threads": 0}, "threads"),
        (free, {"users": 7, "checkpoint_every": 48}, "1 to 47 orders"),
        (free, {"users": 7, "checkpoint_every": 0}, "1 to 47 orders"),
        (free, {"plot": tmp_path / "demo.exe"}, "must end in"),
        (free, {"plot": tmp_path / "none" / "demo.png"}, "is no directory"),
    ]:
        with pytest.raises(UsageError, match=message):
            run_demo(path, **options)
    assert foreign.read_bytes() == before
    assert not free.exists()


def test_plots_go_where_matplotlib_can_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_path(tmp_path / "demo.PDF")
    monkeypatch.setitem(sys.modules, "cnrfmt.demo.plot", None)
    monkeypatch.delattr("cnrfmt.demo.plot", raising=False)
    with pytest.raises(UsageError, match=r"pip install 'cnrfmt\[plot\]'"):
        run_demo(tmp_path / "demo.cnr", plot=tmp_path / "demo.png")


def test_a_trainer_that_fails_otherwise_ends_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(CnrError, match="ended mute, with exit code 1"):
        run_demo(tmp_path / "demo.cnr", users=7, checkpoint_every=10)


def test_a_child_never_outlives_the_demo() -> None:
    command = [sys.executable, "-c", "print('up', flush=True); import time; time.sleep(600)"]
    started: list[subprocess.Popen[str]] = []

    def interrupted() -> None:
        with run._process(command) as process:
            started.append(process)
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert started[0].returncode == -signal.SIGKILL


def test_the_worker_writes_one_json_object_per_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(tmp_path / "demo.cnr"), "--bits=8", "--every=40", "--seed=1", "--users=7"]
    worker.main(arguments)
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [e["order"] for e in events if e["event"] == "checkpoint"] == [40, 80, 94]
    assert events[-1]["event"] == "finished"
    worker.main(arguments)
    again = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (again[0]["event"], again[0]["order"], again[0]["version"]) == ("restored", 94, 2)
    assert again[-1]["event"] == "finished"


def test_progress_is_shown_on_a_terminal_alone() -> None:
    for terminal in (True, False):
        screen, out = Screen(to_stderr=False), StringIO()
        screen._console = Console(file=out, force_terminal=terminal, width=100)
        with screen.progress(200) as bars:
            bars.uninterrupted(200)
            bars.interrupted(50)
        assert ("50/200" in out.getvalue()) == terminal
        assert ("200/200" in out.getvalue()) == terminal
