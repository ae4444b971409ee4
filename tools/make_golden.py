"""Make the golden containers of a format version: tests/golden/MINOR.

They are made by hand, once, when a minor version of the format is released, and never again: every later release is
tested to read what this one wrote. So an existing folder is never overwritten.

    python tools/make_golden.py --minor 1.0

Each container is written by the library, single file and directory alike, from data with structure (ramps, waves,
special values) that no run of chance changes. What it must say stands beside it as JSON: the exact bits that went in
or, for quantised rows, what the formulas of the specification make of them; it isn't read back from the container.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import cnrfmt
from cnrfmt import CheckpointManager, Deleted, Dropped, Grid, Quantize, Rows, TableData
from cnrfmt.format.blocks import MAJOR, MINOR
from cnrfmt.testing import Model

ROOT = Path(__file__).resolve().parent.parent / "tests" / "golden"
MOST_BYTES = 64 << 10
F32 = np.float32

Json = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """One commit: what is called with which tables, and which of them are stored in how many bits.

    Tables in `exact` are quantised so too, but made of rows that their encoding holds exactly.
    """

    call: Callable[..., int]
    tables: dict[str, Any]
    bits: Mapping[str, int] = field(default_factory=dict)
    options: Json = field(default_factory=dict)
    exact: Mapping[str, Quantize] = field(default_factory=dict)
    only_directory: bool = False


# --- The data ------------------------------------------------------------------------------------


def wave(rows: int, dim: int, phase: float = 0.0) -> Any:
    """Rows of which no two are alike, as float32; special rows are put in by hand."""
    grid = np.arange(rows * dim, dtype=np.float64).reshape(rows, dim)
    return (np.sin(grid * 0.37 + phase) * (1 + grid / 50)).astype(F32)


def bits_of(dtype: Any, rows: int, dim: int) -> Any:
    """Values of which the bit patterns are a ramp with both ends: NaNs with payloads, -0.0 and denormals among them."""
    kind = np.dtype(dtype)
    unsigned = np.dtype(f"u{kind.itemsize}")
    top = 1 << 8 * kind.itemsize
    step = top // (rows * dim) + 1
    ramp = [(k * step + k) % top for k in range(rows * dim)]
    ramp[-2:] = [top - 1, top >> 1]
    return np.array(ramp, unsigned).reshape(rows, dim).view(kind)


def tiny(_: str) -> Iterator[Step]:
    """One table with one quantised part and its exception: small enough to try each bit within a minute."""
    weight = wave(5, 3)
    weight[3, 1] = np.nan
    yield Step(cnrfmt.save, {"item": weight}, {"item": 8}, {"step": 0})


DTYPES = (
    *(np.float64, np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
    *(np.int64, np.int32, np.int16, np.int8, np.uint64, np.uint32, np.uint16, np.uint8),
)


def types(_: str) -> Iterator[Step]:
    """Every data type of columns, of both widths, and every kind of dense entry."""
    columns = {f"c{n}": bits_of(d, 5, 2) if n % 2 else bits_of(d, 5, 1)[:, 0] for n, d in enumerate(DTYPES)}
    fill = {"weight": 0.5, "c4": 1.5, "c6": -(2**62), "c13": 255}
    dense = {
        "arrays": np.arange(6, dtype="<i8").reshape(1, 2, 3),
        "flags": np.array([True, False, True]),
        "waves": np.exp(1j * np.arange(3)).astype(np.complex64),
        "wide": np.array(1 - 2j),
        "half": np.array([-0.0, 1.5], ml_dtypes.bfloat16),
        "none": np.empty((0, 3), np.uint8),
        "text": {"epoch": 3, "shards": [1, 2.5, None, "é"]},
        "blob": b"\x00\xff raw",
        "void": b"",
    }
    table = TableData(wave(5, 2), columns=columns, fill=fill)
    yield Step(cnrfmt.save, {"all": table}, options={"dense": dense, "metadata": {"made": "by hand"}})
    some = {name: values[[4, 0]] for name, values in columns.items() if name not in ("c1", "c8")}
    yield Step(cnrfmt.append, {"all": Rows([0, 3], None, columns=some, rows=9)}, options={"step": 7})


def quantised(_: str) -> Iterator[Step]:
    """8, 4 and 2 bits, widths that leave padding bits, exceptions and optimizer columns, in baseline and deltas."""
    eight, four, two = wave(6, 5), wave(7, 3, 1), wave(4, 5, 2)
    eight[2, 0], eight[5] = np.inf, 7.25
    four[1, 2], four[6] = np.array(0x7FC00123, np.uint32).view(F32), 70000
    two[0] = -0.0
    bits = {"eight": 8, "four": 4, "two": 2}
    baseline = {
        "eight": TableData(eight, columns={"accumulator": np.arange(6, dtype=F32)}),
        "four": four,
        "two": TableData(two, columns={"momentum": wave(4, 5, 3)}, fill=-1.0),
    }
    yield Step(cnrfmt.save, baseline, bits, {"step": 1})
    change = wave(3, 3, 4)
    change[0, 0] = -np.inf
    delta = {
        "eight": Rows([5, 0], wave(2, 5, 5), columns={"accumulator": np.array([9, 8], F32)}),
        "four": Rows([0, 1, 5], change),
        "two": Rows([1, 6], np.full((2, 5), np.nan, F32), rows=8),
    }
    yield Step(cnrfmt.append, delta, bits, {"step": 2})


def keyed(_: str) -> Iterator[Step]:
    """Keyed tables under each row-index code, with deleted keys, and some that come back."""
    k = np.arange(300)
    spread = k[:200] * 1000 + (k[:200] * 37) % 500 - 50000
    keys = {
        "bitmap": np.arange(600)[(np.arange(600) ** 2 * 31) % 97 < 50],
        "runs": np.concatenate((np.arange(100), np.arange(5000, 5100))),
        "packed": spread,
        "raw": np.array([2**63 - 1, -(2**63), 5]),
    }
    tables = {}
    for number, (name, listed) in enumerate(keys.items()):
        order = np.argsort((np.arange(len(listed)) * 101) % 1009, kind="stable")
        tables[name] = TableData(wave(len(listed), 1 + number % 2, number), keys=listed[order])
    exact = wave(200, 2, 9)
    exact[17] = np.nan
    tables["packed"] = TableData(exact, keys=spread)
    bits = {"packed": 4}
    yield Step(cnrfmt.save, tables, bits)
    delta = {
        "bitmap": Deleted(keys["bitmap"][::3]),
        "runs": (Rows([50, 7], wave(2, 2, 5)), Deleted([0, 99, 5000, 777])),
        "packed": (Rows([-7, 10**12], wave(2, 2, 6)), Deleted(spread[5:9])),
        "raw": Deleted([5, -(2**63)]),
    }
    yield Step(cnrfmt.append, delta, bits)
    back = {"raw": Rows([5], wave(1, 2, 7)), "packed": Rows(spread[6:8], wave(2, 2, 8))}
    yield Step(cnrfmt.append, back, bits, {"step": -3})


def history(_: str) -> Iterator[Step]:
    """Growth, shrinking, a dropped table whose name comes back, a later column, versions without content."""
    first = {"grow": wave(4, 2), "shrink": TableData(wave(6, 2, 1), fill=1.5), "drop": wave(3, 2, 2)}
    options = {"dense": {"bias": np.arange(3.0), "reader": {"order": 17}}, "metadata": {"run": 1}, "step": 0}
    yield Step(cnrfmt.save, first, options=options)
    second = {
        "grow": Rows([6, 1], wave(2, 2, 3), rows=7),
        "shrink": Rows([0], wave(1, 2, 4), rows=4),
        "drop": Dropped(),
    }
    yield Step(cnrfmt.append, second, options={"step": 10})
    third = {
        "grow": Rows([2], None, columns={"age": np.array([4], np.int32)}),
        "shrink": Rows([5], wave(1, 2, 5), rows=6),
        "drop": TableData(wave(2, 3, 6), keys=[8, -8]),
    }
    yield Step(cnrfmt.append, third, {"drop": 2}, {"quantize": {"drop": Quantize(2)}, "step": 20, "dense": {"b": b"2"}})
    yield Step(cnrfmt.append, {}, options={"metadata": {"run": 2, "note": ["kept", None]}})
    # In a directory a new baseline leaves the older versions readable; a single file would start anew.
    yield Step(cnrfmt.save, {"grow": wave(3, 2, 7)}, {"grow": 4}, {"step": 30}, only_directory=True)


EXACT = {
    **{f"head {bits}": Quantize(bits, layout="head") for bits in (8, 4, 2)},
    "packed": Quantize(8, layout="packed"),
    "half": Quantize(7, params="float16"),
    "brain": Quantize(5, params="bfloat16"),
    "groups": Quantize(3, group=8, params="float32"),
    "adaptive": Quantize(4, method="adaptive", num_bins=10, ratio=0.25),
    "lsq": Quantize(3, method="lsq", starts=4, never_worse=True),
    "sides": Quantize(4, method="symmetric", layout="packed"),
    "wide sides": Quantize(6, method="symmetric", group=16),
    "tail sides": Quantize(2, method="symmetric"),
    "books": Quantize(2, method="kmeans"),
    "shared": Quantize(3, method="kmeans", block=2, params="float32"),
}
"""A recipe for each table of `encodings`; its weights' encoding alone says how they are stored."""


