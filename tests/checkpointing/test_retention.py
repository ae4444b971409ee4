"""Which checkpoints `kept` keeps, beside a plain reading of the rules."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from cnrfmt.checkpointing.keeping.retention import EVERYTHING, Keep, keep_of, kept
from cnrfmt.errors import UsageError
from cnrfmt.run_record import CheckpointRecord, RunRecord


def at(seconds: int) -> str:
    return datetime.fromtimestamp(1_700_000_000 + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def record(
    version: int, step: int | None = None, kind: str = "delta", seconds: int = 0, **metrics: float
) -> CheckpointRecord:
    return CheckpointRecord(version, step, at(seconds), kind, 1, 100, 8, 1, metrics)


def of(keep: Keep, checkpoints: Sequence[CheckpointRecord], **tags: int) -> list[int]:
    return sorted(kept(keep, checkpoints, tags, checkpoints[-1].version))


RUN = [record(v, step=s) for v, s in enumerate([0, 40, 90, 100, 150, 230, 400, 401])]


def test_the_last_ones_stay() -> None:
    assert of(Keep(last=3), RUN) == [5, 6, 7]
    assert of(Keep(last=99), RUN) == list(range(8))
    assert of(keep_of(1), RUN) == [7]
    assert of(keep_of(np.int32(2)), RUN) == [6, 7]
    assert of(keep_of(None), RUN) == list(range(8))
    assert keep_of(EVERYTHING) is EVERYTHING


def test_the_first_at_or_after_each_multiple_of_the_steps_stays() -> None:
    assert of(Keep(every_steps=100), RUN) == [0, 3, 5, 6, 7]
    # A run that went back to step 90 keeps what it makes of step 100 the second time.
    again = [*RUN[:5], record(5, step=95), record(6, step=110), record(7, step=120), record(8)]
    assert of(Keep(every_steps=100), again) == [0, 3, 5, 6, 8]
    # One without a step stands between nothing.
    assert of(Keep(every_steps=100), [RUN[0], record(1), record(2, step=50), record(3)]) == [0, 3]


def test_the_first_in_each_span_of_time_stays() -> None:
    # 1,700,000,000 is 20 seconds after a full minute.
    run = [record(v, seconds=s) for v, s in enumerate([0, 10, 39, 40, 80, 300, 310])]
    assert of(Keep(every_minutes=1), run) == [0, 3, 5, 6]
    assert of(Keep(every_minutes=0.5), run) == [0, 1, 3, 4, 5, 6]
    unknown = [run[0], CheckpointRecord(1, None, "yesterday", "delta", 0, 0, 8, 1), run[-1]]
    assert of(Keep(every_minutes=60), unknown) == [0, 6]


def test_the_best_stay() -> None:
    losses = [0.5, 0.3, None, 0.3, float("nan"), 0.1, 0.9, 0.8]
    run = [record(v, **({} if x is None else {"loss": x})) for v, x in enumerate(losses)]
    assert of(Keep(best=("loss", 2, "min")), run) == [3, 5, 7]
    assert of(Keep(best=("loss", 3, "min")), run) == [1, 3, 5, 7]
    assert of(Keep(best=("loss", 1, "max")), run) == [6, 7]
    assert of(Keep(best=("auc", 1, "max")), run) == [7]


def test_rules_add_up_and_tags_stay() -> None:
    keep = Keep(last=1, every_steps=400, where=lambda c: c.step == 90)
    assert of(keep, RUN) == [0, 2, 6, 7]
    assert of(keep, RUN, prod=4, gone=99) == [0, 2, 4, 6, 7]


MERGED = [
    record(0, step=0, kind="baseline", auc=0.9),
    record(1, step=10, auc=0.5),
    record(2, step=10, kind="merge"),
    record(3, step=10, kind="merge"),
    record(4, step=20, auc=0.7),
    record(5, step=20, kind="merge"),
]


def test_a_merge_stands_for_its_checkpoint() -> None:
    assert of(Keep(last=1), MERGED) == [5]
    assert of(Keep(last=2), MERGED) == [3, 5]
    assert of(Keep(last=3), MERGED) == [0, 3, 5]
    # It is judged by what the checkpoint was.
    assert of(Keep(best=("auc", 2, "max")), MERGED) == [0, 5]
    assert of(Keep(where=lambda c: c.version == 1), MERGED) == [3, 5]
    # A tag names a version, and no other stands for it.
    assert of(Keep(last=1), MERGED, prod=1) == [1, 5]


def test_a_merge_whose_checkpoint_is_gone_is_one_of_its_own() -> None:
    there = [0, 3, 4, 5]
    assert kept(Keep(last=2), MERGED, {}, 5, there) == {3, 5}
    assert kept(Keep(last=3), MERGED, {}, 5, there) == {0, 3, 5}
    assert kept(Keep(best=("auc", 3, "max")), MERGED, {}, 5, there) == {0, 3, 5}
    # The record of a run keeps what tells them apart.
    run = RunRecord("0" * 32, checkpoints=(*MERGED[:4], record(4, kind="baseline"), record(5, kind="merge")))
    assert [c.version for c in run.only({0, 3, 5}).checkpoints] == [0, 1, 3, 4, 5]
    assert [c.version for c in run.only({0, 4}).checkpoints] == [0, 4, 5]


def test_what_nothing_is_known_of_counts_as_a_checkpoint() -> None:
    assert kept(Keep(last=2), RUN[:3], {}, 9, [0, 1, 2, 5, 9]) == {5, 9}
    assert kept(Keep(every_steps=50), RUN[:3], {}, 9, [0, 1, 2, 5, 9]) == {0, 2, 9}
    assert kept(Keep(where=lambda c: c.created == ""), RUN[:3], {}, 9, [0, 1, 2, 5, 9]) == {5, 9}


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({}, "names no rule"),
        ({"last": 0}, "last is an integer of at least 1, found 0"),
        ({"last": True}, "last is an integer"),
        ({"last": 2.0}, "last is an integer"),
        ({"every_steps": -1}, "every_steps is an integer of at least 1, found -1"),
        ({"every_minutes": 0}, "every_minutes is a number above 0"),
        ({"every_minutes": float("nan")}, "every_minutes is a number above 0"),
        ({"every_minutes": float("inf")}, "every_minutes is a number above 0"),
        ({"every_minutes": "5"}, "every_minutes is a number above 0"),
        ({"best": "auc"}, "best is a metric, a number and"),
        ({"best": ("auc", 1)}, "best is a metric, a number and"),
        ({"best": (1, 1, "min")}, "name of a metric is a string, found 1"),
        ({"best": ("auc", 0, "min")}, "the number of checkpoints by 'auc' is an integer"),
        ({"best": ("auc", 1, "top")}, 'with the "min" or the "max", found \'top\''),
        ({"where": 5}, "where is a function"),
    ],
)
def test_rules_that_are_none(rules: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Keep(**rules)


@pytest.mark.parametrize("keep", [True, 2.5, "3", [1]])
def test_words_that_are_none(keep: Any) -> None:
    with pytest.raises(UsageError, match="a number of checkpoints"):
        keep_of(keep)
    with pytest.raises(UsageError, match="last is an integer of at least 1"):
        keep_of(0)


# --- properties --------------------------------------------------------------------------------------------------

KEEPS = st.builds(
    Keep,
    last=st.none() | st.integers(1, 6),
    every_steps=st.none() | st.integers(1, 12),
    every_minutes=st.none() | st.sampled_from([0.1, 1.0, 7.5]),
    best=st.none() | st.tuples(st.just("auc"), st.integers(1, 3), st.sampled_from(["min", "max"])),
    where=st.just(lambda c: c.version % 5 == 0),
)


@st.composite
def runs(draw: st.DrawFn) -> list[CheckpointRecord]:
    """Steps that may go back, times that don't, some merges, metrics with ties."""
    found, seconds = [], 0
    for version in range(draw(st.integers(1, 25))):
        kind = draw(st.sampled_from(["delta", "delta", "merge"])) if version else "baseline"
        seconds += draw(st.integers(0, 100))
        metrics = {"auc": draw(st.integers(0, 3)) / 4} if draw(st.booleans()) else {}
        found.append(record(version, draw(st.none() | st.integers(0, 40)), kind, seconds, **metrics))
    return found


