"""From a schedule to a function that runs: compiled by IREE in a process of its own, run in this.

The compiler works in a worker, so that nothing it does ends the user's process; the worker stays
for the next build. What is built is called with NumPy arrays, timed, compared with a reference.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright import scratch
from tilewright.argument import ArgumentType
from tilewright.errors import TilewrightError, UserError
from tilewright.measure.device_options import DeviceOptions
from tilewright.measure.inputs import random_array
from tilewright.measure.jobs import WorkerFailure
from tilewright.measure.runtime import Device, LoadedProgram
from tilewright.measure.statistics import Measurement
from tilewright.measure.timing import CAREFUL, TimingPolicy, measure
from tilewright.measure.verify import Comparison, compare
from tilewright.schedule import compiler
from tilewright.schedule.build_tasks import compile_schedule, schedule_request
from tilewright.schedule.counting import operations, reduction_terms
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.gpu_limits import check_limits
from tilewright.schedule.lower import Lowered, lower
from tilewright.schedule.nest import Buffer
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.types import BOOL, is_float, numpy_type
from tilewright.target import GpuTarget, Target, parse_target
from tilewright.trial import Status


@dataclass(frozen=True)
class Timing(Measurement):
    """A measurement of a schedule; `print` gives the median with its interval, and the rate.

    operations: of arithmetic in one call, as :func:`operations` counts them.
    """

    operations: int = 0

    @property
    def gflops(self) -> float:
        """10^9 operations a second, by the median."""
        return self.operations / self.median_s / 1e9

    def __str__(self) -> str:
        interval = self.interval()
        unit, scale = next(
            (u, s)
            for u, s in (("s", 1.0), ("ms", 1e3), ("us", 1e6))
            if interval.value * s >= 1 or u == "us"
        )
        low, median, high = (t * scale for t in (interval.low, interval.value, interval.high))
        rate = f", {self.gflops:.3g} GFLOP/s" if self.operations else ""
        return (
            f"{median:.4g} {unit} (95%: {low:.4g} to {high:.4g}, {len(self.samples)} samples){rate}"
        )


_DUMP = "--iree-hal-dump-executable-intermediates-to="
_DUMP_BINARIES = "--iree-hal-dump-executable-binaries-to="
_ASSEMBLY = (".s", ".ptx", ".rocmasm", ".spvasm", ".spv")


class BuildError(UserError):
    """The compiler does not take what a schedule lowers to; the message is its own."""


class Function:
    """A compiled schedule.

    Call it with one NumPy array for each placeholder, in the order of the arguments; it returns
    the output's array, a tuple for several. Arrays for the outputs may be given as well: they are
    filled, too.

    lowered: the loops. target: what it was compiled for. vmfb: the compiled module, which
    `iree-run-module --function=main` runs as well. build_s: seconds that building took.
    """

    def __init__(self, lowered: Lowered, target: Target, vmfb: bytes, build_s: float) -> None:
        self.lowered = lowered
        self.target = target
        self.vmfb = vmfb
        self.build_s = build_s
        program = lowered.program
        self._inputs = program.inputs
        self._outputs = program.outputs
        self._arguments = program.arguments
        self._loaded: LoadedProgram | None = None

    def __repr__(self) -> str:
        given = ", ".join(str(argument_type(b)) for b in self._inputs)
        made = ", ".join(str(argument_type(b)) for b in self._outputs)
        name = self.lowered.program.name
        return f"<te function {name}({given}) -> ({made}) for {self.target.name}>"

    def __call__(self, *arrays: Any) -> Any:
        """Run it. Raises UserError where the arrays do not fit."""
        inputs, outputs = self._split(arrays)
        results = self._program().outputs(self._bound(inputs)())
        made = [self._result(b, r) for b, r in zip(self._outputs, results, strict=True)]
        for given, result in zip(outputs, made, strict=False):
            given[...] = result
        return made[0] if len(made) == 1 else tuple(made)

    def bind(self, *arrays: Any) -> Callable[[], Any]:
        """A call with these arrays, which are put on the device now; it returns when the results
        are there, on the device. For timing with a clock of one's own."""
        inputs, _ = self._split(arrays)
        return self._bound(inputs)

    def benchmark(self, *arrays: Any, policy: TimingPolicy = CAREFUL, seed: int = 0) -> Timing:
        """Time it on the device; the arrays are there before the clock starts.

        Args:
            arrays: as for a call; without any, random data.
            policy: how many samples are taken.
            seed: of random data.

        Returns:
            `median_s` is the median in seconds, `samples` are all, `print` shows it in short.
        """
        inputs, _ = self._split(arrays) if arrays else (self.random(seed), ())
        measured = measure(self._bound(inputs), policy)
        own = {field.name: getattr(measured, field.name) for field in fields(measured)}
        return Timing(**own, operations=operations(self.lowered.program))

    def verify(
        self, reference: Any, *arrays: Any, seed: int = 0, reduction_length: int | None = None
    ) -> tuple[Comparison, ...]:
        """Compare the outputs with a reference; see :mod:`tilewright.measure.verify`.

        Args:
            reference: the expected array (a tuple for several outputs), or a function that makes it
                of the inputs, which it is given in float64 where they are floats.
            arrays: as for a call; without any, random data.
            seed: of random data.
            reduction_length: terms of the longest sum; by default the product of the reductions'
                extents.

        Returns:
            A comparison for each output.

        Raises:
            VerificationError: an output is wrong.
        """
        inputs, _ = self._split(arrays) if arrays else (self.random(seed), ())
        if callable(reference):
            wide = [
                a.astype(np.float64) if is_float(b.dtype) else a
                for a, b in zip(inputs, self._inputs, strict=True)
            ]
            expected = reference(*wide)
        else:
            expected = reference
        wanted = expected if isinstance(expected, tuple | list) else (expected,)
        if len(wanted) != len(self._outputs):
            raise UserError(
                f"verify: {len(wanted)} expected arrays for {len(self._outputs)} outputs"
            )
        results = self._program().outputs(self._bound(inputs)())
        length = reduction_length or reduction_terms(self.lowered)
        made = []
        for buffer, result, want in zip(self._outputs, results, wanted, strict=True):
            one = compare(
                self._result(buffer, result),
                np.asarray(want).reshape(buffer.shape),
                precision(buffer, self._inputs),
                length,
            )
            if not one.ok:
                raise VerificationError(buffer.name, one)
            made.append(one)
        return tuple(made)

    def random(self, seed: int = 0) -> list[NDArray[Any]]:
        """Random inputs: normal floats, small integers.

        Args:
            seed: equal seeds, equal data.
        """
        return [random_array(argument_type(b), seed, n) for n, b in enumerate(self._inputs)]

    def save(self, path: str | Path) -> Path:
        """Write the compiled module to a .vmfb file.

        Args:
            path: of the file.
        """
        file = Path(path)
        file.write_bytes(self.vmfb)
        return file

    def assembly(self) -> str:
        """The machine code of all kernels as text: assembly on CPUs, PTX on CUDA devices, and so
        on. It compiles once more."""
        with scratch.folder() as folder:
            flags = (f"{_DUMP}{folder}", f"{_DUMP_BINARIES}{folder}")
            _compiled(self.lowered, self.target, flags)
            files = sorted(f for f in folder.rglob("*") if f.suffix in _ASSEMBLY)
            return "\n".join(f.read_bytes().decode(errors="replace") for f in files)

    def _split(self, arrays: Sequence[Any]) -> tuple[list[NDArray[Any]], Sequence[NDArray[Any]]]:
        """The inputs, and the arrays for outputs where all arguments are given."""
        if len(arrays) == len(self._arguments) and len(arrays) != len(self._inputs):
            by_buffer = dict(zip(self._arguments, arrays, strict=True))
            inputs = [self._checked(b, by_buffer[b]) for b in self._inputs]
            return inputs, [self._checked(b, by_buffer[b]) for b in self._outputs]
        if len(arrays) != len(self._inputs):
            names = ", ".join(f"{b.name}: {argument_type(b)}" for b in self._inputs)
            raise UserError(f"{len(arrays)} arrays given, {len(self._inputs)} needed ({names})")
        return [self._checked(b, a) for b, a in zip(self._inputs, arrays, strict=True)], ()

    @staticmethod
    def _checked(buffer: Buffer, value: Any) -> NDArray[Any]:
        array: NDArray[Any] = np.asarray(value)
        dtype = numpy_type(buffer.dtype)
        if array.dtype != dtype or (array.shape != buffer.shape and array.size != 1):
            raise UserError(
                f"argument '{buffer.name}' is {array.dtype}{list(array.shape)}, needed is "
                f"{dtype}{list(buffer.shape)}"
            )
        return array.reshape(buffer.shape) if array.shape != buffer.shape else array

    @staticmethod
    def _result(buffer: Buffer, result: NDArray[Any]) -> NDArray[Any]:
        return result.view(np.bool_) if buffer.dtype == BOOL else result

    def _program(self) -> LoadedProgram:
        if self._loaded is None:
            self._loaded = _device(self.target).load(self.vmfb)
        return self._loaded

    def _bound(self, inputs: Sequence[NDArray[Any]]) -> Callable[[], Any]:
        device = _device(self.target)
        return self._program().bind("main", [device.upload(a) for a in inputs])


