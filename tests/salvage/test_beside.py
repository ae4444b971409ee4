"""Salvaging a directory in which a run is at work that removes at once what it gives up."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from tests.storage.support import QuickFs

ROWS = 50


def write(path: Path, step: int, keep: int) -> None:
    """A baseline, and nothing of versions that it gives up."""
    cnrfmt.save(path, {"t": np.full((ROWS, 4), step, np.float32)}, step=step, fs=QuickFs())
    cnrfmt.collect(path, keep=keep, grace=0, fs=QuickFs())


class Overtaken(QuickFs):
    """Whoever looks for a segment is overtaken by the next checkpoint, so many times."""

    def __init__(self, path: Path, times: int, keep: int) -> None:
        super().__init__()
        self.path, self.times, self.keep, self.step = path, times, keep, 9

    def stat(self, path: str, *, follow: bool = False) -> Any:
        if path.endswith(".cnrs") and self.times:
            self.times -= 1
            self.step += 1
            write(self.path, self.step, self.keep)
        return super().stat(path, follow=follow)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    for step in (8, 9):
        write(path, step, 2)
    return path


def test_versions_that_went_are_no_damage(run: Path) -> None:
    with cnrfmt.open(run) as ck:
        before = ck.versions
    report = cnrfmt.salvage(run, None, dry_run=True, fs=Overtaken(run, 1, 1))
    assert (report.step, report.exit_code, report.losses, report.newer) == (10, 0, [], [])
    assert {v.state for v in report.versions} == {"whole"}
    assert not set(before) & {v.version for v in report.versions}
    went = ", ".join(map(str, before))
    assert any(f"versions {went} went while this looked" in note for note in report.notes)


def test_what_stays_is_salvaged(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "new.cnr"
    report = cnrfmt.salvage(run, target, fs=Overtaken(run, 1, 2))
    assert (report.step, report.exit_code) == (10, 0)
    assert any(" went while this looked" in note for note in report.notes)
    assert np.array_equal(cnrfmt.load(target)["t"], np.full((ROWS, 4), 10))


def test_a_run_that_is_always_faster(run: Path) -> None:
    with pytest.raises(cnrfmt.VersionExpiredError, match="went while this looked"):
        cnrfmt.salvage(run, None, dry_run=True, fs=Overtaken(run, 10**6, 1))


def test_a_version_that_was_asked_for_and_went(run: Path) -> None:
    with cnrfmt.open(run) as ck:
        version = ck.versions[0]
    with pytest.raises(cnrfmt.VersionNotFoundError):
        cnrfmt.salvage(run, None, version=version, dry_run=True, fs=Overtaken(run, 1, 1))


def test_damage_stays_damage(run: Path, tmp_path: Path) -> None:
    """A segment that is gone though its manifest is there; and, in another version, one that went with its manifest."""
    with cnrfmt.open(run) as ck:
        lost = ck.manifest.chain[0].segment.hex()
    (run / "segments" / f"{lost}.cnrs").unlink()
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    report = cnrfmt.salvage(copy, None, version=ck.versions[0], dry_run=True, fs=QuickFs())
    assert not any("went while" in note for note in report.notes)
    assert [v.state for v in report.versions] == ["whole", "gaps"]
