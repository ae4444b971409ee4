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
COMPILING = "cnrfmt: compiling its kernels once (up to half a minute); later starts read them from"
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
    kept |= {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", "CNRFMT_CACHE_DIR": str(cache)}
    return subprocess.Popen([sys.executable, "-c", PROGRAM], env=kept | environment, stderr=subprocess.PIPE, text=True)


def call(cache: Path, **environment: str) -> str:
    """What such a process has to say, once it has done its work."""
    process = start(cache, **environment)
    said = process.communicate()[1]
    assert process.returncode == 0, said
    return said


def kept(cache: Path) -> dict[str, tuple[int, bytes]]:
    files = [path for path in cache.rglob("*") if path.is_file()]
    return {path.name: (path.stat().st_ino, path.read_bytes()) for path in files}


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
    for damaged in (b"", content[:-1], bytes([content[0] ^ 1]) + content[1:]):
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
    for _ in range(2):
        said = call(tmp_path / "file", CNRFMT_VERBOSE="1", PYTHONWARNINGS="default")
        assert said.count("RuntimeWarning: cnrfmt compiles its kernels in every process") == 1
        assert said.count("Set CNRFMT_CACHE_DIR to a directory that only you can write to.") == 1
        assert "cnrfmt: compiling its kernels (up to half a minute)\n" in said


def test_nothing_is_written_beside_the_sources(tmp_path: Path) -> None:
    call(tmp_path, PYTHONDONTWRITEBYTECODE="1")
    sources = Path(_cache.__file__).parent
    assert not [path for path in sources.rglob("*") if path.suffix in (".nbi", ".nbc")]


# The directory.


def prepare(monkeypatch: pytest.MonkeyPatch, chosen: Path) -> Path:
    monkeypatch.setenv("CNRFMT_CACHE_DIR", str(chosen))
    return _cache.prepare_directory()


def test_a_directory_of_ours_is_made_and_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = prepare(monkeypatch, tmp_path / "a" / "b")
    assert path.parent == (tmp_path / "a" / "b").resolve()
    for place in (path, path.parent, path.parent.parent):
        assert place.stat().st_mode & 0o777 == 0o700
    assert list(path.iterdir()) == []
    assert prepare(monkeypatch, tmp_path / "a" / "b") == path


def test_where_it_is_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CNRFMT_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for shared, base in [
        (str(tmp_path / "xdg"), tmp_path / "xdg"),
        ("relative", tmp_path / ".cache"),
        ("", tmp_path / ".cache"),
    ]:
        monkeypatch.setenv("XDG_CACHE_HOME", shared)
        assert _cache.prepare_directory().parent == (base / "cnrfmt").resolve()


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_refused_where_others_can_write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: int, depth: int) -> None:
    path = prepare(monkeypatch, tmp_path / "cache")
    place = [path, path.parent, path.parent.parent][depth]
    place.chmod(mode)
    with pytest.raises(_cache._UnsafeError, match=f"others can write to {place}"):
        _cache.prepare_directory()


def test_under_a_sticky_directory_only_what_is_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    path = prepare(monkeypatch, shared / "mine")
    # Somebody else could have made it and left it open for as long as it took.
    path.parent.chmod(0o755)
    with pytest.raises(_cache._UnsafeError, match=f"{path.parent} isn't closed to them"):
        _cache.prepare_directory()
    path.parent.chmod(0o700)
    assert _cache.prepare_directory() == path
    path.chmod(0o1777)
    with pytest.raises(_cache._UnsafeError, match=f"others can write to {path}"):
        _cache.prepare_directory()


def test_refused_where_somebody_else_owns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = prepare(monkeypatch, tmp_path / "cache")
    owners = {path.parent: os.geteuid() + 1}
    real = os.lstat

    def lstat(place: Path) -> os.stat_result:
        found = list(real(place))
        found[4] = owners.get(place, found[4])
        return os.stat_result(found)

    monkeypatch.setattr(os, "lstat", lstat)
    with pytest.raises(_cache._UnsafeError, match=f"{path.parent} belongs to another user"):
        _cache.prepare_directory()
    owners[path.parent] = 0  # Root can write anywhere in any case.
    assert _cache.prepare_directory() == path


def test_links_are_followed_before_they_are_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "closed").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "open")
    with pytest.raises(_cache._UnsafeError, match="open"):
        prepare(monkeypatch, tmp_path / "link")
    (tmp_path / "open" / "link").symlink_to(tmp_path / "closed")
    assert prepare(monkeypatch, tmp_path / "open" / "link").parent == tmp_path / "closed"


def test_a_file_in_its_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = prepare(monkeypatch, tmp_path / "cache")
    path.rmdir()
    path.touch()
    with pytest.raises(_cache._UnsafeError, match=f"{path} is no directory"):
        _cache.prepare_directory()


# The files.


def test_a_file_is_replaced_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file, stamp = tmp_path / "kernel", b"s" * 32
    assert _cache._read(file, stamp) is None
    _cache._write(file, stamp, b"old")

    def refuse(*args: Any) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        _cache._write(file, stamp, b"new")
    assert _cache._read(file, stamp) == b"old"
    assert os.listdir(tmp_path) == ["kernel"]
    assert _cache._read(file, b"t" * 32) is None
    _cache._write(tmp_path / "absent" / "kernel", stamp, b"new")


def test_a_stamp_covers_all_sources(tmp_path: Path) -> None:
    source = tmp_path / "kernel.py"
    source.write_text("one")
    first = _cache._stamp(str(source))
    source.write_text("two")
    _cache._stamp.cache_clear()
    assert _cache._stamp(str(source)) != first
    assert _cache._stamp(_cache.__file__) not in (first, _cache._stamp(str(source)))


def test_a_key_covers_bounds_checks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Codegen:
        def magic_tuple(self) -> tuple[str, ...]:
            return ("x86_64", "znver5", "+avx2")

    monkeypatch.setattr(_cache.directory, "path", lambda: tmp_path)
    cache = _cache.KernelCache(test_a_file_is_replaced_whole)
    files = set()
    for checked in (None, 1):
        monkeypatch.setattr(config, "BOUNDSCHECK", checked)
        files |= {cache._file(signature, Codegen()) for signature in ("(int64,)", "(uint8,)")}
    assert len(files) == 4


def test_the_log_tells_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    prepare(monkeypatch, tmp_path)
    directory = _cache._Directory()
    place = directory.path()
    with caplog.at_level(logging.INFO, "cnrfmt"):
        directory.announce_compilation()
        directory.announce_compilation()
    assert [record.getMessage() for record in caplog.records] == [
        f"compiling its kernels once (up to half a minute); later starts read them from {place}"
    ]
