"""``cnrfmt info``: what a container is and what is in it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from cnrfmt import sizes
from cnrfmt.checkpoint import Checkpoint
from cnrfmt.cli import costs, describe, exits, output
from cnrfmt.cli.options import Verbs, add_path, add_verb, add_version
from cnrfmt.reader import open

_MOST_SHOWN = 10
"""How many versions and segments are shown one by one."""
_MOST_TEXT = 400


def add(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(
        verbs,
        "info",
        _run,
        "Says what a checkpoint is, what is in it and where its bytes go.",
        """It reads metadata and row indexes, not rows: `cnrfmt verify` tells whether all is sound.""",
        """
        cnrfmt info model.cnr
        cnrfmt info run7 --version 3 --json
        """,
    )
    add_path(parser)
    add_version(parser)


def _run(args: argparse.Namespace) -> int:
    with open(args.path, version=args.version) as ck:
        facts, code = _describe(ck)
    if args.json:
        output.write_json(facts)
    else:
        _write(facts)
    return code


def _describe(ck: Checkpoint) -> tuple[dict[str, Any], int]:
    manifest = ck.manifest
    versions, errors = describe.versions(ck, _MOST_SHOWN)
    # Versions that changed nothing share a state: the first of them wrote it.
    version_of = {v["state"]: v["version"] for v in reversed(versions) if "state" in v}
    # What is wrong with these was met above.
    manifests, _ = describe.manifests(ck, _MOST_SHOWN)
    run = costs.run_facts(manifests, ck.versions)
    facts = {
        "path": ck.path,
        "container": "single file" if ck.view.container.kind == "file" else "directory",
        "container_id": manifest.container_id.hex(),
        "version": ck.version,
        "step": ck.step,
        "created": manifest.created,
        "created_by": manifest.created_by,
        "digest": ck.digest,
        "state": manifest.state.hex(),
        "tables": [describe.table(ck, table) for table in ck.values()],
        "dense": describe.dense_entries(ck),
        "metadata": ck.metadata,
        **({} if run is None else {"run": run}),
        "versions": list(ck.versions),
        "version_details": versions,
        "chain": describe.chain(ck, version_of),
        "sizes": describe.size_facts(ck),
    }
    return facts, exits.worst_of(errors)


def _write(facts: dict[str, Any]) -> None:
    output.write(output.styled(output.clean(facts["path"]), "bold"))
    output.write_pairs(_head_lines(facts))
    if facts["tables"]:
        _heading("tables")
        _write_tables(facts["tables"])
    write_errors(facts["tables"])
    if "run" in facts:
        _heading("run")
        costs.write_run(facts["run"])
    _heading("versions")
    _write_versions(facts)
    _heading("chain")
    _write_chain(facts["chain"])
    _heading("bytes")
    _write_sizes(facts["sizes"])


def _heading(text: str) -> None:
    output.write("")
    output.write(output.styled(text, "bold"))


def _head_lines(facts: dict[str, Any]) -> Iterator[tuple[str, object]]:
    newest = facts["versions"][-1]
    newer = "the newest" if facts["version"] == newest else f"the newest is {newest}"
    yield "container", f"{facts['container']}, id {facts['container_id']}"
    yield "version", f"{facts['version']} ({newer})"
    yield "step", "none" if facts["step"] is None else facts["step"]
    yield "created", f"{facts['created']} by {facts['created_by']}"
    yield "digest", f"{facts['digest']} (cnrfmt.open(..., digest=...) pins it)"
    yield "state", facts["state"]
    yield "dense state", _dense_words(facts["dense"])
    if facts["metadata"]:
        text = json.dumps(facts["metadata"], ensure_ascii=False)
        more = "... (--json shows all)" if len(text) > _MOST_TEXT else ""
        yield "metadata", text[:_MOST_TEXT] + more


def _dense_words(entries: list[dict[str, Any]]) -> str:
    if not entries:
        return "none"
    kinds = [e["kind"] for e in entries]
    counts = [
        output.plural(kinds.count(kind), noun)
        for kind, noun in (("array", "array"), ("json", "JSON value"), ("bytes", "byte string"))
        if kind in kinds
    ]
    return f"{', '.join(counts)}; {output.size(sum(e['bytes'] for e in entries))}"


def _write_tables(tables: list[dict[str, Any]]) -> None:
    rows = []
    for table in tables:
        first = [table["name"], table["kind"], f"{table['rows']:,} x {table['dim']}"]
        for column in table["columns"]:
            per_row = " (1 per row)" if column["values_per_row"] == 1 < table["dim"] else ""
            exact = f" + {output.plural(column['exceptions'], 'exact row')}"
            stored = ", ".join(column["encodings"]) or "never written"
            why = f": {column['raw_because']}" if column["raw_because"] else ""
            rows.append(
                [
                    *first,
                    column["name"] + per_row,
                    column["dtype"],
                    stored + (exact if column["exceptions"] else "") + why,
                ]
            )
            first = ["", "", ""]
    header = ["NAME", "KIND", "ROWS x DIM", "COLUMN", "DTYPE", "STORED AS"]
    output.write_table(header, rows, right={"ROWS x DIM"}, indent=2)


def write_errors(tables: list[dict[str, Any]]) -> None:
    """Writes what quantisation did to the rows that the chain holds, where anything is quantised."""
    rows = []
    for table in tables:
        for column in table["columns"]:
            for group in column["stored"]:
                if group["scheme"] is not None:
                    parameters = describe.parameter_words(group["scheme"])
                    rows.append(
                        [
                            f"{table['name']}.{column['name']}",
                            group["words"] + (f" ({parameters})" if parameters else ""),
                            f"{group['rows']:,}",
                            f"{group['exact_rows']:,}",
                            f"{group['bits_per_value']:.2f}",
                            output.number(group["mean_error"]),
                            output.number(group["max_error"]),
                        ]
                    )
    if not rows:
        return
    _heading("quantised columns")
    header = ["COLUMN", "STORED AS", "ROWS", "EXACT", "BITS", "MEAN ERROR", "MAX ERROR"]
    output.write_table(header, rows, right=set(header[2:]), indent=2)
    output.write("  ROWS once for each step of the chain that wrote them, EXACT those of them stored as given;")
    output.write("  BITS that a value of all ROWS takes, the exact ones with theirs, and all else but row indexes;")
    output.write("  relative l2 errors of the others: the norm of what changed in a row, over the row's norm")


def _write_versions(facts: dict[str, Any]) -> None:
    shown = facts["version_details"]
    retained = output.span_of(facts["versions"])
    output.write(f"  retained: {retained}")
    if len(shown) < len(facts["versions"]):
        output.write("  the oldest and the newest (cnrfmt ls --versions lists all):")
    write_versions(shown, indent=2)


def write_versions(versions: list[dict[str, Any]], *, indent: int = 0) -> None:
    """Writes a line per version, then what is wrong with those that can't be read."""
    rows = []
    for v in versions:
        if "error" in v:
            rows.append([v["version"], "", "can't be read", "", "", ""])
            continue
        step = "" if v["step"] is None else v["step"]
        size = output.size(v["bytes"])
        rows.append([v["version"], step, v["created"], v["segments"], size, v["digest"]])
    header = ["VERSION", "STEP", "CREATED", "SEGMENTS", "CHAIN", "DIGEST"]
    output.write_table(
        header, rows, right={"VERSION", "STEP", "SEGMENTS", "CHAIN"}, indent=indent
    )
    for v in versions:
        if "error" in v:
            output.write(" " * indent + output.clean(v["error"]))


