from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import cnrfmt
from cnrfmt.errors import CnrError, DamagedError, UsageError
from cnrfmt.integrations.convert import convert
from tests.integrations.support import bits, content


def everything(path: Path) -> dict[str, Any]:
    """All groups, datasets and attributes of a file, in a form that can be compared."""
    found: dict[str, Any] = {}

    def visit(name: str, item: Any) -> None:
        value = None
        if isinstance(item, h5py.Dataset):
            value = (item.dtype, item.shape, None if item.shape is None else stored(item[()]))
        attributes = {key: (item.attrs.get_id(key).dtype, stored(item.attrs[key])) for key in item.attrs}
        found[name] = (type(item).__name__, value, attributes)

    with h5py.File(path) as file:
        visit("/", file)
        file.visititems(visit)
    return found


def stored(value: Any) -> Any:
    if isinstance(value, h5py.Empty):
        return ("empty", value.dtype)
    array = np.asarray(value)
    return (array.shape, array.tolist()) if array.dtype == object else bits(array)


def round_trip(source: Path) -> dict[str, Any]:
    """Into a container and out again; the way in's summary."""
    summary = convert(source, source.with_suffix(".cnr"))
    convert(source.with_suffix(".cnr"), source.parent / "back.h5")
    return summary


@pytest.fixture
def keras2(tmp_path: Path, visitors: cnrfmt.TableData) -> Path:
    """Weights as Keras 2 lays them out: fixed-length names in attributes, layers as groups."""
    layers = {
        "embedding_users": {"embeddings:0": visitors.values},
        "dense": {"kernel:0": visitors.values[:24, :8].copy(), "bias:0": np.linspace(-1, 1, 8, dtype=np.float32)},
        "dropout": {},
    }
    path = tmp_path / "keras2.h5"
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = [name.encode() for name in layers]
        file.attrs["backend"] = b"tensorflow"
        file.attrs["keras_version"] = b"2.15.0"
        file.attrs["model_config"] = '{"class_name": "Functional", "note": "' + "x" * 40_000 + '"}'
        for name, weights in layers.items():
            group = file.create_group(name)
            group.attrs["weight_names"] = [f"{name}/{weight}".encode() for weight in weights]
            for weight, array in weights.items():
                group.create_dataset(f"{name}/{weight}", data=array)
        optimizer = file.create_group("optimizer_weights")
        optimizer["iteration"] = np.int64(1234)
    return path


@pytest.fixture
def keras3(tmp_path: Path, visitors: cnrfmt.TableData) -> Path:
    """Weights as Keras 3 lays them out: numbered variables, a name as an attribute of each group."""
    path = tmp_path / "model.weights.h5"
    with h5py.File(path, "w") as file:
        for layer, arrays in {
            "embedding": [visitors.values],
            "dense": [visitors.values[:24, :8].copy(), np.zeros(8, np.float32)],
            "dense_1": [visitors.values[:8, :1].copy(), np.zeros(1, np.float32)],
        }.items():
            group = file.create_group(f"layers/{layer}/vars")
            group.parent.attrs["name"] = layer
            for number, array in enumerate(arrays):
                group.create_dataset(str(number), data=array)
        file.create_group("optimizer/vars")["0"] = np.int64(7)
        file.create_group("vars")
        file.create_dataset("seed_generator/state", data=np.array([1, 2], np.uint32))
    return path


def test_weights_of_keras_2(keras2: Path, visitors: cnrfmt.TableData) -> None:
    summary = round_trip(keras2)
    assert summary["skipped"] == []
    users = "embedding_users/embedding_users/embeddings:0"
    assert summary["tables"] == ["dense/dense/kernel:0", users]
    assert summary["dense"] == ["dense/dense/bias:0", "optimizer_weights/iteration"]
    with cnrfmt.open(keras2.with_suffix(".cnr")) as ck:
        assert bits(ck[users][...]) == bits(visitors.values)
        groups = ck.metadata["hdf5"]["groups"]
        assert groups[""]["layer_names"]["strings"] == ["embedding_users", "dense", "dropout"]
        assert bits(ck.dense["optimizer_weights/iteration"]) == bits(np.int64(1234))
    assert everything(keras2.parent / "back.h5") == everything(keras2)


