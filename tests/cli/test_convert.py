"""`convert` and `demo`: what they pass on, and what they say of it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import cnrfmt
from cnrfmt import Grid
from cnrfmt.cli.quantization import choices_of
from cnrfmt.demo import run as demo_run
from tests.cli.support import Command


@pytest.fixture
def model(tmp_path: Path, words: np.ndarray[Any, Any]) -> Path:
    """A safetensors file: three matrices, and one array that is none."""
    path = tmp_path / "model.safetensors"
    tensors = {"user.new": words[:20, :8], "user.old": words[20:60, :8], "item": words[60:], "scale": words[0]}
    save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, path)
    return path


def encodings(path: Path) -> dict[str, str]:
    with cnrfmt.open(path) as ck:
        layouts = {name: table.encoding for name, table in ck.items()}
    return {name: str(getattr(layout, "bits", "raw")) for name, layout in layouts.items()}


QUANTIZE = {
    "": {"item": "raw", "user.new": "raw", "user.old": "raw"},
    "8": {"item": "8", "user.new": "8", "user.old": "8"},
    "user*=4": {"item": "raw", "user.new": "4", "user.old": "4"},
    "8 user.new=raw": {"item": "8", "user.new": "raw", "user.old": "8"},
    "user.o*=2 user*=4 8": {"item": "8", "user.new": "4", "user.old": "2"},
}


@pytest.mark.parametrize("words_given", QUANTIZE)
def test_bits_and_patterns(words_given: str, model: Path, tmp_path: Path, cnr: Command) -> None:
    options = ["--quantize", *words_given.split()] if words_given else []
    found = cnr("convert", model, tmp_path / "out.cnr", *options)
    assert (found.code, found.err) == (0, "")
    assert found.out.startswith(f"{tmp_path / 'out.cnr'}, version 0: 3 tables, 1 dense entry, ")
    assert encodings(tmp_path / "out.cnr") == QUANTIZE[words_given]


def test_a_file_without_matrices_is_said_to_have_no_tables(tmp_path: Path, cnr: Command) -> None:
    np.savez(tmp_path / "flat.npz", x=np.zeros(5, np.float32), y=np.ones(3))
    none = "none of the arrays is a table (of numbers, in two dimensions)"
    for options in ([], ["--quantize", "8"]):
        found = cnr("convert", tmp_path / "flat.npz", tmp_path / f"{len(options)}.cnr", *options)
        assert (found.code, found.err) == (0, "")
        assert found.out.splitlines()[1:] == [f"  {none}"]
    for option, word in (("--quantize", "x=8"), ("--tables", "x")):
        found = cnr("convert", tmp_path / "flat.npz", tmp_path / "no.cnr", option, word)
        assert (found.code, found.out) == (2, "")
        assert found.err == f"cnrfmt: {tmp_path / 'flat.npz'}: {none}; leave {option} out\n"
    assert not (tmp_path / "no.cnr").exists()


SCHEMES = {
    "3:lsq:starts=4:never_worse": cnrfmt.Quantize(3, method="lsq", starts=4, never_worse=True),
    "4:kmeans:block=64": cnrfmt.Quantize(4, method="kmeans", block=64),
    "8:head": cnrfmt.Quantize(8, layout="head"),
    "5:group=16:params=bfloat16": cnrfmt.Quantize(5, group=16, params="bfloat16"),
    "2:adaptive:num_bins=auto:ratio=auto": cnrfmt.Quantize(2, method="adaptive", num_bins="auto", ratio="auto"),
    "2:adaptive:num_bins=30:ratio=0.25": cnrfmt.Quantize(2, method="adaptive", num_bins=30, ratio=0.25),
    "4:method=symmetric:layout=packed": cnrfmt.Quantize(4, method="symmetric", layout="packed"),
    "auto:restores=3": cnrfmt.Quantize("auto", restores=3),
    "auto:mean_error=0.05:max_error=.5": cnrfmt.Quantize("auto", mean_error=0.05, max_error=0.5),
    "8:one_valued=log16": cnrfmt.Quantize(one_valued="log16"),
    "32": None,
}


@pytest.mark.parametrize("word", SCHEMES)
def test_every_scheme_has_a_word(word: str) -> None:
    expected = SCHEMES[word]
    assert choices_of([word]) == {"*": expected}
    assert choices_of([f"a:b/c=*={word}"]) == {"a:b/c=*": expected}
    assert choices_of([f"user={word}:column=mom*", f"{word}:column=x"]) == {
        ("user", "mom*"): expected,
        ("*", "x"): expected,
    }


GRIDS = {
    "grid:step=0.01": Grid(step=0.01),
    "grid:learning_rate=0.02:restores=3:payload=packed": Grid(learning_rate=0.02, restores=3, payload="packed"),
    "grid:learning_rate=.02:c=1:by=momentum:one_valued=log16": Grid(
        learning_rate=0.02, c=1, by="momentum", one_valued="log16"
    ),
}


@pytest.mark.parametrize("word", GRIDS)
def test_grids_have_words(word: str) -> None:
    assert choices_of([f"user*={word}", "8"]) == {"user*": GRIDS[word], "*": cnrfmt.Quantize(8)}
    assert choices_of([word]) == {"*": GRIDS[word]}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("grid", "or step alone; found none of them"),
        ("grid:step=1:step=2", "step twice"),
        ("grid:step=small", "step is a number, found 'small'"),
        ("grid:step", "'step' is no KEY=VALUE of a grid; keys: learning_rate, "),
        ("grid:step=1:column=m", "'column=m' is no KEY=VALUE of a grid"),
        ("grid:step=1:payload=zip", "payload is one of 'fixed', 'packed', 'rans'; found 'zip'"),
        ("grid:step=nan", "step must be a number above 0"),
        ("t=grid:step=1:c=2", "found c and step: leave out c, or step"),
    ],
)
def test_wrong_words_of_grids(word: str, message: str, model: Path, tmp_path: Path, cnr: Command) -> None:
    found = cnr("convert", model, tmp_path / "out.cnr", "--quantize", word)
    assert found.code == 2
    assert f"--quantize {word}: " in found.err
    assert message in found.err
    assert not (tmp_path / "out.cnr").exists()


def test_rows_are_put_on_a_grid_and_off_it(tmp_path: Path, cnr: Command) -> None:
    values = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)
    state = np.linspace(1, 2, 30, dtype=np.float32)
    cnrfmt.save(tmp_path / "a.cnr", {"t": cnrfmt.TableData(values, columns={"accumulator": state})})
    assert cnr("convert", tmp_path / "a.cnr", tmp_path / "a.npz").code == 0
    assert cnr("convert", tmp_path / "a.npz", tmp_path / "b.cnr", "--quantize", "grid:step=0.1").code == 0
    assert cnr("quantize", tmp_path / "a.cnr", tmp_path / "c.cnr", "--quantize", "t=grid:step=0.1").code == 0
    found = cnrfmt.load(tmp_path / "b.cnr")["t"]
    assert np.array_equal(found, cnrfmt.load(tmp_path / "c.cnr")["t"])
    assert 0 < np.abs(found - values).max() <= 0.0625 * 2
    lines = [" ".join(line.split()) for line in cnr("info", tmp_path / "b.cnr").out.splitlines()]
    # The median of the rows that are above the least of all.
    words = "t.weight grid of 2^-7, rans (step 2^-3 = 0.125 nearest to 0.1, finer by accumulator above 1.52) 30 0 "
    assert any(line.startswith(words) for line in lines), lines
    for verb, options in (("quantize", ["--dry-run", "--quantize"]), ("compact", [tmp_path / "d.cnr", "--encoding"])):
        refused = cnr(verb, tmp_path / "b.cnr", *options, "grid:step=1")
        assert refused.code == 2
        assert "grid" in refused.err
    assert not (tmp_path / "d.cnr").exists()


def test_words_for_all_tables_come_last() -> None:
    assert list(choices_of(["8", "4=2", "user*=raw", "raw:column=m"]) or ()) == ["4", "user*", "*", ("*", "m")]
    assert choices_of([]) is None
    assert choices_of(None) is None


def test_a_column_is_quantised_if_it_is_named(tmp_path: Path, cnr: Command) -> None:
    values = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)
    cnrfmt.save(tmp_path / "a.cnr", {"t": cnrfmt.TableData(values, columns={"m": values, "g": values[:, 0] ** 2})})
    assert cnr("convert", tmp_path / "a.cnr", tmp_path / "a.h5").code == 0
    words = ["t=4:kmeans:one_valued=bfloat16", "t=8:column=m"]
    assert cnr("convert", tmp_path / "a.h5", tmp_path / "b.cnr", "--quantize", *words).code == 0
    columns = cnr("info", tmp_path / "b.cnr", "--json").json["tables"][0]["columns"]
    assert {c["name"]: c["encodings"] for c in columns} == {
        "weight": ["kmeans 4-bit"],
        "m": ["asymmetric 8-bit tail"],
        "g": ["bfloat16"],
    }


def test_there_and_back(model: Path, tmp_path: Path, cnr: Command) -> None:
    assert cnr("convert", model, tmp_path / "run7", "--tables", "user*", "item").code == 0
    facts = cnr("convert", tmp_path / "run7", tmp_path / "back.npz", "--json").json
    assert (facts["source_format"], facts["target_format"]) == ("cnr", "npz")
    assert sorted(facts["tables"]) == ["item", "user.new", "user.old"]
    tables = cnrfmt.load(tmp_path / "run7")
    with np.load(tmp_path / "back.npz") as back:
        assert all(np.array_equal(back[name], tables[name]) for name in tables)


def test_what_is_there_stays_unless_forced(model: Path, tmp_path: Path, cnr: Command) -> None:
    target = tmp_path / "out.cnr"
    assert cnr("convert", model, target).code == 0
    refused = cnr("convert", model, target)
    assert refused.code == 2
    assert "--force replaces it" in refused.err
    assert cnr("verify", target, "--json").json["versions"] == [0]
    assert "out.cnr, version 1: " in cnr("convert", model, target, "--force").out


def test_errors_speak_of_options(tmp_path: Path, cnr: Command, words: np.ndarray[Any, Any]) -> None:
    np.savez(tmp_path / "half.npz", half=words.astype(np.float16))
    refused = cnr("convert", tmp_path / "half.npz", tmp_path / "half.cnr", "--quantize", 8)
    assert refused.code == 2
    assert "--quantize NAME=raw" in refused.err
    assert cnr("convert", tmp_path / "half.npz", tmp_path / "half.cnr", "--quantize", 8, "half=raw").code == 0


def test_a_damaged_source_is_damage(model: Path, tmp_path: Path, cnr: Command) -> None:
    with model.open("r+b") as f:
        f.truncate(1000)
    found = cnr("convert", model, tmp_path / "out.cnr")
    assert found.code == 1
    assert not (tmp_path / "out.cnr").exists()


DEMOS: dict[str, dict[str, Any]] = {
    "": {"path": "demo.cnr", "bits": None, "checkpoint_every": 500, "seed": 0, "plot": None, "json": False},
    "x.cnr --bits 32 --checkpoint-every 50 --seed 3 --json": {
        "path": "x.cnr",
        "bits": 32,
        "checkpoint_every": 50,
        "seed": 3,
        "json": True,
    },
    "x.cnr --plot": {"path": "x.cnr", "plot": Path("x.png")},
    "--policy one-shot": {"path": "demo.cnr", "policy": "one-shot"},
    "--plot p.svg --threads 1": {"path": "demo.cnr", "plot": "p.svg", "threads": 1},
}


@pytest.mark.parametrize("line", DEMOS)
def test_the_demo_gets_its_options(line: str, cnr: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    signature = inspect.signature(demo_run.run_demo)
    calls: list[dict[str, Any]] = []

    def record(*args: Any, **options: Any) -> dict[str, Any]:
        bound = signature.bind(*args, **options)
        bound.apply_defaults()
        calls.append(bound.arguments)
        return {}

    monkeypatch.setattr(demo_run, "run_demo", record)
    assert cnr("demo", *line.split()).code == 0
    (call,) = calls
    assert {key: call[key] for key in DEMOS[line]} == DEMOS[line]


def test_what_isnt_there_ends_in_4_as_with_every_verb(original: Path, tmp_path: Path, cnr: Command) -> None:
    nowhere = tmp_path / "nowhere.cnr"
    for argv in (
        ["convert", nowhere, tmp_path / "t.npz"],
        ["convert", tmp_path / "nowhere.npz", tmp_path / "t.cnr"],
        ["verify", nowhere],
        ["info", nowhere],
        ["rows", nowhere, "t"],
        ["salvage", nowhere, tmp_path / "new.cnr"],
        ["salvage", original, tmp_path / "no" / "folder" / "new.cnr"],
    ):
        found = cnr(*argv)
        assert (found.code, found.out) == (4, ""), argv
        assert found.err.count("\n") == 1
