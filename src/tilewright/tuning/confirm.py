"""Finalists: compiled through the very spec that is shipped, checked, compared with the default."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.measure.comparison import ComparisonPolicy, Finalist
from tilewright.measure.pool import Job, WorkerFailure
from tilewright.measure.statistics import Interval, Verdict
from tilewright.store import TaskResult
from tilewright.toolchain import WITHOUT_THREADS
from tilewright.trial import Configuration, Status, Trial
from tilewright.tuning.choices import Choices, best_known
from tilewright.tuning.context import RunContext
from tilewright.tuning.default_programs import default_job, default_vmfb
from tilewright.tuning.entries import ConfigurationEntry, Entry, KernelEntry
from tilewright.tuning.events import WinnerFound
from tilewright.tuning.extract_tasks import ISOLATED_FLAG
from tilewright.tuning.finalist_tasks import SiteFinalistRequest, compile_site_finalist
from tilewright.tuning.prepared_variant import PreparedVariant
from tilewright.tuning.programs import CLEAR
from tilewright.tuning.proof import Claim, ProofFailure, prove_all
from tilewright.tuning.reference_tasks import SITE_FLAG
from tilewright.tuning.stages import FastestFirst, Selector
from tilewright.tuning.task import DispatchTask
from tilewright.tuning.worker_tasks import compile_candidate

MARGIN = 0.01
# The speed-up from which the best of those of which none is certain is looked at once more, alone.
_WORTH_A_LOOK = 1.02
# Seconds for comparing a task's finalists, but for the rounds that any verdict takes, and for the
# turn of one of them in a round: of what takes longer few calls say enough.
_LONGEST_S, _LONG_SAMPLE_S = 30.0, 0.2
_TIMEOUT_S = 300.0
# Steps of which the deadlines know what they take: a trial, a finalist's program, comparing the
# finalists of a task. The first of their programs is expected to take as long as some trials.
TRYING = "trying a candidate"
_COMPILING, _COMPARING = "compiling a finalist", "comparing finalists"
_LEAST_S, _OF_TRIALS = 1.0, 2.0
_COMPARING_LEAST_S = 0.5


@dataclass
class FinalCandidate:
    """A finalist on its way: its program, compiled through a spec, and its verdict."""

    configuration: Configuration
    vmfb: Path
    failure: str = ""
    finalist: Finalist | None = None


@dataclass
class Confirmed:
    """A task's outcome: the candidates that beat the default beyond the noise, best first.

    compared: candidates ran and were compared with the default.
    """

    task: DispatchTask
    faster: list[FinalCandidate] = field(default_factory=list)
    default_s: float = 0.0
    reason: str = ""
    compared: bool = False

    @property
    def winner(self) -> FinalCandidate | None:
        """The best of those that are faster, if there is one."""
        return self.faster[0] if self.faster else None

    @property
    def speedup(self) -> Interval:
        """The default's time over the winner's; 1 where there is none."""
        finalist = self.winner.finalist if self.winner else None
        return finalist.speedup if finalist else Interval(1.0, 1.0, 1.0, 0.95)


def entry_name(task: DispatchTask) -> str:
    """The name of a task's entry in a spec.

    Args:
        task: the dispatch.

    Returns:
        Kind, sizes and the begin of the workload's key: readable, and unique in a program.
    """
    return f"{task.workload.kind}_{'x'.join(map(str, task.workload.sizes))}_{task.workload.key[:8]}"


def entry_of(task: DispatchTask, configuration: Configuration) -> Entry:
    """What a spec does for a configuration of a task: a configuration of the compiler's code, or a
    kernel in the place of the task's site.

    Args:
        task: the dispatch that it is for.
        configuration: a point of the task's space.

    Returns:
        The entry.
    """
    choice = task.kernel(configuration)
    if choice is None:
        return configuration_entry(task, configuration)
    assert task.site is not None
    return KernelEntry(
        name=f"{entry_name(task)}_{task.site.digest[:8]}",
        site=task.site.site.module,
        expression=task.site.expression,
        choice=choice,
        target=task.target,
    )


def configuration_entry(task: DispatchTask, configuration: Configuration) -> ConfigurationEntry:
    """A configuration of a task as an entry of a spec.

    Args:
        task: the dispatch that it is for.
        configuration: a point of the task's space.

    Returns:
        The entry, called as :func:`entry_name` says.
    """
    return ConfigurationEntry(
        name=entry_name(task),
        configured=task.dispatch.configured,
        executable=task.dispatch.executable,
        entry=task.name,
        configuration=task.lower(configuration),
    )


def configuration_claim(task: DispatchTask, configuration: Configuration, stem: Path) -> Claim:
    """That a spec with a configuration reaches its dispatch, or the site of a kernel, compiled
    alone.

    Args:
        task: the dispatch.
        configuration: a point of the task's space.
        stem: where the proof's files are made.

    Returns:
        What :func:`tilewright.tuning.proof.prove` takes.
    """
    if task.kernel(configuration) is not None:
        assert task.site is not None
        return Claim(
            task.data.program if task.data is not None else task.site.site.module,
            task.flags,
            stem,
            (entry_of(task, configuration),),
            extra=(SITE_FLAG, WITHOUT_THREADS),
            timeout_s=_TIMEOUT_S,
        )
    return Claim(
        task.dispatch.file,
        task.flags,
        stem,
        (entry_of(task, configuration),),
        before=task.dispatch.configured,
        # There is one dispatch, and as many compiles as cores.
        extra=(ISOLATED_FLAG, WITHOUT_THREADS),
        timeout_s=_TIMEOUT_S,
    )


def confirm(
    context: RunContext,
    tasks: Sequence[DispatchTask],
    selector: Selector | None = None,
    variants: int = 1,
) -> list[Confirmed]:
    """Re-measure the best trials of each task against the compiler's own choice.

    A candidate is kept only when its spec applies, its results are right and the interval of its
    time relative to the default's, from interleaved rounds, lies below 1.

    Args:
        context: the run.
        tasks: those without a trial are left out.
        selector: picks the finalists among the trials; by default the fastest different programs.
        variants: how many still share the time that there is for confirming, this one among them.

    Returns:
        For each task that has trials the candidates that are faster, and why there are none.
    """
    selector = selector or FastestFirst()
    tasks = [task for task in tasks if task.trials]
    candidates = {
        task.identity: [
            FinalCandidate(trial.configuration, task.folder / f"finalist_{index}.vmfb")
            for index, trial in enumerate(_promising(context, task, selector))
        ]
        for task in tasks
    }
    _leave_out(context, tasks, candidates, variants)
    begin = time.monotonic()
    pairs = [(task, c) for task in tasks for c in candidates[task.identity]]
    _compile_through_specs(context, pairs)
    if pairs:
        context.deadlines.took(_COMPILING, time.monotonic() - begin, len(pairs))
    if context.benchmark.round_size > 1:
        with context.benchmark.ahead("finalists"):
            for task in tasks:
                _judge(context, task, candidates[task.identity])
    confirmed = []
    for task in tasks:
        begin = time.monotonic()
        outcome = _judge(context, task, candidates[task.identity])
        if candidates[task.identity]:
            context.deadlines.took(_COMPARING, time.monotonic() - begin)
        confirmed.append(outcome)
        _record(context, outcome)
        _announce(context, outcome)
    return confirmed


def confirm_s(context: RunContext, tasks: int, each: float) -> float:
    """What confirming is expected to take, by what it took before.

    Args:
        context: the run.
        tasks: how many have finalists.
        each: how many finalists each has.

    Returns:
        Seconds.
    """
    deadlines = context.deadlines
    guess = max(_LEAST_S, _OF_TRIALS * deadlines.each(TRYING, 0.0))
    compile_s = deadlines.each(_COMPILING, guess)
    return tasks * (each * compile_s + deadlines.each(_COMPARING, _COMPARING_LEAST_S))


def _leave_out(
    context: RunContext,
    tasks: Sequence[DispatchTask],
    candidates: dict[str, list[FinalCandidate]],
    variants: int,
) -> None:
    """Have no more finalists than there is time for: first each task's best alone, then those of
    the tasks that have the largest share."""
    left = context.deadlines.left_s("confirm")
    if left is None:
        return
    left /= variants
    tried = [task for task in tasks if candidates[task.identity]]
    count = sum(len(candidates[task.identity]) for task in tried)
    if not tried or confirm_s(context, len(tried), count / len(tried)) <= left:
        return
    affordable = max(1, int(left / confirm_s(context, 1, 1)))
    by_gain = sorted(tried, key=lambda task: -_gain(task))
    for number, task in enumerate(by_gain):
        del candidates[task.identity][int(number < affordable) :]
    if affordable < len(tried):
        context.note(
            f"{len(tried) - affordable} of {len(tried)} dispatches of {tried[0].variant} are left "
            "as they are: there is no time to confirm what was found for them",
            warning=True,
        )


def _gain(task: DispatchTask) -> float:
    """The part of the program's time that a task's best trial saves."""
    assert task.default_s is not None
    times = [trial.time_s for trial in task.trials if trial.ok and trial.time_s is not None]
    return task.share * (1.0 - min(times, default=task.default_s) / task.default_s)


def _promising(context: RunContext, task: DispatchTask, selector: Selector) -> list[Trial]:
    """The trials that may be faster than the default, as the selector has them. Those of a session
    without a measure stage have no time.

    Of kernels and of configurations the best are among them: which of them is faster in the program
    shows only when they are compared there.
    """
    count = context.options.effort_preset.finalists
    chosen = selector.select(task.trials, count)
    for world in (True, False):
        of = [t for t in task.trials if (task.kernel(t.configuration) is not None) is world]
        if of and not any(trial in of for trial in chosen):
            chosen = [*chosen[: count - 1], *selector.select(of, 1)]
    return [
        trial
        for trial in chosen
        if trial.configuration != task.space.default
        and task.default_s is not None
        and (trial.time_s is None or trial.time_s < task.default_s)
    ]


def _compile_through_specs(
    context: RunContext, pairs: Sequence[tuple[DispatchTask, FinalCandidate]]
) -> None:
    """Compile each candidate through a spec of its own; `failure` of those that cannot be."""
    # Of a site of several dispatches the default need not have been compiled as one yet.
    defaults = {
        task.identity: default_job(task)
        for task, _ in pairs
        if task.is_chain and not default_vmfb(task).exists()
    }
    jobs: list[Job[Any, Any]] = list(defaults.values())
    configured = []
    for task, c in pairs:
        entry = entry_of(task, c.configuration)
        if isinstance(entry, KernelEntry):
            assert task.data is not None
            request = SiteFinalistRequest(
                entry, task.data.program, task.flags, c.vmfb, task.repeats
            )
            jobs.append(Job(compile_site_finalist, request, _TIMEOUT_S, tag=c))
        else:
            configured.append((task, c))
    claims = [
        configuration_claim(task, c.configuration, c.vmfb.with_suffix("")) for task, c in configured
    ]
    for (task, c), proof in zip(configured, prove_all(context, claims), strict=True):
        if isinstance(proof, ProofFailure):
            c.failure = proof.message
            continue
        made = task.request(c.vmfb, configured=proof.configured)
        jobs.append(Job(compile_candidate, made, _TIMEOUT_S, tag=c))
    for result in context.compilers.run(jobs):
        if result.failure is not None:
            for task, c in pairs:
                if result.job.tag is c or result.job.tag is task:
                    c.failure = result.failure.message
    for task, c in pairs:
        if c.failure:
            _note_dropped(context, task, c)


def _note_dropped(context: RunContext, task: DispatchTask, c: FinalCandidate) -> None:
    context.note(f"{task.name}: a finalist was dropped: {c.failure}", warning=True)


def _judge(context: RunContext, task: DispatchTask, candidates: list[FinalCandidate]) -> Confirmed:
    assert task.default_s is not None
    outcome = Confirmed(task, default_s=task.default_s)
    good = [c for c in candidates if not c.failure]
    for c in good:
        c.failure = _verify(context, task, c)
        if c.failure:
            _note_dropped(context, task, c)
    good = [c for c in good if not c.failure]
    if not good:
        outcome.reason = "no candidate beat the default"
        return outcome
    outcome.faster = _compare(context, outcome, good)
    best = max((c for c in good if c.finalist), key=_gained, default=None)
    if not outcome.faster and best is not None and _gained(best) >= _WORTH_A_LOOK:
        # Its new rounds are those of one candidate: no correction for several (Bonferroni).
        outcome.faster = _compare(context, outcome, [best])
    if outcome.compared and not outcome.faster:
        outcome.reason = "no candidate beat the default beyond the noise" + _nearest(good)
    return outcome


def _gained(candidate: FinalCandidate) -> float:
    """The speed-up of one that was compared."""
    return candidate.finalist.speedup.value if candidate.finalist else 0.0


def _compare(
    context: RunContext, outcome: Confirmed, good: Sequence[FinalCandidate]
) -> list[FinalCandidate]:
    """Compare candidates with the default; those that are faster, the best first."""
    task = outcome.task
    assert task.default_s is not None
    policy = ComparisonPolicy(
        rounds=context.options.effort_preset.confirm_rounds,
        max_s=max(5.0, min(40.0 * task.default_s, _LONGEST_S)),
        margin=MARGIN,
        min_sample_s=max(0.006, min(0.5 * task.default_s * task.repeats, _LONG_SAMPLE_S)),
        seed=context.options.seed,
        clear=CLEAR,
    )
    testers = [
        task.tester(context.benchmark, _TIMEOUT_S),
        *(task.finalist_tester(context.benchmark, _TIMEOUT_S, c.configuration) for c in good),
    ]
    judged = context.benchmark.compare_interleaved(
        [str(default_vmfb(task)), *(str(c.vmfb) for c in good)],
        [one.reference.inputs for one in testers],
        repeats=task.repeats,
        policy=policy,
        parameters=[one.parameters for one in testers],
        timeout_s=600.0,
    )
    if isinstance(judged, WorkerFailure):
        outcome.reason = f"the comparison with the default failed: {judged.message}"
        return []
    outcome.compared, outcome.default_s = True, judged[0].measurement.median_s
    for c, finalist in zip(good, judged[1:], strict=True):
        c.finalist = finalist
    faster = [c for c in good if c.finalist and c.finalist.verdict is Verdict.FASTER]
    return sorted(faster, key=lambda c: c.finalist.ratio.value if c.finalist else 1.0)


def _nearest(candidates: Sequence[FinalCandidate]) -> str:
    """How near the best came, so that a noisy machine can be told from a good default."""
    speedups = [c.finalist.speedup for c in candidates if c.finalist]
    best = max(speedups, key=lambda s: s.value, default=None)
    if best is None or best.value <= 1.0:
        return ""
    return f" (the best: {best.value:.2f}x, 95% interval {best.low:.2f} to {best.high:.2f})"


def _verify(context: RunContext, task: DispatchTask, c: FinalCandidate) -> str:
    tester = task.finalist_tester(context.benchmark, _TIMEOUT_S, c.configuration)
    tested = tester.check(c.vmfb)
    wrong = tested.status is Status.WRONG_RESULT
    return f"wrong result: {tested.message}" if wrong else tested.message


def _record(context: RunContext, outcome: Confirmed) -> None:
    winner = outcome.winner
    finalist = winner.finalist if winner else None
    _record_result(
        context,
        outcome.task,
        winner.configuration if winner else None,
        (outcome.default_s, finalist.measurement.median_s if finalist else outcome.default_s),
        outcome.speedup,
    )


def record_choices(
    context: RunContext, prepared: PreparedVariant, choices: Choices, confirmed: Sequence[Confirmed]
) -> None:
    """Keep for later runs what was found of tasks that were not confirmed alone, and what the whole
    program has in place of a winner.

    Args:
        context: the run.
        prepared: the variant.
        choices: what was chosen for its program in the end.
        confirmed: the tasks of which results are kept already.
    """
    winners = {c.task.identity: c.winner.configuration if c.winner else None for c in confirmed}
    found = best_known(prepared)
    for task in prepared.tasks:
        key = task.identity
        chosen = choices.get(key)
        if not task.trials or (key in winners and chosen in (None, winners[key])):
            continue
        assert task.default_s is not None
        configuration, seconds = found.get(key, (None, task.default_s))
        if chosen is not None and chosen != configuration:
            times = [t.time_s for t in task.trials if t.configuration == chosen and t.time_s]
            if not times and key in prepared.guesses:
                continue
            configuration, seconds = chosen, min(times, default=task.default_s)
        ratio = task.default_s / seconds
        speedup = Interval(ratio, ratio, ratio, 0.95)
        _record_result(context, task, configuration, (task.default_s, seconds), speedup)


def _record_result(
    context: RunContext,
    task: DispatchTask,
    configuration: Configuration | None,
    times_s: tuple[float, float],
    speedup: Interval,
) -> None:
    """Keep what was found of a task; `times_s`: of the default, and of the configuration."""
    result = TaskResult(
        configuration=configuration,
        default_s=times_s[0],
        tuned_s=times_s[1],
        speedup_low=speedup.low,
        speedup_high=speedup.high,
        verification=task.verified_against,
        trials=task.reused_trials or len(task.trials),
    )
    context.store.record_result(context.store.task_id(task.key), result, context.run_id)


def _announce(context: RunContext, outcome: Confirmed) -> None:
    winner = outcome.winner
    context.emit(
        WinnerFound(
            outcome.task.name,
            outcome.speedup.value,
            outcome.speedup.low,
            outcome.speedup.high,
            outcome.task.describe(winner.configuration) if winner else "",
            winner is not None,
            outcome.reason,
            outcome.task.variant,
        )
    )
