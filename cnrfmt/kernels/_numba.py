"""The parts of numba and of LLVM that kernels are made of.

They are imported here alone, as `Any`: they carry no types, or wrong ones.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

numba: Any = import_module("numba")
config: Any = import_module("numba.core.config")
cgutils: Any = import_module("numba.core.cgutils")
serialize: Any = import_module("numba.core.serialize")
compile_result: Any = import_module("numba.core.compiler").CompileResult
types: Any = import_module("numba.core.types")
llvmlite: Any = import_module("llvmlite")
binding: Any = import_module("llvmlite.binding")
ir: Any = import_module("llvmlite.ir")
_intrinsic: Any = import_module("numba.extending").intrinsic


def intrinsic(build: Callable[..., Any]) -> Any:
    """Make a function for kernels out of one that builds its code."""
    return _intrinsic(build)
