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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from tilewright import scratch
from tilewright.compare import worker as tasks
from tilewright.compare.comparison_options import CompareOptions
from tilewright.compare.machine_state import MachineState, Moment, machine_facts, moment
from tilewright.compare.providers.interface import (
    THREAD_VARIABLES,
    PrepareRequest,
    Provider,
    Threads,
)
from tilewright.compare.reference import made_task
from tilewright.compare.results import ComparisonRow, ComparisonRun, ProviderOutcome
from tilewright.compare.workloads import ComparedWorkload, ProviderTask
from tilewright.errors import TilewrightError, UserError
from tilewright.measure.comparison import ComparisonPolicy, interleaved_rounds
from tilewright.measure.jobs import Job, Reply, Request, WorkerFailure, WorkerTask
from tilewright.measure.peak import Peak, PeakMeter, peak_meter
from tilewright.measure.pool import WorkerPool
from tilewright.measure.statistics import minimum_rounds
from tilewright.measure.verify import Comparison
from tilewright.toolchain import versions

Say = Callable[[str], object]

_START_TIMEOUT_S = 300.0
_ABOUT_TIMEOUT_S = 120.0
# Processor time over wall time may exceed the threads by this: clocks are read one after another.
_CORES_SLACK = 0.15
# A sample is timed in parts that last at least this long: short beside what else a machine does.
_PART_S = 0.0005
# As many at least, unless a call is long.
_LEAST_PARTS = 4
_LONG_S = 0.1
# A longer call needs none before it to warm the caches up.
_WARM_BELOW_S = 0.1
# How many times as long as expected a sample may take.
_SLOWEST = 20


def compare(
    workloads: Sequence[ComparedWorkload],
    providers: Sequence[Provider],
    options: CompareOptions,
    *,
    say: Say = lambda line: None,
    on_row: Callable[[ComparisonRow], object] = lambda row: None,
    on_workload: Callable[[ComparisonRun], object] = lambda run: None,
) -> ComparisonRun:
    """Run every workload with every provider; whatever a provider does is in a row.

    Args:
        workloads: what is computed.
        providers: by what.
        options: how.
        say: gets a line on what goes on.
        on_row: gets every row when it is done.
        on_workload: gets the run as far as it has come, after each workload.

    Returns:
        The comparison.

    Raises:
        UserError: an option cannot be met.
    """
    started = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    options.cpus()
    facts, where = machine_facts(options.place.device), options.place.device
    rows: list[ComparisonRow] = []

    def made(after: Moment) -> ComparisonRun:
        state = MachineState(facts, before, after)
        settings, rows_so_far = _settings(options), tuple(rows)
        return ComparisonRun(
            started, options.command, options.threads, settings, state, versions(), rows_so_far
        )

    with contextlib.ExitStack() as stack:
        peak = options.peak and not options.place.is_gpu
        meter = stack.enter_context(peak_meter(options.threads)) if peak else None
        before = moment(_read(meter, say), where)
        folder = stack.enter_context(scratch.folder())
        peers = [Peer(provider, options, stack, say) for provider in providers]
        for number, workload in enumerate(workloads):
            say(f"[{number + 1}/{len(workloads)}] {workload.name}")
            turn = _Turn(workload, peers, options, folder / str(number), say)
            for row in turn.run():
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


# -- providers -------------------------------------------------------------------------------------


