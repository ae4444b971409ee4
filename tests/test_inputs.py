"""Every kind of array that callers hand over arrives as the same bytes."""

from __future__ import annotations

import array
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch

from cnrfmt import dtypes, inputs
from cnrfmt.errors import UsageError
from cnrfmt.inputs import as_array, as_ids, as_source

Array = npt.NDArray[Any]
ROOT = Path(__file__).resolve().parent.parent


def _values(dtype: str, rows: int = 7, width: int = 5) -> Array:
    """Distinct numbers, of both signs where there are any, that fit in a byte of every type."""
    ramp = np.arange(rows * width).reshape(rows, width) - (0 if dtype.startswith("u") else 11)
    return ramp.astype(dtypes.dtype_of(dtype))


def _same(found: Array, want: Array) -> None:
    assert found.dtype == want.dtype
    assert found.shape == want.shape
    assert found.flags.c_contiguous
    assert found.tobytes() == want.tobytes()


def _check(value: Any, want: Array, *, contiguous: bool) -> None:
    """All ways of reading a source give the rows of `want`."""
    source = as_source(value, what="the table")
    assert source.shape == want.shape
    assert source.dtype == want.dtype
    assert source.is_contiguous is contiguous
    count = len(want)
    for start, stop in ((0, count), (0, 0), (1, count), (count // 2, count // 2 + 1), (count, count)):
        _same(source.rows(start, stop), want[start:stop])
    shuffled = np.random.default_rng(3).permutation(count).astype(np.int64)
    _same(source.take(shuffled), want[shuffled])
    _same(source.take(shuffled[:0]), want[:0])


def name_of(value: Any) -> str:
    """The words for a case, the same in every process."""
    return re.sub(" at 0x[0-9a-f]+", "", str(value))


class OnlyDLPack:
    """A tensor that speaks DLPack and nothing else."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._tensor.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[Any, int]:
        return self._tensor.__dlpack_device__()


class OnlyArray:
    """An object that converts itself, as tensors of many frameworks do."""

    def __init__(self, values: Array) -> None:
        self._values = values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self._values


@pytest.mark.parametrize("dtype", dtypes.COLUMN_TYPES)
class TestEveryDataType:
    def test_numpy(self, dtype: str) -> None:
        _check(_values(dtype), _values(dtype), contiguous=True)

    def test_torch_in_every_stride(self, dtype: str) -> None:
        tensor = torch.from_numpy(_values("int64")).abs().to(getattr(torch, dtype))
        want = np.abs(_values("int64")).astype(dtypes.dtype_of(dtype))
        _check(tensor, want, contiguous=True)
        _check(tensor.t(), np.ascontiguousarray(want.T), contiguous=False)
        _check(tensor[::2, 1::2], np.ascontiguousarray(want[::2, 1::2]), contiguous=False)
        _check(tensor[:, 2], np.ascontiguousarray(want[:, 2]), contiguous=False)

    def test_dlpack_alone(self, dtype: str) -> None:
        tensor = torch.from_numpy(_values("int64")).abs().to(getattr(torch, dtype))
        want = np.abs(_values("int64")).astype(dtypes.dtype_of(dtype))
        _check(OnlyDLPack(tensor), want, contiguous=True)
        _check(OnlyDLPack(tensor.t()), np.ascontiguousarray(want.T), contiguous=False)

    def test_array_method(self, dtype: str) -> None:
        _check(OnlyArray(_values(dtype)), _values(dtype), contiguous=True)

    def test_no_rows(self, dtype: str) -> None:
        _check(_values(dtype, rows=0), _values(dtype, rows=0), contiguous=True)
        tensor = torch.zeros(0, 5, dtype=getattr(torch, dtype))
        _check(tensor, _values(dtype, rows=0), contiguous=True)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "uint16"])
@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.astype(a.dtype.newbyteorder(">")),
        lambda a: np.asfortranarray(a),
        lambda a: np.ascontiguousarray(a[::-1])[::-1],
        lambda a: np.ascontiguousarray(a[:, ::-1])[:, ::-1],
        lambda a: np.repeat(a, 2, axis=0)[::2],
        lambda a: np.repeat(a, 3, axis=1)[:, 1::3],
        lambda a: np.asfortranarray(a.astype(a.dtype.newbyteorder(">"))),
    ],
    ids=["big-endian", "fortran", "rows-back", "elements-back", "row-step", "element-step", "both"],
)
def test_any_strides_and_byte_order(dtype: str, change: Callable[[Array], Array]) -> None:
    want = _values(dtype)
    given = change(want)
    assert np.array_equal(given, want)
    _check(given, want, contiguous=False)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_contiguous_sources_are_never_copied(dtype: str) -> None:
    given = _values(dtype)
    given.flags.writeable = False
    source = as_source(given, what="w")
    assert np.shares_memory(source.rows(2, 5), given)
    tensor = torch.from_numpy(_values(dtype))
    assert np.shares_memory(as_source(tensor, what="w").rows(2, 5), tensor.numpy())
    low = tensor.to(torch.bfloat16)
    assert as_source(low, what="w").rows(2, 5).ctypes.data == low[2:].data_ptr()
    assert as_source(OnlyDLPack(low), what="w").rows(2, 5).ctypes.data == low[2:].data_ptr()


def test_a_strided_source_copies_a_slice_at_the_most() -> None:
    # 8 TiB of address space that nobody could copy: every row is the same memory.
    given = np.broadcast_to(np.arange(64, dtype=np.float32), (1 << 35, 64))
    source = as_source(given, what="w")
    _same(source.rows(1 << 34, (1 << 34) + 3), np.ascontiguousarray(given[:3]))
    _same(source.take(np.array([1 << 34, 0])), np.ascontiguousarray(given[:2]))


def test_odd_bit_patterns_pass_unchanged() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
    for kind, name in ((torch.bfloat16, "bfloat16"), (torch.float16, "float16")):
        tensor = torch.from_numpy(bits.view(np.int16)).view(kind)
        found = as_source(tensor, what="w").rows(0, 256)
        assert dtypes.name_of(found.dtype) == name
        assert found.tobytes() == bits.tobytes()
    for name, big in (("float32", ">f4"), ("float64", ">f8")):
        # A signalling NaN, a NaN with a payload, -0.0 and a denormal, byte-swapped.
        words = np.array([[0x7F800001, 0xFFC12345, 0x80000000, 1]], np.uint32)
        words = words if name == "float32" else words.astype(np.uint64) << np.uint64(32)
        swapped = words.byteswap().view(big)
        assert as_source(swapped, what="w").rows(0, 1).tobytes() == words.tobytes()


def test_tensors_that_learn_and_parameters() -> None:
    parameter = torch.nn.Parameter(torch.arange(12.0).reshape(4, 3))
    _check(parameter, np.arange(12, dtype=np.float32).reshape(4, 3), contiguous=True)
    doubled = (parameter * 2).to(torch.bfloat16)
    assert doubled.requires_grad
    want = (np.arange(12).reshape(4, 3) * 2).astype(ml_dtypes.bfloat16)
    _check(doubled, want, contiguous=True)


def test_memory_maps(tmp_path: Path) -> None:
    want = _values("float32", 100, 8)
    want.tofile(tmp_path / "w.bin")
    mapped = np.memmap(tmp_path / "w.bin", np.float32, mode="r", shape=(100, 8))
    _check(mapped, want, contiguous=True)
    assert np.shares_memory(as_source(mapped, what="w").rows(3, 9), mapped)


def test_buffers_and_lists() -> None:
    _check(array.array("f", [1, 2, 3]), np.array([1, 2, 3], np.float32), contiguous=True)
    _check(memoryview(_values("float32")), _values("float32"), contiguous=True)
    _check([[1.5, 2.0], [3.0, 4.0]], np.array([[1.5, 2], [3, 4]]), contiguous=True)
    _check([[1, 2], [3, 4]], np.array([[1, 2], [3, 4]]), contiguous=True)
    _check([1.0, -0.0], np.array([1.0, -0.0]), contiguous=True)


class TestH5py:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Any:
        with h5py.File(tmp_path / "tables.h5", "w") as file:
            yield file

    @pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f2", "<i8", ">u4"])
    @pytest.mark.parametrize("chunks", [None, (16, 8)])
    def test_datasets(self, file: Any, dtype: str, chunks: Any) -> None:
        want = np.arange(800).reshape(100, 8).astype(np.dtype(dtype).newbyteorder("<"))
        dataset = file.create_dataset("w", data=want.astype(dtype), chunks=chunks)
        assert dataset.dtype == np.dtype(dtype)
        _check(dataset, want, contiguous=False)
        _check(file.create_dataset("g", data=want[:, 0]), want[:, 0].copy(), contiguous=False)
        _check(file.create_dataset("e", data=want[:0]), want[:0], contiguous=False)

    def test_is_never_read_whole(self, file: Any) -> None:
        # Nothing was written, so the file is small, and reading it whole would take 2 TiB.
        dataset = file.create_dataset("w", (1 << 32, 128), np.float32, chunks=(64, 128))
        dataset[(1 << 31) + 1] = 7
        source = as_source(dataset, what="w")
        assert source.rows(1 << 31, (1 << 31) + 3)[:, 5].tolist() == [0, 7, 0]
        ids = np.array([(1 << 32) - 1, (1 << 31) + 1, 0, (1 << 31) + 1])
        assert source.take(ids)[:, 0].tolist() == [0, 7, 0, 7]

    def test_take_crosses_windows_and_gaps(self, file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        want = np.arange(4000, dtype=np.float32).reshape(1000, 4)
        source = as_source(file.create_dataset("w", data=want), what="w")
        monkeypatch.setattr(inputs, "_WINDOW", 16 * 10)
        monkeypatch.setattr(inputs, "_GAP", 16 * 3)
        rng = np.random.default_rng(0)
        for size in (1, 2, 30, 999, 3000):
            positions = rng.integers(0, 1000, size)
            _same(source.take(positions), want[positions])

    def test_refusals(self, file: Any) -> None:
        text = file.create_dataset("s", data=["a", "b"])
        for value in (text, file.create_dataset("n", data=h5py.Empty("f4"))):
            with pytest.raises(UsageError, match="column 'x'"):
                as_source(value, what="column 'x'")
        dataset = file.create_dataset("w", data=[[1.0]])
        file.close()
        for read in (as_source, as_array, as_ids):
            with pytest.raises(UsageError, match=r"w: .*closed"):
                read(dataset, what="w")

    def test_whole_arrays_and_ids(self, file: Any) -> None:
        _same(as_array(file.create_dataset("b", data=True), what="b"), np.array(True))
        ids = file.create_dataset("i", data=np.array([3, 1], ">u2"))
        assert as_ids(ids, "ids").tolist() == [3, 1]


class Undecided(OnlyArray):
    """An array spread over several devices of one kind, as frameworks for many devices have them."""

    def __dlpack_device__(self) -> tuple[int, int]:
        raise BufferError("no single device")


def test_an_array_without_a_single_device_converts_itself() -> None:
    _check(Undecided(_values("float32")), _values("float32"), contiguous=True)


class Elsewhere(OnlyArray):
    """An array in the memory of an accelerator."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (torch.zeros(2, 2, device="meta"), "found device meta"),
        (Elsewhere(np.zeros((2, 2))), "move it there first"),
        (torch.zeros(2, 2).to_sparse(), "to_dense"),
        (torch.zeros(2, 2, dtype=torch.bool), "bool can't be stored"),
        (torch.zeros(2, 2, dtype=torch.complex64), "complex64 can't be stored"),
        (torch.zeros(2, 2).to(torch.float8_e4m3fnuz), "found Tensor"),
        (OnlyDLPack(torch.zeros(2, 2).to(torch.float8_e4m3fnuz)), "found OnlyDLPack"),
        (np.ma.masked_array([[1.0, 2.0]], [[True, False]]), "masked"),
        ([[1.0], [1.0, 2.0]], "found list"),
        ([["a", "b"]], "can't be stored in a column"),
        (b"bytes", "can't be stored in a column"),
        (None, "Python objects"),
        ({1: 2}, "found dict"),
        ([[object()]], "Python objects"),
        ([[10**30]], "Python objects"),
        (np.zeros((2, 2), np.longdouble), "can't be stored in a column"),
        (np.zeros((2, 2), "M8[s]"), "can't be stored in a column"),
        (3.0, r"found shape \(\)"),
        (np.zeros((2, 2, 2)), r"found shape \(2, 2, 2\)"),
    ],
    ids=name_of,
)
def test_what_is_no_matrix_of_numbers_is_refused(value: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        as_source(value, what="table 'user'")
    assert "table 'user'" in str(caught.value)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantised_tensors_are_refused() -> None:
    tensor = torch.quantize_per_tensor(torch.zeros(2, 2), 1.0, 0, torch.qint8)
    with pytest.raises(UsageError, match=r"weights: .*dequantize\(\)"):
        as_source(tensor, what="weights")


@pytest.mark.parametrize(
    "value",
    [
        np.float32(2),
        np.array(3, ">i4"),
        np.zeros((0, 3), np.int8),
        np.array([True, False]),
        np.arange(24, dtype=np.complex64).reshape(2, 3, 4).T,
        np.arange(6.0).reshape(1, 1, 6)[..., ::-1],
    ],
    ids=name_of,
)
def test_dense_arrays_of_any_shape(value: Any) -> None:
    want = np.asarray(value)
    want = want.astype(want.dtype.newbyteorder("<"), order="C")
    _same(as_array(value, what="x"), want)
    _same(as_array(torch.from_numpy(want.copy()), what="x"), want)


def test_conjugate_tensors_are_resolved() -> None:
    tensor = torch.tensor([1 + 2j, 3 - 4j]).conj()
    assert tensor.is_conj()
    _same(as_array(tensor, what="x"), np.array([1 - 2j, 3 + 4j], np.complex64))


class TestIds:
    @pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">i8", ">u4", ">i2"])
    def test_every_integer_type(self, dtype: str) -> None:
        found = as_ids(np.array([5, 0, 127], dtype), "ids")
        _same(found, np.array([5, 0, 127]))

    def test_extremes(self) -> None:
        limits = np.iinfo(np.int64)
        ends = [limits.min, limits.max]
        assert as_ids(ends, "ids").tolist() == ends
        assert as_ids(np.array([limits.max], np.uint64), "ids").tolist() == [limits.max]
        assert as_ids(torch.tensor(ends), "ids").tolist() == ends

    @pytest.mark.parametrize(
        ("value", "want"),
        [
            ([], []),
            ((), []),
            ([7, -1], [7, -1]),
            (range(9, 2, -3), [9, 6, 3]),
            (range(0), []),
            (torch.tensor([3, 1], dtype=torch.int32), [3, 1]),
            (torch.tensor([3, 1, 2, 0], dtype=torch.uint8)[::2], [3, 2]),
            (OnlyDLPack(torch.tensor([3, 1], dtype=torch.int16)), [3, 1]),
            (array.array("i", [4, 2]), [4, 2]),
            (np.arange(6)[::-2], [5, 3, 1]),
        ],
        ids=name_of,
    )
    def test_every_kind(self, value: Any, want: list[int]) -> None:
        _same(as_ids(value, "ids"), np.array(want, np.int64))

    def test_a_sound_array_is_not_copied(self) -> None:
        ids = np.arange(4)
        assert np.shares_memory(as_ids(ids, "ids"), ids)

    @pytest.mark.parametrize(
        ("value", "says"),
        [
            ([1.0], "integers"),
            (np.array([], np.float32), "integers"),
            ([True, False], "integers"),
            (np.array([1, 2**63], np.uint64), "fit in int64, found 9223372036854775808"),
            ([2**63], "fit in int64"),
            ([-1, 2**63], "fit in int64"),
            ([2**64], "Python objects"),
            (range(2**63, 2**63 + 2), "fit in int64"),
            ([[1, 2]], "1-D"),
            (5, "1-D"),
            (["1"], "integers"),
            ("17", "1-D"),
            (None, "Python objects"),
            ({1, 2}, "Python objects"),
            (torch.tensor([1.0]), "integers"),
            (torch.zeros(2, dtype=torch.int64, device="meta"), "device meta"),
        ],
        ids=name_of,
    )
    def test_refusals(self, value: Any, says: str) -> None:
        with pytest.raises(UsageError, match=says) as caught:
            as_ids(value, "table 'user': keys")
        assert "table 'user': keys" in str(caught.value)


def test_importing_loads_no_framework_and_no_compiler() -> None:
    code = (
        "import sys, cnrfmt.inputs, cnrfmt.encodings, cnrfmt.encodings.quantize;"
        "from cnrfmt.encodings import row_ids;"
        "print([m for m in ('numba', 'torch', 'h5py', 'jax', 'ml_dtypes') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout.strip() == "[]"
