"""What a manifest and the tables of contents of its chain must agree on (specification, section 4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from cnrfmt.errors import DamagedError
from cnrfmt.format.encoding import Layout, LogLayout
from cnrfmt.format.manifest import ChainEntry, Manifest
from cnrfmt.format.schema import ColumnSchema, TableSchema
from cnrfmt.format.toc import ColumnGrid, TableEntry, Toc

Judged = set[tuple[int, TableSchema]]
"""Tables of contents, by their identity, and schemas that were held against each other."""


def check_chain(
    manifest: Manifest, tocs: Sequence[tuple[ChainEntry, Toc]], place: str, judged: Judged | None = None
) -> Iterator[DamagedError]:
    """Every break of the rules `chain-schema` and `dense-reference`, and of `residual-base` as far as columns tell it.

    Who judges many versions of one chain hands in the same set `judged` each time: parts that stand in many versions
    are then looked at once for each schema that they have.
    """
    judged = set() if judged is None else judged
    newest: dict[bytes, int | None] = {}
    in_step: dict[tuple[bytes, bytes], int | None] = {}
    for number, (entry, toc) in enumerate(tocs):
        where = f"{place}, chain entry {number}"
        for schema in manifest.tables:
            table = toc.by_table.get(schema.table_id)
            if table is None:
                continue
            newest[table.table_id] = table.rows
            rows = in_step.setdefault((entry.to_state, table.table_id), table.rows)
            if table.rows != rows:
                yield _broken(f"{where}, table {schema.name!r}", f"{rows} rows as in its step", table.rows)
            if (id(toc), schema) not in judged:
                judged.add((id(toc), schema))
                yield from check_table(schema, table, where)
    for schema in manifest.tables:
        where = f"{place}, table {schema.name!r}"
        if schema.table_id not in newest:
            yield _broken(where, "a table that occurs in the chain", "none")
        elif not schema.keyed and newest[schema.table_id] != schema.rows:
            yield _broken(where, f"{schema.rows} rows", newest[schema.table_id])
    yield from _check_bases(manifest, tocs, place)
    if manifest.dense is not None:
        toc = next(toc for entry, toc in tocs if entry.segment == manifest.dense)
        if toc.dense is None:
            yield DamagedError(
                "dense-reference", place, expected="a segment with dense state", found="one without"
            )


def _check_bases(manifest: Manifest, tocs: Sequence[tuple[ChainEntry, Toc]], place: str) -> Iterator[DamagedError]:
    """Every residual part of a column that has no integers of the same grid in an older step."""
    older: set[tuple[bytes, ColumnGrid]] = set()
    for _, step in groupby(enumerate(tocs), key=lambda numbered: numbered[1][0].to_state):
        added: set[tuple[bytes, ColumnGrid]] = set()
        for number, (_, toc) in step:
            for schema in manifest.tables:
                table = toc.by_table.get(schema.table_id)
                if table is None or not table.grids:
                    continue
                added.update((table.table_id, grid) for grid in table.grids)
                for column, grid in sorted(table.residuals):
                    if (table.table_id, (column, grid)) not in older:
                        yield DamagedError(
                            "residual-base",
                            f"{place}, chain entry {number}, table {schema.name!r}, column {column!r}",
                            expected=f"integers of the grid {grid} in an older step",
                            found="none",
                        )
        older |= added


def check_table(schema: TableSchema, table: TableEntry, where: str) -> Iterator[DamagedError]:
    """Every break of these rules, and of those on parts that go with them, by what one segment says of a table."""
    where = f"{where}, table {schema.name!r}"
    if (table.rows is None) != schema.keyed:
        yield _broken(where, "rows null exactly for a keyed table", table.rows)
    for number, part in enumerate(table.parts):
        column = schema.column(part.column)
        if column is None:
            yield _broken(f"{where}, part {number}", "a column of the schema", part.column)
        elif part.elements[1] > (width := column.width(schema.dim)):
            yield DamagedError(
                "elements",
                f"{where}, part {number}",
                expected=f"at most {width} elements",
                found=part.elements[1],
            )
        elif (expected := _expected_encoding(column, part.layout)) is not None:
            yield DamagedError(
                "part-encoding", f"{where}, part {number}", expected=expected, found=part.layout.to_json()
            )


def _expected_encoding(column: ColumnSchema, layout: Layout) -> str | None:
    """What a column asks of the encoding of its parts, where this one isn't that; None where it is."""
    if layout.dtype != column.dtype:
        return f"an encoding of {column.dtype}"
    if isinstance(layout, LogLayout) and not layout.is_grouped and not column.per_row:
        return "log under the payload rans, for a column of dim values per row"
    return None


def _broken(place: str, expected: str, found: object) -> DamagedError:
    return DamagedError("chain-schema", place, expected=expected, found=found)
