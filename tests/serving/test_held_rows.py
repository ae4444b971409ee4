"""Which rows are held: by range, list and shard, dense and keyed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt.serving.held_rows import Wanted

KEYS = np.array([-5, 3, 7, 100, 2**62])


@pytest.fixture
def ck(tmp_path: Path) -> Any:
    cnrfmt.save(
        tmp_path / "run",
        {"d": np.zeros((10, 2), np.float32), "k": cnrfmt.TableData(np.zeros((5, 2), np.float32), keys=KEYS)},
    )
    with cnrfmt.open(tmp_path / "run") as found:
        yield found


def held(ck: cnrfmt.Checkpoint, table: str, **options: Any) -> list[int]:
    return list(Wanted(**options).choice(ck[table]).of(ck[table]))


def test_ranges_and_lists(ck: cnrfmt.Checkpoint) -> None:
    assert held(ck, "d") == list(range(10))
    assert held(ck, "d", rows={"d": (2, 5)}) == [2, 3, 4]
    assert held(ck, "d", rows={"d": slice(-3, None)}) == [7, 8, 9]
    assert held(ck, "d", rows={"d": [7, 1, 7]}) == [1, 7]
    assert held(ck, "d", rows={"k": [3]}) == list(range(10))
    assert held(ck, "k") == KEYS.tolist()
    assert held(ck, "k", rows={"k": [100, -5]}) == [-5, 100]


@pytest.mark.parametrize("table", ["d", "k"])
@pytest.mark.parametrize("by", [None, "range", "hash"])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 20])
def test_shards_hold_every_row_once(ck: cnrfmt.Checkpoint, table: str, by: Any, count: int) -> None:
    shards = [held(ck, table, shard=(n, count), shard_by=by) for n in range(count)]
    assert sorted(id_ for shard in shards for id_ in shard) == held(ck, table)
    if table == "k" or by != "range":
        for number, shard in enumerate(shards):
            assert (cnrfmt.shard_of(shard, count) == number).all()


def test_the_hash_is_the_one_that_is_documented() -> None:
    def mixed(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x ^ x >> 31

    ids = [0, 1, -1, 2**63 - 1, -(2**63), 123456789]
    assert cnrfmt.shard_of(ids, 1000).tolist() == [mixed(id_ % 2**64) % 1000 for id_ in ids]


def test_rows_that_come_later_belong_to_somebody(ck: cnrfmt.Checkpoint) -> None:
    later = np.array([10, 11, 50])
    for by in ("range", "hash"):
        choices = [Wanted(shard=(n, 3), shard_by=by).choice(ck["d"]) for n in range(3)]  # type: ignore[arg-type]
        assert sum(choice.among(later).astype(int) for choice in choices).tolist() == [1, 1, 1]
    assert not Wanted(rows={"d": (0, 10)}).choice(ck["d"]).among(later).any()
    assert not Wanted(rows={"d": [1]}).choice(ck["d"]).among(later).any()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"shard": (3, 3)}, r"shard is \(number, of how many\).*found \(3, 3\)"),
        ({"shard": 2}, "shard is"),
        ({"shard": (True, 3)}, "shard is"),
        ({"shard_by": "hash"}, "give shard="),
        ({"shard": (0, 2), "shard_by": "rows"}, "shard_by is 'range' or 'hash', found 'rows'"),
        ({"shard": (0, 2), "rows": {"d": (0, 1)}}, r"rows\['d'\] and shard both say"),
        ({"rows": {"d": (3, 11)}}, r"rows\['d'\]: a range \(first, end\) of the 10 rows"),
        ({"rows": {"d": (3, 2)}}, "a range"),
        ({"rows": {"d": slice(0, 9, 2)}}, "a slice of step 1"),
        ({"rows": {"d": [10]}}, r"rows\['d'\]: table 'd' has no row 10"),
        ({"rows": {"d": [1.5]}}, r"rows\['d'\] must be integers"),
    ],
)
def test_what_is_refused(ck: cnrfmt.Checkpoint, options: dict[str, Any], text: str) -> None:
    with pytest.raises(cnrfmt.UsageError, match=text):
        held(ck, "d", **options)


def test_keys_are_no_ranges(ck: cnrfmt.Checkpoint) -> None:
    with pytest.raises(cnrfmt.UsageError, match="a slice of step 1 of a dense table"):
        held(ck, "k", rows={"k": slice(0, 2)})
    with pytest.raises(cnrfmt.MissingKeyError, match="table 'k' has no key 4"):
        held(ck, "k", rows={"k": [3, 4]})
