"""Rows as quantised embedding operators read them: those of a table that fit as they are, and others, converted."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from cnrfmt import dtypes
from cnrfmt.arrays import Array, Bytes, Ids
from cnrfmt.encodings import Recipe, encoder
from cnrfmt.encodings.quantize import Quantize
from cnrfmt.errors import UsageError
from cnrfmt.format.encoding import RowwiseLayout
from cnrfmt.format.scheme import Scheme
from cnrfmt.mapped_rows import StoredRows, stored_rows
from cnrfmt.memory import Budget
from cnrfmt.table import Table

Placement = Literal["tail", "head"]
Exceptions = Literal["refuse", "ignore"]
Origin = Literal["mapped", "overlay", "copied", "quantised"]
"""Where rows come from.

``"mapped"``: the file, without a copy. ``"overlay"``: a private map of the file, into which newer rows were put as they
are stored. ``"copied"``: private memory that holds all rows as they are stored, put together. ``"quantised"``: private
memory; the rows were quantised for it, so that the error of that adds to what they had.
"""

BITS = (8, 4, 2)
"""Codes that the operators read."""
_CHUNK = 16 << 20
"""Bytes of float32 that are decoded at a time."""


def layout_of(bits: int, placement: Placement) -> RowwiseLayout:
    """How the operators want rows of so many bits."""
    found = Quantize(bits, layout=placement).layout_of(bits)
    assert isinstance(found, RowwiseLayout)
    return found


class Misfit(NamedTuple):
    """Why a table can't be mapped for the operators, and what can be done about it."""

    reason: str
    advice: str


def fitting(table: Table, placement: Placement, budget: Budget) -> StoredRows | Misfit:
    """The rows of a table that a map can give to the operators, unless there is something in the way.

    Parts that are newer than the one in the map aren't in the way.
    """
    found = stored_rows(table, budget)
    if isinstance(found, str):
        return Misfit(found, _store_so(table, placement))
    layout = found.layout
    if layout.bits not in BITS or layout != layout_of(layout.bits, placement):
        return Misfit(
            f"its rows are stored in the layout {layout.placement!r} with {layout.bits} bits",
            _store_so(table, placement),
        )
    if found.floor is None:
        return Misfit("no part of it has all its rows", compacting(table))
    if found.span.data is None:
        return Misfit("the checkpoint was opened with backend='pread'", f"open it with backend='mmap'; {_CONVERT}")
    return found


_CONVERT = "or give convert=True, which makes the rows anew in private memory"


def _store_so(table: Table, placement: Placement) -> str:
    where = table.view.container.path
    return (
        f"store it so, cnrfmt.compact({where!r}, NEW, encoding=cnrfmt.Quantize(8, layout={placement!r})), with 8, 4 or "
        f"2 bits; {_CONVERT}"
    )


def compacting(table: Table) -> str:
    """What to do where rows are in several parts."""
    return f"make one part of them, cnrfmt.compact({table.view.container.path!r}, NEW); {_CONVERT}"


def refusal(table: Table, placement: Placement, misfit: Misfit) -> UsageError:
    """The error that says why a table can't be mapped, and how it can be had."""
    return UsageError(
        f"{table.view.container.path}, table {table.name!r}: it can't be mapped as these operators read rows, from one "
        f"part in the layout {placement!r}: {misfit.reason}; {misfit.advice}"
    )


def check_exceptions(table: Table, found: Ids, exceptions: Exceptions) -> None:
    """Refuses rows that the operators would read as zeros, unless they are to be ignored; raises `UsageError`."""
    if exceptions not in ("refuse", "ignore"):
        raise UsageError(f"exceptions is 'refuse' or 'ignore', found {exceptions!r}")
    if exceptions == "refuse" and len(found):
        raise UsageError(
            f"table {table.name!r}: {len(found)} of {len(table)} rows, the first of them {found[0]}, are stored beside "
            "the others, since their encoding can't hold them; these operators would read zeros there. Write these "
            "rows anew, finite and within range, or take zeros for them: exceptions='ignore'"
        )


def put_newer(stored: StoredRows, out: Bytes) -> None:
    """Puts the rows that newer parts have into a private map of the part that has all rows, (rows, row bytes)."""
    changed = stored.changed()
    if len(changed):
        stored.copy(changed, out, stored.positions(changed))


class Conversion:
    """The rows of a table for private memory, copied where their codes can be kept, else quantised.

    `convert` says how they are quantised; True keeps the number of bits where they have one, else they get 8.
    """

    def __init__(self, table: Table, placement: Placement, convert: bool | Quantize, budget: Budget) -> None:
        self._table, self._stored = table, stored_rows(table, budget)
        self._how = _how(convert, self._stored, placement)
        assert isinstance(self._how.bits, int)
        self.layout = layout_of(self._how.bits, placement)
        self.shape = len(table), self.layout.row_bytes(table.shape[1])
        what = f"table {table.name!r}, {self.shape[0]} rows of {self.shape[1]} bytes"
        budget.take(self.shape[0] * self.shape[1], what)

    def fill(self, out: Bytes) -> tuple[Origin, Ids]:
        """Fills zeros, (rows, row bytes), and says where the rows come from, and the ids of those that stay zeros."""
        table, stored = self._table, self._stored
        if isinstance(stored, str) or not keeps_codes(stored.layout, self.layout):
            return "quantised", _quantise(table, self._how, self.layout, out)
        ids = np.arange(len(table), dtype=np.int64) if table.keys is None else table.keys
        copy_into(stored, self.layout, ids, out)
        return "copied", stored.exceptions()


