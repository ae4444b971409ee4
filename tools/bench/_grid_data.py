"""What is put on a grid: trained rows, real steps and drawn ones between two checkpoints, and a table in training."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cnrfmt import Grid, TableData
from cnrfmt.arrays import Bytes, Ids
from cnrfmt.encodings.grid_plan import GridPlan
from cnrfmt.format.encoding import GridLayout
from cnrfmt.plan import plan_baseline
from tools.bench import _data
from tools.bench._figures import say
from tools.bench._training_stall import touched

Values = npt.NDArray[np.float32]
Stored = npt.NDArray[np.int16]

TOUCHED = 0.27
"""The share of the rows that changes between two checkpoints."""
C = 0.5
"""Steps of a grid in learning rates: the finest ones, for runs of many restores."""
_FINENESS = 8
"""Steps within the spread of trained rows, where they are stored as they are."""
_LAPLACE_SCALE = 0.7
"""In steps: rounded to whole ones, such numbers have 2 bits of entropy."""
_BLOCK = 1 << 22
"""Values that are drawn; larger tables repeat them."""
_LEAST_VISITS, _OFTEN, _WARM_UP = 1, 0.1, 4


@dataclass(frozen=True, eq=False)
class Rows:
    """Live rows, some of which changed, and what is stored of them; of an absolute part nothing is.

    `values` are (n, dim), `stored` (n, dim) or (0, dim), `positions` ascend, with an exponent for each.
    """

    values: Values
    stored: Stored
    positions: Ids
    floor: int
    exponents: Bytes

    @property
    def dim(self) -> int:
        """Elements of a row."""
        return len(self.values[0])

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that changed, in float32."""
        return 4 * self.dim * len(self.positions)


class _Steps(NamedTuple):
    """Rows that changed, each with what was stored before, and the exponent of its step."""

    values: Values
    stored: Stored
    exponents: Bytes
    floor: int


def trained(count: int, dim: int, *, quick: bool) -> Rows:
    """Trained rows of wordllama as a baseline has them, in equal steps."""
    values = _data.table(count, dim)
    positions = touched(count, TOUCHED)
    floor = round(math.log2(float(values[:1000].std()) / _FINENESS))
    return Rows(values, np.empty((0, dim), np.int16), positions, floor, np.zeros(len(positions), np.uint8))


def stepped(count: int, dim: int, *, quick: bool) -> Rows:
    """Users and products of the demo as their last orders changed them, in steps that follow from accumulators.

    Its rows of 32 elements are cut, or set side by side, and repeated.
    """
    return _repeated(_demo_steps(dim, quick=quick), count)


def drawn(count: int, dim: int, *, quick: bool) -> Rows:
    """Steps by Laplace's law whose codes take about 2 bits each."""
    random = np.random.default_rng([_data.SEED, dim])
    shape = _BLOCK // (64 if quick else 1) // dim, dim
    floor, exponent = -12, 4
    codes = np.rint(random.laplace(0, _LAPLACE_SCALE, shape)).astype(np.int32)
    stored = random.integers(-4096, 4096, shape, np.int16)
    values = ((stored + (codes << exponent)) * 2.0**floor).astype(np.float32)
    return _repeated(_Steps(values, stored, np.full(len(values), exponent, np.uint8), floor), count)


KINDS: dict[str, Callable[..., Rows]] = {"wordllama": trained, "demo": stepped, "laplace": drawn}


def _repeated(steps: _Steps, count: int) -> Rows:
    shape, positions = (count, steps.values.shape[1]), touched(count, TOUCHED)
    values, stored = np.resize(steps.values, shape), np.resize(steps.stored, shape)
    return Rows(values, stored, positions, steps.floor, np.resize(steps.exponents, count)[positions])


