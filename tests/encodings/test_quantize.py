"""What `quantize=` may say: what is legal, what is refused and how, and which columns it speaks of."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from cnrfmt.encodings.quantize import Quantize, check_patterns, choice_for, speaks_of
from cnrfmt.errors import UsageError
from cnrfmt.format.encoding import CodebookLayout, Layout, RowwiseLayout
from cnrfmt.format.legality import is_legal
from cnrfmt.format.schema import ColumnSchema
from cnrfmt.format.scheme import Scheme, methods_of

METHODS = (None, "symmetric", "asymmetric", "adaptive", "lsq", "kmeans")
OF_OPERATORS = {8: "float32", 4: "float16", 2: "float16"}


def refused(says: str, **parameters: Any) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        Quantize(**parameters)
    assert str(caught.value).startswith("Quantize: ")


def test_the_default_is_eight_bits() -> None:
    assert Quantize() == Quantize(8)
    assert Quantize().layout_of(8) == RowwiseLayout(8, "tail", "float32", "float32")
    assert Quantize().scheme_of(8) == Scheme("asymmetric")


@pytest.mark.parametrize(
    ("field", "values", "says"),
    [
        ("bits", [1, 9, 0, -4, 16, 8.0, True, "8", None, [8], "Auto"], "2, 3, 4, 5, 6, 7, 8, 'auto'"),
        ("method", ["greedy", "", 5, ["lsq"], True], "None, 'symmetric', 'asymmetric', 'adaptive', 'lsq', 'kmeans'"),
        ("layout", ["fused", "Tail", 0, ["tail"]], "None, 'tail', 'head', 'packed'"),
        ("params", ["float64", "half", 16, np.float16], "None, 'float32', 'float16', 'bfloat16'"),
        ("never_worse", [1, 0, None, "yes"], "False, True"),
        ("one_valued", ["log10", "float16", None, 12], "'log8', 'log12', 'log16', 'bfloat16', 'raw'"),
    ],
)
def test_other_values_are_refused_with_the_legal_ones(field: str, values: list[Any], says: str) -> None:
    for value in values:
        with pytest.raises(UsageError) as caught:
            Quantize(**{field: value})
        assert str(caught.value) == f"Quantize: {field} is one of {says}; found {value!r}"


@pytest.mark.parametrize(
    ("field", "others", "values", "says"),
    [
        ("group", {}, [0, 7, -8, 8.0, "8", "auto", True, (1 << 20) + 8], "an integer from 8 to"),
        ("num_bins", {"method": "adaptive"}, [0, -1, 65537, 25.0, "25", True], "an integer from 1 to"),
        ("ratio", {"method": "adaptive"}, [-0.1, 1.01, 2, "0.5", True, np.nan, np.inf], "a number from 0 to 1"),
        ("starts", {"method": "lsq"}, [0, -1, 65537, 2.0, "auto", True], "an integer from 1 to"),
        ("block", {"method": "kmeans", "bits": 4}, [0, 1, -2, 16.0, "auto", (1 << 20) + 1], "an integer from 2 to"),
        ("max_error", {}, [-1e-9, np.nan, np.inf, "0.1", "auto", True, 10**400], "a number from 0 on"),
        ("mean_error", {"bits": "auto"}, [-1e-9, np.nan, np.inf, "auto", True], "a number from 0 on"),
        ("restores", {"bits": "auto"}, [-1, 2.0, "3", "auto", True, 1 << 54], "an integer from 0 on"),
    ],
)
def test_numbers_have_a_type_and_a_range(field: str, others: Any, values: list[Any], says: str) -> None:
    for value in values:
        refused(f"{field} is {says}.*found {value!r}", **others, **{field: value})


def test_numbers_may_be_those_of_numpy() -> None:
    found = Quantize(
        np.int64(4), method="adaptive", group=np.int32(8), ratio=np.float32(0.5), max_error=np.float64(0.1)
    )
    assert found == Quantize(4, method="adaptive", group=8, ratio=0.5, max_error=0.1)
    assert {type(x) for x in (found.bits, found.group)} == {int}
    assert {type(x) for x in (found.ratio, found.max_error)} == {float}
    for bad in (np.float32(4), np.True_, np.nan):
        refused("bits is one of", bits=bad)


@pytest.mark.parametrize(
    ("says", "parameters"),
    [
        ("restores goes with bits=", {"restores": 3}),
        ("mean_error goes with bits=", {"mean_error": 0.1}),
        ("num_bins goes with method=", {"num_bins": 25, "method": "asymmetric"}),
        ("num_bins goes with method=", {"num_bins": "auto", "method": "kmeans", "bits": 4}),
        ("num_bins and ratio go with method=", {"num_bins": 25}),
        ("num_bins and ratio go with method=", {"ratio": "auto"}),
        ("num_bins and ratio go with never_worse=True", {"num_bins": 25, "method": "lsq"}),
        ("ratio goes with method=", {"ratio": 0.5, "method": "symmetric"}),
        ("ratio is above 0", {"ratio": 0, "method": "adaptive"}),
        ("ratio is above 0", {"ratio": 0.0, "method": "adaptive"}),
        ("starts goes with method=", {"starts": 2}),
        ("starts goes with method=", {"starts": 2, "method": "adaptive"}),
        ("never_worse goes with method=", {"never_worse": True, "method": "adaptive"}),
        ("block goes with method=", {"block": 16}),
        ("group is a multiple of 8", {"group": 12}),
        ("needs restores= or mean_error=", {"bits": "auto"}),
        ("needs restores= or mean_error=", {"bits": "auto", "restores": 1, "mean_error": 0.1}),
        # More restores than the bits of any codebook are for.
        ("bits='auto', method='kmeans', restores=21", {"bits": "auto", "method": "kmeans", "restores": 21}),
        (
            "layout='tail', params='float32', group=8",
            {"bits": "auto", "layout": "tail", "params": "float32", "group": 8, "mean_error": 1},
        ),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(says: str, parameters: Any) -> None:
    refused(says, **parameters)


def expected(bits: int, method: Any, layout: Any, params: Any, group: Any, block: Any) -> Layout | None:
    """The layout by the words of the documentation; None where there is none."""
    if method == "kmeans":
        sound = bits <= 4 and layout is None and group is None and params != "bfloat16"
        return CodebookLayout(bits, params or "float16", block) if sound else None
    if block is not None:
        return None
    own = OF_OPERATORS.get(bits)
    if layout is None:
        layout = "tail" if own is not None and group is None and params in (None, own) else "packed"
    if layout == "tail":
        return RowwiseLayout(bits, "tail", own, own) if own and group is None and params in (None, own) else None
    if layout == "head":
        sound = own is not None and group is None and params in (None, "float16")
        return RowwiseLayout(bits, "head", "float16", "float16") if sound else None
    params = params or ("float16" if bits <= 4 else "float32")
    bias = None if method == "symmetric" else "float32" if params == "bfloat16" else params
    return RowwiseLayout(bits, "packed", params, bias, group)


@pytest.mark.parametrize("bits", range(2, 9))
def test_every_combination(bits: int) -> None:
    names = ("method", "layout", "params", "group", "block")
    values = (
        METHODS,
        (None, "tail", "head", "packed"),
        (None, *("float32", "float16", "bfloat16")),
        (None, 8, 64),
        (None, 7),
    )
    legal = 0
    for one in product(*values):
        parameters = {name: value for name, value in zip(names, one, strict=True) if value is not None}
        want = expected(bits, *one)
        if want is None:
            with pytest.raises(UsageError, match=r"^Quantize: ") as caught:
                Quantize(bits, **parameters)
            # What was chosen is named, all of it or what is too much.
            assert all(name in str(caught.value) for name in parameters) or "block goes with" in str(caught.value)
            continue
        legal += 1
        quantize = Quantize(bits, **parameters)
        assert quantize.choices() == (bits,)
        layout, scheme = quantize.layout_of(bits), quantize.scheme_of(bits)
        assert layout == want
        assert is_legal(layout)
        assert scheme.method == (one[0] or "asymmetric")
        assert scheme.method in methods_of(layout)
    assert legal


@pytest.mark.parametrize(
    ("parameters", "scheme"),
    [
        ({}, Scheme("asymmetric")),
        ({"max_error": 1}, Scheme("asymmetric", bound=1.0)),
        ({"method": "symmetric"}, Scheme("symmetric")),
        ({"method": "adaptive"}, Scheme("adaptive", 45, 0.5)),
        ({"method": "adaptive", "bits": 4}, Scheme("adaptive", 45, 0.5)),
        ({"method": "adaptive", "bits": 3}, Scheme("adaptive", 25, 0.5)),
        ({"method": "adaptive", "bits": 2, "num_bins": 7, "ratio": 1}, Scheme("adaptive", 7, 1.0)),
        ({"method": "lsq"}, Scheme("lsq", starts=2)),
        ({"method": "lsq", "starts": 4, "max_error": 0}, Scheme("lsq", starts=4, bound=0.0)),
        ({"method": "lsq", "never_worse": True, "bits": 2}, Scheme("lsq", 25, 0.5, 2)),
        ({"method": "lsq", "never_worse": True, "num_bins": 9, "ratio": 0.25}, Scheme("lsq", 9, 0.25, 2)),
        ({"method": "kmeans", "bits": 3}, Scheme("kmeans")),
    ],
)
def test_schemes(parameters: Any, scheme: Scheme) -> None:
    quantize = Quantize(**parameters)
    assert quantize.scheme_of(quantize.choices()[0]) == scheme
    assert type(quantize.scheme_of(8).bound) is type(scheme.bound)


@pytest.mark.parametrize(
    ("parameters", "choices"),
    [
        ({"restores": 0}, (2, 3, 4, 5, 6, 7, 8)),
        ({"restores": 1}, (2, 3, 4, 5, 6, 7, 8)),
        ({"restores": 2}, (3, 4, 5, 6, 7, 8)),
        ({"restores": 3}, (3, 4, 5, 6, 7, 8)),
        ({"restores": 4}, (4, 5, 6, 7, 8)),
        ({"restores": 20}, (4, 5, 6, 7, 8)),
        ({"restores": 21}, (8,)),
        # Three bits aren't for operators.
        ({"restores": 3, "layout": "tail"}, (4, 8)),
        ({"restores": 1, "layout": "head"}, (2, 4, 8)),
        ({"restores": 2, "method": "kmeans"}, (3, 4)),
        ({"mean_error": 0.1}, (2, 3, 4, 5, 6, 7, 8)),
        ({"mean_error": 0.1, "layout": "tail"}, (2, 4, 8)),
        ({"mean_error": 0.1, "layout": "tail", "params": "float32"}, (8,)),
        ({"mean_error": 0.1, "method": "kmeans", "block": 5}, (2, 3, 4)),
    ],
)
def test_bits_that_are_left_to_choose_from(parameters: Any, choices: tuple[int, ...]) -> None:
    quantize = Quantize("auto", **parameters)
    assert quantize.choices() == choices
    for bits in choices:
        assert is_legal(quantize.layout_of(bits))
        if "method" not in parameters:
            assert quantize.method_of(bits) == ("adaptive" if bits <= 4 else "asymmetric")


# Patterns.


WEIGHT = ColumnSchema("weight", "float32", False, bytes(4))
WIDE, NARROW = ColumnSchema("momentum", "float32", False, bytes(4)), ColumnSchema("sum", "float32", True, bytes(4))


def test_names_first_then_patterns_in_order() -> None:
    quantize = {
        "item_*": Quantize(4),
        "item_[ab]": Quantize(2),
        "*_raw": None,
        "item_b": None,
        "USER": Quantize(8),
    }
    want = {
        "item_a": 4,
        "item_b": None,
        "item_[ab]": 2,
        "item_raw": 4,
        "user": None,
        "USER": 8,
        "other": None,
    }
    for table, bits in want.items():
        found = None if bits is None else Quantize(bits)  # type: ignore[arg-type]
        assert choice_for(quantize, table, "weight") == (found, False), table
    check_patterns(quantize, dict.fromkeys(want, ("weight",)))
    spoken_of = [table for table in want if speaks_of(quantize, table, WEIGHT)]
    assert spoken_of == ["item_a", "item_b", "item_[ab]", "item_raw", "USER"]


def test_pairs_go_before_tables() -> None:
    quantize: Any = {
        "user": Quantize(8),
        ("*", "momentum"): Quantize(2),
        ("user", "m*"): Quantize(3),
        ("user", "momentum"): Quantize(4),
        ("item", "weight"): None,
        "item": Quantize(5),
    }
    for table, column, found, named in (
        ("user", "weight", Quantize(8), False),
        ("user", "momentum", Quantize(4), True),
        ("user", "mean", Quantize(3), True),
        ("user", "sum", Quantize(8), False),
        ("item", "weight", None, True),
        ("item", "momentum", Quantize(2), True),
        ("other", "momentum", Quantize(2), True),
        ("other", "weight", None, False),
    ):
        assert choice_for(quantize, table, column) == (found, named), (table, column)
    # Of patterns that are no names, the first.
    assert choice_for({("u*", "m"): Quantize(2), ("*", "m"): Quantize(3)}, "user", "m") == (Quantize(2), True)
    assert choice_for({("*", "m"): Quantize(3), ("u*", "m"): Quantize(2)}, "user", "m") == (Quantize(3), True)
    # A pair of which one half is a pattern is no name, even where a table's name goes before it.
    assert choice_for({("u*", "m"): Quantize(2), "user": Quantize(8)}, "user", "m") == (Quantize(2), True)


def test_one_for_all() -> None:
    assert choice_for(Quantize(4), "user", "weight") == (Quantize(4), False)
    assert choice_for(None, "user", "weight") == (None, False)
    assert choice_for({}, "user", "weight") == (None, False)


@pytest.mark.parametrize(
    ("quantize", "columns"),
    [
        # A table's choice is for its weight and for columns of one value per row.
        (Quantize(4), "weight sum"),
        ({"user": Quantize(4)}, "weight sum"),
        ({"u*": Quantize(4), ("user", "mom*"): Quantize(2)}, "weight momentum sum"),
        ({("user", "sum"): Quantize(2)}, "sum"),
        ({("user", "sum"): None}, "sum"),
        # That a table be raw is said of all its columns.
        ({"user": None}, "weight momentum sum"),
        ({"item": Quantize(4)}, ""),
        ({}, ""),
        (None, ""),
    ],
)
def test_columns_that_are_spoken_of(quantize: Any, columns: str) -> None:
    assert [c.name for c in (WEIGHT, WIDE, NARROW) if speaks_of(quantize, "user", c)] == columns.split()


def test_a_pattern_that_names_nothing_is_refused() -> None:
    columns = {"item": ("weight", "m"), "user": ("weight", "sum")}
    with pytest.raises(UsageError, match=r"no table is named 'itme\*'; the tables are item, user"):
        check_patterns({"item": None, "itme*": Quantize(4)}, columns)
    with pytest.raises(UsageError, match=r"no table is named 'nope'; the tables are item, user"):
        check_patterns({("nope", "m"): None}, columns)
    with pytest.raises(UsageError, match=r"no column of 'item' is named 'sum'; the columns are m, weight"):
        check_patterns({("item", "sum"): Quantize(4)}, columns)
    with pytest.raises(UsageError, match=r"no column of '\*' is named 'x'; the columns are m, sum, weight"):
        check_patterns({("*", "x"): None}, columns)
    check_patterns({("*", "sum"): Quantize(4), "it?m": None, ("user", "[sm]*"): None}, columns)
    for quantize in (None, Quantize()):
        check_patterns(quantize, columns)
    # However many there are, some are named.
    with pytest.raises(UsageError, match=r"the tables are 0, 1, 2") as caught:
        check_patterns({"x": None}, {str(n): ("weight",) for n in range(100)})
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "quantize",
    [8, "8", {"user": 4}, {"*": "raw"}, {7: None}, [Quantize()], {("user",): None}, {("user", 1): None}, Quantize],
)
def test_anything_else_is_refused(quantize: Any) -> None:
    with pytest.raises(UsageError, match="quantize"):
        choice_for(quantize, "user", "weight")
    with pytest.raises(UsageError, match="quantize"):
        speaks_of(quantize, "user", WEIGHT)
