"""Chains of reductions over rows, as importers write them."""

from __future__ import annotations

from typing import Any

from sketch_cases import site

from tilewright import te
from tilewright.sketch.interface import SiteExpression


def softmax(*shape: int, axis: int = -1) -> SiteExpression:
    """Of any rank, over one axis."""
    x = te.placeholder(shape, "f32", name="x")
    axis %= len(shape)
    few = tuple(e for d, e in enumerate(shape) if d != axis)

    def row(indices: tuple[Any, ...]) -> tuple[Any, ...]:
        return indices[:axis] + indices[axis + 1 :]

    def place(indices: tuple[Any, ...], at: Any) -> tuple[Any, ...]:
        return (*indices[:axis], at, *indices[axis:])

    k = te.reduce_axis(shape[axis], "k")
    top = te.compute(few, lambda *i: te.max(x(*place(i, k)), axis=k), name="top")
    shifted = te.compute(shape, lambda *i: x(*i) - top(*row(i)), name="shifted")
    power = te.compute(shape, lambda *i: te.exp(shifted(*i)), name="power")
    r = te.reduce_axis(shape[axis], "r")
    total = te.compute(few, lambda *i: te.sum(power(*place(i, r)), axis=r), name="total")
    return site(te.compute(shape, lambda *i: power(*i) / total(*row(i)), name="y"), x)


def log_softmax(m: int, n: int) -> SiteExpression:
    x = te.placeholder((m, n), "f32", name="x")
    k, r = te.reduce_axis(n, "k"), te.reduce_axis(n, "r")
    top = te.compute((m,), lambda i: te.max(x[i, k], axis=k), name="top")
    shifted = te.compute((m, n), lambda i, j: x[i, j] - top[i], name="shifted")
    total = te.compute((m,), lambda i: te.sum(te.exp(shifted[i, r]), axis=r), name="total")
    size = te.compute((m,), lambda i: te.log(total[i]), name="size")
    return site(te.compute((m, n), lambda i, j: shifted[i, j] - size[i], name="y"), x)


def layer_norm(*shape: int) -> SiteExpression:
    """Over the last axis, with results of reductions kept as axes of extent 1."""
    *outer, n = shape
    x, gain, bias = (
        te.placeholder(s, "f32", name=t) for s, t in ((shape, "x"), (n, "g"), (n, "b"))
    )
    k, r = te.reduce_axis(n, "k"), te.reduce_axis(n, "r")
    few = (*outer, 1)
    total = te.compute(outer, lambda *i: te.sum(x(*i, k), axis=k), name="total")
    mean = te.compute(few, lambda *i: total(*i[:-1]) / float(n), name="mean")
    centred = te.compute(shape, lambda *i: x(*i) - mean(*i[:-1], 0), name="centred")
    square = te.compute(shape, lambda *i: centred(*i) * centred(*i), name="square")
    squares = te.compute(outer, lambda *i: te.sum(square(*i, r), axis=r), name="squares")
    scale = te.compute(few, lambda *i: te.rsqrt(squares(*i[:-1]) / float(n) + 1e-5), name="scale")
    y = te.compute(
        shape,
        lambda *i: centred(*i) * scale(*i[:-1], 0) * gain[i[-1]] + bias[i[-1]],
        name="y",
    )
    return site(y, x, gain, bias)


def rms_norm(m: int, n: int) -> SiteExpression:
    x, gain = te.placeholder((m, n), "f32", name="x"), te.placeholder((n,), "f32", name="g")
    k = te.reduce_axis(n, "k")
    squares = te.compute((m,), lambda i: te.sum(x[i, k] * x[i, k], axis=k), name="squares")
    scale = te.compute((m,), lambda i: te.rsqrt(squares[i] / float(n) + 1e-6), name="scale")
    return site(te.compute((m, n), lambda i, j: x[i, j] * scale[i] * gain[j], name="y"), x, gain)


