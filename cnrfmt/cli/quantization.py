"""The words of ``--quantize``: how they are read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, get_args

from cnrfmt.encodings.grid import Grid
from cnrfmt.encodings.quantize import Method, Placement, Quantize
from cnrfmt.errors import UsageError

ROWS_HELP = (
    "how float32 tables are stored: SPEC is BITS (2 to 8, auto or raw), then any of :METHOD, :LAYOUT and :KEY=VALUE, "
    "as in 8, 4:adaptive, 3:lsq:never_worse, 4:kmeans:block=64 or auto:restores=3; for all tables, or behind PATTERN= "
    "for those whose names match (as in a shell; the first pattern that matches counts); :column=NAME for a column of "
    "theirs"
)
HELP = (
    f"{ROWS_HELP}. Or it is grid:step=X, integers in steps that follow each row's activity, with any of "
    ":KEY=VALUE of cnrfmt.Grid"
)
METAVAR = "SPEC"

_RAW = ("raw", "32")
_BITS = re.compile(r"(?:auto|raw|grid|\d+)(?=:|$)")
_METHODS, _LAYOUTS = get_args(Method), get_args(Placement)
_WHOLE = ("group", "num_bins", "starts", "block", "restores")
_FRACTIONS = ("ratio", "max_error", "mean_error")
_MAY_BE_AUTO = ("num_bins", "ratio")
_FLAGS = ("never_worse",)
_KEYS = tuple(f.name for f in fields(Quantize) if f.name not in ("bits", *_FLAGS))
_COLUMN = "column"
_GRID = "grid"
_GRID_NUMBERS = ("learning_rate", "restores", "c", "step")
_GRID_KEYS = tuple(f.name for f in fields(Grid))
_BARE = f"{', '.join(_METHODS)} (methods), {', '.join(_LAYOUTS)} (layouts) or {', '.join(_FLAGS)}"
_LEGAL = "2 to 8, auto or raw, alone or behind PATTERN=, such as 8, 4:adaptive or 'user*=3:lsq'"

Key = str | tuple[str, str]


def choices_of(words: Iterable[str] | None) -> dict[Key, Quantize | Grid | None] | None:
    """What `save` takes: patterns in the order given; what is for all tables is the pattern that matches all, last.

    Raises
    ------
    UsageError
        It names the word, and what is legal.
    """
    found: dict[Key, Quantize | Grid | None] = {}
    everything: dict[Key, Quantize | Grid | None] = {}
    for word in words or ():
        pattern, spec = _divided(word)
        quantize, column = _parsed(spec, word)
        key = pattern or "*"
        into = everything if pattern is None else found
        name: Key = key if column is None else (key, column)
        if name in into:
            raise UsageError(f"--quantize: {_twice(pattern, column)} twice")
        into[name] = quantize
    return {**found, **everything} or None


def schemes_of(words: Iterable[str] | None) -> list[Quantize] | None:
    """What is to be tried, where words are for no table in particular; None if there are no words."""
    found = []
    for word in words or ():
        pattern, spec = _divided(word)
        quantize, column = _parsed(spec, word)
        if pattern is not None or column is not None:
            raise UsageError(f"--quantize {word}: with --dry-run all is tried on all; --tables chooses tables")
        if quantize is None:
            raise UsageError(f"--quantize {word}: raw rows are what everything else is compared with")
        if isinstance(quantize, Grid):
            raise UsageError(f"--quantize {word}: --dry-run tries rows one by one, and a grid is for all of a table")
        found.append(quantize)
    return found or None


def _divided(word: str) -> tuple[str | None, str]:
    """The pattern in front, if there is one, and the rest, which begins with bits."""
    if _BITS.match(word):
        return None, word
    for place in (found.start() for found in re.finditer("=", word)):
        if place and _BITS.match(word, place + 1):
            return word[:place], word[place + 1 :]
    raise UsageError(f"--quantize {word or repr(word)}: there are no bits in it; it takes {_LEGAL}")


def _parsed(spec: str, word: str) -> tuple[Quantize | Grid | None, str | None]:
    """What a word asks for without its pattern, and the column that it is for."""
    bits, *items = spec.split(":")
    if bits == _GRID:
        return _grid(items, word), None
    values: dict[str, Any] = {}
    for item in items:
        key, value = _item(item, word)
        if key in values:
            raise UsageError(f"--quantize {word}: {key} twice")
        values[key] = value
    column = values.pop(_COLUMN, None)
    if bits in _RAW:
        if values:
            raise UsageError(f"--quantize {word}: raw takes nothing but {_COLUMN}=NAME, found {min(values)}")
        return None, column
    try:
        return Quantize(bits if bits == "auto" else int(bits), **values), column  # type: ignore[arg-type]
    except UsageError as error:
        raise UsageError(f"--quantize {word}: {str(error).removeprefix('Quantize: ')}") from None


def _grid(items: list[str], word: str) -> Grid:
    values: dict[str, Any] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if key not in _GRID_KEYS or not equals:
            raise UsageError(f"--quantize {word}: {item!r} is no KEY=VALUE of a grid; keys: {', '.join(_GRID_KEYS)}")
        if key in values:
            raise UsageError(f"--quantize {word}: {key} twice")
        try:
            values[key] = float(value) if key in _GRID_NUMBERS else value
        except ValueError:
            raise UsageError(f"--quantize {word}: {key} is a number, found {value!r}") from None
    try:
        return Grid(**values)
    except UsageError as error:
        raise UsageError(f"--quantize {word}: {str(error).removeprefix('Grid: ')}") from None


def _item(item: str, word: str) -> tuple[str, Any]:
    key, equals, value = item.partition("=")
    if not equals:
        for name, legal in (("method", _METHODS), ("layout", _LAYOUTS)):
            if item in legal:
                return name, item
        if item in _FLAGS:
            return item, True
        raise UsageError(f"--quantize {word}: {item!r} is none of {_BARE}, and no KEY=VALUE")
    if key != _COLUMN and key not in _KEYS:
        raise UsageError(f"--quantize {word}: no key is named {key!r}; the keys are {', '.join(_KEYS)} and {_COLUMN}")
    if key not in (*_WHOLE, *_FRACTIONS) or (value == "auto" and key in _MAY_BE_AUTO):
        return key, value
    try:
        return key, int(value) if key in _WHOLE else float(value)
    except ValueError:
        kind = "an integer" if key in _WHOLE else "a number"
        raise UsageError(f"--quantize {word}: {key} is {kind}, found {value!r}") from None


def _twice(pattern: str | None, column: str | None) -> str:
    named = "bits for all tables" if pattern is None else repr(pattern)
    return named if column is None else f"{named}, column {column!r},"
