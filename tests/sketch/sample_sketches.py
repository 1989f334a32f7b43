"""Sketches for tests of candidates: one that packs, and some that do harm; the task that has them.

Workers import this module, so that the sketches are there where kernels are made.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilewright import te
from tilewright.measure.compile_worker import session
from tilewright.measure.jobs import WorkerFailure, WorkerState
from tilewright.schedule import nest
from tilewright.schedule.expr import Const, index
from tilewright.schedule.lower import Lowered
from tilewright.site import KernelChoice
from tilewright.sketch import generators
from tilewright.sketch.candidate import CompiledKernel, KernelRequest
from tilewright.sketch.candidate_tasks import compile_kernel, compile_kernels
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


class HarmfulSketch(Sketch):
    """A product that goes wrong in the way that its only knob says."""

    name = "test-harm"
    harms = (
        *("wrong", "endless", "behind", "far"),
        *("crash", "hang", "error", "refused", "shape", "code"),
    )

    def __init__(self, site: SiteExpression, target: Target) -> None:
        self.site = site
        knob = ChoiceKnob("harm", self.harms)
        self.space = space_near(self.name, (knob,), (), Configuration.of({"harm": "wrong"}))

    def schedule(self, configuration: Configuration) -> SketchedKernel:
        harm = dict(configuration.items)["harm"]
        a, b = self.site.inputs
        (rows, depth), columns = a.shape, b.shape[1]
        k = te.reduce_axis(depth if harm != "endless" else 1 << 40, "k")
        shape = (rows, columns) if harm != "shape" else (columns, rows)

        def element(i: te.Var, j: te.Var) -> te.Expr:
            return te.sum(a[i % rows, k % depth] * b[k % depth, j % columns], axis=k)

        product = te.compute(shape, element, name="C")
        if harm == "wrong":
            right = product
            product = te.compute(shape, lambda i, j: right[i, j] + 1.0, name="D")
        schedule = te.create_schedule(product)
        if harm == "code":
            for axis in (*schedule[product].op.axis, k):
                schedule[product].unroll(axis)
        match harm:
            case "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "error":
                raise ValueError("a mistake in a sketch")
            case "refused":
                schedule[product].split(k, 0)
        while harm == "hang":
            pass
        row = {"behind": rows, "far": 1 << 31}.get(str(harm))
        return WritingKernel(schedule, (a, b, product), row=row)


@dataclass(frozen=True)
class WritingKernel(SketchedKernel):
    """A kernel that also writes into a row of its result, which it need not have."""

    row: int | None = None

    def lower(self, name: str = "main") -> Lowered:
        lowered = super().lower(name)
        if self.row is None:
            return lowered
        program = lowered.program
        kernel, output = program.kernels[-1], program.outputs[0]
        store = nest.Store(output, (index(self.row), index(5)), Const(1.0, "f32"))
        changed = replace(kernel, body=nest.flat(kernel.body, store))
        return Lowered(replace(program, kernels=(*program.kernels[:-1], changed)))


def harmful(harm: str) -> KernelChoice:
    """A choice of the harmful sketch."""
    return KernelChoice(HarmfulSketch.name, Configuration.of({"harm": harm}))


@contextlib.contextmanager
def _known() -> Iterator[None]:
    known = generators.SKETCHES
    generators.SKETCHES = (*known, PanelsSketch, HarmfulSketch)
    try:
        yield
    finally:
        generators.SKETCHES = known


def compile_sample(state: WorkerState, request: KernelRequest) -> CompiledKernel:
    """Task: as `compile_kernel`, with the sketches of this module."""
    with _known():
        return compile_kernel(state, request)


def compile_samples(
    state: WorkerState, requests: list[KernelRequest]
) -> list[CompiledKernel | WorkerFailure]:
    """Task: as `compile_kernels`, with the sketches of this module."""
    with _known():
        return compile_kernels(state, requests)


def use_other_compilers(state: WorkerState, flags: tuple[str, ...]) -> None:
    """Task: make so many compilers for other flags that a worker keeps none of those before."""
    for more in range(1, 10):
        session(state, (*flags, *["--iree-opt-const-eval=true"] * more))
