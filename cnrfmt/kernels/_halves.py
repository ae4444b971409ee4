"""Half precision and bfloat16, which numba doesn't compute with: conversion from and to float32.

Where the processor has instructions for half precision they are used; elsewhere the bits are put
together. Both give the same: the nearest half, ties to even, infinite from 65520 on, and exact floats.
"""

from __future__ import annotations

import platform
from typing import Any

import numpy as np

from cnrfmt.kernels._jit import INTERPRETED, helper
from cnrfmt.kernels._numba import binding, config, intrinsic, ir, types

# The kinds of a row's parameters, as kernels are told them.
NO_PARAMETER, FLOAT32, FLOAT16, BFLOAT16 = -1, 0, 1, 2


@helper
def half_by_bits(x: np.float32) -> np.uint16:
    """The nearest half-precision number, as its bits."""
    bits = np.int64(np.float32(x).view(np.uint32))
    sign, bits = (bits >> 16) & 0x8000, bits & 0x7FFFFFFF
    if bits >= 0x47800000:  # 65536
        return np.uint16(sign | (0x7E00 if bits > 0x7F800000 else 0x7C00))
    if bits >= 0x38800000:  # The least normal half.
        return np.uint16(sign | ((bits + 0xFFF + ((bits >> 13) & 1) - 0x38000000) >> 13))
    # One unit of a denormal half is one of a float32 between 0.5 and 1.
    shifted = np.uint32(bits).view(np.float32) + np.float32(0.5)
    return np.uint16(sign | (np.int64(np.float32(shifted).view(np.uint32)) - 0x3F000000))


@helper
def float_by_bits(half: np.uint16) -> np.float32:
    """The float32 of the same value as a half-precision number, which is given as its bits."""
    sign, bits = (np.int64(half) & 0x8000) << 16, np.int64(half) & 0x7FFF
    if bits >= 0x7C00:
        return np.uint32(sign | 0x7F800000 | (bits & 0x3FF) << 13).view(np.float32)
    if bits >= 0x400:
        return np.uint32(sign | ((bits << 13) + 0x38000000)).view(np.float32)
    tiny = np.float32(bits) * np.float32(2.0**-24)
    return -tiny if sign else tiny


def _has_instructions() -> bool:
    if INTERPRETED or config.CPU_NAME or config.CPU_FEATURES:
        return False
    # On other machines LLVM would call a function of the C runtime, which may not be there.
    return platform.machine() == "aarch64" or bool(binding.get_host_cpu_features().get("f16c"))


if _has_instructions():

    @intrinsic
    def half_of(typing_context: Any, x: Any) -> Any:
        """As `half_by_bits`."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            half = builder.fptrunc(args[0], ir.HalfType())
            return builder.bitcast(half, ir.IntType(16))

        return types.uint16(types.float32), generate

    @intrinsic
    def float_of(typing_context: Any, half: Any) -> Any:
        """As `float_by_bits`."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())

        return types.float32(types.uint16), generate

else:
    half_of, float_of = half_by_bits, float_by_bits


@helper
def bfloat_of(x: np.float32) -> np.uint16:
    """The nearest bfloat16, ties to even, as its bits; x isn't NaN."""
    bits = np.int64(np.float32(x).view(np.uint32))
    return np.uint16((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)


@helper
def float_of_bfloat(bits: np.uint16) -> np.float32:
    """The float32 of the same value as a bfloat16, which is given as its bits."""
    return np.uint32(np.int64(bits) << 16).view(np.float32)


@helper
def round_to(x: np.float32, kind: int) -> np.float32:
    """The nearest number of a kind, ties to even, as a float32; x isn't NaN."""
    rounded: np.float32 = x
    if kind == FLOAT16:
        rounded = float_of(half_of(x))
    elif kind == BFLOAT16:
        rounded = float_of_bfloat(bfloat_of(x))
    return rounded
