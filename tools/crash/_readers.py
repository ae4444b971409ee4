"""Readers that have any version open, or open it, while an operation goes on: between any two of its changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from types import TracebackType
from typing import Self

import cnrfmt
from cnrfmt import VersionNotFoundError
from tools.crash._memory import Event
from tools.crash.expected import check_tables
from tools.crash.operations import Step
from tools.crash.recording import RecordingFs


class Readers:
    """A context in which readers of all versions look on.

    They read right rows, or are told that their version has expired; that only if it is given up. Raises
    `AssertionError` at its end, unless there is another error, if one of them has read anything else.
    """

    def __init__(self, fs: RecordingFs, path: str, doing: Step, seed: int) -> None:
        self._fs, self._path, self._doing = fs, path, doing
        self._random = Random(seed)
        self._open = ExitStack()
        self._readers: list[cnrfmt.Checkpoint] = []
        self._wrong: list[str] = []
        self.gone = 0
        """How often one of them was told that its version is gone."""

    def __enter__(self) -> Self:
        before = self._doing.before
        # Some have read what they opened, others come to it when it may be gone.
        for version in before.versions:
            ck = self._open.enter_context(cnrfmt.open(self._path, version=version, threads=1, fs=self._fs))
            self._readers.append(ck)
        self._fs.watch = self._look
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._fs.watch = None
        for ck in self._readers:
            self._read(ck, "when it was done")
            self._open_and_read(ck.version, "when it was done")
        self._open.close()
        if error is None:
            assert not self._wrong, self._wrong[0]

    def _look(self, event: Event) -> None:
        if not self._readers or self._random.random() < 0.8:
            return
        ck, when = self._random.choice(self._readers), f"before a {event.call}"
        if self._random.random() < 0.7:
            self._read(ck, when)
        else:
            # What this opens and closes is no part of the operation.
            self._open_and_read(ck.version, when)

    def _open_and_read(self, version: int, when: str) -> None:
        with self._right(version, when), cnrfmt.open(self._path, version=version, threads=1, fs=self._fs) as ck:
            check_tables(ck, self._doing.before.versions[version])

    def _read(self, ck: cnrfmt.Checkpoint, when: str) -> None:
        with self._right(ck.version, when):
            check_tables(ck, self._doing.before.versions[ck.version])

    @contextmanager
    def _right(self, version: int, when: str) -> Iterator[None]:
        """Notes what is wrong with what a reader is told within."""
        doing = self._doing
        try:
            yield
        except VersionNotFoundError as error:
            self.gone += 1
            if version in doing.after.versions:
                self._wrong.append(f"{doing.operation.name}, {when}: version {version} stays, and is gone: {error}")
        except Exception as error:
            self._wrong.append(f"{doing.operation.name}, {when}: a reader of version {version}: {error!r}")
