"""The small DLRM in training: what the fidelity benchmark checkpoints, restores and judges."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from cnrfmt import CheckpointManager, TableData
from cnrfmt.arrays import Array
from tools.bench import _fidelity_kernels as kernels
from tools.bench._fidelity_data import FEATURES, Data, Shape

Ids = npt.NDArray[np.int64]

DIM, UNITS = 64, 32
RATES = {"adagrad": 0.02, "adam": 0.001, "sgd": 0.05}
"""Learning rates of the rows."""
_KINDS = {"adagrad": kernels.ADAGRAD, "adam": kernels.ADAM, "sgd": kernels.SGD}
_COLUMNS: dict[str, tuple[str, ...]] = {"adagrad": ("accumulator",), "adam": ("exp_avg", "exp_avg_sq"), "sgd": ()}


class Dlrm:
    """A DLRM on drawn samples; two of the same data and seed hold the same bits at the same position.

    Attributes
    ----------
    name, about, intervals, rate, best
        As `Learner` has them.
    position
        How many samples were trained on.
    """

    def __init__(self, data: Data, shape: Shape, seed: int, *, optimizer: str, steps: int, dim: int = DIM) -> None:
        self.name, self.rate = "dlrm", RATES[optimizer]
        self.alike: tuple[str, ...] = ()
        self.best: float | None = data.best
        drift = f", {shape.drift:.0%} of the rows in use change in an interval" if shape.drift else ""
        self.about = (
            f"a small DLRM, {len(shape.rows)} tables of {sum(shape.rows):,} rows of {dim} in all, rows stepped by "
            f"{optimizer}; drawn: {shape.samples:,} samples in an interval, lookups by Zipf's law{drift}, labels by a "
            f"hidden model; the baseline after {shape.warm_up} intervals"
        )
        self.intervals = shape.intervals * steps
        self.position = 0
        self._data, self._shape, self._steps, self._optimizer = data, shape, steps, optimizer
        tables = len(shape.rows)
        random = np.random.default_rng([seed, 1])
        self._weight = np.empty((sum(shape.rows), dim), np.float32)
        for first, end in self._spans():
            # As DLRM has it: up to one over the root of the number of rows.
            bound = np.float32((end - first) ** -0.5)
            self._weight[first:end] = bound * (2 * random.random((end - first, dim), np.float32) - 1)
        rows, none = len(self._weight), np.zeros((1, 1), np.float32)
        first_state = none if optimizer == "sgd" else np.zeros((rows, 1 if optimizer == "adagrad" else dim), np.float32)
        second_state = np.zeros((rows, dim), np.float32) if optimizer == "adam" else none
        self._rows = kernels.Optimizer(_KINDS[optimizer], np.float32(self.rate), first_state, second_state)
        sizes = (dim, FEATURES, tables, UNITS)
        values = random.normal(0, 0.1, kernels.layers_size(*sizes)).astype(np.float32)
        gradient, mean, square = (np.zeros_like(values) for _ in range(3))
        self._descent = kernels.Descent(values, gradient, mean, square, np.zeros(1, np.int64))
        self._layers = kernels.layers_of(values, *sizes)
        self._gradient = kernels.layers_of(self._descent.gradient, *sizes)
        self._touched = np.zeros(rows, np.uint8)

    def _spans(self) -> list[tuple[int, int]]:
        ends = np.cumsum(self._shape.rows).tolist()
        return list(zip([0, *ends[:-1]], ends, strict=True))

    def train(self, interval: int) -> float:
        """Trains for a step, number 0 up to the baseline; the mean log-loss, each sample's before its step."""
        begin, shape = self.position, self._shape
        whole, part = divmod(interval, self._steps)
        batches = (shape.warm_up + whole) * shape.samples + part * shape.samples // self._steps
        self.position = batches // kernels.BATCH * kernels.BATCH
        state = self._weight, self._rows, self._layers, self._gradient, self._descent, self._touched
        loss = kernels.train(begin, self.position, self._data.stream, *state)
        return float(loss) / (self.position - begin)

    def judge(self) -> float:
        """The mean log-loss on what is held out."""
        end, count = len(self._data.stream.labels), self._shape.held_out
        return float(kernels.judge(end - count, end, self._data.stream, self._weight, self._layers)) / count

    def touched(self) -> dict[str, Ids]:
        """The rows of each table that were looked up since this was last asked."""
        found = {f"t{n}": np.flatnonzero(self._touched[a:b]) for n, (a, b) in enumerate(self._spans())}
        self._touched[:] = 0
        return found

    def tables(self) -> dict[str, TableData]:
        """The live tables."""
        columns = dict(zip(_COLUMNS[self._optimizer], (self._rows.first, self._rows.second), strict=False))
        found = {}
        for n, (a, b) in enumerate(self._spans()):
            each = {name: state[a:b] if state.shape[1] > 1 else state[a:b, 0] for name, state in columns.items()}
            found[f"t{n}"] = TableData(self._weight[a:b], each)
        return found

    def dense(self) -> dict[str, Array]:
        """The layers and the state of their Adam, the live arrays; between batches there is no gradient."""
        descent = self._descent
        return {"layers": descent.values, "first": descent.first, "second": descent.second, "steps": descent.steps}

    def restore(self, manager: CheckpointManager) -> None:
        """In place."""
        restored = manager.restore(into=self.tables())
        assert restored is not None
        for name, array in self.dense().items():
            array[...] = restored.dense[name]
        self._touched[:] = 0
        self.position = restored.reader

    def weights(self) -> Iterable[Array]:
        """All tables one behind the other."""
        return (self._weight,)
