"""Verified access to the bytes of one segment, mapped or read by pread."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, Protocol

import numpy as np

from cnrfmt import sorted_ids
from cnrfmt.arrays import Bytes, Ids, Words
from cnrfmt.errors import DamagedError
from cnrfmt.format import limits
from cnrfmt.format.digests import NODE_LEVEL, digest, seed_of
from cnrfmt.format.manifest import ChainEntry, Manifest
from cnrfmt.format.segment import Trailer, check_node_count, check_toc_digest
from cnrfmt.format.toc import Toc
from cnrfmt.format.toc_parser import parse_toc
from cnrfmt.memory import Budget
from cnrfmt.row_indexes import RowIndexes
from cnrfmt.section_owners import table_name, whose
from cnrfmt.storage.mapping import zero_bytes

Backend = Literal["mmap", "pread"]
Verify = Literal["none", "touched", "all"]

_VERIFY_STEP = 8 << 20
_READ_STEP = 1 << 20
"""Bytes that are read and verified at a time, so that they are verified and decoded in the cache."""
_FEW_PIECES = 8
"""Fewer pieces than this are hashed one by one, and faulted into a mapping that is there. More are quicker read, and
hashed at once. A mapping itself is made once so many were asked for: for fewer it costs more than it saves."""
_LOCAL = threading.local()
_DIGESTS_PER_NODE = limits.NODE // 8


class Source(Protocol):
    """Where the bytes of a segment live."""

    place: str
    length: int

    def pread_into(self, offset: int, buffer: Bytes) -> None:
        """Fills the buffer with the bytes from `offset`."""

    def pread_ranges(self, offsets: Ids, length: int, buffer: Bytes) -> None:
        """Reads ranges of `length` bytes, one behind the other."""

    def map(self) -> Bytes:
        """All bytes, mapped."""


class SegmentReader:
    """One segment of a chain, opened: its table of contents, and its bytes once they are verified.

    Every fetch returns bytes of the segment as an array together with the offset of the array's first
    byte in the segment. Safe to use from many threads: verifying a piece twice does no harm.
    """

    def __init__(
        self,
        source: Source,
        entry: ChainEntry,
        toc: bytes | None,
        *,
        backend: Backend,
        verify: bool,
        manifest: Manifest,
        budget: Budget | None = None,
    ) -> None:
        budget = budget or Budget(None)
        self.source, self.entry, self.place = source, entry, source.place
        if source.length != entry.length:
            raise DamagedError(
                "segment-length",
                self.place,
                expected=f"{entry.length} bytes",
                found=f"{source.length} bytes",
            )
        if entry.length < 2 * limits.BLOCK:
            raise DamagedError(
                "block-length",
                self.place,
                expected=f"a header and a trailer, {2 * limits.BLOCK} bytes",
                found=f"{entry.length} bytes",
            )
        self._is_mappable = backend == "mmap"
        self._map: Bytes | None = None
        self._asked_for = 0
        self._lock = threading.Lock()
        self.trailer = Trailer.parse(
            self._raw(entry.length - limits.BLOCK, limits.BLOCK).tobytes(),
            self.place,
            segment_id=entry.segment,
            length=entry.length,
            mark=entry.trailer_digest,
        )
        budget.take_json(self.trailer.toc_length, f"{self.place}, table of contents")
        if toc is None:
            toc = self.toc_bytes()
        else:
            check_toc_digest(toc, self.trailer, self.place)
        self.toc: Toc = parse_toc(
            toc, self.trailer.data_end, self.place, lenient=manifest.features.lenient
        )
        check_node_count(len(self.toc.nodes), self.trailer, self.place)
        self._names = {t.table_id: t.name for t in manifest.tables}
        self._seed = seed_of(entry.segment)
        self._verify = verify
        # A mark and a digest for each piece.
        budget.take(9 * self.trailer.pieces, f"{self.place}, pieces")
        self._verified = np.empty(0, np.uint8)
        """A mark for each piece of the mapping that was verified, once it is there."""
        self._node_verified = bytearray(len(self.toc.nodes))
        self._all_verified = not verify
        self._digests: Words | None = None
        self._kept_node: tuple[int, Words] | None = None
        self.indexes = RowIndexes(self)

    def map(self) -> Bytes:
        """The whole segment, mapped."""
        if self._map is None:
            with self._lock:
                if self._map is None:
                    self._verified = zero_bytes(self.trailer.pieces)
                    self._map = self.source.map()
        return self._map

    @property
    def data(self) -> Bytes | None:
        """The segment up to its data end, mapped; None under the backend `pread`."""
        return self.map()[: self.trailer.data_end] if self._is_mappable else None

    def _data_for(self, pieces: int) -> Bytes | None:
        """The same for so many pieces; None where they are better read."""
        if self._map is None:
            self._asked_for += pieces
            if self._asked_for < _FEW_PIECES:
                return None
        return self.data

    @property
    def marks(self) -> Bytes | None:
        """A mark for each piece of the map that was verified, set as reading goes on; None where all may be read."""
        if self._all_verified:
            return None
        self.map()
        return self._verified

    def _raw(self, offset: int, length: int) -> Bytes:
        return self._read(offset, length) if self._map is None else self._map[offset : offset + length]

    def _read(self, offset: int, length: int) -> Bytes:
        buffer = np.empty(length, np.uint8)
        self.source.pread_into(offset, buffer)
        return buffer

    def is_verified(self, offset: int, length: int) -> bool:
        """Whether these bytes are mapped, and were all verified before."""
        piece = self.trailer.piece_size
        pieces = slice(offset // piece, -(-(offset + length) // piece))
        return self._verify and self._map is not None and bool(self._verified[pieces].all())

    def fetch_range(self, offset: int, length: int) -> tuple[Bytes, int]:
        """The `length` bytes from `offset`, verified, within the returned array."""
        piece = self.trailer.piece_size
        first, stop = offset // piece, -(-(offset + length) // piece)
        data = self._data_for(stop - first)
        if data is not None:
            self._check(data, first, stop)
            return data, 0
        if not self._verify:
            return self._read(offset, length), offset
        start = first * piece
        data = self._read(start, min(stop * piece, self.trailer.data_end) - start)
        self._check_read(data, first, stop)
        return data, start

    def read_into(self, offset: int, target: Bytes) -> None:
        """Fills `target` with the bytes from `offset`, read anew and verified while they are in the cache.

        For long runs this is faster than a mapping that has to be faulted in.
        """
        stop = offset + len(target)
        piece = self.trailer.piece_size
        if not self._verify:
            self.source.pread_into(offset, target)
            return
        first = -(-offset // piece)
        last = -(-stop // piece) if stop == self.trailer.data_end else stop // piece
        if first >= last:
            data, start = self.fetch_range(offset, len(target))
            target[:] = data[offset - start : stop - start]
            return
        step = max(1, _READ_STEP // piece)
        for begin in range(first, last, step):
            end = min(begin + step, last)
            view = target[begin * piece - offset : min(end * piece, stop) - offset]
            self.source.pread_into(begin * piece, view)
            self._check_read(view, begin, end)
        for edge, edge_stop in ((offset, first * piece), (min(last * piece, stop), stop)):
            if edge < edge_stop:
                data, start = self.fetch_range(edge, edge_stop - edge)
                target[edge - offset : edge_stop - offset] = data[edge - start : edge_stop - start]

    def read_scratch(self, offset: int, length: int) -> tuple[Bytes, int]:
        """As `fetch_range`, read anew into this thread's buffer; whole pieces, so that none is read twice."""
        piece = self.trailer.piece_size
        start = offset // piece * piece
        end = min(-(-(offset + length) // piece) * piece, self.trailer.data_end)
        buffer = self.scratch(end - start)
        self.read_into(start, buffer)
        return buffer, start

    def scratch(self, length: int) -> Bytes:
        """The buffer of this thread for bytes that are decoded at once; its next call overwrites them."""
        buffer: Bytes | None = getattr(_LOCAL, "buffer", None)
        if buffer is None or len(buffer) < length:
            buffer = _LOCAL.buffer = np.empty(length, np.uint8)
        return buffer[:length]

    def fetch_rows(self, offsets: Ids, row_bytes: int) -> tuple[Bytes, Ids]:
        """The rows of `row_bytes` bytes at these offsets, verified: an array and the offsets in it."""
        piece = self.trailer.piece_size
        most = (row_bytes + piece - 2) // piece + 1
        data = self._data_for(len(offsets) * most)
        if data is not None and self._all_verified:
            return data, offsets
        if data is not None:
            from cnrfmt.kernels import xxh3

            listed = np.empty(len(offsets) * most, np.int64)
            count = xxh3.pieces_of_rows(offsets, row_bytes, piece, self._verified, listed)
            if count < _FEW_PIECES:
                self._check_pieces(data, listed[:count])
                return data, offsets
        # The rows whose pieces are verified already are gathered with the others.
        first, last = offsets // piece, (offsets + (row_bytes - 1)) // piece
        return self._gathered(offsets, sorted_ids.union(*(np.minimum(first + k, last) for k in range(most))))

    def fetch_ranges(self, offsets: Ids, lengths: Ids) -> tuple[Bytes, Ids]:
        """Ranges of bytes at these offsets, ascending, verified: an array and the offsets in it."""
        data = self._data_for(len(offsets))
        if data is not None and self._all_verified:
            return data, offsets
        piece = self.trailer.piece_size
        # What has no bytes may lie behind the last piece.
        first = np.minimum(offsets // piece, self.trailer.pieces - 1)
        counts = np.maximum((offsets + lengths - 1) // piece - first, 0) + 1
        ends = counts.cumsum()
        touched = sorted_ids.union(np.repeat(first - (ends - counts), counts) + np.arange(ends[-1]))
        if data is not None and np.count_nonzero(self._verified[touched] == 0) < _FEW_PIECES:
            self._check_pieces(data, touched)
            return data, offsets
        return self._gathered(offsets, touched)

    def _gathered(self, offsets: Ids, touched: Ids) -> tuple[Bytes, Ids]:
        """Pieces that hold what begins at these offsets, ascending, and where each begins there."""
        piece = self.trailer.piece_size
        # What goes on in the next piece finds it right behind, since both were touched.
        return self._gather(touched), np.searchsorted(touched, offsets // piece) * piece + offsets % piece

    def _gather(self, pieces: Ids) -> Bytes:
        """These pieces (ascending), read anew and verified, one behind the other."""
        piece = self.trailer.piece_size
        size = (len(pieces) - 1) * piece + min(piece, self.trailer.data_end - int(pieces[-1]) * piece)
        buffer = self.scratch(size)
        if len(pieces) < _FEW_PIECES:
            for k, number in enumerate(pieces.tolist()):
                view = buffer[k * piece : (k + 1) * piece]
                self.source.pread_into(number * piece, view)
                if self._verify:
                    self._check_piece(view, number)
            return buffer
        self.source.pread_ranges(pieces * piece, piece, buffer)
        if self._verify:
            from cnrfmt.kernels import xxh3

            digests = self._piece_digests(pieces)
            bad = xxh3.verify_gathered(buffer, piece, pieces, np.uint64(self._seed), digests)
            if bad >= 0:
                self._raise_bad_piece(int(bad), int(digests[bad]))
            if self._map is not None:
                self._verified[pieces] = 1
        return buffer

    def _check_read(self, data: Bytes, first: int, stop: int) -> None:
        """Verifies the pieces first .. stop - 1, which were just read; marks count for a mapping alone."""
        is_mapped = self._map is not None
        if is_mapped and self._verified[first:stop].all():
            return
        piece = self.trailer.piece_size
        if stop - first < _FEW_PIECES:
            for number in range(first, stop):
                self._check_piece(data[(number - first) * piece : (number - first + 1) * piece], number)
        else:
            from cnrfmt.kernels import xxh3

            digests = self._digests_of(range(first // _DIGESTS_PER_NODE, (stop - 1) // _DIGESTS_PER_NODE + 1))
            bad = xxh3.verify_range(data, first, stop, piece, np.uint64(self._seed), digests)
            if bad >= 0:
                self._raise_bad_piece(int(bad), int(digests[bad]))
        if is_mapped:
            self._verified[first:stop] = 1

    def _check_piece(self, data: Bytes, piece: int) -> None:
        """Verifies the bytes of a piece, without what a kernel's call costs."""
        want = self._digest_of(piece)
        if digest(data, seed_of(self.entry.segment, 0, piece)) != want:
            self._raise_bad_piece(piece, want)

    def _check(self, data: Bytes, first: int, stop: int) -> None:
        """Verifies pieces of the mapping that aren't yet."""
        if not self._all_verified and not self._verified[first:stop].all():
            self._check_pieces(data, np.arange(first, stop, dtype=np.int64))

    def _check_pieces(self, data: Bytes, pieces: Ids) -> None:
        if not self._verify:
            return
        pieces = pieces[self._verified[pieces] == 0]
        size = self.trailer.piece_size
        if len(pieces) < _FEW_PIECES:
            for piece in pieces.tolist():
                self._check_piece(data[piece * size : (piece + 1) * size], piece)
                self._verified[piece] = 1
            return
        from cnrfmt.kernels import xxh3

        digests = self._piece_digests(pieces)
        bad = xxh3.verify_pieces(data, 0, size, pieces, np.uint64(self._seed), digests, self._verified)
        if bad >= 0:
            self._raise_bad_piece(int(bad), int(digests[bad]))

    def _piece_digests(self, pieces: Ids) -> Words:
        """The digest section, its nodes that hold these pieces' digests verified."""
        return self._digests_of(sorted_ids.union(pieces // _DIGESTS_PER_NODE).tolist())

    def _digests_of(self, nodes: Iterable[int]) -> Words:
        """The digest section, these nodes of it read and verified."""
        digests = self._digests
        if digests is None:
            with self._lock:
                if self._digests is None:
                    self._digests = zero_bytes(8 * self.trailer.pieces).view(np.uint64)
                digests = self._digests
        for node in nodes:
            if not self._node_verified[node]:
                self._check_node(node, digests.view(np.uint8))
        return digests

    def _digest_of(self, piece: int) -> int:
        """The digest of one piece. Room for all of them is taken only where more is read than a few rows."""
        node, place = divmod(piece, _DIGESTS_PER_NODE)
        if self._map is not None or not self._is_mappable:
            return int(self._digests_of((node,))[piece])
        kept = self._kept_node
        if kept is None or kept[0] != node:
            words = np.empty(min(_DIGESTS_PER_NODE, self.trailer.pieces - piece + place), np.uint64)
            self._read_node(node, words.view(np.uint8))
            kept = self._kept_node = node, words
        return int(kept[1][place])

    def _check_node(self, node: int, section: Bytes) -> None:
        self._read_node(node, section[node * limits.NODE : (node + 1) * limits.NODE])
        self._node_verified[node] = 1

    def _read_node(self, node: int, view: Bytes) -> None:
        """Fills `view` with a node of the digest section, verified."""
        self.source.pread_into(self.trailer.data_end + node * limits.NODE, view)
        want = self.toc.nodes[node]
        found = digest(view, seed_of(self.entry.segment, NODE_LEVEL, node))
        if want != found:
            raise DamagedError(
                "node-digest", f"{self.place}, node {node}", expected=f"{want:016x}", found=f"{found:016x}"
            )

    def _raise_bad_piece(self, piece: int, want: int) -> None:
        size = self.trailer.piece_size
        start, stop = piece * size, min((piece + 1) * size, self.trailer.data_end)
        found = digest(self._raw(start, stop - start), seed_of(self.entry.segment, 0, piece))
        raise DamagedError(
            "piece-digest",
            f"{self.place}, piece {piece} (bytes {start} to {stop - 1}: {self.whose(start, stop)})",
            expected=f"{want:016x}",
            found=f"{found:016x}",
        )

    def whose(self, start: int, stop: int) -> str:
        """What the bytes from `start` to `stop` of the segment belong to, in words."""
        return whose(self.toc, self._names, start, stop)

    def table_name(self, table_id: bytes) -> str:
        """How errors name a table: by its name, or by its id if it was dropped."""
        return table_name(self._names, table_id)

    def steps(self) -> range:
        """The first pieces of the steps in which a whole segment is verified."""
        return range(0, self.trailer.pieces, max(1, _VERIFY_STEP // self.trailer.piece_size))

    def verify_step(self, first: int) -> None:
        """Verifies the pieces of one step; raises `DamagedError`."""
        start, stop = self._step_bounds(first)
        self.fetch_range(start, stop - start)

    def _step_bounds(self, first: int) -> tuple[int, int]:
        size = self.trailer.piece_size
        stop = (first + max(1, _VERIFY_STEP // size)) * size
        return first * size, min(stop, self.trailer.data_end)

    def bad_pieces(self, first: int) -> list[DamagedError]:
        """Every piece and node of one step whose digest is wrong, for validators."""
        try:
            self.verify_step(first)
        except DamagedError as error:
            if error.rule == "node-digest":
                return [error]
            return list(self._bad_one_by_one(*self._step_bounds(first)))
        return []

    def _bad_one_by_one(self, start: int, stop: int) -> Iterator[DamagedError]:
        size = self.trailer.piece_size
        for piece in range(start, stop, size):
            try:
                self.fetch_range(piece, min(size, stop - piece))
            except DamagedError as error:
                # Without its traceback, whose frames would keep the file open.
                yield copy.copy(error)

    def verify_all(self, run: Callable[[Callable[[int], None], Iterable[int]], None]) -> None:
        """Verifies every piece, in steps that `run` may spread over threads; raises `DamagedError`."""
        run(self.verify_step, self.steps())
        self._all_verified = self._all_verified or self._map is not None

    def toc_bytes(self) -> bytes:
        """The table of contents as it is stored; raises `DamagedError` (rule `toc-digest`)."""
        toc = self._raw(self.trailer.toc_offset, self.trailer.toc_length).tobytes()
        check_toc_digest(toc, self.trailer, self.place)
        return toc

    def check_padding(self) -> None:
        """The bytes between the sections must be zero; raises `DamagedError`."""
        position = limits.BLOCK
        for offset, length in [*self.toc.sections, (self.trailer.data_end, 0)]:
            gap = self._raw(position, offset - position)
            if gap.any():
                raise DamagedError(
                    "section-zero",
                    f"{self.place}, byte {position + int(np.argmax(gap != 0))}",
                    expected="zero between sections",
                    found="another byte",
                )
            position = offset + length

    def section(self, number: int) -> Bytes:
        """The bytes of a whole section, verified; a view of the mapping, or a copy."""
        offset, length = self.toc.sections[number]
        data, start = self.fetch_range(offset, length)
        return data[offset - start : offset - start + length]
