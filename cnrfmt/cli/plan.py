"""``cnrfmt plan``: what checkpoints will cost, before any is written."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cnrfmt
from cnrfmt.cli import exits, output, plan_words, quantization
from cnrfmt.cli.options import Verbs, add_threads, add_verb
from cnrfmt.encodings.grid import Grid
from cnrfmt.encodings.quantize import Choices
from cnrfmt.errors import UsageError

if TYPE_CHECKING:
    from cnrfmt.checkpointing.costs.estimates import TableShape
    from cnrfmt.checkpointing.costs.planning import CheckpointPlan, PlannedMerge
    from cnrfmt.checkpointing.costs.rates import Rates
    from cnrfmt.checkpointing.costs.traffic import Traffic

_TABLE = re.compile(r"(.+?):([\d_]+)x(\d+)((?::[^:]+)*)")
_RATES = ("encode", "gather", "write")
_QUANTIZE_HELP = (
    f"{quantization.ROWS_HELP}. Or it is grid:learning_rate=X with :restores=N or :c=F, integers in steps that follow "
    "each row's activity; any of :by=COLUMN, :one_valued=log16 and :moments=raw; bytes follow from steps in learning "
    "rates, so step=X alone doesn't say enough here"
)
_MOST_SHOWN = 24
"""Checkpoints that are shown one by one."""


def add(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(
        verbs,
        "plan",
        _run,
        "Estimates what checkpoints will cost: bytes, storage, bandwidth and stall.",
        """The tables are those of PATH, or those that --table names. How many rows an interval changes is said by
        --touched, or by --lookups. Encoding, gathering and writing are measured on this machine in about a second,
        unless --rate says how fast they are; nothing is left behind. What is assumed is printed.""",
        """
        cnrfmt plan run7 --touched 26% --expected-restores 3
        cnrfmt plan --table user:1000000x64:accumulator --touched 0.1 --bits 4
        cnrfmt plan --table user:10000000x32 --lookups 5000000 --policy full
        cnrfmt plan --table user:1000000x64:sum --encoding grid --expected-restores 3
        """,
    )
    parser.add_argument("path", metavar="PATH", nargs="?", help="a container whose tables are taken")
    parser.add_argument(
        "--table",
        dest="tables",
        action="append",
        metavar="NAME:ROWSxDIM[:...]",
        help="a table; behind it any of a data type (else float32), the word keyed, and names of float32 optimizer "
        "columns of one value per row, or of dim values if =dim follows; may be given again",
    )
    parser.add_argument(
        "--touched", metavar="FRACTION", help="of the rows of each table, by one interval, as in 0.26 or 26%%"
    )
    parser.add_argument("--lookups", type=float, metavar="N", help="in each table, by one interval")
    parser.add_argument("--zipf", type=float, metavar="A", help="exponent of Zipf's law, how skewed lookups are")
    parser.add_argument(
        "--spread",
        type=float,
        metavar="F",
        help="by how much the rates of 8 classes of rows differ (with --touched 3, else 1: one class)",
    )
    parser.add_argument(
        "--policy",
        metavar="NAME",
        help="full, one-shot, consecutive (default with --encoding grid) or intermittent (default without)",
    )
    parser.add_argument(
        "--encoding",
        choices=("rowwise", "grid"),
        default="rowwise",
        help="rows with parameters of their own (default), or integers in steps by the restores expected",
    )
    parser.add_argument("--bits", metavar="N", help="2, 3, 4, 8 or raw (else by the restores expected; else raw)")
    parser.add_argument("--expected-restores", type=float, metavar="N", help="in the whole run")
    parser.add_argument(
        "--failure-rate", type=float, metavar="N", help="failures of the job per hour, in place of expected restores"
    )
    parser.add_argument("--run-hours", type=float, metavar="N", help="with --failure-rate: how long the run takes")
    parser.add_argument("--quantize", nargs="+", action="extend", metavar=quantization.METAVAR, help=_QUANTIZE_HELP)
    parser.add_argument(
        "--initial",
        type=float,
        metavar="F",
        help="root mean square of the weights that rows begin with, in learning rates: baselines on a grid take the "
        "more the larger they are (default: 0.5, or 50 for tables with moments of Adam)",
    )
    parser.add_argument("--intervals", type=int, default=12, metavar="N", help="how many checkpoints (default: 12)")
    parser.add_argument("--minutes", type=float, default=30, metavar="N", help="from one to the next (default: 30)")
    parser.add_argument("--keep", type=int, default=1, metavar="N", help="versions that stay readable (default: 1)")
    parser.add_argument("--dense-bytes", type=int, metavar="N", help="dense state of each (else that of PATH)")
    parser.add_argument("--folder", metavar="DIR", help="where writing is measured (else beside PATH, or here)")
    parser.add_argument(
        "--rate",
        dest="rates",
        action="append",
        default=[],
        metavar="KEY=MB/s",
        help=f"{', '.join(_RATES)}: not measured but given, in MB per second; may be given again",
    )
    add_threads(parser)


def _run(args: argparse.Namespace) -> int:
    from cnrfmt.checkpointing.costs.estimates import recipes_for
    from cnrfmt.checkpointing.costs.planning import plan_checkpoints
    from cnrfmt.checkpointing.settings import MERGE_SHARE, MOST_SEGMENTS

    tables, dense = _tables(args)
    traffic = _traffic(args)
    bits = _bits(args)
    quantize: Choices = quantization.choices_of(args.quantize)
    if args.encoding == "grid":
        quantize = _grid(args)
    recipes = recipes_for(tables, bits, quantize)
    rates, measured = _rates(args, tables, recipes)
    policy = args.policy or ("consecutive" if args.encoding == "grid" else "intermittent")
    plan = plan_checkpoints(
        tables,
        traffic,
        policy=policy,
        bits=bits,
        quantize=quantize,
        initial=args.initial,
        dense_bytes=dense if args.dense_bytes is None else args.dense_bytes,
        intervals=args.intervals,
        interval_seconds=60 * args.minutes,
        keep=args.keep,
        merge_share=MERGE_SHARE if _grids(quantize) and policy == "consecutive" else None,
        most_segments=MOST_SEGMENTS,
        rates=rates,
    )
    kept = f"{output.plural(args.keep, 'version')} kept readable, in a directory"
    stored = f"{_stored_words(args, bits)}; {kept}"
    assumed = plan_words.assumed(tables, traffic, stored, recipes, args.initial, rates, measured)
    if args.json:
        output.write_json(_facts(plan, rates, measured, assumed))
    else:
        _write(plan, assumed)
    return exits.SOUND


def _tables(args: argparse.Namespace) -> tuple[list[TableShape], int]:
    """The tables, and the bytes of the dense state."""
    if (args.path is None) == (args.tables is None):
        raise UsageError("plan takes the tables of PATH, or --table once or more, one of the two")
    if args.path is None:
        return [_table(word) for word in args.tables], 0
    from cnrfmt.checkpointing.costs.estimates import shapes_of
    from cnrfmt.cli import describe

    with cnrfmt.open(args.path) as ck:
        return shapes_of(ck), sum(entry["bytes"] for entry in describe.dense_entries(ck))


def _table(word: str) -> TableShape:
    from cnrfmt import dtypes
    from cnrfmt.checkpointing.costs.estimates import table_shape

    found = _TABLE.fullmatch(word)
    if found is None:
        raise UsageError(f"--table {word}: it takes NAME:ROWSxDIM, such as user:1000000x64 or user:1000000x64:momentum")
    name, rows, dim, rest = found.groups()
    dtype, keyed = "float32", False
    columns: dict[str, bool] = {}
    for item in rest.split(":")[1:]:
        column, equals, width = item.partition("=")
        if item in dtypes.COLUMN_TYPES:
            dtype = item
        elif item == "keyed":
            keyed = True
        elif (equals and width != "dim") or not column or column in columns or column == "weight":
            raise UsageError(f"--table {word}: {item!r} is no column; it takes NAME or NAME=dim, each name once")
        else:
            columns[column] = not equals
    return table_shape(name, int(rows), int(dim), dtype=dtype, columns=columns, keyed=keyed)


def _traffic(args: argparse.Namespace) -> Traffic:
    from cnrfmt.checkpointing.costs.traffic import EXPONENT, Traffic

    if (args.touched is None) == (args.lookups is None):
        raise UsageError("plan takes --touched or --lookups, one of the two")
    touched = None if args.touched is None else _fraction(args.touched)
    return Traffic(touched, args.lookups, EXPONENT if args.zipf is None else args.zipf, args.spread)


def _fraction(text: str) -> float:
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise UsageError(f"--touched {text}: it takes a fraction, such as 0.26 or 26%") from None


def _bits(args: argparse.Namespace) -> int:
    """The bits of the run; 32 where rows are raw."""
    from cnrfmt.checkpointing import bits

    given = [args.bits is not None, args.expected_restores is not None, args.failure_rate is not None]
    if sum(given) > 1:
        raise UsageError("plan takes one of --bits, --expected-restores and --failure-rate")
    if (args.failure_rate is None) != (args.run_hours is None):
        raise UsageError("--failure-rate and --run-hours go together")
    if args.bits is not None:
        legal = {"2": 2, "3": 3, "4": 4, "8": 8, "raw": 32, "32": 32}
        if args.bits not in legal:
            raise UsageError(f"--bits {args.bits}: it takes 2, 3, 4, 8 or raw; --quantize takes more")
        return legal[args.bits]
    expected = _expected(args)
    return 32 if expected is None else bits.bits_for(expected)


def _stored_words(args: argparse.Namespace, bits: int) -> str:
    """How rows are stored that no --quantize names."""
    why = plan_words.restores_words(_expected(args))
    if args.encoding == "grid":
        return f"on a grid, in steps{why or ' for any number of restores'}"
    return f"bits: {bits}{why}" if bits != 32 else "bits: raw, but for what --quantize names"


def _expected(args: argparse.Namespace) -> float | None:
    """The restores expected; None where nothing is said."""
    from cnrfmt.checkpointing import bits

    if args.failure_rate is None:
        return None if args.expected_restores is None else float(args.expected_restores)
    return bits.expected_restores(args.failure_rate, args.run_hours)


def _grid(args: argparse.Namespace) -> Grid:
    """The grid of the run: bytes don't depend on its learning rate."""
    from cnrfmt.checkpointing.encoding_rule import ANY_NUMBER

    if args.bits is not None or args.quantize is not None:
        raise UsageError("--bits and --quantize are for rows; --encoding grid goes without, or say --quantize grid:...")
    expected = _expected(args)
    return Grid(learning_rate=1.0, restores=ANY_NUMBER if expected is None else expected)


