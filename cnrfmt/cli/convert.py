"""``cnrfmt convert``: between containers and HDF5, safetensors and npz files."""

from __future__ import annotations

import argparse
from typing import Any

from cnrfmt.cli import exits, output, quantization
from cnrfmt.cli.options import Verbs, add_threads, add_verb, add_version, naming_options

_FORMATS = ("cnr", "hdf5", "safetensors", "npz")


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
        cnrfmt convert model.npz model.cnr --quantize 'user*=4:adaptive' item=8
        cnrfmt convert model.cnr model.h5 --version 3
        """,
    )
    parser.add_argument("source", metavar="SRC", help="what to convert")
    parser.add_argument("target", metavar="DST", help="where to")
    parser.add_argument(
        "--quantize",
        nargs="+",
        action="extend",
        metavar=quantization.METAVAR,
        help=quantization.HELP,
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

    quantize = quantization.choices_of(args.quantize)
    with naming_options(), output.progress("converting", shown=not args.json) as progress:
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
    if args.json:
        output.write_json({"source": args.source, "target": args.target, **found})
    else:
        _write(args.target, found)
    return exits.SOUND


def _write(target: str, found: dict[str, Any]) -> None:
    from cnrfmt.integrations.scheme import NO_TABLES

    counts = f"{output.plural(len(found['tables']), 'table')}, {output.plural(len(found['dense']), 'dense entry')}"
    counts = counts.replace("dense entrys", "dense entries")
    version = f", version {found['version']}" if found["target_format"] == "cnr" else ""
    output.write(f"{output.clean(target)}{version}: {counts}, {output.size(found['bytes'])} of arrays")
    if found["target_format"] == "cnr" and not found["tables"]:
        output.write(f"  {NO_TABLES}")
    for words in found["skipped"]:
        output.write(f"  left out: {output.clean(words)}")
