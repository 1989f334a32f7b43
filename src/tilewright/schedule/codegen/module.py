"""A program of loop nests as an MLIR module: an executable for each kernel, and their host code."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from iree.compiler import ir
from iree.compiler.dialects import arith, flow, func, gpu, hal

from tilewright.ir.hand_written import ALIGNMENT, Binding, Executable, executable, index
from tilewright.schedule import nest, threads
from tilewright.schedule.codegen import scalars
from tilewright.schedule.codegen.kernel import KernelEmitter, distinct
from tilewright.schedule.codegen.machine import Processor, machine_for
from tilewright.schedule.codegen.view import part_of
from tilewright.schedule.nest import Buffer, Kernel, LoopProgram, Stmt
from tilewright.schedule.tensor import BLOCK_TAGS, THREAD_TAGS
from tilewright.schedule.types import BOOL, bits
from tilewright.target import Target

#: The function of every module made here.
FUNCTION = "main"

_AXES = "xyz"


@functools.cache
def context() -> ir.Context:
    """The context that all modules of schedules live in."""
    made = ir.Context()
    made.load_all_available_dialects()
    return made


def module_for(program: LoopProgram, target: str | Target | None = None) -> ir.Module:
    """The module of a program: `main` takes its inputs as tensors and returns its outputs.

    Args:
        program: loop nests, with threads or without.
        target: a target or its name; this machine's processor without one.

    Returns:
        The module, in :func:`context`.

    Raises:
        ScheduleError: unrolling makes too much code, or an intrinsic is used where it cannot be.
    """
    with context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            made = _kernels(program, machine_for(target), module)
            _host(program, made, {})
    module.operation.verify()
    return module


def executables_for(
    program: LoopProgram, target: Target, executable_target: ir.Attribute
) -> tuple[ir.Module, list[EmittedKernel]]:
    """The kernels of a program alone, as IREE has them at the executable-sources phase.

    Args:
        program: loop nests, with threads or without.
        target: what they are compiled for.
        executable_target: IREE's attribute of that, whose context the module is made in.

    Returns:
        The module, and the kernels in their order.

    Raises:
        ScheduleError: as `module_for`.
    """
    with executable_target.context, ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            return module, _kernels(program, machine_for(target), module, executable_target)


def host_for(
    program: LoopProgram,
    kernels: Sequence[EmittedKernel],
    shapes: Mapping[Buffer, tuple[int, ...]],
    compiler_context: ir.Context,
) -> ir.Module:
    """A program whose kernels do nothing: what calls them is that of the program.

    Args:
        program: loop nests.
        kernels: what `executables_for` made of it.
        shapes: of arguments that are handed over in other shapes than their buffers'.
        compiler_context: that the module is made in.

    Returns:
        The module.
    """
    with compiler_context, ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            stubs = [
                replace(
                    kernel,
                    executable=executable(kernel.name, kernel.bindings, kernel.workgroups),
                )
                for kernel in kernels
            ]
            _host(program, stubs, shapes)
    return module


@dataclass(frozen=True)
class EmittedKernel:
    """A kernel's executable: bindings first for `reads`, then for `writes`, then scratch.

    scratch: for each buffer that a workgroup has no room for, elements and type of what all
        workgroups together need. workgroups: in x, y and z.
    """

    name: str
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]
    scratch: tuple[tuple[int, str], ...]
    workgroups: tuple[int, ...]
    executable: Executable

    @property
    def bindings(self) -> list[Binding]:
        """Its buffers as the executable binds them."""
        return _bindings(self.reads, self.writes, self.scratch)


def _bindings(
    reads: Sequence[Buffer], writes: Sequence[Buffer], scratch: Sequence[tuple[int, str]]
) -> list[Binding]:
    return [
        *(Binding(_flat(b.size, b.dtype), True) for b in reads),
        *(Binding(_flat(b.size, b.dtype), False) for b in writes),
        *(Binding(_flat(*more), False) for more in scratch),
    ]


def _kernels(
    program: LoopProgram,
    processor: Processor,
    module: ir.Module,
    target: ir.Attribute | None = None,
) -> list[EmittedKernel]:
    """The executables of a program's kernels, at the insertion point."""
    if processor.is_gpu:
        kernels = tuple(threads.expand_reductions(kernel) for kernel in program.kernels)
    else:
        kernels = threads.serialize(program).kernels
    return [
        _kernel(number, kernel, processor, module, target) for number, kernel in enumerate(kernels)
    ]


