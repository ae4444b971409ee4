"""How each column is stored; what is left open is chosen on a sample, as a slow search chooses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cnrfmt.arrays import Ids
from cnrfmt.encodings import Recipe, encoder, recipes
from cnrfmt.encodings.quantize import Quantize
from cnrfmt.encodings.recipes import goes_on, mean_error, recipe_for, sample
from cnrfmt.errors import UsageError
from cnrfmt.format.encoding import CastLayout, CodebookLayout, GridLayout, LogLayout, RawLayout, RowwiseLayout
from cnrfmt.format.schema import ColumnSchema
from cnrfmt.format.scheme import Scheme
from cnrfmt.inputs import as_source
from cnrfmt.kernels._jit import INTERPRETED
from tests.encodings.support import F32, Array, decode, relative_errors, usual

WEIGHT = ColumnSchema("weight", "float32", False, bytes(4))
WIDE, NARROW = ColumnSchema("momentum", "float32", False, bytes(4)), ColumnSchema("sum", "float32", True, bytes(4))
ROWS = usual(40 if INTERPRETED else 900, 16)
VALUES = (np.arange(1, 50) ** 2 / 7).astype(F32)
RAW = Recipe(RawLayout("float32"))


def weight(quantize: Any, rows: Array = ROWS) -> Recipe:
    return recipe_for("user", WEIGHT, as_source(rows, what="rows"), quantize)


def narrow(quantize: Any, values: Array = VALUES) -> Recipe:
    return recipe_for("user", NARROW, as_source(values, what="values"), quantize)


def test_raw_unless_told() -> None:
    for quantize in (None, {}, {"item": Quantize(4)}, {"user": None}, {("user", "*"): None}):
        assert weight(quantize) == narrow(quantize) == RAW
    whole = ColumnSchema("count", "int64", True, bytes(8))
    assert recipe_for("user", whole, as_source(np.arange(3), what=""), None) == Recipe(RawLayout("int64"))


def test_a_tables_choice_is_for_its_weight_and_for_columns_of_one_value() -> None:
    quantize = {"user": Quantize(4)}
    assert weight(quantize) == Recipe(RowwiseLayout(4, "tail", "float16", "float16"), Scheme("asymmetric"))
    assert recipe_for("user", WIDE, as_source(ROWS, what=""), quantize) == RAW
    assert isinstance(narrow(quantize).layout, LogLayout)
    # Named, any column of float32 is.
    named = {("user", "momentum"): Quantize(2, method="kmeans")}
    assert recipe_for("user", WIDE, as_source(ROWS, what=""), named).layout == CodebookLayout(2, "float16")
    assert weight(named) == RAW


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "float8_e5m2", "int8"])
def test_only_float32_is_quantised(dtype: str) -> None:
    source = as_source(np.zeros((3, 2), np.float64), what="")
    of_weight, other = (ColumnSchema(name, dtype, False, b"") for name in ("weight", "other"))
    with pytest.raises(UsageError, match=rf"'user', column 'weight': only float32 .*{dtype}; convert it to float32"):
        recipe_for("user", of_weight, source, Quantize())
    with pytest.raises(UsageError, match=rf"'user', column 'other': only float32 .*{dtype}"):
        recipe_for("user", other, source, {("user", "other"): Quantize()})
    assert recipe_for("user", other, source, Quantize()) == Recipe(RawLayout(dtype))
    assert recipe_for("user", of_weight, source, {"us*": None}) == Recipe(RawLayout(dtype))


@pytest.mark.parametrize("bits", [8, 12, 16])
def test_logarithmic_codes_are_placed_where_the_values_are(bits: int) -> None:
    recipe = narrow(Quantize(one_valued=f"log{bits}", max_error=0.5))  # type: ignore[arg-type]
    layout, scheme = recipe
    assert scheme == Scheme("log", bound=0.5)
    assert isinstance(layout, LogLayout)
    assert layout.bits == bits
    done = encoder(recipe).encode(VALUES.reshape(-1, 1))
    assert done.bad.size == 0
    assert 0 < done.worst_error <= {8: 2**-4, 12: 2**-8, 16: 2**-12}[bits]
    # More of them, greater by far: the same way, elsewhere.
    greater = VALUES * F32(1e6)
    again = goes_on(recipe, as_source(greater, what=""))
    assert again.scheme == scheme
    assert isinstance(again.layout, LogLayout)
    assert again.layout.base > layout.base
    assert encoder(again).encode(greater.reshape(-1, 1)).bad.size == 0


def test_other_ways_to_store_one_value() -> None:
    assert narrow(Quantize(one_valued="raw", max_error=0.1)) == RAW
    assert narrow(Quantize(one_valued="bfloat16")) == Recipe(CastLayout("bfloat16"), Scheme("cast"))
    bounded = narrow(Quantize(one_valued="bfloat16", max_error=1))
    assert bounded == Recipe(CastLayout("bfloat16"), Scheme("cast", bound=1.0))


def test_what_does_not_depend_on_values_goes_on_as_it_is() -> None:
    for recipe in (
        RAW,
        weight(Quantize(4)),
        weight(Quantize(3, method="kmeans")),
        narrow(Quantize(one_valued="bfloat16")),
    ):
        assert goes_on(recipe, as_source(ROWS, what="")) is recipe


@pytest.mark.parametrize("payload", ["packed", "rans"])
@pytest.mark.parametrize(("group", "want"), [(1, 1), (4096, 4096), (4097, 4096), (65536, 4096)])
def test_groups_of_parts_of_some_elements_hold_fewer_whole_rows(payload: str, group: int, want: int) -> None:
    scheme, source = Scheme("closed-loop"), as_source(ROWS, what="")
    again = goes_on(Recipe(GridLayout("residual", -3, payload, None, group), scheme), source)
    assert again == Recipe(GridLayout("absolute", -3, payload, None, want), scheme)
    assert again.layout.fits(ROWS.shape[1])
    # A row alone may have any number of values.
    wide = as_source(np.zeros((2, 1 << 17), F32), what="")
    assert goes_on(Recipe(GridLayout("residual", -3, payload, None, group), scheme), wide).layout.fits(1 << 17)


def test_integers_go_on_as_absolute_ones() -> None:
    fixed, logs = GridLayout("residual", -3, "fixed", 9), LogLayout(12, 1, 0, "residual", "rans", 65536)
    assert goes_on(Recipe(fixed), as_source(ROWS, what="")).layout == replace(fixed, kind="absolute")
    assert goes_on(Recipe(logs), as_source(VALUES, what="")).layout == replace(logs, kind="absolute")
    wide = replace(logs, kind="absolute", group=65536 // ROWS.shape[1])
    assert goes_on(Recipe(logs), as_source(ROWS, what="")).layout == wide


def test_values_from_anywhere() -> None:
    """Strided values, and those of a table that is read in pieces."""
    wide = np.full((len(VALUES), 3), np.nan, F32)
    wide[:, 1] = VALUES
    assert narrow(Quantize(), wide[:, 1]) == narrow(Quantize()) == narrow(Quantize(), VALUES[::-1])


# Samples.


class Counted:
    """Rows of a table that is larger than memory: each is its number, counted from 1."""

    def __init__(self, count: int) -> None:
        self.shape = (count, 2)

    def rows(self, start: int, stop: int) -> Array:
        raise AssertionError("a sample isn't a run of rows")

    def take(self, ids: Ids) -> Array:
        return np.repeat(ids[:, None] + 1, 2, axis=1)


@pytest.mark.parametrize(
    ("count", "size"), [(0, 0), (1, 1), (511, 511), (512, 512), (513, 512), (50_000_000, 512), (90_000_000, 900)]
)
def test_a_sample_is_drawn_by_lot_and_always_the_same(count: int, size: int) -> None:
    found = sample(Counted(count))
    assert found.shape == (size, 2)
    ids = found[:, 0] - 1
    assert (np.diff(ids) > 0).all()
    assert not size or (ids.min() >= 0 and ids.max() < count)
    assert np.array_equal(sample(Counted(count)), found)
    if count > 1000:
        assert abs(ids.mean() / count - 0.5) < 0.1


# What is chosen on them.


def slow_error(recipe: Recipe, rows: Array) -> float:
    """The mean relative error, from the bytes."""
    done = encoder(recipe).encode(rows)
    found = decode(recipe.layout, done.data, *rows.shape, done.codebooks)
    held = np.delete(np.arange(len(rows)), done.bad)
    return float(relative_errors(rows[held], found[held]).mean())


def test_the_mean_error_counts_what_is_not_held_as_1_and_knows_no_bound() -> None:
    rows = ROWS.copy()
    rows[3, 1] = np.inf
    recipe = weight(Quantize(4, max_error=0.001))
    want = slow_error(replace_bound(recipe), rows)
    held = len(rows) - 1
    assert mean_error(recipe, rows) == pytest.approx((want * held + 1) / len(rows), rel=1e-9)
    assert mean_error(RAW, rows) == 0
    assert mean_error(recipe, np.full((5, 3), np.nan, F32)) == 1
    assert mean_error(recipe, rows[:0]) == 0


def test_rows_that_say_nothing_of_errors_choose_nothing() -> None:
    for rows in (np.zeros((40, 16), F32), np.full((40, 16), np.nan, F32)):
        most = weight(Quantize("auto", mean_error=0.05), rows)
        assert most == weight(Quantize(8), rows)
        assert weight(Quantize(3, method="adaptive", num_bins="auto"), rows) == weight(Quantize(3, method="adaptive"))
        mixed = np.concatenate([rows, ROWS[:400]])
        auto = Quantize("auto", mean_error=0.05)
        assert weight(auto, mixed) == weight(auto, ROWS[:400])


def replace_bound(recipe: Recipe) -> Recipe:
    assert recipe.scheme is not None
    return Recipe(recipe.layout, replace(recipe.scheme, bound=None))


@pytest.mark.parametrize(
    "parameters",
    [
        {"num_bins": "auto"},
        {"ratio": "auto"},
        {"num_bins": "auto", "ratio": "auto"},
        {"num_bins": "auto", "ratio": "auto", "method": "lsq", "never_worse": True},
    ],
)
@pytest.mark.parametrize("bits", [2, 4])
def test_the_smallest_search_that_is_nearly_the_best(
    parameters: Any, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bins, ratios = (2, 4, 7) if INTERPRETED else (4, 8, 15, 30, 60), (0.2, 0.5, 0.8)
    monkeypatch.setattr(recipes, "_BINS", bins)
    monkeypatch.setattr(recipes, "_RATIOS", ratios)
    quantize = Quantize(bits, **{"method": "adaptive", **parameters})  # type: ignore[arg-type]
    found = weight(quantize)
    fixed = Recipe(quantize.layout_of(bits), quantize.scheme_of(bits))
    assert fixed.scheme is not None
    tried = [
        (b * r, b, r)
        for b in (bins if parameters.get("num_bins") == "auto" else (fixed.scheme.num_bins,))
        for r in (ratios if parameters.get("ratio") == "auto" else (fixed.scheme.ratio,))
        if b is not None and r is not None
    ]
    rows = sample(as_source(ROWS, what=""))
    errors = {
        one: slow_error(Recipe(fixed.layout, replace(fixed.scheme, num_bins=one[1], ratio=one[2])), rows)
        for one in tried
    }
    limit = 1.01 * errors[max(tried)]
    want = min(one for one in tried if errors[one] <= limit)
    assert found == Recipe(fixed.layout, replace(fixed.scheme, num_bins=want[1], ratio=want[2]))


@pytest.mark.parametrize(("restores", "bits"), [(0, 2), (1, 2), (3, 3), (4, 4), (20, 4), (21, 8), (10**6, 8)])
def test_bits_by_the_number_of_restores(restores: int, bits: int) -> None:
    quantize = Quantize("auto", restores=restores)
    assert weight(quantize) == Recipe(quantize.layout_of(bits), quantize.scheme_of(bits))
    searched = weight(Quantize("auto", restores=restores, num_bins=5, ratio=0.5))
    assert searched.scheme is not None
    assert searched.scheme == (Scheme("adaptive", 5, 0.5) if bits <= 4 else Scheme("asymmetric"))


@pytest.mark.parametrize(
    "parameters", [{}, {"method": "asymmetric"}, {"layout": "head"}, {"method": "kmeans"}, {"num_bins": "auto"}]
)
def test_the_least_bits_below_an_error(parameters: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "_BINS", (2, 4) if INTERPRETED else (5, 20))
    rows = sample(as_source(ROWS, what=""))
    for target in (0.5, 0.2, 0.06, 0.01, 0.003, 0.0):
        quantize = Quantize("auto", mean_error=target, **parameters)
        found = weight(quantize)
        for bits in quantize.choices():
            # A search is for the bits that have one.
            its_own = {} if bits > 4 and "num_bins" in parameters else parameters
            one = weight(Quantize(bits, **{"method": quantize.method_of(bits), **its_own}))  # type: ignore[arg-type]
            if slow_error(one, rows) <= target:
                assert found == one, target
                break
            assert found != one, target
        else:
            assert found == RAW
    assert weight(Quantize("auto", mean_error=0, **parameters)) == RAW


def test_a_bound_is_kept_whatever_is_chosen() -> None:
    for parameters in ({"restores": 3}, {"mean_error": 0.2}, {"mean_error": 0.2, "num_bins": "auto"}):
        recipe = weight(Quantize("auto", max_error=0.25, **parameters))  # type: ignore[arg-type]
        assert recipe.scheme is not None
        assert recipe.scheme.bound == 0.25
