"""Shards of tables: what one rank plans, and what all ranks agree on or refuse, each alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from cnrfmt import Deleted, Dropped, MissingKeyError, Quantize, Rows, TableData, UsageError
from cnrfmt.checkpointing.ranks.agreement import Agreement, agree, check_quantize
from cnrfmt.checkpointing.ranks.shards import Shard, ShardPlan, plan_shards
from cnrfmt.format.schema import TableSchema
from tests.checkpointing.ranks import raw
from tests.storage.support import payload

W = payload(0, 100)
G = W[:, 0].copy()
KEYS = np.array([7, -3, 1 << 60, 12], np.int64)


Schemas = tuple[TableSchema, ...]


def plans(*ranks: Mapping[str, Any], base: Schemas | None = None, quantize: Any = None) -> list[ShardPlan]:
    return [plan_shards(tables, quantize, base, raw) for tables in ranks]


def agreed(*ranks: Mapping[str, Any], base: Schemas | None = None) -> Agreement:
    return agree([plan.description for plan in plans(*ranks, base=base)], base)


def base_of(*ranks: Mapping[str, Any]) -> Schemas:
    return agreed(*ranks).tables


def test_rows_elements_and_whole_tables_come_into_global_coordinates() -> None:
    ranks = plans(
        {
            "rows": Shard(W[:40], {"g": G[:40]}, rows=(0, 40), of_rows=100),
            "elements": Shard(W[:, :3], {"g": G, "m": W[:, :3]}, elements=(0, 3), of_dim=8),
            "grid": Shard(W[40:, 2:5], rows=(40, 100), of_rows=100, elements=(2, 5), of_dim=8),
            "whole": W,
            "keyed": TableData(W[:4], keys=KEYS),
        }
    )
    writes = {write.schema.name: write for write in ranks[0].writes}
    assert {name: (w.schema.rows, w.schema.dim) for name, w in writes.items()} == {
        "rows": (100, 8),
        "elements": (100, 8),
        "grid": (100, 8),
        "whole": (100, 8),
        "keyed": (None, 8),
    }
    for name, first, count, elements in (
        ("rows", 0, 40, (0, 8)),
        ("elements", 0, 100, (0, 3)),
        ("grid", 40, 60, (2, 5)),
        ("whole", 0, 100, (0, 8)),
    ):
        write = writes[name]
        assert write.rows is not None
        assert (write.rows.ids, write.rows.first, write.rows.count) == (None, first, count)
        assert write.columns[0].range_of(8) == elements
    assert [c.range_of(8) for c in writes["elements"].columns] == [(0, 3), (0, 1), (0, 3)]
    keyed = writes["keyed"].rows
    assert keyed is not None
    assert keyed.ids is not None
    assert keyed.ids.tolist() == sorted(KEYS.tolist())


def test_ranks_agree_on_one_schema_with_ids_of_the_first_that_has_a_table() -> None:
    ranks = plans(
        {"a": Shard(W[:50], rows=(0, 50), of_rows=100)},
        {"a": Shard(W[50:], {}, rows=(50, 100), of_rows=100), "b": W},
        {"k": TableData(W[:2], keys=KEYS[:2])},
        {"k": TableData(W[2:4], keys=KEYS[2:])},
        {},
    )
    found = agree([plan.description for plan in ranks])
    assert found.content
    assert [(t.name, t.rows, t.dim) for t in found.tables] == [("a", 100, 8), ("b", 100, 8), ("k", None, 8)]
    own = [{w.schema.name: w.schema.table_id for w in plan.writes} for plan in ranks]
    assert [t.table_id for t in found.tables] == [own[0]["a"], own[1]["b"], own[2]["k"]]
    for plan in ranks:
        for write in plan.agreed(found.tables):
            assert write.schema in found.tables


def test_columns_of_one_value_are_given_by_one_rank() -> None:
    found = agreed(
        {"t": Shard(W[:, :4], elements=(0, 4), of_dim=8)},
        {"t": Shard(TableData(W[:, 4:], columns={"g": G}, fill={"g": 2.0}), elements=(4, 8), of_dim=8)},
    )
    assert [c.name for c in found.tables[0].columns] == ["weight", "g"]
    with pytest.raises(UsageError, match=r"column 'g': rank 0 .* and rank 1 .* give the same elements"):
        agreed(
            {"t": Shard(W[:, :4], {"g": G}, elements=(0, 4), of_dim=8)},
            {"t": Shard(W[:, 4:], {"g": G}, elements=(4, 8), of_dim=8)},
        )


def test_delta_goes_on_from_the_schema_of_its_base() -> None:
    base = base_of({"t": TableData(W, columns={"g": G}), "k": TableData(W[:4], keys=KEYS), "old": W})
    ids = np.array([90, 3, 50])
    ranks = plans(
        {"t": Rows(ids, W[ids], {"g": G[ids]}), "old": Dropped()},
        {"t": Shard(Rows([4, 6], W[:2, :3]), elements=(0, 3), of_dim=8)},
        {"t": Shard(Rows([6, 4], W[:2, 3:]), elements=(3, 8), of_dim=8)},
        {"k": (Rows([5], W[:1]), Deleted([7])), "t": Rows([104], W[:1], rows=110), "new": W},
        {"k": Shard((Rows([9], W[:1, :2]), Deleted([-3])), elements=(0, 2), of_dim=8)},
        base=base,
    )
    found = agree([plan.description for plan in ranks], base)
    assert found.content
    by_name = {t.name: t for t in found.tables}
    assert list(by_name) == ["t", "k", "new"]
    assert by_name["t"].rows == 110
    assert {by_name[name].table_id for name in ("t", "k")} == {t.table_id for t in base[:2]}
    shard = ranks[2].agreed(found.tables)[0]
    assert shard.schema.rows == 110
    assert shard.rows is not None
    assert shard.rows.ids is not None
    assert shard.rows.order is not None
    assert (shard.rows.ids.tolist(), shard.rows.order.tolist()) == ([4, 6], [1, 0])
    assert shard.columns[0].elements == (3, 8)
    assert ranks[4].writes[0].deleted is not None
    # Nothing changes where nobody says anything.
    assert agreed({}, {"t": Rows([], None)}, base=base) == Agreement(base, content=False)


def test_table_that_is_replaced_in_a_delta_is_another_one() -> None:
    base = base_of({"t": W})
    halves = [
        {"t": Shard(W[:, :2][:50], rows=(0, 50), of_rows=100)},
        {"t": Shard(W[:, :2][50:], rows=(50, 100), of_rows=100)},
    ]
    (table,) = agreed(*halves, base=base).tables
    assert table.dim == 2
    assert table.table_id != base[0].table_id
    elements = [{"t": Shard(W[:, a:b], elements=(a, b), of_dim=8)} for a, b in ((0, 4), (4, 8))]
    assert agreed(*elements, base=base).tables[0].table_id != base[0].table_id
    with pytest.raises(UsageError, match="table 't': is new: rank 0 says True, and rank 1 says False"):
        agreed(halves[0], {"t": Rows([1], W[:1])}, base=base)
    with pytest.raises(UsageError, match="the ranks together give 100 of 100 rows x 2 elements"):
        agreed(halves[0], base=base)


def test_shards_without_rows_are_shards() -> None:
    found = agreed(
        {"t": Shard(W[:0], {"g": G[:0]}, rows=(0, 0), of_rows=100), "empty": W[:0]},
        {"t": Shard(W, {"g": G}, rows=(0, 100), of_rows=100), "empty": Shard(W[:0], rows=(0, 0), of_rows=0)},
    )
    assert [t.rows for t in found.tables] == [100, 0]


def shard(**options: Any) -> dict[str, Any]:
    return {"t": Shard(W[:50], **options)}


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (shard(rows=(0, 50)), "rows and of_rows go together"),
        (shard(of_rows=100), "rows and of_rows go together"),
        (shard(elements=(0, 8)), "elements and of_dim go together"),
        (shard(rows=(0, 40), of_rows=100), r"rows=\(0, 40\) are 40 rows, and the values have 50"),
        (shard(elements=(0, 4), of_dim=8), r"elements=\(0, 4\) are 4 elements, and the values have 8"),
        (shard(rows=(60, 110), of_rows=100), "rows 60 to 110 don't lie within of_rows=100"),
        (shard(rows=(-1, 49), of_rows=100), "rows -1 to 49"),
        (shard(rows=(50, 0), of_rows=100), "rows 50 to 0"),
        (shard(elements=(3, 3), of_dim=8), "elements 3 to 3"),
        (shard(elements=(0, 8), of_dim=1 << 21), "at most 1048576"),
        (shard(rows=(0, 50.0), of_rows=100), "rows are two integers"),
        (shard(rows=5, of_rows=100), "rows are two integers"),
        (shard(rows=(0, 50), of_rows=True), "of_rows is one; found"),
        ({"t": Shard(TableData(W, keys=range(100)), rows=(0, 100), of_rows=100)}, "have ids of their own"),
        ({"t": Shard(TableData(W), {"g": G})}, "give columns to the TableData in the Shard, or to the Shard"),
        ({"t": Shard(Shard(W))}, "a Shard holds an array, a TableData or Rows, found Shard"),
        ({"t": Shard(Dropped())}, "found Dropped"),
        ({"t": Shard(Rows([1], W[:1]))}, "Rows changes a table that is there"),
        ([W], "tables must be a dict"),
    ],
)
def test_shards_that_make_no_sense(tables: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan_shards(tables, None)


def test_rows_of_a_shard_fit_the_table_of_the_base() -> None:
    base = base_of({"t": W})
    with pytest.raises(UsageError, match="of_dim is 16, and the table's dim is 8"):
        plans({"t": Shard(Rows([1], W[:1, :4]), elements=(0, 4), of_dim=16)}, base=base)
    with pytest.raises(UsageError, match="the rows of this shard have ids of their own"):
        plans({"t": Shard(Rows([1], W[:1]), rows=(0, 1), of_rows=100)}, base=base)
    with pytest.raises(UsageError, match="4 elements per row where the table's dim is 3"):
        plans({"t": Shard(Rows([1], W[:1, :4]), elements=(0, 3), of_dim=8)}, base=base)


HALF = Shard(W[:50], {"g": G[:50]}, rows=(0, 50), of_rows=100)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (Shard(W[50:, :4], rows=(50, 100), of_rows=100), "table 't': dim: rank 0 says 8, and rank 1 says 4"),
        (TableData(W[:50], keys=range(50)), "table 't': is keyed: rank 0 says False, and rank 1 says True"),
        (Shard(W[50:], rows=(50, 100), of_rows=101), "table 't': rows: rank 0 says 100, and rank 1 says 101"),
        (Shard(W[50:].astype("f8"), rows=(50, 100), of_rows=100), "column 'weight': dtype: rank 0 says 'float32'"),
        (Shard(TableData(W[50:], fill=1), rows=(50, 100), of_rows=100), "column 'weight': fill: rank 0 says"),
        (Shard(W[50:], {"g": W[50:]}, rows=(50, 100), of_rows=100), "column 'g': per_row: rank 0 says True"),
        (
            Shard(W[49:], {"g": G[49:]}, rows=(49, 100), of_rows=100),
            r"rank 0 \(rows 0 to 49, elements 0 to 7\) and rank 1 \(rows 49 to 99, elements 0 to 7\) give the same",
        ),
        (
            Shard(W[51:], {"g": G[51:]}, rows=(51, 100), of_rows=100),
            r"column 'weight': the ranks together give 792 of 100 rows x 8 elements: rank 0 \(rows 0 to 49",
        ),
        (Shard(W[50:], rows=(50, 100), of_rows=100), "column 'g': the ranks together give 50 of 100 rows x 1"),
        (Shard(W[50:, :4], rows=(50, 100), of_rows=100, elements=(0, 4), of_dim=8), "give 600 of 100 rows x 8"),
        (Shard(W[:0], rows=(0, 0), of_rows=100), "give 400 of 100 rows x 8"),
    ],
)
def test_what_ranks_disagree_on_is_refused(other: Any, message: str) -> None:
    for ranks in (({"t": HALF}, {"t": other}), ({"t": HALF}, {"t": other}, {"u": W})):
        with pytest.raises(UsageError, match=message):
            agreed(*ranks)


def test_deltas_that_do_not_fit_together_are_refused() -> None:
    base = base_of({"t": W, "old": W})
    with pytest.raises(UsageError, match="rank 1 writes it, and rank 0 drops it"):
        agreed({"old": Dropped()}, {"old": Rows([1], W[:1])}, base=base)
    with pytest.raises(MissingKeyError, match="table 'gone' can't be dropped: there is no such table"):
        agree([plans({"old": Dropped()}, base=base)[0].description.replace(b'"old"', b'"gone"')], base)
    with pytest.raises(UsageError, match="rows: rank 0 says 110, and rank 2 says 90"):
        agreed({"t": Rows([], rows=110)}, {"t": Rows([1], W[:1])}, {"t": Rows([], rows=90)}, base=base)
    with pytest.raises(UsageError, match=r"rank 1 \(rows 95 to 95, .*\) reaches beyond the 90 rows"):
        agreed({"t": Rows([], rows=90)}, {"t": Rows([95], W[:1])}, base=base)
    with pytest.raises(UsageError, match="give the same elements"):
        agreed({"t": Rows([4], W[:1])}, {"t": Rows([3, 4, 5], W[:3])}, base=base)
    # Rows among others may be different ones: that shows when they are looked at.
    assert agreed({"t": Rows([4], W[:1])}, {"t": Rows([3, 5], W[:2])}, base=base).content
    assert agreed({"old": Dropped()}, {"old": Dropped()}, base=base).tables == base[:1]


def test_too_many_columns_of_all_ranks_together_are_refused() -> None:
    many = [{f"{rank}-{n}": G for n in range(200)} for rank in range(2)]
    with pytest.raises(UsageError, match="at most 256 columns"):
        agreed(
            {"t": Shard(W[:, :4], many[0], elements=(0, 4), of_dim=8)},
            {"t": Shard(W[:, 4:], many[1], elements=(4, 8), of_dim=8)},
        )


def test_quantisation_of_tables_that_other_ranks_have() -> None:
    quantize = {"t": Quantize(8), ("t", "g"): None, "u": Quantize(4), ("v", "m*"): Quantize(4)}
    mine, other = plans({"t": TableData(W)}, {"u": W, "v": TableData(W, columns={"m1": W})}, quantize=quantize)
    assert mine.writes[0].columns[0].recipe.layout.row_bytes(8) == 8 + 8
    assert other.writes[0].columns[0].recipe.layout.row_bytes(8) == 4 + 4
    tables = agree([mine.description, other.description]).tables
    with pytest.raises(UsageError, match="no column of 't' is named 'g'"):
        check_quantize(quantize, tables)
    quantize.pop(("t", "g"))
    check_quantize(quantize, tables)
    with pytest.raises(UsageError, match="no table is named 'w'"):
        check_quantize({"w": Quantize(4)}, (), tables)


def test_recipes_of_a_shard_are_those_of_its_table() -> None:
    base = base_of({"t": W})
    asked: list[TableSchema] = []

    def recipe(table: TableSchema, column: Any) -> Any:
        asked.append(table)
        return raw(table, column)

    plan_shards({"t": Shard(Rows([1], W[:1, :4]), elements=(0, 4), of_dim=8)}, None, base, recipe)
    assert asked == [base[0]]
