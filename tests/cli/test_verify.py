"""`verify`: the findings, the verdict in words, and the exit code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import cnrfmt
from cnrfmt.format.blocks import Features, FileHeader
from cnrfmt.format.limits import PAGE
from tests.cli.support import Command, a_segment, damage


@pytest.mark.parametrize("level", ["structure", "digests", "full"])
def test_a_sound_container(level: str, original: Path, cnr: Command) -> None:
    found = cnr("verify", original, "--level", level)
    assert (found.code, found.err) == (0, "")
    assert found.out.startswith(f"{original}: sound: versions 0 to 2: ")
    assert found.out.count("\n") == 1
    report = cnr("verify", original, "--level", level, "--threads", 1, "--json").json
    assert report == cnrfmt.verify(original, level=level).to_json()


def test_a_changed_bit_in_a_row(path: Path, cnr: Command) -> None:
    file, offset = a_segment(path)
    damage(file, offset)
    found = cnr("verify", path)
    assert found.code == 1
    assert found.out.startswith("damage piece-digest\n    at        ")
    assert "    expected  " in found.out
    assert f"{path}: damaged: 1 finding (versions 0 to 2 looked at)." in found.out
    # What the advice would say stands in the verdict, once.
    assert "run `cnrfmt verify`" not in found.out
    assert cnr("verify", path, "--json").json["findings"][0]["rule"] == "piece-digest"
    assert cnr("verify", path, "--level", "structure").code == 0
    refused = cnr("rows", path, "word", 0)
    assert refused.code == 1
    assert refused.err.startswith("cnrfmt: ")
    assert "piece-digest" in refused.err
    error = cnr("rows", path, "word", 0, "--json")
    assert '"rule": "piece-digest"' in error.err
    assert cnr("rows", path, "count").code == 0


def test_one_rotten_slot_loses_nothing(tmp_path: Path, cnr: Command) -> None:
    path = tmp_path / "model.cnr"
    cnrfmt.save(path, {"t": np.ones((3, 2), np.float32)})
    damage(path, 2 * PAGE + 40)
    found = cnr("verify", path)
    assert found.code == 1
    assert "damage slot" in found.out
    assert "nothing is lost" in found.out
    assert cnr("rows", path, "t").code == 0
    cnrfmt.append(path, {})
    assert cnr("verify", path).code == 0
    damage(path, PAGE + 40)
    damage(path, 2 * PAGE + 40)
    found = cnr("verify", path)
    assert "no version can be read" in found.out
    assert "nothing is lost" not in found.out


def test_notes_are_harmless(path: Path, cnr: Command) -> None:
    if path.is_dir():
        (path / "segments" / ".tmp-1").write_bytes(b"half")
    else:
        with path.open("ab") as f:
            f.write(b"half a segment")
    found = cnr("verify", path)
    assert found.code == 0
    assert found.out.startswith("note ")
    assert found.out.endswith("; 1 harmless note above\n")


def test_what_is_no_container(tmp_path: Path, cnr: Command) -> None:
    (tmp_path / "note.txt").write_text("a shopping list, " * 2000)
    for path in (tmp_path / "note.txt", tmp_path):
        for verb in ("info", "ls"):
            found = cnr(verb, path)
            assert found.code == 1
            assert "not a cnr container, or a damaged one" in found.err
            assert found.err.count("\n") == 1
        found = cnr("verify", path)
        assert found.code == 1
        assert found.out.endswith("or it isn't a cnr container at all\n")


def test_newer_features_are_not_judged(tmp_path: Path, cnr: Command) -> None:
    path = tmp_path / "newer.cnr"
    cnrfmt.save(path, {"t": np.ones((3, 2), np.float32)})
    with cnrfmt.open(path) as ck:
        header = FileHeader(ck.manifest.container_id, Features(incompat=1 << 7))
    with path.open("r+b") as f:
        f.write(header.pack())
    found = cnr("verify", path)
    assert found.code == 3
    assert found.out.startswith("unjudged feature\n")
    assert "can't judge: " in found.out
    assert "upgrade cnrfmt" in found.out
    for argv in (["info", path], ["ls", path], ["rows", path, "t"], ["convert", path, tmp_path / "t.npz"]):
        found = cnr(*argv)
        assert found.code == 3
        assert "incompat bit 7" in found.err
    assert '"feature": "incompat bit 7"' in cnr("info", path, "--json").err


def test_a_file_that_was_cut(tmp_path: Path, cnr: Command) -> None:
    path = tmp_path / "cut.cnr"
    cnrfmt.save(path, {"t": np.ones((3000, 2), np.float32)})
    with path.open("r+b") as f:
        f.truncate(20000)
    for argv in (["info", path], ["verify", path]):
        found = cnr(*argv)
        assert found.code == 1
        assert "file-length" in found.out + found.err
