"""A worker of a cluster: one process that compiles, or measures on one device.

Dask's part (the connection to the scheduler, which hands it chunks) lives in a thread. What is done
with a chunk is done in the main thread, by a worker pool: so the kernel ends the pool's processes,
also one that hangs in the compiler with Python's lock held, when this process ends in whatever way.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import shutil
import signal
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tilewright import scratch
from tilewright.cluster.blobs import FetchedFiles
from tilewright.cluster.dask_settings import PAGE, settle, why_unreachable
from tilewright.cluster.dispatching import COMPILE, CPU
from tilewright.cluster.facts import WIRE_FORMAT, WorkerFacts
from tilewright.cluster.portable import portable_tasks
from tilewright.errors import TilewrightError, UserError
from tilewright.files import parse_json
from tilewright.measure import benchmark_worker
from tilewright.measure.answering import Answering
from tilewright.measure.device_lock import DeviceLock
from tilewright.measure.device_options import DeviceOptions
from tilewright.measure.encoding import Files, ManifestEntry, encode
from tilewright.measure.exchange import OUTPUTS
from tilewright.measure.jobs import Job, Result
from tilewright.measure.pool import WorkerPool

# Files that were fetched, and programs that were made, are kept up to here.
_KEPT_BYTES = 4 << 30
_KEPT_RUNS = 3
# A device that another holds is waited for as long as this, before the chunk goes elsewhere.
_DEVICE_PATIENCE_S = 900.0
_RETRY_S = 1.0
_CONNECT_S = 10.0
_LOG_CHARS = 2000


@dataclass
class _Call:
    text: str
    future: Future[str] = field(default_factory=Future)


class ChunkWorker:
    """Does chunks, one at a time. `facts`: what it is; `context`: for fetching files by TLS."""

    def __init__(self, facts: WorkerFacts, context: ssl.SSLContext | None = None) -> None:
        self.facts = facts
        self.doing = ""
        self.done = 0
        self._context = context
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._folder = scratch.create()
        self._files: dict[str, Files] = {}
        self._runs: list[str] = []
        self._pool: WorkerPool | None = None
        self._opened: DeviceOptions | None = None
        self._lock = DeviceLock(facts.device or "local-task")

    # -- the side of Dask's threads

    def perform(self, text: str) -> str:
        """Have a chunk done by the main thread.

        Args:
            text: the chunk, as JSON.

        Returns:
            Results as JSON, or `error` with why there are none.
        """
        call = _Call(text)
        self._calls.put(call)
        return call.future.result()

    def state(self) -> dict[str, Any]:
        """What it does now, for the scheduler: plain data."""
        return {**self.facts.to_json(), "doing": self.doing, "done": self.done}

    def stop(self) -> None:
        """Have `serve` end."""
        self._calls.put(None)

    # -- the main thread

    def serve(self) -> None:
        """Do chunks until `stop`; the pool and all files are gone afterwards."""
        try:
            while (call := self._calls.get()) is not None:
                try:
                    call.future.set_result(json.dumps(self._chunk(parse_json(call.text))))
                except (TilewrightError, OSError, ValueError, KeyError, TypeError) as error:
                    said = str(error) or type(error).__name__
                    call.future.set_result(json.dumps({"error": said}))
                finally:
                    self.doing = ""
        finally:
            if self._pool is not None:
                self._pool.close()
            scratch.remove(self._folder)

    def _chunk(self, chunk: Mapping[str, Any]) -> dict[str, Any]:
        if chunk["format"] != WIRE_FORMAT:
            raise UserError(f"format {chunk['format']} is asked for, this worker has {WIRE_FORMAT}")
        files = self._files_of(chunk["files"])
        entries = [ManifestEntry(**one) for one in chunk["entries"]]
        self.doing = f"{chunk['label']} ({len(entries)})"
        folder = self._run_folder(str(chunk["run"]))
        do = self._compile if self.facts.role == COMPILE else self._measure
        begin = time.monotonic()
        results = do(chunk, entries, files, folder)
        self.done += len(entries)
        return {"results": results, "seconds": time.monotonic() - begin}

    def _compile(
        self,
        chunk: Mapping[str, Any],
        entries: list[ManifestEntry],
        files: Files,
        folder: Path,
    ) -> list[dict[str, Any]]:
        from tilewright.measure.compile_worker import SETTING_UP_S, compile_pool

        if self._pool is None:
            self._pool = compile_pool(1)
        known = portable_tasks()
        jobs = []
        for entry in entries:
            if entry.task not in known:
                raise UserError(f"'{entry.task}' is no task that travels")
            portable = known[entry.task]
            job = Job(
                portable.done_by,
                portable.unpack(entry.payload, files, folder),
                entry.timeout_s,
                processor_time=True,
                first_s=SETTING_UP_S,
                tag=(entry.key, portable),
            )
            jobs.append(job)
        results: list[dict[str, Any]] = []
        failures: list[Exception] = []

        def pack(result: Result[Any]) -> None:
            # What one has made is handed in while the next is compiled.
            key, portable = result.job.tag
            data: dict[str, Any] = {"key": key, "seconds": result.seconds}
            if result.failure is not None:
                short = replace(result.failure, log=result.failure.log[-_LOG_CHARS:])
                data["failure"] = encode(short, None)
            else:
                try:
                    data["value"] = portable.pack_reply(result.job.request, result.value, files)
                except (TilewrightError, OSError) as error:
                    failures.append(error)
            results.append(data)

        # On a processor that is measured on nothing is compiled meanwhile.
        with self._lock.held(shared=True):
            self._pool.run(jobs, pack)
        if failures:
            raise failures[0]
        return results

    def _measure(
        self,
        chunk: Mapping[str, Any],
        entries: list[ManifestEntry],
        files: Files,
        folder: Path,
    ) -> list[dict[str, Any]]:
        device = self._device(chunk.get("device"))
        with self._lock.held(patience_s=_DEVICE_PATIENCE_S) as alone:
            if not alone:
                raise UserError(
                    f"{device.uri} is held by another process for {_DEVICE_PATIENCE_S:g} s"
                )
            answering = Answering(self._open(device), device.uri, files, folder / OUTPUTS)
            results = [answering.answer(entry) for entry in entries]
        for data in results:
            path = folder / OUTPUTS / f"{data['key']}.npz"
            if path.exists():
                data["outputs"] = files.put(str(path), ".npz")
                path.unlink()
        return results

    def _device(self, asked: Mapping[str, Any] | None) -> DeviceOptions:
        """The worker's device; of a processor, with the threads that the run asks for."""
        if asked and CPU in self.facts.labels:
            threads = asked.get("threads")
            return DeviceOptions.cpu(threads) if threads else DeviceOptions(self.facts.device)
        return DeviceOptions(self.facts.device)

    def _open(self, device: DeviceOptions) -> WorkerPool:
        if self._pool is None or self._opened != device:
            if self._pool is not None:
                self._pool.close()
            self._opened = device
            self._pool = WorkerPool(1, setup=Job(benchmark_worker.setup, device))
        return self._pool

    def _files_of(self, place: Mapping[str, Any]) -> Files:
        key = json.dumps(place, sort_keys=True)
        if key not in self._files:
            for other in self._files.values():
                if isinstance(other, FetchedFiles):
                    other.close()
            self._files.clear()
            if "folder" in place:
                shared = Path(str(place["folder"]))
                if not shared.is_dir():
                    raise UserError(f"{shared} is not there on {self.facts.node}")
                self._files[key] = Files(shared)
            else:
                url = str(place["url"])
                if url.startswith("https://") and self._context is None:
                    raise UserError("files are served by TLS, and this worker has no certificates")
                fetched = self._folder / "files"
                _prune(fetched, _KEPT_BYTES)
                self._files[key] = FetchedFiles(fetched, url, self._context)
        return self._files[key]

    def _run_folder(self, run: str) -> Path:
        """A folder for what is written for a run; those of the latest are kept."""
        name = "".join(c for c in run if c.isalnum())[:32] or "run"
        if name in self._runs:
            self._runs.remove(name)
        self._runs.append(name)
        while len(self._runs) > _KEPT_RUNS:
            shutil.rmtree(self._folder / self._runs.pop(0), ignore_errors=True)
        path = self._folder / name
        path.mkdir(exist_ok=True)
        return path


