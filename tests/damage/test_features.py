"""The feature masks and version numbers of each block, against reader, writer, validators and the command.

Section 2.3 of the specification as a table. Containers are golden ones with a bit or number changed and every digest
made right again.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt import cli
from tools import cnrcheck
from tools.damage.golden import SINGLE, Files, Golden, goldens, read_version, wrong_answers
from tools.damage.layout import Layout, reseal

GOLDENS = {golden.name: golden for golden in goldens()}
CONTAINERS = ("1.0/history.cnr", "1.0/history")
BIT = 37
ROW = np.array([[1, 2]], np.float32)
MASK = struct.pack("<Q", 1 << BIT)


@dataclass(frozen=True)
class Change:
    """A field of a block, and what section 2.3 makes of it: may one read, may one write, what is the verdict."""

    offset: int
    value: bytes
    reads: bool
    writes: bool
    verdict: str
    names: str


CHANGES = {
    "compat": Change(16, MASK, True, True, "sound", f"bit {BIT}"),
    "ro_compat": Change(24, MASK, True, False, "unjudged", f"bit {BIT}"),
    "incompat": Change(32, MASK, False, False, "unjudged", f"bit {BIT}"),
    "minor": Change(10, struct.pack("<H", 9), True, True, "sound", ""),
    "major": Change(8, struct.pack("<H", 2), False, False, "unjudged", "format version 2"),
}
EXIT = {"sound": 0, "damaged": 1, "unjudged": 3}
CASES = [
    (container, block, change)
    for container in CONTAINERS
    for block in ("file header", "segment header", "manifest")
    for change in CHANGES
    if block != "file header" or container.endswith(".cnr")
]


def edited(golden: Golden, block: str, change: Change) -> Files:
    """The container with the change in the block; a segment's is in the manifests of its versions, too (rule 8)."""
    layout = Layout(golden.files)
    head = layout.manifests[-1]
    blocks = {"file header": [(SINGLE, 0)], "manifest": [(head.file, head.start)]}
    if block == "segment header":
        newest = layout.document(head)["chain"][-1]["segment"]
        segment = next(s for s in layout.segments if s.name == newest)
        blocks[block] = [(segment.file, segment.start)]
        for manifest in layout.manifests:
            if any(entry["segment"] == newest for entry in layout.document(manifest)["chain"]):
                blocks[block].append((manifest.file, manifest.start))
    return reseal(layout, {(file, start + change.offset): change.value for file, start in blocks[block]})


def put(files: Files, golden: Golden, folder: Path) -> Path:
    path = folder / golden.path.name
    for file, data in files.items():
        target = path if golden.single else path / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return path


@pytest.fixture(params=CASES, ids=" ".join)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Golden, Change, Path]:
    name, block, change = request.param
    golden = GOLDENS[name]
    return golden, CHANGES[change], put(edited(golden, block, CHANGES[change]), golden, tmp_path)


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_the_reader(case: tuple[Golden, Change, Path], backend: Any) -> None:
    golden, change, path = case
    newest = max(golden.expected)
    if not change.reads:
        for refused in (
            lambda: cnrfmt.open(path, backend=backend),
            lambda: cnrfmt.open(path, version=0, backend=backend),
            lambda: cnrfmt.load(path, backend=backend),
        ):
            with pytest.raises(cnrfmt.UnsupportedError, match=change.names):
                refused()
        return
    told, errors = read_version(path, None, backend, "all")
    assert errors == []
    assert told.pop(("version",)) == newest
    assert wrong_answers(told, golden.expected[newest]) == []
    loaded = cnrfmt.load(path, backend=backend)
    with cnrfmt.open(path, backend=backend) as ck:
        assert set(loaded) == set(ck)
        table = ck["grow"]
        assert table[[1, 0]].tobytes() == table[...][[1, 0]].tobytes()


@pytest.mark.parametrize("call", ["append", "save"])
def test_the_writer(case: tuple[Golden, Change, Path], call: str) -> None:
    golden, change, path = case
    before = {p: p.read_bytes() for p in [path, *path.rglob("*")] if p.is_file()}
    tables = {"grow": cnrfmt.Rows([0], ROW)} if call == "append" else {"grow": ROW}
    if not change.writes:
        with pytest.raises(cnrfmt.UnsupportedError, match=change.names):
            getattr(cnrfmt, call)(path, tables)
        assert {p: p.read_bytes() for p in [path, *path.rglob("*")] if p.is_file()} == before
        return
    version = getattr(cnrfmt, call)(path, tables)
    assert version == max(golden.expected) + 1
    with cnrfmt.open(path) as ck:
        # A delta keeps the encoding of its table, 4 bits in the directory.
        np.testing.assert_allclose(ck["grow"][0], ROW[0], atol=0.001)
    assert cnrfmt.verify(path).verdict == cnrcheck.verdict(cnrcheck.check_path(path)) == "sound"


