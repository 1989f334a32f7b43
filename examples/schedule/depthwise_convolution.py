"""A depthwise 3x3 convolution with padding 1 and stride 1, NHWC, f32.

    python examples/schedule/depthwise_convolution.py

There are nine multiplications to an element, so what counts is to touch memory once: the padding
is not stored but a condition (`compute_inline`), and a tile of `width` elements in a row, 16
channels each, is added up in registers (`cache_write` into local). The code generator cuts the
loops where the condition begins to hold, so that nothing is asked within the image.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright import te

# The fifth layer of MobileNet.
HEIGHT, WIDTH, CHANNELS = 56, 56, 128


def depthwise_convolution(
    height: int = HEIGHT,
    width: int = WIDTH,
    channels: int = CHANNELS,
    rows: int = 7,
    tile: tuple[int, int] = (7, 16),
) -> tuple[te.Schedule, list[te.Tensor]]:
    """The schedule and its tensors [x, w, y]; `rows` rows to a piece of parallel work, `tile`
    columns and channels in registers."""
    # The algorithm.
    x = te.placeholder((1, height, width, channels), "f32", name="x")
    w = te.placeholder((3, 3, channels), "f32", name="w")
    padded = te.compute(
        (1, height + 2, width + 2, channels),
        lambda n, i, j, c: te.if_then_else(
            te.all(i >= 1, i <= height, j >= 1, j <= width), x[n, i - 1, j - 1, c], 0.0
        ),
        name="padded",
    )
    di, dj = te.reduce_axis(3, "di"), te.reduce_axis(3, "dj")
    y = te.compute(
        (1, height, width, channels),
        lambda n, i, j, c: te.sum(padded[n, i + di, j + dj, c] * w[di, dj, c], axis=[di, dj]),
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
    s[y].parallel(s[y].fuse(n, io, co))
    s[y].unroll(ji)
    s[y].vectorize(ci)

    s[padded].compute_inline()
    s[sums].compute_at(s[y], jo)
    n, i, j, c = s[sums].op.axis
    di, dj = s[sums].op.reduce_axis
    s[sums].reorder(n, i, di, dj, j, c)
    for axis in (di, dj, j):
        s[sums].unroll(axis)
    s[sums].vectorize(c)
    return s, [x, w, y]


def reference(x: Any, w: Any) -> Any:
    _, height, width, _ = x.shape
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return sum(
        padded[:, di : di + height, dj : dj + width] * w[di, dj]
        for di in range(3)
        for dj in range(3)
    )


def main() -> None:
    s, tensors = depthwise_convolution()
    print(te.lower(s, tensors))
    f = te.build(s, tensors)
    f.verify(reference)
    print(f"{HEIGHT} x {WIDTH} x {CHANNELS}: right; {f.benchmark()}")


if __name__ == "__main__":
    main()
