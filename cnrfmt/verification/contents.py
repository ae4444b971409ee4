"""The rules that ask for the rows themselves: indexes, overlaps, tombstones, codes, dense entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from cnrfmt.arrays import Ids
from cnrfmt.dense import read_entry
from cnrfmt.encodings import coder
from cnrfmt.encodings.checks import Flags
from cnrfmt.encodings.integers import bounds
from cnrfmt.errors import DamagedError
from cnrfmt.format.encoding import ITEM_SIZES, IntegerLayout, RawLayout
from cnrfmt.format.schema import TableSchema
from cnrfmt.format.toc import Part, RowSet, TableEntry
from cnrfmt.part_integers import PartIntegers
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
    return segment.indexes.ids(row_set)


def _check_table(segment: SegmentReader, table: TableEntry, place: str) -> Iterator[DamagedError]:
    for number, row_set in enumerate(table.row_sets):
        try:
            if number == table.deleted:
                segment.indexes.holds(row_set, np.empty(0, np.int64))
            elif row_set.section is not None:
                segment.indexes.ids(row_set)
        except DamagedError as error:
            yield error
    try:
        _check_tombstones(segment, table, place)
    except DamagedError as error:
        yield error
    for number, part in enumerate(table.parts):
        where = f"{place}, part {number} (column {part.column!r})"
        try:
            if isinstance(part.layout, IntegerLayout):
                _check_integers(segment, table, part, where)
            elif not isinstance(part.layout, RawLayout):
                _check_codes(segment, table, part, where)
            elif part.exceptions_of is not None:
                _check_exceptions(segment, table, part, where)
        except DamagedError as error:
            yield error


def _check_tombstones(segment: SegmentReader, table: TableEntry, place: str) -> None:
    if table.deleted is None:
        return
    gone = table.row_sets[table.deleted]
    for number in {p.rows for p in table.parts}:
        rows = ids_of(segment, table.row_sets[number])
        if len(both := rows[segment.indexes.holds(gone, rows)]):
            raise DamagedError(
                "tombstone", place, expected="deleted rows in no part", found=f"row {both[0]}"
            )


def _check_codes(segment: SegmentReader, table: TableEntry, part: Part, place: str) -> None:
    encoding = coder(part.layout)
    offset, _ = segment.toc.sections[part.section]
    total = table.row_sets[part.rows].count
    # Rows that share bytes do so two by two.
    step = max(1, _CHUNK // part.row_bytes) * 2
    for first in range(0, total, step):
        count = min(step, total - first)
        start, size = part.layout.span(first, count, part.width)
        data, base = segment.fetch_range(offset + start, size)
        at = offset + start - base
        if (row := encoding.find_padding(data, at, count, part.width)) >= 0:
            raise DamagedError(
                "code-padding", f"{place}, slot {first + row}", expected="zero bits", found="others"
            )
        if (row := encoding.find_parameter(data, at, count, part.width)) >= 0:
            raise DamagedError(
                "row-parameter", f"{place}, slot {first + row}", expected="finite parameters", found="others"
            )
    if part.codebooks is not None:
        _check_codebooks(segment, part, part.codebooks, place)


def _check_integers(segment: SegmentReader, table: TableEntry, part: Part, place: str) -> None:
    """Decodes all rows: that checks what they are stored in. Their sums are another matter, but for absolute rows."""
    from cnrfmt.kernels import integers as kernel

    integers = PartIntegers(segment, part, table.row_sets[part.rows].count)
    least, greatest = bounds(integers.layout)
    for first, rows in integers.all_rows(_CHUNK):
        if not integers.is_residual and (row := int(kernel.out_of_range(rows, least, greatest))) >= 0:
            raise DamagedError(
                "grid-range", f"{place}, slot {first + row}", expected=f"from {least} to {greatest}", found="another"
            )


def _check_codebooks(segment: SegmentReader, part: Part, section: int, place: str) -> None:
    offset, length = segment.toc.sections[section]
    # Codebooks are powers of two long, so that no step cuts one.
    for start in range(0, length, _CHUNK):
        size = min(_CHUNK, length - start)
        data, base = segment.fetch_range(offset + start, size)
        at = offset + start - base
        books = coder(part.layout).codebooks(data[at : at + size])
        if not (sound := np.isfinite(books).all(axis=1)).all():
            number = start * len(books) // size + int(np.argmin(sound))
            raise DamagedError(
                "row-parameter", f"{place}, codebook {number}", expected="finite parameters", found="others"
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
        ids = segment.indexes.ids(all_rows)
        positions = np.minimum(np.searchsorted(ids, rows), len(ids) - 1)
        lost = ids[positions] != rows
    if lost.any():
        raise DamagedError(
            "exception", place, expected="rows of the main part", found=f"row {rows[lost][0]}"
        )
    per_step = max(1, _CHUNK // (ITEM_SIZES["float32"] * main.width))
    for start in range(0, len(positions), per_step):
        some = positions[start : start + per_step]
        zero = _are_zero(segment, main, some, all_rows.count)
        if not zero.all():
            row = rows[start + int(np.argmin(zero))]
            raise DamagedError(
                "exception", place, expected="zero bytes in the main part", found=f"row {row}"
            )


def _are_zero(segment: SegmentReader, part: Part, positions: Ids, count: int) -> Flags:
    """Of which rows the slot is zero."""
    if isinstance(part.layout, IntegerLayout):
        return PartIntegers(segment, part, count).are_zero(positions)
    offset = segment.toc.sections[part.section][0]
    data, offsets = segment.fetch_rows(offset + part.layout.offsets(positions, part.width), part.row_bytes)
    return coder(part.layout).are_zero(data, offsets, positions, part.width)


Rectangle = tuple[SegmentReader, RowSet, Part]
"""A part and its row set: rows x elements of a column."""


def check_step(
    step: Sequence[tuple[SegmentReader, TableEntry]], place: str
) -> Iterator[DamagedError]:
    """The overlaps of two parts of one column within a step."""
    by_column: dict[str, list[Rectangle]] = {}
    for segment, table in step:
        for part in table.parts:
            if part.exceptions_of is None:
                by_column.setdefault(part.column, []).append((segment, table.row_sets[part.rows], part))
    for column, parts in by_column.items():
        # Parts that are apart in their rows' bounds, or in their elements, need no look at the rows.
        for near in _groups(parts, lambda item: (item[1].first, item[1].last + 1)):
            for nearer in _groups(near, lambda item: item[2].elements):
                if len(nearer) > 1 and (row := _shared_row(nearer)) is not None:
                    segment, table = step[0]
                    yield DamagedError(
                        "part-overlap",
                        f"{place}, {segment.table_name(table.table_id)}, column {column!r}",
                        expected="parts of one step that share no element",
                        found=f"row {row} twice",
                    )


def _groups(
    parts: list[Rectangle], bounds: Callable[[Rectangle], tuple[int, int]]
) -> Iterator[list[Rectangle]]:
    """The parts in groups, so that those of two groups are apart in one direction."""
    group: list[Rectangle] = []
    reach = 0
    for part in sorted(parts, key=bounds):
        start, end = bounds(part)
        if group and start >= reach:
            yield group
            group = []
        reach = max(reach, end) if group else end
        group.append(part)
    yield group


def _shared_row(parts: list[Rectangle]) -> int | None:
    """A row of which two of the parts hold the same element; costs what sorting all their row ids costs."""
    ids = np.concatenate([ids_of(segment, row_set) for segment, row_set, _ in parts])
    counts = [row_set.count for _, row_set, _ in parts]
    first = np.repeat(np.array([part.elements[0] for _, _, part in parts], np.int32), counts)
    end = np.repeat(np.array([part.elements[1] for _, _, part in parts], np.int32), counts)
    order = np.lexsort((first, ids))
    ids, first, end = ids[order], first[order], end[order]
    # The ranges of one row, in the order of their starts, share an element only if two neighbours do.
    shared = (ids[1:] == ids[:-1]) & (first[1:] < end[:-1])
    return int(ids[1:][shared][0]) if shared.any() else None


def check_tiling(
    schema: TableSchema, step: Sequence[tuple[SegmentReader, TableEntry]], place: str
) -> Iterator[DamagedError]:
    """Every column whose parts leave a hole in the baseline step of a dense table."""
    if schema.keyed or not step:
        return
    have: dict[str, int] = {}
    for _, table in step:
        for part in table.parts:
            if part.exceptions_of is None:
                size = table.row_sets[part.rows].count * (part.elements[1] - part.elements[0])
                have[part.column] = have.get(part.column, 0) + size
    rows = max(table.rows or 0 for _, table in step)
    for column in schema.columns:
        want = rows * column.width(schema.dim)
        # Parts of a step share no element, so that their sizes tell whether they leave one out.
        if have.get(column.name, want) < want:
            yield DamagedError(
                "baseline-tiling",
                f"{place}, table {schema.name!r}, column {column.name!r}",
                expected=f"{want} elements",
                found=f"{have[column.name]}",
            )
