"""The validator calls sound files sound, reads their values, and notices every change."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cnrcheck import builder as b
from tests.cnrcheck import samples
from tools import cnrcheck


@functools.cache
def tiny() -> bytes:
    return bytes(b.Container([samples.tiny_version()], single=True).data)


@pytest.mark.parametrize("level", cnrcheck.LEVELS)
@pytest.mark.parametrize("piece", [512, 4096, 1 << 20])
def test_valid_containers_are_sound_without_a_note(level: str, piece: int) -> None:
    made, _ = samples.versions()
    for seg in made[-1].segments:
        seg.piece = piece
    assert cnrcheck.check_bytes(bytes(b.Container(made, single=True).data), level) == []
    assert cnrcheck.check_files(b.Container(made, single=False).files, level) == []


@pytest.mark.parametrize("single", [True, False])
def test_rows_read_as_written_at_every_version(single: bool) -> None:
    made, models = samples.versions()
    container = b.Container(made, single)
    source = bytes(container.data) if single else container.files
    for version, model in enumerate(models):
        for (table, column), rows in model.items():
            if table == "small" and version > 1:
                with pytest.raises(KeyError):
                    cnrcheck.read_table(source, table, version)
                continue
            ids, values = cnrcheck.read_table(source, table, version, column)
            assert ids.tolist() == sorted(rows)
            expected = np.stack([rows[row] for row in ids.tolist()])
            np.testing.assert_array_equal(values.reshape(expected.shape), expected)


def test_chosen_rows_are_read_in_the_order_asked_for() -> None:
    made, models = samples.versions()
    ids, values = cnrcheck.read_table(bytes(b.Container(made, True).data), "user", ids=np.array([203, 3]))
    rows = models[-1]["user", "weight"]
    assert ids.tolist() == [203, 3]
    np.testing.assert_array_equal(values, np.stack([rows[203], rows[3]]))


def test_every_changed_byte_is_damage() -> None:
    data = bytearray(tiny())
    missed = []
    for at in range(len(data)):
        # Zero bytes are mostly padding, of which the last level has nothing more to say.
        level = "full" if data[at] else "digests"
        data[at] ^= (bit := 1 << (at * 5 + at // 8) % 8)
        if cnrcheck.verdict(cnrcheck.check_bytes(data, level)) != "damaged":
            missed.append(at)
        data[at] ^= bit
    assert missed == []


def test_every_truncation_is_damage() -> None:
    data = tiny()
    for length in range(len(data)):
        if length < 12288 and length % 64:
            continue
        assert cnrcheck.verdict(cnrcheck.check_bytes(data[:length])) == "damaged", length


def test_every_changed_or_missing_file_of_a_directory_is_damage() -> None:
    files = b.Container([samples.tiny_version(samples.tiny_segment(), samples.tiny_delta())], single=False).files
    for name, raw in files.items():
        assert "file-missing" in samples.errors(
            cnrcheck.check_files({n: r for n, r in files.items() if n != name})
        ) or (name.startswith("manifests/"))
        for at in range(0, len(raw), 7):
            changed = bytearray(raw)
            changed[at] ^= 1 << at % 8
            assert cnrcheck.verdict(cnrcheck.check_files({**files, name: bytes(changed)})) == "damaged"
        for length in range(0, len(raw), 31):
            assert cnrcheck.verdict(cnrcheck.check_files({**files, name: raw[:length]})) == "damaged"


# Containers: slots, spans, gaps, files, features, names.


def test_slots_spans_and_gaps() -> None:
    seg = samples.tiny_segment()
    versions = [samples.tiny_version(seg), samples.tiny_version(seg, samples.tiny_delta())]

    def judge(change: Callable[[b.Container], Any]) -> set[str]:
        container = b.Container(versions, single=True)
        change(container)
        return {finding.error for finding in cnrcheck.check_bytes(bytes(container.data))}

    older = b.Container(versions[:1], single=True)
    assert judge(lambda c: c.slot(1, older.last, len(older.data))) == {"slots-differ"}
    assert judge(lambda c: c.slot(0, older.last, len(older.data))) == {"slot-order"}
    assert judge(lambda c: c.slot(1, (1, c.last[1], c.last[2], 0), len(c.data))) == {"slot-order"}
    assert judge(lambda c: c.slot(1, c.last, len(c.data) + 4096)) == {"slot"}
    assert judge(lambda c: [c.slot(k, (5, *c.last[1:]), len(c.data)) for k in (0, 1)]) == {"manifest-identity"}
    assert judge(lambda c: [c.slot(k, (*c.last[:3], 0), len(c.data)) for k in (0, 1)]) == {"manifest-digest"}
    assert judge(lambda c: c.data.extend(b"more")) == {"bytes-after-end"}
    assert judge(lambda c: c.data.__delitem__(slice(-1, None))) == {"file-length"}
    assert judge(lambda c: c.data.__setitem__(-1, 1)) == {"file-gap"}
    assert judge(lambda c: c.data.__setitem__(4096, 0)) == {"slot"}
    assert judge(lambda c: c.data.__setitem__(0, 0)) == {"file-header"}
    assert judge(lambda c: c.data.__setitem__(200, 1)) == {"file-header"}


def test_directories() -> None:
    seg = samples.tiny_segment()
    first, second = samples.tiny_version(seg), samples.tiny_version(seg, samples.tiny_delta())
    files = b.Container([first, second], single=False).files
    forgotten = b.Container([first, second], single=False, retain=False).files

    def judge(change: dict[str, Any], files: dict[str, bytes] = files) -> set[str]:
        return {finding.error for finding in cnrcheck.check_files({**files, **change})}

    manifest, segment = f"manifests/{0:020d}.cnrm", f"segments/{b.make_id(22).hex()}.cnrs"
    assert judge({}) == set()
    assert judge({"segments/.tmp-1": b"", "README": b""}) == {"other-file"}
    assert judge({f"segments/{b.make_id(5).hex()}.cnrs": b""}) == {"garbage"}
    assert judge({}, forgotten) == {"garbage"}
    assert judge({segment: files[f"segments/{b.make_id(21).hex()}.cnrs"]}) >= {"segment-identity", "segment-length"}
    assert judge({manifest: None}) == {"file-missing"}
    assert judge({f"manifests/{5:020d}.cnrm": files[manifest]}) == {"manifest-identity"}
    assert "directory-layout" in samples.errors(cnrcheck.check_files({}))


def test_folders_on_disk_are_read_without_following_links(tmp_path: Path) -> None:
    files = b.Container([samples.tiny_version()], single=False).files
    for name, raw in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(raw)
    assert cnrcheck.check_path(tmp_path) == []
    segment = next((tmp_path / "segments").iterdir())
    segment.rename(tmp_path / "elsewhere")
    segment.symlink_to(tmp_path / "elsewhere")
    assert samples.errors(cnrcheck.check_path(tmp_path)) == {"file-missing"}
    (tmp_path / "manifests").rename(tmp_path / "folder")
    (tmp_path / "manifests").symlink_to(tmp_path / "folder")
    assert samples.errors(cnrcheck.check_path(tmp_path)) == {"directory-layout"}
    with pytest.raises(FileNotFoundError):
        cnrcheck.check_path(tmp_path / "nothing")


@pytest.mark.parametrize("where", ["segment", "manifest"])
def test_features(where: str) -> None:
    def judge(masks: tuple[int, int, int], key: str) -> tuple[str, set[str]]:
        seg = samples.tiny_segment()
        version = samples.tiny_version(seg)
        version.masks = masks
        if where == "segment":
            seg.masks = masks
            if key:
                seg.edit_toc = lambda toc: toc.update({key: 1})
        elif key:
            version.edit = lambda doc: doc.update({key: 1})
        findings = cnrcheck.check_bytes(bytes(b.Container([version], single=True).data))
        return cnrcheck.verdict(findings), {finding.error for finding in findings}

    assert judge((2, 0, 0), "more") == ("sound", {"unknown-feature"})
    assert judge((0, 2, 0), "more") == ("unjudged", {"unknown-feature"})
    assert judge((0, 0, 2), "more") == ("unjudged", {"unknown-feature"})
    assert judge((0, 0, 0), "more") == ("damaged", {"json-field"})


def test_masks_of_a_segment_must_be_in_the_manifest() -> None:
    seg = samples.tiny_segment()
    seg.masks = (4, 0, 0)
    findings = cnrcheck.check_bytes(bytes(b.Container([samples.tiny_version(seg)], single=True).data))
    assert samples.errors(findings) == {"feature-union"}


@pytest.mark.parametrize(
    "text",
    ['{"a":1,"a":2}', "[1e999]", "[-Infinity]", '["\\ud800"]', "[01]", "[1,]", '["\t"]', "[9007199254740992]",
     "[" * 33 + "]" * 33, "[" * 100000, "\ufeff[]", "", "{} {}"],
)  # fmt: skip
def test_lax_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        cnrcheck.strict_json(text.encode())


def test_strict_json_is_taken() -> None:
    text = '{"a": [-9007199254740991, 1.5e300, "\\ud83d\\ude00", null], "b": ' + "[" * 31 + "]" * 31 + "}"
    assert cnrcheck.strict_json(text.encode())["a"] == [-9007199254740991, 1.5e300, "\U0001f600", None]


def boxes(seed: int, count: int) -> list[tuple[int, int, list[int]]]:
    """Return small rectangles from a fixed recurrence: first element, end, rows."""
    found = []
    for _ in range(count):
        seed = (seed * 1103515245 + 12345) % (1 << 31)
        first, width, start = seed >> 7 & 15, 1 + (seed >> 12 & 3), seed >> 16 & 255
        found.append((first, first + width, [start, start + 1, start + 5]))
    return found


def test_overlap_agrees_with_counting_cells() -> None:
    seen = set()
    for seed in range(400):
        parts = boxes(seed, 2 + seed % 9)
        cells = [(row, k) for first, end, rows in parts for row in rows for k in range(first, end)]
        runs = [(first, end, cnrcheck.runs_of_ids(np.array(rows))) for first, end, rows in parts]
        truth = len(set(cells)) < len(cells)
        assert cnrcheck.overlap(runs) == truth
        seen.add(truth)
    assert seen == {True, False}


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, models = samples.versions()
    path = tmp_path / "model.cnr"
    path.write_bytes(b.Container(made, single=True).data)
    assert cnrcheck.main([str(path)]) == 0
    assert cnrcheck.main([str(path), "--rows", "item", "--ids=-5,777", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert rows["ids"] == [-5, 777]
    assert [np.float32(x) for x in rows["values"][1]] == models[-1]["item", "weight"][777].tolist()
    assert cnrcheck.main([str(path), "--rows", "user", "--range", "3:5", "--version", "0"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["3", "4"]
    assert cnrcheck.main([str(path), "--rows", "nobody"]) == 2
    assert cnrcheck.main([str(tmp_path / "nothing")]) == 4
    with pytest.raises(SystemExit, match="2"):
        cnrcheck.main([str(path), "--version", "9"])
    path.write_bytes(tiny()[:-1])
    assert cnrcheck.main([str(path), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "damaged"
    assert [finding["rule"] for finding in report["findings"]] == [43]
