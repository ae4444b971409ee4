"""Every rule of the specification is seen kept and seen broken, by the library and by the independent validator.

For each rule of `spec/format.md` there is a vector that breaks it, whose error id both validators name, and a sound
one that has what the rule is about (`KEPT`): a rule on tombstones is kept by a container that has some, not by one
without any.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import cnrfmt
from cnrfmt.format.blocks import Slot
from cnrfmt.format.encoding import IntegerLayout, LogLayout
from cnrfmt.format.limits import LARGE_SECTION, MAX_COLUMNS, MAX_DEPTH, MAX_DIM, MAX_INTEGER, MAX_NAME, PAGE
from cnrfmt.format.manifest import ChainEntry, Manifest, parse_manifest
from cnrfmt.format.segment import SegmentHeader, Trailer
from cnrfmt.format.toc import Part, TableEntry, Toc
from cnrfmt.format.toc_parser import parse_toc
from cnrfmt.storage.container import open_container
from tools import cnrcheck

ROOT = Path(__file__).resolve().parents[2]
VECTORS = ROOT / "spec" / "vectors"
RULES: dict[str, int] = {
    error: int(number)
    for number, error in re.findall(
        r"^\| (\d+) \| `([a-z-]+)` \| ", (ROOT / "spec" / "format.md").read_text("utf-8"), re.MULTILINE
    )
}
INFOS: dict[str, Any] = {
    path.relative_to(VECTORS).with_suffix("").as_posix(): json.loads(path.read_text("utf-8"))
    for path in sorted(VECTORS.glob("*valid/*.json"))
}


def container(name: str) -> Path:
    file = VECTORS / f"{name}.cnr"
    return file if file.exists() else VECTORS / name


@functools.cache
def verdicts(name: str) -> dict[str, tuple[str, set[str]]]:
    """What each validator says of a vector: its verdict, and the rules that it names as broken."""
    report = cnrfmt.verify(container(name), threads=1)
    findings = cnrcheck.check_path(str(container(name)))
    return {
        "library": (report.verdict, {f.rule for f in report.findings if f.severity == "damage"}),
        "cnrcheck": (cnrcheck.verdict(findings), {f.error for f in findings if f.severity == "damage"}),
    }


@dataclass
class Segment:
    """What a sound segment says of itself."""

    entry: ChainEntry
    header: SegmentHeader
    trailer: Trailer
    toc: Toc
    data: bytes

    def parts(self) -> list[Part]:
        return [part for table in self.toc.tables for part in table.parts]


@dataclass
class Sound:
    """What a sound vector holds."""

    info: dict[str, Any]
    file: bytes = b""
    slots: list[Slot] = field(default_factory=list)
    manifests: list[Manifest] = field(default_factory=list)
    json: list[dict[str, Any]] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)

    def parts(self) -> list[Part]:
        return [part for segment in self.segments for part in segment.parts()]

    def tables(self) -> list[TableEntry]:
        return [table for segment in self.segments for table in segment.toc.tables]

    def codes(self) -> set[str]:
        return {row_set.code for table in self.tables() for row_set in table.row_sets}

    def column_parts(self) -> Counter[tuple[bytes, bytes, str]]:
        """How many parts, exceptions aside, each column has in each step."""
        return Counter(
            (segment.entry.to_state, table.table_id, part.column)
            for segment in self.segments
            for table in segment.toc.tables
            for part in table.parts
            if part.exceptions_of is None
        )


def read(name: str) -> Sound:
    path = container(name)
    found = Sound(INFOS[name])
    with open_container(path) as opened:
        head = parse_manifest(opened.head().data, name)
        texts = [opened.head().data, *(opened.read_manifest(r) for r in head.versions)]
        seen = set()
        for data in texts:
            manifest = parse_manifest(data, name)
            found.manifests.append(manifest)
            found.json.append(json.loads(data[128 : len(data) - 8 - len(manifest.attachments)]))
            for entry in manifest.chain:
                if entry.segment not in seen:
                    seen.add(entry.segment)
                    found.segments.append(read_segment(entry, opened.segment(entry).map().tobytes()))
    if path.is_file():
        found.file = path.read_bytes()
        identity = found.file[40:56]
        for number in (0, 1):
            page = found.file[PAGE * (1 + number) :][:PAGE]
            found.slots.append(Slot.parse(page, name, number=number, container_id=identity))
    return found


def read_segment(entry: ChainEntry, data: bytes) -> Segment:
    header = SegmentHeader.parse(data[:128], "x", segment_id=entry.segment)
    trailer = Trailer.parse(data[-128:], "x", segment_id=entry.segment, length=entry.length, mark=entry.trailer_digest)
    text = data[trailer.toc_offset : trailer.toc_offset + trailer.toc_length]
    toc = parse_toc(text, trailer.data_end, "x", lenient=header.features.lenient)
    return Segment(entry, header, trailer, toc, data)


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, dict | list) + max(map(depth, inner), default=0)


def longest_name(sound: Sound) -> int:
    return max((len(t.name.encode()) for m in sound.manifests for t in m.tables), default=0)


def gaps(segment: Segment) -> list[int]:
    """The bytes between the sections, and behind the last."""
    starts = [*(offset for offset, _ in segment.toc.sections), segment.trailer.data_end]
    ends = [128, *(offset + length for offset, length in segment.toc.sections)]
    return [start - end for start, end in zip(starts, ends, strict=True)]


def encodings(sound: Sound) -> list[dict[str, Any]]:
    """The ENCODING of each part."""
    return [part.layout.to_json() for part in sound.parts()]


def names(sound: Sound) -> set[str]:
    """The names of its encodings; a row-wise one goes by its layout, `log` of several values by `log rows` as well."""
    rows = {"log rows" for part in sound.parts() if isinstance(part.layout, LogLayout) and part.width > 1}
    return {encoding.get("layout", encoding["name"]) for encoding in encodings(sound)} | rows


def payloads(sound: Sound) -> set[str]:
    """The payloads of its grids."""
    return {encoding["payload"] for encoding in encodings(sound) if encoding["name"] == "grid"}


def groups(part: Part, table: TableEntry) -> int:
    """The groups of rows of a part; 0 where there are none."""
    group = part.layout.group if isinstance(part.layout, IntegerLayout) else None
    return -(-table.row_sets[part.rows].count // group) if group else 0


def residual_exceptions(table: TableEntry) -> bool:
    """Whether a residual part has exceptions."""
    mains = [part.exceptions_of for part in table.parts if part.exceptions_of is not None]
    return any(table.parts[main].layout.is_residual for main in mains)


def padded(sound: Sound) -> set[str]:
    """The names of its encodings whose rows, or section under `log`, end in bits that belong to no code."""
    found = set()
    for table in sound.tables():
        for part in table.parts:
            encoding = part.layout.to_json()
            codes = (
                table.row_sets[part.rows].count if encoding["name"] == "log" else part.elements[1] - part.elements[0]
            )
            if encoding.get("payload") in ("packed", "rans"):
                continue
            if encoding.get("bits", 8) * codes % 8:
                found.add(encoding.get("layout", encoding["name"]))
    return found


def several(counter: Counter[Any]) -> bool:
    return any(count > 1 for count in counter.values())


Holds = Callable[[Sound], object]
KEPT: dict[str, Holds | tuple[Holds, ...]] = {
    "block-magic": lambda s: s.file and s.segments,
    "block-digest": lambda s: s.file and s.segments,
    "block-zero": lambda s: s.file and s.segments,
    "block-length": lambda s: any(m.attachments for m in s.manifests),
    "json-syntax": lambda s: any(depth(doc) == MAX_DEPTH for doc in s.json) and str(MAX_INTEGER) in json.dumps(s.json),
    "json-field": lambda s: s.manifests[0].features.compat and len(s.json[0]) > 11,
    "json-name": lambda s: longest_name(s) == MAX_NAME,
    "feature-union": lambda s: any(x.header.features.compat for x in s.segments),
    "limit": lambda s: (
        {t.dim for t in s.manifests[0].tables} >= {MAX_DIM}
        and MAX_COLUMNS in {len(t.columns) for t in s.manifests[0].tables}
    ),
    "segment-identity": lambda s: any(x.entry.from_state for x in s.segments),
    "segment-length": lambda s: s.segments,
    "trailer-geometry": lambda s: {x.trailer.piece_size for x in s.segments} >= {1 << 20},
    "trailer-digest": lambda s: s.segments,
    "toc-digest": lambda s: s.segments,
    "node-digest": lambda s: any(x.trailer.pieces > 1 for x in s.segments),
    "piece-digest": lambda s: any(x.trailer.data_end % x.trailer.piece_size for x in s.segments),
    "section-geometry": lambda s: any(length >= LARGE_SECTION for x in s.segments for _, length in x.toc.sections[1:]),
    "section-zero": lambda s: any(gap for x in s.segments for gap in gaps(x)),
    "section-reference": lambda s: any(several(Counter(part.rows for part in table.parts)) for table in s.tables()),
    "node-count": lambda s: s.segments,
    "table-repeated": (
        lambda s: any(len(x.toc.tables) > 1 for x in s.segments),
        lambda s: any(len(x.toc.dense or ()) > 1 for x in s.segments),
    ),
    "row-set": lambda s: s.codes(),
    "row-bounds": lambda s: any(0 < r.first <= r.last == t.rows - 1 for t in s.tables() if t.rows for r in t.row_sets),
    "tombstone": lambda s: any(table.deleted is not None and table.parts for table in s.tables()),
    "elements": lambda s: any(part.elements[0] > 0 for part in s.parts()),
    "part-length": (
        lambda s: {part.codebooks is None for part in s.parts()} == {True, False},
        lambda s: "log" in names(s),
        *(functools.partial(lambda payload, s: payload in payloads(s), each) for each in ("fixed", "packed", "rans")),
    ),
    "part-encoding": (
        *(
            functools.partial(lambda name, s: name in names(s), name)
            for name in ("raw", "cast", "tail", "head", "packed", "codebook", "log", "grid", "log rows")
        ),
        # As many values in a group as there may be, of several in a row.
        lambda s: any(
            isinstance(p.layout, LogLayout) and p.layout.group and p.width > 1 and p.layout.group * p.width == 65536
            for p in s.parts()
        ),
    ),
    "exception": lambda s: any(part.exceptions_of is not None for part in s.parts()) and len(names(s)) > 5,
    "part-overlap": lambda s: several(s.column_parts()),
    "dense-entry": lambda s: (
        {(e.kind, e.section is None) for x in s.segments for e in x.toc.dense or ()}
        >= {("array", False), ("array", True), ("json", False), ("bytes", False), ("bytes", True)}
    ),
    "manifest-digest": lambda s: any(m.versions for m in s.manifests),
    "manifest-identity": lambda s: any(m.versions for m in s.manifests),
    "manifest-parent": lambda s: any(m.parent is not None and m.versions for m in s.manifests),
    "schema": lambda s: (
        {t.keyed for t in s.manifests[0].tables} == {True, False}
        and any(c.per_row for t in s.manifests[0].tables for c in t.columns)
    ),
    "chain-path": lambda s: len(s.manifests[0].steps()) > 1,
    "chain-schema": lambda s: any(
        len({t.rows for t in s.tables() if t.table_id == table.table_id}) > 1 for table in s.manifests[0].tables
    ),
    "baseline-tiling": lambda s: (
        several(s.column_parts())
        and any(len(step) > 1 and step[0].from_state is None for step in s.manifests[0].steps())
    ),
    "dense-reference": lambda s: s.manifests[0].dense is not None,
    "attachment": lambda s: sum(entry.toc is not None for entry in s.manifests[0].chain) > 1,
    "file-header": lambda s: s.file,
    "slot": lambda s: s.file,
    "slot-order": lambda s: len({slot.version for slot in s.slots}) == 2,
    "file-length": lambda s: s.slots and len(s.file) > s.slots[0].committed_end,
    "span": lambda s: s.file and len(s.manifests) > 1 and len(s.segments) > 1,
    "file-gap": lambda s: s.file and unused_pages(s),
    "file-missing": lambda s: not s.file and len(s.manifests) > 1,
    "directory-layout": lambda s: not s.file,
    "code-padding": tuple(
        functools.partial(lambda name, s: name in padded(s), name)
        for name in ("tail", "head", "packed", "codebook", "log", "grid")
    ),
    "row-parameter": tuple(
        functools.partial(lambda name, s: name in names(s), name) for name in ("tail", "head", "packed", "codebook")
    ),
    "index-code": lambda s: s.codes() & {"packed", "runs", "bitmap"},
    "index-order": lambda s: any(r.first < 0 < r.last for t in s.tables() for r in t.row_sets),
    "index-bounds": lambda s: any(
        (r.first, r.last) == (-(1 << 63), (1 << 63) - 1) for t in s.tables() for r in t.row_sets
    ),
    "part-scheme": (
        lambda s: len({part.scheme.method for part in s.parts() if part.scheme}) > 5,
        lambda s: {part.scheme.step is None for part in s.parts() if part.scheme} == {True, False},
    ),
    "grid-directory": lambda s: any(groups(part, t) > 1024 for t in s.tables() for part in t.parts),
    "grid-models": lambda s: "rans" in payloads(s),
    "grid-codes": tuple(
        functools.partial(lambda payload, s: payload in payloads(s), each) for each in ("fixed", "packed", "rans")
    ),
    "residual-base": (
        lambda s: len({part.layout for part in s.parts() if part.layout.is_residual}) > 1,
        lambda s: any(residual_exceptions(table) for table in s.tables()),
    ),
    "grid-range": lambda s: any(part.layout.is_residual for part in s.parts()),
}
"""By rule, whether a sound vector holds what the rule is about; of several, each is held by some vector."""


def unused_pages(sound: Sound) -> bool:
    """Whether a whole page before the committed end belongs to no span."""
    used = sum(-(-len(x.data) // PAGE) for x in sound.segments)
    used += sum(-(-m.length // PAGE) for m in sound.manifests)
    return 3 + used < sound.slots[0].committed_end // PAGE


@pytest.fixture(scope="module")
def sound_vectors() -> dict[str, Sound]:
    return {name: read(name) for name in INFOS if name.startswith("valid/")}


def test_the_table_is_that_of_the_specification() -> None:
    assert set(KEPT) == set(RULES)
    assert sorted(RULES.values()) == list(range(1, 59))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("validator", ["library", "cnrcheck"])
def test_a_rule_that_is_broken_is_named(rule: str, validator: str) -> None:
    broken = [name for name, info in INFOS.items() if info["error"] == rule]
    assert broken
    naming = [name for name in broken if rule in verdicts(name)[validator][1]]
    assert naming, f"{validator} names {rule} in none of {broken}"
    assert all(verdicts(name)[validator][0] == "damaged" for name in broken)


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_is_kept_is_no_damage(rule: str, sound_vectors: dict[str, Sound]) -> None:
    holds = KEPT[rule]
    for number, clause in enumerate(holds if isinstance(holds, tuple) else (holds,)):
        kept = [name for name, sound in sound_vectors.items() if clause(sound)]
        assert kept, f"no sound vector has what {rule} is about (clause {number})"
        for name in kept:
            assert verdicts(name) == {"library": ("sound", set()), "cnrcheck": ("sound", set())}


def test_every_code_of_a_row_index_occurs(sound_vectors: dict[str, Sound]) -> None:
    codes = {code for sound in sound_vectors.values() for code in sound.codes()}
    assert codes == {"range", "raw", "packed", "runs", "bitmap"}


PARAMETERS = [("float32", "float32"), ("float16", "float16"), ("bfloat16", "float32")]
KINDS: set[tuple[Any, ...]] = {
    *(("cast", dtype) for dtype in ("float16", "bfloat16")),
    ("tail", 8, "float32", "float32", False),
    *(("tail", bits, "float16", "float16", False) for bits in (4, 2)),
    *(("head", bits, "float16", "float16", False) for bits in (8, 4, 2)),
    *(
        ("packed", bits, scale, bias, grouped)
        for bits in range(2, 9)
        for scale, paired in PARAMETERS
        for bias in (paired, None)
        for grouped in (False, True)
    ),
    *(
        ("codebook", bits, values, shared)
        for bits in (2, 3, 4)
        for values in ("float32", "float16")
        for shared in (False, True)
    ),
    *(("log", bits, "absolute", payload) for bits in (8, 12, 16) for payload in ("fixed", "rans")),
    ("log", 12, "residual", "rans"),
    *(("grid", kind, payload) for kind in ("absolute", "residual") for payload in ("fixed", "packed", "rans")),
}
"""What section 6 lets a part that isn't raw be."""
METHODS = {
    *(("cast", "cast"), ("codebook", "kmeans"), ("log", "log"), ("grid", "closed-loop")),
    ("packed without bias", "symmetric"),
    *((layout, method) for layout in ("tail", "head") for method in ("symmetric", "asymmetric", "adaptive", "lsq")),
    *(("packed", method) for method in ("asymmetric", "adaptive", "lsq")),
}
"""What section 6.6 lets a scheme say."""


