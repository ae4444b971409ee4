"""The states that a crash of the machine may leave, under POSIX, on a disk with pending changes.

A state is an integer: each of its bits says whether one part of what is pending was kept.

* A write that wasn't synced is torn at sectors: a bit for each sector that it changes, and one for the length that it
  gives the file. A length that was set is a bit, too. Bits are free of one another, so writes come in any order.
* A change of a name in a directory that wasn't synced is a bit. A rename has two: its new name may stand while the old
  one is still there, and never does a name stand for neither file.
* What a sync has made durable is in every state. The sync of a file isn't one of its name, and the sync of a directory
  isn't one of the files in it.

A part that can't be seen, such as a sector written again as it was, gets no bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from random import Random

import xxhash

from tools.crash._memory import ROOT, Disk, File, Folder, Naming, Resize, apply

SECTOR = 512
"""How many bytes a disk writes as a whole, unless another number is given."""
_MASK64 = (1 << 64) - 1


class _Bits:
    """Gives out bits, one after the other."""

    def __init__(self) -> None:
        self.count = 0

    def new(self) -> int:
        self.count += 1
        return 1 << self.count - 1


class FileSpace:
    """The states of one file."""

    def __init__(self, file: File, bits: _Bits, sector: int) -> None:
        self.durable, self.modified, self._sector = file.durable, file.modified, sector
        self.pieces: list[tuple[int, int, int]] = []
        """Bit, start and stop of what may be kept or not."""
        self.lengths = 0
        """The bits that the file's length hangs on."""
        self.cuts = 0
        """Those among them that take bytes away."""
        self.least = len(self.durable)
        """The smallest length that it may have."""
        self.groups: list[int] = []
        """The bits of each call."""
        # Bit, offset and bytes of a part of a write; bit and length of a growth, or of a cut, which takes bytes away.
        self._steps: list[tuple[str, int, int, bytes]] = []
        self._variants: dict[int, bytes] = {}
        self._sizes: dict[int, int] = {}
        for change in file.pending:
            before = bits.count
            if isinstance(change, Resize):
                self._add_resize(change.size, bits)
            else:
                self._add_write(change.offset, change.data, bits)
            if bits.count > before:
                self.groups.append((1 << bits.count) - (1 << before))
        self.mask = sum(self.groups)

    def _add_write(self, offset: int, data: bytes, bits: _Bits) -> None:
        stop = offset + len(data)
        for start in range(offset - offset % self._sector, stop, self._sector):
            first, last = max(start, offset), min(start + self._sector, stop)
            piece = data[first - offset : last - offset]
            if not self._visible(first, piece):
                continue
            bit = bits.new()
            self.pieces.append((bit, first, last))
            self._steps.append(("bytes", bit, first, piece))
        if stop > self.least:
            bit = bits.new()
            self.lengths |= bit
            self._steps.append(("grow", bit, stop, b""))

    def _visible(self, start: int, piece: bytes) -> bool:
        stop = start + len(piece)
        changed = self.cuts and self.least < stop
        if changed or any(first < stop and start < last for _, first, last in self.pieces):
            return True
        return self.durable[start:stop].ljust(len(piece), b"\0") != piece

    def _add_resize(self, size: int, bits: _Bits) -> None:
        if not self.lengths and size == len(self.durable):
            return
        bit = bits.new()
        self.lengths |= bit
        if size < max([len(self.durable), *(stop for _, _, stop in self.pieces)]):
            self.cuts |= bit
        self.least = min(self.least, size)
        self._steps.append(("set", bit, size, b""))

    def content(self, state: int) -> bytes:
        """The file in this state."""
        key = state & self.mask
        found = self._variants.get(key)
        if found is None:
            found = self._variants[key] = self._make(key)
        return found

    def _make(self, key: int) -> bytes:
        made, size = bytearray(self.durable), self.size(key)
        for what, bit, at, piece in self._steps:
            if not key & bit:
                continue
            if what == "bytes":
                if len(made) < at:
                    made.extend(bytes(at - len(made)))
                made[at : at + len(piece)] = piece
            elif what == "set":
                del made[at:]
        del made[size:]
        made.extend(bytes(size - len(made)))
        return bytes(made)

    def size(self, state: int) -> int:
        """The length of the file in this state."""
        key = state & self.lengths
        found = self._sizes.get(key)
        if found is None:
            found = len(self.durable)
            for what, bit, at, _ in self._steps:
                if key & bit and what != "bytes":
                    found = max(found, at) if what == "grow" else at
            self._sizes[key] = found
        return found

    def seen(self, start: int, stop: int) -> int:
        """The bits that these bytes hang on, if the file is that long."""
        found = self.cuts if stop > self.least else 0
        for bit, first, last in self.pieces:
            if first < stop and start < last:
                found |= bit
        return found


class FolderSpace:
    """The states of the names in one directory."""

    def __init__(self, folder: Folder, bits: _Bits) -> None:
        self.durable = dict(folder.durable)
        self.groups: list[int] = []
        self._steps: list[tuple[int, Naming, int]] = []
        self._keys: dict[int, frozenset[str]] = {}
        for change in folder.pending:
            before = bits.count
            self._steps.append((bits.new(), change, bits.new() if change.moved_from else 0))
            self.groups.append((1 << bits.count) - (1 << before))
        self.mask = sum(self.groups)

    def names(self, state: int) -> dict[str, int]:
        """The names in this state."""
        made = dict(self.durable)
        for bit, change, gone in self._steps:
            if state & bit:
                moved = change.moved_from if state & gone else None
                apply(made, Naming(change.name, change.number, moved))
        return made

    def key(self, state: int) -> frozenset[str]:
        """Which names there are in this state."""
        bits = state & self.mask
        found = self._keys.get(bits)
        if found is None:
            found = self._keys[bits] = frozenset(self.names(bits))
        return found

    def seen(self, name: str) -> int:
        """The bits that it hangs on what the name stands for."""
        found = 0
        for bit, change, gone in self._steps:
            if name == change.name:
                found |= bit
            elif name == change.moved_from:
                found |= bit | gone
        return found


