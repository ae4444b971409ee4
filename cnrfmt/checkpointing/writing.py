"""One checkpoint on its way from a snapshot to a version: written by one process, or by many together."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cnrfmt.arrays import Ids
from cnrfmt.checkpointing.contents import check_same_tables
from cnrfmt.checkpointing.encoding_rule import Chosen
from cnrfmt.checkpointing.keeping.retention import Keep, kept
from cnrfmt.checkpointing.lineage import Lineage
from cnrfmt.checkpointing.policies import Decision
from cnrfmt.checkpointing.ranks.agreement import agree, check_quantize
from cnrfmt.checkpointing.ranks.commit import commit_together
from cnrfmt.checkpointing.ranks.coordinator import Coordinator
from cnrfmt.checkpointing.ranks.meeting import Said, meet
from cnrfmt.checkpointing.ranks.shards import ShardPlan
from cnrfmt.checkpointing.request import Request
from cnrfmt.checkpointing.snapshot import Snapshot
from cnrfmt.commits import Attempt, Prepared, attempt
from cnrfmt.commits import Keep as KeepVersions
from cnrfmt.encodings.quantize import said_of
from cnrfmt.errors import ConflictError, UsageError
from cnrfmt.format.encoding import GridLayout
from cnrfmt.format.manifest import Manifest, Retained
from cnrfmt.format.schema import WEIGHT, TableSchema
from cnrfmt.plan import Plan
from cnrfmt.run_record import CheckpointRecord, RunRecord, by_words, metadata_with, record_of
from cnrfmt.storage.fs import Fs

_LOST = 0.99
"""A mean relative error beyond which rows are taken for lost: a row that reads as zeros has one of 1."""


@dataclass(frozen=True)
class Work:
    """A checkpoint that was begun: what was asked for, what is written, and what is said of it.

    `kind` tells on what it is put, and `differs_from` is the state that it holds differences from, if any; `policy` and
    `expected_restores` are for the record.
    """

    asked: Request
    kind: Decision
    plan: Plan | ShardPlan
    snapshot: Snapshot
    chosen: Chosen
    policy: str
    expected_restores: float | None
    differs_from: bytes | None

    @property
    def most_bits(self) -> int:
        """The bits per value of most weights that it writes, 0 for a grid; those of the run where it writes none."""
        found: dict[int, int] = {}
        for write in self.plan.writes:
            for column in write.columns:
                if column.column.name == WEIGHT and write.rows is not None:
                    layout = column.recipe.layout
                    bits = 0 if isinstance(layout, GridLayout) else getattr(layout, "bits", 8 * layout.row_bytes(1))
                    found[bits] = found.get(bits, 0) + write.rows.count * write.schema.dim
        return max(found, key=lambda bits: found[bits], default=self.chosen.bits)

    @property
    def rows(self) -> int:
        """How many rows it takes, of all tables that are here."""
        return sum(write.rows.count for write in self.plan.writes if write.rows is not None)

    @property
    def unsent(self) -> dict[str, Ids]:
        """The rows of these that weren't written, by table: they are stored as they are. Known once all is written."""
        return self.snapshot.unsent()

    @property
    def lost_in_steps(self) -> dict[str, float]:
        """Tables of a baseline whose steps are so long that rows read as zeros, with their mean relative errors.

        Rows that are zero have no error, so that a table of nothing else isn't among them. Known once all is written.
        """
        if self.kind != "baseline":
            return {}
        return {table: error for table, error in self.snapshot.mean_errors().items() if error > _LOST}

    @property
    def rows_written(self) -> int:
        """How many rows it wrote."""
        return self.rows - sum(len(ids) for ids in self.unsent.values())

    def record(self, manifest: Manifest, rows: int, *, wrote: bool) -> CheckpointRecord:
        """What the commit says of it; `manifest` names its segments already, if it has some of its own."""
        own = [entry for entry in manifest.chain if wrote and entry.to_state == manifest.state]
        return CheckpointRecord(
            manifest.version,
            manifest.step,
            manifest.created,
            self.kind,
            rows,
            sum(entry.length for entry in own),
            self.most_bits,
            len(manifest.chain),
            dict(self.asked.metrics),
        )


@dataclass(frozen=True)
class Written:
    """A version that is durable, and how long it took to write it and to commit it.

    `kept_all` says why no version was given up where the rules of what to keep couldn't be asked.
    """

    manifest: Manifest
    checkpoint: CheckpointRecord
    write_seconds: float
    commit_seconds: float
    kept_all: UsageError | None


