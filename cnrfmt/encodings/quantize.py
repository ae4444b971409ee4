"""What a caller asks of quantisation, checked; `recipes` makes it into how each column is stored."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

import numpy as np

from cnrfmt.encodings import moments
from cnrfmt.encodings.grid import Grid
from cnrfmt.encodings.grid_plan import GridPlan
from cnrfmt.errors import UsageError
from cnrfmt.format.encoding import MAX_GROUP, CodebookLayout, Layout, RowwiseLayout
from cnrfmt.format.legality import is_legal
from cnrfmt.format.schema import WEIGHT, ColumnSchema
from cnrfmt.format.scheme import MAX_SEARCH, Scheme, methods_of

Method = Literal["symmetric", "asymmetric", "adaptive", "lsq", "kmeans"]
Placement = Literal["tail", "head", "packed"]
Params = Literal["float32", "float16", "bfloat16"]
OneValued = Literal["log8", "log12", "log16", "bfloat16", "raw"]

DEFAULT_RATIO = 0.5
"""The fraction of a row's range that the greedy search may take away."""
DEFAULT_STARTS = 2
"""From how many starts least squares is tried."""
_BINS = {2: 25, 3: 25, 4: 45}
"""Steps of the range in the greedy search, as the paper settled on; 45 for more bits, too."""
_SEARCH = ("num_bins", "ratio")
BY_RESTORES = ((1, 2), (3, 3), (20, 4))
"""Up to how many restores how many bits do, as in Check-N-Run; 8 for more."""


