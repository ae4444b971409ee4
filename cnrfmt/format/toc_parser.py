"""From the bytes of a table of contents to what it says, checked as far as it goes alone."""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Sequence

from cnrfmt.errors import DamagedError
from cnrfmt.format import limits, strict_json
from cnrfmt.format.encoding import DENSE_ITEM_SIZES, RawLayout
from cnrfmt.format.legality import parse_layout
from cnrfmt.format.scheme import parse_scheme
from cnrfmt.format.strict_json import Json, Record
from cnrfmt.format.toc import DenseEntry, Part, RowSet, TableEntry, Toc, data_end, place_section

CODES = ("range", "raw", "packed", "runs", "bitmap")

_KEYS = frozenset(("sections", "nodes", "tables", "dense"))
_TABLE_KEYS = frozenset(("id", "rows", "row_sets", "deleted", "parts"))
_ROW_SET_KEYS = frozenset(("code", "count", "min", "max", "section"))
_PART_KEYS = frozenset(
    ("column", "rows", "elements", "encoding", "section", "codebooks", "exceptions_of", "scheme")
)
_DENSE_KEYS = frozenset(("name", "kind", "section"))
_ARRAY_KEYS = _DENSE_KEYS | {"dtype", "shape"}


def parse_toc(data: bytes, end: int, place: str, *, lenient: bool) -> Toc:
    """The table of contents of a segment whose data end is `end`, checked as far as it goes alone.

    Raises `DamagedError`.
    """
    place = f"{place}, table of contents"
    record = Record(strict_json.parse(data, place), _KEYS, place, lenient=lenient)
    sections = _parse_sections(record, end)
    nodes = record.hexadecimal("nodes")
    if len(nodes) % 8:
        raise DamagedError(
            "node-count", place, expected="16 digits per node", found=f"{2 * len(nodes)} digits"
        )
    tables = tuple(
        _parse_table(value, sections, f"{place}, table {number}", lenient)
        for number, value in enumerate(record.array("tables", limits.MAX_TABLES))
    )
    dense = None
    if not record.is_null("dense"):
        dense = tuple(
            _parse_dense(value, sections, f"{place}, dense entry {number}", lenient)
            for number, value in enumerate(record.array("dense", limits.MAX_DENSE))
        )
    _check_repeats([t.table_id for t in tables], place)
    _check_repeats([d.name for d in dense or ()], place)
    _check_references(sections, tables, dense or (), place)
    return Toc(sections, struct.unpack(f">{len(nodes) // 8}Q", nodes), tables, dense)


def _parse_sections(record: Record, end: int) -> tuple[tuple[int, int], ...]:
    found = []
    position = limits.BLOCK
    for number, value in enumerate(record.array("sections", limits.MAX_SECTIONS)):
        if not (isinstance(value, list) and [type(x) for x in value] == [int, int] and min(value) >= 0):
            raise DamagedError(
                "json-field",
                f"{record.place}, section {number}",
                expected="[offset, length]",
                found=str(value)[:80],
            )
        offset, length = value
        want = place_section(position, length)
        if length < 1 or offset != want:
            raise DamagedError(
                "section-geometry",
                f"{record.place}, section {number}",
                expected=f"offset {want} and a length of at least 1",
                found=f"offset {offset}, length {length}",
            )
        position = offset + length
        found.append((offset, length))
    sections = tuple(found)
    if data_end(sections) != end:
        raise DamagedError(
            "section-geometry", record.place, expected=f"data end {data_end(sections)}", found=end
        )
    return sections


def _reference(record: Record, key: str, count: int, what: str) -> int:
    number = record.integer(key)
    if number >= count:
        raise DamagedError(
            "section-reference",
            f"{record.place}, {key}",
            expected=f"one of {count} {what}s",
            found=f"{what} {number}",
        )
    return number


