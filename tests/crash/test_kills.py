"""Processes that are killed while they write lose nothing; and the engine that kills them notices planted faults."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.support import ROOT, SEED, THOROUGH, run_kills

# A process of its own: one that has threads, as that of the tests may, can't be forked safely.
ENGINE = """
import os
import sys
from dataclasses import replace
from tools.crash import kills
from cnrfmt.checkpointing.keeping import collect
from cnrfmt.serving import live, slots
from cnrfmt.storage import base, directory_commit, single_file, single_file_commit

def warm_up(folder):
    # What is planted is for the lives to find.
    typical = kills.warm_up(folder)
    exec({plant!r}, globals())
    return typical

kills.LIVES = replace(kills.LIVES, warm_up=warm_up)
sys.exit(kills.main(sys.argv[1:]))
"""


def test_kills_lose_nothing(tmp_path: Path) -> None:
    kills = 60 if THOROUGH else 24
    status, result, output = run_kills(ENGINE, tmp_path, kills)
    assert status == 0, output
    counts = result["counts"]
    assert counts["kills"] == kills
    assert counts["looks of readers"] > kills
    # Some were killed when their version had begun to count, and some before.
    assert counts["killed, pending"] > 0
    assert counts["killed, not begun to count"] > 0
    assert counts["rivals"] > 0
    assert counts["versions followed"] > 0
    assert counts["servers killed"] > 0
    assert counts["looks at what is served"] > 0
    assert sum(count for name, count in counts.items() if name.startswith("killed in ")) > 0
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize(
    "plant",
    [
        "commit = base.Transaction.commit\n"
        "base.Transaction.commit = lambda tx, m, **o: tx.abort() if o['version'] == 9 else commit(tx, m, **o)",
        "single_file_commit.leftover_names = lambda fs, path: []",
        "directory_commit.DirectoryTransaction._remove_leftovers = lambda self: None",
        "single_file_commit.Appending._repair = lambda self: None",
        "single_file.Slots.head = property(lambda slots: slots.found[1])",
        "plan = collect.plan\n"
        "def careless(found, now, grace):\n"
        "    spare = tuple(f for f in found.segments if f.segment not in found.head.segments)\n"
        "    return replace(plan(found, now, grace), segments=spare)\n"
        "collect.plan = careless",
        "release = slots.Slots.release\n"
        "slots.Slots.release = lambda self, dead, alive, oldest, **o: release(self, dead, alive, 1 << 60, **o)",
        "begin = live.LiveTables.__init__\n"
        "def marked(self, path, **options):\n"
        "    open(os.path.join(os.path.dirname(path), f'.tmp-{os.getpid()}'), 'w').close()\n"
        "    begin(self, path, **options)\n"
        "live.LiveTables.__init__ = marked",
    ],
    ids=[
        *("not committed", "leftovers of a file", "leftovers of a directory", "no repair", "slot B alone", "careless"),
        *("slots that somebody looks at", "servers that leave files"),
    ],
)
def test_planted_faults_are_found(tmp_path: Path, plant: str) -> None:
    # It ends with the first failure; how soon that comes is a matter of chance.
    status, result, output = run_kills(ENGINE, tmp_path, 400, plant, "--most-failures", "1")
    assert status == 1, output
    assert len(result["failures"]) == 1
    failure = result["failures"][0]
    assert f" --seed {SEED} " in failure["command"]
    assert " --life " in failure["command"]
    assert "Error" in failure["error"]


def test_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    status, first, output = run_kills(ENGINE, tmp_path, 6, "", "--state", str(state))
    assert (status, first["counts"]["kills"]) == (0, 6), output
    progress = json.loads(state.read_text(encoding="utf-8"))
    progress["asked"]["kills"] = 9
    state.write_text(json.dumps(progress), encoding="utf-8")
    status, second, output = run_kills(ENGINE, tmp_path, 9, "", "--state", str(state))
    assert (status, second["counts"]["kills"]) == (0, 9), output
    assert second["containers"] > first["containers"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_run_that_is_stopped_leaves_no_folder_and_no_process(tmp_path: Path, number: signal.Signals) -> None:
    # A shell that starts this in the background lets it ignore Ctrl-C.
    begin = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    engine = ENGINE.format(plant=begin).replace("sys.exit(kills.main(sys.argv[1:]))", "kills.LIVES.run()")
    command = [sys.executable, "-c", engine, "--kills", "5000", "--seed", str(SEED), "--folder", str(tmp_path)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*command, "--state", str(tmp_path / "state.json")],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        assert running.stdout is not None
        lines = iter(running.stdout.readline, "")
        # By then it has lived some lives, and is in the midst of one.
        assert any(" of 5000 kills, " in line for line in lines)
        os.killpg(running.pid, number)
        _, said = running.communicate(timeout=300)
    assert re.fullmatch(r"stopped after [1-9]\d* kills; the same command with --state goes on\n", said)
    assert running.returncode == 128 + number
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]
    with pytest.raises(ProcessLookupError):
        os.killpg(running.pid, 0)