def _write_chain(chain: list[dict[str, Any]]) -> None:
    # The baseline and the newest deltas tell most.
    left_out = max(0, len(chain) - _MOST_SHOWN)
    shown = [chain[0], *chain[1 + left_out :]]
    rows = []
    for number, segment in enumerate(shown):
        if number == 1 and left_out:
            rows.append(["", f"{left_out} more", "", "", "", "", ""])
        parts = segment["bytes_by_part"]
        rest = segment["bytes"] - parts["weights"] - parts["optimizer"] - parts["ids"]
        version = segment["version"]
        rows.append(
            [
                "" if version is None else version,
                segment["kind"],
                _rows_words(segment["tables"]),
                *(
                    output.size(n)
                    for n in (parts["weights"], parts["optimizer"], parts["ids"], rest)
                ),
            ]
        )
    header = ["VERSION", "KIND", "ROWS", "WEIGHTS", "OPTIMIZER", "IDS", "REST"]
    output.write_table(header, rows, right=set(header) - {"KIND", "ROWS"}, indent=2)


def _rows_words(tables: list[dict[str, Any]]) -> str:
    words = []
    for table in tables:
        name = table["name"] or f"dropped table {table['id'][:8]}"
        written, deleted = table["rows_written"], table["rows_deleted"]
        counts = ([f"{written:,}"] if written or not deleted else []) + (
            [f"{deleted:,} deleted"] if deleted else []
        )
        words.append(f"{name} {' + '.join(counts)}")
    shown = words[:4] + ([f"{len(words) - 4} more tables"] if len(words) > 4 else [])
    return ", ".join(shown)


def _write_sizes(facts: dict[str, Any]) -> None:
    rows: list[list[object]] = []
    commit, chain = facts["commit"], facts["chain"]
    totals = facts["commit_bytes"], facts["chain_bytes"]
    for key in sizes.KEYS:
        if chain[key] or commit[key]:
            share = f"{chain[key] / totals[1]:.1%}"
            rows.append([key, output.size(commit[key]), output.size(chain[key]), share])
    rows.append(["all", output.size(totals[0]), output.size(totals[1]), "100.0%"])
    header = ["", "THIS COMMIT", "CHAIN", "SHARE"]
    output.write_table(header, rows, right=set(header[1:]), indent=2)
    plain = facts["plain_bytes"]
    if plain:
        words = [output.times_smaller(plain, total) for total in totals]
        output.write(f"  tables and dense state as plain arrays: {output.size(plain)};")
        output.write(f"  this commit is {words[0]}, the chain is {words[1]}")
    output.write(f"  on disk, with all retained versions: {output.size(facts['on_disk_bytes'])}")
