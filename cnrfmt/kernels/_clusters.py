"""Optimal k-means in one dimension: the numbers, up to 16, that a set of numbers errs least from.

Clusters of sorted numbers are runs, and the least error of the first j numbers in c clusters is that of
the first i in c - 1, plus that of the run from i to j, for the best i. Of few numbers every i is
tried. Of many, i is found by halving, since it moves up with j (Wang and Song 2011, Gronlund and others
2017); of more than 4096, neighbours are put into bins first, and a few of Lloyd's steps follow.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cnrfmt.kernels._clustering import LANES, best_start, fill_errors, inverses_of
from cnrfmt.kernels._jit import helper
from cnrfmt.kernels._small_sets import GROUP, least_errors, rank

Values = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint32]

# So many numbers for each one of a codebook are few.
_FEW = 14
_EXACT = 4096
_STEPS = 10
# Up to so many are sorted by counting, for each, those before it.
_RANKED = 256


class Room(NamedTuple):
    """What clustering needs beside the numbers; made once for all sets of up to so many."""

    values: Values
    ordered: Values
    ranks: npt.NDArray[np.int32]
    sums: Doubles
    squares: Doubles
    counts: Doubles
    inverses: Doubles
    middle: int
    costs: Doubles
    errors: Doubles
    starts: Places


@helper
def room_for(most: int, size: int) -> Room:
    """Room for sets of up to `most` numbers and codebooks of `size`."""
    few, bins = min(most, _FEW * size) + 2 * LANES, min(most, 2 * _EXACT) + 2 * LANES
    middle = min(most, _EXACT) + 2 * LANES
    return Room(
        np.empty(most + 2 * LANES, np.float32),
        np.empty(most + 2 * LANES, np.float32),
        np.empty(min(most, _RANKED) + 2 * LANES, np.int32),
        np.empty(bins),
        np.empty(bins),
        np.empty(bins),
        inverses_of(middle),
        middle,
        np.empty(GROUP * (few + LANES)),
        np.empty(size * (bins + GROUP + 1)),
        np.empty(bins, np.int64),
    )


@helper
def _sort_bytes(ordered: Keys, keys: Keys, count: int) -> None:
    """Sort numbers, given as their bits, by one byte after the other; `keys` are overwritten."""
    starts = np.zeros((4, 256), np.int64)
    for k in range(count):
        # Negative ones are turned round, and come before the others.
        key = keys[k] ^ (np.uint32(0xFFFFFFFF) if keys[k] >> np.uint32(31) else np.uint32(0x80000000))
        keys[k] = key
        for byte in range(4):
            starts[byte, (key >> np.uint32(8 * byte)) & np.uint32(255)] += 1
    for byte in range(4):
        total = 0
        for value in range(256):
            total, starts[byte, value] = total + starts[byte, value], total
        for k in range(count):
            value = (keys[k] >> np.uint32(8 * byte)) & np.uint32(255)
            ordered[starts[byte, value]] = keys[k]
            starts[byte, value] += 1
        keys, ordered = ordered, keys
    for k in range(count):
        key = keys[k]
        ordered[k] = key ^ (np.uint32(0x80000000) if key >> np.uint32(31) else np.uint32(0xFFFFFFFF))


@helper
def order(count: int, room: Room) -> None:
    """Sort the values in the room, which are finite and hold no -0; they are lost."""
    values, ordered = room.values, room.ordered
    if count > _RANKED:
        _sort_bytes(ordered.view(np.uint32), values.view(np.uint32), count)
        return
    whole = (count + 2 * LANES - 1) // (2 * LANES) * 2 * LANES
    for k in range(count, whole):
        values[k] = np.inf
    rank(values, whole, room.ranks)
    for k in range(count):
        ordered[room.ranks[k]] = values[k]


@helper
def _distinct(ordered: Values, count: int, most: int, means: Doubles) -> int:
    """List the distinct numbers, unless there are more than `most`; returns how many there are, up to most + 1."""
    means[0] = ordered[0]
    found = 1
    for k in range(1, count):
        if ordered[k] != ordered[k - 1]:
            if found == most:
                return most + 1
            means[found] = ordered[k]
            found += 1
    return found


@helper
def _sum(count: int, room: Room) -> None:
    ordered, sums, squares = room.ordered, room.sums, room.squares
    # About a number from their middle, sums lose the least.
    centre = np.float64(ordered[count // 2])
    total, square = 0.0, 0.0
    for k in range(count):
        sums[k], squares[k] = total, square
        x = np.float64(ordered[k]) - centre
        total += x
        square += x * x
    for k in range(count, count + 2 * LANES):
        sums[k], squares[k] = total, square


@helper
def _sum_bins(count: int, room: Room) -> int:
    """As `_sum`, over bins that hold few enough numbers, and near enough to each other; returns how many bins."""
    ordered, sums, squares, counts = room.ordered, room.sums, room.squares, room.counts
    centre = np.float64(ordered[count // 2])
    most = (count + _EXACT - 1) // _EXACT
    reach = (np.float64(ordered[count - 1]) - np.float64(ordered[0])) / _EXACT
    total, square = 0.0, 0.0
    bins, first = 0, 0
    for k in range(count):
        if k == first or k - first == most or np.float64(ordered[k]) - np.float64(ordered[first]) > reach:
            sums[bins], squares[bins], counts[bins] = total, square, k
            first = k
            bins += 1
        x = np.float64(ordered[k]) - centre
        total += x
        square += x * x
    for k in range(bins, bins + LANES):
        sums[k], squares[k], counts[k] = total, square, count
    return bins


@helper
def _split_few(count: int, size: int, room: Room, starts: Places) -> None:
    """starts[c] = where the c-th of the clusters starts that have the least squared error together."""
    sums, squares, errors = room.sums, room.squares, room.errors
    whole = (count + GROUP - 1) // GROUP * GROUP
    least_errors(size, whole, sums, squares, room.inverses, room.middle, room.costs, errors)
    error = errors[(whole + 1 + (count - 1) % GROUP) * size + size - 1]
    end = count
    for c in range(size - 1, 0, -1):
        # The very computation that gave the least error gives it again.
        start = end - 1
        while start > 0:
            total = sums[end] - sums[start]
            cost = (squares[end] - squares[start]) - total * total * room.inverses[room.middle - (end - start)]
            if errors[start * size + c] + cost == error:
                break
            start -= 1
        error = errors[start * size + c]
        starts[c] = end = start
    starts[0] = 0


@helper
def _split_many(count: int, size: int, weights: Doubles, middle: int, room: Room, starts: Places) -> None:
    """As `_split_few`, by halving; the last cluster's start is searched for at every eighth end only."""
    sums, squares, errors, places = room.sums, room.squares, room.errors, room.starts
    stride = count + 2 * LANES
    blocks = (count + LANES - 1) // LANES
    errors[0] = np.inf
    for end in range(1, count + 1):
        total = sums[end] - sums[0]
        weight = weights[end] - weights[0] if middle < 0 else float(end)
        errors[end] = (squares[end] - squares[0]) - total * total / weight
    step = 1
    while step < blocks:
        step *= 2
    for c in range(1, size - 1):
        layer, out = (c - 1) * stride, c * stride
        places[0] = 0
        places[blocks] = best_start(errors, layer, sums, squares, weights, middle, 0, count - 1, count)
        half = step // 2
        while half:
            for t in range(half, blocks, 2 * half):
                end = t * LANES
                low = places[t - half]
                high = max(low, min(places[min(t + half, blocks)], end - 1))
                places[t] = best_start(errors, layer, sums, squares, weights, middle, low, high, end)
            half //= 2
        for t in range(blocks):
            first = t * LANES
            high = min(max(places[t], places[t + 1]), first + LANES - 1)
            fill_errors(errors, layer, sums, squares, weights, middle, places[t], high, first, out)
        errors[out] = np.inf
    end = count
    for c in range(size - 1, 0, -1):
        starts[c] = best_start(errors, (c - 1) * stride, sums, squares, weights, middle, 0, end - 1, end)
        end = starts[c]
    starts[0] = 0


