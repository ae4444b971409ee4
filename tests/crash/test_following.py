"""Followers beside crashes and faults of the disk, and that the engines find followers that err."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, ClassVar

import pytest

from cnrfmt import checkpoint
from cnrfmt.serving import live
from cnrfmt.serving.slots import Slots
from cnrfmt.storage.fs import Fs
from cnrfmt.testing import ContainerMachine
from cnrfmt.testing.followers import REFUSED
from tools.crash import tally
from tools.crash.faults import FaultTrial
from tools.crash.follow_faults import followings
from tools.crash.machine import RecordedDisk

SEED = 1
SAMPLE = 60


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> list[FaultTrial]:
    return [
        FaultTrial(work, fault, k, lasting)
        for work in followings(tmp_path_factory.mktemp("following"), SEED)
        for fault in work.faults.values()
        for k in range(1, 1 + sum(call.kind in fault.calls for call in work.log))
        for lasting in (False, True)
    ]


def test_sample_of_faults_while_something_follows(every: list[FaultTrial]) -> None:
    found = tally.run(Random(SEED).sample(every, SAMPLE), tally.Tally(SEED))
    assert not found.failures, "\n".join(["python -m tools.crash.faults, each with:", *found.failures])
    assert found.outcomes.keys() == {"returned", "failed"}


def _nothing_is_given_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Slots, "give_back", lambda self, slots: None)


def _tables_change_one_by_one(patch: pytest.MonkeyPatch) -> None:
    """Rows are decoded where others look at them."""

    def moved(served: Any, table: Any, changes: Any, check_memory: Any) -> Any:
        ids = changes.rows
        places = served.positions.of(ids)
        served.slots.store[places[places >= 0]] = table.read(ids[places >= 0])
        return real(served, table, changes, check_memory)

    real = live.moved
    patch.setattr(live, "moved", moved)


def _the_checkpoint_stays_where_it_is(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checkpoint.Checkpoint, "move_on", lambda self: False)


@pytest.mark.parametrize(
    ("break_it", "work", "text"),
    [
        (_nothing_is_given_back, "live, deltas, file, pread", "after a failure"),
        (_tables_change_one_by_one, "live, deltas, file, pread", "served of version 0"),
        (_the_checkpoint_stays_where_it_is, "follow, deltas, directory, pread", "the update is None"),
    ],
)
def test_followers_that_err_are_found(
    every: list[FaultTrial],
    monkeypatch: pytest.MonkeyPatch,
    break_it: Callable[[pytest.MonkeyPatch], None],
    work: str,
    text: str,
) -> None:
    with monkeypatch.context() as patch:
        break_it(patch)
        todo = [t for t in every if (t.work, t.mode) == (work, "EIO, once")]
        assert any(text in failure for t in reversed(todo) for failure in tally.run([t], tally.Tally(SEED)).failures)


def lose_what_was_followed() -> ContainerMachine:
    """A machine whose followers have seen a version that a loss of power took away."""

    class Machine(ContainerMachine):
        make_disk = RecordedDisk
        outcomes: ClassVar[Counter[str]] = Counter()

        def fs_afar(self) -> Fs:
            assert isinstance(self.disk, RecordedDisk)
            return self.disk.afar

    for seed in itertools.count():
        machine = Machine()
        machine.choose_kind("model")
        machine.save(seed)
        machine.follow(seed)
        machine.commit_and_die(seed, -1 - seed % 8, 1.0, True)
        if machine.followers is not None and machine.followers.lost:
            return machine
        machine.teardown()
    raise AssertionError


def test_a_history_that_was_lost_is_not_followed() -> None:
    machine = lose_what_was_followed()
    machine.follow(0)
    assert machine.outcomes[REFUSED] == 1
    # Others begin with what is there.
    machine.follow(1)
    machine.save(1)
    machine.outcomes.clear()
    machine.follow(2)
    assert machine.outcomes == {"followed": 1}
    machine.teardown()


def test_a_history_that_went_another_way_is_not_followed() -> None:
    machine = lose_what_was_followed()
    machine.save(5)
    machine.follow(0)
    assert machine.outcomes[REFUSED] == 1
    machine.teardown()


def test_followers_that_take_any_history_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = lose_what_was_followed()
    machine.save(5)
    monkeypatch.setattr(checkpoint, "check_goes_on", lambda before, head, path: None)
    with pytest.raises(AssertionError, match="another history was taken for the one with version"):
        machine.follow(0)
    machine.teardown()