@functools.cache
def _demo_tables(*, quick: bool) -> tuple[Values, Values, Values, float]:
    """Rows that changed, before and after; their accumulators; and the learning rate."""
    say("training the demo's tables")
    from cnrfmt.demo.model import SETTINGS, Model
    from cnrfmt.demo.orders import load_orders

    data = load_orders(users=20 if quick else None)
    model = Model(data)
    model.train(len(data.stream) * 15 // 16)
    before = np.concatenate([model.weights.user, model.weights.product])
    model.train(len(data.stream))
    after = np.concatenate([model.weights.user, model.weights.product])
    accumulator = np.concatenate([model.accumulators.user, model.accumulators.product])
    changed = (before != after).any(axis=1)
    return before[changed], after[changed], accumulator[changed], float(SETTINGS.rate)


def _demo_steps(dim: int, *, quick: bool) -> _Steps:
    before, after, accumulator, rate = _demo_tables(quick=quick)
    each = np.repeat(accumulator, before.shape[1])
    whole = before.size // dim * dim
    before, after = (rows.reshape(-1)[:whole].reshape(-1, dim) for rows in (before, after))
    activity = each[:whole].reshape(-1, dim).mean(axis=1)
    plan = _plan(after, activity, rate)
    exponents = plan.exponents(activity, len(after))
    unit = np.ldexp(1.0, exponents.astype(np.int32) + plan.floor)[:, None]
    stored = np.rint(before / unit) * (unit * 2.0**-plan.floor)
    return _Steps(after, stored.astype(np.int16), exponents, plan.floor)


def _plan(values: Values, accumulator: Values, rate: float) -> GridPlan:
    """The grid that a baseline of these rows has."""
    table = TableData(values, {"accumulator": accumulator})
    write = plan_baseline({"table": table}, Grid(learning_rate=rate, c=C)).writes[0]
    recipe = write.columns[0].recipe
    assert isinstance(recipe.layout, GridLayout)
    assert recipe.scheme is not None
    assert recipe.scheme.step is not None
    return GridPlan(recipe.layout.floor, recipe.scheme.step, "rans", ())


class Training:
    """A table in training: trained rows, which steps of row-wise Adagrad move on.

    Rows are visited by Zipf's law, as `touched` and `_data.touched_rows` have it, so that the accumulator of a row,
    the mean square of a gradient being 1, is the number of its visits; before the first step it had some already.
    """

    def __init__(self, rows: int, dim: int) -> None:
        self.values = _data.table(rows, dim)
        self.rate = 0.05 * float(self.values[:1000].std())
        ranks = np.random.default_rng([_data.SEED, rows]).permutation(rows) + 1
        self._visits = np.maximum(_OFTEN * rows / ranks, _LEAST_VISITS).astype(np.float32)
        self.accumulator = _WARM_UP * self._visits
        self._random = np.random.default_rng([_data.SEED, rows, dim])
        self._noise = self._random.standard_normal(_BLOCK, np.float32)

    @property
    def tables(self) -> dict[str, TableData]:
        """As a manager is given it."""
        return {"table": TableData(self.values, {"accumulator": self.accumulator})}

    @property
    def grid(self) -> Grid:
        """What its rows are stored in."""
        return Grid(learning_rate=self.rate, c=C)

    @property
    def nbytes(self) -> int:
        """Bytes of all, in float32."""
        return self.values.nbytes + self.accumulator.nbytes

    def visit(self, ids: Ids) -> None:
        """Moves some rows, each by as many steps as it has visits between two checkpoints."""
        dim = self.values.shape[1]
        most = max(1, _BLOCK // dim // 2)
        for start in range(0, len(ids), most):
            some = ids[start : start + most]
            visits = self._visits[some]
            self.accumulator[some] += visits
            size = np.float32(self.rate) * np.sqrt(visits / self.accumulator[some])
            first = int(self._random.integers(_BLOCK - len(some) * dim + 1))
            noise = self._noise[first : first + len(some) * dim].reshape(-1, dim)
            self.values[some] += size[:, None] * noise
