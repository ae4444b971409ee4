"""Single machine instructions that numba doesn't offer, each with a twin in plain Python.

None of them checks its bounds. Offsets count in elements of a one-dimensional contiguous array, and
loads and stores need no alignment, since rows and digests start wherever they start.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes, Words
from cnrfmt.kernels._jit import INTERPRETED, helper
from cnrfmt.kernels._numba import cgutils, intrinsic, ir, types

# Of XXH3: the stripes between two scramblings, what the lanes are multiplied by then, and where in
# the secret the part starts that meets the last stripe.
_BLOCK_STRIPES = 16
_SCRAMBLER = 0x9E3779B1
_LAST_PART = 121

if INTERPRETED:

    def pointer(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The elements of a contiguous array, in one dimension, without their owner.

        Loops hand it to helpers at no cost, whereas numba often counts the references to an array.
        """
        return array.reshape(array.size)

    def load_u16(data: Bytes, offset: int) -> np.uint16:
        """The number in these 2 bytes."""
        return np.uint16(data[offset : offset + 2].view(np.uint16)[0])

    def load_u32(data: Bytes, offset: int) -> np.uint32:
        """The number in these 4 bytes."""
        return np.uint32(data[offset : offset + 4].view(np.uint32)[0])

    def load_u64(data: Bytes, offset: int) -> np.uint64:
        """The number in these 8 bytes."""
        return np.uint64(data[offset : offset + 8].view(np.uint64)[0])

    def store(data: Bytes, offset: int, value: np.generic) -> None:
        """Put a number's bytes."""
        data[offset : offset + value.nbytes] = np.array([value]).view(np.uint8)

    def copy(out: Bytes, out_offset: int, data: Bytes, offset: int, size: int) -> None:
        """Copy bytes between arrays that don't overlap."""
        out[out_offset : out_offset + size] = data[offset : offset + size]

    def clear(out: Bytes, offset: int, size: int) -> None:
        """Set bytes to zero."""
        out[offset : offset + size] = 0

    def prefetch(data: npt.NDArray[Any], offset: int) -> None:
        """Ask for the cache line of an element that is read soon; any offset will do."""

    def ones(word: np.uint64) -> int:
        """The number of one bits."""
        return int(word).bit_count()

    def trailing_zeros(word: np.uint64) -> int:
        """The position of the lowest one bit; 64 if there is none."""
        return (int(word) & -int(word)).bit_length() - 1 if word else 64

    def bit_length(word: np.uint64) -> int:
        """The number of bits that it takes to write the word."""
        return int(word).bit_length()

    def multiply_fold(a: np.uint64, b: np.uint64) -> np.uint64:
        """Both halves of the 128-bit product, combined by exclusive or."""
        product = int(a) * int(b)
        return np.uint64(product >> 64 ^ product & 0xFFFF_FFFF_FFFF_FFFF)

    def xxh3_lanes(lanes: Words, data: Bytes, first: int, length: int, secret: Words, seed: np.uint64) -> None:
        """XXH3's long loop: `lanes`, set up by the caller, take in more than 64 bytes of `data`.

        Stripes of 64 bytes are added with an advancing part of the secret, the lanes are scrambled
        after each block, and the last 64 bytes are added once more under a part of their own.
        `secret` is the default one, of 24 words; the seed is added to its even words and taken from
        its odd ones.
        """
        words = secret.reshape(-1, 2) + np.array([seed, -seed])
        key = words.ravel().view(np.uint8)

        def add(at: int, key_at: int) -> None:
            stripe = data[at : at + 64].view(np.uint64)
            keyed = stripe ^ key[key_at : key_at + 64].view(np.uint64)
            lanes[:] += stripe.reshape(-1, 2)[:, ::-1].ravel()
            lanes[:] += (keyed & np.uint64(0xFFFF_FFFF)) * (keyed >> np.uint64(32))

        for stripe in range((length - 1) // 64):
            add(first + 64 * stripe, 8 * (stripe % _BLOCK_STRIPES))
            if stripe % _BLOCK_STRIPES == _BLOCK_STRIPES - 1:
                lanes[:] ^= (lanes >> np.uint64(47)) ^ key[-64:].view(np.uint64)
                lanes[:] *= np.uint64(_SCRAMBLER)
        add(first + length - 64, _LAST_PART)

else:
    _I64, _I128 = ir.IntType(64), ir.IntType(128)

    def _place(context: Any, builder: Any, array: Any, value: Any, offset: Any) -> Any:
        """A pointer to an element of an array, or from a pointer on."""
        if isinstance(array, types.CPointer):
            return builder.gep(value, [offset])
        data = context.make_array(array)(context, builder, value).data
        return builder.gep(data, [offset])

    @intrinsic
    def pointer(typing_context: Any, array: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return context.make_array(signature.args[0])(context, builder, args[0]).data

        return types.CPointer(array.dtype)(array), generate

    def _loader(result: Any) -> Any:
        def load(typing_context: Any, data: Any, offset: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                place = _place(context, builder, signature.args[0], *args)
                kind = context.get_value_type(result)
                return builder.load(builder.bitcast(place, kind.as_pointer()), align=1)

            return result(data, types.intp), generate

        return load

    load_u16 = intrinsic(_loader(types.uint16))
    load_u32 = intrinsic(_loader(types.uint32))
    load_u64 = intrinsic(_loader(types.uint64))

    @intrinsic
    def store(typing_context: Any, data: Any, offset: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            place = _place(context, builder, signature.args[0], *args[:2])
            builder.store(args[2], builder.bitcast(place, args[2].type.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(data, types.intp, value), generate

    @intrinsic
    def copy(typing_context: Any, out: Any, out_offset: Any, data: Any, offset: Any, size: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            to = _place(context, builder, signature.args[0], *args[:2])
            source = _place(context, builder, signature.args[2], *args[2:4])
            cgutils.raw_memcpy(builder, to, source, args[4], 1)
            return context.get_dummy_value()

        return types.void(out, types.intp, data, types.intp, types.intp), generate

    @intrinsic
    def clear(typing_context: Any, out: Any, offset: Any, size: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            place = _place(context, builder, signature.args[0], *args[:2])
            cgutils.memset(builder, place, args[2], 0)
            return context.get_dummy_value()

        return types.void(out, types.intp, types.intp), generate

    @intrinsic
    def prefetch(typing_context: Any, data: Any, offset: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = ir.IntType(8).as_pointer()
            i32 = ir.IntType(32)
            function = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(ir.VoidType(), [pointer, i32, i32, i32]),
                "llvm.prefetch.p0",
            )
            place = builder.bitcast(_place(context, builder, signature.args[0], *args), pointer)
            # For reading, to be kept in all levels of the cache, as data.
            builder.call(function, [place, i32(0), i32(3), i32(1)])
            return context.get_dummy_value()

        return types.void(data, types.intp), generate

    @intrinsic
    def ones(typing_context: Any, word: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.ctpop(args[0])

        return types.int64(types.uint64), generate

    @intrinsic
    def trailing_zeros(typing_context: Any, word: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.cttz(args[0], ir.IntType(1)(0))

        return types.int64(types.uint64), generate

    @intrinsic
    def bit_length(typing_context: Any, word: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.sub(_I64(64), builder.ctlz(args[0], ir.IntType(1)(0)))

        return types.int64(types.uint64), generate

    @intrinsic
    def multiply_fold(typing_context: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            product = builder.mul(*(builder.zext(arg, _I128) for arg in args))
            high = builder.trunc(builder.lshr(product, _I128(64)), _I64)
            return builder.xor(high, builder.trunc(product, _I64))

        return types.uint64(types.uint64, types.uint64), generate

    @intrinsic
    def xxh3_lanes(
        typing_context: Any,
        lanes: Any,
        data: Any,
        first: Any,
        length: Any,
        secret: Any,
        seed: Any,
    ) -> Any:
        # Written as vectors, so that the lanes stay in registers whatever the optimiser makes of
        # the code around; LLVM splits them where the machine's registers are narrower. The seed is
        # added to the secret as it is loaded: were the sum written to memory first, every load that
        # straddles two of its words would wait until all work before it is done.
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            i32, vector = ir.IntType(32), ir.VectorType(_I64, 8)
            arrays, length, seed = signature.args, args[3], args[5]
            lanes_at = _place(context, builder, arrays[0], args[0], _I64(0))
            lanes_at = builder.bitcast(lanes_at, vector.as_pointer())
            data_at = _place(context, builder, arrays[1], args[1], args[2])
            secret_at = _place(context, builder, arrays[4], args[4], _I64(0))
            # A stack slot, which LLVM turns into a register.
            total = cgutils.alloca_once_value(builder, builder.load(lanes_at, align=8))
            # What the seed adds to eight words of the secret from an even one on.
            even: Any = ir.Constant(vector, ir.Undefined)
            for lane in range(8):
                change = builder.neg(seed) if lane & 1 else seed
                even = builder.insert_element(even, change, i32(lane))
            odd = builder.neg(even)

            def load(base: Any, at: Any) -> Any:
                place = builder.bitcast(builder.gep(base, [at]), vector.as_pointer())
                return builder.load(place, align=1)

            def each(number: int) -> Any:
                return ir.Constant(vector, [number] * 8)

            def add(at: Any, part: Any) -> None:
                words = load(data_at, at)
                keyed = builder.xor(words, part)
                swapped = builder.shuffle_vector(
                    words,
                    ir.Constant(vector, ir.Undefined),
                    ir.Constant(ir.VectorType(i32, 8), [lane ^ 1 for lane in range(8)]),
                )
                product = builder.mul(builder.and_(keyed, each(0xFFFF_FFFF)), builder.lshr(keyed, each(32)))
                both = builder.add(swapped, product)
                builder.store(builder.add(builder.load(total), both), total)

            def add_stripes(first: Any, count: Any) -> None:
                change = cgutils.alloca_once(builder, vector)
                builder.store(even, change)
                with cgutils.for_range(builder, count, intp=_I64) as loop:
                    at = builder.add(first, builder.mul(loop.index, _I64(64)))
                    now = builder.load(change)
                    add(at, builder.add(load(secret_at, loop.index), now))
                    builder.store(builder.neg(now), change)

            block = _I64(64 * _BLOCK_STRIPES)
            before_last = builder.sub(length, _I64(1))
            blocks = builder.udiv(before_last, block)
            with cgutils.for_range(builder, blocks, intp=_I64) as loop:
                add_stripes(builder.mul(loop.index, block), _I64(_BLOCK_STRIPES))
                lane = builder.load(total)
                lane = builder.xor(lane, builder.lshr(lane, each(47)))
                part = builder.add(load(secret_at, _I64(_BLOCK_STRIPES)), even)
                builder.store(builder.mul(builder.xor(lane, part), each(_SCRAMBLER)), total)
            rest = builder.udiv(builder.urem(before_last, block), _I64(64))
            add_stripes(builder.mul(blocks, block), rest)
            # The last part lies across the words from an odd one on.
            word, byte = divmod(_LAST_PART, 8)
            low = builder.add(load(secret_at, _I64(word)), odd)
            high = builder.add(load(secret_at, _I64(word + 1)), even)
            low = builder.lshr(low, each(8 * byte))
            high = builder.shl(high, each(64 - 8 * byte))
            add(builder.sub(length, _I64(64)), builder.or_(low, high))
            builder.store(builder.load(total), lanes_at, align=8)
            return context.get_dummy_value()

        return types.void(lanes, data, types.intp, types.intp, secret, types.uint64), generate


_AHEAD = 16


@helper
def signed(word: np.uint64) -> int:
    """The signed number of the same bits."""
    return int(np.int64(word))


@helper
def unsigned(number: int) -> np.uint64:
    """The word of the same bits as a signed number."""
    return np.uint64(np.int64(number))


@helper
def prefetch_row(data: Bytes, offsets: npt.NDArray[np.int64], k: int, row_bytes: int) -> None:
    """While row k is worked on, ask for one that comes later."""
    if k + _AHEAD < len(offsets):
        for line in range(0, row_bytes, 64):
            prefetch(data, offsets[k + _AHEAD] + line)
