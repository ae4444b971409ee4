"""Valid vectors about the encodings that aren't row-wise, about exceptions of all encodings, and about schemes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from vectors import encodings, rows
from vectors.cases import (
    FLOAT,
    Values,
    Vector,
    both,
    expected,
    one,
    one_small,
    put,
    sound,
    table_id,
    two_small,
    values,
)
from vectors.container import column, schema
from vectors.layout import Json, Segment, Table
from vectors.valid_rowwise import columns, cycle, spread

HALVES = {
    "float16": "007e 007c 00fc 0080 0100 ff83 ff7b 003c 5535",
    "bfloat16": "c07f 807f 80ff 0080 0100 7f80 7f7f 803f ab3e",
}
# Numbers in no order, a pair of equal ones and zeros of both signs among them; one is denormal in half precision.
BOOK = [0.5, -3.25, 0.0, 65504.0, -0.0, 0.5, 1e-7, 1 / 3, -1e-3, 7.0, 8.0, -9.5, 100.0, 0.1, 2.0, -65504.0]


def casts() -> Vector:
    """Elements in half precision and as bfloat16: infinities, denormals, a quiet NaN."""
    parts = []
    for dtype, text in HALVES.items():
        data = bytes.fromhex(text)
        numbers = [data[k : k + 2] for k in range(0, len(data), 2)]
        wide = [encodings.stored(number, dtype) for number in numbers]
        parts.append((dtype, encodings.cast(dtype), data, values(np.array(wide, "f4").reshape(3, 3))))
    about = "Columns cast to float16 and to bfloat16: a NaN, infinities, -0.0, denormals, the greatest."
    return columns("cast", about, 3, 3, parts)


def books(count: int, bits: int) -> np.ndarray:
    """Codebooks of shape [count, 2^bits], of which no two are equal."""
    return cycle(BOOK[:13], (count, 2**bits))


def own_codebooks(bits: int) -> Vector:
    """Each row has its own codebook."""
    count, width = 5, 11
    codes, numbers = spread(count, width, bits), books(count, bits)
    parts = [
        (
            dtype,
            encodings.codebook(bits, dtype),
            encodings.coded(codes, bits, numbers, dtype),
            values(encodings.looked_up(codes, numbers, dtype)),
        )
        for dtype in ("float32", "float16")
    ]
    about = f"A codebook of {2**bits} numbers in front of each row, as float32 and as float16."
    return columns(f"codebook-rows-{bits}-bits", about, count, width, parts)


def shared_codebooks(bits: int) -> Vector:
    """Blocks of rows share codebooks; of the blocks of 2 the last is short."""
    count, width = 6 if bits == 3 else 5, 11
    codes = spread(count, width, bits)
    blocks = [("float32", 2), ("float16", 2), ("float32", 3), ("float16", count), ("float16", 1048576)]
    names = ["weight", *(f"{dtype} {block}" for dtype, block in blocks[1:])]
    of_blocks = [books(-(-count // block), bits) for _, block in blocks]
    table_schema = schema("shared", "item", count, width, *(column(n, "float32", [width]) for n in names))

    def content(segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), count)
        span, data = table.span(0, count - 1), encodings.coded(codes, bits)
        for name, (dtype, block), numbers in zip(names, blocks, of_blocks, strict=True):
            shared = encodings.numbers(numbers, dtype)
            encoding = encodings.codebook(bits, dtype, block)
            table.part(name, span, (0, width), encoding, data, codebooks=shared)

    found = {
        name: values(encodings.looked_up(codes, numbers[np.arange(count) // block], dtype))
        for name, (dtype, block), numbers in zip(names, blocks, of_blocks, strict=True)
    }
    about = f"Codebooks of {2**bits} numbers shared by blocks of rows, of which some are short."
    store = one_small(content=content, tables=[table_schema])
    return sound(f"codebook-blocks-{bits}-bits", store, about, {"item": expected(found)})


def keyed_codebooks() -> Vector:
    """Blocks are counted along the row set, whatever the row ids are."""
    keys, codes, numbers = [-7, 0, 5, 12, 4000], spread(5, 3, 2), books(3, 2)
    encoding = encodings.codebook(2, "float16", 2)
    table_schema = schema("keyed books", "visitor", None, 3)

    def content(segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), None)
        index = table.index("raw", keys, rows.raw(keys))
        shared = encodings.numbers(numbers, "float16")
        table.part("weight", index, (0, 3), encoding, encodings.coded(codes, 2), codebooks=shared)

    result = encodings.looked_up(codes, numbers[np.arange(5) // 2], "float16")
    about = "A keyed table whose rows share codebooks by their places in the row set."
    store = one_small(content=content, tables=[table_schema])
    found = {"visitor": expected({"weight": values(result)}, keys)}
    return sound("codebook-blocks-keyed", store, about, found)


# By bits: base and shift of the codes; the last pair of each has the least or the greatest top of all.
LOGS = {
    8: [(0x30000000, 20), (1, 23), (0x7F800000 - 1 - (254 << 18), 18)],
    12: [(0x2F800000, 15), (1, 18), (0x7F800000 - 1 - (4094 << 17), 17)],
    16: [(0x2F000000, 12), (1, 0), (0x7F800000 - 1 - (65534 << 14), 14)],
}


def logs(name: str, bits: int, codes: Sequence[int]) -> Vector:
    """Columns of one value per row in logarithmic codes."""
    kinds = [encodings.log(bits, *pair) for pair in LOGS[bits]]
    names = [f"state {k}" for k in range(len(kinds))]
    states = [column(each, "float32", []) for each in names]
    table_schema = schema("logs", "item", len(codes), 1, column("weight", "float32", [1]), *states)

    def content(segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), len(codes))
        span = table.span(0, len(codes) - 1)
        for each, encoding in zip(names, kinds, strict=True):
            table.part(each, span, (0, 1), encoding, encodings.bit_string(codes, bits))

    found = {each: values(encodings.log_values(codes, kind)) for each, kind in zip(names, kinds, strict=True)}
    found = {"weight": values(np.zeros((len(codes), 1), "f4")), **found}
    about = f"{len(codes)} values in logarithmic codes of {bits} bits, with least and greatest patterns."
    store = one_small(content=content, tables=[table_schema])
    return sound(name, store, about, {"item": expected(found)})


def log_delta() -> Vector:
    """A delta of 12-bit codes for rows that aren't neighbours."""
    encoding, ids = encodings.log(12, *LOGS[12][0]), [1, 3, 4]
    table_schema = schema("logs", "item", 5, 1, *(column(n, "float32", s) for n, s in (("weight", [1]), ("sum", []))))

    def written(ids: Sequence[int], codes: Sequence[int], segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), 5)
        index = table.span(0, 4) if len(ids) == 5 else table.index("raw", ids, rows.raw(ids))
        table.part("sum", index, (0, 1), encoding, encodings.bit_string(codes, 12))

    before = [10, 20, 30, 40, 50]
    store = two_small(
        lambda s: written(ids, [4095, 0, 7], s),
        [table_schema],
        before=lambda s: written(range(5), before, s),
    )
    result = encodings.log_values([10, 4095, 30, 0, 7], encoding)
    found = {"weight": values(np.zeros((5, 1), "f4")), "sum": values(result)}
    about = "A delta gives three rows of a column of 12-bit logarithmic codes anew."
    return sound("log-delta", store, about, {"item": expected(found)})


