"""Valid vectors about row-wise parts: each layout, with all bits and parameters that it has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from vectors import encodings, rows
from vectors.cases import (
    Values,
    Vector,
    expected,
    floats,
    one,
    one_small,
    sound,
    table_id,
    values,
    weights,
)
from vectors.container import column, schema
from vectors.layout import Json, Segment, Table

# Zeros of both signs, a negative scale, numbers that are denormal in half precision.
SCALES = [0.1, 1 / 3, 1e-6, 2.0**-14, 0.0, 123.4, -2.5, -0.0, 6e-8]
BIASES = [-0.7, 1e-7, 3.3, -0.0, 0.25, -4567.0, 1.0]

# A column's name, its ENCODING, the bytes of its part, and what they mean.
Coded = tuple[str, Json, bytes, Values]


def spread(count: int, width: int, bits: int) -> np.ndarray:
    """Codes of which the first row has the least and the second the greatest alone."""
    codes = (np.arange(count * width).reshape(count, width) * 37 + 11) % 2**bits
    codes[0], codes[1] = 0, 2**bits - 1
    return codes


def cycle(numbers: Sequence[float], shape: tuple[int, ...]) -> np.ndarray:
    """The numbers one after the other, as often as it takes."""
    return np.resize(np.array(numbers, np.float64), shape)


def coded(name: str, encoding: Json, count: int, width: int) -> Coded:
    """A part of row-wise rows with parameters of all kinds."""
    groups = 1 if encoding["group"] is None else -(-width // encoding["group"])
    codes = spread(count, width, encoding["bits"])
    scale, bias = cycle(SCALES, (count, groups)), cycle(BIASES, (count, groups))
    shift = None if encoding["bias"] is None else bias
    data = encodings.rows(encoding, codes, scale, shift)
    return name, encoding, data, values(encodings.values(encoding, codes, scale, shift))


def columns(
    name: str, about: str, count: int, width: int, parts: Sequence[Coded], schemes: Sequence[Json | None] = ()
) -> Vector:
    """A vector of one dense table with a column for each part; the first is the weight."""
    names = ["weight", *(part[0] for part in parts[1:])]
    table_schema = schema(name, "item", count, width, *(column(each, "float32", [width]) for each in names))

    def content(segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), count)
        span = table.span(0, count - 1)
        for number, (_, encoding, data, _) in enumerate(parts):
            scheme = schemes[number] if schemes else None
            table.part(names[number], span, (0, width), encoding, data, scheme=scheme)

    found = {each: part[3] for each, part in zip(names, parts, strict=True)}
    store = one_small(content=content, tables=[table_schema])
    return sound(name, store, about, {"item": expected(found)})


def rowwise(bits: int, dim: int) -> Vector:
    """Rows of the layout `tail` whose number of elements leaves padding in 4- and 2-bit codes."""
    count, top = 6, 2**bits - 1
    codes = (np.arange(count * dim).reshape(count, dim) * 37 + 11) % (top + 1)
    codes[0], codes[1] = 0, top
    scale = np.array([0.1, 1 / 3, 1e-6, 2.0**-14, 0.0, 123.4])
    bias = np.array([-0.7, 1e-7, 3.3, -0.0, 0.25, -4567.0])
    result = rows.decoded(codes, scale, bias, bits)
    if bits == 8:
        # The vector must tell two roundings from one: a fused multiply-add gives other values.
        once = codes * scale.astype("f4").astype("f8")[:, None] + bias.astype("f4")[:, None]
        assert (once.astype(np.float32) != result).any()
    table_schema = schema("rowwise", "item", count, dim)

    def content(segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), count)
        data = rows.fused(codes, scale, bias, bits)
        span = table.span(0, count - 1)
        table.part("weight", span, (0, dim), rows.rowwise_encoding(bits), data)

    store = one(content=content, tables=[table_schema])
    about = f"A row-wise table of {bits} bits and {dim} elements per row."
    tables = {"item": expected({"weight": values(result)})}
    return sound(f"rowwise-{bits}-bits-dim-{dim}", store, about, tables)


def head(bits: int, dim: int) -> Vector:
    """Rows of the layout `head`."""
    encoding = encodings.rowwise(bits, "head")
    part = coded("weight", encoding, 7, dim)
    about = f"Rows with scale and bias in front: {bits} bits, {dim} elements, {len(part[2]) // 7} bytes per row."
    return columns(f"rowwise-head-{bits}-bits-dim-{dim}", about, 7, dim, [part])


def packed(bits: int) -> Iterator[Vector]:
    """Rows of the layout `packed` under all parameters, without and with groups."""
    for name, width, group in (("", 11, None), ("-groups", 27, 8)):
        parts = [
            coded(f"{scale} {bias}", encodings.rowwise(bits, "packed", scale, bias, group), 6, width)
            for scale, bias in encodings.PARAMETERS
        ]
        cut = "without groups" if group is None else "in groups of 8, the last of 3"
        about = f"Packed rows of {bits} bits and {width} elements {cut}, under all kinds of parameters."
        yield columns(f"rowwise-packed-{bits}-bits{name}", about, 6, width, parts)


def group_sizes() -> Vector:
    """Groups of several sizes, those of a row and beyond among them."""
    sizes = (None, 8, 24, 64, 72, 1048576)
    parts = [coded(f"{size}", encodings.rowwise(3, "packed", "float16", "float16", size), 3, 72) for size in sizes]
    about = "Groups of 8, 24, 64, 72 and 1048576 elements in rows of 72."
    return columns("rowwise-packed-group-sizes", about, 3, 72, parts)


def overflow() -> Vector:
    """Finite parameters whose product isn't."""
    codes = np.array([[0, 1, 2, 3, 15]] * 2)
    biased = encodings.rowwise(4, "packed", "bfloat16", "float32")
    biasless = encodings.rowwise(4, "packed", "float32", None)
    scale, bias = [2.0**126, 2.0**127], [-1.0, 3e38]
    with np.errstate(over="ignore"):
        both = [
            encodings.values(biased, codes, scale, bias),
            encodings.values(biasless, codes, scale),
        ]
    assert all(np.isinf(each).any() for each in both)
    parts = [
        ("weight", biased, encodings.rows(biased, codes, scale, bias), values(both[0])),
        ("biasless", biasless, encodings.rows(biasless, codes, scale), values(both[1])),
    ]
    about = "Finite scales whose products with the codes overflow to infinity."
    return columns("rowwise-packed-overflow", about, 2, 5, parts)


