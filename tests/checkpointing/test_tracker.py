"""Trackers against plain sets: every id that was marked is written once it has to be, and none is lost."""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cnrfmt.checkpointing.tracking import row_marks
from cnrfmt.checkpointing.tracking.tracker import KeyTracker, RowTracker
from cnrfmt.demo.orders import load_orders
from cnrfmt.errors import MissingKeyError, UsageError
from cnrfmt.inputs import as_flat_ids
from cnrfmt.kernels import key_marks as key_kernel
from cnrfmt.kernels import marks as row_kernel
from cnrfmt.kernels._jit import INTERPRETED
from tests.storage.support import FORKS, run_in_child

LEAST, GREATEST = -(2**63), 2**63 - 1
PAGE = row_marks._PAGE_ROWS


def both() -> list[Callable[[], RowTracker | KeyTracker]]:
    return [
        lambda: RowTracker(100, name="user", keep_since_baseline=True),
        lambda: KeyTracker(name="user", keep_since_baseline=True),
    ]


@pytest.fixture(params=both(), ids=["rows", "keys"])
def tracker(request: pytest.FixtureRequest) -> RowTracker | KeyTracker:
    made: RowTracker | KeyTracker = request.param()
    return made


def test_constants_of_the_sets_are_those_of_their_kernels() -> None:
    # They stand in two places, since importing a kernel takes long.
    from cnrfmt.checkpointing.tracking import key_marks

    assert row_marks._PAGE_ROWS == row_kernel.PAGE_ROWS == 8 * row_marks._PAGE_BYTES
    assert (key_marks.WRITTEN, key_marks.DELETED) == (key_kernel.WRITTEN, key_kernel.DELETED)


