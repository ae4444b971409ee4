"""Where the state machine keeps its container."""

from __future__ import annotations

import shutil
import tempfile
from random import Random
from typing import Protocol

from cnrfmt.storage.fs import POSIX, Fs


class Disk(Protocol):
    """Where the machine keeps its container."""

    folder: str
    """A path on it, of an empty directory."""
    can_lose_power: bool

    @property
    def fs(self) -> Fs:
        """The calls of a process that goes on."""
        ...

    def lose_power(self, random: Random) -> None:
        """Goes on with one of the states that a crash of the machine at this moment may leave."""
        ...

    def close(self) -> None:
        """Removes all of it."""
        ...


class FolderDisk:
    """A temporary directory of the real file system. Its power can't be cut."""

    can_lose_power = False

    def __init__(self) -> None:
        self.fs: Fs = POSIX
        self.folder = tempfile.mkdtemp(prefix="cnrfmt-machine-")

    def lose_power(self, random: Random) -> None:
        """Not here."""
        raise NotImplementedError

    def close(self) -> None:
        """Removes the directory."""
        shutil.rmtree(self.folder)
