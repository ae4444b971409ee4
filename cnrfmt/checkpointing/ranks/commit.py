"""One version written by many processes: each its own segment, and one manifest that names them all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

from cnrfmt.checkpointing.ranks.accepting import accept
from cnrfmt.checkpointing.ranks.agreement import Agreement, agree, check_quantize
from cnrfmt.checkpointing.ranks.coordinator import Coordinator
from cnrfmt.checkpointing.ranks.shards import ShardPlan, plan_shards
from cnrfmt.checkpointing.ranks.together import opened, together
from cnrfmt.commits import Attempt, Prepared, attempt, with_segment
from cnrfmt.encodings import Recipe
from cnrfmt.encodings.quantize import Choices
from cnrfmt.errors import (
    ChainTooLongError,
    CommitUnknownError,
    DamagedError,
    RankLostError,
    SilenceError,
    StorageError,
    UnsupportedError,
    UsageError,
)
from cnrfmt.format import limits, strict_json
from cnrfmt.format.digests import new_id
from cnrfmt.format.manifest import ChainEntry, Manifest, pack_manifest, parse_manifest
from cnrfmt.format.schema import ColumnSchema, TableSchema
from cnrfmt.format.segment import NO_STATE, SegmentHeader
from cnrfmt.storage.base import manifest_place
from cnrfmt.storage.container import path_text
from cnrfmt.storage.directory_commit import DirectoryTransaction
from cnrfmt.storage.fs import Fs
from cnrfmt.table_writes import TableWrite

Draft = Callable[[Attempt], Manifest]
"""From a transaction and the head that it found to the manifest of the next version, without its segments."""
Complete = Callable[[Manifest, Sequence[bytes]], Manifest]
"""From a manifest that names its segments, and the ranks' notes, to the one that is published."""


def plan_together(
    coordinator: Coordinator,
    tables: Mapping[str, Any],
    quantize: Choices = None,
    base: tuple[TableSchema, ...] | None = None,
    known_recipe: Callable[[TableSchema, ColumnSchema], Recipe] | None = None,
) -> tuple[Agreement, tuple[TableWrite, ...]]:
    """The schema that all ranks agree on, and what this rank writes under it; every rank calls it.

    The arguments are those of `plan_shards`. Raises `UsageError`, on all ranks alike, and what `gather` raises.
    """
    plans: list[ShardPlan] = []

    def own() -> bytes:
        plans.append(plan_shards(tables, quantize, base, known_recipe))
        return plans[0].description

    told = together(coordinator, "plan", own)
    agreement = agree(told, base)
    check_quantize(quantize, base or (), agreement.tables)
    return agreement, plans[0].agreed(agreement.tables)


def commit_together(
    coordinator: Coordinator,
    path: str | os.PathLike[str],
    *,
    draft: Draft,
    writes: Iterable[TableWrite],
    dense: Prepared | None = None,
    note: Callable[[], bytes] = bytes,
    complete: Complete | None = None,
    threads: int = 1,
    fs: Fs | None = None,
) -> Manifest:
    """Commits one version of a directory that all ranks write together; every rank calls it.

    Each rank streams a segment of its own, with the commit id that rank 0 issues, and publishes it; a rank that has
    nothing to write takes part all the same. When all have reported, rank 0 checks that the segments fit together and
    commits one manifest. All ranks return that, or all raise an error of the same class: what the lowest rank raised
    that couldn't go on. `RankLostError` is raised where a rank was lost and nothing was committed. A rank that is lost
    after the commit doesn't undo it: the others return.

    Parameters
    ----------
    draft
        Called on rank 0 alone, first: `Attempt.next`, with the schema that all have agreed on, after a look at the
        head. What it raises is raised on every rank. With ``same_state`` nobody writes a segment.
    writes
        What this rank writes, in the coordinates of the whole tables and under the schema of the draft.
    dense
        The dense state; rank 0 alone has one.
    note
        Called when this rank's segment is written: some bytes for `complete`.
    complete
        Called on rank 0 alone, last: may say in the manifest's metadata what was written.
    threads
        How many threads this rank may use.

    Raises
    ------
    UsageError
        The container is a single file; or the parts of two ranks share elements; or what `draft` says.
    ConflictError, StorageError, RankLostError
        Nothing was committed, and this rank's segment was removed.
    CommitUnknownError
        Whether it was committed couldn't be settled. The segment stays: the version may need it.
    """
    with ExitStack() as held:
        work = _Work(coordinator, path_text(path), tuple(writes), dense, note, threads, fs, held)
        terms = work.begin(draft)
        try:
            reports = work.write(terms)
            return work.finish(terms, reports, complete)
        except SilenceError as error:
            return work.settle(terms, error)


