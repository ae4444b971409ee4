from __future__ import annotations

import numpy as np
import pytest

from cnrfmt.demo import quality
from cnrfmt.demo.model import SETTINGS, Model
from cnrfmt.demo.orders import Dataset
from cnrfmt.demo.training import Settings
from tests.demo.support import PlainTwin, touched_by_twin

TABLES = ("user", "product", "pair")
DENSE = ("linear", "hidden", "output", "probe")


def test_each_step_is_that_of_the_plain_twin(some: Dataset) -> None:
    model, twin = Model(some, seed=3), PlainTwin(some)
    stepped = dict.fromkeys(TABLES, 0)
    for order in range(60):
        want = twin.step(order, model)
        before = [weight.copy() for weight in model.weights]
        loss = model.train(order + 1)
        twin.remember(order)
        assert loss * want["terms"] == pytest.approx(want["loss"], rel=1e-5)
        assert model.random_state == want["random"]
        for name, old in zip(TABLES, before, strict=True):
            rows = want["rows"][name]
            weight, accumulator = getattr(model.weights, name), getattr(model.accumulators, name)
            np.testing.assert_allclose(weight[rows], want[name][0], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(accumulator[rows], want[name][1], rtol=1e-4, atol=1e-9)
            others = np.setdiff1d(np.arange(len(weight)), rows)
            assert weight[others].tobytes() == old[others].tobytes()
            stepped[name] += len(rows)
        for name in DENSE:
            np.testing.assert_allclose(getattr(model.dense, name), want[name][0], rtol=1e-4, atol=1e-5)
            found = getattr(model.dense_accumulators, name)
            np.testing.assert_allclose(found, want[name][1], rtol=1e-4, atol=1e-9)
    # The comparison would prove little if pairs never came up.
    assert min(stepped.values()) >= 60


def test_negatives_come_from_the_window_alone(some: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    # The whole stream of seven users is shorter than the real window.
    short = Settings(SETTINGS.rate, SETTINGS.dense_rate, 3, 40)
    monkeypatch.setattr("cnrfmt.demo.model.SETTINGS", short)
    monkeypatch.setattr("tests.demo.support.SETTINGS", short)
    model = Model(some, seed=5)
    want = touched_by_twin(some, model, 0, 50)
    model.train(50)
    assert {name: set(rows.tolist()) for name, rows in model.touched_rows().items()} == want


def test_logits_are_those_of_the_plain_twin(some: Dataset) -> None:
    model, twin = Model(some, seed=1), PlainTwin(some)
    model.train(70)
    for order in range(70):
        twin.remember(order)
    for user in range(some.users):
        products = np.arange(0, some.products, 3)
        want = twin.logits(user, products.tolist(), model)
        np.testing.assert_allclose(quality.logits(model, user, products), want, rtol=1e-4, atol=1e-4)