@dataclass
class _Draft:
    """The manifest of a checkpoint: drafted on the head, completed when its segments are written."""

    work: Work
    lineage: Lineage
    keep: Keep
    words: Mapping[str, str]
    record: RunRecord | None = None
    wrote: bool = True
    written: float = 0.0
    kept_all: UsageError | None = None

    def begin(self, one: Attempt, tables: tuple[TableSchema, ...], *, content: bool) -> Manifest:
        work, lineage = self.work, self.lineage
        lineage.check(one.head)
        base = lineage.base_for(work.kind)
        if base is None and work.kind != "baseline":
            raise ConflictError(f"{lineage.path}: there is nothing that a delta could go on from")
        if base is not None and work.differs_from not in (None, base.state):
            raise ConflictError(
                f"{lineage.path}: the baseline was merged with later deltas while this checkpoint was made, which "
                "holds differences from it; nothing was committed, and the next one goes on from what was merged"
            )
        self.record = record = lineage.record(one.head, work.policy, work.expected_restores)
        version = 0 if one.head is None else one.head.version + 1
        # Its own length isn't known yet, and no rule asks for it.
        asked, bits = work.asked, work.chosen.bits
        newest = CheckpointRecord(version, asked.step, "", work.kind, 0, 0, bits, 0, asked.metrics)
        same = not content and base is not None
        self.wrote = not same
        keep = self._keeper(record, newest)
        return one.next(base, same_state=same, step=work.asked.step, keep=keep, tables=tables)

    def _keeper(self, record: RunRecord, newest: CheckpointRecord) -> KeepVersions:
        """Which versions stay readable beside a new one: all of them where the caller's own rule fails."""

        def choose(versions: tuple[Retained, ...]) -> tuple[Retained, ...]:
            there = {v.version for v in versions} | {newest.version}
            try:
                wanted = kept(self.keep, (*record.checkpoints, newest), record.tags, newest.version, there)
            except UsageError as error:
                # Its words alone: who keeps the error itself keeps all that was at work when it was raised.
                self.kept_all = UsageError(str(error))
                return versions
            return tuple(v for v in versions if v.version in wanted)

        return choose

    def complete(self, manifest: Manifest, rows: int) -> Manifest:
        self.written = time.perf_counter()
        assert self.record is not None
        work = self.work
        more = replace(
            self.record,
            checkpoints=(*self.record.checkpoints, work.record(manifest, rows, wrote=self.wrote)),
            tags={**self.record.tags, **dict.fromkeys(work.asked.tags, manifest.version)},
            encodings=by_words(self.words),
        )
        there = {retained.version for retained in manifest.versions} | {manifest.version}
        return replace(manifest, metadata=metadata_with(work.asked.metadata, more.only(there)))

    def committed(self, manifest: Manifest, began: float) -> Written:
        record = record_of(manifest)
        assert record is not None
        found = record.checkpoint(manifest.version)
        assert found is not None
        now = time.perf_counter()
        written = self.written or now
        return Written(manifest, found, written - began, now - written, self.kept_all)


def commit_alone(work: Work, lineage: Lineage, keep: Keep, *, threads: int, fs: Fs | None) -> Written:
    """Writes and commits a checkpoint of which this process has everything.

    Raises what `append` raises; nothing was committed then, `CommitUnknownError` aside.
    """
    began, draft, plan = time.perf_counter(), _Draft(work, lineage, keep, work.chosen.words), work.plan
    assert isinstance(plan, Plan)
    with attempt(lineage.path, replace=work.kind == "baseline", fs=fs) as one:
        base = lineage.base_for(work.kind)
        dropped = base is not None and {t.table_id for t in base.tables} != {t.table_id for t in plan.tables}
        dense = _dense(work, base)
        content = base is None or bool(plan.writes) or dense is not None or dropped
        manifest = draft.begin(one, plan.tables, content=content)
        if content:
            manifest = one.write(manifest, work.snapshot.writes, dense, threads=threads)
        manifest = one.commit(draft.complete(manifest, work.rows_written))
    return draft.committed(manifest, began)


def commit_with_others(
    work: Work, lineage: Lineage, keep: Keep, coordinator: Coordinator, *, threads: int, fs: Fs | None
) -> Written:
    """Writes this rank's part of a checkpoint and commits it with the others; every rank calls it.

    Raises what `commit_together` raises, and `UsageError` where the ranks don't save the same checkpoint.
    """
    began, plan = time.perf_counter(), work.plan
    assert isinstance(plan, ShardPlan)
    base = lineage.base_for(work.kind)
    schema = None if base is None else base.tables
    told = meet(coordinator, lambda: _said(work, plan.description, base))
    check_same_tables({name for one in told for name in one["tables"]}, schema or ())
    descriptions = [one["plan"].encode() for one in told]
    # Of a table that several ranks have, the first of them has its say.
    words = {name: text for one in reversed(told) for name, text in one["words"].items()}
    draft = _Draft(work, lineage, keep, words)
    agreement = agree(descriptions, schema)
    with said_of(work.chosen.argument):
        check_quantize(work.chosen.choices, schema or (), agreement.tables)
    writes = ShardPlan(tuple(work.snapshot.writes), plan.description).agreed(agreement.tables)
    dense = _dense(work, base) if coordinator.rank == 0 else work.asked.dense
    content = schema is None or agreement.content or dense is not None
    manifest = commit_together(
        coordinator,
        lineage.path,
        draft=lambda one: draft.begin(one, agreement.tables, content=content),
        writes=writes,
        dense=dense,
        note=lambda: str(work.rows_written).encode(),
        complete=lambda manifest, notes: draft.complete(manifest, sum(int(note) for note in notes)),
        threads=threads,
        fs=fs,
    )
    return draft.committed(manifest, began)


def _dense(work: Work, base: Manifest | None) -> Prepared | None:
    """The dense state that is written; None where there is none and was none before."""
    if work.asked.dense is None and base is not None and base.dense is not None:
        # What isn't given isn't taken over: it would be of another moment than the rows.
        return []
    return work.asked.dense


def _said(work: Work, description: bytes, base: Manifest | None) -> Said:
    """What the other ranks have to know of this one's part."""
    same = said_alike(work.asked, work.kind, work.chosen.bits, base)
    return {"same": same, "tables": list(work.asked.tables), "plan": description.decode(), "words": work.chosen.words}


def said_alike(asked: Request, kind: Decision, bits: int, base: Manifest | None) -> Said:
    """What all ranks have to say alike of a checkpoint."""
    return {
        "step": asked.step,
        "kind": kind,
        "bits": bits,
        "base": None if base is None else f"state {base.state.hex()}",
        "tags": list(asked.tags),
        "metrics": asked.metrics,
        "metadata": asked.metadata,
    }
