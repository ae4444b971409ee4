"""Chains made shorter: several segments become one that reads the same, bit for bit."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from cnrfmt import parallel
from cnrfmt.checkpointing.compacting.merged_rows import Count
from cnrfmt.checkpointing.compacting.merged_slices import MergedSlice
from cnrfmt.checkpointing.compacting.merging import Older, merged_table
from cnrfmt.checkpointing.compacting.reencoding import Reencoding
from cnrfmt.commits import Attempt, Prepared, attempt, with_segment
from cnrfmt.encodings.quantize import Choices
from cnrfmt.errors import ConflictError, UsageError
from cnrfmt.format.chain import check_chain
from cnrfmt.format.manifest import ChainEntry, Manifest
from cnrfmt.format.schema import WEIGHT
from cnrfmt.format.toc import TableEntry
from cnrfmt.reader import PathLike, open
from cnrfmt.resolve import Steps
from cnrfmt.run_record import MOST, CheckpointRecord, metadata_with, record_of, user_metadata
from cnrfmt.segment_reader import SegmentReader
from cnrfmt.storage.container import path_text
from cnrfmt.storage.fs import POSIX, Fs
from cnrfmt.table_writes import TableWrite

_SAVING = 3
"""The power of the segments that a merge saves which its bytes are held against; of 1 to 4 it costs the least."""

Progress = Callable[[int, int], None]
"""Called with the bytes of rows that were written and with how many there are, about."""


def compact(
    source: PathLike,
    target: PathLike | None = None,
    *,
    version: int | None = None,
    encoding: Choices = None,
    force: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
    fs: Fs | None = None,
) -> int:
    """Makes one baseline of a version's chain, which reads the same bit for bit, and returns the version that has it.

    Nothing is quantised anew: rows keep their codes, which are copied, and differences that parts of a grid say are
    added up in integers. Memory holds the row ids of what the deltas wrote, keys of keyed tables, the dense state, and
    chunks of rows: some 16 MiB of integers for each thread.

    Without `target` the container itself gets a next version with the same content. In a directory, the earlier
    versions stay readable and keep their segments; a single file is written anew with that version alone. A chain of
    one segment is left as it is, and the newest version is returned. With `target` a new container is made, with
    tables, dense state, step and the user's metadata; the source isn't changed.

    Parameters
    ----------
    version
        An older version of `source`, only with a `target`; the newest if None.
    encoding
        Makes a `target` to serve from, which doesn't read the same: weights are decoded and encoded anew as this says,
        a `Quantize` or a dict of patterns as for `save`; other columns only if it names them. All else is taken over.
    force
        Whether a target that is there already may be given its next version.
    threads
        How many threads to use; as many as there are processors if None.
    progress
        Called from time to time with the bytes that were written, and those that will be, about.

    Raises
    ------
    UsageError
        `target` is there already, or `version` or `encoding` was given without one; or `encoding` doesn't fit.
    ConflictError, LockedError, StorageError, CommitUnknownError
        As `save` raises them; the container is as it was.
    DamagedError, UnsupportedError, VersionNotFoundError
        As `open` raises them.
    """
    text, count = path_text(source, "source"), parallel.thread_count(threads)
    if target is None:
        if version is not None:
            raise UsageError(f"{text}: an older version is compacted into another container; give a target")
        if encoding is not None:
            raise UsageError(f"{text}: rows are encoded anew for another container alone; give a target")
        return _compact_here(text, count, progress, fs)
    into = path_text(target, "target")
    if _is_same(text, into):
        raise UsageError(f"{into}: source and target are one container; leave the target out to compact it in place")
    if not force and os.path.lexists(into):
        raise UsageError(f"{into}: is there already; force=True gives it its next version")
    with (
        # Several threads write at once, so that each reads with one; mapped files would count as this process's memory.
        open(text, version=version, backend="pread", threads=1, fs=fs) as ck,
        attempt(into, replace=True, fs=fs) as one,
    ):
        old = ck.manifest
        segments = [ck.view.segments[entry.segment] for entry in old.chain]
        anew = None if encoding is None else Reencoding(ck, encoding)
        merging = _Merging(old, segments, 0, len(segments), progress, anew)
        record = None if one.head is None else record_of(one.head)
        manifest = one.next(None, step=old.step, metadata=metadata_with(user_metadata(old), record), tables=old.tables)
        return one.commit(one.write(manifest, merging.writes, merging.dense, threads=count)).version


def merge(
    path: PathLike, first: int, last: int, *, expect: Manifest, threads: int | None = None, fs: Fs | None = None
) -> Manifest:
    """Puts one segment in the place of the entries first .. last - 1 of the head's chain, and commits that.

    The new version has the content of the head, whose manifest must be `expect`; readers of any version aren't
    disturbed. Where a training run has the head on record, it goes on with what the merge cost.

    Raises
    ------
    UsageError
        There aren't two entries or more, or they cut a step that several segments make.
    ConflictError
        The head is another one than `expect`, before the merge or after it. Nothing was committed.
    DamagedError, LockedError, StorageError, CommitUnknownError
        As `compact` raises them.
    """
    text, count = path_text(path), parallel.thread_count(threads)
    with attempt(text, fs=fs) as one:
        if one.head is None or one.head.digest != expect.digest:
            found = "no version" if one.head is None else f"version {one.head.version} ({one.head.digest:016x})"
            raise ConflictError(
                f"{text}: version {expect.version} ({expect.digest:016x}) was to be merged, and the head is {found}; "
                "nothing was committed: look at the new head and try again"
            )
        return _merge(one, one.head, one.next(one.head, same_state=True, step=expect.step), first, last, count, None)


def due(lengths: Sequence[int], most: int, share: float | None = None) -> tuple[int, int] | None:
    """Which steps of a chain to merge, so that it never has more than `most` segments; None while it has fewer.

    `lengths` are the bytes of its steps, the baseline's first. Asked after each append, it lets the chain grow up to
    `most` and then picks newest steps, as in a log-structured merge tree: those with the fewest bytes for the cube of
    the number of segments that are saved. So steps that grew as large as an older one are soon merged with it, and few
    small ones aren't merged again and again with a large one. With steps of one size, n of them, and 8 segments, each
    byte is written 1.8 times again for n = 50, 4.5 for 500 and 6.4 for 3,000.

    A restore reads all bytes of the chain. Where the deltas mustn't have more than a `share` of the baseline's, all is
    merged into a baseline as soon as they do, so that each of their bytes costs about 1 / share bytes written.

    Returns
    -------
    tuple of int
        The first step to merge, and the end behind the last. When they are one, the chain is shorter than `most`.
    """
    if most < 2:
        raise UsageError(f"a chain that takes deltas has 2 segments or more, found most={most}")
    if share is not None and sum(lengths[1:]) > share * lengths[0]:
        return 0, len(lengths)
    if len(lengths) < most:
        return None
    least = len(lengths) - most + 2
    starts = range(len(lengths) - least + 1)
    return min(starts, key=lambda a: sum(lengths[a:]) / (len(lengths) - a - 1) ** _SAVING), len(lengths)


def due_in(manifest: Manifest, most: int, share: float | None = None) -> tuple[int, int] | None:
    """What `due` says of a version's steps, as entries of its chain, so that `merge` takes it as it is."""
    steps = manifest.steps()
    found = due([sum(entry.length for entry in step) for step in steps], most, share)
    return None if found is None else (_entries(steps, found[0]), _entries(steps, found[1]))


