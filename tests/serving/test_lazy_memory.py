"""Memory that is taken as it is written to."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from cnrfmt.serving import lazy_memory
from cnrfmt.serving.lazy_memory import fill_soon, lazy_empty

F32 = np.dtype(np.float32)


def resident() -> int:
    """Bytes of anonymous memory that the process has."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


@pytest.mark.parametrize("shape", [(0, 4), (3, 4), (1 << 20, 64), (1 << 22,)])
def test_arrays_like_others(shape: tuple[int, ...]) -> None:
    found = lazy_empty(shape, F32)
    assert (found.shape, found.dtype, found.flags.c_contiguous, found.flags.writeable) == (shape, F32, True, True)
    found[:100] = 7
    fill_soon(found[:50])
    fill_soon(found[: max(0, len(found) - 3)])
    assert (found[:100] == 7).all()


def test_a_row_here_and_there_takes_a_page_each() -> None:
    found = lazy_empty((1 << 20, 64), F32)
    before = resident()
    found[:: 1 << 13] = 1
    # 128 rows: in pages of 2 MiB they would take all of it.
    assert resident() - before < 16 << 20


def test_what_the_machine_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> mmap.mmap:
        raise OSError(12, "no memory")

    monkeypatch.setattr(lazy_memory.mmap, "mmap", refuse)
    with pytest.raises(MemoryError, match="no memory"):
        lazy_empty((1 << 20, 64), F32)


def test_memory_of_others_is_left_alone() -> None:
    fill_soon(np.empty((1000, 64), F32))
    fill_soon(np.frombuffer(bytes(100), np.uint8))
