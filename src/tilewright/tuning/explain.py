"""Why a record of the database is used for a program or a workload, or is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tilewright.errors import UserError
from tilewright.measure import devices
from tilewright.measure.measurement_key import KeyComparison, MeasurementKey, measurement_key
from tilewright.store import Database, Filter, KnownResult, TaskKey
from tilewright.target import Target, parse_target
from tilewright.toolchain import installed_version
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.reuse import compare_keys, verdict
from tilewright.tuning.session import TuningSession


@dataclass(frozen=True)
class RecordExplanation:
    """What a run would do with one record of a workload, and why.

    name: the dispatch, or the workload; task: of the database, 0 without a record; run: that found
    the result. default_ms, tuned_ms: as recorded.
    """

    name: str
    verdict: str
    task: int = 0
    run: int | None = None
    trials: int = 0
    default_ms: float | None = None
    tuned_ms: float | None = None
    compared: tuple[KeyComparison, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """All of it as plain data."""
        return asdict(self)


def explain(
    what: str, store: Database, options: TuneOptions, say: Callable[[str], None] = lambda text: None
) -> list[RecordExplanation]:
    """Compare what the database has with what a run here would measure.

    Args:
        what: the file of a program, the number of a task, or a part of a workload's name.
        store: the database.
        options: of the run: target, threads, flags.
        say: told what takes long.

    Returns:
        Each record of the workloads, the newest first; of a dispatch without any, that there is
        none.

    Raises:
        UserError: there is no such program or record.
    """
    if Path(what).is_file():
        say(f"reading the dispatches of {what}")
        keys, now = TuningSession(Path(what), options).keys()
        return [one for name, key in keys for one in _of_dispatch(name, key, store, now)]
    known = [
        one
        for one in store.results_of(which=Filter(workload=None if what.isdigit() else what))
        if not what.isdigit() or one.task.id == int(what)
    ]
    if not known:
        raise UserError(
            f"db explain: '{what}' is no file, and no record of {store.place} has it as its number "
            "or in its workload's name (`tilewright db list`)"
        )
    say("asking the compiler what this processor is")
    target = _resolved(parse_target(options.target, options.threads))
    now = measurement_key(target, options.device or "")
    compiler = installed_version("iree-base-compiler")
    found = []
    for one in known:
        then = one.task.key
        key = TaskKey(then.workload, target.key, compiler, then.flags)
        found.append(_explained(then.workload.name, one, key, now))
    return found


def _of_dispatch(
    name: str, key: TaskKey, store: Database, now: MeasurementKey
) -> list[RecordExplanation]:
    known = store.results_of(key, any_flags=True)
    if not known:
        none = f"no record: the database has no result of {key.workload.name}"
        return [RecordExplanation(name, none)]
    return [_explained(name, one, key, now) for one in known]


def _explained(
    name: str, known: KnownResult, key: TaskKey, now: MeasurementKey
) -> RecordExplanation:
    compared = compare_keys(known, key, now)
    result = known.result
    return RecordExplanation(
        name,
        verdict(known, compared),
        known.task.id,
        result.run_id,
        result.trials,
        1e3 * result.default_s,
        1e3 * result.tuned_s,
        compared,
    )


def _resolved(target: Target) -> Target:
    """The target as a run knows it once it has compiled something."""
    if target.is_gpu or target.cpu != "host":
        return target
    found = devices.targets()
    if isinstance(found, str):
        raise UserError(f"db explain: the compiler does not tell what this processor is: {found}")
    return target.with_vectors(found.processor, ",".join(found.features), found.vector_bytes)
