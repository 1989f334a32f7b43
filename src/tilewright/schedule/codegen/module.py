"""A program of loop nests as an MLIR module: an executable for each kernel, and their host code."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from iree.compiler import ir
from iree.compiler.dialects import arith, flow, func, gpu, hal, memref

from tilewright.ir.hand_written import ALIGNMENT, Binding, Executable, executable
from tilewright.schedule import nest, threads
from tilewright.schedule.codegen import scalars
from tilewright.schedule.codegen.code import Code, Scope, Storage
from tilewright.schedule.codegen.expand import Expander
from tilewright.schedule.codegen.kernel import KernelEmitter
from tilewright.schedule.codegen.linear import Atom, Linear
from tilewright.schedule.codegen.machine import Processor, machine_for
from tilewright.schedule.codegen.registers import Analysis, bodies
from tilewright.schedule.nest import Buffer, Kernel, LoopProgram
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

    It lives in `context()`. Raises ScheduleError where unrolling makes too much code.
    """
    machine = machine_for(target)
    if machine.is_gpu:
        kernels = tuple(threads.expand_reductions(kernel) for kernel in program.kernels)
        program = replace(program, kernels=kernels)
    else:
        program = threads.serialize(program)
    with context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            made = [
                _kernel(number, kernel, machine) for number, kernel in enumerate(program.kernels)
            ]
            _host(program, made)
    module.operation.verify()
    return module


class _Made:
    """A kernel's executable: bindings first for `reads`, then for `writes`, then scratch."""

    def __init__(self, kernel: Kernel) -> None:
        self.name = kernel.name
        self.reads = [b for b in kernel.reads if b not in kernel.writes]
        self.writes = list(kernel.writes)
        self.scratch: list[Storage] = []
        self.workgroups = 1
        self.executable: Executable | None = None


def _kernel(number: int, kernel: Kernel, machine: Processor) -> _Made:
    made = _Made(kernel)
    storages = {
        buffer: Storage(buffer.name, buffer.size, buffer.dtype, nest.GLOBAL)
        for buffer in (*made.reads, *made.writes)
    }
    gpu_ = machine.is_gpu
    expander = Expander(machine.widths, storages, versions=not gpu_, collective=gpu_)
    grid, block, code = _expanded(expander, kernel, machine)
    counts = [extent for _, extent in grid]
    for count in counts:
        made.workgroups *= count
    made.scratch = _large(code, machine)
    bindings = [
        *(_binding(storages[b], True) for b in made.reads),
        *(_binding(storages[b], False) for b in made.writes),
        *(Binding(_scratch_type(s, made.workgroups), False) for s in made.scratch),
    ]
    name = f"{kernel.name}_{number}"
    made.executable = executable(
        name,
        bindings,
        counts,
        workgroup_size=[extent for _, extent in block] if machine.is_gpu else None,
        subgroup_size=machine.subgroup or None,
    )
    buffers = made.executable.buffers
    end = made.executable.body.operations[len(made.executable.body.operations) - 1]
    with ir.InsertionPoint(end):
        # What is allocated goes before this operation, so that it is so once.
        entry = arith.ConstantOp(ir.IndexType.get(), 0).operation
        ids = _ids(grid, block)
        scratch = {
            storage: _own(buffer, storage, ids, grid)
            for storage, buffer in zip(
                made.scratch, buffers[len(buffers) - len(made.scratch) :], strict=True
            )
        }
        emitter = KernelEmitter(machine, entry, scratch, kernel.block)
        emitter.loops.update(ids)
        for buffer, value in zip((*made.reads, *made.writes), buffers, strict=False):
            emitter.memory[storages[buffer]] = value
        emitter.run(code)
    return made


_Dimension = tuple[Atom | None, int]


def _expanded(
    expander: Expander, kernel: Kernel, machine: Processor
) -> tuple[list[_Dimension], list[_Dimension], list[Code]]:
    """The workgroups' dimensions, the threads', and the code within them."""
    body = kernel.body
    grid: list[_Dimension] = []
    block: dict[str, _Dimension] = {}
    blocks: dict[str, _Dimension] = {}
    wanted = nest.THREAD if machine.is_gpu else nest.PARALLEL
    bound: list[Any] = []
    while isinstance(body, nest.For) and body.kind == wanted and len(bound) < 6:
        if not machine.is_gpu and len(bound) == 3:
            break
        atom = expander.space.loop(body.extent)
        scope = expander.bound(body.var, Linear(((atom, 1),), 0))
        scope.__enter__()
        bound.append(scope)
        if body.kind == nest.PARALLEL:
            grid.insert(0, (atom, body.extent))
        elif body.tag in BLOCK_TAGS:
            blocks[body.tag] = (atom, body.extent)
        else:
            block[body.tag] = (atom, body.extent)
        body = body.body
    numbers = frozenset(atom for atom, _ in (*grid, *blocks.values()) if atom is not None)
    code = expander.workgroup(body, numbers)
    for scope in reversed(bound):
        scope.__exit__(None, None, None)
    if machine.is_gpu:
        grid = [blocks.get(tag, (None, 1)) for tag in BLOCK_TAGS]
    threads_ = [block.get(tag, (None, 1)) for tag in THREAD_TAGS]
    return grid, threads_, code


