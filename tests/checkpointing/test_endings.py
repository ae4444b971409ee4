from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import cnrfmt
from tests.checkpointing.support import sound

ROOT = Path(__file__).parents[2]

_PROGRAM = """
import os, signal, sys, threading, time
import numpy as np
from cnrfmt.checkpointing.manager import CheckpointManager
from tests.checkpointing.support import Disk

class Slow(Disk):
    def sync(self, handle):
        time.sleep(0.3)
        super().sync(handle)

path, how = sys.argv[1:]
table = np.zeros((50, 4), np.float32)
manager = CheckpointManager(path, bits=32, policy="consecutive", fs=Slow())
manager.save(0, {"t": table}).wait()
manager.track("t", [3])
table[3] = 1
if how == "handler":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(11))
    other = CheckpointManager(path + "-other")
    manager2 = manager
if how == "within":
    # The signal comes while the main thread is in the middle of a save.
    start = threading.Event()
    from cnrfmt.checkpointing import snapshot as module
    real = module.Snapshot.take
    def take(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.05)
        return real(self)
    module.Snapshot.take = take
manager.save(1, {"t": table})
if how == "exit":
    sys.exit(5)
if how == "error":
    raise SystemError("the trainer failed")
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("how", "code"),
    [("exit", 5), ("error", 1), ("sigterm", -signal.SIGTERM), ("within", -signal.SIGTERM), ("handler", 11)],
)
def test_what_was_begun_is_finished(tmp_path: Path, how: str, code: int) -> None:
    path = tmp_path / "run"
    command = [sys.executable, "-c", _PROGRAM, str(path), how]
    ended = subprocess.run(command, cwd=ROOT, timeout=120, capture_output=True, text=True, check=False)
    assert ended.returncode == code, ended.stderr
    assert "shutdown" not in ended.stderr
    with cnrfmt.open(path) as ck:
        assert (ck.version, ck.step) == (1, 1)
        assert ck["t"][3].tolist() == [1] * 4
    sound(path)


def test_the_signal_is_given_back(tmp_path: Path) -> None:
    from cnrfmt.checkpointing.manager import CheckpointManager

    before = signal.getsignal(signal.SIGTERM)
    first, second = CheckpointManager(tmp_path / "a"), CheckpointManager(tmp_path / "b")
    assert signal.getsignal(signal.SIGTERM) is not before
    first.close()
    assert signal.getsignal(signal.SIGTERM) is not before
    second.close()
    assert signal.getsignal(signal.SIGTERM) is before
    CheckpointManager(tmp_path / "c", flush_on_sigterm=False).close()
    assert signal.getsignal(signal.SIGTERM) is before
