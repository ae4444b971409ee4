"""Reading and writing HDF5 files, those of Keras among them: nested groups, datasets and attributes.

A dataset's name is its full path, as in ``layers/embedding/vars/0``. Groups, attributes, strings and
empty dataspaces become the user metadata ``hdf5``, from which they are written again. HDF5 has no
bfloat16 and no float8: they are stored as unsigned integers with an attribute ``cnrfmt_dtype`` that
names the type.

The HDF5 library itself reads the file, and its makers don't promise that it survives one that was made to
harm: what it reports becomes one of our errors, but it may crash on a file that isn't to be trusted. No link
or dataset that leads to another file is followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from cnrfmt import dtypes
from cnrfmt.arrays import Array
from cnrfmt.errors import CnrError, UsageError
from cnrfmt.integrations import hdf5_attributes
from cnrfmt.integrations.content import (
    MAX_ARRAYS,
    Export,
    Format,
    Incoming,
    Outgoing,
    Spool,
    damaged,
    row_step,
    slices,
)
from cnrfmt.integrations.notes import ARRAY, parse_notes
from cnrfmt.integrations.strings import is_shape, pack_strings, texts_of, unpack_strings

_DTYPE = "cnrfmt_dtype"
_MAX_STRINGS = 1 << 20
_CHUNK_CACHE = 1 << 20
"""Bytes of decompressed chunks that HDF5 keeps for an open dataset unless told."""
_MAX_CHUNK_CACHE = 64 << 20
_READ_ERRORS = (OSError, RuntimeError, ValueError, KeyError, TypeError, OverflowError, MemoryError)
_METADATA = frozenset(("groups", "arrays", "strings", "null"))


class Hdf5(Format):
    """The format HDF5."""

    name = "hdf5"
    suffixes = (".h5", ".hdf5")
    reserved = frozenset((ARRAY,))
    nested = True

    def legal(self, name: str) -> bool:
        """HDF5 takes a name for a path."""
        return not any(part in ("", ".") for part in name.split("/"))

    def native(self, metadata: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """What an HDF5 file once held beside its numbers."""
        ours = metadata.get("hdf5")
        if (
            not isinstance(ours, dict)
            or not set(ours) <= _METADATA
            or not all(isinstance(value, dict) for value in ours.values())
        ):
            return {}, dict(metadata)
        return ours, {k: v for k, v in metadata.items() if k != "hdf5"}

    def strings(self, native: Mapping[str, Any]) -> Mapping[str, Any]:
        """The names of dense entries that were strings in an HDF5 file, with their types and shapes."""
        found: Mapping[str, Any] = native.get("strings", {})
        return found

    @contextmanager
    def read(self, path: str, spool: Spool) -> Iterator[Incoming]:
        """Opens a file; its arrays can be read as long as the context lasts."""
        import h5py

        with _reading(path):
            file = h5py.File(path, "r")
        with file:
            with _reading(path):
                found = _Reader(path, spool).read(file)
            yield found

    def write(self, path: str, export: Export) -> None:
        """Writes a file where nothing is yet."""
        import h5py

        # Attributes of more than 64 KiB need what HDF5 1.8 brought.
        with h5py.File(path, "x", libver=("v108", "v110")) as file:
            _write(file, export)


@contextmanager
def _reading(place: str) -> Iterator[None]:
    """What h5py raises becomes one of our own errors."""
    try:
        yield
    except CnrError:
        raise
    except _READ_ERRORS as error:
        raise damaged(place, expected="an HDF5 file that can be read", found=error) from None


class _Reader:
    """A walk over a file, which follows no link out of it and meets every group once."""

    def __init__(self, path: str, spool: Spool) -> None:
        self._path, self._spool = path, spool
        self._found = Incoming()
        self._groups: dict[str, Any] = {}
        self._attributes: dict[str, Any] = {}
        self._strings: dict[str, Any] = {}
        self._null: dict[str, str] = {}

    def read(self, file: Any) -> Incoming:
        """All of the file."""
        import h5py

        seen = {h5py.h5o.get_info(file.id).addr}
        left = [("", file)]
        while left:
            path, group = left.pop()
            attributes = self._read_attributes(group, path or "/")
            if attributes or not len(group):
                self._groups[path] = attributes
            for name in group:
                inner = f"{path}/{name}" if path else name
                item = self._open(group, name, inner)
                if isinstance(item, h5py.Dataset):
                    self._dataset(item, inner)
                elif isinstance(item, h5py.Group):
                    address = h5py.h5o.get_info(item.id).addr
                    if address in seen:
                        self._found.skipped.append(f"{inner!r}: a group that is met under another name")
                    else:
                        seen.add(address)
                        left.append((inner, item))
        if self._groups == {"": {}}:
            self._groups.clear()
        kept = {
            "groups": self._groups,
            "arrays": self._attributes,
            "strings": self._strings,
            "null": self._null,
        }
        if any(kept.values()):
            self._found.metadata["hdf5"] = {k: v for k, v in kept.items() if v}
        return self._found

    def _open(self, group: Any, name: str, path: str) -> Any:
        import h5py

        link = group.get(name, getlink=True)
        if isinstance(link, h5py.ExternalLink):
            raise UsageError(f"{self._path}: {path!r} is a link to another file; copy it in first")
        if not isinstance(link, h5py.HardLink):
            self._found.skipped.append(f"{path!r}: a soft link")
            return None
        item = group[name]
        if not isinstance(item, h5py.Dataset | h5py.Group):
            self._found.skipped.append(f"{path!r}: a named type")
        return item

    def _read_attributes(self, item: Any, path: str) -> dict[str, Any]:
        kept = {}
        for name in item.attrs:
            what = f"attribute {name!r} of {path!r}"
            try:
                kept[name] = hdf5_attributes.to_json(item.attrs, name)
            except (UsageError, *_READ_ERRORS) as error:
                self._found.skipped.append(f"{what}: {error}")
        return kept

    def _dataset(self, dataset: Any, name: str) -> None:
        import h5py

        place = f"{self._path}, dataset {name!r}"
        with _reading(place):
            if len(self._found.arrays) + len(self._found.values) >= MAX_ARRAYS:
                raise UsageError(f"{self._path}: at most {MAX_ARRAYS} datasets")
            if dataset.is_virtual or dataset.external:
                raise UsageError(f"{place}: its data are in another file; copy them in first")
            if name == ARRAY:
                self._found.notes = parse_notes(_whole(dataset).tobytes(), place)
                return
            attributes = self._read_attributes(dataset, name)
            special = attributes.pop(_DTYPE, None)
            if attributes:
                self._attributes[name] = attributes
            if dataset.shape is None:
                self._null[name] = dtypes.name_of(dataset.dtype, what=place)
            elif (info := h5py.check_string_dtype(dataset.dtype)) is not None:
                self._found.values[name] = _read_strings(dataset, info, place)
                self._strings[name] = {
                    "encoding": info.encoding,
                    "length": info.length,
                    "shape": list(dataset.shape),
                }
            else:
                self._found.arrays[name] = self._array(dataset, special, place)

    def _array(self, dataset: Any, special: Any, place: str) -> Any:
        dtype = dtypes.dtype_of(dtypes.name_of(dataset.dtype, what=place))
        if special is not None:
            dtype = _special_dtype(special, dtype, place)
        elif not dataset.shape or _chunk_row_bytes(dataset) <= _CHUNK_CACHE:
            return dataset
        if not dataset.shape:
            return np.asarray(dataset[()]).view(dtype)
        # Large chunks would be decompressed again for each slice without a larger cache; that is kept no
        # longer than it takes to copy the dataset, since the caches of many would add up.
        return self._spool.keep(_pieces(dataset), place, dtype, dataset.shape)


def _whole(dataset: Any) -> Array:
    if dataset.shape is None or dataset.dtype != np.uint8:
        raise UsageError(f"dataset {ARRAY!r} holds the notes of a conversion, as uint8")
    return np.asarray(dataset[()])


def _special_dtype(name: Any, stored: np.dtype[Any], place: str) -> np.dtype[Any]:
    """The type that unsigned integers stand for."""
    if not isinstance(name, str) or name not in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        raise damaged(place, expected=f"{_DTYPE} that names an extended type", found=repr(name))
    dtype = dtypes.dtype_of(name)
    if stored.kind != "u" or stored.itemsize != dtype.itemsize:
        raise damaged(place, expected=f"unsigned integers that stand for {name}", found=stored)
    return dtype


def _chunk_row_bytes(dataset: Any) -> int:
    """The bytes of all chunks that hold one row; 0 where the data aren't in chunks."""
    if dataset.chunks is None:
        return 0
    rows, width = dataset.chunks[0], 1
    for size, chunk in zip(dataset.shape[1:], dataset.chunks[1:], strict=True):
        width *= -(-size // chunk) * chunk
    return int(rows * width * dataset.dtype.itemsize)


def _pieces(dataset: Any) -> Iterator[Any]:
    """The bytes of a dataset, slice by slice, little-endian."""
    import h5py

    if (need := _chunk_row_bytes(dataset)) > _CHUNK_CACHE:
        access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
        access.set_chunk_cache(10007, min(need, _MAX_CHUNK_CACHE), 1.0)
        dataset = h5py.Dataset(h5py.h5d.open(dataset.file.id, dataset.name.encode("utf-8"), access))
    dtype = dataset.dtype.newbyteorder("<")
    for part in slices(dataset.shape[0], row_step(dataset.shape, dtype.itemsize)):
        yield np.ascontiguousarray(dataset[part], dtype).reshape(-1).view(np.uint8)


def _read_strings(dataset: Any, info: Any, place: str) -> Any:
    if info.length is not None:
        return pack_strings(np.asarray(dataset[()]), place)
    if dataset.size > _MAX_STRINGS:
        raise UsageError(f"{place}: at most {_MAX_STRINGS} strings of any length, found {dataset.size}")
    try:
        found = [item.decode("utf-8") for item in np.asarray(dataset[()], object).reshape(-1)]
    except UnicodeError:
        raise UsageError(f"{place}: strings that aren't UTF-8; store them as fixed-length bytes") from None
    return found if dataset.shape else found[0]


def _write(file: Any, export: Export) -> None:
    native = export.native
    attributes = native.get("arrays", {})
    for out in export.arrays:
        dataset = _write_array(file, out)
        if out.origin in attributes:
            hdf5_attributes.restore(dataset, attributes[out.origin], out.name)
    for name, value in export.values.items():
        dataset = _write_strings(file, name, value, native["strings"][name])
        hdf5_attributes.restore(dataset, attributes.get(name, {}), name)
    for name, dtype in native.get("null", {}).items():
        import h5py

        if not _is_taken(file, name):
            dataset = file.create_dataset(name, data=h5py.Empty(dtypes.dtype_of(dtype)))
            hdf5_attributes.restore(dataset, attributes.get(name, {}), name)
    for path, kept in native.get("groups", {}).items():
        if not _is_taken(file, path):
            hdf5_attributes.restore(file.require_group(path) if path else file, kept, path or "/")
    if export.notes:
        file.create_dataset(ARRAY, data=np.frombuffer(export.notes.dump(), np.uint8))


def _is_taken(file: Any, path: str) -> bool:
    """Whether something that isn't a group has this path or lies on it."""
    import h5py

    parts = path.split("/")
    on_it = ("/".join(parts[: n + 1]) for n in range(len(parts)))
    return any(isinstance(file.get(p), h5py.Dataset) for p in on_it if p)


def _write_array(file: Any, out: Outgoing) -> Any:
    dtype = out.dtype
    extended = dtype.type.__module__ == "ml_dtypes"
    if extended:
        dtype = np.dtype(f"<u{dtype.itemsize}")
    dataset = file.create_dataset(out.name, shape=out.shape, dtype=dtype)
    if extended:
        dataset.attrs[_DTYPE] = dtypes.name_of(out.dtype)
    position = 0
    for chunk in out.chunks():
        data = chunk.view(dtype) if extended else chunk
        if not out.shape:
            dataset[()] = data
        elif data.size:
            dataset[position : position + len(data)] = data
            position += len(data)
    return dataset


def _write_strings(file: Any, name: str, value: Any, mark: Any) -> Any:
    import h5py

    what = f"strings {name!r}"
    if not isinstance(mark, dict) or not is_shape(mark.get("shape")):
        raise UsageError(f"{what}: metadata['hdf5']['strings'] doesn't say their shape")
    shape, length = tuple(mark["shape"]), mark.get("length")
    encoding = mark.get("encoding")
    known = length is None or (type(length) is int and length > 0)
    if encoding not in ("utf-8", "ascii") or not known:
        raise UsageError(f"{what}: metadata['hdf5']['strings'] doesn't say their encoding")
    dtype = h5py.string_dtype(encoding, length)
    if length is None:
        texts = [text.encode("utf-8") for text in texts_of(value, shape, what)]
        array: Any = np.empty(len(texts), object)
        array[:] = texts
        array = array.reshape(shape)
    else:
        array = unpack_strings(value, np.dtype(f"S{length}"), shape, what)
    return file.create_dataset(name, data=array, shape=shape, dtype=dtype)


FORMAT = Hdf5()
