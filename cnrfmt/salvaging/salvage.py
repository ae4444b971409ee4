"""`salvage`: what is left of a damaged container, and a new container with it."""

from __future__ import annotations

import copy
import errno
import os
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from typing import Literal

import numpy as np

from cnrfmt import parallel
from cnrfmt.errors import (
    DamagedError,
    MissingKeyError,
    StorageError,
    UnsupportedError,
    UsageError,
    VersionExpiredError,
    VersionNotFoundError,
)
from cnrfmt.format.chain import Judged
from cnrfmt.format.manifest import Manifest
from cnrfmt.salvaging.manifests import Damaged, DamagedDirectory, DamagedFile, Found
from cnrfmt.salvaging.report import Salvage, VersionState
from cnrfmt.salvaging.runs import count
from cnrfmt.salvaging.segments import SalvagedSegment
from cnrfmt.salvaging.target import check_target, data_bytes, write_target
from cnrfmt.salvaging.versions import Segments, VersionSalvage, key_of
from cnrfmt.storage.container import path_text
from cnrfmt.storage.fs import POSIX, Fs

PathLike = str | os.PathLike[str]
_TRIES = 5


def salvage(
    source: PathLike,
    target: PathLike | None,
    *,
    version: int | Literal["whole"] | None = None,
    tables: Iterable[str] | None = None,
    dry_run: bool = False,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    fs: Fs | None = None,
) -> Salvage:
    """Copies everything of a damaged container that can be proven sound into a new one, and lists what can't.

    Sound is what matches digests that match digests, up to a manifest that matches its own. The manifest needn't be
    the newest, and slots and file header may be gone: of a single file every page is looked at for manifests then.
    What the damage took from the digests themselves is made anew from the data, where that can be proven.

    One version is salvaged. A row whose newest value is damaged, or may have been in a damaged row index or segment,
    is *lost*: it never comes back with an older value. In a dense table a lost row of a column reads as the fill value,
    whatever becomes of the row's other columns. In a keyed table a key whose weight is lost is left out with all its
    columns; where only another column of it is lost, that reads as the fill value.

    A segment of which nothing can be read (its table of contents is damaged, its file is missing) may have changed
    anything: then every row is lost that no later segment writes, and the version before that segment may be
    the better choice. `Salvage.versions` says how much of each version is sound, so look at a dry run first.

    Rows that are whole come out bit for bit as a reader of the undamaged container would decode them; quantised rows
    keep their codes. The new container holds one version, 0, and has an id of its own, so that nobody goes on
    with the damaged one's deltas on it. It carries the step and the user metadata, with a note under
    ``"cnrfmt.salvage"``: container id, version and manifest digest that it came from, and the number of losses.

    The source is only read, and may lie on a read-only medium. The memory needed is that for row ids (8 bytes for each
    key of a table) and for metadata; rows are streamed. The new container is written in a folder
    ``.salvage-...`` beside its place, verified there and then put in its place: killed midway, this leaves nothing at
    `target`, and the folder may be removed.

    Parameters
    ----------
    source
        The damaged single file or directory.
    target
        Where nothing is, or an empty directory. A name that ends in ``.cnr`` makes a single file. None for a dry run.
    version
        The version to salvage; None for the newest whose manifest is sound, ``"whole"`` for the newest of which nothing
        is lost.
    tables
        The names of the tables wanted; all of them if None. The dense state comes along in any case. What is lost of
        other tables then counts nowhere.
    dry_run
        Only look: everything is read, nothing is written.
    threads
        How many threads to use; as many as there are processors if None.
    progress
        Called now and then with the bytes dealt with and those there are.

    Raises
    ------
    DamagedError
        Nothing in it can be proven sound (rule ``nothing-sound``): no manifest, or nothing of the version, or, with
        ``version="whole"``, no version as a whole.
    UnsupportedError
        It, or its newest version, needs a feature that this release doesn't know.
    UsageError
        Something is at `target`; a table isn't there.
    VersionNotFoundError
        The version isn't there. It is a `VersionExpiredError` where a run beside this collects faster than this reads.
    StorageError
        The operating system refuses.
    """
    fs = fs or POSIX
    text = path_text(source, "source")
    goal = None
    if target is not None or not dry_run:
        goal = os.path.realpath(path_text(target, "target"))  # type: ignore[arg-type]
    if goal is not None:
        check_target(fs, goal)
    if version not in (None, "whole") and (isinstance(version, bool) or not isinstance(version, int | np.integer)):
        raise UsageError(f"version is an integer, 'whole' or None, found {version!r}")
    if isinstance(tables, str):
        raise UsageError(f"tables is a list of names; use tables=[{tables!r}]")
    wanted = None if tables is None else list(dict.fromkeys(tables))
    with closing(_open(fs, text)) as container:
        job = _Job(container, wanted, parallel.thread_count(threads), progress)
        chosen = job.choose(version)
        names = _names(chosen.manifest, wanted)
        report = job.report(chosen, names, explicit=version not in (None, "whole"))
        _check_worth(report, text)
        if not dry_run and goal is not None:
            writes = [chosen.table(name).writes() for name in names]
            job.expect(2 * data_bytes(writes))
            write_target(fs, goal, chosen, writes, len(report.losses), job.threads, job.tell)
            report.target = goal
        return report


