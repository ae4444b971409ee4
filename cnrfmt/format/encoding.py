"""How rows may be stored, and the bytes that they take (specification, section 6). Coding itself is in `encodings/`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from cnrfmt.format.strict_json import Json

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
MIN_FLOOR, MAX_FLOOR = -126, 103
"""The exponents of the finest and of the coarsest grid: 2^24 - 1 steps are finite, and each is a normal number."""
MAX_CODE_BITS = 26
"""The widest code of a grid: a difference of two integers below 2^24, with its sign."""
MAX_GROUP_VALUES = 65536
"""The most values, and the most rows, of a group of rows that are stored together."""
DIRECTORY_BLOCK = 1024
"""Groups of a block of the directory."""
_HEAD_ALIGNMENT = 16


class _Layout(ABC):
    """What follows from the bits that a row takes."""

    dtype = "float32"
    """The data type of the rows."""

    @property
    def stands_alone(self) -> bool:
        """Whether a row's bytes are its own, and all that its values take."""
        return True

    @property
    def is_residual(self) -> bool:
        """Whether rows add to what older parts say of them."""
        return False

    @property
    def is_grouped(self) -> bool:
        """Whether rows are stored in groups of as many bytes as they take; then nothing follows from their number."""
        return False

    @abstractmethod
    def row_bits(self, width: int) -> int:
        """Bits of a row of `width` elements in the part's section."""

    def row_bytes(self, width: int) -> int:
        """The most bytes that hold bits of a row of `width` elements."""
        return -(-self.row_bits(width) // 8)

    def section_bytes(self, count: int, width: int) -> int:
        """Bytes of the section of `count` rows."""
        return -(-count * self.row_bits(width) // 8)

    def least_bytes(self, count: int, width: int) -> int:
        """The fewest bytes of the section of `count` rows; all of them, where the rows aren't stored in groups."""
        return self.section_bytes(count, width)

    def fits(self, width: int) -> bool:
        """Whether rows of `width` elements may have this layout."""
        return True

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


def directory_bytes(groups: int) -> int:
    """Bytes of the directory of some groups: blocks of a u64 and a u32 for each group, rounded up to 8."""
    whole, rest = divmod(groups, DIRECTORY_BLOCK)
    block = 8 + 4 * DIRECTORY_BLOCK
    return whole * block + (8 + -(-4 * rest // 8) * 8 if rest else 0)


def _least_grouped(payload: str, count: int, group: int | None) -> int:
    """The fewest bytes of `count` rows in groups: two a row if packed; states, and the smallest head, under rans."""
    assert group is not None
    groups = -(-count // group)
    return directory_bytes(groups) + (2 * count if payload == "packed" else 24 + 32 * groups)


class _IntegersLayout(_Layout):
    """Rows that are integers, which parts set or add to."""

    kind: str
    payload: str
    group: int | None

    @property
    def is_residual(self) -> bool:
        """Whether rows add to what older parts say of them."""
        return self.kind == "residual"

    @property
    def is_grouped(self) -> bool:
        """Whether rows are stored in groups of as many bytes as they take."""
        return self.payload != "fixed"

    def fits(self, width: int) -> bool:
        """Whether a group of rows of `width` elements has no more values than it may; a row alone may have any."""
        return self.group is None or self.group == 1 or self.group * width <= MAX_GROUP_VALUES


@dataclass(frozen=True)
class LogLayout(_IntegersLayout):
    """Logarithmic codes: 0 is zero, k > 0 the float32 of pattern base + ((k - 1) << shift).

    `kind` is ``"absolute"``, or ``"residual"`` for differences of codes. `payload` is ``"fixed"``, `bits` bits for each
    row, which is one value; or ``"rans"``, in groups of `group` rows of any width.
    """

    bits: int
    base: int
    shift: int
    kind: str = "absolute"
    payload: str = "fixed"
    group: int | None = None

    @property
    def stands_alone(self) -> bool:
        """Whether no two rows share a byte."""
        return self.payload == "fixed" and self.bits % 8 == 0

    @property
    def grid(self) -> tuple[str, int, int, int]:
        """What the parts of a row that add up have in common."""
        return "log", self.bits, self.base, self.shift

    def row_bits(self, width: int) -> int:
        """Bits of a row, which is one value, under the payload `fixed`."""
        assert self.payload == "fixed"
        return self.bits

    def least_bytes(self, count: int, width: int) -> int:
        """The fewest bytes of the section of `count` rows."""
        if self.payload == "fixed":
            return self.section_bytes(count, width)
        return _least_grouped(self.payload, count, self.group)

    def fits(self, width: int) -> bool:
        """Whether rows of `width` elements may have this layout: under the payload `fixed`, those of one value."""
        return super().fits(width) if self.is_grouped else width == 1

    def to_json(self) -> Json:
        """The ENCODING of a part."""
        return {
            "name": "log",
            "kind": self.kind,
            "bits": self.bits,
            "base": self.base,
            "shift": self.shift,
            "payload": self.payload,
            "group": self.group,
        }


@dataclass(frozen=True)
class GridLayout(_IntegersLayout):
    """Integers on a grid of steps of 2^floor, as codes with an exponent for each row.

    `kind` is ``"absolute"`` or ``"residual"``. `payload` is ``"fixed"``, codes of `bits` bits; ``"packed"``, codes as
    wide as each row needs; or ``"rans"``, entropy-coded; the last two in groups of `group` rows.
    """

    kind: str
    floor: int
    payload: str = "fixed"
    bits: int | None = None
    group: int | None = None

    @property
    def stands_alone(self) -> bool:
        """Whether a row's bytes are all that its values take."""
        return self.payload == "fixed" and self.kind == "absolute"

    @property
    def grid(self) -> tuple[str, int]:
        """What the parts of a row that add up have in common."""
        return "grid", self.floor

    def row_bits(self, width: int) -> int:
        """Bits of a row of `width` elements under the payload `fixed`: its exponent, and its codes in whole bytes."""
        assert self.bits is not None
        return 8 + 8 * -(-width * self.bits // 8)

    def least_bytes(self, count: int, width: int) -> int:
        """The fewest bytes of the section of `count` rows."""
        if self.payload == "fixed":
            return self.section_bytes(count, width)
        return _least_grouped(self.payload, count, self.group)

    def to_json(self) -> Json:
        """The ENCODING of a part."""
        return {
            "name": "grid",
            "kind": self.kind,
            "floor": self.floor,
            "payload": self.payload,
            "bits": self.bits,
            "group": self.group,
        }


IntegerLayout = LogLayout | GridLayout
"""Layouts whose rows are integers, which parts set or add to."""

Layout = RawLayout | CastLayout | RowwiseLayout | CodebookLayout | LogLayout | GridLayout