class CrashSpace:
    """Every state that a crash may leave of a disk, as it is at this moment."""

    def __init__(self, disk: Disk, sector: int = SECTOR) -> None:
        bits = _Bits()
        self.folders: dict[int, FolderSpace] = {}
        self.files: dict[int, FileSpace] = {}
        self._modes: dict[int, int] = {}
        for node in disk.reachable():
            self._modes[node.number] = node.mode
            if isinstance(node, Folder):
                self.folders[node.number] = FolderSpace(node, bits)
            else:
                self.files[node.number] = FileSpace(node, bits, sector)
        self._next, self._clock = max(disk.nodes) + 1, disk.clock
        self.count = bits.count
        """How many bits a state has."""
        self.everything = (1 << bits.count) - 1
        """The state in which all of it was kept."""
        spaces: list[FileSpace | FolderSpace] = [*self.folders.values(), *self.files.values()]
        self.groups = [group for space in spaces for group in space.groups]
        """The bits of each call."""
        self._names = sum(space.mask for space in self.folders.values())
        self._shown = self._names + sum(file.lengths & ~file.cuts for file in self.files.values())
        self._shapes: dict[int, list[tuple[str, int]]] = {}
        self._sums: dict[tuple[int, str | None], tuple[int, list[tuple[str, int]]]] = {}
        self._digests: dict[tuple[str, int], int] = {}

    # States

    def disk(self, state: int) -> Disk:
        """A disk that is in this state, all of it durable."""
        made: dict[int, File | Folder] = {}
        for _, number in self._shape(state):
            if number in self.folders:
                names = self.folders[number].names(state)
                made[number] = Folder(number, self._modes[number], names, dict(names))
            elif number not in made:
                data = self.files[number].content(state)
                modified = self.files[number].modified
                made[number] = File(number, self._modes[number], bytearray(data), data, modified=modified)
        return Disk(made, self._next, self._clock)

    def digest(self, state: int, without: str | None = None) -> int:
        """A number that is another for every other image: all paths, and the bytes of the file behind each.

        Two states are one image if they differ in nothing that can be seen. Paths that end in `without` are left out.
        """
        key = (state & self._names, without)
        if key not in self._sums:
            settled, open_ = 0, []
            for path, number in self._shape(state):
                if without is not None and path.endswith(without):
                    continue
                if number in self.files and self.files[number].mask:
                    open_.append((path, number))
                else:
                    settled += self._digest(path, number, state)
            self._sums[key] = settled, open_
        total, doubtful = self._sums[key]
        for path, number in doubtful:
            total += self._digest(path, number, state)
        return total & _MASK64

    def _digest(self, path: str, number: int, state: int) -> int:
        space = self.files.get(number)
        key = (path, 0 if space is None else state & space.mask)
        found = self._digests.get(key)
        if found is None:
            data = b"" if space is None else space.content(state)
            seed = xxhash.xxh3_64_intdigest((f"{path}/" if space is None else path).encode())
            found = self._digests[key] = xxhash.xxh3_64_intdigest(data, seed)
        return found

    def _shape(self, state: int) -> list[tuple[str, int]]:
        """Every path of a state, and the number of what is there."""
        key = state & self._names
        found = self._shapes.get(key)
        if found is None:
            found = self._shapes[key] = []
            waiting = [("", ROOT)]
            while waiting:
                path, number = waiting.pop()
                found.append((path, number))
                if number in self.folders:
                    names = self.folders[number].names(state)
                    waiting += [(f"{path}/{name}", child) for name, child in sorted(names.items())]
        return found

    # Which of them to look at

    def sample(self, random: Random) -> int:
        """One state: anything is possible, what is near to nothing, to everything or to whole calls more often."""
        way = random.randrange(8)
        if way < 2:
            state = self.everything * way
        elif way < 5:
            state = sum(group for group in self.groups if random.random() < 0.5)
            if way == 4:
                state ^= self._one(random)
        else:
            # Random bits, half of them, few or many.
            state = random.getrandbits(self.count) if self.count else 0
            if way > 5:
                few = state & random.getrandbits(self.count) & random.getrandbits(self.count) if self.count else 0
                state = few if way == 6 else self.everything ^ few
        # What lost its name or its length hides all else.
        return state | self._shown if random.randrange(2) else state

    def _one(self, random: Random) -> int:
        return 1 << random.randrange(self.count) if self.count else 0

    def extremes(self) -> Iterator[int]:
        """Nothing and everything; each call, and each part of one, kept alone and dropped alone."""
        yield 0
        yield self.everything
        yield self._shown
        for bits in self.groups + [1 << bit for bit in range(self.count)]:
            yield bits
            yield self.everything ^ bits
            yield self._shown | bits

    def images(self, limit: int, random: Random, without: str | None = None) -> Iterator[tuple[int, int]]:
        """Distinct images, each as its digest and a state that is one; the extremes first.

        All there are if there are few states, else samples until there are `limit` or hardly any new ones.
        """
        few = 1 << self.count <= 2 * limit
        tries = 1 << self.count if few else 4 * limit
        more = iter(range(tries)) if few else (self.sample(random) for _ in range(tries))
        seen: set[int] = set()
        for state in itertools.chain(self.extremes(), more):
            digest = self.digest(state, without)
            if digest not in seen:
                if len(seen) >= limit:
                    return
                seen.add(digest)
                yield digest, state
