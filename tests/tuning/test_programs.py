"""Whole programs: what is said of their times and of their failures."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from played_run import RIGHT, WRONG

from tilewright.measure.jobs import WorkerFailure
from tilewright.measure.runtime import Parameters
from tilewright.measure.statistics import Measurement
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.programs import Build, Programs, quick_timing
from tilewright.tuning.variants import DEFAULT_VARIANT

SAMPLES = (1.0, 1.0, 1.0, 3.0, 5.0, 5.0, 5.0)


class Answers:
    """A device that gives one answer to everything."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def time(self, vmfb: str, *data: Any, **more: Any) -> Any:
        assert more["function"] == "main"
        return self.answer

    def verify(self, request: Any, **more: Any) -> Any:
        assert request.function == "main"
        return self.answer


def programs(folder: Path, answer: Any) -> tuple[Programs, Build]:
    opened: Any = SimpleNamespace(
        program=None,
        toolchain=None,
        work=folder,
        benchmark=Answers(answer),
        options=TuneOptions(),
    )
    made = Programs(opened, "main", None, None, Parameters())  # type: ignore[arg-type]
    return made, Build("default", DEFAULT_VARIANT, None, folder / "p.vmfb")


def test_a_programs_time_is_the_median_that_is_reported(tmp_path: Path) -> None:
    made, build = programs(tmp_path, Measurement(SAMPLES))
    assert Measurement(SAMPLES).time_s == 1.0, "the lower quartile, by which candidates compete"
    assert made.time(build, quick_timing(1.0)) == 3.0


@pytest.mark.parametrize("kind", ["crashed", "timeout", "error"])
def test_what_failed_is_said(tmp_path: Path, kind: Any) -> None:
    made, build = programs(tmp_path, WorkerFailure(kind, "it went wrong"))
    assert made.time(build, quick_timing(1.0)) == "it went wrong"
    assert made.check(build) == "it went wrong"


def test_a_wrong_output_is_said(tmp_path: Path) -> None:
    made, build = programs(tmp_path, [RIGHT, WRONG])
    assert "1 of 8 elements differs" in made.check(build)
    made, build = programs(tmp_path, [RIGHT, RIGHT])
    assert made.check(build) == ""
