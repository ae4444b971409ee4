from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from cnrfmt.demo import quality
from cnrfmt.demo.model import Model
from cnrfmt.demo.orders import Dataset
from cnrfmt.demo.quality import Quality
from cnrfmt.kernels._jit import INTERPRETED


def top_twin(scores: dict[int, float]) -> list[int]:
    return sorted(scores, key=lambda product: (-scores[product], product))[:20]


def test_share_found_counts_what_is_among_the_top() -> None:
    scores = np.array([math.sin(n) for n in range(50)])
    top = top_twin(dict(enumerate(scores.tolist())))
    assert quality.share_found(scores, np.array(top[:3])) == 1
    assert quality.share_found(scores, np.array([top[0], top[19], 0, 1])) == pytest.approx(
        len({top[0], top[19], 0, 1} & set(top)) / 4
    )
    assert quality.share_found(np.zeros(50), np.array([19, 20])) == 0.5


def test_baselines_are_those_of_plain_counting(some: Dataset) -> None:
    everybody = Counter(some.stream.products.tolist())
    popular, favourite = [], []
    for user in range(some.users):
        own: Counter[int] = Counter()
        for order in np.flatnonzero(some.stream.users == user):
            own.update(some.stream.basket(int(order)).tolist())
        wanted = set(some.held_out.basket(user).tolist())
        by_all = top_twin({p: everybody[p] for p in range(some.products)})
        by_own = top_twin({p: own[p] + everybody[p] / 1e9 for p in range(some.products)})
        popular.append(len(wanted & set(by_all)) / len(wanted))
        favourite.append(len(wanted & set(by_own)) / len(wanted))
    assert quality.popularity_recall(some) == pytest.approx(np.mean(popular))
    assert quality.favourites_recall(some) == pytest.approx(np.mean(favourite))


def test_judging_is_that_of_the_formulas(some: Dataset) -> None:
    model = Model(some)
    model.train(len(some.stream))
    found = quality.judge(model, seed=9)
    everybody = Counter(some.stream.products.tolist())
    for user, (chosen, positives) in enumerate(quality.held_out_examples(some, 9)):
        logits = quality.logits(model, user, np.arange(some.products)).astype(float).tolist()
        scores = {p: z + math.log(everybody[p] + 0.5) for p, z in enumerate(logits)}
        wanted = set(some.held_out.basket(user).tolist())
        assert found.recall[user] == pytest.approx(len(wanted & set(top_twin(scores))) / len(wanted))
        loss = 0.0
        for number, product in enumerate(chosen.tolist()):
            chance = 1 / (1 + math.exp(-logits[product]))
            loss -= math.log(chance if number < positives else 1 - chance)
        assert found.loss[user] == pytest.approx(loss, rel=1e-5)
        assert found.terms[user] == len(chosen)
    assert found.mean_loss == pytest.approx(found.loss.sum() / found.terms.sum())


def test_every_model_is_judged_on_the_same_examples(some: Dataset) -> None:
    first, again = (quality.held_out_examples(some, 1) for _ in range(2))
    other = quality.held_out_examples(some, 2)
    sold = set(some.stream.products.tolist())
    for user, (chosen, positives) in enumerate(first):
        basket = some.held_out.basket(user).tolist()
        assert chosen[:positives].tolist() == basket
        negatives = chosen[positives:].tolist()
        assert not set(negatives) & set(basket)
        assert set(negatives) <= sold
        assert len(negatives) > len(basket)
        assert chosen.tolist() == again[user][0].tolist()
    assert any(a.tolist() != b.tolist() for (a, _), (b, _) in zip(first, other, strict=True))


def test_differences_are_paired_by_user() -> None:
    terms = np.array([10, 20, 30])
    base = Quality(np.array([0.1, 0.2, 0.6]), np.array([1.0, 2.0, 3.0]), terms)
    ours = Quality(np.array([0.2, 0.2, 0.5]), np.array([1.1, 2.1, 3.1]), terms)
    recall = quality.recall_difference(ours, base)
    assert recall.value == pytest.approx(0)
    assert recall.error == pytest.approx(0.1 / math.sqrt(3))
    loss = quality.loss_difference(ours, base)
    # The same change for every user leaves no doubt about it.
    assert loss.value == pytest.approx(0.3 / 6)
    assert loss.error == pytest.approx(0, abs=1e-12)
    one = Quality(np.array([0.1]), np.array([1.0]), np.array([5]))
    assert quality.recall_difference(one, one).error == math.inf


def test_the_model_is_worth_restoring(everything: Dataset, some: Dataset) -> None:
    # Interpreted kernels train on seven users alone, among whom popularity is no bad guess.
    data, margin = (some, 1.2) if INTERPRETED else (everything, 4)
    model = Model(data)
    model.train(len(data.stream))
    good = quality.judge(model, 0)
    assert good.mean_recall > margin * quality.popularity_recall(data)
    # And it's the tables that know: without the rows of users and pairs most of it is gone.
    model.weights.user[:] = 0
    model.weights.pair[:] = 0
    poor = quality.judge(model, 0)
    assert poor.mean_recall < 0.75 * good.mean_recall
    assert poor.mean_loss > good.mean_loss
