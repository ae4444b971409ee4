from __future__ import annotations

import numpy as np
import pytest

from cnrfmt import UsageError
from cnrfmt.demo.model import DIM, Model, pair_keys, seen_before
from cnrfmt.demo.orders import Dataset
from tests.demo.support import ExactStore, same_bits, touched_by_twin


def test_the_same_seed_gives_the_same_bits_and_another_one_others(some: Dataset) -> None:
    one, same, other = Model(some, 7), Model(some, 7), Model(some, 8)
    for model in (one, same, other):
        model.train(40)
    assert same_bits(one, same)
    assert not same_bits(one, other)


def test_it_makes_no_difference_in_how_many_calls_it_trains(some: Dataset) -> None:
    one, other = Model(some), Model(some)
    one.train(50)
    for until in (1, 2, 17, 17, 50):
        other.train(until)
    assert same_bits(one, other)


def test_touched_rows_are_those_that_the_twin_looks_up(some: Dataset) -> None:
    model = Model(some, 2)
    model.train(30)
    assert {name: set(rows.tolist()) for name, rows in model.touched_rows().items()} == touched_by_twin(
        some, Model(some, 2), 0, 30
    )
    model.snapshot(full=False)
    assert all(not len(rows) for rows in model.touched_rows().values())
    model.train(55)
    assert {name: set(rows.tolist()) for name, rows in model.touched_rows().items()} == touched_by_twin(
        some, Model(some, 2), 30, 55
    )


def test_rows_that_were_not_touched_kept_their_bits(some: Dataset) -> None:
    model = Model(some)
    model.train(60)
    model.snapshot(full=False)
    before = [array.copy() for array in (*model.weights, *model.accumulators)]
    model.train(62)
    touched = [*model.touched_rows().values()] * 2
    for rows, old, new in zip(touched, before, (*model.weights, *model.accumulators), strict=True):
        others = np.setdiff1d(np.arange(len(new)), rows)
        assert len(others)
        assert new[others].tobytes() == old[others].tobytes()


@pytest.mark.parametrize("deaths", [[25], [25, 26, 60]])
def test_a_run_restored_from_exact_checkpoints_ends_with_the_same_bits(some: Dataset, deaths: list[int]) -> None:
    whole = Model(some, 4)
    whole.train(80)
    store, model = ExactStore(), Model(some, 4)
    for until in range(10, 81, 10):
        model.train(until)
        snapshot = model.snapshot(full=until == 10)
        _ = store.save(snapshot) if until == 10 else store.append(snapshot)
        for death in deaths:
            if until < death < until + 10:
                # What the dying run did since its checkpoint is lost with it.
                model.train(death)
                _, model = store.restore(some, 4)
                assert model.order == until
    assert same_bits(model, whole)


def test_a_restored_run_marks_and_counts_rows_as_the_other_one(some: Dataset) -> None:
    store, model = ExactStore(), Model(some)
    model.train(20)
    store.save(model.snapshot(full=True))
    _, restored = store.restore(some, 0)
    for run in (model, restored):
        run.train(50)
    one, other = model.snapshot(full=False), restored.snapshot(full=False)
    assert one.existing == other.existing
    assert one.full_bytes == other.full_bytes
    for name, rows in one.tables.items():
        assert rows.ids.tolist() == other.tables[name].ids.tolist()


def test_snapshots_are_copies_and_count_a_full_save(some: Dataset) -> None:
    model = Model(some)
    model.train(40)
    pairs = model.touched_rows()["pair"]
    snapshot = model.snapshot(full=True)
    assert len(snapshot.tables["user"].ids) == some.users
    assert len(snapshot.tables["product"].ids) == some.products
    keys = snapshot.tables["pair"].ids
    assert keys.tolist() == pair_keys(some)[pairs].tolist()
    users, products = np.divmod(keys, some.products)
    assert some.pair_of[users, products].tolist() == pairs.tolist()
    rows = some.users + some.products + len(pairs)
    dense = sum(array.nbytes for array in snapshot.dense.values())
    assert snapshot.full_bytes == rows * (DIM + 1) * 4 + 8 * len(pairs) + dense
    before = snapshot.tables["product"].weight.copy(), snapshot.dense["hidden"].copy()
    model.train(60)
    assert snapshot.tables["product"].weight.tobytes() == before[0].tobytes()
    assert snapshot.dense["hidden"].tobytes() == before[1].tobytes()


def test_what_the_reader_knows_can_be_counted_anew_anywhere(some: Dataset) -> None:
    model = Model(some)
    for until in (0, 1, 33, len(some.stream)):
        model.train(until)
        anew = seen_before(some, until)
        for found, want in zip(anew, model.seen, strict=True):
            assert found.dtype == want.dtype
            assert found.tolist() == want.tolist()


def test_a_model_trains_neither_backwards_nor_past_the_end(some: Dataset) -> None:
    model = Model(some)
    model.train(20)
    for until in (19, len(some.stream) + 1):
        with pytest.raises(UsageError, match="at order 20"):
            model.train(until)
    assert model.order == 20
