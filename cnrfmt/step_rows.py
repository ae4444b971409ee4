"""Which rows of a table the steps of a chain write and delete, by their row sets alone."""

from __future__ import annotations

import numpy as np

from cnrfmt import sorted_ids
from cnrfmt.arrays import Ids
from cnrfmt.format.toc import RowSet, TableEntry
from cnrfmt.memory import Budget
from cnrfmt.resolve import Steps


def live_keys(steps: Steps) -> Ids:
    """The keys of a keyed table that exist, sorted."""
    keys = np.empty(0, np.int64)
    for step in steps:
        for segment, entry in step:
            if entry.deleted is not None:
                keys = keys[~segment.indexes.holds(entry.row_sets[entry.deleted], keys)]
        found = [segment.indexes.ids(row_set) for segment, entry in step for row_set in written(entry)]
        if len(found) == 1 and not len(keys):
            keys = found[0]
        elif found:
            keys = sorted_ids.union(keys, *found)
    return keys


def keys_cost(steps: Steps) -> int:
    """Bytes of memory that `live_keys` takes: row indexes, and the keys themselves while they are merged."""
    cost = 0
    for step in steps:
        for segment, entry in step:
            if entry.deleted is not None:
                cost += segment.indexes.cost(entry.row_sets[entry.deleted], whole=False)
            cost += sum(segment.indexes.cost(row_set) + 24 * row_set.count for row_set in written(entry))
    return cost


def written(entry: TableEntry) -> list[RowSet]:
    """The row sets whose rows a segment writes; those of exception parts add nothing."""
    used = {p.rows for p in entry.parts if p.exceptions_of is None}
    return [r for number, r in enumerate(entry.row_sets) if number in used]


def touched(steps: Steps, budget: Budget, what: str) -> Ids:
    """The row ids that these steps write, sorted and distinct."""
    sets = [(segment, row_set) for step in steps for segment, entry in step for row_set in written(entry)]
    budget.take(sum(segment.indexes.cost(row_set) + 24 * row_set.count for segment, row_set in sets), what)
    parts = [np.empty(0, np.int64)]
    for segment, row_set in sets:
        if row_set.section is None:
            parts.append(np.arange(row_set.first, row_set.last + 1, dtype=np.int64))
        else:
            parts.append(segment.indexes.ids(row_set))
    return parts[1] if len(parts) == 2 else sorted_ids.union(*parts)


def tombstones(steps: Steps, budget: Budget, what: str) -> Ids:
    """The keys that these steps delete, sorted and distinct."""
    sets = [
        (segment, entry.row_sets[entry.deleted])
        for step in steps
        for segment, entry in step
        if entry.deleted is not None
    ]
    budget.take(sum(segment.indexes.cost(row_set) + 24 * row_set.count for segment, row_set in sets), what)
    found = [segment.indexes.ids(row_set) for segment, row_set in sets]
    return sorted_ids.union(*found) if found else np.empty(0, np.int64)
