"""The search of a template: whatever a candidate does is a trial with the right status."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from template_faults import CRASHES, GARBAGE, HANGS, REFUSED, faulty

from tilewright import te
from tilewright.errors import UserError
from tilewright.trial import Status, Trial
from tilewright.tuning import template_search

RIGHT, WRONG, INVALID = 2, 3, 5


@pytest.fixture(autouse=True)
def faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_search, "compile_schedule_file", faulty)
    monkeypatch.setattr(template_search, "_COMPILE_S", 2.0)
    # Workers are forked with everything imported (tests/conftest.py): the first job is as short.
    monkeypatch.setattr(template_search, "SETTING_UP_S", 0.0)


@te.template
def scaled(cfg: te.Config, *factors: int) -> Any:
    """A matrix times a factor that is a choice: all but the first compute something else."""
    cfg.define_knob("factor", list(factors))
    a = te.placeholder((32, 32), name="A")
    b = te.compute((32, 32), lambda i, j: a[i, j] * float(cfg["factor"].val), name="B")
    s = te.create_schedule(b)
    if cfg["factor"].val == INVALID:
        s[b].split(b.op.axis[0], factor=-1)
    return s, [a, b]


def search(*factors: int, **more: Any) -> tuple[dict[Any, Trial], template_search.TemplateResult]:
    trials: dict[Any, Trial] = {}
    result = te.tune(
        scaled,
        *factors,
        trials=len(factors),
        strategy="grid",
        threads=1,
        observe=lambda trial, best: trials.update({trial.configuration["factor"]: trial}),
        **more,
    )
    return trials, result


def test_each_fault_is_a_status() -> None:
    factors = (RIGHT, WRONG, INVALID, CRASHES, HANGS, REFUSED, GARBAGE)
    trials, result = search(*factors)
    assert {factor: trial.status for factor, trial in trials.items()} == {
        RIGHT: Status.OK,
        WRONG: Status.WRONG_RESULT,
        INVALID: Status.INVALID,
        CRASHES: Status.CRASHED,
        HANGS: Status.COMPILE_TIMEOUT,
        REFUSED: Status.COMPILE_ERROR,
        GARBAGE: Status.RUN_ERROR,
    }
    for factor, trial in trials.items():
        assert bool(trial.message) == (factor != RIGHT), factor
        assert (trial.time_s is not None) == (factor == RIGHT), factor
    assert result.configuration["factor"] == RIGHT
    result.build().verify(lambda a: a * RIGHT)


def test_a_default_that_is_wrong_is_not_what_is_handed_back() -> None:
    trials, result = search(WRONG, RIGHT, reference=lambda a: a * np.float32(RIGHT))
    assert trials[WRONG].status is Status.WRONG_RESULT
    assert result.configuration["factor"] == RIGHT
    assert result.speedup == 1.0, "there is nothing to compare the only one that is right with"


def test_where_nothing_runs_the_reason_is_said() -> None:
    with pytest.raises(UserError, match=r"template 'scaled': none of 2 candidates ran \(.*SIGSEGV"):
        search(CRASHES, CRASHES + 100, reference=lambda a: a)


def test_finalists_that_do_not_compile_again_are_no_internal_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = template_search._TemplateStage.compile
    asked = []

    def once(stage: Any, configurations: Any) -> Any:
        asked.append(configurations)
        found = compiled(stage, configurations)
        if len(asked) == 1:
            return found
        return [
            template_search.CompiledCandidate(c.configuration, Status.CRASHED, message="gone")
            for c in found
        ]

    monkeypatch.setattr(template_search._TemplateStage, "compile", once)
    with pytest.raises(UserError, match="the finalists do not compile again: gone"):
        search(RIGHT)


def test_an_expression_that_does_not_compile_is_said_before_the_search() -> None:
    with pytest.raises(UserError, match=r"the unscheduled expression does not compile: .*SIGSEGV"):
        search(CRASHES)
