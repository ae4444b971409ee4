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

Backend = Literal["mmap", "pread"]
Verify = Literal["none", "touched", "all"]

_VERIFY_STEP = 8 << 20
_READ_STEP = 1 << 20
"""Bytes that are read and verified at a time, so that they are verified and decoded in the cache."""
_FEW_PIECES = 8
"""Up to so many pieces are faulted into a mapping; more are quicker read."""
_MOST_NAMED = 64
"""Sections that an error names: as many as a piece of 4 KiB can hold."""
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
        self._map: Bytes | None = source.map() if backend == "mmap" else None
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
        self._verified = np.zeros(self.trailer.pieces, np.uint8)
        self._node_verified = bytearray(len(self.toc.nodes))
        self._all_verified = not verify
        self._digests: Words | None = None
        self.indexes = RowIndexes(self)
        self._lock = threading.Lock()

    @property
    def data(self) -> Bytes | None:
        """The segment up to its data end, if it is mapped."""
        return None if self._map is None else self._map[: self.trailer.data_end]

    def _raw(self, offset: int, length: int) -> Bytes:
        if self._map is not None:
            return self._map[offset : offset + length]
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
        data = self.data
        if data is not None:
            self._check(data, 0, first, stop)
            return data, 0
        if self._verify:
            start, end = first * piece, min(stop * piece, self.trailer.data_end)
        else:
            start, end = offset, offset + length
        data = self._raw(start, end - start)
        self._check(data, first, first, stop)
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
        data = self.data
        if data is not None and self._all_verified:
            return data, offsets
        from cnrfmt.kernels import xxh3

        listed = np.empty(len(offsets) * ((row_bytes + piece - 2) // piece + 1), np.int64)
        count = xxh3.pieces_of_rows(offsets, row_bytes, piece, self._verified, listed)
        if data is not None:
            if not count:
                return data, offsets
            if count < _FEW_PIECES:
                self._check_pieces(data, 0, listed[:count])
                return data, offsets
            # The rows whose pieces are verified already are gathered with the others.
            none = np.zeros_like(self._verified)
            count = xxh3.pieces_of_rows(offsets, row_bytes, piece, none, listed)
        return self._gathered(offsets, sorted_ids.union(listed[:count]))

    def fetch_ranges(self, offsets: Ids, lengths: Ids) -> tuple[Bytes, Ids]:
        """Ranges of bytes at these offsets, ascending, verified: an array and the offsets in it."""
        if self._map is not None and self._all_verified:
            return self._map[: self.trailer.data_end], offsets
        piece = self.trailer.piece_size
        # What has no bytes may lie behind the last piece.
        first = np.minimum(offsets // piece, self.trailer.pieces - 1)
        counts = np.maximum((offsets + lengths - 1) // piece - first, 0) + 1
        ends = counts.cumsum()
        touched = sorted_ids.union(np.repeat(first - (ends - counts), counts) + np.arange(ends[-1]))
        data = self.data
        if data is not None and np.count_nonzero(self._verified[touched] == 0) < _FEW_PIECES:
            self._check_pieces(data, 0, touched)
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
        if self._map is not None and self._verified[first:stop].all():
            return
        from cnrfmt.kernels import xxh3

        digests = self._digests_of(range(first // _DIGESTS_PER_NODE, (stop - 1) // _DIGESTS_PER_NODE + 1))
        piece = self.trailer.piece_size
        bad = xxh3.verify_range(data, first, stop, piece, np.uint64(self._seed), digests)
        if bad >= 0:
            self._raise_bad_piece(int(bad), int(digests[bad]))
        if self._map is not None:
            self._verified[first:stop] = 1

    def _check(self, data: Bytes, data_first: int, first: int, stop: int) -> None:
        if not self._all_verified and not self._verified[first:stop].all():
            self._check_pieces(data, data_first, np.arange(first, stop, dtype=np.int64))

    def _check_pieces(self, data: Bytes, data_first: int, pieces: Ids) -> None:
        if not self._verify:
            return
        if self._map is not None:
            pieces = pieces[self._verified[pieces] == 0]
        if not pieces.size:
            return
        from cnrfmt.kernels import xxh3

        digests = self._piece_digests(pieces)
        # Bytes that were just read anew must be hashed anew: a mark is worth only as much as the mapping it is for.
        verified = self._verified if self._map is not None else np.zeros_like(self._verified)
        bad = xxh3.verify_pieces(
            data, data_first, self.trailer.piece_size, pieces, np.uint64(self._seed), digests, verified
        )
        if bad >= 0:
            self._raise_bad_piece(int(bad), int(digests[bad]))

    def _piece_digests(self, pieces: Ids) -> Words:
        """The digest section, its nodes that hold these pieces' digests verified."""
        return self._digests_of(sorted_ids.union(pieces // _DIGESTS_PER_NODE).tolist())

    def _digests_of(self, nodes: Iterable[int]) -> Words:
        """The digest section, these nodes of it verified."""
        digests = self._digests
        if digests is None:
            with self._lock:
                if self._digests is None:
                    size = 8 * self.trailer.pieces
                    raw = (
                        np.empty(size, np.uint8)
                        if self._map is None
                        else self._map[self.trailer.data_end : self.trailer.data_end + size]
                    )
                    self._digests = raw.view(np.uint64)
                digests = self._digests
        for node in nodes:
            if not self._node_verified[node]:
                self._check_node(node, digests.view(np.uint8))
        return digests

    def _check_node(self, node: int, section: Bytes) -> None:
        view = section[node * limits.NODE : (node + 1) * limits.NODE]
        if self._map is None:
            self.source.pread_into(self.trailer.data_end + node * limits.NODE, view)
        want = self.toc.nodes[node]
        found = digest(view, seed_of(self.entry.segment, NODE_LEVEL, node))
        if want != found:
            raise DamagedError(
                "node-digest", f"{self.place}, node {node}", expected=f"{want:016x}", found=f"{found:016x}"
            )
        self._node_verified[node] = 1

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
        names = ["the header"] if start < limits.BLOCK else []
        for section, owner in sorted(self._owners().items()):
            offset, length = self.toc.sections[section]
            if offset < stop and start < offset + length:
                names.append(owner)
        shown = names[:_MOST_NAMED] + ([f"{len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else [])
        return ", ".join(shown) or "padding"

    def table_name(self, table_id: bytes) -> str:
        """How errors name a table: by its name, or by its id if it was dropped."""
        name = self._names.get(table_id)
        return f"table {table_id.hex()} (dropped)" if name is None else f"table {name!r}"

    def _owners(self) -> dict[int, str]:
        owners = {}
        for table in self.toc.tables:
            name = self.table_name(table.table_id)
            for number, row_set in enumerate(table.row_sets):
                if row_set.section is not None:
                    owners[row_set.section] = f"row index {number} of {name}"
            for part in table.parts:
                kind = "exceptions" if part.exceptions_of is not None else "part"
                owners[part.section] = f"{kind} of column {part.column!r} of {name}"
                if part.codebooks is not None:
                    owners[part.codebooks] = f"codebooks of column {part.column!r} of {name}"
        for entry in self.toc.dense or ():
            if entry.section is not None:
                owners[entry.section] = f"dense entry {entry.name!r}"
        return owners

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
