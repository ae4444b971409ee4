"""`plot`: the numbers against the container, and the picture."""

from __future__ import annotations

import builtins
import shutil
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest

import cnrfmt
from cnrfmt.checkpointing.costs import plotting
from cnrfmt.checkpointing.costs.cost_history import cost_history
from cnrfmt.run_record import CheckpointRecord
from tests.cli.runs import train
from tests.cli.support import Command

Words = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, words: Words) -> Path:
    """A directory with a run whose chain may have 4 segments, so that it was merged again and again."""
    path = tmp_path_factory.mktemp("plot") / "run7"
    train(path, words, policy="consecutive", checkpoints=9, bits=4, most_segments=4)
    return path


def test_the_numbers_are_those_of_the_container(run: Path, cnr: Command) -> None:
    facts = cnr("plot", run, "--json").json
    checkpoints = facts["checkpoints"]
    assert facts["policy"] == "consecutive"
    assert facts["full_bytes"] == 300 * (64 + 1) * 4 + 9 * 4
    assert {c["kind"] for c in checkpoints} == {"baseline", "delta", "merge"}
    with cnrfmt.open(run) as ck:
        assert [c["version"] for c in checkpoints if c["readable"]] == list(ck.versions)
    for c in checkpoints:
        if c["readable"]:
            with cnrfmt.open(run, version=c["version"]) as ck:
                assert (c["step"], c["segments"]) == (ck.step, len(ck.manifest.chain))
                assert c["read_bytes"] == sum(entry.length for entry in ck.manifest.chain)
                own = [entry.length for entry in ck.manifest.chain if entry.to_state == ck.manifest.state]
                assert c["bytes"] == sum(own) or c["kind"] == "merge"
    written = np.cumsum([c["bytes"] for c in checkpoints])
    count = np.cumsum([c["kind"] != "merge" for c in checkpoints])
    assert [c["average_bytes"] for c in checkpoints] == list(written / count)
    assert checkpoints[-1]["average_of_full"] == written[-1] / count[-1] / facts["full_bytes"]
    on_disk = sum(file.stat().st_size for file in (run / "segments").iterdir())
    # What merges replaced is there for the length of the grace period.
    assert checkpoints[0]["kept_bytes"] == checkpoints[0]["bytes"] < checkpoints[-1]["kept_bytes"] <= on_disk
    assert not list(run.parent.glob("*.png"))


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_it_draws(run: Path, cnr: Command, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"costs.{suffix}"
    found = cnr("plot", run, "-o", path)
    assert (found.code, found.out, found.err) == (0, f"drawn in {path}\n", "")
    if suffix == "png":
        assert len(np.unique(matplotlib.image.imread(path).reshape(-1, 4), axis=0)) > 50
        return
    text = path.read_text()
    for word in (
        "run7, consecutive: 9 checkpoints and",
        "times less than full ones",
        "Written by each",
        "Average so far, merges too",
        "Kept after each: now",
        "Read by a restore of each: now",
        "baseline",
        "delta since the last one",
        "merge of segments",
        "Counted: bytes of segments",
        "A full checkpoint, 78.0 kB",
    ):
        assert word in text


def test_it_draws_beside_the_container(original: Path, cnr: Command, tmp_path: Path) -> None:
    path = tmp_path / original.name
    (shutil.copytree if original.is_dir() else shutil.copy)(original, path)
    found = cnr("plot", path)
    assert (found.code, found.out) == (0, f"drawn in {tmp_path / 'model.png'}\n")
    assert (tmp_path / "model.png").stat().st_size > 10_000


def test_without_a_record_it_goes_by_the_manifests(original: Path, cnr: Command) -> None:
    facts = cnr("plot", original, "--json").json
    checkpoints = facts["checkpoints"]
    assert facts["policy"] == ""
    assert [(c["version"], c["kind"], c["segments"]) for c in checkpoints] == [
        (0, "baseline", 1),
        (1, "delta", 2),
        (2, "delta", 3),
    ]
    assert [c["needs"] for c in checkpoints] == [[0], [0, 1], [0, 1, 2]]
    assert all(c["rows"] is None and c["bits"] is None for c in checkpoints)
    total = np.cumsum([c["bytes"] for c in checkpoints]).tolist()
    assert [c["kept_bytes"] for c in checkpoints] == [c["read_bytes"] for c in checkpoints] == total


def test_a_manifest_that_is_damaged_is_named(run: Path, cnr: Command, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(run, path)
    (path / "manifests" / f"{1:020}.cnrm").unlink()
    found = cnr("plot", path, "--json")
    assert found.code == 1
    assert "version 1: damaged (file-missing)" in found.err
    # The record tells of it all the same.
    assert found.json["checkpoints"] == cnr("plot", run, "--json").json["checkpoints"]


def test_what_it_cannot_do(run: Path, cnr: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "must end in one of" in cnr("plot", run, "-o", tmp_path / "x.what").err
    assert "is no directory" in cnr("plot", run, "-o", tmp_path / "no" / "x.png").err
    assert cnr("plot", tmp_path / "nothing").code == 4
    assert not list(tmp_path.iterdir())
    found = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name == "cnrfmt.checkpointing.costs" and args[2] == ("plotting",):
            raise ImportError(name)
        return found(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    missing = cnr("plot", run, "-o", tmp_path / "x.png")
    assert (missing.code, missing.out) == (2, "")
    assert missing.err == "cnrfmt: plot needs matplotlib; run: pip install 'cnrfmt[plot]' (--json does without)\n"
    assert cnr("plot", run, "--json").code == 0


def record(version: int, kind: str, nbytes: int, chain: int) -> CheckpointRecord:
    return CheckpointRecord(version, version, "2026-01-01T00:00:00Z", kind, 1, nbytes, 8, chain)


PICTURES = {
    "one": [record(0, "baseline", 1000, 1)],
    "nothing written": [record(0, "baseline", 0, 1)],
    "two hundred": [record(n, "delta" if n else "baseline", 10**6 if n else 10**12, n + 1) for n in range(200)],
    "not known": [record(7, "delta", 1000, 9), record(8, "delta", 1000, 10)],
    "nothing but a repetition": [record(3, "merge", 0, 2)],
    "of no kind": [record(0, "baseline", 5, 1), record(1, "what", 5, 2), record(2, "merge", 0, 2)],
}


@pytest.mark.parametrize("full", [0, 1, 1500, 10**15])
@pytest.mark.parametrize("which", PICTURES)
def test_any_run_can_be_drawn(tmp_path: Path, which: str, full: int) -> None:
    costs = cost_history(PICTURES[which], (), [PICTURES[which][-1].version])
    name = "a $x^$ & \x1b \u202e \N{SNOWMAN}" * 3
    plotting.draw(plotting.Picture(name, "my_policy{$", costs, full, ["as it is"]), tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text()
    assert "Kept after each" in text
    assert ("not known" in text) == (which in ("not known", "nothing but a repetition"))
    assert ("of another kind" in text) == (which == "of no kind")
    assert ("(logarithmic)" in text) == (which == "two hundred")
    # Its line would make everything else flat, or there is nothing to draw.
    if full in (0, 10**15):
        assert "a full checkpoint" not in text
    elif which == "one":
        assert f"a full checkpoint: {'1 B' if full == 1 else '1.5 kB'}" in text
