"""The cache of compiled kernels: what is kept, when it is used, and where it never is."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cnrfmt
from cnrfmt.kernels import _cache
from cnrfmt.kernels._numba import config

ROOT = Path(cnrfmt.__file__).parent.parent
COMPILING = "cnrfmt: compiling its kernels once (some seconds); later starts read them from"
PROGRAM = """
import numpy as np
from cnrfmt.kernels.rows import unclaimed
targets = np.empty(3, np.int64)
assert unclaimed(np.array([0, 1, 0], np.uint8), targets) == 2
assert targets[:2].tolist() == [0, 2]
"""


def start(cache: Path, **environment: str) -> subprocess.Popen[str]:
    """A process that calls one small kernel, compiled also where this one's are interpreted."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_", "CNRFMT_"))}
    return subprocess.Popen(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", PROGRAM],
        env={**kept, "PYTHONPATH": str(ROOT), "CNRFMT_CACHE_DIR": str(cache), **environment},
        stderr=subprocess.PIPE,
        text=True,
    )


def call(cache: Path, **environment: str) -> str:
    """What such a process has to say, once it has done its work."""
    process = start(cache, **environment)
    said = process.communicate()[1]
    assert process.returncode == 0, said
    return said


def kept(cache: Path) -> dict[str, tuple[int, bytes]]:
    files = [path for path in cache.rglob("*") if path.is_file()]
    return {path.name: (path.stat().st_ino, path.read_bytes()) for path in files}


@pytest.fixture
def directory() -> _cache._Directory:
    return _cache._Directory()


def test_compiled_once(tmp_path: Path) -> None:
    assert COMPILING in call(tmp_path / "cache", CNRFMT_VERBOSE="1")
    (place,) = (tmp_path / "cache").iterdir()
    assert place.stat().st_mode & 0o777 == 0o700
    first = kept(place)
    assert [name.startswith("rows.unclaimed.") for name in first] == [True]
    assert call(tmp_path / "cache", CNRFMT_VERBOSE="1") == ""
    assert kept(place) == first


def test_nothing_in_a_pipe_unless_asked_for(tmp_path: Path) -> None:
    assert call(tmp_path / "cache") == ""


def test_a_torn_or_stale_file_is_compiled_anew(tmp_path: Path) -> None:
    call(tmp_path)
    sound = kept(tmp_path)
    (path,) = tmp_path.rglob("rows.*")
    content = path.read_bytes()
    for damaged in (b"", content[:50], content[:-1], bytes([content[0] ^ 1]) + content[1:]):
        path.write_bytes(damaged)
        assert COMPILING in call(tmp_path, CNRFMT_VERBOSE="1")
        assert kept(tmp_path).keys() == sound.keys()
        assert path.read_bytes()[:32] == content[:32]


def test_processes_that_start_together(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    processes = [start(cache) for _ in range(4)]
    assert [(p.communicate()[1], p.returncode) for p in processes] == [("", 0)] * 4
    assert [name.startswith("rows.unclaimed.") for name in kept(cache)] == [True]
    assert call(cache, CNRFMT_VERBOSE="1") == ""


def test_other_settings_are_other_files(tmp_path: Path) -> None:
    call(tmp_path)
    assert COMPILING in call(tmp_path, CNRFMT_VERBOSE="1", NUMBA_BOUNDSCHECK="1")
    assert len(kept(tmp_path)) == 2


def test_without_a_cache(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    process = start(tmp_path / "file" / "cache")
    assert "RuntimeWarning: cnrfmt compiles its kernels in every process" in process.communicate()[1]
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    said = call(tmp_path / "open", CNRFMT_VERBOSE="1", PYTHONWARNINGS="default")
    assert "cnrfmt: compiling its kernels (some seconds)\n" in said
