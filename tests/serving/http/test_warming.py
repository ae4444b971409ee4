"""What is asked before the server says that it is ready."""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt.serving.http.warming import warm
from cnrfmt.serving.live_rows import LiveRows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "run7"
    rows = np.ones((10, 4), np.float32)
    keyed = cnrfmt.TableData(rows, keys=np.arange(10) * 1000)
    cnrfmt.save(found, {"user": rows, "visitor": keyed, "count": np.ones((10, 1), np.int64), "none": rows[:0]})
    return found


def test_each_table_is_asked_in_every_way_and_an_update_is_taken_in(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[tuple[str, str]] = Counter()
    moved: list[bool] = []
    folder = path.with_name("temporary")
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))

    def noting(name: str) -> Any:
        plain = getattr(LiveRows, name)

        def call(rows: LiveRows, ids: Any, *words: Any, **named: Any) -> Any:
            asked[rows.name, name] += 1
            assert ids.flags.writeable
            return plain(rows, ids, *words, **named)

        return call

    for name in ("lookup", "pool"):
        monkeypatch.setattr(LiveRows, name, noting(name))
    advance = cnrfmt.LiveTables.advance
    monkeypatch.setattr(cnrfmt.LiveTables, "advance", lambda live: moved.append(advance(live)))
    with cnrfmt.LiveTables(path, shard=(0, 2)) as live:
        warm(live, threading.Event())
        assert live.version == 0
        names = set(live)
    # The second look brings rows back to their places.
    assert moved == [True, False]
    assert {name for name, how in asked if how == "lookup"} == {*names, "dense", "keyed"}
    assert {name for name, how in asked if how == "pool"} == {"user", "visitor", "none", "dense", "keyed"}
    # Before and after the update.
    assert asked["dense", "lookup"] == asked["keyed", "pool"] == 2
    assert list(folder.iterdir()) == []


def test_it_ends_early_and_needs_no_place_to_write_to(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    over.set()
    with cnrfmt.LiveTables(path) as live:
        with monkeypatch.context() as patch:
            patch.setattr(LiveRows, "lookup", None)
            patch.setattr(cnrfmt.LiveTables, "advance", None)
            warm(live, over)
        monkeypatch.setattr(tempfile, "tempdir", str(path / "nowhere"))
        warm(live, threading.Event())
