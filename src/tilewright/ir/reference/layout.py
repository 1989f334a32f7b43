"""linalg ops without a scalar body: pack, unpack and softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from iree.compiler import ir

from tilewright.ir.reference.body import Lookup
from tilewright.ir.reference.elements import Array, Unsupported
from tilewright.ir.reference.tensors import Handler, mixed, segments


def _tiling(
    op: ir.Operation, tiles: Sequence[Any], rank: int
) -> tuple[list[int], list[int], list[int]]:
    """Tile sizes, the dimensions that they cut, and the order of the outer dimensions."""
    sizes = mixed(op, "static_inner_tiles", tiles)
    cut = list(ir.DenseI64ArrayAttr(op.attributes["inner_dims_pos"]))
    order = list(range(rank))
    if "outer_dims_perm" in op.attributes:
        order = list(ir.DenseI64ArrayAttr(op.attributes["outer_dims_perm"])) or order
    return sizes, cut, order


def _tiled_axes(rank: int, cut: Sequence[int], order: Sequence[int]) -> list[int]:
    """Axes of the source, each cut dimension split in two (outer, inner), in the packed order."""
    outer, position = [], 0
    inner = {}
    for d in range(rank):
        outer.append(position)
        position += 1
        if d in cut:
            inner[d] = position
            position += 1
    return [outer[d] for d in order] + [inner[d] for d in cut]


def _pack(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    """Cut dimensions into tiles and move the tiles' own dimensions to the end, padding the last."""
    source, target, padding, tiles = segments(op, operands)
    array = source[0]
    sizes, cut, order = _tiling(op, tiles, array.ndim)
    tile = dict(zip(cut, sizes, strict=True))
    outer = [0] * array.ndim
    for position, d in enumerate(order):
        outer[d] = target[0].shape[position]
    extra = [outer[d] * tile.get(d, 1) - n for d, n in enumerate(array.shape)]
    if any(n < 0 for n in extra):
        raise Unsupported(f"{op.name} that leaves out part of its source")
    if any(extra):
        if not padding:
            raise Unsupported(f"{op.name} of incomplete tiles without a padding value")
        array = np.pad(array, [(0, n) for n in extra], constant_values=padding[0])
    split = [
        n for d in range(array.ndim) for n in ([outer[d], tile[d]] if d in tile else [outer[d]])
    ]
    return [array.reshape(split).transpose(_tiled_axes(len(outer), cut, order))]


def _unpack(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    """The inverse of pack; what padded the last tiles is dropped."""
    source, target, tiles = segments(op, operands)[:3]
    shape = target[0].shape
    sizes, cut, order = _tiling(op, tiles, len(shape))
    tile = dict(zip(cut, sizes, strict=True))
    axes = _tiled_axes(len(shape), cut, order)
    outer = dict(zip(order, source[0].shape, strict=False))
    whole = source[0].transpose(np.argsort(axes))
    whole = whole.reshape([outer[d] * tile.get(d, 1) for d in range(len(shape))])
    return [whole[tuple(slice(0, n) for n in shape)]]


def _softmax(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    axis = int(op.attributes["dimension"])
    powers = np.exp(operands[0] - operands[0].max(axis=axis, keepdims=True))
    return [powers / powers.sum(axis=axis, keepdims=True)]


HANDLERS: dict[str, Handler] = {
    "linalg.pack": _pack,
    "linalg.unpack": _unpack,
    "linalg.softmax": _softmax,
}