def _kernel(
    number: int,
    kernel: Kernel,
    processor: Processor,
    module: ir.Module,
    target: ir.Attribute | None,
) -> EmittedKernel:
    # Where one is compiled alone, its name must not tell it from others with the same host.
    name = f"{kernel.name}_{number}" if target is None else f"kernel_{number}"
    made, large = _emitted(name, kernel, processor, (), target)
    if large:
        # Only now it is known what there is no room for: once more, with memory for that.
        operations = module.body.operations
        operations[len(operations) - 1].erase()
        made, _ = _emitted(name, kernel, processor, large, target)
    return made


def _emitted(
    name: str,
    kernel: Kernel,
    processor: Processor,
    scratch: tuple[tuple[int, str], ...],
    target: ir.Attribute | None,
) -> tuple[EmittedKernel, tuple[tuple[int, str], ...]]:
    """Emits a kernel; returns it with the scratch that it needs."""
    reads = tuple(b for b in kernel.reads if b not in kernel.writes)
    body, loops = _grid(kernel, processor)
    grid = [loops.get(tag) for tag in BLOCK_TAGS]
    counts = tuple(loop.extent if loop is not None else 1 for loop in grid)
    block = [kernel.block.get(tag, 1) for tag in THREAD_TAGS]
    buffers = [*reads, *kernel.writes]
    made = executable(
        name,
        _bindings(reads, kernel.writes, scratch),
        counts,
        workgroup_size=block if processor.is_gpu else None,
        subgroup_size=processor.subgroup or None,
        target=target,
    )
    code = made.body
    with ir.InsertionPoint(code.operations[len(code.operations) - 1]):
        memory = list(made.buffers)
        if processor.is_llvm:
            memory = distinct(memory)
        # What is allocated goes before this operation, so that it is so once.
        entry = index(0).owner
        ids = _ids(loops)
        parts = [
            _own(own, size // prod(counts), ids, grid)
            for own, (size, _) in zip(memory[len(buffers) :], scratch, strict=True)
        ]
        bindings = dict(zip(buffers, memory, strict=False))
        emitter = KernelEmitter(processor, entry, bindings, parts, kernel.block)
        values = {}
        for tag, loop in loops.items():
            var = emitter.loop_var(loop.var.name, loop.extent)
            emitter.loops[var] = ids[tag]
            values[loop.var] = emitter.sums.variable(var)
        with emitter.bound(values):
            workgroup = [values[loop.var] for loop in grid if loop is not None]
            emitter.workgroup(body, frozenset().union(*(v.variables for v in workgroup)))
    large = tuple((_part(size, dtype) * prod(counts), dtype) for size, dtype in emitter.large)
    emitted = EmittedKernel(name, reads, tuple(kernel.writes), scratch, counts, made)
    return emitted, large


def _grid(kernel: Kernel, processor: Processor) -> tuple[Stmt, dict[str, nest.For]]:
    """What a workgroup (on GPUs, a thread) does, and the loops around it by the tag of what their
    iterations are: on CPUs the outermost parallel loops."""
    body = kernel.body
    loops: list[nest.For] = []
    wanted = nest.THREAD if processor.is_gpu else nest.PARALLEL
    while isinstance(body, nest.For) and body.kind == wanted:
        if not processor.is_gpu and len(loops) == len(BLOCK_TAGS):
            break
        loops.append(body)
        body = body.body
    if processor.is_gpu:
        return body, {loop.tag: loop for loop in loops}
    return body, dict(zip(BLOCK_TAGS, reversed(loops), strict=False))


def _ids(loops: Mapping[str, nest.For]) -> dict[str, ir.Value]:
    """The numbers of the workgroup and the thread, by tag."""
    ids: dict[str, ir.Value] = {}
    for number, tag in enumerate(BLOCK_TAGS):
        if tag in loops:
            ids[tag] = hal.InterfaceWorkgroupIDOp(number).result
    for axis, tag in zip(_AXES, THREAD_TAGS, strict=True):
        if tag in loops:
            ids[tag] = gpu.ThreadIdOp(getattr(gpu.Dimension, axis)).result
    return ids


def _flat(size: int, dtype: str) -> ir.MemRefType:
    return ir.MemRefType.get([size], scalars.memory_element(dtype))


def _part(size: int, dtype: str) -> int:
    """Elements from one workgroup's part of a scratch buffer to the next's: each is aligned."""
    line = ALIGNMENT * 8 // bits(dtype)
    return -(-size // line) * line


def _own(
    buffer: ir.Value, size: int, ids: Mapping[str, ir.Value], grid: Sequence[nest.For | None]
) -> ir.Value:
    """A workgroup's part of a buffer that has `size` elements for each of them."""
    number = index(0)
    for tag, loop in reversed(list(zip(BLOCK_TAGS, grid, strict=True))):
        if loop is not None:
            outer = arith.MulIOp(number, index(loop.extent)).result
            number = arith.AddIOp(outer, ids[tag]).result
    return part_of(buffer, arith.MulIOp(number, index(size)).result, [size])


# -- the host --------------------------------------------------------------------------------------


def _host(
    program: LoopProgram,
    kernels: Sequence[EmittedKernel],
    shapes: Mapping[Buffer, tuple[int, ...]],
) -> None:
    outside = set(program.arguments)

    def tensor(buffer: Buffer) -> ir.Type:
        if buffer in outside:
            name = "i1" if buffer.dtype == BOOL else buffer.dtype
            shape = shapes.get(buffer, buffer.shape)
            return ir.RankedTensorType.get(list(shape), ir.Type.parse(name))
        return ir.RankedTensorType.get([buffer.size], scalars.memory_element(buffer.dtype))

    inputs = list(program.inputs)
    type_ = ir.FunctionType.get([tensor(b) for b in inputs], [tensor(b) for b in program.outputs])
    function = func.FuncOp(FUNCTION, type_)
    block = function.add_entry_block()
    values: dict[Buffer, ir.Value] = dict(zip(inputs, block.arguments, strict=True))
    with ir.InsertionPoint(block):
        for kernel in kernels:
            _dispatch(kernel, values, tensor)
        func.ReturnOp([values[b] for b in program.outputs])


def _dispatch(kernel: EmittedKernel, values: dict[Buffer, ir.Value], tensor: Any) -> None:
    """Call a kernel: what it writes for the first time is a new tensor, the rest is updated."""
    operands = [values[b] for b in kernel.reads]
    types, ties = [], []
    for buffer in kernel.writes:
        types.append(tensor(buffer))
        if buffer in values:
            ties.append(len(operands))
            operands.append(values[buffer])
        else:
            ties.append(-1)
    for size, dtype in kernel.scratch:
        types.append(ir.RankedTensorType.get([size], scalars.memory_element(dtype)))
        ties.append(-1)
    tied = None
    if any(tie >= 0 for tie in ties):
        tied = ir.ArrayAttr.get([ir.IntegerAttr.get(ir.IndexType.get(), tie) for tie in ties])
    entries = ir.ArrayAttr.get([kernel.executable.entry])
    made = flow.DispatchOp(types, [], entries, operands, [], [], tied_operands=tied)
    for buffer, value in zip(kernel.writes, made.operation.results, strict=False):
        values[buffer] = value
