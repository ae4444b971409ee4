"""Invalid vectors about conventions: blocks, metadata, names, feature masks, limits (rules 1 - 9)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from vectors.cases import (
    KEYS,
    USER,
    USER_VALUES,
    VISITOR,
    A,
    Content,
    Vector,
    both,
    broken,
    drop,
    expected,
    flip,
    one,
    one_small,
    poke,
    put,
    swap,
    table_id,
    two,
    u64,
    unjudged,
    user,
    visitor,
)
from vectors.container import Store, column, schema
from vectors.layout import HEADER_SEED, TRAILER_SEED, Hooks, Json, Segment, Table, digest, ident

# Each block with its hook and, for those of a file's first pages, the rule that stands for 1 to 4.
BLOCKS = {
    "segment-header": ("header", 0),
    "trailer": ("trailer", 0),
    "manifest": ("manifest", 0),
    "slot-a": ("slot A", 41),
    "slot-b": ("slot B", 41),
    "file-header": ("file header", 40),
}
# Where each block has zero fields.
ZEROES = {
    "segment-header": (12, 104, 119),
    "trailer": (68, 119),
    "manifest": (12, 80, 119),
    "slot-a": (119,),
    "slot-b": (12, 72),
    "file-header": (12, 56, 119),
}


def blocks() -> Iterator[Vector]:
    """Rules 1 to 4."""
    for name, (stage, rule) in BLOCKS.items():
        about = f"The last byte of the magic of the {name} is another."
        clause = f"{name}-magic" if rule else name
        yield broken(rule or 1, clause, one({stage: poke(7, b"\n")}), about)
        about = f"One bit of the digest of the {name} is flipped."
        clause = f"{name}-digest" if rule else name
        yield broken(rule or 2, clause, one({f"{stage} sealed": flip(125)}), about)
        for offset in ZEROES[name]:
            about = f"Byte {offset} of the {name} isn't zero."
            clause = f"{name}-zero-{offset}" if rule else f"{name}-{offset}"
            yield broken(rule or 3, clause, one({stage: flip(offset)}), about)
    hooks = {"slot A sealed": flip(125), "slot B sealed": flip(125)}
    yield broken(41, "both-digests", one(hooks), "Both slots are unsound: there is no head.")
    seed = Segment("A", None, A).seed
    for rule, name, stage, wrong in (
        (2, "segment-header-seed", "header sealed", seed + TRAILER_SEED),
        (2, "trailer-seed", "trailer sealed", seed + HEADER_SEED),
        (2, "manifest-seed", "manifest sealed", seed),
        (41, "seed", "slot A sealed", seed),
    ):

        def reseal(raw: bytearray, wrong: int = wrong) -> None:
            raw[120:] = digest(raw[:120], wrong).to_bytes(8, "little")

        yield broken(rule, name, one({stage: reseal}), "A block is sealed under another seed.")

    longer = one({"manifest": u64(64, lambda j: j + 100)})
    yield broken(4, "manifest-json", longer, "The manifest is too short for its JSON.")
    longer = one({"manifest": u64(72, lambda a: a + 8)})
    yield broken(4, "manifest-attachments", longer, "The manifest is too short for attachments.")
    longer = one({"manifest": u64(64, lambda j: 2**64 - 136)})
    about = "The length of the manifest's JSON overflows the sum of lengths."
    yield broken(4, "manifest-json-overflow", longer, about)
    shorter = one({"manifest body": lambda body: body[:92]})
    yield broken(4, "manifest", shorter, "The manifest is shorter than its block and digest.")
    short = one({"segment": lambda data: data[:100]}, folder=True)
    about = "The segment is shorter than its header block; the chain entry says the same."
    yield broken(4, "segment", short, about, (10, 11, 12, 13))


# What replaces `"step":7` in a manifest: metadata that isn't strict JSON.
SYNTAX: dict[str, tuple[str | bytes, str | bytes]] = {
    "trailing-comma": ('"step":7,', '"step":7,,'),
    "single-quotes": ('"step"', "'step'"),
    "comment": ('"step":7', '"step":/**/7'),
    "nan": ('"metadata":{}', '"metadata":{"x":NaN}'),
    "infinity": ('"metadata":{}', '"metadata":{"x":Infinity}'),
    "minus-infinity": ('"metadata":{}', '"metadata":{"x":-Infinity}'),
    "overflow": ('"metadata":{}', '"metadata":{"x":1e309}'),
    "leading-zero": ('"step":7', '"step":07'),
    "plus": ('"step":7', '"step":+7'),
    "bare-point": ('"metadata":{}', '"metadata":{"x":1.}'),
    "lone-surrogate": ('"metadata":{}', '"metadata":{"x":"\\udc00"}'),
    "surrogate-in-name": ('"name":"user"', '"name":"user\\ud800"'),
    "surrogates-swapped": ('"metadata":{}', '"metadata":{"x":"\\udc0d\\ud83d"}'),
    "surrogate-utf-8": (b'"metadata":{}', b'"metadata":{"x":"\xed\xa0\x80"}'),
    "not-utf-8": (b'"created_by":"vectors"', b'"created_by":"v\xffectors"'),
    "overlong-utf-8": (b'"created_by":"vectors"', b'"created_by":"v\xc0\xafectors"'),
    "control-character": ('"metadata":{}', '"metadata":{"x":"a\nb"}'),
    "bad-escape": ('"metadata":{}', '"metadata":{"x":"\\x41"}'),
    "duplicate-key": ('"step":7', '"step":7,"step":7'),
    "duplicate-key-escaped": ('"metadata":{}', '"metadata":{"a":1,"\\u0061":2}'),
    "deep": ('"metadata":{}', '"metadata":{"x":' + "[" * 31 + "]" * 31 + "}"),
    "very-deep": ('"metadata":{}', '"metadata":{"x":' + "[" * 3000 + "]" * 3000 + "}"),
    "integer": ('"metadata":{}', '"metadata":{"x":9007199254740992}'),
    "integer-negative": ('"metadata":{}', '"metadata":{"x":-9007199254740992}'),
    "integer-long": ('"metadata":{}', '"metadata":{"x":1' + "0" * 400 + "}"),
}


def syntax() -> Iterator[Vector]:
    """Rule 5."""
    for name, (old, new) in SYNTAX.items():
        about = f"The manifest's JSON: {name.replace('-', ' ')}."
        yield broken(5, f"manifest-{name}", one_small({"json text": swap(old, new)}), about)
    whole: dict[str, Hooks] = {
        "byte-order-mark": {"toc text": lambda text: b"\xef\xbb\xbf" + text},
        "cut": {"toc text": lambda text: text[:-1]},
        "more": {"toc text": lambda text: text + b"{}"},
        "zero-byte": {"toc text": lambda text: text + b"\0"},
        "empty": {"toc text": lambda text: b""},
        "utf-16": {"toc text": lambda text: text.decode().encode("utf-16-le")},
        "duplicate-key": {"toc text": swap('"dense":null', '"dense":null,"dense":null')},
        "integer": {"toc text": swap('"rows":4', '"rows":9007199254740992')},
    }
    for name, hooks in whole.items():
        about = f"The table of contents: {name.replace('-', ' ')}."
        yield broken(5, f"toc-{name}", one_small(hooks), about)
    for name, text in (("nan", b"[NaN]"), ("more", b"1 2"), ("deep", b"[" * 33 + b"]" * 33)):

        def content(segment: Segment, text: bytes = text) -> None:
            user(segment)
            segment.blob("config", "json", text)

        about = f"A dense entry of kind json: {name}."
        yield broken(5, f"dense-{name}", one_small(content=content, dense=True), about, (30,))


TABLE0, SET0, PART0 = ("tables", 0), ("tables", 0, "row_sets", 0), ("tables", 0, "parts", 0)
CHAIN0, COLUMN0 = ("chain", 0), ("tables", 0, "columns", 0)
FIELDS: dict[str, Hooks] = {
    "manifest-key-missing": {"json": drop("created_by")},
    "manifest-key-further": {"json": put("colour", "red")},
    "entry-key-missing": {"json": drop(*CHAIN0, "toc")},
    "entry-key-further": {"json": put(*CHAIN0, "colour", "red")},
    "schema-key-missing": {"json": drop(*TABLE0, "dim")},
    "column-key-missing": {"json": drop(*COLUMN0, "fill")},
    "column-key-further": {"json": put(*COLUMN0, "colour", "red")},
    "toc-key-missing": {"toc": drop("dense")},
    "toc-key-further": {"toc": put("colour", "red")},
    "table-key-missing": {"toc": drop(*TABLE0, "deleted")},
    "row-set-key-further": {"toc": put(*SET0, "colour", "red")},
    "part-key-missing": {"toc": drop(*PART0, "exceptions_of")},
    "encoding-key-further": {"toc": put(*PART0, "encoding", "bits", 8)},
    "manifest-array": {"json text": lambda text: b"[" + text + b"]"},
    "toc-array": {"toc text": lambda text: b"[" + text + b"]"},
    "toc-null": {"toc text": lambda text: b"null"},
    "step-string": {"json": put("step", "7")},
    "step-true": {"json": put("step", True)},
    "step-float": {"json": put("step", 7.0)},
    "rows-exponent": {"toc text": swap('"rows":4', '"rows":4e0')},
    "rows-negative": {"json": put(*TABLE0, "rows", -4), "toc": put(*TABLE0, "rows", -4)},
    "length-string": {"json": put(*CHAIN0, "length", "700")},
    "section-three-numbers": {"toc": put("sections", 0, [128, 48, 0])},
    "elements-three-numbers": {"toc": put(*PART0, "elements", [0, 3, 4])},
    "elements-string": {"toc": put(*PART0, "elements", "03")},
    "nodes-null": {"toc": put("nodes", None)},
    "tables-null": {"toc": put("tables", None)},
    "metadata-array": {"json": put("metadata", [])},
    "metadata-null": {"json": put("metadata", None)},
    "kind": {"json": put(*TABLE0, "kind", "hashed")},
    "code": {"toc": put(*SET0, "code", "list")},
    "encoding-string": {"toc": put(*PART0, "encoding", "raw")},
    "data-type": {"json": put(*COLUMN0, "dtype", "float31")},
    "data-type-upper-case": {"json": put(*COLUMN0, "dtype", "FLOAT32")},
    "id-upper-case": {"json": lambda j: put("commit", j["commit"].upper())(j)},
    "id-short": {"json": lambda j: put("commit", j["commit"][:31])(j)},
    "id-dashes": {"json": put("commit", "00112233-4455-6677-8899-aabbccddeeff")},
    "digest-short": {"json": put(*CHAIN0, "trailer", "0123456789abcde")},
    "trailer-number": {"json": put(*CHAIN0, "trailer", 7)},
    "created-no-zone": {"json": put("created", "2024-02-29T12:00:00")},
    "created-fraction": {"json": put("created", "2024-02-29T12:00:00.5Z")},
    "created-number": {"json": put("created", 1709208000)},
    "created-by-long": {"json": put("created_by", "v" * 257)},
    "created-by-null": {"json": put("created_by", None)},
    "shape-two-numbers": {"json": put("tables", 0, "columns", 1, "shape", [4, 3])},
    "shape-null": {"json": put("tables", 0, "columns", 1, "shape", None)},
    "fill-odd": {"json": put(*COLUMN0, "fill", "0000000")},
    "fill-not-hexadecimal": {"json": put(*COLUMN0, "fill", "0000000g")},
    "name-number": {"json": put(*TABLE0, "name", 7)},
    "nodes-not-hexadecimal": {"toc": lambda toc: put("nodes", "g" * 16)(toc)},
    "versions-object": {"json": put("versions", {})},
}
# What isn't a row id, some of which lenient readers take for -7, the least key.
ROW_IDS = {
    "leading-zero": "-07",
    "space": " -7",
    "point": "-7.0",
    "number": -7,
    "other-digits": "-\u0667",
    "underscore": "-7_",
    "too-small": "-9223372036854775809",
    "empty": "",
}


def fields() -> Iterator[Vector]:
    """Rules 6 and 7."""
    also = {
        "rows-negative": (23, 36, 37),
        "shape-two-numbers": (34, 37),
        "encoding-string": (27,),
        "fill-odd": (34,),
        "id-short": (10,),
        "id-dashes": (10,),
    }
    for name, hooks in FIELDS.items():
        about = f"A value of the metadata has another type or range than the document gives: {name}."
        yield broken(6, name, one_small(hooks), about, also.get(name, ()))
    for name, value in ROW_IDS.items():
        store = one_small({"toc": put(*SET0, "min", value)}, visitor, [VISITOR])
        yield broken(6, f"row-id-{name}", store, f"A row id as {value!r}.", (22, 52))
    plus = one_small({"toc": put(*SET0, "max", "+12")}, visitor, [VISITOR])
    yield broken(6, "row-id-plus", plus, "A row id with a plus sign.", (22, 52))
    minus = one_small({"toc": put(*SET0, "min", "-0")})
    yield broken(6, "row-id-minus-zero", minus, "A row id of minus zero.", (22, 52))

    zero = "0" * 32
    hook = both(put("state", zero), put("chain", 0, "to", zero))
    store = one_small({"header": poke(88, bytes(16)), "json": hook})
    yield broken(6, "id-zero", store, "A state id of zero in manifest, chain and header.", (10,))

    def entry(segment: Segment) -> None:
        user(segment)
        segment.array("a", "uint8", [2], b"ab")
        segment.blob("b", "bytes", b"c")

    for name, hook in (
        ("dense-kind", put("dense", 0, "kind", "tensor")),
        ("dense-key-missing", drop("dense", 0, "shape")),
        ("dense-key-further", put("dense", 1, "dtype", "uint8")),
        ("dense-shape-negative", put("dense", 0, "shape", [-1, -2])),
        ("dense-data-type", put("dense", 0, "dtype", "string")),
    ):
        store = one_small({"toc": hook}, entry, dense=True)
        yield broken(6, name, store, f"An entry of the dense state: {name}.", (30,))

    long_, controls = "n" * 1025, "a\u0000b"
    names = {"empty": "", "long": long_, "long-utf-8": "é" * 513, "zero": controls}
    names |= {"newline": "a\n", "delete": "a\u007f"}
    for name, value in names.items():
        store = one_small({"json": put(*TABLE0, "name", value)})
        yield broken(7, f"table-{name}", store, f"A table's name: {name}.")
    for name in ("empty", "newline"):
        renamed = put("tables", 0, "columns", 1, "name", names[name])
        store = one_small({"json": renamed, "toc": put("tables", 0, "parts", 1, "column", names[name])})
        yield broken(7, f"column-{name}", store, f"A column's name: {name}.")
        store = one_small({"toc": put("dense", 0, "name", names[name])}, entry, dense=True)
        yield broken(7, f"dense-{name}", store, f"The name of a dense entry: {name}.")


def features() -> Iterator[Vector]:
    """Rule 8, and what a reader of this version can't judge."""
    for name, offset in (("compat", 16), ("ro-compat", 24)):
        store = one({"header": poke(offset, b"\x01")})
        about = f"The segment has a {name} bit that the manifest lacks."
        yield broken(8, name, store, about)
    tables = {"user": expected(USER_VALUES)}
    store = one(masks=(0, 1 << 63, 0))
    yield unjudged("ro-compat", store, "An unknown ro_compat bit: readable all the same.", tables)
    store = one()
    store.masks = (0, 2, 0)
    about = "An unknown ro_compat bit in the file header: readable all the same."
    yield unjudged("ro-compat-file-header", store, about, tables)
    later = {"toc": put("colour", "red"), "json": put("colour", "red")}
    store = one(later, masks=(0, 1, 0))
    about = "Further keys under an unknown ro_compat bit: readable all the same."
    yield unjudged("ro-compat-keys", store, about, tables)
    damaged = one({"segment": flip(130)}, masks=(0, 1, 0))
    about = "A flipped bit under an unknown ro_compat bit is damage all the same."
    yield broken(16, "ro-compat", damaged, about)
    yield unjudged("incompat", one(masks=(0, 0, 1)), "An unknown incompat bit.", None)
    store = one({"manifest": poke(32, b"\x01")})
    yield unjudged("incompat-manifest", store, "An unknown incompat bit in the manifest.", None)
    store = one()
    store.masks = (0, 0, 1)
    yield unjudged("incompat-file-header", store, "An unknown bit in the file header.", None)
    for name, stages in (
        ("major-version", ("header", "manifest", "file header")),
        ("major-version-file-header", ("file header",)),
        ("major-version-manifest", ("manifest",)),
        ("major-version-segment", ("header",)),
    ):
        store = one(dict.fromkeys(stages, poke(8, b"\x02")))
        yield unjudged(name, store, f"Major version 2 in: {', '.join(stages)}.", None)


