"""What many ranks write together while they are killed: tables of every kind, and what each version must say.

All of it follows from an attempt's token, which its version carries as its `step`.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

import cnrfmt
from cnrfmt import Deleted, Rows, TableData
from cnrfmt.checkpointing.ranks.commit import commit_together, plan_together
from cnrfmt.checkpointing.ranks.coordinator import Coordinator
from cnrfmt.checkpointing.ranks.shards import Shard
from cnrfmt.commits import Attempt
from cnrfmt.dense import prepare
from cnrfmt.encodings import Recipe
from cnrfmt.format.encoding import RawLayout
from cnrfmt.format.manifest import Manifest, parse_manifest
from cnrfmt.storage.container import open_container
from cnrfmt.storage.fs import Fs

ROWS, DIM, SMALL = 96, 8, 5
KEYS = range(-40, 40)


def values(token: int, table: str, rows: int, dim: int) -> np.ndarray:
    """Rows that no other attempt gives: a row of another version is never taken for this one's."""
    found: np.ndarray = np.random.default_rng([token, *table.encode()]).standard_normal((rows, dim), np.float32)
    return found


def _some(token: int, table: str, count: int) -> np.ndarray:
    found: np.ndarray = np.random.default_rng([token, 1, *table.encode()]).random(count) < 0.3
    return found


def is_delta(token: int) -> bool:
    """Whether an attempt on a container that has a version writes a delta."""
    return token % 10 not in (0, 7)


@dataclass
class State:
    """What a version says."""

    rows: np.ndarray = field(default_factory=lambda: np.empty((0, DIM), np.float32))
    sums: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))
    elements: np.ndarray = field(default_factory=lambda: np.empty((0, DIM), np.float32))
    whole: np.ndarray = field(default_factory=lambda: np.empty((0, 2), np.float32))
    keyed: dict[int, np.ndarray] = field(default_factory=dict)

    def after(self, token: int, *, delta: bool) -> State:
        """What the version of this attempt says."""
        w, e = values(token, "rows", ROWS, DIM), values(token, "elements", ROWS, DIM)
        k = dict(zip(KEYS, values(token, "keyed", len(KEYS), 2), strict=True))
        written, gone = _keys(token)
        if not delta:
            return State(w, w[:, 0], e, values(token, "whole", SMALL, 2), {key: k[key] for key in written})
        new = copy.deepcopy(self)
        touched = _some(token, "rows", ROWS)
        new.rows[touched], new.sums[touched] = w[touched], w[touched, 0]
        touched = _some(token, "elements", ROWS)
        new.elements[touched] = e[touched]
        if token % 2:
            new.whole[1] = values(token, "whole", SMALL, 2)[1]
        new.keyed.update((key, k[key]) for key in written)
        for key in gone:
            new.keyed.pop(key, None)
        return new

    def check(self, found: cnrfmt.Checkpoint) -> None:
        """Raises `AssertionError` unless an open version says this, bit for bit."""
        assert set(found) == {"rows", "elements", "whole", "keyed"}, f"tables {sorted(found)}"
        keys = sorted(self.keyed)
        assert found["keyed"].keys is not None
        assert found["keyed"].keys.tolist() == keys, f"keys of version {found.version} differ"
        keyed = np.array([self.keyed[key] for key in keys], np.float32).reshape(-1, 2)
        for name, column, expected in (
            ("rows", "weight", self.rows),
            ("rows", "sums", self.sums),
            ("elements", "weight", self.elements),
            ("whole", "weight", self.whole),
            ("keyed", "weight", keyed),
        ):
            read = found[name].read(column=column)
            assert read.tobytes() == expected.tobytes(), f"values of {name}.{column} of version {found.version} differ"


def _keys(token: int) -> tuple[list[int], list[int]]:
    """The keys that an attempt writes, and those that a delta deletes."""
    fate = np.random.default_rng([token, 2]).integers(0, 4, len(KEYS))
    return [k for k, f in zip(KEYS, fate, strict=True) if f < 2], [k for k, f in zip(KEYS, fate, strict=True) if f == 2]


def tables(token: int, rank: int, ranks: int, *, delta: bool) -> dict[str, Any]:
    """What a rank writes of an attempt: some rows, some elements, whole tables or none, its own keys."""
    w, e = values(token, "rows", ROWS, DIM), values(token, "elements", ROWS, DIM)
    first, end = _part(ROWS, rank, ranks)
    a, b = _part(DIM, rank, ranks)
    k = dict(zip(KEYS, values(token, "keyed", len(KEYS), 2), strict=True))
    written, gone = ([key for key in some if key % ranks == rank] for some in _keys(token))
    own = np.array([k[key] for key in written], np.float32).reshape(-1, 2)
    keys = np.array(written, np.int64)
    found: dict[str, Any] = {}
    if not delta:
        found["rows"] = Shard(w[first:end], {"sums": w[first:end, 0]}, rows=(first, end), of_rows=ROWS)
        found["elements"] = Shard(e[:, a:b], elements=(a, b), of_dim=DIM)
        found["keyed"] = TableData(own, keys=keys)
        if token % ranks == rank:
            found["whole"] = values(token, "whole", SMALL, 2)
        return found
    ids = np.flatnonzero(_some(token, "rows", ROWS))
    ids = ids[(ids >= first) & (ids < end)]
    found["rows"] = Rows(ids, w[ids], {"sums": w[ids, 0]})
    ids = np.flatnonzero(_some(token, "elements", ROWS))
    found["elements"] = Shard(Rows(ids, e[ids, a:b]), elements=(a, b), of_dim=DIM)
    found["keyed"] = (Rows(keys, own), Deleted(np.array(gone, np.int64)))
    if token % 2 and token % ranks == rank:
        found["whole"] = Rows([1], values(token, "whole", SMALL, 2)[1:2])
    return found


def _part(count: int, rank: int, ranks: int) -> tuple[int, int]:
    edges = [count * number // ranks for number in range(ranks + 1)]
    return list(pairwise(edges))[rank]


def head_of(path: str) -> Manifest | None:
    """The newest manifest; None where no version was ever committed."""
    try:
        with open_container(path) as container:
            return parse_manifest(container.head().data, path)
    except (cnrfmt.StorageError, cnrfmt.DamagedError) as error:
        if isinstance(error, cnrfmt.DamagedError) and error.rule != "directory-layout":
            raise
        return None


def attempt(coordinator: Coordinator, path: str, token: int, fs: Fs | None) -> Manifest:
    """One version that all ranks write together."""
    base = head_of(path)
    delta = base is not None and is_delta(token)
    mine = tables(token, coordinator.rank, coordinator.world_size, delta=delta)

    def recipe(table: Any, column: Any) -> Recipe:
        return Recipe(RawLayout(column.dtype))

    schema = base.tables if base is not None and delta else None
    agreement, writes = plan_together(coordinator, mine, None, schema, recipe)

    def draft(one: Attempt) -> Manifest:
        return one.next(one.head if delta else None, step=token, tables=agreement.tables)

    def complete(manifest: Manifest, notes: Any) -> Manifest:
        return replace(manifest, metadata={"ranks": [int(note) for note in notes]})

    return commit_together(
        coordinator,
        path,
        draft=draft,
        writes=writes,
        dense=None if coordinator.rank else prepare({"reader": token}),
        note=lambda: b"%d" % coordinator.rank,
        complete=complete,
        fs=fs,
    )
