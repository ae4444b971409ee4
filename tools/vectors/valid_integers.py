"""Valid vectors about absolute parts of integers: each payload, groups, logarithmic codes, schemes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from vectors import encodings, rows
from vectors.cases import Values, Vector, expected, one_small, sound, table_id, values
from vectors.container import column, schema
from vectors.integers import Rows, said, section, width_of
from vectors.integers import values as values_of
from vectors.layout import Json, Segment, Table
from vectors.valid_codes import LOGS
from vectors.valid_rowwise import columns

TOP = 2**24 - 1
grid = encodings.grid


def spread(count: int, width: int, bits: int) -> list[list[int]]:
    """Codes of a width in two's complement, the least and the greatest among them."""
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    codes = [[low + (97 * row + 31 * k + row * k * k) % 2**bits for k in range(width)] for row in range(count)]
    codes[0][0], codes[-1][-1] = low, high
    return codes


def mixed(count: int, width: int) -> list[list[int]]:
    """Codes of all sizes, row by row: zeros, then wider and wider ones of both signs."""
    codes = []
    for row in range(count):
        most = 2**row - 1
        codes.append([(-1) ** (k + row) * (most - (k * most) // (width + 1)) for k in range(width)])
    return codes


def some(*columns_: tuple[str, Sequence[int]], name: str, count: int | None = 5, dim: int = 3) -> Json:
    """The schema of a table whose weight has `dim` elements, and of further columns."""
    return schema(name, "item", count, dim, column("weight", "float32", [dim]), *(
        column(each, "float32", list(shape)) for each, shape in columns_
    ))  # fmt: skip


def written(
    table: Table, row_set: int, encoding: Json, codes: Rows, exponents: Sequence[int] | None = None, **how: Any
) -> int:
    """Append a part of integers of the weight, or of another `column`, from the element `first` on; its number."""
    name, first = how.pop("column", "weight"), how.pop("first", 0)
    data = section(encoding, codes, exponents, **how)
    return table.part(name, row_set, (first, first + len(codes[0])), encoding, data)


def rows_of(table: Table, ids: Sequence[int]) -> int:
    """Append a row set."""
    return table.index("raw", ids, rows.raw(ids))


def of_one_width() -> Iterator[Vector]:
    """The payload `fixed`."""
    for bits, exponents in (
        (1, [0, 24, 23, 5, 0]),
        (2, [0, 22, 1, 7, 0]),
        (7, [17, 0, 3, 17, 9]),
        (8, [0, 16, 0, 1, 2]),
        (13, [11, 0, 5, 2, 1]),
        (25, [0] * 5),
        (26, [0] * 5),
    ):
        codes = mixed(5, 3) if bits > 24 else spread(5, 3, bits)
        codes[3] = [-TOP, TOP, 1 - TOP] if bits > 24 else codes[3]
        codes[4] = [0, 0, 0] if bits < 25 else codes[4]
        if bits == 1:
            codes[1] = [0, 0, 0]  # -1 x 2^24 is out of range; zeros may have any exponent.
        parts = []
        for floor in (-126, -10, 103):
            encoding = grid("absolute", floor, "fixed", bits)
            found = values(values_of(said(codes, exponents), floor))
            parts.append((f"floor {floor}", encoding, section(encoding, codes, exponents), found))
        about = f"Integers in codes of {bits} bits, on grids from the finest to the coarsest."
        yield columns(f"grid-fixed-{bits}-bits", about, 5, 3, parts)


def packed() -> Vector:
    """The payload `packed`, in groups of all kinds."""
    codes, exponents = mixed(25, 5), [0, *(24 - row for row in range(1, 25))]
    assert [width_of(row) for row in codes] == [0, *range(2, 26)]
    codes[1] = [0, -1, 0, 0, -1]
    parts = []
    for group in (1, 2, 7, 25, 13107):
        encoding = grid("absolute", -12, "packed", None, group)
        found = values(values_of(said(codes, exponents), -12))
        parts.append((f"groups of {group}", encoding, section(encoding, codes, exponents), found))
    about = "Rows of codes of 0 to 25 bits, each as wide as it needs, in groups of 1 row up to all."
    return columns("grid-packed", about, 25, 5, parts)


def entropy_coded() -> Iterator[Vector]:
    """The payload `rans`, in groups of all kinds."""
    codes, exponents = mixed(25, 5), [0, *(24 - row for row in range(1, 25))]
    classes = [row // 7 for row in range(25)]
    parts = []
    for group in (1, 2, 7, 25, 13107):
        encoding = grid("absolute", -12, "rans", None, group)
        found = values(values_of(said(codes, exponents), -12))
        parts.append((f"groups of {group}", encoding, section(encoding, codes, exponents, classes), found))
    about = "Entropy-coded rows of 25 kinds in four classes, of codes of 0 to 25 bits, in groups of 1 row up to all."
    yield columns("grid-rans", about, 25, 5, parts)

    zeros, ones = [[0] * 3] * 20, [[-1, -1, -1]] * 20
    two = [[-1 if k < row else 0 for k in range(3)] for row in range(4)] * 5
    coded = [("zeros", zeros, [0] * 20), ("ones", ones, [3] * 20), ("two tokens", two, [1] * 20)]
    parts = []
    for name, these, of_rows in coded:
        encoding = grid("absolute", 0, "rans", None, 6)
        found = values(values_of(said(these, of_rows), 0))
        parts.append((name, encoding, section(encoding, these, of_rows), found))
    about = "Entropy-coded rows of one kind: of one token, which takes no words, and of two."
    yield columns("grid-rans-one-kind", about, 20, 3, parts)

    kinds = [(e, c) for e in range(4) for c in range(5)]
    codes = [[(-1) ** k * ((row * 7 + k) % 4**c) for k in range(3)] for row, (_, c) in enumerate(kinds * 2)]
    exponents, classes = [e for e, _ in kinds * 2], [c for _, c in kinds * 2]
    encoding = grid("absolute", -3, "rans", None, 9)
    data = section(encoding, codes, exponents, classes)
    found = values(values_of(said(codes, exponents), -3))
    about = "Entropy-coded rows of every exponent from 0 to 3 in every class from 0 to 4."
    yield columns("grid-rans-kinds", about, 40, 3, [("weight", encoding, data, found)])


def one_valued() -> Vector:
    """Columns of one value per row on a grid, under each payload."""
    codes, exponents = [[5], [-7], [0], [100]], [0, 2, 0, 10]
    kinds = [grid("absolute", -4, "fixed", 8), *(grid("absolute", -4, p, None, 3) for p in ("packed", "rans"))]
    names = [encoding["payload"] for encoding in kinds]
    table_schema = some(*((name, []) for name in names), name="one valued", count=4, dim=1)

    def content(segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), 4)
        span = table.span(0, 3)
        for name, encoding in zip(names, kinds, strict=True):
            written(table, span, encoding, codes, exponents, column=name)

    result = values(values_of(said(codes, exponents)[:, 0], -4))
    found = {"weight": values(np.zeros((4, 1), "f4")), **dict.fromkeys(names, result)}
    about = "Columns of one value per row on a grid, under each payload."
    store = one_small(content=content, tables=[table_schema])
    return sound("grid-one-value", store, about, {"item": expected(found)})


def logs() -> Iterator[Vector]:
    """Logarithmic codes, entropy-coded."""
    for bits in (8, 12, 16):
        codes = [[code] for code in (2**bits - 1, 0, 1, 2**bits - 2, 77, 0, 200)]
        groups = zip(LOGS[bits], (1, 3, 65536), strict=True)
        kinds = {f"state {k}": encodings.log(bits, *pair, "absolute", "rans", g) for k, (pair, g) in enumerate(groups)}
        table_schema = some(*((name, []) for name in kinds), name="logs", count=7, dim=1)

        def content(
            segment: Segment, kinds: dict[str, Json] = kinds, codes: Rows = codes, of: Json = table_schema
        ) -> None:
            table = Table(segment, table_id(of), 7)
            span = table.span(0, 6)
            for name, encoding in kinds.items():
                written(table, span, encoding, codes, column=name)

        found = {name: values(encodings.log_values([c for (c,) in codes], each)) for name, each in kinds.items()}
        about = f"Logarithmic codes of {bits} bits, entropy-coded in groups of 1, of 3 and of all rows."
        store = one_small(content=content, tables=[table_schema])
        weight = {"weight": values(np.zeros((7, 1), "f4"))}
        yield sound(f"log-rans-{bits}-bits", store, about, {"item": expected({**weight, **found})})


def long_directory() -> Vector:
    """More groups than a block of the directory has."""
    count = 1030
    codes = [[row % 5 - 2 if row % 3 else 0] for row in range(count)]
    kinds = [grid("absolute", 0, payload, None, 1) for payload in ("packed", "rans")]
    table_schema = some(("packed", []), name="long", count=count, dim=1)

    def content(segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), count)
        span = table.span(0, count - 1)
        written(table, span, kinds[0], codes, column="packed")
        # All symbols are certain, so that a group is its states alone.
        ones = [[1]] * count
        written(table, span, kinds[1], ones)

    found = {"weight": values(np.ones((count, 1), "f4")), "packed": values(values_of(codes, 0)[:, 0])}
    about = f"{count} groups of one row, whose directory has two blocks."
    store = one_small(content=content, tables=[table_schema])
    return sound("grid-directory", store, about, {"item": expected(found)})


def schemes() -> Vector:
    """Schemes of the closed loop."""
    steps: list[Json | None] = [
        None,
        {"size": 0.02, "reference": 0.125, "column": "accumulator"},
        {"size": 5e-324, "reference": 0, "column": None},
        {"size": 2**53 - 1, "reference": None, "column": "c0"},
        {"size": 1e308, "reference": 1e308, "column": "no such column"},
    ]
    parts: list[tuple[str, Json, bytes, Values]] = []
    made = []
    for number, step in enumerate(steps):
        encoding = grid("absolute", 0, "packed", None, 2)
        codes = spread(3, 3, 4)
        parts.append((f"c{number}", encoding, section(encoding, codes), values(values_of(codes, 0))))
        made.append(encodings.scheme(encoding, step=step, bound=0.5 if number else None, max_error=0.25))
    about = "Schemes of the closed loop, with steps at the ends of their ranges, and without."
    return columns("schemes-closed-loop", about, 3, 3, parts, made)


def vectors() -> Iterator[Vector]:
    """All vectors of this module."""
    yield from of_one_width()
    yield packed()
    yield from entropy_coded()
    yield one_valued()
    yield from logs()
    yield long_directory()
    yield schemes()
