"""Operations of PyTorch that IREE's importer gets wrong, does not take or makes slow, by others.

IREE 3.13 does not compile instances that are normalised without weights, `prelu` with a weight for
each channel, `logsumexp`, `fmod` by a number, `cdist`, `&` of tensors, bits of a number, nor the
magnitudes of complex numbers. What they are is said here in operations that it takes, as is what
`ir/torch_images` has of images and `ir/torch_orders` of orders; the formulas are PyTorch's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._decomp import get_decompositions

from tilewright.ir.torch_images import of_images
from tilewright.ir.torch_orders import of_orders

_aten = torch.ops.aten


def definitions() -> dict[Any, Callable[..., Any]]:
    """What `run_decompositions` takes: by the operation, what computes the same of its operands, or
    returns `NotImplemented` where it is to stay."""
    found = {**get_decompositions([_aten.logsumexp]), **of_images(), **of_orders()}
    found[_aten.instance_norm.default] = _instance_norm
    found[_aten.prelu.default] = _prelu
    found[_aten.fmod.Scalar] = _fmod
    found[_aten.cdist.default] = found[_aten._cdist_forward.default] = _cdist
    found[_aten.abs.default] = _magnitude
    for name in ("and", "or", "xor"):
        of_bits = getattr(torch, f"bitwise_{name}")
        found[getattr(_aten, f"__{name}__").Tensor] = of_bits
        for op in (getattr(_aten, f"__{name}__"), getattr(_aten, f"bitwise_{name}")):
            found[op.Scalar] = partial(_of_bits, of_bits)
    return found


def _of_bits(both: Callable[..., Any], x: Any, number: int) -> Any:
    return both(x, torch.zeros_like(x) + number)


def _magnitude(x: Any) -> Any:
    if not x.is_complex():
        return NotImplemented
    parts = torch.view_as_real(x)
    return torch.sqrt((parts * parts).sum(-1))


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
