"""Codebooks that are other things' bytes, or too few of them: reads beyond a section, and one section as two things."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.support import Store, accepted, cases, container, encodings, layout, parts, refused, rows

COUNT = 32
CODES = encodings.codebook(2, "float32", 16)
"""Of 32 rows of up to 4 elements, the codes take as many bytes as the two codebooks."""
BOOKS = [[0.0, 1.0, 2.0, 3.0], [-4.0, -5.0, -6.0, -7.0]]
SCHEMA = container.schema(
    "twins", "twins", COUNT, 3, *(container.column(name, "float32", [3]) for name in ("weight", "twin"))
)


def _twins(hook: layout.Hook | None = None) -> Store:
    """Two parts, each with codebooks of its own: the sections are codes, codebooks, codes, codebooks."""

    def content(segment: layout.Segment) -> None:
        table = layout.Table(segment, cases.table_id(SCHEMA), COUNT)
        span = table.span(0, COUNT - 1)
        for name in ("weight", "twin"):
            codes = encodings.coded([[k % 4, k // 4 % 4, 3] for k in range(COUNT)], 2)
            table.part(name, span, (0, 3), CODES, codes, codebooks=encodings.numbers(BOOKS, "float32"))

    return cases.one_small({"toc": hook} if hook else None, content, [SCHEMA])


def _named(part: int, section: int | None) -> layout.Hook:
    return cases.put("tables", 0, "parts", part, "codebooks", section)


@pytest.mark.parametrize("section", [0, 1, 2], ids=["codes", "codebooks", "its own codes"])
def test_a_section_that_is_something_else(tmp_path: Path, section: int) -> None:
    """All are as long as codebooks must be."""
    refused(tmp_path, _twins(_named(1, section)), "section-reference")
    accepted(tmp_path, _twins())


@pytest.mark.parametrize("section", [4, 1 << 31, (1 << 53) - 1])
def test_a_section_that_isnt_there(tmp_path: Path, section: int) -> None:
    refused(tmp_path, _twins(_named(1, section)), "section-reference")
    accepted(tmp_path, _twins())


def test_sections_in_another_order_are_legal(tmp_path: Path) -> None:
    accepted(tmp_path, _twins(cases.both(_named(0, 3), _named(1, 1))))


def test_no_codebooks(tmp_path: Path) -> None:
    refused(tmp_path, _twins(_named(1, None)), "part-length", "section-reference")
    accepted(tmp_path, _twins())


def _keyed(hook: layout.Hook | None = None) -> Store:
    """Four keys, whose row index is as long as the two codebooks."""
    encoding = encodings.codebook(2, "float32", 2)

    def content(segment: layout.Segment) -> None:
        table = layout.Table(segment, cases.table_id(cases.VISITOR), None)
        index = table.index("raw", cases.KEYS, rows.raw(cases.KEYS))
        books = encodings.numbers(BOOKS, "float32")
        table.part("weight", index, (0, 3), encoding, encodings.coded([[0, 1, 2]] * 4, 2), codebooks=books)

    return cases.one_small({"toc": hook} if hook else None, content, [cases.VISITOR])


def test_a_row_index_as_codebooks(tmp_path: Path) -> None:
    refused(tmp_path, _keyed(_named(0, 0)), "section-reference")
    accepted(tmp_path, _keyed())


@pytest.mark.parametrize("length", [1, 16, 31, 33, 48, 1 << 16])
def test_codebooks_of_another_length(tmp_path: Path, length: int) -> None:
    """Too few would make a kernel read beyond them."""
    blocks = parts.KINDS["blocks"]
    refused(tmp_path, parts.single(blocks, parts.zeros(blocks), codebooks=bytes(length)), "part-length")
    accepted(tmp_path, parts.single(blocks, parts.zeros(blocks), codebooks=bytes(32)))


@pytest.mark.parametrize("kind", sorted(parts.KINDS.keys() - {"blocks"}))
def test_codebooks_of_rows_that_share_none(tmp_path: Path, kind: str) -> None:
    encoding = parts.KINDS[kind]
    refused(tmp_path, parts.single(encoding, parts.zeros(encoding), codebooks=bytes(32)), "part-length")
    accepted(tmp_path, parts.single(encoding))
