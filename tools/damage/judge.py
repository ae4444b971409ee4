"""Whether a damage is found where it is, by whom, and whether anybody answers with wrong values."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import cnrfmt
from cnrfmt.segment_reader import Backend, Verify
from tools import cnrcheck
from tools.damage.golden import SINGLE, Golden, read_version, wrong_answers
from tools.damage.kinds import Damage
from tools.damage.layout import Layout, Region

Reader = tuple[Backend, Verify]
READERS: tuple[Reader, ...] = (("pread", "all"), ("pread", "touched"), ("mmap", "touched"))

# What a validator names for a change in a region: its rules, and how its place reads. `{short}` and `{name}` stand
# for the segment's id or the version, `{piece}` for the number of the piece.
_LIBRARY = {
    "file header": ("file-header", "file header"),
    "slot": ("slot|slot-order", "slot(s| {name})"),
    "manifest": ("manifest-(digest|identity)|block-magic|block-digest|block-length", "manifest of version {name}"),
    "segment header": ("piece-digest|block-digest|block-magic", "segment {short}…, (piece 0 .*the header|header)"),
    "piece": ("piece-digest", "segment {short}…, piece {piece} "),
    "row index": ("piece-digest", "segment {short}…, piece {piece} .*row index"),
    # Of what lies in a piece, the first few are named.
    "codebooks": ("piece-digest", "segment {short}…, piece {piece} .*(codebooks| more)"),
    "digests": ("node-digest", "segment {short}…, node 0"),
    "toc": ("toc-digest", "segment {short}…, table of contents"),
    "trailer": ("block-magic|block-digest|trailer-digest", "segment {short}…, trailer"),
    "gap": ("file-gap", "byte {at}"),
}
_CHECKER = {
    "file header": ("file-header", "file header"),
    "slot": ("slot|slot-order", "slot {name}"),
    "manifest": ("manifest-(digest|identity)|block-magic|block-digest|block-length", "manifest {name}"),
    "segment header": ("piece-digest|block-digest|block-magic", "segment {name} (piece 0|header)"),
    "piece": ("piece-digest", "segment {name} piece {piece}"),
    "row index": ("piece-digest", "segment {name} piece {piece}"),
    "codebooks": ("piece-digest", "segment {name} piece {piece}"),
    "digests": ("node-digest|piece-digest", "segment {name} (node 0|piece)"),
    "toc": ("toc-digest", "segment {name} toc"),
    "trailer": ("block-magic|block-digest|trailer-digest", "segment {name} trailer"),
    "gap": ("file-gap", "gap"),
}


class Scratch:
    """A golden container on a file system, damaged in place and mended again."""

    def __init__(self, golden: Golden, folder: Path) -> None:
        self.golden, self.layout = golden, Layout(golden.files)
        self.path = folder / ("container.cnr" if golden.single else "container")
        self.aside = folder / "aside"
        for file in golden.files:
            self._restore(file)

    def _at(self, file: str) -> Path:
        return self.path if file == SINGLE else self.path / file

    def _restore(self, file: str) -> None:
        path = self._at(file)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.golden.files[file])

    def apply(self, damage: Damage) -> None:
        """Make the container what the damage says; `mend` undoes it."""
        for file, new in damage.changes.items():
            path = self._at(file)
            if isinstance(new, bytes):
                _overwrite(path, new)
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
            if new == "directory":
                path.mkdir()
            elif new == "symlink":
                self.aside.write_bytes(self.golden.files[file])
                path.symlink_to(self.aside)
            elif new == "fifo":
                os.mkfifo(path)

    def mend(self, damage: Damage) -> None:
        """Put the golden bytes back."""
        for file, new in damage.changes.items():
            if isinstance(new, bytes):
                _overwrite(self._at(file), self.golden.files[file])
            elif file in self.golden.files:
                self._restore(file)
            else:
                for inner in self.golden.files:
                    if inner.startswith(f"{file}/"):
                        self._restore(inner)


def _overwrite(path: Path, data: bytes) -> None:
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()


def changed_regions(layout: Layout, damage: Damage) -> list[tuple[Region, int]]:
    """The regions in which a byte differs or is missing, each with the first such byte; none for a whole file."""
    found = []
    for file, new in damage.changes.items():
        old = layout.files.get(file)
        if not isinstance(new, bytes) or old is None:
            continue
        for region in layout.regions:
            if region.file != file:
                continue
            before, after = old[region.start : region.stop], new[region.start : region.stop]
            if before != after:
                first = next((k for k, (x, y) in enumerate(zip(before, after, strict=False)) if x != y), len(after))
                found.append((region, region.start + first))
    return found


def _names_region(region: Region, at: int, findings: list[tuple[str, str]], table: Any) -> bool:
    """Whether the one region that was changed is named, with a rule that is about it."""
    rules, place = table[region.kind]
    name, _, piece = region.name.partition(" piece ")
    pattern = place.format(name=name or ".*", short=name[:8], piece=piece, at=at)
    return any(re.fullmatch(rules, rule) and re.search(pattern, where) for rule, where in findings)


def _names_owner(kind: str, name: str, findings: list[tuple[str, str]]) -> bool:
    """Whether what a region belongs to is named: a segment, a manifest, a slot ..."""
    if kind == "manifest":
        return any(re.search(rf"manifest (of version )?{name}\b", where) for _, where in findings)
    if kind in ("file header", "slot"):
        return any(re.search("file|slot", rule) for rule, _ in findings)
    if kind == "gap":
        return any(rule == "file-gap" for rule, _ in findings)
    return any(f"segment {name[:32]}" in where or f"segment {name[:8]}…" in where for _, where in findings)


def _names_file(file: str, findings: list[tuple[str, str]]) -> bool:
    """Whether a file that was changed as a whole is named."""
    if file == SINGLE or any(rule == "directory-layout" for rule, _ in findings):
        return True
    if file.startswith("segments"):
        return _names_owner("segment", file[9:41], findings)
    return _names_owner("manifest", str(int(file[10:30])) if file[10:] else "", findings)


def _library(path: Path) -> tuple[str, list[tuple[str, str]]]:
    try:
        report = cnrfmt.verify(path, threads=1)
    except cnrfmt.StorageError as error:
        return "refused", [("storage", str(error))]
    return report.verdict, [(f.rule, f.place) for f in report.findings if f.severity == "damage"]


def _checker(scratch: Scratch, damage: Damage) -> tuple[str, list[tuple[str, str]]]:
    files: dict[str, Any] = {**scratch.golden.files, **damage.changes}
    try:
        if not all(isinstance(data, bytes) for data in damage.changes.values()):
            findings = cnrcheck.check_path(scratch.path)
        elif scratch.golden.single:
            findings = cnrcheck.check_bytes(files[SINGLE])
        else:
            findings = cnrcheck.check_files(files)
    except OSError as error:
        return "refused", [("storage", str(error))]
    return cnrcheck.verdict(findings), [(f.error, f.place) for f in findings if f.severity == "damage"]


def harmless(layout: Layout, regions: list[tuple[Region, int]]) -> bool:
    """Whether what a reader needs is all there: a gap or one slot is damage that loses nothing."""
    slots = {region.name for region, _ in regions if region.kind == "slot"}
    rest = {
        region.kind
        for region, _ in regions
        if region.kind not in ("slot", "gap") and not (region.kind == "toc" and region.name in layout.inline)
    }
    return len(slots) < 2 and not rest


def problems(
    scratch: Scratch, damage: Damage, counts: Counter[str], readers: Iterable[Reader] = READERS
) -> Iterator[str]:
    """What isn't as it must be: a damage that isn't found, found elsewhere, or answered with wrong values."""
    golden, layout = scratch.golden, scratch.layout
    if all(golden.files.get(file) == new for file, new in damage.changes.items()):
        counts["unchanged"] += 1
        return
    counts["tried"] += 1
    regions = changed_regions(layout, damage)
    cut = any(isinstance(new, bytes) and len(new) != len(layout.files[file]) for file, new in damage.changes.items())
    for who, (verdict, findings), table in (
        ("verify", _library(scratch.path), _LIBRARY),
        ("cnrcheck", _checker(scratch, damage), _CHECKER),
    ):
        if damage.outcome != "damaged":
            if verdict != "sound":
                yield f"{who} says {verdict}, expected sound: {findings}"
            continue
        if verdict not in ("damaged", "refused") or (verdict == "refused" and not golden.single):
            yield f"{who} says {verdict}, expected damage"
            continue
        counts[f"found by {who}"] += 1
        if len(regions) == 1 and not cut:
            named = _names_region(*regions[0], findings, table)
        elif regions and not cut:
            named = any(_names_owner(region.kind, region.name, findings) for region, _ in regions)
        else:
            named = any(_names_file(file, findings) for file in damage.changes)
        if damage.placed and not named:
            changed = ", ".join(f"{r.kind} {r.name} at {at}" for r, at in regions[:3]) or sorted(damage.changes)
            yield f"{who} doesn't name {changed}: {findings[:3]}"
    unharmed = bool(regions) and not cut and harmless(layout, regions)
    for backend, verify in readers:
        yield from _read(scratch, damage, counts, unharmed, backend, verify)


def _read(
    scratch: Scratch, damage: Damage, counts: Counter[str], unharmed: bool, backend: Backend, verify: Verify
) -> Iterator[str]:
    """What is wrong with the answers of a reader that takes all there is of every version."""
    expected = scratch.golden.expected
    versions = sorted(expected)
    reader = f"a reader ({backend}, {verify})"
    errors: list[Exception] = []
    for version in (None, *versions[:-1]):
        told, failed = read_version(scratch.path, version, backend, verify)
        errors += failed
        asked = versions[-1] if version is None else version
        if damage.outcome == "older" and version is None:
            asked = versions[-2]
        if (answered := told.get(("version",), asked)) != asked:
            yield f"{reader} opened version {answered} instead of {asked}"
        elif wrong := wrong_answers(told, expected[asked]):
            yield f"{reader} gives other values for {wrong[:3]} of version {asked}"
    if damage.outcome == "damaged" and not unharmed:
        counts[f"reads by ({backend}, {verify})"] += 1
        counts[f"found by ({backend}, {verify})"] += bool(errors)
        if not errors:
            yield f"{reader} finds nothing"
    else:
        counts[f"reads without loss by ({backend}, {verify})"] += 1
        if errors:
            yield f"{reader} fails, though nothing is lost: {errors[0]}"
