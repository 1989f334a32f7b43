"""What the database's trials of other shapes can teach the search of a new one."""

from __future__ import annotations

import math
from typing import cast

import numpy as np

from tilewright.errors import TilewrightError
from tilewright.search.history import seconds
from tilewright.search.surrogate import informative
from tilewright.search.transfer import Experience, ranges
from tilewright.space.generators import dispatch_space
from tilewright.store import Database, Json, TaskKey, TaskRecord
from tilewright.target import Target
from tilewright.tiling import DispatchTemplate
from tilewright.tuning.task import DispatchTask

# The shapes nearest in size are asked, and of each the trials that tell the most.
_MOST_SHAPES = 6
_MOST_TRIALS = 256
_LEAST_TRIALS = 8
# Members from which the ranges of descriptors in a shape's space are taken.
_SAMPLE = 1024


def space_to_json(task: DispatchTask) -> Json:
    """What the search space of a task is made from, for the database.

    Args:
        task: whose template and target it is; one of several dispatches has no template.
    """
    if task.template is None:
        return None
    return cast(Json, {"template": task.template.to_json(), "target": task.target.to_json()})


def experience(
    store: Database, key: TaskKey, pipeline: str, run_id: int | None = None
) -> tuple[Experience, ...]:
    """The trials of other shapes of the same kind, target and compiler, configured by the compiler
    with the same pipeline; the nearest in size first.

    Those of the run `run_id` are left out: a run that is resumed begins with what it began with.

    Args:
        store: the database.
        key: of the task that is to be searched.
        pipeline: by which the compiler configures it.
        run_id: the run that goes on.

    Returns:
        Descriptors and times of each shape.
    """
    found: list[Experience] = []
    for task in sorted(store.similar_tasks(key), key=lambda task: _distance(task, key)):
        if len(found) >= _MOST_SHAPES:
            break
        one = _of_task(store, task, pipeline, run_id)
        if one is not None:
            found.append(one)
    return tuple(found)


def _distance(task: TaskRecord, key: TaskKey) -> tuple[float, int]:
    """How far the sizes of the loops are from each other, in powers of two."""
    mine, its = key.workload.sizes, task.key.workload.sizes
    if len(mine) != len(its):
        return math.inf, task.id
    ratios = [abs(math.log2(max(1, a) / max(1, b))) for a, b in zip(mine, its, strict=True)]
    return sum(ratios), task.id


def _of_task(
    store: Database, task: TaskRecord, pipeline: str, run_id: int | None
) -> Experience | None:
    """The trials of a task as descriptors and times; None where there are too few of use."""
    records = store.trial_records(task_id=task.id)
    trials = {r.trial.configuration: r.trial for r in records if r.run_id != run_id}
    if len(trials) < _LEAST_TRIALS:
        return None
    try:
        data = cast(dict[str, dict[str, object]], task.space)
        template = DispatchTemplate.from_json(data["template"])
        target = Target.from_json(data["target"])
        if template.translation.pipeline != pipeline:
            return None
        made = dispatch_space(template, task.key.workload, target)
    except (KeyError, TypeError, ValueError, TilewrightError):
        return None  # written by another version, whose spaces were made otherwise
    if made is None:
        return None
    space = made.space
    members = space.contains_many(list(trials))
    kept = [t for t, member in zip(trials.values(), members, strict=True) if member]
    times = np.array([seconds(t) for t in kept], dtype=np.float64)
    if np.count_nonzero(~np.isnan(times)) < _LEAST_TRIALS:
        return None
    at = informative(times, _MOST_TRIALS)
    described = space.describe_many([kept[i].configuration for i in at])
    sample = space.describe_many(space.sample(np.random.default_rng(0), _SAMPLE))
    spanned = ranges(np.concatenate([described, sample]))
    return Experience(tuple(space.descriptor_names), described, times[at], spanned)
