"""FBGEMM's batched embedding bags over mapped tables, against the same module with weights of its own."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fbgemm_gpu
import numpy as np
import pytest
import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_inference import IntNBitTableBatchedEmbeddingBagsCodegen

import cnrfmt
from cnrfmt import DamagedError, Deleted, Dropped, MissingKeyError, Quantize, Rows, TableData, UsageError
from cnrfmt.integrations.fbgemm import Bags, batched_embedding_bags
from tests.integrations.operators import damage, trained_rows

HEAD = {bits: Quantize(bits, layout="head") for bits in (8, 4, 2)}
QUANTIZE = {"user": HEAD[8], "item": HEAD[4], "query": HEAD[2], "*": None}
KINDS = {8: SparseType.INT8, 4: SparseType.INT4, 2: SparseType.INT2}


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Of torch's own, in the forward pass of FBGEMM's class.
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield


@pytest.fixture(scope="module")
def trained(embeddings_file: Path) -> Any:
    return trained_rows(embeddings_file)


@pytest.fixture
def tables(trained: Any) -> dict[str, Any]:
    return {"user": trained.copy(), "item": trained[:900, :32].copy(), "query": trained[:70, :16].copy()}


@pytest.fixture(params=["model.cnr", "model"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / request.param


def ids_of(counts: list[int], each: int = 40, per: int = 5) -> tuple[Any, Any]:
    """Bags for each of some tables."""
    rng = np.random.default_rng(0)
    ids = np.concatenate([rng.integers(0, count, each * per) for count in counts])
    return torch.from_numpy(ids), torch.arange(0, len(ids) + 1, per)


def own_module(tables: dict[str, Any], pooling_mode: Any) -> Any:
    """The same module for items and queries, filled with what FBGEMM's own encoder makes, by `weight_lists`.

    It has no encoder for 8 bits with half-precision parameters.
    """
    specs, weights = [], []
    for name, rows in tables.items():
        bits = {"item": 4, "query": 2}[name]
        fused = torch.ops.fbgemm.FloatToFusedNBitRowwiseQuantizedSBHalf(torch.from_numpy(rows), bits)
        weights.append((fused[:, :-4].contiguous(), fused[:, -4:].contiguous()))
        specs.append((name, *rows.shape, KINDS[bits], EmbeddingLocation.HOST))
    return IntNBitTableBatchedEmbeddingBagsCodegen(
        specs,
        device="cpu",
        row_alignment=16,
        weight_lists=weights,
        output_dtype=SparseType.FP32,
        pooling_mode=pooling_mode,
    )


def own_copy(bags: Bags) -> Any:
    """The same module as FBGEMM lays it out, with a copy of the rows."""
    given = bags.module
    own = IntNBitTableBatchedEmbeddingBagsCodegen(
        given.embedding_specs,
        device="cpu",
        row_alignment=16,
        output_dtype=SparseType.FP32,
        feature_table_map=given.feature_table_map,
        pooling_mode=given.pooling_mode,
    )
    own.initialize_weights()
    for (mine, _), (theirs, _) in zip(
        own.split_embedding_weights(split_scale_shifts=False),
        given.split_embedding_weights(split_scale_shifts=False),
        strict=True,
    ):
        mine.copy_(theirs)
    return own


def rows_of(bags: Bags, name: str) -> Any:
    """The bytes of a table's rows in the module."""
    at = bags.tables.index(name)
    return bags.module.split_embedding_weights(split_scale_shifts=False)[at][0]


def values_of(bags: Bags, name: str, ids: Any) -> Any:
    """Rows of a table as the module gives them: one id per bag, for one table alone."""
    features = len(bags.tables)
    given = torch.from_numpy(np.asarray(ids, np.int64))
    at = bags.tables.index(name)
    offsets = torch.zeros(features * len(given) + 1, dtype=torch.int64)
    offsets[at * len(given) : (at + 1) * len(given) + 1] = torch.arange(len(given) + 1)
    offsets[(at + 1) * len(given) :] = len(given)
    found = bags.module(given, offsets)
    first = int(bags.module.D_offsets[at])
    return found[:, first : int(bags.module.D_offsets[at + 1])].numpy()


def is_private_file_map(tensor: Any, path: Path) -> bool:
    """Whether a tensor's memory is a private map of a file below a path, by what the kernel says."""
    start, end = tensor.data_ptr(), tensor.data_ptr() + tensor.numel()
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, mode, _, _, _, *name = line.split(maxsplit=5)
        low, high = (int(x, 16) for x in span.split("-"))
        if low <= start and end <= high:
            return mode == "rw-p" and bool(name) and name[0].startswith(str(path))
    return False


