"""The demo's container: the manager that writes it, and what each of its checkpoints took."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cnrfmt
from cnrfmt import sizes
from cnrfmt.checkpointing.events import Listener
from cnrfmt.demo.model import KEYED, SETTINGS
from cnrfmt.format.schema import WEIGHT
from cnrfmt.format.toc import TableEntry

MADE_BY = {"made_by": "cnrfmt demo"}
"""The user metadata of the demo's containers: what may be overwritten by the next demo."""
RAW_BITS = 32
RESTORES = 1
"""How often the run goes on from a checkpoint: it is killed once."""
PARTS = ("rows", "ids", "optimizer", "dense", "metadata")


@dataclass(frozen=True)
class Store:
    """A single file, and how the trainer's checkpoints are written to it.

    Without `bits`, weights are integers on a grid whose steps follow from the learning rate, but for the pairs. With
    `bits`, each row has so many per element, 32 for raw float32; up to 4, scale and bias come from the greedy search of
    Check-N-Run. Accumulators are 12-bit logarithmic codes unless rows are raw. `policy` is the name of a manager's.
    """

    path: Path
    bits: int | None = None
    policy: str = "consecutive"
    threads: int | None = None

    def manager(self, on_event: Listener | None = None) -> cnrfmt.CheckpointManager:
        """A manager of the file; raises `UsageError` for settings that there aren't."""
        options: dict[str, Any] = {"bits": self.bits}
        if self.bits is None:
            # The elements of a pair's row begin alike and move alike. On a grid they would all be off by the same; two
            # bits between the least and the greatest of them are nearly exact.
            options = {"encoding": {KEYED: cnrfmt.Quantize(bits=2)}}
            options |= {"learning_rate": float(SETTINGS.rate), "expected_restores": RESTORES}
        if self.threads is not None:
            options |= {"threads": self.threads, "save_threads": self.threads}
        return cnrfmt.CheckpointManager(self.path, policy=self.policy, on_event=on_event, **options)


def words_of(bits: int | None) -> str:
    """How weights are stored, as the bits of a `Store` say it."""
    return {None: "on a grid", RAW_BITS: "in raw float32"}.get(bits, f"in rows of {bits} bits")


def written(path: Path, version: int) -> dict[str, dict[str, int]]:
    """What committing a version wrote: the ``rows`` of each table, and ``bytes`` by `PARTS`."""
    with cnrfmt.open(path, version=version, threads=1) as ck:
        return {"rows": _rows(ck), "bytes": _by_part(sizes.sizes(ck).commit)}


def _by_part(commit: sizes.Sizes) -> dict[str, int]:
    """The bytes of a commit by `PARTS`.

    Weights, row ids, optimizer states and dense state as they are stored; and metadata, which is all that
    goes with them: manifest, tables of contents, digests, padding, and the pages that name the version.
    """
    parts = {
        "rows": commit["weights"] + commit["exceptions"],
        "ids": commit["ids"],
        "optimizer": commit["optimizer"],
        "dense": commit["dense"],
    }
    return {**parts, "metadata": sum(commit.values()) - sum(parts.values())}


def _rows(ck: cnrfmt.Checkpoint) -> dict[str, int]:
    """How many rows of each table the newest segment of a version has."""
    found = ck.view.segments[ck.manifest.chain[-1].segment].toc.by_table
    entries = {table.name: found.get(table.table_id) for table in ck.manifest.tables}

    def count(entry: TableEntry | None) -> int:
        # The rows of an exception part are among those of its main part.
        parts = () if entry is None else entry.parts
        used = {part.rows for part in parts if part.column == WEIGHT and part.exceptions_of is None}
        return 0 if entry is None else sum(entry.row_sets[rows].count for rows in used)

    return {name: count(entry) for name, entry in entries.items()}


def is_demo(path: Path) -> bool:
    """Whether a container was made by the demo, so that the next may take its place."""
    try:
        with cnrfmt.open(path) as ck:
            return all(ck.metadata.get(key) == value for key, value in MADE_BY.items())
    except cnrfmt.CnrError:
        return False
