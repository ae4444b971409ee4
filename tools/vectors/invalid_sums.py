"""Invalid vectors about what parts of integers say together (rules 57 and 58)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from vectors import encodings
from vectors.cases import FLOAT, Content, Vector, broken, floats, history, table_id
from vectors.container import column, schema
from vectors.integers import Rows
from vectors.layout import Json, Segment, Table
from vectors.parts import KINDS, LOG, zeros
from vectors.valid_integers import TOP, grid, rows_of, written

COUNT, WIDTH = 4, 3
ALL = [0, 1, 2, 3]
COLUMNS = [column("weight", "float32", [WIDTH]), column("other", "float32", [WIDTH]), column("state", "float32", [])]
DENSE = schema("sums", "item", COUNT, WIDTH, *COLUMNS)
KEYED = schema("keyed sums", "item", None, WIDTH, *COLUMNS)
ABSOLUTE, RESIDUAL = grid("absolute", -8, "packed", None, 2), grid("residual", -8, "packed", None, 2)
BASE, MORE = [[5, -6, 7]] * COUNT, [[1, 2, -3]] * COUNT
LOG_BASE, LOG_MORE = ([[numbers] for numbers in codes] for codes in ([0, 4095, 7, 100], [1, -1, 0, 5]))


def log(kind: str, **changes: Any) -> Json:
    """The ENCODING of logarithmic codes."""
    return encodings.log(12, LOG["base"], LOG["shift"], kind, "rans", 3) | changes


def step(*parts: tuple[Sequence[int], Json, Rows], table: Json = DENSE, rows: int = COUNT, **how: Any) -> Content:
    """A segment with parts of one column: the ids, the encoding and the codes of each; raw ones are zeros."""
    gone, count = how.pop("deleted", None), rows if table is DENSE else None

    def content(segment: Segment) -> None:
        made = Table(segment, table_id(table), count)
        for ids, encoding, codes in parts:
            row_set = rows_of(made, ids)
            if encoding["name"] in ("log", "grid"):
                written(made, row_set, encoding, codes, **how)
            else:
                data = zeros(encoding, len(ids), WIDTH)
                made.part("weight", row_set, (0, WIDTH), encoding, data)
        if gone:
            made.json["deleted"] = rows_of(made, gone)

    return content


def of_columns() -> Iterator[Vector]:
    """Residual parts of columns that have nothing to add them to."""
    under = step((ALL, ABSOLUTE, BASE))
    for payload, bits, group in (("fixed", 4, None), ("packed", None, 2), ("rans", None, 2)):
        encoding = grid("residual", -8, payload, bits, group)
        store = history(DENSE, step((ALL, encoding, MORE)))
        yield broken(57, f"baseline-{payload}", store, f"A residual part in a baseline ({payload}).")
    store = history(DENSE, step((ALL, log("residual"), LOG_MORE), column="state"))
    yield broken(57, "baseline-log", store, "A residual part of logarithmic codes in a baseline.")
    store = history(DENSE, step((ALL, RESIDUAL, [[0, 0, 0]] * COUNT)))
    yield broken(57, "baseline-zeros", store, "A residual part of zeros in a baseline.")
    for clause, kind in (("raw", "raw"), ("rowwise", "packed"), ("cast", "cast")):
        store = history(DENSE, step((ALL, KINDS[kind], [])), step((ALL, RESIDUAL, MORE)))
        yield broken(57, clause, store, f"A residual part on a part of the kind {kind}.")
    store = history(DENSE, step(), step((ALL, RESIDUAL, MORE)))
    yield broken(57, "fill", store, "A residual part on rows that read as the fill.")
    for floor in (-9, -7):
        store = history(DENSE, under, step((ALL, grid("residual", floor, "packed", None, 2), MORE)))
        yield broken(57, f"floor-{abs(floor)}", store, f"A residual part of the floor {floor} on one of -8.")
    for clause, changes in (("base", {"base": LOG["base"] + 1}), ("shift", {"shift": 14}), ("bits", {"bits": 8})):
        store = history(
            DENSE,
            step((ALL, log("absolute"), LOG_BASE), column="state"),
            step((ALL, log("residual", **changes), LOG_MORE), column="state"),
        )
        yield broken(57, f"log-{clause}", store, f"A residual part of logarithmic codes of another `{clause}`.")
    store = history(
        DENSE,
        step((ALL, grid("absolute", -8, "packed", None, 2), [[row] for row in ALL]), column="state"),
        step((ALL, log("residual"), LOG_MORE), column="state"),
    )
    yield broken(57, "log-on-grid", store, "A residual part of logarithmic codes on a grid.")
    store = history(DENSE, under, step((ALL, RESIDUAL, MORE), column="other"))
    yield broken(57, "column", store, "A residual part of another column.")
    store = history(DENSE, step(), step(([0, 1], ABSOLUTE, BASE[:2]), ([2, 3], RESIDUAL, MORE[:2])))
    about = "An absolute part and a residual one of other rows in one step, and none before."
    yield broken(57, "same-step", store, about)

    def exact(segment: Segment) -> None:
        table = Table(segment, table_id(DENSE), COUNT)
        span = table.span(0, COUNT - 1)
        main = written(table, span, RESIDUAL, [[0, 0, 0]] * COUNT)
        table.part("weight", span, (0, WIDTH), FLOAT, zeros(FLOAT, COUNT, WIDTH), exceptions_of=main)

    about = "A residual part in a baseline whose rows are all exceptions."
    yield broken(57, "baseline-exceptions", history(DENSE, exact), about)


def of_rows() -> Iterator[Vector]:
    """Rows of residual parts that have nothing to add them to, where others of the column have."""
    under, some = step((ALL, ABSOLUTE, BASE)), [1, 3]
    here = step((some, RESIDUAL, MORE[:2]))

    def on(clause: str, about: str, *between: Content, last: Content = here, first: Content = under) -> Vector:
        return broken(57, f"row-{clause}", history(DENSE, first, *between, last), f"{about}.")

    sparse = step(([0, 1, 2], ABSOLUTE, BASE[:3]), ([3], KINDS["raw"], []))
    yield on("raw-baseline", "A row of a residual part is raw in the baseline", first=sparse)
    yield on("raw", "A row of a residual part was written raw before it", step(([3], KINDS["raw"], [])))
    yield on("rowwise", "A row of a residual part was written row-wise before it", step(([3], KINDS["packed"], [])))
    other = grid("absolute", -9, "packed", None, 1)
    yield on("grid", "A row of a residual part was written on another grid before it", step(([1], other, BASE[:1])))
    yield on("between", "A residual part between two is on a row without integers", step(([3], KINDS["raw"], [])), here)
    shadow = step(([1, 3], ABSOLUTE, BASE[:2]))
    about = "A row of a residual part without integers below it, which a newer part gives anew"
    yield on("overridden", about, step(([3], KINDS["raw"], [])), here, last=shadow)

    def elements(first: int, codes: Rows) -> Content:
        return step((ALL, ABSOLUTE, codes), first=first)

    store = history(DENSE, step(), elements(0, [[1, 2]] * COUNT), step((ALL, RESIDUAL, MORE)))
    yield broken(57, "element", store, "A residual part of three elements on an absolute one of two.")

    def exception(kind: Json) -> Content:
        def content(segment: Segment) -> None:
            table = Table(segment, table_id(DENSE), COUNT)
            main = written(table, rows_of(table, some), kind, [[1, 1, 1], [0, 0, 0]])
            floats(table, "weight", rows_of(table, [3]), np.ones((1, WIDTH), "f4"))
            table.json["parts"][-1]["exceptions_of"] = main

        return content

    yield on("exception", "A row of a residual part is an exception below it", exception(ABSOLUTE))
    yield on("exception-residual", "A row of a residual part is an exception of a residual part", exception(RESIDUAL))

    small = schema("sums", "item", 3, WIDTH, *COLUMNS)
    store = history([DENSE, small, DENSE, DENSE], under, step(rows=3), step(), here)
    yield broken(57, "row-cut", store, "A row of a residual part was cut off and came back.")
    store = history([DENSE, small, DENSE], under, step(rows=3), here)
    yield broken(57, "row-cut-last", store, "A row of a residual part was cut off in the step before it.")

    keyed = step((ALL, ABSOLUTE, BASE), table=KEYED)
    added = step((some, RESIDUAL, MORE[:2]), table=KEYED)
    store = history(KEYED, keyed, step(table=KEYED, deleted=[3]), added)
    yield broken(57, "row-deleted", store, "A row of a residual part was deleted before it.")
    store = history(KEYED, keyed, step(([3, 9], RESIDUAL, MORE[:2]), table=KEYED))
    yield broken(57, "row-new", store, "A residual part with a key that is new.")
    for payload in ("fixed", "rans"):
        encoding = grid("residual", -8, payload, 4 if payload == "fixed" else None, None if payload == "fixed" else 3)
        store = history(KEYED, keyed, step(([3, 9], encoding, [[1, 1, 1], [0, 0, 0]]), table=KEYED))
        yield broken(57, f"row-new-zeros-{payload}", store, f"A new key with differences of zero ({payload}).")
    store = history(
        DENSE,
        step((ALL, log("absolute"), LOG_BASE), column="state"),
        log_exact(),
        step((ALL, log("residual"), LOG_MORE), column="state"),
    )
    yield broken(57, "row-log", store, "A row of a residual part of logarithmic codes was written raw before it.")


def log_exact() -> Content:
    """A segment that writes a row of the column of one value raw."""

    def content(segment: Segment) -> None:
        table = Table(segment, table_id(DENSE), COUNT)
        floats(table, "state", rows_of(table, [2]), np.ones(1, "f4"))

    return content


def ranges() -> Iterator[Vector]:
    """Rule 58."""
    for payload, bits, group in (("fixed", 26, None), ("packed", None, 2), ("rans", None, 2)):
        absolute, residual = (grid(kind, 103, payload, bits, group) for kind in ("absolute", "residual"))
        for clause, base, change in (
            ("above", TOP, 1),
            ("below", -TOP, -1),
            ("far", TOP, 2 * TOP),
            ("across", -TOP, 2 * TOP + 1),
        ):
            changes = [[0] * 3] * 3 + [[0, 0, change]]
            store = history(DENSE, step((ALL, absolute, [[base] * 3] * 4)), step((ALL, residual, changes)))
            about = f"An integer of {base}, and a difference of {change} ({payload})."
            yield broken(58, f"{payload}-{clause}", store, about)
    absolute, residual = grid("absolute", 0, "packed", None, 2), grid("residual", 0, "packed", None, 2)
    top, back = step((ALL, absolute, [[TOP] * 3] * 4)), step((ALL, residual, [[-5] * 3] * 4))
    over = step((ALL, residual, [[5] * 3] * 4))
    about = "A sum that is out of range in a version before the newest."
    yield broken(58, "between", history(DENSE, top, over, back), about)
    anew = step((ALL, absolute, [[1] * 3] * 4))
    about = "A sum that is out of range, of rows that a newer part gives anew."
    yield broken(58, "overridden", history(DENSE, top, over, anew), about)

    codes, least = [[0], [4095], [7], [100]], [[-1], [0], [0], [0]]
    for clause, changes in (("below", least), ("above", [[0], [1], [0], [0]]), ("far", [[0], [0], [0], [2**25 - 1]])):
        store = history(
            DENSE,
            step((ALL, log("absolute"), codes), column="state"),
            step((ALL, log("residual"), changes), column="state"),
        )
        about = f"A difference of logarithmic codes that leads out of 0 .. 4095 ({clause})."
        yield broken(58, f"log-{clause}", store, about)
    for clause, wrong in (("minus-1", -1), ("4096", 4096), ("least", 1 - 2**24), ("greatest", TOP)):
        store = history(DENSE, step((ALL, log("absolute"), [[0], [wrong], [7], [100]]), column="state"))
        yield broken(58, f"log-absolute-{clause}", store, f"A logarithmic code of {wrong}.")
    fixed = encodings.log(12, LOG["base"], LOG["shift"])
    more = step((ALL, log("residual"), [[0], [1], [0], [0]]), column="state")
    store = history(DENSE, step((ALL, fixed, codes), column="state"), more)
    yield broken(58, "log-fixed", store, "A difference that leads beyond the greatest of the codes of 12 bits.")


def vectors() -> Iterator[Vector]:
    """All vectors of this module."""
    yield from of_columns()
    yield from of_rows()
    yield from ranges()
