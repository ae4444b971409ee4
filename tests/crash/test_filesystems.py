"""Containers after crashes on real file systems; planted bugs, which the engine must find; and the recorded disk.

Where the kernel doesn't give this process FUSE, loop devices or the file system, tests are skipped and say so.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from cnrfmt.storage.fs import Fs, PosixFs
from tests.crash.support import forbidden
from tools.crash._disk_check import UnsyncedFs, bench
from tools.crash._disk_mounts import loop_device, loops_under, mount, mounts_under, unmount, workplace
from tools.crash._disk_states import Epoch, Image, State, Unit, epochs, prefixes, read_pages, subsets, tear, units
from tools.crash._disk_workload import FILESYSTEMS, FileSystem, Promise, fresh, record, steps_from
from tools.crash.disk import Flush, Log, RecordedDisk, Write
from tools.crash.filesystems import check_again, command, explore, keep_for

ROOT = Path(__file__).resolve().parents[2]
SEED = 20260801
MAKERS = {"ext4": "mkfs.ext4", "xfs": "mkfs.xfs", "btrfs": "mkfs.btrfs"}


def refusal(filesystem: FileSystem) -> str | None:
    """Why the kernel doesn't let this process mount the file system; None if it does."""
    if not sys.platform.startswith("linux"):
        return "only Linux has FUSE, loop devices and these file systems"
    if os.geteuid():
        return "only root may mount"
    for needed in ("/dev/fuse", "/dev/loop-control"):
        try:
            os.close(os.open(needed, os.O_RDWR))
        except OSError as error:
            return f"the kernel doesn't give {needed}: {error.strerror}"
    try:
        with workplace() as place:
            filesystem.make(place / "image", filesystem.blocks[0])
            (place / "mounted").mkdir()
            with loop_device(place / "image", direct=False) as device:
                mount(device, place / "mounted", filesystem.name)
                unmount(place / "mounted")
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES, errno.ENODEV):
            return f"the kernel doesn't mount {filesystem.name} for us: {error.strerror}"
        raise
    return None


def permitted(name: str) -> FileSystem:
    """The file system, if the kernel lets us have it."""
    filesystem = FILESYSTEMS[name]
    if (reason := refusal(filesystem)) is not None:
        forbidden(reason)
    return filesystem


NEEDS_EXT4 = pytest.mark.needs_system(MAKERS["ext4"], "fusermount3")


# --- The promise ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "states", "share"),
    [
        pytest.param(name, states, share, marks=pytest.mark.needs_system(MAKERS[name], "fusermount3"))
        for name, states, share in (("ext4", 500, 1.0), ("xfs", 100, 0.3), ("btrfs", 100, 0.05))
    ],
)
def test_every_crash_leaves_what_was_promised(name: str, states: int, share: float, tmp_path: Path) -> None:
    filesystem = permitted(name)
    tally = explore(filesystem, states, SEED, keep=tmp_path, share=share)
    assert not tally.failures, f"{command(filesystem, states, SEED)}: {tally.failures[:3]}"
    assert tally.states == states
    assert tally.counts["pending, didn't happen"]
    if name == "ext4":
        # Crashes hit where it is decided whether a commit happened. A few hundred states may miss these moments.
        assert tally.counts["pending, happened"]


class UnsyncedFiles(PosixFs):
    """Forgets that bytes must be made durable."""

    def sync(self, handle: int) -> None:
        pass


class UnsyncedFolders(PosixFs):
    """Forgets that names must be made durable, too."""

    def sync_directory(self, path: str) -> None:
        pass


@NEEDS_EXT4
@pytest.mark.parametrize("fs", [UnsyncedFs(), UnsyncedFiles(), UnsyncedFolders()], ids=lambda fs: type(fs).__name__)
def test_a_writer_that_does_not_sync_is_found_out(fs: Fs, tmp_path: Path) -> None:
    filesystem = permitted("ext4")
    tally = explore(filesystem, 2000, SEED, keep=tmp_path, fs=fs, enough=10)
    assert tally.failures, f"seed {SEED}: nothing is wrong in {tally.states} states of a writer that doesn't sync"
    # Kernels write back when they like, so which states fail isn't known; but a commit was lost in one at least.
    lost = [failure for failure in tally.failures if "was acknowledged, and now" in failure["error"]]
    assert lost, tally.failures
    # What was kept shows the same again.
    folder = Path(lost[0]["again"].split()[-1])
    with pytest.raises(AssertionError, match="was acknowledged, and now"):
        check_again(folder)


