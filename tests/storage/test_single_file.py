"""The single file: spans, slots, replacing, damage, and writers that meet."""

from __future__ import annotations

import errno
import os
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
    UnsupportedError,
    UsageError,
)
from cnrfmt.format.blocks import FIRST_SPAN, Features, FileHeader, Slot
from cnrfmt.format.limits import PAGE
from cnrfmt.format.manifest import parse_manifest
from cnrfmt.storage.base import FileFacts
from cnrfmt.storage.container import begin, open_container
from cnrfmt.storage.fs import POSIX
from cnrfmt.storage.single_file import SingleFile
from tests.storage.support import (
    FailAt,
    Points,
    QuickFs,
    ScriptedFs,
    check_whole,
    commit,
    contents,
    finish,
    next_manifest,
    payload,
)


@pytest.fixture
def path(file: Path) -> Path:
    return file


def patch(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def slots(path: Path) -> tuple[Slot, Slot]:
    data = path.read_bytes()
    identity = data[40:56]
    a, b = (Slot.parse(data[PAGE * (1 + n) :][:PAGE], "slot", number=n, container_id=identity) for n in (0, 1))
    return a, b


def test_layout_is_that_of_the_specification(path: Path) -> None:
    data = path.read_bytes()
    head = check_whole(path)
    a, b = slots(path)
    assert a == replace(b, number=0)
    assert len(data) == a.committed_end
    covered = np.zeros(len(data), bool)
    covered[:FIRST_SPAN] = True
    spans = [(e.offset, e.length) for e in head.chain]
    spans += [(r.offset, r.length) for r in head.versions]
    spans.append((a.manifest_offset, a.manifest_length))
    for offset, length in spans:
        assert offset is not None
        assert offset % PAGE == 0
        assert not covered[offset : offset + length].any()
        covered[offset : offset + length] = True
    assert not np.frombuffer(data, np.uint8)[~covered].any()


def test_versions_follow_each_other_and_old_ones_stay(path: Path) -> None:
    before = path.read_bytes()
    for version in range(2, 6):
        assert commit(path, payload(version, rows=30 * version), fs=QuickFs()) == version
    assert check_whole(path).version == 5
    assert [r.version for r in check_whole(path).versions] == [0, 1, 2, 3, 4]
    # Published bytes never change, slots aside.
    assert path.read_bytes()[FIRST_SPAN : len(before)] == before[FIRST_SPAN:]


def test_version_without_a_segment(path: Path) -> None:
    head = check_whole(path)
    assert commit(path, None, fs=QuickFs()) == 2
    after = check_whole(path)
    assert (after.state, after.chain) == (head.state, head.chain)


def test_several_segments_and_one_given_up(path: Path) -> None:
    with begin(path, replace=False, fs=QuickFs()) as tx:
        given_up = tx.segment(os.urandom(16))
        given_up.write(np.full(3 * PAGE, 0xFF, np.uint8))
        with pytest.raises(UsageError, match="still being written"):
            tx.manifest_offset()
        with pytest.raises(UsageError, match="still being written"):
            tx.segment(os.urandom(16))
        given_up.abort()
        with pytest.raises(UsageError, match="given up"):
            given_up.write(b"more")
        manifest = next_manifest(tx, payload(2, rows=9))
        assert manifest.chain[-1].offset == given_up.offset
        assert tx.manifest_offset() == given_up.offset + PAGE
        finish(tx, manifest)
    entry = check_whole(path).chain[-1]
    assert not any(path.read_bytes()[entry.offset + entry.length : entry.offset + PAGE])


def test_commit_refuses_while_a_segment_is_unfinished(path: Path) -> None:
    before = path.read_bytes()
    with begin(path, replace=False, fs=QuickFs()) as tx:
        manifest = next_manifest(tx, None)
        tx.segment(os.urandom(16)).write(b"begun")
        with pytest.raises(UsageError, match="still being written"):
            finish(tx, manifest)
    assert path.read_bytes() == before


def test_order_of_syncs(path: Path) -> None:
    """Each slot is written only after what it needs is durable."""
    steps: list[str] = []

    def note(name: str, args: tuple[Any, ...]) -> None:
        if name == "pwrite":
            first = args[1] // PAGE
            steps.append({1: "slot A", 2: "slot B"}.get(first, "data"))
        elif name == "sync":
            steps.append("sync")

    with begin(path, replace=False, fs=ScriptedFs(note)) as tx:
        steps.clear()
        finish(tx, next_manifest(tx, payload(2)))
    kinds = [step for n, step in enumerate(steps) if n == 0 or step != steps[n - 1]]
    assert kinds == ["data", "slot B", "sync", "slot A", "sync", "slot B", "sync"]


def test_new_file_is_complete_before_it_has_its_name(tmp_path: Path) -> None:
    steps: list[str] = []
    fs = ScriptedFs(lambda name, args: steps.append(name))
    commit(tmp_path / "new.cnr", payload(0), fresh=True, fs=fs)
    tail = [s for s in steps if s in ("pwrite", "truncate", "sync", "rename", "sync_directory")]
    assert tail[-4:] == ["pwrite", "sync", "rename", "sync_directory"]


def test_exception_in_the_body_undoes_everything(path: Path) -> None:
    before = path.read_bytes()

    def interrupted(fresh: bool) -> None:
        with begin(path, replace=fresh, fs=QuickFs()) as tx:
            next_manifest(tx, payload(5), fresh=fresh)
            raise KeyboardInterrupt

    for fresh in (False, True):
        with pytest.raises(KeyboardInterrupt):
            interrupted(fresh)
        assert path.read_bytes() == before
    assert sorted(p.name for p in path.parent.iterdir()) == ["model.cnr", "model.cnr.lock"]


def test_transaction_is_over_after_commit_and_abort(path: Path) -> None:
    with begin(path, replace=False, fs=QuickFs()) as tx:
        manifest = next_manifest(tx, None)
        finish(tx, manifest)
        with pytest.raises(UsageError, match="is over"):
            finish(tx, manifest)
        # The lock is free as soon as the commit is acknowledged.
        assert commit(path, payload(3), fs=QuickFs()) == 3
    tx = begin(path, replace=False, fs=QuickFs())
    tx.abort()
    tx.abort()
    with pytest.raises(UsageError, match="is over"):
        tx.segment(os.urandom(16))
    assert check_whole(path).version == 3


def test_replacing_leaves_readers_of_the_old_file_alone(path: Path) -> None:
    path.chmod(0o640)
    identity = check_whole(path).container_id
    with open_container(path) as old:
        head = parse_manifest(old.head().data, "old")
        maps = [old.segment(entry).map() for entry in head.chain]
        copies = [m.tobytes() for m in maps]
        assert commit(path, payload(7), fresh=True, fs=QuickFs()) == 2
        assert [m.tobytes() for m in maps] == copies
        assert contents(old, head) == copies
        assert old.head().version == 1
        with open_container(path) as new:
            assert not new.same_as(old)
            assert new.container_id == old.container_id == identity
            assert new.head().version == 2
    after = check_whole(path)
    assert (after.versions, len(after.chain)) == ((), 1)
    assert path.stat().st_mode & 0o777 == 0o640


def test_maps_outlive_their_container_and_are_read_only(path: Path) -> None:
    container = open_container(path)
    head = parse_manifest(container.head().data, "head")
    source = container.segment(head.chain[0])
    mapped = source.map()
    again = open_container(path)
    assert again.same_as(container)
    again.close()
    with pytest.raises(UsageError, match="was closed"):
        again.head()
    container.close()
    source.close()
    assert mapped.tobytes() == payload(0).tobytes()
    assert not mapped.flags.writeable
    with pytest.raises(UsageError, match="was closed"):
        source.map()


def test_one_map_serves_all_segments_until_the_file_grows(path: Path) -> None:
    class Counting(QuickFs):
        maps = 0

        def map(self, handle: int, length: int) -> Any:
            self.maps += 1
            return super().map(handle, length)

    fs = Counting()
    with open_container(path, fs) as container:
        for _ in range(2):
            head = parse_manifest(container.head().data, "head")
            for n, entry in enumerate(head.chain):
                assert container.segment(entry).map().tobytes() == payload(n).tobytes()
            commit(path, payload(2), fs=QuickFs())
    assert fs.maps == 2


def test_bytes_read_are_counted(path: Path) -> None:
    fs = QuickFs()
    with open_container(path, fs) as container:
        entry = parse_manifest(container.head().data, "head").chain[0]
        before = fs.bytes_read
        buffer = np.empty(100, np.float32)
        container.segment(entry).pread_into(400, buffer)
        assert fs.bytes_read - before == 400
    assert np.array_equal(buffer, payload(0).reshape(-1)[100:200])


def test_a_source_stays_within_its_segment(path: Path) -> None:
    with open_container(path) as container:
        source = container.segment(parse_manifest(container.head().data, "head").chain[0])
        source.pread_into(source.length, np.empty(0, np.uint8))
        for offset in (-1, source.length - 3):
            with pytest.raises(UsageError, match="asked for"):
                source.pread_into(offset, np.empty(4, np.uint8))
        with pytest.raises(UsageError, match="contiguous"):
            source.pread_into(0, np.empty((4, 4), np.uint8)[:, ::2])


@pytest.mark.parametrize("rotten", [0, 1])
def test_one_rotten_slot_loses_nothing_and_is_renewed(path: Path, rotten: int) -> None:
    patch(path, PAGE * (1 + rotten) + 50, b"\xff")
    assert check_whole(path).version == 1
    with open_container(path) as container:
        facts = container.inspect()
    assert isinstance(facts, FileFacts)
    assert facts.slot_pages[rotten][50] == 0xFF
    assert commit(path, payload(2), fs=QuickFs()) == 2
    a, b = slots(path)
    assert a == replace(b, number=0)


def test_sound_slot_is_overwritten_only_once_the_other_is_durable(path: Path) -> None:
    patch(path, 2 * PAGE + 50, b"\xff")
    steps: list[str] = []

    def note(name: str, args: tuple[Any, ...]) -> None:
        if name in ("pwrite", "sync"):
            steps.append(f"slot {args[1] // PAGE}" if name == "pwrite" and args[1] else name)

    begin(path, replace=False, fs=ScriptedFs(note)).abort()
    assert steps[-4:] == ["slot 2", "sync", "slot 1", "sync"]


def test_interrupted_between_the_slots(path: Path) -> None:
    before = path.read_bytes()
    commit(path, payload(2), fs=QuickFs())
    patch(path, 2 * PAGE, before[2 * PAGE : 3 * PAGE])
    assert check_whole(path).version == 2
    begin(path, replace=False, fs=QuickFs()).abort()
    a, b = slots(path)
    assert a == replace(b, number=0)
    assert a.version == 2


def test_no_sound_slot_is_damage(path: Path) -> None:
    before = path.read_bytes()
    for number in (0, 1):
        patch(path, PAGE * (1 + number) + 127, b"\xff")
    damaged = path.read_bytes()
    assert damaged != before
    with pytest.raises(DamagedError) as caught, open_container(path) as container:
        container.head()
    assert caught.value.rule == "slot"
    for fresh in (False, True):
        with pytest.raises(DamagedError):
            begin(path, replace=fresh)
    assert path.read_bytes() == damaged


def test_slots_of_one_version_that_differ_are_damage(path: Path) -> None:
    a, _ = slots(path)
    other = replace(a, number=1, manifest_digest=a.manifest_digest ^ 1)
    patch(path, 2 * PAGE, other.pack())
    with pytest.raises(DamagedError) as caught, open_container(path) as container:
        container.head()
    assert caught.value.rule == "slot-order"


def test_slot_seen_half_written_is_read_again(path: Path) -> None:
    class Tearing(QuickFs):
        torn = 3

        def pread_into(self, handle: int, offset: int, buffer: Any) -> int:
            count = super().pread_into(handle, offset, buffer)
            if offset == PAGE and self.torn:
                # Each time another part of the page has arrived.
                self.torn -= 1
                for number in (0, 1):
                    memoryview(buffer)[number * PAGE + 20 + self.torn] ^= 0xFF
            return count

    fs = Tearing()
    with open_container(path, fs) as container:
        assert container.head().version == 1
    assert fs.torn == 0


def truncate_to(size: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, size)


def flip(offset: int) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        patch(path, offset, bytes([path.read_bytes()[offset] ^ 1]))

    return change


def flip_manifest(inner: int) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        a, _ = slots(path)
        flip(a.manifest_offset + inner % a.manifest_length)(path)

    return change


def foreign_manifest(path: Path) -> None:
    """Both slots name the manifest of version 0 as that of version 1."""
    a, _ = slots(path)
    old = check_whole(path).versions[0]
    assert old.offset is not None
    wrong = Slot(0, a.container_id, a.version, old.offset, old.length, old.digest)
    patch(path, PAGE, wrong.pack())
    patch(path, 2 * PAGE, replace(wrong, number=1).pack())


def endless_manifest(path: Path) -> None:
    a, _ = slots(path)
    wrong = replace(a, manifest_length=1 << 40)
    patch(path, PAGE, wrong.pack())
    patch(path, 2 * PAGE, replace(wrong, number=1).pack())


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (truncate_to(0), "file-header"),
        (truncate_to(PAGE - 1), "file-header"),
        (truncate_to(PAGE), "file-header"),
        (truncate_to(2 * PAGE), "slot"),
        (truncate_to(FIRST_SPAN), "file-length"),
        (truncate_to(FIRST_SPAN + PAGE), "file-length"),
        (flip(0), "file-header"),
        (flip(50), "file-header"),
        (flip(PAGE - 1), "file-header"),
        (flip_manifest(3), "block-magic"),
        (flip_manifest(50), "block-digest"),
        (flip_manifest(-1), "manifest-digest"),
        (foreign_manifest, "manifest-identity"),
        (endless_manifest, "limit"),
    ],
)
def test_damage_is_named_and_never_written_over(path: Path, change: Callable[[Path], None], rule: str) -> None:
    change(path)
    before = path.read_bytes()
    if rule == "slot":
        # One page is left: slot A, which is enough to name a head that the file no longer has.
        rule = "file-length"
    with pytest.raises(DamagedError) as caught, open_container(path) as container:
        container.head()
    assert caught.value.rule == rule
    for fresh in (False, True):
        with pytest.raises(DamagedError) as caught:
            begin(path, replace=fresh)
        assert caught.value.rule == rule
    assert path.read_bytes() == before
    assert sorted(p.name for p in path.parent.iterdir()) == ["model.cnr", "model.cnr.lock"]


