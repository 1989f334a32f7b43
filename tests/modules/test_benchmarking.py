"""Benchmarks: which functions, how often, and the report in Google Benchmark's form."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from module_programs import FLAGS

from tilewright.errors import UserError
from tilewright.ir.session import CompilerSession
from tilewright.ir.signature import Signature
from tilewright.measure.benchmark_worker import RepeatRequest
from tilewright.measure.timing import Repetition
from tilewright.modules.benchmarking import (
    BenchmarkRow,
    BenchPolicy,
    bench_module,
    choose_functions,
    context,
    to_csv,
    to_json,
)
from tilewright.modules.module_source import ModuleOptions
from tilewright.modules.ready_module import OpenModule, open_module
from tilewright.toolchain import Toolchain

SHORT = BenchPolicy(min_time_s=1e-4)
ONE_THREAD = ModuleOptions(threads=1)
MATMUL = """
func.func @matmul(%a: tensor<256x192xf32>, %b: tensor<192x256xf32>) -> tensor<256x256xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<256x256xf32>
  %i = linalg.fill ins(%z : f32) outs(%e : tensor<256x256xf32>) -> tensor<256x256xf32>
  %r = linalg.matmul ins(%a, %b : tensor<256x192xf32>, tensor<192x256xf32>)
      outs(%i : tensor<256x256xf32>) -> tensor<256x256xf32>
  return %r : tensor<256x256xf32>
}
"""


@pytest.fixture(scope="module")
def many(modules: Path):
    with open_module(modules / "many.vmfb", ONE_THREAD) as module:
        yield module


def test_without_a_name_all_functions_without_arguments_are_timed(many: OpenModule) -> None:
    results = bench_module(many, None, policy=SHORT)
    assert [result.function for result in results] == ["constant", "also"]
    for result in results:
        (row,) = result.rows
        assert row.name == f"BM_{result.function}/process_time/real_time"
        assert row.iterations * row.real_s >= SHORT.min_time_s
        assert row.cpu_s > 0
        assert row.items_per_s == pytest.approx(1 / row.real_s)


def test_a_named_function_gets_random_data(many: OpenModule) -> None:
    ((row,),) = [result.rows for result in bench_module(many, "add", policy=SHORT)]
    assert row.function == "add"


def test_the_only_function_is_found_though_it_takes_arguments(modules: Path) -> None:
    with open_module(modules / "crash.vmfb", ONE_THREAD) as module:
        assert [f.name for f in choose_functions(module, None)] == ["divide"]


def test_repetitions_have_statistics(many: OpenModule) -> None:
    told: list[tuple[BenchmarkRow, str]] = []
    policy = BenchPolicy(repetitions=4, min_time_s=1e-4, batch_size=3)
    (result,) = bench_module(many, "also", policy=policy, on_row=lambda *row: told.append(row))
    assert [row for row, _ in told] == list(result.rows)
    assert {unit for _, unit in told} == {result.unit}
    runs, aggregates = result.rows[:4], {row.statistic: row for row in result.rows[4:]}
    assert [row.name for row in runs] == ["BM_also/process_time/real_time"] * 4
    assert len({row.iterations for row in runs}) == 1
    assert runs[0].items_per_s == pytest.approx(1 / runs[0].real_s)
    assert runs[0].iterations % 3 == 0, "each call counts as many"
    assert runs[0].iterations * runs[0].real_s >= policy.min_time_s
    times = [row.real_s for row in runs]
    assert aggregates["mean"].real_s == pytest.approx(statistics.fmean(times))
    assert aggregates["median"].real_s == pytest.approx(statistics.median(times))
    assert aggregates["stddev"].real_s == pytest.approx(statistics.stdev(times))
    spread = statistics.stdev(times) / statistics.fmean(times)
    assert aggregates["cv"].real_s == pytest.approx(spread)
    assert aggregates["median"].name == "BM_also/process_time/real_time_median"
    assert aggregates["median"].iterations == 4


def test_one_repetition_has_none(many: OpenModule) -> None:
    (result,) = bench_module(many, "also", policy=SHORT)
    assert [row.statistic for row in result.rows] == [""]


def test_the_json_is_what_scripts_for_google_benchmark_read(many: OpenModule) -> None:
    policy = BenchPolicy(repetitions=3, min_time_s=1e-4)
    results = bench_module(many, None, policy=policy)
    data = json.loads(json.dumps(to_json(results, context(many))))
    about, rows = data["context"], data["benchmarks"]
    assert {"date", "host_name", "executable", "num_cpus", "mhz_per_cpu", "load_avg", "caches",
            "cpu_scaling_enabled"} <= set(about)  # fmt: skip
    assert len(rows) == 2 * (3 + 4)
    scale = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
    for row, shown in zip([r for result in results for r in result.rows], rows, strict=True):
        assert shown["name"] == row.name
        assert shown["run_name"] == f"BM_{row.function}/process_time/real_time"
        assert shown["repetitions"] == 3
        if row.statistic:
            assert (shown["run_type"], shown["aggregate_name"]) == ("aggregate", row.statistic)
        else:
            assert (shown["run_type"], shown["repetition_index"]) == ("iteration", row.index)
        size = 1.0 if row.statistic == "cv" else scale[shown["time_unit"]]
        assert shown["real_time"] * size == pytest.approx(row.real_s)
        assert shown["cpu_time"] * size == pytest.approx(row.cpu_s)
    lines = list(csv.DictReader(io.StringIO(to_csv(results))))
    assert [line["name"] for line in lines] == [row["name"] for row in rows]
    assert [float(line["real_time"]) for line in lines] == [row["real_time"] for row in rows]
    assert lines[6]["time_unit"] == "", "a share has none"


def test_a_function_that_fails_has_an_error_beside_the_others_rows(modules: Path) -> None:
    options = ModuleOptions(threads=1, timeout_s=1.0)
    with open_module(modules / "spin.vmfb", options) as module:
        (result,) = bench_module(module, None, ["-1"], policy=SHORT)
        assert result.rows == ()
        assert "'spin' gave no answer within 1 s" in result.error
        (row,) = to_json([result], {})["benchmarks"]
        assert row["error_occurred"] is True
        assert row["error_message"] == result.error
        # The worker that was killed is replaced.
        (result,) = bench_module(module, None, ["3"], policy=SHORT)
        assert not result.error


def test_inputs_for_several_functions_are_a_mistake(many: OpenModule) -> None:
    with pytest.raises(UserError, match=r"--input: name the function .*allowed: constant, also"):
        bench_module(many, None, ["1"], policy=SHORT)


class _Counted:
    """Stands for the benchmark worker: says what calls took without making any."""

    def __init__(self) -> None:
        self.asked: list[RepeatRequest] = []

    def ask(self, task: object, request: RepeatRequest) -> Repetition:
        self.asked.append(request)
        return Repetition(request.iterations or 5, 0.32, 0.64)


@pytest.mark.parametrize("repetitions", [1, 3])
@pytest.mark.parametrize("batch_size", [1, 64])
@pytest.mark.parametrize("repeats", [False, True])
def test_a_call_counts_as_batch_size_iterations_as_in_iree_benchmark_module(
    many: OpenModule, repetitions: int, batch_size: int, repeats: bool
) -> None:
    """Whatever the function is: one that was compiled to run each dispatch often does so by itself,
    one that is a benchmark of a dispatch is told how often."""
    worker = _Counted()
    function = dataclasses.replace(
        many.functions["constant"],
        repeats=repeats,
        signature=many.functions["two"].signature if repeats else Signature((), ()),
    )
    module = dataclasses.replace(many, benchmark=worker, functions={"constant": function})
    policy = BenchPolicy(repetitions, 1e-4, batch_size)
    (result,) = bench_module(module, None, policy=policy)
    runs = [row for row in result.rows if not row.statistic]
    assert [row.real_s for row in runs] == [0.32 / batch_size] * repetitions
    assert [row.cpu_s for row in runs] == [0.64 / batch_size] * repetitions
    assert [row.iterations for row in runs] == [5 * batch_size] * repetitions
    assert [one.iterations for one in worker.asked] == [None, 5, 5][:repetitions]
    told = [one.value for one in worker.asked[0].inputs.arguments]
    assert told == ([batch_size] if repeats else [])


def _of_iree(vmfb: Path, inputs: list[str], batch_size: int, repetitions: int) -> float:
    """Seconds as IREE's own tool has them: the least of its repetitions."""
    tool = Path(sys.executable).with_name("iree-benchmark-module")
    done = subprocess.run(
        [tool, f"--module={vmfb}", "--device=local-sync", "--function=matmul",
         *(f"--input={one}" for one in inputs), f"--batch_size={batch_size}",
         f"--benchmark_repetitions={repetitions}", "--benchmark_min_time=0.1s",
         "--benchmark_format=json"],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    rows = json.loads(done.stdout[done.stdout.index("{") :])["benchmarks"]
    scale = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
    times = [r["real_time"] * scale[r["time_unit"]] for r in rows if r["run_type"] == "iteration"]
    return min(times)


@pytest.mark.slow
@pytest.mark.parametrize("dispatches", [1, 64])
def test_the_numbers_are_those_of_irees_own_tool(tmp_path: Path, dispatches: int) -> None:
    """Every combination of repetitions and batch size, by turns until the least are near."""
    flags = (*FLAGS, f"--iree-hal-benchmark-dispatch-repeat-count={dispatches}")
    program, vmfb = tmp_path / "matmul.mlir", tmp_path / "matmul.vmfb"
    program.write_text(MATMUL)
    # The library has no such option, only the command.
    assert Toolchain().compile(program, vmfb, flags, timeout_s=60.0).ok
    inputs = ["256x192xf32=0.5", "192x256xf32=0.25"]
    with open_module(vmfb, ModuleOptions(device="local-sync", threads=1)) as module:
        for batch_size in (1, 64):
            for repetitions in (1, 3):
                theirs, ours = [], []
                policy = BenchPolicy(repetitions, 0.1, batch_size)
                # On a busy machine it takes a while until both were left alone once.
                while not ours or (len(ours) < 120 and not _near(min(ours), min(theirs))):
                    theirs.append(_of_iree(vmfb, inputs, batch_size, repetitions))
                    (result,) = bench_module(module, "matmul", inputs, policy=policy)
                    ours += [row.real_s for row in result.rows if not row.statistic]
                assert _near(min(ours), min(theirs)), (batch_size, repetitions)


def _near(ours: float, theirs: float) -> bool:
    return ours == pytest.approx(theirs, rel=0.1)


def test_benchmarks_of_dispatches_are_told_how_often_to_run(tmp_path: Path) -> None:
    """The functions that `--iree-hal-dump-executable-benchmarks-to=` makes take a number."""
    source = """
    func.func @spin(%n: i32) attributes {iree.reflection = {iree.benchmark = "dispatch"}} {
      %zero = arith.constant 0 : i32
      %one = arith.constant 1 : i32
      %r = scf.while (%i = %n) : (i32) -> i32 {
        %go = arith.cmpi ne, %i, %zero : i32
        scf.condition(%go) %i : i32
      } do {
      ^bb0(%i: i32):
        %next = arith.subi %i, %one : i32
        scf.yield %next : i32
      }
      return
    }
    """
    vmfb = tmp_path / "dispatch.vmfb"
    vmfb.write_bytes(CompilerSession(FLAGS).compile(source))
    with open_module(vmfb, ONE_THREAD) as module:
        assert module.functions["spin"].takes_nothing
        policy = BenchPolicy(min_time_s=1e-4, batch_size=1000)
        (result,) = bench_module(module, None, policy=policy)
        assert not result.error
        (row,) = result.rows
        assert row.iterations % 1000 == 0, "each run of the dispatch counts"
        assert row.items_per_s == pytest.approx(1 / row.real_s)
