"""Chains and histories that lead back to themselves: whoever follows them goes round for ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.attacks.support import Store, accepted, cases, layout, refused


def _chain(*states: bytes | None) -> Store:
    """A version whose chain goes through these states; the first comes from none."""
    store = Store(folder=True)
    chain = []
    for number, (source, target) in enumerate(zip((None, *states), states, strict=False)):
        segment = layout.Segment(f"S{number}", source, target or b"")
        cases.user(segment)
        chain.append(store.put(segment))
    store.commit(states[-1] or b"", [cases.USER], chain)
    return store


@pytest.mark.parametrize(
    "states",
    [
        (cases.A, cases.B, cases.A),
        (cases.A, cases.B, cases.C, cases.B),
        (cases.A, cases.B, cases.A, cases.B),
    ],
)
def test_a_chain_that_returns_to_a_state(tmp_path: Path, states: Any) -> None:
    refused(tmp_path, _chain(*states), "chain-path")
    accepted(tmp_path, _chain(cases.A, cases.B, cases.C))


def test_a_step_from_a_state_to_itself(tmp_path: Path) -> None:
    hostile = _chain(cases.A, cases.A)
    refused(tmp_path, hostile, "chain-path", "segment-identity")
    accepted(tmp_path, _chain(cases.A, cases.B))


def test_a_segment_twice(tmp_path: Path) -> None:
    def again(value: Any) -> None:
        value["chain"].append(dict(value["chain"][0]))

    refused(tmp_path, cases.one_small(hooks={"json": again}), "chain-path", "part-overlap")
    accepted(tmp_path, cases.one_small())


@pytest.mark.parametrize("version", [0, 1, 2, (1 << 53) - 1])
def test_a_version_that_is_its_own_ancestor(tmp_path: Path, version: int) -> None:
    """Version 1 names itself, its future or its grandmother as its parent."""
    parent = {"version": version, "digest": "0" * 16}
    hostile = cases.two_small(cases.user, hooks={"json": cases.put("parent", parent)})
    refused(tmp_path, hostile, "manifest-parent", "manifest-digest")
    accepted(tmp_path, cases.two_small(cases.user))
