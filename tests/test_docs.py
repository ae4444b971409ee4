"""What the pages of docs/ show is what happens, and the words in them are words that the command takes."""

from __future__ import annotations

import doctest
import inspect
import re
from pathlib import Path

import pytest

import cnrfmt
from cnrfmt.cli.quantization import choices_of

DOCS = Path(__file__).resolve().parent.parent / "docs"
QUANTISATION, CHECKPOINTING = DOCS / "quantisation.md", DOCS / "checkpointing.md"


@pytest.mark.parametrize(("page", "examples"), [(QUANTISATION, 11), (CHECKPOINTING, 14)])
def test_the_examples_print_what_they_say(
    page: Path, examples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted >= examples
    assert result.failed == 0


def test_the_words_are_taken() -> None:
    words = re.findall(r"`([a-z]+=\d:[a-z=]+)", QUANTISATION.read_text("utf-8"))
    assert words == ["user=8:column=momentum"]
    assert choices_of(words)


def test_the_arguments_are_there() -> None:
    manager = cnrfmt.CheckpointManager
    calls = (manager, manager.save, manager.restore, cnrfmt.Keep, cnrfmt.Shard, cnrfmt.TableData)
    policies = (cnrfmt.Consecutive, cnrfmt.Intermittent)
    known = {name for call in (*calls, *policies) for name in inspect.signature(call).parameters}
    named = set(re.findall(r"\b([a-z_]+)=(?!=)", CHECKPOINTING.read_text("utf-8")))
    assert named >= {"policy", "keep", "bits", "into", "coordinator"}
    assert named <= known
