"""``cnrfmt compact``: one baseline of a chain of deltas."""

from __future__ import annotations

import argparse
from typing import Any

import cnrfmt
from cnrfmt.checkpointing.compacting.compaction import compact
from cnrfmt.cli import exits, output, quantization
from cnrfmt.cli.options import Verbs, add_path, add_threads, add_verb, add_version, naming_options
from cnrfmt.encodings.quantize import Choices
from cnrfmt.errors import UsageError
from cnrfmt.sizes import sizes


def add(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(
        verbs,
        "compact",
        _run,
        "Makes one baseline of a checkpoint's chain of deltas, which reads the same bit for bit.",
        """Quantised rows keep their codes, and differences are added up exactly: nothing is quantised anew. Without
        TARGET, PATH gets a next version with the same content: in a directory, earlier versions stay readable and keep
        their segments until they are collected (`cnrfmt gc`); a single file is written anew with that version alone.
        With TARGET, a new checkpoint is made, and PATH is only read; --encoding makes one whose weights are encoded
        anew, to serve from. Readers aren't disturbed, and an interrupted compaction leaves all as it was.""",
        """
        cnrfmt compact run7
        cnrfmt compact run7 run7-compacted
        cnrfmt compact run7 model.cnr --version 12
        cnrfmt compact run7 serving.cnr --encoding 4:head
        """,
    )
    add_path(parser)
    parser.add_argument("target", metavar="TARGET", nargs="?", help="a new checkpoint (else PATH itself)")
    parser.add_argument(
        "--encoding",
        nargs="+",
        action="extend",
        metavar=quantization.METAVAR,
        help=f"with TARGET: encode weights anew; {quantization.ROWS_HELP}",
    )
    parser.add_argument(
        "--force", action="store_true", help="go on where TARGET is there: the checkpoint gets its next version"
    )
    add_version(parser)
    add_threads(parser)


def _run(args: argparse.Namespace) -> int:
    encoding = _encoding(args.encoding)
    before = _facts(args.path, args.version)
    with naming_options(), output.progress("compacting", shown=not args.json) as progress:
        version = compact(
            args.path,
            args.target,
            version=args.version,
            encoding=encoding,
            force=args.force,
            threads=args.threads,
            progress=progress,
        )
    target = args.path if args.target is None else args.target
    after = _facts(target, version)
    if args.json:
        output.write_json({"source": args.path, "target": target, "before": before, "after": after})
    else:
        _write(target, before, after)
    return exits.SOUND


def _encoding(words: list[str] | None) -> Choices:
    try:
        return quantization.choices_of(words)
    except UsageError as error:
        raise UsageError(str(error).replace("--quantize", "--encoding")) from error


def _facts(path: str, version: int | None) -> dict[str, Any]:
    """What a version needs to be read."""
    with cnrfmt.open(path, version=version) as ck:
        return {
            "version": ck.version,
            "step": ck.step,
            "segments": len(ck.manifest.chain),
            "bytes": sum(sizes(ck).chain.values()),
        }


def _write(target: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    name = f"{output.clean(target)}, version {after['version']}"
    if before == after:
        output.write(f"{name}: one segment already, {output.size(after['bytes'])}; nothing to do")
        return
    output.write(
        f"{name}: {output.plural(before['segments'], 'segment')} before, {after['segments']} now; "
        f"{output.size(before['bytes'])} before, {output.size(after['bytes'])} now"
    )
