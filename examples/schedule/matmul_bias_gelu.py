"""A matrix product, a bias and gelu in one kernel, f32: the first half of a transformer's
feed-forward layer.

    python examples/schedule/matmul_bias_gelu.py

A tile of 12 x 32 of the product stays in registers over the whole reduction (`set_scope`,
`compute_at`), and goes through bias and gelu before it is written. A piece of parallel work is 32
columns: its part of b, 96 KB here, stays in the second-level cache while all rows of a pass by.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright import te

# 384 tokens through the feed-forward layer of BERT.
ROWS, COLUMNS, DEPTH = 384, 3072, 768


def matmul_bias_gelu(
    rows: int = ROWS, columns: int = COLUMNS, depth: int = DEPTH, tile: tuple[int, int] = (12, 32)
) -> tuple[te.Schedule, list[te.Tensor]]:
    """The schedule, with tiles of `tile` in registers, and its tensors [a, b, bias, y]."""
    # The algorithm.
    a = te.placeholder((rows, depth), "f32", name="a")
    b = te.placeholder((depth, columns), "f32", name="b")
    bias = te.placeholder((columns,), "f32", name="bias")
    k = te.reduce_axis(depth, "k")
    product = te.compute(
        (rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="product"
    )
    hidden = te.compute((rows, columns), lambda i, j: product[i, j] + bias[j], name="hidden")
    y = te.compute(
        (rows, columns),
        lambda i, j: hidden[i, j] * 0.5 * (1.0 + te.erf(hidden[i, j] * math.sqrt(0.5))),
        name="y",
    )

    # The schedule.
    s = te.create_schedule(y)
    io, jo, ii, ji = s[y].tile(*s[y].op.axis, *tile)
    s[y].reorder(jo, io, ii, ji)
    s[y].parallel(jo)
    s[y].unroll(ii)
    s[y].vectorize(ji)

    s[hidden].compute_inline()
    s[product].set_scope("local")
    s[product].compute_at(s[y], io)
    i, j = s[product].op.axis
    ko, ki = s[product].split(s[product].op.reduce_axis[0], 2)
    s[product].reorder(ko, ki, i, j)
    s[product].unroll(ki)
    s[product].unroll(i)
    s[product].vectorize(j)
    return s, [a, b, bias, y]


def reference(a: Any, b: Any, bias: Any) -> Any:
    hidden = a @ b + bias
    return hidden * 0.5 * (1 + np.vectorize(math.erf)(hidden * math.sqrt(0.5)))


def main() -> None:
    s, tensors = matmul_bias_gelu()
    print(te.lower(s, tensors))
    f = te.build(s, tensors)
    f.verify(reference)
    print(f"{ROWS} x {COLUMNS} x {DEPTH}: right; {f.benchmark()}")


if __name__ == "__main__":
    main()
