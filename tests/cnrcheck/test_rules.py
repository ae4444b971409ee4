"""Each broken rule is named, with right digests all around it, and hostile values never raise."""

from __future__ import annotations

import functools
import json
import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.cnrcheck import builder as b
from tests.cnrcheck import encodings as e
from tests.cnrcheck import samples
from tools import cnrcheck

# What each broken rule is reported as. An edit changes the values before the digests are taken.

Edit = Callable[[Any], Any]


def put(*path: Any) -> Edit:
    """Return an edit that sets what the path, but its last item, leads to to the last item."""

    def edit(value: Any) -> None:
        for key in path[:-2]:
            value = value[key]
        value[path[-2]] = path[-1]

    return edit


def move_section(toc: dict[str, Any]) -> None:
    toc["sections"][1] = [toc["sections"][1][0] + 64, toc["sections"][1][1]]


def set_byte(section: int, at: int, *values: int) -> Edit:
    """Return an edit of a segment's bytes within a section, by the sections of the sample."""

    def edit(data: bytearray) -> None:
        start = 128
        for raw in samples.tiny_segment().sections[:section]:
            start = b.round_up(start + len(raw), 64)
        data[start + at : start + at + len(values)] = bytes(values)

    return edit


def deep(depth: int) -> Any:
    return [] if depth == 1 else [deep(depth - 1)]


HALF = e.rowwise(4, "tail", "float16", "float16")
SHARED, HEAD, STATE = (("tables", 2, "parts", number) for number in (0, 2, 4))
SECTIONS = samples.tiny_segment().sections