class VerificationError(TilewrightError):
    """An output that is not what it should be. `comparison` says where and by how much."""

    def __init__(self, name: str, comparison: Comparison) -> None:
        super().__init__(
            f"output '{name}' is wrong: {comparison.reason}; worst at {comparison.worst_index}: "
            f"{comparison.actual} where {comparison.expected} is expected "
            f"(allowed difference: {comparison.tolerance})"
        )
        self.comparison = comparison

    def __reduce__(self) -> Any:
        return _verification_error, (str(self), self.comparison)


def _verification_error(message: str, comparison: Comparison) -> VerificationError:
    made = VerificationError.__new__(VerificationError)
    Exception.__init__(made, message)
    made.comparison = comparison
    return made


def build(
    schedule: Schedule | Lowered,
    args: Sequence[Any] | None = None,
    target: str | Target = "cpu",
    name: str = "main",
    *,
    threads: int | None = None,
    flags: tuple[str, ...] = (),
) -> Function:
    """Compile a schedule for a target.

    Args:
        schedule: the schedule, or what `lower` made of it.
        args: the tensors that it is called with (see `lower`).
        target: `cpu` (this machine), `cpu:znver4`, `cuda:sm_80`, `rocm:gfx942`, `vulkan:ampere`, or
            a :class:`tilewright.Target`.
        name: of the function.
        threads: of the CPU that `parallel` loops run on, by default one for each core; with 1 they
            run in the calling thread (device `local-sync`).
        flags: more flags of `iree-compile`.

    Returns:
        The function, ready to be called.

    Raises:
        ScheduleError: the schedule cannot be carried out, or needs more of a GPU than there is.
        BuildError: the compiler refuses it, crashes on it, or does not come to an end.
    """
    start = time.perf_counter()
    chosen = parse_target(target, threads) if isinstance(target, str) else target
    if isinstance(schedule, Lowered):
        lowered = schedule
    elif args is None:
        raise ScheduleError("build: give the schedule's tensors, build(s, [A, B, C])")
    else:
        # The worker starts while this process lowers.
        compiler.worker()
        lowered = lower(schedule, args, name)
    if not lowered.program.outputs:
        raise ScheduleError(
            "build: none of its arguments is computed by the schedule, so there is nothing to "
            "return; give an output as well"
        )
    if isinstance(chosen, GpuTarget):
        check_limits(lowered.program, chosen)
    vmfb = _compiled(lowered, chosen, flags)
    return Function(lowered, chosen, vmfb, time.perf_counter() - start)


