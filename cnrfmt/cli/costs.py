"""What a training run left in a container and what its checkpoints cost, for `info` and `plot`."""

from __future__ import annotations

from typing import Any

from cnrfmt.checkpointing.costs.cost_history import RESTATED, Cost, averages, cost_history
from cnrfmt.cli import output
from cnrfmt.format.manifest import Manifest
from cnrfmt.run_record import RunRecord, record_of

_MOST_SHOWN = 10
"""How many checkpoints are shown one by one."""
_MOST_METRICS = 3
_NAMED_BITS = {0: "grid", 32: "raw"}


def run_facts(manifests: list[Manifest], readable: tuple[int, ...]) -> dict[str, Any] | None:
    """What the last of these manifests, that of the newest version, tells of the run; None where no run was here."""
    record = record_of(manifests[-1])
    if record is None:
        return None
    costs = [cost for cost in cost_history(record.checkpoints, manifests, readable) if cost.recorded]
    return {
        "id": record.run,
        "policy": record.policy,
        "restores": record.restores,
        "expected_restores": record.expected_restores,
        "encodings": {words: list(names) for words, names in record.encodings.items()},
        "tags": dict(record.tags),
        "checkpoints": checkpoint_facts(costs, record),
    }


def checkpoint_facts(costs: list[Cost], record: RunRecord | None) -> list[dict[str, Any]]:
    """Costs as JSON can say them; what isn't known is None."""
    tags = {} if record is None else record.tags
    return [
        {
            "version": c.version,
            "step": c.step,
            "created": c.created,
            "kind": cost.kind,
            "rows": c.rows if cost.recorded else None,
            "bytes": c.nbytes,
            "bits": c.bits if cost.recorded else None,
            "segments": c.chain,
            "needs": None if cost.needs is None else list(cost.needs),
            "kept_bytes": cost.kept,
            "read_bytes": cost.read,
            "average_bytes": average,
            "readable": cost.readable,
            "metrics": dict(c.metrics),
            "tags": sorted(name for name, version in tags.items() if version == c.version),
        }
        for cost, average in zip(costs, averages(costs), strict=True)
        for c in [cost.checkpoint]
    ]


def write_run(run: dict[str, Any]) -> None:
    """Writes the run and its newest checkpoints."""
    output.write_pairs(("  " + label, value) for label, value in _head_lines(run))
    checkpoints = run["checkpoints"]
    if not checkpoints:
        return
    left_out = len(checkpoints) - _MOST_SHOWN
    if left_out > 0:
        output.write(f"  the newest checkpoints, and {left_out:,} more that --json shows:")
    shown = checkpoints[-_MOST_SHOWN:]
    header = ["VERSION", "STEP", "KIND", "ROWS", "BYTES", "BITS", "SEGMENTS", "NEEDS", "METRICS", "TAGS"]
    # Most runs have neither metrics nor tags.
    absent = {name for name, key in (("METRICS", "metrics"), ("TAGS", "tags")) if not any(c[key] for c in shown)}
    rows = [dict(zip(header, _cells(c), strict=True)) for c in shown]
    right = {"VERSION", "STEP", "ROWS", "BYTES", "BITS", "SEGMENTS"}
    wanted = [name for name in header if name not in absent]
    output.write_table(wanted, [[row[name] for name in wanted] for row in rows], right=right, indent=2)
    output.write("  SEGMENTS that a restore reads, and the versions that wrote them; * is no longer there itself")
    if any(c["kind"] == RESTATED for c in shown):
        output.write(f"  {RESTATED}: as the version before it; a commit for tags or for versions that were given up")


def _head_lines(run: dict[str, Any]) -> list[tuple[str, object]]:
    expected = run["expected_restores"]
    restores = f"{run['restores']:,} so far"
    if expected is not None:
        restores += f", {output.number(expected)} expected"
        restores += " (more than that: 8 bits, or finer steps, from then on)" if run["restores"] > expected else ""
    lines: list[tuple[str, object]] = [("id", f"{run['id'][:8]}…"), ("policy", run["policy"] or "none yet")]
    for words, names in run["encodings"].items():
        lines.append(("encoding", words if not names else f"{words} ({', '.join(names)})"))
    lines.append(("restores", restores))
    if run["tags"]:
        lines.append(("tags", ", ".join(f"{name}: version {version}" for name, version in sorted(run["tags"].items()))))
    return lines


def _cells(c: dict[str, Any]) -> list[object]:
    wrote = c["kind"] != RESTATED
    metrics = [f"{name} {output.number(value)}" for name, value in c["metrics"].items()]
    more = [f"{len(metrics) - _MOST_METRICS} more"] if len(metrics) > _MOST_METRICS else []
    return [
        f"{c['version']}{'' if c['readable'] else '*'}",
        "" if c["step"] is None else c["step"],
        c["kind"],
        f"{c['rows']:,}" if wrote else "",
        output.size(c["bytes"]) if wrote else "",
        "" if not wrote else _NAMED_BITS.get(c["bits"], c["bits"]),
        c["segments"],
        "not known" if c["needs"] is None else output.span_of(c["needs"]),
        ", ".join([*metrics[:_MOST_METRICS], *more]),
        ", ".join(c["tags"]),
    ]
