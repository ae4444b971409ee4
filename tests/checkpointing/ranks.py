"""Ranks for the tests: threads of one process, each with a coordinator and a file system of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import cnrfmt
from cnrfmt import Rows
from cnrfmt.checkpointing.ranks.commit import commit_together, plan_together
from cnrfmt.checkpointing.ranks.coordinator import Coordinator, FileCoordinator
from cnrfmt.checkpointing.ranks.shards import Shard
from cnrfmt.commits import Attempt
from cnrfmt.encodings import Recipe
from cnrfmt.format.encoding import RawLayout
from cnrfmt.format.manifest import Manifest, parse_manifest
from cnrfmt.storage.container import open_container
from cnrfmt.storage.fs import Fs
from tests.storage.support import QuickFs, payload
from tools import cnrcheck

PATIENCE = 60.0
UNFINISHED = frozenset({"garbage", "leftover", "other-file"})
"""What the validators note of an attempt that came to no end."""
ROWS = 700
W = payload(0, ROWS)


def as_ranks(
    folder: Path, count: int, body: Callable[[FileCoordinator], Any], *, timeout: float = PATIENCE
) -> list[Any]:
    """What `body` gave on each rank, or the error that it raised, with which the rank is gone."""
    found: list[Any] = [None] * count

    def run(rank: int) -> None:
        try:
            with FileCoordinator(folder, rank, count, timeout=timeout, fs=QuickFs()) as coordinator:
                found[rank] = body(coordinator)
        except BaseException as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    return found


def head_of(path: Path) -> Manifest | None:
    """The newest manifest of a directory; None where there is none."""
    if not list(path.glob("manifests/*.cnrm")):
        return None
    with open_container(path) as container:
        return parse_manifest(container.head().data, str(path))


def raw(table: Any, column: Any) -> Recipe:
    """Rows stay as they are."""
    return Recipe(RawLayout(column.dtype))


def save_together(
    coordinator: Coordinator,
    path: Path,
    tables: Mapping[str, Any],
    *,
    delta: bool = False,
    step: int | None = None,
    dense: Any = None,
    quantize: Any = None,
    fs: Fs | None = None,
    **options: Any,
) -> Manifest:
    """A baseline, or a delta on the head, that all ranks write together."""
    base = head_of(path) if delta else None
    agreement, writes = plan_together(coordinator, tables, quantize, base and base.tables, raw)

    def draft(one: Attempt) -> Manifest:
        on = one.head if delta else None
        content = agreement.content or dense is not None or not delta
        return one.next(on, same_state=not content, step=step, tables=agreement.tables)

    return commit_together(
        coordinator, path, draft=draft, writes=writes, dense=dense, fs=fs or QuickFs(), **{"threads": 1, **options}
    )


def parts(count: int, ranks: int) -> Sequence[tuple[int, int]]:
    """Ranges of nearly equal length, one for each rank."""
    edges = [count * rank // ranks for rank in range(ranks + 1)]
    return list(pairwise(edges))


def check_sound(path: Path, notes: frozenset[str] = frozenset()) -> None:
    """Both validators find nothing, notes of these names aside."""
    findings = cnrcheck.check_path(str(path))
    assert cnrcheck.verdict(findings) == "sound", findings
    assert {finding.error for finding in findings} <= notes
    report = cnrfmt.verify(path, threads=1)
    assert report.sound, report.findings


def halves(coordinator: Coordinator, path: Path, *, delta: bool = False, fs: Fs | None = None, **options: Any) -> Any:
    """A version of a table of which each rank has its rows."""
    rank, ranks = coordinator.rank, coordinator.world_size
    first, end = parts(ROWS, ranks)[rank]
    tables: dict[str, Any] = {"t": Shard(W[first:end], rows=(first, end), of_rows=ROWS)}
    if delta:
        ids = np.arange(-(-first // 3) * 3, end, 3)
        tables = {"t": Rows(ids, -W[ids])}
    return save_together(coordinator, path, tables, delta=delta, fs=fs, **options).version


def after(path: Path, folder: Path, version: int | None) -> None:
    """The head is that version, whole, nothing unfinished is there, and a fresh set of ranks goes on."""
    head = head_of(path)
    assert (None if head is None else head.version) == version
    if head is not None:
        check_sound(path, UNFINISHED)
    following = 0 if version is None else version + 1
    assert as_ranks(folder, 2, partial(halves, path=path, delta=version is not None)) == [following] * 2
    check_sound(path, frozenset({"garbage"}))
    assert not list(path.rglob(".tmp-*"))
    with cnrfmt.open(path) as ck:
        expected = W.copy()
        if following:
            expected[::3] *= -1
        assert np.array_equal(ck["t"].read(), expected)


def segments(path: Path) -> int:
    return len(list(path.glob("segments/*")))
