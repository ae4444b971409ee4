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
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from cnrfmt.errors import UsageError
from cnrfmt.format.encoding import MAX_FLOOR, MIN_FLOOR
from cnrfmt.format.schema import WEIGHT

Payload = Literal["fixed", "packed", "rans"]
LogCodes = Literal["log12", "log16"]
Moments = Literal["codes", "raw"]

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
FINER = 4
"""Steps of rows that are more active than the reference are finer by so many octaves at the most; none are coarser.

Coarser steps for the least active rows save hardly a byte, since these are seldom written, but take from untouched rows
what they began with.
"""
GROUP_VALUES = 8192
"""Values of a group: what has to be decoded for a single row."""

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
    moments
        Columns of `dim` values that are moments of gradients, by their names: ``"codes"``: 8-bit logarithmic codes of
        second moments (``exp_avg_sq``, ``accumulator``), and steps of half of a row's root mean square for first ones
        (``exp_avg``, ``momentum``); ``"raw"``: as they are, as all other columns of `dim` values.

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
    moments: Moments = "codes"

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
        words = {"payload": Payload, "one_valued": LogCodes, "moments": Moments}
        for name, legal in ((name, get_args(kind)) for name, kind in words.items()):
            if (value := getattr(self, name)) not in legal:
                raise UsageError(f"Grid: {name} is one of {', '.join(map(repr, legal))}; found {value!r}")
        if self.by is not None and (not isinstance(self.by, str) or not self.by):
            raise UsageError(f"Grid: by is the name of a column, 'auto' or None, found {self.by!r}")
        if self.by == WEIGHT:
            raise UsageError(
                "Grid: by names a column beside the rows that tells how often each was trained, such as an "
                f"accumulator; found {WEIGHT!r}, the rows themselves: give by='auto' (the default), another column, "
                "or None for equal steps"
            )
        given = [name for name in ("learning_rate", "restores", "c", "step") if getattr(self, name) is not None]
        if given not in _SIZES:
            raise UsageError(
                "Grid: give learning_rate with restores (how many are expected in the run), or learning_rate with c, "
                f"or step alone; {_found(given)}"
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


_SIZES = (["learning_rate", "restores"], ["learning_rate", "c"], ["step"])
"""What says how long steps are."""


def _listed(names: list[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _found(given: list[str]) -> str:
    """What was given that doesn't go together, and what to do."""
    if not given:
        return "found none of them"
    others = [name for name in given if name != "step"]
    if len(others) < len(given):
        return f"found {_listed(given)}: leave out {_listed(others)}, or step"
    todo = [] if "learning_rate" in given else ["add learning_rate"]
    if "restores" in given and "c" in given:
        todo.append("leave out restores or c")
    elif given == ["learning_rate"]:
        todo.append("add restores or c")
    return f"found {_listed(given)}: {' and '.join(todo)}"


def floor_of(size: float, *, is_finer: bool, place: str) -> int:
    """The exponent of the shortest steps, where the reference's are of this size; `is_finer` tells of shorter ones.

    Raises `UsageError`, which begins with `place`, for steps that no float32 weights could have.
    """
    nearest = exponent_of(size) if 2.0**MIN_FLOOR <= size <= 2.0**MAX_FLOOR else MIN_FLOOR - 1
    floor = nearest - FINER if is_finer else nearest
    if floor < MIN_FLOOR or nearest > MAX_FLOOR:
        raise UsageError(f"{place}: a step of {size:g} is none that float32 weights could have")
    return floor


def exponent_of(size: float) -> int:
    """The exponent of the power of two that is nearest in its logarithm."""
    return math.frexp(2 * size * size)[1] - 1 >> 1
