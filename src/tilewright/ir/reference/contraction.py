"""Sums of products as matrix products: what makes a 4096-cubed matmul take seconds.

The term of a sum is taken apart into factors. Each is evaluated on the operand that it comes from
(casts, zero points and other scalar work included), then seen over the iteration space through the
operand's indexing map, and the factors are multiplied and summed by BLAS: the loops are sorted into
batch, m, n and k as any contraction's are. A convolution's window is a strided view, copied box by
box of bounded size into the matrix that BLAS wants.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir.reference.access import (
    OperandAccess,
    boxes,
    full_box,
    index_array,
    row_major,
)
from tilewright.ir.reference.body import Body
from tilewright.ir.reference.elements import Array, Element, signed

# Elements of one packed operand of a matrix product (64 MB of float64).
_PACKED = 1 << 23
# Points of a factor that depends on several operands at once and so has to be built.
_BUILT = 1 << 23
# Integers up to here are exact in float64.
_EXACT = 2.0**53


@dataclass(frozen=True)
class Factor:
    """Slots whose values are multiplied, all from the same operands (`arguments`) and loops."""

    slots: tuple[int, ...]
    arguments: frozenset[int]
    loops: frozenset[int]


def recognise(body: Body, term: int, result: Element) -> list[Factor] | None:
    """The factors of a term, or None when it is not a product over more than one operand.

    Args:
        body: of the op.
        term: the slot that is summed.
        result: element type of the sum.
    """
    slots = _flatten(body, term, result)
    groups: dict[tuple[frozenset[int], frozenset[int]], list[int]] = {}
    for slot in slots:
        groups.setdefault(body.depends(slot), []).append(slot)
    factors = [Factor(tuple(s), args, loops) for (args, loops), s in groups.items()]
    return factors if sum(bool(f.arguments or f.loops) for f in factors) > 1 else None


def _flatten(body: Body, slot: int, result: Element) -> list[int]:
    step = body.producer.get(slot)
    if step is not None:
        same_ring = result.is_float or step.element.width == result.width
        if step.name in ("arith.mulf", "arith.muli") and same_ring:
            return [f for i in step.inputs for f in _flatten(body, i, result)]
        # Widening a float product changes nothing: products are not rounded here.
        if step.name == "arith.extf" and result.is_float:
            return _flatten(body, step.inputs[0], result)
    return [slot]


def contract(
    body: Body,
    factors: Sequence[Factor],
    operands: Sequence[tuple[OperandAccess, Array]],
    sizes: tuple[int, ...],
    reduction: tuple[bool, ...],
    result: Element,
) -> Array | None:
    """The sum over the reduction loops of the product of the factors.

    Args:
        body: of the op.
        factors: as `recognise` gave them.
        operands: with the maps through which they are read.
        sizes: of the loops.
        reduction: which loops are summed over.
        result: element type of the sum.

    Returns:
        An array with one axis per loop, of length 1 for reductions (and for loops that no factor
        depends on), whose integers are not yet wrapped; None when a factor would be too large to
        build, for which the caller has a slower way.
    """
    parts = []
    for factor in factors:
        part = _evaluate(body, factor, operands, sizes)
        if part is None:
            return None
        parts.append(part)
    if result.is_float:
        return sum_of_products([p.view(sizes) for p in parts], sizes, reduction)
    parts = [_Part(signed(p.value), p.access) for p in parts]
    terms = float(np.prod([n for n, r in zip(sizes, reduction, strict=True) if r], dtype=float))
    largest = np.prod([float(np.max(np.abs(p.value), initial=0)) for p in parts])
    if float(largest) * terms < _EXACT:
        parts = [_Part(p.value.astype(np.float64), p.access) for p in parts]
        total = sum_of_products([p.view(sizes) for p in parts], sizes, reduction)
        return np.asarray(np.rint(total).astype(np.int64))
    return _Sums(sizes, reduction, np.int64).of([p.view(sizes) for p in parts])


def sum_of_products(views: list[Array], sizes: tuple[int, ...], reduction: Sequence[bool]) -> Array:
    """Sum over the `reduction` loops of the product of float64 views with one axis per loop.

    Args:
        views: float64, one axis per loop.
        sizes: of the loops.
        reduction: which loops are summed over.
    """
    return _Sums(sizes, tuple(reduction), np.float64).of(views)


@dataclass(frozen=True)
class _Part:
    """The values of a factor: on its operand, seen through `access`; or, without one, over the
    loops already."""

    value: Array
    access: OperandAccess | None

    def view(self, sizes: tuple[int, ...]) -> Array:
        if self.access is None:
            return self.value
        view = self.access.view(row_major(self.value), full_box(sizes))
        # What is the same all along a loop does not depend on it.
        return view[tuple(slice(0, 1) if s == 0 else slice(None) for s in view.strides)]


def _evaluate(
    body: Body,
    factor: Factor,
    operands: Sequence[tuple[OperandAccess, Array]],
    sizes: tuple[int, ...],
) -> _Part | None:
    spread = [a for a in factor.arguments if operands[a][0].results]
    if len(spread) == 1 and not factor.loops:
        # Elementwise on one operand (and scalars): evaluated on the operand itself, not the view.
        access, array = operands[spread[0]]
        arguments = {a: operands[a][1] for a in factor.arguments}
        value = functools.reduce(np.multiply, body.evaluate(factor.slots, arguments))
        return _Part(np.broadcast_to(value, array.shape), access)
    used = factor.loops.union(*(operands[a][0].uses for a in factor.arguments))
    if int(np.prod([sizes[d] for d in used], dtype=object)) > _BUILT:
        return None
    # Loops that the factor does not depend on have one point.
    box = tuple((0, n if d in used else 1) for d, n in enumerate(sizes))
    views = {a: operands[a][0].view(operands[a][1], box) for a in factor.arguments}
    values = body.evaluate(factor.slots, views, lambda d: index_array(d, box, len(sizes)))
    value = functools.reduce(np.multiply, values)
    return _Part(value.reshape((1,) * (len(sizes) - value.ndim) + value.shape), None)


@dataclass(frozen=True)
class _Sums:
    """Sum of products of views that have one axis per loop (length 1: does not depend on it)."""

    sizes: tuple[int, ...]
    reduction: tuple[bool, ...]
    dtype: type

    def of(self, views: list[Array]) -> Array:
        views = self._merge(views)
        shape = tuple(
            1 if r else max(v.shape[d] for v in views) for d, r in enumerate(self.reduction)
        )
        spans = tuple(max(v.shape[d] for v in views) for d in range(len(self.sizes)))
        # Loops that nothing depends on repeat the same sum.
        repeats = int(
            np.prod([n for n, s, r in zip(self.sizes, spans, self.reduction, strict=True)
                     if r and s == 1], dtype=np.int64)
        )  # fmt: skip
        total = np.zeros(shape, self.dtype)
        for box in boxes(spans, self._limit(spans, views)):
            part = [
                v[tuple(slice(lo, hi) if n > 1 else slice(0, 1)
                        for (lo, hi), n in zip(box, v.shape, strict=True))]
                for v in views
            ]  # fmt: skip
            place = tuple(
                slice(0, 1) if r else slice(lo, hi)
                for (lo, hi), r in zip(box, self.reduction, strict=True)
            )
            total[place] += self._matrix_product(part)
        return total * repeats if repeats > 1 else total

    @staticmethod
    def _merge(views: list[Array]) -> list[Array]:
        """Multiply a factor into another that already has all of its loops."""
        if len(views) <= 2:
            return views
        merged: list[Array] = []
        for view in sorted(views, key=lambda v: v.size, reverse=True):
            for i, other in reversed(list(enumerate(merged))):
                if all(n in (1, m) for n, m in zip(view.shape, other.shape, strict=True)) and (
                    other.size <= _PACKED
                ):
                    merged[i] = other * view
                    break
            else:
                merged.append(view)
        return merged

    @staticmethod
    def _limit(spans: tuple[int, ...], views: list[Array]) -> int:
        """Points of the box for which no packed operand is larger than the budget."""
        points = int(np.prod(spans, dtype=object))
        largest = max(v.size for v in views)
        return points if largest <= 4 * _PACKED else max(1, points * _PACKED // largest)

    def _matrix_product(self, views: list[Array]) -> Array:
        if len(views) == 1:
            axes = tuple(d for d, r in enumerate(self.reduction) if r)
            return np.asarray(views[0].sum(axis=axes, keepdims=True))
        if len(views) > 2:
            return self._einsum(views, optimise=True)
        left, right = (self._sum_alone(v, w) for v, w in (views, views[::-1]))
        loops = range(len(self.sizes))
        both = [d for d in loops if left.shape[d] > 1 and right.shape[d] > 1]
        batch = [d for d in both if not self.reduction[d]]
        k = [d for d in both if self.reduction[d]]
        m = [d for d in loops if left.shape[d] > 1 and d not in both]
        n = [d for d in loops if right.shape[d] > 1 and d not in both]
        if batch and (not m or not n):
            # A depthwise convolution: no reuse for BLAS to exploit, and packing would cost more.
            return self._einsum([left, right], optimise=False)

        def packed(view: Array, *groups: list[int]) -> Array:
            order = [d for group in groups for d in group]
            rest = [d for d in loops if d not in order]
            shape = [int(np.prod([view.shape[d] for d in group], dtype=int)) for group in groups]
            # Contiguous, or NumPy may use a loop of its own instead of BLAS.
            return np.ascontiguousarray(view.transpose(*order, *rest).reshape(shape))

        product = packed(left, batch, m, k) @ packed(right, batch, k, n)
        sizes = [(left if d in m else right).shape[d] for d in (*batch, *m, *n)]
        order = [*batch, *m, *n]
        rest = [d for d in loops if d not in order]
        result = product.reshape(*sizes, *(1 for _ in rest))
        return result.transpose(np.argsort([*order, *rest]))

    def _sum_alone(self, view: Array, other: Array) -> Array:
        """Sum a factor over the reductions that the other does not depend on."""
        axes = tuple(
            d for d, r in enumerate(self.reduction) if r and view.shape[d] > 1 == other.shape[d]
        )
        return np.asarray(view.sum(axis=axes, keepdims=True)) if axes else view

    def _einsum(self, views: list[Array], optimise: bool) -> Array:
        loops = range(len(self.sizes))
        present = [[d for d in loops if v.shape[d] > 1] for v in views]
        kept = [d for d in loops if not self.reduction[d] and any(d in p for p in present)]
        arguments: list[Any] = []
        for view, dims in zip(views, present, strict=True):
            arguments += [view.reshape([view.shape[d] for d in dims]) if view.ndim else view, dims]
        result = np.einsum(*arguments, kept, optimize=optimise)
        shape = [1] * len(self.sizes)
        for d, n in zip(kept, result.shape, strict=True):
            shape[d] = n
        return np.asarray(result).reshape(shape)
