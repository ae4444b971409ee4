"""Merging increments of integers by addition: what decoding, adding and encoding take, and all together.

Rows are touched as traffic does: each increment has a quarter of them, with Zipf-skewed ids. Codes are drawn as those
of trained tables are: Laplace's law, with a spread of its own for each row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import cnrfmt
from cnrfmt.arrays import Array, Ids
from cnrfmt.checkpointing.compacting.compaction import merge
from cnrfmt.commits import attempt
from cnrfmt.encodings import Recipe
from cnrfmt.encodings.grid import GROUP_VALUES
from cnrfmt.encodings.integer_sections import GivenCodes, encode_section
from cnrfmt.format.encoding import GridLayout
from cnrfmt.format.schema import TableSchema
from cnrfmt.format.scheme import CLOSED_LOOP, Errors, Scheme
from cnrfmt.format.toc import Part
from cnrfmt.part_integers import PartIntegers
from cnrfmt.plan import plan_baseline
from cnrfmt.segment_reader import SegmentReader
from cnrfmt.table_writes import EncodedColumn, RowIds, SliceSections, TableWrite
from tools.bench._data import touched_rows
from tools.bench._figures import Figure, Target, in_turn, say, timed
from tools.bench._setting import Setting, clear

_ROWS, _QUICK_ROWS, _DIM, _TOUCHED = 400_000, 800, 64, 4
_INCREMENTS = 8
_FLOOR = -24
_BLOCK_ROWS = 1024


@dataclass(frozen=True)
class _Slice:
    """A slice that is encoded already."""

    made: SliceSections

    def sections(self) -> SliceSections:
        """As it was given."""
        return self.made

    def written(self) -> None:
        """Holds nothing that it could let go of."""


class _Increments:
    """A baseline and increments of entropy-coded integers behind it."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.path, self.rows, self.random = folder / "increments", rows, np.random.default_rng(0)
        (schema,) = plan_baseline({"user": np.zeros((rows, _DIM), np.float32)}, None).tables
        self._commit(schema, np.arange(rows, dtype=np.int64), "absolute")
        self.ids = [touched_rows(rows, rows // _TOUCHED, number) for number in range(_INCREMENTS)]
        for ids in self.ids:
            self._commit(schema, ids, "residual")
        with cnrfmt.open(self.path) as ck:
            self.head = ck.manifest

    def _commit(self, schema: TableSchema, ids: Ids, kind: str) -> None:
        spread = 0.75 * np.exp(self.random.normal(0, 0.8, (len(ids), 1)))
        codes = np.rint(self.random.laplace(0, 1, (len(ids), _DIM)) * spread).astype(np.int32)
        exponents = self.random.integers(4, 9, len(ids)).astype(np.uint8)
        layout, data = encode_section(
            GridLayout(kind, _FLOOR, "rans", group=GROUP_VALUES // _DIM), GivenCodes(codes, exponents), *codes.shape
        )
        nothing = np.empty(0, np.int64), np.empty((0, _DIM), np.float32)
        recipe = Recipe(layout, Scheme(CLOSED_LOOP))
        part = EncodedColumn(schema.columns[0], (0, _DIM), recipe, Errors(), data, *nothing)
        write = TableWrite(schema, slices=(_Slice(SliceSections(RowIds(len(ids), ids), (part,))),))
        with attempt(str(self.path)) as one:
            one.commit(one.write(one.next(one.head, tables=(schema,)), [write], None, threads=1))

    @property
    def decoded_bytes(self) -> int:
        """Bytes of the integers of all increments."""
        return 4 * _DIM * sum(len(ids) for ids in self.ids)


def figures(setting: Setting) -> list[Figure]:
    """Rates are of the bytes of all increments' decoded integers, on one thread but for the last."""
    say("compact: increments to add up")
    increments = _Increments(setting.folder, _QUICK_ROWS if setting.quick else _ROWS)
    with cnrfmt.open(increments.path, backend="mmap") as ck:
        segments = [ck.view.segments[entry.segment] for entry in ck.manifest.chain[1:]]
        contenders: dict[str, Callable[[int], float]] = {
            "decode and add": lambda _: timed(lambda: _summed(segments, increments)),
            "of that, adding": lambda _: _adding(increments),
            "encode what came of it": _encoding(_summed(segments, increments)),
            "all, on one thread": lambda _: _merging(increments, 1),
            "all, on every thread": lambda _: _merging(increments, None),
        }
        in_turn(1, contenders)
        times = in_turn(setting.repeat, contenders)
    clear(increments.path)
    return [
        Figure(
            group="add",
            name=f"{_INCREMENTS} increments of {100 // _TOUCHED} %: {name}",
            cnrfmt=times[name],
            target=Target("rate", ">=", 2.0) if name == "of that, adding" else None,
            cache="warm",
            bytes_moved=increments.decoded_bytes,
        )
        for name in contenders
    ]


def _summed(segments: list[SegmentReader], increments: _Increments) -> Array:
    from cnrfmt.kernels import integers as kernel

    sums = np.zeros((increments.rows, _DIM), np.int32)
    for segment, ids in zip(segments, increments.ids, strict=True):
        part: Part = segment.toc.tables[0].parts[0]
        positions = np.arange(len(ids), dtype=np.int64)
        for some, block in PartIntegers(segment, part, len(ids)).rows_at(positions, ids, (0, _DIM)):
            kernel.add_at(sums, some, block)
    return sums


def _adding(increments: _Increments) -> float:
    """Seconds of adding blocks that are in the cache, and of what is done with the sums before they are encoded."""
    from cnrfmt.kernels import exponents, integers

    sums = np.zeros((increments.rows, _DIM), np.int32)
    block = np.ones((_BLOCK_ROWS, _DIM), np.int32)

    def add() -> None:
        for ids in increments.ids:
            for start in range(0, len(ids), _BLOCK_ROWS):
                some = ids[start : start + _BLOCK_ROWS]
                integers.add_at(sums, some, block[: len(some)])
        integers.out_of_range(sums, -(1 << 25), 1 << 25)
        exponents.take_out(sums, np.empty(len(sums), np.uint8))

    return timed(add)


def _encoding(sums: Array) -> Callable[[int], float]:
    from cnrfmt.kernels import exponents

    shifts = np.empty(len(sums), np.uint8)
    exponents.take_out(sums, shifts)
    layout = GridLayout("residual", _FLOOR, "rans", group=GROUP_VALUES // _DIM)
    return lambda _: timed(lambda: encode_section(layout, GivenCodes(sums, shifts), *sums.shape))


def _merging(increments: _Increments, threads: int | None) -> float:
    """Seconds of a merge of all increments; the container is put back as it was."""
    before = {path: path.read_bytes() for path in (increments.path / "manifests").iterdir()}
    segments = set((increments.path / "segments").iterdir())
    head = increments.head
    seconds = timed(lambda: merge(increments.path, 1, len(head.chain), expect=head, threads=threads))
    for path in [*(increments.path / "manifests").iterdir(), *(increments.path / "segments").iterdir()]:
        if path not in before and path not in segments:
            path.unlink()
    return seconds
