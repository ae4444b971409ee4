"""Running the command within a test, and damaging what it looks at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt.cli import main

# Hashed keys fill 64 bits, so no floating-point number on the way may round them.
VISITORS = np.array([-(2**63), -17, 4, 99, 2**53 + 1, 2**63 - 1])


class Result:
    """What a run left: its exit code and what it printed."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Command:
    """Runs the command within this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *argv: object) -> Result:
        code = main([str(a) for a in argv])
        captured = self._capsys.readouterr()
        return Result(code, captured.out, captured.err)


def damage(path: Path, offset: int) -> None:
    with path.open("r+b") as f:
        f.seek(offset)
        old = f.read(1)
        f.seek(offset)
        f.write(bytes([old[0] ^ 0x10]))


def a_segment(path: Path) -> tuple[Path, int]:
    """A file and the offset in it where the first rows of the baseline stand."""
    with cnrfmt.open(path) as ck:
        entry = ck.manifest.chain[0]
        toc = ck.view.segments[entry.segment].toc
        part = next(p for t in toc.tables for p in t.parts)
        offset = toc.sections[part.section][0]
    if path.is_dir():
        return path / "segments" / f"{entry.segment.hex()}.cnrs", offset
    return path, (entry.offset or 0) + offset
