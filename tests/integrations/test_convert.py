from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

import cnrfmt
from cnrfmt.errors import StorageError, UsageError, VersionNotFoundError
from cnrfmt.integrations import content as content_module
from cnrfmt.integrations import convert as module
from cnrfmt.integrations import scheme
from cnrfmt.integrations.convert import convert
from cnrfmt.storage.fs import PosixFs
from tests.integrations.support import COLUMN_TYPES, bits, content, dtype_of, every_bit_pattern

FILES = ("safetensors", "h5", "npz")


@pytest.mark.parametrize("suffix", FILES)
def test_everything_comes_back_bit_for_bit(model: Path, tmp_path: Path, suffix: str) -> None:
    out, back = tmp_path / f"out.{suffix}", tmp_path / "back.cnr"
    summary = convert(model, out)
    assert summary["tables"] == sorted(content(model)["tables"])
    again = convert(out, back)
    assert content(back) == content(model)
    assert again["tables"] == summary["tables"]
    assert again["dense"] == summary["dense"]
    assert again["step"] == 41
    assert again["skipped"] == []
    # And a second time round, to the same bytes.
    second = tmp_path / f"second.{suffix}"
    convert(back, second)
    if suffix != "h5":
        assert second.read_bytes() == out.read_bytes()


@pytest.mark.parametrize("suffix", FILES)
def test_large_dense_arrays_are_mapped(
    model: Path, tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheme, "_MAPPED", 30)
    monkeypatch.setattr(content_module, "SLICE_BYTES", 64)
    convert(model, tmp_path / f"out.{suffix}")
    convert(tmp_path / f"out.{suffix}", tmp_path / "back.cnr")
    assert content(tmp_path / "back.cnr") == content(model)


@pytest.mark.parametrize("suffix", FILES)
def test_a_directory_is_a_container(model: Path, tmp_path: Path, suffix: str) -> None:
    out, back = tmp_path / f"out.{suffix}", tmp_path / "run"
    convert(model, out)
    assert convert(out, back)["target_format"] == "cnr"
    assert (back / "segments").is_dir()
    assert content(back) == content(model)
    assert convert(back, tmp_path / f"again.{suffix}")["source_format"] == "cnr"


@pytest.mark.parametrize("suffix", FILES)
def test_real_embeddings_through_every_format(embeddings_file: Path, tmp_path: Path, suffix: str) -> None:
    first, out, back = tmp_path / "a.cnr", tmp_path / f"b.{suffix}", tmp_path / "c.cnr"
    want = safetensors.numpy.load_file(embeddings_file)
    assert convert(embeddings_file, first)["bytes"] == sum(a.nbytes for a in want.values())
    convert(first, out)
    convert(out, back)
    found = cnrfmt.load(back)
    assert {name: bits(a) for name, a in found.items()} == {name: bits(a) for name, a in want.items()}


def test_other_readers_see_plain_arrays(model: Path, tmp_path: Path, visitors: cnrfmt.TableData) -> None:
    order = np.argsort(visitors.keys)
    want = {
        "visitor": visitors.values[order],
        "visitor.keys": visitors.keys[order],
        "visitor.columns/accumulator": visitors.columns["accumulator"][order],
        "visitor.columns/momentum": visitors.columns["momentum"][order],
        "visitor~": np.arange(3, dtype=np.uint8),
        "conv": np.arange(60, dtype=np.float32).reshape(3, 4, 5),
    }
    for suffix in FILES:
        convert(model, tmp_path / f"m.{suffix}")
    tensors = safetensors.torch.load_file(tmp_path / "m.safetensors")
    assert tensors["types/bfloat16"].dtype == torch.bfloat16
    assert tensors["types/float8_e4m3fn"].dtype == torch.float8_e4m3fn
    half = every_bit_pattern("bfloat16").view(np.int16)
    assert bits(tensors["types/bfloat16"].view(torch.int16).numpy()) == bits(half)
    with np.load(tmp_path / "m.npz") as npz, h5py.File(tmp_path / "m.h5") as h5:
        for name, array in want.items():
            assert bits(tensors[name].numpy()) == bits(array)
            assert bits(npz[name]) == bits(array)
            assert bits(h5[name][()]) == bits(array)
        assert bits(npz["types/bfloat16"].view(np.int16)) == bits(half)
        assert bits(h5["types/bfloat16"][()].view(np.int16)) == bits(half)
        assert h5["types/bfloat16"].attrs["cnrfmt_dtype"] == "bfloat16"


