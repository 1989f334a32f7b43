"""Measuring for another machine: the side with the device (`tilewright measure FOLDER`).

Needs the runtime's wheel and NumPy, not the compiler. Each device has a worker process of its own,
so a program that crashes takes down nothing else; results are written one by one, so what was done
stays done.
"""

from __future__ import annotations

import argparse
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tilewright.errors import UserError
from tilewright.measure import benchmark_worker as tasks
from tilewright.measure import gpu_state
from tilewright.measure.benchmark_worker import RunRequest
from tilewright.measure.exchange import (
    OUTPUTS,
    Batch,
    Exchange,
    ManifestEntry,
    decode,
    encode,
    task_name,
)
from tilewright.measure.jobs import Job, WorkerTask
from tilewright.measure.pool import WorkerPool, WorkerStartError
from tilewright.measure.runtime import DeviceOptions

# What a manifest may ask for.
_TASKS: Mapping[str, WorkerTask[Any, Any]] = {
    task_name(task): task for task in (tasks.run, tasks.verify, tasks.time_program, tasks.compare)
}
_DEFAULT_TIMEOUT_S = 60.0
_WATCH_S = 0.5

Say = Callable[[str], None]


@dataclass
class AnswerCounts:
    """What became of the requests of one call."""

    done: int = 0
    failed: int = 0
    before: int = 0
    seconds: float = 0.0


