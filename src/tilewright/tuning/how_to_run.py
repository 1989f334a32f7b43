"""How the program that is handed back is run: the runtime's choices, measured side by side.

A thread that must be woken costs tens of microseconds, which a small program does not earn back by
sharing its work: whether `local-sync` or `local-task`, and with how many threads, is measured. The
weights of a large one lie in tens of thousands of small pages, whose addresses the processor looks
up again and again: huge pages are one more way, and workers that keep their cores another.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psutil

from tilewright.measure import benchmark_worker as tasks
from tilewright.measure.benchmark import Benchmark
from tilewright.measure.benchmark_worker import RepeatRequest
from tilewright.measure.comparison import ComparisonPolicy, interleaved_rounds, judge_all
from tilewright.measure.device_options import DeviceOptions, huge_pages_on_request
from tilewright.measure.inputs import InputFile
from tilewright.measure.jobs import WorkerFailure
from tilewright.measure.pool import WorkerStartError
from tilewright.measure.statistics import Measurement, Verdict
from tilewright.tuning.context import RunContext
from tilewright.tuning.programs import RUN_TIMEOUT_S, Build, Programs
from tilewright.tuning.result import RunSummary
from tilewright.words import plural, significant

# Seconds for all rounds, of which there are few: differences are large, or do not matter.
_MAX_S, _ROUNDS, _SAMPLE_S = 3.0, 9, 0.02


def ways_to_run(threads: int) -> list[DeviceOptions]:
    """The runtime's choices on a CPU: the calling thread alone, or workers of a number.

    Args:
        threads: at most.

    Returns:
        First `local-sync`, then `local-task` with 2, 4, 8, ... threads, and as many as there may
        be; these also with huge pages where the system gives them to who asks, and on cores of
        their own where there are as many.
    """
    counts = {2**i for i in range(threads.bit_length())} | {threads}
    ways = [DeviceOptions.cpu(n) for n in sorted(counts)]
    last = ways[-1:]
    if huge_pages_on_request():
        last.append(replace(ways[-1], huge_pages=True))
    if 1 < threads <= (psutil.cpu_count(logical=False) or 0):
        last += [replace(one, pinned=True) for one in last]
    return [*ways[:-1], *last]


def measure_ways(programs: Programs, build: Build, vmfb: Path) -> tuple[RunSummary, ...]:
    """Time a program with each of the runtime's choices, in interleaved rounds.

    Args:
        programs: of the run; their benchmark is on the device that was tuned for.
        build: the program that is handed back.
        vmfb: where it will be.

    Returns:
        Each with its time, the fastest first. One is advised: that which was tuned for, unless
        another is faster beyond the noise. Nothing where there is no choice, or no time for it: on
        GPUs, on other machines, when the run is asked to stop.
    """
    context = programs.context
    tuned_for = DeviceOptions.cpu(context.target.cores)
    here = type(programs.benchmark) is Benchmark and programs.benchmark.device == tuned_for
    left_s = context.left_s
    if not here or (left_s is not None and left_s < 2 * _MAX_S):
        return ()
    others = [one for one in ways_to_run(context.target.cores) if one != tuned_for]
    samples: list[list[float]] = []
    with ExitStack() as stack:
        workers = [programs.benchmark]
        try:
            workers += [stack.enter_context(Benchmark(one)) for one in others]
            samplers = [_sampler(programs, build, worker) for worker in workers]
            policy = ComparisonPolicy(rounds=_ROUNDS, max_s=_MAX_S)
            samples = interleaved_rounds(samplers, policy)
        except WorkerStartError as error:
            context.note(f"how to run the program was not measured: {error}", warning=True)
            return ()
    ways = [tuned_for, *others]
    commands = [run_command(programs, vmfb, one) for one in ways]
    return summarised(ways, commands, samples, policy)


def _sampler(programs: Programs, build: Build, worker: Benchmark) -> Callable[[], float | None]:
    """Seconds of one run, by a worker; None where the program fails there."""
    iterations: int | None = None

    def sample() -> float | None:
        nonlocal iterations
        request = RepeatRequest(
            str(build.vmfb),
            programs.inputs,
            programs.function,
            iterations,
            _SAMPLE_S,
            parameters=programs.parameters,
        )
        found = worker.ask(tasks.repeat, request, RUN_TIMEOUT_S)
        if isinstance(found, WorkerFailure):
            return None
        iterations = found.iterations
        return found.real_s

    return sample


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
            *(
                ["env", *(f"{k}={v}" for k, v in way.environment.items())]
                if way.environment
                else ()
            ),
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
        f"{', huge pages' if one.huge_pages else ''}{', pinned' if one.pinned else ''}"
        f"{' (advised)' if one.advised else ''}: "
        f"{one.command}"
        for one in runs
    ]


def summarised(
    ways: Sequence[DeviceOptions],
    commands: Sequence[str],
    samples: Sequence[Sequence[float]],
    policy: ComparisonPolicy,
) -> tuple[RunSummary, ...]:
    """What rounds say of the runtime's choices.

    Args:
        ways: the first is that which was tuned for.
        commands: the lines that run the program so.
        samples: seconds of each in each round; those that did not run in every round do not count.
        policy: of the rounds.

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
        RunSummary(
            way.uri,
            way.threads or 1,
            one.measurement.median_s * 1e3,
            (one.ratio.low, one.ratio.high),
            i == advised,
            command,
            way.huge_pages,
            way.pinned,
        )
        for i, ((way, command, _), one) in enumerate(zip(ran, judged, strict=True))
    ]
    return tuple(sorted(made, key=lambda one: one.ms))
