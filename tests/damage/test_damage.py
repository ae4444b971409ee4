"""Every damage of a golden container is found: all that can be done to the smallest, and a sample of the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import cnrfmt
from cnrfmt import cli
from tools import cnrcheck
from tools.damage import alike, damage
from tools.damage.golden import ROOT, SINGLE, Golden, goldens, read_version, wrong_answers
from tools.damage.judge import Scratch, problems
from tools.damage.kinds import KINDS, Damage
from tools.damage.layout import Layout, older_state, reseal
from tools.progress import code_digest

GOLDENS = {golden.name: golden for golden in goldens()}
SMALLEST = GOLDENS["1.0/tiny"]
SEED = int(os.environ.get("CNRFMT_DAMAGE_SEED", "20240229"))
SAMPLE = 16


def check(golden: Golden, kind: str, wanted: list[int], folder: Path) -> Counter[str]:
    counts, failures = damage.try_cases(golden, kind, wanted, folder)
    assert failures == [], f"seed {SEED}\n" + "\n".join(failures[:10])
    return counts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
def test_all_damage_of_the_smallest_container_is_found(folder: Path, kind: str) -> None:
    wanted = damage.numbers(SMALLEST, kind, None, None)
    counts = check(SMALLEST, kind, wanted, folder)
    assert counts["tried"] + counts["unchanged"] + counts["found by the digest alone"] == len(wanted)
    if kind == "bits":
        assert counts["tried"] >= len(wanted) // 25


def test_what_a_digest_overlooks_is_tried_in_full(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alike, "_digest", lambda data, unit: 0)
    wanted = damage.numbers(SMALLEST, "bits", None, None)[:50]
    assert check(SMALLEST, "bits", wanted, folder)["tried"] == len(wanted)


def test_every_byte_of_a_unit_of_the_map_is_under_the_digest_that_stands_for_it() -> None:
    """Else a change beyond it would be taken for one that the digest notices."""
    layout = Layout(SMALLEST.files)
    units = alike.Alike(layout)
    seen = 0
    for region in layout.regions:
        for at in (region.start, max(region.start, region.stop - 9), region.stop - 1):
            unit = units._unit(region, at)
            if unit is not None:
                file, start, stop, _, _ = unit
                assert file == region.file
                assert start <= at < stop + 8
                seen += 1
    assert seen > 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", sorted(GOLDENS.keys() - {SMALLEST.name}))
def test_a_sample_of_the_damage_of_every_container_is_found(folder: Path, name: str, kind: str) -> None:
    golden = GOLDENS[name]
    check(golden, kind, damage.numbers(golden, kind, SEED, SAMPLE), folder)


@pytest.mark.parametrize("name", GOLDENS)
def test_the_map_of_a_container_has_every_byte_once(name: str) -> None:
    layout = Layout(GOLDENS[name].files)
    for file, data in layout.files.items():
        ends = 0
        for region in sorted((r for r in layout.regions if r.file == file), key=lambda r: r.start):
            assert region.start == ends
            ends = region.stop
        assert ends == len(data)
    assert {r.kind for r in layout.regions} >= {"manifest", "segment header", "piece", "digests", "toc", "trailer"}


@pytest.mark.parametrize("name", GOLDENS)
def test_resealing_without_an_edit_changes_nothing(name: str) -> None:
    layout = Layout(GOLDENS[name].files)
    assert reseal(layout, {}) == layout.files


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["1.0/history.cnr", "1.0/history"])
def test_the_commands_exit_code_says_it(name: str, kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scratch = Scratch(GOLDENS[name], folder)
    cases = KINDS[kind].cases(scratch.layout)
    for number in sorted({0, len(cases) // 2, len(cases) - 1} if cases else set()):
        spoilt = KINDS[kind].make(scratch.layout, cases[number])
        if all(scratch.golden.files.get(file) == new for file, new in spoilt.changes.items()):
            continue
        # Where nothing can be read at all, that is no damage but a failure of input.
        refused = SINGLE in spoilt.changes and spoilt.changes[SINGLE] in ("missing", "fifo")
        expected = 4 if refused else 1 if spoilt.outcome == "damaged" else 0
        scratch.apply(spoilt)
        try:
            assert cli.main(["verify", str(scratch.path)]) == expected, spoilt.what
            assert cnrcheck.main([str(scratch.path)]) == expected, spoilt.what
        finally:
            scratch.mend(spoilt)
    capsys.readouterr()


def test_what_is_not_found_is_told(folder: Path) -> None:
    """The judge itself: a change that breaks no rule, said to be damage, is reported by everybody."""
    scratch = Scratch(GOLDENS["1.0/tiny.cnr"], folder)
    pretended = Damage("nothing but a longer file", {SINGLE: scratch.golden.files[SINGLE] + b"x"})
    scratch.apply(pretended)
    found = list(problems(scratch, pretended, Counter()))
    assert len(found) == 5
    assert sum("expected damage" in text for text in found) == 2
    assert sum("finds nothing" in text for text in found) == 3


def test_a_wrong_answer_is_told(folder: Path) -> None:
    """A container of other values with right digests: only the comparison of values can see it."""
    golden = GOLDENS["1.0/tiny.cnr"]
    layout = Layout(golden.files)
    section = layout.sections[0]
    forged = reseal(layout, {(section.file, section.start): b"\x01\x02"})
    path = folder / "forged.cnr"
    path.write_bytes(forged[SINGLE])
    assert cnrfmt.verify(path).verdict == "sound"
    assert cnrcheck.check_bytes(forged[SINGLE]) == []
    told, errors = read_version(path, None, "pread", "all")
    assert errors == []
    assert wrong_answers(told, golden.expected[0]) == ["column item weight"]


# What no file can tell by itself (spec/threat-model.md).


def put(files: dict[str, bytes], golden: Golden, path: Path) -> None:
    for file, data in files.items():
        target = path if golden.single else path / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


@pytest.mark.parametrize("name", [name for name, golden in GOLDENS.items() if len(golden.expected) > 1])
def test_an_older_state_put_back_is_seen_by_who_pinned_or_had_it_open(name: str, tmp_path: Path) -> None:
    golden = GOLDENS[name]
    layout = Layout(golden.files)
    path = tmp_path / golden.path.name
    put(golden.files, golden, path)
    with cnrfmt.open(path) as ck:
        newest, pin = ck.version, ck.digest
        before = layout.manifests[-2]
        if not golden.single:
            (path / layout.manifests[-1].file).unlink()
        put(older_state(layout, before), golden, path)

        # By itself it is a sound container that never went further.
        assert cnrfmt.verify(path).verdict == "sound"
        assert cnrcheck.verdict(cnrcheck.check_path(path)) == "sound"
        told, errors = read_version(path, None, "pread", "all")
        assert errors == []
        assert told[("version",)] == newest - 1
        assert wrong_answers(told, golden.expected[newest - 1]) == []

        with pytest.raises(cnrfmt.DamagedError, match="manifest-identity"):
            ck.refresh()
    with pytest.raises(cnrfmt.VersionNotFoundError):
        cnrfmt.open(path, version=newest)
    with pytest.raises(cnrfmt.DamagedError, match="manifest-digest"):
        cnrfmt.open(path, digest=pin)
    with pytest.raises(cnrfmt.VersionNotFoundError):
        cnrfmt.open(path, version=newest, digest=pin)


def test_slots_put_back_leave_bytes_that_are_noted(tmp_path: Path) -> None:
    """Both slot writes of the newest version were lost, what it had written before them wasn't."""
    golden = GOLDENS["1.0/history.cnr"]
    layout = Layout(golden.files)
    older = older_state(layout, layout.manifests[-2])[SINGLE]
    path = tmp_path / "history.cnr"
    path.write_bytes(older + golden.files[SINGLE][len(older) :])
    report = cnrfmt.verify(path)
    assert (report.verdict, [f.rule for f in report.findings]) == ("sound", ["uncommitted"])
    assert [f.error for f in cnrcheck.check_path(path)] == ["bytes-after-end"]
    with cnrfmt.open(path) as ck:
        assert ck.version == max(golden.expected) - 1
    with pytest.raises(cnrfmt.VersionNotFoundError):
        cnrfmt.open(path, version=max(golden.expected))


