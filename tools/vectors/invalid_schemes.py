"""Invalid vectors about schemes (rules 5, 6, 7 and 53)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vectors import encodings
from vectors.cases import FLOAT, Vector, broken, drop, one_small, put, swap, table_id
from vectors.container import schema
from vectors.layout import Segment, Table
from vectors.parts import COUNT, KINDS, PART, WIDTH, single, zeros

SCHEME = (*PART, "scheme")
TABLE = schema("coded", "item", COUNT, WIDTH)
# Methods that belong to other encodings, or to none.
METHODS = {
    "cast": ["asymmetric", "kmeans", "raw", "none"],
    "tail": ["kmeans", "cast", "log", "uniform", "Asymmetric", "asymmetric ", ""],
    "head": ["kmeans", "log"],
    "packed": ["symmetric", "kmeans"],
    "biasless": ["asymmetric", "adaptive", "lsq"],
    "codebook": ["asymmetric", "lsq", "k-means"],
    "blocks": ["adaptive"],
    "log": ["asymmetric", "cast", "symmetric"],
    "log-rans": ["closed-loop", "asymmetric"],
    "grid": ["log", "symmetric", "closed loop"],
    "grid-packed": ["lsq"],
    "grid-rans": ["Closed-loop", "rans"],
}
STEP: dict[str, Any] = {"size": 0.5, "reference": 0.125, "column": "weight"}
STEPS: list[tuple[str, Any]] = [
    *(("size", value) for value in (0, 0.0, -0.0, -1, -5e-324)),
    *(("reference", value) for value in (-1, -5e-324)),
]
STEP_TYPES: list[tuple[str, Any]] = [
    *(("size", value) for value in (None, "0.5", True, [0.5])),
    *(("reference", value) for value in ("0.5", False, {})),
    *(("column", value) for value in (7, True, ["weight"], {})),
]
ABOVE_ONE = 1.0000000000000002
RANGES: list[tuple[str, Any]] = [
    *((key, value) for key in ("num_bins", "starts") for value in (0, -1, 65537, 2**53 - 1)),
    *(("ratio", value) for value in (0, 0.0, -0.0, -0.5, ABOVE_ONE, 2, 1e308)),
    *(("bound", value) for value in (-1, -5e-324)),
    *((key, value) for key in ("mean_error", "max_error") for value in (-1, -1e-9)),
]
TYPES: list[tuple[str, Any]] = [
    *(("method", value) for value in (None, 7, ["asymmetric"])),
    *((key, value) for key in ("num_bins", "starts") for value in ("25", 2.5, 25.0, True, [25])),
    *((key, value) for key in ("ratio", "bound") for value in ("0.5", True, [0.5], {})),
    *((key, value) for key in ("mean_error", "max_error") for value in (None, "0", False, [0])),
]


def clause_of(key: str, value: Any) -> str:
    """A name for the value of a key."""
    text = "above-one" if value == ABOVE_ONE else str(value)
    if isinstance(value, float) and value == 0:
        text = "minus-zero" if str(value) == "-0.0" else "float-zero"
    elif not isinstance(value, int | float) or isinstance(value, bool):
        text = type(value).__name__.lower()
    return f"{key.replace('_', '-')}-{text.replace('-', 'minus-', 1) if text.startswith('-') else text}"


def coded(segment: Segment) -> Table:
    """A table with one part, row-wise."""
    table = Table(segment, table_id(TABLE), COUNT)
    table.part("weight", table.span(0, COUNT - 1), (0, WIDTH), KINDS["tail"], zeros(KINDS["tail"]))
    return table


def presence() -> Iterator[Vector]:
    """Rule 53: a scheme exactly where the encoding isn't raw."""
    for kind, encoding in KINDS.items():
        if kind != "raw":
            store = single(encoding, hook=put(*SCHEME, None))
            yield broken(53, f"null-{kind}", store, f"No scheme beside a part of the kind {kind}.")
    scheme = encodings.scheme(KINDS["tail"])
    assert scheme is not None
    for method in ("raw", "asymmetric"):
        store = one_small({"toc": put(*SCHEME, scheme | {"method": method})})
        yield broken(53, f"of-raw-{method}", store, f"A scheme of the method {method} beside a raw part.")

    def excepted(segment: Segment) -> None:
        table, row = coded(segment), zeros(FLOAT, 1)
        table.part("weight", table.span(1, 1), (0, WIDTH), FLOAT, row, exceptions_of=0, scheme=scheme)

    store = one_small(content=excepted, tables=[TABLE])
    yield broken(53, "of-exception", store, "A scheme beside an exception part.")


