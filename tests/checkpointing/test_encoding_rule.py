"""Which encoding a table gets of a manager, and that the record says why."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt import CheckpointManager, Grid, Quantize, TableData, UsageError
from cnrfmt.checkpointing.encoding_rule import Seen, encoding_rule
from cnrfmt.cli.program import main
from cnrfmt.encodings.grid_plan import coarseness_of
from cnrfmt.format.encoding import GridLayout, RawLayout, RowwiseLayout
from cnrfmt.run_record import by_words, record_of
from tests.storage.support import QuickFs

F32 = np.float32


def tables(seed: int = 0) -> dict[str, Any]:
    """One with an optimizer's state, one without, one that isn't float32."""
    random = np.random.default_rng(seed)
    user = random.normal(0, 0.1, (50, 4)).astype(F32)
    return {
        "user": TableData(user, columns={"accumulator": random.uniform(0.1, 2, 50).astype(F32)}),
        "item": random.normal(0, 0.1, (20, 4)).astype(F32),
        "half": np.zeros((5, 4), np.float16),
    }


def saved(path: Path, **options: Any) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """How each table's weights are stored, and what the record says."""
    with CheckpointManager(path, threads=1, fs=QuickFs(), **options) as m:
        m.save(0, tables()).wait()
    return stored(path)


def stored(path: Path) -> tuple[dict[str, Any], dict[str, list[str]]]:
    with cnrfmt.open(path) as ck:
        record = record_of(ck.manifest)
        assert record is not None
        return {name: t.encoding for name, t in ck.items()}, {w: list(n) for w, n in record.encodings.items()}


def bits_of(layout: Any) -> Any:
    return "grid" if isinstance(layout, GridLayout) else "raw" if isinstance(layout, RawLayout) else layout.bits


KNOWN = {"learning_rate": 0.01, "expected_restores": 3}
NO_COLUMN = "no column tells how far"


