"""``collect``: gives up versions of a directory that nobody wants, and removes the files that no version needs."""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import numpy as np

from cnrfmt.checkpointing.keeping.restating import head_of, restate
from cnrfmt.checkpointing.keeping.retention import Keep, keep_of, kept, unrecorded
from cnrfmt.commits import attempt
from cnrfmt.errors import (
    ConflictError,
    DamagedError,
    UnsupportedError,
    UsageError,
    VersionExpiredError,
)
from cnrfmt.format.manifest import Manifest, parse_manifest
from cnrfmt.run_record import CheckpointRecord, record_of
from cnrfmt.storage.container import Container, open_container, path_text
from cnrfmt.storage.directory_collect import (
    ManifestFile,
    Obstacle,
    Removal,
    Survey,
    Waiting,
    plan,
    remove,
    store_time,
    survey,
)
from cnrfmt.storage.fs import POSIX, Fs

GRACE = timedelta(hours=1)
"""How long what isn't needed any more stays by default.

It has to be longer than the way of a segment from its last byte to its commit, which for many ranks is as long as the
slowest of them takes to write its own, and longer than a reader of a version that was given up still opens files of
it: a server that refreshes each few minutes has moved on by then.
"""
_TRIES = 5


@dataclass(frozen=True)
class Collected:
    """What `collect` did, or with ``dry_run=True`` would do.

    Attributes
    ----------
    path
        The container.
    dry_run
        Whether nothing was changed.
    version
        The version that gives up others; None where none is given up.
    given_up
        The versions that can't be opened any more, ascending.
    manifests, segments
        What is removed: manifests by their versions, segments by their ids in hexadecimal digits.
    nbytes
        The bytes of these files.
    waiting
        Files that nothing needs and that stay until their grace period is over.
    obstacles
        Why manifests can't be read that stay; then no file is removed, since nobody knows what they need.
    """

    path: str
    dry_run: bool
    version: int | None
    given_up: tuple[int, ...]
    manifests: tuple[int, ...]
    segments: tuple[str, ...]
    nbytes: int
    waiting: tuple[Waiting, ...]
    obstacles: tuple[Obstacle, ...]

    @property
    def waiting_bytes(self) -> int:
        """The bytes of the files that wait."""
        return sum(file.nbytes for file in self.waiting)

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON says it; times in UTC."""
        return {
            "path": self.path,
            "dry_run": self.dry_run,
            "version": self.version,
            "given_up": list(self.given_up),
            "manifests": list(self.manifests),
            "segments": list(self.segments),
            "bytes": self.nbytes,
            "waiting": [
                {"name": file.name, "bytes": file.nbytes, "until": time_text(file.until)} for file in self.waiting
            ],
            "obstacles": [str(error) for error in self.obstacles],
        }


def time_text(moment: int) -> str:
    """A time in nanoseconds since 1970 in words: the second, in UTC, by which it is over."""
    return datetime.fromtimestamp(-(-moment // 10**9), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def collect(
    path: str | os.PathLike[str],
    *,
    keep: int | Keep | None = None,
    grace: float | timedelta = GRACE,
    dry_run: bool = False,
    fs: Fs | None = None,
) -> Collected:
    """Removes the files of a directory that no version needs; with `keep`, gives up versions first.

    With `keep`, a new version is committed that repeats the newest and names the versions that stay: those that `keep`
    chooses, those that have tags, and the newest, so that who follows it can tell that nothing changed. A version that
    is given up can't be opened any more; its files stay for the grace period, for those who have it open. Where `keep`
    chooses all that there is, nothing is committed. A writer that commits at the same moment may meet a
    `ConflictError` by it, as by any other commit; without `keep`, no writer is ever disturbed.

    Nothing that a version needs which stays is removed, whatever happens meanwhile.

    Parameters
    ----------
    path
        A directory. A single file has no files to remove: earlier versions go with their bytes when it is written anew.
    keep
        How many of the newest checkpoints stay, or a `Keep`; None gives nothing up.
    grace
        Seconds, or a timedelta: for how long a manifest stays after the newest version has stopped naming it, and a
        segment that no manifest names after it was written, by the clock of the file system. 0 removes at once: only
        for a container that nobody writes to and of which nobody reads an older version meanwhile.
    dry_run
        Changes nothing and says what would be done, by the clock of this machine.

    Raises
    ------
    UsageError
        The path is a single file, or an argument isn't as it should be.
    DamagedError, UnsupportedError
        The newest version can't be read.
    ConflictError
        Others committed again and again while versions were to be given up.
    StorageError
        The operating system refuses. What was removed until then isn't needed; the rest goes with the next call.
    CommitUnknownError
    """
    text, system = path_text(path), fs or POSIX
    rules = None if keep is None else keep_of(keep)
    wait = _nanoseconds(grace)
    with open_container(text, fs) as container:
        if container.kind == "file":
            raise UsageError(
                f"{text}: a single file keeps its versions until it is written anew: save a baseline, or compact it; "
                "give up versions one by one in a directory"
            )
        if dry_run:
            return _foretold(container, system, rules, wait)
        version, given_up = (None, ()) if rules is None else _give_up(container, rules, fs)
        found = survey(system, text)
        moment = store_time(system, text)
        removal = plan(found, found.newest_time if moment is None else moment, wait)
        return _collected(text, False, version, given_up, remove(system, text, removal))


def _collected(path: str, dry_run: bool, version: int | None, given_up: tuple[int, ...], removal: Removal) -> Collected:
    return Collected(
        path,
        dry_run,
        version,
        given_up,
        tuple(file.version for file in removal.manifests),
        tuple(file.segment.hex() for file in removal.segments),
        removal.nbytes,
        removal.waiting,
        removal.obstacles,
    )


def _foretold(container: Container, fs: Fs, keep: Keep | None, wait: int) -> Collected:
    """What would be done, without doing any of it."""
    now = time.time_ns()
    found = survey(fs, container.path)
    head = _head(container)
    given_up = () if keep is None else _unwanted(container, head, keep)
    version = head.version + 1 if given_up else None
    if version is not None:
        found = _after(found, version, set(given_up), now)
    return _collected(container.path, True, version, given_up, plan(found, now, wait))


def _after(found: Survey, version: int, given_up: set[int], now: int) -> Survey:
    """The files after a commit that gives versions up; its manifest isn't there and has no size."""
    manifests = tuple(
        replace(file, unnamed_since=now) if file.version in given_up else file for file in found.manifests
    )
    return replace(found, manifests=(*manifests, ManifestFile(version, 0, now, found.head.segments)))


