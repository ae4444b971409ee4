"""What `restore_version` gives, fills, tells of and refuses."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cnrfmt
from cnrfmt import Deleted, Quantize, Rows, Table, TableData
from cnrfmt.checkpointing.ranks.shards import Shard
from cnrfmt.checkpointing.resuming import restoring
from cnrfmt.checkpointing.resuming.random_state import capture
from cnrfmt.checkpointing.resuming.restoring import READER, Restored, restore_version
from cnrfmt.checkpointing.resuming.targets import Target
from cnrfmt.run_record import RESERVED, CheckpointRecord, RunRecord

F32 = np.float32
USERS, ADS, DIM = 100, 40, 8
KEYS = np.array([70, -3, 12, 5, 900], np.int64)


def matrix(rows: int, dim: int = DIM, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(rows, dim)).astype(F32)


USER, ACC, MOMENTUM = matrix(USERS), matrix(USERS, 1, 2)[:, 0], matrix(USERS, seed=3)
AD, VISITOR = matrix(ADS), matrix(5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two versions: `user` with optimizer columns, `ad` without, `visitor` keyed; the second changes some rows."""
    path = tmp_path / "run7"
    tables = {
        "user": TableData(USER + 1, columns={"acc": ACC, "momentum": MOMENTUM}),
        "ad": AD,
        "visitor": TableData(VISITOR + 1, keys=KEYS),
    }
    dense = {"mlp": matrix(3), "lr": 0.5, READER: {"epoch": 2, "order": 17}, **capture()}
    cnrfmt.save(path, tables, step=10)
    cnrfmt.append(
        path,
        {"user": Rows(range(USERS), USER), "visitor": (Rows(KEYS[:4], VISITOR[:4]), Deleted(KEYS[4:]))},
        dense=dense,
        metadata={"who": "me"},
        step=20,
    )
    return path


@pytest.fixture
def ck(path: Path) -> Any:
    with cnrfmt.open(path, threads=2) as ck:
        yield ck


def user(rows: int = USERS, dim: int = DIM) -> TableData:
    columns = {"acc": np.full(rows, -7, F32), "momentum": np.full((rows, dim), -7, F32)}
    return TableData(np.full((rows, dim), -7, F32), columns=columns)


def targets(**others: Any) -> dict[str, Any]:
    return {"user": user(), "ad": np.full((ADS, DIM), -7, F32), "visitor": None} | others


def untouched(into: dict[str, Any]) -> bool:
    arrays = [a for t in into.values() if hasattr(t, "shape") or hasattr(t, "columns") for a in columns_of(t)]
    return all((a == -7).all() for a in arrays if a.dtype.kind != "U")


def columns_of(target: Any) -> list[Any]:
    arrays = Target.of(target).columns.values()
    return [np.asarray(a.resolve_neg() if isinstance(a, torch.Tensor) else a) for a in arrays]


def test_everything_as_new_arrays(ck: Any, path: Path) -> None:
    found = restore_version(ck)
    assert (found.version, found.step, found.metadata, found.metrics) == (1, 20, {"who": "me"}, {})
    assert list(found.tables) == ["user", "ad", "visitor"]
    assert found.tables["user"].values.tobytes() == USER.tobytes()
    assert found.tables["user"].columns["acc"].tobytes() == ACC.tobytes()
    assert found.tables["user"].columns["momentum"].tobytes() == MOMENTUM.tobytes()
    order = np.argsort(KEYS[:4])
    assert found.tables["visitor"].keys.tolist() == KEYS[:4][order].tolist()
    assert found.tables["visitor"].values.tobytes() == VISITOR[:4][order].tobytes()
    assert sorted(found.dense) == ["lr", "mlp"]
    assert found.reader == {"epoch": 2, "order": 17}
    assert sorted(found.random) == [f"cnrfmt:random/{n}" for n in ("numpy", "python", "torch")]
    loaded = cnrfmt.load(path, columns=False)
    weights = restore_version(ck, columns=False)
    assert weights.tables["user"].tobytes() == loaded["user"].tobytes()
    assert weights.tables["visitor"].values.tobytes() == loaded["visitor"].values.tobytes()
    assert str(weights).splitlines() == [
        f"{path}: restored version 1, step 20",
        "  table 'user': 100 x 8, as a new array",
        "  table 'ad': 40 x 8, as a new array",
        "  table 'visitor': 4 x 8, as a new array",
        "  dense state (mlp, lr), reader position, random state (python, numpy, torch)",
    ]


