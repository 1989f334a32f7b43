"""Measuring programs on a device from the main process: one worker, one request at a time.

    with Benchmark(DeviceOptions.cpu(threads=2)) as bench:
        inputs = random_inputs(folder, types, seed=0)
        baseline = InterleavedBaseline("default.vmfb")
        outcome = bench.time("candidate.vmfb", inputs, repeats=16, baseline=baseline)
        if isinstance(outcome, Measurement):
            print(outcome.time_s)

Every method returns a WorkerFailure instead of its result when the program crashed, hung or
raised; the next call works all the same. Raises WorkerStartError if the device cannot be opened.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from tilewright.measure import benchmark_worker as tasks
from tilewright.measure.benchmark_worker import (
    CompareRequest,
    RunRequest,
    TimeRequest,
    VerifyRequest,
    Vmfb,
)
from tilewright.measure.comparison import ComparisonPolicy, Finalist, judge_all
from tilewright.measure.device_lock import DeviceLock
from tilewright.measure.device_options import NO_PARAMETERS, DeviceOptions, Parameters
from tilewright.measure.inputs import InputSet, read_outputs
from tilewright.measure.jobs import Job, Reply, Request, WorkerFailure, WorkerTask
from tilewright.measure.measurement_key import MeasurementKey, measurement_key
from tilewright.measure.pool import WorkerPool
from tilewright.measure.statistics import Measurement
from tilewright.measure.timing import InterleavedBaseline, TimingPolicy
from tilewright.measure.verify import Comparison
from tilewright.target import Target


class Benchmark:
    """The benchmark worker of one device.

    policy: how candidates are timed unless a call says otherwise.
    timeout_s: seconds after which a request's process is killed.
    memory_limit: bytes of private memory of the worker (None: no limit; leave it so for GPUs).
    """

    # How many candidates are best measured together: 1 where each answer comes at once.
    round_size = 1

    def __init__(
        self,
        device: DeviceOptions | None = None,
        *,
        policy: TimingPolicy | None = None,
        timeout_s: float = 60.0,
        memory_limit: int | None = None,
    ) -> None:
        self.device = device or DeviceOptions()
        self.policy = policy or TimingPolicy()
        self._lock = DeviceLock(self.device.uri)
        self._pool = WorkerPool(
            1,
            setup=Job(tasks.setup, self.device),
            timeout_s=timeout_s,
            memory_limit=memory_limit,
            environment=self.device.environment,
        )

    def measurement_key(self, target: Target) -> MeasurementKey | None:
        """What is measured here holds for this; None where that is not known.

        Args:
            target: what programs are compiled for, with the threads that they run on.
        """
        return measurement_key(target, self.device.uri)

    def runs_on(self, threads: int) -> bool:
        """Whether programs run on a processor, with so many threads.

        Args:
            threads: of a program.
        """
        return self.device == DeviceOptions.cpu(threads)

    def load(self, inputs: InputSet, *, timeout_s: float | None = None) -> WorkerFailure | None:
        """Put inputs on the device ahead of their first use.

        Args:
            inputs: the arguments of the programs to come.
            timeout_s: seconds; the benchmark's own if left out.

        Returns:
            None, or why they could not be loaded.
        """
        return self.ask(tasks.load, inputs, timeout_s)

    def run(
        self,
        vmfb: Vmfb,
        inputs: InputSet,
        outputs: Path,
        *,
        function: str = tasks.MAIN,
        parameters: Parameters = NO_PARAMETERS,
        timeout_s: float | None = None,
    ) -> list[NDArray[Any]] | WorkerFailure:
        """Run once; the results, which also are in the .npz file `outputs`.

        Args:
            vmfb: path of the compiled program, or its bytes.
            inputs: its arguments.
            outputs: the .npz file that the results are written to.
            function: of the program.
            parameters: its weights.
            timeout_s: seconds; the benchmark's own if left out.

        Returns:
            One array for each result, or why there are none.
        """
        request = RunRequest(vmfb, inputs, str(outputs), function, parameters)
        value = self.ask(tasks.run, request, timeout_s)
        return value if isinstance(value, WorkerFailure) else read_outputs(Path(value))

    def verify(
        self, request: VerifyRequest, *, timeout_s: float | None = None
    ) -> list[Comparison] | WorkerFailure:
        """Run once; what `verify.compare` says of each result.

        Args:
            request: the program, its arguments, what is expected, and how closely.
            timeout_s: seconds; the benchmark's own if left out.

        Returns:
            A comparison for each output, or why there is none.
        """
        return self.ask(tasks.verify, request, timeout_s)

    def time(
        self,
        vmfb: Vmfb,
        inputs: InputSet,
        *,
        repeats: int = 1,
        best_s: float | None = None,
        baseline: InterleavedBaseline | None = None,
        policy: TimingPolicy | None = None,
        parameters: Parameters = NO_PARAMETERS,
        function: str = tasks.MAIN,
        timeout_s: float | None = None,
    ) -> Measurement | WorkerFailure:
        """Time a program: `function`, or `bench` (which runs it `repeats` times) if repeats > 1.

        Args:
            vmfb: path of the compiled program, or its bytes.
            inputs: its arguments.
            repeats: executions in one call.
            best_s: the best corrected time so far; a candidate far above it is dropped early.
            baseline: corrects for drift, and is timed when it is due.
            policy: how it is timed; the benchmark's own if left out.
            parameters: its weights.
            function: of the program.
            timeout_s: seconds; the benchmark's own if left out.

        Returns:
            The samples, with the machine's drift, or why there are none.
        """
        # A round is asked for before any of its answers are there.
        drift = baseline.drift if baseline and self.round_size == 1 else 1.0
        request = TimeRequest(
            vmfb,
            inputs,
            policy or self.policy,
            repeats,
            best_s * drift if best_s is not None else None,
            baseline.vmfb if baseline else None,
            baseline.due if baseline else False,
            parameters,
            function,
            baseline.inputs if baseline else None,
            baseline.parameters if baseline else None,
            baseline.reference_s if baseline else None,
            # One quotient may be as far off as is corrected, and the best's the other way.
            baseline.limit**-2 if baseline else 0.0,
        )
        reply = self.ask(tasks.time_program, request, timeout_s)
        if isinstance(reply, WorkerFailure):
            return reply
        if baseline is None:
            return reply.measurement
        if reply.baseline_before_s is not None:
            baseline.observe(reply.baseline_before_s)
        return baseline.correct(reply.measurement, reply.baseline_after_s)

    def compare_interleaved(
        self,
        vmfbs: Sequence[Vmfb],
        inputs: InputSet | Sequence[InputSet],
        *,
        repeats: int | Sequence[int] = 1,
        policy: ComparisonPolicy | None = None,
        parameters: Parameters | Sequence[Parameters] | None = None,
        function: str = tasks.MAIN,
        timeout_s: float | None = None,
    ) -> list[Finalist] | WorkerFailure:
        """Judge programs against the first of them, the default, in interleaved rounds.

        All programs are loaded at once, each with its own parameters in memory.

        Args:
            vmfbs: paths or bytes of the programs; the first is the default.
            inputs: the arguments, of all or of each.
            repeats: executions in one call, one number for all or one for each.
            policy: how they are compared.
            parameters: weights, for all or for each.
            function: of the programs.
            timeout_s: seconds for all together; the benchmark's own if left out.

        Returns:
            One verdict for each program in their order, or why there is none.

        Raises:
            ValueError: there is nothing to compare.
        """
        if not vmfbs:
            raise ValueError("nothing to compare")
        policy = policy or ComparisonPolicy()
        counts = (repeats,) * len(vmfbs) if isinstance(repeats, int) else tuple(repeats)
        given = parameters or Parameters()
        weights = (given,) * len(vmfbs) if isinstance(given, Parameters) else tuple(given)
        sets = (inputs,) * len(vmfbs) if isinstance(inputs, InputSet) else tuple(inputs)
        request = CompareRequest(tuple(vmfbs), sets, policy, counts, weights, function)
        value = self.ask(tasks.compare, request, timeout_s)
        return value if isinstance(value, WorkerFailure) else judge_all(value, policy)

    def ahead(self, label: str = "") -> contextlib.AbstractContextManager[None]:
        """Where a round is larger than 1: what is asked for inside, with answers that mean nothing,
        is measured together at its end; asking again then finds the answers.

        Args:
            label: what the round is for, in words.
        """
        return contextlib.nullcontext()

    def close(self) -> None:
        """End the worker."""
        self._pool.close()

    def __enter__(self) -> Benchmark:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(
        self, task: WorkerTask[Request, Reply], request: Request, timeout_s: float | None = None
    ) -> Reply | WorkerFailure:
        """Run a task in the worker: its reply, or why there is none.

        Args:
            task: a task of the benchmark worker's.
            request: what is asked.
            timeout_s: seconds; the benchmark's own if left out.
        """
        # The one device is every process's: two that measure at once measure each other.
        with self._lock.held():
            return self._pool.ask(task, request, timeout_s)