def test_weights_of_keras_3(keras3: Path, visitors: cnrfmt.TableData) -> None:
    summary = round_trip(keras3)
    assert summary["tables"] == ["layers/dense/vars/0", "layers/dense_1/vars/0", "layers/embedding/vars/0"]
    with cnrfmt.open(keras3.with_suffix(".cnr")) as ck:
        assert bits(ck["layers/embedding/vars/0"][...]) == bits(visitors.values)
        assert ck.metadata["hdf5"]["groups"]["layers/dense_1"] == {"name": "dense_1"}
    assert everything(keras3.parent / "back.h5") == everything(keras3)


def test_every_kind_of_attribute(tmp_path: Path) -> None:
    values = {
        "text": "ñ",
        "no text": "",
        "long": "y" * 100_000,
        "bytes": b"ascii",
        "texts": np.array(["a", "ü", ""], dtype=h5py.string_dtype()),
        "square of texts": np.array([["a", "b"], ["c", "d"]], dtype=h5py.string_dtype()),
        "no texts": np.array([], dtype=h5py.string_dtype()),
        "ascii": np.array(["a", "b"], dtype=h5py.string_dtype("ascii")),
        "fixed": np.array([b"ab", b"c\xff", b""], "S4"),
        "true": True,
        "truths": np.array([True, False]),
        "int": 5,
        "large": 2**63 - 1,
        "unsigned": np.uint64(2**64 - 1),
        "small": np.int8(-3),
        "float": -0.0,
        "nan": float("nan"),
        "infinite": np.array([np.inf, -np.inf], np.float32),
        "half": np.float16(0.1),
        "matrix": np.arange(6, dtype=">i4").reshape(2, 3),
        "complex": np.array([1 + 2j]),
        "nothing": h5py.Empty("f4"),
        "no numbers": np.empty((0, 3), np.float64),
    }
    source = tmp_path / "a.h5"
    with h5py.File(source, "w", libver=("v108", "v110")) as file:
        for item in (file, file.create_group("g"), file.create_dataset("g/d", data=np.eye(2))):
            for name, value in values.items():
                item.attrs[name] = value
    assert round_trip(source)["skipped"] == []
    found, want = everything(tmp_path / "back.h5"), everything(source)
    # Big-endian integers come back as little-endian ones.
    for item in want.values():
        if item[2]:
            item[2]["matrix"] = (np.dtype("<i4"), bits(np.arange(6, dtype="<i4").reshape(2, 3)))
    for name, (_, _, attributes) in want.items():
        assert found[name][2] == attributes


def test_attributes_that_are_left_out_are_named(tmp_path: Path) -> None:
    source = tmp_path / "a.h5"
    with h5py.File(source, "w") as file:
        file["w"] = np.eye(2)
        file["w"].attrs["pair"] = np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")])
        file.attrs["reference"] = file["w"].ref
        file.attrs["kept"] = "yes"
    skipped = " ".join(round_trip(source)["skipped"])
    assert "attribute 'pair' of 'w'" in skipped
    assert "attribute 'reference' of '/'" in skipped
    assert everything(tmp_path / "back.h5")["/"][2].keys() == {"kept"}


def test_every_kind_of_dataset(tmp_path: Path) -> None:
    source = tmp_path / "a.h5"
    with h5py.File(source, "w") as file:
        file["scalar"] = np.float64(2.5)
        file["text"] = "für"
        file["texts"] = np.array([["a", "b\n"], ["", "é"]], dtype=h5py.string_dtype())
        file["fixed"] = np.array([b"ab", b"", b"abc"])
        file["not text"] = np.array([b"\xff\xfe", b"ok"])
        file["nothing"] = h5py.Empty("i4")
        file["nothing"].attrs["why"] = "none"
        file["no rows"] = np.empty((0, 4), np.float32)
        file["no texts"] = np.array([], dtype=h5py.string_dtype())
        file["cube"] = np.arange(24).reshape(2, 3, 4)
        file["mask"] = np.array([[True], [False]])
        file["complex"] = np.array([[1j]])
        file["packed"] = np.arange(300, dtype=np.int16)
        file.create_dataset("zipped", data=np.arange(800.0).reshape(100, 8), chunks=(7, 3), compression="gzip")
        file["texts"].attrs["language"] = "fr"
    summary = round_trip(source)
    assert summary["tables"] == ["no rows", "zipped"]
    assert everything(tmp_path / "back.h5") == everything(source)
    with cnrfmt.open(tmp_path / "a.cnr") as ck:
        assert ck.dense["texts"] == ["a", "b\n", "", "é"]
        assert ck.dense["not text"] == b"\xff\xfeok"