def test_truncated_while_open(path: Path) -> None:
    with open_container(path) as container:
        head = parse_manifest(container.head().data, "head")
        source = container.segment(head.chain[1])
        os.truncate(path, FIRST_SPAN + PAGE)
        for access in (source.map, lambda: source.pread_into(0, np.empty(source.length, np.uint8))):
            with pytest.raises(DamagedError) as caught:
                access()
            assert caught.value.rule == "file-length"
            assert head.chain[1].segment.hex()[:8] in caught.value.place


def test_span_outside_the_committed_bytes(path: Path) -> None:
    with open_container(path) as container:
        head = parse_manifest(container.head().data, "head")
        entry, retained = head.chain[0], head.versions[0]
        for offset in (None, 0, PAGE, FIRST_SPAN + 1, path.stat().st_size):
            with pytest.raises(DamagedError) as caught:
                container.segment(replace(entry, offset=offset))
            assert caught.value.rule == "span"
            with pytest.raises(DamagedError) as caught:
                container.read_manifest(replace(retained, offset=offset))
            assert caught.value.rule == "span"
        with pytest.raises(DamagedError) as caught:
            container.read_manifest(replace(retained, digest=retained.digest ^ 1))
        assert caught.value.rule == "manifest-digest"
        with pytest.raises(DamagedError) as caught:
            container.read_manifest(replace(retained, length=1 << 50))
        assert caught.value.rule == "limit"


