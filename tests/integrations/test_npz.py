from __future__ import annotations

import io
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cnrfmt
from cnrfmt.errors import CnrError, DamagedError, UnsupportedError, UsageError
from cnrfmt.integrations.convert import convert
from tests.integrations.support import bits


def npy(header: str, data: bytes = b"", *, version: tuple[int, int] = (1, 0), length: int | None = None) -> bytes:
    """A member with any header."""
    text = header.encode()
    size = len(text) if length is None else length
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H" if version == (1, 0) else "<I", size) + text + data


def fields(descr: str = "'<f4'", shape: str = "(2, 2)", fortran: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n"


def archive(path: Path, *members: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as file:
        for name, data in members:
            file.writestr(name, data)
    return path


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_numpy_saves(tmp_path: Path, visitors: cnrfmt.TableData, save: Any) -> None:
    arrays = {
        "visits": visitors.values,
        "fortran": np.asfortranarray(visitors.values),
        "nested/big-endian": visitors.values.astype(">f8"),
        "cube": np.asfortranarray(np.arange(24).reshape(2, 3, 4)),
        "scalar": np.float32(0.1),
        "mask": np.array([True, False]),
        "no rows": np.empty((0, 3), np.int16),
        "no elements": np.empty((3, 0), np.int16),
    }
    strings = {
        "names": np.array([["ä", "b"], ["", "long"]]),
        "one": np.array("x"),
        "bytes": np.array([b"a\0b", b"\xff"]),
        "odd": np.array(["\ud800"]),
    }
    save(tmp_path / "a.npz", **arrays, **strings)
    summary = convert(tmp_path / "a.npz", tmp_path / "a.cnr")
    assert summary["tables"] == ["fortran", "nested/big-endian", "no rows", "visits"]
    with cnrfmt.open(tmp_path / "a.cnr") as ck:
        assert bits(ck["fortran"][...]) == bits(visitors.values)
        assert bits(ck["nested/big-endian"][...]) == bits(visitors.values.astype("<f8"))
        assert ck.dense["names"] == ["ä", "b", "", "long"]
        assert ck.dense["one"] == "x"
    convert(tmp_path / "a.cnr", tmp_path / "b.npz")
    with np.load(tmp_path / "b.npz") as found:
        assert set(found) == {*arrays, *strings}
        for name, array in arrays.items():
            little = np.asarray(array)
            assert bits(found[name]) == bits(little.astype(little.dtype.newbyteorder("<")))
        for name, array in strings.items():
            assert found[name].dtype == array.dtype
            assert bits(found[name]) == bits(array)


def test_large_tables_in_fortran_order(tmp_path: Path) -> None:
    arrays = {
        "tall": np.arange(3_000_000, dtype=np.int32).reshape(-1, 6),
        "wide": np.arange(3_000_000, dtype=np.int32).reshape(6, -1),
        "square": np.arange(2_500_000, dtype=np.int16).reshape(1250, -1),
        "cube": np.arange(120_000, dtype=np.float32).reshape(4, -1, 2),
    }
    fortran = {name: np.asfortranarray(array) for name, array in arrays.items()}
    np.savez(tmp_path / "a.npz", **fortran)
    np.savez_compressed(tmp_path / "b.npz", **fortran)
    for name in ("a", "b"):
        convert(tmp_path / f"{name}.npz", tmp_path / f"{name}.cnr")
        with cnrfmt.open(tmp_path / f"{name}.cnr") as ck:
            found = {**{n: table[...] for n, table in ck.items()}, **ck.dense}
            assert {n: bits(a) for n, a in found.items()} == {n: bits(a) for n, a in arrays.items()}


def test_headers_of_other_writers(tmp_path: Path) -> None:
    headers = [
        ("{'shape': (2, 2), 'fortran_order': False, 'descr': '<f4'}", (1, 0)),
        ('{"descr":"<f4","fortran_order":False,"shape":(2,2)}', (2, 0)),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 2L), } \n", (3, 0)),
    ]
    members = [(f"{n}.npy", npy(h, bytes(range(16)), version=v)) for n, (h, v) in enumerate(headers)]
    convert(archive(tmp_path / "a.npz", *members), tmp_path / "a.cnr")
    want = np.frombuffer(bytes(range(16)), np.float32).reshape(2, 2)
    assert {n: bits(a) for n, a in cnrfmt.load(tmp_path / "a.cnr").items()} == {n: bits(want) for n in "012"}


