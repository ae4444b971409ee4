"""Served tables against whole versions, while they move among branching histories, fail, and are looked up."""

from __future__ import annotations

import queue
import random
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cnrfmt
from cnrfmt import Deleted, Dropped, LiveTables, MissingKeyError, Rows, TableData
from cnrfmt.table import Table
from tests.serving.support import F32, QUICK, chain, damage
from tests.test_changed import Branchy


def check(tables: Any, path: Path, version: int) -> None:
    """That what is served of a version is what `load` gives of it."""
    want = cnrfmt.load(path, version=version, columns=True)
    assert set(tables) == set(want)
    for name, table in want.items():
        served = tables[name]
        assert served.shape == table.values.shape, name
        ids = np.arange(len(table.values)) if table.keys is None else np.asarray(table.keys)
        assert served.lookup(ids).tobytes() == table.values.tobytes(), name
        if table.keys is not None:
            others = np.setdiff1d(np.arange(-3, 40), table.keys)
            assert not served.lookup(others).any()
        else:
            with pytest.raises(cnrfmt.MissingKeyError, match=f"table '{name}' holds no row {len(ids)}"):
                served.lookup([len(ids)])


@given(st.integers(0, 1 << 32))
def test_among_versions_of_a_branching_history(seed: int) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        history = Branchy(Path(folder) / "run", seed)
        for _ in range(3):
            history.grow()
        path, snapshots = history.path, []
        with LiveTables(path, hold=chance.choice([1, 2, 4]), threads=1) as live:
            for _ in range(10):
                if chance.random() < 0.4:
                    history.grow()
                    live.advance()
                    assert live.version == len(history.contents) - 1
                else:
                    version = chance.randrange(len(history.contents))
                    before = live.version
                    assert live.advance(version) is (version != before)
                    assert live.status().pinned
                check(live, path, live.version)
                snapshots.append(live.snapshot())
                chance.shuffle(snapshots)
                del snapshots[3:]
                for snapshot in snapshots:
                    check(snapshot, path, snapshot.version)


def test_a_batch_and_all_tables_see_one_version(tmp_path: Path) -> None:
    path = chain(tmp_path / "run", deltas=1)
    with LiveTables(path) as live:
        snapshot = live.snapshot()
        assert (snapshot.version, snapshot.step) == (1, 1)
        cnrfmt.append(path, {"dense": Rows([3], np.full((1, 8), 5, F32))}, step=9, dense={"bias": 0}, fs=QUICK)
        assert live.advance()
        assert not live.advance()
        assert (live["dense"].lookup([3]) == 5).all()
        assert (snapshot["dense"].lookup([3]) != 5).all()
        assert snapshot.dense["bias"].tolist() == [1.0, 2.0, 3.0]
        assert live.snapshot().dense == {"bias": 0}
        assert live.versions == (2,)
        with pytest.raises(cnrfmt.VersionNotFoundError, match="version 1 isn't held; held are 2"):
            live.snapshot(1)
        status = live.status()
        assert (status.version, status.step, status.updates, status.error) == (2, 9, 1, None)
        assert status.applied_s is not None
        assert 0 <= status.age_s < 60


def test_two_versions_are_held_and_the_older_one_comes_back(tmp_path: Path) -> None:
    path = chain(tmp_path / "run", deltas=3)
    with LiveTables(path, hold=2, version=1) as live:
        assert live.status().pinned
        assert live.advance(2, digest=cnrfmt.open(path, version=2).digest)
        assert live.versions == (1, 2)
        check(live.snapshot(1), path, 1)
        assert live.advance(1)
        check(live, path, 1)
        check(live.snapshot(2), path, 2)
        assert live.advance()
        check(live, path, 3)
        with pytest.raises(cnrfmt.DamagedError, match="the pinned digest 0000000000000000"):
            live.advance(2, digest="0" * 16)
        assert live.version == 3


