"""A program of loop nests as an MLIR module: an executable for each kernel, and their host code."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
    processor = machine_for(target)
    if processor.is_gpu:
        kernels = tuple(threads.expand_reductions(kernel) for kernel in program.kernels)
        program = replace(program, kernels=kernels)
    else:
        program = threads.serialize(program)
    with context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            made = [
                _kernel(number, kernel, processor, module)
                for number, kernel in enumerate(program.kernels)
            ]
            _host(program, made)
    module.operation.verify()
    return module


class _Made:
    """A kernel's executable: bindings first for `reads`, then for `writes`, then scratch.

    scratch: for each buffer that a workgroup has no room for, elements and type of what all
        workgroups together need.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.name = kernel.name
        self.reads = [b for b in kernel.reads if b not in kernel.writes]
        self.writes = list(kernel.writes)
        self.scratch: list[tuple[int, str]] = []
        self.executable: Executable | None = None


def _kernel(number: int, kernel: Kernel, processor: Processor, module: ir.Module) -> _Made:
    made = _Made(kernel)
    large = _emitted(made, f"{kernel.name}_{number}", kernel, processor)
    if large:
        # Only now it is known what there is no room for: once more, with memory for that.
        operations = module.body.operations
        operations[len(operations) - 1].erase()
        made.scratch = large
        _emitted(made, f"{kernel.name}_{number}", kernel, processor)
    return made


def _emitted(made: _Made, name: str, kernel: Kernel, processor: Processor) -> list[tuple[int, str]]:
    """Emits a kernel; returns the scratch that it needs."""
    body, loops = _grid(kernel, processor)
    grid = [loops.get(tag) for tag in BLOCK_TAGS]
    counts = [loop.extent if loop is not None else 1 for loop in grid]
    block = [kernel.block.get(tag, 1) for tag in THREAD_TAGS]
    buffers = [*made.reads, *made.writes]
    made.executable = executable(
        name,
        [
            *(Binding(_flat(b.size, b.dtype), b in made.reads) for b in buffers),
            *(Binding(_flat(*scratch), False) for scratch in made.scratch),
        ],
        counts,
        workgroup_size=block if processor.is_gpu else None,
        subgroup_size=processor.subgroup or None,
    )
    code = made.executable.body
    with ir.InsertionPoint(code.operations[len(code.operations) - 1]):
        memory = list(made.executable.buffers)
        if processor.is_llvm:
            memory = distinct(memory)
        # What is allocated goes before this operation, so that it is so once.
        entry = index(0).owner
        ids = _ids(loops)
        scratch = [
            _own(own, size // prod(counts), ids, grid)
            for own, (size, _) in zip(memory[len(buffers) :], made.scratch, strict=True)
        ]
        bindings = dict(zip(buffers, memory, strict=False))
        emitter = KernelEmitter(processor, entry, bindings, scratch, kernel.block)
        values = {}
        for tag, loop in loops.items():
            var = emitter.loop_var(loop.var.name, loop.extent)
            emitter.loops[var] = ids[tag]
            values[loop.var] = emitter.sums.variable(var)
        with emitter.bound(values):
            workgroup = [values[loop.var] for loop in grid if loop is not None]
            emitter.workgroup(body, frozenset().union(*(v.variables for v in workgroup)))
    return [(_part(size, dtype) * prod(counts), dtype) for size, dtype in emitter.large]


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


def _host(program: LoopProgram, kernels: Sequence[_Made]) -> None:
    outside = set(program.arguments)

    def tensor(buffer: Buffer) -> ir.Type:
        if buffer in outside:
            name = "i1" if buffer.dtype == BOOL else buffer.dtype
            return ir.RankedTensorType.get(list(buffer.shape), ir.Type.parse(name))
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


def _dispatch(kernel: _Made, values: dict[Buffer, ir.Value], tensor: Any) -> None:
    """Call a kernel: what it writes for the first time is a new tensor, the rest is updated."""
    assert kernel.executable is not None
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
