"""Invalid vectors about the bytes of rows: slots of exceptions, padding, parameters (rules 28, 48 and 49)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from vectors import encodings, rows
from vectors.cases import FLOAT, Vector, broken, one_small, table_id
from vectors.container import Store, column, schema
from vectors.encodings import Json
from vectors.layout import Segment, Table
from vectors.parts import COUNT, KINDS, LOG, WIDTH, shared_zeros, single, zeros

NAN, INFINITY = float("nan"), float("inf")


def slots() -> Iterator[Vector]:
    """Rule 28: what the main part has of row 1, the exception, isn't zero."""

    def excepted(encoding: Json, at: int, value: int, exception: Json = FLOAT) -> Store:
        log = encoding["name"] == "log"
        width, name = (1, "state") if log else (WIDTH, "weight")
        columns = [column("weight", "float32", [WIDTH]), column("state", "float32", [])]
        table_schema = schema("slots", "item", COUNT, WIDTH, *columns)
        data = bytearray(zeros(encoding, COUNT, width))
        data[at] |= value

        def content(segment: Segment) -> None:
            table = Table(segment, table_id(table_schema), COUNT)
            span, row = table.span(0, COUNT - 1), table.span(1, 1)
            shared = shared_zeros(encoding)
            main = table.part(name, span, (0, width), encoding, bytes(data), codebooks=shared)
            table.part(name, row, (0, width), exception, zeros(exception, 1, width), exceptions_of=main)

        return one_small(content=content, tables=[table_schema])

    # Row bytes: cast 6, head 16, packed 2 + 4, biasless 2 + 2, codebook 16 + 2, blocks 1; log 12 bits.
    for clause, kind, at, value, about in (
        ("cast", "cast", 6 + 5, 0x80, "-0.0 in a part of bfloat16"),
        ("head-scale", "head", 16 + 1, 0x04, "a scale in front of codes of zero"),
        ("head-code", "head", 16 + 4, 0x01, "a code behind a scale and a bias of zero"),
        ("packed-code", "packed", 6, 0x01, "the first code"),
        ("packed-bias", "packed", 6 + 5, 0x80, "a bias of -0.0"),
        ("biasless-scale", "biasless", 4 + 3, 0x80, "a scale of -0.0"),
        ("codebook-number", "codebook", 18 + 15, 0x80, "the last number of its codebook is -0.0"),
        ("codebook-code", "codebook", 18 + 16, 0x08, "the second code"),
        ("blocks-code", "blocks", 1, 0x10, "the last code"),
        # Two rows of 12 bits take 3 bytes; the middle one holds the upper bits of row 0, too.
        ("log-lowest-bit", "log", 1, 0x10, "the lowest bit of its code, in a byte that it shares with row 0"),
        ("log-highest-bit", "log", 2, 0x80, "the highest bit of its code"),
    ):
        store = excepted(KINDS[kind], at, value)
        yield broken(28, f"slots-{clause}", store, f"The slot of an exception isn't zero: {about}.")
    store = excepted(encodings.log(8, 1, 23), 1, 0x01)
    yield broken(28, "slots-log-8-bits", store, "The slot of an exception isn't zero: a logarithmic code of 8 bits.")
    for kind in ("cast", "codebook"):
        store = excepted(KINDS["tail"], 0, 0, KINDS[kind])
        yield broken(28, f"main-tail-{kind}", store, f"An exception part of the kind {kind}.")
    yield broken(28, "main-log-log", excepted(LOG, 0, 0, LOG), "An exception part of the kind log.")
    store = excepted(KINDS["raw"], 0, 0)
    yield broken(28, "main-raw", store, "An exception part of a raw part whose row is zero.", (29,))


