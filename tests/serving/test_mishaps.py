"""What goes wrong around tables that are served: callbacks, tables that stop fitting, forks, keys that come and go."""

from __future__ import annotations

import os
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt import Deleted, Dropped, LiveTables, Rows, TableData
from cnrfmt.serving import hydrated_table, served
from tests.serving.support import F32, QUICK, Held, chain, damage


def wait_for(condition: Any) -> None:
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    assert condition()


def test_an_alarm_that_raises_ends_nothing(tmp_path: Path) -> None:
    path = chain(tmp_path / "run", deltas=0)

    def on_age(status: cnrfmt.LiveStatus) -> None:
        raise LookupError(f"nobody to tell of {status.version}")

    with LiveTables(path) as live:
        live.follow(poll=0.005, max_age=1e-9, on_age=on_age)
        wait_for(lambda: str(live.status().error) == "nobody to tell of 0")
        cnrfmt.append(path, {"dense": Rows([0], np.ones((1, 8), F32))}, fs=QUICK)
        wait_for(lambda: live.version == 1)
        wait_for(lambda: str(live.status().error) == "nobody to tell of 1")
        for options in ({"max_age": 0.0}, {"max_age": float("nan")}, {"max_age": "1"}):
            with LiveTables(path) as other, pytest.raises(cnrfmt.UsageError, match="max_age is a number of seconds"):
                other.follow(**options, on_age=on_age)
        with LiveTables(path) as other, pytest.raises(cnrfmt.UsageError, match="max_age and on_age go together"):
            other.follow(max_age=5)
    with pytest.raises(cnrfmt.UsageError, match="the tables were closed"):
        live.follow()


@pytest.mark.parametrize("rows", [(0, 50), [0, 99]])
def test_a_table_that_doesn_t_fit_any_more_holds_no_other_up(tmp_path: Path, rows: Any) -> None:
    path = tmp_path / "run"
    values = np.arange(200, dtype=F32).reshape(100, 2)
    cnrfmt.save(path, {"a": values, "b": values}, fs=QUICK)
    with LiveTables(path, rows={"b": rows}) as live:
        cnrfmt.append(path, {"b": Rows([], values[:0], rows=40), "a": Rows([1], values[:1])}, fs=QUICK)
        assert live.advance()
        assert len(live["b"]) == (40 if isinstance(rows, tuple) else 1)
        assert (live["a"].lookup([1]) == values[0]).all()
        cnrfmt.append(path, {"b": TableData(values[:30])}, fs=QUICK)
        assert live.advance()
        assert len(live["b"]) == (30 if isinstance(rows, tuple) else 1)
        cnrfmt.append(path, {"b": Dropped(), "c": values}, fs=QUICK)
        assert live.advance()
        assert sorted(live) == ["a", "c"]
        cnrfmt.append(path, {"d": TableData(values[:3], keys=[1, 2, 3])}, fs=QUICK)
        assert live.advance()
        assert (live["d"].lookup([2]) == values[1]).all()


def test_shards_by_hash_fit_together_whenever_they_begin(tmp_path: Path) -> None:
    path = tmp_path / "run"
    cnrfmt.save(path, {"a": np.zeros((100, 2), F32)}, fs=QUICK)
    early = [LiveTables(path, shard=(n, 3)) for n in range(3)]
    cnrfmt.append(path, {"a": Rows(np.arange(100, 400), np.ones((300, 2), F32), rows=400)}, fs=QUICK)
    late = [LiveTables(path, shard=(n, 3)) for n in range(3)]
    for shard in early:
        shard.advance()
    for number, (one, other) in enumerate(zip(early, late, strict=True)):
        mine = np.flatnonzero(cnrfmt.shard_of(np.arange(400), 3) == number)
        assert len(one["a"]) == len(other["a"]) == len(mine)
        assert one["a"].lookup(mine).tobytes() == other["a"].lookup(mine).tobytes()
    assert sum(len(one["a"]) for one in late) == 400
    for live in (*early, *late):
        live.close()


