"""What `salvage` promises beside the rows: which version, what is written where, and what it refuses."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt import DamagedError, MissingKeyError, StorageError, UnsupportedError, UsageError, VersionNotFoundError
from cnrfmt.format.blocks import Features, FileHeader, Slot
from cnrfmt.format.encoding import RowwiseLayout
from cnrfmt.format.limits import PAGE
from cnrfmt.format.manifest import pack_manifest
from tests.salvage.conftest import Original
from tests.salvage.support import FS, Region, build, check_result, contents, copy, flip, said
from tests.storage.support import ExitAt, QuickFs, run_in_child


@pytest.fixture
def path(original: Original, tmp_path: Path) -> Path:
    return copy(original.path, tmp_path / original.path.name)


def region(original: Original, what: str) -> Region:
    return next(r for r in original.regions if r.what.startswith(what))


def part(original: Original, table: str, column: str, segment: int) -> Region:
    return region(original, f"part of column {column!r} of table {table!r} of segment {segment}")


def lose_newest(original: Original, path: Path) -> None:
    newest = region(original, "newest manifest")
    flip(path, newest.file, newest.offset + 200)


def test_the_new_container_is_another_one(original: Original, path: Path, tmp_path: Path) -> None:
    for target in (tmp_path / "new.cnr", tmp_path / "new"):
        report = cnrfmt.salvage(path, target)
        assert report.target == str(target)
        with cnrfmt.open(path) as old, cnrfmt.open(target) as new:
            assert new.manifest.container_id != old.manifest.container_id
            assert (new.version, new.versions, new.step) == (0, (0,), 5)
            note = {
                "container_id": old.manifest.container_id.hex(),
                "version": 5,
                "digest": old.digest,
                "losses": 0,
            }
            assert new.metadata == {"run": "r7", "cnrfmt.salvage": note}
        assert target.is_file() == (target.suffix == ".cnr")
        assert cnrfmt.verify(target).verdict == "sound"
        # It can be trained on.
        assert cnrfmt.append(target, {"small": cnrfmt.Rows([1], np.ones((1, 2), np.float32))}) == 1
    assert {p.name for p in tmp_path.iterdir()} <= {path.name, "new.cnr", "new", "new.cnr.lock"}


def test_quantised_rows_keep_their_codes(original: Original, path: Path, tmp_path: Path) -> None:
    damaged = part(original, "word", "weight", 0)
    flip(path, damaged.file, damaged.offset + 5000)
    cnrfmt.salvage(path, tmp_path / "new.cnr")
    with cnrfmt.open(tmp_path / "new.cnr") as ck:
        (segment, *_) = ck.view.segments.values()
        entry = segment.toc.by_table[ck["word"].schema.table_id]
        weights = [p for p in entry.parts if p.column == "weight"]
        # Rows of infinity and not-a-number, which codes can't hold, stand beside them.
        assert weights[0].layout == RowwiseLayout(8)
        assert [p.exceptions_of for p in weights] == [None, entry.parts.index(weights[0])]
        assert entry.row_sets[weights[1].rows].count == 5
        visitor = segment.toc.by_table[ck["visitor"].schema.table_id]
        assert visitor.parts[0].layout == RowwiseLayout(4, "tail", "float16", "float16")


def test_a_dry_run_writes_nothing(original: Original, path: Path, tmp_path: Path) -> None:
    damaged = part(original, "word", "weight", 0)
    flip(path, damaged.file, damaged.offset)
    dry = cnrfmt.salvage(path, None, dry_run=True)
    assert dry.target is None
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    real = cnrfmt.salvage(path, tmp_path / "new.cnr")
    assert {**real.to_json(), "target": None} == dry.to_json()
    assert dry.losses


def test_versions_and_how_they_are_chosen(original: Original, path: Path, tmp_path: Path) -> None:
    # A row of the delta that made version 3: versions 0 to 2 don't need it.
    damaged = part(original, "word", "weight", 3)
    flip(path, damaged.file, damaged.offset)
    number = iter(range(9))

    def salvage(**options: Any) -> cnrfmt.Salvage:
        target = tmp_path / f"{next(number)}.cnr"
        report = cnrfmt.salvage(path, target, fs=FS, **options)
        check_result(report, target, original.tables[report.version], options.get("tables"))
        return report

    newest = salvage()
    assert (newest.version, newest.complete) == (5, False)
    assert [v.state for v in newest.versions] == ["whole"] * 3 + ["damaged"] * 3
    assert [v.step for v in newest.versions] == list(range(6))
    whole = salvage(version="whole")
    assert (whole.version, whole.losses, whole.left_out) == (2, [], [3, 4, 5])
    # What was asked for is whole, and what is newer is not carried.
    assert not whole.complete
    explicit = salvage(version=1)
    assert (explicit.version, explicit.complete, explicit.exit_code) == (1, True, 0)
    some = salvage(tables=["small", "visitor"])
    assert [t.name for t in some.tables] == ["visitor", "small"]
    assert {loss.table for loss in some.losses} <= {"visitor", None}
    with pytest.raises(MissingKeyError, match="nobody"):
        salvage(tables=["nobody"])
    with pytest.raises(VersionNotFoundError, match="no version 6"):
        salvage(version=6)
    for wrong in ({"version": True}, {"version": "newest"}, {"tables": "small"}):
        with pytest.raises(UsageError):
            salvage(**wrong)


def test_a_newest_manifest_that_is_damaged_is_said_loudly(original: Original, path: Path, tmp_path: Path) -> None:
    lose_newest(original, path)
    with pytest.raises(DamagedError, match="cnrfmt salvage"):
        cnrfmt.open(path)
    report = cnrfmt.salvage(path, tmp_path / "new.cnr")
    assert (report.version, report.left_out, report.exit_code) == (4, [5], 1)
    assert report.newer
    check_result(report, tmp_path / "new.cnr", original.tables[4])
    with pytest.raises(DamagedError, match="version 5"):
        cnrfmt.salvage(path, tmp_path / "other.cnr", version=5)
    # Whoever asks for an older version knows that there are newer ones.
    assert cnrfmt.salvage(path, None, version=3, dry_run=True).complete


def test_an_older_manifest_that_is_damaged_costs_nothing_else(original: Original, path: Path) -> None:
    older = region(original, "manifest 2")
    flip(path, older.file, older.offset + 300)
    report = cnrfmt.salvage(path, None, dry_run=True)
    assert report.complete
    assert [v.state for v in report.versions] == ["whole", "whole", "unreadable", "whole", "whole", "whole"]


def test_both_slots_and_the_header_may_be_gone(tmp_path: Path) -> None:
    path = tmp_path / "model.cnr"
    build(path)
    want = said(path)
    with path.open("r+b") as f:
        f.write(bytes(3 * PAGE))
    report = cnrfmt.salvage(path, tmp_path / "new.cnr")
    assert (report.version, report.newer, report.losses) == (5, [], [])
    assert len(report.notes) == 3
    check_result(report, tmp_path / "new.cnr", want)
    # Bytes behind the last sound manifest may be those of a later version.
    with path.open("ab") as f:
        f.write(b"something" * 1000)
    report = cnrfmt.salvage(path, None, dry_run=True)
    assert "no slot says" in report.newer[0]
    assert not report.complete


def test_a_version_that_was_never_committed_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "model.cnr"
    build(path)
    before = path.read_bytes()
    cnrfmt.append(path, {"small": cnrfmt.Rows([0], np.zeros((1, 2), np.float32))})
    # A crash between the manifest and slot A: the slots are as they were.
    data = bytearray(path.read_bytes())
    data[PAGE : 3 * PAGE] = before[PAGE : 3 * PAGE]
    path.write_bytes(data)
    report = cnrfmt.salvage(path, None, dry_run=True)
    assert (report.version, report.complete) == (5, True)
    # Nor is it taken when the newest committed manifest is damaged, but it isn't hidden.
    with cnrfmt.open(path) as ck:
        start = before.rindex(pack_manifest(ck.manifest))
    flip(path, "", start + 200)
    report = cnrfmt.salvage(path, None, dry_run=True)
    assert report.version == 4
    assert any("never committed" in note for note in report.notes)


def test_a_container_within_a_container_isnt_mistaken_for_it(tmp_path: Path) -> None:
    path, inner = tmp_path / "model.cnr", tmp_path / "inner.cnr"
    table = np.arange(6, dtype=np.float32).reshape(3, 2)
    cnrfmt.save(inner, {"other": table})
    for _ in range(4):
        cnrfmt.append(inner, {})
    # The padding puts the pages of the inner one on pages of the outer one.
    cnrfmt.save(path, {"t": table}, dense={"backup": inner.read_bytes() + bytes(1 << 16)})
    assert inner.read_bytes()[:PAGE] in path.read_bytes()
    assert path.read_bytes().index(inner.read_bytes()) % PAGE == 0
    with path.open("r+b") as f:
        f.seek(PAGE)
        f.write(bytes(2 * PAGE))
    report = cnrfmt.salvage(path, tmp_path / "new.cnr")
    assert (report.version, report.losses) == (0, [])
    assert list(cnrfmt.load(tmp_path / "new.cnr")) == ["t"]


def test_manifests_that_overlap_cost_a_bounded_time(tmp_path: Path) -> None:
    """A sealed header block on every page, each of which claims all the rest of the file."""
    path = tmp_path / "bomb.cnr"
    pages = 2000
    size = (3 + pages) * PAGE
    from cnrfmt.format.blocks import seal

    data = bytearray(size)
    for page in range(3, 3 + pages):
        length = size - page * PAGE - 136
        fields = Features().pack() + bytes([1] * 16) + bytes(8) + length.to_bytes(8, "little") + bytes(8)
        data[page * PAGE : page * PAGE + 128] = seal("M", fields, 0)
    path.write_bytes(data)
    fs = QuickFs()
    with pytest.raises(DamagedError, match="nothing-sound"):
        cnrfmt.salvage(path, None, dry_run=True, fs=fs)
    assert fs.bytes_read < 8 * size + (256 << 20)


def test_a_foreign_manifest_with_a_higher_number(tmp_path: Path) -> None:
    path, other = tmp_path / "run", tmp_path / "other"
    build(path)
    for _ in range(12):
        cnrfmt.save(other, {"x": np.ones((1, 1), np.float32)}, fs=FS)
    name = f"manifests/{11:020d}.cnrm"
    (path / name).write_bytes((other / name).read_bytes())
    report = cnrfmt.salvage(path, None, dry_run=True)
    assert report.version == 5
    assert "version 11" in report.newer[0]


def test_a_newest_manifest_that_was_taken_away_leaves_its_delta(tmp_path: Path) -> None:
    path = tmp_path / "run"
    build(path)
    (path / f"manifests/{5:020d}.cnrm").unlink()
    # That version changed nothing, so nothing tells of it.
    assert cnrfmt.salvage(path, None, dry_run=True).complete
    (path / f"manifests/{4:020d}.cnrm").unlink()
    report = cnrfmt.salvage(path, None, dry_run=True)
    assert report.version == 3
    assert "manifest is gone" in report.perhaps_newer[0]
    # An append that was interrupted leaves the same, and isn't damage.
    assert (report.newer, report.complete) == ([], True)


def test_newer_features_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.cnr"
    build(path)
    with cnrfmt.open(path) as ck:
        manifest = ck.manifest
        header = FileHeader(manifest.container_id, Features(incompat=1 << 9)).pack()
    data = bytearray(path.read_bytes())
    newer = bytearray(data)
    newer[:PAGE] = header
    path.write_bytes(newer)
    with pytest.raises(UnsupportedError, match="incompat bit 9"):
        cnrfmt.salvage(path, None, dry_run=True)
    # The newest manifest alone: an older version has to be asked for.
    from dataclasses import replace

    body = pack_manifest(replace(manifest, features=Features(incompat=1 << 9)))
    at = data.rindex(pack_manifest(manifest))
    data[at : at + len(body)] = body
    for number in (0, 1):
        mark = int.from_bytes(body[-8:], "little")
        slot = Slot(number, manifest.container_id, manifest.version, at, len(body), mark)
        data[PAGE * (1 + number) : PAGE * (2 + number)] = slot.pack()
    path.write_bytes(data)
    with pytest.raises(UnsupportedError, match="incompat bit 9"):
        cnrfmt.salvage(path, None, dry_run=True)
    assert cnrfmt.salvage(path, None, dry_run=True, version=4).complete


def test_what_stands_at_the_target_stays(original: Original, path: Path, tmp_path: Path) -> None:
    (tmp_path / "file.cnr").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").write_text("mine")
    (tmp_path / "dir.cnr").mkdir()
    for name in ("file.cnr", "full", "dir.cnr", path.name):
        with pytest.raises(UsageError, match="is there already"):
            cnrfmt.salvage(path, tmp_path / name)
    with pytest.raises(StorageError) as refused:
        cnrfmt.salvage(path, tmp_path / "nowhere" / "new.cnr")
    assert refused.value.errno == errno.ENOENT
    (tmp_path / "empty").mkdir()
    assert cnrfmt.salvage(path, tmp_path / "empty").complete
    assert cnrfmt.verify(tmp_path / "empty").sound
    for wrong in (None, "", b"\0", 3.5):
        with pytest.raises(UsageError, match="target must"):
            cnrfmt.salvage(path, wrong)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="source must"):
            cnrfmt.salvage(wrong, tmp_path / "new.cnr")  # type: ignore[arg-type]


def test_everything_destroyed(original: Original, path: Path, tmp_path: Path) -> None:
    for file in contents(path):
        inner = path / file if file else path
        inner.write_bytes(bytes(inner.stat().st_size))
    with pytest.raises(DamagedError, match="that can be proven sound") as nothing:
        cnrfmt.salvage(path, tmp_path / "new.cnr")
    assert nothing.value.rule == "nothing-sound"
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    text = tmp_path / "note.txt"
    text.write_text("a shopping list, " * 5000)
    with pytest.raises(DamagedError, match="that can be proven sound"):
        cnrfmt.salvage(text, tmp_path / "new.cnr")


class BadSectors(QuickFs):
    """Some bytes of the files that are read can't be."""

    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        super().__init__()
        self.ranges = ranges
        self.names: dict[int, str] = {}
        self.broken = ""

    def open(self, path: str, mode: Any, *, follow: bool = False) -> int:
        handle = super().open(path, mode, follow=follow)
        self.names[handle] = path
        return handle

    def _check(self, handle: int, offset: int, length: int) -> None:
        if self.names[handle] == self.broken and any(a < offset + length and offset < b for a, b in self.ranges):
            raise StorageError(errno.EIO, "bad sector", self.broken)

    def pread_into(self, handle: int, offset: int, buffer: Any) -> int:
        self._check(handle, offset, len(memoryview(buffer).cast("B")))
        return super().pread_into(handle, offset, buffer)

    def pread_ranges(self, handle: int, offsets: Any, length: int, buffer: Any) -> int:
        for k, offset in enumerate(offsets.tolist()):
            try:
                self._check(handle, offset, length)
            except StorageError:
                return k
        return super().pread_ranges(handle, offsets, length, buffer)