def kind_of(encoding: dict[str, Any]) -> tuple[Any, ...]:
    """What an encoding is, but for the sizes of groups and blocks and for the numbers of `log`."""
    if encoding["name"] == "cast":
        return "cast", encoding["dtype"]
    if encoding["name"] == "codebook":
        return "codebook", encoding["bits"], encoding["values"], encoding["block"] is not None
    if encoding["name"] == "log":
        return "log", encoding["bits"], encoding["kind"], encoding["payload"]
    if encoding["name"] == "grid":
        return "grid", encoding["kind"], encoding["payload"]
    return encoding["layout"], *(encoding[key] for key in ("bits", "scale", "bias")), encoding["group"] is not None


def test_every_encoding_and_every_method_occurs(sound_vectors: dict[str, Sound]) -> None:
    parts = [part for sound in sound_vectors.values() for part in sound.parts() if part.scheme]
    kinds = {kind_of(part.layout.to_json()) for part in parts}
    assert kinds == KINDS
    methods = set()
    for part in parts:
        encoding = part.layout.to_json()
        name = encoding.get("layout", encoding["name"])
        biasless = encoding.get("bias", "") is None
        methods.add((f"{name} without bias" if biasless else name, part.scheme.method if part.scheme else ""))
    assert methods == METHODS
