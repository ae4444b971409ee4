"""What restores cost in loss: a run that is interrupted so many times next to the same run without.

A run begins behind the warm-up. At the end of each interval, and where it is interrupted, it makes a checkpoint; it is
interrupted by restoring that, in a manager of its own, as a new process would. Everything else is the same in all runs
of a seed: where training stands after a restore in float32, it stands in the uninterrupted run, bit for bit.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from tools.bench._fidelity_encodings import Settings, manager
from tools.bench._fidelity_learners import STEPS, Learner
from tools.bench._training_data import Ids

Outcome = dict[str, Any]
"""``judged``: held-out loss by the steps behind which it was judged, after the restore where there was one; ``end``:
the mean of those behind the steps of the last interval; ``mean``: the mean loss in training, each sample's before its
step."""
PLACEBO = "placebo"
_PERTURBED = np.float32(1e-6)
_BLOCK = 1 << 16


def restore_steps(restores: int, steps: int) -> list[int]:
    """Behind which steps a run of so many is interrupted: evenly spread, and neither at its start nor at its end."""
    return [round(steps * number / (restores + 1)) for number in range(1, restores + 1)]


def warm_up(learner: Learner, path: Path) -> dict[str, Ids]:
    """Trains up to the baseline, and keeps that as it is; the rows of each table that were looked up."""
    learner.train(0)
    touched = learner.touched()
    with manager(path, {"bits": 32}) as kept:
        kept.save(0, learner.tables(), dense=learner.dense(), reader=learner.position)
    return touched


def run(
    learner: Learner, warm: Path, folder: Path, encoding: str, settings: Settings | None, at: Collection[int]
) -> Outcome:
    """A run from the warm-up on, judged behind the steps `at`, and interrupted there by restores of an encoding.

    Without settings there are no checkpoints; rows are perturbed by a millionth for the placebo.
    """
    with manager(warm, {"bits": 32}) as kept:
        learner.restore(kept)
    path = folder / "run"
    losses, judged = [], {}
    noise = np.random.default_rng(0).standard_normal(_BLOCK, np.float32)
    saves = None if settings is None else _Saves(learner, path, settings)
    for step in range(1, learner.intervals + 1):
        losses.append(learner.train(step))
        if saves is not None and (step % STEPS == 0 or step in at):
            saves.save(step)
        if step in at:
            if saves is not None:
                saves = saves.interrupted()
            elif encoding == PLACEBO:
                _perturb(learner, noise)
        if step in at or step > learner.intervals - STEPS:
            judged[step] = learner.judge()
    if saves is not None:
        saves.close()
        shutil.rmtree(path)
    end = float(np.mean([judged[step] for step in judged if step > learner.intervals - STEPS]))
    return {"judged": {str(step): loss for step, loss in judged.items()}, "end": end, "mean": float(np.mean(losses))}


class _Saves:
    """The checkpoints of a run, by one process after the other."""

    def __init__(self, learner: Learner, path: Path, settings: Settings, *, goes_on: bool = False) -> None:
        self._learner, self._path, self._settings = learner, path, settings
        self._manager = manager(path, settings)
        if goes_on:
            learner.restore(self._manager)
        else:
            self.save(0)

    def save(self, step: int) -> None:
        """Makes a checkpoint of the rows that changed; the first is a baseline."""
        touched = self._learner.touched()
        if step:
            for table, ids in touched.items():
                self._manager.track(table, ids)
        learner = self._learner
        self._manager.save(step, learner.tables(), dense=learner.dense(), reader=learner.position).wait()

    def interrupted(self) -> _Saves:
        """Ends this process; the next one goes on from what is there."""
        self.close()
        return _Saves(self._learner, self._path, self._settings, goes_on=True)

    def close(self) -> None:
        """Ends this process."""
        self._manager.close()


def _perturb(learner: Learner, noise: Any) -> None:
    for values in learner.weights():
        flat = values.reshape(-1)
        for first in range(0, len(flat), len(noise)):
            part = flat[first : first + len(noise)]
            part *= 1 + _PERTURBED * noise[: len(part)]


def change(outcome: Outcome, base: Outcome, at: Collection[int]) -> dict[str, float]:
    """How much more the loss is than in the uninterrupted run, in %: right after a restore, at the end, on the way."""
    after = [outcome["judged"][str(step)] / base["judged"][str(step)] - 1 for step in at]
    return {
        "after": 100 * float(np.mean(after)),
        "end": 100 * (outcome["end"] / base["end"] - 1),
        "mean": 100 * (outcome["mean"] / base["mean"] - 1),
    }
