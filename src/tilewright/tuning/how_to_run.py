"""How the program that is handed back is run: the runtime's choices as measured, with the lines
that run it so.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tilewright.measure.comparison import ComparisonPolicy, judge_all
from tilewright.measure.device_options import DeviceOptions
from tilewright.measure.inputs import InputFile
from tilewright.measure.jobs import WorkerFailure
from tilewright.measure.remote import RemoteBenchmark
from tilewright.measure.statistics import Measurement, Verdict
from tilewright.measure.ways import WaysRequest, takes_fences, time_ways
from tilewright.target import Target
from tilewright.tuning.builds import Build
from tilewright.tuning.context import MORE_THREADS, RunContext
from tilewright.tuning.opening import open_benchmark
from tilewright.tuning.programs import RUN_TIMEOUT_S, Programs, quick_timing
from tilewright.tuning.result import RunSummary
from tilewright.words import plural, significant

# What a program takes with all threads at most for one to be tried, what waking the others takes at
# most, and how much of the default's time a tuned program takes, about. (A product of 256 cubed
# takes 0.185 ms by default, 0.227 in one thread: tuned for two threads it took 0.179, for one
# 0.141.)
_TRIED_S, _WAKING_S, _TUNED = 1e-2, 7e-5, 0.5
# Of the default's time with all threads, what one takes at most where the dispatches take so little
# each that workers hardly get to share one: faster kernels leave even less to share. (A GRU of two
# layers tuned for two threads took 1.72 ms, for one 1.08, an LSTM 0.43 and 0.31; by default both
# take as long with one as with two. One in both directions took 3.74 and 3.49 where by default it
# takes 1.11 times as long with one.) Unless what is computed is more than that: sharing a dispatch
# takes about so long, and must save it. (A Gemma-like decoder of some 130 dispatches, 5.9 ms by
# default with one thread and 5.5 with two, took 2.6 tuned for one and 2.0 for two.)
_AS_FAST, _SHORT_EACH_S, _SHARING_S = 1.15, 5e-5, 5e-6
# Seconds for all rounds, of which there are few: differences are large, or do not matter.
_MAX_S, _ROUNDS = 3.0, 9


def leave_workers_out(
    programs: Programs, default: Build, default_s: float, dispatches: int, guessed_s: float
) -> float:
    """Has a short program run by the calling thread alone from here on, where that is faster once
    it is tuned.

    On an idle machine a call of `iree-benchmark-module` that computes almost nothing took 55 to 75
    us with workers, which are woken for it, and 2 without; a product of 128 cubed takes one thread
    25. Schedules make the computing faster, not the waking. A program of many short dispatches, as
    recurrent ones are, has workers wait for each other more than work.

    What the last run of the same program decided is decided again, unless all is to be tuned anew:
    on a busy machine it could come out otherwise, and nothing of that run would be found.

    Args:
        programs: of the run, whose target, options and benchmark are changed.
        default: the program as the compiler makes it.
        default_s: its seconds with all threads.
        dispatches: how many it has, in loops counted once.
        guessed_s: what they are guessed to take once they are tuned, in seconds with all threads;
            infinite where that is not known.

    Returns:
        Its seconds, as it is run from here on.
    """
    context = programs.context
    many = context.benchmark
    cores = context.target.cores
    elsewhere = isinstance(many, RemoteBenchmark)
    if cores == 1 or elsewhere or not many.runs_on(cores):
        return default_s
    alone = replace(context.target, cores=1)
    before = _decided_before(context, alone)
    if default_s > _TRIED_S if before is None else not before:
        return default_s
    context.benchmark = open_benchmark(alone, context.options)
    seconds = programs.time(default, quick_timing(1.0))
    if isinstance(seconds, str) or not (
        before or _waking_takes_longer(seconds, default_s, cores, dispatches, guessed_s)
    ):
        context.benchmark.close()
        context.benchmark = many
        return default_s
    many.close()
    context.target, context.more_threads = alone, cores
    context.options = replace(context.options, threads=1)
    context.note(
        f"by default the program takes {significant(seconds * 1e3)} ms in the calling thread "
        f"alone, {significant(default_s * 1e3)} ms with {cores} threads: it is tuned for one thread"
        + (", as the run before" if before else "")
    )
    return seconds


def _waking_takes_longer(
    alone_s: float, default_s: float, cores: int, dispatches: int, guessed_s: float
) -> bool:
    """Whether to wake other threads takes longer than what they save of a tuned program, or its
    dispatches are too short to be shared.

    Args:
        alone_s: of the default program in one thread.
        default_s: of the same with all threads.
        cores: how many these are.
        dispatches: of the program.
        guessed_s: what they are guessed to take once they are tuned, with all threads.
    """
    waking_s = min(default_s - alone_s / cores, _WAKING_S)
    # Convolutions become faster than that: nine of a network that spots keywords take 0.51 ms by
    # default in one thread, 0.62 in two; tuned for two 0.21, for one 0.085.
    tuned_s = min(_TUNED * alone_s, guessed_s * cores)
    saved_s = tuned_s * (1 - 1 / cores)
    if saved_s <= waking_s:
        return True
    short = default_s <= _SHORT_EACH_S * dispatches and saved_s <= _SHARING_S * dispatches
    return short and alone_s <= _AS_FAST * default_s


def _decided_before(context: RunContext, alone: Target) -> bool | None:
    """Whether the last run of this program that could leave workers out did so; None: there was
    none, or it is not to be asked."""
    if context.options.fresh:
        return None
    targets = (context.target.key, alone.key)
    last = context.store.last_run(context.program.digest, targets, context.compiler_version)
    if last is None or MORE_THREADS not in last.options:
        return None
    if last.target == alone.key:
        # One thread may have been asked for.
        return True if last.options[MORE_THREADS] == context.target.cores else None
    # Workers are kept where others measure, and on a device that was asked for.
    return None if any(map(last.options.get, ("device", "runner", "cluster"))) else False


def measure_ways(
    programs: Programs, build: Build, vmfb: Path, compared_s: float
) -> tuple[RunSummary, ...]:
    """Time a program with each of the runtime's choices, in interleaved rounds.

    Args:
        programs: of the run; their benchmark is on the device that was tuned for.
        build: the program that is handed back.
        vmfb: where it will be.
        compared_s: what it took in its last comparison.

    Returns:
        Each with its time, the fastest first. One is advised: that which was tuned for, unless
        another is faster beyond the noise; that one alone, with its last time, where there is no
        time for others. Nothing where there is no choice: on GPUs, through a folder.
    """
    context = programs.context
    threads = context.target.cores
    left_s = context.left_s
    if not programs.benchmark.runs_on(threads):
        return ()
    polls = programs.benchmark.ask(takes_fences, (str(build.vmfb), programs.function)) is True
    if left_s is not None and left_s < 2 * _MAX_S:
        way = DeviceOptions.cpu(threads)
        command = run_command(programs, vmfb, way)
        return (_summary(way, polls, compared_s, (1.0, 1.0), command, True),)
    policy = ComparisonPolicy(rounds=_ROUNDS, max_s=_MAX_S)
    request = WaysRequest(
        str(build.vmfb),
        programs.inputs,
        programs.function,
        max(threads, context.more_threads),
        threads,
        policy,
        RUN_TIMEOUT_S,
        programs.parameters,
        polls,
    )
    # A way in which the program hangs leaves time for the others.
    found = programs.benchmark.ask(time_ways, request, 2 * RUN_TIMEOUT_S)
    if isinstance(found, WorkerFailure):
        context.note(f"how to run the program was not measured: {found.message}", warning=True)
        return ()
    ways = [one.device for one in found]
    commands = [run_command(programs, vmfb, one) for one in ways]
    return summarised(ways, commands, [one.samples for one in found], policy, polls)


def run_command(programs: Programs, vmfb: Path, way: DeviceOptions) -> str:
    """The line that runs a program, and says what it takes, without tilewright.

    Args:
        programs: of the run: function, inputs, weights.
        vmfb: the program.
        way: the runtime's choice.

    Returns:
        A line of `iree-benchmark-module`; tensors that the user gave no data for are zeros.
    """
    given = programs.context.options.inputs or [
        str(one.type) if isinstance(one, InputFile) else str(one.value)
        for one in programs.inputs.arguments
    ]
    return shlex.join(
        [
            *way.tool_prefix,
            "iree-benchmark-module",
            f"--module={vmfb}",
            *way.tool_flags,
            *parameter_flags(programs.context),
            f"--function={programs.function}",
            *(f"--input={one}" for one in given),
        ]
    )


def parameter_flags(context: RunContext) -> list[str]:
    """The runtime's flags for a program's weights, as they lie when the result folder is there.

    Args:
        context: the run.
    """
    folder = context.options.output.absolute()
    own = [(scope, folder / Path(path).name) for scope, path in context.program.parameters]
    given = [(one.scope, one.path) for one in context.options.parameters]
    return [f"--parameters={scope}={path}" for scope, path in (*own, *given)]


def lines(runs: Sequence[RunSummary]) -> list[str]:
    """The ways to run a program in words, each with its line.

    Args:
        runs: as measured.
    """
    return [
        f"{significant(one.ms)} ms, {one.device}, {plural(one.threads, 'thread')}"
        f"{''.join(f', {word}' for word in one.words)}{' (advised)' if one.advised else ''}: "
        f"{one.command}"
        for one in runs
    ]


def summarised(
    ways: Sequence[DeviceOptions],
    commands: Sequence[str],
    samples: Sequence[Sequence[float]],
    policy: ComparisonPolicy,
    polls: bool = False,
) -> tuple[RunSummary, ...]:
    """What rounds say of the runtime's choices.

    Args:
        ways: the first is that which was tuned for.
        commands: the lines that run the program so.
        samples: seconds of each in each round; those that did not run in every round do not count.
        policy: of the rounds.
        polls: whether the program's callers can wait awake.

    Returns:
        The fastest first; nothing where only one runs.
    """
    rounds = len(samples[0])
    tried = zip(ways, commands, samples, strict=True)
    ran = [(way, command, s) for way, command, s in tried if len(s) == rounds > 0]
    if len(ran) < 2:
        return ()
    judged = judge_all([Measurement(tuple(s)) for *_, s in ran], policy)
    faster = [i for i, one in enumerate(judged) if one.verdict is Verdict.FASTER]
    advised = min(faster, key=lambda i: judged[i].ratio.value, default=0)
    made = [
        _summary(
            way,
            polls,
            one.measurement.median_s,
            (one.ratio.low, one.ratio.high),
            command,
            i == advised,
        )
        for i, ((way, command, _), one) in enumerate(zip(ran, judged, strict=True))
    ]
    return tuple(sorted(made, key=lambda one: one.ms))


def _summary(
    way: DeviceOptions,
    polls: bool,
    seconds: float,
    ratio: tuple[float, float],
    command: str,
    advised: bool,
) -> RunSummary:
    return RunSummary(
        way.uri,
        way.threads or 1,
        seconds * 1e3,
        ratio,
        advised,
        command,
        way.huge_pages,
        way.pinned,
        way.schedules_batch,
        way.spin_us,
        polls and way.can_poll,
    )
