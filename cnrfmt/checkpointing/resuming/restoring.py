"""Restoring a version: into new arrays, or into those of a model that is there, and saying what didn't fit."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from cnrfmt import dtypes
from cnrfmt.arrays import Ids
from cnrfmt.checkpoint import Checkpoint
from cnrfmt.checkpointing.resuming.lazy_restore import begin
from cnrfmt.checkpointing.resuming.random_state import PREFIX as RANDOM
from cnrfmt.checkpointing.resuming.restored import Restored
from cnrfmt.checkpointing.resuming.targets import (
    Fill,
    Findings,
    Source,
    Target,
    check_apart,
    match,
    own_columns,
    resize_words,
    select,
)
from cnrfmt.errors import CnrError, DamagedError, MissingKeyError, UsageError
from cnrfmt.inputs import as_ids
from cnrfmt.memory import Budget, guarded
from cnrfmt.patterns import Patterns
from cnrfmt.run_record import record_of
from cnrfmt.table import Table
from cnrfmt.tabledata import TableData

OWN = "cnrfmt:"
"""How the names of the dense entries begin that are the library's own."""
READER = "cnrfmt:reader"
"""The dense entry that holds the reader position."""

_CHUNK = 32 << 20
"""Bytes of decoded rows on their way to places that can't be decoded into."""


def restore_version(
    ck: Checkpoint,
    *,
    tables: Iterable[str] | None = None,
    rows: Mapping[str, Any] | None = None,
    into: Mapping[str, Any] | None = None,
    strict: bool = True,
    rename: Mapping[str, str] | None = None,
    remap: Mapping[str, Any] | None = None,
    resize: Mapping[str, str | Collection[str]] | None = None,
    columns: bool = True,
    convert: bool = False,
    lazy: bool = False,
    order: Mapping[str, Any] | None = None,
    threads: int = 1,
) -> Restored:
    """Restores an open version, with as many threads as it was opened with.

    Everything is checked before a target is changed. What then still can fail is reading: where bytes are damaged, the
    error says which targets were filled. A checkpoint that is opened with ``verify="all"`` has that found before.

    Parameters
    ----------
    tables
        Names or patterns of stored tables; all if None.
    rows
        By table: row ids or keys, a slice, or a pair ``(first, end)``, the shard of a rank. Slices and pairs count
        rows, in a keyed table in the order of its keys. All rows of tables that aren't named.
    into
        By table: a numpy array or CPU tensor of torch for its weights, a `TableData` of such arrays, or a `Shard` of
        either, which takes its rectangle. The arrays may be of any strides. None in the place of a target gives new
        arrays. Without `into`, every table comes as new arrays.
    strict
        Whether it is a `UsageError` that the checkpoint or the target has tables, columns or rows that the other
        lacks. Where it isn't, what both have is restored and the rest is told of.
    rename
        From the stored name to the target's, for tables whose name changed. All arguments but `tables`, and the result,
        have the target's names.
    remap
        By table: ids, one for each row of the target: it takes that stored row, and keeps its own values where the id
        is -1. Of a keyed table they are keys; rows whose key isn't stored keep their own values, and ``"keys"`` stands
        for the target's own.
    resize
        By table, one or more of ``"grow"`` (the target has more rows; they keep their values), ``"truncate"`` (it has
        fewer), ``"pad"`` (its rows have more elements; they keep their values) and ``"cut"`` (fewer). A `dim` that
        changed needs it whether `strict` or not.
    columns
        Whether optimizer columns are restored with the weights; every table then comes as a `TableData`.
    convert
        Whether values may be converted to a target's own dtype (never from floating-point numbers to integers).
    lazy
        Returns as soon as all is checked, with arrays in which rows are decoded when they are asked for
        (`Restored.ensure`), the others by so many `threads` behind. Rows come as they are stored: without `remap`, and
        `rows` are ranges. The checkpoint has to stay open until all rows are there.
    order
        By table, with `lazy`: a number for each row, how often it is looked up: blocks with much come first.

    Raises
    ------
    UsageError
        All differences at once, each with what allows it; no target was changed.
    MissingKeyError, TooLargeError
        Likewise.
    DamagedError, StorageError
        The bytes couldn't be read.
    """
    if lazy and remap:
        raise UsageError("lazy=True restores rows as they are stored; leave out remap, or lazy")
    if order is not None and not lazy:
        raise UsageError("order says which rows come first with lazy=True; leave it out, or give lazy=True")
    budget = ck.view.budget()
    names = _names(ck, tables, rename)
    words = resize_words(resize)
    for argument, named in (("rows", rows), ("remap", remap), ("resize", resize)):
        if unknown := set(named or ()) - set(names) - set(into or ()):
            raise MissingKeyError(f"{argument} names a table that isn't restored: {min(unknown)!r}")
    found, fills = Findings(), list[Fill]()
    fresh: list[str] = []
    for name, stored in names.items():
        if into is None or (name in into and into[name] is None):
            fresh.append(name)
        elif name in into:
            options = {"rows": (rows or {}).get(name), "remap": (remap or {}).get(name)}
            fills += match(
                name,
                ck[stored],
                Target.of(into[name]),
                **options,
                resize=words.get(name, set()),
                columns=columns,
                convert=convert,
                found=found,
            )
        else:
            found.unexpected.append(f"table {name!r}")
            found.asks.append(
                f"table {name!r}: stored, and not in into; tables= chooses those that are wanted, "
                f"into={{{name!r}: None}} gives a new array"
            )
    for name in into or ():
        if name not in names:
            found.missing.append(f"table {name!r}")
            stored_names = ", ".join(map(repr, list(ck)[:10])) or "none"
            found.asks.append(
                f"table {name!r}: in into, and not stored (stored are {stored_names}); "
                f"rename={{stored name: {name!r}}} if it had another name, else leave it out"
            )
    _raise(found, strict, f"{ck.path}, version {ck.version}")
    check_apart(fills)
    dense = ck.dense
    behind = None
    with guarded(f"{ck.path}, what is restored"):
        given = {name: (into or {})[name] for name in names if name in (into or {}) and name not in fresh}
        # New arrays first: what can fail without a trace goes before what can't.
        if lazy:
            sources = {name: _source(ck[names[name]], name, (rows or {}).get(name)) for name in fresh}
            behind = begin(ck, fills, sources, names, columns=columns, order=order or {}, threads=threads)
            made = {}
            for name, source in sources.items():
                table = ck[names[name]]
                made[name] = _shown(table, behind.arrays(name), _keys(table, source, name, budget), columns)
        else:
            made = {
                name: _new(ck[names[name]], name, (rows or {}).get(name), (remap or {}).get(name), columns, budget)
                for name in fresh
            }
            _fill_all(fills, budget)
    record = record_of(ck.manifest)
    checkpoint = None if record is None else record.checkpoint(ck.version)
    return Restored(
        ck.path,
        ck.version,
        ck.step,
        {name: made.get(name, given.get(name)) for name in names if name in made or name in given},
        {name: value for name, value in dense.items() if not name.startswith(OWN)},
        dense.get(READER),
        {name: value for name, value in dense.items() if name.startswith(RANDOM)},
        {} if checkpoint is None else dict(checkpoint.metrics),
        ck.metadata,
        tuple(found.missing),
        tuple(found.unexpected),
        tuple(found.grown),
        tuple(found.cut),
        frozenset(given),
        behind,
    )


