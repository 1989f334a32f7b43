"""Results of quantised programs are judged by what rounding does to them, and no further."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from compared_programs import COUNT, Case

from tilewright.measure.benchmark import Benchmark
from tilewright.measure.compile_worker import compile_pool
from tilewright.measure.device_options import DeviceOptions
from tilewright.measure.pool import WorkerPool
from tilewright.trial import Status
from tilewright.tuning.builds import Build
from tilewright.tuning.deadlines import Deadlines
from tilewright.tuning.roundings import Roundings
from tilewright.tuning.variants import DEFAULT_VARIANT

# A few lie right between two integers.
PLACES = np.arange(COUNT)
DATA = (PLACES + np.where(PLACES % 64, 0.25, 0.5)).astype(np.float32)
PLAIN = "%r = math.roundeven %a : f32"


def scaled(by: float, then: str = PLAIN) -> str:
    """Multiplied before it is rounded, as another order of its sums does."""
    return f"""%by = arith.constant {by:.9e} : f32
    %b = arith.mulf %a, %by : f32
    {then.replace("%a", "%b")}"""


@pytest.fixture(scope="module")
def compilers() -> Iterator[WorkerPool]:
    with compile_pool(1) as pool:
        yield pool


@pytest.fixture(scope="module")
def device() -> Iterator[Benchmark]:
    with Benchmark(DeviceOptions("local-sync")) as opened:
        yield opened


def case_of(folder: Path, compilers: WorkerPool, device: Benchmark, body: str) -> Case:
    case = Case(folder, compilers, device, body, DATA)
    made = case.programs
    made.roundings = Roundings(case.context, folder, made.keep_outputs, lambda: made.seconds_each)
    return case


def test_a_step_more_or_less_where_numbers_lie_between_two_is_right(
    tmp_path: Path, compilers: WorkerPool, device: Benchmark
) -> None:
    case = case_of(tmp_path, compilers, device, PLAIN)
    tested = case.programs.compare_all_outputs(case.build(scaled(1 + 2.0**-22)))
    assert tested.ok, tested.message
    worst = max(tested.comparisons, key=lambda one: one.error)
    assert (worst.error, worst.tolerance) == (1.0, 2.0)
    (note,) = case.notes
    assert "quantised" in note


def test_what_judging_takes_is_compiled_while_there_is_time(
    tmp_path: Path, compilers: WorkerPool, device: Benchmark
) -> None:
    case = case_of(tmp_path, compilers, device, PLAIN)
    assert case.programs.compare_outputs(case.build(PLAIN)).ok
    assert len(case.notes) == 1, "a right program is the first that is compared"
    case.context.left_s, case.programs.seconds_each = 1.0, 2.0
    assert case.programs.compare_all_outputs(case.build(scaled(1 + 2.0**-22))).ok


def test_what_judging_takes_is_compiled_beside_the_programs(
    tmp_path: Path, compilers: WorkerPool, device: Benchmark
) -> None:
    case = case_of(tmp_path, compilers, device, PLAIN)
    case.context.deadlines = Deadlines(None, 0.0)
    (built,) = case.programs.build_all([Build("one", DEFAULT_VARIANT)])
    assert built.ok, built.error
    assert [one.name for one in tmp_path.rglob("moved_*.vmfb")] == ["moved_0.vmfb"]


def test_another_way_is_compiled_only_where_the_first_does_not_tell(
    tmp_path: Path, compilers: WorkerPool, device: Benchmark
) -> None:
    case = case_of(tmp_path, compilers, device, PLAIN)
    assert case.programs.compare_outputs(case.build(scaled(1 + 2.0**-22))).ok
    assert [one.name for one in tmp_path.rglob("moved_*.vmfb")] == ["moved_0.vmfb"]
    wrong = case.build("%r = arith.subf %a, %a : f32")
    assert case.programs.compare_outputs(wrong).status is Status.WRONG_RESULT
    assert len(list(tmp_path.rglob("moved_*.vmfb"))) == 2


@pytest.mark.parametrize(
    "body",
    [
        # Each element is off by one.
        "%one = arith.constant 1.0 : f32\n%q = math.roundeven %a : f32\n"
        "%r = arith.addf %q, %one : f32",
        "%r = arith.subf %a, %a : f32",
        # A few elements are off by much.
        "%m = arith.constant 500.0 : f32\n%q = math.roundeven %a : f32\n"
        "%r = arith.minimumf %q, %m : f32",
    ],
)
def test_what_rounding_does_not_do_is_wrong(
    tmp_path: Path, compilers: WorkerPool, device: Benchmark, body: str
) -> None:
    case = case_of(tmp_path, compilers, device, PLAIN)
    tested = case.programs.compare_outputs(case.build(body))
    assert tested.status is Status.WRONG_RESULT
    assert "out of tolerance" in tested.message


def test_programs_that_round_nothing_are_judged_as_before(
    tmp_path: Path, compilers: WorkerPool, device: Benchmark
) -> None:
    doubled = "%r = arith.addf %a, %a : f32"
    case = case_of(tmp_path, compilers, device, doubled)
    tested = case.programs.compare_outputs(case.build(scaled(1.01, doubled)))
    assert tested.status is Status.WRONG_RESULT
    assert not case.notes


def test_where_there_is_no_time_to_find_out_it_is_wrong(
    tmp_path: Path, compilers: WorkerPool, device: Benchmark
) -> None:
    case = case_of(tmp_path, compilers, device, PLAIN)
    case.context.left_s, case.programs.seconds_each = 1.0, 2.0
    tested = case.programs.compare_outputs(case.build(scaled(1 + 2.0**-22)))
    assert tested.status is Status.WRONG_RESULT
    assert not case.notes
