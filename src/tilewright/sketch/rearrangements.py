"""Ops that put elements into another order or surroundings: padding, packing, im2col, gathering."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from iree.compiler import ir

from tilewright.ir.reference.extended import outer_order
from tilewright.ir.reference.tensors import segments
from tilewright.schedule.expr import Expr, cast, index
from tilewright.schedule.functions import conjunction
from tilewright.schedule.types import INDEX
from tilewright.sketch.reshapes import TensorRule, delinearised, mixed, result_shape
from tilewright.sketch.tensor_values import (
    ComputedValue,
    Indices,
    Moved,
    TensorValue,
    either,
    inside,
)
from tilewright.sketch.translation import ScalarBody, SiteTranslation, yielded
from tilewright.sketch.untranslatable import Untranslatable


def padded(
    translation: SiteTranslation,
    value: TensorValue,
    shape: Sequence[int],
    place: Callable[[Indices], Indices],
    filler: Callable[[Indices], Expr],
    name: str,
) -> TensorValue:
    """A tensor with something else around it.

    Args:
        translation: goes on.
        value: the tensor.
        shape: of the result.
        place: the indices in `value` for those of the result; some lie outside of it.
        filler: gives what stands around.
        name: of the stage.
    """
    spans = [(0, extent) for extent in value.shape]

    def element(indices: Indices) -> Expr:
        source = place(indices)
        condition = inside(translation.workshop, source, spans)
        return either(condition, value.read(source), lambda: filler(indices))

    return ComputedValue(translation.workshop, name, shape, value.dtype, element)


def _pad(translation: SiteTranslation, op: ir.Operation) -> Sequence[TensorValue]:
    source, low, high = segments(op, list(op.operands))
    before = mixed(translation, op, "static_low", low)
    after = mixed(translation, op, "static_high", high)
    value, shape = translation.tensor(source[0]), result_shape(op)
    if not any(before) and not any(after):
        return [value]
    block = op.regions[0].blocks[0]

    def place(indices: Indices) -> Indices:
        return [at - n for at, n in zip(indices, before, strict=True)]

    if all(n <= 0 for n in (*before, *after)):
        return [Moved(value, shape, place)]

    def filler(indices: Indices) -> Expr:
        arguments = [(a, lambda i=i: i) for a, i in zip(block.arguments, indices, strict=True)]
        return ScalarBody(translation, arguments, indices).expression(yielded(block)[0])

    return [padded(translation, value, shape, place, filler, "padded")]


def _tiles(
    translation: SiteTranslation, op: ir.Operation, given: Sequence[ir.Value], rank: int
) -> tuple[dict[int, int], list[int], list[int]]:
    """The tile of each dimension that is cut, those dimensions, the order of the outer ones."""
    sizes = mixed(translation, op, "static_inner_tiles", given)
    cut = list(ir.DenseI64ArrayAttr(op.attributes["inner_dims_pos"]))
    return dict(zip(cut, sizes, strict=True)), cut, outer_order(op, rank)


def _pack(translation: SiteTranslation, op: ir.Operation) -> Sequence[TensorValue]:
    source, _, padding, tiles = segments(op, list(op.operands))
    value, shape = translation.tensor(source[0]), result_shape(op)
    rank = len(value.shape)
    tile, cut, order = _tiles(translation, op, tiles, rank)

    def place(indices: Indices) -> Indices:
        outer = dict(zip(order, indices, strict=False))
        inner = dict(zip(cut, indices[rank:], strict=True))
        return [outer[d] * tile[d] + inner[d] if d in tile else outer[d] for d in range(rank)]

    whole = [shape[order.index(d)] * tile.get(d, 1) for d in range(rank)]
    if tuple(whole) == value.shape:
        return [Moved(value, shape, place)]
    if not padding:
        raise Untranslatable(op.name, "incomplete tiles without a padding value")
    filler = translation.scalar(padding[0])
    return [padded(translation, value, shape, place, lambda _: filler, "pack")]


def _unpack(translation: SiteTranslation, op: ir.Operation) -> Sequence[TensorValue]:
    source, _, tiles, *_ = segments(op, list(op.operands))
    value, shape = translation.tensor(source[0]), result_shape(op)
    tile, cut, order = _tiles(translation, op, tiles, len(shape))

    def place(indices: Indices) -> Indices:
        outer = [indices[d] // tile[d] if d in tile else indices[d] for d in order]
        return [*outer, *(indices[d] % tile[d] for d in cut)]

    return [Moved(value, shape, place)]


def _numbers(op: ir.Operation, name: str) -> list[int]:
    return [int(n) for n in ir.DenseI64ArrayAttr(op.attributes[name])]


def _im2col(translation: SiteTranslation, op: ir.Operation) -> Sequence[TensorValue]:
    """Each window of an image where the matrix product wants it.

    Every output dimension, in the canonical order batch, m, k, is split into coordinates by
    `output_sizes`; an image coordinate is m * stride + window offset * dilation.
    """
    source, _, _, offsets, dims, low, _, out_low, out_high, *fill = segments(op, list(op.operands))
    value, shape = translation.tensor(source[0]), result_shape(op)
    rank = len(value.shape)
    batch_pos, m_pos, k_pos = (_numbers(op, n) for n in ("batch_pos", "m_pos", "k_pos"))
    strides, dilations = _numbers(op, "strides"), _numbers(op, "dilations")
    starts = mixed(translation, op, "static_offsets", offsets)
    if dims:
        raise Untranslatable(op.name, "a size that is known at run time only")
    splits = [
        [int(n) for n in ir.DenseI64ArrayAttr(group)]
        for group in ir.ArrayAttr(op.attributes["static_output_sizes"])
    ]
    axis_of = _inverse(_numbers(op, "output_perm"))
    in_window = _inverse(_numbers(op, "input_k_perm"))
    before = mixed(translation, op, "static_input_pad_low", low) or [0] * rank
    margins = [
        mixed(translation, op, name, given) or [0] * len(shape)
        for name, given in (
            ("static_output_pad_low", out_low),
            ("static_output_pad_high", out_high),
        )
    ]

    def place(indices: Indices) -> Indices:
        groups = [
            delinearised(indices[axis_of[d]] + starts[d], split) for d, split in enumerate(splits)
        ]
        batch = [c for group in groups[: len(batch_pos)] for c in group]
        rest = [c for group in groups[len(batch_pos) :] for c in group]
        m, k = rest[: len(m_pos)], rest[len(m_pos) :]
        ordered = iter([k[p] for p in in_window])
        inner = {d: next(ordered) for d in range(rank) if d not in batch_pos}
        found: dict[int, Any] = dict(zip(batch_pos, batch, strict=True))
        for i, d in enumerate(m_pos):
            found[d] = m[i] * strides[i] + inner[d] * dilations[i]
        for d in k_pos:
            found[d] = inner[d]
        return [found[d] - before[d] for d in range(rank)]

    spans = [(0, extent) for extent in value.shape]
    around = [(a, n - b) for n, a, b in zip(shape, *margins, strict=True)]

    def element(indices: Indices) -> Expr:
        at = place(indices)
        workshop = translation.workshop
        condition = conjunction([inside(workshop, at, spans), inside(workshop, indices, around)])

        def filler() -> Expr:
            return (
                translation.scalar(fill[0][0]) if fill and fill[0] else index(0).astype(value.dtype)
            )

        return either(condition, value.read(at), filler)

    return [ComputedValue(translation.workshop, "im2col", shape, value.dtype, element)]


def _inverse(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=lambda i: order[i])


def _gather(translation: SiteTranslation, op: ir.Operation) -> Sequence[TensorValue]:
    """Slices of a tensor at places that another one holds."""
    if len(op.operands) != 3:
        raise Untranslatable(op.name, "a mask")
    source, places = (translation.tensor(v) for v in list(op.operands)[:2])
    shape, order = result_shape(op), _numbers(op, "dimension_map")
    depth = len(order)
    batch = len(shape) - (len(source.shape) - depth)
    # The dimension over the depth may be left out when the depth is 1.
    has_depth = len(places.shape) > batch

    def element(indices: Indices) -> Expr:
        found: dict[int, Expr] = {}
        for number, d in enumerate(order):
            at = [*indices[:batch], index(number)] if has_depth else indices[:batch]
            found[d] = cast(INDEX, places.read(at))
        return source.read([*(found[d] for d in range(depth)), *indices[batch:]])

    return [ComputedValue(translation.workshop, "gather", shape, source.dtype, element)]


RULES: dict[str, TensorRule] = {
    "tensor.pad": _pad,
    "linalg.pack": _pack,
    "linalg.unpack": _unpack,
    "iree_linalg_ext.im2col": _im2col,
    "iree_linalg_ext.gather": _gather,
}
