"""Ids, digests and their seeds (specification, section 2)."""

from __future__ import annotations

import os
from typing import Any

import xxhash

_LEVEL = 1 << 56
_MASK = (1 << 64) - 1

NODE_LEVEL, TOC_LEVEL, TRAILER_LEVEL, HEADER_LEVEL = 1, 2, 3, 4


def new_id() -> bytes:
    """A random id: 16 bytes, not all zero."""
    while not any(value := os.urandom(16)):
        pass
    return value


def digest(data: Any, seed: int = 0) -> int:
    """XXH3-64 of anything that speaks the buffer protocol."""
    return xxhash.xxh3_64_intdigest(data, seed)


def seed_of(segment_id: bytes, level: int = 0, index: int = 0) -> int:
    """The seed of piece `index` (level 0), of node `index` (level 1), or of a level without index."""
    return (int.from_bytes(segment_id[:8], "little") + level * _LEVEL + index) & _MASK


def digest_hex(value: int) -> str:
    """A digest as JSON holds it."""
    return f"{value:016x}"
