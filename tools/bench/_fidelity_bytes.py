"""What checkpoints of an encoding write and keep: sizes of real files.

A model is trained with a baseline behind the warm-up and a checkpoint after each interval. *Written* is what the files
have that a checkpoint adds, *compacted* what they have when the chain at the end is made one baseline. That is counted
twice: on the *whole* tables, and on tables of the *touched* rows alone, those that are looked up by the end of the run:
rows that nobody met yet cost some encodings next to nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import cnrfmt
from cnrfmt import Event, TableData
from cnrfmt.sizes import commit_sizes, sizes
from tools.bench._fidelity_encodings import Settings, manager
from tools.bench._fidelity_learners import STEPS, Learner
from tools.bench._training_data import Ids

Counted = dict[str, Any]
POLICIES = ("consecutive", "intermittent")


def touched_by_the_end(learner: Learner, warm: Mapping[str, Ids]) -> dict[str, Ids]:
    """The rows of each table that are looked up in the warm-up or later; trains from there to the end."""
    found = {table: [ids] for table, ids in warm.items()}
    for step in range(1, learner.intervals + 1):
        learner.train(step)
        if step % STEPS == 0:
            for table, ids in learner.touched().items():
                found[table].append(ids)
    return {table: np.unique(np.concatenate(parts)) for table, parts in found.items()}


def count(learner: Learner, warm: Path, folder: Path, settings: Settings, rows: Mapping[str, Ids]) -> Counted:
    """Trains from the warm-up on, with checkpoints by each policy; `rows` are those that are touched by the end."""
    with manager(warm, {"bits": 32}) as kept:
        learner.restore(kept)
    runs = {
        "consecutive": _Run(folder / "whole", settings, "consecutive", None),
        "intermittent": _Run(folder / "intermittent", settings, "intermittent", None),
        "touched": _Run(folder / "touched", settings, "consecutive", rows),
    }
    shares, marked = [], 0
    for step in range(learner.intervals + 1):
        if step:
            learner.train(step)
        if step % STEPS == 0:
            touched, tables = learner.touched(), learner.tables()
            changed = sum(map(len, touched.values()))
            shares.append(changed / sum(len(data.values) for data in tables.values()))
            marked += changed if step else 0
            for each in runs.values():
                each.checkpoint(step, learner, touched, tables)
    found: Counted = {name: each.end() for name, each in runs.items()}
    return {**found, "shares": shares[1:], "rows": marked}


class _Run:
    """The checkpoints of a policy, of all rows or of some of them."""

    def __init__(self, path: Path, settings: Settings, policy: str, rows: Mapping[str, Ids] | None) -> None:
        self._path, self._rows = path, rows
        self._written: list[int] = []
        self._parts: list[dict[str, int]] = []
        self._kinds: list[str] = []
        self._files: dict[str, int] = {}
        # Merging is the storage side's work; it is done once, at the end.
        self._manager = manager(path, settings, policy, merge_share=None, on_event=self._on)

    def checkpoint(
        self, step: int, learner: Learner, touched: Mapping[str, Ids], tables: Mapping[str, TableData]
    ) -> None:
        """Makes one, and measures it when it is durable."""
        if self._rows is not None:
            touched, tables = _of_rows(self._rows, touched, tables)
        if step:
            for table, ids in touched.items():
                self._manager.track(table, ids)
        self._manager.save(step, tables, dense=learner.dense(), reader=learner.position).wait()
        self._manager.wait()
        self._files = _list(self._path)
        self._parts.append(commit_sizes(self._path))
        if sum(self._parts[-1].values()) != self._written[-1]:
            raise SystemExit(f"{self._path}: parts {self._parts[-1]} aren't the files written {self._written[-1]}")

    def _on(self, event: Event) -> None:
        if event.kind in ("merged", "failed"):
            raise SystemExit(f"{self._path}: {event}")
        if event.kind == "committed":
            # Nothing is removed yet.
            files = _list(self._path)
            self._kinds.append(str(event.checkpoint))
            self._written.append(sum(size for name, size in files.items() if name not in self._files))

    def end(self) -> Counted:
        """What was written, and what the last version takes when it is compacted; removes all."""
        self._manager.close()
        target = self._path.with_name(self._path.name + "-compacted")
        cnrfmt.compact(self._path, target)
        kept = sum(_list(target).values())
        with cnrfmt.open(target) as ck:
            parts = sizes(ck).chain
        shutil.rmtree(self._path)
        shutil.rmtree(target)
        return {
            "written": self._written,
            "kinds": self._kinds,
            "parts": self._parts,
            "compacted": kept,
            "compacted parts": parts,
        }


def _of_rows(
    rows: Mapping[str, Ids], touched: Mapping[str, Ids], tables: Mapping[str, TableData]
) -> tuple[dict[str, Ids], dict[str, TableData]]:
    """The same of these rows alone, numbered anew. A keyed table has none but those anyway."""
    ids, found = dict(touched), dict(tables)
    for name, data in tables.items():
        if data.keys is None:
            ids[name] = np.searchsorted(rows[name], touched[name])
            found[name] = TableData(data.values[rows[name]], {c: v[rows[name]] for c, v in data.columns.items()})
    return ids, found


def _list(path: Path) -> dict[str, int]:
    return {str(p.relative_to(path)): p.stat().st_size for p in path.rglob("*") if p.is_file()}


def bandwidth(found: Counted, full: Counted, of: str) -> float:
    """How many times less is written than by checkpoints in float32 that are all full, the baseline counted."""
    written = found[of]["written"]
    return len(written) * float(full[of]["written"][0]) / float(sum(written))


def bandwidth_of_deltas(found: Counted, full: Counted) -> float:
    """The same with the baseline left out."""
    written = found["consecutive"]["written"][1:]
    return len(written) * float(full["consecutive"]["written"][0]) / float(sum(written))


def capacity(found: Counted, full: Counted, of: str) -> float:
    """How many times less is kept, compacted, than a full checkpoint in float32."""
    return float(full[of]["compacted"]) / float(found[of]["compacted"])