def limits() -> Iterator[Vector]:
    """Rule 9, as far as small files go."""

    def nothing(value: Json) -> Content:
        return lambda segment: Table(segment, table_id(value), value["rows"])

    wide = schema("wide", "wide", None, 2**20 + 1)
    yield broken(9, "dim", one(content=nothing(wide), tables=[wide]), "A dim of 2^20 + 1.")
    tall = schema("tall", "tall", 2**48 + 1, 1)
    yield broken(9, "rows", one(content=nothing(tall), tables=[tall]), "2^48 + 1 rows.")
    columns = [column(f"c{k}" if k else "weight", "uint8", [1]) for k in range(257)]
    many = schema("many", "many", 1, 1, *columns)
    yield broken(9, "columns", one(content=nothing(many), tables=[many]), "257 columns.")

    def deep(segment: Segment) -> None:
        user(segment)
        segment.array("deep", "uint8", [1] * 33, b"x")

    store = one(content=deep, dense=True)
    yield broken(9, "dimensions", store, "A dense array of 33 dimensions.")

    def tombstones(segment: Segment) -> None:
        table = visitor(segment)
        first, count = -(2**40), 2**26 + 1
        index = segment.section(struct.pack("<qQ", first, count))
        table.json["deleted"] = table.row_set("runs", count, first, first + count - 1, index)

    store = one_small(content=tombstones, tables=[VISITOR])
    yield broken(9, "tombstones", store, "A run of 2^26 + 1 tombstones.")

    store, entries = Store(), []
    for number in range(257):
        target = ident(f"state {number}")
        segment = Segment(f"{number}", ident(f"state {number - 1}") if number else None, target)
        if number == 0:
            visitor(segment, KEYS)
        entries.append(store.put(segment))
    store.commit(target, [VISITOR], entries)
    yield broken(9, "chain", store, "A chain of 257 segments.")


def vectors() -> Iterator[Vector]:
    """All vectors of this module."""
    yield from blocks()
    yield from syntax()
    yield from fields()
    yield from features()
    yield from limits()
    hooks = {"header": poke(16, b"\x01")}
    store = two(lambda s: Table(s, table_id(USER), 4), hooks=hooks)
    yield broken(8, "delta", store, "The second segment of a chain has a bit beyond the manifest's.")
