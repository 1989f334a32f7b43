"""Finalists: compiled through the very spec that is shipped, checked, compared with the default."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.measure.comparison import ComparisonPolicy, Finalist
from tilewright.measure.pool import Job, WorkerFailure
from tilewright.measure.statistics import Verdict
from tilewright.store import TaskResult
from tilewright.toolchain import WITHOUT_THREADS
from tilewright.trial import Configuration, Trial
from tilewright.tuning.candidate_tasks import CandidateRequest, compile_candidate
from tilewright.tuning.context import RunContext
from tilewright.tuning.defaults import default_vmfb
from tilewright.tuning.events import WinnerFound
from tilewright.tuning.prepare import PreparedVariant, task_key
from tilewright.tuning.stages import FastestFirst, Selector
from tilewright.tuning.task import DispatchTask
from tilewright.tuning.verification import check
from tilewright.tuning.worker_tasks import (
    CONFIGURED,
    AppliedRequest,
    SpecEntryRequest,
    SpecRequest,
    read_applied,
    write_tuning_spec,
)

MARGIN = 0.01
_TIMEOUT_S = 300.0


@dataclass
class Candidate:
    """A finalist on its way: the spec it is compiled through, its program, its verdict."""

    configuration: Configuration
    spec: Path
    configured: Path
    vmfb: Path
    failure: str = ""
    finalist: Finalist | None = None


@dataclass
class Confirmed:
    """A task's outcome: the candidates that beat the default beyond the noise, best first."""

    task: DispatchTask
    faster: list[Candidate] = field(default_factory=list)
    default_s: float = 0.0
    reason: str = ""

    @property
    def winner(self) -> Candidate | None:
        return self.faster[0] if self.faster else None


def entry_name(task: DispatchTask) -> str:
    """The name of a task's entry in a spec: readable, and unique by the workload's key."""
    return f"{task.workload.kind}_{'x'.join(map(str, task.workload.sizes))}_{task.workload.key[:8]}"


def entry_request(task: DispatchTask, configuration: Configuration) -> SpecEntryRequest:
    return SpecEntryRequest(
        name=entry_name(task),
        configured=task.configured,
        executable=task.executable,
        entry=task.name,
        configuration=task.lower(configuration),
    )


def confirm(
    context: RunContext,
    prepared: PreparedVariant,
    tasks: Sequence[DispatchTask],
    selector: Selector | None = None,
) -> list[Confirmed]:
    """Re-measure the best trials of each task against the compiler's own choice.

    A candidate is kept only when its results are right and the interval of its time relative to
    the default's, from interleaved rounds, lies below 1.
    """
    selector = selector or FastestFirst()
    tasks = [task for task in tasks if task.trials]
    effort = context.options.effort_preset
    chosen: dict[str, list[Trial]] = {}
    for task in tasks:
        promising = [
            t
            for t in selector.select(task.trials, effort.finalists)
            if t.configuration != task.space.default
            and t.time_s is not None
            and task.default_s is not None
            and t.time_s < task.default_s
        ]
        chosen[task.workload.key] = promising
    candidates = {
        task.workload.key: [
            _plan(task, trial, index) for index, trial in enumerate(chosen[task.workload.key])
        ]
        for task in tasks
    }
    _compile_through_specs(context, prepared, tasks, candidates)
    if context.benchmark.round_size > 1:
        with context.benchmark.ahead("finalists"):
            for task in tasks:
                _judge(context, task, candidates[task.workload.key])
    confirmed = []
    for task in tasks:
        outcome = _judge(context, task, candidates[task.workload.key])
        confirmed.append(outcome)
        _record(context, prepared, outcome)
        _announce(context, outcome)
    return confirmed


def _plan(task: DispatchTask, trial: Trial, index: int) -> Candidate:
    stem = task.folder / f"finalist_{index}"
    return Candidate(
        trial.configuration,
        stem.with_suffix(".spec.mlir"),
        stem.with_suffix(".configured.mlir"),
        stem.with_suffix(".vmfb"),
    )


