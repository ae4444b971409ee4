"""Maps that mustn't wait for a disk: what `open` takes, and what the kernel says of the process's memory then."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import re
import resource
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt.errors import StorageError, UsageError
from cnrfmt.storage import mapping
from cnrfmt.storage.fs import POSIX
from cnrfmt.storage.mapping import MapNeed, MapNeeds, map_needs
from cnrfmt.storage.source import OpenFile, Source
from tests.storage.support import ClosedOnce, QuickFs, ScriptedFs

ROWS, DIM = 20_000, 32
SIZE = 4 * ROWS * DIM
MEGABYTE = 1 << 20


class Listening(ClosedOnce):
    """Writes down what maps are said to need, and for which bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.needs: list[tuple[MapNeed, int, int]] = []

    def prepare_map(self, handle: int, found: mmap.mmap, start: int, length: int, need: MapNeed) -> None:
        assert start % mmap.PAGESIZE == 0
        assert start + length <= len(found)
        self.needs.append((need, start, length))
        super().prepare_map(handle, found, start, length, need)


def save(path: Path, rows: int = ROWS) -> Path:
    rng = np.random.default_rng(0)
    cnrfmt.save(path, {"t": rng.standard_normal((rows, DIM)).astype(np.float32)}, fs=QuickFs())
    return path


