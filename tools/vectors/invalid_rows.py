"""Invalid vectors about the codes of row indexes (rules 50 - 52)."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from vectors import rows
from vectors.cases import VISITOR, Vector, broken, one_small, visitor
from vectors.container import Store
from vectors.layout import Segment

INT_MAX = 2**63 - 1


def deleted(code: str, count: int, low: int, high: int, data: bytes) -> Store:
    """A keyed table with one tombstone set, given field by field, in a baseline."""

    def content(segment: Segment) -> None:
        table = visitor(segment, [1000001, 1000003])
        number = segment.section(data)
        table.json["deleted"] = table.row_set(code, count, low, high, number)

    return one_small(content=content, tables=[VISITOR])


def patched(data: bytes, offset: int, new: bytes) -> bytes:
    """Some bytes with others in their midst."""
    return data[:offset] + new + data[offset + len(new) :]


def skip(first: int, offset: int, width: int) -> bytes:
    """An entry of a skip table."""
    return struct.pack("<qIB3x", first, offset, width)


def codes() -> Iterator[Vector]:
    """Rule 50."""
    ids = [0, 3, 4, 9]
    packed = rows.packed(ids)
    # Slots 0, 2, 0, 4 of 3 bits; the payload is one word of 12 bits.
    assert packed == skip(0, 0, 3) + struct.pack("<Q", 2 << 3 | 4 << 9)
    wide = skip(0, 0, 4) + struct.pack("<Q", 2 << 4 | 4 << 12)
    slot0 = skip(0, 0, 3) + struct.pack("<Q", 1 | 2 << 3 | 4 << 9)
    zero = skip(0, 0, 1) + bytes(8)
    long_ids = [k * 3 for k in range(130)]
    groups = rows.packed(long_ids)
    # Two groups: 128 slots of 2 bits in 4 words, then 2 slots in one word.
    assert len(groups) == 32 + 8 * 5
    gap = skip(0, 0, 2) + skip(384, 5, 2) + groups[32:64] + bytes(8) + groups[64:]
    order = skip(0, 1, 2) + skip(384, 0, 2) + groups[64:] + groups[32:64]
    same = skip(0, 0, 2) + skip(384, 0, 2) + groups[32:64]
    cases: list[tuple[str, Sequence[int], bytes, str]] = [
        ("width", ids, wide, "a width of 4 bits where 3 do"),
        ("width-zero", [0, 1, 2, 3], zero, "a width of 1 bit where 0 do"),
        ("width-65", ids, skip(0, 0, 65) + bytes(40), "a width of 65 bits"),
        ("width-255", ids, skip(0, 0, 255) + bytes(128), "a width of 255 bits"),
        ("zero-bytes", ids, patched(packed, 13, b"\x01"), "a zero byte of the skip table isn't"),
        ("bits", ids, patched(packed, 17, b"\x18"), "a bit beyond the last slot is set"),
        ("last-bit", ids, patched(packed, 23, b"\x80"), "the last bit of the payload is set"),
        ("slot-0", ids, slot0, "slot 0 isn't 0"),
        ("offset", ids, patched(packed, 8, b"\x01"), "an offset beyond the payload"),
        ("offset-huge", ids, patched(packed, 8, b"\xff" * 4), "an offset of 2^32 - 1"),
        ("gap", long_ids, gap, "a gap between two payloads"),
        ("payload-order", long_ids, order, "payloads in descending order"),
        ("payload-shared", long_ids, same, "two groups of one payload"),
        ("long", ids, packed + bytes(8), "a word too many"),
        ("short", ids, packed[:-8], "no payload"),
        ("odd", ids, packed + bytes(3), "3 bytes too many"),
        ("cut", long_ids, groups[:24], "half a skip table"),
    ]
    for clause, values, data, about in cases:
        store = deleted("packed", len(values), values[0], values[-1], data)
        also: tuple[int, ...] = ()
        if clause in ("offset", "payload-order", "payload-shared", "bits"):
            also = (51, 52)
        elif clause in ("short", "cut", "long", "odd"):
            also = (22, 52)
        yield broken(50, f"packed-{clause}", store, f"A packed row index: {about}.", also)

    store = deleted("packed", 2**26, -(2**40), 0, packed)
    about = "A packed row index that counts 2^26 ids, in 24 bytes."
    yield broken(50, "packed-huge", store, about, (22, 52))

    run = struct.Struct("<qQ").pack
    for clause, values, data, about, also in (
        ("empty", [0, 1, 5], run(0, 2) + run(3, 0) + run(5, 1), "a run of no ids", ()),
        ("adjacent", [0, 1, 2], run(0, 2) + run(2, 1), "two runs that are one", ()),
        ("odd", [0, 1], run(0, 2) + bytes(8), "half an entry more", (22,)),
        ("cut", [0, 1], run(0, 2)[:12], "an entry is cut", (22, 52)),
    ):
        store = deleted("runs", len(values), values[0], values[-1], data)
        yield broken(50, f"runs-{clause}", store, f"Runs: {about}.", also)

    sparse = list(range(0, 700, 3))
    bitmap = rows.bitmap(sparse)
    ranks = len(bitmap) - 16
    for clause, data, about in (
        ("rank-0", patched(bitmap, ranks, b"\x01"), "the first rank isn't 0"),
        ("rank-1", patched(bitmap, ranks + 8, b"\x01"), "the second rank is wrong"),
    ):
        store = deleted("bitmap", len(sparse), 0, sparse[-1], data)
        yield broken(50, f"bitmap-{clause}", store, f"A bitmap: {about}.")
    ids = [-7, 0, 5, 12]
    for clause, bit in (("beyond", 20), ("padding", 511)):
        spoilt = bytearray(rows.bitmap(ids))
        spoilt[bit // 8] |= 1 << bit % 8
        store = deleted("bitmap", 4, -7, 12, bytes(spoilt))
        about = f"A bitmap with bit {bit} set, beyond max."
        yield broken(50, f"bitmap-{clause}", store, about, (52,))


def order() -> Iterator[Vector]:
    """Rules 51 and 52."""
    run = struct.Struct("<qQ").pack
    long_ids = list(range(0, 260, 2))
    packed = rows.packed(long_ids)
    overflow = skip(INT_MAX - 2, 0, 3) + struct.pack("<Q", 5 << 3)
    huge = skip(0, 0, 64) + struct.pack("<3Q", 0, 2**64 - 1, 2**64 - 1)
    for clause, code, count, low, high, data, about in (
        ("raw-equal", "raw", 3, 0, 9, rows.raw([0, 0, 9]), "two equal ids"),
        ("raw-descending", "raw", 4, 0, 9, rows.raw([0, 7, 5, 9]), "a lower id after a higher"),
        ("raw-unsigned", "raw", 3, -1, 9, rows.raw([0, -1, 9]), "ids in the order of u64"),
        ("groups-equal", "packed", 130, 0, 256, patched(packed, 16, skip(254, 2, 1)), "equal ids"),
        ("groups", "packed", 130, 0, 258, patched(packed, 16, skip(-9, 2, 1)), "groups descend"),
        ("packed-overflow", "packed", 2, INT_MAX - 2, INT_MAX, overflow, "an id beyond int64"),
        ("packed-wraps", "packed", 3, 0, 9, huge, "ids that wrap around 2^64"),
        ("runs", "runs", 6, 0, 9, run(0, 4) + run(3, 2), "runs overlap"),
        ("runs-descending", "runs", 4, 0, 9, run(8, 2) + run(0, 2), "runs descend"),
        (
            "runs-overflow",
            "runs",
            5,
            0,
            INT_MAX,
            run(0, 1) + run(INT_MAX - 1, 4),
            "a run beyond int64",
        ),
        ("runs-wraps", "runs", 2, 0, 1, run(0, 2**64 - 1) + run(5, 3), "a run of 2^64 - 1 ids"),
    ):
        # Where ids aren't in order, their number, the first or the last are seldom what was said.
        also = (50, 52)
        yield broken(51, clause, deleted(code, count, low, high, data), f"{code}: {about}.", also)

    ids = [-7, 0, 5, 12]
    for code in rows.CODES:
        data = rows.index(code, ids)
        for clause, low, high in (("min", -8, 12), ("max", -7, 13)):
            if code == "bitmap" and clause == "min":
                continue
            store = deleted(code, 4, low, high, data)
            about = f"{code}: another {clause} than that of the ids."
            yield broken(52, f"{code}-{clause}", store, about)
        if code in ("runs", "bitmap"):
            for count in (3, 5):
                about = f"{code}: a count of {count} where there are 4 ids."
                store = deleted(code, count, -7, 12, data)
                yield broken(52, f"{code}-count-{count}", store, about)
    words = bytearray(rows.bitmap(ids))
    words[0] &= 0xFE
    store = deleted("bitmap", 3, -7, 12, bytes(words))
    yield broken(52, "bitmap-first", store, "A bitmap whose first bit isn't set.")
    extremes = deleted("runs", 3, 0, 2**53, rows.runs(list(range(3))))
    yield broken(52, "runs-max-far", extremes, "A max far beyond the last id.")


def vectors() -> Iterator[Vector]:
    """All vectors of this module."""
    yield from codes()
    yield from order()
