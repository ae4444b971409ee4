"""How the command prints: text that can't steer a terminal, tables, JSON, progress bars."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

Progress = Callable[[int, int], None]
"""Called with what is done and what there is to do."""

_UNLIMITED = 1 << 16
_STYLES = {"bold": "1", "good": "1;32", "bad": "1;31", "doubtful": "1;33"}
_DECIMAL = ("kB", "MB", "GB", "TB", "PB")


def clean(text: object) -> str:
    """Text whose unprintable characters are escaped.

    Names and metadata come from files that anybody may have written, and a control character among them
    could rewrite what the terminal shows.
    """
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii")
        for c in str(text)
    )


def write(text: str, stream: TextIO | None = None) -> None:
    """Writes text as it is and a line end, to stdout unless told otherwise."""
    out = sys.stdout if stream is None else stream
    # What the stream can't encode is escaped rather than an error.
    encoding = getattr(out, "encoding", None) or "utf-8"
    out.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def write_json(value: Any, stream: TextIO | None = None) -> None:
    """Writes a value as JSON in ASCII; NaN and Infinity must have become strings before."""
    write(json.dumps(value, indent=2, allow_nan=False), stream)


def is_styled(stream: TextIO) -> bool:
    """Whether bold print and colours are wanted: on a terminal that shows them, unless NO_COLOR is set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def styled(text: str, style: str) -> str:
    """The text as stdout may show it: bold, good, bad or doubtful."""
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if is_styled(sys.stdout) else text


def width() -> int:
    """The columns that a line may take: those of the terminal or of COLUMNS; in a pipe no line is cut."""
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS"):
        return _UNLIMITED
    # Imported here, like everything that `--help` doesn't need.
    import shutil

    return max(40, shutil.get_terminal_size().columns)


def write_table(
    header: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Collection[str] = (),
    indent: int = 0,
) -> None:
    """Writes rows under a header; the columns named in `right` are numbers. Long cells fold."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in header:
        table.add_column(
            Text(name), justify="right" if name in right else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(clean(cell)) for cell in row))
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=width() - indent,
        force_terminal=is_styled(sys.stdout),
        color_system="standard" if is_styled(sys.stdout) else None,
        legacy_windows=False,
    )
    console.print(table)
    for line in buffer.getvalue().splitlines():
        write(" " * indent + line.rstrip())


def write_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """Writes labels and what they say, one below the other."""
    shown = list(pairs)
    longest = max(len(label) for label, _ in shown)
    for label, value in shown:
        write(f"{label.ljust(longest)}  {clean(value)}")


@contextmanager
def progress(label: str, *, shown: bool = True) -> Iterator[Progress | None]:
    """A progress bar on stderr, as a function to call; None where stderr is no terminal."""
    if not shown or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def size(count: int) -> str:
    """A number of bytes for people: 999 B, 1.23 MB."""
    if count < 1000:
        return f"{count} B"
    value = float(count)
    for unit in _DECIMAL:
        value /= 1000
        if value < 999.5 or unit == _DECIMAL[-1]:
            break
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {unit}"


def number(value: float | None) -> str:
    """A number for people, to four digits; empty where there is none."""
    return "" if value is None else f"{value:.4g}"


def plural(count: int, noun: str) -> str:
    """A count and a noun, with an s where there isn't exactly one."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def times_smaller(bytes_plain: int, bytes_found: int) -> str:
    """How much smaller (or larger) a number of bytes is, in words."""
    if not bytes_found or not bytes_plain:
        return ""
    ratio = bytes_plain / bytes_found
    if 0.95 < ratio < 1.05:
        return "about as large"
    return f"{ratio:.1f} times smaller" if ratio > 1 else f"{1 / ratio:.1f} times larger"


def span_of(numbers: Sequence[int]) -> str:
    """Ascending whole numbers in words: 3, or 0 to 7, or 0 to 3, 5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = [str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a} to {b}" for a, b in runs]
    return ", ".join(shown)
