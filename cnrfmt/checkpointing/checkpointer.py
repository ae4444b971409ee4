"""One checkpoint after the other, without futures and locks: planned, committed, merged and collected, restored."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from cnrfmt.checkpointing import contents
from cnrfmt.checkpointing.bases import Bases, HeldTables, OfChain, chain_of, held_by
from cnrfmt.checkpointing.contents import Touched
from cnrfmt.checkpointing.encoding_rule import Chain, Chosen, Seen
from cnrfmt.checkpointing.housekeeping import keep_house
from cnrfmt.checkpointing.kept_tables import Held, plan_of
from cnrfmt.checkpointing.lineage import Lineage, baseline_of, check_may_begin, new_run, open_version, since_baseline
from cnrfmt.checkpointing.policies import Consecutive, Decision, Full, History, Intermittent, OneShot
from cnrfmt.checkpointing.ranks.coordinator import Coordinator
from cnrfmt.checkpointing.ranks.meeting import plan_grids
from cnrfmt.checkpointing.ranks.shards import Shard, ShardPlan, plan_shards, summaries
from cnrfmt.checkpointing.request import Request
from cnrfmt.checkpointing.resuming.lazy_restore import LazyRestore
from cnrfmt.checkpointing.resuming.restored import Restored
from cnrfmt.checkpointing.resuming.restoring import restore_version
from cnrfmt.checkpointing.settings import Settings, is_directory
from cnrfmt.checkpointing.snapshot import Snapshot
from cnrfmt.checkpointing.stored_values import StoredValues
from cnrfmt.checkpointing.tracking.trackers import Trackers
from cnrfmt.checkpointing.writing import Work, Written, commit_alone, commit_with_others, said_alike
from cnrfmt.encodings.grid_plan import is_counted
from cnrfmt.encodings.quantize import Choices, said_of
from cnrfmt.errors import CnrError, CommitUnknownError, ConflictError, DamagedError, StorageError, UsageError
from cnrfmt.format import limits
from cnrfmt.format.manifest import Manifest
from cnrfmt.format.schema import TableSchema
from cnrfmt.plan import Plan, plan_baseline, plan_delta
from cnrfmt.reader import open
from cnrfmt.storage.base import LEFTOVER
from cnrfmt.storage.directory import MANIFESTS, SEGMENTS
from cnrfmt.storage.fs import POSIX, Fs
from cnrfmt.tabledata import TableData


@dataclass(frozen=True)
class Begun:
    """A checkpoint of which nothing is taken yet.

    `base` is the version that it is put on, `held` what this rank has of it, `stored` what is stored of that; `chain`
    has the grids of the tables that go on. `counts` knows how many checkpoints rows were in, also for a baseline.
    """

    asked: Request
    kind: Decision
    base: Manifest | None
    held: HeldTables
    stored: StoredValues | None
    chain: Chain
    counts: OfChain | None
    seen: tuple[Seen, ...]
    chosen: Chosen


@dataclass
class Checkpointer:
    """What a run knows of its container and of its tables. `coordinator` is None where there is one writer.

    `held` is what this rank had at the last checkpoint; `is_too_coarse` says that a restore asked for finer steps;
    `lazy` has the tables whose rows are still being restored, or were since the last checkpoint.
    """

    path: str
    settings: Settings
    coordinator: Coordinator | None
    fs: Fs | None
    lineage: Lineage = field(init=False)
    trackers: Trackers = field(init=False)
    bases: Bases = field(init=False)
    begun: bool = False
    is_too_coarse: bool = False
    places: dict[str, contents.Where] = field(default_factory=dict)
    held: HeldTables = None
    lazy: LazyRestore | None = None

    def __post_init__(self) -> None:
        settings = self.settings
        self.lineage = Lineage(self.path, new_run(), fs=self.fs)
        self.trackers = Trackers(keep_since_baseline=settings.policy.needs_since_baseline)
        self.bases = Bases(self.path, settings, self.fs)

    def begin(self) -> None:
        """Looks at what is there, if nobody did so yet, or if the last attempt left it open."""
        if self.begun and self.lineage.unsettled is None:
            return
        head = self._head()
        if self.begun:
            self.lineage.settle(head)
            return
        if self.settings.start == "resume":
            check_may_begin(self.path, head)
        self.lineage.head = head
        self.begun = True

    def _head(self) -> Manifest | None:
        try:
            with open(self.path, fs=self.fs) as ck:
                return ck.manifest
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        except DamagedError as error:
            # What the first writer leaves that died before its first commit.
            if error.rule == "directory-layout":
                return None
            raise

    def is_nothing_there(self) -> bool:
        """Whether no checkpoint was ever made here.

        A directory without any manifest or segment is what a scheduler makes, or a writer that died before its first
        commit. One that has segments may have lost its manifests: it is left to `open` to say so.
        """
        fs = self.fs or POSIX
        found = fs.stat(self.path, follow=True)
        if found is None or found.kind != "directory":
            return fs.stat(self.path) is None
        folders = [os.path.join(self.path, name) for name in (MANIFESTS, SEGMENTS)]
        names = [name for folder in folders if fs.stat(folder) is not None for name in fs.list_directory(folder)]
        others = set(fs.list_directory(self.path)) - {MANIFESTS, SEGMENTS}
        return not others and all(name.startswith(LEFTOVER) for name in names)

    def look(self, asked: Request) -> Begun:
        """On what a checkpoint is put, and how its tables are stored, as far as this process can tell."""
        settings, lineage, tables = self.settings, self.lineage, asked.tables
        if asked.tags and not is_directory(self.path):
            raise UsageError(f"{self.path}: a single file that is written anew keeps no version; tags need a directory")
        if lineage.base is not None and self.coordinator is None:
            contents.check_same_tables(set(tables), lineage.base.tables)
        kind = self._decide(asked)
        if kind == "since-baseline" and settings.rule.may_be_grid and self.coordinator is None:
            # Whoever merged the baseline with deltas made another one, from which differences are taken from now on.
            lineage.check(self._head())
            kind = self._decide(asked)
        base = lineage.base_for(kind)
        if base is not None:
            self._check_places(tables)
        held = None if self.coordinator is None else held_by(tables)
        stored = None if base is None else self.bases.of(lineage, base, held)
        chain = chain_of(tables, base, stored)
        known = {} if base is None else {schema.name: schema for schema in base.tables if schema.name in chain}
        seen = tuple(Seen.live(one, known.get(name)) for name, one in tables.items() if one.data is not None)
        chosen = settings.rule.choose(seen, lineage.restores, chain)
        return Begun(asked, kind, base, held, stored, chain, self._counts(tables, stored), seen, chosen)

    def _counts(self, tables: contents.Tables, stored: StoredValues | None) -> OfChain | None:
        """What knows how many checkpoints rows were in, of tables that go on or that a baseline begins anew."""
        store = stored or self.bases.counts(self.lineage)
        if store is None:
            return None
        plans = chain_of(tables, self.lineage.base, store)
        return OfChain(store, [name for name, plan in plans.items() if is_counted(plan)])

    def agree(self, begun: Begun) -> Begun:
        """The same with grids that ranks choose together: of tables that are on none yet and that several of them have.

        Only where there are such it waits for the other ranks. What it raises is raised on all of them.
        """
        asked, kind, base, coordinator = begun.asked, begun.kind, begun.base, self.coordinator
        grids = {name: grid for name, grid in begun.chosen.grids.items() if not asked.tables[name].is_alone}
        if coordinator is None or not grids:
            return begun
        same = said_alike(asked, kind, begun.chosen.bits, base)
        shared = {name: asked.tables[name] for name in grids}
        found = plan_grids(coordinator, same, grids, lambda: summaries(contents.whole(shared), grids))
        seen = tuple(one.whole(found[one.name].columns) if one.name in grids else one for one in begun.seen)
        chain = {**begun.chain, **{name: one.plan for name, one in found.items() if name in grids}}
        return replace(begun, chosen=self.settings.rule.choose(seen, self.lineage.restores, chain))

    def plan(self, begun: Begun) -> Work:
        """What a checkpoint writes, its rows still in the live tables. Marks are taken at the end, or not at all."""
        asked, kind, base, stored, chosen = begun.asked, begun.kind, begun.base, begun.stored, begun.chosen
        settings, lineage, tables = self.settings, self.lineage, asked.tables
        counted = contents.counted(tables, chosen.counted, None if base is None else base.tables)
        self.trackers.meet(tables)
        touched = self.trackers.take(since_baseline=kind == "since-baseline", listed=kind != "baseline")
        try:
            with said_of(chosen.argument):
                plan = self._writes(counted, None if base is None else base.tables, touched, chosen.choices)
            snapshot = Snapshot(
                plan.writes,
                threads=settings.save_threads,
                limit_bytes=settings.buffer_bytes,
                mode=settings.mode,
                stored=None if stored is None else OfChain(stored, begun.chain),
                counts=begun.counts,
                sends_all=kind == "since-baseline",
                salt=(len(lineage.checkpoints) if asked.step is None else int(asked.step)) & 0xFFFFFFFF,
            )
        except BaseException:
            self.trackers.give_back()
            raise
        self.places = {name: table.where for name, table in tables.items() if table.data is not None}
        self.held = begun.held
        expected, state = settings.rule.expected, None if base is None or stored is None else base.state
        return Work(asked, kind, plan, snapshot, chosen, settings.policy.name, expected, state)

    def _check_places(self, tables: contents.Tables) -> None:
        """That shards lie where they lay: marks count from their first row. Raises `UsageError`."""
        for name, table in tables.items():
            before = self.places.get(name)
            if table.data is not None and before is not None and table.where != before:
                raise UsageError(
                    f"table {name!r}: the shard of this rank began at row {before[0]} and had elements {before[1]}; it "
                    f"begins at row {table.where[0]} and has {table.where[1]} now: save(kind='baseline') on all ranks, "
                    "or restore into the new shards"
                )

    def _writes(
        self,
        live: contents.Tables,
        schema: tuple[TableSchema, ...] | None,
        touched: Mapping[str, Touched],
        choices: Choices,
    ) -> Plan | ShardPlan:
        tables = contents.whole(live) if schema is None else contents.delta(live, schema, touched)
        if self.coordinator is not None:
            return plan_shards(tables, choices, schema, contents.raw)
        if schema is None:
            return plan_baseline(tables, choices)
        return plan_delta(tables, schema, choices, contents.raw)

    def _decide(self, asked: Request) -> Decision:
        lineage, policy = self.lineage, self.settings.policy
        if lineage.base is None:
            return "baseline"
        if asked.kind == "since-baseline" and not policy.needs_since_baseline:
            raise UsageError(
                f"policy {policy.name!r} doesn't remember what changed since the baseline; "
                "kind='since-baseline' needs one-shot or intermittent"
            )
        if self.is_too_coarse and asked.kind is None:
            return "baseline"
        found = asked.kind or policy.decide(self._history(asked))
        if found == "baseline":
            return found
        known = lineage.base.tables
        # A table that the baseline doesn't have would be another one in each delta.
        other = found == "since-baseline" and contents.has_other_tables(asked.tables, known)
        if other or contents.has_new_columns(asked.tables, known):
            if self.coordinator is not None:
                raise UsageError(
                    "tables or columns have come or gone; with several ranks, all of them say so: save(kind='baseline')"
                )
            return "baseline"
        # All ranks know alike how long the chain was when the checkpoint was committed.
        chain = lineage.checkpoints[-1].chain if lineage.checkpoints else len(lineage.base.chain)
        ranks = 1 if self.coordinator is None else self.coordinator.world_size
        return "baseline" if found == "delta" and chain + ranks > limits.MAX_CHAIN else found

    def _history(self, asked: Request) -> History:
        """What a policy may decide by. Rows are counted for a caller's own alone: those with names don't ask."""
        past = self.lineage.checkpoints
        if isinstance(self.settings.policy, Full | OneShot | Consecutive | Intermittent):
            return History(past)
        written = next((c for c in reversed(past) if c.rows), None)
        return History(
            past,
            contents.count_rows(asked.tables),
            self.trackers.count,
            self.trackers.count_since_baseline,
            0.0 if written is None else written.nbytes / written.rows,
        )

    def commit(self, work: Work) -> Written:
        """Makes a checkpoint durable. Where that fails its marks are given back, and what was raised is raised."""
        settings = self.settings
        try:
            work.snapshot.ready()
            if self.coordinator is None:
                written = commit_alone(work, self.lineage, settings.keep, threads=settings.threads, fs=self.fs)
            else:
                written = commit_with_others(
                    work, self.lineage, settings.keep, self.coordinator, threads=settings.threads, fs=self.fs
                )
        except BaseException as error:
            # If it was committed all the same, the next checkpoint writes these rows once more: that does no harm.
            self.trackers.give_back()
            if isinstance(error, CommitUnknownError):
                self.lineage.unsettled = error.state
            if self.coordinator is not None and isinstance(error, ConflictError):
                # One rank alone knows why; all of them have to begin anew alike.
                self.lineage.base = self.lineage.baseline = None
            raise
        self.lineage.committed(written.manifest, written.checkpoint)
        baseline, tables = work.kind == "baseline", work.asked.tables
        unsent = {n: ids if tables[n].keyed else ids - tables[n].first for n, ids in work.unsent.items()}
        self.trackers.commit(baseline=baseline, unsent=unsent)
        self.is_too_coarse = self.is_too_coarse and not baseline
        return written

    def remember(self) -> None:
        """Brings the stored values to the newest checkpoint, if they are asked for or needed.

        Raises what kept them from it only where somebody asked for them: the next delta reads them once more if it
        needs them, and raises that then.
        """
        if self.lineage.base is None:
            return
        try:
            self.bases.move_on(self.lineage, self.held)
        except CnrError:
            if self.bases.asked is not None:
                raise

    def keep_house(self) -> None:
        """What is due after a checkpoint: merging and collecting. Rank 0 does it for all."""
        if self.coordinator is None or self.coordinator.rank == 0:
            ranks = 1 if self.coordinator is None else self.coordinator.world_size
            keep_house(self.lineage, self.settings, ranks=ranks, fs=self.fs)

    def restore(
        self, version: int | None, step: int | None, tag: str | None, verify_all: bool, options: Mapping[str, Any]
    ) -> Restored:
        """Reads a version; the next checkpoint goes on from it."""
        into = options.get("into") or {}
        several = self.coordinator is not None and options.get("into") is not None
        with ExitStack() as files:
            ck, head = files.enter_context(open_version(self.path, version, step, tag, verify_all, self.fs))
            if several and options.get("tables") is None:
                # Of several ranks, each asks for what it has.
                options = {**options, "tables": [name for name in into if name in ck]}
            restored = restore_version(ck, **options, threads=self.settings.threads)
            if restored.lazy is not None:
                files.callback(restored.lazy.stop)
            base = ck.manifest if _goes_on(restored, options, self.coordinator is not None) else None
            if self.coordinator is not None and self.settings.policy.needs_since_baseline:
                # Which keys changed since the baseline is known, but not which of the ranks has them now.
                base = None if any(table.keyed for table in ck.manifest.tables) else base
            baseline = None if base is None else baseline_of(ck.view)
            since = {} if base is None else since_baseline(ck.view)
            keys = {} if self.coordinator is not None else {name: ck[name].keys for name in ck if ck[name].keyed}
            plans = [(Seen.stored(t), plan_of(ck.view, t, Held())) for t in ck.manifest.tables]
            if restored.lazy is not None:
                restored.lazy.keep(files.pop_all())
        self.lazy = restored.lazy
        self.lineage.restored(head, base, baseline)
        self.begun = True
        restores = self.lineage.restores
        self.is_too_coarse = any(self.settings.rule.is_too_coarse(seen, restores, plan) for seen, plan in plans)
        # A shard is where `into` says; a table that comes whole begins at row 0.
        self.places = {name: contents.where(target) for name, target in into.items() if target is not None}
        if base is None:
            self.trackers.restore({}, {}, {})
            return restored
        rows = {table.name: table.rows for table in base.tables}
        if self.coordinator is not None:
            rows, since = _of_this_rank(into, rows, since)
        self.trackers.restore(rows, since, keys)
        if self.coordinator is None and restored.lazy is None:
            self.bases.move_on(self.lineage, None)
        else:
            # Of ranks, which keys one has is known when it saves; and who wants rows at once waits for nothing else.
            self.bases.forget()
        return restored


    def forget_lazy(self) -> None:
        """Lets go of rows that are still to be restored: they don't come any more."""
        if self.lazy is not None:
            self.lazy.close()
            self.lazy = None


