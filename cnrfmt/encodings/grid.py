"""The grid encoding: integers in steps that follow how far the optimizer still moves each row.

A row that is touched often has taken many steps, and an adaptive optimizer moves it less and less: it is stored in fine
steps, a rare one in coarse ones. The rule is step = 2^round(log2(size x ratio)), the ratio between 1/16 and 1, and
`size` a number of learning rates. Where somebody counts the checkpoints that a row was in, the ratio is `reference`
over that number. Else it is sqrt(reference / activity): `activity` is the row's second moment of gradients (an Adagrad
accumulator, Adam's second moment) or its count of updates, and `reference` the median of the rows that were touched.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Array, Bytes, Ids
from cnrfmt.encodings.activity import ActivityCounts, count_activity, median_activity
from cnrfmt.encodings.base import Recipe
from cnrfmt.errors import UsageError
from cnrfmt.format.encoding import MAX_FLOOR, MIN_FLOOR, GridLayout, LogLayout
from cnrfmt.format.schema import WEIGHT, ColumnSchema, TableSchema
from cnrfmt.format.scheme import Scheme, Step

Payload = Literal["fixed", "packed", "rans"]
LogCodes = Literal["log12", "log16"]

ACTIVITIES = (
    "accumulator",
    "adagrad",
    "state_sum",
    "sum",
    "momentum1",
    "exp_avg_sq",
    "second_moment",
    "count",
    "counts",
    "updates",
)
"""Columns that tell of a row's activity, as trainers name them: Adagrad's, row-wise or not, Adam's, counts."""
CHECKPOINTS = "cnrfmt.checkpoints"
"""The column in which a checkpoint manager counts the checkpoints that a row was in, the baseline among them."""
BY_RESTORES = ((3, 2.0), (10, 1.0), (math.inf, 0.5))
"""Up to how many restores how many learning rates a step may be, of a row of median activity."""
COUNTED_BY_RESTORES = ((1, 1.5, 4.5), (3, 1.5, 2.0), (10, 0.625, 2.0), (math.inf, 0.3125, 2.0))
"""The same of a row in its first checkpoint where checkpoints are counted, and up to how many it stays so."""
_FINER = 4
"""Steps of rows that are more active than the reference are finer by so many octaves at the most; none are coarser.

Coarser steps for the least active rows save hardly a byte, since these are seldom written, but take from untouched rows
what they began with.
"""
GROUP_VALUES = 8192
"""Values of a group: what has to be decoded for a single row."""
_SAMPLE = 1 << 20
"""Rows of a writer that the reference is the median of, at the most."""
_LOG_BITS = {"log12": 12, "log16": 16}
_GROWTH, _SHRINKING = 8, 3
"""Octaves that logarithmic codes have above and below the values that there are when they are chosen."""
_MANTISSA = 23
_LEAST_NORMAL, _INFINITE = 0x00800000, 0x7F800000
_EMPTY_BASE, _EMPTY_SHIFT = 0x33800000, 16
"""Where nothing is known of a column, 12-bit codes go from 2^-24 to 2^8."""

