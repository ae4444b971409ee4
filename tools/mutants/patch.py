"""Putting a mutant in the place of what it was made of: in a process that runs, or while the module is imported.

A change inside a function is made in place: the function object gets the code of the changed one, whatever decorators
hold it by now. So a process that has all tests loaded is forked for each mutant, and starts with the first test at
once. What runs only while its module is imported (constants, defaults, fields) needs an import of its own.
"""

from __future__ import annotations

import gc
import importlib.abc
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from tools.mutants.mutate import Mutant, mutated


class NotInPlaceError(Exception):
    """The function can't be changed in place."""


class Functions:
    """The functions of some modules that this process has, by file, name and line."""

    def __init__(self, files: set[str]) -> None:
        self._found: dict[tuple[str, str, int], list[FunctionType]] = {}
        for thing in gc.get_objects():
            if type(thing) is FunctionType and thing.__code__.co_filename in files:
                code = thing.__code__
                key = (code.co_filename, code.co_qualname, code.co_firstlineno)
                self._found.setdefault(key, []).append(thing)

    def put(self, root: Path, mutant: Mutant) -> None:
        """Changes the function; raises `NotInPlaceError` where it can't be done."""
        file = str(root / mutant.path)
        code = _code(root, mutant)
        wanted = (mutant.function, mutant.first_line)
        found = [c for c in _codes(code) if (c.co_qualname, c.co_firstlineno) == wanted]
        functions = self._found.get((file, *wanted), [])
        if len(found) != 1 or not functions:
            raise NotInPlaceError
        for function in functions:
            if function.__code__.co_freevars != found[0].co_freevars:
                raise NotInPlaceError
            function.__code__ = found[0]


class ImportHook(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Hands out the changed module when it is imported."""

    def __init__(self, root: Path, mutant: Mutant) -> None:
        self._root, self._mutant = root, mutant
        self._name = mutant.path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's place, with this as its loader."""
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._root / self._mutant.path, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        """Runs the changed source."""
        exec(_code(self._root, self._mutant), module.__dict__)

    def put(self) -> None:
        """Makes the next import of the module one of the changed source."""
        assert self._name not in sys.modules
        sys.meta_path.insert(0, self)


def _code(root: Path, mutant: Mutant) -> CodeType:
    file = root / mutant.path
    tree = mutated(file.read_text("utf-8"), mutant)
    return compile(tree, str(file), "exec", dont_inherit=True)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
