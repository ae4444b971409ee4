"""Attributes of HDF5 as JSON, and back without loss.

Strings of any length, lists of these, booleans, int64 and finite float64 stand as JSON says them. Others
are objects that name their type: ``{"dtype", "shape", "values"}`` or, where JSON can't say the values,
``{"dtype", "shape", "hex"}``; ``{"encoding", "length", "shape", "strings"}`` for other strings (``hex``
where they aren't text); ``{"dtype", "null"}`` for one without a value.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cnrfmt import dtypes
from cnrfmt.arrays import Array
from cnrfmt.errors import UsageError
from cnrfmt.format.limits import MAX_INTEGER
from cnrfmt.integrations.strings import is_shape, pack_strings, texts_of, unpack_strings


def to_json(attributes: Any, name: str) -> Any:
    """The value of an attribute; raises `UsageError` where JSON has no way to say it."""
    import h5py

    stored = attributes.get_id(name)
    value = attributes[name]
    if isinstance(value, h5py.Empty):
        return {"dtype": dtypes.name_of(value.dtype), "null": True}
    info = h5py.check_string_dtype(stored.dtype)
    if info is not None:
        return _strings_to_json(value, info, tuple(stored.shape))
    array = np.asarray(value)
    dtype = dtypes.dtype_of(dtypes.name_of(array.dtype))
    array = np.asarray(array, dtype, order="C")
    plain = _plain_values(array)
    if plain is not None and not array.shape and array.dtype.name in ("bool", "int64", "float64"):
        return plain[0]
    kept: dict[str, Any] = {"dtype": dtypes.name_of(array.dtype), "shape": list(array.shape)}
    return kept | ({"hex": array.tobytes().hex()} if plain is None else {"values": plain})


def _plain_values(array: Array) -> list[Any] | None:
    """The elements as JSON says them; None where it can't."""
    if array.dtype.kind not in "biuf" or not np.isfinite(array).all():
        return None
    found: list[Any] = array.reshape(-1).tolist()
    if array.dtype.kind in "iu" and any(abs(n) > MAX_INTEGER for n in found):
        return None
    return found


def _strings_to_json(value: Any, info: Any, shape: tuple[int, ...]) -> Any:
    if info.length is not None:
        packed = pack_strings(np.asarray(value, f"S{info.length}").reshape(shape), "strings")
    else:
        items = np.asarray(value, object).reshape(-1).tolist()
        try:
            texts = [t.decode("utf-8") if isinstance(t, bytes) else t for t in items]
            "".join(texts).encode("utf-8")
        except UnicodeError:
            raise UsageError("strings that aren't UTF-8") from None
        if info.encoding == "utf-8" and (not shape or (len(shape) == 1 and texts)):
            return texts if shape else texts[0]
        packed = texts if shape else texts[0]
    kept = {"encoding": info.encoding, "length": info.length, "shape": list(shape)}
    return kept | ({"hex": packed.hex()} if isinstance(packed, bytes) else {"strings": packed})


def restore(item: Any, kept: Any, path: str) -> None:
    """Gives a group or dataset its attributes; raises `UsageError` where they aren't what `to_json` gives."""
    import h5py

    what = f"attributes of {path!r}"
    if not isinstance(kept, dict):
        raise UsageError(f"metadata['hdf5']: {what} must be a dict, found {kept!r}")
    for name, value in kept.items():
        try:
            if isinstance(value, str):
                item.attrs.create(name, value, dtype=h5py.string_dtype())
            elif isinstance(value, bool):
                item.attrs[name] = np.bool_(value)
            elif isinstance(value, int):
                item.attrs[name] = np.int64(value)
            elif isinstance(value, float):
                item.attrs[name] = np.float64(value)
            elif isinstance(value, list):
                texts = texts_of(value, (len(value),), what)
                item.attrs.create(name, texts, dtype=h5py.string_dtype())
            else:
                _restore_typed(item.attrs, name, value, what)
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
            raise UsageError(
                f"metadata['hdf5']: {what}, {name!r}: no attribute can be made of "
                f"{str(value)[:80]}: {error}"
            ) from None


def _restore_typed(attributes: Any, name: str, value: dict[str, Any], what: str) -> None:
    import h5py

    if value.get("null"):
        attributes[name] = h5py.Empty(dtypes.dtype_of(value["dtype"]))
        return
    shape = value["shape"]
    if not is_shape(shape):
        raise ValueError(f"{shape!r} is no shape")
    if "encoding" in value:
        _restore_strings(attributes, name, value, tuple(shape), what)
        return
    dtype = dtypes.dtype_of(value["dtype"])
    exact = bytes.fromhex(value["hex"]) if "hex" in value else None
    array = np.array(value["values"], dtype) if exact is None else np.frombuffer(exact, dtype)
    if array.size != math.prod(shape):
        raise ValueError(f"{array.size} values for the shape {shape}")
    attributes.create(name, array.reshape(shape), dtype=dtype)


def _restore_strings(
    attributes: Any, name: str, value: dict[str, Any], shape: tuple[int, ...], what: str
) -> None:
    import h5py

    length = value["length"]
    dtype = h5py.string_dtype(value["encoding"], length)
    packed = bytes.fromhex(value["hex"]) if "hex" in value else value["strings"]
    if length is None:
        array: Any = np.empty(math.prod(shape), object)
        array[:] = [text.encode("utf-8") for text in texts_of(packed, shape, what)]
        array = array.reshape(shape)
    else:
        array = unpack_strings(packed, np.dtype(f"S{length}"), shape, what)
    attributes.create(name, array, shape=shape, dtype=dtype)
