"""A program of loop nests as an MLIR module: an executable for each kernel, and their host code."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import prod

from iree.compiler import ir
from iree.compiler.dialects import arith, func, gpu, hal, scf

from tilewright.ir.hand_written import (
    ALIGNMENT,
    Binding,
    Executable,
    call_executable,
    executable,
    index,
)
from tilewright.ir.piece_claims import Pieces
from tilewright.schedule import nest, threads
from tilewright.schedule.codegen import scalars
from tilewright.schedule.codegen.allocation import distinct
from tilewright.schedule.codegen.extern import ImportedFunctions
from tilewright.schedule.codegen.kernel import KernelEmitter
from tilewright.schedule.codegen.machine import Processor, machine_for
from tilewright.schedule.codegen.memory import Storage
from tilewright.schedule.codegen.view import part_of
from tilewright.schedule.nest import Buffer, Kernel, LoopProgram, Stmt
from tilewright.schedule.tensor import BLOCK_TAGS, THREAD_TAGS
from tilewright.schedule.types import BOOL, bits
from tilewright.space.turns import AT_ONCE, AWAKE, is_spread
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
            _host(program, emit_kernels(program, machine_for(target)))
    module.operation.verify()
    return module


def executables_for(
    program: LoopProgram,
    target: Target,
    executable_target: ir.Attribute,
    unaligned: Collection[Buffer] = (),
) -> tuple[ir.Module, list[EmittedKernel]]:
    """The kernels of a program alone, as IREE has them at the executable-sources phase.

    Args:
        program: loop nests, with threads or without.
        target: what they are compiled for.
        executable_target: IREE's attribute of that, whose context the module is made in.
        unaligned: as in `emit_kernels`.

    Returns:
        The module, and the kernels in their order.

    Raises:
        ScheduleError: as `module_for`.
    """
    with executable_target.context, ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            kernels = emit_kernels(
                program, machine_for(target), unaligned=unaligned, target=executable_target
            )
            return module, kernels


@dataclass(frozen=True)
class EmittedKernel:
    """A kernel's executable: bindings first for `reads`, then for `writes`, then scratch.

    scratch: for each buffer that a workgroup has no room for, elements and type of what all
        workgroups together need. workgroups: in x, y and z. unaligned: of its buffers, those that
        may begin at any element. pieces: of its work, on a CPU.
    """

    name: str
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]
    scratch: tuple[tuple[int, str], ...]
    workgroups: tuple[int, ...]
    executable: Executable
    unaligned: Collection[Buffer] = ()
    pieces: Pieces | None = None

    @property
    def bindings(self) -> list[Binding]:
        """Its buffers as the executable binds them."""
        return _bindings(self.reads, self.writes, self.scratch, self.unaligned)

    @property
    def function(self) -> ir.Operation:
        """The function with its code."""
        return self.executable.body.owner.operation


def _bindings(
    reads: Sequence[Buffer],
    writes: Sequence[Buffer],
    scratch: Sequence[tuple[int, str]],
    unaligned: Collection[Buffer],
) -> list[Binding]:
    return [
        *(
            Binding(_flat(b.size, b.dtype), b not in writes, _alignment(b, unaligned))
            for b in (*reads, *writes)
        ),
        *(Binding(_flat(*more), False) for more in scratch),
    ]


def _alignment(buffer: Buffer, unaligned: Collection[Buffer]) -> int:
    """Bytes that a binding begins at a multiple of."""
    return max(1, bits(buffer.dtype) // 8) if buffer in unaligned else ALIGNMENT


def emit_kernels(
    program: LoopProgram,
    processor: Processor,
    name: str = "",
    unaligned: Collection[Buffer] = (),
    target: ir.Attribute | None = None,
) -> list[EmittedKernel]:
    """Emit the executables of a program's kernels at the insertion point: the end of a module.

    Args:
        program: loop nests, with threads or without.
        processor: that they are for.
        name: of the first executable, others have a number behind it; by default they are called as
            the kernels are.
        unaligned: buffers that may begin at any element; the others are aligned as the runtime
            aligns what it allocates.
        target: IREE's attribute of the target; None where IREE is to put it in.

    Returns:
        The kernels, in the order in which they run.

    Raises:
        ScheduleError: as `module_for`.
    """
    if processor.is_gpu:
        kernels = tuple(threads.expand_reductions(kernel) for kernel in program.kernels)
    else:
        kernels = threads.serialize(program).kernels
    if target is not None:
        # Kernels that are called in the same way bind buffers in the same order.
        order = {b: n for n, b in enumerate((*program.arguments, *program.temporaries))}
        kernels = tuple(
            replace(k, reads=tuple(sorted(k.reads, key=order.__getitem__))) for k in kernels
        )
    made = []
    functions = ImportedFunctions(program.imports, processor)
    for number, kernel in enumerate(kernels):
        called = f"{name or kernel.name}_{number}" if number or not name else name
        if target is not None:
            # Where one is compiled alone, its name must not tell it from others of the same host.
            called = f"kernel_{number}"
        made.append(_kernel(called, kernel, processor, unaligned, target, functions))
    return made


def _kernel(
    name: str,
    kernel: Kernel,
    processor: Processor,
    unaligned: Collection[Buffer],
    target: ir.Attribute | None,
    functions: ImportedFunctions,
) -> EmittedKernel:
    made, large = _emitted(name, kernel, processor, (), unaligned, target, functions)
    if large:
        # Only now it is known what there is no room for: once more, with memory for that.
        operations = ir.InsertionPoint.current.block.operations
        operations[len(operations) - 1].erase()
        made, _ = _emitted(name, kernel, processor, large, unaligned, target, functions)
    if target is None:
        operations = ir.InsertionPoint.current.block.operations
        functions.link(operations[len(operations) - 1].operation)
    return made


def _emitted(
    name: str,
    kernel: Kernel,
    processor: Processor,
    scratch: tuple[tuple[int, str], ...],
    unaligned: Collection[Buffer],
    target: ir.Attribute | None,
    functions: ImportedFunctions,
) -> tuple[EmittedKernel, tuple[tuple[int, str], ...]]:
    """Emits a kernel; returns it with the scratch that it needs."""
    reads = tuple(b for b in kernel.reads if b not in kernel.writes)
    body, loops = _grid(kernel, processor)
    grid = [loops.get(tag) for tag in BLOCK_TAGS]
    counts = tuple(loop.extent if loop is not None else 1 for loop in grid)
    spread = AT_ONCE if not processor.is_gpu and is_spread(prod(counts), processor.cores) else 1
    # One of them does something, so that the runtime hands out one such at a time.
    dispatched = (spread * counts[0], *counts[1:])
    # Or the first of them do, and the others keep the workers awake.
    few = bool(loops) and not processor.is_gpu and processor.cores > 1 and prod(counts) < AWAKE
    if few:
        dispatched = (-(-AWAKE // prod(counts[1:])), *counts[1:])
    block = [kernel.block.get(tag, 1) for tag in THREAD_TAGS]
    buffers = [*reads, *kernel.writes]
    made = executable(
        name,
        _bindings(reads, kernel.writes, scratch, unaligned),
        dispatched,
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
        busy = _one_of(spread, ids) if spread > 1 else None
        if few:
            busy = _first_of(counts[0], ids)
        parts = [
            _own(own, size // prod(counts), ids, grid)
            for own, (size, _) in zip(memory[len(buffers) :], scratch, strict=True)
        ]
        bindings = {
            b: Storage(m, b.size, b.dtype, alignment=_alignment(b, unaligned))
            for b, m in zip(buffers, memory, strict=False)
        }
        emitter = KernelEmitter(processor, entry, bindings, parts, kernel.block, functions)
        values = {}
        for tag, loop in loops.items():
            var = emitter.loop_var(loop.var.name, loop.extent)
            emitter.loops[var] = ids[tag]
            values[loop.var] = emitter.sums.variable(var)
        branch = None if busy is None else scf.IfOp(busy)
        inside = nullcontext() if branch is None else emitter.block(branch.then_block)
        with emitter.bound(values), inside:
            emitter.workgroup(body, [loop for loop in grid if loop is not None])
            if branch is not None:
                scf.YieldOp([])
        emitter.finish()
    large = tuple((_part(size, dtype) * prod(counts), dtype) for size, dtype in emitter.large)
    writes = tuple(kernel.writes)
    pieces = None if processor.is_gpu else Pieces((counts[0], counts[1], counts[2]), spread)
    emitted = EmittedKernel(name, reads, writes, scratch, dispatched, made, unaligned, pieces)
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


def _one_of(spread: int, ids: dict[str, ir.Value]) -> ir.Value:
    """Whether a workgroup does something: each `spread`-th along x does, and its number becomes
    that of its part of the work."""
    number, step = ids[BLOCK_TAGS[0]], index(spread)
    ids[BLOCK_TAGS[0]] = arith.DivUIOp(number, step).result
    rest = arith.RemUIOp(number, step).result
    return arith.CmpIOp(arith.CmpIPredicate.eq, rest, index(0)).result


def _first_of(count: int, ids: Mapping[str, ir.Value]) -> ir.Value:
    """Whether a workgroup does something: the first ones along x do."""
    return arith.CmpIOp(arith.CmpIPredicate.ult, ids[BLOCK_TAGS[0]], index(count)).result


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


def _host(program: LoopProgram, kernels: Sequence[EmittedKernel]) -> None:
    inputs, outputs = (
        [tensor_type(program, b) for b in buffers] for buffers in (program.inputs, program.outputs)
    )
    function = func.FuncOp(FUNCTION, ir.FunctionType.get(inputs, outputs))
    block = function.add_entry_block()
    with ir.InsertionPoint(block):
        func.ReturnOp(call_kernels(program, kernels, list(block.arguments)))


def tensor_type(program: LoopProgram, buffer: Buffer) -> ir.Type:
    """The type that a buffer has outside the kernels.

    Args:
        program: the buffer's.
        buffer: an argument of the program, or a temporary, which has one dimension.
    """
    if buffer in program.arguments:
        name = "i1" if buffer.dtype == BOOL else buffer.dtype
        return ir.RankedTensorType.get(list(buffer.shape), ir.Type.parse(name))
    return ir.RankedTensorType.get([buffer.size], scalars.memory_element(buffer.dtype))


def call_kernels(
    program: LoopProgram,
    kernels: Sequence[EmittedKernel],
    inputs: Sequence[ir.Value],
) -> list[ir.Value]:
    """Emit the dispatches of a program at the insertion point.

    Args:
        program: the program.
        kernels: of it.
        inputs: a tensor for each of its inputs, of the type that `tensor_type` tells.

    Returns:
        A tensor for each of its outputs.
    """
    values: dict[Buffer, ir.Value] = dict(zip(program.inputs, inputs, strict=True))
    for kernel in kernels:
        _dispatch(kernel, values, lambda buffer: tensor_type(program, buffer))
    return [values[buffer] for buffer in program.outputs]


def _dispatch(
    kernel: EmittedKernel, values: dict[Buffer, ir.Value], tensor: Callable[[Buffer], ir.Type]
) -> None:
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
    made = call_executable(kernel.executable.entry, types, operands, ties)
    for buffer, value in zip(kernel.writes, made, strict=False):
        values[buffer] = value
