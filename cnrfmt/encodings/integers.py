"""Parts whose rows are integers, on a grid or as logarithmic codes (specification, sections 6.5 and 6.7).

A part is opened once: its head and its directory are checked and kept. Then rows are decoded from the bytes of their
span, in as many threads as there are. Decoding checks every rule for the bytes that it reads, padding included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Array, Bytes, Ids
from cnrfmt.encodings.groups import Directory, directory_bytes, group_count, parse
from cnrfmt.encodings.rans import RansModels, RunningSums
from cnrfmt.errors import DamagedError
from cnrfmt.format.encoding import GridLayout, IntegerLayout, LogLayout

Integers = npt.NDArray[np.int32]
Fetch = Callable[[Ids, Ids], tuple[Bytes, Ids]]
"""Gives ranges of a section's bytes, by their beginnings, which ascend, and lengths: an array, and offsets in it."""

_GRID_BITS = 24
"""Integers on a grid are below 2^24 in magnitude; differences of them below 2^25."""
_MOST_EXPONENT = 24
_LEAST_RANS = 16 + 8
"""The least bytes of a rans head."""
_MOST_CLASSES, _LEAST_CLASS = 256, 7
"""The most classes of rans models, and the least bytes of a head that each takes."""
_MODEL = 4 * 4096
"""Bytes of memory that the model of a class takes."""
_LEAST_GROUP = 32
"""The least bytes of a rans group: its states."""
_MOST_VALUES, _LEAST_VALUES = 1 << 21, 64
"""Values whose bytes are fetched in one go, where some of their rows are wanted; as so many a small group counts."""

_WRONG = {
    1: ("grid-codes", "as many bytes as the widths of its rows take", "others"),
    2: ("grid-codes", "an exponent of at most 24", "a greater one"),
    3: ("grid-codes", "the least width, up to 26 bits, that holds the codes, and exponent 0 at 0", "another"),
    4: ("grid-codes", "codes within the bounds of their exponent", "a greater one"),
    5: ("code-padding", "zero bits", "others"),
}
"""What is wrong, by the numbers that kernels give: the rule, what it asks for, what was found."""


def bounds(layout: IntegerLayout) -> tuple[int, int]:
    """The least and the greatest integer that a row of a column may have, once all is added up."""
    if isinstance(layout, LogLayout):
        return 0, (1 << layout.bits) - 1
    return 1 - (1 << _GRID_BITS), (1 << _GRID_BITS) - 1


def values(layout: IntegerLayout, rows: Integers, out: Array) -> None:
    """The values of integers within `bounds`, C-contiguous (n, width), into `out`, float32 of the same shape."""
    from cnrfmt.kernels import integers as kernel

    if isinstance(layout, LogLayout):
        kernel.log_values(rows, layout.base, layout.shift, out)
    else:
        kernel.values(rows, layout.floor, out)


def make_values(layout: IntegerLayout, rows: Integers) -> int:
    """Makes integers, C-contiguous (n, width), their values, float32 in their own memory.

    Gives the first row with one that isn't within `bounds`, where it stops; -1 if there is none.
    """
    from cnrfmt.kernels import integers as kernel

    if not isinstance(layout, LogLayout):
        return int(kernel.checked_values(rows, *bounds(layout), layout.floor))
    if (bad := int(kernel.out_of_range(rows, *bounds(layout)))) < 0:
        values(layout, rows, rows.view(np.float32))
    return bad


def integer_coder(layout: IntegerLayout, count: int, width: int, place: str) -> IntegerCoder:
    """What opens a part of `count` rows, at least 1, of `width` elements; `place` is where it is, for errors."""
    return IntegerCoder(layout, count, width, place)


