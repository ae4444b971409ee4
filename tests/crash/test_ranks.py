"""Ranks that are killed while they write together lose nothing; the engine that kills them notices planted faults."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.crash.support import SEED, THOROUGH, run_kills

# A process of its own: one that has threads, as that of the tests may, can't be forked safely.
ENGINE = """
import sys
from tools.crash import ranks
from cnrfmt.checkpointing.ranks import accepting
from cnrfmt.checkpointing.ranks import coordinator
from cnrfmt.checkpointing.ranks import commit as together
from cnrfmt.storage import directory_commit
{plant}
sys.exit(ranks.main(sys.argv[1:]))
"""


def test_killed_ranks_lose_nothing(tmp_path: Path) -> None:
    kills = 30 if THOROUGH else 12
    status, result, output = run_kills(ENGINE, tmp_path, kills)
    assert status == 0, output
    counts = result["counts"]
    # The last set of ranks may lose two at once.
    assert kills <= counts["kills"] <= kills + 1
    assert counts["attempts, committed"] > 0
    assert counts["attempts, not begun to count"] > 0
    assert counts["next sets of ranks"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize(
    "plant",
    [
        "together._Work._take_back = lambda self: None",
        "directory_commit.DirectoryTransaction.hand_over = directory_commit.DirectoryTransaction.publish",
        "together.accept = lambda tx, manifest, entries: accepting.accept(tx, manifest, entries[1:])",
    ],
    ids=["nothing taken back", "nothing handed over", "a rank left out"],
)
def test_planted_faults_are_found(tmp_path: Path, plant: str) -> None:
    status, result, output = run_kills(ENGINE, tmp_path, 60, plant, "--most-failures", "1")
    assert status == 1, output
    assert len(result["failures"]) == 1
    failure = result["failures"][0]
    assert f" --seed {SEED} " in failure["command"]
    assert " --life " in failure["command"]
    assert "Error" in failure["error"]


def test_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    status, first, output = run_kills(ENGINE, tmp_path, 2, "", "--state", str(state))
    assert (status, first["counts"]["kills"] >= 2) == (0, True), output
    progress = json.loads(state.read_text(encoding="utf-8"))
    progress["asked"]["kills"] = 6
    state.write_text(json.dumps(progress), encoding="utf-8")
    status, second, output = run_kills(ENGINE, tmp_path, 6, "", "--state", str(state))
    assert (status, second["counts"]["kills"] >= 6) == (0, True), output
    assert second["containers"] > first["containers"]
