"""Every method's way from rows to bytes: what can be held, how near the codes are, the errors that are told."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cnrfmt.encodings import Encoded, Recipe, encoder
from cnrfmt.format.encoding import CastLayout, CodebookLayout, LogLayout, RowwiseLayout
from cnrfmt.format.scheme import Scheme
from cnrfmt.kernels._jit import INTERPRETED
from tests.encodings.support import (
    F32,
    LOGS,
    TYPES,
    Array,
    codes_of,
    decode,
    decoded,
    encoder_of,
    name_of,
    numbers_of,
    parameters_of,
    peculiar,
    recipes,
    relative_errors,
    usual,
)

WIDTHS = (1, 5, 17) if INTERPRETED else (1, 2, 5, 16, 33, 300)
RECIPES = recipes()[:: 3 if INTERPRETED else 1]
COUNT = 9


def check(recipe: Recipe, rows: Array, done: Encoded) -> None:
    """What holds for any rows under any encoding; rows that can't be held are only told of."""
    layout = recipe.layout
    count, width = rows.shape
    assert len(done.data) == layout.section_bytes(count, width)
    assert (done.codebooks is None) == (layout.codebook_bytes(1) == 0)
    if done.codebooks is not None:
        assert len(done.codebooks) == layout.codebook_bytes(count)
        assert np.isfinite(decoded(layout, done, count, width)).all()
    assert done.bad.dtype == np.int64
    assert (np.diff(done.bad) > 0).all()
    held = np.ones(count, np.bool_)
    held[done.bad] = False
    assert np.isfinite(rows[held]).all()
    found = decode(layout, done.data, count, width, done.codebooks)
    assert np.array_equal(decoded(layout, done, count, width), found, equal_nan=True)
    assert np.isfinite(found[held]).all()
    if not isinstance(layout, LogLayout):
        assert not done.data.reshape(count, layout.row_bytes(width))[~held].any()
    else:
        assert not codes_of(done.data.reshape(1, -1), layout.bits, count)[0][~held].any()
    errors = relative_errors(rows[held], found[held])
    np.testing.assert_allclose(done.error_sum, errors.sum(), rtol=1e-9, atol=0)
    np.testing.assert_allclose(done.worst_error, errors.max(initial=0), rtol=1e-9, atol=0)


def equal(a: Encoded, b: Encoded) -> bool:
    books = [None if x.codebooks is None else x.codebooks.tobytes() for x in (a, b)]
    return a.data.tobytes() == b.data.tobytes() and a.bad.tolist() == b.bad.tolist() and books[0] == books[1]


def together(parts: list[Encoded]) -> tuple[bytes, bytes]:
    """The bytes of what was encoded in pieces, as they stand in a file."""
    return b"".join(p.data.tobytes() for p in parts), b"".join(
        p.codebooks.tobytes() for p in parts if p.codebooks is not None
    )


@pytest.mark.parametrize("recipe", RECIPES, ids=name_of)
def test_rows_of_all_widths(recipe: Recipe) -> None:
    for width in WIDTHS:
        rows = np.concatenate([usual(COUNT, width), peculiar(width)])
        rows.flags.writeable = False
        done = encoder(recipe).encode(rows)
        check(recipe, rows, done)
        assert equal(encoder(recipe).encode(rows), done)
        if recipe.layout.codebook_bytes(1):
            # A row that is beyond all others may cost its block.
            continue
        # No usual row is an exception, and rows of zeros are held as such.
        assert not set(done.bad.tolist()) & set(range(COUNT + 2))
        assert not decode(recipe.layout, done.data, len(rows), width)[COUNT : COUNT + 2].any()


@pytest.mark.parametrize("recipe", [r for r in RECIPES if not isinstance(r.layout, CodebookLayout)][::5], ids=name_of)
def test_the_widest_rows(recipe: Recipe) -> None:
    width = 4096 if not INTERPRETED else 70
    rows = usual(3, width)
    check(recipe, rows, encoder(recipe).encode(rows))


