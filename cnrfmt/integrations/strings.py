"""Arrays of strings as dense state: JSON where they are text, bytes where they aren't."""

from __future__ import annotations

import math
from typing import Any, TypeGuard

import numpy as np

from cnrfmt.arrays import Array
from cnrfmt.errors import UsageError
from cnrfmt.format import limits

_MAX_TEXT = 16 << 20
"""Bytes from which on strings are kept as they are rather than as JSON."""


def pack_strings(array: Array, what: str) -> Any:
    """A string (0-dim) or a flat list of strings; bytes where these aren't text or are too many.

    `array` is of fixed-width bytes (``S``) or unicode (``U``). `unpack_strings` gives it back.
    """
    if array.dtype.itemsize == 0:
        raise UsageError(f"{what}: an array of strings of length 0 holds nothing; leave it out")
    if array.nbytes <= _MAX_TEXT:
        try:
            found = [_text(item) for item in array.reshape(-1).tolist()]
        except ValueError:  # Among them the UnicodeErrors.
            pass
        else:
            return found if array.ndim else found[0]
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return little.tobytes()


def _text(item: str | bytes) -> str:
    text = item.decode("utf-8") if isinstance(item, bytes) else item
    # JSON can't say half of a surrogate pair.
    text.encode("utf-8")
    return text


def unpack_strings(value: Any, dtype: np.dtype[Any], shape: tuple[int, ...], what: str) -> Array:
    """The array that `pack_strings` packed; raises `UsageError` if this isn't how it did."""
    count = math.prod(shape)
    dtype = dtype.newbyteorder("<")
    if isinstance(value, bytes):
        if len(value) != count * dtype.itemsize:
            raise UsageError(f"{what}: {len(value)} bytes for {count} strings of {dtype}")
        return np.frombuffer(value, dtype).reshape(shape)
    texts = texts_of(value, shape, what)
    items = [text.encode("utf-8") if dtype.kind == "S" else text for text in texts]
    width = dtype.itemsize // (1 if dtype.kind == "S" else 4)
    if any(len(item) > width for item in items):
        raise UsageError(f"{what}: a string is longer than {width}, the width that its array had")
    return np.array(items, dtype).reshape(shape)


def texts_of(value: Any, shape: tuple[int, ...], what: str) -> list[str]:
    """The strings in a packed value; raises `UsageError` unless there are as many as the shape says."""
    texts = [value] if isinstance(value, str) else value
    if (
        not isinstance(texts, list)
        or len(texts) != math.prod(shape)
        or not all(isinstance(text, str) for text in texts)
    ):
        raise UsageError(f"{what}: found something else than strings of shape {shape}")
    return texts


def is_shape(value: Any) -> TypeGuard[list[int]]:
    """Whether a JSON value is the shape of an array."""
    return (
        isinstance(value, list)
        and len(value) <= limits.MAX_DIMENSIONS
        and all(type(n) is int and 0 <= n <= limits.MAX_INTEGER for n in value)
    )
