from __future__ import annotations

import threading

import numpy as np
import pytest

import cnrfmt
from cnrfmt import parallel


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_item_is_worked_on_once(threads: int) -> None:
    done: list[int] = []
    parallel.run(threads)(done.append, range(100))
    assert sorted(done) == list(range(100))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_first_error_reaches_the_caller_and_ends_the_work(threads: int) -> None:
    done: list[int] = []

    def work(item: int) -> None:
        if item == 3:
            raise cnrfmt.UsageError("three")
        done.append(item)

    with pytest.raises(cnrfmt.UsageError, match="three"):
        parallel.run(threads)(work, range(10_000))
    assert len(done) < 9_999


@pytest.mark.parametrize("threads", [1, 3])
def test_results_come_in_order_and_few_are_made_in_advance(threads: int) -> None:
    started: list[int] = []
    lock = threading.Lock()

    def work(item: int) -> int:
        with lock:
            started.append(item)
        return item * item

    found = []
    for result in parallel.ordered(threads, work, range(50), ahead=4):
        found.append(result)
        assert len(started) <= len(found) + 5
    assert found == [n * n for n in range(50)]


def test_counts_of_threads() -> None:
    assert parallel.thread_count(3) == 3
    assert 1 <= parallel.thread_count(None) <= 16
    for wrong in (0, -1, True, 1.5, "2"):
        with pytest.raises(cnrfmt.UsageError, match="threads must be"):
            parallel.thread_count(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("threads", [1, 3])
def test_what_numpy_warns_of_is_the_callers_choice(threads: int) -> None:
    def divide(number: int) -> float:
        return float(np.float64(number) / np.float64(0))

    both = threading.Barrier(threads)

    def work(number: int) -> None:
        both.wait()
        divide(number + 1)

    with np.errstate(all="ignore"):
        parallel.run(threads)(work, range(threads))
        assert list(parallel.ordered(threads, divide, [1, 2], ahead=2)) == [np.inf, np.inf]
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        list(parallel.ordered(threads, divide, [1], ahead=2))
