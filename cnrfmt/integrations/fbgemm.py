"""FBGEMM's batched embedding bags for inference on a CPU, over tables mapped from one container.

Written for fbgemm-gpu-cpu 1.8.0, whose class keeps its weights in attributes of its own; other releases are refused.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from cnrfmt import sorted_ids
from cnrfmt.arrays import Bytes, Ids
from cnrfmt.checkpoint import Checkpoint
from cnrfmt.encodings.quantize import Quantize
from cnrfmt.errors import UsageError
from cnrfmt.format.encoding import RowwiseLayout
from cnrfmt.integrations.operator_rows import (
    Conversion,
    Exceptions,
    Misfit,
    Origin,
    check_exceptions,
    compacting,
    copy_into,
    fitting,
    keeps_codes,
    put_newer,
    refusal,
    settled,
)
from cnrfmt.integrations.torch_quantized import tensor_of
from cnrfmt.mapped_rows import MapVerify, StoredRows, private_map, stored_rows
from cnrfmt.mapped_rows import verify as verify_spans
from cnrfmt.memory import guarded
from cnrfmt.table import Table

TESTED = "1.8.0"
"""The release of fbgemm-gpu-cpu that this module is for."""
_ROW_ALIGNMENT = 16
_WIDTHS = 4
"""The class wants rows of a multiple of so many elements."""
_UPDATES = "fbgemm_gpu_embedding_inplace_ops.so"
"""The library of that release with the operator that updates rows; the package doesn't load it by itself."""

_ORIGINS: tuple[Origin, ...] = ("mapped", "overlay", "copied", "quantised")
"""What a module says whose tables have several: the last of these."""

PoolingMode = Literal["sum", "mean", "none"]
OutputType = Literal["float32", "float16", "bfloat16"]


@dataclass(frozen=True)
class _Served:
    """A table as a module has it."""

    table_id: bytes
    count: int
    keys: Ids | None
    layout: RowwiseLayout
    feature: int
    """The first feature that looks it up."""
    is_quantised: bool


class _Staged(NamedTuple):
    """Rows that are to be put in place, by position, and the exceptions of the whole table afterwards."""

    positions: Ids
    rows: Bytes
    exceptions: Ids


