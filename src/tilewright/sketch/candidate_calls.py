"""How the host's code calls kernel candidates."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from tilewright.schedule.nest import LoopProgram
from tilewright.schedule.types import BOOL, bits
from tilewright.sketch.interface import SiteExpression

if TYPE_CHECKING:
    from tilewright.ir.kernel_calls import KernelCalls
    from tilewright.schedule.codegen.module import EmittedKernel


def kernel_calls(
    site: SiteExpression,
    program: LoopProgram,
    kernels: Sequence[EmittedKernel],
    repeats: int,
    rotations: int,
) -> KernelCalls:
    """How the kernels of a site are called.

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
        inputs.append(size(buffer.size if site.constant[position] else plain, buffer.dtype))
    results = tuple(
        ResultType("i1" if b.dtype == BOOL else b.dtype, size(1, b.dtype), site.output.shape)
        for b in program.outputs
    )
    between = [size(max(1, buffer.size), buffer.dtype) for buffer in program.temporaries]
    numbers = {b: n for n, b in enumerate((*program.arguments, *program.temporaries))}
    calls = []
    for kernel in kernels:
        first = len(program.arguments) + len(between)
        between += [size(max(1, elements), dtype) for elements, dtype in kernel.scratch]
        scratch = range(first, len(program.arguments) + len(between))
        reads, writes = ([numbers[b] for b in some] for some in (kernel.reads, kernel.writes))
        calls.append(KernelCall(kernel.name, tuple(reads), (*writes, *scratch)))
    return KernelCalls(tuple(inputs), results, tuple(between), tuple(calls), repeats, rotations)
