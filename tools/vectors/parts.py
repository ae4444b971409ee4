"""Containers that are about a single part: one table, one column under an encoding, sound unless told."""

from __future__ import annotations

from typing import Any

import numpy as np

from vectors import encodings, integers, rows
from vectors.cases import one_small, table_id
from vectors.container import Store, column, schema
from vectors.encodings import Json
from vectors.layout import Hook, Segment, Table

PART = ("tables", 0, "parts", 0)
COUNT, WIDTH = 4, 3
LOG = encodings.log(12, 0x2F800000, 15)
GROUP = 3
# One encoding of each kind; those of the name `log` are of columns of one value per row unless told.
KINDS: dict[str, Json] = {
    "raw": rows.raw_encoding("float32"),
    "cast": encodings.cast("bfloat16"),
    "tail": encodings.rowwise(8, "tail"),
    "head": encodings.rowwise(4, "head"),
    "packed": encodings.rowwise(5, "packed", "float16", "float16"),
    "biasless": encodings.rowwise(3, "packed", "bfloat16", None),
    "codebook": encodings.codebook(3, "float16"),
    "blocks": encodings.codebook(2, "float32", 3),
    "log": LOG,
    "log-rans": encodings.log(12, 0x2F800000, 15, "absolute", "rans", GROUP),
    "grid": encodings.grid("absolute", -10, "fixed", 9),
    "grid-packed": encodings.grid("absolute", -10, "packed", None, GROUP),
    "grid-rans": encodings.grid("absolute", -10, "rans", None, GROUP),
}


def zeros(encoding: Json, count: int = COUNT, width: int = WIDTH) -> bytes:
    """Rows of zero bytes under a legal encoding: their parameters are zero, too."""
    name, nothing = encoding["name"], np.zeros((count, width), int)
    if name == "raw":
        return bytes(4 * count * width)
    if name == "cast":
        return bytes(2 * count * width)
    if encoding.get("group") and name in ("log", "grid"):
        return integers.section(encoding, [[0] * width] * count)
    if name == "log":
        return bytes(-(-count * encoding["bits"] // 8))
    if name == "grid":
        return bytes(count * (1 + -(-width * encoding["bits"] // 8)))
    if name == "codebook":
        books = np.zeros((count, 2 ** encoding["bits"])) if encoding["block"] is None else None
        return encodings.coded(nothing, encoding["bits"], books, encoding["values"])
    groups = 1 if encoding["group"] is None else -(-width // encoding["group"])
    parameters = np.zeros((count, groups))
    return encodings.rows(encoding, nothing, parameters, None if encoding["bias"] is None else parameters)


def shared_zeros(encoding: Json, count: int = COUNT) -> bytes | None:
    """The codebooks of zeros that a legal encoding asks for."""
    block = encoding.get("block")
    if encoding["name"] != "codebook" or block is None:
        return None
    return bytes(-(-count // block) * encodings.SIZE[encoding["values"]] << encoding["bits"])


def single(
    encoding: Json,
    data: bytes | None = None,
    *,
    codebooks: bytes | None = None,
    hook: Hook | None = None,
    dtype: str = "float32",
    count: int = COUNT,
    width: int = WIDTH,
    of_weight: bool = False,
    **part: Any,
) -> Store:
    """A dense table with one part: of the weight or, under `log` unless told, of a column of one value per row."""
    columns, name = [column("weight", dtype, [width])], "weight"
    if encoding.get("name") == "log" and not of_weight:
        columns, name, width = [*columns, column("state", dtype, [])], "state", 1
    table_schema = schema("single", "item", count, columns[0]["shape"][0], *columns)
    if data is None:
        data, codebooks = zeros(encoding, count, width), shared_zeros(encoding, count)

    def content(segment: Segment) -> None:
        table = Table(segment, table_id(table_schema), count)
        span = table.span(0, count - 1)
        table.part(name, span, (0, width), encoding, data, codebooks=codebooks, **part)

    return one_small({"toc": hook} if hook else None, content, [table_schema])
