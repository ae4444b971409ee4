"""A file that somebody cuts or changes while it is read. `pread` answers with an error; a map can't."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from tests.attacks.support import ROOT, accepted, cases, in_child

ROWS, DIM = 4000, 64


def _saved(path: Path) -> Path:
    cnrfmt.save(path, {"t": np.arange(ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM)})
    return path


def _cut(path: Path) -> None:
    size = os.path.getsize(path)
    os.truncate(path, size // 8)


def _scribble(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(ROWS * DIM * 3)
        file.write(b"\xff" * 4096)


def _read_on(path: Path, change: Any, first: bool) -> list[str]:
    """The errors of reading on after a change: a part that was read before it, and the whole."""
    found = []
    with cnrfmt.open(path, backend="pread", threads=1) as ck:
        table = ck["t"]
        if first:
            table[...]
        change(path)
        for rows in (slice(ROWS // 2, ROWS), None, [1, ROWS // 2, ROWS - 1], ROWS // 2):
            try:
                table.read(rows)
                found.append("read")
            except cnrfmt.DamagedError as error:
                found.append(error.rule)
    return found


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(("change", "rule"), [(_cut, "file-length"), (_scribble, "piece-digest")])
def test_pread_survives(tmp_path: Path, change: Any, rule: str, first: bool) -> None:
    """What was verified once is verified anew when it is read anew."""
    found = in_child(_read_on, _saved(tmp_path / "model.cnr"), change, first)
    assert found[:2] == [rule, rule]
    assert set(found) <= {rule, "read"}
    accepted(tmp_path, cases.one())


def test_pread_survives_in_a_directory(tmp_path: Path) -> None:
    path = _saved(tmp_path / "run")
    segment = next((path / "segments").iterdir())
    assert set(in_child(_read_on, path, Path.exists, True)) == {"read"}
    assert in_child(_cut_segment, path, segment)[:2] == ["segment-length", "segment-length"]


def _cut_segment(path: Path, segment: Path) -> list[str]:
    return _read_on(path, lambda _: _cut(segment), True)


_MAPPED = """
import os, sys
import cnrfmt
path = sys.argv[1]
with cnrfmt.open(path, backend="mmap", threads=1) as ck:
    table = ck["t"]
    os.truncate(path, os.path.getsize(path) // 8)
    try:
        for row in range(len(table) - 1, 0, -97):
            table[row]
    except cnrfmt.DamagedError as error:
        print(error.rule)
        sys.exit(3)
print("read")
"""


def test_a_map_ends_the_process_or_the_read(tmp_path: Path) -> None:
    """The kernel ends a process that touches a page behind the file's end: so the threat model says."""
    command = [sys.executable, "-X", "faulthandler=0", "-c", _MAPPED, str(_saved(tmp_path / "model.cnr"))]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert ended.returncode in (-signal.SIGBUS, 3), ended
    assert "read" not in ended.stdout, ended