def two_exceptions() -> Vector:
    """A row-wise part with an exception part, beside another of other rows."""
    bits, dim, count = 4, 5, 8
    codes = np.arange(count * dim).reshape(count, dim) % 16
    scale, bias = np.full(count, 0.3), np.linspace(-1, 1, count)
    odd = [2, 5]
    codes[odd], scale[odd], bias[odd] = 0, 0, 0
    exact = np.array([[np.nan, 1, 2, 3, 4], [-np.inf, 1e30, -0.0, 1e-42, 7]], "<f4")
    result = rows.decoded(codes, scale, bias, bits)
    result[odd] = exact
    table_schema = schema("rowwise", "item", count, dim)

    def content(segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), count)
        encoding = rows.rowwise_encoding(bits)
        low, high = table.span(0, 3), table.span(4, 7)
        for row_set, part in ((low, slice(0, 4)), (high, slice(4, 8))):
            data = rows.fused(codes[part], scale[part], bias[part], bits)
            table.part("weight", row_set, (0, dim), encoding, data)
        for number, row in enumerate(odd):
            one_row = table.index("packed", [row], rows.packed([row]))
            data = exact[number].tobytes()
            table.part("weight", one_row, (0, dim), FLOAT, data, exceptions_of=number)

    store = one(content=content, tables=[table_schema])
    about = "Rows that 4-bit codes can't hold (NaN, infinity) in exception parts of two main parts."
    return sound("exceptions", store, about, {"item": expected({"weight": values(result)})})


