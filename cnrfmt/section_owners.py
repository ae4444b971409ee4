"""What the bytes of a segment belong to, in the words of errors."""

from __future__ import annotations

from collections.abc import Mapping

from cnrfmt.format import limits
from cnrfmt.format.toc import Toc

_MOST_NAMED = 64
"""Sections that an error names: as many as a piece of 4 KiB can hold."""


def whose(toc: Toc, names: Mapping[bytes, str], start: int, stop: int) -> str:
    """What the bytes from `start` to `stop` of a segment belong to; `names` are those of tables by id."""
    found = ["the header"] if start < limits.BLOCK else []
    for section, owner in sorted(owners(toc, names).items()):
        offset, length = toc.sections[section]
        if offset < stop and start < offset + length:
            found.append(owner)
    shown = found[:_MOST_NAMED] + ([f"{len(found) - _MOST_NAMED} more"] if len(found) > _MOST_NAMED else [])
    return ", ".join(shown) or "padding"


def table_name(names: Mapping[bytes, str], table_id: bytes) -> str:
    """How errors name a table: by its name, or by its id if it was dropped."""
    name = names.get(table_id)
    return f"table {table_id.hex()} (dropped)" if name is None else f"table {name!r}"


def owners(toc: Toc, names: Mapping[bytes, str]) -> dict[int, str]:
    """What each section that has an owner holds, by its number."""
    found = {}
    for table in toc.tables:
        name = table_name(names, table.table_id)
        for number, row_set in enumerate(table.row_sets):
            if row_set.section is not None:
                found[row_set.section] = f"row index {number} of {name}"
        for part in table.parts:
            kind = "exceptions" if part.exceptions_of is not None else "part"
            found[part.section] = f"{kind} of column {part.column!r} of {name}"
            if part.codebooks is not None:
                found[part.codebooks] = f"codebooks of column {part.column!r} of {name}"
    for entry in toc.dense or ():
        if entry.section is not None:
            found[entry.section] = f"dense entry {entry.name!r}"
    return found
