"""Lists of retained versions that lie: of the wrong bytes, of the head itself, of the future, of everything at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.attacks.support import accepted, cases, refused

ALSO = (
    "manifest-digest",
    "manifest-identity",
    "manifest-parent",
    "block-magic",
    "block-length",
    "span",
    "file-gap",
    "file-missing",
    "limit",
)


def _two(change: Any = None, *, folder: bool) -> Any:
    return cases.two(cases.user, hooks={"json": change} if change else {}, folder=folder)


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize(
    ("number", "value", "rule"),
    [
        (0, 1, "manifest-parent"),
        (0, 7, "manifest-parent"),
        (3, "0" * 16, "manifest-parent"),
        (2, 64 << 20, "span"),
        (2, (1 << 53) - 1, "span"),
    ],
)
def test_one_field_of_an_entry(tmp_path: Path, number: int, value: Any, rule: str, folder: bool) -> None:
    """The version, the digest, the length."""
    if rule == "span" and folder:
        rule = "block-length"
    hostile = _two(cases.put("versions", 0, number, value), folder=folder)
    refused(tmp_path, hostile, *_order(rule), read=rule == "manifest-parent")
    accepted(tmp_path, _two(folder=folder))


def _order(rule: str) -> tuple[str, ...]:
    return (rule, *ALSO)


@pytest.mark.parametrize("offset", [0, 4096, 12288, 1 << 40])
def test_an_entry_that_names_another_place(tmp_path: Path, offset: int) -> None:
    hostile = _two(cases.put("versions", 0, 1, offset), folder=False)
    refused(tmp_path, hostile, *_order("span" if offset != 12288 else "block-magic"), read=False)
    accepted(tmp_path, _two(folder=False))


def test_more_versions_than_there_may_be(tmp_path: Path) -> None:
    def many(value: Any) -> None:
        value["versions"] = [[n, *value["versions"][0][1:]] for n in range(4097)]

    refused(tmp_path, _two(many, folder=True), *_order("limit"))
    accepted(tmp_path, _two(folder=True))


def test_the_same_manifest_under_many_versions(tmp_path: Path) -> None:
    """Reading it again and again for each of them is all that it could cost."""

    def many(value: Any) -> None:
        value["versions"] = [[n, *value["versions"][0][1:]] for n in range(4096)]
        value["parent"] = {"version": 4095, "digest": value["versions"][0][3]}

    hostile = cases.two(cases.user, hooks={"json": many, "manifest": cases.u64(56, lambda _: 4096)})
    refused(tmp_path, hostile, *_order("manifest-identity"), "slot", read=False)
    accepted(tmp_path, _two(folder=False))
