"""Metadata that is small as text and large as objects: 64 MiB is legal, and is counted before it is parsed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import cnrfmt
from tests.attacks.support import MEMORY, Store, accepted, cases, in_child, lay, layout, refused

BOMBS = {"lists": "[]", "objects": "{}", "numbers": "1.5", "strings": '"ab"', "pairs": "[0,0]"}


def _metadata(item: str, size: int) -> Store:
    text = ",".join([item] * (size // (len(item) + 1)))
    return cases.one_small(hooks={"json text": cases.swap('"metadata":{}', f'"metadata":{{"a":[{text}]}}')})


def _open(path: Path, max_bytes: int | None) -> int:
    with cnrfmt.open(path, max_bytes=max_bytes) as ck:
        return len(ck.metadata["a"])


@pytest.mark.parametrize("bomb", BOMBS)
def test_it_is_counted_before_it_is_parsed(tmp_path: Path, bomb: str) -> None:
    item, size = BOMBS[bomb], 4 << 20
    path = lay(tmp_path / "hostile", _metadata(item, size))
    # What is allowed is enough for what is counted: 32 bytes for each byte.
    assert in_child(_open, path, 33 * size, memory=40 * size) == size // (len(item) + 1)
    error = in_child(_open, path, 31 * size)
    assert isinstance(error, cnrfmt.TooLargeError), repr(error)
    accepted(tmp_path, _metadata(item, 1 << 16), 32 << 20)


def test_the_machine_refuses_with_an_error_of_ours(tmp_path: Path) -> None:
    """Without a limit of the caller's, memory that isn't there ends in the same error."""
    path = lay(tmp_path / "hostile", _metadata("[]", 60 << 20))
    for work in (_open, _verify):
        error = in_child(work, path, None, memory=MEMORY)
        assert isinstance(error, cnrfmt.TooLargeError), repr(error)
        assert error.limit is None
    accepted(tmp_path, _metadata("[]", 1 << 16))


def _verify(path: Path, _: Any) -> str:
    return cnrfmt.verify(path, threads=1).verdict


def test_beyond_the_limit_it_isnt_read(tmp_path: Path) -> None:
    refused(tmp_path, _metadata("[]", (64 << 20) + 1000), "limit", memory=1 << 30)
    accepted(tmp_path, _metadata("[]", 1 << 10))


def _dense(item: str, size: int) -> Store:
    text = "[" + ",".join([item] * (size // (len(item) + 1))) + "]"

    def content(segment: layout.Segment) -> None:
        segment.blob("a", "json", text.encode())

    return cases.one_small(content=content, tables=(), dense=True)


def _read_dense(path: Path, max_bytes: int | None) -> int:
    with cnrfmt.open(path, max_bytes=max_bytes) as ck:
        return len(ck.dense["a"])


def test_dense_state_is_counted_too(tmp_path: Path) -> None:
    size = 4 << 20
    path = lay(tmp_path / "hostile", _dense("[]", size))
    assert in_child(_read_dense, path, 33 * size, memory=40 * size) == size // 3
    assert isinstance(in_child(_read_dense, path, 31 * size), cnrfmt.TooLargeError)
    accepted(tmp_path, _dense("[]", 1 << 16), 32 << 20)
