"""What the tests of rows for operators share: real tables, and what the operators themselves make of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fbgemm_gpu  # noqa: F401  Registers the operators of torch.ops.fbgemm.
import numpy as np
import torch
from safetensors import safe_open

import cnrfmt

NAMES = {8: "byte", 4: "4bit", 2: "2bit"}


def trained_rows(path: Path, count: int = 3000, dim: int = 64) -> Any:
    with safe_open(path, "np") as file:
        return np.ascontiguousarray(file.get_tensor("embedding.weight")[:count, :dim].astype(np.float32))


def prepacked(rows: Any, bits: int) -> Any:
    """Torch's own tensor of rows."""
    name = {8: "byte", 4: "4bit", 2: "2bit"}[bits]
    return getattr(torch.ops.quantized, f"embedding_bag_{name}_prepack")(torch.from_numpy(rows))


def bags(tensor: Any, bits: int, seed: int = 0) -> Any:
    """200 bags of 7 rows, summed by torch's operator."""
    ids = torch.from_numpy(np.random.default_rng(seed).integers(0, len(tensor), 1400))
    operator = getattr(torch.ops.quantized, f"embedding_bag_{NAMES[bits]}_rowwise_offsets")
    return operator(tensor, ids, torch.arange(0, 1400, 7))


def is_inside(tensor: Any, whole: Any) -> bool:
    """Whether the memory of a tensor is within that of an array."""
    start = whole.__array_interface__["data"][0]
    return bool(start <= tensor.data_ptr() and tensor.data_ptr() + tensor.numel() <= start + whole.nbytes)


def mapping(ck: cnrfmt.Checkpoint) -> Any:
    """The map of the first segment."""
    return next(iter(ck.view.segments.values())).data


def damage(path: Path, ck: cnrfmt.Checkpoint, name: str, row: int) -> None:
    """Flips a bit of a row in the first segment of a single file."""
    table = ck[name]
    segment = next(iter(ck.view.segments.values()))
    (part,) = segment.toc.by_table[table.schema.table_id].parts
    start: int = segment.source.start[1] + segment.toc.sections[part.section][0] + row * part.row_bytes
    with path.open("r+b") as file:
        file.seek(start)
        (byte,) = file.read(1)
        file.seek(start)
        file.write(bytes([byte ^ 1]))
