"""The page of what has been tried says what the results say."""

from __future__ import annotations

import pytest

from tools import evidence


def test_the_page_says_what_the_results_say() -> None:
    assert evidence.main(["--check"]) == 0


def test_a_page_that_says_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(evidence.TABLES, "engines", lambda: "| another table |")
    assert evidence.main(["--check"]) == 1


def run(seed: int, **found: object) -> dict[str, object]:
    command = f"python -m engine --steps 5 --seed {seed} --folder here"
    return {"command": command, "seed": seed, "date": f"2026-01-0{seed}", "seconds": 1800, "failures": [], **found}


def test_runs_are_summed() -> None:
    runs = [run(2, examples=1000, outcomes={"steps": 5}), run(1, examples=200, outcomes={"steps": 6}, failures=["one"])]
    (row,) = evidence._machine(runs)
    assert row.line() == (
        "| state machine | 1,200 sequences, 11 steps | 1 | 1.0 h, 2026-01-02 "
        "| `python -m engine --steps 5 --seed 2, 1 --folder here` |"
    )
    targets = ({"slot": {"failures_left": 1}}, {"slot": {"failures_left": 0}, "toc": {"failures_left": 2}})
    (row,) = evidence._fuzz([run(seed, executions=1000, targets=targets[seed - 1]) for seed in (1, 2)])
    assert (row.tried, row.left) == ("2,000 executions of 2 targets", 3)


def test_commands_that_differ_in_more_than_the_seed_stand_apart() -> None:
    commands = ("engine --long --seed 1", "engine --seed 3", "engine --long --seed 2", "engine", "engine --seed 4")
    runs = [{**run(1), "command": command} for command in commands]
    row = evidence.Row("e", "much", 0, runs)
    assert row.line().endswith("| `engine --long --seed 1, 2`, `engine --seed 3, 4`, `engine` |")
