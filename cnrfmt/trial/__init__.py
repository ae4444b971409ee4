"""Trials: what each way to quantise would make of somebody's own rows, before anything is written."""

from __future__ import annotations

from cnrfmt.trial.measure import try_quantization
from cnrfmt.trial.report import Attempt, ColumnTrial, Trial

__all__ = ["Attempt", "ColumnTrial", "Trial", "try_quantization"]
