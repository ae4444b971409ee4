"""``cnrfmt diff``: what differs between two checkpoints, or two versions of one."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import cnrfmt
from cnrfmt.cli import exits, output
from cnrfmt.cli.options import Verbs, add_threads, add_verb
from cnrfmt.errors import UsageError

if TYPE_CHECKING:
    from cnrfmt.comparing import Comparison, DenseDifference, SchemaDifference, Side, TableComparison

_DEFAULT_LIMIT = 5
_MOST_SHOWN = 50
"""How many columns, and how many other differences, are shown; --json shows all."""


def add(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(
        verbs,
        "diff",
        _run,
        "Compares two checkpoints, or two versions of one, row by row.",
        f"""Of each table and column: the rows that only one of them has, the rows that changed, by how much
        (the l2 norm of B's row less A's, over that of A's row), and which changed most. Then what differs in the
        schemas, in the dense state and in the metadata. A row has changed where any bit differs: a NaN is equal to the
        same NaN. How the rows are stored doesn't count, nor do version and step. Of two versions of one checkpoint only
        rows are read that were written between them. Like `git diff`, it ends with 0 whether they differ or not, unless
        --exit-code is given: then with {exits.DIFFERENT} where they do.""",
        """
        cnrfmt diff run7
        cnrfmt diff run7 --from 3 --to 5 --tables 'user*'
        cnrfmt diff model.cnr small.cnr --column weight --limit 20
        cnrfmt diff run7 copy.cnr --exit-code --json
        """,
    )
    parser.add_argument("a", metavar="A", help="a single file or a directory")
    parser.add_argument("b", metavar="B", nargs="?", help="another one (else another version of A)")
    parser.add_argument(
        "--from",
        dest="version_a",
        type=int,
        metavar="N",
        help="A's version (else the newest; without B, the one before)",
    )
    parser.add_argument("--to", dest="version_b", type=int, metavar="N", help="B's version (else the newest)")
    parser.add_argument(
        "--tables",
        nargs="+",
        action="extend",
        metavar="PATTERN",
        help="only these tables (as in a shell); dense state and metadata are then left out",
    )
    parser.add_argument(
        "--column",
        dest="columns",
        action="append",
        metavar="PATTERN",
        help="only these columns (else all but cnrfmt.checkpoints, the counts of a checkpoint manager); may be given "
        "again",
    )
    parser.add_argument(
        "--limit",
        type=int,
        default=_DEFAULT_LIMIT,
        metavar="N",
        help=f"how many of the rows that changed most are listed of a column (default: {_DEFAULT_LIMIT})",
    )
    parser.add_argument(
        "--exit-code", action="store_true", help=f"end with {exits.DIFFERENT} where the two differ, with 0 where not"
    )
    add_threads(parser)


def _run(args: argparse.Namespace) -> int:
    if args.limit < 0:
        raise UsageError(f"--limit must be 0 or more, found {args.limit}")
    with output.progress("comparing", shown=not args.json) as progress:
        found = cnrfmt.diff(
            args.a,
            args.b,
            version_a=args.version_a,
            version_b=args.version_b,
            tables=args.tables,
            columns=args.columns,
            worst=args.limit,
            threads=args.threads,
            progress=progress,
        )
    if args.json:
        output.write_json(found.to_json())
    else:
        _write(found, is_part=args.tables is not None or args.columns is not None)
    return exits.DIFFERENT if args.exit_code and not found.same else exits.SOUND


def _write(found: Comparison, *, is_part: bool) -> None:
    output.write_pairs([("A", _side(found.a)), ("B", _side(found.b))])
    _write_columns(found.tables)
    _write_worst(found.tables)
    _write_lines("rows and schemas", list(_table_lines(found)))
    _write_lines("dense state", [_dense_words(entry) for entry in found.dense or ()])
    _write_lines("metadata", [f"{key}: not the same" for key in found.metadata or ()])
    output.write("")
    verdict = output.styled("the same", "good") if found.same else output.styled("different", "bold")
    output.write(verdict + (" (the chosen tables and columns)" if is_part else ""))


def _side(side: Side) -> str:
    step = "" if side.step is None else f", step {side.step}"
    return f"{side.path}, version {side.version}{step}, container {side.container_id[:8]}, digest {side.digest}"


def _heading(text: str) -> None:
    output.write("")
    output.write(output.styled(text, "bold"))


def _write_columns(tables: list[TableComparison]) -> None:
    rows: list[list[object]] = []
    same = 0
    for table in tables:
        for column in table.columns:
            if not column.changed:
                same += 1
                continue
            figures = (column.mean, column.median, column.p99, column.largest)
            share = f"{column.changed / column.rows:.2%}"
            name = f"{table.name}.{column.name}"
            rows.append([name, f"{column.rows:,}", f"{column.changed:,}", share, *map(output.number, figures)])
    if not rows and not same:
        return
    _heading("rows that both have")
    if rows:
        header = ["COLUMN", "ROWS", "CHANGED", "SHARE", "MEAN", "MEDIAN", "P99", "MAX"]
        output.write_table(header, rows[:_MOST_SHOWN], right=set(header[1:]), indent=2)
        if len(rows) > _MOST_SHOWN:
            output.write(f"  and {len(rows) - _MOST_SHOWN} more columns that changed (--json lists them)")
        output.write("  MEAN to MAX: relative l2 errors of the changed rows; MEDIAN and P99 are right within 1 %")
    if infinite := sum(column.infinite for table in tables for column in table.columns):
        output.write(
            f"  {output.plural(infinite, 'changed row')} left out of them: A's row is zero, or there is a NaN or an "
            "infinity in one of the two"
        )
    left_out = sum(column.rows - table.looked_at for table in tables for column in table.columns)
    if left_out:
        output.write(f"  not read, since nothing wrote them between the two versions: {output.plural(left_out, 'row')}")
    if same:
        output.write(f"  unchanged: {output.plural(same, 'column' if not rows else 'other column')}")


def _write_worst(tables: list[TableComparison]) -> None:
    lines = []
    for table in tables:
        for column in table.columns:
            shown = [f"{row} ({_error(error)})" for row, error in column.worst]
            if shown:
                lines.append([f"{table.name}.{column.name}", ", ".join(shown)])
    if lines:
        noun = "ids or keys" if any(table.keyed for table in tables) else "ids"
        _heading(f"rows that changed most ({noun}, and the error of each)")
        output.write_table(["COLUMN", "ROWS"], lines[:_MOST_SHOWN], indent=2)


def _error(error: float) -> str:
    return "no finite error" if math.isinf(error) else output.number(error)


def _table_lines(found: Comparison) -> Iterator[str]:
    for names, side in ((found.only_a, "A"), (found.only_b, "B")):
        for name in names:
            yield f"{name}: only {side} has this table"
    for table in found.tables:
        for count, examples, side in (
            (table.only_a, table.examples_a, "A"),
            (table.only_b, table.examples_b, "B"),
        ):
            if count:
                yield f"{table.name}: only {side} has {_some_rows(count, examples, keyed=table.keyed)}"
        for difference in table.schema:
            yield f"{table.name}: {_schema_words(difference)}"


def _some_rows(count: int, examples: Sequence[int], *, keyed: bool) -> str:
    noun = "key" if keyed else "row"
    shown = ", ".join(map(str, examples))
    more = "" if len(examples) == count else ", ..."
    return output.plural(count, noun) + (f": {shown}{more}" if shown else "")


def _schema_words(difference: SchemaDifference) -> str:
    where = "" if difference.column is None else f"column {difference.column}"
    if difference.what == "column":
        side, dtype = ("A", difference.a) if difference.b is None else ("B", difference.b)
        return f"only {side} has {where} ({dtype})"
    return f"{where + ', ' if where else ''}{difference.what}: {difference.a} in A, {difference.b} in B"


def _dense_words(entry: DenseDifference) -> str:
    if entry.a is None or entry.b is None:
        side, what = ("A", entry.a) if entry.b is None else ("B", entry.b)
        return f"{entry.name}: only {side} has it ({what})"
    if entry.a != entry.b:
        return f"{entry.name}: {entry.a} in A, {entry.b} in B"
    error = "" if entry.error is None else f", relative l2 error {output.number(entry.error)}"
    return f"{entry.name}: not the same ({entry.a}{error})"


def _write_lines(heading: str, lines: list[str]) -> None:
    if lines:
        _heading(heading)
        for line in lines[:_MOST_SHOWN]:
            output.write(f"  {output.clean(line)}")
        if len(lines) > _MOST_SHOWN:
            output.write(f"  and {len(lines) - _MOST_SHOWN} more (--json lists them)")
