"""What is in a container, as JSON can say it: what `info` and `ls` print."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from cnrfmt.checkpoint import Checkpoint
from cnrfmt.encodings import moments
from cnrfmt.encodings.grid import exponent_of
from cnrfmt.errors import DamagedError, UnsupportedError, VersionExpiredError
from cnrfmt.format.encoding import (
    CastLayout,
    CodebookLayout,
    GridLayout,
    IntegerLayout,
    Layout,
    LogLayout,
    RawLayout,
)
from cnrfmt.format.manifest import ChainEntry, Manifest, Retained, parse_manifest
from cnrfmt.format.schema import WEIGHT, ColumnSchema
from cnrfmt.format.toc import DenseEntry, Part, TableEntry, Toc
from cnrfmt.sizes import plain_bytes, sizes, sizes_of_segment
from cnrfmt.storage.base import DirectoryFacts, manifest_place
from cnrfmt.table import Table

Json = dict[str, Any]


def layout_words(layout: Layout, method: str | None) -> str:
    """How rows are stored, in words; `method` is None for raw rows."""
    if isinstance(layout, RawLayout):
        return f"raw {layout.dtype}"
    if isinstance(layout, CastLayout):
        return layout.stored
    if isinstance(layout, IntegerLayout):
        grid = f"log {layout.bits}-bit" if isinstance(layout, LogLayout) else f"grid of 2^{layout.floor}"
        bits = f", {layout.bits}-bit" if isinstance(layout, GridLayout) and layout.bits is not None else ""
        payload = f", {layout.payload}" if layout.is_grouped else bits
        return grid + (" residual" if layout.is_residual else "") + payload
    if isinstance(layout, CodebookLayout):
        return f"kmeans {layout.bits}-bit" + ("" if layout.block is None else f", {layout.block} rows a codebook")
    group = "" if layout.group is None else f", groups of {layout.group}"
    return f"{method} {layout.bits}-bit {layout.placement}{group}"


def parameter_words(scheme: Json) -> str:
    """The parameters of a method, in words; empty where it has none."""
    words = [
        *_step_words(scheme["step"]),
        f"{scheme['num_bins']} bins" if scheme["num_bins"] is not None else "",
        f"ratio {scheme['ratio']:g}" if scheme["ratio"] is not None else "",
        f"{scheme['starts']} starts" if scheme["starts"] is not None else "",
        f"exact above an error of {scheme['bound']:g}" if scheme["bound"] is not None else "",
    ]
    return ", ".join(word for word in words if word)


def _step_words(step: Json | None) -> list[str]:
    """The longest step of a grid as it is stored, what was asked for where that is another, and what makes it finer."""
    if step is None:
        return []
    stored = exponent_of(step["size"])
    asked = "" if 2.0**stored == step["size"] else f" nearest to {step['size']:g}"
    words = [f"step 2^{stored} = {2.0**stored:.6g}{asked}"]
    if step["column"] is not None and step["reference"] is not None:
        words.append(f"finer by {step['column']} above {step['reference']:.3g}")
    return words


def table(ck: Checkpoint, found: Table) -> Json:
    """A table: kind, shape, and how each column is stored over the chain."""
    entries = [
        (step, segment.toc, entry)
        for step, says in enumerate(ck.view.steps_of(found.schema.table_id))
        for segment, entry in says
    ]
    return {
        "name": found.name,
        "id": found.schema.table_id.hex(),
        "kind": "keyed" if found.keyed else "dense",
        "rows": len(found),
        "dim": found.schema.dim,
        "columns": [_column(column, found, entries) for column in found.schema.columns],
    }


def _column(column: ColumnSchema, found: Table, entries: list[tuple[int, Toc, TableEntry]]) -> Json:
    stored = _stored(entries, column.name)
    return {
        "name": column.name,
        "dtype": column.dtype,
        "values_per_row": column.width(found.schema.dim),
        "fill": column.fill.hex(),
        "encodings": list(dict.fromkeys(group["words"] for group in stored)),
        "raw_because": _why_raw(column, found, stored),
        "exceptions": sum(group["exact_rows"] for group in stored),
        "stored": stored,
    }


def _why_raw(column: ColumnSchema, found: Table, stored: list[Json]) -> str | None:
    """Why a column of `dim` values is raw beside weights on a grid, whose moments have codes; None where it isn't."""
    is_raw = any(group["scheme"] is None for group in stored)
    if not is_raw or column.per_row or column.name == WEIGHT or not isinstance(found.encoding, GridLayout):
        return None
    if column.dtype != "float32":
        return "not float32"
    if not moments.may_be(column.name):
        return "its name is no known moment's"
    if moments.kind_of(column.name, found.columns, negative=True) is None:
        return "negative values at its baseline, or moments='raw'"
    return "moments='raw'"


