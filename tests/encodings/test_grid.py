"""The step rule and what a baseline fixes of it."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnrfmt.encodings import moments
from cnrfmt.encodings.grid import Grid
from cnrfmt.encodings.grid_plan import (
    GridPlan,
    GridSummary,
    activity_column,
    grid_plan_of,
    plan_grid,
    plan_of,
    summary_of,
)
from cnrfmt.errors import UsageError
from cnrfmt.format.encoding import GridLayout, LogLayout, RawLayout
from cnrfmt.format.legality import is_legal
from cnrfmt.format.schema import ColumnSchema, TableSchema
from cnrfmt.format.scheme import Scheme, Step
from cnrfmt.format.toc import Part
from cnrfmt.inputs import as_source

ZERO = bytes(4)
WEIGHT = ColumnSchema("weight", "float32", False, ZERO)
ACCUMULATOR = ColumnSchema("accumulator", "float32", True, ZERO)
SQUARES = ColumnSchema("exp_avg_sq", "float32", False, ZERO)
PLAIN = Grid(learning_rate=0.05, restores=3)
NOWHERE = as_source(np.zeros((0, 4), np.float32), what="nothing")


def table(*columns: ColumnSchema, dim: int = 4) -> TableSchema:
    return TableSchema(bytes(16), "user", 100, dim, (WEIGHT, *columns))


def planned(grid: Grid = PLAIN, **columns: Any) -> GridPlan:
    sources = {name: as_source(np.asarray(values, np.float32), what=name) for name, values in columns.items()}
    schemas = [ColumnSchema(name, "float32", np.ndim(values) == 1, ZERO) for name, values in columns.items()]
    rows = len(next(iter(columns.values()), np.zeros(3)))
    sources["weight"] = as_source(np.zeros((rows, 4), np.float32), what="weight")
    return plan_grid(grid, table(*schemas), sources)


def test_learning_rates_by_restores() -> None:
    grids = [Grid(learning_rate=1, restores=restores) for restores in (0, 1, 3, 3.5, 10, 11, 1e9)]
    assert [grid.size for grid in grids] == [2, 2, 2, 1, 1, 0.5, 0.5]
    counted = [grid.counted for grid in grids]
    lengths = [(1.5, 4.5)] * 2 + [(1.5, 2)] + [(0.625, 2)] * 2 + [(0.3125, 2)] * 2
    assert [(grid.size, grid.reference) for grid in counted] == lengths
    assert [grid.coarseness for grid in counted[1:6:2]] == [6.75, 1.25, 0.625]
    assert Grid(step=3, by="count").counted.by == "count"
    assert Grid(learning_rate=0.1, restores=20).size == pytest.approx(0.05)
    assert Grid(learning_rate=0.1, c=3).size == pytest.approx(0.3)
    assert Grid(step=0.25).size == 0.25
    assert Grid(learning_rate=np.float32(0.5), c=np.int64(1)).size == 0.5


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"learning_rate": 0.1},
        {"restores": 3},
        {"learning_rate": 0.1, "restores": 3, "c": 1},
        {"step": 0.1, "learning_rate": 0.1},
        {"step": 0},
        {"step": -1.0},
        {"step": math.nan},
        {"step": math.inf},
        {"step": True},
        {"learning_rate": "fast", "c": 1},
        {"learning_rate": 0.1, "restores": -1},
        {"step": 0.1, "payload": "zip"},
        {"step": 0.1, "one_valued": "log8"},
        {"step": 0.1, "by": 3},
    ],
)
def test_what_is_no_grid(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="Grid: "):
        Grid(**wrong)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("", "found none of them"),
        ("learning_rate", "found learning_rate: add restores or c"),
        ("restores", "found restores: add learning_rate"),
        ("restores c", "found restores and c: add learning_rate and leave out restores or c"),
        ("learning_rate restores c", "found learning_rate, restores and c: leave out restores or c"),
        ("learning_rate step", "found learning_rate and step: leave out learning_rate, or step"),
        ("restores c step", "found restores, c and step: leave out restores and c, or step"),
        ("learning_rate restores c step", "leave out learning_rate, restores and c, or step"),
    ],
)
def test_what_is_wrong_with_sizes_is_said_with_what_to_do(given: str, found: str) -> None:
    with pytest.raises(UsageError, match=f"^Grid: give learning_rate with .* or step alone; .*{found}$"):
        Grid(**dict.fromkeys(given.split(), 1))  # type: ignore[arg-type]


@given(
    st.floats(1e-6, 1e3),
    st.floats(1e-6, 1e6),
    st.lists(st.one_of(st.just(0.0), st.floats(2.0**-60, 2.0**60, width=32)), min_size=1),
)
def test_exponents_are_those_of_the_rule(size: float, reference: float, activity: list[float]) -> None:
    step = Step(size, reference, "accumulator")
    floor = round(math.log2(size)) - 4
    found = GridPlan(floor, step, "rans", ()).exponents(np.array(activity), len(activity))
    for value, exponent in zip(activity, found, strict=True):
        exact = math.log2(size * min(max(math.sqrt(reference / value) if value else 1, 1 / 16), 1.0))
        # Where it lies half-way between two exponents, either will do.
        assert abs(exact - (int(exponent) + floor)) <= 0.5 + 1e-9 or exponent == 0
        assert 0 <= exponent <= 5


def test_rows_that_say_nothing_are_as_the_reference_is() -> None:
    plan = GridPlan(-8, Step(1 / 16, 2.0, "accumulator"), "rans", ())
    odd = np.array([2.0, np.nan, -1.0, np.inf, 0.0], np.float32)
    assert plan.exponents(odd, 5).tolist() == [4, 4, 4, 0, 4]
    assert plan.exponents(None, 2).tolist() == [4, 4]
    assert GridPlan(-4, Step(1 / 16), "rans", ()).exponents(odd, 5).tolist() == [0] * 5


def test_activity_of_several_values_is_their_mean() -> None:
    plan = GridPlan(-8, Step(1 / 16, 4.0, "exp_avg_sq"), "rans", ())
    wide = np.array([[4, 4, 4, 4], [0, 0, 0, 4], [64, 0, 0, 0]], np.float32)
    assert plan.exponents(wide, 3).tolist() == plan.exponents(wide.mean(axis=1), 3).tolist() == [4, 4, 3]


def test_the_reference_is_the_median_of_touched_rows() -> None:
    plan = planned(accumulator=[0.1] * 50 + [1.0, 2.0, 9.0])
    assert plan.step == Step(pytest.approx(0.1), pytest.approx(2.0), "accumulator")
    assert plan.floor == round(math.log2(0.1)) - 4
    assert planned(accumulator=[3.0, 3.0, 3.0]).step.reference == pytest.approx(3.0)


def test_without_activity_all_steps_are_equal() -> None:
    for plan in (planned(), planned(accumulator=[0.0, 0.0]), planned(accumulator=[np.nan, -1.0])):
        assert plan.step == Step(pytest.approx(0.1))
        assert plan.floor == round(math.log2(0.1))
    assert planned(Grid(step=0.1, by=None), accumulator=[1.0, 2.0]).step == Step(0.1)


def test_which_column_tells_of_activity() -> None:
    def summary(*columns: ColumnSchema, by: str | None = "auto") -> GridSummary:
        return summary_of(Grid(step=1, by=by), table(*columns), {})

    def column(*columns: ColumnSchema, by: str | None = "auto") -> str | None:
        return activity_column(by, [summary(*columns, by=by)])

    other, text = ColumnSchema("momentum", "float32", False, ZERO), ColumnSchema("count", "bool", True, b"\0")
    assert column(other, SQUARES) == "exp_avg_sq"
    assert column(SQUARES, ACCUMULATOR) == "accumulator"
    assert column(other, text) is None
    assert column(other, by="momentum") == "momentum"
    assert column(ACCUMULATOR, by=None) is None
    for by, wrong in (("weights", "names no column of it"), ("count", "names a column that doesn't hold numbers")):
        says = f"table 'user': by='{by}' {wrong}; beside weight it has accumulator, count: give the name of one"
        with pytest.raises(UsageError, match=says):
            column(ACCUMULATOR, text, by=by)
    with pytest.raises(UsageError, match="beside weight it has none: give"):
        column(by="count")
    with pytest.raises(UsageError, match="found 'weight', the rows themselves: give by='auto'"):
        Grid(step=1, by="weight")
    # Of several writers it is enough that one has it.
    assert activity_column("auto", [summary(SQUARES), summary(ACCUMULATOR, SQUARES)]) == "accumulator"
    assert activity_column("momentum", [summary(by="momentum"), summary(other, by="momentum")]) == "momentum"


ACTIVE = st.one_of(st.floats(0, 2.0**40, width=32), st.sampled_from([0.1, 0.1, 2.0, math.nan, -1.0, math.inf]))


@given(st.data())
def test_a_plan_is_the_same_however_rows_are_spread(data: st.DataObject) -> None:
    values = np.array(data.draw(st.lists(ACTIVE, min_size=1, max_size=40)), np.float32)
    wide = np.stack([values, values[::-1]], axis=1)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=4)))
    schema = table(ACCUMULATOR, SQUARES, dim=2)
    for by in ("auto", "exp_avg_sq", None):
        grid = Grid(step=0.1, by=by)

        def summary(first: int, end: int, grid: Grid = grid) -> GridSummary:
            rows = {"weight": wide, "accumulator": values, "exp_avg_sq": wide}
            sources = {name: as_source(every[first:end], what=name) for name, every in rows.items()}
            return GridSummary.parse(json.loads(json.dumps(summary_of(grid, schema, sources).to_json())))

        parts = [summary(*ends) for ends in pairwise([0, *cuts, len(values)])]
        plan = plan_of(grid, parts)
        assert plan == plan_of(grid, parts[::-1]) == plan_of(grid, [summary(0, len(values))])
        # It is what the definition says, up to the precision of bfloat16.
        with np.errstate(invalid="ignore"):
            active = {"auto": values, "exp_avg_sq": wide.mean(axis=1, dtype=np.float64)}.get(by or "", values[:0])
        active = active[np.isfinite(active) & (active >= 0)].astype(np.float32).astype(np.float64)
        touched = active[active > active.min(initial=np.inf)]
        touched = touched if touched.size else active
        expected = np.median(touched) if touched.size else 0.0
        assert (plan.step.reference or 0.0) == pytest.approx(expected, rel=2.0**-7, abs=1e-38)


def test_elements_of_rows_that_are_spread() -> None:
    """Who has other elements has the same grid, and leaves rows whose activity it doesn't know as the reference is."""
    values, weight = np.array([0.5, 1.0, 4.0], np.float32), np.zeros((3, 2), np.float32)
    sources = {"weight": as_source(weight, what="w"), "accumulator": as_source(values, what="a")}
    with_state = summary_of(PLAIN, table(ACCUMULATOR, dim=2), sources)
    without = summary_of(PLAIN, table(dim=2), {"weight": sources["weight"]})
    plan = plan_grid(PLAIN, table(ACCUMULATOR, dim=4), sources)
    assert plan_of(PLAIN, [with_state, without]) == plan_of(PLAIN, [without, with_state]) == plan
    assert plan.exponents(None, 3).tolist() == plan.exponents(np.full(3, plan.step.reference), 3).tolist()


