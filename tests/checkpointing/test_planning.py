"""Estimates of bytes are held against files that were written; the rest of a plan against plain sums."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cnrfmt
from cnrfmt import CheckpointManager, Grid, Quantize, TableData
from cnrfmt.checkpointing.bits import choices_for
from cnrfmt.checkpointing.costs import typical
from cnrfmt.checkpointing.costs.estimates import TableShape, index_bytes, recipes_for, shapes_of, table_shape
from cnrfmt.checkpointing.costs.planning import CheckpointPlan, plan_checkpoints
from cnrfmt.checkpointing.costs.rates import Rates, largest, measure_rates, measure_write
from cnrfmt.checkpointing.costs.traffic import CLASSES, Traffic
from cnrfmt.checkpointing.policies import NAMED, History
from cnrfmt.encodings import row_ids
from cnrfmt.errors import UsageError
from cnrfmt.format.encoding import LogLayout
from cnrfmt.format.scheme import Step
from cnrfmt.kernels._jit import INTERPRETED
from cnrfmt.sizes import commit_sizes
from tests.storage.support import QuickFs

RATES = Rates(encode=2e9, gather=1e9, write=5e8)
SCALE = 1 if INTERPRETED else 10
SHAPES = (
    table_shape("user", 3_000 * SCALE, 64, columns={"accumulator": True}),
    table_shape("item", 400 * SCALE, 48, columns={"exp_avg": False, "exp_avg_sq": False}),
    table_shape("visitor", 500 * SCALE, 20, columns={"accumulator": True}, keyed=True),
    table_shape("word", 200 * SCALE, 32, dtype="float16"),
)


def plan(shapes: Any = SHAPES, touched: float = 0.26, **words: Any) -> CheckpointPlan:
    return plan_checkpoints(shapes, Traffic(touched), **words)


# Bytes, against real files


def write(path: Path, shapes: Any, kinds: Any, traffic: Traffic, quantize: Any, dense: int) -> list[dict[str, int]]:
    """Checkpoints of these kinds of tables of these shapes, and what each of them took."""
    rng = np.random.default_rng(5)
    keys = {t.schema.name: rng.integers(-(2**63), 2**63 - 1, t.count) for t in shapes if t.schema.keyed}
    state = {"state": rng.bytes(dense)} if dense else {}

    def columns(table: TableShape, count: int) -> tuple[Any, dict[str, Any]]:
        weight, *others = table.schema.columns
        dim = table.schema.dim
        values = rng.normal(size=(count, dim)).astype(weight.dtype)
        return values, {c.name: rng.random(count if c.per_row else (count, dim), np.float32) for c in others}

    def contents(kind: str, intervals: int) -> dict[str, Any]:
        tables: dict[str, Any] = {}
        for table in shapes:
            name = table.schema.name
            if kind == "baseline":
                values, others = columns(table, table.count)
                tables[name] = cnrfmt.TableData(values, columns=others, keys=keys.get(name))
            else:
                count = round(table.count * traffic.fraction(table.count, intervals))
                ids = rng.choice(keys.get(name, np.arange(table.count)), count, replace=False)
                values, others = columns(table, count)
                tables[name] = cnrfmt.Rows(ids, values, columns=others)
        return tables

    found = []
    for number, kind in enumerate(kinds):
        if kind != "delta":
            # Each delta since the baseline stands right behind it.
            path = path.with_name(f"{path.name}{number}")
            cnrfmt.save(path, contents("baseline", 0), quantize=quantize, dense=state)
        if kind != "baseline":
            since = number - max(n for n in range(number) if kinds[n] == "baseline")
            cnrfmt.append(path, contents(kind, 1 if kind == "delta" else since), quantize=quantize, dense=state)
        found.append(commit_sizes(path))
    return found


@pytest.mark.parametrize("policy", ["intermittent", "consecutive"])
@pytest.mark.parametrize("bits", [2, 3, 4, 8, 32])
def test_bytes_are_those_of_files(tmp_path: Path, bits: int, policy: str) -> None:
    overrides = {"item": Quantize(8)} if bits < 8 else None
    planned = plan(bits=bits, quantize=overrides, policy=policy, intervals=4, keep=100, dense_bytes=12_345)
    choices = choices_for(bits, overrides, unquantisable=["word"])
    kinds = [c.kind for c in planned.checkpoints]
    wrote = write(tmp_path / "run", SHAPES, kinds, Traffic(0.26), choices, 12_345)
    for checkpoint, real in zip(planned.checkpoints, wrote, strict=True):
        assert checkpoint.nbytes == pytest.approx(sum(real.values()), rel=0.005 if SCALE > 1 else 0.03)
        for key in ("weights", "optimizer", "dense", "exceptions"):
            assert checkpoint.sizes[key] == real[key], key
        assert checkpoint.sizes["digests"] == pytest.approx(real["digests"], abs=16)
        assert checkpoint.sizes["ids"] == pytest.approx(real["ids"], rel=0.03, abs=200)
        assert checkpoint.sizes["metadata"] == pytest.approx(real["metadata"], rel=0.05)


@pytest.mark.parametrize("touched", [0.0, 0.001, 0.02, 0.9, 1.0])
def test_few_rows_and_nearly_all_of_them(tmp_path: Path, touched: float) -> None:
    planned = plan(touched=touched, bits=8, policy="one-shot", intervals=2, keep=100)
    choices = choices_for(8, unquantisable=["word"])
    wrote = write(tmp_path / "run", SHAPES, ["baseline", "since-baseline"], Traffic(touched), choices, 0)
    for checkpoint, real in zip(planned.checkpoints, wrote, strict=True):
        assert checkpoint.nbytes == pytest.approx(sum(real.values()), rel=0.03, abs=600)


def test_many_small_tables_and_codebooks(tmp_path: Path) -> None:
    shapes = [table_shape(f"t{n}", 5 + 4 * SCALE * n, 4 + n) for n in range(30)]
    quantize = {"t1*": Quantize(4, method="kmeans", block=64), "t2*": Quantize(3, group=8), "*": None}
    planned = plan(shapes, quantize=quantize, policy="one-shot", intervals=2, keep=100)
    wrote = write(tmp_path / "run", shapes, ["baseline", "since-baseline"], Traffic(0.26), quantize, 0)
    for checkpoint, real in zip(planned.checkpoints, wrote, strict=True):
        assert checkpoint.nbytes == pytest.approx(sum(real.values()), rel=0.03)
        assert checkpoint.sizes["weights"] == real["weights"]


def test_a_grid_takes_what_is_typical() -> None:
    planned = plan(quantize=Grid(learning_rate=0.01, restores=3), policy="consecutive", intervals=2)
    other_rate = plan(quantize=Grid(learning_rate=7.0, restores=2), policy="consecutive", intervals=2)
    assert planned == other_rate
    baseline, delta = (c.sizes for c in planned.checkpoints)
    counts = [table.count for table in SHAPES], [round(t.count * Traffic(0.26).fraction(t.count, 1)) for t in SHAPES]
    # The rows of items are Adam's, and begin with weights of 50 learning rates in steps of 1.5.
    begun = math.log2(50 / 1.5) + 2.05
    for sizes, (user, item, visitor, word), of_adam, code, second in (
        (baseline, counts[0], begun, 12, 6.0),
        (delta, counts[1], 4.05, 8, 2.7),
    ):
        bits = 1.65 * (64 * user + 20 * visitor) + of_adam * 48 * item + 4.2 * (user + item + visitor)
        # What isn't float32 is raw.
        assert sizes["weights"] == pytest.approx(bits / 8 + 64 * word, abs=4)
        moments = item * (48 * (3.1 + second) + 2 * 4.2)
        assert sizes["optimizer"] == pytest.approx((code * (user + visitor) + moments) / 8, abs=4)
    eight = {"word": None, "*": Quantize(8)}
    named = plan(quantize={"user": Grid(learning_rate=0.1, c=3), **eight}, intervals=1).checkpoints[0].sizes
    others = plan(SHAPES[1:], quantize=eight, intervals=1).checkpoints[0].sizes
    assert named["weights"] - others["weights"] == math.ceil(SHAPES[0].count * (64 * 1.65 + 4.2) / 8)


def test_finer_steps_take_more_bits() -> None:
    assert [typical.value_bits(c) for c, _ in typical.BITS] == [bits for _, bits in typical.BITS]
    found = [typical.value_bits(c) for c in np.geomspace(0.01, 100, 200)]
    assert all(a >= b > 0 for a, b in pairwise(found))
    assert typical.value_bits(0.125) == pytest.approx(3.6 + 2)
    # Adam moves rows further, and 3 restores expected go with steps of 1.5 learning rates at most.
    assert all(typical.value_bits(c, adam=True) > typical.value_bits(c) + 1 for c in np.geomspace(0.01, 100, 200))
    step = Step(1.5, 2.0, "cnrfmt.checkpoints")
    of = {name: typical.Weights.of(step, ["weight", name], None) for name in ("accumulator", "exp_avg")}
    assert {name: (w.coarseness, w.delta_bits) for name, w in of.items()} == {
        "accumulator": (3.0, 1.65),
        "exp_avg": (3.0, 4.05),
    }
    assert of["accumulator"].baseline_bits == 1.65
    begun = [typical.Weights.of(step, [], initial).baseline_bits for initial in (0, 1.5, 3, 6)]
    assert begun == pytest.approx([1.65, 2.05, 3.05, 4.05])


@pytest.mark.parametrize(("bits", "delta"), [(12, 8), (16, 12)])
def test_each_logarithmic_code_takes_as_much(bits: int, delta: int) -> None:
    layout = LogLayout(bits, 1, 0, "absolute", "rans", 1024)
    assert typical.section_bytes(layout, None, 10, 1, is_delta=False) == math.ceil(10 * bits / 8)
    assert typical.section_bytes(layout, None, 10, 1, is_delta=True) == 10 * delta // 8


@pytest.mark.parametrize("c", [3, 1])
def test_a_trainer_with_adagrad_takes_about_that(tmp_path: Path, c: float) -> None:
    rng, rows, rate = np.random.default_rng(0), 800 * SCALE, 0.02
    weight, state = rng.normal(0, 0.05, (rows, 64)).astype(np.float32), np.zeros(rows, np.float32)
    chance = np.arange(1, rows + 1) ** -1.05
    tables = {"t": TableData(weight, columns={"accumulator": state})}
    written = []
    with CheckpointManager(
        tmp_path / "run", encoding=Grid(learning_rate=rate, c=c), merge_share=None, fs=QuickFs()
    ) as manager:
        for batches in (60, 20, 20):
            for _ in range(batches):
                ids = np.unique(rng.choice(rows, rows // 20, p=chance / chance.sum()))
                gradients = rng.normal(size=(len(ids), 64)).astype(np.float32)
                state[ids] += (gradients**2).mean(axis=1)
                weight[ids] -= rate * gradients / np.sqrt(state[ids])[:, None]
                manager.track("t", ids)
            manager.save(0, tables).wait()
            written.append(commit_sizes(tmp_path / "run"))
    with cnrfmt.open(tmp_path / "run") as ck:
        touched = len(ck["t"].changed(since=1).rows)
    shape = table_shape("t", rows, 64, columns={"accumulator": True})
    planned = plan([shape], touched=touched / rows, quantize=Grid(learning_rate=rate, c=c), policy="consecutive")
    last = planned.checkpoints[1].sizes
    # Few rows bear the models of their codes.
    assert written[2]["weights"] == pytest.approx(last["weights"], rel=0.4 if SCALE > 1 else 0.8)
    assert written[2]["optimizer"] == pytest.approx(last["optimizer"], rel=0.5 if SCALE > 1 else 2)
    # Rows that walk at random go further than trained ones, and those that were never touched began with as much.
    assert written[0]["weights"] < planned.checkpoints[0].sizes["weights"] * (2 if SCALE > 1 else 3)


def test_a_young_run_with_adam_takes_about_that(tmp_path: Path) -> None:
    """Weights begin many learning rates large, and each step moves a row by about one, late as early."""
    rng, rows, rate, begun = np.random.default_rng(0), 800 * SCALE, 0.001, 0.05
    weight = rng.normal(0, begun, (rows, 64)).astype(np.float32)
    target = (rng.normal(size=(rows, 4)) @ rng.normal(0, 0.1, (4, 64))).astype(np.float32)
    moments = {name: np.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
    tables = {"t": TableData(weight, columns=moments)}
    chance = np.arange(1, rows + 1) ** -1.05
    written, touched = [], []
    with CheckpointManager(
        tmp_path / "run", encoding="grid", learning_rate=rate, expected_restores=3, merge_share=None, fs=QuickFs()
    ) as manager:
        for batches in (0, 20, 20, 20):
            marked = []
            for _ in range(batches):
                ids = np.unique(rng.choice(rows, rows // 20, p=chance / chance.sum()))
                gradient = weight[ids] - target[ids] + rng.normal(0, 0.2, (len(ids), 64)).astype(np.float32)
                moments["exp_avg"][ids] += 0.1 * (gradient - moments["exp_avg"][ids])
                moments["exp_avg_sq"][ids] += 0.001 * (gradient**2 - moments["exp_avg_sq"][ids])
                # As after many steps: without the correction of how moments begin.
                weight[ids] -= rate * moments["exp_avg"][ids] / (np.sqrt(moments["exp_avg_sq"][ids]) + 1e-8)
                manager.track("t", ids)
                marked.append(ids)
            manager.save(0, tables).wait()
            written.append(commit_sizes(tmp_path / "run"))
            touched.append(len(np.unique(np.concatenate(marked))) if marked else rows)
    shape = table_shape("t", rows, 64, columns={"exp_avg": False, "exp_avg_sq": False})
    grid = Grid(learning_rate=rate, restores=3)
    words: dict[str, Any] = {"quantize": grid, "policy": "consecutive", "intervals": 2}
    planned = [plan([shape], touched=count / rows, initial=begun / rate, **words).checkpoints for count in touched[1:]]
    assert written[0]["weights"] == pytest.approx(planned[0][0].sizes["weights"], rel=0.15 if SCALE > 1 else 0.4)
    for real, (_, delta) in zip(written[1:], planned, strict=True):
        assert real["weights"] == pytest.approx(delta.sizes["weights"], rel=0.4 if SCALE > 1 else 0.8)
    # Where nobody says how large weights begin, they are taken to be 50 learning rates.
    assert plan([shape], **words).checkpoints[0] == planned[0][0]
    small = plan([shape], initial=0.0, **words).checkpoints[0]
    assert small.sizes["weights"] < 0.6 * planned[0][0].sizes["weights"]


def test_grids_of_which_nothing_is_known_are_refused() -> None:
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(UsageError, match="initial is a number of learning rates"):
            plan(initial=wrong)
    with pytest.raises(UsageError, match="give the Grid learning_rate"):
        plan(quantize=Grid(step=0.1))
    with pytest.raises(UsageError, match="give the Grid learning_rate"):
        plan(quantize={"user": Grid(step=0.1)})
    with pytest.raises(UsageError, match="known of payload='rans', not of 'packed'"):
        plan(quantize=Grid(learning_rate=0.1, c=1, payload="packed"))


def test_shapes_are_those_of_a_container(tmp_path: Path) -> None:
    write(tmp_path / "run", SHAPES, ["baseline"], Traffic(0.1), None, 0)
    with cnrfmt.open(tmp_path / "run0") as ck:
        found = shapes_of(ck)
    assert plan(found).checkpoints == plan().checkpoints
    assert [t.plain_bytes for t in found] == [64 * 4 + 4, 3 * 48 * 4, 20 * 4 + 4, 32 * 2]
    sizes = 3_000 * 260 + 400 * 576 + 500 * (84 + 8) + 200 * 64
    assert plan(dense_bytes=7).plain_bytes == SCALE * sizes + 7


@given(st.integers(1, 3000), st.integers(0, 14), st.integers(0, 1000))
def test_row_indexes_take_what_is_to_be_expected(count: int, doublings: int, seed: int) -> None:
    span = count << doublings
    ids = np.sort(np.random.default_rng(seed).choice(span, count, replace=False)).astype(np.int64)
    real = row_ids.plan(ids).nbytes
    # The smallest code takes whatever it needs of these very ids; small sets vary most.
    assert index_bytes(count, span) == pytest.approx(real, rel=0.03 + 1.5 / math.sqrt(count), abs=32)
    assert index_bytes(count, span) <= 72 * -(-span // 512)


@pytest.mark.parametrize("shares", [[0.9, 0.1], [0.5, 0.3, 0.1, 0.1], [1.0, 0.0, 0.0, 0.0]])
def test_ids_in_some_order_take_no_more(shares: list[float]) -> None:
    """The same number of ids, more of them in some parts of the table than in others."""
    rng = np.random.default_rng(4)
    span, count = 1 << 20, 50_000
    part = span // len(shares)
    places = [k * part + rng.choice(part, round(count * share), replace=False) for k, share in enumerate(shares)]
    ids = np.sort(np.concatenate(places)).astype(np.int64)
    assert row_ids.plan(ids).nbytes <= index_bytes(count, span)


# Traffic


@pytest.mark.parametrize(("exponent", "spread"), [(0.0, 1.0), (1.05, 1.0), (1.5, 1.0), (1.05, 3.0), (0.8, 20.0)])
@pytest.mark.parametrize("rows", [1, 7, 1000, 40_000])
def test_touched_rows_are_what_the_law_says(rows: int, exponent: float, spread: float) -> None:
    classes = 1 if spread == 1 else min(CLASSES, rows)
    chance = []
    for number in range(classes):
        size = rows * (number + 1) // classes - rows * number // classes
        weight = np.arange(1, size + 1, dtype=np.float64) ** -exponent
        chance.append(weight / weight.sum() * spread**-number)
    p = np.concatenate(chance)
    p /= p.sum()
    for lookups in (1, rows / 3, 2.0 * rows, 50.0 * rows):
        traffic = Traffic(lookups=lookups, exponent=exponent, spread=spread)
        for intervals in (1, 3):
            expected = np.mean(1 - (1 - p) ** (lookups * intervals))
            assert traffic.fraction(rows, intervals) == pytest.approx(expected, rel=1e-3)


def test_touched_rows_are_those_of_a_drawn_trace() -> None:
    rows = 20_000
    rng = np.random.default_rng(6)
    weight = np.arange(1, rows + 1) ** -1.2
    cumulated = np.cumsum(weight / weight.sum())
    traffic = Traffic(lookups=60_000, exponent=1.2)
    seen = np.zeros(rows, bool)
    for intervals in range(1, 6):
        seen[np.minimum(np.searchsorted(cumulated, rng.random(60_000)), rows - 1)] = True
        assert traffic.fraction(rows, intervals) == pytest.approx(seen.mean(), abs=0.01)


@pytest.mark.parametrize("touched", [0.0, 1e-4, 0.26, 0.999, 1.0])
@pytest.mark.parametrize("rows", [1000, 10**6, 10**12])
def test_a_fraction_is_that_of_one_interval(touched: float, rows: int) -> None:
    traffic = Traffic(touched)
    assert traffic.fraction(rows, 1) == pytest.approx(touched, rel=1e-6)
    grown = [traffic.fraction(rows, n) for n in (0, 1, 2, 3, 10, 100)]
    assert grown == sorted(grown)
    assert grown[0] == 0
    assert grown[-1] <= 1
    assert traffic.fraction(0, 1) == 0
    assert Traffic(lookups=0).fraction(rows, 1) == Traffic(lookups=0).fraction(1, 1) == 0


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"touched": 0.1, "lookups": 5},
        {"touched": 1.1},
        {"touched": -0.1},
        {"touched": math.nan},
        {"lookups": -1},
        {"touched": 0.1, "exponent": -1},
        {"touched": 0.1, "spread": 0.5},
    ],
)
def test_traffic_that_can_not_be_is_refused(words: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=r"^traffic: "):
        Traffic(**words)


# Plans


def test_the_policy_decides_as_it_would_in_a_run() -> None:
    kinds = {name: "".join(c.kind[0] for c in plan(policy=name).checkpoints) for name in NAMED}
    assert kinds == {
        "full": 12 * "b",
        "one-shot": "b" + 11 * "s",
        "consecutive": "b" + 11 * "d",
        "intermittent": "bsssssssbsss",
    }

    seen: list[History] = []

    def mine(history: History) -> Any:
        seen.append(history)
        return "delta" if history.checkpoints else "baseline"

    found = plan([table_shape("t", 1000, 8)], policy=mine, intervals=3)
    assert found.policy == "mine"
    assert [c.chain for c in found.checkpoints] == [1, 2, 3]
    assert [len(h.checkpoints) for h in seen] == [0, 1, 2]
    assert [(h.rows_total, h.rows_marked, h.rows_since_baseline) for h in seen] == [
        (1000, 0, 0),
        (1000, 260, 260),
        (1000, 260, 338),
    ]
    # A row of 32 bytes, with its share of all that comes with it.
    assert 32 < seen[1].row_bytes < 40


def test_times_and_shares_are_plain_sums() -> None:
    shapes = [table_shape("t", 100_000, 50, columns={"a": True})]
    found = plan(shapes, bits=8, rates=RATES, intervals=3, interval_seconds=0.02, policy="one-shot", touched=0.1)
    baseline, first, second = found.checkpoints
    assert baseline.stall_seconds == pytest.approx(100_000 * 204 / 2e9)
    assert first.stall_seconds == pytest.approx(10_000 * 204 / 1e9)
    assert second.rows > first.rows == 10_000
    assert second.write_seconds == pytest.approx(second.nbytes / 5e8)
    assert found.costs.written == tuple(c.nbytes for c in found.checkpoints)
    assert found.bandwidth == pytest.approx(sum(found.costs.written) / 3 / 0.02)
    stalls = [c.stall_seconds or 0 for c in found.checkpoints]
    assert found.stall_share == pytest.approx(sum(stalls) / 0.06)
    assert found.late == 1
    without = plan(shapes, bits=8, intervals=3)
    assert without.stall_share is None
    assert {c.stall_seconds for c in without.checkpoints} == {None}


def test_merged_chains_are_written_once_more_and_read_at_once() -> None:
    options: dict[str, Any] = {"bits": 32, "policy": "consecutive", "intervals": 8, "rates": RATES, "touched": 0.3}
    found, without = plan(merge_share=0.5, **options), plan(**options)
    assert not any(c.merge for c in without.checkpoints)
    assert [bool(c.merge) for c in found.checkpoints] == [c.chain == 3 for c in found.checkpoints]
    for n, c in enumerate(found.checkpoints):
        merge = c.merge
        assert found.costs.written[n] == c.nbytes + (0 if merge is None else merge.nbytes)
        if merge is not None:
            assert merge.rows == sum(shape.count for shape in SHAPES)
            assert merge.write_seconds == pytest.approx(merge.nbytes / 5e8)
            assert found.costs.read[n] == found.costs.held[n] == merge.nbytes
            assert found.costs.meanwhile[n] == found.costs.held[n - 1] + c.nbytes + merge.nbytes
            assert merge.nbytes == pytest.approx(without.checkpoints[0].nbytes, rel=1e-3)
    # Two versions that stay need what was merged, too.
    assert plan(merge_share=0.5, keep=2, **options).costs.peak_held > found.costs.peak_held
    short = plan(most_segments=4, **{**options, "intervals": 20, "touched": 0.02})
    assert max(c.chain for c in short.checkpoints) == 4
    some = [c.merge.rows for c in short.checkpoints if c.merge is not None]
    # Of deltas alone, those rows that any of them has.
    assert min(some) > short.checkpoints[1].rows
    assert min(some) < sum(shape.count for shape in SHAPES)


def test_more_versions_take_more_storage() -> None:
    peaks = [plan(policy="full", keep=keep).costs.peak_held for keep in (1, 2, 3)]
    one = plan(policy="full").checkpoints[0].nbytes
    assert peaks == pytest.approx([one, 2 * one, 3 * one], rel=1e-3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"intervals": 0}, "intervals is an integer of at least 1"),
        ({"keep": 0}, "keep is an integer"),
        ({"merge_share": 0}, "merge_share is a number above 0"),
        ({"most_segments": 3}, "most_segments is at least 4"),
        ({"keep": True}, "keep is an integer"),
        ({"dense_bytes": -1}, "dense_bytes is an integer of at least 0"),
        ({"interval_seconds": 0}, "takes more than no time"),
        ({"interval_seconds": math.nan}, "takes more than no time"),
        ({"shapes": [table_shape("a", 1, 1)] * 2}, "table 'a' twice"),
        ({"bits": 9}, "bits are 2 to 8"),
        ({"policy": "most"}, "policy"),
        ({"quantize": {"nobody": None}}, "no table is named 'nobody'"),
    ],
)
def test_wrong_plans_are_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan(**words)


@pytest.mark.parametrize(("rows", "dim"), [(-1, 4), (1 << 49, 4), (1, 0), (1, 1 << 21)])
def test_shapes_that_no_table_has_are_refused(rows: int, dim: int) -> None:
    with pytest.raises(UsageError, match=r"^table 't': rows go to"):
        table_shape("t", rows, dim)


# Rates


def test_rates_are_measured_and_leave_nothing(tmp_path: Path) -> None:
    table = table_shape("t", 50 if INTERPRETED else 5000, 16)
    for bits in (4, 32):
        recipe = recipes_for([table], bits, None)["t", "weight"]
        found = measure_rates(tmp_path, table, recipe, threads=2)
        assert min(vars(found).values()) > 0
    assert not list(tmp_path.iterdir())
    with pytest.raises(OSError, match="missing"):
        measure_write(tmp_path / "missing")


def test_the_table_with_the_most_bytes_is_measured() -> None:
    assert largest(SHAPES).schema.name == "user"
    with pytest.raises(UsageError, match="there are no rows in any table"):
        largest([table_shape("t", 0, 4)])


@pytest.mark.parametrize("bad", [0, -1.0, math.nan, math.inf])
def test_rates_are_above_nothing(bad: float) -> None:
    with pytest.raises(UsageError, match=r"^rates: gather is a number of bytes per second above 0"):
        Rates(1.0, bad, 1.0)
