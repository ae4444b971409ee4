"""Help, and what becomes of wrong calls."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cnrfmt
from cnrfmt.cli import main
from tests.cli.support import Command

VERBS = (
    "info",
    "ls",
    "rows",
    "diff",
    "verify",
    "salvage",
    "convert",
    "quantize",
    "compact",
    "plan",
    "plot",
    "gc",
    "tag",
    "serve",
    "demo",
)


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_each_verb_has_examples_and_exit_codes(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main([verb, "--help"])
    text = capsys.readouterr().out
    assert f"cnrfmt {verb}" in text.split("examples:")[1]
    assert "4  input or output failed" in text
    assert max(map(len, text.splitlines())) < 80


def test_the_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--help"])
    text = capsys.readouterr().out
    assert all(f"\n    {verb} " in text for verb in VERBS)
    assert max(map(len, text.splitlines())) < 80


def test_without_a_verb_the_usage_goes_to_stderr(cnr: Command) -> None:
    found = cnr()
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith("usage: cnrfmt")


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--version"])
    assert capsys.readouterr().out == f"cnrfmt {cnrfmt.__version__}\n"


USAGE_ERRORS = {
    "frob": "invalid choice: 'frob'",
    "info": "required: PATH",
    "info PATH --version x": "invalid int value: 'x'",
    "info PATH --version 9": "no version 9; the newest is 2",
    "info PATH --version -1": "no version -1",
    "ls PATH --frob": "unrecognized arguments: --frob",
    "rows PATH": "required: TABLE",
    "rows PATH nobody": "no table 'nobody'",
    "rows PATH word 300": "rows 0 to 299, found 300",
    "rows PATH word -301": "rows 0 to 299, found -301",
    "rows PATH word a": "such as 5, 0:10 or 1,5,9, found 'a'",
    "rows PATH word 1:5:0": "steps of 0",
    "rows PATH word 1 --column nothing": "no column 'nothing'",
    "rows PATH word --limit -1": "--limit must be 0 or more",
    "rows PATH visitor 0:3": "--at 0:3 takes positions",
    "rows PATH visitor 5": "no key 5; it has 5 keys",
    "rows PATH visitor 9223372036854775808": "integer of 64 bits",
    "rows PATH visitor x": "integer of 64 bits",
    "verify PATH --level deep": "invalid choice: 'deep'",
    "verify PATH --threads 0": "threads must be",
    "salvage PATH": "needs NEW",
    "salvage PATH PATH": "is there already",
    "salvage PATH x.cnr --whole --version 1": "not allowed with",
    "salvage PATH --dry-run --version 9": "no version 9 found",
    "salvage PATH --dry-run --table nobody": "no table 'nobody'",
    "diff PATH --from 9": "no version 9; the newest is 2",
    "diff PATH --to 0": "no version before 0 is retained",
    "diff PATH --tables nobody": "no table matches 'nobody'",
    "diff PATH --column nothing": "no column matches 'nothing'",
    "diff PATH --limit -1": "--limit must be 0 or more",
    "quantize PATH": "needs SRC and DST, or --dry-run",
    "quantize PATH x.cnr": "needs --quantize to know",
    "quantize PATH x.cnr --quantize 8 --rows 5": "--rows goes with --dry-run",
    "quantize PATH x.cnr --quantize 8 --plot x.png": "--plot goes with --dry-run",
    "quantize PATH x.cnr --quantize 8 --column c": "--column goes with --dry-run",
    "quantize PATH x.cnr --quantize 8": "--quantize NAME=raw",
    "quantize PATH PATH --quantize word=8": "is there already; --force gives it",
    "quantize PATH x.cnr --quantize nobody=8": "no table is named 'nobody'",
    "quantize x.npz x.cnr --quantize 8": "`cnrfmt convert SRC DST --quantize ...` makes one of a file",
    "quantize PATH --dry-run --force": "--dry-run writes nothing",
    "quantize PATH --dry-run --rows 0": "rows is an integer of at least 1",
    "quantize PATH --dry-run --tables half": "no float32 rows to try anything on; half.weight (bfloat16)",
    "quantize PATH --dry-run --quantize word=8": "--tables chooses tables",
    "quantize PATH --dry-run --quantize raw": "raw rows are what everything else is compared with",
    "quantize PATH --dry-run --plot x.what": "must end in one of",
    "quantize PATH --dry-run --plot /nowhere/x.png": "/nowhere is no directory",
    "convert PATH x.cnr": "`cnrfmt quantize` makes one of another",
    "convert PATH x.npz --quantize 9": "--quantize 9: bits is one of 2, 3, 4, 5, 6, 7, 8, 'auto'",
    "convert PATH x.npz --quantize eight": "--quantize eight: there are no bits in it",
    "convert PATH x.npz --quantize =8": "--quantize =8: there are no bits in it",
    "convert PATH x.npz --quantize a=4:adaptve": "a=4:adaptve: 'adaptve' is none of symmetric, ",
    "convert PATH x.npz --quantize 4:kmeans:blok=8": "no key is named 'blok'; the keys are method, ",
    "convert PATH x.npz --quantize 4:kmeans:block=x": "block is an integer, found 'x'",
    "convert PATH x.npz --quantize 4:group=auto": "group is an integer, found 'auto'",
    "convert PATH x.npz --quantize 4:max_error=x": "max_error is a number, found 'x'",
    "convert PATH x.npz --quantize 4:lsq:adaptive": "method twice",
    "convert PATH x.npz --quantize 3:tail": "don't go together; tail takes 8 bits",
    "convert PATH x.npz --quantize 4:group=12": "--quantize 4:group=12: group is a multiple of 8",
    "convert PATH x.npz --quantize raw:head": "raw takes nothing but column=NAME, found layout",
    "convert PATH x.npz --quantize a=4:column=c a=8:column=c": "'a', column 'c', twice",
    "convert PATH x.npz --quantize 8 4": "bits for all tables twice",
    "convert PATH x.npz --quantize a=8 a=4": "'a' twice",
    "convert PATH x.what": "--to",
    "demo --bits 9": "invalid choice: 9",
    "gc": "required: PATH",
    "gc PATH --keep 0": "--keep is an integer of at least 1, found 0",
    "gc PATH --every-steps 0": "--every-steps is an integer of at least 1, found 0",
    "gc PATH --every-minutes 0": "--every-minutes is a number above 0, found 0.0",
    "gc PATH --best auc": "such as auc:3:max, found 'auc'",
    "gc PATH --best auc:3:top": "such as auc:3:max, found 'auc:3:top'",
    "gc PATH --best auc:0:max": "the number of checkpoints by 'auc' is an integer of at least 1",
    "gc PATH --grace soon": "such as 2h, found 'soon'",
    "tag PATH --delete": "tag needs NAME",
    "tag PATH prod --delete": "no version has the tag 'prod'; there are none",
    "tag PATH prod --version 9": "version 9 isn't there; those that can have a tag are 0, 1, 2",
    "tag PATH prod --version 1 --delete": "not allowed with",
}


@pytest.mark.parametrize("line", USAGE_ERRORS)
def test_a_wrong_call_ends_in_one_line_and_2(line: str, original: Path, cnr: Command) -> None:
    argv = [str(original) if word == "PATH" else word for word in line.split()]
    found = cnr(*argv)
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith("cnrfmt: ")
    assert found.err.count("\n") == 1
    assert USAGE_ERRORS[line] in found.err
    as_json = cnr(*argv, "--json")
    error = json.loads(as_json.err)["error"]
    assert (as_json.code, error["exit_code"], as_json.out) == (2, 2, "")
    assert USAGE_ERRORS[line] in error["message"]


def test_options_may_stand_anywhere(original: Path, cnr: Command) -> None:
    expected = cnr("rows", original, "word", "-3:", "--column", "accumulator", "--json").out
    assert expected
    for argv in (
        ["--json", original, "word", "--column", "accumulator", "-3:"],
        [original, "--column=accumulator", "word", "--json", "-3:"],
        [original, "word", "--at", "-3:", "--json", "--column", "accumulator"],
    ):
        assert cnr("rows", *argv).out == expected
