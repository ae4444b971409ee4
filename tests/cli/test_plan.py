"""`plan`: what checkpoints will cost, for tables that are there and for tables that aren't yet."""

from __future__ import annotations

from pathlib import Path

import pytest

import cnrfmt
from cnrfmt.checkpointing.costs import rates
from cnrfmt.cli import main
from cnrfmt.sizes import commit_sizes
from tests.cli.support import Command

GIVEN = ("--rate", "encode=2000", "--rate", "gather=1000", "--rate", "write=500")


def lines_of(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_a_plan_for_tables_that_are_not_there_yet(cnr: Command) -> None:
    words = ["--table", "user:100000x64:accumulator", "--table", "item:3000x16", "--touched", "26%"]
    found = cnr("plan", *words, "--expected-restores", 3, "--dense-bytes", 5000, *GIVEN)
    assert (found.code, found.err) == (0, "")
    lines = lines_of(found.out)
    assert lines[0] == "intermittent, 12 checkpoints"
    assert lines[1] == "KIND ROWS WRITTEN KEPT RESTORE STALL WRITE"
    assert "".join(line.split()[1][0] for line in lines[2:14]) == "bsssssssbsss"
    # 28 bytes a row at 3 bits, 1.5 an accumulator; 260 bytes a row in memory.
    assert lines[2].startswith("0 baseline 103,000 3.0")
    assert lines[2].endswith(" ms")
    assert lines[15:17] == ["what is written", "WEIGHTS OPTIMIZER IDS REST ALL"]
    assert lines[17].startswith("0 2.83 MB 150 kB 0 B ")
    # As many bytes as the table above says.
    assert [line.split()[3:5] for line in lines[2:14]] == [line.split()[-2:] for line in lines[17:29]]
    assert "bits: 3 for 3 restores expected; 1 version kept readable, in a directory" in lines
    assert any(line.startswith("rates of all threads on this machine: encode 2,000 MB/s (given), ") for line in lines)
    assert any(line.startswith("0.26 of the rows in an interval, Zipf's law with exponent 1.05") for line in lines)
    assert any(line.startswith("written on average") for line in lines)
    assert not any(line.startswith("too slow") for line in lines)


def test_it_fits_a_terminal(cnr: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 80 columns, for as many rows as most will ever have: no cell folds, and no line is longer."""
    words = ["--table", "user:4000000000x64:accumulator", "--table", "item:50000x32", "--touched", "26%", "--bits", 3]
    monkeypatch.setenv("COLUMNS", "80")
    narrow = cnr("plan", *words, *GIVEN).out
    monkeypatch.setenv("COLUMNS", "200")
    wide = cnr("plan", *words, *GIVEN).out
    assert max(map(len, narrow.splitlines())) <= 80
    assert narrow.split("\nassumed\n")[0] == wide.split("\nassumed\n")[0]
    assert narrow.split() == wide.split()


def test_the_tables_of_a_container(original: Path, cnr: Command) -> None:
    found = cnr("plan", original, "--touched", 0.5, "--quantize", "word=8", "--policy", "full", "--json", *GIVEN).json
    assert found["policy"] == "full"
    assert len(found["checkpoints"]) == 12
    assert found["measured"] == []
    assert found["rates"] == {"encode": 2e9, "gather": 1e9, "write": 5e8}
    first = found["checkpoints"][0]
    real = commit_sizes(original, 0)
    # One of the six visitors, of three numbers each, was deleted since. Rows that aren't finite are exact beside the
    # others, which nobody can know beforehand.
    assert first["bytes_by_part"]["weights"] == real["weights"] - 12
    assert first["bytes_by_part"]["ids"] == pytest.approx(real["ids"], abs=80)
    assert first["bytes_by_part"]["dense"] == pytest.approx(real["dense"], abs=64)
    assert first["rows"] == 300 + 6 + 5 + 4 - 1
    assert first["chain"] == 1
    assert first["held_bytes"] == first["read_bytes"] == first["bytes"] == sum(first["bytes_by_part"].values())
    assert found["average_bytes"] == first["bytes"]
    assert found["peak_bytes"] == 2 * first["bytes"]


def test_columns_and_kinds_of_tables(cnr: Command) -> None:
    words = ["--table", "a:b:1_000x8:keyed:m=dim:v:bfloat16", "--lookups", 300, "--zipf", 0, "--bits", "raw"]
    found = cnr("plan", *words, "--intervals", 2, "--json", *GIVEN).json
    first, second = found["checkpoints"]
    assert first["bytes_by_part"]["weights"] == 1000 * 16
    assert first["bytes_by_part"]["optimizer"] == 1000 * (32 + 4)
    assert 5000 < first["bytes_by_part"]["ids"] <= 8000
    # Of 1,000 rows alike, 300 lookups leave this many alone.
    assert second["rows"] == round(1000 * (1 - 0.999**300))
    assert found["plain_bytes"] == 1000 * (16 + 36 + 8)
    assert found["assumed"][0] == (
        "300 lookups in an interval, all rows looked up alike; which rows are popular doesn't change"
    )


def test_a_grid_says_what_is_typical(cnr: Command) -> None:
    words = ["plan", "--table", "user:100000x64:accumulator", "--table", "item:300x16", "--touched", "26%"]
    found = cnr(*words, "--encoding", "grid", "--expected-restores", 3, *GIVEN)
    assert (found.code, found.err) == (0, "")
    lines = lines_of(found.out)
    assert lines[0] == "consecutive, 12 checkpoints"
    assert "on a grid, in steps for 3 restores expected; 1 version kept readable, in a directory" in lines
    text = " ".join(lines)
    assert (
        "typical of trainers with Adagrad, and a third more or less for others; 1.65 bits per value in steps of 3 "
        "learning rates over the checkpoints that a row was in; all rows of a baseline taken for trained"
    ) in text
    assert "bits: " not in text
    # 64 values of 1.65 bits and 4.2 a row.
    first = cnr(*words, "--encoding", "grid", "--expected-restores", 3, "--json", *GIVEN).json["checkpoints"][0]
    assert first["bytes_by_part"]["weights"] == pytest.approx((100000 * 109.8 + 300 * 30.6) / 8, abs=3)
    # Nothing said may mean any number of restores.
    plan = cnr(*words, "--encoding", "grid", "--policy", "full", "--json", *GIVEN).json
    assert (plan["policy"], plan["assumed"][1].split(";")[0]) == (
        "full",
        "on a grid, in steps for any number of restores",
    )
    assert "3.31 bits per value in steps of 0.625 learning rates" in plan["assumed"][2]
    failing = ["--failure-rate", 0.05, "--run-hours", 100]
    plan = cnr(*words, "--encoding", "grid", *failing, "--json", *GIVEN).json
    assert "2.4 bits per value in steps of 1.25 learning rates" in plan["assumed"][2]
    some = cnr(*words, "--quantize", "user=grid:learning_rate=0.1:c=2", "8", "--json", *GIVEN).json
    assert some["policy"] == "intermittent"
    assert "2 bits per value in steps of 2 learning rates" in some["assumed"][2]


def assumed_of_a_grid(cnr: Command, *words: object) -> list[str]:
    """What is assumed of each kind of table that is on a grid."""
    found = cnr("plan", "--touched", 0.1, "--json", *words, *GIVEN)
    assert (found.code, found.err) == (0, "")
    return [line for line in found.json["assumed"] if line.startswith("typical")]


def test_one_restore_is_not_several(cnr: Command) -> None:
    for words in (["--encoding", "grid"], []):
        for number, says in ((1, "for 1 restore expected;"), (0.5, "for 0.5 restores expected;")):
            options = ["--table", "t:10x4", "--touched", 0.1, "--expected-restores", number, *words]
            assert says in cnr("plan", *options, "--json", *GIVEN).json["assumed"][1]
    assert "in steps of 1 learning rate over" in assumed_of_a_grid(
        cnr, "--table", "t:10x4", "--quantize", "grid:learning_rate=1:c=1"
    )[0]


def test_a_plan_says_what_steps_go_by(cnr: Command) -> None:
    grid, table = "grid:learning_rate=1:restores=3", ["--table", "t:1000x4:accumulator:hits"]
    by = {word: assumed_of_a_grid(cnr, *table, "--quantize", word) for word in (grid, f"{grid}:by=hits")}
    assert "steps of 3 learning rates over the checkpoints that a row was in;" in by[grid][0]
    assert "steps of 2 learning rates for the median row by hits (measured" in by[f"{grid}:by=hits"][0]


def test_a_plan_speaks_of_the_columns_that_there_are(cnr: Command) -> None:
    adam = ["--table", "t:1000x4:exp_avg=dim:exp_avg_sq=dim:odd=dim"]
    (codes,) = assumed_of_a_grid(cnr, *adam, "--encoding", "grid", "--expected-restores", 3)
    assert "trainers with Adam, which moves rows as far late as early" in codes
    assert "3.1 bits of a value of a first moment; 2.7 bits of a value of a second moment, 6 in a baseline" in codes
    assert "odd as it is, since its name is no known moment's" in codes
    assert "logarithmic" not in codes
    (raw,) = assumed_of_a_grid(cnr, *adam, "--quantize", "grid:learning_rate=1:restores=3:moments=raw")
    assert "exp_avg as it is, since moments='raw' was asked for" in raw
    assert "of a first moment" not in raw
    adagrad = ["--table", "t:1000x4:accumulator", "--quantize", "grid:learning_rate=1:c=3:one_valued=log16"]
    (codes,) = assumed_of_a_grid(cnr, *adagrad)
    assert "12 bits of a 16-bit logarithmic code, 16 in a baseline" in codes
    assert "moment" not in codes


def test_weights_begin_as_large_as_is_said(cnr: Command) -> None:
    words = ["plan", "--table", "t:100000x64:exp_avg=dim:exp_avg_sq=dim", "--touched", "26%", "--encoding", "grid"]
    sizes, says = {}, {}
    for initial in (None, 1.5, 50, 100):
        said = [] if initial is None else ["--initial", initial]
        found = cnr(*words, "--expected-restores", 3, *said, "--json", *GIVEN).json
        sizes[initial] = [c["bytes_by_part"]["weights"] for c in found["checkpoints"][:2]]
        says[initial] = found["assumed"][2]
    assert sizes[None] == sizes[50]
    # A bit more for each of 64 values where weights are twice as large, in baselines alone.
    assert sizes[100][0] - sizes[50][0] == 100000 * 64 // 8
    assert len({delta for _, delta in sizes.values()}) == 1
    assert "7.11 in a baseline if weights begin with a root mean square of 50 learning rates (--initial)" in says[None]
    assert "all rows of a baseline taken for trained, if weights begin with a root mean square of 1.5" in says[1.5]


def test_help_offers_grids_that_a_plan_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["plan", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "grid:step=" not in text
    assert "Or it is grid:learning_rate=X with :restores=N or :c=F" in text


def test_merges_of_a_grid_are_counted(cnr: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["plan", "--table", "user:1000000x64:accumulator", "--touched", "26%", "--expected-restores", 3, *GIVEN]
    facts = cnr(*words, "--encoding", "grid", "--json").json
    checkpoints = facts["checkpoints"]
    at = [n for n, c in enumerate(checkpoints) if c["merge"]]
    first, baseline, merge = at[0], checkpoints[0], checkpoints[at[0]]["merge"]
    # The deltas are more than the baseline; manifests don't count.
    assert sum(c["bytes"] for c in checkpoints[1:first]) < 1.02 * baseline["bytes"]
    assert sum(c["bytes"] for c in checkpoints[1 : first + 1]) > 0.98 * baseline["bytes"]
    assert merge["rows"] == baseline["rows"]
    assert merge["bytes"] == sum(merge["bytes_by_part"].values()) == baseline["bytes"]
    assert checkpoints[first]["held_bytes"] == checkpoints[first]["read_bytes"] == merge["bytes"]
    merged = sum(checkpoints[n]["merge"]["bytes"] for n in at)
    written = sum(c["bytes"] for c in checkpoints) + merged
    assert facts["average_bytes"] == pytest.approx(written / 12)
    monkeypatch.setenv("COLUMNS", "80")
    found = cnr(*words, "--encoding", "grid").out
    assert max(map(len, found.splitlines())) <= 80
    lines = lines_of(found)
    rows = [n for n, line in enumerate(lines) if line.startswith("merge 1,000,000 ")]
    assert rows == [n + 3 + before for before, n in enumerate(at)]
    assert sum(line.startswith("merge ") for line in lines) == 2 * len(at)
    assert f"{merged / written:.0%} of it by {len(at)} merges of the chain" in lines
    # Rows by themselves aren't merged for their share, and differences from a baseline aren't at all.
    for others in (["--policy", "consecutive"], ["--encoding", "grid", "--policy", "one-shot"]):
        facts = cnr(*words, *others, "--json").json
        assert not any(c["merge"] for c in facts["checkpoints"])
    many = cnr(*words, "--policy", "consecutive", "--intervals", 40, "--json").json["checkpoints"]
    assert max(c["chain"] for c in many) == 32
    assert any(c["merge"] for c in many)


def test_rates_of_a_grid_are_measured(cnr: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "_WRITE_SECONDS", 0.01)
    monkeypatch.setattr(rates, "_TABLE", 1 << 16)
    monkeypatch.setattr(rates, "_ROUNDS", 1)
    words = ["--table", "t:1000x8:accumulator", "--touched", 0.1, "--folder", tmp_path, "--threads", 1]
    found = cnr("plan", *words, "--encoding", "grid", "--json").json
    assert found["measured"] == ["encode", "gather", "write"]
    assert min(found["rates"].values()) > 0


def test_rates_are_measured_unless_given(
    original: Path, tmp_path: Path, cnr: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "_WRITE_SECONDS", 0.01)
    before = set(original.parent.iterdir())
    found = cnr("plan", original, "--touched", 0.1, "--rate", "write=7", "--json").json
    assert found["measured"] == ["encode", "gather"]
    assert found["rates"]["write"] == 7e6
    found = cnr("plan", original, "--touched", 0.1, "--json", "--threads", 1).json
    assert found["measured"] == ["encode", "gather", "write"]
    assert min(found["rates"].values()) > 0
    assert set(original.parent.iterdir()) == before
    missing = cnr("plan", "--table", "a:5x5", "--touched", 0.1, "--folder", tmp_path / "missing")
    assert missing.code == 4
    # What such small tables take is mostly what any save takes.
    assert any("the tables are so small that" in line for line in found["assumed"])
    given = cnr("plan", original, "--touched", 0.1, "--json", *GIVEN).json
    assert not any("small" in line for line in given["assumed"])
    assert "missing" in missing.err


def test_what_is_too_slow_is_said(cnr: Command) -> None:
    slow = ["--rate", "encode=2000", "--rate", "gather=1000", "--rate", "write=0.001"]
    words = ["--table", "user:10000x64", "--touched", 0.26, "--policy", "full", "--minutes", 1]
    lines = lines_of(cnr("plan", *words, "--intervals", 30, *slow).out)
    assert "too slow 30 checkpoints of 30 can't be written before the next one is due" in lines
    assert "and 6 more (--json shows all)" in lines


def test_bits_come_of_failures_too(cnr: Command) -> None:
    words = ["plan", "--table", "user:100x4", "--touched", 0.1, *GIVEN]
    found = cnr(*words, "--failure-rate", 0.05, "--run-hours", 100, "--json").json
    assert found["assumed"][1].startswith("bits: 4 for 5 restores expected")
    assert cnr(*words, "--json").json["assumed"][1].startswith("bits: raw, but for")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "PATH, or --table"),
        ("x.cnr --table a:1x1 --touched 1", "PATH, or --table"),
        ("--table a:1x1", "--touched or --lookups"),
        ("--table a:1x1 --touched 1 --lookups 2", "--touched or --lookups"),
        ("--table a:1x1 --touched most", "such as 0.26 or 26%"),
        ("--table a:1x1 --touched 126%", "touched is a number from 0 to 1"),
        ("--table a:1 --touched 1", "it takes NAME:ROWSxDIM"),
        ("--table a:1x1:m:m --touched 1", "'m' is no column"),
        ("--table a:1x1:m=3 --touched 1", "'m=3' is no column"),
        ("--table a:1x1:weight --touched 1", "'weight' is no column"),
        ("--table a:1x1 --table a:2x2 --touched 1", "table 'a' twice"),
        ("--table a:1x0 --touched 1", "dim from 1"),
        ("--table a:1x1 --touched 1 --bits 5", "2, 3, 4, 8 or raw"),
        ("--table a:1x1 --touched 1 --bits 4 --expected-restores 3", "one of --bits"),
        ("--table a:1x1 --touched 1 --run-hours 3", "go together"),
        ("--table a:1x1 --touched 1 --policy best", "there are 'full'"),
        ("--table a:1x1 --touched 1 --rate speed=3", "it takes encode, gather, write"),
        ("--table a:1x1 --touched 1 --rate write=fast", "it takes encode, gather, write"),
        ("--table a:1x1 --touched 1 --rate write=0", "above 0"),
        ("--table a:1x1 --touched 1 --intervals 0", "intervals"),
        ("--table a:1x1 --touched 1 --quantize b=4", "no table is named 'b'"),
        ("--table a:1x1 --touched 1 --encoding grid --bits 4", "--bits and --quantize are for rows"),
        ("--table a:1x1 --touched 1 --encoding grid --quantize 4", "--bits and --quantize are for rows"),
        ("--table a:1x1 --touched 1 --quantize grid:step=1", "give the Grid learning_rate"),
        ("--table a:1x1 --touched 1 --encoding best", "invalid choice"),
        ("--table a:0x1 --touched 1", "no rows in any table"),
    ],
)
def test_wrong_calls(words: str, message: str, cnr: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rates_given = [] if "--rate" in words or "0x1" in words else GIVEN
    found = cnr("plan", *words.split(), *rates_given)
    assert (found.code, found.out) == (2, "")
    assert message in found.err
    assert not list(tmp_path.iterdir())


def test_a_plan_says_what_a_save_takes(tmp_path: Path, cnr: Command, words: object) -> None:
    import numpy as np

    rows = np.tile(np.asarray(words), (20, 1))
    cnrfmt.save(tmp_path / "run", {"word": rows}, quantize=cnrfmt.Quantize(4))
    real = sum(commit_sizes(tmp_path / "run").values())
    found = cnr("plan", tmp_path / "run", "--touched", 0.1, "--bits", 4, "--json", *GIVEN).json
    assert found["checkpoints"][0]["bytes"] == pytest.approx(real, rel=0.03)
