"""Reductions of few, long rows: each row is reduced in parts by all workers, then the parts.

A sum over a whole tensor, a softmax of one row, the statistics of a few channels: stages follow
each other as kernels of their own, as each needs all of the one before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from tilewright.schedule.schedule import Schedule, create_schedule
from tilewright.schedule.stage import Stage
from tilewright.schedule.tensor import REDUCE
from tilewright.sketch.access import (
    AccessPattern,
    element_bits,
    inline_all,
    is_costly,
    joined_tail,
    reduce_order,
    row_scalars,
    worth_keeping,
)
from tilewright.sketch.interface import SiteExpression, Sketch, SketchedKernel
from tilewright.sketch.row_chain import check_reuse, factored, reduce_in_lanes
from tilewright.sketch.structure import extent
from tilewright.space.arrays import FloatArray
from tilewright.space.constraints import Constraint
from tilewright.space.knobs import BoolKnob, TileKnob
from tilewright.space.pipeline import Unfit, space_near
from tilewright.target import Target
from tilewright.trial import Configuration, Value

# Rows a core from which on rows alone are work enough.
_MOST_ROWS_A_CORE = 8
_PIECES_A_CORE = (1, 2, 4, 8)
# Seconds: a piece of parallel work, a kernel, a vector, a function of it.
_PIECE_S, _KERNEL_S, _VECTOR_S, _FUNCTION_S = 1e-6, 5e-6, 0.5e-9, 4e-9


class SplitRowsSketch(Sketch):
    """Partial reductions in parallel, reduced in turn by one worker.

    Knobs: `pieces`, how many parts each core reduces; `vectors`, registers of partial results;
    `keep`, whether costly values that are used twice are kept in memory or computed again.
    """

    name = "split-rows"

    def __init__(self, site: SiteExpression, target: Target) -> None:
        self._site, self._target = site, target
        chain = _SplitChain(site, keep=True)
        if not chain.reductions:
            raise Unfit("it reduces nothing")
        most = max(prod(s.op.output(0).shape) for s in chain.reductions)
        if most > _MOST_ROWS_A_CORE * target.cores:
            raise Unfit(f"{most} rows are work for {target.cores} cores")
        for stage in chain.reductions:
            check_reuse(chain.patterns[stage])
        self._chain = chain
        self._lanes = min(target.lanes(element_bits(p)) for p in chain.patterns.values())
        self._length = max(prod(map(extent, stage.op.reduce_axis)) for stage in chain.reductions)
        if self._length < 4 * self._lanes * target.cores:
            raise Unfit(f"rows of {self._length} elements are not split")
        registers = target.vector_registers
        knobs = (
            TileKnob("pieces", _PIECES_A_CORE),
            TileKnob("vectors", tuple(v for v in (1, 2, 4, 8, 16) if v < registers)),
            BoolKnob("keep", effect=bool(chain.whole)),
        )
        start: dict[str, Value] = {"pieces": 1, "vectors": min(8, registers // 2), "keep": True}
        rule = Constraint(
            "part",
            ("pieces", "vectors"),
            lambda p, v: (p == 1) | (p * v * self._lanes * target.cores <= self._length),
            lambda p, v: (
                f"{p * target.cores} parts of {v} vectors of {self._lanes} elements, in a "
                f"row of {self._length}"
            ),
            vectorised=True,
        )
        self.space = space_near(
            self.name, knobs, (rule,), Configuration.of(start), prior_many=self._prior_many
        )

    def _prior_many(self, configurations: Sequence[Configuration]) -> FloatArray:
        return np.array([-np.log(self._seconds(dict(c.items))) for c in configurations])

    def _seconds(self, values: Mapping[str, Value]) -> float:
        """Of a configuration, estimated."""
        pieces, vectors = int(str(values["pieces"])), int(str(values["vectors"]))
        cores, total = self._target.cores, 0.0
        for stage, pattern in self._chain.patterns.items():
            readers = len(self._chain.schedule.readers(stage))
            again = readers if stage in self._chain.whole and not values["keep"] else 1
            vector = _VECTOR_S * (1 + 1 / vectors) + any(map(is_costly, pattern.body)) * _FUNCTION_S
            work = prod(map(extent, pattern.axes)) / self._lanes * vector * again
            total += work / cores + pieces * _PIECE_S + _KERNEL_S
        return total

    def schedule(self, configuration: Configuration) -> SketchedKernel:
        """See :meth:`Sketch.schedule`."""
        values = dict(configuration.items)
        chain = _SplitChain(self._site, bool(values["keep"]))
        pieces = int(str(values["pieces"])) * self._target.cores
        for stage, pattern in chain.patterns.items():
            lanes = self._target.lanes(element_bits(pattern))
            if stage.compute.reduction is not None:
                vectors = int(str(values["vectors"]))
                _reduction(chain.schedule, stage, pattern, pieces, lanes, vectors)
            elif prod(stage.op.output(0).shape) > 4 * lanes:
                _elementwise(stage, pattern, pieces)
        return SketchedKernel(chain.schedule, (*self._site.inputs, self._site.output))


class _SplitChain:
    """A schedule, without loops yet: reductions, stages that are kept, the output."""

    def __init__(self, site: SiteExpression, keep: bool) -> None:
        self.schedule = create_schedule(site.output.op)
        output = self.schedule[site.output]
        if output.compute.reduction is not None:
            self.schedule.cache_write(site.output, "global")
        few = row_scalars(self.schedule)
        self.whole = [s for s in worth_keeping(self.schedule) if s not in few] if keep else []
        self.patterns = inline_all(self.schedule, self.whole)
        self.reductions = [s for s in self.patterns if s.compute.reduction is not None]


def _reduction(
    schedule: Schedule,
    stage: Stage,
    pattern: AccessPattern,
    pieces: int,
    lanes: int,
    vectors: int,
) -> None:
    """Parts of the reduced axes in parallel, each in vectors along or across rows; then the parts
    in turn."""
    axes = reduce_order(pattern)
    data = list(stage.op.axis)
    largest = pattern.largest
    near = [a for a in data if largest is not None and pattern.step(largest, a) == 1]
    stage.reorder(*data, *axes)
    count = joined_tail(pattern, axes)
    tail = axes[len(axes) - count :]
    inner = stage.fuse(*tail) if count > 1 else tail[0]
    whole = count == len(axes)
    length = prod(map(extent, tail))
    divided, size = (inner, length) if whole else (axes[0], extent(axes[0]))
    part, _ = stage.split(divided, nparts=min(pieces, size))
    parts = factored(schedule, stage, part)
    reduced = [leaf for leaf in parts.leaf_iter_vars if leaf.kind == REDUCE]
    across, *others = parts.op.axis
    if near and extent(near[0]) > 1:
        vector = others.pop(data.index(near[0]))
        around, within = parts.split(vector, lanes * min(vectors, 4))
        parts.reorder(across, *others, around, *reduced, within)
        parts.vectorize(within)
        others.append(around)
        stage.reorder(*(a for a in data if a is not near[0]), *stage.op.reduce_axis, near[0])
        stage.vectorize(near[0])
    place = parts.fuse(across, *others) if others else across
    parts.parallel(place)
    if near and extent(near[0]) > 1:
        return
    steps = -(-size // min(pieces, size)) if whole else length
    for partial in reduce_in_lanes(schedule, parts, reduced[-1], steps, lanes, vectors):
        partial.compute_at(parts, place)


def _elementwise(stage: Stage, pattern: AccessPattern, pieces: int) -> None:
    """A stage as large as what is reduced, in pieces."""
    axes = stage.op.axis
    count = joined_tail(pattern, axes)
    outer, tail = axes[: len(axes) - count], axes[len(axes) - count :]
    inner = stage.fuse(*tail) if count > 1 else tail[0]
    rows = prod(map(extent, outer))
    part, inside = stage.split(inner, nparts=max(1, -(-pieces // rows)))
    shared = stage.fuse(*outer, part) if outer else part
    stage.parallel(shared)
    stage.vectorize(inside)


SKETCHES: tuple[type[Sketch], ...] = (SplitRowsSketch,)
