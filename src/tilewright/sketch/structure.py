"""What sketches ask of an expression: its stages, how a reduction reads its operands along each
axis, what fits the registers of a target, which sizes of tiles are worth a try."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tilewright.schedule.arith import Arithmetic
from tilewright.schedule.expr import Binary, Cast, Const, Expr, Not, variables
from tilewright.schedule.linear import number
from tilewright.schedule.plan import inlined_bodies
from tilewright.schedule.schedule import create_schedule
from tilewright.schedule.tensor import (
    ComputeOp,
    IterVar,
    Reduce,
    Tensor,
    TensorRead,
    compute,
    reads,
)
from tilewright.schedule.types import BOOL, INDEX, bits
from tilewright.schedule.walk import nodes, transform
from tilewright.sketch.interface import SiteExpression

# What operations on places in tensors, and comparisons of these, are for many at once.
_AT_ONCE: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "floordiv": np.floor_divide,
    "floormod": np.mod,
    "min": np.minimum,
    "max": np.maximum,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
}


@dataclass(frozen=True)
class OperandRead:
    """One place where a computation reads a tensor.

    read: the tensor with its indices. strides: for each axis of the computation, by how many
        elements of the tensor (in the order in which they lie in memory) the place moves with it; 0
        where it does not depend on the axis, None where it does in another way than by a multiple
        (a quotient, a remainder, a choice).
    """

    read: TensorRead
    strides: Mapping[IterVar, int | None]

    @property
    def tensor(self) -> Tensor:
        """The tensor that is read."""
        return self.read.tensor

    def depends_on(self, axis: IterVar) -> bool:
        """Whether another value of an axis reads another element.

        Args:
            axis: of the computation.
        """
        return self.strides[axis] != 0


@dataclass(frozen=True)
class StageStructure:
    """A computation with what is elementwise before it put in place.

    op: the computation as it is in the expression. body: its first output's, with the elementwise
        producers in the place of their reads. spatial, reduced: its axes. reads: what `body` reads:
        inputs of the site and results of other reductions.
    """

    op: ComputeOp
    body: Expr
    spatial: tuple[IterVar, ...]
    reduced: tuple[IterVar, ...]
    reads: tuple[OperandRead, ...]

    @property
    def axes(self) -> tuple[IterVar, ...]:
        """All axes, those of the result first."""
        return (*self.spatial, *self.reduced)

    @property
    def iterations(self) -> int:
        """How often the innermost statement runs."""
        return prod(map(extent, self.axes))

    @property
    def output(self) -> Tensor:
        """The (first) tensor that it computes."""
        return self.op.outputs[0]

    @property
    def widest_bits(self) -> int:
        """Bits of the widest element that is computed with."""
        return widest_bits(self.body)

    def output_stride(self, axis: IterVar) -> int:
        """Elements of the result between neighbours along an axis; 0 for a reduced one.

        Args:
            axis: of the computation.
        """
        shape = self.output.shape
        steps = {a: prod(shape[i + 1 :]) for i, a in enumerate(self.spatial)}
        return steps.get(axis, 0)

    def reusing(self, axis: IterVar) -> tuple[OperandRead, ...]:
        """The reads that get the same element for all values of an axis: what a tile along it
        shares.

        Args:
            axis: of the computation.
        """
        return tuple(r for r in self.reads if not r.depends_on(axis))


@dataclass(frozen=True)
class SiteStructure:
    """A site's computations in the order in which they need each other.

    stages: all of them, producers first. reductions: those that reduce, elementwise producers put
        in place. main: the one of these with the most iterations. consumers: the elementwise
        computations behind `main`, up to the output; empty where `main` is the output.
    """

    stages: tuple[ComputeOp, ...]
    reductions: tuple[StageStructure, ...]
    main: StageStructure | None
    consumers: tuple[ComputeOp, ...]

    @property
    def is_single(self) -> bool:
        """Whether one reduction, with what is elementwise around it, is all there is."""
        return len(self.reductions) == 1


def extent(axis: IterVar) -> int:
    """The number of values of an axis.

    Args:
        axis: of a computation, not of threads.
    """
    assert axis.dom is not None
    return axis.dom.extent


def computed_stages(output: Tensor) -> tuple[ComputeOp, ...]:
    """The computations that an output needs, producers first.

    Args:
        output: of the expression.
    """
    stages = create_schedule(output.op).stages
    return tuple(stage.op for stage in stages if isinstance(stage.op, ComputeOp))


def structure_of(site: SiteExpression) -> SiteStructure:
    """Takes an expression apart.

    Args:
        site: the expression.

    Returns:
        Its computations; `main` is None where nothing is reduced.
    """
    schedule = create_schedule(site.output.op)
    stages = [s for s in schedule.stages if isinstance(s.op, ComputeOp)]
    for stage in stages:
        if stage.compute.reduction is None and not stage.is_output:
            stage.compute_inline()
    bodies = inlined_bodies(schedule)
    reductions = tuple(
        stage_structure(stage.compute, bodies[stage][0])
        for stage in stages
        if stage.compute.reduction is not None
    )
    main = max(reversed(reductions), key=lambda r: r.iterations, default=None)
    behind: set[Tensor] = set(main.op.outputs) if main is not None else set()
    consumers = []
    for stage in stages:
        if stage.compute.reduction is None and behind & set(stage.compute.input_tensors):
            consumers.append(stage.compute)
            behind.update(stage.op.outputs)
    return SiteStructure(
        tuple(stage.compute for stage in stages), reductions, main, tuple(consumers)
    )


def stage_structure(op: ComputeOp, body: Expr) -> StageStructure:
    """The reads of a computation along its axes.

    Args:
        op: the computation.
        body: of its first output, in terms of its axes.
    """
    axes = (*op.axis, *op.reduce_axis)
    arithmetic = Arithmetic({a: (a.dom.min, a.dom.min + a.dom.extent - 1) for a in axes if a.dom})
    found = tuple(
        OperandRead(read, flat_strides(read, axes, arithmetic))
        for read in dict.fromkeys(reads(body))
    )
    return StageStructure(op, body, op.axis, op.reduce_axis, found)


def flat_strides(
    read: TensorRead, axes: Sequence[IterVar], arithmetic: Arithmetic
) -> dict[IterVar, int | None]:
    """By how many elements the place of a read moves with each axis.

    Args:
        read: of a tensor.
        axes: whose strides are asked for.
        arithmetic: knows their ranges.

    Returns:
        As :attr:`OperandRead.strides`.
    """
    place, step = number(0), 1
    for part, size in zip(reversed(read.indices), reversed(read.tensor.shape), strict=True):
        place = place.plus(arithmetic.linear(part), step)
        step *= size
    return {axis: place.step(axis)[0] for axis in axes}


def factors(body: Expr) -> tuple[Expr, ...]:
    """The factors of the one product that a sum adds up; casts to wider types around the product
    count to each factor.

    Args:
        body: a reduction.

    Returns:
        Two or more for a contraction; the summand alone where it is no product; none where it is
        no sum of one value.
    """
    if not isinstance(body, Reduce) or body.combiner.name != "sum" or len(body.sources) > 1:
        return ()

    def parts(expr: Expr) -> tuple[Expr, ...]:
        if isinstance(expr, Binary) and expr.op == "mul":
            return (*parts(expr.a), *parts(expr.b))
        return (expr,)

    return parts(body.sources[0])


def source_read(factor: Expr) -> TensorRead | None:
    """The read that a factor is, conversions aside; None where it computes something.

    Args:
        factor: of a product.
    """
    while isinstance(factor, Cast):
        factor = factor.value
    return factor if isinstance(factor, TensorRead) else None


def axes_of(expr: Expr, axes: Sequence[IterVar]) -> tuple[IterVar, ...]:
    """The axes, of those given, that an expression depends on.

    Args:
        expr: any.
        axes: in the order of the result.
    """
    used = variables(expr)
    return tuple(axis for axis in axes if axis in used)


def values_along(expr: Expr, axis: IterVar) -> Any:
    """What an expression of one axis is at each of its places, as an array of (extent,).

    Args:
        expr: a place in a tensor, or a condition on such.
        axis: what it may depend on.

    Returns:
        Whole numbers or truth values; None where it depends on anything else.
    """

    def found(one: Expr) -> Any:
        if one is axis:
            return np.arange(extent(axis))
        if isinstance(one, Const):
            return np.asarray(one.value)
        if isinstance(one, Not):
            value = found(one.a)
            return None if value is None else np.logical_not(value)
        if not isinstance(one, Binary) or one.op not in _AT_ONCE:
            return None
        values = found(one.a), found(one.b)
        return None if any(v is None for v in values) else _AT_ONCE[one.op](*values)

    value = found(expr)
    return None if value is None else np.broadcast_to(value, extent(axis))


def widest_bits(expr: Expr) -> int:
    """Bits of the widest element that an expression computes with or reads.

    Args:
        expr: any but one of indices alone.
    """
    types = {node.dtype for node in nodes(expr)} - {INDEX, BOOL}
    return max((bits(dtype) for dtype in types), default=8)


# -- what fits a target ----------------------------------------------------------------------------


def tile_sizes(size: int, most: int, multiple: int = 1) -> tuple[int, ...]:
    """Sizes of tiles worth a try along an axis, ascending: those that divide it, and powers of two
    and three times these for where none does.

    Args:
        size: of the axis.
        most: the largest tile.
        multiple: what every tile is a multiple of, but for the whole axis.

    Returns:
        One at least.
    """
    most = min(size, most)
    common = {f << e for f in (1, 3) for e in range(most.bit_length())}
    exact = {d for d in range(1, most + 1) if size % d == 0}
    found = {t for t in common | exact if t <= most and t % multiple == 0}
    if size <= most:
        found.add(size)
    return tuple(sorted(found)) or (most,)


# -- the same expression, written otherwise --------------------------------------------------------


def summed_in(dtype: str) -> str:
    """The type in which sums are added up: floats of 16 bits in f32, which processors add faster
    than these, and more exactly.

    Args:
        dtype: of the sums.
    """
    return "f32" if dtype in ("f16", "bf16") else dtype


def result_with(
    output: Tensor, replaced: Tensor, element: Callable[[tuple[Expr, ...]], Expr]
) -> Tensor:
    """The output of an expression with something else in the place of a tensor's elements.

    Args:
        output: of the expression.
        replaced: the tensor, which may be the output itself.
        element: given the indices of an element, what stands for it.
    """
    if output.op is replaced.op:
        made: Tensor = compute(
            replaced.shape, lambda *axes: element(axes), name=f"{replaced.name}.result"
        )
        return made
    return rewritten(output, {replaced: element})


def rewritten(
    output: Tensor, replaced: Mapping[Tensor, Callable[[tuple[Expr, ...]], Expr]]
) -> Tensor:
    """The expression with something else in the place of what is read of some tensors.

    Args:
        output: of the expression.
        replaced: for each of these tensors, given the indices of an element, what stands for it.

    Returns:
        The output of an expression whose computations are made anew where they change; the old one
        where nothing does.
    """

    def changed(node: Expr) -> Expr | None:
        if isinstance(node, TensorRead) and node.tensor in replaced:
            return replaced[node.tensor](node.indices)
        return None

    return changed_throughout(output, changed)


def changed_throughout(output: Tensor, change: Callable[[Expr], Expr | None]) -> Tensor:
    """The expression with other nodes in the place of some, in the bodies of all computations.

    Args:
        output: of the expression.
        change: given a node whose parts are changed already, what takes its place; None keeps it.

    Returns:
        As of `rewritten`.
    """
    made: dict[Tensor, Tensor] = {}

    def changed(node: Expr) -> Expr | None:
        other = change(node)
        if other is None and isinstance(node, TensorRead) and node.tensor in made:
            return TensorRead(made[node.tensor], node.indices)
        return other

    for op in computed_stages(output):
        body = tuple(transform(expr, changed) for expr in op.body)
        if all(new is old for new, old in zip(body, op.body, strict=True)):
            continue
        tensors = tuple(Tensor(t.name, t.shape, t.dtype, t.index) for t in op.outputs)
        fresh = ComputeOp(op.name, tensors, op.axis, body, op.tag, op.attrs)
        for tensor, old in zip(tensors, op.outputs, strict=True):
            tensor.op = fresh
            made[old] = tensor
    return made.get(output, output)
