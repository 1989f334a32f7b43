"""Requests that came from elsewhere, answered on a device of this machine.

What is asked for in a round cannot know how fast the machine is by then, so each request asks for
the default's time before its own. One device answers many in a row: the default is timed when it
begins with them, again every few candidates, and what it took in between is handed to the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tilewright.errors import UserError
from tilewright.measure import benchmark_worker as tasks
from tilewright.measure import gpu_state
from tilewright.measure.benchmark_worker import RunRequest, TimeReply, TimeRequest, VerifyRequest
from tilewright.measure.encoding import Files, ManifestEntry, decode, encode, task_name
from tilewright.measure.jobs import Job, Result, WorkerFailure, WorkerTask
from tilewright.measure.pool import WorkerPool
from tilewright.measure.timing import InterleavedBaseline
from tilewright.measure.ways import time_ways

# What a request may ask for.
_TASKS: Mapping[str, WorkerTask[Any, Any]] = {
    task_name(task): task
    for task in (tasks.run, tasks.verify, tasks.time_program, tasks.compare, time_ways)
}
_DEFAULT_TIMEOUT_S = 60.0
# Of a program that hung or crashed when it was timed nothing more is asked.
_FATAL = ("crashed", "timeout")


@dataclass
class _KnownDefault:
    """What a default took, and how many candidates ago."""

    seconds: float
    since: int = 0


class Answering:
    """Answers requests one after the other, on one device.

    pool: one worker with the device open. uri: of the device. files: what requests name. outputs:
    a folder for the results of programs that are run to keep them.
    """

    def __init__(self, pool: WorkerPool, uri: str, files: Files, outputs: Path) -> None:
        self._pool = pool
        self._uri = uri
        self._files = files
        self._outputs = outputs
        self._defaults: dict[object, _KnownDefault] = {}
        # The fastest whose results are right, by the default that it is compared with; and the last
        # that was timed, whose results are looked at next.
        self._best_s: dict[object, float] = {}
        self._timed: tuple[str, object, float] | None = None
        self._broken: dict[str, WorkerFailure] = {}

    def answer(self, entry: ManifestEntry) -> dict[str, Any]:
        """Do what a request asks for.

        Args:
            entry: the request.

        Returns:
            The line of a result: `value` or `failure`.

        Raises:
            UserError: it asks for what nobody may ask for, or names a file that is not there.
        """
        task = _TASKS.get(entry.task)
        if task is None:
            raise UserError(f"'{entry.task}' is no task that a request may have")
        payload = decode(entry.payload, self._files)
        outputs = f"{entry.key}.npz"
        if isinstance(payload, RunRequest):
            self._outputs.mkdir(parents=True, exist_ok=True)
            payload = replace(payload, outputs=str(self._outputs / outputs))
        before = gpu_state.read(self._uri)
        result = self._result(Job(task, payload, entry.timeout_s or _DEFAULT_TIMEOUT_S))
        data: dict[str, Any] = {"key": entry.key, "seconds": result.seconds, "device": self._uri}
        if before is not None:
            after = gpu_state.read(self._uri)
            data["state"] = [before.to_json(), after.to_json() if after else None]
        if result.failure is not None:
            # Traces have paths of this machine, and can be long.
            data["failure"] = encode(replace(result.failure, log=result.failure.log[-2000:]), None)
        else:
            value = outputs if isinstance(payload, RunRequest) else result.value
            data["value"] = encode(value, None)
        return data

    def _result(self, job: Job[Any, Any]) -> Result[Any]:
        request = job.request
        if isinstance(request, VerifyRequest) and str(request.vmfb) in self._broken:
            return Result(job, self._broken[str(request.vmfb)])
        if not isinstance(request, TimeRequest):
            (result,) = self._pool.run([job])
            if isinstance(request, VerifyRequest):
                self._note_checked(str(request.vmfb), result)
            return result
        key = (request.baseline, request.repeats, request.function, request.baseline_inputs)
        known = self._defaults.get(key) if request.baseline_first else None
        if known is not None and known.since < InterleavedBaseline.every:
            job = replace(job, request=replace(request, baseline_first=False))
        else:
            known = None
        best_s = min((one for one in (request.best_s, self._best_s.get(key)) if one), default=None)
        if best_s is not None:
            job = replace(job, request=replace(job.request, best_s=best_s))
        (result,) = self._pool.run([job])
        failure = result.failure
        if failure is not None:
            if failure.kind in _FATAL:
                self._broken[str(request.vmfb)] = failure
            return result
        reply: TimeReply = result.value
        if not reply.measurement.dropped:
            self._timed = str(request.vmfb), key, reply.measurement.quartile_s
        if known is not None:
            reply = replace(reply, baseline_before_s=known.seconds)
            known.since += 1
        if request.baseline_first:
            latest = reply.baseline_after_s or (None if known else reply.baseline_before_s)
            if latest is not None:
                self._defaults[key] = _KnownDefault(latest, 1)
        return replace(result, outcome=reply)

    def _note_checked(self, vmfb: str, result: Result[Any]) -> None:
        """What was timed last is the best so far where its results are right, and it is."""
        timed, self._timed = self._timed, None
        if timed is None or timed[0] != vmfb or result.failure is not None:
            return
        if all(one.ok for one in result.value):
            _, key, seconds = timed
            self._best_s[key] = min(seconds, self._best_s.get(key, seconds))
