"""IREE: with its default flags, with a variant's, and tuned."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilewright.compare.comparison_options import CompareOptions, Place
from tilewright.compare.providers.interface import (
    Built,
    PreparedTask,
    PrepareRequest,
    Provider,
    SearchPoint,
    Threads,
)
from tilewright.compare.workloads import ComparedWorkload, ProviderTask
from tilewright.errors import UserError
from tilewright.measure.device_options import DeviceOptions, Parameters, schedule_as_batch
from tilewright.measure.in_flight import IN_FLIGHT_FLAG, InFlight
from tilewright.measure.runtime import Device
from tilewright.target import Target
from tilewright.toolchain import Toolchain, installed_version
from tilewright.tuning.events import Event, ProgramMeasured, TrialDone
from tilewright.tuning.variants import find_variant

_COMPILE_TIMEOUT_S = 1800.0
_WORKER_NAME = "iree-worker"


class Iree(Provider):
    """`iree-compile` with the flags of the target and the user's own, run by IREE's runtime.

    An artifact is the program's path, or that and how to run it where it is not the place's way.
    """

    name = "iree"
    about = "IREE with its default flags"
    modules = ("iree.compiler", "iree.runtime")
    pip = "'iree-base-compiler~=3.13.0' 'iree-base-runtime~=3.13.0'"

    def reason_against_target(self, target: Target) -> str:
        return ""

    def reason_against(self, workload: ComparedWorkload, target: Target) -> str:
        return ""

    flags: tuple[str, ...] = ()

    def build(self, task: ProviderTask, options: CompareOptions, folder: Path) -> Built:
        vmfb = folder / "program.vmfb"
        outcome = Toolchain().compile(
            task.mlir,
            vmfb,
            (*task.flags, *self.flags, *in_flight_flags(options)),
            timeout_s=_COMPILE_TIMEOUT_S,
        )
        if not outcome.ok:
            raise UserError(f"it does not compile: {outcome.error}")
        return Built(str(vmfb), " ".join(self.flags))

    def open(self, place: Place) -> None:
        self._is_gpu = place.is_gpu
        self._device = Device(place.options)
        self._devices = {place.options: self._device}

    def version(self) -> str:
        return " ".join(
            f"{name} {installed_version(name)}"
            for name in ("iree-base-compiler", "iree-base-runtime")
        )

    def threads(self) -> Threads:
        options = self._device.options
        if self._is_gpu:
            return Threads(None, f"{options.uri}: the host's clock around calls in flight")
        if options.threads is None:
            return Threads(1, f"{options.uri}: the calling thread computes")
        names = [_thread_name(task) for task in Path("/proc/self/task").glob("*")]
        workers = sum(name.startswith(_WORKER_NAME) for name in names)
        return Threads(workers or None, f"{options.uri}: its threads named {_WORKER_NAME}-N")

    def prepare(self, request: PrepareRequest, arguments: Sequence[Any]) -> PreparedTask:
        task, artifact = request.task, request.built.artifact
        vmfb, way = artifact if isinstance(artifact, tuple) else (artifact, self._device.options)
        # Workers are what the thread is that starts them, and so is who waits for them.
        schedule_as_batch(way.batch)
        if way not in self._devices:
            self._devices[way] = Device(way)
        device = self._devices[way]
        program = device.load(vmfb, Parameters(task.parameters))
        on_device = device.arguments(task.inputs)
        if self._is_gpu:
            calls = InFlight(device, program, task.function, on_device)
            return PreparedTask(calls.call, program.outputs, kept=(program,), timed=calls.timed)
        return PreparedTask(
            program.bind(task.function, on_device),
            program.outputs,
            kept=(program, on_device),
        )


class IreeVariant(Iree):
    """IREE with the flags of one of the tuner's whole-program variants."""

    name = "iree-variant"
    about = "IREE as a whole-program variant, such as iree-variant:data-tiling"
    takes = "NAME"

    def __init__(self, argument: str = "") -> None:
        super().__init__(argument)
        self.flags = find_variant(argument).flags


