"""Bags of a table's rows, against loops over rows that were read, and against torch's operators."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

import cnrfmt
from cnrfmt import Quantize, Rows, TableData, UsageError, pooling
from tests.attacks.support import lay
from tests.integer_chains import Chain

F32 = np.float32
ROWS, DIM = 500, 20
MODES = ("sum", "mean", "max")
Array = np.ndarray[Any, Any]


@np.errstate(invalid="ignore", over="ignore")
def plain(rows: Array, offsets: list[int], weights: Array | None, mode: str) -> Array:
    """One bag after the other, one row after the other."""
    out = np.zeros((len(offsets), *rows.shape[1:]), F32)
    for bag, begin in enumerate(offsets):
        stop = [*offsets, len(rows)][bag + 1]
        for k in range(begin, stop):
            row = rows[k].astype(F32)
            if weights is not None:
                row = row * weights[k]
            out[bag] = row if mode == "max" and k == begin else (np.maximum if mode == "max" else np.add)(out[bag], row)
        if mode == "mean" and stop > begin:
            out[bag] = out[bag] / F32(stop - begin)
    return out


def matrix(rows: int = ROWS, dim: int = DIM, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((rows, dim)).astype(F32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A dense table of one part, a quantised one with a delta, a keyed one with tombstones, and other data types."""
    keys = np.arange(300, dtype=np.int64) * 7 - 900
    tables = {
        "raw": TableData(matrix(), columns={"sum": np.arange(ROWS, dtype=F32)}),
        "codes": matrix(seed=1),
        "keyed": TableData(matrix(300), keys=keys, fill={"weight": 0.25}),
        "half": matrix().astype(np.float16),
        "brain": matrix().astype(ml_dtypes.bfloat16),
        "double": matrix().astype(np.float64) / 3,
        "whole": (matrix() * 100).astype(np.int16),
    }
    cnrfmt.save(tmp_path / "m.cnr", tables, quantize={"codes": Quantize(4)})
    ids = np.arange(0, ROWS, 3)
    cnrfmt.append(tmp_path / "m.cnr", {"codes": Rows(ids, matrix(seed=2)[ids]), "keyed": cnrfmt.Deleted(keys[::5])})
    return tmp_path / "m.cnr"


TABLES = ("raw", "codes", "keyed", "half", "brain", "double", "whole")


@pytest.mark.parametrize("table", TABLES)
def test_as_a_plain_loop(path: Path, table: str) -> None:
    rng = np.random.default_rng(3)
    offsets = [0, 0, 9, 10, 10, 200, 390, 390]
    weights = rng.standard_normal(390).astype(F32)
    with cnrfmt.open(path) as ck:
        t = ck[table]
        ids = rng.choice(t.keys if t.keyed else np.arange(ROWS), 390)
        rows = t[ids]
        for mode in MODES:
            found = t.pool(ids, offsets, mode=mode)
            assert found.dtype == F32
            assert found.tobytes() == plain(rows, offsets, None, mode).tobytes()
        assert t.pool(ids, offsets, weights).tobytes() == plain(rows, offsets, weights, "sum").tobytes()


