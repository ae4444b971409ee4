"""How a writer chose the codes of a part, and what they cost in accuracy (specification, section 6.6)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NoReturn

from cnrfmt.errors import DamagedError
from cnrfmt.format.encoding import CastLayout, CodebookLayout, GridLayout, Layout, LogLayout, RawLayout
from cnrfmt.format.strict_json import Json, Record

MAX_SEARCH = 65536
"""The most bins, and the most starts, of a search."""
CLOSED_LOOP = "closed-loop"
"""The method of grids: codes are differences from what was stored, in steps as fine as the row's activity asks for."""


@dataclass(frozen=True)
class Step:
    """How steps were chosen: `size`, in units of the values, for a row as active as `reference`, before rounding.

    `column` is the column whose values are the rows' activity; None where it is counted. Without a `reference` all
    rows have the same step.
    """

    size: float
    reference: float | None = None
    column: str | None = None


@dataclass(frozen=True)
class Scheme:
    """A method with its parameters.

    `num_bins` and `ratio` belong to the greedy search, `starts` to least squares, `step` to the closed loop; `bound`
    is the relative l2 error above which a row was stored as it is.
    """

    method: str
    num_bins: int | None = None
    ratio: float | None = None
    starts: int | None = None
    bound: float | None = None
    step: Step | None = None


@dataclass(frozen=True)
class Errors:
    """Relative l2 errors of rows: the norm of what decoding changed, over the norm of the row."""

    mean: float = 0.0
    worst: float = 0.0


NO_ERRORS = Errors()

_KEYS = frozenset(("method", "num_bins", "ratio", "starts", "bound", "step", "mean_error", "max_error"))
_STEP_KEYS = frozenset(("size", "reference", "column"))


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
    if isinstance(layout, GridLayout):
        return (CLOSED_LOOP,)
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
        "step": None if scheme.step is None else _step_json(scheme.step),
        "mean_error": errors.mean,
        "max_error": errors.worst,
    }


def _step_json(step: Step) -> Json:
    return {"size": step.size, "reference": step.reference, "column": step.column}


def parse_scheme(value: Json, layout: Layout, place: str, *, lenient: bool) -> tuple[Scheme | None, Errors]:
    """The scheme of a part with this layout; raises `DamagedError` (rule `part-scheme`)."""
    methods = methods_of(layout)
    if value is None or not methods:
        if value is None and not methods:
            return None, NO_ERRORS
        _damaged(place, "a scheme exactly where the encoding isn't raw", value)
    record = Record(value, _KEYS, place, lenient=lenient)
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
    step = _parse_step(record["step"], method, f"{place}, step", lenient)
    return Scheme(method, counts["num_bins"], ratio, counts["starts"], bound, step), Errors(mean, worst)


def _parse_step(value: Json, method: str, place: str, lenient: bool) -> Step | None:
    if value is None:
        return None
    record = Record(value, _STEP_KEYS, place, lenient=lenient)
    if method != CLOSED_LOOP:
        _damaged(place, f"null but for {CLOSED_LOOP}", value)
    size, reference = _number(record, "size"), _number(record, "reference")
    if size is None:
        raise DamagedError("json-field", f"{place}, size", expected="a number", found=size)
    if size == 0:
        _damaged(f"{place}, size", "a number above 0", size)
    return Step(size, reference, None if record.is_null("column") else record.name("column"))


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
