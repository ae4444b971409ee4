"""Tombstones by runs: 16 bytes delete 67 million rows, in every one of 256 segments. All of it is legal."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

import cnrfmt
from tests.attacks.support import Store, accepted, cases, command, in_child, layout

MOST = 1 << 26
SEGMENTS = 255


def _store(count: int, segments: int) -> Store:
    """A keyed table of four rows; each further version deletes `count` other keys by one run."""
    store = Store(folder=True)
    baseline = layout.Segment("A", None, layout.state("0"))
    cases.visitor(baseline)
    chain = [store.put(baseline)]
    for number in range(segments):
        start = 1000 + number * MOST
        delta = layout.Segment(f"B{number}", layout.state(str(number)), layout.state(str(number + 1)))
        table = layout.Table(delta, cases.table_id(cases.VISITOR), None)
        section = delta.section(struct.pack("<qQ", start, count))
        table.json["deleted"] = table.row_set("runs", count, start, start + count - 1, section)
        chain.append(store.put(delta))
    store.commit(layout.state(str(segments)), [cases.VISITOR], chain)
    return store


def _read(path: Path) -> Any:
    with cnrfmt.open(path, max_bytes=16 << 20) as ck:
        table = ck["visitor"]
        assert table.keys is not None
        return table.keys.tolist(), table[...].tolist(), len(table), 5 in table, 2000 in table


def test_tombstones_are_never_written_out(tmp_path: Path) -> None:
    """Written out, they would take 128 GiB."""
    expected = in_child(_read, accepted(tmp_path, _store(1, 1)))
    path = accepted(tmp_path / "many", _store(MOST, SEGMENTS))
    assert in_child(_read, path) == expected == ([-7, 0, 5, 12], cases.weights(4).tolist(), 4, True, False)


def test_the_command_prints_it_in_bounded_memory(tmp_path: Path) -> None:
    path = accepted(tmp_path, _store(MOST, 20))
    for words in (["info"], ["ls"], ["rows", "visitor"], ["verify"]):
        code, out, err = in_child(command, path, *words)
        assert code == 0, (words, err)
        assert out


def _changes(path: Path, max_bytes: int | None) -> Any:
    with cnrfmt.open(path, version=1, max_bytes=max_bytes) as ck:
        return len(ck["visitor"].changed(0).deleted)


def _history(path: Path) -> None:
    keys = np.arange(4)
    cnrfmt.save(path, {"visitor": cnrfmt.TableData(np.ones((4, 3), np.float32), keys=keys)})
    cnrfmt.append(path, {"visitor": cnrfmt.Deleted(np.arange(10, 1 << 20))})


def test_a_list_of_what_was_deleted_is_bounded_by_the_caller(tmp_path: Path) -> None:
    """That list is what was asked for; it is as long as it is."""
    path = tmp_path / "model.cnr"
    _history(path)
    assert isinstance(in_child(_changes, path, 1 << 20), cnrfmt.TooLargeError)
    assert in_child(_changes, path, None) == (1 << 20) - 10
