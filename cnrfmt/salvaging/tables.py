"""One table of a damaged version: what of it is lost, and the rows that a new container gets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from cnrfmt import dtypes
from cnrfmt.arrays import Array, Bytes, Ids
from cnrfmt.encodings import Encoded, Recipe, coder, encoder
from cnrfmt.format.encoding import RawLayout
from cnrfmt.format.manifest import Manifest
from cnrfmt.format.schema import WEIGHT, ColumnSchema, TableSchema
from cnrfmt.format.scheme import Errors
from cnrfmt.salvaging.layers import Opened
from cnrfmt.salvaging.report import Loss, SalvagedTable
from cnrfmt.salvaging.runs import EVERY, NONE, Runs, common, count, inside, merged, minus, run, runs_of
from cnrfmt.salvaging.steps import TableSteps
from cnrfmt.salvaging.strips import LOST, Strip
from cnrfmt.table_writes import ColumnWrite, EncodedRows, RowIds, TableWrite

_CHUNK = 1 << 20
_SPARSE = 4
"""A dense table of which fewer than one row in so many is stored gets a row index instead of all its rows."""
_FEW = 1 << 16
"""Unless it has no more rows than this."""


class TableSalvage:
    """One table of a version.

    In a dense table, a lost row of a column reads as the column's fill value. In a keyed table, a key whose weight
    is lost is left out with all its columns; where only another column of it is lost, that reads as the fill value.
    """

    def __init__(self, manifest: Manifest, segments: Sequence[Opened], schema: TableSchema) -> None:
        self.schema = schema
        self._steps = TableSteps(manifest, segments, schema)
        self._strips = {c.name: self._steps.strips(c) for c in schema.columns}
        self._lost: dict[str, Runs] = dict.fromkeys(self._strips, NONE)
        self.losses: list[Loss] = []
        if schema.keyed:
            self._judge_keys()
        else:
            self._judge_rows()

    def summary(self) -> SalvagedTable:
        """How many rows the new table has, and how many are lost."""
        lost = count(merged([loss.rows for loss in self.losses if loss.exact]))
        rows = len(self.keys) if self.schema.rows is None else self.schema.rows
        unsure = [loss.count for loss in self.losses if not loss.exact]
        most = lost + sum(number or 0 for number in unsure)
        return SalvagedTable(self.schema.name, self.schema.keyed, rows, lost, not unsure, most, None in unsure)

    def _judge_rows(self) -> None:
        assert self.schema.rows is not None
        for column in self._strips:
            found = self._column_losses(column, run(0, self.schema.rows - 1))
            self._lost[column] = merged(list(found.values()))
            for (rule, place), rows in found.items():
                self._add(column, rows, rule, place)

    def _column_losses(self, column: str, among: Runs) -> dict[tuple[str, str], Runs]:
        """The lost rows of a column by rule and place; each row once."""
        found: dict[tuple[str, str], Runs] = {}
        seen: Runs = NONE
        for strip in self._strips[column]:
            for rows, layer in strip.losses(among):
                new = minus(rows, seen)
                if len(new):
                    key = layer.rule, layer.place
                    found[key] = merged([found.get(key, NONE), new])
                    seen = merged([seen, new])
        return found

    def _add(self, column: str | None, rows: Runs, rule: str, place: str, exact: bool = True) -> None:
        self.losses.append(Loss(self.schema.name, column, None, rows, count(rows), exact, rule, place))

    def _judge_keys(self) -> None:
        for runs, number, rule, place in self._steps.doubts():
            self.losses.append(Loss(self.schema.name, None, None, runs, number, False, rule, place))
        if self._existence.is_damaged:
            for rows, layer in self._existence.losses(self._candidates):
                self._add(None, rows, layer.rule, layer.place, exact=False)
        found = self._column_losses(WEIGHT, EVERY)
        self._lost[WEIGHT] = merged(list(found.values()))
        for (rule, place), rows in found.items():
            if len(mine := common(rows, self._existing)):
                self._add(None, mine, rule, place)
        for column in list(self._strips)[1:]:
            found = self._column_losses(column, EVERY)
            self._lost[column] = merged(list(found.values()))
            for (rule, place), rows in found.items():
                # What a row lost that is left out needn't be said again.
                if len(mine := common(minus(rows, self._lost[WEIGHT]), self._existing)):
                    self._add(column, mine, rule, place)

    @cached_property
    def _existence(self) -> Strip:
        return self._steps.existence()

    @cached_property
    def _candidates(self) -> Runs:
        return self._existence.stored()

    @cached_property
    def _existing(self) -> Runs:
        """The keys that are known to be there."""
        return runs_of(self._existing_keys)

    @cached_property
    def _existing_keys(self) -> Ids:
        every = _ids_of(self._candidates)
        if all(layer.part is not None for layer in self._existence.layers):
            # Nothing was deleted, and nothing is in doubt.
            return every
        kept = [
            chunk[self._existence.find(chunk)[0] >= 0]
            for start in range(0, len(every), _CHUNK)
            for chunk in (every[start : start + _CHUNK],)
        ]
        return np.concatenate(kept) if kept else every

    @cached_property
    def keys(self) -> Ids:
        """The keys of the new table."""
        return self._existing_keys[~inside(self._existing_keys, self._lost[WEIGHT])]

    def writes(self) -> tuple[TableWrite, TableWrite | None]:
        """What the new container's baseline holds of the table, and what a delta behind it does, if anything.

        A baseline has to hold all rows of a dense column or none, so one that is mostly empty goes into a delta.
        """
        whole: list[ColumnWrite] = []
        sparse: list[ColumnWrite] = []
        for column in self.schema.columns:
            if self.schema.rows is None:
                whole += self._keyed_writes(column)
                continue
            kept = [minus(common(s.stored(), run(0, self.schema.rows - 1)), self._lost[column.name])
                    for s in self._strips[column.name]]
            stored = sum(count(rows) for rows in kept) // len(kept)
            if stored and (self.schema.rows <= _FEW or self.schema.rows <= _SPARSE * stored):
                every = RowIds(self.schema.rows)
                whole += [self._write(column, strip, every) for strip in self._strips[column.name]]
            elif any(len(rows) for rows in kept):
                sparse += [
                    self._write(column, strip, _row_ids(_ids_of(rows)))
                    for strip, rows in zip(self._strips[column.name], kept, strict=True)
                    if len(rows)
                ]
        delta = TableWrite(self.schema, columns=_shared(sparse)) if sparse else None
        return TableWrite(self.schema, columns=_shared(whole)), delta

    def _keyed_writes(self, column: ColumnSchema) -> list[ColumnWrite]:
        found = []
        for strip in self._strips[column.name]:
            ids = self.keys
            if column.name != WEIGHT:
                # The rows that were never written, and those that were lost, are left out: they read as the fill.
                kept = minus(strip.stored(), self._lost[column.name])
                ids = ids[inside(ids, kept)]
                ids = _concatenated([c[strip.find(c)[0] >= 0] for c in _chunks(ids)])
            if len(ids):
                found.append(self._write(column, strip, _row_ids(ids)))
        return found

    def _write(self, column: ColumnSchema, strip: Strip, rows: RowIds) -> ColumnWrite:
        raw = Recipe(RawLayout(column.dtype))
        recipe, errors = strip.recipe(raw)
        if strip.summed or recipe.layout.codebook_bytes(1):
            # Sums have no codes that they were stored in; a codebook's rows are never all there again, in their order.
            recipe, errors = raw, Errors()
        source = StoredRows(column, strip, recipe, errors, rows, self._lost[column.name])
        return ColumnWrite(column, source, recipe, rows, (strip.first, strip.end))


def _ids_of(runs: Runs) -> Ids:
    """The numbers in runs, one by one."""
    lengths = runs[:, 1] - runs[:, 0] + 1
    begins = np.repeat(runs[:, 0] - (np.cumsum(lengths) - lengths), lengths)
    return begins + np.arange(len(begins), dtype=np.int64)


def _row_ids(ids: Ids) -> RowIds:
    return RowIds(len(ids), ids)


def _chunks(ids: Ids) -> list[Ids]:
    return [ids[start : start + _CHUNK] for start in range(0, len(ids), _CHUNK)]


def _concatenated(parts: list[Ids]) -> Ids:
    return np.concatenate([np.empty(0, np.int64), *parts])


def _shared(writes: list[ColumnWrite]) -> tuple[ColumnWrite, ...]:
    """The same, with one object for equal rows, so that one row index serves them all."""
    known: list[RowIds] = []
    found = []
    for write in writes:
        rows = write.rows
        assert rows is not None
        for other in known:
            if rows.count == other.count and (rows is other or _equal(rows, other)):
                rows = other
                break
        else:
            known.append(rows)
        found.append(ColumnWrite(write.column, write.source, write.recipe, rows, write.elements))
    return tuple(found)


def _equal(a: RowIds, b: RowIds) -> bool:
    return a.ids is not None and b.ids is not None and np.array_equal(a.ids, b.ids)


class StoredRows(EncodedRows):
    """The rows of a strip as they are stored, to be written anew: quantised ones keep their codes.

    Rows in `lost`, and rows that were never written, are those of the fill value.
    """

    def __init__(
        self, column: ColumnSchema, strip: Strip, recipe: Recipe, errors: Errors, rows: RowIds, lost: Runs
    ) -> None:
        self._strip, self._recipe, self._rows, self._lost = strip, recipe, rows, lost
        self._layout, self.errors = recipe.layout, errors
        self._width = strip.end - strip.first
        self.dtype = dtypes.dtype_of(column.dtype)
        self._fill = np.frombuffer(column.fill, self.dtype)[0]
        self._encoded_fill = self._encode_fill()

    def _encode_fill(self) -> Bytes | None:
        """A row of the fill value under the layout; None where the layout can't hold it exactly."""
        found = self._encode_again(np.full((1, self._width), self._fill, self.dtype))
        return None if len(found.bad) else found.data.copy()

    def _encode_again(self, rows: Array) -> Encoded:
        """Encodes rows anew, and says which of them that would change."""
        data, bad, *_ = encoder(self._recipe).encode(rows)
        again = np.empty_like(rows)
        coder(self._layout).decode_range(data, 0, again)
        changed = (again.view(np.uint8) != rows.view(np.uint8)).any(axis=1)
        changed[bad] = True
        if not self._layout.stands_alone and changed.any():
            # Their slots have to be zero, which the code of a zero is.
            data, _, *_ = encoder(self._recipe).encode(np.where(changed[:, None], np.zeros_like(rows), rows))
        return Encoded(data, np.flatnonzero(changed).astype(np.int64, copy=False))

    def _found(self, ids: Ids) -> list[tuple[int, Ids, Ids]]:
        """The layers that give the rows of these ids: number, positions there, places in `ids`; -1 for the fill."""
        choice, positions = self._strip.find(ids)
        choice[inside(ids, self._lost)] = LOST
        return [
            (max(number, -1), positions[where], where)
            for number in np.unique(choice).tolist()
            for where in (np.flatnonzero(choice == number).astype(np.int64),)
        ]

    def encoded(self, start: int, stop: int) -> Encoded:
        """The stored bytes of rows start .. stop - 1, and which of them this layout doesn't hold."""
        ids = self._ids(np.arange(start, stop, dtype=np.int64))
        if isinstance(self._layout, RawLayout):
            return Encoded(self._values(ids).reshape(-1).view(np.uint8), np.empty(0, np.int64))
        if not self._layout.stands_alone:
            return self._encode_again(self._values(ids))
        out = np.zeros((len(ids), self._layout.row_bytes(self._width)), np.uint8)
        other = []
        for number, positions, where in self._found(ids):
            if number < 0:
                if self._encoded_fill is None:
                    other.append(where)
                else:
                    out[where] = self._encoded_fill
                continue
            layer = self._strip.layers[number]
            assert layer.part is not None
            if layer.part.layout == self._layout and layer.part.elements == (self._strip.first, self._strip.end):
                layer.copy(positions, out, where)
                if not self._is_legal(out, where):
                    out[where] = 0
                    other.append(where)
            else:
                other.append(where)
        return Encoded(out.reshape(-1), np.sort(_concatenated(other)))

    def _is_legal(self, out: Bytes, where: Ids) -> bool:
        """Whether these rows keep the rules of their encoding. Others are written as what they decode to."""
        rows = out[where].reshape(-1)
        code = coder(self._layout)
        return (
            code.find_padding(rows, 0, len(where), self._width) < 0
            and code.find_parameter(rows, 0, len(where), self._width) < 0
        )

    def take(self, positions: Ids) -> Array:
        """The decoded rows at these positions."""
        return self._values(self._ids(positions))

    def _ids(self, positions: Ids) -> Ids:
        return positions if self._rows.ids is None else self._rows.ids[positions]

    def _values(self, ids: Ids) -> Array:
        out = np.empty((len(ids), self._width), self.dtype)
        if self._strip.summed:
            choice, _ = self._strip.find(ids)
            sound = (choice > LOST) & ~inside(ids, self._lost)
            out[sound], out[~sound] = self._strip.read(ids[sound], self._fill), self._fill
            return out
        for number, positions, where in self._found(ids):
            if number < 0:
                out[where] = self._fill
            else:
                self._strip.layers[number].decode(positions, out, where, self._strip.first, self._strip.end)
        return out
