"""The trainer of the fidelity benchmark: a small DLRM, compiled; arrays in and out.

As in DLRM (Naumov et al., 2019), the rows that a sample looks up are summed up table by table; these vectors and what
the bottom layer makes of the plain features meet in dot products, and a top layer makes a logit of them. Rows take a
step after each sample: of row-wise Adagrad, with one accumulator per row, of Adam, with two moments per element, or of
plain gradient descent. The layers take a step of Adam (Kingma and Ba, 2015) after each batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cnrfmt.arrays import Array
from cnrfmt.kernels._jit import INTERPRETED

ADAGRAD, ADAM, SGD = range(3)
"""What rows are stepped by."""
BATCH = 32
"""Samples between two steps of the layers."""
_ZERO, _ONE = np.float32(0), np.float32(1)
_EPSILON = np.float32(1e-8)
_LAYER_RATE = np.float32(1e-3)
_BETA1, _BETA2 = 0.9, 0.999


def _fast(function: Any) -> Any:
    """Compiles with sums in any order: the same bits come out on one machine, not on every one."""
    if INTERPRETED:
        return function
    import numba

    from cnrfmt.kernels._cache import KernelCache

    dispatcher: Any = numba.njit(nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz", "arcp"})(
        function
    )
    dispatcher._cache = KernelCache(function)
    return dispatcher


class Stream(NamedTuple):
    """Samples.

    rows (samples x lookups, int32), of which `bags[t]` to `bags[t + 1]` are table t's; plain features (samples x
    features, float32); labels (uint8).
    """

    rows: Array
    bags: Array
    features: Array
    labels: Array


class Layers(NamedTuple):
    """The dense part, or its gradient: bottom (dim x features), hidden (units x inputs), output (units), and biases."""

    bottom: Array
    bottom_bias: Array
    hidden: Array
    hidden_bias: Array
    output: Array
    bias: Array


def layers_of(flat: Array, dim: int, features: int, tables: int, units: int) -> Layers:
    """Views of the parts of a flat array; `flat` has `layers_size` elements."""
    shapes = _shapes(dim, features, tables, units)
    ends = np.cumsum([np.prod(shape) for shape in shapes])
    return Layers(*(flat[e - int(np.prod(s)) : e].reshape(s) for e, s in zip(ends, shapes, strict=True)))


def layers_size(dim: int, features: int, tables: int, units: int) -> int:
    """Elements of all layers."""
    return int(sum(np.prod(shape) for shape in _shapes(dim, features, tables, units)))


def _shapes(dim: int, features: int, tables: int, units: int) -> list[tuple[int, ...]]:
    inputs = dim + (tables + 1) * tables // 2
    return [(dim, features), (dim,), (units, inputs), (units,), (units,), (1,)]


class Optimizer(NamedTuple):
    """What rows are stepped by: kind, learning rate, state.

    `first` is the accumulator (rows x 1) or the first moment (rows x dim), `second` the second moment; where there is
    none, an array of one element.
    """

    kind: int
    rate: np.float32
    first: Array
    second: Array


class Descent(NamedTuple):
    """The state of the layers' Adam, flat: parameters, gradient, moments; and the number of steps (one int64)."""

    values: Array
    gradient: Array
    first: Array
    second: Array
    steps: Array


@_fast
def forward(s: int, stream: Stream, weight: Array, layers: Layers, vectors: Array, inputs: Array, hidden: Array) -> Any:
    """The logit of sample s; fills `vectors` (tables + 1 x dim), `inputs` and `hidden`."""
    tables, dim = len(stream.bags) - 1, weight.shape[1]
    for t in range(tables):
        for k in range(dim):
            vectors[t, k] = _ZERO
        for b in range(stream.bags[t], stream.bags[t + 1]):
            row = stream.rows[s, b]
            for k in range(dim):
                vectors[t, k] += weight[row, k]
    for k in range(dim):
        total = layers.bottom_bias[k]
        for f in range(stream.features.shape[1]):
            total += layers.bottom[k, f] * stream.features[s, f]
        vectors[tables, k] = inputs[k] = max(total, _ZERO)
    n = dim
    for i in range(1, tables + 1):
        for j in range(i):
            total = _ZERO
            for k in range(dim):
                total += vectors[i, k] * vectors[j, k]
            inputs[n] = total
            n += 1
    logit = layers.bias[0]
    for u in range(len(hidden)):
        total = layers.hidden_bias[u]
        for n in range(len(inputs)):
            total += layers.hidden[u, n] * inputs[n]
        hidden[u] = max(total, _ZERO)
        logit += layers.output[u] * hidden[u]
    return logit


