"""The crash engine finds nothing in the commits as they are, and finds every fault that is planted in them."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from cnrfmt.checkpointing.keeping import collect
from cnrfmt.storage.directory_collect import Removal, Survey
from cnrfmt.storage.single_file_commit import Appending
from cnrfmt.table import Table
from tools.crash import _model_workloads, model
from tools.crash._model_checks import Case, Outcome
from tools.crash._model_workloads import CRASH_AGAIN, RECOVER, TAKE_OVER, Course, Workload, workloads
from tools.crash._probe import Once, ProbedFs
from tools.crash._readers import Readers
from tools.crash._repeatable import Chance, repeatable
from tools.crash.expected import Expected
from tools.crash.model import Seen, Tally, Unit, all_workloads, examine, run
from tools.crash.operations import OPERATIONS, PATHS, step
from tools.crash.order import OrderError
from tools.crash.recording import FOLDER, RecordingFs

SEED = 20
IMAGES, LIMIT = 50_000, 500


def test_every_crash_leaves_the_version_before_or_after_a_commit() -> None:
    tally = Tally(SEED, limit=LIMIT)
    print(f"python -m tools.crash.model --seed {SEED} --states {IMAGES} --limit {LIMIT}")
    run(tally, IMAGES, Seen(), pause=float("inf"))
    print(tally.line())
    assert not tally.failures, json.dumps(tally.failures, indent=1)
    assert tally.total("failed") == 0
    assert tally.total("images") >= IMAGES
    assert tally.total("reruns") > IMAGES // model.RERUN // 2
    # Every operation was crashed into, and far fewer checks ran than there are images.
    others = {name for name, operation in OPERATIONS.items() if not operation.first}
    assert {row.rpartition(", ")[2] for row in tally.counts} >= {*others, RECOVER, CRASH_AGAIN, TAKE_OVER}
    assert tally.total("checks") < tally.total("images")


def test_a_run_of_some_length_tries_every_workload() -> None:
    every = all_workloads(SEED, 3)
    assert len(set(every)) == len(every) == sum(len(workloads(3, kind)) for kind in PATHS)
    assert [Unit.of(SEED, n, 3, 9).workload for n in range(len(every))] == [workload for _, workload in every]
    # In the next turn each meets the other size of sectors.
    assert Unit.of(SEED, 0, 3, 9).sector != Unit.of(SEED, len(every), 3, 9).sector


HISTORY = ("create", "append", "compact", "append", "collect")


def readers_of(workload: Workload, seed: int, chance: Chance) -> int:
    """Does all of it, readers looking on; gives how often they were told that their version is gone."""
    fs, path, model, gone = RecordingFs(), f"{FOLDER}/run", Expected(), 0
    for number, name in enumerate(workload):
        chance.restart(seed, number)
        doing = step(name, model, seed, "directory")
        with Readers(fs, path, doing, seed) as readers:
            doing.run(path, fs)
        model, gone = doing.after, gone + readers.gone
    return gone


@pytest.mark.parametrize("last", ["collect", "checkpoint", "grid", "compact", "merge"])
def test_readers_look_on_while_their_versions_are_given_up(last: str) -> None:
    with repeatable() as chance:
        gone = sum(readers_of((*HISTORY[:-1], last), seed, chance) for seed in range(3))
    assert bool(gone) == (last in ("collect", "checkpoint", "grid"))


def test_readers_tell_of_rows_that_are_not_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Table, "read", lambda self, *args, **options: np.zeros(1))
    with repeatable() as chance, pytest.raises(AssertionError, match=r"append, .*: a reader of version 0: Assertion"):
        readers_of(("create", "append"), 0, chance)


def test_readers_tell_of_a_version_that_should_have_stayed(monkeypatch: pytest.MonkeyPatch) -> None:
    remove_what_the_head_does_not_need(monkeypatch)

    def read_until_found() -> None:
        for seed in range(10):
            readers_of(("create", "append", "replace", "append", "tag", "collect"), seed, chance)

    with (
        repeatable() as chance,
        pytest.raises(AssertionError, match=r"collect, .*: a reader of version .*file-missing"),
    ):
        read_until_found()


@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.parametrize("workload", [("create", "append"), ("create", "append", "recover")], ids=" > ".join)
def test_states_that_look_alike_to_a_check_have_its_result(kind: str, workload: Workload) -> None:
    checked = 0
    with repeatable() as chance:
        course = Course(kind, f"{SEED}", chance, 64)
        course.run(workload)
        for point in course.points:
            case = Case(kind, course.path, point.allowed, SEED)
            for check in (lambda fs, case=case: whole(case, fs, chance), case.by_cnrcheck, case.by_verify):
                once = Once(point.space, check)
                for _, state in point.space.images(25, Random(SEED)):
                    assert once(state) == once.run(state)[1], f"{point.name}, state {state:x}"
                    checked += 1
    assert checked > 100


def whole(case: Case, fs: ProbedFs, chance: Chance) -> Outcome:
    chance.restart("check")
    return case.by_library(fs)


def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--seed", "3", "--length", "2", "--limit", "40"]
    tables = []
    for name, stops in (("straight", [400]), ("stopped", [100, 250, 400])):
        state, table = tmp_path / f"{name}.json", tmp_path / f"{name}.table.json"
        for states in stops:
            command = [*options, "--states", str(states), "--state", str(state), "--json", str(table)]
            assert model.main(command) == 0
        tables.append(json.loads(table.read_text()))
        assert tables[-1].pop("seconds") >= 0
    assert tables[0] == tables[1]
    assert tables[0]["images"] >= 400
    assert tables[0]["failures"] == []
    assert f"{tables[0]['images']} distinct images" in capsys.readouterr().out
    assert model.main([*command[:-2]]) == 0
    assert "nothing left to try: the result of 20" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        model.main(["--seed", "4", "--state", str(tmp_path / "straight.json")])
    assert "belongs to other arguments" in capsys.readouterr().err


def test_a_failure_is_told_with_the_command_that_repeats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without("sync_directory", "file-renamed")(monkeypatch)
    by_states_alone(monkeypatch)
    table = tmp_path / "table.json"
    command = ["--seed", "3", "--states", "400", "--length", "2", "--limit", "40", "--json", str(table)]
    assert model.main(command) == 1
    found = json.loads(table.read_text())
    failure = found["failures"][0]
    assert found["failed"] >= 1
    capsys.readouterr()
    assert model.main(failure["command"].split()[3:]) == 1
    assert json.dumps(failure["problem"]) in capsys.readouterr().out


def without_readers(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks on."""
    patch.setattr(_model_workloads, "Readers", lambda *args: nullcontext())


