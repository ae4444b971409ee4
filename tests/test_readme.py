"""What README.md shows is what happens."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_example_prints_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = doctest.testfile(str(README), module_relative=False)
    assert result.attempted >= 8
    assert result.failed == 0


def test_there_are_two_set_up_commands() -> None:
    blocks = re.findall(r"^```\n(.*?)^```$", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert blocks == ["pip install '.[demo]' && cnrfmt demo\n", "pip install -e '.[test]' && pytest\n"]
