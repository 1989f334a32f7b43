"""A provider with its process, and its part in one workload."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tilewright.compare import worker as tasks
from tilewright.compare.comparison_options import CompareOptions
from tilewright.compare.providers.interface import THREAD_VARIABLES, Provider, Threads
from tilewright.compare.results import ComparisonRow, ProviderOutcome
from tilewright.compare.worker import About, Sample, WorkerSetup
from tilewright.measure.jobs import Job, Reply, Request, WorkerFailure, WorkerTask
from tilewright.measure.pool import WorkerPool
from tilewright.measure.verify import Comparison

_START_TIMEOUT_S = 300.0


class Peer:
    """A provider with its worker, which is stopped unless something is asked of it."""

    def __init__(self, provider: Provider, options: CompareOptions) -> None:
        self.provider = provider
        self.pool = WorkerPool(
            1,
            setup=Job(tasks.setup, WorkerSetup(provider, options.place, options.cpus())),
            timeout_s=options.timeout_s,
            start_timeout_s=_START_TIMEOUT_S,
            environment={
                **dict.fromkeys(THREAD_VARIABLES, str(options.threads)),
                **provider.environment(options.threads),
            },
            retry_crashes=False,
        )
        self.about = About("", Threads(None, ""))

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
        self._signal(signal.SIGCONT)
        outcome = self.pool.ask(task, request, timeout_s)
        self._signal(signal.SIGSTOP)
        return outcome

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.pool.process_ids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, number)

    def close(self) -> None:
        """End the worker."""
        self.pool.close()


@dataclass
class PeerEntry:
    """A provider's part in a workload, as it goes on."""

    row: ComparisonRow
    peer: Peer | None = None
    call_s: float = 0.0
    taken: list[Sample] = field(default_factory=list)

    def fail(self, outcome: ProviderOutcome, reason: str) -> None:
        """The row becomes one without times.

        Args:
            outcome: what became of it.
            reason: in one line.
        """
        self.row = replace(
            self.row, outcome=outcome, reason=reason, samples=(), fastest=(), processor=()
        )
        self.peer = None

    def check(self, comparisons: Sequence[Comparison]) -> None:
        """Fail where a result is wrong.

        Args:
            comparisons: one for each result.
        """
        wrong = next((c for c in comparisons if not c.ok), None)
        if wrong is not None:
            self.fail(ProviderOutcome.FAILED, f"wrong numbers: {wrong}")

    def failed(self, failure: WorkerFailure) -> None:
        """What the worker's failure makes of the row.

        Args:
            failure: a crash, a timeout or an error.
        """
        kinds = {"crashed": ProviderOutcome.CRASHED, "timeout": ProviderOutcome.TIMEOUT}
        self.fail(kinds.get(failure.kind, ProviderOutcome.ERROR), failure.message)