@dataclass(frozen=True)
class _Terms:
    """What rank 0 issues for an attempt; `to_state` is None where nobody is to write."""

    version: int
    commit_id: bytes
    from_state: bytes
    to_state: bytes | None
    chain: int

    def pack(self) -> bytes:
        to_state = None if self.to_state is None else self.to_state.hex()
        ids = {"commit": self.commit_id.hex(), "from": self.from_state.hex(), "to": to_state}
        return strict_json.dump({"version": self.version, "chain": self.chain, **ids})

    @staticmethod
    def parse(data: bytes) -> _Terms:
        said = strict_json.parse(data, "the terms of rank 0")
        to_state = None if said["to"] is None else bytes.fromhex(said["to"])
        commit_id, from_state = bytes.fromhex(said["commit"]), bytes.fromhex(said["from"])
        return _Terms(said["version"], commit_id, from_state, to_state, said["chain"])


@dataclass(frozen=True)
class _Report:
    """What a rank has written: its segment, if any, whether the dense state is in it, and a note."""

    entry: ChainEntry | None
    dense: bool
    note: bytes

    def pack(self) -> bytes:
        e = self.entry
        segment = None if e is None else [e.segment.hex(), e.length, f"{e.trailer_digest:016x}"]
        return strict_json.dump({"segment": segment, "dense": self.dense, "note": self.note.hex()})

    @staticmethod
    def parse(data: bytes, terms: _Terms) -> _Report:
        said = strict_json.parse(data, "the report of a rank")
        entry = None
        if said["segment"] is not None:
            assert terms.to_state is not None
            name, length, trailer = said["segment"]
            from_state = None if terms.from_state == NO_STATE else terms.from_state
            entry = ChainEntry(bytes.fromhex(name), from_state, terms.to_state, None, length, int(trailer, 16))
        return _Report(entry, said["dense"], bytes.fromhex(said["note"]))


