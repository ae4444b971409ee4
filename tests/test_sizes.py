"""Sizes account for every byte: of segments, of files, and of what a commit asks the system to write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt.format.limits import PAGE
from cnrfmt.sizes import KEYS, commit_sizes, plain_bytes, sizes, sizes_of_segment
from cnrfmt.storage.fs import OpenMode, PosixFs

ROWS, DIM = 3000, 24
# A frequency falls with a word's rank: common rows have large, rare ones small accumulators.
RANKS = np.arange(1, ROWS + 1)
WEIGHT = (np.sin(np.outer(RANKS, np.arange(1, DIM + 1))) / np.sqrt(RANKS)[:, None]).astype(np.float32)
ACCUMULATOR = (1000 / RANKS).astype(np.float32)
KEYS_OF_VISITORS = (RANKS[:700] * 2654435761) % 2**40


class CountingFs(PosixFs):
    """The real file system, counting the bytes that it is asked to write to the container."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0
        self.lock_handles: set[int] = set()

    def open(self, path: str, mode: OpenMode, *, follow: bool = False) -> int:
        handle = super().open(path, mode, follow=follow)
        self.lock_handles.discard(handle)
        if mode == "lock":
            self.lock_handles.add(handle)
        return handle

    def pwrite(self, handle: int, offset: int, data: Any) -> None:
        # Beside the container a lock file says once what it is for.
        if handle not in self.lock_handles:
            self.written += memoryview(data).nbytes
        super().pwrite(handle, offset, data)


@pytest.fixture(params=["model.cnr", "model"])
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return tmp_path / request.param


def history(path: Path, fs: PosixFs | None = None) -> Iterator[int]:
    """Commits a baseline, deltas of several kinds, and a version that changes nothing; yields each version."""
    weight = WEIGHT.copy()
    weight[5, 3], weight[800] = np.inf, np.nan
    visitor = cnrfmt.TableData(WEIGHT[:700, :6], columns={"momentum": WEIGHT[:700, 6:12]}, keys=KEYS_OF_VISITORS)
    yield cnrfmt.save(
        path,
        {"user": cnrfmt.TableData(weight, columns={"accumulator": ACCUMULATOR}), "visitor": visitor},
        quantize={"user": cnrfmt.Quantize(bits=4)},
        dense={"mlp": np.ones((7, 5)), "reader": {"position": 17}, "empty": b""},
        step=0,
        fs=fs,
    )
    ids = RANKS[::7] - 1
    yield cnrfmt.append(path, {"user": cnrfmt.Rows(ids, WEIGHT[ids], {"accumulator": ACCUMULATOR[ids]})}, fs=fs)
    yield cnrfmt.append(path, {"visitor": cnrfmt.Deleted(KEYS_OF_VISITORS[::3])}, fs=fs)
    yield cnrfmt.append(path, {}, metadata={"note": "nothing changed"}, fs=fs)
    yield cnrfmt.append(path, {"user": cnrfmt.Dropped()}, dense={"mlp": np.zeros(3)}, fs=fs)


