from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import cnrfmt

# Memory of this process beyond what it had once the first, small conversion had loaded everything, in MiB.
# The kernel's high-water mark belongs to the program; that of getrusage begins with the parent's.
_SCRIPT = """
import json, re, sys
from pathlib import Path
from cnrfmt.integrations.convert import convert

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024

small, large = json.loads(sys.argv[1])
for path in small:
    convert(*path)
before = peak()
for path in large:
    convert(*path)
print(peak() - before)
"""

_ROWS, _DIM = 1_200_000, 64
"""A table of 307 MB, nothing of which is on disk: files read as zero where nothing was written."""


def _grown(folder: Path, pairs: list[tuple[str, str]], small: list[tuple[str, str]]) -> float:
    names = [[[str(folder / a), str(folder / b)] for a, b in group] for group in (small, pairs)]
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, json.dumps(names)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def _sparse(path: Path, rows: int) -> None:
    """A file of each format that holds zeros, without writing them."""
    size = rows * _DIM * 4
    if path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            dataset = file.create_dataset("layers/embedding/vars/0", (rows, _DIM), np.float32)
            dataset[rows - 1] = 1
    elif path.suffix == ".safetensors":
        entry = {"dtype": "F32", "shape": [rows, _DIM], "data_offsets": [0, size]}
        header = json.dumps({"w": entry}).encode()
        with path.open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + size)
    else:
        np.savez_compressed(path, w=np.broadcast_to(np.float32(0), (rows, _DIM)))


@pytest.mark.parametrize("suffix", ["h5", "safetensors", "npz"])
def test_a_table_is_never_in_memory_as_a_whole(tmp_path: Path, suffix: str) -> None:
    for name, rows in (("small", 1000), ("large", _ROWS)):
        _sparse(tmp_path / f"{name}.{suffix}", rows)
    small = [(f"small.{suffix}", "small.cnr"), ("small.cnr", f"small-out.{suffix}")]
    large = [(f"large.{suffix}", "large.cnr"), ("large.cnr", f"large-out.{suffix}")]
    assert _grown(tmp_path, large, small) < 128
    with cnrfmt.open(tmp_path / "large.cnr", backend="pread") as ck:
        (table,) = ck.values()
        assert table.shape == (_ROWS, _DIM)