STATES: dict[Any, list[float]] = {
    "log8": [1.0, 2.0, 0.0, -1.0, 4.0],
    "log12": [0.5, 3.0, 1e-30, 0.0, 8.0],
    "log16": [1.5, np.nan, 2.0, 6.0, 0.0],
    "bfloat16": [1.5, -2.0, 0.0, np.inf, 0.0078125],
}
"""The values of a column of one value per row under each of its encodings."""


def on_grid(rows: int, dim: int, quantize: Quantize) -> Any:
    """Rows that the encoding of so many bits holds exactly: each eight elements span all its codes."""
    assert isinstance(quantize.bits, int)
    top = (1 << quantize.bits) - 1
    code = np.arange(rows * dim, dtype=np.float64).reshape(rows, dim) * 7 % (top + 1)
    code[:, ::8], code[:, 7::8], code[:, -1] = 0, top, top
    scale = 2.0 ** (np.arange(rows) % 5 - 3)[:, None]
    return ((2 * code - top) * scale).astype(F32)


def encodings(_: str) -> Iterator[Step]:
    """Every encoding, with exceptions: rows that it holds exactly, whatever chose the codes."""
    tables: dict[str, Any] = {}
    for number, (name, quantize) in enumerate(EXACT.items()):
        weight = on_grid(5, (5, 20, 17)[number % 3], quantize)
        if quantize.method == "kmeans":
            weight = np.array([-2.0, -0.5, 0.25, 1.0], F32)[np.arange(35).reshape(5, 7) ** 2 % 4]
        weight[3, 1] = (np.nan, np.inf)[number % 2]
        tables[name] = TableData(weight)
    exact = dict(EXACT)
    for name, values in STATES.items():
        tables[name] = TableData(np.zeros((5, 1), F32), columns={"state": np.array(values, F32)})
        exact[name] = Quantize(8, one_valued=name)
    yield Step(cnrfmt.save, tables, exact=exact, options={"step": 1})
    changed = ("head 4", "groups", "sides", "shared", "log12", "bfloat16")
    change = {n: Rows([4, 0], tables[n].values[[1, 2]], columns=_some(tables[n])) for n in changed}
    exact = {name: exact[name] for name in changed}
    yield Step(cnrfmt.append, change, exact=exact, options={"step": 2})