def append(path: Path, seed: int, rows: int = ROWS) -> None:
    values = np.random.default_rng(seed).standard_normal((rows // 2, DIM)).astype(np.float32)
    cnrfmt.append(path, {"t": cnrfmt.Rows(np.arange(0, rows, 2), values)}, fs=QuickFs())


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("originals")
    return {name: save(folder / name) for name in ("model.cnr", "run")}


@pytest.fixture(params=["model.cnr", "run"])
def saved(request: pytest.FixtureRequest, tmp_path: Path, originals: dict[str, Path]) -> Path:
    """A copy, since interpreted kernels take half a second to write one."""
    original, path = originals[request.param], tmp_path / request.param
    return Path(shutil.copytree(original, path) if original.is_dir() else shutil.copy(original, path))


def memory(path: Path) -> list[dict[str, Any]]:
    """What the kernel says of this process's maps of a container: bytes, those at hand, those locked, and flags."""
    found: list[dict[str, Any]] = []
    is_ours = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match("[0-9a-f]+-[0-9a-f]+ ", line):
            is_ours = line.split(maxsplit=5)[-1].startswith(str(path))
            if is_ours:
                found.append({})
        elif is_ours:
            name, _, rest = line.partition(":")
            words = rest.split()
            found[-1][name] = int(words[0]) << 10 if words[-1:] == ["kB"] else words
    return found


def total(path: Path, what: str) -> int:
    return sum(each[what] for each in memory(path))


def flags(path: Path) -> set[str]:
    return {flag for each in memory(path) for flag in each["VmFlags"]}


def test_nothing_unless_asked_for(saved: Path) -> None:
    fs = Listening()
    with cnrfmt.open(saved, fs=fs) as ck:
        # A few rows are read: a map costs more.
        assert ck["t"][0].shape == (DIM,)
        assert memory(saved) == []
        assert ck["t"][[5, 5000, ROWS - 1, *range(2000, 4000, 100)]].shape == (23, DIM)
        assert total(saved, "Size") >= SIZE
        assert total(saved, "Rss") < SIZE // 2
        assert not {"lo", "rr", "sr"} & flags(saved)
    assert fs.needs == []


@pytest.mark.parametrize("known", [True, False])
def test_populated(saved: Path, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not known:
        # As a kernel before 5.14 answers: pages are read from, one by one.
        real = mapping._call
        monkeypatch.setattr(mapping, "_call", lambda name, *rest: errno.EINVAL if rest[-1] == 22 else real(name, *rest))
    # In more steps than one.
    monkeypatch.setattr(mapping, "_STEP", MEGABYTE)
    with cnrfmt.open(saved, populate=True) as ck:
        assert total(saved, "Rss") >= SIZE
        assert ck["t"][...].shape == (ROWS, DIM)


def test_locked_until_the_map_goes(tmp_path: Path) -> None:
    # Little, since as little as 64 KiB may be allowed.
    saved = save(tmp_path / "m.cnr", rows=300)
    try:
        ck = cnrfmt.open(saved, lock=True)
    except StorageError as error:
        pytest.skip(f"the kernel forbids it: {error}")
    with ck:
        assert "lo" in flags(saved)
        assert total(saved, "Rss") >= total(saved, "Locked") >= 4 * 300 * DIM
    del ck
    gc.collect()
    assert memory(saved) == []


@pytest.mark.parametrize(("advise", "flag"), [("random", "rr"), ("sequential", "sr"), ("willneed", None)])
def test_advice(saved: Path, advise: Any, flag: str | None) -> None:
    fs = Listening()
    with cnrfmt.open(saved, advise=advise, fs=fs):
        assert flags(saved) & {"rr", "sr"} == ({flag} if flag else set())
    ((need, _, length),) = fs.needs
    assert need == advise
    assert length >= SIZE


def test_pages_are_in_before_the_kernel_hears_that_they_are_read_at_random() -> None:
    assert list(MapNeeds(populate=True, lock=True, advice="random").each()) == ["populate", "lock", "random"]
    assert list(MapNeeds().each()) == []


def test_a_refresh_does_the_same_for_new_segments_alone(saved: Path) -> None:
    fs = Listening()
    with cnrfmt.open(saved, populate=True, advise="random", fs=fs) as ck:
        first = [(start, length) for _, start, length in fs.needs]
        fs.needs.clear()
        append(saved, 1)
        assert ck.refresh() is not None
        assert [need for need, _, _ in fs.needs] == ["populate", "random"]
        assert all(length >= SIZE // 2 for _, _, length in fs.needs)
        if saved.suffix:
            # One file: the new segment lies behind the first.
            assert min(start for _, start, _ in fs.needs) >= first[0][0] + first[0][1] - mmap.PAGESIZE
        assert total(saved, "Rss") >= SIZE + SIZE // 2
        fs.needs.clear()
        assert ck.refresh() is None
        assert fs.needs == []
        assert ck["t"][0].shape == (DIM,)


def test_only_what_the_version_needs_is_brought_in(tmp_path: Path) -> None:
    saved = save(tmp_path / "m.cnr")
    append(saved, 1)
    fs = Listening()
    with cnrfmt.open(saved, version=0, populate=True, fs=fs) as ck:
        assert len(fs.needs) == 1
        assert total(saved, "Rss") < SIZE + SIZE // 4
        # Segments that are opened to say what changed are looked into once.
        assert len(ck["t"].changed(1).rows) == ROWS // 2
        assert len(fs.needs) == 1


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOMEM])
@pytest.mark.parametrize("options", [{"populate": True}, {"lock": True}, {"advise": "willneed"}])
def test_refusals_end_the_opening_and_leave_nothing(saved: Path, options: Any, code: int) -> None:
    def refuse(name: str, args: tuple[Any, ...]) -> None:
        if name == "prepare_map":
            raise StorageError(code, os.strerror(code), str(saved))

    fs: Any = ScriptedFs(refuse)
    with pytest.raises(StorageError) as caught:
        cnrfmt.open(saved, fs=fs, **options)
    assert caught.value.errno == code
    del caught
    gc.collect()
    assert not fs.handles
    assert memory(saved) == []


def test_a_refresh_that_is_refused_stays_where_it_is(saved: Path) -> None:
    is_refused = False

    def refuse(name: str, args: tuple[Any, ...]) -> None:
        if is_refused and name == "prepare_map":
            raise StorageError(errno.ENOMEM, "no", str(saved))

    fs: Any = ScriptedFs(refuse)
    with cnrfmt.open(saved, populate=True, fs=fs) as ck:
        before = ck["t"][5].tobytes()
        append(saved, 1)
        is_refused = True
        with pytest.raises(StorageError):
            ck.refresh()
        assert (ck.version, ck["t"][5].tobytes()) == (0, before)
        is_refused = False
        refreshed = ck.refresh()
        assert refreshed is not None
        assert ck.version == 1


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ({"lock": True}, errno.ENOMEM, "more than this process may keep in memory; raise its limit RLIMIT_MEMLOCK"),
        ({"lock": True}, errno.EPERM, r"leave lock out \(could not keep its map in memory\)"),
        ({"populate": True}, errno.EFAULT, r"Bad address \(could not bring its map into memory\)"),
        ({"advise": "random"}, errno.EIO, r"\(could not tell how it is read\)"),
    ],
)
def test_what_the_kernel_refuses_reads_well(
    saved: Path, options: Any, code: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapping, "_call", lambda *args: code)
    with pytest.raises(StorageError, match=says) as caught:
        cnrfmt.open(saved, **options)
    assert caught.value.errno == code
    assert str(caught.value.filename).startswith(str(saved))


