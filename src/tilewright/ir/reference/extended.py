"""Ops without a scalar body that move or choose elements: pack, unpack and softmax of linalg;
im2col, gather, scatter, scan, sort and top-k of iree_linalg_ext.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from iree.compiler import ir

from tilewright.ir.reference.body import Body, Lookup, clamp
from tilewright.ir.reference.elements import Array, Unsupported
from tilewright.ir.reference.tensors import Handler, mixed, over_indices, segments


def _tiling(
    op: ir.Operation, tiles: Sequence[Any], rank: int
) -> tuple[list[int], list[int], list[int]]:
    """Tile sizes, the dimensions that they cut, and the order of the outer dimensions."""
    sizes = mixed(op, "static_inner_tiles", tiles)
    cut = list(ir.DenseI64ArrayAttr(op.attributes["inner_dims_pos"]))
    return sizes, cut, outer_order(op, rank)


def outer_order(op: ir.Operation, rank: int) -> list[int]:
    """For each outer dimension of the packed tensor the dimension of the unpacked one.

    Args:
        op: a pack or unpack.
        rank: of the unpacked tensor.
    """
    order: list[int] = []
    if "outer_dims_perm" in op.attributes:
        order = list(ir.DenseI64ArrayAttr(op.attributes["outer_dims_perm"]))
    return order or list(range(rank))


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


# Updates of a scatter, or positions of a scan, that are made one after the other.
_MAX_STEPS = 1_000_000


def _numbers(op: ir.Operation, name: str) -> list[int]:
    return [int(n) for n in ir.DenseI64ArrayAttr(op.attributes[name])]


def _im2col(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    """Copy each window of an image to where the matrix product wants it.

    Every output dimension, in the canonical order batch, m, k, is split into coordinates by
    `output_sizes`; an image coordinate is m * stride + window offset * dilation.
    """
    source, target, _, offsets, dims, low, _, out_low, out_high, *fill = segments(op, operands)
    image, shape = source[0], target[0].shape
    batch_pos, m_pos, k_pos = (_numbers(op, n) for n in ("batch_pos", "m_pos", "k_pos"))
    strides, dilations = _numbers(op, "strides"), _numbers(op, "dilations")
    starts = mixed(op, "static_offsets", offsets)
    splits = _nested_sizes(op, dims)
    axis_of = np.argsort(_numbers(op, "output_perm"))
    groups = []
    for d, split in enumerate(splits):
        index = _along(int(axis_of[d]), shape) + starts[d]
        groups.append(_delinearise(index, split))
    batch = [c for g in groups[: len(batch_pos)] for c in g]
    rest = [c for g in groups[len(batch_pos) :] for c in g]
    m, k = rest[: len(m_pos)], rest[len(m_pos) :]
    in_order = iter([k[p] for p in np.argsort(_numbers(op, "input_k_perm"))])
    window: dict[int, Array] = {}
    channels: dict[int, Array] = {}
    for d in range(image.ndim):
        if d not in batch_pos:
            (window if d in m_pos else channels)[d] = next(in_order)
    coordinates: list[Any] = [None] * image.ndim
    for d, c in zip(batch_pos, batch, strict=True):
        coordinates[d] = c
    for i, d in enumerate(m_pos):
        coordinates[d] = m[i] * strides[i] + window[d] * dilations[i]
    for d in k_pos:
        coordinates[d] = channels[d]
    before = mixed(op, "static_input_pad_low", low) or [0] * image.ndim
    coordinates = [c - p for c, p in zip(coordinates, before, strict=True)]
    clamped, inside = clamp(coordinates, image.shape)
    result = np.broadcast_to(image[clamped], shape)
    margins = zip(
        mixed(op, "static_output_pad_low", out_low) or [0] * len(shape),
        mixed(op, "static_output_pad_high", out_high) or [0] * len(shape),
        strict=True,
    )
    for axis, (a, b) in enumerate(margins):
        at = _along(axis, shape)
        inside = inside & (at >= a) & (at < shape[axis] - b)
    padding = fill[0][0] if fill and fill[0] else np.nan
    return [np.where(inside, result, padding).astype(image.dtype)]


def _nested_sizes(op: ir.Operation, dynamic: Iterable[Any]) -> list[list[int]]:
    unknown = ir.ShapedType.get_dynamic_size()
    values = iter(dynamic)
    static = ir.ArrayAttr(op.attributes["static_output_sizes"])
    sizes = [[int(n) for n in ir.DenseI64ArrayAttr(group)] for group in static]
    return [[int(next(values)) if n == unknown else n for n in group] for group in sizes]


def _along(axis: int, shape: Sequence[int]) -> Array:
    sizes = [1] * len(shape)
    sizes[axis] = shape[axis]
    return np.arange(shape[axis], dtype=np.int64).reshape(sizes)


def _delinearise(index: Array, sizes: Sequence[int]) -> list[Array]:
    """Coordinates of a linear index, outermost first; the outermost is not reduced."""
    coordinates = []
    for n in reversed(sizes[1:]):
        coordinates.append(index % n)
        index = index // n
    return [index, *reversed(coordinates)]


def _indexed(op: ir.Operation, indices: Array) -> tuple[int, list[Array]]:
    """Rank of the batch, and the index arrays in the order of the tensor's leading axes."""
    order = _numbers(op, "dimension_map")
    # The axis over the index depth may be left out when the depth is 1.
    has_axis = not (len(order) == 1 and (indices.ndim == 0 or _batch_rank(op) == indices.ndim))
    parts = [indices[..., i] for i in range(len(order))] if has_axis else [indices]
    return parts[0].ndim, [parts[i] for i in np.argsort(order)]