def _entries(steps: Sequence[Sequence[ChainEntry]], number: int) -> int:
    return sum(len(step) for step in steps[:number])


def _is_same(a: str, b: str) -> bool:
    try:
        return os.path.samefile(a, b)
    except OSError:
        return False


def _compact_here(path: str, threads: int, progress: Progress | None, fs: Fs | None) -> int:
    # What isn't there is opened to raise what `open` raises, rather than made.
    with open(path, backend="pread", threads=1, fs=fs) as ck:
        if len(ck.manifest.chain) == 1:
            return ck.version
    found = (fs or POSIX).stat(path, follow=True)
    single = found is None or found.kind != "directory"
    with attempt(path, replace=single, fs=fs) as one:
        head = one.head
        assert head is not None
        if len(head.chain) == 1:
            return head.version
        if single:
            # What is put in the file's place has no earlier versions in it.
            new = one.next(None, step=head.step, tables=head.tables, metadata=head.metadata, dense=head.dense)
            new = replace(new, state=head.state)
        else:
            new = one.next(head, same_state=True, step=head.step)
        return _merge(one, head, new, 0, len(head.chain), threads, progress).version


def _merge(
    one: Attempt, head: Manifest, new: Manifest, first: int, last: int, threads: int, progress: Progress | None
) -> Manifest:
    """Commits `new`, which has the head's content, with one segment for the entries first .. last - 1."""
    chain = head.chain
    path = one.tx.path
    if first < 0 or last > len(chain) or last - first < 2:
        raise UsageError(
            f"{path}: two or more of the entries 0 to {len(chain) - 1} can be merged, found {first} to {last - 1}"
        )
    for end in (first, last):
        if 0 < end < len(chain) and chain[end - 1].to_state == chain[end].to_state:
            raise UsageError(f"{path}: entries {end - 1} and {end} are one step; merge both or neither")
    merging = _Merging(head, _opened(one, head), first, last, progress)
    # The segment leads to the state that the last of the merged entries led to.
    part = replace(new, chain=(), attachments=b"", state=chain[last - 1].to_state)
    for entry in chain[:first]:
        part = with_segment(part, replace(entry, toc=None), _attached(entry, head))
    part = one.write(part, merging.writes, merging.dense, threads=threads)
    for entry in chain[last:]:
        part = with_segment(part, replace(entry, toc=None), _attached(entry, head))
    new = replace(new, chain=part.chain, attachments=part.attachments, dense=part.dense)
    return one.commit(_recorded(new, head, part.chain[first].length, merging.rows))


