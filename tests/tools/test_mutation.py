"""The pieces of mutation testing: which faults are made, how they are put in place, and how a trial ends."""

from __future__ import annotations

import ast
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools.mutants.covering import Covering, Order, Uses, stamp_of
from tools.mutants.mutate import Mutant, mutants_of, mutated
from tools.mutants.patch import Functions, ImportHook, NotInPlaceError
from tools.mutants.trial import Result, kill, run_trials

SOURCE = '''"""A module."""
from contextlib import suppress

LIMIT = 10
KINDS = ("one", "two")


class Box:
    """A box."""

    size: int = 3

    @staticmethod
    def fits(n: int, *, strict: bool = False) -> bool:
        """Whether it does."""
        if n < LIMIT and not strict:
            return n % 2 == 0
        raise ValueError("a text of people", n + 1)

    @property
    def name(self) -> str:
        return f"box {self.size + 1}"


def drain(items):
    total = 0
    for item in items:
        total += item
        if item is None:
            break
    with suppress(ValueError):
        print(total)
    return total
'''
WANTED = {
    "number: 10 -> 11",
    "number: 10 -> 9",
    "text: 'one' -> 'oneX'",
    "number: 3 -> 4",
    "boolean: False -> True",
    "compare: n < LIMIT -> n <= LIMIT",
    "compare: n < LIMIT -> n >= LIMIT",
    "logic: n < LIMIT and (not strict) -> n < LIMIT or not strict",
    "logic: n < LIMIT and (not strict) -> n < LIMIT",
    "logic: n < LIMIT and (not strict) -> not strict",
    "logic: not strict -> strict",
    "return: return n % 2 == 0 -> return None",
    "compare: n % 2 == 0 -> n % 2 != 0",
    "arithmetic: n % 2 -> n // 2",
    "arithmetic: total += item -> total -= item",
    "delete: total += item -> if False: total += item",
    "compare: item is None -> item is not None",
    "loop: break -> continue",
    "suppress: suppress(ValueError) -> suppress()",
    "delete: print(total) -> if False: print(total)",
    "return: return total -> return None",
}


def described(mutant: Mutant) -> str:
    return mutant.describe().partition(" ")[2]


def test_the_faults_that_are_made() -> None:
    found = mutants_of("box.py", SOURCE)
    texts = {described(m) for m in found}
    assert texts >= WANTED
    assert len({m.key for m in found}) == len(found)
    # Texts for people, docstrings and annotations stay as they are.
    kept = ("a text of people", "self.size", "A box", "'bool")
    inside = [t for t in texts if not t.startswith(("delete", "return")) and any(words in t for words in kept)]
    assert not inside
    functions = {m.function for m in found}
    assert functions == {"", "Box.fits", "Box.name", "drain"}
    original = ast.unparse(ast.parse(SOURCE))
    for mutant in found:
        assert ast.unparse(mutated(SOURCE, mutant)) != original
        compile(mutated(SOURCE, mutant), "box.py", "exec")


def test_keys_change_with_their_function_alone() -> None:
    before = {m.key for m in mutants_of("box.py", SOURCE)}
    after = {m.key for m in mutants_of("box.py", "# A comment.\n\n" + SOURCE.replace("total = 0", "total = 1"))}
    assert {key.split(":")[1] for key in before ^ after} == {"drain"}


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "box_under_test.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("box_under_test")
    del sys.modules["box_under_test"]


def find(text: str) -> Mutant:
    return next(m for m in mutants_of("box_under_test.py", SOURCE) if described(m) == text)


def test_a_function_is_changed_in_place(box: Any, tmp_path: Path) -> None:
    functions = Functions({str(tmp_path / "box_under_test.py")})
    held, drain = box.Box.fits, box.drain
    assert held(4)
    functions.put(tmp_path, find("compare: n % 2 == 0 -> n % 2 != 0"))
    assert not held(4)
    functions.put(tmp_path, find("arithmetic: total += item -> total -= item"))
    assert drain([1, 2]) == -3
    functions.put(tmp_path, find("delete: print(total) -> if False: print(total)"))
    assert drain([1, 2]) == 3
    with pytest.raises(NotInPlaceError):
        functions.put(tmp_path, find("number: 10 -> 11"))


def test_what_is_evaluated_at_import_is_changed_at_import(box: Any, tmp_path: Path) -> None:
    del sys.modules["box_under_test"]
    hook = ImportHook(tmp_path, find("number: 10 -> 11"))
    hook.put()
    try:
        assert importlib.import_module("box_under_test").LIMIT == 11
    finally:
        sys.meta_path.remove(hook)


def trial(body: Callable[[int, Path], None]) -> Result:
    results: list[Result] = []
    mutant = find("number: 10 -> 11")
    run_trials([(mutant, 0.0, body)], jobs=2, done=results.append)
    assert [r.mutant for r in results] == [mutant]
    return results[0]


def test_how_a_trial_ends() -> None:
    def left_by_interruption(tell: int, folder: Path) -> None:
        raise KeyboardInterrupt

    def broken(tell: int, folder: Path) -> None:
        raise RuntimeError("in the tool")

    def crashing(tell: int, folder: Path) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    assert trial(lambda tell, folder: None).outcome == "survived"
    killed = trial(lambda tell, folder: kill("the test", tell))
    assert (killed.outcome, killed.by) == ("killed", "the test")
    assert trial(left_by_interruption).outcome == "killed"
    assert trial(crashing).outcome == "killed"
    found = trial(broken)
    assert (found.outcome, found.by) == ("broken", "RuntimeError('in the tool')")
    folder = Path(trial(lambda tell, folder: kill(f"{folder}", tell) if folder.is_dir() else None).by)
    assert folder.name.startswith("mutant-")
    assert not folder.exists()


def test_a_trial_without_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(tell: int, folder: Path) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(3600)

    monkeypatch.setattr("tools.mutants.trial._PATIENCE", 0.0)
    assert trial(endless).outcome == "timeout"


def test_the_order_of_tests(tmp_path: Path) -> None:
    (tmp_path / "box_under_test.py").write_text(SOURCE)
    uses = Uses(tmp_path, ["box_under_test.py"])
    covering = Covering("stamp", ["slow", "quick", "killer", "other"], [3.0, 1.0, 2.0, 0.1])
    line = SOURCE[: SOURCE.index("n % 2")].count("\n") + 1
    covering.lines["box_under_test.py"] = {line: [0, 1, 2]}
    order = Order(covering, uses, budget=100)
    mutant = find("compare: n % 2 == 0 -> n % 2 != 0")
    assert order.of(mutant) == [1, 2, 0]
    order.learn(mutant, "killer")
    assert order.of(mutant) == [2, 1, 0]
    assert Order(covering, uses, budget=3.5).of(mutant) == [1, 2]
    # A constant has the tests of the functions that use it.
    assert order.of(find("number: 10 -> 11")) == [1, 2, 0]
    assert order.of(find("return: return total -> return None")) == []


def test_what_was_measured_is_kept_until_something_changes(tmp_path: Path) -> None:
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "a.py").write_text("x = 1\n")
    stamp = stamp_of(tmp_path, ["sources"])
    kept = tmp_path / "kept.json"
    assert Covering.read(kept, stamp) is None
    covering = Covering(stamp, ["t"], [0.5], {"a.py": {1: [0]}})
    covering.write(kept)
    assert Covering.read(kept, stamp) == covering
    (tmp_path / "sources" / "a.py").write_text("x = 2\n")
    assert stamp_of(tmp_path, ["sources"]) != stamp
    assert Covering.read(kept, stamp_of(tmp_path, ["sources"])) is None
