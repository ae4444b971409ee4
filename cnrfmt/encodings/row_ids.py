"""Row indexes: sorted, distinct row ids under the smallest of four codes (specification, section 7)."""

from __future__ import annotations

from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes, Ids, Words
from cnrfmt.errors import DamagedError

_GROUP = 128
"""Ids of a group of the packed code."""
_ENTRY = 16
"""Bytes of an entry of the skip table, and of a run."""
_BLOCK_BITS, _BLOCK_BYTES = 512, 72
"""Bits of a bitmap that one rank counts, and the bytes that they take with their rank."""
_MOST_WORDS = (1 << 32) - 1
"""The skip table of the packed code counts words in 32 bits."""
_GREATEST = (1 << 63) - 1


class Runs(NamedTuple):
    """Row ids as runs, ascending and apart: the first and the last id of each. A few bytes for ever so many ids."""

    firsts: Ids
    lasts: Ids

    def holds(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Which of these ids are among them."""
        at = np.maximum(np.searchsorted(self.firsts, ids, "right") - 1, 0)
        found: npt.NDArray[np.bool_] = (self.firsts[at] <= ids) & (ids <= self.lasts[at])
        return found


class Plan(NamedTuple):
    """The code to store ids under, and the bytes that it takes."""

    code: str
    nbytes: int


def plan(ids: Ids) -> Plan:
    """The smallest code for these ids; of equal ones, the first of bitmap, runs, packed, raw.

    Parameters
    ----------
    ids
        At least one int64 row id, strictly ascending.
    """
    from cnrfmt.kernels import row_index as kernel

    n_runs, words = (int(n) for n in kernel.measure(ids))
    span = int(ids[-1]) - int(ids[0]) + 1
    plans = [
        Plan("bitmap", _BLOCK_BYTES * -(-span // _BLOCK_BITS)),
        Plan("runs", _ENTRY * n_runs),
        Plan("raw", 8 * len(ids)),
    ]
    if words <= _MOST_WORDS:
        plans.insert(2, Plan("packed", _ENTRY * _groups(len(ids)) + 8 * words))
    return min(plans, key=lambda p: p.nbytes)


def encode(ids: Ids) -> tuple[str, Bytes]:
    """The smallest code for these ids (int64, at least one, strictly ascending), and the section's bytes."""
    from cnrfmt.kernels import row_index as kernel

    code, nbytes = plan(ids)
    if code == "raw":
        return code, ids.astype("<i8", copy=False).view(np.uint8)
    words = np.zeros(nbytes // 8, np.uint64)
    if code == "packed":
        skip = 2 * _groups(len(ids))
        kernel.encode_packed(ids, words[:skip], words[skip:])
    elif code == "runs":
        kernel.encode_runs(ids, words)
    else:
        blocks = nbytes // _BLOCK_BYTES
        kernel.encode_bitmap(ids, words[:-blocks], words[-blocks:])
    return code, words.astype("<u8", copy=False).view(np.uint8)


def decode(code: str, data: Bytes, count: int, first: int, last: int, place: str, *, max_ids: int) -> Ids:
    """The row ids of a row set, in private memory, every rule of section 7 checked.

    Parameters
    ----------
    code
        ``"raw"``, ``"packed"``, ``"runs"`` or ``"bitmap"``.
    data
        The section: 1-D uint8 of any alignment, possibly read-only.
    count, first, last
        What the row set says of its ids; ``1 <= count <= last - first + 1``.
    place
        Where the section is, for errors.
    max_ids
        The most ids that the caller is ready to hold, 8 bytes each: a few bytes can name very many.

    Raises
    ------
    DamagedError
        Rule ``index-code``, ``index-order``, ``index-bounds``, or ``limit`` beyond `max_ids`.
    """
    # The other codes take at least a bit of the section for each id, or a group's entry for 128 of them.
    if code == "runs" and count > max_ids:
        raise DamagedError("limit", place, expected=f"at most {max_ids} row ids", found=count)
    ids = _DECODERS[code](_private_words(data), len(data), count, first, last, place)
    _check_ends(int(ids[0]), int(ids[-1]), first, last, place)
    return ids


def _private_words(data: Bytes) -> Words:
    """A private copy: whoever changes the file meanwhile can't change what was checked."""
    words: Words = np.array(data[: len(data) // 8 * 8]).view("<u8").astype(np.uint64, copy=False)
    return words


def _check_ends(found_first: int, found_last: int, first: int, last: int, place: str) -> None:
    for name, want, found in (("first", first, found_first), ("last", last, found_last)):
        if want != found:
            _damaged("index-bounds", place, f"{want} as the {name} row id", found)


def _damaged(rule: str, place: str, expected: str, found: object) -> NoReturn:
    raise DamagedError(rule, place, expected=expected, found=found)


def _groups(count: int) -> int:
    return -(-count // _GROUP)


def _check_length(code: str, place: str, want: int, found: int) -> None:
    if want != found:
        _damaged("index-code", place, f"{want} bytes of {code}", f"{found} bytes")


def _decode_raw(words: Words, nbytes: int, count: int, first: int, last: int, place: str) -> Ids:
    from cnrfmt.kernels import row_index as kernel

    _check_length("raw", place, 8 * count, nbytes)
    ids = words.view(np.int64)
    # Ids are checked for order alone: the first and the last, compared later, bound the others.
    if (bad := int(kernel.check_ids(ids, -_GREATEST - 1, _GREATEST))) >= 0:
        _damaged("index-order", place, f"more than {ids[bad - 1]} at position {bad}", ids[bad])
    return ids


def _decode_packed(words: Words, nbytes: int, count: int, first: int, last: int, place: str) -> Ids:
    from cnrfmt.kernels import row_index as kernel

    skip = 2 * _groups(count)
    if nbytes % 8 or len(words) < skip:
        _damaged("index-code", place, f"words, {skip} or more of them", f"{nbytes} bytes")
    ids = np.empty(count, np.int64)
    bad = int(kernel.decode_packed(words[:skip], words[skip:], count, ids))
    if bad >= 0:
        _judge_group(words, skip, ids, bad, f"{place}, group {bad}")
    return ids


def _judge_group(words: Words, skip: int, ids: Ids, group: int, place: str) -> NoReturn:
    """Says what is wrong with a group: that its ids aren't in order, or anything else."""
    start = group * _GROUP
    size = min(_GROUP, len(ids) - start)
    if size > 0:
        entry, first = int(words[2 * group + 1]), int(words.view(np.int64)[2 * group])
        offset, width = skip + (entry & 0xFFFFFFFF), entry >> 32
        if start and first <= ids[start - 1]:
            _damaged("index-order", place, f"more than {ids[start - 1]}", first)
        stop = offset + -(-size * min(width, 64) // 64)
        if width <= 64 and stop <= len(words):
            payload = int.from_bytes(words[offset:stop].astype("<u8").tobytes(), "little")
            slots = [payload >> (k * width) & ((1 << width) - 1) for k in range(size)]
            greatest = first + sum(slots[1:]) + size - 1
            if greatest > _GREATEST:
                _damaged("index-order", place, "row ids within int64", greatest)
    _damaged(
        "index-code",
        place,
        "payloads without gaps, smallest widths, zeros in slot 0 and behind the last slot",
        "others",
    )


def decode_as_runs(data: Bytes, count: int, first: int, last: int, place: str) -> Runs:
    """The row ids of a row set with the code ``"runs"``, every rule checked, without writing them out.

    Parameters and errors are those of `decode`, but for the limit: this takes no more memory than the section.
    """
    runs = _checked_runs(_private_words(data), len(data), count, place)
    _check_ends(int(runs.firsts[0]), int(runs.lasts[-1]), first, last, place)
    return runs


def _checked_runs(words: Words, nbytes: int, count: int, place: str) -> Runs:
    if nbytes % _ENTRY or not nbytes:
        _damaged("index-code", place, f"entries of {_ENTRY} bytes, at least one", f"{nbytes} bytes")
    firsts, lengths = words.view(np.int64)[::2].copy(), words[1::2]
    if not lengths.all():
        _damaged("index-code", place, "runs of at least 1 row id", "a run of 0")
    # The two halves apart, since a sum in 64 bits could wrap around to the count.
    half = np.uint64(32)
    listed = (int((lengths >> half).sum()) << 32) + int((lengths & np.uint64(0xFFFFFFFF)).sum())
    if listed != count:
        _damaged("index-bounds", place, f"{count} row ids", listed)
    more = lengths - np.uint64(1)
    lasts = (firsts.view(np.uint64) + more).view(np.int64)
    bad = more > np.uint64(_GREATEST) - firsts.view(np.uint64)
    # A run that ends with the greatest id has no successor that it could touch.
    bad[1:] |= (firsts[1:] <= lasts[:-1]) | (firsts[1:] - 1 == lasts[:-1])
    if bad.any():
        k = int(np.argmax(bad))
        if k and int(firsts[k]) - 1 == int(lasts[k - 1]):
            _damaged("index-code", place, "runs that don't touch", f"run {k} touches the last")
        _damaged(
            "index-order",
            f"{place}, run {k}",
            "row ids within int64, above those before",
            f"{firsts[k]} to {int(firsts[k]) + int(more[k])}",
        )
    return Runs(firsts, lasts)


def _decode_runs(words: Words, nbytes: int, count: int, first: int, last: int, place: str) -> Ids:
    from cnrfmt.kernels import row_index as kernel

    _checked_runs(words, nbytes, count, place)
    ids = np.empty(count, np.int64)
    kernel.decode_runs(words, ids)
    return ids


def _decode_bitmap(words: Words, nbytes: int, count: int, first: int, last: int, place: str) -> Ids:
    from cnrfmt.kernels import row_index as kernel

    span = last - first + 1
    blocks = -(-span // _BLOCK_BITS)
    _check_length("bitmap", place, _BLOCK_BYTES * blocks, nbytes)
    bits, ranks = words[:-blocks], words[-blocks:]
    ids = np.empty(count, np.int64)
    if int(kernel.decode_bitmap(bits, ranks, first, last, ids)) >= 0:
        ones = np.bitwise_count(bits).reshape(blocks, -1).sum(axis=1, dtype=np.uint64)
        before = np.cumsum(ones) - ones
        if not np.array_equal(before, ranks):
            block = int(np.flatnonzero(before != ranks)[0])
            _damaged("index-code", place, f"rank {before[block]} of block {block}", ranks[block])
        behind = bits[span // 64 :].copy()
        if behind.size:
            behind[0] >>= np.uint64(span % 64)
        if behind.any():
            _damaged("index-code", place, f"zero bits from bit {span} on", "one bits")
        _damaged(
            "index-bounds",
            place,
            f"{count} row ids, from {first} to {last}",
            f"{int(ones.sum())}, or others at the ends",
        )
    return ids


_DECODERS = {
    "raw": _decode_raw,
    "packed": _decode_packed,
    "runs": _decode_runs,
    "bitmap": _decode_bitmap,
}
