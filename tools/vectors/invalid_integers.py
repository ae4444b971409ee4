"""Invalid vectors about parts of integers: directories, models, codes and their padding (rules 28, 48, 54 to 56)."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from vectors import encodings, integers
from vectors.cases import FLOAT, Vector, broken, one_small, table_id
from vectors.container import Store, column, schema
from vectors.integers import Models, Rows, packed_group, rans_group, section, streams
from vectors.layout import Json, Segment, Table
from vectors.parts import LOG, single

grid = encodings.grid
PACKED, RANS = (grid("absolute", -8, payload, None, 2) for payload in ("packed", "rans"))
LOG_RANS = encodings.log(12, LOG["base"], LOG["shift"], "absolute", "rans", 2)
CODES = [[1, -2, 3], [40, 0, -41], [0, 0, 0], [7, 7, -8]]
EXPONENTS = [0, 3, 0, 1]
# Every token is certain, so that words and extra bits are where a vector puts them.
CERTAIN = Models([(0, 0, 4096)], [[4096]])
LEAST = 65536


def part(encoding: Json, data: bytes, count: int = 4, width: int = 3) -> Store:
    """A baseline of one part."""
    return single(encoding, data, count=count, width=width)


def patched(data: bytes, at: int, new: bytes) -> bytes:
    """Some bytes with others in their midst."""
    at = at % len(data)
    assert data[at : at + len(new)] != new
    return data[:at] + new + data[at + len(new) :]


# --- Rule 54 -------------------------------------------------------------------------------------


def directories() -> Iterator[Vector]:
    """Directories of two groups, 16 bytes long, and of 1030 groups of one row, with two blocks."""
    u32, u64 = struct.Struct("<I").pack, struct.Struct("<Q").pack
    data = section(PACKED, CODES, EXPONENTS)
    payload = len(data) - 16
    for clause, at, new, about in (
        ("base", 0, u64(1), "the base isn't the beginning of the first group"),
        ("base-huge", 0, u64(2**64 - 1), "a base of 2^64 - 1"),
        ("base-sign", 0, u64(2**63), "a base of 2^63"),
        ("first", 8, u32(1), "the first group doesn't begin at 0"),
        ("beyond", 12, u32(payload + 1), "a group begins beyond the payload"),
        ("beyond-huge", 12, u32(2**32 - 1), "a group begins at 2^32 - 1"),
    ):
        yield broken(54, clause, part(PACKED, patched(data, at, new)), f"A directory: {about}.", (56,))
    codes = [[row, 0, -row] for row in range(5)]
    data = section(grid("absolute", -8, "packed", None, 2), codes)
    for clause, at, new in (("padding", 20, b"\x01"), ("padding-last", 23, b"\x80")):
        about = f"A directory of three groups: byte {at - 20} behind it isn't zero."
        yield broken(54, clause, part(PACKED, patched(data, at, new), 5), about)
    begins = struct.unpack_from("<3I", data, 8)
    swapped = struct.pack("<3I", 0, begins[2], begins[1])
    store = part(PACKED, patched(data, 8, swapped), 5)
    yield broken(54, "descends", store, "A directory: beginnings that descend.", (56,))

    count = 1030
    ones = grid("absolute", 0, "packed", None, 1)
    long = section(ones, [[1]] * count)
    block = 8 + 4 * 1024
    for clause, at, new, about in (
        ("block-base-less", block, u64(1023 * 3 - 1), "the second block begins before the last group of the first"),
        ("block-base-beyond", block, u64(1030 * 3), "the second block begins at the end of the payload"),
        ("block-base-zero", block, u64(0), "the second block begins anew"),
        ("block-first", block + 8, u32(1), "a base that isn't the beginning of the first group of its block"),
        ("block-descends", 8 + 4 * 700, u32(0), "beginnings descend in the midst of a block"),
    ):
        store = part(ones, patched(long, at, new), count, 1)
        yield broken(54, clause, store, f"A directory of two blocks: {about}.", (56,))

    store = part(ones, patched(long, block, u64(1024 * 3 + 1)), count, 1)
    yield broken(56, "packed-base", store, "A base by which all groups of the second block begin a byte late.", (54,))
    for clause, length, about in (
        ("cut", 8, "a directory of which the beginnings are missing"),
        ("none", 0, "no directory"),
    ):
        head = Models([(0, 0, 4096)], [[4096 - 99] + [1] * 99]).head()
        data = head + bytes(length)
        store = part(grid("absolute", 0, "rans", None, 1), data)
        yield broken(54, clause, store, f"A long head, and behind it {about}.", (55, 56))


# --- Rule 55 -------------------------------------------------------------------------------------


def models() -> Iterator[Vector]:
    """Heads that aren't as they must be."""

    def store(head: bytes, encoding: Json = RANS) -> Store:
        # Groups of states alone, which suit any model of certain symbols.
        return part(encoding, integers.assembled([struct.pack("<8I", *[LEAST] * 8)] * 2, head))

    def head_of(kinds: Sequence[tuple[int, int, int]], classes: Sequence[Sequence[int]], **changes: Any) -> bytes:
        tables = b"".join(struct.pack("<BBH", *kind) for kind in kinds)
        for frequencies in classes:
            tables += struct.pack(f"<B{len(frequencies)}H", len(frequencies), *frequencies)
        tables += bytes(-len(tables) % 8)
        fields = {"K": len(kinds), "C": len(classes), "B": len(tables), "zero": 0} | changes
        return struct.pack("<HHIQ", *(fields[key] for key in ("K", "C", "B", "zero"))) + tables

    one, plain = [(0, 0, 4096)], [[4096]]
    two = [(0, 0, 2048), (0, 1, 2048)]
    assert head_of(one, plain) == CERTAIN.head()
    crowd = [(k // 256, k % 256, 4 if k < 1023 else 2) for k in range(1025)]
    many = [[4096 - 123] + [1] * 123]
    cases: list[tuple[str, bytes, str]] = [
        ("kinds-0", head_of([], plain, K=0), "no row kinds"),
        ("kinds-more", head_of(one, plain, K=2), "fewer row kinds than are counted"),
        ("kinds-1025", head_of(crowd, [[4096]] * 256), "1025 row kinds"),
        ("kinds-huge", head_of(one, plain, K=65535), "65535 row kinds in 8 bytes"),
        ("classes-0", head_of(one, [], C=0), "no classes"),
        ("classes-more", head_of(one, plain, C=2), "fewer classes than are counted"),
        ("classes-257", head_of([(0, k, 16) for k in range(256)], [[4096]] * 257), "257 classes"),
        ("classes-huge", head_of(one, plain, C=65535), "65535 classes"),
        ("class-unused", head_of(one, [[4096], [4096]]), "a class that no row kind has"),
        ("class-absent", head_of([(0, 1, 4096)], plain), "a row kind of a class that isn't there"),
        ("exponent-25", head_of([(25, 0, 4096)], plain), "an exponent of 25"),
        ("exponent-255", head_of([(255, 0, 4096)], plain), "an exponent of 255"),
        ("kinds-equal", head_of([(0, 0, 2048), (0, 0, 2048)], plain), "two row kinds that are one"),
        ("kinds-exponents", head_of([(3, 0, 2048), (1, 0, 2048)], plain), "row kinds whose exponents descend"),
        ("kinds-descend", head_of([(0, 1, 2048), (0, 0, 2048)], [[4096]] * 2), "row kinds whose classes descend"),
        ("kind-frequency-0", head_of([(0, 0, 4096), (1, 0, 0)], plain), "a row kind of frequency 0"),
        ("kinds-sum-less", head_of([(0, 0, 4095)], plain), "row kinds whose frequencies sum to 4095"),
        ("kinds-sum-more", head_of([(0, 0, 4096), (1, 0, 1)], plain), "row kinds whose frequencies sum to 4097"),
        ("kinds-sum-wraps", head_of([(0, 0, 65535), (1, 0, 4097)], plain), "row kinds whose frequencies sum to 69632"),
        ("tokens-0", head_of(one, [[]]), "a class of no tokens"),
        ("tokens-125", head_of(one, [[4096 - 124] + [1] * 124]), "a class of 125 tokens"),
        ("tokens-255", head_of(one, [[4096 - 254] + [1] * 254]), "a class of 255 tokens"),
        ("tokens-last", head_of(one, [[4096, 0]]), "the last token of a class has the frequency 0"),
        ("tokens-sum-less", head_of(one, [[4000, 95]]), "a class whose frequencies sum to 4095"),
        ("tokens-sum-more", head_of(one, [[4000, 97]]), "a class whose frequencies sum to 4097"),
        ("tokens-sum-second", head_of(two, [[4096], [4095]]), "a second class whose frequencies sum to 4095"),
        ("tokens-none", head_of(one, [[0, 0, 4096, 0]]), "token 2 alone, and a frequency of 0 behind it"),
        ("length-less", head_of(one, many, B=248), "tables that are 8 bytes longer than is said"),
        ("length-more", head_of(one, plain, B=16) + bytes(8), "tables that are 8 bytes shorter than is said"),
        ("length-odd", head_of(one, plain, B=7), "tables of 7 bytes"),
        ("length-0", head_of(one, plain, B=0), "tables of no bytes"),
        ("length-huge", head_of(one, plain, B=2**32 - 1), "tables of 2^32 - 1 bytes"),
        ("zero", head_of(one, plain, zero=1), "the field at 8 isn't zero"),
        ("zero-last", head_of(one, plain, zero=2**63), "the last bit of the field at 8 is set"),
        ("padding", patched(head_of(one, plain), 23, b"\x01"), "the byte behind the tables isn't zero"),
    ]
    for clause, head, about in cases:
        yield broken(55, clause, store(head), f"The head of a section: {about}.", (54, 56))
    head = head_of([(1, 0, 4096)], plain)
    about = "The head of a section of logarithmic codes: an exponent of 1."
    yield broken(55, "log-exponent", store(head, LOG_RANS), about, (54, 56))


# --- Rule 56 -------------------------------------------------------------------------------------


def bounds() -> Iterator[Vector]:
    """Codes and exponents out of their bounds."""
    for e, code in ((0, 2**24), (0, -(2**24)), (1, 2**23), (7, 2**17), (24, 1), (24, -1), (23, 2), (0, 2**25 - 1)):
        for payload, bits, group in (("fixed", 26, None), ("packed", None, 2), ("rans", None, 2)):
            encoding = grid("absolute", -8, payload, bits, group)
            data = section(encoding, [[0, 0, 0], [1, code, 0]] * 2, [0, e] * 2)
            about = f"A code of {code} under an exponent of {e} in an absolute part ({payload})."
            yield broken(56, f"{payload}-{e}-{str(code).replace('-', 'minus-')}", part(encoding, data), about, (58,))
    fixed = grid("absolute", -8, "fixed", 2)
    for e in (25, 31, 32, 255):
        for code in (0, 1):
            data = section(fixed, [[0, 0, 0], [code, 0, 0], [0, 0, 0], [0, 0, 0]], [0, e, 0, 0])
            about = f"An exponent of {e} beside a code of {code}."
            yield broken(56, f"fixed-exponent-{e}-code-{code}", part(fixed, data), about)
        data = section(PACKED, CODES, [0, e, 0, 1])
        yield broken(56, f"packed-exponent-{e}", part(PACKED, data), f"An exponent of {e} in a group.")
    head = Models([(0, 0, 4096)], [[1] * 115 + [4096 - 120] + [1] * 5])
    for token in (116, 119, 120):
        row = [(head.classes[0], token), (head.classes[0], 0), (head.classes[0], 0)]
        bits = 5 + (token - 32) // 4 - 2
        group = streams([row * 2]) + (0).to_bytes(-(-2 * bits // 8), "little")
        data = integers.assembled([group, group], head.head())
        about = f"The token {token}, which stands for no code."
        yield broken(56, f"rans-token-{token}", part(RANS, data), about, (58,))


def packed() -> Iterator[Vector]:
    """Groups of the payload `packed`."""
    groups = [packed_group(CODES[:2], EXPONENTS[:2]), packed_group([[0, 0, 0], [70000, 7, -8]], [0, 1])]
    # Two exponents, two widths, 2 bytes of codes of 3 bits, 3 bytes of codes of 7 bits.
    assert groups[0] == bytes([0, 3, 3, 7]) + integers.twos(CODES[0], 3) + integers.twos(CODES[1], 7)

    def with_first(group: bytes) -> Store:
        return part(PACKED, integers.assembled([group, groups[1]]))

    wide = packed_group(CODES[:2], [0, 3], [4, 7])
    zeros = packed_group([[0, 0, 0], CODES[1]], [0, 3], [1, 7])
    minus = packed_group([[-1, 0, -1], CODES[1]], [0, 3], [2, 7])
    for clause, group, about in (
        ("width-4", wide, "a width of 4 bits where 3 do"),
        ("width-8", packed_group(CODES[:2], [0, 3], [3, 8]), "a width of 8 bits where 7 do"),
        ("width-2", minus, "a width of 2 bits for codes of 0 and -1"),
        ("width-1", zeros, "a width of 1 bit for zeros"),
        ("width-26", packed_group(CODES[:2], [0, 3], [3, 26]), "a width of 26 bits where 7 do"),
        ("width-27", packed_group(CODES[:2], [0, 3], [3, 27]), "a width of 27 bits"),
        ("width-255", packed_group(CODES[:2], [0, 3], [3, 255]), "a width of 255 bits"),
        ("long", groups[0] + bytes(1), "a byte too many"),
        ("short", groups[0][:-1], "a byte is missing"),
        ("rows", groups[0][:4], "rows are missing"),
        ("widths", groups[0][:3], "a width is missing"),
        ("exponents", groups[0][:1], "an exponent is missing"),
        ("empty", b"", "no bytes at all"),
    ):
        yield broken(56, f"packed-{clause}", with_first(group), f"A group of two rows: {about}.", (26,))
    for e in (1, 24):
        second = packed_group(CODES[2:], [e, 1])
        store = part(PACKED, integers.assembled([groups[0], second]))
        yield broken(56, f"packed-zeros-{e}", store, f"A row of zeros with an exponent of {e}.")


def rans() -> Iterator[Vector]:
    """Groups of the payload `rans`."""
    codes = [[1000, -2000, 3], [40, 0, -41], [0, 1, -1], [7, 70, -800]]
    made = integers.models_of(codes, [0, 1, 0, 1], [0, 1, 0, 1])
    groups = [rans_group(made, codes[k : k + 2], [0, 1], [0, 1]) for k in (0, 2)]
    # Extra bits: 1000 and -2000 have 8 and 9, 40 and -41 have 4 each.
    extra = 4

    def with_first(group: bytes, models: Models = made) -> Store:
        return part(RANS, integers.assembled([group, groups[1]], models.head()))

    words = len(groups[0]) - 32 - extra
    assert words % 2 == 0
    state = struct.Struct("<I").pack
    first = struct.unpack_from("<I", groups[0])[0]
    for clause, group, about in (
        ("empty", b"", "no bytes at all"),
        ("states", groups[0][:31], "seven states and three bytes"),
        ("words", groups[0][:32], "states alone"),
        ("state-least", patched(groups[0], 28, state(LEAST - 1)), "a state of 65535"),
        ("state-zero", patched(groups[0], 28, state(0)), "a state of 0"),
        ("state-end", patched(groups[0], 28, state(LEAST + 1)), "a state of 65537 after the last symbol"),
        ("state-greatest", patched(groups[0], 28, state(2**32 - 1)), "a state of 2^32 - 1 after the last symbol"),
        ("state-first", patched(groups[0], 0, state(first ^ 1 << 20)), "another state of lane 0"),
        ("extra-long", groups[0] + bytes(1), "a byte too many"),
        ("extra-short", groups[0][:-1], "a byte is missing"),
        ("extra-none", groups[0][:-extra], "no extra bits"),
    ):
        # A group of other symbols may have other kinds of rows, or codes that are too great.
        yield broken(56, f"rans-{clause}", with_first(group), f"An entropy-coded group: {about}.", (26, 48))
    # A certain symbol leaves a state as it is, so that one below 65536 would stay as well hidden.
    group = struct.pack("<8I", *[LEAST] * 6, LEAST, LEAST)
    for clause, states, about in (
        ("rest-greater", [LEAST] * 7 + [LEAST + 4096], "a lane without symbols has another state than 65536"),
        ("rest-less", [4096] + [LEAST] * 7, "a state of 4096, which certain symbols leave alone"),
    ):
        spoilt = struct.pack("<8I", *states)
        store = part(RANS, integers.assembled([spoilt, group], CERTAIN.head()))
        yield broken(56, f"rans-{clause}", store, f"An entropy-coded group: {about}.")
    # Frequency 1 at the place 4096 mod 4096: from 4096 + start it gets to 1, and with a word of 0 to 65536.
    half = Models([(0, 0, 4096)], [[1, 4095]])
    hidden = struct.pack("<8I", 4096, *[LEAST] * 7) + bytes(2)
    single_value = grid("absolute", -8, "rans", None, 1)
    store = part(single_value, integers.assembled([hidden], half.head()), 1, 1)
    yield broken(56, "rans-state-below", store, "A state of 4096 that a word brings to 65536.")
    store = part(RANS, integers.assembled([struct.pack("<8I", *[LEAST] * 8) + b"\0\0", group], CERTAIN.head()))
    yield broken(56, "rans-word-unread", store, "An entropy-coded group: a word that no symbol takes.")


# --- Rules 48 and 28 -----------------------------------------------------------------------------


def padding() -> Iterator[Vector]:
    """Rule 48."""
    fixed = grid("absolute", -8, "fixed", 7)
    data = section(fixed, CODES, EXPONENTS)
    for clause, at, mask in (("first", 3, 0x20), ("last-row", 15, 0x80)):
        about = "Codes of 7 bits: a bit beyond the last one of a row is set."
        yield broken(48, f"grid-fixed-{clause}", part(fixed, patched(data, at, bytes([data[at] | mask]))), about)
    data = section(PACKED, CODES, EXPONENTS)
    # Behind the directory two exponents and two widths, then a row of 9 bits.
    at = 16 + 4 + 1
    for clause, mask in (("first", 0x02), ("last", 0x80)):
        store = part(PACKED, patched(data, at, bytes([data[at] | mask])))
        yield broken(48, f"grid-packed-{clause}", store, "A packed row of 9 bits: a bit beyond them is set.")
    codes = [[100, 0, -100], [0, 0, 0], [0, 0, 0], [50, 0, 0]]
    made = integers.models_of(codes, [0] * 4, [0] * 4)
    data = section(RANS, codes, models=made)
    # The last group has 4 extra bits, those of 50.
    assert integers.token_of(50)[2] == 4
    for clause, mask in (("first", 0x10), ("last", 0x80)):
        store = part(RANS, patched(data, -1, bytes([data[-1] | mask])))
        yield broken(48, f"grid-rans-{clause}", store, "An entropy-coded group: a bit beyond the extra bits is set.")
    log = encodings.log(12, LOG["base"], LOG["shift"], "absolute", "rans", 2)
    data = section(log, [[0], [0], [0], [50]])
    about = "Entropy-coded logarithmic codes: a bit beyond the extra bits is set."
    yield broken(48, "log-rans", part(log, patched(data, -1, bytes([data[-1] | 0x10]))), about)


def slots() -> Iterator[Vector]:
    """Rule 28: what stands in the place of an exception."""

    def excepted(encoding: Json, codes: Rows, exponents: Sequence[int]) -> Store:
        log = encoding["name"] == "log"
        name, width = ("state", 1) if log else ("weight", 3)
        table_schema = schema("odd", "item", 4, 3, column("weight", "float32", [3]), column("state", "float32", []))

        def content(segment: Segment) -> None:
            table = Table(segment, table_id(table_schema), 4)
            data = section(encoding, codes, exponents)
            main = table.part(name, table.span(0, 3), (0, width), encoding, data)
            exact = np.ones((1, width), "<f4").tobytes()
            table.part(name, table.span(1, 1), (0, width), FLOAT, exact, exceptions_of=main)

        return one_small(content=content, tables=[table_schema])

    fixed = grid("absolute", -8, "fixed", 7)
    for clause, encoding, row, e, about in (
        ("fixed-code", fixed, [0, 0, 1], 0, "a code of 1"),
        ("fixed-exponent", fixed, [0, 0, 0], 1, "an exponent of 1 in front of zeros"),
        ("packed", PACKED, [0, -1, 0], 0, "a code of -1"),
        ("rans", RANS, [4, 0, 0], 0, "a code of 4"),
        ("log-rans", LOG_RANS, [1], 0, "a logarithmic code of 1"),
    ):
        codes = [[1] * len(row), row, [2] * len(row), [3] * len(row)]
        store = excepted(encoding, codes, [0, e, 0, 0])
        yield broken(28, f"slots-grid-{clause}", store, f"The slot of an exception isn't zero: {about}.")


def vectors() -> Iterator[Vector]:
    """All vectors of this module."""
    yield from directories()
    yield from models()
    yield from bounds()
    yield from packed()
    yield from rans()
    yield from padding()
    yield from slots()