@dataclass
class _Work:
    """One rank's part of an attempt. `one` is its transaction, `drafted` what rank 0 is going to publish."""

    coordinator: Coordinator
    path: str
    writes: tuple[TableWrite, ...]
    dense: Prepared | None
    note: Callable[[], bytes]
    threads: int
    fs: Fs | None
    held: ExitStack
    one: Attempt | None = None
    drafted: Manifest | None = None
    writers: list[bool] = field(default_factory=list)

    @property
    def rank(self) -> int:
        return self.coordinator.rank

    @property
    def tx(self) -> DirectoryTransaction:
        assert self.one is not None
        tx = self.one.tx
        assert isinstance(tx, DirectoryTransaction)
        return tx

    # Step 1: rank 0 begins, and issues commit id and states.

    def begin(self, draft: Draft) -> _Terms:
        def own() -> bytes:
            if self.rank:
                if self.dense is not None:
                    raise UsageError(f"rank {self.rank}: the dense state is stored once: rank 0 alone gives it")
                return b"1" if self.writes else b"0"
            self._open()
            assert self.one is not None
            self.drafted = drafted = draft(self.one)
            from_state = drafted.chain[-1].to_state if drafted.chain else NO_STATE
            to_state = None if drafted.state == from_state else drafted.state
            terms = _Terms(drafted.version, drafted.commit_id, from_state, to_state, len(drafted.chain))
            return (b"1" if self.writes or self.dense is not None else b"0") + terms.pack()

        told = together(self.coordinator, "begin", own)
        terms = _Terms.parse(told[0][1:])
        self.writers = [said[:1] == b"1" for said in told]
        # Somebody has to write what a step without rows consists of: that a table is gone, or empty.
        if terms.to_state is None and any(self.writers):
            rank = self.writers.index(True)
            raise UsageError(f"{self.path}: rank {rank} writes, and the draft has the state of its base")
        if not any(self.writers):
            self.writers[0] = True
        if terms.to_state is not None and terms.chain + sum(self.writers) > limits.MAX_CHAIN:
            raise ChainTooLongError(
                f"{self.path}: {sum(self.writers)} more segments on a chain of {terms.chain} are more than "
                f"{limits.MAX_CHAIN}; compact it, or save a new baseline"
            )
        return terms

    def _open(self) -> None:
        """Begins this rank's transaction."""
        one = self.held.enter_context(attempt(self.path, fs=self.fs))
        if not isinstance(one.tx, DirectoryTransaction):
            raise UsageError(f"{self.path}: a single file has one writer; give the path of a directory")
        self.one = one
        self._point("rank-begun")

    # Step 2: every rank writes, publishes and reports its segment.

    def write(self, terms: _Terms) -> list[_Report]:
        def own() -> bytes:
            entry = None
            if self.writers[self.rank] and terms.to_state is not None:
                if self.rank:
                    self._open()
                entry = self._segment(terms, terms.to_state)
            return _Report(entry, self.dense is not None, self.note()).pack()

        try:
            told = together(self.coordinator, "written", own)
        except SilenceError:
            raise
        except Exception:
            # Rank 0 didn't get a report of every rank, so it won't commit.
            self._take_back()
            raise
        self._point("rank-reported")
        return [_Report.parse(said, terms) for said in told]

    def _segment(self, terms: _Terms, to_state: bytes) -> ChainEntry:
        assert self.one is not None
        header = SegmentHeader(new_id(), terms.commit_id, terms.from_state, to_state)
        entry, toc = self.one.segment(header, self.writes, self.dense, threads=self.threads)
        if self.rank:
            self.tx.hand_over()
            self._point("rank-published")
        elif self.coordinator.world_size > 1:
            # Not handed over: without a manifest, which this rank alone makes, it goes away again.
            self.tx.publish()
            self._point("rank-published")
        else:
            self.drafted = with_segment(self._draft, entry, toc)
        return entry

    @property
    def _draft(self) -> Manifest:
        assert self.drafted is not None
        return self.drafted

    # Step 3: rank 0 commits, and all learn how that went.

    def finish(self, terms: _Terms, reports: list[_Report], complete: Complete | None) -> Manifest:
        committed: list[Manifest] = []
        failed: list[Exception] = []

        def own() -> bytes:
            if self.rank:
                return b""
            try:
                return self._commit(terms, reports, complete, committed)
            except Exception as error:
                failed.append(error)
                raise

        try:
            told = together(self.coordinator, "outcome", own)
        except (RankLostError, SilenceError) as error:
            # Whoever was lost by now: rank 0 has done what it did, and its word may have come through.
            if committed:
                return committed[0]
            if failed:
                raise failed[0] from None
            if isinstance(error, SilenceError) or 0 not in error.payloads:
                return self.settle(terms, error)
            told = [error.payloads[0]]
            return self._heard(terms, lambda: opened(dict(enumerate(told)), self.rank, None))
        except Exception as error:
            return self._heard(terms, partial(_raise, error))
        self._point("rank-told")
        return committed[0] if committed else self._heard(terms, lambda: told)

    def _commit(
        self, terms: _Terms, reports: list[_Report], complete: Complete | None, committed: list[Manifest]
    ) -> bytes:
        """Publishes the manifest of all segments; gives its bytes."""
        assert self.one is not None
        manifest = self._draft
        if self.coordinator.world_size > 1:
            manifest = accept(self.tx, manifest, [r.entry for r in reports if r.entry is not None])
        for report in reports:
            if report.dense and report.entry is not None:
                manifest = replace(manifest, dense=report.entry.segment)
        if complete is not None:
            manifest = complete(manifest, [report.note for report in reports])
        self._point("ranks-accepted")
        try:
            published = self.one.commit(manifest)
            data = pack_manifest(published)
        except CommitUnknownError:
            raise
        except Exception as error:
            # The others must not take anything back where the version may count.
            if self.tx.may_count:
                raise self._unknown(terms, error) from error
            raise
        committed.append(published)
        return data

    def _heard(self, terms: _Terms, said: Callable[[], list[bytes]]) -> Manifest:
        """The manifest that rank 0 has committed, by its own word; or its error, once this rank's segment is gone."""
        try:
            (manifest, *_) = said()
        except CommitUnknownError:
            raise
        except Exception:
            self._take_back()
            raise
        return parse_manifest(manifest, manifest_place(self.path, terms.version))

    def settle(self, terms: _Terms, error: RankLostError | SilenceError) -> Manifest:
        """Looks for the manifest itself, where rank 0 can't be heard any more."""
        if self.rank == 0:
            # It alone commits, and it didn't come to that.
            raise error
        try:
            if self.one is None:
                self._open()
            found = self.tx.committed_by(terms.version, terms.commit_id)
        except (CommitUnknownError, StorageError, DamagedError, UnsupportedError) as refused:
            raise self._unknown(terms, refused) from error
        if found is not None:
            return found
        if isinstance(error, RankLostError) and error.reasons.get(0) == "gone":
            # Who has ended can't publish any more.
            self._take_back()
            raise error
        raise self._unknown(terms, error) from error

    def _unknown(self, terms: _Terms, why: Exception) -> CommitUnknownError:
        error = CommitUnknownError(
            f"{self.path}: version {terms.version} may or may not be committed ({why}): open the container to see"
        )
        error.version, error.commit_id, error.state = terms.version, terms.commit_id, terms.to_state
        return error

    def _take_back(self) -> None:
        """Removes this rank's segment: it is certain that no manifest names it."""
        if self.rank and self.one is not None:
            self.tx.take_back()

    def _point(self, name: str) -> None:
        if self.one is not None:
            self.one.tx.fs.point(name)


def _raise(error: Exception) -> NoReturn:
    raise error