@dataclass(frozen=True)
class Quantize:
    """How float32 columns are quantised: `weight`, and others that are named (see `save`).

    Parameters
    ----------
    bits
        Bits per element, 2 to 8, or ``"auto"``: by `restores` or by `mean_error`.
    method
        How a row's scale and bias are chosen.

        ``"asymmetric"``, the default: the codes span the row's least to its greatest element in equal steps.
        ``"symmetric"``: they span as far on either side of zero.
        ``"adaptive"``: the greedy search of Check-N-Run (NSDI 2022), which cuts off the ends of the range by steps
        of a `num_bins`-th of it, up to `ratio` of it, and keeps what errs least. The default of ``bits="auto"`` where
        that comes to 4 bits or fewer.
        ``"lsq"``: alternating least squares of scale and bias, from `starts` starts; with `never_worse`, the greedy
        search's result stands where it errs less.
        ``"kmeans"``: no scale and bias but a codebook of 2, 3 or 4 bits, for each row or shared by `block` rows.
    layout
        Where a row's parameters are. ``"tail"``, behind its codes, and ``"head"``, in front of them: as quantised
        embedding operators read them, with 8, 4 or 2 bits. ``"packed"``: any bits, parameters and groups. Unless
        chosen, ``"tail"`` if that can be, else ``"packed"``.
    params
        The data type of scale and bias, or of a codebook's numbers: ``"float32"``, ``"float16"`` or ``"bfloat16"``; the
        last is for scales alone, beside a float32 bias, where half precision overflows. Unless chosen, what the
        layout's operators read; else float16 up to 4 bits and for codebooks, float32 above.
    group
        Elements that have parameters of their own, a multiple of 8; None: the whole row.
    num_bins, ratio
        Of the greedy search; ``"auto"``: the smallest search that errs at most 1 % more, on a sample of the rows, than
        the most thorough one. Unless chosen, 25 bins up to 3 bits, 45 above, and a ratio of 0.5.
    starts, never_worse
        Of least squares. 2 starts unless chosen.
    block
        Rows that share a codebook; None: each has its own.
    max_error
        A row whose relative l2 error is above it is stored as it is; 1 unless chosen, since a row of zeros is as near.
    restores
        With ``bits="auto"``: how many restores are expected in the run. 2 bits for up to 1, 3 for up to 3, 4 for up to
        20, 8 for more, as in Check-N-Run; or the least bits above that go with the other parameters.
    mean_error
        With ``bits="auto"``: the mean relative l2 error to stay below, on a sample of the rows; the least bits that do
        are chosen, and rows are raw where 8 don't.
    one_valued
        How float32 columns of one value per row (row-wise optimizer state) are stored: ``"log12"``, logarithmic codes
        of 12 bits with a relative error of at most 1/256; ``"log16"`` (1/4096), ``"log8"`` (1/16),
        ``"bfloat16"`` or ``"raw"``. Under 8-bit codes, the nearest code to an Adagrad accumulator that grew a little is
        the one that it had: restored again and again, it stops growing.

    Raises
    ------
    UsageError
        Values that aren't legal, or not together.
    """

    bits: int | Literal["auto"] = 8
    _: KW_ONLY
    method: Method | None = None
    layout: Placement | None = None
    params: Params | None = None
    group: int | None = None
    num_bins: int | Literal["auto"] | None = None
    ratio: float | Literal["auto"] | None = None
    starts: int | None = None
    never_worse: bool = False
    block: int | None = None
    max_error: float | None = None
    restores: int | None = None
    mean_error: float | None = None
    one_valued: OneValued = "log12"

    def __post_init__(self) -> None:
        for name in ("bits", *_NUMBERS):
            # Numbers that came out of an array are meant as numbers.
            if isinstance(value := getattr(self, name), np.integer | np.floating):
                object.__setattr__(self, name, value.item())
        for name, value in vars(self).copy().items():
            if isinstance(value, np.generic):
                object.__setattr__(self, name, value.item())
        for name, legal in _CHOICES.items():
            value = getattr(self, name)
            if not any(type(value) is type(x) and value == x for x in legal):
                raise UsageError(f"Quantize: {name} is one of {', '.join(map(repr, legal))}; found {value!r}")
        for name, (kinds, low, high) in _NUMBERS.items():
            value = getattr(self, name)
            is_open = value is None or (name in _SEARCH and type(value) is str and value == "auto")
            if not is_open and not (type(value) in kinds and low <= value <= high):
                kind = "an integer" if kinds == (int,) else "a number"
                to = f"from {low:g} on" if high > MAX_GROUP else f"from {low:g} to {high}"
                raise UsageError(f"Quantize: {name} is {kind} {to}; found {value!r}")
        self._check_together()

    def _check_together(self) -> None:
        searches = self.method in ("adaptive", "lsq", None)
        needs: list[tuple[str, bool, str]] = [
            ("restores", self.bits == "auto", 'bits="auto"'),
            ("mean_error", self.bits == "auto", 'bits="auto"'),
            ("num_bins", searches, 'method="adaptive"'),
            ("ratio", searches, 'method="adaptive"'),
            ("starts", self.method == "lsq", 'method="lsq"'),
            ("never_worse", self.method == "lsq", 'method="lsq"'),
            ("block", self.method == "kmeans", 'method="kmeans"'),
        ]
        for name, sound, what in needs:
            if getattr(self, name) not in (None, False) and not sound:
                raise UsageError(f"Quantize: {name} goes with {what}")
        if self.method is None and self.bits != "auto" and (self.num_bins, self.ratio) != (None, None):
            raise UsageError('Quantize: num_bins and ratio go with method="adaptive"')
        if self.method == "lsq" and not self.never_worse and (self.num_bins, self.ratio) != (None, None):
            raise UsageError("Quantize: num_bins and ratio go with never_worse=True, or with method=\"adaptive\"")
        if self.ratio == 0:
            raise UsageError("Quantize: ratio is above 0; a search that may take nothing away is method=\"asymmetric\"")
        if self.group is not None and self.group % 8:
            raise UsageError(f"Quantize: group is a multiple of 8; found {self.group}")
        if self.bits == "auto" and (self.restores is None) == (self.mean_error is None):
            raise UsageError('Quantize: bits="auto" needs restores= or mean_error=, one of them')
        if not self.choices():
            raise UsageError(f"Quantize: {self._shown()} don't go together; {_TABLE}")

    def choices(self) -> tuple[int, ...]:
        """The numbers of bits that are left to choose from, in ascending order, one at least."""
        if self.bits != "auto":
            tried: Iterable[int] = (self.bits,)
        elif self.restores is None:
            tried = range(2, 9)
        else:
            tried = range(next((bits for most, bits in BY_RESTORES if self.restores <= most), 8), 9)
        return tuple(bits for bits in tried if self._is_legal(bits))

    def _is_legal(self, bits: int) -> bool:
        try:
            layout = self.layout_of(bits)
        except KeyError:
            return False
        return is_legal(layout) and self.method_of(bits) in methods_of(layout)

    def _shown(self) -> str:
        names = ("bits", "method", "layout", "params", "group", "block", "restores")
        return ", ".join(f"{n}={v!r}" for n in names if (v := getattr(self, n)) is not None)

    def method_of(self, bits: int) -> Method:
        """The method for so many bits."""
        if self.method is None:
            return "adaptive" if self.bits == "auto" and bits <= 4 else "asymmetric"
        return self.method

    def layout_of(self, bits: int) -> Layout:
        """The layout for so many bits, which are one of `choices`."""
        method = self.method_of(bits)
        if method == "kmeans":
            if self.layout is not None or self.group is not None:
                raise KeyError(self.layout)
            return CodebookLayout(bits, self.params or "float16", self.block)
        of_operators = {8: "float32", 4: "float16", 2: "float16"}
        placement = self.layout
        if placement is None:
            fits = self.group is None and bits in of_operators and self.params in (None, of_operators[bits])
            placement = "tail" if fits else "packed"
        params: str
        if placement == "tail":
            params = self.params or of_operators[bits]
        elif placement == "head":
            params = self.params or "float16"
        else:
            params = self.params or ("float16" if bits <= 4 else "float32")
        bias: str | None = "float32" if params == "bfloat16" else params
        if placement == "packed" and method == "symmetric":
            bias = None
        return RowwiseLayout(bits, placement, params, bias, self.group)

    def scheme_of(self, bits: int) -> Scheme:
        """The scheme for so many bits; what is ``"auto"`` of a search is as if it weren't chosen."""
        method = self.method_of(bits)
        bound = None if self.max_error is None else float(self.max_error)
        num_bins, ratio = None, None
        if method == "adaptive" or self.never_worse:
            num_bins = self.num_bins if isinstance(self.num_bins, int) else _BINS.get(bits, 45)
            ratio = DEFAULT_RATIO if self.ratio is None or isinstance(self.ratio, str) else float(self.ratio)
        starts = (self.starts or DEFAULT_STARTS) if method == "lsq" else None
        return Scheme(method, num_bins, ratio, starts, bound)


