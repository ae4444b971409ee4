"""How many bytes a commit to a directory takes, before there is anything to commit: from shapes and counts of rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cnrfmt import dtypes
from cnrfmt.checkpoint import Checkpoint
from cnrfmt.checkpointing.bits import choices_for
from cnrfmt.checkpointing.costs import typical
from cnrfmt.commits import with_segment
from cnrfmt.encodings import Recipe, recipes
from cnrfmt.encodings.grid import Grid
from cnrfmt.encodings.quantize import Choices, check_patterns
from cnrfmt.errors import UsageError
from cnrfmt.format import limits
from cnrfmt.format.encoding import GridLayout, IntegerLayout
from cnrfmt.format.manifest import ChainEntry, Manifest, Retained, pack_manifest
from cnrfmt.format.schema import WEIGHT, ColumnSchema, TableSchema
from cnrfmt.format.scheme import NO_ERRORS, Errors
from cnrfmt.format.toc import DenseEntry, Part, RowSet, TableEntry, Toc, pack_toc, place_section
from cnrfmt.inputs import as_source
from cnrfmt.sizes import KEYS, Sizes

_KEYS_SPAN = 1 << 64
"""Keys are taken for hashed ones: spread evenly over all of int64."""
_DIGITS = 1 / 3
"""Stands for a number that JSON spells out."""
_ID = bytes(16)


@dataclass(frozen=True)
class TableShape:
    """A table as far as its bytes go.

    Attributes
    ----------
    schema
        Name, dim and columns.
    count
        Rows, or keys of a keyed table.
    """

    schema: TableSchema
    count: int

    @property
    def plain_bytes(self) -> int:
        """Bytes of a row in memory, all columns together."""
        schema = self.schema
        return sum(c.width(schema.dim) * dtypes.dtype_of(c.dtype).itemsize for c in schema.columns)


def table_shape(
    name: str,
    rows: int,
    dim: int,
    *,
    dtype: str = "float32",
    columns: Mapping[str, bool] | None = None,
    keyed: bool = False,
) -> TableShape:
    """The shape of a table that may not exist yet.

    `columns` names those of the optimizer, which are float32, and says whether they hold one value per row (else
    `dim`). Raises `UsageError` for what no table can be.
    """
    if not 0 <= rows <= limits.MAX_ROWS or not 1 <= dim <= limits.MAX_DIM:
        raise UsageError(
            f"table {name!r}: rows go to {limits.MAX_ROWS} and dim from 1 to {limits.MAX_DIM}, found {rows} x {dim}"
        )
    kinds = {WEIGHT: (dtype, False), **{c: ("float32", per_row) for c, per_row in (columns or {}).items()}}
    schemas = tuple(
        ColumnSchema(column, kind, per_row, bytes(dtypes.dtype_of(kind).itemsize))
        for column, (kind, per_row) in kinds.items()
    )
    return TableShape(TableSchema(_ID, name, None if keyed else rows, dim, schemas), rows)


def shapes_of(checkpoint: Checkpoint) -> list[TableShape]:
    """The tables of a version that is open."""
    return [TableShape(table.schema, len(table)) for table in checkpoint.values()]


def recipes_for(tables: Sequence[TableShape], bits: int, quantize: Choices) -> dict[tuple[str, str], Recipe]:
    """How each column of each table is stored with these bits, by the names of both; see `choices_for`.

    No rows are looked at: what `quantize` leaves to a sample is as if it weren't chosen, and the steps of a grid are in
    units of its learning rate. Raises `UsageError` for a grid that doesn't say that.
    """
    if isinstance(quantize, Mapping):
        quantize = {key: _in_learning_rates(choice) for key, choice in quantize.items()}
    else:
        quantize = _in_learning_rates(quantize)
    check_patterns(quantize, {t.schema.name: [c.name for c in t.schema.columns] for t in tables})
    others = [t.schema.name for t in tables if t.schema.columns[0].dtype != "float32"]
    if isinstance(quantize, Grid):
        quantize = {**dict.fromkeys(others), "*": quantize}
    choices = choices_for(bits, quantize, unquantisable=others)
    found = {}
    for schema in (table.schema for table in tables):
        sources = {}
        for column in schema.columns:
            shape = (1,) if column.per_row else (1, schema.dim)
            sources[column.name] = as_source(np.ones(shape, dtypes.dtype_of(column.dtype)), what=schema.name)
        for name, recipe in recipes.recipes_for(schema, sources, choices).items():
            found[schema.name, name] = recipe
    return found


def _in_learning_rates(choice: Any) -> Any:
    """A grid with a learning rate of 1."""
    if not isinstance(choice, Grid):
        return choice
    if choice.learning_rate is None:
        raise UsageError(
            "plan: what codes on a grid take follows from its steps in learning rates; give the Grid learning_rate, "
            "with c or restores"
        )
    return replace(choice.counted, learning_rate=1.0)


def index_bytes(count: int, span: int) -> int:
    """Bytes of the row index of `count` ids that lie scattered within a span: of the smallest of the four codes.

    That is what is to be expected of ids without order. Ids that stand close together take less; more than the bitmap
    of the span, 72 bytes for 512 ids, they never take.
    """
    density = count / span
    # The width of a group is that of its greatest gap: its bit b is needed where some gap is 2**b or more.
    log_chance = np.exp2(np.arange(64)) * np.log1p(-density) if density < 1 else np.full(64, -np.inf)

    def packed_bytes(slots: int) -> float:
        width = float((1 - (1 - np.exp(log_chance)) ** (slots - 1)).sum())
        return 16 + 8 * math.ceil(slots * width / 64) if slots < 128 else 16 + 16 * width

    full, rest = divmod(count, 128)
    packed = math.ceil(full * packed_bytes(128) + (packed_bytes(rest) if rest else 0))
    runs = 16 * math.ceil(1 + count * (1 - density))
    return min(72 * -(-span // 512), runs, packed, 8 * count)


def segment_sizes(
    tables: Sequence[TableShape],
    counts: Sequence[int] | None,
    recipes: Mapping[tuple[str, str], Recipe],
    dense_bytes: int,
    initial: float | None = None,
) -> tuple[Sizes, bytes]:
    """The bytes of a segment by what they hold, under the keys of `cnrfmt.sizes`; and its table of contents.

    Parameters
    ----------
    counts
        Rows of each table that it writes; None for a baseline.
    recipes
        As `recipes_for` gives them.
    dense_bytes
        Bytes of the dense state, taken for one entry.
    initial
        How large the weights are that rows begin with, as `plan_checkpoints` has it.
    """
    found = dict.fromkeys(KEYS, 0)
    sections: list[tuple[int, int]] = []

    def add(key: str, length: int) -> int:
        end = sum(sections[-1]) if sections else limits.BLOCK
        sections.append((place_section(end, length), length))
        found[key] += length
        return len(sections) - 1

    entries = []
    for number, table in enumerate(tables):
        count = table.count if counts is None else counts[number]
        schema = table.schema
        if not count:
            if counts is None:
                entries.append(TableEntry(schema.table_id, schema.rows))
            continue
        is_range = count == table.count and not schema.keyed
        span = _KEYS_SPAN if schema.keyed else table.count
        index = None if is_range else add("ids", index_bytes(count, span))
        row_set = RowSet("range" if is_range else "packed", count, 0, span - 1, index)
        parts = []
        for column in schema.columns:
            layout, scheme = recipes[schema.name, column.name]
            width = column.width(schema.dim)
            key = "weights" if column.name == WEIGHT else "optimizer"
            length = _section_bytes(Recipe(layout, scheme), schema, count, width, initial, is_delta=counts is not None)
            section = add(key, length)
            books = layout.codebook_bytes(count)
            codebooks = add(key, books) if books else None
            errors = NO_ERRORS if scheme is None else Errors(_DIGITS, _DIGITS)
            parts.append(Part(column.name, 0, (0, width), layout, section, None, codebooks, scheme, errors))
        entries.append(TableEntry(schema.table_id, schema.rows, (row_set,), None, tuple(parts)))
    dense = [DenseEntry("state", "bytes", add("dense", dense_bytes))] if dense_bytes else []
    end = limits.round_up(sum(sections[-1]) if sections else limits.BLOCK, limits.SMALL_ALIGNMENT)
    found["digests"] = 8 * -(-end // limits.PIECE)
    nodes = tuple([1 << 63] * -(-found["digests"] // limits.NODE))
    toc = pack_toc(Toc(tuple(sections), nodes, tuple(entries), tuple(dense)))
    found["metadata"] = 2 * limits.BLOCK + len(toc)
    found["padding"] = end - limits.BLOCK - sum(length for _, length in sections)
    return found, toc


def _section_bytes(
    recipe: Recipe, table: TableSchema, count: int, width: int, initial: float | None, *, is_delta: bool
) -> int:
    """Bytes of the codes of rows: as many as they take, or typically take where that depends on them."""
    layout, scheme = recipe
    if not isinstance(layout, IntegerLayout) or not layout.is_grouped:
        return layout.section_bytes(count, width)
    step = None if scheme is None else scheme.step
    if isinstance(layout, GridLayout) and step is None:
        # Counts of checkpoints, which all grow by one, or first moments.
        return math.ceil(count / 8) if width == 1 else typical.first_moment_bytes(count, width)
    weights = None if step is None else typical.Weights.of(step, (c.name for c in table.columns), initial)
    return typical.section_bytes(layout, weights, count, width, is_delta=is_delta)


def manifest_bytes(tables: Sequence[TableShape], tocs: Sequence[bytes], versions: int) -> int:
    """Bytes of the manifest of a version whose segments have these tables of contents, beside so many versions."""
    one = Manifest(
        _ID,
        versions,
        _ID,
        _ID,
        1 << 20,
        "2000-01-01T00:00:00Z",
        "cnrfmt 0.0.0",
        (1, 1 << 63),
        tuple(t.schema for t in tables),
        (),
        (Retained(1, None, 1 << 12, 1 << 63),) * versions,
    )
    for toc in tocs:
        one = with_segment(one, ChainEntry(_ID, _ID, _ID, None, 1 << 30, 1 << 63), toc)
    return len(pack_manifest(one))