def test_chains_of_integers_whose_parts_divide_the_elements(tmp_path: Path) -> None:
    divided = 0
    for seed in range(4):
        chain = Chain(seed, rows=60)
        for _ in range(3):
            chain.step()
        rng = np.random.default_rng(seed)
        with cnrfmt.open(lay(tmp_path / str(seed), chain.store)) as ck:
            for name in ("dense", "keyed"):
                t = ck[name]
                ids = rng.choice(t.keys if t.keyed else np.arange(len(t)), 70) if len(t) else np.empty(0, np.int64)
                offsets = [0, len(ids) // 3, len(ids) // 2]
                for column in t.columns:
                    found = t.pool(ids, offsets, column=column, mode="mean")
                    want = plain(t.read(ids, column=column), offsets, None, "mean")
                    assert np.array_equal(found, want, equal_nan=True)
                divided += len(t.view.strips[t.schema.table_id, "weight"]) > 1
    assert divided


@pytest.mark.parametrize("backend", ["mmap", "pread"])
@pytest.mark.parametrize("table", ["codes", "keyed", "double"])
def test_neither_threads_nor_scratch_matter(
    path: Path, table: str, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(4)
    offsets = np.sort(np.append([0, 0], rng.integers(0, 3000, 90)))
    for mode in MODES:
        found = set()
        for threads, scratch, share in ((1, 256 << 10, 2 << 20), (1, 999, 1), (4, 2999, 1), (4, 5000, 9000)):
            monkeypatch.setattr(pooling, "_SCRATCH", scratch)
            monkeypatch.setattr(pooling, "_SHARE", share)
            with cnrfmt.open(path, threads=threads, backend=backend) as ck:
                t = ck[table]
                ids = np.random.default_rng(5).choice(t.keys if t.keyed else np.arange(ROWS), 3000)
                found.add(t.pool(ids, offsets, mode=mode).tobytes())
                want = plain(t[ids], offsets.tolist(), None, mode)
        assert found == {want.tobytes()}


def test_no_more_than_scratch_is_decoded_at_a_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def decode(strips: Any, ids: Array, rows: Array) -> None:
        sizes.append(rows.nbytes)
        real(strips, ids, rows)

    real = pooling._decode
    monkeypatch.setattr(pooling, "_decode", decode)
    with cnrfmt.open(path, backend="pread") as ck:
        ck["raw"].pool(np.arange(20_000) % ROWS, [0])
        assert sum(sizes) == 4 * DIM * 20_000
        assert max(sizes) <= 256 << 10
        ck["double"].pool(np.arange(20_000) % ROWS, [0])
        assert max(sizes) <= 256 << 10


def test_rows_of_one_part_are_pooled_where_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = np.arange(ROWS, dtype=np.int64) * 3 - 99
    tables = {"dense": matrix(), "keyed": TableData(matrix(seed=1), keys=keys)}
    cnrfmt.save(tmp_path / "m.cnr", tables, quantize={"dense": Quantize(8)})
    offsets = np.sort(np.append(0, np.random.default_rng(8).integers(0, 3000, 90)))
    monkeypatch.setattr(pooling, "_SHARE_IN_PLACE", 999)
    for name in tables:
        with cnrfmt.open(tmp_path / "m.cnr") as ck:
            ids = np.random.default_rng(9).choice(ck[name].keys if ck[name].keyed else np.arange(ROWS), 3000)
            want = plain(ck[name][ids], offsets.tolist(), None, "sum")
        for threads, verify in ((1, "touched"), (4, "touched"), (1, "none")):
            with cnrfmt.open(tmp_path / "m.cnr", threads=threads, verify=verify) as ck, monkeypatch.context() as m:
                m.setattr(pooling, "_decode", None)
                assert ck[name].pool(ids, offsets).tobytes() == want.tobytes()
    with cnrfmt.open(tmp_path / "m.cnr") as ck:
        assert np.array_equal(ck["keyed"].pool(keys[[0, -1]], [0, 1]), ck["keyed"][keys[[0, -1]]])
    content = bytearray((tmp_path / "m.cnr").read_bytes())
    at = bytes(content).index(matrix(seed=1)[-1].tobytes())
    content[at] ^= 1
    (tmp_path / "bad.cnr").write_bytes(content)
    with cnrfmt.open(tmp_path / "bad.cnr") as ck:
        with pytest.raises(cnrfmt.DamagedError, match="piece"):
            ck["keyed"].pool(keys, [0])
        assert np.array_equal(ck["keyed"].pool(keys[:1], [0]), ck["keyed"][keys[:1]])


@pytest.mark.parametrize(("mode", "weighted"), [("sum", False), ("sum", True), ("mean", False), ("max", False)])
def test_as_torch_has_it(path: Path, mode: str, weighted: bool) -> None:
    rng = np.random.default_rng(6)
    ids, offsets = rng.integers(0, ROWS, 800), np.sort(np.append(0, rng.integers(0, 800, 60)))
    weights = rng.random(800, F32) if weighted else None
    with cnrfmt.open(path) as ck:
        for table in ("raw", "codes"):
            found = ck[table].pool(torch.from_numpy(ids), torch.from_numpy(offsets), weights, mode)
            want = torch.nn.functional.embedding_bag(
                torch.from_numpy(ids),
                torch.from_numpy(ck[table][...]),
                torch.from_numpy(offsets),
                mode=mode,
                per_sample_weights=None if weights is None else torch.from_numpy(weights),
            )
            np.testing.assert_allclose(found, want.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bits", [8, 4])
def test_real_rows_as_the_quantised_operators_have_them(tmp_path: Path, bits: int) -> None:
    spec = find_spec("wordllama")
    assert spec is not None
    assert spec.origin is not None
    with safe_open(Path(spec.origin).parent / "weights" / "l2_supercat_256.safetensors", "np") as file:
        trained = np.ascontiguousarray(file.get_tensor("embedding.weight")[:4000].astype(F32))
    cnrfmt.save(tmp_path / "m.cnr", {"token": trained}, quantize=Quantize(bits))
    prepack = getattr(torch.ops.quantized, "embedding_bag_byte_prepack" if bits == 8 else "embedding_bag_4bit_prepack")
    operator = getattr(
        torch.ops.quantized, "embedding_bag_byte_rowwise_offsets" if bits == 8 else "embedding_bag_4bit_rowwise_offsets"
    )
    rng = np.random.default_rng(7)
    ids, offsets = rng.integers(0, 4000, 3000), np.sort(np.append(0, rng.integers(0, 3000, 80)))
    want = operator(prepack(torch.from_numpy(trained)), torch.from_numpy(ids), torch.from_numpy(offsets))
    with cnrfmt.open(tmp_path / "m.cnr") as ck:
        found = ck["token"].pool(ids, offsets)
        assert found.tobytes() == plain(ck["token"][ids], offsets.tolist(), None, "sum").tobytes()
    np.testing.assert_allclose(found, want.numpy(), rtol=2e-5, atol=2e-5)


def test_keys_that_are_not_there(path: Path) -> None:
    with cnrfmt.open(path) as ck:
        t = ck["keyed"]
        known, gone = -900 + 7, -900
        with pytest.raises(cnrfmt.MissingKeyError, match=r"no key -900 and 1 more.*missing='fill'"):
            t.pool([known, gone, 5], [0])
        found = t.pool([known, gone, 5], [0, 2], missing="fill")
        assert np.array_equal(found[0], t[known] + F32(0.25))
        assert np.array_equal(found[1], np.full(DIM, 0.25, F32))


def test_one_value_per_row(path: Path) -> None:
    with cnrfmt.open(path) as ck:
        found = ck["raw"].pool([1, 2, 5], [0, 2], column="sum")
        assert found.tolist() == [3, 5]


def test_nothing(path: Path) -> None:
    with cnrfmt.open(path) as ck:
        for table in ("raw", "keyed"):
            assert ck[table].pool([], []).shape == (0, DIM)
            found = ck[table].pool([], [0, 0, 0], [], "sum")
            assert found.shape == (3, DIM)
            assert not found.any()


@given(st.lists(st.integers(0, 5), max_size=9), st.integers(1, 40), st.integers(0, 3))
def test_shares_are_whole_bags(sizes: list[int], per_share: int, first: int) -> None:
    offsets = np.array([0, *np.cumsum(sizes)[:-1]], np.int64)[: len(sizes)]
    shares = pooling._shares(offsets, sum(sizes), per_share)
    assert [bag for a, b in shares for bag in range(a, b)] == list(range(len(sizes)))
    assert all(a < b for a, b in shares)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"mode": "avg"}, "mode is 'sum', 'mean' or 'max', found 'avg'"),
    ({"ids": [[1]]}, "ids must be 1-D"),
    ({"ids": [1.0]}, "ids must be integers"),
    ({"offsets": [0.0]}, "offsets must be integers"),
    ({"offsets": [1, 2]}, "offsets must begin with 0, found 1"),
    ({"offsets": []}, "offsets must begin with 0, found none for 3 ids"),
    ({"offsets": [0, 2, 1]}, "offsets must ascend, found 1 at 2 behind 2"),
    ({"offsets": [0, 4]}, "offsets must not exceed the number of ids, 3, found 4"),
    ({"weights": [1.0, 2.0]}, r"weights must be one for each of 3 ids, found shape \(2,\)"),
    ({"weights": [[1.0, 2.0, 3.0]]}, r"found shape \(1, 3\)"),
    ({"weights": [True, False, True]}, "weights must be numbers that float32 can hold, found bool"),
    ({"weights": [1, 1, 1], "mode": "mean"}, "weights go with mode 'sum' alone, found mode 'mean'"),
    ({"missing": "zero"}, "missing is 'error' or 'fill', found 'zero'"),
    ({"column": "h"}, "no column 'h'"),
    ({"ids": [0, 1, ROWS]}, f"has rows 0 to {ROWS - 1}, found {ROWS}"),
    ({"ids": [0, 1, -1]}, "found -1"),
]