@_fast
def train(
    begin: int,
    end: int,
    stream: Stream,
    weight: Array,
    optimizer: Optimizer,
    layers: Layers,
    gradient: Layers,
    descent: Descent,
    touched: Array,
) -> float:
    """Trains on samples `begin` to `end - 1`, in place; the summed log-loss, each sample's before its step.

    Both are multiples of `BATCH`. Rows that are looked up are marked in `touched`, one byte each.
    """
    tables, dim = len(stream.bags) - 1, weight.shape[1]
    vectors, d_vectors = np.empty((tables + 1, dim), np.float32), np.empty((tables + 1, dim), np.float32)
    inputs = np.empty(layers.hidden.shape[1], np.float32)
    d_inputs = np.empty(len(inputs), np.float32)
    hidden = np.empty(len(layers.output), np.float32)
    loss = 0.0
    for s in range(begin, end):
        logit = forward(s, stream, weight, layers, vectors, inputs, hidden)
        label = np.float32(stream.labels[s])
        loss += np.log1p(np.exp(-np.float64(logit if label else -logit)))
        error = _ONE / (_ONE + np.exp(-logit)) - label
        for n in range(len(inputs)):
            d_inputs[n] = _ZERO
        gradient.bias[0] += error
        for u in range(len(hidden)):
            if hidden[u] > _ZERO:
                gradient.output[u] += error * hidden[u]
                below = error * layers.output[u]
                gradient.hidden_bias[u] += below
                for n in range(len(inputs)):
                    gradient.hidden[u, n] += below * inputs[n]
                    d_inputs[n] += below * layers.hidden[u, n]
        for t in range(tables):
            for k in range(dim):
                d_vectors[t, k] = _ZERO
        for k in range(dim):
            d_vectors[tables, k] = d_inputs[k]
        n = dim
        for i in range(1, tables + 1):
            for j in range(i):
                d = d_inputs[n]
                n += 1
                for k in range(dim):
                    d_vectors[i, k] += d * vectors[j, k]
                    d_vectors[j, k] += d * vectors[i, k]
        for k in range(dim):
            if vectors[tables, k] > _ZERO:
                d = d_vectors[tables, k]
                gradient.bottom_bias[k] += d
                for f in range(stream.features.shape[1]):
                    gradient.bottom[k, f] += d * stream.features[s, f]
        for t in range(tables):
            square = _ZERO
            for k in range(dim):
                square += d_vectors[t, k] * d_vectors[t, k]
            square /= np.float32(dim)
            for b in range(stream.bags[t], stream.bags[t + 1]):
                row = stream.rows[s, b]
                touched[row] = 1
                if optimizer.kind == ADAGRAD:
                    optimizer.first[row, 0] += square
                    step = optimizer.rate / (np.sqrt(optimizer.first[row, 0]) + _EPSILON)
                    for k in range(dim):
                        weight[row, k] -= step * d_vectors[t, k]
                elif optimizer.kind == ADAM:
                    _adam(weight[row], d_vectors[t], optimizer.first[row], optimizer.second[row], optimizer.rate)
                else:
                    for k in range(dim):
                        weight[row, k] -= optimizer.rate * d_vectors[t, k]
        if s % BATCH == BATCH - 1:
            _descend(descent)
    return loss


@_fast
def _adam(values: Array, gradient: Array, first: Array, second: Array, rate: Any) -> None:
    """A step of Adam on a row, as after many steps: without the correction of the moments' start."""
    for k in range(len(values)):
        first[k] += np.float32(1 - _BETA1) * (gradient[k] - first[k])
        second[k] += np.float32(1 - _BETA2) * (gradient[k] * gradient[k] - second[k])
        values[k] -= rate * first[k] / (np.sqrt(second[k]) + np.float32(1e-6))


@_fast
def _descend(descent: Descent) -> None:
    """A step of Adam with the mean gradient of a batch; leaves the gradient at zero."""
    descent.steps[0] += 1
    steps = descent.steps[0]
    first_scale = np.float32(1 / (1 - _BETA1**steps))
    second_scale = np.float32(1 / (1 - _BETA2**steps))
    for k in range(len(descent.values)):
        g = descent.gradient[k] / np.float32(BATCH)
        descent.first[k] += np.float32(1 - _BETA1) * (g - descent.first[k])
        descent.second[k] += np.float32(1 - _BETA2) * (g * g - descent.second[k])
        root = np.sqrt(descent.second[k] * second_scale)
        descent.values[k] -= _LAYER_RATE * descent.first[k] * first_scale / (root + _EPSILON)
        descent.gradient[k] = _ZERO


@_fast
def judge(begin: int, end: int, stream: Stream, weight: Array, layers: Layers) -> float:
    """The summed log-loss on samples `begin` to `end - 1`."""
    vectors = np.empty((len(stream.bags), weight.shape[1]), np.float32)
    inputs = np.empty(layers.hidden.shape[1], np.float32)
    hidden = np.empty(len(layers.output), np.float32)
    loss = 0.0
    for s in range(begin, end):
        logit = forward(s, stream, weight, layers, vectors, inputs, hidden)
        loss += np.log1p(np.exp(-np.float64(logit if stream.labels[s] else -logit)))
    return loss
