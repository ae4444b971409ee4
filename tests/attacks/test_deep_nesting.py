"""JSON nested so deep that a parser that calls itself runs out of stack."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.support import Store, accepted, cases, layout, refused


def _metadata(depth: int, opening: str = "[", closing: str = "]") -> Store:
    """User metadata of which the innermost array is nested `depth` deep; the manifest is the first level."""
    text = '{"metadata":{"a":' + opening * (depth - 2) + closing * (depth - 2) + "}"
    return cases.one_small(hooks={"json text": lambda raw: _put(raw, text)})


def _put(raw: bytes, text: str) -> bytes:
    return raw.replace(b'"metadata":{}', text[1:].encode())


@pytest.mark.parametrize("depth", [33, 1000, 1_000_000])
def test_metadata_nested_deep(tmp_path: Path, depth: int) -> None:
    refused(tmp_path, _metadata(depth), "json-syntax")
    refused(tmp_path / "objects", _metadata(depth, '{"":[', "]}"), "json-syntax")
    accepted(tmp_path, _metadata(32))


@pytest.mark.parametrize("depth", [33, 1_000_000])
def test_a_dense_entry_nested_deep(tmp_path: Path, depth: int) -> None:
    refused(tmp_path, _dense(depth), "json-syntax", "dense-entry")
    accepted(tmp_path, _dense(32))


def _dense(depth: int) -> Store:
    def content(segment: layout.Segment) -> None:
        segment.blob("deep", "json", b"[" * depth + b"]" * depth)

    return cases.one_small(content=content, tables=(), dense=True)
