"""How rows may be stored, as metadata says it (specification, section 6). Coding itself is in `encodings/`."""

from __future__ import annotations

from dataclasses import dataclass

from cnrfmt.errors import DamagedError
from cnrfmt.format.strict_json import Json, Record

ITEM_SIZES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
}
"""Bytes of one element of each data type that columns may have."""
DENSE_ITEM_SIZES = {**ITEM_SIZES, "bool": 1, "complex64": 8, "complex128": 16}
"""The same with the types that only dense arrays may have."""

_ROWWISE_PARAMETER = {8: "float32", 4: "float16", 2: "float16"}


@dataclass(frozen=True)
class RawLayout:
    """Elements as they were given."""

    dtype: str

    def row_bytes(self, width: int) -> int:
        """Bytes of a row of `width` elements."""
        return ITEM_SIZES[self.dtype] * width

    def to_json(self) -> Json:
        """The ENCODING of a part."""
        return {"name": "raw", "dtype": self.dtype}


@dataclass(frozen=True)
class RowwiseLayout:
    """Codes of `bits` bits, then scale and bias of the row (layout `tail`)."""

    bits: int

    dtype = "float32"

    @property
    def parameter(self) -> str:
        """The data type of scale and bias."""
        return _ROWWISE_PARAMETER[self.bits]

    def code_bytes(self, width: int) -> int:
        """Bytes of the codes of a row of `width` elements."""
        return -(-width * self.bits // 8)

    def row_bytes(self, width: int) -> int:
        """Bytes of a row of `width` elements, parameters included."""
        return self.code_bytes(width) + 2 * ITEM_SIZES[self.parameter]

    def to_json(self) -> Json:
        """The ENCODING of a part."""
        return {
            "name": "rowwise",
            "bits": self.bits,
            "layout": "tail",
            "scale": self.parameter,
            "bias": self.parameter,
        }


Layout = RawLayout | RowwiseLayout


def parse_layout(value: Json, place: str, *, lenient: bool) -> Layout:
    """The layout that an ENCODING names; raises `DamagedError` (rule `part-encoding`)."""
    if not isinstance(value, dict):
        raise DamagedError("json-field", place, expected="an object", found=type(value).__name__)
    name = value.get("name")
    if name == "raw":
        record = Record(value, ("name", "dtype"), place, lenient=lenient)
        dtype = record["dtype"]
        if isinstance(dtype, str) and dtype in ITEM_SIZES:
            return RawLayout(dtype)
    elif name == "rowwise":
        keys = ("name", "bits", "layout", "scale", "bias")
        record = Record(value, keys, place, lenient=lenient)
        bits = record["bits"]
        if type(bits) is int and bits in _ROWWISE_PARAMETER:
            layout = RowwiseLayout(bits)
            if all(record[key] == want for key, want in layout.to_json().items()):
                return layout
    raise DamagedError(
        "part-encoding", place, expected="an encoding of section 6", found=str(value)[:120]
    )
