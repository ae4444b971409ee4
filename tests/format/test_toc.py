"""Tables of contents, field by field: what is packed, what is read back, and what is refused under which rule."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from cnrfmt.errors import DamagedError
from cnrfmt.format import limits
from cnrfmt.format.encoding import CodebookLayout, GridLayout, LogLayout, RawLayout, RowwiseLayout
from cnrfmt.format.scheme import Errors, Scheme
from cnrfmt.format.toc import DenseEntry, Part, RowSet, TableEntry, Toc, data_end, pack_toc, place_section
from cnrfmt.format.toc_parser import index_length, parse_toc

USER, ITEM = b"the user's table", b"the item's table"
RAW = {"name": "raw", "dtype": "float32"}
EIGHT = {"name": "rowwise", "bits": 8, "layout": "tail", "scale": "float32", "bias": "float32", "group": None}
CHOICE: dict[str, Any] = {
    "method": "asymmetric",
    "num_bins": None,
    "ratio": None,
    "starts": None,
    "bound": 0.5,
    "step": None,
    "mean_error": 0.125,
    "max_error": 0.25,
}


def part(
    column: str,
    rows: int,
    elements: list[int],
    encoding: Any,
    section: int,
    main: int | None = None,
    scheme: Any = None,
) -> Any:
    return {
        "column": column,
        "rows": rows,
        "elements": elements,
        "encoding": encoding,
        "section": section,
        "codebooks": None,
        "exceptions_of": main,
        "scheme": scheme,
    }


# user: rows 0 to 4 of 10 under 8 bits, two of them exceptions, and a column of one value per row.
# item: three keys written, two deleted. Dense state of each kind.
SECTIONS = [[128, 60], [192, 16], [256, 32], [320, 20], [384, 24], [448, 12], [512, 16], [576, 8], [640, 2], [704, 5]]
END = 768
VALUE: dict[str, Any] = {
    "sections": SECTIONS,
    "nodes": "00000000000000ff" + "123456789abcdef0",
    "tables": [
        {
            "id": USER.hex(),
            "rows": 10,
            "row_sets": [
                {"code": "range", "count": 5, "min": "0", "max": "4", "section": None},
                {"code": "raw", "count": 2, "min": "1", "max": "3", "section": 1},
            ],
            "deleted": None,
            "parts": [
                part("weight", 0, [0, 4], EIGHT, 0, scheme=CHOICE),
                part("weight", 1, [0, 4], RAW, 2, 0),
                part("g", 0, [0, 1], RAW, 3),
            ],
        },
        {
            "id": ITEM.hex(),
            "rows": None,
            "row_sets": [
                {"code": "raw", "count": 3, "min": "-7", "max": "9", "section": 4},
                {"code": "raw", "count": 2, "min": "-9", "max": "10", "section": 6},
            ],
            "deleted": 1,
            "parts": [part("weight", 0, [2, 3], RAW, 5)],
        },
    ],
    "dense": [
        {"name": "w", "kind": "array", "dtype": "int16", "shape": [2, 2], "section": 7},
        {"name": "none", "kind": "array", "dtype": "float64", "shape": [3, 0], "section": None},
        {"name": "j", "kind": "json", "section": 8},
        {"name": "b", "kind": "bytes", "section": 9},
        {"name": "empty", "kind": "bytes", "section": None},
    ],
}
SCHEME = Scheme("asymmetric", bound=0.5)
TOC = Toc(
    sections=tuple((offset, length) for offset, length in SECTIONS),
    nodes=(0xFF, 0x123456789ABCDEF0),
    tables=(
        TableEntry(
            USER,
            10,
            (RowSet("range", 5, 0, 4), RowSet("raw", 2, 1, 3, 1)),
            None,
            (
                Part("weight", 0, (0, 4), RowwiseLayout(8), 0, None, None, SCHEME, Errors(0.125, 0.25)),
                Part("weight", 1, (0, 4), RawLayout("float32"), 2, 0),
                Part("g", 0, (0, 1), RawLayout("float32"), 3),
            ),
        ),
        TableEntry(
            ITEM,
            None,
            (RowSet("raw", 3, -7, 9, 4), RowSet("raw", 2, -9, 10, 6)),
            1,
            (Part("weight", 0, (2, 3), RawLayout("float32"), 5),),
        ),
    ),
    dense=(
        DenseEntry("w", "array", 7, "int16", (2, 2)),
        DenseEntry("none", "array", None, "float64", (3, 0)),
        DenseEntry("j", "json", 8),
        DenseEntry("b", "bytes", 9),
        DenseEntry("empty", "bytes", None),
    ),
)
user, item = (lambda v: v["tables"][0]), (lambda v: v["tables"][1])


def text(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def parse(value: Any, *, end: int = END, lenient: bool = False) -> Toc:
    return parse_toc(text(value), end, "here", lenient=lenient)


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    value = copy.deepcopy(VALUE)
    change(value)
    return value


def refused(rule: str, value: Any, *, end: int = END) -> str:
    with pytest.raises(DamagedError) as caught:
        parse(value, end=end)
    assert caught.value.rule == rule, caught.value
    assert caught.value.place.startswith("here, table of contents")
    return caught.value.place


def test_a_table_of_contents_is_read_field_by_field() -> None:
    assert parse(VALUE) == TOC
    assert parse(VALUE).by_table == {USER: TOC.tables[0], ITEM: TOC.tables[1]}


def test_a_table_of_contents_is_packed_as_by_hand() -> None:
    assert pack_toc(TOC) == text(VALUE)


def test_what_may_be_empty_is_empty() -> None:
    value = {"sections": [], "nodes": "", "tables": [], "dense": None}
    assert parse(value, end=128) == Toc((), (), (), None)
    assert pack_toc(Toc((), (), ())) == text(value)
    assert parse({**value, "dense": []}, end=128).dense == ()
    refused("section-geometry", value, end=192)


@pytest.mark.parametrize("key", VALUE)
def test_every_key_is_needed(key: str) -> None:
    refused("json-field", changed(lambda v: v.pop(key)))


OBJECTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "contents": lambda v: v,
    "table": user,
    "row set": lambda v: user(v)["row_sets"][1],
    "part": lambda v: user(v)["parts"][1],
    "raw": lambda v: user(v)["parts"][1]["encoding"],
    "row-wise": lambda v: user(v)["parts"][0]["encoding"],
    "scheme": lambda v: user(v)["parts"][0]["scheme"],
    "array": lambda v: v["dense"][0],
    "json": lambda v: v["dense"][2],
}


@pytest.mark.parametrize("of", OBJECTS)
def test_every_object_has_exactly_its_keys(of: str) -> None:
    further = changed(lambda v: OBJECTS[of](v).update(new=1))
    refused("json-field", further)
    assert parse(further, lenient=True) == TOC
    for key in OBJECTS[of](VALUE):
        rule = "part-encoding" if key == "name" and of in ("raw", "row-wise") else "json-field"
        refused(rule, changed(lambda v, key=key: OBJECTS[of](v).pop(key)))  # type: ignore[misc]


@pytest.mark.parametrize(
    ("of", "key", "values"),
    [
        ("contents", "sections", [None, {}]),
        ("contents", "nodes", [None, 5, "0", "0g" * 8, "AB" * 8]),
        ("contents", "tables", [None, {}, [5]]),
        ("contents", "dense", [{}, 5, [5], [[]]]),
        ("table", "id", [None, "00" * 16, USER.hex().upper()]),
        ("table", "rows", ["10", -1, 1.5, True]),
        ("table", "row_sets", [None, {}, [5]]),
        ("table", "deleted", ["1", -1, 1.5, True]),
        ("table", "parts", [None, {}, [5]]),
        ("row set", "code", [None, 5, "RAW", "rawx", ["raw"], {}]),
        ("row set", "count", [None, "2", -1, 2.0]),
        ("row set", "min", [None, 1, "01", "x", "9223372036854775808"]),
        ("row set", "max", [None, 3, "+3"]),
        ("row set", "section", ["1", -1, 1.0, False]),
        ("part", "column", [None, 5]),
        ("part", "rows", [None, "1", -1]),
        ("part", "elements", [None, [0], [0, 4, 4], ["0", 4], [-1, 4], [0, True]]),
        ("part", "encoding", [None, "raw", []]),
        ("part", "section", [None, "2", -1]),
        ("part", "codebooks", ["0", -1, False]),
        ("part", "exceptions_of", ["0", -1, False]),
        ("array", "name", [None, 5]),
        ("array", "kind", [None, 5, "arrays", "Array"]),
        ("array", "dtype", [None, "float", "int4", ["int16"], 5]),
        ("array", "shape", [None, [2, -2], [2, "2"], 4, [4.0]]),
        ("array", "section", ["7", -1]),
        ("json", "kind", [None, 5, ["json"]]),
    ],
)
def test_values_of_other_types_are_refused(of: str, key: str, values: list[Any]) -> None:
    for value in values:
        refused("json-field", changed(lambda v, value=value: OBJECTS[of](v).update({key: value})))  # type: ignore[misc]


@pytest.mark.parametrize(
    "section", [5, [128], [128, 60, 0], ["128", 60], [128, 60.0], [True, 60], [128, -1], [-128, 60]]
)
def test_sections_of_other_types_are_refused(section: Any) -> None:
    place = refused("json-field", changed(lambda v: v["sections"].__setitem__(0, section)))
    assert place.endswith(", section 0")


@pytest.mark.parametrize("name", ["", "\n", "x" * 1025])
@pytest.mark.parametrize("of", ["part", "array"])
def test_names(of: str, name: str) -> None:
    key = "column" if of == "part" else "name"
    refused("json-name", changed(lambda v: OBJECTS[of](v).update({key: name})))


@pytest.mark.parametrize(
    ("sections", "end"),
    [
        ([[192, 60]], 256),
        ([[64, 60]], 192),
        ([[129, 60]], 192),
        ([[128, 0]], 128),
        ([[128, 64], [256, 1]], 320),
        ([[128, 65], [192, 1]], 256),
        ([[128, 64], [192, 65536]], 192 + 65536),
        ([[128, 60]], 188),
        ([[128, 60]], 256),
        ([[128, 65]], 193),
    ],
)
def test_sections_lie_where_the_rule_says(sections: Any, end: int) -> None:
    value = {**VALUE, "sections": sections, "tables": [], "dense": []}
    refused("section-geometry", value, end=end)


def test_where_sections_lie() -> None:
    assert place_section(0, 1) == place_section(128, 65535) == 128
    assert place_section(129, 65535) == 192
    assert place_section(129, 65536) == place_section(4096, 65537) == 4096
    assert data_end(((128, 1),)) == data_end(((128, 64),)) == 192
    assert data_end(((128, 1), (192, 65))) == 320
    assert data_end(()) == 128


@pytest.mark.parametrize("digits", [2, 14, 18])
def test_nodes_have_sixteen_digits(digits: int) -> None:
    refused("node-count", {**VALUE, "nodes": "0" * digits})


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        # Sections that are named twice, not at all, or aren't there.
        (lambda v: user(v)["parts"][2].update(section=5), "part-length"),
        (lambda v: v["dense"].pop(), None),
        (lambda v: v["dense"].pop(3), "section-reference"),
        (lambda v: v["dense"][4].update(section=9), "section-reference"),
        (lambda v: v["dense"][4].update(section=10), "section-reference"),
        (lambda v: user(v)["row_sets"][1].update(section=10), "section-reference"),
        (lambda v: user(v)["parts"][0].update(section=10), "section-reference"),
        # Row sets.
        (lambda v: user(v)["parts"][0].update(rows=2), "section-reference"),
        (lambda v: item(v).update(deleted=2), "section-reference"),
        (lambda v: item(v).update(deleted=None), "section-reference"),
        (lambda v: user(v)["parts"].pop(1), "section-reference"),
        # Repeats.
        (lambda v: v["tables"].append({**item(v), "row_sets": [], "deleted": None, "parts": []}), "table-repeated"),
        (lambda v: v["dense"].append({"name": "j", "kind": "bytes", "section": None}), "table-repeated"),
        # Tombstones.
        (lambda v: user(v).update(deleted=0), "tombstone"),
        (lambda v: item(v).update(deleted=0), "section-reference"),
        (lambda v: item(v)["parts"][0].update(rows=1), "part-length"),
        (lambda v: item(v).update(row_sets=item(v)["row_sets"][:1], deleted=0), "tombstone"),
    ],
)
def test_references(change: Callable[[Any], object], rule: str | None) -> None:
    if rule is None:
        parse(changed(change))
    else:
        refused(rule, changed(change))


ROW_SETS = {"range": lambda v: user(v)["row_sets"][0], "raw": lambda v: user(v)["row_sets"][1]}


@pytest.mark.parametrize(
    ("which", "change", "rule"),
    [
        ("range", {"count": 4}, "row-set"),
        ("range", {"count": 6}, "row-set"),
        ("range", {"count": 0, "max": "-1"}, "row-set"),
        ("range", {"section": 1}, "row-set"),
        ("raw", {"code": "range", "max": "2"}, "row-set"),
        ("raw", {"section": None}, "row-set"),
        ("raw", {"count": 0}, "row-set"),
        ("raw", {"code": "packed", "count": 0}, "row-set"),
        ("raw", {"code": "runs", "count": 0}, "row-set"),
        ("raw", {"count": 3}, "row-set"),
        ("raw", {"min": "3", "max": "1"}, "row-set"),
        ("raw", {"max": "1"}, "row-set"),
        ("raw", {"count": 1}, "row-set"),
        ("raw", {"code": "bitmap"}, "row-set"),
        ("range", {"min": "-1", "max": "3"}, "row-bounds"),
        ("range", {"min": "6", "max": "10"}, "row-bounds"),
        ("raw", {"min": "-1"}, "row-bounds"),
        ("raw", {"max": "10"}, "row-bounds"),
    ],
)
def test_row_sets(which: str, change: dict[str, Any], rule: str) -> None:
    refused(rule, changed(lambda v: ROW_SETS[which](v).update(change)))


@pytest.mark.parametrize("change", [{"max": "9"}, {"code": "packed"}, {"code": "runs"}, {"min": "0", "max": "1"}])
def test_row_sets_that_are_sound(change: dict[str, Any]) -> None:
    parse(changed(lambda v: ROW_SETS["raw"](v).update(change)))


def test_a_range_is_for_dense_tables() -> None:
    rows = {"code": "range", "count": 3, "min": "1", "max": "3", "section": None}
    refused("row-set", changed(lambda v: item(v)["row_sets"].__setitem__(0, rows)))
    parse(changed(lambda v: ROW_SETS["range"](v).update(min="5", max="9")))


@pytest.mark.parametrize(("code", "lengths"), [("raw", [8, 24, 24]), ("bitmap", [72, 72, 144])])
def test_lengths_that_a_code_determines(code: str, lengths: list[int]) -> None:
    assert [index_length(code, count, span) for count, span in ((1, 512), (3, 1), (3, 513))] == lengths


def test_lengths_that_no_code_determines() -> None:
    assert index_length("packed", 3, 9) is index_length("runs", 3, 9) is None


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"elements": [4, 4]}, "elements"),
        ({"elements": [5, 4]}, "elements"),
        ({"elements": [0, limits.MAX_DIM + 1]}, "elements"),
        ({"elements": [0, 3]}, "part-length"),
        ({"elements": [1, 4]}, "part-length"),
        ({"elements": [0, 5]}, "part-length"),
        ({"rows": 1}, "part-length"),
        ({"encoding": {**EIGHT, "bits": 4, "scale": "float16", "bias": "float16"}}, "part-length"),
        ({"encoding": {**EIGHT, "bits": 3}}, "part-encoding"),
        ({"encoding": {"name": "raw", "dtype": "bool"}}, "part-encoding"),
        ({"encoding": {"name": "cast", "dtype": "float16"}}, "part-scheme"),
        ({"scheme": None}, "part-scheme"),
        ({"scheme": {**CHOICE, "method": "kmeans"}}, "part-scheme"),
        ({"codebooks": 1}, "part-length"),
        ({"codebooks": 9}, "part-length"),
        ({"codebooks": 10}, "section-reference"),
    ],
)
def test_parts(change: dict[str, Any], rule: str) -> None:
    refused(rule, changed(lambda v: user(v)["parts"][0].update(change)))


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"exceptions_of": 1}, "exception"),
        ({"exceptions_of": 2}, "exception"),
        ({"exceptions_of": 3}, "section-reference"),
        ({"exceptions_of": limits.MAX_PARTS}, "section-reference"),
        ({"column": "g"}, "exception"),
        ({"elements": [1, 5]}, "exception"),
    ],
)
def test_exceptions(change: dict[str, Any], rule: str) -> None:
    refused(rule, changed(lambda v: user(v)["parts"][1].update(change)))


def test_the_data_type_of_exceptions_is_for_the_schema_to_judge() -> None:
    def another(v: Any) -> None:
        user(v)["parts"][1]["encoding"] = {"name": "raw", "dtype": "int32"}

    assert parse(changed(another)).tables[0].parts[1].layout.dtype == "int32"


SHARED = {"name": "codebook", "bits": 2, "values": "float16", "block": 3}


def with_codebooks(v: Any) -> None:
    """The user's weights as five bytes of codes, and the codebooks of two blocks in a section at the end."""
    v["sections"][0] = [128, 5]
    v["sections"].append([768, 16])
    user(v)["parts"][0].update(encoding={**SHARED}, codebooks=10, scheme={**CHOICE, "method": "kmeans"})