def _open(fs: Fs, path: str) -> Damaged:
    found = fs.stat(path, follow=True)
    if found is None:
        raise StorageError(errno.ENOENT, "no container here", path)
    return DamagedDirectory(fs, path) if found.kind == "directory" else DamagedFile(fs, path)


def _names(manifest: Manifest, wanted: list[str] | None) -> list[str]:
    known = [t.name for t in manifest.tables]
    for name in wanted or ():
        if name not in known:
            names = ", ".join(map(repr, known[:10])) or "none"
            raise MissingKeyError(f"no table {name!r} in version {manifest.version}; it has {names}")
    return [name for name in known if wanted is None or name in wanted]


def _nothing_sound(path: str, found: str, advice: str) -> DamagedError:
    return DamagedError(
        "nothing-sound", path, expected="something that can be proven sound", found=found, advice=advice
    )


def _check_worth(report: Salvage, path: str) -> None:
    """Raises `DamagedError` where everything is lost."""
    if report.dense or any(t.rows > (0 if t.keyed else t.lost) for t in report.tables) or not report.losses:
        return
    sound = [v.version for v in report.versions if v.state in ("whole", "damaged")]
    others = [str(number) for number in sound if number != report.version]
    loss = report.losses[0]
    raise _nothing_sound(
        path,
        f"nothing in version {report.version} ({loss.place}: {loss.rule})",
        f"try another version: {', '.join(others[::-1][:10])}" if others else "restore it from a copy",
    )


