"""Parts of integers as one: what residual parts add to each row is added up, exactly, and encoded again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cnrfmt.arrays import Array
from cnrfmt.checkpointing.compacting.merged_rows import errors_of, fill_slot
from cnrfmt.checkpointing.compacting.windows import Window, claims, without_base
from cnrfmt.encodings import Recipe
from cnrfmt.encodings.integer_sections import GivenCodes, encode_section
from cnrfmt.encodings.integers import Integers, bounds
from cnrfmt.errors import DamagedError
from cnrfmt.format.encoding import GridLayout, IntegerLayout, LogLayout
from cnrfmt.format.schema import ColumnSchema
from cnrfmt.format.scheme import Errors
from cnrfmt.layer import Layer
from cnrfmt.resolve import Strip
from cnrfmt.table_writes import EncodedColumn, RowIds

_NOBODYS, _RESIDUAL, _ABSOLUTE, _OTHER = range(4)
"""What is known of a row: nothing, sums without and with a base, or values that aren't integers."""


@dataclass(frozen=True)
class IntegerColumn:
    """A part whose rows are sums of integers of one grid, from the layers of a strip, the newest first.

    `layers` are those that may give the rows; where one that isn't of the grid does, they aren't held. Rows that no
    layer gives, or that were deleted, are `slot`; without one they aren't held either.
    """

    column: ColumnSchema
    strip: Strip
    recipe: Recipe
    rows: RowIds
    layers: Sequence[Layer]
    slot: int | None

    @property
    def width(self) -> int:
        """Elements of a row."""
        return self.strip.end - self.strip.first

    @property
    def nbytes(self) -> int:
        """Bytes of the parts of integers that are added up."""
        return sum(x.segment.toc.sections[x.part.section][1] for x in self.layers if x.part and self._is_added(x))

    def encoded(self, start: int, stop: int) -> EncodedColumn:
        """The section of rows start .. stop - 1 of the part.

        Raises
        ------
        DamagedError
            What residual rows add to is missing, or nothing that they could (rule `residual-base`); or a sum is
            out of range, or more than two versions can differ by (rule `grid-range`).
        """
        from cnrfmt.kernels import integers as kernel

        sums = np.zeros((stop - start, self.width), np.int32)
        known = np.full(stop - start, _NOBODYS, np.uint8)
        for number, positions, targets in claims(Window.of(self.rows, start, stop), self.layers):
            layer = self.layers[number]
            part = layer.integers if self._is_added(layer) else None
            if part is not None:
                known[targets] = _RESIDUAL if part.is_residual else _ABSOLUTE
                for some, block in part.rows_at(positions, targets, self.strip.elements):
                    kernel.add_at(sums, some, block)
            else:
                known[targets] = _NOBODYS if layer.part is None else _OTHER
        return self._finished(start, sums, known)

    def _finished(self, start: int, sums: Integers, known: Array) -> EncodedColumn:
        layout, residual = self._layout, self._layout.is_residual
        if (wrong := known == (_ABSOLUTE if residual else _RESIDUAL)).any():
            row = self._id_of(start + int(np.argmax(wrong)))
            raise without_base(self.layers[-1], f"an absolute part that has row {row}")
        nobodys = known == _NOBODYS
        if self.slot is not None:
            sums[nobodys] = self.slot
            nobodys[:] = False
        bad = np.flatnonzero(nobodys | (known == _OTHER)).astype(np.int64, copy=False)
        self._check(start, sums)
        exponents = np.zeros(len(sums), np.uint8)
        if isinstance(layout, GridLayout):
            from cnrfmt.kernels import exponents as kernel

            kernel.take_out(sums, exponents)
        layout, data = encode_section(layout, GivenCodes(sums, exponents), *sums.shape)
        return EncodedColumn(
            self.column,
            self.strip.elements,
            Recipe(layout, self.recipe.scheme),
            self._errors,
            data,
            bad,
            self._exact(start, bad),
        )

    def _check(self, start: int, sums: Integers) -> None:
        from cnrfmt.kernels import integers as kernel

        least, most = bounds(self._layout)
        if self._layout.is_residual:
            # What no two versions differ by.
            least, most = least - most, most - least
        at = int(kernel.out_of_range(sums, least, most))
        if at >= 0:
            raise DamagedError(
                "grid-range",
                f"{self.layers[0].segment.place}, column {self.column.name!r}, row {self._id_of(start + at)}",
                expected=f"sums from {least} to {most}",
                found="others",
            )

    def _exact(self, start: int, bad: Array) -> Array:
        ids = bad + (self.rows.first + start) if self.rows.ids is None else self.rows.ids[start:][bad]
        out = np.empty((len(bad), self.width), np.float32)
        self.strip.read_ids(ids, out)
        return out

    def _id_of(self, position: int) -> int:
        return self.rows.first + position if self.rows.ids is None else int(self.rows.ids[position])

    @property
    def _layout(self) -> IntegerLayout:
        layout = self.recipe.layout
        assert isinstance(layout, IntegerLayout)
        return layout

    def _is_added(self, layer: Layer) -> bool:
        layout = None if layer.part is None else layer.part.layout
        return isinstance(layout, IntegerLayout) and layout.grid == self._layout.grid

    @cached_property
    def _errors(self) -> Errors:
        return errors_of([x for x in self.layers if self._is_added(x)])


def integer_of_fill(recipe: Recipe, fill: Array) -> int | None:
    """The integer that reads as the fill value, bit for bit; None where there is none."""
    layout = recipe.layout
    if isinstance(layout, LogLayout):
        slot = fill_slot(Recipe(replace(layout, kind="absolute", payload="fixed", group=None), recipe.scheme), 1, fill)
        return None if slot is None else int.from_bytes(slot.tobytes(), "little")
    assert isinstance(layout, GridLayout)
    found = float(fill) * 2.0**-layout.floor
    if not (abs(found) <= bounds(layout)[1] and found.is_integer()):
        return None
    return int(found) if np.float32(int(found) * 2.0**layout.floor).tobytes() == fill.tobytes() else None