@pytest.mark.parametrize(("changed", "says"), BAD)
def test_refusals_name_what_is_expected_and_found(path: Path, changed: dict[str, Any], says: str) -> None:
    arguments: dict[str, Any] = {"ids": [1, 2, 3], "offsets": [0], "weights": None, "mode": "sum"} | changed
    with cnrfmt.open(path) as ck, pytest.raises(cnrfmt.UsageError, match=says):
        ck["raw"].pool(**arguments)


def test_limits_and_closing(path: Path) -> None:
    with cnrfmt.open(path, max_bytes=1 << 20) as ck:
        t = ck["raw"]
        t.pool([1], [0])
        with pytest.raises(cnrfmt.TooLargeError, match="table 'raw': 20000 bags of 20 values"):
            t.pool([1], np.append([0], np.ones(19_999, np.int64)))
    with pytest.raises(cnrfmt.UsageError, match="was closed"):
        t.pool([1], [0])


@pytest.mark.parametrize("bits", [8, 4])
def test_rows_that_codes_can_not_hold_are_pooled_as_they_are(tmp_path: Path, bits: int) -> None:
    values = np.random.default_rng(0).normal(size=(1000, 16)).astype(F32)
    values[5, 3], values[700], values[9] = np.inf, 1e30, np.nan
    path = tmp_path / "model.cnr"
    cnrfmt.save(path, {"t": values}, quantize=cnrfmt.Quantize(bits=bits))
    with cnrfmt.open(path) as ck:
        table = ck["t"]
        for ids in ([1, 2], [5, 6], [700, 1], [2, 9, 5, 1]):
            want = np.zeros(16, F32)
            for row in table[np.array(ids)]:
                want = want + row
            assert np.array_equal(table.pool(ids, [0])[0], want, equal_nan=True)


