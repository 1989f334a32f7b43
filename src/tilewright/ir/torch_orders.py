"""What asks PyTorch for an order of elements, by ranks (`ir/ranks`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tilewright.ir.ranks import pieces

_aten = torch.ops.aten


def of_orders() -> dict[Any, Callable[..., Any]]:
    """As `torch_definitions.definitions`, of these."""
    return {
        _aten.topk.default: _topk,
        _aten.sort.default: _sort,
        _aten.sort.stable: _stable_sort,
        _aten.argsort.default: lambda *given: _second(_sort(*given)),
        _aten.argsort.stable: lambda *given, **how: _second(_stable_sort(*given, **how)),
        _aten.kthvalue.default: _kthvalue,
    }


def _topk(x: Any, first: int, dim: int = -1, largest: bool = True, is_sorted: bool = True) -> Any:
    known = x.dim() and isinstance(first, int) and isinstance(x.shape[dim], int)
    if not known or x.dtype == torch.bool:
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
    places, asked_of = None, x.shape[-1]
    # What the elements are computed by must not be computed again with each comparison, which IREE
    # 3.13 gets wrong: behind padding they are there.
    x = F.pad(x, (0, 1), value=last)
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
    places = at if places is None else places.gather(-1, at)
    return x.gather(-1, at), places.clamp(max=asked_of - 1)


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
