"""Bits by the restores that a run expects, and what becomes of a caller's own choices."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt import Quantize
from cnrfmt.checkpointing.bits import bits_for, choices_for, chosen_bits, expected_restores, quantize_for
from cnrfmt.encodings.quantize import choice_for
from cnrfmt.errors import UsageError
from cnrfmt.kernels._jit import INTERPRETED


@pytest.mark.parametrize(
    ("restores", "bits"), [(0, 2), (0.3, 2), (1, 2), (1.01, 3), (3, 3), (3.5, 4), (20, 4), (20.001, 8), (10**9, 8)]
)
def test_the_thresholds_are_the_papers(restores: float, bits: int) -> None:
    assert bits_for(restores) == bits
    if restores == int(restores):
        # What `Quantize(bits="auto")` makes of as many.
        assert Quantize("auto", restores=int(restores)).choices()[0] == bits


def test_restores_come_of_a_rate_and_a_length() -> None:
    # 64 machines, each of which fails once in 100 days, for five days.
    assert expected_restores(64 / (100 * 24), 5 * 24) == pytest.approx(3.2)
    assert expected_restores(0, 1000) == 0
    assert bits_for(expected_restores(np.float32(0.5), np.int64(6))) == 3


@pytest.mark.parametrize("bad", [-1, -0.1, math.nan, math.inf, "3", None, True])
def test_what_is_no_count_is_refused(bad: Any) -> None:
    for name, call in (
        ("expected_restores", lambda: bits_for(bad)),
        ("failure_rate", lambda: expected_restores(bad, 1)),
        ("run_hours", lambda: expected_restores(1, bad)),
        ("restores", lambda: chosen_bits(3, bad)),
    ):
        with pytest.raises(UsageError, match=f"^{name} must be a number of at least 0, found "):
            call()


def test_more_restores_than_expected_take_eight_bits() -> None:
    assert [chosen_bits(3, n) for n in range(6)] == [3, 3, 3, 3, 8, 8]
    assert [chosen_bits(0.3, n) for n in range(3)] == [2, 2, 8]
    assert [chosen_bits(0, n) for n in range(2)] == [2, 8]
    assert [chosen_bits(2.5, n) for n in (3, 4)] == [3, 8]
    assert chosen_bits(1000, 7) == 8


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 7, 8])
def test_rows_are_quantised_as_the_paper_settled_on(bits: int) -> None:
    found = quantize_for(bits)
    assert found.bits == bits
    assert found.method == ("asymmetric" if bits > 4 else "adaptive")
    assert found.choices() == (bits,)


@pytest.mark.parametrize("bad", [1, 9, 16, 32, 3.5, "4", True, None])
def test_other_bits_are_refused(bad: Any) -> None:
    with pytest.raises(UsageError, match="bits are 2 to 8"):
        quantize_for(bad)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_the_shorter_search_errs_hardly_more_than_the_whole_one(bits: int, tmp_path: Path) -> None:
    """On real token embeddings, of which it was also chosen."""
    from importlib.resources import files

    from safetensors.numpy import load_file

    (file,) = Path(str(files("wordllama"))).glob("weights/l2_supercat_256.safetensors")
    embedding = load_file(file)["embedding.weight"]
    rows = np.ascontiguousarray(embedding[: 100 if INTERPRETED else 600, :64].astype(np.float32))

    def error(quantize: Quantize) -> float:
        path = tmp_path / f"{quantize.ratio}.cnr"
        cnrfmt.save(path, {"t": rows}, quantize=quantize)
        off = np.linalg.norm(cnrfmt.load(path)["t"] - rows, axis=1) / np.linalg.norm(rows, axis=1)
        return float(off.mean())

    ours = quantize_for(bits)
    whole = error(Quantize(bits, method="adaptive", ratio=1.0))
    assert error(ours) <= 1.003 * whole
    # And better than none, so the comparison says something.
    assert whole < 0.97 * error(Quantize(bits))


def test_what_the_caller_says_goes_before_the_bits() -> None:
    three, eight = quantize_for(3), Quantize(8)
    assert choices_for(3) == three
    assert choices_for(32) is None
    assert choices_for(3, eight) is eight
    assert choices_for(3, {}) == three
    merged = choices_for(3, {"user*": eight, "item": None, ("tag", "momentum"): eight})
    assert choice_for(merged, "user7", "weight") == (eight, False)
    assert choice_for(merged, "item", "weight") == (None, False)
    assert choice_for(merged, "item", "momentum") == (None, False)
    assert choice_for(merged, "tag", "momentum") == (eight, True)
    assert choice_for(merged, "tag", "weight") == (three, False)
    # A caller who has a say on all leaves nothing to the bits.
    assert choices_for(3, {"*": None, "user": eight}) == {"*": None, "user": eight}
    assert choices_for(32, {"user": eight}) == {"user": eight, "*": None}


def test_tables_that_can_not_be_quantised_stay_raw(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    tables = {"count": np.arange(60).reshape(20, 3), "half": rng.normal(size=(9, 8)).astype(np.float16)}
    tables |= {"user": rng.normal(size=(50, 16)).astype(np.float32), "item": rng.normal(size=(7, 8)).astype(np.float32)}
    others = [name for name, table in tables.items() if table.dtype != np.float32]
    for overrides in (None, {"item": None}, {"it*": Quantize(8)}, {("user", "weight"): Quantize(8)}):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.cnr"
        cnrfmt.save(path, tables, quantize=choices_for(4, overrides, unquantisable=others))
        found = cnrfmt.load(path)
        assert all(np.array_equal(found[name], tables[name]) for name in others)
        assert not np.array_equal(found["user"], tables["user"])
        assert np.array_equal(found["item"], tables["item"]) == (overrides == {"item": None})
    # Who asks for it by name is told that it can't be.
    with pytest.raises(UsageError, match="only float32 can be quantised"):
        cnrfmt.save(tmp_path / "x.cnr", tables, quantize=choices_for(4, {"half": Quantize(8)}, unquantisable=others))
    with pytest.raises(UsageError, match="quantize must be"):
        choices_for(4, {"half": "8"}, unquantisable=others)  # type: ignore[dict-item]
