"""What the tests of the crash engines share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).parents[2]
THOROUGH = os.environ.get("CNRFMT_HYPOTHESIS_PROFILE", "quick") != "quick"
SEED = 11


def forbidden(reason: object) -> NoReturn:
    """Skips a test for something that the kernel doesn't let this user do; tests/conftest.py lets that pass."""
    pytest.skip(f"the kernel forbids it: {reason}")


def run_kills(engine: str, folder: Path, kills: int, plant: str = "", *more: str) -> tuple[int, dict, str]:
    """Exit status, result and output of an engine that kills; with a plant, of a library that it changes first.

    `engine` is the program, with a place for the plant.
    """
    result = folder / "result.json"
    command = [sys.executable, "-c", engine.format(plant=plant)]
    command += ["--kills", str(kills), "--seed", str(SEED), "--folder", str(folder), "--json", str(result), *more]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=3000)
    assert result.exists(), f"{done.stdout}\n{done.stderr}"
    return done.returncode, json.loads(result.read_text(encoding="utf-8")), done.stdout
