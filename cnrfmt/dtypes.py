"""The data types of the specification (section 2.5) and the numpy dtypes that hold them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from cnrfmt.errors import UsageError
from cnrfmt.format.encoding import DENSE_ITEM_SIZES, ITEM_SIZES

COLUMN_TYPES = tuple(ITEM_SIZES)
"""The names of the data types that columns may have."""
DENSE_TYPES = tuple(DENSE_ITEM_SIZES)
"""The names of the data types that dense arrays may have: those of columns and a few more."""

_EXTENDED = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
# Kind and item size, since numpy has several names and letters for one and the same type.
_STANDARD = {(np.dtype(name).kind, size): name for name, size in DENSE_ITEM_SIZES.items() if name not in _EXTENDED}


def name_of(dtype: npt.DTypeLike, *, column: bool = False, what: str = "") -> str:
    """The data type that a numpy dtype of either byte order is stored as.

    Parameters
    ----------
    dtype
        Any numpy dtype; bfloat16 and float8 are those of ml_dtypes.
    column
        Whether it is for a column, which can't be boolean or complex.
    what
        What has this dtype, for the message.

    Raises
    ------
    UsageError
        The format has no such data type.
    """
    try:
        found = np.dtype(dtype)
    except TypeError:
        raise UsageError(f"{what + ': ' if what else ''}{dtype!r} is no numpy dtype") from None
    if found.type.__module__ == "ml_dtypes":
        name = found.name if found.name in _EXTENDED else None
    else:
        name = _STANDARD.get((found.kind, found.itemsize))
    known = COLUMN_TYPES if column else DENSE_TYPES
    if name not in known:
        raise UsageError(
            f"{what + ': ' if what else ''}dtype {found} can't be stored "
            f"{'in a column' if column else 'as an array'}; "
            f"convert it to one of {', '.join(known)}"
        )
    return name


@cache
def dtype_of(name: str) -> np.dtype[Any]:
    """The little-endian numpy dtype of a data type; raises `UsageError` on an unknown name."""
    if name not in DENSE_ITEM_SIZES:
        raise UsageError(f"data type {name!r} isn't one of {', '.join(DENSE_TYPES)}")
    if name in _EXTENDED:
        import ml_dtypes

        extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return extended
    dtype: np.dtype[Any] = np.dtype(name)
    return dtype.newbyteorder("<")
