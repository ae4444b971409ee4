"""``cnrfmt quantize``: what each way to quantise makes of one's own rows; and a checkpoint anew, in one of them."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cnrfmt
from cnrfmt.cli import describe, exits, info, output, quantization
from cnrfmt.cli.options import Verbs, add_threads, add_verb, add_version, naming_options
from cnrfmt.errors import UsageError
from cnrfmt.sizes import plain_bytes, sizes

if TYPE_CHECKING:
    from cnrfmt.trial import Attempt, ColumnTrial, Trial

_LOSES_GROWTH = "log8"


def add(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(
        verbs,
        "quantize",
        _run,
        "Shows what each way to quantise makes of your rows, or makes a checkpoint anew in one of them.",
        """With --dry-run, PATH is any number of checkpoints and of HDF5, safetensors and npz files: each method is
        tried with each number of bits on a sample of the rows, and bytes, errors and speeds are shown; nothing is
        written. Without it, SRC is a checkpoint and DST a new one, with everything of SRC in it, whose rows are stored
        as --quantize says; what it doesn't name is stored raw. Rows that are quantised already aren't as accurate as
        those that they were made of, and the errors add up.""",
        """
        cnrfmt quantize model.safetensors --dry-run --plot errors.png
        cnrfmt quantize run7 --dry-run --tables user --quantize 4:adaptive 3:lsq
        cnrfmt quantize run7 small.cnr --quantize 'user*=4:adaptive' item=8
        """,
    )
    parser.add_argument("paths", metavar="PATH", nargs="+", help="with --dry-run, files; without, SRC and DST")
    parser.add_argument("--dry-run", action="store_true", help="measure on a sample of the rows, and write nothing")
    parser.add_argument(
        "--quantize",
        nargs="+",
        action="extend",
        metavar=quantization.METAVAR,
        help=f"{quantization.HELP}; with --dry-run, what to try (else every method with all of its bits)",
    )
    parser.add_argument("--tables", nargs="+", action="extend", metavar="PATTERN", help="only these (as in a shell)")
    parser.add_argument(
        "--column",
        dest="columns",
        action="append",
        metavar="PATTERN",
        help="with --dry-run: these columns (else weights and columns of one value per row); may be given again",
    )
    parser.add_argument(
        "--rows", type=int, metavar="N", help="with --dry-run: try N rows (else at most 50,000 and 32 MiB of them)"
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="with --dry-run: draw errors against bytes into FILE, a .png say"
    )
    parser.add_argument(
        "--force", action="store_true", help="go on where DST is there: the checkpoint gets its next version"
    )
    add_version(parser)
    add_threads(parser)


def _run(args: argparse.Namespace) -> int:
    return _try(args) if args.dry_run else _requantize(args)


def _try(args: argparse.Namespace) -> int:
    if args.force:
        raise UsageError("--force goes with DST; --dry-run writes nothing")
    draw = None if args.plot is None else _drawing(Path(args.plot))
    schemes = quantization.schemes_of(args.quantize)
    trials: list[Trial] = []
    for path in args.paths:
        with output.progress(f"trying {output.clean(path)}", shown=not args.json) as progress:
            trial = cnrfmt.try_quantization(
                path,
                schemes=schemes,
                tables=args.tables,
                columns=args.columns,
                rows=args.rows,
                version=args.version,
                progress=progress,
            )
        trials.append(trial)
        if not args.json:
            _write(trial)
    if args.json:
        output.write_json({"trials": [trial.to_json() for trial in trials]})
    if draw is not None:
        left_out = draw(trials)
        if not args.json:
            more = f"; of {output.plural(left_out, 'column')} more only the table above tells" if left_out else ""
            output.write(f"drawn in {output.clean(args.plot)}{more}")
    return exits.SOUND


def _drawing(path: Path) -> Any:
    """What draws trials to a file; raises `UsageError` now where that can't be done later."""
    try:
        from cnrfmt.trial import plot
    except ImportError as error:
        raise UsageError("--plot needs matplotlib; run: pip install 'cnrfmt[plot]'") from error
    plot.check_path(path)
    return lambda trials: plot.draw(trials, path)


