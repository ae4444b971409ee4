from __future__ import annotations

import multiprocessing
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt import CommitUnknownError, ConflictError, Dropped, MissingKeyError, Quantize, StorageError, UsageError
from cnrfmt.checkpointing.checkpointer import Checkpointer
from cnrfmt.checkpointing.events import Event
from cnrfmt.checkpointing.keeping.retention import Keep
from cnrfmt.checkpointing.manager import CheckpointManager
from cnrfmt.errors import SupersededError
from cnrfmt.run_record import record_of
from tests.checkpointing.support import Disk, Trainer, check, sound
from tests.storage.support import QuickFs

POLICIES = ["full", "one-shot", "consecutive", "intermittent"]


def manager(path: Path, policy: Any = "consecutive", **options: Any) -> CheckpointManager:
    """One that stores rows bit for bit, unless told otherwise."""
    if not {"bits", "expected_restores", "failure_rate", "quantize"} & set(options):
        options["bits"] = 32
    return CheckpointManager(path, policy=policy, fs=options.pop("fs", Disk()), **options)


@pytest.fixture(params=["run", "model.cnr"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / request.param


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("mode", ["encode", "copy"])
def test_every_checkpoint_is_the_model_of_its_moment(path: Path, policy: str, mode: Any) -> None:
    trainer, said = Trainer(), {}
    with manager(path, policy, mode=mode) as m:
        for step in range(9):
            trainer.train(m)
            if step == 3:
                trainer.admit(m, 77)
            if step == 5:
                trainer.evict(m, 3)
            if step == 6:
                trainer.grow(m, 95)
            version = m.save(trainer.step, trainer.tables(), dense={"w": np.arange(step)}).wait()
            assert version is not None
            said[version] = trainer.copy()
    sound(path)
    with cnrfmt.open(path) as ck:
        kept = ck.versions
        assert ck.step == 9
        assert ck.dense["w"].tolist() == list(range(8))
        assert not ck.metadata
    assert kept == tuple(said) or path.suffix
    for version in kept:
        if version in said:
            check(path, version, said[version])


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_goes_on_where_its_last_commit_left_it(path: Path, policy: str) -> None:
    trainer = Trainer()
    for start in range(3):
        with manager(path, policy) as m:
            restored = m.restore()
            assert (restored is None) == (start == 0)
            if restored is not None:
                assert restored.step == trainer.step
                trainer.take_over(restored)
            for _ in range(3):
                trainer.train(m)
                version = m.save(trainer.step, trainer.tables()).wait()
                assert version is not None
                check(path, version, trainer.copy())
    sound(path)
    with cnrfmt.open(path) as ck:
        record = record_of(ck.manifest)
    assert record is not None
    assert record.restores == 2
    assert record.policy == policy


def test_the_model_may_change_as_soon_as_save_returns(path: Path) -> None:
    trainer, disk = Trainer(), Disk()
    with manager(path, fs=disk) as m:
        m.save(0, trainer.tables()).wait()
        trainer.train(m)
        before = trainer.copy()
        with disk.held():
            pending = m.save(1, trainer.tables())
            assert pending.snapshot.done()
            assert disk.reached.wait(60)
            assert not pending.commit.done()
            trainer.train(m)
        assert pending.wait() == 1
        check(path, 1, before)
        # What was marked while it was being written belongs to the next.
        assert m.save(2, trainer.tables()).wait() == 2
        check(path, 2, trainer.copy())


@pytest.mark.parametrize("failing", ["sync", "names"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_save_that_fails_gives_its_marks_back(tmp_path: Path, policy: str, failing: str) -> None:
    path, trainer, disk = tmp_path / "run", Trainer(), Disk()
    with manager(path, policy, fs=disk) as m:
        for step in range(3):
            trainer.train(m)
            m.save(step, trainer.tables()).wait()
        trainer.train(m)
        disk.failing = failing
        pending = m.save(3, trainer.tables())
        error: Any = StorageError if failing == "sync" else CommitUnknownError
        with pytest.raises(error, match="the disk failed"):
            pending.wait()
        disk.failing = None
        disk.armed = False
        trainer.train(m)
        version = m.save(4, trainer.tables()).wait()
        assert version == (3 if failing == "sync" else 4)
        check(path, version, trainer.copy())
    sound(path)


def test_a_failure_that_nobody_asked_for_is_raised_at_the_next_call(path: Path) -> None:
    calls = {
        "track": lambda m: m.track("item", [1]),
        "save": lambda m: m.save(9, trainer.tables()),
        "wait": lambda m: m.wait(),
        "close": lambda m: m.close(),
        "restore": lambda m: m.restore(),
    }
    for name, call in calls.items():
        trainer, disk = Trainer(), Disk()
        m = manager(path.with_name(f"{name}-{path.name}"), fs=disk)
        m.save(0, trainer.tables()).wait()
        trainer.train(m)
        disk.failing = "sync"
        m.save(1, trainer.tables())
        m.flush()
        with pytest.raises(StorageError, match="the disk failed"):
            call(m)
        disk.failing = None
        m.close()


@pytest.mark.parametrize("busy", ["wait", "skip", "replace"])
def test_checkpoints_never_overlap(path: Path, busy: Any) -> None:
    trainer, disk, events = Trainer(), Disk(), []
    with manager(path, fs=disk, when_busy=busy, on_event=events.append) as m:
        m.save(0, trainer.tables()).wait()
        trainer.train(m)
        with disk.held():
            first = m.save(1, trainer.tables())
            assert disk.reached.wait(60)
            trainer.train(m)
            then = trainer.copy()
            if busy == "skip":
                skipped = m.save(2, trainer.tables())
                assert skipped.skipped
                assert skipped.wait() is None
                with pytest.raises(SupersededError):
                    skipped.commit.result()
        if busy == "skip":
            assert first.wait() == 1
            assert m.save(3, trainer.tables()).wait() == 2
        else:
            assert m.save(2, trainer.tables()).wait() in (1, 2)
        with cnrfmt.open(path) as ck:
            newest = ck.version
        check(path, newest, then)
    kinds = [event.kind for event in events]
    assert kinds.count("skipped") == (busy == "skip")
    sound(path)


def test_a_checkpoint_that_is_replaced_gives_its_rows_to_the_next(path: Path) -> None:
    trainer, disk, events = Trainer(), Disk(), []
    with manager(path, fs=disk, when_busy="replace", on_event=events.append, buffer_bytes=1) as m:
        m.save(0, trainer.tables()).wait()
        trainer.train(m)
        hold = threading.Event()
        m._saving._worker.submit(lambda: hold.wait(60) and None)
        first: list[Any] = []
        # It is given up before its writer has begun; `save` waits for that writer to take what it encodes.
        waiting = threading.Thread(target=lambda: first.append(_attempt(m, trainer.tables())))
        waiting.start()
        hold.set()
        waiting.join()
        trainer.train(m)
        version = m.save(2, trainer.tables()).wait()
        assert version is not None
        check(path, version, trainer.copy())
    sound(path)


def _attempt(m: CheckpointManager, tables: Any) -> Any:
    return m.save(1, tables)


def test_another_run_is_refused(path: Path) -> None:
    trainer = Trainer()
    with manager(path) as m:
        m.save(0, trainer.tables()).wait()
        with manager(path) as other, pytest.raises(UsageError, match="version 0 is there already"):
            other.save(0, Trainer(1).tables())
        with manager(path, start="anew") as other:
            assert other.save(0, Trainer(1).tables()).wait() == 1
        trainer.train(m)
        with pytest.raises(ConflictError, match="another run wrote here: version 1"):
            m.save(1, trainer.tables()).wait()
        with cnrfmt.open(path) as ck:
            assert ck.version == 1
        cnrfmt.append(path, {"item": cnrfmt.Rows([0], np.zeros((1, 3), np.float32))}, step=2)
        with pytest.raises(ConflictError, match="another run"):
            m.save(1, trainer.tables()).wait()


def test_tags_merges_and_collections_by_others_are_no_other_run(tmp_path: Path) -> None:
    path, trainer = tmp_path / "run", Trainer()
    with manager(path, "intermittent") as m:
        for step in range(3):
            trainer.train(m)
            m.save(step, trainer.tables()).wait()
        cnrfmt.tag(path, "prod", 1)
        trainer.train(m)
        version = m.save(3, trainer.tables()).wait()
        assert version == 4
        check(path, version, trainer.copy())
        cnrfmt.compact(path)
        trainer.train(m)
        version = m.save(4, trainer.tables()).wait()
        assert version == 6
        check(path, version, trainer.copy())
    sound(path)


def test_an_older_version_can_be_gone_on_from(tmp_path: Path) -> None:
    for policy in POLICIES:
        path, trainer, said = tmp_path / policy, Trainer(), {}
        with manager(path, policy) as m:
            for step in range(5):
                trainer.train(m)
                said[m.save(step, trainer.tables()).wait()] = trainer.copy()
        for wanted in ({"version": 2}, {"step": 2}):
            with manager(path, policy) as m:
                restored = m.restore(**wanted)
                assert restored is not None
                assert restored.version == 2
                trainer.take_over(restored)
                assert trainer.copy().keys() == said[2].keys()
                for _ in range(2):
                    trainer.train(m)
                    version = m.save(None, trainer.tables()).wait()
                    assert version is not None
                    check(path, version, trainer.copy())
        sound(path)


def test_a_partial_restore_begins_with_a_baseline(path: Path) -> None:
    trainer = Trainer()
    with manager(path) as m:
        for step in range(3):
            trainer.train(m)
            m.save(step, trainer.tables()).wait()
    other = Trainer(5)
    with manager(path) as m:
        m.restore(tables=["item"])
        other.train(m)
        version = m.save(3, other.tables()).wait()
        assert version == 3
        check(path, version, other.copy())
        with cnrfmt.open(path) as ck:
            assert len(ck.manifest.chain) == 1


def test_tables_come_and_go(tmp_path: Path) -> None:
    for policy in POLICIES:
        path, trainer = tmp_path / policy, Trainer()
        with manager(path, policy) as m:
            for step in range(3):
                trainer.train(m)
                m.save(step, trainer.tables()).wait()
            with pytest.raises(UsageError, match="'item' was in the checkpoint before this one"):
                m.save(3, {k: v for k, v in trainer.tables().items() if k != "item"})
            new = np.ones((3, 2), np.float32)
            m.save(3, {**trainer.tables(), "new": new}).wait()
            m.track("new", [2])
            new[2] = 7
            m.save(4, {**trainer.tables(), "new": new}).wait()
            assert cnrfmt.load(path)["new"][2].tolist() == [7, 7]
            m.save(5, {**trainer.tables(), "new": Dropped()}).wait()
            with pytest.raises(MissingKeyError, match="no table 'new'"):
                m.track("new", [2])
            trainer.train(m)
            version = m.save(6, trainer.tables()).wait()
            assert version is not None
            check(path, version, trainer.copy())
            with cnrfmt.open(path) as ck:
                assert "new" not in ck
        sound(path)


def test_a_table_that_is_marked_and_never_given_is_named(path: Path) -> None:
    with manager(path) as m:
        m.track("itme", [1])
        with pytest.raises(MissingKeyError, match="'itme' were marked, and the checkpoint has no such table"):
            m.save(0, Trainer().tables())


def test_a_refused_save_leaves_the_marks(path: Path) -> None:
    trainer = Trainer()
    with manager(path) as m:
        m.save(0, trainer.tables()).wait()
        trainer.train(m)
        wrong = {**trainer.tables(), "user": cnrfmt.TableData(trainer.user, columns={"state": trainer.user_state[1:]})}
        with pytest.raises(UsageError, match="39 rows where the table has 40"):
            m.save(1, wrong)
        with pytest.raises(UsageError, match="the manager's"):
            m.save(1, trainer.tables(), dense={"cnrfmt:x": 1})
        with pytest.raises(UsageError, match="kind is one of"):
            m.save(1, trainer.tables(), kind="half")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="doesn't remember"):
            m.save(1, trainer.tables(), kind="since-baseline")
        version = m.save(1, trainer.tables()).wait()
        assert version == 1
        check(path, version, trainer.copy())


def test_bits_follow_from_restores_and_fall_back_to_eight(tmp_path: Path) -> None:
    path, found = tmp_path / "run", []
    table = np.random.default_rng(0).normal(0, 1, (64, 16)).astype(np.float32)
    for _ in range(4):
        with manager(path, expected_restores=1) as m:
            m.restore()
            m.track("t", [1, 2])
            m.save(0, {"t": table}).wait()
        with cnrfmt.open(path) as ck:
            record = record_of(ck.manifest)
            assert record is not None
            newest = ck.view.segments[ck.manifest.chain[-1].segment].toc.tables[0].parts[0].layout
        found.append((record.restores, record.checkpoints[-1].bits, getattr(newest, "bits", None)))
    assert found == [(0, 2, 2), (1, 2, 2), (2, 8, 8), (3, 8, 8)]


def test_a_say_on_a_table_goes_before_the_bits(tmp_path: Path) -> None:
    table = np.random.default_rng(0).normal(0, 1, (64, 16)).astype(np.float32)
    tables = {"a": table, "b": table, "whole": np.arange(12, dtype=np.int64).reshape(3, 4)}
    with manager(tmp_path / "run", bits=4, quantize={"b": Quantize(bits=8)}) as m:
        m.save(0, tables).wait()
    with cnrfmt.open(tmp_path / "run") as ck:
        assert [getattr(ck[name].encoding, "bits", None) for name in ("a", "b", "whole")] == [4, 8, None]


def test_what_a_checkpoint_holds(path: Path) -> None:
    trainer = Trainer()
    generator = np.random.default_rng(4)
    generator.random(3)
    with manager(path) as m:
        m.save(
            7,
            trainer.tables(),
            dense={"w": np.ones(3)},
            reader={"file": 3, "offset": 99},
            random={"mine": generator},
            metrics={"loss": np.float32(0.5), "auc": float("nan")},
            tags=[] if path.suffix else ["prod"],
            metadata={"note": "x"},
        ).wait()
        if path.suffix:
            with pytest.raises(UsageError, match="tags need a directory"):
                m.save(8, trainer.tables(), tags=["prod"])
    expected = generator.random(5).tolist(), np.random.random(3).tolist()  # noqa: NPY002 - the legacy state is meant
    with manager(path) as m:
        restored = m.restore(tag=None if path.suffix else "prod")
        assert restored is not None
    assert restored.step == 7
    assert list(restored.dense) == ["w"]
    assert restored.reader == {"file": 3, "offset": 99}
    assert restored.metrics == {"loss": 0.5}
    assert restored.metadata == {"note": "x"}
    again = np.random.default_rng(0)
    restored.set_random({"mine": again})
    assert (again.random(5).tolist(), np.random.random(3).tolist()) == expected  # noqa: NPY002


def test_a_merge_of_what_was_appended_beside_the_run_takes_no_checkpoint_along(tmp_path: Path) -> None:
    """Once that version is gone, its merge would stand for the checkpoint before it."""
    path, trainer = tmp_path / "run", Trainer()
    with manager(path) as m:
        m.save(0, trainer.tables()).wait()
        trainer.train(m)
        m.save(1, trainer.tables(), kind="delta").wait()
        said = trainer.copy()
    cnrfmt.append(path, {"item": cnrfmt.Rows([0], np.zeros((1, 3), np.float32))}, step=2)
    assert cnrfmt.compact(path) == 3
    with manager(path) as m:
        restored = m.restore()
        assert restored is not None
        trainer.take_over(restored)
        for step in (2, 3):
            trainer.train(m)
            m.save(step, trainer.tables(), kind="delta").wait()
    with cnrfmt.open(path) as ck:
        assert {0, 1, 3, 4, 5} <= set(ck.versions)
    check(path, 1, said)


def test_a_merged_head_that_cannot_be_looked_at_is_not_adopted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a checkpoint since the baseline would be put on a segment that may be gone by then."""
    from cnrfmt.checkpointing import lineage

    path, tables = tmp_path / "run", {"t": np.ones((8, 2), np.float32)}
    cnrfmt.save(path, tables)
    cnrfmt.append(path, {"t": cnrfmt.Rows([1], np.zeros((1, 2), np.float32))})
    with cnrfmt.open(path) as ck:
        old, baseline = ck.manifest, lineage.baseline_of(ck.view)
    cnrfmt.compact(path)
    with cnrfmt.open(path) as ck:
        merged = ck.manifest
    run = lineage.Lineage(str(path), lineage.new_run(), head=old, base=old, baseline=baseline)
    with monkeypatch.context() as patch:
        patch.setattr(lineage, "open", lambda *args, **options: cnrfmt.open(tmp_path / "nowhere"))
        with pytest.raises(StorageError):
            run.adopt(merged)
    assert (run.head, run.base, run.baseline) == (old, old, baseline)
    run.adopt(merged)
    assert (run.head, run.base) == (merged, merged)
    assert run.baseline is not None
    assert run.baseline.chain == merged.chain


def test_a_single_file_gives_up_no_version_before_it_is_written_anew(tmp_path: Path) -> None:
    """The bytes of a version that nobody names would be damage."""
    path, trainer = tmp_path / "model.cnr", Trainer()
    with manager(path) as m:
        m.save(0, trainer.tables()).wait()
        # Each is a version that repeats the one before it, and stands for it.
        cnrfmt.tag(path, "prod")
        cnrfmt.untag(path, "prod")
        trainer.train(m)
        m.save(1, trainer.tables(), kind="delta").wait()
    with cnrfmt.open(path) as ck:
        assert ck.versions == (0, 1, 2, 3)
    sound(path)


@pytest.mark.parametrize("dense", [None, {}])
def test_what_is_not_given_is_not_taken_over(path: Path, dense: Any) -> None:
    trainer = Trainer()
    with manager(path) as m:
        m.save(0, trainer.tables(), dense={"w": np.ones(3)}, reader={"offset": 7}, metadata={"note": "x"}).wait()
        for step in (1, 2):
            m.save(step, trainer.tables(), dense=dense).wait()
            with cnrfmt.open(path) as ck:
                assert (ck.step, dict(ck.dense)) == (step, {})
    with manager(path) as m:
        restored = m.restore()
        assert restored is not None
        assert (restored.reader, restored.dense, restored.metadata) == (None, {}, {})
    sound(path)


def test_events_tell_what_happened(path: Path) -> None:
    trainer, events = Trainer(), list[Event]()

    def listen(event: Event) -> None:
        events.append(event)
        raise ValueError("a listener's own fault")

    with manager(path, on_event=listen) as m:
        m.save(0, trainer.tables()).wait()
        trainer.train(m)
        m.save(1, trainer.tables()).wait()
        m.flush()
    assert [e.kind for e in events] == ["snapshot", "committed"] * 2
    assert [e.checkpoint for e in events] == ["baseline"] * 2 + ["delta"] * 2
    assert events[1].version == 0
    assert events[1].nbytes > 0
    assert events[1].rows == 124
    assert all(e.stall_seconds > 0 for e in events if e.kind == "snapshot")
    assert all(e.write_seconds > 0 and e.commit_seconds > 0 for e in events if e.kind == "committed")


def test_versions_that_are_not_kept_are_removed(tmp_path: Path) -> None:
    path, trainer, said = tmp_path / "run", Trainer(), {}
    with manager(path, "full", keep=2, grace=0) as m:
        for step in range(6):
            trainer.train(m)
            tags = ["best"] if step == 1 else []
            said[m.save(step, trainer.tables(), tags=tags).wait()] = trainer.copy()
            m.flush()
    with cnrfmt.open(path) as ck:
        assert ck.versions == (1, 4, 5)
    assert len(list((path / "segments").iterdir())) == 3
    for version in (1, 4, 5):
        check(path, version, said[version])
    sound(path)


def test_the_best_are_kept(tmp_path: Path) -> None:
    path, trainer = tmp_path / "run", Trainer()
    with manager(path, keep=Keep(last=1, best=("loss", 2, "min"))) as m:
        for step, loss in enumerate([0.5, 0.2, 0.4, 0.3, 0.9]):
            trainer.train(m)
            m.save(step, trainer.tables(), metrics={"loss": loss}).wait()
    with cnrfmt.open(path) as ck:
        assert ck.versions == (1, 3, 4)
    sound(path)


def test_chains_are_merged(tmp_path: Path) -> None:
    path, trainer, events = tmp_path / "run", Trainer(), []
    with manager(path, most_segments=4, keep=1, grace=0, on_event=events.append) as m:
        for step in range(24):
            trainer.train(m)
            m.save(step, trainer.tables()).wait()
            m.flush()
            with cnrfmt.open(path) as ck:
                assert len(ck.manifest.chain) <= 4
    assert any(e.kind == "merged" for e in events)
    with cnrfmt.open(path) as ck:
        newest = ck.version
    check(path, newest, trainer.copy())
    sound(path)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"policy": "sometimes"}, "policy"),
        ({"bits": 9}, "bits"),
        ({"bits": 8, "expected_restores": 3}, "not both"),
        ({"failure_rate": 1.0}, "go together"),
        ({"failure_rate": 1.0, "run_hours": 3.0, "expected_restores": 1}, "not both"),
        ({"mode": "lazy"}, "mode is one of"),
        ({"when_busy": "panic"}, "when_busy is one of"),
        ({"start": "over"}, "start is one of"),
        ({"buffer_bytes": 0}, "buffer_bytes"),
        ({"most_segments": 1}, "most_segments"),
        ({"grace": -1}, "grace"),
        ({"threads": 0}, "threads"),
        ({"on_event": 3}, "on_event"),
        ({"flush_on_sigterm": "x"}, "flush_on_sigterm is True or False, found 'x'"),
        ({"flush_on_sigterm": 1}, "flush_on_sigterm is True or False"),
        ({"flush_on_sigterm": None}, "flush_on_sigterm is True or False"),
        ({"stored_values": "disk"}, "stored_values"),
        ({"expected_restores": -1}, "expected_restores"),
    ],
)
def test_settings_that_do_not_fit(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        CheckpointManager(tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["verify_all", "strict", "columns", "convert"])
def test_what_is_true_or_false_of_a_restore_is_nothing_else(path: Path, name: str) -> None:
    trainer = Trainer()
    with manager(path) as m:
        m.save(0, trainer.tables()).wait()
        for wrong in ("no", 1, None):
            with pytest.raises(UsageError, match=f"{name} is True or False, found {wrong!r}"):
                m.restore(**{name: wrong})  # type: ignore[arg-type]
        assert m.restore(**{name: np.bool_(True)}) is not None  # type: ignore[arg-type]


def test_a_single_file_keeps_no_versions_beyond_a_baseline(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="keep= needs a directory"):
        CheckpointManager(tmp_path / "model.cnr", keep=2)


def test_a_closed_manager_and_a_forked_one_save_nothing(path: Path) -> None:
    trainer = Trainer()
    m = manager(path)
    m.save(0, trainer.tables()).wait()

    def child() -> None:
        try:
            m.save(1, trainer.tables())
        except UsageError:
            os._exit(7)
        os._exit(1)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    assert process.exitcode == 7
    m.close()
    with pytest.raises(UsageError, match="was closed"):
        m.save(1, trainer.tables())


@pytest.mark.parametrize("where", ["memory", "container"])
@pytest.mark.parametrize("policy", ["consecutive", "intermittent"])
def test_stored_values_are_what_a_reader_decodes(tmp_path: Path, policy: str, where: Any) -> None:
    path, random = tmp_path / "run", np.random.default_rng(0)
    table, counts = random.normal(0, 1, (200, 16)).astype(np.float32), np.ones(200, np.float32)
    tables = {"t": cnrfmt.TableData(table, columns={"n": counts})}
    with pytest.raises(UsageError, match="weren't asked for"), manager(tmp_path / "other") as m:
        m.stored_values  # noqa: B018 - it raises
    for _ in range(2):
        with manager(path, policy, bits=4, stored_values=where, keep=1, grace=0) as m:
            m.restore(into=tables)
            for step in range(4):
                ids = random.integers(0, 200, 20)
                table[ids] += random.normal(0, 0.1, (20, 16)).astype(np.float32)
                m.track("t", ids)
                m.save(step, tables).wait()
                m.wait()
                with cnrfmt.open(path) as ck:
                    for column in ("weight", "n"):
                        expected = ck["t"].read(column=column)
                        found = m.stored_values.read("t", np.arange(200), column)
                        assert found.tobytes() == expected.tobytes()
            assert m.stored_values.nbytes <= 200 * 17 * 4 * 4


def test_stored_values_keep_to_their_bound(tmp_path: Path) -> None:
    table = np.zeros((1000, 16), np.float32)
    with manager(tmp_path / "run", stored_values="memory", stored_bytes=1000) as m:
        assert m.save(0, {"t": table}).wait() == 0
        with pytest.raises(cnrfmt.TooLargeError, match="stored_bytes allows 1000"):
            m.wait()
    with cnrfmt.open(tmp_path / "run") as ck:
        assert ck.version == 0
    with manager(tmp_path / "other", stored_values="container", stored_bytes=100_000) as m:
        m.save(0, {"t": np.zeros((3000, 16), np.float32)}).wait()
        with pytest.raises(cnrfmt.TooLargeError, match=r"stored_bytes allows 100000; allow more$"):
            m.stored_values.read("t", range(3000))


def test_a_column_that_is_new_or_lost(tmp_path: Path) -> None:
    for policy in POLICIES:
        path, trainer = tmp_path / policy, Trainer()
        with manager(path, policy) as m:
            m.save(0, trainer.tables()).wait()
            trainer.train(m)
            without = {**trainer.tables(), "user": trainer.user}
            if policy != "full":
                with pytest.raises(UsageError, match="column 'state' was in the checkpoint before this one"):
                    m.save(1, without)
            more = np.arange(40, dtype=np.float32)
            with_more = cnrfmt.TableData(trainer.user, columns={"state": trainer.user_state, "more": more})
            version = m.save(1, {**trainer.tables(), "user": with_more}).wait()
            assert version is not None
            with cnrfmt.open(path) as ck:
                assert ck["user"].read(column="more").tolist() == more.tolist()
            m.save(2, without, kind="baseline").wait()
            with cnrfmt.open(path) as ck:
                assert ck["user"].columns == ("weight",)
        sound(path)


def test_a_delta_in_which_nothing_changed_writes_no_segment(tmp_path: Path) -> None:
    path, trainer = tmp_path / "run", Trainer()
    with manager(path) as m:
        m.save(0, trainer.tables()).wait()
        m.save(1, trainer.tables()).wait()
        with cnrfmt.open(path) as ck:
            record = record_of(ck.manifest)
            assert record is not None
            assert len(ck.manifest.chain) == 1
            assert [(c.kind, c.rows, c.step) for c in record.checkpoints][1] == ("delta", 0, 1)
            assert record.checkpoints[1].nbytes == 0
        check(path, 1, trainer.copy())


def test_a_policy_of_ones_own(path: Path) -> None:
    seen: list[cnrfmt.History] = []

    def half(history: cnrfmt.History) -> str:
        seen.append(history)
        return "baseline" if 2 * history.rows_since_baseline > history.rows_total else "since-baseline"

    trainer = Trainer()
    with manager(path, half) as m:
        for step in range(6):
            trainer.train(m, 0.2)
            version = m.save(step, trainer.tables()).wait()
            assert version is not None
            check(path, version, trainer.copy())
        with cnrfmt.open(path) as ck:
            record = record_of(ck.manifest)
    assert record is not None
    assert record.policy == "half"
    assert [h.rows_total for h in seen] == [124] * 5
    assert all(0 < h.rows_marked <= h.rows_since_baseline for h in seen)
    assert all(h.row_bytes > 0 for h in seen)
    kinds = [c.kind for c in record.checkpoints]
    expected = ["baseline" if 2 * h.rows_since_baseline > h.rows_total else "since-baseline" for h in seen]
    assert kinds == ["baseline", *expected][-len(kinds) :]
    assert "baseline" in expected


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_interrupt_within_a_save_leaves_the_manager_usable(
    path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cnrfmt.checkpointing.snapshot import Snapshot

    trainer, real = Trainer(), Snapshot.take

    def interrupted(self: Snapshot) -> None:
        if moment == "after":
            real(self)
        raise KeyboardInterrupt

    with manager(path) as m:
        m.save(0, trainer.tables()).wait()
        trainer.train(m)
        with monkeypatch.context() as patch:
            patch.setattr(Snapshot, "take", interrupted)
            with pytest.raises(KeyboardInterrupt):
                m.save(1, trainer.tables())
        trainer.train(m)
        version = m.save(2, trainer.tables()).wait()
        assert version is not None
        check(path, version, trainer.copy())
    sound(path)


def test_ids_are_noted_whatever_failed_before(path: Path) -> None:
    trainer, disk = Trainer(), Disk()
    with manager(path, fs=disk) as m:
        m.save(0, trainer.tables()).wait()
        trainer.train(m)
        disk.failing = "sync"
        m.save(1, trainer.tables())
        m.flush()
        disk.failing = None
        trainer.item[7] = 70
        with pytest.raises(StorageError, match="the disk failed"):
            m.track("item", [7])
        version = m.save(2, trainer.tables()).wait()
        assert version is not None
        check(path, version, trainer.copy())


def test_a_run_begins_where_nothing_was_ever_committed(tmp_path: Path) -> None:
    empty, died = tmp_path / "empty", tmp_path / "died"
    empty.mkdir()
    (died / "manifests").mkdir(parents=True)
    (died / "segments").mkdir()
    (died / "segments" / ".tmp-0123456789abcdef").write_bytes(b"x")
    trainer = Trainer()
    for path in (empty, died):
        with manager(path) as m:
            assert m.restore() is None
            assert m.save(0, trainer.tables()).wait() == 0
        sound(path)
    lost = tmp_path / "lost"
    with manager(lost) as m:
        m.save(0, trainer.tables()).wait()
    for file in (lost / "manifests").iterdir():
        file.unlink()
    with manager(lost) as m, pytest.raises(cnrfmt.DamagedError, match="no version was ever committed here"):
        m.restore()


def test_a_listener_that_exits_in_the_background_harms_nobody(path: Path) -> None:
    def leave(event: Event) -> None:
        if event.kind == "committed":
            raise SystemExit(3)

    with manager(path, on_event=leave) as m:
        assert m.save(0, Trainer().tables()).wait(60) == 0


def test_keys_that_come_and_go_unmarked(path: Path) -> None:
    for policy in POLICIES:
        file = path.with_name(f"{policy}-{path.name}")
        values = np.arange(10, dtype=np.float32).reshape(5, 2)
        with manager(file, policy) as m:
            m.save(0, {"k": cnrfmt.TableData(values[:4], keys=[4, 1, 2, 3])}).wait()
            m.save(1, {"k": cnrfmt.TableData(values[1:], keys=[1, 2, 3, 9])}).wait()
            with cnrfmt.open(file) as ck:
                assert ck["k"].keys.tolist() == [1, 2, 3, 9]
                assert ck["k"][9].tolist() == [8, 9]
        with manager(file, policy) as m:
            m.restore()
            m.save(2, {"k": cnrfmt.TableData(values[:2], keys=[9, 8])}).wait()
            with cnrfmt.open(file) as ck:
                assert ck["k"].keys.tolist() == [8, 9]
                assert ck["k"][8].tolist() == [2, 3]
        sound(file)


def test_calls_that_cannot_be_meant(tmp_path: Path) -> None:
    path = tmp_path / "run"
    for options, says in (({"quantize": 8}, "quantize must be"), ({"coordinator": 3}, "coordinator must be")):
        with pytest.raises(UsageError, match=says):
            CheckpointManager(path, **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="merge_share= needs a directory"):
        CheckpointManager(tmp_path / "model.cnr", merge_share=0.5)
    with manager(path) as m:
        for name in ("rows", "into", "rename", "remap", "resize"):
            with pytest.raises(UsageError, match=f"{name} must be a dict"):
                m.restore(**{name: 3})  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="tables must be a list"):
            m.restore(tables="item")
        with pytest.raises(UsageError, match="random is True, False, or a dict"):
            m.save(0, Trainer().tables(), random=1)  # type: ignore[arg-type]


def test_who_waits_hears_of_a_durable_version_whatever_ends_its_thread(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as an exit that somebody's file system or collector of garbage raises there."""

    def end(_: Checkpointer) -> None:
        raise SystemExit("the thread is to end")

    with CheckpointManager(path, bits=32, fs=QuickFs()) as m:
        table = np.zeros((3, 2), np.float32)
        monkeypatch.setattr(Checkpointer, "remember", end)
        assert m.save(0, {"user": table}).wait(timeout=60) == 0
        monkeypatch.undo()
        with pytest.raises(SystemExit, match="to end"):
            m.track("user", [1])
        m.track("user", [1])
        assert m.save(1, {"user": table}).wait(timeout=60) == 1
    sound(path)
