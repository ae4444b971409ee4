"""What the grid encoding costs: its codes, saves on it, and restores of chains on it.

    python -m tools.bench.grid [PART ...] [--quick] [--dir DIR] [--repeat N] [--results FOLDER] [its options]

=======  ===============================================================================================
codes    GB/s from rows to codes and back, of each payload, next to a copy of the rows; random rows
stall    how long a save holds the trainer up, next to one in 4 bits per row, and to a copy of the table
restore  chains of increments next to their compacted baseline, and to files of float32
=======  ===============================================================================================

Without a part, all run, one after the other. Options of one part alone go with that part alone: what it has says
``python -m tools.bench.grid PART --help``, and what its figures are the head of its module, ``_grid_PART.py``.
Nothing fails where a target is missed: a shared or busy machine proves nothing. With ``--results`` each report is also
written to a file, ``grid_PART.txt``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tools.bench import training
from tools.progress import run_program

PARTS: dict[str, tuple[str, ...]] = dict.fromkeys(("codes", "stall", "restore"), ("dir", "repeat"))
"""The parts, and which of the common options each has, beside ``--quick``."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the parts that are named."""
    return training.main(argv, program="grid", parts_of=PARTS, about=__doc__)


if __name__ == "__main__":
    run_program(main)
