"""Damaged chains of integer parts: a row is lost with any of the parts that it is the sum of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from tests.attacks.support import lay
from tests.integer_chains import Chain
from tests.salvage.conftest import Original
from tests.salvage.support import FS, KINDS, check_result, copy, flip, listed, regions, said
from tests.salvage.test_random import run_case

SEED = 4
CASES = 60
VERSIONS = 6


def built(path: Path, seed: int) -> Original:
    """A chain in small pieces, so that damage to one costs some of the rows."""
    chain = Chain(seed, rows=300, folder=path.suffix != ".cnr", piece_size=512)
    for _ in range(VERSIONS - 1):
        chain.step()
    assert min(chain.residuals - chain.log_residuals, chain.log_residuals) > 100
    lay(path.with_suffix(""), chain.store)
    versions = range(VERSIONS)
    dense: dict[int, dict[str, Any]] = {v: {} for v in versions}
    return Original(path, {v: said(path, v) for v in versions}, dense, regions(path))


@pytest.mark.parametrize("kind", KINDS)
def test_random_damage(tmp_path: Path, kind: str) -> None:
    (tmp_path / "original").mkdir()
    (tmp_path / "try").mkdir()
    original = built(tmp_path / "original" / kind, SEED)
    outcomes = [run_case(original, tmp_path / "try", SEED, case) for case in range(CASES)]
    assert {"whole", "losses"} <= set(outcomes)
    assert outcomes.count("losses") > CASES // 5


@pytest.mark.parametrize("column", ["weight", "squares"])
def test_rows_are_lost_with_their_base(tmp_path: Path, column: str) -> None:
    (tmp_path / "original").mkdir()
    original = built(tmp_path / "original" / "model", SEED)
    path, lost = tmp_path / "model", 0
    for region in original.regions:
        if not region.what.startswith(f"part of column {column!r} of table 'dense'"):
            continue
        copy(original.path, path)
        flip(path, region.file, region.offset + region.length // 2)
        report = cnrfmt.salvage(path, tmp_path / "new.cnr", threads=1, fs=FS)
        check_result(report, tmp_path / "new.cnr", original.tables[report.version])
        # No version that stands on the damaged piece says anything of the rows, or all of them would be whole.
        with cnrfmt.open(path, verify="none") as ck:
            wrong = _changed(ck, original, column)
        rows = {row for a, b in listed(report, "dense", column) for row in range(a, b + 1)}
        assert wrong <= rows
        lost += len(rows)
        (tmp_path / "new.cnr").unlink()
    assert lost


def _changed(ck: cnrfmt.Checkpoint, original: Original, column: str) -> set[int]:
    """The rows that read otherwise than they did, where nothing is verified."""
    cells = original.tables[ck.version]["dense"].cells[column]
    found = set()
    for row in range(len(ck["dense"])):
        try:
            same = ck["dense"].read(row, column=column).tobytes() == cells[row]
        except cnrfmt.DamagedError:
            same = False
        if not same:
            found.add(row)
    return found


def test_what_is_whole_comes_out_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "original").mkdir()
    original = built(tmp_path / "original" / "model.cnr", SEED + 1)
    report = cnrfmt.salvage(original.path, tmp_path / "new.cnr", threads=1, fs=FS)
    assert report.complete
    check_result(report, tmp_path / "new.cnr", original.tables[VERSIONS - 1])
    assert cnrfmt.verify(tmp_path / "new.cnr").findings == []
    with cnrfmt.open(tmp_path / "new.cnr") as ck:
        assert np.isfinite(ck["dense"].read()).any()
