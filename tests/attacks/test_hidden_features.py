"""Feature bits in one place that another hides: an old reader would take for known what it doesn't know."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

import cnrfmt
from tests.attacks.support import Store, accepted, cases, in_child, lay, layout, outcome, refused

COMPAT, RO_COMPAT, INCOMPAT = (1, 0, 0), (0, 1, 0), (0, 0, 1)


def _masked(segment: tuple[int, int, int], manifest: tuple[int, int, int]) -> Store:
    store = Store(folder=True)
    made = layout.Segment("A", None, cases.A, masks=segment)
    cases.user(made)
    store.commit(cases.A, [cases.USER], [store.put(made)], masks=manifest)
    return store


@pytest.mark.parametrize("mask", [COMPAT, RO_COMPAT])
def test_a_bit_that_the_manifest_doesnt_name(tmp_path: Path, mask: tuple[int, int, int]) -> None:
    refused(tmp_path, _masked(mask, (0, 0, 0)), "feature-union", read=False)
    accepted(tmp_path, _masked(COMPAT, COMPAT))


@pytest.mark.parametrize("where", ["segment", "manifest", "both"])
def test_a_bit_that_forbids_reading(tmp_path: Path, where: str) -> None:
    """No verdict, neither sound nor damaged; a reader refuses what a manifest names."""
    hostile = _masked(INCOMPAT if where != "manifest" else (0, 0, 0), INCOMPAT if where != "segment" else (0, 0, 0))
    found = in_child(outcome, lay(tmp_path / "hostile", hostile))
    assert (found.verify, found.cnrcheck) == ("unjudged", "unjudged")
    if where != "segment":
        assert all(isinstance(error, cnrfmt.UnsupportedError) for error in found.read.values())
    accepted(tmp_path, _masked((0, 0, 0), (0, 0, 0)))


@pytest.mark.parametrize("major", [0, 2, 257, 65535])
def test_another_major_version_hides_nothing(tmp_path: Path, major: int) -> None:
    """Content that this release can't judge is no damage."""
    hooks = {"header": cases.poke(8, struct.pack("<H", major)), "toc text": lambda text: b"\xff" + text}
    found = in_child(outcome, lay(tmp_path / "hostile", cases.one_small(hooks=hooks)))
    assert (found.verify, found.cnrcheck) == ("unjudged", "unjudged")
    accepted(tmp_path, cases.one_small(hooks={"header": cases.poke(10, struct.pack("<H", 9))}))


def test_further_keys_need_a_bit(tmp_path: Path) -> None:
    more = {"json": cases.put("surprise", 1)}
    refused(tmp_path, cases.one_small(hooks=more), "json-field")
    accepted(tmp_path, cases.one_small(hooks=more, masks=COMPAT))
