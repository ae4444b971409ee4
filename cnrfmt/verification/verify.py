"""`verify`: every finding in a container, from its first page to its rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np

from cnrfmt import parallel
from cnrfmt.errors import DamagedError, UnsupportedError, UsageError
from cnrfmt.format.blocks import (
    FIRST_SPAN,
    KNOWN_COMPAT,
    KNOWN_RO_COMPAT,
    Features,
    FileHeader,
    Slot,
    bit_names,
)
from cnrfmt.format.chain import Judged, check_chain
from cnrfmt.format.limits import BLOCK
from cnrfmt.format.manifest import ChainEntry, Manifest, parse_manifest
from cnrfmt.format.segment import SegmentHeader
from cnrfmt.format.toc import TableEntry
from cnrfmt.memory import guarded
from cnrfmt.segment_reader import SegmentReader
from cnrfmt.storage.base import Container, DirectoryFacts, FileFacts, manifest_place
from cnrfmt.storage.container import open_container, path_text
from cnrfmt.storage.fs import Fs
from cnrfmt.storage.single_file import SingleFile
from cnrfmt.storage.source import Source
from cnrfmt.verification import contents, pages, sums
from cnrfmt.verification.report import Level, Report

Progress = Callable[[int, int], None]
"""Called with the bytes that were checked so far and those there are."""


def verify(
    path: str | os.PathLike[str],
    *,
    level: Level = "full",
    threads: int | None = None,
    progress: Progress | None = None,
    fs: Fs | None = None,
) -> Report:
    """Validates a container: every retained version, every finding.

    Parameters
    ----------
    level
        ``"structure"`` checks blocks, manifests, tables of contents and how they fit together; ``"digests"`` also
        every byte's digest and every byte that must be zero; ``"full"`` also what the rows say: indexes, overlaps,
        codes, dense entries.
    threads
        How many threads may compute digests.
    progress
        Called now and then with the bytes checked and the bytes there are.

    Raises
    ------
    StorageError
        The operating system refused to read. Damage is never raised, it is reported.
    TooLargeError
        There isn't enough memory to look at all of it.
    """
    if level not in ("structure", "digests", "full"):
        raise UsageError(f"level is 'structure', 'digests' or 'full', found {level!r}")
    report = Report(path_text(path), level)
    with guarded(f"{report.path}, what there is to verify"), open_container(report.path, fs) as container:
        _Validation(container, report, parallel.thread_count(threads), progress).run()
    return report


@dataclass
class _Validation:
    container: Container
    report: Report
    threads: int
    progress: Progress | None
    manifests: dict[int, Manifest] = field(default_factory=dict)
    segments: dict[tuple[bytes, int | None], SegmentReader | None] = field(default_factory=dict)
    noted: set[str] = field(default_factory=set)
    judged: Judged = field(default_factory=set)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """What is raised within becomes a finding."""
        try:
            yield
        except (DamagedError, UnsupportedError) as error:
            self.report.add(error)

    def run(self) -> None:
        facts = self.container.inspect()
        if isinstance(facts, FileFacts):
            self._check_pages(facts)
        else:
            self._check_folders(facts)
        self._read_manifests()
        self.report.versions = sorted(self.manifests)
        for manifest in self.manifests.values():
            self._check_manifest(manifest)
        if isinstance(facts, FileFacts):
            overlapping = pages.check_spans(self._spans(), self.report)
            # Segments within segments are damage already; to look into each would cost the square of the file.
            for key in self.segments:
                if key[1] in overlapping:
                    self.segments[key] = None
        elif facts.segments is not None:
            self._note_garbage(facts)
        if self.report.level != "structure":
            self._check_digests()
            if isinstance(self.container, SingleFile) and self.manifests:
                source, slot = self.container.whole(), pages.head_slot(self.container)
                pages.check_gaps(source, slot, self._spans(), self.report)
        if self.report.level == "full":
            self._check_contents()

    # The file's own pages, or the directory's folders.

    def _check_pages(self, facts: FileFacts) -> None:
        path = self.report.path
        with self.guard():
            if facts.size < FIRST_SPAN:
                raise DamagedError(
                    "file-header", path, expected=f"{FIRST_SPAN} bytes", found=facts.size
                )
            header = FileHeader.parse(facts.header_page, f"{path}: file header")
            self._note_features(header.features, f"{path}: file header")
            slots: list[Slot] = []
            for number, page in enumerate(facts.slot_pages):
                place = f"{path}: slot {'AB'[number]}"
                with self.guard():
                    slots.append(
                        Slot.parse(
                            page, place, number=number, container_id=header.container_id
                        )
                    )
            pages.check_slots(slots, facts.size, self.report)
        for name in facts.leftovers:
            self.report.note("leftover", path, name, "the next writer removes it")

    def _check_folders(self, facts: DirectoryFacts) -> None:
        path = self.report.path
        for names, folder in ((facts.manifests, "manifests"), (facts.segments, "segments")):
            if names is None:
                self.report.add(
                    DamagedError(
                        "directory-layout",
                        f"{path}: {folder}",
                        expected="a folder, not a link",
                        found="none",
                    )
                )

    def _note_garbage(self, facts: DirectoryFacts) -> None:
        named = {f"{entry.segment.hex()}.cnrs" for m in self.manifests.values() for entry in m.chain}
        known = {f"{version:020d}.cnrm" for version in self.manifests}
        extra = [f"segments/{n.name}" for n in facts.segments or () if n.name not in named]
        extra += [f"manifests/{n.name}" for n in facts.manifests or () if n.name not in known]
        extra += [n.name for n in facts.names if n.name not in ("segments", "manifests")]
        for name in sorted(extra):
            self.report.note("garbage", self.report.path, name, "no retained version names it")

    def _note_features(self, features: Features, place: str) -> None:
        if compat := features.compat & ~KNOWN_COMPAT:
            self.report.note("feature", place, f"unknown compat {bit_names(compat)}")
        if ro_compat := features.ro_compat & ~KNOWN_RO_COMPAT:
            self.report.add(UnsupportedError(place, f"ro_compat {bit_names(ro_compat)}"))

    # Manifests and what they name.

    def _read_manifests(self) -> None:
        try:
            head = self._parse(*self.container.head())
        except (DamagedError, UnsupportedError) as error:
            self.report.add(error)
            return
        facts = self.container.inspect()
        claimed = sum(retained.length for retained in head.versions)
        if isinstance(facts, FileFacts) and claimed > facts.size:
            # Manifests within manifests would make the work as large as the square of the file.
            self.report.add(
                DamagedError(
                    "span",
                    manifest_place(self.report.path, head.version),
                    expected=f"retained manifests that share no byte of {facts.size}",
                    found=f"{claimed} bytes of them",
                )
            )
            return
        for retained in head.versions:
            with self.guard():
                data = self.container.read_manifest(retained)
                self._parse(data, retained.version, retained.digest)

    def _parse(self, data: bytes, version: int, digest: int | None) -> Manifest:
        place = manifest_place(self.report.path, version)
        manifest = parse_manifest(data, place)
        # The head is read first: the others are of its container, as it is of the file's.
        first = next(iter(self.manifests.values()), manifest)
        owners = {self.container.container_id or first.container_id, first.container_id, manifest.container_id}
        if manifest.version != version or len(owners) > 1:
            raise DamagedError(
                "manifest-identity",
                place,
                expected=f"version {version} of this container",
                found=f"version {manifest.version} of container {manifest.container_id.hex()}",
            )
        if digest is not None and digest != manifest.digest:
            raise DamagedError(
                "manifest-digest", place, expected=f"{digest:016x}", found=f"{manifest.digest:016x}"
            )
        self.manifests[version] = manifest
        self._note_features(manifest.features, place)
        return manifest

    def _check_manifest(self, manifest: Manifest) -> None:
        place = manifest_place(self.report.path, manifest.version)
        parent = self.manifests.get(manifest.version - 1)
        with self.guard():
            if manifest.parent and parent and manifest.parent[1] != parent.digest:
                raise DamagedError(
                    "manifest-digest",
                    f"{place}, parent",
                    expected=f"{parent.digest:016x}",
                    found=f"{manifest.parent[1]:016x}",
                )
        whole = True
        for entry in manifest.chain:
            whole &= self._open(manifest, entry, place) is not None
        readers = [self.segments[entry.segment, entry.offset] for entry in manifest.chain]
        tocs = [
            (entry, reader.toc)
            for entry, reader in zip(manifest.chain, readers, strict=True)
            if reader is not None
        ]
        if whole:
            for problem in check_chain(manifest, tocs, place, self.judged):
                self.report.add(problem)

    def _open(self, manifest: Manifest, entry: ChainEntry, place: str) -> SegmentReader | None:
        key = (entry.segment, entry.offset)
        if key not in self.segments:
            self.segments[key] = None
            with self.guard():
                source = self.container.segment(entry)
                _check_known(source)
                self.segments[key] = SegmentReader(
                    source,
                    entry,
                    None,
                    backend="pread",
                    verify=True,
                    manifest=manifest,
                )
        reader = self.segments[key]
        if reader is not None:
            with self.guard():
                self._check_against(manifest, entry, reader, place)
        return reader

    def _check_against(
        self, manifest: Manifest, entry: ChainEntry, reader: SegmentReader, place: str
    ) -> None:
        """That a segment is what the chain entry says."""
        if (reader.entry.trailer_digest, reader.entry.length) != (
            entry.trailer_digest,
            entry.length,
        ):
            raise DamagedError(
                "trailer-digest",
                f"{place}, segment {entry.segment.hex()}",
                expected=f"{reader.entry.trailer_digest:016x}",
                found=f"{entry.trailer_digest:016x}",
            )
        if entry.toc is not None:
            inline = manifest.attachments[entry.toc[0] : sum(entry.toc)]
            if inline != reader.toc_bytes():
                raise DamagedError(
                    "attachment",
                    place,
                    expected=f"the table of contents of segment {entry.segment.hex()}",
                    found="other bytes",
                )
        block = np.empty(BLOCK, np.uint8)
        reader.source.pread_into(0, block)
        header = SegmentHeader.parse(block.tobytes(), reader.place, segment_id=entry.segment)
        states = (header.from_state, header.to_state)
        if states != (entry.from_state or bytes(16), entry.to_state):
            raise DamagedError(
                "segment-identity",
                f"{reader.place}, header",
                expected=f"from {(entry.from_state or bytes(16)).hex()} to {entry.to_state.hex()}",
                found=f"from {states[0].hex()} to {states[1].hex()}",
            )
        if (manifest.features | header.features) != manifest.features:
            raise DamagedError(
                "feature-union",
                place,
                expected="every feature of its segments",
                found=f"{manifest.features} without {header.features}",
            )
        if reader.place not in self.noted:
            self.noted.add(reader.place)
            self._note_features(header.features, reader.place)

    # Spans and digests.

    def _spans(self) -> pages.Spans:
        found: pages.Spans = {}
        head = self.manifests.get(max(self.manifests, default=-1))
        for manifest in self.manifests.values():
            for entry in manifest.chain:
                if entry.offset is not None:
                    found[entry.offset, entry.length] = f"segment {entry.segment.hex()}"
        for retained in head.versions if head else ():
            if retained.offset is not None:
                found[retained.offset, retained.length] = f"manifest {retained.version}"
        with self.guard():
            slot = pages.head_slot(self.container)
            if slot is not None:
                found[slot.manifest_offset, slot.manifest_length] = f"manifest {slot.version}"
        return found

    def _check_digests(self) -> None:
        readers = [r for r in self.segments.values() if r is not None]
        total = sum(r.entry.length for r in readers)
        done = 0
        for reader in readers:
            steps = reader.steps()
            ahead = 2 * self.threads
            for errors in parallel.ordered(self.threads, reader.bad_pieces, steps, ahead=ahead):
                for error in errors:
                    self.report.add(error)
                done += reader.entry.length // len(steps)
                if self.progress is not None:
                    self.progress(min(done, total), total)
            with self.guard():
                reader.check_padding()

    # What the rows say.

    def _check_contents(self) -> None:
        for reader in self.segments.values():
            if reader is not None:
                for error in contents.check_segment(reader):
                    self.report.add(error)
                reader.indexes.forget()
        seen: set[object] = set()
        for manifest in self.manifests.values():
            place = manifest_place(self.report.path, manifest.version)
            for number, entries in enumerate(manifest.steps()):
                readers = [r for e in entries if (r := self.segments[e.segment, e.offset]) is not None]
                if len(readers) < len(entries):
                    continue
                step = tuple((entry.segment, entry.offset) for entry in entries)
                if step not in seen:
                    seen.add(step)
                    self._check_step(readers, place)
                for schema in manifest.tables if number == 0 else ():
                    if (step, schema) not in seen:
                        seen.add((step, schema))
                        for error in contents.check_tiling(schema, _says(readers, schema.table_id), place):
                            self.report.add(error)

        for error in sums.check_chains(self.manifests.values(), lambda e: self.segments.get((e.segment, e.offset))):
            self.report.add(error)

    def _check_step(self, readers: list[SegmentReader], place: str) -> None:
        for table_id in {table_id for reader in readers for table_id in reader.toc.by_table}:
            with self.guard():
                for error in contents.check_step(_says(readers, table_id), place):
                    self.report.add(error)
        for reader in readers:
            reader.indexes.forget()


def _check_known(source: Source) -> None:
    """Raises `UnsupportedError` where a segment's header asks for what this release doesn't know.

    Then what would need its content isn't judged. What is damaged in the header is found later, by `_check_against`.
    """
    if source.length < BLOCK:
        return
    block = np.empty(BLOCK, np.uint8)
    source.pread_into(0, block)
    data = block.tobytes()
    with suppress(DamagedError):
        SegmentHeader.parse(data, source.place, segment_id=data[40:56])


def _says(readers: list[SegmentReader], table_id: bytes) -> list[tuple[SegmentReader, TableEntry]]:
    """What the segments of a step say of a table."""
    return [(r, r.toc.by_table[table_id]) for r in readers if table_id in r.toc.by_table]
