"""Small containers with everything in them, what they say, and what a salvage of a damaged copy may say."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import cnrfmt
from cnrfmt import Deleted, Dropped, Quantize, Rows, Salvage, TableData
from cnrfmt.format import limits
from cnrfmt.format.encoding import ITEM_SIZES, CodebookLayout
from cnrfmt.format.toc import TableEntry
from cnrfmt.section_owners import owners
from cnrfmt.segment_reader import SegmentReader
from tests.storage.support import QuickFs

FS = QuickFs()
KINDS = ("model.cnr", "model")
F32 = np.float32


def build(path: Path) -> None:
    """Six versions: quantised and raw, dense and keyed, grown, shrunk, deleted, dropped, never written."""
    random = np.random.default_rng(17)
    weight = random.normal(size=(900, 12)).astype(F32)
    weight[5, 1], weight[300, 0], weight[301, 3] = np.nan, np.inf, -np.inf
    keys = np.sort(random.choice(1 << 40, 700, replace=False)) - (1 << 39)
    visitor = random.normal(size=(700, 6)).astype(F32)
    accumulator = np.abs(weight[:, 2]) + F32(1)
    accumulator[[7, 8, 400]] = -1, np.nan, np.inf
    # An odd number of rows, so that half a byte is left over, and blocks that don't divide it.
    shared, few = weight[290:441, :8].copy(), accumulator[290:441].copy()
    rare = visitor[:130].copy()
    rare[[3, 77]] = np.nan
    tables: dict[str, Any] = {
        "word": TableData(weight, columns={"accumulator": accumulator}),
        "visitor": TableData(visitor, keys=keys, columns={"momentum": visitor * 2}, fill=-1),
        "small": random.normal(size=(3, 2)).astype(F32),
        "count": TableData(np.arange(1200, dtype=np.int64).reshape(400, 3), fill=7),
        "gone": random.normal(size=(40, 4)).astype(F32),
        "shared": TableData(shared, columns={"sum": few}),
        "rare": TableData(rare, keys=keys[:130], columns={"sum": np.exp(rare[:, 0]), "momentum": rare * 7}),
    }
    quantize: dict[Any, Quantize] = {
        "word": Quantize(bits=8),
        "visitor": Quantize(bits=4),
        "shared": Quantize(bits=3, method="kmeans", block=7),
        "rare": Quantize(bits=5, group=8, params="bfloat16", max_error=0.05, one_valued="log8"),
        ("rare", "momentum"): Quantize(bits=2, layout="head", method="symmetric"),
    }
    dense = {"mlp": random.normal(size=(40, 40)).astype(F32), "reader": {"position": 17}, "seed": b"\1\2\3"}
    cnrfmt.save(path, tables, quantize=quantize, dense=dense, metadata={"run": "r7"}, step=0, fs=FS)

    def append(changes: dict[str, Any], **options: Any) -> None:
        cnrfmt.append(path, changes, fs=FS, **options)

    some = np.arange(0, 900, 5)
    append(
        {
            "word": Rows(some, weight[some] + 1),
            "visitor": (Rows(keys[10:200], visitor[10:200] + 3), Deleted(keys[300:330])),
            "shared": Rows(np.arange(50, 67), weight[:17, :8], columns={"sum": few[100:117] * 9}),
            "rare": Rows(keys[20:51], rare[60:91], columns={"sum": few[:31] * 3}),
        },
        step=1,
    )
    # A column that comes later, on some rows; a table that grows far beyond what is stored of it.
    append(
        {
            "count": Rows(np.array([1, 399, 2**30]), np.full((3, 3), 99, np.int64), rows=2**31),
            "word": Rows(some[3:50], columns={"later": weight[some[3:50]] * 3}),
            "visitor": Rows(keys[305:310], columns={"momentum": visitor[305:310]}),
            "gone": Dropped(),
        },
        step=2,
    )
    more = np.sort(random.choice(1 << 40, 50, replace=False))
    append(
        {
            "word": Rows(np.arange(850, 860), weight[:10] - 1, rows=870),
            "visitor": Rows(more, visitor[:50] * 5),
            "gone": TableData(visitor[:30], columns={"one": visitor[:30, 0]}),
        },
        step=3,
        dense={"mlp": np.arange(6.0), "reader": {"position": 18}},
    )
    append({"word": Rows(np.arange(880, 890), weight[:10] * 9, rows=890)}, step=4)
    append({}, step=5)


Cell = bytes
"""The bytes of one row of a column."""


@dataclass
class Said:
    """What a table says: rows or keys, and the bytes of each row of each column. Of a vast table, some rows."""

    keyed: bool
    count: int
    ids: list[int]
    cells: dict[str, dict[int, Cell]]
    fill: dict[str, Cell]


MOST = 1000
"""Rows of a dense table that are compared from either end."""
LONE = 2**30
"""The lone row in the middle of a vast one."""


def said(path: Path, version: int | None = None) -> dict[str, Said]:
    """All tables of a version."""
    with cnrfmt.open(path, version=version, backend="pread", threads=1) as ck:
        return {name: _said(table) for name, table in ck.items()}


def _said(table: cnrfmt.Table) -> Said:
    if table.keys is not None:
        ids = table.keys.tolist()
    elif len(table) > 2 * MOST:
        ids = [*range(MOST), LONE, *range(len(table) - MOST, len(table))]
    else:
        ids = list(range(len(table)))
    cells, fill = {}, {}
    for column in table.columns:
        rows = table.read(np.array(ids, np.int64), column=column)
        cells[column] = dict(zip(ids, (row.tobytes() for row in rows), strict=True))
        fill[column] = np.full(rows.shape[1:], table.fill(column)).tobytes()
    return Said(table.keyed, len(table), ids, cells, fill)


def listed(report: Salvage, table: str, column: str | None, *, exact: bool | None = None) -> list[tuple[int, int]]:
    """The runs of rows that a report lists as lost."""
    return [
        (first, last)
        for loss in report.losses
        if loss.table == table and loss.column == column and exact in (None, loss.exact)
        for first, last in loss.rows.tolist()
    ]


def among(runs: list[tuple[int, int]], row: int) -> bool:
    return any(first <= row <= last for first, last in runs)


def check_result(report: Salvage, target: Path, original: dict[str, Said], tables: list[str] | None = None) -> None:
    """That every row of the result is the original's, or listed as lost and then no other value."""
    found = said(target)
    assert list(found) == [name for name in original if tables is None or name in tables]
    for name, table in found.items():
        want = original[name]
        assert table.keyed == want.keyed
        assert table.fill == want.fill
        rows_lost = listed(report, name, None)
        if table.keyed:
            assert set(table.ids) <= set(want.ids), f"{name} has keys that were never there"
            for key in set(want.ids) - set(table.ids):
                assert among(rows_lost, key), f"{name}: key {key} is missing without a word"
        else:
            assert table.count == want.count
            assert not rows_lost
        for column, cells in table.cells.items():
            lost = listed(report, name, column)
            for row, cell in cells.items():
                if among(lost, row):
                    assert cell == want.fill[column], f"{name}.{column}[{row}] is lost, yet has a value"
                else:
                    assert cell == want.cells[column][row], f"{name}.{column}[{row}] is wrong"


