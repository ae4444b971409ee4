"""Reading and writing npz files: zip archives of npy members, each an array with a short header.

Members that are stored as they are get read by slices where they lie; compressed ones are decompressed into a temporary
file first. Either way each member is read once from end to end, so that the zip's checksums are checked. Nothing
is ever unpickled.
"""

from __future__ import annotations

import ast
import io
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import IO, Any, BinaryIO

import numpy as np

from cnrfmt import dtypes
from cnrfmt.arrays import Array
from cnrfmt.errors import CnrError, UnsupportedError, UsageError
from cnrfmt.integrations.content import (
    MAX_ARRAYS,
    TILE,
    Export,
    FileArray,
    Format,
    Incoming,
    Outgoing,
    Spool,
    check_shape,
    damaged,
)
from cnrfmt.integrations.notes import ARRAY, parse_notes
from cnrfmt.integrations.strings import is_shape, pack_strings, unpack_strings

_SUFFIX = ".npy"
_PIECE = 1 << 20
_READ_ERRORS = (OSError, EOFError, ValueError, KeyError, IndexError, OverflowError, MemoryError)
_MAX_HEADER = 4096
"""Bytes of an npy header that is read; numpy's own are 128 as a rule."""
# What numpy writes into a header, and no sign or operator for the evaluation of literals to get lost in.
_HEADER = re.compile(r"[\w\s{}'\":,()<>|=]*", re.ASCII)
_LARGE = re.compile(r"\d{17}")
_PYTHON_2 = re.compile(r"(\d)L\b")
_DESCR = re.compile(r"[<>|=]?([biufcmMO]\d{0,2}|[SUV]\d{1,9})")
_ALIGNMENT = 64
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_PADDING_ID = 0xD935
"""The id of an extra field that holds nothing but padding, as Android's zipalign writes it."""


