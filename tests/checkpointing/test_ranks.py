"""Versions that many ranks write together: whole or not there at all, and alike for every rank."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt import (
    ChainTooLongError,
    CommitError,
    CommitUnknownError,
    ConflictError,
    DamagedError,
    Deleted,
    Dropped,
    Quantize,
    Rows,
    StorageError,
    TableData,
    UnsupportedError,
    UsageError,
)
from cnrfmt.checkpointing.ranks.commit import commit_together, plan_together
from cnrfmt.checkpointing.ranks.coordinator import Coordinator, FileCoordinator, SingleRank
from cnrfmt.checkpointing.ranks.shards import Shard
from cnrfmt.checkpointing.ranks.together import together
from cnrfmt.demo.orders import Orders, load_orders
from cnrfmt.dense import prepare
from cnrfmt.errors import RankLostError, TooLargeError
from cnrfmt.format import limits
from cnrfmt.format.segment import SegmentHeader
from cnrfmt.storage.directory_commit import DirectoryTransaction
from tests.checkpointing.ranks import (
    ROWS,
    W,
    after,
    as_ranks,
    check_sound,
    halves,
    head_of,
    parts,
    raw,
    save_together,
    segments,
)
from tests.storage.support import FORKS, QuickFs, payload

M = payload(1, ROWS)
G = np.abs(W[:, 0]) + 1
KEYS = np.random.default_rng(5).permutation(np.arange(-200, 1200, 2))[:ROWS].astype(np.int64)


def rows_of(version: int, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What a version writes into rows: weight, a column of the same width, one value per row."""
    return W[ids] + version, M[ids] * version, G[ids] + version


def whole(version: int) -> dict[str, Any]:
    """All tables at a baseline."""
    w, m, g = rows_of(version, np.arange(ROWS))
    return {
        "rows": TableData(w, columns={"m": m, "g": g}),
        "elements": TableData(w, columns={"m": m, "g": g}),
        "grid": TableData(w),
        "one": TableData(w[:9], columns={"g": g[:9]}),
        "last": TableData(m[:5]),
        "keys": TableData(w, columns={"g": g}, keys=KEYS),
        "both": TableData(w, columns={"g": g}, keys=KEYS),
    }


