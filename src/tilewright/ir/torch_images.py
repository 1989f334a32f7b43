"""Operations of PyTorch on images that IREE's importer gets wrong, does not take or makes slow.

IREE 3.13 gives other numbers for `grid_sampler`, and does not compile `col2im`, resizes that
smooth, padding that goes around, takes elements away or mirrors one side alone (of some sizes
both), padding to the same size for filters of an even one, transposed convolutions of single
channels, and the sum of two convolutions of these where one reads every second pixel alone. Pooling
to a given size it has ask of each element and each result whether they belong together, hundreds of
times the work of a mean, and each element of what becomes larger by whole numbers it gathers from
places that it computes in floats; by one and a half it does not compile that. They are written by
other operations, as `ir/onnx_images` and `ir/onnx_resizes` do it for ONNX.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch._decomp import get_decompositions

_aten = torch.ops.aten


def of_images() -> dict[Any, Callable[..., Any]]:
    """As `torch_definitions.definitions`, of these."""
    found: dict[Any, Callable[..., Any]] = dict(get_decompositions([_aten.grid_sampler_2d]))
    found[_aten.grid_sampler.default] = _grid_sampler
    found[_aten.constant_pad_nd.default] = _constant_pad
    found[_aten.pad.default] = _pad
    for rank in (1, 2, 3):
        found[getattr(_aten, f"reflection_pad{rank}d").default] = _reflection_pad
        found[getattr(_aten, f"conv{rank}d").default] = _strided
        found[getattr(_aten, f"conv{rank}d").padding] = _same
        found[getattr(_aten, f"adaptive_avg_pool{rank}d").default] = _adaptive_mean
        found[getattr(_aten, f"adaptive_max_pool{rank}d").default] = _adaptive_maximum
    found[_aten._upsample_bilinear2d_aa.default] = partial(_smoothed, _triangle)
    found[_aten._upsample_bicubic2d_aa.default] = partial(_smoothed, _cubic)
    for kind in ("linear1d", "bilinear2d", "trilinear3d"):
        found[getattr(_aten, f"upsample_{kind}").vec] = _between
    for kind in ("nearest", "_nearest_exact"):
        for rank in (1, 2, 3):
            name = f"{'_upsample' if kind[0] == '_' else 'upsample_'}{kind}{rank}d"
            found[getattr(_aten, name).vec] = _repeated
    found[_aten.col2im.default] = _col2im
    found[_aten.conv_transpose1d.default] = _transposed
    found[_aten.conv_transpose2d.input] = _transposed
    return found


def _adaptive_mean(x: Any, size: Sequence[int]) -> Any:
    axes = range(x.dim() - len(size), x.dim())
    if all(n == 1 for n in size):
        return x.mean(list(axes), keepdim=True)
    if not _are_known([*size, *(x.shape[axis] for axis in axes)]):
        return NotImplemented
    windows = _equal_windows(x, size)
    if windows is not None and max(windows) == 1:
        return x.clone()
    if windows is not None:
        pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(size) - 1]
        return pool(x, windows, windows)
    # The mean of a box is that of the means along its axes, each a product with a matrix.
    for axis, n in zip(axes, size, strict=True):
        begin, end = _windows(x.shape[axis], n, x.device)
        place = torch.arange(x.shape[axis], device=x.device)
        share = ((place >= begin) & (place < end)).to(x.dtype) / (end - begin).to(x.dtype)
        x = _mixed(x, axis, share)
    return x


def _mixed(x: Any, axis: int, share: Any) -> Any:
    """Sums of what is along an axis, by the shares (results, elements) that a matrix has."""
    return (x.transpose(axis, -1) @ share.transpose(0, 1)).transpose(axis, -1)


def _adaptive_maximum(x: Any, size: Sequence[int]) -> Any:
    first, rank = x.dim() - len(size), len(size)
    area = list(x.shape[first:])
    if not _are_known([*size, *area]):
        return NotImplemented
    windows = _equal_windows(x, size)
    if windows is not None:
        pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1]
        return pool(x, windows, windows, return_indices=True)
    # Each window by itself, its last element again where others are larger.
    y, places = x, list[Any]()
    for axis, m, n in reversed(list(zip(range(first, x.dim()), area, size, strict=True))):
        begin, end = _windows(m, n, x.device)
        largest = max(((i + 1) * m + n - 1) // n - i * m // n for i in range(n))
        place = torch.minimum(begin + torch.arange(largest, device=x.device), end - 1)
        y = y.index_select(axis, place.flatten()).unflatten(axis, (n, largest))
        places.insert(0, place)
    order = [*range(first), *range(first, y.dim(), 2), *range(first + 1, y.dim(), 2)]
    y = y.permute(order).flatten(first + rank)
    within = y.argmax(-1)
    index, step = torch.zeros_like(within), 1
    for n, (m, place) in reversed(list(enumerate(zip(area, places, strict=True)))):
        row = torch.arange(size[n], device=x.device).reshape([-1, *(1 for _ in size[n + 1 :])])
        index = index + step * place[row, within % place.shape[1]]
        within, step = within // place.shape[1], step * m
    return y.amax(-1), index


def _windows(m: int, n: int, device: Any) -> tuple[Any, Any]:
    """Where the windows of a pooling of `m` elements to `n` begin and end, (n, 1) each."""
    window = torch.arange(n, device=device).unsqueeze(1)
    return window * m // n, ((window + 1) * m + n - 1) // n


def _equal_windows(x: Any, size: Sequence[int]) -> list[int] | None:
    """The windows of a pooling to that size where all are equally large and none overlap."""
    area = list(x.shape[x.dim() - len(size) :])
    if not _are_known([*size, *area]) or any(m % n for m, n in zip(area, size, strict=True)):
        return None
    return [m // n for m, n in zip(area, size, strict=True)]


def _grid_sampler(x: Any, grid: Any, mode: int, beyond: int, corners: bool) -> Any:
    if x.dim() != 4:
        return NotImplemented
    return _aten.grid_sampler_2d(x, grid, mode, beyond, corners)


def _triangle(distance: Any) -> Any:
    return torch.relu(1 - distance)


def _cubic(distance: Any) -> Any:
    # Keys' filter by -0.5, as where PyTorch smooths.
    near = (1.5 * distance - 2.5) * distance * distance + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    return torch.where(distance < 1, near, torch.where(distance < 2, far, 0.0))


def _smoothed(
    falls: Callable[[Any], Any],
    x: Any,
    size: Sequence[int],
    corners: bool,
    *scales: float | None,
) -> Any:
    """A resize that takes the mean of all that falls onto a pixel, which counts as `falls` says of
    its distance: along each axis a product with a matrix."""
    if not _are_known([*size, *x.shape[-2:]]):
        return NotImplemented
    for axis, n, given in zip((-2, -1), size, scales or (None, None), strict=True):
        m = x.shape[axis]
        step = 1 / given if given else m / n
        if corners:
            step = (m - 1) / (n - 1) if n > 1 else 0.0
        wide = max(step, 1.0)
        at = (torch.arange(n, dtype=x.dtype, device=x.device).unsqueeze(1) + 0.5) * step
        place = torch.arange(m, dtype=x.dtype, device=x.device) + 0.5
        counts = falls((place - at).abs() / wide)
        share = counts / counts.sum(-1, keepdim=True)
        x = _mixed(x, axis, share)
    return x


def _times(x: Any, size: Any, scales: Any) -> list[int]:
    """How many times as large each dimension of images becomes; none where it is no whole number,
    or not known."""
    area = list(x.shape[2:])
    sizes = list(size or [int(n * s) for n, s in zip(area, scales, strict=True)])
    if not _are_known([*sizes, *area]) or any(n % m for n, m in zip(sizes, area, strict=True)):
        return []
    times = [n // m for n, m in zip(sizes, area, strict=True)]
    given = scales or times
    return times if all(s == n for s, n in zip(given, times, strict=True)) else []


def _repeated(x: Any, size: Any, scales: Any) -> Any:
    """Images that become larger by having each element several times."""
    times = _times(x, size, scales)
    if not times:
        return NotImplemented
    for axis, often in enumerate(times, 2):
        if often > 1:
            shape = [*x.shape[: axis + 1], often, *x.shape[axis + 1 :]]
            x = x.unsqueeze(axis + 1).expand(shape).flatten(axis, axis + 1)
    return x


def _between(x: Any, size: Any, corners: bool, scales: Any) -> Any:
    """Images that become larger by elements between theirs; how is in `ir/onnx_resizes`."""
    times = _times(x, size, scales)
    if not times:
        return _interpolated(x, size, corners, scales)
    for axis, often in enumerate(times, 2):
        if often > 1:
            x = _between_along(x, axis, often, corners)
    return x


def _between_along(x: Any, axis: int, often: int, corners: bool) -> Any:
    m, kind = x.shape[axis], torch.promote_types(x.dtype, torch.float32)
    each = torch.arange(often, dtype=kind, device=x.device)
    places = ((each + 0.5) / often - 0.5).unsqueeze(0)
    if corners:
        first = torch.arange(m, dtype=kind, device=x.device).unsqueeze(1)
        places = (each * (m - 1) - first * (often - 1)) / (often * m - 1)
    before = torch.cat([x.narrow(axis, 0, 1), x.narrow(axis, 0, m - 1)], axis)
    behind = torch.cat([x.narrow(axis, 1, m - 1), x.narrow(axis, m - 1, 1)], axis)
    parts = (x, 1 - places.abs()), (before, torch.relu(-places)), (behind, torch.relu(places))
    ones = [1 for _ in x.shape[axis + 1 :]]
    made = [
        part.unsqueeze(axis + 1) * share.reshape([*share.shape, *ones]) for part, share in parts
    ]
    return (made[0] + made[1] + made[2]).flatten(axis, axis + 1)


def _interpolated(x: Any, size: Any, corners: bool, scales: Any) -> Any:
    """Images of another size, each element between two: along each axis a product with a matrix."""
    area, kind = list(x.shape[2:]), torch.promote_types(x.dtype, torch.float32)
    if not _are_known([*(size or []), *area]):
        return NotImplemented
    factors = scales or [None] * len(area)
    sizes = size or [int(m * factor) for m, factor in zip(area, factors, strict=True)]
    for axis, m, n, factor in zip(range(2, x.dim()), area, sizes, factors, strict=True):
        step = 1 / factor if factor else m / n
        at = torch.arange(n, dtype=kind, device=x.device).unsqueeze(1)
        at = at * ((m - 1) / max(n - 1, 1)) if corners else (at + 0.5) * step - 0.5
        place = torch.arange(m, dtype=kind, device=x.device)
        share = _triangle((place - at.clamp(0, m - 1)).abs()).to(x.dtype)
        x = _mixed(x, axis, share)
    return x


def _constant_pad(x: Any, pads: Sequence[int], value: float = 0) -> Any:
    if not _are_known(pads) or min(pads, default=0) >= 0:
        return NotImplemented
    for axis, begin, end in _around(x, pads):
        first, last = max(0, -begin), x.shape[axis] - max(0, -end)
        x = x.narrow(axis, first, last - first)
    return F.pad(x, [max(0, pad) for pad in pads], value=value)


def _pad(x: Any, pads: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:
    if mode == "constant":
        return _constant_pad(x, pads, value or 0)
    if mode == "circular" and _are_known(pads) and min(pads) >= 0:
        for axis, begin, end in _around(x, pads):
            parts = x.narrow(axis, x.shape[axis] - begin, begin), x, x.narrow(axis, 0, end)
            x = torch.cat(parts, axis)
        return x
    return _reflection_pad(x, pads) if mode == "reflect" else NotImplemented


def _are_known(pads: Sequence[Any]) -> bool:
    return all(isinstance(one, int) for one in pads)


def _around(x: Any, pads: Sequence[int]) -> list[tuple[int, int, int]]:
    """The axes that get padding, each with how much before and behind it."""
    pairs = zip(pads[::2], pads[1::2], strict=True)
    return [(x.dim() - 1 - n, *pair) for n, pair in enumerate(pairs) if any(pair)]


def _reflection_pad(x: Any, pads: Sequence[int]) -> Any:
    if not _are_known(pads) or min(pads) < 0:
        return NotImplemented
    for axis, begin, end in _around(x, pads):
        before = x.narrow(axis, 1, begin).flip(axis)
        behind = x.narrow(axis, x.shape[axis] - 1 - end, end).flip(axis)
        x = torch.cat([before, x, behind], axis)
    return x


def _same(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Sequence[int] = (1,),
    padding: str = "valid",
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> Any:
    """A convolution whose result is as large as its image, with filters of any size."""
    kernel = list(weight.shape[2:])
    dilations = list(dilation) * (len(kernel) if len(dilation) == 1 else 1)
    whole = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
    if padding != "same" or all(n % 2 == 0 for n in whole):
        return NotImplemented
    x = F.pad(x, [n for size in reversed(whole) for n in (size // 2, size - size // 2)])
    convolve = (F.conv1d, F.conv2d, F.conv3d)[len(kernel) - 1]
    return convolve(x, weight, bias, tuple(stride), 0, tuple(dilation), groups)


def _strided(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> Any:
    """A convolution of channels by themselves that reads single pixels, not all of them: one of
    those that it reads."""
    channels, *kernel = weight.shape[1:]
    alone = groups > 1 and [channels, *kernel] == [1] * (1 + len(kernel))
    if not alone or max(stride) == 1 or any(padding):
        return NotImplemented
    steps = list(stride) * (len(kernel) if len(stride) == 1 else 1)
    for axis, step in enumerate(steps, x.dim() - len(kernel)):
        x = _aten.slice(x, axis, step=step)
    convolve = (F.conv1d, F.conv2d, F.conv3d)[len(kernel) - 1]
    return convolve(x, weight, bias, groups=groups)


def _col2im(
    x: Any,
    size: Sequence[int],
    block: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Any:
    """Blocks of pixels, each added to the image at its place: a transposed convolution with filters
    of a single one."""
    places = math.prod(block)
    whole = [
        n + 2 * p - d * (k - 1) - 1
        for n, p, d, k in zip(size, padding, dilation, block, strict=True)
    ]
    blocks = [n // s + 1 for n, s in zip(whole, stride, strict=True)]
    rest = [n % s for n, s in zip(whole, stride, strict=True)]
    channels = x.shape[-2] // places
    ones = torch.eye(places, dtype=x.dtype).reshape(places, 1, *block).repeat(channels, 1, 1, 1)
    y = x.reshape(-1, channels * places, *blocks)
    y = F.conv_transpose2d(
        y, ones, None, tuple(stride), tuple(padding), tuple(rest), channels, tuple(dilation)
    )
    return y if x.dim() == 3 else y.squeeze(0)


def _transposed(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    more: Sequence[int] = (0,),
    groups: int = 1,
    dilation: Sequence[int] = (1,),
) -> Any:
    """A transposed convolution of channels by themselves: what falls on each of the places between
    two elements is a convolution of its own; their results take turns (see `ir/onnx_images`)."""
    rank = weight.dim() - 2

    def each(given: Sequence[int]) -> list[int]:
        return list(given) * rank if len(given) == 1 else list(given)

    if x.dim() != rank + 2 or groups == 1 or weight.shape[0] != groups or max(dilation) > 1:
        return NotImplemented
    strides, pads, added = each(stride), each(padding), each(more)
    kernel, area = list(weight.shape[2:]), list(x.shape[2:])
    taps = [
        -(-max(k, k + m - p) // s) for k, m, p, s in zip(kernel, added, pads, strides, strict=True)
    ]
    room = [n for t, s, k in zip(taps, strides, kernel, strict=True) for n in (t * s - k, 0)]
    filters = F.pad(weight, room[::-1])
    split = [n for pair in zip(taps, strides, strict=True) for n in pair]
    filters = filters.reshape(groups, weight.shape[1], *split)
    order = [*range(3, 3 + 2 * rank, 2), *range(2, 2 + 2 * rank, 2)]
    filters = filters.permute(0, 1, *order).flip(list(range(2 + rank, 2 + 2 * rank)))
    channels = groups * weight.shape[1]
    filters = filters.reshape(channels * math.prod(strides), 1, *taps)
    convolve = F.conv1d if rank == 1 else F.conv2d
    y = convolve(x, filters, padding=[tap - 1 for tap in taps], groups=groups)
    places = [n + t - 1 for n, t in zip(area, taps, strict=True)]
    y = y.reshape(x.shape[0], channels, *strides, *places)
    y = y.permute(0, 1, *(n for axis in range(rank) for n in (2 + rank + axis, 2 + axis)))
    y = y.reshape(x.shape[0], channels, *(n * s for n, s in zip(places, strides, strict=True)))
    for axis, pad in enumerate(pads):
        size = (area[axis] - 1) * strides[axis] - 2 * pad + kernel[axis] + added[axis]
        y = y.narrow(2 + axis, pad, size)
    return y if bias is None else y + bias.reshape([1, -1, *(1 for _ in range(rank))])
