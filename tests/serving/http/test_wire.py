"""Requests and answers as bytes: both forms, and what is refused."""

from __future__ import annotations

import contextlib
import json
import pickle
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cnrfmt.errors import UsageError
from cnrfmt.serving.http import wire
from cnrfmt.serving.http.wire import JSON, ROWS, Call, Form, Limits, RequestError

LIMITS = Limits()
FEW = Limits(ids=3)


def read(body: Any, form: Form = JSON, *, pooled: bool = False, limits: Limits = LIMITS) -> Call:
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    return wire.read_request(sent, form, limits, pooled=pooled)


def refused(body: Any, form: Form = JSON, *, pooled: bool = False, limits: Limits = LIMITS) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(body, form, pooled=pooled, limits=limits)
    return caught.value


def test_a_request_in_json() -> None:
    ids = [0, 2**53 + 1, str(2**53 + 1), "-9223372036854775808", 2**63 - 1, "0"]
    call = read({"table": "üser", "ids": ids, "version": 7})
    assert (call.table, call.version, call.mode, call.rows) == ("üser", 7, None, 6)
    assert call.ids.dtype == np.int64
    assert call.ids.tolist() == [0, 2**53 + 1, 2**53 + 1, -(2**63), 2**63 - 1, 0]
    pooled = read({"table": "t", "ids": [1, 2], "offsets": [0, 1, 1], "weights": [1, 0.5], "mode": "sum"}, pooled=True)
    assert pooled.offsets is not None
    assert pooled.weights is not None
    assert (pooled.mode, pooled.rows, pooled.version) == ("sum", 3, None)
    assert (pooled.offsets.tolist(), pooled.weights.tolist(), pooled.weights.dtype) == ([0, 1, 1], [1, 0.5], np.float32)
    assert read({"table": "t", "ids": [], "offsets": []}, pooled=True).mode == "sum"


def test_the_layout_of_a_request_in_the_binary_form() -> None:
    head = struct.pack("<4sBBHqIIII", b"CNRQ", 1, 2, 5, 9, 3, 2, 0, 0)
    body = head + np.array([5, -1, 2**62], "<i8").tobytes() + np.array([0, 2], "<i8").tobytes() + "üser".encode()
    call = read(body, ROWS, pooled=True)
    assert (call.table, call.version, call.mode) == ("üser", 9, "mean")
    assert call.ids.tolist() == [5, -1, 2**62]
    assert call.offsets is not None
    assert (call.offsets.tolist(), call.weights) == ([0, 2], None)
    assert body == wire.pack_request("üser", [5, -1, 2**62], version=9, offsets=[0, 2], mode="mean")
    look_up = read(wire.pack_request("t", np.arange(4)), ROWS)
    assert (look_up.table, look_up.version, look_up.mode, look_up.ids.tolist()) == ("t", None, None, [0, 1, 2, 3])
    weighted = read(wire.pack_request("t", [1], offsets=[0], weights=[0.25]), ROWS, pooled=True)
    assert weighted.weights is not None
    assert weighted.weights.tolist() == [0.25]


@pytest.mark.parametrize(
    ("dtype", "code", "sent"),
    [
        ("float32", 0, "<f4"),
        ("float16", 0, "<f4"),
        (ml_dtypes.bfloat16, 0, "<f4"),
        ("float64", 1, "<f8"),
        ("int8", 2, "<i8"),
        ("uint32", 2, "<i8"),
        ("uint64", 3, "<u8"),
    ],
)
def test_the_layout_of_an_answer(dtype: Any, code: int, sent: str) -> None:
    rows = np.array([[1, 2, 3], [4, 5, 6]]).astype(dtype)
    body = wire.answer(7, rows, ROWS)
    assert body == struct.pack("<4sBBHqQII", b"CNRA", 1, code, 0, 7, 2, 3, 0) + rows.astype(sent).tobytes()
    version, found = wire.unpack_answer(body)
    assert (version, found.dtype.str) == (7, sent)
    assert found.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert json.loads(wire.answer(7, rows, JSON)) == {"version": 7, "rows": [[1, 2, 3], [4, 5, 6]]}


def test_nan_and_minus_zero_pass_in_the_binary_form() -> None:
    rows = np.array([[0x7FC00001, 0x80000000, 0x7F800000]], np.uint32).view(np.float32)
    assert wire.unpack_answer(wire.answer(0, rows, ROWS))[1].tobytes() == rows.tobytes()


