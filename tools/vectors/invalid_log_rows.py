"""Invalid vectors about logarithmic codes of `dim` values per row: what is wrong is mostly in one element of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from vectors.cases import FLOAT, Vector, broken, floats, history, one_small, put, table_id
from vectors.container import schema
from vectors.integers import Models, Rows, assembled, section
from vectors.invalid_integers import patched
from vectors.invalid_sums import ALL, COLUMNS, COUNT, DENSE, KEYED, WIDTH, log, step
from vectors.layout import Segment, Table
from vectors.parts import LOG, PART, single
from vectors.valid_integers import TOP, grid, rows_of, written

ABSOLUTE, RESIDUAL = log("absolute"), log("residual")
BASE = [[0, 4095, 7], [100, 1, 4000], [1, 2, 4095], [4, 5, 6]]
MORE = [[1, -1, 0], [5, 0, -7], [0, 0, 0], [1, 1, 1]]
NOTHING = [[0, 0, 0]] * COUNT


def with_one(code: int, row: int = 1, element: int = 2) -> Rows:
    """Zeros, but for one element of a row."""
    codes = [[0] * WIDTH for _ in ALL]
    codes[row][element] = code
    return codes


def encodings_of_columns() -> Iterator[Vector]:
    """Rules 26 and 27: what such columns may have, and how long it is at least."""
    for group in (21846, 65536):
        store = single(ABSOLUTE, hook=put(*PART, "encoding", "group", group), of_weight=True)
        about = f"Logarithmic codes of three values per row in groups of {group} rows, where 21845 is the most."
        yield broken(27, f"log-rows-group-{group}", store, about)
    store = single(RESIDUAL, section(RESIDUAL, NOTHING), hook=put(*PART, "encoding", "group", 21846), of_weight=True)
    yield broken(27, "log-rows-group-residual", store, "Differences in groups of more values than there may be.", (57,))

    def narrow(segment: Segment) -> None:
        table = Table(segment, table_id(DENSE), COUNT)
        for first, end, group in ((0, 1, 65536), (1, 3, 32769)):
            codes = np.array(BASE)[:, first:end].tolist()
            written(table, table.span(0, COUNT - 1), log("absolute", group=group), codes, first=first)

    about = "Logarithmic codes of two of the elements of a column, in groups of 32769 rows."
    yield broken(27, "log-rows-group-elements", one_small(content=narrow, tables=[DENSE]), about)
    for clause, changes in (
        ("fixed", {"payload": "fixed", "group": None}),
        ("fixed-group", {"payload": "fixed"}),
        ("packed", {"payload": "packed"}),
    ):
        store = single(ABSOLUTE | changes, section(ABSOLUTE, NOTHING), of_weight=True)
        about = f"Logarithmic codes of three values per row of the payload {changes['payload']}"
        yield broken(27, f"log-rows-{clause}", store, f"{about}{' in groups' * (clause == 'fixed-group')}.")
    for dtype in ("float16", "int32"):
        store = single(ABSOLUTE, section(ABSOLUTE, NOTHING), dtype=dtype, of_weight=True)
        yield broken(27, f"log-rows-{dtype}", store, f"A {dtype} column of three values per row in logarithmic codes.")
    for clause, length, about in (
        ("directory", 16, "nothing but a directory"),
        ("fixed", 18, "as long as codes of 12 bits"),
        ("short", 103, "less than the states of its groups"),
    ):
        store = single(ABSOLUTE, bytes(length), of_weight=True)
        about = f"Logarithmic codes of four rows of three values in {length} bytes: {about}."
        yield broken(26, f"log-rows-{clause}", store, about)


def sections() -> Iterator[Vector]:
    """Rules 28, 48, 55 and 56: sections of such parts."""
    for clause, models in (
        ("exponent", Models([(1, 0, 4096)], [[4096]])),
        ("exponent-second", Models([(0, 0, 2048), (1, 1, 2048)], [[4096], [4096]])),
    ):
        store = single(ABSOLUTE, assembled([bytes(32)] * 2, models.head()), of_weight=True)
        about = "The head of a section of logarithmic codes of three values per row: a row kind has an exponent of 1."
        yield broken(55, f"log-rows-{clause}", store, about, (54, 56))
    for clause, code in (("greatest", 2**24), ("least", -(2**24))):
        store = single(ABSOLUTE, section(ABSOLUTE, with_one(code)), of_weight=True)
        about = f"A code of {code} in an element of a row, which no absolute part may have."
        yield broken(56, f"log-rows-{clause}", store, about, (58,))
    data = section(ABSOLUTE, with_one(50, 3))
    about = "Entropy-coded logarithmic codes of three values per row: a bit beyond the extra bits is set."
    yield broken(48, "log-rows", single(ABSOLUTE, patched(data, -1, bytes([data[-1] | 0x10])), of_weight=True), about)
    data = section(ABSOLUTE, BASE)
    about = "Entropy-coded logarithmic codes of three values per row: a byte of the last group is missing."
    yield broken(56, "log-rows-short", single(ABSOLUTE, data[:-1], of_weight=True), about, (48,))
    for kind, element in (("absolute", 0), ("residual", 1), ("absolute", 2)):

        def excepted(segment: Segment, kind: str = kind, element: int = element) -> None:
            table = Table(segment, table_id(DENSE), COUNT)
            main = written(table, table.span(0, 3), log(kind), with_one(1, 1, element))
            exact = np.ones((1, WIDTH), "<f4").tobytes()
            table.part("weight", table.span(1, 1), (0, WIDTH), FLOAT, exact, exceptions_of=main)

        store = history(DENSE, *([step((ALL, ABSOLUTE, BASE))] if kind == "residual" else []), excepted)
        about = f"The slot of an exception isn't zero: a logarithmic code of 1 in element {element} ({kind})."
        yield broken(28, f"slots-log-rows-{kind}-{element}", store, about)


def bases() -> Iterator[Vector]:
    """Rule 57: differences of such rows that have nothing to be added to, in all elements or in some."""
    under = step((ALL, ABSOLUTE, BASE))
    here = step(([1, 3], RESIDUAL, MORE[1::2]))
    store = history(DENSE, step((ALL, RESIDUAL, MORE)))
    yield broken(57, "log-rows-baseline", store, "Differences of logarithmic codes of `dim` values in a baseline.")
    for clause, changes in (("base", {"base": LOG["base"] + 1}), ("shift", {"shift": 14}), ("bits", {"bits": 8})):
        store = history(DENSE, under, step((ALL, RESIDUAL | changes, MORE)))
        yield broken(57, f"log-rows-{clause}", store, f"Differences of rows of codes of another `{clause}`.")
    on_grid = step((ALL, grid("absolute", -8, "packed", None, 2), BASE))
    store = history(DENSE, on_grid, step((ALL, RESIDUAL, MORE)))
    yield broken(57, "log-rows-on-grid", store, "Differences of logarithmic codes of three values per row on a grid.")
    store = history(DENSE, under, step((ALL, RESIDUAL, MORE), column="other"))
    yield broken(57, "log-rows-column", store, "Differences of logarithmic codes of another column.")

    def elements(first: int, encoding: Any = ABSOLUTE) -> Any:
        return step((ALL, encoding, np.array(BASE)[:, first : first + 2].tolist()), first=first)

    for first in (0, 1):
        store = history(DENSE, step(), elements(first), step((ALL, RESIDUAL, MORE)))
        about = f"Differences of three elements on codes of elements {first} and {first + 1}."
        yield broken(57, f"log-rows-elements-{first}", store, about)
        other = elements(first, log("absolute", base=LOG["base"] + 1))
        about = f"Differences of three elements, of which {first} and {first + 1} have codes of another `base`."
        yield broken(57, f"log-rows-elements-{first}-base", history(DENSE, under, other, here), about)

    def exact(first: int, width: int) -> Any:
        def content(segment: Segment) -> None:
            table = Table(segment, table_id(DENSE), COUNT)
            floats(table, "weight", rows_of(table, [3]), np.ones((1, width), "f4"), first)

        return content

    for clause, first, width in (("raw", 0, 3), ("raw-element", 2, 1)):
        about = f"A row of differences of logarithmic codes was written raw before it, {width} of its elements."
        yield broken(57, f"log-rows-{clause}", history(DENSE, under, exact(first, width), here), about)

    def exception(kind: str) -> Any:
        def content(segment: Segment) -> None:
            table = Table(segment, table_id(DENSE), COUNT)
            main = written(table, rows_of(table, [1, 3]), log(kind), [[1, 0, 9], [0, 0, 0]])
            floats(table, "weight", rows_of(table, [3]), np.ones((1, WIDTH), "f4"))
            table.json["parts"][-1]["exceptions_of"] = main

        return content

    for kind in ("absolute", "residual"):
        about = f"A row of differences of logarithmic codes is an exception below it ({kind})."
        yield broken(57, f"log-rows-exception-{kind}", history(DENSE, under, exception(kind), here), about)
    small = schema("sums", "item", 3, WIDTH, *COLUMNS)
    store = history([DENSE, small, DENSE], under, step(rows=3), here)
    yield broken(57, "log-rows-cut", store, "A row of differences of logarithmic codes was cut off before it.")
    keyed = step((ALL, ABSOLUTE, BASE), table=KEYED)
    added = step(([1, 3], RESIDUAL, MORE[1::2]), table=KEYED)
    store = history(KEYED, keyed, step(table=KEYED, deleted=[3]), added)
    yield broken(57, "log-rows-deleted", store, "A row of differences of logarithmic codes was deleted before it.")
    store = history(KEYED, keyed, step(([3, 9], RESIDUAL, NOTHING[:2]), table=KEYED))
    yield broken(57, "log-rows-new", store, "Differences of logarithmic codes of a key that is new.")


def ranges() -> Iterator[Vector]:
    """Rule 58: codes, and sums of them, that are out of range in one element of a row."""
    for clause, wrong in (("minus-1", -1), ("4096", 4096), ("least", 1 - 2**24), ("greatest", TOP)):
        store = history(DENSE, step((ALL, ABSOLUTE, with_one(wrong, 3))))
        yield broken(58, f"log-rows-absolute-{clause}", store, f"A code of {wrong} in one element of a row.")
    under = step((ALL, ABSOLUTE, BASE))
    for clause, row, element, change in (
        ("below", 0, 0, -1),
        ("above", 0, 1, 1),
        ("below-last", 3, 2, -7),
        ("above-last", 2, 2, 1),
        ("far", 2, 1, 2**25 - 1),
    ):
        store = history(DENSE, under, step((ALL, RESIDUAL, with_one(change, row, element))))
        about = f"A difference of {change} to a code of {BASE[row][element]} in one element of a row."
        yield broken(58, f"log-rows-{clause}", store, about)
    over, back = (step(([2], RESIDUAL, [[0, 0, change]])) for change in (1, -1))
    about = "A sum of logarithmic codes that is out of range in an element, in a version before the newest."
    yield broken(58, "log-rows-between", history(DENSE, under, over, back), about)
    narrow = step((ALL, RESIDUAL, [[0, 0], [0, 0], [0, 1], [0, 0]]), first=1)
    about = "A difference of two elements of three, of which one leads beyond the last code."
    yield broken(58, "log-rows-elements", history(DENSE, under, narrow), about)


def vectors() -> Iterator[Vector]:
    """All vectors of this module."""
    yield from encodings_of_columns()
    yield from sections()
    yield from bases()
    yield from ranges()
