"""cnrfmt: differential, quantised checkpoints of embedding tables in one documented file format."""

from cnrfmt._version import __version__
from cnrfmt.comparing import Comparison, diff
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
from cnrfmt.requantizing import requantize
from cnrfmt.salvaging import Loss, Salvage, salvage
from cnrfmt.table import Changes, Table
from cnrfmt.tabledata import Deleted, Dropped, Rows, TableData
from cnrfmt.trial import Trial, try_quantization
from cnrfmt.verification import Finding, Report, verify
from cnrfmt.writer import append, save

__all__ = [
    "ChainTooLongError",
    "Changes",
    "Checkpoint",
    "CnrError",
    "CommitError",
    "CommitUnknownError",
    "Comparison",
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
    "Trial",
    "UnsupportedError",
    "UsageError",
    "VersionExpiredError",
    "VersionNotFoundError",
    "__version__",
    "append",
    "diff",
    "load",
    "open",
    "requantize",
    "salvage",
    "save",
    "try_quantization",
    "verify",
]