def test_an_older_version_and_metrics(path: Path) -> None:
    record = CheckpointRecord(2, 30, "2026-01-01T00:00:00Z", "delta", 1, 1, 32, 2, {"auc": 0.75})
    cnrfmt.append(path, {"ad": Rows([0], matrix(1))}, step=30)
    with cnrfmt.open(path, version=0) as ck:
        assert restore_version(ck, tables=["user"]).tables["user"].values.tobytes() == (USER + 1).tobytes()
    with cnrfmt.open(path) as ck:
        run = RunRecord("a" * 32, checkpoints=(record,))
        ck.manifest.metadata[RESERVED] = json.loads(json.dumps(run.to_json()))
        found = restore_version(ck, tables=["ad"])
        assert found.metrics == {"auc": 0.75}
        assert "auc 0.75" in str(found)


def test_some_tables_and_some_rows(ck: Any) -> None:
    found = restore_version(ck, tables=["us*", "visitor"], rows={"user": (90, 100), "visitor": [12, -3]})
    assert list(found.tables) == ["user", "visitor"]
    assert found.tables["user"].values.tobytes() == USER[90:].tobytes()
    assert found.tables["user"].columns["acc"].tobytes() == ACC[90:].tobytes()
    assert found.tables["visitor"].keys.tolist() == [12, -3]
    assert found.tables["visitor"].values.tobytes() == VISITOR[[2, 1]].tobytes()
    with pytest.raises(cnrfmt.MissingKeyError, match=r"table 'user' has rows 0 to 99, found \(90, 101\)"):
        restore_version(ck, rows={"user": (90, 101)})
    found = restore_version(ck, rows={"user": slice(None, None, -7), "ad": [3, 3, 0], "visitor": (1, 3)}, columns=False)
    assert found.tables["user"].tobytes() == USER[::-7].tobytes()
    assert found.tables["ad"].tobytes() == AD[[3, 3, 0]].tobytes()
    assert found.tables["visitor"].keys.tolist() == [5, 12]


@pytest.mark.parametrize("kind", ["numpy", "torch", "fortran", "strided", "fused", "memmap"])
def test_into_given_arrays(ck: Any, kind: str, tmp_path: Path) -> None:
    into = targets()
    if kind == "torch":
        tensors = {n: torch.from_numpy(a) for n, a in into["user"].columns.items()}
        weight = torch.nn.Parameter(torch.full((USERS, DIM), -7.0))
        into["user"] = TableData(weight, columns=tensors)
        into["ad"] = torch.full((DIM, ADS), -7.0).T
    elif kind == "fortran":
        into["ad"] = np.full((ADS, DIM), -7, F32, order="F")
    elif kind == "strided":
        into["ad"] = np.full((2 * ADS, 3 * DIM), -7, F32)[::-2, ::3]
    elif kind == "fused":
        both = np.full((USERS, 2 * DIM + 1), -7, F32)
        columns = {"acc": both[:, 2 * DIM], "momentum": both[:, DIM : 2 * DIM]}
        into["user"] = TableData(both[:, :DIM], columns=columns)
    elif kind == "memmap":
        into["ad"] = np.memmap(tmp_path / "ad", F32, "w+", shape=(ADS, DIM))
    found = restore_version(ck, into=into)
    assert found.tables["user"] is into["user"]
    assert found.tables["ad"] is into["ad"]
    assert list(found.tables) == ["user", "ad", "visitor"]
    with torch.no_grad():
        assert (np.asarray(into["user"].values) == USER).all()
        assert (np.asarray(into["user"].columns["acc"]) == ACC).all()
        assert (np.asarray(into["user"].columns["momentum"]) == MOMENTUM).all()
        assert (np.asarray(into["ad"]) == AD).all()
    assert found.tables["visitor"].keys.tolist() == sorted(KEYS[:4])
    assert (found.missing, found.unexpected, found.grown, found.cut) == ((), (), (), ())
    assert "table 'user': 100 x 8 and acc, momentum, into the array given" in str(found)


