"""Sequences of commits, crashes, refusals, losses of power and reads, against a plain model, and bugs put in."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import hypothesis
import pytest
from hypothesis.stateful import run_state_machine_as_test

import cnrfmt
from cnrfmt.checkpointing.keeping import collect
from cnrfmt.storage.directory_collect import Removal, Survey, plan
from cnrfmt.storage.fs import PosixFs
from cnrfmt.storage.single_file_commit import Appending
from cnrfmt.testing import ContainerMachine, FolderDisk
from tools.crash.machine import MappingFs, RecordedDisk, run_batch

THOROUGH = os.environ.get("CNRFMT_HYPOTHESIS_PROFILE", "quick") != "quick"
SEED = 2101
SETTINGS = hypothesis.settings(
    database=None,
    deadline=None,
    derandomize=False,
    report_multiple_bugs=False,
    phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
)


def run(machine: type[ContainerMachine], examples: int, steps: int, seed: int = SEED) -> None:
    """Runs a machine with the seed; its failure names the steps that led to it."""
    settings = hypothesis.settings(SETTINGS, max_examples=examples, stateful_step_count=steps)
    run_state_machine_as_test(hypothesis.seed(seed)(machine), settings=settings)


def test_any_sequence_with_losses_of_power() -> None:
    examples = 250 if THOROUGH else 40
    print(f"again: python -m tools.crash.machine --examples {examples} --steps 30 --seed {SEED}")
    outcomes = run_batch(SEED, examples, 30)
    print(dict(outcomes))
    # Otherwise the run would say nothing of what it is for. What is rare isn't met in few examples.
    rare = {"power lost, pending version lost", "power lost, pending version kept", "unknown, pending"}
    assert outcomes.keys() >= (rare if THOROUGH else set()) | {
        "acknowledged",
        "refused",
        "killed, not begun",
        "killed, pending",
        "power lost, nothing pending",
    }


class QuickDisk(FolderDisk):
    """A folder whose syncs don't wait: nothing here cuts its power."""

    class _Fs(PosixFs):
        def sync(self, handle: int) -> None:
            pass

        def sync_directory(self, path: str) -> None:
            pass

    def __init__(self) -> None:
        super().__init__()
        self.fs = self._Fs()


def test_any_sequence_in_a_folder() -> None:
    class Machine(ContainerMachine):
        make_disk = QuickDisk
        outcomes: ClassVar[Counter[str]] = Counter()

    run(Machine, 60 if THOROUGH else 10, 25)
    assert Machine.outcomes.keys() >= {"acknowledged", "refused", "killed, not begun", "killed, pending"}


def disk_with(**methods: Any) -> type[RecordedDisk]:
    """A disk some of whose calls are others."""
    faulty = type("FaultyFs", (MappingFs,), methods)

    class FaultyDisk(RecordedDisk):
        make_fs = faulty

    return FaultyDisk


def nothing(self: object, *args: object) -> None:
    """A call that isn't made."""


@pytest.mark.parametrize(
    "methods",
    [{"sync": nothing}, {"sync_directory": nothing}, {"sync": nothing, "sync_directory": nothing}],
    ids=["files", "directories", "both"],
)
def test_syncs_that_are_left_out_are_noticed(methods: dict[str, Any]) -> None:
    class Machine(ContainerMachine):
        make_disk = disk_with(**methods)

    with pytest.raises((AssertionError, cnrfmt.DamagedError)):
        run(Machine, 300, 30)


@pytest.mark.parametrize(
    ("owner", "name"),
    [(cnrfmt.Checkpoint, "refresh"), (Appending, "_repair")],
    ids=["refresh that stays", "nothing repaired"],
)
def test_library_that_leaves_something_out(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    class Machine(ContainerMachine):
        make_disk = RecordedDisk

    monkeypatch.setattr(owner, name, nothing)
    with pytest.raises((AssertionError, cnrfmt.CnrError)):
        run(Machine, 300, 30)


def test_a_collection_that_takes_too_much_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Machine(ContainerMachine):
        make_disk = RecordedDisk

    def careless(found: Survey, now: int, grace: int) -> Removal:
        spare = tuple(file for file in found.segments if file.segment not in (found.head.segments or ()))
        return replace(plan(found, now, grace), segments=spare)

    monkeypatch.setattr(collect, "plan", careless)
    with pytest.raises((AssertionError, cnrfmt.CnrError)):
        # One of those that come to it soon.
        run(Machine, 300, 30, SEED + 2)


def test_the_machine_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    class Machine(ContainerMachine):
        make_disk = QuickDisk

    run(Machine, 3, 10)
    assert list(tmp_path.iterdir()) == []