def test_by_way_of_another_format_nothing_is_lost(keras2: Path, tmp_path: Path) -> None:
    convert(keras2, tmp_path / "a.cnr")
    for suffix in ("safetensors", "npz"):
        convert(tmp_path / "a.cnr", tmp_path / f"b.{suffix}")
        convert(tmp_path / f"b.{suffix}", tmp_path / f"{suffix}.cnr")
        convert(tmp_path / f"{suffix}.cnr", tmp_path / f"{suffix}.h5")
        assert everything(tmp_path / f"{suffix}.h5") == everything(keras2)


def test_large_chunks_are_read_once(tmp_path: Path) -> None:
    # Columns in chunks of their own, so that each slice of rows touches all the chunks.
    table = np.arange(700_000 * 4, dtype=np.float32).reshape(-1, 4)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("w", data=table, chunks=(len(table), 1), compression="gzip", compression_opts=1)
        file.create_dataset("x", data=table.reshape(-1)[: 600_000], chunks=(600_000,), compression="gzip")
    convert(tmp_path / "a.h5", tmp_path / "a.cnr")
    with cnrfmt.open(tmp_path / "a.cnr") as ck:
        assert bits(ck["w"][...]) == bits(table)
        assert bits(ck.dense["x"]) == bits(table.reshape(-1)[: 600_000])


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]), "can't be stored"),
        (np.void(b"opaque"), "can't be stored"),
    ],
)
def test_datasets_that_a_container_can_not_hold(tmp_path: Path, array: Any, message: str) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["odd"] = array
    with pytest.raises(UsageError, match=f"'odd'.*{message}"):
        convert(tmp_path / "a.h5", tmp_path / "a.cnr")
    assert not (tmp_path / "a.cnr").exists()


def test_references_and_ragged_rows_are_refused(tmp_path: Path) -> None:
    for name, make in {
        "refs": lambda f: f.create_dataset("odd", data=[f.ref], dtype=h5py.ref_dtype),
        "ragged": lambda f: f.create_dataset("odd", (2,), dtype=h5py.vlen_dtype(np.int32)),
    }.items():
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            make(file)
        with pytest.raises(UsageError, match="'odd'"):
            convert(tmp_path / f"{name}.h5", tmp_path / "a.cnr")


def test_no_other_file_is_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret.h5"
    with h5py.File(secret, "w") as file:
        file["key"] = np.eye(3)
    (tmp_path / "raw").write_bytes(bytes(72))
    layout = h5py.VirtualLayout((3, 3), "f8")
    layout[:] = h5py.VirtualSource(secret, "key", (3, 3))
    for name, make in {
        "link": lambda f: f.__setitem__("odd", h5py.ExternalLink(str(secret), "/key")),
        "virtual": lambda f: f.create_virtual_dataset("odd", layout),
        "external": lambda f: f.create_dataset("odd", (3, 3), "f8", external=[(str(tmp_path / "raw"), 0, 72)]),
    }.items():
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            make(file)
        with pytest.raises(UsageError, match=r"'odd'.*another file"):
            convert(tmp_path / f"{name}.h5", tmp_path / "a.cnr")
    assert not (tmp_path / "a.cnr").exists()