def sharded(version: int, rank: int, ranks: int) -> dict[str, Any]:
    """What a rank has of them."""
    tables = whole(version)
    first, end = parts(ROWS, ranks)[rank]
    a, b = parts(8, ranks)[rank]
    mine = slice(first, end)
    w, m, g = rows_of(version, np.arange(ROWS))
    found: dict[str, Any] = {
        "rows": Shard(w[mine], {"m": m[mine], "g": g[mine]}, rows=(first, end), of_rows=ROWS),
        "elements": Shard(
            w[:, a:b], {"m": m[:, a:b]} | ({"g": g} if rank == ranks - 1 else {}), elements=(a, b), of_dim=8
        ),
        "keys": TableData(w[mine], columns={"g": g[mine]}, keys=KEYS[mine]),
        "both": Shard(
            TableData(w[:, a:b], columns={"g": g} if rank == 0 else {}, keys=KEYS), elements=(a, b), of_dim=8
        ),
    }
    # Two halves of the elements, each spread over half of the ranks.
    side = slice(0, 4) if rank % 2 else slice(4, 8)
    first, end = parts(ROWS, ranks // 2)[rank // 2]
    found["grid"] = Shard(
        w[first:end, side], rows=(first, end), of_rows=ROWS, elements=(side.start, side.stop), of_dim=8
    )
    if rank == 0:
        found["one"] = tables["one"]
    if rank == ranks - 1:
        found["last"] = tables["last"]
    return found


@cache
def _stream() -> Orders:
    return load_orders(users=60).stream


def touched(version: int) -> np.ndarray:
    """The rows that a version writes: products of real orders."""
    orders = _stream()
    some = np.concatenate([orders.basket(order) for order in range(30 * version, 30 * version + 30)])
    return np.unique(some % ROWS).astype(np.int64)


def whole_delta(version: int) -> dict[str, Any]:
    ids = touched(version)
    w, m, g = rows_of(version, ids)
    gone = KEYS[ids[:5]] + 1
    return {
        "rows": Rows(ids, w, {"m": m, "g": g}),
        "elements": Rows(ids, w, {"m": m, "g": g}),
        "grid": Rows(ids, w),
        "one": Rows([2], w[:1]),
        "keys": (Rows(KEYS[ids], w, {"g": g}), Deleted(gone)),
        "both": Rows(KEYS[ids], w, {"g": g}),
    }


def sharded_delta(version: int, rank: int, ranks: int) -> dict[str, Any]:
    ids = touched(version)
    w, m, g = rows_of(version, ids)
    first, end = parts(ROWS, ranks)[rank]
    mine = (ids >= first) & (ids < end)
    a, b = parts(8, ranks)[rank]
    per_row = {"g": g} if rank == ranks - 1 else {}
    found: dict[str, Any] = {
        "rows": Rows(ids[mine], w[mine], {"m": m[mine], "g": g[mine]}),
        "elements": Shard(Rows(ids, w[:, a:b], {"m": m[:, a:b], **per_row}), elements=(a, b), of_dim=8),
        "both": Shard(Rows(KEYS[ids], w[:, a:b], per_row), elements=(a, b), of_dim=8),
        "keys": Rows(KEYS[ids[mine]], w[mine], {"g": g[mine]}),
    }
    side = slice(0, 4) if rank % 2 else slice(4, 8)
    first, end = parts(ROWS, ranks // 2)[rank // 2]
    mine = (ids >= first) & (ids < end)
    found["grid"] = Shard(Rows(ids[mine], w[mine, side]), elements=(side.start, side.stop), of_dim=8)
    if rank == 0:
        found["keys"] = (found["keys"], Deleted(KEYS[ids[:5]] + 1))
    if rank == 1:
        found["one"] = Rows([2], w[:1])
    return found


def check_same(path: Path, alone: Path) -> None:
    """Two containers say the same, bit for bit, at their heads."""
    with cnrfmt.open(path, verify="all") as ours, cnrfmt.open(alone) as theirs:
        assert set(ours) == set(theirs)
        assert ours.step == theirs.step
        assert {n: str(v) for n, v in ours.dense.items()} == {n: str(v) for n, v in theirs.dense.items()}
        for name in ours:
            assert (ours[name].keys is None) == (theirs[name].keys is None)
            if ours[name].keys is not None:
                assert ours[name].keys.tolist() == theirs[name].keys.tolist()
            assert set(ours[name].columns) == set(theirs[name].columns)
            for column in ours[name].columns:
                mine, other = ours[name].read(column=column), theirs[name].read(column=column)
                assert mine.tobytes() == other.tobytes(), (name, column)


DENSE = {"mlp": W[:3], "reader": {"position": 17}, "state": b"random"}


def _three_versions(coordinator: Coordinator, path: Path) -> list[tuple[int, int, bytes]]:
    rank, ranks = coordinator.rank, coordinator.world_size
    dense = prepare(DENSE) if rank == 0 else None
    made = [save_together(coordinator, path, sharded(1, rank, ranks), step=1, dense=dense)]
    for version in (2, 3):
        tables = sharded_delta(version, rank, ranks)
        made.append(save_together(coordinator, path, tables, delta=True, step=version))
    return [(m.version, len(m.chain), m.digest.to_bytes(8, "big")) for m in made]


@FORKS
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_processes_write_together_what_one_writes_alone(tmp_path: Path, ranks: int) -> None:
    path, alone = tmp_path / "run", tmp_path / "alone"
    touched(1)
    cnrfmt.save(alone, whole(1), step=1, dense=DENSE)
    for version in (2, 3):
        cnrfmt.append(alone, whole_delta(version), step=version)

    def body(rank: int) -> None:
        with FileCoordinator(tmp_path / "meet", rank, ranks, timeout=60) as coordinator:
            (tmp_path / f"told-{rank}").write_text(repr(_three_versions(coordinator, path)))

    statuses = run_forked(ranks, body)
    assert statuses == [0] * ranks
    assert len({(tmp_path / f"told-{rank}").read_text() for rank in range(ranks)}) == 1
    head = head_of(path)
    assert head is not None
    assert [len(step) for step in head.steps()] == [ranks, ranks, ranks]
    assert len({entry.segment for entry in head.chain}) == 3 * ranks
    # The dense state is in rank 0's segment alone.
    assert head.dense == head.chain[0].segment
    check_same(path, alone)
    check_sound(path)


def run_forked(ranks: int, body: Callable[[int], object]) -> list[int]:
    """The exit statuses of processes that are forked off, one for each rank."""
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                body(rank)
                status = 0
            except BaseException as error:
                print(f"rank {rank}: {error!r}", file=sys.stderr)
            finally:
                os._exit(status)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


@pytest.mark.parametrize("bits", [8, 4])
def test_quantised_rows_decode_as_those_of_one_process(tmp_path: Path, bits: int) -> None:
    quantize = {"rows": Quantize(bits), ("rows", "m"): Quantize(8), "keys": Quantize(bits)}
    cnrfmt.save(tmp_path / "alone", {name: whole(1)[name] for name in ("rows", "keys")}, quantize=quantize)

    def body(coordinator: Coordinator) -> None:
        tables = sharded(1, coordinator.rank, 4)
        tables = {name: tables[name] for name in ("rows", "keys")}
        save_together(coordinator, tmp_path / "run", tables, quantize=quantize)

    assert as_ranks(tmp_path / "meet", 4, body) == [None] * 4
    with cnrfmt.open(tmp_path / "run") as ours, cnrfmt.open(tmp_path / "alone") as theirs:
        for column in ("weight", "m"):
            assert np.array_equal(ours["rows"].read(column=column), theirs["rows"].read(column=column))
        assert np.array_equal(ours["keys"].read(), theirs["keys"].read())
    check_sound(tmp_path / "run")


def test_rows_that_an_encoding_cannot_hold_are_exceptions_of_their_shard(tmp_path: Path) -> None:
    values = W.copy()
    values[[3, 351, 699]] = np.nan

    def body(coordinator: Coordinator) -> None:
        first, end = parts(ROWS, 2)[coordinator.rank]
        tables = {"t": Shard(values[first:end], rows=(first, end), of_rows=ROWS)}
        save_together(coordinator, tmp_path / "run", tables, quantize=Quantize(8))

    assert as_ranks(tmp_path / "meet", 2, body) == [None] * 2
    with cnrfmt.open(tmp_path / "run") as ck:
        found = ck["t"].read()
    assert np.flatnonzero(np.isnan(found).any(axis=1)).tolist() == [3, 351, 699]
    check_sound(tmp_path / "run")


def test_one_rank_writes_the_bytes_of_the_plain_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids and times aside: these are drawn alike here."""

    def drawn() -> Iterator[bytes]:
        for number in range(1, 1 << 16):
            yield number.to_bytes(16, "big")

    def fixed() -> None:
        ids = drawn()
        for module in ("commits", "plan", "storage.directory_commit", "checkpointing.ranks.commit"):
            monkeypatch.setattr(f"cnrfmt.{module}.new_id", lambda: next(ids))
        monkeypatch.setattr("cnrfmt.commits.now", lambda: "2024-02-29T12:00:00Z")

    def files(path: Path) -> dict[str, bytes]:
        return {str(p.relative_to(path)): p.read_bytes() for p in path.glob("*/*")}

    fixed()
    cnrfmt.save(tmp_path / "alone", whole(1), step=1, dense=DENSE, fs=QuickFs())
    cnrfmt.append(tmp_path / "alone", whole_delta(2), step=2, fs=QuickFs())
    cnrfmt.append(tmp_path / "alone", {}, step=3, fs=QuickFs())
    fixed()
    one = SingleRank()
    save_together(one, tmp_path / "run", whole(1), step=1, dense=prepare(DENSE))
    save_together(one, tmp_path / "run", whole_delta(2), delta=True, step=2)
    assert save_together(one, tmp_path / "run", {}, delta=True, step=3).version == 2
    assert files(tmp_path / "run") == files(tmp_path / "alone")
    assert len(files(tmp_path / "run")) == 2 + 3
    check_sound(tmp_path / "run")


def test_ranks_that_have_nothing_to_write_take_part(tmp_path: Path) -> None:
    path = tmp_path / "run"

    def body(coordinator: Coordinator) -> Any:
        rank = coordinator.rank
        made = [
            save_together(coordinator, path, {"t": W} if rank == 2 else {}),
            save_together(coordinator, path, {"t": Rows([rank], W[:1])} if rank == 1 else {}, delta=True),
            save_together(coordinator, path, {}, delta=True, dense=None if rank else prepare({"step": 3})),
            save_together(coordinator, path, {"t": Dropped()} if rank == 2 else {}, delta=True),
            save_together(coordinator, path, {}, delta=True),
            save_together(coordinator, path, {}),
        ]
        return [(m.version, len(m.chain), len(m.tables), m.dense is not None) for m in made]

    found = as_ranks(tmp_path / "meet", 3, body)
    expected = [(0, 1, 1, False), (1, 2, 1, False), (2, 3, 1, True), (3, 4, 0, True), (4, 4, 0, True), (5, 1, 0, False)]
    assert found == [expected] * 3
    with cnrfmt.open(path, version=1) as ck:
        assert np.array_equal(ck["t"][1], W[0])
    check_sound(path)


def test_notes_reach_the_one_who_completes_the_manifest(tmp_path: Path) -> None:
    def complete(manifest: Any, notes: Any) -> Any:
        sizes = [entry.length for entry in manifest.chain]
        return replace(manifest, metadata={"rows": [int(note) for note in notes], "bytes": sum(sizes)})

    def body(coordinator: Coordinator) -> Any:
        rank = coordinator.rank
        first, end = parts(ROWS, 2)[rank]
        tables = {"t": Shard(W[first:end], rows=(first, end), of_rows=ROWS)}
        options = {"note": lambda: b"%d" % (end - first), "complete": complete if rank == 0 else None}
        return save_together(coordinator, tmp_path / "run", tables, **options).metadata

    found = as_ranks(tmp_path / "meet", 2, body)
    assert found[0] == found[1]
    assert found[0]["rows"] == [350, 350]
    assert found[0]["bytes"] == sum(p.stat().st_size for p in (tmp_path / "run").glob("segments/*"))


# What is refused, on all ranks alike


def test_what_one_rank_cannot_plan_is_raised_on_all(tmp_path: Path) -> None:
    def body(coordinator: Coordinator) -> Any:
        tables = {"t": Shard(W.astype(bool) if coordinator.rank == 1 else W, rows=(0, ROWS), of_rows=ROWS)}
        return save_together(coordinator, tmp_path / "run", tables)

    found = as_ranks(tmp_path / "meet", 3, body)
    assert [type(error) for error in found] == [UsageError] * 3
    assert not str(found[1]).startswith("rank 1: ")
    assert str(found[2]) == str(found[0]) == f"rank 1: {found[1]}"
    assert not (tmp_path / "run").exists()


def test_quantisation_of_no_table_is_raised_on_all(tmp_path: Path) -> None:
    found = as_ranks(tmp_path / "meet", 2, partial(halves, path=tmp_path / "run", quantize={"x": Quantize(4)}))
    assert ["no table is named 'x'" in str(error) for error in found] == [True] * 2


@pytest.mark.parametrize("what", ["rows", "keys", "deleted"])
def test_rows_of_two_ranks_are_found_at_the_commit(tmp_path: Path, what: str) -> None:
    path = tmp_path / "run"
    cnrfmt.save(path, {"t": W, "k": TableData(W, keys=KEYS)}, fs=QuickFs())

    def body(coordinator: Coordinator) -> Any:
        # Their bounds don't tell: rows among others may be different ones.
        ids = [1, 5, 9] if coordinator.rank == 0 else [2, 5, 8]
        tables: dict[str, Any] = {"t": Rows(ids, W[:3])}
        if what == "keys":
            tables = {"k": Rows(ids, W[:3])}
        if what == "deleted":
            tables = {"k": Deleted(ids) if coordinator.rank else Rows(ids, W[:3])}
        return save_together(coordinator, path, tables, delta=True)

    found = as_ranks(tmp_path / "meet", 2, body)
    assert [type(error) for error in found] == [UsageError] * 2
    expected = "one rank writes key 5, another deletes it" if what == "deleted" else "row 5 twice"
    assert all(expected in str(error) for error in found)
    assert str(found[1]).startswith("rank 0: ")
    assert segments(path) == 1
    check_sound(path)


def test_keys_that_two_ranks_delete_are_deleted(tmp_path: Path) -> None:
    path = tmp_path / "run"
    cnrfmt.save(path, {"k": TableData(W, keys=KEYS)}, fs=QuickFs())

    def body(coordinator: Coordinator) -> Any:
        rows = Rows([KEYS[coordinator.rank]], W[:1])
        return save_together(coordinator, path, {"k": (rows, Deleted(KEYS[10:12]))}, delta=True).version

    assert as_ranks(tmp_path / "meet", 2, body) == [1, 1]
    with cnrfmt.open(path) as ck:
        assert sorted(set(KEYS.tolist()) - set(ck["k"].keys.tolist())) == sorted(KEYS[10:12].tolist())
    check_sound(path)


def test_wrong_writes_are_refused_before_they_count(tmp_path: Path) -> None:
    """Of a caller who doesn't write what was agreed on."""
    path = tmp_path / "run"

    def body(coordinator: Coordinator, less: bool) -> Any:
        first, end = parts(ROWS, 2)[coordinator.rank]
        tables = {"t": Shard(W[first:end], rows=(first, end), of_rows=ROWS)}
        agreement, writes = plan_together(coordinator, tables)
        if less and coordinator.rank:
            writes = ()
        elif coordinator.rank:
            writes = tuple(replace(write, schema=replace(write.schema, rows=ROWS + 1)) for write in writes)
        return commit_together(
            coordinator, path, draft=lambda one: one.next(None, tables=agreement.tables), writes=writes, fs=QuickFs()
        )

    for less, rule in ((True, "baseline-tiling"), (False, "chain-schema")):
        found = as_ranks(tmp_path / "meet", 2, partial(body, less=less))
        assert [type(error) for error in found] == [UsageError] * 2
        assert all(rule in str(error) for error in found)
        assert not segments(path)
    after(path, tmp_path / "meet", None)


def test_single_file_has_one_writer(tmp_path: Path) -> None:
    for ranks in (1, 2):
        found = as_ranks(tmp_path / "meet", ranks, partial(halves, path=tmp_path / "model.cnr"))
        assert all("a single file has one writer; give the path of a directory" in str(error) for error in found)
        assert [type(error) for error in found] == [UsageError] * ranks
    assert not (tmp_path / "model.cnr").exists()


def test_dense_state_is_that_of_rank_0(tmp_path: Path) -> None:
    found = as_ranks(tmp_path / "meet", 2, partial(halves, path=tmp_path / "run", dense=prepare(DENSE)))
    assert all("rank 0 alone gives it" in str(error) for error in found)
    assert head_of(tmp_path / "run") is None


def test_draft_of_rank_0_decides(tmp_path: Path) -> None:
    path = tmp_path / "run"
    assert as_ranks(tmp_path / "meet", 2, partial(halves, path=path)) == [0, 0]

    def body(coordinator: Coordinator, same_state: bool) -> Any:
        agreement, writes = plan_together(coordinator, {"t": Rows([coordinator.rank], W[:1])}, None, base, raw)

        def draft(one: Any) -> Any:
            if not same_state:
                raise ConflictError("another run wrote here")
            return one.next(one.head, same_state=True, tables=agreement.tables)

        return commit_together(coordinator, path, draft=draft, writes=writes, fs=QuickFs())

    head = head_of(path)
    assert head is not None
    base = head.tables
    found = as_ranks(tmp_path / "meet", 2, partial(body, same_state=False))
    assert [type(error) for error in found] == [ConflictError] * 2
    assert [str(error) for error in found] == ["another run wrote here", "rank 0: another run wrote here"]
    found = as_ranks(tmp_path / "meet", 2, partial(body, same_state=True))
    assert all("rank 0 writes, and the draft has the state of its base" in str(error) for error in found)
    after(path, tmp_path / "meet", 0)


def test_chain_that_would_become_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run"
    monkeypatch.setattr(limits, "MAX_CHAIN", 5)
    assert as_ranks(tmp_path / "meet", 2, partial(halves, path=path)) == [0, 0]
    assert as_ranks(tmp_path / "meet", 2, partial(halves, path=path, delta=True)) == [1, 1]
    found = as_ranks(tmp_path / "meet", 2, partial(halves, path=path, delta=True))
    assert [type(error) for error in found] == [ChainTooLongError] * 2
    assert all("2 more segments on a chain of 4" in str(error) for error in found)
    assert segments(path) == 4


def test_another_writer_who_is_quicker_wins(tmp_path: Path) -> None:
    path = tmp_path / "run"
    assert as_ranks(tmp_path / "meet", 2, partial(halves, path=path)) == [0, 0]

    for where in ("rank-begun", "rank-published", "rank-reported", "ranks-accepted"):

        class Rival(QuickFs):
            at = where

            def point(self, name: str) -> None:
                if name == self.at:
                    self.at = ""
                    cnrfmt.append(path, {"t": Rows([0], W[:1])}, fs=QuickFs())

        def body(coordinator: Coordinator, rival: type[QuickFs] = Rival) -> Any:
            return halves(coordinator, path, delta=True, fs=None if coordinator.rank else rival())

        found = as_ranks(tmp_path / "meet", 2, body)
        assert [type(error) for error in found] == [ConflictError] * 2, (where, found)
        head = head_of(path)
        assert head is not None
        # Nothing is left of the attempt that lost.
        assert segments(path) == len(head.chain)
        check_sound(path)


def test_segment_of_another_attempt_is_never_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run"
    real = DirectoryTransaction.hand_over

    def body(coordinator: Coordinator) -> Any:
        return halves(coordinator, path)

    def exchanged(tx: DirectoryTransaction) -> None:
        """The commit id in the header becomes another one, with the digest that goes with it."""
        real(tx)
        (sink,) = tx._sinks
        file = path / "segments" / f"{sink.segment_id.hex()}.cnrs"
        data = file.read_bytes()
        header = SegmentHeader.parse(data[:128], "here", segment_id=sink.segment_id)
        other = SegmentHeader(header.segment_id, b"another attempt!", header.from_state, header.to_state)
        file.write_bytes(other.pack() + data[128:])

    monkeypatch.setattr(DirectoryTransaction, "hand_over", exchanged)
    found = as_ranks(tmp_path / "meet", 2, body)
    assert [type(error) for error in found] == [DamagedError] * 2
    assert all(error.rule == "segment-identity" for error in found)
    assert "one of attempt " + b"another attempt!".hex() in str(found[0])
    monkeypatch.undo()
    assert not segments(path)
    after(path, tmp_path / "meet", None)


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (UsageError("no"), UsageError, "rank 1: no"),
        (TooLargeError("table 't'", 5, 3), UsageError, "rank 1: table 't': the call takes 5"),
        (CommitUnknownError("who knows"), CommitUnknownError, "rank 1: who knows"),
        (StorageError(errno.ENOSPC, "No space", "/there\udcff"), StorageError, "rank 1: No space"),
        (StorageError("odd"), StorageError, "rank 1: odd"),
        (DamagedError("span", "here", expected=1, found=2, advice="mend it"), DamagedError, "rank 1: here: damaged"),
        (UnsupportedError("here", "incompat bit 7"), UnsupportedError, "rank 1: here: needs incompat bit 7"),
        (ValueError("odd"), CommitError, "rank 1: ValueError: odd"),
        (RankLostError("x", {1: "gone"}, {}), CommitError, "rank 1: x: rank 1 is gone"),
    ],
)
def test_errors_travel_with_what_they_know(tmp_path: Path, error: Exception, kind: type[Exception], text: str) -> None:
    def own(coordinator: Coordinator) -> bytes:
        if coordinator.rank == 1:
            raise error
        return b"fine"

    found = as_ranks(tmp_path / "meet", 3, lambda c: together(c, "x", partial(own, c)))
    assert found[1] is error
    for other in (found[0], found[2]):
        assert type(other) is kind
        assert text in str(other)
        for name in ("rule", "expected", "found", "advice", "feature", "version", "commit_id", "state"):
            if hasattr(error, name) and kind is type(error):
                assert getattr(other, name) == getattr(error, name)
    if isinstance(error, StorageError):
        assert found[0].errno == error.errno


def test_lowest_rank_decides_which_error_it_is(tmp_path: Path) -> None:
    def own(coordinator: Coordinator) -> bytes:
        if coordinator.rank:
            raise [UsageError, ConflictError][coordinator.rank - 1](f"of {coordinator.rank}")
        return b""

    found = as_ranks(tmp_path / "meet", 3, lambda c: together(c, "x", partial(own, c)))
    assert [(type(e), str(e)) for e in found] == [
        (UsageError, "rank 1: of 1"),
        (UsageError, "of 1"),
        (UsageError, "rank 1: of 1"),
    ]
    assert isinstance(found[2].__cause__, ConflictError)
    assert json.dumps(str(found[0]))
