"""Row-wise weights of a table as they are stored: where a map has all rows, and which rows newer parts have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from threading import Thread
from typing import Any, Literal, NamedTuple

import numpy as np

from cnrfmt import parallel, sorted_ids
from cnrfmt.arrays import Bytes, Ids
from cnrfmt.errors import UsageError
from cnrfmt.format.encoding import RowwiseLayout
from cnrfmt.layer import Layer
from cnrfmt.memory import Budget
from cnrfmt.segment_reader import SegmentReader
from cnrfmt.storage.source import Source
from cnrfmt.table import Table

MapVerify = Literal["first", "background", "none"]
"""When the bytes of a map that is handed out are held against their digests."""

_STEP = 4 << 20
"""Bytes that a thread verifies, and rows that it copies, at a time."""


class Span(NamedTuple):
    """Bytes of a segment."""

    segment: SegmentReader
    offset: int
    length: int

    @property
    def data(self) -> Bytes | None:
        """The bytes in the map of the segment, not verified; None where it isn't mapped."""
        data = self.segment.data
        return None if data is None else data[self.offset : self.offset + self.length]


class StoredRows:
    """The column `weight` of a table, all of whose parts that count are under one row-wise layout.

    Rows are numbered by their position: the row id of a dense table, the place among the keys of a keyed one. A row
    that its encoding can't hold, and that has a part of exceptions of its own, has bytes of zeros here.
    """

    def __init__(self, table: Table, layout: RowwiseLayout, layers: Sequence[Layer], floor: Layer | None) -> None:
        self.table, self.layout, self.floor = table, layout, floor
        self._layers = layers
        self.row_bytes = layout.row_bytes(table.shape[1])

    @property
    def newer(self) -> int:
        """How many parts there are beside the one that has every row."""
        return sum(_is_main(x) for x in self._layers) - (self.floor is not None)

    @property
    def span(self) -> Span:
        """Where the part that has every row has them, one behind the other."""
        floor = self.floor
        assert floor is not None
        assert floor.part is not None
        offset = floor.segment.toc.sections[floor.part.section][0]
        return Span(floor.segment, offset, len(self.table) * self.row_bytes)

    def positions(self, ids: Ids) -> Ids:
        """Where rows of these ids are."""
        return ids if self.table.keys is None else np.searchsorted(self.table.keys, ids)

    def exceptions(self) -> Ids:
        """The ids of rows that a part of exceptions has, and no newer part."""
        found = np.empty(0, np.int64)
        for layer in reversed(self._layers) if any(map(_is_exceptions, self._layers)) else ():
            if _is_exceptions(layer):
                found = sorted_ids.union(found, _ids(layer))
            elif len(found):
                found = found[_positions_in(layer, found) < 0]
        return found

    def changed(self) -> Ids:
        """The ids of rows that other parts have than the one that has every row."""
        found = [_ids(x) for x in self._layers if _is_main(x) and x is not self.floor]
        return sorted_ids.union(*found) if found else np.empty(0, np.int64)

    def copy(self, ids: Ids, out: Bytes, targets: Ids) -> Ids:
        """Copies the newest bytes of rows, verified, and gives the targets of those that were never written.

        Parameters
        ----------
        ids
            Ids, ascending.
        out
            Gets them, (n, row bytes), C-contiguous; rows that were never written stay as they are.
        targets
            The row of `out` for each id.
        """
        step, missing = max(1, _STEP // self.row_bytes), []

        def some(start: int) -> None:
            wanted, into = ids[start : start + step], targets[start : start + step]
            for layer in filter(_is_no_exceptions, self._layers):
                if not len(wanted):
                    return
                if wanted[-1] < layer.row_set.first or layer.row_set.last < wanted[0]:
                    continue
                positions = _positions_in(layer, wanted)
                found = positions >= 0
                if layer.part is None:
                    missing.append(into[found])
                elif found.any():
                    layer.copy_near(positions[found], out, into[found])
                wanted, into = wanted[~found], into[~found]
            if len(wanted):
                missing.append(into)

        parallel.run(self.table.view.threads)(some, range(0, len(ids), step))
        return sorted_ids.union(*missing) if missing else np.empty(0, np.int64)


def _is_exceptions(layer: Layer) -> bool:
    return layer.part is not None and layer.part.exceptions_of is not None


def _is_no_exceptions(layer: Layer) -> bool:
    return not _is_exceptions(layer)


def _is_main(layer: Layer) -> bool:
    return layer.part is not None and layer.part.exceptions_of is None


def _ids(layer: Layer) -> Ids:
    return np.arange(layer.row_set.first, layer.stop, dtype=np.int64) if layer.is_range else layer.ids


def _positions_in(layer: Layer, ids: Ids) -> Ids:
    """Where ascending ids are in a layer, -1 for those that aren't; any number from 0 on in one of tombstones."""
    from cnrfmt.kernels import rows as kernel

    if layer.part is None:
        return np.where(layer.segment.indexes.holds(layer.row_set, ids), 0, -1)
    if layer.is_range:
        first = layer.row_set.first
        return np.where((ids >= first) & (ids < layer.stop), ids - first, -1)
    positions = np.empty(len(ids), np.int64)
    kernel.find(layer.ids, ids, positions)
    return positions


def stored_rows(table: Table, budget: Budget) -> StoredRows | str:
    """The weights of a table as they are stored, or in words why they can't be had so."""
    if len(table) == 0:
        return "it has no rows"
    strips = table.strips(budget=budget)
    if len(strips) > 1:
        return f"its rows are stored in {len(strips)} ranges of elements"
    layers: list[Layer] = []
    layout, floor = None, None
    for layer in strips[0].layers:
        layers.append(layer)
        if not _is_main(layer):
            continue
        assert layer.part is not None
        found = layer.part.layout
        if not isinstance(found, RowwiseLayout):
            return f"it has rows under the encoding {_name(found)}"
        if layout is not None and found != layout:
            return f"it has rows under {_name(found)} and under {_name(layout)}"
        layout = found
        if _has_all(layer, table):
            floor = layer
            break
    if layout is None:
        return "nothing was ever written to it"
    budget.take(sum(x.cost for x in layers), f"table {table.name!r}, row indexes")
    if any(x.part is None for x in layers):
        # A key may have been deleted, and written again without weights.
        floor = None
    return StoredRows(table, layout, layers, floor)


def _has_all(layer: Layer, table: Table) -> bool:
    """Whether a layer has the rows of a table, all of them, in their order from its first one on."""
    if table.keys is None:
        return layer.is_range and layer.row_set.first == 0 and layer.stop >= len(table)
    if layer.row_set.count != len(table):
        return False
    return layer.ids is table.keys or np.array_equal(_ids(layer), table.keys)


def _name(layout: Any) -> str:
    says = layout.to_json()
    words = [str(says[key]) for key in ("layout", "kind", "dtype") if says.get(key) is not None]
    if says.get("bits") is not None:
        words.append(f"{says['bits']} bits")
    return " ".join([says["name"], *words])


def private_map(spans: Sequence[Span]) -> tuple[Bytes, list[int]] | None:
    """Bytes of one file as memory that this process may write to, copied page by page where it does.

    Gives the map, from the first of these spans to the end of the last, and where in it each begins; None where they
    aren't all in one local file. What is mapped isn't verified.
    """
    places = [(*span.segment.source.start, span) for span in spans if isinstance(span.segment.source, Source)]
    if len(places) < len(spans) or len({id(file) for file, _, _ in places}) != 1:
        return None
    starts = [start + span.offset for _, start, span in places]
    end = max(start + span.length for start, span in zip(starts, spans, strict=True))
    first = min(starts)
    return places[0][0].map_private(first, end), [start - first for start in starts]


def verify(spans: Iterable[Span], table: Table, when: MapVerify | None) -> Future[None] | None:
    """Holds bytes in maps against their digests, once for each reader.

    Parameters
    ----------
    when
        ``"first"``: before this returns; ``"background"``: by a thread; ``"none"``. If None, first where the
        checkpoint was opened with anything but ``verify="none"``.

    Returns
    -------
    Future or None
        Done when all is verified, or has the `DamagedError`; None where nothing is verified.

    Raises
    ------
    DamagedError
        With ``"first"``: a piece isn't what was written.
    """
    view = table.view
    if when not in ("first", "background", "none", None):
        raise UsageError(f"verify is 'first', 'background', 'none' or None, found {when!r}")
    if view.options.verify == "none":
        if when in ("first", "background"):
            raise UsageError(f"{view.container.path}: it was opened with verify='none'; open it with verify='touched'")
        return None
    if when == "none":
        return None
    steps = [
        Span(segment, start, min(_STEP, offset + length - start))
        for segment, offset, length in spans
        for start in range(offset, offset + length, _STEP)
    ]
    done: Future[None] = Future()
    work = _verifying(steps, view.threads)
    if when == "background":
        Thread(target=_settle, args=(done, work), name="cnrfmt-verify", daemon=True).start()
    else:
        work()
        done.set_result(None)
    return done


def _verifying(steps: list[Span], threads: int) -> Callable[[], None]:
    def one(step: Span) -> None:
        step.segment.fetch_range(step.offset, step.length)

    return lambda: parallel.run(threads)(one, steps)


def _settle(done: Future[None], work: Callable[[], None]) -> None:
    try:
        work()
    except BaseException as error:
        done.set_exception(error)
    else:
        done.set_result(None)
