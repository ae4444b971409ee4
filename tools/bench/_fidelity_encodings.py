"""What checkpoints are encoded in, as settings of a manager."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cnrfmt
from cnrfmt import CheckpointManager

RAW = "float32"
RESTORES = (1, 3, 10, 20)
"""Restores in a run, each number tried with every encoding."""

Settings = Mapping[str, Any]


def _grid(rate: float, c: float) -> Settings:
    """Steps in learning rates; said outright, they stay as they are however often the run is interrupted."""
    return {"encoding": cnrfmt.Grid(learning_rate=rate, c=c)}


ENCODINGS: dict[str, Callable[[float], Settings]] = {
    RAW: lambda rate: {"bits": 32},
    "row-wise 8": lambda rate: {"bits": 8},
    "row-wise 4": lambda rate: {"quantize": cnrfmt.Quantize(bits=4, method="adaptive")},
    "row-wise 3": lambda rate: {"quantize": cnrfmt.Quantize(bits=3, method="adaptive")},
    "row-wise 2": lambda rate: {"quantize": cnrfmt.Quantize(bits=2, method="adaptive")},
    "grid, 1/2 lr": lambda rate: _grid(rate, 0.5),
    "grid, 1 lr": lambda rate: _grid(rate, 1),
    "grid, 2 lr": lambda rate: _grid(rate, 2),
    "grid, 4 lr": lambda rate: _grid(rate, 4),
}
"""By their names: the settings for a learning rate."""


def manager(path: Path, settings: Settings, policy: str = "consecutive", **others: Any) -> CheckpointManager:
    """A manager of a run's checkpoints, of which the newest alone is kept, and nothing longer than it is needed."""
    return CheckpointManager(path, policy=policy, keep=1, grace=0, flush_on_sigterm=False, **settings, **others)
