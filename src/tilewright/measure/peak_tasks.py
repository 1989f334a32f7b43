"""Tasks of workers for the peak: which kernels there are, compiling one, calling it for a while."""

from __future__ import annotations

import collections
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.argument import ArgumentType
from tilewright.files import write_whole
from tilewright.ir.peak_instructions import (
    INSTRUCTIONS,
    STREAMS,
    ArithmeticKernel,
    Kernel,
    MemoryKernel,
    accumulators_for,
    usable_forms,
)
from tilewright.measure.benchmark_worker import MAIN, kept_program, open_device
from tilewright.measure.compile_worker import session
from tilewright.measure.device_options import NO_PARAMETERS
from tilewright.measure.inputs import Bounds, random_array
from tilewright.measure.jobs import WorkerState
from tilewright.measure.processor import processor
from tilewright.target import parse_target
from tilewright.toolchain import KEEP_F64

# About half a millisecond for each workgroup: long beside starting one, short enough that a thread
# that was held up is helped out by the others.
_STEPS = 1 << 17
# A workgroup's part of an array is a whole number of the largest steps of a memory kernel.
_GRAIN = 4 * 64


@dataclass(frozen=True)
class PeakPlanRequest:
    """Which kernels a processor has.

    flags: of the compiler, for the processor. workgroups: of each kernel. array_bytes: length of
    the arrays of the memory kernels, about.
    """

    flags: tuple[str, ...]
    workgroups: int
    array_bytes: int


@dataclass(frozen=True)
class PeakBuildRequest:
    """Compile a kernel with these flags to a file."""

    kernel: Kernel
    flags: tuple[str, ...]
    vmfb: Path


@dataclass(frozen=True)
class BestRequest:
    """Call a kernel for about so long, and at least twice."""

    kernel: Kernel
    vmfb: Path
    seconds: float


def plan_kernels(state: WorkerState, request: PeakPlanRequest) -> tuple[Kernel, ...]:
    """Task: see PeakPlanRequest. The arithmetic kernels come first.

    Args:
        state: what the worker keeps.
        request: what is asked.
    """
    name, found, vector_bytes = processor(state, request.flags)
    features = frozenset(f[1:] for f in found.split(",") if f.startswith("+"))
    target = parse_target("cpu").with_vectors(name, found, vector_bytes)
    accumulators = accumulators_for(target.vector_registers)
    arithmetic = (
        ArithmeticKernel(instruction, form, accumulators, _STEPS, request.workgroups)
        for instruction in INSTRUCTIONS
        for form in usable_forms(instruction, features, vector_bytes)
    )
    grain = _GRAIN * request.workgroups
    elements = max(1, request.array_bytes // 4 // grain) * grain
    memory = (
        MemoryKernel(limit, elements, request.workgroups, vector_bytes, streaming)
        for limit in STREAMS
        for streaming in ((False,) if limit == "read" else (False, True))
    )
    return (*arithmetic, *memory)


def build_kernel(state: WorkerState, request: PeakBuildRequest) -> Path:
    """Task: see PeakBuildRequest.

    Args:
        state: what the worker keeps.
        request: what is asked.

    Raises:
        CompileError: this compiler has no code for it.
    """
    from tilewright.ir import peak_kernels

    compiler = session(state, (*request.flags, KEEP_F64))
    module = peak_kernels.build(compiler.context, request.kernel)
    return write_whole(request.vmfb, compiler.compile(module.operation))


def best_time(state: WorkerState, request: BestRequest) -> float:
    """Task: see BestRequest. Seconds of the fastest call but the first.

    Args:
        state: what the worker keeps.
        request: what is asked.
    """
    program = kept_program(state, str(request.vmfb), NO_PARAMETERS)
    call = program.bind(MAIN, _data(state, request.kernel))
    call()
    best, end = float("inf"), time.perf_counter() + request.seconds
    while True:
        begin = time.perf_counter()
        call()
        now = time.perf_counter()
        best = min(best, now - begin)
        if now >= end:
            return best


class _Views(collections.defaultdict[ArgumentType, list[Any]]):
    """Arguments of kernels on the device, by their type."""

    def __init__(self) -> None:
        super().__init__(list)


def _data(state: WorkerState, kernel: Kernel) -> list[Any]:
    """A kernel's arguments on the device, kept for its next call and for others of its size.

    Multiplying by factors below one and adding keeps floats within bounds, and well above the
    range where some processors are slow.
    """
    kind = kernel.arguments[0]
    views = state.get(_Views)[kind]
    while len(views) < len(kernel.arguments):
        if isinstance(kernel, MemoryKernel):
            array = np.ones(kind.shape or (), kind.dtype)
        else:
            whole = kind.dtype.kind in "iu"
            array = random_array(kind, 0, 0, Bounds(1, 8) if whole else Bounds(0.5, 0.9))
        views.append(open_device(state).upload(array))
    return views[: len(kernel.arguments)]