def test_bad_sectors_are_damage_like_any_other(original: Original, tmp_path: Path) -> None:
    chosen = ["part of column 'weight' of table 'word' of segment 0", "digests of segment 0", "trailer of segment 1"]
    chosen += ["newest manifest", "dense entry 'mlp' of segment 3", "row index 1 of table 'visitor' of segment 1"]
    for what in chosen:
        hit = region(original, what)
        fs = BadSectors([(hit.offset, hit.offset + min(hit.length, 512))])
        fs.broken = str(original.path / hit.file) if hit.file else str(original.path)
        target = tmp_path / "new.cnr"
        report = cnrfmt.salvage(original.path, target, fs=fs)
        check_result(report, target, original.tables[report.version])
        assert report.complete == (what.split()[0] in ("digests", "trailer")), what
        target.unlink()
    if original.path.is_file():
        fs = BadSectors([(0, 3 * PAGE)])
        fs.broken = str(original.path)
        assert cnrfmt.salvage(original.path, None, dry_run=True, fs=fs).version == 5


class NoRights(QuickFs):
    def pread_into(self, handle: int, offset: int, buffer: Any) -> int:
        raise StorageError(errno.EACCES, "no")


def test_what_may_not_be_read_is_no_damage(original: Original) -> None:
    with pytest.raises(StorageError) as refused:
        cnrfmt.salvage(original.path, None, dry_run=True, fs=NoRights())
    assert refused.value.errno == errno.EACCES


