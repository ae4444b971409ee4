"""What the tests of conversion share: whole contents that can be compared, and a model of every kind of thing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

import cnrfmt

Array = npt.NDArray[Any]

COLUMN_TYPES = (
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint64",
    "uint32",
    "uint16",
    "uint8",
)


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def bits(array: Any) -> tuple[str, tuple[int, ...], bytes]:
    """All that there is to an array: two are equal bit for bit if these are."""
    found = np.asarray(array)
    return found.dtype.name, found.shape, np.ascontiguousarray(found).tobytes()


def every_bit_pattern(name: str, dim: int = 4) -> Array:
    """A table whose elements run through bit patterns of a type, NaN payloads and denormals among them."""
    dtype = dtype_of(name)
    raw = np.arange(256 * dim * dtype.itemsize, dtype=np.uint32) * np.uint32(2654435761)
    return (raw >> np.uint32(24)).astype(np.uint8).view(dtype).reshape(256, dim)


def content(path: Path, version: int | None = None) -> dict[str, Any]:
    """Everything that a version of a container says, in a form that can be compared."""
    with cnrfmt.open(path, version=version) as ck:
        return {
            "tables": {
                name: {
                    "keys": None if table.keys is None else bits(table.keys),
                    "columns": {c: bits(table.read(column=c)) for c in table.columns},
                    "fill": {c: bits(table.fill(c)) for c in table.columns},
                }
                for name, table in ck.items()
            },
            "dense": {
                name: bits(value) if isinstance(value, np.ndarray) else value for name, value in ck.dense.items()
            },
            "metadata": ck.metadata,
            "step": ck.step,
        }
