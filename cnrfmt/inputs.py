"""How arrays get in: from numpy, torch, jax, h5py and their like to contiguous little-endian rows.

No framework is imported here. A tensor of torch or a dataset of h5py can only be met after its own
package was imported, so those packages are looked up among the loaded modules; everything else comes
through ``__array__``, the buffer protocol or DLPack.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cnrfmt import dtypes
from cnrfmt.arrays import Array, Ids
from cnrfmt.errors import UsageError

_WINDOW = 8 << 20
"""Bytes of a file-backed dataset that are read at a time, at the most, to pick rows out of it."""
_GAP = 128 << 10
"""Bytes between two rows that take longer to read than to begin another read behind them."""


class Source2D(Protocol):
    """Rows of a column, at hand in memory or read when they are asked for.

    Attributes
    ----------
    shape
        Rows, and elements per row unless there is one value per row.
    dtype
        Little-endian; one of the data types for columns.
    is_contiguous
        Whether `rows` gives views of the memory that was handed over, without copying.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows, and elements per row."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of what `rows` and `take` give."""

    @property
    def is_contiguous(self) -> bool:
        """Whether `rows` doesn't copy."""

    def rows(self, start: int, stop: int) -> Array:
        """The rows from start to stop - 1, C-contiguous; copies those rows at the most."""

    def take(self, positions: Ids) -> Array:
        """The rows at these positions, in their order, C-contiguous."""


class _Memory:
    """Rows of an array in memory (or mapped)."""

    def __init__(self, array: Array, dtype: np.dtype[Any]) -> None:
        self._array, self.dtype = array, dtype
        self.shape = array.shape
        self.is_contiguous = array.dtype == dtype and array.flags.c_contiguous

    def rows(self, start: int, stop: int) -> Array:
        """The rows from start to stop - 1."""
        return np.asarray(self._array[start:stop], self.dtype, order="C")

    def take(self, positions: Ids) -> Array:
        """The rows at these positions."""
        return np.asarray(self._array[positions], self.dtype, order="C")