class _Member(NamedTuple):
    """A part among those that are stored alike, and the number of its step in the chain."""

    step: int
    toc: Toc
    entry: TableEntry
    part: Part
    exceptions: Part | None

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return self.entry.row_sets[self.part.rows].count

    @property
    def exact(self) -> int:
        """How many of them stand in an exception part."""
        return 0 if self.exceptions is None else self.entry.row_sets[self.exceptions.rows].count

    @property
    def nbytes(self) -> int:
        """What they are stored in, with what they share, and those that are exact beside it."""
        exact = None if self.exceptions is None else self.exceptions.section
        sections = (self.part.section, self.part.codebooks, exact)
        return sum(self.toc.sections[section][1] for section in sections if section is not None)


def _stored(entries: list[tuple[int, Toc, TableEntry]], column: str) -> list[Json]:
    """How the parts of a column are stored: those that are stored alike, taken together.

    `rows` counts a row for each step of the chain that writes it, once if its elements are divided; `exact_rows` are
    those of them that stand in exception parts. `bits_per_value` is what a value of all of them takes, row indexes
    aside. Errors are relative l2 errors of the rows that aren't exact: their mean, and the greatest.
    """
    groups: dict[str, Json] = {}
    members: dict[str, list[_Member]] = {}
    for step, toc, entry in entries:
        exceptions = {p.exceptions_of: p for p in entry.parts if p.exceptions_of is not None}
        for number, part in enumerate(entry.parts):
            if part.column == column and part.exceptions_of is None:
                group = _group_of(part)
                key = json.dumps(group)
                groups[key] = group
                members.setdefault(key, []).append(_Member(step, toc, entry, part, exceptions.get(number)))
    return [group | _totals(members[key]) for key, group in groups.items()]


def _group_of(part: Part) -> Json:
    scheme = None if part.scheme is None else asdict(part.scheme)
    # Each part of logarithmic codes has a base and a shift of its own, where its values are.
    encoding = {name: value for name, value in part.layout.to_json().items() if name not in ("base", "shift")}
    words = layout_words(part.layout, None if part.scheme is None else part.scheme.method)
    return {"words": words, "encoding": encoding, "scheme": scheme}


def _totals(members: list[_Member]) -> Json:
    held = [m.rows - m.exact for m in members]
    total = sum(n * m.part.errors.mean for n, m in zip(held, members, strict=True))
    return {
        "rows": _rows((m, m.rows) for m in members),
        "exact_rows": _rows((m, m.exact) for m in members),
        "bits_per_value": 8 * sum(m.nbytes for m in members) / sum(m.rows * m.part.width for m in members),
        "mean_error": total / max(1, sum(held)),
        "max_error": max(m.part.errors.worst for m in members),
    }


def _rows(counts: Iterable[tuple[_Member, int]]) -> int:
    """The sum over all steps. Parts that divide the elements of a row among them hold it together."""
    found: dict[int, dict[tuple[int, int], int]] = {}
    for member, count in counts:
        by_elements = found.setdefault(member.step, {})
        by_elements[member.part.elements] = by_elements.get(member.part.elements, 0) + count
    return sum(max(by_elements.values()) for by_elements in found.values())


def dense_entry(ck: Checkpoint, entry: DenseEntry) -> Json:
    """An entry of the dense state: name, kind, bytes; of an array also dtype and shape."""
    assert ck.manifest.dense is not None
    toc = ck.view.segments[ck.manifest.dense].toc
    found: Json = {"name": entry.name, "kind": entry.kind}
    if entry.kind == "array":
        found |= {"dtype": entry.dtype, "shape": list(entry.shape)}
    found["bytes"] = 0 if entry.section is None else toc.sections[entry.section][1]
    return found


def dense_entries(ck: Checkpoint) -> list[Json]:
    """All entries of the dense state."""
    if ck.manifest.dense is None:
        return []
    toc = ck.view.segments[ck.manifest.dense].toc
    return [dense_entry(ck, entry) for entry in toc.dense or ()]


def chain(ck: Checkpoint, version_of: dict[str, int]) -> list[Json]:
    """The segments of the chain; `version_of` maps states to the versions that reached them, where known."""
    names = {t.table_id: t.name for t in ck.manifest.tables}
    return [_segment(ck, entry, names, version_of) for entry in ck.manifest.chain]


