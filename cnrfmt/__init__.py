"""cnrfmt: differential, quantised checkpoints of embedding tables in one documented file format."""

from cnrfmt._version import __version__
from cnrfmt.checkpointing.background import Pending
from cnrfmt.checkpointing.collect import Collected, collect
from cnrfmt.checkpointing.compaction import compact
from cnrfmt.checkpointing.coordinator import Coordinator, FileCoordinator
from cnrfmt.checkpointing.events import Event
from cnrfmt.checkpointing.manager import CheckpointManager
from cnrfmt.checkpointing.planning import CheckpointPlan, plan_checkpoints
from cnrfmt.checkpointing.policies import Consecutive, Full, History, Intermittent, OneShot, Policy
from cnrfmt.checkpointing.rates import Rates, measure_rates
from cnrfmt.checkpointing.restoring import Restored
from cnrfmt.checkpointing.retention import Keep
from cnrfmt.checkpointing.shards import Shard
from cnrfmt.checkpointing.stored_values import StoredValues
from cnrfmt.checkpointing.tags import tag, untag
from cnrfmt.checkpointing.tracker import KeyTracker, RowTracker
from cnrfmt.checkpointing.traffic import Traffic
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
    RankLostError,
    StorageError,
    SupersededError,
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
    "CheckpointManager",
    "CheckpointPlan",
    "CnrError",
    "Collected",
    "CommitError",
    "CommitUnknownError",
    "Comparison",
    "ConflictError",
    "Consecutive",
    "Coordinator",
    "DamagedError",
    "Deleted",
    "Dropped",
    "Event",
    "FileCoordinator",
    "Finding",
    "Full",
    "History",
    "Intermittent",
    "Keep",
    "KeyTracker",
    "LockedError",
    "Loss",
    "MissingKeyError",
    "OneShot",
    "Pending",
    "Policy",
    "Quantize",
    "RankLostError",
    "Rates",
    "Refreshed",
    "Report",
    "Restored",
    "RowTracker",
    "Rows",
    "Salvage",
    "Shard",
    "StorageError",
    "StoredValues",
    "SupersededError",
    "Table",
    "TableData",
    "TooLargeError",
    "Traffic",
    "Trial",
    "UnsupportedError",
    "UsageError",
    "VersionExpiredError",
    "VersionNotFoundError",
    "__version__",
    "append",
    "collect",
    "compact",
    "diff",
    "load",
    "measure_rates",
    "open",
    "plan_checkpoints",
    "requantize",
    "salvage",
    "save",
    "tag",
    "try_quantization",
    "untag",
    "verify",
]
