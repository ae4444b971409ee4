"""The payload `rans`: integers in as many bits as they surprise, in groups of rows (specification, section 6.7)."""

from __future__ import annotations

import struct
import threading
from dataclasses import dataclass
from typing import NamedTuple, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes, Ids, Words
from cnrfmt.errors import DamagedError, UsageError

_FIXED = 16
"""Bytes of the head before its tables."""
_MOST_TABLE_BYTES = 1 << 20
_MOST_KINDS, _MOST_CLASSES, _MOST_TOKENS = 1024, 256, 124
_SCALE = 4096
_EXPONENTS = 25
_MADE_CLASSES = 16
"""The most classes that are made of rows; more would hardly be smaller, and slower."""
_CHUNK = 1 << 15
"""Codes that are looked at in one step, or one group."""

_WRONG = {
    1: ("states of at least 65536, and 65536 after the last symbol", "another"),
    2: ("as many words as its symbols take", "too few"),
    3: ("as many bytes of extra bits as its tokens ask for", "others"),
    4: ("codes within the bounds of their exponent", "a greater one"),
    5: ("zero bits beyond its extra bits", "others"),
}
_PADDING = 5
_AT_ONCE = 8
"""Groups that are decoded at once."""
_LEAST_VALUES, _MOST_KEPT = 1 << 16, 1 << 19
"""Values that each thread keeps memory for: those of eight groups as they mostly are, and the most of eight groups."""
_LOCAL = threading.local()


class CodeSource(Protocol):
    """Rows of codes, to be had more than once."""

    def codes(self, first: int, stop: int, out: npt.NDArray[np.int32], exponents: Bytes) -> None:
        """Sets `out` (stop - first, width) to the codes of rows, |c| < 2^25, and `exponents`, one for each row."""


class RunningSums(NamedTuple):
    """Rows that integers are added to."""

    values: npt.NDArray[np.int32]
    """The sums so far, C-contiguous (rows, width)."""
    grids: npt.NDArray[np.int32]
    """Of each row the number of the grid that it is on, -1 where nothing was added yet."""
    grid: int
    """The number of the grid of what is added."""


class RansPart(NamedTuple):
    """An encoded part: its head, the bytes of its groups, and where in there each begins."""

    head: Bytes
    payload: Bytes
    starts: Ids


