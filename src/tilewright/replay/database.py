"""The trials of a tuning run, out of the database."""

from __future__ import annotations

import time
from pathlib import Path

from tilewright.errors import UnknownNameError, UserError
from tilewright.store import Database
from tilewright.trial import Trial


def run_trials(database: Path | None, run: int, task: str | None) -> list[tuple[Trial, str]]:
    """The trials of one workload of a run.

    Args:
        database: its file; None for the default one.
        run: the run's number.
        task: has to be in the workload's name, where the run has several.

    Returns:
        Each trial with when it was stored (ISO 8601, UTC).

    Raises:
        UserError: when there is no such run, or not exactly one such workload.
    """
    with Database.open(database, create=False) as store:
        store.run(run)
        records = store.trial_records(run)
        names = {
            number: store.task(number).key.workload.name
            for number in dict.fromkeys(record.task_id for record in records)
        }
    if not records:
        raise UserError(f"--run {run}: the run has no trials")
    chosen = [number for number, name in names.items() if task is None or task in name]
    if not chosen:
        raise UnknownNameError("workload", task or "", names.values(), "--task")
    if len(chosen) > 1:
        several = ", ".join(names[number] for number in chosen)
        raise UserError(f"--run {run}: several workloads; name one with --task ({several})")
    return [
        (record.trial, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)))
        for record in records
        if record.task_id == chosen[0]
    ]
