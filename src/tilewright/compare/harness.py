"""The harness: every workload with every provider, in rounds that are interleaved over them.

Each provider has a worker process of its own. In a round every one of them is timed once, in an
order drawn anew; while one is timed the others are stopped, so that no library's threads, spinning
for more work, get in another's way.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from tilewright import scratch
from tilewright.compare import worker as tasks
from tilewright.compare.machine_state import MachineState, Moment, machine_facts, moment
from tilewright.compare.providers.interface import (
    NO_BUDGET,
    THREAD_VARIABLES,
    Budget,
    BuildContext,
    Built,
    Place,
    Provider,
    Threads,
)
from tilewright.compare.reference import TaskOptions, made_task
from tilewright.compare.results import Outcome, Row, Run
from tilewright.compare.worker import (
    About,
    PrepareRequest,
    Ready,
    Sample,
    SampleRequest,
    WorkerSetup,
)
from tilewright.compare.workloads import Task, Workload
from tilewright.errors import TilewrightError, UserError
from tilewright.gpu_target import GpuTarget
from tilewright.measure.comparison import ComparisonPolicy, interleaved_rounds
from tilewright.measure.peak import Peak, PeakMeter, peak_meter
from tilewright.measure.pool import Job, WorkerFailure, WorkerPool
from tilewright.measure.statistics import minimum_rounds
from tilewright.measure.verify import Comparison
from tilewright.profiler.running import describe
from tilewright.target import Target, usable_cores
from tilewright.toolchain import versions
from tilewright.tuning.parse import ParameterFile

Say = Callable[[str], object]

# Processor time over wall time may exceed the threads by this: clocks are read one after another.
_CORES_SLACK = 0.15
# A sample is timed in parts that last at least this long: short beside what else a machine does.
_PART_S = 0.0005
# As many at least, unless a call is long.
_LEAST_PARTS = 4
_LONG_S = 0.1
# A longer call needs none before it to warm the caches up.
_WARM_BELOW_S = 0.1
_ABOUT_TIMEOUT_S = 120.0
_START_TIMEOUT_S = 300.0
_SLOWEST = 20


@dataclass(frozen=True)
class CompareOptions:
    """How to compare.

    threads: of every provider; pin: keep them on as many processors. device: of a target that is a
    GPU, as the runtime takes it ('': the target's first). rounds: in each every provider
    is timed once, for at least min_sample_s; fewer, but not fewer than an interval takes, when a
    workload would need longer than max_s. peak: measure the processors' before and after. inputs,
    parameters: of programs. timeout_s: for one sample.
    """

    target: Target
    pin: bool = False
    device: str = ""
    rounds: int = 25
    max_s: float = 60.0
    min_sample_s: float = 0.02
    budget: Budget = NO_BUDGET
    peak: bool = True
    iree_flags: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    parameters: tuple[ParameterFile, ...] = ()
    db: Path | None = None
    seed: int = 0
    timeout_s: float = 120.0
    command: str = ""

    @property
    def threads(self) -> int:
        return self.target.cores

    @property
    def place(self) -> Place:
        """Where providers compute. The host has threads enough to compile and to launch."""
        if not isinstance(self.target, GpuTarget):
            return Place(self.threads)
        return Place(self.threads, self.device or self.target.device, self.target.backend)

    @property
    def task_options(self) -> TaskOptions:
        return TaskOptions(
            self.target, self.place, self.iree_flags, self.inputs, self.parameters, self.seed
        )

    def cpus(self) -> tuple[int, ...] | None:
        """The processors to stay on. Raises UserError where there are too few."""
        if not self.pin:
            return None
        if not hasattr(os, "sched_getaffinity"):
            raise UserError("--pin: this system cannot keep a process on a processor")
        there = sorted(os.sched_getaffinity(0))
        if len(there) < self.threads:
            raise UserError(
                f"--pin: {self.threads} threads, but only {usable_cores()} processors may be used"
            )
        return tuple(there[: self.threads])


class Peer:
    """A provider with its worker, which is stopped unless something is asked of it."""

    def __init__(self, provider: Provider, options: CompareOptions) -> None:
        self.provider = provider
        self.pool = WorkerPool(
            None,
            1,
            setup=tasks.SETUP,
            init=WorkerSetup(provider, options.place, options.cpus()),
            timeout_s=options.timeout_s,
            start_timeout_s=_START_TIMEOUT_S,
            environment={
                **dict.fromkeys(THREAD_VARIABLES, str(options.threads)),
                **provider.environment(options.threads),
            },
            retry_crashes=False,
        )
        self.about = About("", Threads(None, ""))

    def ask(self, task: str, payload: object, timeout_s: float | None = None) -> object:
        """A task's value, or its WorkerFailure; the worker runs only meanwhile."""
        self._signal(signal.SIGCONT)
        (result,) = self.pool.run([Job(payload, task, timeout_s)])
        self._signal(signal.SIGSTOP)
        return result.failure if result.failure is not None else result.value

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.pool.process_ids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, number)

    def close(self) -> None:
        self.pool.close()