@dataclass(frozen=True)
class RansModels:
    """The models of a part, out of its head: row kinds, and the tokens of each class. Immutable, safe for threads."""

    kinds: npt.NDArray[np.uint16]
    """Of each row kind, its class in the low byte, and its exponent."""
    kind_slots: npt.NDArray[np.uint32]
    kind_symbols: npt.NDArray[np.uint16]
    slots: npt.NDArray[np.uint32]
    """4096 for each class."""

    @staticmethod
    def head_bytes(first: Bytes) -> int:
        """The length of a head, given its first 16 bytes; 16 if the section has fewer."""
        return _FIXED + min(int(first[4:8].view("<u4")[0]), _MOST_TABLE_BYTES) if len(first) >= _FIXED else _FIXED

    @staticmethod
    def cost(first: Bytes) -> int:
        """Bytes of memory that the models take, given the first 16 bytes of the head."""
        classes = min(int(first[2:4].view("<u2")[0]), _MOST_CLASSES) if len(first) >= _FIXED else 0
        return 4 * _SCALE * classes + 8 * _SCALE

    @classmethod
    def parse(cls, head: Bytes, place: str, *, exponents: int) -> RansModels:
        """The models that a whole head, of `head_bytes`, says.

        Parameters
        ----------
        exponents
            The greatest exponent that a row may have.

        Raises
        ------
        DamagedError
            Rule ``grid-models``.
        """
        from cnrfmt.kernels import rans as kernel

        if len(head) < _FIXED:
            _models(place, "a head of at least 16 bytes", len(head))
        n_kinds, n_classes = (int(n) for n in head[:4].view("<u2"))
        table_bytes = int(head[4:8].view("<u4")[0])
        if not 1 <= n_kinds <= _MOST_KINDS or not 1 <= n_classes <= _MOST_CLASSES:
            _models(place, "1 to 1024 row kinds and 1 to 256 classes", f"{n_kinds} and {n_classes}")
        if head[8:_FIXED].any():
            _models(place, "zero bytes 8 to 15", "others")
        if len(head) != _FIXED + table_bytes or table_bytes % 8:
            _models(place, "tables as long as the head says, in multiples of 8", f"{table_bytes} bytes")
        tables = head[_FIXED:]
        kinds, frequencies = _parse_kinds(tables, n_kinds, n_classes, exponents, place)
        kind_slots, kind_symbols = np.empty(_SCALE, np.uint32), np.empty(_SCALE, np.uint16)
        kernel.fill_slots(frequencies, kind_slots)
        kernel.fill_kinds(frequencies, kind_symbols)
        slots = np.empty((n_classes, _SCALE), np.uint32)
        at = 4 * n_kinds
        for class_ in range(n_classes):
            n = int(tables[at]) if at < len(tables) else 0
            end = at + 1 + 2 * n
            if not 1 <= n <= _MOST_TOKENS or end > len(tables):
                _models(place, f"1 to {_MOST_TOKENS} frequencies of class {class_}", n)
            tokens = tables[at + 1 : end].copy().view("<u2").astype(np.uint16, copy=False)
            if int(tokens.sum(dtype=np.int64)) != _SCALE or not tokens[-1]:
                _models(place, f"frequencies of class {class_} that sum to 4096, the last not 0", int(tokens.sum()))
            kernel.fill_slots(tokens, slots[class_])
            at = end
        if len(tables) - at >= 8 or tables[at:].any():
            _models(place, "tables padded with fewer than 8 zero bytes", "others")
        return cls(kinds, kind_slots, kind_symbols, slots.reshape(-1))

    def decode_group(
        self,
        data: Bytes,
        start: int,
        stop: int,
        out: npt.NDArray[np.int32],
        exponents: Bytes,
        most_bits: int,
        place: str,
    ) -> None:
        """Decodes data[start:stop], a group of ``len(out)`` rows; see `decode_groups`."""
        self.decode_groups(data, np.array([start, stop]), len(out), out, exponents, most_bits, place)

    def decode_groups(
        self,
        data: Bytes,
        bounds: Ids,
        group: int,
        out: npt.NDArray[np.int32],
        exponents: Bytes,
        most_bits: int,
        place: str,
    ) -> None:
        """Decodes consecutive groups, of which number i is data[bounds[i] : bounds[i + 1]]; nothing else matters.

        Parameters
        ----------
        group
            Rows of a group; the last may have fewer.
        out, exponents
            Get c << e, C-contiguous (rows, width), and the e of each row. After an error they hold anything.
        most_bits
            |c| must be below 2^(most_bits - e); 24 to 26.

        Raises
        ------
        DamagedError
            Rule ``grid-codes``, or ``code-padding`` for the bits beyond the extra bits.
        """
        from cnrfmt.kernels import rans as kernel

        wrong, number = kernel.decode_groups(
            data, bounds[:-1], bounds[1:], group, *self._tables, most_bits,
            *_Work.of(min(_AT_ONCE, len(bounds) - 1) * group, group, out.shape[1])[:4], out, exponents,
        )  # fmt: skip
        if wrong:
            raise _damaged(wrong, place if len(bounds) == 2 else f"{place}, byte {bounds[number]}")

    def add_rows(
        self,
        data: Bytes,
        groups: tuple[Ids, Ids, Ids],
        group: int,
        count: int,
        width: int,
        most_bits: int,
        positions: Ids,
        sums: RunningSums,
        targets: Ids,
        element: int,
        place: str,
    ) -> int:
        """Adds rows of a part of `count` rows of `width` elements to sums.

        Parameters
        ----------
        groups
            The numbers of the groups that hold the rows, ascending, and where each begins and ends in `data`.
        positions, targets
            Where the rows are in the part, ascending, and in the sums, where no two are the same.
        element
            The first element of the part's that counts, of as many as the sums have.

        Returns
        -------
        The target of a row that is on another grid, -1 if none is.

        Raises
        ------
        DamagedError
            As `decode_groups` raises it.
        """
        from cnrfmt.kernels import rans_rows as kernel

        numbers, starts, stops = groups
        rows = min(_AT_ONCE, len(numbers)) * group
        work = _Work.of(rows, group, width)
        wrong, at = kernel.add_rows(
            data, starts, stops, numbers, group, count, *self._tables, most_bits, *work[:4], *work.block(rows, width),
            positions, targets, element, sums.values, sums.grids, sums.grid,
        )  # fmt: skip
        if wrong:
            raise _damaged(wrong, f"{place}, group {numbers[at]}")
        return -1 if at < 0 else int(targets[at])

    @property
    def _tables(
        self,
    ) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint32], npt.NDArray[np.uint16], npt.NDArray[np.uint32]]:
        return self.kinds, self.kind_slots, self.kind_symbols, self.slots


