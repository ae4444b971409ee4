"""Opening a container, and loading whole tables: `open` and `load`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from cnrfmt import parallel
from cnrfmt.arrays import Array
from cnrfmt.checkpoint import Checkpoint
from cnrfmt.errors import MissingKeyError, UsageError
from cnrfmt.memory import Budget, check_limit, guarded
from cnrfmt.segment_reader import Backend, Verify
from cnrfmt.storage.container import path_text
from cnrfmt.storage.fs import Fs
from cnrfmt.storage.mapping import NOTHING, Advice, MapNeeds, map_needs
from cnrfmt.table import Table
from cnrfmt.tabledata import TableData
from cnrfmt.view import ReadOptions

PathLike = str | os.PathLike[str]


def open(
    path: PathLike,
    *,
    version: int | None = None,
    tag: str | None = None,
    backend: Backend = "mmap",
    verify: Verify = "touched",
    digest: str | None = None,
    threads: int | None = None,
    max_bytes: int | None = None,
    populate: bool = False,
    advise: Advice | None = None,
    lock: bool = False,
    fs: Fs | None = None,
) -> Checkpoint:
    """Opens a container for reading, at its newest version, or at `version`, or at the one that has the `tag`.

    Parameters
    ----------
    path
        A single file or a directory.
    version
        An older, retained version. Where none is asked for and the newest goes while it is opened, its successor is.
    tag
        The name of a version, in its place.
    backend
        ``"mmap"``, which maps a segment once more than a few rows of it are asked for, or ``"pread"``, which also
        survives a file that somebody truncates or changes in place.
    verify
        ``"touched"`` checks the digest of each piece before its first use, ``"all"`` those of all pieces before
        `open` returns, ``"none"`` leaves data unchecked (metadata are always checked).
    digest
        The manifest digest (`Checkpoint.digest`) that the version must have.
    threads
        How many threads a call on the result may use; as many as there are processors if None.
    max_bytes
        How much memory a call, this one or one on the result, may take for what the file claims: arrays of results,
        row indexes, dense state, and metadata at 32 bytes for each of their own. What exceeds it is refused with
        `TooLargeError` before it is taken. (A manifest's own bytes, 128 MiB at the most and no more than the file
        has, are read before they are counted, and a call takes some MiB per thread beside.) None doesn't limit it.
    populate, advise, lock
        For those who map segments, and mustn't wait for a disk at a row's first touch. ``populate=True`` brings all
        their pages into memory before `open` (or `refresh`, those of new segments) returns; ``lock=True`` also keeps
        them there as long as they are mapped, as far as RLIMIT_MEMLOCK allows, and raises `StorageError` beyond;
        ``advise`` tells the kernel how they will be read: ``"random"``, ``"sequential"`` or ``"willneed"`` (it may
        begin to bring them in). Verifying is another matter: what `verify` says.

    Raises
    ------
    DamagedError, UnsupportedError, VersionNotFoundError, TooLargeError, StorageError
    """
    options = _options(backend, verify, threads, max_bytes, map_needs(backend, populate, advise, lock))
    _check_pin(digest)
    if tag is not None and version is not None:
        raise UsageError(f"a version is named by its number or by a tag, not by both: found {version!r} and {tag!r}")
    return _open(path, version, options, digest, fs, Budget(max_bytes), tag)


def _options(
    backend: Backend, verify: Verify, threads: int | None, max_bytes: int | None, needs: MapNeeds = NOTHING
) -> ReadOptions:
    if backend not in ("mmap", "pread"):
        raise UsageError(f"backend is 'mmap' or 'pread', found {backend!r}")
    if verify not in ("none", "touched", "all"):
        raise UsageError(f"verify is 'none', 'touched' or 'all', found {verify!r}")
    return ReadOptions(backend, verify, parallel.thread_count(threads), check_limit(max_bytes), needs)


def _check_pin(digest: str | None) -> None:
    """That a pinned digest could be one at all; raises `UsageError`."""
    if digest is not None and not (isinstance(digest, str) and re.fullmatch("[0-9a-f]{16}", digest)):
        raise UsageError(f"digest is 16 hexadecimal digits, as Checkpoint.digest gives them, found {digest!r}")


def _open(
    path: PathLike,
    version: int | None,
    options: ReadOptions,
    digest: str | None,
    fs: Fs | None,
    budget: Budget,
    tag: str | None = None,
) -> Checkpoint:
    text = path_text(path)
    with guarded(f"{text}, metadata"):
        return Checkpoint(text, version, options, digest, fs, budget, tag)


def load(
    path: PathLike,
    tables: Iterable[str] | None = None,
    *,
    version: int | None = None,
    out: Mapping[str, Array] | None = None,
    columns: bool = False,
    backend: Backend = "mmap",
    verify: Verify = "touched",
    threads: int | None = None,
    max_bytes: int | None = None,
    fs: Fs | None = None,
) -> dict[str, Any]:
    """Loads whole tables into memory.

    Gives a dict of names to arrays of `rows x dim`. A keyed table comes as a `TableData` with keys; with
    ``columns=True`` every table comes as a `TableData` with all columns. `out` maps names to arrays that are
    filled instead of new ones. `max_bytes` is for all tables together, else as for `open`.

    Raises what `open` raises, and `MissingKeyError` for a table that isn't there.
    """
    options, budget = _options(backend, verify, threads, max_bytes), Budget(max_bytes)
    with _open(path, version, options, None, fs, budget) as ck, guarded(f"{ck.path}, tables"):
        if isinstance(tables, str):
            raise UsageError(f"tables is a list of names; use tables=[{tables!r}]")
        names = list(ck if tables is None else tables)
        if unknown := set(out or ()) - set(names):
            raise MissingKeyError(f"out names a table that isn't loaded: {min(unknown)!r}")
        return {name: _load_table(ck[name], (out or {}).get(name), columns, budget) for name in names}


def _load_table(table: Table, out: Array | None, columns: bool, budget: Budget) -> Any:
    values = table.read_within(budget, out=out)
    if not table.keyed and not columns:
        return values
    others = {c: table.read_within(budget, column=c) for c in table.columns[1:]}
    keys = table.keys
    if keys is not None:
        budget.take(keys.nbytes, f"table {table.name!r}, keys")
        keys = keys.copy()
    fill = {c: table.fill(c)[()] for c in table.columns}
    return TableData(values, columns=others, keys=keys, fill=fill)
