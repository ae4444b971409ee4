"""Tables as torch's quantised operators take them, against torch's own tensors."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cnrfmt
from cnrfmt import DamagedError, Quantize, Rows, TableData, UsageError
from tests.integrations.operators import NAMES, bags, damage, is_inside, mapping, prepacked, trained_rows

BITS = (8, 4, 2)


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture(scope="module")
def trained(embeddings_file: Path) -> Any:
    return trained_rows(embeddings_file)


@pytest.fixture(params=["model.cnr", "model"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / request.param


@pytest.mark.parametrize("bits", BITS)
def test_the_mapped_tensor_is_torchs_own_bit_for_bit(path: Path, trained: Any, bits: int) -> None:
    cnrfmt.save(path, {"other": trained[:7], "token": trained}, quantize=Quantize(bits))
    with cnrfmt.open(path) as ck:
        found = ck["token"].as_torch_quantized()
        whole = mapping(ck)
        assert is_inside(found.tensor, whole)
        assert not whole.flags.writeable
    del whole, ck
    gc.collect()
    # The file is closed, and may go.
    if path.is_file():
        path.unlink()
    want = prepacked(trained, bits)
    assert torch.equal(found.tensor, want)
    assert torch.equal(bags(found.tensor, bits), bags(want, bits))
    assert (found.bits, found.origin, found.mapped, found.exceptions.tolist()) == (bits, "mapped", True, [])
    assert found.verification is not None
    assert found.verification.result() is None


@pytest.mark.parametrize("bits", BITS)
def test_newer_rows_lie_over_the_map_as_they_are_stored(path: Path, trained: Any, bits: int) -> None:
    now = trained.copy()
    cnrfmt.save(path, {"token": now}, quantize=Quantize(bits))
    before = path.read_bytes() if path.is_file() else b""
    for step, ids in enumerate((np.arange(0, 3000, 7), np.array([2999, 14, 3]), np.arange(100, 300)), 1):
        now[ids] *= 1 + step
        cnrfmt.append(path, {"token": Rows(ids, now[ids])})
    with cnrfmt.open(path) as ck:
        with pytest.raises(UsageError, match=r"newer parts, 3 of them, .*overlay=True.*cnrfmt.compact\(.*convert=True"):
            ck["token"].as_torch_quantized()
        found = ck["token"].as_torch_quantized(overlay=True)
        copied = ck["token"].as_torch_quantized(convert=True)
        assert (found.origin, found.mapped, copied.origin, copied.mapped) == ("overlay", True, "copied", False)
        assert not is_inside(found.tensor, mapping(ck))
        # Nothing was quantised anew: adaptive codes of a delta stay what they are.
        assert torch.equal(found.tensor, prepacked(now, bits))
        assert torch.equal(copied.tensor, found.tensor)
        # Other pages are those of the file, and writing goes nowhere.
        found.tensor[5] = 1
        assert not (ck["token"].as_torch_quantized(overlay=True).tensor[5] == 1).all()
    assert not before or path.read_bytes()[12288 : len(before)] == before[12288:]
    cnrfmt.compact(path, path.with_name("compacted"))
    with cnrfmt.open(path.with_name("compacted")) as ck:
        assert torch.equal(ck["token"].as_torch_quantized().tensor, copied.tensor)


def test_a_refresh_leaves_the_tensor_as_it_is(path: Path, trained: Any) -> None:
    cnrfmt.save(path, {"token": trained}, quantize=Quantize(8))
    with cnrfmt.open(path) as ck:
        found = ck["token"].as_torch_quantized()
        cnrfmt.append(path, {"token": Rows(np.arange(50), -trained[:50])})
        assert ck.refresh() is not None
        assert torch.equal(found.tensor, prepacked(trained, 8))
        # A delta of all rows is what is mapped then.
        cnrfmt.append(path, {"token": Rows(np.arange(len(trained)), -trained)})
        ck.refresh()
        newest = ck["token"].as_torch_quantized()
        assert (newest.origin, torch.equal(newest.tensor, prepacked(-trained, 8))) == ("mapped", True)


def test_rows_of_a_keyed_table_are_in_the_order_of_its_keys(path: Path, trained: Any) -> None:
    keys = np.random.default_rng(0).permutation(9000)[:3000] - 4000
    cnrfmt.save(path, {"token": TableData(trained, keys=keys)}, quantize=Quantize(4))
    changed = keys[:20]
    with cnrfmt.open(path) as ck:
        assert torch.equal(ck["token"].as_torch_quantized().tensor, prepacked(trained[np.argsort(keys)], 4))
    cnrfmt.append(path, {"token": Rows(changed, -trained[:20])})
    now = np.concatenate([-trained[:20], trained[20:]])[np.argsort(keys)]
    with cnrfmt.open(path) as ck:
        assert torch.equal(ck["token"].as_torch_quantized(overlay=True).tensor, prepacked(now, 4))
    # A key that goes, or comes, moves the others: no one part has all rows in their order.
    cnrfmt.append(path, {"token": cnrfmt.Deleted(changed[:1])})
    with cnrfmt.open(path) as ck:
        with pytest.raises(UsageError, match=r"no part of it has all its rows; make one part of them, cnrfmt.compact"):
            ck["token"].as_torch_quantized(overlay=True)
        found = ck["token"].as_torch_quantized(convert=True)
        where = np.sort(keys) != changed[0]
        assert found.origin == "copied"
        assert torch.equal(found.tensor, prepacked(now[where], 4))
    cnrfmt.append(path, {"token": Rows(changed[:1], trained[:1])})
    with cnrfmt.open(path) as ck:
        now[~where] = trained[:1]
        assert torch.equal(ck["token"].as_torch_quantized(convert=True).tensor, prepacked(now, 4))


@pytest.mark.parametrize("bits", BITS)
def test_rows_that_the_encoding_cannot_hold(path: Path, trained: Any, bits: int) -> None:
    rows = trained.copy()
    rows[[5, 77]] = np.nan
    rows[78, 3] = np.inf
    cnrfmt.save(path, {"token": rows}, quantize=Quantize(bits))
    want = prepacked(trained, bits).clone()
    want[[5, 77, 78]] = 0
    with cnrfmt.open(path) as ck:
        for how in ({}, {"convert": True}, {"overlay": True}):
            with pytest.raises(UsageError, match=r"3 of 3000 rows, the first of them 5, .* exceptions='ignore'"):
                ck["token"].as_torch_quantized(**how)
        found = ck["token"].as_torch_quantized(exceptions="ignore")
        assert found.exceptions.tolist() == [5, 77, 78]
        assert torch.equal(found.tensor, want)
        with pytest.raises(UsageError, match="exceptions is 'refuse' or 'ignore', found 'hide'"):
            ck["token"].as_torch_quantized(exceptions="hide")
    # One is mended by a delta, another row breaks.
    cnrfmt.append(path, {"token": Rows([77, 100], np.stack([trained[77], rows[5]]))})
    want[77], want[100] = prepacked(trained[77:78], bits)[0], 0
    with cnrfmt.open(path) as ck:
        found = ck["token"].as_torch_quantized(exceptions="ignore", overlay=True)
        assert found.exceptions.tolist() == [5, 78, 100]
        assert torch.equal(found.tensor, want)
    cnrfmt.append(path, {"token": Rows([5, 78, 100], trained[[5, 78, 100]])})
    with cnrfmt.open(path) as ck:
        assert torch.equal(ck["token"].as_torch_quantized(overlay=True).tensor, prepacked(trained, bits))


@pytest.mark.parametrize("bits", BITS)
def test_other_layouts_of_the_same_codes_are_copied(path: Path, trained: Any, bits: int) -> None:
    schemes = {
        "head": Quantize(bits, layout="head"),
        "packed": Quantize(bits, layout="packed", params="float16"),
        "wide": Quantize(bits, layout="packed", params="float32"),
        "groups": Quantize(bits, layout="packed", group=16),
    }
    cnrfmt.save(path, dict.fromkeys(schemes, trained), quantize=schemes)
    with cnrfmt.open(path) as ck:
        for name in schemes:
            shown = f"layout '{schemes[name].layout}' with {bits} bits"
            with pytest.raises(UsageError, match=rf"{shown}; store it so, cnrfmt.compact\(.*convert=True"):
                ck[name].as_torch_quantized()
            found = ck[name].as_torch_quantized(convert=True)
            keeps = name in ("head", "packed") or (name == "wide" and bits == 8)
            assert (found.origin, found.bits) == ("copied" if keeps else "quantised", bits)
            values = ck[name][...]
            if keeps:
                # The operators may contract product and sum into one rounding.
                unpack = getattr(torch.ops.quantized, f"embedding_bag_{NAMES[bits]}_unpack")
                np.testing.assert_allclose(unpack(found.tensor), values, rtol=0, atol=1e-6)
            else:
                assert torch.equal(found.tensor, prepacked(values, bits))


def test_what_has_no_such_codes_is_quantised_and_says_so(path: Path, trained: Any) -> None:
    tables = {"raw": trained[:500], "mixed": trained[:500], "three": trained[:500], "ints": np.ones((5, 4), np.int32)}
    cnrfmt.save(path, tables, quantize={"raw": None, "mixed": Quantize(8), "three": Quantize(3), "ints": None})
    cnrfmt.append(path, {"mixed": Rows([3], trained[:1])}, quantize={"mixed": Quantize(4)})
    with cnrfmt.open(path) as ck:
        for name, text in (
            ("raw", "it has rows under the encoding raw float32"),
            ("mixed", "it has rows under rowwise tail 8 bits and under rowwise tail 4 bits"),
            ("three", "its rows are stored in the layout 'packed' with 3 bits"),
        ):
            with pytest.raises(UsageError, match=rf"{text}; store it so, "):
                ck[name].as_torch_quantized(overlay=True)
            found = ck[name].as_torch_quantized(convert=True)
            assert (found.origin, found.bits, found.mapped) == ("quantised", 8, False)
            assert torch.equal(found.tensor, prepacked(ck[name][...], 8))
        found = ck["raw"].as_torch_quantized(convert=Quantize(4, method="adaptive"))
        error = np.abs(torch.ops.quantized.embedding_bag_4bit_unpack(found.tensor).numpy() - trained[:500]).mean()
        plain = torch.ops.quantized.embedding_bag_4bit_unpack(prepacked(trained[:500], 4)).numpy()
        assert found.bits == 4
        assert error < np.abs(plain - trained[:500]).mean()
        for wrong in (Quantize(3), Quantize(8, layout="head"), Quantize(8, layout="packed")):
            with pytest.raises(UsageError, match="convert: these operators read 8, 4 or 2 bits in the layout 'tail'"):
                ck["raw"].as_torch_quantized(convert=wrong)
        with pytest.raises(UsageError, match="don't go together"):
            ck["raw"].as_torch_quantized(convert=Quantize(8, params="float16"))
        with pytest.raises(UsageError, match="only floating-point weights can be quantised, found int32"):
            ck["ints"].as_torch_quantized(convert=True)


def test_rows_that_were_never_written_and_tables_that_grew(path: Path, trained: Any) -> None:
    fill = np.float32(0.5)
    cnrfmt.save(path, {"token": TableData(trained[:100], fill=fill), "none": trained[:0]}, quantize=Quantize(8))
    cnrfmt.append(path, {"token": Rows([149], trained[149:150], rows=200)})
    want = np.full((200, 64), fill)
    want[:100], want[149] = trained[:100], trained[149]
    with cnrfmt.open(path) as ck:
        with pytest.raises(UsageError, match="no part of it has all its rows"):
            ck["token"].as_torch_quantized(overlay=True)
        found = ck["token"].as_torch_quantized(convert=True)
        assert (found.origin, torch.equal(found.tensor, prepacked(want, 8))) == ("copied", True)
        with pytest.raises(UsageError, match="it has no rows"):
            ck["none"].as_torch_quantized()
        assert ck["none"].as_torch_quantized(convert=True).tensor.shape == (0, 72)
    # What was cut off and came back reads as the fill value, though the old rows are in the file.
    cnrfmt.append(path, {"token": Rows([0], trained[:1], rows=50)})
    with cnrfmt.open(path) as ck:
        assert torch.equal(ck["token"].as_torch_quantized(overlay=True).tensor, prepacked(trained[:50], 8))
    cnrfmt.append(path, {"token": Rows([1], trained[1:2], rows=100)})
    want = want[:100]
    want[50:] = fill
    with cnrfmt.open(path) as ck:
        assert torch.equal(ck["token"].as_torch_quantized(convert=True).tensor, prepacked(want, 8))


def test_damage_is_found_before_the_tensor_is_given_out(tmp_path: Path, trained: Any) -> None:
    path = tmp_path / "model.cnr"
    cnrfmt.save(path, {"token": trained}, quantize=Quantize(8))
    with cnrfmt.open(path) as ck:
        damage(path, ck, "token", 2000)
    for how in ({}, {"overlay": True}, {"verify": "first"}):
        with cnrfmt.open(path) as ck, pytest.raises(DamagedError, match="part of column 'weight' of table 'token'"):
            ck["token"].as_torch_quantized(**how)
    with cnrfmt.open(path) as ck:
        found = ck["token"].as_torch_quantized(verify="background")
    assert found.verification is not None
    with pytest.raises(DamagedError, match="piece-digest"):
        found.verification.result(timeout=60)
    with cnrfmt.open(path) as ck:
        assert ck["token"].as_torch_quantized(verify="none").verification is None
        with pytest.raises(UsageError, match="verify is 'first', 'background', 'none' or None, found 'later'"):
            ck["token"].as_torch_quantized(verify="later")
    with cnrfmt.open(path, verify="none") as ck:
        assert ck["token"].as_torch_quantized().verification is None
        with pytest.raises(UsageError, match=r"opened with verify='none'; open it with verify='touched'"):
            ck["token"].as_torch_quantized(verify="first")


def test_a_closed_checkpoint_and_one_without_a_map(path: Path, trained: Any) -> None:
    cnrfmt.save(path, {"token": trained}, quantize=Quantize(2))
    with cnrfmt.open(path, backend="pread") as ck:
        with pytest.raises(UsageError, match=r"opened with backend='pread'; open it with backend='mmap'; or .*convert"):
            ck["token"].as_torch_quantized()
        found = ck["token"].as_torch_quantized(convert=True)
        assert (found.origin, torch.equal(found.tensor, prepacked(trained, 2))) == ("copied", True)
        table = ck["token"]
    with pytest.raises(UsageError, match="was closed"):
        table.as_torch_quantized()


def test_private_memory_is_counted(path: Path, trained: Any) -> None:
    cnrfmt.save(path, {"token": trained, "other": trained}, quantize={"token": Quantize(8), "other": Quantize(4)})
    with cnrfmt.open(path, max_bytes=200_000) as ck:
        # What is mapped takes none.
        assert ck["token"].as_torch_quantized(convert=True).mapped
    cnrfmt.append(path, {"token": Rows([3], trained[:1])})
    with cnrfmt.open(path, max_bytes=200_000) as ck:
        assert ck["token"].as_torch_quantized(overlay=True).mapped
        with pytest.raises(cnrfmt.TooLargeError, match="table 'token', 3000 rows of 72 bytes"):
            ck["token"].as_torch_quantized(convert=True)
