"""What the pages of docs/ show is what happens, and the words in them are words that the command takes."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from cnrfmt.cli.quantization import choices_of

QUANTISATION = Path(__file__).resolve().parent.parent / "docs" / "quantisation.md"


def test_the_examples_print_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = doctest.testfile(str(QUANTISATION), module_relative=False)
    assert result.attempted >= 11
    assert result.failed == 0


def test_the_words_are_taken() -> None:
    words = re.findall(r"`([a-z]+=\d:[a-z=]+)", QUANTISATION.read_text("utf-8"))
    assert words == ["user=8:column=momentum"]
    assert choices_of(words)