def plainly(keep: Keep, run: list[CheckpointRecord], tags: dict[str, int]) -> set[int]:
    """The rules read slowly, one checkpoint after the other."""
    heads = [i for i, c in enumerate(run) if c.kind != "merge"]
    result = {run[-1].version, *tags.values()}
    for place, i in enumerate(heads):
        end = heads[place + 1] if place + 1 < len(heads) else len(run)
        c, before = run[i], [run[j] for j in heads[:place]]
        wanted = c.version % 5 == 0
        if keep.last is not None:
            wanted |= len(heads) - place <= keep.last
        if keep.every_steps is not None and c.step is not None:
            steps = [b.step for b in before if b.step is not None]
            wanted |= not steps or steps[-1] // keep.every_steps != c.step // keep.every_steps
        if keep.every_minutes is not None:
            span = 60 * keep.every_minutes
            times = [datetime.fromisoformat(b.created).timestamp() for b in [*before[-1:], c]]
            wanted |= len(times) == 1 or times[0] // span != times[1] // span
        if keep.best is not None and "auc" in c.metrics:
            sign = 1 if keep.best[2] == "max" else -1
            better = 0
            for j in heads:
                other = run[j]
                if "auc" in other.metrics and j != i:
                    gain = sign * (other.metrics["auc"] - c.metrics["auc"])
                    better += gain > 0 or (gain == 0 and j > i)
            wanted |= better < keep.best[1]
        if wanted:
            result.add(run[end - 1].version)
    return result


@given(KEEPS, runs(), st.dictionaries(st.text(min_size=1), st.integers(0, 24), max_size=2))
def test_kept_is_what_the_rules_say(keep: Keep, run: list[CheckpointRecord], tags: dict[str, int]) -> None:
    tags = {name: version for name, version in tags.items() if version < len(run)}
    found = kept(keep, run, tags, run[-1].version)
    assert found == plainly(keep, run, tags)
    # What stayed once stays, as long as nothing new comes.
    assert kept(keep, run, tags, run[-1].version, found) == found


@given(KEEPS, runs())
def test_giving_up_at_each_checkpoint_or_at_the_end_is_the_same(keep: Keep, run: list[CheckpointRecord]) -> None:
    there: set[int] = set()
    for count, newest in enumerate(run, 1):
        there = kept(keep, run[:count], {}, newest.version, there | {newest.version})
    assert there == kept(keep, run, {}, run[-1].version)
