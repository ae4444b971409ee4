"""Targets: whole containers, opened and read through every door, and judged by both validators."""

from __future__ import annotations

from typing import Any

import numpy as np

import cnrfmt
from cnrfmt import dtypes
from cnrfmt.errors import CnrError, TooLargeError
from tools import cnrcheck
from tools.fuzz import seal
from tools.fuzz.memory_fs import MemoryFs
from tools.fuzz.oracle import Disagreement, same

MAX_BYTES = 4 << 20
_MOST_ROWS = 8
_PATH = "/model"


def resealed(data: bytes) -> None:
    """A packed container (see `seal`): digests, places and lengths are right, and the rest is the fuzzer's."""
    judge(seal.unpack(data))


def single_file(data: bytes) -> None:
    """The bytes of a single file, as they are."""
    judge(data)


def judge(content: bytes | dict[str, bytes]) -> None:
    """Opens, reads and verifies a container; both validators must say the same of it."""
    if isinstance(content, bytes):
        fs: Any = MemoryFs({_PATH: content})
        findings = cnrcheck.check_bytes(content)
    else:
        if not content:
            return
        fs = MemoryFs({f"{_PATH}/{name}": data for name, data in content.items()})
        findings = cnrcheck.check_files(content)
    report = cnrfmt.verify(_PATH, threads=1, fs=fs)
    if report.verdict != cnrcheck.verdict(findings):
        ours = "; ".join(str(f) for f in report.findings)
        theirs = "; ".join(str(f) for f in findings)
        other = cnrcheck.verdict(findings)
        raise Disagreement(f"verify says {report.verdict} ({ours}); cnrcheck says {other} ({theirs})")
    for backend in ("mmap", "pread"):
        try:
            _read(fs, backend, content, report.sound)
        except TooLargeError:
            continue
        except CnrError as error:
            if report.sound:
                raise Disagreement(f"{backend}: a sound container isn't read: {error}") from error


def _read(fs: Any, backend: Any, content: Any, sound: bool) -> None:
    with cnrfmt.open(_PATH, backend=backend, threads=1, fs=fs, max_bytes=MAX_BYTES) as ck:
        for version in ck.versions:
            with cnrfmt.open(_PATH, version=version, backend=backend, threads=1, fs=fs, max_bytes=MAX_BYTES) as old:
                assert old.version == version
        for name, table in ck.items():
            for column in table.columns:
                _read_column(table, name, column, content if sound else None)
        for since in ck.versions[-3:]:
            for table in ck.values():
                table.changed(since)
        assert isinstance(ck.dense, dict)


def _read_column(table: cnrfmt.Table, name: str, column: str, content: Any) -> None:
    """Some rows from both ends, as a run and one by one; the validator reads the same from a sound container."""
    count = len(table)
    some = np.unique(np.r_[0 : min(count, _MOST_ROWS), max(0, count - _MOST_ROWS) : count]).astype(np.int64)
    picked = table.read(some, column=column, by="position")
    run = table.read(slice(0, min(count, _MOST_ROWS)), column=column, by="position")
    same(run.tobytes(), picked[: len(run)].tobytes(), f"rows of {name!r}, {column!r}")
    if count * max(1, table.shape[1]) <= MAX_BYTES // 16:
        whole = table.read(column=column)
        same(whole[some].tobytes(), picked.tobytes(), f"rows of {name!r}, {column!r}, in a whole table")
    if content is None or not len(some):
        return
    ids = some if table.keys is None else table.keys[some]
    _, expected = cnrcheck.read_table(content, name, column=column, ids=ids)
    with np.errstate(all="ignore"):
        if picked.dtype.kind in "iu":
            equal = np.array_equal(picked, expected.astype(picked.dtype))
        else:
            equal = np.array_equal(picked.astype(np.float64), expected.astype(np.float64), equal_nan=True)
    if not equal:
        what = f"{name!r}, {column!r} ({dtypes.name_of(picked.dtype)}), rows {ids.tolist()}"
        raise Disagreement(f"{what}: {picked} where cnrcheck reads {expected}")