def _rates(
    args: argparse.Namespace, tables: list[TableShape], recipes: plan_words.Recipes
) -> tuple[Rates, tuple[str, ...]]:
    """The rates, and which of them were measured just now."""
    from cnrfmt.checkpointing.costs import rates

    given: dict[str, float] = {}
    for word in args.rates:
        key, _, value = word.partition("=")
        try:
            given[key] = float(value) * 1e6
        except ValueError:
            key = ""
        if key not in _RATES:
            raise UsageError(f"--rate {word}: it takes {', '.join(_RATES)}, then = and MB per second, as in write=800")
    measured = tuple(key for key in _RATES if key not in given)
    if not measured:
        return rates.Rates(**given), measured
    table = rates.largest(tables)
    folder = args.folder or (Path(args.path).absolute().parent if args.path else Path.cwd())
    found = rates.measure_rates(folder, table, recipes[table.schema.name, "weight"], threads=args.threads)
    return rates.Rates(**{**vars(found), **given}), measured


def _grids(quantize: Choices) -> list[Grid]:
    """The grids that tables may be on."""
    choices = quantize.values() if isinstance(quantize, Mapping) else [quantize]
    return [choice for choice in choices if isinstance(choice, Grid) and choice.learning_rate is not None]


def _facts(plan: CheckpointPlan, rates: Rates, measured: Sequence[str], assumed: list[str]) -> dict[str, Any]:
    costs = plan.costs
    return {
        "policy": plan.policy,
        "assumed": assumed,
        "rates": vars(rates),
        "measured": list(measured),
        "interval_seconds": plan.interval_seconds,
        "checkpoints": [
            {
                "kind": c.kind,
                "rows": c.rows,
                "bytes": c.nbytes,
                "bytes_by_part": c.sizes,
                "held_bytes": held,
                "read_bytes": read,
                "chain": c.chain,
                "stall_seconds": c.stall_seconds,
                "write_seconds": c.write_seconds,
                "merge": None if c.merge is None else _merge_facts(c.merge),
            }
            for c, held, read in zip(plan.checkpoints, costs.held, costs.read, strict=True)
        ],
        "plain_bytes": plan.plain_bytes,
        "average_bytes": costs.average_written,
        "average_held_bytes": costs.average_held,
        "peak_held_bytes": costs.peak_held,
        "peak_bytes": costs.peak,
        "bandwidth": plan.bandwidth,
        "stall_share": plan.stall_share,
        "late": plan.late,
    }


