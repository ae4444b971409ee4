"""``cnrfmt convert``: between containers and HDF5, safetensors and npz files."""

from __future__ import annotations

import argparse
from typing import Any

from cnrfmt.cli import exits, output
from cnrfmt.cli.options import Verbs, add_threads, add_verb, add_version
from cnrfmt.encodings.quantize import Quantize
from cnrfmt.errors import UsageError

_FORMATS = ("cnr", "hdf5", "safetensors", "npz")
_RAW = ("raw", "32")
_OPTION_OF = {
    "force=True": "--force",
    "source_format=": "--from",
    "target_format=": "--to",
    "quantize={name: None, ...}": "--quantize NAME=raw",
}
"""What errors call an argument, and what it is called here."""


def add(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(
        verbs,
        "convert",
        _run,
        "Converts an HDF5, safetensors or npz file into a checkpoint, or a checkpoint into such a file.",
        """The suffixes tell the formats: .cnr or a directory; .h5 or .hdf5; .safetensors; .npz. Towards a checkpoint,
        matrices of numbers become tables, and all the rest becomes dense state.""",
        """
        cnrfmt convert model.safetensors model.cnr
        cnrfmt convert model.h5 run7 --quantize 8 --tables 'embeddings/*'
        cnrfmt convert model.npz model.cnr --quantize 'user*=4' --quantize item=8
        cnrfmt convert model.cnr model.h5 --version 3
        """,
    )
    parser.add_argument("source", metavar="SRC", help="what to convert")
    parser.add_argument("target", metavar="DST", help="where to")
    parser.add_argument(
        "--quantize",
        nargs="+",
        action="extend",
        metavar="BITS|PATTERN=BITS",
        help="store float32 weights in 8, 4 or 2 bits: all tables, or those whose names match (as in a shell; the "
        "first pattern that matches counts; raw for none)",
    )
    parser.add_argument(
        "--tables",
        nargs="+",
        action="extend",
        metavar="PATTERN",
        help="the tables wanted; towards a checkpoint, other matrices become dense state",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="go on where DST is there: a file is replaced, a checkpoint gets its next version",
    )
    parser.add_argument("--from", dest="source_format", choices=_FORMATS, help="SRC's format, whatever its suffix")
    parser.add_argument("--to", dest="target_format", choices=_FORMATS, help="DST's format, whatever its suffix")
    add_version(parser)
    add_threads(parser)


def _run(args: argparse.Namespace) -> int:
    from cnrfmt.integrations.convert import convert

    quantize = _quantization(args.quantize)
    try:
        with output.progress("converting", shown=not args.json) as progress:
            found = convert(
                args.source,
                args.target,
                quantize=quantize,
                tables=args.tables,
                version=args.version,
                force=args.force,
                source_format=args.source_format,
                target_format=args.target_format,
                threads=args.threads,
                progress=progress,
            )
    except UsageError as error:
        text = str(error)
        for theirs, ours in _OPTION_OF.items():
            text = text.replace(theirs, ours)
        raise UsageError(text) from error
    if args.json:
        output.write_json({"source": args.source, "target": args.target, **found})
    else:
        _write(args.target, found)
    return exits.SOUND


def _quantization(words: list[str] | None) -> dict[str, Quantize | None] | None:
    """What `save` takes: patterns in the order given, and bits alone as the pattern that matches all, last."""
    if not words:
        return None
    found: dict[str, Quantize | None] = {}
    everything: dict[str, Quantize | None] = {}
    for word in words:
        pattern, equals, bits = word.rpartition("=")
        into = found if equals else everything
        key = pattern if equals else "*"
        if key in into:
            raise UsageError(f"--quantize: {pattern!r} twice" if equals else "--quantize: bits for all tables twice")
        into[key] = _bits(bits, word)
    return {**found, **everything}


def _bits(text: str, word: str) -> Quantize | None:
    if text in _RAW:
        return None
    if text not in ("8", "4", "2"):
        raise UsageError(f"--quantize takes 8, 4, 2 or raw, alone or behind PATTERN=; found {word!r}")
    return Quantize(bits=int(text))


def _write(target: str, found: dict[str, Any]) -> None:
    counts = f"{output.plural(len(found['tables']), 'table')}, {output.plural(len(found['dense']), 'dense entry')}"
    counts = counts.replace("dense entrys", "dense entries")
    version = f", version {found['version']}" if found["target_format"] == "cnr" else ""
    output.write(f"{output.clean(target)}{version}: {counts}, {output.size(found['bytes'])} of arrays")
    for words in found["skipped"]:
        output.write(f"  left out: {output.clean(words)}")