def _prune(folder: Path, limit: int) -> None:
    """Remove the files that were used least recently, where all are more than so many bytes."""
    if not folder.is_dir():
        return
    files = sorted(folder.iterdir(), key=lambda path: path.stat().st_atime)
    total = sum(path.stat().st_size for path in files)
    while files and total > limit:
        oldest = files.pop(0)
        total -= oldest.stat().st_size
        oldest.unlink(missing_ok=True)


_worker: ChunkWorker | None = None


def perform(text: str) -> str:
    """What Dask runs: the chunk is done by this process's worker.

    Args:
        text: the chunk, as JSON.

    Returns:
        Its results as JSON.
    """
    if _worker is None:
        return json.dumps({"error": "this is no worker of tilewright's: start `tilewright worker`"})
    return _worker.perform(text)


def run_worker(
    facts: WorkerFacts,
    scheduler: str,
    *,
    security: Any = None,
    context: ssl.SSLContext | None = None,
    name: str | None = None,
    death_timeout_s: float | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Work for a scheduler until this process is told to end.

    Args:
        facts: role and device.
        scheduler: its address.
        security: Dask's, for tls.
        context: for fetching files by TLS.
        name: in lists of workers.
        death_timeout_s: end when there is no scheduler for so long; None: wait for ever.
        say: told what happens.
    """
    global _worker
    _worker = worker = ChunkWorker(facts, context)
    stopping = threading.Event()

    def connection() -> None:
        try:
            asyncio.run(
                _connected(worker, scheduler, security, name, death_timeout_s, stopping, say)
            )
        finally:
            worker.stop()

    thread = threading.Thread(target=connection, name="dask", daemon=True)
    thread.start()

    def ended(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, ended)
    try:
        worker.serve()
    except KeyboardInterrupt:
        pass
    finally:
        stopping.set()
        thread.join(5)


async def _connected(
    worker: ChunkWorker,
    scheduler: str,
    security: Any,
    name: str | None,
    death_timeout_s: float | None,
    stopping: threading.Event,
    say: Callable[[str], None],
) -> None:
    """Keep a Dask worker connected; a scheduler that went away is waited for."""
    settle()
    from distributed import Worker
    from distributed.comm import core

    async def metric(_: Any) -> dict[str, Any]:
        return worker.state()

    made: Any = Worker
    connect: Any = core.connect
    reached = security.get_connection_args("worker") if security is not None else {}
    lost, waits_for = time.monotonic(), ""
    while not stopping.is_set():
        try:
            # A worker that is not let in does not say why, and asks ten times a second.
            (await connect(scheduler, timeout=_CONNECT_S, **reached)).abort()
            async with made(
                scheduler,
                nthreads=1,
                name=name,
                resources={worker.facts.role: 1},
                security=security,
                memory_limit=0,
                metrics={"tilewright": metric},
                silence_logs=50,
                death_timeout=20,
                local_directory=str(worker._folder),
                **PAGE,
            ) as connected:
                say(f"connected to {scheduler} as {connected.address}")
                waits_for = ""
                while connected.status.name == "running" and not stopping.is_set():
                    await asyncio.sleep(0.1)
            lost = time.monotonic()
            if not stopping.is_set():
                say(f"{scheduler} has gone; waiting for it")
        except (OSError, TimeoutError, RuntimeError, ValueError) as error:
            if (why := why_unreachable(error)) != waits_for:
                say(f"{scheduler}: {why}; waiting for it")
            waits_for = why
        if death_timeout_s is not None and time.monotonic() - lost > death_timeout_s:
            say(f"no scheduler at {scheduler} for {death_timeout_s:g} s")
            return
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(_RETRY_S)
