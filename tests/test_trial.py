"""`try_quantization`: what it says that each way would make of the rows is what a save makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import cnrfmt
from cnrfmt import Quantize, TableData
from cnrfmt.integrations.convert import convert
from cnrfmt.trial import Attempt, ColumnTrial, measure, plot

F32 = np.float32


@pytest.fixture(autouse=True)
def hardly_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_LEAST_TIMED", 1)
    monkeypatch.setattr(measure, "_MOST_TIMED", 1)


@pytest.fixture
def tables() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    weight = rng.normal(size=(90, 13)).astype(F32)
    weight[7, 2], weight[8, 0], weight[20], weight[30] = np.nan, np.inf, 0, 1.5
    accumulator = np.abs(rng.normal(size=90)).astype(F32)
    accumulator[3] = -1
    momentum = rng.normal(size=(90, 13)).astype(F32)
    return {
        "user": TableData(weight, columns={"accumulator": accumulator, "momentum": momentum}),
        "half": weight.astype(np.float16),
        "none": np.empty((0, 4), F32),
        "item": TableData(weight[:9, :8], keys=np.arange(9)[::-1] ** 3),
    }


def figures(column: ColumnTrial) -> list[Any]:
    """All that isn't a measured speed."""
    return [
        (a.word, a.recipe, a.bytes_per_row, a.share, a.mean_error, a.max_error, a.exact_rows, a.best)
        for a in column.attempts
    ]


SCHEMES = [
    Quantize(8),
    Quantize(4, layout="head"),
    Quantize(2, method="symmetric"),
    Quantize(5, group=8),
    Quantize(3, method="adaptive", max_error=0.2, one_valued="log8"),
    Quantize(3, method="lsq", never_worse=True, one_valued="bfloat16"),
    Quantize(4, method="kmeans", block=16, one_valued="log16"),
    Quantize(2, method="kmeans", one_valued="raw"),
    Quantize("auto", restores=2),
    Quantize("auto", mean_error=1e-9),
]


def test_a_save_makes_of_the_rows_what_the_trial_says(tables: dict[str, Any], tmp_path: Path) -> None:
    found = cnrfmt.try_quantization(tables, schemes=SCHEMES)
    assert [(c.table, c.column, c.rows, c.width, c.tried_rows, c.one_valued) for c in found.columns] == [
        ("user", "weight", 90, 13, 90, False),
        ("user", "accumulator", 90, 1, 90, True),
        ("item", "weight", 9, 8, 9, False),
    ]
    assert found.skipped == ["half.weight (float16)", "none.weight (no rows)"]
    for column in found.columns:
        assert len(column.attempts) == (5 if column.one_valued else len(SCHEMES))
        for attempt in column.attempts:
            check_attempt(column, attempt, tables, tmp_path)


