"""Which layouts of rows are legal, and which one metadata names (specification, section 6)."""

from __future__ import annotations

from typing import Any

from cnrfmt.errors import DamagedError
from cnrfmt.format.encoding import (
    ITEM_SIZES,
    MAX_CODE_BITS,
    MAX_FLOOR,
    MAX_GROUP,
    MAX_GROUP_VALUES,
    MIN_FLOOR,
    CastLayout,
    CodebookLayout,
    GridLayout,
    Layout,
    LogLayout,
    RawLayout,
    RowwiseLayout,
)
from cnrfmt.format.strict_json import Json, Record

_INFINITE = 0x7F800000
"""The bit pattern of the float32 infinity."""
_BIAS_OF = {"float32": "float32", "float16": "float16", "bfloat16": "float32"}
"""The data type of the bias that goes with a scale in the layout `packed`."""


def parse_layout(value: Json, place: str, *, lenient: bool) -> Layout:
    """The layout that an ENCODING names; raises `DamagedError` (rule `part-encoding`)."""
    if not isinstance(value, dict):
        raise DamagedError("json-field", place, expected="an object", found=type(value).__name__)
    name = value.get("name")
    keys = _KEYS.get(name) if isinstance(name, str) else None
    if keys is not None:
        record = Record(value, {"name", *keys}, place, lenient=lenient)
        found: Layout = _LAYOUTS[str(name)](*(_plain(record[key]) for key in keys))
        if is_legal(found):
            return found
    raise DamagedError("part-encoding", place, expected="an encoding of section 6", found=str(value)[:120])


def _log(kind: Any, bits: Any, base: Any, shift: Any, payload: Any, group: Any) -> LogLayout:
    """In the order of the keys, which is that of `grid` as well."""
    return LogLayout(bits, base, shift, kind, payload, group)


_LAYOUTS: dict[str, Any] = {
    "raw": RawLayout,
    "cast": CastLayout,
    "rowwise": RowwiseLayout,
    "codebook": CodebookLayout,
    "log": _log,
    "grid": GridLayout,
}
_KEYS: dict[str, tuple[str, ...]] = {
    "raw": ("dtype",),
    "cast": ("dtype",),
    "rowwise": ("bits", "layout", "scale", "bias", "group"),
    "codebook": ("bits", "values", "block"),
    "log": ("kind", "bits", "base", "shift", "payload", "group"),
    "grid": ("kind", "floor", "payload", "bits", "group"),
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
            and (layout.kind, layout.payload) in (("absolute", "fixed"), ("absolute", "rans"), ("residual", "rans"))
            and (layout.group is None if layout.payload == "fixed" else _is_group(layout.group))
        )
    if isinstance(layout, GridLayout):
        return (
            layout.kind in ("absolute", "residual")
            and type(layout.floor) is int
            and MIN_FLOOR <= layout.floor <= MAX_FLOOR
            and _is_legal_payload(layout)
        )
    return _LEGAL_ROWWISE.get(layout.placement, _illegal)(layout)


def _is_legal_payload(layout: GridLayout) -> bool:
    if layout.payload == "fixed":
        return type(layout.bits) is int and 1 <= layout.bits <= MAX_CODE_BITS and layout.group is None
    return layout.payload in ("packed", "rans") and layout.bits is None and _is_group(layout.group)


def _is_group(group: Any) -> bool:
    return type(group) is int and 1 <= group <= MAX_GROUP_VALUES


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
