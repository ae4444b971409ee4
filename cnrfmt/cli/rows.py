"""``cnrfmt rows``: ids and values of some rows."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from cnrfmt.arrays import Array, Ids
from cnrfmt.cli import output
from cnrfmt.cli.options import Verbs, add_path, add_verb, add_version
from cnrfmt.errors import MissingKeyError, UsageError
from cnrfmt.format.schema import WEIGHT
from cnrfmt.reader import open
from cnrfmt.table import Table

_DEFAULT_LIMIT = 20
_CHUNK = 4 << 20
"""Bytes of rows that are read at a time."""
_CHUNK_ROWS = 1024
_EDGE = 3
"""How many elements a shortened row shows at each end, at the most."""
_NUMBER = re.compile(r"[+-]?\d+")
_SLICE = re.compile(r"([+-]?\d+)?:([+-]?\d+)?(?::([+-]?\d+))?")



def add(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(
        verbs,
        "rows",
        _run,
        "Prints rows of a table: their ids and values.",
        """ROWS are row ids of a dense table, such as 5, 0:10, 1,5,9 or -5: (slices as in Python; several go with
        commas between them), or keys of a keyed table, such as 17 or 17,99. Wide rows are shortened to the line
        unless --full is given; --json always gives all of every row, exactly: numbers that JSON doesn't know are
        the strings "NaN", "Infinity" and "-Infinity".""",
        """
        cnrfmt rows model.cnr user 0:10
        cnrfmt rows model.cnr user 5 --column accumulator --version 3
        cnrfmt rows model.cnr visitor --at -5: --full
        """,
    )
    add_path(parser)
    parser.add_argument("table", metavar="TABLE", help="the name of a table")
    parser.add_argument("rows", metavar="ROWS", nargs="?", help="which rows (else the first ones)")
    parser.add_argument(
        "--at",
        action="store_true",
        help="ROWS are positions; those of a keyed table's rows are in the order of their keys",
    )
    parser.add_argument("--column", default=WEIGHT, metavar="C", help="the column (else weight)")
    add_version(parser)
    parser.add_argument(
        "--limit",
        type=int,
        metavar="N",
        help=f"at most so many rows; 0 for all (else all of ROWS, or {_DEFAULT_LIMIT} without ROWS)",
    )
    parser.add_argument("--full", action="store_true", help="all elements, with all digits")


def _run(args: argparse.Namespace) -> int:
    limit = args.limit
    if limit is None:
        limit = _DEFAULT_LIMIT if args.rows is None else 0
    if limit < 0:
        raise UsageError(f"--limit must be 0 or more, found {limit}")
    with open(args.path, version=args.version) as ck:
        table = ck[args.table]
        runs, by_key = _choose(table, args.rows, args.at)
        count = sum(len(run) for run in runs)
        chunks = _read(table, args.column, runs, by_key, min(count, limit) if limit else count)
        if args.json:
            head = {
                "path": args.path,
                "version": ck.version,
                "table": table.name,
                "column": args.column,
                "dtype": table.fill(args.column).dtype.name,
            }
            _write_json(head, chunks)
        else:
            for ids, values in chunks:
                _write(ids, values, args.full)
    if limit and count > limit and not args.json:
        more = output.plural(count - limit, "more row")
        output.write(f"cnrfmt: {more}; --limit 0 prints all", sys.stderr)
    return 0


def _choose(table: Table, text: str | None, at: bool) -> tuple[list[range | Ids], bool]:
    """Runs of positions, or of keys; and whether they are keys."""
    if text is None:
        return [range(len(table))], False
    items = [item.strip() for item in text.split(",") if item.strip()]
    by_key = table.keyed and not at
    if by_key:
        return [_keys(table, items)], True
    return [_positions(table, item) for item in items], False


def _keys(table: Table, items: list[str]) -> Ids:
    for item in items:
        if _SLICE.fullmatch(item):
            raise UsageError(
                f"table {table.name!r} is keyed, so {item} means nothing among its keys; "
                f"--at {item} takes positions in the order of the keys"
            )
        if not _NUMBER.fullmatch(item) or not -(2**63) <= int(item) < 2**63:
            raise UsageError(f"a key is an integer of 64 bits, found {item!r}")
    keys = np.array([int(item) for item in items], np.int64)
    known = table.keys
    assert known is not None
    if len(lost := keys[~np.isin(keys, known)]):
        held = f"{known[0]} to {known[-1]}" if len(known) else "none"
        raise MissingKeyError(
            f"table {table.name!r} has no key {lost[0]}; it has "
            f"{output.plural(len(known), 'key')}, {held}"
        )
    return keys


def _positions(table: Table, item: str) -> range:
    count = len(table)
    if found := _SLICE.fullmatch(item):
        start, stop, step = (None if number is None else int(number) for number in found.groups())
        if step == 0:
            raise UsageError(f"a slice can't go in steps of 0, found {item!r}")
        return range(count)[slice(start, stop, step)]
    if not _NUMBER.fullmatch(item):
        raise UsageError(f"rows are numbers and slices such as 5, 0:10 or 1,5,9, found {item!r}")
    number = int(item)
    if not -count <= number < count:
        held = f"rows 0 to {count - 1}" if count else "no rows"
        raise MissingKeyError(f"table {table.name!r} has {held}, found {number}")
    return range(number % count, number % count + 1)


def _read(
    table: Table, column: str, runs: list[range | Ids], by_key: bool, count: int
) -> Iterator[tuple[Ids, Array]]:
    """The first `count` of these rows, some at a time: their ids and their values, one row each."""
    row_bytes = max(1, table.fill(column).itemsize * table.shape[1])
    step = max(1, min(_CHUNK_ROWS, _CHUNK // row_bytes))
    for chunk in _chunks(runs, step, count):
        values = table.read(chunk, column=column, by="id" if by_key else "position")
        ids = chunk if by_key or table.keys is None else table.keys[chunk]
        yield ids, values.reshape(len(ids), -1)


def _chunks(runs: list[range | Ids], step: int, count: int) -> Iterator[Ids]:
    waiting: list[Ids] = []
    size = 0
    for run in runs:
        start = 0
        while start < len(run) and count > 0:
            piece = np.array(run[start : start + min(step - size, count)], np.int64)
            waiting.append(piece)
            start, size, count = start + len(piece), size + len(piece), count - len(piece)
            if size == step:
                yield np.concatenate(waiting)
                waiting, size = [], 0
    if waiting:
        yield np.concatenate(waiting)


def _write(ids: Ids, values: Array, full: bool) -> None:
    id_width = max(len(str(ids.min())), len(str(ids.max())))
    # The text of a numpy number is the shortest that gives the same number of its dtype.
    cells = _cells(values, values.shape[1], str) if full else _cells_that_fit(values, id_width)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for number, row in zip(ids, cells, strict=True):
        line = "  ".join(cell.rjust(size) for cell, size in zip(row, widths, strict=True))
        output.write(f"{str(number).rjust(id_width)}  {line}")


def _cells_that_fit(values: Array, id_width: int) -> list[list[str]]:
    """Each row's elements; a few from both ends and dots where all wouldn't fit the line."""
    room = output.width() - id_width
    if values.shape[1] <= 1000:
        cells = _cells(values, values.shape[1], _shortly)
        if sum(max(map(len, column)) + 2 for column in zip(*cells, strict=True)) <= room:
            return cells
    for edge in range(_EDGE, 1, -1):
        cells = _cells(values, edge, _shortly)
        if sum(max(map(len, column)) + 2 for column in zip(*cells, strict=True)) <= room:
            return cells
    return _cells(values, 1, _shortly)


def _cells(values: Array, edge: int, text: Any) -> list[list[str]]:
    width = values.shape[1]
    if 2 * edge >= width:
        rows = values if text is str else _python(values)
        return [[text(x) for x in row] for row in rows]
    first, last = _python(values[:, :edge]), _python(values[:, -edge:])
    return [
        [*map(text, a), "...", *map(text, b)] for a, b in zip(first, last, strict=True)
    ]


def _python(values: Array) -> list[list[Any]]:
    """Elements as int or float; float32 holds those of bfloat16 and float8, which Python doesn't know."""
    plain = values if values.dtype.kind in "iuf" else values.astype(np.float32)
    found: list[list[Any]] = plain.tolist()
    return found


def _shortly(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def _json_value(value: float) -> int | float | str:
    if isinstance(value, int) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _write_json(head: dict[str, Any], chunks: Iterator[tuple[Ids, Array]]) -> None:
    """Writes one object, a line per row; only some of its rows are in memory at a time."""
    first = next(chunks, None)
    output.write(json.dumps(head)[:-1] + ', "rows": [')
    rows = (
        {"id": number, "values": [_json_value(x) for x in row]}
        for ids, values in (() if first is None else itertools.chain([first], chunks))
        for number, row in zip(ids.tolist(), _python(values), strict=True)
    )
    before = next(rows, None)
    for row in rows:
        output.write(json.dumps(before, allow_nan=False) + ",")
        before = row
    output.write(("" if before is None else json.dumps(before, allow_nan=False)) + "]}")
