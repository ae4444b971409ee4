"""What checkpoints cost, told from records and manifests, against what was on the disk at the time."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt.checkpointing.compacting.compaction import merge
from cnrfmt.checkpointing.costs.cost_history import RESTATED, averages, cost_history, described
from cnrfmt.checkpointing.keeping.collect import collect
from cnrfmt.checkpointing.keeping.retention import Keep
from cnrfmt.checkpointing.manager import CheckpointManager
from cnrfmt.demo.orders import Dataset, load_orders
from cnrfmt.format.manifest import Manifest
from cnrfmt.run_record import CheckpointRecord, record_of
from tests.checkpointing.support import needed_by

CHECKPOINTS = 14


@cache
def orders() -> Dataset:
    """Real orders of a few users."""
    return load_orders(users=20)


def manifests_of(path: Path) -> list[Manifest]:
    """Of all versions that are there."""
    with cnrfmt.open(path) as ck:
        versions = ck.versions
    found = []
    for version in versions:
        with cnrfmt.open(path, version=version) as ck:
            found.append(ck.manifest)
    return found


def record(version: int, kind: str, nbytes: int, chain: int) -> CheckpointRecord:
    return CheckpointRecord(version, version, "2026-01-01T00:00:00Z", kind, 1, nbytes, 8, chain)


def train(path: Path, policy: str, **options: Any) -> tuple[dict[int, int], dict[int, int]]:
    """A run on real orders; gives, for versions that were the newest, bytes on the disk and bytes of the chain then."""
    data = orders()
    table = np.random.default_rng(0).normal(size=(data.products, 4)).astype(np.float32)
    every = len(data.stream) // CHECKPOINTS
    kept, read = {}, {}
    with CheckpointManager(path, policy=policy, bits=8, grace=0, flush_on_sigterm=False, **options) as manager:
        for step in range(CHECKPOINTS):
            baskets = [data.stream.basket(order) for order in range(step * every, (step + 1) * every)]
            ids = np.unique(np.concatenate(baskets))
            table[ids] += 1
            manager.track("product", ids)
            manager.save(step, {"product": table}).commit.result()
            manager.wait()
            with cnrfmt.open(path) as ck:
                read[ck.version] = sum(entry.length for entry in ck.manifest.chain)
                kept[ck.version] = sum(file.stat().st_size for file in (path / "segments").iterdir())
    return kept, read


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("full", {"keep": 2}),
        ("one-shot", {"keep": 1}),
        ("intermittent", {}),
        ("intermittent", {"keep": 3}),
        ("consecutive", {}),
        ("consecutive", {"keep": 2, "most_segments": 4}),
        ("consecutive", {"most_segments": 5}),
        ("intermittent", {"keep": Keep(last=2, every_steps=4)}),
    ],
)
def test_it_tells_what_was_on_the_disk(tmp_path: Path, policy: str, options: dict[str, Any]) -> None:
    kept, read = train(tmp_path / "run", policy, **options)
    manifests = manifests_of(tmp_path / "run")
    known = record_of(manifests[-1])
    assert known is not None
    readable = [m.version for m in manifests]
    costs = cost_history(known.checkpoints, manifests, readable)
    assert {c.checkpoint.version for c in costs} >= set(readable)
    assert [c.readable for c in costs] == [c.checkpoint.version in readable for c in costs]
    told = {c.checkpoint.version: c for c in costs}
    assert {v: c.read for v, c in told.items() if v in read} == {v: read[v] for v in told if v in read}
    # Where nothing is known of a version that was there, nothing is told of what was kept.
    settled = [v for v in told if v in kept and told[v].kept is not None]
    assert {v: told[v].kept for v in settled} == {v: kept[v] for v in settled}
    assert settled[-1] == max(kept)
    assert set(settled) == set(kept) or "keep" in options
    # The records alone tell the same chains, merges and all.
    for alone, cost in zip(cost_history(known.checkpoints, (), readable), costs, strict=False):
        if alone.needs is not None:
            assert (alone.needs, alone.read) == (cost.needs, cost.read)
    if "most_segments" in options:
        assert "merge" in {c.kind for c in costs}
    else:
        since = known.since_baseline()
        needs = [needed_by(since, n) for n in range(len(since))]
        nbytes = {c.version: c.nbytes for c in since}
        assert [told[c.version].needs for c in since] == [tuple(versions) for versions in needs]
        assert [told[c.version].read for c in since] == [sum(nbytes[v] for v in versions) for versions in needs]


def test_without_a_record_the_manifests_tell_kinds_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "run"
    train(path, "consecutive")
    head = merge(str(path), 2, 9, expect=manifests_of(path)[-1])
    manifests = manifests_of(path)
    known = record_of(head)
    assert known is not None
    told = [(c.version, c.kind, c.nbytes, c.chain) for c in described(manifests)]
    assert told == [(c.version, c.kind, c.nbytes, c.chain) for c in known.checkpoints]
    assert [kind for _, kind, _, _ in told] == ["baseline", *["delta"] * (CHECKPOINTS - 1), "merge"]
    with_record = cost_history(known.checkpoints, manifests, [m.version for m in manifests])
    without = cost_history((), manifests, [m.version for m in manifests])
    assert [(c.needs, c.kept, c.read) for c in without] == [(c.needs, c.kept, c.read) for c in with_record]
    assert not any(c.recorded for c in without)
    assert without[-1].needs == (0, 1, 9, 10, 11, 12, 13, 14)
    assert without[-1].read == sum(entry.length for entry in head.chain)
    assert without[-1].kept == sum(file.stat().st_size for file in (path / "segments").iterdir())


def test_without_a_record_deltas_on_the_baseline_are_told_apart(tmp_path: Path) -> None:
    train(tmp_path / "run", "one-shot")
    kinds = [c.kind for c in described(manifests_of(tmp_path / "run"))]
    # The first delta stands on the checkpoint before it, which is the baseline.
    assert kinds == ["baseline", "delta", *["since-baseline"] * (CHECKPOINTS - 2)]


def test_a_commit_that_repeats_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run"
    train(path, "consecutive")
    count = len(manifests_of(path))
    collect(path, keep=2, grace=0)
    manifests = manifests_of(path)
    known = record_of(manifests[-1])
    assert known is not None
    *_, before, last = cost_history(known.checkpoints, manifests, [m.version for m in manifests])
    assert (last.checkpoint.version, last.kind) == (count, RESTATED)
    assert (last.needs, last.read, last.kept) == (before.needs, before.read, before.kept)


def test_a_chain_that_lost_its_beginning_is_told_by_its_manifest(tmp_path: Path) -> None:
    path = tmp_path / "run"
    train(path, "consecutive")
    manifests = manifests_of(path)[5:8]
    versions = [m.version for m in manifests]
    costs = cost_history((), manifests, versions)
    assert [c.read for c in costs] == [sum(e.length for e in m.chain) for m in manifests]
    assert [c.needs for c in costs] == [None] * 3
    assert costs[-1].kept == costs[-1].read
    unknown = cost_history([record(7, "delta", 10, 8)], (), [7])
    assert [(c.needs, c.read, c.kept) for c in unknown] == [(None, None, None)]


def test_a_merge_took_the_cheapest_neighbours_that_make_it_so_short() -> None:
    deltas = [(1, 50), (2, 10), (3, 20)]
    chain = [record(0, "baseline", 900, 2), *(record(n, "delta", size, 2 + 2 * n) for n, size in deltas)]
    costs = cost_history([*chain, record(4, "merge", 25, 5), record(5, "delta", 5, 6)], (), [4, 5])
    assert [c.needs for c in costs[-2:]] == [(0, 1, 4), (0, 1, 4, 5)]
    assert [c.read for c in costs[-2:]] == [975, 980]
    # Two checkpoints are readable in a row. What a merge replaces goes with the next checkpoint.
    assert [c.kept for c in costs] == [900, 950, 960, 980, 1005, 980]
    assert averages(costs) == [900, 475, 320, 245, 251.25, 202]
    impossible = cost_history([*chain, record(4, "merge", 25, 8)], (), [4])
    assert (impossible[-1].needs, impossible[-1].kept) == (None, None)


def test_what_went_on_from_an_older_version_is_not_guessed() -> None:
    chain = [record(n, "delta" if n else "baseline", 10, length) for n, length in enumerate([1, 2, 3, 2])]
    costs = cost_history([*chain, record(4, "baseline", 10, 1), record(5, "since-baseline", 3, 2)], (), [5])
    assert [c.needs for c in costs] == [(0,), (0, 1), (0, 1, 2), None, (4,), (4, 5)]
    assert [c.kept for c in costs] == [10, 20, 30, None, 10, 13]
