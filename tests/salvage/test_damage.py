"""Every kind of damage: each row is the original's or listed as lost, and no more is lost than must be."""

from __future__ import annotations

import errno
import random
import shutil
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import cnrfmt
from cnrfmt import DamagedError, Salvage, StorageError
from cnrfmt.commits import _INLINE_TOC
from cnrfmt.format.limits import PIECE
from tests.salvage.conftest import Original
from tests.salvage.support import (
    FS,
    LONE,
    Region,
    among,
    check_dense,
    check_result,
    contents,
    copy,
    expected_losses,
    flip,
    listed,
)

CLASSES = (
    "file header",
    "slot",
    "newest manifest",
    "manifest",
    "header of",
    "table of contents",
    "trailer",
    "digests",
    "row index",
    "part",
    "codebooks",
    "exceptions",
    "dense entry",
)
"""How the regions of a container are called: each is damaged in turn."""


class Bench:
    """A place to damage copies of a container, and to salvage them."""

    def __init__(self, original: Original, folder: Path) -> None:
        self.original, self.folder = original, folder
        self.copy = folder / original.path.name
        self.target = folder / "new.cnr"

    def salvage(self, damage: Callable[[Path], object], say: str, **options: object) -> Salvage | None:
        """The report on a damaged copy, everything in it checked; None if nothing was sound."""
        copy(self.original.path, self.copy)
        damage(self.copy)
        before = contents(self.copy) if self.copy.exists() else {}
        if self.target.exists():
            self.target.unlink()
        report, rule = None, "nothing-sound"
        try:
            report = cnrfmt.salvage(self.copy, self.target, threads=1, fs=FS, **options)  # type: ignore[arg-type]
        except DamagedError as error:
            rule = error.rule
        try:
            assert rule == "nothing-sound"
            assert contents(self.copy) == before, "the source was changed"
            assert sorted(p.name for p in self.folder.iterdir()) == sorted(
                {self.copy.name, *([self.target.name] if report else [])}
            )
            if report is not None:
                check_result(report, self.target, self.original.tables[report.version])
                check_dense(report, self.target, self.original.dense[report.version])
                assert report.exit_code == (0 if report.complete else 1)
        except AssertionError as error:
            raise AssertionError(f"{say}: {error}") from error
        return report


@pytest.fixture
def bench(original: Original, tmp_path: Path) -> Bench:
    return Bench(original, tmp_path)


@pytest.mark.parametrize("what", CLASSES)
def test_a_changed_byte(what: str, original: Original, bench: Bench) -> None:
    hit = [r for r in original.regions if r.what.startswith(what)]
    if original.path.is_dir() and what in ("file header", "slot"):
        assert not hit
        return
    assert hit
    for region in hit:
        for offset in sorted({region.offset, region.offset + region.length - 1}):
            report = bench.salvage(partial(flip, file=region.file, offset=offset), f"{region}, byte {offset}")
            _check_class(what, region, report, original)


def _check_class(what: str, region: Region, report: Salvage | None, original: Original) -> None:
    """What this kind of damage may cost."""
    if what == "table of contents" and (original.path.is_file() or region.length > _INLINE_TOC):
        # It stands nowhere else, and may have said anything of any table.
        assert report is None or not report.complete
        return
    assert report is not None
    if what == "newest manifest":
        assert (report.version, report.complete, report.losses) == (4, False, [])
        assert report.newer
        assert report.left_out == [5]
        return
    assert report.version == 5
    assert not report.newer
    if what in ("file header", "slot", "manifest", "trailer", "digests", "table of contents"):
        # These can be proven otherwise, or aren't needed.
        assert report.complete, region
    for name in {t.name for t in report.tables} - {loss.table for loss in report.losses}:
        assert next(t for t in report.tables if t.name == name).is_whole