def pages(length: int) -> int:
    return -(-length // PAGE) * PAGE


def test_the_parts_of_a_segment_sum_to_its_length(path: Path) -> None:
    list(history(path))
    with cnrfmt.open(path) as ck:
        assert len(ck.view.segments) == 4
        for segment in ck.view.segments.values():
            found = sizes_of_segment(segment)
            assert tuple(found) == KEYS
            assert sum(found.values()) == segment.entry.length
            assert min(found.values()) >= 0


def test_each_part_is_as_long_as_its_rows(path: Path) -> None:
    next(history(path))
    with cnrfmt.open(path) as ck:
        (segment,) = ck.view.segments.values()
        found = sizes_of_segment(segment)
    # 4-bit rows take half a byte per element and 4 bytes for scale and bias.
    assert found["weights"] == ROWS * (DIM // 2 + 4) + 700 * 6 * 4
    # One value per row becomes a code of 12 bits.
    assert found["optimizer"] == ROWS * 3 // 2 + 700 * 6 * 4
    assert found["exceptions"] == 2 * DIM * 4
    assert found["dense"] == 7 * 5 * 8 + len(b'{"position":17}')
    index_codes = {r.code for table in segment.toc.tables for r in table.row_sets}
    assert index_codes > {"range"}
    assert 0 < found["ids"] < 700 * 8 + 2 * 8 + 1


def test_shared_codebooks_are_part_of_what_they_are_for(path: Path) -> None:
    table = cnrfmt.TableData(WEIGHT, columns={"momentum": WEIGHT})
    choice = cnrfmt.Quantize(bits=4, method="kmeans", block=16)
    cnrfmt.save(path, {"user": table}, quantize={("*", "*"): choice})
    with cnrfmt.open(path) as ck:
        (segment,) = ck.view.segments.values()
        found = sizes_of_segment(segment)
    # Half a byte per element, and 16 half-precision numbers for each 16 rows.
    assert found["weights"] == found["optimizer"] == ROWS * DIM // 2 + -(-ROWS // 16) * 32
    assert sum(found.values()) == segment.entry.length


def test_commit_sizes_are_what_the_system_was_asked_to_write(path: Path) -> None:
    fs = CountingFs()
    written_before = 0
    for version in history(path, fs):
        found = commit_sizes(path, version)
        asked = fs.written - written_before
        written_before = fs.written
        with cnrfmt.open(path, version=version) as ck:
            lengths = [e.length for e in ck.manifest.chain if e.to_state == ck.manifest.state]
            spans = [*(lengths if version != 3 else ()), ck.manifest.length]
        # The space between spans is never written: a file's length is set beyond it.
        between = sum(pages(n) - n for n in spans) if path.suffix else 0
        assert sum(found.values()) == asked + between, version


def test_a_single_files_growth_is_what_its_commits_wrote(tmp_path: Path) -> None:
    path = tmp_path / "model.cnr"
    size = 0
    for version in history(path):
        wrote = sum(commit_sizes(path, version).values())
        slots = 3 * PAGE if version else 0
        assert path.stat().st_size - size == wrote - slots
        size = path.stat().st_size


def test_the_chain_and_earlier_manifests_are_all_there_is(path: Path) -> None:
    list(history(path))
    with cnrfmt.open(path) as ck:
        chain = sum(sizes(ck).chain.values())
        earlier = [v.length for v in ck.manifest.versions]
    if path.suffix:
        assert path.stat().st_size == chain + sum(map(pages, earlier))
    else:
        files = [f for folder in ("manifests", "segments") for f in (path / folder).iterdir()]
        assert sum(f.stat().st_size for f in files) == chain + sum(earlier)


def test_a_version_that_changes_nothing_writes_metadata_alone(path: Path) -> None:
    list(history(path))
    found = commit_sizes(path, 3)
    assert {key for key, size in found.items() if size} <= {"metadata", "padding"}
    assert commit_sizes(path, 4)["dense"] == 24


def test_the_newest_version_is_meant_unless_told(path: Path) -> None:
    list(history(path))
    assert commit_sizes(path) == commit_sizes(path, 4) != commit_sizes(path, 1)


def test_plain_bytes_are_those_of_the_live_tables(path: Path) -> None:
    for version, expected in ((0, ROWS * (DIM + 1) * 4 + 700 * (12 * 4 + 8)), (4, (700 - 234) * (12 * 4 + 8))):
        if version == 0:
            list(history(path))
        with cnrfmt.open(path, version=version) as ck:
            assert plain_bytes(ck) == expected


def test_a_damaged_segment_header_is_refused(path: Path) -> None:
    next(history(path))
    with cnrfmt.open(path) as ck:
        (entry,) = ck.manifest.chain
    file = path if path.suffix else path / "segments" / f"{entry.segment.hex()}.cnrs"
    with file.open("r+b") as f:
        f.seek((entry.offset or 0) + 60)
        f.write(b"\xff\x00\xff")
    with pytest.raises(cnrfmt.DamagedError, match="piece-digest"):
        commit_sizes(path)
