"""Comparing the dense state of two versions, entry by entry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from cnrfmt.arrays import Array
from cnrfmt.checkpoint import Checkpoint
from cnrfmt.comparing.report import DenseDifference
from cnrfmt.dense import read_entry
from cnrfmt.format.toc import DenseEntry
from cnrfmt.segment_reader import SegmentReader

_STEP = 1 << 20
"""Elements whose difference is made at a time."""


def dense_differences(a: Checkpoint, b: Checkpoint) -> Iterator[DenseDifference]:
    """The entries that differ; no more than two are in memory at a time."""
    if a.manifest.dense is not None and a.manifest.dense == b.manifest.dense:
        return
    first, second = _entries(a), _entries(b)
    for name in dict.fromkeys((*first, *second)):
        here, there = first.get(name), second.get(name)
        if here is None or there is None:
            yield DenseDifference(name, None if here is None else _words(here[1]), there and _words(there[1]))
        elif (found := _difference(here, there)) is not None:
            yield found


_Entry = tuple[SegmentReader, DenseEntry]


def _entries(ck: Checkpoint) -> dict[str, _Entry]:
    if ck.manifest.dense is None:
        return {}
    segment = ck.view.segments[ck.manifest.dense]
    return {entry.name: (segment, entry) for entry in segment.toc.dense or ()}


def _words(entry: DenseEntry) -> str:
    if entry.kind != "array":
        return {"json": "JSON"}.get(entry.kind, entry.kind)
    shape = " x ".join(map(str, entry.shape))
    return f"{entry.dtype}, {shape}" if shape else entry.dtype


def _difference(here: _Entry, there: _Entry) -> DenseDifference | None:
    a, b = here[1], there[1]
    found = DenseDifference(a.name, _words(a), _words(b))
    if (a.kind, a.dtype, a.shape) != (b.kind, b.dtype, b.shape):
        return found
    first, second = read_entry(*here), read_entry(*there)
    if a.kind != "array":
        return None if first == second and type(first) is type(second) else found
    if np.array_equal(_bits(first), _bits(second)):
        return None
    return DenseDifference(a.name, found.a, found.b, _error(first, second))


def _bits(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _error(a: Array, b: Array) -> float | None:
    """The relative l2 error of `b`; None where there is no finite one."""
    wide: Any = np.complex128 if a.dtype.kind == "c" else np.float64
    change = norm = 0.0
    with np.errstate(all="ignore"):
        for start in range(0, a.size, _STEP):
            first, second = (x.reshape(-1)[start : start + _STEP].astype(wide) for x in (a, b))
            change += float((np.abs(second - first) ** 2).sum())
            norm += float((np.abs(first) ** 2).sum())
        error = float(np.sqrt(np.divide(change, norm)))
    return error if np.isfinite(error) else None
