"""The parts that all our specs share: names, steps, and the passes run before matching.

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

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from iree.compiler import ir
from iree.compiler.dialects import transform
from iree.compiler.dialects.transform import structured

from tilewright.errors import UserError
from tilewright.ir.walk import string_attribute

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
#: The function of a dispatch.
FUNCTION_OP = "func.func"
#: A program's functions at the preprocessing phase.
FUNCTION = "util.func"
ENTRY_POINT_ATTR = "iree_codegen.tuning_spec_entrypoint"

_LOOPS = ("scf.for", "scf.while")
# Steps that hand on what they consume.
_HANDS_ON = frozenset({"transform.apply_registered_pass", "transform.foreach_match"})

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
    return match(func, [FUNCTION_OP])


def is_only_functions(step: ir.Operation) -> bool:
    """Whether a step of an entry point is what :func:`only_functions` emits.

    Args:
        step: the op.
    """
    names = [text(one) for one in step.attributes["ops"]] if "ops" in step.attributes else []
    return (
        step.name == "transform.structured.match"
        and names == [FUNCTION_OP]
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


def move_out_of_loops(function: ir.Value) -> None:
    """Compute before each loop what is the same in all of its steps, and once what several of them
    need: constants as kernels read them.

    IREE evaluates ahead what it finds to be constant, and of what stands in a loop only a part.

    Args:
        function: its handle, which is not consumed.
    """
    loops = match(function, _LOOPS)
    ir.Operation.create("transform.apply_licm", operands=[loops])
    owner = _around(loops, isolated_from_above=ir.UnitAttr.get())
    ir.Operation.create("transform.apply_cse", operands=[owner])


def write_out_loops(function: ir.Value, executable: str, together: int) -> None:
    """Write out several times around the loops that dispatch an executable, one after the other.

    Args:
        function: its handle, which is not consumed.
        executable: with one entry point, of its name.
        together: how many times around.
    """
    entry = ir.SymbolRefAttr.get([executable, executable])
    calls = match(function, ["flow.dispatch"], {"entry_points": ir.ArrayAttr.get([entry])})
    loops = _around(calls, op_name=ir.StringAttr.get("scf.for"))
    factor = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), together)
    ir.Operation.create("transform.loop.unroll", operands=[loops], attributes={"factor": factor})


def _around(ops: ir.Value, **which: ir.Attribute) -> ir.Value:
    """A handle to the ops around others, each once; to none where one has no such op around it."""
    once = {name: ir.UnitAttr.get() for name in ("allow_empty_results", "deduplicate")}
    found = ir.Operation.create(
        "transform.get_parent_op", operands=[ops], results=[any_op()], attributes=which | once
    )
    return found.results[0]


def handed_on(handle: ir.Value, steps: Iterable[ir.Operation]) -> ir.Value:
    """What stands for the same ops behind some steps, of which some consume a handle.

    Args:
        handle: before them.
        steps: one after the other.
    """
    for step in steps:
        if handle in list(step.operands) and step.name in _HANDS_ON:
            handle = step.results[0]
    return handle


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
