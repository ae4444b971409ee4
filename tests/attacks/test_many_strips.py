"""Parts by the thousand whose bounds cut a column into as many strips, with tombstones in each: squares of the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from tests.attacks.support import Store, accepted, cases, container, in_child, layout, refused, rows

BYTE = {"name": "raw", "dtype": "uint8"}


def _keyed(count: int, deltas: int, piece: Callable[[int], tuple[int, int]], width: int) -> Store:
    """A table whose baseline has `count` parts of one row each, and further versions that delete another row."""
    column = container.column("weight", "uint8", [width])
    schema = container.schema("wide", "wide", None, width, column)
    store = Store(folder=True)
    baseline = layout.Segment("A", None, layout.state("0"))
    table = layout.Table(baseline, cases.table_id(schema), None)
    for number in range(count):
        first, end = piece(number)
        index = table.index("raw", [number], rows.raw([number]))
        table.part("weight", index, (first, end), BYTE, bytes([number % 251]) * (end - first))
    chain = [store.put(baseline)]
    for number in range(deltas):
        delta = layout.Segment(f"B{number}", layout.state(str(number)), layout.state(str(number + 1)))
        gone = layout.Table(delta, cases.table_id(schema), None)
        gone.json["deleted"] = gone.index("raw", [count + number], rows.raw([count + number]))
        chain.append(store.put(delta))
    store.commit(layout.state(str(deltas)), [schema], chain)
    return store


def _shape(path: Path) -> Any:
    with cnrfmt.open(path, threads=1) as ck:
        table = ck["wide"]
        last = table.at[len(table) - 1]
        return len(table), int(last.sum()), last.shape


@pytest.mark.parametrize("nested", [False, True])
def test_strips_cost_what_the_file_has(tmp_path: Path, nested: bool) -> None:
    """Side by side, or each within the one before: strips x parts is more than the bytes that are there."""
    count, deltas = 400, 20
    width = 2 * count

    def piece(number: int) -> tuple[int, int]:
        return (number, width - number) if nested else (number, number + 1)

    few = accepted(tmp_path / "few", _keyed(3, 2, lambda n: (n, n + 1), 6))
    assert in_child(_shape, few) == (3, 2, (6,))
    path = accepted(tmp_path, _keyed(count, deltas, piece, width))
    size = sum(file.stat().st_size for file in path.rglob("*"))
    rows_, total, shape = in_child(_shape, path, memory=16 * size + (128 << 20))
    assert (rows_, shape) == (count, (width,))
    assert total == (count - 1) % 251 * (2 if nested else 1)


def _many_parts(path: Path, count: int) -> None:
    """One column of one row in as many parts as a table may have, side by side."""
    column = container.column("weight", "uint8", [count])
    schema = container.schema("wide", "wide", 1, count, column)

    def content(segment: layout.Segment) -> None:
        table = layout.Table(segment, cases.table_id(schema), 1)
        span = table.span(0, 0)
        for number in range(count):
            table.part("weight", span, (number, number + 1), BYTE, bytes([number % 251]))

    store = cases.one_small(content=content, tables=[schema])
    for name, data in dict(store.build()).items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        assert isinstance(data, bytes)
        file.write_bytes(data)


def _wide(path: Path) -> Any:
    with cnrfmt.open(path, threads=1) as ck:
        return np.array_equal(ck["wide"][0], np.arange(ck["wide"].shape[1]) % 251)


def test_as_many_parts_as_there_may_be(tmp_path: Path) -> None:
    path = tmp_path / "wide"
    _many_parts(path, 65536)
    assert in_child(_wide, path, memory=1 << 30)
    report = in_child(_verdict, path, memory=1 << 30)
    assert report == "sound"


def _verdict(path: Path) -> str:
    return cnrfmt.verify(path, threads=1).verdict


def test_interleaved_parts_by_the_thousand(tmp_path: Path) -> None:
    """Each holds every n-th row: comparing them two by two would cost the square of their number."""
    count, each = 800, 4

    def store(shared: bool) -> Store:
        parts = [[number + k * count for k in range(each)] for number in range(count)]
        if shared:
            parts[-1] = sorted([*parts[-1][:-1], parts[0][-1]])

        def content(segment: layout.Segment) -> None:
            table = layout.Table(segment, cases.table_id(cases.VISITOR), None)
            for ids in parts:
                index = table.index("raw", ids, rows.raw(ids))
                cases.floats(table, "weight", index, cases.weights(each))

        return cases.one_small(content=content, tables=[cases.VISITOR])

    refused(tmp_path, store(True), "part-overlap", read=False)
    accepted(tmp_path, store(False))
