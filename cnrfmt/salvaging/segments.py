"""What of a segment can be proven sound: its table of contents, and which of its pieces."""

from __future__ import annotations

import copy
import errno
from typing import Any

import numpy as np

from cnrfmt import parallel
from cnrfmt.arrays import Bytes, Ids, Words
from cnrfmt.errors import DamagedError, StorageError
from cnrfmt.format import limits
from cnrfmt.format.digests import NODE_LEVEL, digest, seed_of
from cnrfmt.format.encoding import CodebookLayout, IntegerLayout
from cnrfmt.format.manifest import ChainEntry, Manifest
from cnrfmt.format.segment import Trailer, toc_digest
from cnrfmt.format.toc import Part
from cnrfmt.part_integers import PartIntegers
from cnrfmt.salvaging.runs import NONE, Runs, common, merged, minus, run, runs_of
from cnrfmt.segment_reader import SegmentReader, Source

_PER_NODE = limits.NODE // 8
_STEP = 8 << 20
_MOST_TEXTS = 16
"""How many runs of bytes that may be the table of contents are tried."""
_LOSSES = {errno.EIO, errno.ENOENT} | {
    getattr(errno, name) for name in ("EUCLEAN", "EBADMSG", "ENODATA", "EREMOTEIO") if hasattr(errno, name)
}
"""What an operating system answers where a medium has lost what was on it."""


def is_loss(error: Exception) -> bool:
    """Whether an error says that bytes are damaged or gone, rather than that they may not be read."""
    return isinstance(error, DamagedError) or (isinstance(error, StorageError) and error.errno in _LOSSES)


def as_damage(error: Exception, place: str) -> DamagedError:
    """The same as damage, to be kept: without the traceback, whose frames would hold files open."""
    if isinstance(error, DamagedError):
        return copy.copy(error)
    code = getattr(error, "errno", None)
    if code == errno.ENOENT:
        return DamagedError("file-missing", place, expected="a file", found="none")
    return DamagedError("unreadable", place, expected="bytes that can be read", found=error)


