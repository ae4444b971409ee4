"""A container anew, its rows stored in another way: `requantize`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable

from cnrfmt.encodings.quantize import Choices, check_patterns
from cnrfmt.errors import UsageError
from cnrfmt.patterns import Patterns
from cnrfmt.reader import PathLike, open
from cnrfmt.storage.container import path_text
from cnrfmt.stored_column import table_data
from cnrfmt.writer import save

Progress = Callable[[int, int], None]
"""Called with the bytes of rows that were read and with how many there are."""


def requantize(
    source: PathLike,
    target: PathLike,
    *,
    quantize: Choices,
    tables: Iterable[str] | None = None,
    version: int | None = None,
    force: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> int:
    """Saves a version of a container as a baseline of another, its rows stored as `quantize` says.

    All else comes along: columns, keys, fill values, dense state, metadata and step. What `quantize` doesn't name is
    stored raw, exactly as `source` decodes. Where rows of `source` are quantised already, the new error adds to
    theirs. Rows go through in chunks; memory holds the keys of keyed tables and the dense state.

    Parameters
    ----------
    quantize
        As for `save`.
    tables
        Patterns (as in `fnmatch`) of the tables wanted; others are left out.
    version
        The version of `source`; the newest if None.
    force
        Whether a container that is there already may be given its next version.
    threads
        How many threads to use; as many as there are processors if None.
    progress
        Called from time to time with the bytes that were read, and those that will be, about.

    Returns
    -------
    int
        The version of `target`.

    Raises
    ------
    UsageError
        `target` is there already, or a pattern matches nothing; and what `save` raises.
    DamagedError, UnsupportedError, VersionNotFoundError, StorageError
        As `open` raises them.
    """
    text, names = path_text(target, "target"), Patterns(tables)
    if not force and os.path.lexists(text):
        raise UsageError(f"{text}: is there already; force=True gives it its next version")
    # Several threads read at once, so that each reads with one; and mapped files would count as memory of this process.
    with open(source, version=version, backend="pread", threads=1) as ck:
        names.check(list(ck), ck.path)
        counter = _Counter(progress)
        found = {name: table_data(ck, name, counter.add) for name in ck if name in names}
        check_patterns(quantize, {name: ck[name].columns for name in found})
        counter.total = sum(c.nbytes for data in found.values() for c in (data.values, *data.columns.values()))
        return save(
            text,
            found,
            quantize=quantize,
            dense=ck.dense or None,
            metadata=ck.metadata or None,
            step=ck.step,
            threads=threads,
        )


class _Counter:
    """What was read so far, of all there is."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress, self._lock = progress, threading.Lock()
        self.total = self._done = 0

    def add(self, nbytes: int) -> None:
        """Bytes that were read. Rows that are looked at for a choice of parameters are read once more."""
        with self._lock:
            self._done = min(self.total, self._done + nbytes)
            if self._progress is not None:
                self._progress(self._done, self.total)
