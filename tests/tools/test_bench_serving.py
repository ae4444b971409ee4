"""The benchmark of the serving side runs from end to end on little data. No test looks at a time."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import cnrfmt
from tools.bench import _data, serving
from tools.bench._serving_apply import Applying
from tools.bench._serving_live import Kept, Looked, Serving, Sizes, check_kept, zipf_batches
from tools.bench._serving_open import check, drop, is_cached, write_peer
from tools.bench._serving_processes import mapped_bytes
from tools.bench._setting import sync_file

# The others have tests of their own.
PARTS = {
    "open": (["--gigabytes", "0.001"], ["warm: LiveTables + a row", "safe_open", "load_file, whole", "<= 50 ms"]),
    "live": ([], ["updates: throughput, mean of a batch", "updates: freshness", " 0 torn or wrong;"]),
    "apply": (["--gigabytes", "0.001"], ["0.01 of the rows, 4-bit", "torch.load of float32"]),
    "pool": (
        ["--encodings", "float32,4", "--dims", "64", "--bags", "512", "--per-bag", "20"],
        ["pool: 4, 64 wide, 512 x 20 zipf ids", "embedding_bag"],
    ),
    "update": (["--gigabytes", "0.001"], ["0.01 of the rows, 4 bits, FBGEMM", "bags made anew"]),
    # Two processes, one after the other: each takes a second to begin.
    "processes": (
        ["--gigabytes", "0.001", "--readers", "1", "--encodings", "4-bit"],
        ["1 readers, 4-bit, mapped, PSS summed", "1 reader: "],
    ),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_reports_with_its_command_and_leaves_nothing_behind(
    part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scratch, results = tmp_path / "scratch", tmp_path / "results"
    scratch.mkdir()
    options, told = PARTS[part]
    common = ["--quick", "--repeat", "1", "--dir", str(scratch), "--results", str(results)]
    assert serving.main([part, *common, *options]) == 0
    text = (results / f"serving_{part}.txt").read_text()
    assert text == capsys.readouterr().out
    assert text.startswith(f"$ python -m tools.bench.serving {part} --quick")
    assert [words for words in told if words not in text] == []
    assert not list(scratch.iterdir())


@pytest.mark.parametrize("part", PARTS)
def test_every_part_has_the_options_that_it_is_given(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        serving.main([part, "--help"])
    assert end.value.code == 0
    told = capsys.readouterr().out
    assert all(f"--{name}" in told for name in ("quick", *serving.PARTS[part]))


def test_torn_and_newer_rows_are_counted() -> None:
    looked, rows = Looked(), np.full((6, 4), 3, np.float32)
    looked.check(3, rows)
    assert (looked.checked_rows, looked.wrong_rows) == (6, 0)
    rows[2, 3] = 2
    rows[4] = 4
    looked.check(3, rows)
    assert (looked.checked_rows, looked.wrong_rows) == (12, 2)


def test_kept_rows_are_those_of_their_version() -> None:
    sizes = Sizes(1000, 4, 100, 1.0)
    batches = zipf_batches(sizes.rows)
    expected = np.zeros(sizes.rows, np.int32)
    kept = [Kept(0, 3, expected[batches[3]])]
    for version in (1, 2):
        expected[sizes.changed_ids(version)] = version
        kept.append(Kept(version, 7, expected[batches[7]]))
    assert check_kept(kept[::-1], batches, sizes) == 0
    # What a version brought is missing, or comes a version early.
    changed = int(np.count_nonzero(kept[1].rows != kept[2].rows))
    assert changed > 0
    assert check_kept([kept[1]._replace(rows=kept[2].rows)], batches, sizes) == changed
    assert check_kept([kept[2]._replace(rows=kept[1].rows)], batches, sizes) == changed


def test_look_ups_ask_for_popular_rows() -> None:
    batches = zipf_batches(10_000)
    assert batches.min() >= 0
    assert batches.max() < 10_000
    popular = _data.touched_rows(10_000, 100, 1)
    assert np.isin(batches, popular).mean() > 10 * len(popular) / 10_000


def test_a_trainer_that_fails_ends_the_benchmark(tmp_path: Path) -> None:
    sizes = Sizes(500, 4, 10, 0.01)
    one = Serving(tmp_path / "model", sizes, 3, 1, 1)
    assert one.trainer.newest == 0
    shutil.rmtree(tmp_path / "model")
    one.trainer.go()
    with pytest.raises(SystemExit, match="the trainer ended with 1"):
        one.close()


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_other_rows_than_the_containers_are_found(tmp_path: Path, suffix: str) -> None:
    values = _data.table(500, 64)
    container, peer = tmp_path / "model.cnr", tmp_path / f"peer.{suffix}"
    cnrfmt.save(container, {"table": values})
    write_peer(peer, values)
    check(container, peer, len(values))
    write_peer(peer, -values)
    with pytest.raises(SystemExit, match="not the rows that"):
        check(container, peer, len(values))


def test_dropped_pages_are_gone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    if is_cached(path) is None:
        pytest.skip("the kernel forbids it")
    sync_file(path)
    assert is_cached(path)
    if drop(path):
        assert is_cached(path) is False
    held = np.memmap(path, np.uint8, "r")
    assert not held.any()
    assert not drop(path)


def test_what_is_served_is_compared_with_what_is_stored(tmp_path: Path) -> None:
    one = Applying(tmp_path / "model", _data.table(1000, 64), "raw", 0.01)
    assert one.advance() > 0
    one.check()
    cnrfmt.append(tmp_path / "model", {"table": cnrfmt.Rows(np.array([7]), np.zeros((1, 64), np.float32))})
    with pytest.raises(SystemExit, match="isn't what is stored"):
        one.check()
    one.close()


def test_mappings_of_the_containers_files_alone_are_counted() -> None:
    def mapping(path: str, pss: int) -> list[str]:
        return [f"7f00-7f10 r--s 00000000 fe:00 12 {path}\n", "Size: 64 kB\n", f"Pss: {pss} kB\n", "VmFlags: rd\n"]

    lines = [
        *mapping("/data/model/segments/one", 3),
        *mapping("/data/model.small/segments/one", 100),
        "7f20-7f30 rw-p 00000000 00:00 0 \n",
        "Pss: 100 kB\n",
        *mapping("/data/model/segments/with a blank", 4),
    ]
    assert mapped_bytes(lines, Path("/data/model")) == 7 << 10