def test_shared_codebooks_have_a_section() -> None:
    value = changed(with_codebooks)
    found = parse(value, end=END + 64)
    part = found.tables[0].parts[0]
    assert (part.layout, part.codebooks, part.width, part.row_bytes) == (CodebookLayout(2, "float16", 3), 10, 4, 1)
    assert pack_toc(found) == text(value)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda v: user(v)["parts"][0].update(codebooks=None), "part-length"),
        (lambda v: v["sections"].__setitem__(10, [768, 8]), "part-length"),
        (lambda v: v["sections"].__setitem__(10, [768, 24]), "part-length"),
        (lambda v: user(v)["parts"][0]["encoding"].update(block=2), "part-length"),
        (lambda v: user(v)["parts"][0]["encoding"].update(values="float32"), "part-length"),
        (lambda v: user(v)["parts"][0].update(codebooks=11), "section-reference"),
        (lambda v: user(v)["parts"][0].update(codebooks=1), "section-reference"),
        (lambda v: v["dense"][4].update(section=10), "section-reference"),
    ],
)
def test_sections_of_codebooks(change: Callable[[Any], object], rule: str) -> None:
    def both(v: Any) -> None:
        with_codebooks(v)
        change(v)

    refused(rule, changed(both), end=END + 64)


@pytest.mark.parametrize(("bits", "length"), [(8, 5), (12, 8), (16, 10)])
def test_parts_of_logarithmic_codes(bits: int, length: int) -> None:
    def logarithmic(v: Any, length: int = length) -> None:
        v["sections"][3] = [320, length]
        log = LogLayout(bits, 1, 0).to_json()
        user(v)["parts"][2].update(encoding=log, scheme={**CHOICE, "method": "log"})

    assert parse(changed(logarithmic)).tables[0].parts[2].layout == LogLayout(bits, 1, 0)
    for other in (length - 1, length + 1):
        refused("part-length", changed(lambda v, other=other: logarithmic(v, other)))  # type: ignore[misc]