def test_another_history_of_the_same_length_is_seen_by_who_pinned(tmp_path: Path) -> None:
    """The same version number, another state: a backup put back, then appended to."""
    golden = GOLDENS["1.0/history"]
    layout = Layout(golden.files)
    path = tmp_path / "history"
    put(golden.files, golden, path)
    with cnrfmt.open(path) as ck:
        newest, pin = ck.version, ck.digest
        (path / layout.manifests[-1].file).unlink()
        for version in (newest, newest + 1, newest + 2):
            assert cnrfmt.append(path, {}, step=99) == version
            assert cnrfmt.verify(path).verdict == "sound"
            with pytest.raises(cnrfmt.DamagedError, match="went another way"):
                ck.refresh()
        assert ck.digest == pin
    assert cnrfmt.open(path, version=newest).step == 99
    with pytest.raises(cnrfmt.DamagedError, match="manifest-digest"):
        cnrfmt.open(path, version=newest, digest=pin)


def test_a_pipe_at_the_path_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.cnr")
    with pytest.raises(OSError, match="regular file"):
        cnrcheck.check_path(tmp_path / "pipe.cnr")
    with pytest.raises(cnrfmt.StorageError, match="regular file"):
        cnrfmt.verify(tmp_path / "pipe.cnr")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.damage.damage", *arguments]
    return subprocess.run(command, cwd=ROOT.parent.parent, capture_output=True, text=True, check=False, timeout=300)


def test_the_command_goes_on_where_it_was_and_writes_its_result(tmp_path: Path) -> None:
    options = ["--only", "1.0/tiny", "--kinds", "sections,missing", "--runs", "2", "--seed", "5"]
    options += ["--state", str(tmp_path / "state.json"), "--json", str(tmp_path / "result.json")]
    first = run(*options)
    assert first.returncode == 0, first.stdout + first.stderr
    again = run(*options)
    assert "1.0/tiny missing 2/2" in first.stdout
    assert "1.0/tiny missing 2/2" not in again.stdout
    assert "nothing left to try: the result of 20" in again.stdout
    result = json.loads((tmp_path / "result.json").read_text("utf-8"))
    assert result["failures"] == []
    assert result["kinds"]["missing"]["tried"] == 2
    assert result["code"] == code_digest(ROOT)


def test_the_command_tries_one_case() -> None:
    assert damage.main(["--case", "1.0/tiny:bits:17"]) == 0


@pytest.mark.parametrize(
    ("options", "choice"),
    [
        (["--kinds", "rust"], "no such kind: rust; there are bits; "),
        (["--kinds", ""], "no such kind: ; there are bits; "),
        (["--only", "nonsense"], "no such container: nonsense; there are 1.0/tiny; "),
        (["--case", "nonsense"], "no such container"),
        (["--case", "1.0/tiny:rust:1"], "no such kind: rust"),
        (["--case", "1.0/tiny:bits:999999999"], "no such case: 999999999; there are 0 to "),
        (["--runs", "0"], "0 is less than 1"),
    ],
)
def test_a_choice_of_nothing_is_refused(options: list[str], choice: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        damage.main(options)
    assert choice in capsys.readouterr().err
