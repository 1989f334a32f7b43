"""Whole programs: what is said of their times and of their failures."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from played_run import RIGHT, WRONG

from tilewright.argument import ArgumentType
from tilewright.errors import UserError
from tilewright.measure.benchmark import Benchmark
from tilewright.measure.compile_worker import CompileRequest, compile_pool, compile_source
from tilewright.measure.device_options import DeviceOptions, Parameters
from tilewright.measure.inputs import load_arguments, turned_inputs, write_inputs
from tilewright.measure.jobs import WorkerFailure
from tilewright.measure.statistics import Measurement
from tilewright.target import parse_target
from tilewright.toolchain import CompileOutcome
from tilewright.trial import Status
from tilewright.tuning.builds import Build, compile_program, compiling
from tilewright.tuning.deadlines import Deadlines
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.programs import Programs, quick_timing
from tilewright.tuning.variants import DEFAULT_VARIANT, Variant

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
        self.within_s = more["timeout_s"]
        return self.answer


def programs(folder: Path, answer: Any) -> tuple[Programs, Build]:
    opened: Any = SimpleNamespace(
        program=None,
        toolchain=None,
        work=folder,
        benchmark=Answers(answer),
        options=TuneOptions(),
        deadlines=Deadlines(None, 0.0),
    )
    made = Programs(opened, "main", None, None, Parameters())  # type: ignore[arg-type]
    made.exact.judge = lambda *given: given[-1]  # type: ignore[method-assign]
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


def test_a_run_that_is_checked_ends_in_a_time_that_fits_the_untuned_program(tmp_path: Path) -> None:
    made, build = programs(tmp_path, [RIGHT])
    for took_s, within_s in (None, 900.0), (0.1, 70.0), (30.0, 900.0):
        made.context.deadlines = Deadlines(None, 0.0)
        if took_s is not None:
            made.context.deadlines.took("running the program by default", took_s)
        assert made.check(build) == ""
        assert made.benchmark.within_s == pytest.approx(within_s)  # type: ignore[attr-defined]


DOUBLES = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %r = arith.addf %x, %x : tensor<4xf32>
  return %r : tensor<4xf32>
}"""
# Right for what begins with 1, and for nothing else.
DOUBLES_SOME = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = arith.constant 0 : index
  %one = arith.constant 1.0 : f32
  %first = tensor.extract %x[%zero] : tensor<4xf32>
  %known = arith.cmpf oeq, %first, %one : f32
  %two = arith.addf %x, %x : tensor<4xf32>
  %three = arith.addf %two, %x : tensor<4xf32>
  %r = arith.select %known, %two, %three : tensor<4xf32>
  return %r : tensor<4xf32>
}"""


def test_what_is_right_with_one_set_of_inputs_alone_is_found(tmp_path: Path) -> None:
    builds, flags, program = [], parse_target("cpu").flags, tmp_path / "program.mlir"
    program.write_text(DOUBLES)
    kind = ArgumentType("f32", (4,))
    inputs = write_inputs(tmp_path / "in", [kind], [np.array([1, 2, 3, 4], np.float32)])
    with Benchmark(DeviceOptions("local-sync")) as benchmark, compile_pool(1) as compilers:
        for name, source in (("default", DOUBLES), ("some", DOUBLES_SOME)):
            asked = CompileRequest(source, flags, destination=tmp_path / f"{name}.vmfb")
            assert compilers.ask(compile_source, asked) == asked.destination
            builds.append(Build(name, DEFAULT_VARIANT, None, asked.destination))
        opened: Any = SimpleNamespace(
            program=SimpleNamespace(path=program),
            toolchain=None,
            work=tmp_path,
            benchmark=benchmark,
            compilers=compilers,
            options=TuneOptions(),
            deadlines=Deadlines(None, 0.0),
            flags=lambda *_: flags,
            left_s=None,
        )
        made = Programs(opened, "main", None, inputs, Parameters())  # type: ignore[arg-type]
        default, some = builds
        assert made.make_reference(default) == ""
        assert made.compare_all_outputs(default).ok
        assert made.compare_outputs(some).ok
        tested = made.compare_all_outputs(some)
        assert tested.status is Status.WRONG_RESULT
        assert tested.message.startswith("with other inputs: ")


class Compiler:
    """Compiles nothing, for as long as it is not let go on."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.outcomes = [CompileOutcome(True, 3.0)]
        self.extra: list[tuple[str, ...]] = []

    def compile(self, *_: Any, extra: tuple[str, ...] = (), **__: Any) -> CompileOutcome:
        self.begun.set()
        self.extra.append(extra)
        assert self.go_on.wait(60.0)
        return self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]

    def stop(self) -> None:
        self.go_on.set()


