"""Trying ways to quantise on a sample of rows: `try_quantization`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cnrfmt.arrays import Array
from cnrfmt.encodings.base import Encoded, Recipe, coder, encoder
from cnrfmt.encodings.quantize import OneValued, Quantize
from cnrfmt.encodings.recipes import recipe_for
from cnrfmt.errors import UsageError
from cnrfmt.format.schema import WEIGHT, ColumnSchema
from cnrfmt.inputs import Source2D, as_source
from cnrfmt.patterns import Patterns
from cnrfmt.tabledata import TableData
from cnrfmt.trial.report import Attempt, ColumnTrial, Trial

Progress = Callable[[int, int], None]
"""Called with how many attempts were made, and how many there are."""

_MOST_ROWS = 50_000
_MOST_BYTES = 32 << 20
"""How many rows, and bytes of them, are tried unless somebody wants more."""
_CHUNK = 4 << 20
"""Bytes of rows that are encoded at a time, as in a save."""
_LEAST_TIMED = 4 << 20
"""Fewer bytes say little about speed: they are timed several times over."""
_TIMED_SECONDS = 0.05
_MOST_TIMED = 7

_BITS = range(2, 9)
_ONE_VALUED: tuple[OneValued, ...] = ("log8", "log12", "log16", "bfloat16")
_MANY_VALUED = (
    *(Quantize(bits, method=method) for method in ("symmetric", "asymmetric", "adaptive", "lsq") for bits in _BITS),
    *(Quantize(bits, method="kmeans") for bits in (2, 3, 4)),
)


def try_quantization(
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    schemes: Iterable[Quantize] | None = None,
    tables: Iterable[str] | None = None,
    columns: Iterable[str] | None = None,
    rows: int | None = None,
    version: int | None = None,
    progress: Progress | None = None,
) -> Trial:
    """Tries ways to quantise on a sample of somebody's rows, and measures bytes, errors and speeds. Writes nothing.

    Parameters
    ----------
    source
        A container; an HDF5, safetensors or npz file, of which `convert` would make one; or tables as for `save`.
    schemes
        What to try; each method with all of its bits unless given.
    tables
        Patterns (as in `fnmatch`) of the tables to try it on.
    columns
        Patterns of the columns; the weights and the columns of one value per row unless given.
    rows
        On how many rows of each column, drawn by lot, always the same; at most 50,000 and 32 MiB of them unless given.
    version
        The version of a container.
    progress
        Called after each attempt with how many were made, and how many there are.

    Raises
    ------
    UsageError
        No float32 column to try anything on; and what `open` and `convert` raise.
    """
    names, wanted = Patterns(tables), None if columns is None else Patterns(columns, "columns")
    if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int) or rows < 1):
        raise UsageError(f"rows is an integer of at least 1, found {rows!r}")
    chosen = _MANY_VALUED if schemes is None else tuple(schemes) if isinstance(schemes, Iterable) else ()
    if not chosen or not all(isinstance(scheme, Quantize) for scheme in chosen):
        raise UsageError(f"schemes is a list of at least one Quantize, found {schemes!r}")
    path = None if isinstance(source, Mapping) else os.fspath(source)
    with _opened(source, names, version) as found:
        skipped: list[str] = []
        every = [column for name, data in found.items() for column in _columns_of(name, data)]
        if wanted is not None:
            wanted.check(list(dict.fromkeys(c.column for c in every)), path or "the tables")
        picked = [c for c in every if _is_picked(c, wanted, skipped)]
        if not picked:
            raise UsageError(
                f"{path or 'the tables'}: no float32 rows to try anything on; {'; '.join(skipped) or 'no tables'}"
            )
        todo = [(c, _schemes_for(c, chosen, everything=schemes is None)) for c in picked]
        total = sum(len(tried) for _, tried in todo)
        trial, done = Trial(path, skipped=skipped), 0
        for column, tried in todo:
            sample = _sample(column.source, rows)
            attempts = []
            for quantize in tried:
                attempts.append(_attempt(column, quantize, sample))
                done += 1
                if progress is not None:
                    progress(done, total)
            trial.columns.append(column.result(len(sample), attempts))
        return trial


@contextmanager
def _opened(source: Any, names: Patterns, version: int | None) -> Iterator[Mapping[str, Any]]:
    if isinstance(source, Mapping):
        if version is not None:
            raise UsageError("only containers have versions; leave version out")
        names.check(list(source), "the tables")
        yield {name: value for name, value in source.items() if name in names}
        return
    from cnrfmt.integrations.convert import opened_tables

    with opened_tables(source, names, version) as found:
        yield found


@dataclass(frozen=True)
class _Column:
    table: str
    column: str
    source: Source2D
    is_quantised: bool

    @property
    def width(self) -> int:
        """Elements of a row."""
        return self.source.shape[1] if len(self.source.shape) == 2 else 1

    @property
    def schema(self) -> ColumnSchema:
        """As a container would have it."""
        return ColumnSchema(self.column, self.source.dtype.name, len(self.source.shape) == 1, bytes(4))

    def result(self, tried_rows: int, attempts: list[Attempt]) -> ColumnTrial:
        """What was tried, the smallest first."""
        marked = [replace(attempt, best=_is_best(attempt, attempts)) for attempt in attempts]
        marked.sort(key=lambda attempt: (attempt.bytes_per_row, attempt.mean_error))
        return ColumnTrial(
            self.table,
            self.column,
            self.source.shape[0],
            self.width,
            tried_rows,
            self.schema.per_row,
            self.is_quantised,
            tuple(marked),
        )


def _columns_of(name: str, value: Any) -> Iterator[_Column]:
    data = value if isinstance(value, TableData) else TableData(value)
    for column, given in {WEIGHT: data.values, **data.columns}.items():
        source = as_source(given, what=f"table {name!r}, column {column!r}")
        if column == WEIGHT and len(source.shape) != 2:
            raise UsageError(f"table {name!r}: a table is a matrix of rows x dim, found shape {source.shape}")
        yield _Column(name, column, source, getattr(given, "is_quantised", False))


def _is_picked(column: _Column, wanted: Patterns | None, skipped: list[str]) -> bool:
    """Whether a column is to be tried; where only its data type or its rows are in the way, that is noted."""
    if wanted is None:
        if column.column != WEIGHT and not column.schema.per_row:
            return False
    elif column.column not in wanted:
        return False
    if column.source.dtype != np.float32 or not column.source.shape[0]:
        why = "no rows" if column.source.dtype == np.float32 else column.source.dtype.name
        skipped.append(f"{column.table}.{column.column} ({why})")
        return False
    return True


def _schemes_for(column: _Column, schemes: tuple[Quantize, ...], *, everything: bool) -> list[Quantize]:
    if not column.schema.per_row:
        return list(schemes)
    if everything:
        return [Quantize(one_valued=kind) for kind in _ONE_VALUED]
    # Schemes that say the same of columns of one value per row are one.
    return list({(scheme.one_valued, scheme.max_error): scheme for scheme in schemes}.values())


def _sample(source: Source2D, rows: int | None) -> Array:
    """Rows drawn by lot, always the same ones, in their order: a matrix."""
    count = source.shape[0]
    row_bytes = 4 * (source.shape[1] if len(source.shape) == 2 else 1)
    most = min(_MOST_ROWS, max(1, _MOST_BYTES // row_bytes)) if rows is None else rows
    if most >= count:
        return source.rows(0, count).reshape(count, -1)
    positions = np.random.default_rng(0).choice(count, most, replace=False, shuffle=False)
    return source.take(np.sort(positions).astype(np.int64)).reshape(most, -1)


def _attempt(column: _Column, quantize: Quantize, sample: Array) -> Attempt:
    schema = column.schema
    source = as_source(sample.reshape(-1) if schema.per_row else sample, what=f"table {column.table!r}")
    key = (column.table, column.column)
    recipe = recipe_for(column.table, schema, source, {key: quantize})
    encoded = _encode(recipe, sample)
    exact = sum(len(part.bad) for part in encoded)
    held = len(sample) - exact
    rows, width = column.source.shape[0], column.width
    layout = recipe.layout
    size = (layout.section_bytes(rows, width) + layout.codebook_bytes(rows)) / rows + 4 * width * exact / len(sample)
    timed, again = sample, encoded
    if sample.nbytes < _LEAST_TIMED:
        timed = np.resize(sample, (_LEAST_TIMED // (4 * width) + 1, width))
        again = _encode(recipe, timed)
    decoded = np.empty_like(timed)
    return Attempt(
        quantize,
        recipe,
        size,
        size / (4 * width),
        sum(part.error_sum for part in encoded) / max(1, held),
        max(part.worst_error for part in encoded),
        exact,
        timed.nbytes / _seconds(lambda: _encode(recipe, timed)),
        timed.nbytes / _seconds(lambda: _decode(recipe, again, decoded)),
    )


def _step(recipe: Recipe, width: int) -> int:
    step = encoder(recipe).step
    return max(1, _CHUNK // (4 * width) // step) * step


def _encode(recipe: Recipe, rows: Array) -> list[Encoded]:
    step = _step(recipe, rows.shape[1])
    return [encoder(recipe).encode(rows[start : start + step]) for start in range(0, len(rows), step)]


def _decode(recipe: Recipe, encoded: list[Encoded], out: Array) -> None:
    code, step = coder(recipe.layout), _step(recipe, out.shape[1])
    for start, part in zip(range(0, len(out), step), encoded, strict=True):
        books = None if part.codebooks is None else code.codebooks(part.codebooks)
        code.decode_range(part.data, 0, out[start : start + step], 0, books)


def _seconds(work: Callable[[], object]) -> float:
    """The median of several runs, about; the first, in which memory is touched, doesn't count unless it is long."""
    times: list[float] = []
    for _ in range(_MOST_TIMED):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
        if sum(times) > _TIMED_SECONDS:
            break
    counted = sorted(times[1:] or times)
    return counted[len(counted) // 2]


def _is_best(attempt: Attempt, attempts: list[Attempt]) -> bool:
    """Whether no other attempt is better in bytes or in error and no worse in the other."""
    mine = attempt.bytes_per_row, attempt.mean_error
    others = ((a.bytes_per_row, a.mean_error) for a in attempts)
    return not any(size <= mine[0] and error <= mine[1] and (size, error) != mine for size, error in others)