@NEEDS_EXT4
def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    filesystem = permitted("ext4")
    state = tmp_path / "state.json"
    first = explore(filesystem, 20, SEED, keep=tmp_path, kept=keep_for(filesystem, SEED, state))
    second = explore(filesystem, 50, SEED, keep=tmp_path, kept=keep_for(filesystem, SEED, state))
    assert second.states == 50
    assert second.recordings > first.recordings
    assert first.digests < second.digests
    with pytest.raises(SystemExit, match="2"):
        explore(filesystem, 50, SEED + 1, keep=tmp_path, kept=keep_for(filesystem, SEED + 1, state))


# --- The recorded disk ---------------------------------------------------------------------------


@NEEDS_EXT4
def test_a_sync_reaches_the_disk_as_a_flush_behind_the_bytes() -> None:
    filesystem = permitted("ext4")
    with workplace() as place:
        filesystem.make(place / "image", 4096)
        (place / "mounted").mkdir()
        with RecordedDisk(place) as disk:
            with loop_device(disk.path, direct=True) as device:
                mount(device, place / "mounted", "ext4")
                try:
                    with (place / "mounted" / "file").open("wb", buffering=0) as file:
                        file.write(b"durable!" * 512)
                        disk.mark("written")
                        os.fsync(file.fileno())
                        disk.mark("synced")
                finally:
                    unmount(place / "mounted")
            log = disk.log()
    moments = {text: moment for moment, text in log.marks}
    content = [write for write in log.writes if b"durable!" * 512 in write.data]
    assert len(content) == 1
    ended = content[0].ended
    assert ended is not None
    assert ended > moments["written"]
    flushes = [flush for flush in log.flushes if flush.ended is not None and ended < flush.begun]
    assert any(flush.ended < moments["synced"] for flush in flushes if flush.ended is not None)


@NEEDS_EXT4
def test_the_log_is_all_that_happened_to_the_disk() -> None:
    filesystem = permitted("ext4")
    random = Random(SEED)
    with workplace() as place:
        start = fresh(place, filesystem, random)
        recording = record(place, filesystem, start, steps_from(start.model, start.kind, random, 2))
        with (place / "image").open("rb") as file:
            found = read_pages(file.fileno())
    image = Image(filesystem.size, start.pages, units(recording.log, start.block))
    everything = image.split(image.with_changes(tuple(units(recording.log, start.block))))
    assert {number: page.tobytes() for number, page in found.items()} == {
        number: page.tobytes() for number, page in everything.items()
    }
    # Every epoch settles what the ones before it left open, and the last says that all steps were done.
    assert epochs(recording.log, start.block)[-1].marks == ("ready", "begun", "done", "begun", "done")


@NEEDS_EXT4
def test_the_kernel_forgets_one_image_before_it_sees_the_next() -> None:
    filesystem = permitted("ext4")
    with workplace() as place, bench(place, filesystem) as one:
        for seed in range(3):
            start = fresh(place, filesystem, Random(seed))
            one.copy(place / "image")
            with one.device.open("rb") as device, (place / "image").open("rb") as image:
                assert device.read() == image.read()
            one.check_written(Promise(start.kind, start.model), seed)


# Mounts a file system on a recorded disk, and goes on when its input ends.
HOLDER = """
import signal, sys
from tools.crash._disk_mounts import loop_device, mount, unmount, workplace
from tools.crash._disk_workload import FILESYSTEMS
from tools.crash.disk import RecordedDisk
from tools.progress import undisturbed
signal.signal(signal.SIGINT, signal.default_int_handler)
with workplace() as place, undisturbed():
    FILESYSTEMS["ext4"].make(place / "image", 4096)
    (place / "mounted").mkdir()
    with RecordedDisk(place) as disk, loop_device(disk.path, direct=True) as device:
        mount(device, place / "mounted", "ext4")
        (place / "mounted" / "file").write_bytes(b"never synced")
        print(place, flush=True)
        sys.stdin.read()
        unmount(place / "mounted")
    assert any(b"never synced" in write.data for write in disk.log().writes)
"""


