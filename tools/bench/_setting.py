"""What every group of figures is given, and the files that they share."""

from __future__ import annotations

import functools
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cnrfmt
from tools.bench import _data
from tools.bench._figures import say

ENCODINGS: dict[str, cnrfmt.Quantize | None] = {
    "raw": None,
    "8-bit": cnrfmt.Quantize(bits=8),
    "4-bit": cnrfmt.Quantize(bits=4),
}


@dataclass(frozen=True, eq=False)
class Setting:
    """Where files go, how often things are repeated, and how large they are."""

    folder: Path
    quick: bool
    repeat: int

    @property
    def short_repeat(self) -> int:
        """Rounds of what takes a millisecond or so: one page fault more or less shows there."""
        return self.repeat if self.quick else 20 * self.repeat

    @functools.cached_property
    def tables(self) -> dict[str, Any]:
        """The model, in memory."""
        say("making the tables")
        return _data.model(quick=self.quick)

    @property
    def nbytes(self) -> int:
        """Its size in float32."""
        return sum(values.nbytes for values in self.tables.values())

    def container(self, encoding: str) -> Path:
        """A container of the model in an encoding, saved once and never changed."""
        path = self.folder / f"model-{encoding}.cnr"
        if not path.exists():
            say(f"saving {path.name}")
            cnrfmt.save(path, self.tables, quantize=ENCODINGS[encoding])
        return path


def clear(*paths: Path) -> None:
    """Removes what an earlier round left, and waits until the disk has nothing to do."""
    for path in paths:
        for found in path.parent.glob(f"*{path.name}*"):
            shutil.rmtree(found) if found.is_dir() else found.unlink()
    os.sync()


def sync_file(path: Path) -> None:
    """What a peer must do to be as durable as `cnrfmt.save`: fsync of the file and of its folder."""
    for place in (path, path.parent):
        handle = os.open(place, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def warm(path: Path) -> None:
    """Brings a file into the page cache by reading it from the disk, front to back.

    What a program writes stays in the cache in blocks as large as its writes were, and the larger they are, the fewer
    page faults does a mapping take. So all files are evicted first, and come back in the same way.
    """
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while file.read(16 << 20):
            pass
