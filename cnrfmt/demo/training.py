"""The training step and the scores, compiled: arrays in and out.

The recommender is a small relative of DLRM (Naumov et al., 2019): embedding rows of the user, the
product and, where the user has bought the product before, of that pair meet in dot products; these and
two plain features go through a linear map and one hidden layer to a logit. An order is a minibatch: its
products against products that others bought lately. Tables take a step of row-wise Adagrad (Duchi et
al., 2011, with one accumulator per row, as recommenders use it), everything else one of Adagrad.

All arithmetic on the model is float32, in a fixed order, so that a run that is repeated from the same
state gives the same bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cnrfmt.arrays import Array
from cnrfmt.kernels._jit import helper, jit

FEATURES = 7
"""user.product, pair.product, pair.user, pair.probe, popularity, recency, and the constant 1."""

_EPSILON = np.float32(1e-8)
_ONE = np.float32(1)
_ZERO = np.float32(0)
_POPULARITY_SCALE = 0.2



class Stream(NamedTuple):
    """The orders to train on: fields of `orders.Orders` and `orders.Dataset`."""

    users: Array
    starts: Array
    products: Array
    pair_of: Array
    line_pairs: Array


class Seen(NamedTuple):
    """What the orders up to now amount to: plain counts, int32.

    Orders of each user; purchases of each product; at which of its user's orders each pair was last bought.
    """

    orders: Array
    popularity: Array
    last_bought: Array


class Rows(NamedTuple):
    """One array per table: weights `rows x dim`, accumulators `rows`, or bits, one per row."""

    user: Array
    product: Array
    pair: Array


class Dense(NamedTuple):
    """The dense part: parameters, their accumulators or their gradients, float32.

    linear (features), hidden (units x features), output (units), probe (dim).
    """

    linear: Array
    hidden: Array
    output: Array
    probe: Array


class Settings(NamedTuple):
    """Learning rates of tables and of the dense part, negatives per product, window of lines."""

    rate: np.float32
    dense_rate: np.float32
    negatives: int
    window: int


@helper
def dot(a: Array, b: Array) -> Any:
    """The dot product of two rows, summed from the first element to the last."""
    total = _ZERO
    for k in range(len(a)):
        total += a[k] * b[k]
    return total


@helper
def features(user: Array, product: Array, pair: Array, probe: Array, bought: int, gap: int, out: Array) -> None:
    """Fills `out`; `gap` is the number of orders since the pair was last bought, 0 for never."""
    out[0] = dot(user, product)
    out[1] = dot(pair, product)
    out[2] = dot(pair, user)
    out[3] = dot(pair, probe)
    out[4] = np.float32(_POPULARITY_SCALE * np.log1p(bought))
    out[5] = _ONE / np.float32(gap) if gap > 0 else _ZERO
    out[6] = _ONE


@helper
def forward(inputs: Array, dense: Dense, hidden: Array) -> Any:
    """The logit of these features; fills `hidden` with what the hidden layer gives."""
    logit = dot(dense.linear, inputs)
    for j in range(len(hidden)):
        hidden[j] = max(dot(dense.hidden[j], inputs), _ZERO)
        logit += dense.output[j] * hidden[j]
    return logit


@helper
def backward(inputs: Array, hidden: Array, error: Any, dense: Dense, gradient: Dense, d_inputs: Array) -> None:
    """Adds to the gradient of the dense part, and fills that of the features."""
    for i in range(len(inputs)):
        gradient.linear[i] += error * inputs[i]
        d_inputs[i] = error * dense.linear[i]
    for j in range(len(hidden)):
        if hidden[j] > _ZERO:
            gradient.output[j] += error * hidden[j]
            below = error * dense.output[j]
            for i in range(len(inputs)):
                gradient.hidden[j, i] += below * inputs[i]
                d_inputs[i] += below * dense.hidden[j, i]


@helper
def row_step(weight: Array, accumulator: Array, row: int, gradient: Array, rate: Any) -> None:
    """A step of row-wise Adagrad: the accumulator takes the mean of the squared gradient."""
    accumulator[row] += dot(gradient, gradient) / np.float32(len(gradient))
    step = rate / (np.sqrt(accumulator[row]) + _EPSILON)
    for k in range(len(gradient)):
        weight[row, k] -= step * gradient[k]


@helper
def flat_step(weight: Array, accumulator: Array, gradient: Array, rate: Any) -> None:
    """A step of Adagrad on flat arrays; leaves the gradient at zero."""
    for i in range(len(weight)):
        accumulator[i] += gradient[i] * gradient[i]
        weight[i] -= rate * gradient[i] / (np.sqrt(accumulator[i]) + _EPSILON)
        gradient[i] = _ZERO


@helper
def mark(bits: Array, row: int) -> None:
    """Sets the bit of a row."""
    bits[row >> 3] |= np.uint8(1 << (row & 7))


@helper
def draw(random: Array) -> Any:
    """The next number of xorshift64 (Marsaglia, 2003), whose state is `random[0]`, never 0."""
    x = random[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    random[0] = x
    return x


@helper
def choose(order: int, stream: Stream, settings: Settings, random: Array, taken: Array, out: Array) -> int:
    """Fills `out` with the order's products and the negatives, all distinct; gives their number.

    Negatives are products of the latest lines up to this order, so they come as often as they are bought.
    `taken` holds, for each product, the order that last took it.
    """
    first, last = stream.starts[order], stream.starts[order + 1]
    count = 0
    for line in range(first, last):
        out[count] = stream.products[line]
        taken[out[count]] = order
        count += 1
    start = max(0, first - settings.window)
    for _ in range((last - first) * settings.negatives):
        product = stream.products[start + np.int64(draw(random) % np.uint64(last - start))]
        if taken[product] != order:
            taken[product] = order
            out[count] = product
            count += 1
    return count


@jit
def train(
    begin: int,
    end: int,
    stream: Stream,
    seen: Seen,
    weights: Rows,
    accumulators: Rows,
    touched: Rows,
    dense: Dense,
    dense_accumulators: Dense,
    random: Array,
    settings: Settings,
) -> tuple[float, int]:
    """Trains on the orders `begin` to `end - 1`, in place; gives the summed log-loss and its terms.

    Every gradient of an order is taken at the weights before the order. Each row is stepped once per
    order: a product is chosen once, and so is its pair; the user's row is stepped at the end.
    """
    dim = weights.user.shape[1]
    longest = 1
    for order in range(begin, end):
        longest = max(longest, stream.starts[order + 1] - stream.starts[order])
    chosen = np.empty(longest * (1 + settings.negatives), np.int64)
    taken = np.full(len(seen.popularity), -1, np.int64)
    inputs, d_inputs = np.empty(FEATURES, np.float32), np.empty(FEATURES, np.float32)
    hidden = np.empty(len(dense.output), np.float32)
    no_pair = np.zeros(dim, np.float32)
    d_user, d_product = np.empty(dim, np.float32), np.empty(dim, np.float32)
    d_pair = np.empty(dim, np.float32)
    gradient = Dense(
        np.zeros_like(dense.linear),
        np.zeros_like(dense.hidden),
        np.zeros_like(dense.output),
        np.zeros_like(dense.probe),
    )
    loss, terms = 0.0, 0
    for order in range(begin, end):
        user = stream.users[order]
        positives = stream.starts[order + 1] - stream.starts[order]
        count = choose(order, stream, settings, random, taken, chosen)
        user_row = weights.user[user]
        mark(touched.user, user)
        d_user[:] = _ZERO
        for c in range(count):
            product = chosen[c]
            pair = stream.pair_of[user, product]
            # A pair has a row only once it was bought in an earlier order.
            known = pair >= 0 and seen.last_bought[pair] > 0
            product_row = weights.product[product]
            pair_row = weights.pair[pair] if known else no_pair
            gap = seen.orders[user] - seen.last_bought[pair] + 1 if known else 0
            mark(touched.product, product)
            if known:
                mark(touched.pair, pair)
            bought = seen.popularity[product]
            features(user_row, product_row, pair_row, dense.probe, bought, gap, inputs)
            logit = forward(inputs, dense, hidden)
            label = _ONE if c < positives else _ZERO
            loss += np.log1p(np.exp(-np.float64(logit if c < positives else -logit)))
            terms += 1
            error = _ONE / (_ONE + np.exp(-logit)) - label
            backward(inputs, hidden, error, dense, gradient, d_inputs)
            for k in range(dim):
                u, p, e = user_row[k], product_row[k], pair_row[k]
                d_user[k] += d_inputs[0] * p + d_inputs[2] * e
                d_product[k] = d_inputs[0] * u + d_inputs[1] * e
                d_pair[k] = d_inputs[1] * p + d_inputs[2] * u + d_inputs[3] * dense.probe[k]
                gradient.probe[k] += d_inputs[3] * e
            row_step(weights.product, accumulators.product, product, d_product, settings.rate)
            if known:
                row_step(weights.pair, accumulators.pair, pair, d_pair, settings.rate)
        row_step(weights.user, accumulators.user, user, d_user, settings.rate)
        rate = settings.dense_rate
        flat_step(dense.linear, dense_accumulators.linear, gradient.linear, rate)
        flat_step(dense.output, dense_accumulators.output, gradient.output, rate)
        flat_step(dense.probe, dense_accumulators.probe, gradient.probe, rate)
        for j in range(len(hidden)):
            flat_step(dense.hidden[j], dense_accumulators.hidden[j], gradient.hidden[j], rate)
        seen.orders[user] += 1
        for line in range(stream.starts[order], stream.starts[order + 1]):
            seen.popularity[stream.products[line]] += 1
            seen.last_bought[stream.line_pairs[line]] = seen.orders[user]
    return loss, terms


@jit
def logits(user: int, products: Array, stream: Stream, seen: Seen, weights: Rows, dense: Dense, out: Array) -> None:
    """Fills `out` with the logit of each of these products for a user, after all orders seen."""
    inputs = np.empty(FEATURES, np.float32)
    hidden = np.empty(len(dense.output), np.float32)
    no_pair = np.zeros(weights.user.shape[1], np.float32)
    for c in range(len(products)):
        product = products[c]
        pair = stream.pair_of[user, product]
        known = pair >= 0 and seen.last_bought[pair] > 0
        pair_row = weights.pair[pair] if known else no_pair
        gap = seen.orders[user] - seen.last_bought[pair] + 1 if known else 0
        user_row, product_row = weights.user[user], weights.product[product]
        bought = seen.popularity[product]
        features(user_row, product_row, pair_row, dense.probe, bought, gap, inputs)
        out[c] = forward(inputs, dense, hidden)
