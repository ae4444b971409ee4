"""`compact`: the baseline that it makes of a chain, and what it says of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import cnrfmt
from cnrfmt.sizes import sizes
from tests.cli.support import Command, damage


def chain_bytes(path: Path) -> int:
    with cnrfmt.open(path) as ck:
        return sum(sizes(ck).chain.values())


def test_in_place(path: Path, cnr: Command) -> None:
    want, before = cnrfmt.load(path, columns=True), chain_bytes(path)
    found = cnr("compact", path)
    assert (found.code, found.err) == (0, "")
    after = chain_bytes(path)
    assert after < before
    shown = [f"{size / 1000:.{1 if size < 99_950 else 0}f} kB" for size in (before, after)]
    assert found.out == f"{path}, version 3: 3 segments before, 1 now; {shown[0]} before, {shown[1]} now\n"
    for name, table in cnrfmt.load(path, columns=True).items():
        assert table.values.tobytes() == want[name].values.tobytes()
        assert table.keys is None or np.array_equal(table.keys, want[name].keys)
    assert cnr("verify", path).code == 0
    again = cnr("compact", path)
    assert again.out == f"{path}, version 3: one segment already, {shown[1]}; nothing to do\n"
    with cnrfmt.open(path) as ck:
        assert ck.version == 3


def test_into_another(path: Path, tmp_path: Path, cnr: Command) -> None:
    target = tmp_path / "compacted.cnr"
    found = cnr("compact", path, target, "--version", 1, "--threads", 1, "--json").json
    assert (found["source"], found["target"]) == (str(path), str(target))
    assert found["before"] | {"bytes": 0} == {"version": 1, "step": 1000, "segments": 2, "bytes": 0}
    assert found["after"] == {"version": 0, "step": 1000, "segments": 1, "bytes": chain_bytes(target)}
    with cnrfmt.open(target) as ck, cnrfmt.open(path, version=1) as old:
        assert ck["word"].read().tobytes() == old["word"].read().tobytes()
        assert ck.dense["random"] == b"\1\2"
    refused = cnr("compact", path, target)
    assert refused.code == 2
    assert "is there already; --force gives it its next version" in refused.err
    assert cnr("compact", path, target, "--force").code == 0
    with cnrfmt.open(target) as ck:
        assert (ck.version, ck.step) == (1, 2000)


def test_what_it_refuses(path: Path, tmp_path: Path, cnr: Command) -> None:
    found = cnr("compact", path, "--version", 1)
    assert found.code == 2
    assert "give a target" in found.err
    assert cnr("compact", tmp_path / "nothing").code == 4
    with cnrfmt.open(path) as ck:
        entry = ck.manifest.chain[0]
        toc = ck.view.segments[entry.segment].toc
        place = (entry.offset or 0) + toc.sections[toc.tables[0].parts[0].section][0]
    damage(path / "segments" / f"{entry.segment.hex()}.cnrs" if path.is_dir() else path, place)
    found = cnr("compact", path)
    assert found.code == 1
    assert "piece-digest" in found.err
    with cnrfmt.open(path) as ck:
        assert ck.version == 2


def test_encoded_anew(path: Path, tmp_path: Path, cnr: Command) -> None:
    target = tmp_path / "serving.cnr"
    assert cnr("compact", path, target, "--encoding", "word=4:head", "--threads", 1).code == 0
    with cnrfmt.open(target) as ck, cnrfmt.open(path) as old:
        assert {name for name in ck if ck[name].read().tobytes() != old[name].read().tobytes()} == {"word"}
        encoding = ck["word"].encoding
    assert "4" in str(encoding)
    assert "head" in str(encoding)
    assert cnr("verify", target).code == 0
    for words, why in (
        ((path, "--encoding", "8"), "for another container alone; give a target"),
        ((path, tmp_path / "other", "--encoding", "nothing=8"), "encoding: no table is named 'nothing'"),
        ((path, tmp_path / "other", "--encoding", "fine"), "--encoding fine: there are no bits in it"),
    ):
        found = cnr("compact", *words)
        assert found.code == 2
        assert why in found.err
    assert not (tmp_path / "other").exists()