def start_holder() -> tuple[subprocess.Popen[str], Path]:
    """One that holds mounts in a session of its own, and its workplace."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOLDER]
    child = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    assert child.stdout is not None
    folder = Path(child.stdout.readline().strip())
    assert folder.is_absolute()
    assert len(mounts_under(folder)) == 2
    return child, folder


@NEEDS_EXT4
def test_a_disk_outlives_ctrl_c_until_it_is_unmounted() -> None:
    permitted("ext4")
    child, folder = start_holder()
    # As a terminal does, to all that belong to its foreground.
    os.killpg(child.pid, signal.SIGINT)
    _, said = child.communicate("", timeout=60)
    assert said.rstrip().endswith("KeyboardInterrupt"), said
    assert "Error" not in said, said
    assert not mounts_under(folder)
    assert not loops_under(folder)
    assert not folder.exists()


@NEEDS_EXT4
def test_what_a_killed_run_left_is_cleared_by_the_next() -> None:
    permitted("ext4")
    child, folder = start_holder()
    with workplace():
        # Its owner is alive.
        assert len(mounts_under(folder)) == 2
    child.send_signal(signal.SIGKILL)
    child.communicate()
    with workplace():
        assert not mounts_under(folder)
        assert not loops_under(folder)
        assert not folder.exists()


# --- From a log to states, purely ----------------------------------------------------------------


def block(letter: bytes) -> bytes:
    return letter * 4096


def test_only_what_had_ended_before_a_flush_is_settled_by_it() -> None:
    early, late = Write(0, block(b"a"), 0, 1), Write(4096, block(b"b"), 2, 5)
    log = Log([early, late], [Flush(3, 4), Flush(6, 7)], [(8, "done")], 9)
    first, second, last = epochs(log, 4096)
    assert [unit.data[:1] for unit in first.open] == [b"a", b"b"]
    assert [unit.data[:1] for unit in second.settled] == [b"a"]
    # It was under way when the flush began.
    assert [unit.data[:1] for unit in second.open] == [b"b"]
    assert [unit.data[:1] for unit in last.settled] == [b"b"]
    assert not last.open
    assert (first.marks, second.marks, last.marks) == ((), (), ("done",))


def test_a_flush_or_a_write_that_never_ended_settles_nothing() -> None:
    log = Log([Write(0, block(b"a"), 0, 1), Write(4096, block(b"b"), 2)], [Flush(3)], [], 4)
    (only,) = epochs(log, 4096)
    assert len(only.open) == 2
    assert not only.settled


def test_what_was_written_over_durably_does_not_come_back() -> None:
    old, new = Write(0, block(b"a"), 0, 5), Write(0, block(b"b"), 1, 2)
    log = Log([old, new], [Flush(3, 4)], [], 6)
    _, last = epochs(log, 4096)
    assert [unit.data[:1] for unit in last.settled] == [b"b"]
    assert not last.open


def test_a_write_of_several_blocks_may_survive_in_part() -> None:
    log = Log([Write(1024, bytes(range(256)) * 12, 0, 1)], [], [], 2)
    assert [(unit.offset, len(unit.data)) for unit in units(log, 1024)] == [(1024, 1024), (2048, 1024), (3072, 1024)]
    assert [(unit.offset, len(unit.data)) for unit in units(log, 4096)] == [(1024, 3072)]
    (only,) = epochs(log, 1024)
    assert [len(state.survivors) for state in prefixes(only)] == [0, 1, 2, 3]


@pytest.mark.parametrize("count", [3, 12])
def test_reorderings_are_subsets_in_the_order_of_the_writes(count: int) -> None:
    every = tuple(Unit(moment, moment * 4096, block(b"x")) for moment in range(count))
    epoch = Epoch(0, (), every, ())
    states = list(subsets(epoch, Random(SEED), 100))
    for state in states:
        assert set(state.survivors) <= set(every)
        assert list(state.survivors) == sorted(state.survivors, key=lambda unit: unit.moment)
    if count == 3:
        assert len({state.survivors for state in states}) == len(states) == 8
    else:
        sizes = {len(state.survivors) for state in states}
        assert {1, count - 1} < sizes


def test_a_torn_block_is_a_mixture_of_old_and_new_sectors() -> None:
    unit = Unit(1, 4096, block(b"n"))
    image = Image(1 << 20, {}, [Unit(0, 4096, block(b"o")), unit])
    image.apply((Unit(0, 4096, block(b"o")),))
    torn = tear(State(Epoch(0, (), (unit,), ()), (unit,)), Random(SEED), image)
    assert torn.torn
    data = torn.survivors[-1].data
    sectors = {data[at : at + 512] for at in range(0, 4096, 512)}
    assert sectors == {b"o" * 512, b"n" * 512}
    # Where all is as it was, there is nothing to tear.
    same = State(Epoch(0, (), (), ()), (Unit(2, 4096, block(b"o")),))
    assert tear(same, Random(SEED), image) is same


def test_an_image_is_written_as_it_is(tmp_path: Path) -> None:
    unit = Unit(0, 3 * 4096 + 512, b"u" * 512)
    image = Image(1 << 16, {}, [unit])
    with (tmp_path / "image").open("w+b") as file:
        file.write(b"\xff" * (1 << 16))
        file.flush()
        image.write(file.fileno(), image.with_changes((unit,)))
    data = (tmp_path / "image").read_bytes()
    assert data == bytes(unit.offset) + unit.data + bytes((1 << 16) - unit.offset - 512)
