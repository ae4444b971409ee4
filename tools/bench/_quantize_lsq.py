"""Point 3: alternating least squares, against the greedy search and an exhaustive one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cnrfmt.encodings import Recipe
from cnrfmt.encodings.rowwise import geometry
from cnrfmt.format.encoding import RowwiseLayout
from cnrfmt.kernels import layouts
from tools.bench._figures import say
from tools.bench._quantize_codes import decoded, kernels_of, mean_error, recipe, row_errors, statistics_of
from tools.bench._quantize_exhaustive import best_parameters
from tools.bench._quantize_figures import Line, error, race, speed
from tools.bench._quantize_setting import Setting, Values

Errors = npt.NDArray[np.float64]

_BITS = (2, 3, 4)
_STARTS = (2, 4)
_LEAST_RATE = 0.5
_SLACK = 1.005
_GRID, _QUICK_GRID = 200, 8


def figures(setting: Setting) -> list[Line]:
    """Speed, and mean errors beside those of both searches."""
    found = []
    for case in setting.cases():
        rows, sample = setting.few(*case), setting.sample(*case)
        for bits in _BITS:
            say(f"point 3: {case[0]} rows of {case[1]}, {bits} bits")
            found += _lines(setting, case, rows, sample, bits)
    return found


def _lines(setting: Setting, case: tuple[str, int], rows: Values, sample: Values, bits: int) -> list[Line]:
    greedy = recipe(bits, "adaptive")
    best = exhaustive(greedy, sample, _QUICK_GRID if setting.quick else _GRID)
    ways = {f"lsq, {bits} bits, {starts} starts": recipe(bits, "lsq", starts=starts) for starts in _STARTS}
    never, safe = f"lsq, {bits} bits, never worse", recipe(bits, "lsq", never_worse=True)
    whole = {name: f"{name}, encoder with statistics" for name in ways}
    times = race(
        setting.short_repeat,
        {
            "greedy": kernels_of(greedy, rows),
            **{name: kernels_of(how, rows) for name, how in (*ways.items(), (never, safe))},
            **{whole[name]: statistics_of(how, rows) for name, how in ways.items()},
        },
    )
    of_greedy = row_errors(rows, again(greedy, rows))
    found = []
    for name, how in ways.items():
        own, of_sample = mean_error(rows, again(how, rows)), mean_error(sample, again(how, sample))
        beside = "greedy", float(of_greedy.mean())
        found += [
            speed(3, name, case, times[name], rows.nbytes, least_rate=_LEAST_RATE),
            speed(3, name, case, times[name], rows.nbytes, peer=("greedy", times["greedy"])),
            speed(3, whole[name], case, times[whole[name]], rows.nbytes),
            error(3, f"{name}, mean error", case, own, peer=beside, most=1.0),
            error(3, f"{name}, mean error of a sample", case, of_sample, peer=("exhaustive", best), most=_SLACK),
        ]
    worst = float(worse(row_errors(rows, again(safe, rows)), of_greedy).max())
    return [
        *found,
        speed(3, never, case, times[never], rows.nbytes),
        error(3, f"{never}: of a row's error to greedy's, the worst", case, worst, most=1.0),
    ]


def again(how: Recipe, rows: Values) -> Values:
    """The rows, encoded and decoded."""
    return decoded(how.layout, kernels_of(how, rows)(), rows)


def worse(own: Errors, other: Errors) -> Errors:
    """How many times the other's errors ours are, row by row; 1 where both are 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(own == other, 1.0, own / other)


def exhaustive(how: Recipe, rows: Values, grid: int) -> float:
    """The mean error under the parameters that an exhaustive search finds."""
    layout = how.layout
    assert isinstance(layout, RowwiseLayout)
    out = np.empty((len(rows), layout.row_bytes(rows.shape[1])), np.uint8)
    scales, biases = best_parameters(rows, layout.bits, grid)
    layouts.encode_codes(rows, scales, biases, np.zeros(len(rows), np.uint8), *geometry(layout, rows.shape[1]), out)
    return mean_error(rows, decoded(layout, out.reshape(-1), rows))
