"""Softmax over the rows of a matrix, f32.

    python examples/schedule/softmax.py

Everything of a row happens while the row is in the first-level cache: its maximum and its sum are
reduced in 64 lanes (`rfactor`, see lanes.py), the powers stay in a buffer of one row
(`compute_at`), and the result is written once. Blocks of rows are shared out among the cores.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from lanes import reduce_in_lanes

from tilewright import te

# Attention of 12 heads over 384 tokens.
ROWS, COLUMNS = 12 * 384, 384


def softmax(
    rows: int = ROWS, columns: int = COLUMNS, block: int = 8
) -> tuple[te.Schedule, list[te.Tensor]]:
    """The schedule, `block` rows to a piece of parallel work, and its tensors [x, y]."""
    # The algorithm.
    x = te.placeholder((rows, columns), "f32", name="x")
    k = te.reduce_axis(columns, "k")
    largest = te.compute((rows,), lambda i: te.max(x[i, k], axis=k), name="largest")
    power = te.compute((rows, columns), lambda i, j: te.exp(x[i, j] - largest[i]), name="power")
    k = te.reduce_axis(columns, "k")
    total = te.compute((rows,), lambda i: te.sum(power[i, k], axis=k), name="total")
    scale = te.compute((rows,), lambda i: 1.0 / total[i], name="scale")
    y = te.compute((rows, columns), lambda i, j: power[i, j] * scale[i], name="y")

    # The schedule.
    s = te.create_schedule(y)
    i, j = s[y].op.axis
    outer, row = s[y].split(i, block)
    s[y].parallel(outer)
    s[y].vectorize(j)
    reduce_in_lanes(s, largest, s[y], row)
    s[power].compute_at(s[y], row)
    s[power].vectorize(s[power].op.axis[1])
    reduce_in_lanes(s, total, s[y], row)
    s[scale].compute_at(s[y], row)
    return s, [x, y]


def reference(x: Any) -> Any:
    power = np.exp(x - x.max(axis=1, keepdims=True))
    return power / power.sum(axis=1, keepdims=True)


def main() -> None:
    s, tensors = softmax()
    print(te.lower(s, tensors))
    f = te.build(s, tensors)
    f.verify(reference)
    print(f"{ROWS} x {COLUMNS}: right; {f.benchmark()}")


if __name__ == "__main__":
    main()