class _Work(NamedTuple):
    """Memory to decode groups, kept by each thread: what is allocated anew for a single group costs as much as it."""

    places: Ids
    states: Ids
    row_kinds: npt.NDArray[np.uint16]
    symbols: npt.NDArray[np.uint16]
    codes: npt.NDArray[np.int32]
    exponents: Bytes

    @classmethod
    def of(cls, rows: int, group: int, width: int) -> _Work:
        """For so many rows, in groups of which there are eight at most."""
        work: _Work | None = getattr(_LOCAL, "work", None)
        values = rows * width
        if work is None or len(work.codes) < values or len(work.exponents) < max(rows, group):
            values, most = max(values, _LEAST_VALUES), max(rows, group, _LEAST_VALUES)
            work = cls(
                np.empty(2 * _AT_ONCE, np.int64), np.empty(8 * _AT_ONCE, np.int64), np.empty(most, np.uint16),
                np.empty(values, np.uint16), np.empty(values, np.int32), np.empty(most, np.uint8),
            )  # fmt: skip
            if values <= _MOST_KEPT:
                _LOCAL.work = work
        return work

    def block(self, rows: int, width: int) -> tuple[npt.NDArray[np.int32], Bytes]:
        """Memory for codes, and for exponents."""
        return self.codes[: rows * width].reshape(rows, width), self.exponents[:rows]


def _damaged(wrong: int, where: str) -> DamagedError:
    expected, found = _WRONG[wrong]
    rule = "code-padding" if wrong == _PADDING else "grid-codes"
    return DamagedError(rule, where, expected=f"a group with {expected}", found=found)


def _models(place: str, expected: str, found: object) -> NoReturn:
    raise DamagedError("grid-models", place, expected=expected, found=found)


def _parse_kinds(
    tables: Bytes, n_kinds: int, n_classes: int, exponents: int, place: str
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint16]]:
    """The row kinds, and their frequencies."""
    if len(tables) < 4 * n_kinds:
        _models(place, f"{n_kinds} row kinds", f"{len(tables)} bytes")
    table = tables[: 4 * n_kinds].reshape(n_kinds, 4)
    exponent, class_ = table[:, 0], table[:, 1]
    kinds: npt.NDArray[np.uint16] = exponent.astype(np.uint16) << np.uint16(8) | class_
    frequencies = table[:, 2:].copy().view("<u2").astype(np.uint16, copy=False).reshape(-1)
    if (kinds[1:] <= kinds[:-1]).any():
        _models(place, "row kinds that ascend", "others")
    if exponent.max() > exponents:
        _models(place, f"exponents up to {exponents}", int(exponent.max()))
    if not np.array_equal(np.unique(class_), np.arange(n_classes)):
        _models(place, f"row kinds of each of {n_classes} classes", "others")
    if not frequencies.all() or int(frequencies.sum(dtype=np.int64)) != _SCALE:
        _models(place, "frequencies of row kinds of at least 1 that sum to 4096", int(frequencies.sum()))
    return kinds, frequencies


