"""The report of what restores cost in loss and checkpoints in bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from cnrfmt.sizes import KEYS
from tools.bench._fidelity_bytes import bandwidth, bandwidth_of_deltas, capacity
from tools.bench._fidelity_encodings import RAW
from tools.bench._fidelity_loss import PLACEBO, change, restore_steps

Found = Mapping[str, Any]
"""Of one learner: ``about``, ``best``, ``steps``; ``loss``: outcomes by seed, encoding and restores; ``bytes`` by
encoding."""
UNINTERRUPTED = "uninterrupted"
WHEN = ("end", "mean", "after")
_ABOUT = {
    "end": "held-out loss, the mean of those behind the last interval's steps",
    "mean": "mean loss in training, each sample's before its step",
    "after": "held-out loss right after a restore, the mean of all restores",
}
# Student's t, one-sided 95 %, by degrees of freedom from 1 on.
_T = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753)
_T_OF_MANY = 1.75


def bound(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and what it is below with 95 % confidence; infinite for a single value."""
    if len(values) < 2:
        return values[0], float("inf")
    t = _T[len(values) - 2] if len(values) - 2 < len(_T) else _T_OF_MANY
    return mean(values), mean(values) + t * stdev(values) / len(values) ** 0.5


def changes(found: Found, encoding: str, restores: int, when: str) -> list[float]:
    """By how many % the loss changed, seed by seed; empty where nothing was tried."""
    at = restore_steps(restores, found["steps"])
    return [
        change(runs[encoding][str(restores)], runs[UNINTERRUPTED]["0"], at)[when]
        for runs in found["loss"].values()
        if str(restores) in runs.get(encoding, {})
    ]


def restores_tried(found: Found) -> list[int]:
    """The numbers of restores."""
    return sorted({int(n) for runs in found["loss"].values() for name in runs for n in runs[name]} - {0})


def encodings_tried(found: Found) -> list[str]:
    """Their names, in the order in which they were tried, the placebo last."""
    names = [name for runs in found["loss"].values() for name in runs if name not in (UNINTERRUPTED, PLACEBO)]
    placebo = [PLACEBO] if any(PLACEBO in runs for runs in found["loss"].values()) else []
    return [*dict.fromkeys([*found["bytes"], *names]), *placebo]


def report(name: str, found: Found) -> str:
    """All tables of one learner."""
    lines = [f"{name}: {found['about']}"]
    if found["loss"]:
        runs = found["loss"].values()
        base = [run[UNINTERRUPTED]["0"] for run in runs]
        best = "" if found["best"] is None else f"; nothing can be better than {found['best']:.5f}"
        lines.append(
            f"{len(base)} seeds; uninterrupted: held-out loss {mean(b['end'] for b in base):.5f} at the end{best}"
        )
    if found["bytes"]:
        shares = next(iter(found["bytes"].values()))["shares"]
        lines.append(f"{len(shares)} intervals, each changed {min(shares):.1%} to {max(shares):.1%} of the rows")
    lines += ["", _grid(_summary(found)), ""]
    for when in WHEN:
        if found["loss"]:
            lines += [
                f"change of the {_ABOUT[when]}, in %: mean (95 % one-sided bound)",
                _grid(_table(found, when)),
                "",
            ]
    if found["bytes"]:
        lines += ["bytes per row that a delta has, consecutive, by what they hold", _grid(_parts(found)), ""]
    return "\n".join(lines)


def _summary(found: Found) -> list[tuple[str, ...]]:
    restores = restores_tried(found)
    head = (
        *("encoding", "bandwidth consecutive", "intermittent", "touched rows alone", "deltas alone"),
        *("capacity, compacted", "touched rows alone", *(f"L={n}" for n in restores)),
    )
    full = found["bytes"].get(RAW)
    lines = [head]
    for name in encodings_tried(found):
        counted = found["bytes"].get(name)
        sizes: list[str] = [""] * 6
        if counted is not None and full is not None:
            factors = [bandwidth(counted, full, of) for of in ("consecutive", "intermittent", "touched")]
            factors.append(bandwidth_of_deltas(counted, full))
            factors += [capacity(counted, full, of) for of in ("consecutive", "touched")]
            sizes = [f"{factor:.1f}" for factor in factors]
        losses = [changes(found, name, n, "end") for n in restores]
        lines.append((name, *sizes, *(f"{mean(values):.3f}" if values else "" for values in losses)))
    return lines


def _table(found: Found, when: str) -> list[tuple[str, ...]]:
    restores = restores_tried(found)
    lines = [("encoding", *(f"{n} restore{'s' if n > 1 else ''}" for n in restores))]
    for name in encodings_tried(found):
        cells = []
        for n in restores:
            values = changes(found, name, n, when)
            cells.append("{:.4f} ({:.4f})".format(*bound(values)) if values else "")
        lines.append((name, *cells))
    return lines


def _parts(found: Found) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = [("encoding", *KEYS, "in all", "MB of deltas", "MB of the baseline", "MB compacted")]
    for name, counted in found["bytes"].items():
        run = counted["consecutive"]
        rows = counted["rows"]
        sums = [sum(parts[key] for parts in run["parts"][1:]) / rows for key in KEYS]
        megabytes = (sum(run["written"][1:]), run["written"][0], run["compacted"])
        lines.append((name, *(f"{n:.2f}" for n in (*sums, sum(sums))), *(f"{n / 1e6:.4g}" for n in megabytes)))
    return lines


def _grid(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[n]) for line in lines) for n in range(len(lines[0]))]
    shown = [" | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([shown[0], "-|-".join("-" * w for w in widths), *shown[1:]])
