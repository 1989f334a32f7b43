"""Kernels of a spec as stages of one dispatch, in the place of calls that follow each other.

A spec puts kernels in the place of sites; what it does then is replace calls of these, where a
sequence of them (`ir/sequences`) stands in a program, by one call of an executable that has the
code of all:

    hal.executable.source private @tilewright_3f0a…_sequence <objects = … of all stages …> { … }
    util.func private @tilewright_3f0a…_sequence_call(%x: …, …) -> … {
      %claims = flow.tensor.splat %zero
      %result, %memory, %used = flow.dispatch @tilewright_3f0a…_sequence::…(%claims, %x, …)
      util.return %result
    }

with a matcher of the calls and a rewrite, as kernels have them. A spec whose sequence does not
occur in a program leaves the kernels there as they are.

A loop of little but a sequence is written out behind that. Each time around a loop is a submission
of its own otherwise, with memory that is taken and given back, and IREE 3.13 copies what all times
around make together in each of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from iree.compiler import ir

from tilewright.attributes import Tree
from tilewright.errors import UserError
from tilewright.ir.bitcode import family_of, objects_of, put_objects
from tilewright.ir.hand_written import Binding, Executable, call_executable, executable
from tilewright.ir.piece_claims import claiming_code, claims_binding, no_claims, put_in_place
from tilewright.ir.stages import SequencePlan, StageKernel, plan_sequence, stage_kernels
from tilewright.ir.walk import symbols, walk
from tilewright.space.turns import AWAKE
from tilewright.spec import library, shared_sequences
from tilewright.spec.kernels import KernelSymbols, executables_of, store_sequence
from tilewright.spec.pattern import SitePattern, call, define_function

_FUNCTION = "main"
_LOCAL_MEMORY = "workgroup_local_memory"


def add_sequences(text: str, sequences: Sequence[tuple[bytes, int]], cores: int) -> str:
    """Have a spec make sequences of its kernels one dispatch each.

    Args:
        text: a preprocessing spec with kernels.
        sequences: as modules, and how many times around their loops are written out, see
            `FoundSequence`; of kernels that the spec has.
        cores: workers of the target, each of which gets a workgroup.

    Returns:
        The spec's text.

    Raises:
        UserError: a sequence cannot be recognised.
    """
    with library.new_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        main = symbols(module)[library.PREPROCESSING_ENTRY_POINT]
        kernels = stage_kernels(module.operation)
        names = executables_of(module.operation)
        modules = [(ir.Module.parse(one), together) for one, together in sequences]
        levels: dict[int, dict[str, str]] = defaultdict(dict)
        written_out: dict[str, int] = {}
        with ir.InsertionPoint(main):
            for one, together in modules:
                pattern = SitePattern(symbols(one)[_FUNCTION])
                made = KernelSymbols.of(f"{pattern.digest}_sequence")
                if made.matcher not in levels[len(pattern.ops)]:
                    _define(module.operation, made, pattern, kernels, names, cores)
                    levels[len(pattern.ops)][made.matcher] = made.action
                    if together > 1:
                        written_out[made.executable] = together
        # Longer ones first, each length in a walk of its own: a sequence may be a part of another.
        ordered = [list(levels[size].items()) for size in sorted(levels, reverse=True)]
        _extend(main, ordered, written_out)
        shared_sequences.add_helpers(module)
        return library.checked_text(module, "sequences")


def _define(
    module: ir.Operation,
    made: KernelSymbols,
    pattern: SitePattern,
    kernels: Mapping[str, StageKernel],
    names: Mapping[str, tuple[str, ...]],
    cores: int,
) -> None:
    """Define executable, function, matcher and rewrite of a sequence."""
    plan = plan_sequence(pattern.function, kernels)
    types = [pattern.input_types[number] for number in plan.inputs]
    outputs = [pattern.output_type]
    if plan.scratch:
        outputs.append(ir.RankedTensorType.get([plan.scratch], ir.IntegerType.get_signless(8)))
    bindings = [
        claims_binding(len(plan.stages)),
        *(_binding(type_, True) for type_ in types),
        *(_binding(type_, False) for type_ in outputs),
    ]
    whole = executable(made.executable, bindings, (max(AWAKE, cores) if cores > 1 else 1, 1, 1))
    called = [name for stage in plan.names for name in names[stage]]
    store_sequence(called, whole.body.owner.operation)
    _link(module, whole, plan)

    def body(*values: ir.Value) -> list[ir.Value]:
        claims = no_claims(len(plan.stages))
        results = call_executable(
            whole.entry,
            [*outputs, claims.type],
            [claims, *(values[number] for number in plan.inputs)],
            [*[-1] * len(outputs), 0],
        )
        return results[:1]

    function = define_function(made.call, pattern.input_types, [pattern.output_type], body)
    store_sequence(called, function)
    pattern.define_matcher(made.matcher)
    handles = [library.any_op(), library.any_value(), library.any_value()]

    def replace(root: ir.Value, inputs: ir.Value, _: ir.Value) -> None:
        parent = ir.Operation.create(
            "transform.util.get_nearest_symbol_table", operands=[root], results=[library.any_op()]
        ).results[0]
        ir.Operation.create(
            "transform.util.import_symbol",
            operands=[parent],
            results=[library.any_op()],
            attributes={
                "symbol": ir.FlatSymbolRefAttr.get(made.executable),
                "if_undefined": ir.UnitAttr.get(),
            },
        )
        call(made.call, pattern.ordered(inputs), pattern.result(root), root)

    library.define(made.action, handles, replace)


def _binding(type_: ir.Type, read_only: bool) -> Binding:
    shaped = ir.RankedTensorType(type_)
    return Binding(ir.MemRefType.get(shaped.shape, shaped.element_type), read_only)


def _link(module: ir.Operation, whole: Executable, plan: SequencePlan) -> None:
    """Give an executable the code of its stages."""
    function = whole.body.owner.operation
    source = function.parent.parent
    of = symbols(module)
    parts = [of[name].operation for name in dict.fromkeys(plan.names)]
    objects: dict[str, list[Tree]] = {}
    for part in parts:
        for target, linked in objects_of(part).items():
            objects.setdefault(target, []).extend(linked)
    if len(objects) != 1:
        raise UserError("kernels for different processors cannot be one dispatch")
    put_objects(source, objects)
    sizes = [
        ir.IntegerAttr(op.attributes[_LOCAL_MEMORY]).value
        for part in parts
        for op in walk(part, lambda o: o.name != "llvm.func")
        if op.name == "hal.executable.export" and _LOCAL_MEMORY in op.attributes
    ]
    for op in walk(source, lambda o: o.name != "func.func"):
        if op.name == "hal.executable.export" and sizes:
            op.attributes[_LOCAL_MEMORY] = ir.IntegerAttr.get(ir.IndexType.get(), max(sizes))
    name = library.symbol(function)
    put_in_place(function, name, claiming_code(name, plan.stages, family_of(source)))


def _extend(
    main: ir.Operation,
    levels: Sequence[Sequence[tuple[str, str]]],
    written_out: Mapping[str, int],
) -> None:
    """Have an entry point try matchers on every function, after all that it does; and write out so
    many times around the loops that dispatch some executables."""
    block = main.regions[0].blocks[0]
    *steps, end = [op.operation for op in block.operations]
    handle = library.handed_on(block.arguments[0], steps)

    def convert(function: ir.Value) -> None:
        for pairs in levels:
            function = library.foreach_match(function, pairs)
            ir.Operation.create("transform.apply_dce", operands=[function])
        for name, together in written_out.items():
            library.write_out_loops(function, name, together)

    if levels:
        with ir.InsertionPoint(end):
            library.foreach(library.match(handle, [library.FUNCTION]), convert)
