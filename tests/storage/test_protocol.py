"""The steps of each kind of commit, call by call, as `spec/commit.md` has them.

Other tests ask what survives a fault or a crash; this one holds still what is done, so that a step that is left out,
or changes places with another, shows even where no test is unlucky enough to need it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from cnrfmt.format.limits import PAGE
from cnrfmt.storage.fs import OpenMode
from tests.storage.support import QuickFs, check_whole, commit, payload


class Tracing(QuickFs):
    """Writes down each call that changes something, makes it durable or locks it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.steps: list[str] = []
        self.names: dict[int, str] = {}

    def name(self, path: str) -> str:
        """The path below the test's folder; what is random in it is left out."""
        relative = os.path.relpath(path, self.folder)
        return re.sub("[0-9a-f]{32}", "ID", re.sub(r"(\.tmp-.*?)[0-9a-f]{16}$", r"\1*", relative))

    def note(self, *words: str) -> None:
        self.steps.append(" ".join(words))

    def open(self, path: str, mode: OpenMode, *, follow: bool = False) -> int:
        handle = super().open(path, mode, follow=follow)
        self.names[handle] = self.name(path)
        if mode == "create":
            self.note("create", self.names[handle])
        return handle

    def pwrite(self, handle: int, offset: int, data: Any) -> None:
        name = self.names[handle]
        if name.endswith(".cnr") or name.startswith(".tmp-"):
            places = {0: "header and slots", PAGE: "slot A", 2 * PAGE: "slot B"}
            name += f": {places.get(offset, 'span')}"
        if not self.steps or self.steps[-1] != f"write {name}":
            self.note("write", name)
        super().pwrite(handle, offset, data)

    def truncate(self, handle: int, size: int) -> None:
        self.note("truncate", self.names[handle])
        super().truncate(handle, size)

    def sync(self, handle: int) -> None:
        self.note("sync", self.names[handle])

    def sync_directory(self, path: str) -> None:
        self.note("sync", self.name(path) + "/")

    def copy_mode(self, handle: int, mode: int) -> None:
        self.note("copy mode", self.names[handle])
        super().copy_mode(handle, mode)

    def rename(self, source: str, target: str) -> None:
        self.note("rename", self.name(source), "->", self.name(target))
        super().rename(source, target)

    def link(self, source: str, target: str) -> None:
        self.note("link", self.name(source), "->", self.name(target))
        super().link(source, target)

    def unlink(self, path: str) -> None:
        self.note("unlink", self.name(path))
        super().unlink(path)

    def mkdir(self, path: str) -> None:
        self.note("mkdir", self.name(path))
        super().mkdir(path)

    def lock_record(self, handle: int) -> bool:
        self.note("lock", self.names[handle])
        return super().lock_record(handle)

    def lock_handle(self, handle: int, *, shared: bool = False) -> bool:
        self.note("lock", self.names[handle])
        return super().lock_handle(handle, shared=shared)

    def point(self, name: str) -> None:
        self.note("--", name)


LOCK = ["lock model.cnr.lock", "truncate model.cnr.lock", "write model.cnr.lock"]
NEW_FILE = [
    "write .tmp-model.cnr-*: span",
    "truncate .tmp-model.cnr-*",
    "write .tmp-model.cnr-*: header and slots",
    "-- file-written",
    "sync .tmp-model.cnr-*",
    "-- file-synced",
    "rename .tmp-model.cnr-* -> model.cnr",
    "-- file-renamed",
    "sync ./",
    "-- folder-synced",
]
SEGMENT = ["create run/segments/.tmp-*", "lock run/segments/.tmp-*", "write run/segments/.tmp-*"]
SEGMENT_PUBLISHED = [
    "sync run/segments/.tmp-*",
    "-- segment-synced",
    "link run/segments/.tmp-* -> run/segments/ID.cnrs",
    "unlink run/segments/.tmp-*",
    "-- segment-published",
    "sync run/segments/",
]


def manifest_published(version: int) -> list[str]:
    return [
        "-- segments-synced",
        "create run/manifests/.tmp-*",
        "lock run/manifests/.tmp-*",
        "write run/manifests/.tmp-*",
        "sync run/manifests/.tmp-*",
        "-- manifest-synced",
        f"link run/manifests/.tmp-* -> run/manifests/{version:020}.cnrm",
        "unlink run/manifests/.tmp-*",
        "-- manifest-published",
        "sync run/manifests/",
        "-- manifests-synced",
    ]


