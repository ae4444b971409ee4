"""Checks that run once for all states which look alike to them.

A check is a function of what it reads through the file system. `ProbedFs` notes what that was while a check runs on
one state; every other state that would have given the same answers has the same result, so the check needn't run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from tools.crash._memory import File, Folder
from tools.crash.recording import RecordingFs
from tools.crash.states import CrashSpace

Result = TypeVar("Result", bound=Hashable)
_Questions = tuple[int, tuple[int, ...], tuple[int, ...]]


class ProbedFs(RecordingFs):
    """A disk in one state, which notes what is read of it. What is written to it is no answer of the state's."""

    def __init__(self, space: CrashSpace, state: int) -> None:
        super().__init__(space.disk(state))
        self._space = space
        self._mask = 0
        self._sizes: set[int] = set()
        self._lists: set[int] = set()
        # Up to where the bytes of a file may still be those of the state.
        self._reach = {number: file.size(state) for number, file in space.files.items()}

    @property
    def questions(self) -> _Questions:
        """The bits, the lengths of files and the names of directories that were asked for."""
        return self._mask, tuple(sorted(self._sizes)), tuple(sorted(self._lists))

    def saw_bytes(self, number: int, start: int, stop: int) -> None:
        """An answer depends on these bytes of a file, and on whether they are there."""
        file = self._space.files.get(number)
        if file is not None:
            self._mask |= file.seen(start, min(stop, self._reach[number]))
            if stop > file.least:
                self._sizes.add(number)

    def saw_size(self, number: int) -> None:
        """An answer depends on the file's length."""
        if number in self._space.files:
            self._sizes.add(number)

    def truncate(self, handle: int, size: int) -> None:
        """Cuts or extends the file; what lay behind isn't the state's any more."""
        super().truncate(handle, size)
        number = self._handles[handle].file.number
        self._reach[number] = min(self._reach.get(number, 0), size)

    def _saw_bytes(self, file: File, start: int, stop: int) -> None:
        self.saw_bytes(file.number, start, stop)

    def _saw_size(self, file: File) -> None:
        self.saw_size(file.number)

    def _saw_name(self, folder: Folder, name: str) -> None:
        if folder.number in self._space.folders:
            self._mask |= self._space.folders[folder.number].seen(name)

    def _saw_names(self, folder: Folder) -> None:
        if folder.number in self._space.folders:
            self._lists.add(folder.number)


class Once(Generic[Result]):
    """A check, and its results so far, for the states of one space."""

    def __init__(self, space: CrashSpace, check: Callable[[ProbedFs], Result]) -> None:
        self.space, self._check = space, check
        self.runs = 0
        """How often the check ran."""
        self._known: dict[_Questions, dict[Hashable, Result]] = {}

    def __call__(self, state: int) -> Result:
        """The result for a state; runs the check unless a state that looked alike to it was checked before."""
        for questions, results in self._known.items():
            answers = self._answers(questions, state)
            if answers in results:
                return results[answers]
        fs, result = self.run(state)
        self._known.setdefault(fs.questions, {})[self._answers(fs.questions, state)] = result
        return result

    def run(self, state: int) -> tuple[ProbedFs, Result]:
        """Runs the check, whatever is known."""
        fs = ProbedFs(self.space, state)
        self.runs += 1
        result = self._check(fs)
        fs.end_process()
        return fs, result

    def _answers(self, questions: _Questions, state: int) -> Hashable:
        mask, sizes, lists = questions
        files, folders = self.space.files, self.space.folders
        return (
            state & mask,
            tuple([files[number].size(state) for number in sizes]),
            tuple([folders[number].key(state) for number in lists]),
        )
