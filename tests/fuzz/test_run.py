"""The driver: shares, chunks that go on where they ended, failures that are kept and named."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tools.fuzz import run
from tools.fuzz.targets import TARGETS
from tools.progress import Kept

DONE = """#2\tINITED cov: 7 ft: 9 corp: 1/1b exec/s: 0 rss: 60Mb
#{runs}\tDONE   cov: {edges} ft: 20 corp: 4/9b lim: 10 exec/s: 5000 rss: 60Mb
stat::number_of_executed_units: {runs}
"""


class Engine:
    """Takes the place of libFuzzer: says what it would say, and may leave a failing input."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.commands: list[list[str]] = []
        self.crash: bytes | None = None
        monkeypatch.setattr(run.subprocess, "run", self)
        # The tests don't install what they don't start.
        monkeypatch.setattr(run, "version", lambda package: f"{package} of no release")

    def __call__(self, command: list[str], **options: Any) -> Any:
        if "tools.fuzz.engine" not in command:
            return subprocess.CompletedProcess(command, 1)
        self.commands.append(command)
        words = dict(word[1:].split("=", 1) for word in command if word.startswith("-") and "=" in word)
        runs = int(words["runs"])
        text = DONE.format(runs=runs, edges=10 + len(self.commands))
        if self.crash is None:
            return subprocess.CompletedProcess(command, 0, "", text)
        Path(words["artifact_prefix"], f"crash-{len(self.commands)}").write_bytes(self.crash)
        return subprocess.CompletedProcess(command, 77, "=== Uncaught Python exception: ===", text)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    return Engine(monkeypatch)


def test_every_target_has_its_share(engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state, table = tmp_path / "state.json", tmp_path / "table.json"
    arguments = ["--executions", "100000", "--seed", "4", "--state", str(state), "--json", str(table)]
    assert run.main(arguments) == 0
    (found,) = json.loads(table.read_text("utf-8"))
    assert found["seed"] == 4
    assert found["executions"] == 100_000
    assert {name: row["executions"] for name, row in found["targets"].items()} == {
        name: 100 * target.share for name, target in TARGETS.items()
    }
    assert found["targets"]["toc"]["failures_left"] == 0
    before = len(engine.commands)
    assert "nothing left to try" not in capsys.readouterr().out
    # All was done: the same command has nothing left to do.
    assert run.main(arguments) == 0
    assert len(engine.commands) == before
    assert "nothing left to try" in capsys.readouterr().out
    assert json.loads(table.read_text("utf-8")) == [found]


def test_each_seed_has_its_result(engine: Engine, tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    for seed, executions in (("9", "10"), ("4", "10"), ("9", "20")):
        run.main(["--target", "slot", "--executions", executions, "--seed", seed, "--json", str(table)])
    found = json.loads(table.read_text("utf-8"))
    assert [(entry["seed"], entry["executions"]) for entry in found] == [(4, 10), (9, 20)]


def kept_targets(state: Path, seed: int) -> dict[str, Any]:
    found = Kept(state, {"seed": seed}, anyway=True).load()
    assert found is not None
    return found


def test_a_run_goes_on_where_it_ended(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state, table = tmp_path / "state.json", tmp_path / "table.json"
    arguments = ["--target", "slot", "--seed", "9", "--state", str(state), "--json", str(table)]
    run.main([*arguments, "--executions", "1000"])
    # What an input found was mended meanwhile.
    monkeypatch.setattr(run, "code_digest", lambda: "mended")
    run.main([*arguments, "--executions", "5000"])
    assert kept_targets(state, 9)["slot"]["executions"] == 5000
    (found,) = json.loads(table.read_text("utf-8"))
    assert (found["code"], found["changes_of_code"]) == ("mended", 1)
    with pytest.raises(SystemExit, match="2"):
        run.main(["--target", "slot", "--executions", "9000", "--seed", "8", "--state", str(state)])
    assert f"{state} belongs to other arguments, {{'seed': 9}}" in capsys.readouterr().err
    seeds = [word for command in engine.commands for word in command if word.startswith("-seed=")]
    assert len(set(seeds)) == len(seeds) == len(engine.commands)


def test_a_failure_is_kept_and_named(engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine.crash = b"\0" * 8
    state = tmp_path / "state.json"
    assert run.main(["--target", "toc", "--executions", "50", "--seed", "1", "--state", str(state)]) == 1
    failures = kept_targets(state, 1)["toc"]["failures"]
    assert [Path(path).read_bytes() for path in failures] == [engine.crash]
    assert f"python -m tools.fuzz.run --target toc --replay {failures[0]}" in capsys.readouterr().out


def test_without_a_state_only_failures_stay(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run.tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    arguments = ["--target", "toc", "--executions", "50"]
    assert run.main(arguments) == 0
    assert engine.commands
    assert not list(tmp_path.iterdir())
    engine.crash = b"x"
    assert run.main(arguments) == 1
    failing = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.read_bytes() for path in failing] == [b"x"]
    assert f"--replay {failing[0]}" in capsys.readouterr().out


def test_a_target_that_keeps_failing_is_left(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.crash = b"x"
    monkeypatch.setattr(run, "_LEAST_CHUNK", 1)
    monkeypatch.setattr(run, "_FIRST_CHUNK", 0)
    monkeypatch.setattr(run, "_CHUNK_SECONDS", 0)
    run.main(["--target", "toc", "--executions", "1000", "--state", str(tmp_path / "state.json")])
    assert len(engine.commands) == run._MOST_FAILURES


def test_replaying(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"{}")
    assert run.main(["--target", "strict_json", "--replay", str(path)]) == 0

    def broken(data: bytes) -> None:
        raise AssertionError("a promise is broken")

    monkeypatch.setitem(run.TARGETS, "strict_json", run.TARGETS["strict_json"].__class__(broken, 1, 10))
    assert run.main(["--target", "strict_json", "--replay", str(path)]) == 1
    assert "a promise is broken" in capsys.readouterr().out


def test_without_the_fuzzer_nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every chunk would count as a failure."""

    def absent(package: str) -> str:
        raise run.PackageNotFoundError(package)

    monkeypatch.setattr(run, "version", absent)
    with pytest.raises(SystemExit) as caught:
        run.main(["--executions", "10", "--state", str(tmp_path / "state.json")])
    assert caught.value.code == 2
    assert not list(tmp_path.iterdir())
