"""Places outside of what holds them: sections beyond the data, spans beyond the committed end or among the pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.attacks.support import accepted, cases, layout, refused

BEYOND = 1 << 40


@pytest.mark.parametrize("offset", [0, 64, 4096, 8192, 12289, 1 << 20, BEYOND, (1 << 53) - 4096])
def test_a_segment_outside(tmp_path: Path, offset: int) -> None:
    hostile = cases.one(hooks={"json": cases.put("chain", 0, "offset", offset)})
    # What stands there is no segment, so that a validator may say that, too.
    refused(tmp_path, hostile, "span", "block-magic", "file-gap", "file-length", "limit", "trailer-digest")
    accepted(tmp_path, cases.one())


@pytest.mark.parametrize("length", [0, 1, 127, 1 << 20, BEYOND])
def test_a_segment_of_another_length(tmp_path: Path, length: int) -> None:
    hostile = cases.one(hooks={"json": cases.put("chain", 0, "length", length)})
    first = "span" if length > layout.PAGE else "block-length"
    refused(tmp_path, hostile, first, "block-length", "block-magic", "file-gap", "span", "block-digest")
    accepted(tmp_path, cases.one())


@pytest.mark.parametrize("number", [3, 1 << 20, (1 << 53) - 1])
@pytest.mark.parametrize("what", ["section", "rows"])
def test_a_reference_to_what_isnt_there(tmp_path: Path, what: str, number: int) -> None:
    hostile = cases.one_small(hooks={"toc": cases.put("tables", 0, "parts", 0, what, number)})
    refused(tmp_path, hostile, "section-reference", "baseline-tiling")
    accepted(tmp_path, cases.one_small())


@pytest.mark.parametrize("place", [[0, 64], [128 + 64, 48], [1 << 40, 48], [128, 0], [128, 1 << 40]])
def test_a_section_outside(tmp_path: Path, place: Any) -> None:
    hostile = cases.one_small(hooks={"toc": cases.put("sections", 0, place)})
    also = ("part-length", "section-reference", "section-zero", "baseline-tiling")
    refused(tmp_path, hostile, "section-geometry", *also)
    accepted(tmp_path, cases.one_small())


def test_a_file_that_ends_too_soon(tmp_path: Path) -> None:
    whole = cases.one().build()
    assert isinstance(whole, bytes)
    refused(tmp_path, whole[:-1], "file-length", "span", "block-length", "block-magic")
    accepted(tmp_path, whole + b"more than was committed")
