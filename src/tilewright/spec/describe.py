"""Matchers and configurations in words."""

from __future__ import annotations

from collections.abc import Callable

from iree.compiler import ir

from tilewright.spec import library


def describe_type(type_: ir.Type) -> str:
    """A type in words.

    Args:
        type_: of an operand.

    Returns:
        A tensor type as `64x32xf32`, another type as MLIR prints it.
    """
    if not isinstance(type_, ir.RankedTensorType):
        return str(type_)
    shaped = ir.RankedTensorType(type_)
    sizes = ["?" if shaped.is_dynamic_dim(d) else str(shaped.shape[d]) for d in range(shaped.rank)]
    return "x".join([*sizes, str(shaped.element_type)])


def describe_pipeline(translation_info: ir.Attribute) -> str:
    """A pipeline in words.

    Args:
        translation_info: a `#iree_codegen.translation_info`.

    Returns:
        Its pipeline, with the options.
    """
    words = [str(translation_info.pass_pipeline)]
    if translation_info.configuration is not None:
        words.append(str(translation_info.configuration))
    return " ".join(words)


def describe_matcher(sequence: ir.Operation) -> str:
    """What a matcher compares: the ops and types it names, in order.

    Args:
        sequence: a named sequence.

    Returns:
        Ops with `; ` between; '' where none is known here.
    """
    parts: list[str] = []
    for op in sequence.regions[0].blocks[0].operations:
        describe = _DESCRIBE.get(op.operation.name)
        words = describe(op.operation) if describe else ""
        if words:
            parts.append(words)
    return "; ".join(parts)


def _structured(op: ir.Operation) -> str:
    """One of our compute ops; the other uses of this op only count something."""
    if "filter_operand_types" not in op.attributes:
        return ""
    names = [library.text(name) for name in ir.ArrayAttr(op.attributes["ops"])]
    types = [describe_type(ir.TypeAttr(t).value) for t in op.attributes["filter_operand_types"]]
    return f"{'|'.join(names)} {', '.join(types)}"


def _operation_name(op: ir.Operation) -> str:
    return "|".join(library.text(name) for name in ir.ArrayAttr(op.attributes["op_names"]))


def _typed(op: ir.Operation) -> str:
    """A matcher of a kind of op (`iree.match.contraction` and others) with the types it wants."""
    kind = op.name.removeprefix("transform.iree.match.")
    names = [name for name in op.attributes if name.endswith("_type")]
    types = [describe_type(ir.TypeAttr(op.attributes[name]).value) for name in sorted(names)]
    return f"{kind} {', '.join(types)}"


def _dims(op: ir.Operation) -> str:
    sizes = ["any" if n == -1 else str(n) for n in op.attributes["expected_values"]]
    return f"sizes {'x'.join(sizes)}" if sizes else ""


def _type(op: ir.Operation) -> str:
    return describe_type(ir.TypeAttr(op.attributes["target_type"]).value)


def _copied(op: ir.Operation) -> str:
    """The tensor ops of a copied dag; what constants and scalar ops it has is detail."""
    parts = []
    for inner in op.regions[0].blocks[0].operations:
        shaped = [v.type for v in inner.operands if isinstance(v.type, ir.ShapedType)]
        if shaped:
            types = ", ".join(describe_type(t) for t in shaped)
            parts.append(f"{inner.operation.name} {types}")
    return ", ".join(parts)


_DESCRIBE: dict[str, Callable[[ir.Operation], str]] = {
    "transform.structured.match": _structured,
    "transform.match.operation_name": _operation_name,
    "transform.iree.match.contraction": _typed,
    "transform.iree.match.convolution": _typed,
    "transform.iree.match.attention": _typed,
    "transform.iree.match.online_attention": _typed,
    "transform.iree.match.dims_equal": _dims,
    "transform.iree.match.cast_compatible_type": _type,
    "transform.iree.match.cast_compatible_dag_from_root": _copied,
}
