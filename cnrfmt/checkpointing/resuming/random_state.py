"""The random state of a process as dense entries, and back: sequences go on as if they had never been interrupted.

Entries are JSON and bytes, never pickles. A state is put back only when all of it was found sound: a generator of numpy
that is given a position behind its buffer would read there.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cnrfmt.errors import UsageError

PREFIX = "cnrfmt:random/"
"""How the names of the entries begin."""

_PYTHON = f"{PREFIX}python"
_NUMPY = f"{PREFIX}numpy"
_GENERATOR = f"{PREFIX}numpy/"
_TORCH = f"{PREFIX}torch"
_CUDA = f"{PREFIX}torch/cuda/"

_BITS = {
    "MT19937": {"state": {"key": ("uint32", 624), "pos": 625}},
    "PCG64": {"state": {"state": 1 << 128, "inc": 1 << 128}, "has_uint32": 2, "uinteger": 1 << 32},
    "PCG64DXSM": {"state": {"state": 1 << 128, "inc": 1 << 128}, "has_uint32": 2, "uinteger": 1 << 32},
    "Philox": {
        "state": {"counter": ("uint64", 4), "key": ("uint64", 2)},
        "buffer": ("uint64", 4),
        "buffer_pos": 5,
        "has_uint32": 2,
        "uinteger": 1 << 32,
    },
    "SFC64": {"state": {"state": ("uint64", 4)}, "has_uint32": 2, "uinteger": 1 << 32},
}
"""What the states of numpy's bit generators are made of: numbers below a bound, and arrays of a type and length."""


def capture(generators: Mapping[str, np.random.Generator] | None = None) -> dict[str, Any]:
    """The random state of this process, as dense entries.

    It holds that of Python's `random`, of numpy's global functions, of the numpy generators that are handed over (by
    a name for each), and, where torch was imported, of its CPU generator and of each CUDA device that is in use.
    Generators that are made elsewhere, and the keys of jax, are values of the program's own: they go with its dense
    state. Raises `UsageError` for a generator that is none of numpy's.
    """
    version, words, gauss = random.getstate()
    found: dict[str, Any] = {
        _PYTHON: {"version": version, "words": list(words), "gauss": None if gauss is None else gauss.hex()}
    }
    legacy: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - those who use it want it to go on
    if legacy["bit_generator"] in _BITS:
        found[_NUMPY] = {
            "bits": _packed_bits(legacy),
            "has_gauss": int(legacy["has_gauss"]),
            "gauss": float(legacy["gauss"]).hex(),
        }
    for name, generator in (generators or {}).items():
        found[_GENERATOR + name] = _packed_bits(_bit_generator(name, generator).state)
    torch = sys.modules.get("torch")
    if torch is not None:
        found[_TORCH] = torch.get_rng_state().numpy().tobytes()
        # Asking a device that nobody uses would set it up, and take memory there.
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            for device in range(torch.cuda.device_count()):
                found[f"{_CUDA}{device}"] = torch.cuda.get_rng_state(device).numpy().tobytes()
    return found


def reinstate(dense: Mapping[str, Any], generators: Mapping[str, np.random.Generator] | None = None) -> list[str]:
    """Puts back what `capture` gave, and says what: ``"python"``, ``"numpy"``, ``"numpy/<name>"``, ``"torch"`` ...

    Entries of other names are passed over, and so are states of what isn't here: of torch where it wasn't imported,
    of devices that this machine lacks, of generators that aren't handed over. Raises `UsageError`, and sets nothing,
    where an entry is no state, or where a generator is handed over that has none among the entries.
    """
    todo: dict[str, Callable[[], object]] = {}
    if _PYTHON in dense:
        todo[_PYTHON] = _python(dense[_PYTHON])
    if _NUMPY in dense:
        todo[_NUMPY] = _legacy(dense[_NUMPY])
    for name, generator in (generators or {}).items():
        if _GENERATOR + name not in dense:
            known = [n.removeprefix(_GENERATOR) for n in dense if n.startswith(_GENERATOR)]
            raise UsageError(
                f"generator {name!r}: no state of it was saved, only of {', '.join(map(repr, known)) or 'none'}; "
                "hand it to capture under the same name"
            )
        todo[_GENERATOR + name] = _generator(name, generator, dense[_GENERATOR + name])
    torch = sys.modules.get("torch")
    if torch is not None:
        for name in dense:
            if name == _TORCH or name.startswith(_CUDA):
                setter = _torch(torch, name, dense[name])
                if setter is not None:
                    todo[name] = setter
    for setter in todo.values():
        setter()
    return [name.removeprefix(PREFIX) for name in todo]


def _python(entry: Any) -> Callable[[], object]:
    words = _field(entry, "words", _PYTHON)
    if not (isinstance(words, list) and len(words) == 625 and all(_is_below(n, 1 << 32) for n in words)):
        raise _foreign(_PYTHON, "625 words of 32 bits")
    if words[-1] > 624:
        raise _foreign(_PYTHON, "a place among 624 words")
    gauss = _field(entry, "gauss", _PYTHON)
    state = (_field(entry, "version", _PYTHON), tuple(words), None if gauss is None else _float(gauss, _PYTHON))
    try:
        random.Random().setstate(state)
    except (TypeError, ValueError, OverflowError) as error:
        raise _foreign(_PYTHON, f"a state of this Python ({error})") from None
    return lambda: random.setstate(state)