def _ids(grid: Sequence[_Dimension], block: Sequence[_Dimension]) -> dict[Atom, ir.Value]:
    """The values of the workgroup's and the thread's numbers."""
    ids: dict[Atom, ir.Value] = {}
    for number, (atom, _) in enumerate(grid):
        if atom is not None:
            ids[atom] = hal.InterfaceWorkgroupIDOp(number).result
    for axis, (atom, _) in zip(_AXES, block, strict=True):
        if atom is not None:
            ids[atom] = gpu.ThreadIdOp(getattr(gpu.Dimension, axis)).result
    return ids


def _large(code: Sequence[Code], machine: Processor) -> list[Storage]:
    """Storages that neither the stack nor the memory of a workgroup has room for, in the order in
    which the emitter allocates."""
    if machine.is_gpu:
        return []
    analysis = Analysis()
    seen: set[Storage] = set()
    stack = own = 0

    def visit(body: Sequence[Code]) -> Iterator[Storage]:
        nonlocal stack, own
        for part in body:
            if isinstance(part, Scope) and part.storage not in seen:
                storage = part.storage
                if analysis.in_scope(part) is None:
                    seen.add(storage)
                    size = storage.size * bits(storage.dtype) // 8
                    if machine.on_stack(storage.scope, size, stack):
                        stack += size
                    elif own + size > machine.workgroup_bytes:
                        yield storage
                    else:
                        own += size
            for below in bodies(part):
                yield from visit(below)

    return list(visit(code))


def _binding(storage: Storage, read_only: bool) -> Binding:
    type_ = ir.MemRefType.get([storage.size], scalars.memory_element(storage.dtype))
    return Binding(type_, read_only)


def _part(storage: Storage) -> int:
    """Elements from one workgroup's part of a scratch buffer to the next's: each is aligned."""
    line = ALIGNMENT * 8 // bits(storage.dtype)
    return -(-storage.size // line) * line


def _scratch_type(storage: Storage, workgroups: int) -> ir.MemRefType:
    return ir.MemRefType.get([_part(storage) * workgroups], scalars.memory_element(storage.dtype))


def _own(
    buffer: ir.Value, storage: Storage, ids: dict[Atom, ir.Value], grid: Sequence[_Dimension]
) -> ir.Value:
    """A workgroup's part of a buffer that holds a storage for each of them."""
    number: ir.Value | None = None
    for atom, extent in reversed(grid):
        if atom is None:
            continue
        own = ids[atom]
        if number is not None:
            count = arith.ConstantOp(ir.IndexType.get(), extent).result
            own = arith.AddIOp(arith.MulIOp(number, count).result, own).result
        number = own
    if number is None:
        return buffer
    size = arith.ConstantOp(ir.IndexType.get(), _part(storage)).result
    dynamic = ir.ShapedType.get_dynamic_stride_or_offset()
    type_ = ir.MemRefType.get(
        [storage.size],
        scalars.memory_element(storage.dtype),
        layout=ir.StridedLayoutAttr.get(dynamic, [1]),
    )
    return memref.ReinterpretCastOp(
        type_, buffer, [arith.MulIOp(number, size).result], [], [], [dynamic], [storage.size], [1]
    ).result


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
    for storage in kernel.scratch:
        size = _part(storage) * kernel.workgroups
        types.append(ir.RankedTensorType.get([size], scalars.memory_element(storage.dtype)))
        ties.append(-1)
    tied = None
    if any(tie >= 0 for tie in ties):
        tied = ir.ArrayAttr.get([ir.IntegerAttr.get(ir.IndexType.get(), tie) for tie in ties])
    entries = ir.ArrayAttr.get([kernel.executable.entry])
    made = flow.DispatchOp(types, [], entries, operands, [], [], tied_operands=tied)
    for buffer, value in zip(kernel.writes, made.operation.results, strict=False):
        values[buffer] = value
