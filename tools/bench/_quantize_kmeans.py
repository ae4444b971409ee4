"""Point 5: codebooks by k-means for each row, against scikit-learn's."""

from __future__ import annotations

import functools
import statistics
import time
import warnings
from typing import Any

import numpy as np

from tools.bench._figures import say
from tools.bench._quantize_codes import kernels_of, recipe, row_errors
from tools.bench._quantize_figures import Line, error, race, speed
from tools.bench._quantize_lsq import again, worse
from tools.bench._quantize_setting import Setting, Values

_BITS = (2, 3, 4)
_RESTARTS = 10
_PEER = f"scikit-learn, n_init={_RESTARTS}"
_ROUNDINGS = 1e-6
"""The same clusters may have centres that differ in the last bit."""


def figures(setting: Setting) -> list[Line]:
    """GB/s; and for a sample of rows the time and the error beside scikit-learn's, of centres rounded alike."""
    found = []
    for case in setting.cases():
        rows, sample = setting.few(*case), setting.sample(*case)
        for bits in _BITS:
            say(f"point 5: {case[0]} rows of {case[1]}, {bits} bits")
            exact, stored = recipe(bits, "kmeans", params="float32"), recipe(bits, "kmeans")
            times = race(
                setting.repeat,
                {
                    "rows": kernels_of(stored, rows),
                    "sample": kernels_of(exact, sample),
                },
            )
            seconds, centres = fit(sample, bits)
            name = f"k-means, {bits} bits"
            found.append(speed(5, name, case, times["rows"], rows.nbytes))
            middle = [statistics.median(times["sample"])]
            found.append(speed(5, f"{name}, a sample", case, middle, sample.nbytes, peer=(_PEER, [seconds])))
            for kind, how, most in (("float32", exact, 1 + _ROUNDINGS), ("float16", stored, None)):
                other = nearest(sample, centres.astype(kind).astype(np.float32))
                ratios = worse(row_errors(sample, again(how, sample)), row_errors(sample, other))
                text = f"{name}, {kind}: of a row's error to scikit-learn's"
                found.append(error(5, f"{text}, the worst", case, float(ratios.max()), most=most))
                found.append(error(5, f"{text}, the mean", case, float(ratios.mean())))
    return found


@functools.cache
def peer() -> tuple[Any, Any]:
    """The class of scikit-learn, and what holds it to so many threads."""
    try:
        from sklearn.cluster import KMeans
        from threadpoolctl import threadpool_limits
    except ImportError as problem:
        raise SystemExit(f"point 5 is held against scikit-learn: pip install scikit-learn ({problem})") from problem
    return KMeans, threadpool_limits


def fit(rows: Values, bits: int) -> tuple[float, Any]:
    """Seconds that scikit-learn takes for all rows, by one thread, and its centres, (rows, 2**bits) of float64."""
    kmeans, threadpool_limits = peer()
    centres = np.empty((len(rows), 1 << bits))
    exact = rows.astype(np.float64)[:, :, None]
    # It warns where a row has fewer distinct values than clusters.
    with threadpool_limits(1), warnings.catch_warnings(action="ignore"):
        start = time.perf_counter()
        for row, found in zip(exact, centres, strict=True):
            found[:] = kmeans(1 << bits, n_init=_RESTARTS, random_state=0).fit(row).cluster_centers_[:, 0]
        return time.perf_counter() - start, centres


def nearest(rows: Values, centres: Values) -> Values:
    """For each element the centre of its row that is nearest to it."""
    distances = np.abs(rows.astype(np.float64)[:, :, None] - centres[:, None, :])
    return np.take_along_axis(centres, distances.argmin(axis=2), axis=1)
