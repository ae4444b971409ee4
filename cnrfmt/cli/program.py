"""The command as a whole: its verbs, and how it ends."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from cnrfmt._version import __version__
from cnrfmt.cli import (
    compact,
    convert,
    demo,
    diff,
    exits,
    gc,
    info,
    ls,
    output,
    plan,
    plot,
    quantize,
    rows,
    salvage,
    serve,
    tag,
    verify,
)
from cnrfmt.cli.options import Verbs
from cnrfmt.errors import CnrError, DamagedError, StorageError, UnsupportedError, UsageError

_EPILOG = """\
Each verb says more, with examples: cnrfmt VERB --help.

exit codes: 0 sound, 1 damaged, 2 wrong usage, 3 can't judge (needs a newer
cnrfmt), 4 input or output failed
"""
_LOOKS_NEGATIVE = re.compile(r"-\d[\d:,+-]*")


class _Parser(argparse.ArgumentParser):
    """Raises what is wrong with the arguments, where argparse would print and exit."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; `{self.prog} --help` shows the usage")


class _VerbParser(_Parser):
    """Takes options before, between and behind the other arguments, optional ones too."""

    _is_within = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        # Subparsers are called here, and where arguments and options are mixed this calls itself in turn.
        if self._is_within:
            return super().parse_known_args(args, namespace)
        self._is_within = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_within = False


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with these arguments (those of the process if None) and gives its exit code.

    Errors end up on stderr, as one line, or as a JSON object if the arguments hold ``--json``. Only ``--help`` and
    ``--version`` raise `SystemExit`, as argparse does.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if not words:
            output.write(_parser().format_help().rstrip(), sys.stderr)
            return exits.USAGE
        # Argparse takes rows such as -5: for an option. It takes what holds a space for what it is.
        args = _parser().parse_args([f" {w}" if _LOOKS_NEGATIVE.fullmatch(w) else w for w in words])
        run: Callable[[argparse.Namespace], int] = args.run
        code = run(args)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return _fail(words, "interrupted", exits.INTERRUPTED)
    except BrokenPipeError:
        # Whoever read has had enough. Python would complain once more when it flushes at its end.
        _discard_output()
        return exits.BROKEN_PIPE
    except CnrError as error:
        return _fail(words, _message(error), exits.code_of(error), error)
    except OSError as error:
        return _fail(words, _message(error), exits.IO, error)
    except MemoryError:
        return _fail(words, "there isn't enough memory for this", exits.IO)


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = _Parser(
        prog="cnrfmt",
        description="Looks into checkpoints of embedding tables, checks them and converts them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"cnrfmt {__version__}")
    verbs: Verbs = parser.add_subparsers(
        metavar="VERB", required=True, title="verbs", parser_class=_VerbParser
    )
    for verb in (info, ls, rows, diff, verify, salvage, convert, quantize, compact, plan, plot, gc, tag, serve, demo):
        verb.add(verbs)
    return parser


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        # Not "[Errno 2] ...", which says nothing to most people.
        text = error.strerror[:1].lower() + error.strerror[1:]
        return f"{error.filename}: {text}" if error.filename else text
    if isinstance(error, DamagedError) and error.rule in verify.MAY_BE_FOREIGN:
        return (
            f"{error.place}: not a cnr container, or a damaged one ({error.rule}): "
            f"expected {error.expected}, found {error.found}"
        )
    return str(error)


def _fail(words: list[str], message: str, code: int, error: Exception | None = None) -> int:
    try:
        # What was printed before the error comes first, and mustn't hide it.
        sys.stdout.flush()
    except OSError:
        _discard_output()
    if "--json" in words:
        found = {"error": _error_json(message, code, error)}
        if next((word for word in words if not word.startswith("-")), None) == "serve":
            # A line, as all else that whoever collects its log finds there.
            output.write(json.dumps({"event": "failed", **found}, allow_nan=False), sys.stderr)
        else:
            output.write_json(found, sys.stderr)
    else:
        output.write(f"cnrfmt: {output.clean(message)}", sys.stderr)
    return code


def _error_json(message: str, code: int, error: Exception | None) -> dict[str, Any]:
    found: dict[str, Any] = {"message": message, "exit_code": code}
    if error is not None:
        found["kind"] = type(error).__name__
    if isinstance(error, DamagedError):
        found |= {
            "rule": error.rule,
            "place": error.place,
            "expected": error.expected,
            "found": error.found,
            "advice": error.advice,
        }
    elif isinstance(error, UnsupportedError):
        found |= {"place": error.place, "feature": error.feature}
    elif isinstance(error, StorageError):
        found["errno"] = error.errno
    return found


def _discard_output() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