def test_of_many_rows_some_are_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them stands for as many as were left out, so that who has more rows counts more."""
    from cnrfmt.encodings import grid_plan as module

    values = np.concatenate([[0.0], np.full(999, 8.0), np.full(300, 2.0)]).astype(np.float32)
    whole = planned(accumulator=values)
    monkeypatch.setattr(module, "_SAMPLE", 100)
    assert planned(accumulator=values).step == whole.step == Step(pytest.approx(0.1), 8.0, "accumulator")
    found = [
        summary_of(PLAIN, table(ACCUMULATOR), {"accumulator": as_source(rows, what="a")})
        for rows in (values[:1000], values[1000:1300:3], values[1000:1300:3])
    ]
    assert plan_of(PLAIN, found) == whole
    assert plan_of(PLAIN, [found[1], *found]) == whole


def test_logarithmic_codes_have_room_to_grow() -> None:
    plan = planned(accumulator=[0.5, 1.0, 100.0])
    ((name, layout),) = plan.logs
    assert name == "accumulator"
    assert is_legal(layout)
    least = np.int32(layout.base).view(np.float32)
    greatest = np.int32(layout.base + (4094 << layout.shift)).view(np.float32)
    assert least <= 0.5 / 8
    assert greatest >= 100 * 256
    for values in ([0.0, 0.0], [np.nan, -1.0], [1e-38, 3e38], [1e-45, 1e-44], [3e38, 3e38]):
        layout = planned(accumulator=values).logs[0][1]
        assert is_legal(layout), values


def test_what_a_plan_says_of_columns() -> None:
    plan = planned(accumulator=[1.0, 2.0])
    recipe = plan.recipe(WEIGHT, 64, NOWHERE)
    assert recipe is not None
    assert recipe.layout == GridLayout("absolute", plan.floor, "rans", None, 128)
    assert recipe.scheme == Scheme("closed-loop", step=plan.step)
    logarithmic = plan.recipe(ACCUMULATOR, 1, NOWHERE)
    assert logarithmic is not None
    assert logarithmic.layout == plan.logs[0][1]
    assert plan.recipe(SQUARES, 64, NOWHERE) is None
    wide = plan.recipe(WEIGHT, 1 << 20, NOWHERE)
    assert wide is not None
    assert wide.layout.group == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("size", [1e-44, 1e-37, 1e32, 1e38])
def test_steps_that_no_float_has(size: float) -> None:
    with pytest.raises(UsageError, match="is none that float32 weights could have"):
        planned(Grid(step=size), accumulator=[1.0, 2.0])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"step": 1e-60}, "Grid: a step of 1e-60 is none that float32 weights could have"),
        ({"step": 1e60}, "a step of 1e\\+60 is none"),
        ({"learning_rate": 1e-40, "c": 0.5}, "a step of 5e-41 is none"),
        ({"learning_rate": 1e-60, "restores": 3}, "a step of .*e-60 is none"),
        ({"learning_rate": 1e200, "c": 1e200}, "a step of inf is none"),
        ({"step": 10**400}, "step must be a number above 0"),
        ({"step": 1.0, "by": ""}, "by is the name of a column, 'auto' or None, found ''"),
    ],
)
def test_what_no_grid_can_be_is_refused_at_once(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Grid(**options)


def test_weights_that_are_not_float32() -> None:
    wrong = TableSchema(bytes(16), "user", 3, 4, (ColumnSchema("weight", "float64", False, bytes(8)),))
    with pytest.raises(UsageError, match="the grid encoding is for float32, found float64"):
        plan_grid(PLAIN, wrong, {"weight": as_source(np.zeros((3, 4)), what="weight")})


def test_a_plan_is_found_again_from_parts() -> None:
    plan = planned(accumulator=[1.0, 2.0])
    recipe, logarithmic = plan.recipe(WEIGHT, 4, NOWHERE), plan.recipe(ACCUMULATOR, 1, NOWHERE)
    assert recipe is not None
    assert logarithmic is not None
    parts = [
        Part("weight", 0, (0, 4), recipe.layout, 0, scheme=recipe.scheme),
        Part("accumulator", 0, (0, 1), logarithmic.layout, 1, scheme=logarithmic.scheme),
        Part("weight", 1, (0, 4), RawLayout("float32"), 2, exceptions_of=0),
    ]
    assert grid_plan_of(parts) == plan
    assert grid_plan_of([]) is None
    raw = Part("weight", 1, (0, 4), RawLayout("float32"), 2)
    assert grid_plan_of([*parts, raw]) is None
    fixed = Part("accumulator", 0, (0, 1), LogLayout(12, 1, 0), 1, scheme=Scheme("log"))
    assert grid_plan_of([parts[0], fixed]) == GridPlan(plan.floor, plan.step, "rans", ())


@pytest.mark.parametrize("size", [1e-12, 3e-7, 1.0, 4e4])
def test_units_of_first_moments_follow_from_most_rows(size: float) -> None:
    rows = (size * np.random.default_rng(0).normal(size=(5000, 8))).astype(np.float32)
    rows[0], rows[1, 0] = 1e30, np.nan
    layout = moments.layout_of_first(as_source(rows, what="m"), 64)
    assert layout.floor % 4 == 0
    # Ones that are 500 times as large have room, and steps may be a 500th.
    assert 500 * size < 2.0 ** (24 + layout.floor)
    assert 2.0**layout.floor < size / 500
    assert is_legal(layout)
    for nothing in (rows[:0], np.zeros((3, 8), np.float32)):
        assert moments.layout_of_first(as_source(nothing, what="m"), 64).floor == -12


def test_codes_of_second_moments() -> None:
    assert is_legal(moments.SECOND)
    codes = np.arange(1, 256)
    values = (moments.SECOND.base + (codes - 1 << moments.SECOND.shift)).astype(np.uint32).view(np.float32)
    assert (values[0], values[-1]) == (2.0**-100, 2.0**27)
    assert {float(ratio) for ratio in values[1:] / values[:-1]} == {1.5, np.float32(4 / 3)}