def test_a_version_that_is_held_is_gone_back_to_though_it_was_collected(tmp_path: Path) -> None:
    path = chain(tmp_path / "run", deltas=1)
    with LiveTables(path, hold=3) as live:
        old = live["dense"].lookup([0])
        for value in (1, 2):
            cnrfmt.append(path, {"dense": Rows([0], np.full((1, 8), value, F32))}, fs=QUICK)
            live.advance()
        cnrfmt.collect(path, keep=1, grace=0)
        assert live.advance(1)
        assert (live["dense"].lookup([0]) == old).all()
        with pytest.raises(cnrfmt.VersionNotFoundError):
            live.advance(0)


def test_damage_met_behind_is_told_and_other_blocks_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hydrated_table, "_BLOCK", 1 << 12)
    path = chain(tmp_path / "run", deltas=0)
    damage(path, "dense")
    with LiveTables(path, ["dense"]) as live:
        with pytest.raises(cnrfmt.DamagedError, match="table 'dense'"):
            live.wait()
        status = live.status()
        assert isinstance(status.error, cnrfmt.DamagedError)
        assert 3000 - 500 < status.hydrated.rows < 3000
        assert live["dense"].lookup([0]).shape == (1, 8)


def test_a_process_that_was_forked_off_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = chain(tmp_path / "run", deltas=0)
    with LiveTables(path) as live, cnrfmt.follow(path) as follower, cnrfmt.open(path) as ck, ck.hydrate() as found:
        live.wait()
        found.wait()
        snapshot = live.snapshot()
        pid = os.getpid()
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: pid + 1)
            for call in (lambda: live["dense"], live.advance, live.follow):
                with pytest.raises(cnrfmt.UsageError, match=f"these tables belong to process {pid}"):
                    call()
            # What was there before can be looked up; nothing is waited for that is in another process.
            assert snapshot["dense"].lookup([1]).shape == (1, 8)
            live.close()
            follower.close()
            found.close()
            table = found["dense"]
            table._left, table._present[5] = 1, 0
            with pytest.raises(cnrfmt.UsageError, match=f"rows are being decoded by process {pid}"):
                table.ensure([5])
            table._left, table._present[5] = 0, 1
        assert not live._over.is_set()


def test_keys_that_come_and_go_leave_no_memory_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "_FEW", 64)
    path, chance = tmp_path / "run", np.random.default_rng(3)
    living = {int(key): 0.0 for key in range(100)}
    cnrfmt.save(path, {"k": TableData(np.zeros((100, 4), F32), keys=list(living))}, fs=QUICK)
    with LiveTables(path, hold=2) as live:
        live.wait()
        for version in range(1, 25):
            gone = chance.choice(list(living), 40, replace=False).tolist()
            for key in gone:
                del living[key]
            new = sorted(set(chance.integers(0, 10**6, 40).tolist()) - set(living))
            again = gone[:5]
            living |= dict.fromkeys(new, float(version))
            rows = Rows(new, np.full((len(new), 4), version, F32))
            cnrfmt.append(path, {"k": (rows, Deleted(np.setdiff1d(gone, new)))}, fs=QUICK)
            before = live.snapshot()
            was = before["k"].lookup(again)
            assert live.advance()
            keys = np.array(list(living))
            assert (live["k"].lookup(keys)[:, 0] == np.array(list(living.values()), F32)).all()
            assert len(live["k"]) == len(living)
            assert not live["k"].lookup(np.setdiff1d(gone, new)).any()
            assert (before["k"].lookup(again) == was).all()
        assert live._tables["k"].positions.count <= 2 * 100 + 2 * 40


def test_floats_go_into_no_integers(tmp_path: Path) -> None:
    path = chain(tmp_path / "run", deltas=0)
    with cnrfmt.open(path) as ck, pytest.raises(cnrfmt.UsageError, match="float32 can't be put into int8"):
        ck.hydrate(["dense"], into={"dense": np.empty((3000, 8), np.int8)})
    with warnings.catch_warnings(), LiveTables(path, dtype="float64") as live:
        assert live["dense"].dtype == np.float64


