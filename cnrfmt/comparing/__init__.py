"""Comparing: two containers, or two versions of one, row by row."""

from __future__ import annotations

from cnrfmt.comparing.diff import diff
from cnrfmt.comparing.report import (
    ColumnComparison,
    Comparison,
    DenseDifference,
    RowError,
    SchemaDifference,
    Side,
    TableComparison,
)

__all__ = [
    "ColumnComparison",
    "Comparison",
    "DenseDifference",
    "RowError",
    "SchemaDifference",
    "Side",
    "TableComparison",
    "diff",
]
