"""Strict JSON (specification, section 2.2): parsing, writing, and typed access to an object's keys."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from cnrfmt.errors import DamagedError, UsageError
from cnrfmt.format.limits import MAX_DEPTH, MAX_INTEGER, MAX_NAME

Json = Any
"""What JSON can say: None, bool, int, float, str, list, dict."""

_ROW_ID = re.compile(r"0|-?[1-9][0-9]{0,18}")
_NESTING = dict, list
_CONTROL = re.compile("[\x00-\x1f\x7f]")


def _pairs(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return found


def _integer(text: str) -> int:
    if len(text) > 17 or abs(value := int(text)) > MAX_INTEGER:
        raise ValueError(f"an integer beyond 2^53 - 1: {text[:40]}")
    return value


def _float(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"a number beyond float64: {text[:40]}")
    return value


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _depth(value: Json) -> int:
    depth, level = 0, [value]
    while level := [x for x in level if isinstance(x, _NESTING)]:
        depth += 1
        if depth > MAX_DEPTH:
            break
        level = [y for x in level for y in (x.values() if isinstance(x, dict) else x)]
    return depth


_DECODER = json.JSONDecoder(
    object_pairs_hook=_pairs, parse_int=_integer, parse_float=_float, parse_constant=_constant
)


def parse(data: bytes, place: str) -> Json:
    """The value of strict JSON text; raises `DamagedError` (rule `json-syntax`)."""
    try:
        text = data.decode("utf-8")
        value = _DECODER.decode(text)
        if "\\u" in text:
            # Only an escape can bring in half of a surrogate pair, which UTF-8 can't say.
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        _damaged(place, "nested deeper than Python can read")
    except ValueError as error:
        _damaged(place, str(error))
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        _damaged(place, f"nested deeper than {MAX_DEPTH}")
    return value


def _damaged(place: str, found: str) -> NoReturn:
    raise DamagedError("json-syntax", place, expected="strict JSON", found=found)


def dump(value: Json) -> bytes:
    """Strict JSON text of a value that holds nothing else."""
    return json.dumps(
        value, ensure_ascii=False, separators=(",", ":"), allow_nan=False
    ).encode("utf-8")


def check_user_value(value: Json, what: str, *, depth: int = 0) -> None:
    """A caller's value must be one that strict JSON gives back unchanged; raises `UsageError`."""
    if depth > MAX_DEPTH - 2:
        raise UsageError(f"{what}: nested deeper than {MAX_DEPTH - 2}; flatten it")
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise UsageError(f"{what}: keys must be strings, found {key!r}; use str(key)")
            check_user_value(key, what, depth=depth + 1)
            check_user_value(inner, f"{what}[{key!r}]", depth=depth + 1)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            check_user_value(inner, f"{what}[{number}]", depth=depth + 1)
    elif isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise UsageError(f"{what}: a string with a lone surrogate; encode it first") from None
    elif isinstance(value, bool) or value is None:
        return
    elif isinstance(value, int):
        if abs(value) > MAX_INTEGER:
            raise UsageError(f"{what}: integers go to 2^53 - 1, found {value}; use a string")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise UsageError(f"{what}: JSON has no {value}; use None or a string")
    else:
        raise UsageError(
            f"{what}: JSON can't hold a {type(value).__name__}; "
            "use dict, list, str, int, float, bool or None"
        )


def check_name(name: object, what: str) -> str:
    """A caller's name under the rule `json-name`; raises `UsageError`."""
    if not isinstance(name, str) or not is_name(name):
        raise UsageError(
            f"{what}: a name is 1 to {MAX_NAME} bytes of UTF-8 without control characters, "
            f"found {name!r}"
        )
    return name


def is_name(name: str) -> bool:
    """Whether the rule `json-name` holds."""
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        return False
    return 1 <= size <= MAX_NAME and not _CONTROL.search(name)


def _from_hex(value: Json) -> bytes | None:
    """What lower-case hexadecimal digits stand for; None for anything else."""
    try:
        found = bytes.fromhex(value)
    except (TypeError, ValueError):
        return None
    # Python takes capitals and spaces, too.
    return found if found.hex() == value else None


