"""Spreading work over threads: numba kernels and file reads release the interpreter's lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from cnrfmt.errors import UsageError

T = TypeVar("T")
R = TypeVar("R")

_MOST = 16


def thread_count(threads: int | None, name: str = "threads") -> int:
    """`threads` as given, called `name` in messages, or as many as this process may use, 16 at the most."""
    if threads is None:
        try:
            return min(len(os.sched_getaffinity(0)), _MOST)
        except AttributeError:  # Only Linux tells which processors a process may use.
            return min(os.cpu_count() or 1, _MOST)
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise UsageError(f"{name} must be an integer of at least 1, found {threads!r}")
    return threads


def run(threads: int) -> Callable[[Callable[[T], None], Iterable[T]], None]:
    """A function that calls its first argument with each item of its second, under the caller's `numpy.errstate`."""

    def each(work: Callable[[T], None], items: Iterable[T]) -> None:
        todo = list(items)
        if threads == 1 or len(todo) < 2:
            for item in todo:
                work(item)
            return
        # Each thread takes the next item when it is ready: a future for each would cost more than small work does.
        waiting = iter(todo)

        def drain() -> None:
            try:
                for item in waiting:
                    work(item)
            except BaseException:
                todo.clear()  # Nothing is left for the others.
                raise

        helpers = min(threads, len(todo)) - 1
        with ThreadPoolExecutor(helpers, "cnrfmt") as pool:
            # Numpy keeps what it warns of in a context variable, which a new thread doesn't inherit.
            futures = [pool.submit(copy_context().run, drain) for _ in range(helpers)]
            drain()
            for future in futures:
                future.result()

    return each


def ordered(
    threads: int, work: Callable[[T], R], items: Iterable[T], *, ahead: int
) -> Iterator[R]:
    """The results of `work` in the order of `items`, at most `ahead` of them computed in advance.

    The work is done under the caller's `numpy.errstate`.
    """
    if threads == 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(threads, "cnrfmt") as pool:
        waiting = []
        for item in items:
            waiting.append(pool.submit(copy_context().run, work, item))
            if len(waiting) > ahead:
                yield waiting.pop(0).result()
        while waiting:
            # A future that this frame held would be held by its own error's traceback, and all that is in it too.
            yield waiting.pop(0).result()
