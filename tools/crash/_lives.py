"""Engines that live lives: containers whose writers are killed again and again, each in a folder of its own."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shlex
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.progress import Kept, Pulse, at_least, counting, engine_parser, run_program, write_json


@dataclass(frozen=True)
class Lives:
    """An engine that lives lives until there were as many kills as were asked for.

    Attributes
    ----------
    name
        That of the engine's module, without ``tools.crash``.
    about
        Its docstring.
    kills
        How many kills a life has at the most.
    warm_up
        Does everything once, in a folder, and gives the seconds of a typical attempt.
    live_in
        Lives the life of this number, under this seed, through so many kills, in a folder of its own; with the seconds
        of a typical attempt. Gives what is to be counted, kills among it.
    """

    name: str
    about: str | None
    kills: int
    warm_up: Callable[[Path], float]
    live_in: Callable[[Path, int, int, int, float], Counter[str]]

    @property
    def module(self) -> str:
        """That of the engine."""
        return f"tools.crash.{self.name}"

    def main(self, arguments: list[str] | None) -> int:
        """Lives one life, or as many as it takes; the exit status."""
        options = self._parser().parse_args(arguments)
        if options.life is not None:
            with counting(lambda: "no life", None), self._scratch(options.folder) as folder:
                typical = self.warm_up(folder)
                print(dict(self._run_life(options.life, options.seed, self.kills, folder, typical)))
            return 0
        kept = Kept(options.state, {"kills": options.kills, "seed": options.seed}, anyway=options.anyway)
        progress: dict[str, Any] = kept.load() or {"lives": 0, "seconds": 0.0, "counts": {}, "failures": []}
        print(self._command(options), flush=True)
        self._live(options, progress, kept)
        if options.json:
            write_json(options.json, self._table(options, progress, kept))
        print(json.dumps(self._table(options, progress, kept), indent=2))
        return 1 if progress["failures"] else 0

    def run(self) -> None:
        """Runs it as a program."""
        if os.environ.get("OPENBLAS_NUM_THREADS") != "1":
            # Else numpy starts threads of its own, and what is forked off a process with threads may wait for ever.
            program = [sys.executable, "-m", self.module, *sys.argv[1:]]
            os.execve(sys.executable, program, {**os.environ, "OPENBLAS_NUM_THREADS": "1"})
        run_program(lambda: self.main(None))

    def _run_life(self, number: int, seed: int, kills: int, folder: Path, typical: float) -> Counter[str]:
        """One life in a folder of its own, which is kept if it ends badly."""
        home = folder / f"life-{number}-{secrets.token_hex(4)}"
        try:
            home.mkdir()
            counts = self.live_in(home, number, seed, kills, typical)
        except KeyboardInterrupt:
            shutil.rmtree(home, ignore_errors=True)
            raise
        shutil.rmtree(home)
        return counts

    def _live(self, options: argparse.Namespace, progress: dict[str, Any], kept: Kept) -> None:
        """Lives lives until there were as many kills as were asked for, or too many failures."""
        pulse, lives = Pulse(), progress["lives"]
        before = kills = progress["counts"].get("kills", 0)
        with counting(lambda: f"{kills - before} kills", kept.file), self._scratch(options.folder) as folder:
            typical = self.warm_up(folder)
            while kills < options.kills and len(progress["failures"]) < options.most_failures:
                started, number = time.monotonic(), progress["lives"]
                try:
                    most = min(self.kills, options.kills - kills)
                    found = self._run_life(number, options.seed, most, folder, typical)
                    progress["counts"] = dict(Counter(progress["counts"]) + found)
                except Exception as error:
                    text = "".join(traceback.format_exception(error))
                    progress["failures"].append({"command": self._command(options, number), "error": text})
                    print(self._command(options, number), text, sep="\n", flush=True)
                progress["lives"] += 1
                progress["seconds"] += time.monotonic() - started
                kills = progress["counts"].get("kills", 0)
                kept.save(progress)
                if pulse.due() or kills >= options.kills:
                    shown = f"{kills} of {options.kills} kills, {progress['seconds']:.0f} s"
                    print(f"{shown}, {len(progress['failures'])} failures", flush=True)
        if progress["lives"] == lives:
            kept.say_finished()

    @contextmanager
    def _scratch(self, inside: Path | None) -> Iterator[Path]:
        """A folder for the lives; it goes when they are over, but for those that are kept."""
        folder = Path(tempfile.mkdtemp(prefix=f"cnrfmt-{self.name}-", dir=inside))
        try:
            yield folder
        finally:
            for warm in folder.glob("warm-*"):
                shutil.rmtree(warm) if warm.is_dir() else warm.unlink()
            if not any(folder.iterdir()):
                folder.rmdir()

    def _command(self, options: argparse.Namespace, life: int | None = None) -> str:
        words = ["python", "-m", self.module, "--kills", options.kills, "--seed", options.seed]
        words += [] if options.folder is None else ["--folder", options.folder]
        words += [] if life is None else ["--life", life]
        return shlex.join(map(str, words))

    def _table(self, options: argparse.Namespace, progress: dict[str, Any], kept: Kept) -> dict[str, Any]:
        return {
            "engine": self.name,
            "command": self._command(options),
            "code": kept.code,
            "date": kept.date,
            "seconds": round(progress["seconds"]),
            "containers": progress["lives"],
            "counts": dict(sorted(progress["counts"].items())),
            "failures": progress["failures"],
        }

    def _parser(self) -> argparse.ArgumentParser:
        parser = engine_parser(self.module, self.about)
        parser.add_argument("--kills", type=at_least(1), default=200)
        parser.add_argument("--seed", type=int, default=1)
        parser.add_argument("--life", type=at_least(0), help="live this life alone")
        parser.add_argument("--most-failures", type=at_least(1), default=20, help="give up after so many")
        parser.add_argument("--folder", type=Path, help="where the containers lie: a file system to be tried")
        parser.add_argument("--json", type=Path, help="where the result is written")
        return parser