def _parse_table(
    value: Json, sections: tuple[tuple[int, int], ...], place: str, lenient: bool
) -> TableEntry:
    record = Record(value, _TABLE_KEYS, place, lenient=lenient)
    table_id = record.identity("id")
    place = record.place = f"{place} ({table_id.hex()})"
    rows = None if record.is_null("rows") else record.integer("rows", 0, limits.MAX_ROWS)
    row_sets = tuple(
        _parse_row_set(item, sections, rows, f"{place}, row set {number}", lenient)
        for number, item in enumerate(record.array("row_sets", limits.MAX_ROW_SETS))
    )
    deleted = None
    if not record.is_null("deleted"):
        deleted = _reference(record, "deleted", len(row_sets), "row set")
        if rows is not None:
            raise DamagedError(
                "tombstone", place, expected="no tombstones in a dense table", found="some"
            )
        if (count := row_sets[deleted].count) > limits.MAX_TOMBSTONES:
            raise DamagedError(
                "limit", place, expected=f"{limits.MAX_TOMBSTONES} tombstones", found=count
            )
    parts: list[Part] = []
    overridden: set[int] = set()
    listed = record.array("parts", limits.MAX_PARTS)
    for number, item in enumerate(listed):
        part_place = f"{place}, part {number}"
        parts.append(_parse_part(item, sections, row_sets, part_place, lenient))
        if parts[-1].exceptions_of is not None:
            _check_exception(parts, len(listed), overridden, part_place)
    used = {p.rows for p in parts} | {deleted}
    for number in range(len(row_sets)):
        if number not in used:
            raise DamagedError(
                "section-reference", place, expected="every row set used", found=f"unused {number}"
            )
    if deleted is not None and any(p.rows == deleted for p in parts):
        raise DamagedError(
            "tombstone", place, expected="deleted rows in no part", found=f"row set {deleted}"
        )
    return TableEntry(table_id, rows, row_sets, deleted, tuple(parts))


def _parse_row_set(
    value: Json,
    sections: tuple[tuple[int, int], ...],
    rows: int | None,
    place: str,
    lenient: bool,
) -> RowSet:
    record = Record(value, _ROW_SET_KEYS, place, lenient=lenient)
    code = record.choice("code", CODES)
    count = record.integer("count")
    first, last = record.row_id("min"), record.row_id("max")
    section = None
    if not record.is_null("section"):
        section = _reference(record, "section", len(sections), "section")
    span = last - first + 1
    if code == "range":
        sound = rows is not None and section is None and count == span >= 1
        expected = "a range of a dense table, without section, count = max - min + 1"
    else:
        sound = section is not None and 1 <= count <= span
        expected = "1 <= count <= max - min + 1, and a section"
    if sound and section is not None and (want := index_length(code, count, span)) is not None:
        sound = sections[section][1] == want
        expected = f"a section of {want} bytes"
    if not sound:
        raise DamagedError("row-set", place, expected=expected, found=str(value)[:200])
    if rows is not None and not 0 <= first <= last < rows:
        raise DamagedError(
            "row-bounds", place, expected=f"rows 0 to {rows - 1}", found=f"{first} to {last}"
        )
    return RowSet(code, count, first, last, section)