def tails() -> Iterator[Vector]:
    """Rules 48 and 49 for the layout `tail`."""

    def store(bits: int, dim: int, data: bytes) -> Store:
        table_schema = schema("rowwise", "item", 2, dim)

        def content(segment: Segment) -> None:
            table = Table(segment, table_id(table_schema), 2)
            encoding = rows.rowwise_encoding(bits)
            table.part("weight", table.span(0, 1), (0, dim), encoding, data)

        return one_small(content=content, tables=[table_schema])

    def data(bits: int, dim: int, scale: Sequence[float], bias: Sequence[float]) -> bytearray:
        codes = np.arange(2 * dim).reshape(2, dim) % 2**bits
        return bytearray(rows.fused(codes, scale, bias, bits))

    for bits, dim, byte, mask in ((4, 3, 1, 0x10), (4, 1, 0, 0x80), (2, 5, 1, 0x04), (2, 7, 1, 0xC0)):
        spoilt = data(bits, dim, [1, 1], [0, 0])
        # The second row: the first byte of its padding.
        spoilt[len(spoilt) // 2 + byte] |= mask
        about = f"{bits} bits, {dim} elements: a bit beyond the last code is set."
        yield broken(48, f"{bits}-bits-dim-{dim}", store(bits, dim, bytes(spoilt)), about)
    nan, infinity = float("nan"), float("inf")
    for bits, scale, bias in (
        (8, nan, 0.0),
        (8, infinity, 0.0),
        (8, 1.0, nan),
        (8, 0.0, -infinity),
        (4, infinity, 0.0),
        (4, 1.0, nan),
        (2, nan, 0.0),
        (2, 1.0, -infinity),
    ):
        store_ = store(bits, 3, bytes(data(bits, 3, [1, scale], [0, bias])))
        which = f"scale-{scale}" if not np.isfinite(scale) else f"bias-{bias}"
        about = f"{bits} bits: {which.replace('-', ' ', 1)}."
        yield broken(49, f"{bits}-bits-{which.replace('--', '-minus-')}", store_, about)


def spoilt(encoding: Json, at: int, value: int, count: int = COUNT) -> Store:
    """A part of zeros of which one byte isn't."""
    data = bytearray(zeros(encoding, count, 1 if encoding["name"] == "log" else WIDTH))
    data[at] |= value
    return single(encoding, bytes(data), codebooks=shared_zeros(encoding, count), count=count)


def padding() -> Iterator[Vector]:
    """Rule 48."""
    for bits in (2, 3, 4, 5, 6, 7):
        encoding = encodings.rowwise(bits, "packed", "float16", None)
        used = 3 * bits
        # The second row: the first bit beyond its codes.
        at = -(-used // 8) + 2 + used // 8
        store = spoilt(encoding, at, 1 << used % 8)
        about = f"Packed rows of {bits} bits: the bit beyond the last code is set."
        yield broken(48, f"packed-{bits}-bits", store, about)
    for clause, bits, at, value, about in (
        ("head-4-bits", 4, 16 + 5, 0x10, "the bit beyond the last code is set"),
        ("head-2-bits", 2, 16 + 4, 0x80, "the last bit of the codes' byte is set"),
        ("head-first", 8, 16 + 7, 0x01, "the first byte that fills the row up isn't zero"),
        ("head-last", 8, 63, 0x80, "the last byte of the last row isn't zero"),
    ):
        store = spoilt(encodings.rowwise(bits, "head"), at, value)
        yield broken(48, clause, store, f"Rows with parameters in front: {about}.")
    for clause, encoding, at, value in (
        ("codebook", KINDS["codebook"], 18 + 17, 0x02),
        ("codebook-last", KINDS["codebook"], 18 + 17, 0x80),
        ("blocks", KINDS["blocks"], 3, 0x40),
    ):
        about = "A row of places in a codebook: a bit beyond the last code is set."
        yield broken(48, clause, spoilt(encoding, at, value), about)
    for clause, count, at, value in (("log", 5, 7, 0x10), ("log-last", 1, 1, 0x80)):
        store = spoilt(LOG, at, value, count)
        about = f"{count} logarithmic codes of 12 bits: a bit beyond the last one is set."
        yield broken(48, clause, store, about)


def parameters() -> Iterator[Vector]:
    """Rule 49."""
    width = 11
    codes = np.arange(2 * width).reshape(2, width) % 4

    def store(encoding: Json, scale: Sequence[float], bias: Sequence[float] | None) -> Store:
        """The second row has other parameters than the first, in its last group."""
        groups = 1 if encoding["group"] is None else 2
        scales = np.ones((2, groups))
        scales[1, -1] = scale[0]
        biases = None if bias is None else np.zeros((2, groups))
        if biases is not None and bias is not None:
            biases[1, -1] = bias[0]
        return single(encoding, encodings.rows(encoding, codes, scales, biases), count=2, width=width)

    cases = [("head", encodings.rowwise(bits, "head")) for bits in (8, 4, 2)]
    for scale, bias in encodings.PARAMETERS:
        for group in (None, 8):
            name = f"packed-{scale}" + ("" if bias else "-biasless") + ("-groups" if group else "")
            cases.append((name, encodings.rowwise(3, "packed", scale, bias, group)))
    for number, (name, encoding) in enumerate(cases):
        name = f"{name}-{encoding['bits']}-bits" if name == "head" else name
        bad = (NAN, INFINITY, -INFINITY)[number % 3]
        none = None if encoding["bias"] is None else [0.0]
        yield broken(49, f"{name}-scale", store(encoding, [bad], none), f"A scale of {bad}: {name}.")
        if none is not None:
            bad = (NAN, INFINITY, -INFINITY)[(number + 1) % 3]
            yield broken(49, f"{name}-bias", store(encoding, [1.0], [bad]), f"A bias of {bad}: {name}.")

    places = np.zeros((COUNT, WIDTH), int)
    for number, dtype in enumerate(("float32", "float16")):
        for clause, row, place in (("first", 0, 0), ("unused", COUNT - 1, 7)):
            books = np.ones((COUNT, 8))
            books[row, place] = (NAN, -INFINITY)[number]
            encoding = encodings.codebook(3, dtype)
            store_ = single(encoding, encodings.coded(places, 3, books, dtype))
            about = f"A number of a row's codebook is {books[row, place]}: {dtype}, place {place}."
            yield broken(49, f"codebook-{dtype}-{clause}", store_, about)
        for clause, block, place in (("first", 0, 0), ("unused", 1, 3)):
            books = np.ones((2, 4))
            books[block, place] = (INFINITY, NAN)[number]
            shared = encodings.numbers(books, dtype)
            store_ = single(encodings.codebook(2, dtype, 3), encodings.coded(places, 2), codebooks=shared)
            about = f"A number of a shared codebook is {books[block, place]}: {dtype}, place {place}."
            yield broken(49, f"blocks-{dtype}-{clause}", store_, about)


def vectors() -> Iterator[Vector]:
    """All vectors of this module."""
    yield from slots()
    yield from tails()
    yield from padding()
    yield from parameters()
