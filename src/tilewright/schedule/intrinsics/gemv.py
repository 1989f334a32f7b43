"""A matrix times a vector, the sums in vector registers."""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import vector

from tilewright.schedule import reducers
from tilewright.schedule.codegen import scalars
from tilewright.schedule.codegen.view import BufferView, IntrinsicBuilder
from tilewright.schedule.expr import as_expr
from tilewright.schedule.intrinsic import UPDATE, TensorIntrinsic, decl_tensor_intrin
from tilewright.schedule.tensor import compute, placeholder, reduce_axis
from tilewright.schedule.types import bits


def gemv(m: int, k: int, dtype: str = "f32") -> TensorIntrinsic:
    """`c[i] += sum over k of a[k] * b[i, k]`, for i below m, of any element type and target.

        s[C].tensorize(yi, te.intrinsics.gemv(16, 64))

    Each row is added up in as many sums as a vector register has elements, which are then added:
    another order than one after the other.

    Args:
        m, k: rows, and the length of each.
        dtype: the element type of all three.

    Returns:
        The intrinsic.
    """
    a = placeholder((k,), dtype, name="a")
    b = placeholder((m, k), dtype, name="b")
    axis = reduce_axis(k, "k")
    c = compute(
        (m,), lambda i: reducers.sum(as_expr(a[axis]) * as_expr(b[i, axis]), axis=axis), name="c"
    )

    def emit(
        builder: IntrinsicBuilder,
        phase: str,
        inputs: Sequence[BufferView],
        outputs: Sequence[BufferView],
    ) -> None:
        (out,) = outputs
        zero = builder.constant(0, dtype)
        if phase == "reset":

            def clear(row: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                out.store(zero, row)
                return []

            builder.loop(m, 1, [], clear)
            return
        left, right = inputs
        lanes = max(1, min(builder.machine.widths.register * 8 // bits(dtype), k))
        if left.strides[-1] != 1 or right.strides[-1] != 1 or builder.machine.is_gpu:
            lanes = 1
        whole = k // lanes * lanes

        def row_sum(row: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            def step(at: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
                wide = lanes if lanes > 1 else 0
                x, y = left.load(at, lanes=wide), right.load(row, at, lanes=wide)
                return [builder.add(sums[0], builder.multiply(x, y, dtype), dtype)]

            start = builder.constant(0, dtype, lanes if lanes > 1 else 0)
            (total,) = builder.loop(whole, lanes, [start], step)
            if lanes > 1:
                kind = scalars.parsed_attribute("#vector.kind<add>")
                total = vector.ReductionOp(scalars.element(dtype), kind, total).result
            for at in range(whole, k):
                product = builder.multiply(left.load(at), right.load(row, at), dtype)
                total = builder.add(total, product, dtype)
            if phase == UPDATE:
                total = builder.add(out.load(row), total, dtype)
            out.store(total, row)
            return []

        builder.loop(m, 1, [], row_sum)

    return decl_tensor_intrin(c.op, emit, name=f"gemv_{m}x{k}_{dtype}")
