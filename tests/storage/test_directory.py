"""The directory: publishing without replacing, writers that meet, files that are collected, links that are refused."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnrfmt.errors import (
    CommitUnknownError,
    ConflictError,
    DamagedError,
    StorageError,
    UsageError,
    VersionExpiredError,
)
from cnrfmt.format.manifest import Manifest, pack_manifest, parse_manifest
from cnrfmt.storage.base import DirectoryFacts, Name
from cnrfmt.storage.container import begin, open_container
from tests.storage.support import (
    FORKS,
    QuickFs,
    ScriptedFs,
    check_whole,
    commit,
    contents,
    finish,
    leftovers,
    manifest_file,
    next_manifest,
    payload,
    run_in_child,
)


@pytest.fixture
def path(folder: Path) -> Path:
    return folder


def segment_file(path: Path, number: int) -> Path:
    return path / "segments" / f"{check_whole(path).chain[number].segment.hex()}.cnrs"


def head_of(path: Path) -> Manifest:
    with open_container(path) as container:
        return parse_manifest(container.head().data, str(path))


def test_layout_is_that_of_the_specification(path: Path) -> None:
    head = check_whole(path)
    found = sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())
    segments = sorted(f"segments/{entry.segment.hex()}.cnrs" for entry in head.chain)
    assert found == [f"manifests/{n:020d}.cnrm" for n in (0, 1)] + segments
    assert all(entry.offset is None for entry in head.chain)
    with open_container(path) as container:
        assert (container.kind, container.container_id) == ("directory", None)
        assert container.head()[1:] == (1, None)
        assert container.same_as(open_container(path))
        facts = container.inspect()
    assert isinstance(facts, DirectoryFacts)
    assert {n.name: n.kind for n in facts.names} == {"manifests": "directory", "segments": "directory"}
    assert facts.segments is not None
    assert {n.size for n in facts.segments} == {payload(0).nbytes}


def test_a_baseline_keeps_earlier_versions(path: Path) -> None:
    published = {p: p.read_bytes() for p in path.rglob("*.cnr?")}
    assert commit(path, payload(2), fresh=True, fs=QuickFs()) == 2
    head = check_whole(path)
    assert ([r.version for r in head.versions], len(head.chain)) == ([0, 1], 1)
    assert {p: p.read_bytes() for p in published} == published


def test_order_of_syncs(tmp_path: Path) -> None:
    """Segments have their names durably before the manifest has its own, the new directory too."""
    steps: list[str] = []

    def note(name: str, args: tuple[Any, ...]) -> None:
        if name == "link":
            steps.append("link " + os.path.basename(os.path.dirname(args[1])))
        elif name == "sync_directory":
            steps.append("sync " + os.path.basename(args[0]))
        elif name == "sync":
            steps.append("sync a file")

    commit(tmp_path / "run", payload(0), fresh=True, fs=ScriptedFs(note))
    assert steps == [
        "sync a file",
        "link segments",
        "sync segments",
        "sync run",
        f"sync {tmp_path.name}",
        "sync a file",
        "link manifests",
        "sync manifests",
    ]


def test_segments_may_be_written_side_by_side(path: Path) -> None:
    with begin(path, replace=False, fs=QuickFs()) as tx:
        sinks = [tx.segment(bytes([n]) * 16) for n in (1, 2, 3)]
        for sink in (*sinks, *sinks):
            sink.write(np.arange(50, dtype=np.int64))
        assert [s.position for s in sinks] == [800] * 3
        sinks[0].finish()
        sinks[1].abort()
        manifest = next_manifest(tx, None)
        with pytest.raises(UsageError, match="still being written"):
            finish(tx, manifest)
        sinks[2].finish()
        finish(tx, manifest)
    names = {p.name for p in (path / "segments").iterdir()}
    assert {f"{bytes([n]).hex() * 16}.cnrs" in names for n in (1, 3)} == {True}
    assert f"{'02' * 16}.cnrs" not in names
    assert not leftovers(path)


def test_of_two_writers_one_wins(path: Path) -> None:
    before = {p.name for p in path.rglob("*")}
    with begin(path, replace=False, fs=QuickFs()) as late:
        manifest = next_manifest(late, payload(2))
        assert commit(path, payload(3), fs=QuickFs()) == 2
        with pytest.raises(ConflictError, match="committed version 2 first"):
            finish(late, manifest)
    head = check_whole(path)
    assert head.version == 2
    added = {p.name for p in path.rglob("*")} - before
    assert added == {manifest_file(path, 2).name, f"{head.chain[-1].segment.hex()}.cnrs"}


class Meanwhile(QuickFs):
    """Does something between the look at the head and the publication of the manifest."""

    def __init__(self, action: Callable[[], object], at: str = "manifest-synced") -> None:
        super().__init__()
        self.action, self.at = action, at

    def point(self, name: str) -> None:
        if name == self.at:
            self.action()


def test_conflict_in_the_last_moment(path: Path) -> None:
    before = {p.name for p in path.rglob("*")}
    fs = Meanwhile(lambda: commit(path, payload(3), fs=QuickFs()))
    with pytest.raises(ConflictError):
        commit(path, payload(2), fs=fs)
    head = check_whole(path)
    assert head.version == 2
    assert contents(open_container(path), head)[-1] == payload(3).tobytes()
    assert len({p.name for p in path.rglob("*")} - before) == 2


def test_name_that_became_free_again(path: Path) -> None:
    """Two others commit and collect the version whose name this writer wants."""

    def others() -> None:
        for seed in (3, 4):
            commit(path, payload(seed), fs=QuickFs())
        head = head_of(path)
        with begin(path, replace=False, fs=QuickFs()) as tx:
            slim = replace(next_manifest(tx, None), versions=())
            finish(tx, replace(slim, version=4, parent=(3, head.digest)))
        for version in (0, 1, 2, 3):
            manifest_file(path, version).unlink()

    # Nobody can say any more whose version 2 was.
    with pytest.raises(CommitUnknownError, match="newest is 4"):
        commit(path, payload(2), fs=Meanwhile(others))
    assert head_of(path).version == 4


def test_version_that_follows_another_parent(path: Path) -> None:
    def others() -> None:
        for seed in (3, 4):
            commit(path, payload(seed), fs=QuickFs())
        manifest_file(path, 2).unlink()

    before = {p.name for p in path.rglob("*")}
    with pytest.raises(ConflictError, match="committed version 3 first"):
        commit(path, payload(2), fs=Meanwhile(others))
    assert not manifest_file(path, 2).exists()
    # What the two others added, less the manifest that they collected.
    assert len({p.name for p in path.rglob("*")} - before) == 3


def test_version_that_follows_at_once(path: Path) -> None:
    follow = Meanwhile(lambda: commit(path, payload(3), fs=QuickFs()), at="manifests-synced")
    assert commit(path, payload(2), fs=follow) == 2
    assert check_whole(path).version == 3


def test_version_that_was_retained_and_collected_since(path: Path) -> None:
    def follow() -> None:
        for seed in (3, 4):
            commit(path, payload(seed), fs=QuickFs())
        # The newest names version 2 and its digest, though version 3's manifest is gone.
        manifest_file(path, 3).unlink()

    assert commit(path, payload(2), fs=Meanwhile(follow, at="manifests-synced")) == 2


def test_lost_answer_of_a_link_is_a_success(path: Path) -> None:
    class LostAnswer(QuickFs):
        def link(self, source: str, target: str) -> None:
            super().link(source, target)
            # A client that sent its request twice sees the file that the first one made.
            raise StorageError(errno.EEXIST, "File exists")

    assert commit(path, payload(2), fs=LostAnswer()) == 2
    assert check_whole(path).version == 2
    assert not leftovers(path)


def test_failed_sync_of_the_folder_is_unknown(path: Path) -> None:
    class NoSync(QuickFs):
        published = False

        def point(self, name: str) -> None:
            self.published |= name == "manifest-published"

        def sync_directory(self, path: str) -> None:
            if self.published:
                raise StorageError(errno.EIO, "Input/output error")

    with pytest.raises(CommitUnknownError, match="version 2 may or may not be committed"):
        commit(path, payload(2), fs=NoSync())
    assert check_whole(path).version == 2
    assert commit(path, payload(3), fs=QuickFs()) == 3


def test_damaged_manifest_under_the_wanted_name_is_a_conflict(path: Path) -> None:
    with pytest.raises(ConflictError):
        commit(path, payload(2), fs=Meanwhile(lambda: manifest_file(path, 2).write_bytes(b"junk")))
    assert manifest_file(path, 2).read_bytes() == b"junk"


@pytest.mark.parametrize("exists", [False, True])
def test_undone_first_commit_leaves_no_directory(tmp_path: Path, exists: bool) -> None:
    path = tmp_path / "run"
    if exists:
        path.mkdir()
    with begin(path, replace=True, fs=QuickFs()) as tx:
        next_manifest(tx, payload(0))
    assert path.exists() == exists
    assert not list(path.rglob("*"))
    assert commit(path, payload(0), fresh=True, fs=QuickFs()) == 0


def test_two_first_writers(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with begin(path, replace=True, fs=QuickFs()) as late:
        manifest = next_manifest(late, payload(1))
        assert commit(path, payload(0), fresh=True, fs=QuickFs()) == 0
        with pytest.raises(ConflictError):
            finish(late, manifest)
    head = check_whole(path)
    assert contents(open_container(path), head) == [payload(0).tobytes()]


def test_directory_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "home"
    path.mkdir()
    (path / "thesis.txt").write_text("precious")
    with pytest.raises(UsageError, match=r"isn't a container and isn't empty \(it has 'thesis.txt'\)"):
        begin(path, replace=True)
    assert [p.name for p in path.iterdir()] == ["thesis.txt"]


def test_directory_without_a_manifest(tmp_path: Path) -> None:
    with open_container(tmp_path) as container, pytest.raises(DamagedError) as caught:
        container.head()
    assert caught.value.rule == "directory-layout"
    assert "save commits a first version" in str(caught.value)


LIVE_WRITER = """
import sys
from cnrfmt.storage.container import begin
with begin(sys.argv[1], replace=False) as tx:
    tx.segment(b"0123456789abcdef").write(b"some bytes")
    print("held", flush=True)
    sys.stdin.read()
