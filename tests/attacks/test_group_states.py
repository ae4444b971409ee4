"""Groups whose states, words or extra bits don't end where they must, and directories that point backwards."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.attacks.support import accepted, encodings, integers, parts, refused

PACKED, RANS = (encodings.grid("absolute", 0, payload, None, 1) for payload in ("packed", "rans"))
CODES = [[1, -2, 300], [40, 0, -41], [0, 0, 0], [7, 7, -8]]


def _endless(groups: list[bytes]) -> None:
    """A state that has more to say than there are symbols."""
    states = list(struct.unpack_from("<8I", groups[1]))
    states[7] += 1
    groups[1] = struct.pack("<8I", *states) + groups[1][32:]


def _greatest(groups: list[bytes]) -> None:
    groups[1] = struct.pack("<8I", *[2**32 - 1] * 8) + groups[1][32:]


def _low(groups: list[bytes]) -> None:
    """States that would ask for words without end."""
    groups[1] = bytes(32) + groups[1][32:]


def _without_words(groups: list[bytes]) -> None:
    groups[1] = groups[1][:32]


def _cut(groups: list[bytes]) -> None:
    groups[1] = groups[1][:31]


def _longer(groups: list[bytes]) -> None:
    groups[1] += bytes(1 << 16)


@pytest.mark.parametrize("change", [_endless, _greatest, _low, _without_words, _cut, _longer])
def test_states_that_do_not_end(tmp_path: Path, change: Callable[[list[bytes]], None]) -> None:
    hostile = integers.section(RANS, CODES, change=change)
    refused(tmp_path, parts.single(RANS, hostile), "grid-codes")
    accepted(tmp_path / "twin", parts.single(RANS, integers.section(RANS, CODES)))


@pytest.mark.parametrize("encoding", [PACKED, RANS], ids=["packed", "rans"])
def test_directories_that_point_backwards(tmp_path: Path, encoding: encodings.Json) -> None:
    """The third group begins before the second, so that one has less than no bytes and another has those of two."""
    data = bytearray(integers.section(encoding, CODES))
    begins = 8 + (0 if encoding is PACKED else 16 + struct.unpack_from("<I", data, 4)[0])
    second, third = struct.unpack_from("<2I", data, begins + 4)
    struct.pack_into("<2I", data, begins + 4, third, second)
    refused(tmp_path, parts.single(encoding, bytes(data)), "grid-directory")
    accepted(tmp_path / "twin", parts.single(encoding, integers.section(encoding, CODES)))
