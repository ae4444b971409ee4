from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnrfmt.errors import DamagedError, UsageError
from cnrfmt.format import strict_json
from cnrfmt.format.limits import MAX_INTEGER

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-MAX_INTEGER, MAX_INTEGER),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
)
VALUES = st.recursive(
    SCALARS, lambda x: st.lists(x, max_size=4) | st.dictionaries(st.text(), x, max_size=4), max_leaves=20
)


@given(VALUES)
def test_what_is_dumped_is_what_is_parsed(value: object) -> None:
    strict_json.check_user_value(value, "x")
    found = strict_json.parse(strict_json.dump(value), "x")
    assert found == value


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b'{"a":1,"a":2}',
        b'{"a":{"b":1,"b":1}}',
        b"NaN",
        b"[Infinity]",
        b"-Infinity",
        b"1e400",
        b"9007199254740992",
        b"-9007199254740992",
        b"1" * 5000,
        b"\xef\xbb\xbf{}",
        b'"\xff"',
        b'"\\ud800"',
        b'{"\\udfff":1}',
        b'"\x01"',
        b"[" * 33 + b"]" * 33,
        b"[" * 100000 + b"]" * 100000,
        b"{} {}",
        b"'a'",
        b"01",
    ],
)
def test_what_is_not_strict_is_damage(text: bytes) -> None:
    with pytest.raises(DamagedError) as caught:
        strict_json.parse(text, "x")
    assert caught.value.rule == "json-syntax"


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 32 + b"]" * 32,
        b'"\\ud83d\\ude00"',
        b"9007199254740991",
        b"-0",
        b"1.5e-300",
        b' {"a" : [ ] } ',
    ],
)
def test_what_is_strict_is_read(text: bytes) -> None:
    strict_json.parse(text, "x")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({1: 2}, "keys must be strings"),
        (math.nan, "JSON has no nan"),
        ([math.inf], "JSON has no inf"),
        (1 << 53, "2\\^53"),
        (b"x", "bytes"),
        ({"a": {1, 2}}, "set"),
        ("\ud800", "surrogate"),
        (object(), "object"),
    ],
)
def test_a_caller_is_told_what_json_cannot_hold(value: object, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        strict_json.check_user_value(value, "metadata")


def test_deep_values_are_refused() -> None:
    value: list[object] = []
    for _ in range(40):
        value = [value]
    with pytest.raises(UsageError, match="nested deeper"):
        strict_json.check_user_value(value, "metadata")


@pytest.mark.parametrize("name", ["", "a\nb", "\x7f", "x" * 1025, "\ud800", 5])
def test_names_that_are_none(name: object) -> None:
    with pytest.raises(UsageError, match="a name is"):
        strict_json.check_name(name, "table name")


@pytest.mark.parametrize("name", ["a", "../etc/passwd", "é" * 512, "a b"])
def test_names(name: str) -> None:
    assert strict_json.check_name(name, "table name") == name


def record(value: object, lenient: bool = False) -> strict_json.Record:
    return strict_json.Record(value, ("a",), "x", lenient=lenient)


def test_keys_must_be_exact_unless_a_feature_says_more() -> None:
    for value in ([], {}, {"b": 1}, {"a": 1, "b": 2}):
        with pytest.raises(DamagedError, match="json-field"):
            record(value)
    assert record({"a": 1, "b": 2}, lenient=True).integer("a") == 1


@pytest.mark.parametrize("value", [True, 1.0, "1", None, -1])
def test_integers(value: object) -> None:
    with pytest.raises(DamagedError, match="json-field"):
        record({"a": value}).integer("a")


def test_integers_beyond_a_limit() -> None:
    with pytest.raises(DamagedError) as caught:
        record({"a": 11}).integer("a", 0, 10)
    assert caught.value.rule == "limit"


@pytest.mark.parametrize("value", ["01", "-0", "+1", "1.0", " 1", "9223372036854775808", "-9223372036854775809", 1, ""])
def test_row_ids(value: object) -> None:
    with pytest.raises(DamagedError, match="json-field"):
        record({"a": value}).row_id("a")


@pytest.mark.parametrize("value", [0, -1, (1 << 63) - 1, -(1 << 63)])
def test_row_id_range(value: int) -> None:
    assert record({"a": str(value)}).row_id("a") == value


@pytest.mark.parametrize("value", ["AB" * 16, "a" * 31, "zz" * 16, "0" * 32, 7, "00" * 15])
def test_ids(value: object) -> None:
    with pytest.raises(DamagedError, match="json-field"):
        record({"a": value}).identity("a")