def elements() -> Vector:
    """Groups are counted from the first element of the part, wherever it begins in the column."""
    count, first, width = 4, 5, 21
    _, encoding, data, _ = coded("weight", encodings.rowwise(5, "packed", "float32", "float32", 8), count, width)
    _, head_encoding, head_data, _ = coded("weight", encodings.rowwise(2, "head"), count, first)
    shape = (count, 3)
    result = np.concatenate(
        [
            encodings.values(head_encoding, spread(count, first, 2), cycle(SCALES, (4,)), cycle(BIASES, (4,))),
            encodings.values(encoding, spread(count, width, 5), cycle(SCALES, shape), cycle(BIASES, shape)),
        ],
        axis=1,
    )
    table_schema = schema("ranges", "item", count, first + width)

    def content(segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), count)
        span = table.span(0, count - 1)
        table.part("weight", span, (first, first + width), encoding, data)
        table.part("weight", span, (0, first), head_encoding, head_data)

    about = "A column in two parts of element ranges; the groups of the second begin at element 5."
    store = one_small(content=content, tables=[table_schema])
    return sound("rowwise-packed-elements", store, about, {"item": expected({"weight": values(result)})})


def mixed() -> Vector:
    """One column in parts of three encodings."""
    dim, codes = 3, np.arange(6).reshape(2, 3)
    table_schema = schema("mixed", "item", 6, dim)
    result = np.concatenate(
        [
            rows.decoded(codes * 40, [0.1, 0.2], [0, 1], 8),
            rows.decoded(codes % 4, [0.5, 0.25], [-1, 1], 2),
            weights(2),
        ]
    )

    def content(segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), 6)
        eight = rows.fused(codes * 40, [0.1, 0.2], [0, 1], 8)
        table.part("weight", table.span(0, 1), (0, dim), rows.rowwise_encoding(8), eight)
        two = rows.fused(codes % 4, [0.5, 0.25], [-1, 1], 2)
        table.part("weight", table.span(2, 3), (0, dim), rows.rowwise_encoding(2), two)
        floats(table, "weight", table.span(4, 5), weights(2))

    store = one(content=content, tables=[table_schema])
    about = "A column whose rows are spread over 8-bit, 2-bit and raw parts."
    return sound("mixed-encodings", store, about, {"item": expected({"weight": values(result)})})


def vectors() -> Iterator[Vector]:
    """All vectors of this module."""
    for bits, dim in ((8, 3), (4, 5), (4, 8), (2, 7), (2, 1)):
        yield rowwise(bits, dim)
    for bits, dim in ((8, 3), (8, 12), (4, 25), (4, 24), (2, 7), (2, 48), (2, 1)):
        yield head(bits, dim)
    for bits in range(2, 9):
        yield from packed(bits)
    yield group_sizes()
    yield overflow()
    yield elements()
    yield mixed()
