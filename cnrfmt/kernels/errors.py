"""What decoding changed in each row, relative to the row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cnrfmt.kernels._jit import jit
from cnrfmt.kernels._machine import pointer
from cnrfmt.kernels._sums import squares

Rows = npt.NDArray[np.float32]
Errors = npt.NDArray[np.float64]


@jit
def row_errors(rows: Rows, decoded: Rows, errors: Errors) -> None:
    """errors[i] = the euclidean norm of decoded[i] - rows[i], divided by that of rows[i].

    It is 0 for a row that was decoded exactly, one of zeros too, and infinite for a row of zeros that
    wasn't.
    """
    dim = rows.shape[1]
    values, changed = pointer(rows), pointer(decoded)
    for i in range(len(rows)):
        change, norm = squares(values, changed, i * dim, dim)
        errors[i] = np.sqrt(change / norm) if change != 0 else 0.0