REFUSED: list[tuple[Callable[[], dict[str, Any]], dict[str, Any], str]] = [
    (lambda: targets(new=np.full((3, DIM), -7, F32)), {}, r"'new': in into, and not stored.*rename=.*'new'"),
    (lambda: {"user": user(), "visitor": None}, {}, r"'ad': stored, and not in into; tables= .*into=\{'ad': None\}"),
    (lambda: targets(user=np.full((USERS, DIM), -7, F32)), {}, r"column 'acc' is stored and the target lacks it"),
    (lambda: targets(user=np.full((USERS, DIM), -7, F32)), {}, r"column 'momentum' is stored and the target"),
    (
        lambda: targets(ad=TableData(np.full((ADS, DIM), -7, F32), columns={"g": np.full(ADS, -7, F32)})),
        {},
        r"the target's column 'g' isn't stored",
    ),
    (lambda: targets(user=user(120)), {}, r"rows of the target that aren't stored: 20; resize=\{'user': 'grow'\}"),
    (
        lambda: targets(user=user(60)),
        {},
        r"stored rows without a place in the target: 40; resize=\{'user': 'truncate'\}",
    ),
    (lambda: targets(user=user(dim=10)), {"strict": False}, r"dim 8 is stored.*target's is 10.*'user': 'pad'"),
    (lambda: targets(user=user(dim=5)), {"strict": False}, r"dim 8 is stored.*target's is 5.*'user': 'cut'"),
    (lambda: targets(ad=np.full((ADS, DIM), -7.0)), {"strict": False}, r"float32 is stored and the array is float64"),
    (lambda: targets(ad=np.full((ADS, DIM), -7)), {"convert": True}, r"the array is int64; read it into an array of"),
    (lambda: targets(ad=np.full(ADS, -7, F32)), {"strict": False}, r"2-D\) is stored, found an array of shape \(40,"),
    (lambda: targets(ad=[[1.0]]), {}, r"only a numpy array or a CPU tensor of torch can be filled, found list"),
    (lambda: targets(ad=torch.full((1, DIM), -7.0).expand(ADS, DIM)), {}, r"elements of it share memory"),
    (
        lambda: targets(ad=torch.full((ADS, DIM), 7j, dtype=torch.complex64).conj().imag),
        {},
        r"negated or conjugated lazily can't be filled",
    ),
    (lambda: targets(ad=np.broadcast_to(F32(-7), (ADS, DIM))), {}, r"the array is read-only"),
    (lambda: targets(ad=np.full((ADS, DIM), "x")), {"strict": False}, r"can't be stored"),
    (lambda: targets(visitor=np.full((4, DIM), -7, F32)), {}, r"is keyed, and an array.*remap=\{'visitor': 'keys'\}"),
    (
        lambda: targets(visitor=TableData(np.full((3, DIM), -7, F32), keys=[5, 6, 7])),
        {"remap": {"visitor": "keys"}},
        r"target that aren't stored: 2(?s:.*)without a place in the target: 3",
    ),
    (lambda: targets(), {"remap": {"ad": [0] * 39}}, r"39 ids for a target of 40 rows"),
    (lambda: targets(), {"remap": {"ad": [40] * 40}}, r"rows are 0 to 39, and -1 keeps.*found 40"),
    (lambda: targets(), {"remap": {"ad": "keys"}}, r"'keys' for a keyed table"),
    (lambda: targets(), {"remap": {"ad": [0] * 40}, "rows": {"ad": [0]}}, r"remap says which rows are taken"),
    (lambda: targets(), {"rows": {"ad": (0, 30)}}, r"rows 0 to 29 don't go into an array of 40"),
    (lambda: targets(), {"rows": {"ad": [50]}}, r"table 'ad' has no row 50"),
    (
        lambda: targets(ad=Shard(np.full((10, DIM), -7, F32), rows=(0, 10), of_rows=40)),
        {"rows": {"ad": (0, 10)}},
        r"the target says which rows it is",
    ),
    (
        lambda: targets(ad=Shard(np.full((ADS, 3), -7, F32), elements=(0, 4), of_dim=8)),
        {"resize": {"ad": ["pad", "cut"]}},
        r"elements 0 to 3 don't go into rows of 3",
    ),
    (
        lambda: targets(user=TableData(user().values, columns=user(99).columns)),
        {"strict": False},
        r"column 'acc': shape \(99,\) where its weights need \(100,\)",
    ),
    (lambda: targets(), {"rows": {"ad": (5,)}}, r"a range of rows is \(first, end\)"),
    (lambda: targets(), {"resize": {"ad": "bigger"}}, r"resize\['ad'\]: one or more of grow, truncate, pad, cut"),
    (lambda: targets(), {"resize": {"as": "grow"}}, r"resize names a table that isn't restored: 'as'"),
    (lambda: targets(), {"rename": {"old": "ad"}}, r"rename names a table that isn't stored: 'old'"),
    (lambda: targets(), {"rename": {"user": "ad"}}, r"'user' and 'ad' would both be 'ad'"),
    (lambda: targets(), {"tables": ["add"]}, r"no table matches 'add'"),
    (lambda: targets(), {"tables": "ad"}, r"use tables=\['ad'\]"),
]


