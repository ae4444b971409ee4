"""Models held against each other, and slow, plain twins of the demo's arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np

from cnrfmt.demo.model import KEYED, SETTINGS, Model
from cnrfmt.demo.orders import Dataset


def same_bits(one: Model, other: Model) -> bool:
    """Whether two models hold the same bits: tables, accumulators, dense part, generator, reader."""
    pairs = [
        *zip(one.weights, other.weights, strict=True),
        *zip(one.accumulators, other.accumulators, strict=True),
        *zip(one.dense, other.dense, strict=True),
        *zip(one.dense_accumulators, other.dense_accumulators, strict=True),
        *zip(one.seen, other.seen, strict=True),
        (one.random, other.random),
    ]
    return one.order == other.order and all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs)


class PlainTwin:
    """The training of one order at a time in float64, from the formulas, with dicts and matrices."""

    def __init__(self, data: Dataset) -> None:
        self.data = data
        self.history: dict[int, list[list[int]]] = {user: [] for user in range(data.users)}
        self.bought: dict[int, int] = dict.fromkeys(range(data.products), 0)
        self.lines: list[int] = []

    def choose(self, order: int, random: int) -> tuple[list[int], int, int]:
        """The products of the order, then the negatives; how many are products; the generator's state."""
        basket = self.data.stream.basket(order).tolist()
        chosen = list(basket)
        window = self.lines[-SETTINGS.window :] + basket
        for _ in range(len(basket) * SETTINGS.negatives):
            random ^= (random << 13) % 2**64
            random ^= random >> 7
            random ^= (random << 17) % 2**64
            product = window[random % len(window)]
            if product not in chosen:
                chosen.append(product)
        return chosen, len(basket), random

    def inputs(self, user: int, products: list[int], model: Model) -> tuple[np.ndarray, np.ndarray, list[int]]:
        """Features (products x features), pair rows (zero where there is none), pair numbers or -1."""
        u = model.weights.user[user].astype(np.float64)
        probe = model.dense.probe.astype(np.float64)
        rows, pair_rows, pairs = [], [], []
        for product in products:
            p = model.weights.product[product].astype(np.float64)
            bought_at = [n for n, basket in enumerate(self.history[user]) if product in basket]
            pair = int(self.data.pair_of[user, product]) if bought_at else -1
            e = model.weights.pair[pair].astype(np.float64) if bought_at else np.zeros(len(p))
            recency = 1 / (len(self.history[user]) - bought_at[-1]) if bought_at else 0.0
            popularity = 0.2 * np.log1p(self.bought[product])
            rows.append([u @ p, e @ p, e @ u, e @ probe, popularity, recency, 1.0])
            pair_rows.append(e)
            pairs.append(pair)
        return np.array(rows), np.array(pair_rows), pairs

    def logits(self, user: int, products: list[int], model: Model) -> np.ndarray:
        x, _, _ = self.inputs(user, products, model)
        hidden, output, linear = (
            model.dense.hidden.astype(np.float64),
            model.dense.output.astype(np.float64),
            model.dense.linear.astype(np.float64),
        )
        return x @ linear + np.maximum(x @ hidden.T, 0) @ output

    def step(self, order: int, model: Model) -> dict[str, Any]:
        """What training on one order makes of the model: new values, float64; the model stays as it is."""
        data = self.data
        user = int(data.stream.users[order])
        chosen, positives, random = self.choose(order, model.random_state)
        x, e, pairs = self.inputs(user, chosen, model)
        dense = {name: v.astype(np.float64) for name, v in model.dense._asdict().items()}
        u = model.weights.user[user].astype(np.float64)
        p = model.weights.product[chosen].astype(np.float64)
        before = x @ dense["hidden"].T
        logit = x @ dense["linear"] + np.maximum(before, 0) @ dense["output"]
        label = np.arange(len(chosen)) < positives
        loss = np.where(label, np.logaddexp(0, -logit), np.logaddexp(0, logit))
        error = 1 / (1 + np.exp(-logit)) - label
        d_before = (error[:, None] * dense["output"]) * (before > 0)
        dx = error[:, None] * dense["linear"] + d_before @ dense["hidden"]
        d_user = (dx[:, :1] * p + dx[:, 2:3] * e).sum(0)
        d_product = dx[:, :1] * u + dx[:, 1:2] * e
        d_pair = dx[:, 1:2] * p + dx[:, 2:3] * u + dx[:, 3:4] * dense["probe"]
        gradients = {
            "linear": error @ x,
            "hidden": d_before.T @ x,
            "output": error @ np.maximum(before, 0),
            "probe": dx[:, 3] @ e,
        }
        known = [n for n, pair in enumerate(pairs) if pair >= 0]
        result: dict[str, Any] = {
            "loss": loss.sum(),
            "terms": len(chosen),
            "random": random,
            "rows": {"user": [user], "product": chosen, "pair": [pairs[n] for n in known]},
        }
        rates = {"user": d_user[None], "product": d_product, "pair": d_pair[known]}
        for name, rows in result["rows"].items():
            g = rates[name].reshape(len(rows), len(u))
            accumulator = getattr(model.accumulators, name)[rows] + (g * g).mean(1)
            weight = getattr(model.weights, name)[rows].astype(np.float64)
            step = float(SETTINGS.rate) / (np.sqrt(accumulator) + 1e-8)
            result[name] = (weight - step[:, None] * g, accumulator)
        for name, g in gradients.items():
            accumulator = getattr(model.dense_accumulators, name) + g * g
            moved = dense[name] - float(SETTINGS.dense_rate) * g / (np.sqrt(accumulator) + 1e-8)
            result[name] = (moved, accumulator)
        return result

    def remember(self, order: int) -> None:
        """Counts the order in."""
        basket = self.data.stream.basket(order).tolist()
        self.history[int(self.data.stream.users[order])].append(basket)
        for product in basket:
            self.bought[product] += 1
        self.lines += basket


def touched_by_twin(data: Dataset, model: Model, begin: int, end: int) -> dict[str, set[int]]:
    """The rows that training on these orders looks up; `model` is a fresh one, whose generator is used."""
    twin, random = PlainTwin(data), model.random_state
    touched: dict[str, set[int]] = {"user": set(), "product": set(), KEYED: set()}
    for order in range(end):
        user = int(data.stream.users[order])
        chosen, _, random = twin.choose(order, random)
        if order >= begin:
            had = {product for basket in twin.history[user] for product in basket}
            touched["user"].add(user)
            touched["product"].update(chosen)
            touched[KEYED].update(int(data.pair_of[user, p]) for p in chosen if p in had)
        twin.remember(order)
    return touched
