"""The parts that all our specs share: names, helper sequences, and the passes run before matching.

A spec is a transform dialect module whose `__kernel_config` IREE runs on the function of every
dispatch. Ours looks like this (the entries are built in :mod:`tilewright.spec.matcher`):

    transform.named_sequence @__kernel_config(%func) {
      %0 = transform.apply_registered_pass "…" to %func        // see PROLOGUE
      transform.sequence %0 failures(suppress) {
      ^bb0(%f):
        transform.include @tuned_0 failures(propagate) (%f)    // fails silently: not this dispatch
        transform.include @tuned_1 failures(propagate) (%f)
      }
      transform.yield %0
    }
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from iree.compiler import ir
from iree.compiler.dialects import transform
from iree.compiler.dialects.transform import structured

#: Attribute on a function that one of our entries configured; its value is the entry's id.
MARKER = "tilewright.tuned"
#: Attribute on the module of a spec of ours: a dictionary of strings (what made it, for what).
HEADER = "tilewright.spec"
#: Names of our helper sequences start with this.
PREFIX = "tilewright_"
ENTRY_POINT = "__kernel_config"
ENTRY_POINT_ATTR = "iree_codegen.tuning_spec_entrypoint"
DEFAULT_ENTRY_POINT_ATTR = "iree_codegen.tuning_spec_with_default_entrypoint"

#: Attributes that configure an op. They are no part of what an op computes.
CONFIGURATION_ATTRS = ("lowering_config", "compilation_info", "root_op")

# On llvm-cpu IREE applies tuning specs before the passes below, which replace ops (data tiling,
# convolutions of batch 1, f16, padded stores) and would drop the configuration put on them.
# Running them first shows the spec the ops that the default configuration is chosen for. They find
# nothing to do when IREE runs them again. In IREE's order.
CPU_PROLOGUE: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("iree-codegen-materialize-device-encoding", ()),
    ("iree-codegen-cpu-propagate-data-layout", ()),
    ("iree-codegen-rematerialize-parallel-ops", ()),
    ("iree-codegen-insert-batch-dim-for-batchless-conv", ()),
    ("iree-llvmcpu-expand-f16-op-to-f32", ()),
    ("iree-convert-accgemm-to-gemm", ()),
    ("iree-codegen-erase-hal-descriptor-type-from-memref", ()),
    ("iree-codegen-bufferize-dispatch-tensor-load-store", ()),
    ("iree-codegen-combine-result-layout-transformation", (("scope", "dispatch-reshape"),)),
)


def new_context() -> ir.Context:
    """A context for reading and writing specs; single-threaded, the modules are small."""
    context = ir.Context()
    context.enable_multithreading(False)
    context.load_all_available_dialects()
    return context


def any_op() -> ir.Type:
    return transform.AnyOpType.get()


def any_value() -> ir.Type:
    return transform.AnyValueType.get()


def any_param() -> ir.Type:
    return transform.AnyParamType.get()


def readonly() -> dict[str, ir.Attribute]:
    return {"transform.readonly": ir.UnitAttr.get()}


def text(attribute: ir.Attribute) -> str:
    """The value of a string attribute or symbol reference."""
    if isinstance(attribute, ir.FlatSymbolRefAttr):
        return str(attribute.value)
    return str(ir.StringAttr(attribute).value)


def symbol(op: ir.Operation) -> str:
    """The symbol that `op` defines, or nothing."""
    attributes = op.operation.attributes
    return text(attributes["sym_name"]) if "sym_name" in attributes else ""


def walk(root: ir.Operation) -> Iterator[ir.Operation]:
    """Every op in `root`, itself included, outermost first."""
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        found.append(op)
        return ir.WalkResult.ADVANCE

    root.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return iter(found)


def new_module(header: dict[str, str]) -> ir.Module:
    """An empty library of named sequences that says who wrote it."""
    module = ir.Module.create()
    module.operation.attributes["transform.with_named_sequence"] = ir.UnitAttr.get()
    values = {key: ir.StringAttr.get(value) for key, value in header.items()}
    module.operation.attributes[HEADER] = ir.DictAttr.get(values)
    return module


def named_sequence(name: str, arguments: Sequence[ir.Type]) -> ir.Operation:
    """A private sequence that only reads its arguments and yields nothing, its body still open."""
    return transform.NamedSequenceOp(
        name, list(arguments), [], arg_attrs=[readonly() for _ in arguments]
    )


def include(name: str, operands: Sequence[ir.Value]) -> None:
    """Call the sequence `name`; a check that fails in it fails the caller."""
    transform.IncludeOp(
        [], ir.FlatSymbolRefAttr.get(name), transform.FailurePropagationMode.Propagate, operands
    )


def integer_type() -> ir.Type:
    return transform.ParamType.get(ir.IntegerType.get_signless(64))


def integer(value: int) -> ir.Value:
    """A 64-bit integer parameter."""
    attribute = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
    return transform.ParamConstantOp(integer_type(), attribute).result


def match_tiled_ops(func: ir.Value) -> ir.Value:
    """A handle to the compute ops of `func`, in program order."""
    interface = structured.MatchInterfaceEnum.TilingInterface
    return structured.MatchOp(any_op(), func, interface=interface).result


# Helper sequences -------------------------------------------------------------------------------

UNCONFIGURED = "tilewright_unconfigured"
COUNT_OPS = "tilewright_count_ops"
COUNT_VALUES = "tilewright_count_values"
COUNT_OPERANDS = "tilewright_count_operands"
SAME_VALUE = "tilewright_same_value"


def _unconfigured(func: ir.Value) -> None:
    """No compute op has a configuration yet: not from an earlier entry, not from the user."""
    each = transform.ForeachOp([], [match_tiled_ops(func)])
    with ir.InsertionPoint(each.body):
        ir.Operation.create(
            "transform.iree.match.has_no_lowering_config", operands=[each.body.arguments[0]]
        )
        transform.YieldOp()


def _count(handle: ir.Value, count: ir.Value) -> None:
    number = transform.NumAssociationsOp(integer_type(), handle).result
    transform.MatchParamCmpIOp(number, count, transform.MatchCmpIPredicate.eq)


def _count_operands(op: ir.Value, count: ir.Value) -> None:
    _count(transform.GetOperandOp(any_value(), op, [], is_all=True).result, count)


def _same_value(first: ir.Value, second: ir.Value) -> None:
    _count(transform.merge_handles([first, second], deduplicate=True), integer(1))


_HELPERS: dict[str, tuple[Callable[[], list[ir.Type]], Callable[..., None]]] = {
    UNCONFIGURED: (lambda: [any_op()], _unconfigured),
    COUNT_OPS: (lambda: [any_op(), integer_type()], _count),
    COUNT_VALUES: (lambda: [any_value(), integer_type()], _count),
    COUNT_OPERANDS: (lambda: [any_op(), integer_type()], _count_operands),
    SAME_VALUE: (lambda: [any_value(), any_value()], _same_value),
}


def add_helpers(module: ir.Module) -> None:
    """Define the helper sequences that `module` uses and does not have, at its start."""
    used = {
        text(op.attributes["target"])
        for op in walk(module.operation)
        if op.name == "transform.include"
        and isinstance(op.attributes["target"], ir.FlatSymbolRefAttr)
    }
    defined = {symbol(op) for op in module.body.operations}
    operations = list(module.body.operations)
    point = ir.InsertionPoint(operations[0]) if operations else ir.InsertionPoint(module.body)
    with point:
        for name, (types, build) in _HELPERS.items():
            if name not in used or name in defined:
                continue
            sequence = named_sequence(name, types())
            with ir.InsertionPoint(sequence.body):
                build(*sequence.body.arguments)
                transform.YieldOp()
