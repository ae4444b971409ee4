"""Valid vectors about what one version stores: data types, row indexes, dense state."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vectors import rows
from vectors.cases import (
    KEYS,
    USER,
    USER_VALUES,
    VISITOR,
    VISITOR_VALUES,
    A,
    Vector,
    expected,
    floats,
    one,
    sharded,
    sound,
    sums,
    table_id,
    user,
    values,
    visitor,
    weights,
)
from vectors.container import ITEM_SIZE, Store, column, schema
from vectors.layout import Json, Segment, Table

# Bit patterns that arithmetic would change: NaN payloads (quiet, signalling, negative), -0.0,
# denormals, infinities, the largest finite value.
SPECIALS = {
    "float64": "000000000000f87f 010000000000f07f deadbeef0000f8ff 0000000000000080"
    "0100000000000000 ffffffffffff0f80 000000000000f0ff ffffffffffffef7f",
    "float32": "0000c07f 0100807f efbeadff 00000080 01000000 ffff7f80 000080ff ffff7f7f",
    "float16": "007e 017c adfe 0080 0100 ff83 00fc ff7b",
    "bfloat16": "c07f 817f adff 0080 0100 7f80 80ff 7f7f",
    "float8_e4m3fn": "7f ff 80 01 87 00 7e fe",
    "float8_e5m2": "7d 7e ff 80 01 83 fc 7b",
}


def _bytes_of(dtype: str) -> bytes:
    """Eight elements at the edges of a data type."""
    if dtype in SPECIALS:
        return bytes.fromhex(SPECIALS[dtype])
    info = np.iinfo(dtype)
    edges = [0, 1, info.min, info.min + 1, info.max, info.max - 1, info.max // 3, info.max // 7]
    return np.array(edges, dtype).astype(np.dtype(dtype).newbyteorder("<")).tobytes()


def raw_types() -> Vector:
    """One table of 2 x 4 elements for each data type."""
    schemas = [schema(f"raw {dtype}", dtype, 2, 4, column("weight", dtype, [4])) for dtype in ITEM_SIZE]

    def content(segment: Segment) -> None:
        for dtype, table_schema in zip(ITEM_SIZE, schemas, strict=True):
            table = Table(segment, table_id(table_schema), 2)
            encoding = rows.raw_encoding(dtype)
            table.part("weight", table.span(0, 1), (0, 4), encoding, _bytes_of(dtype))

    tables = {t: expected({"weight": (t, [2, 4], _bytes_of(t))}) for t in ITEM_SIZE}
    about = "Raw parts of each data type, with NaN payloads, -0.0, denormals, least and most."
    return sound("raw-types", one(content=content, tables=schemas), about, tables)


INT_MIN, INT_MAX = -(2**63), 2**63 - 1
INDEXES = {
    "raw-extremes": ("raw", [INT_MIN, -1, 0, 1, INT_MAX]),
    "raw-one": ("raw", [-42]),
    "packed-width-0": ("packed", list(range(-3, 130))),
    "packed-width-64": ("packed", [INT_MIN, INT_MAX]),
    "packed-groups": ("packed", [k * k * 3 - 900 for k in range(300)]),
    "packed-full-groups": ("packed", [k * 2 for k in range(256)]),
    "runs": ("runs", [*range(-5, 3), 4, *range(1000, 1040)]),
    "runs-extremes": ("runs", [INT_MIN, INT_MIN + 1, INT_MAX - 1, INT_MAX]),
    "bitmap-one": ("bitmap", [INT_MAX]),
    "bitmap-words": ("bitmap", [k for k in range(-600, 900) if k % 7 in (1, 2, 6) or k > 880]),
    "bitmap-full": ("bitmap", list(range(512))),
}


def row_index(name: str, code: str, keys: list[int]) -> Vector:
    """A keyed table under one code of row index."""
    store = one(content=lambda s: visitor(s, keys, code), tables=[VISITOR])
    both = {"weight": values(weights(len(keys))), "accumulator": values(sums(len(keys)))}
    about = f"A keyed table of {len(keys)} rows under the row-index code {code}."
    return sound(f"index-{name}", store, about, {"visitor": expected(both, keys)})


def dense_row_index() -> Vector:
    """Parts of a dense table under each code; their rows tile it."""
    sets = {code: list(range(k, 40, 5)) for k, code in enumerate(rows.CODES)}
    table_schema = schema("tiled", "item", 40, 3)

    def content(segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), 40)
        for code, ids in (*sets.items(), ("raw", list(range(4, 40, 5)))):
            row_set = table.index(code, ids, rows.index(code, ids))
            floats(table, "weight", row_set, weights(40)[ids])

    store = one(content=content, tables=[table_schema])
    about = "A dense baseline tiled by five sparse row sets, under all codes of row index."
    return sound("index-dense", store, about, {"item": expected({"weight": values(weights(40))})})


def empty() -> Iterator[Vector]:
    """Tables without rows, containers without tables."""
    empty_user = schema("user", "user", 0, 3, *USER["columns"])

    def content(segment: Segment) -> None:
        Table(segment, table_id(empty_user), 0)
        Table(segment, table_id(VISITOR), None)

    none = {"weight": values(weights(0)), "accumulator": values(sums(0))}
    tables = {"user": expected(none), "visitor": expected(none, [])}
    store = one(content=content, tables=[empty_user, VISITOR])
    yield sound("empty-tables", store, "A dense and a keyed table without rows.", tables)
    store = one(content=lambda _: None, tables=[])
    yield sound("no-tables", store, "No table at all: a segment without sections.", {})
    wide = schema("wide", "wide", None, 2**20)
    columns = [column(f"c{k}" if k else "weight", "uint8", []) for k in range(256)]
    columns[0]["shape"] = [1]
    many = schema("many", "many", 1, 1, *columns)

    def widest(segment: Segment) -> None:
        Table(segment, table_id(wide), None)
        Table(segment, table_id(many), 1)

    store = one(content=widest, tables=[wide, many])
    bytes_ = {c["name"]: ("uint8", [1, *c["shape"]], b"\0") for c in columns}
    nothing = {"weight": ("float32", [0, 2**20], b"")}
    about = "A dim of 2^20, a table of 256 columns: as many as the limits allow."
    tables = {"wide": expected(nothing, []), "many": expected(bytes_)}
    yield sound("limits", store, about, tables)
    rows_only = one(content=lambda s: Table(s, table_id(USER), 4))
    zeros = {"weight": values(weights(4) * 0), "accumulator": values(sums(4) * 0)}
    about = "A dense table of four rows without parts: all rows read as the fill."
    yield sound("no-parts", rows_only, about, {"user": expected(zeros)})


def fills() -> Vector:
    """Fills that are not zero, one a NaN with a payload."""
    nan = bytes.fromhex("efbeadff")
    columns = [
        column("weight", "float32", [3], nan),
        column("seen", "int64", [], (2**63 - 1).to_bytes(8, "little")),
        column("momentum", "bfloat16", [3], b"\x80\x3f"),
    ]
    table_schema = schema("filled", "item", 2, 3, *columns)
    store = one(content=lambda s: Table(s, table_id(table_schema), 2), tables=[table_schema])
    filled = {
        "weight": ("float32", [2, 3], nan * 6),
        "seen": ("int64", [2], columns[1]["fill"] and bytes.fromhex(columns[1]["fill"]) * 2),
        "momentum": ("bfloat16", [2, 3], b"\x80\x3f" * 6),
    }
    about = "Fill values of several data types, one a NaN with a payload."
    return sound("fills", store, about, {"item": expected(filled)})


def dense_state() -> Vector:
    """Dense entries of all kinds."""
    arrays = {
        "scalar": ("float64", [], np.float64(0.1).tobytes()),
        "empty": ("float32", [0, 7], b""),
        "mask": ("bool", [2, 3], b"\x01\0\0\x01\x01\0"),
        "phase": ("complex64", [2], np.array([1 - 2j, -0.0 + 3j], "<c8").tobytes()),
        "wave": ("complex128", [1, 1], np.array([[0.1 + 0.2j]], "<c16").tobytes()),
        "layer/0.weight": ("bfloat16", [2, 2], bytes.fromhex("803f0040c07f0080")),
        "deep": ("uint8", [1] * 31 + [2], b"\x07\x08"),
    }
    text = '{"lr":1e-3,"µ":["é",null,true,-0.0,9007199254740991],"nested":{"":[]}}'

    def content(segment: Segment) -> None:
        user(segment)
        for name, (dtype, shape, data) in arrays.items():
            segment.array(name, dtype, shape, data)
        segment.blob("config", "json", text.encode())
        segment.blob("number", "json", b" 7\n")
        segment.blob("reader position", "bytes", bytes(range(256)))
        segment.blob("nothing", "bytes", b"")

    dense: Json = {
        name: {"kind": "array", "dtype": dtype, "shape": shape, "hex": data.hex()}
        for name, (dtype, shape, data) in arrays.items()
    }
    config = {"lr": 1e-3, "µ": ["é", None, True, -0.0, 2**53 - 1], "nested": {"": []}}
    dense["config"] = {"kind": "json", "value": config}
    dense["number"] = {"kind": "json", "value": 7}
    dense["reader position"] = {"kind": "bytes", "hex": bytes(range(256)).hex()}
    dense["nothing"] = {"kind": "bytes", "hex": ""}
    about = "Dense state of all kinds: arrays of 0 and 32 dimensions, empty, bool, complex, JSON."
    store = one(content=content, dense=True)
    tables = {"user": expected(USER_VALUES)}
    return sound("dense-state", store, about, tables, dense=dense)


def sharding() -> Iterator[Vector]:
    """Steps of several segments, parts of element ranges."""
    whole, accumulator = weights(4), sums(4)

    def columnwise(segment: Segment) -> None:
        table = Table(segment, table_id(USER), 4)
        span = table.span(0, 3)
        floats(table, "weight", span, whole[:, 2:], first=2)
        floats(table, "weight", span, whole[:, :2])
        floats(table, "accumulator", span, accumulator)

    tables = {"user": expected(USER_VALUES)}
    about = "A column in two parts of element ranges, the higher elements first."
    yield sound("columnwise", one(content=columnwise), about, tables)

    def top(segment: Segment) -> None:
        table = Table(segment, table_id(USER), 4)
        floats(table, "weight", table.span(0, 1), whole[:2])

    def bottom_left(segment: Segment) -> None:
        table = Table(segment, table_id(USER), 4)
        floats(table, "weight", table.span(2, 3), whole[2:, :1])
        floats(table, "accumulator", table.span(0, 3), accumulator)

    def bottom_right(segment: Segment) -> None:
        table = Table(segment, table_id(USER), 4)
        floats(table, "weight", table.span(2, 3), whole[2:, 1:], first=1)

    about = "A baseline step written by three segments: row-wise and column-wise shards."
    store = sharded(top, bottom_left, bottom_right)
    yield sound("sharded-baseline", store, about, tables)

    columns = [column("weight", "float32", [64]), *USER["columns"][1:]]
    table_schema = schema("large", "item", 256, 64, *columns)
    large = (np.arange(256 * 64) % 1021).astype(np.float32).reshape(256, 64)

    def big(segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), 256)
        span = table.span(0, 255)
        floats(table, "accumulator", span, sums(256))
        floats(table, "weight", span, large)
        segment.blob("after", "bytes", b"after")

    store = one(content=big, tables=[table_schema], dense=True, piece_size=512)
    about = "A section of 65536 bytes on 4096 between smaller ones on 64; pieces of 512 bytes."
    both = expected({"weight": values(large), "accumulator": values(sums(256))})
    after = {"after": {"kind": "bytes", "hex": b"after".hex()}}
    yield sound("large-section", store, about, {"item": both}, dense=after)


def vectors() -> Iterator[Vector]:
    """All vectors of this module."""
    yield from empty()
    yield raw_types()
    for name, (code, keys) in INDEXES.items():
        yield row_index(name, code, keys)
    yield dense_row_index()
    yield fills()
    yield dense_state()
    yield from sharding()
    both = {"user": expected(USER_VALUES), "visitor": expected(VISITOR_VALUES, KEYS)}

    def content(segment: Segment) -> None:
        user(segment)
        visitor(segment)

    yield sound("dense-and-keyed", one(content=content, tables=[USER, VISITOR]), "Two tables.", both)
    store = Store()
    segment = Segment("A", None, A, piece_size=1048576)
    user(segment)
    store.commit(A, [USER], [store.put(segment)])
    tables = {"user": expected(USER_VALUES)}
    yield sound("largest-piece", store, "A piece size of 1048576, the largest.", tables)