class _Sliced:
    """Rows of a dataset that is read slice by slice, such as those of h5py."""

    is_contiguous = False

    def __init__(self, dataset: Any, dtype: np.dtype[Any]) -> None:
        self._dataset, self.dtype = dataset, dtype
        self.shape: tuple[int, ...] = tuple(int(n) for n in dataset.shape)

    def rows(self, start: int, stop: int) -> Array:
        """The rows from start to stop - 1."""
        return np.asarray(self._dataset[start:stop], self.dtype, order="C")

    def take(self, positions: Ids) -> Array:
        """The rows at these positions, read in ascending order; quick where they lie close together."""
        out = np.empty((len(positions), *self.shape[1:]), self.dtype)
        order = np.argsort(positions, kind="stable")
        ascending = positions[order]
        row_bytes = self.dtype.itemsize * max(1, math.prod(self.shape[1:]))
        window, gap = max(1, _WINDOW // row_bytes), max(1, _GAP // row_bytes)
        # Where a gap begins, that many positions are done, and a read ends.
        ends = np.append(np.flatnonzero(np.diff(ascending) > gap) + 1, len(ascending))
        done = 0
        for run_end in ends:
            while done < run_end:
                first = int(ascending[done])
                end = min(int(np.searchsorted(ascending, first + window)), int(run_end))
                rows = self.rows(first, int(ascending[end - 1]) + 1)
                out[order[done:end]] = rows[ascending[done:end] - first]
                done = end
        return out


class Picked:
    """Rows at some positions of an array, to be picked when they are written: array-like for `as_source`.

    Parameters
    ----------
    values
        Whatever `as_source` takes; it is neither copied nor read now.
    positions
        Which of its rows, in any order: integers from 0 to the number of rows - 1.
    what
        What it is, for messages.

    Raises
    ------
    UsageError
        `as_source` refuses `values`, or a position isn't one of theirs.
    """

    is_contiguous = False

    def __init__(self, values: Any, positions: Any, *, what: str = "picked rows") -> None:
        self.base = as_source(values, what=what)
        self.positions = as_ids(positions, f"{what}: positions")
        rows = self.base.shape[0]
        if len(self.positions):
            low, high = int(self.positions.min()), int(self.positions.max())
            if low < 0 or high >= rows:
                raise UsageError(f"{what}: positions go from 0 to {rows - 1}, found {low if low < 0 else high}")
        self.shape = (len(self.positions), *self.base.shape[1:])
        self.dtype = self.base.dtype

    def rows(self, start: int, stop: int) -> Array:
        """The rows at the positions from number start to stop - 1."""
        return self.base.take(self.positions[start:stop])

    def take(self, positions: Ids) -> Array:
        """The rows at the positions of these numbers."""
        return self.base.take(self.positions[positions])


def as_source(value: Any, *, what: str) -> Source2D:
    """What a caller handed over as the rows of a column.

    Parameters
    ----------
    value
        One value per row (1-D) or one row of elements per row (2-D): a numpy array of any strides and byte order,
        a memory map, a CPU tensor of torch, a dataset of h5py (read by slices, never whole), nested lists of
        numbers, or anything with ``__array__``, the buffer protocol or DLPack. An object with `shape`, `dtype` and
        slicing whose type says ``read_by_slices = True`` is read as a dataset is. `Picked` rows stay what they are.
    what
        What it is, for messages.

    Raises
    ------
    UsageError
        It is none of these, its data type can't be stored in a column, or it lives on another device.
    """
    if isinstance(value, Picked):
        return value
    if _is_dataset(value, what):
        source: Source2D = _Sliced(value, _stored(value.dtype, what))
    else:
        array = _as_numpy(value, what)
        source = _Memory(array, _stored(array.dtype, what))
    if len(source.shape) not in (1, 2):
        raise UsageError(
            f"{what}: needs one value per row (1-D) or elements per row (2-D), found shape {source.shape}; reshape it"
        )
    return source


def as_array(value: Any, *, what: str) -> Array:
    """A whole array of any shape, C-contiguous and little-endian; a 0-dim one stays so.

    Raises `UsageError` where `as_source` would, save that boolean and complex arrays are welcome.
    """
    array = _as_numpy(value[()] if _is_dataset(value, what) else value, what)
    return np.asarray(array, dtypes.dtype_of(dtypes.name_of(array.dtype, what=what)), order="C")


def as_target(value: Any, *, what: str) -> Array:
    """The memory of an array that is to be filled, as a numpy array of the same shape, strides and dtype.

    It is a numpy array or a CPU tensor of torch. Raises `UsageError` for anything else, for memory that can't be
    written to, and for an array in which two elements share memory, as those of a tensor that was expanded do.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.is_conj() or value.is_neg():
            raise UsageError(f"{what}: a tensor that is negated or conjugated lazily can't be filled; resolve it first")
        array = _from_torch(torch, value, what)
    elif isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray):
        array = np.asarray(value)
    else:
        raise UsageError(
            f"{what}: only a numpy array or a CPU tensor of torch can be filled, found {type(value).__name__}"
        )
    if not array.flags.writeable:
        raise UsageError(f"{what}: the array is read-only; give one that can be written to")
    reach = array.itemsize
    # What slicing and transposing make has strides that step over all that the smaller ones reach.
    for stride, length in sorted(zip(map(abs, array.strides), array.shape, strict=True)):
        if length > 1 and array.size:
            if stride < reach:
                raise UsageError(f"{what}: elements of it share memory; give an array with memory for each")
            reach += stride * (length - 1)
    return array


def as_ids(value: Any, what: str) -> Ids:
    """Row ids or keys as a contiguous 1-D int64 array, which may share the caller's memory.

    Any integer type will do as long as the values fit in int64; floating-point numbers and booleans won't.
    Raises `UsageError`.
    """
    if isinstance(value, range):
        try:
            return np.arange(value.start, value.stop, value.step, dtype=np.int64)
        except OverflowError:
            raise UsageError(f"{what} must fit in int64, found {value}") from None
    array = _as_numpy(value[()] if _is_dataset(value, what) else value, what)
    if array.ndim != 1:
        raise UsageError(f"{what} must be 1-D, found shape {array.shape}")
    return np.asarray(_integers(array, value, what), np.int64, order="C")


def as_flat_ids(value: Any, what: str) -> npt.NDArray[np.signedinteger]:
    """Row ids or keys of any shape as a contiguous 1-D array, int32 if they are, else int64; else as `as_ids`."""
    # What comes most often, thousands of times a second, is recognised at once.
    if type(value) is np.ndarray and value.dtype in (np.int64, np.int32) and value.flags.c_contiguous:
        return value.reshape(-1)
    if isinstance(value, range):
        return as_ids(value, what)
    array = _integers(_as_numpy(value[()] if _is_dataset(value, what) else value, what), value, what)
    kind: type[np.signedinteger] = np.int32 if array.dtype == np.int32 else np.int64
    flat: npt.NDArray[np.signedinteger] = np.asarray(array, kind, order="C").reshape(-1)
    return flat


def _integers(array: Array, value: Any, what: str) -> Array:
    """The array that was made of a value, if it holds integers that fit in int64; raises `UsageError`."""
    if not array.size and isinstance(value, Sequence):
        return np.empty(array.shape, np.int64)
    if array.dtype.kind not in "iu":
        raise UsageError(f"{what} must be integers that fit in int64, found {array.dtype}; convert them first")
    if array.dtype.kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise UsageError(f"{what} must fit in int64, found {array.max()}")
    return array


def _stored(dtype: Any, what: str) -> np.dtype[Any]:
    return dtypes.dtype_of(dtypes.name_of(dtype, column=True, what=what))


def _is_dataset(value: Any, what: str) -> bool:
    """Whether it is read by slices: a dataset of h5py, or an object whose type says ``read_by_slices = True``.

    Raises `UsageError` for a dataset that holds nothing to read.
    """
    if getattr(type(value), "read_by_slices", False) is True:
        return True
    h5py = sys.modules.get("h5py")
    if h5py is None or not isinstance(value, h5py.Dataset):
        return False
    if not value or value.shape is None:
        raise UsageError(f"{what}: the h5py dataset is closed or empty: {value!r}")
    return True


def _as_numpy(value: Any, what: str) -> Array:
    """A numpy array over the same memory where that can be, of whatever dtype and strides."""
    if isinstance(value, np.ma.MaskedArray):
        raise UsageError(f"{what}: a masked array has rows without values; fill it first")
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _from_torch(torch, value, what)
    _check_device(value, what)
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        return _from_dlpack(value, what)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise _no_array(value, what, error) from error
    if array.dtype == object:
        raise _no_array(value, what, "numpy makes an array of Python objects of it")
    return array


def _no_array(value: Any, what: str, why: object) -> UsageError:
    return UsageError(f"{what}: can't be read as an array of numbers, found {type(value).__name__}: {why}")


def _from_torch(torch: Any, tensor: Any, what: str) -> Array:
    if tensor.device.type != "cpu":
        raise _elsewhere(what, f"device {tensor.device}")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise UsageError(
            f"{what}: needs a dense tensor, found {tensor.layout}, {tensor.dtype}; use to_dense() or dequantize() first"
        )
    extended = {
        torch.bfloat16: (torch.int16, "bfloat16"),
        torch.float8_e4m3fn: (torch.uint8, "float8_e4m3fn"),
        torch.float8_e5m2: (torch.uint8, "float8_e5m2"),
    }.get(tensor.dtype)
    try:
        tensor = tensor.detach().resolve_conj().resolve_neg()
        if extended is None:
            array: Array = tensor.numpy()
            return array
        # numpy can't take these types, but it can take integers of their size.
        carrier, name = extended
        array = tensor.view(carrier).numpy()
        return array.view(dtypes.dtype_of(name))
    except (TypeError, RuntimeError, NotImplementedError) as error:
        raise _no_array(tensor, what, error) from error


def _elsewhere(what: str, where: str) -> UsageError:
    return UsageError(f"{what}: needs memory of this machine's CPU, found {where}; move it there first")


_CPU, _PINNED = 1, (3, 11)
"""DLPack's device types for ordinary memory, and for host memory pinned for CUDA and for ROCm."""


def _check_device(value: Any, what: str) -> None:
    if not hasattr(value, "__dlpack_device__"):
        return
    try:
        kind = int(value.__dlpack_device__()[0])
    except Exception:
        # A type that DLPack doesn't know, or no single device: let `__array__` say what it can do.
        return
    if kind != _CPU and kind not in _PINNED:
        raise _elsewhere(what, f"DLPack device type {kind}")


class _DLTensor(ctypes.Structure):
    """A tensor as `dlpack.h` lays it out."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    )


_UNSIGNED = 1
"""DLPack's type code of unsigned integers."""
_EXTENDED_CODES = {
    (4, 16): "bfloat16",
    (10, 8): "float8_e4m3fn",
    (12, 8): "float8_e5m2",
}
"""DLPack's type codes and bits of the types that numpy doesn't take."""


# A prototype of our own: setting argument types on the function itself would change it for everybody.
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class _Capsule:
    """A producer that hands a capsule on to numpy."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule


def _from_dlpack(value: Any, what: str) -> Array:
    try:
        capsule = value.__dlpack__()
        # The struct behind the capsule was made for its consumer, which may call the elements
        # integers of the same size.
        tensor = _DLTensor.from_address(_pointer_of(capsule, b"dltensor"))
        name = _EXTENDED_CODES.get((tensor.code, tensor.bits))
        if name is not None:
            tensor.code = _UNSIGNED
        array = np.from_dlpack(_Capsule(capsule))
    except (TypeError, ValueError, RuntimeError, BufferError, AttributeError) as error:
        raise _no_array(value, what, error) from error
    return array if name is None else array.view(dtypes.dtype_of(name))
