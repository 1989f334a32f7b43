"""Structured ops: one rule for iterator types, indexing maps and body, whatever an op is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from iree.compiler import ir

from tilewright.ir.reference.access import OperandAccess, evaluate_expr, loop_sizes
from tilewright.ir.reference.structured import structure
from tilewright.schedule.expr import Cast, Expr, Var, as_expr, index
from tilewright.schedule.tensor import IterVar, compute, reduce_axis
from tilewright.schedule.types import INDEX
from tilewright.sketch.combiners import recognised
from tilewright.sketch.scalar_bodies import as_index
from tilewright.sketch.tensor_values import (
    ComputedValue,
    Held,
    Indices,
    Moved,
    TensorValue,
    Uniform,
    Unwritten,
)
from tilewright.sketch.translation import (
    ScalarBody,
    SiteTranslation,
    is_used,
    ranked,
    static_shape,
    yielded,
)
from tilewright.sketch.untranslatable import Untranslatable, dtype_of


@dataclass(frozen=True)
class StructuredOp:
    """A structured op with what its operands are.

    accesses: the operands' indexing maps, inputs first. outputs: how many there are. reduction:
    for each loop whether it is one. sizes: of the loops.
    """

    op: ir.Operation
    block: ir.Block
    operands: tuple[TensorValue | Expr, ...]
    accesses: tuple[OperandAccess, ...]
    outputs: int
    reduction: tuple[bool, ...]
    sizes: tuple[int, ...]

    @property
    def inputs(self) -> int:
        """How many inputs there are."""
        return len(self.accesses) - self.outputs

    def loops(self, output: int, place: Indices) -> list[Expr]:
        """The parallel loops where the element of an output is computed; 0 for the others.

        Args:
            output: its number.
            place: the element's indices.
        """
        loops: list[Expr] = [index(0)] * len(self.sizes)
        seen: set[int] = set()
        for at, expression in zip(
            place, self.accesses[self.inputs + output].map.results, strict=True
        ):
            if isinstance(expression, ir.AffineDimExpr):
                if expression.position in seen:
                    raise Untranslatable(self.op.name, "an output along a diagonal")
                seen.add(expression.position)
                loops[expression.position] = at
            elif not isinstance(expression, ir.AffineConstantExpr):
                raise Untranslatable(self.op.name, "an output at computed places")
        left = [
            n
            for d, (n, r) in enumerate(zip(self.sizes, self.reduction, strict=True))
            if not r and d not in seen and n > 1
        ]
        if left:
            raise Untranslatable(self.op.name, "a parallel loop that no output has")
        return loops

    def needed(self, results: Sequence[ir.Value]) -> list[int]:
        """The operands that values of the body depend on.

        Args:
            results: the values.
        """
        arguments = {value: i for i, value in enumerate(self.block.arguments)}
        seen: set[ir.Value] = set()
        found: set[int] = set()

        def visit(value: ir.Value) -> None:
            if value in seen:
                return
            seen.add(value)
            if value in arguments:
                found.add(arguments[value])
            elif not isinstance(value, ir.BlockArgument):
                below(value.owner.operation)

        def below(op: ir.Operation) -> None:
            for operand in op.operands:
                visit(operand)
            for region in op.regions:
                for block in region.blocks:
                    for inner in block.operations:
                        below(inner.operation)

        for result in results:
            visit(result)
        return sorted(found)

    def body(
        self, translation: SiteTranslation, loops: Indices, given: dict[int, Expr] | None = None
    ) -> ScalarBody:
        """The op's body at a point of its loops.

        Args:
            translation: goes on.
            loops: the point.
            given: what stands for operands that are not read.
        """

        def maker(number: int) -> Callable[[], Expr]:
            def make() -> Expr:
                if given is not None and number in given:
                    return given[number]
                operand = self.operands[number]
                if isinstance(operand, Expr):
                    return operand
                map_ = self.accesses[number].map
                return operand.read([as_index(evaluate_expr(e, loops)) for e in map_.results])

            return make

        arguments = [(value, maker(i)) for i, value in enumerate(self.block.arguments)]
        return ScalarBody(translation, arguments, loops)


def _read_structure(translation: SiteTranslation, op: ir.Operation) -> StructuredOp:
    plan = structure(op)
    shapes = [static_shape(v.type, op.name) if ranked(v.type) else () for v in op.operands]
    operands: list[Any] = [translation.value(v) for v in op.operands]
    return StructuredOp(
        op,
        op.regions[0].blocks[0],
        tuple(operands),
        plan.accesses,
        plan.outputs,
        plan.reduction,
        loop_sizes(plan.accesses, shapes, op.name),
    )


def structured(translation: SiteTranslation, op: ir.Operation) -> list[TensorValue]:
    """The results of an op with loops, indexing maps and a body.

    Args:
        translation: goes on.
        op: of the linalg dialect.

    Raises:
        Untranslatable: its body or its reduction has no expression.
    """
    what = _read_structure(translation, op)
    looping = [d for d, r in enumerate(what.reduction) if r and what.sizes[d] > 1]
    if any(what.reduction) and not looping:
        # One step of each loop: no reduction, the body says it all.
        return _parallel(translation, what)
    return _reduced(translation, what, looping) if looping else _parallel(translation, what)


def _parallel(translation: SiteTranslation, what: StructuredOp) -> list[TensorValue]:
    return [_elementwise(translation, what, j, v) for j, v in enumerate(yielded(what.block))]


def _elementwise(
    translation: SiteTranslation, what: StructuredOp, j: int, result: ir.Value
) -> TensorValue:
    """Output `j`: only moved, uniform, or computed element by element."""
    type_ = what.op.results[j].type
    shape = static_shape(type_, what.op.name)

    def element(place: Indices) -> Expr:
        return what.body(translation, what.loops(j, place)).expression(result)

    moved = next((i for i, a in enumerate(what.block.arguments) if a == result), None)
    if moved is not None:
        source = what.operands[moved]
        if isinstance(source, Expr):
            return Uniform(shape, source)
        if source.constant is not None:
            return Uniform(shape, source.constant)
        map_ = what.accesses[moved].map

        def placed(place: Indices) -> Indices:
            loops = what.loops(j, place)
            return [as_index(evaluate_expr(e, loops)) for e in map_.results]

        what.loops(j, [index(0)] * len(shape))
        return Moved(source, shape, placed)
    name = what.op.name.rpartition(".")[2]
    dtype = dtype_of(type_, what.op.name)
    return ComputedValue(translation.workshop, name, shape, dtype, element)


def _reduced(
    translation: SiteTranslation, what: StructuredOp, looping: list[int]
) -> list[TensorValue]:
    """A reduction, and behind it what its accumulators start from unless that changes nothing."""
    op = what.op
    results = yielded(what.block)
    wanted = _wanted_outputs(what, results)
    shape = static_shape(op.results[wanted[0]].type, op.name)
    maps = [what.accesses[what.inputs + j].map for j in wanted]
    if any(map_ != maps[0] for map_ in maps):
        raise Untranslatable(op.name, "outputs with different indexing maps")
    accumulators = [
        Var(f"acc{j}", dtype_of(op.results[j].type, op.name)) for j in range(what.outputs)
    ]
    given: dict[int, Expr] = {what.inputs + j: v for j, v in enumerate(accumulators)}
    axes = [reduce_axis(what.sizes[d], f"r{n}") for n, d in enumerate(looping)]
    translation.workshop.bind(axes)
    name = translation.workshop.name(op.name.rpartition(".")[2])
    found: list[Any] = []

    def computed(*place: IterVar) -> Any:
        translation.workshop.bind(place)
        loops = what.loops(wanted[0], place)
        for d, axis in zip(looping, axes, strict=True):
            loops[d] = axis
        body = what.body(translation, loops, given)
        values = [body.expression(results[j]) for j in wanted]
        chosen = [accumulators[j] for j in wanted]
        reduction = recognised(chosen, values, lambda e: _counts(translation, e, axes))
        if reduction is None:
            raise Untranslatable(op.name, "a reduction of no known form: " + _shown(values))
        found.append(reduction)
        sources: Any = reduction.sources if len(wanted) > 1 else reduction.sources[0]
        return reduction.reducer(sources, axis=axes)

    made = compute(shape, computed, name=name)
    tensors = list(made) if len(wanted) > 1 else [made]
    (reduction,) = found
    held = [Held(tensor, translation.workshop) for tensor in tensors]
    starts = [what.operands[what.inputs + j] for j in wanted]
    outputs: list[TensorValue] = list(held)
    if not reduction.starts_from([s.constant for s in starts if isinstance(s, TensorValue)]):
        outputs = _started(translation, what, wanted, reduction, held)
    by_number = dict(zip(wanted, outputs, strict=True))
    return [
        by_number.get(j) or Unwritten(static_shape(op.results[j].type, op.name), a.dtype)
        for j, a in enumerate(accumulators)
    ]


def _wanted_outputs(what: StructuredOp, results: Sequence[ir.Value]) -> list[int]:
    """The outputs that somebody uses, and those that are needed to compute them."""
    wanted = {j for j, result in enumerate(what.op.results) if is_used(result)} or {0}
    while True:
        needed = what.needed([results[j] for j in wanted])
        more = wanted | {i - what.inputs for i in needed if i >= what.inputs}
        if more == wanted:
            return sorted(wanted)
        wanted = more


def _started(
    translation: SiteTranslation,
    what: StructuredOp,
    wanted: list[int],
    reduction: Any,
    held: list[Held],
) -> list[TensorValue]:
    """Combines what accumulators start from with what was reduced."""
    starts = [what.operands[what.inputs + j] for j in wanted]
    values = [s for s in starts if isinstance(s, TensorValue)]

    def element(position: int) -> Callable[[Indices], Expr]:
        def combined(place: Indices) -> Expr:
            before = [value.read(place) for value in values]
            terms = [tensor.read(place) for tensor in held]
            expression: Expr = reduction.combine(before, terms)[position]
            return expression

        return combined

    return [
        ComputedValue(
            translation.workshop, "combined", tensor.shape, tensor.dtype, element(position)
        )
        for position, tensor in enumerate(held)
    ]


def _counts(translation: SiteTranslation, expression: Expr, axes: Sequence[IterVar]) -> bool:
    """Whether an integer grows with the steps of a reduction, the last axis fastest."""
    while isinstance(expression, Cast):
        expression = expression.value
    if expression.dtype != INDEX:
        return False
    form = translation.workshop.arithmetic.linear(expression)
    reach = 0
    for axis in reversed(axes):
        step, form = form.step(axis)
        assert axis.dom is not None
        if step is None or step <= reach:
            return False
        reach += step * (axis.dom.extent - 1)
    return True


def _shown(values: Sequence[Expr]) -> str:
    text = ", ".join(str(as_expr(value)) for value in values)
    return text if len(text) < 100 else text[:97] + "..."
