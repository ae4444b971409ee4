"""Stored rows of several parts as the rows of one: their bytes are copied, newest first, and never decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from cnrfmt import dtypes
from cnrfmt.arrays import Array, Bytes, Ids
from cnrfmt.checkpointing.compacting.windows import Window
from cnrfmt.encodings import Encoded, Recipe, coder, encoder
from cnrfmt.format.encoding import CodebookLayout, Layout, RawLayout
from cnrfmt.format.schema import ColumnSchema
from cnrfmt.format.scheme import Errors
from cnrfmt.layer import Layer
from cnrfmt.resolve import Strip
from cnrfmt.table_writes import EncodedRows, RowIds

Count = Callable[[int], None]
"""Called with the bytes that were made."""

_BATCH = 4096
"""Rows from anywhere that are fetched at a time."""
_SPARSE = 8
"""Where fewer than one row in so many is wanted, the others aren't read."""


def copy_rows(layer: Layer, positions: Ids, out: Bytes, targets: Ids) -> None:
    """Copies the stored bytes of rows at ascending positions of a layer's part to ``out[targets]``, (n, row bytes)."""
    first, last, count = int(targets[0]), int(targets[-1]), len(targets)
    if last - first == int(positions[-1]) - int(positions[0]) == count - 1:
        layer.read_range(int(positions[0]), out[first : last + 1])
    else:
        layer.copy_near(positions, out, targets)


def is_stored_so(layer: Layer, layout: Layout, strip: Strip) -> bool:
    """Whether a layer's rows can be copied as they are into a part of this layout."""
    return layer.part is not None and layer.part.layout == layout and layer.part.elements == strip.elements


