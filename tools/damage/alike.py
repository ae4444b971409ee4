"""Damages that are alike: changed bytes that one digest covers, and that nobody looks at before it.

Whoever reads a block, a piece, a node, a table of contents or a manifest compares its digest first (only a block's
magic comes before it). Once some changes of such a unit were found by everybody in full, what is left to ask of another
change is whether the library's digest of the unit notices it: all that happens then is what has been seen.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from typing import Any

import numpy as np

from cnrfmt.format.digests import HEADER_LEVEL, NODE_LEVEL, TOC_LEVEL, TRAILER_LEVEL, digest, seed_of
from cnrfmt.kernels import xxh3
from tools.damage.kinds import Damage
from tools.damage.layout import BLOCK, NODE, Layout, Region, Span, geometry

_IN_FULL = 3
"""Changes of a unit that are tried in full, at least."""
_OFTEN = 25
"""And of the others one in so many."""
_MAGIC, _FIELDS = 8, 120

Unit = tuple[str, int, int, int, bool]
"""A run of bytes under one digest: file, start, stop, seed, and whether it is a piece, which a kernel digests."""


class Alike:
    """The units of one container, and how many changes of each were tried in full."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._regions = sorted(layout.regions, key=lambda r: (r.file, r.start))
        self._starts = [(r.file, r.start) for r in self._regions]
        self._segments = {segment.name: segment for segment in layout.segments}
        self._manifests = {manifest.name: manifest for manifest in layout.manifests}
        self._tried: Counter[tuple[Unit, bool]] = Counter()

    def is_known(self, file: str, at: int, number: int, damage: Damage) -> bool:
        """Whether this change of one byte, case `number`, needs no full trial: its unit's digest notices it."""
        region = self._regions[bisect_right(self._starts, (file, at)) - 1]
        unit = self._unit(region, at)
        if unit is None:
            return False
        _, start, stop, _, piece = unit
        # A changed magic, and a changed digest, are found by another comparison.
        kind = (unit, not piece and at - start < _MAGIC)
        if self._tried[kind] >= _IN_FULL and number % _OFTEN and start <= at < stop:
            new = damage.changes[file]
            assert isinstance(new, bytes)
            if _digest(new, unit) != _digest(self._layout.files[file], unit):
                return True
        self._tried[kind] += 1
        return False

    def _unit(self, region: Region, at: int) -> Unit | None:
        name = region.name.partition(" ")[0]
        if region.kind == "manifest":
            span = self._manifests[region.name]
            if at - span.start < BLOCK:
                return region.file, span.start, span.start + _FIELDS, 0, False
            return region.file, span.start, span.stop - 8, 0, False
        if region.kind in ("file header", "slot"):
            return (region.file, region.start, region.start + _FIELDS, 0, False) if region.metadata else None
        if region.kind == "gap":
            return None
        return self._segment_unit(region, self._segments[name], at)

    def _segment_unit(self, region: Region, segment: Span, at: int) -> Unit:
        raw = self._layout.bytes_of(segment)
        where, ident = geometry(raw), raw[len(raw) - BLOCK + 8 : len(raw) - BLOCK + 24]
        file, base = segment.file, segment.start
        if region.kind == "trailer":
            start = segment.stop - BLOCK
            return file, start, start + _FIELDS, seed_of(ident, TRAILER_LEVEL), False
        if region.kind == "segment header":
            return file, base, base + _FIELDS, seed_of(ident, HEADER_LEVEL), False
        if region.kind == "toc":
            return file, base + where.toc, base + where.toc + where.toc_length, seed_of(ident, TOC_LEVEL), False
        if region.kind == "digests":
            node = (at - base - where.data_end) // NODE
            start = base + where.data_end + node * NODE
            return file, start, min(start + NODE, base + where.toc), seed_of(ident, NODE_LEVEL, node), False
        piece = (at - base) // where.piece
        start = base + piece * where.piece
        return file, start, min(start + where.piece, base + where.data_end), seed_of(ident, 0, piece), True


def _digest(data: bytes, unit: Unit) -> int:
    _, start, stop, seed, piece = unit
    if not piece:
        return digest(data[start:stop], seed)
    found: Any = np.empty(1, np.uint64)
    xxh3.digest_pieces(np.frombuffer(data, np.uint8, stop - start, start), stop - start, np.uint64(seed), found)
    return int(found[0])
