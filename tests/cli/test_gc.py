"""`gc`: what it says it removes, and how it ends."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import cnrfmt
from tests.cli.support import Command


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Versions 0 to 14, a baseline each."""
    path = tmp_path / "run"
    for version in range(15):
        cnrfmt.save(path, {"t": np.full((40, 8), version, np.float32)}, step=version)
    return path


def sizes(path: Path) -> dict[str, int]:
    return {str(p.relative_to(path)): p.stat().st_size for p in path.rglob("*") if p.is_file()}


def test_giving_up_waiting_removing(run: Path, cnr: Command) -> None:
    before = sizes(run)
    nothing = cnr("gc", run)
    assert (nothing.code, nothing.out) == (0, f"{run}: removed: 0 manifests and 0 segments, 0 bytes\n")
    dry = cnr("gc", run, "--keep", 3, "--grace", "0", "--dry-run")
    assert sizes(run) == before
    assert dry.out.startswith("would be given up: versions 0 to 11 (by version 15)\n")
    waiting = cnr("gc", run, "--keep", 3, "--grace", "1.5h")
    assert waiting.out.startswith("given up: versions 0 to 11 (by version 15)\nwaiting for the grace period: 24 ")
    assert "  and 14 more, the last until 20" in waiting.out
    assert waiting.out.endswith(f"{run}: removed: 0 manifests and 0 segments, 0 bytes\n")
    listed = cnr("gc", run, "--json").json
    assert (listed["version"], listed["manifests"], len(listed["waiting"])) == (None, [], 24)
    bytes_waiting = sum(file["bytes"] for file in listed["waiting"])
    assert bytes_waiting == sum(before[file["name"]] for file in listed["waiting"])
    assert f": 24 files, {bytes_waiting:,} bytes (" in waiting.out
    done = cnr("gc", run, "--grace", "0s")
    assert done.out.startswith(f"{run}: removed: 12 manifests and 12 segments, {bytes_waiting:,} bytes (")
    assert f"would be removed: 12 manifests and 12 segments, {bytes_waiting:,} bytes (" in dry.out
    verified = cnr("verify", run)
    assert (verified.code, "versions 12 to 15" in verified.out) == (0, True)


def test_every_rule_has_its_option(run: Path, cnr: Command) -> None:
    some = cnr("gc", run, "--every-steps", 5, "--dry-run", "--json").json
    assert some["given_up"] == [v for v in range(14) if v % 5]
    some = cnr("gc", run, "--every-steps", 5, "--keep", 2, "--best", "a:b:1:min", "--dry-run", "--json").json
    assert some["given_up"] == [v for v in range(13) if v % 5]
    some = cnr("gc", run, "--every-minutes", "1e9", "--dry-run", "--json").json
    assert some["given_up"] == list(range(1, 14))
    one = cnr("gc", run, "--keep", 14, "--dry-run")
    assert one.out.startswith("would be given up: version 0 (by version 15)\n")


def test_the_default_period_is_an_hour(run: Path, cnr: Command) -> None:
    cnr("gc", run, "--keep", 1)
    for file in run.rglob("*.cnr?"):
        old = file.stat().st_mtime - 3590
        os.utime(file, (old, old))
    assert "removed: 0 manifests" in cnr("gc", run).out
    for file in run.rglob("*.cnr?"):
        old = file.stat().st_mtime - 60
        os.utime(file, (old, old))
    assert "removed: 14 manifests and 14 segments" in cnr("gc", run).out


def test_a_damaged_manifest_keeps_everything(run: Path, cnr: Command) -> None:
    cnr("gc", run, "--keep", 2)
    (run / "manifests" / f"{13:020}.cnrm").write_bytes(b"rotten")
    found = cnr("gc", run, "--grace", "0")
    assert found.code == 1
    assert found.out.startswith(f"nothing can be removed: {run}: manifest of version 13: damaged (")
    assert found.out.endswith(f"{run}: removed: 0 manifests and 0 segments, 0 bytes\n")
    assert cnr("gc", run, "--grace", "0", "--json").code == 1


def test_a_single_file_has_nothing_to_collect(tmp_path: Path, cnr: Command) -> None:
    path = tmp_path / "model.cnr"
    cnrfmt.save(path, {"t": np.ones((2, 2), np.float32)})
    found = cnr("gc", path)
    assert found.code == 2
    assert "a single file keeps its versions until it is written anew" in found.err
