"""Hypothesis strategies, a state machine and a plain model of a container, for users' tests and for cnrfmt's own.

Needs the package `hypothesis`.
"""

from cnrfmt.testing.disk import Disk, FolderDisk
from cnrfmt.testing.machine import ContainerMachine
from cnrfmt.testing.model import Model, ModelTable
from cnrfmt.testing.process import Killed, Process
from cnrfmt.testing.strategies import Operation, operations, tables

__all__ = [
    "ContainerMachine",
    "Disk",
    "FolderDisk",
    "Killed",
    "Model",
    "ModelTable",
    "Operation",
    "Process",
    "operations",
    "tables",
]