def group_norm(n: int, channels: int, groups: int, size: int) -> SiteExpression:
    part = channels // groups
    x = te.placeholder((n, channels, size, size), "f32", name="x")
    gain = te.placeholder((channels,), "f32", name="g")
    count = float(part * size * size)

    def axes() -> list[te.IterVar]:
        return [te.reduce_axis(part, "c"), te.reduce_axis(size, "h"), te.reduce_axis(size, "w")]

    c, h, w = one = axes()
    few = (n, groups)
    total = te.compute(few, lambda i, g: te.sum(x[i, g * part + c, h, w], axis=one), name="total")
    mean = te.compute(few, lambda i, g: total[i, g] / count, name="mean")
    d, u, v = other = axes()
    squares = te.compute(
        few,
        lambda i, g: te.sum(
            (x[i, g * part + d, u, v] - mean[i, g]) * (x[i, g * part + d, u, v] - mean[i, g]),
            axis=other,
        ),
        name="squares",
    )
    y = te.compute(
        x.shape,
        lambda i, c, h, w: (
            (x[i, c, h, w] - mean[i, c // part])
            * te.rsqrt(squares[i, c // part] / count + 1e-5)
            * gain[c]
        ),
        name="y",
    )
    return site(y, x, gain)


def global_average(n: int, c: int, size: int, last: bool) -> SiteExpression:
    """Of images, channels second or last."""
    shape = (n, size, size, c) if last else (n, c, size, size)
    x = te.placeholder(shape, "f32", name="x")
    h, w = te.reduce_axis(size, "h"), te.reduce_axis(size, "w")
    total = te.compute(
        (n, c),
        lambda i, j: te.sum(x[i, h, w, j] if last else x[i, j, h, w], axis=[h, w]),
        name="total",
    )
    return site(te.compute((n, c), lambda i, j: total[i, j] / float(size * size), name="y"), x)


def row_maximum(m: int, n: int, axis: int) -> SiteExpression:
    """A reduction with nothing after it."""
    x = te.placeholder((m, n), "f32", name="x")
    k = te.reduce_axis((m, n)[axis], "k")
    if axis:
        return site(te.compute((m,), lambda i: te.max(x[i, k], axis=k), name="y"), x)
    return site(te.compute((n,), lambda i: te.max(x[k, i], axis=k), name="y"), x)


def matvec(m: int, n: int) -> SiteExpression:
    a, x = te.placeholder((m, n), "f32", name="a"), te.placeholder((n,), "f32", name="x")
    k = te.reduce_axis(n, "k")
    return site(te.compute((m,), lambda i: te.sum(a[i, k] * x[k], axis=k), name="y"), a, x)


def largest_place(m: int, n: int) -> SiteExpression:
    """Where the largest element of each row is, the first one of equals."""
    x = te.placeholder((m, n), "f32", name="x")
    k = te.reduce_axis(n, "k")

    def combine(a: Any, b: Any) -> Any:
        nearer = te.any(b[0] > a[0], te.all(b[0].equal(a[0]), b[1] < a[1]))
        return te.select(nearer, b[0], a[0]), te.select(nearer, b[1], a[1])

    largest = te.comm_reducer(
        combine, lambda v, i: (te.const(float("-inf"), v), te.max_value(i)), name="argmax"
    )
    _, place = te.compute((m,), lambda i: largest((te.floor(x[i, k]), k), axis=k), name="largest")
    return site(te.compute((m,), lambda i: place[i] + 0, name="y"), x)


def half_softmax(m: int, n: int) -> SiteExpression:
    """f16 with f32 within, powers rounded again."""
    x = te.placeholder((m, n), "f16", name="x")
    k, r = te.reduce_axis(n, "k"), te.reduce_axis(n, "r")
    top = te.compute((m,), lambda i: te.max(x[i, k].astype("f32"), axis=k), name="top")
    power = te.compute(
        (m, n), lambda i, j: te.exp(x[i, j].astype("f32") - top[i]).astype("f32"), name="power"
    )
    total = te.compute((m,), lambda i: te.sum(power[i, r], axis=r), name="total")
    return site(
        te.compute((m, n), lambda i, j: (power[i, j] / total[i]).astype("f16"), name="y"), x
    )


CASES = {
    "place of the largest": lambda: largest_place(5, 37),
    "softmax of f16": lambda: half_softmax(3, 35),
    "softmax": lambda: softmax(7, 37),
    "softmax over the first of three": lambda: softmax(9, 3, 13, axis=0),
    "softmax over the second of three": lambda: softmax(2, 5, 19, axis=1),
    "log softmax": lambda: log_softmax(5, 41),
    "layer norm": lambda: layer_norm(3, 5, 29),
    "RMS norm": lambda: rms_norm(6, 70),
    "group norm": lambda: group_norm(2, 6, 3, 3),
    "global average": lambda: global_average(2, 5, 7, last=False),
    "global average, channels last": lambda: global_average(2, 11, 3, last=True),
    "largest of rows": lambda: row_maximum(11, 23, 1),
    "largest of columns": lambda: row_maximum(11, 23, 0),
    "matrix by vector": lambda: matvec(13, 27),
}