class MergedRows(EncodedRows):
    """The rows of a part under a layout whose rows stand alone, from the layers of a strip, the newest first.

    `layers` are those that may give the rows. Rows that are stored in another way aren't held by the encoding, unless
    the layout is raw: then they are decoded. Rows that no layer gives, or that were deleted, are `slot`; without one
    they aren't held either.
    """

    def __init__(
        self,
        column: ColumnSchema,
        strip: Strip,
        recipe: Recipe,
        rows: RowIds,
        layers: Sequence[Layer],
        slot: Array | None,
        count: Count,
    ) -> None:
        self._strip, self._layout, self._rows, self._layers = strip, recipe.layout, rows, layers
        self._slot, self._count = slot, count
        self._width = strip.end - strip.first
        self.dtype = dtypes.dtype_of(column.dtype)
        self.errors = errors_of([x for x in layers if self._keeps_codes(x)])

    def encoded(self, start: int, stop: int) -> Encoded:
        """The stored bytes of rows start .. stop - 1, and which of them, from `start` on, are stored in another way."""
        window = Window.of(self._rows, start, stop)
        out = self._new(stop - start)
        bad = [np.empty(0, np.int64)]
        deleted = [np.empty(0, np.int64)]
        picked: list[tuple[Layer, Ids, Ids]] = []
        for layer in self._layers:
            if not window.left:
                break
            if window.is_within(layer) and 2 * window.left >= window.count and self._is_held(layer):
                # Most rows are this layer's: they are copied as a run, and the newer rows are put over it.
                self._run(layer, window.first - layer.row_set.first, out)
                break
            positions, targets = window.take(layer)
            if layer.part is None:
                deleted.append(targets)
            elif len(targets):
                picked.append((layer, positions, targets))
        else:
            deleted.append(window.rest())
        rest = np.concatenate(deleted)
        out[rest] = 0 if self._slot is None else self._slot
        if self._slot is None:
            bad.append(rest)
        for layer, positions, targets in picked:
            if self._is_held(layer):
                self._put(layer, positions, out, targets)
            else:
                out[targets] = 0
                bad.append(targets)
        data = self._packed(out)
        self._count(len(data))
        return Encoded(data, np.sort(np.concatenate(bad)))

    def take(self, positions: Ids) -> Array:
        """The decoded rows at these positions."""
        out = np.empty((len(positions), self._width), self.dtype)
        self._strip.read_ids(positions + self._rows.first if self._rows.ids is None else self._rows.ids[positions], out)
        return out

    def _keeps_codes(self, layer: Layer) -> bool:
        return is_stored_so(layer, self._layout, self._strip) or own_codebook(layer, self._strip) == self._layout

    def _is_held(self, layer: Layer) -> bool:
        return isinstance(self._layout, RawLayout) or self._keeps_codes(layer)

    def _new(self, count: int) -> Array:
        return np.empty((count, self._layout.row_bytes(self._width)), np.uint8)

    def _packed(self, out: Array) -> Bytes:
        return out.reshape(-1)

    def _run(self, layer: Layer, position: int, out: Array) -> None:
        positions = np.arange(position, position + len(out), dtype=np.int64)
        self._put(layer, positions, out, np.arange(len(out), dtype=np.int64))

    def _put(self, layer: Layer, positions: Ids, out: Array, targets: Ids) -> None:
        if is_stored_so(layer, self._layout, self._strip):
            copy_rows(layer, positions, out, targets)
        elif isinstance(self._layout, RawLayout):
            layer.decode_near(positions, out.view(self.dtype), targets, self._strip.elements)
        else:
            self._put_with_codebook(layer, positions, out, targets)

    def _put_with_codebook(self, layer: Layer, positions: Ids, out: Array, targets: Ids) -> None:
        """Gives each row the codebook that it shared, as its own."""
        assert layer.part is not None
        layout = layer.part.layout
        assert isinstance(layout, CodebookLayout)
        assert layout.block is not None
        codes = np.empty((len(positions), layer.part.row_bytes), np.uint8)
        copy_rows(layer, positions, codes, np.arange(len(positions), dtype=np.int64))
        out[targets, : layout.book_bytes] = shared_codebooks(layer, positions // layout.block)
        out[targets, layout.book_bytes :] = codes


class MergedHalfBytes(MergedRows):
    """The same for logarithmic codes of 12 bits, two of which share a byte."""

    def _new(self, count: int) -> Array:
        return np.empty(count, np.uint16)

    def _put(self, layer: Layer, positions: Ids, out: Array, targets: Ids) -> None:
        assert layer.part is not None
        segment = layer.segment
        first, last = int(positions[0]), int(positions[-1])
        section = segment.toc.sections[layer.part.section][0]
        if len(positions) * _SPARSE >= last - first:
            offset, length = layer.part.layout.span(first, last - first + 1, 1)
            data, start = segment.read_scratch(section + offset, length)
            out[targets] = _codes(data, (positions * 3 >> 1) + (section - start), positions)
            return
        for begin in range(0, len(positions), _BATCH):
            some = positions[begin : begin + _BATCH]
            data, found = segment.fetch_rows(section + (some * 3 >> 1), layer.part.row_bytes)
            out[targets[begin : begin + _BATCH]] = _codes(data, found, some)

    def _packed(self, out: Array) -> Bytes:
        even, odd = out[::2].copy(), out[1::2]
        even[: len(odd)] |= odd << 12
        packed = np.zeros((len(even), 3), np.uint8)
        packed[:, :2] = even.astype("<u2").view(np.uint8).reshape(-1, 2)
        packed[: len(odd), 2] = odd >> 4
        return packed.reshape(-1)[: -(-3 * len(out) // 2)]


def _codes(data: Bytes, offsets: Ids, positions: Ids) -> Array:
    """The codes of 12 bits at these positions, which begin in the bytes at `offsets`."""
    pairs = data[offsets].astype(np.uint16) | data[offsets + 1].astype(np.uint16) << 8
    return np.where(positions & 1, pairs >> 4, pairs & 0xFFF)


class KeptBlocks(EncodedRows):
    """Whole blocks of rows that share codebooks, of one old part, each with its codebook.

    `positions` are those of their rows in the part's row set, ascending; `exceptions` are those of them whose slots are
    zero, since another part gives their values.
    """

    def __init__(
        self,
        column: ColumnSchema,
        strip: Strip,
        layer: Layer,
        rows: RowIds,
        positions: Ids,
        exceptions: Ids,
        count: Count,
    ) -> None:
        self._strip, self._layer, self._rows, self._positions = strip, layer, rows, positions
        self._exceptions, self._count = exceptions, count
        self.dtype, self.errors = dtypes.dtype_of(column.dtype), errors_of([layer])

    def encoded(self, start: int, stop: int) -> Encoded:
        """The stored bytes of rows start .. stop - 1, of which the first begins a block, and their codebooks."""
        part = self._layer.part
        assert part is not None
        assert isinstance(part.layout, CodebookLayout)
        assert part.layout.block is not None
        positions = self._positions[start:stop]
        out = np.empty((len(positions), part.row_bytes), np.uint8)
        copy_rows(self._layer, positions, out, np.arange(len(positions), dtype=np.int64))
        bad = np.flatnonzero(np.isin(positions, self._exceptions, assume_unique=True)).astype(np.int64, copy=False)
        books = shared_codebooks(self._layer, positions[:: part.layout.block] // part.layout.block)
        self._count(out.size + books.size)
        return Encoded(out.reshape(-1), bad, codebooks=books.reshape(-1))

    def take(self, positions: Ids) -> Array:
        """The decoded rows at these positions."""
        out = np.empty((len(positions), self._strip.end - self._strip.first), self.dtype)
        self._strip.read_ids(positions + self._rows.first if self._rows.ids is None else self._rows.ids[positions], out)
        return out


def shared_codebooks(layer: Layer, numbers: Ids) -> Bytes:
    """The stored bytes of codebooks of a layer's part, (n, codebook bytes)."""
    part = layer.part
    assert part is not None
    assert part.codebooks is not None
    assert isinstance(part.layout, CodebookLayout)
    section, size = layer.segment.toc.sections[part.codebooks][0], part.layout.book_bytes
    first, last = int(numbers[0]), int(numbers[-1])
    data, start = layer.segment.fetch_range(section + first * size, (last + 1 - first) * size)
    begin = section + first * size - start
    books = data[begin : begin + (last + 1 - first) * size].reshape(-1, size)
    return books[numbers - first]


def own_codebook(layer: Layer, strip: Strip) -> Layout | None:
    """The layout that rows of a layer have where each gets the codebook that it shared; None if they share none."""
    part = layer.part
    if part is None or part.elements != strip.elements or not isinstance(part.layout, CodebookLayout):
        return None
    return None if part.layout.block is None else CodebookLayout(part.layout.bits, part.layout.values)


def are_equal(a: RowIds, b: RowIds) -> bool:
    """Whether these are the same rows."""
    if a.ids is None or b.ids is None:
        return a.ids is b.ids and (a.first, a.count) == (b.first, b.count)
    return a.count == b.count and np.array_equal(a.ids, b.ids)


def errors_of(layers: Sequence[Layer]) -> Errors:
    """What encoding did to the rows of these parts: the mean over their rows, and the worst."""
    known = [(x.row_set.count, x.part.errors) for x in layers if x.part is not None]
    total = sum(count for count, _ in known)
    worst = max((errors.worst for _, errors in known), default=0.0)
    mean = sum(count * errors.mean for count, errors in known) / max(1, total)
    return Errors(min(mean, worst), worst)


def fill_slot(recipe: Recipe, width: int, fill: Array) -> Array | None:
    """The slot of a row that reads as the fill value, bit for bit: zero if that does, else as it is encoded.

    For codes of 12 bits it is the code. None where the layout holds no such row.
    """
    layout = recipe.layout
    row = np.full((1, width), fill)
    if isinstance(layout, RawLayout):
        return row.view(np.uint8).reshape(-1)
    if isinstance(layout, CodebookLayout) and layout.block is not None:
        return None
    zero = np.zeros(layout.section_bytes(1, width), np.uint8)
    candidates = [(zero, 0)]
    found = encoder(recipe).encode(row)
    if not found.bad.size:
        candidates.append((found.data, int.from_bytes(found.data[:2].tobytes(), "little")))
    for slot, code in candidates:
        again = np.empty_like(row)
        coder(layout).decode_range(slot, 0, again)
        if again.tobytes() == row.tobytes():
            return slot.copy() if layout.stands_alone else np.array(code, np.uint16)
    return None
