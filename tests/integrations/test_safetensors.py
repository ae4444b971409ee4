from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

import cnrfmt
from cnrfmt.errors import CnrError, DamagedError, UnsupportedError, UsageError
from cnrfmt.integrations import safetensors as module
from cnrfmt.integrations.convert import convert
from tests.integrations.support import bits, content


def write(path: Path, header: Any, data: bytes = b"", *, length: int | None = None) -> Path:
    """A file with any header: JSON of an object, or bytes as they are."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def tensor(shape: list[Any], first: int, stop: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, stop]}


GOOD = tensor([2, 2], 0, 16)


def test_a_file_by_hand_is_read(tmp_path: Path) -> None:
    source = write(
        tmp_path / "a.safetensors",
        {"__metadata__": {"format": "np"}, "w": GOOD, "b": tensor([3], 16, 19, "U8"), "s": tensor([], 19, 23)},
        bytes(range(23)),
    )
    assert convert(source, tmp_path / "a.cnr")["tables"] == ["w"]
    with cnrfmt.open(tmp_path / "a.cnr") as ck:
        assert ck.metadata == {"format": "np"}
        assert ck["w"][...].tobytes() == bytes(range(16))
        assert bits(ck.dense["b"]) == bits(np.array([16, 17, 18], np.uint8))
        assert ck.dense["s"].shape == ()


DAMAGED: dict[str, Any] = {
    "not an object": (b"[]", b""),
    "no JSON": (b"{nonsense}", b""),
    "not UTF-8": (b'{"\xff": 1}', b""),
    "a key twice": (b'{"a":' + json.dumps(GOOD).encode() + b',"a":' + json.dumps(GOOD).encode() + b"}", bytes(16)),
    "nested without end": (b'{"a":' + b"[" * 100_000, b""),
    "nested deeply": (b'{"a":' + b"[" * 500 + b"]" * 500 + b"}", b""),
    "NaN": (b'{"a": NaN}', b""),
    "a huge integer": (b'{"a":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,0]}}', b""),
    "a tensor that is none": ({"w": 5}, b""),
    "no dtype": ({"w": {"shape": [], "data_offsets": [0, 4]}}, bytes(4)),
    "more keys": ({"w": {**GOOD, "device": "cpu"}}, bytes(16)),
    "a negative dimension": ({"w": tensor([-2, -2], 0, 16)}, bytes(16)),
    "a boolean dimension": ({"w": tensor([True, 4], 0, 16)}, bytes(16)),
    "a fractional dimension": ({"w": tensor([2.0, 2], 0, 16)}, bytes(16)),
    "a shape that is none": ({"w": {**GOOD, "shape": 4}}, bytes(16)),
    "too many dimensions": ({"w": tensor([1] * 33, 0, 4)}, bytes(4)),
    "a product beyond 64 bits": ({"w": tensor([2**32, 2**32], 0, 16)}, bytes(16)),
    "large and empty": ({"w": tensor([2**52, 2**52, 0], 0, 0)}, b""),
    "one offset": ({"w": {**GOOD, "data_offsets": [16]}}, bytes(16)),
    "offsets the wrong way round": ({"w": tensor([2, 2], 16, 0)}, bytes(16)),
    "offsets beyond the end": ({"w": tensor([2, 2], 16, 32)}, bytes(16)),
    "too few bytes for the shape": ({"w": tensor([2, 2], 0, 12)}, bytes(12)),
    "too many bytes for the shape": ({"w": tensor([2, 2], 0, 20)}, bytes(20)),
    "a hole at the start": ({"w": tensor([2, 2], 4, 20)}, bytes(20)),
    "a hole in between": ({"w": GOOD, "x": tensor([1], 20, 24)}, bytes(24)),
    "an overlap": ({"w": GOOD, "x": tensor([1], 12, 16)}, bytes(16)),
    "the same bytes twice": ({"w": GOOD, "x": GOOD}, bytes(16)),
    "bytes at the end": ({"w": GOOD}, bytes(17)),
    "data cut short": ({"w": GOOD}, bytes(15)),
    "metadata that aren't strings": ({"__metadata__": {"a": 1}, "w": GOOD}, bytes(16)),
    "metadata that are a list": ({"__metadata__": ["a"], "w": GOOD}, bytes(16)),
    "a byte that is no boolean": ({"w": tensor([2], 0, 2, "BOOL")}, b"\1\2"),
    "notes that are no JSON": ({"__metadata__": {"cnrfmt": "{"}, "w": GOOD}, bytes(16)),
    "notes that are none": ({"__metadata__": {"cnrfmt": "[]"}, "w": GOOD}, bytes(16)),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_hostile_files_end_in_damaged_errors(tmp_path: Path, case: str) -> None:
    source = write(tmp_path / "a.safetensors", *DAMAGED[case])
    with pytest.raises(DamagedError, match=r"a\.safetensors"):
        convert(source, tmp_path / "a.cnr")
    assert not (tmp_path / "a.cnr").exists()


@pytest.mark.parametrize("length", [3, 8, 2**31, 2**63, 2**64 - 1])
def test_lengths_of_headers_are_checked(tmp_path: Path, length: int) -> None:
    source = write(tmp_path / "a.safetensors", {"w": GOOD}, bytes(16), length=length)
    with pytest.raises(DamagedError):
        convert(source, tmp_path / "a.cnr")
    source.write_bytes(bytes(5))
    with pytest.raises(DamagedError, match="5 bytes"):
        convert(source, tmp_path / "a.cnr")


def test_a_header_is_not_read_beyond_its_limit(tmp_path: Path) -> None:
    length = module.MAX_HEADER + 1
    source = write(tmp_path / "a.safetensors", b"{", b" " * length, length=length)
    with pytest.raises(DamagedError, match=f"at most {module.MAX_HEADER}"):
        convert(source, tmp_path / "a.cnr")


def test_data_types_that_are_not_known_are_said(tmp_path: Path) -> None:
    for dtype in ("F8_E8M0", "F4", "f32", ""):
        source = write(tmp_path / "a.safetensors", {"w": tensor([4], 0, 4, dtype)}, bytes(4))
        with pytest.raises(UnsupportedError, match="the data type"):
            convert(source, tmp_path / "a.cnr")


@given(st.data())
def test_changed_bytes_end_in_our_errors(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    source = folder / "a.safetensors"
    tensors = {"w": np.eye(3, dtype=np.float32), "b": np.arange(5), "m": np.array([True])}
    raw = bytearray(safetensors.numpy.save(tensors, {"format": "np"}))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    source.write_bytes(raw)
    try:
        convert(source, folder / "a.cnr")
    except CnrError:
        assert not (folder / "a.cnr").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda notes: notes["tables"]["user"].update(keys="none"),
        lambda notes: notes["tables"]["user"].update(values="user.keys"),
        lambda notes: notes["tables"]["user"].update(values=5),
        lambda notes: notes["tables"]["user"].update(columns=[]),
        lambda notes: notes["tables"]["user"].update(columns={"g": 1}),
        lambda notes: notes["tables"]["user"].update(columns={"\n": "user.columns/g"}),
        lambda notes: notes["tables"]["user"].update(fill={"g": "00"}),
        lambda notes: notes["tables"]["user"].update(fill={"none": "00000000"}),
        lambda notes: notes["tables"]["user"].update(fill={"g": "zz"}),
        lambda notes: notes["tables"]["user"].update(more=1),
        lambda notes: notes["tables"].update(other=notes["tables"]["user"]),
        lambda notes: notes["tables"].update({"": notes["tables"]["user"]}),
        lambda notes: notes["dense"]["reader"].update(kind="pickle"),
        lambda notes: notes["dense"]["reader"].update(array="user"),
        lambda notes: notes["dense"].update(x={"array": "user.keys", "kind": "bytes"}),
        lambda notes: notes.update(dtypes={"w": "object"}),
        lambda notes: notes.update(metadata=[]),
        lambda notes: notes.update(step=1.5),
        lambda notes: notes.update(format=2),
        lambda notes: notes.pop("dense"),
    ],
)
def test_hostile_notes_end_in_our_errors(tmp_path: Path, change: Any) -> None:
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    data = cnrfmt.TableData(rows, keys=[5, 6, 7], columns={"g": rows[:, 0]}, fill={"g": 1})
    cnrfmt.save(tmp_path / "a.cnr", {"user": data}, dense={"reader": {"shard": 1}}, step=3)
    convert(tmp_path / "a.cnr", tmp_path / "a.safetensors")
    with safetensors.safe_open(tmp_path / "a.safetensors", "np") as file:
        notes = json.loads(file.metadata()["cnrfmt"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  It isn't a mapping.
    change(notes)
    safetensors.numpy.save_file(tensors, tmp_path / "b.safetensors", {"cnrfmt": json.dumps(notes)})
    with pytest.raises(CnrError):
        convert(tmp_path / "b.safetensors", tmp_path / "b.cnr")
    assert not (tmp_path / "b.cnr").exists()


def test_names_that_a_container_can_not_have_are_refused(tmp_path: Path) -> None:
    for name in ("", "a\nb", "x" * 1025):
        source = write(tmp_path / "a.safetensors", {name: GOOD}, bytes(16))
        with pytest.raises(UsageError, match="a name is 1 to 1024 bytes"):
            convert(source, tmp_path / "a.cnr")


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    arrays = {
        "wide": rng.normal(size=(300, 7)),
        "narrow": rng.integers(0, 255, (3, 3), np.uint8),
        "none": np.empty((0, 2), np.float32),
        "half": rng.normal(size=(5, 5)).astype(np.float16),
        'quote"\\': np.eye(2, dtype=np.float32),
    }
    dense = {"scalar": np.array(3.0), "mask": np.array([[True, False]]), "c": np.array([1j], np.complex64)}
    cnrfmt.save(tmp_path / "a.cnr", arrays, dense=dense)
    convert(tmp_path / "a.cnr", tmp_path / "a.safetensors")
    found = safetensors.numpy.load_file(tmp_path / "a.safetensors")
    want = {**arrays, **dense}
    assert {n: bits(a) for n, a in found.items()} == {n: bits(a) for n, a in want.items()}
    header = int.from_bytes((tmp_path / "a.safetensors").read_bytes()[:8], "little")
    assert header % 8 == 0
    convert(tmp_path / "a.safetensors", tmp_path / "b.cnr")
    assert content(tmp_path / "b.cnr") == content(tmp_path / "a.cnr")
