"""Fuzz all targets, or one, for a number of executions; killed at any time, the same command goes on.

    python -m tools.fuzz.run --executions 10000000 --seed 1 --state /tmp/fuzz.json --json results/fuzz.json
    python -m tools.fuzz.run --target toc --executions 100000 --seed 1 --state /tmp/fuzz.json
    python -m tools.fuzz.run --target toc --replay FILE...

Executions are shared out among the targets as `targets.py` says. Beside the state FILE, `FILE.d/corpus/` holds the
corpus as it grows and `FILE.d/failures/` the inputs that failed; without --state they lie in a temporary folder, which
stays only if an input failed.

What an input finds is mended on the way, and each chunk is a process of its own that takes the code as it is: so a run
goes on with other code, which other engines refuse, and its result counts the changes of code.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tools.fuzz.targets import CORPUS, TARGETS, corpus_of
from tools.progress import ROOT, Kept, at_least, code_digest, counting, engine_parser, run_program, write_entry

_FIRST_CHUNK = 100
"""Executions of a first chunk, for each thousandth that the target has of all."""
_LEAST_CHUNK = 300
_CHUNK_SECONDS = 240
_MOST_FAILURES = 20
"""A target that fails so often has to be looked at before it goes on."""
_PROGRESS = re.compile(r"^#(\d+)\s+\w+\s+cov: (\d+) ft: (\d+) corp: (\d+)", re.MULTILINE)
_EXECUTED = re.compile(r"stat::number_of_executed_units:\s*(\d+)")


@dataclass
class Progress:
    """How far a target has come."""

    executions: int = 0
    chunks: int = 0
    edges: int = 0
    features: int = 0
    corpus: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)


class Campaign:
    """What was done of a run, and the folder of its corpus and its failures."""

    def __init__(self, seed: int, state: Path | None, folder: Path) -> None:
        self.seed, self.folder = seed, folder
        self.kept = Kept(state, {"seed": seed}, anyway=True)
        saved = self.kept.load() or {}
        self.progress = {name: Progress(**saved.get(name, {})) for name in TARGETS}

    @property
    def executions(self) -> int:
        """Of all targets together."""
        return sum(progress.executions for progress in self.progress.values())

    def chunk(self, name: str, runs: int) -> None:
        """Run a target for some executions more."""
        progress = self.progress[name]
        corpus, failures = self.folder / "corpus" / name, self.folder / "failures" / name
        corpus.mkdir(parents=True, exist_ok=True)
        failures.mkdir(parents=True, exist_ok=True)
        before = set(failures.iterdir())
        number = (self.seed * 1_000_003 + progress.chunks * 7919 + list(TARGETS).index(name)) % (1 << 31) or 1
        command = [sys.executable, "-W", "ignore", "-m", "tools.fuzz.engine", name, f"-runs={runs}", f"-seed={number}"]
        command += ["-print_final_stats=1", "-reload=0", f"-artifact_prefix={failures}/", str(corpus)]
        command += [str(CORPUS / name)] if (CORPUS / name).is_dir() else []
        self.kept.now = code_digest()
        started = time.monotonic()
        ended = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, errors="replace", env=_environment(), check=False
        )
        progress.seconds += time.monotonic() - started
        done = [int(count) for count in _EXECUTED.findall(ended.stderr)]
        lines = _PROGRESS.findall(ended.stderr)
        progress.executions += done[-1] if done else int(lines[-1][0]) if lines else 0
        if lines:
            progress.edges, progress.features, progress.corpus = (int(text) for text in lines[-1][1:])
        progress.chunks += 1
        new = sorted(str(path) for path in set(failures.iterdir()) - before)
        if ended.returncode and not new:
            # Whatever ended the process left no input: its last words are all there is.
            log = failures / f"log-{progress.chunks}"
            log.write_text(ended.stdout[-20000:] + ended.stderr[-20000:], "utf-8")
            new = [str(log)]
        progress.failures += new
        for path in new:
            print(f"FAILURE of {name}: {path}\n  python -m tools.fuzz.run --target {name} --replay {path}", flush=True)
            print("  " + "\n  ".join(ended.stdout.strip().splitlines()[-12:]), flush=True)
        self.kept.save({name: asdict(progress) for name, progress in self.progress.items()})


@contextmanager
def _folder(state: Path | None) -> Iterator[Path]:
    """Where corpus and failures are: beside the state, or for this run alone."""
    if state is not None:
        # The fuzzer is run in another folder than this.
        yield state.absolute().with_name(state.name + ".d")
        return
    folder = Path(tempfile.mkdtemp(prefix="cnrfmt-fuzz-"))
    try:
        yield folder
    finally:
        if not any(path.is_file() for path in folder.glob("failures/*/*")):
            shutil.rmtree(folder)


def _environment() -> dict[str, str]:
    return os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONHASHSEED": "0"}


def replay(name: str, paths: Sequence[str]) -> int:
    """Run inputs through a target: 1 if one fails."""
    code = 0
    for path in paths:
        try:
            TARGETS[name].run(Path(path).read_bytes())
        except Exception as error:
            print(f"{path}: {type(error).__name__}: {error}")
            code = 1
        else:
            print(f"{path}: passes")
    return code


def _still_fails(name: str, path: str) -> bool:
    if "/log-" in path:
        return True
    command = [sys.executable, "-m", "tools.fuzz.run", "--target", name, "--replay", path]
    try:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, env=_environment(), timeout=120, check=False)
    except subprocess.TimeoutExpired:
        return True
    return ended.returncode != 0


def results(campaign: Campaign, engine: str, command: str) -> dict[str, Any]:
    """The table that is committed."""
    table = {}
    for name, progress in campaign.progress.items():
        if progress.executions:
            known = corpus_of(name) if (CORPUS / name).is_dir() else []
            table[name] = {
                "executions": progress.executions,
                "edges": progress.edges,
                "features": progress.features,
                "corpus": len(known),
                "seconds": round(progress.seconds),
                # An input that failed once stays in the corpus, under a name that says what it did.
                "failures_fixed": sum(path.name.startswith("regression-") for path in known),
                "failures_left": sum(_still_fails(name, path) for path in progress.failures),
            }
    return {
        "engine": engine,
        "command": command,
        "seed": campaign.seed,
        "code": campaign.kept.code.split(", ")[-1],
        "changes_of_code": campaign.kept.code.count(", "),
        "date": campaign.kept.date,
        "executions": sum(row["executions"] for row in table.values()),
        "seconds": sum(row["seconds"] for row in table.values()),
        "targets": table,
    }


def run(campaign: Campaign, names: list[str], executions: int) -> int:
    """Go on until every target has had its share, the one that is furthest behind first; gives the number of chunks."""
    chunks = 0
    shares = {name: TARGETS[name].share for name in names}
    quota = {name: -(-executions * share // sum(shares.values())) for name, share in shares.items()}
    while True:
        left = {
            name: quota[name] - p.executions
            for name in names
            if (p := campaign.progress[name]).executions < quota[name] and len(p.failures) < _MOST_FAILURES
        }
        if not left:
            return chunks
        name = max(left, key=lambda n: left[n] / quota[n])
        progress = campaign.progress[name]
        rate = progress.executions / progress.seconds if progress.seconds else 0
        wanted = int(rate * _CHUNK_SECONDS) or shares[name] * _FIRST_CHUNK
        campaign.chunk(name, min(left[name], max(wanted, _LEAST_CHUNK)))
        chunks += 1
        done = sum(campaign.progress[n].executions for n in names)
        print(
            f"{time.strftime('%H:%M:%S')} {done:>9} of {executions}: {name} {progress.executions}, "
            f"edges {progress.edges}, features {progress.features}, corpus {progress.corpus}, "
            f"{progress.executions / max(progress.seconds, 1e-9):.0f}/s, failures {len(progress.failures)}",
            flush=True,
        )


def main(arguments: list[str] | None = None) -> int:
    """Run the program; its exit status is 1 where an input fails."""
    parser = engine_parser("tools.fuzz.run", __doc__, any_code=True)
    parser.add_argument("--target", choices=TARGETS, help="one target (else all)")
    parser.add_argument("--executions", type=at_least(1), default=100_000, help="of all targets together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="a file for the result, one entry for each seed")
    parser.add_argument("--replay", nargs="+", metavar="FILE", help="run these inputs and nothing else")
    options = parser.parse_args(arguments)
    if options.replay:
        if options.target is None:
            parser.error("--replay needs --target")
        return replay(options.target, options.replay)
    try:
        engine = f"atheris {version('atheris')} (libFuzzer), kernels interpreted"
    except PackageNotFoundError:
        parser.error("atheris isn't installed: pip install '.[fuzz]'")
    which = f"--target {options.target} " if options.target else ""
    command = f"python -m tools.fuzz.run {which}--executions {options.executions} --seed {options.seed}"
    print(command, flush=True)
    with _folder(options.state) as folder:
        campaign = Campaign(options.seed, options.state, folder)
        before = campaign.executions
        with counting(lambda: f"{campaign.executions - before} executions", options.state):
            chunks = run(campaign, [options.target] if options.target else list(TARGETS), options.executions)
        if not chunks:
            campaign.kept.say_finished()
        table = results(campaign, engine, command)
    if options.json:
        write_entry(options.json, table)
    return 1 if any(row["failures_left"] for row in table["targets"].values()) else 0


if __name__ == "__main__":
    run_program(main)
