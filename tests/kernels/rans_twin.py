"""The payload `rans` as the specification says it, in whole numbers, symbol by symbol, with no tables."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import NamedTuple


class Models(NamedTuple):
    """Row kinds as (exponent, class, frequency), and the frequencies of each class."""

    kinds: list[tuple[int, int, int]]
    classes: list[list[int]]


class Group(NamedTuple):
    """What a group says: the kind of each row, and its codes, not yet shifted."""

    kinds: list[int]
    codes: list[list[int]]


class Damaged(Exception):  # noqa: N818
    """The bytes break a rule."""


def need(sound: bool) -> None:
    if not sound:
        raise Damaged


def models_of(head: bytes, exponents: int) -> Models:
    """The models that a head says; raises `Damaged`."""
    need(len(head) >= 16)
    n_kinds, n_classes, length, zero = struct.unpack("<HHIQ", head[:16])
    need(1 <= n_kinds <= 1024 and 1 <= n_classes <= 256 and zero == 0)
    need(length % 8 == 0 and len(head) == 16 + length)
    rest = head[16:]

    def take(n: int) -> bytes:
        nonlocal rest
        need(len(rest) >= n)
        piece, rest = rest[:n], rest[n:]
        return piece

    kinds = [struct.unpack("<BBH", take(4)) for _ in range(n_kinds)]
    need(all(a[:2] < b[:2] for a, b in pairwise(kinds)))
    need({kind[1] for kind in kinds} == set(range(n_classes)))
    need(all(kind[0] <= exponents and kind[2] >= 1 for kind in kinds) and sum(kind[2] for kind in kinds) == 4096)
    classes = []
    for _ in range(n_classes):
        count = take(1)[0]
        need(1 <= count <= 124)
        classes.append(list(struct.unpack(f"<{count}H", take(2 * count))))
        need(sum(classes[-1]) == 4096 and classes[-1][-1] > 0)
    need(len(rest) < 8 and not any(rest))
    return Models(kinds, classes)


def frequencies_of(models: Models) -> list[int]:
    return [kind[2] for kind in models.kinds]


def decode(models: Models, data: bytes, rows: int, width: int, most_bits: int) -> Group:
    """What a group says; raises `Damaged`."""
    need(len(data) >= 32)
    states = list(struct.unpack("<8I", data[:32]))
    need(all(x >= 65536 for x in states))
    at = 32

    def symbol(index: int, frequencies: list[int]) -> int:
        nonlocal at
        x = states[index % 8]
        slot, start, s = x & 4095, 0, 0
        while start + frequencies[s] <= slot:
            start, s = start + frequencies[s], s + 1
        x = frequencies[s] * (x >> 12) + slot - start
        if x < 65536:
            need(at + 2 <= len(data))
            x = x << 16 | int.from_bytes(data[at : at + 2], "little")
            at += 2
        states[index % 8] = x
        return s

    one = len(models.kinds) == 1
    kinds = [0 if one else symbol(row, frequencies_of(models)) for row in range(rows)]
    tokens = [symbol(i, models.classes[models.kinds[kinds[i // width]][1]]) for i in range(rows * width)]
    need(states == [65536] * 8)
    extra, bits = int.from_bytes(data[at:], "little"), 0
    codes = []
    for i, z in enumerate(tokens):
        if z >= 32:
            m = 5 + (z - 32) // 4
            low = extra & ((1 << (m - 2)) - 1)
            extra >>= m - 2
            bits += m - 2
            z = (4 + (z - 32) % 4) << (m - 2) | low
        codes.append(z // 2 if z % 2 == 0 else -(z + 1) // 2)
        need(abs(codes[-1]) < 1 << (most_bits - models.kinds[kinds[i // width]][0]))
    need(extra == 0 and len(data) - at == -(-bits // 8))
    return Group(kinds, [codes[row * width : (row + 1) * width] for row in range(rows)])


def encode(models: Models, group: Group) -> bytes:
    """The bytes of a group."""
    extra, bits = 0, 0
    tokens = []
    for code in (code for row in group.codes for code in row):
        z = 2 * code if code >= 0 else -2 * code - 1
        if z >= 32:
            m = z.bit_length() - 1
            extra |= (z & ((1 << (m - 2)) - 1)) << bits
            bits += m - 2
            z = 32 + 4 * (m - 5) + (z >> (m - 2) & 3)
        tokens.append(z)
    states, emitted = [65536] * 8, []
    width = len(group.codes[0])
    coded = [(i, models.classes[models.kinds[group.kinds[i // width]][1]], s) for i, s in enumerate(tokens)]
    if len(models.kinds) > 1:
        coded = [(row, frequencies_of(models), kind) for row, kind in enumerate(group.kinds)] + coded
    for i, frequencies, s in reversed(coded):
        x, f = states[i % 8], frequencies[s]
        if x >= f << 20:
            emitted.append(x & 0xFFFF)
            x >>= 16
        states[i % 8] = ((x // f) << 12) + x % f + sum(frequencies[:s])
    words = b"".join(word.to_bytes(2, "little") for word in reversed(emitted))
    return struct.pack("<8I", *states) + words + extra.to_bytes(-(-bits // 8), "little")