def test_json_says_every_float_exactly_and_has_no_word_for_some() -> None:
    random = np.random.default_rng(0)
    # More than become JSON at a time, subnormals among them.
    rows = random.integers(0, 2**32, (1500, 7), dtype=np.uint32).view(np.float32)
    rows[~np.isfinite(rows)] = 1e-45
    body = wire.answer(3, rows, JSON)
    assert len(body) <= rows.size * wire.JSON_VALUE + 40
    assert np.array_equal(np.array(json.loads(body)["rows"], np.float32), rows)
    assert wire.answer(3, np.empty((0, 4), np.float32), JSON) == b'{"version":3,"rows":[]}'
    assert json.loads(wire.answer(3, np.empty((2, 0), np.float32), JSON)) == {"version": 3, "rows": [[], []]}
    # Without its sign a zero is another one.
    signed = json.loads(wire.answer(3, np.array([[-0.0, 3.0]], np.float32), JSON))["rows"][0]
    assert np.signbit(signed).tolist() == [True, False]
    for value in (np.nan, np.inf, -np.inf):
        rows[1400, 2] = value
        with pytest.raises(RequestError, match=r"row 1400 .* JSON can't say; .*application/vnd") as caught:
            wire.answer(3, rows, JSON)
        assert caught.value.status == 406
    for whole in (2**53, -(2**53)):
        with pytest.raises(RequestError, match=r"integers beyond 2\^53 - 1"):
            wire.answer(3, np.array([[whole]]), JSON)
    with pytest.raises(RequestError, match="integers beyond"):
        wire.answer(3, np.array([[2**64 - 1]], np.uint64), JSON)
    assert wire.answer(3, np.array([[1 - 2**53]]), JSON) == b'{"version":3,"rows":[[-9007199254740991]]}'


HOSTILE_JSON = {
    b"": "isn't JSON",
    b"[]": "the body is a list of 0",
    b'{"table": "t", "ids": [1]': "isn't JSON",
    b'{"table": "t", "ids": [1]} x': "isn't JSON",
    b"\xff{}": "isn't UTF-8 at byte 0",
    "{}".encode("utf-16"): "isn't UTF-8",
    b"\xef\xbb\xbf{}": "isn't JSON",
    b"[" * 100_000: "nested too deeply",
    b'{"table":' * 100_000: "nested too deeply",
    b'{"table": "t", "ids": [' + b"9" * 5000 + b"]}": "a number of thousands of digits",
    b'{"table": "t", "ids": [' + b"9" * 4000 + b"]}": "ids[0] is an integer of ",
    b'{"table": "t", "ids": [NaN]}': "it has NaN",
    b'{"table": "t", "ids": [1], "ids": [2]}': '"ids" twice',
    b'{"table": "t", "ids": [{"a": 1, "a": 2}]}': '"a" twice',
    b'{"table": "t"}': "no 'ids'",
    b'{"ids": []}': "no 'table'",
    b'{"table": 5, "ids": []}': "table is a name, found 5",
    b'{"table": "t", "ids": [], "offsets": [0]}': '"offsets", which means nothing here',
    b'{"table": "t", "ids": {}}': "ids is a list, found an object",
    b'{"table": "t", "ids": "12"}': 'ids is a list, found "12"',
    b'{"table": "t", "ids": [0, true]}': "ids[1] is true",
    b'{"table": "t", "ids": [0, 1.0]}': "ids[1] is 1.0",
    b'{"table": "t", "ids": [null]}': "ids[0] is null",
    b'{"table": "t", "ids": [[1]]}': "ids[0] is a list of 1",
    b'{"table": "t", "ids": [9223372036854775808]}': "ids[0] is 9223372036854775808",
    b'{"table": "t", "ids": ["9223372036854775808"]}': "ids[0] is 9223372036854775808",
    b'{"table": "t", "ids": ["+1"]}': 'ids[0] is "+1"',
    b'{"table": "t", "ids": ["01"]}': 'ids[0] is "01"',
    b'{"table": "t", "ids": [" 1"]}': 'ids[0] is " 1"',
    '{"table": "t", "ids": ["\u0661"]}'.encode(): 'ids[0] is "\\u0661"',
    b'{"table": "t", "ids": ["' + b"1" * 5000 + b'"]}': 'ids[0] is "111111',
    b'{"table": "t", "ids": [], "version": true}': "version is a number from 0 on, found true",
    b'{"table": "t", "ids": [], "version": -1}': "found -1",
    b'{"table": "t", "ids": [], "version": 1e3}': "found 1000.0",
}


@pytest.mark.parametrize("body", HOSTILE_JSON, ids=lambda body: repr(body[:40]))
def test_hostile_json_is_refused_by_name(body: bytes) -> None:
    error = refused(body)
    assert HOSTILE_JSON[body] in error.message
    assert error.status == 400
    # Whatever was sent, little is said of it.
    assert len(str(error)) < 300


