"""From codes to the sections of parts whose rows are integers (specification, sections 6.5 and 6.7)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.encodings import rans
from cnrfmt.encodings.groups import build, group_count
from cnrfmt.encodings.rans import CodeSource
from cnrfmt.errors import UsageError
from cnrfmt.format.encoding import MAX_CODE_BITS, GridLayout, IntegerLayout, LogLayout

Integers = npt.NDArray[np.int32]

_CHUNK = 1 << 18
"""Codes that are encoded in one step."""


@dataclass(frozen=True)
class GivenCodes:
    """Codes (n, width) and exponents (n,) in memory, as a source of codes."""

    rows: Integers
    exponents: Bytes

    def codes(self, first: int, stop: int, out: Integers, exponents: Bytes) -> None:
        """Copies."""
        out[:], exponents[:] = self.rows[first:stop], self.exponents[first:stop]


def encode_section(layout: IntegerLayout, source: CodeSource, count: int, width: int) -> tuple[IntegerLayout, Bytes]:
    """The section of `count` rows, at least 1, of `width` codes, and its layout.

    That is the one given; but under a grid's payload `fixed` it has the fewest `bits` that hold all codes, whatever the
    given one has. Exponents of rows whose codes are all 0 needn't be 0. Raises `UsageError` where a code is too wide
    for the layout.
    """
    if layout.payload == "rans":
        assert layout.group is not None
        part = rans.encode(source, count, width, layout.group)
        return layout, np.concatenate([part.head, build(part.starts), part.payload])
    if isinstance(layout, LogLayout):
        return layout, _fixed_logs(layout, source, count)
    if layout.payload == "packed":
        return layout, _packed(layout, source, count, width)
    return _fixed(layout, source, count, width)


def _packed(layout: GridLayout, source: CodeSource, count: int, width: int) -> Bytes:
    from cnrfmt.kernels import integers as kernel

    group = layout.group
    assert group is not None
    parts: list[Bytes] = []
    starts: list[Ids] = []
    end = 0
    for codes, exponents in _steps(source, count, width, group):
        widths = _widths(codes, MAX_CODE_BITS)
        ends = np.empty(group_count(len(codes), group), np.int64)
        size = int(((widths.astype(np.int64) * width + 7) >> 3).sum())
        part = np.empty(2 * len(codes) + size, np.uint8)
        kernel.pack_groups(codes, exponents, widths, group, part, ends)
        parts.append(part)
        starts += [np.array([end]), end + ends[:-1]]
        end += len(part)
    return np.concatenate([build(np.concatenate(starts)), *parts])


def _fixed(layout: GridLayout, source: CodeSource, count: int, width: int) -> tuple[GridLayout, Bytes]:
    from cnrfmt.kernels import integers as kernel

    bits = max(int(_widths(codes, MAX_CODE_BITS).max()) for codes, _ in _steps(source, count, width, 1))
    layout = replace(layout, bits=max(1, bits))
    assert layout.bits is not None
    row_bytes, done = layout.row_bytes(width), 0
    out = np.empty(count * row_bytes, np.uint8)
    for codes, exponents in _steps(source, count, width, 1):
        some = out[done : done + len(codes) * row_bytes]
        kernel.pack_fixed(codes, exponents, layout.bits, some)
        done += len(some)
    return layout, out


def _fixed_logs(layout: LogLayout, source: CodeSource, count: int) -> Bytes:
    from cnrfmt.kernels import integers as kernel

    out, done = np.empty(layout.section_bytes(count, 1), np.uint8), 0
    bits = np.full(1, layout.bits, np.uint8)
    # Two by two, so that whole bytes are made.
    for codes, _ in _steps(source, count, 1, 2):
        if (wrong := int(kernel.out_of_range(codes, 0, (1 << layout.bits) - 1))) >= 0:
            raise UsageError(f"{codes[wrong, 0]} is no code of {layout.bits} bits")
        done = int(kernel.pack_rows(codes.reshape(1, -1), bits, out, done))
    return out


def _steps(source: CodeSource, count: int, width: int, multiple: int) -> Iterator[tuple[Integers, Bytes]]:
    """The codes and exponents of all rows, a multiple of so many at a time; each step overwrites the one before."""
    step = min(count, multiple * max(1, _CHUNK // (multiple * width)))
    codes, exponents = np.empty((step, width), np.int32), np.empty(step, np.uint8)
    for first in range(0, count, step):
        n = min(step, count - first)
        source.codes(first, first + n, codes[:n], exponents[:n])
        yield codes[:n], exponents[:n]


def _widths(codes: Integers, most: int) -> Bytes:
    """The bits that each row of codes needs."""
    from cnrfmt.kernels import integers as kernel

    widths = np.empty(len(codes), np.uint8)
    kernel.code_widths(codes, widths)
    if int(widths.max()) > most:
        raise UsageError(f"codes of {widths.max()} bits don't fit into {most}")
    return widths
