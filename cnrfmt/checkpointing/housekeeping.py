"""What a manager does when a checkpoint is durable: chains are kept short, and what isn't wanted goes."""

from __future__ import annotations

import logging

from cnrfmt.checkpointing.compacting.compaction import due_in, merge
from cnrfmt.checkpointing.events import Event, tell
from cnrfmt.checkpointing.keeping.collect import collect
from cnrfmt.checkpointing.lineage import Lineage
from cnrfmt.checkpointing.settings import Settings
from cnrfmt.errors import CnrError
from cnrfmt.format.manifest import ChainEntry
from cnrfmt.storage.fs import POSIX, Fs


def keep_house(lineage: Lineage, settings: Settings, *, ranks: int, fs: Fs | None) -> None:
    """Merges and collects what is due in a directory. What fails is logged, and tried after the next checkpoint again.

    No checkpoint is lost by that: the chain is as it was, and files that aren't wanted harm nobody.
    """
    try:
        found = (fs or POSIX).stat(lineage.path, follow=True)
        if found is not None and found.kind == "directory":
            _merge(lineage, settings, ranks, fs)
            _collect(lineage, settings, fs)
    except CnrError as error:
        # Its words alone: who keeps the record of an error itself keeps the files open that it came from.
        logging.getLogger("cnrfmt").warning("%s: keeping house failed: %s", lineage.path, str(error))


def _merge(lineage: Lineage, settings: Settings, ranks: int, fs: Fs | None) -> None:
    head = lineage.head
    assert head is not None
    # Each step of many ranks is as many segments.
    found = due_in(head, max(2, settings.most_segments // ranks), settings.merge_share)
    if found is None:
        return
    merged = merge(lineage.path, *found, expect=head, threads=settings.threads, fs=fs)
    lineage.adopt(merged)
    written: list[ChainEntry] = [entry for entry in merged.chain if entry not in head.chain]
    nbytes = sum(entry.length for entry in written)
    tell(settings.on_event, Event("merged", merged.step, merged.version, nbytes=nbytes))


def _collect(lineage: Lineage, settings: Settings, fs: Fs | None) -> None:
    removed = collect(lineage.path, grace=settings.grace, fs=fs)
    if removed.nbytes:
        tell(settings.on_event, Event("collected", nbytes=removed.nbytes))
