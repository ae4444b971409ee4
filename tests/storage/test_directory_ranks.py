"""Segments that one writer publishes for the manifest of another."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from cnrfmt.errors import CommitUnknownError, ConflictError, StorageError, UsageError
from cnrfmt.format.digests import digest, new_id
from cnrfmt.format.manifest import ChainEntry
from cnrfmt.storage.container import begin
from cnrfmt.storage.directory_commit import DirectoryTransaction
from tests.storage.support import (
    FORKS,
    Points,
    QuickFs,
    ScriptedFs,
    check_whole,
    commit,
    finish,
    manifest_file,
    next_manifest,
    payload,
    run_in_child,
    two_versions,
)
from tests.storage.test_protocol import SEGMENT_PUBLISHED, Tracing, manifest_published


def begun(path: Path, fs: QuickFs | None = None) -> DirectoryTransaction:
    tx = begin(path, replace=False, fs=fs or QuickFs())
    assert isinstance(tx, DirectoryTransaction)
    return tx


def segment(tx: DirectoryTransaction, seed: int, entry: ChainEntry) -> ChainEntry:
    """A further segment of the step of `entry`."""
    data = payload(seed)
    sink = tx.segment(new_id(), size_hint=data.nbytes)
    sink.write(data)
    sink.finish()
    return replace(entry, segment=sink.segment_id, length=data.nbytes, trailer_digest=digest(data))  # type: ignore[attr-defined]


def names(path: Path) -> list[str]:
    return sorted(p.name for p in path.glob("segments/*"))


def test_segments_of_two_writers_make_one_version(folder: Path) -> None:
    with begun(folder) as first, begun(folder) as second:
        manifest = next_manifest(first, payload(2))
        first.publish()
        other = segment(second, 3, manifest.chain[-1])
        second.hand_over()
        manifest = replace(manifest, chain=(*manifest.chain, other))
        assert not first.may_count
        assert second.may_count
        assert finish(first, manifest) == 2
        assert first.may_count
    head = check_whole(folder)
    assert [entry.segment for entry in head.chain[2:]] == [entry.segment for entry in manifest.chain[2:]]
    assert names(folder) == sorted(f"{entry.segment.hex()}.cnrs" for entry in head.chain)


def test_what_was_published_goes_with_its_transaction(folder: Path) -> None:
    before = names(folder)
    with begun(folder) as tx:
        next_manifest(tx, payload(2))
        tx.publish()
        assert len(names(folder)) == len(before) + 1
    assert names(folder) == before


def test_what_was_handed_over_stays_unless_it_is_taken_back(folder: Path) -> None:
    before = names(folder)
    with begun(folder) as tx:
        entry = next_manifest(tx, payload(2)).chain[-1]
        tx.hand_over()
        with pytest.raises(UsageError, match="this transaction is over"):
            segment(tx, 3, entry)
    after = names(folder)
    assert after == sorted([*before, f"{entry.segment.hex()}.cnrs"])
    with begun(folder) as tx:
        segment(tx, 3, entry)
        tx.hand_over()
        tx.take_back()
    assert names(folder) == after
    assert not list(folder.rglob(".tmp-*"))


def test_publishing_passes_the_points_of_a_commit_once(folder: Path) -> None:
    fs = Points()
    with begun(folder, fs) as tx:
        manifest = next_manifest(tx, payload(2))
        tx.publish()
        assert fs.passed == ["segment-synced", "segment-published"]
        finish(tx, manifest)
    assert fs.passed.count("segment-published") == 1


def test_segment_is_durable_before_anybody_hears_of_it(tmp_path: Path) -> None:
    folder = two_versions(tmp_path / "run")
    fs = Tracing(tmp_path)
    with begun(folder, fs) as tx:
        next_manifest(tx, payload(2))
        fs.steps.clear()
        tx.hand_over()
    assert fs.steps == SEGMENT_PUBLISHED
    fs = Tracing(tmp_path)
    with begun(folder, fs) as tx:
        entry = next_manifest(tx, payload(2))
        tx.publish()
        fs.steps.clear()
        finish(tx, entry)
    # What is published already isn't published again; the rest is as for one writer.
    assert fs.steps == ["sync run/segments/", *manifest_published(2)]


def test_unfinished_segment_is_not_published(folder: Path) -> None:
    with begun(folder) as tx:
        sink = tx.segment(new_id())
        sink.write(payload(2))
        with pytest.raises(UsageError, match="still being written"):
            tx.hand_over()
        sink.finish()
        tx.hand_over()
        tx.take_back()


def test_nothing_is_published_on_another_head(folder: Path) -> None:
    before = names(folder)
    with begun(folder) as tx:
        next_manifest(tx, payload(2))
        commit(folder, payload(3), fs=QuickFs())
        with pytest.raises(ConflictError):
            tx.hand_over()
        assert not tx.may_count
    assert len(names(folder)) == len(before) + 1


def test_refused_publication_is_undone(folder: Path) -> None:
    before = names(folder)

    def refuse(name: str, args: tuple[object, ...]) -> None:
        if name == "sync_directory" and str(args[0]).endswith("segments"):
            raise StorageError(errno.EIO, os.strerror(errno.EIO))

    fs = ScriptedFs(refuse)
    with begun(folder, fs) as tx:  # type: ignore[arg-type]
        next_manifest(tx, payload(2))
        with pytest.raises(StorageError):
            tx.hand_over()
        assert not tx.may_count
    assert names(folder) == before
    assert not fs.handles


@FORKS
def test_forked_child_takes_nothing_back(folder: Path) -> None:
    with begun(folder) as tx:
        next_manifest(tx, payload(2))
        tx.hand_over()
        there = names(folder)
        assert run_in_child(tx.take_back) == 0
        assert names(folder) == there
        tx.take_back()
        assert len(names(folder)) == len(there) - 1


def test_whose_a_version_is(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with begun(folder) as tx:
        assert tx.committed_by(0, new_id()) is None
    two_versions(folder)
    head = check_whole(folder)
    synced = []

    class Syncing(QuickFs):
        def sync_directory(self, path: str) -> None:
            synced.append(os.path.basename(path))

    with begun(folder, Syncing()) as tx:
        synced.clear()
        found = tx.committed_by(1, head.commit_id)
        assert found == head
        # It may have been pending.
        assert synced == ["manifests"]
        assert tx.committed_by(1, new_id()) is None
        assert tx.committed_by(2, head.commit_id) is None
        manifest_file(folder, 0).unlink()
        with pytest.raises(CommitUnknownError, match="version 0 was committed by somebody and is gone since"):
            tx.committed_by(0, head.commit_id)
        file = manifest_file(folder, 1)
        file.write_bytes(file.read_bytes()[:-1] + b"?")
        with pytest.raises(CommitUnknownError, match="whose version 1 is can't be told"):
            tx.committed_by(1, head.commit_id)


def test_what_cannot_be_read_is_unknown(folder: Path) -> None:
    class Failing(QuickFs):
        failing = False

        def list_directory(self, path: str) -> list[str]:
            if self.failing:
                raise StorageError(errno.EIO, os.strerror(errno.EIO), path)
            return super().list_directory(path)

    fs = Failing()
    with begun(folder, fs) as tx:
        fs.failing = True
        with pytest.raises(CommitUnknownError, match="version 1 may or may not be committed"):
            tx.committed_by(1, new_id())
