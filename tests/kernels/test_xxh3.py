"""Digests against the xxhash package, and the marks of verified pieces."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import xxhash
from hypothesis import given as examples
from hypothesis import strategies as st

from cnrfmt.kernels import xxh3
from cnrfmt.kernels._jit import INTERPRETED

Give = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
SEEDS = [0, 1, 0x123456789ABCDEF0, 2**63, 2**64 - 1]


def some_bytes(size: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def reference(data: npt.NDArray[np.uint8], piece_size: int, first_seed: int) -> list[int]:
    pieces = [data[at : at + piece_size] for at in range(0, len(data), piece_size)]
    return [xxhash.xxh3_64_intdigest(piece.tobytes(), (first_seed + i) % 2**64) for i, piece in enumerate(pieces)]


def digest(data: npt.NDArray[np.uint8], seed: int) -> int:
    out = np.empty(1, np.uint64)
    xxh3.digest_pieces(data, max(1, len(data)), np.uint64(seed), out)
    return int(out[0])


@pytest.mark.parametrize("seed", SEEDS)
def test_every_length(seed: int, given: Give) -> None:
    # Each of the algorithm's branches, and each remainder of stripes and blocks.
    data = given(some_bytes(2100))
    for length in [*range(600), *range(600, 2100, 7 if INTERPRETED else 1), 1024, 1025, 2048, 2049]:
        want = xxhash.xxh3_64_intdigest(data[:length].tobytes(), seed)
        assert digest(data[:length], seed) == want, length


@examples(st.binary(max_size=5000), st.integers(0, 2**64 - 1))
def test_any_bytes(data: bytes, seed: int) -> None:
    assert digest(np.frombuffer(data, np.uint8), seed) == xxhash.xxh3_64_intdigest(data, seed)


@pytest.mark.parametrize("start", range(9))
def test_any_alignment(start: int) -> None:
    data = some_bytes(9000)[start:]
    assert digest(data, 7) == xxhash.xxh3_64_intdigest(data.tobytes(), 7)


@pytest.mark.parametrize("piece_size", [512, 4096, 1 << 20])
@pytest.mark.parametrize("size", [1, 511, 512, 513, 4096 * 3, 4096 * 3 + 1])
def test_pieces(piece_size: int, size: int, given: Give) -> None:
    data = some_bytes(size)
    want = reference(data, piece_size, 2**64 - 2)  # Seeds wrap around within the pieces.
    out = np.empty(len(want), np.uint64)
    xxh3.digest_pieces(given(data), piece_size, np.uint64(2**64 - 2), out)
    assert out.tolist() == want


def test_real_table(trained: npt.NDArray[np.float32]) -> None:
    data = trained.reshape(-1).view(np.uint8)[:5_000_001]
    out = np.empty(-(-len(data) // 4096), np.uint64)
    xxh3.digest_pieces(data, 4096, np.uint64(99), out)
    assert out.tolist() == reference(data, 4096, 99)


def verify(
    data: npt.NDArray[np.uint8],
    data_first: int,
    pieces: list[int],
    seed: int,
    digests: npt.NDArray[np.uint64],
    verified: npt.NDArray[np.uint8],
) -> int:
    return int(
        xxh3.verify_pieces(data, data_first, 512, np.array(pieces, np.int64), np.uint64(seed), digests, verified)
    )


def test_sound_pieces_are_marked_once(given: Give) -> None:
    data = some_bytes(512 * 5 + 100)
    digests = np.array(reference(data, 512, 2**64 - 3), np.uint64)
    verified = np.zeros(6, np.uint8)
    assert verify(given(data), 0, [4, 1, 4, 5], 2**64 - 3, given(digests), verified) == -1
    assert verified.tolist() == [0, 1, 0, 0, 1, 1]


def test_every_flipped_bit_is_found() -> None:
    data = some_bytes(512 * 2 + 60)
    digests = np.array(reference(data, 512, 5), np.uint64)
    for bit in range(0, 8 * len(data), 97 if INTERPRETED else 1):
        damaged = data.copy()
        damaged[bit // 8] ^= 1 << (bit % 8)
        verified = np.zeros(3, np.uint8)
        bad = verify(damaged, 0, [0, 1, 2], 5, digests, verified)
        assert bad == bit // 8 // 512
        assert verified.tolist() == [1] * bad + [0] * (3 - bad)


def test_swapped_pieces_are_found() -> None:
    data = np.zeros(512 * 2, np.uint8)
    digests = np.array(reference(data, 512, 5), np.uint64)[::-1].copy()
    assert verify(data, 0, [0, 1], 5, digests, np.zeros(2, np.uint8)) == 0


def test_marked_pieces_are_passed_over() -> None:
    verified = np.array([1, 0], np.uint8)
    data = some_bytes(1024)
    wrong = np.array([0, reference(data, 512, 5)[1]], np.uint64)
    assert verify(data, 0, [0, 1], 5, wrong, verified) == -1


def test_data_from_a_later_piece_on() -> None:
    data = some_bytes(512 * 6 + 33)
    digests = np.array(reference(data, 512, 8), np.uint64)
    verified = np.zeros(7, np.uint8)
    assert verify(data[512 * 4 :], 4, [6, 4], 8, digests, verified) == -1
    assert verified.tolist() == [0, 0, 0, 0, 1, 0, 1]
    digests[5] ^= np.uint64(1)
    assert verify(data[512 * 4 :], 4, [4, 5, 6], 8, digests, verified) == 5


def test_threads_share_marks() -> None:
    count = 40 if INTERPRETED else 2000
    data = some_bytes(512 * count)
    digests = np.array(reference(data, 512, 0), np.uint64)
    broken = count // 2
    data[512 * broken] ^= 1
    verified = np.zeros(count, np.uint8)
    orders = [np.random.default_rng(i).permutation(count).tolist() for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda order: verify(data, 0, order, 0, digests, verified), orders))
    assert found == [broken] * 8
    assert verified[broken] == 0
    assert verified.sum() == len({piece for order in orders for piece in order[: order.index(broken)]})


@examples(
    st.lists(st.integers(0, 3000), max_size=20),
    st.sampled_from([1, 8, 64, 511, 512, 513, 1500]),
    st.integers(0, 2**12 - 1),
    st.booleans(),
)
def test_pieces_of_rows(starts: list[int], row_bytes: int, marks: int, ascending: bool) -> None:
    offsets = np.array(sorted(starts) if ascending else starts, np.int64)
    verified = np.array([marks >> i & 1 for i in range(12)], np.uint8)
    touched = [
        piece for offset in offsets.tolist() for piece in range(offset // 512, (offset + row_bytes - 1) // 512 + 1)
    ]
    out = np.full(len(offsets) * ((row_bytes + 510) // 512 + 1), -1, np.int64)
    count = xxh3.pieces_of_rows(offsets, row_bytes, 512, verified, out)
    listed = out[:count].tolist()
    assert set(listed) == {piece for piece in touched if not verified[piece]}
    if ascending:
        assert listed == sorted(set(listed))


def test_gathered_pieces(given: Give) -> None:
    data = some_bytes(512 * 6 + 33)
    digests = np.array(reference(data, 512, 2**64 - 4), np.uint64)
    pieces = np.array([1, 4, 6])
    gathered = np.concatenate([data[512 * p : 512 * (p + 1)] for p in pieces])

    def bad(gathered: npt.NDArray[np.uint8]) -> int:
        seed = np.uint64(2**64 - 4)
        return int(xxh3.verify_gathered(given(gathered), 512, given(pieces), seed, given(digests)))

    assert bad(gathered) == -1
    for k, piece in enumerate(pieces):
        damaged = gathered.copy()
        damaged[512 * k + 32] ^= 4
        assert bad(damaged) == piece
    assert bad(np.concatenate([gathered[512:1024], gathered[:512], gathered[1024:]])) == 1


def test_a_range_of_pieces(given: Give) -> None:
    data = some_bytes(512 * 6 + 33)
    digests = np.array(reference(data, 512, 2**64 - 4), np.uint64)
    seed = np.uint64(2**64 - 4)
    for first in range(7):
        for stop in range(first + 1, 8):
            part = data[512 * first : 512 * stop]
            assert xxh3.verify_range(given(part), first, stop, 512, seed, given(digests)) == -1
            damaged = part.copy()
            damaged[-1] ^= 1
            assert xxh3.verify_range(given(damaged), first, stop, 512, seed, given(digests)) == stop - 1
