"""The parts that all our specs share: names, helper sequences, and the passes run before matching.

A spec is a transform dialect module whose `__kernel_config` IREE runs on the function of every
dispatch. Ours looks like this (the entries are built in :mod:`tilewright.spec.write`):

    transform.named_sequence @__kernel_config(%func) {
      %0 = transform.structured.match ops{["func.func"]} in %func    // see only_functions
      %1 = transform.apply_registered_pass "…" to %0                 // see CPU_PROLOGUE
      transform.sequence %1 failures(suppress) {
      ^bb0(%f):
        transform.include @tuned_0 failures(propagate) (%f)    // fails silently: not this dispatch
        transform.include @tuned_1 failures(propagate) (%f)
      }
      transform.yield %1
    }
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iree.compiler import ir
from iree.compiler.dialects import transform
from iree.compiler.dialects.transform import structured

from tilewright.errors import UserError
from tilewright.ir.walk import string_attribute, walk

#: Attribute on a function that one of our entries configured; its value is the entry's id.
MARKER = "tilewright.tuned"
#: Attribute on the module of a spec of ours: a dictionary of strings (what made it, for what).
HEADER = "tilewright.spec"
#: Attribute on the module: of each entry what is known of it (`spec.evidence`).
EVIDENCE = "tilewright.evidence"
#: Names of our helper sequences start with this.
PREFIX = "tilewright_"
ENTRY_POINT = "__kernel_config"
#: What the compiler runs of a preprocessing spec, on the program's module.
PREPROCESSING_ENTRY_POINT = "__transform_main"
#: Attributes on a program's module: how many convolutions of each shape a spec of ours found.
IM2COL = "tilewright.im2col."
# Of a dispatch.
_FUNCTION = "func.func"
#: A program's functions at the preprocessing phase.
FUNCTION = "util.func"
ENTRY_POINT_ATTR = "iree_codegen.tuning_spec_entrypoint"

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
    """A context for reading and writing specs; single-threaded, the modules are small.

    Returns:
        A context with all dialects of the compiler.
    """
    context = ir.Context()
    context.enable_multithreading(False)
    context.load_all_available_dialects()
    return context


def any_op() -> ir.Type:
    """The type of handles to ops."""
    return transform.AnyOpType.get()


def any_value() -> ir.Type:
    """The type of handles to values."""
    return transform.AnyValueType.get()


def any_param() -> ir.Type:
    """The type of parameters that hold any attribute."""
    return transform.AnyParamType.get()


def text(attribute: ir.Attribute) -> str:
    """The value of a string attribute or symbol reference.

    Args:
        attribute: one of these.

    Returns:
        The text; `a::b` for a nested reference.
    """
    if isinstance(attribute, ir.FlatSymbolRefAttr):
        return str(attribute.value)
    if isinstance(attribute, ir.SymbolRefAttr):
        return "::".join(attribute.value)
    return str(ir.StringAttr(attribute).value)


def symbol(op: ir.Operation) -> str:
    """The symbol that an op defines.

    Args:
        op: any.

    Returns:
        Its name, '' where it defines none.
    """
    return string_attribute(op.operation, "sym_name")


def reason(error: ir.MLIRError) -> str:
    """The line of an error that says what is wrong.

    Args:
        error: of parsing or verifying.

    Returns:
        The compiler's first line behind the bindings' own.
    """
    lines = str(error).splitlines()
    return lines[1] if len(lines) > 1 else lines[0]


def checked_text(module: ir.Module, what: str) -> str:
    """The text of a spec that was put together from others'.

    Args:
        module: the spec.
        what: what messages call it.

    Raises:
        UserError: it is not valid; with the compiler's line.
    """
    try:
        module.operation.verify()
    except ir.MLIRError as error:
        raise UserError(f"the {what} spec is not valid: {reason(error)}") from error
    return printed(module)


def printed(module: ir.Module) -> str:
    """The text of a spec, in a form that the supported versions of IREE all read.

    Executables, which kernels are, have another syntax of their own in IREE 3.12 than in 3.13, in
    which neither reads the other's: specs that have some are written in the generic form of MLIR.

    Args:
        module: the spec.
    """
    kernels = any(op.operation.name == _EXECUTABLE for op in module.body.operations)
    return str(module.operation.get_asm(print_generic_op_form=kernels))


_EXECUTABLE = "hal.executable.source"


def new_module(header: dict[str, str]) -> ir.Module:
    """An empty library of named sequences that says who wrote it.

    Args:
        header: what is kept on the module: what made it, for what.

    Returns:
        The module.
    """
    module = ir.Module.create()
    module.operation.attributes["transform.with_named_sequence"] = ir.UnitAttr.get()
    module.operation.attributes[HEADER] = texts(header)
    return module


def put_evidence(module: ir.Operation, evidence: Mapping[str, Mapping[str, str]]) -> None:
    """Note on a spec what is known of its entries.

    Args:
        module: the spec.
        evidence: texts by the names of entries; empty: the module is left as it is.
    """
    if evidence:
        known = {name: texts(one) for name, one in evidence.items()}
        module.attributes[EVIDENCE] = ir.DictAttr.get(known)


def texts(values: Mapping[str, str]) -> ir.Attribute:
    """A dictionary of strings as an attribute.

    Args:
        values: by key.
    """
    return ir.DictAttr.get({key: ir.StringAttr.get(value) for key, value in values.items()})


def define(
    name: str,
    types: Sequence[ir.Type],
    build: Callable[..., ir.Value | Sequence[ir.Value] | None],
    *,
    results: Sequence[ir.Type] = (),
    consumes: bool = False,
) -> ir.Operation:
    """Define a sequence at the insertion point.

    Args:
        name: its symbol.
        types: of its arguments.
        build: emits its body, given the arguments; the value or values that it yields, if any.
        results: the types of these.
        consumes: whether it may consume its arguments; else it only reads them.

    Returns:
        The sequence.
    """
    sequence = transform.NamedSequenceOp(
        name, list(types), list(results), arg_attrs=accesses(len(types), consumes)
    )
    with ir.InsertionPoint(sequence.body):
        built = build(*sequence.body.arguments)
        transform.YieldOp(values(built))
    return sequence.operation


def accesses(arguments: int, consumes: bool) -> ir.ArrayAttr:
    """What a sequence says of its arguments.

    Args:
        arguments: their number.
        consumes: whether it may consume them.
    """
    access = "transform.consumed" if consumes else "transform.readonly"
    return ir.ArrayAttr.get([ir.DictAttr.get({access: ir.UnitAttr.get()})] * arguments)


def values(built: ir.Value | Sequence[ir.Value] | None) -> list[ir.Value]:
    """One value, several or none as a list.

    Args:
        built: what a sequence yields.
    """
    if built is None:
        return []
    return [built] if isinstance(built, ir.Value) else list(built)


def define_entry_point(build: Callable[[ir.Value], ir.Value], consumes: bool) -> ir.Operation:
    """Define what the compiler runs on the function of every dispatch.

    Args:
        build: emits the body, given the function; the handle of the function after it.
        consumes: whether a step consumes the function's handle.

    Returns:
        The sequence.
    """
    sequence = define(ENTRY_POINT, [any_op()], build, results=[any_op()], consumes=consumes)
    sequence.attributes[ENTRY_POINT_ATTR] = ir.UnitAttr.get()
    return sequence


def match(
    root: ir.Value,
    ops: Sequence[str] = (),
    attributes: Mapping[str, ir.Attribute] | None = None,
    **filters: Any,
) -> ir.Value:
    """Match ops in `root`, itself included.

    Args:
        root: a handle.
        ops: names, one of which they have; empty: any.
        attributes: that they have.
        filters: what else `transform.structured.match` takes.

    Returns:
        A handle to them in program order.
    """
    if attributes is not None:
        filters["op_attrs"] = ir.DictAttr.get(dict(attributes))
    if ops:
        filters["ops"] = ir.ArrayAttr.get([ir.StringAttr.get(name) for name in ops])
    return structured.MatchOp(any_op(), root, **filters).result


def only_functions(func: ir.Value) -> ir.Value:
    """What the passes of an entry point are run on: nothing where the code is linked bitcode.

    Kernels of ours are functions of LLVM's dialect then, on which a pass of IREE 3.13 crashes.

    Args:
        func: the handle of the function that the compiler runs the entry point on.

    Returns:
        A handle to it, or to nothing.
    """
    return match(func, [_FUNCTION])


def is_only_functions(step: ir.Operation) -> bool:
    """Whether a step of an entry point is what :func:`only_functions` emits.

    Args:
        step: the op.
    """
    names = [text(one) for one in step.attributes["ops"]] if "ops" in step.attributes else []
    return (
        step.name == "transform.structured.match"
        and names == [_FUNCTION]
        and "op_attrs" not in step.attributes
    )


def foreach(handle: ir.Value, build: Callable[[ir.Value], None]) -> None:
    """Do something with each of the ops that a handle stands for.

    Args:
        handle: to the ops.
        build: emits what is done, given a handle to one.
    """
    every = transform.ForeachOp([], [handle])
    with ir.InsertionPoint(every.body):
        build(every.body.arguments[0])
        transform.YieldOp()


def foreach_match(root: ir.Value, pairs: Sequence[tuple[str, str]]) -> ir.Value:
    """Try matchers on each op below another, and act on the first that fits.

    Args:
        root: its handle, which is consumed.
        pairs: names of matcher and action, in the order in which they are tried.

    Returns:
        The handle after it.
    """
    matchers, actions = (
        ir.ArrayAttr.get([ir.FlatSymbolRefAttr.get(name) for name in names])
        for names in zip(*pairs, strict=True)
    )
    return transform.ForeachMatchOp(any_op(), [], root, [], matchers, actions).updated


def include(name: str, operands: Sequence[ir.Value]) -> None:
    """Call a sequence; a check that fails in it fails the caller.

    Args:
        name: of the sequence.
        operands: what it is called with.
    """
    transform.IncludeOp(
        [], ir.FlatSymbolRefAttr.get(name), transform.FailurePropagationMode.Propagate, operands
    )


def split(handle: ir.Value, count: int) -> Sequence[ir.Value]:
    """One handle for each of the things that a handle stands for.

    Args:
        handle: to ops or values.
        count: how many these are.

    Returns:
        The handles, in order.
    """
    if count == 1:
        return [handle]
    return list(transform.SplitHandleOp([handle.type] * count, handle).results)


def integer_type() -> ir.Type:
    """The type of 64-bit integer parameters."""
    return transform.ParamType.get(ir.IntegerType.get_signless(64))


def integer(value: int) -> ir.Value:
    """A 64-bit integer parameter.

    Args:
        value: what it holds.

    Returns:
        The parameter.
    """
    attribute = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
    return transform.ParamConstantOp(integer_type(), attribute).result


def match_tiled_ops(func: ir.Value) -> ir.Value:
    """A handle to the compute ops of a function, in program order.

    Args:
        func: the function's handle.

    Returns:
        The handle.
    """
    return match(func, interface=structured.MatchInterfaceEnum.TilingInterface)


# Helper sequences -------------------------------------------------------------------------------

UNCONFIGURED = "tilewright_unconfigured"
COUNT_OPS = "tilewright_count_ops"
COUNT_VALUES = "tilewright_count_values"
COUNT_OPERANDS = "tilewright_count_operands"
SAME_VALUE = "tilewright_same_value"

#: Unit attribute on a function that an earlier spec of a merged one configured.
CONFIGURED = "tilewright.configured"
_FREE = PREFIX + "is_free_function"
_ANY = PREFIX + "is_anything"
_IN_CONFIGURED = PREFIX + "is_in_configured_function"
_LEAVE = PREFIX + "leave"
_MARK = PREFIX + "mark_configured"
_HAS_MARK = PREFIX + "has_configured_mark"

# A foreign `foreach_match` in a merged spec is kept from functions that are configured already in
# two steps, because a spec may configure several ops of one function: before it starts, the
# functions that have a configuration are marked; while it runs, the ops in marked ones are skipped.

#: The (matcher, action) that takes up every op of a marked function and does nothing.
GUARDING_PAIR = (_IN_CONFIGURED, _LEAVE)


def mark_configured(func: ir.Value) -> ir.Value:
    """Emit the step that marks a function if one of its ops is configured.

    Args:
        func: its handle, which is consumed.

    Returns:
        The handle after it.
    """
    matchers, actions = (
        ir.ArrayAttr.get([ir.FlatSymbolRefAttr.get(name) for name in names])
        for names in ((_FREE, _ANY), (_LEAVE, _MARK))
    )
    # Without `restrict_root` the function itself, which is the root, would be passed over.
    return transform.ForeachMatchOp(
        any_op(), [], func, [], matchers, actions, restrict_root=True
    ).updated


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


def _is_free(func: ir.Value) -> ir.Value:
    include(UNCONFIGURED, [func])
    return func


def _is_in_configured(op: ir.Value) -> ir.Value:
    include(_HAS_MARK, [transform.GetParentOp(any_op(), op, op_name=_FUNCTION).result])
    return op


def _has_mark(func: ir.Value) -> None:
    marked = match(func, [_FUNCTION], {CONFIGURED: ir.UnitAttr.get()})
    include(COUNT_OPS, [marked, integer(1)])


def _mark(func: ir.Value) -> None:
    transform.AnnotateOp(func, CONFIGURED)


@dataclass(frozen=True)
class _Helper:
    """A helper sequence; a matcher hands on the op that it is given."""

    build: Callable[..., ir.Value | None]
    types: tuple[Callable[[], ir.Type], ...] = (any_op,)
    is_matcher: bool = False


# Each after those that it uses.
_HELPERS = {
    UNCONFIGURED: _Helper(_unconfigured),
    COUNT_OPS: _Helper(_count, (any_op, integer_type)),
    COUNT_VALUES: _Helper(_count, (any_value, integer_type)),
    COUNT_OPERANDS: _Helper(_count_operands, (any_op, integer_type)),
    SAME_VALUE: _Helper(_same_value, (any_value, any_value)),
    _HAS_MARK: _Helper(_has_mark),
    _FREE: _Helper(_is_free, is_matcher=True),
    _ANY: _Helper(lambda op: op, is_matcher=True),
    _IN_CONFIGURED: _Helper(_is_in_configured, is_matcher=True),
    _LEAVE: _Helper(lambda op: None),
    _MARK: _Helper(_mark),
}


def add_helpers(module: ir.Module) -> None:
    """Define the helper sequences that a module uses and does not have, at its start.

    Args:
        module: a library of named sequences.
    """
    defined = {symbol(op) for op in module.body.operations}
    used = _used(module.operation)
    for name, helper in reversed(_HELPERS.items()):
        if name in defined or name not in used:
            continue
        with ir.InsertionPoint.at_block_begin(module.body):
            results = [any_op()] if helper.is_matcher else []
            types = [type_() for type_ in helper.types]
            used |= _used(define(name, types, helper.build, results=results))


def _used(root: ir.Operation) -> set[str]:
    """The sequences that ops below `root` include or match with."""
    found: set[str] = set()
    for op in walk(root):
        if op.name == "transform.include":
            found.add(text(op.attributes["target"]))
        elif op.name == "transform.foreach_match":
            for name in ("matchers", "actions"):
                found |= {text(reference) for reference in ir.ArrayAttr(op.attributes[name])}
    return found