def test_several_tables_of_one_file_give_what_copies_give(path: Path, tables: dict[str, Any]) -> None:
    cnrfmt.save(path, tables, quantize=QUANTIZE)
    with cnrfmt.open(path) as ck:
        bags = batched_embedding_bags(ck)
        want = {name: ck[name][...] for name in ck}
        assert is_private_file_map(bags.module.weights_host, path)
    ids, offsets = ids_of([len(tables[name]) for name in bags.tables])
    found = bags.module(ids, offsets)
    assert torch.equal(found, own_copy(bags)(ids, offsets))
    assert (bags.origin, bags.version, set(bags.tables)) == ("mapped", 0, set(tables))
    assert {name: len(lost) for name, lost in bags.exceptions.items()} == dict.fromkeys(bags.tables, 0)
    for name, rows in want.items():
        # Bit for bit: a code times a half-precision scale is exact in float32.
        assert np.array_equal(values_of(bags, name, np.arange(len(rows))), rows)


def test_the_rows_are_those_that_fbgemm_packs_itself(path: Path, tables: dict[str, Any]) -> None:
    cnrfmt.save(path, tables, quantize=QUANTIZE)
    names = ["query", "item"]
    with cnrfmt.open(path) as ck:
        for mode in ("sum", "mean"):
            bags = batched_embedding_bags(ck, names, pooling_mode=mode)
            own = own_module({n: tables[n] for n in names}, bags.module.pooling_mode)
            ids, offsets = ids_of([70, 900])
            assert torch.equal(bags.module(ids, offsets), own(ids, offsets))
            assert torch.equal(rows_of(bags, "item"), own.split_embedding_weights(split_scale_shifts=False)[1][0])


def test_features_pooling_types_and_settings(path: Path, tables: dict[str, Any]) -> None:
    cnrfmt.save(path, tables, quantize=QUANTIZE)
    with cnrfmt.open(path) as ck:
        bags = batched_embedding_bags(
            ck, ["user", "item"], features=["item", "user", "item"], bounds_check_mode=BoundsCheckMode.FATAL
        )
        ids, offsets = ids_of([900, 3000, 900])
        found = bags.module(ids, offsets)
        assert found.shape == (40, 32 + 64 + 32)
        assert torch.equal(found, own_copy(bags)(ids, offsets))
        with pytest.raises(RuntimeError):
            bags.module(torch.tensor([900]), torch.tensor([0, 1, 1, 1]))
        single = batched_embedding_bags(ck, ["user"], pooling_mode="none", output_dtype="float16")
        some = torch.tensor([5, 7, 5], dtype=torch.int32)
        rows = single.module(some, torch.tensor([0, 3], dtype=torch.int32))
        assert rows.dtype == torch.float16
        assert np.array_equal(rows.numpy(), ck["user"][[5, 7, 5]].astype(np.float16))


def test_deltas_are_put_in_place_as_they_are_stored(path: Path, tables: dict[str, Any]) -> None:
    cnrfmt.save(path, tables, quantize=QUANTIZE)
    names = ["user", "item", "query"]
    with cnrfmt.open(path) as ck:
        bags = batched_embedding_bags(ck, names, features=["query", "user", "item", "user"])
        for version in range(1, 5):
            given = {}
            for name, step in (("user", 13), ("query", 3)):
                some = np.arange(version, len(tables[name]), step)
                tables[name][some] *= -1.5
                given[name] = Rows(some, tables[name][some])
            cnrfmt.append(path, given)
            # One version is skipped.
            if version == 2:
                continue
            before = ck.version
            ck.refresh()
            changed = {name: len(ck[name].changed(since=before).rows) for name in names}
            assert bags.update(ck) == changed
            assert (bags.version, changed["item"]) == (version, 0)
            assert bags.update(ck) == dict.fromkeys(names, 0)
            fresh = batched_embedding_bags(ck, names)
            assert (bags.origin, fresh.origin) == ("mapped", "overlay")
            assert is_private_file_map(fresh.module.weights_host, path)
            for name in names:
                assert torch.equal(rows_of(bags, name), rows_of(fresh, name))
                assert np.array_equal(values_of(fresh, name, np.arange(len(tables[name]))), ck[name][...])
        # Back to an older version, and the file has the rows that it had.
        with cnrfmt.open(path, version=1) as old:
            assert sum(bags.update(old).values()) > 0
            assert bags.version == 1
            for name in names:
                assert torch.equal(rows_of(bags, name), rows_of(batched_embedding_bags(old, names), name))
        assert cnrfmt.verify(path).findings == []


