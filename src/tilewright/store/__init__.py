"""The database: every trial of every run, results to reuse, checkpoints to resume from."""

from tilewright.store.database import EVERYTHING, Store
from tilewright.store.paths import default_path
from tilewright.store.records import (
    Counts,
    Filter,
    Json,
    ListingRow,
    Measurement,
    RunRecord,
    RunStatus,
    TaskKey,
    TaskRecord,
    TaskResult,
    TrialRecord,
)

__all__ = [
    "EVERYTHING",
    "Counts",
    "Filter",
    "Json",
    "ListingRow",
    "Measurement",
    "RunRecord",
    "RunStatus",
    "Store",
    "TaskKey",
    "TaskRecord",
    "TaskResult",
    "TrialRecord",
    "default_path",
]
