"""The disk in memory does what the real one does, and its crash states are those that POSIX allows."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cnrfmt.errors import StorageError
from cnrfmt.storage.fs import FileStat, PosixFs
from tools.crash.recording import FOLDER, RecordingFs
from tools.crash.states import SECTOR, CrashSpace

NAMES = ["a", "b", "d", "d/a", "d/b", "e/a"]
paths = st.sampled_from(NAMES)
folders = st.sampled_from(["", "d", "e", "a"])
handles = st.integers(0, 3)
offsets = st.integers(0, 3 * SECTOR)
lengths = st.integers(0, 2 * SECTOR)

calls = st.one_of(
    st.tuples(st.just("open"), paths, st.sampled_from(["read", "write", "create", "create", "lock"])),
    st.tuples(st.just("close"), handles),
    st.tuples(st.just("read"), handles, offsets, lengths),
    st.tuples(st.just("read_ranges"), handles, st.lists(offsets, max_size=3), st.integers(1, 90)),
    st.tuples(st.just("pwrite"), handles, offsets, st.binary(max_size=9) | lengths.map(lambda n: b"x" * n)),
    st.tuples(st.just("truncate"), handles, offsets),
    st.tuples(st.just("sync"), handles),
    st.tuples(st.just("sync_directory"), folders),
    st.tuples(st.just("stat_handle"), handles),
    st.tuples(st.just("same"), handles, paths),
    st.tuples(st.just("map"), handles, lengths),
    st.tuples(st.just("lock_record"), handles),
    st.tuples(st.just("lock_handle"), handles),
    st.tuples(st.just("copy_mode"), handles, st.sampled_from([0o600, 0o640])),
    st.tuples(st.just("stat"), paths),
    st.tuples(st.just("rename"), paths, paths),
    st.tuples(st.just("link"), paths, paths),
    st.tuples(st.just("unlink"), paths),
    st.tuples(st.just("mkdir"), st.sampled_from(["d", "d", "e", "a"])),
    st.tuples(st.just("rmdir"), st.sampled_from(["d", "e", "a"])),
    st.tuples(st.just("list_directory"), folders),
    st.tuples(st.just("free_bytes"), paths),
)


class Caller:
    """Makes calls on one of the two, below a folder of its own."""

    def __init__(self, fs: Any, folder: str) -> None:
        self.fs, self.folder = fs, folder
        self.handles: list[int] = []

    def __call__(self, name: str, *args: Any) -> Any:
        """What came of a call, as far as both must agree."""
        try:
            return self._call(name, args)
        except StorageError as error:
            return "refused", error.errno

    def _call(self, name: str, args: tuple[Any, ...]) -> Any:
        fs = self.fs
        if name == "open":
            handle = fs.open(self._path(args[0]), args[1])
            if len(self.handles) == 4:
                fs.close(self.handles.pop(0))
            self.handles.append(handle)
            return "opened"
        if isinstance(args[0], str):
            found = getattr(fs, name)(*[self._path(arg) for arg in args])
            if name == "free_bytes":
                return found is None or found > 0
            return sorted(found) if name == "list_directory" else _shown(found)
        if args[0] >= len(self.handles):
            return "no such handle"
        handle, rest = self.handles[args[0]], args[1:]
        if name == "close":
            return fs.close(self.handles.pop(args[0]))
        if name == "same":
            found = fs.stat(self._path(rest[0]))
            return found is not None and found.identity == fs.stat_handle(handle).identity
        if name == "read":
            buffer = bytearray(rest[1])
            return fs.pread_into(handle, rest[0], buffer), bytes(buffer)
        if name == "read_ranges":
            pieces = np.zeros(len(rest[0]) * rest[1], np.uint8)
            done = fs.pread_ranges(handle, np.array(rest[0], np.int64), rest[1], pieces)
            return done, pieces[: done * rest[1]].tobytes()
        if name == "map":
            with fs.map(handle, rest[0]) as found:
                return bytes(found)
        return _shown(getattr(fs, name)(handle, *rest))

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name) if name else self.folder


def _shown(found: Any) -> Any:
    # A directory's size is the file system's affair, and so are the permissions that umask gives.
    return (found.kind, found.size if found.kind == "file" else 0) if isinstance(found, FileStat) else found


@contextmanager
def both() -> Iterator[tuple[Caller, Caller]]:
    with tempfile.TemporaryDirectory() as folder:
        real = Caller(PosixFs(), folder)
        try:
            yield Caller(RecordingFs(), FOLDER), real
        finally:
            for handle in real.handles:
                real.fs.close(handle)


def tree_of(folder: str) -> dict[str, bytes | None]:
    found: dict[str, bytes | None] = {}
    for above, names, files in os.walk(folder):
        for name in names:
            found[os.path.relpath(os.path.join(above, name), folder)] = None
        for name in files:
            with open(os.path.join(above, name), "rb") as file:
                found[os.path.relpath(os.path.join(above, name), folder)] = file.read()
    return found


def recorded_tree(fs: RecordingFs) -> dict[str, bytes | None]:
    return {
        path.removeprefix(f"{FOLDER}/"): data for path, data in fs.disk.tree().items() if path.startswith(FOLDER + "/")
    }


@settings(max_examples=300, deadline=None)
@given(st.lists(calls, min_size=5, max_size=40))
def test_it_answers_as_the_operating_system_does(script: list[tuple[Any, ...]]) -> None:
    with both() as (recorded, real):
        for number, call in enumerate(script):
            found = recorded(*call)
            if call[0] == "rename" and found == ("refused", 18):
                # It moves no directory, and nothing from one directory to another: containers don't, either.
                source, target = call[1:]
                moved = recorded.fs.find(f"{FOLDER}/{source}")
                assert os.path.dirname(source) != os.path.dirname(target) or hasattr(moved, "entries")
                continue
            assert found == real(*call), f"call {number}: {call}"
        assert recorded_tree(recorded.fs) == tree_of(real.folder)


def test_a_lock_ends_with_its_handle_and_with_the_process() -> None:
    fs = RecordingFs()
    first, second = fs.open(f"{FOLDER}/a", "lock"), fs.open(f"{FOLDER}/a", "lock")
    assert fs.lock_handle(first)
    assert fs.lock_handle(first)
    assert not fs.lock_handle(second)
    fs.close(first)
    assert fs.lock_handle(second)
    fs.end_process()
    assert fs.open_handles == []
    with pytest.raises(StorageError):
        fs.lock_handle(second)
    assert fs.lock_handle(fs.open(f"{FOLDER}/a", "write"))


# Crash states


def states_of(fs: RecordingFs) -> list[dict[str, bytes | None]]:
    """Every tree that a crash at this moment may leave, each once."""
    space = CrashSpace(fs.disk)
    assert space.count <= 12
    found = []
    for state in range(1 << space.count):
        tree = recorded_tree(RecordingFs(space.disk(state)))
        if tree not in found:
            found.append(tree)
    return found


def durable_file(fs: RecordingFs, name: str, data: bytes) -> int:
    handle = fs.open(f"{FOLDER}/{name}", "create")
    fs.pwrite(handle, 0, data)
    fs.sync(handle)
    fs.sync_directory(FOLDER)
    return handle


def sectors(letters: str) -> bytes:
    return b"".join(letter.encode() * SECTOR for letter in letters)


def test_a_synced_file_may_lack_its_name_and_a_named_one_its_bytes() -> None:
    fs = RecordingFs()
    handle = fs.open(f"{FOLDER}/a", "create")
    fs.pwrite(handle, 0, b"xy")
    assert states_of(fs) == [{}, {"a": b""}, {"a": b"\0\0"}, {"a": b"xy"}]
    fs.sync(handle)
    assert states_of(fs) == [{}, {"a": b"xy"}]
    fs.sync_directory(FOLDER)
    assert states_of(fs) == [{"a": b"xy"}]


def test_sectors_of_a_write_are_kept_one_by_one_and_other_bytes_never_change() -> None:
    fs = RecordingFs()
    handle = durable_file(fs, "a", sectors("abc"))
    fs.pwrite(handle, SECTOR - 1, b"X" + sectors("b") + b"YZ")
    whole = sectors("abc")
    torn = [
        whole[: SECTOR - 1] + x + sectors("b") + yz + whole[2 * SECTOR + 2 :]
        for x in (b"a", b"X")
        for yz in (b"cc", b"YZ")
    ]
    assert sorted(tree["a"] or b"" for tree in states_of(fs)) == sorted(torn)


def test_later_writes_may_be_there_without_earlier_ones() -> None:
    fs = RecordingFs()
    handle = durable_file(fs, "a", sectors("a"))
    fs.pwrite(handle, 2, b"1")
    fs.pwrite(handle, 4, b"2")
    assert {(tree["a"] or b"")[2:5] for tree in states_of(fs)} == {b"aaa", b"1aa", b"aa2", b"1a2"}


def test_lengths_are_kept_or_not_whatever_becomes_of_the_bytes() -> None:
    fs = RecordingFs()
    handle = durable_file(fs, "a", b"abcdef")
    fs.truncate(handle, 2)
    fs.pwrite(handle, 4, b"XY")
    # The cut was kept or not, then the write's bytes, then the length that it gives the file.
    expected = {b"abcdef", b"ab", b"abcdXY", b"ab\0\0\0\0", b"ab\0\0XY"}
    assert {tree["a"] for tree in states_of(fs)} == expected


def test_a_rename_leaves_the_old_file_or_the_new_one() -> None:
    fs = RecordingFs()
    durable_file(fs, "old", b"1")
    durable_file(fs, "new", b"2")
    fs.rename(f"{FOLDER}/new", f"{FOLDER}/old")
    before, after = {"old": b"1", "new": b"2"}, {"old": b"2"}
    trees = states_of(fs)
    assert len(trees) == 3
    assert all(tree in trees for tree in (before, after, {"old": b"2", "new": b"2"}))
    fs.sync_directory(FOLDER)
    assert states_of(fs) == [after]


def test_links_and_removals_are_kept_or_not() -> None:
    fs = RecordingFs()
    durable_file(fs, "a", b"1")
    fs.link(f"{FOLDER}/a", f"{FOLDER}/b")
    fs.unlink(f"{FOLDER}/a")
    trees = states_of(fs)
    assert len(trees) == 4
    assert all({"a": b"1", "b": b"1"}[name] == data for tree in trees for name, data in tree.items())


def test_the_sync_of_a_directory_is_not_one_of_its_own_name() -> None:
    fs = RecordingFs()
    fs.mkdir(f"{FOLDER}/d")
    fs.sync(fs.open(f"{FOLDER}/d/a", "create"))
    fs.sync_directory(f"{FOLDER}/d")
    assert states_of(fs) == [{}, {"d": None, "d/a": b""}]
    fs.sync_directory(FOLDER)
    assert states_of(fs) == [{"d": None, "d/a": b""}]


def test_what_was_written_again_as_it_was_is_in_no_doubt() -> None:
    fs = RecordingFs()
    handle = durable_file(fs, "a", sectors("ab"))
    fs.pwrite(handle, 0, sectors("ab"))
    fs.truncate(handle, 2 * SECTOR)
    assert CrashSpace(fs.disk).count == 0
    # Once it was in doubt, it stays so.
    fs.pwrite(handle, SECTOR, b"x")
    fs.pwrite(handle, SECTOR, b"b")
    assert CrashSpace(fs.disk).count == 2


@settings(max_examples=150, deadline=None)
@given(st.lists(calls, min_size=5, max_size=60), st.integers(0, 99))
def test_states_of_any_script_lie_between_what_is_durable_and_everything(
    script: list[tuple[Any, ...]], seed: int
) -> None:
    random, caller = Random(seed), Caller(RecordingFs(), FOLDER)
    for call in script:
        caller(*call)
    disk = caller.fs.disk
    space = CrashSpace(disk)
    assert space.disk(space.everything).tree() == disk.tree()
    # A crash has left no doubt.
    after = caller.fs.crash(random)
    assert CrashSpace(after.disk).count == 0
    assert after.log == []
    states = [0, space.everything, *(space.sample(random) for _ in range(20))]
    trees = [space.disk(state).tree() for state in states]
    for state, tree in zip(states, trees, strict=True):
        assert [other == tree for other in trees] == [space.digest(other) == space.digest(state) for other in states]
    for number, file in space.files.items():
        node = disk.file(number)
        assert file.content(0) == node.durable
        assert file.content(space.everything) == bytes(node.data)
        for one in states:
            assert len(file.content(one)) == file.size(one) >= file.least
            start = random.randrange(4 * SECTOR)
            stop = start + random.randrange(SECTOR)
            for other in states:
                # Whoever agrees on the bits that were seen, and on the length, agrees on the bytes.
                if file.size(one) == file.size(other) and not (one ^ other) & file.seen(start, stop):
                    assert file.content(one)[start:stop] == file.content(other)[start:stop]
    for number, folder in space.folders.items():
        for one in states:
            names = folder.names(one)
            assert folder.key(one) == names.keys()
            for other in states:
                for name in NAMES:
                    if not (one ^ other) & folder.seen(name):
                        assert names.get(name) == folder.names(other).get(name), number
