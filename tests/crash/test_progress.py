"""A result that is kept belongs to its code and its arguments; a program that is stopped says so in one line."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tools import progress
from tools.progress import Kept, code_digest, undisturbed, write_entry

ROOT = Path(__file__).parents[2]
ENGINES = (
    *("tools.crash.model", "tools.crash.filesystems", "tools.crash.kills", "tools.crash.faults"),
    *("tools.crash.system_calls", "tools.crash.machine", "tools.damage.damage", "tools.damage.peers"),
    "tools.crash.ranks",
)


def copy_of_code(folder: Path) -> None:
    for name in ("cnrfmt/format", "tools", "golden"):
        (folder / name).mkdir(parents=True)
    for name in ("cnrfmt/a.py", "cnrfmt/format/b.py", "tools/cnrcheck.py", "golden/c.bin"):
        (folder / name).write_text(name)


def test_digest_is_of_all_that_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_of_code(tmp_path)
    monkeypatch.setattr(progress, "ROOT", tmp_path)
    golden = tmp_path / "golden"
    found = {code_digest(), code_digest(golden)}
    for name in ("cnrfmt/a.py", "cnrfmt/format/b.py", "tools/cnrcheck.py"):
        (tmp_path / name).write_text("changed")
        found |= {code_digest(), code_digest(golden)}
    assert len(found) == 8
    before = code_digest()
    (golden / "c.bin").write_text("changed")
    assert code_digest() == before
    assert code_digest(golden) not in found


def test_progress_belongs_to_its_code_and_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy_of_code(tmp_path)
    monkeypatch.setattr(progress, "ROOT", tmp_path)
    file = tmp_path / "state.json"
    first = Kept(file, {"seed": 1})
    assert first.load() is None
    first.save({"done": 3})
    again = Kept(file, {"seed": 1})
    assert again.load() == {"done": 3}
    assert (again.code, again.date) == (first.code, first.date)
    with pytest.raises(SystemExit, match="2"):
        Kept(file, {"seed": 2}).load()
    assert f"{file} belongs to other arguments, {{'seed': 1}}: remove it to start anew" in capsys.readouterr().err

    (tmp_path / "cnrfmt" / "a.py").write_text("changed")
    with pytest.raises(SystemExit, match="2"):
        Kept(file, {"seed": 1}).load()
    refusal = f"{file} belongs to other code: remove it to start anew, or --anyway to go on"
    assert refusal in capsys.readouterr().err
    on = Kept(file, {"seed": 1}, anyway=True)
    assert on.load() == {"done": 3}
    # As long as nothing more was tried, the result is of the old code; then of both, which it says.
    assert on.code == first.code
    on.save({"done": 4})
    assert on.code == f"{first.code}, {code_digest()}"
    assert Kept(file, {"seed": 1}).load() == {"done": 4}
    # Progress that doesn't say what code it is of is never believed.
    file.write_text(json.dumps({"done": 5}))
    with pytest.raises(SystemExit, match="2"):
        Kept(file, {"seed": 1}, anyway=True).load()


def test_results_lie_side_by_side_in_order(tmp_path: Path) -> None:
    file = tmp_path / "results" / "all.json"
    for seed, found in ((3, "a"), (1, "b"), (2, "c"), (3, "d")):
        write_entry(file, {"seed": seed, "found": found})
    assert [(entry["seed"], entry["found"]) for entry in json.loads(file.read_text())] == [(1, "b"), (2, "c"), (3, "d")]
    write_entry(file, {"seed": 4, "found": "c"}, key=lambda entry: "dcb".index(entry["found"]))
    assert [(entry["seed"], entry["found"]) for entry in json.loads(file.read_text())] == [(3, "d"), (4, "c"), (1, "b")]


def write_entries(file: Path, first: int) -> None:
    for seed in range(first, first + 20):
        write_entry(file, {"seed": seed})


def test_no_result_is_lost_where_runs_end_together(tmp_path: Path) -> None:
    file = tmp_path / "all.json"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_entries, args=(file, first)) for first in (0, 20)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    assert [entry["seed"] for entry in json.loads(file.read_text())] == list(range(40))


@pytest.mark.parametrize("name", ENGINES)
def test_help_is_the_whole_docstring(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    engine = importlib.import_module(name)
    with pytest.raises(SystemExit, match="0"):
        engine.main(["--help"])
    said = capsys.readouterr().out
    assert engine.__doc__.strip() in said
    assert "--anyway" in said
    assert "refused" in said


def test_fuzzing_goes_on_with_mended_code(capsys: pytest.CaptureFixture[str]) -> None:
    from tools.fuzz import run

    with pytest.raises(SystemExit, match="0"):
        run.main(["--help"])
    said = capsys.readouterr().out
    assert str(run.__doc__).strip() in said
    assert "--anyway" not in said
    assert "belongs to other arguments is refused" in " ".join(said.split())


@pytest.mark.parametrize("error", [None, OSError()])
def test_requests_to_end_wait(error: OSError | None) -> None:
    done = []

    @undisturbed()
    def work() -> None:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
            done.append("still here")
        if error is not None:
            raise error

    # A shell that starts this in the background lets it ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            work()
        assert done == ["still here"] * 2
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_program_that_is_stopped_clears_up_and_says_one_line(tmp_path: Path, number: signal.Signals) -> None:
    program = """
import contextlib, pathlib, signal, sys, time
from tools.progress import counting, run_program
# A shell that starts this in the background lets it ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
file = pathlib.Path(sys.argv[1])

@contextlib.contextmanager
def scratch():
    file.touch()
    try:
        yield
    finally:
        file.unlink()

def main():
    with counting(lambda: "3 kills", file), scratch():
        print("ready", flush=True)
        time.sleep(60)

run_program(main)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "scratch")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        os.kill(running.pid, number)
        _, said = running.communicate(timeout=60)
    assert said == "stopped after 3 kills; the same command with --state goes on\n"
    assert running.returncode == 128 + number
    assert list(tmp_path.iterdir()) == []
