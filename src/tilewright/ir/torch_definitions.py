"""Operations of PyTorch that IREE's importer gets wrong, does not take or makes slow, by others.

IREE 3.13 gives other numbers for `grid_sampler`, and does not compile instances that are normalised
without weights, `prelu` with a weight for each channel, `logsumexp`, `fmod` by a number, `cdist`,
`col2im`, `&` of tensors, padding that goes around, takes elements away or mirrors one side alone,
padding to the same size for filters of an even one, and transposed convolutions of single channels.
Pooling to a given size it has ask of each element and each result whether they belong together,
hundreds of times the work of a mean, and the first of many elements it finds by exchanging
neighbours (`ir/ranks`). What they are is said here in operations that it takes; the formulas are
PyTorch's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch._decomp import get_decompositions

from tilewright.ir.ranks import pieces

_aten = torch.ops.aten


def definitions() -> dict[Any, Callable[..., Any]]:
    """What `run_decompositions` takes: by the operation, what computes the same of its operands, or
    returns `NotImplemented` where it is to stay."""
    found: dict[Any, Callable[..., Any]] = dict(
        get_decompositions([_aten.logsumexp, _aten.grid_sampler_2d])
    )
    found[_aten.grid_sampler.default] = _grid_sampler
    found[_aten.instance_norm.default] = _instance_norm
    found[_aten.prelu.default] = _prelu
    found[_aten.fmod.Scalar] = _fmod
    found[_aten.cdist.default] = found[_aten._cdist_forward.default] = _cdist
    found[_aten.constant_pad_nd.default] = _constant_pad
    found[_aten.pad.default] = _pad
    for rank in (1, 2, 3):
        found[getattr(_aten, f"reflection_pad{rank}d").default] = _reflection_pad
        found[getattr(_aten, f"conv{rank}d").padding] = _same
        found[getattr(_aten, f"adaptive_avg_pool{rank}d").default] = _adaptive_mean
        found[getattr(_aten, f"adaptive_max_pool{rank}d").default] = _adaptive_maximum
    for name in ("and", "or", "xor"):
        of_bits = getattr(torch, f"bitwise_{name}")
        found[getattr(_aten, f"__{name}__").Tensor] = of_bits
        for op in (getattr(_aten, f"__{name}__"), getattr(_aten, f"bitwise_{name}")):
            found[op.Scalar] = partial(_of_bits, of_bits)
    found[_aten.topk.default] = _topk
    found[_aten.sort.default] = _sort
    found[_aten.sort.stable] = _stable_sort
    found[_aten.argsort.default] = lambda *given: _second(_sort(*given))
    found[_aten.argsort.stable] = lambda *given, **how: _second(_stable_sort(*given, **how))
    found[_aten.kthvalue.default] = _kthvalue
    found[_aten.col2im.default] = _col2im
    found[_aten.conv_transpose1d.default] = _transposed
    found[_aten.conv_transpose2d.input] = _transposed
    return found


def _of_bits(both: Callable[..., Any], x: Any, number: int) -> Any:
    return both(x, torch.zeros_like(x) + number)


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
        x = (x.transpose(axis, -1) @ share.transpose(0, 1)).transpose(axis, -1)
    return x


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


def _topk(x: Any, first: int, dim: int = -1, largest: bool = True, is_sorted: bool = True) -> Any:
    if not x.dim() or not _are_known([first, x.shape[dim]]) or x.dtype == torch.bool:
        return NotImplemented
    found = _first(x.transpose(dim, -1), first, largest)
    return tuple(one.transpose(dim, -1) for one in found)


def _sort(x: Any, dim: int = -1, descending: bool = False) -> Any:
    return _topk(x, x.shape[dim], dim, descending) if x.dim() else NotImplemented


def _stable_sort(x: Any, *, stable: bool | None, dim: int = -1, descending: bool = False) -> Any:
    return _sort(x, dim, descending)


def _second(found: Any) -> Any:
    return found if found is NotImplemented else found[1]


def _kthvalue(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    found = _topk(x, k, dim, largest=False)
    if found is NotImplemented:
        return found
    last = (one.narrow(dim, k - 1, 1) for one in found)
    return tuple(one if keepdim else one.squeeze(dim) for one in last)


def _first(x: Any, first: int, largest: bool) -> tuple[Any, Any]:
    """The first elements along the last axis, in their order, and their places."""
    rows = math.prod(size for size in x.shape[:-1] if isinstance(size, int))
    if x.is_floating_point():
        last = -math.inf if largest else math.inf
    else:
        last = torch.iinfo(x.dtype).min if largest else torch.iinfo(x.dtype).max
    places = None
    for size in pieces(x.shape[-1], first, rows):
        count = x.shape[-1]
        number = -(-count // size)
        cut = F.pad(x, (0, number * size - count), value=last)
        cut = cut.reshape(*x.shape[:-1], number, size)
        at = _places(cut, min(first, size), largest)
        x = cut.gather(-1, at).flatten(-2)
        at = at + torch.arange(number, device=x.device).unsqueeze(-1) * size
        # What was added at the end is never among the first, but has a place.
        at = at.flatten(-2).clamp(max=count - 1)
        places = at if places is None else places.gather(-1, at)
    at = _places(x, first, largest)
    return x.gather(-1, at), at if places is None else places.gather(-1, at)


def _places(x: Any, first: int, largest: bool) -> Any:
    """Where the first elements of each row are."""
    place = torch.arange(x.shape[-1], dtype=torch.int32, device=x.device)
    others, each = x.unsqueeze(-2), x.unsqueeze(-1)
    before = others > each if largest else others < each
    # Of equal ones the one that stands first is the first.
    equal = torch.logical_and(others == each, place < place.unsqueeze(-1))
    rank = torch.logical_or(before, equal).sum(-1, dtype=torch.int32).unsqueeze(-2)
    is_it = rank == torch.arange(first, dtype=torch.int32, device=x.device).unsqueeze(-1)
    return torch.where(is_it, place, 0).amax(-1).to(torch.int64)


def _grid_sampler(x: Any, grid: Any, mode: int, beyond: int, corners: bool) -> Any:
    if x.dim() != 4:
        return NotImplemented
    return _aten.grid_sampler_2d(x, grid, mode, beyond, corners)


def _instance_norm(
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    of_instance: bool,
    momentum: float,
    eps: float,
    cudnn: bool,
) -> Any:
    shape = [1, -1, *(1 for _ in range(x.dim() - 2))]
    if of_instance or mean is None:
        axes = list(range(2, x.dim()))
        apart = x - x.mean(axes, keepdim=True)
        y = apart * torch.rsqrt((apart * apart).mean(axes, keepdim=True) + eps)
    else:
        y = (x - mean.reshape(shape)) * torch.rsqrt(var.reshape(shape) + eps)
    y = y if weight is None else y * weight.reshape(shape)
    return y if bias is None else y + bias.reshape(shape)


def _prelu(x: Any, weight: Any) -> Any:
    if weight.numel() > 1:
        weight = weight.reshape([-1 if axis == 1 else 1 for axis in range(x.dim())])
    return torch.where(x > 0, x, weight * x)


def _fmod(x: Any, by: float) -> Any:
    # Integers round towards zero another way.
    return x - torch.trunc(x / by) * by if x.is_floating_point() else NotImplemented


def _cdist(a: Any, b: Any, p: float = 2.0, mode: int | None = None) -> Any:
    apart = (a.unsqueeze(-2) - b.unsqueeze(-3)).abs()
    if p == 2:
        return torch.sqrt((apart * apart).sum(-1))
    if p == 1:
        return apart.sum(-1)
    if p == math.inf:
        return apart.amax(-1)
    return NotImplemented if p == 0 else (apart**p).sum(-1) ** (1 / p)


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
    if not _are_known(pads) or min(pads) < 0 or all(all(pair) for _, *pair in _around(x, pads)):
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
