"""`diff`: what it says, and what it ends with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from tests.cli.support import Command, a_segment, damage


@pytest.fixture
def run(tmp_path: Path, words: np.ndarray[Any, Any]) -> Path:
    """Four versions: rows, keys and tables come, change and go."""
    path = tmp_path / "run"
    visitor = cnrfmt.TableData(words[:4, :3], keys=[-17, 4, 99, 2**53 + 1], columns={"count": np.arange(4)})
    tables = {"word": words, "visitor": visitor, "old": words[:3]}
    cnrfmt.save(path, tables, dense={"mlp": words[:2], "seed": 1}, metadata={"run": "r7"}, step=0)
    changed = words[[7, 250]] * np.array([[1.5], [1.25]], np.float32)
    cnrfmt.append(path, {"word": cnrfmt.Rows([7, 250], changed)}, step=1000)
    delta = (cnrfmt.Rows([5], words[:1, :3]), cnrfmt.Deleted([99]))
    dense = {"mlp": words[:2] * 2, "seed": 1, "new": b"x"}
    cnrfmt.append(path, {"visitor": delta, "old": cnrfmt.Dropped()}, dense=dense, step=2000)
    rows = words[:1].copy()
    rows[0, 0] = np.nan
    cnrfmt.append(path, {"word": cnrfmt.Rows([1], rows, columns={"g": np.ones(1)}, rows=302)}, metadata={}, step=3000)
    return path


def lines_of(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_two_versions_of_a_checkpoint(run: Path, cnr: Command) -> None:
    found = cnr("diff", run, "--from", 0, "--to", 1)
    assert (found.code, found.err) == (0, "")
    lines = lines_of(found.out)
    assert lines[0].startswith(f"A {run}, version 0, step 0, container ")
    assert lines[1].startswith(f"B {run}, version 1, step 1000, container ")
    assert "COLUMN ROWS CHANGED SHARE MEAN MEDIAN P99 MAX" in lines
    (row,) = (line.split() for line in lines if line.startswith("word.weight 300 "))
    assert row[:5] == ["word.weight", "300", "2", "0.67%", "0.375"]
    assert row[-1] == "0.5"
    assert "word.weight 7 (0.5), 250 (0.25)" in lines
    assert "unchanged: 3 other columns" in lines
    # All of the other tables, and of this one 298 rows.
    assert f"not read, since nothing wrote them between the two versions: {298 + 4 + 4 + 3} rows" in lines
    assert lines[-1] == "different"
    assert "\x1b" not in found.out


def test_what_comes_and_goes(run: Path, cnr: Command) -> None:
    lines = lines_of(cnr("diff", run, "--from", 1, "--to", 2).out)
    at = lines.index("rows and schemas")
    assert lines[at + 1 : at + 4] == [
        "old: only A has this table",
        "visitor: only A has 1 key: 99",
        "visitor: only B has 1 key: 5",
    ]
    at = lines.index("dense state")
    assert lines[at + 1 : at + 3] == [
        "mlp: not the same (float32, 2 x 64, relative l2 error 1)",
        "new: only B has it (bytes)",
    ]
    back = lines_of(cnr("diff", run, "--from", 2, "--to", 1).out)
    assert "old: only B has this table" in back
    assert "new: only A has it (bytes)" in back


def test_without_versions_what_the_last_commit_changed(run: Path, cnr: Command) -> None:
    found = cnr("diff", run)
    lines = lines_of(found.out)
    assert ", version 2, step 2000, " in lines[0]
    assert ", version 3, step 3000, " in lines[1]
    assert (
        "1 changed row left out of them: A's row is zero, or there is a NaN or an infinity in one of the two" in lines
    )
    assert "word.weight 1 (no finite error)" in lines
    assert "word: only B has 2 rows: 300, 301" in lines
    assert "word: only B has column g (float64)" in lines
    assert "run: not the same" in lines


def test_as_json(run: Path, cnr: Command) -> None:
    found = cnr("diff", run, "--json", "--limit", 1).json
    assert (found["a"]["version"], found["b"]["version"], found["same"]) == (2, 3, False)
    (word,) = (t for t in found["tables"] if t["name"] == "word")
    assert (word["only_b"], word["examples_b"], word["looked_at"]) == (2, ["300"], 1)
    assert word["columns"][0]["worst"] == [{"row": "1", "error": "Infinity"}]
    assert (word["columns"][0]["mean"], word["columns"][0]["infinite"]) == (None, 1)
    assert word["schema"] == [{"what": "column", "column": "g", "a": None, "b": "float64"}]
    assert found["metadata"] == ["run"]
    assert cnr("diff", run, "--json", "--limit", 0).json["tables"][0]["columns"][0]["worst"] == []


def test_exit_codes(run: Path, tmp_path: Path, cnr: Command) -> None:
    cnrfmt.requantize(run, tmp_path / "copy.cnr", quantize=None)
    same = cnr("diff", run, tmp_path / "copy.cnr", "--exit-code")
    assert (same.code, same.out.splitlines()[-1]) == (0, "the same")
    assert cnr("diff", run, "--exit-code").code == 5
    assert cnr("diff", run, "--exit-code", "--json").code == 5
    assert cnr("diff", run).code == 0
    chosen = cnr("diff", run, "--from", 0, "--to", 1, "--tables", "vis*", "--exit-code")
    assert (chosen.code, chosen.out.splitlines()[-1]) == (0, "the same (the chosen tables and columns)")
    assert cnr("diff", run, tmp_path / "nothing.cnr").code == 4
    damage(*a_segment(run))
    broken = cnr("diff", run, tmp_path / "copy.cnr", "--exit-code")
    assert (broken.code, broken.out) == (1, "")
    assert "piece-digest" in broken.err


def test_another_checkpoint(run: Path, tmp_path: Path, cnr: Command) -> None:
    quantize = {"word": cnrfmt.Quantize(4), "visitor": cnrfmt.Quantize(8)}
    cnrfmt.requantize(run, tmp_path / "small.cnr", quantize=quantize, version=1)
    found = cnr("diff", run, tmp_path / "small.cnr", "--from", 1, "--column", "weight", "--json").json
    assert [len(t["columns"]) for t in found["tables"]] == [1, 1, 1]
    word = found["tables"][0]["columns"][0]
    assert word["changed"] == 300
    assert 0 < word["mean"] <= word["p99"] <= word["largest"] < 0.2
    errors = [x["error"] for x in word["worst"]]
    assert len(errors) == 5
    assert errors[0] == word["largest"]
    assert errors == sorted(errors, reverse=True)
    lines = lines_of(cnr("diff", run, tmp_path / "small.cnr", "--from", 1, "--limit", 2).out)
    assert any(line.startswith("rows that changed most (ids or keys") for line in lines)
    (worst,) = (line for line in lines if line.startswith("word.weight") and "(" in line)
    assert worst.count("(") == 2


def test_differences_in_schemas(tmp_path: Path, cnr: Command, words: np.ndarray[Any, Any]) -> None:
    cnrfmt.save(tmp_path / "a", {"t": cnrfmt.TableData(words[:5], columns={"g": words[:5, 0]})})
    cnrfmt.save(tmp_path / "b", {"t": words[:5, :9].astype(np.float64)})
    lines = lines_of(cnr("diff", tmp_path / "a", tmp_path / "b").out)
    assert "t: dim: 64 in A, 9 in B" in lines
    assert "t: column weight, dtype: float32 in A, float64 in B" in lines
    assert "t: only A has column g (float32)" in lines
    assert not any(line.startswith("rows that both have") for line in lines)


def test_names_cannot_steer_the_terminal(tmp_path: Path, cnr: Command) -> None:
    name, values = "a\x9b31m\u202eb", np.ones((2, 2), np.float32)
    dense = {name: values, f"{name}2": b"1"}
    cnrfmt.save(tmp_path / "a", {name: values, f"{name}2": values}, dense=dense, metadata={name: 1})
    cnrfmt.save(tmp_path / "b", {name: 2 * values}, dense={name: 2 * values}, metadata={name: 2})
    for options in ([], ["--json"]):
        found = cnr("diff", tmp_path / "a", tmp_path / "b", *options)
        assert found.code == 0
        for character in "\x9b\u202e":
            assert character not in found.out + found.err


def test_many_differences_are_shown_in_few_lines(tmp_path: Path, cnr: Command) -> None:
    values = np.ones((2, 2), np.float32)
    cnrfmt.save(tmp_path / "a", {f"t{n}": values for n in range(60)}, dense={f"d{n}": n for n in range(60)})
    cnrfmt.save(tmp_path / "b", {f"t{n}": 2 * values for n in range(60)}, dense={f"d{n}": -n for n in range(1, 61)})
    found = cnr("diff", tmp_path / "a", tmp_path / "b").out
    assert "  and 10 more columns that changed (--json lists them)" in found
    assert "  and 11 more (--json lists them)" in found
    assert found.count("t59.weight") == 0