def test_rows_come_back_to_where_no_map_is_needed(tmp_path: Path) -> None:
    path = chain(tmp_path / "run", deltas=0)
    with LiveTables(path, hold=2) as live:
        live.wait()

        def changes(number: int) -> None:
            cnrfmt.append(path, {"dense": Rows([number, 9], np.full((2, 8), number, F32))}, fs=QUICK)
            assert live.advance()
            assert live.snapshot()["dense"].map is not None

        for number in range(3):
            changes(number)
            assert not live.advance()
            # What the one before has is looked at.
            assert live.snapshot()["dense"].map is not None
            for version in live.versions:
                check(live.snapshot(version), path, version)
        held, before = [live.snapshot()], live.snapshot(2)
        cnrfmt.append(path, {"keyed": Rows([1], np.ones((1, 8), F32))}, fs=QUICK)
        assert live.advance()
        changed = cnrfmt.append(path, {"keyed": Rows([2], np.ones((1, 8), F32))}, fs=QUICK)
        assert live.advance()
        assert live.snapshot()["dense"].map is not None
        check(before, path, 2)
        del before
        # Nobody has a version any more that has other rows of this table.
        assert not live.advance()
        assert live.snapshot()["dense"].map is None
        assert (live.versions, live.status().updates) == ((changed - 1, changed), 5)
        for version in live.versions:
            check(live.snapshot(version), path, version)
        for snapshot in held:
            check(snapshot, path, snapshot.version)


def test_tables_that_come_go_and_begin_anew(tmp_path: Path) -> None:
    path = tmp_path / "run"
    cnrfmt.save(path, {"a": np.zeros((4, 2), F32), "b": np.ones((3, 2), F32)}, fs=QUICK)
    with LiveTables(path) as live:
        old = live.snapshot()
        cnrfmt.append(path, {"a": Dropped(), "c": TableData(np.full((2, 3), 2, F32))}, fs=QUICK)
        assert live.advance()
        check(live, path, 1)
        with pytest.raises(cnrfmt.MissingKeyError, match="no table 'a' is served of version 1"):
            live["a"]
        cnrfmt.append(
            path, {"a": TableData(np.full((2, 5), 7, F32)), "b": Rows([], np.empty((0, 2), F32), rows=1)}, fs=QUICK
        )
        assert live.advance()
        check(live, path, 2)
        check(old, path, 0)
        live.advance(0)
        check(live, path, 0)


def test_growth_beyond_what_there_was_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cnrfmt.serving import slots

    monkeypatch.setattr(slots, "_SPARE", 0)
    path = tmp_path / "run"
    cnrfmt.save(path, {"a": np.zeros((4, 2), F32)}, fs=QUICK)
    with LiveTables(path) as live:
        held = [live.snapshot()]
        for version in range(1, 6):
            rows = 4 + 10 * version
            ids = np.arange(rows)
            cnrfmt.append(path, {"a": Rows(ids, np.full((rows, 2), version, F32), rows=rows)}, fs=QUICK)
            assert live.advance()
            held.append(live.snapshot())
            for version_, snapshot in enumerate(held):
                check(snapshot, path, version_)


def test_a_shard_takes_in_its_own_rows_alone(tmp_path: Path) -> None:
    path = chain(tmp_path / "run", deltas=0)
    shards = [LiveTables(path, ["dense", "keyed"], shard=(n, 3), shard_by="range") for n in range(3)]
    key = 12345
    cnrfmt.append(
        path,
        {"dense": Rows([5, 3000], np.ones((2, 8), F32), rows=3001), "keyed": Rows([key], np.full((1, 8), 3, F32))},
        fs=QUICK,
    )
    for live in shards:
        live.advance()
    assert [live["dense"].shape for live in shards] == [(1000, 8), (1000, 8), (1001, 8)]
    assert (shards[2]["dense"].lookup([3000]) == 1).all()
    with pytest.raises(cnrfmt.MissingKeyError, match=r"table 'dense' holds no row 5; it has 1000 of 3001 rows"):
        shards[1]["dense"].lookup([5])
    number = int(cnrfmt.shard_of([key], 3)[0])
    assert (shards[number]["keyed"].lookup([key]) == 3).all()
    with pytest.raises(MissingKeyError, match=f"key {key} isn't of shard {(number + 1) % 3} of 3"):
        shards[(number + 1) % 3]["keyed"].lookup([key])
    for live in shards:
        live.close()


def test_rows_in_half_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "run"
    values = np.arange(8, dtype=F32).reshape(4, 2) + F32(0.1)
    cnrfmt.save(path, {"a": values, "counts": np.arange(6).reshape(3, 2)}, fs=QUICK)
    with LiveTables(path, dtype=np.float16) as live:
        assert (live["a"].dtype, live["counts"].dtype) == (np.float16, np.int64)
        assert (live["a"].lookup([1, 2]) == values[1:3].astype(np.float16)).all()
        cnrfmt.append(path, {"a": Rows([1], np.full((1, 2), 9.1, F32))}, fs=QUICK)
        live.advance()
        assert (live["a"].lookup([1]) == np.float16(9.1)).all()
        assert (live["counts"].lookup([2]) == [4, 5]).all()


