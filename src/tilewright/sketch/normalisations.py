"""Softmax and attention as what they are made of: reductions, and elementwise work around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from iree.compiler import ir

from tilewright.ir.reference.access import OperandAccess, evaluate_expr, indexing_maps, loop_sizes
from tilewright.ir.reference.attention import Roles
from tilewright.schedule import functions as te
from tilewright.schedule.expr import Expr, cast, const, index
from tilewright.schedule.tensor import Tensor, reduce_axis
from tilewright.schedule.types import BOOL, bits, is_float
from tilewright.sketch.combiners import largest_number
from tilewright.sketch.reshapes import TensorRule
from tilewright.sketch.scalar_bodies import as_index
from tilewright.sketch.tensor_values import (
    ComputedValue,
    Indices,
    TensorValue,
    Workshop,
)
from tilewright.sketch.translation import (
    ScalarBody,
    SiteTranslation,
    ranked,
    static_shape,
    yielded,
)
from tilewright.sketch.untranslatable import Untranslatable, dtype_of

_LOG2_E = 1.4426950408889634
# The running maximum starts at the lowest finite f32, so that of a row that is masked whole the
# weights are 0 / 0 and not inf - inf.
_LOWEST = -3.4028234663852886e38


def _wide(dtype: str) -> str:
    """The type that sums and powers are computed in."""
    return "f32" if is_float(dtype) and bits(dtype) < 32 else dtype


def _reduced(
    workshop: Workshop,
    name: str,
    shape: Sequence[int],
    reducer: Callable[..., Any],
    extents: Sequence[int],
    source: Callable[[Indices, Indices], Expr],
) -> Tensor:
    """A reduction over axes of these extents of a source at the result's and the axes' indices."""
    axes = [reduce_axis(n, f"r{d}") for d, n in enumerate(extents)]
    workshop.bind(axes)
    return workshop.stage(shape, name, lambda place: reducer(source(place, axes), axis=axes))


def _softmax(translation: SiteTranslation, op: ir.Operation) -> Sequence[TensorValue]:
    """exp(x - max) / sum, along one dimension."""
    value = translation.tensor(op.operands[0])
    shape, dtype = static_shape(op.results[0].type, op.name), _wide(value.dtype)
    axis = int(op.attributes["dimension"])
    workshop = translation.workshop
    rows = tuple(n for d, n in enumerate(shape) if d != axis)

    def within(place: Indices, at: Expr) -> Indices:
        return [*place[:axis], at, *place[axis:]]

    def row(place: Indices) -> Indices:
        return [*place[:axis], *place[axis + 1 :]]

    def element(place: Indices) -> Expr:
        return cast(dtype, value.read(place))

    best = _reduced(
        workshop, "row_max", rows, largest_number, [shape[axis]],
        lambda place, r: element(within(place, r[0])),
    )  # fmt: skip
    powers = workshop.stage(
        shape, "powers", lambda place: te.exp(element(place) - best(*row(place)))
    )
    total = _reduced(
        workshop, "row_sum", rows, te.sum, [shape[axis]],
        lambda place, r: powers(*within(place, r[0])),
    )  # fmt: skip

    def quotient(place: Indices) -> Expr:
        return cast(value.dtype, powers(*place) / total(*row(place)))

    return [ComputedValue(workshop, "softmax", shape, value.dtype, quotient)]


class _Attention:
    """An attention taken apart: Q is batch, m, k1; K batch, k2, k1; V batch, k2, n.

    base_2: whether scores are in units of log2.
    """

    def __init__(self, translation: SiteTranslation, op: ir.Operation) -> None:
        self.op = op
        self.workshop = translation.workshop
        self.accesses = [OperandAccess(map_) for map_ in indexing_maps(op)]
        shapes = [static_shape(v.type, op.name) if ranked(v.type) else () for v in op.operands]
        self.operands: list[Any] = [translation.value(v) for v in op.operands]
        self.sizes = loop_sizes(self.accesses, shapes, op.name)
        self.roles = Roles.of(self.accesses, len(op.results))
        self.dtype = _wide(dtype_of(op.operands[0].type, op.name))
        if not is_float(self.dtype):
            self.dtype = "f32"
        block = op.regions[0].blocks[0]
        # The unit of the scores is seen by a region that changes them and by those who get the
        # maximum; nobody else.
        seen = len(op.results) > 1 or yielded(block)[0] != block.arguments[0]
        self.base_2 = seen and _uses_exp2(op)
        self.rows = sorted(self.roles.batch | self.roles.m)
        self.scores = self.roles.scores

    def read(self, number: int, loops: dict[int, Expr]) -> Expr:
        """An operand at a point of the loops."""
        operand = self.operands[number]
        if isinstance(operand, Expr):
            return operand
        point = [loops.get(d, index(0)) for d in range(len(self.sizes))]
        results = self.accesses[number].map.results
        made: Expr = operand.read([as_index(evaluate_expr(e, point)) for e in results])
        return made

    def reduced(
        self,
        name: str,
        kept: Sequence[int],
        reducer: Callable[..., Any],
        over: frozenset[int],
        source: Callable[[dict[int, Expr]], Expr],
    ) -> Tensor:
        """A reduction over loops, for the loops `kept`."""
        order = sorted(over)

        def at(place: Indices, axes: Indices) -> Expr:
            return source(dict([*zip(kept, place, strict=True), *zip(order, axes, strict=True)]))

        return _reduced(
            self.workshop, name, [self.sizes[d] for d in kept], reducer,
            [self.sizes[d] for d in order], at,
        )  # fmt: skip

    def stage(
        self, name: str, kept: Sequence[int], source: Callable[[dict[int, Expr]], Expr]
    ) -> Tensor:
        """An elementwise stage over loops."""
        shape = [self.sizes[d] for d in kept]
        return self.workshop.stage(
            shape, name, lambda place: source(dict(zip(kept, place, strict=True)))
        )


def _attention(translation: SiteTranslation, op: ir.Operation) -> Sequence[TensorValue]:
    """softmax(region(scale Q K^T) + mask) V: the sums of the weights divide at the end."""
    what = _Attention(translation, op)
    dtype, rows = what.dtype, what.rows
    online = len(op.results) == 3
    scores = _scores(translation, what)

    def score(loops: dict[int, Expr]) -> Expr:
        return scores(*(loops[d] for d in what.scores))

    def row(tensor: Tensor) -> Callable[[dict[int, Expr]], Expr]:
        return lambda loops: tensor(*(loops[d] for d in rows))

    power = te.exp2 if what.base_2 else te.exp
    best = what.reduced("row_max", rows, largest_number, what.roles.k2, score)
    outputs = [
        (result, access)
        for result, access in zip(op.results, what.accesses[-len(op.results) :], strict=True)
    ]
    if online:
        former = what.stage(
            "row_best",
            rows,
            lambda loops: te.maximum(row(best)(loops), cast(dtype, what.read(-2, loops))),
        )
    else:
        former = what.stage(
            "row_best", rows, lambda loops: te.maximum(row(best)(loops), const(_LOWEST, dtype))
        )
    weights = what.stage(
        "weights", what.scores, lambda loops: power(score(loops) - row(former)(loops))
    )

    def weight(loops: dict[int, Expr]) -> Expr:
        return weights(*(loops[d] for d in what.scores))

    total = what.reduced("row_sum", rows, te.sum, what.roles.k2, weight)
    kept = sorted(what.accesses[-len(op.results)].uses)
    product = what.reduced(
        "product",
        kept,
        te.sum,
        what.roles.k2,
        lambda loops: weight(loops) * cast(dtype, what.read(2, loops)),
    )

    def decay(loops: dict[int, Expr]) -> Expr:
        faded: Expr = power(cast(dtype, what.read(-2, loops)) - row(former)(loops))
        return faded

    def mixed(loops: dict[int, Expr]) -> Expr:
        made = product(*(loops[d] for d in kept))
        if not online:
            return made / row(total)(loops)
        return decay(loops) * cast(dtype, what.read(-3, loops)) + made

    def summed(loops: dict[int, Expr]) -> Expr:
        return decay(loops) * cast(dtype, what.read(-1, loops)) + row(total)(loops)

    rules = [mixed, row(former), summed] if online else [mixed]
    return [
        _output(what, f"attention{number or ''}", result, access, rule)
        for number, ((result, access), rule) in enumerate(zip(outputs, rules, strict=True))
    ]


def _scores(translation: SiteTranslation, what: _Attention) -> Tensor:
    """The scores as the softmax takes them: scaled, through the region, masked."""
    op, dtype = what.op, what.dtype
    products = what.reduced(
        "scores",
        what.scores,
        te.sum,
        what.roles.k1,
        lambda loops: cast(dtype, what.read(0, loops)) * cast(dtype, what.read(1, loops)),
    )
    block = op.regions[0].blocks[0]
    narrow = bits(dtype_of(op.operands[0].type, op.name)) <= 8

    def region(value: Expr, loops: dict[int, Expr]) -> Expr:
        argument = block.arguments[0]
        inside = cast(dtype_of(argument.type, op.name), value)
        indices = [loops[d] for d in what.scores]
        body = ScalarBody(translation, [(argument, lambda: inside)], indices)
        return cast(dtype, body.expression(yielded(block)[0]))

    def score(loops: dict[int, Expr]) -> Expr:
        value = products(*(loops[d] for d in what.scores))
        factor = cast(dtype, what.read(3, loops))
        if what.base_2:
            factor = factor * const(_LOG2_E, dtype)
        # Scores of 8-bit queries are scaled after the region, to keep the product's range.
        value = region(value, loops) * factor if narrow else region(value * factor, loops)
        if len(what.operands) - len(op.results) == 5:
            value = value + _added(what.read(4, loops), dtype, what.base_2)
        return value

    return what.stage("scaled", what.scores, score)


def _output(
    what: _Attention,
    name: str,
    result: ir.Value,
    access: OperandAccess,
    rule: Callable[[dict[int, Expr]], Expr],
) -> TensorValue:
    shape = static_shape(result.type, what.op.name)
    dtype = dtype_of(result.type, what.op.name)

    def element(place: Indices) -> Expr:
        loops: dict[int, Expr] = {}
        for at, expression in zip(place, access.map.results, strict=True):
            if not isinstance(expression, ir.AffineDimExpr):
                raise Untranslatable(what.op.name, "an output at computed places")
            loops[expression.position] = at
        return cast(dtype, rule(loops))

    return ComputedValue(what.workshop, name, shape, dtype, element)


def _uses_exp2(op: ir.Operation) -> bool:
    """Whether an attention's scores are in units of log2; they are unless it says otherwise."""
    if "decomposition_config" in op.attributes:
        config = ir.DictAttr(op.attributes["decomposition_config"])
        if "use_exp2" in config:
            return bool(ir.BoolAttr(config["use_exp2"]).value)
    return True


def _added(mask: Expr, dtype: str, base_2: bool) -> Expr:
    """A mask as what is added to the scores: a bool (or the low bit of an integer) keeps."""
    if is_float(mask.dtype):
        value = cast(dtype, mask)
        scaled: Expr = value * const(_LOG2_E, dtype) if base_2 else value
        return scaled
    kept = mask if mask.dtype == BOOL else (mask & 1).equal(1)
    return te.select(kept, const(0.0, dtype), const(float("-inf"), dtype))


RULES: dict[str, TensorRule] = {
    "linalg.softmax": _softmax,
    "iree_linalg_ext.attention": _attention,
    "iree_linalg_ext.online_attention": _attention,
}
