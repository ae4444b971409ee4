"""Which tests run which lines, and how long each takes: what is tried against a mutant, and in which order."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tools.mutants.mutate import Mutant


@dataclass
class Covering:
    """The tests of a run, with their seconds, and by file and line the numbers of those that ran it."""

    stamp: str
    tests: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    lines: dict[str, dict[int, list[int]]] = field(default_factory=dict)

    @staticmethod
    def read(file: Path, stamp: str) -> Covering | None:
        """What was measured before; None if tests or sources have changed since."""
        if not file.exists():
            return None
        value = json.loads(file.read_text("utf-8"))
        if value["stamp"] != stamp:
            return None
        lines = {path: {int(n): tests for n, tests in by_line.items()} for path, by_line in value["lines"].items()}
        return Covering(stamp, value["tests"], value["seconds"], lines)

    def write(self, file: Path) -> None:
        """Keeps it for the next run."""
        file.write_text(json.dumps(self.__dict__), "utf-8")

    def of_lines(self, path: str, numbers: Iterable[int]) -> set[int]:
        """The tests that run one of these lines."""
        by_line = self.lines.get(path, {})
        return {test for n in numbers for test in by_line.get(n, ())}


def stamp_of(root: Path, folders: Iterable[str]) -> str:
    """Changes whenever a Python file below the folders does."""
    mark = hashlib.sha256()
    for folder in folders:
        below = root / folder
        for file in sorted(below.rglob("*.py")) if below.is_dir() else [below]:
            mark.update(str(file.relative_to(root)).encode() + file.read_bytes())
    return mark.hexdigest()


class Uses:
    """Which lines use a name: the tests of a constant are those of the functions that it is used in."""

    def __init__(self, root: Path, paths: Iterable[str]) -> None:
        self._lines: dict[str, set[tuple[str, int]]] = {}
        self._constants: dict[str, set[str]] = {}
        for path in paths:
            tree = ast.parse((root / path).read_text("utf-8"))
            for statement in tree.body:
                self._add_constant(statement)
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    self._add_lines(path, node)

    def _add_constant(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            made = {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
            for name in _names_in(statement.value):
                self._constants.setdefault(name, set()).update(made)

    def _add_lines(self, path: str, node: ast.FunctionDef | ast.ClassDef) -> None:
        body = range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)
        names = {node.name} | (_names_in(node) if isinstance(node, ast.FunctionDef) else set())
        for name in names:
            self._lines.setdefault(name, set()).update((path, n) for n in body)

    def lines(self, names: Iterable[str]) -> set[tuple[str, int]]:
        """The lines of the functions that use one of these names, or a constant made of them."""
        todo, seen = list(names), set(names)
        while todo:
            more = self._constants.get(todo.pop(), set()) - seen
            seen |= more
            todo += more
        return {line for name in seen for line in self._lines.get(name, ())}


def _names_in(node: ast.AST) -> set[str]:
    found = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return found | {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}


class Order:
    """The tests to try against a mutant: those that killed its neighbours first, then the quickest."""

    def __init__(self, covering: Covering, uses: Uses, budget: float) -> None:
        self._covering, self._uses, self._budget = covering, uses, budget
        self._numbers = {name: n for n, name in enumerate(covering.tests)}
        self._killers: dict[str, list[int]] = {}

    def of(self, mutant: Mutant) -> list[int]:
        """The numbers of the tests, as many as the budget of seconds allows."""
        covering = self._covering
        if mutant.function:
            first, last = mutant.lines
            found = covering.of_lines(mutant.path, range(first, last + 1))
        else:
            found = {t for path, n in self._uses.lines(mutant.names) for t in covering.of_lines(path, [n])}
        killers = [n for n in reversed(self._killers.get(self._place(mutant), [])) if n in found]
        rest = sorted(found - set(killers), key=lambda n: covering.seconds[n])
        chosen: list[int] = []
        total = 0.0
        for n in (*killers, *rest):
            total += covering.seconds[n]
            if chosen and total > self._budget:
                break
            chosen.append(n)
        return chosen

    def learn(self, mutant: Mutant, test: str) -> None:
        """A test has killed this mutant."""
        number = self._numbers.get(test)
        if number is not None:
            killers = self._killers.setdefault(self._place(mutant), [])
            if number in killers:
                killers.remove(number)
            killers.append(number)
            del killers[:-6]

    @staticmethod
    def _place(mutant: Mutant) -> str:
        return f"{mutant.path}:{mutant.function or mutant.names}"
