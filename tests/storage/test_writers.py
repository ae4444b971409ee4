"""What a writer asks storage to keep: tables of contents in manifests, steps, metadata."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt import Quantize, Rows, TableData, UsageError, commits
from cnrfmt.format.limits import MAX_INTEGER
from cnrfmt.format.manifest import parse_manifest

VALUES = np.ones((4, 2), np.float32)


def tocs(path: Path) -> list[tuple[int, int] | None]:
    with cnrfmt.open(path) as ck:
        manifest = ck.manifest
        lengths = [segment.trailer.toc_length for segment in ck.view.segments.values()]
    data = (path / "manifests" / f"{manifest.version:020}.cnrm").read_bytes() if path.is_dir() else b""
    if data:
        assert parse_manifest(data, "x").attachments == manifest.attachments
    assert all(entry.toc is None or entry.toc[1] == n for entry, n in zip(manifest.chain, lengths, strict=True))
    assert len(manifest.attachments) == sum(entry.toc[1] for entry in manifest.chain if entry.toc)
    return [entry.toc for entry in manifest.chain]


def grow(path: Path, count: int) -> None:
    cnrfmt.save(path, {"t": VALUES})
    for n in range(count):
        cnrfmt.append(path, {"t": Rows([n], VALUES[:1])})


def test_small_tables_of_contents_stand_in_the_manifest_of_a_directory(tmp_path: Path) -> None:
    grow(tmp_path / "run", 2)
    found = tocs(tmp_path / "run")
    assert None not in found
    starts = [toc[0] for toc in found if toc]
    assert starts[0] == 0
    assert starts == sorted(set(starts))
    grow(tmp_path / "model.cnr", 2)
    assert tocs(tmp_path / "model.cnr") == [None] * 3


@pytest.mark.parametrize("more", [0, -1])
def test_how_much_of_them_stands_there_is_bounded(tmp_path: Path, more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    grow(tmp_path / "whole", 2)
    whole = [toc for toc in tocs(tmp_path / "whole") if toc]
    lengths = [length for _, length in whole]
    monkeypatch.setattr(commits, "_INLINE_ALL", sum(lengths[:2]) + more)
    grow(tmp_path / "all", 2)
    assert [toc is not None for toc in tocs(tmp_path / "all")] == [True, more == 0, False]
    monkeypatch.undo()
    assert len(set(lengths[1:])) == 1
    assert lengths[0] != lengths[1]
    monkeypatch.setattr(commits, "_INLINE_TOC", max(lengths) + more)
    grow(tmp_path / "each", 2)
    fits = [length <= max(lengths) + more for length in lengths]
    assert [toc is not None for toc in tocs(tmp_path / "each")] == fits


@pytest.fixture(params=["model.cnr", "run"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / request.param
    cnrfmt.save(path, {"t": VALUES}, step=3, metadata={"a": 1})
    return path


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"step": 1.5}, "step must be an integer"),
        ({"step": True}, "step must be an integer"),
        ({"step": MAX_INTEGER + 1}, "step must be an integer within"),
        ({"step": -MAX_INTEGER - 1}, "step must be an integer within"),
        ({"metadata": [1]}, "metadata must be a dict"),
        ({"metadata": {"a": b""}}, "JSON can't hold"),
        ({"dense": {"": 1}}, "a name is"),
        ({"threads": 0}, "threads must be"),
    ],
)
def test_what_an_append_refuses_leaves_no_trace(path: Path, options: dict[str, Any], says: str) -> None:
    before = {p: p.stat().st_mtime_ns for p in [path, *path.rglob("*")]}
    for commit in (cnrfmt.append, cnrfmt.save):
        with pytest.raises(UsageError, match=says):
            commit(path, {}, **options)
    assert {p: p.stat().st_mtime_ns for p in [path, *path.rglob("*")]} == before


@pytest.mark.parametrize("step", [MAX_INTEGER, -MAX_INTEGER, 0, np.int16(-5)])
def test_steps(path: Path, step: Any) -> None:
    for commit in (cnrfmt.append, cnrfmt.save):
        commit(path, {}, step=step)
        with cnrfmt.open(path) as ck:
            assert ck.step == int(step)
            assert type(ck.step) is int


def test_each_column_keeps_its_own_encoding(path: Path) -> None:
    values = np.linspace(0, 1, 12, dtype=np.float32).reshape(6, 2) ** 3
    tables = {"u": TableData(values, columns={"m": values})}
    cnrfmt.append(path, tables, quantize={"u": Quantize(8)})
    cnrfmt.append(path, {"u": Rows([1, 4], values[:2], columns={"m": values[:2]})})
    with cnrfmt.open(path) as ck:
        parts = [part for s in ck.view.segments.values() for t in s.toc.tables for part in t.parts]
        kinds = [(part.column, getattr(part.layout, "bits", "raw")) for part in parts]
        assert kinds[-4:] == [("weight", 8), ("m", "raw"), ("weight", 8), ("m", "raw")]
        assert ck["u"].read([1, 4], column="m").tobytes() == values[:2].tobytes()


def test_what_a_manifest_says_of_its_maker(path: Path) -> None:
    cnrfmt.append(path, {"t": Rows([1], VALUES[:1])})
    with cnrfmt.open(path) as ck, cnrfmt.open(path, version=0) as old:
        assert ck.manifest.created_by == old.manifest.created_by == f"cnrfmt {cnrfmt.__version__}"
        assert ck.manifest.created >= old.manifest.created
        assert len({m.commit_id for m in (ck.manifest, old.manifest)}) == 2
        assert ck.manifest.parent == (0, old.manifest.digest)
        assert (ck.metadata, ck.step) == ({"a": 1}, None)
        for entry, segment in zip(ck.manifest.chain, ck.view.segments.values(), strict=True):
            assert entry.segment == segment.trailer.segment_id


def test_nothing_to_append_to_is_told_with_the_path(tmp_path: Path) -> None:
    for name in ("new.cnr", "new"):
        with pytest.raises(UsageError, match=f"^{tmp_path / name}: nothing to append to"):
            cnrfmt.append(tmp_path / name, {})
    assert os.listdir(tmp_path) == ["new.cnr.lock"]
