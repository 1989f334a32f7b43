"""Reads `iree_codegen.smt.constraints` ops, and turns chosen values into configurations.

The compiler leaves the ops behind the root op when it configures a dispatch with
`--iree-codegen-emit-pipeline-constraints`. They must be gone before code is generated.
"""

from __future__ import annotations

from collections.abc import Mapping

from iree.compiler import ir
from iree.compiler.dialects import iree_codegen, iree_gpu

from tilewright.attributes import is_attribute, items_of
from tilewright.gpu import SPIRV_PIPELINE, Assertion, ConstraintProgram, SmtKnob, SmtNode
from tilewright.ir.walk import attribute_tree, string_attribute, walk

EMIT_CONSTRAINTS = "--iree-codegen-emit-pipeline-constraints"
CONSTRAINTS = "iree_codegen.smt.constraints"

_SAME_NAME = {
    "smt.int.add": "add",
    "smt.int.sub": "sub",
    "smt.int.mul": "mul",
    "smt.int.div": "div",
    "smt.int.mod": "mod",
    "smt.int.neg": "neg",
    "smt.int.abs": "abs",
    "smt.eq": "eq",
    "smt.distinct": "distinct",
    "smt.and": "and",
    "smt.or": "or",
    "smt.not": "not",
    "smt.xor": "xor",
    "smt.implies": "implies",
    "smt.ite": "ite",
}
# Of smt.int.cmp, in the order of the dialect's IntPredicate.
_PREDICATES = ("lt", "le", "gt", "ge")


class UnreadableConstraints(Exception):
    """A constraints op has something in it that is not modelled; says what."""


def constraint_ops(function: ir.Operation) -> list[ir.Operation]:
    """The constraints ops of a dispatch function, in program order.

    Args:
        function: the function, configured with `EMIT_CONSTRAINTS`.

    Returns:
        The ops; none where the compiler states nothing.
    """
    inside = walk(function, lambda op: op.name != CONSTRAINTS)
    return [op for op in inside if op.name == CONSTRAINTS]


def erase_constraints(root: ir.Operation) -> None:
    """Removes every constraints op below an operation.

    Args:
        root: the operation, changed in place.
    """
    for op in constraint_ops(root):
        op.erase()


def read_constraints(function: ir.Operation) -> tuple[ConstraintProgram, ...]:
    """What the constraints ops of a dispatch function say.

    Args:
        function: the function, configured with `EMIT_CONSTRAINTS`.

    Returns:
        A program for each op whose contents are modelled; `ordinal` is the op's place among all.
    """
    found = []
    for ordinal, op in enumerate(constraint_ops(function)):
        try:
            found.append(_read(op, ordinal))
        except UnreadableConstraints:
            continue
    return tuple(found)


def materialize(
    function: ir.Operation, ordinal: int, assignment: Mapping[str, int]
) -> tuple[ir.Attribute, ir.Attribute, dict[str, ir.Attribute]]:
    """A configuration for values of the knobs, made by the compiler.

    Args:
        function: the function that has the constraints.
        ordinal: which of its constraints ops.
        assignment: a value for each knob.

    Returns:
        Translation info, lowering configuration and further attributes of the root op by name.

    Raises:
        ValueError: the compiler refuses, or there is no such op.
    """
    ops = constraint_ops(function)
    if ordinal >= len(ops):
        raise ValueError(f"the dispatch has {len(ops)} sets of constraints, not {ordinal + 1}")
    op = ops[ordinal]
    try:
        info = iree_codegen.materialize_compilation_info(op, dict(assignment))
        further = {
            name: iree_codegen.materialize_configuration_attr(op, name, dict(assignment))
            for name in ("decomposition_config",)
            if name in ir.DictAttr(op.attributes["knobs"])
        }
    except RuntimeError as error:
        raise ValueError(str(error)) from None
    return info.translation_info, info.lowering_config, further


def _read(op: ir.Operation, ordinal: int) -> ConstraintProgram:
    knobs: dict[str, SmtKnob] = {}
    fixed: list[tuple[str, str]] = []
    for named in ir.DictAttr(op.attributes["knobs"]):
        own = _knobs_in(named.attr)
        knobs.update((knob.name, knob) for knob in own)
        if not own:
            fixed.append((named.name, str(named.attr)))
    block = op.regions[0].blocks[0]
    nodes: list[SmtNode] = []
    positions: dict[ir.Value, int] = {}
    for position, argument in enumerate(block.arguments):
        positions[argument] = len(nodes)
        nodes.append(SmtNode("dim", value=position))
    assertions = []
    for inner in block.operations:
        operation = inner.operation
        operands = tuple(positions[value] for value in operation.operands)
        if operation.name == "iree_codegen.smt.assert":
            message = string_attribute(operation, "msg")
            assertions.append(Assertion(operands[0], message, operands[1:]))
            continue
        if operation.name == "smt.yield" or not len(operation.results):
            continue
        positions[operation.results[0]] = len(nodes)
        nodes.append(_node(operation, operands))
    return ConstraintProgram(
        pipeline_name(op.attributes["pipeline"]),
        ordinal,
        tuple(_size(value) for value in op.operands),
        tuple(knobs.values()),
        tuple(nodes),
        tuple(assertions),
        tuple(fixed),
    )


