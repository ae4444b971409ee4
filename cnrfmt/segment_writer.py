"""Writing one segment as a stream: sections, digests, table of contents, trailer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from cnrfmt import parallel
from cnrfmt.arrays import Bytes, Ids, Words
from cnrfmt.encodings import Encoded, Recipe, encoder, row_ids
from cnrfmt.format import limits
from cnrfmt.format.digests import NODE_LEVEL, digest, seed_of
from cnrfmt.format.encoding import RawLayout
from cnrfmt.format.schema import TableSchema
from cnrfmt.format.scheme import Errors
from cnrfmt.format.segment import SegmentHeader, Trailer, toc_digest
from cnrfmt.format.toc import (
    DenseEntry,
    Part,
    RowSet,
    TableEntry,
    Toc,
    pack_toc,
    place_section,
)
from cnrfmt.inputs import Source2D
from cnrfmt.table_writes import ColumnWrite, EncodedColumn, EncodedRows, RowIds, Slice, SliceSections, TableWrite

_CHUNK = 4 << 20
"""Bytes of source rows that one step of the pipeline encodes."""


class Sink(Protocol):
    """Where the bytes of a segment go, one behind the other."""

    def write(self, data: Any) -> None:
        """Appends the bytes of a contiguous buffer."""


@dataclass(frozen=True)
class WrittenSegment:
    """What the manifest needs to know of a finished segment."""

    length: int
    trailer_digest: int
    toc: bytes


def chunk_rows(recipe: Recipe, width: int, dtype: np.dtype[Any]) -> int:
    """How many rows of a column are encoded at a time; the last chunk may be shorter."""
    step = encoder(recipe).step
    return max(1, _CHUNK // max(1, width * dtype.itemsize) // step) * step


def write_segment(
    sink: Sink,
    header: SegmentHeader,
    tables: Iterable[TableWrite],
    dense: Iterable[tuple[DenseEntry, Bytes]] | None,
    *,
    threads: int,
) -> WrittenSegment:
    """Streams a segment through a bounded buffer; nothing is durable before the commit."""
    stream = _Stream(sink, header, threads)
    entries = [_write_table(stream, table) for table in tables]
    dense_entries = None
    if dense is not None:
        dense_entries = [
            replace(entry, section=stream.section(data) if data.size else None)
            for entry, data in dense
        ]
    return stream.finish(entries, dense_entries)


def _write_table(stream: _Stream, table: TableWrite) -> TableEntry:
    row_sets: list[RowSet] = []
    parts: list[Part] = []
    keyed = table.schema.keyed
    numbers: dict[int, int] = {}
    for write in table.columns:
        rows = write.rows or table.rows
        if rows is not None and rows.count:
            if id(rows) not in numbers:
                numbers[id(rows)] = len(row_sets)
                row_sets.append(_write_row_set(stream, rows, keyed))
            _write_column(stream, table.schema, write, rows, numbers[id(rows)], row_sets, parts)
    for made, one in zip(stream.encoded(table.slices), table.slices, strict=True):
        if made.rows.count:
            row_sets.append(_write_row_set(stream, made.rows, keyed))
            number = len(row_sets) - 1
            for column in made.columns:
                _write_encoded(stream, column, made.rows, number, row_sets, parts, keyed=keyed)
        one.written()
    deleted = None
    if table.deleted is not None and table.deleted.size:
        deleted = len(row_sets)
        rows = RowIds(len(table.deleted), table.deleted)
        row_sets.append(_write_row_set(stream, rows, keyed))
    return TableEntry(
        table.schema.table_id, table.schema.rows, tuple(row_sets), deleted, tuple(parts)
    )


def _write_row_set(stream: _Stream, rows: RowIds, keyed: bool) -> RowSet:
    if rows.ids is None:
        return RowSet("range", rows.count, rows.first, rows.first + rows.count - 1)
    first, last = int(rows.ids[0]), int(rows.ids[-1])
    if rows.is_range and not keyed:
        return RowSet("range", rows.count, first, last)
    code, data = row_ids.encode(rows.ids)
    return RowSet(code, rows.count, first, last, stream.section(data))


def _write_column(
    stream: _Stream,
    schema: TableSchema,
    write: ColumnWrite,
    rows: RowIds,
    number: int,
    row_sets: list[RowSet],
    parts: list[Part],
) -> None:
    """Writes the part of a column; `number` is that of its row set."""
    elements = write.range_of(schema.dim)
    width = elements[1] - elements[0]
    layout, scheme = write.recipe
    name, main = write.column.name, len(parts)
    done = stream.rows(write.source, rows.order, rows.count, width, write.recipe)
    parts.append(Part(name, number, elements, layout, done.section, None, done.codebooks, scheme, done.errors))
    bad = done.bad
    if not bad.size:
        return
    raw = RawLayout(layout.dtype)
    ids = bad + rows.first if rows.ids is None else rows.ids[bad]
    order = bad if rows.order is None else rows.order[bad]
    row_sets.append(_write_row_set(stream, RowIds(len(bad), ids), schema.keyed))
    done = stream.rows(write.source, order, len(bad), width, Recipe(raw))
    parts.append(Part(name, len(row_sets) - 1, elements, raw, done.section, main))


def _write_encoded(
    stream: _Stream,
    column: EncodedColumn,
    rows: RowIds,
    number: int,
    row_sets: list[RowSet],
    parts: list[Part],
    *,
    keyed: bool,
) -> None:
    """Writes the part of a slice's column, and its exceptions."""
    layout, scheme = column.recipe
    name, main = column.column.name, len(parts)
    section = stream.section(column.data)
    parts.append(Part(name, number, column.elements, layout, section, None, None, scheme, column.errors))
    if not column.bad.size:
        return
    ids = column.bad + rows.first if rows.ids is None else rows.ids[column.bad]
    row_sets.append(_write_row_set(stream, RowIds(len(ids), ids), keyed))
    raw = np.ascontiguousarray(column.exact).reshape(-1).view(np.uint8)
    layout = RawLayout(layout.dtype)
    parts.append(Part(name, len(row_sets) - 1, column.elements, layout, stream.section(raw), main))


