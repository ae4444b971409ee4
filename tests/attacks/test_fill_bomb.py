"""A table of 2^40 rows in a kilobyte: legal, since rows that were never written read as the fill value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from tests.attacks.support import Store, accepted, cases, command, in_child, lay, layout

HUGE = 1 << 40


def _table(rows: int) -> Store:
    """A dense table that was only ever given its number of rows, and a value to fill them with."""
    schema = cases.put("rows", rows)
    table = json.loads(json.dumps(cases.USER))
    schema(table)
    table["columns"][0]["fill"] = np.float32(1.5).tobytes().hex()

    def content(segment: layout.Segment) -> None:
        layout.Table(segment, cases.table_id(cases.USER), rows)

    return cases.one_small(content=content, tables=[table])


def _load(path: Path, max_bytes: int | None) -> Any:
    return cnrfmt.load(path, max_bytes=max_bytes)["user"].shape


@pytest.mark.parametrize("max_bytes", [None, 1 << 20])
def test_loading_it_is_refused(tmp_path: Path, max_bytes: int | None) -> None:
    """It is no damage: the caller's limit, or the machine's, says no before memory is taken."""
    path = accepted(tmp_path, _table(HUGE))
    found = in_child(_load, path, max_bytes)
    assert isinstance(found, cnrfmt.TooLargeError), repr(found)
    assert found.limit == max_bytes
    assert "user" in str(found)
    assert in_child(_load, lay(tmp_path / "small", _table(4)), max_bytes) == (4, 3)


def _some(path: Path) -> Any:
    with cnrfmt.open(path, max_bytes=1 << 20) as ck:
        table = ck["user"]
        out = np.empty((4, 3), np.float32)
        found = [table[HUGE - 1], table[5:9], table.read(slice(0, 4), out=out), table[:: HUGE // 4]]
        assert HUGE - 1 in table
        assert ck.dense == {}
        return [float(np.max(x)) for x in found]


def test_ranges_of_it_are_read(tmp_path: Path) -> None:
    assert in_child(_some, lay(tmp_path / "huge", _table(HUGE))) == [1.5] * 4


def _others(path: Path) -> list[str]:
    """Everything else that would be as large as the table."""
    refused = []
    with cnrfmt.open(path) as ck:
        table = ck["user"]
        for name, call in (
            ("all", lambda: table[...]),
            ("array", lambda: np.asarray(table)),
            ("backwards", lambda: table[::-1]),
            ("even", lambda: table[::2]),
            ("converted", lambda: table.read(dtype=np.float64)),
            ("accumulator", lambda: table.read(column="accumulator")),
        ):
            try:
                call()
            except cnrfmt.TooLargeError:
                refused.append(name)
    return refused


def test_whatever_is_as_large_is_refused(tmp_path: Path) -> None:
    found = in_child(_others, lay(tmp_path / "huge", _table(HUGE)))
    assert found == ["all", "array", "backwards", "even", "converted", "accumulator"]


def test_the_command_prints_it_in_bounded_memory(tmp_path: Path) -> None:
    path = lay(tmp_path / "huge", _table(HUGE))
    for words in (["info"], ["info", "--json"], ["ls"], ["rows", "user"], ["rows", "user", "-3:"], ["verify"]):
        code, out, err = in_child(command, path, *words)
        assert (code, "Traceback" in err) == (0, False), (words, err)
        assert out
    code, _, err = in_child(command, path, "rows", "user", "0:100", "--limit", "3")
    assert code == 0, err


def _grown(path: Path) -> tuple[Any, int]:
    """A refresh names the rows that came; 2^40 of them don't fit, and the checkpoint is usable all the same."""
    cnrfmt.save(path, {"t": np.ones((2, 3), np.float32)})
    with cnrfmt.open(path, max_bytes=1 << 20) as ck:
        cnrfmt.append(path, {"t": cnrfmt.Rows([], rows=HUGE)})
        try:
            ck.refresh()
        except cnrfmt.TooLargeError as error:
            return error, len(ck["t"])
    raise AssertionError("2^40 row ids were listed")


def test_growth_by_ever_so_many_rows(tmp_path: Path) -> None:
    error, rows = in_child(_grown, tmp_path / "model.cnr")
    assert isinstance(error, cnrfmt.TooLargeError)
    assert rows == HUGE
