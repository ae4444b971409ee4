"""What decoding changed in each row, relative to the row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cnrfmt.kernels._jit import helper, jit
from cnrfmt.kernels._machine import pointer
from cnrfmt.kernels._sums import squares

Rows = npt.NDArray[np.float32]
Values = npt.NDArray[np.float32]
Errors = npt.NDArray[np.float64]


@helper
def error_of(values: Values, first: int, decoded: Values, at: int, dim: int) -> float:
    """The relative error of the row at values[first] that was decoded to the one at decoded[at]."""
    change, norm = squares(values, first, decoded, at, dim)
    return float(np.sqrt(change / norm)) if change != 0 else 0.0


@jit
def row_errors(rows: Rows, decoded: Rows, errors: Errors) -> None:
    """errors[i] = the euclidean norm of decoded[i] - rows[i], divided by that of rows[i].

    It is 0 for a row that was decoded exactly, one of zeros too, and infinite for a row of zeros that
    wasn't.
    """
    dim = rows.shape[1]
    values, changed = pointer(rows), pointer(decoded)
    for i in range(len(rows)):
        errors[i] = error_of(values, i * dim, changed, i * dim, dim)
