"""The comparison with other formats: what the tool counts is what happened."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from tools.damage import peers
from tools.damage.peer_formats import Format, formats

TABLE = np.arange(4096, dtype=np.float32).reshape(64, 64)
CASES = 20


def plain(read: Any, name: str = "plain") -> Format:
    """A file of bare bytes, read as a test wants it."""
    return Format(name, "none", "numpy", lambda path, table: path.write_bytes(table.tobytes()), read)


def right(path: Path) -> Any:
    return np.frombuffer(path.read_bytes(), np.float32).reshape(64, 64)


def count(format_: Format, tmp_path: Path, kind: str = "bit flips", cases: int = CASES) -> dict[str, int]:
    return dict(peers.try_format(format_, tmp_path / "t", TABLE, kind, cases, 1))


def test_bare_bytes_answer_with_other_values_or_fail_to_be_a_table(tmp_path: Path) -> None:
    assert count(plain(right), tmp_path) == {"wrong": CASES}
    assert count(plain(right), tmp_path, "zeroed pages") == {"wrong": CASES}
    assert count(plain(right), tmp_path, "truncations") == {"found": CASES}


def test_what_does_not_look_is_unharmed(tmp_path: Path) -> None:
    assert count(plain(lambda path: TABLE), tmp_path) == {"unharmed": CASES}


def test_a_dead_process_is_a_crash_and_the_next_case_is_tried(tmp_path: Path) -> None:
    def dies(path: Path) -> Any:
        found = right(path)
        if found.tobytes() != TABLE.tobytes():
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    assert count(plain(dies), tmp_path) == {"crash": CASES}
    # What the dead left behind was mended.
    assert (tmp_path / "t").read_bytes() == TABLE.tobytes()


def test_a_process_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "PATIENCE", 0.5)

    def sleeps(path: Path) -> Any:
        if right(path).tobytes() != TABLE.tobytes():
            time.sleep(60)
        return TABLE

    assert count(plain(sleeps), tmp_path, cases=2) == {"hang": 2}


def test_a_format_that_does_not_read_its_own_table_is_no_result(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="undamaged table"):
        count(plain(lambda path: TABLE + 1), tmp_path)


def test_damage_is_drawn_from_all_files() -> None:
    files = {Path("a"): b"\0" * 10000, Path("b"): b"\x01" * 10000}
    random = Random(3)

    def spoil(kind: str) -> list[tuple[Path, bytes]]:
        drawn = [peers.drawn(files, kind, random) for _ in range(100)]
        return [(path, peers.damaged(files[path], kind, at, bit)) for path, at, bit in drawn]

    flips = spoil("bit flips")
    assert {path.name for path, _ in flips} == {"a", "b"}
    for path, data in flips:
        differ = np.frombuffer(data, np.uint8) ^ np.frombuffer(files[path], np.uint8)
        assert np.unpackbits(differ).sum() == 1
    cuts = spoil("truncations")
    assert all(files[path].startswith(data) and len(data) < 10000 for path, data in cuts)
    # A page of zeros can't be zeroed.
    zeroed = spoil("zeroed pages")
    assert {path.name for path, _ in zeroed} == {"b"}
    assert all(len(data) == 10000 and data.count(0) in (4096, 1808) for _, data in zeroed)


# LMDB and zarr aren't installed with the project; the others are what its tests need anyway.
@pytest.mark.parametrize(
    "name", ["cnrfmt, single file", "cnrfmt, directory", "safetensors", "h5py", "h5py, fletcher32", "numpy npz"]
)
@pytest.mark.parametrize("kind", peers.KINDS)
def test_each_format_is_tried(name: str, kind: str, tmp_path: Path) -> None:
    format_, file = formats(TABLE.shape)[name]
    counts = peers.try_format(format_, tmp_path / file, TABLE, kind, CASES, 1)
    assert counts.total() == CASES
    if name.startswith("cnrfmt"):
        assert counts.keys() <= {"found", "unharmed"}


def test_the_table_is_the_same_in_each(tmp_path: Path) -> None:
    for name in ("cnrfmt, directory", "safetensors", "h5py", "PyTorch DCP", "torch.save", "numpy npz"):
        format_, file = formats(TABLE.shape)[name]
        path = tmp_path / name / file
        path.parent.mkdir()
        format_.write(path, TABLE)
        assert format_.read(path).tobytes() == TABLE.tobytes()


def test_the_command_writes_both_results_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--cases", "5", "--formats", "cnrfmt, directory;safetensors", "--out", str(tmp_path)]
    options += ["--state", str(tmp_path / "state.json")]
    assert peers.main(options) == 0
    assert "safetensors, truncations" in capsys.readouterr().out
    result = json.loads((tmp_path / "peers.json").read_text("utf-8"))
    assert sum(result["formats"]["safetensors"]["kinds"]["bit flips"].values()) == 5
    table = (tmp_path / "peers.md").read_text("utf-8")
    assert table.count("\n| safetensors") == len(peers.KINDS)
    assert peers.main(options) == 0
    again = capsys.readouterr().out
    assert "safetensors, truncations" not in again
    assert "nothing left to try: the result of 20" in again
    assert json.loads((tmp_path / "peers.json").read_text("utf-8")) == result
    with pytest.raises(SystemExit):
        peers.main(["--formats", "stone"])


def test_a_wrong_answer_of_ours_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"cnrfmt, careless": (plain(right, "cnrfmt, careless"), "t")}
    monkeypatch.setattr(peers, "formats", lambda shape: entry)
    monkeypatch.setattr(peers, "trained_table", lambda rows: TABLE)
    assert peers.main(["--cases", "3", "--out", str(tmp_path)]) == 1
