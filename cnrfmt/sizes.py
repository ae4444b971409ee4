"""Where the bytes of a version go: of one segment, of a commit, of a chain.

Sizes are counts of bytes under these keys:

``weights``
    Rows of the column `weight`.
``optimizer``
    Rows of all other columns.
``ids``
    Row indexes: those of parts, of exception parts and of deleted rows.
``exceptions``
    Rows that their encoding couldn't hold, stored as they are.
``dense``
    The dense state.
``digests``
    Digests of pieces.
``metadata``
    Headers, tables of contents and trailers of segments, manifests; in a single file also the pages of the
    file header and of the slots.
``padding``
    Zero bytes that align sections and, in a single file, spans.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from cnrfmt import dtypes
from cnrfmt.checkpoint import Checkpoint
from cnrfmt.format import limits
from cnrfmt.format.blocks import FIRST_SPAN
from cnrfmt.format.manifest import ChainEntry
from cnrfmt.format.schema import WEIGHT
from cnrfmt.format.segment import SegmentHeader
from cnrfmt.reader import open
from cnrfmt.segment_reader import SegmentReader
from cnrfmt.table import Table
from cnrfmt.view import View

Sizes = dict[str, int]

KEYS = (
    "weights",
    "optimizer",
    "ids",
    "exceptions",
    "dense",
    "digests",
    "metadata",
    "padding",
)

_SLOT_WRITES = 3
"""An append to a single file renews slot B before it writes slot A, then B, with the new version."""


@dataclass(frozen=True)
class VersionSizes:
    """The bytes of one version, each a dict with the keys above.

    `commit` is what committing the version wrote; `chain` is what reading it takes: all segments of its
    chain, its manifest and, in a single file, the pages in front.
    """

    commit: Sizes
    chain: Sizes


def sizes_of_segment(segment: SegmentReader) -> Sizes:
    """The bytes of one segment by what they hold; they sum to its length."""
    found = dict.fromkeys(KEYS, 0)
    toc, trailer = segment.toc, segment.trailer

    def add(key: str, section: int | None) -> None:
        if section is not None:
            found[key] += toc.sections[section][1]

    for table in toc.tables:
        for row_set in table.row_sets:
            add("ids", row_set.section)
        for part in table.parts:
            if part.exceptions_of is not None:
                add("exceptions", part.section)
            else:
                for section in (part.section, part.codebooks):
                    add("weights" if part.column == WEIGHT else "optimizer", section)
    for entry in toc.dense or ():
        add("dense", entry.section)
    found["digests"] = trailer.toc_offset - trailer.data_end
    found["metadata"] = 2 * limits.BLOCK + trailer.toc_length
    found["padding"] = segment.entry.length - sum(found.values())
    return found


def sizes(checkpoint: Checkpoint) -> VersionSizes:
    """The bytes of the version that is open; raises `DamagedError` where a segment's header is damaged."""
    view = checkpoint.view
    manifest = view.manifest
    own = [e for e in manifest.chain if e.to_state == manifest.state and _is_own(view, e)]
    commit, chain = _sum(view, own), _sum(view, manifest.chain)
    for found in (commit, chain):
        found["metadata"] += manifest.length
    if view.container.kind == "file":
        is_new_file = any(e.from_state is None for e in own)
        commit["metadata"] += FIRST_SPAN if is_new_file else _SLOT_WRITES * limits.PAGE
        chain["metadata"] += FIRST_SPAN
        for found in (commit, chain):
            found["padding"] += -manifest.length % limits.PAGE
    return VersionSizes(commit, chain)


def commit_sizes(path: str | os.PathLike[str], version: int | None = None) -> Sizes:
    """The bytes that committing a version wrote, the newest if `version` is None; raises what `open` raises."""
    with open(path, version=version, backend="pread", threads=1) as checkpoint:
        return sizes(checkpoint).commit


def plain_bytes(checkpoint: Checkpoint) -> int:
    """What the version's live tables take as plain arrays: all columns in their own dtypes, and keys."""
    return sum(plain_table_bytes(table) for table in checkpoint.values())


def plain_table_bytes(table: Table) -> int:
    """What one table takes as plain arrays: all columns in their own dtypes, and int64 keys."""
    schema = table.schema
    row = sum(c.width(schema.dim) * dtypes.dtype_of(c.dtype).itemsize for c in schema.columns)
    return len(table) * (row + (np.dtype(np.int64).itemsize if table.keyed else 0))


def _is_own(view: View, entry: ChainEntry) -> bool:
    """Whether a segment was written for the version's own commit, rather than for an earlier one."""
    segment = view.segments[entry.segment]
    data, _ = segment.fetch_range(0, limits.BLOCK)
    block = data[: limits.BLOCK].tobytes()
    header = SegmentHeader.parse(block, segment.place, segment_id=entry.segment)
    return header.commit_id == view.manifest.commit_id


def _sum(view: View, entries: Iterable[ChainEntry]) -> Sizes:
    total = dict.fromkeys(KEYS, 0)
    for entry in entries:
        for key, size in sizes_of_segment(view.segments[entry.segment]).items():
            total[key] += size
        if view.container.kind == "file":
            total["padding"] += -entry.length % limits.PAGE
    return total
