"""What requests and answers look like: JSON, and a binary form whose rows are arrays as they lie in memory.

JSON, ``application/json``, is UTF-8 without names that come twice, NaN or Infinity. A request is an object ``{"table":
"user", "ids": [3, "9007199254740993"]}``, where an id is an integer or, for programs whose integers end at 2^53, its
decimal digits as a string; ``"version": 7`` asks for a version that is held; ``"offsets"``, ``"weights"`` and
``"mode"`` go with pooling. The answer is ``{"version": 7, "rows": [[...], ...]}``. Its numbers are exact, in as
many digits as tell each of them from all others of its type: what JSON can't say, NaN, Infinity and integers beyond
+-(2^53 - 1), is refused, since any stand-in would be a wrong value that nobody notices.

The binary form, ``application/vnd.cnrfmt.rows``, is little-endian. A request::

    offset  bytes  what
         0      4  "CNRQ"
         4      1  form: 1
         5      1  mode: 0 look-up, 1 sum, 2 mean, 3 max
         6      2  length of the table's name in bytes
         8      8  version as int64; -1 is the newest
        16      4  I, number of ids
        20      4  B, number of offsets; 0 in a look-up
        24      4  W, number of weights; 0 where there are none
        28      4  zero
        32    8 I  ids, int64
       ...    8 B  offsets, int64
       ...    4 W  weights, float32
       ...         the table's name, UTF-8; nothing behind it

and an answer::

         0      4  "CNRA"
         4      1  form: 1
         5      1  elements: 0 float32, 1 float64, 2 int64, 3 uint64
         6      2  zero
         8      8  version as int64
        16      8  R, number of rows
        24      4  D, elements per row
        28      4  zero
        32         R x D elements, row by row; nothing behind them

Rows are float32 unless the table's values don't fit: float64 stays as it is, and integers come in 64 bits.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn, cast

import numpy as np
import numpy.typing as npt
import orjson

from cnrfmt.arrays import Array, Ids
from cnrfmt.errors import UsageError

Form = Literal["application/json", "application/vnd.cnrfmt.rows"]
JSON: Final = "application/json"
ROWS: Final = "application/vnd.cnrfmt.rows"
Mode = Literal["sum", "mean", "max"]
MODES: tuple[Mode, ...] = ("sum", "mean", "max")

_REQUEST, _ANSWER = struct.Struct("<4sBBHqIIII"), struct.Struct("<4sBBHqQII")
_ASKS, _ANSWERS, _FORM = b"CNRQ", b"CNRA", 1
_ELEMENTS: tuple[np.dtype[Any], ...] = tuple(np.dtype(name) for name in ("<f4", "<f8", "<i8", "<u8"))
_DIGITS = re.compile(r"0|-?[1-9][0-9]{0,18}", re.ASCII)
_SAFE = 2**53 - 1
JSON_VALUE = 25
"""Bytes of JSON that a value takes at the most, with the comma behind it."""


class RequestError(UsageError):
    """A request that isn't answered with rows.

    Attributes
    ----------
    status
        The HTTP status.
    advice
        What to do about it.
    """

    def __init__(self, status: int, message: str, advice: str) -> None:
        self.status, self.message, self.advice = status, message, advice
        super().__init__(f"{message}; {advice}")

    def __reduce__(self) -> tuple[Any, ...]:
        return RequestError, (self.status, self.message, self.advice)


@dataclass(frozen=True)
class Limits:
    """What one request may ask for: bytes of its body, ids, and bytes of its answer."""

    request_bytes: int = 4 << 20
    ids: int = 100_000
    answer_bytes: int = 64 << 20


@dataclass(frozen=True, eq=False)
class Call:
    """A request: rows of a table by id, or their sums, means or maxima where `mode` says so."""

    table: str
    ids: Ids
    version: int | None = None
    offsets: Ids | None = None
    weights: npt.NDArray[np.float32] | None = None
    mode: Mode | None = None

    @property
    def rows(self) -> int:
        """How many rows the answer has."""
        return len(self.ids) if self.offsets is None else len(self.offsets)


def read_request(body: bytes | bytearray, form: Form, limits: Limits, *, pooled: bool) -> Call:
    """The request that a body is; raises `RequestError`."""
    return _from_json(body, limits, pooled=pooled) if form == JSON else _from_binary(body, limits, pooled=pooled)


def answer(version: int, rows: Array, form: Form) -> bytes:
    """The body of an answer; raises `RequestError` for what JSON can't say."""
    elements = elements_of(rows.dtype)
    values = rows.astype(elements, order="C", copy=False)
    if form == JSON:
        return _json_answer(version, values)
    head = _ANSWER.pack(_ANSWERS, _FORM, _ELEMENTS.index(elements), 0, version, *values.shape, 0)
    return head + values.data if values.size else head


def elements_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """What the elements of rows of this data type are sent as."""
    if dtype.kind in "iu":
        return _ELEMENTS[3 if dtype == np.uint64 else 2]
    return _ELEMENTS[1 if dtype == np.float64 else 0]


