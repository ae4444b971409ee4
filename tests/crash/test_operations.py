"""What the engines interrupt, uninterrupted: the containers say just what is expected of them."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

import cnrfmt
from tools import cnrcheck
from tools.crash._disk_check import UnsyncedFs
from tools.crash.expected import Expected, check_head
from tools.crash.operations import OPERATIONS, PATHS, fitting, step


@pytest.mark.parametrize("kind", PATHS)
def test_any_sequence_leaves_what_is_expected(tmp_path: Path, kind: str) -> None:
    done = set[str]()
    for seed in range(8):
        random, model = Random(f"{kind} {seed}"), Expected()
        path = tmp_path / str(seed) / PATHS[kind]
        path.parent.mkdir()
        history: list[str] = []
        for _ in range(12):
            name = random.choice(fitting(model, kind))
            history.append(name)
            doing, told = step(name, model, random.getrandbits(32), kind), list[int]()
            version = doing.run(path, UnsyncedFs(), told.append)
            assert version == doing.version, history
            # The last one is told of by the end; those before it in any order.
            assert set(told) <= {after.head for after in doing.stages}, history
            model = doing.after
            check_head(path, model)
            found = cnrcheck.check_path(str(path))
            assert cnrcheck.verdict(found) == "sound", (history, found)
            assert name != "collect" or not found, (history, found)
        done |= set(history)
    assert done == {name for name, operation in OPERATIONS.items() if kind in operation.kinds}


def test_what_was_acknowledged_rules_out_what_was_before() -> None:
    model = step("create", Expected(), 0, "directory").after
    doing = step("checkpoint", model, 1, "directory")
    assert [m.head for m in doing.possible()] == [0, 1, 2]
    assert [m.head for m in doing.possible([1])] == [1, 2]
    assert [m.head for m in doing.possible([2, 1])] == [2]


def test_a_run_on_a_grid_goes_on_where_one_was() -> None:
    model = step("create", Expected(), 0, "directory").after
    assert not model.on_grid
    begun = step("grid", model, 1, "directory")
    assert begun.given[0]
    assert [(m.head, m.chain) for m in begun.stages] == [(1, 1), (2, 2)]
    gone_on = step("grid", begun.after, 2, "directory")
    assert not gone_on.given[0]
    # The fourth segment is merged with those before it.
    assert [(m.head, m.chain) for m in gone_on.stages] == [(3, 3), (4, 4), (5, 1)]
    assert not step("checkpoint", gone_on.after, 3, "directory").after.on_grid


def test_what_cannot_be_done_is_an_append(tmp_path: Path) -> None:
    model = step("create", Expected(), 0, "file").after
    for name in ("collect", "tag", "checkpoint", "grid", "merge", "compact", "create"):
        assert step(name, model, 0, "file").operation.name == "append"
    assert step("append", Expected(), 0, "file").operation.name == "create"
    assert "compact" in fitting(step("append", model, 0, "file").after, "file")


def test_a_container_that_says_something_else_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    first = step("create", Expected(), 0, "directory")
    first.run(path)
    second = step("append", first.after, 0, "directory")
    second.run(path)
    check_head(path, second.after)
    for wrong in (second.after.tagged("prod", 0), first.after, second.after.compacted("directory")):
        with pytest.raises(AssertionError):
            check_head(path, wrong)
    cnrfmt.tag(path, "prod", 0)
    check_head(path, second.after.tagged("prod", 0))
