"""Functions of f32 written by codegen: how close they are, also where the result is no number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tilewright import te

# Arguments, and units in the last place.
CASES: dict[str, tuple[Any, float, float, float]] = {
    "exp": (math.exp, -86.9, 88.7, 1.0),
    "exp2": (lambda x: 2.0**x, -125.0, 127.9, 1.0),
    "erf": (math.erf, -6.0, 6.0, 6.0),
}


@pytest.mark.parametrize("name", CASES)
def test_function_is_close(name: str) -> None:
    reference, low, high, units = CASES[name]
    size = 20_011
    x = te.placeholder((size,), "f32", name="x")
    y = te.compute((size,), lambda i: getattr(te, name)(x[i]), name="y")
    s = te.create_schedule(y)
    s[y].vectorize(y.op.axis[0])
    values = np.linspace(low, high, size, dtype="f")
    special = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e30, -1e30]
    values[: len(special)] = special
    found = te.build(s, [x, y], threads=1)(values)
    ends = (-1.0, 1.0) if name == "erf" else (0.0, math.inf)
    zero = 0.0 if name == "erf" else 1.0
    wanted = [math.nan, ends[1], ends[0], zero, zero, ends[1], ends[0]]
    np.testing.assert_array_equal(found[: len(special)], wanted)
    exact = np.array([reference(float(v)) for v in values[len(special) :]])
    distance = np.abs(found[len(special) :] - exact)
    assert (distance <= units * np.spacing(np.abs(exact).astype("f"))).all()
