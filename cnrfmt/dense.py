"""The dense state: everything of a model that is not a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from cnrfmt import dtypes
from cnrfmt.errors import DamagedError, UsageError
from cnrfmt.format import limits, strict_json
from cnrfmt.format.toc import DenseEntry
from cnrfmt.inputs import as_array
from cnrfmt.memory import Budget

if TYPE_CHECKING:
    from cnrfmt.segment_reader import SegmentReader

_JSON_TYPES = (dict, list, tuple, str, int, float, bool, type(None))


def prepare(dense: Mapping[str, Any]) -> list[tuple[DenseEntry, np.ndarray[Any, Any]]]:
    """The entries, their section numbers still open, each with its bytes (uint8).

    Arrays of any shape and anything array-like become arrays, `bytes` stay bytes, and what JSON can say becomes
    JSON. Raises `UsageError`.
    """
    if not isinstance(dense, Mapping):
        raise UsageError(f"dense must be a dict of names to values, found {type(dense).__name__}")
    if len(dense) > limits.MAX_DENSE:
        raise UsageError(f"dense: at most {limits.MAX_DENSE} entries, found {len(dense)}")
    found = []
    for name, value in dense.items():
        what = f"dense[{name!r}]"
        strict_json.check_name(name, what)
        if isinstance(value, bytes | bytearray):
            found.append((DenseEntry(name, "bytes", None), np.frombuffer(value, np.uint8)))
        elif isinstance(value, _JSON_TYPES) and not isinstance(value, np.generic):
            strict_json.check_user_value(value, what)
            text = strict_json.dump(value)
            found.append((DenseEntry(name, "json", None), np.frombuffer(text, np.uint8)))
        else:
            array = np.ascontiguousarray(as_array(value, what=what))
            shape = as_array(value, what=what).shape
            if len(shape) > limits.MAX_DIMENSIONS:
                raise UsageError(f"{what}: at most {limits.MAX_DIMENSIONS} dimensions")
            entry = DenseEntry(name, "array", None, dtypes.name_of(array.dtype), shape)
            found.append((entry, array.reshape(-1).view(np.uint8)))
    return found


def read_dense(segment: SegmentReader, budget: Budget) -> dict[str, Any]:
    """The dense state that a segment carries; arrays are private copies.

    Raises `DamagedError`, or `TooLargeError` before anything is read.
    """
    for entry in segment.toc.dense or ():
        length = 0 if entry.section is None else segment.toc.sections[entry.section][1]
        what = f"{segment.place}, dense entry {entry.name!r}"
        if entry.kind == "json":
            budget.take_json(length, what)
        else:
            # Bytes as they are read, and as they are given out.
            budget.take(2 * length, what)
    return {entry.name: read_entry(segment, entry) for entry in segment.toc.dense or ()}


def read_entry(segment: SegmentReader, entry: DenseEntry) -> Any:
    """One entry's value; raises `DamagedError`."""
    place = f"{segment.place}, dense entry {entry.name!r}"
    data = b"" if entry.section is None else segment.section(entry.section).tobytes()
    if entry.kind == "bytes":
        return data
    if entry.kind == "json":
        return strict_json.parse(data, place)
    if entry.dtype == "bool" and data.strip(b"\0\1"):
        raise DamagedError("dense-entry", place, expected="bytes of 0 or 1", found="others")
    array = np.frombuffer(bytearray(data), dtypes.dtype_of(entry.dtype))
    return array.reshape(entry.shape)
