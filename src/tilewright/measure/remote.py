"""Measuring on another machine: the side that asks.

`RemoteBenchmark` stands in for `Benchmark`. Requests go out in batches through a folder (see
`exchange`): one that the other machine reads too, or one that is copied there and back by ssh.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
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
from tilewright.measure.exchange import (
    OUTPUTS,
    RESULTS,
    Batch,
    Exchange,
    ManifestEntry,
    decode,
    make_entry,
)
from tilewright.measure.jobs import Job, Reply, Request, WorkerFailure, WorkerTask
from tilewright.measure.statistics import Measurement
from tilewright.measure.timing import TimingPolicy

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


class SshTransport(Transport):
    """Copies a batch to another machine by ssh, measures there, and copies the results back.

    `host` is what ssh takes; `place` the folder there (below the home directory unless absolute);
    `command` how tilewright is called there. Files that are there already are not copied again.
    """

    def __init__(
        self,
        exchange: Exchange,
        host: str,
        place: str,
        announce: Announce = lambda text: None,
        *,
        ssh: Sequence[str] = ("ssh",),
        command: str = "tilewright",
        device: str | None = None,
    ) -> None:
        super().__init__(exchange, announce)
        self.host = host
        self.place = place
        self._ssh = [*ssh, host]
        self._command = command
        uris = device.split(",") if device else []
        self._device = "".join(f" --device {shlex.quote(uri.strip())}" for uri in uris)

    def measure(self, batch: Batch, keys: Sequence[str], stop: Callable[[], bool]) -> None:
        """As there; raises UserError where measuring over there fails.

        Args:
            batch: with the requests.
            keys: of the results that are wanted.
            stop: says whether the run is to stop.
        """
        self._send(batch)
        place = shlex.quote(self.place)
        status, _, log = self._run(f"{self._command} measure {place}{self._device}")
        if status != 0 and stop():
            # Ctrl-C reaches ssh too; what was measured until then stays there.
            return
        self._receive(batch)
        left = set(keys) - set(batch.results())
        if left and not stop():
            why = _last_line(log) or f"exit status {status}, {len(left)} results are missing"
            raise UserError(
                f"--runner: measuring on {self.host} failed: {why}; --resume goes on with what is "
                "there"
            )

    def _send(self, batch: Batch) -> None:
        folder = self.exchange.folder
        place = shlex.quote(self.place)
        status, listed, log = self._run(f"mkdir -p {place}/files && ls {place}/files")
        if status != 0:
            raise UserError(
                f"--runner: {self.host}: {_last_line(log) or f'ssh exits with status {status}'}"
            )
        there = set(listed.decode().split())
        names = [f"files/{n}" for n in sorted(_files_of(batch)) if n not in there]
        names.append(f"{batch.folder.name}/manifest.json")
        archive = subprocess.run(
            ["tar", "-C", str(folder), "-cf", "-", *names], capture_output=True
        )
        status, _, log = self._run(f"tar -C {place} -xf -", archive.stdout)
        if archive.returncode or status:
            raise UserError(
                f"--runner: copying to {self.host}: {_last_line(archive.stderr or log)}"
            )

    def _receive(self, batch: Batch) -> None:
        inside = shlex.quote(f"{self.place}/{batch.folder.name}")
        status, data, log = self._run(f"cd {inside} && tar -cf - $(ls -d {RESULTS} {OUTPUTS})")
        if status and not data:
            raise UserError(f"--runner: {self.host} sent no results: {_last_line(log)}")
        subprocess.run(["tar", "-C", str(batch.folder), "-xf", "-"], input=data, check=False)

    def _run(self, command: str, data: bytes = b"") -> tuple[int, bytes, bytes]:
        try:
            done = subprocess.run([*self._ssh, command], input=data, capture_output=True)
        except OSError as error:
            raise UserError(f"--runner: cannot run {self._ssh[0]}: {error.strerror}") from None
        return done.returncode, done.stdout, done.stderr


def _last_line(log: bytes) -> str:
    lines = [line for line in log.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def _files_of(batch: Batch) -> set[str]:
    """The files that the requests of a batch name."""
    found: set[str] = set()

    def visit(data: Any) -> None:
        if isinstance(data, dict):
            if "file" in data and isinstance(data["file"], str):
                found.add(data["file"])
            for value in data.values():
                visit(value)
        elif isinstance(data, list):
            for value in data:
                visit(value)

    for entry in batch.entries:
        visit(entry.payload)
    return found


class Stopped(Exception):
    """The run was asked to stop while it waited for results."""


class RemoteBenchmark(Benchmark):
    """A benchmark whose device is on another machine. Answers are kept in the folder for good."""

    round_size = ROUND

    def __init__(self, transport: Transport, policy: TimingPolicy | None = None) -> None:
        # No worker of this machine is started: Benchmark's own constructor would.
        self.policy = policy or TimingPolicy()
        self.transport = transport
        self.exchange = transport.exchange
        self.stop: Callable[[], bool] = lambda: False
        self._collected: list[Job[Any, Any]] | None = None
        self._answers: dict[str, tuple[Batch, dict[str, Any]]] = {
            str(data["key"]): (batch, data) for batch, data in self.exchange.answered()
        }

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
            entry = make_entry(job, self.exchange.files)
            if entry.key not in self._answers:
                entries[entry.key] = entry
        if entries:
            self._measure(list(entries.values()), label)

    def close(self) -> None:
        """Say that no more batches will come."""
        self.exchange.close()

    def _measure(self, entries: Sequence[ManifestEntry], label: str) -> None:
        batch = self._pending(entries) or self.exchange.new_batch(entries, label)
        keys = [entry.key for entry in entries]
        self.transport.measure(batch, keys, self.stop)
        for key, data in batch.results().items():
            self._answers[key] = (batch, data)
        if any(key not in self._answers for key in keys):
            raise Stopped

    def _pending(self, entries: Sequence[ManifestEntry]) -> Batch | None:
        """A batch that was written before, by a run that was stopped, and asks for all of this."""
        wanted = {entry.key for entry in entries}
        for batch in reversed(self.exchange.batches()):
            if wanted <= {entry.key for entry in batch.entries}:
                return batch
        return None

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
        entry = make_entry(job, self.exchange.files)
        if entry.key not in self._answers:
            self._measure([entry], job.task.__name__)
        batch, data = self._answers[entry.key]
        if data.get("failure") is not None:
            return decode(data["failure"], None)
        if isinstance(payload, RunRequest):
            source = batch.folder / OUTPUTS / Path(str(data["value"])).name
            try:
                shutil.copyfile(source, payload.outputs)
            except OSError as error:
                raise UserError(
                    f"{source}: cannot be read ({error.strerror}); copy the batch's folder "
                    f"{OUTPUTS} back too"
                ) from error
            return payload.outputs
        return decode(data["value"], None)


def _meaningless(payload: object) -> object:
    """An answer of the right form, for looking ahead to what will be asked for next."""
    measurement = Measurement((1.0,) * 8)
    if isinstance(payload, TimeRequest):
        return TimeReply(measurement)
    if isinstance(payload, CompareRequest):
        return [measurement] * len(payload.vmfbs)
    return WorkerFailure("error", "not measured yet") if isinstance(payload, RunRequest) else []


def parse_runner(
    text: str, announce: Announce = lambda t: None, device: str | None = None
) -> RemoteBenchmark:
    """`dir:PATH`, `ssh:HOST` or `ssh:HOST:PATH` (the folder there).

    Args:
        text: what `--runner` says.
        announce: tells the user what is waited for.
        device: what `--device` says, for the other side.

    Raises:
        UserError: it is none of these.
    """
    kind, _, rest = text.partition(":")
    if kind == "dir" and rest:
        folder = Path(rest).expanduser()
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        if not folder.is_dir():
            raise UserError(f"--runner: {folder} is not a folder and cannot be made one")
        return RemoteBenchmark(Transport(Exchange(folder), announce))
    if kind == "ssh" and rest:
        host, _, place = rest.partition(":")
        if host and not host.startswith("-"):
            place = place or "tilewright-measure"
            folder = Path(f"tilewright-measure-{host.rpartition('@')[2]}")
            exchange = Exchange(folder)
            return RemoteBenchmark(SshTransport(exchange, host, place, announce, device=device))
    raise UserError(
        f"--runner: '{text}' is no runner; write dir:PATH (a folder that the machine with the "
        "device sees too), or ssh:HOST or ssh:HOST:PATH"
    )
