"""Which rows a caller asks for: a number, a slice, ids, keys or a mask, as a range of positions or as ids."""

from __future__ import annotations

from typing import Any

import numpy as np

from cnrfmt.arrays import Ids
from cnrfmt.errors import MissingKeyError, UsageError
from cnrfmt.inputs import as_ids
from cnrfmt.memory import Budget


def select(rows: Any, count: int, keys: Ids | None, by: str, place: str, budget: Budget) -> tuple[range | Ids, bool]:
    """The rows that were asked for, and whether it was a single one.

    Parameters
    ----------
    rows
        As `Table.read` takes them.
    count
        How many rows the table has.
    keys
        Those of a keyed table, ascending.
    by
        ``"id"``, or ``"position"``: rows of a keyed table by position in key order.
    place
        The table, for messages.

    Returns
    -------
    tuple
        A range of positions, or row ids or keys; and whether a single row was asked for. Row ids, unlike keys, are
        those of rows.

    Raises
    ------
    UsageError, MissingKeyError, TooLargeError
    """

    def ids_at(positions: Ids) -> Ids:
        return positions if keys is None else keys[positions]

    if rows is None or rows is Ellipsis:
        return range(count), False
    if isinstance(rows, slice):
        found = range(count)[rows]
        if found.step == 1:
            return found, False
        budget.take(8 * len(found), f"{place}: {len(found)} row ids")
        return ids_at(np.arange(found.start, found.stop, found.step, dtype=np.int64)), False
    if isinstance(rows, bool | np.bool_ | str | bytes):
        raise UsageError(f"{place}: rows can't be {rows!r}; give ids, a slice or a mask")
    if isinstance(rows, tuple):
        raise UsageError(f"{place}: one index, of rows; use t[{list(rows)!r}] or t[row][element]")
    if getattr(rows, "ndim", None) == 0 and not isinstance(rows, np.generic):
        rows = as_ids(rows.reshape(1), f"{place}: row id")[0]
    by_key = keys is not None and by == "id"
    if isinstance(rows, int | np.integer):
        number = int(rows)
        if by_key:
            return as_ids([number], f"{place}: key"), True
        if not -count <= number < count:
            raise MissingKeyError(f"{place} has rows 0 to {count - 1}, found {number}")
        return range(number % count, number % count + 1), True
    if str(getattr(rows, "dtype", "")) in ("bool", "torch.bool") or (
        isinstance(rows, list) and rows and all(isinstance(x, bool) for x in rows)
    ):
        mask = np.asarray(rows)
        if mask.shape != (count,):
            raise UsageError(f"{place}: a mask needs {count} values, found shape {mask.shape}")
        return ids_at(np.flatnonzero(mask).astype(np.int64)), False
    ids = as_ids(rows, f"{place}: row ids")
    if by_key:
        return ids, False
    check_row_ids(ids, count, place)
    return ids_at(ids), False


def check_row_ids(ids: Ids, count: int, place: str) -> None:
    """That row ids, or positions, are those of rows; raises `MissingKeyError`."""
    if len(ids):
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= count:
            raise MissingKeyError(f"{place} has rows 0 to {count - 1}, found {low if low < 0 else high}")


def check_keys(wanted: Ids, keys: Ids, place: str) -> None:
    """That keys are among those of a table, which ascend; raises `MissingKeyError`."""
    from cnrfmt.kernels import rows as kernel

    positions = np.empty(len(wanted), np.int64)
    kernel.find(keys, wanted, positions)
    if len(lost := wanted[positions < 0]):
        more = f" and {len(lost) - 1} more of those asked for" if len(lost) > 1 else ""
        raise MissingKeyError(
            f"{place} has no key {lost[0]}{more}; missing='fill' gives the fill value instead"
        )
