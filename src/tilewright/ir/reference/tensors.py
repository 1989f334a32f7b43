"""Ops that move tensor elements about: the `tensor` dialect, and its counterparts in `flow`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from iree.compiler import ir

from tilewright.ir.reference.body import Body, Lookup, extract
from tilewright.ir.reference.elements import (
    Array,
    Unsupported,
    element_of,
    undefined,
)
from tilewright.ir.reference.scalar import reinterpret

Handler = Callable[[Any, list[Array], Lookup], Sequence[Array]]


UNKNOWN_SIZES = itertools.repeat(-1)


def shape_of(type_: ir.Type, dynamic: Iterable[Any]) -> tuple[int, ...]:
    """The shape of a ranked type, its dynamic sizes taken from `dynamic` in order.

    Args:
        type_: a ranked type.
        dynamic: sizes, in order; `UNKNOWN_SIZES` for -1 each.
    """
    sizes = iter(dynamic)
    unknown = ir.ShapedType.get_dynamic_size()
    return tuple(int(next(sizes)) if n == unknown else n for n in ir.ShapedType(type_).shape)


def segments(op: ir.Operation, operands: Sequence[Any]) -> list[list[Any]]:
    """Operands by group, for an op whose groups vary in length.

    Args:
        op: with `operandSegmentSizes`.
        operands: all of its operands.
    """
    lengths = [int(n) for n in ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])]
    ends = np.cumsum([0, *lengths])
    return [list(operands[a:b]) for a, b in itertools.pairwise(ends)]


def mixed(op: ir.Operation, static: str, dynamic: Iterable[Any]) -> list[int]:
    """Sizes (or offsets, strides) that are partly an attribute and partly operands.

    Args:
        op: the operation.
        static: name of the attribute.
        dynamic: the operands, in order.
    """
    unknown = ir.ShapedType.get_dynamic_size()
    values = iter(dynamic)
    return [
        int(next(values)) if n == unknown else int(n)
        for n in ir.DenseI64ArrayAttr(op.attributes[static])
    ]


def slices(
    op: ir.Operation, offsets: Iterable[Any], sizes: Iterable[Any], strides: Iterable[Any]
) -> tuple[tuple[slice, ...], list[int]]:
    """The slice that an op with `static_offsets/sizes/strides` addresses, and its sizes.

    Args:
        op: with static and dynamic offsets, sizes and strides.
        offsets: the dynamic ones.
        sizes: the dynamic ones.
        strides: the dynamic ones.
    """
    starts = mixed(op, "static_offsets", offsets)
    extents = mixed(op, "static_sizes", sizes)
    steps = mixed(op, "static_strides", strides)
    where = tuple(
        slice(o, o + (n - 1) * s + 1 if n else o, s)
        for o, n, s in zip(starts, extents, steps, strict=True)
    )
    return where, extents


def take(array: Array, where: tuple[slice, ...], extents: list[int], type_: ir.Type) -> Array:
    """A slice as the (possibly lower-rank) type of the result.

    Args:
        array: the source.
        where: slices of it.
        extents: sizes that are taken.
        type_: of the result, which may have fewer axes.
    """
    part = array[where]
    if list(part.shape) != extents:
        raise Unsupported(f"a slice outside a tensor of shape {array.shape}")
    return part.reshape(dropped_to(extents, type_))


def dropped_to(extents: Sequence[int], type_: ir.Type) -> tuple[int, ...]:
    """The sizes of a slice without the unit sizes that its type has dropped.

    Args:
        extents: sizes of a part.
        type_: with as many axes or fewer.
    """
    unknown = ir.ShapedType.get_dynamic_size()
    wanted = list(ir.RankedTensorType(type_).shape)
    kept: list[int] = []
    for i, n in enumerate(extents):
        left = len(extents) - i
        need = len(wanted) - len(kept)
        matches = need > 0 and wanted[len(kept)] in (n, unknown)
        if matches and (n != 1 or left == need or wanted[len(kept)] == 1):
            kept.append(n)
        elif n != 1:
            raise Unsupported(f"a slice of sizes {list(extents)} as {type_}")
    return tuple(kept)


def put(array: Array, where: tuple[slice, ...], extents: list[int], value: Array) -> None:
    """Write a part of an array.

    Args:
        array: the target.
        where: slices of it.
        extents: sizes that are written.
        value: which may have fewer axes.
    """
    if list(array[where].shape) != extents:
        raise Unsupported(f"a slice outside a tensor of shape {array.shape}")
    array[where] = value.reshape(extents)


def _identity(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    return operands[:1]


def _empty(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    type_ = op.results[0].type
    # What is computed is put into a tensor of its own: this one takes no memory.
    one = undefined((), element_of(type_))
    return [np.broadcast_to(one, shape_of(type_, operands))]


def _splat(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    return [np.full(shape_of(op.results[0].type, operands[1:]), operands[0])]


def _from_elements(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    shape = shape_of(op.results[0].type, ())
    return [np.array([np.asarray(x) for x in operands]).reshape(shape)]


def _extract(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    return [extract(operands[0], *operands[1:])]


def _insert(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    result = operands[1].copy()
    result[tuple(int(i) for i in operands[2:])] = operands[0]
    return [result]


def _dim(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    return [np.asarray(operands[0].shape[int(operands[1])], np.int64)]


def _rank(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    return [np.asarray(operands[0].ndim, np.int64)]


def reassociation(op: ir.Operation) -> list[list[int]]:
    """For each axis of the collapsed tensor those of the other.

    Args:
        op: tensor.collapse_shape or tensor.expand_shape.
    """
    groups = ir.ArrayAttr(op.attributes["reassociation"])
    return [[ir.IntegerAttr(d).value for d in ir.ArrayAttr(g)] for g in groups]


def _collapse(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    shape = operands[0].shape
    sizes = [int(np.prod([shape[d] for d in group], dtype=int)) for group in reassociation(op)]
    return [operands[0].reshape(sizes)]


def _expand(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    return [operands[0].reshape(mixed(op, "static_output_shape", operands[1:]))]


def _reshape_to_operand(
    op: ir.Operation, operands: list[Array], captured: Lookup
) -> Sequence[Array]:
    return [operands[0].reshape([int(n) for n in operands[1]])]


def _reshape(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    """flow.tensor.reshape: groups are the source, its dynamic sizes, the result's."""
    source, _, sizes = segments(op, operands)
    return [source[0].reshape(shape_of(op.results[0].type, sizes))]