@pytest.mark.parametrize("recipe", RECIPES[::2], ids=name_of)
def test_no_rows(recipe: Recipe) -> None:
    done = encoder(recipe).encode(np.empty((0, 6), F32))
    assert (done.data.tolist(), done.bad.tolist(), done.error_sum, done.worst_error) == ([], [], 0, 0)
    assert done.codebooks is None or done.codebooks.tolist() == []


@pytest.mark.parametrize("recipe", RECIPES, ids=name_of)
def test_bytes_do_not_depend_on_how_rows_are_cut(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.concatenate([usual(20, 11), peculiar(11)])
    whole, encoding = encoder(recipe).encode(rows), encoder(recipe)
    step = encoding.step
    cuts = sorted({0, len(rows), *(min(len(rows), k * step) for k in (1, 2, 5))})
    pieces = [encoding.encode(rows[a:b]) for a, b in pairwise(cuts)]
    assert together(pieces) == together([whole])
    assert np.concatenate([p.bad + a for p, a in zip(pieces, cuts, strict=False)]).tolist() == whole.bad.tolist()
    assert sum(p.error_sum for p in pieces) == pytest.approx(whole.error_sum, rel=1e-12)
    assert max(p.worst_error for p in pieces) == whole.worst_error
    # Neither do they on the pieces that an encoder makes of them itself, nor on where the rows come from.
    monkeypatch.setattr("cnrfmt.encodings.rowwise_encoder._SLICE", 7 * 4 * 11)
    assert equal(encoding.encode(rows), whole)
    wide = np.full((2 * len(rows), 22), np.nan, F32)
    wide[::2, ::2] = rows
    assert equal(encoding.encode(wide[::2, ::2]), whole)


@pytest.mark.parametrize("recipe", RECIPES[:: 1 if not INTERPRETED else 3], ids=name_of)
@pytest.mark.parametrize("width", [1, 9])
def test_rows_that_err_by_more_than_the_bound_become_exceptions(recipe: Recipe, width: int) -> None:
    layout, scheme = recipe
    assert scheme is not None
    rows = np.concatenate([usual(COUNT, width), peculiar(width)])
    free = encoder_of(layout, scheme, 1e308).encode(rows)
    values = decode(layout, free.data, len(rows), width, free.codebooks)
    held = np.setdiff1d(np.arange(len(rows)), free.bad)
    errors = np.full(len(rows), np.inf)
    errors[held] = relative_errors(rows[held], values[held])
    for bound in (0.0, float(np.median(errors[held])) * 1.001, 1e308, None):
        done = encoder_of(layout, scheme, bound).encode(rows)
        check(recipe, rows, done)
        # Whatever is asked for, bfloat16 is as near as it can be.
        most = min(1.0 if bound is None else bound, 2.0**-8 if layout == CastLayout("bfloat16") else np.inf)
        assert done.bad.tolist() == np.flatnonzero(errors > most).tolist()
        assert done.worst_error <= most
        # The other rows are what they would have been.
        kept = np.setdiff1d(held, done.bad)
        found = decode(layout, done.data, len(rows), width, done.codebooks)
        assert np.array_equal(found[kept], values[kept])


@pytest.mark.parametrize("recipe", RECIPES, ids=name_of)
def test_what_is_not_finite_is_not_held(recipe: Recipe) -> None:
    for width in (1, 8, 21):
        for value in (np.nan, np.inf, -np.inf):
            for at in {0, width // 2, width - 1}:
                rows = usual(6, width)
                rows[[2, 5], at] = value
                done = encoder(recipe).encode(rows)
                # A row may be too small for the codebook that others share with it.
                assert set(done.bad.tolist()) >= {2, 5}
                assert recipe.layout.codebook_bytes(1) or len(done.bad) == 2
                check(recipe, rows, done)


@pytest.mark.parametrize("recipe", RECIPES, ids=name_of)
def test_codes_are_the_nearest(recipe: Recipe) -> None:
    """No other code of a row's own parameters stands for a number that is nearer by more than roundings."""
    layout = recipe.layout
    width = 13
    rows = np.concatenate([usual(COUNT, width), peculiar(width)])
    done = encoder(recipe).encode(rows)
    held = np.setdiff1d(np.arange(len(rows)), done.bad)
    found = decode(layout, done.data, len(rows), width, done.codebooks).astype(np.float64)
    others = every_value(recipe, done, len(rows), width).astype(np.float64)
    given = rows.astype(np.float64)
    with np.errstate(all="ignore"):
        least = np.abs(others - given[:, :, None]).min(axis=2)[held]
        # The rounding of a product, of a sum, and of the difference that the code came from.
        slack = 2.0**-21 * np.maximum(np.abs(given), np.abs(others).max(axis=2))[held] + 2.0**-126
    excess = np.abs(found - given)[held] - least
    if operators_own(recipe):
        # Their arithmetic for 8 bits adds 1e-8 to the range.
        slack = slack + 1e-8 + np.ptp(given[held], axis=1, keepdims=True) * 2.0**-10
    assert (excess <= slack).all()


def operators_own(recipe: Recipe) -> bool:
    return isinstance(recipe.layout, RowwiseLayout) and recipe.layout.placement == "tail" and recipe.layout.bits == 8


def every_value(recipe: Recipe, done: Encoded, count: int, width: int) -> Array:
    """All numbers that could stand at each place, (count, width, numbers)."""
    layout = recipe.layout
    rows = done.data.reshape(count, -1)
    if isinstance(layout, CastLayout):
        bits = layout.stored
        patterns = rows.view("<u2").astype(np.int64)[:, :, None]
        # The numbers next to it; from zero, of either sign.
        near = np.concatenate([patterns, np.abs(patterns - 1), patterns + 1], axis=2).astype("<u2")
        found = numbers_of(near, bits).reshape(count, width, 3)
        return np.where(np.isfinite(found), found, 0)
    if isinstance(layout, CodebookLayout):
        if layout.block is None:
            own = numbers_of(rows[:, : TYPES[layout.values].itemsize << layout.bits], layout.values)
            return np.broadcast_to(own.reshape(count, 1, -1), (count, width, 1 << layout.bits))
        assert done.codebooks is not None
        books = numbers_of(done.codebooks, layout.values).reshape(-1, 1 << layout.bits)
        return np.broadcast_to(books[np.arange(count) // layout.block][:, None], (count, width, 1 << layout.bits))
    assert isinstance(layout, RowwiseLayout)
    scales, biases = parameters_of(layout, rows, width)
    groups = np.arange(width) // (layout.group or width)
    codes = np.arange(1 << layout.bits)
    with np.errstate(all="ignore"):
        if biases is None:
            return (2 * codes - codes[-1]).astype(F32) * scales[:, groups, None]
        return codes.astype(F32) * scales[:, groups, None] + biases[:, groups, None]


@pytest.mark.parametrize("recipe", RECIPES, ids=name_of)
def test_constant_rows_are_held_to_the_precision_of_parameters(recipe: Recipe) -> None:
    layout = recipe.layout
    kinds = [getattr(layout, name, None) for name in ("scale", "bias", "values", "stored")]
    digits = {"float32": 24, "float16": 11, "bfloat16": 8, None: 24}
    precision = 2.0 ** -min(digits[kind] for kind in kinds)
    if getattr(layout, "bias", "") is None:
        precision = max(precision, 2.0**-16)  # What a scale keeps, so that a product with a code is exact.
    if recipe.scheme is not None and recipe.scheme.method != "symmetric" and getattr(layout, "scale", "") == "bfloat16":
        precision = 2.0**-24  # The bias alone counts.
    for width in (1, 7, 20):
        rows = np.repeat(np.array([[1.5], [-0.1], [0.3], [2048.5], [-7e3]], F32), width, axis=1)
        if layout.codebook_bytes(1):
            rows = np.repeat(rows, 4, axis=0)
        done = encoder(recipe).encode(rows)
        assert done.bad.size == 0
        assert done.worst_error <= 2.5 * precision
        check(recipe, rows, done)


# What isn't finite, now and then, and numbers at the ends of what types hold.
ELEMENTS = st.one_of(
    st.floats(-2, 2, width=32),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.floats(width=32),
    st.sampled_from([0.0, -0.0, 65504.0, 65520.0, -65519.0, 6e-8, 3.4e38, -3.4e38, 1e-45, 1e-30, 1e30])
    .map(F32)
    .map(float),
)
ROWS = st.tuples(st.integers(0, 5), st.integers(1, 21)).flatmap(
    lambda shape: hnp.arrays(F32, shape, elements=ELEMENTS, fill=st.nothing())
)


many = settings(max_examples=10 * settings.default.max_examples)


@many
@given(recipe=st.sampled_from(RECIPES), rows=ROWS)
def test_any_rows(recipe: Recipe, rows: Array) -> None:
    check(recipe, rows, encoder(recipe).encode(rows))


def idempotent(recipe: Recipe) -> bool:
    """Whether a decoded row is encoded in the same bytes again, by the specification."""
    layout = recipe.layout
    if isinstance(layout, RowwiseLayout) and layout.placement == "packed":
        return layout.bias is None or (layout.bias == "float32" and recipe.scheme == Scheme("asymmetric"))
    return isinstance(layout, CastLayout | CodebookLayout)


IDEMPOTENT = [r for r in recipes() if idempotent(r)]


def check_idempotence(recipe: Recipe, rows: Array) -> None:
    encoding = encoder(recipe)
    first, held = encoding.encode(rows), rows
    while first.bad.size:
        # A codebook that rows share is another without those that aren't held.
        held = np.delete(held, first.bad, axis=0)
        first = encoding.encode(held)
    again = encoding.encode(decode(recipe.layout, first.data, *held.shape, first.codebooks))
    assert equal(again, first)
    assert again.error_sum == 0


@many
@given(recipe=st.sampled_from(IDEMPOTENT), rows=ROWS)
def test_encoding_what_was_decoded_changes_nothing(recipe: Recipe, rows: Array) -> None:
    check_idempotence(recipe, rows)


@pytest.mark.parametrize("recipe", IDEMPOTENT, ids=name_of)
def test_encoding_what_was_decoded_changes_nothing_in_many_rows(recipe: Recipe) -> None:
    for width in WIDTHS:
        random = np.random.default_rng(width)
        rows = usual(200 if not INTERPRETED else 4, width)
        rows *= 2.0 ** random.integers(-120, 110, (len(rows), 1))
        check_idempotence(recipe, np.concatenate([rows.astype(F32), peculiar(width)]))


# One value per row.


POSITIVE = st.floats(2**-20, 2**20, width=32) | st.floats(0, width=32)
ANY = st.one_of(POSITIVE, ELEMENTS)


def column(*values: float) -> Array:
    return np.array(values, F32).reshape(-1, 1)


@pytest.mark.parametrize("recipe", LOGS, ids=name_of)
@given(values=st.lists(ANY, max_size=20), bound=st.none() | st.sampled_from([0.0, 1e-5, 0.002, 0.02]))
@example(values=[0.0, -0.0, -1.0, np.nan, np.inf, 1e-45, 3.4e38], bound=None)
def test_any_values(recipe: Recipe, values: list[float], bound: float | None) -> None:
    layout, scheme = recipe
    assert isinstance(layout, LogLayout)
    assert scheme is not None
    rows = column(*values)
    done = encoder_of(layout, scheme, bound).encode(rows)
    check(recipe, rows, done)
    found = decode(layout, done.data, len(rows), 1)
    held = np.setdiff1d(np.arange(len(rows)), done.bad)
    assert (relative_errors(rows[held], found[held]) <= 2.0 ** (layout.shift - 24)).all()
    assert done.worst_error <= (2.0 ** (layout.shift - 24) if bound is None else bound)
    # What could be told apart from its neighbours is held.
    with np.errstate(all="ignore"):
        greatest = np.uint32(layout.base + (2**layout.bits - 2 << layout.shift)).view(F32)
        inside = (rows[:, 0] >= np.uint32(layout.base).view(F32)) & (rows[:, 0] <= greatest) | (rows[:, 0] == 0)
    if bound is None:
        assert set(np.flatnonzero(inside & ~np.signbit(rows[:, 0]))) <= set(held.tolist())
    # Encoding what was decoded changes nothing.
    again = encoder(recipe).encode(found)
    assert again.data.tobytes() == done.data.tobytes()
    assert again.error_sum == 0


@pytest.mark.parametrize("recipe", LOGS, ids=name_of)
def test_values_in_pairs(recipe: Recipe) -> None:
    values = np.abs(usual(101, 1)) + F32(1e-3)
    values[::9] = -1
    whole = encoder(recipe).encode(values)
    check(recipe, values, whole)
    assert encoder(recipe).step == 2
    pieces = [encoder(recipe).encode(values[a:b]) for a, b in pairwise((0, 2, 10, 98, 101))]
    assert together(pieces) == together([whole])


def test_a_bound_takes_out_one_of_two_that_share_a_byte() -> None:
    layout, scheme = LogLayout(12, 0x3F800000, 12), Scheme("log")
    values = column(1.0, 1.0002, 1.0002, 1.0, 1.0002)
    free = encoder_of(layout, scheme).encode(values)
    assert free.bad.size == 0
    done = encoder_of(layout, scheme, 1e-6).encode(values)
    assert done.bad.tolist() == [1, 2, 4]
    assert decode(layout, done.data, 5, 1)[:, 0].tolist() == [1, 0, 0, 1, 0]


# Shared codebooks.


@pytest.mark.parametrize("block", [2, 3, 8])
def test_each_block_has_its_own_codebook(block: int) -> None:
    recipe = Recipe(CodebookLayout(2, "float32", block), Scheme("kmeans"))
    # Rows of few numbers, others in each block: exact only if each has the codebook of its block.
    count = 3 * block + 1
    rows = np.stack([np.array([1, 2, 3, 4, 3], F32) * (1 + k // block) for k in range(count)])
    done = encoder(recipe).encode(rows)
    assert encoder(recipe).step == block
    assert done.error_sum == 0
    assert decode(recipe.layout, done.data, count, 5, done.codebooks).tolist() == rows.tolist()


def test_a_row_that_is_not_held_leaves_the_codebook_to_the_others() -> None:
    recipe = Recipe(CodebookLayout(2, "float32", 4), Scheme("kmeans"))
    rows = np.array([[1, 2], [np.nan, 9], [3, 4], [1, np.inf], [np.nan, 1], [np.inf, 2]], F32)
    done = encoder(recipe).encode(rows)
    assert done.bad.tolist() == [1, 3, 4, 5]
    found: Any = decode(recipe.layout, done.data, 6, 2, done.codebooks)
    assert found[[0, 2]].tolist() == [[1, 2], [3, 4]]
    # A block of which nothing is held has a codebook of zeros.
    assert done.codebooks is not None
    assert not done.codebooks[16:].any()


# A search from more starts, and one that is never worse.


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_never_worse_than_the_greedy_search(bits: int) -> None:
    bins, ratio = 25, 0.5
    layout = RowwiseLayout(bits, "packed", "float16", "float16")
    rows = usual(30 if INTERPRETED else 300, 24)
    errors = {}
    for scheme in (Scheme("adaptive", bins, ratio), Scheme("lsq", bins, ratio, 2), Scheme("asymmetric")):
        done = encoder(Recipe(layout, scheme)).encode(rows)
        errors[scheme.method] = relative_errors(rows, decode(layout, done.data, len(rows), 24))
    assert (errors["lsq"] <= errors["adaptive"] * (1 + 1e-6)).all()
    assert (errors["adaptive"] <= errors["asymmetric"] * (1 + 1e-6)).all()
    assert errors["lsq"].mean() < errors["adaptive"].mean() < errors["asymmetric"].mean()
