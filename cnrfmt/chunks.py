"""The rows of a column, decoded some at a time by as many threads as there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cnrfmt import parallel
from cnrfmt.arrays import Array, Ids
from cnrfmt.encodings.checks import Flags
from cnrfmt.encodings.integers import Integers
from cnrfmt.layer import Layer
from cnrfmt.memory import Budget
from cnrfmt.part_integers import Grid
from cnrfmt.resolve import Strip

_CHUNK = 4 << 20
"""Bytes of decoded rows that one thread makes at a time, for each layer of the chain ..."""
_MOST_LAYERS = 4
"""... up to this many."""


def decode(
    strips: Sequence[Strip],
    selection: range | Ids,
    keys: Ids | None,
    result: Array,
    stored: np.dtype[Any],
    threads: int,
    budget: Budget,
) -> None:
    """Decodes rows of all strips of a column.

    Parameters
    ----------
    selection
        Rows of a dense table, or positions among `keys`, as a range; or ids, in any order.
    result
        Gets the values, (rows, values per row) of any dtype.
    stored
        The column's own dtype.

    Raises
    ------
    DamagedError, TooLargeError
        As `Table.read` raises them.
    """
    per_chunk = _rows_per_chunk(strips, result.shape[1] * stored.itemsize)

    def chunk(start: int) -> None:
        piece = result[start : start + per_chunk]
        direct = result.dtype == stored and piece.flags.c_contiguous and len(strips) == 1
        target = piece if direct else np.empty(piece.shape, stored)
        for strip in strips:
            into = target if len(strips) == 1 else np.empty((len(piece), strip.end - strip.first), stored)
            _decode_strip(strip, selection, keys, start, into)
            if into is not target:
                target[:, strip.first : strip.end] = into
        if target is not piece:
            piece[...] = target

    starts = range(0, len(result), per_chunk)
    prepare(strips, threads, budget, is_shared=len(starts) > 1)
    parallel.run(threads)(chunk, starts)


def integers(
    strips: Sequence[Strip], ids: range | Ids, grid: Grid, width: int, threads: int, budget: Budget
) -> tuple[Integers, Flags]:
    """The integers of rows on a grid in these strips, and which rows are on it in all of them; the others' are zero.

    A range is of rows of a dense table.
    """
    first = strips[0].first
    out, known = np.empty((len(ids), width), np.int32), np.ones(len(ids), np.bool_)
    per_chunk = _rows_per_chunk(strips, out.itemsize * width)

    def chunk(start: int) -> None:
        stop = start + per_chunk
        some, rows, mine = ids[start:stop], out[start:stop], known[start:stop]
        for strip in strips:
            into = rows if len(strips) == 1 else np.empty((len(some), strip.end - strip.first), np.int32)
            mine &= strip.read_integers(some, grid, into)
            if into is not rows:
                rows[:, strip.first - first : strip.end - first] = into
        rows[~mine] = 0

    starts = range(0, len(ids), per_chunk)
    prepare(strips, threads, budget, is_shared=len(starts) > 1)
    parallel.run(threads)(chunk, starts)
    return out, known


def _rows_per_chunk(strips: Sequence[Strip], row_bytes: int) -> int:
    # The more layers there are to go through for each chunk, the larger it should be.
    chunk_bytes = _CHUNK * min(_MOST_LAYERS, max(len(strip.layers) for strip in strips))
    return max(1, chunk_bytes // max(1, row_bytes))


def prepare(strips: Sequence[Strip], threads: int, budget: Budget, *, is_shared: bool) -> None:
    """Counts what the layers keep in memory, and loads it if several chunks share it.

    Else each thread would decode the row indexes, and what rows share, of all layers for itself.
    """
    if budget.limited:
        place = strips[0].place
        budget.take(sum(layer.cost for layer in _indexes(strips)), f"{place}, row indexes")
        budget.take(sum(layer.shared_cost for layer in _shared(strips)), f"{place}, what its rows share")
    if is_shared:
        run = parallel.run(threads)
        run(lambda layer: layer.load_ids(), _indexes(strips))
        run(lambda layer: layer.load_shared(), _shared(strips))


def _indexes(strips: Sequence[Strip]) -> list[Layer]:
    """A layer for each row index: strips share layers, and layers row indexes."""
    return list({(id(x.segment), x.row_set): x for strip in strips for x in strip.layers}.values())


def _shared(strips: Sequence[Strip]) -> list[Layer]:
    """Every layer whose rows share anything, once."""
    return list({id(x): x for strip in strips for x in strip.layers if x.has_shared}.values())


def _decode_strip(strip: Strip, selection: range | Ids, keys: Ids | None, start: int, out: Array) -> None:
    if not isinstance(selection, range):
        strip.read_ids(selection[start : start + len(out)], out)
        return
    first = selection.start + start
    if keys is None:
        strip.read_range(first, out)
    elif not strip.is_summed and len(strip.layers) == 1 and strip.layers[0].ids is keys:
        strip.layers[0].decode_range(first, out, strip.elements)
    else:
        strip.read_ids(keys[first : first + len(out)], out)