def check_attempt(column: ColumnTrial, attempt: Attempt, tables: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "saved.cnr"
    # Items have no columns of one value per row, and momentum is raw unless it is named.
    cnrfmt.save(path, {column.table: tables[column.table]}, quantize=attempt.quantize)
    with cnrfmt.open(path) as ck:
        (segment,) = ck.view.segments.values()
        (entry,) = segment.toc.tables
        lengths = [length for _, length in segment.toc.sections]
        main, *rest = [part for part in entry.parts if part.column == column.column]
        exact = sum(entry.row_sets[part.rows].count for part in rest)
        stored = lengths[main.section] + (0 if main.codebooks is None else lengths[main.codebooks])
        stored += sum(lengths[part.section] for part in rest)
    assert (attempt.recipe.layout, attempt.recipe.scheme) == (main.layout, main.scheme)
    assert attempt.exact_rows == exact
    assert attempt.bytes_per_row * column.rows == pytest.approx(stored)
    assert attempt.share == pytest.approx(stored / (4 * column.width * column.rows))
    assert attempt.mean_error == pytest.approx(main.errors.mean)
    assert attempt.max_error == pytest.approx(main.errors.worst)
    assert attempt.encode_rate > 0
    assert attempt.decode_rate > 0


def test_unless_told_every_method_is_tried_with_all_of_its_bits(tables: dict[str, Any]) -> None:
    user, accumulator, _ = cnrfmt.try_quantization(tables).columns
    uniform = ("symmetric", "asymmetric", "adaptive", "lsq")
    expected = {(method, bits) for method in uniform for bits in range(2, 9)} | {("kmeans", b) for b in (2, 3, 4)}
    assert {(a.method, a.recipe.layout.bits) for a in user.attempts} == expected  # type: ignore[union-attr]
    assert {a.quantize.one_valued for a in accumulator.attempts} == {"log8", "log12", "log16", "bfloat16"}
    for column in (user, accumulator):
        points = [(a.bytes_per_row, a.mean_error) for a in column.attempts]
        assert points == sorted(points)
        for attempt in column.attempts:
            less = [error for size, error in points if size <= attempt.bytes_per_row]
            if attempt.best:
                assert attempt.mean_error == min(less)
            else:
                assert any(
                    size <= attempt.bytes_per_row
                    and error <= attempt.mean_error
                    and (size, error) != (attempt.bytes_per_row, attempt.mean_error)
                    for size, error in points
                )
        assert any(a.best for a in column.attempts)


def test_words_are_those_that_the_command_takes(tables: dict[str, Any]) -> None:
    from cnrfmt.cli.quantization import schemes_of

    tried = (*SCHEMES, Quantize(4, method="adaptive", num_bins="auto", ratio=0.25), Quantize(7, params="bfloat16"))
    for attempt in (
        cnrfmt.try_quantization(tables, tables=["user"], columns=["weight"], schemes=tried).columns[0].attempts
    ):
        assert schemes_of([attempt.word]) == [attempt.quantize]


def test_columns_that_are_named(tables: dict[str, Any]) -> None:
    found = cnrfmt.try_quantization(tables, columns=["mom*"], schemes=[Quantize(4)])
    assert [(c.table, c.column, c.width) for c in found.columns] == [("user", "momentum", 13)]
    assert found.skipped == []


def test_the_sample_is_drawn_by_lot_and_always_the_same() -> None:
    values = np.random.default_rng(0).normal(size=(5000, 4)).astype(F32)
    # A row's number is in it.
    values[:, 0] = np.arange(5000)
    source = measure.as_source(values, what="t")
    sample = measure._sample(source, 700)
    numbers = sample[:, 0].astype(int)
    assert sample.shape == (700, 4)
    assert (np.diff(numbers) > 0).all()
    assert numbers[-1] > 4900
    assert numbers[0] < 100
    assert np.array_equal(sample, values[numbers])
    assert np.array_equal(sample, measure._sample(source, 700))
    assert len(measure._sample(source, 6000)) == 5000
    found = cnrfmt.try_quantization({"t": values}, schemes=[Quantize(4)], rows=700).columns[0]
    assert (found.rows, found.tried_rows) == (5000, 700)


def test_unless_told_a_sample_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    source = measure.as_source(np.zeros((1000, 16), F32), what="t")
    monkeypatch.setattr(measure, "_MOST_BYTES", 300 * 64)
    assert len(measure._sample(source, None)) == 300
    monkeypatch.setattr(measure, "_MOST_ROWS", 200)
    assert len(measure._sample(source, None)) == 200
    monkeypatch.setattr(measure, "_MOST_BYTES", 1)
    assert len(measure._sample(source, None)) == 1
    assert len(measure._sample(source, 900)) == 900


def test_rows_are_encoded_in_chunks_as_a_save_does(tables: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    schemes = [Quantize(4), Quantize(4, method="kmeans", block=16), Quantize(8, one_valued="log8")]
    whole = cnrfmt.try_quantization(tables, schemes=schemes)
    monkeypatch.setattr(measure, "_CHUNK", 40 * 4)
    pieces = cnrfmt.try_quantization(tables, schemes=schemes)
    for a, b in zip(whole.columns, pieces.columns, strict=True):
        for one, other in zip(a.attempts, b.attempts, strict=True):
            assert one.recipe == other.recipe
            assert (one.bytes_per_row, one.exact_rows) == (other.bytes_per_row, other.exact_rows)
            assert one.mean_error == pytest.approx(other.mean_error)


@pytest.mark.parametrize("suffix", [".cnr", ".npz", ".safetensors", ".h5", ""])
def test_files_of_every_kind(suffix: str, tables: dict[str, Any], tmp_path: Path) -> None:
    path, container = tmp_path / f"model{suffix}", tmp_path / "model.cnr"
    cnrfmt.save(container, tables, dense={"mlp": np.ones((3, 3), F32), "bias": np.ones(3, F32)})
    if suffix == "":
        cnrfmt.save(path, tables)
    elif suffix != ".cnr":
        convert(container, path)
    expected = cnrfmt.try_quantization(tables, schemes=[Quantize(4)])
    found = cnrfmt.try_quantization(path, schemes=[Quantize(4)])
    assert found.source == str(path)
    assert sorted(c.table for c in found.columns) == ["item", "user", "user"]
    of = {(c.table, c.column): figures(c) for c in found.columns}
    for column in expected.columns:
        # A keyed table's rows are in another order, but for all of them that doesn't matter.
        for one, other in zip(of[column.table, column.column], figures(column), strict=True):
            assert one[:4] == other[:4]
            assert one[4:] == pytest.approx(other[4:])


def test_of_a_container_any_version_and_rows_that_are_quantised_already(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(20, 8)).astype(F32)
    path = tmp_path / "run"
    cnrfmt.save(path, {"t": TableData(values, columns={"g": np.abs(values[:, 0])})}, quantize={"t": Quantize(8)})
    cnrfmt.append(path, {"t": cnrfmt.Rows(range(20), 0 * values)})
    newest = cnrfmt.try_quantization(path, schemes=[Quantize(8)])
    oldest = cnrfmt.try_quantization(path, schemes=[Quantize(8)], version=0)
    assert [c.is_quantised for c in newest.columns] == [True, True]
    assert newest.columns[0].attempts[0].mean_error == 0
    # Codes of decoded rows are those that they were decoded from.
    assert oldest.columns[0].attempts[0].mean_error < 1e-6
    with pytest.raises(cnrfmt.VersionNotFoundError):
        cnrfmt.try_quantization(path, version=9)


def test_other_arrays_of_a_file_arent_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    arrays = {"user": np.ones((4, 2), F32), "item": np.ones((4, 2), F32), "scale": np.ones(7, F32)}
    save_file(arrays, path)
    found = cnrfmt.try_quantization(path, tables=["us*"], schemes=[Quantize(4)])
    assert [c.table for c in found.columns] == ["user"]
    with path.open("r+b") as f:
        f.truncate(100)
    with pytest.raises(cnrfmt.DamagedError):
        cnrfmt.try_quantization(path)


def test_wrong_calls(tables: dict[str, Any], tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", t=np.ones((3, 3), F32))
    for source, options, message in (
        (tables, {"rows": 0}, "rows is an integer"),
        (tables, {"schemes": [4]}, "schemes is a list of at least one Quantize"),
        (tables, {"tables": ["x"]}, "the tables: no table matches 'x'"),
        (tables, {"columns": ["x"]}, "the tables: no column matches 'x'"),
        (tables, {"tables": ["half", "none"]}, r"no float32 rows to try anything on; half.weight \(float16\); none"),
        (tables, {"version": 1}, "only containers have versions"),
        ({"t": np.ones(3, F32)}, {}, "matrix of rows x dim"),
        (tmp_path / "m.npz", {"version": 1}, "only containers have versions"),
        (tmp_path / "m.what", {}, "format can't be told"),
    ):
        with pytest.raises(cnrfmt.UsageError, match=message):
            cnrfmt.try_quantization(source, **options)  # type: ignore[arg-type]
    with pytest.raises(cnrfmt.StorageError, match="no such file"):
        cnrfmt.try_quantization(tmp_path / "none.npz")


def test_it_says_how_far_it_is_and_all_of_it_as_json(tables: dict[str, Any]) -> None:
    seen: list[tuple[int, int]] = []
    found = cnrfmt.try_quantization(tables, schemes=SCHEMES[:3], progress=lambda *args: seen.append(args))
    assert seen == [(n, 7) for n in range(1, 8)]
    said = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert [c["column"] for c in said["columns"]] == ["weight", "accumulator", "weight"]
    first = said["columns"][0]["attempts"][0]
    assert (first["quantize"], first["encoding"]["bits"], first["scheme"]["method"]) == (
        "2:symmetric",
        2,
        "symmetric",
    )


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_it_is_drawn(suffix: str, tables: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"errors.{suffix}"
    trials = [cnrfmt.try_quantization(tables), cnrfmt.try_quantization(tables, tables=["item"], schemes=SCHEMES)]
    assert plot.draw(trials, path) == 0
    assert path.stat().st_size > 10_000
    if suffix == "svg":
        text = path.read_text()
        for word in ("user.weight: 90 rows of 13", "user.accumulator", "kmeans", "logarithmic", "bytes per row"):
            assert f"<!-- {word}" in text
    monkeypatch.setattr(plot, "_MOST_SHOWN", 3)
    assert plot.draw(trials, path) == 1


def test_what_it_cannot_be_drawn_to(tmp_path: Path) -> None:
    for path, message in ((tmp_path / "x.what", "must end in one of"), (tmp_path / "no" / "x.png", "is no directory")):
        with pytest.raises(cnrfmt.UsageError, match=message):
            plot.check_path(path)
