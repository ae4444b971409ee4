"""Hypothesis strategies and a plain model of a container, for users' tests as well as for cnrfmt's own.

Needs the package `hypothesis`.
"""

from cnrfmt.testing.model import Model, ModelTable
from cnrfmt.testing.strategies import Operation, operations, tables

__all__ = ["Model", "ModelTable", "Operation", "operations", "tables"]