@helper
def _mean(ordered: Values, start: int, end: int) -> float:
    first, total = np.float64(ordered[start]), 0.0
    for k in range(start + 1, end):
        total += np.float64(ordered[k]) - first
    return first + total / (end - start)


@helper
def _improve(ordered: Values, count: int, means: Doubles, used: int) -> None:
    """A few of Lloyd's steps over sorted numbers, or until nothing moves."""
    for _ in range(_STEPS):
        moved, start = False, 0
        for k in range(used):
            end = count
            if k + 1 < used:
                limit, low = (means[k] + means[k + 1]) / 2, start
                while low < end:
                    middle = (low + end) // 2
                    if np.float64(ordered[middle]) <= limit:
                        low = middle + 1
                    else:
                        end = middle
            if end > start:
                mean = _mean(ordered, start, end)
                moved |= mean != means[k]
                means[k], start = mean, end
        if not moved:
            break


@helper
def cluster(count: int, size: int, room: Room, means: Doubles, members: Values) -> int:
    """The clusters of the sorted numbers in the room: the mean of each, and one of its numbers; returns how many."""
    ordered = room.ordered
    found = _distinct(ordered, count, size, means)
    if found <= size:
        for c in range(found):
            members[c] = means[c]
        return found
    starts = np.empty(size + 1, np.int64)
    starts[size] = count
    exact = count <= _EXACT
    bins = count
    if exact:
        _sum(count, room)
    else:
        bins = _sum_bins(count, room)
    if count <= _FEW * size:
        _split_few(count, size, room, starts)
    else:
        weights, middle = (room.inverses, room.middle) if exact else (room.counts, -1)
        _split_many(bins, size, weights, middle, room, starts)
    if not exact:
        for c in range(size):
            starts[c] = int(room.counts[starts[c]])
    found = 0
    for c in range(size):
        if starts[c + 1] > starts[c]:
            means[found] = _mean(ordered, starts[c], starts[c + 1])
            members[found] = ordered[(starts[c] + starts[c + 1]) // 2]
            found += 1
    if not exact:
        _improve(ordered, count, means, found)
    return found
