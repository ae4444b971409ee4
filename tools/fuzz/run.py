"""Fuzz all targets, or one, for a number of executions; killed at any time, the same command goes on.

    python -m tools.fuzz.run --executions 10000000 --seed 1 --state /tmp/fuzz.json --json results/fuzz.json
    python -m tools.fuzz.run --target toc --executions 100000 --seed 1 --state /tmp/fuzz.json
    python -m tools.fuzz.run --target toc --replay FILE...

Executions are shared out among the targets as `targets.py` says. Beside the state FILE, `FILE.d/corpus/` holds the
corpus as it grows and `FILE.d/failures/` the inputs that failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tools.fuzz.targets import CORPUS, TARGETS, corpus_of
from tools.progress import ROOT, code_digest, run_program, write_json

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
    """The state of a run: what was done of it, and its files."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path, self.seed = path, seed
        self.folder = path.with_name(path.name + ".d")
        self.progress = {name: Progress() for name in TARGETS}
        self.codes: list[str] = []
        """Digests of the code that was fuzzed, in order: what an input finds is mended on the way."""
        if path.exists():
            saved = json.loads(path.read_text("utf-8"))
            self.seed = saved["seed"]
            self.codes = saved.get("codes", [])
            self.progress |= {name: Progress(**values) for name, values in saved["targets"].items()}

    def save(self) -> None:
        """Write the state in the place of the old one."""
        targets = {name: asdict(progress) for name, progress in self.progress.items()}
        write_json(self.path, {"seed": self.seed, "codes": self.codes, "targets": targets})

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
        if (code := code_digest()) not in self.codes[-1:]:
            self.codes.append(code)
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
        self.save()


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


def results(campaign: Campaign, command: str) -> dict[str, Any]:
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
        "engine": f"atheris {version('atheris')} (libFuzzer), kernels interpreted",
        "command": command,
        "seed": campaign.seed,
        "code": ", ".join(campaign.codes[-1:]),
        "changes_of_code": max(0, len(campaign.codes) - 1),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "executions": sum(row["executions"] for row in table.values()),
        "seconds": sum(row["seconds"] for row in table.values()),
        "targets": table,
    }


def run(campaign: Campaign, names: list[str], executions: int) -> None:
    """Go on until every target has had its share; the one that is furthest behind comes next."""
    shares = {name: TARGETS[name].share for name in names}
    quota = {name: -(-executions * share // sum(shares.values())) for name, share in shares.items()}
    while True:
        left = {
            name: quota[name] - p.executions
            for name in names
            if (p := campaign.progress[name]).executions < quota[name] and len(p.failures) < _MOST_FAILURES
        }
        if not left:
            return
        name = max(left, key=lambda n: left[n] / quota[n])
        progress = campaign.progress[name]
        rate = progress.executions / progress.seconds if progress.seconds else 0
        wanted = int(rate * _CHUNK_SECONDS) or shares[name] * _FIRST_CHUNK
        campaign.chunk(name, min(left[name], max(wanted, _LEAST_CHUNK)))
        done = sum(campaign.progress[n].executions for n in names)
        print(
            f"{time.strftime('%H:%M:%S')} {done:>9} of {executions}: {name} {progress.executions}, "
            f"edges {progress.edges}, features {progress.features}, corpus {progress.corpus}, "
            f"{progress.executions / max(progress.seconds, 1e-9):.0f}/s, failures {len(progress.failures)}",
            flush=True,
        )


def main(arguments: list[str] | None = None) -> int:
    """Run the program; its exit status is 1 where an input fails."""
    parser = argparse.ArgumentParser(description="Fuzz the parsers of cnrfmt.")
    parser.add_argument("--target", choices=TARGETS, help="one target (else all)")
    parser.add_argument("--executions", type=int, default=100_000, help="of all targets together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--state", type=Path, default=Path("fuzz.state.json"), help="where progress is kept")
    parser.add_argument("--json", type=Path, help="where the table of results is written")
    parser.add_argument("--replay", nargs="+", metavar="FILE", help="run these inputs and nothing else")
    options = parser.parse_args(arguments)
    if options.replay:
        if options.target is None:
            parser.error("--replay needs --target")
        return replay(options.target, options.replay)
    campaign = Campaign(options.state, options.seed)
    print(f"seed {campaign.seed}", flush=True)
    run(campaign, [options.target] if options.target else list(TARGETS), options.executions)
    which = f"--target {options.target} " if options.target else ""
    command = f"python -m tools.fuzz.run {which}--executions {options.executions} --seed {campaign.seed} --state FILE"
    table = results(campaign, command)
    if options.json:
        write_json(options.json, table)
    return 1 if any(row["failures_left"] for row in table["targets"].values()) else 0


if __name__ == "__main__":
    run_program(main)
