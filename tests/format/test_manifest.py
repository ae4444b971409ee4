"""Manifests, field by field: what is packed, what is read back, and what is refused under which rule."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable
from typing import Any

import pytest

from cnrfmt.errors import DamagedError
from cnrfmt.format import limits
from cnrfmt.format.blocks import Features, seal
from cnrfmt.format.digests import digest, digest_hex
from cnrfmt.format.manifest import ChainEntry, Manifest, Retained, pack_manifest, parse_manifest
from cnrfmt.format.schema import ColumnSchema, TableSchema

CONTAINER, COMMIT, TABLE = bytes(range(1, 17)), b"commit of sixtee", b"table id, 16 byt"
STATES = [bytes([n]) * 16 for n in (0xA0, 0xA1, 0xA2)]
SEGMENTS = [bytes([n]) * 16 for n in (0xB0, 0xB1, 0xB2)]
BASELINE = {
    "segment": SEGMENTS[0].hex(),
    "from": None,
    "to": STATES[0].hex(),
    "offset": 12288,
    "length": 1000,
    "trailer": digest_hex(7),
    "toc": [0, 3],
}
DELTA = {
    "segment": SEGMENTS[1].hex(),
    "from": STATES[0].hex(),
    "to": STATES[1].hex(),
    "offset": 16384,
    "length": 2000,
    "trailer": digest_hex(8),
    "toc": [3, 4],
}
SCHEMA = {
    "id": TABLE.hex(),
    "name": "t",
    "kind": "dense",
    "rows": 10,
    "dim": 3,
    "columns": [
        {"name": "weight", "dtype": "float32", "shape": [3], "fill": "00000000"},
        {"name": "g", "dtype": "int16", "shape": [], "fill": "ff01"},
    ],
}
VALUE: dict[str, Any] = {
    "state": STATES[1].hex(),
    "commit": COMMIT.hex(),
    "step": -5,
    "created": "2024-02-29T12:34:56Z",
    "created_by": "by hand",
    "parent": {"version": 6, "digest": digest_hex(66)},
    "tables": [SCHEMA],
    "chain": [BASELINE, DELTA],
    "versions": [[3, 20480, 300, digest_hex(33)], [6, 24576, 600, digest_hex(66)]],
    "dense": SEGMENTS[0].hex(),
    "metadata": {"run": 1.5},
}
ATTACHMENTS = b"one_two"


def pack(value: Any, attachments: bytes = ATTACHMENTS, **fields: Any) -> bytes:
    """A manifest laid out by hand."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    options: dict[str, Any] = {
        "container": CONTAINER,
        "version": 7,
        "compat": 0,
        "json": len(text),
        "rest": len(attachments),
        "zero": bytes(40),
    }
    f = options | fields
    block = struct.pack("<HHIQQQ16sQQQ", 1, 0, 0, f["compat"], 0, 0, f["container"], f["version"], f["json"], f["rest"])
    body = seal("M", block + f["zero"], 0) + text + attachments
    return body + digest(body).to_bytes(8, "little")


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    value = copy.deepcopy(VALUE)
    change(value)
    return value


def refused(data: bytes, rule: str) -> str:
    with pytest.raises(DamagedError) as caught:
        parse_manifest(data, "here")
    assert caught.value.rule == rule, caught.value
    assert caught.value.place.startswith("here")
    return caught.value.place


def expected() -> Manifest:
    columns = (ColumnSchema("weight", "float32", False, bytes(4)), ColumnSchema("g", "int16", True, b"\xff\x01"))
    return Manifest(
        container_id=CONTAINER,
        version=7,
        state=STATES[1],
        commit_id=COMMIT,
        step=-5,
        created="2024-02-29T12:34:56Z",
        created_by="by hand",
        parent=(6, 66),
        tables=(TableSchema(TABLE, "t", 10, 3, columns),),
        chain=(
            ChainEntry(SEGMENTS[0], None, STATES[0], 12288, 1000, 7, (0, 3)),
            ChainEntry(SEGMENTS[1], STATES[0], STATES[1], 16384, 2000, 8, (3, 4)),
        ),
        versions=(Retained(3, 20480, 300, 33), Retained(6, 24576, 600, 66)),
        dense=SEGMENTS[0],
        metadata={"run": 1.5},
        features=Features(),
        attachments=ATTACHMENTS,
    )


