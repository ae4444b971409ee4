"""What the pages of docs/ show is what happens, and the words in them are words that the command takes."""

from __future__ import annotations

import doctest
import inspect
import re
from pathlib import Path

import pytest

import cnrfmt
from cnrfmt.cli.quantization import choices_of
from cnrfmt.encodings import grid

DOCS = Path(__file__).resolve().parent.parent / "docs"
QUANTISATION, CHECKPOINTING, GRID, SERVING, OPERATORS = (
    DOCS / f"{name}.md" for name in ("quantisation", "checkpointing", "grid", "serving", "operators")
)


@pytest.mark.parametrize(
    ("page", "examples"), [(QUANTISATION, 11), (CHECKPOINTING, 14), (GRID, 19), (SERVING, 20), (OPERATORS, 20)]
)
def test_the_examples_print_what_they_say(
    page: Path, examples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted >= examples
    assert result.failed == 0


def test_the_words_are_taken() -> None:
    words = re.findall(r"`([a-z]+=\d:[a-z=]+)", QUANTISATION.read_text("utf-8"))
    words += re.findall(r"--quantize (grid:[^`]+)`", GRID.read_text("utf-8"))
    assert words == ["user=8:column=momentum", "grid:step=0.01"]
    assert choices_of(words)


def test_the_arguments_are_there() -> None:
    manager = cnrfmt.CheckpointManager
    calls = (manager, manager.save, manager.restore, cnrfmt.Keep, cnrfmt.Shard, cnrfmt.TableData)
    others = (cnrfmt.Consecutive, cnrfmt.Intermittent, cnrfmt.Quantize, cnrfmt.compact)
    known = {name for call in (*calls, *others) for name in inspect.signature(call).parameters}
    named = set(re.findall(r"\b([a-z_]+)=(?!=)", CHECKPOINTING.read_text("utf-8")))
    assert named >= {"policy", "keep", "bits", "into", "coordinator"}
    assert named <= known


def test_the_arguments_of_serving_are_there() -> None:
    live, ck = cnrfmt.LiveTables, cnrfmt.Checkpoint
    calls = (
        live,
        live.follow,
        live.advance,
        ck.hydrate,
        cnrfmt.follow,
        cnrfmt.open,
        cnrfmt.TableData,
        cnrfmt.Table.pool,
        cnrfmt.CheckpointManager.restore,
    )
    known = {name for call in calls for name in inspect.signature(call).parameters}
    named = set(re.findall(r"\b([a-z_]+)=(?!=)", SERVING.read_text("utf-8"))) - {"step"}
    assert named >= {"hold", "shard", "shard_by", "into", "max_age", "since"}
    assert named <= known


def test_the_page_of_the_grid_has_its_numbers_and_arguments() -> None:
    text = GRID.read_text("utf-8")
    assert f"between 1/{2**grid.FINER} and 1;" in text
    known = [(few, f"of {most * times:g}/n", f", at most {most:g}") for few, most, times in grid.COUNTED_BY_RESTORES]
    (few, *first), *between, (_, *last) = known
    whose = "learning rates in the n-th checkpoint that a row is in"
    words = "; ".join(f"up to {more}: {''.join(length)}" for more, *length in between)
    expected = f"Up to {few} restore: steps {f' {whose}'.join(first)}; {words}; more, or nothing said: {''.join(last)}."
    assert expected in text
    listed = text.split("usual names of the state of such optimizers (")[1].split(" and their like")[0]
    usual = re.findall(r"`([a-z_]+)`", listed)
    assert len(usual) == len(set(usual) & set(grid.ACTIVITIES)) == 3
    manager = cnrfmt.CheckpointManager
    calls = (cnrfmt.Grid, manager, manager.save, cnrfmt.save, cnrfmt.compact, cnrfmt.Quantize, cnrfmt.TableData)
    known = {name for call in calls for name in inspect.signature(call).parameters}
    # Of numpy.
    named = set(re.findall(r"\b([a-z_]+)=(?!=)", text)) - {"size", "axis"}
    assert named >= {"learning_rate", "expected_restores", "c", "by", "payload", "one_valued", "stored_bytes"}
    assert named <= known
