"""Sums of products of quantised numbers as sums of integers.

    sum((a - z) * s * b * t)  ->  sum((a - z) * b) * (s * t)

Where scales do not depend on what is summed up they stand outside (Jacob et al., "Quantization and
Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", CVPR 2018). Integers
are added up exactly, by instructions that take several bytes at once. Padding adds 0 to either sum.
So are integers that are added up in more bits than their sum can have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.schedule.arith import Arithmetic
from tilewright.schedule.expr import (
    Binary,
    Cast,
    Const,
    Expr,
    Select,
    binary,
    cast,
    const,
    is_true,
)
from tilewright.schedule.expr import variables as variables_of
from tilewright.schedule.functions import sum as summed
from tilewright.schedule.tensor import (
    ComputeOp,
    IterVar,
    Reduce,
    Tensor,
    TensorRead,
    compute,
    reads,
    reduce_axis,
)
from tilewright.schedule.types import INDEX, bits, is_float
from tilewright.sketch.fusion import moved, ordered
from tilewright.sketch.structure import extent

_SUMS = "i32"
_LARGEST = (1 << 31) - 1


@dataclass(frozen=True)
class _Scaled:
    """An integer that is multiplied by numbers. largest: of its absolute values."""

    integer: Expr
    scales: tuple[Expr, ...]
    largest: int


def sum_integers(outputs: Sequence[Tensor], arithmetic: Arithmetic) -> None:
    """Make sums of products of scaled or of wide integers sums of narrow ones, in place.

    Args:
        outputs: of the expression; they stay what they are.
        arithmetic: knows the bounds of all axes, and then of the new ones.
    """
    for op in ordered(outputs):
        made = _with_integers(op, arithmetic)
        if made is not None:
            for tensor in made.outputs:
                tensor.op = made


def _with_integers(op: ComputeOp, arithmetic: Arithmetic) -> ComputeOp | None:
    """A stage that multiplies a sum of integers by their scales; None where it is no such sum."""
    reduction = op.reduction
    if reduction is None or op.num_outputs > 1 or not _adds_all(reduction):
        return None
    product = reduction.sources[0]
    if not isinstance(product, Binary) or product.op != "mul":
        return None
    left, right = (_scaled_read(one, reduction.axes, arithmetic) for one in (product.a, product.b))
    if left is None or right is None:
        return None
    if left.largest * right.largest * prod(map(extent, reduction.axes)) > _LARGEST:
        return None
    name, dtype = op.outputs[0].name, op.outputs[0].dtype
    axes = [reduce_axis(extent(axis), axis.name) for axis in reduction.axes]
    places: dict[Expr, Expr] = dict(zip(reduction.axes, axes, strict=True))
    for axis in axes:
        arithmetic.bind(axis, 0, extent(axis) - 1)

    def total(*place: IterVar) -> Expr:
        for axis in place:
            arithmetic.bind(axis, 0, extent(axis) - 1)
        there = dict(places)
        there.update(zip(op.axis, place, strict=True))
        factors = (moved(cast(_SUMS, one.integer), there, arithmetic) for one in (left, right))
        added: Expr = summed(binary("mul", *factors), axis=axes)
        return added

    sums: Tensor = compute(op.outputs[0].shape, total, name=f"{name}.integers")
    value = cast(dtype, TensorRead(sums, tuple(op.axis)))
    scales = [*left.scales, *right.scales]
    if scales:
        scale = scales[0]
        for other in scales[1:]:
            scale = binary("mul", scale, other)
        value = binary("mul", value, scale)
    return ComputeOp(op.name, op.outputs, op.axis, (value,), op.tag, op.attrs)


def _adds_all(reduction: Reduce) -> bool:
    """Whether a reduction is a plain sum, from zero and of all that there is, of floats or of
    integers in more bits than their sum needs."""
    plain = reduction.init is None and is_true(reduction.condition)
    wide = is_float(reduction.dtype) or bits(reduction.dtype) > bits(_SUMS)
    return plain and reduction.combiner.name == "sum" and wide


def _scaled_read(
    value: Expr, summed_up: Iterable[IterVar], arithmetic: Arithmetic
) -> _Scaled | None:
    """The same of what is read of a stage: as an element of a stage of integers."""
    found = _scaled(value, summed_up, arithmetic)
    if found is None or not isinstance(value, TensorRead):
        return found
    op = value.tensor.op
    assert isinstance(op, ComputeOp)
    own = _scaled(op.body[0], (), arithmetic)
    assert own is not None

    def element(*place: IterVar) -> Expr:
        there: dict[Expr, Expr] = dict(zip(op.axis, place, strict=True))
        for axis in place:
            arithmetic.bind(axis, 0, extent(axis) - 1)
        return moved(cast(_SUMS, own.integer), there, arithmetic)

    stage: Tensor = compute(value.tensor.shape, element, name=f"{value.tensor.name}.integers")
    return replace(found, integer=TensorRead(stage, value.indices))


def _scaled(value: Expr, summed_up: Iterable[IterVar], arithmetic: Arithmetic) -> _Scaled | None:
    """A float as a small integer times what does not depend on some axes; None where it is none."""
    match value:
        case TensorRead() if isinstance(value.tensor.op, ComputeOp):
            op = value.tensor.op
            if op.reduction is not None or op.num_outputs > 1:
                return None
            places: dict[Expr, Expr] = dict(zip(op.axis, value.indices, strict=True))
            return _scaled(moved(op.body[0], places, arithmetic), summed_up, arithmetic)
        case Cast() if is_float(value.value.dtype):
            return _scaled(value.value, summed_up, arithmetic) if _is_wider(value) else None
        case Cast():
            largest = _largest(value.value)
            if largest:
                return _Scaled(value.value, (), largest)
            if not isinstance(value.value, TensorRead) or not _is_wider(value):
                return None
            # Scales of fewer bits may wrap around there, which they would not outside.
            stored = _scaled(value.value, summed_up, arithmetic)
            return None if stored is None or stored.scales else stored
        case Select():
            inner = _scaled(value.a, summed_up, arithmetic)
            if inner is None or not isinstance(value.b, Const) or value.b.value:
                return None
            if not all(_reads_inside(scale, arithmetic) for scale in inner.scales):
                return None  # the condition says where there is one
            zero = const(0, inner.integer.dtype)
            return replace(inner, integer=replace(value, a=inner.integer, b=zero))
        case Binary() if value.op == "mul":
            for one, other in ((value.a, value.b), (value.b, value.a)):
                found = _scaled(one, summed_up, arithmetic)
                if found is not None and not set(variables_of(other)) & set(summed_up):
                    return replace(found, scales=(*found.scales, other))
        case Binary() if not is_float(value.dtype) and (largest := _largest(value)):
            return _Scaled(value, (), largest)
    return None


def _reads_inside(value: Expr, arithmetic: Arithmetic) -> bool:
    """Whether what an expression reads is there whatever its axes are."""
    for read in reads(value):
        for place, size in zip(read.indices, read.tensor.shape, strict=True):
            form = arithmetic.linear(place)
            if form.low < 0 or form.high >= size:
                return False
    return True


def _is_wider(value: Cast) -> bool:
    return bits(value.dtype) >= bits(value.value.dtype)


def _largest(value: Expr) -> int:
    """The largest absolute value of an integer of a byte, less another number; 0 for others."""
    match value:
        case Const() if value.dtype != INDEX and not is_float(value.dtype):
            return abs(int(value.value))
        case Binary() if value.op in ("add", "sub"):
            parts = _largest(value.a), _largest(value.b)
            return sum(parts) if isinstance(value.b, Const) and parts[0] else 0
        case Binary(op="and", b=Const() as mask) if _largest(value.a):
            return max(0, int(mask.value))
        case Cast():
            return _largest(value.value)
        case TensorRead() if value.dtype == "i8":
            return 128
    return 0
