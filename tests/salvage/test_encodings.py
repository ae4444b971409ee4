"""A salvage of rows under every encoding: what stands in sound pieces comes out exactly, the rest is listed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt import Quantize, Rows, TableData
from cnrfmt.format.encoding import CastLayout, CodebookLayout, Layout, LogLayout, RawLayout
from cnrfmt.format.limits import PIECE
from tests.salvage.support import F32, FS, check_result, expected_losses, flip, listed, said

CHOICES: dict[str, Quantize] = {
    "tail": Quantize(4, one_valued="log8"),
    "head": Quantize(2, layout="head", method="symmetric", one_valued="log16"),
    "packed": Quantize(3, method="adaptive", num_bins=5, max_error=0.2, one_valued="bfloat16"),
    "groups": Quantize(7, group=8, params="bfloat16"),
    "biasless": Quantize(6, method="symmetric", one_valued="raw"),
    "codebooks": Quantize(4, method="kmeans", max_error=0.05),
    "shared": Quantize(2, method="kmeans", params="float32", block=3),
}
COUNT = 999


def table(seed: int = 0, count: int = COUNT) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    values = random.normal(size=(count, 13)).astype(F32)
    sums = (1 + np.arange(count) % 97 / 7).astype(F32)
    values[5::400], sums[6::300] = np.nan, -1
    return values, sums


def save(path: Path, quantize: Quantize, keyed: bool) -> None:
    values, sums = table()
    keys = 3 * np.arange(COUNT, dtype=np.int64) - 50 if keyed else None
    cnrfmt.save(path, {"t": TableData(values, columns={"sum": sums}, keys=keys)}, quantize=quantize, fs=FS)
    ids = np.arange(40, 940, 13)
    values, sums = table(1, len(ids))
    cnrfmt.append(path, {"t": Rows(ids if keys is None else keys[ids], values, columns={"sum": sums * 8})}, fs=FS)


def pieces_of(path: Path) -> list[tuple[str, int, int]]:
    """Segment, number and place in the file of each piece that holds rows and no row index."""
    found = []
    with cnrfmt.open(path) as ck:
        for segment in ck.view.segments.values():
            listed = {r.section for entry in segment.toc.tables for r in entry.row_sets} - {None}
            spans = [segment.toc.sections[number] for number in listed if number is not None]
            for piece in range(segment.trailer.pieces):
                start, stop = piece * PIECE, (piece + 1) * PIECE
                if not any(at < stop and start < at + length for at, length in spans):
                    found.append((segment.entry.segment.hex(), piece, (segment.entry.offset or 0) + start))
    return found


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("name", CHOICES)
def test_rows_of_sound_pieces_are_exact(
    name: str, keyed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Rows go over in many chunks.
    monkeypatch.setattr("cnrfmt.segment_writer._CHUNK", 4000)
    path, target = tmp_path / "model.cnr", tmp_path / "new.cnr"
    save(path, CHOICES[name], keyed)
    want, every = said(path), pieces_of(path)
    data = path.read_bytes()
    for hit in (every[:0], every[1:2], every[3:4], every[::2], every[-1:]):
        path.write_bytes(data)
        expected = expected_losses(path, {(segment, piece) for segment, piece, _ in hit})
        for _, _, at in hit:
            flip(path, "", at + 11)
        report = cnrfmt.salvage(path, target, threads=1, fs=FS)
        check_result(report, target, want)
        for column in ("weight", "sum"):
            gone = {row for column in (None, column) for a, b in listed(report, "t", column) for row in range(a, b + 1)}
            lost = expected["t", "weight"] | expected["t", column] if keyed else expected["t", column]
            assert gone & set(want["t"].ids) == lost
        assert report.complete == (not hit)
        assert cnrfmt.verify(target).sound
        target.unlink()


def layouts(path: Path, column: str) -> list[Layout]:
    with cnrfmt.open(path) as ck:
        entries = [segment.toc.tables[0] for segment in ck.view.segments.values()]
        return [part.layout for entry in entries for part in entry.parts if part.column == column]


@pytest.mark.parametrize("name", CHOICES)
def test_encodings_stay_where_rows_stand_alone(name: str, tmp_path: Path) -> None:
    path, target = tmp_path / "model.cnr", tmp_path / "new.cnr"
    save(path, CHOICES[name], keyed=False)
    cnrfmt.salvage(path, target, fs=FS)
    before, after = layouts(path, "weight"), layouts(target, "weight")
    raw = RawLayout("float32")
    # A codebook's rows are never all there again; all others keep theirs, and what they don't hold beside them.
    assert after == ([raw] if name == "shared" else [before[0], raw])
    before, after = layouts(path, "sum"), layouts(target, "sum")
    # Logarithmic codes of a delta are placed elsewhere than those of the baseline, which are the more.
    assert after[0] == before[0]
    assert after[1:] == ([raw] if isinstance(before[0], LogLayout) else [])
    with cnrfmt.open(path) as old, cnrfmt.open(target) as new:
        parts = [next(iter(ck.view.segments.values())).toc.tables[0].parts for ck in (old, new)]
        schemes = [{p.column: p.scheme for p in some if p.exceptions_of is None} for some in parts]
        if name != "shared":
            assert schemes[0] == schemes[1]
        for part in parts[1]:
            assert 0 <= part.errors.mean <= part.errors.worst
            is_exact = isinstance(part.layout, RawLayout)
            assert (part.errors.worst == 0) == is_exact


@pytest.mark.parametrize("quantize", [Quantize(one_valued="log12"), Quantize(2, method="kmeans", block=4)])
def test_what_is_left_over_belongs_to_no_row(quantize: Quantize, tmp_path: Path) -> None:
    """Half a byte behind an odd number of codes, and the places of a last block that are no rows."""
    path = tmp_path / "model.cnr"
    values, sums = table(0, 40)
    cnrfmt.save(path, {"t": TableData(values, columns={"sum": sums})}, quantize=quantize, fs=FS)
    ids = np.arange(10, 19)
    cnrfmt.append(path, {"t": Rows(ids, values[20:29], columns={"sum": sums[20:29]})}, fs=FS)
    with cnrfmt.open(path) as ck:
        newest = list(ck.view.segments.values())[-1]
        assert newest.trailer.pieces == 1
        flip(path, "", (newest.entry.offset or 0) + 200)
    report = cnrfmt.salvage(path, tmp_path / "new.cnr", fs=FS)
    for column in ("weight", "sum"):
        assert listed(report, "t", column) == [(10, 18)]


def test_a_lost_codebook_costs_the_rows_of_its_block(tmp_path: Path) -> None:
    path, target = tmp_path / "model.cnr", tmp_path / "new.cnr"
    values, _ = table(0, 1999)
    values = np.nan_to_num(values[:, :8], nan=0.5)
    cnrfmt.save(path, {"t": values}, quantize=Quantize(2, method="kmeans", params="float32", block=2), fs=FS)
    want = said(path)
    with cnrfmt.open(path) as ck:
        (segment,) = ck.view.segments.values()
        (part,) = segment.toc.tables[0].parts
        assert isinstance(part.layout, CodebookLayout)
        assert part.codebooks is not None
        offset, length = segment.toc.sections[part.codebooks]
        start = (segment.entry.offset or 0) + offset // PIECE * PIECE
        assert length > 3 * PIECE
    flip(path, "", start + 2 * PIECE + 1000)
    report = cnrfmt.salvage(path, target, fs=FS)
    check_result(report, target, want)
    first, last = (start + k * PIECE - (segment.entry.offset or 0) - offset for k in (2, 3))
    # Sixteen bytes a codebook.
    assert listed(report, "t", "weight") == [(first // 16 * 2, (last - 1) // 16 * 2 + 1)]


def test_the_layouts_of_one_valued_columns(tmp_path: Path) -> None:
    """That the containers above are what they are meant to be."""
    kinds = set()
    for name, quantize in CHOICES.items():
        path = tmp_path / f"{name}.cnr"
        save(path, quantize, keyed=False)
        layout = layouts(path, "sum")[0]
        kinds.add((type(layout), getattr(layout, "bits", 0)))
    assert kinds == {(LogLayout, 8), (LogLayout, 12), (LogLayout, 16), (CastLayout, 0), (RawLayout, 0)}
