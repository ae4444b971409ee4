"""`quantize`: what it shows of somebody's rows, and the checkpoint that it makes."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt.trial import measure
from tests.cli.support import Command


@pytest.fixture(autouse=True)
def hardly_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_LEAST_TIMED", 1)
    monkeypatch.setattr(measure, "_MOST_TIMED", 1)


def lines_of(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_what_each_way_makes_of_the_rows(original: Path, cnr: Command) -> None:
    found = cnr("quantize", original, "--dry-run", "--tables", "wo*", "half", "--version", 0)
    assert (found.code, found.err) == (0, "")
    lines = lines_of(found.out)
    assert lines[0] == f"{original}: word.weight"
    assert lines[1] == "300 rows of 64 elements, 256 B each as float32; tried on all of them"
    assert lines[2] == "these rows are quantised already: the errors are what another time would add"
    assert lines[3] == "--quantize B/ROW SHARE MEAN ERR MAX ERR EXACT ENCODE DECODE"
    table = [line.removeprefix("* ").split() for line in lines[4 : lines.index("")]]
    assert len(table) == 4 * 7 + 3
    eight = next(row for row in table if row[0] == "8:asymmetric")
    # Two rows stay as they are, since they aren't finite.
    assert eight[1] == f"{72 + 256 * 2 / 300:.2f}"
    assert eight[5] == "2"
    assert any(line.startswith("* ") for line in lines)
    assert f"{original}: word.accumulator" in lines
    assert "one_valued B/ROW SHARE MEAN ERR MAX ERR EXACT ENCODE DECODE" in lines
    assert any(line.removeprefix("* ").startswith("log12 1.5 37.5% ") for line in lines)
    assert "left out, since only float32 is quantised: half.weight (bfloat16)" in lines
    assert "* errs least of all that take as many bytes or fewer" in lines
    assert any(line.startswith("log8: an accumulator that is restored again and again stops growing") for line in lines)


def test_words_are_tried_alone(original: Path, cnr: Command) -> None:
    words = ["4:kmeans:block=16", "auto:restores=3", "3:adaptive:num_bins=auto"]
    found = cnr("quantize", original, "--dry-run", "--tables", "visitor", "--quantize", *words)
    lines = lines_of(found.out)
    assert sorted(line.removeprefix("* ").split()[0] for line in lines[3:6]) == sorted(words)
    assert "auto:restores=3 comes to adaptive 3-bit packed (25 bins, ratio 0.5)" in lines
    (chosen,) = (line for line in lines if line.startswith("3:adaptive:num_bins=auto comes to adaptive 3-bit packed ("))
    assert chosen.endswith("bins, ratio 0.5)")


def test_several_files_as_json(original: Path, tmp_path: Path, cnr: Command, words: np.ndarray[Any, Any]) -> None:
    np.savez(tmp_path / "m.npz", item=words)
    found = cnr(
        "quantize", "--dry-run", tmp_path / "m.npz", original, "--rows", 50, "--json", "--quantize", 4, "8:lsq"
    ).json
    assert [trial["source"] for trial in found["trials"]] == [str(tmp_path / "m.npz"), str(original)]
    (item,) = found["trials"][0]["columns"]
    assert (item["table"], item["rows"], item["tried_rows"], item["width"]) == ("item", 300, 50, 64)
    assert [a["quantize"] for a in item["attempts"]] == ["4", "8:lsq"]
    assert item["attempts"][0]["share"] == pytest.approx(36 / 256)
    # Versions belong to containers.
    assert cnr("quantize", "--dry-run", tmp_path / "m.npz", "--version", 0).code == 2


def test_it_is_drawn(original: Path, tmp_path: Path, cnr: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from cnrfmt.trial import plot

    path = tmp_path / "errors.png"
    argv = ["quantize", original, "--dry-run", "--quantize", "4", "8", "--plot", path]
    assert cnr(*argv).out.endswith(f"drawn in {path}\n")
    assert path.read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(plot, "_MOST_SHOWN", 1)
    assert cnr(*argv).out.endswith(f"drawn in {path}; of 2 columns more only the table above tells\n")
    assert cnr(*argv, "--json").json["trials"][0]["source"] == str(original)


def test_drawing_needs_matplotlib(
    original: Path, tmp_path: Path, cnr: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name == "cnrfmt.trial" and args[2] == ("plot",):
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    found = cnr("quantize", original, "--dry-run", "--plot", "x.png")
    assert (found.code, found.err) == (2, "cnrfmt: --plot needs matplotlib; run: pip install 'cnrfmt[plot]'\n")


def test_a_checkpoint_anew(original: Path, tmp_path: Path, cnr: Command) -> None:
    target = tmp_path / "small.cnr"
    found = cnr("quantize", original, target, "--quantize", "word=4:adaptive", "visitor=8")
    assert (found.code, found.err) == (0, "")
    lines = lines_of(found.out)
    assert lines[0].startswith(f"{target}, version 0: 4 tables, ")
    assert any(line.startswith("word.weight adaptive 4-bit tail (45 bins, ratio 0.5) 300 2 ") for line in lines)
    assert any(line.startswith("visitor.weight asymmetric 8-bit tail 5 0 ") for line in lines)
    with cnrfmt.open(target) as ck, cnrfmt.open(original) as before:
        assert (ck.step, ck.metadata, sorted(ck.dense)) == (before.step, before.metadata, sorted(before.dense))
        assert np.array_equal(ck["count"][...], before["count"][...])
    assert (
        cnr("diff", original, target, "--column", "weight", "--json").json["tables"][0]["columns"][0]["changed"] > 200
    )
    refused = cnr("quantize", original, target, "--quantize", "word=8")
    assert (refused.code, "--force gives it its next version" in refused.err) == (2, True)
    again = cnr("quantize", original, target, "--quantize", "word=8", "--force", "--version", 0, "--json").json
    assert (again["version"], again["step"], again["tables"][0]["columns"][0]["exceptions"]) == (1, 0, 2)
    some = cnr("quantize", original, tmp_path / "some", "--quantize", 8, "--tables", "visitor", "--json").json
    assert [t["name"] for t in some["tables"]] == ["visitor"]
