"""Convolutions and pooling in the layouts that importers write, padded and not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright import te
from tilewright.sketch.interface import SiteExpression

Loops = Sequence[Any]


def padded(x: te.Tensor, first: int, rank: int, pad: int, value: Any) -> te.Tensor:
    """The tensor with `pad` more elements on both sides of `rank` dimensions from `first` on."""
    if not pad:
        return x
    shape = [s + 2 * pad if first <= d < first + rank else s for d, s in enumerate(x.shape)]

    def element(*at: Any) -> Any:
        inside = [
            a for d in range(first, first + rank) for a in (at[d] >= pad, at[d] < x.shape[d] + pad)
        ]
        place = [a - pad if first <= d < first + rank else a for d, a in enumerate(at)]
        return te.if_then_else(te.all(*inside), x(*place), value)

    return te.compute(shape, element, name="padded")


def windows_of(size: Sequence[int], kernel: int, stride: int, dilation: int) -> list[int]:
    """How many windows there are along each dimension."""
    return [(s - dilation * (kernel - 1) - 1) // stride + 1 for s in size]


def convolution(
    size: Sequence[int],
    channels: int,
    outputs: int,
    kernel: int = 3,
    *,
    stride: int = 1,
    dilation: int = 1,
    pad: int = 0,
    last: bool = True,
    dtype: str = "f32",
    sums: str | None = None,
    constant: bool = True,
    epilogue: Callable[[Any], Any] = lambda v: te.maximum(v, 0.0),
) -> SiteExpression:
    """Of any rank, channels last (with filters HWCF) or first (FCHW), bias added."""
    rank, total = len(size), sums or ("i32" if dtype == "i8" else "f32")
    first = 1 if last else 2
    shape = (1, *size, channels) if last else (1, channels, *size)
    window = (kernel,) * rank
    x = te.placeholder(shape, dtype, name="x")
    w = te.placeholder(
        (*window, channels, outputs) if last else (outputs, channels, *window), dtype, name="w"
    )
    b = te.placeholder((outputs,), total, name="b")
    source = padded(x, first, rank, pad, te.const(0, dtype))
    r = [te.reduce_axis(kernel, f"r{d}") for d in range(rank)]
    c = te.reduce_axis(channels, "c")
    few = windows_of(source.shape[first : first + rank], kernel, stride, dilation)

    def parts(at: Loops) -> tuple[Any, Any, Loops]:
        return (at[0], at[-1], at[1:-1]) if last else (at[0], at[1], at[2:])

    def product(*at: Any) -> Any:
        n, f, place = parts(at)
        read = [p * stride + q * dilation for p, q in zip(place, r, strict=True)]
        image = source(n, *read, c) if last else source(n, c, *read)
        weight = w(*r, c, f) if last else w(f, c, *r)
        return te.sum(image.astype(total) * weight.astype(total), axis=[*r, c])

    result = (1, *few, outputs) if last else (1, outputs, *few)
    y = te.compute(result, product, name="y")
    z = te.compute(result, lambda *at: epilogue(y(*at) + b[parts(at)[1]]), name="z")
    return SiteExpression((x, w, b), (False, constant, constant), z)


def depthwise(
    size: Sequence[int],
    channels: int,
    kernel: int = 3,
    *,
    stride: int = 1,
    pad: int = 1,
    last: bool = True,
    multiplier: int = 1,
    single: bool = False,
) -> SiteExpression:
    """One filter for each channel, or several; `single`: the filters as ONNX has them, of one
    channel each."""
    several = (multiplier,) if multiplier > 1 else ()
    shape = (1, *size, channels) if last else (1, channels, *size)
    x = te.placeholder(shape, "f32", name="x")
    window = (kernel, kernel)
    w = te.placeholder(
        (channels, 1, *window)
        if single
        else (*window, channels, *several)
        if last
        else (channels, *window),
        "f32",
        name="w",
    )
    source = padded(x, 1 if last else 2, 2, pad, 0.0)
    di, dj = (te.reduce_axis(kernel, n) for n in ("di", "dj"))
    few = windows_of([s + 2 * pad for s in size], kernel, stride, 1)

    def product(n: Any, *at: Any) -> Any:
        if last:
            i, j, c, *m = at
            weight = w[c, 0, di, dj] if single else w(di, dj, c, *m)
            return te.sum(source[n, i * stride + di, j * stride + dj, c] * weight, axis=[di, dj])
        c, i, j = at
        return te.sum(source[n, c, i * stride + di, j * stride + dj] * w[c, di, dj], axis=[di, dj])

    result = (1, *few, channels, *several) if last else (1, channels, *few)
    return SiteExpression((x, w), (False, True), te.compute(result, product, name="y"))


def grouped(size: Sequence[int], groups: int, channels: int, outputs: int) -> SiteExpression:
    """Channels in groups, each of them convolved alone; padded, channels first."""
    x = te.placeholder((1, groups, channels, *size), "f32", name="x")
    w = te.placeholder((groups, outputs, channels, 3, 3), "f32", name="w")
    source = padded(x, 3, 2, 1, 0.0)
    di, dj, c = (te.reduce_axis(e, n) for e, n in ((3, "di"), (3, "dj"), (channels, "c")))
    y = te.compute(
        (1, groups, outputs, *size),
        lambda n, g, f, i, j: te.sum(
            source[n, g, c, i + di, j + dj] * w[g, f, c, di, dj], axis=[c, di, dj]
        ),
        name="y",
    )
    return SiteExpression((x, w), (False, True), y)


def grouped_channels(
    size: Sequence[int], groups: int, channels: int, outputs: int, *, stride: int = 1
) -> SiteExpression:
    """A grouped convolution in a program that knows channels alone: bias added, padded."""
    x = te.placeholder((1, groups * channels, *size), "f32", name="x")
    w = te.placeholder((groups, outputs, channels, 3, 3), "f32", name="w")
    b = te.placeholder((groups * outputs,), "f32", name="b")
    source = padded(x, 2, 2, 1, 0.0)
    di, dj, c = (te.reduce_axis(e, n) for e, n in ((3, "di"), (3, "dj"), (channels, "c")))
    few = windows_of([s + 2 for s in size], 3, stride, 1)
    y = te.compute(
        (1, groups, outputs, *few),
        lambda n, g, f, i, j: te.sum(
            source[n, g * channels + c, i * stride + di, j * stride + dj] * w[g, f, c, di, dj],
            axis=[c, di, dj],
        ),
        name="y",
    )
    z = te.compute(
        (1, groups * outputs, *few),
        lambda n, f, i, j: te.maximum(y(n, f // outputs, f % outputs, i, j) + b[f], 0.0),
        name="z",
    )
    return SiteExpression((x, w, b), (False, True, True), z)


def blocked(size: Sequence[int], channels: int, outputs: int, block: int = 16) -> SiteExpression:
    """Blocks of channels innermost, with a residual added; padded."""
    x = te.placeholder((1, channels // block, *size, block), "f32", name="x")
    w = te.placeholder((outputs // block, channels // block, 3, 3, block, block), "f32", name="w")
    z = te.placeholder((1, outputs // block, *size, block), "f32", name="z")
    source = padded(x, 2, 2, 1, 0.0)
    cb, di, dj, ci = (
        te.reduce_axis(e, n)
        for e, n in ((channels // block, "cb"), (3, "di"), (3, "dj"), (block, "ci"))
    )
    y = te.compute(
        z.shape,
        lambda n, o, i, j, k: te.sum(
            source[n, cb, i + di, j + dj, ci] * w[o, cb, di, dj, k, ci], axis=[cb, di, dj, ci]
        ),
        name="y",
    )
    added = te.compute(z.shape, lambda *at: te.maximum(y(*at) + z(*at), 0.0), name="added")
    return SiteExpression((x, w, z), (False, True, False), added)


def pooling(
    size: Sequence[int],
    channels: int,
    kernel: int,
    stride: int,
    *,
    pad: int = 0,
    last: bool = True,
    mean: bool = False,
    turned: bool = False,
) -> SiteExpression:
    """The largest element of each window, or the mean of its elements; `turned`: channels are last
    in the image and first in the result."""
    x = te.placeholder((1, *size, channels) if last else (1, channels, *size), "f32", name="x")
    source = padded(x, 1 if last else 2, 2, pad, 0.0 if mean else te.min_value("f32"))
    r = [te.reduce_axis(kernel, n) for n in ("di", "dj")]
    few = windows_of([s + 2 * pad for s in size], kernel, stride, 1)
    reduced = te.sum if mean else te.max

    def window(n: Any, *at: Any) -> Any:
        place = at[:-1] if last else at[1:]
        read = [p * stride + q for p, q in zip(place, r, strict=True)]
        return reduced(source(n, *read, at[-1]) if last else source(n, at[0], *read), axis=r)

    result = (1, *few, channels) if last and not turned else (1, channels, *few)
    if turned:
        y = te.compute(result, lambda n, c, *at: window(n, *at, c), name="y")
    else:
        y = te.compute(result, window, name="y")
    if mean:
        y = te.compute(result, lambda *at: y(*at) * (1.0 / kernel**2), name="mean")
    return SiteExpression((x,), (False,), y)


def enlarged(site: SiteExpression, factor: int = 2) -> SiteExpression:
    """Each row and column of a result (channels last) several times, and something added."""
    n, *size, f = site.output.shape
    shape = (n, *(factor * one for one in size), f)
    more = te.placeholder(shape, site.output.dtype, name="more")

    def element(*at: Any) -> Any:
        image, *place, channel = at
        return site.output(image, *(one // factor for one in place), channel) + more(*at)

    output = te.compute(shape, element, name="enlarged")
    return SiteExpression((*site.inputs, more), (*site.constant, False), output)


def transposed(site: SiteExpression) -> SiteExpression:
    """A site that is channels last but for its result, which is channels first."""
    n, *size, channels = site.output.shape

    def element(n: Any, c: Any, *place: Any) -> Any:
        return te.maximum(site.output(n, *place, c), 0.0)

    output = te.compute((n, channels, *size), element, name="transposed")
    return SiteExpression(site.inputs, site.constant, output)


def upsampling(
    size: int,
    channels: int,
    outputs: int,
    kernel: int = 2,
    stride: int = 2,
    *,
    pad: int = 0,
    more: int = 0,
    dilation: int = 1,
    last: bool = False,
    constant: bool = True,
    added: bool = False,
) -> SiteExpression:
    """A transposed convolution over what has zeros between its elements: `pad` and `more` as a
    framework has padding and output padding; `added`: something of the result's shape is added."""
    first = dilation * (kernel - 1) - pad
    wide = 2 * first + stride * (size - 1) + 1 + more
    few = windows_of([wide], kernel, 1, dilation)[0]
    shape = (1, size, size, channels) if last else (1, channels, size, size)
    x = te.placeholder(shape, "f32", name="x")
    w = te.placeholder((outputs, channels, kernel, kernel), "f32", name="w")

    def at_(n: Any, c: Any, i: Any, j: Any) -> tuple[Any, ...]:
        return (n, i, j, c) if last else (n, c, i, j)

    def element(n: Any, *at: Any) -> Any:
        c, *place = (at[2], *at[:2]) if last else at
        end = first + stride * (size - 1)
        tests = [t for a in place for t in (a >= first, a <= end)]
        tests += [((a - first) % stride).equal(0) for a in place]
        return te.if_then_else(
            te.all(*tests), x(*at_(n, c, *((a - first) // stride for a in place))), 0.0
        )

    apart = te.compute(at_(1, channels, wide, wide), element, name="apart")
    c, di, dj = (te.reduce_axis(e, n) for e, n in ((channels, "c"), (kernel, "di"), (kernel, "dj")))

    def product(n: Any, *at: Any) -> Any:
        f, i, j = (at[2], *at[:2]) if last else at
        read = apart(*at_(n, c, i + di * dilation, j + dj * dilation))
        return te.sum(read * w[f, c, di, dj], axis=[c, di, dj])

    y = te.compute(at_(1, outputs, few, few), product, name="y")
    if not added:
        return SiteExpression((x, w), (False, constant), y)
    z = te.placeholder(y.shape, "f32", name="z")
    out = te.compute(y.shape, lambda *at: te.maximum(y(*at) + z(*at), 0.0), name="out")
    return SiteExpression((x, w, z), (False, constant, False), out)


def hardswish(v: Any) -> Any:
    """x * relu6(x + 3) / 6."""
    return v * te.minimum(te.maximum(v + 3.0, 0.0), 6.0) * (1.0 / 6.0)


CASES: dict[str, Callable[[], SiteExpression]] = {
    "channels last": lambda: convolution((5, 7), 3, 20, pad=1),
    "channels last, stride 2": lambda: convolution((7, 9), 4, 9, stride=2, pad=1),
    "channels last, dilated": lambda: convolution(
        (4, 5), 3, 17, dilation=2, pad=2, epilogue=hardswish
    ),
    "channels last, strided 1x1": lambda: convolution((5, 6), 8, 24, 1, stride=2),
    "channels last, filter not constant": lambda: convolution((4, 6), 5, 19, constant=False),
    "channels first": lambda: convolution((6, 7), 4, 18, pad=1, last=False),
    "channels first, stride 2": lambda: convolution((9, 7), 3, 11, stride=2, pad=1, last=False),
    "channels first, 5 wide": lambda: convolution((6, 14), 2, 7, 5, last=False),
    "sequence": lambda: convolution((21,), 5, 10, 3, pad=1),
    "sequence, channels first": lambda: convolution((21,), 5, 10, 3, stride=2, last=False),
    "volume": lambda: convolution((4, 3, 5), 2, 9, 2),
    "bytes": lambda: convolution((4, 5), 6, 17, pad=1, dtype="i8", epilogue=lambda v: v),
    "halves": lambda: convolution((4, 3), 4, 17, pad=1, dtype="f16"),
    "depthwise": lambda: depthwise((6, 7), 19),
    "depthwise, stride 2": lambda: depthwise((7, 9), 16, stride=2),
    "depthwise, result transposed": lambda: transposed(depthwise((5, 6), 19)),
    "max pooling, result transposed": lambda: transposed(pooling((7, 9), 12, 3, 2, pad=1)),
    "transposed": lambda: upsampling(5, 3, 9),
    "transposed, 4 wide": lambda: upsampling(5, 3, 9, 4, pad=1, added=True),
    "transposed, 3 wide": lambda: upsampling(3, 2, 9, 3, pad=1, last=True, added=True),
    "transposed, dilated": lambda: upsampling(3, 2, 9, 3, pad=1, dilation=2, constant=False),
    "transposed, dilated, stride 3": lambda: upsampling(3, 2, 9, 4, 3, more=1, dilation=2),
    "transposed, gaps": lambda: upsampling(2, 2, 9, 2, 4, last=True),
    "depthwise, filters of one channel": lambda: depthwise((6, 7), 19, single=True),
    "depthwise, several": lambda: depthwise((4, 5), 3, multiplier=5),
    "groups": lambda: grouped((4, 6), 2, 3, 10),
    "groups of channels": lambda: grouped_channels((5, 9), 3, 2, 4),
    "groups of channels, stride 2": lambda: grouped_channels((6, 10), 2, 4, 4, stride=2),
    "blocked": lambda: blocked((3, 4), 16, 24, 8),
    "depthwise, channels first": lambda: depthwise((5, 17), 3, last=False),
    "depthwise, channels first, stride 2": lambda: depthwise((7, 19), 2, stride=2, last=False),
    "max pooling, channels first": lambda: pooling((7, 12), 2, 3, 2, pad=1, last=False),
    "max pooling": lambda: pooling((9, 7), 10, 3, 2, pad=1),
    "max pooling, channels first in the result": lambda: pooling(
        (9, 12), 10, 3, 2, pad=1, turned=True
    ),
    "enlarged": lambda: enlarged(convolution((5, 3), 6, 19, pad=1)),
    "enlarged, depthwise": lambda: enlarged(depthwise((4, 5), 19), 3),
    "enlarged, channels in parts": lambda: enlarged(convolution((3, 4), 32, 12, pad=1)),
    "channels in parts": lambda: convolution((5, 4), 32, 12, pad=1),
    "channels in parts, first": lambda: convolution((7, 6), 32, 24, stride=2, pad=1, last=False),
    "few outputs": lambda: convolution((6, 12), 8, 3, pad=1),
    "few outputs, gathered": lambda: convolution((5, 9), 6, 2, pad=1),
    "few outputs, stride 2": lambda: convolution((7, 16), 4, 3, stride=2, pad=1),
    "few outputs, result transposed": lambda: transposed(convolution((6, 8), 8, 3, pad=1)),
    "few outputs, transposed": lambda: upsampling(4, 4, 3, 3, pad=1, last=True),
    "mean pooling": lambda: pooling((6, 8), 9, 2, 2, mean=True),
}