def encode(source: CodeSource, count: int, width: int, group: int) -> RansPart:
    """Encodes the rows of a part, in groups of `group`: once over all of them for the models, once for the groups.

    Parameters
    ----------
    count, width
        Rows, at least 1, and codes in each.
    """
    from cnrfmt.kernels import rans as kernel

    # Whole groups at a time, and not too few codes.
    step = group * max(1, _CHUNK // (group * width))
    step = min(step, -(-count // group) * group)
    codes, exponents = np.empty((min(step, count), width), np.int32), np.empty(min(step, count), np.uint8)
    tokens = np.zeros((4, kernel.LEVELS * kernel.TOKENS), np.int64)
    kinds = np.zeros((kernel.LEVELS, _EXPONENTS), np.int64)
    # Of four groups, if there are as many.
    room = min(4, step // group) * group * (width + 1)
    symbols, words = np.empty(room, np.uint16), np.empty(room + 4 * 8, np.uint16)
    for first in range(0, count, step):
        n = min(step, count - first)
        source.codes(first, first + n, codes[:n], exponents[:n])
        if not kernel.measure(codes[:n], exponents[:n], tokens, kinds, symbols):
            raise UsageError("a code or an exponent is out of the range of grid codes")
    class_of = np.empty(kernel.LEVELS, np.uint8)
    # The class of a lone value says no more than the value does.
    by_level = tokens.sum(axis=0).reshape(kernel.LEVELS, kernel.TOKENS)
    n_classes = kernel.join_levels(by_level, kinds, _MADE_CLASSES if width > 1 else 1, class_of)
    tables = _Tables.of(by_level[:n_classes], kinds[:n_classes])
    out = np.empty(step * (5 * width + 2) + 40 * (step // group), np.uint8)
    parts: list[Bytes] = []
    lengths = np.empty(-(-count // group), np.int64)
    for first in range(0, count, step):
        n = min(step, count - first)
        source.codes(first, first + n, codes[:n], exponents[:n])
        some = lengths[first // group : -(-(first + n) // group)]
        used = kernel.encode_groups(
            codes[:n], exponents[:n], group, class_of, tables.kind_of, tables.kind_symbols, tables.symbols,
            np.empty(8, np.int64), np.empty(32, np.int64), symbols, words, out, some,
        )  # fmt: skip
        parts.append(out[:used].copy())
    starts = np.zeros(len(lengths), np.int64)
    np.cumsum(lengths[:-1], out=starts[1:])
    return RansPart(tables.head, np.concatenate(parts), starts)


@dataclass(frozen=True)
class _Tables:
    """What the encoder looks up, and the head that says it."""

    head: Bytes
    kind_of: npt.NDArray[np.int16]
    """The row kind of an exponent and a class."""
    kind_symbols: Words
    symbols: Words

    @classmethod
    def of(cls, tokens: Ids, kinds: Ids) -> _Tables:
        """Models for these counts, of tokens by class and of rows by class and exponent."""
        from cnrfmt.kernels import rans as kernel

        n_classes = len(tokens)
        kind_of = np.full(kinds.T.shape, -1, np.int16)
        exponents, classes = np.nonzero(kinds.T)
        kind_of[exponents, classes] = np.arange(len(exponents))
        frequencies = np.empty(len(exponents), np.uint16)
        kernel.normalise(kinds.T[exponents, classes], frequencies)
        kind_symbols = np.zeros(len(exponents), np.uint64)
        kernel.fill_symbols(frequencies, kind_symbols)
        table = np.empty((len(exponents), 4), np.uint8)
        table[:, 0], table[:, 1] = exponents, classes
        table[:, 2:] = frequencies.astype("<u2").view(np.uint8).reshape(-1, 2)
        pieces = [table.tobytes()]
        symbols = np.zeros((n_classes, kernel.TOKENS), np.uint64)
        for class_ in range(n_classes):
            frequencies = np.empty(kernel.TOKENS, np.uint16)
            kernel.normalise(tokens[class_], frequencies)
            kernel.fill_symbols(frequencies, symbols[class_])
            used = int(np.flatnonzero(frequencies)[-1]) + 1
            pieces += [bytes([used]), frequencies[:used].astype("<u2").tobytes()]
        data = b"".join(pieces)
        data += bytes(-len(data) % 8)
        head = struct.pack("<HHIQ", len(exponents), n_classes, len(data), 0) + data
        return cls(np.frombuffer(head, np.uint8), kind_of, kind_symbols, symbols.reshape(-1))