Activity = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Grid:
    """Weights as integers on a grid, optimizer state of one value per row as logarithmic codes.

    A checkpoint manager stores differences of both from what the version before stored; `save` stores them as they are.

    Parameters
    ----------
    learning_rate
        The optimizer's. Its unit is that of the weights: a step of Adagrad or Adam moves a weight by about so much.
    restores
        How many restores are expected in the run. Where checkpoints are counted, the n-th one that a row is in stores
        it in steps of 6.75 / n learning rates for up to 1 restore and of 3 / n for up to 3, at most 1.5; of 1.25 / n
        for up to 10, at most 0.625; of half of that for more. Elsewhere a row of median activity is stored in steps of
        2 for up to 3 restores, 1 for up to 10, or a half.
    c
        The steps in learning rates, of a row in its first checkpoint or of one of median activity, instead of
        `restores`.
    step
        The steps themselves, instead of all three.
    by
        The column that tells of a row's activity, of one value per row or of `dim` (whose mean counts); None: all rows
        are stored in equal steps. ``"auto"``, the default: a checkpoint manager whose deltas go on from each other
        counts the checkpoints that a row was in, in a column of its own (``cnrfmt.checkpoints``); elsewhere it is a
        column whose name says so.
    payload
        ``"rans"``: entropy-coded; ``"packed"``: as wide as each row needs; ``"fixed"``: all codes equally wide. From
        the smallest and slowest to the largest and quickest.
    one_valued
        Codes of columns of one value per row: ``"log12"`` (12 bits) or ``"log16"``.

    Raises
    ------
    UsageError
        Values that aren't legal, or not together.
    """

    learning_rate: float | None = None
    restores: float | None = None
    c: float | None = None
    step: float | None = None
    by: str | None = "auto"
    payload: Payload = "rans"
    one_valued: LogCodes = "log12"

    def __post_init__(self) -> None:
        for name in ("learning_rate", "restores", "c", "step"):
            value = getattr(self, name)
            if isinstance(value, np.integer | np.floating):
                value = value.item()
                object.__setattr__(self, name, value)
            least, largest = 0 if name == "restores" else math.ulp(0.0), sys.float_info.max
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (number and least <= value <= largest):
                bound = "from" if least == 0 else "above"
                raise UsageError(f"Grid: {name} must be a number {bound} 0, found {value!r}")
        for name, legal in (("payload", get_args(Payload)), ("one_valued", get_args(LogCodes))):
            if (value := getattr(self, name)) not in legal:
                raise UsageError(f"Grid: {name} is one of {', '.join(map(repr, legal))}; found {value!r}")
        if self.by is not None and (not isinstance(self.by, str) or not self.by):
            raise UsageError(f"Grid: by is the name of a column, 'auto' or None, found {self.by!r}")
        if self.step is not None:
            if (self.learning_rate, self.restores, self.c) != (None, None, None):
                raise UsageError("Grid: step says all that learning_rate, restores and c would; give it, or those")
        elif self.learning_rate is None or (self.restores is None) == (self.c is None):
            raise UsageError(
                "Grid: give learning_rate with restores (how many are expected in the run) or with c, or give step"
            )
        floor_of(self.size, is_finer=False, place="Grid")

    @property
    def size(self) -> float:
        """The longest step, of a row of reference activity, before it is made a power of two."""
        if self.step is not None:
            return float(self.step)
        assert self.learning_rate is not None
        if self.c is not None:
            return float(self.learning_rate) * self.c
        found = BY_RESTORES if self.by != CHECKPOINTS else COUNTED_BY_RESTORES
        return float(self.learning_rate) * next(one[1] for one in found if (self.restores or 0) <= one[0])

    @property
    def reference(self) -> float:
        """Up to how many checkpoints a row has the longest steps, where they are counted."""
        if self.restores is None:
            return 1.0
        return next(reference for most, _, reference in COUNTED_BY_RESTORES if self.restores <= most)

    @property
    def counted(self) -> Grid:
        """The same where checkpoints are counted, unless a column is to be gone by."""
        return replace(self, by=CHECKPOINTS) if self.by == "auto" else self

    @property
    def coarseness(self) -> float:
        """What steps of rows in many checkpoints are in proportion to."""
        return self.size * (self.reference if self.by == CHECKPOINTS else 1.0)


