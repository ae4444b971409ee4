"""Row ids as far as a damaged row index still gives them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Ids, Words
from cnrfmt.errors import DamagedError, StorageError
from cnrfmt.format.toc import RowSet
from cnrfmt.salvaging.runs import NONE, Runs, inside, run
from cnrfmt.salvaging.segments import SalvagedSegment, is_loss

_GROUP, _ENTRY = 128, 16
_BLOCK_WORDS = 8

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class KnownRows:
    """What is known of a row set.

    `ids` are those known, ascending, and `positions` where they stand; both None for a range. The other ids of
    the set, `unknown` of them, lie in `doubts`.
    """

    row_set: RowSet
    ids: Ids | None = None
    positions: Ids | None = None
    doubts: Runs = field(default_factory=lambda: NONE)
    unknown: int = 0


def known_rows(segment: SalvagedSegment, row_set: RowSet) -> KnownRows:
    """The row ids of a row set that can be proven."""
    if row_set.section is None:
        return KnownRows(row_set)
    first, last, count = row_set.first, row_set.last, row_set.count
    lost = segment.lost_bytes(row_set.section)
    if not len(lost):
        try:
            return KnownRows(row_set, segment.indexes.ids(row_set))
        except (DamagedError, StorageError) as error:
            if not is_loss(error):
                raise
            # Sound bytes that break the rules of their code say nothing.
            return KnownRows(row_set, *_nothing(), run(first, last), count)
    if last - first + 1 == count:
        # A set without gaps: its bounds say it all.
        return KnownRows(row_set)
    ids, positions = _decode(segment, row_set, lost)
    # The table of contents gives the first and the last id.
    ends = [(first, 0), (last, count - 1)] if count > 1 else [(first, 0)]
    ids, where = np.unique(np.r_[ids, np.array([e[0] for e in ends])], return_index=True)
    positions = np.r_[positions, np.array([e[1] for e in ends])][where]
    if not _is_sound(ids, positions, first, last, count):
        return KnownRows(row_set, *_nothing(), run(first, last), count)
    gaps = np.flatnonzero(positions[1:] - positions[:-1] != 1)
    doubts = np.stack([ids[gaps] + 1, ids[gaps + 1] - 1], axis=1)
    missing = positions[gaps + 1] - positions[gaps] - 1
    full = doubts[:, 1] - doubts[:, 0] + 1 == missing
    for (a, b), p in zip(doubts[full].tolist(), (positions[gaps] + 1)[full].tolist(), strict=True):
        # As many ids as there is room for.
        ids, positions = np.r_[ids, np.arange(a, b + 1)], np.r_[positions, np.arange(p, p + b - a + 1)]
    order = np.argsort(ids, kind="stable")
    return KnownRows(row_set, ids[order], positions[order], doubts[~full], int(missing[~full].sum()))


def _nothing() -> tuple[Ids, Ids]:
    return np.empty(0, np.int64), np.empty(0, np.int64)


def _is_sound(ids: Ids, positions: Ids, first: int, last: int, count: int) -> bool:
    steps = (ids[1:] - ids[:-1]).view(np.uint64)
    return bool(
        ids[0] == first
        and ids[-1] == last
        and positions[0] == 0
        and positions[-1] == count - 1
        and (positions[1:] > positions[:-1]).all()
        and (steps >= (positions[1:] - positions[:-1]).view(np.uint64)).all()
    )


def _decode(segment: SalvagedSegment, row_set: RowSet, lost: Runs) -> tuple[Ids, Ids]:
    """The ids that sound bytes of a section give, and their positions; neither is complete nor in order yet."""
    assert row_set.section is not None
    offset, length = segment.toc.sections[row_set.section]
    data = np.zeros(length, np.uint8)
    position = 0
    for a, b in [*lost.tolist(), (length, length)]:
        # What lies between lost pieces is in sound ones, and read verified.
        if position < a:
            found, start = segment.fetch_range(offset + position, a - position)
            data[position:a] = found[offset + position - start : offset + a - start]
        position = b + 1
    words = data[: length // 8 * 8].view("<u8").astype(np.uint64, copy=False)
    sound = ~_touched(len(words), lost // 8)
    decoder = {"raw": _raw, "packed": _packed, "runs": _runs, "bitmap": _bitmap}[row_set.code]
    return decoder(words, sound, row_set)


def _touched(size: int, runs: Runs) -> Flags:
    return inside(np.arange(size, dtype=np.int64), runs)


def _stretches(sound: Flags) -> list[tuple[int, int]]:
    """From where to where (exclusive) all is sound."""
    edges = np.flatnonzero(np.diff(np.r_[False, sound, False].astype(np.int8)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


def _pairs(sound: Flags) -> Flags:
    """Of which entries of two words both are sound."""
    return sound[0::2] & sound[1::2]


def _raw(words: Words, sound: Flags, row_set: RowSet) -> tuple[Ids, Ids]:
    positions = np.flatnonzero(sound).astype(np.int64)
    return words.view(np.int64)[positions], positions


def _packed(words: Words, sound: Flags, row_set: RowSet) -> tuple[Ids, Ids]:
    from cnrfmt.kernels import row_index as kernel

    groups = -(-row_set.count // _GROUP)
    skip, payload = words[: 2 * groups], words[2 * groups :]
    sizes = np.full(groups, _GROUP)
    sizes[-1] = row_set.count - _GROUP * (groups - 1)
    entries = skip[1::2]
    offsets = (entries & np.uint64(0xFFFFFFFF)).astype(np.int64)
    lengths = -(-sizes * np.minimum(entries >> np.uint64(32), 64).astype(np.int64) // 64)
    ok = _pairs(sound[: 2 * groups]) & (offsets + lengths <= len(payload))
    # How many words of the payload are unsound before each.
    unsound = np.r_[0, np.cumsum(~sound[2 * groups :])]
    at = np.where(ok, offsets, 0)
    ok &= unsound[np.where(ok, at + lengths, 0)] == unsound[at]
    found, where = [], []
    for a, b in _stretches(ok):
        part = skip[2 * a : 2 * b].copy()
        part[1::2] -= np.uint64(offsets[a])
        count = int(sizes[a:b].sum())
        out = np.empty(count, np.int64)
        if int(kernel.decode_packed(part, payload[offsets[a] : offsets[b - 1] + lengths[b - 1]], count, out)) < 0:
            found.append(out)
            where.append(np.arange(a * _GROUP, a * _GROUP + count, dtype=np.int64))
    return (np.concatenate(found), np.concatenate(where)) if found else _nothing()


def _ends(pieces: list[tuple[Ids, bool, bool]], count: int) -> tuple[Ids, Ids]:
    """Ids of a stretch at the start and of one at the end: from the others, positions can't be told."""
    found, where = [], []
    for ids, at_start, at_end in pieces:
        if at_start or at_end:
            found.append(ids)
            begin = 0 if at_start else count - len(ids)
            where.append(np.arange(begin, begin + len(ids), dtype=np.int64))
    return (np.concatenate(found), np.concatenate(where)) if found else _nothing()


def _runs(words: Words, sound: Flags, row_set: RowSet) -> tuple[Ids, Ids]:
    from cnrfmt.kernels import row_index as kernel

    entries = len(words) // 2
    pieces = []
    for a, b in _stretches(_pairs(sound[: 2 * entries])):
        part = words[2 * a : 2 * b]
        listed = sum(part[1::2].tolist())
        if listed <= row_set.count:
            ids = np.empty(listed, np.int64)
            if int(kernel.decode_runs(part, ids)) < 0:
                pieces.append((ids, a == 0, b == entries))
    return _ends(pieces, row_set.count)


def _bitmap(words: Words, sound: Flags, row_set: RowSet) -> tuple[Ids, Ids]:
    blocks = len(words) // (_BLOCK_WORDS + 1)
    bits = words[: blocks * _BLOCK_WORDS]
    pieces = []
    for a, b in _stretches(sound[: len(bits)]):
        part = np.ascontiguousarray(bits[a:b]).astype("<u8").view(np.uint8)
        ones = np.flatnonzero(np.unpackbits(part, bitorder="little")).astype(np.int64)
        pieces.append((ones + (row_set.first + 64 * a), a == 0, b == len(bits)))
    return _ends(pieces, row_set.count)
