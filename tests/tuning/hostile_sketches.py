"""A sketch that does harm, and the task of compile workers that has it.

Workers import this module, so that the sketch is there where kernels are made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tilewright import te
from tilewright.measure.jobs import WorkerFailure, WorkerState
from tilewright.sketch import generators
from tilewright.sketch.candidate import CompiledKernel, KernelRequest
from tilewright.sketch.candidate_tasks import compile_kernel, compile_kernels
from tilewright.sketch.interface import SiteExpression, Sketch, SketchedKernel
from tilewright.space.knobs import ChoiceKnob
from tilewright.space.pipeline import space_near
from tilewright.target import Target
from tilewright.trial import Configuration


class HostileSketch(Sketch):
    """Computes something else, or dies, as its knob says."""

    name = "hostile"

    def __init__(self, site: SiteExpression, target: Target) -> None:
        self.site = site
        knobs = (ChoiceKnob("does", ("die", "lie")),)
        self.space = space_near(self.name, knobs, (), Configuration.of({"does": "lie"}))

    def schedule(self, configuration: Configuration) -> SketchedKernel:
        """See :meth:`Sketch.schedule`."""
        x = self.site.inputs[0]
        if dict(configuration.items)["does"] == "die":
            raise RuntimeError("it does harm")
        made = te.compute(x.shape, lambda i, j: x[i, j] + 1.0, name="lie")
        return SketchedKernel(te.create_schedule(made), (*self.site.inputs, made))


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    known = generators.SKETCHES
    generators.SKETCHES = (HostileSketch,)
    try:
        yield
    finally:
        generators.SKETCHES = known


def compile_hostile(state: WorkerState, request: KernelRequest) -> CompiledKernel:
    """Task: as `compile_kernel`, with this sketch alone."""
    with _alone():
        return compile_kernel(state, request)


def compile_hostile_together(
    state: WorkerState, requests: list[KernelRequest]
) -> list[CompiledKernel | WorkerFailure]:
    """Task: as `compile_kernels`, with this sketch alone."""
    with _alone():
        return compile_kernels(state, requests)
