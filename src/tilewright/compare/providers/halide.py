"""Halide, scheduled by the autoscheduler that its wheel carries."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.compare.comparison_options import Place
from tilewright.compare.providers.interface import PreparedTask, PrepareRequest, Provider, Threads
from tilewright.compare.workloads import ComparedWorkload
from tilewright.kernels.contractions import Contraction
from tilewright.kernels.operation import Operation
from tilewright.target import Target

_AUTOSCHEDULER = "Adams2019"
_KINDS = ("matmul", "matmul_bias", "matmul_bias_relu", "batch_matmul", "conv2d", "conv2d_bias_relu")


class Halide(Provider):
    """The algorithm in Halide's words, scheduled by Adams2019, compiled in process."""

    name = "halide"
    about = f"Halide with its autoscheduler {_AUTOSCHEDULER}"
    modules = ("halide",)
    pip = "halide"

    def reason_against(self, workload: ComparedWorkload, target: Target) -> str:
        operation = workload.operation
        if operation is None:
            return "Halide runs no programs"
        if operation.kind.name not in _KINDS:
            return f"no Halide algorithm is written here for {operation.kind.name}"
        if operation.variant.startswith("nchw"):
            return "no Halide algorithm is written here for images in nchw"
        if operation.types.name != "f32":
            return "the Halide algorithms here are written for f32"
        return ""

    def open(self, place: Place) -> None:
        import halide

        self._halide: Any = halide
        self._count = place.threads
        library = f"libautoschedule_{_AUTOSCHEDULER.lower()}.so"
        plugin = next(Path(halide.__file__).parent.rglob(library), None)
        if plugin is None:
            raise RuntimeError(f"this halide package has no autoscheduler {_AUTOSCHEDULER}")
        halide.load_plugin(str(plugin))

    def version(self) -> str:
        from tilewright.toolchain import installed_version

        return f"halide {installed_version('halide')} ({_AUTOSCHEDULER})"

    def threads(self) -> Threads:
        told = os.environ.get("HL_NUM_THREADS", "")
        return Threads(int(told) if told.isdigit() else None, "HL_NUM_THREADS")

    def prepare(self, request: PrepareRequest, arguments: Sequence[Any]) -> PreparedTask:
        hl = self._halide
        operation = request.operation
        # Axes are named from the innermost, as Halide numbers them: [m, k] of NumPy is (k, m).
        parameters = [
            hl.ImageParam(hl.Float(32), a.ndim, f"in{i}") for i, a in enumerate(arguments)
        ]
        for parameter, array in zip(parameters, arguments, strict=True):
            for axis, size in enumerate(reversed(array.shape)):
                parameter.set_estimate(axis, 0, size) if hasattr(
                    parameter, "set_estimate"
                ) else parameter.dim(axis).set_estimate(0, size)
        result = _algorithm(hl, operation, parameters)
        shape = operation.result.shape or ()
        for axis, size in enumerate(reversed(shape)):
            result.set_estimate(result.args()[axis], 0, size)
        pipeline = hl.Pipeline(result)
        target = hl.get_jit_target_from_environment()
        pipeline.apply_autoscheduler(
            target,
            hl.AutoschedulerParams(_AUTOSCHEDULER, {"parallelism": str(self._count)}),
        )
        out = np.empty(shape, np.float32)
        buffers = [hl.Buffer(a) for a in arguments]
        for parameter, buffer in zip(parameters, buffers, strict=True):
            parameter.set(buffer)
        into = hl.Buffer(out)
        pipeline.compile_jit(target)
        return PreparedTask(
            lambda: pipeline.realize(into),
            lambda _: [out],
            kept=(pipeline, parameters, buffers, into),
        )


def _algorithm(hl: Any, operation: Operation, inputs: Sequence[Any]) -> Any:
    """The function that computes an operation."""
    o, kind = operation, operation.kind
    assert isinstance(kind, Contraction)
    operands, padding = list(inputs[:2]), kind.padding(o)
    lhs, rhs, result = o.axes
    if any(padding):
        # The outermost axis, the batch, has no bounds to leave.
        bounds = [(0, kind.extent(o, axis)) for axis in reversed(lhs[1:])]
        operands[0] = hl.BoundaryConditions.constant_exterior(operands[0], hl.f32(0), bounds)
    # Sums go over memory in its order, as the first operand has it.
    inner = [kind.windows[a].window if a in kind.windows else a for a in reversed(lhs)]
    reduced = [a for a in inner if a in kind.reduced(o)]
    domain = hl.RDom([(0, kind.extent(o, a)) for a in reduced], "window")
    at = {axis: hl.Var(axis) for axis in result}
    place = tuple(at[axis] for axis in reversed(result))
    at |= dict(zip(reduced, (domain.x, domain.y, domain.z, domain.w), strict=False))
    for axis, w in kind.windows.items():
        at[axis] = at[w.result] * o[w.stride] + at[w.window] * o[w.dilation] - o[w.padding]
    product = hl.Func("product")
    product[place] = hl.f32(0)
    product[place] += (
        operands[0][tuple(at[a] for a in reversed(lhs))]
        * operands[1][tuple(at[a] for a in reversed(rhs))]
    )
    if not kind.steps:
        return product
    finished = hl.Func("result")
    total = product[place] + inputs[2][at[kind.channel]]
    finished[place] = hl.max(total, hl.f32(0)) if "relu" in kind.steps else total
    return finished


PROVIDERS: tuple[type[Provider], ...] = (Halide,)