TOC_EDITS: list[tuple[set[str], Edit]] = [
    ({"json-field"}, lambda toc: toc.update(more=1)),
    ({"json-field"}, put("nodes", "F" * 16)),
    ({"json-field"}, put("tables", 0, "rows", 40.0)),
    ({"json-field"}, put("tables", 0, "row_sets", 0, "code", "zip")),
    ({"json-field"}, put("tables", 1, "row_sets", 0, "min", "05")),
    ({"json-field"}, lambda toc: toc["tables"][0]["parts"][0].pop("scheme")),
    ({"json-field"}, put(*SHARED, "codebooks", "9")),
    ({"json-field"}, put(*HEAD, "encoding", "colour", "red")),
    ({"json-field"}, lambda toc: toc["tables"][2]["parts"][4]["encoding"].pop("shift")),
    ({"json-field"}, put(*HEAD, "scheme", [])),
    ({"json-field"}, put(*HEAD, "scheme", "num_bins", 25.0)),
    ({"json-field"}, put(*HEAD, "scheme", "mean_error", None)),
    ({"json-name", "chain-schema"}, put("tables", 1, "parts", 0, "column", "a\x7fb")),
    ({"limit", "chain-schema", "baseline-tiling"}, put("tables", 0, "rows", (1 << 48) + 1)),
    ({"section-geometry", "section-zero", "index-bounds"}, move_section),
    ({"section-geometry", "section-zero"}, put("sections", 5, 1, 0)),
    ({"section-reference", "row-set"}, put("tables", 0, "row_sets", 1, "section", None)),
    ({"section-reference"}, put("tables", 0, "parts", 0, "rows", 9)),
    ({"section-reference"}, put("tables", 0, "parts", 1, "exceptions_of", 9)),
    ({"section-reference"}, put("tables", 0, "parts", 0, "section", -1)),
    ({"section-reference", "part-length"}, put("tables", 0, "parts", 0, "section", 3)),
    ({"node-count"}, put("nodes", "")),
    ({"node-digest"}, put("nodes", "0" * 16)),
    ({"table-repeated"}, lambda toc: toc["tables"].append({**toc["tables"][0], "row_sets": [], "parts": []})),
    ({"table-repeated"}, put("dense", 1, "name", "note")),
    ({"row-set"}, put("tables", 0, "row_sets", 0, "count", 0)),
    ({"row-set"}, put("tables", 0, "row_sets", 0, "max", "38")),
    ({"row-set", "part-length"}, put("tables", 0, "row_sets", 1, "count", 1 << 40)),
    ({"row-bounds", "chain-schema"}, put("tables", 0, "rows", 39)),
    ({"tombstone", "section-reference"}, put("tables", 1, "deleted", 0)),
    ({"tombstone"}, put("tables", 0, "deleted", 1)),
    ({"elements", "exception"}, put("tables", 0, "parts", 0, "elements", [2, 2])),
    ({"elements", "chain-schema", "part-length"}, put("tables", 1, "parts", 0, "elements", [0, 3])),
    ({"part-length", "index-bounds"}, put("tables", 1, "row_sets", 0, "count", 3)),
    ({"part-length", "section-reference"}, put(*SHARED, "codebooks", None)),
    ({"part-length", "section-reference"}, put(*HEAD, "codebooks", 9)),
    ({"part-length"}, put(*SHARED, "encoding", "block", 2)),
    ({"part-length"}, put(*HEAD, "encoding", {**HALF, "bits": 8, "scale": "float32", "bias": "float32"})),
    ({"part-length"}, put(*STATE, "encoding", "bits", 8)),
    ({"part-encoding"}, put("tables", 0, "parts", 0, "encoding", {**HALF, "bits": 3})),
    ({"part-encoding"}, put("tables", 0, "parts", 0, "encoding", {**HALF, "bits": "4"})),
    ({"part-encoding"}, put(*SHARED, "encoding", "block", 1)),
    ({"part-encoding"}, put(*HEAD, "encoding", "group", 64)),
    ({"part-encoding"}, put(*STATE, "encoding", "shift", 24)),
    ({"part-scheme"}, put(*HEAD, "scheme", None)),
    ({"part-scheme"}, put(*HEAD, "scheme", "method", "kmeans")),
    ({"part-scheme"}, put(*HEAD, "scheme", "num_bins", 0)),
    ({"part-scheme"}, put(*HEAD, "scheme", "ratio", 1.5)),
    ({"part-scheme"}, put(*SHARED, "scheme", "bound", -0.5)),
    ({"part-scheme"}, put(*STATE, "scheme", "mean_error", 0.5)),
    ({"part-scheme"}, put("tables", 1, "parts", 0, "scheme", e.scheme_of(HALF))),
    ({"part-encoding"}, put("tables", 0, "parts", 0, "encoding", {**HALF, "scale": "float32"})),
    ({"part-encoding"}, put("tables", 0, "parts", 0, "encoding", {"name": "mesh"})),
    ({"part-encoding"}, put("tables", 1, "parts", 0, "encoding", "dtype", "int32")),
    ({"exception"}, put("tables", 0, "parts", 1, "exceptions_of", 1)),
    ({"part-overlap"}, put("tables", 0, "parts", 1, "exceptions_of", None)),
    ({"dense-entry"}, put("dense", 1, "shape", [3])),
    ({"json-field"}, put("dense", 1, "shape", [-1])),
    ({"limit"}, put("dense", 1, "shape", [1] * 33)),
    ({"dense-reference", "section-reference"}, lambda toc: toc.update(dense=None)),
    ({"chain-schema"}, put("tables", 1, "id", b.make_id(9).hex())),
    ({"chain-schema"}, put("tables", 1, "parts", 0, "column", "other")),
]
DATA_EDITS: list[tuple[set[str], Edit]] = [
    ({"section-zero"}, set_byte(3, len(SECTIONS[3]), 1)),
    ({"code-padding"}, set_byte(0, 7, 0x10)),
    ({"row-parameter"}, set_byte(0, 6 * 1 + 3, 0x7C)),
    ({"code-padding"}, set_byte(11, 15, 1)),
    ({"code-padding"}, set_byte(13, 7, 0x1F)),
    ({"row-parameter"}, set_byte(11, 17, 0x7C)),
    ({"row-parameter"}, set_byte(9, 16, 0, 0, 0xC0, 0x7F)),
    ({"exception"}, set_byte(0, 0, 1)),
    ({"exception"}, set_byte(8, 2, 1)),
    ({"exception"}, set_byte(13, 4, 1)),
    ({"index-bounds"}, set_byte(1, 0, 1)),
    ({"index-code"}, set_byte(3, 12, 40)),
    ({"index-bounds"}, set_byte(5, 8, 2)),
    ({"index-code"}, set_byte(5, 8, 0)),
    ({"index-order"}, set_byte(5, 15, 0xFF)),
    ({"json-syntax", "dense-entry"}, set_byte(6, 0, ord("["))),
    ({"dense-entry"}, set_byte(7, 0, 2)),
]
DOC_EDITS: list[tuple[set[str], Edit]] = [
    ({"json-field"}, put("commit", "0" * 32)),
    ({"json-field"}, put("created", "yesterday")),
    ({"json-field"}, put("step", 1.0)),
    ({"json-field"}, lambda doc: doc.pop("metadata")),
    ({"json-syntax"}, put("metadata", {"deep": deep(31)})),
    ({"json-syntax"}, put("metadata", {"huge": 1 << 53})),
    ({"json-syntax"}, put("metadata", {"nan": math.nan})),
    ({"json-name"}, put("tables", 0, "name", "")),
    ({"limit"}, lambda doc: doc.update(chain=doc["chain"] * 257)),
    ({"manifest-parent"}, put("parent", {"version": 0, "digest": "0" * 16})),
    ({"manifest-parent", "span"}, put("versions", [[0, 12288, 136, "0" * 16]])),
    ({"schema"}, put("tables", 1, "name", "dense")),
    ({"schema", "chain-schema"}, put("tables", 0, "columns", 0, "name", "w")),
    ({"schema"}, put("tables", 0, "columns", 0, "fill", "00")),
    ({"schema", "chain-schema"}, put("tables", 0, "kind", "keyed")),
    ({"schema", "part-encoding"}, put("tables", 0, "columns", 0, "dtype", "bool")),
    ({"chain-schema"}, put("tables", 0, "rows", 41)),
    ({"chain-path"}, put("state", b.make_id(300).hex())),
    ({"chain-path", "segment-identity"}, put("chain", 0, "from", b.make_id(300).hex())),
    ({"chain-path", "attachment"}, lambda doc: doc.update(chain=doc["chain"] * 2)),
    ({"segment-identity", "dense-reference"}, put("chain", 0, "segment", b.make_id(300).hex())),
    ({"trailer-digest"}, put("chain", 0, "trailer", "0" * 16)),
    ({"attachment"}, put("chain", 0, "toc", None)),
    ({"dense-reference"}, put("dense", b.make_id(300).hex())),
    ({"span"}, put("chain", 0, "offset", None)),
]