def compiling_with(folder: Path, cores: int) -> tuple[Any, Compiler]:
    compiler = Compiler()
    context: Any = SimpleNamespace(
        program=SimpleNamespace(path=folder),
        toolchain=compiler,
        work=folder,
        target=SimpleNamespace(cores=cores),
        deadlines=Deadlines(None, 0.0),
        flags=lambda *_: (),
        options=SimpleNamespace(iree_flags=()),
    )
    return context, compiler


def test_a_program_is_compiled_while_something_else_is_done(tmp_path: Path) -> None:
    context, compiler = compiling_with(tmp_path, 2)
    with compiling(context, Build("default", DEFAULT_VARIANT)) as compiled:
        assert compiler.begun.wait(60.0)
        compiler.go_on.set()
        made = compiled()
    assert (made.ok, made.seconds) == (True, 3.0)
    assert made.vmfb == tmp_path / "programs" / "default.vmfb"
    # What is not verified takes less than what will be handed back.
    assert context.deadlines.each("compiling the program", 0.0) == pytest.approx(1.4 * 3.0)


def test_what_others_wait_for_beside_it_is_not_what_it_takes(tmp_path: Path) -> None:
    context, compiler = compiling_with(tmp_path, 2)
    compiler.go_on.set()
    compiler.outcomes = [CompileOutcome(True, 30.0, cpu_s=20.0)]
    assert compile_program(context, Build("default", DEFAULT_VARIANT)).ok
    assert context.deadlines.each("compiling the program", 0.0) == pytest.approx(1.4 * 0.8 * 20.0)


def test_what_may_be_handed_back_is_verified(tmp_path: Path) -> None:
    context, compiler = compiling_with(tmp_path, 2)
    compiler.go_on.set()
    spec = tmp_path / "kernels.mlir"
    variant = Variant("im2col", ("--x",))
    compile_program(context, Build("default", DEFAULT_VARIANT))
    compile_program(context, Build("im2col", variant))
    compile_program(context, Build("spec", DEFAULT_VARIANT, spec))
    compile_program(context, Build("kernels", DEFAULT_VARIANT, preprocessing=spec))
    assert compiler.extra == [("--verify=false",), (), (), ()]
    crash = CompileOutcome(False, 1.0, "SIGSEGV", crashed=11)
    compiler.outcomes = [crash, CompileOutcome(True, 3.0)]
    assert compile_program(context, Build("default", DEFAULT_VARIANT)).ok
    assert compiler.extra[4:] == [("--verify=false",), ()], "who verifies can say what is wrong"
    compiler.outcomes = [replace(crash, crashed=9), CompileOutcome(True, 3.0)]
    assert not compile_program(context, Build("default", DEFAULT_VARIANT)).ok, "who stopped it"
    compiler.outcomes = [CompileOutcome(False, 1.0, "no such op"), CompileOutcome(True, 3.0)]
    assert compile_program(context, Build("default", DEFAULT_VARIANT)).error == "no such op"


def test_with_one_thread_it_is_compiled_when_it_is_asked_for(tmp_path: Path) -> None:
    context, compiler = compiling_with(tmp_path, 1)
    with compiling(context, Build("default", DEFAULT_VARIANT)) as compiled:
        assert not compiler.begun.is_set()
        compiler.go_on.set()
        assert compiled().ok


def test_a_compiler_is_ended_where_what_is_done_beside_it_fails(tmp_path: Path) -> None:
    context, compiler = compiling_with(tmp_path, 2)
    beside = compiling(context, Build("default", DEFAULT_VARIANT))
    beside.__enter__()
    assert compiler.begun.wait(60.0)
    failure = UserError("no such function")
    assert not beside.__exit__(UserError, failure, None), "it is raised again"
    assert compiler.go_on.is_set()


def test_integers_are_not_turned(tmp_path: Path) -> None:
    kinds = [ArgumentType("i32", (3,)), ArgumentType("f32", (3,)), ArgumentType("f32", None)]
    values = [np.arange(3, dtype=np.int32), np.arange(3, dtype=np.float32), np.float32(2.0)]
    inputs = write_inputs(tmp_path / "in", kinds, [np.asarray(v) for v in values])
    turned = turned_inputs(tmp_path / "out", inputs)
    assert [np.asarray(a).tolist() for a in load_arguments(turned)] == [[0, 1, 2], [2, 1, 0], 2.0]
    whole = write_inputs(tmp_path / "whole", kinds[:1], values[:1])
    assert turned_inputs(tmp_path / "same", whole) == whole
