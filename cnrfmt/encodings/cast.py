"""The cast encoding: float32 rows rounded to half precision or to bfloat16 (specification, section 6.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cnrfmt.arrays import Array, Bytes, Ids
from cnrfmt.encodings.base import Coder, Encoded
from cnrfmt.encodings.errors import KINDS, measured, take_out, total
from cnrfmt.format.encoding import CastLayout
from cnrfmt.format.scheme import Scheme

_BFLOAT16 = 2.0**-8
"""The greatest relative error of numbers that are rounded to bfloat16."""


@dataclass(frozen=True)
class CastCoder(Coder):
    """Rows of narrower floats; see `Coder` for what each method does."""

    layout: CastLayout

    def decode_range(self, data: Bytes, offset: int, out: Array, position: int = 0, books: Array | None = None) -> None:
        """Widens consecutive rows."""
        from cnrfmt.kernels import casts as kernel

        kernel.decode_range(data, offset, KINDS[self.layout.stored], out)

    def decode_rows(
        self,
        data: Bytes,
        offsets: Ids,
        out: Array,
        targets: Ids,
        positions: Ids | None = None,
        books: Array | None = None,
    ) -> None:
        """Widens rows from anywhere."""
        from cnrfmt.kernels import casts as kernel

        kernel.decode_rows(data, offsets, KINDS[self.layout.stored], out, targets)


@dataclass(frozen=True)
class CastEncoder:
    """Rounds to the nearest, ties to even; rows with what isn't finite, before or after, can't be held."""

    layout: CastLayout
    scheme: Scheme

    @property
    def step(self) -> int:
        """Each row by itself."""
        return 1

    def encode(self, rows: Array) -> Encoded:
        """Rounds."""
        from cnrfmt.kernels import casts as kernel

        rows = np.asarray(rows, np.float32, order="C")
        out = np.empty((len(rows), self.layout.row_bytes(rows.shape[1])), np.uint8)
        bad = np.empty(len(rows), np.uint8)
        kernel.encode_rows(rows, KINDS[self.layout.stored], out, bad)
        decoded = np.empty_like(rows)
        kernel.decode_range(out.reshape(-1), 0, KINDS[self.layout.stored], decoded)
        errors = measured(rows, decoded)
        bound = self.scheme.bound
        if self.layout.stored == "bfloat16":
            # Its nearest numbers are as close as that, but for the least numbers of all.
            bound = _BFLOAT16 if bound is None else min(bound, _BFLOAT16)
        out[take_out(errors, bad, bound)] = 0
        return Encoded(out.reshape(-1), np.flatnonzero(bad).astype(np.int64, copy=False), *total(errors))