@dataclass
class Station:
    """Measures batches on devices. `limit_s`: no request is begun after this many seconds; nor is
    one once `stop` says so."""

    exchange: Exchange
    devices: Sequence[DeviceOptions]
    say: Say = lambda text: None
    limit_s: float | None = None
    counts: AnswerCounts = field(default_factory=AnswerCounts)
    stop: Callable[[], bool] = lambda: False
    _pools: list[WorkerPool] = field(default_factory=list, init=False)
    _deadline: float | None = field(default=None, init=False)

    def run(self, watch: bool = False) -> AnswerCounts:
        """Measure every request that has no result.

        Args:
            watch: go on until the asking side has closed the folder.

        Returns:
            What became of the requests.

        Raises:
            UserError: no device can be opened, or a manifest is not one of this version's.
        """
        begin = time.monotonic()
        self._deadline = None if self.limit_s is None else begin + self.limit_s
        try:
            while not self._is_over():
                if not self.measure(self.exchange.batches()):
                    if not watch or self.exchange.closed:
                        break
                    time.sleep(_WATCH_S)
        finally:
            self.close()
            self.counts.seconds = time.monotonic() - begin
        return self.counts

    def measure(self, batches: Sequence[Batch]) -> int:
        """Measure what has no result in these batches; how many requests that were. The devices
        stay open.

        Args:
            batches: in the order in which they are done.

        Raises:
            UserError: a device cannot be opened, or a manifest is not one of this version's.
        """
        waiting = [(batch, entry) for batch in batches for entry in self._open(batch)]
        if waiting and not self._pools:
            self._pools += [WorkerPool(1, setup=Job(tasks.setup, one)) for one in self.devices]
        if waiting:
            self._measure(waiting, self._pools)
        return len(waiting)

    def close(self) -> None:
        """End the devices' workers."""
        while self._pools:
            self._pools.pop().close()

    def _is_over(self) -> bool:
        late = self._deadline is not None and time.monotonic() >= self._deadline
        return late or self.stop()

    def _open(self, batch: Batch) -> list[ManifestEntry]:
        done = batch.results()
        entries = batch.entries
        missing = [entry for entry in entries if entry.key not in done]
        if len(missing) < len(entries) and missing:
            self.say(f"{batch.folder.name}: {len(entries) - len(missing)} of {len(entries)} done")
        return missing

    def _measure(
        self, waiting: Sequence[tuple[Batch, ManifestEntry]], pools: Sequence[WorkerPool]
    ) -> None:
        """Share requests out over the devices, one at a time to each."""
        left: queue.SimpleQueue[tuple[Batch, ManifestEntry]] = queue.SimpleQueue()
        for one in waiting:
            left.put(one)
        lock = threading.Lock()
        errors: list[BaseException] = []

        def work(pool: WorkerPool, device: DeviceOptions) -> None:
            while not errors and not self._is_over():
                try:
                    batch, entry = left.get_nowait()
                except queue.Empty:
                    return
                try:
                    data = self._answer(batch, entry, pool, device)
                    with lock:
                        batch.add_result(data)
                        self.counts.done += 1
                        self.counts.failed += data.get("failure") is not None
                        self.say(_line(batch, entry, data))
                except BaseException as error:
                    errors.append(error)
                    return

        if len(pools) == 1:
            work(pools[0], self.devices[0])
        else:
            threads = [
                threading.Thread(target=work, args=pair, daemon=True)
                for pair in zip(pools, self.devices, strict=True)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if errors:
            raise errors[0]

    def _answer(
        self, batch: Batch, entry: ManifestEntry, pool: WorkerPool, device: DeviceOptions
    ) -> dict[str, Any]:
        task = _TASKS.get(entry.task)
        if task is None:
            raise UserError(f"{batch.folder}: '{entry.task}' is no task that a manifest may have")
        payload = decode(entry.payload, self.exchange.files)
        outputs = f"{entry.key}.npz"
        if isinstance(payload, RunRequest):
            (batch.folder / OUTPUTS).mkdir(exist_ok=True)
            payload = replace(payload, outputs=str(batch.folder / OUTPUTS / outputs))
        before = gpu_state.read(device.uri)
        (result,) = pool.run([Job(task, payload, entry.timeout_s or _DEFAULT_TIMEOUT_S)])
        data: dict[str, Any] = {"key": entry.key, "seconds": result.seconds, "device": device.uri}
        if before is not None:
            after = gpu_state.read(device.uri)
            data["state"] = [before.to_json(), after.to_json() if after else None]
        if result.failure is not None:
            # Traces have paths of this machine, and can be long.
            data["failure"] = encode(replace(result.failure, log=result.failure.log[-2000:]), None)
        else:
            value = outputs if isinstance(payload, RunRequest) else result.value
            data["value"] = encode(value, None)
        return data


def _line(batch: Batch, entry: ManifestEntry, data: dict[str, Any]) -> str:
    what = entry.task.rpartition(":")[2]
    failure = data.get("failure")
    outcome = f"{failure['kind']}: {failure['message']}" if failure else f"{data['seconds']:.2f} s"
    return f"{batch.folder.name} {entry.key} {what}: {outcome}"


def main(arguments: Sequence[str] | None = None) -> int:
    """`tilewright measure`: needs neither click nor rich, which come with the compiler's side.

    Args:
        arguments: of the command line; this process's if left out.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(
        prog="tilewright measure",
        description="Measure, on this machine's device, what `tilewright tune --runner` asks for "
        "in a folder. Needs the runtime's wheel and NumPy, not the compiler. What has a result is "
        "not measured again.",
        epilog="examples: tilewright measure measurements --device cuda://0; "
        "tilewright measure measurements --watch",
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="what --runner dir: names")
    parser.add_argument(
        "--device",
        metavar="URI",
        action="append",
        help="device of the runtime, such as cuda://0, hip, vulkan, local-sync; may be repeated: "
        "each measures a share (default: local-task)",
    )
    parser.add_argument("--threads", metavar="N", type=int, help="threads of local-task")
    parser.add_argument(
        "--watch", action="store_true", help="wait for more until the run has ended"
    )
    parser.add_argument("--limit", metavar="SECONDS", type=float, help="stop after this time")
    parser.add_argument("--quiet", action="store_true", help="say only how it ended")
    given = parser.parse_args(arguments)
    try:
        return _measure(given)
    except (UserError, WorkerStartError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: what has a result is kept", file=sys.stderr)
        return 130


def _measure(given: argparse.Namespace) -> int:
    if not given.folder.is_dir():
        raise UserError(f"{given.folder}: there is no such folder; it is what --runner dir: names")
    devices = [
        DeviceOptions(uri, given.threads if uri == "local-task" else None)
        for uri in given.device or ["local-task"]
    ]
    say: Say = (lambda text: None) if given.quiet else (lambda text: print(text, flush=True))
    station = Station(Exchange(given.folder), devices, say, given.limit)
    counts = station.run(given.watch)
    print(
        f"{counts.done} measured in {counts.seconds:.1f} s"
        + (f", {counts.failed} of them failed" if counts.failed else "")
    )
    return 0