def _pieces(original: Original) -> list[tuple[str, int, int, Region]]:
    """The pieces that hold rows and no row index: segment, number, an offset in the file, and whose it is."""
    found = []
    with cnrfmt.open(original.path) as ck:
        for segment in ck.view.segments.values():
            entry = segment.entry
            file = "" if original.path.is_file() else f"segments/{entry.segment.hex()}.cnrs"
            indexes = {r.section for table in segment.toc.tables for r in table.row_sets}
            spans = [segment.toc.sections[section] for section in indexes if section is not None]
            for piece in range(segment.trailer.pieces):
                start = piece * PIECE
                if not any(at < start + PIECE and start < at + length for at, length in spans):
                    offset = (entry.offset or 0) + start
                    found.append((entry.segment.hex(), piece, offset, Region("piece", file, offset, PIECE)))
    return found


def test_no_row_is_lost_but_those_with_a_byte_in_a_damaged_piece(original: Original, bench: Bench) -> None:
    every = _pieces(original)
    seed = 3
    chance = random.Random(seed)
    sets = [[p] for p in every] + [chance.sample(every, 4) for _ in range(8)]
    for hit in sets:

        def damage(path: Path, hit: list[tuple[str, int, int, Region]] = hit) -> None:
            for _, _, offset, region in hit:
                flip(path, region.file, offset + 11)

        report = bench.salvage(damage, f"seed {seed}, pieces {hit}")
        assert report is not None
        expected = expected_losses(original.path, {(segment, piece) for segment, piece, _, _ in hit})
        for (name, column), rows in expected.items():
            said = original.tables[5][name]
            found = {r for r in said.ids if among(listed(report, name, column), r)}
            gone = {r for r in said.ids if among(listed(report, name, None), r)}
            if not said.keyed:
                assert (found, gone) == ({r for r in rows if r in said.cells[column]}, set()), hit
            elif column == "weight":
                assert (found, gone) == (set(), rows), hit
            else:
                assert found == rows - gone, hit
        assert all(loss.exact for loss in report.losses)


def _keys(code: str) -> np.ndarray:
    chance = np.random.default_rng(5)
    if code == "packed":
        return np.sort(chance.choice(1 << 40, 60_000, replace=False))
    if code == "raw":
        # A gap of 64 bits leaves nothing to pack.
        return np.concatenate([np.arange(-(2**63), -(2**63) + 200, 2), np.arange(2**62, 2**62 + 64, 2)])
    if code == "bitmap":
        return np.sort(chance.choice(200_000, 90_000, replace=False))
    return np.concatenate([np.arange(k * 10**9, k * 10**9 + 300) for k in range(1, 900)])


@pytest.mark.parametrize("code", ["packed", "raw", "bitmap", "runs"])
def test_a_damaged_row_index_costs_the_keys_of_a_piece_and_no_more(code: str, tmp_path: Path) -> None:
    path, target = tmp_path / "keys.cnr", tmp_path / "new.cnr"
    keys = _keys(code)
    values = np.stack([keys, ~keys], axis=1)
    # The filler makes even a small index cross into another piece.
    tables = {"filler": np.ones((434, 2), np.float32), "t": cnrfmt.TableData(values, keys=keys)}
    cnrfmt.save(path, tables, fs=FS)
    with cnrfmt.open(path) as ck:
        (entry,) = ck.manifest.chain
        segment = ck.view.segments[entry.segment]
        row_set = segment.toc.tables[1].row_sets[0]
        assert row_set.code == code
        assert row_set.section is not None
        offset, length = segment.toc.sections[row_set.section]
        at = offset // PIECE * PIECE + PIECE - 1 if length < 2 * PIECE else offset + length // 2
    flip(path, "", (entry.offset or 0) + at)
    report = cnrfmt.salvage(path, target, fs=FS)
    with cnrfmt.open(target) as ck:
        found = ck["t"].keys
        assert found is not None
        assert (ck["t"].read() == np.stack([found, ~found], axis=1)).all()
    assert set(found.tolist()) <= set(keys.tolist())
    gone = np.setdiff1d(keys, found)
    assert 0 < len(gone) < 0.75 * len(keys)
    (doubt,) = [x for x in report.losses if not x.exact]
    sure = {k for x in report.losses if x.exact and x.table == "t" for a, b in x.rows.tolist() for k in range(a, b + 1)}
    # Just so many keys are missing as the report says: known ones, and those between known ones.
    assert doubt.count == len(set(gone.tolist()) - sure)
    assert all(key in sure or among(doubt.rows.tolist(), key) for key in gone.tolist())