_CHOICES: dict[str, tuple[Any, ...]] = {
    "bits": (2, 3, 4, 5, 6, 7, 8, "auto"),
    "method": (None, *get_args(Method)),
    "layout": (None, *get_args(Placement)),
    "params": (None, *get_args(Params)),
    "never_worse": (False, True),
    "one_valued": get_args(OneValued),
}
_NUMBERS: dict[str, tuple[tuple[type, ...], float, float]] = {
    "group": ((int,), 8, MAX_GROUP),
    "num_bins": ((int,), 1, MAX_SEARCH),
    "ratio": ((int, float), 0, 1),
    "starts": ((int,), 1, MAX_SEARCH),
    "block": ((int,), 2, MAX_GROUP),
    "max_error": ((int, float), 0, sys.float_info.max),
    "restores": ((int,), 0, 1 << 53),
    "mean_error": ((int, float), 0, sys.float_info.max),
}
_TABLE = (
    "tail takes 8 bits with float32 and 4 or 2 with float16, head 8, 4 or 2 with float16, packed 2 to 8 with any "
    "params and groups, kmeans 2 to 4 with float32 or float16 and no layout or group"
)


Choice = Quantize | Grid | GridPlan
"""How a table is stored that isn't raw; a `GridPlan` goes on as a baseline began."""
Choices = Choice | Mapping[Any, Choice | None] | None
"""One choice for all, None for raw, or a dict of patterns, of table names or of pairs of table and column."""


