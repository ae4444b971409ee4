"""Tables as the tensors that torch's quantised embedding operators take: `Table.as_torch_quantized`."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.encodings.quantize import Quantize
from cnrfmt.errors import UsageError
from cnrfmt.integrations.operator_rows import (
    Conversion,
    Exceptions,
    Misfit,
    Origin,
    check_exceptions,
    compacting,
    fitting,
    put_newer,
    refusal,
    settled,
)
from cnrfmt.mapped_rows import MapVerify, StoredRows, private_map
from cnrfmt.mapped_rows import verify as verify_spans
from cnrfmt.memory import guarded
from cnrfmt.table import Table

if TYPE_CHECKING:
    import torch


class QuantizedRows(NamedTuple):
    """Rows for torch's quantised embedding operators, and where they are.

    Attributes
    ----------
    tensor
        uint8 (rows, row bytes), contiguous: codes, scale and bias of each row. It holds the memory behind it, and stays
        as it is when the checkpoint is closed or refreshed. Nobody may write to it where `origin` is ``"mapped"``: the
        memory is read-only, and the process would be ended by the operating system.
    bits
        Of a code. 8 is for ``torch.ops.quantized.embedding_bag_byte_rowwise_offsets``, 4 for
        ``embedding_bag_4bit_rowwise_offsets``, 2 for ``embedding_bag_2bit_rowwise_offsets``.
    origin
        ``"mapped"``: the file, without a copy. ``"overlay"``: a private map of the file, in which the pages with newer
        rows are copies. ``"copied"``: private memory with all rows, as they are stored. ``"quantised"``: private
        memory with all rows, which were quantised for it.
    exceptions
        The ids (or keys) of rows that are zeros here, because no such row can hold their values.
    verification
        Done when all bytes of the map are verified, or has the `DamagedError`; None where nobody verifies them.
    """

    tensor: torch.Tensor
    bits: int
    origin: Origin
    exceptions: Ids
    verification: Future[None] | None

    @property
    def mapped(self) -> bool:
        """Whether the file is mapped, and not read into private memory."""
        return self.origin in ("mapped", "overlay")


def quantized_rows(
    table: Table,
    *,
    overlay: bool = False,
    convert: bool | Quantize = False,
    exceptions: Exceptions = "refuse",
    verify: MapVerify | None = None,
) -> QuantizedRows:
    """The weights of a table as torch's quantised embedding operators take them, mapped from the file where they fit.

    They fit where one part has all rows in the layout ``"tail"`` with 8, 4 or 2 bits and whole rows as groups, as
    ``save(..., quantize=Quantize(8))`` writes them. Row i of the tensor is row i of a dense table, and that of
    ``table.keys[i]`` of a keyed one.

    Parameters
    ----------
    overlay
        Whether deltas may lie on top: the map is a private one then, and newer rows are put into it as they are stored.
        Only pages that hold such rows take memory of the process.
    convert
        Whether a table that doesn't fit is put into private memory: True, or how it is quantised (8, 4 or 2 bits). Rows
        whose codes can be kept (those of a table that was written in several parts, or in another layout with the
        same bits) are copied; others are quantised, with as many bits as they had, or 8.
    exceptions
        What becomes of rows that the encoding can't hold, of which the operators would read zeros: ``"refuse"`` raises
        `UsageError`, ``"ignore"`` leaves them zeros.
    verify
        When the digests of the mapped bytes are checked: ``"first"``, before this returns; ``"background"``, by a
        thread, and `QuantizedRows.verification` tells of it; or ``"none"``. None: first, unless the checkpoint was
        opened with ``verify="none"``. Rows in private memory are verified as the checkpoint reads them.

    Raises
    ------
    UsageError
        The table doesn't fit, or has rows that the encoding can't hold; the message says what can be done.
    DamagedError
        A piece isn't what was written.
    """
    table.view.check_open()
    budget = table.view.budget()
    with guarded(f"table {table.name!r}, rows for operators"):
        stored = fitting(table, "tail", budget)
        if isinstance(stored, StoredRows) and stored.newer and not overlay:
            advice = f"give overlay=True, which puts these rows into a private map, or {compacting(table)}"
            stored = Misfit(f"newer parts, {stored.newer} of them, have rows of it", advice)
        if isinstance(stored, Misfit):
            if not convert:
                raise refusal(table, "tail", stored)
            made = Conversion(table, "tail", convert, budget)
            memory = np.zeros(made.shape, np.uint8)
            origin, lost = made.fill(memory)
            check_exceptions(table, lost, exceptions)
            done = None if table.view.options.verify == "none" else settled()
            return QuantizedRows(tensor_of(memory), made.layout.bits, origin, lost, done)
        lost = stored.exceptions()
        check_exceptions(table, lost, exceptions)
        span = stored.span
        done = verify_spans([span], table, verify)
        rows, origin = span.data, "mapped"
        assert rows is not None
        if stored.newer:
            found = private_map([span])
            if found is None:
                raise UsageError(f"{span.segment.place}: only of a local file there is a private map")
            rows, origin = found[0], "overlay"
            put_newer(stored, rows.reshape(-1, stored.row_bytes))
        return QuantizedRows(tensor_of(rows.reshape(-1, stored.row_bytes)), stored.layout.bits, origin, lost, done)


class _Alias:
    """Memory of a read-only array, of which numpy is told that it may be written.

    Torch has no read-only tensors, and warns of each array that is one.
    """

    def __init__(self, array: Bytes) -> None:
        self._held = array
        self.__array_interface__: dict[str, Any] = {
            **array.__array_interface__,
            "data": (array.__array_interface__["data"][0], False),
        }


def tensor_of(rows: Bytes) -> torch.Tensor:
    """A tensor over an array, which it holds, be it read-only."""
    try:
        import torch
    except ImportError as error:
        raise UsageError(f"tensors need torch, which isn't installed: {error}; pip install 'cnrfmt[torch]'") from None
    return torch.from_numpy(rows if rows.flags.writeable else np.asarray(_Alias(rows)))
