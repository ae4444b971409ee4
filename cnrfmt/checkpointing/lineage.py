"""What a training run knows of its container: the versions that it builds on, and that nobody else was there."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from cnrfmt import sorted_ids
from cnrfmt.arrays import Ids
from cnrfmt.checkpoint import Checkpoint
from cnrfmt.checkpointing.policies import Decision
from cnrfmt.errors import ConflictError, UsageError, VersionNotFoundError
from cnrfmt.format.manifest import Manifest
from cnrfmt.memory import Budget
from cnrfmt.reader import open
from cnrfmt.run_record import CheckpointRecord, RunRecord, record_of
from cnrfmt.segment_reader import Verify
from cnrfmt.step_rows import tombstones, touched
from cnrfmt.storage.fs import Fs
from cnrfmt.view import View


@dataclass
class Lineage:
    """The run and its place in the container's history.

    Attributes
    ----------
    path
        The container.
    run
        The id of the run.
    head
        The newest version that the run knows of; None where there is none.
    base
        The version that the live tables go on from: the last one that the run committed or restored. None: the next
        checkpoint has to be a baseline.
    baseline
        The version that the chain of `base` begins with, as if it were the newest.
    restores
        How often the run went on from a checkpoint.
    checkpoints
        Those since the baseline, on the way to `base`.
    unsettled
        The state of an attempt of which it isn't known whether it counts.
    fs
        The file system of the container; the real one if None.
    """

    path: str
    run: str
    head: Manifest | None = None
    base: Manifest | None = None
    baseline: Manifest | None = None
    restores: int = 0
    checkpoints: tuple[CheckpointRecord, ...] = ()
    unsettled: bytes | None = None
    fs: Fs | None = None

    def base_for(self, decision: Decision) -> Manifest | None:
        """What a checkpoint of that kind is put on."""
        if decision == "baseline":
            return None
        return self.base if decision == "delta" else self.baseline

    def check(self, head: Manifest | None) -> None:
        """Goes on from a head that says the same as the one known; raises `ConflictError` for any other.

        Merging, tagging and collecting, whoever does it, commit versions of the same state.
        """
        known = self.head
        if (None if head is None else head.digest) == (None if known is None else known.digest):
            return
        record = None if head is None else record_of(head)
        if head is None or known is None or head.state != known.state or record is None or record.run != self.run:
            whose = "by something that leaves no record of a run"
            if record is not None:
                same = record.run == self.run
                whose = "by another manager of this run, or by an append to it" if same else f"by run {record.run[:8]}…"
            found = "nothing is there any more"
            if head is not None:
                found = f"version {head.version} is there now, committed {whose}"
            raise ConflictError(
                f"{self.path}: another run wrote here: {found}, where this run ({self.run[:8]}…) knows of "
                f"{'no version' if known is None else f'version {known.version}'}; nothing was committed: "
                "find out which run should go on, and restore from its newest version"
            )
        going_on = self.base is not None
        self.adopt(head)
        if going_on and self.base is None:
            raise ConflictError(
                f"{self.path}: the version that this run went on from was removed by somebody else; nothing was "
                "committed: the next checkpoint is a baseline"
            )

    def settle(self, head: Manifest | None) -> None:
        """Learns from the head whether the attempt in doubt counts."""
        if head is not None and head.state == self.unsettled:
            record = record_of(head)
            self.head = self.base = head
            self.checkpoints = () if record is None else record.since_baseline()
            if len(head.steps()) == 1:
                self.baseline = head
        self.unsettled = None

    def adopt(self, head: Manifest) -> None:
        """Takes a head that says what the one before it said."""
        base, baseline = self.base, self.baseline
        if base is not None and base.state == head.state:
            base = head
            if baseline is not None and head.chain[: len(baseline.chain)] != baseline.chain:
                # It was merged with deltas, or lies somewhere else now. What is marked since then says too much, which
                # does no harm.
                with open(self.path, version=head.version, fs=self.fs) as ck:
                    baseline = baseline_of(ck.view)
        elif base is not None and base.version not in {retained.version for retained in head.versions}:
            base = baseline = None
        # A head that couldn't be looked at isn't adopted: the segments of the old baseline may go with the next files.
        self.head, self.base, self.baseline = head, base, baseline

    def committed(self, manifest: Manifest, checkpoint: CheckpointRecord) -> None:
        """A checkpoint of this run is durable."""
        record = record_of(manifest)
        if record is not None:
            # Of several ranks, the first one names the run.
            self.run = record.run
        self.head = self.base = manifest
        if checkpoint.kind == "baseline":
            self.baseline, self.checkpoints = manifest, (checkpoint,)
        else:
            self.checkpoints = (*self.checkpoints, checkpoint)

    def restored(self, head: Manifest, base: Manifest | None, baseline: Manifest | None) -> None:
        """The live tables are those of `base` now; None where they are something else."""
        record = record_of(head if base is None else base)
        newest = record_of(head)
        self.head, self.base, self.baseline = head, base, baseline
        if newest is not None:
            self.run = newest.run
            self.restores = newest.restores
        self.restores += 1
        self.checkpoints = () if record is None else record.since_baseline()

    def record(self, head: Manifest | None, policy: str, expected: float | None) -> RunRecord:
        """What the next commit leaves, before its own checkpoint is put in."""
        known = None if head is None else record_of(head)
        before = RunRecord(self.run) if known is None else known
        return replace(
            before,
            run=self.run,
            policy=policy,
            restores=self.restores,
            expected_restores=expected,
        )


def new_run() -> str:
    """The id of a run that begins."""
    return secrets.token_hex(16)


def baseline_of(view: View) -> Manifest:
    """The baseline of an open version as a version of its own: its tables have the rows that they had then."""
    manifest = view.manifest
    step = manifest.steps()[0]
    rows = {
        table_id: entry.rows
        for segment in step
        for table_id, entry in view.segments[segment.segment].toc.by_table.items()
    }
    names = {segment.segment for segment in step}
    return replace(
        manifest,
        state=step[0].to_state,
        chain=tuple(step),
        tables=tuple(replace(t, rows=rows[t.table_id]) for t in manifest.tables if t.table_id in rows),
        attachments=manifest.attachments[: sum(entry.toc[1] for entry in step if entry.toc is not None)],
        dense=manifest.dense if manifest.dense in names else None,
    )


def since_baseline(view: View) -> dict[str, Ids]:
    """Of each table, the ids or keys that the deltas of an open version write or delete."""
    manifest = view.manifest
    after = manifest.steps()[0][0].to_state
    found = {}
    for table in manifest.tables:
        steps = view.steps_of(table.table_id, after=after)
        what = f"table {table.name!r}"
        found[table.name] = sorted_ids.union(touched(steps, Budget(None), what), tombstones(steps, Budget(None), what))
    return found


@contextmanager
def open_version(
    path: str, version: int | None, step: int | None, tag: str | None, verify_all: bool, fs: Fs | None
) -> Iterator[tuple[Checkpoint, Manifest]]:
    """The version of that number, step or tag, or the newest, and the head.

    Of several versions of one step it is the newest. `verify_all` checks every byte of it first. Raises `UsageError`
    where more than one is given, and what `open` raises.
    """
    if sum(x is not None for x in (version, step, tag)) > 1:
        raise UsageError("give one of version, step and tag")
    verify: Verify = "all" if verify_all else "touched"
    if version is None and step is None and tag is None:
        with open(path, verify=verify, fs=fs) as ck:
            yield ck, ck.manifest
        return
    with open(path, fs=fs) as newest:
        head = newest.manifest
        if tag is not None:
            version = (record_of(head) or RunRecord("")).tags.get(tag)
            if version is None:
                raise VersionNotFoundError(f"{path}: no version has the tag {tag!r}")
        if step is not None and newest.step != step:
            version = _version_of_step(newest, step, fs)
        version = head.version if version is None else version
    with open(path, version=version, verify=verify, fs=fs) as ck:
        yield ck, head


def _version_of_step(newest: Checkpoint, step: int, fs: Fs | None) -> int:
    steps = []
    for version in reversed(newest.versions[:-1]):
        with open(newest.path, version=version, fs=fs) as ck:
            if ck.step == step:
                return version
            steps.append(ck.step)
    raise VersionNotFoundError(
        f"{newest.path}: no version that is retained has step {step}; there are "
        f"{', '.join(map(str, sorted({s for s in (newest.step, *steps) if s is not None}))) or 'none with a step'}"
    )


def check_may_begin(path: str, head: Manifest | None) -> None:
    """That a run which restored nothing may write here; raises `UsageError`."""
    if head is not None:
        raise UsageError(
            f"{path}: version {head.version} is there already (step {head.step}); restore() goes on from it, and "
            'CheckpointManager(..., start="anew") begins another run with a baseline'
        )
