"""``cnrfmt plot``: a picture of what the checkpoints of a container cost."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from cnrfmt.checkpointing.costs.cost_history import Cost, cost_history
from cnrfmt.cli import costs, describe, exits, output
from cnrfmt.cli.options import Verbs, add_path, add_verb
from cnrfmt.errors import UsageError
from cnrfmt.reader import open
from cnrfmt.run_record import record_of
from cnrfmt.sizes import plain_bytes
from cnrfmt.storage.container import SUFFIX

_MOST_READ = 256
"""Manifests that are read: what is older is told by the record of the run, or not at all."""


def add(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(
        verbs,
        "plot",
        _run,
        "Draws what the checkpoints of a training run cost.",
        """Bytes that each wrote, and the average so far; bytes that were kept after each, and those that a restore of
        each reads. It goes by what the run recorded, and by the manifests of the versions that are there. With --json
        it prints the numbers, and draws only if -o says where. Drawing needs the extra `plot`: pip install
        'cnrfmt[plot]'.""",
        """
        cnrfmt plot run7
        cnrfmt plot run7 -o costs.svg
        cnrfmt plot model.cnr --json
        """,
    )
    add_path(parser)
    parser.add_argument("-o", dest="output", metavar="FILE", help="a .png or .svg to draw into (else beside PATH)")


def _run(args: argparse.Namespace) -> int:
    target = _target(args)
    draw = None if target is None else _drawing(target)
    with open(args.path) as ck:
        manifests, errors = describe.manifests(ck, _MOST_READ)
        full = plain_bytes(ck) + sum(entry["bytes"] for entry in describe.dense_entries(ck))
        readable, anew = ck.versions, ck.view.container.kind == "file"
    record = record_of(manifests[-1])
    history = cost_history(() if record is None else record.checkpoints, manifests, readable, anew=anew)
    policy = "" if record is None else record.policy
    first = history[0].checkpoint.version
    notes = _notes(full, first)
    if args.json:
        checkpoints = costs.checkpoint_facts(history, record)
        for facts in checkpoints:
            facts["average_of_full"] = facts["average_bytes"] / full if full else None
        output.write_json({"policy": policy, "full_bytes": full, "counted": notes, "checkpoints": checkpoints})
    if draw is not None:
        draw(Path(args.path).absolute().name, policy, history, full, notes)
        if not args.json:
            output.write(f"drawn in {output.clean(target)}")
    for error in errors:
        output.write(f"cnrfmt: {output.clean(error)}", sys.stderr)
    return exits.worst_of(errors)


def _notes(full: int, first: int) -> list[str]:
    notes = [
        "Counted: bytes of segments, with weights, optimizer state, row ids, dense state, digests and padding; "
        "manifests aren't.",
        "Kept: for the versions that are readable now, since they were committed; and beside them for as many of the "
        "newest as are now.",
    ]
    if full:
        notes.append(
            f"A full checkpoint, {output.size(full)}: tables as plain arrays of their data types, with optimizer "
            "columns and keys, and the dense state, all of the newest version."
        )
    return [*notes, f"Nothing is known of versions before {first}."] if first else notes


def _target(args: argparse.Namespace) -> Path | None:
    if args.output is not None:
        return Path(args.output)
    return None if args.json else Path(os.path.abspath(args.path).removesuffix(SUFFIX) + ".png")


def _drawing(path: Path) -> Callable[[str, str, list[Cost], int, list[str]], None]:
    """What draws there; raises `UsageError` now where that can't be done later."""
    try:
        from cnrfmt.checkpointing.costs import plotting
        from cnrfmt.trial.plot import check_path
    except ImportError as error:
        raise UsageError("plot needs matplotlib; run: pip install 'cnrfmt[plot]' (--json does without)") from error
    check_path(path)
    return lambda name, policy, history, full, notes: plotting.draw(
        plotting.Picture(name, policy, history, full, notes), path
    )
