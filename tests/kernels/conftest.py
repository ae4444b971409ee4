"""What the kernels are tried on, and how large: interpreted, a loop takes a thousand times as long."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

from cnrfmt.kernels._jit import INTERPRETED

Array = npt.NDArray[Any]


@pytest.fixture(scope="session")
def trained() -> npt.NDArray[np.float32]:
    """Trained token embeddings in float32: 32,000 rows of 256, or some of them."""
    spec = find_spec("wordllama")
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent / "weights" / "l2_supercat_256.safetensors"
    table = load_file(path)["embedding.weight"].astype(np.float32)
    assert table.shape == (32000, 256)
    return np.ascontiguousarray(table[:: 400 if INTERPRETED else 1])


@pytest.fixture(params=["writable", "read-only"])
def given(request: pytest.FixtureRequest) -> Callable[[Array], Array]:
    """Makes an input what a mapped file gives: read-only, for which kernels are compiled apart."""

    def give(array: Array) -> Array:
        array = array.view()
        array.flags.writeable = request.param == "writable"
        return array

    return give
