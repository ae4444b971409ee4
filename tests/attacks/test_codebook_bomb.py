"""Codebooks many times as large as the rows that they serve, one section for each element: all of it is legal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt.encodings.codebook import CodebookCoder
from tests.attacks.growth import size_of
from tests.attacks.support import Store, accepted, cases, container, encodings, in_child, lay, layout

COUNT, WIDTH = 1 << 16, 8
BOOKS = 32 * COUNT // 2
"""Bytes of the codebooks of a part: 16 halves for each two rows, which take two bytes."""


def _store(count: int, width: int, parts: int, last: float = 0) -> Store:
    """A table whose elements are shared out among so many parts, of the same rows; `last` ends each's codebooks."""
    schema = container.schema("wide", "wide", count, width, container.column("weight", "float32", [width]))
    encoding = encodings.codebook(4, "float16", 2)

    def content(segment: layout.Segment) -> None:
        table = layout.Table(segment, cases.table_id(schema), count)
        span, each = table.span(0, count - 1), width // parts
        for first in range(0, width, each):
            codes = bytes(-(-each // 2) * count)
            books = bytes(32 * -(-count // 2) - 2) + encodings.numbers([last], "float16")
            table.part("weight", span, (first, first + each), encoding, codes, codebooks=books)

    return cases.one_small(content=content, tables=[schema])


def _row(path: Path, max_bytes: int | None, backend: Any) -> Any:
    with cnrfmt.open(path, max_bytes=max_bytes, backend=backend, threads=1) as ck:
        return [ck["wide"][row].tolist() for row in (COUNT - 1, 0)]


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_they_are_counted_before_they_are_read(tmp_path: Path, backend: str) -> None:
    """Each part's, though all have the same rows: halves become twice as large, beside their section."""
    path = lay(tmp_path / "hostile", _store(COUNT, WIDTH, WIDTH))
    taken = 3 * WIDTH * BOOKS
    error = in_child(_row, path, taken - 1, backend)
    assert isinstance(error, cnrfmt.TooLargeError), repr(error)
    assert "what its rows share" in str(error)
    # What is allowed is enough for what is counted; the file itself may be mapped.
    memory = taken + (32 << 20)
    assert in_child(_row, path, taken + (1 << 20), backend, memory=memory) == [[0.0] * WIDTH] * 2
    accepted(tmp_path, _store(64, WIDTH, WIDTH), 1 << 20)


def _findings(path: Path) -> list[tuple[str, str]]:
    return [(found.rule, found.place) for found in cnrfmt.verify(path, threads=1).findings]


def test_they_are_judged_in_bounded_memory(tmp_path: Path) -> None:
    """Some megabytes at a time, besides the file, which is mapped."""
    count = 1 << 21
    path = lay(tmp_path / "hostile", _store(count, 2, 1, float("nan")))
    memory = size_of(path) + (32 << 20)
    ((rule, place),) = in_child(_findings, path, memory=memory)
    assert rule == "row-parameter"
    assert place.endswith(f"codebook {count // 2 - 1}")
    assert in_child(_findings, lay(tmp_path / "twin", _store(count, 2, 1)), memory=memory) == []


def test_they_are_decoded_once_however_many_threads_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, count = lay(tmp_path / "wide", _store(1 << 18, WIDTH, 1)), 0
    original = CodebookCoder.codebooks

    def codebooks(coder: CodebookCoder, section: Any) -> Any:
        nonlocal count
        count += 1
        return original(coder, section)

    monkeypatch.setattr(CodebookCoder, "codebooks", codebooks)
    with cnrfmt.open(path, threads=8) as ck:
        whole = ck["wide"][...]
        assert whole.shape == (1 << 18, WIDTH)
        assert not np.any(whole)
        assert ck["wide"][5].shape == (WIDTH,)
    assert count == 1
