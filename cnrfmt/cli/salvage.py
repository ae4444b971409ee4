"""``cnrfmt salvage``: what is sound of a damaged checkpoint, into a new one."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import cnrfmt
from cnrfmt.cli import output
from cnrfmt.cli.options import Verbs, add_threads, add_verb
from cnrfmt.errors import UsageError
from cnrfmt.salvaging import Loss, Salvage, VersionState
from cnrfmt.salvaging.runs import EVERY

_MOST_RUNS = 5
_MOST_SHOWN = 20
"""How many runs of lost rows, and how many losses and versions, are shown; --json shows all."""


def add(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(
        verbs,
        "salvage",
        _run,
        "Copies what can be proven sound of a damaged checkpoint into a new one, and lists what is lost.",
        """Of the newest version whose manifest is sound, unless told otherwise. A row whose newest value is damaged is
        lost; it never comes back with an older value. In a dense table it then reads as the fill value, in a keyed
        table its key is left out. DAMAGED is only read. Look at --dry-run first: it says how much of each version is
        sound, and where an older one is whole, --whole takes that one. NEW is written beside its place, verified and
        then put there; it has an id of its own, so deltas of DAMAGED don't go on it. The exit code is 0 if nothing was
        lost and 1 if something was, or if nothing is sound. It is 0, too, where a later version may have existed but
        an append that was interrupted explains what is left just as well (the last line says so, and --json under
        perhaps_newer). A newest version that left no trace can't be noticed.""",
        """
        cnrfmt salvage broken.cnr --dry-run
        cnrfmt salvage broken.cnr mended.cnr
        cnrfmt salvage broken.cnr mended.cnr --whole
        cnrfmt salvage run7 users.cnr --version 12 --table user --json
        """,
    )
    parser.add_argument("source", metavar="DAMAGED", help="a single file or a directory")
    parser.add_argument("target", metavar="NEW", nargs="?", help="where nothing is yet; not needed with --dry-run")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--version", type=int, metavar="N", help="the version to salvage")
    choice.add_argument("--whole", action="store_true", help="the newest version that is sound as a whole")
    parser.add_argument(
        "--table",
        dest="tables",
        action="append",
        metavar="NAME",
        help="only this table (and the dense state); may be given again; what is lost of others then counts nowhere",
    )
    parser.add_argument("--dry-run", action="store_true", help="only look: read everything, write nothing")
    add_threads(parser)


def _run(args: argparse.Namespace) -> int:
    if args.target is None and not args.dry_run:
        raise UsageError("salvage needs NEW, where the new checkpoint goes, or --dry-run")
    with output.progress("salvaging", shown=not args.json) as progress:
        report = cnrfmt.salvage(
            args.source,
            args.target,
            version="whole" if args.whole else args.version,
            tables=args.tables,
            dry_run=args.dry_run,
            threads=args.threads,
            progress=progress,
        )
    if args.json:
        output.write_json(report.to_json())
    else:
        _write(report, args.tables)
    return report.exit_code


def _write(report: Salvage, tables: list[str] | None) -> None:
    step = "" if report.step is None else f", step {report.step}"
    output.write(output.styled(f"{output.clean(report.source)}: version {report.version}{step}", "bold"))
    for sign in report.newer:
        output.write(f"{output.styled('a newer version is lost', 'bad')}: {output.clean(sign)}")
    for sign in report.perhaps_newer:
        output.write(f"{output.styled('a later version may have existed', 'bad')}: {output.clean(sign)}")
    for note in report.notes:
        output.write(f"note: {output.clean(note)}")
    _write_versions(report.versions, f"versions{'' if tables is None else ' (the chosen tables and the dense state)'}")
    _heading("what there is")
    rows: list[list[object]] = [
        [t.name, "keyed" if t.keyed else "dense", t.rows, _number(t.lost, t.most, t.unbounded)] for t in report.tables
    ]
    rows.append(["(dense state)", "", len(report.dense), sum(x.table is None for x in report.losses)])
    output.write_table(["TABLE", "KIND", "ROWS", "LOST"], rows, right={"ROWS", "LOST"}, indent=2)
    if report.losses:
        _heading("what is lost")
        _write_losses(report.losses)
    output.write("")
    output.write(f"{output.clean(report.target or report.source)}: {_verdict(report)}")


