"""Bring a corpus into its minimal form: the smallest inputs that together reach all that the corpus reaches.

``python -m tools.fuzz.minimise FILE.d/corpus`` takes what a run has gathered, and the committed inputs, and writes
`corpus/` anew. Inputs whose names start with ``regression-`` failed once; they stay as they are.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.fuzz.targets import CORPUS, TARGETS
from tools.progress import ROOT

MOST_BYTES = 40 << 10
"""Bytes of a target's inputs, the smallest first; those of whole containers take more."""
_MORE = {"resealed": 288 << 10, "single_file": 240 << 10}


def merged(name: str, sources: list[Path], folder: Path) -> list[bytes]:
    """A minimal set of the inputs in some folders, the smallest first."""
    program, kept = folder / "engine", folder / "kept"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -W ignore -m tools.fuzz.engine {name} "$@"\n', "ascii")
    program.chmod(0o755)
    kept.mkdir()
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONHASHSEED": "0", "FUZZ_PROGRAM": str(program)}
    command = [str(program), "-merge=1", str(kept), *map(str, sources)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    return sorted((path.read_bytes() for path in kept.iterdir()), key=lambda data: (len(data), data))


def minimise(name: str, gathered: Path) -> tuple[int, int]:
    """Write a target's committed corpus anew; how many inputs it has, and how many bytes."""
    target = CORPUS / name
    target.mkdir(parents=True, exist_ok=True)
    sources = [folder for folder in (target, gathered / name) if folder.is_dir()]
    with tempfile.TemporaryDirectory() as folder:
        inputs = merged(name, sources, Path(folder))
    for path in target.iterdir():
        if not path.name.startswith("regression-"):
            path.unlink()
    known = {path.read_bytes() for path in target.iterdir()}
    size = sum(map(len, known))
    for data in inputs:
        if data not in known and size + len(data) <= _MORE.get(name, MOST_BYTES):
            (target / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
            known.add(data)
            size += len(data)
    return len(known), size


def main(arguments: list[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description="Minimise the corpus of the fuzz targets.")
    parser.add_argument("gathered", type=Path, help="folders of inputs, one for each target")
    parser.add_argument("--target", choices=TARGETS, help="one target (else all)")
    options = parser.parse_args(arguments)
    for name in [options.target] if options.target else TARGETS:
        count, size = minimise(name, options.gathered)
        print(f"{name}: {count} inputs, {size} bytes", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
