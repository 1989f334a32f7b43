"""Executables written by hand: what the compiler takes without tiling or vectorizing anything.

The body of a `hal.executable.source` whose function says `no_pipeline` goes through IREE's code
generation as it is; `flow.dispatch` calls it from the host's code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, builtin, flow, func, hal

from tilewright.attributes import attribute
from tilewright.ir.walk import attribute_of
from tilewright.tiling import translation_info

#: Bytes that buffers of the runtime are aligned to.
ALIGNMENT = 64

_READ_ONLY = '"ReadOnly|Indirect"'
_WRITTEN = "Indirect"


@dataclass(frozen=True)
class Binding:
    """A buffer of an executable: its memref type, whether it is only read, and bytes that it begins
    at a multiple of."""

    type: ir.MemRefType
    read_only: bool
    alignment: int = ALIGNMENT


@dataclass(frozen=True)
class Executable:
    """An executable without code: put operations into `body`, before its terminator.

    entry: what `dispatch` calls. buffers: one value for each binding.
    """

    entry: ir.Attribute
    body: ir.Block
    buffers: tuple[ir.Value, ...]


def index(value: int) -> ir.Value:
    """A constant of type `index`, at the insertion point.

    Args:
        value: its value.

    Returns:
        The constant.
    """
    return arith.ConstantOp(ir.IndexType.get(), value).result


def executable(
    name: str,
    bindings: Sequence[Binding],
    workgroups: Sequence[int],
    *,
    workgroup_size: Sequence[int] | None = None,
    subgroup_size: int | None = None,
    target: ir.Attribute | None = None,
) -> Executable:
    """Add an executable of this name, whose function has it too, at the insertion point.

    What follows in the module needs an insertion point of its own.

    Args:
        name: of the executable, its entry point and its function.
        bindings: its buffers.
        workgroups: their numbers in up to three dimensions.
        workgroup_size: threads in each of three dimensions, for GPUs.
        subgroup_size: threads of a subgroup, for GPUs.
        target: the `#hal.executable.target` that it is compiled for; then it is in the form of the
            executable-sources phase and can be compiled alone. Without one it can be dispatched.

    Returns:
        The executable, without code.
    """
    layout = layout_of(bindings)
    with ir.InsertionPoint(_place(name, target)):
        export = hal.ExecutableExportOp(
            name,
            layout,
            sym_visibility="public",
            ordinal=ir.IntegerAttr.get(ir.IndexType.get(), 0),
        )
        count = export.operation.regions[0].blocks.append(ir.Type.parse("!hal.device"))
        with ir.InsertionPoint(count):
            hal.ReturnOp([index(n) for n in (*workgroups, 1, 1, 1)[:3]])
        inner = builtin.ModuleOp()
        (hal.ExecutableSourceEndOp if target is None else hal.ExecutableVariantEndOp)()
    with ir.InsertionPoint(inner.body):
        kernel = func.FuncOp(name, ir.FunctionType.get([], []))
        kernel.operation.attributes["translation_info"] = _translation(
            workgroup_size, subgroup_size
        )
        block = kernel.add_entry_block()
        with ir.InsertionPoint(block):
            zero = index(0)
            buffers = tuple(
                hal.InterfaceBindingSubspanOp(
                    binding.type, layout, number, [], byte_offset=zero, alignment=binding.alignment
                ).result
                for number, binding in enumerate(bindings)
            )
            func.ReturnOp([])
    return Executable(ir.SymbolRefAttr.get([name, name]), block, buffers)


def layout_of(bindings: Iterable[Binding]) -> ir.Attribute:
    """The layout of a pipeline that has some buffers; the context is entered.

    Args:
        bindings: in their order.
    """
    flags = (_READ_ONLY if binding.read_only else _WRITTEN for binding in bindings)
    listed = [attribute("#hal.pipeline.binding", "storage_buffer", flag) for flag in flags]
    return attribute_of(attribute("#hal.pipeline.layout", bindings=listed))


def _place(name: str, target: ir.Attribute | None) -> ir.Block:
    """Where an executable's export and code go."""
    if target is None:
        regions = hal.ExecutableSourceOp(name, sym_visibility="private").body
    else:
        # One that nothing on the host uses is removed unless it can be seen.
        whole = hal.ExecutableOp(name)
        with ir.InsertionPoint(whole.body.blocks.append()):
            regions = hal.ExecutableVariantOp("code", target).body
            hal.ExecutableEndOp()
    place: ir.Block = regions.blocks.append()
    return place


def dispatch(
    executable: Executable, results: Sequence[ir.Type], arguments: Sequence[ir.Value]
) -> list[ir.Value]:
    """Call an executable at the insertion point.

    Args:
        executable: one of this module.
        results: types of the tensors that it makes.
        arguments: the tensors that it reads.

    Returns:
        The tensors that it makes.
    """
    return call_executable(executable.entry, results, arguments)


def call_executable(
    entry: ir.Attribute,
    results: Sequence[ir.Type],
    arguments: Sequence[ir.Value],
    ties: Sequence[int] = (),
) -> list[ir.Value]:
    """A `flow.dispatch` at the insertion point.

    Args:
        entry: of the executable, as `Executable.entry`.
        results: types of the tensors that it makes.
        arguments: the tensors that it gets.
        ties: for each result the number of the argument whose memory it is, -1 where it is of its
            own; by default all are.

    Returns:
        The tensors that it makes.
    """
    index = ir.IndexType.get()
    # Written out where none is tied, too: so it is in programs that were read from their text.
    tied = [ir.IntegerAttr.get(index, tie) for tie in ties or [-1] * len(results)]
    op = flow.DispatchOp(
        list(results),
        [],
        ir.ArrayAttr.get([entry]),
        list(arguments),
        [],
        [],
        tied_operands=ir.ArrayAttr.get(tied),
    )
    return list(op.operation.results)


def _translation(workgroup_size: Sequence[int] | None, subgroup_size: int | None) -> ir.Attribute:
    pipeline = attribute("#iree_codegen.no_pipeline")
    return attribute_of(translation_info(pipeline, {}, workgroup_size or (), subgroup_size or 0))
