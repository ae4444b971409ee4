"""Random states: sequences go on exactly, and what is no state sets nothing."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import cnrfmt
from cnrfmt.checkpointing.resuming.random_state import PREFIX, capture, reinstate

BITS = ["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"]
# ruff: noqa: NPY002 - these are the functions that are tested here.


@pytest.fixture(autouse=True)
def _unchanged() -> Iterator[None]:
    """Leaves the process's own random state as it was."""
    before = random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state()
    yield
    random.setstate(before[0])
    np.random.set_state(before[1])
    torch.set_rng_state(before[2])


def through_a_file(path: Path, dense: dict[str, Any]) -> dict[str, Any]:
    cnrfmt.save(path, {"t": np.zeros((1, 1), np.float32)}, dense=dense)
    with cnrfmt.open(path) as ck:
        return ck.dense


def draws() -> list[Any]:
    """A bit of everything, odd numbers of halves and second normals among it."""
    return [
        random.random(),
        random.gauss(0, 1),
        random.sample(range(1000), 7),
        np.random.rand(3).tolist(),
        np.random.randn(),
        np.random.permutation(20).tolist(),
        torch.rand(5).tolist(),
        torch.randn(33).tolist(),
        torch.randperm(11).tolist(),
    ]


@pytest.mark.parametrize("before", [0, 1, 5, 400])
def test_sequences_go_on_exactly(before: int, tmp_path: Path) -> None:
    random.seed(3)
    np.random.seed(4)
    torch.manual_seed(5)
    for _ in range(before):
        draws()
    np.random.randn()
    random.gauss(0, 1)
    dense = through_a_file(tmp_path / "model.cnr", capture())
    want = [draws() for _ in range(3)]
    assert reinstate(dense) == ["python", "numpy", "torch"]
    assert [draws() for _ in range(3)] == want
    # And again, as a second restore from one checkpoint does.
    reinstate(dense)
    assert [draws() for _ in range(3)] == want


@pytest.mark.parametrize("kind", BITS)
@pytest.mark.parametrize("drawn", [0, 1, 3, 700])
def test_generators_of_numpy_go_on_exactly(kind: str, drawn: int, tmp_path: Path) -> None:
    def sequence(generator: np.random.Generator) -> list[Any]:
        return [
            generator.random(5).tolist(),
            generator.integers(0, 100, 3, dtype=np.uint32).tolist(),
            generator.normal(size=3).tolist(),
        ]

    first = np.random.Generator(getattr(np.random, kind)(7))
    # One half of a word is left over for the next one who asks.
    first.integers(0, 100, drawn, dtype=np.uint32)
    dense = through_a_file(tmp_path / "model.cnr", capture({"sampler": first}))
    second = np.random.Generator(getattr(np.random, kind)(99))
    assert "numpy/sampler" in reinstate(dense, {"sampler": second})
    assert sequence(second) == sequence(first)
    assert second.bit_generator.state["has_uint32" if kind != "MT19937" else "state"] is not None


def test_the_global_generator_of_numpy_may_be_another() -> None:
    known, set_bit_generator = np.random.mtrand.get_bit_generator(), np.random.mtrand.set_bit_generator
    try:
        set_bit_generator(np.random.PCG64(8))
        np.random.randn()
        dense = capture()
        want = np.random.randn(3).tolist()
        reinstate(dense)
        assert np.random.randn(3).tolist() == want
        set_bit_generator(np.random.MT19937(8))
        with pytest.raises(cnrfmt.UsageError, match="PCG64, and numpy's global functions draw from MT19937"):
            reinstate(dense)
    finally:
        set_bit_generator(known)


def test_what_is_not_here_is_passed_over() -> None:
    dense = capture({"a": np.random.default_rng(1)})
    assert reinstate({}) == []
    assert reinstate({"mlp": np.zeros(3), "cnrfmt:reader": 5, PREFIX + "later": 1}) == []
    if not torch.cuda.is_available():
        assert reinstate({PREFIX + "torch/cuda/0": b"abc"}) == []
    assert "numpy/a" not in reinstate(dense)
    with pytest.raises(cnrfmt.UsageError, match="generator 'b': no state of it was saved, only of 'a'"):
        reinstate(dense, {"b": np.random.default_rng(1)})
    with pytest.raises(cnrfmt.UsageError, match=r"generator 'a': the state of a PCG64 was saved.*Philox"):
        reinstate(dense, {"a": np.random.Generator(np.random.Philox(1))})
    for wrong in (np.random.RandomState(1), random.Random(1), 5):
        with pytest.raises(cnrfmt.UsageError, match="needs a Generator of numpy"):
            capture({"a": wrong})  # type: ignore[dict-item]


GENERATORS = {kind: np.random.Generator(getattr(np.random, kind)(7)) for kind in BITS}
for one in GENERATORS.values():
    one.integers(0, 9, 3, dtype=np.uint32)
SOUND = capture(GENERATORS)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all that can be exchanged; of a list of many numbers the first and the last two."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from leaves(value[key], (*path, key))
    elif isinstance(value, list):
        for index in (0, len(value) - 2, len(value) - 1):
            yield (*path, index)


PATHS = [(name, *path) for name in SOUND for path in leaves(SOUND[name])]
WRONG = [None, True, -1, 0, 626, 1 << 52, 1.5, "", "-1", "g", "f" * 32, "f" * 99, "0x1p5", "1e999", b"", b"x", [], [1]]


@given(st.sampled_from(PATHS), st.sampled_from(WRONG))
def test_what_is_no_state_sets_nothing(path: tuple[Any, ...], wrong: Any) -> None:
    dense = copy.deepcopy(SOUND)
    at: Any = dense
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = wrong
    before = capture(GENERATORS)
    refused = ""
    try:
        reinstate(dense, GENERATORS)
    except cnrfmt.UsageError as error:
        refused = str(error)
    if refused:
        assert path[0] in refused
        assert capture(GENERATORS) == before
    else:
        # A number that is as good as the one that was there: every generator still draws.
        draws()
        for generator in GENERATORS.values():
            generator.random(700)
            generator.integers(0, 9, 3, dtype=np.uint32)
        reinstate(before, GENERATORS)


def test_places_behind_the_words_are_refused() -> None:
    for name, path in (
        (f"{PREFIX}numpy", ("bits", "state", "state", "pos")),
        (f"{PREFIX}numpy/MT19937", ("state", "state", "pos")),
        (f"{PREFIX}numpy/Philox", ("state", "buffer_pos")),
    ):
        dense = copy.deepcopy(SOUND)
        at = dense[name]
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = "272"
        with pytest.raises(cnrfmt.UsageError, match="a number in hex below"):
            reinstate(dense, GENERATORS)


def test_states_of_devices_that_are_not_used_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    states = {0: torch.arange(16, dtype=torch.uint8), 1: torch.ones(16, dtype=torch.uint8)}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert not [name for name in capture() if "cuda" in name]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: states[device])
    found = capture()
    assert found[f"{PREFIX}torch/cuda/0"] == bytes(range(16))
    assert found[f"{PREFIX}torch/cuda/1"] == b"\1" * 16


def test_without_torch_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    dense = capture()
    monkeypatch.delitem(sys.modules, "torch")
    assert f"{PREFIX}torch" not in capture()
    assert reinstate(dense) == ["python", "numpy"]
