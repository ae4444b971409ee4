"""How row-wise codes are chosen: a method finds each group's scale and bias, then the codes follow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cnrfmt.arrays import Array, Bytes
from cnrfmt.encodings.base import Encoded
from cnrfmt.encodings.errors import KINDS, take_out, total
from cnrfmt.encodings.rowwise import RowwiseCoder, geometry
from cnrfmt.format.encoding import RowwiseLayout
from cnrfmt.format.scheme import Scheme

_SLICE = 128 << 10
"""Bytes of rows that are taken from their parameters to their errors at a time, so that they stay in the cache."""


@dataclass(frozen=True)
class RowwiseEncoder:
    """Float32 rows to codes.

    Rows that have what isn't finite in them, or need parameters that aren't, can't be held. Under the layout ``"tail"``
    and the method ``"asymmetric"`` the bytes are those that inference operators would have made themselves.
    """

    layout: RowwiseLayout
    scheme: Scheme

    @property
    def step(self) -> int:
        """Each row by itself."""
        return 1

    def encode(self, rows: Array) -> Encoded:
        """Encodes a slice after the other."""
        from cnrfmt.kernels import errors as kernel

        rows = np.asarray(rows, np.float32, order="C")
        count, width = rows.shape
        out = np.empty((count, self.layout.row_bytes(width)), np.uint8)
        bad = np.empty(count, np.uint8)
        errors = np.empty(count, np.float64)
        step = max(1, _SLICE // (4 * width))
        decoded = np.empty((min(step, count), width), np.float32)
        coder = RowwiseCoder(self.layout)
        for start in range(0, count, step):
            some = slice(start, min(start + step, count))
            self._encode(rows[some], out[some], bad[some])
            again = decoded[: some.stop - start]
            coder.decode_range(out[some].reshape(-1), 0, again)
            kernel.row_errors(rows[some], again, errors[some])
        out[take_out(errors, bad, self.scheme.bound)] = 0
        return Encoded(out.reshape(-1), np.flatnonzero(bad).astype(np.int64, copy=False), *total(errors))

    def _encode(self, rows: Array, out: Bytes, bad: Bytes) -> None:
        from cnrfmt.kernels import layouts, rowwise

        layout, width = self.layout, rows.shape[1]
        if layout.placement == "tail" and self.scheme.method == "asymmetric":
            if layout.bits == 8:
                rowwise.encode_rows_8(rows, out, bad)
            else:
                rowwise.encode_rows_nbit(rows, layout.bits, out, bad)
            return
        shape = len(rows), layout.groups(width)
        scales, biases = np.empty(shape, np.float32), np.empty(shape, np.float32)
        places = geometry(layout, width)
        self._choose(rows, places[1], scales, biases, bad)
        layouts.encode_codes(rows, scales, biases, bad, *places, out)

    def _choose(self, rows: Array, group: int, scales: Array, biases: Array, bad: Bytes) -> None:
        """The parameters of each row's groups."""
        from cnrfmt.kernels import lsq, search, uniform

        bits, scheme = self.layout.bits, self.scheme
        scale_kind = KINDS[self.layout.scale]
        if self.layout.bias is None:
            uniform.choose_symmetric(rows, group, bits, scale_kind, scales, bad)
            return
        kinds = scale_kind, KINDS[self.layout.bias]
        bins, ratio = scheme.num_bins or 0, scheme.ratio or 0.0
        if scheme.method == "symmetric":
            uniform.choose_symmetric_biased(rows, group, bits, *kinds, scales, biases, bad)
        elif scheme.method == "asymmetric":
            uniform.choose_asymmetric(rows, group, bits, *kinds, scales, biases, bad)
        elif scheme.method == "adaptive":
            search.choose_adaptive(rows, group, bits, *kinds, bins, ratio, scales, biases, bad)
        else:
            lsq.choose_lsq(rows, group, bits, *kinds, scheme.starts or 1, bins, ratio, scales, biases, bad)
