"""Invalid vectors about parts together, dense entries and schemas (rules 28 - 30, 34, 36, 37)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vectors import rows
from vectors.cases import (
    FLOAT,
    USER,
    VISITOR,
    WEIGHT,
    A,
    Content,
    Vector,
    broken,
    drop,
    floats,
    one_small,
    put,
    sharded_small,
    sums,
    table_id,
    two_small,
    user,
    visitor,
    weights,
)
from vectors.container import Store, column, schema
from vectors.layout import Json, Segment, Table

EIGHT = rows.rowwise_encoding(8)
TWO_COLUMNS = schema("twins", "item", 4, 3, WEIGHT, column("momentum", "float32", [3]))


def coded(*zeroed: int) -> bytes:
    """8-bit rows of 4 rows x 3 elements; the slots of some are zero bytes."""
    codes, scale = np.arange(12).reshape(4, 3), np.full(4, 0.5)
    data = bytearray(rows.fused(codes, scale, np.ones(4), 8))
    for row in zeroed:
        data[row * 11 : row * 11 + 11] = bytes(11)
    return bytes(data)


def exceptions() -> Iterator[Vector]:
    """Rule 28."""
    row = weights(1, 1e30)

    def base(*zeroed: int) -> tuple[Segment, Table, int]:
        segment = Segment("A", None, A)
        table = Table(segment, table_id(TWO_COLUMNS), 4)
        whole = table.span(0, 3)
        table.part("weight", whole, (0, 3), EIGHT, coded(*zeroed))
        floats(table, "momentum", whole, weights(4))
        return segment, table, whole

    def finished(segment: Segment) -> Store:
        store = Store(folder=True)
        store.commit(A, [TWO_COLUMNS], [store.put(segment)])
        return store

    def simple(column_: str, elements: tuple[int, int], of: int, first: int = 2) -> Store:
        segment, table, _ = base(2)
        data = row[:, elements[0] : elements[1]].tobytes()
        table.part(column_, table.span(first, first), elements, FLOAT, data, of)
        return finished(segment)

    segment, table, _ = base(2)
    data = rows.fused([[1, 2, 3]], [1], [0], 8)
    table.part("weight", table.span(2, 2), (0, 3), EIGHT, data, 0)
    yield broken(28, "rowwise", finished(segment), "An exception part that isn't raw.")
    store = simple("momentum", (0, 3), 1)
    yield broken(28, "of-raw", store, "An exception part of a raw part.", (29,))
    store = simple("momentum", (0, 3), 0)
    yield broken(28, "other-column", store, "An exception part of another column's part.", (29,))
    store = simple("weight", (0, 2), 0)
    yield broken(28, "other-elements", store, "An exception part of fewer elements.", (29,))
    store = simple("weight", (0, 3), 2)
    yield broken(28, "of-itself", store, "An exception part of itself.", (29,))
    store = simple("weight", (0, 3), 0, first=1)
    yield broken(28, "slots", store, "The main part's slot of the row isn't zero.")

    segment, table, _ = base(2)
    for _ in range(2):
        table.part("weight", table.span(2, 2), (0, 3), FLOAT, row.tobytes(), 0)
    yield broken(28, "two", finished(segment), "Two exception parts of one part.")

    segment, table, _ = base(2)
    table.part("weight", table.span(2, 2), (0, 3), FLOAT, row.tobytes(), 0)
    table.part("weight", table.span(2, 2), (0, 3), FLOAT, row.tobytes(), 2)
    yield broken(28, "of-exception", finished(segment), "An exception part of an exception part.")

    def halves(first: bool) -> Store:
        """The main part of rows 0 and 1 and a raw part of rows 2 and 3, and an exception."""
        segment = Segment("A", None, A)
        table = Table(segment, table_id(TWO_COLUMNS), 4)
        low, high = table.span(0, 1), table.span(2, 3)
        exception = table.span(1, 1) if first else table.span(1, 2)
        if first:
            table.part("weight", exception, (0, 3), FLOAT, row.tobytes(), 1)
        table.part("weight", low, (0, 3), EIGHT, coded(1)[:22])
        floats(table, "weight", high, weights(2))
        if not first:
            table.part("weight", exception, (0, 3), FLOAT, weights(2).tobytes(), 0)
        return finished(segment)

    yield broken(28, "before", halves(True), "An exception part before its main part.")
    about = "An exception part with a row that its main part hasn't."
    yield broken(28, "other-rows", halves(False), about, (29,))


def overlaps() -> Iterator[Vector]:
    """Rule 29."""

    def more(elements: tuple[int, int], *ids: int) -> Content:
        def content(segment: Segment) -> None:
            table = user(segment)
            row_set = table.index("raw", ids, rows.raw(ids))
            first, end = elements
            floats(table, "weight", row_set, weights(len(ids))[:, first:end], first)

        return content

    store = one_small(content=more((0, 3), 1, 3))
    yield broken(29, "rows", store, "Two parts of one column share rows.")
    store = one_small(content=more((2, 3), 1, 3))
    yield broken(29, "elements", store, "Two parts of one column share an element of rows.")

    def twice(segment: Segment) -> None:
        table = user(segment)
        floats(table, "weight", 0, weights(4))

    yield broken(29, "row-set", one_small(content=twice), "Two parts of one column have one row set.")

    def interleaved(segment: Segment) -> None:
        table = visitor(segment, [1, 3, 5, 7])
        ids = [0, 2, 5, 8]
        floats(table, "weight", table.index("raw", ids, rows.raw(ids)), weights(4))

    store = two_small(interleaved, [VISITOR], before=visitor)
    yield broken(29, "keyed", store, "Two parts of a delta share the key 5.")

    def shard(ids: list[int]) -> Content:
        def content(segment: Segment) -> None:
            table = Table(segment, table_id(USER), 4)
            floats(table, "weight", table.index("raw", ids, rows.raw(ids)), weights(len(ids)))

        return content

    store = sharded_small(shard([0, 1]), shard([1, 2, 3]))
    yield broken(29, "segments", store, "Two segments of one step both write row 1.")


def dense_entries() -> Iterator[Vector]:
    """Rule 30."""

    def array(dtype: str, shape: list[int], data: bytes) -> Content:
        def content(segment: Segment) -> None:
            user(segment)
            segment.array("a", dtype, shape, data)

        return content

    huge = [2**53 - 1] * 4
    for clause, dtype, shape, length in (
        ("array-short", "float32", [2, 3], 20),
        ("array-long", "float32", [2, 3], 28),
        ("array-null", "float32", [2, 3], 0),
        ("array-empty", "float32", [2, 0], 4),
        ("array-scalar", "complex128", [], 8),
        ("array-huge", "float64", huge, 8),
        ("array-overflow", "uint8", [2**32, 2**32], 1),
    ):
        store = one_small(content=array(dtype, shape, bytes(length)), dense=True)
        about = f"An array of {dtype} and shape {shape} in {length} bytes."
        yield broken(30, clause, store, about)
    store = one_small(content=array("bool", [3], b"\0\1\2"), dense=True)
    yield broken(30, "bool", store, "A bool byte of 2.")

    def null(segment: Segment) -> None:
        user(segment)
        segment.blob("config", "json", b"")

    store = one_small(content=null, dense=True)
    yield broken(30, "json-null", store, "An entry of kind json without section.", (5,))


def schemas() -> Iterator[Vector]:
    """Rule 34."""

    def two_tables(change: Json) -> Store:
        other = schema("other", "other", 4, 3) | change

        def content(segment: Segment) -> None:
            user(segment)
            if "id" not in change:
                Table(segment, table_id(other), 4)

        return one_small(content=content, tables=[USER, other])

    store = two_tables({"id": USER["id"]})
    yield broken(34, "table-ids", store, "Two tables of one id.", (36,))
    store = two_tables({"name": "user"})
    yield broken(34, "table-names", store, "Two tables of one name.")

    def columns(*values: Json) -> Store:
        table = schema("c", "user", 4, 3) | {"columns": list(values)}
        return one_small(content=lambda s: Table(s, table_id(table), 4), tables=[table])

    state = column("state", "float32", [])
    flag = {"name": "flag", "dtype": "bool", "shape": [], "fill": "00"}
    phase = {"name": "phase", "dtype": "complex64", "shape": [], "fill": "00" * 8}
    for clause, store, about, also in (
        ("column-names", columns(WEIGHT, state, state), "Two columns of one name.", ()),
        ("weight-not-first", columns(state, WEIGHT), "The first column isn't `weight`.", ()),
        ("no-weight", columns(state), "No column `weight`.", ()),
        ("no-columns", columns(), "No column at all.", ()),
        ("weight-scalar", columns(WEIGHT | {"shape": []}), "A `weight` of shape [].", ()),
        ("weight-shape", columns(WEIGHT | {"shape": [4]}), "`weight` of shape [4], dim 3.", (6,)),
        ("fill-short", columns(WEIGHT | {"fill": "0000"}), "A fill of 2 bytes for float32.", ()),
        ("fill-long", columns(WEIGHT | {"fill": "00" * 12}), "A fill of a whole row.", ()),
        ("fill-empty", columns(WEIGHT | {"fill": ""}), "A fill of no bytes.", (6,)),
        ("bool", columns(WEIGHT, flag), "A column of bool.", (6,)),
        ("complex", columns(WEIGHT, phase), "A column of complex64.", (6,)),
    ):
        yield broken(34, clause, store, about, also)
    flat = schema("flat", "flat", None, 0)
    store = one_small(content=lambda s: Table(s, table_id(flat), None), tables=[flat])
    yield broken(34, "dim-zero", store, "A dim of 0.", (6,))
    store = one_small({"json": put("tables", 0, "rows", None)})
    yield broken(34, "rows-dense", store, "A dense table without rows.", (22, 23, 36, 37))
    store = one_small({"json": put("tables", 0, "rows", 4)}, visitor, [VISITOR])
    yield broken(34, "rows-keyed", store, "A keyed table with rows.", (36,))


def chain_schemas() -> Iterator[Vector]:
    """Rules 36 and 37."""
    store = one_small({"json": drop("tables", 0, "columns", 1)})
    yield broken(36, "column", store, "A part of a column that the schema doesn't list.")
    store = one_small({"toc": put("tables", 0, "rows", None)})
    about = "A TABLE of a dense table without rows."
    yield broken(36, "rows-null", store, about, (22, 23, 37))
    store = one_small({"toc": put("tables", 0, "rows", 100)}, visitor, [VISITOR])
    yield broken(36, "rows-keyed", store, "A TABLE of a keyed table with rows.", (23,))
    store = one_small({"json": put("tables", 0, "rows", 5)})
    about = "The schema has 5 rows, the chain 4."
    yield broken(36, "rows", store, about, (37,))

    def grown(segment: Segment) -> None:
        Table(segment, table_id(USER), 6)

    about = "The newest segment gives 6 rows, the schema has the baseline's 4."
    yield broken(36, "rows-newest", two_small(grown), about)
    store = one_small(content=user, tables=[USER, VISITOR])
    yield broken(36, "table-absent", store, "The schema lists a table that no segment has.")

    def hole(*spans: tuple[int, int]) -> Content:
        def content(segment: Segment) -> None:
            table = Table(segment, table_id(USER), 4)
            for first, last in spans:
                floats(table, "weight", table.span(first, last), weights(last - first + 1))

        return content

    store = one_small(content=hole((0, 2)))
    yield broken(37, "rows", store, "The baseline has the weight of rows 0 to 2 of 4.")
    store = one_small(content=hole((0, 0), (2, 3)))
    yield broken(37, "gap", store, "The baseline lacks the weight of row 1.")

    def narrow(segment: Segment) -> None:
        table = user(segment)
        table.json["parts"][0]["elements"] = [0, 2]
        segment.sections[0] = weights(4)[:, :2].tobytes()

    yield broken(37, "elements", one_small(content=narrow), "The baseline lacks element 2 of all rows.")

    def corner(segment: Segment) -> None:
        table = Table(segment, table_id(USER), 4)
        floats(table, "weight", table.span(0, 3), weights(4)[:, :2])
        floats(table, "weight", table.span(0, 2), weights(3)[:, 2:], first=2)

    yield broken(37, "corner", one_small(content=corner), "The baseline lacks element 2 of row 3.")

    def scalar(segment: Segment) -> None:
        table = Table(segment, table_id(USER), 4)
        floats(table, "weight", table.span(0, 3), weights(4))
        floats(table, "accumulator", table.span(1, 3), sums(3))

    about = "The baseline lacks the accumulator of row 0."
    yield broken(37, "second-column", one_small(content=scalar), about)
    store = sharded_small(hole((0, 0)), hole((2, 3)))
    yield broken(37, "segments", store, "The two segments of the baseline step leave out row 1.")


def vectors() -> Iterator[Vector]:
    """All vectors of this module."""
    yield from exceptions()
    yield from overlaps()
    yield from dense_entries()
    yield from schemas()
    yield from chain_schemas()