@pytest.mark.parametrize(
    ("options", "user", "item", "says"),
    [
        ({}, 8, 8, "row-wise 8 bits: no learning rate was given"),
        ({"learning_rate": 0.01}, 8, 8, "row-wise 8 bits: how many restores are expected wasn't said"),
        ({"expected_restores": 3}, 3, 3, "row-wise 3 bits: no learning rate was given"),
        (KNOWN, "grid", 3, "grid, steps of 0.015625 (1.56 learning rates; 1.5 to the nearest power of 2)"),
        (KNOWN, "grid", 3, f"row-wise 3 bits: {NO_COLUMN}"),
        ({"learning_rate": 0.01, "failure_rate": 0.5, "run_hours": 16}, "grid", 4, "grid, steps of 0.0078125 (0.781"),
        ({"bits": 4}, 4, 4, "row-wise 4 bits: it was asked for"),
        ({"quantize": {"user": Quantize(2)}}, 2, 8, "row-wise 2 bits: it was asked for"),
        ({"encoding": "rowwise", "expected_restores": 20}, 4, 4, "row-wise 4 bits"),
        ({"encoding": "grid", **KNOWN}, "grid", "grid", "raw: weights aren't float32"),
        ({"encoding": "grid", "learning_rate": 0.01}, "grid", "grid", "grid, steps of 0.00390625 (0.391 "),
        ({"encoding": Grid(step=0.25)}, "grid", "grid", "grid, steps of 0.25"),
        ({"encoding": Grid(step=0.3)}, "grid", "grid", "grid, steps of 0.25 (0.3 to the nearest power of 2)"),
        (
            {"encoding": Grid(learning_rate=0.5, c=1, moments="raw")},
            "grid",
            "grid",
            "grid, steps of 0.5 (1 learning rate), moments raw",
        ),
        ({"encoding": {"user": Grid(step=0.25)}}, "grid", 8, "row-wise 8 bits: no learning rate was given"),
        ({"encoding": {"i*": Quantize(2)}, **KNOWN}, "grid", 2, "row-wise 2 bits"),
        ({"encoding": {"user": None}, **KNOWN}, "raw", 3, "raw"),
        ({"encoding": {"*": None}}, "raw", "raw", "raw"),
    ],
)
def test_each_table_has_the_encoding_that_was_asked_for(
    tmp_path: Path, options: dict[str, Any], user: Any, item: Any, says: str
) -> None:
    layouts, words = saved(tmp_path / "run", **options)
    assert (bits_of(layouts["user"]), bits_of(layouts["item"]), bits_of(layouts["half"])) == (user, item, "raw")
    assert any(text.startswith(says) for text in words), words


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"encoding": "best"}, "encoding is one of 'auto', 'grid', 'rowwise'"),
        ({"encoding": None}, "encoding is one of"),
        ({"encoding": {"i*": None, "user": 8}}, r"encoding\['user'\]: patterns lead to a cnrfmt.Grid"),
        ({"encoding": {"user": "grid"}}, r"encoding\['user'\]: .* or None \(raw rows\), found 'grid'"),
        ({"encoding": "grid"}, "needs learning_rate="),
        ({"encoding": "grid", "learning_rate": 0.1, "bits": 8}, "bits= is for encoding=\"rowwise\""),
        ({"encoding": Grid(step=1.0), "quantize": Quantize(8)}, "quantize= is for encoding=\"rowwise\""),
        ({"encoding": {"*": None}, "bits": 4}, "bits= is for"),
        ({"encoding": "rowwise", "learning_rate": 0.1}, "learning_rate= is for"),
        ({"bits": 4, "learning_rate": 0.1}, "bits= asks for rows without it"),
        ({"encoding": Grid(step=1.0), "learning_rate": 0.1}, "the Grid says learning_rate and restores itself"),
        ({"encoding": Grid(step=1.0), "expected_restores": 1}, "the Grid says"),
        ({"learning_rate": 0}, "learning_rate must be a number above 0"),
        ({"learning_rate": "0.1"}, "learning_rate must be a number"),
        ({"learning_rate": True}, "learning_rate must be a number"),
        ({"learning_rate": 10**400}, "learning_rate must be a number"),
        ({"learning_rate": 1e-60}, "a step of .*e-6. is none that float32 weights could have"),
        ({"learning_rate": 1e-60, "expected_restores": 3}, "a step of .*e-6. is none"),
        ({"learning_rate": 1e60, "encoding": "grid"}, "a step of .* is none"),
        ({"bits": 8, "expected_restores": 3}, "not both"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        CheckpointManager(tmp_path / "run", **options)


def test_what_is_wrong_with_patterns_is_said_of_the_argument_that_has_them(tmp_path: Path) -> None:
    for number, (options, says) in enumerate(
        (
            ({"encoding": {"usr*": Grid(step=0.25)}}, r"^encoding: no table is named 'usr\*'; the tables are user,"),
            ({"quantize": {"usr*": Quantize(8)}}, r"^quantize: no table is named 'usr\*'; the tables are user, item"),
            ({"encoding": {("user", "acumulator"): None}}, "^encoding: no column of 'user' is named 'acumulator'"),
            ({"encoding": {("user", "weight"): Grid(step=0.25)}}, "^encoding: a Grid is for a table, not for the col"),
            ({"encoding": {"half": Quantize(8)}}, r"^table 'half', .* leave it raw: encoding=\{name: None"),
            ({"encoding": {3: None}}, "^encoding: patterns are strings, or pairs"),
        )
    ):
        with pytest.raises(UsageError, match=says):
            saved(tmp_path / str(number), **options)
    # As a delta says it, too.
    with CheckpointManager(tmp_path / "run", fs=QuickFs()) as m:
        m.save(0, tables()).wait()
    with CheckpointManager(tmp_path / "run", encoding={"usr": None}, fs=QuickFs()) as m:
        m.restore()
        with pytest.raises(UsageError, match=r"^encoding: no table is named 'usr'"):
            m.save(1, tables(), kind="delta")


def test_policies_and_merging_follow_from_the_encoding(tmp_path: Path) -> None:
    for path, options, policy, share in (
        (tmp_path / "run", {}, "intermittent", None),
        (tmp_path / "run", KNOWN, "consecutive", 1.0),
        (tmp_path / "run.cnr", KNOWN, "consecutive", None),
        (tmp_path / "run", {**KNOWN, "policy": "one-shot", "merge_share": None}, "one-shot", None),
        (tmp_path / "run", {"encoding": {"a": Grid(step=1.0)}, "merge_share": 0.5}, "consecutive", 0.5),
    ):
        found = CheckpointManager(path, **options)._run.settings  # type: ignore[arg-type]
        assert (found.policy.name, found.merge_share) == (policy, share)


def test_rows_of_a_row_wise_chain_come_onto_a_grid_as_they_are_written(tmp_path: Path) -> None:
    path, live = tmp_path / "run", tables()
    saved(path)
    with CheckpointManager(path, merge_share=None, fs=QuickFs(), **KNOWN) as m:  # type: ignore[arg-type]
        m.restore(into=live)
        m.track("user", [3])
        m.save(1, live).wait()
        with cnrfmt.open(path) as ck:
            newest = next(iter(ck.view.segments[ck.manifest.chain[-1].segment].toc.tables)).parts[0].layout
            assert isinstance(ck["user"].encoding, RowwiseLayout)
            assert not newest.is_residual
            stands_alone = ck["user"][3]
        live["user"].values[3] += 0.5
        m.track("user", [3])
        m.save(2, live).wait()
        with cnrfmt.open(path) as ck:
            newest = next(iter(ck.view.segments[ck.manifest.chain[-1].segment].toc.tables)).parts[0].layout
            assert newest.is_residual
            assert not np.array_equal(ck["user"][3], stands_alone)
        # A table that is new begins with a grid at once.
        m.save(3, {**live, "new": tables(1)["user"]}).wait()
        assert isinstance(stored(path)[0]["new"], GridLayout)
        m.save(4, {**live, "new": tables(1)["user"]}, kind="baseline").wait()
        assert isinstance(stored(path)[0]["user"], GridLayout)
        assert not m._run.trackers.count


@pytest.mark.parametrize("encoding", ["auto", Grid(learning_rate=0.01, restores=3)])
def test_more_restores_than_expected_make_steps_finer(tmp_path: Path, encoding: Any) -> None:
    path, live = tmp_path / "run", tables()
    options = KNOWN if encoding == "auto" else {}
    sizes, kinds = [], []
    for step in range(6):
        with CheckpointManager(path, encoding=encoding, fs=QuickFs(), **options) as m:  # type: ignore[arg-type]
            m.restore(into=live)
            live["user"].values[:] += 0.1
            m.track("user", range(50))
            m.save(step, live).wait()
            m.wait()
            plan = m._run.bases._own.plan("user")  # type: ignore[union-attr]
            assert plan is not None
            sizes.append(coarseness_of(plan.step))
            kinds.append(m._run.lineage.checkpoints[-1].kind)
    assert sizes == pytest.approx([0.03] * 4 + [0.0125] * 2)
    assert kinds == ["baseline", "delta", "delta", "delta", "baseline", "delta"]
    assert any("5 restores where 3 were expected" in words for words in stored(path)[1])


def test_info_says_which_encoding_and_why(tmp_path: Path) -> None:
    saved(tmp_path / "run", **KNOWN)
    out = io.StringIO()
    with redirect_stdout(out):
        assert main(["info", str(tmp_path / "run")]) == 0
    assert "grid, steps of 0.015625 (1.56 learning rates; 1.5 to the nearest power of 2) (user)" in out.getvalue()
    assert "row-wise 3 bits: no column tells how far" in out.getvalue()
    out = io.StringIO()
    with redirect_stdout(out):
        main(["info", str(tmp_path / "run"), "--json"])
    assert json.loads(out.getvalue())["run"]["encodings"]["raw: weights aren't float32"] == ["half"]


def test_very_many_tables_are_not_all_named() -> None:
    found = by_words({f"t{n:03}": "a" if n else "b" for n in range(100)})
    assert found["a"][:2] == ["t001", "t002"]
    assert found["a"][-1] == "79 more"
    assert found["b"] == ["t000"]
    assert by_words({"x": "a", "y": "a"}) == {"a": []}


def test_a_rule_knows_tables_by_what_a_container_says(tmp_path: Path) -> None:
    saved(tmp_path / "run", **KNOWN)
    rule = encoding_rule("auto", None, None, 3, 0.01)
    with cnrfmt.open(tmp_path / "run") as ck:
        seen = {t.name: Seen.stored(t.schema) for t in ck.values()}
    assert seen == {name: Seen.live(table) for name, table in _live().items()}
    chosen = rule.choose(seen.values(), 0, {})
    assert isinstance(chosen.choices, dict)
    assert {name for name, value in chosen.choices.items() if isinstance(value, Grid)} == {"user"}


def _live() -> dict[str, Any]:
    from cnrfmt.checkpointing.contents import live

    return live(tables(), shards=False)


def test_a_table_that_began_empty_comes_onto_a_grid(tmp_path: Path) -> None:
    path = tmp_path / "run"

    def live(keys: range) -> dict[str, Any]:
        rows = np.full((len(keys), 4), 0.25, np.float32)
        sums = np.arange(1.0, len(keys) + 1, dtype=np.float32)
        return {"user": TableData(rows, columns={"accumulator": sums}, keys=np.array(keys, np.int64))}

    with CheckpointManager(path, fs=QuickFs(), **KNOWN) as m:  # type: ignore[arg-type]
        m.save(0, live(range(0))).wait()
        m.save(1, live(range(5))).wait()
        with cnrfmt.open(path) as ck:
            assert isinstance(ck["user"].encoding, GridLayout)
            assert len(ck["user"]) == 5
