"""``cnrfmt tag``: names for versions."""

from __future__ import annotations

import argparse

import cnrfmt
from cnrfmt.checkpointing.keeping.tags import tag, untag
from cnrfmt.cli import output
from cnrfmt.cli.options import Verbs, add_path, add_verb
from cnrfmt.errors import UsageError


def add(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(
        verbs,
        "tag",
        _run,
        "Names a version, takes a name away, or lists the names.",
        """A version that has a tag stays readable for as long as it has it. A tag that another version has moves to
        this one. Each change is a commit of its own, with the content of the newest version.""",
        """
        cnrfmt tag run7
        cnrfmt tag run7 prod
        cnrfmt tag run7 best --version 12
        cnrfmt tag run7 best --delete
        """,
    )
    add_path(parser)
    parser.add_argument("name", metavar="NAME", nargs="?", help="the tag; left out, all are listed")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--version", type=int, metavar="N", help="the version to name (else the newest)")
    choice.add_argument("--delete", action="store_true", help="take the tag away")


def _run(args: argparse.Namespace) -> int:
    if args.name is None:
        if args.version is not None or args.delete:
            raise UsageError("tag needs NAME, the tag to give or to take away")
        return _list(args)
    version = untag(args.path, args.name) if args.delete else tag(args.path, args.name, args.version)
    if args.json:
        output.write_json({"tag": args.name, "version": version, "deleted": args.delete})
    else:
        done = "isn't tagged {} any more" if args.delete else "is tagged {}"
        output.write(output.clean(f"{args.path}: version {version} {done.format(repr(args.name))}"))
    return 0


def _list(args: argparse.Namespace) -> int:
    with cnrfmt.open(args.path) as ck:
        tags = dict(sorted(ck.tags.items()))
    if args.json:
        output.write_json(tags)
    elif tags:
        output.write_table(["TAG", "VERSION"], list(tags.items()), right={"VERSION"})
    else:
        output.write(f"{output.clean(args.path)}: no version has a tag")
    return 0
