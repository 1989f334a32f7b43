"""A reduction of a row in the lanes of vectors: used by softmax.py and layer_norm.py."""

from __future__ import annotations

from tilewright import te


def reduce_in_lanes(
    s: te.Schedule, tensor: te.Tensor, consumer: te.Stage, axis: te.IterVar, lanes: int = 64
) -> None:
    """Compute a reduction over one axis at `axis` of `consumer`, `lanes` partial results at once.

    Every lane reduces its own part of the row; 16 lanes and then 4 reduce those, one vector each,
    and the last 4 are reduced one by one. Each step is an `rfactor`.
    """
    (k,) = s[tensor].op.reduce_axis
    for width in (lanes, 16, 4):
        _, lane = s[tensor].split(k, width)
        partial = s.rfactor(tensor, lane)
        across, _ = s[partial].op.axis
        (steps,) = s[partial].op.reduce_axis
        s[partial].reorder(steps, across)
        s[partial].vectorize(across)
        if width < lanes:
            s[partial].unroll(steps)
        s[partial].compute_at(consumer, axis)
        (k,) = s[tensor].op.reduce_axis
    s[tensor].unroll(k)
    s[tensor].compute_at(consumer, axis)