class Garbling(QuickFs):
    """A disk that keeps other bytes than it was given."""

    def pwrite(self, handle: int, offset: int, data: Any) -> None:
        changed = bytearray(memoryview(data).cast("B"))
        if len(changed) > 3000:
            changed[1500] ^= 1
        super().pwrite(handle, offset, changed)


def test_what_cant_be_read_back_is_not_put_in_place(original: Original, tmp_path: Path) -> None:
    for target in (tmp_path / "new.cnr", tmp_path / "new"):
        with pytest.raises(DamagedError, match="another disk"):
            cnrfmt.salvage(original.path, target, fs=Garbling())
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_kill_leaves_nothing_at_the_target(original: Original, tmp_path: Path) -> None:
    points = {"new.cnr": ("file-written", "file-renamed"), "new": ("segment-published", "manifest-published")}
    for name, passed in points.items():
        for point in passed:
            target = tmp_path / name

            def body(target: Path = target, point: str = point) -> None:
                cnrfmt.salvage(original.path, target, threads=1, fs=ExitAt(point))

            assert run_in_child(body) == 77
            assert not target.exists()
            left = list(tmp_path.iterdir())
            assert left
            assert all(p.name.startswith(".salvage-") for p in left)
            assert cnrfmt.salvage(original.path, target, fs=FS).complete
            for p in tmp_path.iterdir():
                if p.name == name:
                    cnrfmt.verify(p)
            subprocess.run(["rm", "-r", *map(str, tmp_path.iterdir())], check=True)


