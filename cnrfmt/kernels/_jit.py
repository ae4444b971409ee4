"""The decorators of all kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np

from cnrfmt.kernels._numba import config, numba

P = ParamSpec("P")
R = TypeVar("R")

INTERPRETED: bool = bool(config.DISABLE_JIT)
"""Whether kernels run as plain Python, under ``NUMBA_DISABLE_JIT=1``."""

# No fast-math flag and no contraction: the same bits come out on every machine.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}


def _interpreted(function: Callable[P, R]) -> Callable[P, R]:
    """Plain Python that keeps quiet where compiled code does.

    numpy's scalars wrap around, overflow and divide by zero as the machine's numbers do, but warn.
    """

    @functools.wraps(function)
    def quiet(*args: P.args, **kwargs: P.kwargs) -> R:
        with np.errstate(all="ignore"):
            return function(*args, **kwargs)

    return quiet


def jit(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a kernel when it is first called, or load it from the cache.

    There is one compilation per combination of argument types, and a read-only array is another type
    than a writable one.
    """
    if INTERPRETED:
        return _interpreted(function)
    from cnrfmt.kernels._cache import KernelCache

    dispatcher = numba.njit(**_OPTIONS)(function)
    dispatcher._cache = KernelCache(function)
    kernel: Callable[P, R] = dispatcher
    return kernel


def helper(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function that kernels alone call: it becomes part of each of them."""
    if INTERPRETED:
        return function
    options = {**_OPTIONS, "no_cpython_wrapper": True, "forceinline": True}
    compiled: Callable[P, R] = numba.njit(**options)(function)
    return compiled
