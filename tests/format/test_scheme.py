"""What metadata says of the choice of codes (specification, section 6.6)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cnrfmt.errors import DamagedError
from cnrfmt.format import strict_json
from cnrfmt.format.encoding import (
    CastLayout,
    CodebookLayout,
    GridLayout,
    Layout,
    LogLayout,
    RawLayout,
    RowwiseLayout,
)
from cnrfmt.format.scheme import MAX_SEARCH, NO_ERRORS, Errors, Scheme, Step, methods_of, parse_scheme, scheme_json

TAIL, HEAD = RowwiseLayout(8), RowwiseLayout(4, "head", "float16", "float16")
GRID = GridLayout("residual", -16, "rans", None, 64)
PACKED, BIASLESS = RowwiseLayout(3, "packed"), RowwiseLayout(3, "packed", "float16", None)
METHODS: dict[Layout, tuple[str, ...]] = {
    RawLayout("float32"): (),
    CastLayout("float16"): ("cast",),
    TAIL: ("symmetric", "asymmetric", "adaptive", "lsq"),
    HEAD: ("symmetric", "asymmetric", "adaptive", "lsq"),
    PACKED: ("asymmetric", "adaptive", "lsq"),
    BIASLESS: ("symmetric",),
    CodebookLayout(2): ("kmeans",),
    LogLayout(12, 1, 0): ("log",),
    LogLayout(12, 1, 0, "residual", "rans", 5): ("log",),
    GRID: ("closed-loop",),
    GridLayout("absolute", 0, "fixed", 3): ("closed-loop",),
}
EVERY = ("symmetric", "asymmetric", "adaptive", "lsq", "kmeans", "cast", "log", "closed-loop", "raw", "")
SCHEMES = [
    (PACKED, Scheme("asymmetric"), NO_ERRORS),
    (PACKED, Scheme("adaptive", 25, 0.5), Errors(0.1, 0.1)),
    (TAIL, Scheme("adaptive", MAX_SEARCH, 1.0, None, 0.0), Errors(0.0, 1e308)),
    (HEAD, Scheme("lsq", 1, 5e-324, MAX_SEARCH, 1e308), Errors(1e-300, 2.5)),
    (CodebookLayout(2), Scheme("kmeans", bound=0.25), Errors(0.125, 0.25)),
    (GRID, Scheme("closed-loop", step=Step(0.02, 0.125, "accumulator")), Errors(0.125, 0.25)),
    (GRID, Scheme("closed-loop", step=Step(5e-324)), Errors(0.125, 0.25)),
    (GRID, Scheme("closed-loop", step=Step(1e308, 0.0)), NO_ERRORS),
    (GRID, Scheme("closed-loop", bound=0.5), NO_ERRORS),
]


def parse(value: Any, layout: Layout = PACKED, *, lenient: bool = False) -> tuple[Scheme | None, Errors]:
    return parse_scheme(strict_json.parse(json.dumps(value).encode(), "here"), layout, "here", lenient=lenient)


def refused(rule: str, value: Any, layout: Layout = PACKED) -> str:
    with pytest.raises(DamagedError) as caught:
        parse(value, layout)
    assert caught.value.rule == rule, caught.value
    return caught.value.place


def value(**change: Any) -> Any:
    return {**json.loads(strict_json.dump(scheme_json(*SCHEMES[1][1:]))), **change}


@pytest.mark.parametrize("layout", METHODS, ids=str)
def test_methods_are_those_of_the_table(layout: Layout) -> None:
    assert methods_of(layout) == METHODS[layout]
    for method in EVERY:
        found = value(method=method, num_bins=None, ratio=None)
        if method in METHODS[layout]:
            assert parse(found, layout) == (Scheme(method), Errors(0.1, 0.1))
        else:
            refused("part-scheme", found, layout)


@pytest.mark.parametrize(("layout", "scheme", "errors"), SCHEMES)
def test_metadata_says_all_of_a_scheme(layout: Layout, scheme: Scheme, errors: Errors) -> None:
    assert parse(json.loads(strict_json.dump(scheme_json(scheme, errors))), layout) == (scheme, errors)


def test_raw_rows_alone_have_none() -> None:
    assert scheme_json(None, NO_ERRORS) is None
    assert parse(None, RawLayout("float32")) == (None, NO_ERRORS)
    assert refused("part-scheme", None) == "here"
    assert refused("part-scheme", value(), RawLayout("float32")) == "here"


def test_every_key_is_there_and_no_other() -> None:
    for key in value():
        refused("json-field", {k: v for k, v in value().items() if k != key})
    refused("json-field", value(more=1))
    assert parse(value(more=1), lenient=True) == parse(value())
    for other in ([], "adaptive", 5, True):
        refused("json-field", other)


@pytest.mark.parametrize("key", ["num_bins", "starts"])
def test_counts(key: str) -> None:
    for good in (None, 1, MAX_SEARCH):
        scheme, _ = parse(value(**{key: good}))
        assert getattr(scheme, key) == good
    for bad in (0, -1, MAX_SEARCH + 1):
        assert refused("part-scheme", value(**{key: bad})) == f"here, {key}"
    for other in (1.5, 2.0, True, "2", [2]):
        assert refused("json-field", value(**{key: other})) == f"here, {key}"


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("ratio", [None, 1, 1.0, 0.5, 5e-324], [0, 0.0, -0.5, 1.0000001, 2]),
        ("bound", [None, 0, 0.5, 1e308, 7], [-1, -1e-300]),
        ("mean_error", [0, 0.1, 1e-320], [-0.1, 0.2, 1]),
        ("max_error", [0.1, 1, 1e308], [-0.1, 0.05, 0]),
    ],
)
def test_numbers(key: str, good: list[Any], bad: list[Any]) -> None:
    for number in good:
        scheme, errors = parse(value(**{key: number}))
        found = {"mean_error": errors.mean, "max_error": errors.worst}.get(key, getattr(scheme, key, None))
        assert found == number
        assert found is None or type(found) is float
    for number in bad:
        refused("part-scheme", value(**{key: number}))
    for other in (True, "0.5", [0.5], {}):
        assert refused("json-field", value(**{key: other})) == f"here, {key}"


@pytest.mark.parametrize("key", ["mean_error", "max_error", "method"])
def test_what_may_not_be_null(key: str) -> None:
    refused("json-field", value(**{key: None}))


def test_infinities_are_no_numbers() -> None:
    with pytest.raises(DamagedError) as caught:
        parse_scheme({**value(), "bound": float("inf")}, PACKED, "here", lenient=False)
    assert caught.value.rule == "part-scheme"


def step(**change: Any) -> Any:
    found = value(method="closed-loop", num_bins=None, ratio=None)
    return {**found, "step": {"size": 1, "reference": 2.5, "column": "g", **change}}


@pytest.mark.parametrize(
    ("key", "good", "bad", "other"),
    [
        ("size", [1, 0.5, 5e-324], [0, 0.0, -1, -0.5], [None, True, "1", [1]]),
        ("reference", [None, 0, 0.5, 1e308], [-1, -1e-300], [True, "1", [1]]),
        ("column", [None, "g", "momentum"], [], [True, 1, ["g"]]),
    ],
)
def test_steps(key: str, good: list[Any], bad: list[Any], other: list[Any]) -> None:
    for found in good:
        scheme, _ = parse(step(**{key: found}), GRID)
        assert scheme is not None
        assert getattr(scheme.step, key) == found
    for rule, values in (("part-scheme", bad), ("json-field", other)):
        for found in values:
            assert refused(rule, step(**{key: found}), GRID) == f"here, step, {key}"


def test_the_step_of_a_scheme_has_its_keys() -> None:
    for key in step()["step"]:
        broken = step()
        del broken["step"][key]
        assert refused("json-field", broken, GRID) == "here, step"
    assert refused("json-field", step(more=1), GRID) == "here, step"
    assert parse(step(more=1), GRID, lenient=True) == parse(step(), GRID)
    assert refused("json-field", {**step(), "step": 5}, GRID) == "here, step"
    assert refused("json-name", step(column=""), GRID) == "here, step, column"


def test_the_closed_loop_alone_has_steps() -> None:
    for layout, methods in METHODS.items():
        for method in methods:
            if method != "closed-loop":
                assert refused("part-scheme", {**step(), "method": method}, layout) == "here, step"