def test_keys_that_aren_t_there_give_the_fill_value(tmp_path: Path) -> None:
    path = tmp_path / "run"
    cnrfmt.save(path, {"k": TableData(np.zeros((2, 2), F32), keys=[5, 9], fill=0.5)}, fs=QUICK)
    with LiveTables(path) as live:
        assert live["k"].lookup([5, 6, -1]).tolist() == [[0, 0], [0.5, 0.5], [0.5, 0.5]]
        cnrfmt.append(path, {"k": (Deleted([5]), Rows([6], np.ones((1, 2), F32)))}, fs=QUICK)
        live.advance()
        assert live["k"].lookup([5, 6]).tolist() == [[0.5, 0.5], [1, 1]]
        assert len(live["k"]) == 2


def test_what_can_t_be_read_is_never_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = chain(tmp_path / "run", deltas=1)
    read = Table.read
    with LiveTables(path) as live:
        live.wait()
        for number in range(3):
            ids = np.arange(number, 600)
            changed = {
                "dense": Rows(ids, np.full((len(ids), 8), number, F32)),
                "keyed": Rows([number], np.ones((1, 8), F32)),
            }
            cnrfmt.append(path, changed, fs=QUICK)
            before = live.version

            def fails(self: Table, *args: Any, **options: Any) -> Any:
                if self.name == "keyed":
                    raise cnrfmt.StorageError(5, "no such luck", "somewhere")
                return read(self, *args, **options)

            with monkeypatch.context() as patch:
                patch.setattr(Table, "read", fails)
                with pytest.raises(cnrfmt.StorageError, match="no such luck"):
                    live.advance()
            assert live.version == before
            check(live, path, before)
            assert live.advance()
            check(live, path, before + 1)
        # What the failed ones had taken was given back.
        slots = live._tables["dense"].slots
        assert slots._end <= 3000 + 2 * 600


def test_another_container_or_an_older_state_is_an_error(tmp_path: Path) -> None:
    path = chain(tmp_path / "run", deltas=2)
    backup = tmp_path / "backup"
    shutil.copytree(path, backup)
    with LiveTables(path) as live:
        cnrfmt.append(path, {"dense": Rows([0], np.ones((1, 8), F32))}, fs=QUICK)
        live.advance()
        shutil.rmtree(path)
        shutil.copytree(backup, path)
        with pytest.raises(cnrfmt.DamagedError, match="at version 3 or later"):
            live.advance()
        assert (live["dense"].lookup([0]) == 1).all()
        shutil.rmtree(path)
        chain(path, deltas=5, seed=1)
        with pytest.raises(cnrfmt.DamagedError, match="container"):
            live.advance()
        with pytest.raises(cnrfmt.DamagedError, match="container"):
            live.advance(3)
        assert (live["dense"].lookup([0]) == 1).all()


def test_damage_in_what_is_new_is_told_and_not_served(tmp_path: Path) -> None:
    path = chain(tmp_path / "run", deltas=0)
    with LiveTables(path) as live:
        live.wait()
        cnrfmt.save(path, {"dense": np.ones((3000, 8), F32)}, fs=QUICK)
        damage(path, "dense")
        with pytest.raises(cnrfmt.DamagedError, match="table 'dense'"):
            live.advance()
        check(live, path, 0)


