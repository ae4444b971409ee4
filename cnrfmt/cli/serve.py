"""``cnrfmt serve``: look-ups over HTTP, of the newest version as it comes."""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from cnrfmt.cli import exits, output
from cnrfmt.cli.options import Verbs, add_path, add_threads, add_verb, naming_options
from cnrfmt.errors import UsageError

if TYPE_CHECKING:
    from cnrfmt.serving.http.wire import Limits

_TOKEN = "CNRFMT_SERVE_TOKEN"
_PORT = 8765
_PRINTABLE = re.compile(r"[!-~]+", re.ASCII)


def add(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(
        verbs,
        "serve",
        _run,
        "Serves look-ups over HTTP, and follows the trainer.",
        """POST /lookup gives rows, POST /pool sums, means or maxima of them, in JSON or in a binary form;
        GET /health, /tables, /status and /metrics (for Prometheus) say how it stands, and GET / is a page that shows
        it. It answers before all rows are decoded, and takes in each new version as it is committed; no request sees
        two versions. Only this machine reaches it unless --host says otherwise. SIGTERM or Ctrl-C ends it, with the
        requests that are under way answered. It needs the extra `serve`: pip install 'cnrfmt[serve]'.""",
        """
        cnrfmt serve run7
        cnrfmt serve run7 --tables 'user*' item --port 0 --max-age 600
        cnrfmt serve run7 --shard 0/4 --dtype float16 --max-bytes 32000000000
        cnrfmt serve run7 --host 0.0.0.0 --token-file /run/secrets/token
        """,
    )
    add_path(parser)
    parser.add_argument("--host", default="127.0.0.1", metavar="NAME", help="address to listen at (else %(default)s)")
    parser.add_argument(
        "--port", type=int, default=_PORT, metavar="N", help="0 takes a free one and prints it (else %(default)s)"
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help=f"holds the token that whoever asks must have (else {_TOKEN} of the environment, else none)",
    )
    parser.add_argument("--tables", nargs="+", metavar="PATTERN", help="names or patterns (else all tables)")
    parser.add_argument(
        "--shard", type=_shard, metavar="I/N", help="of N servers this is number I, from 0 on (else all rows)"
    )
    parser.add_argument(
        "--shard-by",
        choices=("range", "hash"),
        help="how --shard divides the rows of dense tables (else by hash; keyed ones go by hash in any case)",
    )
    parser.add_argument(
        "--dtype", choices=("float16", "float32"), help="of floats in memory (else that of the stored column)"
    )
    parser.add_argument(
        "--hold", type=int, default=1, metavar="N", help="versions that may be asked for (else the newest alone)"
    )
    parser.add_argument(
        "--poll", type=float, default=0.1, metavar="SECONDS", help="between looks for a version (else %(default)s)"
    )
    parser.add_argument(
        "--wait", type=float, default=0.0, metavar="SECONDS", help="for a container that isn't there yet (else not)"
    )
    parser.add_argument(
        "--max-age", type=float, metavar="SECONDS", help="a version older than this is warned of and unhealthy"
    )
    parser.add_argument("--max-bytes", type=int, metavar="N", help="memory that tables may take (else any)")
    parser.add_argument(
        "--max-request-bytes", type=int, metavar="N", help="body of a request (else 4 MiB)"
    )
    parser.add_argument("--max-ids", type=int, metavar="N", help="ids of a request (else 100,000)")
    parser.add_argument(
        "--max-answer-bytes", type=int, metavar="N", help="body of an answer (else 64 MiB)"
    )
    parser.add_argument(
        "--max-connections", type=int, default=1000, metavar="N", help="open at a time (else 1,000)"
    )
    add_threads(parser)


def _run(args: argparse.Namespace) -> int:
    try:
        from cnrfmt.serving.http import server, wire
    except ImportError as error:
        raise UsageError(
            f"serve needs {error.name or 'packages'}, which isn't installed; run: pip install 'cnrfmt[serve]'"
        ) from error
    from cnrfmt.serving.live import LiveTables

    limits = _limits(args, wire.Limits())
    token = _token(args.token_file)
    for option, value in (("--poll", args.poll), ("--max-age", args.max_age)):
        if value is not None and not 0 < value < float("inf"):
            raise UsageError(f"{option} is a number of seconds above 0, found {value}")
    if not 0 <= args.wait < float("inf"):
        raise UsageError(f"--wait is a number of seconds from 0 on, found {args.wait}")
    if args.shard_by is not None and args.shard is None:
        raise UsageError("--shard-by says how --shard divides rows: give --shard, too")
    if args.max_connections < 1:
        raise UsageError(f"--max-connections is at least 1, found {args.max_connections}")
    if args.hold < 1:
        raise UsageError(f"--hold is how many versions are held, at least 1, found {args.hold}")
    settings = server.Settings(
        token, limits, args.poll, args.max_age, args.shard, args.shard_by, args.max_connections, args.wait
    )

    def begin() -> LiveTables:
        return LiveTables(
            args.path,
            args.tables,
            shard=args.shard,
            shard_by=args.shard_by,
            dtype=args.dtype,
            hold=args.hold,
            max_bytes=args.max_bytes,
            threads=args.threads,
        )

    with closing(server.listen(args.host, args.port)) as sock, naming_options():
        server.serve(begin, sock, settings, _Log(as_json=args.json))
    return exits.SOUND


def _limits(args: argparse.Namespace, usual: Limits) -> Limits:
    given = {
        "request_bytes": ("--max-request-bytes", args.max_request_bytes),
        "ids": ("--max-ids", args.max_ids),
        "answer_bytes": ("--max-answer-bytes", args.max_answer_bytes),
    }
    for option, value in given.values():
        if value is not None and value < 1:
            raise UsageError(f"{option} is at least 1, found {value}")
    return replace(usual, **{name: value for name, (_, value) in given.items() if value is not None})


def _shard(word: str) -> tuple[int, int]:
    number, _, count = word.partition("/")
    if not (number.isdecimal() and count.isdecimal() and int(number) < int(count)):
        raise argparse.ArgumentTypeError(f"I/N such as 0/4, I below N, found {word!r}")
    return int(number), int(count)


def _token(file: str | None) -> str | None:
    """The token: of a file, or of the environment; arguments can be read by everybody on the machine."""
    if file is not None:
        token, source = Path(file).read_text("utf-8", "replace").strip(), output.clean(file)
    elif _TOKEN in os.environ:
        token, source = os.environ[_TOKEN].strip(), _TOKEN
    else:
        return None
    if not _PRINTABLE.fullmatch(token):
        raise UsageError(f"{source} must hold a token, printable ASCII without blanks; make one: openssl rand -hex 32")
    return token


class _Log:
    """Writes a line for each event; one that nobody reads is left out, since whoever waits for it would never end."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json, self._lost, self._lock = as_json, 0, threading.Lock()

    def __call__(self, event: str, facts: dict[str, Any]) -> None:
        stream = sys.stderr if event == "warning" and not self._as_json else sys.stdout
        # From several threads: what is free in a pipe is one line's.
        with self._lock:
            if not _takes(stream):
                self._lost += 1
                return
            if self._lost:
                facts = {**facts, "lines_lost": self._lost}
                self._lost = 0
            if self._as_json:
                # A line each, as those who collect logs want them.
                output.write(json.dumps({"event": event, **facts}, allow_nan=False), stream)
            else:
                output.write(_text(event, facts), stream)
            stream.flush()


def _takes(stream: TextIO) -> bool:
    """Whether a line can be written without waiting: a pipe that can be written to has room for 4 KiB."""
    try:
        return bool(select.select([], [stream.fileno()], [], 0)[1])
    except (OSError, ValueError):
        # No descriptor: it doesn't wait.
        return True


def _text(event: str, facts: dict[str, Any]) -> str:
    said = {"waiting": _waiting, "serving": _serving, "update": _update, "warning": _warning, "ended": _ended}
    text = said[event](facts)
    lost = f" ({output.plural(facts['lines_lost'], 'line')} lost before it)" if "lines_lost" in facts else ""
    lines = [text + lost, *facts.get("traceback", "").splitlines()]
    return "\n".join(map(output.clean, lines))


def _waiting(facts: dict[str, Any]) -> str:
    return f"waiting for up to {facts['seconds']:g} s, at {facts['url']}: {facts['reason']}"


def _version(facts: dict[str, Any]) -> str:
    step = facts.get("step")
    return f"version {facts['version']}" + ("" if step is None else f" (step {step})")


def _serving(facts: dict[str, Any]) -> str:
    return f"{facts['path']}: {_version(facts)}, {output.plural(facts['tables'], 'table')}, at {facts['url']}"


def _update(facts: dict[str, Any]) -> str:
    changed, seconds = facts["changed_rows"], facts["seconds"]
    rows = "" if changed is None else f", {output.plural(changed, 'row')} changed"
    return f"{_version(facts)}{rows}" + ("" if seconds is None else f", taken in within {1000 * seconds:.1f} ms")


def _warning(facts: dict[str, Any]) -> str:
    return f"cnrfmt: warning: {facts['warning']}"


def _ended(facts: dict[str, Any]) -> str:
    return "ended before there was a version" if facts["version"] is None else f"ended at {_version(facts)}"
