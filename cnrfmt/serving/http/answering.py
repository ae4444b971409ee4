"""From a request to rows, and what is told of a table."""

from __future__ import annotations

from typing import Any

import numpy as np

from cnrfmt.arrays import Array, Ids
from cnrfmt.errors import MissingKeyError, UsageError
from cnrfmt.serving.held_rows import ShardBy
from cnrfmt.serving.http.wire import Call, RequestError
from cnrfmt.serving.live_rows import LiveRows
from cnrfmt.serving.snapshot import Snapshot

_SAID = 500
"""Characters of a message that names what was sent."""


def table_of(snapshot: Snapshot, name: str) -> LiveRows:
    """The table that a request names; raises `RequestError`."""
    try:
        return snapshot[name]
    except MissingKeyError as error:
        text = str(error)
        short = text if len(text) <= _SAID else f"{text[:_SAID]}..."
        raise RequestError(404, short, "GET /tables lists them") from None


def rows_for(rows: LiveRows, call: Call) -> Array:
    """The rows, or the bags, that a request asks for; raises `RequestError`."""
    try:
        if call.offsets is None:
            return rows.lookup(call.ids)
        return rows.pool(call.ids, call.offsets, weights=call.weights, mode=call.mode or "sum")
    except MissingKeyError as error:
        raise RequestError(422, str(error), "ask for rows that this server holds: GET /tables lists them") from None
    except UsageError as error:
        raise RequestError(422, str(error), "mend the request; the documentation has examples") from None


def some_ids(rows: LiveRows, most: int) -> Ids:
    """Ids or keys that are held, spread over all of them."""
    places = np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(np.int64)
    ids = rows.index.ids
    return places + ids.start if isinstance(ids, range) else ids[places]


def held(rows: LiveRows, shard: tuple[int, int] | None, shard_by: ShardBy | None) -> dict[str, Any] | None:
    """Which rows of a table a server of a shard holds; None where all are."""
    if shard is None:
        return None
    by = "range" if shard_by == "range" and not rows.keyed else "hash"
    found = {"by": by, "number": shard[0], "count": shard[1], "rows": len(rows), "of_rows": rows.schema.rows}
    ids = rows.index.ids
    if by == "range" and isinstance(ids, range):
        found |= {"first": ids.start, "end": ids.stop}
    return found
