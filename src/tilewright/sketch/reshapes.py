"""Ops that view elements in another shape or take parts: `tensor`, and what `flow` has of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TypeAlias

from iree.compiler import ir

from tilewright.ir.reference.tensors import dropped_to, reassociation, segments
from tilewright.schedule.expr import Expr, index
from tilewright.schedule.functions import conjunction
from tilewright.sketch.tensor_values import (
    ComputedValue,
    Indices,
    Moved,
    TensorValue,
    Uniform,
    Unwritten,
    either,
    inside,
)
from tilewright.sketch.translation import (
    ScalarBody,
    SiteTranslation,
    static_shape,
    yielded,
)
from tilewright.sketch.untranslatable import Untranslatable, dtype_of

TensorRule: TypeAlias = Callable[[SiteTranslation, ir.Operation], Sequence[TensorValue]]


def result_shape(op: ir.Operation) -> tuple[int, ...]:
    """The shape of an op's result.

    Args:
        op: with one tensor for a result.
    """
    return static_shape(op.results[0].type, op.name)


def mixed(
    translation: SiteTranslation, op: ir.Operation, name: str, given: Sequence[ir.Value]
) -> list[int]:
    """Positions or sizes that are partly an attribute and partly operands, all known.

    Args:
        translation: goes on.
        op: the operation.
        name: of the attribute.
        given: the operands, in order.
    """
    unknown = ir.ShapedType.get_dynamic_size()
    left = iter(given)
    return [
        translation.number(next(left)) if n == unknown else int(n)
        for n in ir.DenseI64ArrayAttr(op.attributes[name])
    ]


# -- the same elements in order --------------------------------------------------------------------


def reshaped(value: TensorValue, shape: Sequence[int]) -> TensorValue:
    """The same elements, in their order, as a tensor of another shape.

    Args:
        value: the tensor.
        shape: with as many elements.
    """
    if tuple(shape) == value.shape:
        return value
    if isinstance(value, Unwritten):
        return Unwritten(shape, value.dtype)
    if value.constant is not None:
        return Uniform(shape, value.constant)

    if [n for n in shape if n != 1] == [n for n in value.shape if n != 1]:
        # Each index stays that of its dimension, also where it is one outside of it.
        def place(indices: Indices) -> Indices:
            kept = (at for at, extent in zip(indices, shape, strict=True) if extent != 1)
            return [index(0) if extent == 1 else next(kept) for extent in value.shape]
    else:

        def place(indices: Indices) -> Indices:
            return delinearised(_linear(indices, shape), value.shape)

    return Moved(value, shape, place)


def _linear(indices: Indices, shape: Sequence[int]) -> Expr:
    whole: Expr = index(0)
    for at, extent in zip(indices, shape, strict=True):
        whole = whole * extent + at
    return whole


def delinearised(whole: Expr, sizes: Sequence[int]) -> list[Expr]:
    """Indices of a position, outermost first; the outermost of more than one element is not
    reduced, and stays the position where it is the only one, also outside of its range.

    Args:
        whole: the position.
        sizes: of the dimensions.
    """
    wide = [d for d, extent in enumerate(sizes) if extent != 1]
    parts: list[Expr] = [index(0)] * len(sizes)
    for d in reversed(wide[1:]):
        parts[d] = whole % sizes[d]
        whole = whole // sizes[d]
    if wide:
        parts[wide[0]] = whole
    return parts


def _same_order(translation: SiteTranslation, op: ir.Operation) -> Sequence[TensorValue]:
    return [reshaped(translation.tensor(op.operands[0]), result_shape(op))]


def _regrouped(translation: SiteTranslation, op: ir.Operation) -> Sequence[TensorValue]:
    """expand_shape and collapse_shape: every group of dimensions by itself."""
    value, shape = translation.tensor(op.operands[0]), result_shape(op)
    if isinstance(value, Unwritten) or value.constant is not None:
        return [reshaped(value, shape)]
    groups, expands = reassociation(op), op.name == "tensor.expand_shape"

    def place(indices: Indices) -> Indices:
        if expands:
            return [_linear([indices[d] for d in g], [shape[d] for d in g]) for g in groups]
        found: list[Expr] = [index(0)] * len(value.shape)
        for at, group in zip(indices, groups, strict=True):
            parts = delinearised(at, [value.shape[d] for d in group])
            for d, part in zip(group, parts, strict=True):
                found[d] = part
        return found

    return [Moved(value, shape, place)]


def _handed_on(translation: SiteTranslation, op: ir.Operation) -> Sequence[TensorValue]:
    return [translation.tensor(op.operands[0])]


def _bitcast(translation: SiteTranslation, op: ir.Operation) -> Sequence[TensorValue]:
    value = translation.tensor(op.operands[0])
    if dtype_of(op.results[0].type, op.name) != value.dtype:
        raise Untranslatable(op.name, "bits read as another type")
    return [reshaped(value, result_shape(op))]


# -- made of numbers -------------------------------------------------------------------------------


def _empty(translation: SiteTranslation, op: ir.Operation) -> Sequence[TensorValue]:
    return [Unwritten(result_shape(op), dtype_of(op.results[0].type, op.name))]


def _splat(translation: SiteTranslation, op: ir.Operation) -> Sequence[TensorValue]:
    return [Uniform(result_shape(op), translation.scalar(op.operands[0]))]


def _from_elements(translation: SiteTranslation, op: ir.Operation) -> Sequence[TensorValue]:
    shape = result_shape(op)
    numbers = [translation.scalar(v) for v in op.operands]
    return [choices(translation, "elements", shape, numbers)]


def choices(
    translation: SiteTranslation, name: str, shape: Sequence[int], numbers: Sequence[Expr]
) -> TensorValue:
    """A tensor of a few numbers, as choices among them.

    Args:
        translation: goes on.
        name: of the stage, where it becomes one.
        shape: of the tensor.
        numbers: all elements in order.
    """
    if len(numbers) == 1:
        return Uniform(shape, numbers[0])

    def element(indices: Indices) -> Expr:
        place = translation.workshop.arithmetic.simplify(_linear(indices, shape))
        chosen = numbers[-1]
        for position in reversed(range(len(numbers) - 1)):
            chosen = either(place.equal(position), numbers[position], lambda c=chosen: c)  # type: ignore[misc]
        return chosen

    return ComputedValue(translation.workshop, name, shape, numbers[0].dtype, element)


def _generated(translation: SiteTranslation, op: ir.Operation) -> Sequence[TensorValue]:
    """tensor.generate: a body over the indices."""
    shape, block = result_shape(op), op.regions[0].blocks[0]

    def element(indices: Indices) -> Expr:
        arguments = [(a, lambda i=i: i) for a, i in zip(block.arguments, indices, strict=True)]
        return ScalarBody(translation, arguments, indices).expression(yielded(block)[0])

    dtype = dtype_of(op.results[0].type, op.name)
    return [ComputedValue(translation.workshop, "generate", shape, dtype, element)]


# -- parts -----------------------------------------------------------------------------------------


def _kept(extents: Sequence[int], type_: ir.Type) -> list[int]:
    """Which dimensions of a part its type has kept; the others are of size 1."""
    wanted = list(dropped_to(extents, type_))
    kept: list[int] = []
    for d, extent in enumerate(extents):
        left = len(extents) - d
        need = len(wanted) - len(kept)
        if need and wanted[len(kept)] == extent and (extent != 1 or left == need):
            kept.append(d)
    return kept


def extracted(
    translation: SiteTranslation,
    op: ir.Operation,
    value: TensorValue,
    where: Sequence[Sequence[ir.Value]],
) -> TensorValue:
    """The part of a tensor that an op's offsets, sizes and strides say.

    Args:
        translation: goes on.
        op: with them; its result's type may have fewer dimensions.
        value: the tensor.
        where: the offsets, sizes and strides that are operands.
    """
    names = ("static_offsets", "static_sizes", "static_strides")
    starts, extents, steps = (
        mixed(translation, op, name, given) for name, given in zip(names, where, strict=True)
    )
    shape = result_shape(op)
    if isinstance(value, Unwritten):
        return Unwritten(shape, value.dtype)
    kept = _kept(extents, op.results[0].type)
    if list(value.shape) == extents and not any(starts):
        return reshaped(value, shape)

    def place(indices: Indices) -> Indices:
        found: list[Expr] = [index(n) for n in starts]
        for d, at in zip(kept, indices, strict=True):
            found[d] = at * steps[d] + starts[d]
        return found

    return Moved(value, shape, place)


def inserted(
    translation: SiteTranslation,
    op: ir.Operation,
    value: TensorValue,
    target: TensorValue,
    where: Sequence[Sequence[ir.Value]],
) -> TensorValue:
    """A tensor with a part of it replaced.

    Args:
        translation: goes on.
        op: with the part's offsets, sizes and strides.
        value: the part, which may have fewer dimensions.
        target: the tensor.
        where: the offsets, sizes and strides that are operands.
    """
    names = ("static_offsets", "static_sizes", "static_strides")
    starts, extents, steps = (
        mixed(translation, op, name, given) for name, given in zip(names, where, strict=True)
    )
    part = reshaped(value, extents)
    if tuple(extents) == target.shape and not any(starts):
        return part
    where_written = list(zip(starts, extents, steps, strict=True))
    spans = [(low, low + (n - 1) * step + 1) for low, n, step in where_written]

    def element(indices: Indices) -> Expr:
        condition = inside(translation.workshop, indices, spans)
        from_start = [at - low for at, (low, *_) in zip(indices, where_written, strict=True)]
        for at, step in zip(from_start, steps, strict=True):
            if step > 1:
                condition = conjunction([condition, (at % step).equal(0)])
        here = part.read([at // step for at, step in zip(from_start, steps, strict=True)])
        # What nobody has written may be anything.
        anything = index(0).astype(target.dtype)
        return either(
            condition,
            here,
            lambda: anything if isinstance(target, Unwritten) else target.read(indices),
        )

    return ComputedValue(translation.workshop, "inserted", target.shape, target.dtype, element)


def _extract_slice(translation: SiteTranslation, op: ir.Operation) -> Sequence[TensorValue]:
    source, *where = segments(op, list(op.operands))
    return [extracted(translation, op, translation.tensor(source[0]), where)]


def _insert_slice(translation: SiteTranslation, op: ir.Operation) -> Sequence[TensorValue]:
    source, target, *where = segments(op, list(op.operands))
    value, into = translation.tensor(source[0]), translation.tensor(target[0])
    return [inserted(translation, op, value, into, where)]


def _flow_slice(translation: SiteTranslation, op: ir.Operation) -> Sequence[TensorValue]:
    source, _, starts, *_ = segments(op, list(op.operands))
    value = translation.tensor(source[0])
    offsets = [translation.number(v) for v in starts]

    def place(indices: Indices) -> Indices:
        return [at + low for at, low in zip(indices, offsets, strict=True)]

    return [Moved(value, result_shape(op), place)]


def _concat(translation: SiteTranslation, op: ir.Operation) -> Sequence[TensorValue]:
    dimension = int(op.attributes["dim"])
    parts = [translation.tensor(v) for v in op.operands]
    ends = list(accumulate((part.shape[dimension] for part in parts), initial=0))
    shape = result_shape(op)

    def element(indices: Indices) -> Expr:
        def chosen(number: int) -> Expr:
            low = ends[number]
            at = [i - low if d == dimension else i for d, i in enumerate(indices)]
            value = parts[number].read(at)
            if number == len(parts) - 1:
                return value
            spans = [(0, n) for n in shape]
            spans[dimension] = (0, ends[number + 1])
            condition = inside(translation.workshop, indices, spans)
            return either(condition, value, lambda: chosen(number + 1))

        return chosen(0)

    return [ComputedValue(translation.workshop, "concat", shape, parts[0].dtype, element)]


# Encodings say how a tensor is laid out in memory, never what its elements are.
_IDENTITIES = (
    "tensor.cast",
    "flow.tensor.encode",
    "flow.tensor.transfer",
    "flow.tensor.barrier",
    "flow.tensor.clone",
    "flow.dispatch.tie_shape",
    "iree_encoding.set_encoding",
    "iree_encoding.unset_encoding",
    "iree_tensor_ext.compute_barrier.start",
    "iree_tensor_ext.compute_barrier.end",
    "util.optimization_barrier",
)

RULES: dict[str, TensorRule] = {
    **dict.fromkeys(_IDENTITIES, _handed_on),
    "tensor.empty": _empty,
    "flow.tensor.empty": _empty,
    "flow.tensor.alloca": _empty,
    "tensor.splat": _splat,
    "flow.tensor.splat": _splat,
    "tensor.from_elements": _from_elements,
    "tensor.generate": _generated,
    "tensor.expand_shape": _regrouped,
    "tensor.collapse_shape": _regrouped,
    "tensor.reshape": _same_order,
    "flow.tensor.reshape": _same_order,
    "tensor.bitcast": _bitcast,
    "flow.tensor.bitcast": _bitcast,
    "iree_tensor_ext.bitcast": _bitcast,
    "tensor.extract_slice": _extract_slice,
    "tensor.insert_slice": _insert_slice,
    "tensor.concat": _concat,
    "flow.tensor.slice": _flow_slice,
}