def _how(convert: bool | Quantize, stored: StoredRows | str, placement: Placement) -> Quantize:
    if isinstance(convert, Quantize):
        if convert.bits not in BITS or convert.layout not in (None, placement):
            raise UsageError(
                f"convert: these operators read 8, 4 or 2 bits in the layout {placement!r}; "
                f"found bits={convert.bits!r}, layout={convert.layout!r}"
            )
        return replace(convert, layout=placement)
    return Quantize(stored.layout.bits if not isinstance(stored, str) and stored.layout.bits in BITS else 8)


def keeps_codes(given: RowwiseLayout, wanted: RowwiseLayout) -> bool:
    """Whether rows of one layout are those of another, value for value, once their bytes are in its places."""

    def holds(narrow: str, wide: str) -> bool:
        return narrow == wide or wide == "float32"

    return (
        given.bits == wanted.bits
        and given.group is None
        and given.bias is not None
        and wanted.bias is not None
        and holds(given.scale, wanted.scale)
        and holds(given.bias, wanted.bias)
    )


def copy_into(stored: StoredRows, layout: RowwiseLayout, ids: Ids, out: Bytes) -> None:
    """Fills `out` with rows as they are stored, in the places of a layout whose codes are the same.

    `ids` ascend; `out` is (n, row bytes of the layout), zeros.
    """
    dim = stored.table.shape[1]
    step = max(1, _CHUNK // stored.row_bytes)
    fill: Bytes | None = None
    for start in range(0, len(ids), step):
        some = ids[start : start + step]
        target = out[start : start + len(some)]
        rows = target if layout == stored.layout else np.zeros((len(some), stored.row_bytes), np.uint8)
        missing = stored.copy(some, rows, np.arange(len(some), dtype=np.int64))
        if rows is not target:
            _place(rows, stored.layout, target, layout, dim)
        if len(missing):
            fill = _fill_row(stored.table, layout) if fill is None else fill
            target[missing] = fill


def _place(rows: Bytes, given: RowwiseLayout, out: Bytes, wanted: RowwiseLayout, dim: int) -> None:
    size = given.code_bytes(dim)
    (codes, *old), (place, *new) = given.places(dim), wanted.places(dim)
    out[:, place : place + size] = rows[:, codes : codes + size]
    for at, kind, to, other in zip(
        old, (given.scale, given.bias), new, (wanted.scale, wanted.bias), strict=True
    ):
        assert kind is not None
        assert other is not None
        before, after = dtypes.dtype_of(kind), dtypes.dtype_of(other)
        numbers: Array = np.ascontiguousarray(rows[:, at : at + before.itemsize]).view(before).astype(after)
        out[:, to : to + after.itemsize] = numbers.view(np.uint8)


def _fill_row(table: Table, layout: RowwiseLayout) -> Bytes:
    """A row of the fill value; of zeros for zero."""
    fill = table.fill()
    if not fill:
        return np.zeros(layout.row_bytes(table.shape[1]), np.uint8)
    done = encoder(Recipe(layout, Scheme("asymmetric"))).encode(np.full((1, table.shape[1]), fill, np.float32))
    if len(done.bad):
        raise UsageError(f"table {table.name!r}: rows that were never written are {fill}, which no such row can hold")
    return done.data


def _quantise(table: Table, how: Quantize, layout: RowwiseLayout, out: Bytes) -> Ids:
    """Fills `out` with rows quantised from their values, and gives the ids of those that can't be."""
    if table.dtype.name not in ("float32", "float64", "float16", "bfloat16"):
        raise UsageError(f"table {table.name!r}: only floating-point weights can be quantised, found {table.dtype}")
    assert isinstance(how.bits, int)
    code = encoder(Recipe(layout, how.scheme_of(how.bits)))
    step = max(1, _CHUNK // (4 * max(1, table.shape[1])))
    bad = [np.empty(0, np.int64)]
    for start in range(0, len(out), step):
        rows = table.read(slice(start, start + step), dtype=np.float32, by="position")
        done = code.encode(rows)
        out[start : start + len(rows)] = done.data.reshape(len(rows), -1)
        bad.append(done.bad + start)
    positions = np.concatenate(bad)
    return positions if table.keys is None else table.keys[positions]


def settled() -> Future[None]:
    """What stands for a verification where all bytes were verified as they were copied."""
    done: Future[None] = Future()
    done.set_result(None)
    return done
