"""Groups of a few bytes that hold tens of thousands of values: legal, since what is certain takes no bits."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from tests.attacks.support import Store, accepted, cases, command, encodings, in_child, integers, lay, layout
from tools import cnrcheck

LEAST = struct.pack("<8I", *[65536] * 8)
SMALL = 96 << 20
"""Bytes that reading or judging may take: a fraction of all values."""


def _store(count: int, width: int, group: int, payload: str = "rans") -> Store:
    """A table of ones, or of zeros if packed."""
    schema = cases.schema("bomb", "item", count, width)
    encoding = encodings.grid("absolute", 0, payload, None, group)
    groups = -(-count // group)
    if payload == "rans":
        # Every token is 2, that of the code 1.
        head = integers.Models([(0, 0, 4096)], [[0, 0, 4096]]).head()
        data = integers.assembled([LEAST] * groups, head)
    else:
        data = integers.assembled([bytes(2 * group)] * groups)

    def content(segment: layout.Segment) -> None:
        table = layout.Table(segment, cases.table_id(schema), count)
        table.part("weight", table.span(0, count - 1), (0, width), encoding, data)

    return cases.one_small(content=content, tables=[schema])


BOMBS = {
    "rows": (1 << 25, 1, 65536, "rans"),
    "wide": (32, 1 << 20, 1, "rans"),
    "square": (1 << 17, 256, 256, "rans"),
    "packed": (1 << 13, 1 << 12, 16, "packed"),
}
"""2^25 values each."""


def _load(path: Path, max_bytes: int | None) -> Any:
    return cnrfmt.load(path, max_bytes=max_bytes)["item"].shape


def _rows(path: Path) -> Any:
    with cnrfmt.open(path, max_bytes=SMALL, threads=1) as ck:
        table = ck["item"]
        return [float(np.sum(table[row])) for row in (0, len(table) - 1)]


@pytest.mark.parametrize("bomb", BOMBS)
def test_results_are_counted_and_rows_are_read(tmp_path: Path, bomb: str) -> None:
    count, width, group, payload = BOMBS[bomb]
    path = lay(tmp_path / "hostile", _store(count, width, group, payload))
    error = in_child(_load, path, 1 << 24)
    assert isinstance(error, cnrfmt.TooLargeError), repr(error)
    one = float(width) if payload == "rans" else 0.0
    assert in_child(_rows, path, memory=SMALL) == [one, one]


def _judged(path: Path) -> tuple[str, str]:
    return cnrfmt.verify(path, threads=1).verdict, cnrcheck.verdict(cnrcheck.check_path(path))


@pytest.mark.parametrize("bomb", BOMBS)
def test_they_are_judged_in_bounded_memory(tmp_path: Path, bomb: str) -> None:
    path = lay(tmp_path / "hostile", _store(*BOMBS[bomb]))
    assert in_child(_judged, path, memory=2 * SMALL) == ("sound", "sound")


def test_the_command_describes_them(tmp_path: Path) -> None:
    path = lay(tmp_path / "hostile", _store(*BOMBS["rows"]))
    code, out, _ = in_child(command, path, "info", memory=SMALL)
    assert (code, "item" in out) == (0, True)
    accepted(tmp_path, _store(100, 3, 7))
