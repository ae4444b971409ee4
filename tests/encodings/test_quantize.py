"""What `quantize=` may say, and which layout follows for each column."""

from __future__ import annotations

from typing import Any

import pytest

from cnrfmt.encodings.quantize import Quantize, check_patterns, layout_for, names_table
from cnrfmt.errors import UsageError
from cnrfmt.format.encoding import RawLayout, RowwiseLayout


def test_the_default_is_eight_bits() -> None:
    assert Quantize() == Quantize(bits=8, method="asymmetric", layout="tail")


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_weights_become_row_wise_and_other_columns_stay_raw(bits: int) -> None:
    quantize = Quantize(bits=bits)
    assert layout_for("user", "weight", "float32", quantize) == RowwiseLayout(bits)
    assert layout_for("user", "momentum", "float32", quantize) == RawLayout("float32")
    assert layout_for("user", "count", "int64", quantize) == RawLayout("int64")
    assert layout_for("user", "weight", "float16", None) == RawLayout("float16")


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("bits", 3, "8, 4, 2"),
        ("bits", 8.0, "8, 4, 2"),
        ("bits", True, "8, 4, 2"),
        ("bits", "8", "8, 4, 2"),
        ("method", "symmetric", "'asymmetric'"),
        ("method", None, "'asymmetric'"),
        ("layout", "head", "'tail'"),
    ],
)
def test_other_values_are_refused_with_the_legal_ones(field: str, value: Any, says: str) -> None:
    with pytest.raises(UsageError, match=f"{field} is one of {says}; found {value!r}"):
        Quantize(**{field: value})


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "float8_e5m2", "int8"])
def test_only_float32_weights_are_quantised(dtype: str) -> None:
    with pytest.raises(UsageError, match=rf"'user'.*{dtype}.*convert them to float32"):
        layout_for("user", "weight", dtype, Quantize())
    assert layout_for("user", "other", dtype, Quantize()) == RawLayout(dtype)
    assert layout_for("user", "weight", dtype, {"us*": None}) == RawLayout(dtype)


def test_patterns_the_own_name_first_then_in_order() -> None:
    quantize = {
        "item_*": Quantize(4),
        "item_[ab]": Quantize(2),
        "*_raw": None,
        "item_b": None,
        "USER": Quantize(8),
    }
    want = {
        "item_a": RowwiseLayout(4),
        "item_b": RawLayout("float32"),
        "item_[ab]": RowwiseLayout(2),
        "item_raw": RowwiseLayout(4),
        "user": RawLayout("float32"),
        "USER": RowwiseLayout(8),
        "other": RawLayout("float32"),
    }
    for table, layout in want.items():
        assert layout_for(table, "weight", "float32", quantize) == layout, table
    check_patterns(quantize, want)
    named = [table for table in want if names_table(quantize, table)]
    assert named == ["item_a", "item_b", "item_[ab]", "item_raw", "USER"]


def test_a_pattern_that_names_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no table is named 'itme\*'; the tables are item, user"):
        check_patterns({"item": None, "itme*": Quantize(4)}, ["item", "user"])
    check_patterns(None, ["item"])
    check_patterns(Quantize(), ["item"])
    assert names_table(Quantize(), "item")
    assert not names_table(None, "item")


@pytest.mark.parametrize("quantize", [8, "8", {"user": 4}, {"*": "raw"}, {7: None}, [Quantize()]])
def test_anything_else_is_refused(quantize: Any) -> None:
    with pytest.raises(UsageError, match="quantize"):
        layout_for("user", "weight", "float32", quantize)
