"""What the database's trials of other shapes can teach the search of a new one.

A space of pipelines is made anew from a dispatch's template. Spaces with kernels are made from the
site, which the database does not have: what their trials amount to is stored when a search ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from tilewright.errors import TilewrightError
from tilewright.search.history import seconds
from tilewright.search.surrogate import informative
from tilewright.search.transfer import Experience, ranges
from tilewright.space.arrays import FloatArray
from tilewright.space.descriptors import PRIOR
from tilewright.space.generators import KERNEL_MEMBER, dispatch_space
from tilewright.space.interface import Space
from tilewright.space.union import MEMBER_KNOB, UnionSpace
from tilewright.store import Database, Json, TaskKey, TaskRecord
from tilewright.target import Target
from tilewright.tiling import DispatchTemplate
from tilewright.trial import Configuration
from tilewright.tuning.task import DispatchTask
from tilewright.workload import Workload

# The shapes nearest in size are asked, and of each the trials that tell the most.
_MOST_SHAPES = 6
_MOST_TRIALS = 256
_LEAST_TRIALS = 8
# Members from which the ranges of descriptors in a shape's space are taken.
_SAMPLE = 1024
# The same of spaces with kernels; what is stored of a task is a checkpoint of its run, so called.
_STORED_TRIALS, _STORED_SAMPLE = 96, 128
_STORED = "kernels tried "


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


@dataclass
class KernelLessons:
    """What the trials of tasks with kernels teach each other, in a run and from one to the next.

    A sketch's knobs mean the same for every shape, relative to their ranges in its space; so what
    counts is not the kind of workload, but whether a sketch is common to both.

    store: the database. run_id: the run that goes on. tasks: those with kernels that it searches.
    """

    store: Database
    run_id: int
    tasks: list[DispatchTask] = field(default_factory=list)
    _ranges: dict[int, FloatArray] = field(default_factory=dict, init=False)

    def learn(self, task: DispatchTask) -> tuple[Experience, ...]:
        """What others that have a sketch in common with a task teach: first those of this run, then
        those of earlier runs for the same target and compiler, the nearest by their work first. An
        earlier run's trials of the task itself are among them.

        Args:
            task: that is to be searched.

        Returns:
            Descriptors and times of each.
        """
        own = [
            (_apart(other.workload, task), _experience_of(self._taught(other)))
            for other in self.tasks
            if other is not task and not _sketches(other).isdisjoint(_sketches(task))
        ]
        here = [(apart, one) for apart, one in own if one is not None]
        nearest = sorted(here, key=lambda one: one[0])[:_MOST_SHAPES]
        found = [one for _, one in nearest]
        earlier = self._earlier(task) if len(found) < _MOST_SHAPES else []
        return tuple((found + earlier)[:_MOST_SHAPES])

    def keep(self) -> None:
        """Store what the trials of this run taught."""
        for task in self.tasks:
            value = self._taught(task)
            if value is not None:
                self.store.put_state(self.run_id, f"{_STORED}{task.store_id}", value)

    def _earlier(self, task: DispatchTask) -> list[Experience]:
        found: dict[int, tuple[float, Experience]] = {}
        for run, value in self.store.states(_STORED):
            data = cast(dict[str, Any], value)
            if run == self.run_id or data["task"] in found:
                continue
            if _sketches(task).isdisjoint(data["members"]):
                continue
            record = self.store.task(data["task"])
            one = _experience_of(value)
            same = (record.key.target, record.key.compiler) == (task.key.target, task.key.compiler)
            if same and one is not None:
                found[data["task"]] = (_apart(record.key.workload, task), one)
        return [one for _, one in sorted(found.values(), key=lambda item: item[0])]

    def _taught(self, task: DispatchTask) -> Json:
        """The trials of a task as descriptors and times; None where there are too few of use."""
        space, names = task.restricted, tuple(task.restricted.descriptor_names)
        members = space.contains_many([t.configuration for t in task.trials])
        kept = [t for t, member in zip(task.trials, members, strict=True) if member]
        times = np.array([seconds(t) for t in kept], dtype=np.float64)
        if np.count_nonzero(~np.isnan(times)) < _LEAST_TRIALS:
            return None
        at = informative(times, _STORED_TRIALS)
        configurations = [kept[i].configuration for i in at]
        described = _described(space, configurations)
        if id(task) not in self._ranges:
            sample = space.sample(np.random.default_rng(0), _STORED_SAMPLE)
            self._ranges[id(task)] = ranges(_described(space, sample))
        spanned = ranges(np.concatenate([described, self._ranges[id(task)]]))
        return {
            "task": task.store_id,
            "members": sorted({str(one[MEMBER_KNOB]) for one in configurations}),
            "names": [*names, *([] if PRIOR in names else [PRIOR])],
            "descriptors": np.round(described, 5).tolist(),
            # JSON has no NaN.
            "times": [None if np.isnan(time) else float(time) for time in times[at]],
            "ranges": spanned.tolist(),
        }


def _described(space: Space, configurations: Sequence[Configuration]) -> FloatArray:
    """The descriptors of configurations, and what the prior says where it is none of them."""
    described = space.describe_many(configurations)
    if PRIOR in space.descriptor_names:
        return described
    return np.column_stack([described, space.prior_many(configurations)])


def _experience_of(value: Json) -> Experience | None:
    if value is None:
        return None
    data = cast(dict[str, Any], value)
    return Experience(
        tuple(data["names"]),
        np.array(data["descriptors"], dtype=np.float64),
        np.array([math.nan if one is None else one for one in data["times"]], dtype=np.float64),
        np.array(data["ranges"], dtype=np.float64),
    )


def _sketches(task: DispatchTask) -> set[str]:
    space = task.restricted
    names = [one.name for one in space.members] if isinstance(space, UnionSpace) else []
    return {name for name in names if name.startswith(KERNEL_MEMBER)}


def _apart(workload: Workload, task: DispatchTask) -> float:
    """How far the work of one is from that of the other, in powers of two."""
    return abs(math.log2(_work(workload) / _work(task.workload)))


def _work(workload: Workload) -> float:
    return float(max(1, workload.flops, workload.bytes))


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
