"""A disk in memory that knows what a sync has made durable and what it hasn't.

What was written since a file's last sync is pending, and so are the names that changed since the last sync of their
directory: a crash keeps any of it or none (`states.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

ROOT = 1
"""The number of the root directory."""
TICK = 10 * 10**9
"""By how many nanoseconds the clock goes on at each change."""


@dataclass(frozen=True)
class Write:
    """Bytes that were written at an offset."""

    offset: int
    data: bytes

    @property
    def end(self) -> int:
        """Where the bytes end: the file is at least that long from then on."""
        return self.offset + len(self.data)


@dataclass(frozen=True)
class Resize:
    """A length that a file was cut or extended to."""

    size: int


@dataclass(frozen=True)
class Naming:
    """A name of a directory that stands for another node from now on, or for none.

    With `moved_from`, a name of the same directory, it is a rename: that name is gone.
    """

    name: str
    number: int | None
    moved_from: str | None = None


@dataclass
class File:
    """A regular file: its bytes as processes see them, those that are durable, and what lies in between."""

    number: int
    mode: int = 0o644
    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[Write | Resize] = field(default_factory=list)
    modified: int = 0
    """When it was made or last changed, in nanoseconds."""

    def write(self, offset: int, data: bytes) -> None:
        """Writes bytes; a gap before them reads as zero."""
        if len(self.data) < offset:
            self.data.extend(bytes(offset - len(self.data)))
        self.data[offset : offset + len(data)] = data
        self.pending.append(Write(offset, data))

    def resize(self, size: int) -> None:
        """Cuts the file, or extends it with zero bytes."""
        del self.data[size:]
        self.data.extend(bytes(size - len(self.data)))
        self.pending.append(Resize(size))

    def sync(self) -> None:
        """Makes bytes and length durable."""
        self.durable = bytes(self.data)
        self.pending.clear()

    def copy(self) -> File:
        """A file that goes its own way."""
        return File(self.number, self.mode, bytearray(self.data), self.durable, list(self.pending), self.modified)


@dataclass
class Folder:
    """A directory: its names as processes see them, those that are durable, and what changed in between."""

    number: int
    mode: int = 0o755
    entries: dict[str, int] = field(default_factory=dict)
    durable: dict[str, int] = field(default_factory=dict)
    pending: list[Naming] = field(default_factory=list)

    def name(self, change: Naming) -> None:
        """Makes one change of names."""
        apply(self.entries, change)
        self.pending.append(change)

    def sync(self) -> None:
        """Makes the names durable."""
        self.durable = dict(self.entries)
        self.pending.clear()

    def copy(self) -> Folder:
        """A directory that goes its own way."""
        return Folder(self.number, self.mode, dict(self.entries), dict(self.durable), list(self.pending))


@dataclass(frozen=True)
class Event:
    """One change of a file or a directory by a call, or its sync, which changes nothing."""

    call: str
    number: int
    change: Write | Resize | Naming | None


def apply(entries: dict[str, int], change: Naming) -> None:
    """Makes one change in a directory's names."""
    if change.number is None:
        entries.pop(change.name, None)
    else:
        entries[change.name] = change.number
    if change.moved_from is not None:
        entries.pop(change.moved_from, None)


class Disk:
    """Files and directories by number; those that no name leads to are there until `reachable` is asked.

    `clock` is the time in nanoseconds.
    """

    def __init__(self, nodes: dict[int, File | Folder] | None = None, first_free: int = 0, clock: int = TICK) -> None:
        self.nodes = nodes or {ROOT: Folder(ROOT)}
        self.clock = clock
        self._next = max(first_free, max(self.nodes) + 1)

    def new_file(self) -> File:
        """A file that has no name yet."""
        made = File(self._next, modified=self.clock)
        self._add(made)
        return made

    def new_folder(self) -> Folder:
        """A directory that has no name yet."""
        made = Folder(self._next)
        self._add(made)
        return made

    def _add(self, made: File | Folder) -> None:
        self.nodes[made.number] = made
        self._next = max(self._next, made.number + 1)

    def folder(self, number: int) -> Folder:
        """The directory of this number."""
        found = self.nodes[number]
        assert isinstance(found, Folder)
        return found

    def file(self, number: int) -> File:
        """The file of this number."""
        found = self.nodes[number]
        assert isinstance(found, File)
        return found

    def reachable(self) -> Iterator[File | Folder]:
        """Every node that a name leads to, after a crash or without one."""
        seen = {ROOT}
        waiting = [ROOT]
        while waiting:
            node = self.nodes[waiting.pop()]
            yield node
            if isinstance(node, Folder):
                named = {*node.durable.values(), *node.entries.values()}
                named |= {change.number for change in node.pending if change.number is not None}
                waiting += sorted(named - seen)
                seen |= named

    def copy(self) -> Disk:
        """The same disk at this moment."""
        return Disk({number: node.copy() for number, node in self.nodes.items()}, clock=self.clock)

    def replay(self, event: Event) -> None:
        """Makes a change, or the sync, that was recorded on a disk like this one."""
        node, change = self.nodes[event.number], event.change
        self.clock += TICK
        if isinstance(node, File) and change is not None:
            node.modified = self.clock
        if change is None:
            node.sync()
        elif isinstance(node, Folder):
            assert isinstance(change, Naming)
            if change.number is not None and change.number not in self.nodes:
                is_folder = event.call == "mkdir"
                self._add(Folder(change.number) if is_folder else File(change.number, modified=self.clock))
            node.name(change)
        elif isinstance(change, Write):
            node.write(change.offset, change.data)
        else:
            assert isinstance(change, Resize)
            node.resize(change.size)

    def tree(self) -> dict[str, bytes | None]:
        """Every path there is as processes see it: the bytes of a file, None for a directory."""
        found: dict[str, bytes | None] = {}
        waiting = [("", ROOT)]
        while waiting:
            path, number = waiting.pop()
            node = self.nodes[number]
            if isinstance(node, File):
                found[path] = bytes(node.data)
            else:
                found[path or "/"] = None
                waiting += [(f"{path}/{name}", child) for name, child in node.entries.items()]
        return found