def test_truncation_anywhere(original: Original, bench: Bench) -> None:
    files = [p for p in (original.path.rglob("*") if original.path.is_dir() else [original.path]) if p.is_file()]
    chance = random.Random(8)
    for file in files:
        size = file.stat().st_size
        lengths = {0, size - 1, size - 129, *chance.sample(range(size), 2)}
        if original.path.is_file():
            lengths |= {1, 127, 128, 4096, 12287, 12288, *chance.sample(range(size), 12)}
        for length in sorted(n for n in lengths if 0 <= n < size):

            def cut(path: Path, file: Path = file, length: int = length) -> None:
                inner = path if original.path.is_file() else path / file.relative_to(original.path)
                with inner.open("r+b") as f:
                    f.truncate(length)

            report = bench.salvage(cut, f"{file} cut to {length}")
            if original.path.is_file() and length <= 12288:
                assert report is None


def unlink(path: Path, file: Path) -> None:
    (path / file).unlink()


def remove_folder(path: Path, folder: str) -> None:
    shutil.rmtree(path / folder)


def test_a_missing_file(original: Original, bench: Bench) -> None:
    if original.path.is_file():
        with pytest.raises(StorageError) as refused:
            bench.salvage(lambda path: path.unlink(), "the file is missing")
        assert refused.value.errno == errno.ENOENT
        return
    files = sorted(p.relative_to(original.path) for p in original.path.rglob("*") if p.is_file())
    for file in files:
        report = bench.salvage(partial(unlink, file=file), f"{file} is missing")
        if file.parts[0] == "manifests":
            # That the newest was taken away, no container can tell.
            assert report is not None
            assert not report.losses
            assert report.version == (4 if file.name.endswith("5.cnrm") else 5)
        else:
            assert report is None or not report.complete
    for folder in ("manifests", "segments"):
        assert bench.salvage(partial(remove_folder, folder=folder), f"{folder} is missing") is None


def test_a_segment_in_the_place_of_another(original: Original, bench: Bench) -> None:
    """Swapped spans of a single file, and files of a directory under each other's names."""
    with cnrfmt.open(original.path) as ck:
        entries = ck.manifest.chain
    for a, b in pairwise(entries):

        def swap(path: Path, a: object = a, b: object = b) -> None:
            x, y = a, b
            if path.is_dir():
                names = [path / "segments" / f"{e.segment.hex()}.cnrs" for e in (x, y)]  # type: ignore[attr-defined]
                first = names[0].read_bytes()
                names[0].write_bytes(names[1].read_bytes())
                names[1].write_bytes(first)
            else:
                data = bytearray(path.read_bytes())
                size = min(x.length, y.length)  # type: ignore[attr-defined]
                first, second = (slice(e.offset, e.offset + size) for e in (x, y))  # type: ignore[attr-defined]
                data[first], data[second] = data[second], data[first]
                path.write_bytes(data)

        report = bench.salvage(swap, f"{a} and {b} swapped")
        assert report is None or not report.complete


def test_the_lone_row_of_a_vast_table_survives(original: Original, bench: Bench) -> None:
    report = bench.salvage(lambda path: None, "undamaged")
    assert report is not None
    assert report.complete
    assert not report.notes
    with cnrfmt.open(bench.target) as ck:
        assert ck["count"][LONE].tolist() == [99, 99, 99]
    # What was stored compactly still is.
    size = sum(len(data) for data in contents(original.path).values())
    assert bench.target.stat().st_size < 1.2 * size
