"""Building: the code is made in a worker, and what goes wrong there has the right error here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright import te
from tilewright.measure.jobs import WorkerFailure
from tilewright.schedule import build_tasks, compiler


def doubled() -> tuple[te.Schedule, list[Any]]:
    a = te.placeholder((8,), name="A")
    b = te.compute((8,), lambda i: a[i] * 2.0, name="B")
    return te.create_schedule(b), [a, b]


@pytest.mark.parametrize("target", ["cpu", "cpu:znver4", "cuda:sm_80"])
def test_the_process_of_the_user_emits_no_mlir(
    monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    def here(*_: object) -> None:
        raise AssertionError("MLIR was built in the user's process")

    monkeypatch.setattr(build_tasks, "module_for", here)
    schedule, tensors = doubled()
    if target == "cuda:sm_80":
        (axis,) = schedule[tensors[1]].op.axis
        schedule[tensors[1]].bind(axis, te.thread_axis("threadIdx.x"))
    made = te.build(schedule, tensors, target)
    assert made.vmfb
    if target == "cpu":
        np.testing.assert_array_equal(made(np.arange(8, dtype=np.float32)), np.arange(8) * 2.0)


@pytest.mark.parametrize(
    ("failure", "error", "words"),
    [
        (
            WorkerFailure("error", "stack too large", error_type="CompileError"),
            te.BuildError,
            "main for cpu: the compiler does not take this schedule: stack too large",
        ),
        (
            WorkerFailure("crashed", "the worker died of SIGSEGV"),
            te.BuildError,
            "main for cpu: the compiler crashes on this schedule: the worker died of SIGSEGV",
        ),
        (
            WorkerFailure("timeout", "no answer within 120 s"),
            te.BuildError,
            "main for cpu: the compiler does not come to an end with this schedule: no answer",
        ),
        (
            WorkerFailure("error", "axis 'i' has no such part", error_type="ScheduleError"),
            te.ScheduleError,
            "axis 'i' has no such part",
        ),
    ],
)
def test_what_fails_is_said(
    monkeypatch: pytest.MonkeyPatch, failure: WorkerFailure, error: type[Exception], words: str
) -> None:
    monkeypatch.setattr(compiler, "ask", lambda task, request: failure)
    schedule, tensors = doubled()
    with pytest.raises(error) as info:
        te.build(schedule, tensors)
    assert str(info.value).startswith(words)
