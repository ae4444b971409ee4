"""Those who read beside a run that keeps nothing of versions which it gave up."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import cnrfmt
from cnrfmt.checkpointing.lineage import open_version
from cnrfmt.memory import METADATA
from cnrfmt.storage.fs import OpenMode
from tests.storage.support import QuickFs

ROWS = 50


def write(path: Path, step: int) -> None:
    """A baseline in the place of all that is there."""
    cnrfmt.save(path, {"t": np.full((ROWS, 4), step, np.float32)}, step=step, fs=QuickFs())
    cnrfmt.collect(path, keep=1, grace=0, fs=QuickFs())


class Overtaken(QuickFs):
    """Whoever is about to open a segment to read it is overtaken by the next checkpoint, so many times."""

    def __init__(self, path: Path, times: int) -> None:
        super().__init__()
        self.path, self.times, self.step = path, times, 0

    def open(self, path: str, mode: OpenMode, *, follow: bool = False) -> int:
        if path.endswith(".cnrs") and self.times:
            self.times -= 1
            self.step += 1
            write(self.path, self.step)
        return super().open(path, mode, follow=follow)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    write(path, 0)
    return path


@pytest.mark.parametrize("times", [1, 4])
def test_whoever_opens_the_newest_version_gets_the_newest(run: Path, times: int) -> None:
    with cnrfmt.open(run, fs=Overtaken(run, times)) as ck:
        assert ck.step == times
        assert np.array_equal(ck["t"].read(), np.full((ROWS, 4), times))
    fs = Overtaken(run, times)
    assert cnrfmt.load(run, fs=fs)["t"][0, 0] == times == fs.step


def test_a_refresh_goes_on_to_the_newest(run: Path) -> None:
    fs = Overtaken(run, 0)
    with cnrfmt.open(run, fs=fs) as ck:
        write(run, 0)
        fs.times = 3
        moved = ck.refresh()
        assert moved is not None
        assert (ck.step, moved.version) == (3, ck.version)
        assert ck["t"].read()[0, 0] == 3


def test_a_restore_of_the_newest_version(run: Path) -> None:
    with open_version(str(run), None, None, None, True, Overtaken(run, 2)) as (ck, head):
        assert ck.step == 2
        assert head is ck.manifest


def test_a_version_that_was_asked_for_has_expired(run: Path) -> None:
    with cnrfmt.open(run) as ck:
        version = ck.version
    fs = Overtaken(run, 9)
    with pytest.raises(cnrfmt.VersionExpiredError):
        cnrfmt.open(run, version=version, fs=fs)
    assert fs.step == 1


def test_a_head_that_always_moves_is_given_up(run: Path) -> None:
    fs = Overtaken(run, 99)
    with pytest.raises(cnrfmt.VersionExpiredError):
        cnrfmt.open(run, fs=fs)
    assert fs.step == 5


def test_memory_counts_for_the_version_that_was_opened_alone(run: Path) -> None:
    length = max(file.stat().st_size for file in run.glob("manifests/*"))
    least = next(n for n in range(METADATA * length, 99 * METADATA * length, METADATA) if _opens(run, n))
    # Manifests are about as long as each other; five of them are more than two.
    assert _opens(run, 2 * least, times=4)


def _opens(path: Path, limit: int, times: int = 0) -> bool:
    with suppress(cnrfmt.TooLargeError), cnrfmt.open(path, max_bytes=limit, fs=Overtaken(path, times)):
        return True
    return False