def _names(ck: Checkpoint, tables: Iterable[str] | None, rename: Mapping[str, str] | None) -> dict[str, str]:
    """From the targets' names to the stored ones, of the tables that were chosen."""
    wanted = Patterns(tables)
    wanted.check(list(ck), ck.path)
    if unknown := set(rename or ()) - set(ck):
        raise MissingKeyError(
            f"rename names a table that isn't stored: {min(unknown)!r}; it goes from the stored name to the target's"
        )
    found: dict[str, str] = {}
    for stored in ck:
        if stored in wanted:
            name = (rename or {}).get(stored, stored)
            if name in found:
                raise UsageError(f"rename: the stored tables {found[name]!r} and {stored!r} would both be {name!r}")
            found[name] = stored
    return found


def _raise(found: Findings, strict: bool, place: str) -> None:
    problems = [*found.faults, *(found.asks if strict else ())]
    if not problems:
        return
    ending = "\nstrict=False restores what both have" if strict and not found.faults else ""
    raise UsageError(
        f"{place}: what is stored doesn't go into what was given; nothing was changed:\n  "
        + "\n  ".join(problems)
        + ending
    )


def _new(table: Table, name: str, rows: Any, remap: Any, columns: bool, budget: Budget) -> Any:
    """A table as new arrays."""
    if remap is not None:
        return _new_remapped(table, name, rows, remap, columns, budget)
    source = _source(table, name, rows)
    values = {
        c: table.read_within(budget, source.rows, column=c, by=source.by)
        for c in (own_columns(table) if columns else table.columns[:1])
    }
    return _shown(table, values, _keys(table, source, name, budget), columns)


def _source(table: Table, name: str, rows: Any) -> Source:
    """The rows of a table that new arrays are wanted of; raises `MissingKeyError`."""
    source = select(table, rows, name)
    if isinstance(rows, tuple) and source.count != rows[1] - rows[0]:
        raise MissingKeyError(f"rows[{name!r}]: table {table.name!r} has rows 0 to {len(table) - 1}, found {rows}")
    return source