@pytest.mark.parametrize(("into", "options", "says"), REFUSED)
def test_what_is_refused_changes_nothing(ck: Any, into: Any, options: Any, says: str) -> None:
    given = into()
    with pytest.raises(cnrfmt.UsageError, match=says):
        restore_version(ck, into=given, **options)
    assert untouched(given)


def test_all_differences_are_named_at_once(ck: Any) -> None:
    into = {"user": user(120), "new": np.full((2, 2), -7, F32)}
    with pytest.raises(cnrfmt.UsageError) as caught:
        restore_version(ck, into=into)
    text = str(caught.value)
    assert [word in text for word in ("'grow'", "'new'", "'ad'", "'visitor'", "strict=False")] == [True] * 5
    assert len(text.splitlines()) == 6
    assert untouched(into)
    # One that can't be allowed hides none that can.
    into = {"user": TableData(user().values.astype(int), columns=user().columns), "ad": np.full((50, DIM), -7, F32)}
    with pytest.raises(cnrfmt.UsageError, match=r"array is int64;(?s:.*)'ad': 'grow'(?s:.*)'visitor': None"):
        restore_version(ck, into=into)
    assert untouched(into)


def test_what_both_have_where_it_is_not_strict(ck: Any) -> None:
    into = {"user": user(120), "new": np.full((2, 2), -7, F32), "ad": matrix(30)}
    found = restore_version(ck, into=into, strict=False)
    assert (into["user"].values[:100] == USER).all()
    assert (into["user"].values[100:] == -7).all()
    assert (into["user"].columns["acc"][100:] == -7).all()
    assert (into["ad"] == AD[:30]).all()
    assert (into["new"] == -7).all()
    assert found.missing == ("table 'new'",)
    assert found.unexpected == ("table 'visitor'",)
    assert found.grown == ("table 'user': rows that aren't stored and kept their own values: 20",)
    assert found.cut == ("table 'ad': stored rows without a place in the target: 10",)
    assert str(found).splitlines()[-4:] == [
        "  not in the checkpoint, left as it was: table 'new'",
        "  not in the target, left out: table 'visitor'",
        f"  grown: {found.grown[0]}",
        f"  cut: {found.cut[0]}",
    ]
    assert list(found.tables) == ["user", "ad"]


