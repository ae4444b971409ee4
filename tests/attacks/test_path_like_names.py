"""Names that look like paths: whoever joins them to a folder reads or writes what isn't his."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import cnrfmt
from tests.attacks.support import Store, accepted, cases, container, in_child, lay, layout, refused

PATHS = ["../../../etc/passwd", "/etc/passwd", "C:\\Windows\\x", "a/../b", ".", "..", "~", "$HOME", "-rf", "con"]


def _named(name: str) -> Store:
    """A table, a column and a dense entry of that name."""
    extra = container.column(name, "float32", [])
    schema = container.schema("user", name, 4, 3, cases.WEIGHT, extra)

    def content(segment: layout.Segment) -> None:
        table = cases.user(segment)
        table.json["parts"][1]["column"] = name
        segment.blob(name, "bytes", b"content")

    return cases.one_small(content=content, tables=[schema], dense=True)


@pytest.mark.parametrize("name", PATHS)
def test_a_path_is_a_name_like_any_other(tmp_path: Path, name: str) -> None:
    """Legal, and nothing is opened by that name: the folder is the same afterwards."""
    path = lay(tmp_path / "hostile", _named(name))
    before = sorted(os.walk(tmp_path))
    assert in_child(_read, path, name) == b"content"
    assert sorted(os.walk(tmp_path)) == before
    accepted(tmp_path, _named("name"))


def _read(path: Path, name: str) -> bytes:
    with cnrfmt.open(path) as ck:
        ck[name].read(column=name)
        found: bytes = ck.dense[name]
        return found


@pytest.mark.parametrize("name", ["", "a\0b", "a\nb", "\x1b[2J", "a\x7f", "x" * 1025, "\u00e9" * 513])
def test_a_name_that_is_none(tmp_path: Path, name: str) -> None:
    refused(tmp_path, _named(name), "json-name")
    accepted(tmp_path, _named("\u00e9" * 512))


@pytest.mark.parametrize("segment", ["../" * 10 + "xx", "A" * 32, "0" * 32, "/" * 32])
def test_a_segment_id_that_is_none(tmp_path: Path, segment: str) -> None:
    """The only text of a file that becomes part of a file's name."""
    hostile = cases.one_small(hooks={"json": cases.put("chain", 0, "segment", segment)})
    refused(tmp_path, hostile, "json-field")
    accepted(tmp_path, cases.one_small())