def test_the_memory_is_bounded(tmp_path: Path) -> None:
    path, row = chain(tmp_path / "run", deltas=0, rows=30_000), 32
    with pytest.raises(cnrfmt.TooLargeError, match="table 'dense'"):
        LiveTables(path, ["dense"], max_bytes=30_000 * row - 1)
    # The rows, and the map of one more version with room for a thousand changed rows.
    limit = 30_000 * row + 4 * 30_000 + 1000 * row
    with LiveTables(path, ["dense"], max_bytes=limit) as live:
        live.wait()
        cnrfmt.append(path, {"dense": Rows(np.arange(1001), np.ones((1001, 8), F32))}, fs=QUICK)
        with pytest.raises(cnrfmt.TooLargeError, match="table 'dense', 1001 changed rows"):
            live.advance()
        assert live.version == 0
    with LiveTables(path, ["dense"], max_bytes=limit) as live:
        live.wait()
        cnrfmt.append(path, {"dense": Rows(np.arange(1000), np.zeros((1000, 8), F32))}, fs=QUICK)
        assert live.advance()
        assert not live["dense"].lookup(np.arange(1000)).any()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"hold": 0}, "hold is how many versions are held, at least 1, found 0"),
        ({"rows": {"nobody": [1]}}, "rows names a table that isn't among those asked for: 'nobody'"),
        ({"tables": ["nobody"]}, "no table matches 'nobody'"),
        ({"max_bytes": -1}, "max_bytes"),
        ({"dtype": np.int8}, "dtype is a floating-point type, as rows are kept in memory, found int8"),
    ],
)
def test_what_is_refused(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    path = chain(tmp_path / "run", deltas=0)
    with pytest.raises(cnrfmt.UsageError, match=text):
        LiveTables(path, **options)


def test_what_a_look_up_refuses(tmp_path: Path) -> None:
    path = chain(tmp_path / "run", deltas=0)
    with LiveTables(path) as live:
        for out in (np.empty((2, 8)), np.empty((1, 8), F32), np.empty((2, 16), F32)[:, ::2], [0]):
            with pytest.raises(cnrfmt.UsageError, match=r"table 'dense': out must be a writable C-contiguous array"):
                live["dense"].lookup([1, 2], out=out)  # type: ignore[arg-type]
        with pytest.raises(cnrfmt.UsageError, match="must be integers"):
            live["dense"].lookup([1.5])
        assert live["dense"].lookup([]).shape == (0, 8)
        with pytest.raises(cnrfmt.UsageError, match="poll is a number of seconds"):
            live.follow(poll=0)
    with pytest.raises(cnrfmt.UsageError, match="the tables were closed"):
        live["dense"]


def test_no_row_is_torn_while_a_trainer_appends(tmp_path: Path) -> None:
    """Every element of a row carries the version that wrote it, and a batch may hold no row newer than its version."""
    path, rows = tmp_path / "run", 2000
    cnrfmt.save(path, {"a": np.zeros((rows, 16), F32), "b": np.zeros((rows, 16), F32)}, fs=QUICK)
    last = np.zeros((40, rows), F32)
    torn: list[str] = []
    over = threading.Event()
    looked = [0, 0]

    def look(number: int) -> None:
        random_ = np.random.default_rng(number)
        while not over.is_set():
            snapshot = live.snapshot()
            ids = random_.integers(0, rows, 300)
            for name in ("a", "b"):
                found = snapshot[name].lookup(ids)
                if not (found == found[:, :1]).all():
                    torn.append("torn")
                if not (found[:, 0] == last[snapshot.version][ids]).all():
                    torn.append(f"not of version {snapshot.version}")
            looked[number] += 1

    with LiveTables(path) as live:
        threads = [threading.Thread(target=look, args=(n,)) for n in range(2)]
        live.follow(poll=0.005)
        for thread in threads:
            thread.start()
        chance = np.random.default_rng(9)
        for version in range(1, 40):
            ids = np.sort(chance.choice(rows, 300, replace=False))
            last[version] = last[version - 1]
            last[version][ids] = version
            values = np.repeat(np.full((300, 1), version, F32), 16, axis=1)
            cnrfmt.append(path, {"a": Rows(ids, values), "b": Rows(ids, values)}, fs=QUICK)
        end = time.monotonic() + 60
        while live.version != 39 and time.monotonic() < end:
            time.sleep(0.01)
        over.set()
        for thread in threads:
            thread.join()
        assert live.version == 39
        assert live.status().error is None
        with pytest.raises(cnrfmt.UsageError, match="follow it already"):
            live.follow()
    assert torn == []
    assert min(looked) > 20


def test_following_tells_what_is_wrong_and_goes_on(tmp_path: Path) -> None:
    path = chain(tmp_path / "run", deltas=1)
    hidden = tmp_path / "hidden"
    seen: list[int] = []
    old: list[int] = []

    def wait_for(condition: Any) -> None:
        end = time.monotonic() + 60
        while not condition() and time.monotonic() < end:
            time.sleep(0.005)
        assert condition()

    with LiveTables(path) as live:
        live.follow(
            poll=0.01, on_update=lambda s: seen.append(s.version), max_age=1e-9, on_age=lambda s: old.append(s.version)
        )
        wait_for(lambda: old == [1])
        path.rename(hidden)
        wait_for(lambda: isinstance(live.status().error, cnrfmt.StorageError))
        assert live["dense"].lookup([0]).shape == (1, 8)
        hidden.rename(path)
        cnrfmt.append(path, {"dense": Rows([0], np.ones((1, 8), F32))}, fs=QUICK)
        wait_for(lambda: seen == [2])
        wait_for(lambda: live.status().error is None)
        wait_for(lambda: old == [1, 2])
        live.advance(1)
        cnrfmt.append(path, {"dense": Rows([0], np.zeros((1, 8), F32))}, fs=QUICK)
        time.sleep(0.05)
        assert live.version == 1
        live.advance()
        assert live.version == 3


@pytest.mark.parametrize("dtype", [None, np.float16])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_are_pooled_as_torch_does(tmp_path: Path, dtype: Any, mode: str) -> None:
    torch = pytest.importorskip("torch")
    path = chain(tmp_path / "run", deltas=2)
    with LiveTables(path, dtype=dtype) as live:
        chance = np.random.default_rng(1)
        ids = chance.integers(0, 3000, 5000)
        offsets = np.sort(np.r_[0, chance.integers(0, 5000, 700), 5000])
        rows = live["dense"].lookup(np.arange(3000)).astype(F32)
        want = torch.nn.functional.embedding_bag(
            torch.from_numpy(ids), torch.from_numpy(rows), torch.from_numpy(offsets), mode=mode
        ).numpy()
        found = live["dense"].pool(ids, offsets, mode=mode)
        assert found.dtype == F32
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
        if mode == "sum":
            weights = chance.uniform(0, 1, 5000).astype(F32)
            weighted = live["dense"].pool(ids, offsets, weights)
            by_hand = np.add.reduceat(rows[ids] * weights[:, None], offsets[:-1], axis=0)
            full = np.diff(offsets) > 0
            np.testing.assert_allclose(weighted[:-1][full], by_hand[full], rtol=1e-4, atol=1e-4)
        snapshot = live.snapshot()
        keys = np.asarray(cnrfmt.load(path)["keyed"].keys[:3])
        pooled = snapshot["keyed"].pool([*keys, -7], [0, 3], mode=mode)
        assert not pooled[1].any()
        with pytest.raises(cnrfmt.UsageError, match="table 'dense': offsets must begin with 0"):
            live["dense"].pool([1], [1])
        with pytest.raises(cnrfmt.MissingKeyError, match="holds no row 3000"):
            live["dense"].pool([3000], [0])


def test_what_a_call_back_raises_is_told(tmp_path: Path) -> None:
    path = chain(tmp_path / "run", deltas=0)

    def on_update(snapshot: cnrfmt.Snapshot) -> None:
        if snapshot.version == 1:
            raise LookupError("no such luck")

    with LiveTables(path) as live:
        before = live.snapshot().manifest
        live.follow(poll=0.005, on_update=on_update)
        for version in (1, 2):
            cnrfmt.append(path, {"dense": Rows([version], np.ones((1, 8), F32))}, fs=QUICK)
            end = time.monotonic() + 60
            while (live.version, live.status().error is None) != (version, version == 2) and time.monotonic() < end:
                time.sleep(0.005)
            status = live.status()
            assert (status.version, str(status.error)) == (version, "no such luck" if version == 1 else "None")
            assert (status.failing_s > 0) is (version == 1)
        assert live.snapshot().changed_since(before)["dense"].rows.tolist() == [1, 2]


def test_a_key_that_was_not_chosen_is_no_unknown_one(tmp_path: Path) -> None:
    path = tmp_path / "run"
    cnrfmt.save(path, {"k": TableData(np.ones((100, 2), F32), keys=np.arange(100))})
    shards = cnrfmt.shard_of(np.arange(200), 2)
    mine, other = (np.flatnonzero(shards == number) for number in range(2))
    with cnrfmt.LiveTables(path, shard=(0, 2)) as live:
        # A key of this shard that the table lacks has the default row.
        assert live["k"].lookup([mine[0], mine[-1]]).tolist() == [[1, 1], [0, 0]]
        for look in (live["k"].lookup, lambda ids: live["k"].pool(ids, [0])):
            with pytest.raises(MissingKeyError, match=f"table 'k': key {other[0]} isn't of shard 0 of 2"):
                look([mine[0], other[0]])
    with cnrfmt.LiveTables(path, rows={"k": [1, 2]}) as live:
        with pytest.raises(MissingKeyError, match="key 50 isn't among those that were asked for"):
            live["k"].lookup([50])
        cnrfmt.append(path, {"k": cnrfmt.Deleted([2])})
        live.advance()
        assert live["k"].lookup([1, 2]).tolist() == [[1, 1], [0, 0]]


def test_what_goes_wrong_is_told_once_and_when_it_is_well_again(tmp_path: Path) -> None:
    path, away = tmp_path / "run", tmp_path / "away"
    cnrfmt.save(path, {"t": np.ones((4, 2), F32)})
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with cnrfmt.LiveTables(path) as live:
        live.wait()
        live.follow(poll=0.01, on_error=told.put)
        path.rename(away)
        assert isinstance(told.get(timeout=60), cnrfmt.CnrError)
        away.rename(path)
        assert told.get(timeout=60) is None
    assert told.empty()
