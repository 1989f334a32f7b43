"""The profiler's operations as TVM tensor expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilewright.kernels.operation import Operation


def tensor_program(tvm: Any, operation: Operation) -> Any:
    """A function over the operation's arguments and, last, its result."""
    from tvm import te

    arguments = [
        te.placeholder(a.shape or (), name=f"in{i}", dtype=_dtype(a.element_type))
        for i, a in enumerate(operation.arguments)
    ]
    result = KINDS[operation.kind.name](te, operation, arguments)
    return te.create_prim_func([*arguments, result])


def _dtype(element_type: str) -> str:
    return {"f32": "float32", "f64": "float64"}[element_type]


def _matmul(te: Any, operation: Operation, arguments: list[Any]) -> Any:
    lhs, rhs = arguments[:2]
    shape = operation.result.shape or ()
    k = te.reduce_axis((0, operation["k"]), name="k")

    def term(*place: Any) -> Any:
        *batch, m, n = place
        left = (*batch, k, m) if operation.transposed(0) else (*batch, m, k)
        right = (*batch, n, k) if operation.transposed(1) else (*batch, k, n)
        return te.sum(lhs(*left) * rhs(*right), axis=k)

    product = te.compute(shape, term, name="product")
    return _with_bias(te, operation, arguments, product, 1)


def _matvec(te: Any, operation: Operation, arguments: list[Any]) -> Any:
    matrix, vector = arguments
    k = te.reduce_axis((0, operation["k"]), name="k")
    return te.compute(
        operation.result.shape or (),
        lambda m: te.sum(
            (matrix(k, m) if operation.transposed(0) else matrix(m, k)) * vector(k), axis=k
        ),
        name="product",
    )


def _convolution(te: Any, operation: Operation, arguments: list[Any]) -> Any:
    from tvm import topi

    o = operation
    nhwc, depthwise = o.variant.startswith("nhwc"), o.kind.name.startswith("depthwise")
    image, filters = arguments[:2]
    if o["ph"] or o["pw"]:
        amounts = (0, o["ph"], o["pw"], 0) if nhwc else (0, 0, o["ph"], o["pw"])
        image = topi.nn.pad(image, amounts, amounts, name="padded")
    kh = te.reduce_axis((0, o["kh"]), name="kh")
    kw = te.reduce_axis((0, o["kw"]), name="kw")
    ci = te.reduce_axis((0, o["ci"]), name="ci")
    axes = (kh, kw) if depthwise else (ci, kh, kw)

    def term(*place: Any) -> Any:
        n, y, x, c = place if nhwc else (place[0], place[2], place[3], place[1])
        row, column = y * o["sh"] + kh * o["dh"], x * o["sw"] + kw * o["dw"]
        channel = c if depthwise else ci
        pixel = image(n, row, column, channel) if nhwc else image(n, channel, row, column)
        if depthwise:
            weight = filters(kh, kw, c) if nhwc else filters(c, kh, kw)
        else:
            weight = filters(kh, kw, ci, c) if nhwc else filters(c, ci, kh, kw)
        return te.sum(pixel * weight, axis=axes)

    convolved = te.compute(o.result.shape or (), term, name="convolved")
    return _with_bias(te, o, arguments, convolved, 3 if nhwc else 1)


def _with_bias(te: Any, operation: Operation, arguments: list[Any], value: Any, axis: int) -> Any:
    steps = getattr(operation.kind, "steps", ())
    if not steps:
        return value
    from tvm import tirx

    bias = arguments[2]

    def finish(*place: Any) -> Any:
        total = value(*place) + bias(place[axis])
        return tirx.max(total, tirx.const(0.0, bias.dtype)) if "relu" in steps else total

    return te.compute(operation.result.shape or (), finish, name="finished")


KINDS: Mapping[str, Callable[[Any, Operation, list[Any]], Any]] = {
    "matmul": _matmul,
    "matmul_bias": _matmul,
    "matmul_bias_relu": _matmul,
    "batch_matmul": _matmul,
    "matvec": _matvec,
    "conv2d": _convolution,
    "conv2d_bias_relu": _convolution,
    "depthwise_conv2d": _convolution,
}
