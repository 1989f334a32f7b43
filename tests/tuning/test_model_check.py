"""An ONNX model's program is compared with what ONNX Runtime computes, and who tunes it is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from played_programs import PlayedRun

from tilewright.measure.jobs import WorkerFailure
from tilewright.tuning import model_check
from tilewright.tuning.model_check import ModelCheck, check_model, difference

CLOSE = ModelCheck("onnxruntime 1.20", 1e-6, 0, wrong=False)
FAR = ModelCheck("onnxruntime 1.20", 0.97, 1, wrong=True)


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run of an ONNX model where there is an ONNX Runtime, which finds what is `answer`."""
    monkeypatch.setattr(model_check.importlib.util, "find_spec", lambda name: object())
    run = PlayedRun(tmp_path)
    run.programs.context.program = replace(run.programs.program, source=tmp_path / "net.onnx")
    run.answer, run.questions = CLOSE, []

    def ask(task: Any, request: Any, timeout_s: float) -> Any:
        run.questions.append((request, timeout_s))
        return run.answer

    run.programs.context.compilers = SimpleNamespace(ask=ask)
    return run


@pytest.mark.parametrize(
    ("found", "expected", "error"),
    [
        ([1.0, -4.0], [1.0, -4.0], 0.0),
        ([1.0, -4.0], [2.0, -4.0], 0.25),
        ([[1.0], [-4.0]], [1.0, -4.0], 0.0),
        ([1.0], [1.0, -4.0], 1.0),
        ([np.nan, np.inf, 2.0], [np.nan, np.inf, 2.0], 0.0),
        ([np.nan, 2.0], [1.0, 2.0], 1.0),
        ([1.0, 2.0], [np.nan, 2.0], 1.0),
        ([-np.inf, 2.0], [np.inf, 2.0], 1.0),
        ([9.0, 9.0], [1.0, 1.0], 1.0),
        ([1e-3, 0.0], [0.0, 0.0], 1e-3),
        ([], [], 0.0),
        ([1, 2, 3, 5], [1, 2, 3, 4], 0.25),
        ([True, False], [True, True], 0.5),
    ],
)
def test_a_difference_is_a_part_of_the_largest_value(
    found: list[Any], expected: list[Any], error: float
) -> None:
    assert difference(np.array(found), np.array(expected)) == pytest.approx(error)


def test_what_differs_is_told_and_tuned(played: Any) -> None:
    played.answer = FAR
    assert check_model(played.programs) is FAR
    assert "result 1 of the program that IREE makes of net.onnx" in played.notes
    assert "not onnxruntime 1.20's: 0.97 of the largest value" in played.notes
    ((request, _),) = played.questions
    assert request.model.name == "net.onnx"
    assert request.expected == played.programs.expected


def test_what_is_the_same_is_not_worth_a_word(played: Any) -> None:
    assert check_model(played.programs) is CLOSE
    assert played.notes == ""


def test_a_model_that_cannot_be_run_is_no_failure(played: Any) -> None:
    played.answer = WorkerFailure("crashed", "the worker crashed")
    assert check_model(played.programs) is None
    assert played.notes == ""


def test_nothing_is_asked_where_there_is_no_answer(
    played: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs, context = played.programs, played.programs.context
    with monkeypatch.context() as patch:
        patch.setattr(model_check.importlib.util, "find_spec", lambda name: None)
        assert check_model(programs) is None
    onnx, options = context.program, context.options
    context.program = replace(onnx, source=Path("net.mlir"))
    assert check_model(programs) is None
    context.program = onnx
    context.options = replace(options, no_verify=True)
    assert check_model(programs) is None
    context.options = options
    weights = onnx.source.with_suffix(".irpa")
    with weights.open("wb") as file:
        file.truncate(model_check._LARGE + 1)
    context.program = replace(onnx, parameters=(("model", weights),))
    assert check_model(programs) is None
    assert played.questions == []


def test_it_takes_a_tenth_of_the_time_that_is_left_at_most(played: Any) -> None:
    check_model(played.programs)
    assert played.questions[-1][1] == 60.0
    played.programs.context.deadlines = SimpleNamespace(left_s=lambda phase="": 30.0)
    check_model(played.programs)
    assert played.questions[-1][1] == pytest.approx(3.0)
    asked = len(played.questions)
    played.programs.context.deadlines = SimpleNamespace(left_s=lambda phase="": 5.0)
    assert check_model(played.programs) is None
    assert len(played.questions) == asked
