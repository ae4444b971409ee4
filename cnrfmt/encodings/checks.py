"""What coders share: looking at many encoded rows in bounded memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Array, Bytes, Ids

_CHUNK = 4 << 20
"""Bytes of encoded rows that a check looks at in one step."""

Flags = npt.NDArray[np.bool_]


def first_row(
    data: Bytes, offset: int, count: int, row_bytes: int, broken: Callable[[Bytes], Flags]
) -> int:
    """The first of `count` rows from `offset` on of which `broken`, given rows as a matrix, is true; -1 if none is."""
    rows = data[offset : offset + count * row_bytes].reshape(count, row_bytes)
    step = max(1, _CHUNK // row_bytes)
    for start in range(0, count, step):
        found = broken(rows[start : start + step])
        if found.any():
            return start + int(np.argmax(found))
    return -1


def zero_rows(data: Bytes, offsets: Ids, row_bytes: int) -> Flags:
    """Which of the rows of whole bytes at these offsets are zero."""
    found = np.empty(len(offsets), np.bool_)
    step = max(1, _CHUNK // row_bytes)
    for start in range(0, len(offsets), step):
        some = slice(start, start + step)
        found[some] = ~data[offsets[some, None] + np.arange(row_bytes)].any(axis=1)
    return found


def padding_of_codes(data: Bytes, offset: int, count: int, row_bytes: int, last: int, used: int) -> int:
    """The first row whose byte number `last` has a bit set above the `used` ones; -1 if none has, or all are used."""
    if not used:
        return -1
    return first_row(data, offset, count, row_bytes, lambda rows: rows[:, last] >> used != 0)


def finite(rows: Array) -> Flags:
    """Which rows of numbers are finite throughout."""
    return np.asarray(np.isfinite(rows).all(axis=1))