@pytest.mark.parametrize(
    ("features", "reads"), [(Features(compat=2), True), (Features(ro_compat=8), True), (Features(incompat=1), False)]
)
def test_features_of_the_file_header(path: Path, features: Features, reads: bool) -> None:
    header = FileHeader(path.read_bytes()[40:56], features)
    patch(path, 0, header.pack())
    if reads:
        assert check_whole(path).version == 1
    else:
        with pytest.raises(UnsupportedError, match="incompat bit 0"), open_container(path) as container:
            container.head()
    if features.compat:
        assert commit(path, payload(2), fresh=True, fs=QuickFs()) == 2
        assert FileHeader.parse(path.read_bytes()[:PAGE], "header") == header
    else:
        for fresh in (False, True):
            with pytest.raises(UnsupportedError):
                begin(path, replace=fresh)


def test_uncommitted_bytes_are_ignored_and_reclaimed(path: Path) -> None:
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"\xee" * 10_001)
    assert check_whole(path).version == 1
    stray = path.with_name(".tmp-model.cnr-0123456789abcdef")
    others = [path.with_name(n) for n in (".tmp-model.cnr-x", ".tmp-other.cnr-0123456789abcdef")]
    for p in (stray, *others):
        p.write_bytes(b"begun")
    with open_container(path) as container:
        facts = container.inspect()
    assert isinstance(facts, FileFacts)
    assert (facts.size, facts.leftovers) == (size + 10_001, (stray.name,))
    begin(path, replace=False, fs=QuickFs()).abort()
    assert path.stat().st_size == size
    assert not stray.exists()
    assert all(p.exists() for p in others)


