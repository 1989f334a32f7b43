"""Programs that keep a processor's arithmetic, or its memory, as busy as it can be.

An arithmetic kernel is a loop over one instruction on many accumulators that do not depend on each
other, all held in registers: what limits it is how many of the instruction the processor begins in
a cycle, and no kernel that computes with this instruction can be faster. A memory kernel streams
through arrays far larger than the caches, as STREAM does (J. McCalpin, "Memory Bandwidth and
Machine Balance in Current High Performance Computers", 1995).

Both are executables written by hand (`hal.executable.source`), which the compiler takes without
tiling or vectorizing anything itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith, func, hal, llvm, scf, vector

from tilewright.ir.hand_written import Binding, Executable, dispatch, executable, index
from tilewright.ir.peak_instructions import BITS, ArithmeticKernel, Kernel, MemoryKernel

#: The function of every program made here.
FUNCTION = "main"

_KERNEL = "kernel"
# Vectors that a memory kernel handles in one step of its loop.
_UNROLLED = 4


def build(context: ir.Context, kernel: Kernel) -> ir.Module:
    """The module of a kernel's program.

    Args:
        context: where it is made.
        kernel: what it does.

    Returns:
        A module whose `main` takes the kernel's arguments, and returns a tensor of little size that
        depends on all that was computed or read.
    """
    # The compiler registers its dialects, but loads them only when it parses their names.
    context.load_all_available_dialects()
    with context, ir.Location.unknown():
        inputs = [
            ir.RankedTensorType.get(argument.shape or (), _type(argument.element_type))
            for argument in kernel.arguments
        ]
        size = kernel.workgroups * kernel.lanes
        result = ir.RankedTensorType.get([size], inputs[0].element_type)
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            made, workgroup = _executable(kernel.workgroups, inputs, result)
            buffers = made.buffers
            with ir.InsertionPoint.at_block_terminator(made.body):
                last = (
                    _arithmetic(kernel, buffers)
                    if isinstance(kernel, ArithmeticKernel)
                    else _memory(kernel, buffers, workgroup)
                )
                place = arith.muli(workgroup, index(kernel.lanes))
                vector.StoreOp(last, buffers[-1], [place], alignment=kernel.vector_bytes)
            _entry_point(made, inputs, result)
    module.operation.verify()
    return module


# -- the loops -------------------------------------------------------------------------------------


def _arithmetic(kernel: ArithmeticKernel, buffers: Sequence[ir.Value]) -> ir.Value:
    """The loop; the sum of the accumulators."""
    type_ = ir.VectorType.get([kernel.lanes], _type(kernel.instruction.accumulator))
    loaded = [
        vector.LoadOp(
            type_, buffers[0], [index(i * kernel.lanes)], alignment=kernel.vector_bytes
        ).result
        for i in range(kernel.accumulators + 2)
    ]
    *starts, a, b = loaded
    step = _STEPS[kernel.instruction.kind]
    loop = scf.ForOp(index(0), index(kernel.steps), index(1), starts)
    with ir.InsertionPoint(loop.body):
        scf.YieldOp([step(kernel, accumulator, a, b) for accumulator in loop.inner_iter_args])
    return _sum(list(loop.results))


def _memory(kernel: MemoryKernel, buffers: Sequence[ir.Value], workgroup: ir.Value) -> ir.Value:
    """A loop over the workgroup's part of the arrays; the sum of what was read."""
    lanes, arrays = kernel.lanes, len(kernel.arguments)
    type_ = ir.VectorType.get([lanes], _type("f32"))
    part = kernel.elements // kernel.workgroups
    start = arith.muli(workgroup, index(part))
    zero, factor = (
        arith.ConstantOp(
            type_, ir.DenseElementsAttr.get_splat(type_, ir.FloatAttr.get(_type("f32"), value))
        ).result
        for value in (0.0, 0.5)
    )
    loop = scf.ForOp(index(0), index(part), index(lanes * _UNROLLED), [zero] * _UNROLLED)
    with ir.InsertionPoint(loop.body):
        sums = []
        for i, total in enumerate(loop.inner_iter_args):
            offset = arith.addi(loop.induction_variable, index(i * lanes))
            place = arith.addi(start, offset)
            read = [
                vector.LoadOp(type_, source, [place], alignment=kernel.vector_bytes).result
                for source in buffers[: max(1, arrays - 1)]
            ]
            value = vector.FMAOp(read[1], factor, read[0]).result if len(read) > 1 else read[0]
            if kernel.limit == "read":
                total = arith.addf(total, value)
            else:
                vector.StoreOp(
                    value,
                    buffers[arrays - 1],
                    [place],
                    nontemporal=kernel.streaming,
                    alignment=kernel.vector_bytes,
                )
            sums.append(total)
        scf.YieldOp(sums)
    return _sum(list(loop.results))


