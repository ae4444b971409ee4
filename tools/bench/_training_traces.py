"""What checkpoints write and keep, for each policy and number of bits, in real files: the paper's comparison.

    python -m tools.bench._training_traces [--only orders,movielens,zipf,classes] [--bits 32,8,4,3,2] [--dir DIR]
        [--rows 10000000] [--dim 16] [--intervals N] [--seed 0] [--json FILE] [--plot FILE] [--quick]

A model is trained once, and after each interval each of the managers, one for each policy and number of bits, makes
its checkpoint of it into a directory of its own. 32 bits are raw float32, optimizer state included; the rows of fewer
bits have the optimizer state in logarithmic codes of 12 bits. One checkpoint is kept, and what it doesn't need is
removed at once.

*Written* is the size of the files that a checkpoint adds, segments and manifests; its parts are those of
`cnrfmt.sizes`, and they are summed up against the files each time. *Kept* is the size of all files when what isn't
needed is gone; *while written* is their size just before that, when the old and the new are there. At the end, all
policies must give the same weights back to the last bit, and those of 32 bits must be the model's.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

import cnrfmt
from cnrfmt import CheckpointManager, Event, TableData
from cnrfmt.checkpointing.costs.traffic import SPREAD
from cnrfmt.checkpointing.policies import NAMED
from cnrfmt.sizes import KEYS, commit_sizes
from tools.bench._figures import say
from tools.bench._training_data import Orders, Ratings, Source, Zipf
from tools.progress import at_least

POLICIES = tuple(NAMED)
BITS = (32, 8, 4, 3, 2)
RAW = 32
_NEAR = 1 / 256
"""The relative error of logarithmic codes of 12 bits."""
PAPER = "the paper, from 8 bits (more than 20 restores) to 2 (one): 6 to 17 times less written, 2.5 to 8 less kept"

Results = dict[str, Any]
Make = Callable[[argparse.Namespace], Source]

SOURCES: dict[str, Make] = {
    "orders": lambda a: Orders(a.intervals or 16, seed=a.seed, quick=a.quick),
    "movielens": lambda a: Ratings(a.intervals or 16, seed=a.seed, quick=a.quick),
    "zipf": lambda a: Zipf(a.intervals or 12, rows=a.rows, dim=a.dim, seed=a.seed, quick=a.quick),
    "classes": lambda a: Zipf(a.intervals or 12, rows=a.rows, dim=a.dim, spread=SPREAD, seed=a.seed, quick=a.quick),
}


class Run:
    """The checkpoints of one policy and number of bits.

    Attributes
    ----------
    policy, bits
        What it is.
    kinds
        ``"baseline"``, ``"delta"`` or ``"since-baseline"`` of each checkpoint.
    written, kept, most
        Bytes of files that each has added, that were left behind it, and that were there at once.
    parts
        Where the bytes that were written went, by the keys of `cnrfmt.sizes`.
    """

    def __init__(self, folder: Path, policy: str, bits: int) -> None:
        self.policy, self.bits = policy, bits
        self.path = folder / f"{policy}-{bits}"
        self.kinds: list[str] = []
        self.written: list[int] = []
        self.kept: list[int] = []
        self.most: list[int] = []
        self.parts: list[dict[str, int]] = []
        self._files: dict[str, int] = {}
        self._manager = CheckpointManager(
            self.path, policy=policy, bits=bits, keep=1, grace=0, on_event=self._on, flush_on_sigterm=False
        )

    def checkpoint(self, step: int, source: Source, touched: Mapping[str, Any], tables: Mapping[str, Any]) -> None:
        """Makes one, and measures it when it is durable and what it has replaced is gone."""
        for table, ids in touched.items():
            self._manager.track(table, ids)
        self._manager.save(step, tables, dense=source.dense()).wait()
        self._manager.wait()
        self._files = self._list()
        self.kept.append(sum(self._files.values()))
        parts = commit_sizes(self.path)
        if len(self.written) != step + 1 or sum(parts.values()) != self.written[-1]:
            raise SystemExit(f"{self.path}: checkpoint {step}: parts {parts} aren't the files written {self.written}")
        self.parts.append(parts)

    def _on(self, event: Event) -> None:
        if event.kind in ("merged", "failed"):
            raise SystemExit(f"{self.path}: {event}")
        if event.kind == "committed":
            # Nothing is removed yet.
            files = self._list()
            self.kinds.append(str(event.checkpoint))
            self.written.append(sum(size for name, size in files.items() if name not in self._files))
            self.most.append(sum(files.values()))

    def _list(self) -> dict[str, int]:
        return {str(p.relative_to(self.path)): p.stat().st_size for p in self.path.rglob("*") if p.is_file()}

    def close(self) -> None:
        """Ends the run; its files stay."""
        self._manager.close()

    def as_json(self) -> dict[str, Any]:
        """What was measured, checkpoint by checkpoint."""
        names = ("policy", "bits", "kinds", "written", "kept", "most", "parts")
        return {name: getattr(self, name) for name in names}


def measure(source: Source, folder: Path, bits: Sequence[int], policies: Sequence[str] = POLICIES) -> Results:
    """Trains, with checkpoints of every policy and number of bits; what they took, as JSON can say it."""
    start = time.time()
    runs = [Run(folder, policy, b) for b in bits for policy in policies]
    loss, rows, touched_rows = [], [], []
    tables: dict[str, TableData] = {}
    for interval in range(source.intervals + 1):
        say(f"traces: {source.name}, interval {interval}, {time.time() - start:.0f} s")
        loss.append(source.train(interval))
        touched, tables = source.touched(), source.tables()
        rows.append({name: len(data.values) for name, data in tables.items()})
        touched_rows.append(sum(map(len, touched.values())))
        for run in runs:
            run.checkpoint(interval, source, touched, tables)
    for run in runs:
        run.close()
    _compare(runs, tables)
    return {
        "name": source.name,
        "about": source.about,
        "dim": max(data.values.shape[1] for data in tables.values()),
        "rows": rows,
        "touched": touched_rows,
        "loss": loss,
        "float32": sum(_nbytes(data) for data in tables.values()),
        "runs": [run.as_json() for run in runs],
        "seconds": time.time() - start,
    }


def _nbytes(data: TableData) -> int:
    keys = 0 if data.keys is None else data.keys.nbytes
    return int(data.values.nbytes + sum(column.nbytes for column in data.columns.values()) + keys)


def _compare(runs: Sequence[Run], tables: Mapping[str, TableData]) -> None:
    """That a restore gives what it should; ends the program where it doesn't.

    Weights are those that a full checkpoint of as many bits gives; of 32 bits, those of the model, as are optimizer
    states. In codes of 12 bits, these are near it.
    """
    model = {name: _sorted(data) for name, data in tables.items()}
    first: dict[int, dict[str, TableData]] = {RAW: model}
    for run in sorted(runs, key=lambda run: -run.bits):
        found = _loaded(run)
        wanted = first.setdefault(run.bits, found)
        for name, data in model.items():
            near = 0.0 if run.bits == RAW else _NEAR
            same = data.keys is None or np.array_equal(data.keys, found[name].keys)
            same &= np.array_equal(wanted[name].values, found[name].values)
            same &= all(np.allclose(found[name].columns[c], x, rtol=near, atol=0) for c, x in data.columns.items())
            if not same:
                raise SystemExit(f"{run.path}: table {name!r} isn't what it should be")
        first = {bits: tables for bits, tables in first.items() if bits == run.bits}


def _loaded(run: Run) -> dict[str, TableData]:
    return cnrfmt.load(run.path, columns=True)


def _sorted(data: TableData) -> TableData:
    if data.keys is None:
        return data
    order = np.argsort(data.keys)
    return TableData(data.values[order], {n: c[order] for n, c in data.columns.items()}, data.keys[order])


# The report


def run_of(found: Results, policy: str, bits: int) -> dict[str, Any]:
    """The run of a policy and a number of bits."""
    return next(r for r in found["runs"] if (r["policy"], r["bits"]) == (policy, bits))


def times_less(found: Results, run: Mapping[str, Any], what: str) -> float:
    """How many times less than full checkpoints in float32.

    ``"written"``: per interval, the first baseline left out; ``"in all"``: with it; ``"kept"``, ``"most"``: at most.
    """
    full = run_of(found, "full", RAW)
    if what == "written":
        return float(mean(full["written"][1:]) / mean(run["written"][1:]))
    if what == "in all":
        return float(sum(full["written"]) / sum(run["written"]))
    return float(max(full[what]) / max(run[what]))


_HEAD = (
    *("policy", "bits", "written per interval", "times less", "with first baseline"),
    *("kept at most", "times less", "kept on average", "while written", "times less", "baselines at"),
)


def report(found: Results) -> str:
    """A table of what was measured on one source, and one of its parts."""
    runs = found["runs"]
    rows = [sum(tables.values()) for tables in found["rows"]]
    shares = [t / n for t, n in zip(found["touched"][1:], rows[1:], strict=True)]
    loss = found["loss"]
    lines = [
        f"{found['name']}: {found['about']}",
        f"{rows[0]:,} rows at the first baseline, {rows[-1]:,} at the end: "
        + ", ".join(f"{n:,} of {name}" for name, n in found["rows"][-1].items()),
        f"{len(shares)} intervals; each changed {min(shares):.1%} to {max(shares):.1%} of the rows, {mean(shares):.1%} "
        f"on average; loss {loss[1]:.3g} in the first one, {loss[-1]:.3g} in the last",
        f"all as float32 in memory at the end: {_size(found['float32'])}; times less: than full checkpoints of 32 bits",
        "",
    ]
    table = [_HEAD, *(_row(found, run) for run in runs)]
    parts = [("policy", "bits", *KEYS), *(_parts(run) for run in runs)]
    share = "where the bytes of the intervals went, % of what was written"
    return "\n".join([*lines, _grid(table), "", share, _grid(parts), ""])


def _row(found: Results, run: Mapping[str, Any]) -> tuple[str, ...]:
    baselines = [str(n) for n, kind in enumerate(run["kinds"]) if n and kind == "baseline"]
    return (
        run["policy"],
        str(run["bits"]),
        _size(mean(run["written"][1:])),
        f"{times_less(found, run, 'written'):.2f}",
        f"{times_less(found, run, 'in all'):.2f}",
        _size(max(run["kept"])),
        f"{times_less(found, run, 'kept'):.2f}",
        _size(mean(run["kept"])),
        _size(max(run["most"])),
        f"{times_less(found, run, 'most'):.2f}",
        "each" if run["policy"] == "full" else ", ".join(baselines) or "none",
    )


def _parts(run: Mapping[str, Any]) -> tuple[str, ...]:
    total = sum(run["written"][1:])
    sums = (sum(parts[key] for parts in run["parts"][1:]) for key in KEYS)
    return (run["policy"], str(run["bits"]), *(f"{100 * n / total:.2f}" for n in sums))


def _grid(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[n]) for line in lines) for n in range(len(lines[0]))]
    shown = [" | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([shown[0], "-|-".join("-" * w for w in widths), *shown[1:]])


def _size(nbytes: float) -> str:
    return f"{nbytes / 1e6:.4g} MB"


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints the report, writes the JSON and the picture if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default=",".join(SOURCES), help="what is trained, comma-separated: %(default)s")
    parser.add_argument("--bits", default=",".join(map(str, BITS)), help="32, and others: %(default)s")
    parser.add_argument("--dir", type=Path, help="where containers go; up to 13 GB are used")
    parser.add_argument("--rows", type=at_least(1), default=10**7, help="rows of a trace of Zipf's law: %(default)s")
    parser.add_argument("--dim", type=at_least(1), default=16, help="their elements: %(default)s")
    parser.add_argument("--intervals", type=at_least(1), help="after the first baseline (16; traces of Zipf's law 12)")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn: %(default)s")
    parser.add_argument("--json", type=Path, help="write what was measured, checkpoint by checkpoint, to this file")
    parser.add_argument("--plot", type=Path, help="draw it to this file")
    parser.add_argument("--quick", action="store_true", help="little of each: tries the benchmark, measures nothing")
    given = parser.parse_args(argv)
    names = [name.strip() for name in given.only.split(",")]
    if unknown := [name for name in names if name not in SOURCES]:
        parser.error(f"there is no {unknown[0]!r}; there are {', '.join(SOURCES)}")
    bits = [int(word) for word in given.bits.split(",")]
    if RAW not in bits or not set(bits) <= set(BITS):
        parser.error(f"--bits are some of {', '.join(map(str, BITS))}, {RAW} among them")
    print(f"seed {given.seed} of all that is drawn", PAPER, "", sep="\n")
    found: list[Results] = []
    for name in names:
        # Each takes some gigabytes.
        with tempfile.TemporaryDirectory(prefix="cnrfmt-traces-", dir=given.dir) as folder:
            found.append(measure(SOURCES[name](given), Path(folder), bits))
        print(report(found[-1]), flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps(found) + "\n", encoding="utf-8")
    if given.plot is not None:
        from tools.bench._training_traces_plot import draw

        draw(found, given.plot)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
