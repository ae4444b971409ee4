"""The fuzz targets: a function of bytes each, which raises only where the library breaks a promise.

None of this imports atheris, so that the corpus is replayed wherever the tests run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tools.fuzz import containers, foreign, integers, mutations, parsers, rows

CORPUS = Path(__file__).resolve().parent / "corpus"


@dataclass(frozen=True)
class Target:
    """One target.

    Attributes
    ----------
    run
        What is done with an input.
    share
        Its part of all executions, in thousandths.
    most_bytes
        How long inputs may become.
    mutate
        A mutation that knows the input's structure, used for half of the new inputs.
    """

    run: Callable[[bytes], None]
    share: int
    most_bytes: int
    mutate: mutations.Mutation | None = None


TARGETS = {
    "strict_json": Target(parsers.json_text, 145, 1024, mutations.json_text),
    "file_header": Target(parsers.file_header, 40, 256),
    "slot": Target(parsers.slot, 50, 256),
    "segment_header": Target(parsers.segment_header, 40, 128),
    "trailer": Target(parsers.trailer, 50, 128),
    "manifest": Target(parsers.manifest, 120, 4096, mutations.after_prefix(112)),
    "toc": Target(parsers.toc, 120, 4096, mutations.after_prefix(8)),
    "schema": Target(parsers.schema, 60, 1024, mutations.after_prefix(1)),
    "layout": Target(parsers.layout, 40, 256, mutations.json_text),
    "row_index": Target(rows.row_index, 100, 1024),
    "encoded_rows": Target(rows.encoded_rows, 20, 512),
    "integer_part": Target(integers.integer_part, 20, 1024),
    "rans_head": Target(integers.rans_head, 20, 512),
    "dense": Target(rows.dense, 40, 512),
    "notes": Target(parsers.notes, 40, 1024, mutations.json_text),
    "npy_header": Target(foreign.npy_header, 40, 512),
    "npz_file": Target(foreign.npz_file, 10, 1024),
    "safetensors_file": Target(foreign.safetensors_file, 30, 1024),
    "resealed": Target(containers.resealed, 12, 16384, mutations.packed),
    "single_file": Target(containers.single_file, 3, 65536),
}


def corpus_of(name: str) -> list[Path]:
    """The committed inputs of a target."""
    return sorted(path for path in (CORPUS / name).iterdir() if path.is_file())