def test_a_manifest_is_read_field_by_field() -> None:
    data = pack(VALUE)
    found = parse_manifest(data, "here")
    assert (found.length, found.digest) == (len(data), digest(data[:-8]))
    wanted = {**expected().__dict__, "length": found.length, "digest": found.digest}
    assert found.__dict__ == wanted


def test_a_manifest_is_packed_as_by_hand() -> None:
    assert pack_manifest(expected()) == pack(VALUE)


def test_what_may_be_null_is_null_both_ways() -> None:
    value = copy.deepcopy(VALUE)
    value.update(step=None, parent=None, dense=None, versions=[], state=STATES[0].hex(), chain=[BASELINE])
    value["chain"] = [{**BASELINE, "offset": None, "toc": None}]
    value["tables"][0].update(kind="keyed", rows=None)
    data = pack(value, b"", version=0)
    found = parse_manifest(data, "here")
    assert (found.step, found.parent, found.dense, found.versions) == (None, None, None, ())
    assert found.chain == (ChainEntry(SEGMENTS[0], None, STATES[0], None, 1000, 7),)
    assert found.tables[0].keyed
    assert pack_manifest(found) == data
    value["parent"], value["versions"] = {"version": 6, "digest": digest_hex(1)}, [[2, None, 3, digest_hex(4)]]
    found = parse_manifest(pack(value, b""), "here")
    assert found.versions == (Retained(2, None, 3, 4),)
    assert pack_manifest(found) == pack(value, b"")


@pytest.mark.parametrize("step", [0, limits.MAX_INTEGER, -limits.MAX_INTEGER])
def test_any_integer_of_json_may_be_a_step(step: int) -> None:
    assert parse_manifest(pack({**VALUE, "step": step}), "here").step == step


@pytest.mark.parametrize("key", VALUE)
def test_every_key_is_needed(key: str) -> None:
    refused(pack(changed(lambda v: v.pop(key))), "json-field")


@pytest.mark.parametrize(
    "of",
    [
        lambda v: v,
        lambda v: v["parent"],
        lambda v: v["chain"][1],
        lambda v: v["tables"][0],
        lambda v: v["tables"][0]["columns"][1],
    ],
    ids=["manifest", "parent", "chain", "table", "column"],
)
def test_a_further_key_needs_a_feature(of: Callable[[Any], dict[str, Any]]) -> None:
    value = changed(lambda v: of(v).update(new=1))
    refused(pack(value), "json-field")
    found = parse_manifest(pack(value, compat=1), "here")
    assert found.features == Features(1, 0, 0)
    assert found.chain == expected().chain
    assert found.tables == expected().tables


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("state", [None, "", 5, STATES[1].hex().upper(), "00" * 16]),
        ("commit", [None, "ab", "00" * 16]),
        ("step", [1.5, "1", True]),
        ("created", [None, "2024-02-29", "2024-02-29T12:34:56Zx", "x2024-02-29T12:34:56Z", "2024-02-29 12:34:56Z"]),
        ("created_by", [None, 5, "x" * 257, "é" * 129]),
        ("parent", [5, [6, digest_hex(66)], {"version": 6}, {"version": "6", "digest": digest_hex(66)}]),
        ("parent", [{"version": 6, "digest": 66}, {"version": 6, "digest": "66"}]),
        ("tables", [None, {}, [5]]),
        ("chain", [None, {}, [5]]),
        ("versions", [None, {}, [5], [[3, None, 300]], [[3, None, 300, digest_hex(1), 0]]]),
        ("versions", [[{"version": 3}], [["3", None, 3, digest_hex(1)]], [[3, "0", 3, digest_hex(1)]]]),
        ("versions", [[[3, None, None, digest_hex(1)]], [[3, None, 3, 1]], [[3, -1, 3, digest_hex(1)]]]),
        ("dense", [5, "", "00" * 16]),
        ("metadata", [None, [], "x"]),
    ],
)
def test_values_of_other_types_are_refused(key: str, values: list[Any]) -> None:
    for value in values:
        place = refused(pack({**VALUE, key: value}), "json-field")
        assert place != "here", value


def test_the_longest_texts_are_read() -> None:
    assert parse_manifest(pack({**VALUE, "created_by": "é" * 128}), "here").created_by == "é" * 128


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("segment", [None, "b0"]),
        ("from", [5, "00" * 16]),
        ("to", [None, "a1"]),
        ("offset", ["0", 1.5, -1]),
        ("length", [None, "0", -1]),
        ("trailer", [None, 8, digest_hex(8) + "0"]),
        ("toc", [5, [0], [3, 4, 5], ["3", 4], [3, -1]]),
    ],
)
def test_chain_entries_of_other_types_are_refused(key: str, values: list[Any]) -> None:
    for value in values:
        place = refused(pack(changed(lambda v, value=value: v["chain"][1].update({key: value}))), "json-field")  # type: ignore[misc]
        assert place.startswith("here, chain entry 1")


