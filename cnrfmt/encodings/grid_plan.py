"""What a baseline fixes for a table on a grid: its unit, the rule of its steps, and the codes of other columns.

Every later writer and every rank takes the same: as parts of the chain say it, or as ranks that begin a table together
work it out of what each of them has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from cnrfmt.arrays import Array, Bytes, Ids
from cnrfmt.encodings import moments
from cnrfmt.encodings.activity import ActivityCounts, count_activity, median_activity
from cnrfmt.encodings.base import Recipe
from cnrfmt.encodings.grid import ACTIVITIES, CHECKPOINTS, FINER, GROUP_VALUES, Grid, Payload, exponent_of, floor_of
from cnrfmt.errors import UsageError
from cnrfmt.format.encoding import GridLayout, LogLayout
from cnrfmt.format.schema import WEIGHT, ColumnSchema, TableSchema
from cnrfmt.format.scheme import Scheme, Step

_SAMPLE = 1 << 20
"""Rows of a writer that the reference is the median of, at the most."""
_LOG_BITS = {"log12": 12, "log16": 16}
_GROWTH, _SHRINKING = 8, 3
"""Octaves that logarithmic codes have above and below the values that there are when they are chosen."""
_MANTISSA = 23
_LEAST_NORMAL, _INFINITE = 0x00800000, 0x7F800000
_EMPTY_BASE, _EMPTY_SHIFT = 0x33800000, 16
"""Where nothing is known of a column, 12-bit codes go from 2^-24 to 2^8."""


class Source(Protocol):
    """Rows of a column."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows, and elements if there are dim of them."""

    def rows(self, start: int, stop: int) -> Array:
        """The rows start .. stop - 1."""

    def take(self, ids: Ids) -> Array:
        """The rows at some positions."""