def _some(data: TableData) -> Any:
    return {name: values[[2, 1]] for name, values in data.columns.items()} or None


FINENESS = 2.0**-6
GRIDS = {
    "fixed": Grid(step=FINENESS, by=None, payload="fixed"),
    "packed": Grid(step=FINENESS, by=None, payload="packed", one_valued="log16"),
    "rans": Grid(step=FINENESS, by=None, payload="rans"),
}
"""The grid of each table of `grids`. All its steps are equal, so that it holds multiples of them exactly."""


def in_steps(rows: int, phase: float) -> Any:
    """Rows of 5 multiples of the step; integers have no -0.0."""
    return (np.rint(wave(rows, 5, phase) / FINENESS) * FINENESS + 0.0).astype(F32)


def trained(path: Path, tables: Json, *, threads: int, step: int) -> int:
    """A checkpoint of a training run that goes on with these changes: differences from what is stored."""
    # Nothing but the deltas themselves: no version with a merged chain.
    options: Json = {"policy": "consecutive", "merge_share": None, "flush_on_sigterm": False}
    with CheckpointManager(path, encoding=GRIDS, threads=threads, **options) as manager:
        restored = manager.restore()
        assert restored is not None
        live = restored.tables
        for name, change in tables.items():
            manager.track(name, change.ids)
            live[name].values[change.ids] = change.values
            for column, values in change.columns.items():
                live[name].columns[column][change.ids] = values
        version = manager.save(step, live, kind="delta").wait()
    assert version is not None
    return version


