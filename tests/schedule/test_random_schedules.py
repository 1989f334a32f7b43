"""Whatever legal primitives are applied, the numbers stay those of the unscheduled expression."""

from __future__ import annotations

import os
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nest_evaluator import evaluate
from random_schedules import Case, Scheduler, expression

from tilewright import te
from tilewright.schedule.nest import LoopProgram
from tilewright.schedule.threads import serialize

COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}
quick = settings(max_examples=200, **COMMON)
long = settings(max_examples=int(os.environ.get("TILEWRIGHT_SCHEDULES", "3000")), **COMMON)


def arrays(case: Case, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.integers(-20, 20, t.shape) for t in case.inputs]


def unscheduled(case: Case, arguments: list[te.Tensor]) -> LoopProgram:
    return te.lower(te.create_schedule([t.op for t in case.outputs]), arguments).program


def handed_over(rng: Random, case: Case) -> list[te.Tensor]:
    """The arguments, sometimes with a tensor in between as well, wherever that is computed."""
    stages = te.create_schedule([t.op for t in case.outputs]).stages
    between = [t for s in stages if not s.is_placeholder for t in s.op.outputs]
    more = [t for t in between if t not in case.outputs]
    return [*case.arguments, *([rng.choice(more)] if more and rng.random() < 0.5 else [])]


def check(seed: int, gpu: bool) -> None:
    rng = Random(seed)
    case = expression(rng)
    inputs = arrays(case, seed)
    scheduler = Scheduler(rng, case, gpu)
    scheduler.apply(rng.randint(1, 12))
    arguments = handed_over(rng, case)
    wanted = evaluate(unscheduled(case, arguments), inputs)
    try:
        program = te.lower(scheduler.schedule, arguments).program
    except te.ScheduleError:
        return
    for made, order in ((program, "forward"), (program, "random"), (serialize(program), "random")):
        for a, b in zip(wanted, evaluate(made, inputs, order, seed), strict=True):
            np.testing.assert_array_equal(a, b)


@quick
@given(st.integers(0, 2**40))
def test_a_schedule_changes_no_numbers(seed: int) -> None:
    check(seed, gpu=False)


@quick
@given(st.integers(0, 2**40))
def test_a_schedule_with_threads_changes_no_numbers(seed: int) -> None:
    check(seed, gpu=True)


@pytest.mark.slow
@long
@given(st.integers(0, 2**40), st.booleans())
def test_thousands_of_schedules(seed: int, gpu: bool) -> None:
    check(seed, gpu)


@settings(max_examples=60, **COMMON)
@given(st.integers(0, 2**40))
def test_a_trace_says_all_of_a_schedule(seed: int) -> None:
    rng = Random(seed)
    case = expression(rng)
    scheduler = Scheduler(rng, case, gpu=True)
    scheduler.apply(rng.randint(1, 12))
    trace = scheduler.schedule.trace()
    again = te.Trace.from_json(trace.to_json())
    assert again == trace
    assert te.Trace.from_python(trace.to_python()) == trace
    outputs = [t.op for t in case.outputs]
    replayed = again.apply(outputs)
    assert replayed.trace() == trace
    assert _shown(scheduler.schedule, case) == _shown(replayed, case)
    # The Python source is a function that can be called, too.
    names: dict[str, Any] = {}
    exec(trace.to_python(), names)
    called = te.create_schedule(outputs)
    names["schedule"](called)
    assert _shown(called, case) == _shown(scheduler.schedule, case)


def _shown(schedule: te.Schedule, case: Case) -> str:
    try:
        return str(te.lower(schedule, case.arguments))
    except te.ScheduleError as error:
        return str(error)