def _heading(text: str) -> None:
    output.write("")
    output.write(output.styled(text, "bold"))


def _number(least: int, most: int, unbounded: bool = False) -> str:
    """How many are lost, where nobody may know it exactly."""
    if least == most:
        return f"{least:,}" if not unbounded else f"{least:,} or more" if least else "unknown"
    return (f"{least:,} to {most:,}" if least else f"up to {most:,}") + (" and others" if unbounded else "")


def _write_versions(versions: list[VersionState], heading: str) -> None:
    _heading(heading)
    shown = versions[-_MOST_SHOWN:]
    if len(shown) < len(versions):
        output.write(f"  the newest {len(shown)} of {len(versions)} (--json shows all):")
    rows = [[v.version, "" if v.step is None else v.step, _state_words(v), v.reason] for v in shown]
    output.write_table(["VERSION", "STEP", "STATE", ""], rows, right={"VERSION", "STEP"}, indent=2)


def _state_words(v: VersionState) -> str:
    if v.state == "damaged":
        nouns = "row or dense entry" if v.most == 1 else "rows or dense entries"
        return f"{_number(v.lost, v.most)} {nouns} lost"
    return {"whole": "whole", "gaps": "most is lost: a segment can't be read"}.get(v.state, "can't be read")


def _write_losses(losses: list[Loss]) -> None:
    for loss in losses[:_MOST_SHOWN]:
        output.write(f"  {output.clean(_what(loss))}")
        output.write(f"    because of  {output.clean(loss.place)} ({output.clean(loss.rule)})")
    if len(losses) > _MOST_SHOWN:
        output.write(f"  and {len(losses) - _MOST_SHOWN} more (--json lists them)")


def _what(loss: Loss) -> str:
    if loss.table is None:
        return "the dense state" if loss.dense is None else f"dense entry {loss.dense!r}"
    runs = _runs(loss.rows.tolist())
    if not loss.exact:
        number = "an unknown number of keys" if loss.count is None else f"up to {output.plural(loss.count, 'key')}"
        among = "any key may be one" if loss.rows.tolist() == EVERY.tolist() else f"among {runs}"
        return f"table {loss.table!r}: {number} that can't be told: {among}"
    if loss.column is None:
        return f"table {loss.table!r}: {output.plural(loss.count or 0, 'key')}: {runs}"
    return f"table {loss.table!r}, column {loss.column!r}: {output.plural(loss.count or 0, 'row')}: {runs}"


def _runs(runs: Iterable[list[int]]) -> str:
    words = [str(a) if a == b else f"{a} to {b}" for a, b in runs]
    more = f" and {len(words) - _MOST_RUNS} more runs (--json lists them)" if len(words) > _MOST_RUNS else ""
    return ", ".join(words[:_MOST_RUNS]) + more


def _verdict(report: Salvage) -> str:
    done = "written and verified" if report.target else "nothing was written (--dry-run)"
    perhaps = ["a later version may have existed, see above"] if report.perhaps_newer and not report.explicit else []
    if report.complete:
        nothing = f"nothing of version {report.version} is lost"
        return "; ".join([done, output.styled(nothing, "good"), *(output.styled(text, "bad") for text in perhaps)])
    words = []
    if report.losses:
        words.append(f"what is listed above is lost of version {report.version}")
    if report.newer and not report.explicit:
        words.append("a newer version is lost")
    elif report.left_out and not report.explicit:
        words.append(f"newer versions that aren't carried: {output.span_of(report.left_out)}")
    words += perhaps
    if report.losses and (whole := report.newest_whole) is not None:
        how = "take --whole instead of --version" if report.explicit else "add --whole"
        words.append(f"{how} for version {whole}, of which nothing is lost")
    return f"{done}; {output.styled('; '.join(words), 'bad')}"
