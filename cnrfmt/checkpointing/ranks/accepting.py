"""What is looked at before the segments of many writers become one version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cnrfmt.commits import with_segment
from cnrfmt.errors import DamagedError, UsageError
from cnrfmt.format import limits
from cnrfmt.format.chain import check_chain
from cnrfmt.format.manifest import ChainEntry, Manifest
from cnrfmt.format.segment import NO_STATE, SegmentHeader
from cnrfmt.format.toc import TableEntry
from cnrfmt.segment_reader import SegmentReader
from cnrfmt.step_rows import written
from cnrfmt.storage.base import manifest_place
from cnrfmt.storage.directory_commit import DirectoryTransaction
from cnrfmt.verification import contents


def accept(tx: DirectoryTransaction, manifest: Manifest, entries: Sequence[ChainEntry]) -> Manifest:
    """The manifest with these segments in its chain, once they are found to be of its attempt and to fit together.

    Raises `UsageError` where two ranks write the same elements, and `DamagedError` for what isn't as it was reported.
    """
    if not entries:
        return manifest
    readers = []
    for entry in entries:
        reader = SegmentReader(tx.source(entry), entry, None, backend="pread", verify=True, manifest=manifest)
        block = np.empty(limits.BLOCK, np.uint8)
        reader.source.pread_into(0, block)
        header = SegmentHeader.parse(block.tobytes(), reader.place, segment_id=entry.segment)
        found = header.commit_id, header.from_state, header.to_state
        if found != (manifest.commit_id, entry.from_state or NO_STATE, entry.to_state):
            raise DamagedError(
                "segment-identity",
                f"{reader.place}, header",
                expected=f"a segment of attempt {manifest.commit_id.hex()}",
                found=f"one of attempt {header.commit_id.hex()}",
            )
        readers.append(reader)
        manifest = with_segment(manifest, entry, reader.toc_bytes())
    _check_step(manifest, readers, manifest_place(tx.path, manifest.version))
    return manifest


def _check_step(manifest: Manifest, readers: Sequence[SegmentReader], place: str) -> None:
    """That the segments of the step fit the schema and each other; raises `UsageError`."""
    baseline = all(reader.entry.from_state is None for reader in readers)
    written = {table_id for reader in readers for table_id in reader.toc.by_table}
    step = replace(manifest, tables=tuple(t for t in manifest.tables if baseline or t.table_id in written), dense=None)
    for problem in check_chain(step, [(reader.entry, reader.toc) for reader in readers], place):
        # What differences are taken from is in older steps, which aren't looked at.
        if problem.rule != "residual-base":
            raise _refused(problem)
    for table in step.tables:
        says = [(r, r.toc.by_table[table.table_id]) for r in readers if table.table_id in r.toc.by_table]
        for problem in contents.check_step(says, place):
            raise _refused(problem)
        if (key := _written_and_deleted(says)) is not None:
            raise UsageError(
                f"{place}, table {table.name!r}: one rank writes key {key}, another deletes it; nothing was committed"
            )
        if baseline:
            for problem in contents.check_tiling(table, says, place):
                raise _refused(problem)


def _written_and_deleted(says: Sequence[tuple[SegmentReader, TableEntry]]) -> int | None:
    """A key that one segment of a step writes and another deletes; None if there is none."""
    for deleting, entry in says:
        gone = None if entry.deleted is None else entry.row_sets[entry.deleted]
        for writing, other in says if gone is not None else ():
            for row_set in written(other):
                ids = writing.indexes.ids(row_set)
                assert gone is not None
                if len(both := ids[deleting.indexes.holds(gone, ids)]):
                    return int(both[0])
    return None


def _refused(problem: DamagedError) -> UsageError:
    return UsageError(
        f"{problem.place}: what the ranks wrote doesn't fit together ({problem.rule}): expected {problem.expected}, "
        f"found {problem.found}; nothing was committed"
    )
