"""Text that steers a terminal: whoever prints what a file says lets it rewrite the screen or fake a verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.support import Store, accepted, cases, command, container, in_child, lay, layout

STEERING = ["\u009b2J", "\u202ereversed", "\u2028line", "a\u200bb", "\ufeffx", "\u0085next", "\ue000"]
ESCAPES = ["\x1b[2Jcleared", "\x1b]0;title\x07", "\r fine", "a\nsound"]
VERBS = (["info"], ["ls"], ["ls", "--dense"], ["ls", "--versions"], ["verify"], ["info", "--json"])


def _says(name: str, text: str) -> Store:
    """A table and a dense entry of a name, and metadata of a text."""
    schema = container.schema("user", name, 4, 3, cases.WEIGHT, cases.ACCUMULATOR)

    def content(segment: layout.Segment) -> None:
        cases.user(segment)
        segment.blob(name, "bytes", b"1")

    def words(value: Any) -> None:
        value["created_by"] = text

    return cases.one_small(content=content, tables=[schema], dense=True, metadata={"note": text}, hooks={"json": words})


def _printable(text: str) -> bool:
    return all(c.isprintable() or c == "\n" for c in text)


@pytest.mark.parametrize("text", [*STEERING, *ESCAPES])
def test_what_is_printed_is_printable(tmp_path: Path, text: str) -> None:
    name = text if text in STEERING else "user"
    path = accepted(tmp_path, _says(name, text))
    for words in VERBS:
        code, out, err = in_child(command, path, *words)
        assert code == 0, err
        assert _printable(out + err), (words, out, err)
        lines = [line for line in out.splitlines() if line.strip() in ("sound", "fine", "next")]
        assert not lines, lines
        if words[-1] == "--json":
            assert json.loads(out)["metadata"] == {"note": text}


@pytest.mark.parametrize("text", [*STEERING, *ESCAPES])
def test_errors_are_printable(tmp_path: Path, text: str) -> None:
    """What a damaged file says is part of the error that tells of it."""
    for number, (key, value) in enumerate((("created", text), ("state", text), ("tables", [text]), (text, 1))):
        path = lay(tmp_path / str(number), cases.one_small(hooks={"json": cases.put(key, value)}))
        for words in (["info"], ["verify"]):
            code, out, err = in_child(command, path, *words)
            assert code == 1
            assert _printable(out + err), (words, out, err)
            assert "sound" not in (out + err).splitlines()
