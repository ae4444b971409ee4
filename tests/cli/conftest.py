"""The containers that the command is tried on, and the command."""

from __future__ import annotations

import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

import cnrfmt
from tests.cli.support import VISITORS, Command


@pytest.fixture(scope="session")
def words() -> np.ndarray[Any, Any]:
    """Real token embeddings, 300 rows of 64 elements."""
    (file,) = Path(str(files("wordllama"))).glob("weights/l2_supercat_256.safetensors")
    return load_file(file)["embedding.weight"][1000:1300, :64].astype(np.float32)


@pytest.fixture(scope="session", params=["model.cnr", "model"])
def original(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest, words: np.ndarray[Any, Any]
) -> Path:
    """A container with three versions; tests that damage it take a copy."""
    path: Path = tmp_path_factory.mktemp("cli") / request.param
    weight = words.copy()
    weight[3, 2], weight[4, 0], weight[4, 1] = np.nan, np.inf, -np.inf
    cnrfmt.save(
        path,
        {
            "word": cnrfmt.TableData(weight, columns={"accumulator": np.abs(words).mean(axis=1)}),
            "visitor": cnrfmt.TableData(words[:6, :3], keys=VISITORS),
            "half": words[:5, :4].astype(ml_dtypes.bfloat16),
            "count": np.arange(8).reshape(4, 2) + 2**60,
        },
        quantize={"word": cnrfmt.Quantize(bits=8)},
        dense={"mlp.weight": words[:2], "reader": {"position": 17}, "random": b"\1\2"},
        metadata={"run": "r7"},
        step=0,
    )
    ids = np.arange(0, 300, 3)
    cnrfmt.append(path, {"word": cnrfmt.Rows(ids[2:], weight[ids[2:]])}, step=1000)
    cnrfmt.append(path, {"visitor": cnrfmt.Deleted([99])}, step=2000)
    return path


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    """A copy of the container."""
    copy = tmp_path / original.name
    if original.is_dir():
        shutil.copytree(original, copy)
    else:
        shutil.copy(original, copy)
    return copy


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def cnr(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)
