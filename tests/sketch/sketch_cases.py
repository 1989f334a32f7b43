"""Sites for tests of sketches, and the check that a sketch's configurations compute them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from nest_evaluator import evaluate
from numpy.typing import NDArray

from tilewright import te
from tilewright.schedule.types import is_float, numpy_type
from tilewright.sketch.interface import SiteExpression, Sketch, SketchedKernel
from tilewright.target import parse_target

# For what is said of one kind of processor, whichever the tests run on.
AVX2 = replace(
    parse_target("cpu", 2),
    **{"vector_bytes": 32, "vector_registers": 16, "l1_bytes": 32 << 10, "l2_bytes": 512 << 10},
)
AVX512 = replace(AVX2, vector_bytes=64, vector_registers=32, l2_bytes=1 << 20)


def site(output: te.Tensor, *inputs: te.Tensor) -> SiteExpression:
    """An expression none of whose inputs can be packed ahead."""
    return SiteExpression(inputs, (False,) * len(inputs), output)


def arrays(expression: SiteExpression, seed: int = 0) -> list[NDArray[Any]]:
    """Random inputs: floats around 0, small integers."""
    rng = np.random.default_rng(seed)
    made = (
        (rng.standard_normal(t.shape) if is_float(t.dtype) else rng.integers(-9, 9, t.shape), t)
        for t in expression.inputs
    )
    return [values.astype(numpy_type(t.dtype)) for values, t in made]


def packed_inputs(kernel: SketchedKernel, inputs: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """The inputs as a kernel takes them."""
    packings = kernel.packings
    return [packings[i].of(a) if i in packings else a for i, a in enumerate(inputs)]


def unscheduled(expression: SiteExpression, inputs: list[NDArray[Any]]) -> NDArray[Any]:
    """What the expression is."""
    schedule = te.create_schedule(expression.output.op)
    program = te.lower(schedule, [*expression.inputs, expression.output]).program
    return evaluate(program, inputs)[0]


def check(sketch: Sketch, expression: SiteExpression, count: int = 4, seed: int = 0) -> None:
    """The default and some random configurations compute the expression, loops in any order."""
    inputs = arrays(expression, seed)
    wanted = unscheduled(expression, inputs)
    rng = np.random.default_rng(seed)
    for configuration in [sketch.space.default, *sketch.space.sample(rng, count)]:
        kernel = sketch.schedule(configuration)
        packed = packed_inputs(kernel, inputs)
        found = evaluate(kernel.lower().program, packed, "random", seed)[0]
        # The same elements in order; a sketch may see more dimensions in them.
        found = found.reshape(wanted.shape)
        np.testing.assert_allclose(
            found,
            wanted,
            rtol=1e-3 if found.dtype == np.float16 else 1e-5,
            atol=1e-5,
            err_msg=str(configuration),
        )
