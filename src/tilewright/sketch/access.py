"""What stages read, how far apart the elements are, and which stages are inlined.

Everything here looks at an expression, or at a schedule before its loops are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from math import prod

from tilewright.schedule.arith import Arithmetic
from tilewright.schedule.expr import Binary, Call, Expr, Var
from tilewright.schedule.linear import Linear, number
from tilewright.schedule.nest import compact
from tilewright.schedule.plan import inlined_bodies
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.stage import Stage
from tilewright.schedule.tensor import REDUCE, ComputeOp, IterVar, Tensor, TensorRead, reads
from tilewright.schedule.types import bits, is_float
from tilewright.schedule.walk import nodes

# Functions that are an instruction or two.
_CHEAP = frozenset(
    ("abs", "ceil", "copysign", "floor", "fma", "isnan", "round", "roundeven", "trunc")
)
# Nodes of an expression beyond which nothing more is inlined into it.
_MOST_NODES = 400


def is_costly(expr: Expr) -> bool:
    """Whether computing an expression twice is worth avoiding: it divides floats, or has a function
    that takes more than an instruction or two.

    Args:
        expr: what is computed.
    """
    return any(
        (isinstance(node, Call) and node.name not in _CHEAP)
        or (isinstance(node, Binary) and node.op == "div" and is_float(node.dtype))
        for node in nodes(expr)
    )


class AccessPattern:
    """How the body of a stage walks through memory.

    axes: those of its result, then those that it reduces; body: one of its expressions, with what
    is inlined in place of reads.
    """

    def __init__(self, op: ComputeOp, body: Sequence[Expr]) -> None:
        """op: the operation. body: its expressions."""
        self.axes = (*op.axis, *op.reduce_axis)
        self.body = tuple(body)
        self.output = op.outputs[0]
        self._arithmetic = Arithmetic(
            {a: (a.dom.min, a.dom.min + a.dom.extent - 1) for a in self.axes if a.dom}
        )

    @cached_property
    def reads(self) -> tuple[TensorRead, ...]:
        """Its reads of tensors, without repetitions."""
        found: dict[object, TensorRead] = {}
        for expr in self.body:
            for read in reads(expr):
                key = (read.tensor, tuple(self._arithmetic.linear(i) for i in read.indices))
                found.setdefault(key, read)
        return tuple(found.values())

    def linear(self, index: Expr) -> Linear:
        """An index as a sum over axes.

        Args:
            index: of a read.
        """
        return self._arithmetic.linear(index)

    def place(self, read: TensorRead) -> Linear:
        """Where in its tensor a read is, in elements.

        Args:
            read: one of :attr:`reads`.
        """
        total = number(0)
        for index, stride in zip(read.indices, compact(read.tensor.shape), strict=True):
            step = self._arithmetic.linear(index).times(stride)
            total = self._arithmetic.combined("add", total, step)
        return total

    def step(self, read: TensorRead, axis: Var) -> int | None:
        """Elements from a read to that of the axis's next value; None where it is not one number.

        Args:
            read: one of :attr:`reads`.
            axis: one of the axes.
        """
        return self.place(read).step(axis)[0]

    def variables(self, read: TensorRead) -> frozenset[Var]:
        """The axes that a read depends on.

        Args:
            read: one of :attr:`reads`.
        """
        return frozenset().union(*(self._arithmetic.linear(i).variables for i in read.indices))

    @cached_property
    def largest(self) -> TensorRead | None:
        """The read of the most elements; of equal ones the first."""
        return max(self.reads, key=lambda read: self.elements(read), default=None)

    def elements(self, read: TensorRead) -> int:
        """Different places that a read has at most.

        Args:
            read: one of :attr:`reads`.
        """
        mine = self.variables(read)
        return prod(a.dom.extent for a in self.axes if a in mine and a.dom)

    def fuses(self, outer: IterVar, inner: IterVar) -> bool:
        """Whether the two loops are one to all reads: the step of the outer is the way that the
        inner goes.

        Args:
            outer, inner: axes, one around the other.
        """
        assert inner.dom is not None
        for read in self.reads:
            far, near = self.step(read, outer), self.step(read, inner)
            if far is None or near is None or far != near * inner.dom.extent:
                return False
        return True


def joined_tail(pattern: AccessPattern, axes: Sequence[IterVar]) -> int:
    """How many of the last axes are one loop to all reads.

    Args:
        pattern: of the stage whose axes they are.
        axes: outermost first.

    Returns:
        1 at least, where there is an axis.
    """
    count = min(1, len(axes))
    while count < len(axes) and pattern.fuses(axes[-count - 1], axes[-count]):
        count += 1
    return count


def reduce_order(pattern: AccessPattern) -> list[IterVar]:
    """The reduced axes, those of the largest steps of the largest read outermost.

    Args:
        pattern: of a reduction.
    """
    axes = [a for a in pattern.axes if a.kind == REDUCE]
    largest = pattern.largest
    if largest is None:
        return axes
    return sorted(axes, key=lambda a: -abs(pattern.step(largest, a) or 0))


def computed(schedule: Schedule) -> list[Stage]:
    """The stages that compute something, producers first.

    Args:
        schedule: any.
    """
    return [stage for stage in schedule.stages if not stage.is_placeholder]


def inline_all(schedule: Schedule, kept: Iterable[Stage]) -> dict[Stage, AccessPattern]:
    """Inlines every stage but reductions, the output and some others.

    Args:
        schedule: without loops yet.
        kept: stages that stay.

    Returns:
        The pattern of each stage that is left.
    """
    stay = set(kept)
    for stage in computed(schedule):
        if stage not in stay and not stage.is_output and stage.compute.reduction is None:
            stage.compute_inline()
    bodies = inlined_bodies(schedule)
    return {
        stage: AccessPattern(stage.compute, bodies[stage])
        for stage in computed(schedule)
        if stage.compute.reduction is not None or stage in stay or stage.is_output
    }


def shared_stages(schedule: Schedule) -> list[Stage]:
    """The elementwise stages that several others read, so that inlining computes them again.

    Args:
        schedule: without loops yet.

    Returns:
        Producers first.
    """
    return [
        stage
        for stage in computed(schedule)
        if stage.compute.reduction is None
        and not stage.is_output
        and len(schedule.readers(stage)) > 1
    ]


def worth_keeping(schedule: Schedule) -> list[Stage]:
    """The stages that should not be inlined where each is computed as a whole: costly ones that are
    read in several places or by a reduction, and those whose inlining makes huge expressions.

    Args:
        schedule: without loops yet.

    Returns:
        Producers first.
    """
    kept: list[Stage] = []
    size: dict[Tensor, int] = {}
    hard: dict[Tensor, bool] = {}
    for stage in computed(schedule):
        op = stage.compute
        total = sum(len(nodes(e)) for e in op.body)
        total += sum(size.get(r.tensor, 0) for e in op.body for r in reads(e))
        heavy = any(map(is_costly, op.body)) or any(hard.get(t, False) for t in op.input_tensors)
        if op.reduction is not None or stage.is_output:
            continue
        readers = schedule.readers(stage)
        repeated = len(readers) > 1 or any(r.compute.reduction is not None for r in readers)
        if (heavy and repeated) or total > _MOST_NODES:
            kept.append(stage)
            continue
        for tensor in op.outputs:
            size[tensor], hard[tensor] = total, heavy
    return kept


def element_bits(pattern: AccessPattern) -> int:
    """Bits of the widest element that a stage computes with.

    Args:
        pattern: of the stage.
    """
    widths = [bits(pattern.output.dtype), *(bits(read.tensor.dtype) for read in pattern.reads)]
    return max(widths)


def row_scalars(schedule: Schedule) -> list[Stage]:
    """Elementwise stages of no more elements than the reductions that they are made from: a mean
    after a sum.

    Args:
        schedule: without loops yet.

    Returns:
        Producers first, without the output.
    """
    sizes: dict[Tensor, int] = {}
    found = []
    for stage in computed(schedule):
        op = stage.compute
        size = prod(op.outputs[0].shape)
        if op.reduction is None:
            largest = max((sizes.get(t, 0) for t in op.input_tensors), default=0)
            if stage.is_output or size > largest:
                continue
            found.append(stage)
        sizes.update(dict.fromkeys(op.outputs, size))
    return found


def same_axes(
    schedule: Schedule, patterns: Mapping[Stage, AccessPattern], stage: Stage, axis: IterVar
) -> dict[Stage, IterVar]:
    """Which axis of each producer is that of a stage: the dimension that is read along it.

    Args:
        schedule: of the stages.
        patterns: of the stages that are not inlined, producers first.
        stage: where to begin.
        axis: of its result.

    Returns:
        The stage itself, and each one before it that has such an axis.
    """
    found = {stage: axis}
    for reader in reversed(list(patterns)):
        pattern, mine = patterns[reader], found.get(reader)
        if mine is None:
            continue
        for read in pattern.reads:
            producer = schedule[read.tensor]
            if producer not in patterns or producer in found:
                continue
            for own, index in zip(producer.op.axis, read.indices, strict=True):
                if pattern.linear(index).step(mine)[0] == 1:
                    found[producer] = own
    return found


def laid_out(schedule: Schedule, stage: Stage, last: Sequence[IterVar]) -> Stage:
    """A stage that holds what another one computes with some axes as the innermost dimensions.

    Args:
        schedule: of the stage.
        stage: without loops of its own yet; it is inlined.
        last: axes of its result.
    """
    stage.reorder(*(a for a in stage.op.axis if a not in last), *last)
    (made,) = schedule.cache_write([*stage.op.outputs], "global")
    stage.compute_inline()
    return schedule[made]
