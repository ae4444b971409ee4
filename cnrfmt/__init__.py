"""cnrfmt: differential, quantised checkpoints of embedding tables in one documented file format."""

from cnrfmt._version import __version__
from cnrfmt.encodings.quantize import Quantize
from cnrfmt.errors import (
    ChainTooLongError,
    CnrError,
    CommitError,
    CommitUnknownError,
    ConflictError,
    DamagedError,
    LockedError,
    MissingKeyError,
    StorageError,
    TooLargeError,
    UnsupportedError,
    UsageError,
    VersionExpiredError,
    VersionNotFoundError,
)
from cnrfmt.reader import Checkpoint, Refreshed, load, open
from cnrfmt.salvaging import Loss, Salvage, salvage
from cnrfmt.table import Changes, Table
from cnrfmt.tabledata import Deleted, Dropped, Rows, TableData
from cnrfmt.verification import Finding, Report, verify
from cnrfmt.writer import append, save

__all__ = [
    "ChainTooLongError",
    "Changes",
    "Checkpoint",
    "CnrError",
    "CommitError",
    "CommitUnknownError",
    "ConflictError",
    "DamagedError",
    "Deleted",
    "Dropped",
    "Finding",
    "LockedError",
    "Loss",
    "MissingKeyError",
    "Quantize",
    "Refreshed",
    "Report",
    "Rows",
    "Salvage",
    "StorageError",
    "Table",
    "TableData",
    "TooLargeError",
    "UnsupportedError",
    "UsageError",
    "VersionExpiredError",
    "VersionNotFoundError",
    "__version__",
    "append",
    "load",
    "open",
    "salvage",
    "save",
    "verify",
]