def _compiled(lowered: Lowered, target: Target, more: tuple[str, ...] = ()) -> bytes:
    compiled = compiler.ask(compile_schedule, schedule_request(lowered.program, target, more))
    if not isinstance(compiled, WorkerFailure):
        return compiled
    if compiled.compile_status is Status.INVALID:
        raise ScheduleError(compiled.message)
    what = {
        Status.COMPILE_TIMEOUT: "the compiler does not come to an end with this schedule",
        Status.CRASHED: "the compiler crashes on this schedule",
    }.get(compiled.compile_status, "the compiler does not take this schedule")
    raise BuildError(f"{lowered.program.name} for {target.name}: {what}: {compiled.message}")


def device_options(target: Target) -> DeviceOptions:
    """The device that runs what was compiled for a target.

    Args:
        target: as for `build`.
    """
    if isinstance(target, GpuTarget):
        return DeviceOptions(target.device)
    return DeviceOptions.cpu(target.cores)


def _device(target: Target) -> Device:
    return _opened(device_options(target))


@functools.cache
def _opened(options: DeviceOptions) -> Device:
    return Device(options)


def argument_type(buffer: Buffer) -> ArgumentType:
    """How a buffer is handed over.

    Args:
        buffer: an argument of the function.
    """
    return ArgumentType("i1" if buffer.dtype == BOOL else buffer.dtype, buffer.shape)


def precision(output: Buffer, inputs: Sequence[Buffer]) -> str:
    """The type that decides how exact an output is: the coarsest float type among its own and the
    inputs', or its own where that is no float.

    Args:
        output: a buffer that the function fills.
        inputs: those that it reads.

    Returns:
        An element type, as `measure.verify` takes it.
    """
    if not is_float(output.dtype):
        return argument_type(output).element_type
    digits = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}
    types = [b.dtype for b in (output, *inputs) if is_float(b.dtype)]
    return min(types, key=lambda dtype: digits[dtype])