def by_states_alone(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks on, and nobody looks at the order of the writes."""
    without_readers(patch)
    patch.setattr(_model_workloads, "check_order", lambda *args: None)


# Planted faults. Each is a commit that leaves a step out, or takes it at the wrong time.

Plant = Callable[[pytest.MonkeyPatch], None]


def without(call: str, after: str, nth: int = 0) -> Plant:
    """Leaves out a sync: the first after a named point, or after none, or a later one before the next point."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        original = getattr(RecordingFs, call)
        count = {"since": 0, "points": -1}

        def call_or_not(fs: RecordingFs, target: Any) -> None:
            if count["points"] != len(fs.points):
                count.update(since=0, points=len(fs.points))
            count["since"] += 1
            if (fs.points[-1] if fs.points else "") != after or count["since"] != nth + 1:
                original(fs, target)

        patch.setattr(RecordingFs, call, call_or_not)

    return plant


def slot_a_too_early(patch: pytest.MonkeyPatch) -> None:
    """Writes slot A together with the manifest, before their sync."""
    original = Appending._write_manifest

    def write(tx: Appending, manifest: bytes, version: int, digest: int) -> Any:
        slot = original(tx, manifest, version, digest)
        tx._into.write_slot(0, slot)
        return slot

    patch.setattr(Appending, "_write_manifest", write)
    patch.setattr(Appending, "_check_unchanged", lambda tx: None)


def no_repair(patch: pytest.MonkeyPatch) -> None:
    """Builds on slots as a crash has left them: the one that isn't overwritten may name an older version."""
    original = Appending._commit

    def commit(tx: Appending, *args: Any, **words: Any) -> None:
        base, count = tx._into, iter(range(9))
        write = base.write_slot
        # The first slot that a commit writes is slot B, as it should be already.
        patch.setattr(base, "write_slot", lambda number, named: next(count) and write(number, named))
        original(tx, *args, **words)

    patch.setattr(Appending, "_commit", commit)
    patch.setattr(Appending, "_repair", lambda tx: None)


def removed_before_rename(patch: pytest.MonkeyPatch) -> None:
    """Removes the old file before the new one is put in its place."""
    original = RecordingFs.rename

    def rename(fs: RecordingFs, source: str, target: str) -> None:
        if fs.stat(target) is not None:
            fs.unlink(target)
        original(fs, source, target)

    patch.setattr(RecordingFs, "rename", rename)


def remove_what_the_head_does_not_need(patch: pytest.MonkeyPatch) -> None:
    """A collection that forgets what tagged versions need."""
    original = collect.plan

    def plan(found: Survey, now: int, grace: int) -> Removal:
        spare = tuple(file for file in found.segments if file.segment not in (found.head.segments or ()))
        return replace(original(found, now, grace), segments=spare)

    patch.setattr(collect, "plan", plan)


CREATE = ("create",)
APPEND, REPLACE = ("create", "append"), ("create", "replace")
PLANTED: dict[str, tuple[str, Workload, Plant]] = {
    "spans aren't synced before slot A": ("file", APPEND, without("sync", "manifest-written")),
    "slot A isn't synced before slot B": ("file", APPEND, without("sync", "slot-a-written")),
    "slot A comes with the manifest": ("file", APPEND, slot_a_too_early),
    "slots aren't repaired": ("file", ("create", "append", "crash-in-recovery"), no_repair),
    "a new file isn't synced before its rename": ("file", REPLACE, without("sync", "file-written")),
    "the folder isn't synced after a rename": ("file", REPLACE, without("sync_directory", "file-renamed")),
    "the old file is removed first": ("file", REPLACE, removed_before_rename),
    "the name of a file that is found isn't synced": ("file", (*REPLACE, "take-over"), without("sync_directory", "")),
    "segments aren't synced": ("directory", APPEND, without("sync", "manifests-synced")),
    "names of segments aren't synced": ("directory", APPEND, without("sync_directory", "segment-published")),
    "folders aren't synced": ("directory", CREATE, without("sync_directory", "segment-published", 1)),
    "the container's name isn't synced": ("directory", CREATE, without("sync_directory", "segment-published", 2)),
    "the manifest isn't synced": ("directory", APPEND, without("sync", "segments-synced")),
    "the manifest's name isn't synced": ("directory", APPEND, without("sync_directory", "manifest-published")),
    "segments of a tagged version are removed": (
        "directory",
        (*REPLACE, "append", "tag", "collect"),
        remove_what_the_head_does_not_need,
    ),
    "the name of a head that is found isn't synced": (
        "directory",
        (*APPEND, "take-over"),
        without("sync_directory", ""),
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_states_show_a_planted_fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, workload, plant = PLANTED[name]
    plant(monkeypatch)
    by_states_alone(monkeypatch)
    with repeatable() as chance:
        for seed in range(40):
            # Small sectors tear slots, too.
            found = examine(Unit(f"planted {seed}", kind, workload, 64, 200), chance)
            if found.failed:
                print(found.failures[0])
                return
    pytest.fail(f"no state of {workload} showed that {name}")


# What no version needs may be left in any order; nothing hangs on it until a reader or a writer errs, too.
OUT_OF_ORDER = PLANTED | {
    "the removal of manifests isn't synced": ("directory", HISTORY, without("sync_directory", "manifests-removed")),
}


@pytest.mark.parametrize("name", OUT_OF_ORDER)
def test_the_order_checker_finds_a_planted_fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, workload, plant = OUT_OF_ORDER[name]
    plant(monkeypatch)
    without_readers(monkeypatch)

    def commit_until_found() -> None:
        with repeatable() as chance:
            for seed in range(40):
                Course(kind, f"planted {seed}", chance, 64).run(workload)

    with pytest.raises(OrderError):
        commit_until_found()