def _compile_through_specs(
    context: RunContext,
    prepared: PreparedVariant,
    tasks: Sequence[DispatchTask],
    candidates: dict[str, list[Candidate]],
) -> None:
    pairs = [(task, c) for task in tasks for c in candidates[task.workload.key]]
    if not pairs:
        return
    jobs = [
        Job(
            write_tuning_spec,
            SpecRequest((entry_request(task, c.configuration),), c.spec, prepared.flags),
            _TIMEOUT_S,
        )
        for task, c in pairs
    ]
    for (_, c), written in zip(pairs, context.compilers.run(jobs), strict=True):
        if written.failure is not None:
            c.failure = written.failure.message

    def configure(pair: tuple[DispatchTask, Candidate]) -> None:
        task, c = pair
        if c.failure:
            return
        outcome = context.toolchain.compile(
            task.isolated,
            c.configured,
            (*prepared.flags, f"{context.target.spec_flag}{c.spec}", f"--compile-to={CONFIGURED}"),
            timeout_s=_TIMEOUT_S,
            extra=(WITHOUT_THREADS,),  # there is one dispatch, and as many compiles as cores
        )
        if not outcome.ok:
            c.failure = outcome.error

    with ThreadPoolExecutor(max_workers=max(1, context.target.cores)) as threads:
        list(threads.map(configure, pairs))

    pairs = [(t, c) for t, c in pairs if not c.failure]
    proofs = context.compilers.run(
        Job(read_applied, AppliedRequest(t.configured, c.configured, prepared.flags), 60.0)
        for t, c in pairs
    )
    for (_, c), read in zip(pairs, proofs, strict=True):
        if read.failure is not None:
            c.failure = read.failure.message
        elif not any(change.entry for change in read.value):
            c.failure = "the spec did not apply to the dispatch that it was made for"
    pairs = [(t, c) for t, c in pairs if not c.failure]
    programs = context.compilers.run(
        Job(
            compile_candidate,
            CandidateRequest(
                configured=c.configured,
                executable=t.executable,
                entry=t.name,
                configuration=None,
                repeats=t.repeats,
                rotations=t.rotations,
                flags=prepared.flags,
                vmfb=c.vmfb,
            ),
            _TIMEOUT_S,
        )
        for t, c in pairs
    )
    for (_, c), compiled in zip(pairs, programs, strict=True):
        if compiled.failure is not None:
            c.failure = compiled.failure.message


def _judge(context: RunContext, task: DispatchTask, candidates: list[Candidate]) -> Confirmed:
    assert task.default_s is not None
    outcome = Confirmed(task, default_s=task.default_s)
    for c in candidates:
        if not c.failure:
            c.failure = _verify(context, task, c)
        if c.failure:
            context.note(f"{task.name}: a finalist was dropped: {c.failure}", warning=True)
    good = [c for c in candidates if not c.failure]
    if not good:
        outcome.reason = "no candidate beat the default"
        return outcome
    effort = context.options.effort_preset
    policy = ComparisonPolicy(
        rounds=effort.confirm_rounds,
        max_s=max(5.0, 40.0 * task.default_s),
        margin=MARGIN,
        min_sample_s=max(0.006, 0.5 * task.default_s * task.repeats),
        seed=context.options.seed,
    )
    judged = context.benchmark.compare_interleaved(
        [str(default_vmfb(task)), *(str(c.vmfb) for c in good)],
        task.inputs,
        repeats=task.repeats,
        policy=policy,
        timeout_s=600.0,
    )
    if isinstance(judged, WorkerFailure):
        outcome.reason = f"the comparison with the default failed: {judged.message}"
        return outcome
    outcome.default_s = judged[0].measurement.median_s
    for c, finalist in zip(good, judged[1:], strict=True):
        c.finalist = finalist
    faster = [c for c in good if c.finalist and c.finalist.verdict is Verdict.FASTER]
    outcome.faster = sorted(faster, key=lambda c: c.finalist.ratio.value if c.finalist else 1.0)
    if not outcome.faster:
        outcome.reason = "no candidate beat the default beyond the noise" + _nearest(good)
    return outcome


def _nearest(candidates: Sequence[Candidate]) -> str:
    """How near the best came, so that a noisy machine can be told from a good default."""
    speedups = [c.finalist.speedup for c in candidates if c.finalist]
    best = max(speedups, key=lambda s: s.value, default=None)
    if best is None or best.value <= 1.0:
        return ""
    return f" (the best: {best.value:.2f}x, 95% interval {best.low:.2f} to {best.high:.2f})"


def _verify(context: RunContext, task: DispatchTask, c: Candidate) -> str:
    wrong = check(context.benchmark, task, c.vmfb, _TIMEOUT_S)
    if isinstance(wrong, WorkerFailure):
        return wrong.message
    return f"wrong result: {wrong}" if wrong else ""


def _record(context: RunContext, prepared: PreparedVariant, outcome: Confirmed) -> None:
    task, winner = outcome.task, outcome.winner
    speedup = winner.finalist.speedup if winner and winner.finalist else None
    context.store.record_result(
        context.store.task_id(task_key(context, prepared, task)),
        TaskResult(
            configuration=winner.configuration if winner else None,
            default_s=outcome.default_s,
            tuned_s=winner.finalist.measurement.median_s
            if winner and winner.finalist
            else outcome.default_s,
            speedup_low=speedup.low if speedup else 1.0,
            speedup_high=speedup.high if speedup else 1.0,
            verification=task.verified_against,
            trials=task.reused_trials or len(task.trials),
        ),
        context.run_id,
    )


def _announce(context: RunContext, outcome: Confirmed) -> None:
    winner = outcome.winner
    speedup = winner.finalist.speedup if winner and winner.finalist else None
    context.emit(
        WinnerFound(
            outcome.task.name,
            speedup.value if speedup else 1.0,
            speedup.low if speedup else 1.0,
            speedup.high if speedup else 1.0,
            outcome.task.describe(winner.configuration) if winner else "",
            winner is not None,
            outcome.reason,
            outcome.task.variant,
        )
    )
