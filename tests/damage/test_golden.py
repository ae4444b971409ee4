"""What every earlier release wrote is read bit for bit, by the library's readers and by the independent one."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt.format.blocks import MAJOR, MINOR
from cnrfmt.format.encoding import GridLayout
from tools import cnrcheck, make_golden
from tools.damage.golden import ROOT, Golden, exact, goldens, plain, read_version, wrong_answers

GOLDENS = {golden.name: golden for golden in goldens()}


@pytest.fixture(params=list(GOLDENS))
def golden(request: pytest.FixtureRequest) -> Golden:
    return GOLDENS[request.param]


def test_every_minor_version_that_was_written_has_its_folder() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir()}
    assert folders == {f"{MAJOR}.{minor}" for minor in range(MINOR + 1)}


def test_they_hold_every_index_code_encoding_and_data_type() -> None:
    codes, encodings, integers, dtypes = set(), set(), set(), set()
    for golden in GOLDENS.values():
        for version in golden.expected:
            with cnrfmt.open(golden.path, version=version) as ck:
                tables = [table for segment in ck.view.segments.values() for table in segment.toc.tables]
            codes |= {row_set.code for table in tables for row_set in table.row_sets}
            codes |= {"deleted" for table in tables if table.deleted is not None}
            for part in (part for table in tables for part in table.parts):
                dtypes.add(part.layout.dtype)
                kind, payload = (getattr(part.layout, name, "") for name in ("kind", "payload"))
                if isinstance(part.layout, GridLayout) or payload == "rans":
                    integers.add((type(part.layout).__name__, kind, payload))
                else:
                    encodings.add((type(part.layout).__name__, getattr(part.layout, "bits", None)))
                encodings |= {("exceptions", None)} if part.exceptions_of is not None else set()
    assert codes == {"range", "raw", "packed", "runs", "bitmap", "deleted"}
    bits = {"RawLayout": (None,), "CastLayout": (None,), "RowwiseLayout": range(2, 9), "CodebookLayout": (2, 3)}
    every = {*bits.items(), ("LogLayout", (8, 12, 16)), ("exceptions", (None,))}
    kinds, payloads = ("absolute", "residual"), ("fixed", "packed", "rans")
    assert integers == {*product(("GridLayout",), kinds, payloads), *product(("LogLayout",), kinds, ("rans",))}
    assert encodings == {(name, number) for name, numbers in every for number in numbers}
    assert dtypes == set(cnrcheck.ITEM)


def test_they_are_small(golden: Golden) -> None:
    assert sum(map(len, golden.files.values())) <= make_golden.MOST_BYTES


def test_both_validators_find_nothing(golden: Golden) -> None:
    assert cnrfmt.verify(golden.path).findings == []
    assert cnrcheck.check_path(golden.path) == []


@pytest.mark.parametrize("verify", ["touched", "all", "none"])
@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_every_version_says_what_it_said(golden: Golden, backend: Any, verify: Any) -> None:
    with cnrfmt.open(golden.path) as ck:
        assert list(ck.versions) == list(golden.expected)
    for version, expected in golden.expected.items():
        told, errors = read_version(golden.path, version, backend, verify)
        assert errors == []
        assert told.pop(("version",)) == version
        assert wrong_answers(told, expected) == []
        assert told.keys() == expected.keys()


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_single_rows_and_ranges_say_the_same(golden: Golden, backend: Any) -> None:
    for version, says in golden.info["versions"].items():
        with cnrfmt.open(golden.path, version=int(version), backend=backend) as ck:
            for name, table in says["tables"].items():
                for column, info in table["columns"].items():
                    _, shape, raw = plain(info)
                    some = np.arange(shape[0])[::-2]
                    found = ck[name].read(some, column=column, by="position")
                    rows = np.frombuffer(raw, found.dtype).reshape(shape)
                    assert exact(found) == exact(rows[some])
                    found = ck[name].read(slice(1, shape[0]), column=column, by="position")
                    assert exact(found) == exact(rows[1:])


def test_load_gives_the_same(golden: Golden) -> None:
    for version, says in golden.info["versions"].items():
        for name, data in cnrfmt.load(golden.path, version=int(version), columns=True).items():
            columns = says["tables"][name]["columns"]
            assert {"weight": exact(data.values), **{c: exact(v) for c, v in data.columns.items()}} == {
                column: plain(info) for column, info in columns.items()
            }


def test_the_independent_reader_says_the_same(golden: Golden) -> None:
    for version, says in golden.info["versions"].items():
        for name, table in says["tables"].items():
            for column, info in table["columns"].items():
                ids, found = cnrcheck.read_table(golden.path, name, int(version), column)
                dtype, shape, raw = plain(info)
                assert found.shape == shape
                if table["ids"] != "dense":
                    assert ids.tolist() == [int(key) for key in table["ids"]]
                if found.dtype.name == dtype:
                    assert exact(found) == (dtype, shape, raw)
                else:
                    # What numpy lacks comes widened, which says each value but a NaN's payload.
                    widened = cnrcheck.decode_raw(np.frombuffer(raw, np.uint8).reshape(shape[0], -1), dtype)
                    np.testing.assert_array_equal(found, widened.reshape(shape))


def test_they_are_never_made_anew(capsys: pytest.CaptureFixture[str]) -> None:
    assert make_golden.main(["--minor", f"{MAJOR}.{MINOR}"]) == 1
    assert "never made anew" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        make_golden.main(["--minor", "0.9"])


def test_what_this_checkout_writes_from_the_same_data_says_the_same(tmp_path: Any) -> None:
    """A later writer may choose other bytes, never other values."""
    for script in make_golden.SCRIPTS:
        for name in (f"{script.__name__}.cnr", script.__name__):
            versions = make_golden.make(tmp_path / name, script)
            golden = GOLDENS[f"{MAJOR}.{MINOR}/{name}"]
            assert versions == golden.info["versions"]
            for version, expected in golden.expected.items():
                told, errors = read_version(tmp_path / name, version, "mmap", "all")
                assert errors == []
                assert wrong_answers(told, expected) == []
