from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cnrfmt import CheckpointManager, UsageError
from cnrfmt.demo.model import ACCUMULATOR, DIM, PAIR_START, Model, pair_keys, seen_before
from cnrfmt.demo.orders import Dataset
from tests.demo.support import same_bits, touched_by_twin


def exact(path: Path) -> CheckpointManager:
    return CheckpointManager(path, policy="consecutive", bits=32)


def checkpoint(manager: CheckpointManager, model: Model) -> None:
    for name, ids in model.take_touched().items():
        manager.track(name, ids)
    manager.save(model.order, model.tables(), dense=model.dense_state(), reader=model.order).wait()


def restored(path: Path, data: Dataset, seed: int) -> Model:
    model = Model(data, seed)
    with exact(path) as manager:
        found = manager.restore(into=model.targets())
    assert found is not None
    model.take_over(found)
    return model


def by_twin(touched: dict[str, set[int]], data: Dataset) -> dict[str, set[int]]:
    """Pairs by their keys, as checkpoints know them."""
    keys = pair_keys(data)
    return {**touched, "pair": set(keys[sorted(touched["pair"])].tolist())}


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
    for begin, end in ((0, 30), (30, 55)):
        model.train(end)
        want = touched_by_twin(some, Model(some, 2), begin, end)
        assert {name: set(rows.tolist()) for name, rows in model.touched_rows().items()} == want
        taken = model.take_touched()
        assert {name: set(ids.tolist()) for name, ids in taken.items()} == by_twin(want, some)
        assert all(not len(rows) for rows in model.touched_rows().values())


def test_rows_that_were_not_touched_kept_their_bits(some: Dataset) -> None:
    model = Model(some)
    model.train(60)
    model.take_touched()
    before = [array.copy() for array in (*model.weights, *model.accumulators)]
    model.train(62)
    touched = [*model.touched_rows().values()] * 2
    for rows, old, new in zip(touched, before, (*model.weights, *model.accumulators), strict=True):
        others = np.setdiff1d(np.arange(len(new)), rows)
        assert len(others)
        assert new[others].tobytes() == old[others].tobytes()


@pytest.mark.parametrize("deaths", [[25], [25, 26, 60]])
def test_a_run_restored_from_exact_checkpoints_ends_with_the_same_bits(
    some: Dataset, deaths: list[int], tmp_path: Path
) -> None:
    whole = Model(some, 4)
    whole.train(80)
    path, model = tmp_path / "demo.cnr", Model(some, 4)
    for until in range(10, 81, 10):
        with exact(path) as manager:
            manager.restore()
            model.train(until)
            checkpoint(manager, model)
        for death in deaths:
            if until < death < until + 10:
                # What the dying run did since its checkpoint is lost with it.
                model.train(death)
                model = restored(path, some, 4)
                assert model.order == until
    assert same_bits(model, whole)


def test_a_restored_run_marks_and_counts_rows_as_the_other_one(some: Dataset, tmp_path: Path) -> None:
    path, model = tmp_path / "demo.cnr", Model(some)
    model.train(20)
    with exact(path) as manager:
        checkpoint(manager, model)
    other = restored(path, some, 0)
    for run in (model, other):
        run.train(50)
    for ours, theirs in zip(model.take_touched().values(), other.take_touched().values(), strict=True):
        assert ours.tolist() == theirs.tolist()
    for ours, theirs in zip(model.tables().values(), other.tables().values(), strict=True):
        assert ours.values.tobytes() == theirs.values.tobytes()
        assert ours.keys is theirs.keys is None or ours.keys.tolist() == theirs.keys.tolist()


def test_tables_are_the_live_arrays_and_the_pairs_that_were_looked_up(some: Dataset) -> None:
    model = Model(some)
    model.train(40)
    pairs = model.touched_rows()["pair"]
    model.take_touched()
    tables = model.tables()
    for name in ("user", "product"):
        assert tables[name].values is getattr(model.weights, name)
        assert tables[name].columns == {ACCUMULATOR: getattr(model.accumulators, name)}
        assert tables[name].keys is None
    found = tables["pair"]
    assert found.keys.tolist() == pair_keys(some)[pairs].tolist()
    assert found.values.tobytes() == model.weights.pair[pairs].tobytes()
    assert found.columns[ACCUMULATOR].tobytes() == model.accumulators.pair[pairs].tobytes()
    assert found.values.shape == (len(pairs), DIM)
    assert found.fill == {"weight": PAIR_START}
    users, products = np.divmod(found.keys, some.products)
    assert some.pair_of[users, products].tolist() == pairs.tolist()
    # What was looked up once stays.
    model.train(60)
    model.take_touched()
    assert set(found.keys.tolist()) < set(model.tables()["pair"].keys.tolist())


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