class Bags:
    """A module of FBGEMM over the rows of some tables. Made by `batched_embedding_bags`.

    Attributes
    ----------
    module
        The ``IntNBitTableBatchedEmbeddingBagsCodegen``: ``bags.module(indices, offsets)`` takes int32 or int64 tensors,
        feature by feature, and gives (bags, sum of dims), or (ids, dim) without pooling. It holds its memory, also when
        the checkpoint is closed. What is written to it stays in this process.
    tables
        The names of its tables, in order.
    version
        The version whose rows it has.
    origin
        ``"mapped"``: the rows of all tables are in a private map of the file. ``"overlay"``: the same, and the pages
        with rows that deltas had written are copies. ``"copied"``, ``"quantised"``: they are in private memory, as they
        are stored, or some of them quantised for it.
    exceptions
        By table, the ids (or keys) of rows that are zeros here, because no such row can hold their values.
    verification
        Done when all bytes of the map are verified, or has the `DamagedError`; None where nobody verifies them.
    """

    def __init__(
        self,
        module: Any,
        ck: Checkpoint,
        served: dict[str, _Served],
        origin: Origin,
        accept: Exceptions,
        exceptions: dict[str, Ids],
        verification: Future[None] | None,
    ) -> None:
        self.module = module
        self.version = ck.version
        self.origin = origin
        self.exceptions, self.verification = exceptions, verification
        self._served, self._accept, self._container = served, accept, ck.manifest.container_id

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of its tables, in order."""
        return tuple(self._served)

    def update(self, ck: Checkpoint) -> dict[str, int]:
        """Brings the module to the version that a checkpoint has open, newer or older.

        The rows that changed between the two are put in their places as they are stored, by FBGEMM's operator
        ``emb_inplace_update``. Where one of them can't be had so, nothing is changed. A look-up that runs at the same
        time may see rows half old and half new: call it between batches. Pages that are written take memory.

        Parameters
        ----------
        ck
            A checkpoint of the same container, such as the one that it was made of after ``refresh``.

        Returns
        -------
        dict
            How many rows of each table were put in their places.

        Raises
        ------
        UsageError
            It is another container; a table has other rows or keys than before, or was dropped; or rows are stored with
            other bits than the module's. Make new bags then.
        DamagedError
            The bytes read break a rule of the specification.
        """
        if ck.manifest.container_id != self._container:
            raise UsageError(f"{ck.path}: it isn't the container that these bags were made of; make new ones of it")
        with guarded(f"{ck.path}, rows that changed"):
            staged = {name: self._changed(was, ck[name]) for name, was in self._served.items()}
        for name, found in staged.items():
            if found is not None:
                self._put(self._served[name], found.positions, found.rows)
                self.exceptions[name] = found.exceptions
        self.version = ck.version
        return {name: 0 if found is None else len(found.positions) for name, found in staged.items()}

    def _changed(self, was: _Served, table: Table) -> _Staged | None:
        """The rows that changed, as the module has rows; None if none did."""
        budget, what = table.view.budget(), f"{table.view.container.path}, table {table.name!r}"
        if table.schema.table_id != was.table_id:
            raise UsageError(f"{what}: it is a new table of the same name; make new bags")
        keys = table.keys
        is_same = len(table) == was.count
        if not (is_same and (was.keys is None or keys is None or np.array_equal(was.keys, keys))):
            names = "rows" if keys is None else "keys"
            raise UsageError(f"{what}: it has other {names} than these bags, {len(table)} now; make new bags")
        ids = table.changed(self.version).rows
        if not len(ids):
            return None
        if was.is_quantised:
            raise UsageError(f"{what}: its rows were quantised for these bags, none are as stored; make new bags")
        stored = stored_rows(table, budget)
        if isinstance(stored, str) or not keeps_codes(stored.layout, was.layout):
            reason = stored if isinstance(stored, str) else f"they have {stored.layout.bits} bits"
            raise UsageError(f"{what}: its rows can't be put in place as they are stored: {reason}; make new bags")
        lost = stored.exceptions()
        check_exceptions(table, sorted_ids.intersection(lost, ids), self._accept)
        shape = len(ids), was.layout.row_bytes(table.shape[1])
        budget.take(shape[0] * shape[1], f"{what}, rows that changed")
        rows = np.zeros(shape, np.uint8)
        copy_into(stored, was.layout, ids, rows)
        return _Staged(stored.positions(ids), rows, lost)

    def _put(self, was: _Served, positions: Ids, rows: Bytes) -> None:
        torch, module = _load().torch, self.module
        count, row_bytes = rows.shape
        torch.ops.fbgemm.emb_inplace_update(
            dev_weights=module.weights_host,
            uvm_weights=module.weights_uvm,
            weights_placements=module.weights_placements,
            weights_offsets=module.weights_offsets,
            weights_tys=module.weights_tys,
            D_offsets=module.D_offsets,
            update_weights=torch.from_numpy(rows.reshape(-1)),
            update_table_indices=torch.full((count,), was.feature, dtype=torch.int32),
            update_row_indices=torch.from_numpy(np.array(positions)),
            update_offsets=torch.arange(0, (count + 1) * row_bytes, row_bytes),
            row_alignment=_ROW_ALIGNMENT,
            lxu_cache_weights=module.lxu_cache_weights,
            lxu_cache_locations=None,
        )


def batched_embedding_bags(
    ck: Checkpoint,
    tables: Sequence[str] | None = None,
    *,
    features: Sequence[str] | None = None,
    pooling_mode: PoolingMode = "sum",
    output_dtype: OutputType = "float32",
    convert: bool | Quantize = False,
    exceptions: Exceptions = "refuse",
    verify: MapVerify | None = None,
    **settings: Any,
) -> Bags:
    """FBGEMM's module for look-ups in several quantised tables at once, over the tables of a checkpoint.

    The rows stay where the file is mapped, if all of them lie in one file and each table has one part with all its rows
    in the layout ``"head"`` with 8, 4 or 2 bits (``save(..., quantize=Quantize(8, layout="head"))``); rows of newer
    parts are put over them, as they are stored. Index i of a dense table is its row i, of a keyed one that of
    ``table.keys[i]``.

    Parameters
    ----------
    tables
        Names; all if None. Each has a dim that is a multiple of 4.
    features
        The table of each feature, by name; the tables themselves if None.
    pooling_mode
        ``"sum"``, ``"mean"`` or ``"none"``; the last takes tables of one dim.
    output_dtype
        Of the tensor that comes out: ``"float32"``, ``"float16"`` or ``"bfloat16"``.
    convert
        Whether tables that can't be mapped are all put into private memory: True, or how they are quantised (8, 4 or 2
        bits). Rows whose codes can be kept are copied, others are quantised, with as many bits as they had, or 8.
    exceptions
        What becomes of rows that the encoding can't hold, of which the operators would read zeros: ``"refuse"`` raises
        `UsageError`, ``"ignore"`` leaves them zeros.
    verify
        When the digests of the mapped bytes are checked: ``"first"``, before this returns; ``"background"``, by a
        thread, and `Bags.verification` tells of it; or ``"none"``. None: first, unless the checkpoint was opened with
        ``verify="none"``.
    settings
        Further arguments of the class, such as ``bounds_check_mode``.

    Raises
    ------
    UsageError
        Another release of fbgemm-gpu-cpu than 1.8.0; a table that doesn't fit, or has rows that the encoding can't
        hold. The message says what can be done.
    MissingKeyError
        A table that isn't there.
    DamagedError
        A piece isn't what was written.
    """
    loaded = _load()
    found = [ck[name] for name in (ck if tables is None else tables)]
    names = [table.name for table in found]
    features = names if features is None else list(features)
    _check(found, names, features, pooling_mode, output_dtype)
    budget = ck.view.budget()
    with guarded(f"{ck.path}, rows for operators"):
        stored = [fitting(table, "head", budget) for table in found]
        misfit = next(((t, s) for t, s in zip(found, stored, strict=True) if isinstance(s, Misfit)), None)
        fits = [s for s in stored if isinstance(s, StoredRows)]
        mapped = private_map([s.span for s in fits]) if misfit is None else None
        if misfit is None and mapped is None:
            misfit = found[0], Misfit("the tables don't lie in one file", compacting(found[0]))
        if misfit is not None and not convert:
            raise refusal(misfit[0], "head", misfit[1])
        made = [Conversion(table, "head", convert, budget) for table in found] if mapped is None else []
        layouts = [m.layout for m in made] or [s.layout for s in fits]
        module = loaded.module(found, layouts, [names.index(f) for f in features], pooling_mode, output_dtype, settings)
        lost: dict[str, Ids] = {}
        origins: list[Origin]
        if mapped is not None:
            for table, rows in zip(found, fits, strict=True):
                lost[table.name] = rows.exceptions()
                check_exceptions(table, lost[table.name], exceptions)
            done = verify_spans([s.span for s in fits], found[0], verify)
            buffer, offsets = mapped
            for rows, place in zip(fits, offsets, strict=True):
                put_newer(rows, buffer[place : place + rows.span.length].reshape(-1, rows.row_bytes))
            origins = ["overlay" if rows.newer else "mapped" for rows in fits]
        else:
            buffer, offsets, origins = np.zeros(module.host_size, np.uint8), module.weights_physical_offsets, []
            for table, one, place in zip(found, made, offsets, strict=True):
                count, row_bytes = one.shape
                origin, lost[table.name] = one.fill(buffer[place : place + count * row_bytes].reshape(one.shape))
                check_exceptions(table, lost[table.name], exceptions)
                origins.append(origin)
            done = None if ck.view.options.verify == "none" else settled()
    _give(module, buffer, offsets)
    served = {
        t.name: _Served(t.schema.table_id, len(t), t.keys, layout, features.index(t.name), origin == "quantised")
        for t, layout, origin in zip(found, layouts, origins, strict=True)
    }
    return Bags(module, ck, served, max(origins, key=_ORIGINS.index), exceptions, lost, done)


def _check(tables: list[Table], names: list[str], features: list[str], pooling_mode: str, output_dtype: str) -> None:
    if not names or len(set(names)) != len(names):
        raise UsageError(f"tables: give some, each once; found {names}")
    if set(features) != set(names):
        raise UsageError(f"features: each is of one of the tables, and each table has one; found {features} of {names}")
    for what, given, legal in (
        ("pooling_mode", pooling_mode, ("sum", "mean", "none")),
        ("output_dtype", output_dtype, ("float32", "float16", "bfloat16")),
    ):
        if given not in legal:
            raise UsageError(f"{what} is one of {', '.join(map(repr, legal))}, found {given!r}")
    for table in tables:
        if table.shape[1] % _WIDTHS or not len(table):
            raise UsageError(
                f"table {table.name!r}: FBGEMM's class takes tables with rows, and a dim that is a multiple of "
                f"{_WIDTHS}; found {table.shape[0]} x {table.shape[1]}"
            )
    dims = {table.shape[1] for table in tables}
    if pooling_mode == "none" and len(dims) > 1:
        raise UsageError(f"without pooling, FBGEMM's class takes tables of one dim, found {sorted(dims)}")


def _give(module: Any, buffer: Bytes, offsets: Sequence[int]) -> None:
    """Has a module that has no weights yet read them from a buffer, where each table begins at an offset."""
    module.host_size = len(buffer)
    module.weights_physical_offsets = list(offsets)
    module.initialize_logical_weights_placements_and_offsets()
    module.weights_host = tensor_of(buffer)
    module.weight_initialized = True


class _Loaded:
    """What is needed of FBGEMM."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        package = "fbgemm_gpu.split_"
        self._types = importlib.import_module(f"{package}embedding_configs").SparseType
        self._common = importlib.import_module(f"{package}table_batched_embeddings_ops_common")
        inference = importlib.import_module(f"{package}table_batched_embeddings_ops_inference")
        self._class = inference.IntNBitTableBatchedEmbeddingBagsCodegen

    def module(
        self,
        tables: list[Table],
        layouts: list[RowwiseLayout],
        features: list[int],
        pooling_mode: str,
        output_dtype: str,
        settings: dict[str, Any],
    ) -> Any:
        """The module, without weights."""
        types, host = self._types, self._common.EmbeddingLocation.HOST
        codes = {8: types.INT8, 4: types.INT4, 2: types.INT2}
        specs = [(t.name, *t.shape, codes[x.bits], host) for t, x in zip(tables, layouts, strict=True)]
        own = {
            "device": "cpu",
            "row_alignment": _ROW_ALIGNMENT,
            "feature_table_map": features,
            "pooling_mode": self._common.PoolingMode[pooling_mode.upper()],
            "output_dtype": {"float32": types.FP32, "float16": types.FP16, "bfloat16": types.BF16}[output_dtype],
        }
        if taken := {*own, "weight_lists"} & set(settings):
            raise UsageError(f"settings: {', '.join(sorted(taken))} can't be given here")
        return self._class(specs, **own, **settings)


def _load() -> _Loaded:
    """FBGEMM, in the release that this module is for; raises `UsageError`."""
    advice = f"pip install fbgemm-gpu-cpu=={TESTED}"
    try:
        torch = importlib.import_module("torch")
        package = importlib.import_module("fbgemm_gpu")
    except ImportError as error:
        raise UsageError(f"embedding bags need FBGEMM and torch, which aren't there: {error}; {advice}") from None
    version = str(package.__version__).split("+")[0]
    if version != TESTED:
        raise UsageError(
            f"embedding bags are filled by what fbgemm-gpu-cpu {TESTED} has inside; found {version}; {advice}"
        )
    if not hasattr(torch.ops.fbgemm, "emb_inplace_update"):
        assert package.__file__ is not None
        torch.ops.load_library(os.path.join(os.path.dirname(package.__file__), _UPDATES))
    return _Loaded(torch)
