"""The harness: every workload with every provider, in rounds that are interleaved over them.

Each provider has a worker process of its own. In a round every one of them is timed once, in an
order drawn anew; while one is timed the others are stopped, so that no library's threads, spinning
for more work, get in another's way.
"""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tilewright import scratch
from tilewright.compare import worker as tasks
from tilewright.compare.comparison_options import CompareOptions
from tilewright.compare.machine_state import MachineState, Moment, machine_facts, moment
from tilewright.compare.peer import Peer, PeerEntry
from tilewright.compare.providers.interface import Provider
from tilewright.compare.reference import made_task
from tilewright.compare.results import ComparisonRow, ComparisonRun, ProviderOutcome
from tilewright.compare.rounds import measure
from tilewright.compare.worker import PrepareRequest
from tilewright.compare.workloads import ComparedWorkload, ProviderTask
from tilewright.errors import TilewrightError, UserError
from tilewright.measure.peak import Peak, PeakMeter, peak_meter
from tilewright.measure.pool import WorkerFailure
from tilewright.measure.verify import Comparison
from tilewright.toolchain import versions

Say = Callable[[str], object]

_ABOUT_TIMEOUT_S = 120.0


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
) -> dict[str, Peer | tuple[ProviderOutcome, str]]:
    """The workers, by label; or why there is none."""
    found: dict[str, Peer | tuple[ProviderOutcome, str]] = {}
    for provider in providers:
        against = provider.reason_against_target(options.target)
        if against:
            found[provider.label] = (ProviderOutcome.ABSENT, against)
            continue
        missing = provider.absent()
        if missing:
            found[provider.label] = (ProviderOutcome.SKIPPED, f"not installed: {missing}")
            say(f"{provider.label}: skipped, not installed: {missing}")
            continue
        try:
            peer = Peer(provider, options)
            stack.callback(peer.close)
            said = peer.ask(tasks.about, None, _ABOUT_TIMEOUT_S)
        except UserError as error:
            found[provider.label] = (ProviderOutcome.ERROR, str(error))
            say(f"{provider.label}: {error}")
            continue
        if isinstance(said, WorkerFailure):
            found[provider.label] = (ProviderOutcome.ERROR, said.message)
            say(f"{provider.label}: {said.message}")
            continue
        peer.about = said
        found[provider.label] = peer
        say(f"{provider.label}: {said.version}, {_threads(peer)}")
    return found


def _threads(peer: Peer) -> str:
    told = peer.about.threads
    return f"{told.how} = {told.count}" if told.count is not None else told.how


# -- one workload ----------------------------------------------------------------------------------


def _workload(
    workload: ComparedWorkload,
    providers: Sequence[Provider],
    peers: Mapping[str, Peer | tuple[ProviderOutcome, str]],
    options: CompareOptions,
    folder: Path,
    say: Say,
) -> list[ComparisonRow]:
    entries = [_entry(workload, p, peers[p.label], options) for p in providers]
    if all(entry.peer is None for entry in entries):
        return [entry.row for entry in entries]
    try:
        with made_task(workload, options, folder) as task:
            for entry in entries:
                entry.row = replace(entry.row, reference=task.reference)
                if entry.peer is not None:
                    _prepare(entry, task, options, folder / f"{entries.index(entry)}", say)
            measure([e for e in entries if e.peer is not None], options)
    except UserError as error:
        for entry in entries:
            if entry.peer is not None:
                entry.fail(ProviderOutcome.ERROR, str(error))
    return [entry.row for entry in entries]


def _entry(
    workload: ComparedWorkload,
    provider: Provider,
    peer: Peer | tuple[ProviderOutcome, str],
    options: CompareOptions,
) -> PeerEntry:
    row = ComparisonRow(
        workload.name,
        workload.kind,
        provider.label,
        ProviderOutcome.OK,
        flops=workload.flops,
        bytes=workload.bytes,
        element_type=workload.element_type,
    )
    if not isinstance(peer, Peer):
        outcome, reason = peer
        return PeerEntry(replace(row, outcome=outcome, reason=reason))
    row = replace(row, version=peer.about.version, threads=_threads(peer))
    try:
        against = provider.reason_against(workload, options.target)
    except UserError as error:
        return PeerEntry(replace(row, outcome=ProviderOutcome.ERROR, reason=str(error)))
    if against:
        return PeerEntry(replace(row, outcome=ProviderOutcome.ABSENT, reason=against))
    return PeerEntry(row, peer)


def _prepare(
    entry: PeerEntry, task: ProviderTask, options: CompareOptions, folder: Path, say: Say
) -> None:
    """Build, prepare, check; the entry has failed where that did not work."""
    peer = entry.peer
    assert peer is not None
    provider = peer.provider
    folder.mkdir(parents=True, exist_ok=True)
    if provider.searches and options.budget:
        say(f"  {provider.label}: searching")
    begin = time.perf_counter()
    try:
        built = provider.build(task, options, folder)
    except UserError as error:
        entry.fail(ProviderOutcome.ERROR, str(error))
        return
    except Exception as error:
        # A fault of this program's own, in one row: hours of other rows are not lost for it.
        entry.fail(ProviderOutcome.ERROR, f"internal error: {type(error).__name__}: {error}")
        return
    request = PrepareRequest(task, built, options.budget)
    answer = peer.ask(tasks.prepare, request, provider.prepare_s(options.budget))
    seconds = time.perf_counter() - begin
    if isinstance(answer, WorkerFailure):
        entry.failed(answer)
        return
    entry.call_s = answer.call_s
    entry.row = replace(
        entry.row,
        build_s=seconds,
        worst=_worst(answer.comparisons),
        note=answer.built.note,
        progress=tuple((p.wall_s, p.trials, p.best_s) for p in answer.built.progress),
    )
    entry.check(answer.comparisons)


def _worst(comparisons: Sequence[Comparison]) -> float | None:
    """The largest error, as part of what is allowed there."""
    return max((c.error / c.tolerance for c in comparisons if c.tolerance > 0), default=None)
