"""What encoding did to rows: relative l2 errors, and the rows that are off by too much."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Array, Bytes
from cnrfmt.encodings.checks import Flags

KINDS = {"float32": 0, "float16": 1, "bfloat16": 2}
"""How kernels name the data types of parameters."""

Errors = npt.NDArray[np.float64]


def measured(rows: Array, decoded: Array) -> Errors:
    """The relative l2 error of each row."""
    from cnrfmt.kernels import errors as kernel

    found = np.empty(len(rows), np.float64)
    kernel.row_errors(rows, decoded, found)
    return found


def take_out(errors: Errors, bad: Bytes, bound: float | None) -> Flags:
    """Which rows are off by more than the bound; they are set in `bad`, like those that were before.

    The errors of all these become 0. Without a bound it is 1: beyond that, a row of zeros would serve as well.
    Parameters in half precision do that to rows of very small numbers.
    """
    errors[bad != 0] = 0
    beyond: Flags = ~(errors <= (1.0 if bound is None else bound))
    bad[beyond], errors[beyond] = 1, 0
    return beyond


def total(errors: Any) -> tuple[float, float]:
    """The sum of errors and the greatest of them."""
    return (float(errors.sum()), float(errors.max())) if len(errors) else (0.0, 0.0)