def pack_request(
    table: str,
    ids: Any,
    *,
    version: int | None = None,
    offsets: Any = None,
    weights: Any = None,
    mode: Mode = "sum",
) -> bytes:
    """A request in the binary form, to look rows up, or with `offsets` to pool them."""
    name, keys = table.encode(), np.asarray(ids, "<i8")
    bags = np.empty(0, "<i8") if offsets is None else np.asarray(offsets, "<i8")
    shares = np.empty(0, "<f4") if weights is None else np.asarray(weights, "<f4")
    number = 0 if offsets is None else 1 + MODES.index(mode)
    asked = -1 if version is None else version
    head = _REQUEST.pack(_ASKS, _FORM, number, len(name), asked, len(keys), len(bags), len(shares), 0)
    return b"".join([head, keys.tobytes(), bags.tobytes(), shares.tobytes(), name])


def unpack_answer(body: bytes) -> tuple[int, Array]:
    """The version, and the rows, of an answer in the binary form; raises `UsageError` for anything else."""
    if len(body) < _ANSWER.size or body[:4] != _ANSWERS:
        raise UsageError(f"an answer of {ROWS} begins with {_ANSWERS!r}, found {body[:4]!r}; look at its content type")
    _, form, number, _, version, rows, dim, _ = _ANSWER.unpack_from(body)
    if form != _FORM or number >= len(_ELEMENTS):
        raise UsageError(f"an answer of form {form}, elements {number}, which this release doesn't know; upgrade it")
    elements = _ELEMENTS[number]
    size = _ANSWER.size + rows * dim * elements.itemsize
    if len(body) != size:
        raise UsageError(f"an answer of {rows} rows of {dim} has {size} bytes, found {len(body)}; ask again")
    return version, np.frombuffer(body, elements, offset=_ANSWER.size).reshape(rows, dim)


def _from_json(body: bytes | bytearray, limits: Limits, *, pooled: bool) -> Call:
    asked = _object(body)
    known = ("table", "ids", "version", *(("offsets", "weights", "mode") if pooled else ()))
    for name in asked:
        if name not in known:
            _bad(f"the request has {_shown(name)}, which means nothing here", f"it may have {', '.join(known)}")
    for name in ("table", "ids", *(("offsets",) if pooled else ())):
        if name not in asked:
            more = ', "offsets": [0]' if pooled else ""
            _bad(f"the request has no {name!r}", f'send an object such as {{"table": "user", "ids": [0, 1]{more}}}')
    table, version, mode = asked["table"], asked.get("version"), asked.get("mode", "sum")
    if not isinstance(table, str):
        _bad(f"table is a name, found {_shown(table)}", "send a string; GET /tables lists them")
    if version is not None and (type(version) is not int or not 0 <= version <= _SAFE):
        _bad(f"version is a number from 0 on, found {_shown(version)}", "leave it out for the newest")
    ids = _whole_numbers(asked["ids"], "ids", limits)
    if not pooled:
        return Call(table, ids, version)
    if mode not in MODES:
        _bad(f"mode is one of {', '.join(MODES)}, found {_shown(mode)}", "leave it out for sums")
    offsets = _whole_numbers(asked["offsets"], "offsets", limits)
    weights = asked.get("weights")
    return Call(table, ids, version, offsets, None if weights is None else _numbers(weights, limits), mode)