class TestIds:
    @pytest.mark.parametrize("dtype", ["i1", "u1", "<i2", ">i2", "u2", "<i4", ">i4", "u4", "<i8", ">i8", "u8"])
    def test_every_integer_type(self, tracker: RowTracker | KeyTracker, dtype: str) -> None:
        tracker.mark(np.array([[5, 1], [99, 5]], dtype))
        assert tracker.take().tolist() == [1, 5, 99]

    @pytest.mark.parametrize(
        "ids",
        [
            [3, 1, 3],
            (1, 3),
            range(1, 4, 2),
            [[1], [3]],
            np.array([1, 0, 3, 0], np.int32)[::2],
            np.array([[1, 3], [3, 1]]).T,
            np.broadcast_to(np.array([1, 3]), (7, 2)),
            torch.tensor([3, 1, 1], dtype=torch.int32),
            torch.tensor([[1, 3], [3, 3]]).t(),
            memoryview(np.array([1, 3])),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_every_shape(self, tracker: RowTracker | KeyTracker, ids: Any) -> None:
        tracker.mark(ids)
        taken = tracker.take()
        assert taken.tolist() == [1, 3]
        assert taken.dtype == np.int64
        assert taken.flags.writeable

    def test_one_id_and_none(self, tracker: RowTracker | KeyTracker) -> None:
        for nothing in ([], (), range(0), np.empty((0, 3), np.int32), torch.empty(0, dtype=torch.int64)):
            tracker.mark(nothing)
        assert tracker.count == 0
        tracker.mark(np.int32(7))
        tracker.mark(8)
        assert tracker.take().tolist() == [7, 8]

    @pytest.mark.parametrize("dtype", [np.int32, np.int64])
    def test_common_types_are_read_where_they_are(self, dtype: Any) -> None:
        ids = np.array([[1, 3], [2, 4]], dtype)
        assert np.shares_memory(as_flat_ids(ids, "ids"), ids)
        assert as_flat_ids(torch.from_numpy(ids), "ids").ctypes.data == ids.ctypes.data

    def test_read_only_memory(self, tracker: RowTracker | KeyTracker) -> None:
        ids = np.array([4, 2])
        ids.flags.writeable = False
        tracker.mark(ids)
        assert tracker.take().tolist() == [2, 4]

    @pytest.mark.parametrize("ids", [[1.5], np.array([True]), "12", None, np.array([2**63], np.uint64), [2**70]])
    def test_what_is_no_id(self, tracker: RowTracker | KeyTracker, ids: Any) -> None:
        with pytest.raises(UsageError, match="table 'user'"):
            tracker.mark(ids)
        assert tracker.count == 0

    @pytest.mark.parametrize("bad", [-1, 100, LEAST, GREATEST])
    def test_a_row_that_is_not_there(self, bad: int) -> None:
        rows = RowTracker(100, name="user")
        rows.mark([7])
        with pytest.raises(MissingKeyError, match=f"table 'user' has rows 0 to 99, found id {bad}; nothing"):
            rows.mark([1, 2, bad, 3])
        assert rows.take().tolist() == [7]

    def test_a_table_without_rows(self) -> None:
        rows = RowTracker(0, name="user")
        with pytest.raises(MissingKeyError, match="has no rows, found id 0"):
            rows.mark([0])
        assert rows.take().tolist() == []

    @pytest.mark.parametrize("rows", [-1, 2.0, True, "5", None, 2**49])
    def test_what_is_no_number_of_rows(self, rows: Any) -> None:
        with pytest.raises(UsageError, match="table 'user': the number of rows"):
            RowTracker(rows, name="user")
        with pytest.raises(UsageError, match="table 'user': the number of rows"):
            RowTracker(5, name="user").resize(rows)

    def test_any_key(self) -> None:
        keys = KeyTracker(name="visitor")
        keys.mark([GREATEST, 0, -1, LEAST])
        keys.mark(np.array([-1, 2**31 - 1, -(2**31)], np.int32))
        assert keys.take().tolist() == [LEAST, -(2**31), -1, 0, 2**31 - 1, GREATEST]

    def test_real_orders(self) -> None:
        orders = load_orders(users=30)
        products = orders.stream.products
        pairs = np.repeat(orders.stream.users, np.diff(orders.stream.starts)).astype(np.int64) << 40 | products
        rows, keys = RowTracker(orders.products, name="product"), KeyTracker(name="pair")
        for start in range(0, len(products), 100):
            rows.mark(products[start : start + 100])
            keys.mark(pairs[start : start + 100])
        assert rows.count == len(np.unique(products))
        assert np.array_equal(rows.take(), np.unique(products))
        assert np.array_equal(keys.take(), np.unique(pairs))


class TestStates:
    def test_a_mark_made_while_writing_belongs_to_the_next(self, tracker: RowTracker | KeyTracker) -> None:
        tracker.mark([1, 2])
        assert tracker.take().tolist() == [1, 2]
        assert tracker.count == 0
        tracker.mark([2, 3])
        tracker.commit()
        assert tracker.count == 2
        assert tracker.since_baseline().tolist() == [1, 2]
        assert tracker.take().tolist() == [2, 3]
        tracker.give_back()
        assert tracker.take(since_baseline=True).tolist() == [1, 2, 3]
        tracker.commit(baseline=True)
        assert tracker.since_baseline().tolist() == []

    def test_a_failed_save_gives_its_marks_back(self, tracker: RowTracker | KeyTracker) -> None:
        tracker.mark([1, 2])
        tracker.take()
        tracker.mark([2, 3])
        tracker.give_back()
        assert tracker.count == 3
        assert tracker.since_baseline().tolist() == []
        assert tracker.take().tolist() == [1, 2, 3]

    def test_what_the_caller_does_with_the_ids_is_their_own(self, tracker: RowTracker | KeyTracker) -> None:
        tracker.mark([1, 2])
        tracker.take()[:] = 50
        tracker.give_back()
        assert tracker.take().tolist() == [1, 2]

    def test_out_of_turn(self, tracker: RowTracker | KeyTracker) -> None:
        with pytest.raises(UsageError, match="table 'user': there is nothing to commit"):
            tracker.commit()
        with pytest.raises(UsageError, match="table 'user': there is nothing to give back"):
            tracker.give_back()
        tracker.mark([1])
        tracker.take()
        tracker.mark([2])
        with pytest.raises(UsageError, match="table 'user': the last checkpoint is still being written"):
            tracker.take()
        with pytest.raises(UsageError, match="table 'user': can't restore while"):
            tracker.restore([5])
        tracker.give_back()
        assert tracker.take().tolist() == [1, 2]

    def test_restore(self, tracker: RowTracker | KeyTracker) -> None:
        tracker.mark([1, 2])
        tracker.take()
        tracker.commit()
        tracker.mark([3])
        tracker.restore(np.array([9, 7], np.int32))
        assert tracker.count == 0
        assert tracker.since_baseline().tolist() == [7, 9]
        tracker.mark([8])
        assert tracker.take(since_baseline=True).tolist() == [7, 8, 9]
        tracker.commit()
        tracker.restore()
        assert tracker.since_baseline().tolist() == []

    def test_a_restore_that_is_refused_changes_nothing(self) -> None:
        rows = RowTracker(10, name="user", keep_since_baseline=True)
        rows.restore([4])
        rows.mark([5])
        with pytest.raises(MissingKeyError, match="found id 10"):
            rows.restore([3, 10])
        assert rows.since_baseline().tolist() == [4]
        assert rows.take().tolist() == [5]
        keys = KeyTracker(name="visitor", keep_since_baseline=True)
        keys.restore([4])
        with pytest.raises(UsageError, match="key 6 can't be both"):
            keys.restore([3, 6], [6])
        assert keys.since_baseline().tolist() == [4]

    @pytest.mark.parametrize("make", [lambda: RowTracker(9, name="user"), lambda: KeyTracker(name="user")])
    def test_without_what_was_committed(self, make: Callable[[], RowTracker | KeyTracker]) -> None:
        tracker = make()
        tracker.mark([1])
        calls = (tracker.since_baseline, lambda: tracker.take(since_baseline=True), lambda: tracker.restore([1]))
        for refused in calls:
            with pytest.raises(UsageError, match="keep_since_baseline=True"):
                refused()
        assert tracker.take().tolist() == [1]
        tracker.commit()
        tracker.restore()
        assert tracker.take().tolist() == []

    def test_no_room_for_the_ids_leaves_them_marked(
        self, tracker: RowTracker | KeyTracker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tracker.mark([1, 2])

        def no_memory(*_: Any) -> Any:
            raise MemoryError

        with monkeypatch.context() as patch:
            patch.setattr(type(tracker._marked), "ids", no_memory)
            with pytest.raises(MemoryError):
                tracker.take()
        assert tracker.take().tolist() == [1, 2]

    def test_it_is_no_pickle(self, tracker: RowTracker | KeyTracker) -> None:
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(tracker)


class TestDeletions:
    def test_the_last_word_holds(self) -> None:
        keys = KeyTracker(name="visitor")
        keys.mark([1, 2])
        keys.forget([2, 3])
        keys.mark([3])
        assert keys.count == 2
        assert keys.take().tolist() == [1, 3]
        assert keys.take_deleted().tolist() == [2]
        keys.commit()
        assert keys.count == 0
        keys.take()
        assert keys.take_deleted().tolist() == []

    @pytest.mark.parametrize("later", ["mark", "forget"])
    def test_what_came_meanwhile_outlives_a_give_back(self, later: str) -> None:
        keys = KeyTracker(name="visitor")
        keys.mark([1])
        keys.forget([2])
        keys.take()
        getattr(keys, later)([1, 2])
        keys.give_back()
        assert keys.take().tolist() == ([1, 2] if later == "mark" else [])
        assert keys.take_deleted().tolist() == ([] if later == "mark" else [1, 2])

    def test_since_the_baseline(self) -> None:
        keys = KeyTracker(name="visitor", keep_since_baseline=True)
        keys.restore([1, 2, 3], deleted=[4, 5])
        keys.mark([4])
        keys.forget([1])
        assert keys.take().tolist() == [4]
        assert keys.take_deleted().tolist() == [1]
        keys.give_back()
        assert keys.take(since_baseline=True).tolist() == [2, 3, 4]
        assert keys.take_deleted().tolist() == [1, 5]
        keys.commit()
        assert keys.since_baseline().tolist() == [2, 3, 4]
        keys.take(since_baseline=True)
        assert keys.take_deleted().tolist() == [1, 5]

    def test_out_of_turn(self) -> None:
        keys = KeyTracker(name="visitor")
        keys.forget([1])
        with pytest.raises(UsageError, match="there is nothing to list"):
            keys.take_deleted()


class TestResize:
    def test_rows_that_go_and_come_back_are_not_marked(self) -> None:
        rows = RowTracker(3 * PAGE, name="user", keep_since_baseline=True)
        old = [0, 70, PAGE, 2 * PAGE + 1]
        rows.restore(old)
        rows.mark(old)
        rows.take()
        rows.mark(old)
        rows.resize(70)
        assert rows.count == 1
        rows.resize(3 * PAGE)
        assert rows.rows == 3 * PAGE
        rows.give_back()
        assert rows.since_baseline().tolist() == rows.take(since_baseline=True).tolist() == [0]

    def test_growth_keeps_every_state(self) -> None:
        rows = RowTracker(10, name="user", keep_since_baseline=True)
        rows.restore([1])
        rows.mark([2])
        rows.take()
        rows.mark([3])
        for size in (11, PAGE, PAGE + 1, 9 * PAGE):
            rows.resize(size)
            with pytest.raises(MissingKeyError, match=f"has rows 0 to {size - 1}, found id {size}"):
                rows.mark([size])
            rows.mark([size - 1])
        rows.commit()
        assert rows.since_baseline().tolist() == [1, 2]
        assert rows.take().tolist() == [3, 10, PAGE - 1, PAGE, 9 * PAGE - 1]

    def test_growth_that_fails_changes_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = RowTracker(10, name="user", keep_since_baseline=True)
        rows.mark([1])
        rows.take()
        rows.mark([2])
        make, left = row_marks._bitmap, [2]

        def scarce(pages: int) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise MemoryError
            return make(pages)

        with monkeypatch.context() as patch:
            patch.setattr(row_marks, "_bitmap", scarce)
            with pytest.raises(MemoryError):
                rows.resize(5 * PAGE)
        assert rows.rows == 10
        with pytest.raises(MissingKeyError):
            rows.mark([10])
        rows.give_back()
        assert rows.take().tolist() == [1, 2]

    def test_more_addresses_than_there_are(self) -> None:
        with pytest.raises(MemoryError, match="a bitmap of"):
            RowTracker(2**48, name="user")


class TestMemory:
    def test_pages_without_marks_take_none(self) -> None:
        rows = RowTracker(10**9, name="user")
        pages = -(-(10**9) // PAGE)
        assert rows.nbytes == pages
        rows.mark([0, 5, 10**9 - 1])
        assert rows.nbytes == pages + 2 * 4096
        rows.take()
        assert rows.nbytes == 2 * pages + 2 * 4096
        rows.commit()
        assert rows.nbytes == pages

    def test_resident_memory_is_what_it_says(self) -> None:
        def resident() -> int:
            with open("/proc/self/status") as status:
                return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon:"))

        ids = np.random.default_rng(0).integers(0, 10**9, 300)
        RowTracker(10**9, name="user").mark(ids[:1])
        before = resident()
        rows = RowTracker(10**9, name="user")
        rows.mark(ids)
        rows.count  # noqa: B018 - it looks at every page that there is, if it does it wrong.
        taken = rows.take()
        # Huge pages would be 500 MB, and a bitmap written through 125 MB.
        assert resident() - before < rows.nbytes + (4 << 20) < 6 << 20
        assert np.array_equal(taken, np.unique(ids))

    def test_bound_on_keys(self) -> None:
        keys = KeyTracker(name="visitor")
        assert keys.nbytes == 9 << 10
        for number in range(0, 3000 if INTERPRETED else 200_000, 1000):
            keys.mark(np.arange(number, number + 1000) * 12345)
            assert keys.nbytes <= max(9 << 10, 24 * keys.count)
        assert keys.count == number + 1000


class Machine(RuleBasedStateMachine):
    """What the trackers of rows and of keys have in common, next to plain dicts: id -> is it to be written?"""

    rows: RowTracker
    keys: KeyTracker

    def __init__(self) -> None:
        super().__init__()
        self.size = PAGE + 9
        self.rows = RowTracker(self.size, name="row", keep_since_baseline=True)
        self.keys = KeyTracker(name="key", keep_since_baseline=True)
        self.marked: dict[int, bool] = {}
        self.taken: dict[int, bool] | None = None
        self.since: dict[int, bool] = {}
        self.row_sets: list[set[int]] = [set(), set(), set()]

    ids = st.lists(st.integers(0, PAGE + 8), max_size=4) | st.builds(
        lambda first, count: list(range(first, first + count)), st.integers(0, PAGE - 900), st.integers(300, 900)
    )

    @rule(ids=ids, kind=st.sampled_from([np.int32, np.int64, np.uint16]))
    def mark(self, ids: list[int], kind: Any) -> None:
        ids = [i for i in ids if i < self.size]
        self.rows.mark(np.array(ids, kind))
        self.keys.mark(np.array(ids, kind))
        self.marked |= dict.fromkeys(ids, True)
        self.row_sets[0] |= set(ids)

    @rule(keys=ids)
    def forget(self, keys: list[int]) -> None:
        self.keys.forget(keys)
        self.marked |= dict.fromkeys(keys, False)

    @rule(ids=ids, bad=st.sampled_from([-1, PAGE * 40, LEAST]))
    def mark_amiss(self, ids: list[int], bad: int) -> None:
        with pytest.raises(MissingKeyError):
            self.rows.mark([*ids, bad])

    @rule(ahead=st.integers(-PAGE, 2 * PAGE))
    def resize(self, ahead: int) -> None:
        self.size = max(0, self.size + ahead)
        self.rows.resize(self.size)
        self.row_sets = [{i for i in rows if i < self.size} for rows in self.row_sets]

    @precondition(lambda self: self.taken is None)
    @rule(since=st.booleans())
    def take(self, since: bool) -> None:
        self.taken, self.marked = self.marked, {}
        self.row_sets[:2] = [set(), self.row_sets[0]]
        rows = self.row_sets[1] | (self.row_sets[2] if since else set())
        assert self.rows.take(since_baseline=since).tolist() == sorted(rows)
        keys = (self.since if since else {}) | self.taken
        assert self.keys.take(since_baseline=since).tolist() == sorted(k for k, alive in keys.items() if alive)
        assert self.keys.take_deleted().tolist() == sorted(k for k, alive in keys.items() if not alive)

    @precondition(lambda self: self.taken is not None)
    @rule(baseline=st.booleans())
    def commit(self, baseline: bool) -> None:
        for tracker in (self.rows, self.keys):
            tracker.commit(baseline=baseline)
        assert self.taken is not None
        self.since = {} if baseline else self.since | self.taken
        self.row_sets[1:] = [set(), set() if baseline else self.row_sets[2] | self.row_sets[1]]
        self.taken = None

    @precondition(lambda self: self.taken is not None)
    @rule()
    def give_back(self) -> None:
        for tracker in (self.rows, self.keys):
            tracker.give_back()
        assert self.taken is not None
        self.marked = self.taken | self.marked
        self.row_sets[:2] = [self.row_sets[0] | self.row_sets[1], set()]
        self.taken = None

    @precondition(lambda self: self.taken is None)
    @rule()
    def restart(self) -> None:
        """A new process has what was told to be committed, and nothing else."""
        rows, since = self.rows.since_baseline(), self.keys.since_baseline()
        # Which keys are gone, the container says.
        deleted = [key for key, alive in self.since.items() if not alive]
        self.rows = RowTracker(self.size, name="row", keep_since_baseline=True)
        self.keys = KeyTracker(name="key", keep_since_baseline=True)
        self.rows.restore(rows)
        self.keys.restore(since, deleted)
        self.marked, self.row_sets[0] = {}, set()

    @invariant()
    def same(self) -> None:
        assert self.rows.count == len(self.row_sets[0])
        assert self.rows.since_baseline().tolist() == sorted(self.row_sets[2])
        assert self.keys.count == sum(self.marked.values())
        assert self.keys.since_baseline().tolist() == sorted(k for k, alive in self.since.items() if alive)


TestMachine = Machine.TestCase
TestMachine.settings = settings(settings.default, max_examples=5 if INTERPRETED else 60, stateful_step_count=25)


class TestThreads:
    THREADS, ROUNDS = 8, 3 if INTERPRETED else 60

    @pytest.mark.parametrize("kind", ["rows", "keys"])
    def test_none_is_lost_and_none_is_written_without_cause(self, kind: str) -> None:
        """Each thread marks ids that are its own, once; each must come out of exactly one committed take."""
        size = 40 if INTERPRETED else 400
        ids = np.random.default_rng(0).permutation(self.THREADS * self.ROUNDS * size).reshape(self.THREADS, -1, size)
        tracker: RowTracker | KeyTracker
        tracker = RowTracker(ids.size, name="t", keep_since_baseline=True) if kind == "rows" else KeyTracker(name="t")
        running = threading.Semaphore(0)
        wrong: list[BaseException] = []

        def mark(mine: Any) -> None:
            try:
                for batch in mine:
                    tracker.mark(batch)
                    # The same batch again: a read of what others write beside it.
                    tracker.mark(batch.astype(np.int32)[:3])
            except BaseException as error:
                wrong.append(error)
            finally:
                running.release()

        threads = [threading.Thread(target=mark, args=(ids[k],)) for k in range(self.THREADS)]
        written = np.zeros(ids.size, np.int64)
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            for thread in threads:
                thread.start()
            done, turn = 0, 0
            while done < self.THREADS or tracker.count:
                done += running.acquire(blocking=False)
                taken = tracker.take()
                turn += 1
                if turn % 3:
                    tracker.commit()
                    written[taken] += 1
                else:
                    tracker.give_back()
        finally:
            sys.setswitchinterval(interval)
            for thread in threads:
                thread.join()
        assert not wrong
        assert tracker.take().tolist() == []
        # The first three ids of a batch may have been taken between their two marks.
        repeats = np.zeros(ids.size, np.bool_)
        repeats[ids[:, :, :3]] = True
        assert (written[~repeats] == 1).all()
        assert np.isin(written[repeats], (1, 2)).all()
        if kind == "rows":
            tracker.commit()
            assert np.array_equal(tracker.since_baseline(), np.arange(ids.size))

    @pytest.mark.parametrize("kind", ["rows", "keys"])
    def test_a_take_in_the_midst_of_a_batch(self, kind: str) -> None:
        # So many that the batch takes far longer than it takes this thread to notice its first marks.
        size = 2_000 if INTERPRETED else {"rows": 2_000_000, "keys": 300_000}[kind]
        ids = np.random.default_rng(1).permutation(size)
        for _ in range(3):
            tracker: RowTracker | KeyTracker
            tracker = RowTracker(size, name="t") if kind == "rows" else KeyTracker(name="t")
            thread = threading.Thread(target=tracker.mark, args=(ids,))
            thread.start()
            while not tracker.count:
                pass
            written = np.zeros(size, np.bool_)
            written[tracker.take()] = True
            tracker.commit()
            thread.join()
            written[tracker.take()] = True
            assert written.all()

    def test_marks_do_not_wait_for_ids_to_be_listed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = RowTracker(100, name="user")
        rows.mark([1])
        listed = type(rows._marked).ids

        def slow(*args: Any) -> Any:
            thread = threading.Thread(target=rows.mark, args=([2],))
            thread.start()
            # It would wait for ever if this thread held the lock of the marks.
            thread.join(60)
            assert not thread.is_alive()
            return listed(*args)

        monkeypatch.setattr(type(rows._marked), "ids", slow)
        assert rows.take().tolist() == [1]
        rows.commit()
        assert rows.take().tolist() == [2]


@FORKS
def test_a_forked_child_has_its_own_marks(tracker: RowTracker | KeyTracker) -> None:
    tracker.mark([1, 2])
    tracker.take()
    tracker.mark([3])

    def child() -> None:
        tracker.mark([4])
        tracker.give_back()
        assert tracker.take().tolist() == [1, 2, 3, 4]

    assert run_in_child(child) == 0
    tracker.give_back()
    assert tracker.take().tolist() == [1, 2, 3]


def test_nothing_is_listed_for_a_baseline() -> None:
    tracker = RowTracker(100, name="t", keep_since_baseline=True)
    tracker.mark([3, 7])
    assert tracker.take(listed=False).tolist() == []
    tracker.give_back()
    assert tracker.take().tolist() == [3, 7]
    tracker.commit(baseline=True)
    assert tracker.since_baseline().tolist() == []


def test_rows_that_were_not_sent_stay_marked() -> None:
    rows = RowTracker(100, name="t", keep_since_baseline=True)
    rows.mark([3, 5, 70])
    assert rows.take().tolist() == [3, 5, 70]
    rows.mark([4])
    rows.resize(60)
    rows.commit(unsent=np.array([5, 70]))
    assert rows.take().tolist() == [4, 5]
    rows.commit()
    assert rows.since_baseline().tolist() == [3, 4, 5]
    keys = KeyTracker(name="k")
    keys.mark([-3, 5, 9])
    keys.take()
    keys.forget([9])
    keys.commit(unsent=np.array([5, 9]))
    assert keys.take().tolist() == [5]
    assert keys.take_deleted().tolist() == [9]
