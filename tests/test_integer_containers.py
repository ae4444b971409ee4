"""Whatever looks at containers, or makes others of them, takes those with integer parts as any other."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import cnrfmt
from cnrfmt import Quantize, Rows, TooLargeError
from cnrfmt.cli import describe
from cnrfmt.format.encoding import GridLayout, LogLayout
from cnrfmt.integrations.convert import convert
from cnrfmt.sizes import sizes_of_segment
from cnrfmt.trial import measure
from tests.attacks.support import lay
from tests.integer_chains import COLUMNS, DIM, Array, Chain

SEED, STEPS = 22, 5


@pytest.fixture(scope="module")
def laid(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Chain, dict[str, Array]]:
    """A chain, its model, and what the version before the newest says of the columns of the dense table."""
    chain = Chain(SEED)
    for _ in range(STEPS - 1):
        chain.step()
    before = {column: chain.values("dense", column) for column in COLUMNS}
    chain.step()
    assert chain.log_residuals
    return lay(tmp_path_factory.mktemp("integers") / "chain", chain.store), chain, before


def bits(values: Array) -> list[int]:
    return np.ascontiguousarray(values).view(np.uint32).tolist()


def check_same(chain: Chain, path: Path) -> None:
    """That a container says what the model does."""
    with cnrfmt.open(path) as ck:
        for name in ("dense", "keyed"):
            for column in COLUMNS:
                assert bits(ck[name].read(column=column)) == bits(chain.values(name, column))


def test_verify_finds_nothing(laid: tuple[Path, Chain, dict[str, Array]]) -> None:
    assert cnrfmt.verify(laid[0]).findings == []


def test_diff(laid: tuple[Path, Chain, dict[str, Array]]) -> None:
    path, chain, before = laid
    found = {table.name: table for table in cnrfmt.diff(path, version_a=STEPS - 1, version_b=STEPS).tables}
    both = min(len(before["weight"]), chain.rows)
    counts = {}
    for column in COLUMNS:
        now, then = chain.values("dense", column)[:both], before[column][:both]
        changed = np.ascontiguousarray(now).view(np.uint32) != np.ascontiguousarray(then).view(np.uint32)
        counts[column] = int(changed.reshape(both, -1).any(axis=1).sum())
    assert all(counts.values())
    assert {column.name: column.changed for column in found["dense"].columns} == counts


def test_requantize_and_convert(laid: tuple[Path, Chain, dict[str, Array]], tmp_path: Path) -> None:
    path, chain, _ = laid
    cnrfmt.requantize(path, tmp_path / "raw.cnr", quantize=None)
    check_same(chain, tmp_path / "raw.cnr")
    convert(path, tmp_path / "there.npz")
    convert(tmp_path / "there.npz", tmp_path / "back.cnr")
    check_same(chain, tmp_path / "back.cnr")


def test_rows_are_appended(laid: tuple[Path, Chain, dict[str, Array]], tmp_path: Path) -> None:
    """Whatever elements the newest parts of a column had, and in whatever groups."""
    path, chain, _ = laid
    copy = tmp_path / "chain.cnr"
    shutil.copy(path, copy)
    ids = np.arange(0, chain.rows, 3)
    # On either grid, among all codes of the sum, and between codes of the squares.
    rows = 8 * np.arange(len(ids) * DIM, dtype=np.float32).reshape(-1, DIM)
    new = {"weight": rows, "squares": rows + np.float32(0.1), "sum": np.full(len(ids), 0.5, np.float32)}
    cnrfmt.append(copy, {"dense": Rows(ids, rows, columns={name: new[name] for name in COLUMNS[1:]})})
    assert cnrfmt.verify(copy).findings == []
    with cnrfmt.open(copy) as ck:
        for column in COLUMNS:
            want = chain.values("dense", column)
            want[ids] = new[column]
            found = ck["dense"].read(column=column)
            if column == "squares":
                newest = ck.view.segments[ck.manifest.chain[-1].segment].toc.tables[0].parts
                (layout,) = (part.layout for part in newest if part.column == column and part.exceptions_of is None)
                assert isinstance(layout, LogLayout)
                # Rounded up or down by lot; a number that is less than all codes becomes the least one, or zero.
                apart = np.abs(found[ids].view(np.int32).astype(np.int64) - want[ids].view(np.int32))
                is_small = want[ids].view(np.int32) < layout.base
                assert (apart[~is_small] < 1 << layout.shift).all()
                assert set(found[ids][is_small].view(np.int32)) <= {0, layout.base}
                want[ids] = found[ids]
            assert bits(found) == bits(want)


def test_trial(laid: tuple[Path, Chain, dict[str, Array]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_LEAST_TIMED", 1)
    monkeypatch.setattr(measure, "_MOST_TIMED", 1)
    with np.errstate(all="ignore"):
        found = cnrfmt.try_quantization(laid[0], schemes=[Quantize(8)], tables=["dense"], columns=["weight"])
    assert found.columns[0].attempts[0].bytes_per_row == 5 + 8


def test_sizes(laid: tuple[Path, Chain, dict[str, Array]]) -> None:
    with cnrfmt.open(laid[0]) as ck:
        for segment in ck.view.segments.values():
            found = sizes_of_segment(segment)
            assert sum(found.values()) == segment.entry.length
            assert found["padding"] >= 0


def test_facts(laid: tuple[Path, Chain, dict[str, Array]]) -> None:
    with cnrfmt.open(laid[0]) as ck:
        weight, squares, total = describe.table(ck, ck["dense"])["columns"]
    assert any(words.startswith("grid of 2^-12") for words in weight["encodings"])
    assert any("residual" in words for words in weight["encodings"])
    assert any(words.startswith("log 12-bit") for words in total["encodings"])
    assert {"log 12-bit, rans", "log 12-bit residual, rans"} <= set(squares["encodings"])
    assert all("rans" in words or words == "raw float32" for words in squares["encodings"])
    assert squares["values_per_row"] == 5
    (fixed,) = (group for group in total["stored"] if group["words"] == "log 12-bit")
    # Twelve, and what rounds the sections up to whole bytes.
    assert 12 <= fixed["bits_per_value"] < 20


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (GridLayout("absolute", -12, "rans", None, 4), "grid of 2^-12, rans"),
        (GridLayout("residual", 3, "packed", None, 4), "grid of 2^3 residual, packed"),
        (GridLayout("residual", -7, "fixed", 9), "grid of 2^-7 residual, 9-bit"),
        (LogLayout(12, 1, 2), "log 12-bit"),
        (LogLayout(12, 1, 2, "absolute", "rans", 4), "log 12-bit, rans"),
        (LogLayout(16, 1, 2, "residual", "rans", 4), "log 16-bit residual, rans"),
    ],
)
def test_words(layout: GridLayout | LogLayout, words: str) -> None:
    assert describe.layout_words(layout, None) == words


def test_what_groups_share_is_counted_before_it_is_taken(laid: tuple[Path, Chain, dict[str, Array]]) -> None:
    with cnrfmt.open(laid[0], threads=1) as ck:
        table = ck["dense"]
        layers = table._column_strips(table.schema.columns[0], ck.view.budget())[0].layers
        shared = sum(layer.shared_cost for layer in layers)
        assert shared > 0
        ids = sum({(id(x.segment), x.row_set): x.cost for x in layers}.values())
        out = np.empty(table.shape, np.float32)
        ck.view.options = cnrfmt.view.ReadOptions("mmap", "touched", 1, ids + shared // 2)
        with pytest.raises(TooLargeError, match="'dense'"):
            table.read(out=out)
        every = [x for strip in table._column_strips(table.schema.columns[0], ck.view.budget()) for x in strip.layers]
        most = sum({id(x): x.cost + x.shared_cost for x in every}.values())
        ck.view.options = cnrfmt.view.ReadOptions("mmap", "touched", 1, most)
        table.read(out=out)
        # Once opened, it is at hand.
        for layer in every:
            layer.load_shared()
        assert sum(layer.shared_cost for layer in every) == 0
