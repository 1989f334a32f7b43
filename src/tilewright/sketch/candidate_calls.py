"""The host's code of kernel candidates, made once for all that are called in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from tilewright.ir.session import CompilerSession
from tilewright.measure.compile_worker import host_writer
from tilewright.measure.jobs import RecentlyUsed, WorkerState
from tilewright.schedule.nest import LoopProgram
from tilewright.schedule.types import BOOL, bits
from tilewright.sketch.candidate import room, rounded
from tilewright.sketch.interface import SiteExpression

if TYPE_CHECKING:
    from tilewright.ir.kernel_calls import KernelCalls
    from tilewright.ir.splice import SplicedHost
    from tilewright.schedule.codegen.module import EmittedKernel


def kernel_calls(
    site: SiteExpression,
    program: LoopProgram,
    kernels: Sequence[EmittedKernel],
    repeats: int,
    rotations: int,
) -> KernelCalls:
    """How the kernels of a site are called. Constants are handed over in few sizes, and so is what
    is between kernels: those that are packed in another way are called in the same.

    Args:
        site: that the kernels compute.
        program: their loops.
        kernels: what was emitted for them.
        repeats: how often `bench` calls them.
        rotations: on how many sets of inputs.
    """
    from tilewright.ir.kernel_calls import KernelCall, KernelCalls, ResultType

    def size(elements: int, dtype: str) -> int:
        return elements * bits(dtype) // 8

    inputs = []
    for position, buffer in enumerate(program.inputs):
        plain = prod(site.inputs[position].shape)
        elements = room(buffer.size, plain) if site.constant[position] else plain
        inputs.append(size(elements, buffer.dtype))
    results = tuple(
        ResultType("i1" if b.dtype == BOOL else b.dtype, size(1, b.dtype), site.output.shape)
        for b in program.outputs
    )
    between = [size(rounded(buffer.size), buffer.dtype) for buffer in program.temporaries]
    numbers = {b: n for n, b in enumerate((*program.arguments, *program.temporaries))}
    calls = []
    for kernel in kernels:
        first = len(program.arguments) + len(between)
        between += [size(rounded(elements), dtype) for elements, dtype in kernel.scratch]
        scratch = range(first, len(program.arguments) + len(between))
        reads, writes = ([numbers[b] for b in some] for some in (kernel.reads, kernel.writes))
        calls.append(KernelCall(kernel.name, tuple(reads), (*writes, *scratch)))
    return KernelCalls(tuple(inputs), results, tuple(between), tuple(calls), repeats, rotations)


class _Hosts(RecentlyUsed[tuple[CompilerSession, "KernelCalls"], "SplicedHost"]):
    """Host code that kernels are put into, by its compiler and what it does."""

    def __init__(self) -> None:
        super().__init__(64)


def host_of(state: WorkerState, compiler: CompilerSession, calls: KernelCalls) -> SplicedHost:
    """Host code, which is kept.

    Args:
        state: what the worker keeps.
        compiler: the worker's, which compiles the kernels.
        calls: what it does.

    Raises:
        CompileError: it does not compile.
    """
    from tilewright.ir.splice import SplicedHost

    def made() -> SplicedHost:
        written = host_writer(state, compiler).write(calls)
        return SplicedHost(compiler, written, [call.kernel for call in calls.calls])

    return state.get(_Hosts).get((compiler, calls), made)
