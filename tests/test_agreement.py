"""The library's `verify` and the independent validator agree on every mutation of a small container.

Every byte of it is changed in turn, and it is cut at every length: both find damage, or neither does. A reader that
takes the whole of it never answers with values that are wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt import Deleted, Quantize, Rows, TableData
from tools import cnrcheck

F32 = np.float32


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A baseline and a delta with every kind of part, about 30 KB."""
    path = tmp_path_factory.mktemp("golden") / "model.cnr"
    rng = np.random.default_rng(7)
    weight = rng.normal(size=(40, 5)).astype(F32)
    weight[3, 2] = np.nan
    keys = np.array([-9, -2, 5, 100, 7000])
    tables = {
        "item": TableData(weight, columns={"accumulator": np.ones(40, F32)}),
        "visitor": TableData(rng.normal(size=(5, 3)).astype(F32), keys=keys),
    }
    dense = {"bias": np.arange(3.0), "reader": {"order": 17}, "mask": np.array([True, False])}
    cnrfmt.save(path, tables, quantize={"item": Quantize(4)}, dense=dense, step=1)
    changes = {
        "item": Rows([1, 3, 39], weight[[3, 1, 2]]),
        "visitor": (Rows([6], rng.normal(size=(1, 3)).astype(F32)), Deleted([5])),
    }
    cnrfmt.append(path, changes, step=2)
    return path


def everything(path: Path) -> Any:
    """All values, as bytes; the same under every backend."""
    with cnrfmt.open(path, backend="pread", threads=1) as ck:
        tables = {
            (name, column): ck[name].read(column=column).tobytes()
            for name in ck
            for column in ck[name].columns
        }
        dense = {name: repr(value) for name, value in ck.dense.items()}
        return ck.version, tables, dense


def judge(path: Path, data: bytes) -> tuple[str, str]:
    return (
        cnrfmt.verify(path, threads=1).verdict,
        cnrcheck.verdict(cnrcheck.check_bytes(data)),
    )


def changes(data: bytes) -> Iterator[tuple[int, bytes]]:
    rng = np.random.default_rng(11)
    masks = rng.integers(1, 256, len(data))
    for offset, mask in enumerate(masks.tolist()):
        mutated = bytearray(data)
        mutated[offset] ^= mask
        yield offset, bytes(mutated)


def test_every_changed_byte_is_damage_to_both(golden: Path, tmp_path: Path) -> None:
    data = golden.read_bytes()
    expected = everything(golden)
    path = tmp_path / "mutated.cnr"
    path.write_bytes(data)
    for offset, mutated in changes(data):
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(mutated[offset : offset + 1])
            file.flush()
            assert judge(path, mutated) == ("damaged", "damaged"), offset
            if offset % 3 == 0:
                try:
                    found = everything(path)
                except cnrfmt.CnrError:
                    pass
                else:
                    assert found == expected, offset
            file.seek(offset)
            file.write(data[offset : offset + 1])
    assert judge(path, data) == ("sound", "sound")


def test_every_truncation_is_damage_to_both(golden: Path, tmp_path: Path) -> None:
    data = golden.read_bytes()
    path = tmp_path / "cut.cnr"
    for length in range(0, len(data), 7):
        path.write_bytes(data[:length])
        assert judge(path, data[:length]) == ("damaged", "damaged"), length
        with pytest.raises(cnrfmt.CnrError):
            everything(path)


def test_bytes_past_the_committed_end_are_none_of_both(golden: Path, tmp_path: Path) -> None:
    data = golden.read_bytes() + b"\xff" * 5000
    path = tmp_path / "longer.cnr"
    path.write_bytes(data)
    assert judge(path, data) == ("sound", "sound")
    assert everything(path) == everything(golden)
    assert [f.rule for f in cnrfmt.verify(path).findings] == ["uncommitted"]
