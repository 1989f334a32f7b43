"""Operations as TVM tensor expressions."""

from __future__ import annotations

from typing import Any

from tilewright.kernels.contractions import Contraction, SplitKMatmul
from tilewright.kernels.operation import Operation, OperationKind

_TYPES = {"f32": "float32", "f64": "float64"}


def has_program(kind: OperationKind) -> bool:
    """Whether an expression is written here for the kind.

    Args:
        kind: any.
    """
    if not isinstance(kind, Contraction) or isinstance(kind, SplitKMatmul):
        return False
    return kind.steps in ((), ("add",), ("add", "relu"))


def tensor_program(tvm: Any, operation: Operation) -> Any:
    """An operation for TVM.

    Args:
        tvm: the library.
        operation: what to compute, of a kind that `has_program`, in f32 or f64.

    Returns:
        A function over the operation's arguments and, last, its result.
    """
    from tvm import te, topi

    o, kind = operation, operation.kind
    assert isinstance(kind, Contraction)
    arguments = [
        te.placeholder(a.shape or (), name=f"in{i}", dtype=_TYPES[a.element_type])
        for i, a in enumerate(o.arguments)
    ]
    operands, padding = arguments[:2], kind.padding(o)
    if any(padding):
        operands[0] = topi.nn.pad(operands[0], padding, padding, name="padded")
    *stored, result = o.axes
    sums = {a: te.reduce_axis((0, kind.extent(o, a)), name=a) for a in kind.reduced(o)}

    def term(*place: Any) -> Any:
        at = dict(zip(result, place, strict=True)) | sums
        for axis, w in kind.windows.items():
            at[axis] = at[w.result] * o[w.stride] + at[w.window] * o[w.dilation]
        lhs, rhs = (
            operand(*(at[axis] for axis in axes))
            for operand, axes in zip(operands, stored, strict=True)
        )
        return te.sum(lhs * rhs, axis=list(sums.values()))

    value = te.compute(o.result.shape or (), term, name="product")
    if kind.steps:
        value = _with_bias(te, kind, o, value, arguments[2])
    return te.create_prim_func([*arguments, value])


def _with_bias(te: Any, kind: Contraction, operation: Operation, value: Any, bias: Any) -> Any:
    from tvm import tirx

    channel = operation.axes[-1].index(kind.channel)

    def finish(*place: Any) -> Any:
        total = value(*place) + bias(place[channel])
        return tirx.max(total, tirx.const(0.0, bias.dtype)) if "relu" in kind.steps else total

    return te.compute(operation.result.shape or (), finish, name="finished")
