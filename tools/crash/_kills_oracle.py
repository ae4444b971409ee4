"""What is known of a container while processes write to it and are killed: the journal, and its oracle."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import cnrfmt
from cnrfmt.testing import Model
from tools.crash.operations import OPERATIONS, check_tables


class Journal:
    """A file of lines that every process adds to: what it is going to do, and what came of it.

    A line is written by one call, so it is there whole, and stays there when its writer is killed.
    """

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        self._position = 0

    def write(self, **entry: Any) -> None:
        """Adds a line."""
        os.write(self._handle, (json.dumps(entry) + "\n").encode())

    def read(self) -> list[dict[str, Any]]:
        """The lines that were added since the last call."""
        data = b""
        while found := os.pread(self._handle, 1 << 16, self._position + len(data)):
            data += found
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        return [json.loads(line) for line in whole.splitlines()]

    def close(self) -> None:
        """Closes the file."""
        os.close(self._handle)


@dataclass(frozen=True)
class Attempt:
    """A commit that somebody was going to make: the operation, its source of chance and the head it was made for."""

    operation: str
    seed: int
    base: int | None


class Oracle:
    """Knows from the journal which commits are pending and which were acknowledged, and what each version says.

    Each attempt has a token, which the version carries as its `step`: so a version tells whose it is.
    """

    def __init__(self, kind: str, journal: Journal) -> None:
        self.kind, self.journal = kind, journal
        self.attempts: dict[int, Attempt] = {}
        self.refused: set[int] = set()
        self.acknowledged: dict[int, int] = {}
        self.errors: list[str] = []
        self.looks = 0
        self._tokens: dict[int, int] = {}
        self._models: dict[int, Model] = {}

    @property
    def floor(self) -> int:
        """The newest version that was acknowledged; -1 if there is none."""
        return max(self.acknowledged, default=-1)

    def update(self) -> None:
        """Reads what was added to the journal."""
        for entry in self.journal.read():
            if "pending" in entry:
                base = entry["base"]
                self.attempts[entry["pending"]] = Attempt(entry["operation"], entry["seed"], base and base[0])
                if base is not None:
                    self.learn(*base)
            elif "done" in entry:
                self.acknowledged[entry["version"]] = entry["done"]
                self.learn(entry["version"], entry["done"])
            elif "refused" in entry:
                self.refused.add(entry["refused"])
            elif "seen" in entry:
                self.learn(*entry["seen"])
            elif "looks" in entry:
                self.looks += entry["looks"]
            else:
                self.errors.append(entry["error"])

    def learn(self, version: int, token: int) -> None:
        """That this version is this attempt's; raises `AssertionError` if it can't be."""
        assert token in self.attempts, f"version {version} is of attempt {token}, which nobody made"
        assert token not in self.refused, f"version {version} is of attempt {token}, which was refused"
        known = self._tokens.setdefault(version, token)
        assert known == token, f"version {version} was of attempt {known}, and is of attempt {token} now"

    def see(self, found: cnrfmt.Checkpoint) -> None:
        """Learns from an open version whose it is, and tells the others: its writer may have died before it could."""
        assert found.step is not None
        if not self.knows(found.version):
            self.journal.write(seen=[found.version, found.step])
        self.learn(found.version, found.step)

    def knows(self, version: int) -> bool:
        """Whether it is known whose version that is."""
        return version in self._tokens

    def committed(self, token: int) -> bool:
        """Whether a version is known to be this attempt's."""
        return token in self._tokens.values()

    def model(self, version: int) -> Model:
        """What the container says at this version, older ones included."""
        if version not in self._models:
            attempt = self.attempts[self._tokens[version]]
            operation = OPERATIONS[attempt.operation]
            model = Model()
            if self.kind == "directory" or operation.commit is cnrfmt.append:
                model.versions = dict(self.model(version - 1).versions) if version else {}
            assert operation.commit is not None
            commit = model.append if operation.commit is cnrfmt.append else model.save
            commit(version, self.tables(attempt))
            self._models[version] = model
        return self._models[version]

    def tables(self, attempt: Attempt) -> dict[str, Any]:
        """What the attempt gives to its operation."""
        make = OPERATIONS[attempt.operation].tables
        assert make is not None
        return make(Model() if attempt.base is None else self.model(attempt.base), Random(attempt.seed))


def look(path: str, oracle: Oracle, found: cnrfmt.Checkpoint) -> None:
    """Raises `AssertionError` unless an open version is one that was pending or acknowledged, and whole."""
    oracle.update()
    oracle.see(found)
    for version in found.versions:
        if not oracle.knows(version):
            with cnrfmt.open(path, version=version, backend="pread", threads=1) as older:
                oracle.see(older)
    check_tables(found, oracle.model(found.version).versions[found.version])
