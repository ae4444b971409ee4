"""``cnrfmt gc``: what no version needs is removed, and versions are given up."""

from __future__ import annotations

import argparse
import math
import re
from typing import Any

from cnrfmt.checkpointing.keeping.collect import GRACE, Collected, collect, time_text
from cnrfmt.checkpointing.keeping.retention import Keep
from cnrfmt.cli import exits, output
from cnrfmt.cli.options import Verbs, add_path, add_verb, naming_options
from cnrfmt.errors import UsageError

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)", re.ASCII)
_MOST_SHOWN = 10
"""Files that are shown; --json lists all."""


def add(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(
        verbs,
        "gc",
        _run,
        "Removes the files of a directory that no version needs any more.",
        """Nothing is given up unless --keep, --every-steps, --every-minutes or --best says what stays: then a
        version is committed that names only the checkpoints that any of them chooses, those that have tags, and
        the newest. Files of versions that were given up stay for the grace period, for readers that have them
        open, and so do those that no version names yet, which may be of a save that is under way. Look at what
        --dry-run says first. With a grace period that is longer than any save takes, it may run beside a trainer;
        with those options, a save at the same moment may have to be repeated. The exit code is 1 if a damaged
        manifest keeps files from being removed.""",
        """
        cnrfmt gc run7 --dry-run
        cnrfmt gc run7 --keep 5 --dry-run
        cnrfmt gc run7 --keep 5 --every-steps 100000 --best auc:3:max
        cnrfmt gc run7 --grace 2h
        """,
    )
    add_path(parser)
    parser.add_argument("--keep", type=int, metavar="N", help="the newest N checkpoints stay")
    parser.add_argument(
        "--every-steps", type=int, metavar="K", help="the first checkpoint at or after each K steps stays"
    )
    parser.add_argument(
        "--every-minutes", type=float, metavar="T", help="the first checkpoint in each T minutes stays"
    )
    parser.add_argument(
        "--best", metavar="METRIC:N:WHICH", help="the N checkpoints with the min or max of a metric stay"
    )
    parser.add_argument(
        "--grace",
        metavar="TIME",
        help="how long unneeded files stay, such as 90s, 30m, 2h or 1d (else 1h); 0 only where nobody writes or reads",
    )
    parser.add_argument("--dry-run", action="store_true", help="only look: say what would go, change nothing")


def _run(args: argparse.Namespace) -> int:
    with naming_options():
        keep = _keep(args)
        grace = GRACE.total_seconds() if args.grace is None else _seconds(args.grace)
        done = collect(args.path, keep=keep, grace=grace, dry_run=args.dry_run)
    if args.json:
        output.write_json(done.to_json())
    else:
        _write(done)
    return exits.worst_of(done.obstacles)


def _keep(args: argparse.Namespace) -> Keep | None:
    rules: dict[str, Any] = {
        "last": args.keep,
        "every_steps": args.every_steps,
        "every_minutes": args.every_minutes,
        "best": None if args.best is None else _best(args.best),
    }
    given = {name: rule for name, rule in rules.items() if rule is not None}
    return Keep(**given) if given else None


def _best(word: str) -> tuple[str, int, str]:
    # A metric's name may have colons of its own.
    parts = word.rsplit(":", 2)
    if len(parts) != 3 or not parts[1].isdecimal() or parts[2] not in ("min", "max"):
        raise UsageError(f"--best takes a metric, a number and min or max, such as auc:3:max, found {word!r}")
    return parts[0], int(parts[1]), parts[2]


def _seconds(word: str) -> float:
    match = _DURATION.fullmatch(word)
    if match is None or not math.isfinite(seconds := float(match[1]) * _SECONDS[match[2]]):
        raise UsageError(f"--grace takes a number with s, m, h or d, such as 2h, found {word!r}")
    return seconds


def _write(done: Collected) -> None:
    would = "would be " if done.dry_run else ""
    if done.version is not None:
        noun = "version" if len(done.given_up) == 1 else "versions"
        output.write(f"{would}given up: {noun} {output.span_of(done.given_up)} (by version {done.version})")
    if done.waiting:
        count = output.plural(len(done.waiting), "file")
        output.write(f"waiting for the grace period: {count}, {_bytes(done.waiting_bytes)}")
        for file in sorted(done.waiting, key=lambda file: file.until)[:_MOST_SHOWN]:
            output.write(f"  {file.name}  until {time_text(file.until)}")
        if len(done.waiting) > _MOST_SHOWN:
            last = time_text(max(file.until for file in done.waiting))
            output.write(f"  and {len(done.waiting) - _MOST_SHOWN} more, the last until {last} (--json lists them)")
    for error in done.obstacles:
        output.write(f"{output.styled('nothing can be removed', 'bad')}: {output.clean(error)}")
    removed = f"{output.plural(len(done.manifests), 'manifest')} and {output.plural(len(done.segments), 'segment')}"
    output.write(f"{output.clean(done.path)}: {would}removed: {removed}, {_bytes(done.nbytes)}")


def _bytes(count: int) -> str:
    return f"{output.plural(count, 'byte')}" + (f" ({output.size(count)})" if count >= 1000 else "")