@contextmanager
def said_of(argument: str) -> Iterator[None]:
    """What is found wrong with choices within, as ``quantize``, is said of the argument that a caller gave them as."""
    try:
        yield
    except UsageError as error:
        # Names of tables stand in quotes.
        text = re.sub(r"^quantize(?=[: ])|(?<= )quantize(?==)", argument, str(error))
        if text == str(error):
            raise
        raise UsageError(text) from error


def check_patterns(quantize: Any, columns: Mapping[str, Iterable[str]]) -> None:
    """Raises `UsageError` if `quantize` is a dict with a pattern that names no table, or none of its columns.

    `columns` are the names of each table's columns.
    """
    for key in quantize if isinstance(quantize, Mapping) else ():
        table, column = _split(key)
        if table == "*" and column is None:
            # It says "all others", of which there may be none.
            continue
        if not (found := [name for name in columns if _matches(name, table)]):
            names = f"the tables are {', '.join(list(columns)[:20])}" if columns else "there are no tables"
            raise UsageError(f"quantize: no table is named {table!r}; {names}")
        if column is not None and not any(_matches(c, column) for name in found for c in columns[name]):
            names = ", ".join(sorted({c for name in found for c in columns[name]})[:20])
            raise UsageError(f"quantize: no column of {table!r} is named {column!r}; the columns are {names}")


def matching(quantize: Any, columns: Mapping[str, Iterable[str]]) -> Any:
    """`quantize` without the patterns that name none of these tables, or none of their columns."""
    if not isinstance(quantize, Mapping):
        return quantize
    kept = {}
    for key, value in quantize.items():
        table, column = _split(key)
        found = [c for name, some in columns.items() if _matches(name, table) for c in some]
        if any(column is None or _matches(c, column) for c in found):
            kept[key] = value
    return kept


def speaks_of(quantize: Any, table: str, column: ColumnSchema) -> bool:
    """Whether `quantize` says anything of a column, be it that it stay raw."""
    found, named = choice_for(quantize, table, column.name)
    if found is not None:
        on_grid = isinstance(found, Grid | GridPlan) and moments.may_be(column.name)
        return named or on_grid or is_meant(column)
    return isinstance(quantize, Mapping) and any(
        _matches(table, t) and (c is None or _matches(column.name, c)) for t, c in map(_split, quantize)
    )


def is_meant(column: ColumnSchema) -> bool:
    """Whether a column is among those that the `Quantize` of a table is for."""
    return column.name == WEIGHT or column.per_row


def choice_for(quantize: Any, table: str, column: str) -> tuple[Choice | None, bool]:
    """What `quantize` says of a column, and whether it names the column itself.

    A pair of names goes before a table's name, a name before a pattern, and the first of several patterns that match.

    Raises
    ------
    UsageError
        `quantize` is nothing that it may be.
    """
    found, named = quantize, False
    if isinstance(quantize, Mapping):
        found = None
        split = [(*_split(key), value) for key, value in quantize.items()]
        # A name may hold characters that mean something in a pattern, so names themselves go first.
        ranked = [
            (c is None, (t, c) != (table, column) if c is not None else t != table, number, value)
            for number, (t, c, value) in enumerate(split)
            if _matches(table, t) and (c is None or _matches(column, c))
        ]
        if ranked:
            whole, _, _, found = min(ranked, key=lambda item: item[:3])
            named = not whole
    if found is not None and not isinstance(found, Quantize | Grid | GridPlan):
        raise UsageError(
            "quantize must be a Quantize, a Grid, None or a dict of patterns (of table names, or of pairs of table and "
            f"column names) to these, found {found!r}"
        )
    if named and isinstance(found, Grid | GridPlan):
        raise UsageError(f"quantize: a Grid is for a table, not for the column {column!r} of {table!r} alone")
    return found, named


def _split(key: Any) -> tuple[str, str | None]:
    if isinstance(key, str):
        return key, None
    if isinstance(key, tuple) and len(key) == 2 and all(isinstance(x, str) for x in key):
        return key
    raise UsageError(f"quantize: patterns are strings, or pairs of table and column, found {key!r}")


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)
