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
    assert "written and verified; nothing of version 2 is lost" in found.out
    assert "what is lost" not in found.out
    assert cnr("verify", tmp_path / "new.cnr").code == 0
    assert cnr("rows", tmp_path / "new.cnr", "word", 7).out == cnr("rows", path, "word", 7).out


def test_a_changed_bit_in_a_row(path: Path, tmp_path: Path, cnr: Command) -> None:
    damage(*a_segment(path))
    dry = cnr("salvage", path, "--dry-run")
    assert dry.code == 1
    assert "nothing was written (--dry-run); what is listed above is lost of version 2" in dry.out
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
    # What the other table lost doesn't count beside them.
    words = cnr("salvage", path, "--dry-run", "--table", "visitor")
    assert words.code == 0
    assert "versions (the chosen tables and the dense state)\n" in words.out
    assert "lost\n" not in words.out.split("what there is")[0]
    assert "nothing of version 2 is lost" in words.out
    assert [v["state"] for v in some.json["versions"]] == ["whole"] * 3
    assert cnr("salvage", path, "--dry-run", "--table", "visitor", "--whole").code == 0
    wrong = cnr("salvage", path, "--dry-run", "--table", "nobody", "--whole")
    assert (wrong.code, "no table 'nobody'" in wrong.err) == (2, True)


def test_a_later_version_may_have_existed(tmp_path: Path, cnr: Command) -> None:
    path, one = tmp_path / "model", np.ones((1, 2), np.float32)
    cnrfmt.save(path, {"t": np.zeros((3, 2), np.float32)})
    for row in (0, 1):
        cnrfmt.append(path, {"t": cnrfmt.Rows([row], one)})
    (path / "manifests" / f"{2:020d}.cnrm").unlink()
    found = cnr("salvage", path, "--dry-run")
    assert found.code == 0
    assert "a later version may have existed: segments/" in found.out
    assert found.out.endswith("nothing of version 1 is lost; a later version may have existed, see above\n")
    report = cnr("salvage", path, "--dry-run", "--json").json
    assert (report["complete"], report["newer"], len(report["perhaps_newer"])) == (True, [], 1)
    # Whoever names the version knows.
    assert cnr("salvage", path, "--dry-run", "--version", 0).out.endswith("nothing of version 0 is lost\n")


def test_an_older_version_that_is_whole_is_named(tmp_path: Path, cnr: Command) -> None:
    path = tmp_path / "model"
    keys = np.arange(0, 4000, 4) ** 2
    cnrfmt.save(path, {"k": cnrfmt.TableData(np.ones((1000, 2), np.float32), keys=keys), "t": np.ones((3, 2))})
    for row in (0, 1):
        cnrfmt.append(path, {"t": cnrfmt.Rows([row], np.zeros((1, 2)))})
    with cnrfmt.open(path, version=1) as ck:
        (path / "segments" / f"{ck.manifest.chain[-1].segment.hex()}.cnrs").unlink()
    found = cnr("salvage", path, "--dry-run")
    assert found.code == 1
    assert found.out.endswith("lost of version 2; add --whole for version 0, of which nothing is lost\n")
    # The table and the list of losses say the same of the keys, and no number is shown that stands for every key.
    (cells,) = [line.split() for line in found.out.splitlines() if line.startswith("  k ")]
    assert cells == ["k", "keyed", "0", "up", "to", "1,000", "and", "others"]
    assert "table 'k': up to 1,000 keys that can't be told: among 0, 16, 64, " in found.out
    assert "table 'k': an unknown number of keys that can't be told: any key may be one\n" in found.out
    assert str(1 << 63)[:-1] not in found.out
    named = cnr("salvage", path, "--dry-run", "--version", 2)
    assert "; take --whole instead of --version for version 0, of which nothing is lost\n" in named.out
    report = cnr("salvage", path, "--dry-run", "--json").json
    assert report["newest_whole"] == 0
    table = next(t for t in report["tables"] if t["name"] == "k")
    assert (table["lost"], table["most"], table["unbounded"], table["whole"]) == (0, 1000, True, False)
    assert cnr("salvage", path, tmp_path / "new", "--whole", "--json").json["version"] == 0


def test_one_piece_is_a_piece(tmp_path: Path, cnr: Command) -> None:
    path = tmp_path / "model.cnr"
    cnrfmt.save(path, {"t": np.ones((3000, 4), np.float32)})
    damage(*a_segment(path))
    found = cnr("salvage", path, "--dry-run").out
    assert ": 1 damaged piece\n" in found
    assert ", piece 0 (column 'weight')" in found
    assert " rows or dense entries lost\n" in found


def test_a_table_whose_row_index_is_gone(tmp_path: Path, cnr: Command) -> None:
    path = tmp_path / "model.cnr"
    keys = np.cumsum(np.random.default_rng(5).integers(2, 1000, 20_000))
    cnrfmt.save(path, {"k": cnrfmt.TableData(np.ones((20_000, 2), np.float32), keys=keys)})
    with cnrfmt.open(path) as ck:
        (segment,) = ck.view.segments.values()
        (entry,) = segment.toc.tables
        section = entry.row_sets[entry.parts[0].rows].section
        assert section is not None
        start, length = segment.toc.sections[section]
        start += segment.entry.offset or 0
    with path.open("r+b") as f:
        f.seek(start)
        f.write(bytes(length))
    report = cnr("salvage", path, "--dry-run", "--json").json
    sure = sum(x["count"] for x in report["losses"] if x["exact"])
    unsure = sum(x["count"] for x in report["losses"] if not x["exact"])
    assert unsure > 10_000
    (table,) = report["tables"]
    assert (table["lost"], table["most"], table["unbounded"]) == (sure, sure + unsure, False)
    number = f"{sure:,} to {sure + unsure:,}" if sure else f"up to {unsure:,}"
    words = cnr("salvage", path, "--dry-run").out
    assert f"{number} rows or dense entries lost  not all keys that are lost are known\n" in words
    assert f"  {number}\n" in words.split("what there is")[1]


def test_an_empty_file(tmp_path: Path, cnr: Command) -> None:
    """The advice that any damage comes with leads to a plain answer here, too."""
    path = tmp_path / "model.cnr"
    path.touch()
    found = cnr("salvage", path, "--dry-run")
    assert (found.code, found.out) == (1, "")
    assert "found no manifest; " in found.err
    assert "restore it from a copy" in found.err


def test_a_folder_that_cant_be_written_to(path: Path, cnr: Command) -> None:
    # No process may make a directory there, not even one with all rights.
    found = cnr("salvage", path, "/proc/new.cnr")
    assert found.code != 0
    assert found.err.startswith("cnrfmt: /proc/.salvage-")
    assert found.err.endswith(" (could not make this directory)\n")


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
