"""Chains of reductions over rows: what they divide by is divided once for each row."""

from __future__ import annotations

import numpy as np
import pytest
from expression_evaluator import evaluate_expression
from row_cases import layer_norm, softmax
from sketch_cases import arrays, site

from tilewright import te
from tilewright.schedule.expr import Binary
from tilewright.schedule.walk import nodes
from tilewright.sketch.interface import SiteExpression
from tilewright.sketch.row_chain import with_reciprocals
from tilewright.sketch.structure import computed_stages


def divided(expression: te.Tensor) -> list[tuple[int, ...]]:
    """The shapes of what is computed by a division."""
    return [
        op.outputs[0].shape
        for op in computed_stages(expression)
        if any(isinstance(n, Binary) and n.op == "div" for body in op.body for n in nodes(body))
    ]


def quotients(
    *, rounded: bool = False, repeated: bool = False, given: bool = False
) -> SiteExpression:
    """Rows divided by their sums, by what repeats these, or by numbers that are given."""
    x, sizes = te.placeholder((5, 16), "f32", name="x"), te.placeholder((5,), "f32", name="sizes")
    k = te.reduce_axis(16, "k")
    total = te.compute((5,), lambda i: te.sum(x[i, k] * x[i, k], axis=k), name="total")
    if repeated:
        whole = te.compute((5, 16), lambda i, _: total[i], name="whole")
        y = te.compute((5, 16), lambda i, j: x[i, j] / whole[i, j], name="y")
    elif given:
        y = te.compute((5, 16), lambda i, j: x[i, j] / sizes[i] + total[i], name="y")
    else:
        y = te.compute((5, 16), lambda i, j: x[i, j] / total[i], name="y")
    if rounded:
        exact = y
        y = te.compute((5, 16), lambda i, j: te.round(exact[i, j]).astype("i8"), name="rounded")
    return site(y, x, sizes) if given else site(y, x)


@pytest.mark.parametrize(
    ("expression", "shapes"),
    [
        (softmax(5, 16), [(5,)]),
        (softmax(3, 16, 5, axis=1), [(3, 5)]),
        (quotients(), [(5,)]),
        (quotients(repeated=True), [(5,)]),
        # The reference would have other integers.
        (quotients(rounded=True), [(5, 16)]),
        # Of what is given, not computed, it may be that nothing else is exact.
        (quotients(given=True), [(5, 16)]),
        (layer_norm(5, 16), [(5, 1), (5, 1)]),
    ],
)
def test_rows_are_multiplied_with_one_quotient_each(
    expression: SiteExpression, shapes: list[tuple[int, ...]]
) -> None:
    output = with_reciprocals(expression.output)
    assert divided(output) == shapes
    values = [array.astype("f8") for array in arrays(expression)]
    found, wanted = (
        evaluate_expression(expression.inputs, [tensor], values)[0]
        for tensor in (output, expression.output)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-14)


def test_what_stays_is_the_same_expression() -> None:
    expression = layer_norm(5, 16)
    assert with_reciprocals(expression.output) is expression.output
