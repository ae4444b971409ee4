"""Row indexes against a plain twin, on real ids, and on bytes that lie."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cnrfmt.encodings import row_ids
from cnrfmt.errors import DamagedError
from cnrfmt.format import limits

LOW, HIGH = -(2**63), 2**63 - 1
CODES = ("bitmap", "runs", "packed", "raw")


class Plain:
    """The codes of section 7, written down with Python's integers as the specification says them."""

    @staticmethod
    def raw(ids: list[int]) -> bytes:
        return b"".join(struct.pack("<q", i) for i in ids)

    @staticmethod
    def packed(ids: list[int]) -> bytes:
        skip, payload = b"", b""
        for start in range(0, len(ids), 128):
            group = ids[start : start + 128]
            slots = [0] + [b - a - 1 for a, b in itertools.pairwise(group)]
            width = max(slots).bit_length()
            bits = sum(slot << (k * width) for k, slot in enumerate(slots))
            skip += struct.pack("<qIBxxx", group[0], len(payload) // 8, width)
            payload += bits.to_bytes(8 * -(-len(group) * width // 64), "little")
        return skip + payload

    @staticmethod
    def runs(ids: list[int]) -> bytes:
        runs: list[list[int]] = []
        for i in ids:
            if runs and sum(runs[-1]) == i:
                runs[-1][1] += 1
            else:
                runs.append([i, 1])
        return b"".join(struct.pack("<qQ", *run) for run in runs)

    @staticmethod
    def bitmap(ids: list[int]) -> bytes:
        blocks = -(-(ids[-1] - ids[0] + 1) // 512)
        bits = sum(1 << (i - ids[0]) for i in ids)
        ranks = [(bits & ((1 << (512 * b)) - 1)).bit_count() for b in range(blocks)]
        return bits.to_bytes(64 * blocks, "little") + struct.pack(f"<{blocks}Q", *ranks)

    @classmethod
    def all(cls, ids: list[int]) -> dict[str, bytes]:
        """Every code of these ids; no bitmap of an astronomic span."""
        codes = [c for c in CODES if c != "bitmap" or ids[-1] - ids[0] < 1 << 20]
        return {code: getattr(cls, code)(ids) for code in codes}


def _decode(code: str, data: bytes, ids: list[int], **changes: Any) -> npt.NDArray[np.int64]:
    """Decodes from read-only bytes, with the count and bounds of `ids` unless told otherwise."""
    says = {"count": len(ids), "first": ids[0], "last": ids[-1], "max_ids": 1 << 20} | changes
    return row_ids.decode(code, np.frombuffer(data, np.uint8), place="here", **says)


def _check(ids: list[int]) -> None:
    """The smallest code is taken, its bytes are the twin's, and every code decodes."""
    twins = Plain.all(ids)
    given_ids = np.array(ids, np.int64)
    code, data = row_ids.encode(given_ids)
    assert code == min(twins, key=lambda c: len(twins[c]))
    assert data.dtype == np.uint8
    assert data.tobytes() == twins[code]
    assert row_ids.plan(given_ids) == (code, len(data))
    for name, twin in twins.items():
        found = _decode(name, twin, ids)
        assert found.dtype == np.int64
        assert found.flags.writeable
        assert found.tolist() == ids, name


def _from_gaps(first: int, gaps: list[int]) -> list[int]:
    ids = [first]
    for gap in gaps:
        if ids[-1] + gap > HIGH:
            break
        ids.append(ids[-1] + gap)
    return ids


# Ids as they come: mostly close together, sometimes in long runs, sometimes far apart.
_GAPS = st.lists(
    st.one_of(
        st.just([1]),
        st.integers(1, 200).map(lambda n: [1] * n),
        st.integers(1, 6).map(lambda n: [n]),
        st.integers(1, 2**20).map(lambda n: [n]),
        st.integers(1, 2**64).map(lambda n: [n]),
    ),
    max_size=60,
).map(lambda parts: [gap for part in parts for gap in part])
IDS = st.builds(_from_gaps, st.one_of(st.just(0), st.integers(LOW, HIGH)), _GAPS)


@given(IDS)
@example([0])
@example([LOW, HIGH])
@example([LOW, LOW + 1, HIGH - 1, HIGH])
@example(list(range(5, 133)))
@example(list(range(5, 134)))
@example(list(range(HIGH - 600, HIGH + 1)))
@example(list(range(LOW, LOW + 600, 2)))
@example(list(range(0, 512, 511)))
@example(list(range(0, 513, 512)))
@example([0, *range(2**63 - 200, 2**63)])
def test_any_ids(ids: list[int]) -> None:
    _check(ids)


def test_real_ids(orders: dict[str, npt.NDArray[np.int64]]) -> None:
    codes = set()
    for column in ("product_id", "order_id", "user_id"):
        for count in (100, 3000, 40_000):
            ids = np.unique(orders[column][:count])
            _check(ids.tolist())
            codes.add(row_ids.plan(ids).code)
    # Nothing of this would be known if one code took them all.
    assert len(codes) >= 2


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [0.001, 0.05, 0.5, 0.99, 1.0])
def test_skewed_ids_of_many_groups(seed: int, share: float) -> None:
    # Popular rows have small ids, as after sorting a vocabulary by frequency.
    rng = np.random.default_rng(seed)
    keep = rng.random(30_000) < share ** (1 + np.arange(30_000) / 30_000)
    _check((np.flatnonzero(keep) if keep.any() else np.array([7])).tolist())


def test_sparse_ids_beyond_32_bits_take_the_smallest_width_of_each_group() -> None:
    rng = np.random.default_rng(1)
    ids = np.unique(rng.integers(-(2**62), 2**62, 3000))
    code, data = row_ids.encode(ids)
    assert code == "packed"
    widths = data[12 : 16 * -(-len(ids) // 128) : 16]
    assert len(set(widths.tolist())) > 1
    _check(ids.tolist())


def test_payloads_beyond_the_skip_tables_offsets_are_not_packed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = np.arange(0, 300_000, 100)
    code, nbytes = row_ids.plan(ids)
    assert code == "packed"
    words = (nbytes - 16 * -(-len(ids) // 128)) // 8
    monkeypatch.setattr(row_ids, "_MOST_WORDS", words)
    assert row_ids.plan(ids).code == "packed"
    monkeypatch.setattr(row_ids, "_MOST_WORDS", words - 1)
    assert row_ids.plan(ids) == ("raw", 8 * len(ids))


def test_a_bitmap_of_whole_blocks_with_a_bit_too_few() -> None:
    ids = list(range(512))
    data = bytearray(Plain.bitmap(ids))
    data[9] = 0
    with pytest.raises(DamagedError, match="504, or others at the ends") as caught:
        _decode("bitmap", bytes(data), ids)
    assert caught.value.rule == "index-bounds"


def test_ids_are_private_memory() -> None:
    ids = np.array([3, 10, 2**40])
    code, data = row_ids.encode(ids)
    assert code == "raw"
    found = row_ids.decode(code, data, 3, 3, 2**40, "here", max_ids=3)
    found[:] = 0
    assert ids.tolist() == [3, 10, 2**40]


@given(IDS, st.data())
def test_a_changed_byte_is_damage_or_says_other_ids(ids: list[int], data: st.DataObject) -> None:
    """Each list of ids has one form per code, so what decodes must be that form."""
    code, twin = data.draw(st.sampled_from(sorted(Plain.all(ids).items())))
    changed = bytearray(twin)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(twin) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    _is_sound_or_refused(code, bytes(changed), ids)


@given(st.sampled_from(CODES), st.binary(min_size=1, max_size=600), st.data())
def test_arbitrary_bytes(code: str, noise: bytes, data: st.DataObject) -> None:
    # Numbers that agree with the length now and then, so that the checks behind it are reached.
    count = data.draw(st.one_of(st.integers(1, 600), st.just(max(1, len(noise) // 8))))
    first = data.draw(st.one_of(st.just(0), st.integers(LOW, HIGH - count)))
    last = data.draw(st.integers(first + count - 1, min(HIGH, first + count + 5000)))
    found = _ids_or_rule(code, noise, [first, last], count=count)
    if isinstance(found, list):
        assert (len(found), found[0], found[-1]) == (count, first, last)
        assert Plain.all(found)[code] == noise


def _is_sound_or_refused(code: str, data: bytes, ids: list[int]) -> None:
    found = _ids_or_rule(code, data, ids)
    if isinstance(found, list):
        assert (len(found), found[0], found[-1]) == (len(ids), ids[0], ids[-1])
        assert getattr(Plain, code)(found) == data
    else:
        assert getattr(Plain, code)(ids) != data


def _ids_or_rule(code: str, data: bytes, ids: list[int], **changes: Any) -> list[int] | str:
    """The ids that a decoder finds, or the rule of section 7 that it says is broken."""
    try:
        return _decode(code, data, ids, **changes).tolist()
    except DamagedError as error:
        if error.rule not in ("index-code", "index-order", "index-bounds"):
            raise
        return error.rule


def _put(data: bytes, at: int, form: str, *values: int) -> bytes:
    size = struct.calcsize(form)
    return data[:at] + struct.pack(form, *values) + data[at + size :]


_SOME = [3, 4, 5, 9, 11, *range(700, 1300)]
_BITMAP, _RUNS, _PACKED, _RAW = (getattr(Plain, code)(_SOME) for code in CODES)
_SKIP = 16 * 5


@pytest.mark.parametrize(
    ("code", "data", "rule"),
    [
        ("raw", _RAW[:-8], "index-code"),
        ("raw", _RAW + bytes(8), "index-code"),
        ("raw", _put(_RAW, 8, "<q", 3), "index-order"),
        ("raw", _put(_RAW, 8, "<q", LOW), "index-order"),
        ("raw", _put(_RAW, 0, "<q", 2), "index-bounds"),
        ("raw", _put(_RAW, len(_RAW) - 8, "<q", 1300), "index-bounds"),
        ("runs", _RUNS[:-1], "index-code"),
        ("runs", _RUNS[:-16], "index-bounds"),
        ("runs", _put(_RUNS, 8, "<Q", 0), "index-code"),
        ("runs", _put(_RUNS, 8, "<Q", 2), "index-bounds"),
        ("runs", _put(_RUNS, 16, "<q", 6), "index-code"),
        ("runs", _put(_RUNS, 16, "<q", 5), "index-order"),
        ("runs", _put(_RUNS, 16, "<q", LOW), "index-order"),
        ("runs", _put(_RUNS, 8, "<Q", 2**64 - 1), "index-bounds"),
        ("runs", struct.pack("<qQqQ", 3, 2, 5, 603), "index-code"),
        ("runs", struct.pack("<qQqQ", 3, 3, 4, 602), "index-order"),
        ("runs", struct.pack("<qQ", HIGH - 3, 605), "index-order"),
        ("runs", b"", "index-code"),
        ("bitmap", _BITMAP[:-8], "index-code"),
        ("bitmap", _put(_BITMAP, 64 * 3, "<Q", 7), "index-code"),
        ("bitmap", _put(_BITMAP, 64 * 3 + 8, "<Q", 0), "index-code"),
        ("bitmap", bytes([_BITMAP[0] ^ 2]) + _BITMAP[1:], "index-code"),
        ("bitmap", _put(_BITMAP, 8 * ((1299 - 3) // 64), "<Q", 0), "index-bounds"),
        ("bitmap", _put(_BITMAP, 64 * 3 - 1, "<B", 128), "index-code"),
        ("packed", _PACKED[:-8], "index-code"),
        ("packed", _PACKED + bytes(8), "index-code"),
        ("packed", _put(_PACKED, 0, "<q", 2), "index-bounds"),
        ("packed", _put(_PACKED, 8, "<I", 1), "index-code"),
        ("packed", _put(_PACKED, 12, "<B", 65), "index-code"),
        ("packed", _put(_PACKED, 12, "<B", 0), "index-code"),
        ("packed", _put(_PACKED, 13, "<B", 1), "index-code"),
        ("packed", _put(_PACKED, _SKIP, "<Q", 1), "index-code"),
        ("packed", _put(_PACKED, 16, "<q", 3), "index-order"),
        ("packed", _put(_PACKED, 64, "<q", HIGH), "index-order"),
    ],
)
def test_each_rule(code: str, data: bytes, rule: str) -> None:
    with pytest.raises(DamagedError) as caught:
        _decode(code, data, _SOME)
    assert caught.value.rule == rule


def test_a_width_that_is_wider_than_need_be_is_refused() -> None:
    # Two ids with a gap of 3: width 2, as bits 00 11; the same in width 3 says the same ids.
    data = struct.pack("<qIBxxxQ", 10, 0, 3, 3 << 3)
    with pytest.raises(DamagedError) as caught:
        _decode("packed", data, [10, 14])
    assert caught.value.rule == "index-code"
    assert _decode("packed", struct.pack("<qIBxxxQ", 10, 0, 2, 3 << 2), [10, 14]).tolist() == [10, 14]


def test_bits_behind_the_last_slot_are_refused() -> None:
    data = struct.pack("<qIBxxxQ", 10, 0, 2, 3 << 2 | 1 << 63)
    with pytest.raises(DamagedError) as caught:
        _decode("packed", data, [10, 14])
    assert caught.value.rule == "index-code"


@pytest.mark.parametrize(
    ("code", "data", "count", "first", "last"),
    [
        ("runs", struct.pack("<qQ", 0, 2**40), 2**40, 0, 2**40 - 1),
        ("runs", struct.pack("<qQ", LOW, 2**64 - 1), 2**64 - 1, LOW, HIGH - 1),
        ("runs", struct.pack("<qQ", 0, 2**40), 2**48 + 1, 0, 2**48),
        ("packed", struct.pack("<qIBxxx", 0, 0, 0), 2**40, 0, 2**40 - 1),
        ("bitmap", b"\xff" * 72, 2**40, 0, 2**40 - 1),
    ],
)
def test_a_few_bytes_can_not_ask_for_much_memory(code: str, data: bytes, count: int, first: int, last: int) -> None:
    with pytest.raises(DamagedError) as caught:
        row_ids.decode(code, np.frombuffer(data, np.uint8), count, first, last, "here", max_ids=1 << 20)
    # Only runs can name more ids than their bytes could hold; the others are told of the lie.
    assert caught.value.rule == ("limit" if code == "runs" else "index-code")


def test_runs_that_dont_add_up_take_no_memory() -> None:
    # Sums that would wrap around 64 bits to the count must not pass for it.
    data = struct.pack("<qQqQ", 0, 2**63, 4, 2**63 + 2)
    with pytest.raises(DamagedError):
        _decode("runs", data, [0, 1], last=100)
    data = struct.pack("<qQ", 0, 2**40)
    with pytest.raises(DamagedError) as caught:
        _decode("runs", data, [0, 1], count=2**40 - 1, last=2**40 - 1, max_ids=limits.MAX_ROWS)
    assert caught.value.rule == "index-bounds"


def test_unaligned_bytes() -> None:
    for code, twin in Plain.all(_SOME).items():
        data = np.frombuffer(b"\0" + twin, np.uint8)[1:]
        found = row_ids.decode(code, data, len(_SOME), 3, 1299, "here", max_ids=1000)
        assert found.tolist() == _SOME