def test_failed_sync_of_slot_a_is_unknown_and_settled_by_the_next_writer(path: Path) -> None:
    class FirstSlotLost(QuickFs):
        def point(self, name: str) -> None:
            self.at = name

        def sync(self, handle: int) -> None:
            if self.at == "slot-a-written":
                raise StorageError(errno.EIO, "Input/output error")

    with pytest.raises(CommitUnknownError, match="version 2 may or may not be committed"):
        commit(path, payload(2), fs=FirstSlotLost())
    # The page cache says that it happened. Nothing may be undone, since a reader may have seen it.
    assert check_whole(path).version == 2
    assert commit(path, payload(3), fs=QuickFs()) == 3


def test_refused_write_of_slot_a_is_a_failure_that_is_known(path: Path) -> None:
    before = path.read_bytes()

    class NoSlot(QuickFs):
        written = b""

        def pwrite(self, handle: int, offset: int, data: Any) -> None:
            if offset == PAGE:
                if self.written:
                    super().pwrite(handle, offset, self.written)
                raise StorageError(errno.EIO, "Input/output error", "model.cnr")
            super().pwrite(handle, offset, data)

    with pytest.raises(StorageError, match="nothing was committed, the newest version is still 1") as caught:
        commit(path, payload(2), fs=NoSlot())
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, "model.cnr")
    assert path.read_bytes() == before

    # A part of the slot was written before the refusal: now the old head is in slot B alone.
    torn = NoSlot()
    torn.written = b"torn"
    with pytest.raises(CommitUnknownError):
        commit(path, payload(2), fs=torn)
    assert check_whole(path).version == 1
    assert commit(path, payload(2), fs=QuickFs()) == 2


