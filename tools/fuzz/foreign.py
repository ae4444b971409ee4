"""Targets: files of other formats that `convert` parses with code of its own. HDF5's library reads HDF5."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager

from cnrfmt.errors import CnrError
from cnrfmt.integrations import npz, safetensors
from cnrfmt.integrations.content import Incoming, spooling

_MOST_BYTES = 1 << 20


@contextmanager
def _file(data: bytes) -> Iterator[str]:
    """The path of a file that never touches a disk."""
    handle = os.memfd_create("input")
    try:
        os.write(handle, data)
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)


def _read_all(found: Incoming) -> None:
    """Reads what is small of the arrays; a file can claim more than memory holds."""
    for array in found.arrays.values():
        if array.ndim and array.dtype.itemsize * max(1, *array.shape) <= _MOST_BYTES:
            array[0 : min(4, array.shape[0])]


def npy_header(data: bytes) -> None:
    """The header of an npy member."""
    try:
        header = npz._parse_header(io.BytesIO(data), "input")
    except CnrError:
        return
    assert header.length <= len(data)
    assert header.dtype.itemsize > 0
    assert not header.dtype.hasobject


def npz_file(data: bytes) -> None:
    """A whole npz file."""
    try:
        with _file(data) as path, spooling("/dev/shm") as spool, npz.FORMAT.read(path, spool) as found:
            _read_all(found)
    except CnrError:
        pass


def safetensors_file(data: bytes) -> None:
    """A whole safetensors file."""
    try:
        with _file(data) as path, spooling("/dev/shm") as spool, safetensors.FORMAT.read(path, spool) as found:
            _read_all(found)
    except CnrError:
        pass