def _keys(table: Table, source: Source, name: str, budget: Budget) -> Ids | None:
    """The keys of these rows; None of a dense table."""
    if table.keys is None:
        return None
    budget.take(8 * source.count, f"table {name!r}, keys")
    chosen = source.rows if source.by == "id" else table.keys[source.rows]
    return np.array(chosen, np.int64)


def _new_remapped(table: Table, name: str, rows: Any, remap: Any, columns: bool, budget: Budget) -> Any:
    """A dense table as new arrays in which row i is the stored row ``remap[i]``, or the fill value for -1."""
    if table.keyed or rows is not None:
        raise UsageError(
            f"remap[{name!r}]: without a target it is for dense tables alone, and without rows; rows={{{name!r}: ids}} "
            "gives rows in the order of their ids"
        )
    ids = as_ids(remap, f"remap[{name!r}]")
    wrong = ids[(ids < -1) | (ids >= len(table))]
    if len(wrong):
        raise MissingKeyError(f"remap[{name!r}]: rows are 0 to {len(table) - 1}, and -1 is none, found {wrong[0]}")
    places = np.flatnonzero(ids >= 0).astype(np.int64, copy=False)
    values = {}
    for column in map(table.schema.column, own_columns(table) if columns else table.columns[:1]):
        assert column is not None
        shape = (len(ids),) if column.per_row else (len(ids), table.schema.dim)
        dtype = dtypes.dtype_of(column.dtype)
        budget.take(math.prod(shape) * dtype.itemsize, f"table {name!r}, column {column.name!r}")
        out = values[column.name] = np.full(shape, table.fill(column.name), dtype)
        elements = None if column.per_row else (0, table.schema.dim)
        _fill(Fill(table, column.name, Source(ids[places], "id", len(places)), out, places, elements), budget)
    return _shown(table, values, None, columns)


def _shown(table: Table, values: dict[str, Any], keys: Ids | None, columns: bool) -> Any:
    weight, *others = values
    if keys is None and not columns:
        return values[weight]
    fill = {c: table.fill(c)[()] for c in values}
    return TableData(values[weight], columns={c: values[c] for c in others}, keys=keys, fill=fill)


def _fill_all(fills: Sequence[Fill], budget: Budget) -> None:
    """Fills the targets one by one; an error says how far it came."""
    for number, fill in enumerate(fills):
        try:
            _fill(fill, budget)
        except CnrError as error:
            told = _progress(fills, number)
            if isinstance(error, DamagedError):
                raise DamagedError(
                    error.rule,
                    error.place,
                    expected=error.expected,
                    found=error.found,
                    advice=f"{error.advice}; {told}",
                ) from error
            error.add_note(told)
            raise


def _progress(fills: Sequence[Fill], number: int) -> str:
    def listed(some: Sequence[Fill]) -> str:
        return ", ".join(f"{fill.table.name!r} {fill.column}" for fill in some) or "none"

    return (
        f"of the arrays given, filled: {listed(fills[:number])}; in part: {listed(fills[number : number + 1])}; "
        f"as they were: {listed(fills[number + 1 :])}; restore another version into them, or have all verified first, "
        "which finds damage before anything is filled"
    )


def _fill(fill: Fill, budget: Budget) -> None:
    """Decodes stored rows into the array of a target, directly where its rows lie as the stored ones do."""
    table, source, out = fill.table, fill.source, fill.out
    dim = table.schema.dim
    first, end = fill.elements or (0, 1)
    whole = fill.elements is None or (first, end, out.shape[1]) == (0, dim, dim)
    if isinstance(fill.places, slice) and whole:
        table.read_within(budget, source.rows, out=out[fill.places], column=fill.column, by=source.by)
        return
    column = table.schema.column(fill.column)
    assert column is not None
    dtype = dtypes.dtype_of(column.dtype)
    step = min(source.count, max(1, _CHUNK // (dtype.itemsize * column.width(dim))))
    budget.take(step * column.width(dim) * dtype.itemsize, f"table {table.name!r}, rows on their way")
    buffer = np.empty((step,) if column.per_row else (step, dim), dtype)
    for start in range(0, source.count, max(1, step)):
        stop = min(start + step, source.count)
        rows = buffer[: stop - start]
        table.read_within(budget, source.piece(start, stop), out=rows, column=fill.column, by=source.by)
        places = slice(start, stop) if isinstance(fill.places, slice) else fill.places[start:stop]
        if fill.elements is None:
            out[places] = rows
        else:
            out[places, : end - first] = rows[:, first:end]