def _recorded(manifest: Manifest, head: Manifest, nbytes: int, rows: int) -> Manifest:
    """The manifest with what a merge of the head cost, where a training run has the head on record."""
    record = record_of(manifest)
    last = None if record is None else record.checkpoint(head.version)
    if record is None or last is None:
        # What was appended beside the run isn't in its record: its merge would stand for the checkpoint before it.
        return manifest
    cost = CheckpointRecord(
        manifest.version,
        manifest.step,
        manifest.created,
        "merge",
        rows,
        nbytes,
        last.bits,
        len(manifest.chain),
        last.metrics,
    )
    record = replace(record, checkpoints=(*record.checkpoints, cost)[-MOST:])
    return replace(manifest, metadata=metadata_with(user_metadata(manifest), record))


def _opened(one: Attempt, head: Manifest) -> list[SegmentReader]:
    """The segments of an attempt's head, held against its manifest."""
    found = []
    for entry in head.chain:
        toc = _attached(entry, head)
        source = one.tx.source(entry)
        # Mapped files would count as memory of this process.
        found.append(SegmentReader(source, entry, toc, backend="pread", verify=True, manifest=head))
    for problem in check_chain(head, [(s.entry, s.toc) for s in found], one.tx.path):
        raise problem
    return found


def _attached(entry: ChainEntry, manifest: Manifest) -> bytes | None:
    """The table of contents of a segment, if it stands in the manifest."""
    return None if entry.toc is None else manifest.attachments[entry.toc[0] : sum(entry.toc)]


class _Merging:
    """What is written in the place of some entries of a version's chain."""

    def __init__(
        self,
        manifest: Manifest,
        segments: Sequence[SegmentReader],
        first: int,
        last: int,
        progress: Progress | None,
        anew: Reencoding | None = None,
    ) -> None:
        counter = _Counter(progress)
        self._segments, self._anew = segments, anew
        self.writes = list(self._writes(manifest, first, last, counter.add))
        counter.total = sum(write.data_bytes + sum(x.nbytes for x in _slices(write)) for write in self.writes)
        self._dense = next((s for s in segments[first:last] if s.entry.segment == manifest.dense), None)

    @property
    def rows(self) -> int:
        """How many rows are written, of all tables."""
        columns = [c for write in self.writes for c in write.columns if c.column.name == WEIGHT]
        copied = sum(c.rows.count for c in columns if c.rows is not None and c.range_of(1)[0] == 0)
        return copied + sum(x.weights for write in self.writes for x in _slices(write))

    @property
    def dense(self) -> Prepared | None:
        """The dense state, if one of the entries has it."""
        if self._dense is None:
            return None
        nothing = np.empty(0, np.uint8)
        return [
            (entry, nothing if entry.section is None else self._dense.section(entry.section))
            for entry in self._dense.toc.dense or ()
        ]

    def _writes(self, manifest: Manifest, first: int, last: int, count: Count) -> Iterator[TableWrite]:
        for schema in manifest.tables:
            steps = self._say(schema.table_id, first, last)
            if not steps:
                continue
            older, anew = Older.of(self._say(schema.table_id, 0, first)), self._anew
            kept = schema if anew is None else anew.without(schema)
            write = merged_table(kept, steps, older, baseline=first == 0, count=count)
            yield write if anew is None else anew.added(write, schema, count)

    def _say(self, table_id: bytes, first: int, last: int) -> Steps:
        """What the steps within some entries of the chain say of a table."""
        found: dict[bytes, list[tuple[SegmentReader, TableEntry]]] = {}
        for segment in self._segments[first:last]:
            entry = segment.toc.by_table.get(table_id)
            if entry is not None:
                found.setdefault(segment.entry.to_state, []).append((segment, entry))
        return list(found.values())


def _slices(write: TableWrite) -> list[MergedSlice]:
    return [one for one in write.slices if isinstance(one, MergedSlice)]


class _Counter:
    """What was written so far, of all there is."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress, self._lock = progress, threading.Lock()
        self.total = self._done = 0

    def add(self, nbytes: int) -> None:
        """Bytes that were made."""
        if self._progress is None:
            return
        with self._lock:
            self._done = min(self.total, self._done + nbytes)
            self._progress(self._done, self.total)
