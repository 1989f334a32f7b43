"""What a run writes about itself: the summaries of dispatches, trials.csv, run.log."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Mapping
from pathlib import Path

from tilewright.files import whole_file
from tilewright.trial import Configuration, Status, Trial
from tilewright.tuning.company import Company, Outcome
from tilewright.tuning.confirm import Confirmed, entry_of
from tilewright.tuning.context import RunContext
from tilewright.tuning.result import DispatchSummary, KernelSummary, TuneResult
from tilewright.tuning.task import DispatchTask

UNTIMED = "not timed alone"
"""The status of a kernel that no trial timed."""
TRIAL_COLUMNS = (
    "trial",
    "dispatch",
    "variant",
    "workload",
    "status",
    "time_ms",
    "gflops",
    "configuration",
    "compile_s",
    "measure_s",
    "origin",
    "message",
    "knobs",
    "samples_ms",
)


def dispatch_summaries(outcome: Outcome, chosen: Company | None) -> tuple[DispatchSummary, ...]:
    """One summary for each workload of the program that is handed back, then those skipped.

    Args:
        outcome: of the run.
        chosen: whose program is handed back; None: the compiler's default.

    Returns:
        The summaries, the hottest first.
    """
    prepared = chosen.prepared if chosen else outcome.prepared[0]
    confirmed = {id(c.task): c for c in outcome.confirmed}
    covered = chosen.covered if chosen else {}
    untimed = [t for t in prepared.untimed if chosen and t.identity in (*chosen.choices, *covered)]
    told = {task.name for task in untimed}
    rows = [
        _summary(task, confirmed.get(id(task)), chosen, covered)
        for task in (*prepared.tasks, *untimed)
    ]
    rows += [
        DispatchSummary(
            name=s.name,
            workload=s.workload,
            count=s.count,
            status=f"skipped: {s.reason}",
            variant=prepared.variant.name,
        )
        for s in prepared.skipped
        if s.name not in told
    ]
    return tuple(rows)


def _summary(
    task: DispatchTask,
    confirmed: Confirmed | None,
    chosen: Company | None,
    covered: Mapping[str, str],
) -> DispatchSummary:
    key = task.identity
    configuration: Configuration | None = chosen.choices.get(key) if chosen else None
    default_s = confirmed.default_s if confirmed else task.default_s
    finalists = {c.configuration: c.finalist for c in confirmed.faster} if confirmed else {}
    finalist = finalists.get(configuration) if configuration is not None else None
    speedup = finalist.speedup if finalist else None
    tuned_s = default_s
    if default_s is not None and speedup is not None:
        tuned_s = default_s / speedup.value
    elif configuration is not None:
        # It was measured in a trial alone, and then with others in the whole program; or there
        # alone.
        times = [t.time_s for t in task.trials if t.configuration == configuration and t.time_s]
        guessed = chosen is not None and key in chosen.prepared.guesses
        tuned_s = min(times, default=None if guessed else default_s)
    own = task.own_choice
    if configuration is not None:
        status = "reused" if task.reused else "tuned" if tuned_s is not None else UNTIMED
    elif key in covered:
        status = f"part of {covered[key]}"
    elif chosen is not None and key in chosen.dropped:
        status = "dropped in company"
    else:
        status = "default kept"
    tried = len({t.configuration for t in task.trials})
    return DispatchSummary(
        name=task.name,
        workload=task.workload.name,
        count=task.count,
        share=round(task.share, 4),
        default_ms=None if default_s is None else default_s * 1e3,
        tuned_ms=None if tuned_s is None else tuned_s * 1e3,
        speedup=default_s / tuned_s if default_s and tuned_s else 1.0,
        trials=len(task.trials),
        status=status,
        configuration=own if configuration is None else task.describe(configuration),
        default_configuration=own,
        speedup_ci=(speedup.low, speedup.high) if speedup else None,
        gflops_default=task.gflops(default_s),
        gflops_tuned=task.gflops(tuned_s),
        # A kernel that was not timed was not run alone: its program's outputs were compared.
        verification="" if status == UNTIMED else task.verified_against,
        failed_trials=sum(not t.ok for t in task.trials),
        space_points=task.space_points,
        tried_share=tried / max(1.0, task.space_points),
        variant=task.variant,
        names=tuple(task.names),
        key=task.workload.key,
        kind=task.workload.kind,
        flops=task.workload.flops,
        bytes=task.workload.bytes,
        entry=entry_of(task, configuration).name if configuration is not None else "",
        dispatches=task.site.site.dispatches if task.is_chain and task.site else (),
        kernel=kernel_summary(task, configuration) if configuration is not None else None,
    )


def kernel_summary(task: DispatchTask, configuration: Configuration) -> KernelSummary | None:
    """A kernel of our own as it is told to people.

    Args:
        task: of which it is.
        configuration: of the task's space.

    Returns:
        None for a configuration of the compiler's code.
    """
    choice = task.kernel(configuration)
    if choice is None or task.site is None:
        return None
    made = task.site.kernel(choice)
    python = made.schedule.trace().to_python()
    return KernelSummary(choice.sketch, dict(choice.knobs.items), made.lower().text, python)


def write_trials(context: RunContext, outcome: Outcome, path: Path) -> None:
    """Write every trial of the run, one row each, earlier parts of a resumed run included.

    Args:
        context: the run, whose database has them.
        outcome: the tasks that they are of.
        path: a CSV file; it appears whole.

    Raises:
        OSError: It cannot be written.
    """
    tasks = {t.store_id: t for p in outcome.prepared for t in p.tasks if t.store_id >= 0}
    with whole_file(path) as partial, partial.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(TRIAL_COLUMNS)
        for record in context.store.trial_records(context.run_id):
            task = tasks.get(record.task_id)
            workload = task.workload if task else context.store.task(record.task_id).key.workload
            writer.writerow(_row(record.ordinal, record.trial, task, workload.name))


def _row(ordinal: int, trial: Trial, task: DispatchTask | None, workload: str) -> list[object]:
    gflops = task.gflops(trial.time_s) if task else None
    values = dict(trial.configuration.items)
    return [
        ordinal,
        task.name if task else "",
        task.variant if task else "",
        workload,
        str(trial.status),
        "" if trial.time_s is None else f"{trial.time_s * 1e3:.6g}",
        "" if gflops is None else f"{gflops:.6g}",
        task.describe(trial.configuration) if task else "",
        f"{trial.phase_s.get('compile', 0.0):.4f}",
        f"{trial.phase_s.get('measure', 0.0):.4f}",
        trial.origin,
        trial.message,
        json.dumps(values),
        " ".join(f"{s * 1e3:.6g}" for s in trial.samples),
    ]


def run_log(context: RunContext, outcome: Outcome, result: TuneResult) -> str:
    """The log of the run in plain text: date, spaces, times, counts, notes.

    Args:
        context: the run.
        outcome: its tasks with their trials.
        result: what it found.

    Returns:
        Lines with their ends.
    """
    lines = [
        f"date: {time.strftime('%Y-%m-%d %H:%M:%S')}",
        f"target: {context.target.key}",
        f"compiler: {context.compiler_version}",
        f"strategy: {context.options.strategy_name}, seed {context.options.seed}",
        f"program: {result.program.default_ms:.4g} ms by default, "
        f"{result.program.tuned_ms:.4g} ms tuned "
        f"({result.program.speedup:.3f}x, 95% interval {result.program.speedup_ci[0]:.3f} to "
        f"{result.program.speedup_ci[1]:.3f}), variant {result.program.variant}",
        f"trials: {result.trials_total}",
        "",
        "spaces:",
    ]
    for prepared in outcome.prepared:
        for task in prepared.tasks:
            counts: dict[Status, int] = {}
            for trial in task.trials:
                counts[trial.status] = counts.get(trial.status, 0) + 1
            valid = counts.pop(Status.OK, 0)
            failed = ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))
            lines.append(
                f"  {prepared.variant.name} {task.name}: about {task.space_points:.3g} "
                f"configurations, {len(task.trials)} tried ({valid} valid"
                f"{', ' + failed if failed else ''})"
            )
    lines += ["", "seconds by phase:"]
    lines += [f"  {name}: {seconds:.2f}" for name, seconds in result.phase_s.items()]
    lines.append(f"  whole run: {result.wall_s:.2f}")
    if context.notes:
        lines += ["", "notes:", *(f"  {note}" for note in context.notes)]
    return "\n".join(lines) + "\n"