class _Job:
    """What the versions of one container have in common."""

    def __init__(
        self,
        container: Damaged,
        wanted: list[str] | None,
        threads: int,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._wanted = wanted
        self._path, self.threads, self._progress = container.path, threads, progress
        self._total = self._done = 0
        self._segments = Segments(container, threads, self.tell)
        self._gone: set[int] = set()
        for _ in range(_TRIES):
            self._look(container)
            # Beside a run that collects at once, what is missing is of versions that have gone meanwhile.
            if not (went := container.went()):
                break
            self._gone |= went
            self._segments.forget_missing()
        for version in self._gone:
            self._found.unsound.pop(version, None)
            self._versions.pop(version, None)

    def _look(self, container: Damaged) -> None:
        """Reads all that is there now, and wasn't read before."""
        self._found: Found = container.find()
        self._total = sum({key_of(e): e.length for m in self._found.sound.values() for e in m.chain}.values())
        self._versions: dict[int, VersionSalvage] = {}
        judged: Judged = set()
        for number in sorted(self._found.sound):
            manifest = self._found.sound[number]
            self._versions[number] = VersionSalvage(manifest, self._segments.of(manifest), self._path, judged)

    def tell(self, count: int) -> None:
        """Some more bytes were dealt with."""
        self._done += count
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)

    def expect(self, count: int) -> None:
        """Some more bytes are to be dealt with."""
        self._total += count

    def _usable(self) -> list[int]:
        return [number for number, v in self._versions.items() if v.problem is None]

    def choose(self, version: int | Literal["whole"] | None) -> VersionSalvage:
        """The version to salvage."""
        usable = self._usable()
        if version is None or version == "whole":
            self._refuse_newer_features()
            if version == "whole" and usable:
                newest = self._versions[usable[-1]].manifest
                usable = self._whole(self._states())
                if not usable:
                    # A name that is wrong is said first.
                    _names(newest, self._wanted)
                    raise _nothing_sound(
                        self._path, "no version that is sound as a whole", "take what is sound of one of them"
                    )
            if not usable and self._gone:
                raise VersionExpiredError(f"{self._path}: {self._went()}, and nothing else is sound")
            if not usable:
                raise _nothing_sound(self._path, self._why_not(), "restore it from a copy")
            return self._versions[usable[-1]]
        if version in usable:
            return self._versions[version]
        if version in self._versions:
            problem = self._versions[version].problem
            assert problem is not None
            raise copy.copy(problem)
        if version in self._found.unsound:
            raise copy.copy(self._found.unsound[version])
        raise VersionNotFoundError(
            f"{self._path}: no version {version} found; found were {', '.join(map(str, usable)) or 'none'}"
        )

    def _refuse_newer_features(self) -> None:
        for number, error in self._found.unsound.items():
            if isinstance(error, UnsupportedError) and number > max(self._usable(), default=-1):
                raise copy.copy(error)

    def _went(self) -> str:
        """That versions went."""
        numbers = sorted(self._gone)
        shown = f"version {numbers[0]}" if len(numbers) == 1 else f"versions {', '.join(map(str, numbers))}"
        return f"{shown} went while this looked: somebody removed what a run gives up"

    def _why_not(self) -> str:
        problems = [v.problem for v in self._versions.values() if v.problem is not None]
        errors = [e for e in self._found.unsound.values() if isinstance(e, DamagedError)]
        for error in [*problems, *errors]:
            return f"nothing in it ({error.place}: {error.rule})"
        return "; ".join(["no manifest", *self._found.notes])

    def _states(self) -> list[VersionState]:
        """How much of each version is sound. Versions that say the same, since nothing changed, are judged once."""
        known: dict[tuple[object, ...], VersionState] = {}
        found = []
        for v in self._versions.values():
            m = v.manifest
            key = (m.state, m.tables, m.dense, *map(key_of, m.chain), v.problem)
            if key not in known:
                known[key] = v.state(self._wanted)
            found.append(replace(known[key], version=m.version, step=m.step, created=m.created))
        return found

    def _whole(self, states: list[VersionState]) -> list[int]:
        """The versions of which nothing is lost, and that have the tables that are wanted."""
        wanted = self._wanted or ()
        return [
            s.version
            for s in states
            if s.state == "whole" and all(self._versions[s.version].manifest.table(name) for name in wanted)
        ]

    def report(self, chosen: VersionSalvage, names: list[str], *, explicit: bool) -> Salvage:
        """What is sound of the chosen version, and of the others."""
        m, found = chosen.manifest, self._found
        report = Salvage(
            self._path, None, m.version, m.step, m.container_id.hex(), f"{m.digest:016x}", explicit
        )
        states = self._states()
        report.newest_whole = max(self._whole(states), default=None)
        for number, error in found.unsound.items():
            rule = error.rule if isinstance(error, DamagedError) else error.feature
            states.append(VersionState(number, None, None, "unreadable", reason=f"{error.place} ({rule})"))
        report.versions = sorted(states, key=lambda s: s.version)
        report.newer = list(found.newer)
        report.perhaps_newer = list(found.perhaps_newer)
        for v in self._versions.values():
            if v.problem is not None and v.manifest.version > max(self._usable()):
                report.newer.append(f"version {v.manifest.version} contradicts itself ({v.problem.rule})")
        report.losses = chosen.losses(names)
        report.tables = [chosen.table(name).summary() for name in names]
        report.dense = [entry.name for entry, _ in chosen.dense()]
        gone = [f"{self._path}: {self._went()}"] if self._gone else []
        report.notes = [*found.notes, *gone, *_damage(chosen)]
        return report


def _damage(chosen: VersionSalvage) -> list[str]:
    """How many pieces of the version's segments are damaged, whether or not they cost rows."""
    return [
        f"{s.place}: {number} damaged piece{'' if number == 1 else 's'}"
        for s in chosen.segments
        if isinstance(s, SalvagedSegment) and (number := count(s.lost))
    ]
