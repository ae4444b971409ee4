"""A result that is kept belongs to its code and its arguments; a program that is stopped says so in one line."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tools import progress
from tools.progress import Kept, code_digest

ROOT = Path(__file__).parents[2]
ENGINES = (
    *("tools.crash.model", "tools.crash.filesystems", "tools.crash.kills", "tools.crash.faults"),
    *("tools.crash.system_calls", "tools.crash.machine", "tools.damage.damage", "tools.damage.peers"),
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
    # The result says that it is of both.
    assert on.code == f"{first.code}, {code_digest()}"
    on.save({"done": 4})
    assert Kept(file, {"seed": 1}).load() == {"done": 4}
    # Progress that doesn't say what code it is of is never believed.
    file.write_text(json.dumps({"done": 5}))
    with pytest.raises(SystemExit, match="2"):
        Kept(file, {"seed": 1}, anyway=True).load()


@pytest.mark.parametrize("name", ENGINES)
def test_help_is_the_whole_docstring(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    engine = importlib.import_module(name)
    with pytest.raises(SystemExit, match="0"):
        engine.main(["--help"])
    said = capsys.readouterr().out
    assert engine.__doc__.strip() in said
    assert "--anyway" in said
    assert "refused" in said


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
