"""The data types of the format against the dtypes of numpy and ml_dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from cnrfmt import dtypes
from cnrfmt.errors import UsageError
from cnrfmt.format.encoding import DENSE_ITEM_SIZES, ITEM_SIZES


@pytest.mark.parametrize("name", dtypes.DENSE_TYPES)
def test_every_type_is_little_endian_of_its_size_and_named_back(name: str) -> None:
    dtype = dtypes.dtype_of(name)
    assert dtype.itemsize == DENSE_ITEM_SIZES[name]
    assert dtype.str[0] in "<|"
    assert dtypes.name_of(dtype) == name
    # One array of it, to hold that the dtype can be used and not only be named.
    assert np.zeros(3, dtype).tobytes() == bytes(3 * DENSE_ITEM_SIZES[name])


def test_the_extended_types_are_those_of_ml_dtypes() -> None:
    assert dtypes.dtype_of("bfloat16") == ml_dtypes.bfloat16
    assert dtypes.dtype_of("float8_e4m3fn") == ml_dtypes.float8_e4m3fn
    assert dtypes.dtype_of("float8_e5m2") == ml_dtypes.float8_e5m2


def test_columns_take_all_but_boolean_and_complex_types() -> None:
    assert set(dtypes.DENSE_TYPES) - set(dtypes.COLUMN_TYPES) == {"bool", "complex64", "complex128"}
    assert tuple(ITEM_SIZES) == dtypes.COLUMN_TYPES
    for name in dtypes.COLUMN_TYPES:
        assert dtypes.name_of(dtypes.dtype_of(name), column=True) == name


@pytest.mark.parametrize("given", [">f4", ">i8", ">u2", ">f2", "q", "Q", "l", "longlong", "intc"])
def test_byte_order_and_aliases_dont_matter(given: str) -> None:
    dtype = np.dtype(given)
    assert dtypes.dtype_of(dtypes.name_of(dtype)) == dtype.newbyteorder("<")


@pytest.mark.parametrize(
    "given",
    [
        "U3",
        "S3",
        "O",
        "M8[s]",
        "m8[s]",
        "longdouble",
        "clongdouble",
        [("a", "f4")],
        "V2",
        ml_dtypes.float8_e4m3fnuz,
        ml_dtypes.int4,
        ml_dtypes.float8_e5m2fnuz,
        "no such dtype",
    ],
    ids=str,
)
def test_other_dtypes_are_refused_with_the_legal_ones(given: object) -> None:
    with pytest.raises(UsageError, match="the moments"):
        dtypes.name_of(given, what="the moments")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["bool", "complex64", "complex128"])
def test_a_column_refuses_what_only_dense_arrays_hold(name: str) -> None:
    with pytest.raises(UsageError, match=r"table 't': .*in a column.*float64, float32"):
        dtypes.name_of(name, column=True, what="table 't'")


@pytest.mark.parametrize("name", ["float128", "", "Float32", "<f4"])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="isn't one of float64"):
        dtypes.dtype_of(name)
