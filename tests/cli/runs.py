"""Containers that a training run left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cnrfmt import TableData
from cnrfmt.checkpointing.manager import CheckpointManager


def train(path: Path, words: np.ndarray[Any, Any], *, checkpoints: int = 6, **options: Any) -> None:
    """Commits checkpoints of real embeddings of which some rows change each time, with a metric and a tag."""
    table, state = words.copy(), np.ones(len(words), np.float32)
    random = np.random.default_rng(7)
    with CheckpointManager(path, flush_on_sigterm=False, **options) as manager:
        for n in range(checkpoints):
            ids = random.choice(len(table), 60, replace=False)
            table[ids] *= 1.5
            state[ids] += 1
            manager.track("word", ids)
            tables = {"word": TableData(table, columns={"state": state})}
            tags = ["prod"] if n == 2 else []
            metrics = {"auc": 0.5 + n / 100}
            manager.save(100 * n, tables, metrics=metrics, tags=tags, dense={"w": state[:9]}).commit.result()
            manager.wait()