def test_a_compacted_container_goes_on(path: Path, tables: dict[str, Any]) -> None:
    cnrfmt.save(path, tables, quantize=QUANTIZE)
    with cnrfmt.open(path) as ck:
        bags = batched_embedding_bags(ck)
        cnrfmt.append(path, {"item": Rows([3, 5], -tables["item"][[3, 5]])})
        cnrfmt.compact(path)
        ck.refresh()
        bags.update(ck)
        for name in ck:
            assert torch.equal(rows_of(bags, name), rows_of(batched_embedding_bags(ck), name))


def test_keyed_tables_are_looked_up_by_position(path: Path, trained: Any) -> None:
    keys = np.random.default_rng(1).permutation(5000)[:300] * 7 - 400
    cnrfmt.save(path, {"user": TableData(trained[:300], keys=keys)}, quantize=HEAD[8])
    with cnrfmt.open(path) as ck:
        bags = batched_embedding_bags(ck)
        assert np.array_equal(values_of(bags, "user", np.arange(300)), ck["user"].at[:])
        cnrfmt.append(path, {"user": Rows(keys[:9], -trained[:9])})
        ck.refresh()
        assert bags.update(ck) == {"user": 9}
        assert np.array_equal(values_of(bags, "user", np.arange(300)), ck["user"].at[:])
        cnrfmt.append(path, {"user": Deleted(keys[:1])})
        cnrfmt.append(path, {"user": Rows([-1000], trained[:1])})
        ck.refresh()
        with pytest.raises(UsageError, match=r"other keys than these bags, 300 now; make new bags"):
            bags.update(ck)
        with pytest.raises(UsageError, match="no part of it has all its rows"):
            batched_embedding_bags(ck)
        assert batched_embedding_bags(ck, convert=True).origin == "copied"


def test_an_update_that_cannot_be_applied_changes_nothing(path: Path, tables: dict[str, Any]) -> None:
    cnrfmt.save(path, tables, quantize=QUANTIZE)
    other = path.with_name("other")
    cnrfmt.save(other, tables, quantize=QUANTIZE)
    with cnrfmt.open(path) as ck, cnrfmt.open(other) as foreign:
        bags = batched_embedding_bags(ck)
        before = {name: rows_of(bags, name).clone() for name in bags.tables}
        with pytest.raises(UsageError, match="isn't the container that these bags were made of"):
            bags.update(foreign)
        broken = np.full((1, 16), np.nan, np.float32)
        cnrfmt.append(path, {"item": Rows([0], tables["item"][1:2]), "query": Rows([0], broken)})
        ck.refresh()
        with pytest.raises(UsageError, match=r"table 'query': 1 of 70 rows, the first of them 0, "):
            bags.update(ck)
        lenient = batched_embedding_bags(ck, exceptions="ignore")
        assert lenient.exceptions["query"].tolist() == [0]
        cnrfmt.append(path, {"query": Rows([1], broken)})
        ck.refresh()
        assert lenient.update(ck)["query"] == 1
        assert lenient.exceptions["query"].tolist() == [0, 1]
        cnrfmt.append(path, {"query": Rows([0, 1], tables["query"][:2])}, quantize={"query": HEAD[8]})
        ck.refresh()
        with pytest.raises(UsageError, match="'query': its rows can't be put in place as they are stored: it has rows"):
            bags.update(ck)
        cnrfmt.append(path, {"query": Rows([0], tables["query"][:1], rows=71)})
        ck.refresh()
        with pytest.raises(UsageError, match="table 'query': it has other rows than these bags, 71 now; make new bags"):
            bags.update(ck)
        cnrfmt.append(path, {"query": Dropped()})
        ck.refresh()
        with pytest.raises(MissingKeyError):
            bags.update(ck)
        cnrfmt.append(path, {"query": TableData(tables["query"])}, quantize={"query": HEAD[2]})
        ck.refresh()
        with pytest.raises(UsageError, match="table 'query': it is a new table of the same name; make new bags"):
            bags.update(ck)
        assert bags.version == 0
        for name, rows in before.items():
            assert torch.equal(rows_of(bags, name), rows)


