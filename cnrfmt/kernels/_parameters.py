"""Scales and biases as they stand in a row: numbers of a kind, anywhere in bytes."""

from __future__ import annotations

import numpy as np

from cnrfmt.arrays import Bytes
from cnrfmt.kernels._halves import FLOAT16, FLOAT32, bfloat_of, float_of, float_of_bfloat, half_of
from cnrfmt.kernels._jit import helper
from cnrfmt.kernels._machine import load_u16, load_u32, store


@helper
def size_of(kind: int) -> int:
    """The bytes of a number of this kind."""
    return 4 if kind == FLOAT32 else 2


@helper
def load_parameter(data: Bytes, at: int, kind: int) -> np.float32:
    """The number that starts at data[at]."""
    if kind == FLOAT32:
        parameter: np.float32 = np.uint32(load_u32(data, at)).view(np.float32)
    elif kind == FLOAT16:
        parameter = float_of(load_u16(data, at))
    else:
        parameter = float_of_bfloat(load_u16(data, at))
    return parameter


@helper
def store_parameter(out: Bytes, at: int, x: np.float32, kind: int) -> None:
    """Put a number at out[at]."""
    if kind == FLOAT32:
        store(out, at, x)
    elif kind == FLOAT16:
        store(out, at, half_of(x))
    else:
        store(out, at, bfloat_of(x))
