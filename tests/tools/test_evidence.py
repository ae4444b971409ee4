"""The page of what has been tried says what the results say."""

from __future__ import annotations

import pytest

from tools import evidence


def test_the_page_says_what_the_results_say() -> None:
    assert evidence.main(["--check"]) == 0


def test_a_page_that_says_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(evidence.TABLES, "engines", lambda: "| another table |")
    assert evidence.main(["--check"]) == 1