def test_the_validators(case: tuple[Golden, Change, Path]) -> None:
    _, change, path = case
    report = cnrfmt.verify(path)
    findings = cnrcheck.check_path(path)
    assert (report.verdict, cnrcheck.verdict(findings)) == (change.verdict, change.verdict)
    severity = {"sound": "note", "unjudged": "unjudged"}[change.verdict]
    if change.names:
        assert any(f.severity == severity and change.names in f.found for f in report.findings)
        assert any(f.severity == severity and f.error == "unknown-feature" for f in findings)
    else:
        assert (report.findings, findings) == ([], [])


def test_the_command(case: tuple[Golden, Change, Path], capsys: pytest.CaptureFixture[str]) -> None:
    _, change, path = case
    assert cli.main(["verify", str(path)]) == EXIT[change.verdict]
    assert cnrcheck.main([str(path)]) == EXIT[change.verdict]
    for verb in (["info"], ["ls"], ["rows", "grow"]):
        assert cli.main([verb[0], str(path), *verb[1:]]) == (0 if change.reads else 3)
    capsys.readouterr()


@pytest.mark.parametrize("name", CONTAINERS)
def test_an_appended_version_keeps_a_compat_bit(name: str, tmp_path: Path) -> None:
    golden = GOLDENS[name]
    path = put(edited(golden, "manifest", CHANGES["compat"]), golden, tmp_path)
    for table in ({}, {"grow": cnrfmt.Rows([0], ROW)}):
        cnrfmt.append(path, table)
        with cnrfmt.open(path) as ck:
            assert ck.manifest.features.compat == 1 << BIT


@pytest.mark.parametrize("bits", [(1 << 0,), (1 << 63,), (1, 1 << 63)], ids=str)
@pytest.mark.parametrize("mask", ["compat", "ro_compat", "incompat"])
def test_every_bit_counts_and_is_named(mask: str, bits: tuple[int, ...], tmp_path: Path) -> None:
    golden = GOLDENS["1.0/tiny"]
    change = CHANGES[mask]
    value = Change(change.offset, struct.pack("<Q", sum(bits)), change.reads, change.writes, change.verdict, "")
    path = put(edited(golden, "manifest", value), golden, tmp_path)
    report = cnrfmt.verify(path)
    assert report.verdict == cnrcheck.verdict(cnrcheck.check_path(path)) == change.verdict
    named = ", ".join(str(bit.bit_length() - 1) for bit in bits)
    assert any(f.found.endswith(f"{mask} {'bit' if len(bits) == 1 else 'bits'} {named}") for f in report.findings)


@pytest.mark.parametrize("name", CONTAINERS)
@pytest.mark.parametrize("change", CHANGES)
def test_an_older_version_alone(name: str, change: str, tmp_path: Path) -> None:
    """The head can be read and written whatever an older manifest asks for; that version itself can't always."""
    golden = GOLDENS[name]
    layout = Layout(golden.files)
    old = layout.manifests[0]
    files = reseal(layout, {(old.file, old.start + CHANGES[change].offset): CHANGES[change].value})
    path = put(files, golden, tmp_path)
    told, errors = read_version(path, None, "mmap", "all")
    assert errors == []
    assert wrong_answers(told, golden.expected[max(golden.expected)]) == []
    told, errors = read_version(path, 0, "mmap", "all")
    assert [type(error) for error in errors] == ([] if CHANGES[change].reads else [cnrfmt.UnsupportedError])
    verdicts = cnrfmt.verify(path).verdict, cnrcheck.verdict(cnrcheck.check_path(path))
    assert verdicts == (CHANGES[change].verdict, CHANGES[change].verdict)


@pytest.mark.parametrize("change", ["compat", "ro_compat"])
def test_a_segment_whose_bit_no_manifest_has_is_damage(change: str, tmp_path: Path) -> None:
    golden = GOLDENS["1.0/tiny"]
    layout = Layout(golden.files)
    segment = layout.segments[0]
    files = reseal(layout, {(segment.file, segment.start + CHANGES[change].offset): MASK})
    path = put(files, golden, tmp_path)
    assert "feature-union" in {f.rule for f in cnrfmt.verify(path).findings}
    assert "feature-union" in {f.error for f in cnrcheck.check_path(path)}
    assert cli.main(["verify", str(path)]) == cnrcheck.main([str(path)]) == 1


@pytest.mark.parametrize("change", ["incompat", "major"])
def test_a_segment_that_alone_cannot_be_judged(change: str, tmp_path: Path) -> None:
    """Nothing of it is judged, the union of the masks included."""
    golden = GOLDENS["1.0/tiny"]
    layout = Layout(golden.files)
    segment = layout.segments[0]
    files = reseal(layout, {(segment.file, segment.start + CHANGES[change].offset): CHANGES[change].value})
    path = put(files, golden, tmp_path)
    verdicts = cnrfmt.verify(path).verdict, cnrcheck.verdict(cnrcheck.check_path(path))
    assert verdicts == ("unjudged", "unjudged")
    assert cli.main(["verify", str(path)]) == cnrcheck.main([str(path)]) == 3
