"""What the inference server's side does: first answers, look-ups while a trainer goes on, operators, many readers.

    python -m tools.bench.serving [PART ...] [--quick] [--dir DIR] [--repeat N] [--results FOLDER] [its options]

=========  =============================================================================================
open       from the call to the first answer, next to PyTorch and safetensors; the first batch of a hydration
live       look-ups while a trainer appends and a follower applies, next to the same without; freshness; torn rows
operators  embedding bags over the mapped table by PyTorch and FBGEMM, next to their own prepacked tensors
pool       bags of rows pooled by cnrfmt, next to the fused operators of PyTorch and FBGEMM
apply      taking in a delta, next to loading the whole again
update     bringing a module of FBGEMM to a new version, next to making it anew
processes  memory of many reader processes of one container, next to that of one
http       `cnrfmt serve` under load, while it switches versions
=========  =============================================================================================

Without a part, all run, one after the other. Options of one part alone go with that part alone: what it has says
``python -m tools.bench.serving PART --help``, and what its figures are the head of its module, ``_serving_PART.py``.
Nothing fails where a target is missed: a shared or busy machine proves nothing. Rows that are wrong do fail. With
``--results`` each report is also written to a file, ``serving_PART.txt``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tools.bench import training
from tools.progress import run_program

PARTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("open", "live", "operators", "pool", "apply", "update", "processes"), ("dir", "repeat")),
    "http": ("dir",),
}
"""The parts, and which of the common options each has, beside ``--quick``."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the parts that are named."""
    return training.main(argv, program="serving", parts_of=PARTS, about=__doc__)


if __name__ == "__main__":
    run_program(main)