def _bitcast(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    # tensor.bitcast has one operand, its counterparts the source's and the result's sizes as well.
    groups = segments(op, operands) if "operandSegmentSizes" in op.attributes else [operands]
    source, sizes = groups[0], groups[-1] if len(groups) > 1 else []
    target = op.results[0].type
    shape = shape_of(target, sizes)
    return [reinterpret(source[0], element_of(op.operands[0].type), element_of(target), shape)]


def _concat(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    return [np.concatenate(operands, axis=int(op.attributes["dim"]))]


def _extract_slice(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    source, *where = segments(op, operands)
    return [take(source[0], *slices(op, *where), op.results[0].type)]


def _insert_slice(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    source, target, *where = segments(op, operands)
    result = target[0].copy()
    put(result, *slices(op, *where), source[0])
    return [result]


def _pad(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    source, low, high = segments(op, operands)
    before, after = mixed(op, "static_low", low), mixed(op, "static_high", high)
    inner = source[0].shape
    shape = tuple(a + n + b for a, n, b in zip(before, inner, after, strict=True))
    result = over_indices(Body(op.regions[0].blocks[0], captured), shape)[0].copy()
    # Negative padding crops.
    kept = [slice(max(-a, 0), n - max(-b, 0)) for a, n, b in zip(before, inner, after, strict=True)]
    part = source[0][tuple(kept)]
    at = (slice(max(a, 0), max(a, 0) + n) for a, n in zip(before, part.shape, strict=True))
    result[tuple(at)] = part
    return [result]


def _generate(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    shape = shape_of(op.results[0].type, operands)
    return [over_indices(Body(op.regions[0].blocks[0], captured), shape)[0]]


def over_indices(body: Body, shape: tuple[int, ...]) -> list[Array]:
    """What a body yields at every point of `shape`, its arguments being the indices.

    Args:
        body: whose arguments are indices.
        shape: of the result.
    """
    indices = np.meshgrid(*(np.arange(n) for n in shape), indexing="ij", sparse=True)
    values = body.evaluate(body.yields, dict(enumerate(indices)))
    return [np.broadcast_to(v, shape) for v in values]


def _flow_slice(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    source, _, starts, lengths, _ = segments(op, operands)
    where = tuple(slice(int(a), int(a) + int(n)) for a, n in zip(starts, lengths, strict=True))
    return [source[0][where]]


def _flow_update(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    target, _, starts, update, _ = segments(op, operands)
    result = target[0].copy()
    where = (slice(int(a), int(a) + n) for a, n in zip(starts, update[0].shape, strict=True))
    result[tuple(where)] = update[0]
    return [result]


def _flow_load(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    source, _, indices = segments(op, operands)
    return [extract(source[0], *indices)]


def _flow_store(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    value, target, _, indices = segments(op, operands)
    result = target[0].copy()
    result[tuple(int(i) for i in indices)] = value[0]
    return [result]


# Encodings say how a tensor is laid out in memory, never what its elements are.
_IDENTITIES = (
    # Of a dispatch's buffer the buffer itself: stores through it must reach the caller's.
    "flow.dispatch.tie_shape",
    "tensor.cast",
    "flow.tensor.encode",
    "flow.tensor.transfer",
    "flow.tensor.barrier",
    "flow.tensor.clone",
    "iree_encoding.set_encoding",
    "iree_encoding.unset_encoding",
    "iree_tensor_ext.compute_barrier.start",
    "iree_tensor_ext.compute_barrier.end",
    "iree_tensor_ext.dispatch.workload.ordinal",
    "hal.tensor.export",
)

HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(_IDENTITIES, _identity),
    "tensor.empty": _empty,
    "flow.tensor.empty": _empty,
    "flow.tensor.alloca": _empty,
    "tensor.splat": _splat,
    "flow.tensor.splat": _splat,
    "tensor.from_elements": _from_elements,
    "tensor.extract": _extract,
    "tensor.insert": _insert,
    "tensor.dim": _dim,
    "tensor.rank": _rank,
    "tensor.collapse_shape": _collapse,
    "tensor.expand_shape": _expand,
    "tensor.reshape": _reshape_to_operand,
    "flow.tensor.reshape": _reshape,
    "tensor.bitcast": _bitcast,
    "flow.tensor.bitcast": _bitcast,
    "iree_tensor_ext.bitcast": _bitcast,
    "tensor.concat": _concat,
    "tensor.extract_slice": _extract_slice,
    "tensor.insert_slice": _insert_slice,
    "tensor.pad": _pad,
    "tensor.generate": _generate,
    "flow.tensor.slice": _flow_slice,
    "flow.tensor.update": _flow_update,
    "flow.tensor.load": _flow_load,
    "flow.tensor.store": _flow_store,
}