def test_a_killed_process_leaves_nothing_at_the_target(tmp_path: Path) -> None:
    path = tmp_path / "model.cnr"
    cnrfmt.save(path, {"t": np.ones((400_000, 8), np.float32)})
    script = "import sys, cnrfmt; print('go', flush=True); cnrfmt.salvage(sys.argv[1], sys.argv[2])"
    for name, wait in (("a.cnr", 0.0), ("b.cnr", 0.3), ("c", 0.1)):
        with subprocess.Popen(
            [sys.executable, "-c", script, str(path), str(tmp_path / name)], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            try:
                process.wait(wait)
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
            process.wait()
        target = tmp_path / name
        # It was quicker than the signal, or nothing is there.
        assert not target.exists() or cnrfmt.verify(target).sound


def test_progress_and_a_report_in_json(original: Original, path: Path, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    flip(path, (damaged := part(original, "visitor", "weight", 0)).file, damaged.offset)
    report = cnrfmt.salvage(path, tmp_path / "new.cnr", progress=lambda done, total: calls.append((done, total)))
    assert calls
    assert all(0 <= done <= total for done, total in calls)
    found = report.to_json()
    assert found["losses"][0]["table"] == "visitor"
    assert all(isinstance(x, str) for run in found["losses"][0]["rows"] for x in run)
    assert found["complete"] is False
    assert found["versions"][5]["state"] == "damaged"


def test_an_empty_container_comes_out_empty(tmp_path: Path) -> None:
    path = tmp_path / "model.cnr"
    cnrfmt.save(path, {})
    assert cnrfmt.salvage(path, tmp_path / "new").complete
    assert not cnrfmt.load(tmp_path / "new")
    cnrfmt.save(path, {"none": np.empty((0, 3), np.float32), "keyless": cnrfmt.TableData(np.empty((0, 3)), keys=[])})
    assert cnrfmt.salvage(path, tmp_path / "other").complete
    assert {n: v.shape for n, v in cnrfmt.load(tmp_path / "other", ["none"]).items()} == {"none": (0, 3)}
