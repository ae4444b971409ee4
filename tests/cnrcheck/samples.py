"""Valid containers that use everything that the format has, with the values that they must read as."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from tests.cnrcheck import builder as b
from tests.cnrcheck import encodings as e
from tools import cnrcheck

Model = dict[tuple[str, str], dict[int, np.ndarray]]


def smooth(rows: int, dim: int, phase: float) -> np.ndarray:
    """Return rows that look like trained ones: smooth, of mixed size, a few of them flat."""
    grid = np.sin(np.outer(np.arange(1, rows + 1), np.arange(1, dim + 1)) * 0.37 + phase)
    grid *= 1 + np.arange(rows)[:, None] % 5
    grid[::11] = 0.25
    return grid.astype(np.float32)


def user_schema(rows: int) -> dict[str, Any]:
    columns = [("weight", "float32", [6], "0000803f"), ("accumulator", "float64", [], "00" * 8)]
    return b.schema(1, "user", rows, 6, *columns)


def item_schema() -> dict[str, Any]:
    return b.schema(2, "item", None, 3, ("weight", "bfloat16", [3], "803f"))


def small_schema() -> dict[str, Any]:
    columns = [("weight", "float8_e4m3fn", [4], "38"), ("other", "float8_e5m2", [4], "00")]
    return b.schema(3, "small", 64, 4, *columns)


# By column: the encoding of a table of 9 rows and 19 elements; `state` has one value per row.
CODED = {
    "weight": e.rowwise(5, "packed", "bfloat16", "float32", 8),
    "biasless": e.rowwise(3, "packed", "float32", None),
    "head": e.rowwise(4, "head", "float16", "float16"),
    "own": {"name": "codebook", "bits": 3, "values": "float16", "block": None},
    "shared": {"name": "codebook", "bits": 2, "values": "float32", "block": 4},
    "cast": {"name": "cast", "dtype": "float16"},
    "state": e.log(12, 0x2F800000, 15),
}


def coded_schema() -> dict[str, Any]:
    columns = [(name, "float32", [] if name == "state" else [19], "00000000") for name in CODED]
    return b.schema(4, "coded", 9, 19, *columns)


def coded(seg: b.Segment, model: Model) -> None:
    """Add a table with a column under each encoding."""
    table = seg.table(4, 9)
    rows = seg.row_set(table, "range", range(9))
    for column, encoding in CODED.items():
        n = 1 if column == "state" else 19
        made = e.made(encoding, 9, n)
        seg.part(table, column, rows, (0, n), made.raw, encoding, codebooks=made.codebooks)
        model["coded", column] = dict(enumerate(made.values))


CODES = {
    "raw": [-(2**63), -5, 900, 2**63 - 1],
    "packed": [1000 + 4 * k + k * k % 7 for k in range(300)],
    "runs": [*range(5000, 5040), *range(6000, 6007)],
    "bitmap": [10000 + 2 * k + (k % 3 == 0) for k in range(700)],
}


def baseline(model: Model) -> b.Segment:
    seg = b.Segment(11, None, 101)
    user = seg.table(1, 200)
    first = seg.row_set(user, "range", range(150))
    rest = seg.row_set(user, "range", range(150, 200))
    every = seg.row_set(user, "range", range(200))
    odd = seg.row_set(user, "runs", [3, 4, 77])
    values = smooth(150, 6, 0.1)
    exact = values[[3, 4, 77]]
    exact[0, 0], exact[1, 2] = math.nan, math.inf
    raw, decoded = b.rowwise(values, 4)
    size = len(raw) // 150
    # The slots of exceptions are zero bytes.
    slots = bytearray(raw)
    for row in (3, 4, 77):
        slots[row * size : (row + 1) * size] = bytes(size)
    decoded[[3, 4, 77]] = exact
    main = seg.part(user, "weight", first, (0, 6), bytes(slots), 4)
    seg.part(user, "weight", odd, (0, 6), exact.tobytes(), "float32", main)
    left, left_decoded = b.rowwise(smooth(50, 3, 0.7), 2)
    right, right_decoded = b.rowwise(smooth(50, 3, 0.9), 8)
    seg.part(user, "weight", rest, (0, 3), left, 2)
    seg.part(user, "weight", rest, (3, 6), right, 8)
    sums = np.arange(200) / 7
    seg.part(user, "accumulator", every, (0, 1), sums.tobytes(), "float64")
    whole = np.concatenate((decoded, np.hstack((left_decoded, right_decoded))))
    model["user", "weight"] = dict(enumerate(whole))
    model["user", "accumulator"] = {k: sums[k : k + 1] for k in range(200)}
    item = seg.table(2, None)
    model["item", "weight"] = {}
    for number, (code, ids) in enumerate(CODES.items()):
        rows = smooth(len(ids), 3, number).astype(ml_dtypes.bfloat16)
        seg.part(item, "weight", seg.row_set(item, code, ids), (0, 3), rows.tobytes(), "bfloat16")
        model["item", "weight"].update(zip(ids, rows.astype(np.float32), strict=True))
    small = seg.table(3, 64)
    codes = np.arange(256, dtype=np.uint8).reshape(64, 4)
    rows = seg.row_set(small, "range", range(64))
    seg.part(small, "weight", rows, (0, 4), codes.tobytes(), "float8_e4m3fn")
    seg.part(small, "other", rows, (0, 4), codes[::-1].tobytes(), "float8_e5m2")
    for column, kind, own in (
        ("weight", ml_dtypes.float8_e4m3fn, codes),
        ("other", ml_dtypes.float8_e5m2, codes[::-1].copy()),
    ):
        decoded = own.view(kind).astype(np.float32)
        model["small", column] = dict(enumerate(decoded))
    coded(seg, model)
    seg.dense = [
        {"name": "mlp", "kind": "array", "dtype": "float32", "shape": [2, 3], "section": seg.section(bytes(24))},
        {"name": "mask", "kind": "array", "dtype": "bool", "shape": [2], "section": seg.section(b"\0\1")},
        {"name": "none", "kind": "array", "dtype": "complex64", "shape": [0, 3], "section": None},
        {"name": "reader", "kind": "json", "section": seg.section(b'{"epoch": 1.5, "tags": ["\xc3\xa9"]}')},
        {"name": "random", "kind": "bytes", "section": seg.section(b"state")},
        {"name": "empty", "kind": "bytes", "section": None},
    ]
    return seg


def deltas(model: Model) -> tuple[b.Segment, b.Segment]:
    """Return one step by two writers: growth, changed rows and elements, tombstones, new keys."""
    one, two = b.Segment(12, 101, 102), b.Segment(13, 101, 102)
    user = one.table(1, 210)
    ids = [*range(0, 200, 9), 203]
    rows = one.row_set(user, "packed", ids)
    left = smooth(len(ids), 2, 2.2)
    one.part(user, "weight", rows, (0, 2), left.tobytes(), "float32")
    user = two.table(1, 210)
    rows = two.row_set(user, "packed", ids)
    right = smooth(len(ids), 1, 2.5)
    two.part(user, "weight", rows, (5, 6), right.tobytes(), "float32")
    weight = model["user", "weight"]
    for row in range(200, 210):
        weight[row] = np.ones(6, np.float32)
        model["user", "accumulator"][row] = np.zeros(1)
    for row, new_left, new_right in zip(ids, left, right, strict=True):
        weight[row] = np.concatenate((new_left, weight[row][2:5], new_right))
    item = two.table(2, None)
    gone, new = CODES["packed"][10:200], [-5, 777, CODES["runs"][0]]
    rows = smooth(3, 3, 4).astype(ml_dtypes.bfloat16)
    item["deleted"] = two.row_set(item, "packed", gone)
    two.part(item, "weight", two.row_set(item, "raw", new), (0, 3), rows.tobytes(), "bfloat16")
    for key in gone:
        del model["item", "weight"][key]
    model["item", "weight"].update(zip(new, rows.astype(np.float32), strict=True))
    return one, two


def shrink(model: Model) -> b.Segment:
    """Return a step that cuts `user` down to 190 rows; the next one grows it again."""
    seg = b.Segment(14, 102, 103)
    seg.table(1, 190)
    for column in ("weight", "accumulator"):
        for row in range(190, 210):
            del model["user", column][row]
    return seg


def grow(model: Model) -> b.Segment:
    """Return a step that brings rows and keys back, which read as the fill but where written."""
    seg = b.Segment(15, 103, 104)
    user = seg.table(1, 205)
    seg.part(user, "accumulator", seg.row_set(user, "bitmap", [201, 202]), (0, 1), b"\1" * 16, "float64")
    for row in range(190, 205):
        model["user", "weight"][row] = np.ones(6, np.float32)
        model["user", "accumulator"][row] = np.zeros(1)
    for row in (201, 202):
        model["user", "accumulator"][row] = np.frombuffer(b"\1" * 8)
    item, back = seg.table(2, None), CODES["packed"][50]
    part = np.array([[1.5, 2.5]]).astype(ml_dtypes.bfloat16)
    seg.part(item, "weight", seg.row_set(item, "runs", [back]), (1, 3), part.tobytes(), "bfloat16")
    model["item", "weight"][back] = np.array([1, 1.5, 2.5], np.float32)
    return seg


def versions() -> tuple[list[b.Version], list[Model]]:
    """Return four versions; the last two have dropped `small`."""
    model: Model = {}
    models, chain, made = [], [], []
    for number, step in enumerate((baseline, deltas, shrink, grow)):
        segs = step(model)
        chain += segs if isinstance(segs, tuple) else [segs]
        tables = [user_schema((200, 210, 190, 205)[number]), item_schema(), coded_schema()]
        if number < 2:
            tables.append(small_schema())
        made.append(b.Version(tables, list(chain), dense=11, attach=number != 1))
        models.append({key: dict(rows) for key, rows in model.items()})
    return made, models


def tiny_segment() -> b.Segment:
    """Return a small baseline: a dense table in 4 bits with an exception part, and a keyed one."""
    seg = b.Segment(21, None, 201)
    table = seg.table(5, 40)
    rows = seg.row_set(table, "range", range(40))
    values = smooth(40, 3, 0.3)
    raw = b.rowwise(values, 4)[0]
    size = len(raw) // 40
    main = seg.part(table, "weight", rows, (0, 3), bytes(size) + raw[size:], 4)
    values[0, 0] = math.nan
    odd = seg.row_set(table, "raw", [0])
    seg.part(table, "weight", odd, (0, 3), values[:1].tobytes(), "float32", main)
    keyed = seg.table(6, None)
    raw = smooth(4, 2, 1).tobytes()
    seg.part(keyed, "weight", seg.row_set(keyed, "packed", [5, 9, 1000, 1001]), (0, 2), raw, "float32")
    keyed["deleted"] = seg.row_set(keyed, "runs", [7])
    seg.dense = [
        {"name": "note", "kind": "json", "section": seg.section(b'{"lr": 0.1}')},
        {"name": "mask", "kind": "array", "dtype": "bool", "shape": [2], "section": seg.section(b"\0\1")},
    ]
    tiny_coded(seg)
    return seg


def tiny_coded(seg: b.Segment) -> None:
    """Add a table of 5 rows: shared codebooks, rows with parameters in front, logarithmic codes; row 2 is exact."""
    table = seg.table(7, 5)
    rows, exact = seg.row_set(table, "range", range(5)), seg.row_set(table, "range", [2])
    for column, name, n in (("weight", "shared", 3), ("head", "head", 3), ("state", "state", 1)):
        made = e.made(CODED[name], 5, n)
        raw, size = bytearray(made.raw), len(made.raw) // 5
        if column == "state":
            # 12 bits of row 2, the lower ones of a pair of rows.
            raw[3], raw[4] = 0, raw[4] & 0xF0
        else:
            raw[2 * size : 3 * size] = bytes(size)
        main = seg.part(table, column, rows, (0, n), bytes(raw), CODED[name], codebooks=made.codebooks)
        seg.part(table, column, exact, (0, n), bytes(4 * n), "float32", main)


def tiny_version(*segs: b.Segment) -> b.Version:
    tables = [
        b.schema(5, "dense", 40, 3, ("weight", "float32", [3], "00000000")),
        b.schema(6, "keyed", None, 2, ("weight", "float32", [2], "00000000")),
        b.schema(7, "coded", 5, 3, *(
            (name, "float32", shape, "00000000") for name, shape in (("weight", [3]), ("head", [3]), ("state", []))
        )),
    ]  # fmt: skip
    return b.Version(tables, list(segs) or [tiny_segment()], dense=21)


def tiny_delta() -> b.Segment:
    seg = b.Segment(22, 201, 202)
    keyed = seg.table(6, None)
    keyed["deleted"] = seg.row_set(keyed, "runs", [9])
    return seg


def errors(findings: list[cnrcheck.Finding]) -> set[str]:
    return {finding.error for finding in findings if finding.severity != "note"}
