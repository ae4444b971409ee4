"""What a dead writer left pending becomes durable before the next writer builds on it, whatever the power does then."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt import Rows
from cnrfmt.storage.fs import Fs
from cnrfmt.testing import Killed, Process
from tools.crash.recording import FOLDER, RecordingFs

SEEDS = range(40)


def rows(value: int) -> dict[str, Any]:
    return {"table": Rows(np.array([1]), np.full((1, 2), value, np.float32))}


def save(path: str, fs: Fs) -> int:
    return cnrfmt.save(path, {"table": np.zeros((3, 2), np.float32)}, threads=1, fs=fs)


class DiesBeforeSync(Process):
    """Ends before the first sync of this folder once the version is there for a reader."""

    def __init__(self, fs: Fs, folder: str) -> None:
        super().__init__(fs)
        self._folder, self._visible = folder, False

    def call(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        self._visible |= name == "point" and args[0] in ("file-renamed", "manifest-published")
        if self._visible and name == "sync_directory" and args[0] == self._folder:
            self.killed = True
        return super().call(name, args, options)


@pytest.mark.parametrize("first", [True, False], ids=["a new file", "a file in an old one's place"])
def test_appended_to_a_file_whose_name_was_pending(first: bool) -> None:
    """What is acknowledged on top of a rename that nobody synced stays when the power fails."""
    for seed in SEEDS:
        fs, path = RecordingFs(), f"{FOLDER}/model.cnr"
        if not first:
            assert save(path, fs) == 0
        process = DiesBeforeSync(fs, FOLDER)
        with pytest.raises(Killed):
            save(path, process.fs)
        process.end()
        acknowledged = cnrfmt.append(path, rows(seed + 1), threads=1, fs=fs)
        with cnrfmt.open(path, threads=1, fs=fs.crash(Random(seed))) as ck:
            assert ck.version == acknowledged == (1 if first else 2), f"lost, seed {seed}"
            assert ck["table"].read(1).tolist() == [seed + 1] * 2


def test_two_writers_of_a_directory_died_behind_each_other() -> None:
    """The second one's manifest doesn't outlive the first one's, which it retains."""
    kept = set()
    for seed in SEEDS:
        fs, path = RecordingFs(), f"{FOLDER}/run"
        assert save(path, fs) == 0
        for value in (1, 2):
            process = DiesBeforeSync(fs, f"{path}/manifests")
            with pytest.raises(Killed):
                cnrfmt.append(path, rows(value), threads=1, fs=process.fs)
            process.end()
        report = cnrfmt.verify(path, threads=1, fs=fs.crash(Random(seed)))
        assert report.verdict == "sound", f"seed {seed}: {report.findings}"
        kept.add(tuple(report.versions))
    # Whether the second one is kept is up to the disk.
    assert kept == {(0, 1), (0, 1, 2)}