@pytest.mark.parametrize("key", DELTA)
def test_every_key_of_a_chain_entry_is_needed(key: str) -> None:
    refused(pack(changed(lambda v: v["chain"][1].pop(key))), "json-field")


def test_lengths_must_fit_the_bytes() -> None:
    data = pack(VALUE)
    for wrong in (data[:-1], data + b"\0", data[:-9], data[:136]):
        refused(wrong, "block-length")
    text = len(json.dumps(VALUE, separators=(",", ":")).encode())
    for change in ({"json": text + 1}, {"json": text - 1}, {"rest": 6}, {"rest": 8}):
        refused(pack(VALUE, **change), "block-length")
    # One byte more of the one is one less of the other: the text is cut.
    refused(pack(VALUE, json=text - 1, rest=8), "json-syntax")


def test_the_largest_parts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    text = len(json.dumps(VALUE, separators=(",", ":")).encode())
    monkeypatch.setattr(limits, "MAX_METADATA", text)
    parse_manifest(pack(VALUE), "here")
    monkeypatch.setattr(limits, "MAX_METADATA", text - 1)
    assert refused(pack(VALUE), "limit") == "here, JSON"
    monkeypatch.setattr(limits, "MAX_METADATA", text)
    long = {**DELTA, "toc": [3, text - 3]}
    for length, rule in ((text, None), (text + 1, "limit")):
        value = {**VALUE, "chain": [BASELINE, {**long, "toc": [3, length - 3]}], "created_by": "x"}
        data = pack(value, bytes(length))
        if rule is None:
            assert parse_manifest(data, "here").attachments == bytes(length)
        else:
            assert refused(data, rule) == "here, attachments"


def test_block_fields() -> None:
    refused(pack(VALUE, container=bytes(16)), "manifest-identity")
    refused(pack(VALUE, version=1 << 53), "limit")
    for byte in (0, 39):
        zero = bytearray(40)
        zero[byte] = 1
        refused(pack(VALUE, zero=bytes(zero)), "block-zero")
    refused(b"", "block-length")
    data = bytearray(pack(VALUE))
    data[-1] ^= 1
    refused(bytes(data), "manifest-digest")
    largest = {**VALUE, "parent": {"version": limits.MAX_INTEGER - 1, "digest": digest_hex(1)}}
    assert parse_manifest(pack(largest, version=limits.MAX_INTEGER), "here").version == limits.MAX_INTEGER


@pytest.mark.parametrize(
    "change",
    [
        {"parent": None},
        {"parent": {"version": 5, "digest": digest_hex(66)}},
        {"parent": {"version": 7, "digest": digest_hex(66)}},
        {"parent": {"version": 6, "digest": digest_hex(67)}},
        {"versions": [[6, 0, 1, digest_hex(66)], [3, 0, 1, digest_hex(33)]]},
        {"versions": [[3, 0, 1, digest_hex(33)], [3, 0, 1, digest_hex(33)]]},
        {"versions": [[7, 0, 1, digest_hex(33)]]},
        {"versions": [[8, 0, 1, digest_hex(33)]]},
    ],
)
def test_lineage(change: dict[str, Any]) -> None:
    refused(pack({**VALUE, **change}), "manifest-parent")


def test_version_0_has_no_parent() -> None:
    refused(pack({**VALUE, "versions": []}, version=0), "manifest-parent")
    parse_manifest(pack({**VALUE, "versions": [], "parent": None}, version=0), "here")
    # A parent that isn't retained can't be compared.
    parse_manifest(pack({**VALUE, "versions": [[3, 0, 1, digest_hex(33)]]}), "here")


def chain(*steps: tuple[int, int | None, int]) -> dict[str, Any]:
    """A manifest whose chain has these segments, each with its from-state and to-state."""
    states = [*STATES, b"\xa3" * 16]
    entries = [
        {
            **BASELINE,
            "segment": (bytes([0xB0 + segment]) * 16).hex(),
            "from": None if before is None else states[before].hex(),
            "to": states[after].hex(),
            "toc": None,
        }
        for segment, before, after in steps
    ]
    last = states[steps[-1][2]] if steps else states[0]
    return {**VALUE, "chain": entries, "state": last.hex(), "dense": None}


