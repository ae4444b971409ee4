"""Each vector has the verdict that stands beside it, from the library and from the independent validator alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt import dtypes
from tools import cnrcheck

VECTORS = Path(__file__).resolve().parent.parent.parent / "spec" / "vectors"
INFOS: dict[str, Any] = {
    path.relative_to(VECTORS).with_suffix("").as_posix(): json.loads(path.read_text("utf-8"))
    for kind in ("valid", "invalid")
    for path in sorted((VECTORS / kind).glob("*.json"))
}
GROUPS: dict[str, list[str]] = {}
"""Vectors by what they break, since a test of each would take longer to report than to run."""
for _name, _info in INFOS.items():
    GROUPS.setdefault(_info["error"] or _info["verdict"], []).append(_name)
READABLE = [name for name, info in INFOS.items() if "tables" in info]
DAMAGED = [name for name, info in INFOS.items() if info["verdict"] == "damaged"]


def each(names: list[str], check: Callable[[str], None]) -> None:
    """Checks all of them, and tells of every one that fails."""
    failed = []
    for name in names:
        try:
            check(name)
        except Exception as error:
            error.add_note(f"the vector: {name}")
            failed.append(error)
    if failed:
        raise ExceptionGroup(f"{len(failed)} of {len(names)} vectors", failed)


def container(name: str) -> Path:
    file = VECTORS / f"{name}.cnr"
    return file if file.exists() else VECTORS / name


def array(info: Any) -> Any:
    kind = dtypes.dtype_of(info["dtype"])
    return np.frombuffer(bytes.fromhex(info["hex"]), kind).reshape(info["shape"])


def same_bits(found: Any, expected: Any) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes()


def check_errors(name: str, verdict: str, errors: set[str]) -> None:
    info = INFOS[name]
    assert verdict == info["verdict"], errors
    # What keeps a validator from judging the rule itself stands among the others that it may name.
    assert bool(errors) == (verdict == "damaged")
    assert errors <= {info["error"], *info["also"]}, info["about"]


def test_there_are_vectors() -> None:
    assert len(DAMAGED) >= 58
    assert len(READABLE) >= 30


@pytest.mark.parametrize("group", GROUPS)
def test_the_library_gives_the_verdict(group: str) -> None:
    each(GROUPS[group], by_the_library)


def by_the_library(name: str) -> None:
    report = cnrfmt.verify(container(name), threads=1)
    errors = {f.rule for f in report.findings if f.severity == "damage"}
    check_errors(name, report.verdict, errors)
    has_note = any(f.severity == "note" for f in report.findings)
    if INFOS[name]["verdict"] == "sound":
        assert has_note == bool(INFOS[name]["notes"])


@pytest.mark.parametrize("group", GROUPS)
def test_the_independent_validator_gives_the_verdict(group: str) -> None:
    each(GROUPS[group], by_the_independent_validator)


def by_the_independent_validator(name: str) -> None:
    findings = cnrcheck.check_path(str(container(name)))
    errors = {f.error for f in findings if f.severity == "damage"}
    check_errors(name, cnrcheck.verdict(findings), errors)


@pytest.mark.parametrize("backend", ["mmap", "pread"])
@pytest.mark.parametrize("name", READABLE)
def test_the_library_reads_what_the_vector_says(name: str, backend: Any) -> None:
    info = INFOS[name]
    with cnrfmt.open(container(name), backend=backend) as ck:
        for key in ("version", "step", "metadata"):
            assert getattr(ck, key) == info.get(key, getattr(ck, key))
        assert set(ck) == set(info["tables"])
        for table_name, table in info["tables"].items():
            found = ck[table_name]
            ids = None if table["ids"] == "dense" else [int(i) for i in table["ids"]]
            assert (None if found.keys is None else found.keys.tolist()) == ids
            assert list(found.columns) == list(table["columns"])
            for column, values in table["columns"].items():
                expected = array(values)
                same_bits(found.read(column=column), expected)
                some = np.arange(len(expected))[::-2]
                same_bits(found.read(some, column=column, by="position"), expected[some])
        check_dense(ck.dense, info.get("dense"))


def check_dense(found: dict[str, Any], expected: Any) -> None:
    assert set(found) == set(expected or {})
    for name, entry in (expected or {}).items():
        if entry["kind"] == "array":
            same_bits(found[name], array(entry))
        elif entry["kind"] == "json":
            assert found[name] == entry["value"]
        else:
            assert found[name] == bytes.fromhex(entry["hex"])


@pytest.mark.parametrize("name", [name for name in READABLE if INFOS[name]["verdict"] == "sound"])
def test_the_independent_validator_reads_what_the_vector_says(name: str) -> None:
    for table_name, table in INFOS[name]["tables"].items():
        for column, values in table["columns"].items():
            ids, found = cnrcheck.read_table(str(container(name)), table_name, column=column)
            expected = array(values)
            if table["ids"] != "dense":
                assert [int(i) for i in ids] == [int(i) for i in table["ids"]]
            assert len(ids) == len(expected)
            if expected.dtype.kind in "iu" or expected.dtype.itemsize >= 4:
                same_bits(np.ascontiguousarray(found).astype(expected.dtype), expected)
            else:
                # Types that numpy lacks come as float64, which says each of their values but a NaN's payload.
                with np.errstate(invalid="ignore"):
                    np.testing.assert_array_equal(np.asarray(found, np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("error", sorted({INFOS[name]["error"] for name in DAMAGED}))
def test_a_reader_never_answers_with_wrong_values(error: str) -> None:
    """Whoever reads all of a damaged container meets one of our errors, or bytes that the damage doesn't reach."""
    each(GROUPS[error], read_all)


def read_all(name: str) -> None:
    try:
        with cnrfmt.open(container(name), backend="pread") as ck:
            for table in ck.values():
                for column in table.columns:
                    table.read(column=column)
            assert ck.dense is not None
    except cnrfmt.CnrError:
        pass
