"""Maps of files: how they are made, and what the kernel is told of those that mustn't wait for a disk."""

from __future__ import annotations

import errno
import mmap
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from cnrfmt.arrays import Bytes
from cnrfmt.errors import UsageError

Advice = Literal["random", "sequential", "willneed"]
MapNeed = Literal["populate", "lock", "random", "sequential", "willneed"]

DOING: dict[MapNeed, str] = {"populate": "bring its map into memory", "lock": "keep its map in memory"}
"""How errors call what was refused; the rest is advice."""

_ADVICE: tuple[Advice, ...] = ("random", "sequential", "willneed")
_MANY_ZEROS = 64 << 10
_STEP = 256 << 20
"""Bytes that are brought in by one call, so that a signal doesn't wait for all of them."""

# Without it, each map keeps a copy of the handle open, and a chain of segments takes two for each.
_OPTIONS: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
# Linux refuses a map that may be written where it is longer than memory, unless it is told that none is to be set aside
# for it. Python has no name for that; the number is that of these processors.
_NO_RESERVE = 0x4000 if sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64") else 0
_PRIVATE: dict[str, Any] = (
    {"flags": mmap.MAP_PRIVATE | _NO_RESERVE, "prot": mmap.PROT_READ | mmap.PROT_WRITE}
    if sys.platform != "win32"
    else {"access": mmap.ACCESS_COPY}
)


@dataclass(frozen=True)
class MapNeeds:
    """What the maps of a reader's segments need.

    Attributes
    ----------
    populate
        All pages are brought in when the map is made.
    lock
        They stay in memory until the map goes.
    advice
        How they will be read.
    """

    populate: bool = False
    lock: bool = False
    advice: Advice | None = None

    def each(self) -> Iterator[MapNeed]:
        """One after the other: pages that are read in no order are brought in before the kernel hears of that."""
        if self.populate:
            yield "populate"
        if self.lock:
            yield "lock"
        if self.advice is not None:
            yield self.advice


NOTHING = MapNeeds()


def map_needs(backend: str, populate: bool, advise: str | None, lock: bool) -> MapNeeds:
    """What a caller of `open` asks for; raises `UsageError`."""
    for name, value in (("populate", populate), ("lock", lock)):
        if not isinstance(value, bool):
            raise UsageError(f"{name} is True or False, found {value!r}")
    for advice in _ADVICE:
        if advise == advice:
            break
    else:
        if advise is not None:
            raise UsageError(f"advise is None, 'random', 'sequential' or 'willneed', found {advise!r}")
        advice = None
    needs = MapNeeds(populate, lock, advice)
    if needs != NOTHING and backend != "mmap":
        names = [n for n, v in (("populate", populate), ("advise", advise), ("lock", lock)) if v]
        raise UsageError(
            f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} for what is mapped, found backend={backend!r}; "
            "use backend='mmap'"
        )
    return needs


def map_shared(handle: int, length: int) -> mmap.mmap:
    """The first bytes of a file, for reading; raises `OSError`."""
    try:
        return mmap.mmap(handle, length, access=mmap.ACCESS_READ, **_OPTIONS)
    except ValueError as error:
        # The file was cut short since its length was looked at.
        raise OSError(errno.EINVAL, str(error)) from error


def map_private(handle: int, offset: int, length: int) -> mmap.mmap:
    """Bytes of a file, copied when they are written to; raises `OSError`."""
    try:
        return mmap.mmap(handle, length, offset=offset, **_PRIVATE, **_OPTIONS)
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error)) from error


def zero_bytes(length: int) -> Bytes:
    """Zeros, of which those that are never written to take no memory where they are many, and no time."""
    if length >= _MANY_ZEROS:
        with suppress(OSError):
            return np.frombuffer(mmap.mmap(-1, length, **_PRIVATE), np.uint8)
    return np.zeros(length, np.uint8)


def meet(found: mmap.mmap, start: int, length: int, need: MapNeed) -> None:
    """Gives some of the mapped bytes, from the beginning of a page on, what they need; raises `OSError`.

    Other threads of Python go on meanwhile: `mmap.madvise` would have them wait.
    """
    pages = np.frombuffer(found, np.uint8)[start : start + length]
    if need == "populate":
        for first in range(0, length, _STEP):
            _populate(pages[first : first + _STEP])
    elif need == "lock":
        _lock(pages)
    else:
        _advise(pages, need)


def _populate(pages: Any) -> None:
    if not _tell_populate(pages):
        # A byte of each page, which brings in all of it.
        pages[:: mmap.PAGESIZE].max()


if sys.platform == "win32":

    def _tell_populate(pages: Any) -> bool:
        return False

    def _advise(pages: Any, advice: Advice) -> None:
        """There is no such call."""

    def _lock(pages: Any) -> None:
        raise OSError(errno.ENOSYS, "mlock is not of this operating system; leave lock out")

else:
    import ctypes

    _libc = ctypes.CDLL(None, use_errno=True)
    # Python has no name for it before 3.14.
    _POPULATE_READ = 22
    _NUMBERS: dict[Advice, int] = {
        "random": mmap.MADV_RANDOM,
        "sequential": mmap.MADV_SEQUENTIAL,
        "willneed": mmap.MADV_WILLNEED,
    }

    def _call(name: str, pages: Any, *more: int) -> int:
        """The error number of a call on these pages, 0 if it succeeded."""
        function = getattr(_libc, name)
        address, length = ctypes.c_void_p(pages.ctypes.data), ctypes.c_size_t(len(pages))
        return 0 if function(address, length, *map(ctypes.c_int, more)) == 0 else ctypes.get_errno()

    def _advise(pages: Any, advice: Advice) -> None:
        code = _call("madvise", pages, _NUMBERS[advice])
        if code:
            raise OSError(code, os.strerror(code))

    def _tell_populate(pages: Any) -> bool:
        """Whether the kernel brought the pages in; Linux before 5.14 and other systems don't know of that."""
        code = _call("madvise", pages, _POPULATE_READ) if sys.platform == "linux" else errno.EINVAL
        if code not in (0, errno.EINVAL):
            raise OSError(code, os.strerror(code))
        return code == 0

    def _lock(pages: Any) -> None:
        code = _call("mlock", pages)
        if code:
            raise OSError(
                code,
                f"{os.strerror(code)}: {len(pages)} bytes are more than this process may keep in memory; raise its "
                "limit RLIMIT_MEMLOCK (ulimit -l, LimitMEMLOCK= of systemd, --ulimit of docker), or leave lock out",
            )
