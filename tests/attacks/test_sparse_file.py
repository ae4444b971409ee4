"""A file of terabytes that takes a few pages of disk: what is there is no measure of what may be taken."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import pytest

import cnrfmt
from tests.attacks.support import accepted, cases, in_child, layout, outcome

TERABYTES = 1 << 42


def _stretched(path: Path, size: int) -> Path:
    """A container whose file goes on, empty, to `size` bytes."""
    data = cases.one().build()
    assert isinstance(data, bytes)
    path.write_bytes(data)
    os.truncate(path, size)
    return path


def test_nothing_behind_the_committed_end_is_looked_at(tmp_path: Path) -> None:
    found = in_child(outcome, _stretched(tmp_path / "model.cnr", 1 << 30), memory=4 << 30)
    assert (found.verify, found.cnrcheck, set(found.read.values())) == ("sound", "sound", {None})
    accepted(tmp_path, cases.one())


def _claims(path: Path, size: int) -> Path:
    """One segment of `size` bytes: a hole with a right header, and a right trailer at its end."""
    segment_id, end = layout.ident("segment A"), size - size % 4096
    pieces = -(-end // (1 << 20))
    nodes = -(-8 * pieces // layout.NODE)
    rows = (end - 4096) // 12
    section = [4096, rows * 12]
    end = layout.up(sum(section), 64)
    schema = {**cases.USER, "rows": rows, "columns": cases.USER["columns"][:1]}
    part = {"column": "weight", "rows": 0, "elements": [0, 3], "encoding": cases.FLOAT, "section": 0}
    row_set = {"code": "range", "count": rows, "min": "0", "max": str(rows - 1), "section": None}
    table = {"id": schema["id"], "rows": rows, "row_sets": [row_set], "deleted": None}
    table["parts"] = [part | {"codebooks": None, "exceptions_of": None, "scheme": None}]
    pieces = -(-end // (1 << 20))
    toc = layout.dump({"sections": [section], "nodes": "0" * 16 * nodes, "tables": [table], "dense": None})
    seed = int.from_bytes(segment_id[:8], "little")
    fields = segment_id + struct.pack("<2Q", end + 8 * pieces + len(toc) + 128, end)
    fields += struct.pack("<3QI", end + 8 * pieces, len(toc), layout.digest(toc, seed + layout.TOC_SEED), 1 << 20)
    trailer = layout.block("T", fields, seed + layout.TRAILER_SEED, {}, "")
    length = end + 8 * pieces + len(toc) + 128
    (path / "segments").mkdir(parents=True)
    with (path / "segments" / f"{segment_id.hex()}.cnrs").open("wb") as file:
        file.seek(end + 8 * pieces)
        file.write(toc + trailer)
    assert (path / "segments" / f"{segment_id.hex()}.cnrs").stat().st_size == length
    store = cases.one_small(hooks={"json": _named(schema, length, trailer)})
    for name, data in dict(store.build()).items():
        if name.startswith("manifests/"):
            (path / "manifests").mkdir()
            (path / name).write_bytes(data)
    return path


def _named(schema: Any, length: int, trailer: bytes) -> Any:
    def change(value: Any) -> None:
        value["tables"] = [schema]
        value["chain"][0] |= {"length": length, "trailer": f"{int.from_bytes(trailer[120:], 'little'):016x}"}

    return change


@pytest.mark.parametrize("backend", ["mmap", "pread"])
@pytest.mark.parametrize("max_bytes", [None, 64 << 20])
def test_a_segment_that_is_a_hole(tmp_path: Path, backend: str, max_bytes: int | None) -> None:
    """Opening it costs its metadata; its pieces have no right digest; loading it whole is refused."""
    path = _claims(tmp_path / "hole", TERABYTES)
    assert sum(file.stat().st_blocks for file in path.rglob("*")) < 1000
    found = in_child(_open, path, backend, max_bytes, memory=2 * TERABYTES if backend == "mmap" else 256 << 20)
    assert found == ["DamagedError", "TooLargeError"]


def _open(path: Path, backend: Any, max_bytes: int | None) -> list[str]:
    kinds = []
    with cnrfmt.open(path, backend=backend, threads=1, max_bytes=max_bytes) as ck:
        table = ck["user"]
        for call in (lambda: table[len(table) // 2], lambda: table[...]):
            try:
                call()
            except cnrfmt.CnrError as error:
                kinds.append(type(error).__name__)
    return kinds
