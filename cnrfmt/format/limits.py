"""The limits of the specification, section 2.4, and the sizes that the format fixes."""

from __future__ import annotations

BLOCK = 128
"""Bytes of a block of fixed fields."""
PAGE = 4096
"""Alignment of spans in a single file and of large sections in a segment."""
SMALL_ALIGNMENT = 64
"""Alignment of sections shorter than `LARGE_SECTION`."""
LARGE_SECTION = 65536
"""Sections of this length or longer start at a multiple of `PAGE`."""
NODE = 65536
"""Bytes of the digest section that one node digest covers."""
PIECE = 4096
"""The piece size that this writer uses."""
MIN_PIECE, MAX_PIECE = 512, 1 << 20

MAX_ROWS = 1 << 48
MAX_DIM = 1 << 20
MAX_TABLES = 65536
MAX_COLUMNS = 256
MAX_ROW_SETS = 65536
MAX_PARTS = 65536
MAX_TOMBSTONES = 1 << 26
MAX_SECTIONS = 1 << 22
MAX_BYTES = (1 << 53) - 1
MAX_METADATA = 64 << 20
MAX_CHAIN = 256
MAX_VERSIONS = 4096
MAX_DENSE = 65536
MAX_DIMENSIONS = 32
MAX_NAME = 1024
MAX_DEPTH = 32
MAX_INTEGER = (1 << 53) - 1


def round_up(n: int, alignment: int) -> int:
    """The smallest multiple of `alignment` that is not less than `n`."""
    return -(-n // alignment) * alignment
