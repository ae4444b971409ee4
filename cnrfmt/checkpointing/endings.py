"""How a process ends that has checkpoints under way: they are finished first.

At the end of the interpreter, and at SIGTERM, with which a spot instance is told that it is about to vanish. In a
forked child nothing is under way: threads aren't copied.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  Its hook comes first here, since hooks are called last to first.
import os
import signal
import threading
import weakref
from types import FrameType
from typing import Any, Protocol


class Flushable(Protocol):
    """A manager, as far as endings know it."""

    def flush(self, *, ending: bool) -> None:
        """Waits until nothing is under way, `save` in another thread included; doesn't raise.

        `ending`: but for what nobody will miss when the process is over.
        """


_at_exit: weakref.WeakSet[Any] = weakref.WeakSet()
_at_sigterm: weakref.WeakSet[Any] = weakref.WeakSet()
_previous: Any = None
_installed = False
_flushing: threading.Thread | None = None


def watch(manager: Flushable, *, sigterm: bool) -> None:
    """Has a manager flushed at the end. SIGTERM can be heard only where this is the main thread."""
    _at_exit.add(manager)
    if sigterm and threading.current_thread() is threading.main_thread():
        _at_sigterm.add(manager)
        _listen()


def unwatch(manager: Flushable) -> None:
    """Forgets a manager. The signal is given back to whom it belonged when there are no others."""
    global _installed
    _at_exit.discard(manager)
    _at_sigterm.discard(manager)
    here = threading.current_thread() is threading.main_thread()
    if _installed and not _at_sigterm and here and signal.getsignal(signal.SIGTERM) is _on_sigterm:
        signal.signal(signal.SIGTERM, _previous)
        _installed = False


def _listen() -> None:
    global _previous, _installed
    found = signal.getsignal(signal.SIGTERM)
    # None: a handler that Python doesn't know was put there, and couldn't be given back.
    if found is not None and found is not _on_sigterm:
        _previous, _installed = found, True
        signal.signal(signal.SIGTERM, _on_sigterm)


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    """Has all managers flushed by a thread, which sends the signal once more when that is done.

    This runs on the main thread, between any two of its instructions: it may hold a lock that is waited for.
    """
    global _flushing
    if _flushing is None:
        _flushing = threading.Thread(target=_flush_and_resend, name="cnrfmt-sigterm", daemon=True)
        _flushing.start()
    elif not _flushing.is_alive():
        _flushing = None
        _pass_on(frame)


def _flush_and_resend() -> None:
    for manager in list(_at_sigterm):
        manager.flush(ending=True)
    # The main thread is to see that this one is over.
    threading.Thread(target=_resend, args=(threading.current_thread(),), daemon=True).start()


def _resend(after: threading.Thread) -> None:
    after.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _pass_on(frame: FrameType | None) -> None:
    if callable(_previous):
        _previous(signal.SIGTERM, frame)
    elif _previous == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


def _flush_all() -> None:
    for manager in list(_at_exit):
        manager.flush(ending=True)


# Not an ordinary exit function: those come when no thread pool takes work any more, and a commit may need one.
threading._register_atexit(_flush_all)  # type: ignore[attr-defined]
