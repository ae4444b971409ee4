"""Which encoding each table of a run has: the closed loop on a grid where it can be had, else row-wise; and why.

One rule: `encoding` names the family. ``"rowwise"`` goes by `bits` or by the number of restores, and by `quantize`.
``"grid"`` goes by `learning_rate` and the number of restores, a `Grid` by what it says itself. ``"auto"`` is a grid for
each table of which all is known that it takes, and row-wise for the others; with `bits` or `quantize` it is row-wise.
A dict of patterns says it for the tables that it names, and the others are as under ``"auto"``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cnrfmt.checkpointing.bits import MOST_BITS, bits_for, choices_for, chosen_bits
from cnrfmt.checkpointing.contents import Live
from cnrfmt.encodings.grid import ACTIVITIES, CHECKPOINTS, Grid, exponent_of
from cnrfmt.encodings.grid_plan import GridPlan, coarseness_of, is_counted
from cnrfmt.encodings.quantize import Choice, Choices, Quantize, choice_for, matching, said_of
from cnrfmt.errors import UsageError
from cnrfmt.format.schema import WEIGHT, TableSchema
from cnrfmt.inputs import as_source

Encoding = str | Grid | Mapping[Any, Choice | None]
"""``"auto"``, ``"grid"``, ``"rowwise"``, a `Grid`, or a dict of patterns as `quantize` has them."""

_FAMILIES = ("auto", "grid", "rowwise")
_LEAST_DIM = 4
"""Rows of fewer elements take most of their bytes in ids and optimizer state, and mean a lot each: often biases."""
ANY_NUMBER = 1_000_000
"""What nothing said of restores may mean."""


@dataclass(frozen=True)
class Seen:
    """What decides of a table: its name, its dim, whether its weights are float32, and its other columns.

    `is_part` tells that other ranks may have further columns, of which it isn't known yet.
    """

    name: str
    dim: int
    is_float32: bool
    columns: tuple[str, ...]
    is_part: bool = False

    @staticmethod
    def live(table: Live, before: TableSchema | None = None) -> Seen:
        """Of a table that the trainer hands over, and that goes on from one with this schema, or is new."""
        values = as_source(table.there.values, what=f"table {table.name!r}")
        of_dim = None if table.place is None else table.place.of_dim
        dim = int(values.shape[-1]) if of_dim is None else int(of_dim)
        is_part = before is None and table.place is not None and table.place.elements is not None
        known = () if before is None else Seen.stored(before).columns
        return Seen(table.name, dim, bool(values.dtype == np.float32), (*table.there.columns, *known), is_part)

    def whole(self, columns: tuple[str, ...]) -> Seen:
        """The same of the whole table, which has these columns."""
        return replace(self, columns=columns, is_part=False)

    @staticmethod
    def stored(schema: TableSchema) -> Seen:
        """Of a table of a container."""
        weight, *others = schema.columns
        columns = tuple(column.name for column in others if column.name != CHECKPOINTS)
        return Seen(schema.name, schema.dim, weight.dtype == "float32", columns)


Chain = Mapping[str, GridPlan | None]
"""Of each table that goes on from the version which a delta is put on, the grid that it is on; empty for a baseline."""


@dataclass(frozen=True)
class Chosen:
    """How a checkpoint stores its tables: for a plan, in words by table, and the bits of what is row-wise.

    `grids` are those of tables that are on none yet, to be planned by their rows; `counted` are the tables on a grid
    whose steps follow from the checkpoints that rows were in. `argument` is what the caller gave the choices as.
    """

    choices: Choices
    words: dict[str, str]
    bits: int
    grids: dict[str, Grid]
    counted: frozenset[str]
    argument: str


@dataclass(frozen=True)
class EncodingRule:
    """What a manager was told of encodings; see the module for how it goes together.

    `counts` tells that the checkpoints which a row was in say how active it is, where nobody says what does: each delta
    goes on from the one before it.
    """

    encoding: Encoding
    bits: int | None
    quantize: Choices
    expected: float | None
    learning_rate: float | None
    counts: bool = False

    @property
    def may_be_grid(self) -> bool:
        """Whether any table may be on a grid."""
        if isinstance(self.encoding, Mapping) and any(isinstance(one, Grid) for one in self.encoding.values()):
            return True
        return isinstance(self.encoding, Grid) or self.encoding == "grid" or not self._why_rowwise

    def bits_now(self, restores: int) -> int:
        """Bits per value of row-wise tables after so many restores."""
        if self.bits is not None:
            return self.bits
        return MOST_BITS if self.expected is None else chosen_bits(self.expected, restores)

    def choose(self, tables: Iterable[Seen], restores: int, chain: Chain) -> Chosen:
        """How these tables are stored after so many restores. One that the chain has on a grid stays on that."""
        argument = "encoding" if isinstance(self.encoding, Mapping) else "quantize"
        with said_of(argument):
            return self._choose(tables, restores, chain, argument)

    def _choose(self, tables: Iterable[Seen], restores: int, chain: Chain, argument: str) -> Chosen:
        bits = self.bits_now(restores)
        quantize = self.encoding if isinstance(self.encoding, Mapping) else self.quantize
        by_name, words, raw = dict[str, Choice | None](), dict[str, str](), list[str]()
        for table in tables:
            asked = self._asked(table)
            found: Choice | str | None = asked if isinstance(asked, str) else self._finer(asked, restores)
            if isinstance(asked, Grid):
                found = chain.get(table.name) or found
            if isinstance(found, Grid | GridPlan):
                assert isinstance(asked, Grid)
                by_name[table.name] = found
                words[table.name] = self._grid_words(found, asked, restores)
            else:
                if not table.is_float32:
                    raw.append(table.name)
                choice, _ = choice_for(choices_for(bits, quantize, unquantisable=raw), table.name, WEIGHT)
                words[table.name] = f"{_words(choice)}{f': {asked}' if asked else ''}"
        choices = choices_for(bits, quantize, unquantisable=raw)
        if by_name:
            choices = {**(choices if isinstance(choices, Mapping) else {"*": choices}), **by_name}
        grids = {name: one for name, one in by_name.items() if isinstance(one, Grid)}
        counted = {name for name, one in by_name.items() if is_counted(one)}
        return Chosen(choices, words, bits, grids, frozenset(counted), argument)

    def is_too_coarse(self, table: Seen, restores: int, plan: GridPlan | None) -> bool:
        """Whether a table that is on a grid would be on a finer one, were it to begin anew."""
        asked = self._asked(table)
        if not isinstance(asked, Grid) or plan is None:
            return False
        return coarseness_of(plan.step) > self._finer(asked, restores).coarseness

    def _asked(self, table: Seen) -> Grid | str:
        """The grid that a table is to be on; or why it is on none, empty where that is what was said."""
        found = self._said(table)
        return found.counted if isinstance(found, Grid) and self.counts else found

    def _said(self, table: Seen) -> Grid | str:
        encoding = self.encoding
        if isinstance(encoding, Mapping) and matching(encoding, {table.name: (WEIGHT,)}):
            found, _ = choice_for(encoding, table.name, WEIGHT)
            return found if isinstance(found, Grid) else ""
        if not table.is_float32:
            return "weights aren't float32"
        if isinstance(encoding, Grid):
            return encoding
        if encoding == "grid":
            restores = ANY_NUMBER if self.expected is None else self.expected
            return Grid(learning_rate=self.learning_rate, restores=restores)
        if why := self._why_rowwise:
            return "" if encoding == "rowwise" else why
        if table.dim < _LEAST_DIM:
            return f"rows of fewer than {_LEAST_DIM} elements take little anyway"
        if not table.is_part and not any(name in table.columns for name in ACTIVITIES):
            return f"no column tells how far the optimizer moves a row ({', '.join(ACTIVITIES)})"
        return Grid(learning_rate=self.learning_rate, restores=self.expected)

    @property
    def _why_rowwise(self) -> str:
        """What keeps all tables from a grid that aren't named; empty if nothing does."""
        if self.encoding == "rowwise" or self.bits is not None or self.quantize is not None:
            return "it was asked for"
        if self.learning_rate is None:
            return "no learning rate was given"
        return "how many restores are expected wasn't said" if self.expected is None else ""

    @staticmethod
    def _finer(grid: Grid, restores: int) -> Grid:
        """A grid for as many restores as there were, if these are more than it is for."""
        return grid if grid.restores is None else replace(grid, restores=max(grid.restores, restores))

    def _grid_words(self, found: Grid | GridPlan, asked: Grid, restores: int) -> str:
        size = found.size if isinstance(found, Grid) else found.step.size
        is_coarse = isinstance(found, GridPlan) and coarseness_of(found.step) > self._finer(asked, restores).coarseness
        # Steps are powers of two; what was asked for mostly isn't one.
        stored = 2.0 ** exponent_of(size)
        words, rate = f"grid, steps of {stored:.6g}", asked.learning_rate
        if rate is not None:
            rounded = "" if stored == size else f"; {size / rate:.3g} to the nearest power of 2"
            words += f" ({_learning_rates(stored / rate)}{rounded})"
        elif stored != size:
            words += f" ({size:.6g} to the nearest power of 2)"
        if asked.moments == "raw" and not (isinstance(found, GridPlan) and found.has_moments):
            words += ", moments raw"
        if self._finer(asked, restores).coarseness < asked.coarseness:
            was = "was" if asked.restores == 1 else "were"
            words += f": {restores} restores where {asked.restores:g} {was} expected"
        return f"{words}, finer from the next baseline on" if is_coarse else words


