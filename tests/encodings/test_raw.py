"""The raw encoding: what was given, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnrfmt import dtypes
from cnrfmt.encodings import Recipe, coder, encoder
from cnrfmt.format.encoding import RawLayout


@pytest.mark.parametrize("name", dtypes.COLUMN_TYPES)
@given(data=st.data())
def test_any_bits_of_any_type_come_back(name: str, data: st.DataObject) -> None:
    layout, encoding = RawLayout(name), coder(RawLayout(name))
    count = data.draw(st.integers(0, 6), "rows")
    width = data.draw(st.integers(1, 9), "width")
    row_bytes = layout.row_bytes(width)
    assert row_bytes == width * dtypes.dtype_of(name).itemsize
    size = count * row_bytes
    given_bytes = np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), np.uint8)
    rows = given_bytes.view(encoding.dtype).reshape(count, width)

    done = encoder(Recipe(layout)).encode(rows)
    encoded = done.data
    assert encoded.tobytes() == given_bytes.tobytes()
    assert done.bad.size == 0
    assert done.bad.dtype == np.int64
    assert (done.error_sum, done.worst_error, done.codebooks) == (0, 0, None)
    assert encoder(Recipe(layout)).step == 1

    offset = data.draw(st.integers(0, 3), "bytes before")
    stored = np.concatenate([np.full(offset, 255, np.uint8), encoded])
    stored.flags.writeable = False
    out = np.empty((count, width), encoding.dtype)
    encoding.decode_range(stored, offset, out)
    assert out.tobytes() == given_bytes.tobytes()

    wanted = data.draw(st.lists(st.integers(0, count - 1), max_size=8)) if count else []
    targets = np.array(data.draw(st.permutations(range(len(wanted)))), np.int64)
    offsets = offset + np.array(wanted, np.int64) * row_bytes
    some = np.zeros((len(wanted), width), encoding.dtype)
    encoding.decode_rows(stored, offsets, some, targets)
    assert some[targets].tobytes() == rows[wanted].tobytes()
    assert encoding.find_padding(stored, offset, count, width) == -1
    assert encoding.find_parameter(stored, offset, count, width) == -1


def test_contiguous_rows_are_not_copied() -> None:
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    rows.flags.writeable = False
    encoding = encoder(Recipe(RawLayout("float32")))
    assert np.shares_memory(encoding.encode(rows).data, rows)
    strided = encoding.encode(rows[:, ::2]).data
    assert strided.tobytes() == rows[:, ::2].tobytes()


def test_decoding_touches_no_other_row() -> None:
    encoding = coder(RawLayout("int16"))
    rows = np.arange(20, dtype=np.int16).reshape(4, 5)
    stored = encoder(Recipe(RawLayout("int16"))).encode(rows).data
    out = np.full((6, 5), -1, np.int16)
    encoding.decode_rows(stored, np.array([30, 0]), out, np.array([4, 1]))
    assert np.array_equal(out[[4, 1]], rows[[3, 0]])
    assert (out[[0, 2, 3, 5]] == -1).all()


def test_a_target_that_is_no_plain_memory_is_refused() -> None:
    # Filling a copy of it would lose the rows without a word.
    encoding = coder(RawLayout("float32"))
    out = np.empty((4, 6), np.float32)[:, ::2]
    with pytest.raises(ValueError, match="C-contiguous"):
        encoding.decode_range(np.zeros(48, np.uint8), 0, out)


def test_rows_are_of_the_layouts_type() -> None:
    assert coder(RawLayout("int8")).dtype == np.int8