def test_shapes_that_changed_are_asked_for(ck: Any) -> None:
    into = {"user": user(120, 10)}
    found = restore_version(ck, tables=["user"], into=into, resize={"user": ["grow", "pad"]})
    assert (into["user"].values[:100, :8] == USER).all()
    assert (into["user"].columns["momentum"][:100, :8] == MOMENTUM).all()
    assert (into["user"].values[100:] == -7).all()
    assert (into["user"].values[:, 8:] == -7).all()
    assert len(found.grown) == 2
    into = {"user": user(60, 5)}
    restore_version(ck, tables=["user"], into=into, resize={"user": {"truncate", "cut"}})
    assert (into["user"].values == USER[:60, :5]).all()
    assert (into["user"].columns["acc"] == ACC[:60]).all()


def test_renamed_remapped_and_converted(ck: Any) -> None:
    into: dict[str, Any] = {"person": user(30), "ad": np.full((ADS, DIM), -7, ml_dtypes.bfloat16)}
    remap = np.arange(30)[::-1].copy()
    remap[7] = -1
    found = restore_version(
        ck, tables=["user", "ad"], rename={"user": "person"}, remap={"person": remap}, into=into, convert=True
    )
    want = USER[remap]
    want[7] = -7
    assert (into["person"].values == want).all()
    assert (into["ad"] == AD.astype(ml_dtypes.bfloat16)).all()
    assert found.grown == ("table 'person': rows that kept their own values, as remap asks: 1",)
    fresh = restore_version(ck, tables=["user"], rename={"user": "person"}, remap={"person": remap})
    want[7] = 0
    assert fresh.tables["person"].values.tobytes() == want.tobytes()
    assert fresh.tables["person"].columns["acc"][7] == 0
    for wrong, says in (([100], "rows are 0 to 99"), ([-2], "found -2")):
        with pytest.raises(cnrfmt.MissingKeyError, match=says):
            restore_version(ck, tables=["user"], remap={"user": wrong})
    with pytest.raises(cnrfmt.UsageError, match="for dense tables alone"):
        restore_version(ck, tables=["visitor"], remap={"visitor": [5]})


def test_a_keyed_table_by_the_keys_of_its_target(ck: Any) -> None:
    into: dict[str, Any] = {"visitor": TableData(np.full((4, DIM), -7, F32), keys=[5, 1000, 70, 12])}
    options: dict[str, Any] = {"tables": ["visitor"], "into": into, "remap": {"visitor": "keys"}}
    found = restore_version(ck, resize={"visitor": ("grow", "truncate")}, **options)
    assert (into["visitor"].values[[0, 2, 3]] == VISITOR[[3, 0, 2]]).all()
    assert (into["visitor"].values[1] == -7).all()
    assert found.grown == ("table 'visitor': rows that aren't stored and kept their own values: 1",)
    assert found.cut == ("table 'visitor': stored rows without a place in the target: 1",)
    plain = {"visitor": np.full((2, DIM), -7, F32)}
    restore_version(ck, tables=["visitor"], into=plain, remap={"visitor": [70, 5]}, resize={"visitor": "truncate"})
    assert (plain["visitor"] == VISITOR[[0, 3]]).all()