def values() -> Iterator[Vector]:
    """Rule 53: methods and ranges."""
    for kind, methods in METHODS.items():
        for method in methods:
            store = single(KINDS[kind], hook=put(*SCHEME, "method", method))
            clause = "space" if method.endswith(" ") else method.lower() or "empty"
            clause = f"upper-case-{clause}" if method.lower() != method else clause
            yield broken(
                53, f"method-{kind}-{clause}", store, f"The method {method!r} beside a part of the kind {kind}."
            )
    for key, value in RANGES:
        changes = {"method": "lsq", "max_error": 1.0 if value == -1e-9 else 0.0, key: value}
        store = single(KINDS["tail"], scheme=encodings.scheme(KINDS["tail"], **changes))
        yield broken(53, clause_of(key, value), store, f"`{key}` of a scheme is {value!r}.")
    for key, value in STEPS:
        store = single(KINDS["grid"], scheme=encodings.scheme(KINDS["grid"], step=STEP | {key: value}))
        yield broken(53, f"step-{clause_of(key, value)}", store, f"`{key}` of the step of a scheme is {value!r}.")
    for kind in KINDS:
        if kind != "raw" and not kind.startswith("grid"):
            store = single(KINDS[kind], scheme=encodings.scheme(KINDS[kind], step=STEP))
            yield broken(53, f"step-{kind}", store, f"A step in the scheme of a part of the kind {kind}.")
    for clause, mean, most in (
        ("errors-order", 0.5, 0.25),
        ("errors-order-least", 5e-324, 0.0),
        ("errors-negative", -0.5, -0.25),
    ):
        changes = {"mean_error": mean, "max_error": most}
        store = single(KINDS["packed"], scheme=encodings.scheme(KINDS["packed"], **changes))
        yield broken(53, clause, store, f"A mean error of {mean}, a greatest of {most}.")


def fields() -> Iterator[Vector]:
    """Rules 5 and 6."""
    for key in ("method", "num_bins", "ratio", "starts", "bound", "step", "mean_error", "max_error"):
        name = key.replace("_", "-")
        store = single(KINDS["tail"], hook=drop(*SCHEME, key))
        yield broken(6, f"scheme-{name}-missing", store, f"A scheme without `{key}`.")
    store = single(KINDS["log"], hook=put(*SCHEME, "colour", "red"))
    yield broken(6, "scheme-key-further", store, "A further key in a scheme.")
    for key, value in TYPES:
        store = single(KINDS["tail"], hook=put(*SCHEME, key, value))
        yield broken(6, f"scheme-{clause_of(key, value)}", store, f"`{key}` of a scheme is {value!r}.")
    of_grid = encodings.scheme(KINDS["grid"], step=STEP)
    for key in STEP:
        store = single(KINDS["grid"], scheme=of_grid, hook=drop(*SCHEME, "step", key))
        yield broken(6, f"scheme-step-{key}-missing", store, f"The step of a scheme without `{key}`.")
    store = single(KINDS["grid"], scheme=of_grid, hook=put(*SCHEME, "step", "colour", "red"))
    yield broken(6, "scheme-step-key-further", store, "A further key in the step of a scheme.")
    for key, value in STEP_TYPES:
        store = single(KINDS["grid"], scheme=of_grid, hook=put(*SCHEME, "step", key, value))
        yield broken(6, f"scheme-step-{clause_of(key, value)}", store, f"`{key}` of the step of a scheme is {value!r}.")
    for value in ([], "0.5", 0.5, True):
        store = single(KINDS["grid"], hook=put(*SCHEME, "step", value))
        yield broken(6, f"scheme-step-{type(value).__name__}", store, f"The step of a scheme as {value!r}.")
    for clause, value in (("empty", ""), ("control", "a\u007fb")):
        store = single(KINDS["grid"], scheme=of_grid, hook=put(*SCHEME, "step", "column", value))
        yield broken(7, f"scheme-step-{clause}", store, f"The step of a scheme names the column {value!r}.")
    for value in ([], "asymmetric", 0, False):
        clause = type(value).__name__
        store = single(KINDS["tail"], hook=put(*SCHEME, value))
        yield broken(6, f"scheme-{clause}", store, f"A scheme as {value!r}.")
    store = one_small({"toc": put(*SCHEME, [])})
    yield broken(6, "scheme-list-raw", store, "An empty list for the scheme of a raw part.", (53,))
    for clause, text in (("nan", "NaN"), ("infinity", "Infinity"), ("overflow", "1e999")):
        hooks = {"toc text": swap('"mean_error":0.0', f'"mean_error":{text}')}
        store = one_small(hooks, coded, [TABLE])
        yield broken(5, f"scheme-{clause}", store, f"A mean error of {text}.")


def vectors() -> Iterator[Vector]:
    """All vectors of this module."""
    yield from presence()
    yield from values()
    yield from fields()
