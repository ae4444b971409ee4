"""What open, Table and load give, refuse, and read."""

from __future__ import annotations

import os
import pickle
import shutil
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cnrfmt
from cnrfmt import Deleted, Dropped, Quantize, Rows, TableData
from cnrfmt.checkpointing.keeping.tags import tag
from cnrfmt.kernels._jit import INTERPRETED
from cnrfmt.storage.fs import PosixFs

F32 = np.float32
ROWS, DIM = 5000, 32


def matrix(rows: int = ROWS, dim: int = DIM, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(rows, dim)).astype(F32)


@pytest.fixture(params=["model.cnr", "model"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / request.param


@pytest.fixture
def saved(path: Path) -> Path:
    cnrfmt.save(path, {"t": TableData(matrix(), columns={"g": np.arange(ROWS, dtype=F32)})}, step=1)
    return path


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_indexing_is_that_of_numpy(saved: Path, backend: Any) -> None:
    values = matrix()
    with cnrfmt.open(saved, backend=backend) as ck:
        t = ck["t"]
        assert (t.shape, t.dtype, t.ndim, len(t)) == ((ROWS, DIM), F32, 2, ROWS)
        assert (t.columns, t.keys) == (("weight", "g"), None)
        mask = values[:, 0] > 0.5
        for key in (
            5,
            -1,
            np.int64(7),
            slice(10, 20),
            slice(None),
            slice(-5, None),
            slice(20, 10),
            slice(4900, 10, -7),
            slice(0, 9999, 3),
            Ellipsis,
            [3, 1, 2, 3],
            np.array([4999, 0], np.uint32),
            np.array([], np.int64),
            mask,
        ):
            found = t[key]
            assert found.tobytes() == values[key].tobytes()
            assert found.shape == values[key].shape
            assert found.flags.writeable
        assert t[[]].tolist() == []
        assert (np.asarray(t) == values).all()
        assert np.asarray(t, np.float64).dtype == np.float64
        assert (t.at[5:7] == values[5:7]).all()
        assert (next(iter(t)) == values[0]).all()


def test_read_into_and_as(saved: Path) -> None:
    values = matrix()
    with cnrfmt.open(saved) as ck:
        t = ck["t"]
        out = np.empty((10, DIM), F32)
        assert t.read(slice(5, 15), out=out) is out
        assert (out == values[5:15]).all()
        half = t.read([1, 2], dtype=np.float16)
        assert (half == values[[1, 2]].astype(np.float16)).all()
        strided = np.zeros((10, 2 * DIM), np.float64)[:, ::2]
        t.read(slice(0, 10), out=strided)
        assert (strided == values[:10]).all()
        fortran = np.empty((10, DIM), F32, order="F")
        t.read(slice(0, 10), out=fortran)
        assert (fortran == values[:10]).all()
        one = np.empty(DIM, F32)
        t.read(3, out=one)
        assert (one == values[3]).all()
        assert t.read(7, column="g") == 7
        assert t.read([7, 3], column="g").tolist() == [7, 3]
        assert t.read([7], dtype=ml_dtypes.bfloat16).dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize(
    ("key", "error", "says"),
    [
        (ROWS, cnrfmt.MissingKeyError, "rows 0 to 4999, found 5000"),
        (-ROWS - 1, cnrfmt.MissingKeyError, "found -5001"),
        ([0, ROWS], cnrfmt.MissingKeyError, "found 5000"),
        ([0, -1], cnrfmt.MissingKeyError, "found -1"),
        (np.zeros(3, bool), cnrfmt.UsageError, "a mask needs 5000"),
        ([1.5], cnrfmt.UsageError, "integer"),
        ("a", cnrfmt.UsageError, "rows can't be"),
        (True, cnrfmt.UsageError, "rows can't be"),
        (np.zeros((2, 2), np.int64), cnrfmt.UsageError, "1-D"),
    ],
)
def test_rows_that_are_not_there(saved: Path, key: Any, error: Any, says: str) -> None:
    with cnrfmt.open(saved) as ck, pytest.raises(error, match=says):
        ck["t"][key]


def test_wrong_calls_are_named(saved: Path) -> None:
    with cnrfmt.open(saved) as ck:
        t = ck["t"]
        for call, says in (
            (lambda: t.read(column="h"), "no column 'h'; it has weight, g"),
            (lambda: t.read(out=np.empty((3, 3), F32)), r"shape \(5000, 32\)"),
            (lambda: t.read(missing="zero"), "missing is"),
            (lambda: ck["u"], "no table 'u' in version 0; it has 't'"),
            (lambda: t.changed(since=1.5), "a version is an integer"),
        ):
            with pytest.raises(cnrfmt.UsageError, match=says):
                call()
        with pytest.raises(cnrfmt.VersionNotFoundError, match="no version 3"):
            t.changed(since=3)
        with pytest.raises(ValueError, match="without a copy"):
            np.asarray(t, copy=False)
    for options, says in (
        ({"backend": "x"}, "backend is"),
        ({"verify": "x"}, "verify is"),
        ({"threads": -1}, "threads"),
    ):
        with pytest.raises(cnrfmt.UsageError, match=says):
            cnrfmt.open(saved, **options)
    with pytest.raises(cnrfmt.VersionNotFoundError, match="no version 9"):
        cnrfmt.open(saved, version=9)
    with pytest.raises(cnrfmt.StorageError, match=r"cnrfmt\.save makes one"):
        cnrfmt.open(saved.parent / "nothing")
    with pytest.raises(cnrfmt.UsageError, match="list of names"):
        cnrfmt.load(saved, tables="t")
    with pytest.raises(cnrfmt.MissingKeyError, match="isn't loaded"):
        cnrfmt.load(saved, out={"u": np.empty(3)})


def test_nothing_is_read_after_closing(saved: Path) -> None:
    with cnrfmt.open(saved) as ck:
        t = ck["t"]
    for call in (lambda: t[0], lambda: ck["t"], lambda: ck.refresh(), lambda: ck.dense):
        with pytest.raises(cnrfmt.UsageError, match="was closed"):
            call()


def test_load(path: Path) -> None:
    keys = np.array([9, 2, 5])
    tables = {
        "a": matrix(100, 4),
        "k": TableData(matrix(3, 4), keys=keys, columns={"g": np.arange(3.0)}, fill={"g": 2}),
    }
    cnrfmt.save(path, tables)
    found = cnrfmt.load(path)
    assert (found["a"] == matrix(100, 4)).all()
    assert found["k"].keys.tolist() == [2, 5, 9]
    assert (found["k"].values == matrix(3, 4)[[1, 2, 0]]).all()
    assert found["k"].columns["g"].tolist() == [1, 2, 0]
    out = np.empty((100, 4), F32)
    assert cnrfmt.load(path, ["a"], out={"a": out})["a"] is out
    cnrfmt.save(path, cnrfmt.load(path, columns=True))
    again = cnrfmt.load(path, columns=True)
    assert (again["k"].values == found["k"].values).all()
    assert again["k"].fill == {"weight": 0, "g": 2}


def test_a_range_or_ids_touch_only_the_bytes_they_need(saved: Path) -> None:
    fs = PosixFs()
    row = 4 * DIM
    piece = 4096
    with cnrfmt.open(saved, backend="pread", fs=fs) as ck:
        t = ck["t"]
        t[0]  # Brings in the digests.
        for key, rows in ((slice(1000, 1100), 100), (slice(3000, 3001), 1)):
            before = fs.bytes_read
            t[key]
            assert fs.bytes_read - before <= rows * row + 2 * piece
        ids = np.arange(0, ROWS, 500)
        before = fs.bytes_read
        t[ids]
        assert fs.bytes_read - before <= len(ids) * piece
        before = fs.bytes_read
        t.read([2], column="g")
        assert fs.bytes_read - before <= piece
    with cnrfmt.open(saved, backend="pread", verify="none", fs=fs) as ck:
        before = fs.bytes_read
        ck["t"][1000:1100]
        assert fs.bytes_read - before == 100 * row


def test_opening_reads_no_data(saved: Path) -> None:
    fs = PosixFs()
    with cnrfmt.open(saved, backend="pread", fs=fs) as ck:
        assert ck["t"].shape == (ROWS, DIM)
        assert fs.bytes_read < 24 << 10


@pytest.mark.parametrize("bits", [None, 8, 4])
def test_a_chain_reads_as_its_sum_on_every_path(path: Path, bits: int | None) -> None:
    quantize = None if bits is None else Quantize(bits)
    rng = np.random.default_rng(5)
    count = 1000 if INTERPRETED else ROWS
    expected = matrix(count)
    cnrfmt.save(path, {"t": expected}, quantize=quantize)
    for version in range(6):
        ids = np.unique(rng.zipf(1.3, count // 5 - 100) % count)
        expected[ids] = matrix(len(ids), seed=version)
        order = rng.permutation(len(ids))
        cnrfmt.append(path, {"t": Rows(ids[order], expected[ids[order]])})
    once = path.with_name("once" + path.suffix)
    cnrfmt.save(once, {"t": expected}, quantize=quantize)
    want = cnrfmt.load(once)["t"]
    for threads in (1, 3):
        for backend in ("mmap", "pread"):
            with cnrfmt.open(path, backend=backend, threads=threads) as ck:
                t = ck["t"]
                assert t[...].tobytes() == want.tobytes()
                ids = rng.integers(0, count, count * 3 // 5)
                assert t[ids].tobytes() == want[ids].tobytes()
                assert t[17 : count - 679].tobytes() == want[17 : count - 679].tobytes()
                assert all(t[i].tobytes() == want[i].tobytes() for i in range(0, count, 97))


def test_refresh_moves_on_and_old_tables_stay(path: Path) -> None:
    cnrfmt.save(path, {"t": matrix(), "u": matrix(10)})
    with cnrfmt.open(path) as ck:
        old = ck["t"]
        assert ck.refresh() is None
        cnrfmt.append(path, {"t": Rows([4, 2], matrix(2) + 1), "u": Dropped(), "v": matrix(3)}, step=8)
        found = ck.refresh()
        assert found is not None
        assert (found.before, found.version, found.added, found.dropped) == (0, 1, ("v",), ("u",))
        assert found.changed["t"].rows.tolist() == [2, 4]
        assert found.changed["v"].rows.tolist() == [0, 1, 2]
        assert (ck.version, ck.step) == (1, 8)
        assert (old[...] == matrix()).all()
        assert (ck["t"][[4, 2]] == matrix(2) + 1).all()
        cnrfmt.save(path, {"t": matrix(seed=9)})
        found = ck.refresh()
        assert found is not None
        assert not found.changed["t"].exact
        assert found.changed["t"].rows.tolist() == list(range(ROWS))
        assert (ck["t"][...] == matrix(seed=9)).all()
        assert (old[...] == matrix()).all()


def test_refresh_refuses_another_container_and_a_step_back(tmp_path: Path) -> None:
    path, kept = tmp_path / "model.cnr", tmp_path / "kept"
    cnrfmt.save(path, {"t": matrix()})
    shutil.copy(path, kept)
    cnrfmt.append(path, {"t": Rows([1], matrix(1))})
    with cnrfmt.open(path) as ck:
        os.replace(kept, path)
        with pytest.raises(cnrfmt.DamagedError, match="version 1 or later"):
            ck.refresh()
        os.unlink(path)
        cnrfmt.save(path, {"t": matrix()})
        cnrfmt.append(path, {"t": Rows([1], matrix(1))})
        with pytest.raises(cnrfmt.DamagedError, match="another container"):
            ck.refresh()
        assert ck["t"].shape == (ROWS, DIM)


@pytest.mark.parametrize("digest", ["", "5", "0x" + "a" * 14, "A" * 16, " " + "a" * 15, "a" * 17, b"a" * 16, 5])
def test_a_digest_that_is_none_is_misuse_and_no_damage(path: Path, digest: Any) -> None:
    with pytest.raises(cnrfmt.UsageError, match="digest is 16 hexadecimal digits"):
        cnrfmt.open(path, digest=digest)


def test_a_pinned_digest_finds_an_older_state_put_back(path: Path, tmp_path: Path) -> None:
    cnrfmt.save(path, {"t": matrix()})
    cnrfmt.append(path, {"t": Rows([1], matrix(1))})
    with cnrfmt.open(path) as ck:
        digest = ck.digest
    assert cnrfmt.open(path, version=1, digest=digest).version == 1
    cnrfmt.append(path, {"t": Rows([1], matrix(1))})
    assert cnrfmt.open(path, version=1, digest=digest).version == 1
    with pytest.raises(cnrfmt.DamagedError, match="pinned digest"):
        cnrfmt.open(path, digest=digest)


def test_deltas_of_a_keyed_table(path: Path) -> None:
    cnrfmt.save(path, {"k": TableData(matrix(4, 2), keys=[10, 20, 30, 40])})
    cnrfmt.append(path, {"k": (Rows([25, 20], matrix(2, 2) + 1), Deleted([30]))})
    with cnrfmt.open(path) as ck:
        t = ck["k"]
        assert t.shape == (4, 2)
        assert t.at[1:3].tolist() == [*(matrix(2, 2) + 1)[[1, 0]].tolist()]
        assert t.at[-1].tolist() == matrix(4, 2)[3].tolist()
        assert t[40].tolist() == matrix(4, 2)[3].tolist()
        assert t.changed(since=0).rows.tolist() == [20, 25]
        for key in (30, [10, 30], np.int64(31)):
            with pytest.raises(cnrfmt.MissingKeyError, match="no key 3"):
                t[key]
        with pytest.raises(cnrfmt.UsageError, match=r"use t\.at"):
            t[0:2]
        mask = np.array([True, False, False, True])
        assert t[mask].tolist() == t.at[[0, 3]].tolist()


def test_many_threads_share_a_reader(saved: Path) -> None:
    values = matrix()
    errors: list[BaseException] = []
    for backend in ("mmap", "pread"):
        with cnrfmt.open(saved, backend=backend, threads=2) as ck:

            def work(seed: int, t: cnrfmt.Table = ck["t"]) -> None:
                try:
                    ids = np.random.default_rng(seed).integers(0, ROWS, 400)
                    assert (t[ids] == values[ids]).all()
                except BaseException as error:
                    errors.append(error)

            workers = [threading.Thread(target=work, args=(n,)) for n in range(16)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
    assert errors == []


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 4]))


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_damage_is_named_where_it_is_touched(tmp_path: Path, backend: Any) -> None:
    path = tmp_path / "model.cnr"
    cnrfmt.save(path, {"t": matrix()})
    with cnrfmt.open(path) as ck:
        entry = ck.manifest.chain[0]
        offset = (entry.offset or 0) + next(iter(ck.view.segments.values())).toc.sections[0][0]
    flip(path, offset + 4 * DIM * 2000 + 3)
    with cnrfmt.open(path, backend=backend) as ck:
        t = ck["t"]
        assert (t[0:1000] == matrix()[0:1000]).all()
        for key in (2000, [5, 2000], slice(None)):
            with pytest.raises(cnrfmt.DamagedError, match=r"piece-digest.*cnrfmt verify") as caught:
                t[key]
            assert "column 'weight'" in caught.value.place
            assert str(path) in caught.value.place
    with pytest.raises(cnrfmt.DamagedError, match="piece-digest"):
        cnrfmt.open(path, backend=backend, verify="all")
    with cnrfmt.open(path, backend=backend, verify="none") as ck:
        assert (ck["t"][2000] != matrix()[2000]).sum() == 1


def test_a_missing_segment_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model"
    cnrfmt.save(path, {"t": matrix()})
    cnrfmt.append(path, {"t": Rows([1], matrix(1))})
    segment = next((path / "segments").iterdir())
    segment.unlink()
    with pytest.raises(cnrfmt.DamagedError, match="file-missing"):
        cnrfmt.open(path)
    report = cnrfmt.verify(path)
    assert {f.rule for f in report.findings} == {"file-missing"}


def test_errors_can_be_pickled() -> None:
    error = cnrfmt.DamagedError("slot", "x.cnr", expected="a", found="b")
    again = pickle.loads(pickle.dumps(error))
    assert (again.rule, again.place, str(again)) == ("slot", "x.cnr", str(error))


def test_a_reader_that_forks_goes_on(saved: Path) -> None:
    with cnrfmt.open(saved, threads=2) as ck:
        expected = ck["t"][...].tobytes()
        pid = os.fork()
        if pid == 0:
            os._exit(0 if ck["t"][...].tobytes() == expected else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert ck["t"][...].tobytes() == expected


def test_a_reader_that_goes_on_lets_go_of_what_nobody_holds(tmp_path: Path) -> None:
    path = tmp_path / "model.cnr"
    cnrfmt.save(path, {"t": matrix(50)})

    def handles() -> int:
        return len(os.listdir("/proc/self/fd"))

    with cnrfmt.open(path) as ck:
        kept = ck["t"]
        before = handles()
        for version in range(1, 12):
            cnrfmt.save(path, {"t": matrix(50, seed=version)})
            assert ck.refresh() is not None
            assert (ck["t"][...] == matrix(50, seed=version)).all()
        assert handles() <= before + 4
        assert (kept[...] == matrix(50)).all()


def test_threads_may_refresh_at_once(path: Path) -> None:
    cnrfmt.save(path, {"t": matrix(50)})
    errors: list[BaseException] = []
    with cnrfmt.open(path) as ck:

        def work() -> None:
            try:
                for _ in range(60):
                    ck.refresh()
                    ck["t"][3]
            except BaseException as error:
                errors.append(error)

        workers = [threading.Thread(target=work) for _ in range(3)]
        for worker in workers:
            worker.start()
        for number in range(15):
            cnrfmt.append(path, {"t": Rows([number], matrix(1))})
        for worker in workers:
            worker.join()
        ck.refresh()
        assert ck.version == 15
    assert errors == []


def test_refresh_costs_what_changed(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cnrfmt.save(path, {"t": TableData(matrix(4, 1))})
    cnrfmt.append(path, {"t": Rows([], rows=1 << 40)})
    monkeypatch.chdir(tmp_path)
    with cnrfmt.open(path.name) as ck:
        monkeypatch.chdir("/")
        cnrfmt.append(path, {"t": Rows([1 << 39], matrix(1, 1))})
        found = ck.refresh()
        assert found is not None
        assert found.changed["t"].rows.tolist() == [1 << 39]
        with pytest.raises(cnrfmt.UsageError, match="don't fit into memory"):
            ck["t"][...]


def test_rows_asked_for_in_other_ways(saved: Path) -> None:
    import torch

    values = matrix()
    with cnrfmt.open(saved) as ck:
        t = ck["t"]
        mask = torch.from_numpy(values[:, 0] > 0.5)
        assert (t[mask] == values[mask.numpy()]).all()
        assert (t[np.array(3)] == values[3]).all()
        assert (t[torch.tensor(3)] == values[3]).all()
        assert 3 in t
        assert ROWS not in t
        assert "a" not in t
        for call in (lambda: t[1, 2], lambda: t.read(out=[1]), lambda: t.read(dtype="nope")):
            with pytest.raises(cnrfmt.UsageError):
                call()
        out = np.empty((ROWS, DIM), F32)
        out.flags.writeable = False
        with pytest.raises(cnrfmt.UsageError, match="writable"):
            t.read(out=out)


@pytest.mark.parametrize("path", [None, 7, 1.5, b"\0", ""])
def test_what_is_no_path_is_a_usage_error_that_names_it(path: object) -> None:
    table = {"t": np.ones((1, 1), np.float32)}
    for call in (
        lambda: cnrfmt.open(path),  # type: ignore[arg-type]
        lambda: cnrfmt.load(path),  # type: ignore[arg-type]
        lambda: cnrfmt.verify(path),  # type: ignore[arg-type]
        lambda: cnrfmt.save(path, table),  # type: ignore[arg-type]
        lambda: cnrfmt.append(path, table),  # type: ignore[arg-type]
    ):
        with pytest.raises(cnrfmt.UsageError, match=r"^path must"):
            call()


def test_a_path_may_be_bytes(tmp_path: Path) -> None:
    path = bytes(tmp_path / "model.cnr")
    cnrfmt.save(path, {"t": np.ones((1, 1), np.float32)})
    with cnrfmt.open(path) as ck:
        assert ck.path == str(tmp_path / "model.cnr")


def test_a_tag_is_a_name_of_a_version(tmp_path: Path) -> None:
    path = tmp_path / "run"
    cnrfmt.save(path, {"t": np.ones((1, 1), np.float32)})
    with cnrfmt.open(path) as ck:
        assert ck.tags == {}
    tag(path, "prod")
    with cnrfmt.open(path, tag="prod") as ck:
        assert (ck.version, ck.versions, ck.tags) == (0, (0, 1), {"prod": 0})
    with pytest.raises(cnrfmt.VersionNotFoundError, match="no version has the tag 'best'; there are 'prod'"):
        cnrfmt.open(path, tag="best")
    with pytest.raises(cnrfmt.UsageError, match="by its number or by a tag"):
        cnrfmt.open(path, tag="prod", version=0)


def test_moving_on_without_asking_what_changed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    cnrfmt.save(path, {"t": np.ones((3, 1), np.float32)})
    with cnrfmt.open(path) as ck:
        first = ck.manifest
        assert not ck.move_on()
        cnrfmt.append(path, {"t": cnrfmt.Rows([1], np.zeros((1, 1), np.float32))})
        assert ck.move_on()
        assert ck.version == 1
        assert ck.manifest_of(0).digest == first.digest
        cnrfmt.collect(path, keep=1, grace=0)
        ck.move_on()
        with pytest.raises(cnrfmt.VersionNotFoundError, match="version 0 isn't retained"):
            ck.manifest_of(0)


@pytest.mark.parametrize("threads", [None, 1])
def test_hydrated_tables_hold_what_is_read(saved: Path, threads: int | None) -> None:
    with cnrfmt.open(saved, max_bytes=1 << 20) as ck:
        with ck.hydrate(["t"], threads=threads) as found:
            assert found.wait(60)
            assert (found["t"].array == matrix()).all()
        with pytest.raises(cnrfmt.TooLargeError, match="table 't', column 'weight'"):
            ck.hydrate(["t"], max_bytes=100)


@pytest.mark.parametrize("rule", ["piece-digest", "node-digest"])
def test_damage_is_found_by_a_row_and_by_many(saved: Path, rule: str) -> None:
    with cnrfmt.open(saved) as ck:
        segment = next(iter(ck.view.segments.values()))
        part = next(p for entry in segment.toc.tables for p in entry.parts if p.row_bytes == 4 * DIM)
        file, start = segment.source.start
        start += segment.toc.sections[part.section][0] if rule == "piece-digest" else segment.trailer.data_end
        place = Path(file.path)
    data = bytearray(place.read_bytes())
    data[start] ^= 1
    place.write_bytes(data)
    many = np.arange(ROWS - 1, 0, -ROWS // 20)
    for first in ([], [many]) if rule == "piece-digest" else ([],):
        for key in (0, [0], slice(0, 1), [0, *many]):
            with cnrfmt.open(saved) as ck:
                for sound in first:
                    # Few rows are read, and more are mapped.
                    assert ck["t"][sound].shape == (len(sound), DIM)
                with pytest.raises(cnrfmt.DamagedError, match=rule):
                    ck["t"][key]