@dataclass
class _Entry:
    """A provider's part in a workload, as it goes on."""

    row: Row
    peer: Peer | None = None
    call_s: float = 0.0
    taken: list[Sample] = field(default_factory=list)

    def fail(self, outcome: Outcome, reason: str) -> None:
        self.row = replace(
            self.row, outcome=outcome, reason=reason, samples=(), fastest=(), processor=()
        )
        self.peer = None


def compare(
    workloads: Sequence[Workload],
    providers: Sequence[Provider],
    options: CompareOptions,
    *,
    say: Say = lambda line: None,
    on_row: Callable[[Row], object] = lambda row: None,
    on_workload: Callable[[Run], object] = lambda run: None,
) -> Run:
    """Run every workload with every provider. Whatever a provider does is in a row.

    say: gets a line on what goes on; on_row: every row when it is done; on_workload: the run as far
    as it has come, after each workload. Raises UserError for options that cannot be met.
    """
    started = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    options.cpus()
    facts, where = machine_facts(options.place.device), options.place.device
    rows: list[Row] = []

    def made(after: Moment) -> Run:
        state = MachineState(facts, before, after)
        settings, rows_so_far = _settings(options), tuple(rows)
        return Run(
            started, options.command, options.threads, settings, state, versions(), rows_so_far
        )

    with contextlib.ExitStack() as stack:
        peak = options.peak and not options.place.is_gpu
        meter = stack.enter_context(peak_meter(options.threads)) if peak else None
        before = moment(_read(meter, say), where)
        folder = stack.enter_context(scratch.folder())
        peers = _open(providers, options, stack, say)
        for number, workload in enumerate(workloads):
            say(f"[{number + 1}/{len(workloads)}] {workload.name}")
            for row in _workload(workload, providers, peers, options, folder / str(number), say):
                rows.append(row)
                on_row(row)
            on_workload(made(moment(device=where)))
        return made(moment(_read(meter, say), where))


def _settings(options: CompareOptions) -> dict[str, object]:
    return {
        "target": options.target.name,
        "device": options.place.device,
        "pin": options.pin,
        "rounds": options.rounds,
        "min_sample_s": options.min_sample_s,
        "budget": [options.budget.trials, options.budget.seconds],
        "seed": options.seed,
        "iree_flags": list(options.iree_flags),
    }


def _read(meter: PeakMeter | None, say: Say) -> Peak | None:
    if meter is None:
        return None
    say("measuring the machine's peak")
    try:
        return meter.read()
    except TilewrightError as error:
        say(f"the peak is not known: {error}")
        return None


