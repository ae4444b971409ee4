"""Bytes that nobody owns: holes between sections, spans and pages, where something may hide."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.support import accepted, cases, layout, refused


def test_a_section_that_starts_too_late(tmp_path: Path) -> None:
    """A hole of 64 bytes, all zero."""

    def late(places: list[list[int]]) -> None:
        places[1][0] += 64

    refused(tmp_path, cases.one_small(hooks={"places": late}), "section-geometry")
    accepted(tmp_path, cases.one_small())


def test_bytes_hidden_between_sections(tmp_path: Path) -> None:
    hidden = cases.one_small(hooks={"data": cases.poke(128 + 48, b"hidden")})
    refused(tmp_path, hidden, "section-zero", read=False)
    accepted(tmp_path, cases.one_small(hooks={"data": cases.poke(128 + 48, bytes(6))}))


@pytest.mark.parametrize("at", [128, 4096 + 128, 12288 - 1])
def test_bytes_hidden_in_the_pages_in_front(tmp_path: Path, at: int) -> None:
    # One unsound slot loses nothing, so that a reader goes on with the other.
    rule = "file-header" if at < layout.PAGE else "slot"
    refused(tmp_path, cases.one(hooks={"file": _poked(at, b"x")}), rule, read=False)
    accepted(tmp_path, cases.one(hooks={"file": _poked(at, b"\0")}))


def test_bytes_hidden_between_spans(tmp_path: Path) -> None:
    refused(tmp_path, cases.one(hooks={"file": _poked(-1, b"x")}), "file-gap", read=False)
    accepted(tmp_path, cases.one(hooks={"file": _poked(-1, b"\0")}))


def _poked(at: int, byte: bytes) -> layout.Hook:
    def change(raw: bytearray) -> None:
        raw[at] = byte[0]

    return change