def encoding_rule(
    encoding: Any, bits: int | None, quantize: Choices, expected: float | None, learning_rate: Any
) -> EncodingRule:
    """The rule that a caller asks for, its numbers checked but `bits` and `quantize`; raises `UsageError`."""
    if isinstance(learning_rate, np.integer | np.floating):
        learning_rate = learning_rate.item()
    if learning_rate is not None:
        is_number = isinstance(learning_rate, int | float) and not isinstance(learning_rate, bool)
        if not is_number or not 0 < learning_rate <= sys.float_info.max:
            raise UsageError(f"learning_rate must be a number above 0, found {learning_rate!r}")
    if expected is not None:
        bits_for(expected)
        if bits is not None:
            raise UsageError("give bits, or the number of restores that they follow from; not both")
    if learning_rate is not None:
        # One whose multiples no weights could have is refused here.
        Grid(learning_rate=learning_rate, restores=ANY_NUMBER if expected is None else expected)
    if not isinstance(encoding, Grid | Mapping) and encoding not in _FAMILIES:
        raise UsageError(
            f"encoding is one of {', '.join(map(repr, _FAMILIES))}, a cnrfmt.Grid, or a dict of patterns to Grid, "
            f"Quantize or None; found {encoding!r}"
        )
    for pattern, value in encoding.items() if isinstance(encoding, Mapping) else ():
        if value is not None and not isinstance(value, Grid | Quantize):
            raise UsageError(
                f"encoding[{pattern!r}]: patterns lead to a cnrfmt.Grid, a cnrfmt.Quantize or None (raw rows), "
                f"found {value!r}"
            )
    says_rowwise = next((n for n, x in (("bits", bits), ("quantize", quantize)) if x is not None), None)
    if says_rowwise is not None and encoding not in ("auto", "rowwise"):
        raise UsageError(f'{says_rowwise}= is for encoding="rowwise"; leave it out, or say encoding={{pattern: ...}}')
    if learning_rate is not None and (encoding == "rowwise" or says_rowwise is not None):
        other = f"{says_rowwise}=" if says_rowwise is not None else 'encoding="rowwise"'
        raise UsageError(f'learning_rate= is for encoding="grid" or "auto", and {other} asks for rows without it')
    if isinstance(encoding, Grid) and (learning_rate, expected) != (None, None):
        raise UsageError("encoding: the Grid says learning_rate and restores itself; give them to it alone")
    if encoding == "grid" and learning_rate is None:
        raise UsageError('encoding="grid" needs learning_rate=, whose multiples its steps are; or give a cnrfmt.Grid')
    return EncodingRule(encoding, bits, quantize, expected, learning_rate)


def _learning_rates(number: float) -> str:
    text = f"{number:.3g}"
    return f"{text} learning rate{'' if text == '1' else 's'}"


def _words(choice: Choice | None) -> str:
    if not isinstance(choice, Quantize):
        return "raw"
    return "row-wise, bits by the rows" if choice.bits == "auto" else f"row-wise {choice.bits} bits"