def _legacy(entry: Any) -> Callable[[], object]:
    state = _parsed_bits(_field(entry, "bits", _NUMPY), _NUMPY)
    has_gauss = _field(entry, "has_gauss", _NUMPY)
    if not _is_below(has_gauss, 2):
        raise _foreign(_NUMPY, "has_gauss of 0 or 1")
    state |= {"has_gauss": has_gauss, "gauss": _float(_field(entry, "gauss", _NUMPY), _NUMPY)}
    found: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - as above
    if found["bit_generator"] != state["bit_generator"]:
        raise UsageError(
            f"dense[{_NUMPY!r}] is the state of {state['bit_generator']}, and numpy's global functions draw from "
            f"{found['bit_generator']} here; call np.random.set_bit_generator first"
        )
    return lambda: np.random.set_state(state)  # noqa: NPY002 - as above


def _generator(name: str, generator: np.random.Generator, entry: Any) -> Callable[[], object]:
    bits = _bit_generator(name, generator)
    state = _parsed_bits(entry, _GENERATOR + name)
    if state["bit_generator"] != type(bits).__name__:
        raise UsageError(
            f"generator {name!r}: the state of a {state['bit_generator']} was saved, and it draws from "
            f"{type(bits).__name__}; make it with the same bit generator"
        )
    return lambda: setattr(bits, "state", state)


def _torch(torch: Any, name: str, entry: Any) -> Callable[[], object] | None:
    if not isinstance(entry, bytes):
        raise _foreign(name, "bytes")
    state = torch.from_numpy(np.frombuffer(bytearray(entry), np.uint8))
    device = None
    if name != _TORCH:
        number = name.removeprefix(_CUDA)
        if not (number.isascii() and number.isdecimal()):
            raise _foreign(name, "the number of a device")
        if not torch.cuda.is_available() or int(number) >= torch.cuda.device_count():
            return None
        device = f"cuda:{int(number)}"
    try:
        # A generator of its own says whether it takes the state, before the one that counts is asked to.
        torch.Generator(device or "cpu").set_state(state)
    except (RuntimeError, TypeError) as error:
        raise _foreign(name, f"a state of this torch ({error})") from None
    if device is None:
        return lambda: torch.set_rng_state(state)
    return lambda: torch.cuda.set_rng_state(state, device)


def _bit_generator(name: str, generator: Any) -> Any:
    bits = getattr(generator, "bit_generator", None)
    if type(bits).__name__ not in _BITS or not isinstance(bits, np.random.BitGenerator):
        raise UsageError(
            f"generator {name!r}: needs a Generator of numpy over one of {', '.join(_BITS)}, found {generator!r}"
        )
    return bits


def _packed_bits(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a bit generator as JSON: integers in hex, since they have up to 128 bits."""

    def packed(shape: Any, value: Any) -> Any:
        if isinstance(shape, dict):
            return {key: packed(inner, value[key]) for key, inner in shape.items()}
        return [f"{n:x}" for n in value.tolist()] if isinstance(shape, tuple) else f"{int(value):x}"

    kind = state["bit_generator"]
    return {"kind": kind, "state": packed(_BITS[kind], state)}


def _parsed_bits(entry: Any, name: str) -> dict[str, Any]:
    """The state that an entry holds, every number within its bounds; raises `UsageError`."""

    def number(value: Any, bound: int) -> int:
        if isinstance(value, str) and 0 < len(value) <= 32 and not value.strip("0123456789abcdef"):
            found = int(value, 16)
            if found < bound:
                return found
        raise _foreign(name, f"a number in hex below {bound:x}")

    def parsed(shape: Any, value: Any) -> Any:
        if isinstance(shape, dict):
            return {key: parsed(inner, _field(value, key, name)) for key, inner in shape.items()}
        if isinstance(shape, int):
            return number(value, shape)
        dtype, length = shape
        if not isinstance(value, list) or len(value) != length:
            raise _foreign(name, f"{length} numbers")
        return np.array([number(n, 1 << 8 * np.dtype(dtype).itemsize) for n in value], dtype)

    kind = _field(entry, "kind", name)
    if not isinstance(kind, str) or kind not in _BITS:
        raise _foreign(name, f"a bit generator of {', '.join(_BITS)}")
    return {"bit_generator": kind, **parsed(_BITS[kind], _field(entry, "state", name))}


def _field(entry: Any, key: str, name: str) -> Any:
    if not isinstance(entry, dict) or key not in entry:
        raise _foreign(name, f"an object with {key!r}")
    return entry[key]


def _float(value: Any, name: str) -> float:
    if isinstance(value, str) and len(value) <= 32:
        try:
            return float.fromhex(value)
        except (ValueError, OverflowError):
            pass
    raise _foreign(name, "a number as float.hex gives it")


def _is_below(value: Any, bound: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < bound


def _foreign(name: str, expected: str) -> UsageError:
    return UsageError(
        f"dense[{name!r}] is no random state that cnrfmt has saved: expected {expected}; nothing was set. Leave the "
        "entry out to go on with other random numbers"
    )
