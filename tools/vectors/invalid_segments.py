"""Invalid vectors about segments as bytes (rules 10 - 21)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from vectors.cases import (
    USER,
    A,
    B,
    Content,
    Vector,
    both,
    broken,
    flip,
    floats,
    one,
    poke,
    put,
    sums,
    swap,
    table_id,
    two,
    u64,
    user,
    weights,
)
from vectors.container import Store, column, schema
from vectors.layout import (
    Hook,
    Hooks,
    Json,
    Segment,
    Table,
    digest,
    hex64,
    ident,
)

# What a reader may meet once a segment's geometry or length can't be trusted.
UNREADABLE = (1, 2, 3, 4, 10, 11, 12, 13, 14)
CHAIN0 = ("chain", 0)
PART0 = ("tables", 0, "parts", 0)


def grow(segment: Segment) -> None:
    """A delta that writes no row."""
    Table(segment, table_id(USER), 4)


def identity() -> Iterator[Vector]:
    """Rules 10 and 11. Ids differ in their last byte alone, so that all seeds stay the same."""
    last = 8 + 15
    store = one({"trailer": flip(last)})
    yield broken(10, "trailer-segment", store, "The trailer has the id of another segment.")

    def other(manifest: Json) -> None:
        id_ = manifest["chain"][0]["segment"]
        manifest["chain"][0]["segment"] = id_[:-1] + ("0" if id_[-1] != "0" else "1")

    about = "The chain entry has the id of another segment."
    yield broken(10, "entry-segment", one({"json": other}), about)
    store = one({"json": both(put("state", B.hex()), put(*CHAIN0, "to", B.hex()))})
    yield broken(10, "to-state", store, "The chain entry gives another to-state than the header.")
    store = two(grow, hooks={"header": poke(72, ident("state X"))})
    about = "The chain entry gives another from-state than the header."
    yield broken(10, "from-state", store, about)
    store = one({"header": poke(72, ident("state X"))})
    about = "The chain entry says baseline, the header has a from-state."
    yield broken(10, "from-state-baseline", store, about)
    store = two(grow, hooks={"header": poke(72, bytes(16))})
    about = "The chain entry says delta, the header has no from-state."
    yield broken(10, "from-state-delta", store, about)
    yield broken(10, "commit-zero", one({"header": poke(56, bytes(16))}), "The commit id is zero.")
    store = one({"header": poke(88, bytes(16))})
    yield broken(10, "to-state-zero", store, "The header's to-state is zero.")

    store = Store()
    baseline, delta = Segment("A", None, A), Segment("B", A, A)
    user(baseline)
    grow(delta)
    store.commit(A, [USER], [store.put(baseline), store.put(delta)])
    about = "A delta whose from-state and to-state are one."
    yield broken(10, "same-states", store, about, (35,))

    store, impostor = one(folder=True), Segment("impostor", None, A)
    user(impostor)
    store.put(impostor)
    name = f"segments/{Segment('A', None, A).id.hex()}.cnrs"
    store.files[name] = store.files.pop(f"segments/{impostor.id.hex()}.cnrs")
    about = "A whole segment stands under the name of another, of the same length and states."
    yield broken(10, "foreign-segment", store, about, UNREADABLE)

    store = one({"trailer": u64(24, lambda n: n + 64)})
    yield broken(11, "trailer", store, "The trailer's segment length is 64 more than the span's.")
    store = one({"trailer": u64(24, lambda n: 128)})
    yield broken(11, "trailer-short", store, "The trailer's segment length is 128.")
    changes: dict[str, Hook] = {
        "file-longer": lambda data: data + bytes(64),
        "file-shorter": lambda data: data[:-64],
        "file-empty": lambda data: b"",
    }
    for clause, change in changes.items():
        store = one(folder=True)
        (name,) = (path for path in store.files if path.startswith("segments/"))
        store.files[name] = change(store.files[name])
        about = "A directory: the segment's file isn't as long as the chain entry says."
        yield broken(11, clause, store, about, UNREADABLE)


def geometry() -> Iterator[Vector]:
    """Rules 12 to 14."""
    for size in (0, 256, 768, 2097152):
        # With 256 and 768 the digests are those of pieces of that size.
        real = size in (256, 768)
        hooks: Hooks = {} if real else {"trailer": poke(64, struct.pack("<I", size))}
        store = one(hooks, piece_size=size if real else 4096)
        yield broken(12, f"piece-size-{size}", store, f"A piece size of {size}.")
    store = one({"data end": lambda end: end + 8})
    about = "The data end isn't a multiple of 64."
    yield broken(12, "data-end", store, about, (17,))
    after = (14, 15, 16, 17, 18, 20)
    store = one({"trailer": u64(32, lambda _: 64)})
    yield broken(12, "data-end-64", store, "A data end within the header block.", after)
    store = one({"trailer": u64(32, lambda end: 2**64 - 64)})
    yield broken(12, "data-end-overflow", store, "A data end near 2^64.", after)
    store = one({"before toc": lambda _: bytes(8)})
    yield broken(12, "before-toc", store, "8 bytes between digests and table of contents.")
    store = one({"after toc": lambda _: bytes(8)})
    yield broken(12, "after-toc", store, "8 bytes between table of contents and trailer.")
    store = one({"trailer": u64(48, lambda n: n + 128)})
    about = "The table of contents reaches into the trailer."
    yield broken(12, "toc-long", store, about, (14,))

    def other(manifest: Json) -> None:
        manifest["chain"][0]["trailer"] = hex64(int(manifest["chain"][0]["trailer"], 16) ^ 1)

    about = "The chain entry gives another trailer digest."
    yield broken(13, "entry", one({"json": other}), about)
    about = "The trailer gives another digest of the table of contents."
    yield broken(14, "trailer", one({"trailer": flip(56)}), about)
    kept: dict[str, bytes] = {}
    hooks = {
        "toc text": lambda text: kept.update(toc=text),
        "trailer": lambda raw: struct.pack_into("<Q", raw, 56, digest(kept["toc"])),
    }
    about = "The digest of the table of contents is made under seed 0."
    yield broken(14, "seed", one(hooks), about)

    store = one({"segment": swap('"min":"0"', '"min":"1"')})
    yield broken(14, "toc", store, "A character of the table of contents is another.", (22, 26, 37))


def digests() -> Iterator[Vector]:
    """Rules 15 and 16."""
    store = one({"nodes": lambda nodes: [nodes[0] ^ 1]})
    yield broken(15, "toc", store, "The table of contents gives another digest of node 0.")
    seed = Segment("A", None, A).seed
    leaves: dict[str, bytes] = {}
    hooks: Hooks = {
        "digest bytes": lambda raw: leaves.update(all=bytes(raw)),
        "nodes": lambda _: [digest(leaves["all"], seed)],
    }
    store = one(hooks)
    yield broken(15, "seed", store, "The digest of node 0 is made under the seed of piece 0.")
    # The data end of these segments is 256.
    about = "A bit of the digest section is flipped."
    yield broken(15, "digest-section", one({"segment": flip(256)}), about, (16,))

    for clause, offset, also in (
        ("header", 40, (1, 2, 10)),
        ("data", 128, ()),
        ("padding", 180, (18,)),
    ):
        store = one({"segment": flip(offset)})
        about = f"A bit of the {clause} is flipped."
        yield broken(16, clause, store, about, also)
    store = one({"digests": lambda values: [values[0] ^ 1]})
    yield broken(16, "digest", store, "The digest section gives another digest of piece 0.")

    size, table_schema = 512, schema("long", "item", 512, 1)

    def long(segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), 512)
        floats(table, "weight", table.span(0, 511), np.arange(512, dtype=np.float32)[:, None])

    # Pieces 1 and 2 change places together with their digests.
    kept: list[bytes] = []

    def exchange(data: bytearray) -> None:
        kept[:] = [bytes(data[size : 2 * size]), bytes(data[2 * size : 3 * size])]
        data[size : 3 * size] = kept[1] + kept[0]

    def follow(values: list[int]) -> None:
        values[1:3] = [digest(kept[1], seed + 2), digest(kept[0], seed + 1)]

    hooks = {"data": exchange, "digests": follow}
    store = one(hooks, long, [table_schema], piece_size=size)
    about = "Two pieces have changed places, and so have their digests."
    yield broken(16, "exchanged", store, about)


def sections() -> Iterator[Vector]:
    """Rules 17 to 19."""

    def places(*changed: tuple[int, int]) -> Hooks:
        return {"places": lambda _: [list(place) for place in changed]}

    # As they should be: 48 bytes at 128 and 16 at 192.
    for clause, hooks, about in (
        ("late", places((128, 48), (256, 16)), "A section starts 64 bytes later than it must."),
        ("unaligned", places((128, 48), (176, 16)), "A section starts where the last one ended."),
        ("descending", places((192, 48), (128, 16)), "The sections are not in ascending order."),
        ("inside-header", places((64, 48), (128, 16)), "A section lies in the header block."),
        ("data-end", {"data end": lambda end: end + 64}, "64 zero bytes more before the data end."),
    ):
        yield broken(17, clause, one(hooks), about, (18,))
    about = "The second section begins before the end of the first."
    yield broken(17, "overlap", one(places((128, 48), (160, 16))), about)
    outside = {"toc": put("sections", 1, [2**53 - 64, 16])}
    about = "A section far beyond the data end."
    yield broken(17, "outside", one(outside), about, (18,))
    negative = {"toc": put("sections", 0, [-128, 48])}
    yield broken(17, "negative", one(negative), "A section at -128.", (6, 18))
    outside = {"toc": put("sections", 1, [192, 2**53 - 1])}
    about = "A section reaches far beyond the data end."
    yield broken(17, "outside-end", one(outside), about, (18, 26))
    store = one({"data end": lambda _: 192}, lambda _: None, [])
    yield broken(17, "data-end-no-sections", store, "The data end of no sections isn't 128.")

    def entry(data: bytes) -> Content:
        def content(segment: Segment) -> None:
            user(segment)
            segment.blob("big", "bytes", data)

        return content

    def last(offset: int) -> Hook:
        def hook(value: list[list[int]]) -> None:
            value[-1][0] = offset

        return hook

    store = one({"places": last(256)}, entry(bytes(65536)), dense=True)
    about = "A section of 65536 bytes starts at a multiple of 64, not of 4096."
    yield broken(17, "large-on-64", store, about)
    store = one({"places": last(4096)}, entry(bytes(8)), dense=True)
    yield broken(17, "small-on-4096", store, "A section of 8 bytes starts at a multiple of 4096.")

    def nothing(segment: Segment) -> None:
        user(segment)
        segment.dense = [{"name": "none", "kind": "bytes", "section": segment.section(b"")}]

    store = one(content=nothing, dense=True)
    yield broken(17, "empty", store, "A section of no bytes.", (30,))

    for clause, offset in (("between", 180), ("end", 255)):
        about = f"A byte that no section holds isn't zero ({clause}), under right digests."
        yield broken(18, clause, one({"data": flip(offset)}), about)

    def gap(segment: Segment) -> None:
        segment.blob("big", "bytes", bytes(65536))

    store = one({"data": flip(4095)}, gap, [], dense=True)
    about = "A byte between the header and the first section isn't zero, under right digests."
    yield broken(18, "header", store, about)


def references() -> Iterator[Vector]:
    """Rules 19 to 21."""

    def spare(segment: Segment) -> None:
        user(segment)
        segment.section(b"spare")

    yield broken(19, "section-spare", one(content=spare), "A section that nothing refers to.")

    wide = schema("twins", "user", 4, 1, *(column(n, "float32", [1]) for n in ("weight", "twin")))

    def twins(segment: Segment) -> None:
        table = Table(segment, table_id(wide), 4)
        span = table.span(0, 3)
        floats(table, "weight", span, sums(4))
        floats(table, "twin", span, sums(4))
        table.json["parts"][1]["section"] = 0
        segment.sections.pop()

    store = one(content=twins, tables=[wide])
    yield broken(19, "section-twice", store, "Two parts name one section.")

    def shared(segment: Segment) -> None:
        user(segment)
        segment.dense = [{"name": "w", "kind": "bytes", "section": 0}]

    store = one(content=shared, dense=True)
    yield broken(19, "section-part-and-dense", store, "A part and a dense entry name one section.")
    for clause, hook, about in (
        ("section", put(*PART0, "section", 2), "A part names a section that isn't there."),
        ("section-negative", put(*PART0, "section", -1), "A part names the section -1."),
        ("row-set", put(*PART0, "rows", 1), "A part names a row set that isn't there."),
        ("deleted", put("tables", 0, "deleted", 9), "`deleted` names a row set that isn't there."),
        ("part", put(*PART0, "exceptions_of", 2), "An exception of a part that isn't there."),
    ):
        also = {"deleted": (24,), "part": (28, 29, 37), "section-negative": (6,)}.get(clause, ())
        clause = clause if clause == "section-negative" else f"{clause}-absent"
        yield broken(19, clause, one({"toc": hook}), about, also)

    def unused(segment: Segment) -> None:
        user(segment).span(1, 2)

    store = one(content=unused)
    yield broken(19, "row-set-unused", store, "A row set that no part and no `deleted` uses.")

    for clause, nodes in (("none", []), ("two", [1, 2])):

        def change(values: list[int], nodes: list[int] = nodes) -> list[int]:
            return values * len(nodes)

        store = one({"nodes": change})
        yield broken(20, clause, store, f"Digests of {len(nodes)} nodes where there is one.")

    def halves(segment: Segment) -> None:
        for first in (0, 2):
            table = Table(segment, table_id(USER), 4)
            floats(table, "weight", table.span(first, first + 1), weights(4)[first : first + 2])

    store = one(content=halves)
    yield broken(21, "table", store, "A table occurs twice in a table of contents.", (37,))

    def same(segment: Segment) -> None:
        user(segment)
        segment.blob("state", "bytes", b"1")
        segment.blob("state", "bytes", b"2")

    store = one(content=same, dense=True)
    yield broken(21, "dense", store, "The name of a dense entry occurs twice.")


def vectors() -> Iterator[Vector]:
    """All vectors of this module."""
    yield from identity()
    yield from geometry()
    yield from digests()
    yield from sections()
    yield from references()
