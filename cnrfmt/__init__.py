"""cnrfmt: differential, quantised checkpoints of embedding tables in one documented file format."""

from cnrfmt._version import __version__
from cnrfmt.checkpoint import Checkpoint, Refreshed
from cnrfmt.checkpointing.background import Pending
from cnrfmt.checkpointing.compacting.compaction import compact
from cnrfmt.checkpointing.costs.planning import CheckpointPlan, plan_checkpoints
from cnrfmt.checkpointing.costs.rates import Rates, measure_rates
from cnrfmt.checkpointing.costs.traffic import Traffic
from cnrfmt.checkpointing.events import Event
from cnrfmt.checkpointing.keeping.collect import Collected, collect
from cnrfmt.checkpointing.keeping.retention import Keep
from cnrfmt.checkpointing.keeping.tags import tag, untag
from cnrfmt.checkpointing.manager import CheckpointManager
from cnrfmt.checkpointing.policies import Consecutive, Full, History, Intermittent, OneShot, Policy
from cnrfmt.checkpointing.ranks.coordinator import Coordinator, FileCoordinator
from cnrfmt.checkpointing.ranks.shards import Shard
from cnrfmt.checkpointing.resuming.restored import Restored
from cnrfmt.checkpointing.stored_values import StoredValues
from cnrfmt.checkpointing.tracking.tracker import KeyTracker, RowTracker
from cnrfmt.comparing import Comparison, diff
from cnrfmt.encodings.grid import Grid
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
    SilenceError,
    StorageError,
    SupersededError,
    TooLargeError,
    UnsupportedError,
    UsageError,
    VersionExpiredError,
    VersionNotFoundError,
)
from cnrfmt.reader import load, open
from cnrfmt.requantizing import requantize
from cnrfmt.salvaging import Loss, Salvage, salvage
from cnrfmt.serving.following import Follower, Update, follow
from cnrfmt.serving.held_rows import shard_of
from cnrfmt.serving.hydrated_table import HydratedTable
from cnrfmt.serving.hydrating import Hydration
from cnrfmt.serving.live import LiveTables
from cnrfmt.serving.live_rows import LiveRows
from cnrfmt.serving.live_table import LiveTable
from cnrfmt.serving.snapshot import LiveStatus, Snapshot
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
    "Follower",
    "Full",
    "Grid",
    "History",
    "HydratedTable",
    "Hydration",
    "Intermittent",
    "Keep",
    "KeyTracker",
    "LiveRows",
    "LiveStatus",
    "LiveTable",
    "LiveTables",
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
    "SilenceError",
    "Snapshot",
    "StorageError",
    "StoredValues",
    "SupersededError",
    "Table",
    "TableData",
    "TooLargeError",
    "Traffic",
    "Trial",
    "UnsupportedError",
    "Update",
    "UsageError",
    "VersionExpiredError",
    "VersionNotFoundError",
    "__version__",
    "append",
    "collect",
    "compact",
    "diff",
    "follow",
    "load",
    "measure_rates",
    "open",
    "plan_checkpoints",
    "requantize",
    "salvage",
    "save",
    "shard_of",
    "tag",
    "try_quantization",
    "untag",
    "verify",
]
