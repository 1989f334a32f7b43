"""What earlier runs found of a workload: taken over where all that matters is the same, or a hint.

A result is the same run's work done already where workload, flags, target, compiler, machine and
device are all equal, and the compiler's own choice still takes what it took then, or has changed as
the program's others have. Where anything differs its configuration is only tried first, and its
trials teach the search.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from tilewright.measure.measurement_key import (
    KeyComparison,
    MeasurementKey,
    compare_measured,
    why_other,
)
from tilewright.store import KnownResult, TaskKey, TaskResult
from tilewright.trial import Configuration, Status, Trial
from tilewright.tuning.context import RunContext
from tilewright.tuning.task import DispatchTask
from tilewright.words import milliseconds, plural

# How far the default's time may be from the recorded one, either way. A machine that others use as
# well makes small kernels differ by a third; another frequency or fewer caches differ by more.
_SAME_DEFAULT = 1.5

# How much slower or faster all of a program may be: what others leave of a machine is rarely less
# than half, and a processor's lowest frequency is about half of its highest.
_MOST_CHANGED = 2.5


def compare_keys(
    known: KnownResult, key: TaskKey, now: MeasurementKey | None
) -> tuple[KeyComparison, ...]:
    """Every field of the key of a record beside that of a measurement taken now.

    Args:
        known: the record.
        key: of the task that would be measured.
        now: what it would be measured under; None where that is not known.
    """
    then = known.task.key
    pairs = [
        ("workload", then.workload.name, key.workload.name),
        ("workload digest", then.workload.key, key.workload.key),
        ("flags", then.flags or "none", key.flags or "none"),
        ("target", then.target, key.target),
        ("compiler version", then.compiler, key.compiler),
    ]
    recorded = None if known.measured_on is None else MeasurementKey.from_json(known.measured_on)
    return (*(KeyComparison(*one) for one in pairs), *compare_measured(recorded, now))


def verdict(known: KnownResult, compared: Sequence[KeyComparison]) -> str:
    """What a run would do with a record, in words.

    Args:
        known: the record.
        compared: its key, by `compare_keys`.
    """
    differing = [one.field for one in compared if not one.equal]
    if not differing:
        return (
            "taken over by a run that would give it at most twice its "
            f"{plural(known.result.trials, 'trial')}, if the compiler's choice still takes about "
            f"{milliseconds(known.result.default_s)} ms (within {_SAME_DEFAULT:g}x, or "
            "changed as all of the program has)"
        )
    names = ", ".join(differing)
    if "workload digest" in differing or "flags" in differing:
        return f"not used: {names} {'differs' if len(differing) == 1 else 'differ'}"
    what = "tried first" if known.result.configuration is not None else "nothing to try"
    return f"only a hint ({what}): {why_other(compared)}"


def change_since(context: RunContext, tasks: Iterable[DispatchTask]) -> float:
    """How many times as long as earlier runs found the compiler's own choices take now: the median
    of the tasks that have a result of this machine, which others' work and the processor's
    frequency change for all of them.

    Args:
        context: the run.
        tasks: of one or more variants of the program.

    Returns:
        1.0 where fewer than three have one.
    """
    known = [(task, earlier_result(context, task, 1)) for task in tasks if task.default_s]
    ratios = [_ratio(task, found) for task, found in known if found is not None]
    return statistics.median(ratios) if len(ratios) >= 3 else 1.0


def reuse_result(
    context: RunContext, task: DispatchTask, enough: int, changed: float = 1.0
) -> bool:
    """Whether an earlier run has tuned this workload here with at least `enough` trials.

    Its best configuration is taken as the only trial, and confirmed again like any other.

    Args:
        context: the run.
        task: gets the trial.
        enough: trials of the earlier run.
        changed: what the program's tasks take now of what they took then, by `change_since`.
    """
    if task.reused:
        return True
    found = earlier_result(context, task, enough)
    if found is None:
        return False
    then, now = milliseconds(found.default_s), milliseconds(task.default_s)
    if not _default_holds(task, found, changed):
        context.note(
            f"{task.name}: the result of run {found.run_id} is only a hint: the compiler's choice "
            f"takes {now} ms now and took {then} ms then"
        )
        return False
    task.reused_trials = found.trials
    tried = {trial.configuration for trial in task.trials}
    if found.configuration is not None and found.configuration not in tried:
        task.trials.append(
            Trial(
                found.configuration,
                Status.OK,
                time_s=found.tuned_s * (task.default_s or found.default_s) / found.default_s,
                origin=f"run {found.run_id}",
            )
        )
    context.note(
        f"{task.name}: reusing the result of run {found.run_id} "
        f"({plural(found.trials, 'trial')}; default {now} ms, {then} ms then; --fresh tunes it "
        "again)"
    )
    return True


def _ratio(task: DispatchTask, found: TaskResult) -> float:
    """What the compiler's own choice takes of what it took when the result was found."""
    return task.default_s / found.default_s if task.default_s and found.default_s > 0 else 1.0


def _default_holds(task: DispatchTask, found: TaskResult, changed: float) -> bool:
    """Whether the compiler's own choice takes about what it took when the result was found, or no
    further from it than the program's other dispatches."""
    changed = min(max(changed, 1 / _MOST_CHANGED), _MOST_CHANGED)
    low, high = min(1.0, changed) / _SAME_DEFAULT, max(1.0, changed) * _SAME_DEFAULT
    return low <= _ratio(task, found) <= high


def earlier_result(context: RunContext, task: DispatchTask, enough: int) -> TaskResult | None:
    """What an earlier run found for this workload here with at least so many trials.

    Args:
        context: the run, which may be told to begin afresh.
        task: whose key is looked for.
        enough: trials.

    Returns:
        None where there is nothing that may be taken over.
    """
    if context.options.fresh or context.options.config is not None or context.measured_on is None:
        return None
    found = context.store.result_for(task.key, context.measured_on.digest)
    if found is None or found.run_id == context.run_id or found.trials < enough:
        return None
    if found.configuration is not None and not task.restricted.contains(found.configuration):
        return None  # of a space that is no longer made so
    return found


def hint(context: RunContext, task: DispatchTask) -> Configuration | None:
    """The configuration that the newest result of this workload has, here or elsewhere, however few
    trials are behind it; one of this machine comes before all others.

    Args:
        context: the run, which may be told to begin afresh.
        task: whose workload it is of.

    Returns:
        None where there is none that this task's space has.
    """
    if context.options.fresh or context.options.config is not None:
        return None
    here = earlier_result(context, task, 1)
    if here is not None:
        return here.configuration
    for known in context.store.results_of(task.key):
        found, result = known.result.configuration, known.result
        if found is None or (result.run_id is not None and result.run_id == context.run_id):
            continue
        if task.restricted.contains(found):
            return found
    return None
