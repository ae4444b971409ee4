"""How row-wise codes are chosen: a method finds each group's scale and bias, then the codes follow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cnrfmt.arrays import Array, Bytes, Ids
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

    def encode(self, rows: Array, positions: Ids | None = None, out: Bytes | None = None) -> Encoded:
        """Encodes rows, or those at `positions` of them, into `out` if there is one.

        Rows from anywhere are read once, as far as the cache goes. `out` has the bytes of the rows that are encoded.
        """
        rows = np.asarray(rows, np.float32, order="C")
        count, width = len(rows) if positions is None else len(positions), rows.shape[1]
        if out is None:
            out = np.empty(count * self.layout.row_bytes(width), np.uint8)
        codes = out.reshape(count, self.layout.row_bytes(width))
        bad = np.empty(count, np.uint8)
        errors = np.empty(count, np.float64)
        if self.layout.placement == "tail" and self.scheme.method == "asymmetric":
            self._encode_fused(rows, positions, codes, bad, errors)
        else:
            self._encode_slices(rows, positions, codes, bad, errors)
        codes[take_out(errors, bad, self.scheme.bound)] = 0
        return Encoded(out, np.flatnonzero(bad).astype(np.int64, copy=False), *total(errors))

    def _encode_fused(self, rows: Array, positions: Ids | None, out: Bytes, bad: Bytes, errors: Array) -> None:
        """What takes little time is done row by row, from memory to errors."""
        from cnrfmt.kernels import rowwise

        if self.layout.bits == 8:
            rowwise.encode_measured_8(rows, positions, out, bad, errors)
        else:
            rowwise.encode_measured_nbit(rows, positions, self.layout.bits, out, bad, errors)

    def _encode_slices(self, rows: Array, positions: Ids | None, out: Bytes, bad: Bytes, errors: Array) -> None:
        """One slice after the other."""
        from cnrfmt.kernels import errors as kernel
        from cnrfmt.kernels import gather, layouts

        count, width = len(out), rows.shape[1]
        step = max(1, min(_SLICE // (4 * width), count))
        coder, places = RowwiseCoder(self.layout), geometry(self.layout, width)
        flat = rows.reshape(-1).view(np.uint8)
        room = np.empty((2, step, width), np.float32)
        parameters = np.empty((2, step, self.layout.groups(width)), np.float32)
        for start in range(0, count, step):
            stop = min(start + step, count)
            these, again = room[:, : stop - start]
            if positions is None:
                these = rows[start:stop]
            else:
                gather.gather(flat, positions, start, 4 * width, these.view(np.uint8))
            scales, biases = parameters[:, : stop - start]
            some, flags = out[start:stop], bad[start:stop]
            self._choose(these, places[1], scales, biases, flags)
            layouts.encode_codes(these, scales, biases, flags, *places, some)
            coder.decode_range(some.reshape(-1), 0, again)
            kernel.row_errors(these, again, errors[start:stop])

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