def _segment(
    ck: Checkpoint, entry: ChainEntry, names: dict[bytes, str], version_of: dict[str, int]
) -> Json:
    segment = ck.view.segments[entry.segment]
    tables = [
        {
            # A table that was dropped later has lost its name.
            "name": names.get(t.table_id),
            "id": t.table_id.hex(),
            "rows_written": rows_written(t),
            "rows_deleted": 0 if t.deleted is None else t.row_sets[t.deleted].count,
        }
        for t in segment.toc.tables
    ]
    return {
        "segment": entry.segment.hex(),
        "kind": "baseline" if entry.from_state is None else "delta",
        "state": entry.to_state.hex(),
        "version": version_of.get(entry.to_state.hex()),
        "offset": entry.offset,
        "bytes": entry.length,
        "bytes_by_part": sizes_of_segment(segment),
        "tables": tables,
    }


def rows_written(entry: TableEntry) -> int:
    """How many rows a segment writes of a table; a row counts once, whatever its columns and parts."""
    by_rectangle: dict[tuple[str, tuple[int, int]], set[int]] = {}
    for part in entry.parts:
        if part.exceptions_of is None:
            by_rectangle.setdefault((part.column, part.elements), set()).add(part.rows)
    counts = (sum(entry.row_sets[n].count for n in used) for used in by_rectangle.values())
    return max(counts, default=0)


def versions(ck: Checkpoint, most: int | None = None) -> tuple[list[Json], list[Exception]]:
    """The retained versions, ascending, and what is wrong with their manifests.

    Of more than `most` versions, these are the oldest and the newest.
    """
    head = _head(ck)
    wanted = head.versions
    if most is not None and len(wanted) >= most:
        wanted = (wanted[0], *wanted[len(wanted) - most + 2 :])
    found: list[Json] = []
    errors: list[Exception] = []
    for retained in wanted:
        try:
            found.append(_version(_manifest(ck, retained)))
        except VersionExpiredError:
            # Removed since the head was read, by one who may.
            continue
        except (DamagedError, UnsupportedError) as error:
            errors.append(error)
            found.append({"version": retained.version, "error": str(error)})
    return [*found, _version(head)], errors


def manifests(ck: Checkpoint, most: int) -> tuple[list[Manifest], list[Exception]]:
    """The manifests of the newest `most` retained versions, ascending, and what is wrong with others of these.

    That of the newest version is whole. The others are without metadata, attachments and retained versions, which
    would take memory with the square of their number.
    """
    head = _head(ck)
    found: list[Manifest] = []
    errors: list[Exception] = []
    for retained in head.versions[-most + 1 :]:
        try:
            found.append(replace(_manifest(ck, retained), metadata={}, attachments=b"", versions=()))
        except VersionExpiredError:
            continue
        except (DamagedError, UnsupportedError) as error:
            errors.append(error)
    return [*found, head], errors


def _head(ck: Checkpoint) -> Manifest:
    if ck.version == ck.versions[-1]:
        return ck.manifest
    data, version, _ = ck.view.container.head()
    return parse_manifest(data, manifest_place(ck.path, version))


def _manifest(ck: Checkpoint, retained: Retained) -> Manifest:
    data = ck.view.container.read_manifest(retained)
    return parse_manifest(data, manifest_place(ck.path, retained.version))


def _version(manifest: Manifest) -> Json:
    return {
        "version": manifest.version,
        "step": manifest.step,
        "created": manifest.created,
        "created_by": manifest.created_by,
        "segments": len(manifest.chain),
        "bytes": manifest.length + sum(e.length for e in manifest.chain),
        "state": manifest.state.hex(),
        "digest": f"{manifest.digest:016x}",
    }


def size_facts(ck: Checkpoint) -> Json:
    """Bytes of the version by part, and what they compare with.

    `plain` is what the tables (all columns in their own dtypes, and keys) and the dense state take as
    plain arrays; `on_disk` is everything that is there, earlier versions included.
    """
    found = sizes(ck)
    facts = ck.view.container.inspect()
    if isinstance(facts, DirectoryFacts):
        on_disk = sum(name.size for name in (*(facts.manifests or ()), *(facts.segments or ())))
    else:
        on_disk = facts.size
    dense = sum(entry["bytes"] for entry in dense_entries(ck))
    return {
        "commit": found.commit,
        "chain": found.chain,
        "commit_bytes": sum(found.commit.values()),
        "chain_bytes": sum(found.chain.values()),
        "plain_bytes": plain_bytes(ck) + dense,
        "on_disk_bytes": on_disk,
    }