def _open(
    providers: Sequence[Provider],
    options: CompareOptions,
    stack: contextlib.ExitStack,
    say: Say,
) -> dict[str, Peer | tuple[Outcome, str]]:
    """The workers, by label; or why there is none."""
    found: dict[str, Peer | tuple[Outcome, str]] = {}
    for provider in providers:
        against = provider.reason_against_target(options.target)
        if against:
            found[provider.label] = (Outcome.ABSENT, against)
            continue
        missing = provider.absent()
        if missing:
            found[provider.label] = (Outcome.SKIPPED, f"not installed: {missing}")
            say(f"{provider.label}: skipped, not installed: {missing}")
            continue
        try:
            peer = Peer(provider, options)
            stack.callback(peer.close)
            said = peer.ask(tasks.ABOUT, None, _ABOUT_TIMEOUT_S)
        except UserError as error:
            found[provider.label] = (Outcome.ERROR, str(error))
            say(f"{provider.label}: {error}")
            continue
        if isinstance(said, WorkerFailure):
            found[provider.label] = (Outcome.ERROR, said.message)
            say(f"{provider.label}: {said.message}")
            continue
        assert isinstance(said, About)
        peer.about = said
        found[provider.label] = peer
        say(f"{provider.label}: {said.version}, {_threads(peer)}")
    return found


def _threads(peer: Peer) -> str:
    told = peer.about.threads
    return f"{told.how} = {told.count}" if told.count is not None else told.how


# -- one workload ----------------------------------------------------------------------------------


def _workload(
    workload: Workload,
    providers: Sequence[Provider],
    peers: Mapping[str, Peer | tuple[Outcome, str]],
    options: CompareOptions,
    folder: Path,
    say: Say,
) -> list[Row]:
    entries = [_entry(workload, p, peers[p.label], options) for p in providers]
    if all(entry.peer is None for entry in entries):
        return [entry.row for entry in entries]
    try:
        with made_task(workload, options.task_options, folder) as task:
            for entry in entries:
                entry.row = replace(entry.row, reference=task.reference)
                if entry.peer is not None:
                    _prepare(entry, task, options, folder / f"{entries.index(entry)}", say)
            _measure([e for e in entries if e.peer is not None], options, say)
    except UserError as error:
        for entry in entries:
            if entry.peer is not None:
                entry.fail(Outcome.ERROR, str(error))
    return [entry.row for entry in entries]


def _entry(
    workload: Workload,
    provider: Provider,
    peer: Peer | tuple[Outcome, str],
    options: CompareOptions,
) -> _Entry:
    row = Row(
        workload.name,
        workload.kind,
        provider.label,
        Outcome.OK,
        flops=workload.flops,
        bytes=workload.bytes,
        element_type=workload.element_type,
    )
    if not isinstance(peer, Peer):
        outcome, reason = peer
        return _Entry(replace(row, outcome=outcome, reason=reason))
    row = replace(row, version=peer.about.version, threads=_threads(peer))
    try:
        against = provider.reason_against(workload, options.target)
    except UserError as error:
        return _Entry(replace(row, outcome=Outcome.ERROR, reason=str(error)))
    if against:
        return _Entry(replace(row, outcome=Outcome.ABSENT, reason=against))
    return _Entry(row, peer)


def _prepare(entry: _Entry, task: Task, options: CompareOptions, folder: Path, say: Say) -> None:
    """Build, prepare, check; the entry has failed where that did not work."""
    peer = entry.peer
    assert peer is not None
    provider = peer.provider
    folder.mkdir(parents=True, exist_ok=True)
    context = BuildContext(
        task.target,
        options.place,
        folder,
        options.iree_flags,
        options.inputs,
        options.budget,
        options.db,
        options.seed,
        say,
    )
    if provider.searches and options.budget:
        say(f"  {provider.label}: searching")
    begin = time.perf_counter()
    try:
        built: Built = provider.build(task, context)
    except UserError as error:
        entry.fail(Outcome.ERROR, str(error))
        return
    except Exception as error:
        # A fault of this program's own, in one row: hours of other rows are not lost for it.
        entry.fail(Outcome.ERROR, f"internal error: {type(error).__name__}: {error}")
        return
    request = PrepareRequest(task, built, options.budget)
    answer = peer.ask(tasks.PREPARE, request, provider.prepare_s(options.budget))
    seconds = time.perf_counter() - begin
    if isinstance(answer, WorkerFailure):
        _failed(entry, answer)
        return
    assert isinstance(answer, Ready)
    entry.call_s = answer.call_s
    entry.row = replace(
        entry.row,
        build_s=seconds,
        worst=_worst(answer.comparisons),
        note=answer.built.note,
        progress=tuple((p.wall_s, p.trials, p.best_s) for p in answer.built.progress),
    )
    _check(entry, answer.comparisons)