def exceptions() -> Vector:
    """An exception part under every encoding."""
    count, width, odd = 7, 5, [1, 4, 6]
    nan, infinity = float("nan"), float("inf")
    exact = np.array([[nan, 1, 2, 3, 4], [-infinity, 1e30, -0.0, 1e-42, 7], [infinity] * 5], "<f4")
    found: dict[str, Values] = {}
    parts: list[tuple[str, Json, bytes, bytes | None]] = []

    def add(name: str, encoding: Json, data: bytes, result: np.ndarray, shared: bytes | None = None) -> None:
        raw, size = bytearray(data), len(data) // count
        for row in odd if encoding["name"] != "log" else ():
            raw[row * size : row * size + size] = bytes(size)
        result[odd] = exact[:, : result[0].size].reshape(result[odd].shape)
        found[name] = values(result)
        parts.append((name, encoding, bytes(raw), shared))

    for name, encoding in (
        ("weight", encodings.rowwise(8, "tail")),
        ("head", encodings.rowwise(4, "head")),
        ("packed", encodings.rowwise(5, "packed", "bfloat16", "float32")),
        ("biasless", encodings.rowwise(3, "packed", "float16", None, 8)),
    ):
        codes, scale = spread(count, width, encoding["bits"]), cycle([0.5, 0.25], (count,))
        bias = None if encoding["bias"] is None else cycle([-1.0, 3.0], (count,))
        data = encodings.rows(encoding, codes, scale, bias)
        add(name, encoding, data, encodings.values(encoding, codes, scale, bias))
    codes, numbers = spread(count, width, 3), books(count, 3)
    own = encodings.coded(codes, 3, numbers, "float16")
    add("own book", encodings.codebook(3, "float16"), own, encodings.looked_up(codes, numbers, "float16"))
    shared = encodings.looked_up(codes, numbers[np.arange(count) // 4], "float32")
    book = encodings.numbers(numbers[:2], "float32")
    add("shared book", encodings.codebook(3, "float32", 4), encodings.coded(codes, 3), shared, book)
    halves = cycle(BOOK, (count, width))
    data = encodings.numbers(halves, "bfloat16")
    add("cast", encodings.cast("bfloat16"), data, encodings.widened(halves, "bfloat16"))
    log = encodings.log(12, *LOGS[12][0])
    codes_of_rows = [4095, 0, 1, 4095, 0, 4095, 0]
    add("log", log, encodings.bit_string(codes_of_rows, 12), encodings.log_values(codes_of_rows, log))

    widths = {name: [] if name == "log" else [width] for name in found}
    table_schema = schema(
        "exceptions", "item", count, width, *(column(name, "float32", shape) for name, shape in widths.items())
    )

    def content(segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), count)
        span, some = table.span(0, count - 1), table.index("raw", odd, rows.raw(odd))
        for name, encoding, data, shared in parts:
            n = 1 if name == "log" else width
            main = table.part(name, span, (0, n), encoding, data, codebooks=shared)
            table.part(name, some, (0, n), FLOAT, exact[:, :n].tobytes(), exceptions_of=main)

    about = "Exception parts of main parts of every encoding."
    store = one_small(content=content, tables=[table_schema])
    return sound("exceptions-encodings", store, about, {"item": expected(found)})


def schemes() -> Vector:
    """Each method of each encoding, and parameters at the ends of their ranges."""
    tail, head = encodings.rowwise(8, "tail"), encodings.rowwise(4, "head")
    packed = encodings.rowwise(3, "packed", "float16", "float16", 8)
    biasless = encodings.rowwise(6, "packed", "float32", None)
    cases: list[tuple[Json, Json]] = [
        (encodings.cast("float16"), {"bound": 1e308, "mean_error": 0.25, "max_error": 0.25}),
        *((each, {"method": "symmetric", "bound": 0}) for each in (tail, head, biasless)),
        *((each, {"method": "asymmetric", "max_error": 2**53 - 1}) for each in (tail, head, packed)),
        *((each, {"method": "adaptive", "num_bins": 1, "ratio": 5e-324}) for each in (tail, head, packed)),
        (packed, {"method": "adaptive", "num_bins": 65536, "ratio": 1}),
        *((each, {"method": "lsq", "starts": 1}) for each in (tail, head, packed)),
        (packed, {"method": "lsq", "starts": 65536, "num_bins": 25, "ratio": 1.0}),
        (encodings.codebook(2, "float16"), {"bound": 1e-300, "mean_error": 1e-3, "max_error": 1.5}),
    ]
    parts, made = [], []
    for number, (encoding, changes) in enumerate(cases):
        codes, ones = np.arange(6).reshape(2, 3) % 4, np.ones(2)
        if encoding["name"] == "cast":
            data, result = encodings.numbers(codes, "float16"), codes.astype("f4")
        elif encoding["name"] == "codebook":
            data = encodings.coded(codes, 2, books(2, 2), "float16")
            result = encodings.looked_up(codes, books(2, 2), "float16")
        else:
            bias = None if encoding["bias"] is None else ones
            data, result = encodings.rows(encoding, codes, ones, bias), encodings.values(encoding, codes, ones, bias)
        parts.append((f"c{number}", encoding, data, values(result)))
        made.append(encodings.scheme(encoding, **changes))
    about = "Schemes of each method under each encoding, with parameters at the ends of their ranges."
    return columns("schemes", about, 2, 3, parts, made)


def further_keys() -> Vector:
    """What a newer version may add to an encoding and to a scheme under a compat bit."""
    encoding = encodings.rowwise(8, "tail")
    table_schema = schema("newer", "item", 2, 3)
    codes = spread(2, 3, 8)

    def content(segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), 2)
        table.part("weight", table.span(0, 1), (0, 3), encoding, encodings.rows(encoding, codes, [1, 2], [0, 1]))

    part = ("tables", 0, "parts", 0)
    hook = both(put(*part, "scheme", "colour", "red"), put(*part, "encoding", "colour", "red"))
    result = encodings.values(encoding, codes, [1, 2], [0, 1])
    about = "An unknown compat bit, and further keys in an encoding and in a scheme."
    store = one_small({"toc": hook}, content, [table_schema], masks=(2, 0, 0))
    found = {"item": expected({"weight": values(result)})}
    return sound("compat-bit-encoding", store, about, found, notes=["unknown feature"])


def vectors() -> Iterator[Vector]:
    """All vectors of this module."""
    yield casts()
    for bits in (2, 3, 4):
        yield own_codebooks(bits)
        yield shared_codebooks(bits)
    yield keyed_codebooks()
    for bits in (8, 12, 16):
        top = 2**bits - 1
        yield logs(f"log-{bits}-bits", bits, [top, 0, 1, top - 1, top // 3])
    yield logs("log-12-bits-one-row", 12, [0xABC])
    yield logs("log-12-bits-even", 12, [0xABC, 0, 1, 0xFFF])
    yield log_delta()
    yield two_exceptions()
    yield exceptions()
    yield schemes()
    yield further_keys()
