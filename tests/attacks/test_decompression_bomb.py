"""Compressed members of foreign files that grow a thousandfold. The format itself compresses nothing."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt.integrations.convert import convert
from tests.attacks.support import in_child

ROWS, DIM = 1 << 19, 64
"""128 MiB of zeros, which deflate stores in an eighth of a megabyte."""


def _member(rows: int, dim: int, claimed: int | None = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": "<f4", "fortran_order": False, "shape": (claimed or rows, dim)}
    )
    return file.getvalue() + bytes(4 * rows * dim)


def _npz(path: Path, data: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("weight.npy", data)
    return path


def _rows(path: Path, target: Path) -> Any:
    convert(path, target, threads=1)
    with cnrfmt.open(target, backend="pread", threads=1) as ck:
        return ck["weight"].shape


def test_a_legal_bomb_takes_disk_and_no_memory(tmp_path: Path) -> None:
    path = _npz(tmp_path / "bomb.npz", _member(ROWS, DIM))
    assert path.stat().st_size < 1 << 20
    assert in_child(_rows, path, tmp_path / "bomb.cnr", memory=96 << 20) == (ROWS, DIM)


def _spoilt(path: Path, size: int) -> Path:
    """The archive with another size of the member, wherever it stands."""
    with zipfile.ZipFile(path) as archive:
        (info,) = archive.infolist()
    data = path.read_bytes().replace(struct.pack("<I", info.file_size), struct.pack("<I", size))
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("size", [128 + 4 * 3, 1 << 31, (1 << 32) - 2])
def test_a_member_that_is_larger_than_it_says(tmp_path: Path, size: int) -> None:
    path = _spoilt(_npz(tmp_path / "bomb.npz", _member(1 << 16, 64)), size)
    error = in_child(_rows, path, tmp_path / "bomb.cnr")
    assert isinstance(error, cnrfmt.DamagedError), repr(error)
    assert error.rule == "foreign-file"
    assert in_child(_rows, _npz(tmp_path / "twin.npz", _member(3, 4)), tmp_path / "twin.cnr") == (3, 4)


@pytest.mark.parametrize("claimed", [1 << 30, 1 << 50, 1 << 62, 10**16])
def test_a_header_that_claims_more_than_there_is(tmp_path: Path, claimed: int) -> None:
    path = _npz(tmp_path / "bomb.npz", _member(3, 4, claimed))
    error = in_child(_rows, path, tmp_path / "bomb.cnr")
    assert isinstance(error, cnrfmt.DamagedError), repr(error)
    assert not (tmp_path / "bomb.cnr").exists()
