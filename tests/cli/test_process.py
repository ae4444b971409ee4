"""The command as a process: pipes, terminals, signals; and how its output is made."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt.cli import output, rows
from tests.cli.support import Command, a_segment, damage

ROOT = Path(__file__).resolve().parents[2]


def environment(**variables: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", **variables}


def command(*argv: object) -> list[str]:
    return [sys.executable, "-m", "cnrfmt", *map(str, argv)]


def run(*argv: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*argv), env=environment(), text=True, timeout=300, check=False, **options)


def test_exit_codes_of_the_process(path: Path, tmp_path: Path) -> None:
    assert run("verify", path, stdout=subprocess.DEVNULL).returncode == 0
    assert run("rows", path, "nobody", stderr=subprocess.DEVNULL).returncode == 2
    missing = run("info", tmp_path / "nothing.cnr", capture_output=True)
    assert (missing.returncode, missing.stdout, missing.stderr.count("\n")) == (4, "", 1)
    assert "Traceback" not in missing.stderr
    damage(*a_segment(path))
    assert run("verify", path, "--json", stdout=subprocess.DEVNULL).returncode == 1


def test_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    path = tmp_path / "tall.cnr"
    cnrfmt.save(path, {"t": np.arange(60000, dtype=np.float32).reshape(-1, 2)})
    with subprocess.Popen(
        command("rows", path, "t", ":"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().split()[0] == b"0"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(300) == 141


def test_a_full_disk_is_an_io_error(original: Path) -> None:
    with open("/dev/full", "w") as full:
        found = run("info", original, stdout=full, stderr=subprocess.PIPE)
    assert (found.returncode, found.stderr) == (4, "cnrfmt: no space left on device\n")


def test_text_that_the_stream_cannot_encode_is_escaped(tmp_path: Path) -> None:
    path = tmp_path / "names.cnr"
    cnrfmt.save(path, {"größe": np.ones((2, 2), np.float32)})
    found = subprocess.run(
        command("ls", path),
        env=environment(PYTHONIOENCODING="ascii"),
        capture_output=True,
        timeout=300,
        check=True,
    )
    assert b"gr\\xf6\\xdfe" in found.stdout


def on_a_terminal(*argv: object, **variables: str) -> str:
    """What the command prints where stdout and stderr are a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(command(*argv), stdout=theirs, stderr=theirs, env=environment(**variables)) as process:
        os.close(theirs)
        pieces = []
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # The other end is closed.
                break
            if not piece:
                break
            pieces.append(piece)
        assert process.wait(300) == 0
    os.close(ours)
    return b"".join(pieces).decode()


def test_a_terminal_gets_colours_and_a_progress_bar(original: Path) -> None:
    text = on_a_terminal("verify", original, COLUMNS="100")
    assert "\x1b[1;32msound\x1b[0m" in text
    assert "verifying" in text
    # As JSON it is for programs, wherever it goes.
    assert json.loads(on_a_terminal("verify", original, "--json"))["verdict"] == "sound"


def test_no_color_is_obeyed(original: Path) -> None:
    assert "\x1b" in on_a_terminal("info", original, COLUMNS="100")
    assert "\x1b" not in on_a_terminal("info", original, COLUMNS="100", NO_COLOR="1")


@pytest.mark.parametrize("columns", [60, 80])
def test_tables_fold_into_a_narrow_terminal(
    columns: int, tmp_path: Path, cnr: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "wide.cnr"
    names = [f"model.embeddings.categorical.{i}.weight" for i in range(3)]
    cnrfmt.save(path, {name: np.ones((200_000 // (i + 1), 1), np.float32) for i, name in enumerate(names)})
    wide = cnr("info", path).out
    assert all(any(name in line and "raw float32" in line for line in wide.splitlines()) for name in names)
    monkeypatch.setenv("COLUMNS", str(columns))
    tables = cnr("info", path).out.split("\ntables\n")[1].split("\nbytes\n")[0]
    assert max(map(len, tables.splitlines())) <= columns
    # Folded, not cut: every letter of the longest name is there.
    assert max(map(len, cnr("ls", path).out.splitlines())) <= columns


def test_interrupted_and_out_of_memory(original: Path, cnr: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for error, code, message in (
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 4, "there isn't enough memory for this"),
        (PermissionError(13, "Permission denied", "x.cnr"), 4, "x.cnr: permission denied"),
    ):

        def fail(*_: object, error: BaseException = error, **__: object) -> None:
            raise error

        monkeypatch.setattr(rows, "open", fail)
        found = cnr("rows", original, "word")
        assert (found.code, found.out, found.err) == (code, "", f"cnrfmt: {message}\n")
        as_json = cnr("rows", original, "word", "--json")
        assert json.loads(as_json.err)["error"]["message"] == message


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (9_994, "9.99 kB"),
        (9_996, "10.0 kB"),
        (99_949, "99.9 kB"),
        (99_951, "100 kB"),
        (999_499, "999 kB"),
        (999_501, "1.00 MB"),
        (12_345_678, "12.3 MB"),
        (3 * 10**12, "3.00 TB"),
        (5 * 10**18, "5000 PB"),
    ],
)
def test_sizes_for_people(count: int, text: str) -> None:
    assert output.size(count) == text


def test_numbers_in_words() -> None:
    assert output.span_of([]) == ""
    assert output.span_of([3]) == "3"
    assert output.span_of([0, 1, 2, 5, 7, 8]) == "0 to 2, 5, 7, 8"
    assert output.plural(1, "row") == "1 row"
    assert output.plural(12_000, "row") == "12,000 rows"
    assert output.times_smaller(1000, 100) == "10.0 times smaller"
    assert output.times_smaller(100, 150) == "1.5 times larger"
    assert output.times_smaller(100, 101) == "about as large"


def test_clean_keeps_what_can_be_printed() -> None:
    assert output.clean("größe 表") == "größe 表"
    assert output.clean("a\nb\x1b[0m\x9b\u200f\udc80") == "a\\nb\\x1b[0m\\x9b\\u200f\\udc80"
