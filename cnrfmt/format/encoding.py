"""How rows may be stored, as metadata says it (specification, section 6). Coding itself is in `encodings/`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

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

MAX_GROUP = 1 << 20
"""The most elements of a group, and the most rows that share a codebook."""
_INFINITE = 0x7F800000
"""The bit pattern of the float32 infinity."""
_BIAS_OF = {"float32": "float32", "float16": "float16", "bfloat16": "float32"}
"""The data type of the bias that goes with a scale in the layout `packed`."""
_HEAD_ALIGNMENT = 16


class _Layout(ABC):
    """What follows from the bits that a row takes."""

    dtype = "float32"
    """The data type of the rows."""

    @property
    def stands_alone(self) -> bool:
        """Whether a row's bytes are its own, and all that its values take."""
        return True

    @abstractmethod
    def row_bits(self, width: int) -> int:
        """Bits of a row of `width` elements in the part's section."""

    def row_bytes(self, width: int) -> int:
        """The most bytes that hold bits of a row of `width` elements."""
        return -(-self.row_bits(width) // 8)

    def section_bytes(self, count: int, width: int) -> int:
        """Bytes of the section of `count` rows."""
        return -(-count * self.row_bits(width) // 8)

    def span(self, position: int, count: int, width: int) -> tuple[int, int]:
        """Where in the section the bytes of `count` rows from a position on begin, and how many they are."""
        first = position * self.row_bits(width)
        start = first // 8
        return start, -(-(first + count * self.row_bits(width)) // 8) - start

    def offsets(self, positions: Any, width: int) -> Any:
        """Where in the section the rows at some positions (an int64 array) begin, in whole bytes."""
        bits = self.row_bits(width)
        return positions * (bits // 8) if bits % 8 == 0 else positions * bits >> 3

    def codebook_bytes(self, count: int) -> int:
        """Bytes of the section of codebooks that `count` rows share; 0 where there is none."""
        return 0


@dataclass(frozen=True)
class RawLayout(_Layout):
    """Elements as they were given."""

    dtype: str

    def row_bits(self, width: int) -> int:
        """Bits of a row of `width` elements."""
        return 8 * ITEM_SIZES[self.dtype] * width

    def to_json(self) -> Json:
        """The ENCODING of a part."""
        return {"name": "raw", "dtype": self.dtype}


@dataclass(frozen=True)
class CastLayout(_Layout):
    """Elements of a float32 column rounded to a narrower data type."""

    stored: str

    def row_bits(self, width: int) -> int:
        """Bits of a row of `width` elements."""
        return 8 * ITEM_SIZES[self.stored] * width

    def to_json(self) -> Json:
        """The ENCODING of a part."""
        return {"name": "cast", "dtype": self.stored}


@dataclass(frozen=True)
class RowwiseLayout(_Layout):
    """Codes of `bits` bits, with a scale and mostly a bias for each group of elements.

    `placement` is what the specification calls the layout: ``"tail"``, ``"head"`` or ``"packed"``. A `group` of None
    is the whole row, a `bias` of None stands for codes on either side of zero.
    """

    bits: int
    placement: str = "tail"
    scale: str = "float32"
    bias: str | None = "float32"
    group: int | None = None

    def code_bytes(self, width: int) -> int:
        """Bytes of the codes of a row of `width` elements."""
        return -(-width * self.bits // 8)

    def groups(self, width: int) -> int:
        """Groups of a row of `width` elements."""
        return 1 if self.group is None else -(-width // self.group)

    def row_bits(self, width: int) -> int:
        """Bits of a row of `width` elements, parameters included."""
        parameters = ITEM_SIZES[self.scale] + (0 if self.bias is None else ITEM_SIZES[self.bias])
        size = self.code_bytes(width) + self.groups(width) * parameters
        return 8 * (-(-size // _HEAD_ALIGNMENT) * _HEAD_ALIGNMENT if self.placement == "head" else size)

    def places(self, width: int) -> tuple[int, int, int]:
        """Where in a row of `width` elements its codes, its scales and its biases begin, in bytes."""
        if self.placement == "head":
            return 4, 0, 2
        scales = self.code_bytes(width)
        return 0, scales, scales + self.groups(width) * ITEM_SIZES[self.scale]

    def to_json(self) -> Json:
        """The ENCODING of a part."""
        return {
            "name": "rowwise",
            "bits": self.bits,
            "layout": self.placement,
            "scale": self.scale,
            "bias": self.bias,
            "group": self.group,
        }


@dataclass(frozen=True)
class CodebookLayout(_Layout):
    """Codes that are places in a codebook, which each row has in front of them or `block` rows share."""

    bits: int
    values: str = "float32"
    block: int | None = None

    @property
    def stands_alone(self) -> bool:
        """Whether each row has its own codebook."""
        return self.block is None

    @property
    def book_bytes(self) -> int:
        """Bytes of a codebook."""
        return ITEM_SIZES[self.values] << self.bits

    def row_bits(self, width: int) -> int:
        """Bits of a row of `width` elements, with its codebook if that is its own."""
        return 8 * (-(-width * self.bits // 8) + (self.book_bytes if self.block is None else 0))

    def codebook_bytes(self, count: int) -> int:
        """Bytes of the codebooks that `count` rows share."""
        return 0 if self.block is None else -(-count // self.block) * self.book_bytes

    def to_json(self) -> Json:
        """The ENCODING of a part."""
        return {"name": "codebook", "bits": self.bits, "values": self.values, "block": self.block}


@dataclass(frozen=True)
class LogLayout(_Layout):
    """Logarithmic codes of one value per row: 0 is zero, k > 0 the float32 of pattern base + ((k - 1) << shift)."""

    bits: int
    base: int
    shift: int

    @property
    def stands_alone(self) -> bool:
        """Whether no two rows share a byte."""
        return self.bits % 8 == 0

    def row_bits(self, width: int) -> int:
        """Bits of a row, which is one value."""
        return self.bits

    def to_json(self) -> Json:
        """The ENCODING of a part."""
        return {"name": "log", "bits": self.bits, "base": self.base, "shift": self.shift}


Layout = RawLayout | CastLayout | RowwiseLayout | CodebookLayout | LogLayout


def parse_layout(value: Json, place: str, *, lenient: bool) -> Layout:
    """The layout that an ENCODING names; raises `DamagedError` (rule `part-encoding`)."""
    if not isinstance(value, dict):
        raise DamagedError("json-field", place, expected="an object", found=type(value).__name__)
    name = value.get("name")
    keys = _KEYS.get(name) if isinstance(name, str) else None
    if keys is not None:
        record = Record(value, ("name", *keys), place, lenient=lenient)
        found: Layout = _LAYOUTS[str(name)](*(_plain(record[key]) for key in keys))
        if is_legal(found):
            return found
    raise DamagedError("part-encoding", place, expected="an encoding of section 6", found=str(value)[:120])


_LAYOUTS: dict[str, Any] = {
    "raw": RawLayout,
    "cast": CastLayout,
    "rowwise": RowwiseLayout,
    "codebook": CodebookLayout,
    "log": LogLayout,
}
_KEYS: dict[str, tuple[str, ...]] = {
    "raw": ("dtype",),
    "cast": ("dtype",),
    "rowwise": ("bits", "layout", "scale", "bias", "group"),
    "codebook": ("bits", "values", "block"),
    "log": ("bits", "base", "shift"),
}


class _Other:
    """Stands for a value of metadata that no encoding has: it is equal to nothing."""


def _plain(value: Json) -> Any:
    """A string, an integer or null as it is; anything else, true and 8.0 included, is no value of an encoding."""
    return value if value is None or type(value) in (str, int) else _Other()


def is_legal(layout: Layout) -> bool:
    """Whether the values of a layout, of whatever types, are legal together (section 6)."""
    if isinstance(layout, RawLayout):
        return layout.dtype in ITEM_SIZES
    if isinstance(layout, CastLayout):
        return layout.stored in ("float16", "bfloat16")
    if isinstance(layout, CodebookLayout):
        return (
            layout.bits in (2, 3, 4)
            and layout.values in ("float32", "float16")
            and (layout.block is None or (type(layout.block) is int and 2 <= layout.block <= MAX_GROUP))
        )
    if isinstance(layout, LogLayout):
        return (
            layout.bits in (8, 12, 16)
            and type(layout.base) is type(layout.shift) is int
            and layout.base >= 1
            and 0 <= layout.shift <= 23
            and layout.base + ((1 << layout.bits) - 2 << layout.shift) < _INFINITE
        )
    return _LEGAL_ROWWISE.get(layout.placement, _illegal)(layout)


def _illegal(layout: RowwiseLayout) -> bool:
    return False


def _is_legal_tail(layout: RowwiseLayout) -> bool:
    parameter = {8: "float32", 4: "float16", 2: "float16"}.get(layout.bits)
    return parameter is not None and layout.scale == layout.bias == parameter and layout.group is None


def _is_legal_head(layout: RowwiseLayout) -> bool:
    return layout.bits in (8, 4, 2) and layout.scale == layout.bias == "float16" and layout.group is None


def _is_legal_packed(layout: RowwiseLayout) -> bool:
    group = layout.group
    return (
        layout.bits in range(2, 9)
        and layout.scale in _BIAS_OF
        and layout.bias in (None, _BIAS_OF[layout.scale])
        and (group is None or (type(group) is int and 8 <= group <= MAX_GROUP and group % 8 == 0))
    )


_LEGAL_ROWWISE = {"tail": _is_legal_tail, "head": _is_legal_head, "packed": _is_legal_packed}