class Npz(Format):
    """The format npz."""

    name = "npz"
    suffixes = (".npz",)
    reserved = frozenset((ARRAY,))

    def legal(self, name: str) -> bool:
        """A backslash would be taken for a separator on some systems."""
        return "\\" not in name

    def native(self, metadata: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """What an npz file once held that a container can't say: the widths of strings."""
        ours = metadata.get("npz")
        if not isinstance(ours, dict) or set(ours) != {"strings"}:
            return {}, dict(metadata)
        if not isinstance(ours["strings"], dict):
            return {}, dict(metadata)
        return ours, {k: v for k, v in metadata.items() if k != "npz"}

    def strings(self, native: Mapping[str, Any]) -> Mapping[str, Any]:
        """The names of dense entries that were strings in an npz file, with their types and shapes."""
        found: Mapping[str, Any] = native.get("strings", {})
        return found

    @contextmanager
    def read(self, path: str, spool: Spool) -> Iterator[Incoming]:
        """Opens a file; its arrays can be read as long as the context lasts."""
        with open(path, "rb") as file:
            with _reading(path), zipfile.ZipFile(file) as archive:
                found = _read(archive, file, path, spool)
            yield found

    def write(self, path: str, export: Export) -> None:
        """Writes a file where nothing is yet."""
        extended = [out for out in export.arrays if _carrier(out.dtype) != out.dtype]
        types = {out.name: dtypes.name_of(out.dtype) for out in extended}
        notes = replace(export.notes, dtypes=types)
        with zipfile.ZipFile(path, "x", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for out in export.arrays:
                _write_member(archive, out)
            for name, value in export.values.items():
                array = _strings(value, export.native["strings"][name], name)
                _write_member(archive, Outgoing.of(name, array))
            if notes:
                _write_member(archive, Outgoing.of(ARRAY, np.frombuffer(notes.dump(), np.uint8)))


def _carrier(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Unsigned integers of the same size for the types that npy doesn't know."""
    if dtype.type.__module__ == "ml_dtypes":
        return np.dtype(f"<u{dtype.itemsize}")
    return dtype


def _strings(value: Any, mark: Any, name: str) -> Array:
    what = f"strings {name!r}"
    shape = mark.get("shape") if isinstance(mark, dict) else None
    dtype = mark.get("dtype") if isinstance(mark, dict) else None
    if not is_shape(shape) or not isinstance(dtype, str) or not re.fullmatch("[SU][0-9]{1,9}", dtype):
        raise UsageError(f"{what}: metadata['npz']['strings'] doesn't say their dtype and shape")
    return unpack_strings(value, np.dtype(dtype), tuple(shape), what)


def _write_member(archive: zipfile.ZipFile, out: Outgoing) -> None:
    header = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(_carrier(out.dtype))
    fields = {"descr": descr, "fortran_order": False, "shape": out.shape}
    np.lib.format.write_array_header_1_0(header, fields)
    # The date is fixed, so that the same content gives the same bytes.
    info = zipfile.ZipInfo(out.name + _SUFFIX, (1980, 1, 1, 0, 0, 0))
    info.external_attr = 0o644 << 16
    # zipfile adds an extra field of 20 bytes for sizes; a field of padding aligns what comes behind.
    assert archive.fp is not None
    before = archive.fp.tell() + 30 + len(info.filename.encode("utf-8")) + 20 + 4
    padding = -before % _ALIGNMENT
    info.extra = struct.pack("<HH", _PADDING_ID, padding) + bytes(padding)
    with archive.open(info, "w", force_zip64=True) as member:
        member.write(header.getvalue())
        for chunk in out.chunks():
            member.write(np.ascontiguousarray(chunk).reshape(-1).view(np.uint8).data)


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """What zipfile and its decompressors raise becomes one of our own errors."""
    try:
        yield
    except CnrError:
        raise
    except RuntimeError as error:
        # NotImplementedError among them: so zipfile speaks of encryption and of other methods.
        raise UnsupportedError(path, f"a kind of zip archive that can't be read here: {error}") from None
    except (zipfile.BadZipFile, zlib.error, struct.error, *_READ_ERRORS) as error:
        raise damaged(path, expected="a zip archive that can be read", found=error) from None


def _read(archive: zipfile.ZipFile, file: BinaryIO, path: str, spool: Spool) -> Incoming:
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        if not info.filename.endswith(_SUFFIX):
            raise UsageError(
                f"{path}: member {info.filename!r} is no array (its name doesn't end in {_SUFFIX}); "
                "take it out of the archive first"
            )
        name = info.filename.removesuffix(_SUFFIX)
        if name in members:
            raise damaged(path, expected=f"one member {info.filename!r}", found="two")
        members[name] = info
    if len(members) > MAX_ARRAYS:
        raise UsageError(f"{path}: at most {MAX_ARRAYS} arrays, found {len(members)}")
    _check_members(members.values(), path)
    found = Incoming()
    if ARRAY in members:
        info = members.pop(ARRAY)
        place = f"{path}, member {info.filename!r}"
        notes = _read_member(archive, file, info, spool, place, None)
        if notes.dtype != np.uint8 or notes.ndim != 1:
            raise damaged(place, expected="notes as uint8", found=notes.dtype)
        found.notes = parse_notes(notes[()].tobytes(), place)
    strings: dict[str, Any] = {}
    for name, info in members.items():
        place = f"{path}, member {info.filename!r}"
        array = _read_member(archive, file, info, spool, place, found.notes.dtypes.get(name))
        if array.dtype.kind in "SU":
            found.values[name] = pack_strings(array[()], place)
            strings[name] = {"dtype": array.dtype.str[1:], "shape": list(array.shape)}
        else:
            found.arrays[name] = array
    if strings:
        found.metadata["npz"] = {"strings": strings}
    return found


def _check_members(members: Iterable[zipfile.ZipInfo], path: str) -> None:
    """Members must not overlap: a small file could hold any number of large arrays."""
    position = 0
    for info in sorted(members, key=lambda info: info.header_offset):
        place = f"{path}, member {info.filename!r}"
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise UnsupportedError(place, f"zip compression method {info.compress_type}")
        if info.header_offset < position:
            raise damaged(
                place, expected=f"to start from byte {position}", found=info.header_offset
            )
        position = info.header_offset + _LOCAL_HEADER.size + info.compress_size


def _read_member(
    archive: zipfile.ZipFile,
    file: BinaryIO,
    info: zipfile.ZipInfo,
    spool: Spool,
    place: str,
    dtype: str | None,
) -> FileArray:
    if info.compress_type == zipfile.ZIP_STORED and info.file_size != info.compress_size:
        raise damaged(place, expected=f"{info.compress_size} bytes", found=f"{info.file_size}")
    with archive.open(info) as member:
        header = _parse_header(member, place)
        kind = header.dtype
        size = header.length + check_shape(header.shape, kind.itemsize, place)
        if size != info.file_size:
            raise damaged(
                place, expected=f"{size} bytes, as the npy header says", found=f"{info.file_size}"
            )
        if dtype is not None:
            kind = dtypes.dtype_of(dtype)
            if header.dtype != _carrier(kind):
                raise damaged(place, expected=_carrier(kind), found=header.dtype)
        pieces = iter(lambda: member.read(_PIECE), b"")
        if info.compress_type == zipfile.ZIP_STORED:
            for _ in pieces:
                # zipfile checks the sum at the end.
                pass
            offset = _data_offset(file, info, place) + header.length
            array = FileArray(file, place, offset, kind, header.shape, fortran=header.fortran)
        else:
            array = spool.keep(pieces, place, kind, header.shape, fortran=header.fortran)
    wide = array.fortran and array.ndim == 2 and array.shape[1] > TILE
    return spool.turned(array) if wide else array


def _data_offset(file: BinaryIO, info: zipfile.ZipInfo, place: str) -> int:
    raw = os.pread(file.fileno(), _LOCAL_HEADER.size, info.header_offset)
    if len(raw) < _LOCAL_HEADER.size:
        raise damaged(place, expected="a local header", found=f"{len(raw)} bytes")
    _, name, extra = _LOCAL_HEADER.unpack(raw)
    return int(info.header_offset) + _LOCAL_HEADER.size + int(name) + int(extra)


@dataclass(frozen=True)
class _Header:
    length: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool


def _parse_header(member: IO[bytes], place: str) -> _Header:
    """The npy header at the start of a member, read with strict bounds."""
    start = member.read(8)
    if len(start) < 8 or start[:6] != np.lib.format.MAGIC_PREFIX:
        raise damaged(place, expected="an npy header", found=repr(start))
    version = start[6], start[7]
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise UnsupportedError(place, f"npy version {version[0]}.{version[1]}")
    width = 2 if version == (1, 0) else 4
    size = member.read(width)
    length = int.from_bytes(size, "little")
    if length > _MAX_HEADER:
        raise damaged(place, expected=f"a header of at most {_MAX_HEADER} bytes", found=length)
    text = member.read(length)
    total = 8 + width + length
    if len(size) + len(text) != width + length:
        raise damaged(place, expected=f"a header of {total} bytes", found="the end of the member")
    if b"[" in text:
        raise UsageError(
            f"{place}: an array of records or dates can't be stored; save it as numbers or strings"
        )
    descr, fortran, shape = _header_fields(text.decode("latin-1"), place)
    try:
        dtype = np.dtype(descr)
    except TypeError:
        raise damaged(place, expected="a dtype", found=repr(descr)) from None
    if dtype.hasobject:
        raise UsageError(
            f"{place}: an array of Python objects is a pickle, which is never loaded; "
            "save it as an array of numbers or strings"
        )
    if dtype.itemsize == 0:
        raise damaged(place, expected="elements of at least one byte", found=dtype)
    if dtype.kind not in "SU":
        dtypes.name_of(dtype, what=place)
    return _Header(total, dtype, shape, fortran)


def _header_fields(text: str, place: str) -> tuple[str, bool, tuple[int, ...]]:
    """What a header says of dtype, order and shape."""
    value: Any = None
    if _HEADER.fullmatch(text) and not _LARGE.search(text):
        with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            # Python 2 wrote integers with an L.
            value = ast.literal_eval(_PYTHON_2.sub(r"\1", text).strip())
    if isinstance(value, dict) and set(value) == {"descr", "fortran_order", "shape"}:
        descr, fortran, shape = value["descr"], value["fortran_order"], value["shape"]
        if (
            isinstance(descr, str)
            and _DESCR.fullmatch(descr)
            and isinstance(fortran, bool)
            and isinstance(shape, tuple)
            and all(type(n) is int for n in shape)
        ):
            return descr, fortran, shape
    raise damaged(place, expected="the header of an npy array", found=text[:80])


FORMAT = Npz()
