"""Kernels reach the sites that they are for through plain `iree-compile`, and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernel_specs import (
    PRODUCT,
    Compiler,
    function,
    plain_kernel,
    pointwise,
    product,
    product_kernel,
    programs,
    random,
    same,
    spec_kernel,
    spec_of,
)
from tilewright import te
from tilewright.sketch.interface import SketchedKernel

X, W, B = random(24, 16), random(16, 32, seed=1), random(32, seed=2)


def constant(name: str, values: np.ndarray) -> str:
    numbers = np.array2string(values, separator=",", threshold=10**6, floatmode="unique")
    return f"""
      %{name} = arith.constant dense<{numbers}>
        : tensor<{"x".join(map(str, values.shape))}xf32>"""


@pytest.fixture
def compiler(tmp_path: Path) -> Compiler:
    return Compiler(tmp_path)


TWICE = programs(
    [
        constant("w", W),
        constant("b", B),
        product("y", "%x", "%w", "%b"),
        product("z", "%x2", "%w", "%b"),
        """
      %t = arith.subf %y, %z : tensor<24x32xf32>""",
    ],
    "%x: tensor<24x16xf32>, %x2: tensor<24x16xf32>",
    "%t",
    "tensor<24x32xf32>",
)


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "as it is"])
def test_a_kernel_reaches_each_occurrence(compiler: Compiler, packed: bool) -> None:
    spec = spec_of(spec_kernel("dense", PRODUCT, product_kernel(packed)))
    assert compiler.dispatched(TWICE, spec) == {"dense": 2}
    assert not compiler.dispatched(TWICE, None)
    other = random(24, 16, seed=3)
    wanted = np.maximum(X @ W + B, 0) - np.maximum(other @ W + B, 0)
    same(*compiler.run(TWICE, spec, X, other), wanted)


SQUARE = [
    "\n      %six = arith.constant 6.0 : f32\n      %half = arith.constant 1.5 : f32",
    pointwise(
        "y",
        "%x",
        """%m = arith.mulf %p, %q : f32
        %n = arith.subf %half, %m : f32
        %r = arith.minimumf %n, %six : f32""",
        inputs=2,
    ),
    """
      %z = tensor.pad %y low[0, 1] high[0, 1] {
      ^bb0(%i: index, %j: index):
        tensor.yield %six : f32
      } : tensor<24x32xf32> to tensor<24x34xf32>""",
]


def square_kernel() -> SketchedKernel:
    x = te.placeholder((24, 32), "f32", name="x")
    y = te.compute((24, 32), lambda i, j: te.minimum(1.5 - x[i, j] * x[i, j], 6.0), name="y")
    inside = lambda j: te.all(j >= 1, j < 33)  # noqa: E731
    six = te.const(6.0, "f32")
    z = te.compute((24, 34), lambda i, j: te.if_then_else(inside(j), y[i, j - 1], six), name="z")
    return plain_kernel(x, z)


CHANGES = {
    "": "",
    "1.5 : f32": "1.25 : f32",
    "6.0 : f32": "7.0 : f32",
    "arith.subf %half, %m": "arith.subf %m, %half",
    "arith.mulf %p, %q": "arith.mulf %p, %p",
    "arith.mulf": "arith.addf",
    "subf %half": "subf %six",
    "%x, %x": "%x, %other",
    "tensor.yield %six": "tensor.yield %half",
    "low[0, 1] high[0, 1]": "low[0, 2] high[0, 0]",
    "minimumf": "minnumf",
    "minimumf %n, %six : f32": "minimumf %n, %six fastmath<fast> : f32",
}


def test_constants_bodies_and_operands_are_compared(compiler: Compiler) -> None:
    site = function("%x: tensor<24x32xf32>", "%z", "tensor<24x34xf32>", *SQUARE)
    spec = spec_of(spec_kernel("square", site, square_kernel()))
    inputs = "%x: tensor<24x32xf32>, %other: tensor<24x32xf32>"
    program = "".join(
        programs(SQUARE, inputs, "%z", "tensor<24x34xf32>", f"f{number}").replace(old, new)
        for number, (old, new) in enumerate(CHANGES.items())
    )
    assert compiler.dispatched(program, spec) == {"square": 1}
    given = random(24, 32), random(24, 32, seed=5)
    names = [f"f{number}" for number in range(len(CHANGES))]
    with_spec, without = (compiler.run(program, one, *given, main=names) for one in (spec, None))
    for found, wanted in zip(with_spec, without, strict=True):
        same(found, wanted)
    same(with_spec[0][:, 1:-1], np.minimum(1.5 - given[0] ** 2, 6))