def test_hostile_json_for_pooling() -> None:
    asked: dict[str, Any] = {"table": "t", "ids": [1, 2], "offsets": [0]}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"mode": "median"}, 'found "median"'),
        ({"mode": ["sum"]}, "found a list of 1"),
        ({"offsets": [True]}, "offsets[0] is true"),
        ({"offsets": None}, "offsets is a list, found null"),
        ({"weights": 1}, "weights is a list, found 1"),
        ({"weights": [1, True]}, "weights[1] is true"),
        ({"weights": [1, "2"]}, 'weights[1] is "2"'),
        ({"weights": [1, 1e39]}, "weights[1] is 1e+39"),
        ({"weights": [10**400, 1]}, "an integer that no float holds"),
    ]
    for change, message in cases:
        assert message in refused(asked | change, pooled=True).message
    infinite = b'{"table": "t", "ids": [1], "offsets": [0], "weights": [1e999]}'
    assert "weights[0] is Infinity" in refused(infinite, pooled=True).message


def test_a_request_of_too_many_is_refused_before_they_are_looked_at() -> None:
    for body, pooled, what in (
        ({"table": "t", "ids": [None] * 4}, False, "4 ids"),
        ({"table": "t", "ids": [], "offsets": [None] * 4}, True, "4 offsets"),
        ({"table": "t", "ids": [], "offsets": [], "weights": [None] * 4}, True, "4 weights"),
    ):
        error = refused(body, pooled=pooled, limits=FEW)
        assert (error.status, error.advice) == (413, "send several requests")
        assert f"{what}, and 3 are allowed" in error.message
    assert refused(wire.pack_request("t", range(4)), ROWS, limits=FEW).status == 413
    assert refused(wire.pack_request("t", [1], offsets=[0] * 4), ROWS, pooled=True, limits=FEW).status == 413


def packed(**changes: int | bytes) -> bytes:
    head: dict[str, Any] = {
        "magic": b"CNRQ", "form": 1, "mode": 0, "name": 1, "version": -1, "ids": 1, "offsets": 0, "weights": 0,
        "zero": 0, "tail": bytes(8) + b"t",
    }  # fmt: skip
    *fields, tail = (head | changes).values()
    return struct.pack("<4sBBHqIIII", *fields) + tail


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"magic": b"CNRA"}, "begins with b'CNRA'"),
        ({"form": 2}, "form 2"),
        ({"zero": 1}, "zero at byte 28"),
        ({"mode": 1}, "mode 1 isn't for this address"),
        ({"mode": 4}, "mode 4 isn't for this address"),
        ({"mode": 255}, "mode 255 isn't for this address"),
        ({"offsets": 1, "tail": bytes(16) + b"t"}, "1 offsets and 0 weights"),
        ({"ids": 2}, "the body has 41 bytes, and by its head it has 49"),
        ({"name": 0}, "by its head it has 40"),
        ({"name": 65535}, "by its head it has"),
        ({"tail": bytes(8) + b"t\0"}, "the body has 42 bytes"),
        ({"tail": bytes(8) + b"\xff"}, "isn't UTF-8"),
        ({"version": -2}, "version -2 can't be"),
    ],
)
def test_hostile_binary_requests(changes: dict[str, Any], message: str) -> None:
    assert read(packed(), ROWS).ids.tolist() == [0]
    error = refused(packed(**changes), ROWS)
    assert message in error.message
    assert error.status == 400


def test_weights_that_are_no_numbers_are_refused() -> None:
    for value in (np.nan, np.inf):
        error = refused(wire.pack_request("t", [1, 2], offsets=[0], weights=[1, value]), ROWS, pooled=True)
        assert (error.status, error.message[:14]) == (400, "weights[1] is ")


def test_every_truncation_and_changed_byte_of_a_binary_request_is_an_error_or_a_request() -> None:
    body = wire.pack_request("table", [1, 2, 3], offsets=[0, 1], weights=[1, 2, 3])
    for length in range(len(body)):
        assert refused(body[:length], ROWS, pooled=True).status == 400
    for place in range(len(body)):
        for bit in range(8):
            changed = bytearray(body)
            changed[place] ^= 1 << bit
            # Any other error is a fault.
            with contextlib.suppress(RequestError):
                read(bytes(changed), ROWS, pooled=True)


def test_an_answer_that_isnt_one() -> None:
    body = wire.answer(1, np.ones((2, 3), np.float32), ROWS)
    for bad in (b"", b"{}", b'{"error": "..."}' * 9, body[:-1], body + b"\0", body[:5] + b"\x09" + body[6:]):
        with pytest.raises(UsageError, match="an answer of"):
            wire.unpack_answer(bad)


def test_the_error_travels_between_processes() -> None:
    error = pickle.loads(pickle.dumps(RequestError(413, "too large", "send less")))
    assert (error.status, error.message, error.advice) == (413, "too large", "send less")
    assert str(error) == "too large; send less"
