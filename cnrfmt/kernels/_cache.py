"""Where compiled kernels are kept between processes.

A file of this cache is machine code inside a pickle, so whoever can write to it can run code as its
reader. It is therefore used only in a directory that nobody but its owner could have written to: that
is checked for the directory and for each of its parents, and without such a directory there is no
cache.

There is one file per kernel and combination of argument types. It is written under a temporary name
and renamed, and it carries a stamp of everything that it was made from and a digest of itself. So
processes that start together at worst compile the same thing twice, and a file that is stale or torn
is compiled anew.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import pickle
import stat
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cnrfmt._version import __version__
from cnrfmt.kernels._numba import compile_result, config, llvmlite, numba, serialize

_DIGEST = hashlib.sha256().digest_size


class _UnsafeError(Exception):
    """The directory can't be trusted, or made; the text says why."""


def _check(path: Path) -> None:
    """Raise `_UnsafeError` unless only this user and root can have put anything under `path`.

    A directory that others write to is passed only if it is sticky, as /tmp is, and what lies in it
    on the way to `path` is this user's and closed to everyone else: nobody can then have prepared
    it, nor rename it.
    """
    me = os.geteuid()
    shared: Path | None = None
    for place in (*reversed(path.parents), path):
        found = os.lstat(place)
        if not stat.S_ISDIR(found.st_mode):
            raise _UnsafeError(f"{place} is no directory")
        if shared is not None and found.st_mode & 0o077:
            raise _UnsafeError(f"others can write to {shared}, and {place} isn't closed to them")
        if found.st_uid not in (me, 0):
            raise _UnsafeError(f"{place} belongs to another user")
        shared = place if found.st_mode & 0o022 else None
        if shared is not None and (not found.st_mode & stat.S_ISVTX or place == path):
            raise _UnsafeError(f"others can write to {place}")


def _base() -> Path:
    if chosen := os.environ.get("CNRFMT_CACHE_DIR"):
        return Path(chosen)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "cnrfmt"
    shared = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification wants a relative path there to be ignored.
    return (Path(shared) if os.path.isabs(shared) else Path.home() / ".cache") / "cnrfmt"


def prepare_directory() -> Path:
    """The directory to use, made if need be; raises `OSError`, `RuntimeError` or `_UnsafeError`."""
    python = f"cp{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}"
    # Links are followed once, here. What is checked is what is used afterwards.
    path = _base().resolve() / f"{__version__}-numba{numba.__version__}-{python}"
    for place in (*reversed(path.parents), path):
        if not place.exists():
            # Another process may be quicker; the check below judges what it made.
            place.mkdir(mode=0o700, exist_ok=True)
    if sys.platform != "win32":  # There a profile is closed to other users by default.
        _check(path)
    # The file system may be read-only, or full: better known now than at each kernel.
    tempfile.TemporaryFile(dir=path).close()
    return path


class _Directory:
    """The cache's directory, looked for once per process, when the first kernel is called."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known = False
        self._announced = False
        self._path: Path | None = None

    def path(self) -> Path | None:
        """Where the cache is; None if there is none, of which one warning tells the reason."""
        with self._lock:
            if not self._known:
                self._known = True
                try:
                    self._path = prepare_directory()
                except (OSError, RuntimeError, _UnsafeError) as error:
                    warnings.warn(
                        f"cnrfmt compiles its kernels in every process, since it can't keep them: "
                        f"{error}. Set CNRFMT_CACHE_DIR to a directory that only you can write to.",
                        RuntimeWarning,
                        stacklevel=2,
                    )
            return self._path

    def announce_compilation(self) -> None:
        """Say once that the pause that follows is for compiling."""
        with self._lock:
            if self._announced:
                return
            self._announced = True
        kept = f"once (up to half a minute); later starts read them from {self._path}"
        text = f"compiling its kernels {kept if self._path else '(up to half a minute)'}"
        logging.getLogger("cnrfmt").info(text)
        # A line that nobody asked for has no place in a pipe or a log file.
        if os.environ.get("CNRFMT_VERBOSE") or (sys.stderr is not None and sys.stderr.isatty()):
            sys.stderr.write(f"cnrfmt: {text}\n")


directory = _Directory()


@functools.cache
def _stamp(source: str) -> bytes:
    """A digest of what a kernel of this source file is made from.

    It covers all files here, since a kernel may call functions of the others.
    """
    hasher = hashlib.sha256()
    versions = (__version__, numba.__version__, llvmlite.__version__)
    hasher.update(repr((versions, sys.version)).encode())
    for file in (Path(source), *sorted(Path(__file__).parent.glob("*.py"))):
        text = file.read_bytes()
        hasher.update(f"{file.name} {len(text)} ".encode() + text)
    return hasher.digest()


class KernelCache:
    """What a numba dispatcher asks for compiled code, and gives it to."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._name = f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"
        self._source = function.__code__.co_filename

    @property
    def cache_path(self) -> str | None:
        """The directory, or None; part of numba's interface."""
        path = directory.path()
        return str(path) if path else None

    def _file(self, signature: object, codegen: Any) -> Path | None:
        path = directory.path()
        if path is None:
            return None
        # Settings of numba that change the code that it makes.
        settings = (config.BOUNDSCHECK, config.OPT, config.LOOP_VECTORIZE, config.SLP_VECTORIZE)
        key = repr((str(signature), codegen.magic_tuple(), settings))
        return path / f"{self._name}.{hashlib.sha256(key.encode()).hexdigest()[:24]}"

    def load_overload(self, signature: object, target_context: Any) -> Any:
        """The kernel compiled for these argument types, or None."""
        target_context.refresh()
        file = self._file(signature, target_context.codegen())
        payload = None if file is None else _read(file, _stamp(self._source))
        if payload is None:
            directory.announce_compilation()
            return None
        return compile_result._rebuild(target_context, *pickle.loads(payload))

    def save_overload(self, signature: object, result: Any) -> None:
        """Keep a kernel that was just compiled."""
        file = self._file(signature, result.library.codegen)
        if file is not None:
            _write(file, _stamp(self._source), serialize.dumps(result._reduce()))

    def flush(self) -> None:
        """Nothing: stale files are overwritten. Part of numba's interface."""


def _read(file: Path, stamp: bytes) -> bytes | None:
    try:
        content = file.read_bytes()
    except OSError:
        return None
    payload = content[2 * _DIGEST :]
    return payload if content == stamp + hashlib.sha256(payload).digest() + payload else None


def _write(file: Path, stamp: bytes, payload: bytes) -> None:
    """Replace `file` atomically. A cache that can't be written to costs time, so nothing is raised."""
    try:
        handle, name = tempfile.mkstemp(prefix=".tmp-", dir=file.parent)
    except OSError:
        return
    try:
        with open(handle, "wb") as out:
            out.write(stamp + hashlib.sha256(payload).digest() + payload)
        os.replace(name, file)
    except OSError:
        Path(name).unlink(missing_ok=True)