"""


def test_leftovers_of_dead_writers_alone_are_removed(path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LIVE_WRITER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        live = leftovers(path)
        assert len(live) == 1
        dead = path / "manifests" / ".tmp-0123456789abcdef"
        dead.write_bytes(b"begun")
        link = path / "segments" / ".tmp-link"
        link.symlink_to(path / "nowhere")
        with begin(path, replace=False, fs=QuickFs()) as tx:
            own = tx.segment(os.urandom(16))
            assert live[0].exists()
            assert not dead.exists()
            # A writer in another thread is alive as well.
            begin(path, replace=False, fs=QuickFs()).abort()
            assert len(leftovers(path)) == 2
            own.abort()
        process.kill()
        process.wait()
    begin(path, replace=False, fs=QuickFs()).abort()
    assert leftovers(path) == []
    assert link.is_symlink()


def test_file_taken_for_abandoned_before_it_was_locked(path: Path) -> None:
    class TooLate(QuickFs):
        removed = 0

        def lock_handle(self, handle: int) -> bool:
            if self.removed < 2:
                # Another writer removes the new file: it holds its lock still, or has let go of it.
                self.removed += 1
                leftovers(path)[0].unlink()
                return self.removed == 1
            return super().lock_handle(handle)

    fs = TooLate()
    assert commit(path, payload(2), fs=fs) == 2
    assert fs.removed == 2
    assert check_whole(path).version == 2


def test_file_system_without_such_locks(path: Path) -> None:
    class NoLocks(QuickFs):
        def lock_handle(self, handle: int) -> bool:
            raise StorageError(errno.ENOLCK, "No locks available")

    stray = path / "segments" / ".tmp-0123456789abcdef"
    stray.write_bytes(b"begun")
    assert commit(path, payload(2), fs=NoLocks()) == 2
    assert leftovers(path) == [stray]


@FORKS
def test_forked_child_does_not_undo(path: Path) -> None:
    with begin(path, replace=False, fs=QuickFs()) as tx:
        manifest = next_manifest(tx, payload(2))
        assert run_in_child(tx.abort) == 0
        assert finish(tx, manifest) == 2
    assert check_whole(path).version == 2


@pytest.mark.parametrize("name", ["manifests", "segments"])
@pytest.mark.parametrize("what", ["link", "file"])
def test_folder_that_is_none_is_refused(path: Path, name: str, what: str) -> None:
    real = path / name
    moved = path.parent / "moved"
    real.rename(moved)
    if what == "link":
        real.symlink_to(moved)
    else:
        real.write_text("")
    before = sorted(moved.iterdir())
    for access in (lambda: check_whole(path), lambda: begin(path, replace=False)):
        with pytest.raises(DamagedError) as caught:
            access()
        assert caught.value.rule == "directory-layout"
        assert what in caught.value.found
    assert sorted(moved.iterdir()) == before
    with open_container(path) as container:
        facts = container.inspect()
    assert isinstance(facts, DirectoryFacts)
    assert getattr(facts, name) is None
    assert {n.name: n.kind for n in facts.names}[name] == what


@pytest.mark.parametrize("what", ["link", "pipe", "folder"])
@pytest.mark.parametrize("which", ["head", "retained manifest", "segment"])
def test_file_that_is_none_is_refused(path: Path, which: str, what: str) -> None:
    head = check_whole(path)
    target = {
        "head": manifest_file(path, 1),
        "retained manifest": manifest_file(path, 0),
        "segment": segment_file(path, 0),
    }[which]
    moved = path / "moved"
    target.rename(moved)
    if what == "link":
        target.symlink_to(moved)
    elif what == "pipe":
        os.mkfifo(target)
    else:
        target.mkdir()
    with open_container(path) as container:
        access: dict[str, Callable[[], object]] = {
            "head": container.head,
            "retained manifest": lambda: container.read_manifest(head.versions[0]),
            "segment": lambda: container.segment(head.chain[0]),
        }
        with pytest.raises(DamagedError) as caught:
            access[which]()
    assert caught.value.rule == "file-missing"


def test_link_to_a_directory_may_name_it(path: Path) -> None:
    link = path.parent / "latest"
    link.symlink_to("run")
    assert check_whole(link).version == 1
    assert commit(link, payload(2), fs=QuickFs()) == 2
    assert check_whole(path).version == 2


def test_missing_file_is_damage_or_expired(path: Path) -> None:
    head = check_whole(path)
    segment, old = segment_file(path, 0), manifest_file(path, 0)
    with open_container(path) as container:
        kept = container.segment(head.chain[0])
        moved = path.parent / "moved"
        segment.rename(moved)
        with pytest.raises(DamagedError) as caught:
            container.segment(head.chain[0])
        assert caught.value.rule == "file-missing"
        # A reader that has opened a segment keeps it.
        assert kept.map().tobytes() == payload(0).tobytes()
        moved.rename(segment)

        old.rename(moved)
        with pytest.raises(DamagedError) as caught:
            container.read_manifest(head.versions[0])
        assert caught.value.rule == "file-missing"
        moved.rename(old)

        # Garbage collection: first a manifest that no longer names them, then the files go.
        with begin(path, replace=True, fs=QuickFs()) as tx:
            finish(tx, replace(next_manifest(tx, payload(5), fresh=True), versions=()))
        for gone in (manifest_file(path, 0), manifest_file(path, 1), segment):
            gone.unlink()
        with pytest.raises(VersionExpiredError, match="refresh to go on"):
            container.segment(head.chain[0])
        with pytest.raises(VersionExpiredError):
            container.read_manifest(head.versions[0])
        assert container.head().version == 2
    assert check_whole(path).version == 2


def test_head_collected_between_listing_and_reading(path: Path) -> None:
    class Collected(QuickFs):
        done = False

        def list_directory(self, path: str) -> list[str]:
            names = super().list_directory(path)
            if not self.done:
                self.done = True
                commit(run, payload(2), fs=QuickFs())
                manifest_file(run, 1).unlink()
            return names

    run = path
    with open_container(path, Collected()) as container:
        assert container.head().version == 2


@pytest.mark.parametrize("change", [-1, 1])
def test_wrong_lengths(path: Path, change: int) -> None:
    head = check_whole(path)
    files = {"segment-length": segment_file(path, 0), "block-length": manifest_file(path, 0)}
    for file in files.values():
        data = file.read_bytes()
        file.write_bytes(data[:change] if change < 0 else data + b"\0")
    with open_container(path) as container:
        for rule, access in (
            ("segment-length", lambda: container.segment(head.chain[0])),
            ("block-length", lambda: container.read_manifest(head.versions[0])),
        ):
            with pytest.raises(DamagedError) as caught:
                access()
            assert caught.value.rule == rule


def test_manifest_of_another_container_or_version(path: Path) -> None:
    other = path.parent / "other"
    for seed in (0, 1):
        commit(other, payload(seed), fresh=not seed, fs=QuickFs())
    head = check_whole(path)
    manifest_file(path, 0).write_bytes(
        pack_manifest(replace(head, container_id=os.urandom(16), version=0, parent=None, versions=()))
    )
    os.replace(manifest_file(path, 1), manifest_file(path, 7))
    with open_container(path) as container:
        with pytest.raises(DamagedError) as caught:
            container.head()
        assert caught.value.rule == "manifest-identity"
        with pytest.raises(DamagedError) as caught:
            begin(path, replace=False)
        assert caught.value.rule == "manifest-identity"


def test_offsets_are_for_single_files(path: Path) -> None:
    head = check_whole(path)
    with open_container(path) as container:
        for access in (
            lambda: container.segment(replace(head.chain[0], offset=12288)),
            lambda: container.read_manifest(replace(head.versions[0], offset=12288)),
        ):
            with pytest.raises(DamagedError) as caught:
                access()
            assert caught.value.rule == "span"


def test_endless_manifest_is_not_read(path: Path) -> None:
    with manifest_file(path, 2).open("wb") as file:
        file.truncate(1 << 40)
    with open_container(path) as container, pytest.raises(DamagedError) as caught:
        container.head()
    assert caught.value.rule == "limit"


def test_other_names_are_ignored(path: Path) -> None:
    for name in ("00000000000000000009.cnrm~", "9.cnrm", ".tmp-x", "\N{ARABIC-INDIC DIGIT ZERO}" * 20 + ".cnrm"):
        (path / "manifests" / name).write_bytes(b"")
    assert check_whole(path).version == 1
    with open_container(path) as container:
        facts = container.inspect()
    assert isinstance(facts, DirectoryFacts)
    assert facts.manifests is not None
    assert Name("9.cnrm", "file", 0) in facts.manifests


def test_full_disk_is_refused_before_anything_is_written(path: Path) -> None:
    with begin(path, replace=False) as tx, pytest.raises(StorageError) as caught:
        tx.segment(os.urandom(16), size_hint=1 << 60)
    assert caught.value.errno == errno.ENOSPC
    assert not leftovers(path)


def test_empty_segment_maps_to_nothing(path: Path) -> None:
    with begin(path, replace=False, fs=QuickFs()) as tx:
        manifest = next_manifest(tx, payload(0)[:0])
        finish(tx, manifest)
    with open_container(path) as container:
        source = container.segment(manifest.chain[-1])
        assert (source.length, source.map().size) == (0, 0)