@dataclass(frozen=True)
class _WrittenRows:
    """Sections of rows and of their shared codebooks; the positions of rows that aren't held, whose slots are zero."""

    section: int
    codebooks: int | None
    bad: Ids
    errors: Errors


class _Stream:
    """The segment as it grows: its position, its sections and the digests of its pieces."""

    def __init__(self, sink: Sink, header: SegmentHeader, threads: int) -> None:
        self._sink, self._id, self._threads = sink, header.segment_id, threads
        self._seed = seed_of(header.segment_id)
        self._position = 0
        self._carry = bytearray()
        self._digests: list[Words] = []
        self._pieces = 0
        self._sections: list[tuple[int, int]] = []
        self._put(np.frombuffer(header.pack(), np.uint8))

    def _put(self, data: Bytes, inner: Words | None = None) -> None:
        """Appends bytes; `inner` are the digests of the whole pieces in them, if known already."""
        if inner is None:
            inner = self._inner(self._position, data)
        head = min(-self._position % limits.PIECE, len(data))
        tail = head + len(inner) * limits.PIECE
        self._carry += data[:head].tobytes()
        self._flush(limits.PIECE)
        self._digests.append(inner)
        self._pieces += len(inner)
        self._carry += data[tail:].tobytes()
        self._sink.write(data)
        self._position += len(data)

    def _flush(self, least: int) -> None:
        if len(self._carry) >= least:
            value = digest(self._carry, seed_of(self._id, 0, self._pieces))
            self._digests.append(np.array([value], np.uint64))
            self._pieces += 1
            self._carry.clear()

    def _inner(self, position: int, data: Bytes) -> Words:
        """The digests of the pieces that lie wholly in `data`, which starts at `position`."""
        head = -position % limits.PIECE
        count = max(0, len(data) - head) // limits.PIECE
        found = np.empty(count, np.uint64)
        if count:
            from cnrfmt.kernels import xxh3

            first = (position + head) // limits.PIECE
            seed = np.uint64((self._seed + first) & ((1 << 64) - 1))
            body = data[head : head + count * limits.PIECE]
            xxh3.digest_pieces(body, limits.PIECE, seed, found)
        return found

    def _begin_section(self, length: int) -> int:
        offset = place_section(self._position, length)
        self._put(np.zeros(offset - self._position, np.uint8))
        self._sections.append((offset, length))
        return len(self._sections) - 1

    def section(self, data: Bytes) -> int:
        """Writes a section that is at hand as a whole; returns its number."""
        number = self._begin_section(len(data))
        self._put(data)
        return number

    def encoded(self, slices: Sequence[Slice]) -> Iterator[SliceSections]:
        """The sections of these slices, which threads encode ahead of the writing."""
        threads = min(self._threads, len(slices))
        yield from parallel.ordered(max(1, threads), lambda one: one.sections(), slices, ahead=threads)

    def rows(
        self, source: Source2D | EncodedRows, order: Ids | None, count: int, width: int, recipe: Recipe
    ) -> _WrittenRows:
        """Encodes `count` rows into a section of their own."""
        layout = recipe.layout
        number = self._begin_section(layout.section_bytes(count, width))
        base = self._position
        encoding = encoder(recipe)
        per_chunk = chunk_rows(recipe, width, source.dtype)
        handed = source if isinstance(source, EncodedRows) and order is None else None

        def encode(start: int) -> tuple[Encoded, Words]:
            stop = min(start + per_chunk, count)
            shape = (stop - start, width)
            if handed is not None:
                found = handed.encoded(start, stop)
            elif order is not None:
                found = encoding.encode(source.take(order[start:stop]).reshape(shape))
            else:
                assert not isinstance(source, EncodedRows)
                found = encoding.encode(source.rows(start, stop).reshape(shape))
            return found, self._inner(base + layout.span(start, 0, width)[0], found.data)

        starts = range(0, count, per_chunk)
        threads = min(self._threads, len(starts))
        bad, books = [np.empty(0, np.int64)], []
        total, worst = 0.0, 0.0
        for start, (found, inner) in zip(starts, parallel.ordered(threads, encode, starts, ahead=threads), strict=True):
            self._put(found.data, inner)
            if handed is not None:
                handed.written(start)
            if found.bad.size:
                bad.append(found.bad + start)
            if found.codebooks is not None:
                books.append(found.codebooks)
            total, worst = total + found.error_sum, max(worst, found.worst_error)
        every = np.concatenate(bad)
        errors = Errors(min(total / max(1, count - len(every)), worst), worst)
        if isinstance(source, EncodedRows) and source.errors is not None:
            errors = source.errors
        codebooks = self.section(np.concatenate(books)) if books else None
        return _WrittenRows(number, codebooks, every, errors)

    def finish(
        self, tables: list[TableEntry], dense: list[DenseEntry] | None
    ) -> WrittenSegment:
        """Digest section, table of contents, trailer."""
        end = limits.round_up(self._position, limits.SMALL_ALIGNMENT)
        self._put(np.zeros(end - self._position, np.uint8))
        self._flush(1)
        digests = np.concatenate(self._digests).astype("<u8").view(np.uint8)
        toc = pack_toc(
            Toc(
                tuple(self._sections),
                tuple(self._nodes(digests)),
                tuple(tables),
                None if dense is None else tuple(dense),
            )
        )
        length = end + len(digests) + len(toc) + limits.BLOCK
        trailer = Trailer(
            self._id,
            length,
            end,
            end + len(digests),
            len(toc),
            toc_digest(toc, self._id),
            limits.PIECE,
        ).pack()
        for data in (digests, toc, trailer):
            self._sink.write(data)
        return WrittenSegment(length, int.from_bytes(trailer[120:], "little"), toc)

    def _nodes(self, digests: Bytes) -> Iterator[int]:
        for node, start in enumerate(range(0, len(digests), limits.NODE)):
            yield digest(digests[start : start + limits.NODE], seed_of(self._id, NODE_LEVEL, node))
