"""Typed access to the keys of JSON objects: which values are taken, and the bounds of what may be written."""

from __future__ import annotations

from typing import Any

import pytest

from cnrfmt.errors import DamagedError, UsageError
from cnrfmt.format import strict_json
from cnrfmt.format.limits import MAX_DEPTH, MAX_INTEGER
from cnrfmt.format.strict_json import Record


def of(value: Any) -> Record:
    return Record({"a": value}, ("a",), "here", lenient=False)


def refused(rule: str, call: Any, *args: Any) -> None:
    with pytest.raises(DamagedError) as caught:
        call("a", *args)
    assert (caught.value.rule, caught.value.place) == (rule, "here, a")


def test_an_object_is_named_whole() -> None:
    for value in ([], {}, {"b": 1}):
        with pytest.raises(DamagedError) as caught:
            Record(value, ("a",), "here", lenient=True)
        assert (caught.value.rule, caught.value.place) == ("json-field", "here")


def test_integers() -> None:
    assert of(0).integer("a") == 0
    assert of(MAX_INTEGER).integer("a") == MAX_INTEGER
    assert of(-5).integer("a", -5) == -5
    assert of(7).integer("a", 7, 7) == 7
    refused("json-field", of(-6).integer, -5)
    refused("limit", of(8).integer, 0, 7)
    refused("limit", of(MAX_INTEGER + 1).integer)


def test_numbers() -> None:
    for value in (0, -5, 2.5, 1e308, None):
        found = of(value).number("a")
        assert found == value
        assert type(found) is type(value)
    for other in (True, "1", [1], {}):
        refused("json-field", of(other).number)


def test_texts() -> None:
    assert of("").text("a") == ""
    assert of("x" * 256).text("a") == "x" * 256
    assert of("é").text("a", 2) == "é"
    refused("json-field", of("é").text, 1)
    refused("json-field", of("x" * 257).text)
    refused("json-field", of(None).text)
    refused("json-field", of(["x"]).text)


@pytest.mark.parametrize("choices", [("x", "y"), {"x": 1, "y": 2}])
def test_choices(choices: Any) -> None:
    assert of("x").choice("a", choices) == "x"
    for value in ("z", "", None, 1, ["x"], {"x": 1}):
        refused("json-field", of(value).choice, choices)


def test_names() -> None:
    assert of("x" * 1024).name("a") == "x" * 1024
    refused("json-name", of("x" * 1025).name)
    refused("json-name", of("").name)
    refused("json-field", of(None).name)


def test_hexadecimal_digits() -> None:
    assert of("").hexadecimal("a") == b""
    assert of("00ff").hexadecimal("a") == of("00ff").hexadecimal("a", 2) == b"\x00\xff"
    for value in ("0", "0g", "FF", " 00", "00\n", None, 0, ["00"]):
        refused("json-field", of(value).hexadecimal)
    for value in ("", "00", "000000"):
        refused("json-field", of(value).hexadecimal, 2)
    assert of("0" * 15 + "7").digest("a") == 7
    assert of("7" + "0" * 15).digest("a") == 7 << 60
    refused("json-field", of("07").digest)
    assert of("00" * 15 + "01").identity("a") == bytes(15) + b"\x01"
    refused("json-field", of("00" * 16).identity)
    refused("json-field", of("01" * 15).identity)


@pytest.mark.parametrize("text", ["0", "10", "-10", "9223372036854775807", "-9223372036854775808"])
def test_row_ids(text: str) -> None:
    assert of(text).row_id("a") == int(text)


@pytest.mark.parametrize("value", [None, 0, "", "-", "-0", "00", "01", "0\n", "9223372036854775808", "1" * 20, ["0"]])
def test_what_is_no_row_id(value: Any) -> None:
    refused("json-field", of(value).row_id)


def test_arrays() -> None:
    assert of([1, 2]).array("a") == of([1, 2]).array("a", 2) == [1, 2]
    refused("limit", of([1, 2]).array, 1)
    for value in (None, {}, "ab", 2):
        refused("json-field", of(value).array)


def test_arrays_of_integers() -> None:
    assert of([]).integers("a") == []
    assert of([0, MAX_INTEGER]).integers("a", 2) == [0, MAX_INTEGER]
    assert of([5]).integers("a", 1, 5) == [5]
    for value in ([-1], [1.0], ["1"], [True], [None], [MAX_INTEGER + 1]):
        refused("json-field", of(value).integers)
    refused("json-field", of([6]).integers, 1, 5)
    for value in ([], [1], [1, 2, 3]):
        refused("json-field", of(value).integers, 2)


def test_null() -> None:
    assert of(None).is_null("a")
    assert not any(of(value).is_null("a") for value in (0, "", [], {}, False))
    assert of(5)["a"] == 5


@pytest.mark.parametrize("text", [b"9007199254740991", b"-9007199254740991", b"0", b"-0", b"1e308"])
def test_numbers_at_their_bounds(text: bytes) -> None:
    assert strict_json.parse(text, "here") == float(text)


@pytest.mark.parametrize(
    "text", [b"9007199254740992", b"-9007199254740992", b"-90071992547409910", b"1e309", b"-1e309", b"0" * 18]
)
def test_numbers_beyond_them(text: bytes) -> None:
    with pytest.raises(DamagedError) as caught:
        strict_json.parse(text, "here")
    assert (caught.value.rule, caught.value.place) == ("json-syntax", "here")


@pytest.mark.parametrize("nest", [lambda x: [x], lambda x: {"k": x}, lambda x: [0, x, 1]])
def test_depth(nest: Any) -> None:
    value: Any = 0
    for _ in range(MAX_DEPTH):
        value = nest(value)
    text = strict_json.dump(value)
    assert strict_json.parse(text, "here") == value
    with pytest.raises(DamagedError, match="nested deeper than 32"):
        strict_json.parse(strict_json.dump(nest(value)), "here")


@pytest.mark.parametrize("nest", [lambda x: [x], lambda x: (x,), lambda x: {"k": x}])
def test_what_a_caller_nests_fits_into_the_manifest(nest: Any) -> None:
    """`metadata` is an object, and stands in one."""
    value: Any = 0
    for _ in range(MAX_DEPTH - 2):
        value = nest(value)
    strict_json.check_user_value(value, "metadata")
    assert strict_json.parse(strict_json.dump({"metadata": {"k": value}}), "here")
    with pytest.raises(UsageError, match="nested deeper than 30"):
        strict_json.check_user_value(nest(value), "metadata")


@pytest.mark.parametrize("value", [MAX_INTEGER, -MAX_INTEGER, 0, True, None, 1.5, "", "\U0001f600", [], {}, ()])
def test_what_a_caller_may_give(value: Any) -> None:
    strict_json.check_user_value(value, "metadata")


@pytest.mark.parametrize(
    "value", [MAX_INTEGER + 1, -MAX_INTEGER - 1, float("-inf"), {"\ud800": 1}, {"a": {"b": [b""]}}]
)
def test_what_a_caller_may_not_give(value: Any) -> None:
    with pytest.raises(UsageError, match="metadata"):
        strict_json.check_user_value(value, "metadata")


def test_the_place_in_a_callers_value_is_named() -> None:
    with pytest.raises(UsageError, match=r"^metadata\['a'\]\[1\]: "):
        strict_json.check_user_value({"a": [0, b""]}, "metadata")


def test_text_is_dumped_as_short_as_it_can_be() -> None:
    assert strict_json.dump({"é": [1, 2.5, None, True]}) == '{"é":[1,2.5,null,true]}'.encode()
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="JSON"):
            strict_json.dump(value)