def _node(op: ir.Operation, operands: tuple[int, ...]) -> SmtNode:
    if op.name in _SAME_NAME:
        return SmtNode(_SAME_NAME[op.name], operands)
    if op.name == "smt.int.constant":
        return SmtNode("constant", value=int(ir.IntegerAttr(op.attributes["value"]).value))
    if op.name == "smt.constant":
        return SmtNode("constant", value=int(bool(ir.BoolAttr(op.attributes["value"]).value)))
    if op.name == "smt.int.cmp":
        predicate = int(ir.IntegerAttr(op.attributes["pred"]).value)
        return SmtNode(_PREDICATES[predicate], operands)
    if op.name == "iree_codegen.smt.knob":
        return SmtNode("variable", name=string_attribute(op, "name"))
    if op.name == "smt.declare_fun":
        return SmtNode("variable", name=string_attribute(op, "namePrefix"))
    if op.name == "iree_codegen.smt.lookup":
        keys = list(ir.DenseI64ArrayAttr(op.attributes["keys"]))
        values = list(ir.DenseI64ArrayAttr(op.attributes["values"]))
        return SmtNode("lookup", operands, table=tuple(zip(keys, values, strict=True)))
    raise UnreadableConstraints(op.name)


def _knobs_in(attribute: ir.Attribute) -> list[SmtKnob]:
    """The knobs anywhere inside an attribute."""
    if isinstance(attribute, iree_codegen.IntKnobAttr):
        return [SmtKnob(knob_name(attribute))]
    if isinstance(attribute, iree_codegen.OneOfKnobAttr):
        options = tuple(option_name(option) for option in attribute.options)
        kinds = (iree_gpu.MMAAttr, iree_gpu.VirtualMMAAttr)
        mma = [o.mnk_shape for o in attribute.options if isinstance(o, kinds)]
        shapes = tuple((int(m), int(n), int(k)) for m, n, k in mma)
        return [SmtKnob(knob_name(attribute), options, shapes)]
    if isinstance(attribute, ir.DictAttr):
        return [knob for named in attribute for knob in _knobs_in(named.attr)]
    if isinstance(attribute, ir.ArrayAttr):
        return [knob for one in attribute for knob in _knobs_in(one)]
    inner = getattr(attribute, "attributes", None)
    return _knobs_in(inner) if isinstance(inner, ir.Attribute) else []


def knob_name(knob: iree_codegen.IntKnobAttr | iree_codegen.OneOfKnobAttr) -> str:
    """The name of a knob.

    Args:
        knob: an attribute that stands for a value to choose.
    """
    return str(knob.name.value) if isinstance(knob.name, ir.StringAttr) else str(knob.name)


def option_name(option: ir.Attribute) -> str:
    """A readable name of an option of a knob.

    Args:
        option: the option.

    Returns:
        The intrinsic of an mma_layout, else the attribute's text.
    """
    if isinstance(option, iree_gpu.MMAAttr | iree_gpu.VirtualMMAAttr):
        return _intrinsic_names(option.context).get(option, str(option))
    return str(option)


def _intrinsic_names(context: ir.Context) -> dict[ir.Attribute, str]:
    """The names of all matrix intrinsics by the attributes that stand for them."""
    pairs = (
        (iree_gpu.MMAAttr, iree_gpu.MMAIntrinsic),
        (iree_gpu.VirtualMMAAttr, iree_gpu.VirtualMMAIntrinsic),
    )
    return {
        kind.get(one, col_major, ctx=context): one.name + (", col_major = true" * col_major)
        for kind, names in pairs
        for one in names
        for col_major in (False, True)
    }


def pipeline_name(pipeline: ir.Attribute) -> str:
    """The name of a pipeline of the GPU or the SPIR-V backend; '' for another."""
    if isinstance(pipeline, iree_gpu.PipelineAttr):
        return str(iree_gpu.LoweringPipeline(pipeline.value).name)
    # The bindings have names for those of SPIR-V, and no class.
    tree = attribute_tree(pipeline)
    return str(items_of(tree)[0]) if is_attribute(tree, SPIRV_PIPELINE) else ""


def _size(value: ir.Value) -> int:
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name != "arith.constant":
        return -1
    return int(ir.IntegerAttr(owner.operation.attributes["value"]).value)
