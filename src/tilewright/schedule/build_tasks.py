"""What compile workers do for schedules: emit the MLIR of their loops, and compile it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tilewright.argument import ArgumentType
from tilewright.files import write_whole
from tilewright.measure.compile_worker import session
from tilewright.measure.inputs import InputSet, random_inputs
from tilewright.measure.jobs import WorkerState
from tilewright.measure.processor import processor
from tilewright.schedule import nest
from tilewright.schedule.codegen import module_for
from tilewright.schedule.nest import LoopProgram
from tilewright.schedule.walk import nodes
from tilewright.target import Target
from tilewright.toolchain import KEEP_F64

#: Flags for loops; debug information costs time.
SCHEDULE_FLAGS = (KEEP_F64, "--iree-llvmcpu-debug-symbols=false")


@dataclass(frozen=True)
class ScheduleRequest:
    """Compile a lowered schedule for a target.

    source: the loops, or MLIR where only the process that has the schedule can emit it; see
    :func:`schedule_request`. flags: more flags of `iree-compile`.
    """

    source: LoopProgram | str
    target: Target
    flags: tuple[str, ...] = ()


def schedule_request(
    program: LoopProgram, target: Target, flags: tuple[str, ...] = ()
) -> ScheduleRequest:
    """What a worker is asked for the loops of a schedule.

    Args:
        program: the loops.
        target: what they are compiled for.
        flags: more flags of `iree-compile`.

    Returns:
        The request. Intrinsics are functions of the user's process that emit MLIR, and cannot
        travel: where there are some, the MLIR is emitted here.

    Raises:
        ScheduleError: there are intrinsics, and the loops cannot be code.
    """
    statements = (node for kernel in program.kernels for node in nodes(kernel.body))
    here = any(isinstance(node, nest.Intrinsic) for node in statements)
    source = str(_emitted(program, target)) if here else program
    return ScheduleRequest(source, target, flags)


def _emitted(program: LoopProgram, target: Target) -> Any:
    """The MLIR module; it names the device itself where no flag does."""
    module = module_for(program, target)
    if target.declaration:
        from tilewright.ir.program import set_device

        set_device(module, target.declaration)
    return module


class _Known:
    """Processors as the compiler sees them, by the flags that select them."""

    def __init__(self) -> None:
        self.by_flags: dict[tuple[str, ...], tuple[str, str, int]] = {}


def with_processor(state: WorkerState, target: Target) -> Target:
    """The target with what its processor has; code generation would ask a worker for that.

    Args:
        state: what the worker keeps.
        target: of any kind.
    """
    if target.is_gpu or target.cpu == "host" or target.features:
        return target
    found = state.get(_Known).by_flags
    if target.flags not in found:
        found[target.flags] = processor(state, target.flags)
    _, features, vector_bytes = found[target.flags]
    return replace(target, features=features, vector_bytes=vector_bytes)


def compile_schedule(state: WorkerState, request: ScheduleRequest) -> bytes:
    """Task: compile the loops; the module.

    Args:
        request: the loops, the target and more flags.

    Raises:
        ScheduleError: the loops cannot be code.
        CompileError: the compiler does not take the code.
    """
    source, target = request.source, request.target
    if not isinstance(source, str):
        source = str(_emitted(source, with_processor(state, target)))
    compiler = session(state, (*target.flags, *SCHEDULE_FLAGS, *request.flags))
    return compiler.compile(source, name=target.name)


@dataclass(frozen=True)
class ScheduleFileRequest:
    """Compile a lowered schedule into a file."""

    schedule: ScheduleRequest
    vmfb: Path


def compile_schedule_file(state: WorkerState, request: ScheduleFileRequest) -> str:
    """Task: as `compile_schedule`, into a file; a digest of the module.

    Args:
        request: the loops, the target, and the file.
    """
    vmfb = compile_schedule(state, request.schedule)
    write_whole(request.vmfb, vmfb)
    return hashlib.sha256(vmfb).hexdigest()


@dataclass(frozen=True)
class RandomInputsRequest:
    """Random arguments of these types in a folder."""

    types: tuple[ArgumentType, ...]
    seed: int
    folder: Path


def make_random_inputs(_state: WorkerState, request: RandomInputsRequest) -> InputSet:
    """Task: see RandomInputsRequest.

    Args:
        request: types, seed and folder.

    Returns:
        The arguments, in files.
    """
    return random_inputs(request.folder, request.types, seed=request.seed)
