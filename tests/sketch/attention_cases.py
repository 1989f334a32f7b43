"""Attentions, as importers and the compiler write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sketch_cases import site

from tilewright import te
from tilewright.sketch.interface import SiteExpression


def attention(
    heads: int,
    queries: int,
    keys: int,
    depth: int,
    width: int,
    *,
    late: bool = False,
    mask: bool = False,
    scaled: bool = True,
    transposed: bool = False,
    made: bool = False,
) -> SiteExpression:
    """Heads of queries, keys and values.

    late: the sums divide the result (as attention ops do), not the weights (as a softmax does).
    mask: something is added to the scores. transposed: heads are the second axis of all, and of the
    result, as they come from a projection. made: all three are exponentials of what the site reads.
    """

    def operand(name: str, rows: int, columns: int) -> tuple[te.Tensor, Callable[..., Any]]:
        shape = (rows, heads, columns) if transposed else (heads, rows, columns)
        argument = te.placeholder(shape, "f32", name=name)
        tensor = argument
        if made:
            tensor = te.compute(shape, lambda *at: te.exp(argument[at]), name=f"{name}.made")
        return argument, lambda h, r, c: tensor[r, h, c] if transposed else tensor[h, r, c]

    (q, q_at), (k, k_at) = operand("q", queries, depth), operand("k", keys, depth)
    v, v_at = operand("v", keys, width)
    added = te.placeholder((queries, keys), "f32", name="mask")
    d = te.reduce_axis(depth, "d")
    few, all_ = (heads, queries), (heads, queries, keys)
    scores = te.compute(
        all_, lambda h, i, j: te.sum(q_at(h, i, d) * k_at(h, j, d), axis=d), name="scores"
    )
    if scaled:
        former = scores
        scores = te.compute(all_, lambda h, i, j: former[h, i, j] * depth**-0.5, name="scaled")
    if mask:
        plain = scores
        scores = te.compute(all_, lambda h, i, j: plain[h, i, j] + added[i, j], name="masked")
    a, b, c = (te.reduce_axis(keys, name) for name in "abc")
    top = te.compute(few, lambda h, i: te.max(scores[h, i, a], axis=a), name="top")
    power = te.compute(all_, lambda h, i, j: te.exp(scores[h, i, j] - top[h, i]), name="power")
    total = te.compute(few, lambda h, i: te.sum(power[h, i, b], axis=b), name="total")
    weights = power
    if not late:
        weights = te.compute(all_, lambda h, i, j: power[h, i, j] / total[h, i], name="weights")
    out = (heads, queries, width)
    product = te.compute(
        out, lambda h, i, n: te.sum(weights[h, i, c] * v_at(h, c, n), axis=c), name="product"
    )
    if late:
        sums = product
        product = te.compute(out, lambda h, i, n: sums[h, i, n] / total[h, i], name="y")
    if transposed:
        before = product
        product = te.compute((queries, heads, width), lambda i, h, n: before[h, i, n], name="z")
    return site(product, q, k, v, *([added] if mask else []))


CASES: dict[str, Callable[[], SiteExpression]] = {
    "softmax between products": lambda: attention(2, 9, 7, 5, 6),
    "without a scale": lambda: attention(2, 8, 7, 3, 9, scaled=False),
    "division at the end": lambda: attention(2, 17, 6, 4, 3, late=True),
    "mask": lambda: attention(1, 13, 11, 4, 5, mask=True),
    "whole squares": lambda: attention(1, 16, 9, 16, 5),
    "whole squares, heads second": lambda: attention(2, 32, 5, 16, 3, transposed=True),
    "of what is computed": lambda: attention(2, 16, 9, 16, 5, made=True),
    "of what is computed, heads second": lambda: attention(
        2, 9, 7, 5, 6, transposed=True, made=True
    ),
    "heads second": lambda: attention(3, 10, 9, 4, 5, late=True, transposed=True),
}
