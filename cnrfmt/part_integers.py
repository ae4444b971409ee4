"""The integers of one part's rows (specification, section 6), fetched and decoded a few groups at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.encodings.checks import Flags, zero_rows
from cnrfmt.encodings.integers import IntegerCoder, Integers, OpenPart, integer_coder
from cnrfmt.encodings.log import LogCoder
from cnrfmt.encodings.rans import RunningSums
from cnrfmt.errors import DamagedError
from cnrfmt.format.encoding import IntegerLayout, LogLayout
from cnrfmt.format.toc import Part

if TYPE_CHECKING:
    from cnrfmt.segment_reader import SegmentReader

_BLOCK = 64 << 10
"""Values that are decoded at a time, so that they are added while they are in the cache."""
_STREAM = 64 << 10
"""Runs of stored bytes from this length on are read, the first time, rather than faulted into a mapping."""
_SPARSE = 8
"""Where fewer than one row in so many is wanted, only the groups that hold them are read."""
_BATCH = 4096
"""Rows from anywhere that are fetched at a time."""
_GAPS = 2
"""Where so many times the wanted bytes lie between the first and the last, all are read in one go."""
_START = 16
"""Bytes of a section that say how long what its groups have in common is."""

Grid = tuple[str | int, ...]
"""What the parts of a row that add up have in common: `grid` of a layout."""
Elements = tuple[int, int]
"""The first element of a range, and the end behind the last."""


class PartIntegers:
    """What a part under an integer encoding says of its rows. Safe to use from many threads.

    What its groups have in common, their directory and their models, is read once and kept.
    """

    spans_gaps = True
    """Whether rows that nobody wants may be read together with those that they lie between."""

    def __init__(self, segment: SegmentReader, part: Part, count: int) -> None:
        assert isinstance(part.layout, IntegerLayout)
        self.layout: IntegerLayout = part.layout
        self._segment, self._part, self._count = segment, part, count
        self._start, self._length = segment.toc.sections[part.section]
        self._opened: OpenPart | None = None
        self._lock = threading.Lock()

    @property
    def grid(self) -> Grid:
        """What it has in common with the parts that it adds up with."""
        return self.layout.grid

    @property
    def is_residual(self) -> bool:
        """Whether its rows add to what older parts say."""
        return self.layout.is_residual

    @property
    def cost(self) -> int:
        """Bytes of memory that `load` takes; raises `DamagedError` where the section's first bytes are damaged."""
        if self._opened is not None or not self.layout.is_grouped:
            return 0
        coder = self._coder()
        size = coder.prefix_bytes(self._first_bytes())
        # As it is read, and as it is kept.
        return size + coder.cost(size)

    def load(self) -> None:
        """Reads what the groups have in common, for everybody who asks later; raises `DamagedError`."""
        _ = self.opened

    @property
    def opened(self) -> OpenPart:
        """The part, its groups found."""
        if self._opened is None:
            with self._lock:
                if self._opened is None:
                    coder = self._coder()
                    size = min(coder.prefix_bytes(self._first_bytes()), self._length)
                    data, offset = self.fetch(0, size) if size else (np.empty(0, np.uint8), 0)
                    self._opened = coder.opened(data[offset : offset + size], self._length)
        return self._opened

    def _coder(self) -> IntegerCoder:
        return integer_coder(self.layout, self._count, self._part.width, self.place)

    def _first_bytes(self) -> Bytes:
        size = min(_START, self._length)
        data, offset = self.fetch(0, size)
        return data[offset : offset + size]

    @property
    def place(self) -> str:
        """Where errors say that it is."""
        return f"{self._segment.place}, section {self._part.section} (part of column {self._part.column!r})"

    def fetch(self, start: int, length: int) -> tuple[Bytes, int]:
        """Some bytes of the section, verified: an array, and where in it they begin."""
        offset = self._start + start
        data, first = self._segment.fetch_range(offset, length)
        return data, offset - first

    def _fetch_run(self, start: int, length: int) -> tuple[Bytes, int]:
        """The same for bytes that are decoded at once: where they are many, they are read into this thread's buffer."""
        offset = self._start + start
        if length < _STREAM or self._segment.is_verified(offset, length):
            return self.fetch(start, length)
        data, first = self._segment.read_scratch(offset, length)
        return data, offset - first

    def _fetch_ranges(self, starts: Ids, lengths: Ids) -> tuple[Bytes, Ids]:
        """The bytes of groups, or of rows, that ascend, verified: an array, and where in it each begins."""
        begin, end = int(starts[0]), int(starts[-1] + lengths[-1])
        self._check_length(int(lengths.max()), 1)
        if self.spans_gaps and (len(starts) == 1 or end - begin <= _GAPS * int(lengths.sum())):
            data, offset = self._fetch_run(begin, end - begin)
            return data, starts + (offset - begin)
        return self._fetch_apart(starts, lengths)

    def _fetch_apart(self, starts: Ids, lengths: Ids) -> tuple[Bytes, Ids]:
        """The same without what lies between them."""
        return self._segment.fetch_ranges(starts + self._start, lengths)

    def _span(self, position: int, count: int) -> tuple[int, int]:
        """Where the bytes begin that these rows are decoded from, and how many they are."""
        start, length = self.opened.span(position, count)
        self._check_length(length, count)
        return start, length

    def _check_length(self, length: int, rows: int) -> None:
        """Refuses bytes that no rows so few could take, before memory is taken for them."""
        if self.layout.group is None:
            return
        # Of a value, a word and three bytes of extra bits; of a row, a word or exponent and width; of a group, states.
        rows += 2 * self.layout.group
        most = rows * (3 + 5 * self._part.width) + 40 * (rows // self.layout.group + 1)
        if length > most:
            expected = f"at most {most} bytes of {rows} rows"
            raise DamagedError("grid-codes", self.place, expected=expected, found=f"{length} bytes")

    def set_range(self, position: int, out: Integers, elements: Elements) -> None:
        """Sets `out` to what the part says of consecutive rows from a position on."""
        if self._part.elements == elements:
            data, offset = self._fetch_run(*self._span(position, len(out)))
            self.opened.decode(data, offset, position, out)
            return
        for begin, block in self._run(position, position + len(out)):
            out[begin - position : begin - position + len(block)] = self._cut(block, elements)

    def add(self, positions: Ids, targets: Ids, elements: Elements, sums: RunningSums) -> int:
        """Adds the rows at some positions, in any order, to the targets that go with these, each of which is another.

        Gives the target of a row that is on another grid, -1 if none is.
        """
        if self.opened.models is not None:
            element = elements[0] - self._part.elements[0]
            return self.opened.add_rows(self._fetch_ranges, positions, sums, targets, element)
        from cnrfmt.kernels import sums as kernel

        for some, rows in self.rows_at(positions, targets, elements):
            if (unlike := int(kernel.add_at(sums.values, sums.grids, some, rows, sums.grid))) >= 0:
                return int(some[unlike])
        return -1

    def rows_at(self, positions: Ids, targets: Ids, elements: Elements) -> Iterator[tuple[Ids, Integers]]:
        """The rows at some positions, in any order: some of the targets that go with these, and their integers.

        What comes with the next ones takes the place of the integers.
        """
        if len(positions) > 1 and (positions[1:] < positions[:-1]).any():
            # In their order, no group is decoded twice.
            order = np.argsort(positions, kind="stable")
            positions, targets = positions[order], targets[order]
        first, last = int(positions[0]), int(positions[-1])
        if not self.spans_gaps or last - first >= _SPARSE * len(positions):
            for batch, block in self._scattered(positions):
                yield targets[batch], self._cut(block, elements)
            return
        for begin, block in self._run(first, last + 1, positions):
            a, b = np.searchsorted(positions, (begin, begin + len(block)))
            if b - a != len(block) or not is_run(positions[a:b]):
                block = block[positions[a:b] - begin]
            yield targets[a:b], self._cut(block, elements)

    def group_starts(self) -> Ids:
        """Where each group begins in the section; 8 bytes of memory for each."""
        opened, group = self.opened, self.layout.group
        assert opened.directory is not None
        assert group is not None
        return opened.directory.bounds(0, -(-self._count // group))[:-1] + opened.payload

    def all_rows(self, nbytes: int) -> Iterator[tuple[int, Integers]]:
        """All rows, some at a time: the position of the first of them, and their integers until the next are asked for.

        Stored bytes are read for about so many bytes of integers at a time.
        """
        group = self.layout.group or 1
        step = max(1, nbytes // (4 * group * self._part.width)) * group
        for first in range(0, self._count, step):
            yield from self._run(first, min(first + step, self._count))

    def are_zero(self, positions: Ids) -> Flags:
        """Of which rows at ascending positions the slot is zero: its bytes, or, in groups and half bytes, its codes."""
        layout, width = self.layout, self._part.width
        found = np.empty(len(positions), np.bool_)
        if layout.is_grouped:
            for batch, block in self._scattered(positions):
                found[batch] = ~block.any(axis=1)
            return found
        for start in range(0, len(positions), _BATCH):
            some = positions[start : start + _BATCH]
            offsets = self._start + layout.offsets(some, width)
            data, at = self._segment.fetch_rows(offsets, layout.row_bytes(width))
            if isinstance(layout, LogLayout):
                found[start : start + _BATCH] = LogCoder(layout).are_zero(data, at, some, width)
            else:
                found[start : start + _BATCH] = zero_rows(data, at, layout.row_bytes(width))
        return found

    def _run(self, first: int, stop: int, wanted: Ids | None = None) -> Iterator[tuple[int, Integers]]:
        """Consecutive rows, whole groups at a time but for the first and last; blocks without wanted rows are left out.

        A block is overwritten by the next one.
        """
        opened, width = self.opened, self._part.width
        group = self.layout.group or 1
        step = max(1, _BLOCK // (group * width)) * group
        start, length = self._span(first, stop - first)
        data, offset = self._fetch_run(start, length)
        memory = np.empty((min(step, stop - first), width), np.int32)
        for edge in range(first - first % group, stop, step):
            begin, end = max(edge, first), min(edge + step, stop)
            if wanted is not None and np.searchsorted(wanted, begin) == np.searchsorted(wanted, end):
                continue
            block = memory[: end - begin]
            opened.decode(data, offset + opened.span(begin, end - begin)[0] - start, begin, block)
            yield begin, block

    def _scattered(self, positions: Ids) -> Iterator[tuple[slice, Integers]]:
        """The rows at ascending positions that lie far apart; a block is overwritten by the next one."""
        step = max(1, _BLOCK // self._part.width)
        memory = np.empty((min(step, len(positions)), self._part.width), np.int32)
        places = np.arange(len(memory), dtype=np.int64)
        for start in range(0, len(positions), step):
            some = positions[start : start + step]
            block = memory[: len(some)]
            self.opened.decode_rows(self._fetch_ranges, some, block, places[: len(some)])
            yield slice(start, start + len(some)), block

    def _cut(self, block: Integers, elements: Elements) -> Integers:
        if self._part.elements == elements:
            return block
        first = self._part.elements[0]
        return np.ascontiguousarray(block[:, elements[0] - first : elements[1] - first])


def is_run(numbers: Ids) -> bool:
    """Whether some numbers, at least one, are consecutive."""
    if int(numbers[-1]) - int(numbers[0]) != len(numbers) - 1:
        return False
    return bool((numbers[1:] - numbers[:-1] == 1).all())