class Peer:
    """A provider with its worker, which is stopped unless something is asked of it.

    outcome, reason: ok, or why there is no worker. about: what the worker says of itself. It ends
    with the stack.
    """

    def __init__(
        self, provider: Provider, options: CompareOptions, stack: contextlib.ExitStack, say: Say
    ) -> None:
        self.provider = provider
        self.outcome, self.reason = ProviderOutcome.OK, ""
        self.about = tasks.About("", Threads(None, ""))
        self._pool: WorkerPool | None = None
        label, against = provider.label, provider.reason_against_target(options.target)
        if against:
            self.outcome, self.reason = ProviderOutcome.ABSENT, against
        elif missing := provider.absent():
            self.outcome, self.reason = ProviderOutcome.SKIPPED, f"not installed: {missing}"
            say(f"{label}: skipped, {self.reason}")
        elif problem := self._open(options, stack):
            self.outcome, self.reason = ProviderOutcome.ERROR, problem
            say(f"{label}: {problem}")
        else:
            say(f"{label}: {self.about.version}, {self.threads}")

    def _open(self, options: CompareOptions, stack: contextlib.ExitStack) -> str:
        """Start the worker; why that did not work, else ''."""
        setup = tasks.WorkerSetup(self.provider, options.place, options.cpus())
        try:
            self._pool = WorkerPool(
                1,
                setup=Job(tasks.setup, setup),
                timeout_s=options.timeout_s,
                start_timeout_s=_START_TIMEOUT_S,
                environment={
                    **dict.fromkeys(THREAD_VARIABLES, str(options.threads)),
                    **self.provider.environment(options.threads),
                },
                retry_crashes=False,
            )
            stack.callback(self._pool.close)
            said = self.ask(tasks.about, None, _ABOUT_TIMEOUT_S)
        except UserError as error:
            return str(error)
        if isinstance(said, WorkerFailure):
            return said.message
        self.about = said
        return ""

    @property
    def threads(self) -> str:
        """What the library says of its threads."""
        told = self.about.threads
        return f"{told.how} = {told.count}" if told.count is not None else told.how

    def ask(
        self, task: WorkerTask[Request, Reply], request: Request, timeout_s: float | None = None
    ) -> Reply | WorkerFailure:
        """A task's reply, or its failure; the worker runs only meanwhile.

        Args:
            task: of `compare.worker`.
            request: what is asked.
            timeout_s: seconds after which it is ended; None: the options'.

        Returns:
            The task's answer, or why there is none.
        """
        assert self._pool is not None
        self._signal(signal.SIGCONT)
        outcome = self._pool.ask(task, request, timeout_s)
        self._signal(signal.SIGSTOP)
        return outcome

    def _signal(self, number: signal.Signals) -> None:
        assert self._pool is not None
        for pid in self._pool.process_ids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, number)


@dataclass
class PeerEntry:
    """A provider's part in a workload, as it goes on: its row is ok as long as nothing failed."""

    peer: Peer
    row: ComparisonRow
    call_s: float = 0.0
    taken: list[tasks.Sample] = field(default_factory=list)

    def fail(self, outcome: ProviderOutcome, reason: str) -> None:
        """The row becomes one without times.

        Args:
            outcome: what became of it.
            reason: in one line.
        """
        self.row = replace(
            self.row, outcome=outcome, reason=reason, samples=(), fastest=(), processor=()
        )

    def check(self, comparisons: Sequence[Comparison]) -> None:
        """Fail where a result is wrong.

        Args:
            comparisons: one for each result.
        """
        wrong = next((c for c in comparisons if not c.ok), None)
        if wrong is not None:
            self.fail(ProviderOutcome.FAILED, f"wrong numbers: {wrong}")

    def ask(
        self, task: WorkerTask[Request, Reply], request: Request, timeout_s: float | None = None
    ) -> Reply | None:
        """A task's reply; after a crash, a timeout or an error there is none, and the row says so.

        Args:
            task: of `compare.worker`.
            request: what is asked.
            timeout_s: seconds after which it is ended; None: the options'.
        """
        answer = self.peer.ask(task, request, timeout_s)
        if not isinstance(answer, WorkerFailure):
            return answer
        kinds = {"crashed": ProviderOutcome.CRASHED, "timeout": ProviderOutcome.TIMEOUT}
        self.fail(kinds.get(answer.kind, ProviderOutcome.ERROR), answer.message)
        return None


# -- one workload ----------------------------------------------------------------------------------


