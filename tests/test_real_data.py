"""Round trips of a real, trained table: the token embeddings that the package wordllama carries."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fbgemm_gpu  # noqa: F401  Registers the operators of torch.ops.fbgemm.
import numpy as np
import pytest
import torch
from safetensors import safe_open

import cnrfmt
from cnrfmt import Quantize, Rows, TableData


@pytest.fixture(scope="module")
def trained() -> Any:
    spec = find_spec("wordllama")
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent / "weights" / "l2_supercat_256.safetensors"
    with safe_open(path, "np") as file:
        return np.ascontiguousarray(file.get_tensor("embedding.weight").astype(np.float32))


@pytest.fixture(params=["model.cnr", "model"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / request.param


def test_raw_rows_come_back_bit_for_bit(path: Path, trained: Any) -> None:
    norms = np.linalg.norm(trained, axis=1)
    cnrfmt.save(path, {"token": TableData(trained, columns={"norm": norms})})
    with cnrfmt.open(path) as ck:
        assert ck["token"][...].tobytes() == trained.tobytes()
        assert ck["token"].read(column="norm").tobytes() == norms.tobytes()
    report = cnrfmt.verify(path)
    assert report.findings == []


def dequantised(trained: Any, bits: int) -> Any:
    """What the operators make of the table, by another way than ours: two roundings, in numpy."""
    rows = torch.from_numpy(trained)
    if bits == 8:
        fused = torch.ops.fbgemm.FloatToFused8BitRowwiseQuantized(rows).numpy()
        codes = fused[:, :-8].astype(np.float32)
        scale, bias = np.ascontiguousarray(fused[:, -8:]).view(np.float32).T
    else:
        fused = torch.ops.fbgemm.FloatToFusedNBitRowwiseQuantizedSBHalf(rows, bits).numpy()
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        codes = (fused[:, :-4, None] >> shifts & ((1 << bits) - 1)).reshape(len(rows), -1).astype(np.float32)
        scale, bias = np.ascontiguousarray(fused[:, -4:]).view(np.float16).astype(np.float32).T
    return codes * scale[:, None] + bias[:, None]


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_quantised_rows_are_the_operators_own(path: Path, trained: Any, bits: int) -> None:
    half = len(trained) // 2
    ids = np.arange(1, len(trained), 2)
    first = trained.copy()
    first[ids] = trained[ids[::-1]]
    cnrfmt.save(path, {"token": first}, quantize=Quantize(bits))
    cnrfmt.append(path, {"token": Rows(ids, trained[ids])})
    expected = dequantised(trained, bits)
    for backend in ("mmap", "pread"):
        with cnrfmt.open(path, backend=backend) as ck:
            assert ck["token"][...].tobytes() == expected.tobytes()
            assert ck["token"][half : half + 99].tobytes() == expected[half : half + 99].tobytes()
            assert ck["token"][ids[::-7]].tobytes() == expected[ids[::-7]].tobytes()
    assert cnrfmt.verify(path).findings == []
