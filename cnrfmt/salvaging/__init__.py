"""Salvaging: from a damaged container everything that is provably sound, into a new one."""

from __future__ import annotations

from cnrfmt.salvaging.report import Loss, Salvage, SalvagedTable, VersionState
from cnrfmt.salvaging.salvage import salvage

__all__ = ["Loss", "Salvage", "SalvagedTable", "VersionState", "salvage"]