def test_shards_know_which_rectangle_they_are(ck: Any) -> None:
    into = {"ad": Shard(np.full((10, DIM), -7, F32), rows=(30, 40), of_rows=40)}
    restore_version(ck, tables=["ad"], into=into)
    assert (into["ad"].values == AD[30:]).all()
    into = {"ad": Shard(np.full((20, 3), -7, F32), rows=(30, 50), of_rows=50, elements=(4, 7), of_dim=8)}
    with pytest.raises(cnrfmt.UsageError, match="rows of the target that aren't stored: 10"):
        restore_version(ck, tables=["ad"], into=into)
    restore_version(ck, tables=["ad"], into=into, resize={"ad": "grow"})
    assert (into["ad"].values[:10] == AD[30:, 4:7]).all()
    assert (into["ad"].values[10:] == -7).all()
    into = {"ad": Shard(np.full((10, 5), -7, F32), rows=(0, 10), of_rows=20, elements=(5, 10), of_dim=10)}
    with pytest.raises(cnrfmt.UsageError, match=r"'pad'(?s:.*)|'truncate'"):
        restore_version(ck, tables=["ad"], into=into)
    restore_version(ck, tables=["ad"], into=into, resize={"ad": ("truncate", "pad")})
    assert (into["ad"].values[:, :3] == AD[:10, 5:]).all()
    assert (into["ad"].values[:, 3:] == -7).all()
    # Two ranks share the elements of the users, and the first has what there is once for a row.
    momentum = np.full((USERS, 4), -7, F32)
    table = TableData(user(dim=4).values, columns={"acc": np.full(USERS, -7, F32), "momentum": momentum})
    for elements, values, columns in ((0, 4), table, None), ((4, 8), table.values.copy(), {"momentum": momentum}):
        shard = Shard(values, columns, elements=elements, of_dim=DIM)
        restore_version(ck, tables=["user"], into={"user": shard})
        assert (Target.of(shard).columns["weight"] == USER[:, slice(*elements)]).all()
        assert (momentum == MOMENTUM[:, slice(*elements)]).all()
    assert (table.columns["acc"] == ACC).all()
    keys = Shard(TableData(np.full((2, DIM), -7, F32), keys=[12, 70]))
    options: dict[str, Any] = {"remap": {"visitor": "keys"}, "resize": {"visitor": "truncate"}}
    restore_version(ck, tables=["visitor"], into={"visitor": keys}, **options)
    assert (keys.values.values == VISITOR[[2, 0]]).all()


def test_targets_that_share_memory_are_refused(ck: Any) -> None:
    both = np.full((ADS + USERS, DIM), -7, F32)
    into = {"user": both[:USERS], "ad": both[USERS - 1 : -1], "visitor": None}
    with pytest.raises(cnrfmt.UsageError, match=r"'weight' and table 'ad', column 'weight' .*same mem"):
        restore_version(ck, into=into, columns=False)
    assert (both == -7).all()
    into["ad"] = both[USERS:]
    restore_version(ck, into=into, columns=False)
    assert (both == np.concatenate([USER, AD])).all()


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_damage_says_what_was_filled(tmp_path: Path, backend: Any) -> None:
    path = tmp_path / "run7"
    tables = {name: matrix(4000, seed=seed) for seed, name in enumerate(("user", "ad", "last"))}
    cnrfmt.save(path, tables)
    with cnrfmt.open(path) as ck:
        segment = next(iter(ck.view.segments.values()))
        part = segment.toc.by_table[ck["ad"].schema.table_id].parts[0]
        offset = segment.toc.sections[part.section][0]
        file = path / "segments" / f"{segment.entry.segment.hex()}.cnrs"
    data = bytearray(file.read_bytes())
    data[offset + 5] ^= 1
    file.write_bytes(data)
    into: dict[str, Any] = {name: np.full((4000, DIM), -7, F32) for name in tables}
    with cnrfmt.open(path, backend=backend) as ck, pytest.raises(cnrfmt.DamagedError) as caught:
        restore_version(ck, into=into)
    assert caught.value.rule == "piece-digest"
    says = "filled: 'user' weight; in part: 'ad' weight; as they were: 'last' weight"
    assert says in str(caught.value)
    assert (into["user"] == tables["user"]).all()
    assert (into["last"] == -7).all()
    # What goes into new arrays is read first.
    into = {"user": np.full((4000, DIM), -7, F32), "ad": None, "last": np.full((4000, DIM), -7, F32)}
    with cnrfmt.open(path, backend=backend) as ck, pytest.raises(cnrfmt.DamagedError, match="piece-digest"):
        restore_version(ck, into=into)
    assert untouched(into)
    with pytest.raises(cnrfmt.DamagedError):
        cnrfmt.open(path, backend=backend, verify="all")