def _merge_facts(merge: PlannedMerge) -> dict[str, Any]:
    facts = {"rows": merge.rows, "bytes": merge.nbytes, "bytes_by_part": merge.sizes}
    return {**facts, "write_seconds": merge.write_seconds}


def _write(plan: CheckpointPlan, assumed: list[str]) -> None:
    output.write(output.styled(f"{plan.policy}, {output.plural(len(plan.checkpoints), 'checkpoint')}", "bold"))
    _write_costs(plan)
    output.write("")
    output.write(output.styled("what is written", "bold"))
    _write_parts(plan)
    if len(plan.checkpoints) > _MOST_SHOWN:
        output.write(f"  and {len(plan.checkpoints) - _MOST_SHOWN} more (--json shows all)")
    output.write("")
    output.write_pairs(_summary(plan))
    output.write("")
    output.write(output.styled("assumed", "bold"))
    for line in assumed:
        for part in textwrap.wrap(output.clean(line), output.width() - 2, subsequent_indent="  "):
            output.write(f"  {part}")


def _write_costs(plan: CheckpointPlan) -> None:
    """What each checkpoint takes: as wide as a terminal of 80 columns, like the other table."""
    rows = []
    checkpoints = list(zip(plan.checkpoints, plan.costs.held, plan.costs.read, strict=True))
    for number, (c, held, read) in enumerate(checkpoints[:_MOST_SHOWN]):
        after = [output.size(held), output.size(read)]
        own = [number, c.kind, f"{c.rows:,}", output.size(c.nbytes)]
        rows.append(
            [*own, *(after if c.merge is None else ["", ""]), _seconds(c.stall_seconds), _seconds(c.write_seconds)]
        )
        if (merge := c.merge) is not None:
            size = output.size(merge.nbytes)
            rows.append(["", "merge", f"{merge.rows:,}", size, *after, "", _seconds(merge.write_seconds)])
    header = ["", "KIND", "ROWS", "WRITTEN", "KEPT", "RESTORE", "STALL", "WRITE"]
    output.write_table(header, rows, right=set(header) - {"KIND"}, indent=2)