def ids_of(cases: list[tuple[set[str], Edit]]) -> list[str]:
    return ["+".join(sorted(expected)) for expected, _ in cases]


@pytest.mark.parametrize(("expected", "edit"), TOC_EDITS, ids=ids_of(TOC_EDITS))
def test_broken_tables_of_contents(expected: set[str], edit: Edit) -> None:
    seg = samples.tiny_segment()
    seg.edit_toc = edit
    findings = cnrcheck.check_bytes(bytes(b.Container([samples.tiny_version(seg)], single=True).data))
    assert samples.errors(findings) == expected, [str(f) for f in findings]


@pytest.mark.parametrize(("expected", "edit"), DATA_EDITS, ids=ids_of(DATA_EDITS))
def test_broken_sections(expected: set[str], edit: Edit) -> None:
    seg = samples.tiny_segment()
    seg.edit_data = edit
    data = bytes(b.Container([samples.tiny_version(seg)], single=True).data)
    findings = cnrcheck.check_bytes(data)
    assert samples.errors(findings) == expected, [str(f) for f in findings]
    # The structure alone doesn't tell.
    assert cnrcheck.check_bytes(data, "structure") == []


@pytest.mark.parametrize(("expected", "edit"), DOC_EDITS, ids=ids_of(DOC_EDITS))
def test_broken_manifests(expected: set[str], edit: Edit) -> None:
    version = samples.tiny_version()
    version.edit = edit
    findings = cnrcheck.check_bytes(bytes(b.Container([version], single=True).data))
    assert samples.errors(findings) == expected, [str(f) for f in findings]


# Values that stand where others should: of each type, at the edges, and enormous.
ODD: list[Any] = [None, True, -1, 0, 1, 3, 1 << 40, (1 << 53) - 1, 0.5, "", "0", "-9223372036854775808", "x" * 1025]
ODD += ["ab" * 16, "raw", "runs", [], [[]], [0, 1], {}, {"name": "raw"}, [None] * 3]


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at] * bool(at) + [path for key, below in inner for path in paths(below, (*at, key))]


def with_odd_values(document: bytes) -> list[Edit]:
    found = paths(json.loads(document))
    return [put(*path, odd) for path in found for odd in ODD] + [functools.partial(remove, path) for path in found]