def _batch_rank(op: ir.Operation) -> int:
    """Rank of the batch from the shapes: the other tensor is batch and slice."""
    gather = op.name == "iree_linalg_ext.gather"
    indexed = op.operands[0 if gather else len(op.operands) - 1].type
    batched = op.operands[len(op.operands) - 1 if gather else 0].type
    depth = len(_numbers(op, "dimension_map"))
    return int(batched.rank - (indexed.rank - depth))


def _gather(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    source, indices, *mask, output = operands
    batch, index = _indexed(op, indices)
    clamped, inside = clamp(index, source.shape[: len(index)])
    picked = source[clamped]
    if not mask:
        if not inside.all():
            raise Unsupported(f"{op.name} outside its tensor")
        return [picked]
    chosen = mask[0].astype(np.bool_).reshape(mask[0].shape + (1,) * (picked.ndim - batch))
    return [np.where(chosen, picked, output)]


def _scatter(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    """Combine slices of the updates into the original, one after the other."""
    updates, indices, *mask, original = operands
    body = Body(op.regions[0].blocks[0], captured)
    batch, index = _indexed(op, indices)
    result = original.copy()
    if int(np.prod(updates.shape[:batch])) > _MAX_STEPS:
        raise Unsupported(f"{op.name} of more than {_MAX_STEPS} slices")
    for at in np.ndindex(*updates.shape[:batch]):
        if mask and not mask[0][at]:
            continue
        place = tuple(int(i[at]) for i in index)
        if not all(0 <= p < n for p, n in zip(place, result.shape, strict=False)):
            raise Unsupported(f"{op.name} outside its tensor, at {list(place)}")
        (value,) = body.evaluate(body.yields, {0: updates[at], 1: result[place]})
        result[place] = value
    return [result]


def _scan(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    source, output, accumulator = operands
    axis, inclusive = int(op.attributes["dimension"]), bool(op.attributes["inclusive"])
    body = Body(op.regions[0].blocks[0], captured)
    values = np.moveaxis(source, axis, 0)
    if len(values) > _MAX_STEPS:
        raise Unsupported(f"{op.name} over more than {_MAX_STEPS} elements")
    result = np.moveaxis(output, axis, 0).copy()
    last = accumulator.copy()
    for i in range(len(values)):
        if i == 0:
            result[0] = values[0] if inclusive else accumulator
            continue
        term = values[i] if inclusive else values[i - 1]
        (last,) = body.evaluate(body.yields, {0: result[i - 1], 1: term})
        result[i] = last
    return [np.moveaxis(result, 0, axis), np.asarray(last)]


def _arg_compare(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    """The element that the comparator prefers along a dimension, with its index."""
    values, given, best, best_index, base = segments(op, operands)
    axis = int(op.attributes["dimension"])
    body = Body(op.regions[0].blocks[0], captured)
    value, index = best[0], best_index[0]
    start = int(base[0]) if base else 0
    for i in range(values[0].shape[axis]):
        candidate = values[0].take(i, axis)
        at = given[0].take(i, axis) if given else np.asarray(start + i, np.int64)
        (better,) = body.evaluate(body.yields, {0: candidate, 1: value})
        value, index = np.where(better, candidate, value), np.where(better, at, index)
    return [value, index]


def _order(body: Body, op: ir.Operation) -> tuple[int, bool]:
    """(operand that is the key, descending) of a comparator that compares one pair of arguments."""
    step = body.producer.get(body.yields[0])
    if step is not None and step.name in ("arith.cmpf", "arith.cmpi"):
        a, b = step.inputs
        if max(a, b) < body.arguments and a // 2 == b // 2 and a != b:
            # Let the comparator say which way it orders, and that it leaves equal keys alone.
            low, high = np.asarray(0, np.int64), np.asarray(1, np.int64)
            if body.argument_elements[a].is_float:
                low, high = low.astype(np.float64), high.astype(np.float64)
            first, second = min(a, b), max(a, b)

            def precedes(x: Array, y: Array) -> bool:
                return bool(body.evaluate(body.yields, {first: x, second: y})[0])

            if precedes(low, high) != precedes(high, low) and not precedes(low, low):
                return a // 2, precedes(high, low)
    raise Unsupported(f"{op.name} with a comparator that is not a strict comparison of one pair")


def _sorted_positions(key: Array, axis: int, descending: bool) -> Array:
    """Positions in stable order: the first of equal elements stays first."""
    if key.dtype == np.bool_:
        key = key.astype(np.int64)
    return np.argsort(-key if descending else key, axis=axis, kind="stable")


def _sort(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    tensors = segments(op, operands)[1]
    axis = int(op.attributes["dimension"])
    body = Body(op.regions[0].blocks[0], captured)
    key, descending = _order(body, op)
    order = _sorted_positions(tensors[key], axis, descending)
    ordered = [np.take_along_axis(x, order, axis) for x in tensors]
    if len(tensors) > 1 and np.any(np.diff(ordered[key], axis=axis) == 0):
        raise Unsupported(f"{op.name} of several tensors with equal keys, whose order is open")
    return ordered


def _topk(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    """The first K of the initial output and the input together, in order."""
    *given, initial, initial_index = operands
    axis = int(op.attributes["dimension"])
    body = Body(op.regions[0].blocks[0], captured)
    _, descending = _order(body, op)
    values = given[0]
    index = np.broadcast_to(_along(axis, values.shape), values.shape)
    index = given[1] if len(given) > 1 else index
    every = np.concatenate([initial, values], axis)
    every_index = np.concatenate([initial_index, index], axis)
    order = _sorted_positions(every, axis, descending)
    first = order.take(np.arange(initial.shape[axis]), axis)
    return [np.take_along_axis(x, first, axis) for x in (every, every_index)]


def _map_load(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    source, output = operands
    *index, padding = over_indices(Body(op.regions[0].blocks[0], captured), output.shape)
    clamped, inside = clamp(index, source.shape)
    return [np.where(inside, source[clamped], padding)]


def _map_store(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    source, output = operands
    *index, mask = over_indices(Body(op.regions[0].blocks[0], captured), source.shape)
    result = output.copy()
    result[tuple(i[mask] for i in index)] = source[mask]
    return [result]


HANDLERS: dict[str, Handler] = {
    "linalg.pack": _pack,
    "linalg.unpack": _unpack,
    "linalg.softmax": _softmax,
    "iree_linalg_ext.im2col": _im2col,
    "iree_linalg_ext.gather": _gather,
    "iree_linalg_ext.scatter": _scatter,
    "iree_linalg_ext.scan": _scan,
    "iree_linalg_ext.arg_compare": _arg_compare,
    "iree_linalg_ext.sort": _sort,
    "iree_linalg_ext.topk": _topk,
    "iree_linalg_ext.map_load": _map_load,
    "iree_linalg_ext.map_store": _map_store,
}
