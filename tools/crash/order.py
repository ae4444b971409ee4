"""The write-order checker: nothing is named before it is durable, and nothing published changes.

It reads the record of one commit and holds it against the steps of `spec/commit.md`:

* When a slot of the file at the path is written, the file's name is durable. Then, and when a file is renamed to the
  path, the manifest that is named and every span that the manifest names are durable. Two slots are never in doubt.
* When a manifest gets its name in a directory, it is durable, and so are the segments that it names, their names, and
  the folders.
* No other byte of a published file changes, and none is cut off.
* A manifest is removed when the head is durable and doesn't name it, and a segment when no manifest names it that is
  there or may come back.
* When the commit has returned, all of that is durable, the new head's name included.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from cnrfmt.errors import DamagedError
from cnrfmt.format.blocks import FIRST_SPAN, FileHeader, Slot
from cnrfmt.format.limits import PAGE
from cnrfmt.format.manifest import Manifest, parse_manifest
from tools.crash._memory import ROOT, Disk, Event, File, Folder, Naming, Resize, Write


class OrderError(AssertionError):
    """A step of a commit came before a step that must come first."""


def check_order(before: Disk, events: Iterable[Event], path: str, kind: str) -> None:
    """Raises `OrderError` unless the changes of an acknowledged commit were made in an order that is safe.

    Parameters
    ----------
    before
        The disk when the commit began.
    events
        What was recorded until it returned.
    path, kind
        The container, ``"file"`` or ``"directory"``.
    """
    disk = before.copy()
    order = _FileOrder(disk, path) if kind == "file" else _DirectoryOrder(disk, path)
    for number, event in enumerate(events):
        order.step = f"step {number}, {event.call}"
        order.look(event)
        disk.replay(event)
    order.step = "the end of the commit"
    order.look_at_end()


class _Order:
    def __init__(self, disk: Disk, path: str) -> None:
        self.disk, self.path = disk, path
        self.step = ""

    def demand(self, holds: bool, what: str) -> None:
        if not holds:
            raise OrderError(f"{self.path}: at {self.step}: {what}")

    def look(self, event: Event) -> None:
        raise NotImplementedError

    def look_at_end(self) -> None:
        raise NotImplementedError

    def durable(self, path: str, by: str) -> File | Folder | None:
        """What durable names lead to."""
        node: File | Folder | None = self.disk.folder(ROOT)
        for name in path.strip("/").split("/"):
            self.demand(isinstance(node, Folder), f"{path}, {by}, isn't there")
            assert isinstance(node, Folder)
            number = node.durable.get(name)
            node = None if number is None else self.disk.nodes[number]
        return node

    def durable_file(self, path: str, by: str) -> File:
        """A file whose name and bytes are durable."""
        node = self.durable(path, by)
        self.demand(isinstance(node, File), f"{path}, {by}, has no durable name")
        assert isinstance(node, File)
        self.demand(node.durable == node.data, f"{path}, {by}, isn't synced")
        return node

    def parse(self, data: bytes, by: str) -> Manifest:
        try:
            return parse_manifest(data, by)
        except DamagedError as error:
            raise OrderError(f"{self.path}: at {self.step}: the manifest {by} isn't durable: {error}") from error

    def folder_of(self, path: str) -> Folder | None:
        """The directory at a path, as processes see it."""
        node: File | Folder = self.disk.folder(ROOT)
        for name in path.strip("/").split("/"):
            if not isinstance(node, Folder) or name not in node.entries:
                return None
            node = self.disk.nodes[node.entries[name]]
        return node if isinstance(node, Folder) else None


class _FileOrder(_Order):
    def look(self, event: Event) -> None:
        folder, name = self._place()
        published = folder.entries.get(name)
        if isinstance(event.change, Naming):
            if event.number == folder.number and event.change.name == name:
                self.demand(event.call == "rename", "the container isn't put at its path by a rename")
                assert event.change.number is not None
                self._check_new(self.disk.file(event.change.number))
        elif event.number == published and event.change is not None:
            self._check_change(self.disk.file(event.number), event.change)

    def look_at_end(self) -> None:
        folder, name = self._place()
        self.demand(name in folder.entries, "there is no container")
        self._check_new(self.durable_file(self.path, "the container"))

    def _place(self) -> tuple[Folder, str]:
        above, name = os.path.split(self.path)
        folder = self.folder_of(above)
        assert folder is not None
        return folder, name

    def _check_new(self, file: File) -> None:
        """A file that gets its name, or whose commit has returned, is durable, and so is all that both slots name."""
        self.demand(file.durable == file.data, "the file isn't synced")
        slots = [self._slot(file.durable, number) for number in (0, 1)]
        for slot in slots:
            self.demand(slot is not None, "a slot isn't sound")
            assert slot is not None
            self._check_named(file, slot)
        assert slots[0] is not None
        assert slots[1] is not None
        self.demand(slots[0].version == slots[1].version, "the slots name different versions")

    def _check_change(self, file: File, change: Write | Resize | Naming) -> None:
        known = [slot for number in (0, 1) if (slot := self._slot(file.durable, number))]
        self.demand(bool(known), "no slot is durable")
        end = max(slot.committed_end for slot in known)
        if isinstance(change, Resize):
            self.demand(change.size >= end, f"the file is cut at {change.size}, below its committed end {end}")
            return
        assert isinstance(change, Write)
        if change.offset >= end:
            return
        number, within = divmod(change.offset - PAGE, PAGE)
        whole = within == 0 and len(change.data) == PAGE and number in (0, 1)
        self.demand(whole, f"{len(change.data)} bytes at {change.offset} are published and aren't one slot")
        if change.data == file.durable[change.offset : change.end]:
            # Written as it is: that can't damage it.
            return
        folder, name = self._place()
        self.demand(folder.durable.get(name) == file.number, "the file's name isn't durable")
        named = self._slot(change.data, number, at=0)
        self.demand(named is not None, "what is written isn't a slot")
        assert named is not None
        self._check_named(file, named)
        other = PAGE * (2 - number)
        rest = self._slot(file.durable, 1 - number)
        settled = file.durable[other : other + PAGE] == file.data[other : other + PAGE]
        letter = "AB"[number]
        self.demand(rest is not None and settled, f"slot {letter} is overwritten while the other isn't durable")
        assert rest is not None
        # Slot A goes ahead by one version, and slot B follows.
        newest = rest.version in (named.version - 1, named.version)
        self.demand(newest, f"slot {letter} is overwritten while the other names version {rest.version}")

    def _slot(self, data: bytes, number: int, at: int | None = None) -> Slot | None:
        start = PAGE * (1 + number) if at is None else at
        page = data[start : start + PAGE]
        try:
            return Slot.parse(page, "", number=number, container_id=page[16:32])
        except DamagedError:
            return None

    def _check_named(self, file: File, slot: Slot) -> None:
        """That the manifest of a slot is durable, and every span that it names, and the header."""
        by = f"that slot {'AB'[slot.number]} names"
        durable = file.durable
        self.demand(len(durable) >= slot.committed_end, f"the length {by} isn't durable")
        data = durable[slot.manifest_offset : slot.manifest_offset + slot.manifest_length]
        manifest = self.parse(data, by)
        self.demand(manifest.digest == slot.manifest_digest, f"the manifest {by} is another")
        self.demand(FileHeader.parse(durable[:PAGE], by).container_id == slot.container_id, "the header is another")
        spans = [(entry.offset, entry.length, entry.trailer_digest) for entry in manifest.chain]
        spans += [(old.offset, old.length, old.digest) for old in manifest.versions]
        for offset, length, mark in spans:
            assert offset is not None
            stop = offset + length
            self.demand(offset >= FIRST_SPAN, f"a span at {offset}")
            self.demand(durable[offset:stop] == file.data[offset:stop], f"the span at {offset}, {by}, isn't synced")
            found = int.from_bytes(durable[stop - 8 : stop], "little")
            self.demand(found == mark, f"the span at {offset}, {by}, isn't durable")


class _DirectoryOrder(_Order):
    def look(self, event: Event) -> None:
        manifests = self.folder_of(f"{self.path}/manifests")
        segments = self.folder_of(f"{self.path}/segments")
        change = event.change
        if isinstance(change, Naming):
            if manifests is not None and event.number == manifests.number and change.name.endswith(".cnrm"):
                if change.number is None:
                    self._check_given_up(manifests, change.name)
                else:
                    self.demand(event.call == "link", "a manifest isn't published by a link")
                    self._check_named(self.disk.file(change.number))
            elif segments is not None and event.number == segments.number and change.number is None:
                self._check_unneeded(manifests, change.name)
        elif change is not None:
            for folder in (manifests, segments):
                names = [] if folder is None else [n for n, child in folder.entries.items() if child == event.number]
                published = [name for name in names if not name.startswith(".")]
                self.demand(not published, f"{published} is published, and is changed")

    def look_at_end(self) -> None:
        folder = self.folder_of(f"{self.path}/manifests")
        self.demand(folder is not None, "there is no container")
        assert folder is not None
        names = sorted(name for name in folder.entries if name.endswith(".cnrm"))
        self.demand(bool(names), "there is no manifest")
        self._check_named(self.durable_file(f"{self.path}/manifests/{names[-1]}", "the head"))

    def _check_given_up(self, manifests: Folder, name: str) -> None:
        """That a manifest may be removed."""
        newest = max(n for n in manifests.entries if n.endswith(".cnrm"))
        head = self.parse(self.durable_file(f"{self.path}/manifests/{newest}", "the head").durable, "of the head")
        needed = {f"{version:020d}.cnrm" for version in (head.version, *(old.version for old in head.versions))}
        self.demand(name not in needed, f"{name} is removed, and version {head.version} names it")

    def _check_unneeded(self, manifests: Folder | None, name: str) -> None:
        """That a segment may be removed."""
        assert manifests is not None
        for known, number in {**manifests.durable, **manifests.entries}.items():
            if known.endswith(".cnrm"):
                named = self.parse(bytes(self.disk.file(number).data), known)
                segments = {f"{entry.segment.hex()}.cnrs" for entry in named.chain}
                self.demand(name not in segments, f"{name} is removed, and {known} names it, or may after a crash")

    def _check_named(self, file: File) -> None:
        """That a manifest is durable, and every file that it names."""
        self.demand(file.durable == file.data, "the manifest isn't synced")
        manifest = self.parse(file.durable, "that is published")
        by = f"that version {manifest.version} needs"
        self.demand(isinstance(self.durable(f"{self.path}/manifests", by), Folder), "manifests/ has no durable name")
        for entry in manifest.chain:
            segment = self.durable_file(f"{self.path}/segments/{entry.segment.hex()}.cnrs", by)
            found = len(segment.durable), int.from_bytes(segment.durable[-8:], "little")
            self.demand(found == (entry.length, entry.trailer_digest), f"segment {entry.segment.hex()} is another")
        for old in manifest.versions:
            known = self.durable_file(f"{self.path}/manifests/{old.version:020d}.cnrm", by)
            digest = int.from_bytes(known.durable[-8:], "little")
            self.demand(digest == old.digest, f"manifest {old.version} is another")