def test_tables_that_cannot_be_mapped_are_converted_if_asked(path: Path, tables: dict[str, Any]) -> None:
    raw = {"raw": tables["user"][:50], "tail": tables["item"]}
    quantize = {**QUANTIZE, "raw": None, "tail": Quantize(4)}
    cnrfmt.save(path, {**tables, **raw}, quantize=quantize)
    with cnrfmt.open(path) as ck:
        for name, reason in (("raw", "under the encoding raw float32"), ("tail", "in the layout 'tail' with 4 bits")):
            with pytest.raises(UsageError, match=rf"'{name}': .* layout 'head': .*{reason}; .*layout='head'.*convert"):
                batched_embedding_bags(ck, ["user", name])
        copied = batched_embedding_bags(ck, ["user", "tail"], convert=True)
        assert copied.origin == "copied"
        for name in ("user", "tail"):
            assert np.array_equal(values_of(copied, name, np.arange(len(ck[name]))), ck[name][...])
        anew = batched_embedding_bags(ck, ["user", "raw"], convert=True)
        assert anew.origin == "quantised"
        assert np.abs(values_of(anew, "raw", np.arange(50)) - raw["raw"]).max() < 0.02
        changed = {"tail": Rows([4], -tables["item"][4:5]), "raw": Rows([4], -raw["raw"][:1])}
        cnrfmt.append(path, changed)
        ck.refresh()
        # Copied rows go on as they are stored; what was quantised for the module has nothing stored to go on with.
        assert copied.update(ck) == {"user": 0, "tail": 1}
        assert np.array_equal(values_of(copied, "tail", np.arange(900)), ck["tail"][...])
        with pytest.raises(UsageError, match="table 'raw': its rows were quantised for these bags"):
            anew.update(ck)


def test_tables_in_several_files(tmp_path: Path, tables: dict[str, Any]) -> None:
    path = tmp_path / "model"
    late = tables.pop("query")
    cnrfmt.save(path, tables, quantize={"user": HEAD[8], "item": HEAD[4]})
    cnrfmt.append(path, {"query": TableData(late)}, quantize={"query": HEAD[2]})
    with cnrfmt.open(path) as ck:
        assert batched_embedding_bags(ck, ["user", "item"]).origin == "mapped"
        assert batched_embedding_bags(ck, ["query"]).origin == "mapped"
        with pytest.raises(UsageError, match=r"the tables don't lie in one file; make one part of them"):
            batched_embedding_bags(ck)
        bags = batched_embedding_bags(ck, convert=True)
        assert bags.origin == "copied"
        assert np.array_equal(values_of(bags, "query", np.arange(70)), ck["query"][...])
    # In a single file they do.
    single = tmp_path / "model.cnr"
    cnrfmt.save(single, tables, quantize={"user": HEAD[8], "item": HEAD[4]})
    cnrfmt.append(single, {"query": TableData(late)}, quantize={"query": HEAD[2]})
    with cnrfmt.open(single) as ck:
        bags = batched_embedding_bags(ck)
        assert bags.origin == "mapped"
        assert np.array_equal(values_of(bags, "query", np.arange(70)), ck["query"][...])


def test_damage_is_found_first(tmp_path: Path, tables: dict[str, Any]) -> None:
    path = tmp_path / "model.cnr"
    cnrfmt.save(path, tables, quantize=QUANTIZE)
    with cnrfmt.open(path) as ck:
        damage(path, ck, "item", 500)
    with cnrfmt.open(path) as ck:
        assert batched_embedding_bags(ck, ["user"]).origin == "mapped"
        with pytest.raises(DamagedError, match="of table 'item'"):
            batched_embedding_bags(ck)
        later = batched_embedding_bags(ck, verify="background").verification
        assert later is not None
        with pytest.raises(DamagedError, match="of table 'item'"):
            later.result(timeout=60)
        assert batched_embedding_bags(ck, verify="none").verification is None


def test_wrong_arguments(path: Path, tables: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    cnrfmt.save(path, {**tables, "odd": tables["user"][:, :6]}, quantize={**QUANTIZE, "odd": HEAD[8]})
    with cnrfmt.open(path) as ck:
        for text, arguments in (
            ("give some, each once", {"tables": []}),
            ("give some, each once", {"tables": ["user", "user"]}),
            ("each table has one", {"tables": ["user"], "features": ["item"]}),
            ("pooling_mode is one of 'sum', 'mean', 'none', found 'max'", {"pooling_mode": "max", "tables": ["user"]}),
            ("output_dtype is one of .* found 'int8'", {"output_dtype": "int8", "tables": ["user"]}),
            ("a dim that is a multiple of 4; found 3000 x 6", {"tables": ["odd"]}),
            (r"tables of one dim, found \[32, 64\]", {"tables": ["user", "item"], "pooling_mode": "none"}),
            ("settings: row_alignment can't be given here", {"tables": ["user"], "row_alignment": 1}),
        ):
            with pytest.raises(UsageError, match=text):
                batched_embedding_bags(ck, **arguments)
        monkeypatch.setattr(fbgemm_gpu, "__version__", "1.9.0+cpu")
        with pytest.raises(UsageError, match=r"what fbgemm-gpu-cpu 1.8.0 has inside; found 1.9.0; pip install"):
            batched_embedding_bags(ck)