class Record:
    """An object of metadata, read key by key with the type and range that each must have.

    `keys` are quickest compared as a frozenset.
    """

    __slots__ = ("_object", "place")

    def __init__(self, value: Json, keys: Iterable[str], place: str, *, lenient: bool) -> None:
        self.place = place
        if not isinstance(value, dict):
            self._fail("an object", type(value).__name__)
        if value.keys() != keys:
            keys = set(keys)
            if missing := keys - value.keys():
                self._fail(f"the key {min(missing)!r}", "no such key")
            if not lenient and (more := value.keys() - keys):
                self._fail(f"the keys {sorted(keys)}", f"also {min(more)!r}")
        self._object: dict[str, Json] = value

    def _fail(self, expected: str, found: object, key: str = "") -> NoReturn:
        place = f"{self.place}, {key}" if key else self.place
        raise DamagedError("json-field", place, expected=expected, found=found)

    def __getitem__(self, key: str) -> Json:
        return self._object[key]

    def is_null(self, key: str) -> bool:
        """Whether the key's value is null."""
        return self._object[key] is None

    def integer(self, key: str, low: int = 0, high: int = MAX_INTEGER) -> int:
        """An integer from `low` to `high`; beyond `high` the rule `limit` is broken."""
        value = self._object[key]
        if type(value) is not int or value < low:
            self._fail(f"an integer from {low}", repr(value)[:80], key)
        if value > high:
            raise DamagedError(
                "limit", f"{self.place}, {key}", expected=f"at most {high}", found=value
            )
        return value

    def number(self, key: str) -> int | float | None:
        """A number, or null."""
        value = self._object[key]
        if value is None or type(value) is int or type(value) is float:
            return value
        self._fail("a number or null", repr(value)[:80], key)

    def text(self, key: str, longest: int = 256) -> str:
        """A string of at most `longest` bytes."""
        value = self._object[key]
        if not isinstance(value, str) or len(value.encode("utf-8")) > longest:
            self._fail(f"a string of at most {longest} bytes", repr(value)[:80], key)
        return value

    def choice(self, key: str, choices: Iterable[str]) -> str:
        """One of some strings."""
        value = self._object[key]
        if not isinstance(value, str) or value not in choices:
            self._fail(f"one of {', '.join(choices)}", repr(value)[:80], key)
        return value

    def name(self, key: str) -> str:
        """A name under the rule `json-name`."""
        value = self._object[key]
        if not isinstance(value, str):
            self._fail("a name", repr(value)[:80], key)
        if not is_name(value):
            raise DamagedError(
                "json-name", f"{self.place}, {key}", expected="a name", found=repr(value)[:80]
            )
        return value

    def hexadecimal(self, key: str, size: int | None = None) -> bytes:
        """Bytes as lower-case hexadecimal digits, `size` of them."""
        value = self._object[key]
        found = _from_hex(value)
        if found is None or (size is not None and len(found) != size):
            expected = "hexadecimal digits" if size is None else f"{2 * size} hexadecimal digits"
            self._fail(expected, repr(value)[:80], key)
        return found

    def identity(self, key: str) -> bytes:
        """An id: 16 bytes, not all zero."""
        value = self.hexadecimal(key, 16)
        if not any(value):
            self._fail("an id", "zero", key)
        return value

    def digest(self, key: str) -> int:
        """A digest."""
        return int.from_bytes(self.hexadecimal(key, 8), "big")

    def row_id(self, key: str) -> int:
        """A row id: the decimal string of an int64."""
        value = self._object[key]
        if not isinstance(value, str) or not _ROW_ID.fullmatch(value):
            self._fail("a row id as a decimal string", repr(value)[:80], key)
        if not -(1 << 63) <= (number := int(value)) < 1 << 63:
            self._fail("an int64", value, key)
        return number

    def array(self, key: str, longest: int | None = None) -> list[Json]:
        """An array; longer than `longest` breaks the rule `limit`."""
        value = self._object[key]
        if not isinstance(value, list):
            self._fail("an array", type(value).__name__, key)
        if longest is not None and len(value) > longest:
            raise DamagedError(
                "limit", f"{self.place}, {key}", expected=f"at most {longest}", found=len(value)
            )
        return value

    def integers(self, key: str, count: int | None = None, high: int = MAX_INTEGER) -> list[int]:
        """An array of `count` integers from 0 to `high`."""
        value = self.array(key)
        if (count is not None and len(value) != count) or not all(
            type(x) is int and 0 <= x <= high for x in value
        ):
            self._fail(f"an array of {'' if count is None else count} integers", str(value)[:80], key)
        return value
