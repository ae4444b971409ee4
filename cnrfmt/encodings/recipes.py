"""From what a caller asks of quantisation to how each column is stored; what is left open is chosen on a sample."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np

from cnrfmt.arrays import Array, Ids
from cnrfmt.encodings.base import Encoded, Recipe, encoder
from cnrfmt.encodings.grid import Grid
from cnrfmt.encodings.grid_plan import GridPlan, plan_grid
from cnrfmt.encodings.quantize import Choices, Quantize, choice_for, is_meant
from cnrfmt.errors import UsageError
from cnrfmt.format.encoding import MAX_GROUP_VALUES, CastLayout, GridLayout, LogLayout, RawLayout
from cnrfmt.format.schema import WEIGHT, ColumnSchema, TableSchema
from cnrfmt.format.scheme import Scheme

_SHARE = 1e-5
_LEAST_SAMPLE = 512
"""A sample is 0.001 % of the rows, as in Check-N-Run, and at least so many."""
_SLACK = 1.01
"""By how much a smaller search may err more than the most thorough one."""
_BINS = (5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 75, 100, 150, 200)
_RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


class Rows(Protocol):
    """Where a column's rows come from."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows, and elements if there are dim of them."""

    def rows(self, start: int, stop: int) -> Array:
        """The rows start .. stop - 1."""

    def take(self, ids: Ids) -> Array:
        """The rows at some positions."""


def recipes_for(table: TableSchema, sources: Mapping[str, Rows], quantize: Choices) -> dict[str, Recipe]:
    """How the columns of a table are stored whose rows come from these sources, by name.

    Raises
    ------
    UsageError
        As `recipe_for` and `plan_grid`.
    """
    chosen, _ = choice_for(quantize, table.name, WEIGHT)
    plan = plan_grid(chosen, table, sources) if isinstance(chosen, Grid) else chosen
    found = {}
    for column in table.columns:
        if column.name in sources:
            _, named = choice_for(quantize, table.name, column.name)
            source, width = sources[column.name], column.width(table.dim)
            on_grid = plan.recipe(column, width, source) if isinstance(plan, GridPlan) and not named else None
            found[column.name] = on_grid or recipe_for(table.name, column, source, quantize)
    return found


def recipe_for(table: str, column: ColumnSchema, source: Rows, quantize: Choices) -> Recipe:
    """How a column of a table is stored; `source` is looked at where something is left open.

    Raises
    ------
    UsageError
        A column that isn't float32 is to be quantised, or `quantize` is nothing that it may be.
    """
    raw = Recipe(RawLayout(column.dtype))
    found, named = choice_for(quantize, table, column.name)
    if found is None or not isinstance(found, Quantize):
        return raw
    if column.dtype != "float32":
        if column.name != WEIGHT and not named:
            return raw
        raise UsageError(
            f"table {table!r}, column {column.name!r}: only float32 can be quantised, found {column.dtype}; "
            "convert it to float32, or leave it raw: quantize={name: None, ...}"
        )
    if column.per_row:
        return _one_valued(found, source)
    return _many_valued(found, source) if named or is_meant(column) else raw


def goes_on(recipe: Recipe, source: Rows) -> Recipe:
    """The recipe for more rows of a column that was stored so."""
    layout, scheme = recipe
    if isinstance(layout, GridLayout) or (isinstance(layout, LogLayout) and layout.is_grouped):
        # Differences are for who knows what is stored. It may have been some elements of each row, in longer groups.
        most = MAX_GROUP_VALUES // math.prod(source.shape[1:])
        group = None if layout.group is None else min(layout.group, max(1, most))
        return Recipe(replace(layout, kind="absolute", group=group), scheme)
    if isinstance(layout, LogLayout):
        # The values of an accumulator grow: the codes are placed anew where they are now.
        return Recipe(_log_layout(layout.bits, source), scheme)
    return recipe


def _one_valued(quantize: Quantize, source: Rows) -> Recipe:
    bound = None if quantize.max_error is None else float(quantize.max_error)
    kind = quantize.one_valued
    if kind == "raw":
        return Recipe(RawLayout("float32"))
    if kind == "bfloat16":
        return Recipe(CastLayout(kind), Scheme("cast", bound=bound))
    return Recipe(_log_layout(int(kind.removeprefix("log")), source), Scheme("log", bound=bound))


def _log_layout(bits: int, source: Rows) -> LogLayout:
    from cnrfmt.kernels import logs as kernel

    base, shift = kernel.plan(source.rows(0, source.shape[0]).reshape(-1), bits)
    return LogLayout(bits, int(base), int(shift))


def _many_valued(quantize: Quantize, source: Rows) -> Recipe:
    open_search = "auto" in (quantize.num_bins, quantize.ratio)
    rows = sample(source) if open_search or quantize.mean_error is not None else None
    for bits in quantize.choices():
        recipe = Recipe(quantize.layout_of(bits), quantize.scheme_of(bits))
        if open_search and rows is not None and len(rows):
            recipe = _with_search(quantize, recipe, rows)
        if quantize.mean_error is None:
            return recipe
        # Nothing is known of rows that are still zeros, such as those of a table that isn't trained yet.
        if rows is not None and len(rows) and mean_error(recipe, rows) <= quantize.mean_error:
            return recipe
    return Recipe(RawLayout("float32")) if rows is None or len(rows) else recipe


def _with_search(quantize: Quantize, recipe: Recipe, rows: Array) -> Recipe:
    """The smallest greedy search that is nearly as good as the most thorough one, of those that aren't ruled out."""
    layout, scheme = recipe
    assert scheme is not None
    if scheme.num_bins is None:
        return Recipe(layout, scheme)
    bins = _BINS if quantize.num_bins == "auto" else (scheme.num_bins,)
    ratios = _RATIOS if quantize.ratio == "auto" else (scheme.ratio,)
    tried = [(b, r) for b in bins for r in ratios if r is not None]
    # Each step of the search takes a bin away.
    tried.sort(key=lambda one: (one[0] * one[1], one))

    def error(num_bins: int, ratio: float) -> float:
        return mean_error(Recipe(layout, replace(scheme, num_bins=num_bins, ratio=ratio)), rows)

    limit = _SLACK * error(*tried[-1])
    chosen = next((one for one in tried if error(*one) <= limit), tried[-1])
    return Recipe(layout, replace(scheme, num_bins=chosen[0], ratio=chosen[1]))


def sample(source: Rows) -> Array:
    """Rows of some elements drawn by lot, always the same ones, in their order.

    Rows that say nothing of errors are left out: those of zeros, and those that have what isn't finite in them.
    """
    count = source.shape[0]
    size = min(count, max(_LEAST_SAMPLE, int(count * _SHARE)))
    positions = np.random.default_rng(0).choice(count, size, replace=False, shuffle=False)
    rows = source.take(np.sort(positions).astype(np.int64)).reshape(size, source.shape[1])
    return rows[np.isfinite(rows).all(axis=1) & rows.any(axis=1)]


def mean_error(recipe: Recipe, rows: Array) -> float:
    """The mean relative l2 error of encoding these rows; that of one that the encoding can't hold counts as 1."""
    found = encoder(Recipe(recipe.layout, None if recipe.scheme is None else replace(recipe.scheme, bound=None)))
    done: Encoded = found.encode(rows)
    return (done.error_sum + len(done.bad)) / max(1, len(rows))
