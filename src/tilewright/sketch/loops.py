"""The rule for what no other rule is for: every stage's own loops, plain and right."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.schedule.schedule import create_schedule
from tilewright.schedule.stage import Stage
from tilewright.sketch.access import (
    AccessPattern,
    computed,
    element_bits,
    inline_all,
    worth_keeping,
)
from tilewright.sketch.interface import SiteExpression, Sketch, SketchedKernel
from tilewright.space.knobs import TileKnob
from tilewright.space.pipeline import space_near
from tilewright.target import Target
from tilewright.trial import Configuration

_PIECES_A_CORE = (1, 2, 4, 8, 16)


class LoopsSketch(Sketch):
    """Each reduction, and each costly stage that is read more than once, is computed as a whole
    before its readers: outer loops in pieces, the last axis of the result in vectors.

    Knobs: `pieces`, how many pieces of work each core has; `vectors`, registers of results that are
    computed together.
    """

    name = "loops"

    def __init__(self, site: SiteExpression, target: Target) -> None:
        self._site, self._target = site, target
        knobs = (
            TileKnob("pieces", _PIECES_A_CORE),
            TileKnob("vectors", tuple(v for v in (1, 2, 4, 8) if v < target.vector_registers)),
        )
        start = Configuration.of({"pieces": 4, "vectors": 4})
        self.space = space_near(self.name, knobs, (), start)

    def schedule(self, configuration: Configuration) -> SketchedKernel:
        """See :meth:`Sketch.schedule`."""
        values = dict(configuration.items)
        schedule = create_schedule(self._site.output.op)
        kept = worth_keeping(schedule)
        patterns = inline_all(schedule, kept)
        for stage in computed(schedule):
            if stage in patterns:
                self._loops(stage, patterns[stage], values)
        return SketchedKernel(schedule, (*self._site.inputs, self._site.output))

    def _loops(self, stage: Stage, pattern: AccessPattern, values: Mapping[str, object]) -> None:
        *outer, last = stage.op.axis or (None,)
        if last is None:
            return
        extent = last.dom.extent if last.dom else 1
        lanes = self._target.lanes(element_bits(pattern)) * int(str(values["vectors"]))
        around, lane = stage.split(last, min(extent, lanes))
        stage.reorder(*outer, around, *stage.op.reduce_axis, lane)
        fused = stage.fuse(*outer, around) if outer else around
        piece, _ = stage.split(fused, nparts=int(str(values["pieces"])) * self._target.cores)
        stage.parallel(piece)
        stage.vectorize(lane)
