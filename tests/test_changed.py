"""`Table.changed` on histories that fork and merge, against a comparison of whole versions."""

from __future__ import annotations

import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cnrfmt
from cnrfmt import Deleted, Rows, TableData
from cnrfmt.commits import attempt
from cnrfmt.plan import plan_delta
from cnrfmt.storage.directory import SEGMENTS, segment_name
from cnrfmt.writer import KnownRecipes

F32 = np.float32
DIM = 3
Content = dict[str, dict[int, bytes]]


def values(rng: random.Random, count: int) -> Any:
    # Few values, so that a row is now and then given the one that it had.
    return np.array([[rng.randrange(3)] * DIM for _ in range(count)], F32).reshape(count, DIM)


def commit_on(path: Path, base: int, tables: dict[str, Any], *, keep: int | None = None, same: bool = False) -> int:
    """Commits a delta on an older version, or in the place of all steps of its chain but the first `keep`."""
    with cnrfmt.open(path, version=base) as ck:
        manifest = ck.manifest
    with attempt(str(path)) as one:
        plan = plan_delta(tables, manifest.tables, None, KnownRecipes(one.tx, manifest).of)
        if keep is not None:
            chain = manifest.chain[:keep]
            attached = manifest.attachments[: max((sum(e.toc) for e in chain if e.toc), default=0)]
            manifest = replace(manifest, chain=chain, attachments=attached)
        found = one.next(manifest, same_state=same, tables=plan.tables)
        return one.commit(one.write(found, plan.writes, None, threads=1)).version


def merge_into_one(path: Path, version: int) -> int:
    """The content of a version again, as its baseline and one delta."""
    with cnrfmt.open(path, version=version) as ck:
        tables: dict[str, Any] = {}
        for name, t in ck.items():
            changes = t.changed(0)
            assert changes.exact
            rows = Rows(changes.rows, t[changes.rows], rows=None if t.keyed else len(t))
            tables[name] = (rows, Deleted(changes.deleted)) if t.keyed else rows
    return commit_on(path, version, tables, keep=1, same=True)


def content_of(path: Path, version: int) -> Content:
    loaded = cnrfmt.load(path, version=version, columns=True)
    return {
        name: {
            int(key): row.tobytes()
            for key, row in zip(range(len(t.values)) if t.keys is None else t.keys, t.values, strict=True)
        }
        for name, t in loaded.items()
    }


class Branchy:
    """A random history: every commit builds on any of the versions, or says one of them in other words."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path, self.rng = path, random.Random(seed)
        rng = self.rng
        keys = sorted(rng.sample(range(30), 8))
        tables = {"d": values(rng, 12), "k": TableData(values(rng, 8), keys=keys), "still": values(rng, 4)}
        cnrfmt.save(path, tables)
        self.contents = [content_of(path, 0)]
        self.states: list[list[bytes]] = []
        self.touches: dict[bytes, dict[str, set[int]]] = {}
        self.parents: dict[bytes, bytes | None] = {}
        self._note(0, None, {})

    def _note(self, version: int, base: int | None, touched: dict[str, set[int]]) -> None:
        """Remembers the states of a version's chain, and all that was touched since each of them."""
        with cnrfmt.open(self.path, version=version) as ck:
            self.states.append([entry.to_state for entry in ck.manifest.chain])
            state = ck.manifest.state
        if state not in self.touches:
            self.touches[state] = touched
            self.parents[state] = None if base is None else self.states[base][-1]

    def grow(self) -> None:
        rng, base = self.rng, self.rng.randrange(len(self.contents))
        content = self.contents[base]
        if rng.random() < 0.2 and len(self.states[base]) > 2:
            self.contents.append(content)
            self._note(merge_into_one(self.path, base), base, {})
            assert content_of(self.path, len(self.contents) - 1) == content
            return
        tables: dict[str, Any] = {}
        touched: dict[str, set[int]] = {}
        if rng.random() < 0.8:
            before = len(content["d"])
            rows = before + rng.choice([0, 0, 3, -3])
            rows = max(rows, 0)
            ids = rng.sample(range(rows), min(rows, rng.randrange(5)))
            tables["d"] = Rows(np.array(ids, np.int64), values(rng, len(ids)), rows=rows)
            touched["d"] = {*ids, *range(min(rows, before), max(rows, before))}
        if rng.random() < 0.8:
            some = rng.sample(range(30), rng.randrange(8))
            cut = rng.randrange(len(some) + 1)
            written = Rows(np.array(some[:cut], np.int64), values(rng, cut))
            tables["k"] = (written, Deleted(np.array(some[cut:], np.int64)))
            touched["k"] = set(some)
        if not tables:
            return
        version = commit_on(self.path, base, tables)
        self.contents.append(content_of(self.path, version))
        self._note(version, base, touched)

    def touched_since(self, version: int, state: bytes, name: str) -> set[int]:
        found: set[int] = set()
        at: bytes | None = self.states[version][-1]
        while at != state:
            assert at is not None
            found |= self.touches[at].get(name, set())
            at = self.parents[at]
        return found

    def check(self, now: int, since: int) -> None:
        shared = [s for s in self.states[now] if s in self.states[since]]
        with cnrfmt.open(self.path, version=now) as ck:
            for name, t in ck.items():
                rows, deleted, exact = t.changed(since)
                old, new = self.contents[since][name], self.contents[now][name]
                assert exact is bool(shared)
                assert rows.tolist() == sorted(set(rows.tolist()))
                assert {i for i in new if new[i] != old.get(i)} <= set(rows.tolist()) <= set(new)
                assert not set(deleted.tolist()) & set(new)
                assert set(old) - set(new) <= set(deleted.tolist())
                ever = self.touched_since(now, shared[-1], name) | self.touched_since(since, shared[-1], name)
                assert set(rows.tolist()) | set(deleted.tolist()) <= ever
                if self.states[now][-1] == self.states[since][-1]:
                    assert not len(rows) + len(deleted)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 1 << 32))
