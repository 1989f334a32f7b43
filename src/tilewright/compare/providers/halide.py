"""Halide, scheduled by the autoscheduler that its wheel carries."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.compare.comparison_options import Budget, Place
from tilewright.compare.providers.interface import Built, PreparedTask, Provider, Threads
from tilewright.compare.workloads import ComparedWorkload, ProviderTask
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

    def prepare(
        self, task: ProviderTask, arguments: Sequence[Any], built: Built, budget: Budget
    ) -> PreparedTask:
        hl = self._halide
        operation = task.workload.operation
        assert operation is not None
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
    name = operation.kind.name
    if name.startswith("conv2d"):
        return _convolution(hl, operation, inputs)
    x, y, b = hl.Var("x"), hl.Var("y"), hl.Var("b")
    batched = name == "batch_matmul"
    place = (x, y, b) if batched else (x, y)
    k = hl.RDom([(0, operation["k"])], "k")
    more = (b,) if batched else ()
    lhs = (y, k.x) if operation.transposed(0) else (k.x, y)
    rhs = (k.x, x) if operation.transposed(1) else (x, k.x)
    product = hl.Func("product")
    product[place] = hl.f32(0)
    product[place] += inputs[0][(*lhs, *more)] * inputs[1][(*rhs, *more)]
    return _finished(hl, operation, product, place, inputs[2:])


def _convolution(hl: Any, operation: Operation, inputs: Sequence[Any]) -> Any:
    o = operation
    c, x, y, n = (hl.Var(v) for v in "cxyn")
    image = inputs[0]
    if o["ph"] or o["pw"]:
        bounds = [(0, o["ci"]), (0, o["w"]), (0, o["h"])]
        image = hl.BoundaryConditions.constant_exterior(inputs[0], hl.f32(0), bounds)
    window = hl.RDom([(0, o["ci"]), (0, o["kw"]), (0, o["kh"])], "window")
    convolved = hl.Func("convolved")
    place = (c, x, y, n)
    convolved[place] = hl.f32(0)
    convolved[place] += (
        inputs[1][c, window.x, window.y, window.z]
        * image[
            window.x,
            x * o["sw"] + window.y * o["dw"] - o["pw"],
            y * o["sh"] + window.z * o["dh"] - o["ph"],
            n,
        ]
    )
    return _finished(hl, operation, convolved, place, inputs[2:])


def _finished(hl: Any, operation: Operation, value: Any, place: Any, bias: Sequence[Any]) -> Any:
    """With the bias along the innermost axis, and relu, where the kind has them."""
    if not bias:
        return value
    result = hl.Func("result")
    total = value[place] + bias[0][place[0]]
    result[place] = hl.max(total, hl.f32(0)) if operation.kind.name.endswith("relu") else total
    return result
