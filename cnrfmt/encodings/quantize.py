"""What a caller asks of quantisation, and the layout that follows for each column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from cnrfmt.errors import UsageError
from cnrfmt.format.encoding import Layout, RawLayout, RowwiseLayout
from cnrfmt.format.schema import WEIGHT

_LEGAL: dict[str, tuple[Any, ...]] = {
    "bits": (8, 4, 2),
    "method": ("asymmetric",),
    "layout": ("tail",),
}


@dataclass(frozen=True)
class Quantize:
    """How float32 weights are quantised. Other columns stay as they are.

    Parameters
    ----------
    bits
        Bits per element: 8, 4 or 2. Scale and bias of each row come on top: 8 bytes a row for 8 bits, 4 bytes
        for fewer.
    method
        ``"asymmetric"``: the codes of a row span its minimum to its maximum in equal steps.
    layout
        ``"tail"``: a row's scale and bias follow its codes, as quantised embedding operators read them.

    Raises
    ------
    UsageError
        A value that isn't one of these.
    """

    bits: int = 8
    method: str = "asymmetric"
    layout: str = "tail"

    def __post_init__(self) -> None:
        for name, legal in _LEGAL.items():
            value = getattr(self, name)
            # True and 8.0 are equal to legal numbers, but nobody means them.
            if not any(type(value) is type(x) and value == x for x in legal):
                shown = ", ".join(repr(x) for x in legal)
                raise UsageError(f"Quantize: {name} is one of {shown}; found {value!r}")

    @property
    def part_layout(self) -> Layout:
        """The layout of the parts that are quantised so."""
        return RowwiseLayout(self.bits)


def layout_for(
    table: str, column: str, dtype: str, quantize: Quantize | Mapping[str, Quantize | None] | None
) -> Layout:
    """How a column of a table is stored.

    Parameters
    ----------
    table, column
        Their names.
    dtype
        The data type of the column.
    quantize
        One `Quantize` for every table, None for raw, or a dict of patterns (as in `fnmatch`, case counts) of table
        names: a table's own name goes first, then the first pattern that matches. A table that no pattern
        matches is stored raw.

    Raises
    ------
    UsageError
        Weights of another data type than float32 are to be quantised, or `quantize` is none of the above.
    """
    if column != WEIGHT or (found := _choice(table, quantize)) is None:
        return RawLayout(dtype)
    if dtype != "float32":
        raise UsageError(
            f"table {table!r}: only float32 weights can be quantised, found {dtype}; "
            "convert them to float32, or leave the table raw: quantize={name: None, ...}"
        )
    return found.part_layout


def check_patterns(quantize: Any, tables: Iterable[str]) -> None:
    """Raises `UsageError` if `quantize` is a dict with a pattern that names none of the tables."""
    names = list(tables)
    for pattern in quantize if isinstance(quantize, Mapping) else ():
        if not any(_matches(name, pattern) for name in names):
            raise UsageError(f"quantize: no table is named {pattern!r}; the tables are {', '.join(names[:20])}")


def names_table(quantize: Any, table: str) -> bool:
    """Whether `quantize` says anything of a table, be it that it stay raw."""
    if not isinstance(quantize, Mapping):
        return quantize is not None
    return any(_matches(table, pattern) for pattern in quantize)


def _matches(table: str, pattern: Any) -> bool:
    if not isinstance(pattern, str):
        raise UsageError(f"quantize: table-name patterns are strings, found {pattern!r}")
    return table == pattern or fnmatchcase(table, pattern)


def _choice(table: str, quantize: Any) -> Quantize | None:
    found = quantize
    if isinstance(quantize, Mapping):
        # A name may hold characters that mean something in a pattern, so the name itself goes first.
        matches = (value for pattern, value in quantize.items() if _matches(table, pattern))
        found = quantize[table] if table in quantize else next(matches, None)
    if found is not None and not isinstance(found, Quantize):
        raise UsageError(
            f"quantize must be a Quantize, None or a dict of table-name patterns to these, found {found!r}"
        )
    return found