def test_cycles_and_aliases_end(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        group = file.create_group("a")
        for depth in range(40):
            inner = group.create_group("x")
            group["y"] = inner
            group = inner
            del depth
        group["up"] = file["a"]
        file["a/w"] = np.eye(2)
        file["tied"] = file["a/w"]
        file["soft"] = h5py.SoftLink("/a/w")
        file["dangling"] = h5py.SoftLink("/none")
    summary = convert(tmp_path / "a.h5", tmp_path / "a.cnr")
    assert summary["tables"] == ["a/w", "tied"]
    assert len(summary["skipped"]) == 40 + 1 + 2
    assert "'soft': a soft link" in summary["skipped"]


def test_files_that_are_cut_short_end_in_our_errors(keras2: Path, tmp_path: Path) -> None:
    whole = keras2.read_bytes()
    for size in (0, 8, 100, 1000, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.h5").write_bytes(whole[:size])
        with pytest.raises(DamagedError, match="foreign-file"):
            convert(tmp_path / "cut.h5", tmp_path / "a.cnr")


def test_a_damaged_chunk_is_found(tmp_path: Path) -> None:
    table = np.arange(100_000, dtype=np.float32).reshape(-1, 4)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("w", data=table, chunks=(1000, 4), fletcher32=True)
        place = dataset.id.get_chunk_info(11).byte_offset
    data = bytearray((tmp_path / "a.h5").read_bytes())
    data[place + 5] ^= 1
    (tmp_path / "a.h5").write_bytes(data)
    with pytest.raises(DamagedError, match="foreign-file"):
        convert(tmp_path / "a.h5", tmp_path / "a.cnr")
    assert not (tmp_path / "a.cnr").exists()


def test_a_huge_empty_dataset_is_refused_before_the_disk_is_full(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("w", (1 << 40, 64), "f4", chunks=(1024, 64))
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_dataset("w", (1 << 50,), "f4", chunks=(1024,))
    for name in ("a", "b"):
        with pytest.raises(CnrError, match=r"bytes don't fit|2\^53"):
            convert(tmp_path / f"{name}.h5", tmp_path / "a.cnr")


def test_metadata_that_no_attribute_can_be_made_of(tmp_path: Path) -> None:
    table = {"w": np.eye(2)}
    for number, kept in enumerate(
        [
            {"groups": {"": {"a": {"dtype": "float32", "shape": [3], "values": [1]}}}},
            {"groups": {"": {"a": {"dtype": "object", "shape": [], "values": []}}}},
            {"groups": {"": {"a": {"dtype": "int8", "shape": [1], "values": [300]}}}},
            {"groups": {"": {"a": {"shape": "x", "dtype": "int8"}}}},
            {"groups": {"": {"a": {"encoding": "utf-16", "length": None, "shape": [], "strings": "x"}}}},
            {"groups": {"": {"a": [1, 2]}}},
            {"groups": {"": {"a": None}}},
            {"groups": {"": ["a"]}},
            {"arrays": {"w": "x"}},
        ]
    ):
        path = tmp_path / f"{number}.cnr"
        cnrfmt.save(path, table, metadata={"hdf5": kept})
        with pytest.raises(UsageError, match="hdf5"):
            convert(path, tmp_path / "a.h5")
    # What isn't of our making at all is metadata like any other.
    for number, mine in enumerate(["x", [1], {"groups": 1}, {"version": "1.14"}]):
        path = tmp_path / f"mine{number}.cnr"
        cnrfmt.save(path, table, metadata={"hdf5": mine, "npz": mine})
        for suffix in ("h5", "npz"):
            convert(path, tmp_path / f"{number}.{suffix}")
            convert(tmp_path / f"{number}.{suffix}", tmp_path / f"{number}.{suffix}.cnr")
            assert content(tmp_path / f"{number}.{suffix}.cnr") == content(path)


def test_a_group_gives_way_to_a_table(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_group("a").attrs["x"] = 1
        file.create_group("b/c")
    convert(tmp_path / "a.h5", tmp_path / "a.cnr")
    cnrfmt.append(tmp_path / "a.cnr", {"a": np.eye(2), "b": np.eye(3)})
    convert(tmp_path / "a.cnr", tmp_path / "b.h5")
    with h5py.File(tmp_path / "b.h5") as file:
        assert bits(file["a"][()]) == bits(np.eye(2))
        assert bits(file["b"][()]) == bits(np.eye(3))


def test_a_mark_that_does_not_fit_is_damage(tmp_path: Path) -> None:
    for name, array, mark in (("a", np.eye(2), "bfloat16"), ("b", np.eye(2).astype("u2"), "float128")):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["w"] = array
            file["w"].attrs["cnrfmt_dtype"] = mark
        with pytest.raises(DamagedError, match="foreign-file"):
            convert(tmp_path / f"{name}.h5", tmp_path / "a.cnr")
