"""The kinds of damage: for each a list of cases, each made from its place in the list alone.

A kind joins the engine by one entry of `KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

from tools.damage.golden import SINGLE, goldens
from tools.damage.layout import PAGE, Layout, Span, seal_segment, slot_page

Instead = Literal["missing", "directory", "symlink", "fifo"]
"""What may be where a file was; a symbolic link leads to a copy of the file."""

Changes = dict[str, "bytes | Instead"]
"""The files that differ, by name; the name of a folder stands for all in it."""

Outcome = Literal["damaged", "sound", "older"]
"""What the specification makes of it: damage, a container that is sound, or one that looks like an older one."""


@dataclass(frozen=True)
class Damage:
    """One damaged container: what was done, the files that differ, and what the specification makes of it.

    `placed` says whether the place can be known: not where all of a manifest is another container's sound one.
    """

    what: str
    changes: Changes
    outcome: Outcome = "damaged"
    placed: bool = True


@dataclass(frozen=True)
class DamageKind:
    """`cases` lists what there is to try; `make` makes one of them."""

    about: str
    cases: Callable[[Layout], Sequence[Any]]
    make: Callable[[Layout, Any], Damage]


def _name(file: str) -> str:
    return file or "the file"


def _written(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def _metadata_bits(layout: Layout) -> list[tuple[str, int, int]]:
    return [
        (region.file, at, bit)
        for region in layout.regions
        if region.metadata
        for at in range(region.start, region.stop)
        for bit in range(8)
    ]


def _flip(layout: Layout, case: tuple[str, int, int]) -> Damage:
    file, at, bit = case
    data = layout.files[file]
    return Damage(f"bit {bit} of byte {at} of {_name(file)}", {file: _written(data, at, bytes([data[at] ^ 1 << bit]))})


def _data_bytes(layout: Layout) -> list[tuple[str, int]]:
    return [(r.file, at) for r in layout.regions if not r.metadata for at in range(r.start, r.stop)]


def _change(layout: Layout, case: tuple[str, int]) -> Damage:
    file, at = case
    data = layout.files[file]
    # Any mask but 0 will do; this one differs from byte to byte.
    mask = 1 + (at * 2654435761 >> 7) % 255
    what = f"byte {at} of {_name(file)} changed by {mask:#04x}"
    return Damage(what, {file: _written(data, at, bytes([data[at] ^ mask]))})


def _lengths(layout: Layout) -> list[tuple[str, int]]:
    return [(file, length) for file, data in layout.files.items() for length in range(len(data))]


def _cut(layout: Layout, case: tuple[str, int]) -> Damage:
    file, length = case
    return Damage(f"{_name(file)} cut to {length} bytes", {file: layout.files[file][:length]})


_JUNK = (b"\0", b"\xff", b"\0" * 512, bytes(range(256)) * 2, b"\0" * PAGE, b"\xa5" * PAGE, b"\x89CNRS\r\n\x1a" * 700)


def _longer(layout: Layout, case: tuple[str, int]) -> Damage:
    file, number = case
    # Bytes past the committed end of a single file belong to no version (section 5.1).
    outcome: Outcome = "sound" if layout.single else "damaged"
    junk = _JUNK[number]
    what = f"{len(junk)} bytes from {junk[0]:#04x} on behind {_name(file)}"
    return Damage(what, {file: layout.files[file] + junk}, outcome)


def _exchanged(layout: Layout, case: tuple[Span, Span]) -> Damage:
    """Two runs of bytes exchanged, as far as the shorter reaches."""
    a, b = case
    size = min(a.length, b.length)
    files = {span.file: layout.files[span.file] for span in case}
    first, second = (layout.files[s.file][s.start : s.start + size] for s in case)
    files[a.file] = _written(files[a.file], a.start, second)
    files[b.file] = _written(files[b.file], b.start, first)
    return Damage(f"{size} bytes of {a.name} and {b.name} exchanged", dict(files))


def _pairs(spans: Callable[[Layout], Sequence[Span]]) -> Callable[[Layout], list[tuple[Span, Span]]]:
    return lambda layout: list(combinations(spans(layout), 2))


def _pages(layout: Layout) -> list[Span]:
    return [
        Span(f"page {at // PAGE} of {_name(file)}", file, at, min(PAGE, len(data) - at))
        for file, data in layout.files.items()
        for at in range(0, len(data), PAGE)
    ]


def _spans(layout: Layout) -> list[Span]:
    return [*layout.segments, *layout.manifests]


def _foreign(layout: Layout) -> list[tuple[Span, str, bytes]]:
    """Each segment and each manifest, with every one of another container or version."""
    found = []
    for golden in goldens():
        other = Layout(golden.files)
        for mine, theirs in ((layout.segments, other.segments), (layout.manifests, other.manifests)):
            for span in mine:
                found += [(span, f"{golden.name}, {them.name}", other.bytes_of(them)) for them in theirs]
    return found


def _replaced(layout: Layout, case: tuple[Span, str, bytes]) -> Damage:
    """A span with the bytes of another: in a single file as many as fit, in a directory the whole file."""
    span, origin, new = case
    if layout.single:
        data = _written(layout.files[SINGLE], span.start, new[: span.length])
        return Damage(f"{span.name} overwritten by {origin}", {SINGLE: data})
    return Damage(f"{span.file} replaced by {origin}", {span.file: new}, placed=span in layout.segments)


_OTHER = bytes(range(200, 216))
_IDENTITIES = {"segment": (40, 8), "commit": (56, None), "from-state": (72, None), "to-state": (88, None)}


def _attempts(layout: Layout) -> list[tuple[Span, str, bytes]]:
    """Each segment as another attempt would have written it: one of its ids is another, its digests are right."""
    found = []
    for span in layout.segments:
        for what, (header, trailer) in _IDENTITIES.items():
            raw = _written(layout.bytes_of(span), header, _OTHER)
            if trailer is not None:
                raw = _written(raw, len(raw) - 128 + trailer, _OTHER)
            found.append((span, f"a segment with another {what} id", seal_segment(raw)))
    return found


def _gone(layout: Layout) -> list[str]:
    return list(layout.files) if layout.single else [*layout.files, "manifests", "segments"]


def _missing(layout: Layout, file: str) -> Damage:
    # A container that lost its newest manifest looks like one that never went further (the threat model says so).
    newest, only = layout.manifests[-1].file, len(layout.manifests) == 1
    outcome: Outcome = "older" if not layout.single and file == newest and not only else "damaged"
    return Damage(f"{_name(file)} missing", {file: "missing"}, outcome)


def _renamed(layout: Layout, case: tuple[str, str]) -> Damage:
    a, b = case
    return Damage(f"{a} and {b} exchanged by name", {a: layout.files[b], b: layout.files[a]})


def _insteads(layout: Layout) -> list[tuple[str, Instead | bytes]]:
    kinds: tuple[Instead | bytes, ...] = (b"", "directory", "symlink", "fifo")
    return [(file, kind) for file in layout.files for kind in kinds]


def _put_instead(layout: Layout, case: tuple[str, Instead | bytes]) -> Damage:
    file, kind = case
    # The path of a container itself may be a link; below it none is followed.
    outcome: Outcome = "sound" if layout.single and kind == "symlink" else "damaged"
    what = kind if isinstance(kind, str) else "an empty file"
    return Damage(f"{what} instead of {_name(file)}", {file: kind}, outcome)


def _zeroable(layout: Layout) -> list[tuple[str, int, int]]:
    return [
        (file, at, size)
        for file, data in layout.files.items()
        for size in (512, PAGE)
        for at in range(0, len(data), size)
    ]


def _zeroed(layout: Layout, case: tuple[str, int, int]) -> Damage:
    file, at, size = case
    data = layout.files[file]
    what = f"bytes {at} to {at + size - 1} of {_name(file)} zeroed"
    return Damage(what, {file: _written(data, at, bytes(min(size, len(data) - at)))})


def _stale_slots(layout: Layout) -> list[tuple[int, Span]]:
    """Only slot pages are ever written twice, so that no other page can be an older one."""
    return [(n, m) for n in (0, 1) for m in layout.manifests[:-1]] if layout.single else []


def _stale(layout: Layout, case: tuple[int, Span]) -> Damage:
    number, manifest = case
    page = slot_page(layout, number, manifest)
    data = _written(layout.files[SINGLE], PAGE * (number + 1), page)
    # Slot B is written last, so one that is behind is what a crash leaves; slot A never is.
    outcome: Outcome = "sound" if number else "damaged"
    return Damage(f"slot {'AB'[number]} as it was at version {manifest.name}", {SINGLE: data}, outcome)


KINDS: Mapping[str, DamageKind] = {
    "bits": DamageKind("every bit of all metadata flipped", _metadata_bits, _flip),
    "bytes": DamageKind("every other byte changed", _data_bytes, _change),
    "truncations": DamageKind("every file cut at every length", _lengths, _cut),
    "extensions": DamageKind(
        "bytes behind the end of a file", lambda x: [(f, n) for f in x.files for n in range(len(_JUNK))], _longer
    ),
    "sections": DamageKind("every pair of sections exchanged", _pairs(lambda x: x.sections), _exchanged),
    "pieces": DamageKind("every pair of pieces exchanged", _pairs(lambda x: x.pieces), _exchanged),
    "pages": DamageKind("every pair of 4096-byte pages exchanged", _pairs(_pages), _exchanged),
    "spans": DamageKind("every pair of segments and manifests exchanged", _pairs(_spans), _exchanged),
    "foreign": DamageKind("a segment or manifest of another container or version", _foreign, _replaced),
    "attempts": DamageKind("a segment of another attempt or state", _attempts, _replaced),
    "missing": DamageKind("a file or folder missing", _gone, _missing),
    "names": DamageKind("two files exchanged by name", lambda x: list(combinations(x.files, 2)), _renamed),
    "instead": DamageKind("an empty file, a folder, a link or a pipe in the place of a file", _insteads, _put_instead),
    "zeroed": DamageKind("a sector or page of zero bytes: a lost write", _zeroable, _zeroed),
    "stale": DamageKind("a slot as it was at an older version: a lost write", _stale_slots, _stale),
}
