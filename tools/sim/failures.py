"""Runs that fail now and then: what is lost, drawn by lot, and what is to be expected."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tools.sim.cluster import Assumed, Measured, Timeline


@dataclass(frozen=True)
class Outcome:
    """What became of some runs.

    Attributes
    ----------
    failures
        Per run.
    lost_minutes
        Training that is done again, per failure.
    stall_share, lost_share, restart_share
        Of the time of the runs: standing still for checkpoints, training that was lost, restarting and reading.
    """

    failures: float
    lost_minutes: float
    stall_share: float
    lost_share: float
    restart_share: float

    @property
    def overhead(self) -> float:
        """The share of the time that doesn't go into training that counts."""
        return self.stall_share + self.lost_share + self.restart_share


def read_seconds(measured: Measured, assumed: Assumed, found: Timeline, ranks: int) -> float:
    """How long a restore reads, on average over the checkpoints."""
    return float(found.reads.mean()) / min(ranks * measured.disk, assumed.storage)


def expected_lost_minutes(found: Timeline) -> float:
    """Training that a failure costs, on average.

    It comes at any moment of a gap, and what was done since the last checkpoint that was durable by then is lost: half
    a gap, and a whole one more if the checkpoint at its start wasn't durable yet.
    """
    gaps, writes = found.gaps, found.writes
    before = np.roll(gaps, 1)
    # While a checkpoint is being written, the one before it counts. Standing still loses what was trained before.
    trained = gaps**2 / 2 + writes * before + found.stalls * gaps
    return float(trained.sum() / (gaps + found.stalls).sum()) / 60


def expected_overhead(measured: Measured, assumed: Assumed, found: Timeline, ranks: int) -> float:
    """The share of the time that doesn't go into training that counts, on average, where failures are few."""
    stall = float(found.stalls.sum() / (found.gaps + found.stalls).sum())
    down = assumed.restart_minutes + read_seconds(measured, assumed, found, ranks) / 60
    each = (expected_lost_minutes(found) + down) / 60
    return stall + assumed.failure_rate(ranks) * each


def simulate(
    measured: Measured, assumed: Assumed, found: Timeline, ranks: int, *, seed: int, runs: int = 200
) -> Outcome:
    """Runs with failures at times drawn by lot; there are none during a restart."""
    rng = np.random.default_rng([seed, ranks, runs])
    rate = assumed.failure_rate(ranks) / 3600
    down = 60 * assumed.restart_minutes + read_seconds(measured, assumed, found, ranks)
    end = 3600 * assumed.run_hours
    cycle = len(found.gaps)
    most = int(end / found.gaps.min()) + 2 * cycle + 2
    order = np.arange(most) % cycle
    # Checkpoint k is begun when it has been trained that long, and the tables may change again at that time.
    trained = np.concatenate([[0.0], np.cumsum(found.gaps[order])])
    freed = np.concatenate([[0.0], np.cumsum((found.gaps + found.stalls)[order])])
    durable = freed[1:] + found.writes[order]
    failures, lost, stalled, spent_down, total = 0, 0.0, 0.0, 0.0, 0.0
    for _ in range(runs):
        now, k = 0.0, 0
        while now < end:
            life = rng.exponential(1 / rate)
            fails = life < end - now
            life = min(life, end - now)
            # Begun and freed since the last restore, and durable among them.
            done = int(np.searchsorted(freed, freed[k] + life, "right")) - 1
            safe = int(np.searchsorted(durable, freed[k] + life, "right"))
            safe = max(k, safe)
            into = freed[k] + life - freed[done]
            training = trained[done] - trained[k] + min(into, found.gaps[order[done]])
            stalled += life - training
            now += life
            if fails:
                failures += 1
                lost += training - (trained[safe] - trained[k])
                pause = min(down, end - now)
                spent_down += pause
                now += pause
            k = safe % cycle
        total += now
    return Outcome(
        failures / runs, lost / max(1, failures) / 60, stalled / total, lost / total, spent_down / total
    )
