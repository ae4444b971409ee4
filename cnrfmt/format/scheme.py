"""How a writer chose the codes of a part, and what they cost in accuracy (specification, section 6.6)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NoReturn

from cnrfmt.errors import DamagedError
from cnrfmt.format.encoding import CastLayout, CodebookLayout, Layout, LogLayout, RawLayout
from cnrfmt.format.strict_json import Json, Record

MAX_SEARCH = 65536
"""The most bins, and the most starts, of a search."""


@dataclass(frozen=True)
class Scheme:
    """A method with its parameters.

    `num_bins` and `ratio` belong to the greedy search, `starts` to least squares; `bound` is the relative l2 error
    above which a row was stored as it is.
    """

    method: str
    num_bins: int | None = None
    ratio: float | None = None
    starts: int | None = None
    bound: float | None = None


@dataclass(frozen=True)
class Errors:
    """Relative l2 errors of rows: the norm of what decoding changed, over the norm of the row."""

    mean: float = 0.0
    worst: float = 0.0


NO_ERRORS = Errors()


def methods_of(layout: Layout) -> tuple[str, ...]:
    """The methods that choose codes for a layout; none for raw rows."""
    if isinstance(layout, RawLayout):
        return ()
    if isinstance(layout, CastLayout):
        return ("cast",)
    if isinstance(layout, CodebookLayout):
        return ("kmeans",)
    if isinstance(layout, LogLayout):
        return ("log",)
    if layout.bias is None:
        return ("symmetric",)
    uniform = ("asymmetric",) if layout.placement == "packed" else ("symmetric", "asymmetric")
    return (*uniform, "adaptive", "lsq")


def scheme_json(scheme: Scheme | None, errors: Errors) -> Json:
    """The SCHEME of a part."""
    if scheme is None:
        return None
    return {
        "method": scheme.method,
        "num_bins": scheme.num_bins,
        "ratio": scheme.ratio,
        "starts": scheme.starts,
        "bound": scheme.bound,
        "mean_error": errors.mean,
        "max_error": errors.worst,
    }


def parse_scheme(value: Json, layout: Layout, place: str, *, lenient: bool) -> tuple[Scheme | None, Errors]:
    """The scheme of a part with this layout; raises `DamagedError` (rule `part-scheme`)."""
    methods = methods_of(layout)
    if value is None or not methods:
        if value is None and not methods:
            return None, Errors()
        _damaged(place, "a scheme exactly where the encoding isn't raw", value)
    keys = ("method", "num_bins", "ratio", "starts", "bound", "mean_error", "max_error")
    record = Record(value, keys, place, lenient=lenient)
    method = record.text("method")
    if method not in methods:
        _damaged(f"{place}, method", f"one of {', '.join(methods)}", method)
    counts = {key: _count(record, key) for key in ("num_bins", "starts")}
    ratio, bound = _number(record, "ratio"), _number(record, "bound")
    if ratio is not None and not 0 < ratio <= 1:
        _damaged(f"{place}, ratio", "a number above 0 and at most 1", ratio)
    mean, worst = (_number(record, key) for key in ("mean_error", "max_error"))
    if mean is None or worst is None:
        raise DamagedError("json-field", place, expected="errors that are numbers", found=f"{mean} and {worst}")
    if mean > worst:
        _damaged(place, "a mean error that isn't above the greatest one", f"{mean} and {worst}")
    return Scheme(method, counts["num_bins"], ratio, counts["starts"], bound), Errors(mean, worst)


def _count(record: Record, key: str) -> int | None:
    value = record.number(key)
    if isinstance(value, float):
        raise DamagedError("json-field", f"{record.place}, {key}", expected="an integer or null", found=value)
    if value is not None and not 1 <= value <= MAX_SEARCH:
        _damaged(f"{record.place}, {key}", f"an integer from 1 to {MAX_SEARCH}", value)
    return value


def _number(record: Record, key: str) -> float | None:
    value = record.number(key)
    if value is not None and not 0 <= value < math.inf:
        _damaged(f"{record.place}, {key}", "a number from 0 on", value)
    return None if value is None else float(value)


def _damaged(place: str, expected: str, found: object) -> NoReturn:
    raise DamagedError("part-scheme", place, expected=expected, found=str(found)[:120])
