"""Invalid vectors about what metadata says of encodings, and the lengths that follow (rules 6, 19, 26 and 27)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vectors import encodings, rows
from vectors.cases import USER, Vector, broken, drop, one_small, put, table_id, two_small, weights
from vectors.container import Store, column, schema
from vectors.encodings import Json
from vectors.layout import Segment, Table
from vectors.parts import COUNT, KINDS, LOG, PART, WIDTH, shared_zeros, single, zeros

TAIL, HEAD, PACKED = KINDS["tail"], KINDS["head"], KINDS["packed"]
OWN, BLOCKS = KINDS["codebook"], KINDS["blocks"]


def fields() -> Iterator[Vector]:
    """Rule 6."""
    missing = {"cast": "dtype", "tail": "group", "packed": "bias", "codebook": "block", "log": "shift"}
    for kind, key in missing.items():
        store = single(KINDS[kind], hook=drop(*PART, "encoding", key))
        yield broken(6, f"encoding-{kind}-{key}-missing", store, f"A {kind} encoding without `{key}`.")
    for kind, keys in (("log", ("kind", "payload", "group")), ("grid", ("kind", "floor", "payload", "bits", "group"))):
        for key in keys:
            store = single(KINDS[kind], hook=drop(*PART, "encoding", key))
            yield broken(6, f"encoding-{kind}-{key}-missing", store, f"A {kind} encoding without `{key}`.")
    for kind in ("cast", "head", "blocks", "log", "log-rans", "grid", "grid-rans"):
        store = single(KINDS[kind], hook=put(*PART, "encoding", "colour", "red"))
        yield broken(6, f"encoding-{kind}-key-further", store, f"A further key in an encoding of the kind {kind}.")
    store = single(KINDS["raw"], hook=drop(*PART, "encoding", "name"))
    yield broken(6, "encoding-name-missing", store, "An encoding without name.", (27, 53))
    for key in ("codebooks", "scheme"):
        store = single(TAIL, hook=drop(*PART, key))
        yield broken(6, f"part-{key}-missing", store, f"A part without `{key}`.")
    for clause, value in (("string", "1"), ("float", 1.0), ("true", True), ("array", [1])):
        store = single(BLOCKS, hook=put(*PART, "codebooks", value))
        yield broken(6, f"codebooks-{clause}", store, f"`codebooks` is {value!r}.")


def references() -> Iterator[Vector]:
    """Rule 19: sections of codebooks."""
    for clause, number, about in (
        ("absent", 2, "`codebooks` names a section that isn't there."),
        ("negative", -1, "`codebooks` names the section -1."),
        ("own", 0, "`codebooks` names the section of the part itself."),
    ):
        also = (6,) if clause == "negative" else (26,) if clause == "own" else ()
        store = single(BLOCKS, hook=put(*PART, "codebooks", number))
        yield broken(19, f"codebooks-{clause}", store, about, also)

    twins = schema("twins", "item", COUNT, WIDTH, *(column(n, "float32", [WIDTH]) for n in ("weight", "twin")))

    def content(segment: Segment) -> None:
        table = Table(segment, table_id(twins), COUNT)
        span = table.span(0, COUNT - 1)
        for name in ("weight", "twin"):
            table.part(name, span, (0, WIDTH), BLOCKS, zeros(BLOCKS), codebooks=shared_zeros(BLOCKS))
        # Both parts have the codebooks of the first.
        table.json["parts"][1]["codebooks"] = table.json["parts"][0]["codebooks"]
        segment.sections.pop()

    store = one_small(content=content, tables=[twins])
    yield broken(19, "codebooks-shared", store, "Two parts name one section of codebooks.")


def lengths() -> Iterator[Vector]:
    """Rule 26: sections of rows, of 4 rows of 3 elements unless told."""
    grouped = encodings.rowwise(4, "packed", "float16", "float16", 8)
    biasless = encodings.rowwise(4, "packed", "float32", None)
    for clause, encoding, width, length, about in (
        ("cast-raw", encodings.cast("float16"), 3, 48, "a cast part as long as a raw one"),
        ("cast-odd", encodings.cast("bfloat16"), 3, 23, "a cast part of an odd length"),
        ("rowwise-short", rows.rowwise_encoding(4), 3, 23, "a byte is missing"),
        ("rowwise-unpacked", rows.rowwise_encoding(4), 3, 28, "a byte for each code"),
        ("rowwise-aligned", rows.rowwise_encoding(8), 3, 48, "rows of a multiple of 4 bytes"),
        ("head-unaligned", HEAD, 3, 24, "rows that aren't filled up to 16 bytes"),
        ("head-aligned-twice", HEAD, 24, 128, "rows of 32 bytes where 16 suffice"),
        ("head-8-bits", encodings.rowwise(8, "head"), 13, 64, "16 bytes for rows of 17"),
        ("packed-bytes", encodings.rowwise(3, "packed", "float32", "float32"), 3, 44, "a byte for each code"),
        ("packed-bits", encodings.rowwise(3, "packed", "float32", None), 3, 18, "rows that aren't whole bytes"),
        ("packed-groups-none", grouped, 27, 72, "one pair of parameters for four groups"),
        ("packed-groups-floor", grouped, 27, 104, "no parameters for the short last group"),
        ("packed-bfloat16", encodings.rowwise(2, "packed", "bfloat16", "float32"), 3, 20, "a bias of 2 bytes"),
        ("packed-biasless", biasless, 3, 40, "biases where there are none"),
        ("packed-bias", encodings.rowwise(4, "packed", "float32", "float32"), 3, 24, "no biases where there are some"),
        ("codebook-float32", OWN, 3, 136, "codebooks of float32 where they are float16"),
        ("codebook-none", OWN, 3, 8, "codes alone where each row has its codebook"),
        ("log-16", LOG, 3, 8, "two bytes for each code of 12 bits"),
        ("log-floor", LOG, 3, 5, "half a byte is missing"),
        ("log-8", encodings.log(8, 1, 23), 3, 5, "a byte too many"),
        ("grid-exponents", KINDS["grid"], 3, 16, "no exponents"),
        ("grid-bits", KINDS["grid"], 3, 18, "rows that aren't whole bytes"),
        ("grid-short", KINDS["grid"], 3, 19, "a byte is missing"),
        ("grid-long", KINDS["grid"], 3, 21, "a byte too many"),
        # Two groups of at most 3 rows: 16 bytes of directory, at least 2 bytes for each row.
        ("grid-packed-directory", KINDS["grid-packed"], 3, 15, "less than its directory"),
        ("grid-packed-none", KINDS["grid-packed"], 3, 16, "a directory alone"),
        ("grid-packed-short", KINDS["grid-packed"], 3, 23, "less than two bytes for each row"),
        # Besides, at least 24 bytes of head, and 32 for each group.
        ("grid-rans-short", KINDS["grid-rans"], 3, 103, "less than the states of its groups"),
        ("grid-rans-head", KINDS["grid-rans"], 3, 24, "less than the least head and its directory"),
        ("log-rans-fixed", KINDS["log-rans"], 3, 6, "as long as codes of 12 bits"),
        ("log-rans-short", KINDS["log-rans"], 3, 103, "less than the states of its groups"),
    ):
        store = single(encoding, bytes(length), width=width)
        yield broken(26, clause, store, f"A part of 4 rows in {length} bytes: {about}.")
    store = single(LOG, bytes(7), count=5)
    yield broken(26, "log-odd", store, "12-bit codes of 5 rows in 7 bytes: half a byte is missing.")
    store = single(BLOCKS, zeros(OWN), codebooks=shared_zeros(BLOCKS))
    yield broken(26, "codebook-both", store, "Rows with codebooks of their own beside shared ones.")


def codebooks() -> Iterator[Vector]:
    """Rule 26: where codebooks stand, and how many."""
    for kind, encoding in KINDS.items():
        if kind != "blocks":
            store = single(encoding, zeros(encoding), codebooks=bytes(32))
            yield broken(26, f"codebooks-{kind}", store, f"Codebooks beside a part of the kind {kind}.")
    yield broken(26, "codebooks-null", single(BLOCKS, zeros(BLOCKS)), "No codebooks for blocks of rows.")
    # Two codebooks of 4 float32.
    for clause, length, about in (
        ("short", 16, "one codebook for two blocks"),
        ("long", 48, "three codebooks for two blocks"),
        ("each-row", 64, "a codebook for each row"),
        ("half", 31, "a byte is missing"),
    ):
        store = single(BLOCKS, zeros(BLOCKS), codebooks=bytes(length))
        yield broken(26, f"codebooks-{clause}", store, f"Shared codebooks of {length} bytes: {about}.")


# By the name of the layout, what is changed in a legal encoding so that it isn't legal any more.
ILLEGAL: dict[str, tuple[Json, list[Json]]] = {
    "tail": (
        TAIL,
        [
            *({"bits": bits} for bits in (0, 1, 3, 5, 6, 7, 9, 16, -8, 4, 2)),
            *({"bits": 4, "scale": each, "bias": each} for each in ("float32", "bfloat16")),
            {"scale": "float16"},
            {"bias": "float16"},
            {"scale": "float16", "bias": "float16"},
            {"scale": "float64", "bias": "float64"},
            {"bias": None},
            {"scale": None},
            {"group": 8},
            {"group": 0},
        ],
    ),
    "head": (
        HEAD,
        [
            *({"bits": bits} for bits in (1, 3, 5, 6, 7, 16)),
            {"bits": 8, "scale": "float32", "bias": "float32"},
            {"scale": "float32"},
            {"bias": "bfloat16"},
            {"bias": None},
            {"group": 64},
        ],
    ),
    "packed": (
        PACKED,
        [
            *({"bits": bits} for bits in (0, 1, 9, 12, 2**53 - 1)),
            {"scale": "float32"},
            {"bias": "float32"},
            {"scale": "bfloat16"},
            {"scale": "bfloat16", "bias": "bfloat16"},
            {"scale": "float64", "bias": "float64"},
            {"scale": "float64", "bias": None},
            {"scale": "int8", "bias": None},
            {"scale": None, "bias": None},
            *({"group": group} for group in (0, 1, 4, 7, 12, -8, 1048577, 1048584)),
        ],
    ),
    "codebook": (
        OWN,
        [
            *({"bits": bits} for bits in (0, 1, 5, 8, -2)),
            *({"values": each} for each in ("bfloat16", "float64", "uint8", None)),
            *({"block": block} for block in (0, 1, -2, 1048577)),
        ],
    ),
    "log": (
        LOG,
        [
            *({"bits": bits} for bits in (0, 4, 10, 24, 32, -8)),
            *({"base": base} for base in (0, -1, 0x7F800000 - (4094 << 15), 0x7F800000, 2**53 - 1)),
            *({"shift": shift} for shift in (24, -1, 19, 63, 2**53 - 1)),
            {"bits": 16, "base": 1, "shift": 15},
        ],
    ),
    "log-groups": (
        KINDS["log-rans"],
        [
            *({"group": group} for group in (0, -1, 65537, 2**53 - 1, None)),
            *({"payload": payload} for payload in ("fixed", "packed", "RANS", "", None)),
            *({"kind": kind} for kind in ("relative", "", None)),
            {"payload": "fixed", "kind": "residual", "group": None},
            {"payload": "packed", "kind": "residual"},
            *({"bits": bits} for bits in (0, 4, 10)),
            {"bits": 16, "shift": 15},
        ],
    ),
    "grid": (
        KINDS["grid"],
        [
            *({"bits": bits} for bits in (0, -1, 27, 32, None)),
            *({"floor": floor} for floor in (-127, 104, 2**53 - 1, None)),
            *({"kind": kind} for kind in ("difference", "", None)),
            *({"payload": payload} for payload in ("packed", "rans", "zstd", "", None)),
            *({"group": group} for group in (0, 1, 64)),
            {"payload": "packed", "group": 64},
        ],
    ),
    "grid-groups": (
        KINDS["grid-rans"],
        [
            *({"group": group} for group in (0, -1, 65537, None)),
            # Three elements: 21845 rows have 65535 values.
            *({"group": group} for group in (21846, 65536)),
            *({"bits": bits} for bits in (0, 8)),
            {"payload": "fixed"},
            {"payload": "fixed", "bits": 8},
            *({"floor": floor} for floor in (-127, 104)),
        ],
    ),
    "cast": (
        KINDS["cast"],
        [{"dtype": each} for each in ("float32", "float64", "float8_e5m2", "int8", "FLOAT16", None)],
    ),
    "raw": (KINDS["raw"], [{"dtype": each} for each in ("FLOAT32", "bool", "complex64", "", None)]),
}
# Values of other types than the document gives; a number that isn't an integer breaks rule 6, too.
TYPES: list[tuple[Json, str, Any]] = [
    (TAIL, "bits", "8"),
    (TAIL, "bits", 8.0),
    (TAIL, "bits", True),
    (TAIL, "bits", None),
    (TAIL, "layout", None),
    (TAIL, "layout", ["tail"]),
    (TAIL, "scale", ["float32"]),
    (TAIL, "bias", {}),
    (TAIL, "group", False),
    (PACKED, "group", "8"),
    (PACKED, "group", 8.0),
    (PACKED, "bias", []),
    (OWN, "values", 4),
    (BLOCKS, "block", 2.0),
    (BLOCKS, "block", True),
    (LOG, "base", 1.5),
    (LOG, "base", "1"),
    (LOG, "base", True),
    (LOG, "shift", False),
    (LOG, "shift", None),
    (LOG, "kind", ["absolute"]),
    (LOG, "payload", 0),
    (LOG, "group", "1"),
    (KINDS["log-rans"], "group", True),
    (KINDS["grid"], "floor", "-10"),
    (KINDS["grid"], "floor", -10.0),
    (KINDS["grid"], "floor", True),
    (KINDS["grid"], "bits", "9"),
    (KINDS["grid"], "bits", 9.0),
    (KINDS["grid"], "payload", ["fixed"]),
    (KINDS["grid"], "kind", {}),
    (KINDS["grid-rans"], "group", 3.0),
    (KINDS["cast"], "dtype", 16),
    (KINDS["raw"], "dtype", ["float32"]),
]


def legality() -> Iterator[Vector]:
    """Rule 27: encodings of which no column has any."""
    for name, (legal, changes) in ILLEGAL.items():
        for change in changes:
            clause = "-".join(f"{key}-{str(value).lower() or 'empty'}" for key, value in change.items())
            encoding = legal | change
            store = single(legal, hook=put(*PART, "encoding", encoding))
            about = f"An encoding that isn't one of the specification: {encoding}."
            yield broken(27, f"{name}-{clause}", store, about.replace("'", "`"))
    for layout in ("fused", "TAIL", ""):
        store = single(TAIL, hook=put(*PART, "encoding", "layout", layout))
        yield broken(27, f"layout-{layout or 'empty'}", store, f"A row-wise layout {layout!r}.")
    for name in ("mesh", "", "Raw", "Grid", None, 7, ["raw"]):
        store = single(TAIL, hook=put(*PART, "encoding", "name", name))
        clause = "list" if isinstance(name, list) else str(name).lower() or "empty"
        also = (53,) if isinstance(name, str) else (6, 53)
        yield broken(27, f"name-{clause}", store, f"An encoding of the name {name!r}.", also)
    for encoding, key, value in TYPES:
        store = single(encoding, hook=put(*PART, "encoding", key, value))
        also = (6,) if isinstance(value, float) else ()
        clause = f"{encoding['name']}-{key}-{type(value).__name__.lower()}"
        yield broken(27, clause, store, f"`{key}` of an encoding is {value!r}.", also)


def of_columns() -> Iterator[Vector]:
    """Rule 27: encodings of which this column has none."""
    for clause, dtype, encoding, length in (
        ("raw-float16", "float32", rows.raw_encoding("float16"), 24),
        ("raw-int32", "float32", rows.raw_encoding("int32"), 48),
        ("raw-bfloat16", "float16", rows.raw_encoding("bfloat16"), 24),
    ):
        store = single(encoding, bytes(length), dtype=dtype)
        yield broken(27, clause, store, f"A {dtype} column under {encoding['dtype']}.")
    for kind, dtype in (
        ("tail", "float16"),
        ("tail", "uint8"),
        ("head", "bfloat16"),
        ("packed", "float64"),
        ("biasless", "int32"),
        ("cast", "float16"),
        ("cast", "bfloat16"),
        ("cast", "float64"),
        ("codebook", "float16"),
        ("blocks", "float64"),
        ("log", "float64"),
        ("log", "int32"),
        ("log-rans", "float64"),
        ("grid", "float64"),
        ("grid", "int32"),
        ("grid-packed", "float16"),
        ("grid-rans", "bfloat16"),
    ):
        store = single(KINDS[kind], dtype=dtype)
        yield broken(27, f"{kind}-{dtype}", store, f"A {dtype} column under an encoding of the kind {kind}.")

    def log_weight(elements: tuple[int, int], width: int) -> Vector:
        table_schema = schema("log", "item", COUNT, width)

        def before(segment: Segment) -> None:
            table = Table(segment, table_id(table_schema), COUNT)
            data = weights(COUNT)[:, :width].tobytes()
            table.part("weight", table.span(0, COUNT - 1), (0, width), KINDS["raw"], data)

        def content(segment: Segment) -> None:
            table = Table(segment, table_id(table_schema), COUNT)
            table.part("weight", table.span(0, COUNT - 1), elements, LOG, zeros(LOG))

        store = two_small(content, [table_schema], before=before)
        about = f"Elements {elements[0]} to {elements[1] - 1} of a weight of shape [{width}] in logarithmic codes."
        return broken(27, f"log-dim-{width}-elements-{elements[0]}-{elements[1]}", store, about)

    yield log_weight((0, 3), 3)
    yield log_weight((0, 1), 3)
    yield log_weight((2, 3), 3)
    yield log_weight((0, 1), 1)

    def pair(kind: str) -> Store:
        def content(segment: Segment) -> None:
            table = Table(segment, table_id(USER), COUNT)
            data = zeros(KINDS[kind], COUNT, 1 if kind == "log" else 2)
            table.part("accumulator", table.span(0, COUNT - 1), (0, 2), KINDS[kind], data)

        return one_small(content=content)

    about = "Two elements of a column of one value per row in logarithmic codes."
    yield broken(27, "log-pair", pair("log"), about, (25, 36, 37))
    about = "Two elements of a column of one value per row in entropy-coded logarithmic codes."
    yield broken(25, "log-rans", pair("log-rans"), about, (36, 37))
    for kind in ("grid", "grid-packed", "grid-rans"):
        about = f"Two elements of a column of one value per row on a grid ({KINDS[kind]['payload']})."
        yield broken(25, kind, pair(kind), about, (36, 37))


def vectors() -> Iterator[Vector]:
    """All vectors of this module."""
    yield from fields()
    yield from references()
    yield from lengths()
    yield from codebooks()
    yield from legality()
    yield from of_columns()