def test_members_of_what_is_written_are_aligned(model: Path, tmp_path: Path) -> None:
    convert(model, tmp_path / "a.npz")
    with zipfile.ZipFile(tmp_path / "a.npz") as file, open(tmp_path / "a.npz", "rb") as raw:
        assert file.testzip() is None
        for info in file.infolist():
            raw.seek(info.header_offset + 26)
            name, extra = struct.unpack("<HH", raw.read(4))
            assert (info.header_offset + 30 + name + extra) % 64 == 0


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (Path(tmp_path / "exploded").touch, ())

    np.savez(tmp_path / "a.npz", w=np.eye(2), odd=np.array([Bomb()], object))
    with pytest.raises(UsageError, match=r"'odd\.npy'.*pickle"):
        convert(tmp_path / "a.npz", tmp_path / "a.cnr")
    assert not (tmp_path / "exploded").exists()
    assert not (tmp_path / "a.cnr").exists()


@pytest.mark.parametrize(
    "array",
    [
        np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]),
        np.array(["2024-01-01"], "M8[D]"),
        np.zeros(2, "V3"),
        np.zeros(2, np.longdouble),
    ],
)
def test_arrays_that_a_container_can_not_hold(tmp_path: Path, array: Any) -> None:
    np.savez(tmp_path / "a.npz", odd=array)
    with pytest.raises(UsageError, match=r"odd\.npy"):
        convert(tmp_path / "a.npz", tmp_path / "a.cnr")


HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "no magic": b"PICKLE" + bytes(200),
    "the magic alone": b"\x93NUMPY\x01\x00",
    "an unknown version": npy(fields(), bytes(16), version=(9, 0)),
    "a header beyond the end": npy(fields(), length=3000),
    "a header of gigabytes": npy(fields(), bytes(16), version=(2, 0), length=2**32 - 1),
    "a header of nothing": npy("", bytes(16)),
    "no dictionary": npy("(2, 2)", bytes(16)),
    "code": npy("__import__('os').abort()", bytes(16)),
    "deep nesting": npy("(" * 4000, bytes(16)),
    "many minus signs": npy(fields(shape="(" + "-" * 3000 + "1,)"), bytes(16)),
    "a negative dimension": npy(fields(shape="(-2, -2)"), bytes(16)),
    "a boolean dimension": npy(fields(shape="(True, 4)"), bytes(16)),
    "a shape that is none": npy(fields(shape="'ab'"), bytes(16)),
    "a huge shape": npy(fields(shape="(9999999999999999, 9999999999999999)"), bytes(16)),
    "an integer of many digits": npy(fields(shape="(" + "9" * 3000 + ",)"), bytes(16)),
    "many dimensions": npy(fields(shape="(" + "1," * 40 + ")"), bytes(4)),
    "large and empty": npy(fields(shape="(9999999999999999, 9999999999999999, 0)")),
    "elements of no bytes": npy(fields(descr="'<U0'", shape="(999999999999, 9)")),
    "no such dtype": npy(fields(descr="'<x9'"), bytes(16)),
    "three-byte integers": npy(fields(descr="'<i3'"), bytes(12)),
    "records": npy(fields(descr="[('a', '<f4')]"), bytes(16)),
    "Python objects": npy(fields(descr="'|O'"), b"cos\nabort\n(tR."),
    "too few bytes": npy(fields(), bytes(15)),
    "too many bytes": npy(fields(), bytes(17)),
    "a byte that is no boolean": npy(fields(descr="'|b1'", shape="(2,)"), b"\1\7"),
    "keys that are missing": npy("{'descr': '<f4'}\n", bytes(16)),
    "more keys": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4,), 'x': 1}\n", bytes(16)),
}


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_members_end_in_our_errors(tmp_path: Path, case: str, method: int) -> None:
    source = archive(tmp_path / "a.npz", ("w.npy", HOSTILE[case]), method=method)
    with pytest.raises(CnrError, match=r"w\.npy"):
        convert(source, tmp_path / "a.cnr")
    assert not (tmp_path / "a.cnr").exists()


def test_notes_of_an_npz_are_checked(tmp_path: Path) -> None:
    for array in (np.eye(2), np.frombuffer(b"{}", np.uint8), np.frombuffer(b"\xff", np.uint8)):
        np.savez(tmp_path / "a.npz", w=np.eye(2), __cnrfmt__=array)
        with pytest.raises(DamagedError, match="__cnrfmt__"):
            convert(tmp_path / "a.npz", tmp_path / "a.cnr")


def test_members_that_are_no_arrays(tmp_path: Path) -> None:
    source = archive(tmp_path / "a.npz", ("readme.txt", b"hello"))
    with pytest.raises(UsageError, match=r"'readme\.txt' is no array"):
        convert(source, tmp_path / "a.cnr")


def test_methods_of_compression_that_are_not_read(tmp_path: Path) -> None:
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        source = archive(tmp_path / "a.npz", ("w.npy", npy(fields(), bytes(16))), method=method)
        with pytest.raises(UnsupportedError, match="compression method"):
            convert(source, tmp_path / "a.cnr")


