"""Results further from the untuned program's than rounding goes are judged by what is right."""

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
from tilewright.tuning import exact_results

DATA = np.random.default_rng(3).standard_normal(COUNT).astype(np.float32)


def coarse(by: float) -> str:
    """A number itself, but for what adding a large one takes of its digits."""
    return f"""%by = arith.constant {by:.9e} : f32
    %b = arith.addf %a, %by : f32
    %r = arith.subf %b, %by : f32"""


UNTUNED = coarse(2.0**16)


@pytest.fixture(scope="module")
def compilers() -> Iterator[WorkerPool]:
    with compile_pool(1) as pool:
        yield pool


@pytest.fixture(scope="module")
def device() -> Iterator[Benchmark]:
    with Benchmark(DeviceOptions("local-sync")) as opened:
        yield opened


@pytest.mark.parametrize(
    "body",
    ["%z = arith.constant 0.0 : f32\n%r = arith.addf %a, %z : f32", coarse(2.0**15)],
    ids=["right", "less wrong"],
)
def test_a_program_that_is_as_right_as_the_untuned_one_is_right(
    tmp_path: Path, compilers: WorkerPool, device: Benchmark, body: str
) -> None:
    case = Case(tmp_path, compilers, device, UNTUNED, DATA)
    tested = case.programs.compare_all_outputs(case.build(body))
    assert tested.ok, tested.message
    # Of both sets of inputs, and neither is what the untuned program computes of it.
    assert [one.against for one in tested.comparisons] == ["float64 NumPy"] * 2
    untuned_error = 2.0**-8
    assert all(one.error <= one.tolerance <= untuned_error for one in tested.comparisons)
    (note,) = case.notes
    assert "float64" in note


@pytest.mark.parametrize(
    "body",
    [
        coarse(2.0**18),
        "%r = arith.subf %a, %a : f32",
        # On average it is nearer, and one element is wrong.
        "%m = arith.constant 1.5 : f32\n%r = arith.minimumf %a, %m : f32",
        # None is further off than the worst of the untuned program's, and all are off by that.
        "%m = arith.constant 3.9e-03 : f32\n%r = arith.addf %a, %m : f32",
        "%m = arith.constant 0.0 : f32\n%r = arith.divf %m, %m : f32",
    ],
)
def test_a_program_that_is_less_right_is_wrong(
    tmp_path: Path, compilers: WorkerPool, device: Benchmark, body: str
) -> None:
    case = Case(tmp_path, compilers, device, UNTUNED, DATA)
    tested = case.programs.compare_outputs(case.build(body))
    assert tested.status is Status.WRONG_RESULT
    assert "out of tolerance" in tested.message
    assert not case.notes


def test_what_the_untuned_program_computes_is_not_judged(
    tmp_path: Path, compilers: WorkerPool, device: Benchmark
) -> None:
    case = Case(tmp_path, compilers, device, UNTUNED, DATA)
    tested = case.programs.compare_all_outputs(case.build(UNTUNED))
    assert tested.ok
    assert not any(one.against for one in tested.comparisons)
    assert not list(tmp_path.rglob("exact_*.npz"))


def test_where_there_is_no_time_or_room_it_stays_wrong(
    tmp_path: Path,
    compilers: WorkerPool,
    device: Benchmark,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = coarse(1.0)
    case = Case(tmp_path, compilers, device, UNTUNED, DATA)
    case.context.left_s = 1e-3
    build = case.build(right)
    wrong = case.programs.compare_outputs(build)
    assert wrong.status is Status.WRONG_RESULT
    # It is not asked for again, of other data neither.
    case.context.left_s = None
    assert build.vmfb is not None
    assert case.programs.others is not None
    assert case.programs.exact.judge(build.vmfb, *case.programs.others, wrong) is wrong
    assert not list(tmp_path.rglob("exact_*.npz"))
    case = Case(tmp_path, compilers, device, UNTUNED, DATA)
    monkeypatch.setattr(exact_results, "_LARGE", -1)
    assert case.programs.compare_outputs(case.build(right)).status is Status.WRONG_RESULT
    monkeypatch.undo()
    case = Case(tmp_path, compilers, device, UNTUNED, DATA)
    assert case.programs.compare_outputs(case.build(right)).ok
