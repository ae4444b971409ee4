"""The least error that any scale and bias leave in a row, or nearly: a fine grid, refined, in numpy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]

_FINEST = 20


def _levels(x: Doubles, top: int, scale: Doubles, bias: Doubles) -> Doubles:
    return np.clip(np.rint((x - bias[:, np.newaxis]) / scale[:, np.newaxis]), 0, top)


def _errors(x: Doubles, top: int, scale: Doubles, bias: Doubles) -> Doubles:
    change = _levels(x, top, scale, bias)
    change *= scale[:, np.newaxis]
    change += bias[:, np.newaxis] - x
    return np.einsum("ij,ij->i", change, change)


def _refit(x: Doubles, top: int, scale: Doubles, bias: Doubles) -> tuple[Doubles, Doubles]:
    """Scale and bias of the least squares for the codes of these."""
    levels = _levels(x, top, scale, bias)
    mean, moved = x.mean(), levels - levels.mean(axis=1, keepdims=True)
    spread = (moved**2).sum(axis=1)
    slope = (moved * (x - mean)).sum(axis=1) / np.maximum(spread, 1e-300)
    slope = np.where(slope > 0, slope, scale)
    return slope, mean - slope * levels.mean(axis=1)


def least_error(x: npt.NDArray[np.float32], bits: int, steps: int) -> float:
    """The euclidean norm of the least change that decoding can make in a row.

    Both ends of the range go through a grid of `steps` places, from a fifth of the distance between
    the extremes outside of them to four fifths inside; the best of them, with their scales and biases
    no longer bound to the grid, go through least squares until nothing changes.
    """
    row, top = x.astype(np.float64)[np.newaxis], (1 << bits) - 1
    low, reach = row.min(), np.ptp(row)
    if reach == 0:
        return 0.0
    cuts = np.linspace(-0.2, 0.8, steps)
    lower, upper = (cut.ravel() for cut in np.meshgrid(cuts, cuts))
    kept = lower + upper < 0.9
    lower, upper = lower[kept], upper[kept]
    scale, bias = reach * (1 - lower - upper) / top, low + lower * reach
    errors = np.concatenate(
        [_errors(row, top, scale[k : k + 1000], bias[k : k + 1000]) for k in range(0, len(scale), 1000)]
    )
    best = np.argsort(errors)[:64]
    scale, bias = scale[best], bias[best]
    least = errors[best[0]]
    for _ in range(_FINEST):
        scale, bias = _refit(row, top, scale, bias)
        least = min(least, _errors(row, top, scale, bias).min())
    return float(np.sqrt(least))
