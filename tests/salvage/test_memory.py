"""A salvage streams rows: its memory doesn't grow with the tables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

import cnrfmt
from tests.salvage.support import FS, flip

# Memory of this process beyond what it had once the first, small salvage had loaded everything, in MiB.
_SCRIPT = r"""
import re, sys
from pathlib import Path
import cnrfmt

def peak():
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024

small, large, target = sys.argv[1:]
cnrfmt.salvage(small, target + "-small.cnr", threads=2)
before = peak()
cnrfmt.salvage(large, target + ".cnr", threads=2)
print(peak() - before)
"""
_ROWS, _DIM = 600_000, 64


def test_a_table_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    for name, rows in (("small", 3000), ("large", _ROWS)):
        path = tmp_path / f"{name}.cnr"
        # Zeros that are stored: raw, and under codes.
        zeros = np.broadcast_to(np.float32(0), (rows, _DIM))
        cnrfmt.save(path, {"raw": zeros, "codes": zeros}, quantize={"codes": cnrfmt.Quantize(bits=8)}, fs=FS)
        cnrfmt.append(path, {"raw": cnrfmt.Rows(np.arange(0, rows, 50), zeros[::50] + 1)}, fs=FS)
        flip(path, "", 200_000)
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *(str(tmp_path / name) for name in ("small.cnr", "large.cnr", "new"))],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    # The container has 200 MB.
    assert float(done.stdout) < 96
