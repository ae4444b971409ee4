"""`requantize`: all of a container comes along, and its rows are stored as asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt import Quantize, TableData

F32 = np.float32


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    rng = np.random.default_rng(1)
    weight = rng.normal(size=(300, 12)).astype(F32)
    weight[4, 1] = np.nan
    columns = {"accumulator": np.abs(weight).sum(axis=1), "momentum": rng.normal(size=(300, 12)).astype(F32)}
    keyed = TableData(
        weight[:5], columns={"count": np.arange(5)}, keys=[9, -(2**63), 4, 2**63 - 1, 5], fill={"weight": 2.5}
    )
    tables = {"user": TableData(weight, columns=columns, fill={"momentum": np.nan}), "item": keyed}
    cnrfmt.save(path, tables, dense={"mlp": weight[:2], "j": [1]}, metadata={"run": "r7"}, step=3)
    cnrfmt.append(path, {"user": cnrfmt.Rows([1], weight[:1], columns={"new": weight[:1]}, rows=310)}, step=4)
    return path


def contents(path: Path, version: int | None = None) -> tuple[dict[str, Any], Any]:
    """All that a version says, as bytes where it is numbers."""
    with cnrfmt.open(path, version=version) as ck:
        tables = {
            name: (
                None if table.keys is None else table.keys.tolist(),
                {c: (table.read(column=c).tobytes(), table.fill(c).tobytes()) for c in table.columns},
            )
            for name, table in ck.items()
        }
        dense = {name: getattr(value, "tolist", lambda value=value: value)() for name, value in ck.dense.items()}
        return tables, (dense, ck.metadata, ck.step)


@pytest.mark.parametrize("target", ["new.cnr", "new"])
@pytest.mark.parametrize("threads", [1, 2])
def test_raw_it_is_the_same_bit_for_bit(source: Path, target: str, threads: int, tmp_path: Path) -> None:
    assert cnrfmt.requantize(source, tmp_path / target, quantize=None, threads=threads) == 0
    assert contents(tmp_path / target) == contents(source)
    assert cnrfmt.requantize(source, tmp_path / f"old-{target}", quantize=None, version=0) == 0
    assert contents(tmp_path / f"old-{target}") == contents(source, 0)
    assert cnrfmt.verify(tmp_path / target).sound


def test_rows_are_stored_as_a_save_stores_them(source: Path, tmp_path: Path) -> None:
    quantize = {"user": Quantize(4, method="kmeans", block=16), ("user", "mom*"): Quantize(8)}
    cnrfmt.requantize(source, tmp_path / "a.cnr", quantize=quantize)
    cnrfmt.save(tmp_path / "b.cnr", cnrfmt.load(source, columns=True), quantize=quantize)
    a, b = (contents(tmp_path / f"{name}.cnr")[0] for name in "ab")
    assert a["item"] == contents(source)[0]["item"]
    for column, (rows, _) in b["user"][1].items():
        assert a["user"][1][column][0] == rows
    assert a["user"][1]["weight"] != contents(source)[0]["user"][1]["weight"]


def test_only_some_tables(source: Path, tmp_path: Path) -> None:
    cnrfmt.requantize(source, tmp_path / "new.cnr", quantize={"i*": Quantize(8)}, tables=["item"])
    with cnrfmt.open(tmp_path / "new.cnr") as ck:
        assert list(ck) == ["item"]
        assert sorted(ck.dense) == ["j", "mlp"]


def test_what_is_there_gets_its_next_version_if_asked(source: Path, tmp_path: Path) -> None:
    with pytest.raises(cnrfmt.UsageError, match="is there already; force=True"):
        cnrfmt.requantize(source, source, quantize=Quantize(8))
    before = contents(source)
    assert cnrfmt.requantize(source, source, quantize=None, force=True) == 2
    assert contents(source) == before
    single = tmp_path / "single.cnr"
    cnrfmt.requantize(source, single, quantize=None)
    # A single file is written anew while its rows are read.
    assert cnrfmt.requantize(single, single, quantize=None, force=True) == 1
    assert contents(single) == before


def test_wrong_calls(source: Path, tmp_path: Path) -> None:
    for options, message in (
        ({"quantize": Quantize(8), "tables": ["x"]}, "no table matches 'x'"),
        ({"quantize": {"x": Quantize(8)}}, "no table is named 'x'"),
        ({"quantize": {("user", "count"): Quantize(8)}}, "no column of 'user' is named 'count'"),
        ({"quantize": {("item", "count"): Quantize(8)}}, "only float32"),
    ):
        with pytest.raises(cnrfmt.UsageError, match=message):
            cnrfmt.requantize(source, tmp_path / "new.cnr", **options)  # type: ignore[arg-type]
        assert not (tmp_path / "new.cnr").exists()


def test_it_says_how_far_it_is(source: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    cnrfmt.requantize(
        source, tmp_path / "new.cnr", quantize=Quantize("auto", mean_error=0.1), progress=lambda *x: seen.append(x)
    )
    total = 310 * 4 * (12 + 1 + 12 + 12) + 5 * (12 * 4 + 8)
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
