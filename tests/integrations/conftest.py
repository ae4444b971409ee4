"""Real embeddings, and real visits of real people as a keyed table."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt.demo.orders import find_csv, read_lines
from tests.integrations.support import COLUMN_TYPES, every_bit_pattern


@pytest.fixture(scope="session")
def embeddings_file() -> Path:
    """Token embeddings, 32000 x 256 in half precision, as their package ships them."""
    spec = find_spec("wordllama")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "weights" / "l2_supercat_256.safetensors"


@pytest.fixture(scope="session")
def visitors() -> cnrfmt.TableData:
    """Orders per hour of the day of 593 customers, by customer id, as a model might learn them.

    The columns are what row-wise Adagrad (one value per row) and Adam (one per element) keep.
    """
    lines = read_lines(find_csv())
    users, rows = np.unique(lines["user_id"], return_inverse=True)
    counts = np.zeros((len(users), 24), np.float32)
    np.add.at(counts, (rows, lines["order_hour_of_day"]), 1)
    share = counts / counts.sum(axis=1, keepdims=True)
    order = np.argsort(-counts.sum(axis=1), kind="stable")
    return cnrfmt.TableData(
        np.log1p(counts)[order],
        columns={
            "accumulator": (share**2).sum(axis=1)[order],
            "momentum": share[order].astype(np.float64),
        },
        keys=users[order],
        fill={"weight": -0.0, "accumulator": 0.1},
    )


@pytest.fixture
def model(tmp_path: Path, visitors: cnrfmt.TableData) -> Path:
    """A container with every kind of thing that a container may have."""
    tables: dict[str, Any] = {f"types/{name}": every_bit_pattern(name) for name in COLUMN_TYPES}
    tables["visitor"] = visitors
    tables["no rows"] = np.empty((0, 5), np.float32)
    tables["no keys"] = cnrfmt.TableData(np.empty((0, 3), np.int16), keys=np.empty(0, np.int64))
    tables["ключ: ñ 漢"] = np.arange(12, dtype=np.int32).reshape(6, 2)
    dense = {
        "mlp/0/weight": visitors.values[:8, :16].copy(),
        "mlp/0/bias": np.linspace(-1, 1, 16),
        "conv": np.arange(60, dtype=np.float32).reshape(3, 4, 5),
        "scalar": np.array(2.5, np.float16),
        "mask": np.array([True, False, True]),
        "phases": np.array([1 + 2j, -1j], np.complex64),
        "nothing": np.empty((0, 0, 3), np.int8),
        "flat": np.empty((5, 0), np.float32),
        "half": every_bit_pattern("bfloat16", 2).reshape(-1),
        "reader": {"shard": 17, "offset": "9007199254740993", "rng": [1, 2.5, None, True, "é"]},
        "blob": bytes(range(256)),
        "empty": b"",
        # A table has this name, too.
        "visitor": np.arange(3, dtype=np.uint8),
    }
    metadata = {"run": "r7", "lr": 0.05, "nested": {"a": [1, {"b": None}]}, "cnrfmt": "mine"}
    path = tmp_path / "model.cnr"
    cnrfmt.save(path, tables, dense=dense, metadata=metadata, step=41)
    return path
