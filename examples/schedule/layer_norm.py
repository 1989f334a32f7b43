"""Layer normalization of the rows of a matrix, with scale and shift, f32.

    python examples/schedule/layer_norm.py

The mean comes first and then the squared distances from it, which loses no digits; a row is read
three times, but from the first-level cache. Both sums are reduced in 64 lanes (see lanes.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from lanes import reduce_in_lanes

from tilewright import te

# 2048 tokens of a model that is 1024 wide.
ROWS, COLUMNS = 2048, 1024
EPSILON = 1e-5


def layer_norm(
    rows: int = ROWS, columns: int = COLUMNS, block: int = 8
) -> tuple[te.Schedule, list[te.Tensor]]:
    """The schedule, `block` rows to a piece of parallel work, and its tensors
    [x, gain, bias, y]."""
    # The algorithm.
    x = te.placeholder((rows, columns), "f32", name="x")
    gain = te.placeholder((columns,), "f32", name="gain")
    bias = te.placeholder((columns,), "f32", name="bias")
    k = te.reduce_axis(columns, "k")
    total = te.compute((rows,), lambda i: te.sum(x[i, k], axis=k), name="total")
    mean = te.compute((rows,), lambda i: total[i] * (1 / columns), name="mean")
    k = te.reduce_axis(columns, "k")
    squares = te.compute(
        (rows,),
        lambda i: te.sum((x[i, k] - mean[i]) * (x[i, k] - mean[i]), axis=k),
        name="squares",
    )
    scale = te.compute(
        (rows,), lambda i: te.rsqrt(squares[i] * (1 / columns) + EPSILON), name="scale"
    )
    y = te.compute(
        (rows, columns), lambda i, j: (x[i, j] - mean[i]) * scale[i] * gain[j] + bias[j], name="y"
    )

    # The schedule.
    s = te.create_schedule(y)
    i, j = s[y].op.axis
    outer, row = s[y].split(i, block)
    s[y].parallel(outer)
    s[y].vectorize(j)
    reduce_in_lanes(s, total, s[y], row)
    s[mean].compute_at(s[y], row)
    reduce_in_lanes(s, squares, s[y], row)
    s[scale].compute_at(s[y], row)
    return s, [x, gain, bias, y]


def reference(x: Any, gain: Any, bias: Any) -> Any:
    centred = x - x.mean(axis=1, keepdims=True)
    variance = (centred * centred).mean(axis=1, keepdims=True)
    return centred / np.sqrt(variance + EPSILON) * gain + bias


def main() -> None:
    s, tensors = layer_norm()
    print(te.lower(s, tensors))
    f = te.build(s, tensors)
    f.verify(reference)
    print(f"{ROWS} x {COLUMNS}: right; {f.benchmark()}")


if __name__ == "__main__":
    main()