def test_nothing_that_changed_is_left_out_whatever_the_history(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        history = Branchy(Path(folder) / "run", seed)
        for _ in range(9):
            history.grow()
        for now in range(len(history.contents)):
            for since in range(len(history.contents)):
                history.check(now, since)


@pytest.fixture
def one_shot(tmp_path: Path) -> Path:
    """A baseline, and two versions that are each a delta on it."""
    path = tmp_path / "run"
    cnrfmt.save(path, {"t": np.zeros((100, DIM), F32)})
    commit_on(path, 0, {"t": Rows([3, 5], np.ones((2, DIM), F32))})
    commit_on(path, 0, {"t": Rows([5, 9], np.full((2, DIM), 2, F32))})
    return path


def test_deltas_on_one_baseline_are_told_apart_both_ways(one_shot: Path) -> None:
    with cnrfmt.open(one_shot, version=1) as ck:
        assert ck["t"].changed(2).rows.tolist() == [3, 5, 9]
        found = ck.refresh()
        assert found is not None
        assert found.changed["t"].exact
        assert found.changed["t"].rows.tolist() == [3, 5, 9]
        assert ck["t"].changed(0).rows.tolist() == [5, 9]


def test_a_version_whose_segment_is_gone_is_answered_with_everything(one_shot: Path) -> None:
    # A version that keeps nothing older, so that the segment of version 1 may be removed.
    with cnrfmt.open(one_shot) as ck, cnrfmt.open(one_shot, version=1) as old:
        with attempt(str(one_shot)) as one:
            assert one.head is not None
            one.commit(one.next(one.head, same_state=True, keep=lambda versions: versions[-1:]))
        (one_shot / SEGMENTS / segment_name(old.manifest.chain[-1].segment)).unlink()
        changes = ck["t"].changed(1)
        assert (changes.exact, changes.rows.tolist()) == (False, list(range(100)))
        assert ck["t"].changed(0).exact


def test_a_manifest_that_is_gone_is_answered_with_everything(one_shot: Path) -> None:
    with cnrfmt.open(one_shot) as ck:
        with attempt(str(one_shot)) as one:
            assert one.head is not None
            one.commit(one.next(one.head, same_state=True, keep=lambda versions: versions[-1:]))
        (one_shot / "manifests" / f"{1:020d}.cnrm").unlink()
        assert ck["t"].changed(1).exact is False


def test_a_segment_of_the_older_version_that_is_damaged_is_named(one_shot: Path) -> None:
    with cnrfmt.open(one_shot, version=1) as old:
        entry = old.manifest.chain[-1]
    segment = one_shot / SEGMENTS / segment_name(entry.segment)
    data = bytearray(segment.read_bytes())
    data[-20] ^= 1
    segment.write_bytes(data)
    with cnrfmt.open(one_shot) as ck, pytest.raises(cnrfmt.DamagedError, match=segment.name[:8]):
        ck["t"].changed(1)


def test_a_column_of_another_type_on_the_other_branch_is_everything(tmp_path: Path) -> None:
    path = tmp_path / "run"
    cnrfmt.save(path, {"t": np.zeros((10, DIM), F32), "u": np.zeros((4, DIM), F32)})
    commit_on(path, 0, {"t": Rows([1], columns={"g": np.ones(1, np.float64)})})
    commit_on(path, 0, {"t": Rows([2], columns={"g": np.ones(1, F32)})})
    with cnrfmt.open(path) as ck:
        assert ck["t"].changed(1).exact is False
        assert len(ck["t"].changed(1).rows) == 10
        assert ck["t"].changed(0).rows.tolist() == [2]
        assert (ck["u"].changed(1).exact, ck["u"].changed(1).rows.tolist()) == (True, [])


def test_a_table_that_only_one_branch_has_is_new(one_shot: Path) -> None:
    both = {"u": np.zeros((4, DIM), F32), "t": Rows([1], np.ones((1, DIM), F32))}
    version = commit_on(one_shot, 0, both)
    with cnrfmt.open(one_shot) as ck:
        changes = ck["u"].changed(2)
        assert (changes.rows.tolist(), changes.deleted.tolist(), changes.exact) == ([0, 1, 2, 3], [], True)
        assert ck["t"].changed(2).rows.tolist() == [1, 5, 9]
    commit_on(one_shot, 0, {"u": np.zeros((5, DIM), F32)})
    with cnrfmt.open(one_shot) as ck:
        changes = ck["u"].changed(version)
        assert (changes.rows.tolist(), changes.exact) == ([0, 1, 2, 3, 4], False)
