"""Attachments that claim more than they hold, name bytes twice, or are larger than they may be."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.support import Store, accepted, cases, refused


def _attached(hooks: Any = None) -> Store:
    return cases.one_small(hooks=hooks, attach=[0])


@pytest.mark.parametrize("toc", [[0, 1 << 40], [1 << 52, 1 << 52], [1, 100], [0, 0], [0, 1]])
def test_an_entry_that_claims_other_bytes(tmp_path: Path, toc: list[int]) -> None:
    refused(tmp_path, _attached({"json": cases.put("chain", 0, "toc", toc)}), "attachment")
    accepted(tmp_path, _attached())


@pytest.mark.parametrize("more", [1, 4096])
def test_attachments_that_nobody_names(tmp_path: Path, more: int) -> None:
    refused(tmp_path, _attached({"attachments": lambda raw: bytes(raw) + bytes(more)}), "attachment")
    refused(tmp_path / "alone", cases.one_small(hooks={"attachments": lambda raw: bytes(more)}), "attachment")
    accepted(tmp_path, _attached())


def test_an_attachment_of_other_bytes(tmp_path: Path) -> None:
    """A reader trusts the trailer's digest, and takes no other table of contents for the segment's."""
    changed = {"attachments": lambda raw: bytes(raw).replace(b'"rows":4', b'"rows":5')}
    refused(tmp_path, _attached(changed), "attachment", "toc-digest")
    accepted(tmp_path, _attached())


def test_attachments_beyond_the_limit(tmp_path: Path) -> None:
    """64 MiB and one byte: refused for its length, before it is looked into."""
    size = (64 << 20) + 1

    def claimed(value: Any) -> None:
        value["chain"][0]["toc"] = [0, size]

    hostile = _attached({"attachments": lambda raw: bytes(size), "json": claimed})
    refused(tmp_path, hostile, "limit", "attachment", memory=1 << 30)
    accepted(tmp_path, _attached())


@pytest.mark.parametrize("what", ["J", "A"])
def test_lengths_that_the_file_doesnt_hold(tmp_path: Path, what: str) -> None:
    at = 64 if what == "J" else 72
    spoil = cases.poke(at, struct.pack("<Q", 64 << 20))
    refused(tmp_path, _attached({"manifest": spoil}), "block-length")
    accepted(tmp_path, _attached())