def _goes_on(restored: Restored, options: Mapping[str, Any], several: bool) -> bool:
    """Whether rows that aren't marked are as they are stored from now on, so that a delta says all."""
    changed = any(options.get(name) for name in ("rename", "remap", "resize", "convert")) or not options["columns"]
    partly = any(options.get(name) for name in ("tables", "rows")) or restored.unexpected or restored.cut
    # Of several ranks each restores what it has.
    return not changed and not restored.missing and (several or not partly)


def _of_this_rank(
    into: Mapping[str, Any], rows: Mapping[str, int | None], since: Mapping[str, Any]
) -> tuple[dict[str, int | None], dict[str, Any]]:
    """The rows that this rank has of each table, and those of them that were committed since the baseline."""
    here, own = dict[str, int | None](), dict[str, Any]()
    for name, target in into.items():
        count, ids = rows.get(name), since.get(name)
        if name not in rows:
            continue
        values = target.values if isinstance(target, Shard) else target
        keyed = isinstance(values, TableData) and values.keys is not None
        if isinstance(target, Shard) and target.rows is not None and not keyed and ids is not None:
            first, end = target.rows
            count, ids = end - first, ids[(ids >= first) & (ids < end)] - first
        here[name] = count
        if ids is not None:
            own[name] = ids
    return here, own