def _give_up(container: Container, keep: Keep, fs: Fs | None) -> tuple[int | None, tuple[int, ...]]:
    """Commits a version without those that aren't wanted; its number and theirs."""
    for _ in range(_TRIES - 1):
        with suppress(ConflictError):
            return _try_to_give_up(container, keep, fs)
    return _try_to_give_up(container, keep, fs)


def _try_to_give_up(container: Container, keep: Keep, fs: Fs | None) -> tuple[int | None, tuple[int, ...]]:
    with attempt(container.path, fs=fs) as one:
        head = head_of(one)
        given_up = _unwanted(container, head, keep)
        if not given_up:
            return None, ()
        # Who gives up older versions relies on the newest: where its own files are missing, they may be all there is.
        for entry in head.chain:
            container.segment(entry)
        stay = {head.version, *(r.version for r in head.versions)} - set(given_up)
        return restate(one, record_of(head), stay).version, given_up


def _unwanted(container: Container, head: Manifest, keep: Keep) -> tuple[int, ...]:
    """The versions that these rules give up; none where all of their content would stay in other versions.

    The commit that gives versions up is one more version. So one that only repeats another isn't worth a commit, or
    each call would make another.
    """
    record = record_of(head)
    retained = [r.version for r in head.versions]
    checkpoints = _known(container, head)
    stay = kept(keep, checkpoints, {} if record is None else record.tags, head.version, [*retained, head.version])
    stay.add(head.version)
    given_up = tuple(version for version in retained if version not in stay)
    # Of versions that have the same segments, the first: merges that wrote nothing repeat the one before them.
    first: dict[int, int] = {}
    for before, c in zip([None, *checkpoints], checkpoints, strict=False):
        repeats = before is not None and c.kind == "merge" and c.nbytes == 0
        first[c.version] = first[before.version] if before is not None and repeats else c.version
    stands = {first[version] for version in stay}
    return given_up if any(first[version] not in stands for version in given_up) else ()


def _known(container: Container, head: Manifest) -> list[CheckpointRecord]:
    """What is known of the versions that are there, and of others that the record of the run remembers; ascending.

    Of a version without a record, its manifest tells the step and the time, and whether it repeats the one before it.
    """
    record = record_of(head)
    known = {c.version: c for c in (() if record is None else record.checkpoints) if c.version <= head.version}
    retained = {r.version: r for r in head.versions}

    # A version is looked at for itself and for the one after it.
    @lru_cache(maxsize=2)
    def manifest_of(version: int) -> Manifest | None:
        if version == head.version:
            return head
        try:
            return _parsed(container, container.read_manifest(retained[version]), version)
        except (DamagedError, UnsupportedError, VersionExpiredError):
            return None

    found = []
    before: int | None = None
    for version in sorted({*known, *retained, head.version}):
        if version in known:
            found.append(known[version])
        else:
            found.append(_told(version, manifest_of(version), manifest_of(before) if before in retained else None))
        before = version
    return found


def _told(version: int, own: Manifest | None, before: Manifest | None) -> CheckpointRecord:
    """What a version's manifest tells of it, beside that of the version before it."""
    if own is None:
        return unrecorded(version)
    repeats = before is not None and before.state == own.state
    kind = "merge" if repeats else "baseline" if len(own.steps()) == 1 else "delta"
    old = set() if before is None else {entry.segment for entry in before.chain}
    nbytes = sum(entry.length for entry in own.chain if entry.segment not in old)
    return CheckpointRecord(version, own.step, own.created, kind, 0, nbytes, 0, len(own.chain))


def _head(container: Container) -> Manifest:
    data, version, _ = container.head()
    return _parsed(container, data, version)


def _parsed(container: Container, data: bytes, version: int) -> Manifest:
    return parse_manifest(data, f"{container.path}, manifest of version {version}")


def _nanoseconds(grace: Any) -> int:
    seconds = grace.total_seconds() if isinstance(grace, timedelta) else grace
    is_number = isinstance(seconds, int | float | np.integer | np.floating) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds < math.inf:
        raise UsageError(f"grace is a timedelta or a number of seconds of at least 0, found {grace!r}")
    return int(seconds * 10**9)
