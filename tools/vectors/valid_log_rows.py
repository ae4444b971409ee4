"""Valid vectors about logarithmic codes of `dim` values per row: absolute parts, differences, ranges of elements."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from vectors import encodings
from vectors.cases import FLOAT, Content, Values, Vector, expected, history, one_small, sound, table_id, values
from vectors.integers import Rows, section
from vectors.integers import values as values_of
from vectors.layout import Json, Segment, Table
from vectors.valid_codes import LOGS
from vectors.valid_integers import grid, rows_of, some, written
from vectors.valid_rowwise import columns

PAIR = LOGS[12][0]
TOP = 4095


def log(kind: str, group: int, bits: int = 12) -> Json:
    """The ENCODING of entropy-coded logarithmic codes."""
    return encodings.log(bits, *LOGS[bits][0], kind, "rans", group)


def meant(codes: Any, bits: int = 12) -> np.ndarray[Any, Any]:
    """What rows of codes mean."""
    whole = np.array(codes)
    return encodings.log_values(whole.reshape(-1).tolist(), log("absolute", 1, bits)).reshape(whole.shape)


def spread(count: int, width: int, bits: int = 12) -> list[list[int]]:
    """Codes from 0 to the last, both among them."""
    codes = [[(997 * row + 61 * k + row * k * k) % 2**bits for k in range(width)] for row in range(count)]
    codes[0][0], codes[-1][-1] = 0, 2**bits - 1
    return codes


def absolute() -> Iterator[Vector]:
    """Codes of each length, in groups of one row up to as many as there may be."""
    count, width = 9, 4
    classes = [row % 3 for row in range(count)]
    for bits in (8, 12, 16):
        codes = spread(count, width, bits)
        codes[4] = [0] * width
        parts: list[tuple[str, Json, bytes, Values]] = []
        for number, group in enumerate((1, 2, 9, 65536 // width)):
            encoding = encodings.log(bits, *LOGS[bits][number % 3], "absolute", "rans", group)
            flat = encodings.log_values([code for row in codes for code in row], encoding)
            data = section(encoding, codes, None, classes)
            parts.append((f"groups of {group}", encoding, data, values(flat.reshape(count, width))))
        about = f"Logarithmic codes of {bits} bits of four values per row, in groups of 1, 2, 9 and 65536 / 4 rows."
        yield columns(f"log-rans-rows-{bits}-bits", about, count, width, parts)


def residuals() -> Iterator[Vector]:
    """Differences of some rows, one version after another, from 0 to the last code and back."""
    base = spread(5, 3)
    base[0], base[3] = [0, TOP, 7], [TOP, 0, 2000]
    changes = [([0, 3], [[TOP, -TOP, 0], [-TOP, TOP, -1]]), ([1, 2, 3], [[0, 1, 0], [0, 0, 0], [5, -7, 1]])]
    changes.append(([0, 4], [[-1, 3, 4], [1, 1, -2]]))
    sums = np.array(base)
    for ids, codes in changes:
        sums[ids] += codes
    assert sums.min() >= 0
    assert sums.max() <= TOP
    for first, next_ in ((3, 2), (21845, 1), (1, 21845)):
        table_schema = some(name="log rows")
        absolute, residual = log("absolute", first), log("residual", next_)

        def baseline(segment: Segment, t: Json = table_schema, encoding: Json = absolute) -> None:
            table = Table(segment, table_id(t), 5)
            written(table, table.span(0, 4), encoding, base, classes=[0, 1, 0, 1, 2])

        def delta(ids: list[int], codes: Rows, t: Json = table_schema, encoding: Json = residual) -> Content:
            def content(segment: Segment) -> None:
                table = Table(segment, table_id(t), 5)
                written(table, rows_of(table, ids), encoding, codes)

            return content

        store = history(table_schema, baseline, *(delta(*change) for change in changes))
        about = f"Differences of logarithmic codes of three values per row, in groups of {next_} rows on {first}."
        yield sound(f"residual-log-rows-{first}", store, about, {"item": expected({"weight": values(meant(sums))})})


def elements() -> Vector:
    """Parts of ranges of elements, other ones in each step; in one of them, some elements go to a grid."""
    base, dim = np.array(spread(4, 7)), 7
    more = np.where(base < TOP // 2, 3, -5)
    table_schema = some(("state", [dim]), name="log strips", count=4, dim=dim)
    steps = [
        [("absolute", 0, 3, 2), ("absolute", 3, 7, 16384)],
        [("residual", 0, 5, 3), ("residual", 5, 7, 32768)],
        [("residual", 2, 4, 1)],
        [("absolute", 1, 3, 4)],
        [("residual", 0, 6, 10922), ("residual", 6, 7, 65536)],
    ]
    sums = np.zeros(base.shape, int)
    for step in steps:
        for kind, first, end, _ in step:
            of = np.s_[:, first:end]
            sums[of] = base[of] if kind == "absolute" else sums[of] + more[of]

    def content(number: int, segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), 4)
        for name in ("weight", "state"):
            for kind, first, end, group in steps[number]:
                # Of two rows of the state, the last element is on a grid from the third step on.
                ids = [2, 3] if (name, number, first) == ("state", 4, 6) else [0, 1, 2, 3]
                codes = (base if kind == "absolute" else more)[ids, first:end].tolist()
                written(table, rows_of(table, ids), log(kind, group), codes, column=name, first=first)
        if number == 2:
            encoding = grid("absolute", -3, "rans", None, 2)
            written(table, rows_of(table, [0, 1]), encoding, [[5], [-6]], column="state", first=6)

    store = history(table_schema, *(functools.partial(content, number) for number in range(len(steps))))
    state = meant(sums)
    state[:2, 6] = values_of([5, -6], -3)
    about = "Columns of logarithmic codes in parts of element ranges, of which no two steps have the same."
    found = {"weight": values(meant(sums)), "state": values(state)}
    return sound("residual-log-rows-elements", store, about, {"item": expected(found)})


def keyed() -> Vector:
    """A keyed table: rows that are deleted and come back, new ones, two of them on a grid in between."""
    table_schema = some(name="keyed log rows", count=None)
    base = spread(4, 3)
    base[1], base[3] = [10, 20, 30], [100, 200, 300]

    def baseline(segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), None)
        written(table, rows_of(table, [-5, 0, 7, 900]), log("absolute", 2), base)

    def gone(segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), None)
        written(table, rows_of(table, [0, 900]), log("residual", 2), [[1, 2, 3], [-1, -1, -1]])
        table.json["deleted"] = rows_of(table, [7])

    def back(segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), None)
        written(table, rows_of(table, [7, 8]), log("absolute", 1), [[5, 5, 5], [6, 6, 6]])
        written(table, rows_of(table, [0]), grid("absolute", -2, "packed", None, 1), [[1, -2, 3]])
        written(table, rows_of(table, [900]), log("residual", 65536 // 3), [[0, 0, 1]])

    def last(segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), None)
        written(table, rows_of(table, [0]), grid("residual", -2, "rans", None, 1), [[1, 1, 1]])
        written(table, rows_of(table, [7, 8, 900]), log("residual", 3), [[-1, -2, -3]] * 3)

    store = history(table_schema, baseline, gone, back, last)
    rows = meant([base[0], [0, 0, 0], [4, 3, 2], [5, 4, 3], [98, 197, 297]])
    rows[1] = values_of([2, -1, 4], -2)
    about = "Logarithmic codes of a keyed table: a key is deleted and comes back, another is new, one goes to a grid."
    found = {"item": expected({"weight": values(rows)}, [-5, 0, 7, 8, 900])}
    return sound("residual-log-rows-keyed", store, about, found)


def exceptions() -> Vector:
    """Exceptions of absolute and of residual parts; rows that nothing was written of read as the fill value."""
    exact = np.array([[np.nan, 1e30, -0.0], [np.inf, -0.1, 3]], "f4")
    table_schema = some(("state", [3]), name="exact log rows", count=6)

    def part(table: Table, kind: str, ids: Sequence[int], codes: Rows, odd: Sequence[int]) -> None:
        main = written(table, rows_of(table, ids), log(kind, 2), codes, column="state")
        if odd:
            table.part("state", rows_of(table, odd), (0, 3), FLOAT, exact[: len(odd)].tobytes(), exceptions_of=main)

    def first(segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), 6)
        written(table, table.span(0, 5), grid("absolute", 0, "packed", None, 1), [[1, 2, 3]] * 6)

    def content(number: int, segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), 6)
        if number == 0:
            part(table, "absolute", [0, 1, 2, 3], [[9, 0, TOP], [0, 0, 0], [4, 0, 0], [0, 0, 0]], [1, 3])
        elif number == 1:
            part(table, "absolute", [1, 3], [[8, 8, 8], [0, 9, 0]], [])
        else:
            part(table, "residual", [0, 1, 2], [[3, 4, -5], [1, 1, 1], [0, 0, 0]], [2])

    store = history(table_schema, first, *(functools.partial(content, number) for number in range(3)))
    state = meant([[12, 4, TOP - 5], [9, 9, 9], [0, 0, 0], [0, 9, 0], [0, 0, 0], [0, 0, 0]])
    state[2] = exact[0]
    found = {"weight": values(values_of([[1, 2, 3]] * 6, 0)), "state": values(state)}
    about = "Exception parts of logarithmic codes of three values per row; rows that were exact become codes again."
    return sound("exceptions-log-rows", store, about, {"item": expected(found)})


def beside() -> Vector:
    """A column of one value per row and columns of `dim` values per row, where `dim` is 1, too."""
    codes = [[0], [TOP], [7]]
    table_schema = some(("one", []), ("rows", [1]), name="log of one", count=3, dim=1)

    def content(segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), 3)
        span = table.span(0, 2)
        for name in ("weight", "one", "rows"):
            written(table, span, log("absolute", 65536), codes, column=name)

    rows = meant(codes)
    found = {"weight": values(rows), "one": values(rows[:, 0]), "rows": values(rows)}
    about = "Logarithmic codes of one value per row and of `dim` values per row, where `dim` is 1."
    store = one_small(content=content, tables=[table_schema])
    return sound("log-rans-rows-of-1", store, about, {"item": expected(found)})


def vectors() -> Iterator[Vector]:
    """All vectors of this module."""
    yield from absolute()
    yield from residuals()
    yield elements()
    yield keyed()
    yield exceptions()
    yield beside()
