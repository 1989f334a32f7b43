"""A direct 3x3 convolution with padding 1 and stride 1, NHWC, f32.

    python examples/schedule/convolution.py

A tile of 14 columns and 32 output channels is added up in registers over the whole reduction. The
padded rows that a piece of parallel work needs are copied once into memory of its own
(`compute_at`, `set_scope`), which costs little beside hundreds of multiplications to an element
and leaves the inner loops without conditions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright import te

# The first 3x3 layers of ResNet-50.
HEIGHT, WIDTH, CHANNELS, OUTPUTS = 56, 56, 64, 64


def convolution(
    height: int = HEIGHT,
    width: int = WIDTH,
    channels: int = CHANNELS,
    outputs: int = OUTPUTS,
    rows: int = 7,
    tile: tuple[int, int] = (14, 32),
) -> tuple[te.Schedule, list[te.Tensor]]:
    """The schedule and its tensors [x, w, y]; `rows` rows to a piece of parallel work, `tile`
    columns and output channels in registers."""
    # The algorithm.
    x = te.placeholder((1, height, width, channels), "f32", name="x")
    w = te.placeholder((3, 3, channels, outputs), "f32", name="w")
    padded = te.compute(
        (1, height + 2, width + 2, channels),
        lambda n, i, j, c: te.if_then_else(
            te.all(i >= 1, i <= height, j >= 1, j <= width), x[n, i - 1, j - 1, c], 0.0
        ),
        name="padded",
    )
    di, dj = te.reduce_axis(3, "di"), te.reduce_axis(3, "dj")
    k = te.reduce_axis(channels, "k")
    y = te.compute(
        (1, height, width, outputs),
        lambda n, i, j, c: te.sum(padded[n, i + di, j + dj, k] * w[di, dj, k, c], axis=[di, dj, k]),
        name="y",
    )

    # The schedule.
    s = te.create_schedule(y)
    sums = s.cache_write(y, "local")
    n, i, j, c = s[y].op.axis
    io, ii = s[y].split(i, rows)
    jo, ji = s[y].split(j, tile[0])
    co, ci = s[y].split(c, tile[1])
    s[y].reorder(n, io, co, ii, jo, ji, ci)
    part = s[y].fuse(n, io)
    s[y].parallel(part)
    s[y].unroll(ji)
    s[y].vectorize(ci)

    s[padded].compute_at(s[y], part)
    s[padded].set_scope("shared")
    s[padded].vectorize(s[padded].op.axis[3])

    s[sums].compute_at(s[y], jo)
    n, i, j, c = s[sums].op.axis
    di, dj, k = s[sums].op.reduce_axis
    ko, ki = s[sums].split(k, 2)
    s[sums].reorder(n, i, di, dj, ko, ki, j, c)
    s[sums].unroll(ki)
    s[sums].unroll(j)
    s[sums].vectorize(c)
    return s, [x, w, y]


def reference(x: Any, w: Any) -> Any:
    _, height, width, _ = x.shape
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return sum(
        padded[:, di : di + height, dj : dj + width] @ w[di, dj]
        for di in range(3)
        for dj in range(3)
    )


def main() -> None:
    s, tensors = convolution()
    print(te.lower(s, tensors))
    f = te.build(s, tensors)
    f.verify(reference)
    print(f"{HEIGHT} x {WIDTH} x {CHANNELS} to {OUTPUTS}: right; {f.benchmark()}")


if __name__ == "__main__":
    main()