@dataclass(frozen=True)
class IntegerCoder:
    """What is known of a part before any of its bytes is."""

    layout: IntegerLayout
    count: int
    width: int
    place: str

    @property
    def groups(self) -> int:
        """Groups of the part; 0 under the payload `fixed`."""
        return 0 if self.layout.group is None else group_count(self.count, self.layout.group)

    @property
    def least_bytes(self) -> int:
        """The least bytes that the section has; under the payload `fixed`, those that it has."""
        if not self.layout.is_grouped:
            return self.layout.section_bytes(self.count, self.width)
        directory = directory_bytes(self.groups)
        if self.layout.payload == "packed":
            return directory + 2 * self.count
        return _LEAST_RANS + directory + _LEAST_GROUP * self.groups

    def prefix_bytes(self, first: Bytes) -> int:
        """Bytes of head and directory, given the section's first 16, or all where it is shorter; 0 under `fixed`.

        Bounded by the number of groups, but it may be more than a damaged section has.
        """
        if not self.layout.is_grouped:
            return 0
        head = RansModels.head_bytes(first) if self.layout.payload == "rans" else 0
        return head + directory_bytes(self.groups)

    def cost(self, prefix_bytes: int) -> int:
        """The most bytes of memory that the part takes while it is open, given its `prefix_bytes`."""
        tables = prefix_bytes - directory_bytes(self.groups) - _LEAST_RANS
        if self.layout.payload != "rans" or tables < 0:
            return prefix_bytes
        return prefix_bytes + _MODEL * (2 + min(_MOST_CLASSES, 1 + tables // _LEAST_CLASS))

    def opened(self, prefix: Bytes, section_bytes: int) -> OpenPart:
        """Checks head and directory.

        Parameters
        ----------
        prefix
            The section's first `prefix_bytes`, or all where it is shorter.
        section_bytes
            The section's length.

        Raises
        ------
        DamagedError
            Rule ``grid-directory`` or ``grid-models``.
        """
        if not self.layout.is_grouped:
            return OpenPart(self)
        needed = self.prefix_bytes(prefix[:16])
        if min(len(prefix), section_bytes) < needed:
            expected = f"a head and a directory of {needed} bytes"
            found = f"{min(len(prefix), section_bytes)} bytes"
            raise DamagedError("grid-directory", self.place, expected=expected, found=found)
        head = needed - directory_bytes(self.groups)
        models = None
        if self.layout.payload == "rans":
            exponents = 0 if isinstance(self.layout, LogLayout) else _MOST_EXPONENT
            models = RansModels.parse(prefix[:head], self.place, exponents=exponents)
        directory = parse(prefix[head:needed], self.groups, section_bytes - needed, self.place)
        return OpenPart(self, needed, directory, models)


@dataclass(frozen=True)
class OpenPart:
    """A part that rows are decoded from. Immutable; safe to use from many threads.

    `data` are bytes as a 1-D uint8 array, which may be read-only. Decoded are c << e of the codes c and the row's
    exponent e, or logarithmic codes, as int32.
    """

    coder: IntegerCoder
    payload: int = 0
    """Where the payload begins in the section."""
    directory: Directory | None = None
    models: RansModels | None = None

    def span(self, position: int, count: int) -> tuple[int, int]:
        """Where the bytes begin in the section that `count` rows, at least 1, from a position are decoded from.

        And how many they are: those of whole groups, where there are groups.
        """
        layout = self.coder.layout
        if self.directory is None:
            return layout.span(position, count, self.coder.width)
        first, stop = self._groups(position, count)
        ends = self.directory.bounds(first, stop)
        return self.payload + int(ends[0]), int(ends[-1] - ends[0])

    def decode(
        self, data: Bytes, offset: int, position: int, out: Integers, exponents: Bytes | None = None
    ) -> None:
        """Decodes consecutive rows from a position on, whose `span` begins at data[offset].

        Parameters
        ----------
        out
            Gets the integers: C-contiguous (n, width). After an error it holds anything.
        exponents
            Gets the exponents (n,), if they are asked for.

        Raises
        ------
        DamagedError
            Rule ``grid-codes`` or ``code-padding``.
        """
        from cnrfmt.kernels import integers as kernel
        from cnrfmt.kernels import logs

        layout = self.coder.layout
        if not len(out):
            return
        if exponents is None:
            exponents = np.empty(len(out), np.uint8)
        if self.models is not None:
            self._decode_rans(data, offset, position, out, exponents)
        elif self.directory is not None:
            assert layout.group is not None
            first, stop = self._groups(position, len(out))
            ends = self.directory.bounds(first, stop)
            last = min(layout.group, self.coder.count - (stop - 1) * layout.group)
            skip = position - first * layout.group
            found = kernel.unpack_groups(
                data, offset - int(ends[0]), ends, layout.group, last, skip, self._most_bits, out, exponents
            )
            self._check(*found, position)
        elif isinstance(layout, GridLayout):
            assert layout.bits is not None
            found = kernel.unpack_fixed(data, offset, layout.bits, self._most_bits, out, exponents)
            self._check(*found, position)
        else:
            logs.codes_in_range(data, offset, position, layout.bits, out.reshape(-1))
            exponents[:] = 0
            self._check_half_byte(data, offset, position, len(out))

    def decode_at(self, data: Bytes, offsets: Ids, positions: Ids, out: Integers, targets: Ids) -> None:
        """Decodes the row at positions[i], which begins at data[offsets[i]], into out[targets[i]].

        For the payload `fixed` alone, whose layout says where in the section its rows begin. Raises as `decode` does.
        """
        from cnrfmt.kernels import integers as kernel
        from cnrfmt.kernels import logs

        layout = self.coder.layout
        assert not layout.is_grouped
        if isinstance(layout, GridLayout):
            assert layout.bits is not None
            wrong, row = kernel.unpack_fixed_at(data, offsets, layout.bits, self._most_bits, out, targets)
            if wrong:
                self._check(wrong, 0, int(positions[row]))
        else:
            logs.codes_of_rows(data, offsets, positions, layout.bits, out.reshape(-1), targets)

    def decode_rows(self, fetch: Fetch, positions: Ids, out: Integers, targets: Ids) -> None:
        """Decodes the rows at these positions, in any order, into the rows `targets` of `out`, no two of them the same.

        `fetch` is called for some rows or groups at a time, which ascend; for each once. Raises as `decode` does.
        """
        if self.models is not None:
            self.add_rows(fetch, positions, RunningSums(out, np.full(len(out), -1, np.int32), 0), targets)
            return
        code, group = self.coder, self.coder.layout.group
        positions, targets = _ascending(positions, targets)
        if group is None:
            row_bytes = np.full(len(positions), code.layout.row_bytes(code.width))
            step = max(1, _MOST_VALUES // code.width)
            for first in range(0, len(positions), step):
                some = slice(first, first + step)
                data, offsets = fetch(code.layout.offsets(positions[some], code.width), row_bytes[some])
                self.decode_at(data, offsets, positions[some], out, targets[some])
            return
        for data, (numbers, starts, _), some in self._fetched(fetch, positions):
            rows = positions[some]
            edges = np.searchsorted(rows, np.append(numbers, numbers[-1] + 1) * group)
            firsts = (numbers * group).tolist()
            for first, start, a, b in zip(firsts, starts.tolist(), edges[:-1], edges[1:], strict=True):
                block = np.empty((min(group, code.count - first), code.width), np.int32)
                self.decode(data, start, first, block)
                out[targets[some][a:b]] = block[rows[a:b] - first]

    def add_rows(self, fetch: Fetch, positions: Ids, sums: RunningSums, targets: Ids, element: int = 0) -> int:
        """Adds the rows at these positions, in any order, to the rows `targets` of sums, no two of them the same.

        For the payload `rans` alone, whose groups are decoded and added in one go.

        Parameters
        ----------
        fetch
            As `decode_rows` has it.
        element
            The first element that counts, of as many as the sums have.

        Returns
        -------
        The target of a row that is on another grid, -1 if none is.

        Raises
        ------
        DamagedError
            As `decode` raises it.
        """
        code = self.coder
        assert code.layout.group is not None
        assert self.models is not None
        positions, targets = _ascending(positions, targets)
        for data, groups, some in self._fetched(fetch, positions):
            unlike = self.models.add_rows(
                data, groups, code.layout.group, code.count, code.width, self._most_bits, positions[some], sums,
                targets[some], element, code.place,
            )  # fmt: skip
            if unlike >= 0:
                return unlike
        return -1

    def _fetched(self, fetch: Fetch, positions: Ids) -> Iterator[tuple[Bytes, tuple[Ids, Ids, Ids], slice]]:
        """The groups of rows at ascending positions, some at a time: bytes, and which of the positions they hold.

        Of the groups the numbers, and where in the bytes each begins and ends.
        """
        from cnrfmt.kernels import integers as kernel

        group = self.coder.layout.group
        assert group is not None
        assert self.directory is not None
        numbers = np.empty(len(positions), np.int64)
        numbers = numbers[: kernel.groups_of(positions, group, numbers)]
        step, done = max(1, _MOST_VALUES // max(self.coder.width * group, _LEAST_VALUES)), 0
        for first in range(0, len(numbers), step):
            some = numbers[first : first + step]
            begins, ends = self.directory.bounds_of(some)
            data, starts = fetch(begins + self.payload, ends - begins)
            stop = len(positions)
            if first + step < len(numbers):
                stop = int(np.searchsorted(positions, numbers[first + step] * group))
            yield data, (some, starts, starts + (ends - begins)), slice(done, stop)
            done = stop

    @property
    def _most_bits(self) -> int:
        """Integers that the part says are below two to this power in magnitude."""
        return _GRID_BITS + self.coder.layout.is_residual

    def _groups(self, position: int, count: int) -> tuple[int, int]:
        """The first of the groups of these rows, and the one behind the last."""
        group = self.coder.layout.group
        assert group is not None
        return position // group, group_count(position + count, group)

    def _decode_rans(self, data: Bytes, offset: int, position: int, out: Integers, exponents: Bytes) -> None:
        group = self.coder.layout.group
        assert group is not None
        assert self.models is not None
        assert self.directory is not None
        first, stop = self._groups(position, len(out))
        bounds = self.directory.bounds(first, stop)
        bounds += offset - bounds[0]
        end = position + len(out)
        # Whole groups are decoded several at once, where their rows go; of the first and the last some may be unwanted.
        whole_first = first if position == first * group else first + 1
        whole_stop = stop if end == min(stop * group, self.coder.count) else max(whole_first, stop - 1)
        for a, b in ((first, min(whole_first, stop)), (whole_first, whole_stop), (max(whole_stop, whole_first), stop)):
            if a >= b:
                continue
            start, rows_end = a * group, min(b * group, self.coder.count)
            low, high = max(position, start), min(end, rows_end)
            wanted = slice(low - position, high - position)
            codes, shifts = out[wanted], exponents[wanted]
            is_cut = high - low < rows_end - start
            if is_cut:
                codes = np.empty((rows_end - start, out.shape[1]), np.int32)
                shifts = np.empty(rows_end - start, np.uint8)
            place = f"{self.coder.place}, group{'' if b - a == 1 else 's'} {a}{'' if b - a == 1 else f' to {b - 1}'}"
            self.models.decode_groups(
                data, bounds[a - first : b - first + 1], group, codes, shifts, self._most_bits, place
            )
            if is_cut:
                out[wanted], exponents[wanted] = codes[low - start : high - start], shifts[low - start : high - start]

    def _check(self, wrong: int, row: int, position: int) -> None:
        if wrong:
            rule, expected, found = _WRONG[int(wrong)]
            place = f"{self.coder.place}, slot {max(0, position + int(row))}"
            raise DamagedError(rule, place, expected=expected, found=found)

    def _check_half_byte(self, data: Bytes, offset: int, position: int, count: int) -> None:
        """What is left over of a section of logarithmic codes, if these are the last."""
        if position + count == self.coder.count and self.coder.count * self.coder.layout.row_bits(1) % 8:
            last = offset + self.span(position, count)[1] - 1
            self._check(5 if data[last] >> 4 else 0, count - 1, position)


def _ascending(positions: Ids, targets: Ids) -> tuple[Ids, Ids]:
    """Both in the order of the positions."""
    if len(positions) < 2 or not (positions[1:] < positions[:-1]).any():
        return positions, targets
    order = np.argsort(positions, kind="stable")
    return positions[order], targets[order]