def _write_parts(plan: CheckpointPlan) -> None:
    """What the bytes of each checkpoint are."""
    rows = []
    for number, c in enumerate(plan.checkpoints[:_MOST_SHOWN]):
        for name, one in ((number, c), ("merge", c.merge)):
            if one is not None:
                named = [one.sizes["weights"], one.sizes["optimizer"], one.sizes["ids"]]
                rows.append([name, *(output.size(n) for n in (*named, one.nbytes - sum(named), one.nbytes))])
    header = ["", "WEIGHTS", "OPTIMIZER", "IDS", "REST", "ALL"]
    output.write_table(header, rows, right=header, indent=2)


def _summary(plan: CheckpointPlan) -> list[tuple[str, object]]:
    costs = plan.costs
    average, plain = round(costs.average_written), plan.plain_bytes
    fewer = output.times_smaller(plain, average)
    found: list[tuple[str, object]] = [
        ("one full checkpoint", f"{output.size(plain)} as plain arrays, {output.size(costs.written[0])} as stored"),
        ("written on average", f"{output.size(average)} a checkpoint, {fewer} than plain arrays"),
        *_merged(plan),
        ("bandwidth", f"{output.size(round(plan.bandwidth))}/s on average"),
        ("storage", f"{output.size(round(costs.average_held))} on average, {output.size(costs.peak_held)} at most"),
        ("", f"{output.size(costs.peak)} at most while a checkpoint is written"),
    ]
    if plan.stall_share is not None:
        found.append(("stall", f"{plan.stall_share:.3%} of the time"))
    if plan.late:
        late = output.plural(plan.late, "checkpoint")
        found.append(("too slow", f"{late} of {len(plan.checkpoints)} can't be written before the next one is due"))
    return found


def _merged(plan: CheckpointPlan) -> list[tuple[str, object]]:
    merges = [c.merge.nbytes for c in plan.checkpoints if c.merge is not None]
    share = sum(merges) / max(1, sum(plan.costs.written))
    return [("", f"{share:.0%} of it by {output.plural(len(merges), 'merge')} of the chain")] if merges else []


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:,.3g} s" if value < 1000 else f"{value:,.0f} s"
