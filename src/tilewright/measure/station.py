"""Measuring for another machine: the side with the device (`tilewright measure FOLDER`).

Needs the runtime's wheel and NumPy, not the compiler. Programs run in a worker process, so one that
crashes takes down nothing else; results are written one by one, so what was done stays done.
Several stations, here or elsewhere, may serve one folder: each claims what it measures.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.errors import UserError
from tilewright.measure import benchmark_worker as tasks
from tilewright.measure.answering import Answering
from tilewright.measure.device_lock import DeviceLock
from tilewright.measure.device_options import DeviceOptions
from tilewright.measure.encoding import ManifestEntry
from tilewright.measure.exchange import OUTPUTS, Batch, Exchange, station_name
from tilewright.measure.jobs import Job
from tilewright.measure.pool import WorkerPool, WorkerStartError

_WATCH_S = 0.5

Say = Callable[[str], None]


@dataclass
class AnswerCounts:
    """What became of the requests of one call. elsewhere: claimed by other stations."""

    done: int = 0
    failed: int = 0
    elsewhere: int = 0
    seconds: float = 0.0


class Station:
    """Measures what has no result in a folder, on one device.

    exchange: the folder. device: which, and how to open it. say: told what is done. limit_s: no
    request is begun after this many seconds.
    """

    def __init__(
        self,
        exchange: Exchange,
        device: DeviceOptions,
        say: Say = lambda text: None,
        limit_s: float | None = None,
    ) -> None:
        self.exchange = exchange
        self.device = device
        self.say = say
        self.limit_s = limit_s
        self.name = station_name()
        self.counts = AnswerCounts()
        self._pool: WorkerPool | None = None
        self._lock = DeviceLock(device.uri)

    def run(self, watch: bool = False) -> AnswerCounts:
        """Measure every request that has no result and is no other station's.

        Args:
            watch: go on until the asking side has closed the folder.

        Returns:
            What became of the requests.

        Raises:
            UserError: the device cannot be opened, or a manifest is not one of this version's.
        """
        begin = time.monotonic()
        end = None if self.limit_s is None else begin + self.limit_s
        try:
            while end is None or time.monotonic() < end:
                if not self._measure(end):
                    if not watch or self.exchange.closed:
                        break
                    time.sleep(_WATCH_S)
        finally:
            if self._pool is not None:
                self._pool.close()
            self.counts.seconds = time.monotonic() - begin
        return self.counts

    def _measure(self, end: float | None) -> int:
        """Measure all that may be measured now; how many requests that were."""
        before = self.counts.done
        self.counts.elsewhere = 0
        for batch in self.exchange.batches():
            done = batch.results()
            entries = batch.entries
            missing = [entry for entry in entries if entry.key not in done]
            if len(missing) < len(entries) and missing:
                self.say(
                    f"{batch.folder.name}: {len(entries) - len(missing)} of {len(entries)} done"
                )
            answering: Answering | None = None
            for entry in missing:
                if end is not None and time.monotonic() >= end:
                    break
                if not batch.claim(entry, self.name):
                    self.counts.elsewhere += 1
                    continue
                try:
                    if entry.key in batch.results():
                        continue
                    answering = answering or self._answering(batch)
                    with self._lock.held():
                        data = answering.answer(entry)
                    batch.add_result(data, self.name)
                finally:
                    batch.release(entry)
                self.counts.done += 1
                self.counts.failed += data.get("failure") is not None
                self.say(_line(batch, entry, data))
        return self.counts.done - before

    def _answering(self, batch: Batch) -> Answering:
        if self._pool is None:
            self._pool = WorkerPool(1, setup=Job(tasks.setup, self.device))
        return Answering(self._pool, self.device.uri, self.exchange.files, batch.folder / OUTPUTS)


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
        default="local-task",
        help="device of the runtime, such as cuda://0, hip, vulkan, local-sync (default: "
        "local-task); for several devices start this command once for each",
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
    uri = given.device
    device = DeviceOptions(uri, given.threads if uri == "local-task" else None)
    say: Say = (lambda text: None) if given.quiet else (lambda text: print(text, flush=True))
    counts = Station(Exchange(given.folder), device, say, given.limit).run(given.watch)
    print(
        f"{counts.done} measured in {counts.seconds:.1f} s"
        + (f", {counts.failed} of them failed" if counts.failed else "")
        + (f"; {counts.elsewhere} are being measured by other stations" if counts.elsewhere else "")
    )
    return 0
