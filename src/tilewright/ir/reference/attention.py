"""iree_linalg_ext.attention and online_attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from iree.compiler import ir

from tilewright.ir.reference.access import (
    Box,
    OperandAccess,
    boxes,
    index_array,
    indexing_maps,
    loop_sizes,
)
from tilewright.ir.reference.body import Body, Lookup
from tilewright.ir.reference.contraction import sum_of_products
from tilewright.ir.reference.elements import Array, element_of
from tilewright.ir.reference.tensors import Handler

_LOG2E = 1.4426950408889634
# The running maximum starts at the lowest finite f32, so that a fully masked row is 0/0,
# not inf-inf.
_LOWEST = -3.4028234663852886e38
# Scores that are held at once (a handful of arrays of 16 MB).
_SCORES = 1 << 21


@dataclass(frozen=True)
class Roles:
    """The loops of an attention: Q is batch, m, k1; K is batch, k2, k1; V is batch, k2, n."""

    batch: frozenset[int]
    m: frozenset[int]
    k1: frozenset[int]
    k2: frozenset[int]

    @staticmethod
    def of(accesses: Sequence[OperandAccess], outputs: int) -> Roles:
        """The roles of the loops, from which operands they index.

        Args:
            accesses: of all operands, outputs last.
            outputs: how many there are.
        """
        q, k, v = (a.uses for a in accesses[:3])
        o = accesses[-outputs].uses
        batch = (q & v) | (k & o)
        k1 = (q & k) - batch
        return Roles(batch, q - batch - k1, k1, k - batch - k1)

    @property
    def scores(self) -> list[int]:
        """Loops of the score matrix in the order of its axes: what the region's indices mean."""
        return [*sorted(self.batch), *sorted(self.m), *sorted(self.k2)]


def attention_lengths(op: ir.Operation, shapes: Sequence[tuple[int, ...]]) -> tuple[int, int]:
    """Lengths of the two sums of an attention: over the head dimension, over the sequence.

    Args:
        op: the attention.
        shapes: of its operands.
    """
    accesses = [OperandAccess(map_) for map_ in indexing_maps(op)]
    outputs = len(op.results)
    roles = Roles.of(accesses, outputs)
    sizes = loop_sizes(accesses, shapes, op.name)
    return (
        int(np.prod([sizes[d] for d in roles.k1], dtype=int)),
        int(np.prod([sizes[d] for d in roles.k2], dtype=int)),
    )


def _evaluate(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    """softmax(region(scale Q K^T) + mask) V, all sums in float64.

    As the op is defined by its decomposition: the scores are in units of log2 (unless online
    attention's configuration says otherwise), which the region and the running maximum see.
    """
    accesses = [OperandAccess(map_) for map_ in indexing_maps(op)]
    outputs = len(op.results)
    arrays = [np.asarray(x, order="C") for x in operands]
    sizes = loop_sizes(accesses, [x.shape for x in arrays], op.name)
    roles = Roles.of(accesses, outputs)
    body = Body(op.regions[0].blocks[0], captured)
    results = [np.array(x, order="C") for x in arrays[-outputs:]]
    # Rows of the score matrix are independent, so they are worked off a part at a time.
    rows = [n if d in roles.batch | roles.m else 1 for d, n in enumerate(sizes)]
    row_length = int(np.prod([sizes[d] for d in roles.k2], dtype=int))
    for part in boxes(rows, max(1, _SCORES // max(1, row_length))):
        box = tuple(
            span if d in roles.batch | roles.m else (0, n)
            for d, (span, n) in enumerate(zip(part, sizes, strict=True))
        )
        values = _rows(
            op, roles, body, [a.view(x, box) for a, x in zip(accesses, arrays, strict=True)], box
        )
        for access, result, value in zip(accesses[-outputs:], results, values, strict=True):
            span = tuple(s if d in access.uses else (0, 1) for d, s in enumerate(box))
            access.view(result, span, writeable=True)[...] = value
    return results


def _rows(op: ir.Operation, roles: Roles, body: Body, views: list[Array], box: Box) -> list[Array]:
    """The results for the rows in `box`, as arrays with one axis per loop."""
    online = len(op.results) == 3
    sizes = tuple(hi - lo for lo, hi in box)
    query, key, value, scale = views[:4]
    base2 = _uses_exp2(op)
    factor = scale * (_LOG2E if base2 else 1.0)
    scores = sum_of_products([query, key], sizes, [d in roles.k1 for d in range(len(sizes))])

    def region(x: Array) -> Array:
        return body.evaluate(
            body.yields, {0: x}, lambda axis: index_array(roles.scores[axis], box, len(box))
        )[0]

    # Scores of 8-bit queries are scaled after the region, to keep the product's range.
    narrow = element_of(op.operands[0].type).width <= 8
    scores = region(scores) * factor if narrow else region(scores * factor)
    if len(views) - len(op.results) == 5:
        scores = scores + _additive(views[4], base2)
    power = np.exp2 if base2 else np.exp
    axes = tuple(sorted(roles.k2))
    over_k2 = [d in roles.k2 for d in range(len(sizes))]
    best = scores.max(axis=axes, keepdims=True)
    if not online:
        weights = power(scores - np.maximum(best, _LOWEST))
        weights = weights / weights.sum(axis=axes, keepdims=True)
        return [sum_of_products([weights, value], sizes, over_k2)]
    old, old_best, old_sum = views[-3:]
    best = np.maximum(best, old_best)
    decay = power(old_best - best)
    weights = power(scores - best)
    total = decay * old_sum + weights.sum(axis=axes, keepdims=True)
    return [decay * old + sum_of_products([weights, value], sizes, over_k2), best, total]


def _uses_exp2(op: ir.Operation) -> bool:
    if "decomposition_config" not in op.attributes:
        return True
    config = ir.DictAttr(op.attributes["decomposition_config"])
    return bool(ir.BoolAttr(config["use_exp2"]).value) if "use_exp2" in config else True


def _additive(mask: Array, base2: bool) -> Array:
    """A mask as what is added to the scores: a boolean (or the low bit of an integer) keeps."""
    if mask.dtype == np.float64:
        return mask * (_LOG2E if base2 else 1.0)
    chosen = mask if mask.dtype == np.bool_ else (mask & 1).astype(np.bool_)
    return np.where(chosen, 0.0, -np.inf)


HANDLERS: dict[str, Handler] = {
    "iree_linalg_ext.attention": _evaluate,
    "iree_linalg_ext.online_attention": _evaluate,
}
