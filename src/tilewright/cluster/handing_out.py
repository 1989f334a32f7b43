"""What a run compiles and measures with, where a cluster does it: a pool and a benchmark like those
of one machine.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.cluster.dispatching import COMPILE, CPU, DEVICE, WorkItem
from tilewright.cluster.link import Cluster
from tilewright.cluster.portable import PortableTask, portable_tasks
from tilewright.errors import UserError
from tilewright.measure.encoding import ManifestEntry, decode
from tilewright.measure.jobs import (
    Job,
    JobRunner,
    Reply,
    Request,
    Result,
    WorkerFailure,
)
from tilewright.measure.measurement_key import MeasurementKey
from tilewright.measure.remote import RemoteBenchmark, Stopped
from tilewright.measure.timing import TimingPolicy
from tilewright.target import Target

_COMPILE_LIMIT_S = 60.0
_LEAST_ROUND, _MOST_ROUND = 8, 512
# Candidates that are measured in one round for each device, and compiled for each compile worker.
_PER_DEVICE, _PER_COMPILER = 8, 4


class ClusterPool(JobRunner):
    """Compile workers of this machine, and a cluster for all that can travel.

    cluster: where that goes; with no compile worker in it nothing does. stop: ends waiting.
    """

    def __init__(self, here: JobRunner, cluster: Cluster) -> None:
        self.cluster = cluster
        self.stop: Callable[[], bool] = lambda: False
        self._here = here
        self._asked = 0

    def run(
        self,
        jobs: Iterable[Job[Request, Reply]],
        on_result: Callable[[Result[Reply]], object] | None = None,
    ) -> list[Result[Reply]]:
        """As there; what can travel is done by the cluster, the rest here, one after the other.

        Args:
            jobs: all to be done.
            on_result: called with each result as it comes.
        """
        wanted = list(jobs)
        results: list[Result[Reply] | None] = [None] * len(wanted)
        away: list[tuple[int, PortableTask, ManifestEntry]] = []
        here: list[int] = []
        for position, job in enumerate(wanted):
            packed = self._packed(job)
            if packed is None:
                here.append(position)
            else:
                away.append((position, *packed))
        left = len(away)

        def settle(position: int, portable: PortableTask) -> Callable[[Mapping[str, Any]], None]:
            def settled(data: Mapping[str, Any]) -> None:
                nonlocal left
                left -= 1
                result = self._unpacked(wanted[position], portable, data)
                results[position] = result
                if on_result:
                    on_result(result)

            return settled

        for position, portable, entry in away:
            label = str(entry.payload.get("group", ""))
            limit_s = entry.timeout_s or _COMPILE_LIMIT_S
            item = WorkItem(entry.key, COMPILE, group=label, limit_s=limit_s)
            more = {"role": COMPILE}
            self.cluster.submit(item, entry, more, settle(position, portable))
        if here:
            done = self._here.run([wanted[position] for position in here], on_result)
            for position, result in zip(here, done, strict=True):
                results[position] = result
        self.cluster.wait(lambda: left == 0, self.stop)
        stopped = WorkerFailure("timeout", "the run was asked to stop")
        return [r if r is not None else Result(wanted[i], stopped) for i, r in enumerate(results)]

    def _packed(self, job: Job[Any, Any]) -> tuple[PortableTask, ManifestEntry] | None:
        """What is sent for a job; None for one that stays here."""
        portable = next((p for p in portable_tasks().values() if p.task is job.task), None)
        if portable is None or not self.cluster.count(COMPILE):
            return None
        payload = portable.pack(job.request, self.cluster.files)
        if payload is None:
            return None
        self._asked += 1
        return portable, ManifestEntry(f"c{self._asked}", portable.name, payload, job.timeout_s)

    def _unpacked(
        self, job: Job[Any, Any], portable: PortableTask, data: Mapping[str, Any]
    ) -> Result[Any]:
        seconds = float(data.get("seconds", 0.0))
        try:
            if data.get("failure") is not None:
                return Result(job, decode(data["failure"], None), seconds)
            reply = portable.unpack_reply(job.request, data["value"], self.cluster.files)
            return Result(job, reply, seconds)
        except (UserError, OSError, KeyError, TypeError, ValueError) as error:
            message = f"what a worker sent back cannot be used: {error}"
            return Result(job, WorkerFailure("error", message), seconds)


class ClusterBenchmark(RemoteBenchmark):
    """A benchmark on devices of a cluster. What compares programs with one another is one request,
    so it runs on one of them.

    cluster: with the devices. label: that a device must have. threads: of one that is a processor;
    None: as many as its worker has.
    """

    def __init__(
        self,
        cluster: Cluster,
        label: str,
        threads: int | None = None,
        policy: TimingPolicy | None = None,
    ) -> None:
        super().__init__(cluster.files, policy)
        self.cluster = cluster
        self.label = label
        self._more: dict[str, Any] = {"role": DEVICE}
        self._threads = threads
        if threads is not None:
            self._more["device"] = {"threads": threads}
        most = max(
            _LEAST_ROUND,
            _PER_DEVICE * cluster.count(DEVICE),
            _PER_COMPILER * cluster.count(COMPILE),
        )
        self.round_size = min(_MOST_ROUND, most)

    def measurement_key(self, target: Target) -> MeasurementKey | None:
        """That of the devices' machines, as their workers tell it; None where they do not agree.

        Args:
            target: what programs are compiled for.
        """
        told = self.cluster.measures_on(self.label)
        return None if told is None else MeasurementKey.from_json(told).of_run(target)

    def runs_on(self, threads: int) -> bool:
        """As there: with those that devices are told of.

        Args:
            threads: of a program.
        """
        return self._threads == threads

    def prefetch(self, jobs: Sequence[Job[Any, Any]], label: str = "") -> None:
        """As there; what a stop leaves out of a round is measured when it is asked for again.

        Args:
            jobs: what will be asked for.
            label: what it is for, in words.
        """
        with contextlib.suppress(Stopped):
            super().prefetch(jobs, label)

    def close(self) -> None:
        """Leave the cluster to its pool, which closes it."""

    def _measure(self, entries: Sequence[ManifestEntry], label: str) -> None:
        wanted = {entry.key for entry in entries}

        def keep(data: Mapping[str, Any]) -> None:
            self._answers[str(data["key"])] = data
            wanted.discard(str(data["key"]))

        for entry in entries:
            item = WorkItem(entry.key, DEVICE, self.label, _group(entry), entry.timeout_s or 60.0)
            self.cluster.submit(item, entry, self._more, keep)
        # What is asked for by itself the run needs, also when it goes on to its end after a stop.
        stop = self.stop if len(entries) > 1 else lambda: False
        self.cluster.wait(lambda: not wanted, stop)
        if wanted:
            raise Stopped

    def _outputs(self, data: Mapping[str, Any]) -> Path:
        return self.files.path(str(data["outputs"]))


def _group(entry: ManifestEntry) -> str:
    """What is measured together: candidates of one task have one default, and its check's data."""
    payload = entry.payload if isinstance(entry.payload, dict) else {}
    inputs = payload.get("inputs")
    return json.dumps(inputs, sort_keys=True)[:200] if inputs is not None else entry.task


def device_label(asked: str) -> str:
    """The label that a device must have for what `--device` or a target asks for.

    Args:
        asked: a device of the runtime, or a label that workers were given.
    """
    return CPU if asked.startswith("local-") else asked