@pytest.mark.parametrize(
    ("steps", "lengths"),
    [
        ([(0, None, 0)], [1]),
        ([(0, None, 0), (1, None, 0)], [2]),
        ([(0, None, 0), (1, 0, 1), (2, 1, 2)], [1, 1, 1]),
        ([(0, None, 0), (1, 0, 1), (2, 0, 1), (3, 1, 2)], [1, 2, 1]),
    ],
)
def test_paths(steps: list[tuple[int, int | None, int]], lengths: list[int]) -> None:
    manifest = parse_manifest(pack(chain(*steps), b""), "here")
    assert [len(step) for step in manifest.steps()] == lengths
    assert [entry for step in manifest.steps() for entry in step] == list(manifest.chain)


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [(0, 0, 1)],
        [(0, None, 0), (1, 1, 2)],
        [(0, None, 0), (1, None, 1)],
        [(0, None, 0), (1, 0, 1), (2, 0, 2)],
        [(0, None, 0), (1, 0, 1), (2, 1, 0)],
        [(0, None, 0), (1, 0, 1), (2, 1, 2), (3, 2, 1)],
        [(0, None, 0), (1, 0, 0)],
        [(0, None, 0), (0, 0, 1)],
        [(0, None, 0), (1, 0, 1), (2, 1, 2), (1, 2, 3)],
    ],
)
def test_what_is_no_path(steps: list[tuple[int, int | None, int]]) -> None:
    refused(pack(chain(*steps), b""), "chain-path")


def test_the_path_leads_to_the_state() -> None:
    value = chain((0, None, 0), (1, 0, 1))
    refused(pack({**value, "state": STATES[0].hex()}, b""), "chain-path")


def test_dense_state_is_that_of_a_segment_of_the_chain() -> None:
    value = chain((0, None, 0), (1, 0, 1))
    for segment in SEGMENTS[:2]:
        assert parse_manifest(pack({**value, "dense": segment.hex()}, b""), "here").dense == segment
    refused(pack({**value, "dense": SEGMENTS[2].hex()}, b""), "dense-reference")


@pytest.mark.parametrize(
    ("tocs", "attachments"),
    [
        ([[0, 3], [3, 4]], b"one_tw"),
        ([[0, 3], [3, 4]], b"one_two_"),
        ([[0, 3], [4, 3]], ATTACHMENTS),
        ([[0, 3], [2, 5]], ATTACHMENTS),
        ([[3, 4], [0, 3]], ATTACHMENTS),
        ([[1, 2], [3, 4]], ATTACHMENTS),
        ([[0, 0], [0, 7]], ATTACHMENTS),
        ([None, [3, 4]], ATTACHMENTS),
        ([None, None], b"x"),
    ],
)
def test_attachments_that_are_not_named_exactly(tocs: list[Any], attachments: bytes) -> None:
    entries = [{**entry, "toc": toc} for entry, toc in zip((BASELINE, DELTA), tocs, strict=True)]
    refused(pack({**VALUE, "chain": entries}, attachments), "attachment")


def test_attachments_may_be_of_some_segments() -> None:
    for tocs in ([[0, 7], None], [None, [0, 7]], [[0, 1], [1, 6]]):
        entries = [{**entry, "toc": toc} for entry, toc in zip((BASELINE, DELTA), tocs, strict=True)]
        found = parse_manifest(pack({**VALUE, "chain": entries}), "here")
        assert [e.toc and list(e.toc) for e in found.chain] == tocs


@pytest.mark.parametrize(
    ("key", "limit", "items"),
    [
        ("chain", "MAX_CHAIN", [BASELINE, DELTA]),
        ("tables", "MAX_TABLES", [SCHEMA, {**SCHEMA, "id": "ab" * 16, "name": "u"}]),
        ("versions", "MAX_VERSIONS", VALUE["versions"]),
    ],
)
def test_lists_are_bounded(monkeypatch: pytest.MonkeyPatch, key: str, limit: str, items: list[Any]) -> None:
    monkeypatch.setattr(limits, limit, 2)
    parse_manifest(pack({**VALUE, key: items}), "here")
    monkeypatch.setattr(limits, limit, 1)
    refused(pack({**VALUE, key: items}), "limit")


def test_a_table_is_found_by_its_name() -> None:
    manifest = expected()
    assert manifest.table("t") is manifest.tables[0]
    assert manifest.table("u") is None