def index_length(code: str, count: int, span: int) -> int | None:
    """The bytes that a row index of `count` ids over `span` values takes, where its code alone says it (section 7)."""
    if code == "raw":
        return 8 * count
    if code == "bitmap":
        return 72 * -(-span // 512)
    return None


def _parse_part(
    value: Json,
    sections: tuple[tuple[int, int], ...],
    row_sets: tuple[RowSet, ...],
    place: str,
    lenient: bool,
) -> Part:
    record = Record(value, _PART_KEYS, place, lenient=lenient)
    rows = _reference(record, "rows", len(row_sets), "row set")
    first, end = record.integers("elements", 2)
    if not first < end <= limits.MAX_DIM:
        raise DamagedError(
            "elements", place, expected="0 <= first < end <= width", found=f"{first} to {end}"
        )
    section = _reference(record, "section", len(sections), "section")
    shared = None if record.is_null("codebooks") else _reference(record, "codebooks", len(sections), "section")
    layout = parse_layout(record["encoding"], f"{place}, encoding", lenient=lenient)
    scheme, errors = parse_scheme(record["scheme"], layout, f"{place}, scheme", lenient=lenient)
    exceptions_of = None if record.is_null("exceptions_of") else record.integer("exceptions_of")
    part = Part(record.name("column"), rows, (first, end), layout, section, exceptions_of, shared, scheme, errors)
    if not layout.fits(part.width):
        expected = "one value per row under log with the payload fixed, at most 65536 values in a group of several rows"
        raise DamagedError("part-encoding", place, expected=expected, found=f"{part.width}, {layout.to_json()}")
    _check_lengths(part, row_sets[rows].count, sections, place)
    return part


def _check_lengths(part: Part, count: int, sections: tuple[tuple[int, int], ...], place: str) -> None:
    least, books = part.layout.least_bytes(count, part.width), part.layout.codebook_bytes(count)
    found = sections[part.section][1], 0 if part.codebooks is None else sections[part.codebooks][1]
    if found[1] != books or (found[0] < least if part.layout.is_grouped else found[0] != least):
        raise DamagedError(
            "part-length",
            place,
            expected=f"{'at least ' if part.layout.is_grouped else ''}{least} bytes, and {books} of shared codebooks",
            found=f"{found[0]} and {found[1]}",
        )


def _check_exception(parts: list[Part], count: int, overridden: set[int], place: str) -> None:
    part, number = parts[-1], parts[-1].exceptions_of
    assert number is not None
    if number >= len(parts) - 1:
        rule = "exception" if number < count else "section-reference"
        raise DamagedError(rule, place, expected="an earlier part", found=f"part {number}")
    main = parts[number]
    if (
        not isinstance(part.layout, RawLayout)
        or isinstance(main.layout, RawLayout)
        or (main.column, main.elements) != (part.column, part.elements)
        or number in overridden
    ):
        raise DamagedError(
            "exception",
            place,
            expected="a raw part for one that isn't raw, of the same column and elements, one for each",
            found=f"exceptions of part {number}",
        )
    overridden.add(number)


def _parse_dense(
    value: Json, sections: tuple[tuple[int, int], ...], place: str, lenient: bool
) -> DenseEntry:
    is_array = isinstance(value, dict) and value.get("kind") == "array"
    record = Record(value, _ARRAY_KEYS if is_array else _DENSE_KEYS, place, lenient=lenient)
    name = record.name("name")
    kind = record.choice("kind", ("array", "json", "bytes"))
    section = None
    if not record.is_null("section"):
        section = _reference(record, "section", len(sections), "section")
    length = 0 if section is None else sections[section][1]
    if kind != "array":
        if kind == "json" and section is None:
            raise DamagedError("dense-entry", place, expected="a section", found="null")
        return DenseEntry(name, kind, section)
    dtype = record.choice("dtype", DENSE_ITEM_SIZES)
    shape = tuple(record.integers("shape"))
    if len(shape) > limits.MAX_DIMENSIONS:
        raise DamagedError(
            "limit", place, expected=f"{limits.MAX_DIMENSIONS} dimensions", found=len(shape)
        )
    size = math.prod(shape) * DENSE_ITEM_SIZES[dtype]
    if size != length:
        raise DamagedError(
            "dense-entry", place, expected=f"{size} bytes", found=f"{length} bytes"
        )
    # No library can have an array whose extents that aren't zero are too large, even where it holds nothing.
    claimed = math.prod(max(1, extent) for extent in shape) * DENSE_ITEM_SIZES[dtype]
    if claimed > limits.MAX_BYTES:
        raise DamagedError("limit", place, expected=f"an array of at most {limits.MAX_BYTES} bytes", found=shape)
    return DenseEntry(name, kind, section, dtype, shape)


def _check_repeats(names: Sequence[str | bytes], place: str) -> None:
    if len(set(names)) < len(names):
        name = next(name for name, count in Counter(names).items() if count > 1)
        found = name.hex() if isinstance(name, bytes) else name
        raise DamagedError("table-repeated", place, expected="each once", found=f"{found!r} again")


def _check_references(
    sections: tuple[tuple[int, int], ...],
    tables: tuple[TableEntry, ...],
    dense: tuple[DenseEntry, ...],
    place: str,
) -> None:
    used = [
        section
        for group in (*(t.row_sets + t.parts for t in tables), dense)
        for item in group
        if (section := item.section) is not None
    ]
    used += [p.codebooks for t in tables for p in t.parts if p.codebooks is not None]
    if len(used) == len(set(used)) == len(sections):
        return
    times = Counter(used)
    number = next(number for number in range(len(sections)) if times[number] != 1)
    raise DamagedError(
        "section-reference",
        f"{place}, section {number}",
        expected="referred to once",
        found=f"{times[number]} times",
    )
