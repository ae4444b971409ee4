"""What hardly ever happens to storage: misuse of transactions, slots that never hold still."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cnrfmt.errors import (
    DamagedError,
    StorageError,
    UnsupportedError,
    UsageError,
)
from cnrfmt.format.blocks import Features, Slot
from cnrfmt.format.limits import PAGE
from cnrfmt.format.manifest import parse_manifest
from cnrfmt.storage import single_file
from cnrfmt.storage.base import check_manifest, check_manifest_length
from cnrfmt.storage.container import begin, open_container
from cnrfmt.storage.fs import POSIX
from tests.storage.support import (
    ClosedOnce,
    QuickFs,
    check_whole,
    commit,
    contents,
    finish,
    next_manifest,
    payload,
)

# --- transactions ------------------------------------------------------------------------------------------------


def test_a_segment_that_is_over_cannot_be_given_up(path: Path) -> None:
    with begin(path, replace=False, fs=QuickFs()) as tx:
        given_up = tx.segment(os.urandom(16))
        given_up.write(payload(5))
        given_up.abort()
        manifest = next_manifest(tx, payload(2))
        # It must not take away what follows it.
        with pytest.raises(UsageError, match="finished or given up"):
            given_up.abort()
        finish(tx, manifest)
    with open_container(path) as container:
        assert contents(container, check_whole(path))[-1] == payload(2).tobytes()


def test_a_finished_segment_belongs_to_the_transaction(path: Path) -> None:
    with begin(path, replace=False, fs=QuickFs()) as tx:
        sink = tx.segment(b"0123456789abcdef")
        sink.write(payload(2))
        sink.finish()
        sink.finish()
        for call in (sink.abort, lambda: sink.write(b"more")):
            with pytest.raises(UsageError, match="finished or given up"):
                call()
        end = tx.manifest_offset()
        assert sink.position == payload(2).nbytes
        if path.suffix:
            assert end == (sink.offset or 0) + -(-sink.position // PAGE) * PAGE
        else:
            assert (end, sink.offset) == (None, None)


@pytest.mark.parametrize("fresh", [False, True])
def test_a_transaction_is_of_the_process_that_began_it(
    path: Path, fresh: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with begin(path, replace=fresh, fs=QuickFs()) as tx:
        manifest = next_manifest(tx, payload(2), fresh=fresh)
        sink = tx.segment(os.urandom(16))
        parent = os.getpid()
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: parent + 1)
            calls: list[Callable[[], object]] = [
                lambda: finish(tx, manifest),
                lambda: tx.segment(os.urandom(16)),
                lambda: sink.write(b"x"),
                sink.finish,
                sink.abort,
            ]
            for call in calls:
                with pytest.raises(UsageError, match=f"belongs to process {parent}"):
                    call()
        sink.abort()
        finish(tx, manifest)
    assert check_whole(path).version == 2


def test_a_transaction_that_is_over_can_do_nothing(path: Path) -> None:
    tx = begin(path, replace=False, fs=QuickFs())
    sink = tx.segment(os.urandom(16))
    tx.abort()
    for call in (sink.finish, sink.abort, lambda: sink.write(b"x"), lambda: tx.segment(os.urandom(16))):
        with pytest.raises(UsageError, match="is over"):
            call()


def test_the_first_refusal_is_told_with_what_stands(path: Path) -> None:
    def refused() -> None:
        with begin(path, replace=False, fs=QuickFs()):
            raise StorageError(errno.EDQUOT, "Disk quota exceeded", "some file")

    with pytest.raises(StorageError, match="nothing was committed, the newest version is still 1") as caught:
        refused()
    assert (caught.value.errno, caught.value.filename) == (errno.EDQUOT, "some file")


def test_after_the_commit_a_refusal_is_the_callers_own(path: Path) -> None:
    own = StorageError(errno.EIO, "something else")

    def committed() -> None:
        with begin(path, replace=False, fs=QuickFs()) as tx:
            finish(tx, next_manifest(tx, payload(2)))
            raise own

    with pytest.raises(StorageError) as caught:
        committed()
    assert caught.value is own
    assert check_whole(path).version == 2


def test_no_container_no_version(tmp_path: Path) -> None:
    def refused(path: Path) -> None:
        with begin(path, replace=True, fs=QuickFs()):
            raise StorageError(errno.EIO, "Input/output error")

    for name in ("new.cnr", "new"):
        with pytest.raises(StorageError, match=r"; nothing was committed$"):
            refused(tmp_path / name)
        assert not (tmp_path / name).exists()


def test_a_full_disk_is_one_with_less_than_is_asked_for(path: Path) -> None:
    class Small(QuickFs):
        def free_bytes(self, path: str) -> int | None:
            return 100

    class Silent(QuickFs):
        def free_bytes(self, path: str) -> int | None:
            return None

    with begin(path, replace=False, fs=Small()) as tx:
        tx.segment(os.urandom(16), size_hint=100).abort()
        tx.segment(os.urandom(16)).abort()
        with pytest.raises(StorageError, match="a segment of 101 bytes doesn't fit, 100 bytes are free") as caught:
            tx.segment(os.urandom(16), size_hint=101)
        assert caught.value.errno == errno.ENOSPC
        expected = path.parent if path.suffix else path
        assert caught.value.filename == str(expected)
    with begin(path, replace=False, fs=Silent()) as tx:
        tx.segment(os.urandom(16), size_hint=1 << 62).abort()


# --- manifests ---------------------------------------------------------------------------------------------------


def test_a_manifest_is_the_one_that_was_named(path: Path) -> None:
    with open_container(path) as container:
        data, version, _ = container.head()
    manifest = parse_manifest(data, "x")
    own = manifest.container_id
    assert check_manifest(data, "x", version, None, None) == own
    assert check_manifest(data, "x", version, manifest.digest, own) == own
    for arguments, rule in (
        ((version + 1, None, None), "manifest-identity"),
        ((version, None, bytes(15) + b"\x01"), "manifest-identity"),
        ((version, manifest.digest ^ 1, own), "manifest-digest"),
        ((version, 0, own), "manifest-digest"),
    ):
        with pytest.raises(DamagedError) as caught:
            check_manifest(data, "here", *arguments)
        assert (caught.value.rule, caught.value.place) == (rule, "here")
    with pytest.raises(DamagedError) as caught:
        check_manifest(b"x" + data[1:], "here", version, None, None)
    assert caught.value.rule == "block-magic"


def test_the_longest_manifest() -> None:
    longest = 128 + 2 * (64 << 20) + 8
    check_manifest_length(longest, "here")
    with pytest.raises(DamagedError) as caught:
        check_manifest_length(longest + 1, "here")
    assert (caught.value.rule, caught.value.place) == ("limit", "here")


# --- the single file ---------------------------------------------------------------------------------------------


def test_slots_that_never_hold_still(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    reads = []

    def read(offset: int, length: int) -> bytes:
        reads.append((offset, length))
        return len(reads).to_bytes(4, "little") * (length // 4)

    found = single_file.read_slots(read, "here", bytes(16))
    assert found.found == (None, None)
    assert [fault.rule for fault in found.faults] == ["slot", "slot"]
    assert [fault.place for fault in found.faults] == ["here: slot A", "here: slot B"]
    assert set(reads) == {(PAGE, 2 * PAGE)}
    assert len(reads) == single_file._TRIES == 50
    # Between two looks the writer gets the time to finish its page.
    assert pauses == [single_file._PAUSE] * 50
    assert single_file._PAUSE > 0
    with pytest.raises(DamagedError) as caught:
        _ = found.head
    assert caught.value is found.faults[0]


def test_slots_that_are_rotten_are_read_twice() -> None:
    reads = []

    def read(offset: int, length: int) -> bytes:
        reads.append(offset)
        return bytes(length)

    assert not single_file.read_slots(read, "here", bytes(16)).agree
    assert reads == [PAGE, PAGE]


def slots_of(*slots: Slot) -> single_file.Slots:
    pages = b"".join(slot.pack() for slot in slots)
    return single_file.read_slots(lambda offset, length: pages, "here", bytes(range(16)))


def test_the_head_is_the_newer_of_the_slots() -> None:
    old = Slot(0, bytes(range(16)), 4, 3 * PAGE, 200, 1)
    new = replace(old, version=5, manifest_offset=5 * PAGE)
    for a, b, head in ((old, old, old), (new, old, new), (old, new, new)):
        found = slots_of(a, replace(b, number=1))
        assert replace(found.head, number=0) == head
        assert found.agree == (a is b)
    assert slots_of(new, replace(old, number=0)).head == new
    other = replace(old, number=1, manifest_length=201)
    with pytest.raises(DamagedError) as caught:
        _ = slots_of(old, other).head
    assert (caught.value.rule, caught.value.place) == ("slot-order", "here: slots")


@pytest.mark.parametrize(
    ("offset", "length", "sound"),
    [
        (3 * PAGE, PAGE, True),
        (3 * PAGE, 0, True),
        (3 * PAGE, PAGE + 1, False),
        (4 * PAGE, 1, False),
        (2 * PAGE, PAGE, False),
        (3 * PAGE + 64, 1, False),
        (0, 1, False),
        (None, 1, False),
    ],
)
def test_where_spans_may_lie(offset: int | None, length: int, sound: bool) -> None:
    if sound:
        assert single_file.check_span(offset, length, 4 * PAGE, "here") == offset
    else:
        with pytest.raises(DamagedError) as caught:
            single_file.check_span(offset, length, 4 * PAGE, "here")
        assert (caught.value.rule, caught.value.place) == ("span", "here")


def test_a_span_beyond_the_committed_end_is_not_read(file: Path) -> None:
    with open_container(file) as container:
        entry = parse_manifest(container.head().data, "x").chain[0]
    size = file.stat().st_size
    with file.open("ab") as more:
        more.write(bytes(PAGE))
    with open_container(file) as container:
        # The head is looked at first, whatever is asked for.
        assert container.segment(entry).map().tobytes() == payload(0).tobytes()
        with pytest.raises(DamagedError) as caught:
            container.segment(replace(entry, offset=size))
        assert caught.value.rule == "span"


def test_the_committed_end_never_goes_back(file: Path) -> None:
    """A reader keeps what it has opened when an older file is put back in place of the bytes."""
    before = file.read_bytes()
    commit(file, payload(2), fs=QuickFs())
    with open_container(file) as container:
        newest = parse_manifest(container.head().data, "x")
        data = file.read_bytes()
        file.write_bytes(before + data[len(before) :])
        assert container.head().version == 1
        assert container.segment(newest.chain[-1]).map().tobytes() == payload(2).tobytes()


def test_a_folder_that_cannot_be_listed_hides_leftovers_alone(file: Path) -> None:
    class Unlisted(QuickFs):
        def list_directory(self, path: str) -> list[str]:
            raise StorageError(errno.EACCES, "Permission denied", path)

    with open_container(file, Unlisted()) as container:
        facts = container.inspect()
        assert facts == container.inspect()
    assert getattr(facts, "leftovers", None) == ()
    assert len(getattr(facts, "slot_pages", ())) == 2


def test_a_name_without_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(".tmp-x.cnr-0123456789abcdef").write_bytes(b"")
    assert single_file.leftover_names(POSIX, "x.cnr") == [".tmp-x.cnr-0123456789abcdef"]
    assert commit("x.cnr", payload(0), fresh=True, fs=QuickFs()) == 0
    assert sorted(os.listdir()) == ["x.cnr", "x.cnr.lock"]


@pytest.mark.parametrize("fresh", [False, True])
def test_a_damaged_container_keeps_no_handle_and_no_lock(file: Path, fresh: bool) -> None:
    sound = file.read_bytes()
    for data in (b"junk", sound[:-1], sound[:PAGE] + bytes(2 * PAGE) + sound[3 * PAGE :], sound[:2000]):
        file.write_bytes(data)
        fs = ClosedOnce()
        with pytest.raises(DamagedError):
            begin(file, replace=fresh, fs=fs)
        assert not fs.handles
        assert file.read_bytes() == data
    file.write_bytes(sound)
    assert commit(file, payload(2), fresh=fresh, fs=QuickFs()) == 2


def test_a_file_with_an_unknown_ro_compat_bit_is_read_and_not_written(file: Path) -> None:
    data = bytearray(file.read_bytes())
    with open_container(file) as container:
        identity = container.container_id
    assert identity is not None
    header = single_file.FileHeader(identity, Features(0, 1 << 9, 0)).pack()
    data[:PAGE] = header
    file.write_bytes(data)
    assert check_whole(file).version == 1
    for fresh in (False, True):
        with pytest.raises(UnsupportedError, match="ro_compat bit 9"):
            begin(file, replace=fresh, fs=QuickFs())
    assert file.read_bytes() == bytes(data)
