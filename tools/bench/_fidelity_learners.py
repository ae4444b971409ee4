"""What is trained and judged: the small DLRM, also on traffic that drifts or with other optimizers, and real data.

All hand over what a checkpoint holds, go on from one, and are judged on what was held out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np

from cnrfmt import CheckpointManager
from cnrfmt.arrays import Array
from cnrfmt.demo import quality
from cnrfmt.demo.model import KEYED, SETTINGS, Model
from tools.bench._fidelity_data import DRIFTING, FULL, QUICK, SMALL, Shape, make
from tools.bench._fidelity_dlrm import DIM, Dlrm
from tools.bench._training_data import Orders, Ratings, Source

STEPS = 5
"""Into how many steps an interval is cut: a restore comes at the end of one."""


class Learner(Source, Protocol):
    """A model in training. Its `intervals` are steps: `STEPS` for each interval between two checkpoints.

    Attributes
    ----------
    rate
        The learning rate of its rows.
    position
        Where its reader stands.
    alike
        Tables whose rows repeat one number: they are stored in rows of 2 bits beside a grid.
    best
        The loss that nothing can be better than on what is held out, where that is known.
    """

    rate: float
    alike: tuple[str, ...]
    best: float | None

    @property
    def position(self) -> int: ...

    def judge(self) -> float:
        """The mean loss on what is held out."""
        ...

    def restore(self, manager: CheckpointManager) -> None:
        """Goes on as the newest checkpoint has it."""
        ...

    def weights(self) -> Iterable[Array]:
        """The live rows of all tables."""
        ...


class Grocery(Orders):
    """The demo's recommender on real grocery orders, judged by its log-loss on each user's last one."""

    rate = float(SETTINGS.rate)
    alike = (KEYED,)
    best: float | None = None

    def __init__(self, seed: int, *, intervals: int = 12, quick: bool = False) -> None:
        super().__init__(STEPS * intervals, seed=seed, quick=quick)
        self.intervals = STEPS * (2 if quick else intervals)
        self._seed = seed
        self._examples = quality.held_out_examples(self._data, 0)

    def judge(self) -> float:
        """Of the products of held-out orders and of others beside them."""
        total, terms = 0.0, 0
        for user, (products, positives) in enumerate(self._examples):
            logits = quality.logits(self._model, user, products).astype(np.float64)
            logits[:positives] *= -1
            total += float(np.logaddexp(0, logits).sum())
            terms += len(logits)
        return total / terms

    @property
    def position(self) -> int:
        """The order that is next."""
        return self._model.order

    def restore(self, manager: CheckpointManager) -> None:
        """Into a new model, as in a new process."""
        model = Model(self._data, self._seed)
        restored = manager.restore(into=model.targets())
        assert restored is not None
        model.take_over(restored)
        self._in_use[:] = False
        self._in_use[self._data.pair_of.reshape(-1)[restored.tables[KEYED].keys]] = True
        self._model = model

    def weights(self) -> Iterable[Array]:
        """Of users, products and pairs."""
        return self._model.weights


class Films(Ratings):
    """Factorised ratings of films; every tenth, at random, is held out and judged by its squared error."""

    rate = 0.05
    alike = ()
    best: float | None = None

    def __init__(self, seed: int, *, intervals: int = 12, quick: bool = False) -> None:
        super().__init__(STEPS * intervals, seed=seed, quick=quick)
        self.intervals = STEPS * (2 if quick else intervals)
        held_out = np.random.default_rng(0).random(len(self._ratings)) < 0.1
        self._held_out = self._users[held_out], self._films[held_out], self._ratings[held_out]
        self._users, self._films = self._users[~held_out], self._films[~held_out]
        self._ratings = self._ratings[~held_out]

    def judge(self) -> float:
        """The mean squared error."""
        users, films, ratings = self._held_out
        rows = self._tables["user"][users], self._tables["film"][films]
        found = self._mean + np.einsum("nk,nk->n", *rows, dtype=np.float64)
        return float(np.mean((found - ratings) ** 2))

    @property
    def position(self) -> int:
        """The rating that is next."""
        return self._done

    def restore(self, manager: CheckpointManager) -> None:
        """In place."""
        restored = manager.restore(into=self.tables())
        assert restored is not None
        self._done = self._said = restored.reader

    def weights(self) -> Iterable[Array]:
        """Of users and films."""
        return self._tables.values()


def _dlrm(shape: Shape, optimizer: str = "adagrad") -> Callable[[int, bool], Learner]:
    def make_one(seed: int, quick: bool) -> Learner:
        chosen = QUICK._replace(drift=shape.drift) if quick else shape
        return Dlrm(make(chosen, seed), chosen, seed, optimizer=optimizer, steps=STEPS, dim=8 if quick else DIM)

    return make_one


LEARNERS: dict[str, Callable[[int, bool], Learner]] = {
    "dlrm": _dlrm(FULL),
    "drift": _dlrm(DRIFTING),
    "adagrad": _dlrm(SMALL),
    "adam": _dlrm(SMALL, "adam"),
    "sgd": _dlrm(SMALL, "sgd"),
    "orders": lambda seed, quick: Grocery(seed, quick=quick),
    "movielens": lambda seed, quick: Films(seed, quick=quick),
}
"""By their names: makers for a seed, of something tiny if so asked."""