def check_dense(report: Salvage, target: Path, original: dict[str, Any]) -> None:
    """That every entry of the dense state is the original's, or listed as lost."""
    with cnrfmt.open(target) as ck:
        found = ck.dense
    lost = [loss.dense for loss in report.losses if loss.table is None]
    assert set(found) == set(report.dense)
    if None not in lost:
        assert set(found) | set(lost) == set(original)
    for name, value in found.items():
        assert name not in lost
        if isinstance(value, np.ndarray):
            assert (value.tobytes(), value.dtype, value.shape) == (
                original[name].tobytes(),
                original[name].dtype,
                original[name].shape,
            )
        else:
            assert value == original[name]


# Where things are in a container.


@dataclass(frozen=True)
class Region:
    """A run of bytes of one file of a container."""

    what: str
    file: str
    offset: int
    length: int


def regions(path: Path) -> list[Region]:
    """Every byte of a container that means something, by what it is."""
    found: list[Region] = []
    with cnrfmt.open(path) as head:
        versions = head.versions
    seen: set[bytes] = set()
    single = path.is_file()
    if single:
        found += [Region(what, "", 4096 * k, 128) for k, what in enumerate(("file header", "slot A", "slot B"))]
    for version in versions:
        with cnrfmt.open(path, version=version) as ck:
            for segment in ck.view.segments.values():
                if segment.entry.segment not in seen:
                    seen.add(segment.entry.segment)
                    found += _segment_regions(segment, version, single)
    with cnrfmt.open(path) as ck:
        for r in ck.manifest.versions:
            file = "" if single else f"manifests/{r.version:020d}.cnrm"
            found.append(Region(f"manifest {r.version}", file, r.offset or 0, r.length))
        data, version, _ = ck.view.container.head()
        file = "" if single else f"manifests/{version:020d}.cnrm"
        offset = path.read_bytes().rindex(data) if single else 0
        found.append(Region("newest manifest", file, offset, len(data)))
    return found