def _measure(entries: Sequence[_Entry], options: CompareOptions, say: Say) -> None:
    """Interleaved rounds of those that are ready, then their results once more."""
    if not entries:
        return
    parts = _parts([entry.call_s for entry in entries], options)
    samplers = [_sampler(entry, options, parts) for entry in entries]
    round_s = sum(_sample_s(e.call_s, options, parts) for e in entries)
    rounds = max(minimum_rounds(0.95), min(options.rounds, int(options.max_s / round_s)))
    policy = ComparisonPolicy(rounds=rounds, max_s=math.inf, seed=options.seed)
    for entry, samples in zip(entries, interleaved_rounds(samplers, policy), strict=True):
        if entry.peer is None:
            continue
        real = sum(one.real_s * one.calls for one in entry.taken)
        cpu = sum(one.cpu_s * one.calls for one in entry.taken)
        fastest = tuple(one.fastest_s for one in entry.taken)
        entry.row = replace(entry.row, samples=tuple(samples), fastest=fastest)
        cores = cpu / real if real else 0.0
        if not options.place.is_gpu:
            # What the host does while a GPU computes is no part of it.
            processor = tuple(one.fastest_cpu_s for one in entry.taken)
            entry.row = replace(entry.row, processor=processor, cores=cores)
        if not options.place.is_gpu and cores > options.threads + _CORES_SLACK:
            entry.fail(
                Outcome.FAILED, f"it used {cores:.2f} cores where {options.threads} are allowed"
            )
            continue
        answer = entry.peer.ask(tasks.FINISH, None)
        if isinstance(answer, WorkerFailure):
            _failed(entry, answer)
        else:
            assert isinstance(answer, tuple)
            _check(entry, answer)


def _parts(calls_s: Sequence[float], options: CompareOptions) -> int:
    """Parts of a sample, for all providers as many: the fastest of more is faster by chance."""
    middle = max(_PART_S, median(calls_s))
    return max(1 if middle > _LONG_S else _LEAST_PARTS, math.ceil(options.min_sample_s / middle))


def _sampler(entry: _Entry, options: CompareOptions, parts: int) -> Callable[[], float | None]:
    call_s = max(entry.call_s, 1e-9)
    each = max(1, math.ceil(options.min_sample_s / parts / call_s))
    request = SampleRequest(1 if call_s < _WARM_BELOW_S else 0, parts, each)

    def sample() -> float | None:
        assert entry.peer is not None
        limit = max(options.timeout_s, _SLOWEST * _sample_s(call_s, options, parts))
        answer = entry.peer.ask(tasks.SAMPLE, request, limit)
        if isinstance(answer, WorkerFailure):
            _failed(entry, answer)
            return None
        assert isinstance(answer, Sample)
        entry.taken.append(answer)
        return answer.real_s

    return sample


def _sample_s(call_s: float, options: CompareOptions, parts: int) -> float:
    """About what a sample takes, with the call before it."""
    warm_s = call_s if call_s < _WARM_BELOW_S else 0.0
    return max(parts * call_s, options.min_sample_s) + warm_s


def _check(entry: _Entry, comparisons: Sequence[Comparison]) -> None:
    wrong = next((c for c in comparisons if not c.ok), None)
    if wrong is not None:
        entry.fail(Outcome.FAILED, f"wrong numbers: {describe(wrong)}")


def _worst(comparisons: Sequence[Comparison]) -> float | None:
    """The largest error, as part of what is allowed there."""
    return max((c.error / c.tolerance for c in comparisons if c.tolerance > 0), default=None)


def _failed(entry: _Entry, failure: WorkerFailure) -> None:
    kinds = {"crashed": Outcome.CRASHED, "timeout": Outcome.TIMEOUT}
    entry.fail(kinds.get(failure.kind, Outcome.ERROR), failure.message)
