"""`rows`: which rows, in which order, and how exactly."""

from __future__ import annotations

import json
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import cnrfmt
from tests.cli.support import VISITORS, Command

LIVE_VISITORS = [int(v) for v in VISITORS if v != 99]

CHOICES = {
    "5": [5],
    "-1": [299],
    "0:4": [0, 1, 2, 3],
    ":2": [0, 1],
    "-3:": [297, 298, 299],
    "298:900": [298, 299],
    "6:0:-3": [6, 3],
    "1,5,1": [1, 5, 1],
    "-1,7:9,0": [299, 7, 8, 0],
    "4:4": [],
    "+2": [2],
}


def ids_in(text: str) -> list[int]:
    return [int(line.split()[0]) for line in text.splitlines()]


@pytest.mark.parametrize("choice", CHOICES)
def test_the_rows_asked_for_come_in_their_order(choice: str, original: Path, cnr: Command) -> None:
    found = cnr("rows", original, "word", choice)
    assert (found.code, found.err, ids_in(found.out)) == (0, "", CHOICES[choice])
    with cnrfmt.open(original) as ck:
        expected = ck["word"][np.array(CHOICES[choice], np.int64)]
    rows = cnr("rows", original, "word", choice, "--json").json["rows"]
    assert [row["id"] for row in rows] == CHOICES[choice]
    for row, values in zip(rows, expected, strict=True):
        # Numbers that JSON lacks come as strings that float understands.
        assert np.array_equal(np.array([float(v) for v in row["values"]], np.float32), values, equal_nan=True)


def test_numbers_that_json_lacks_are_strings(original: Path, cnr: Command) -> None:
    facts = cnr("rows", original, "word", "3,4", "--json").json
    assert {k: facts[k] for k in ("version", "table", "column", "dtype")} == {
        "version": 2,
        "table": "word",
        "column": "weight",
        "dtype": "float32",
    }
    assert facts["rows"][0]["values"][2] == "NaN"
    assert facts["rows"][1]["values"][:2] == ["Infinity", "-Infinity"]


def test_full_prints_every_digit(original: Path, cnr: Command) -> None:
    text = cnr("rows", original, "word", ":", "--full").out
    printed = np.array([line.split()[1:] for line in text.splitlines()], np.float32)
    assert np.array_equal(printed, cnrfmt.load(original, ["word"])["word"], equal_nan=True)


def test_without_rows_there_are_twenty_and_a_word_about_the_rest(original: Path, cnr: Command) -> None:
    found = cnr("rows", original, "word")
    assert ids_in(found.out) == list(range(20))
    assert found.err == "cnrfmt: 280 more rows; --limit 0 prints all\n"
    assert ids_in(cnr("rows", original, "word", "--limit", 0).out) == list(range(300))
    assert ids_in(cnr("rows", original, "word", "5:,0", "--limit", 2).out) == [5, 6]
    as_json = cnr("rows", original, "word", "--json")
    assert (len(as_json.json["rows"]), as_json.err) == (20, "")


def test_keys_and_positions_of_a_keyed_table(original: Path, cnr: Command) -> None:
    assert ids_in(cnr("rows", original, "visitor").out) == LIVE_VISITORS
    last, first = LIVE_VISITORS[-1], LIVE_VISITORS[0]
    found = cnr("rows", original, "visitor", f"{last},{first},{last}", "--json").json["rows"]
    assert [row["id"] for row in found] == [last, first, last]
    assert ids_in(cnr("rows", original, "visitor", first).out) == [first]
    assert ids_in(cnr("rows", original, "visitor", "--at", "-2:,0").out) == [*LIVE_VISITORS[-2:], LIVE_VISITORS[0]]
    assert ids_in(cnr("rows", original, "visitor", 99, "--version", 1).out) == [99]
    with cnrfmt.open(original) as ck:
        values = ck["visitor"][first]
    (row,) = cnr("rows", original, "visitor", first, "--json").json["rows"]
    assert row["values"] == values.tolist()


def test_other_columns_and_data_types(original: Path, cnr: Command, words: np.ndarray) -> None:
    found = cnr("rows", original, "word", 7, "--column", "accumulator", "--json").json
    # It is stored in logarithmic codes of 12 bits.
    assert found["rows"] == [{"id": 7, "values": [pytest.approx(float(np.abs(words[7]).mean()), rel=1 / 256)]}]
    half = cnr("rows", original, "half", 1, "--json").json
    assert half["dtype"] == "bfloat16"
    assert half["rows"][0]["values"] == words[1, :4].astype(ml_dtypes.bfloat16).astype(float).tolist()
    count = cnr("rows", original, "count", ":", "--json").json
    assert [row["values"] for row in count["rows"]] == (np.arange(8).reshape(4, 2) + 2**60).tolist()
    assert cnr("rows", original, "count", 0).out.split() == ["0", str(2**60), str(2**60 + 1)]


@pytest.mark.parametrize("columns", [40, 80, 132])
def test_wide_rows_are_shortened_to_the_line(
    columns: int, original: Path, cnr: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = cnr("rows", original, "word", "10:30").out.splitlines()
    assert max(map(len, lines)) <= columns
    with cnrfmt.open(original) as ck:
        values = ck["word"][10]
    shown = lines[0].split()
    assert float(shown[1]) == pytest.approx(values[0], rel=1e-5)
    assert float(shown[-1]) == pytest.approx(values[-1], rel=1e-5)
    assert "..." in shown
    # A narrow row is shown whole.
    assert len(cnr("rows", original, "visitor", "--at", 0).out.split()) == 4


def test_a_pipe_gets_whole_rows(original: Path, cnr: Command) -> None:
    assert [len(line.split()) for line in cnr("rows", original, "word", "0:3").out.splitlines()] == [65] * 3


def test_many_rows_are_read_in_chunks(tmp_path: Path, cnr: Command) -> None:
    path = tmp_path / "tall.cnr"
    values = np.arange(5000, dtype=np.float32)[:, None] ** 2
    cnrfmt.save(path, {"square": values})
    rows = cnr("rows", path, "square", "::-1,17", "--json").json["rows"]
    assert [row["id"] for row in rows] == [*range(4999, -1, -1), 17]
    assert all(row["values"] == [values[row["id"], 0]] for row in rows)
    shown = cnr("rows", path, "square", ":", "--limit", 4500).out.splitlines()
    assert [float(line.split()[1]) for line in shown] == pytest.approx(values[:4500, 0], rel=1e-5)


def test_a_table_without_rows(tmp_path: Path, cnr: Command) -> None:
    path = tmp_path / "empty.cnr"
    cnrfmt.save(path, {"none": np.empty((0, 3), np.float32), "few": cnrfmt.TableData(np.ones((1, 2)), keys=[5])})
    assert (cnr("rows", path, "none").out, cnr("rows", path, "none", "--json").json["rows"]) == ("", [])
    assert "has no rows, found 0" in cnr("rows", path, "none", 0).err
    cnrfmt.append(path, {"few": cnrfmt.Deleted([5])})
    assert "no key 5; it has 0 keys, none" in cnr("rows", path, "few", 5).err
    assert cnr("info", path).code == 0


def test_json_is_strict(original: Path, cnr: Command) -> None:
    def refuse(text: str) -> float:
        raise AssertionError(text)

    text = cnr("rows", original, "word", ":", "--json").out
    rows = json.loads(text, parse_constant=refuse)["rows"]
    assert sum(isinstance(v, str) and not math.isfinite(float(v)) for row in rows for v in row["values"]) == 3
