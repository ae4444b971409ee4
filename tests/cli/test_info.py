"""`info` and `ls`: what they say of a container."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt.checkpointing.manager import CheckpointManager
from cnrfmt.commits import attempt
from cnrfmt.format.encoding import GridLayout
from cnrfmt.plan import plan_baseline
from cnrfmt.run_record import CheckpointRecord, RunRecord, metadata_with, record_of
from tests.checkpointing.ranks import as_ranks
from tests.checkpointing.support import needed_by
from tests.cli.runs import train
from tests.cli.support import Command, damage


def test_info_says_what_there_is(original: Path, cnr: Command) -> None:
    found = cnr("info", original)
    assert (found.code, found.err) == (0, "")
    lines = found.out.splitlines()
    with cnrfmt.open(original) as ck:
        assert any(ck.digest in line for line in lines)
    kind = "directory" if original.is_dir() else "single file"
    assert any(line.startswith(f"container    {kind}, id ") for line in lines)
    assert "version      2 (the newest)" in lines
    assert "dense state  1 array, 1 JSON value, 1 byte string; 529 B" in lines
    assert 'metadata     {"run": "r7"}' in lines
    assert "  retained: 0 to 2" in lines
    (word,) = (line.split() for line in lines if line.startswith("  word "))
    assert " ".join(word) == "word dense 300 x 64 weight float32 asymmetric 8-bit tail + 2 exact rows"
    (visitor,) = (line.split() for line in lines if line.startswith("  visitor "))
    assert " ".join(visitor) == "visitor keyed 5 x 3 weight float32 raw float32"
    assert any("visitor 1 deleted" in line for line in lines)
    assert "\x1b" not in found.out


def test_info_says_what_quantisation_did(original: Path, cnr: Command) -> None:
    found = cnr("info", original)
    section = found.out.split("\nquantised columns\n")[1].split("\n\n")[0].splitlines()
    with cnrfmt.open(original) as ck:
        parts = [p for s in ck.view.segments.values() for t in s.toc.tables for p in t.parts if p.scheme is not None]
    weights = [p.errors for p in parts if p.column == "weight"]
    # Two of the first part's rows aren't finite.
    mean = (298 * weights[0].mean + 98 * weights[1].mean) / 396
    worst = max(e.worst for e in weights)
    lines = [" ".join(line.split()) for line in section]
    # Two rows of 64 floats are exact: 2 x 32 bits over 398 rows more than the 9 of all of them.
    assert lines[1] == f"word.weight asymmetric 8-bit tail 398 2 9.16 {mean:.4g} {worst:.4g}"
    assert lines[2].startswith("word.accumulator log 12-bit 300 0 ")
    facts = cnr("info", original, "--json").json
    (group,) = facts["tables"][0]["columns"][0]["stored"]
    assert (group["words"], group["rows"], group["exact_rows"]) == ("asymmetric 8-bit tail", 398, 2)
    assert (group["mean_error"], group["max_error"]) == (pytest.approx(mean), worst)
    assert group["encoding"] == {
        "name": "rowwise",
        "bits": 8,
        "layout": "tail",
        "scale": "float32",
        "bias": "float32",
        "group": None,
    }
    none = dict.fromkeys(("num_bins", "ratio", "starts", "bound", "step"))
    assert group["scheme"] == {"method": "asymmetric", **none}
    (raw,) = facts["tables"][1]["columns"][0]["stored"]
    assert (raw["words"], raw["scheme"], raw["rows"], raw["max_error"]) == ("raw float32", None, 6, 0)


def test_parts_that_are_stored_alike_are_taken_together(tmp_path: Path, cnr: Command) -> None:
    rows = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    growing = np.linspace(1, 2, 40, dtype=np.float32)
    schemes = {"t": cnrfmt.Quantize(3, method="adaptive", num_bins=30, max_error=0.1), "k": cnrfmt.Quantize(8)}
    tables = {"t": cnrfmt.TableData(rows, columns={"g": growing}), "k": rows}
    cnrfmt.save(tmp_path / "a", tables, quantize=schemes)
    ids = np.arange(0, 40, 2)
    cnrfmt.append(tmp_path / "a", {"t": cnrfmt.Rows(ids, rows[ids], columns={"g": 1e9 * growing[ids]})})
    cnrfmt.append(
        tmp_path / "a", {"t": cnrfmt.Rows([1], rows[:1])}, quantize=cnrfmt.Quantize(4, method="lsq", starts=3)
    )
    weight, g = (column["stored"] for column in cnr("info", tmp_path / "a", "--json").json["tables"][0]["columns"])
    assert [(group["words"], group["rows"]) for group in weight] == [
        ("adaptive 3-bit packed", 60),
        ("lsq 4-bit tail", 1),
    ]
    # The codes of both parts have another base, since the values are elsewhere.
    assert [(group["words"], group["rows"], group["encoding"]) for group in g] == [
        ("log 12-bit", 60, {"name": "log", "kind": "absolute", "bits": 12, "payload": "fixed", "group": None})
    ]
    assert 0 < weight[0]["exact_rows"] < 60
    assert weight[0]["max_error"] <= 0.1
    lines = [" ".join(line.split()) for line in cnr("info", tmp_path / "a").out.splitlines()]
    words = "t.weight adaptive 3-bit packed (30 bins, ratio 0.5, exact above an error of 0.1) 60 "
    assert any(line.startswith(words) for line in lines)
    assert any(line.startswith("t.weight lsq 4-bit tail (3 starts) 1 0 ") for line in lines)
    assert "quantised columns" not in cnr("info", tmp_path / "a").out.split("\nversions\n")[1]


@pytest.mark.parametrize("quantize", [cnrfmt.Quantize(2), cnrfmt.Grid(step=0.5)])
def test_bits_count_what_exact_rows_take(tmp_path: Path, cnr: Command, quantize: Any) -> None:
    rows = np.random.default_rng(0).normal(size=(400, 16)).astype(np.float32)
    rows[::2, 3] = np.nan
    cnrfmt.save(tmp_path / "a", {"t": rows}, quantize=quantize)
    facts = cnr("info", tmp_path / "a", "--json").json
    (group,) = facts["tables"][0]["columns"][0]["stored"]
    assert (group["rows"], group["exact_rows"]) == (400, 200)
    sizes = facts["sizes"]["chain"]
    assert group["bits_per_value"] == 8 * (sizes["weights"] + sizes["exceptions"]) / rows.size > 16
    assert "BITS that a value of all ROWS takes" in cnr("info", tmp_path / "a").out


def test_info_has_no_errors_where_all_is_raw(tmp_path: Path, cnr: Command) -> None:
    cnrfmt.save(tmp_path / "a", {"t": np.ones((3, 2), np.float32)})
    assert "quantised" not in cnr("info", tmp_path / "a").out


def test_info_as_json_accounts_for_every_byte(original: Path, cnr: Command) -> None:
    facts = cnr("info", original, "--json").json
    assert (facts["version"], facts["step"], facts["versions"]) == (2, 2000, [0, 1, 2])
    assert [v["step"] for v in facts["version_details"]] == [0, 1000, 2000]
    chain = facts["chain"]
    assert [s["kind"] for s in chain] == ["baseline", "delta", "delta"]
    assert [s["version"] for s in chain] == [0, 1, 2]
    assert all(sum(s["bytes_by_part"].values()) == s["bytes"] for s in chain)
    written = [{t["name"]: (t["rows_written"], t["rows_deleted"]) for t in s["tables"]} for s in chain]
    assert written[0] == {"word": (300, 0), "visitor": (6, 0), "half": (5, 0), "count": (4, 0)}
    assert written[1:] == [{"word": (98, 0)}, {"visitor": (0, 1)}]
    sizes = facts["sizes"]
    assert sum(sizes["chain"].values()) == sizes["chain_bytes"] <= sizes["on_disk_bytes"]
    dense_bytes = 2 * 64 * 4 + 15 + 2
    assert sizes["plain_bytes"] == 300 * 65 * 4 + 5 * (3 * 4 + 8) + 5 * 4 * 2 + 8 * 8 + dense_bytes


def test_info_and_ls_open_an_older_version(original: Path, cnr: Command) -> None:
    assert cnr("info", original, "--version", 0, "--json").json["step"] == 0
    assert "version      0 (the newest is 2)" in cnr("info", original, "--version", 0).out
    tables = {t["name"]: t["rows"] for t in cnr("ls", original, "--version", 0, "--json").json["tables"]}
    assert tables == {"word": 300, "visitor": 6, "half": 5, "count": 4}


def test_ls_has_a_line_per_table(original: Path, cnr: Command) -> None:
    lines = cnr("ls", original).out.splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "NAME KIND ROWS x DIM DTYPE STORED AS COLUMNS",
        "word dense 300 x 64 float32 asymmetric 8-bit tail weight, accumulator",
        "visitor keyed 5 x 3 float32 raw float32 weight",
        "half dense 5 x 4 bfloat16 raw bfloat16 weight",
        "count dense 4 x 2 int64 raw int64 weight",
    ]


def test_ls_lists_dense_entries_and_versions(original: Path, cnr: Command) -> None:
    lines = [line.split() for line in cnr("ls", original, "--dense", "--versions").out.splitlines()]
    assert lines[1:4] == [
        ["mlp.weight", "array", "float32", "2", "x", "64", "512"],
        ["reader", "json", "15"],
        ["random", "bytes", "2"],
    ]
    assert [line[:2] for line in lines[6:]] == [["0", "0"], ["1", "1000"], ["2", "2000"]]
    facts = cnr("ls", original, "--dense", "--versions", "--json").json
    assert facts["dense"][0] == {
        "name": "mlp.weight",
        "kind": "array",
        "dtype": "float32",
        "shape": [2, 64],
        "bytes": 512,
    }
    with cnrfmt.open(original) as ck:
        assert facts["versions"][-1]["digest"] == ck.digest


def test_many_versions_are_shown_by_the_oldest_and_the_newest(tmp_path: Path, cnr: Command) -> None:
    path = tmp_path / "long.cnr"
    table = np.zeros((40, 2), np.float32)
    cnrfmt.save(path, {"t": table}, step=0)
    for step in range(1, 15):
        cnrfmt.append(path, {"t": cnrfmt.Rows([step], table[:1])}, step=step)
    text = cnr("info", path).out
    versions, chain = text.split("\nversions\n")[1].split("\nchain\n")
    assert [line.split()[0] for line in versions.splitlines()[3:] if line] == ["0", *map(str, range(6, 15))]
    assert [line.split()[0] for line in chain.splitlines()[1:4]] == ["0", "5", "6"]
    assert "5 more" in chain
    assert len(cnr("ls", path, "--versions").out.splitlines()) == 16


def test_a_version_whose_manifest_is_gone_is_named(path: Path, cnr: Command) -> None:
    if path.is_dir():
        (path / "manifests" / f"{1:020}.cnrm").unlink()
        rule = "file-missing"
    else:
        with cnrfmt.open(path) as ck:
            damage(path, (ck.manifest.versions[1].offset or 0) + 200)
        rule = "manifest-digest"
    for argv in (["info", path], ["ls", path, "--versions"]):
        found = cnr(*argv)
        assert found.code == 1
        assert "can't be read" in found.out
        assert f"version 1: damaged ({rule})" in found.out
    assert cnr("rows", path, "word", 0).code == 0


def test_names_and_metadata_cannot_steer_the_terminal(tmp_path: Path, cnr: Command) -> None:
    path = tmp_path / "hostile.cnr"
    name = "a\x9b31m\u202eb"
    table = np.ones((2, 2), np.float32)
    cnrfmt.save(path, {name: table}, metadata={"note": "\x1b[2J\x9b"}, dense={name: table})
    for argv in (["info", path], ["ls", path], ["ls", path, "--dense"], ["rows", path, "\x1b[2J"], ["verify", path]):
        for options in ([], ["--json"]):
            found = cnr(*argv, *options)
            for character in "\x1b\x9b\u202e":
                assert character not in found.out + found.err
    assert "a\\x9b31m\\u202eb" in cnr("ls", path).out
    assert cnr("ls", path, "--json").json["tables"][0]["name"] == name


def test_info_tells_of_a_run(tmp_path: Path, words: np.ndarray[Any, Any], cnr: Command) -> None:
    path = tmp_path / "run"
    train(path, words, policy="intermittent", expected_restores=3, checkpoints=14)
    with CheckpointManager(path, policy="intermittent", expected_restores=3, flush_on_sigterm=False) as manager:
        manager.restore()
        table = cnrfmt.TableData(words, columns={"state": np.ones(300, np.float32)})
        manager.save(1400, {"word": table}).commit.result()
    run = cnr("info", path, "--json").json["run"]
    with cnrfmt.open(path) as ck:
        record = record_of(ck.manifest)
    assert record is not None
    assert (run["id"], run["policy"], run["restores"]) == (record.run, "intermittent", 1)
    assert (run["expected_restores"], run["tags"]) == (3, {"prod": 2})
    for told, known in zip(run["checkpoints"], record.checkpoints, strict=True):
        assert (told["version"], told["step"], told["kind"]) == (known.version, known.step, known.kind)
        assert (told["rows"], told["bytes"], told["bits"]) == (known.rows, known.nbytes, known.bits)
        assert (told["segments"], told["metrics"], told["readable"]) == (known.chain, known.metrics, True)
        assert told["tags"] == (["prod"] if known.version == 2 else [])
    since = record.since_baseline()
    needs = {told["version"]: told["needs"] for told in run["checkpoints"]}
    assert [needs[c.version] for c in since] == [needed_by(since, n) for n in range(len(since))]
    section = cnr("info", path).out.split("\nrun\n")[1].split("\n\n")[0]
    lines = [" ".join(line.split()) for line in section.splitlines()]
    assert lines[:5] == [
        f"id {record.run[:8]}…",
        "policy intermittent",
        "encoding row-wise 3 bits: no learning rate was given",
        "restores 1 so far, 3 expected",
        "tags prod: version 2",
    ]
    assert lines[5] == "the newest checkpoints, and 5 more that --json shows:"
    assert lines[6] == "VERSION STEP KIND ROWS BYTES BITS SEGMENTS NEEDS METRICS"
    assert len(lines[7:-1]) == 10
    last = record.checkpoints[-2]
    assert lines[-3].startswith(f"13 1300 {last.kind} {last.rows} ")
    assert lines[-3].endswith(f"{last.bits} {last.chain} {', '.join(map(str, needs[13]))} auc 0.63")


def test_info_shows_merges_and_tags_as_such(tmp_path: Path, words: np.ndarray[Any, Any], cnr: Command) -> None:
    path = tmp_path / "run"
    train(path, words, policy="consecutive", bits=32, checkpoints=4, keep=2, most_segments=4)
    cnrfmt.tag(path, "best", 3)
    lines = [" ".join(line.split()) for line in cnr("info", path).out.split("\nrun\n")[1].splitlines()]
    assert "tags best: version 3, prod: version 2" in lines
    (header,) = (n for n, line in enumerate(lines) if line.startswith("VERSION STEP KIND"))
    kinds = [line.split()[:3] for line in lines[header + 1 : header + 7]]
    assert kinds == [
        ["0*", "0", "baseline"],
        ["1*", "100", "delta"],
        ["2", "200", "delta"],
        ["3", "300", "delta"],
        ["4", "300", "merge"],
        ["5", "300", "restated"],
    ]
    assert lines[header + 3].endswith("raw 3 0 to 2 auc 0.52 prod")
    assert any(line.startswith("restated: as the version before it") for line in lines)


@pytest.mark.parametrize("merged", [False, True])
def test_rows_whose_elements_ranks_divide_are_counted_once(tmp_path: Path, cnr: Command, merged: bool) -> None:
    rows = np.random.default_rng(2).normal(0, 0.1, (300, 8)).astype(np.float32)
    rows[7] = np.nan
    ids = [np.arange(20), np.arange(10, 40)]

    def save(coordinator: cnrfmt.FileCoordinator) -> None:
        first = 4 * coordinator.rank
        own = np.ascontiguousarray(rows[:, first : first + 4])
        options: dict[str, Any] = {"encoding": "grid", "learning_rate": 0.01, "merge_share": 1e-9 if merged else None}
        with CheckpointManager(tmp_path / "run", coordinator=coordinator, flush_on_sigterm=False, **options) as m:
            for step in range(2):
                m.save(step, {"t": cnrfmt.Shard(own, elements=(first, first + 4), of_dim=8)}).wait()
                m.wait()
                own[ids[coordinator.rank]] += 1
                m.track("t", ids[coordinator.rank])

    assert as_ranks(tmp_path / "meeting", 2, save) == [None, None]
    weight = cnr("info", tmp_path / "run", "--json").json["tables"][0]["columns"][0]["stored"]
    found = [(group["rows"], group["exact_rows"]) for group in weight if group["scheme"] is not None]
    # Row 7 is exact in both checkpoints, and the ranks differ in the rows that they write.
    assert found == ([(300, 1)] if merged else [(301, 2), (30, 0)])


def grid_run(path: Path, grid: cnrfmt.Grid, **columns: Any) -> None:
    """A checkpoint of a table on a grid that has these columns."""
    weight = np.random.default_rng(3).normal(0, 0.1, (30, 4)).astype(np.float32)
    with CheckpointManager(path, encoding=grid, flush_on_sigterm=False) as manager:
        manager.save(0, {"t": cnrfmt.TableData(weight, columns=columns)}).wait()


def test_info_says_why_moments_are_raw(tmp_path: Path, cnr: Command) -> None:
    ones, column = np.ones((30, 4), np.float32), {"count": np.arange(30, dtype=np.float32)}
    odd = {"exp_avg_sq": -ones, "exp_avg": ones, "other": ones, "momentum": ones.astype(np.float16), **column}
    grid_run(tmp_path / "a", cnrfmt.Grid(step=0.25), **odd)
    grid_run(tmp_path / "b", cnrfmt.Grid(step=0.25, moments="raw"), exp_avg=ones)
    found = {c["name"]: c["raw_because"] for c in cnr("info", tmp_path / "a", "--json").json["tables"][0]["columns"]}
    assert {name: why for name, why in found.items() if why is not None} == {
        "exp_avg_sq": "negative values at its baseline, or moments='raw'",
        "other": "its name is no known moment's",
        "momentum": "not float32",
    }
    lines = [" ".join(line.split()) for line in cnr("info", tmp_path / "a").out.splitlines()]
    assert "other float32 raw float32: its name is no known moment's" in lines
    lines = [" ".join(line.split()) for line in cnr("info", tmp_path / "b").out.splitlines()]
    assert "exp_avg float32 raw float32: moments='raw'" in lines
    assert "encoding grid, steps of 0.25, moments raw" in lines
    # Beside rows that aren't on a grid nobody expects codes.
    cnrfmt.save(tmp_path / "c", {"t": cnrfmt.TableData(ones, columns={"exp_avg": ones})}, quantize=cnrfmt.Quantize(8))
    assert not any(c["raw_because"] for c in cnr("info", tmp_path / "c", "--json").json["tables"][0]["columns"])


def test_info_shows_steps_as_they_are_stored(tmp_path: Path, cnr: Command) -> None:
    for number, (grid, says) in enumerate(
        (
            (cnrfmt.Grid(step=0.015, by=None), "(step 2^-6 = 0.015625 nearest to 0.015)"),
            (cnrfmt.Grid(step=0.25, by=None), "(step 2^-2 = 0.25)"),
            (
                cnrfmt.Grid(learning_rate=0.01, restores=3),
                "(step 2^-6 = 0.015625 nearest to 0.015, finer by cnrfmt.checkpoints above 2)",
            ),
        )
    ):
        grid_run(tmp_path / str(number), grid)
        found = cnr("info", tmp_path / str(number))
        assert says in " ".join(found.out.split())
        with cnrfmt.open(tmp_path / str(number)) as ck:
            layout = ck["t"].encoding
        assert isinstance(layout, GridLayout)
        # Rows of one checkpoint have the longest steps.
        assert layout.floor + (4 if "finer" in says else 0) == int(says.split("2^")[1].split()[0])


def test_info_says_nothing_of_a_run_where_none_was(original: Path, cnr: Command) -> None:
    assert "\nrun\n" not in cnr("info", original).out
    assert "run" not in cnr("info", original, "--json").json


def test_a_record_cannot_steer_the_terminal(tmp_path: Path, cnr: Command) -> None:
    path, hostile = tmp_path / "a", "\x1b[2J\u202e"
    checkpoint = CheckpointRecord(0, 0, hostile, hostile, 1, 1, 8, 1, {hostile: 1})
    record = RunRecord("0" * 32, hostile, tags={hostile: 0}, checkpoints=(checkpoint,))
    with attempt(str(path)) as one:
        plan = plan_baseline({"t": np.ones((2, 2), np.float32)}, None)
        manifest = one.next(None, tables=plan.tables, metadata=metadata_with({}, record))
        one.commit(one.write(manifest, plan.writes, None, threads=1))
    for argv in (["info", path], ["info", path, "--json"], ["plot", path, "--json"]):
        found = cnr(*argv)
        assert found.code == 0
        assert not {"\x1b", "\u202e"} & set(found.out + found.err)
    assert cnr("info", path, "--json").json["run"]["policy"] == hostile
