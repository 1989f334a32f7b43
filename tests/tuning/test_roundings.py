"""Results of quantised programs are judged by what rounding does to them, and no further."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tilewright.argument import ArgumentType
from tilewright.measure.benchmark import Benchmark
from tilewright.measure.compile_worker import CompileRequest, compile_pool, compile_source
from tilewright.measure.device_options import DeviceOptions, Parameters
from tilewright.measure.inputs import write_inputs
from tilewright.measure.pool import WorkerPool
from tilewright.target import parse_target
from tilewright.toolchain import Toolchain
from tilewright.trial import Status
from tilewright.tuning.deadlines import Deadlines
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.programs import Build, Programs
from tilewright.tuning.roundings import Roundings
from tilewright.tuning.variants import DEFAULT_VARIANT

COUNT = 512
TYPE = f"tensor<{COUNT}xf32>"
FLAGS = parse_target("cpu").flags
# A few lie right between two integers.
PLACES = np.arange(COUNT)
DATA = (PLACES + np.where(PLACES % 64, 0.25, 0.5)).astype(np.float32)
PLAIN = "%r = math.roundeven %a : f32"


def scaled(by: float, then: str = PLAIN) -> str:
    """Multiplied before it is rounded, as another order of its sums does."""
    return f"""%by = arith.constant {by:.9e} : f32
    %b = arith.mulf %a, %by : f32
    {then.replace("%a", "%b")}"""


def source(body: str) -> str:
    same = "affine_map<(i) -> (i)>"
    return f"""func.func @main(%x: {TYPE}) -> {TYPE} {{
  %e = tensor.empty() : {TYPE}
  %y = linalg.generic {{indexing_maps = [{same}, {same}], iterator_types = ["parallel"]}}
      ins(%x : {TYPE}) outs(%e : {TYPE}) {{
  ^bb0(%a: f32, %o: f32):
    {body}
    linalg.yield %r : f32
  }} -> {TYPE}
  return %y : {TYPE}
}}"""


@pytest.fixture(scope="module")
def compilers() -> Iterator[WorkerPool]:
    with compile_pool(1) as pool:
        yield pool


@pytest.fixture(scope="module")
def device() -> Iterator[Benchmark]:
    with Benchmark(DeviceOptions("local-sync")) as opened:
        yield opened


class Case:
    """A program with others that are compared with it."""

    def __init__(self, folder: Path, compilers: WorkerPool, device: Benchmark, body: str) -> None:
        self.folder, self.compilers, self.notes = folder, compilers, list[str]()
        path = folder / "program.mlir"
        path.write_text(source(body))
        opened: Any = SimpleNamespace(
            program=SimpleNamespace(path=path),
            toolchain=Toolchain(),
            work=folder,
            benchmark=device,
            compilers=compilers,
            target=SimpleNamespace(cores=2, is_gpu=False),
            options=TuneOptions(),
            flags=lambda *_: FLAGS,
            left_s=None,
            note=lambda text, **_: self.notes.append(text),
        )
        self.context = opened
        inputs = write_inputs(folder / "in", [ArgumentType("f32", (COUNT,))], [DATA])
        self.programs = Programs(opened, "main", None, inputs, Parameters())  # type: ignore[arg-type]
        made = self.programs
        made.roundings = Roundings(opened, folder, made.keep_outputs, lambda: made.seconds_each)
        assert self.programs.make_reference(self.build(body)) == ""

    def build(self, body: str) -> Build:
        place = self.folder / f"{abs(hash(body))}.vmfb"
        asked = CompileRequest(source(body), FLAGS, destination=place)
        assert self.compilers.ask(compile_source, asked) == place
        return Build(place.stem, DEFAULT_VARIANT, None, place)


def test_a_step_more_or_less_where_numbers_lie_between_two_is_right(
    tmp_path: Path, compilers: WorkerPool, device: Benchmark
) -> None:
    case = Case(tmp_path, compilers, device, PLAIN)
    tested = case.programs.compare_all_outputs(case.build(scaled(1 + 2.0**-22)))
    assert tested.ok, tested.message
    worst = max(tested.comparisons, key=lambda one: one.error)
    assert (worst.error, worst.tolerance) == (1.0, 2.0)
    (note,) = case.notes
    assert "quantised" in note


def test_what_judging_takes_is_compiled_while_there_is_time(
    tmp_path: Path, compilers: WorkerPool, device: Benchmark
) -> None:
    case = Case(tmp_path, compilers, device, PLAIN)
    assert case.programs.compare_outputs(case.build(PLAIN)).ok
    assert len(case.notes) == 1, "a right program is the first that is compared"
    case.context.left_s, case.programs.seconds_each = 1.0, 2.0
    assert case.programs.compare_all_outputs(case.build(scaled(1 + 2.0**-22))).ok


def test_what_judging_takes_is_compiled_beside_the_programs(
    tmp_path: Path, compilers: WorkerPool, device: Benchmark
) -> None:
    case = Case(tmp_path, compilers, device, PLAIN)
    case.context.deadlines = Deadlines(None, 0.0)
    (built,) = case.programs.build_all([Build("one", DEFAULT_VARIANT)])
    assert built.ok, built.error
    assert [one.name for one in tmp_path.rglob("moved_*.vmfb")] == ["moved_0.vmfb"]


def test_another_way_is_compiled_only_where_the_first_does_not_tell(
    tmp_path: Path, compilers: WorkerPool, device: Benchmark
) -> None:
    case = Case(tmp_path, compilers, device, PLAIN)
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
    case = Case(tmp_path, compilers, device, PLAIN)
    tested = case.programs.compare_outputs(case.build(body))
    assert tested.status is Status.WRONG_RESULT
    assert "out of tolerance" in tested.message


def test_programs_that_round_nothing_are_judged_as_before(
    tmp_path: Path, compilers: WorkerPool, device: Benchmark
) -> None:
    doubled = "%r = arith.addf %a, %a : f32"
    case = Case(tmp_path, compilers, device, doubled)
    tested = case.programs.compare_outputs(case.build(scaled(1.01, doubled)))
    assert tested.status is Status.WRONG_RESULT
    assert not case.notes


def test_where_there_is_no_time_to_find_out_it_is_wrong(
    tmp_path: Path, compilers: WorkerPool, device: Benchmark
) -> None:
    case = Case(tmp_path, compilers, device, PLAIN)
    case.context.left_s, case.programs.seconds_each = 1.0, 2.0
    tested = case.programs.compare_outputs(case.build(scaled(1 + 2.0**-22)))
    assert tested.status is Status.WRONG_RESULT
    assert not case.notes
