"""Mutations that know JSON and packed containers; a fuzzer alternates them with its own blind ones."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from random import Random
from typing import Any

from cnrfmt.format.blocks import magic
from cnrfmt.format.encoding import DENSE_ITEM_SIZES
from cnrfmt.format.limits import BLOCK
from cnrfmt.format.toc_parser import CODES
from tools.fuzz import seal

Mutation = Callable[[bytes, Random], bytes]
"""Makes another input out of one, by the choices of a random generator."""

_INTEGERS = (0, 1, -1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 257, 511, 512, 4096, 65535, 65536, 65537)
_POWERS = tuple(
    sign * (1 << bits) + step
    for bits in (20, 22, 26, 31, 32, 48, 53, 63, 64)
    for sign in (1, -1)
    for step in (-1, 0, 1)
)
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0.5, -0.0, 1e308, "", "0", "-0", "-1", "weight", "../x", "a\u0000b", "\u007f", "\ud800"),
    *([], {}, [[]], [0, 0], "f" * 32, "0" * 32, "0" * 16, "F" * 16, str(-(1 << 63)), str((1 << 63) - 1), str(1 << 63)),
    *("dense", "keyed", "array", "json", "bytes", *CODES, *DENSE_ITEM_SIZES),
    *("raw", "cast", "rowwise", "codebook", "log", "tail", "head", "packed"),
    *("grid", "fixed", "rans", "absolute", "residual", "closed-loop"),
    *("symmetric", "asymmetric", "adaptive", "lsq", "kmeans"),
    *(16, 12, 8, 4, 3, 2, 0x7F800000 - 1, 0x2F800000),
)
_KEYS = (
    *("x", "section", "rows", "toc", "", "codebooks", "scheme", "group", "block", "bias", "dtype", "name"),
    *("payload", "floor"),
)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (holder, key) of a tree of JSON, at most some thousand."""
    found: list[tuple[Any, Any]] = []
    left = [value]
    while left and len(found) < 4000:
        item = left.pop()
        keys: Any = list(item) if isinstance(item, dict) else range(len(item)) if isinstance(item, list) else ()
        for key in keys:
            found.append((item, key))
            left.append(item[key])
    return found


def _scalar(value: Any, random: Random) -> Any:
    if isinstance(value, bool) or not isinstance(value, int) or random.random() < 0.2:
        if isinstance(value, str) and value and random.random() < 0.6:
            if value.lstrip("-").isdigit() and random.random() < 0.7:
                return str(int(value[:40]) + random.choice((-1, 1, 2, -2, 64, 1 << 32, -(1 << 63))))
            at = random.randrange(len(value))
            return value[:at] + random.choice("0123456789abcdefF-\u0000\u007f\u00e9") + value[at + 1 :]
        return copy.deepcopy(random.choice(_VALUES))
    choice = random.random()
    if choice < 0.5:
        return value + random.choice((-1, 1, -64, 64, 8, -8))
    return random.choice(_INTEGERS if choice < 0.8 else _POWERS)


def tree(value: Any, random: Random) -> Any:
    """A tree of JSON with some of its values, keys or elements changed."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        places = _places(value)
        if not places:
            return copy.deepcopy(random.choice(_VALUES))
        holder, key = random.choice(places)
        action = random.random()
        if action < 0.6:
            holder[key] = _scalar(holder[key], random)
        elif action < 0.7:
            del holder[key]
        elif action < 0.85:
            other, name = random.choice(places)
            taken = copy.deepcopy(other[name])
            if isinstance(holder, list):
                holder.insert(random.randrange(len(holder) + 1), taken)
            else:
                holder[key] = taken
        elif isinstance(holder, list):
            at = random.randrange(len(holder))
            holder[key], holder[at] = holder[at], holder[key]
        else:
            holder[random.choice(_KEYS)] = holder[key]
    return value


def json_text(data: bytes, random: Random) -> bytes:
    """JSON text with its tree changed; bytes that aren't JSON are left."""
    try:
        value = tree(json.loads(data), random)
        text = json.dumps(value, ensure_ascii=random.random() < 0.1, separators=(",", ":"))
        return text.encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return data


def after_prefix(length: int) -> Mutation:
    """`json_text` of what stands behind the first `length` bytes."""

    def mutate(data: bytes, random: Random) -> bytes:
        return data[:length] + json_text(data[length:], random)

    return mutate


def packed(data: bytes, random: Random) -> bytes:
    """A packed container with the JSON of one of its manifests or segments changed, or another option."""
    if random.random() < 0.1:
        return bytes([data[0] ^ 1 << random.randrange(5)]) + data[1:] if data else data
    starts = [at for letter in "MS" for at in _all(data, magic(letter))]
    if not starts:
        return data
    starts.sort()
    number = random.randrange(len(starts))
    start, stop = starts[number], [*starts[1:], len(data)][number]
    item = data[start:stop]
    if item[4:5] == b"M":
        first, last = BLOCK, len(item)
    else:
        first, last = item.rfind(seal.TOC_START), len(item) - BLOCK
        if not 0 <= first < last:
            return data
    changed = item[:first] + json_text(item[first:last], random) + item[last:]
    return data[:start] + changed + data[stop:]


def _all(data: bytes, what: bytes) -> list[int]:
    found, at = [], data.find(what)
    while at >= 0:
        found.append(at)
        at = data.find(what, at + 1)
    return found
