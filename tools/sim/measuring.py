"""The rates of one core and one disk of this machine, measured where they aren't given."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from cnrfmt.checkpointing.costs.estimates import recipes_for, table_shape
from cnrfmt.checkpointing.costs.rates import measure_write, snapshot_rates
from tools.sim.cluster import RAW, Measured

BITS = (2, 3, 4, 8, RAW)
_COPIED = 256 << 20


def measure(folder: Path, dim: int, rounds: int) -> Measured:
    """All rates, one after the other, some five seconds a round; the best of each counts."""
    table = table_shape("t", 1 << 30, dim)
    recipes = {bits: recipes_for([table], bits, None)["t", "weight"] for bits in BITS}
    encode, gather = dict.fromkeys(BITS, 0.0), dict.fromkeys(BITS, 0.0)
    copy = disk = 0.0
    for _ in range(rounds):
        for bits, recipe in recipes.items():
            found = snapshot_rates(table, recipe, 1)
            encode[bits], gather[bits] = max(encode[bits], found[0]), max(gather[bits], found[1])
        copy, disk = max(copy, _copy_rate()), max(disk, measure_write(folder))
    return Measured(encode, gather, copy, disk)


def _copy_rate() -> float:
    """Bytes per second of a copy into fresh memory, the best of three."""
    rows = np.ones(_COPIED // 4, np.float32)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        rows.copy()
        times.append(time.perf_counter() - start)
    return rows.nbytes / min(times)


def as_options(measured: Measured) -> str:
    """The options that give these rates, so that a run can be repeated."""

    def by_bits(rates: dict[int, float]) -> str:
        return " ".join(f"{bits}={rates[bits] / 1e6:.0f}" for bits in BITS)

    encode, gather = by_bits(dict(measured.encode)), by_bits(dict(measured.gather))
    return f"--encode {encode} --gather {gather} --copy {measured.copy / 1e6:.0f} --disk {measured.disk / 1e6:.0f}"