class IreeTuned(Iree):
    """What `tilewright tune` makes of the program: from the database, with a budget also from a
    search here."""

    name = "iree-tuned"
    about = "IREE tuned by tilewright: from the database, or within --budget"
    searches = True
    kernels = "on"

    def build(self, task: ProviderTask, options: CompareOptions, folder: Path) -> Built:
        from tilewright import api
        from tilewright.tuned import way_to_run
        from tilewright.tuning.apply import apply
        from tilewright.tuning.outputs import read_manifest

        start = time.perf_counter()
        best: dict[str, Any] = {"whole": None, "trials": 0}
        progress: list[SearchPoint] = []

        def listen(event: Event) -> None:
            """The whole program's best so far: a variant that was measured, or the trials' gain."""
            if isinstance(event, ProgramMeasured) and event.time_s is not None:
                whole = best["whole"]
                best["whole"] = event.time_s if whole is None else min(whole, event.time_s)
            elif isinstance(event, TrialDone) and event.best_s is not None:
                best["trials"] = event.done
                best[event.task] = min(1.0, event.best_s / event.default_s)
            else:
                return
            gains = [v for k, v in best.items() if k not in ("whole", "trials")]
            if best["whole"] is not None:
                # One dispatch does the work of an operation; of a program this is a bound.
                seconds = best["whole"] * min(gains, default=1.0)
                point = SearchPoint(time.perf_counter() - start, best["trials"], seconds)
                if not task.workload.is_program:
                    progress.append(point)

        output = folder / "tuned"
        result = api.tune(
            task.mlir,
            target=task.target.name,
            threads=task.target.cores,
            device=options.place.device or None,
            function=task.function,
            inputs=options.inputs,
            parameters=dict(task.parameters),
            kernels=self.kernels,
            iree_flags=(*_own_flags(task), *options.iree_flags),
            max_trials=options.budget.trials if options.budget else 1,
            time_limit=options.budget.seconds,
            db=options.db,
            seed=options.seed,
            output=output,
            on_event=listen,
        )
        vmfb = output / "program.vmfb"
        way = ""
        artifact: str | tuple[str, DeviceOptions] = str(vmfb)
        if options.place.is_gpu:
            # The same once more, to be called without the host waiting.
            vmfb = folder / "program.vmfb"
            apply(task.mlir, output, vmfb, iree_flags=in_flight_flags(options))
            artifact = str(vmfb)
        else:
            advised = way_to_run(result, read_manifest(output))
            usual, flags = (
                " ".join([*one.tool_prefix, *one.tool_flags])
                for one in (options.place.options, advised)
            )
            if flags != usual:
                artifact, way = (str(vmfb), advised), f", run by {flags}"
        note = f"variant {result.program.variant}, {len(result.changed)} dispatches changed"
        if options.budget:
            note += f", {result.trials_total} trials in {result.wall_s:.0f} s"
        return Built(artifact, note + way, tuple(progress))


class IreeConfigured(IreeTuned):
    """What a run finds among the compiler's own configurations and variants."""

    name = "iree-configured"
    about = "IREE tuned by tilewright without kernels of its own (--kernels off)"
    kernels = "off"


def in_flight_flags(options: CompareOptions) -> tuple[str, ...]:
    """What a program for this place is compiled with so that it can be timed there.

    Args:
        options: how to compare.
    """
    return (IN_FLIGHT_FLAG,) if options.place.is_gpu else ()


def _own_flags(task: ProviderTask) -> tuple[str, ...]:
    operation = task.workload.operation
    return operation.flags if operation is not None else ()


def _thread_name(task: Path) -> str:
    try:
        return (task / "comm").read_text().strip()
    except OSError:
        return ""


PROVIDERS: tuple[type[Provider], ...] = (Iree, IreeTuned, IreeConfigured, IreeVariant)