def test_memory_is_refused_before_anything_is_filled(path: Path) -> None:
    into = targets()
    with cnrfmt.open(path, max_bytes=2_000_000) as ck:
        assert isinstance(restore_version(ck, into=into), Restored)
    cnrfmt.append(path, {"big": TableData(np.empty((0, 1000), F32))})
    cnrfmt.append(path, {"big": Rows([], rows=1000)})
    into = targets(big=None)
    with cnrfmt.open(path, max_bytes=2_000_000) as ck, pytest.raises(cnrfmt.TooLargeError, match="big"):
        restore_version(ck, into=into)
    assert untouched(into)


def test_what_fails_otherwise_says_what_was_filled(ck: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Table.read_within

    def failing(self: Table, *given: Any, column: str = "weight", **options: Any) -> Any:
        if column == "acc":
            raise cnrfmt.StorageError(errno.EIO, "the disk is gone", "run7")
        return read(self, *given, column=column, **options)

    monkeypatch.setattr(Table, "read_within", failing)
    with pytest.raises(cnrfmt.StorageError) as caught:
        restore_version(ck, tables=["user"], into={"user": user()})
    assert "filled: 'user' weight; in part: 'user' acc; as they were: 'user' momentum" in caught.value.__notes__[0]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[cnrfmt.Checkpoint, Any]]:
    """Tables of some shapes, open, with what they hold."""
    found = []
    for rows, dim, bits in ((1, 1, 8), (30, 9, 4), (17, 4, 8)):
        path = tmp_path_factory.mktemp("any") / "model.cnr"
        values = matrix(rows, dim, seed=rows)
        cnrfmt.save(path, {"t": values}, quantize=Quantize(bits=bits))
        cnrfmt.append(path, {"t": Rows([0], values[:1] + 1)})
        found.append((cnrfmt.open(path, threads=1), cnrfmt.load(path)["t"]))
    return found


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_any_rows_into_any_shape(stored: list[tuple[cnrfmt.Checkpoint, Any]], data: st.DataObject) -> None:
    """Against plain indexing, in pieces of any size."""
    ck, values = data.draw(st.sampled_from(stored))
    rows, dim = values.shape
    count, width = data.draw(st.integers(0, 40)), data.draw(st.integers(1, 12))
    target = np.full((count, width), -7, F32)
    want = target.copy()
    ids = data.draw(st.lists(st.integers(-1, rows - 1), min_size=count, max_size=count))
    words = ["grow", "truncate", "pad", "cut"]
    taken = min(dim, width)
    options: dict[str, Any] = {"into": {"t": target}, "resize": {"t": words}}
    if data.draw(st.booleans()):
        options["remap"] = {"t": np.array(ids, np.int64)}
        for i, row in enumerate(ids):
            if row >= 0:
                want[i, :taken] = values[row, :taken]
    else:
        a, b, step = (data.draw(st.integers(low, 35)) for low in (0, 0, 1))
        chosen = values[a:b:step][:count]
        options["rows"] = {"t": slice(a, b, step)}
        want[: len(chosen), :taken] = chosen[:, :taken]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restoring, "_CHUNK", data.draw(st.sampled_from([1, 100, 1 << 20])))
        restore_version(ck, **options)
    assert target.tobytes() == want.tobytes()
