from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import cnrfmt
from cnrfmt.demo.model import PAIR_START, Model
from cnrfmt.demo.orders import Dataset
from cnrfmt.demo.store import PARTS, CnrStore, is_demo
from tests.demo.support import same_bits


def checkpointed(data: Dataset, store: CnrStore) -> Model:
    """A model with a baseline at order 20 and deltas at 40 and 60."""
    model = Model(data, 3)
    for until in (20, 40, 60):
        model.train(until)
        snapshot = model.snapshot(full=until == 20)
        _ = store.save(snapshot) if until == 20 else store.append(snapshot)
    return model


def test_raw_checkpoints_restore_every_bit(some: Dataset, tmp_path: Path) -> None:
    store = CnrStore(tmp_path / "demo.cnr", bits=32)
    model = checkpointed(some, store)
    version, restored = store.restore(some, 3)
    assert version == 2
    assert same_bits(restored, model)


@pytest.mark.parametrize("bits", [8, 4])
def test_quantised_checkpoints_restore_weights_to_half_a_step_and_accumulators_to_half_a_code(
    some: Dataset, tmp_path: Path, bits: int
) -> None:
    store = CnrStore(tmp_path / "demo.cnr", bits=bits)
    model = checkpointed(some, store)
    _, restored = store.restore(some, 3)
    for found, want in zip(restored.weights, model.weights, strict=True):
        step = (want.max(1) - want.min(1)) / (2**bits - 1)
        # Fewer than 8 bits come with a scale and a bias in half precision, and the ends of a row may be cut off.
        slack = 1e-5 if bits == 8 else 2e-3 * np.abs(want).max(1) + 0.5 * (want.max(1) - want.min(1))
        assert np.all(np.abs(found - want).max(1) <= 0.51 * step + slack)
    for found, want in zip(restored.accumulators, model.accumulators, strict=True):
        assert np.all(np.abs(found - want) <= want / 256)
    assert not np.array_equal(restored.weights.product, model.weights.product)
    restored.weights, restored.accumulators = model.weights, model.accumulators
    assert same_bits(restored, model)


def test_pairs_that_were_never_looked_up_are_not_stored(some: Dataset, tmp_path: Path) -> None:
    store = CnrStore(tmp_path / "demo.cnr", bits=32)
    model = checkpointed(some, store)
    unused = np.flatnonzero(model.accumulators.pair == 0)
    assert 0 < len(unused) < some.pairs
    with cnrfmt.open(store.path) as ck:
        stored = ck["pair"]
        assert len(stored) == some.pairs - len(unused)
        assert stored.read(np.array([-5]), missing="fill").tolist() == [[np.float32(PAIR_START)] * stored.shape[1]]
        assert ck.step == 60


@pytest.mark.parametrize(("bits", "row_bytes"), [(32, 128), (8, 40), (4, 20)])
def test_bytes_by_part_are_the_rows_that_were_written(some: Dataset, tmp_path: Path, bits: int, row_bytes: int) -> None:
    store = CnrStore(tmp_path / "demo.cnr", bits=bits)
    model = Model(some)
    for until in (30, 60):
        model.train(until)
        snapshot = model.snapshot(full=until == 30)
        version = store.save(snapshot) if until == 30 else store.append(snapshot)
        rows = sum(len(part.ids) for part in snapshot.tables.values())
        sizes = store.bytes_by_part(version)
        assert tuple(sizes) == PARTS
        assert sizes["rows"] == rows * row_bytes
        halves = sum(-(-len(part.ids) * 3 // 2) for part in snapshot.tables.values())
        assert sizes["optimizer"] == (rows * 4 if bits == 32 else halves)
        assert sizes["dense"] == sum(array.nbytes for array in snapshot.dense.values())
        assert 0 < sizes["ids"] <= rows * 8
        assert 0 < sizes["metadata"] < 64 << 10


def test_only_the_demos_own_containers_may_be_replaced(some: Dataset, tmp_path: Path) -> None:
    own, other, text = tmp_path / "own.cnr", tmp_path / "other.cnr", tmp_path / "text.cnr"
    checkpointed(some, CnrStore(own))
    cnrfmt.save(other, {"user": np.zeros((2, 4), np.float32)}, metadata={"made_by": "somebody"})
    text.write_text("not a container")
    assert [is_demo(path) for path in (own, other, text, tmp_path / "none.cnr")] == [True, False, False, False]
