"""The golden containers of tests/golden: their files as bytes, and what each version must say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import cnrfmt
from cnrfmt import dtypes
from cnrfmt.segment_reader import Backend, Verify

ROOT = Path(__file__).resolve().parent.parent.parent / "tests" / "golden"
SINGLE = ""
"""The name of the only file of a single-file container; a directory's are relative paths."""

Files = dict[str, bytes]
Told = dict[tuple[str, ...], Any]
"""What a version says: ("step",), ("keys", table), ("column", table, column), ("dense", name) ... to bits or values."""


@dataclass(frozen=True)
class Golden:
    """One golden container."""

    name: str
    path: Path

    @property
    def single(self) -> bool:
        """Whether it is a single file."""
        return self.path.suffix == ".cnr"

    @cached_property
    def files(self) -> Files:
        """The bytes of each file."""
        if self.single:
            return {SINGLE: self.path.read_bytes()}
        return {p.relative_to(self.path).as_posix(): p.read_bytes() for p in sorted(self.path.glob("*/*"))}

    @cached_property
    def info(self) -> Any:
        """The JSON that stands beside it."""
        return json.loads(self.path.with_name(f"{self.path.name}.json").read_text("utf-8"))

    @cached_property
    def expected(self) -> dict[int, Told]:
        """What each version must say."""
        return {int(version): dict(_told(says)) for version, says in self.info["versions"].items()}


def goldens() -> list[Golden]:
    """All golden containers of every format version, small ones first."""
    found = [
        Golden(f"{folder.name}/{path.name}", path)
        for folder in sorted(p for p in ROOT.iterdir() if p.is_dir())
        for path in sorted(folder.iterdir())
        if path.suffix != ".json"
    ]
    return sorted(found, key=lambda g: (sum(map(len, g.files.values())), g.name))


def plain(info: Any) -> tuple[str, tuple[int, ...], bytes]:
    """An array as the JSON gives it, in the form of `exact`."""
    return info["dtype"], tuple(info["shape"]), bytes.fromhex(info["hex"])


def exact(array: Any) -> tuple[str, tuple[int, ...], bytes]:
    """An array as data type, shape and bits, so that NaNs and the signs of zeros count."""
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return dtypes.name_of(array.dtype), array.shape, little.tobytes()


def _told(says: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield ("step",), says["step"]
    yield ("metadata",), says["metadata"]
    yield ("tables",), sorted(says["tables"])
    yield ("dense",), sorted(says["dense"])
    for name, entry in says["dense"].items():
        if entry["kind"] == "array":
            yield ("dense", name), plain(entry)
        else:
            yield ("dense", name), bytes.fromhex(entry["hex"]) if entry["kind"] == "bytes" else entry["value"]
    for name, table in says["tables"].items():
        yield ("keys", name), None if table["ids"] == "dense" else [int(key) for key in table["ids"]]
        yield ("columns", name), sorted(table["columns"])
        for column, values in table["columns"].items():
            yield ("column", name, column), plain(values)


def read_version(path: Path, version: int | None, backend: Backend, verify: Verify) -> tuple[Told, list[Exception]]:
    """What a version says, as far as it answers, and the errors of what doesn't."""
    told: Told = {}
    errors: list[Exception] = []

    def ask(what: tuple[str, ...], answer: Any) -> None:
        try:
            told[what] = answer()
        except cnrfmt.CnrError as error:
            errors.append(error)

    try:
        with cnrfmt.open(path, version=version, backend=backend, verify=verify, threads=1) as ck:
            told[("version",)] = ck.version
            told |= {("step",): ck.step, ("metadata",): ck.metadata, ("tables",): sorted(ck)}
            ask(("dense",), lambda: sorted(ck.dense))
            for name, value in (ck.dense if ("dense",) in told else {}).items():
                told["dense", name] = exact(value) if isinstance(value, np.ndarray) else value
            for name, table in ck.items():
                told["columns", name] = sorted(table.columns)
                ask(("keys", name), lambda table=table: None if table.keys is None else table.keys.tolist())
                for column in table.columns:
                    ask(("column", name, column), lambda t=table, c=column: exact(t.read(column=c)))
    except cnrfmt.CnrError as error:
        errors.append(error)
    return told, errors


def wrong_answers(told: Told, expected: Mapping[tuple[str, ...], Any]) -> list[str]:
    """The things that were answered otherwise than they must be."""
    return [" ".join(what) for what, answer in told.items() if what != ("version",) and answer != expected.get(what)]