def grid(v: Any, payload: str, length: int, group: int | None, bits: int | None = None) -> None:
    """The user's weights, five rows of four elements, as integers on a grid."""
    layout = GridLayout("residual", -9, payload, bits, group)
    user(v)["parts"][0].update(encoding=layout.to_json(), scheme={**CHOICE, "method": "closed-loop"})
    v["sections"][0] = [128, length]
    end = 128 + limits.round_up(length, 64)
    for section in v["sections"][1:]:
        section[0] = end
        end = end + limits.round_up(section[1], 64)


@pytest.mark.parametrize(
    ("payload", "group", "least"),
    [("packed", 2, 24 + 10), ("packed", 65536 // 4, 16 + 10), ("rans", 2, 24 + 24 + 3 * 32), ("rans", 5, 24 + 16 + 32)],
)
def test_parts_in_groups_have_at_least_their_directory(payload: str, group: int, least: int) -> None:
    for length in (least, least + 1, 5000):
        end = 128 + limits.round_up(length, 64) + END - 192
        found = parse(changed(lambda v, length=length: grid(v, payload, length, group)), end=end).tables[0]  # type: ignore[misc]
        assert found.parts[0].layout == GridLayout("residual", -9, payload, None, group)
        assert found.grids == found.residuals == {("weight", ("grid", -9))}
    end = 128 + limits.round_up(least - 1, 64) + END - 192
    refused("part-length", changed(lambda v: grid(v, payload, least - 1, group)), end=end)


def test_parts_of_integers_of_one_width() -> None:
    assert parse(changed(lambda v: grid(v, "fixed", 5 * (1 + 6), None, 11))).tables[0].grids
    for length in (34, 36):
        refused("part-length", changed(lambda v, length=length: grid(v, "fixed", length, None, 11)))  # type: ignore[misc]


def test_a_group_has_no_more_values_than_it_may() -> None:
    end = 128 + 5000 // 64 * 64 + 64 + END - 192
    parse(changed(lambda v: grid(v, "packed", 5000, 16384)), end=end)
    refused("part-encoding", changed(lambda v: grid(v, "packed", 5000, 16385)), end=end)
    log = {"encoding": LogLayout(16, 1, 0).to_json(), "scheme": {**CHOICE, "method": "log"}, "elements": [0, 2]}
    refused("part-encoding", changed(lambda v: user(v)["parts"][2].update(log)))

    def logs(v: Any, group: int) -> None:
        grid(v, "rans", 5000, group)
        encoding = LogLayout(12, 1, 0, "residual", "rans", group).to_json()
        user(v)["parts"][0].update(encoding=encoding, scheme={**CHOICE, "method": "log"})

    found = parse(changed(lambda v: logs(v, 16384)), end=end).tables[0]
    assert found.residuals == {("weight", ("log", 12, 1, 0))}
    refused("part-encoding", changed(lambda v: logs(v, 16385)), end=end)


def test_exceptions_are_raw_and_those_of_a_part_that_is_not() -> None:
    def rowwise(v: Any) -> None:
        user(v)["parts"][1].update(encoding=EIGHT, scheme=CHOICE)
        v["sections"][2] = [256, 24]

    refused("exception", changed(rowwise))

    def of_a_raw_part(v: Any) -> None:
        user(v)["parts"][0].update(encoding=RAW, scheme=None)
        v["sections"][0] = [128, 80]
        v["sections"][1:] = [[offset + 64, length] for offset, length in v["sections"][1:]]

    refused("exception", changed(of_a_raw_part), end=END + 64)


def test_a_part_has_one_exception_part() -> None:
    def second(v: Any) -> None:
        user(v)["parts"].append({**user(v)["parts"][1], "section": 10})
        v["sections"].append([768, 32])

    refused("exception", changed(second), end=END + 64)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda v: v["dense"][0].update(shape=[2, 3]), "dense-entry"),
        (lambda v: v["dense"][0].update(shape=[]), "dense-entry"),
        (lambda v: v["dense"][0].update(dtype="int8"), "dense-entry"),
        (lambda v: v["dense"][0].update(dtype="complex64", shape=[1]), None),
        (lambda v: v["dense"][0].update(dtype="bool", shape=[8]), None),
        (lambda v: v["dense"][1].update(shape=[1]), "dense-entry"),
        (lambda v: v["dense"][1].update(shape=[]), "dense-entry"),
        (lambda v: v["dense"][1].update(shape=[0, (1 << 50) - 1]), None),
        (lambda v: v["dense"][1].update(shape=[0, 1 << 50]), "limit"),
        (lambda v: v["dense"][1].update(shape=[1 << 50, 0, 2]), "limit"),
        (lambda v: v["dense"][0].update(shape=[2, 2] + [1] * 30), None),
        (lambda v: v["dense"][0].update(shape=[2, 2] + [1] * 31), "limit"),
        (lambda v: v["dense"].append({"name": "j2", "kind": "json", "section": None}), "dense-entry"),
        # The keys of an array are an array's alone.
        (lambda v: v["dense"][3].update(dtype="int8", shape=[5]), "json-field"),
        (lambda v: v["dense"][3].update(kind="array"), "json-field"),
    ],
)
def test_dense_state(change: Callable[[Any], object], rule: str | None) -> None:
    if rule is None:
        parse(changed(change))
    else:
        refused(rule, changed(change))


@pytest.mark.parametrize(
    ("limit", "most"),
    [
        ("MAX_SECTIONS", 10),
        ("MAX_TABLES", 2),
        ("MAX_DENSE", 5),
        ("MAX_ROW_SETS", 2),
        ("MAX_PARTS", 3),
        ("MAX_TOMBSTONES", 2),
        ("MAX_ROWS", 10),
        ("MAX_DIMENSIONS", 2),
    ],
)
def test_lists_are_bounded(monkeypatch: pytest.MonkeyPatch, limit: str, most: int) -> None:
    monkeypatch.setattr(limits, limit, most)
    assert parse(VALUE) == TOC
    monkeypatch.setattr(limits, limit, most - 1)
    refused("limit", VALUE)


def test_the_widest_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_DIM", 4)
    assert parse(VALUE) == TOC
    monkeypatch.setattr(limits, "MAX_DIM", 3)
    refused("elements", VALUE)