def _sum(values: list[ir.Value]) -> ir.Value:
    total = values[0]
    is_float = isinstance(ir.VectorType(total.type).element_type, ir.FloatType)
    for value in values[1:]:
        total = arith.addf(total, value) if is_float else arith.addi(total, value)
    return total


# -- the instructions ------------------------------------------------------------------------------


def _dot(kernel: ArithmeticKernel, c: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    """`c + dot(a, b)` in one instruction."""
    return _call(kernel, c.type, [c, _narrow(kernel, a), _narrow(kernel, b)])


def _pairs(kernel: ArithmeticKernel, c: ir.Value, _a: ir.Value, b: ir.Value) -> ir.Value:
    """`c + pairs(c, b)`: the instruction does not add, and without `c` in it there would be
    nothing left of it in the loop."""
    return arith.addi(c, _call(kernel, c.type, [_narrow(kernel, c), _narrow(kernel, b)]))


# What a step of the loop does to an accumulator `c` with the operands `a` and `b`.
_STEPS: dict[str, Callable[[ArithmeticKernel, ir.Value, ir.Value, ir.Value], ir.Value]] = {
    "fma": lambda _kernel, c, a, b: vector.FMAOp(c, a, b).result,
    "multiply_add": lambda _kernel, c, a, b: arith.addi(arith.muli(c, a), b),
    "add": lambda _kernel, c, a, b: arith.xori(arith.addi(c, a), b),
    "dot": _dot,
    "pairs": _pairs,
}


def _call(kernel: ArithmeticKernel, type_: ir.Type, arguments: list[ir.Value]) -> ir.Value:
    return llvm.CallIntrinsicOp(type_, kernel.form.intrinsic, arguments, [], []).results[0]


def _narrow(kernel: ArithmeticKernel, value: ir.Value) -> ir.Value:
    """The bits of a vector as one of the operands' element type."""
    element = kernel.instruction.element_type
    type_ = ir.VectorType.get([kernel.form.bytes * 8 // BITS[element]], _type(element))
    return vector.BitCastOp(type_, value).result


# -- what is around them ---------------------------------------------------------------------------


def _executable(
    workgroups: int, inputs: Sequence[ir.Type], result: ir.Type
) -> tuple[Executable, ir.Value]:
    """An executable with a kernel that has no code yet, and its workgroup's number.

    All inputs are declared as read only: a memory kernel that writes to its last one does so
    behind the compiler's back, which would otherwise make a new buffer for every call, and what
    would be measured is how fast the system hands out memory.
    """
    bindings = [
        Binding(ir.MemRefType.get(ir.RankedTensorType(type_).shape, type_.element_type), read_only)
        for type_, read_only in [*((one, True) for one in inputs), (result, False)]
    ]
    made = executable(_KERNEL, bindings, [workgroups])
    with ir.InsertionPoint.at_block_terminator(made.body):
        return made, hal.InterfaceWorkgroupIDOp(0).result


def _entry_point(made: Executable, inputs: Sequence[ir.Type], result: ir.Type) -> None:
    function = func.FuncOp(FUNCTION, ir.FunctionType.get(list(inputs), [result]))
    with ir.InsertionPoint(function.add_entry_block()):
        func.ReturnOp(dispatch(made, [result], list(function.arguments)))


def _type(name: str) -> ir.Type:
    return ir.Type.parse(name)
