"""Residual rows without a base, and sums out of range: what reads them names them, and reads all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt import DamagedError
from cnrfmt.encodings.integer_sections import GivenCodes, encode_section
from cnrfmt.format.encoding import GridLayout, IntegerLayout, LogLayout
from tests.attacks.support import lay
from tests.integer_chains import Store, container, layout, rows
from tools import cnrcheck

ROWS, DIM = 6, 3
BASE, OTHER = GridLayout("absolute", -3, "fixed", 26), GridLayout("absolute", 0, "packed", None, 2)
MORE = GridLayout("residual", -3, "packed", None, 2)
LOG, LOG_MORE = (LogLayout(8, 1 << 28, 10, kind, "rans", 4) for kind in ("absolute", "residual"))
GREATEST = (1 << 24) - 1


@dataclass(frozen=True)
class Write:
    """Rows of a part, all their integers equal, with `more` zero bytes behind them; without a layout raw."""

    layout: IntegerLayout | None
    ids: Sequence[int]
    integer: int = 1
    exceptions: Sequence[int] = ()
    column: str = "weight"
    more: int = 0


@dataclass(frozen=True)
class Step:
    """What a segment says of the table."""

    writes: Sequence[Write] = ()
    rows: int = ROWS
    deleted: Sequence[int] = ()


@dataclass
class Laid:
    """A container with a table ``t``; `keyed` ones have keys like ids."""

    steps: Sequence[Step]
    keyed: bool = False
    store: Store = field(default_factory=Store)

    def at(self, path: Path) -> Path:
        entries = []
        for number, step in enumerate(self.steps):
            source = layout.state(str(number - 1)) if number else None
            segment = layout.Segment(str(number), source, layout.state(str(number)))
            count = None if self.keyed else step.rows
            table = layout.Table(segment, layout.ident("table t"), count)
            for write in step.writes:
                self._part(table, write)
            if step.deleted:
                table.json["deleted"] = table.index("raw", step.deleted, rows.raw(step.deleted))
            entries.append(self.store.put(segment))
            columns = [container.column("weight", "float32", [DIM]), container.column("sum", "float32", [])]
            self.store.commit(layout.state(str(number)), [container.schema("t", "t", count, DIM, *columns)], entries)
        return lay(path, self.store)

    def _part(self, table: layout.Table, write: Write) -> None:
        width = DIM if write.column == "weight" else 1
        ids, raw = write.ids, rows.raw_encoding("float32")
        row_set = table.index("raw", ids, rows.raw(ids))
        if write.layout is None:
            table.part(write.column, row_set, (0, width), raw, np.ones((len(ids), width), np.float32).tobytes())
            return
        codes = np.full((len(ids), width), write.integer, np.int32)
        codes[np.isin(ids, write.exceptions)] = 0
        chosen, data = encode_section(write.layout, GivenCodes(codes, np.zeros(len(ids), np.uint8)), len(ids), width)
        main = table.part(write.column, row_set, (0, width), chosen.to_json(), data.tobytes() + bytes(write.more))
        if write.exceptions:
            row_set = table.index("raw", write.exceptions, rows.raw(write.exceptions))
            values = np.ones((len(write.exceptions), width), np.float32)
            table.part(write.column, row_set, (0, width), raw, values.tobytes(), main)


EVERY = range(ROWS)
MIDDLE = [2, 3, 4]
CASES: dict[str, tuple[str, Laid]] = {
    "never written": ("residual-base", Laid([Step([Write(BASE, [0, 1, 2, 4])]), Step([Write(MORE, MIDDLE)])], True)),
    "deleted": (
        "residual-base",
        Laid([Step([Write(BASE, EVERY)]), Step(deleted=[3]), Step([Write(MORE, MIDDLE)])], True),
    ),
    "cut off": (
        "residual-base",
        Laid([Step([Write(BASE, EVERY)]), Step(rows=3), Step([Write(BASE, [4])]), Step([Write(MORE, MIDDLE)])]),
    ),
    "raw": (
        "residual-base",
        Laid([Step([Write(BASE, EVERY)]), Step([Write(None, [3, 5])]), Step([Write(MORE, MIDDLE)])]),
    ),
    "of another grid": (
        "residual-base",
        Laid([Step([Write(BASE, EVERY)]), Step([Write(OTHER, [3])]), Step([Write(MORE, MIDDLE)])]),
    ),
    "an exception": ("residual-base", Laid([Step([Write(BASE, EVERY, 5, [3])]), Step([Write(MORE, MIDDLE)])])),
    "the exception of a residual part": (
        "residual-base",
        Laid([Step([Write(BASE, EVERY)]), Step([Write(MORE, MIDDLE, 1, [3])]), Step([Write(MORE, [3, 4])])]),
    ),
    "below a residual row": (
        "residual-base",
        Laid(
            [
                Step([Write(BASE, EVERY)]),
                Step([Write(None, [3])]),
                Step([Write(MORE, MIDDLE)]),
                Step([Write(MORE, [3])]),
            ]
        ),
    ),
    "too large": (
        "grid-range",
        Laid(
            [
                Step([Write(BASE, [0, 1, 2, 4, 5]), Write(OTHER, [3])]),
                Step([Write(BASE, [3], GREATEST)]),
                Step([Write(MORE, MIDDLE)]),
            ]
        ),
    ),
    "too small": (
        "grid-range",
        Laid(
            [
                Step([Write(BASE, EVERY, 0), Write(LOG, EVERY, 7, (), "sum")]),
                Step([Write(LOG_MORE, [3], -8, (), "sum")]),
            ]
        ),
    ),
    "beyond the codes": (
        "grid-range",
        Laid(
            [
                Step([Write(BASE, EVERY, 0), Write(LOG, EVERY, 55, (), "sum")]),
                Step([Write(LOG_MORE, [3], 201, (), "sum")]),
            ]
        ),
    ),
}


@pytest.mark.parametrize("backend", ["mmap", "pread"])
@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_named_and_the_rest_is_read(tmp_path: Path, case: str, backend: Any) -> None:
    rule, laid = CASES[case]
    laid = Laid(laid.steps, laid.keyed)
    path = laid.at(tmp_path / "t")
    column = "sum" if case in ("too small", "beyond the codes") else "weight"
    with cnrfmt.open(path, backend=backend) as ck:
        table = ck["t"]
        reads = [
            lambda: table.read(3, column=column),
            lambda: table.read([4, 3, 0, 3], column=column),
            lambda: table.read(column=column),
            lambda: table.read(slice(1, 4), column=column, by="position"),
            lambda: table.read_integers(np.array([3]), column, (MORE if column == "weight" else LOG).grid),
        ]
        for read in reads:
            with pytest.raises(DamagedError) as caught:
                read()
            assert caught.value.rule == rule
            for part in ("table 't'", f"column {column!r}", "row 3", "segment"):
                assert part in caught.value.place
        for row in (0, 1, 2, 4, 5) if not laid.keyed else (0, 1, 2, 4):
            assert np.isfinite(table.read([row], column=column)).all()
    findings = [f for f in cnrfmt.verify(path).findings if f.severity == "damage"]
    assert {f.rule for f in findings} == {rule}
    assert all(f"table 't', column {column!r}, row 3" in f.place for f in findings)
    # The independent validator judges likewise.
    assert {f.error for f in cnrcheck.check_path(str(path))} == {rule}


def test_what_newer_rows_hide_is_found_all_the_same(tmp_path: Path) -> None:
    steps = [*CASES["raw"][1].steps, Step([Write(BASE, EVERY)])]
    path = Laid(steps).at(tmp_path / "t")
    with cnrfmt.open(path) as ck:
        assert (ck["t"].read() == 1 / 8).all()
    assert [f.rule for f in cnrfmt.verify(path).findings] == ["residual-base"]


def test_each_segment_and_column_is_named_once(tmp_path: Path) -> None:
    """However many versions there are, and however many rows."""
    steps = [Step([Write(BASE, [0])]), *(Step([Write(MORE, [number, number + 1])]) for number in (1, 3))]
    path = Laid(steps, keyed=True).at(tmp_path / "t")
    assert [f.rule for f in cnrfmt.verify(path).findings] == ["residual-base", "residual-base"]


def test_absolute_codes_out_of_range_are_found(tmp_path: Path) -> None:
    wrong = LogLayout(8, 1 << 28, 10, "absolute", "rans", 4)
    path = Laid([Step([Write(BASE, EVERY), Write(wrong, EVERY, 256, (), "sum")])]).at(tmp_path / "t")
    (finding,) = cnrfmt.verify(path).findings
    assert finding.rule == "grid-range"
    with cnrfmt.open(path) as ck, pytest.raises(DamagedError, match="grid-range"):
        ck["t"].read(column="sum")


@pytest.mark.parametrize("payload", ["packed", "rans"])
def test_a_group_longer_than_its_rows_could_be_isnt_read(tmp_path: Path, payload: str) -> None:
    """However long the section is, it takes no memory."""
    grouped = GridLayout("absolute", -3, payload, None, 2)
    path = Laid([Step([Write(grouped, EVERY, more=1 << 20)])]).at(tmp_path / "t")
    with cnrfmt.open(path, backend="pread") as ck:
        assert (ck["t"].read(slice(0, 2)) == 1 / 8).all()
        for read in (lambda t: t.read(), lambda t: t.read(5), lambda t: t.read([5, 0])):
            with pytest.raises(DamagedError, match=r"grid-codes\): expected at most \d+ bytes of"):
                read(ck["t"])
    assert [f.rule for f in cnrfmt.verify(path).findings] == ["grid-codes"]
