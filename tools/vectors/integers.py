"""Integers, in groups and not (sections 6.5, 6.7 and 6.8), laid out by hand one number at a time."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vectors import encodings
from vectors.encodings import F32, Json

Rows = Sequence[Sequence[int]]
SCALE, LEAST, BLOCK = 4096, 65536, 1024


def values(integers: ArrayLike, floor: int) -> NDArray[F32]:
    """What integers on a grid mean."""
    return np.ldexp(np.asarray(integers, np.float64), floor).astype(F32)


def said(codes: Rows, exponents: Sequence[int]) -> NDArray[np.int64]:
    """What rows of codes say."""
    return np.array([[code << e for code in row] for row, e in zip(codes, exponents, strict=True)], np.int64)


def width_of(row: Sequence[int]) -> int:
    """The smallest width that holds the codes of a row in two's complement; 0 if all are 0."""
    return max(1 + max(code, ~code).bit_length() for code in row) if any(row) else 0


def twos(row: Sequence[int], width: int) -> bytes:
    """Codes in two's complement."""
    return encodings.bit_string([code % 2**width for code in row], width) if width else b""


def fixed(codes: Rows, exponents: Sequence[int], width: int) -> bytes:
    """The section of rows whose codes have one width."""
    return b"".join(bytes([e]) + twos(row, width) for row, e in zip(codes, exponents, strict=True))


def packed_group(codes: Rows, exponents: Sequence[int], widths: Sequence[int] | None = None) -> bytes:
    """A group of the payload `packed`; its widths are the smallest unless told."""
    widths = [width_of(row) for row in codes] if widths is None else widths
    rows = b"".join(twos(row, width) for row, width in zip(codes, widths, strict=True))
    return bytes(exponents) + bytes(widths) + rows


def directory(lengths: Sequence[int]) -> bytes:
    """The directory of groups of such lengths."""
    begins = [sum(lengths[:k]) for k in range(len(lengths))]
    blocks = b""
    for first in range(0, len(begins), BLOCK):
        block = begins[first : first + BLOCK]
        data = struct.pack(f"<Q{len(block)}I", block[0], *(begin - block[0] for begin in block))
        blocks += data + bytes(-len(data) % 8)
    return blocks


def assembled(groups: Sequence[bytes], head: bytes = b"") -> bytes:
    """A section in groups."""
    return head + directory([len(group) for group in groups]) + b"".join(groups)


def zigzag(code: int) -> int:
    """The natural number that stands for a code."""
    return 2 * code if code >= 0 else -2 * code - 1


def token_of(code: int) -> tuple[int, int, int]:
    """The token of a code, its extra bits and their number."""
    z = zigzag(code)
    if z < 32:
        return z, 0, 0
    m = z.bit_length() - 1
    return 32 + 4 * (m - 5) + (z >> m - 2 & 3), z & (1 << m - 2) - 1, m - 2


@dataclass
class Models:
    """Row kinds as (exponent, class, frequency), and the frequencies of the tokens of each class."""

    kinds: list[tuple[int, int, int]]
    classes: list[list[int]]

    def head(self) -> bytes:
        """The head of a `rans` section."""
        tables = b"".join(struct.pack("<BBH", *kind) for kind in self.kinds)
        for frequencies in self.classes:
            tables += struct.pack(f"<B{len(frequencies)}H", len(frequencies), *frequencies)
        tables += bytes(-len(tables) % 8)
        return struct.pack("<HHIQ", len(self.kinds), len(self.classes), len(tables), 0) + tables


def frequencies(counts: Counter[int]) -> list[int]:
    """Frequencies of symbols as often as they occur, about: each at least 1, their sum 4096."""
    total = counts.total()
    found = [max(1, counts[k] * SCALE // total) if counts[k] else 0 for k in range(max(counts) + 1)]
    found[found.index(max(found))] += SCALE - sum(found)
    return found


def models_of(codes: Rows, exponents: Sequence[int], classes: Sequence[int]) -> Models:
    """Models that hold such rows."""
    pairs = sorted(set(zip(exponents, classes, strict=True)))
    kinds = Counter(map(pairs.index, zip(exponents, classes, strict=True)))
    tokens: list[Counter[int]] = [Counter() for _ in range(max(classes) + 1)]
    for row, number in zip(codes, classes, strict=True):
        tokens[number].update(token_of(code)[0] for code in row)
    listed = [(*pair, often) for pair, often in zip(pairs, frequencies(kinds), strict=True)]
    return Models(listed, [frequencies(counts) for counts in tokens])


def rans_group(models: Models, codes: Rows, exponents: Sequence[int], classes: Sequence[int]) -> bytes:
    """A group of the payload `rans`."""
    pairs = [kind[:2] for kind in models.kinds]
    kinds = [pairs.index(pair) for pair in zip(exponents, classes, strict=True)]
    of_kinds = [kind[2] for kind in models.kinds]
    coded = [[token_of(code) for code in row] for row in codes]
    phases = [
        [(of_kinds, kind) for kind in kinds] if len(pairs) > 1 else [],
        [(models.classes[c], token) for c, row in zip(classes, coded, strict=True) for token, _, _ in row],
    ]
    extra, length = 0, 0
    for row in coded:
        for _, bits, count in row:
            extra |= bits << length
            length += count
    return streams(phases) + extra.to_bytes(-(-length // 8), "little")


def streams(phases: Sequence[Sequence[tuple[Sequence[int], int]]], ends: Sequence[int] = (LEAST,) * 8) -> bytes:
    """The states and words of the symbols of some phases, each symbol with the frequencies that it has."""
    states, words = list(ends), []
    for phase in reversed(phases):
        for number, (model, symbol) in reversed(list(enumerate(phase))):
            x, f, start = states[number % 8], model[symbol], sum(model[:symbol])
            if x >= f << 20:
                words.append(x % 65536)
                x //= 65536
            states[number % 8] = (x // f << 12) + x % f + start
    return struct.pack(f"<8I{len(words)}H", *states, *reversed(words))


def section(
    encoding: Json,
    codes: Rows,
    exponents: Sequence[int] | None = None,
    classes: Sequence[int] | None = None,
    models: Models | None = None,
    change: Callable[[list[bytes]], object] | None = None,
) -> bytes:
    """The section of rows under any integer encoding; `change` spoils groups before the directory is made of them."""
    exponents = [0] * len(codes) if exponents is None else exponents
    classes = [0] * len(codes) if classes is None else classes
    if encoding["payload"] == "fixed":
        if encoding["name"] == "log":
            return encodings.bit_string([row[0] for row in codes], encoding["bits"])
        return fixed(codes, exponents, encoding["bits"])
    size, head = encoding["group"], b""
    parts = [(codes[k : k + size], exponents[k : k + size]) for k in range(0, len(codes), size)]
    if encoding["payload"] == "packed":
        groups = [packed_group(*part) for part in parts]
    else:
        models = models_of(codes, exponents, classes) if models is None else models
        head = models.head()
        groups = [rans_group(models, *part, classes[k * size : k * size + size]) for k, part in enumerate(parts)]
    if change:
        change(groups)
    return assembled(groups, head)
