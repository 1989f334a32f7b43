"""Whole programs are compiled in spite of a compiler that stops for good."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tilewright.target import parse_target
from tilewright.toolchain import CompileOutcome
from tilewright.tuning.company import affordable
from tilewright.tuning.programs import WITHOUT_THREADS, BuildRequest, Programs
from tilewright.tuning.variants import DEFAULT_VARIANT


class Compiler:
    """Answers with what it is given, in turn, and notes its time limits and extra flags."""

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)
        self.asked = []

    def compile(self, program, output, flags, *, timeout_s, extra=()):
        self.asked.append((timeout_s, extra))
        return self.outcomes.pop(0)


def fine(seconds):
    return CompileOutcome(True, seconds)


STUCK = CompileOutcome(False, 60.0, "iree-compile took over 60 s", timed_out=True)
BROKEN = CompileOutcome(False, 1.0, "no such op")


@pytest.fixture
def build(tmp_path):
    """A function that builds as often as there are outcomes, and what the compiler was asked."""

    def build(*outcomes):
        compiler = Compiler(*outcomes)
        program = SimpleNamespace(path=Path("m.mlir"), input_flags=())
        programs = Programs(
            program, compiler, parse_target("cpu", 2), (), tmp_path, None, "main", None, None
        )
        builds = []
        while compiler.outcomes:
            builds.append(programs.build(BuildRequest("p", DEFAULT_VARIANT)))
        return builds, compiler.asked

    return build


def test_one_that_is_stuck_is_compiled_again_without_threads(build):
    (first, second), asked = build(fine(5.0), STUCK, fine(7.0))
    assert first.ok
    assert second.ok
    assert asked == [(1800.0, ()), (60.0, ()), (1800.0, WITHOUT_THREADS)]


def test_how_long_is_too_long_follows_the_longest_before(build):
    _, asked = build(fine(2.0), fine(20.0), fine(1.0), fine(300.0), fine(1.0))
    assert [limit for limit, _ in asked] == [1800.0, 60.0, 200.0, 200.0, 1800.0]


def test_one_that_is_stuck_twice_failed(build):
    (_, second), asked = build(fine(5.0), STUCK, STUCK)
    assert not second.ok
    assert "took over" in second.error
    assert len(asked) == 3


def test_mistakes_are_not_tried_again(build):
    (_, second), asked = build(fine(5.0), BROKEN)
    assert second.error == "no such op"
    assert len(asked) == 2


def test_the_time_left_says_how_many_programs_are_tried_in_company():
    assert affordable(None, 7.0) is None
    assert affordable(30.0, 7.0) == 4
    assert affordable(0.0, 7.0) == 1
    assert affordable(10.0, 0.0) > 1000
