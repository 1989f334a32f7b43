"""The processor as the compiler sees it."""

from __future__ import annotations

from tilewright.ir.peak_instructions import INSTRUCTIONS, ArithmeticKernel, Form
from tilewright.measure.compile_worker import session
from tilewright.measure.jobs import WorkerState


def processor(state: WorkerState, flags: tuple[str, ...]) -> tuple[str, str, int]:
    """Name, features and vector bytes of the processor as the compiler sees it.

    Args:
        state: what the worker keeps.
        flags: of the compiler, for the processor.

    Returns:
        Its name as LLVM has it, its features with `+` or `-` and commas between, bytes of a vector.
    """
    from iree.compiler import ir

    from tilewright.ir import peak_kernels
    from tilewright.ir.target_info import target_info

    compiler = session(state, flags)
    kernel = ArithmeticKernel(INSTRUCTIONS[0], Form(16), 1, 1, 1)
    module = peak_kernels.build(compiler.context, kernel)
    text = compiler.compile(module.operation, compile_to="flow")
    with compiler.context:
        return target_info(ir.Module.parse(text))
