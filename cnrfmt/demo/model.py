"""The recommender's state: tables, dense part, random generator, reader position."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cnrfmt import Restored, TableData
from cnrfmt.demo import training
from cnrfmt.demo.orders import Dataset, Int64
from cnrfmt.demo.training import Dense, Rows, Seen, Settings, Stream
from cnrfmt.errors import UsageError

DIM = 32
HIDDEN = 16
SETTINGS = Settings(np.float32(0.05), np.float32(0.02), 8, 8192)
KEYED = "pair"
"""The table whose rows appear as they are needed; the others have all their rows from the start."""
PAIR_START = 0.2
"""What each element of a new pair's row is: the same for all, so that a row can say "bought before"."""
ACCUMULATOR = "accumulator"
"""The column of a table's accumulators."""
RANDOM_STATE = "random_state"
"""The name of the random generator's state in the dense state: one uint64."""


class Model:
    """The recommender in training on a dataset.

    Two models of the same dataset and seed that are trained up to the same order hold the same bits, in
    however many calls, and also where one was restored from an exact checkpoint of the other.

    Attributes
    ----------
    weights, accumulators
        One float32 array per table: `rows x DIM`, and one value per row.
    touched
        One bit per row and table, uint8, lowest bit first: whether the row was looked up since the
        marks were last cleared.
    dense, dense_accumulators
        The parameters outside the tables, float32.
    random
        The random generator's state: one uint64.
    order
        The reader's position: how many orders of the stream were trained.
    """

    def __init__(self, data: Dataset, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        counts = (data.users, data.products, data.pairs)
        self.data = data
        self.stream = Stream(
            data.stream.users,
            data.stream.starts,
            data.stream.products,
            data.pair_of,
            data.line_pairs,
        )
        self.weights = Rows(
            random.normal(0, 0.1, (data.users, DIM)).astype(np.float32),
            random.normal(0, 0.1, (data.products, DIM)).astype(np.float32),
            np.full((data.pairs, DIM), PAIR_START, np.float32),
        )
        self.accumulators = Rows(*(np.zeros(count, np.float32) for count in counts))
        self.touched = Rows(*(np.zeros((count + 7) // 8, np.uint8) for count in counts))
        linear = np.zeros(training.FEATURES, np.float32)
        linear[:4] = 1
        self.dense = Dense(
            linear,
            random.normal(0, 0.3, (HIDDEN, training.FEATURES)).astype(np.float32),
            random.normal(0, 0.1, HIDDEN).astype(np.float32),
            np.full(DIM, DIM**-0.5, np.float32),
        )
        self.dense_accumulators = Dense(*(np.zeros_like(values) for values in self.dense))
        self.random = random.integers(1, 1 << 63, 1, dtype=np.uint64)
        self.order = 0
        self.seen = seen_before(data, 0)
        self._pair_keys = pair_keys(data)
        self._pairs_in_use = np.zeros(data.pairs, np.bool_)

    @property
    def random_state(self) -> int:
        """The state of the random generator, which with the rest settles what is drawn from now on."""
        return int(self.random[0])

    @property
    def existing(self) -> dict[str, int]:
        """How many rows each table has; of the pairs, those that were looked up by `take_touched`."""
        counts = {name: len(weight) for name, weight in self.weights._asdict().items()}
        return {**counts, KEYED: int(np.count_nonzero(self._pairs_in_use))}

    @property
    def nbytes(self) -> int:
        """The size of all that a checkpoint holds in plain float32, with 8 bytes per key."""
        existing = self.existing
        dense = sum(array.nbytes for array in self.dense_state().values())
        return dense + 8 * existing[KEYED] + sum(existing.values()) * 4 * (DIM + 1)

    def train(self, until: int) -> float:
        """Trains on the orders from the reader's position to `until`; gives the mean log-loss.

        Raises `UsageError` for a position that the stream doesn't have, or that was passed.
        """
        if not self.order <= until <= len(self.data.stream):
            raise UsageError(
                f"the model is at order {self.order} of {len(self.data.stream)}, and can't train to {until}"
            )
        loss, terms = training.train(
            self.order,
            until,
            self.stream,
            self.seen,
            self.weights,
            self.accumulators,
            self.touched,
            self.dense,
            self.dense_accumulators,
            self.random,
            SETTINGS,
        )
        self.order = until
        return loss / max(terms, 1)

    def touched_rows(self) -> dict[str, Int64]:
        """The rows of each table that were looked up since the marks were last cleared, sorted."""
        return {
            name: np.flatnonzero(np.unpackbits(bits, count=len(weight), bitorder="little"))
            for (name, bits), weight in zip(self.touched._asdict().items(), self.weights, strict=True)
        }

    def take_touched(self) -> dict[str, Int64]:
        """The ids, or keys, of the rows that were looked up since this was last called; clears the marks."""
        rows = self.touched_rows()
        for bits in self.touched:
            bits[:] = 0
        self._pairs_in_use[rows[KEYED]] = True
        return {**rows, KEYED: self._pair_keys[rows[KEYED]]}

    def tables(self) -> dict[str, TableData]:
        """The live tables: the arrays themselves, but of the pairs those that were looked up by `take_touched`."""
        pairs = np.flatnonzero(self._pairs_in_use)
        return {
            **self.targets(),
            KEYED: TableData(
                self.weights.pair[pairs],
                columns={ACCUMULATOR: self.accumulators.pair[pairs]},
                keys=self._pair_keys[pairs],
                fill={"weight": PAIR_START},
            ),
        }

    def targets(self) -> dict[str, Any]:
        """What tables are restored into: those whose rows are all there; the pairs come as new arrays."""
        return {
            "user": TableData(self.weights.user, columns={ACCUMULATOR: self.accumulators.user}),
            "product": TableData(self.weights.product, columns={ACCUMULATOR: self.accumulators.product}),
            KEYED: None,
        }

    def dense_state(self) -> dict[str, npt.NDArray[Any]]:
        """Everything outside the tables, the random generator's state included: the arrays themselves."""
        arrays: dict[str, npt.NDArray[Any]] = {**self.dense._asdict(), RANDOM_STATE: self.random}
        return arrays | {f"{name}.{ACCUMULATOR}": g for name, g in self.dense_accumulators._asdict().items()}

    def take_over(self, restored: Restored) -> None:
        """Goes on as a checkpoint has it that was restored into the targets of this model, which is new.

        Pairs that it doesn't have are as in any new model. What the reader knows of the orders before its position
        is counted anew from the stream.
        """
        pairs = restored.tables[KEYED]
        rows = self.data.pair_of.reshape(-1)[pairs.keys]
        self.weights.pair[rows] = pairs.values
        self.accumulators.pair[rows] = pairs.columns[ACCUMULATOR]
        self._pairs_in_use[rows] = True
        for name, array in self.dense_state().items():
            array[...] = restored.dense[name]
        self.order = restored.reader
        self.seen = seen_before(self.data, self.order)


def pair_keys(data: Dataset) -> Int64:
    """The key of each pair, int64: user x products + product."""
    users = np.repeat(data.stream.users, np.diff(data.stream.starts)).astype(np.int64)
    keys = np.empty(data.pairs, np.int64)
    keys[data.line_pairs] = users * data.products + data.stream.products
    return keys


def seen_before(data: Dataset, order: int) -> Seen:
    """What the orders before this one amount to."""
    lines = int(data.stream.starts[order])
    ordinals = np.repeat(data.ordinals[:order], np.diff(data.stream.starts[: order + 1]))
    last_bought = np.zeros(data.pairs, np.int32)
    np.maximum.at(last_bought, data.line_pairs[:lines], ordinals)
    return Seen(
        np.bincount(data.stream.users[:order], minlength=data.users).astype(np.int32),
        np.bincount(data.stream.products[:lines], minlength=data.products).astype(np.int32),
        last_bought,
    )
