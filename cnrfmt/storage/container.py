"""Containers, whichever kind they are: opening one for reading, and beginning a transaction on one."""

from __future__ import annotations

import errno
import os

from cnrfmt.errors import StorageError, UsageError
from cnrfmt.storage.base import (
    Container,
    DirectoryFacts,
    FileFacts,
    Head,
    Name,
    SegmentSink,
    Transaction,
    nothing_committed,
)
from cnrfmt.storage.directory import Directory
from cnrfmt.storage.directory_commit import DirectoryTransaction
from cnrfmt.storage.fs import POSIX, Fs, can_write
from cnrfmt.storage.single_file import SingleFile
from cnrfmt.storage.single_file_commit import begin_single_file
from cnrfmt.storage.source import Source

__all__ = [
    "Container",
    "DirectoryFacts",
    "FileFacts",
    "Head",
    "Name",
    "SegmentSink",
    "Source",
    "Transaction",
    "begin",
    "open_container",
]

SUFFIX = ".cnr"
"""A new container whose name ends so is a single file; any other is a directory."""


def open_container(path: str | os.PathLike[str], fs: Fs | None = None) -> Container:
    """Opens the container at a path for reading; what is there decides of which kind it is.

    Damage shows when something is asked of the container, so that a validator can look at a damaged one.

    Raises
    ------
    UsageError
        The path isn't one.
    StorageError
        Nothing is there (``errno.ENOENT``), something that is neither a file nor a directory, or the
        operating system refuses.
    """
    fs, text = fs or POSIX, path_text(path)
    found = fs.stat(text, follow=True)
    if found is None:
        raise StorageError(errno.ENOENT, "no container here; cnrfmt.save makes one", text)
    if found.kind == "directory":
        return Directory(fs, text)
    return SingleFile(fs, text)


def begin(path: str | os.PathLike[str], *, replace: bool, fs: Fs | None = None) -> Transaction:
    """Starts a transaction on the container at a path, or on a new one where nothing is.

    Parameters
    ----------
    replace
        Whether a single file is written anew and put in the old one's place, instead of being appended to.
        A directory is always added to.

    Raises
    ------
    LockedError
        Another writer has the single file.
    UsageError
        The path isn't one, or this operating system can't write.
    DamagedError, UnsupportedError
        What is there isn't a container that can be written to; it is left as it is.
    StorageError
        The operating system refuses.
    """
    try:
        return _begin(fs or POSIX, path_text(path), replace)
    except StorageError as error:
        raise nothing_committed(error, None) from error


def _begin(fs: Fs, text: str, replace: bool) -> Transaction:
    if not can_write():
        raise UsageError(
            f"{text}: cnrfmt only reads on this operating system: writing needs fcntl locks and "
            "directories that can be synced"
        )
    # The file is replaced and locked where it really is, by whatever link it is named.
    real = os.path.realpath(text)
    found = fs.stat(real)
    if found is None:
        folder = os.path.dirname(real)
        if fs.stat(folder, follow=True) is None:
            raise StorageError(errno.ENOENT, "no such directory; make it first", folder)
        single = real.endswith(SUFFIX)
    elif found.kind in ("file", "directory"):
        single = found.kind == "file"
    else:
        raise UsageError(f"{text}: neither a file nor a directory; give another path")
    if single:
        return begin_single_file(fs, real, replace=replace)
    return DirectoryTransaction(fs, real)


def path_text(path: str | os.PathLike[str], what: str = "path") -> str:
    """A path as text; raises `UsageError`, which calls it `what`, for anything that is none."""
    try:
        text = os.fsdecode(path)
    except TypeError:
        raise UsageError(f"{what} must be a path, found {path!r}; give a str or an os.PathLike") from None
    if not text or "\0" in text:
        raise UsageError(f"{what} must not be empty or hold a zero byte, found {text!r}")
    if "://" in text:
        raise UsageError(f"{text}: this release reads and writes files and directories, not URLs")
    return text
