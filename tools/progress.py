"""What all long runs share: options, progress and results that are kept in files, their code, an orderly end."""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"


def write_json(path: Path, data: Any) -> None:
    """Puts a JSON file in the place of the one that is there; a run that is ended meanwhile leaves the old one."""
    write_text(path, json.dumps(data, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """The same for a file of text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".part")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, path)


def write_entry(path: Path, entry: dict[str, Any], key: Callable[[dict[str, Any]], Any] = itemgetter("seed")) -> None:
    """Puts the result of a run in the place of the one with its key, or beside those of other runs, in order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Runs may write to one file at the same time; the lock goes with the handle.
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        entries = json.loads(path.read_text("utf-8")) if path.exists() else []
        others = [other for other in entries if key(other) != key(entry)]
        write_json(path, sorted([*others, entry], key=key))
    finally:
        os.close(folder)


def code_digest(*data: Path) -> str:
    """A digest of what an engine tries: the library, `tools/cnrcheck.py`, and the files of the folders in `data`."""
    files = [ROOT / "tools" / "cnrcheck.py", *(ROOT / "cnrfmt").rglob("*.py")]
    for folder in data:
        files += [path for path in folder.rglob("*") if path.is_file()]
    digest = hashlib.sha256()
    for path in sorted(files):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(ROOT).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


# The command line


def engine_parser(module: str, about: str | None, *, any_code: bool = False) -> argparse.ArgumentParser:
    """A parser whose help is the engine's whole docstring, with the options that all engines have.

    With `any_code`, a run goes on with other code without being asked to.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    other_code = " or to other code (cnrfmt/**/*.py, tools/cnrcheck.py, golden files where they are used)"
    parser.add_argument(
        "--state",
        type=Path,
        metavar="FILE",
        help="where progress is kept: the same command goes on from there. A file that belongs to other arguments"
        f"{'' if any_code else other_code} is refused",
    )
    if not any_code:
        parser.add_argument(
            "--anyway", action="store_true", help="go on with a --state FILE that belongs to other code"
        )
    return parser


def at_least(least: int) -> Callable[[str], int]:
    """The type of an option that is a number, and not less than this."""

    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return int(text)

    return number


def chosen(parser: argparse.ArgumentParser, what: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Ends the program with a usage error unless all of the names, of which there must be one, are known."""
    names, known = list(names), list(known)
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        parser.error(f"no such {what}: {', '.join(unknown)}; there are {'; '.join(known)}")


# Progress


class Kept:
    """The progress of a run in a file, if there is one; it belongs to one state of the code and to some arguments."""

    def __init__(self, file: Path | None, asked: dict[str, Any], *data: Path, anyway: bool = False) -> None:
        self.file, self._asked, self._anyway = file, asked, anyway
        self.now = code_digest(*data)
        """What is tried from now on."""
        self.code = self.now
        """What was tried; where a run went on with other code, that of each part, with commas between."""
        self.date = ""
        """When something was tried last."""

    def load(self) -> dict[str, Any] | None:
        """What was kept; ends the program, with exit status 2, where that belongs to another run."""
        if self.file is None or not self.file.exists():
            return None
        progress: dict[str, Any] = json.loads(self.file.read_text("utf-8"))
        asked, code, date = (progress.pop(name, None) for name in ("asked", "code", "date"))
        if code is None or (code.split(", ")[-1] != self.now and not self._anyway):
            _refuse(f"{self.file} belongs to other code: remove it to start anew, or --anyway to go on")
        if asked != self._asked:
            _refuse(f"{self.file} belongs to other arguments, {asked}: remove it to start anew")
        self.code, self.date = code, str(date)
        return progress

    def save(self, progress: dict[str, Any]) -> None:
        """Keeps this, all or nothing; the last of it was tried with the code that `now` says."""
        if self.code.split(", ")[-1] != self.now:
            self.code += f", {self.now}"
        self.date = time.strftime("%Y-%m-%d", time.gmtime())
        if self.file is not None:
            write_json(self.file, {"asked": self._asked, "code": self.code, "date": self.date, **progress})

    def say_finished(self) -> None:
        """Says that this command tried nothing, so that nobody takes an old result for a new one."""
        print(f"nothing left to try: the result of {self.date}", flush=True)


def _refuse(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    raise SystemExit(2)


class Pulse:
    """Tells when it is time to say how far a run is, and to keep its progress: every so many seconds."""

    def __init__(self, seconds: float = 10.0) -> None:
        self._seconds = seconds
        self._last = time.monotonic()

    def due(self) -> bool:
        """Whether it is time again."""
        due = time.monotonic() - self._last >= self._seconds
        if due:
            self._last = time.monotonic()
        return due


# The end


@contextmanager
def counting(done: Callable[[], str], file: Path | None) -> Iterator[None]:
    """Notes, where what is within is stopped, how far it had come, and how to go on."""
    try:
        yield
    except KeyboardInterrupt as stop:
        goes_on = "nothing is kept without --state" if file is None else "the same command with --state goes on"
        stop.add_note(f"stopped after {done()}; {goes_on}")
        raise


_REQUESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Has requests to end wait until the context ends: between mounting and noting that, nobody would clear up."""
    came: list[int] = []
    handlers: dict[int, Callable[[int, Any], Any]] = {}
    for number in _REQUESTS:
        if callable(handler := signal.getsignal(number)):
            handlers[number] = handler
            signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for request, handler in handlers.items():
            signal.signal(request, handler)
        if came:
            handlers[came[0]](came[0], None)


def run_program(main: Callable[[], int]) -> NoReturn:
    """Runs an engine's `main` as a program; Ctrl-C and other requests to end let it clear up, then say one line."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        # What is ignored, by nohup for one, stays ignored.
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _stop)
    try:
        status = main()
    except KeyboardInterrupt as stop:
        print(*getattr(stop, "__notes__", ["stopped"]), sep="\n", file=sys.stderr, flush=True)
        status = 128 + (stop.args[0] if stop.args else signal.SIGINT)
    sys.exit(status)


def _stop(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt(number)
