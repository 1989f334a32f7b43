"""Random schedules through the compiler: the machine code computes the unscheduled numbers."""

from __future__ import annotations

import os
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nest_evaluator import evaluate
from random_schedules import Scheduler, expression

from tilewright import te
from tilewright.schedule.types import numpy_type

COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}
quick = settings(max_examples=5, **COMMON)
long = settings(max_examples=int(os.environ.get("TILEWRIGHT_BUILDS", "250")), **COMMON)


def check(seed: int, gpu: bool) -> None:
    rng = Random(seed)
    # Whole numbers in every type: all sums are exact, whatever their order.
    dtype = rng.choice(("f32", "f32", "i32", "i64", "f64"))
    case = expression(rng, dtype)
    values = np.random.default_rng(seed)
    inputs = [values.integers(-9, 9, t.shape).astype(numpy_type(dtype)) for t in case.inputs]
    plain = te.lower(te.create_schedule([t.op for t in case.outputs]), case.arguments)
    wanted = evaluate(plain.program, inputs)
    scheduler = Scheduler(rng, case, gpu)
    scheduler.apply(rng.randint(1, 12))
    try:
        function = te.build(scheduler.schedule, case.arguments, target="cpu", threads=1)
    except te.ScheduleError:
        return
    results = function(*inputs)
    for a, b in zip(wanted, results if isinstance(results, tuple) else (results,), strict=True):
        np.testing.assert_array_equal(a, np.asarray(b))


@quick
@given(st.integers(0, 2**40), st.booleans())
def test_machine_code_computes_the_same(seed: int, gpu: bool) -> None:
    check(seed, gpu)


@pytest.mark.slow
@long
@given(st.integers(0, 2**40), st.booleans())
def test_machine_code_of_hundreds_of_schedules(seed: int, gpu: bool) -> None:
    check(seed, gpu)