def floor_of(size: float, *, is_finer: bool, place: str) -> int:
    """The exponent of the shortest steps, where the reference's are of this size; `is_finer` tells of shorter ones.

    Raises `UsageError`, which begins with `place`, for steps that no float32 weights could have.
    """
    nearest = _exponent(size) if 2.0**MIN_FLOOR <= size <= 2.0**MAX_FLOOR else MIN_FLOOR - 1
    floor = nearest - _FINER if is_finer else nearest
    if floor < MIN_FLOOR or nearest > MAX_FLOOR:
        raise UsageError(f"{place}: a step of {size:g} is none that float32 weights could have")
    return floor


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

    Every later writer and every rank takes the same, as parts of the chain say it. `logs` are columns of one value per
    row, with their codes, in the order of their names.
    """

    floor: int
    step: Step
    payload: Payload
    logs: tuple[tuple[str, LogLayout], ...]

    def recipe(self, column: ColumnSchema, width: int) -> Recipe | None:
        """How a column is stored by itself, or likewise by differences; None for one that the plan doesn't have."""
        if column.name == WEIGHT:
            group = None if self.payload == "fixed" else max(1, GROUP_VALUES // width)
            # The width of fixed codes is known when all are there.
            layout = GridLayout("absolute", self.floor, self.payload, 1 if group is None else None, group)
            return Recipe(layout, Scheme("closed-loop", step=self.step))
        if column.name == CHECKPOINTS:
            return Recipe(GridLayout("absolute", 0, "rans", None, GROUP_VALUES), Scheme("closed-loop"))
        layouts = dict(self.logs)
        return Recipe(layouts[column.name], Scheme("log")) if column.name in layouts else None

    def exponents(self, activity: Array | None, count: int) -> Bytes:
        """The exponent of each of `count` rows: of its step, in powers of two above the floor.

        `activity` is (count,) or (count, dim); rows of which it isn't a number are as the reference is.
        """
        step, reference = self.step, self.step.reference
        if activity is None or reference is None:
            return np.full(count, _exponent(step.size) - self.floor, np.uint8)
        from cnrfmt.kernels import exponents as kernel

        active = np.asarray(activity)
        active = active.mean(axis=1, dtype=np.float64) if active.ndim == 2 else active.astype(np.float64)
        if is_counted(self):
            # The kernel takes the square root of their ratio.
            active, reference = np.square(active), reference**2
        found = np.empty(count, np.uint8)
        kernel.by_activity(active, step.size, reference, 4.0**-_FINER, self.floor, found)
        return found


def coarseness_of(plan: GridPlan) -> float:
    """As `Grid.coarseness`."""
    return plan.step.size * ((plan.step.reference or 1.0) if is_counted(plan) else 1.0)


def is_counted(grid: object) -> bool:
    """Whether a grid, or the plan of one, goes by the checkpoints that rows were in."""
    if isinstance(grid, GridPlan):
        return grid.step.column == CHECKPOINTS
    return isinstance(grid, Grid) and grid.by == CHECKPOINTS


def _exponent(size: float) -> int:
    """The exponent of the power of two that is nearest in its logarithm."""
    return math.frexp(2 * size * size)[1] - 1 >> 1


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
    """

    table: str
    columns: tuple[str, ...]
    activities: Mapping[str, ActivityCounts | None]
    logs: Mapping[str, tuple[int, int] | None]

    def to_json(self) -> dict[str, Any]:
        """What `parse` takes."""
        activities = {name: None if counts is None else counts.to_json() for name, counts in self.activities.items()}
        logs = {name: None if found is None else list(found) for name, found in self.logs.items()}
        return {"table": self.table, "columns": list(self.columns), "activities": activities, "logs": logs}

    @staticmethod
    def parse(said: Any) -> GridSummary:
        """The summary of another rank."""
        activities = {n: None if one is None else ActivityCounts.parse(one) for n, one in said["activities"].items()}
        logs = {name: None if found is None else (found[0], found[1]) for name, found in said["logs"].items()}
        return GridSummary(said["table"], tuple(said["columns"]), activities, logs)


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
    logs = {
        column.name: _normal_range(sources[column.name])
        for column in schema.columns
        if column.per_row and column.dtype == "float32" and column.name in sources and column.name != CHECKPOINTS
    }
    return GridSummary(schema.name, tuple(column.name for column in others), activities, logs)


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
    logs = tuple((name, _codes(ranges[name], _LOG_BITS[grid.one_valued])) for name in sorted(ranges))
    return GridPlan(floor, Step(grid.size, reference, by if reference is not None else None), grid.payload, logs)


def activity_column(by: str | None, summaries: Sequence[GridSummary]) -> str | None:
    """The column that tells of a row's activity; raises `UsageError` if nobody has it, or if it can't tell."""
    found = {name for one in summaries for name in one.activities}
    if by == "auto":
        return next((name for name in ACTIVITIES if name in found), None)
    if by not in (None, CHECKPOINTS) and by not in found:
        columns = ", ".join(dict.fromkeys(name for one in summaries for name in one.columns)) or "none"
        raise UsageError(f"table {summaries[0].table!r}: by={by!r} is no column of numbers; there are {columns}")
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
    logs: dict[str, LogLayout] = {}
    for part in parts:
        layout, scheme = part.layout, part.scheme
        if isinstance(layout, LogLayout) and layout.payload != "fixed":
            logs[part.column] = LogLayout(layout.bits, layout.base, layout.shift, "absolute", "rans", GROUP_VALUES)
        elif part.column == WEIGHT and part.exceptions_of is None:
            known = isinstance(layout, GridLayout) and scheme is not None and scheme.step is not None
            found = GridPlan(layout.floor, scheme.step, layout.payload, ()) if known else None
    return None if found is None else GridPlan(found.floor, found.step, found.payload, tuple(sorted(logs.items())))
