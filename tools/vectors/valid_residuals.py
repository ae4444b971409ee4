"""Valid vectors about residual parts: chains of them, the ends of their ranges, exceptions."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from vectors import encodings
from vectors.cases import FLOAT, Content, Vector, expected, floats, history, sound, table_id, two_small, values
from vectors.integers import Rows, said
from vectors.integers import values as values_of
from vectors.layout import Json, Segment, Table
from vectors.valid_codes import LOGS
from vectors.valid_integers import TOP, grid, rows_of, some, spread, written


def residuals() -> Iterator[Vector]:
    """Differences of some rows on an absolute part, one version after another."""
    base, more = spread(5, 3, 7), [[1, -2, 3], [0, 0, 0], [-60, 7, 63]]
    for absolute, residual in (
        (("fixed", 7, None), ("fixed", 8, None)),
        (("packed", None, 2), ("packed", None, 2)),
        (("rans", None, 3), ("rans", None, 2)),
        (("rans", None, 512), ("packed", None, 512)),
        (("packed", None, 1), ("fixed", 7, None)),
        (("fixed", 9, None), ("rans", None, 1)),
    ):
        table_schema = some(name="residuals")
        first, next_ = grid("absolute", -6, *absolute), grid("residual", -6, *residual)
        names = f"{absolute[0]}-{residual[0]}"

        def baseline(segment: Segment, t: Json = table_schema, encoding: Json = first) -> None:
            table = Table(segment, table_id(t), 5)
            written(table, table.span(0, 4), encoding, base, [2, 0, 1, 0, 3])

        def delta(ids: list[int], t: Json = table_schema, encoding: Json = next_) -> Content:
            def content(segment: Segment) -> None:
                table = Table(segment, table_id(t), 5)
                written(table, rows_of(table, ids), encoding, more, [0, 0, 1])

            return content

        touched = [0, 1, 4], [1, 2, 3], [0, 2, 4]
        store = history(table_schema, baseline, *map(delta, touched))
        sums = said(base, [2, 0, 1, 0, 3])
        for ids in touched:
            sums[ids] += said(more, [0, 0, 1])
        about = f"Three versions of residual parts ({residual[0]}) on an absolute one ({absolute[0]})."
        yield sound(f"residual-{names}", store, about, {"item": expected({"weight": values(values_of(sums, -6))})})


def extremes() -> Vector:
    """The greatest integers, and the greatest differences between two of them."""
    base, back = [[TOP, -TOP, 0]] * 5, [[-2 * TOP, 2 * TOP, TOP]] * 5
    kinds = [("fixed", 26, None), ("packed", None, 3), ("rans", None, 3)]
    names = ["weight", "packed", "rans"]
    table_schema = some(("packed", [3]), ("rans", [3]), name="extremes")

    def content(kind: str, codes: Rows, segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), 5)
        span = table.span(0, 4)
        for name, layout in zip(names, kinds, strict=True):
            written(table, span, grid(kind, 103, *layout), codes, column=name)

    store = history(
        table_schema,
        lambda s: content("absolute", base, s),
        lambda s: content("residual", back, s),
        lambda s: content("residual", [[2 * TOP, -2 * TOP, -2 * TOP]] * 5, s),
    )
    result = values(values_of([[TOP, -TOP, -TOP]] * 5, 103))
    about = "Integers from one end of their range to the other and back, under each payload."
    return sound("residual-extremes", store, about, {"item": expected(dict.fromkeys(names, result))})


def elements() -> Vector:
    """Parts of ranges of elements, other ones in each step."""
    base, dim = spread(4, 7, 6), 7
    table_schema = some(name="strips", count=4, dim=dim)
    strips = [
        [("absolute", 0, 3, ("packed", None, 2)), ("absolute", 3, 7, ("fixed", 6, None))],
        [("residual", 0, 5, ("rans", None, 3)), ("residual", 5, 7, ("packed", None, 1))],
        [("residual", 2, 4, ("fixed", 6, None))],
        [("absolute", 1, 3, ("rans", None, 4))],
        [("residual", 0, 7, ("packed", None, 4))],
    ]
    array = np.array(base)

    def content(step: Any, segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), 4)
        span = table.span(0, 3)
        for kind, first, end, layout in step:
            written(table, span, grid(kind, -2, *layout), array[:, first:end].tolist(), first=first)

    store = history(table_schema, *(functools.partial(content, step) for step in strips))
    sums = np.zeros(array.shape, int)
    for step in strips:
        for kind, first, end, _ in step:
            sums[:, first:end] = array[:, first:end] + (sums[:, first:end] if kind == "residual" else 0)
    about = "A column on a grid in parts of element ranges, of which no two steps have the same."
    return sound("residual-elements", store, about, {"item": expected({"weight": values(values_of(sums, -2))})})


def log_residuals() -> Vector:
    """Differences of logarithmic codes."""
    base, changes = [[0], [4095], [7], [2000]], [[4095], [-4095], [0], [-1]]
    table_schema = some(("fixed", []), ("rans", []), name="log residuals", count=4, dim=1)
    pair = LOGS[12][0]

    def baseline(segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), 4)
        span = table.span(0, 3)
        written(table, span, encodings.log(12, *pair), base, column="fixed")
        written(table, span, encodings.log(12, *pair, "absolute", "rans", 2), base, column="rans")

    def delta(codes: Rows, segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), 4)
        span = table.span(0, 3)
        for name, group in (("fixed", 3), ("rans", 65536)):
            written(table, span, encodings.log(12, *pair, "residual", "rans", group), codes, column=name)

    store = history(table_schema, baseline, lambda s: delta(changes, s), lambda s: delta([[-1], [3], [0], [5]], s))
    result = values(encodings.log_values([4094, 3, 7, 2004], encodings.log(12, *pair)))
    found = {"weight": values(np.zeros((4, 1), "f4")), "fixed": result, "rans": result}
    about = "Differences of logarithmic codes, on 12-bit codes and on entropy-coded ones, from 0 to the last and back."
    return sound("residual-log", store, about, {"item": expected(found)})


def overridden() -> Vector:
    """Rows that leave the grid and come back to it, and grids that change."""
    base, more = spread(5, 3, 6), [[1, 1, 1], [2, 2, 2]]
    table_schema = some(name="grids")
    exact = np.array([[0.1, 0.2, 0.3]], "f4")

    def on(ids: list[int], encoding: Json, codes: Rows, segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), 5)
        written(table, rows_of(table, ids), encoding, codes)

    def raw(segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), 5)
        floats(table, "weight", rows_of(table, [1]), exact)

    def back(segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), 5)
        written(table, rows_of(table, [1, 3]), grid("absolute", -9, "packed", None, 1), more)
        written(table, rows_of(table, [0, 2]), grid("residual", -3, "packed", None, 1), more)

    store = history(
        table_schema,
        lambda s: on([0, 1, 2, 3, 4], grid("absolute", -3, "fixed", 6), base, s),
        raw,
        back,
        lambda s: on([1, 3], grid("residual", -9, "rans", None, 2), more, s),
        lambda s: on([0, 4], grid("residual", -3, "rans", None, 2), more, s),
    )
    result = values_of(base, -3)
    result[[1, 3]] = values_of(2 * np.array(more), -9)
    result[0] = values_of(np.array(base[0]) + 2, -3)
    result[2] += values_of([2, 2, 2], -3)
    result[4] += values_of([2, 2, 2], -3)
    about = "Rows that go raw and to another grid, whose residual parts count from there."
    return sound("residual-grids", store, about, {"item": expected({"weight": values(result)})})


def keyed() -> Vector:
    """A keyed table: rows that are deleted and come back, new ones, two segments of one step."""
    table_schema = some(name="keyed", count=None)
    residual, absolute = grid("residual", -1, "rans", None, 2), grid("absolute", -1, "packed", None, 2)

    def baseline(segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), None)
        written(table, rows_of(table, [-5, 0, 7, 900]), absolute, spread(4, 3, 5))

    def gone(segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), None)
        written(table, rows_of(table, [0, 900]), residual, [[1, 2, 3], [-1, -1, -1]])
        table.json["deleted"] = rows_of(table, [7])

    def back(segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), None)
        written(table, rows_of(table, [7, 8]), absolute, [[5, 5, 5], [6, 6, 6]])
        written(table, rows_of(table, [-5, 900]), residual, [[1, 0, 0], [0, 0, 1]])

    def last(segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), None)
        written(table, rows_of(table, [7, 8, 900]), residual, [[-1, -2, -3]] * 3)

    store = history(table_schema, baseline, gone, back, last)
    sums = np.array([*spread(4, 3, 5), [5, 5, 5], [6, 6, 6]])
    sums[1] += [1, 2, 3]
    sums[3] += [-1, -1, -1]
    sums[0] += [1, 0, 0]
    sums[3] += [0, 0, 1]
    sums[[3, 4, 5]] += [-1, -2, -3]
    result = values_of(sums[[0, 1, 4, 5, 3]], -1)
    about = "A keyed table on a grid: a key is deleted and comes back, another is new, both are added to."
    found = {"item": expected({"weight": values(result)}, [-5, 0, 7, 8, 900])}
    return sound("residual-keyed", store, about, found)


def resized() -> Vector:
    """A dense table that shrinks and grows: its new rows begin anew."""
    schemas = [some(name="resized", count=count) for count in (5, 3, 6)]
    absolute, residual = grid("absolute", 0, "packed", None, 4), grid("residual", 0, "packed", None, 4)

    def content(number: int, segment: Segment) -> None:
        table = Table(segment, table_id(schemas[0]), (5, 3, 6)[number])
        if number == 0:
            written(table, table.span(0, 4), absolute, [[row, row, 1] for row in range(5)])
        if number == 2:
            written(table, table.span(0, 2), residual, [[10, 20, 30]] * 3)
            written(table, table.span(4, 4), absolute, [[7, 7, 7]])

    store = history(schemas, *(functools.partial(content, number) for number in range(3)))
    result = np.zeros((6, 3), "f4")
    result[:3] = [[row + 10, row + 20, 31] for row in range(3)]
    result[4] = 7
    about = "A table on a grid shrinks and grows: rows that were kept are added to, a new one is absolute."
    return sound("residual-resized", store, about, {"item": expected({"weight": values(result)})})


def exceptions() -> Vector:
    """Exceptions of absolute and of residual parts, under every payload."""
    count, odd, exact = 5, [1, 3], np.array([[np.nan, 1e30, -0.0], [np.inf, 0.1, 3]], "f4")
    layouts = {"weight": ("fixed", 9, None), "packed": ("packed", None, 2), "rans": ("rans", None, 2)}
    table_schema = some(("packed", [3]), ("rans", [3]), ("log", []), name="exact integers")
    base, log = spread(count, 3, 6), [[9], [0], [4], [0], [1000]]
    more = [[3, -4, 5] for _ in range(count)]
    for row in odd:
        base[row] = more[row] = [0, 0, 0]

    def content(kind: str, codes: Rows, logs: Rows, ids: list[int], odd: list[int], segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), count)
        whole, some_ = rows_of(table, ids), rows_of(table, odd) if odd else None
        for name, layout in layouts.items():
            main = written(table, whole, grid(kind, -4, *layout), codes, column=name)
            if some_ is not None:
                table.part(name, some_, (0, 3), FLOAT, exact[: len(odd)].tobytes(), exceptions_of=main)
        main = written(table, whole, encodings.log(12, *LOGS[12][0], kind, "rans", 2), logs, column="log")
        if some_ is not None:
            table.part("log", some_, (0, 1), FLOAT, exact[: len(odd), :1].tobytes(), exceptions_of=main)

    store = history(
        table_schema,
        # Row 1 and 3 are exact; both become integers; row 4 is exact, on top of an integer; all others are added to.
        lambda s: content("absolute", base, log, [0, 1, 2, 3, 4], odd, s),
        lambda s: content("absolute", [[8, 8, 8], [9, 9, 9]], [[8], [9]], odd, [], s),
        lambda s: content("residual", [*more[:1], [1, 1, 1], [0, 0, 0]], [[3], [1], [0]], [0, 1, 4], [4], s),
    )
    sums = np.array(base)
    sums[odd] = [[8, 8, 8], [9, 9, 9]]
    sums[0] += [3, -4, 5]
    sums[1] += 1
    result = values_of(sums, -4)
    result[4] = exact[0]
    of_log = encodings.log_values([12, 9, 4, 9, 0], encodings.log(12, *LOGS[12][0]))
    of_log[4] = exact[0, 0]
    found = {**dict.fromkeys(layouts, values(result)), "log": values(of_log)}
    about = "Exception parts of absolute and of residual parts; rows that were exact become integers again."
    return sound("exceptions-integers", store, about, {"item": expected(found)})


def all_exceptions() -> Vector:
    """A residual part of which every row is an exception, one of them without a base."""
    table_schema = some(name="all exact")
    exact = np.array([[np.nan, 1, 2], [3, 4, np.inf]], "f4")

    def baseline(segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), 5)
        floats(table, "weight", rows_of(table, [1, 3]), exact)
        written(table, rows_of(table, [0, 2, 4]), grid("absolute", 0, "packed", None, 2), spread(3, 3, 4))

    def delta(segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), 5)
        ids = rows_of(table, [1, 2])
        main = written(table, ids, grid("residual", 0, "packed", None, 2), [[0, 0, 0]] * 2)
        table.part("weight", ids, (0, 3), FLOAT, exact[::-1].tobytes(), exceptions_of=main)

    result = np.zeros((5, 3), "f4")
    result[[0, 2, 4]], result[[1, 3]] = values_of(spread(3, 3, 4), 0), exact
    result[[1, 2]] = exact[::-1]
    about = "A residual part whose rows are all exceptions, which need no integer below them."
    store = two_small(delta, [table_schema], before=baseline)
    return sound("residual-all-exceptions", store, about, {"item": expected({"weight": values(result)})})


def vectors() -> Iterator[Vector]:
    """All vectors of this module."""
    yield from residuals()
    yield extremes()
    yield elements()
    yield log_residuals()
    yield overridden()
    yield keyed()
    yield resized()
    yield exceptions()
    yield all_exceptions()
