"""The compute ops of a dispatch: those that IREE tiles, in the order in which specs count them.

A lowering configuration belongs to one op of a dispatch, and a tuning spec has to name that op
again in another compilation of it. The name is the op's position among the ops that implement
`TilingInterface`, in the order of `transform.structured.match`, so that op is asked here too: no
list of op names has to be kept in step with the compiler.
"""

from __future__ import annotations

from iree.compiler import ir
from iree.compiler.dialects.transform import interpreter

_MARK = "tilewright.compute_op"

_PROBE = f"""
module attributes {{transform.with_named_sequence}} {{
  transform.named_sequence @__transform_main(%func: !transform.any_op {{transform.readonly}}) {{
    %ops = transform.structured.match interface{{TilingInterface}} in %func
      : (!transform.any_op) -> !transform.any_op
    transform.annotate %ops "{_MARK}" : !transform.any_op
    transform.yield
  }}
}}
"""


def compute_ops(func: ir.Operation) -> list[ir.Operation]:
    """The ops of a dispatch that implement `TilingInterface`, in program order.

    An op inside the region of another one (in `iree_linalg_ext.custom_op`) comes before the op that
    holds it, because that is how `transform.structured.match` walks. The function is left as it
    was.

    Args:
        func: the `func.func` of a dispatch, in a context that has all dialects loaded.

    Returns:
        The ops, in the order in which specs count them.
    """
    func = func.operation
    with func.context, ir.Location.unknown():
        probe = ir.Module.parse(_PROBE)
        interpreter.apply_named_sequence(func, probe.body.operations[0], probe)
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if _MARK in op.attributes:
            del op.attributes[_MARK]
            found.append(op)
        return ir.WalkResult.ADVANCE

    func.walk(visit)
    return found
