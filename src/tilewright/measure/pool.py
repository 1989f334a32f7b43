"""A pool of warm worker processes that outlives whatever a candidate does to them.

Candidates crash compilers, hang, print garbage and use up memory. Each worker is a process of its
own (started afresh, never forked from a process with threads) in its own process group; when a job
ends its worker, or outlasts its deadline, the group is killed, the job's result says so, and a new
worker takes the place at once. The pool itself only waits on sockets: it uses no processor time
while the workers are busy.

A pool is driven by one thread. On Linux the kernel kills workers with the thread that started them
when that is the main thread.
"""

from __future__ import annotations

import collections
import os
import pickle
import selectors
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright import scratch
from tilewright.errors import UserError
from tilewright.measure.bundles import Bundle, bundled
from tilewright.measure.jobs import (
    Job,
    JobRunner,
    Reply,
    Request,
    Result,
    WorkerFailure,
    describe_exit,
    one_line,
)
from tilewright.measure.protocol import NUMBER_BYTES, FrameKind, ProtocolError, frame
from tilewright.measure.worker_process import WorkerProcess

__all__ = ["Job", "Result", "WorkerFailure", "WorkerPool", "WorkerStartError"]

# Starts in a row that may fail before the pool gives up: one may be bad luck (memory, load).
_MAX_FAILED_STARTS = 3

# A job whose limit is on processor time may take this many times as long by the clock.
_WAITING_FACTOR = 5
# While jobs run their logs are looked at as often; a wait that ends later by more than the second
# was one in which this process was stopped (by a signal, with its container): jobs get that time.
_LOG_CHECK_S, _STOPPED_S = 1.0, 1.0
# A job is looked at again no sooner: the system counts processor time in hundredths of a second.
_LOOK_AGAIN_S = 0.05


class WorkerStartError(UserError):
    """Workers cannot be started or set up: an option or the environment is at fault, not a
    candidate."""


@dataclass
class _Running:
    number: int
    job: Job[Any, Any]
    started: float
    limit: float
    deadline: float
    processor_at_start: float | None
    retried: bool


