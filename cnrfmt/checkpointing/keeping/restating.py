"""Commits that change what is said of a container and not what is in it: other tags, fewer versions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from cnrfmt.commits import Attempt
from cnrfmt.errors import UsageError
from cnrfmt.format.manifest import Manifest
from cnrfmt.run_record import CheckpointRecord, RunRecord, metadata_with, user_metadata


def head_of(one: Attempt) -> Manifest:
    """The head that an attempt builds on; raises `UsageError` where there is none."""
    if one.head is None:
        raise UsageError(f"{one.tx.path}: no version was committed yet; save makes one")
    return one.head


def restate(one: Attempt, record: RunRecord | None, versions: Collection[int] | None = None) -> Manifest:
    """Commits the head's content once more, with this record, and gives the manifest.

    Of the earlier versions, these stay readable (all if None) and those that have tags. To a run's record the new
    version is a merge of the checkpoint that it repeats, one that needs no segment of its own.
    """
    head = head_of(one)
    user = user_metadata(head)
    manifest = one.next(
        head,
        same_state=True,
        step=head.step,
        keep=None if versions is None else lambda found: tuple(r for r in found if r.version in versions),
        metadata=metadata_with(user, record),
    )
    if record is not None:
        retained = {r.version for r in manifest.versions} | {manifest.version}
        record = _with_merge(record, head, manifest).only(retained)
    return one.commit(replace(manifest, metadata=metadata_with(user, record)))


def _with_merge(record: RunRecord, head: Manifest, manifest: Manifest) -> RunRecord:
    last = record.checkpoint(head.version)
    if last is None:
        # What was appended beside the run isn't in its record: then this version isn't, either.
        return record
    merge = CheckpointRecord(
        manifest.version, manifest.step, manifest.created, "merge", 0, 0, last.bits, len(manifest.chain), last.metrics
    )
    return replace(record, checkpoints=(*record.checkpoints, merge))
