"""Sketches for tests of candidates: one that packs, and some that do harm; the task that has them.

Workers import this module, so that the sketches are there where kernels are made.
"""

from __future__ import annotations

from tilewright import te
from tilewright.measure.jobs import WorkerState
from tilewright.site import KernelChoice
from tilewright.sketch import generators
from tilewright.sketch.candidate import CompiledKernel, KernelRequest
from tilewright.sketch.candidate_tasks import compile_kernel
from tilewright.sketch.interface import SiteExpression, Sketch, SketchedKernel
from tilewright.sketch.packing import Packing
from tilewright.space.knobs import ChoiceKnob
from tilewright.space.pipeline import space_near
from tilewright.target import Target
from tilewright.trial import Configuration

OUTSIDE, INSIDE = "outside", "inside"


def product(rows: int, columns: int, depth: int, constant: bool = True) -> SiteExpression:
    """A site: the product of two matrices, the second of which may be a constant."""
    a = te.placeholder((rows, depth), "f32", name="A")
    b = te.placeholder((depth, columns), "f32", name="B")
    k = te.reduce_axis(depth, "k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return SiteExpression((a, b), (False, constant), c)


class PanelsSketch(Sketch):
    """A product with its second operand in panels: packed outside, or by a dispatch of its own."""

    name = "test-panels"

    def __init__(self, site: SiteExpression, target: Target) -> None:
        self.site = site
        knobs = (
            ChoiceKnob("columns", (8, 16)),
            ChoiceKnob("rows", (2, 4)),
            ChoiceKnob("packed", (OUTSIDE, INSIDE)),
        )
        self.space = space_near(self.name, knobs, (), _configuration(16, 4, OUTSIDE))

    def schedule(self, configuration: Configuration) -> SketchedKernel:
        values = dict(configuration.items)
        rows, columns = int(str(values["rows"])), int(str(values["columns"]))
        a, b = self.site.inputs
        depth, width = b.shape
        k = te.reduce_axis(depth, "k")
        packings = {}
        if values["packed"] == OUTSIDE:
            packing = Packing((0, 0), ((depth,), (width // columns, columns)), (1, 0, 2))
            packings[1] = packing
            given = panels = te.placeholder(packing.shape, "f32", name="panels")
        else:
            given = b
            panels = te.compute(
                (width // columns, depth, columns),
                lambda p, r, c: b[r, p * columns + c],
                name="panels",
            )
        product = te.compute(
            (a.shape[0], width),
            lambda i, j: te.sum(a[i, k] * panels[j // columns, k, j % columns], axis=k),
            name="C",
        )
        schedule = te.create_schedule(product)
        i, j = schedule[product].op.axis
        outer, row = schedule[product].split(i, rows)
        panel, column = schedule[product].split(j, columns)
        schedule[product].reorder(outer, panel, k, row, column)
        schedule[product].unroll(row)
        schedule[product].vectorize(column)
        schedule[product].parallel(outer)
        return SketchedKernel(schedule, (a, given, product), packings)


def _configuration(columns: int, rows: int, packed: str) -> Configuration:
    return Configuration.of({"columns": columns, "rows": rows, "packed": packed})


def panels(columns: int, rows: int, packed: str) -> KernelChoice:
    """A choice of the sketch of panels."""
    return KernelChoice(PanelsSketch.name, _configuration(columns, rows, packed))


def compile_sample(state: WorkerState, request: KernelRequest) -> CompiledKernel:
    """Task: as `compile_kernel`, with the sketches of this module."""
    known = generators.SKETCHES
    generators.SKETCHES = (*known, PanelsSketch)
    try:
        return compile_kernel(state, request)
    finally:
        generators.SKETCHES = known