class WorkerPool(JobRunner):
    """`count` workers that run jobs.

    setup: run once in each new worker, to warm it up.
    timeout_s: default time limit of a job; start_timeout_s: of starting and setting up a worker.
    memory_limit: bytes of private memory a worker may use (None: no limit).
    environment: variables for the workers, over those of this process.
    retry_crashes: run a job that crashed a worker once more in a fresh one, unless its worker was
        fresh: the crash may be the late effect of memory overrun by an earlier candidate. One whose
        worker was killed is run once more in any case.

    >>> with WorkerPool(2, timeout_s=30) as pool:  # doctest: +SKIP
    ...     pool.run([Job(task, 1), Job(task, 2)], on_result=print)
    """

    def __init__(
        self,
        count: int,
        *,
        setup: Job[Any, None] | None = None,
        timeout_s: float = 60.0,
        start_timeout_s: float = 120.0,
        memory_limit: int | None = None,
        environment: dict[str, str] | None = None,
        retry_crashes: bool = True,
        log_limit: int = 1 << 26,
    ) -> None:
        if count < 1:
            raise ValueError(f"a pool of {count} workers")
        self._timeout_s = timeout_s
        self._start_timeout_s = start_timeout_s
        self._retry_crashes = retry_crashes
        self._init_frame = frame(
            FrameKind.INIT, pickle.dumps(setup and (setup.task, setup.request))
        )
        self._queue: collections.deque[tuple[int, Job[Any, Any], bool]] = collections.deque()
        self._results: list[Result[Any]] = []
        self._next_number = 0
        self._failed_starts = 0
        self._broken: str | None = None
        self._closed = False
        self._selector = selectors.DefaultSelector()
        self._running: dict[WorkerProcess, _Running] = {}
        self._idle: list[WorkerProcess] = []
        self._starting: dict[WorkerProcess, float] = {}
        # What tools leave behind when they are killed goes with the pool.
        self._scratch = scratch.create()
        self._spawn_options: dict[str, Any] = {
            "memory_limit": memory_limit or 0,
            "log_limit": log_limit,
            "environment": environment or {},
            "folder": self._scratch,
        }
        self._workers: set[WorkerProcess] = set()
        self._finalizer = weakref.finalize(
            self, _shut_down, self._workers, self._scratch, os.getpid()
        )
        try:
            for _ in range(count):
                self._spawn()
        except BaseException:
            self.close()
            raise

    # -- the caller's side

    @property
    def pending(self) -> int:
        """Jobs submitted whose results have not been handed out."""
        return len(self._queue) + len(self._running) + len(self._results)

    @property
    def process_ids(self) -> list[int]:
        """The workers' process ids, for accounting memory and processor time."""
        return sorted(worker.pid for worker in self._workers)

    def submit(self, *jobs: Job[Any, Any]) -> None:
        """Queue jobs; idle workers begin at once.

        Args:
            jobs: to be done in any order.

        Raises:
            WorkerStartError: no worker can be started.
        """
        self._submit(jobs)

    def _submit(self, jobs: Iterable[Job[Any, Any]], *, retried: bool = False) -> None:
        self._check_usable()
        for job in jobs:
            self._queue.append((self._next_number, job, retried))
            self._next_number += 1
        self._assign()

    def poll(self, timeout_s: float | None = None) -> list[Result[Any]]:
        """Wait until a job is done.

        Args:
            timeout_s: seconds to wait at most; 0 looks without waiting, None waits for ever.

        Returns:
            What is done; nothing when no job is pending or time is up.

        Raises:
            WorkerStartError: no worker can be started.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if self._results:
                done, self._results = self._results, []
                return done
            self._check_usable()
            if not self.pending:
                return []
            self._step(end)
            if not self._results and end is not None and time.monotonic() >= end:
                return []

    def run(
        self,
        jobs: Iterable[Job[Request, Reply]],
        on_result: Callable[[Result[Reply]], object] | None = None,
    ) -> list[Result[Reply]]:
        """Run jobs; `on_result` gets each result as it comes. Returns them in the jobs' order.

        Those that can be done together are, in as many bundles as there are workers. Must not be
        mixed with jobs submitted before and not yet polled.

        Args:
            jobs: all to be done.
            on_result: called with each result as it comes.

        Returns:
            The results, in the order of the jobs.

        Raises:
            RuntimeError: jobs submitted before are not finished.
            WorkerStartError: no worker can be started.
        """
        if self.pending:
            raise RuntimeError(f"{self.pending} jobs submitted before are not finished")
        wanted = list(jobs)
        bundles: dict[int, collections.deque[Bundle]] = collections.defaultdict(collections.deque)

        def begin(made: Iterable[Bundle]) -> None:
            for bundle in made:
                bundles[id(bundle.job)].append(bundle)
                # One whose worker dies is not tried again: its jobs are, one by one.
                self._submit([bundle.job], retried=len(bundle.places) > 1)

        begin(bundled(wanted, len(self._workers), self._timeout_s))
        ordered: list[Result[Reply] | None] = [None] * len(wanted)
        while self.pending:
            for result in self.poll():
                bundle = bundles[id(result.job)].popleft()
                found = bundle.results(wanted, result)
                for position, one in zip(bundle.places, found, strict=False):
                    ordered[position] = one
                    if on_result:
                        on_result(one)
                if not found:
                    begin(Bundle((position,), wanted[position]) for position in bundle.places)
        return [result for result in ordered if result is not None]

    def close(self) -> None:
        """Kill the workers, busy or not. Nothing is left running; jobs not done are lost."""
        if self._closed:
            return
        self._closed = True
        self._selector.close()
        self._finalizer()
        self._queue.clear()
        self._running.clear()
        self._idle.clear()
        self._starting.clear()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_usable(self) -> None:
        if self._closed:
            raise RuntimeError("the worker pool is closed")
        if self._broken is not None:
            raise WorkerStartError(self._broken)

    # -- workers

    def _spawn(self) -> None:
        try:
            worker = WorkerProcess(
                bound_to_thread=threading.current_thread() is not threading.main_thread(),
                **self._spawn_options,
            )
        except OSError as error:
            # No room for its files, or no more processes: not the fault of what it was to do.
            self._broken = f"a worker cannot be started ({error.strerror or error})"
            return
        self._workers.add(worker)
        self._starting[worker] = time.monotonic() + self._start_timeout_s
        self._selector.register(worker.channel, selectors.EVENT_READ, worker)
        self._send(worker, self._init_frame)

    def _replace(self, worker: WorkerProcess) -> None:
        """End a worker and everything it started; a new one takes its place."""
        if worker not in self._workers:
            return
        self._selector.unregister(worker.channel)
        worker.kill()
        self._workers.discard(worker)
        self._running.pop(worker, None)
        self._starting.pop(worker, None)
        if worker in self._idle:
            self._idle.remove(worker)
        self._spawn()

    def _send(self, worker: WorkerProcess, data: bytes) -> None:
        worker.queue(data)
        self._flush(worker)

    def _flush(self, worker: WorkerProcess) -> None:
        """Write what the socket takes; the rest when it is ready for more.

        A worker that has died is noticed by its end of file, where its status is known.
        """
        more = worker.write()
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if more else 0)
        self._selector.modify(worker.channel, events, worker)

    def _assign(self) -> None:
        while self._queue and self._idle:
            number, job, retried = self._queue.popleft()
            try:
                body = pickle.dumps((job.task, job.request))
            except Exception as error:
                message = f"the job cannot be sent to a worker: {error}"
                failure = WorkerFailure("error", message, error_type=type(error).__name__)
                self._results.append(Result(job, failure))
                continue
            worker = self._idle.pop()
            now = time.monotonic()
            limit = self._timeout_s if job.timeout_s is None else job.timeout_s
            if not worker.jobs_done:
                limit += job.first_s
            used = worker.processor_s() if job.processor_time else None
            self._running[worker] = _Running(number, job, now, limit, now + limit, used, retried)
            self._send(worker, frame(FrameKind.JOB, number.to_bytes(NUMBER_BYTES, "little") + body))

    # -- events

    def _step(self, end: float | None) -> None:
        """Wait for one round of events and handle it."""
        deadlines = [r.deadline for r in self._running.values()]
        deadlines += self._starting.values()
        if end is not None:
            deadlines.append(end)
        began = time.monotonic()
        wait = max(0.0, min(deadlines) - began) if deadlines else None
        if self._running:
            wait = _LOG_CHECK_S if wait is None else min(wait, _LOG_CHECK_S)
        ready = self._selector.select(wait)
        if wait is not None:
            self._make_up(time.monotonic() - began, wait)
        for worker in self._running:
            worker.cut_log()
        for key, mask in ready:
            worker = key.data
            if worker not in self._workers:
                continue
            if mask & selectors.EVENT_WRITE:
                self._flush(worker)
            if mask & selectors.EVENT_READ:
                self._receive(worker)
        self._enforce_deadlines()
        self._assign()

    def _receive(self, worker: WorkerProcess) -> None:
        try:
            frames = worker.read()
        except ProtocolError as error:
            self._ended(worker, f"the worker answered with {error}")
            return
        if frames is None:
            self._ended(worker, None)
            return
        for kind, body in frames:
            if worker not in self._workers:
                return
            self._on_frame(worker, kind, body)

    def _on_frame(self, worker: WorkerProcess, kind: FrameKind, body: bytes) -> None:
        if kind is FrameKind.READY and worker in self._starting:
            del self._starting[worker]
            self._failed_starts = 0
            self._idle.append(worker)
        elif kind is FrameKind.RESULT and worker in self._running:
            number = int.from_bytes(body[:NUMBER_BYTES], "little")
            self._finish(worker, number, lambda: pickle.loads(body[NUMBER_BYTES:]))
            if worker in self._workers and worker.has_left_processes:
                self._replace(worker)
        elif kind is FrameKind.ERROR:
            try:
                number, name, text, trace, restart, exhausted = pickle.loads(body)
            except Exception as error:
                self._ended(worker, f"the worker's error cannot be read: {error}")
                return
            if worker in self._starting:
                # A UserError of the setup task says all by itself.
                prefix = "" if name == "UserError" else f"a worker cannot be set up: {name}: "
                self._broken = prefix + one_line(text)
                self._replace(worker)
                return
            failure = WorkerFailure("error", one_line(text) or name, None, name, trace)
            if exhausted:
                message = f"out of memory ({name}: {one_line(text) or 'the limit was reached'})"
                failure = WorkerFailure("crashed", message, None, name, trace)
            self._finish(worker, number, failure)
            # One that answered for no job has been replaced.
            if worker in self._workers and (restart or worker.has_left_files):
                self._replace(worker)
        else:
            self._ended(worker, f"the worker sent an unexpected {kind.name} message")

    def _finish(
        self, worker: WorkerProcess, number: int, outcome: WorkerFailure | Callable[[], Any]
    ) -> None:
        running = self._running.get(worker)
        if running is None or running.number != number:
            self._ended(worker, f"the worker answered for job {number}, which it was not given")
            return
        del self._running[worker]
        seconds = time.monotonic() - running.started
        if not isinstance(outcome, WorkerFailure):
            try:
                outcome = outcome()
            except Exception as error:
                message = f"the result of the task cannot be read: {error}"
                outcome = WorkerFailure("error", message, error_type=type(error).__name__)
        self._results.append(Result(running.job, outcome, seconds))
        worker.jobs_done += 1
        self._idle.append(worker)

    def _ended(self, worker: WorkerProcess, complaint: str | None) -> None:
        """The worker died (complaint None) or has to."""
        status = worker.reap() if complaint is None else None
        log = worker.log_tail()
        name, message = describe_exit(status, log)
        failure = WorkerFailure("crashed", complaint or message, name, "", log)
        running = self._running.get(worker)
        starting = worker in self._starting
        fresh = worker.jobs_done == 0
        self._replace(worker)
        if starting:
            self._failed_start(failure.message)
        if running is None:
            return
        # A kill is not the job's doing, as far as anybody can tell: a system short of memory picks
        # one of many.
        blameless = not fresh or name == "SIGKILL"
        if self._retry_crashes and blameless and not running.retried:
            self._queue.appendleft((running.number, running.job, True))
            return
        seconds = time.monotonic() - running.started
        self._results.append(Result(running.job, failure, seconds))

    def _make_up(self, waited_s: float, meant_s: float) -> None:
        """Give jobs and starts the time in which this process was stopped."""
        if waited_s < meant_s + _STOPPED_S:
            return
        for running in self._running.values():
            running.deadline += waited_s
        for worker in self._starting:
            self._starting[worker] += waited_s

    def _enforce_deadlines(self) -> None:
        now = time.monotonic()
        for worker, running in list(self._running.items()):
            if now < running.deadline or _postpone(worker, running, now):
                continue
            log = worker.log_tail()
            self._replace(worker)
            message = f"no answer within {running.limit:g} s"
            failure = WorkerFailure("timeout", message, "SIGKILL", "", log)
            self._results.append(Result(running.job, failure, now - running.started))
        for worker, deadline in list(self._starting.items()):
            if now >= deadline:
                self._replace(worker)
                self._failed_start(f"not ready within {self._start_timeout_s:g} s")

    def _failed_start(self, why: str) -> None:
        self._failed_starts += 1
        if self._failed_starts >= _MAX_FAILED_STARTS:
            self._broken = f"workers do not start ({self._failed_starts} in a row): {why}"


def _postpone(worker: WorkerProcess, running: _Running, now: float) -> bool:
    """Give a job the processor time that other processes took from it, as far as it goes."""
    end = running.started + _WAITING_FACTOR * running.limit
    if running.processor_at_start is None or now >= end:
        return False
    used = worker.processor_s()
    if used is None or used - running.processor_at_start >= running.limit:
        return False
    left = running.limit - (used - running.processor_at_start)
    running.deadline = min(end, now + max(left, _LOOK_AGAIN_S))
    return True


def _shut_down(workers: set[WorkerProcess], folder: Path, owner: int) -> None:
    """Kill all workers. A forked child of the owner must leave them alone."""
    if os.getpid() != owner:
        return
    while workers:
        workers.pop().kill()
    scratch.remove(folder)