@dataclass(frozen=True)
class GridPlan:
    """What a baseline fixes for a table: its grid, its step rule and its logarithmic codes.

    Every later writer and every rank takes the same, as parts of the chain say it. `logs` are columns in logarithmic
    codes, with these; `firsts` are first moments of gradients, whose rows are stored afresh each time: both in the
    order of their names.
    """

    floor: int
    step: Step
    payload: Payload
    logs: tuple[tuple[str, LogLayout], ...]
    firsts: tuple[str, ...] = ()

    @property
    def has_moments(self) -> bool:
        """Whether any moments of gradients are in codes."""
        return bool(self.firsts) or any(layout.bits == moments.SECOND.bits for _, layout in self.logs)

    def recipe(self, column: ColumnSchema, width: int, source: moments.Source) -> Recipe | None:
        """How rows of a column that come from here are stored by themselves, or likewise by differences.

        None for a column that the plan doesn't have.
        """
        name, group = column.name, max(1, GROUP_VALUES // width)
        if name == WEIGHT:
            # The width of fixed codes is known when all are there.
            bits, of_group = (1, None) if self.payload == "fixed" else (None, group)
            layout = GridLayout("absolute", self.floor, self.payload, bits, of_group)
            return Recipe(layout, Scheme("closed-loop", step=self.step))
        if name == CHECKPOINTS:
            return Recipe(GridLayout("absolute", 0, "rans", None, group), Scheme("closed-loop"))
        if name in self.firsts:
            return Recipe(moments.layout_of_first(source, group), Scheme("closed-loop"))
        layouts = dict(self.logs)
        return Recipe(replace(layouts[name], group=group), Scheme("log")) if name in layouts else None

    def exponents(self, activity: Array | None, count: int) -> Bytes:
        """The exponent of each of `count` rows: of its step, in powers of two above the floor.

        `activity` is (count,) or (count, dim); rows of which it isn't a number are as the reference is.
        """
        step, reference = self.step, self.step.reference
        if activity is None or reference is None:
            return np.full(count, exponent_of(step.size) - self.floor, np.uint8)
        from cnrfmt.kernels import exponents as kernel

        active = np.asarray(activity)
        active = active.mean(axis=1, dtype=np.float64) if active.ndim == 2 else active.astype(np.float64)
        if is_counted(self):
            # The kernel takes the square root of their ratio.
            active, reference = np.square(active), reference**2
        found = np.empty(count, np.uint8)
        kernel.by_activity(active, step.size, reference, 4.0**-FINER, self.floor, found)
        return found


def coarseness_of(step: Step) -> float:
    """As `Grid.coarseness`."""
    return step.size * ((step.reference or 1.0) if step.column == CHECKPOINTS else 1.0)


def is_counted(grid: object) -> bool:
    """Whether a grid, or the plan of one, goes by the checkpoints that rows were in."""
    if isinstance(grid, GridPlan):
        return grid.step.column == CHECKPOINTS
    return isinstance(grid, Grid) and grid.by == CHECKPOINTS


@dataclass(frozen=True)
class GridSummary:
    """What a plan follows from, of the rows that one of many writers has; it takes little space.

    Attributes
    ----------
    table, columns
        The name of the table, and those of the columns besides the weight that the writer has or knows of.
    activities
        Of each column that may tell of activity how active its rows are; None where nothing is known of them.
    logs
        Of each float32 column of one value per row the bit patterns of its least and its greatest normal number; None
        where it has none.
    negative
        Of each float32 column of `dim` values that may be a moment of gradients whether any value is negative.
    """

    table: str
    columns: tuple[str, ...]
    activities: Mapping[str, ActivityCounts | None]
    logs: Mapping[str, tuple[int, int] | None]
    negative: Mapping[str, bool] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """What `parse` takes."""
        activities = {name: None if counts is None else counts.to_json() for name, counts in self.activities.items()}
        logs = {name: None if found is None else list(found) for name, found in self.logs.items()}
        found = {"activities": activities, "logs": logs, "negative": dict(self.negative)}
        return {"table": self.table, "columns": list(self.columns), **found}

    @staticmethod
    def parse(said: Any) -> GridSummary:
        """The summary of another rank."""
        activities = {n: None if one is None else ActivityCounts.parse(one) for n, one in said["activities"].items()}
        logs = {name: None if found is None else (found[0], found[1]) for name, found in said["logs"].items()}
        return GridSummary(said["table"], tuple(said["columns"]), activities, logs, said["negative"])


def plan_grid(grid: Grid, schema: TableSchema, sources: Mapping[str, Source]) -> GridPlan:
    """What the baseline of a table fixes, from its live columns; raises what `summary_of` and `plan_of` raise."""
    return plan_of(grid, [summary_of(grid, schema, sources)])


def summary_of(grid: Grid, schema: TableSchema, sources: Mapping[str, Source]) -> GridSummary:
    """What the plan of a table follows from, of these rows of it; raises `UsageError` where the weight isn't float32.

    Of more than a million rows, a million that lie at equal distances tell of activity.
    """
    weight, *others = schema.columns
    if weight.dtype != "float32":
        raise UsageError(
            f"table {schema.name!r}: the grid encoding is for float32, found {weight.dtype}; convert it first"
        )
    wanted = ACTIVITIES if grid.by == "auto" else (grid.by,)
    activities = {
        column.name: _activity(sources[column.name]) if column.name in sources else None
        for column in others
        if column.name in wanted and column.dtype.startswith(("float", "int", "uint", "bfloat"))
    }
    floats = [column for column in others if column.dtype == "float32" and column.name in sources]
    logs = {
        column.name: _normal_range(sources[column.name])
        for column in floats
        if column.per_row and column.name != CHECKPOINTS
    }
    negative = {
        column.name: moments.has_negative(sources[column.name])
        for column in floats
        if not column.per_row and grid.moments == "codes" and moments.may_be(column.name)
    }
    return GridSummary(schema.name, tuple(column.name for column in others), activities, logs, negative)


def plan_of(grid: Grid, summaries: Sequence[GridSummary]) -> GridPlan:
    """What the baseline of a table fixes, from the summaries of all who write it, at least one.

    Where each row's activity is one writer's, and none has so many rows that it picks some, it is the same however the
    rows are spread. Of a column of `dim` values whose elements are spread, each writer's mean counts as a row's.

    Raises
    ------
    UsageError
        The column `by` is nobody's, or doesn't hold numbers, or the step is none that float32 could hold.
    """
    table, by = summaries[0].table, activity_column(grid.by, summaries)
    counts = [] if by is None else [one.activities.get(by) for one in summaries]
    reference = grid.reference if by == CHECKPOINTS else median_activity([one for one in counts if one is not None])
    floor = floor_of(grid.size, is_finer=reference is not None, place=f"table {table!r}")
    ranges: dict[str, list[tuple[int, int]]] = {}
    for one in summaries:
        for name, found in one.logs.items():
            ranges.setdefault(name, []).extend([] if found is None else [found])
    layouts = {name: _codes(found, _LOG_BITS[grid.one_valued]) for name, found in ranges.items()}
    columns = {name for one in summaries for name in one.columns}
    kinds = {
        name: moments.kind_of(name, columns, negative=any(one.negative.get(name, False) for one in summaries))
        for name in {name for one in summaries for name in one.negative}
    }
    layouts |= {name: moments.SECOND for name, kind in kinds.items() if kind == "second"}
    firsts = tuple(sorted(name for name, kind in kinds.items() if kind == "first"))
    step = Step(grid.size, reference, by if reference is not None else None)
    return GridPlan(floor, step, grid.payload, tuple(sorted(layouts.items())), firsts)


def activity_column(by: str | None, summaries: Sequence[GridSummary]) -> str | None:
    """The column that tells of a row's activity; raises `UsageError` if nobody has it, or if it can't tell."""
    found = {name for one in summaries for name in one.activities}
    if by == "auto":
        return next((name for name in ACTIVITIES if name in found), None)
    if by not in (None, CHECKPOINTS) and by not in found:
        columns = list(dict.fromkeys(name for one in summaries for name in one.columns))
        wrong = "names a column that doesn't hold numbers" if by in columns else "names no column of it"
        there = ", ".join(columns) or "none"
        raise UsageError(
            f"table {summaries[0].table!r}: by={by!r} {wrong}; beside weight it has {there}: give the name of one that "
            "tells how active a row is, or by='auto', or by=None for equal steps"
        )
    return by


def _activity(source: Source) -> ActivityCounts | None:
    count = source.shape[0]
    if count <= _SAMPLE:
        return count_activity(source.rows(0, count), count)
    return count_activity(source.take(np.linspace(0, count - 1, _SAMPLE).astype(np.int64)), count)


def _normal_range(source: Source) -> tuple[int, int] | None:
    """The bit patterns of the least and the greatest normal number."""
    values = np.asarray(source.rows(0, source.shape[0]), np.float32).reshape(-1)
    patterns = values.view(np.int32)
    normal = patterns[(patterns >= _LEAST_NORMAL) & (patterns < _INFINITE)]
    return (int(normal.min()), int(normal.max())) if normal.size else None


def _codes(ranges: Sequence[tuple[int, int]], bits: int) -> LogLayout:
    """Codes that hold what is there, in these ranges, and what it may come to be, as finely as that goes."""
    codes = (1 << bits) - 2
    base, shift, payload = _EMPTY_BASE, _EMPTY_SHIFT - (bits - 12), "rans"
    if ranges:
        base = max(_LEAST_NORMAL, min(least for least, _ in ranges) - (_SHRINKING << _MANTISSA))
        wanted = max(greatest for _, greatest in ranges) + (_GROWTH << _MANTISSA) - base
        shift = next((s for s in range(_MANTISSA) if codes << s >= wanted), _MANTISSA)
        shift = min(shift, _EMPTY_SHIFT + 12 - bits)
    base = max(1, min(base, _INFINITE - 1 - (codes << shift)))
    return LogLayout(bits, base, shift, "absolute", payload, GROUP_VALUES)


def grid_plan_of(parts: Iterable[Any]) -> GridPlan | None:
    """What the parts of a table (newest last) say of the grid that they are on; None if the weight isn't on one."""
    found: GridPlan | None = None
    logs, firsts = dict[str, LogLayout](), set[str]()
    for part in parts:
        layout, scheme = part.layout, part.scheme
        if isinstance(layout, LogLayout) and layout.payload != "fixed":
            logs[part.column] = LogLayout(layout.bits, layout.base, layout.shift, "absolute", "rans", GROUP_VALUES)
        elif part.column == WEIGHT and part.exceptions_of is None:
            known = isinstance(layout, GridLayout) and scheme is not None and scheme.step is not None
            found = GridPlan(layout.floor, scheme.step, layout.payload, ()) if known else None
        elif isinstance(layout, GridLayout) and moments.may_be(part.column):
            firsts.add(part.column)
    if found is None:
        return None
    return replace(found, logs=tuple(sorted(logs.items())), firsts=tuple(sorted(firsts)))
