"""Measuring on another machine: the side that asks.

`RemoteBenchmark` stands in for `Benchmark`. Requests go out in batches through a folder (see
`exchange`) that the other machine reads too, or that is copied there and back; or to a cluster.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from tilewright.errors import UserError
from tilewright.measure import benchmark_worker as tasks
from tilewright.measure.benchmark import Benchmark
from tilewright.measure.benchmark_worker import (
    CompareRequest,
    RunRequest,
    TimeReply,
    TimeRequest,
)
from tilewright.measure.encoding import Files, ManifestEntry, decode, make_entry
from tilewright.measure.exchange import OUTPUTS, Batch, Exchange
from tilewright.measure.jobs import Job, Reply, Request, WorkerFailure, WorkerTask
from tilewright.measure.measurement_key import MeasurementKey
from tilewright.measure.statistics import Measurement
from tilewright.measure.timing import TimingPolicy
from tilewright.target import Target

ROUND = 64
_POLL_S = 0.2
# How often a waiting run says what it waits for.
_REMIND_S = 60.0

Announce = Callable[[str], None]


class Transport:
    """Gets a batch done. This one waits for results to appear in the folder."""

    def __init__(self, exchange: Exchange, announce: Announce = lambda text: None) -> None:
        self.exchange = exchange
        self.announce = announce

    def measure(self, batch: Batch, keys: Sequence[str], stop: Callable[[], bool]) -> None:
        """Return when all of the keys have results, or `stop` says so.

        Args:
            batch: with the requests.
            keys: of the results that are wanted.
            stop: says whether to stop waiting.
        """
        wanted = set(keys)
        reminded = -_REMIND_S
        begin = time.monotonic()
        while not stop():
            left = wanted - set(batch.results())
            if not left:
                return
            if time.monotonic() - begin - reminded >= _REMIND_S:
                reminded = time.monotonic() - begin
                self.announce(
                    f"waiting for {len(left)} results of {batch.folder}: run `tilewright measure "
                    f"{self.exchange.folder}` on the machine with the device"
                )
            time.sleep(_POLL_S)


class Stopped(Exception):
    """The run was asked to stop while it waited for results."""


class RemoteBenchmark(Benchmark):
    """A benchmark whose device is on another machine. An answer is known by what was asked, and
    kept.

    files: where what requests name is stored.
    """

    round_size = ROUND

    def __init__(self, files: Files, policy: TimingPolicy | None = None) -> None:
        # No worker of this machine is started: Benchmark's own constructor would.
        self.policy = policy or TimingPolicy()
        self.files = files
        self.stop: Callable[[], bool] = lambda: False
        self._collected: list[Job[Any, Any]] | None = None
        self._answers: dict[str, Mapping[str, Any]] = {}

    @abstractmethod
    def _measure(self, entries: Sequence[ManifestEntry], label: str) -> None:
        """Have requests answered, into `_answers`; raises Stopped where some are not."""

    @abstractmethod
    def _outputs(self, data: Mapping[str, Any]) -> Path:
        """The file with the results of a program that was run to keep them."""

    def measurement_key(self, target: Target) -> MeasurementKey | None:
        """None: nothing here tells of the machine that measures, which can change from one to the
        next.

        Args:
            target: what programs are compiled for.
        """
        return None

    def runs_on(self, threads: int) -> bool:
        """False: nothing here tells of the device.

        Args:
            threads: of a program.
        """
        return False

    @contextlib.contextmanager
    def ahead(self, label: str = "") -> Iterator[None]:
        """As there: what is asked for inside is measured in one batch.

        Args:
            label: what it is for, in words.
        """
        self._collected = []
        try:
            yield
            jobs = self._collected
        finally:
            self._collected = None
        self.prefetch(jobs, label)

    def prefetch(self, jobs: Sequence[Job[Any, Any]], label: str = "") -> None:
        """Measure many things in one batch; asking for them one by one then finds the answers.

        Args:
            jobs: what will be asked for.
            label: what it is for, in words.

        Raises:
            Stopped: the run was asked to stop.
        """
        entries: dict[str, ManifestEntry] = {}
        for job in jobs:
            entry = make_entry(job, self.files)
            if entry.key not in self._answers:
                entries[entry.key] = entry
        if entries:
            self._measure(list(entries.values()), label)

    def ask(
        self, task: WorkerTask[Request, Reply], request: Request, timeout_s: float | None = None
    ) -> Reply | WorkerFailure:
        """As there. What is read is made of the few classes that an answer may hold.

        Args:
            task: a task of the benchmark worker's.
            request: what is asked.
            timeout_s: seconds for the worker over there.

        Raises:
            Stopped: the run was asked to stop.
            UserError: what came back cannot be used.
        """
        return cast(Reply | WorkerFailure, self._answer(Job(task, request, timeout_s)))

    def _answer(self, job: Job[Any, Any]) -> object:
        if job.task is tasks.load:
            return None
        payload = job.request
        if self._collected is not None:
            self._collected.append(job)
            return _meaningless(payload)
        entry = make_entry(job, self.files)
        if entry.key not in self._answers:
            self._measure([entry], job.task.__name__)
        data = self._answers[entry.key]
        if data.get("failure") is not None:
            return decode(data["failure"], None)
        if isinstance(payload, RunRequest):
            source = self._outputs(data)
            try:
                shutil.copyfile(source, payload.outputs)
            except OSError as error:
                raise UserError(
                    f"{source}: cannot be read ({error.strerror}); copy the batch's folder "
                    f"{OUTPUTS} back too"
                ) from error
            return payload.outputs
        return decode(data["value"], None)


class FolderBenchmark(RemoteBenchmark):
    """A benchmark on the other side of a folder; answers are kept in it for good."""

    def __init__(self, transport: Transport, policy: TimingPolicy | None = None) -> None:
        super().__init__(transport.exchange.files, policy)
        self.transport = transport
        self.exchange = transport.exchange
        self._batches: dict[str, Batch] = {}
        for batch, data in self.exchange.answered():
            self._batches[str(data["key"])] = batch
            self._answers[str(data["key"])] = data

    def close(self) -> None:
        """Say that no more batches will come."""
        self.exchange.close()

    def _measure(self, entries: Sequence[ManifestEntry], label: str) -> None:
        batch = self._pending(entries) or self.exchange.new_batch(entries, label)
        keys = [entry.key for entry in entries]
        self.transport.measure(batch, keys, self.stop)
        for key, data in batch.results().items():
            self._batches[key] = batch
            self._answers[key] = data
        if any(key not in self._answers for key in keys):
            raise Stopped

    def _pending(self, entries: Sequence[ManifestEntry]) -> Batch | None:
        """A batch that was written before, by a run that was stopped, and asks for all of this."""
        wanted = {entry.key for entry in entries}
        for batch in reversed(self.exchange.batches()):
            if wanted <= {entry.key for entry in batch.entries}:
                return batch
        return None

    def _outputs(self, data: Mapping[str, Any]) -> Path:
        return self._batches[str(data["key"])].folder / OUTPUTS / Path(str(data["value"])).name


def _meaningless(payload: object) -> object:
    """An answer of the right form, for looking ahead to what will be asked for next."""
    measurement = Measurement((1.0,) * 8)
    if isinstance(payload, TimeRequest):
        return TimeReply(measurement)
    if isinstance(payload, CompareRequest):
        return [measurement] * len(payload.vmfbs)
    return WorkerFailure("error", "not measured yet") if isinstance(payload, RunRequest) else []


def parse_runner(text: str, announce: Announce = lambda t: None) -> RemoteBenchmark:
    """`dir:PATH`.

    Args:
        text: what `--runner` says.
        announce: tells the user what is waited for.

    Raises:
        UserError: it is not that.
    """
    kind, _, rest = text.partition(":")
    if kind == "dir" and rest:
        folder = Path(rest).expanduser()
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        if not folder.is_dir():
            raise UserError(f"--runner: {folder} is not a folder and cannot be made one")
        return FolderBenchmark(Transport(Exchange(folder), announce))
    if kind == "ssh":
        raise UserError(
            "--runner: 'ssh:' has given way to --cluster: start `tilewright worker --role device` "
            "on that machine (see docs/cluster.md), or use dir:PATH and copy the folder"
        )
    raise UserError(
        f"--runner: '{text}' is no runner; write dir:PATH (a folder that the machine with the "
        "device sees too, or that is copied there); machines that reach each other: --cluster"
    )
