"""Invalid vectors about row sets, and about parts one by one (rules 22 - 26)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from vectors import rows
from vectors.cases import (
    KEYS,
    USER,
    VISITOR,
    Content,
    Vector,
    both,
    broken,
    floats,
    one_small,
    put,
    table_id,
    two_small,
    user,
    visitor,
    weights,
)
from vectors.container import Store
from vectors.layout import Json, Segment, Table

SET0 = ("tables", 0, "row_sets", 0)


def deleting(code: str, count: int, low: int, high: int, data: bytes) -> Content:
    """A delta of `visitor` that deletes a row set given field by field."""

    def content(segment: Segment) -> None:
        table = Table(segment, table_id(VISITOR), None)
        number = segment.section(data)
        table.json["deleted"] = table.row_set(code, count, low, high, number)

    return content


def delta(content: Content) -> Store:
    """A baseline of `visitor` and a delta."""
    return two_small(content, [VISITOR], before=visitor)


def row_sets() -> Iterator[Vector]:
    """Rules 22 to 24."""
    for clause, hook, about, also in (
        ("count", put(*SET0, "count", 3), "A range of 4 rows with a count of 3.", (26, 37)),
        ("range-max", put(*SET0, "max", "2"), "A range of 3 rows with a count of 4.", (37,)),
        ("min-above-max", put(*SET0, "min", "9"), "A range from 9 to 3.", (23, 37)),
    ):
        yield broken(22, clause, one_small({"toc": hook}), about, also)

    def zero(segment: Segment) -> None:
        user(segment)
        table = Table(segment, table_id(VISITOR), None)
        table.json["deleted"] = table.row_set("raw", 0, 5, 5, segment.section(rows.raw([5])))

    store = one_small(content=zero, tables=[USER, VISITOR])
    yield broken(22, "count-zero", store, "A row set of no rows.", (50, 52))
    for clause, hook, about, also in (
        ("min-max", put(*SET0, "min", "13"), "A row index from 13 to 12.", (52,)),
        ("count-above-span", put(*SET0, "max", "-5"), "4 rows from -7 to -5.", (52,)),
        ("section-null", put(*SET0, "section", None), "A row index without section.", (19,)),
    ):
        store = one_small({"toc": hook}, visitor, [VISITOR])
        yield broken(22, clause, store, about, also)

    def keyed_range(segment: Segment) -> None:
        table = Table(segment, table_id(VISITOR), None)
        floats(table, "weight", table.span(3, 6), weights(4))

    store = one_small(content=keyed_range, tables=[VISITOR])
    yield broken(22, "range-keyed", store, "A keyed table with a range.")

    def range_section(segment: Segment) -> None:
        table = Table(segment, table_id(USER), 4)
        ids = list(range(4))
        floats(table, "weight", table.index("range", ids, rows.raw(ids)), weights(4))

    yield broken(22, "range-section", one_small(content=range_section), "A range with a section.")
    for clause, code, data in (
        ("raw-long", "raw", rows.raw([*KEYS, 13])),
        ("raw-short", "raw", rows.raw(KEYS[:3])),
        ("raw-odd", "raw", rows.raw(KEYS)[:-1]),
        ("bitmap-long", "bitmap", rows.bitmap(KEYS) + bytes(8)),
        ("bitmap-short", "bitmap", rows.bitmap(KEYS)[:-8]),
        ("bitmap-no-ranks", "bitmap", rows.bitmap(KEYS)[:8]),
    ):
        store = delta(deleting(code, 4, -7, 12, data))
        about = f"The section of a row index of the code {code} has another length."
        yield broken(22, clause, store, about, (50, 52))
    huge = deleting("bitmap", 2, -(2**63), 2**63 - 1, bytes(72))
    about = "A bitmap over all int64 values, in 72 bytes."
    yield broken(22, "bitmap-huge", delta(huge), about, (50, 52))
    huge = deleting("raw", 2**26, 0, 2**40, bytes(64))
    about = "A raw row index that counts 2^26 ids, in 64 bytes."
    yield broken(22, "raw-huge", delta(huge), about, (50, 52))

    def written(first: int, count: int, rows_after: int = 4) -> Content:
        def content(segment: Segment) -> None:
            table = Table(segment, table_id(USER), rows_after)
            ids = [first + k for k in range(count)]
            floats(table, "weight", table.index("raw", ids, rows.raw(ids)), weights(count))

        return content

    yield broken(23, "beyond", two_small(written(4, 1)), "A delta writes row 4 of 4 rows.")
    yield broken(23, "negative", two_small(written(-1, 2)), "A delta writes row -1 of a dense table.")

    def beyond(segment: Segment) -> None:
        table = Table(segment, table_id(USER), 4)
        floats(table, "weight", table.span(0, 4), weights(5))

    yield broken(23, "range", one_small(content=beyond), "A baseline writes rows 0 to 4 of 4 rows.")
    shrunk = USER | {"rows": 2}
    store = two_small(written(3, 1, 2), [shrunk], before_tables=[USER])
    yield broken(23, "shrunk", store, "A delta shrinks a table to 2 rows and writes row 3.")

    def dense_tombstone(segment: Segment) -> None:
        table = Table(segment, table_id(USER), 4)
        table.json["deleted"] = table.span(1, 1)

    yield broken(24, "dense", two_small(dense_tombstone), "A tombstone in a dense table.")

    def written_too(code: str, ids: Sequence[int]) -> Content:
        def content(segment: Segment) -> None:
            table = visitor(segment, [5, 6, 7])
            table.json["deleted"] = table.index(code, ids, rows.index(code, ids))

        return content

    store = delta(written_too("runs", [0, 6]))
    yield broken(24, "written", store, "A delta deletes and writes row 6.")
    store = delta(written_too("raw", [5, 6, 7]))
    yield broken(24, "all-written", store, "A delta deletes all the rows that it writes.")


def parts() -> Iterator[Vector]:
    """Rules 25 and 26, as far as they don't hang on the encoding."""

    def eight(elements: tuple[int, int], count: int) -> Content:
        """The table `user`, and a row-wise part of `count` codes more."""

        def content(segment: Segment) -> None:
            table = user(segment)
            data = rows.fused(np.zeros((4, count), int), np.ones(4), np.zeros(4), 8)
            encoding = rows.rowwise_encoding(8)
            table.part("weight", 0, elements, encoding, data)

        return content

    store = one_small(content=eight((2, 2), 0))
    yield broken(25, "empty", store, "A part of no elements, of scales and biases alone.")
    store = one_small(content=eight((2, 1), 0))
    yield broken(25, "backwards", store, "A part from element 2 to element 1.", (26,))
    store = one_small(content=eight((3, 5), 2))
    yield broken(25, "beyond", store, "A part of elements 3 and 4 where there are 3.", (36, 37))
    store = one_small(content=eight((2**53 - 2, 2**53 - 1), 1))
    yield broken(25, "huge", store, "A part of the element 2^53 - 2.", (36, 37))

    def scalar(segment: Segment) -> None:
        table = Table(segment, table_id(USER), 4)
        span = table.span(0, 3)
        floats(table, "weight", span, weights(4))
        floats(table, "accumulator", span, weights(4)[:, :2])

    about = "A part of 2 elements in a column of one value per row."
    yield broken(25, "scalar-column", one_small(content=scalar), about, (36, 37))

    def sized(encoding: Json, data: bytes) -> Content:
        def content(segment: Segment) -> None:
            table = Table(segment, table_id(USER), 4)
            table.part("weight", table.span(0, 3), (0, 3), encoding, data)

        return content

    raw = rows.raw_encoding("float32")
    for clause, length in (("short", 36), ("long", 60), ("odd", 47)):
        store = one_small(content=sized(raw, bytes(length)))
        yield broken(26, clause, store, f"A raw part of 4 rows of 3 elements in {length} bytes.")
    many = both(put(*SET0, "count", 2**52), put(*SET0, "max", str(2**52 - 1)))
    store = one_small({"toc": many})
    about = "A range of 2^52 rows whose part would overflow 64 bits."
    yield broken(26, "overflow", store, about, (23, 37))


def vectors() -> Iterator[Vector]:
    """All vectors of this module."""
    yield from row_sets()
    yield from parts()
