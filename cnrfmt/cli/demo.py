"""``cnrfmt demo``: a training run that is killed and restored, on real data."""

from __future__ import annotations

import argparse
from pathlib import Path

from cnrfmt.cli.options import Verbs, add_threads, add_verb

_PATH = "demo.cnr"
_PLOT = ""
"""What --plot without a file stands for: a picture beside the container."""


def add(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(
        verbs,
        "demo",
        _run,
        "Trains a small recommender on real orders, kills it half-way, restores it, and compares.",
        """It runs without interruption; killed, and restored from weights on a grid; and killed, and restored from rows
        of few bits: all side by side, in about a minute. The container that it leaves behind is one to try the other
        verbs on. It needs the extra `demo`: pip install 'cnrfmt[demo]'.""",
        """
        cnrfmt demo
        cnrfmt demo --bits 4 --checkpoint-every 250 --plot
        cnrfmt demo --policy intermittent
        cnrfmt demo /tmp/try.cnr --json
        """,
    )
    parser.add_argument(
        "path", metavar="PATH", nargs="?", default=_PATH, help=f"where to write (else {_PATH})"
    )
    parser.add_argument(
        "--bits",
        type=int,
        choices=(32, *range(8, 1, -1)),
        help="rows of so many bits per weight, 32 is raw float32 (else weights on a grid)",
    )
    parser.add_argument(
        "--policy",
        choices=("consecutive", "intermittent", "one-shot", "full"),
        default="consecutive",
        help="what a checkpoint writes (default: consecutive)",
    )
    parser.add_argument(
        "--checkpoint-every",
        type=int,
        default=500,
        metavar="N",
        help="orders between two checkpoints (default: 500)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    parser.add_argument(
        "--plot",
        nargs="?",
        const=_PLOT,
        metavar="FILE",
        help="draw the result into FILE (else into a .png beside PATH)",
    )
    add_threads(parser)


def _run(args: argparse.Namespace) -> int:
    from cnrfmt.demo.run import run_demo

    plot = args.plot
    if plot == _PLOT:
        plot = Path(args.path).with_suffix(".png")
    run_demo(
        args.path,
        bits=args.bits,
        policy=args.policy,
        checkpoint_every=args.checkpoint_every,
        seed=args.seed,
        plot=plot,
        json=args.json,
        threads=args.threads,
    )
    return 0