def test_a_changed_byte_of_data_is_found(tmp_path: Path) -> None:
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", w=np.arange(40_000, dtype=np.float32).reshape(-1, 4))
        data = bytearray((tmp_path / "a.npz").read_bytes())
        data[len(data) // 2] ^= 1
        (tmp_path / "a.npz").write_bytes(data)
        with pytest.raises(DamagedError, match="foreign-file"):
            convert(tmp_path / "a.npz", tmp_path / "a.cnr")
        assert not (tmp_path / "a.cnr").exists()


def test_members_that_overlap_are_refused(tmp_path: Path) -> None:
    # Every name of the directory leads to the same member: a small file that holds any number of tables.
    data = archive(tmp_path / "a.npz", ("w.npy", npy(fields(), bytes(16)))).read_bytes()
    start = data.index(b"PK\1\2")
    end = data.index(b"PK\5\6")
    entry = data[start:end]
    entries = b"".join(entry.replace(b"w.npy", b"%c.npy" % letter) for letter in b"wxyz")
    tail = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 4, 4, len(entries), start, 0)
    (tmp_path / "a.npz").write_bytes(data[:start] + entries + tail)
    with pytest.raises(DamagedError):
        convert(tmp_path / "a.npz", tmp_path / "a.cnr")


def test_a_member_named_twice_is_refused(tmp_path: Path) -> None:
    data = npy(fields(), bytes(16))
    with pytest.warns(UserWarning, match="Duplicate name"):
        archive(tmp_path / "a.npz", ("w.npy", data), ("w.npy", data))
    with pytest.raises(DamagedError, match="two"):
        convert(tmp_path / "a.npz", tmp_path / "a.cnr")


def test_a_member_that_says_too_many_bytes_is_refused(tmp_path: Path) -> None:
    data = npy(fields(shape="(1000000, 1000)"), bytes(16))
    source = archive(tmp_path / "a.npz", ("w.npy", data), method=zipfile.ZIP_DEFLATED)
    size = len(data) - 16 + 4 * 10**9
    raw = source.read_bytes().replace(struct.pack("<I", len(data)), struct.pack("<I", size & 0xFFFFFFFF))
    source.write_bytes(raw)
    with pytest.raises(CnrError):
        convert(source, tmp_path / "a.cnr")


@given(st.data())
def test_changed_bytes_end_in_our_errors(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    buffer = io.BytesIO()
    save = data.draw(st.sampled_from([np.savez, np.savez_compressed]))
    save(buffer, w=np.eye(3), b=np.arange(5), s=np.array(["a", "b"]))
    raw = bytearray(buffer.getvalue())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    (folder / "a.npz").write_bytes(raw)
    try:
        convert(folder / "a.npz", folder / "a.cnr")
    except CnrError:
        assert not (folder / "a.cnr").exists()


def test_archives_that_can_not_be_read(tmp_path: Path) -> None:
    source = archive(tmp_path / "a.npz", ("w.npy", npy(fields(), bytes(16))))
    whole = source.read_bytes()
    encrypted = whole.replace(b"PK\1\2\x14\x03\x14\0\0\0", b"PK\1\2\x14\x03\x14\0\1\0")
    encrypted = encrypted.replace(b"PK\3\4\x14\0\0\0", b"PK\3\4\x14\0\1\0")
    assert encrypted != whole
    source.write_bytes(encrypted)
    with pytest.raises(UnsupportedError, match="encrypted"):
        convert(source, tmp_path / "a.cnr")
    for data in (b"", b"PK", whole[:-30], zlib.compress(whole), bytes(1000)):
        source.write_bytes(data)
        with pytest.raises(DamagedError, match="foreign-file"):
            convert(source, tmp_path / "a.cnr")


@pytest.mark.parametrize(
    "mark",
    [
        {"dtype": "<U3", "shape": [1]},
        {"dtype": "O", "shape": [1]},
        {"dtype": "U3", "shape": [2]},
        {"dtype": "U1", "shape": [1]},
        {"dtype": "U3", "shape": "x"},
        {"dtype": 3, "shape": [1]},
        "x",
    ],
)
def test_metadata_that_no_strings_can_be_made_of(tmp_path: Path, mark: Any) -> None:
    cnrfmt.save(tmp_path / "a.cnr", {}, dense={"s": ["abc"]}, metadata={"npz": {"strings": {"s": mark}}})
    with pytest.raises(UsageError, match="'s'"):
        convert(tmp_path / "a.cnr", tmp_path / "a.npz")
    assert not (tmp_path / "a.npz").exists()
