"""Names for versions: ``tag`` and ``untag``. A version that has a tag stays readable for as long as it has it.

Tags stand in the record of the run (`RunRecord`). A container that no run has committed to gets one: a run that has
just been given its id, and that made no checkpoint yet; whoever trains on goes on with it.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np

from cnrfmt.checkpointing.keeping.restating import head_of, restate
from cnrfmt.commits import attempt
from cnrfmt.errors import MissingKeyError, UsageError, VersionNotFoundError
from cnrfmt.format.digests import new_id
from cnrfmt.format.manifest import Manifest
from cnrfmt.format.strict_json import check_name
from cnrfmt.run_record import RunRecord, record_of
from cnrfmt.storage.container import path_text
from cnrfmt.storage.fs import Fs


def tag(path: str | os.PathLike[str], name: str, version: int | None = None, *, fs: Fs | None = None) -> int:
    """Gives a version a name, and returns the version: the newest if `version` is None.

    A name that another version has moves to this one. The commit is a version of its own with the content of the
    newest; the tag is that of the version named. Nothing is committed where the version has the name already.

    Raises
    ------
    UsageError
        The name is none that the format takes, or the container has no version.
    VersionNotFoundError
        The version isn't there, or isn't retained any more.
    LockedError, ConflictError, StorageError, CommitUnknownError, DamagedError, UnsupportedError
    """
    text = path_text(path)
    check_name(name, "tag")
    if version is not None and (isinstance(version, bool) or not isinstance(version, int | np.integer)):
        raise UsageError(f"a version is an integer, found {version!r}")
    with attempt(text, fs=fs) as one:
        head = head_of(one)
        chosen = head.version if version is None else int(version)
        _check_there(text, head, chosen)
        record = record_of(head) or RunRecord(new_id().hex())
        if record.tags.get(name) != chosen:
            restate(one, replace(record, tags={**record.tags, name: chosen}))
        return chosen


def untag(path: str | os.PathLike[str], name: str, *, fs: Fs | None = None) -> int:
    """Takes a name away, and returns the version that had it, which may be given up from now on.

    Raises `MissingKeyError` for a name that no version has, else what `tag` raises.
    """
    text = path_text(path)
    with attempt(text, fs=fs) as one:
        record = record_of(head_of(one))
        tags = {} if record is None else dict(record.tags)
        if record is None or name not in tags:
            names = ", ".join(map(repr, sorted(tags))) or "none"
            raise MissingKeyError(f"{text}: no version has the tag {name!r}; there are {names}")
        version = tags.pop(name)
        restate(one, replace(record, tags=tags))
        return version


def _check_there(path: str, head: Manifest, version: int) -> None:
    there = (*(r.version for r in head.versions), head.version)
    if version not in there:
        raise VersionNotFoundError(
            f"{path}: version {version} isn't there; those that can have a tag are {', '.join(map(str, there))}"
        )
