"""How good a trained model is on what was held out, and how the baselines do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cnrfmt.demo import training
from cnrfmt.demo.model import Model
from cnrfmt.demo.orders import Dataset, Float64, Int64

TOP = 20
_NEGATIVES = 8


@dataclass(frozen=True)
class Quality:
    """The quality of one model, by user.

    `recall` is the share of each user's held-out order that is among the `TOP` products of their ranking;
    `loss` is the user's summed log-loss on the held-out products and the negatives beside them, and
    `terms` their number. Models of the same dataset and seed are judged on the same negatives, so that
    two of them can be compared user by user.
    """

    recall: Float64
    loss: Float64
    terms: Int64

    @property
    def mean_recall(self) -> float:
        """Recall@20, the mean over users."""
        return float(self.recall.mean())

    @property
    def mean_loss(self) -> float:
        """Log-loss in nats, the mean over all products judged."""
        return float(self.loss.sum() / self.terms.sum())


@dataclass(frozen=True)
class Difference:
    """A difference between two models and its standard error, from the differences by user."""

    value: float
    error: float


def recall_difference(ours: Quality, base: Quality) -> Difference:
    """By how much the mean recall is higher than the base's."""
    by_user = ours.recall - base.recall
    return Difference(float(by_user.mean()), _standard_error(by_user))


def loss_difference(ours: Quality, base: Quality) -> Difference:
    """By how much the mean log-loss is higher than the base's, as a share of the base's."""
    by_user = ours.loss - base.loss
    total = float(base.loss.sum())
    return Difference(float(by_user.sum()) / total, _standard_error(by_user) * len(by_user) / total)


def _standard_error(values: Float64) -> float:
    return float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else float("inf")


def judge(model: Model, seed: int) -> Quality:
    """Judges a model that was trained on the whole stream."""
    data = model.data
    recall = np.empty(data.users, np.float64)
    loss = np.empty(data.users, np.float64)
    examples = held_out_examples(data, seed)
    products = np.arange(data.products, dtype=np.int64)
    # The model learns against negatives that come as often as they are bought, so its logit says how
    # much likelier than by popularity alone a product is; the ranking puts the popularity back.
    prior = np.log(model.seen.popularity + 0.5)
    for user, (chosen, positives) in enumerate(examples):
        recall[user] = share_found(logits(model, user, products) + prior, data.held_out.basket(user))
        found = logits(model, user, chosen).astype(np.float64)
        found[:positives] *= -1
        loss[user] = np.logaddexp(0, found).sum()
    return Quality(recall, loss, np.array([len(chosen) for chosen, _ in examples], np.int64))


def logits(model: Model, user: int, products: Int64) -> npt.NDArray[np.float32]:
    """The model's logit of each of these products for a user, float32."""
    out = np.empty(len(products), np.float32)
    training.logits(user, products, model.stream, model.seen, model.weights, model.dense, out)
    return out


def share_found(scores: npt.NDArray[np.floating], wanted: npt.NDArray[np.integer]) -> float:
    """The share of the wanted products that are among the `TOP` by score."""
    top = np.argsort(-scores, kind="stable")[:TOP]
    return float(np.isin(wanted, top).mean())


def held_out_examples(data: Dataset, seed: int) -> list[tuple[Int64, int]]:
    """For each user the held-out products, then negatives; and how many are held-out products.

    The negatives are drawn from the lines of the stream, so they come as often as they are bought.
    """
    random = np.random.default_rng([seed, 1])
    examples = []
    for user in range(data.users):
        basket = data.held_out.basket(user).astype(np.int64)
        drawn = random.choice(data.stream.products, len(basket) * _NEGATIVES)
        negatives = np.setdiff1d(drawn, basket)
        examples.append((np.concatenate([basket, negatives]), len(basket)))
    return examples


def popularity_recall(data: Dataset) -> float:
    """Recall@20 of showing everybody the products that are bought most."""
    scores = np.bincount(data.stream.products, minlength=data.products).astype(np.float64)
    baskets = [data.held_out.basket(user) for user in range(data.users)]
    return float(np.mean([share_found(scores, basket) for basket in baskets]))


def favourites_recall(data: Dataset) -> float:
    """Recall@20 of showing each user what they bought most themselves, ties by popularity."""
    stream = data.stream
    line_users = np.repeat(stream.users, np.diff(stream.starts))
    popularity = np.bincount(stream.products, minlength=data.products)
    prior = popularity / (popularity.sum() + 1)
    found = []
    for user in range(data.users):
        own = np.bincount(stream.products[line_users == user], minlength=data.products)
        found.append(share_found(own + prior, data.held_out.basket(user)))
    return float(np.mean(found))
