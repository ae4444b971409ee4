"""What checkpoints are encoded in, as settings of a manager."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cnrfmt
from cnrfmt import CheckpointManager
from tools.bench._fidelity_learners import Learner

RAW = "float32"
RESTORES = (1, 3, 10, 20)
"""Restores in a run, each number tried with every encoding."""

Settings = Mapping[str, Any]


def _grid(learner: Learner, restores: int) -> Settings:
    """In steps for so many restores; a run that is interrupted more often goes on in finer ones."""
    rowwise = dict.fromkeys(learner.alike, cnrfmt.Quantize(bits=2))
    return {"encoding": {**rowwise, "*": cnrfmt.Grid(learning_rate=learner.rate, restores=restores)}}


ENCODINGS: dict[str, Callable[[Learner], Settings]] = {
    RAW: lambda _: {"bits": 32},
    "row-wise 8": lambda _: {"bits": 8},
    "row-wise 4": lambda _: {"quantize": cnrfmt.Quantize(bits=4, method="adaptive")},
    "row-wise 3": lambda _: {"quantize": cnrfmt.Quantize(bits=3, method="adaptive")},
    "row-wise 2": lambda _: {"quantize": cnrfmt.Quantize(bits=2, method="adaptive")},
    "grid for 20": lambda learner: _grid(learner, 20),
    "grid for 10": lambda learner: _grid(learner, 10),
    "grid for 3": lambda learner: _grid(learner, 3),
    "grid for 1": lambda learner: _grid(learner, 1),
}
"""By their names: the settings for a learner."""


def manager(path: Path, settings: Settings, policy: str = "consecutive", **others: Any) -> CheckpointManager:
    """A manager of a run's checkpoints, of which the newest alone is kept, and nothing longer than it is needed."""
    return CheckpointManager(path, policy=policy, keep=1, grace=0, flush_on_sigterm=False, **settings, **others)
