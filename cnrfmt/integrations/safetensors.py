"""Reading and writing safetensors files: a length, a JSON header, then the tensors one behind the other.

The layout is that of the format's own description: eight bytes of little-endian length, a JSON object that maps names
to ``{"dtype", "shape", "data_offsets"}`` with an optional ``__metadata__`` of strings, then the data, without holes.
Nothing but the standard library and numpy is needed, and neither reading nor writing holds a tensor in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np

from cnrfmt import dtypes
from cnrfmt.errors import DamagedError, UnsupportedError, UsageError
from cnrfmt.format import strict_json
from cnrfmt.integrations.content import (
    MAX_ARRAYS,
    Export,
    FileArray,
    Format,
    Incoming,
    Outgoing,
    Spool,
    check_shape,
    damaged,
)
from cnrfmt.integrations.notes import KEY, parse_notes

_METADATA = "__metadata__"
MAX_HEADER = 32 << 20
"""Bytes of a header that is read: some 200,000 tensors. (The format itself allows 100,000,000.)"""

_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
    "complex64": "C64",
}
_TYPES = {theirs: ours for ours, theirs in _NAMES.items()}


class Safetensors(Format):
    """The format safetensors."""

    name = "safetensors"
    suffixes = (".safetensors",)
    reserved = frozenset((_METADATA,))

    def check_dtype(self, dtype: np.dtype[Any], what: str) -> None:
        """Raises `UsageError` if the format has no such data type."""
        if dtypes.name_of(dtype) not in _NAMES:
            raise UsageError(f"{what}: safetensors has no {dtype}; convert it, or choose HDF5 or npz")

    def native(self, metadata: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Strings have a place in the header, save under the key that the notes need."""
        ours = {k: v for k, v in metadata.items() if isinstance(v, str) and k != KEY}
        return ours, {k: v for k, v in metadata.items() if k not in ours}

    @contextmanager
    def read(self, path: str, spool: Spool) -> Iterator[Incoming]:
        """Opens a file; its arrays can be read as long as the context lasts."""
        with open(path, "rb") as file:
            yield _parse(file, path)

    def write(self, path: str, export: Export) -> None:
        """Writes a file where nothing is yet."""
        arrays, header = _header(export)
        with open(path, "xb") as file:
            file.write(len(header).to_bytes(8, "little"))
            file.write(header)
            for out in arrays:
                for chunk in out.chunks():
                    # Files know nothing of extended data types.
                    file.write(np.ascontiguousarray(chunk).reshape(-1).view(np.uint8).data)


def _header(export: Export) -> tuple[list[Outgoing], bytes]:
    """The arrays in the order of their data, and the header."""
    metadata = dict(export.native)
    if export.notes:
        metadata[KEY] = export.notes.dump().decode("utf-8")
    entries: dict[str, Any] = {_METADATA: metadata} if metadata else {}
    # The largest elements first, so that each tensor is aligned for its own.
    arrays = sorted(export.arrays, key=lambda out: (-out.dtype.itemsize, out.name))
    position = 0
    for out in arrays:
        entries[out.name] = {
            "dtype": _NAMES[dtypes.name_of(out.dtype)],
            "shape": list(out.shape),
            "data_offsets": [position, position + out.nbytes],
        }
        position += out.nbytes
    header = strict_json.dump(entries)
    header += b" " * (-len(header) % 8)
    if len(header) > MAX_HEADER:
        raise UsageError(
            f"a safetensors header goes to {MAX_HEADER} bytes here, and this one needs {len(header)}; "
            "choose fewer tables or another format"
        )
    return arrays, header


def _parse(file: BinaryIO, path: str) -> Incoming:
    size = os.fstat(file.fileno()).st_size
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > size - 8:
        raise damaged(
            f"{path}, header length",
            expected=f"8 bytes that say at most {max(0, size - 8)}",
            found=f"{len(start)} bytes that say {length}",
        )
    if length > MAX_HEADER:
        raise damaged(f"{path}, header length", expected=f"at most {MAX_HEADER}", found=length)
    header = file.read(length)
    place = f"{path}, header"
    if not header.startswith(b"{"):
        raise damaged(place, expected="a JSON object", found=repr(header[:20]))
    try:
        entries = strict_json.parse(header, place)
    except DamagedError as error:
        raise damaged(place, expected=error.expected, found=error.found) from None
    if not isinstance(entries, dict) or len(entries) > MAX_ARRAYS:
        raise damaged(place, expected=f"an object of at most {MAX_ARRAYS} tensors", found="another")
    found = Incoming()
    _read_metadata(found, entries.pop(_METADATA, {}), place)
    spans = []
    for name, entry in entries.items():
        array, span = _tensor(file, 8 + length, entry, f"{path}, tensor {name!r}")
        found.arrays[name] = array
        spans.append((*span, name))
    _check_spans(spans, size - 8 - length, place)
    return found


def _read_metadata(found: Incoming, metadata: Any, place: str) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise damaged(f"{place}, {_METADATA}", expected="an object of strings", found="another value")
    notes = metadata.pop(KEY, None)
    if notes is not None:
        found.notes = parse_notes(notes.encode("utf-8"), f"{place}, {KEY}")
    found.metadata = metadata


def _tensor(
    file: BinaryIO, base: int, entry: Any, place: str
) -> tuple[FileArray, tuple[int, int]]:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise damaged(place, expected="dtype, shape and data_offsets", found=str(entry)[:80])
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
        raise damaged(
            place, expected="shape and data_offsets of counts", found=f"{shape}, {offsets}"[:80]
        )
    if not isinstance(dtype, str) or dtype not in _TYPES:
        raise UnsupportedError(place, f"the data type {str(dtype)[:40]!r}")
    kind = dtypes.dtype_of(_TYPES[dtype])
    want = check_shape(tuple(shape), kind.itemsize, place)
    first, stop = offsets
    if stop - first != want:
        raise damaged(
            place,
            expected=f"{want} bytes for {dtype} of shape {shape}",
            found=f"data_offsets {offsets}",
        )
    return FileArray(file, place, base + first, kind, tuple(shape)), (first, stop)


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _check_spans(spans: list[tuple[int, int, str]], size: int, place: str) -> None:
    """The tensors must fill the data without holes and overlaps, as the format asks."""
    position = 0
    for first, stop, name in sorted(spans):
        if first != position:
            raise damaged(
                f"{place}, tensor {name!r}",
                expected=f"data from byte {position}, where the one before ends",
                found=f"from byte {first}",
            )
        position = stop
    if position != size:
        raise damaged(
            place, expected=f"{position} bytes of data, as the tensors say", found=f"{size}"
        )


FORMAT = Safetensors()
