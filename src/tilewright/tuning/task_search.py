"""The search of one task: what it begins with, and what it draws from."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.search.interface import Strategy, create_strategy, find_strategy
from tilewright.search.transfer import Experience
from tilewright.space.generators import KERNEL_MEMBER
from tilewright.space.interface import Space
from tilewright.space.union import MEMBER_KNOB, UnionSpace
from tilewright.trial import Configuration, Status, Trial
from tilewright.tuning.context import RunContext
from tilewright.tuning.experience import KernelLessons, experience
from tilewright.tuning.reuse import hint
from tilewright.tuning.search_loop import SearchLoop
from tilewright.tuning.session_stages import NotMeasured, SessionStages
from tilewright.tuning.stages import Exhausted, OpeningFirst, Stages, discard
from tilewright.tuning.task import DispatchTask

# How far behind the best that is known of the task a member may be for it to be searched: a sketch
# by what it takes for best, the pipelines by the compiler's own choice.
_SKETCH_BEHIND, _PIPELINE_BEHIND = 4.0, 16.0


def openings(
    context: RunContext, task: DispatchTask, known: Sequence[Trial]
) -> list[Configuration]:
    """What is tried of a task before anything is searched: what others found, who gave it to this
    run, what an earlier run found, here or elsewhere, however few trials it took, and what each
    sketch takes for best.

    Args:
        context: the run.
        task: whose space says what that is.
        known: what has been tried.

    Returns:
        Configurations that have not been tried.
    """
    found = hint(context, task)
    given = context.suggested.get(task.workload.key, ())
    suggested = [one for one in given if task.restricted.contains(one)]
    wanted = [*suggested, *([] if found is None else [found]), *task.restricted.anchors]
    tried = {task.space.default, *(trial.configuration for trial in known)}
    return [one for one in dict.fromkeys(wanted) if one not in tried]


def task_loop(
    context: RunContext,
    stages: SessionStages,
    task: DispatchTask,
    lessons: KernelLessons | None = None,
    trials: int | None = None,
) -> SearchLoop:
    """The search of a task, which goes on with what the run has tried of it.

    Args:
        context: the run.
        stages: what compiles candidates, and what measures them, if any does.
        task: gets the trials.
        lessons: what trials of other tasks with kernels teach.
        trials: how many the task is expected to get.

    Returns:
        A search that begins with what each sketch takes for best.
    """
    earlier = context.store.trials(context.run_id, task.store_id)
    tried = {trial.configuration for trial in task.trials}
    task.trials.extend(trial for trial in earlier if trial.configuration not in tried)
    default = Trial(
        task.space.default, Status.OK, time_s=task.default_s, origin="the compiler's own choice"
    )

    def begin(opening: Sequence[Trial]) -> Strategy | Exhausted:
        known = [default, *earlier, *opening]
        space = worth_searching(task, known)
        if space is None:
            return Exhausted()
        return create_strategy(
            context.options.strategy_name,
            space,
            context.options.seed,
            context.options.strategy_settings,
            known=[one for one in known if one is default or space.contains(one.configuration)],
            experience=_experience(context, task, lessons),
            trials=trials,
        )

    assert stages.compiling is not None
    compiler = stages.compiling.compiler(context, task)
    measuring = stages.measuring
    measurer = NotMeasured() if measuring is None else measuring.measurer(context, task)

    def record(trial: Trial) -> None:
        context.store.record_trial(context.run_id, task.store_id, trial)
        task.trials.append(trial)

    return SearchLoop(
        Stages(OpeningFirst(openings(context, task, earlier), begin), compiler, measurer),
        record,
        stop=lambda: context.out_of_time,
        discard=discard,
        known=[default, *earlier],
    )


def worth_searching(task: DispatchTask, trials: Sequence[Trial]) -> Space | None:
    """The space of a task without the members that are far behind.

    Args:
        task: whose space.
        trials: the compiler's own choice among them, and what each sketch takes for best.

    Returns:
        The members that may yet be the best; None where there are none: of a site whose kernels are
        searched in another variant only the pipelines are left, which may be far behind these.
    """
    space = task.restricted
    if not isinstance(space, UnionSpace) or task.default_s is None:
        return space
    best: dict[str, float] = {}
    for trial in trials:
        name = str(dict(trial.configuration.items).get(MEMBER_KNOB, ""))
        if trial.ok and trial.time_s is not None:
            best[name] = min(best.get(name, trial.time_s), trial.time_s)
    fastest = min(best.values(), default=task.default_s)
    kept = []
    for member in space.members:
        if member.name.startswith(KERNEL_MEMBER):
            near = best.get(member.name, fastest) <= _SKETCH_BEHIND * fastest
        else:
            near = task.default_s <= _PIPELINE_BEHIND * fastest
        if near:
            kept.append(member.name)
    if not kept:
        return None
    return space.restrict({MEMBER_KNOB: kept}).space if len(kept) < len(space.members) else space


def _experience(
    context: RunContext, task: DispatchTask, lessons: KernelLessons | None
) -> tuple[Experience, ...]:
    """What is known of other shapes, for a strategy that can learn from it."""
    if not find_strategy(context.options.strategy_name).transfers:
        return ()
    found = lessons.learn(task) if lessons is not None and task.data is not None else ()
    if found:
        text = "kernels are searched by what trials of the same sketches taught for other shapes"
        if text not in context.notes:
            context.note(text)
    elif task.template is not None:
        pipeline = task.template.translation.pipeline
        found = experience(context.store, task.key, pipeline, context.run_id)
        if found:
            shapes = "another shape" if len(found) == 1 else f"{len(found)} other shapes"
            context.note(f"{task.name}: the search begins with what trials of {shapes} taught")
    return found
