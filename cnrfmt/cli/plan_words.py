"""What a plan of checkpoints assumes, in words: whoever reads it knows what to doubt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from cnrfmt.encodings import Recipe, moments
from cnrfmt.encodings.grid import CHECKPOINTS
from cnrfmt.format.encoding import GridLayout, LogLayout, RawLayout
from cnrfmt.format.schema import WEIGHT, TableSchema
from cnrfmt.format.scheme import Step

if TYPE_CHECKING:
    from cnrfmt.checkpointing.costs.estimates import TableShape
    from cnrfmt.checkpointing.costs.rates import Rates
    from cnrfmt.checkpointing.costs.traffic import Traffic

Recipes = Mapping[tuple[str, str], Recipe]
"""How each column of each table is stored, by the names of both."""

_SMALL = (
    "the tables are so small that what was measured, and a stall, is mostly what a save of any size takes: starting "
    "threads, for one; rows of larger tables are encoded and gathered faster"
)


def assumed(
    tables: Sequence[TableShape],
    traffic: Traffic,
    stored: str,
    recipes: Recipes,
    initial: float | None,
    rates: Rates,
    measured: Sequence[str],
) -> list[str]:
    """A line for each thing; `stored` says how rows are and how many versions stay, `measured` which rates were."""
    from cnrfmt.checkpointing.costs.rates import is_small, largest

    speeds = ", ".join(
        f"{key} {value / 1e6:,.0f} MB/s ({'measured just now' if key in measured else 'given'})"
        for key, value in vars(rates).items()
    )
    return [
        traffic.words(),
        stored,
        *dict.fromkeys(words for table in tables if (words := _grid_words(table.schema, recipes, initial))),
        "changed rows lie scattered over their table, and keys over all of int64: row ids in order take less",
        f"rates of all threads on this machine: {speeds}",
        *([_SMALL] if {"encode", "gather"} & set(measured) and is_small(largest(tables)) else []),
        "encode and gather: bytes in memory of rows that are encoded, one behind the other and from all over; a save "
        "stalls training until its rows are encoded, and is durable when they are written, too",
        "left out: rows that no encoding holds, reading and adding up what is merged, and what the file system adds",
    ]


def restores_words(expected: float | None) -> str:
    """For how many restores; empty where nothing was said."""
    return "" if expected is None else f" for {expected:.3g} {'restore' if expected == 1 else 'restores'} expected"


def _grid_words(table: TableSchema, recipes: Recipes, initial: float | None) -> str:
    """What rows of a table on a grid take; empty where it is on none."""
    scheme = recipes[table.name, WEIGHT].scheme
    if scheme is None or scheme.step is None:
        return ""
    return "; ".join([*_weight_words(scheme.step, table, initial), *_column_words(table, recipes)])


def _weight_words(step: Step, table: TableSchema, initial: float | None) -> Iterator[str]:
    from cnrfmt.checkpointing.costs import typical

    found = typical.Weights.of(step, (column.name for column in table.columns), initial)
    steps = f"steps of {_learning_rates(found.coarseness)}"
    if step.column == CHECKPOINTS:
        steps += " over the checkpoints that a row was in"
    elif step.column is None:
        steps += ", all rows alike (measured of steps that get shorter with checkpoints)"
    else:
        steps += f" for the median row by {step.column} (measured of steps that get shorter with checkpoints)"
    trainers = "Adam, which moves rows as far late as early" if found.adam else "Adagrad"
    yield f"typical of trainers with {trainers}, and a third more or less for others"
    yield f"{found.delta_bits:.3g} bits per value in {steps}"
    begin = f"weights begin with a root mean square of {_learning_rates(found.initial)} (--initial)"
    if found.baseline_bits > found.delta_bits:
        yield f"{found.baseline_bits:.3g} in a baseline if {begin}, one more for each time that they are twice as large"
    else:
        yield f"all rows of a baseline taken for trained, if {begin} or less"
    yield f"{typical.ROW_BITS:g} bits more per row"


def _column_words(table: TableSchema, recipes: Recipes) -> Iterator[str]:
    """Of optimizer state, as far as there is some."""
    from cnrfmt.checkpointing.costs import typical

    layouts = {c.name: recipes[table.name, c.name].layout for c in table.columns[1:] if c.name != CHECKPOINTS}
    of_dim = [c.name for c in table.columns if not c.per_row and c.name in layouts]
    for bits in {x.bits for name, x in layouts.items() if name not in of_dim and isinstance(x, LogLayout)}:
        delta = bits - typical.LOG + typical.LOG_BITS
        yield f"{delta} bits of a {bits}-bit logarithmic code, {bits} in a baseline"
    if any(isinstance(layouts[name], GridLayout) for name in of_dim):
        yield f"{typical.FIRST_BITS:g} bits of a value of a first moment"
    if any(isinstance(layouts[name], LogLayout) for name in of_dim):
        baseline = f"{typical.SECOND_BASELINE_BITS:g} in a baseline"
        yield f"{typical.SECOND_BITS:g} bits of a value of a second moment, {baseline}"
    if any(not isinstance(layouts[name], RawLayout) for name in of_dim):
        yield "next to nothing of moments that are zero still"
    for name in of_dim:
        if isinstance(layouts[name], RawLayout):
            why = "moments='raw' was asked for" if moments.may_be(name) else "its name is no known moment's"
            yield f"{name} as it is, since {why}"


def _learning_rates(number: float) -> str:
    return f"{number:.3g} {'learning rate' if number == 1 else 'learning rates'}"