class SalvagedSegment(SegmentReader):
    """A segment that is read by pread; `lost` are its pieces that can't be proven, once `scan` was called."""

    def __init__(self, source: Source, entry: ChainEntry, manifest: Manifest) -> None:
        toc = None if entry.toc is None else manifest.attachments[entry.toc[0] : sum(entry.toc)]
        self.lost: Runs = NONE
        self._lost_nodes: dict[int, DamagedError] = {}
        try:
            super().__init__(source, entry, toc, backend="pread", verify=True, manifest=manifest)
        except (DamagedError, StorageError) as error:
            if not is_loss(error) or (trailer := _prove_trailer(source, entry, toc)) is None:
                raise
            mended = _Mended(source, trailer)
            super().__init__(mended, entry, toc, backend="pread", verify=True, manifest=manifest)

    def lost_rows(self, part: Part, count: int) -> Runs:
        """The positions of those of a part's `count` rows that have a bit, or what they share, in a lost piece."""
        if isinstance(part.layout, IntegerLayout) and part.layout.is_grouped:
            return self._lost_in_groups(part, count, part.layout)
        hit = self.lost_bytes(part.section)
        bits = part.layout.row_bits(part.width)
        lost = [np.stack([8 * hit[:, 0] // bits, (8 * hit[:, 1] + 7) // bits], axis=1)]
        if part.codebooks is not None and isinstance(part.layout, CodebookLayout) and part.layout.block is not None:
            books = self.lost_bytes(part.codebooks) // part.layout.book_bytes
            lost.append(books * part.layout.block + np.array([0, part.layout.block - 1]))
        # What is left over of the last byte, or of the last block, belongs to no row.
        return common(merged(lost), run(0, count - 1))

    def _lost_in_groups(self, part: Part, count: int, layout: IntegerLayout) -> Runs:
        """The rows of the groups that have a byte in a lost piece; all rows, if that is true of what groups share."""
        hit = self.lost_bytes(part.section)
        if not len(hit):
            return NONE
        assert layout.group is not None
        try:
            starts = PartIntegers(self, part, count).group_starts()
        except (DamagedError, StorageError) as error:
            if not is_loss(error):
                raise
            return run(0, count - 1)
        first, last = (np.searchsorted(starts, edge, "right") - 1 for edge in (hit[:, 0], hit[:, 1]))
        rows = np.stack([first * layout.group, (last + 1) * layout.group - 1], axis=1)
        return common(merged([rows]), run(0, count - 1))

    def lost_bytes(self, section: int) -> Runs:
        """The bytes of a section that lie in a lost piece, counted from its start."""
        offset, length = self.toc.sections[section]
        size = self.trailer.piece_size
        first, last = offset // size, (offset + length - 1) // size
        hit = self.lost[(self.lost[:, 1] >= first) & (self.lost[:, 0] <= last)]
        begin = np.maximum(hit[:, 0] * size - offset, 0)
        end = np.minimum((hit[:, 1] + 1) * size - 1 - offset, length - 1)
        return np.stack([begin, end], axis=1)

    def proven(self, section: int, start: int, length: int) -> Bytes:
        """The `length` bytes of a section from `start` on, those in lost pieces as zero."""
        offset = self.toc.sections[section][0]
        out = np.zeros(length, np.uint8)
        for first, last in minus(run(start, start + length - 1), self.lost_bytes(section)).tolist():
            data, base = self.fetch_range(offset + first, last + 1 - first)
            out[first - start : last + 1 - start] = data[offset + first - base : offset + last + 1 - base]
        return out

    def where(self, section: int) -> str:
        """A section's lost pieces in words, for reports."""
        offset, length = self.toc.sections[section]
        size = self.trailer.piece_size
        first, last = offset // size, (offset + length - 1) // size
        hit = self.lost[(self.lost[:, 1] >= first) & (self.lost[:, 0] <= last)]
        shown = [str(a) if a == b else f"{a} to {b}" for a, b in hit[:3].tolist()]
        more = f" and {len(hit) - 3} more runs" if len(hit) > 3 else ""
        pieces = "piece" if len(hit) == 1 and hit[0, 0] == hit[0, 1] else "pieces"
        return f"{self.place}, {pieces} {', '.join(shown)}{more}" if shown else self.place

    def scan(self, threads: int, progress: Any) -> None:
        """Reads all pieces, and keeps in mind which are lost. `progress` is told how many bytes were read."""
        steps = self.steps()
        found = []
        for lost in parallel.ordered(threads, self._lost_of_step, steps, ahead=2 * threads):
            found.append(runs_of(lost))
            progress(self.entry.length // len(steps))
        self.lost = merged(found)

    def _lost_of_step(self, first: int) -> Ids:
        try:
            self.verify_step(first)
        except (DamagedError, StorageError) as error:
            if not is_loss(error):
                raise
        else:
            return np.empty(0, np.int64)
        start, stop = self._step_bounds(first)
        size = self.trailer.piece_size
        pieces = np.arange(start // size, -(-stop // size), dtype=np.int64)
        nodes = pieces // _PER_NODE
        return np.concatenate([self._lost_of_node(int(node), pieces[nodes == node]) for node in np.unique(nodes)])

    def _lost_of_node(self, node: int, pieces: Ids) -> Ids:
        try:
            digests = self._digests_of([node])
        except DamagedError:
            return pieces
        computed = self._digests_from_data(int(pieces[0]), len(pieces))
        if computed is not None:
            lost: Ids = pieces[computed != digests[pieces]]
            return lost
        # Some of the bytes can't even be read: which of them, each piece tells by itself.
        kept = np.ones(len(pieces), np.bool_)
        for k, piece in enumerate(pieces.tolist()):
            alone = self._digests_from_data(piece, 1)
            kept[k] = alone is not None and alone[0] == digests[piece]
        return pieces[~kept]

    def _digests_from_data(self, first: int, count: int) -> Words | None:
        """The digests that these pieces have; None where one of them can't be read."""
        from cnrfmt.kernels import xxh3

        size = self.trailer.piece_size
        found = np.empty(count, np.uint64)
        step = max(1, _STEP // size)
        for start in range(0, count, step):
            stop = min(start + step, count)
            begin, end = (first + start) * size, min((first + stop) * size, self.trailer.data_end)
            try:
                data = self._raw(begin, end - begin)
            except (DamagedError, StorageError) as error:
                if not is_loss(error):
                    raise
                return None
            seed = np.uint64((self._seed + first + start) & ((1 << 64) - 1))
            xxh3.digest_pieces(data, size, seed, found[start:stop])
        return found

    def _check_node(self, node: int, section: Bytes) -> None:
        if node not in self._lost_nodes:
            try:
                super()._check_node(node, section)
            except (DamagedError, StorageError) as error:
                if not is_loss(error):
                    raise
                if not self._prove_node(node, section):
                    self._lost_nodes[node] = as_damage(error, f"{self.place}, node {node}")
        if node in self._lost_nodes:
            raise copy.copy(self._lost_nodes[node])

    def _prove_node(self, node: int, section: Bytes) -> bool:
        """Whether the data themselves have the digests that the node was made of: then no digest is missed."""
        view = section[node * limits.NODE : (node + 1) * limits.NODE]
        found = self._digests_from_data(node * _PER_NODE, len(view) // 8)
        if found is None:
            return False
        data = found.astype("<u8").view(np.uint8)
        if digest(data, seed_of(self.entry.segment, NODE_LEVEL, node)) != self.toc.nodes[node]:
            return False
        view[:] = data
        self._node_verified[node] = 1
        return True


class _Mended:
    """A source whose trailer was proven otherwise, and stands in the place of a damaged one."""

    def __init__(self, source: Source, trailer: bytes) -> None:
        self._source, self._trailer = source, np.frombuffer(trailer, np.uint8)
        self.place, self.length = source.place, source.length

    def pread_into(self, offset: int, buffer: Bytes) -> None:
        if offset == self.length - limits.BLOCK:
            buffer[:] = self._trailer[: len(buffer)]
        else:
            self._source.pread_into(offset, buffer)

    def pread_ranges(self, offsets: Ids, length: int, buffer: Bytes) -> None:
        self._source.pread_ranges(offsets, length, buffer)

    def map(self) -> Bytes:
        return self._source.map()


def _prove_trailer(source: Source, entry: ChainEntry, toc: bytes | None) -> bytes | None:
    """The trailer of a segment, made anew from its table of contents; None where that can't be proven.

    All that a trailer says follows from the chain entry, the table of contents and the piece size, and the chain
    entry gives the digest of the right one.
    """
    if entry.length < 2 * limits.BLOCK:
        return None
    for text in [toc] if toc is not None else _texts(source, entry):
        end = entry.length - limits.BLOCK - len(text)
        mark = toc_digest(text, entry.segment)
        size = limits.MIN_PIECE
        while size <= limits.MAX_PIECE:
            data_end = end - 8 * -(-end // (size + 8))
            if data_end >= limits.BLOCK:
                trailer = Trailer(entry.segment, entry.length, data_end, end, len(text), mark, size).pack()
                if int.from_bytes(trailer[120:], "little") == entry.trailer_digest:
                    return trailer
            size *= 2
    return None


def _texts(source: Source, entry: ChainEntry) -> list[bytes]:
    """What may be the table of contents: it ends where the trailer starts, and starts as this writer starts it."""
    length = min(entry.length - limits.BLOCK, limits.MAX_METADATA)
    tail = np.empty(length, np.uint8)
    try:
        source.pread_into(entry.length - limits.BLOCK - length, tail)
    except (DamagedError, StorageError) as error:
        if not is_loss(error):
            raise
        return []
    data = tail.tobytes()
    found: list[bytes] = []
    at = data.rfind(b'{"sections"')
    while at >= 0 and len(found) < _MOST_TEXTS:
        found.append(data[at:])
        at = data.rfind(b'{"sections"', 0, at)
    return found