def test_lost_answer_of_the_rename_is_a_success(path: Path) -> None:
    class LostAnswer(QuickFs):
        def rename(self, source: str, target: str) -> None:
            super().rename(source, target)
            raise StorageError(errno.EIO, "Input/output error")

    assert commit(path, payload(2), fresh=True, fs=LostAnswer()) == 2
    assert check_whole(path).version == 2


@pytest.mark.parametrize("fresh", [False, True])
def test_writer_that_ignored_the_lock_is_noticed(path: Path, fresh: bool) -> None:
    """As on a file system whose locks don't hold."""

    class NoLocks(QuickFs):
        def lock_record(self, handle: int) -> bool:
            return True

    with begin(path, replace=fresh, fs=NoLocks()) as tx:
        manifest = next_manifest(tx, payload(2), fresh=fresh)
        # The other machine, whose own transaction began at the same head and is done first.
        inner = path.with_name("other.cnr")
        inner.write_bytes(path.read_bytes()[: slots(path)[0].committed_end])
        commit(inner, payload(9), fs=QuickFs())
        other = inner.read_bytes()
        path.write_bytes(other)
        with pytest.raises(ConflictError, match="another writer was here"):
            finish(tx, manifest)
    assert path.read_bytes() == other


def test_file_put_in_the_place_while_appending(path: Path) -> None:
    before = path.read_bytes()
    with begin(path, replace=False, fs=QuickFs()) as tx:
        manifest = next_manifest(tx, payload(2))
        copy = path.with_name("copy")
        copy.write_bytes(before)
        copy.rename(path)
        with pytest.raises(ConflictError):
            finish(tx, manifest)
    assert path.read_bytes() == before