def remove(path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        value = value[key]
    del value[path[-1]]


def is_chosen(number: int) -> bool:
    """Every other edit: each place meets half of the odd values, the next place the other half."""
    return (number + number // len(ODD)) % 2 == 0


def test_hostile_tables_of_contents_never_raise() -> None:
    seg = samples.tiny_segment()
    seg.bytes()
    judged = []
    for edit in [edit for number, edit in enumerate(with_odd_values(seg.toc)) if is_chosen(number)]:
        seg = samples.tiny_segment()
        seg.edit_toc = edit
        files = b.Container([samples.tiny_version(seg)], single=False).files
        judged.append(cnrcheck.verdict(cnrcheck.check_files(files)))
    # A few odd values are as good as those that they replace: the same number, another name.
    assert judged.count("damaged") > 0.95 * len(judged)
    assert "unjudged" not in judged


def test_hostile_manifests_never_raise() -> None:
    version = samples.tiny_version(samples.tiny_segment(), samples.tiny_delta())
    kept: list[bytes] = []
    version.edit = lambda doc: kept.append(b.dumps(doc))
    b.Container([version], single=True)
    judged = []
    for number, edit in enumerate(with_odd_values(kept[0])):
        single = is_chosen(number)
        version = samples.tiny_version(samples.tiny_segment(), samples.tiny_delta())
        version.edit = edit
        container = b.Container([version], single)
        data, files = bytes(container.data), container.files
        findings = cnrcheck.check_bytes(data) if single else cnrcheck.check_files(files)
        judged.append(cnrcheck.verdict(findings))
    assert judged.count("damaged") > 0.9 * len(judged)


def keyed_container(code: str, ids: list[int], index: bytes) -> bytes:
    seg = b.Segment(21, None, 201)
    keyed = seg.table(6, None)
    rows = seg.row_set(keyed, code, ids)
    seg.sections[0] = index
    seg.part(keyed, "weight", rows, (0, 2), bytes(8 * len(ids)), "float32")
    return bytes(b.Container([b.Version([samples.tiny_version().tables[1]], [seg])], single=True).data)


@pytest.mark.parametrize("code", list(b.INDEX))
def test_changed_row_indexes_are_damage_or_list_other_rows(code: str) -> None:
    ids = [5, 9, 10, 11, 300, 301, 302, 700]
    right = b.INDEX[code](ids)
    for at in range(len(right)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            index = bytearray(right)
            index[at] = value
            data = keyed_container(code, ids, bytes(index))
            found = samples.errors(cnrcheck.check_bytes(data))
            assert found <= {"index-code", "index-order", "index-bounds"}
            if not found:
                listed = cnrcheck.read_table(data, "keyed")[0].tolist()
                assert b.INDEX[code](listed) == index
                assert (len(listed), listed[0], listed[-1]) == (len(ids), ids[0], ids[-1])


@pytest.mark.parametrize("code", list(b.INDEX))
@pytest.mark.parametrize("length", [0, 8, 16, 24, 72, 136, 144, 4096])
def test_row_indexes_of_another_length_are_damage(code: str, length: int) -> None:
    ids = [5, 9, 10, 11, 300, 301, 302, 700]
    right = b.INDEX[code](ids)
    index = right[:length].ljust(length, b"\0")
    if index != right:
        assert cnrcheck.verdict(cnrcheck.check_bytes(keyed_container(code, ids, index))) == "damaged"


@pytest.mark.parametrize("width", [*range(8), 31, 32, 33, 62, 63])
def test_packed_ids_of_every_width_are_read(width: int) -> None:
    steps = [1 + (1 << width >> 1) * (k % 2) for k in range(min(400, 1 << (64 - width) if width else 400))]
    ids = np.cumsum([-(1 << 62), *steps]).tolist()
    listed = cnrcheck.read_table(keyed_container("packed", ids, b.packed_index(ids)), "keyed")[0]
    assert listed.tolist() == ids


def test_an_enormous_run_is_bounded() -> None:
    seg = samples.tiny_segment()
    keyed = seg.tables[1]
    keyed["row_sets"][1].update(min="7", max=str(6 + (1 << 40)), count=1 << 40)
    seg.sections[5] = struct.pack("<qQ", 7, 1 << 40)
    data = bytes(b.Container([samples.tiny_version(seg)], single=True).data)
    assert samples.errors(cnrcheck.check_bytes(data)) == {"limit", "tombstone"}
