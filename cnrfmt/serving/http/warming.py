"""Has kernels loaded, or compiled, before anybody waits for them."""

from __future__ import annotations

import contextlib
import threading
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from cnrfmt import writer
from cnrfmt.errors import CnrError
from cnrfmt.pooling import is_pooled
from cnrfmt.serving.http.answering import rows_for, some_ids
from cnrfmt.serving.http.wire import Call
from cnrfmt.serving.live import LiveTables
from cnrfmt.serving.snapshot import Snapshot
from cnrfmt.tabledata import Rows, TableData

_TABLES = 100
"""Of how many tables rows are asked for: more seldom have other kinds of rows."""
_DIM, _ROWS = 40, 64


def warm(live: LiveTables, over: threading.Event) -> None:
    """Asks for a row of each table as clients will, and takes an update of a container of its own in.

    A kernel is loaded, in milliseconds, or compiled, in seconds, when it is first called, and all Python of this
    process waits for most of that. What goes wrong here goes wrong again when somebody asks, and is told then.
    """
    _ask_all(live.snapshot(), over)
    # Where nothing can be written, the first update takes longer.
    with contextlib.suppress(OSError, CnrError), TemporaryDirectory(prefix="cnrfmt-") as folder:
        _update(Path(folder) / "warm", over)


def _update(path: Path, over: threading.Event) -> None:
    """An update of a dense and a keyed table."""
    values, ids = np.zeros((_ROWS, _DIM), np.float32), np.arange(_ROWS)
    writer.save(path, {"dense": values, "keyed": TableData(values, keys=ids)})
    with LiveTables(path) as live:
        live.wait()
        _ask_all(live.snapshot(), over)
        some = ids[::3]
        writer.append(path, {"dense": Rows(some, values[some]), "keyed": Rows([*some, _ROWS], values[: len(some) + 1])})
        if not over.is_set():
            # Whoever holds on to a version keeps rows of the next one out of their places, where a map tells of them.
            before = live.snapshot()
            live.advance()
            _ask_all(live.snapshot(), over)
            del before
            live.advance()


def _ask_all(snapshot: Snapshot, over: threading.Event) -> None:
    for rows in islice(snapshot.values(), _TABLES):
        ids = some_ids(rows, _ROWS)
        calls = [Call(rows.name, ids)]
        if is_pooled(rows.dtype):
            weights = np.ones(len(ids), np.float32)
            calls.append(Call(rows.name, ids, offsets=np.zeros(1, np.int64), weights=weights, mode="sum"))
        for call in calls:
            if over.is_set():
                return
            with contextlib.suppress(CnrError):
                rows_for(rows, call)