def test_something_put_there_while_the_first_version_is_written(tmp_path: Path) -> None:
    path = tmp_path / "new.cnr"
    with begin(path, replace=True, fs=QuickFs()) as tx:
        manifest = next_manifest(tx, payload(0))
        path.write_text("precious")
        with pytest.raises(ConflictError, match="something was put there"):
            finish(tx, manifest)
    assert path.read_text() == "precious"
    assert not list(tmp_path.glob(".tmp-*"))


def test_full_disk_is_refused_before_anything_is_written(path: Path) -> None:
    free = POSIX.free_bytes(str(path.parent))
    assert free is not None
    for fresh in (False, True):
        with begin(path, replace=fresh) as tx:
            with pytest.raises(StorageError) as caught:
                tx.segment(os.urandom(16), size_hint=1 << 60)
            assert caught.value.errno == errno.ENOSPC
            assert tx.segment(os.urandom(16), size_hint=1).position == 0


def test_close_that_fails_after_the_commit_changes_nothing(path: Path) -> None:
    fs = Points()
    commit(path, payload(2), fs=fs)
    assert fs.passed[-1] == "slot-b-synced"

    counting = ScriptedFs()
    commit(path, payload(3), fs=counting)
    last = len([c for c in counting.calls if c != "point"])
    assert counting.calls[-1] == "close"
    assert commit(path, payload(4), fs=ScriptedFs(FailAt(last, errno.EIO, lasting=False))) == 4


def test_source_of_a_transaction(path: Path, tmp_path: Path) -> None:
    with begin(path, replace=False, fs=QuickFs()) as tx:
        entry = parse_manifest(tx.head_bytes or b"", "head").chain[1]
        assert tx.source(entry).map().tobytes() == payload(1).tobytes()
    with begin(tmp_path / "new.cnr", replace=False, fs=QuickFs()) as tx, pytest.raises(UsageError):
        tx.source(entry)


def test_whole_file_for_validators(path: Path) -> None:
    with open_container(path) as container:
        assert isinstance(container, SingleFile)
        assert container.whole().map().tobytes() == path.read_bytes()