STEPS: dict[str, tuple[str, bool, bool, list[str]]] = {
    # the container's name, whether one is there before, whether the commit is a baseline, what is done
    "append to a file": (
        "model.cnr",
        True,
        False,
        [
            *LOCK,
            "sync ./",
            "write model.cnr: span",
            "truncate model.cnr",
            "-- manifest-written",
            "write model.cnr: slot B",
            "sync model.cnr",
            "-- manifest-synced",
            "write model.cnr: slot A",
            "-- slot-a-written",
            "sync model.cnr",
            "-- slot-a-synced",
            "write model.cnr: slot B",
            "-- slot-b-written",
            "sync model.cnr",
            "-- slot-b-synced",
        ],
    ),
    "replace a file": (
        "model.cnr",
        True,
        True,
        [*LOCK, "create .tmp-model.cnr-*", "copy mode .tmp-model.cnr-*", *NEW_FILE],
    ),
    "make a file": ("model.cnr", False, True, [*LOCK, "create .tmp-model.cnr-*", *NEW_FILE]),
    "append to a directory": (
        "run",
        True,
        False,
        ["sync run/manifests/", *SEGMENT, *SEGMENT_PUBLISHED, *manifest_published(2)],
    ),
    "baseline in a directory": (
        "run",
        True,
        True,
        ["sync run/manifests/", *SEGMENT, *SEGMENT_PUBLISHED, *manifest_published(2)],
    ),
    "make a directory": (
        "run",
        False,
        True,
        [
            "mkdir run",
            "mkdir run/segments",
            "mkdir run/manifests",
            *SEGMENT,
            *SEGMENT_PUBLISHED,
            "sync run/",
            "sync ./",
            *manifest_published(0),
        ],
    ),
}


@pytest.mark.parametrize("case", STEPS)
def test_the_steps_of_a_commit(tmp_path: Path, case: str) -> None:
    name, there, fresh, steps = STEPS[case]
    path = tmp_path / name
    if there:
        commit(path, payload(0), fresh=True, fs=QuickFs())
        commit(path, payload(1), fs=QuickFs())
    fs = Tracing(tmp_path)
    commit(path, payload(2), fresh=fresh, fs=fs)
    assert fs.steps == steps
    check_whole(path)


@pytest.mark.parametrize("name", ["model.cnr", "run"])
def test_the_steps_of_a_commit_without_a_segment(tmp_path: Path, name: str) -> None:
    commit(tmp_path / name, payload(0), fresh=True, fs=QuickFs())
    fs = Tracing(tmp_path)
    commit(tmp_path / name, None, fs=fs)
    if name == "run":
        assert fs.steps == ["sync run/manifests/", "sync run/segments/", *manifest_published(1)]
    else:
        assert fs.steps == STEPS["append to a file"][3]


@pytest.mark.parametrize("fresh", [False, True])
def test_the_steps_after_an_attempt_that_was_given_up(tmp_path: Path, fresh: bool) -> None:
    """What lies past the committed end is cut off, and the leftovers of dead writers are removed."""
    path = tmp_path / "model.cnr"
    commit(path, payload(0), fresh=True, fs=QuickFs())
    with path.open("ab") as file:
        file.write(b"begun")
    path.with_name(".tmp-model.cnr-0123456789abcdef").write_bytes(b"begun")
    fs = Tracing(tmp_path)
    commit(path, payload(1), fresh=fresh, fs=fs)
    removed = [*LOCK, "unlink .tmp-model.cnr-*"]
    assert fs.steps[:4] == removed
    if not fresh:
        assert fs.steps[4:6] == ["sync ./", "truncate model.cnr"]


@pytest.mark.parametrize(("rotten", "order"), [(0, "AB"), (1, "BA")])
def test_the_steps_of_a_repair(tmp_path: Path, rotten: int, order: str) -> None:
    path = tmp_path / "model.cnr"
    commit(path, payload(0), fresh=True, fs=QuickFs())
    with path.open("r+b") as file:
        file.seek(PAGE * (1 + rotten) + 50)
        file.write(b"\xff")
    fs = Tracing(tmp_path)
    commit(path, payload(1), fs=fs)
    repair = [
        step
        for slot in order
        for step in (f"write model.cnr: slot {slot}", "sync model.cnr", "-- slot-repaired")
    ]
    assert fs.steps[4 : 4 + len(repair)] == repair
    assert fs.steps[:4] + fs.steps[4 + len(repair) :] == STEPS["append to a file"][3]