def grids(_: str) -> Iterator[Step]:
    """Integers on a grid under each payload, logarithmic codes, differences of both, and exceptions."""
    tables = {}
    for number, name in enumerate(GRIDS):
        weight, state = in_steps(9, number), np.array([1.0, 1.5, 3.0, 0.75, 0.0, 2.0, 1.125, 5.0, 1.0], F32)
        weight[3, 1], state[2] = np.nan, -1.0
        tables[name] = TableData(weight, columns={"accumulator": state})
    yield Step(cnrfmt.save, tables, options={"quantize": GRIDS, "step": 0})
    for turn in (1, 2):
        change = {}
        for number, name in enumerate(GRIDS):
            # The second time, exceptions become integers again, and one whose difference is too large is among them.
            ids = np.array([[0, 2, 3, 5, 8], [1, 2, 3, 5, 6]][turn - 1])
            weight, state = in_steps(5, number + turn / 3), np.array([1.25, 2.5, 1.5, 4.0, 8.0], F32)
            weight[3, 0] = (np.inf, 65536.0)[turn - 1]
            state[1] = (-2.0, 3.0)[turn - 1]
            change[name] = Rows(ids, weight, columns={"accumulator": state})
        yield Step(trained, change, options={"step": turn})


SCRIPTS: tuple[Callable[[str], Iterator[Step]], ...] = (tiny, types, quantised, keyed, history, encodings, grids)


# --- What the containers must say ----------------------------------------------------------------


def stored_rows(values: Any, bits: int) -> Any:
    """What section 6 of the specification makes of float32 rows, row by row; what it can't hold stays as it is."""
    out = np.array(values, F32)
    top = F32((1 << bits) - 1)
    for row in out:
        if not np.isfinite(row).all():
            continue
        low, high = row.min(), row.max()
        if bits == 8:
            bias, scale, inverse = low, (high - low) / top, top / (high - low + F32(1e-8))
        else:
            with np.errstate(over="ignore", divide="ignore"):
                bias = F32(np.float16(low))
                scale = F32(np.float16((high - bias) / top))
                if scale == 0 or np.isinf(F32(1) / scale):
                    scale = F32(1)
                inverse = F32(1) / scale
            if not (np.isfinite(bias) and np.isfinite(scale)):
                continue
        codes = np.clip(np.rint((row - bias) * inverse), F32(0), top)
        product = codes * scale
        row[:] = product + bias
    return out


