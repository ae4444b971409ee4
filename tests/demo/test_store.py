from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import cnrfmt
from cnrfmt import UsageError
from cnrfmt.demo import trainer
from cnrfmt.demo.model import DIM, PAIR_START, SETTINGS, Model
from cnrfmt.demo.orders import Dataset
from cnrfmt.demo.store import PARTS, Store, is_demo, written
from tests.demo.support import same_bits


def checkpointed(data: Dataset, store: Store) -> Model:
    """A model with checkpoints at orders 20, 40 and 60."""
    model = Model(data, 3)
    with store.manager() as manager:
        for _ in trainer.train(manager, model, 20, 60):
            pass
    return model


def restored(data: Dataset, store: Store) -> Model:
    model = Model(data, 3)
    with store.manager() as manager:
        trainer.resume(manager, model, lambda told: None)
    return model


def test_raw_checkpoints_restore_every_bit(some: Dataset, tmp_path: Path) -> None:
    for policy in ("consecutive", "one-shot", "intermittent", "full"):
        store = Store(tmp_path / f"{policy}.cnr", bits=32, policy=policy)
        model = checkpointed(some, store)
        assert same_bits(restored(some, store), model)
        with cnrfmt.open(store.path) as ck:
            assert ck.version == 2
            assert ck.versions == ((2,) if policy == "full" else (0, 1, 2))
            assert len(ck.manifest.chain) == {"full": 1, "consecutive": 3}.get(policy, 2)


@pytest.mark.parametrize("bits", [8, 6, 4])
def test_quantised_checkpoints_restore_weights_to_half_a_step_and_accumulators_to_half_a_code(
    some: Dataset, tmp_path: Path, bits: int
) -> None:
    store = Store(tmp_path / "demo.cnr", bits=bits)
    model = checkpointed(some, store)
    found = restored(some, store)
    with cnrfmt.open(store.path) as ck:
        assert ck["user"].encoding.bits == bits
    for stored, want in zip(found.weights[:2], model.weights[:2], strict=True):
        step = (want.max(1) - want.min(1)) / (2**bits - 1)
        # Fewer than 8 bits come with a scale and a bias in half precision, and the ends of a row may be cut off.
        slack = 1e-5 if bits == 8 else 2e-3 * np.abs(want).max(1) + 0.5 * (want.max(1) - want.min(1))
        assert np.all(np.abs(stored - want).max(1) <= 0.51 * step + slack)
    for stored, want in zip(found.accumulators, model.accumulators, strict=True):
        assert np.all(np.abs(stored - want) <= want / 256)
    assert not np.array_equal(found.weights.product, model.weights.product)
    found.weights, found.accumulators = model.weights, model.accumulators
    assert same_bits(found, model)


def test_pairs_that_were_never_looked_up_are_not_stored(some: Dataset, tmp_path: Path) -> None:
    store = Store(tmp_path / "demo.cnr", bits=32)
    model = checkpointed(some, store)
    unused = np.flatnonzero(model.accumulators.pair == 0)
    assert 0 < len(unused) < some.pairs
    with cnrfmt.open(store.path) as ck:
        stored = ck["pair"]
        assert len(stored) == some.pairs - len(unused)
        assert stored.read(np.array([-5]), missing="fill").tolist() == [[np.float32(PAIR_START)] * stored.shape[1]]
        assert ck.step == 60


@pytest.mark.parametrize(("bits", "row_bytes"), [(32, 128), (8, 40), (4, 20)])
def test_what_was_written_is_told_by_table_and_part(some: Dataset, tmp_path: Path, bits: int, row_bytes: int) -> None:
    store, model, touched = Store(tmp_path / "demo.cnr", bits=bits), Model(some), {"user": 0, "product": 0, "pair": 0}
    with store.manager() as manager:
        for until in (30, 60):
            model.train(until)
            for name, ids in model.take_touched().items():
                manager.track(name, ids)
                touched[name] = len(ids)
            dense = model.dense_state()
            tables = model.tables()
            version = manager.save(until, tables, dense=dense, reader=until).wait()
            assert version is not None
            facts = written(store.path, version)
            existing = {"user": some.users, "product": some.products, "pair": len(tables["pair"].keys)}
            assert model.existing == existing
            assert facts["rows"] == (existing if until == 30 else touched)
            rows, sizes = sum(facts["rows"].values()), facts["bytes"]
            assert tuple(sizes) == PARTS
            assert sizes["rows"] == rows * row_bytes
            halves = sum(-(-count * 3 // 2) for count in facts["rows"].values())
            assert sizes["optimizer"] == (rows * 4 if bits == 32 else halves)
            dense_bytes = sum(array.nbytes for array in dense.values())
            assert sizes["dense"] == dense_bytes + len(str(until))
            assert 0 < sizes["ids"] <= rows * 8
            assert 0 < sizes["metadata"] < 64 << 10
            plain = sum(existing.values()) * (DIM + 1) * 4 + 8 * existing["pair"]
            assert model.nbytes == plain + dense_bytes


def test_of_a_grid_the_rows_that_were_written_are_counted_and_restored(some: Dataset, tmp_path: Path) -> None:
    store = Store(tmp_path / "demo.cnr")
    model = checkpointed(some, store)
    found = restored(some, store)
    with cnrfmt.open(store.path) as ck:
        parts = [part for entry in ck.view.segments[ck.manifest.chain[0].segment].toc.tables for part in entry.parts]
    sizes = {part.scheme.step.size for part in parts if part.scheme is not None and part.scheme.step is not None}
    # For one restore, steps of one and a half learning rates, to the nearest power of two.
    assert sizes == {1.5 * float(SETTINGS.rate)}
    for stored, want in zip(found.weights[:2], model.weights[:2], strict=True):
        assert 0 < np.abs(stored - want).max() <= 2**0.5 * max(sizes) / 2
    existing = model.existing
    for version in range(3):
        facts = written(store.path, version)
        assert all(0 < facts["rows"][name] <= existing[name] for name in existing)
        assert 0 < facts["bytes"]["rows"] < DIM * sum(facts["rows"].values())
    assert written(store.path, 0)["rows"]["user"] == some.users


def test_settings_that_there_are_not_are_refused(tmp_path: Path) -> None:
    for settings, message in (({"bits": 9}, "bits"), ({"policy": "never"}, "policy"), ({"threads": 0}, "threads")):
        with pytest.raises(UsageError, match=message):
            Store(tmp_path / "demo.cnr", **settings).manager()


def test_only_the_demos_own_containers_may_be_replaced(some: Dataset, tmp_path: Path) -> None:
    own, other, text = tmp_path / "own.cnr", tmp_path / "other.cnr", tmp_path / "text.cnr"
    checkpointed(some, Store(own))
    cnrfmt.save(other, {"user": np.zeros((2, 4), np.float32)}, metadata={"made_by": "somebody"})
    text.write_text("not a container")
    assert [is_demo(path) for path in (own, other, text, tmp_path / "none.cnr")] == [True, False, False, False]
