"""What the verbs' arguments have in common."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cnrfmt.cli import exits
from cnrfmt.errors import UsageError

if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Verbs = object

_OPTION_OF = {
    "force=True": "--force",
    "leave quantize out": "leave --quantize out",
    "leave tables out": "leave --tables out",
    "source_format=": "--from",
    "target_format=": "--to",
    "quantize={name: None, ...}": "--quantize NAME=raw",
    "encoding={name: None, ...}": "--encoding NAME=raw",
    "max_bytes allows": "--max-bytes allows",
    "last is": "--keep is",
    "every_steps is": "--every-steps is",
    "every_minutes is": "--every-minutes is",
}
"""What errors call an argument, and what it is called here."""


def add_verb(
    verbs: Verbs,
    name: str,
    run: Callable[[argparse.Namespace], int],
    summary: str,
    details: str,
    examples: str,
) -> argparse.ArgumentParser:
    """Adds a verb: `summary` is a sentence, `details` more of them, `examples` a line each."""
    codes = "\n".join(f"  {code}  {meaning}" for code, meaning in exits.MEANINGS.items())
    description = textwrap.fill(" ".join([*summary.split(), *details.split()]), 79)
    parser = verbs.add_parser(
        name,
        help=summary[0].lower() + summary[1:].rstrip("."),
        description=description,
        epilog=f"examples:\n{textwrap.indent(textwrap.dedent(examples).strip(), '  ')}\n\n"
        f"exit codes:\n{codes}\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)
    return parser


def add_path(parser: argparse.ArgumentParser) -> None:
    """Adds PATH, the container."""
    parser.add_argument("path", metavar="PATH", help="a single file or a directory")


def add_version(parser: argparse.ArgumentParser) -> None:
    """Adds --version, the version to open."""
    parser.add_argument(
        "--version", type=int, metavar="N", help="an older version that is retained (else the newest)"
    )


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Adds --threads."""
    parser.add_argument(
        "--threads", type=int, metavar="N", help="how many threads to use (else one per processor)"
    )


@contextmanager
def naming_options() -> Iterator[None]:
    """What is wrong with an argument is said of the option that gave it."""
    try:
        yield
    except UsageError as error:
        text = str(error)
        for theirs, ours in _OPTION_OF.items():
            text = text.replace(theirs, ours)
        raise UsageError(text) from error
