"""The database: every trial of every run, results to reuse, checkpoints to resume from."""

from tilewright.store.database import EVERYTHING, Database
from tilewright.store.records import (
    Filter,
    Json,
    KnownResult,
    ListingRow,
    ProgramMeasurement,
    RowCounts,
    RunRecord,
    RunStatus,
    TaskKey,
    TaskRecord,
    TaskResult,
    TrialRecord,
)

__all__ = [
    "EVERYTHING",
    "Database",
    "Filter",
    "Json",
    "KnownResult",
    "ListingRow",
    "ProgramMeasurement",
    "RowCounts",
    "RunRecord",
    "RunStatus",
    "TaskKey",
    "TaskRecord",
    "TaskResult",
    "TrialRecord",
]