def test_an_empty_table_says_so(tmp_path: Path) -> None:
    cnrfmt.save(tmp_path / "run", {"e": np.empty((0, 3), F32)}, fs=QUICK)
    with LiveTables(tmp_path / "run") as live, pytest.raises(cnrfmt.MissingKeyError, match="no row 0; it has no rows"):
        live["e"].lookup([0])


def test_attempts_that_fail_leave_no_rows_behind(tmp_path: Path) -> None:
    path = chain(tmp_path / "run", deltas=0)
    with LiveTables(path) as live:
        live.wait()
        cnrfmt.append(path, {"new": np.ones((500, 8), F32), "other": np.ones((3000, 8), F32)}, fs=QUICK)
        _damage_newest(path, "other")
        live.advance(0)
        known = list(live._hydrations)
        for _ in range(3):
            with pytest.raises(cnrfmt.DamagedError, match="table 'other'"):
                live.advance()
        assert all(any(one is before for before in known) for one in live._hydrations)
        assert live.version == 0


def _damage_newest(path: Path, table: str) -> None:
    with cnrfmt.open(path) as ck:
        entry = ck.manifest.chain[-1]
        toc = ck.view.segments[entry.segment].toc
        offset, length = toc.sections[toc.by_table[ck[table].schema.table_id].parts[0].section]
    file = path / "segments" / f"{entry.segment.hex()}.cnrs"
    data = bytearray(file.read_bytes())
    data[offset + length // 2] ^= 1
    file.write_bytes(data)


def test_tables_that_come_together_are_bounded_together(tmp_path: Path) -> None:
    path, rows = tmp_path / "run", np.ones((20_000, 8), F32)
    cnrfmt.save(path, {"a": rows[:100]}, fs=QUICK)
    with LiveTables(path, max_bytes=2 * rows.nbytes) as live:
        live.wait()
        cnrfmt.append(path, {"b": rows, "c": rows}, fs=QUICK)
        with pytest.raises(cnrfmt.TooLargeError, match="table 'c'"):
            live.advance()
        cnrfmt.append(path, {"c": Dropped()}, fs=QUICK)
        assert live.advance()


def test_what_is_dropped_is_decoded_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    path = tmp_path / "run"
    cnrfmt.save(path, {"a": np.zeros((500, 2), F32)}, fs=QUICK)
    with LiveTables(path) as live:
        (behind,) = live._hydrations
        cnrfmt.append(path, {"a": Dropped(), "b": TableData(np.zeros((0, 2), F32), keys=[])}, fs=QUICK)
        assert held.waiting.wait(60)
        threading.Timer(0.05, held.go.set).start()
        assert live.advance()
        assert not any(worker.is_alive() for worker in behind._workers)
        assert len(behind) == 0


def test_a_fork_does_not_wait_for_another_thread_s_advance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, told = chain(tmp_path / "run", deltas=0), list[str]()

    def child() -> None:
        for call in (live.advance, live.keep_up):
            try:
                call()
            except cnrfmt.UsageError as error:
                told.append(str(error))

    with LiveTables(path) as live, live._advancing:
        pid = os.getpid()
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: pid + 1)
            thread = threading.Thread(target=child, daemon=True)
            thread.start()
            thread.join(10)
        assert len(told) == 2


def test_a_range_of_a_table_that_begins_anew_below_it(tmp_path: Path) -> None:
    path, values = tmp_path / "run", np.arange(400, dtype=F32).reshape(200, 2)
    cnrfmt.save(path, {"a": values}, fs=QUICK)
    with LiveTables(path, rows={"a": (100, 200)}) as live:
        cnrfmt.append(path, {"a": values[:50]}, fs=QUICK)
        live.advance()
        assert len(live["a"]) == 0
        cnrfmt.append(path, {"a": Rows(np.arange(50, 150), values[50:150], rows=150)}, fs=QUICK)
        live.advance()
        assert (live["a"].lookup(np.arange(100, 150)) == values[100:150]).all()
        with pytest.raises(cnrfmt.MissingKeyError):
            live["a"].lookup([50])