def _write(trial: Trial) -> None:
    for column in trial.columns:
        name = output.clean(f"{trial.source}: {column.table}.{column.column}")
        tried = "all of them" if column.tried_rows == column.rows else f"{column.tried_rows:,} of them"
        output.write(output.styled(name, "bold"))
        shape = f"{output.plural(column.rows, 'row')} of {output.plural(column.width, 'element')}"
        output.write(f"  {shape}, {column.plain_bytes} B each as float32; tried on {tried}")
        if column.is_quantised:
            output.write("  these rows are quantised already: the errors are what another time would add")
        _write_column(column)
        output.write("")
    if trial.skipped:
        output.write(f"left out, since only float32 is quantised: {output.clean(', '.join(trial.skipped))}")
        output.write("")
    output.write("* errs least of all that take as many bytes or fewer")
    output.write("EXACT: rows that the encoding can't hold, stored as they are; B/ROW counts them, SHARE is of float32")
    output.write("errors: relative l2, the norm of what changes in a row over the row's norm")
    output.write("speeds: MB of float32 rows a second, one thread, measured just now on this machine")
    if any(a.quantize.one_valued == _LOSES_GROWTH for c in trial.columns if c.one_valued for a in c.attempts):
        output.write("log8: an accumulator that is restored again and again stops growing; log12 is the default")


def _write_column(column: ColumnTrial) -> None:
    rows = []
    for attempt in column.attempts:
        figures = [
            f"{attempt.bytes_per_row:,.2f}".rstrip("0").rstrip("."),
            f"{attempt.share:.1%}",
            output.number(attempt.mean_error),
            output.number(attempt.max_error),
            f"{attempt.exact_rows:,}",
            f"{attempt.encode_rate / 1e6:,.0f}",
            f"{attempt.decode_rate / 1e6:,.0f}",
        ]
        word = attempt.quantize.one_valued if column.one_valued else attempt.word
        rows.append(["*" if attempt.best else "", word, *figures])
    numbers = ["B/ROW", "SHARE", "MEAN ERR", "MAX ERR", "EXACT", "ENCODE", "DECODE"]
    header = ["", "one_valued" if column.one_valued else "--quantize", *numbers]
    output.write_table(header, rows, right=set(numbers), indent=2)
    for attempt in column.attempts:
        if "auto" in attempt.word and not column.one_valued:
            output.write(f"  {attempt.word} comes to {_stored(attempt)}")


def _stored(attempt: Attempt) -> str:
    scheme = attempt.recipe.scheme
    words = describe.layout_words(attempt.recipe.layout, None if scheme is None else scheme.method)
    parameters = "" if scheme is None else describe.parameter_words(asdict(scheme))
    return words + (f" ({parameters})" if parameters else "")


def _requantize(args: argparse.Namespace) -> int:
    for option, value in (("--plot", args.plot), ("--rows", args.rows), ("--column", args.columns)):
        if value is not None:
            raise UsageError(f"{option} goes with --dry-run")
    if len(args.paths) != 2:
        raise UsageError("quantize needs SRC and DST, or --dry-run")
    source, target = args.paths
    choices = quantization.choices_of(args.quantize)
    if choices is None:
        raise UsageError("quantize needs --quantize to know how rows are to be stored; --dry-run helps to choose")
    _check_source(source)
    with naming_options(), output.progress("quantising", shown=not args.json) as progress:
        version = cnrfmt.requantize(
            source,
            target,
            quantize=choices,
            tables=args.tables,
            version=args.version,
            force=args.force,
            threads=args.threads,
            progress=progress,
        )
    with cnrfmt.open(target, version=version) as ck:
        facts = {
            "source": source,
            "target": target,
            "version": version,
            "step": ck.step,
            "tables": [describe.table(ck, table) for table in ck.values()],
            "bytes": sum(sizes(ck).chain.values()),
            "plain_bytes": plain_bytes(ck),
        }
    if args.json:
        output.write_json(facts)
    else:
        _write_summary(facts)
    return exits.SOUND


def _check_source(source: str) -> None:
    lower = source.lower()
    if not lower.endswith(".cnr") and lower.endswith((".h5", ".hdf5", ".safetensors", ".npz")):
        raise UsageError(
            f"{source}: without --dry-run quantize takes a checkpoint; "
            "`cnrfmt convert SRC DST --quantize ...` makes one of a file"
        )


def _write_summary(facts: dict[str, Any]) -> None:
    smaller = output.times_smaller(facts["plain_bytes"], facts["bytes"])
    output.write(
        f"{output.clean(facts['target'])}, version {facts['version']}: {output.plural(len(facts['tables']), 'table')}, "
        f"{output.size(facts['bytes'])}, {smaller} than its tables as plain arrays"
    )
    info.write_errors(facts["tables"])
