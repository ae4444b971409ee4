"""`salvage`: what it says is lost, and how it ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import cnrfmt
from cnrfmt.format.blocks import Features, FileHeader
from tests.cli.support import Command, a_segment, damage


def test_nothing_lost(path: Path, tmp_path: Path, cnr: Command) -> None:
    found = cnr("salvage", path, tmp_path / "new.cnr")
    assert (found.code, found.err) == (0, "")
    assert found.out.startswith(f"{path}: version 2, step 2000\n")
    assert "written and verified; nothing of this version is lost" in found.out
    assert "what is lost" not in found.out
    assert cnr("verify", tmp_path / "new.cnr").code == 0
    assert cnr("rows", tmp_path / "new.cnr", "word", 7).out == cnr("rows", path, "word", 7).out


def test_a_changed_bit_in_a_row(path: Path, tmp_path: Path, cnr: Command) -> None:
    damage(*a_segment(path))
    dry = cnr("salvage", path, "--dry-run")
    assert dry.code == 1
    assert "nothing was written (--dry-run); what is listed above is lost of this version" in dry.out
    # Whoever is called at night sees which rows, in which column, and why.
    assert "  table 'word', column 'weight': " in dry.out
    assert " rows: " in dry.out
    assert "because of" in dry.out
    assert "(piece-digest)" in dry.out
    assert not (tmp_path / "new.cnr").exists()
    found = cnr("salvage", path, tmp_path / "new.cnr", "--json")
    assert (found.code, found.err) == (1, "")
    report = found.json
    assert report["target"] == str(tmp_path / "new.cnr")
    assert report["complete"] is False
    lost = next(x for x in report["losses"] if x["column"] == "weight")
    assert (lost["table"], lost["rule"]) == ("word", "piece-digest")
    table = cnrfmt.load(tmp_path / "new.cnr")["word"]
    for first, last in lost["rows"]:
        assert not table[int(first) : int(last) + 1].any()
    # The other tables are whole, and can be had alone.
    some = cnr("salvage", path, tmp_path / "some", "--table", "visitor", "--table", "count", "--json")
    assert [t["name"] for t in some.json["tables"]] == ["visitor", "count"]
    assert all(x["table"] is None for x in some.json["losses"])


def test_the_newest_manifest_is_damaged(path: Path, tmp_path: Path, cnr: Command) -> None:
    with cnrfmt.open(path) as ck:
        data, version, _ = ck.view.container.head()
    if path.is_dir():
        damage(path / "manifests" / f"{version:020d}.cnrm", 300)
    else:
        damage(path, path.read_bytes().rindex(data) + 300)
    refused = cnr("info", path)
    assert refused.code == 1
    assert "`cnrfmt salvage`" in refused.err
    found = cnr("salvage", path, tmp_path / "new.cnr")
    assert found.code == 1
    assert found.out.startswith(f"{path}: version 1, step 1000\na newer version is lost: ")
    assert found.out.endswith("written and verified; a newer version is lost\n")
    older = cnr("salvage", path, "--version", 0, "--dry-run")
    assert older.code == 0
    whole = cnr("salvage", path, "--whole", "--dry-run")
    assert whole.code == 1


def test_nothing_sound(path: Path, tmp_path: Path, cnr: Command) -> None:
    for file in [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path]:
        file.write_bytes(bytes(file.stat().st_size))
    found = cnr("salvage", path, tmp_path / "new.cnr")
    assert (found.code, found.out) == (1, "")
    assert "something that can be proven sound" in found.err
    assert not (tmp_path / "new.cnr").exists()
    assert '"rule": "nothing-sound"' in cnr("salvage", path, tmp_path / "new.cnr", "--json").err


def test_newer_features_end_in_3(tmp_path: Path, cnr: Command) -> None:
    path = tmp_path / "newer.cnr"
    cnrfmt.save(path, {"t": np.ones((3, 2), np.float32)})
    with cnrfmt.open(path) as ck:
        header = FileHeader(ck.manifest.container_id, Features(incompat=1 << 7))
    with path.open("r+b") as f:
        f.write(header.pack())
    found = cnr("salvage", path, tmp_path / "new.cnr")
    assert found.code == 3
    assert "incompat bit 7" in found.err


def test_many_losses_and_odd_names_are_shown_in_few_lines(tmp_path: Path, cnr: Command) -> None:
    path = tmp_path / "many.cnr"
    keys = np.arange(0, 3000, 3)
    tables = {f"t{k}\x9b2J": cnrfmt.TableData(np.ones((1000, 4), np.float32), keys=keys) for k in range(25)}
    cnrfmt.save(path, tables)
    with cnrfmt.open(path) as ck:
        (segment,) = ck.view.segments.values()
        starts = [segment.toc.sections[t.parts[0].section][0] + (segment.entry.offset or 0) for t in segment.toc.tables]
    for start in starts:
        damage(path, start + 8000)
    found = cnr("salvage", path, "--dry-run")
    assert found.code == 1
    assert "\x9b" not in found.out
    assert "more runs (--json lists them)" in found.out
    assert "more (--json lists them)" in found.out
    assert found.out.count("because of") == 20
