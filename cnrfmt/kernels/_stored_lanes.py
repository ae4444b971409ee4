"""Sixteen elements of a row as they are stored, made into float32 lanes, each with a twin in numpy.

They read exactly the bytes of these elements, so that a row may end where a mapped file does. Nothing checks bounds.
"""

from __future__ import annotations

import platform
from typing import Any

import numpy as np

from cnrfmt.arrays import Bytes
from cnrfmt.kernels._halves import BFLOAT16, FLOAT16, FLOAT32, _has_instructions
from cnrfmt.kernels._jit import INTERPRETED
from cnrfmt.kernels._lanes import LANES, Lanes, Mask
from cnrfmt.kernels._numba import binding, cgutils, config, intrinsic, ir, types

if INTERPRETED:

    def float_reader(kind: int) -> Any:
        """The reader of numbers of a kind."""

        def read(data: Bytes, at: int) -> Lanes:
            """The numbers from data[at] on."""
            if kind == FLOAT32:
                return data[at : at + 4 * LANES].view(np.float32).copy()
            stored = data[at : at + 2 * LANES]
            if kind == FLOAT16:
                return stored.view(np.float16).astype(np.float32)
            return (stored.view(np.uint16).astype(np.uint32) << 16).view(np.float32)

        return read

    def code_reader(bits: int) -> Any:
        """The reader of codes of so many bits."""

        def read(data: Bytes, at: int) -> Lanes:
            """The codes from data[at] on, as numbers."""
            stream = np.unpackbits(data[at : at + LANES * bits // 8], bitorder="little").reshape(LANES, bits)
            return np.packbits(stream, axis=1, bitorder="little").ravel().astype(np.float32)

        return read

    def code_finder(bits: int) -> Any:
        """What looks codes of 2 or 4 bits up, whose values are in a table; None where `code_reader` is as quick."""

        def find(data: Bytes, at: int, table: Lanes) -> Lanes:
            """Values of the codes from data[at] on, not yet `ordered`; `table` has those of all again and again."""
            found: Lanes = table[read(data, at).astype(np.int64)]
            return found

        read = code_reader(bits)

        return find if bits in (2, 4) else None

    def ordered(bits: int) -> Any:
        """What puts lanes of values that were found into the order of their codes."""
        return lambda lanes: lanes

    def all_codes(bits: int) -> Any:
        """What gives every code of so many bits as a number, again and again."""
        return lambda: (np.arange(LANES) % (1 << bits)).astype(np.float32)

    def moved(data: Bytes, by: int) -> Bytes:
        """The bytes from a place on, given those of a pointer."""
        return data[by:]

    def row_or(rows: Bytes, other: Bytes, place: int, row_bytes: int) -> Bytes:
        """The bytes of a row, given those of pointers, or the other's where the place is negative."""
        return rows[place * row_bytes :] if place >= 0 else other

    def is_above(x: Lanes, most: Lanes) -> Mask:
        """Where x is greater, or is NaN, and `most` isn't NaN."""
        above: Mask = ~(x <= most) & ~np.isnan(most)
        return above

else:
    from cnrfmt.kernels._emit import each, load, place, shuffle, unpack
    from cnrfmt.kernels._lanes import _LANES, _MASK
    from cnrfmt.kernels._lookups import _widen

    _I16, _I32, _I64, _F32 = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
    _VECTOR = ir.VectorType(_F32, LANES)
    _HAS_PERMUTE = (
        not (config.CPU_NAME or config.CPU_FEATURES)
        and platform.machine() in ("x86_64", "AMD64")
        and bool(binding.get_host_cpu_features().get("avx512f"))
    )

    def _reader(emit: Any) -> Any:
        @intrinsic
        def read(typing_context: Any, data: Any, at: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                return emit(builder, place(context, builder, signature.args[0], *args))

            return _LANES(data, types.intp), generate

        return read

    def float_reader(kind: int) -> Any:
        def emit(builder: Any, base: Any) -> Any:
            if kind == FLOAT32:
                return load(builder, base, _I64(0), _VECTOR)
            if kind == FLOAT16 and _has_instructions():
                return builder.fpext(load(builder, base, _I64(0), ir.VectorType(ir.HalfType(), LANES)), _VECTOR)
            stored = load(builder, base, _I64(0), ir.VectorType(_I16, LANES))
            if kind == FLOAT16:
                return _widen(builder, stored)
            assert kind == BFLOAT16
            wide = builder.zext(stored, ir.VectorType(_I32, LANES))
            return builder.bitcast(builder.shl(wide, each(_I32, LANES, 16)), _VECTOR)

        return _reader(emit)

    def code_reader(bits: int) -> Any:
        def emit(builder: Any, base: Any) -> Any:
            return builder.sitofp(unpack(builder, base, _I64(0), bits, LANES), _VECTOR)

        return _reader(emit)

    def code_finder(bits: int) -> Any:
        if bits not in (2, 4) or not _HAS_PERMUTE:
            return None
        words = bits // 2
        # All words are put beside each other again and again, which costs nothing when they are loaded.
        places = [lane % words for lane in range(LANES)]
        shifts = [lane // words * bits for lane in range(LANES)]

        @intrinsic
        def find(typing_context: Any, data: Any, at: Any, table: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                base = place(context, builder, signature.args[0], *args[:2])
                loaded = load(builder, base, _I64(0), ir.VectorType(_I32, words))
                codes = shuffle(builder, loaded, loaded, places)
                codes = builder.lshr(codes, ir.Constant(codes.type, shifts))
                # It looks at the lowest four bits alone.
                kind = ir.FunctionType(_VECTOR, [_VECTOR, ir.VectorType(_I32, LANES)])
                function = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512.permvar.sf.512")
                return builder.call(function, [args[2], codes])

            return _LANES(data, types.intp, _LANES), generate

        return find

    def ordered(bits: int) -> Any:
        words = bits // 2
        each_word = LANES // words

        @intrinsic
        def order(typing_context: Any, lanes: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                places = [lane % each_word * words + lane // each_word for lane in range(LANES)]
                return shuffle(builder, args[0], args[0], places)

            return _LANES(_LANES), generate

        return order

    def all_codes(bits: int) -> Any:
        @intrinsic
        def give(typing_context: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                return ir.Constant(_VECTOR, [float(lane % (1 << bits)) for lane in range(LANES)])

            return _LANES(), generate

        return give

    @intrinsic
    def is_above(typing_context: Any, x: Any, most: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            x, most = args
            return builder.and_(builder.fcmp_unordered(">", x, most), builder.fcmp_ordered("ord", most, most))

        return _MASK(_LANES, _LANES), generate

    @intrinsic
    def moved(typing_context: Any, data: Any, by: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.gep(args[0], [args[1]])

        return data(data, types.intp), generate

    @intrinsic
    def row_or(typing_context: Any, rows: Any, other: Any, place: Any, row_bytes: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            rows, other, place, row_bytes = args
            row = builder.gep(rows, [builder.mul(place, row_bytes)])
            return builder.select(builder.icmp_signed("<", place, _I64(0)), other, row)

        return rows(rows, other, types.intp, types.intp), generate