class _Turn:
    """A workload with all providers: prepared, checked, timed in rounds, checked once more."""

    def __init__(
        self,
        workload: ComparedWorkload,
        peers: Sequence[Peer],
        options: CompareOptions,
        folder: Path,
        say: Say,
    ) -> None:
        self._workload, self._options, self._folder, self._say = workload, options, folder, say
        self._entries = [self._entry(peer) for peer in peers]
        self._parts = 1

    @property
    def _ready(self) -> list[PeerEntry]:
        return [entry for entry in self._entries if entry.row.ok]

    def run(self) -> list[ComparisonRow]:
        """The rows, in the order of the providers."""
        if self._ready:
            try:
                with made_task(self._workload, self._options, self._folder) as task:
                    for entry in self._entries:
                        entry.row = replace(entry.row, reference=task.reference)
                    for entry in self._ready:
                        self._prepare(entry, task)
                    if self._ready:
                        self._measure(self._ready)
            except UserError as error:
                for entry in self._ready:
                    entry.fail(ProviderOutcome.ERROR, str(error))
        return [entry.row for entry in self._entries]

    def _entry(self, peer: Peer) -> PeerEntry:
        workload, outcome, reason = self._workload, peer.outcome, peer.reason
        if outcome is ProviderOutcome.OK:
            try:
                reason = peer.provider.reason_against(workload, self._options.target)
                outcome = ProviderOutcome.ABSENT if reason else outcome
            except UserError as error:
                outcome, reason = ProviderOutcome.ERROR, str(error)
        row = ComparisonRow(
            workload.name,
            workload.kind,
            peer.provider.label,
            outcome,
            reason,
            peer.about.version,
            workload.flops,
            workload.bytes,
            workload.element_type,
            threads=peer.threads,
        )
        return PeerEntry(peer, row)

    def _prepare(self, entry: PeerEntry, task: ProviderTask) -> None:
        """Build, prepare, check; the entry has failed where that did not work."""
        provider, budget = entry.peer.provider, self._options.budget
        folder = self._folder / str(self._entries.index(entry))
        folder.mkdir(parents=True, exist_ok=True)
        if provider.searches and budget:
            self._say(f"  {provider.label}: searching")
        begin = time.perf_counter()
        try:
            built = provider.build(task, self._options, folder)
        except UserError as error:
            entry.fail(ProviderOutcome.ERROR, str(error))
            return
        except Exception as error:
            # A fault of this program's own, in one row: hours of other rows are not lost for it.
            entry.fail(ProviderOutcome.ERROR, f"internal error: {type(error).__name__}: {error}")
            return
        request = PrepareRequest(task, built, budget)
        answer = entry.ask(tasks.prepare, request, provider.prepare_s(budget))
        if answer is None:
            return
        entry.call_s = answer.call_s
        # The largest error, as part of what is allowed there.
        errors = (c.error / c.tolerance for c in answer.comparisons if c.tolerance > 0)
        entry.row = replace(
            entry.row,
            build_s=time.perf_counter() - begin,
            worst=max(errors, default=None),
            note=answer.built.note,
            progress=answer.built.progress,
        )
        entry.check(answer.comparisons)

    # -- rounds

    def _measure(self, entries: Sequence[PeerEntry]) -> None:
        """Interleaved rounds of those that are right, then their results once more."""
        options = self._options
        # As many parts for all providers: the fastest of more is faster by chance.
        middle = max(_PART_S, median(entry.call_s for entry in entries))
        least = 1 if middle > _LONG_S else _LEAST_PARTS
        self._parts = max(least, math.ceil(options.min_sample_s / middle))
        round_s = sum(self._sample_s(entry.call_s) for entry in entries)
        rounds = max(minimum_rounds(0.95), min(options.rounds, int(options.max_s / round_s)))
        policy = ComparisonPolicy(rounds=rounds, max_s=math.inf, seed=options.seed)
        samplers = [self._sampler(entry) for entry in entries]
        for entry, samples in zip(entries, interleaved_rounds(samplers, policy), strict=True):
            if entry.row.ok:
                self._finish(entry, samples)

    def _sample_s(self, call_s: float) -> float:
        """About what a sample takes, with the call before it."""
        warm_s = call_s if call_s < _WARM_BELOW_S else 0.0
        return max(self._parts * call_s, self._options.min_sample_s) + warm_s

    def _sampler(self, entry: PeerEntry) -> Callable[[], float | None]:
        call_s = max(entry.call_s, 1e-9)
        each = max(1, math.ceil(self._options.min_sample_s / self._parts / call_s))
        request = tasks.SampleRequest(1 if call_s < _WARM_BELOW_S else 0, self._parts, each)
        limit = max(self._options.timeout_s, _SLOWEST * self._sample_s(call_s))

        def sample() -> float | None:
            answer = entry.ask(tasks.sample, request, limit)
            if answer is None:
                return None
            entry.taken.append(answer)
            return answer.real_s

        return sample

    def _finish(self, entry: PeerEntry, samples: Sequence[float]) -> None:
        """The times of an entry, unless it used more than it may or is wrong by now."""
        threads = self._options.threads
        real = sum(one.real_s * one.calls for one in entry.taken)
        cpu = sum(one.cpu_s * one.calls for one in entry.taken)
        fastest = tuple(one.fastest_s for one in entry.taken)
        entry.row = replace(entry.row, samples=tuple(samples), fastest=fastest)
        if not self._options.place.is_gpu:
            # What the host does while a GPU computes is no part of it.
            cores = cpu / real if real else 0.0
            processor = tuple(one.fastest_cpu_s for one in entry.taken)
            entry.row = replace(entry.row, processor=processor, cores=cores)
            if cores > threads + _CORES_SLACK:
                reason = f"it used {cores:.2f} cores where {threads} are allowed"
                entry.fail(ProviderOutcome.FAILED, reason)
                return
        answer = entry.ask(tasks.finish, None)
        if answer is not None:
            entry.check(answer)
