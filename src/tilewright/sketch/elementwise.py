"""Elementwise operations, broadcasts, transposes, slices: everything inlined, one pass."""

from __future__ import annotations

from math import prod

from tilewright.schedule.schedule import create_schedule
from tilewright.schedule.tensor import ComputeOp
from tilewright.schedule.types import bits
from tilewright.sketch.interface import SiteExpression, Sketch, SketchedKernel
from tilewright.space.knobs import ChoiceKnob, TileKnob
from tilewright.space.pipeline import Unfit, space_near
from tilewright.target import Target
from tilewright.trial import Configuration

_PIECES_A_CORE = (1, 2, 4, 8, 16)


class ElementwiseSketch(Sketch):
    """One loop nest over the output, whose outer loops are pieces of parallel work.

    Knobs: `pieces`, how many pieces of work each core has; `vector`, elements in one vector of the
    innermost loop; `unroll`, vectors in a row.
    """

    name = "elementwise"

    def __init__(self, site: SiteExpression, target: Target) -> None:
        stages = create_schedule(site.output.op).stages
        computed = [stage.op for stage in stages if isinstance(stage.op, ComputeOp)]
        if any(op.reduction is not None for op in computed):
            raise Unfit("it reduces")
        if not site.output.shape:
            raise Unfit("it computes one element")
        self._site, self._target = site, target
        lanes = target.lanes(bits(site.output.dtype))
        inner = site.output.shape[-1]
        vectors = TileKnob("vector", tuple(dict.fromkeys((1, lanes // 2, lanes, 2 * lanes))))
        fitting = [v for v in vectors.values if 0 < v <= inner] or [1]
        knobs = (
            TileKnob("pieces", _PIECES_A_CORE),
            vectors.with_values(fitting),
            ChoiceKnob("unroll", (1, 2, 4)),
        )
        start = {"pieces": 4, "vector": max(v for v in fitting if v <= lanes), "unroll": 1}
        self.space = space_near(self.name, knobs, (), Configuration.of(start))

    def schedule(self, configuration: Configuration) -> SketchedKernel:
        """See :meth:`Sketch.schedule`."""
        values = dict(configuration.items)
        vector, unroll, pieces = (int(str(values[name])) for name in ("vector", "unroll", "pieces"))
        schedule = create_schedule(self._site.output.op)
        output = schedule[self._site.output]
        for stage in schedule.stages:
            if isinstance(stage.op, ComputeOp) and stage is not output:
                stage.compute_inline()
        *outer, last = output.op.axis
        width = vector * unroll
        around, inside = output.split(last, min(width, self._site.output.shape[-1]))
        unrolled, lane = output.split(inside, vector)
        loops = output.fuse(*outer, around) if outer else around
        extent = prod(self._site.output.shape[:-1]) * -(-self._site.output.shape[-1] // width)
        part, _ = output.split(loops, nparts=max(1, min(extent, pieces * self._target.cores)))
        output.parallel(part)
        output.unroll(unrolled)
        output.vectorize(lane)
        return SketchedKernel(schedule, (*self._site.inputs, self._site.output))


SKETCHES: tuple[type[Sketch], ...] = (ElementwiseSketch,)
