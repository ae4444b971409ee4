"""Rows that are sums of integers: every way to read them gives what a plain model says; what is illegal is named."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cnrfmt
from cnrfmt import Grid, chunks, part_integers
from cnrfmt.encodings import integers
from cnrfmt.memory import Budget
from tests.attacks.support import lay
from tests.integer_chains import COLUMNS, Chain, grid_of
from tools import cnrcheck

BACKENDS = ("mmap", "pread")
VERIFY = ("none", "touched", "all")


def bits(values: np.ndarray) -> list[int]:
    """The bits of float32 values."""
    return np.ascontiguousarray(values, np.float32).view(np.uint32).tolist()


@given(seed=st.integers(0, 1 << 32), steps=st.integers(0, 7), data=st.data())
def test_a_random_chain_reads_as_the_model_says(seed: int, steps: int, data: st.DataObject) -> None:
    chain = Chain(seed, folder=bool(seed % 2))
    for _ in range(steps):
        chain.step()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        # Small ones, so that there are many chunks, blocks and runs, and the last of them are shorter.
        patch.setattr(chunks, "_CHUNK", data.draw(st.sampled_from([40, 200, 4 << 20]), "chunk"))
        patch.setattr(part_integers, "_BLOCK", data.draw(st.sampled_from([1, 30, 64 << 10]), "block"))
        patch.setattr(part_integers, "_SPARSE", data.draw(st.sampled_from([0, 1, 8]), "sparse"))
        patch.setattr(part_integers, "_STREAM", data.draw(st.sampled_from([1, 64 << 10]), "stream"))
        patch.setattr(part_integers, "_GAPS", data.draw(st.sampled_from([0, 1, 2]), "gaps"))
        patch.setattr(integers, "_MOST_VALUES", data.draw(st.sampled_from([1, 200, 1 << 21]), "values"))
        path = lay(Path(folder) / "chain", chain.store)
        backend = data.draw(st.sampled_from(BACKENDS), "backend")
        verify = data.draw(st.sampled_from(VERIFY), "verify")
        threads = data.draw(st.sampled_from([1, 3]), "threads")
        with cnrfmt.open(path, backend=backend, verify=verify, threads=threads) as ck:
            _check(chain, ck, np.random.default_rng(seed))


def _check(chain: Chain, ck: cnrfmt.Checkpoint, random: np.random.Generator) -> None:
    for name in ("dense", "keyed"):
        table, ids = ck[name], chain.ids(name)
        assert (range(len(table)) if table.keys is None else table.keys.tolist()) == (
            range(len(ids)) if name == "dense" else ids
        )
        for column in COLUMNS:
            want = chain.values(name, column)
            assert bits(table.read(column=column)) == bits(want)
            if not ids:
                continue
            a, b = sorted(random.integers(0, len(ids) + 1, 2).tolist())
            assert bits(table.read(slice(a, b), column=column, by="position")) == bits(want[a:b])
            places = random.integers(0, len(ids), 2 * len(ids))
            some = np.array(ids)[places]
            assert bits(table.read(some, column=column)) == bits(want[places])
            out = np.empty(want[places].shape, np.float32)
            assert table.read(some, column=column, out=out) is out
            assert bits(out) == bits(want[places])
            with np.errstate(all="ignore"):
                wide = table.read(slice(a, b), column=column, by="position", dtype=np.float64)
                assert np.array_equal(wide, want[a:b].astype(np.float64), equal_nan=True)
            for place in places[:3].tolist():
                assert bits(table.read(int(ids[place]), column=column)) == bits(want[place])
            _check_integers(chain, table, column, random)


def _check_integers(chain: Chain, table: cnrfmt.Table, column: str, random: np.random.Generator) -> None:
    for number in (0, 1):
        first, stop = sorted(random.integers(0, len(table) + 1, 2).tolist())
        asked = range(first, stop) if not table.keyed and random.integers(2) else random.integers(-25, 140, 60)
        found, known = table.read_integers(asked, column, grid_of(column, number))
        want, on = chain.integers(table.name, column, list(asked), number)
        assert known.tolist() == on.tolist()
        assert found.dtype == np.int32
        assert found.tolist() == want.tolist()


@settings(max_examples=10)
@given(seed=st.integers(0, 1 << 32))
def test_neither_validator_finds_anything(seed: int) -> None:
    chain = Chain(seed)
    for _ in range(4):
        chain.step()
    assert chain.log_residuals
    with tempfile.TemporaryDirectory() as folder:
        path = lay(Path(folder) / "chain", chain.store)
        assert cnrfmt.verify(path, threads=1).findings == []
        assert cnrcheck.check_path(str(path)) == []


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("payload", ["rans", "packed"])
def test_groups_that_lie_far_apart_are_read_and_verified(payload: str, backend: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=(1 << 14, 32)).astype(np.float32)
    path = tmp_path / "table.cnr"
    cnrfmt.save(path, {"table": values}, quantize=Grid(step=2.0**-6, payload=payload))
    with cnrfmt.open(path, verify="none") as ck:
        every = ck["table"].read()
    for count in (2, 5, 40):
        ids = rng.integers(0, len(values), count)
        for verify in VERIFY:
            with cnrfmt.open(path, backend=backend, verify=verify) as ck:
                for rows in (ids, ids[::-1], np.sort(ids)):
                    assert bits(ck["table"][rows]) == bits(every[rows])
    with cnrfmt.open(path) as ck:
        strips = ck["table"]._column_strips(ck["table"]._column("weight"), Budget(None))
        part = strips[0].layers[0].integers
        assert part is not None
        start, length = part.opened.span(8000, 1)
        stored, at = part.fetch(start, length)
        group = stored[at : at + length].tobytes()
    path.write_bytes(path.read_bytes().replace(group, group[:-1] + bytes([group[-1] ^ 1])))
    apart = np.arange(0, len(values), 600)
    with cnrfmt.open(path, backend=backend) as ck:
        assert bits(ck["table"][[100, 16000, 15000]]) == bits(every[[100, 16000, 15000]])
        for rows in ([16000, 8000, 100], np.append(apart, 8000)):
            with pytest.raises(cnrfmt.DamagedError, match="piece-digest"):
                ck["table"].read(rows)
