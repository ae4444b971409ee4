"""What a single file's own pages say: its slots, the spans that they lead to, and the gaps between these."""

from __future__ import annotations

import numpy as np

from cnrfmt.errors import DamagedError
from cnrfmt.format.blocks import FIRST_SPAN, Slot
from cnrfmt.format.limits import PAGE
from cnrfmt.storage.base import Container, FileFacts
from cnrfmt.storage.source import Source
from cnrfmt.verification.report import Report

Spans = dict[tuple[int, int], str]
"""Offset and length of each span of a file, and what it is."""

_ZERO_STEP = 1 << 20


def check_slots(slots: list[Slot], size: int, report: Report) -> None:
    """How the sound slots of a file fit each other and its size; raises `DamagedError`."""
    path = report.path
    if len(slots) == 2:
        a, b = slots
        same = a.version == b.version
        facts = [(s.manifest_offset, s.manifest_length, s.manifest_digest) for s in slots]
        if a.version < b.version or (same and facts[0] != facts[1]):
            raise DamagedError(
                "slot-order",
                f"{path}: slots",
                expected="slot A at the version of slot B or a newer one",
                found=f"versions {a.version} and {b.version}",
            )
        if not same:
            found = f"slot A names version {a.version}, slot B version {b.version}"
            report.note(
                "commit-unfinished", f"{path}: slots", found, "the next writer finishes it"
            )
    if slots:
        end = max(slots, key=lambda s: s.version).committed_end
        if size < end:
            raise DamagedError(
                "file-length", path, expected=f"at least {end} bytes", found=size
            )
        if size > end:
            report.note(
                "uncommitted", path, f"{size - end} bytes past the committed end",
                "the next writer reclaims them",
            )


def head_slot(container: Container) -> Slot | None:
    """The sound slot of the newest version; None if there is none, or no file."""
    facts = container.inspect()
    known = container.container_id
    if not isinstance(facts, FileFacts) or known is None:
        return None
    found = []
    for number, page in enumerate(facts.slot_pages):
        try:
            found.append(Slot.parse(page, "", number=number, container_id=known))
        except DamagedError:
            continue
    return max(found, key=lambda s: s.version, default=None)


def check_spans(spans: Spans, report: Report) -> set[int]:
    """That each span lies behind the one before it; gives the offsets of those that don't."""
    end = 0
    name = "the slots"
    overlapping: set[int] = set()
    for (offset, length), what in sorted(spans.items()):
        if offset < end:
            overlapping.add(offset)
        if offset % PAGE or offset < max(end, FIRST_SPAN):
            report.add(
                DamagedError(
                    "span",
                    f"{report.path}: {what}",
                    expected=f"a span behind {name}, at a multiple of {PAGE}",
                    found=f"{length} bytes at {offset}",
                )
            )
        end, name = max(end, offset + length), what
    return overlapping


def check_gaps(source: Source, slot: Slot | None, spans: Spans, report: Report) -> None:
    """That every byte between spans is zero, up to the committed end."""
    end = min(slot.committed_end, source.length) if slot else FIRST_SPAN
    position = FIRST_SPAN
    for offset, length in [*sorted(spans), (end, 0)]:
        for start in range(position, min(offset, end), _ZERO_STEP):
            gap = np.empty(min(_ZERO_STEP, min(offset, end) - start), np.uint8)
            source.pread_into(start, gap)
            if gap.any():
                report.add(
                    DamagedError(
                        "file-gap",
                        f"{report.path}: byte {start + int(np.argmax(gap != 0))}",
                        expected="zero between spans",
                        found="another byte",
                    )
                )
        position = max(position, offset + length)