def as_stored(change: Any, bits: int) -> Any:
    """The same change with what a reader gets for its weights."""
    if isinstance(change, tuple):
        return tuple(as_stored(one, bits) for one in change)
    if isinstance(change, Rows | TableData):
        return change if change.values is None else replace(change, values=stored_rows(change.values, bits))
    return stored_rows(change, bits) if isinstance(change, np.ndarray) else change


def plain_array(values: Any) -> Json:
    """An array as exact bits."""
    array = np.ascontiguousarray(values)
    raw = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return {"dtype": array.dtype.name, "shape": list(np.shape(values)), "hex": raw.hex()}


def plain_dense(dense: Json) -> Json:
    """The dense state as JSON."""
    out: Json = {}
    for name, value in dense.items():
        if isinstance(value, np.ndarray):
            out[name] = {"kind": "array", **plain_array(value)}
        elif isinstance(value, bytes):
            out[name] = {"kind": "bytes", "hex": value.hex()}
        else:
            out[name] = {"kind": "json", "value": value}
    return out


def plain_tables(model: Model, version: int) -> Json:
    """The tables of a version as JSON; keys are decimal strings."""
    return {
        name: {
            "ids": "dense" if table.rows is not None else [str(key) for key in table.ids],
            "columns": {column: plain_array(table.array(column)) for column in table.dtypes},
        }
        for name, table in model.versions[version].items()
    }


def make(path: Path, script: Callable[[str], Iterator[Step]]) -> Json:
    """Write a container; what each of its versions must say."""
    model, versions = Model(), {}
    dense: Json = {}
    metadata: Json = {}
    kind = "file" if path.suffix == ".cnr" else "directory"
    for step in script(kind):
        if step.only_directory and kind == "file":
            continue
        options = dict(step.options)
        quantize = {name: Quantize(bits) for name, bits in step.bits.items()} | dict(step.exact)
        baseline = step.call is cnrfmt.save
        if baseline and quantize:
            options["quantize"] = quantize
        version = step.call(path, step.tables, threads=1, **options)
        changes = {n: as_stored(c, step.bits[n]) if n in step.bits else c for n, c in step.tables.items()}
        (model.save if baseline else model.append)(version, changes)
        dense = options.get("dense", {} if baseline else dense)
        metadata = options.get("metadata", {} if baseline else metadata)
        versions[str(version)] = {
            **{"step": options.get("step"), "metadata": metadata, "dense": plain_dense(dense)},
            "tables": plain_tables(model, version),
        }
    return versions


def check(path: Path) -> None:
    """Raise unless the container is small, and sound to the library."""
    size = sum(p.stat().st_size for p in ([path] if path.is_file() else path.rglob("*")) if p.is_file())
    assert size <= MOST_BYTES, f"{path.name} has {size} bytes"
    findings = cnrfmt.verify(path).findings
    assert not findings, findings


def main(arguments: list[str] | None = None) -> int:
    """Run the program; its exit status."""
    parser = argparse.ArgumentParser(description="Make the golden containers of a format version, once.")
    parser.add_argument("--minor", required=True, help="the version that this checkout writes, such as 1.0")
    parser.add_argument("--root", type=Path, default=ROOT, help="where the folder of the version goes")
    options = parser.parse_args(arguments)
    folder = options.root / options.minor
    if options.minor != f"{MAJOR}.{MINOR}":
        parser.error(f"this checkout writes version {MAJOR}.{MINOR}")
    if folder.exists():
        print(f"{folder} is there: golden containers are never made anew", file=sys.stderr)
        return 1
    folder.mkdir(parents=True)
    for script in SCRIPTS:
        for name in (f"{script.__name__}.cnr", script.__name__):
            versions = make(folder / name, script)
            check(folder / name)
            text = json.dumps({"about": script.__doc__, "versions": versions}, ensure_ascii=False, indent=1)
            (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
            # A writer's lock file stays beside a single file, and is no part of it.
            (folder / f"{name}.lock").unlink(missing_ok=True)
            print(folder / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