def test_integers_that_sums_would_round_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.cnr"
    cnrfmt.save(path, {"short": np.ones((4, 2), np.int16), "long": np.ones((4, 2), np.int64)})
    with cnrfmt.open(path) as ck, cnrfmt.LiveTables(path) as live:
        for tables in (ck, live):
            assert tables["short"].pool([0, 1], [0]).tolist() == [[2.0, 2.0]]
            with pytest.raises(UsageError, match="table 'long' is int64, whose values float32"):
                tables["long"].pool([0, 1], [0])


@pytest.mark.parametrize("verify", ["touched", "none"])
def test_a_table_that_was_cut_below_where_its_newest_part_begins(tmp_path: Path, verify: Any) -> None:
    values = matrix()
    cnrfmt.save(tmp_path / "m", {"t": values})
    cnrfmt.append(tmp_path / "m", {"t": Rows(np.arange(200, ROWS), -values[200:])})
    cnrfmt.append(tmp_path / "m", {"t": Rows([], values[:0], rows=100)})
    with cnrfmt.open(tmp_path / "m", verify=verify) as ck:
        found = ck["t"].pool(np.arange(100), np.arange(100))
        assert found.tobytes() == values[:100].tobytes()
        for row in (100, 200, -1):
            with pytest.raises(cnrfmt.MissingKeyError):
                ck["t"].pool([row], [0])


def test_weights_beyond_float32_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.cnr"
    cnrfmt.save(path, {"t": np.ones((4, 2), F32)})
    with cnrfmt.open(path) as ck:
        with pytest.raises(UsageError, match="weights must be numbers that float32 can hold, found 1e"):
            ck["t"].pool([0, 1], [0], [1.0, 1e39])
        assert ck["t"].pool([0], [0], [np.inf]).tolist() == [[np.inf, np.inf]]
