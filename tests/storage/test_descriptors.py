"""What is opened goes by reference counting alone once nobody holds it, without the collector of cycles."""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt.errors import CnrError, StorageError
from cnrfmt.storage.fs import PosixFs

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists a process's open files under /proc")


@pytest.fixture(params=["model.cnr", "model"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path: Path = tmp_path / request.param
    rows = np.random.default_rng(3).normal(size=(3000, 8)).astype(np.float32)
    cnrfmt.save(path, {"t": rows, "k": cnrfmt.TableData(rows, keys=np.arange(3000) ** 2)}, dense={"seed": b"17"})
    for row in range(4):
        cnrfmt.append(path, {"t": cnrfmt.Rows([row], rows[:1]), "k": cnrfmt.Deleted([row**2])})
    return path


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def held(folder: Path) -> list[str]:
    """The files within a folder that this process has open or mapped."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return [found for found in [*links, *maps] if str(folder) in found]


def spoil(path: Path) -> None:
    """Damages rows, digests, a trailer and a header of segments; some row of the newest version is lost."""
    spots = []
    with cnrfmt.open(path) as ck:
        for number, entry in enumerate(ck.manifest.chain):
            trailer = ck.view.segments[entry.segment].trailer
            file = path if path.is_file() else path / "segments" / f"{entry.segment.hex()}.cnrs"
            spots += [
                (file, (entry.offset or 0) + spot)
                for spot in ([50_000], [10], [entry.length - 50], [trailer.data_end + 8], [200])[number]
            ]
    for file, spot in spots:
        with file.open("r+b") as f:
            f.seek(spot)
            byte = f.read(1)[0]
            f.seek(spot)
            f.write(bytes([byte ^ 0xFF]))


def answer(call: Callable[[], Any]) -> str:
    """What comes of a call: nothing that holds a traceback."""
    try:
        call()
    except CnrError as error:
        return type(error).__name__
    return ""


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("damaged", [False, True])
def test_a_salvage(path: Path, tmp_path: Path, threads: int, damaged: bool) -> None:
    if damaged:
        spoil(path)
    report = cnrfmt.salvage(path, None, dry_run=True, threads=threads)
    assert not held(tmp_path)
    # The report may be held for as long as somebody likes.
    assert report.complete != damaged
    for name in ("new.cnr", "new"):
        cnrfmt.salvage(path, tmp_path / name, threads=threads)
        assert not held(tmp_path)
    for version in (0, 2, 9, "whole"):
        answer(lambda version=version: cnrfmt.salvage(path, None, version=version, dry_run=True, threads=threads))  # type: ignore[misc]
        assert not held(tmp_path)
    assert cnrfmt.salvage(path, None, version=0, dry_run=True, threads=threads).version == 0
    assert answer(lambda: cnrfmt.salvage(path, None, version=9, dry_run=True)) == "VersionNotFoundError"


class Unreadable(PosixFs):
    """Files of which nothing may be read, or nothing can be."""

    def __init__(self, code: int, sparing: int) -> None:
        super().__init__()
        self.code, self.left = code, sparing

    def pread_into(self, handle: int, offset: int, buffer: Any) -> int:
        self.left -= 1
        if self.left < 0:
            raise StorageError(self.code, os.strerror(self.code))
        return super().pread_into(handle, offset, buffer)


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO])
def test_a_salvage_that_fails(path: Path, tmp_path: Path, code: int, threads: int) -> None:
    outcomes = []
    for sparing in range(0, 60, 10):
        fs = Unreadable(code, sparing)
        outcomes.append(answer(lambda fs=fs: cnrfmt.salvage(path, None, dry_run=True, threads=threads, fs=fs)))  # type: ignore[misc]
        assert not held(tmp_path), f"{os.strerror(code)} from read {sparing} on"
    assert ("StorageError" if code == errno.EACCES else "DamagedError") in outcomes


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_a_checkpoint_that_nobody_closed(path: Path, tmp_path: Path, backend: Any) -> None:
    ck = cnrfmt.open(path, backend=backend)
    assert ck["t"].changed(1).rows.tolist() == [1, 2, 3]
    assert len(ck["k"].keys) == 2996
    assert ck.dense == {"seed": b"17"}
    table = ck["t"]
    cnrfmt.append(path, {"t": cnrfmt.Rows([9], np.zeros((1, 8), np.float32))})
    assert ck.refresh() is not None
    assert held(tmp_path)
    del ck
    # A table goes on, with what it needs.
    assert table.changed(2).rows.tolist() == [2, 3]
    assert table[9].any()
    assert held(tmp_path)
    del table
    assert not held(tmp_path)
    assert answer(lambda: cnrfmt.open(path, version=9, backend=backend)) == "VersionNotFoundError"
    assert not held(tmp_path)
