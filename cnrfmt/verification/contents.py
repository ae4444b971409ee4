"""The rules that ask for the rows themselves: indexes, overlaps, tombstones, codes, dense entries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from cnrfmt.arrays import Ids
from cnrfmt.dense import read_entry
from cnrfmt.encodings import coder
from cnrfmt.errors import DamagedError
from cnrfmt.format.encoding import RowwiseLayout
from cnrfmt.format.schema import TableSchema
from cnrfmt.format.toc import Part, RowSet, TableEntry
from cnrfmt.resolve import Steps
from cnrfmt.segment_reader import SegmentReader

_CHUNK = 4 << 20



def check_segment(segment: SegmentReader) -> Iterator[DamagedError]:
    """Every break of the rules of one segment's contents."""
    for table in segment.toc.tables:
        place = f"{segment.place}, {segment.table_name(table.table_id)}"
        yield from _check_table(segment, table, place)
    for entry in segment.toc.dense or ():
        try:
            read_entry(segment, entry)
        except DamagedError as error:
            if error.rule == "json-syntax":
                yield DamagedError(
                    "json-syntax", error.place, expected=error.expected, found=error.found
                )
            else:
                yield error


def ids_of(segment: SegmentReader, row_set: RowSet) -> Ids:
    """The ids of any row set; a range is written out."""
    if row_set.section is None:
        return np.arange(row_set.first, row_set.last + 1, dtype=np.int64)
    return segment.ids(row_set)


def _check_table(segment: SegmentReader, table: TableEntry, place: str) -> Iterator[DamagedError]:
    for row_set in table.row_sets:
        try:
            if row_set.section is not None:
                segment.ids(row_set)
        except DamagedError as error:
            yield error
    try:
        _check_tombstones(segment, table, place)
    except DamagedError as error:
        yield error
    for number, part in enumerate(table.parts):
        where = f"{place}, part {number} (column {part.column!r})"
        try:
            if isinstance(part.layout, RowwiseLayout):
                _check_codes(segment, table, part, where)
            elif part.exceptions_of is not None:
                _check_exceptions(segment, table, part, where)
        except DamagedError as error:
            yield error


def _check_tombstones(segment: SegmentReader, table: TableEntry, place: str) -> None:
    if table.deleted is None:
        return
    gone = ids_of(segment, table.row_sets[table.deleted])
    for number in {p.rows for p in table.parts}:
        both = np.intersect1d(gone, ids_of(segment, table.row_sets[number]), assume_unique=True)
        if both.size:
            raise DamagedError(
                "tombstone", place, expected="deleted rows in no part", found=f"row {both[0]}"
            )


def _check_codes(segment: SegmentReader, table: TableEntry, part: Part, place: str) -> None:
    encoding = coder(part.layout)
    width = part.elements[1] - part.elements[0]
    offset, length = segment.toc.sections[part.section]
    row_bytes = part.row_bytes
    step = max(1, _CHUNK // row_bytes) * row_bytes
    for start in range(0, length, step):
        size = min(step, length - start)
        data, base = segment.fetch_range(offset + start, size)
        first, at, count = start // row_bytes, offset + start - base, size // row_bytes
        if (row := encoding.find_padding(data, at, count, width)) >= 0:
            raise DamagedError(
                "code-padding", f"{place}, slot {first + row}", expected="zero bits", found="others"
            )
        if (row := encoding.find_parameter(data, at, count, width)) >= 0:
            raise DamagedError(
                "row-parameter",
                f"{place}, slot {first + row}",
                expected="a finite scale and bias",
                found="one that isn't",
            )


def _check_exceptions(segment: SegmentReader, table: TableEntry, part: Part, place: str) -> None:
    assert part.exceptions_of is not None
    main = table.parts[part.exceptions_of]
    rows = ids_of(segment, table.row_sets[part.rows])
    all_rows = table.row_sets[main.rows]
    if all_rows.section is None:
        positions = rows - all_rows.first
        lost = (rows < all_rows.first) | (rows > all_rows.last)
    else:
        ids = segment.ids(all_rows)
        positions = np.minimum(np.searchsorted(ids, rows), len(ids) - 1)
        lost = ids[positions] != rows
    if lost.any():
        raise DamagedError(
            "exception", place, expected="rows of the main part", found=f"row {rows[lost][0]}"
        )
    offset = segment.toc.sections[main.section][0]
    row_bytes = main.row_bytes
    per_step = max(1, _CHUNK // row_bytes)
    for start in range(0, len(positions), per_step):
        some = positions[start : start + per_step]
        data, offsets = segment.fetch_rows(offset + some * row_bytes, row_bytes)
        slots = data[offsets[:, None] + np.arange(row_bytes)]
        if slots.any():
            row = rows[start + int(np.argmax(slots.any(axis=1)))]
            raise DamagedError(
                "exception", place, expected="zero bytes in the main part", found=f"row {row}"
            )


def check_step(
    step: Sequence[tuple[SegmentReader, TableEntry]], place: str
) -> Iterator[DamagedError]:
    """Every overlap of two parts of one column within a step."""
    by_column: dict[str, list[tuple[SegmentReader, TableEntry, Part]]] = {}
    for segment, table in step:
        for part in table.parts:
            if part.exceptions_of is None:
                by_column.setdefault(part.column, []).append((segment, table, part))
    for column, parts in by_column.items():
        for number, (segment, table, part) in enumerate(parts):
            for other_segment, other_table, other in parts[:number]:
                if (
                    part.elements[0] >= other.elements[1]
                    or other.elements[0] >= part.elements[1]
                ):
                    continue
                mine, theirs = table.row_sets[part.rows], other_table.row_sets[other.rows]
                if mine.last < theirs.first or theirs.last < mine.first:
                    continue
                both = np.intersect1d(
                    ids_of(segment, mine), ids_of(other_segment, theirs), assume_unique=True
                )
                if both.size:
                    yield DamagedError(
                        "part-overlap",
                        f"{place}, {segment.table_name(table.table_id)}, column {column!r}",
                        expected="parts of one step that share no element",
                        found=f"row {both[0]} twice",
                    )


def check_tiling(
    schema: TableSchema, steps: Steps, baseline: bool, place: str
) -> Iterator[DamagedError]:
    """Every column whose parts leave a hole in the baseline step of a dense table."""
    if not baseline or schema.keyed or not steps:
        return
    for column in schema.columns:
        parts = [
            (segment, table, part)
            for segment, table in steps[0]
            for part in table.parts
            if part.column == column.name and part.exceptions_of is None
        ]
        if not parts:
            continue
        rows = max((table.rows or 0) for _, table, _ in parts)
        want = rows * column.width(schema.dim)
        have = sum(
            table.row_sets[p.rows].count * (p.elements[1] - p.elements[0]) for _, table, p in parts
        )
        # Parts of a step share no element, so that their sizes tell whether they leave one out.
        if have < want:
            yield DamagedError(
                "baseline-tiling",
                f"{place}, table {schema.name!r}, column {column.name!r}",
                expected=f"{want} elements",
                found=f"{have}",
            )
