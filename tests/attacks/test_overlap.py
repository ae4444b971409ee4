"""Bytes that two owners claim: sections of a segment that overlap, spans of a file that do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.attacks.support import Store, accepted, cases, layout, refused


def test_sections_that_overlap(tmp_path: Path) -> None:
    def shifted(places: list[list[int]]) -> None:
        places[1][0] = places[0][0]

    refused(tmp_path, cases.one_small(hooks={"places": shifted}), "section-geometry")
    accepted(tmp_path, cases.one_small())


def test_a_manifest_within_a_segment(tmp_path: Path) -> None:
    refused(tmp_path, _versions(within=True), "span", read=False)
    accepted(tmp_path, _versions(within=False))


def _versions(*, within: bool) -> Store:
    """Two versions; the first one's manifest has a span of its own, or lies in a dense entry of the second."""
    store = Store()
    baseline = layout.Segment("A", None, cases.A)
    cases.user(baseline)
    chain = [store.put(baseline)]
    first = store.commit(cases.A, [cases.USER], chain)
    _, manifest = store.spans[1]
    delta = layout.Segment("B", cases.A, cases.B)
    # A section of this size starts at a page of its own, as a manifest must.
    delta.blob("room", "bytes", manifest.ljust(layout.NODE, b"\0"))
    chain.append(store.put(delta))
    if within:
        del store.spans[1]
        store.log[0] = replace(first, offset=chain[1]["offset"] + layout.PAGE)
    store.commit(cases.B, [cases.USER], chain, dense=delta.id)
    return store


def test_manifests_within_manifests(tmp_path: Path) -> None:
    """Each holds the one before in its attachments: reading them all would cost the square of the file."""
    refused(tmp_path, _history(40, nested=True), "span", "attachment", read=False)
    accepted(tmp_path, _history(40, nested=False))


def _history(count: int, *, nested: bool) -> Store:
    """So many versions of one state; where they are nested, each manifest holds the one before it."""
    store = Store()
    baseline = layout.Segment("A", None, cases.A)
    cases.user(baseline)
    chain = [store.put(baseline)]
    inner, starts = b"", []
    for version in range(count):
        commit = store.commit(cases.A, [cases.USER], chain, retain=())
        if nested:
            start = layout.up(commit.length - 8, layout.PAGE)
            attachments = bytes(start - (commit.length - 8)) + inner
            store.spans.pop()
            store.log.pop()
            store.end = commit.offset or 0
            hooks = {"attachments": lambda _, held=attachments: held}
            store.commit(cases.A, [cases.USER], chain, retain=(), version=version, hooks=hooks)
            inner = store.spans.pop()[1]
            starts.append(start)
    if nested:
        place = store.end = layout.up(store.end, layout.PAGE)
        store.store(inner, "")
        for number in reversed(range(count)):
            store.log[number] = replace(store.log[number], offset=place)
            place += starts[number]
    store.commit(cases.A, [cases.USER], chain)
    return store
