"""What is known of a container while processes write to it and are killed: the journal, and its oracle."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import cnrfmt
from cnrfmt import VersionExpiredError
from cnrfmt.format.manifest import Manifest
from tools.crash.expected import Expected, check_tables
from tools.crash.operations import OPERATIONS


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

    Each attempt has a token, which stands in the commit ids that it makes: so a version tells whose it is. An attempt
    may commit several versions, one after the other.
    """

    def __init__(self, kind: str, journal: Journal) -> None:
        self.kind, self.journal = kind, journal
        self.attempts: dict[int, Attempt] = {}
        self.refused: set[int] = set()
        self.acknowledged: dict[int, int] = {}
        self.errors: list[str] = []
        self.looks = 0
        self.served = 0
        self._tokens: dict[int, int] = {}
        self._models: dict[int, Expected] = {}

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
            elif "served" in entry:
                self.served += entry["served"]
            else:
                self.errors.append(entry["error"])

    def learn(self, version: int, token: int) -> None:
        """That this version is this attempt's; raises `AssertionError` if it can't be."""
        assert token in self.attempts, f"version {version} is of attempt {token}, which nobody made"
        assert token not in self.refused, f"version {version} is of attempt {token}, which was refused"
        known = self._tokens.setdefault(version, token)
        assert known == token, f"version {version} was of attempt {known}, and is of attempt {token} now"

    def see(self, found: Manifest) -> None:
        """Learns from a version whose it is, and tells the others: its writer may have died before it could."""
        token = token_of(found)
        if not self.knows(found.version):
            self.journal.write(seen=[found.version, token])
        self.learn(found.version, token)

    def see_all(self, path: str, found: Manifest, versions: Iterable[int]) -> None:
        """The same of these older versions, too; raises `VersionNotFoundError` where one was given up meanwhile."""
        self.update()
        self.see(found)
        for version in versions:
            if not self.knows(version):
                with cnrfmt.open(path, version=version, backend="pread", threads=1) as older:
                    self.see(older.manifest)

    def knows(self, version: int) -> bool:
        """Whether it is known whose version that is."""
        return version in self._tokens

    def committed(self, token: int) -> bool:
        """Whether a version is known to be this attempt's."""
        return token in self._tokens.values()

    def model(self, version: int) -> Expected:
        """What the container says at this version, older ones included."""
        if version not in self._models:
            token = self._tokens[version]
            attempt = self.attempts[token]
            operation = OPERATIONS[attempt.operation]
            # Whoever commits twice is alone, so that nobody comes between.
            stage = version - (-1 if attempt.base is None else attempt.base) - 1 if operation.alone else 0
            first = version - stage
            before = self._before(first, operation.anew)
            stages = operation.after(before, self.given(attempt), self.kind)
            assert stage < len(stages), f"version {version} is of attempt {token}, which makes {len(stages)}"
            for number, after in enumerate(stages[: stage + 1], first):
                self._models[number] = after
                self._tokens.setdefault(number, token)
            found = self._models[version].head
            assert found == version, f"version {version} is of attempt {token}, which was to make {found}"
        return self._models[version]

    def _before(self, version: int, anew: bool) -> Expected:
        """What was there before this version; of a file that is written anew, nothing is asked but its number."""
        if version == 0:
            return Expected()
        if self.kind == "file" and anew:
            before = Expected()
            before.versions[version - 1] = {}
            return before
        return self.model(version - 1)

    def given(self, attempt: Attempt) -> Any:
        """What the attempt gives to its operation."""
        before = Expected() if attempt.base is None else self.model(attempt.base)
        return OPERATIONS[attempt.operation].given(before, Random(attempt.seed))


@contextmanager
def signed(token: int) -> Iterator[list[bytes]]:
    """Within, ids have the token of an attempt in them; gives the list of those that were made."""
    real, made = os.urandom, list[bytes]()

    def sign(count: int) -> bytes:
        made.append(real(count - 8) + token.to_bytes(8, "big"))
        return made[-1]

    with patch.object(os, "urandom", sign):
        yield made


def token_of(found: Manifest) -> int:
    """Whose a version is."""
    return int.from_bytes(found.commit_id[-8:], "big")


def look(path: str, oracle: Oracle, found: cnrfmt.Checkpoint) -> None:
    """Raises `AssertionError` unless an open version is one that was pending or acknowledged, and whole."""
    oracle.see_all(path, found.manifest, found.versions)
    try:
        check_tables(found, oracle.model(found.version).versions[found.version])
    except VersionExpiredError:
        with cnrfmt.open(path, backend="pread", threads=1) as newest:
            assert found.version not in newest.versions, f"version {found.version} stays, and has expired"
        raise
