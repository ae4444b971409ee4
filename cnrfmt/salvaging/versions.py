"""How much of a version can be proven sound."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from cnrfmt.arrays import Bytes
from cnrfmt.dense import read_entry
from cnrfmt.errors import DamagedError, StorageError
from cnrfmt.format.chain import Judged, check_chain, check_table
from cnrfmt.format.manifest import ChainEntry, Manifest
from cnrfmt.format.toc import DenseEntry
from cnrfmt.salvaging.layers import Opened
from cnrfmt.salvaging.manifests import Damaged
from cnrfmt.salvaging.report import Loss, VersionState
from cnrfmt.salvaging.runs import NONE
from cnrfmt.salvaging.segments import SalvagedSegment, as_damage, is_loss
from cnrfmt.salvaging.tables import TableSalvage
from cnrfmt.storage.base import manifest_place, segment_place

Progress = Callable[[int], None]
"""Called with a number of bytes that were dealt with."""
Key = tuple[bytes, int | None, int, int]


def key_of(entry: ChainEntry) -> Key:
    """What chain entries of one and the same segment have in common."""
    return entry.segment, entry.offset, entry.length, entry.trailer_digest


class Segments:
    """The segments of all versions, each opened and read once."""

    def __init__(self, container: Damaged, threads: int, progress: Progress) -> None:
        self._container, self._threads, self._progress = container, threads, progress
        self._opened: dict[Key, Opened] = {}

    def forget_missing(self) -> None:
        """Looks again, when asked again, for the segments that couldn't be opened."""
        self._opened = {key: found for key, found in self._opened.items() if isinstance(found, SalvagedSegment)}

    def of(self, manifest: Manifest) -> list[Opened]:
        """Those of a version, in the order of its chain."""
        return [self._open(entry, manifest) for entry in manifest.chain]

    def _open(self, entry: ChainEntry, manifest: Manifest) -> Opened:
        key = key_of(entry)
        if key not in self._opened:
            try:
                segment = SalvagedSegment(self._container.segment(entry), entry, manifest)
                segment.scan(self._threads, self._progress)
                self._opened[key] = segment
            except (DamagedError, StorageError) as error:
                if not is_loss(error):
                    raise
                self._opened[key] = as_damage(error, segment_place(self._container.path, entry.segment))
        return self._opened[key]


class VersionSalvage:
    """One version: its manifest, its segments as far as they are sound, and what follows from them.

    `problem` is set where sound bytes contradict each other, so that nothing can be said.
    """

    def __init__(self, manifest: Manifest, segments: list[Opened], path: str, judged: Judged) -> None:
        self.manifest, self.segments, self._judged = manifest, segments, judged
        self.gaps = [s for s in segments if isinstance(s, DamagedError)]
        self.problem = next(self._problems(manifest_place(path, manifest.version)), None)
        self._tables: dict[str, TableSalvage] = {}

    def _problems(self, place: str) -> Iterator[DamagedError]:
        chain = zip(self.manifest.chain, self.segments, strict=True)
        whole = [(e, s) for e, s in chain if isinstance(s, SalvagedSegment)]
        if len(whole) == len(self.segments):
            yield from check_chain(self.manifest, [(e, s.toc) for e, s in whole], place, self._judged)
            return
        schemas = {t.table_id: t for t in self.manifest.tables}
        for entry, segment in whole:
            for table in segment.toc.tables:
                if (schema := schemas.get(table.table_id)) is not None:
                    yield from check_table(schema, table, f"{place}, segment {entry.segment.hex()}")

    @property
    def is_whole(self) -> bool:
        """Whether every byte of its segments matches its digest."""
        return self.problem is None and not self.gaps and not any(len(s.lost) for s in self._readable())

    def _readable(self) -> list[SalvagedSegment]:
        return [s for s in self.segments if isinstance(s, SalvagedSegment)]

    def table(self, name: str) -> TableSalvage:
        """A table of the version."""
        if name not in self._tables:
            schema = self.manifest.table(name)
            assert schema is not None
            self._tables[name] = TableSalvage(self.manifest, self.segments, schema)
        return self._tables[name]

    def losses(self, names: Iterable[str]) -> list[Loss]:
        """What is lost of these tables and of the dense state."""
        return [loss for name in names for loss in self.table(name).losses] + self.dense_losses()

    def state(self, wanted: list[str] | None = None) -> VersionState:
        """How much of it is sound; only these tables and the dense state count, if some are wanted."""
        m = self.manifest
        if self.problem is not None:
            return VersionState(m.version, m.step, m.created, "unreadable", reason=_words(self.problem))
        if self.gaps:
            return VersionState(m.version, m.step, m.created, "gaps", reason=_words(self.gaps[0]))
        if self.is_whole:
            return VersionState(m.version, m.step, m.created, "whole")
        tables = [self.table(t.name).summary() for t in m.tables if wanted is None or t.name in wanted]
        dense = len(self.dense_losses())
        lost = sum(t.lost for t in tables) + dense
        most = sum(t.most for t in tables) + dense
        unsure = not all(t.exact for t in tables)
        if not lost and not unsure:
            # The damage is in what newer rows have replaced, or in what belongs to other versions.
            return VersionState(m.version, m.step, m.created, "whole")
        reason = "not all keys that are lost are known" if unsure else ""
        return VersionState(m.version, m.step, m.created, "damaged", lost, most, reason)

    # The dense state.

    def _dense_segment(self) -> Opened | None:
        for entry, segment in zip(self.manifest.chain, self.segments, strict=True):
            if entry.segment == self.manifest.dense:
                return segment
        return None

    def dense_losses(self) -> list[Loss]:
        """The entries of the dense state that are lost."""
        segment = self._dense_segment()
        if isinstance(segment, DamagedError):
            return [Loss(None, None, None, NONE, None, False, segment.rule, segment.place)]
        if segment is None:
            return []
        return [
            Loss(None, None, entry.name, NONE, 1, True, error.rule, error.place)
            for entry in segment.toc.dense or ()
            if (error := _entry_error(segment, entry)) is not None
        ]

    def dense(self) -> list[tuple[DenseEntry, Callable[[], Bytes]]]:
        """The entries that are sound, with their bytes."""
        segment = self._dense_segment()
        if segment is None or isinstance(segment, DamagedError):
            return []
        return [
            (entry, lambda e=entry, s=segment: _entry_bytes(s, e))  # type: ignore[misc]
            for entry in segment.toc.dense or ()
            if _entry_error(segment, entry) is None
        ]


def _entry_error(segment: SalvagedSegment, entry: DenseEntry) -> DamagedError | None:
    if entry.section is not None and len(segment.lost_bytes(entry.section)):
        return DamagedError("piece-digest", segment.where(entry.section), expected="sound pieces", found="others")
    if entry.kind == "array" and entry.dtype != "bool":
        return None
    try:
        read_entry(segment, entry)
    except DamagedError as error:
        return error
    return None


def _entry_bytes(segment: SalvagedSegment, entry: DenseEntry) -> Bytes:
    return np.empty(0, np.uint8) if entry.section is None else segment.section(entry.section)


def _words(error: DamagedError) -> str:
    return f"{error.place} ({error.rule})"