def test_a_lock_beyond_the_limit() -> None:
    child = os.fork()
    if not child:
        status = 1
        try:
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
            if os.geteuid() == 0:
                # Who may lock all memory isn't asked for the limit.
                os.setuid(65534)
            try:
                mapping.meet(mmap.mmap(-1, MEGABYTE), 0, MEGABYTE, "lock")
            except OSError as error:
                wanted = error.errno in (errno.EPERM, errno.ENOMEM, errno.EAGAIN) and "RLIMIT_MEMLOCK" in str(error)
                status = 0 if wanted else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"populate": 1}, "populate is True or False, found 1"),
        ({"lock": "yes"}, "lock is True or False, found 'yes'"),
        ({"advise": "dontneed"}, "advise is None, 'random', 'sequential' or 'willneed', found 'dontneed'"),
        ({"advise": ""}, "advise is None, .*, found ''"),
        ({"backend": "pread", "populate": True}, "populate is for what is mapped, found backend='pread'; use"),
        ({"backend": "pread", "advise": "random"}, "advise is for what is mapped"),
        ({"backend": "pread", "populate": True, "lock": True}, "populate, lock are for what is mapped"),
    ],
)
def test_senseless_options(saved: Path, options: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        cnrfmt.open(saved, **options)


def test_pread_without_options() -> None:
    assert map_needs("pread", False, None, False) == MapNeeds()


def test_what_cannot_be_mapped(tmp_path: Path) -> None:
    fs = QuickFs()
    handle = fs.open(str(tmp_path / "file"), "create")
    for call in (lambda: fs.map(handle, 4096), lambda: fs.map_private(handle, 0, 4096)):
        with pytest.raises(StorageError) as caught:
            call()
        assert caught.value.errno == errno.EINVAL
    fs.close(handle)


def test_what_is_written_to_a_private_map_stays_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 40)
    source = Source(OpenFile(POSIX, str(path)), 5000, 100, "a segment", "segment-length")
    file, start = source.start
    assert (file.path, start) == (str(path), 5000)
    found = file.map_private(5000, 5100)
    assert bytes(found) == path.read_bytes()[5000:5100]
    found[:] = 7
    assert bytes(file.map_private(5000, 5100)) == path.read_bytes()[5000:5100] != bytes(found)


@pytest.mark.parametrize("refused", [False, True])
def test_zeros(refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOMEM, "no more maps")

    if refused:
        monkeypatch.setattr(mmap, "mmap", refuse)
    for length in (0, 5, MEGABYTE):
        zeros = mapping.zero_bytes(length)
        assert zeros.dtype == np.uint8
        assert len(zeros) == length
        assert not zeros.any()
        zeros[:] = 1
