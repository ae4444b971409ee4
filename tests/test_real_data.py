"""Round trips of a real, trained table: the token embeddings that the package wordllama carries."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import pairwise
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


# What each method makes of a trained table.


def quantised(trained: Any, path: Path, **choices: Quantize) -> dict[str, Any]:
    """The relative l2 error of each row of the table, for each of these choices."""
    cnrfmt.save(path, dict.fromkeys(choices, trained), quantize=dict(choices))
    norms = np.linalg.norm(trained.astype(np.float64), axis=1)
    with cnrfmt.open(path) as ck:
        found = {name: np.linalg.norm(ck[name][...].astype(np.float64) - trained, axis=1) / norms for name in choices}
        for segment in ck.view.segments.values():
            names = {ck[name].schema.table_id: name for name in choices}
            for entry in segment.toc.tables:
                part, *exceptions = entry.parts
                errors = found[names[entry.table_id]]
                exact = sum(entry.row_sets[p.rows].count for p in exceptions)
                assert exact == (errors == 0).sum()
                assert part.errors.mean == pytest.approx(errors.sum() / (len(errors) - exact), rel=1e-9)
                assert part.errors.worst == pytest.approx(errors.max(), rel=1e-9)
    assert cnrfmt.verify(path).findings == []
    return found


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_methods_err_in_the_expected_order(path: Path, trained: Any, bits: int) -> None:
    rows = trained[::8]
    # The same parameters for all, so that nothing but the method differs.
    parameters: dict[str, Any] = {"layout": "packed", "params": "float16"}
    errors = quantised(
        rows,
        path,
        kmeans=Quantize(bits, method="kmeans"),
        never_worse=Quantize(bits, method="lsq", never_worse=True, **parameters),
        lsq=Quantize(bits, method="lsq", **parameters),
        adaptive=Quantize(bits, method="adaptive", **parameters),
        asymmetric=Quantize(bits, method="asymmetric", **parameters),
        symmetric=Quantize(bits, method="symmetric", **parameters),
        shared=Quantize(bits, method="kmeans", block=32),
        groups=Quantize(bits, method="adaptive", group=64, **parameters),
    )
    mean = {name: found.mean() for name, found in errors.items()}
    order = ("kmeans", "never_worse", "lsq", "adaptive", "asymmetric", "symmetric")
    assert sorted(order, key=lambda name: mean[name]) == list(order)
    assert (errors["never_worse"] <= errors["adaptive"] * (1 + 1e-6)).all()
    assert (errors["kmeans"] <= errors["lsq"]).mean() > 0.99
    # A codebook that rows share costs accuracy, and groups gain some.
    assert mean["kmeans"] < mean["shared"]
    assert mean["groups"] < mean["adaptive"]


def test_each_bit_halves_the_error(path: Path, trained: Any) -> None:
    choices = {str(bits): Quantize(bits) for bits in range(2, 9)}
    errors = quantised(trained[::8], path, **choices)
    means = [errors[str(bits)].mean() for bits in range(2, 9)]
    for coarse, fine in pairwise(means):
        assert 0.4 < fine / coarse < 0.55
    # What a mean error allows is the least of these that is below it.
    limit = (means[3] + means[4]) / 2
    cnrfmt.save(path, {"t": trained}, quantize=Quantize("auto", method="asymmetric", mean_error=limit))
    with cnrfmt.open(path) as ck:
        (segment,) = ck.view.segments.values()
        (part,) = segment.toc.tables[0].parts
        assert part.layout == choices["6"].layout_of(6)
        assert part.errors.mean <= 1.02 * limit


@pytest.mark.parametrize("bits", [8, 12, 16])
def test_accumulators_of_trained_rows(path: Path, trained: Any, bits: int) -> None:
    # As row-wise Adagrad adds them up: the mean square of a row's gradient, over many steps.
    sums = np.cumsum((trained**2).mean(axis=1), dtype=np.float64)[::-1].astype(np.float32)
    quantize = Quantize(one_valued=f"log{bits}")  # type: ignore[arg-type]
    cnrfmt.save(path, {"t": TableData(trained[:, :1], columns={"sum": sums})}, quantize=quantize)
    with cnrfmt.open(path) as ck:
        found = ck["t"].read(column="sum").astype(np.float64)
    errors = np.abs(found - sums) / sums
    assert errors.max() <= {8: 2.0**-4, 12: 2.0**-8, 16: 2.0**-12}[bits]
    assert errors.max() > 0
