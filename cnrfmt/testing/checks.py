"""Comparing what a container says with what a model says, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np

from cnrfmt.arrays import Array
from cnrfmt.checkpoint import Checkpoint
from cnrfmt.errors import MissingKeyError
from cnrfmt.table import Table
from cnrfmt.testing.model import ModelTable


def check_bits(found: Any, expected: Array, what: str) -> None:
    """Raises `AssertionError` unless both are arrays of one kind with the same bits."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), (
        f"{what}: expected {expected.dtype} {expected.shape}, found {found.dtype} {found.shape}"
    )
    assert found.tobytes() == expected.tobytes(), f"{what}: expected {expected!r}, found {found!r}"


def check_whole(found: Checkpoint, expected: Mapping[str, ModelTable]) -> None:
    """Compares every row of every column of every table."""
    assert set(found) == set(expected), f"tables {sorted(found)}, expected {sorted(expected)}"
    for name, model in expected.items():
        table = found[name]
        assert len(table) == len(model.ids), f"{len(table)} rows of {name}, expected {len(model.ids)}"
        assert set(table.columns) == set(model.dtypes), f"columns of {name}: {table.columns}"
        if model.rows is None:
            assert table.keys is not None, f"{name} has no keys"
            assert table.keys.tolist() == model.ids, f"keys of {name}"
        for column in model.dtypes:
            check_bits(table.read(column=column), model.array(column), f"{name}.{column}")


def learn(found: Checkpoint, tables: Mapping[str, ModelTable]) -> None:
    """Takes what is stored of rows on a grid for the truth from now on.

    Raises `AssertionError` unless it is as near to what was given as it must be.
    """
    for name, model in tables.items():
        ids = sorted(model.given)
        for column in model.dtypes if ids else ():
            stored = found[name].read(np.array(ids, np.int64), column=column)
            for row, values in zip(ids, stored, strict=True):
                cells = model.cells[row]
                if column in cells:
                    _check_near(values, cells[column], model.step, f"{name}.{column} of row {row}")
                    cells[column] = values
        model.given.clear()


_LOG_STEP = 2.0**-7
"""Logarithmic codes are as far apart as this, in proportion."""


def _check_near(stored: Array, given: Array, step: float | None, what: str) -> None:
    """A row is stored exactly, or each of its values to half a step."""
    assert step is not None
    if np.asarray(stored).tobytes() == np.asarray(given).tobytes():
        return
    apart = np.abs(stored.astype(np.float64) - given.astype(np.float64))
    most = _LOG_STEP * np.abs(given) if np.ndim(given) == 0 else step / 2
    assert (apart <= most).all(), f"{what}: {given!r} was given, {stored!r} is stored"


def check_rows(table: Table, model: ModelTable, random: Random) -> None:
    """Reads some rows in each way that there is: by id or key, one or many, by range, by mask, into an array."""
    column = random.choice(sorted(model.dtypes))
    what = f"{table.name}.{column}"
    whole, ids = model.array(column), np.array(model.ids, np.int64)
    out = np.empty_like(whole)
    assert table.read(out=out, column=column) is out
    check_bits(out, whole, f"{what} into an array")
    if model.rows is None:
        _check_missing(table, model, column, random)
    if not len(whole):
        return
    positions = random.choices(range(len(whole)), k=random.randint(1, 8))
    check_bits(table.read(ids[positions], column=column), whole[positions], f"{what} by id")
    one = random.randrange(len(whole))
    assert int(ids[one]) in table
    check_bits(np.asarray(table.read(int(ids[one]), column=column)), np.asarray(whole[one]), f"{what} of one row")
    first, last = sorted(random.choices(range(-len(whole), len(whole) + 1), k=2))
    by = random.choice([1, 2, -1, -3])
    window = slice(first, last, by) if by > 0 else slice(last, first, by)
    check_bits(table.read(window, column=column, by="position"), whole[window], f"{what}[{window}]")
    mask = np.zeros(len(whole), bool)
    mask[positions] = True
    check_bits(table.read(mask, column=column), whole[mask], f"{what} by mask")


def _check_missing(table: Table, model: ModelTable, column: str, random: Random) -> None:
    """A key that isn't there is an error, or reads as the fill value."""
    absent = random.choice([key for key in range(-99, 99) if key not in model.cells])
    assert absent not in table
    wanted = np.array([absent, *random.sample(model.ids, min(2, len(model.ids)))], np.int64)
    try:
        table.read(wanted, column=column)
    except MissingKeyError:
        pass
    else:
        raise AssertionError(f"{table.name} has a key {absent} that was never written")
    expected = model.array(column, wanted.tolist())
    check_bits(table.read(wanted, column=column, missing="fill"), expected, f"{table.name}.{column} with fill")


def changed_rows(before: ModelTable, after: ModelTable) -> set[int]:
    """The rows that differ, whatever was written; a new column touches those rows that it has values for."""
    known = set(before.ids)

    def differs(row: int) -> bool:
        return any(
            column in after.cells.get(row, {})
            if column not in before.dtypes
            else before.array(column, [row]).tobytes() != after.array(column, [row]).tobytes()
            for column in after.dtypes
        )

    return {row for row in after.ids if row not in known or differs(row)}