def _segment_regions(segment: SegmentReader, version: int, single: bool) -> list[Region]:
    entry, trailer = segment.entry, segment.trailer
    file = "" if single else f"segments/{entry.segment.hex()}.cnrs"
    start = entry.offset or 0
    name = f"of segment {version}"
    named = owners(segment.toc, segment._names)
    found = [Region(f"header {name}", file, start, 128)]
    for number, (offset, length) in enumerate(segment.toc.sections):
        found.append(Region(f"{named[number]} {name}", file, start + offset, length))
    found.append(Region(f"digests {name}", file, start + trailer.data_end, 8 * trailer.pieces))
    found.append(Region(f"table of contents {name}", file, start + trailer.toc_offset, trailer.toc_length))
    found.append(Region(f"trailer {name}", file, start + entry.length - limits.BLOCK, limits.BLOCK))
    return found


def flip(path: Path, file: str, offset: int, mask: int = 0x10) -> None:
    """Changes bits of one byte."""
    with (path / file if file else path).open("r+b") as f:
        f.seek(offset)
        old = f.read(1)
        f.seek(offset)
        f.write(bytes([old[0] ^ mask]))


def contents(path: Path) -> dict[str, bytes]:
    """Every file of a container."""
    if path.is_file():
        return {"": path.read_bytes()}
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def copy(source: Path, target: Path) -> Path:
    """A copy of a container."""
    if target.is_dir():
        shutil.rmtree(target)
    elif target.exists():
        os.unlink(target)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)
    return target


# What is lost, by the specification's own words: a slow resolver that shares nothing with the library's.


def expected_losses(path: Path, lost: set[tuple[str, int]]) -> dict[tuple[str, str], set[int]]:
    """The rows that lose a byte where these pieces, (segment in hex, number), of an undamaged container do.

    Only for pieces that hold rows, and no row index.
    """
    found: dict[tuple[str, str], set[int]] = {}
    with cnrfmt.open(path) as ck:
        steps = [
            [ck.view.segments[e.segment] for e in step] for step in reversed(ck.manifest.steps())
        ]
        for name, table in ck.items():
            rows = table.keys.tolist() if table.keys is not None else [*range(min(len(table), 1000)), LONE]
            for column in table.columns:
                gone = {r for r in rows if _is_lost(steps, table.schema.table_id, column, r, lost)}
                found[name, column] = gone
    return found


def _is_lost(
    steps: list[list[SegmentReader]], table: bytes, column: str, row: int, lost: set[tuple[str, int]]
) -> bool:
    for step in steps:
        for segment in step:
            entry = segment.toc.by_table.get(table)
            if entry is None:
                continue
            hits = _bytes_of(segment, entry, column, row)
            if hits:
                size = segment.trailer.piece_size
                pieces = [p for a, b in hits for p in range(a // size, (b - 1) // size + 1)]
                return any((segment.entry.segment.hex(), p) in lost for p in pieces)
            if entry.deleted is not None and row in segment.indexes.ids(entry.row_sets[entry.deleted]):
                return False
            if entry.rows is not None and row >= entry.rows:
                return False
    return False


def _bytes_of(segment: SegmentReader, entry: TableEntry, column: str, row: int) -> list[tuple[int, int]]:
    """The bytes that a row's values take, or none: its own, and those of a codebook that it shares."""
    for part in sorted(entry.parts, key=lambda p: p.exceptions_of is None):
        rows = entry.row_sets[part.rows]
        if part.column != column or not rows.first <= row <= rows.last:
            continue
        if rows.section is None:
            position = row - rows.first
        else:
            ids = segment.indexes.ids(rows)
            position = int(np.searchsorted(ids, row))
            if ids[position] != row:
                continue
        offset = segment.toc.sections[part.section][0]
        bits = part.layout.row_bits(part.elements[1] - part.elements[0])
        found = [(offset + position * bits // 8, offset - (-(position + 1) * bits // 8))]
        if part.codebooks is not None:
            assert isinstance(part.layout, CodebookLayout)
            assert part.layout.block is not None
            size = ITEM_SIZES[part.layout.values] << part.layout.bits
            offset = segment.toc.sections[part.codebooks][0] + position // part.layout.block * size
            found.append((offset, offset + size))
        return found
    return []
