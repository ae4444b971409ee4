"""Targets: parts whose rows are integers: heads and groups of `rans`, groups of `packed`, `fixed` rows, directories."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np

from cnrfmt.encodings.integer_sections import GivenCodes, encode_section
from cnrfmt.encodings.integers import OpenPart, bounds, integer_coder, values
from cnrfmt.encodings.rans import RansModels
from cnrfmt.errors import DamagedError
from cnrfmt.format.encoding import GridLayout, IntegerLayout, LogLayout
from tools import cnrcheck
from tools.fuzz.oracle import SOUND, Disagreement, attempt, same

PLACE = "input"
_GROUPS = (1, 2, 5, 64)
LAYOUTS: tuple[IntegerLayout, ...] = (
    *(GridLayout(kind, -5, "fixed", bits, None) for kind in ("absolute", "residual") for bits in (1, 7, 8, 13, 25, 26)),
    *(
        GridLayout(kind, -5, payload, None, group)
        for kind in ("absolute", "residual")
        for payload in ("packed", "rans")
        for group in _GROUPS
    ),
    *(
        LogLayout(bits, 0x2F800000, 11, kind, "rans", group)
        for kind in ("absolute", "residual")
        for bits in (8, 12, 16)
        for group in (2, 64)
    ),
)
PREFIX = 3
"""Bytes of an input before its section: the layout, the rows, the elements of each."""
_MOST_ROWS, _MOST_WIDTH = 96, 24


def _shape(data: bytes) -> tuple[IntegerLayout, int, int]:
    return LAYOUTS[data[0] % len(LAYOUTS)], 1 + data[1] % _MOST_ROWS, 1 + data[2] % _MOST_WIDTH


def integer_part(data: bytes) -> None:
    """A part: its layout, how many rows of how many elements, then its section.

    Both validators find the same rule broken or nothing; then they find the same integers, the library however it is
    asked for them, and what it makes of the codes is read as they are.
    """
    if len(data) < PREFIX:
        return
    layout, count, width = _shape(data)
    section = np.frombuffer(data, np.uint8, len(data) - PREFIX, PREFIX)
    coder = integer_coder(layout, count, width, PLACE)
    if len(section) < coder.least_bytes:
        return
    if not layout.is_grouped:
        # What follows of the input isn't the section's.
        section = section[: coder.least_bytes]
    rows, exponents = np.zeros((count, width), np.int32), np.zeros(count, np.uint8)

    def read() -> OpenPart:
        part = coder.opened(section[: coder.prefix_bytes(section[:16])], len(section))
        start, _ = part.span(0, count)
        part.decode(section[start:], 0, 0, rows, exponents)
        return part

    verdict, part, error = attempt(read)
    broken, codes, theirs = _by_validator(layout, section, count, width)
    if (verdict == SOUND) != (not broken):
        raise Disagreement(f"{layout}: the library says {error}, cnrcheck {broken or 'that it is sound'}")
    if part is None:
        assert isinstance(error, DamagedError)
        # Of several broken rules, they may name different ones.
        same({error.rule, *broken} <= _RULES, True, f"rule of {error}")
        return
    same(exponents.tolist(), theirs.tolist(), f"exponents of {layout}")
    same(rows.tolist(), cnrcheck.scaled(codes, theirs).tolist(), f"integers of {layout}")
    _read_otherwise(layout, part, section, rows)
    _encode_again(layout, codes.astype(np.int32), exponents, rows)


_RULES = {"grid-directory", "grid-models", "grid-codes", "code-padding"}


def _by_validator(layout: IntegerLayout, section: Any, count: int, width: int) -> tuple[set[str], Any, Any]:
    """The rules that it finds broken, and what it reads where there are none: codes and exponents."""
    try:
        part = cnrcheck.Integers(section, layout.to_json(), count, width)
        read = [part.read(units) for units in part.pieces()]
    except cnrcheck.BrokenCodesError as broken:
        return {str(broken.args[0])}, None, None
    codes, exponents = (np.concatenate([one[k] for one in read]) for k in (1, 2))
    return {"code-padding"} if part.padding else set(), codes, exponents


def _read_otherwise(layout: IntegerLayout, part: OpenPart, section: Any, rows: Any) -> None:
    """Rows from the middle on, and rows one by one, are those that were decoded as a run."""
    middle = len(rows) // 2
    start, length = part.span(middle, len(rows) - middle)
    rest = np.zeros_like(rows[middle:])
    part.decode(section[start : start + length], 0, middle, rest)
    same(rest.tolist(), rows[middle:].tolist(), f"rows of {layout} from the middle on")
    backwards = np.arange(len(rows), dtype=np.int64)[::-1].copy()
    scattered = np.zeros_like(rows)
    part.decode_rows(lambda starts, _: (section, starts), backwards, scattered, backwards)
    same(scattered.tolist(), rows.tolist(), f"rows of {layout} decoded one by one")


def _encode_again(layout: IntegerLayout, codes: Any, exponents: Any, rows: Any) -> None:
    """The same codes in a section of the library's own are read as the same integers; values are the validator's."""
    count, width = codes.shape
    found, section = encode_section(layout, GivenCodes(codes, exponents), count, width)
    broken, again, of_rows = _by_validator(found, section, count, width)
    same(broken, set(), f"rules of {layout}, encoded")
    same(again.tolist(), codes.tolist(), f"codes of {layout}, encoded")
    # Of rows of zeros, an exponent says nothing.
    some = codes.any(axis=1)
    same(of_rows[some].tolist(), exponents[some].tolist(), f"exponents of {layout}, encoded")
    least, greatest = bounds(layout)
    inside = np.clip(rows, least, greatest)
    out = np.empty(inside.shape, np.float32)
    values(layout, inside, out)
    grid = ("log", layout.bits, layout.base, layout.shift) if isinstance(layout, LogLayout) else ("grid", layout.floor)
    same(out.tobytes(), cnrcheck.values_of(inside.astype(np.int64), grid).tobytes(), f"values of {layout}")


def rans_head(data: bytes) -> None:
    """The head of a `rans` section: whether exponents other than 0 are legal, then the head, whose length is put right.

    Both validators find it sound or neither does.
    """
    most, head = (24, 0)[data[0] & 1] if data else 0, bytearray(data[1:].ljust(16, b"\0"))
    if not data or not data[0] & 2:
        head += bytes(-len(head) % 8)
        head[4:8] = (len(head) - 16).to_bytes(4, "little")
    raw = np.frombuffer(bytes(head), np.uint8)
    verdict, _, error = attempt(lambda: RansModels.parse(raw, PLACE, exponents=most))
    if len(raw) != RansModels.head_bytes(raw[:16]):
        # The validator reads as much as the head says.
        return
    try:
        cnrcheck.read_models(raw, most)
    except cnrcheck.BrokenCodesError as broken:
        if verdict == SOUND:
            raise Disagreement(f"accepted what cnrcheck refuses: {broken}") from None
        return
    same(verdict, SOUND, f"whether this is a head ({error})")


def seeds() -> Iterator[tuple[str, str, bytes]]:
    """Target, name and input: parts of every layout, of one group and of several; heads."""
    for number, layout in enumerate(LAYOUTS):
        random = Random(number)
        for count, width in ((1, 3), (7, 1 if isinstance(layout, LogLayout) and layout.bits == 12 else 3)):
            if isinstance(layout, LogLayout):
                codes = [random.randrange(1 << layout.bits) for _ in range(width * count)]
                exponents = [0] * count
            else:
                most = min(13, (layout.bits or 14) - 1)
                codes = [random.randint(-1 << most, (1 << most) - 1) >> random.randrange(9) for _ in range(3 * count)]
                exponents = [random.choice([0, 0, 3, 8]) for _ in range(count)]
                # The widest code needs all its bits, so that the width stays what it is.
                codes[0] = -1 << most
            source = GivenCodes(np.array(codes, np.int32).reshape(count, width), np.array(exponents, np.uint8))
            found, section = encode_section(layout, source, count, width)
            if found != layout:
                section = np.zeros(layout.section_bytes(count, width), np.uint8)
            yield "integer_part", f"{number}-{count}", bytes([number, count - 1, width - 1]) + section.tobytes()
            if layout.payload == "rans":
                head = section[: RansModels.head_bytes(section[:16])].tobytes()
                yield "rans_head", f"{number}-{count}", bytes([isinstance(layout, LogLayout)]) + head
