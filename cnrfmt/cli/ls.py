"""``cnrfmt ls``: tables, dense entries or versions, one a line."""

from __future__ import annotations

import argparse
from typing import Any

from cnrfmt.cli import describe, exits, info, output
from cnrfmt.cli.options import Verbs, add_path, add_verb, add_version
from cnrfmt.reader import open


def add(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(
        verbs,
        "ls",
        _run,
        "Lists the tables of a checkpoint, its dense entries or its versions, one a line.",
        "",
        """
        cnrfmt ls model.cnr
        cnrfmt ls model.cnr --dense
        cnrfmt ls run7 --versions --json
        """,
    )
    add_path(parser)
    add_version(parser)
    parser.add_argument("--dense", action="store_true", help="list the entries of the dense state")
    parser.add_argument("--versions", action="store_true", help="list the versions that are retained")


def _run(args: argparse.Namespace) -> int:
    facts: dict[str, Any] = {"path": args.path}
    code = exits.SOUND
    with open(args.path, version=args.version) as ck:
        facts["version"] = ck.version
        if args.dense:
            facts["dense"] = describe.dense_entries(ck)
        if args.versions:
            facts["versions"], errors = describe.versions(ck)
            code = exits.worst_of(errors)
        if not args.dense and not args.versions:
            facts["tables"] = [describe.table(ck, table) for table in ck.values()]
    if args.json:
        output.write_json(facts)
    else:
        _write(facts)
    return code


def _write(facts: dict[str, Any]) -> None:
    if "tables" in facts:
        _write_tables(facts["tables"])
    if "dense" in facts:
        _write_dense(facts["dense"])
    if "dense" in facts and "versions" in facts:
        output.write("")
    if "versions" in facts:
        info.write_versions(facts["versions"])


def _write_tables(tables: list[dict[str, Any]]) -> None:
    rows = [
        [
            table["name"],
            table["kind"],
            f"{table['rows']} x {table['dim']}",
            table["columns"][0]["dtype"],
            ", ".join(table["columns"][0]["encodings"]) or "never written",
            ", ".join(column["name"] for column in table["columns"]),
        ]
        for table in tables
    ]
    header = ["NAME", "KIND", "ROWS x DIM", "DTYPE", "STORED AS", "COLUMNS"]
    output.write_table(header, rows, right={"ROWS x DIM"})


def _write_dense(entries: list[dict[str, Any]]) -> None:
    rows = [
        [
            entry["name"],
            entry["kind"],
            entry.get("dtype", ""),
            " x ".join(map(str, entry.get("shape", ()))),
            entry["bytes"],
        ]
        for entry in entries
    ]
    output.write_table(["NAME", "KIND", "DTYPE", "SHAPE", "BYTES"], rows, right={"BYTES"})