def test_a_plain_table_needs_no_notes(tmp_path: Path) -> None:
    cnrfmt.save(tmp_path / "a.cnr", {"w": np.eye(3, dtype=np.float32)}, metadata={"format": "pt"})
    convert(tmp_path / "a.cnr", tmp_path / "a.safetensors")
    with safetensors.safe_open(tmp_path / "a.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}
    cnrfmt.save(tmp_path / "b.cnr", {"w": np.eye(3, dtype=np.float32)})
    convert(tmp_path / "b.cnr", tmp_path / "b.npz")
    convert(tmp_path / "b.cnr", tmp_path / "b.h5")
    with np.load(tmp_path / "b.npz") as npz, h5py.File(tmp_path / "b.h5") as h5:
        assert list(npz) == ["w"] == list(h5)


@pytest.mark.parametrize("suffix", FILES)
def test_every_dtype_as_a_table_of_a_foreign_file(tmp_path: Path, suffix: str) -> None:
    source = tmp_path / f"types.{suffix}"
    names = [n for n in COLUMN_TYPES if "bfloat" not in n and "float8" not in n]
    arrays = {name: every_bit_pattern(name) for name in names}
    if suffix == "npz":
        np.savez(source, **arrays)
    elif suffix == "h5":
        with h5py.File(source, "w") as file:
            for name, array in arrays.items():
                file[name] = array.astype(array.dtype.newbyteorder(">"))
    else:
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        for name, carrier in (("bfloat16", torch.bfloat16), ("float8_e5m2", torch.float8_e5m2)):
            array = arrays[name] = every_bit_pattern(name)
            integers = array.view(f"i{array.itemsize}")
            tensors[name] = torch.from_numpy(integers).view(carrier)
        safetensors.torch.save_file(tensors, source)
    convert(source, tmp_path / "types.cnr")
    found = cnrfmt.load(tmp_path / "types.cnr")
    assert {n: bits(a) for n, a in found.items()} == {n: bits(a) for n, a in arrays.items()}
    assert all(found[n].dtype == dtype_of(n) for n in found)


@pytest.mark.parametrize("suffix", FILES)
def test_patterns_choose_the_tables_of_a_foreign_file(tmp_path: Path, suffix: str) -> None:
    source = tmp_path / f"a.{suffix}"
    first = tmp_path / "first.cnr"
    one, two = np.eye(4, dtype=np.float32), np.arange(6).reshape(3, 2)
    cnrfmt.save(first, {"emb/user": one, "emb/item": two, "mlp/w": one}, dense={"mlp/b": np.zeros(3)})
    convert(first, source)
    summary = convert(source, tmp_path / "b.cnr", tables=["emb/*"])
    assert summary["tables"] == ["emb/item", "emb/user"]
    with cnrfmt.open(tmp_path / "b.cnr") as ck:
        assert bits(ck.dense["mlp/w"]) == bits(one)
        assert bits(ck.dense["mlp/b"]) == bits(np.zeros(3))
    # What was made dense stays so, though it has two dimensions.
    convert(tmp_path / "b.cnr", source, force=True)
    convert(source, tmp_path / "c.cnr")
    assert content(tmp_path / "c.cnr") == content(tmp_path / "b.cnr")


@pytest.mark.parametrize("suffix", FILES)
def test_a_keyed_table_that_is_not_wanted_becomes_plain_arrays(model: Path, tmp_path: Path, suffix: str) -> None:
    convert(model, tmp_path / f"a.{suffix}")
    summary = convert(tmp_path / f"a.{suffix}", tmp_path / "b.cnr", tables=["types/float32"])
    assert summary["tables"] == ["types/float32"]
    assert {"visitor.keys", "visitor.columns/momentum"} < set(summary["dense"])


def test_patterns_choose_the_tables_of_a_container(model: Path, tmp_path: Path) -> None:
    summary = convert(model, tmp_path / "a.npz", tables=["types/*int*", "visitor"])
    with np.load(tmp_path / "a.npz") as npz:
        assert {"types/int8", "visitor.keys", "conv"} < set(npz)
        assert not {"types/float32", "no rows"} & set(npz)
    assert "visitor" in summary["tables"]


@pytest.mark.parametrize("direction", ["in", "out"])
def test_a_pattern_without_a_match_is_an_error(model: Path, tmp_path: Path, direction: str) -> None:
    source, target = model, tmp_path / "x.npz"
    if direction == "in":
        convert(model, tmp_path / "a.npz")
        source, target = tmp_path / "a.npz", tmp_path / "x.cnr"
    with pytest.raises(UsageError, match=r"no table matches 'emb\.\*'.*'visitor'"):
        convert(source, target, tables=["emb.*"])
    with pytest.raises(UsageError, match="list of patterns"):
        convert(source, target, tables="visitor")
    assert not target.exists()


def test_an_older_version_can_be_converted(tmp_path: Path) -> None:
    path = tmp_path / "a"
    table = np.arange(20, dtype=np.float32).reshape(5, 4)
    cnrfmt.save(path, {"w": table}, step=10)
    cnrfmt.append(path, {"w": cnrfmt.Rows([1, 3], np.zeros((2, 4), np.float32))}, step=20)
    newest, older = tmp_path / "new.npz", tmp_path / "old.npz"
    assert convert(path, newest)["step"] == 20
    assert convert(path, older, version=0) == convert(path, older, version=0, force=True)
    with np.load(newest) as new, np.load(older) as old:
        assert bits(old["w"]) == bits(table)
        assert not new["w"][[1, 3]].any()
        assert bits(new["w"][[0, 2, 4]]) == bits(table[[0, 2, 4]])
    with pytest.raises(VersionNotFoundError):
        convert(path, tmp_path / "no.npz", version=7)
    with pytest.raises(UsageError, match="only containers have versions"):
        convert(newest, tmp_path / "b.cnr", version=0)


def test_quantising_on_the_way_in(embeddings_file: Path, tmp_path: Path) -> None:
    weights = safetensors.numpy.load_file(embeddings_file)["embedding.weight"].astype(np.float32)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["embedding"] = weights
        file["counts"] = np.arange(10).reshape(5, 2)
    seen: list[tuple[int, int]] = []
    summary = convert(
        tmp_path / "a.h5",
        tmp_path / "a.cnr",
        quantize={"embedding": cnrfmt.Quantize(4)},
        progress=lambda done, total: seen.append((done, total)),
    )
    cnrfmt.save(tmp_path / "b.cnr", {"embedding": weights}, quantize=cnrfmt.Quantize(4))
    one, two = cnrfmt.load(tmp_path / "a.cnr"), cnrfmt.load(tmp_path / "b.cnr")
    assert bits(one["embedding"]) == bits(two["embedding"])
    assert summary["bytes"] == 32000 * (128 + 4) + 80
    assert (tmp_path / "a.cnr").stat().st_size < 1.02 * summary["bytes"] + 65536
    assert seen[-1] == (summary["bytes"], summary["bytes"])
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    with pytest.raises(UsageError, match="no table is named 'emb'"):
        convert(tmp_path / "a.h5", tmp_path / "c.cnr", quantize={"emb": cnrfmt.Quantize(4)})
    with pytest.raises(UsageError, match="only containers are quantised"):
        convert(tmp_path / "a.cnr", tmp_path / "c.npz", quantize=cnrfmt.Quantize(4))


@pytest.mark.parametrize("suffix", FILES)
def test_progress_goes_up_to_the_total(model: Path, tmp_path: Path, suffix: str) -> None:
    for source, target in ((model, tmp_path / f"a.{suffix}"), (tmp_path / f"a.{suffix}", tmp_path / "b.cnr")):
        seen: list[tuple[int, int]] = []
        summary = convert(source, target, progress=lambda done, total, to=seen: to.append((done, total)))
        done = [d for d, _ in seen]
        assert done == sorted(done)
        assert {total for _, total in seen} == {summary["bytes"]}
        assert done[-1] == summary["bytes"]
        assert len(seen) > 2


def test_formats_that_are_not_known(model: Path, tmp_path: Path) -> None:
    every = r"\.cnr.*\.h5.*\.safetensors.*\.npz"
    for target in ("a.parquet", "a.keras", "a.npy", "a.pt"):
        with pytest.raises(UsageError, match=every):
            convert(model, tmp_path / target)
    (tmp_path / "a.bin").write_bytes(b"")
    with pytest.raises(UsageError, match=every):
        convert(tmp_path / "a.bin", tmp_path / "a.cnr")
    with pytest.raises(UsageError, match=every):
        convert(model, tmp_path / "a", target_format="parquet")
    with pytest.raises(StorageError, match="no such file") as missing:
        convert(tmp_path / "none.npz", tmp_path / "b.cnr")
    assert missing.value.errno == errno.ENOENT
    for role in ("source", "target"):
        with pytest.raises(UsageError, match=f"{role} must be a path"):
            convert(**{"source": model, "target": tmp_path / "c.npz", role: None})


def test_one_of_the_two_must_be_a_container(model: Path, tmp_path: Path) -> None:
    convert(model, tmp_path / "a.npz")
    with pytest.raises(UsageError, match="one of the two must be a container"):
        convert(tmp_path / "a.npz", tmp_path / "a.h5")
    with pytest.raises(UsageError, match="one of the two must be a container"):
        convert(model, tmp_path / "b.cnr")


def test_formats_can_be_said(model: Path, tmp_path: Path) -> None:
    convert(model, tmp_path / "weights", target_format="hdf5")
    assert h5py.is_hdf5(tmp_path / "weights")
    convert(tmp_path / "weights", tmp_path / "odd.npz", source_format="hdf5", target_format="cnr")
    assert content(tmp_path / "odd.npz") == content(model)


@pytest.mark.parametrize("suffix", FILES)
def test_nothing_is_replaced_unless_asked(model: Path, tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"a.{suffix}"
    target.write_text("precious")
    target.chmod(0o640)
    with pytest.raises(UsageError, match="is there already"):
        convert(model, target)
    assert target.read_text() == "precious"
    convert(model, target, force=True)
    assert target.stat().st_mode & 0o777 == 0o640
    with pytest.raises(UsageError, match="is there already"):
        convert(target, model)
    before = content(model)
    # A container that is there gets a version more.
    assert convert(target, model, force=True)["version"] == 1
    assert content(model) == before


def test_a_directory_is_not_replaced_by_a_file(model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.npz").mkdir()
    with pytest.raises(UsageError, match="isn't a file"):
        convert(model, tmp_path / "a.npz", force=True)


@pytest.mark.parametrize("suffix", FILES)
def test_a_file_that_came_meanwhile_is_not_replaced(model: Path, tmp_path: Path, suffix: str) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    target = folder / f"a.{suffix}"

    def intrude(done: int, total: int) -> None:
        target.write_text("precious")

    with pytest.raises(StorageError):
        convert(model, target, progress=intrude)
    assert target.read_text() == "precious"
    assert os.listdir(folder) == [target.name]


@pytest.mark.parametrize("suffix", FILES)
@pytest.mark.parametrize("force", [False, True])
def test_an_error_leaves_nothing_behind(model: Path, tmp_path: Path, suffix: str, force: bool) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    target = folder / f"a.{suffix}"
    if force:
        target.write_text("precious")

    def fail(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(model, target, force=force, progress=fail)
    assert os.listdir(folder) == [target.name] * force
    assert not force or target.read_text() == "precious"


@pytest.mark.parametrize("suffix", FILES)
def test_a_failed_sync_leaves_nothing_behind(
    model: Path, tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: PosixFs, handle: int) -> None:
        raise StorageError(5, "made to fail", "x")

    monkeypatch.setattr(PosixFs, "sync", refuse)
    (tmp_path / "out").mkdir()
    with pytest.raises(StorageError, match="made to fail"):
        convert(model, tmp_path / "out" / f"a.{suffix}")
    assert os.listdir(tmp_path / "out") == []


@pytest.mark.parametrize("suffix", FILES)
def test_a_target_that_can_not_be_made(model: Path, tmp_path: Path, suffix: str) -> None:
    with pytest.raises(StorageError) as caught:
        convert(model, tmp_path / "none" / f"a.{suffix}")
    assert caught.value.errno == 2


def test_there_must_be_room(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert(model, tmp_path / "a.npz")
    monkeypatch.setattr(PosixFs, "free_bytes", lambda self, path: 1000)
    for source, target in ((model, "b.h5"), (tmp_path / "a.npz", "b.cnr")):
        with pytest.raises(StorageError, match="1000 bytes are free") as caught:
            convert(source, tmp_path / target)
        assert caught.value.errno == 28
        assert not (tmp_path / target).exists()


def test_what_safetensors_can_not_hold_is_said_before_writing(tmp_path: Path) -> None:
    cnrfmt.save(tmp_path / "a.cnr", {}, dense={"z": np.array([1j])})
    with pytest.raises(UsageError, match="'z': safetensors has no complex128"):
        convert(tmp_path / "a.cnr", tmp_path / "a.safetensors")
    assert not (tmp_path / "a.safetensors").exists()


@pytest.mark.parametrize("suffix", FILES)
def test_names_that_a_format_can_not_have(tmp_path: Path, suffix: str) -> None:
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    awkward = ["/a", "a//b", "a/", ".", "..", "a", "a/./b", "a/b", "a/b/c", "x\\y", "__metadata__", "__cnrfmt__"]
    awkward += ["x.npy", "a.keys", "a.keys~", "cnrfmt", "%2Fa", "ä"]
    tables: dict[str, Any] = {name: rows + number for number, name in enumerate(awkward)}
    tables["a"] = cnrfmt.TableData(rows, keys=[3, 1, 2], columns={"m/n": rows, "..": rows})
    cnrfmt.save(tmp_path / "a.cnr", tables, dense={name: np.arange(2) for name in awkward})
    convert(tmp_path / "a.cnr", tmp_path / f"a.{suffix}")
    convert(tmp_path / f"a.{suffix}", tmp_path / "b.cnr")
    assert content(tmp_path / "b.cnr") == content(tmp_path / "a.cnr")


def test_an_error_of_the_operating_system_becomes_ours(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise PermissionError(13, "made to fail", "somewhere")

    monkeypatch.setattr(module, "from_container", fail)
    with pytest.raises(StorageError, match="made to fail"):
        convert(model, tmp_path / "a.npz")