def _object(body: bytes | bytearray) -> dict[str, Any]:
    advice = "send one JSON object in UTF-8"
    try:
        found = json.loads(body.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        _bad(f"the body isn't UTF-8 at byte {error.start}", advice)
    except RecursionError:
        _bad("the JSON is nested too deeply", advice)
    except json.JSONDecodeError as error:
        _bad(f"the body isn't JSON: {error}", advice)
    except RequestError:
        raise
    except ValueError:
        # Which Python doesn't read, as that takes time with the square of the length.
        _bad("the JSON has a number of thousands of digits", "send integers within int64")
    if not isinstance(found, dict):
        _bad(f"the body is {_shown(found)}", advice)
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names: set[str] = set()
        for name, _ in pairs:
            if name in names:
                _bad(f"the JSON has {_shown(name)} twice in one object", "send each name once")
            names.add(name)
    return found


def _no_constant(word: str) -> NoReturn:
    _bad(f"the body isn't JSON: it has {word}", "send finite numbers")


def _whole_numbers(value: Any, what: str, limits: Limits) -> Ids:
    advice = "send integers, or their decimal digits as strings, within int64"
    if type(value) is not list:
        _bad(f"{what} is a list, found {_shown(value)}", advice)
    if len(value) > limits.ids:
        _too_many(len(value), what, limits)
    # By exact type: a boolean is an integer to Python.
    if set(map(type, value)) - {int}:
        value = [int(v) if type(v) is str and _DIGITS.fullmatch(v) else v for v in value]
        for place, one in enumerate(value):
            if type(one) is not int:
                _bad(f"{what}[{place}] is {_shown(one)}", advice)
    try:
        return np.array(value, np.int64)
    except OverflowError:
        place = next(i for i, v in enumerate(value) if not -(2**63) <= v < 2**63)
        _bad(f"{what}[{place}] is {_shown(value[place])}", advice)


def _numbers(value: Any, limits: Limits) -> npt.NDArray[np.float32]:
    advice = "send a list of numbers that float32 can hold, one for each id"
    if type(value) is not list:
        _bad(f"weights is a list, found {_shown(value)}", advice)
    if len(value) > limits.ids:
        _too_many(len(value), "weights", limits)
    if set(map(type, value)) - {int, float}:
        place = next(i for i, v in enumerate(value) if type(v) not in (int, float))
        _bad(f"weights[{place}] is {_shown(value[place])}", advice)
    try:
        with np.errstate(over="ignore"):
            found = np.array(value, np.float64).astype(np.float32)
    except OverflowError:
        _bad("weights has an integer that no float holds", advice)
    _check_finite(found, value, advice)
    return found


def _check_finite(weights: npt.NDArray[np.float32], sent: Any, advice: str) -> None:
    if not np.isfinite(weights).all():
        place = int(np.argmin(np.isfinite(weights)))
        _bad(f"weights[{place}] is {_shown(float(sent[place]))}", advice)


def _from_binary(body: bytes | bytearray, limits: Limits, *, pooled: bool) -> Call:
    advice = f"send the layout of {ROWS} that the documentation has"
    if len(body) < _REQUEST.size:
        _bad(f"the body has {len(body)} bytes, and its head alone takes {_REQUEST.size}", advice)
    magic, form, mode, name_bytes, version, ids, bags, shares, zero = _REQUEST.unpack_from(body)
    if magic != _ASKS or form != _FORM or zero:
        _bad(f"the body begins with {magic!r}, form {form}, expected {_ASKS!r}, form {_FORM}, zero at byte 28", advice)
    if mode > len(MODES) or (mode > 0) != pooled:
        _bad(f"mode {mode} isn't for this address", "mode 0 goes to /lookup; 1, 2 and 3 (sum, mean, max) to /pool")
    if not pooled and (bags or shares):
        _bad(f"a look-up with {bags} offsets and {shares} weights", "send them to /pool")
    if max(ids, bags, shares) > limits.ids:
        _too_many(max(ids, bags, shares), "ids", limits)
    size = _REQUEST.size + 8 * (ids + bags) + 4 * shares + name_bytes
    if len(body) != size:
        _bad(f"the body has {len(body)} bytes, and by its head it has {size}", advice)
    if version < -1:
        _bad(f"version {version} can't be", "a version is a number from 0 on; -1 is the newest")
    offset = _REQUEST.size
    found: list[Array] = []
    for dtype, count in (("<i8", ids), ("<i8", bags), ("<f4", shares)):
        found.append(np.frombuffer(body, dtype, count, offset))
        offset += found[-1].nbytes
    try:
        table = body[offset:].decode()
    except UnicodeDecodeError:
        _bad("the table's name isn't UTF-8", advice)
    chosen = cast(Ids, found[0])
    asked = None if version == -1 else version
    if not pooled:
        return Call(table, chosen, asked)
    _check_finite(found[2], found[2], "send numbers, one for each id")
    return Call(table, chosen, asked, found[1], found[2] if shares else None, MODES[mode - 1])


def _json_answer(version: int, values: Array) -> bytes:
    if values.dtype.kind in "iu" and values.size and max(int(values.max()), -int(values.min())) > _SAFE:
        raise RequestError(
            406,
            f"there are integers beyond 2^53 - 1 among these rows of version {version}, which JSON can't say safely",
            f"ask for the binary form: Accept: {ROWS}",
        )
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        place = int(np.argmin(np.isfinite(values).all(axis=1)))
        raise RequestError(
            406,
            f"row {place} of the answer has NaN or Infinity at version {version}, which JSON can't say",
            f"ask for the binary form: Accept: {ROWS}",
        )
    # orjson doesn't know the narrowest floating-point numbers of others; float32 holds all of theirs.
    known = values if values.dtype.kind in "iuf" else values.astype(np.float32)
    rows = orjson.dumps(np.ascontiguousarray(known), option=orjson.OPT_SERIALIZE_NUMPY)
    return b'{"version":%d,"rows":%b}' % (version, rows)


def _shown(value: Any) -> str:
    """A value within a message: short, whatever was sent."""
    if isinstance(value, dict):
        return f"an object of {len(value)} names"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, int) and not -(10**30) < value < 10**30:
        return f"an integer of {value.bit_length()} bits"
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _bad(message: str, advice: str) -> NoReturn:
    raise RequestError(400, message, advice)


def _too_many(count: int, what: str, limits: Limits) -> NoReturn:
    raise RequestError(413, f"the request has {count} {what}, and {limits.ids} are allowed", "send several requests")
