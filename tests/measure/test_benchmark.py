"""The benchmark worker on real programs, and what a program can do to it."""

import os
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tilewright.argument import ArgumentType
from tilewright.errors import UserError
from tilewright.measure import benchmark_worker, device_options
from tilewright.measure.benchmark import Benchmark
from tilewright.measure.benchmark_worker import TimeRequest
from tilewright.measure.comparison import ComparisonPolicy
from tilewright.measure.device_options import DeviceOptions, Parameters
from tilewright.measure.inputs import (
    InputSet,
    ScalarInput,
    random_inputs,
    write_inputs,
    write_outputs,
)
from tilewright.measure.jobs import WorkerState
from tilewright.measure.pool import WorkerFailure
from tilewright.measure.statistics import Measurement
from tilewright.measure.timing import InterleavedBaseline, TimingPolicy
from tilewright.measure.verify import reference_size

MATRIX = ArgumentType("f32", (4, 8))
QUICK = TimingPolicy(max_s=0.05, max_samples=8, drop_factor=None)


@pytest.fixture(scope="module", params=["local-sync", "local-task"])
def bench(request):
    options = DeviceOptions.cpu(1 if request.param == "local-sync" else 2)
    assert options.uri == request.param
    with Benchmark(options, policy=QUICK, timeout_s=30) as bench:
        yield bench


@pytest.fixture
def inputs(tmp_path):
    return random_inputs(tmp_path / "inputs", [MATRIX, MATRIX])


def arrays(inputs):
    return [argument.load() for argument in inputs.arguments]


def test_outputs_are_the_programs(bench, vmfb, inputs, tmp_path):
    assert bench.load(inputs) is None
    (result,) = bench.run(vmfb["add"], inputs, tmp_path / "out.npz")
    a, b = arrays(inputs)
    assert np.array_equal(result, a + b)
    with open(vmfb["subtract"], "rb") as file:
        (result,) = bench.run(file.read(), inputs, tmp_path / "out.npz")
    assert np.array_equal(result, a - b)


def test_every_kind_of_argument_and_result(bench, vmfb, tmp_path):
    kinds = [
        ArgumentType("bf16", (4,)),
        ArgumentType("f32", None),
        ArgumentType("index", None),
        ArgumentType("f32", ()),
    ]
    data = np.array([1, -2, 0.5, 3], ml_dtypes.bfloat16)
    values = [data, np.array(1.5, np.float32), np.array(7), np.array(2.5, np.float32)]
    inputs = write_inputs(tmp_path / "in", kinds, values)
    doubled, scalar, index, greater, rank0 = bench.run(vmfb["mixed"], inputs, tmp_path / "o.npz")
    assert doubled.dtype == ml_dtypes.bfloat16
    assert np.array_equal(doubled, data + data)
    assert (float(scalar), int(index), float(rank0)) == (1.5, 7, 2.5)
    assert greater.tolist() == [True, False, True, True]


def test_timing_main_and_bench(bench, vmfb, inputs):
    single = bench.time(vmfb["add"], inputs)
    assert isinstance(single, Measurement)
    assert min(single.samples) > 0
    repeated = bench.time(vmfb["add"], inputs, repeats=4)
    assert isinstance(repeated, Measurement)
    assert repeated.executions_per_sample % 4 == 0


def test_a_users_function_called_bench_is_not_what_is_timed(bench, vmfb, tmp_path):
    inputs = random_inputs(tmp_path / "one", [MATRIX])
    measured = bench.time(vmfb["other_bench"], inputs)
    assert isinstance(measured, Measurement), measured


def test_a_program_without_bench_cannot_be_repeated(bench, vmfb, inputs):
    failure = bench.time(vmfb["subtract"], inputs, repeats=4)
    assert isinstance(failure, WorkerFailure)
    assert "no function 'bench' (it has: main)" in failure.message


def test_far_slower_than_the_best_is_dropped(bench, vmfb, inputs):
    policy = TimingPolicy(drop_factor=2.0)
    outcome = bench.time(vmfb["add"], inputs, best_s=1e-12, policy=policy)
    assert outcome.dropped
    assert len(outcome.samples) == 1


def test_baseline_is_timed_when_due(bench, vmfb, inputs):
    baseline = InterleavedBaseline(vmfb["add"], every=2, limit=1e9)
    first = bench.time(vmfb["subtract"], inputs, baseline=baseline)
    assert isinstance(first, Measurement)
    assert baseline.reference_s is not None
    reference = baseline.reference_s
    # A machine may stand still for a moment.
    baseline.reference_s = baseline.now_s = reference * 1e6
    second = bench.time(vmfb["subtract"], inputs, baseline=baseline)
    assert second.drift == 1.0
    third = bench.time(vmfb["subtract"], inputs, baseline=baseline)
    assert third.drift < 0.1
    assert third.time_s > 10 * third.median_s


def test_a_new_best_is_checked_against_the_baseline_right_after(bench, vmfb, inputs):
    baseline = InterleavedBaseline(vmfb["add"], every=1000, limit=1e9)
    bench.time(vmfb["subtract"], inputs, baseline=baseline)
    baseline.reference_s = baseline.now_s = 1000.0
    record = bench.time(vmfb["subtract"], inputs, baseline=baseline, best_s=1000.0)
    assert record.drift < 0.001, "the faster of both looks counts"
    assert baseline.now_s < 1


def test_what_is_a_record_at_any_drift_is_not_checked_again(bench, vmfb, inputs):
    baseline = InterleavedBaseline(vmfb["add"], every=1000, limit=2.0)
    bench.time(vmfb["subtract"], inputs, baseline=baseline)
    baseline.reference_s = baseline.now_s = 1000.0
    bench.time(vmfb["subtract"], inputs, baseline=baseline, best_s=1000.0)
    assert baseline.now_s == 1000.0


@pytest.mark.parametrize(
    ("seconds", "found", "looks"),
    [((2.0, 1.0), 1.0, 2), ((2.0, 3.0), 2.0, 2), ((1.02, 0.5), 1.02, 1), ((0.5, 0.1), 0.5, 1)],
)
def test_a_baseline_that_seems_slow_is_timed_twice(monkeypatch, inputs, seconds, found, looks):
    """Slow for a moment, slow, no slower than its own noise, faster."""
    left = list(seconds)
    monkeypatch.setattr(benchmark_worker, "kept_program", lambda *_: None)
    monkeypatch.setattr(benchmark_worker, "_timed_call", lambda *_: (None, 1))
    monkeypatch.setattr(benchmark_worker, "measure", lambda *_, **__: Measurement((left.pop(0),)))
    request = TimeRequest("a.vmfb", inputs, TimingPolicy(), baseline="b.vmfb", usual_s=1.0)
    assert benchmark_worker._time_baseline(WorkerState(), request) == found
    assert len(seconds) - len(left) == looks


def test_finalists_are_compared_with_the_default(bench, vmfb, inputs):
    policy = ComparisonPolicy(rounds=8, min_sample_s=0.0005)
    default, other = bench.compare_interleaved(
        [vmfb["add"], vmfb["subtract"]], inputs, policy=policy
    )
    assert len(default.measurement.samples) == len(other.measurement.samples) == 8
    assert default.ratio.value == 1.0
    assert other.ratio.low <= other.ratio.value <= other.ratio.high


def test_parameters_come_from_archives(bench, vmfb, tmp_path):
    import iree.runtime as runtime

    weights = np.arange(4, dtype=np.float32)
    path = tmp_path / "w.irpa"
    runtime.save_archive_file({"w": weights}, str(path))
    inputs = random_inputs(tmp_path / "in", [ArgumentType("f32", (4,))])
    parameters = Parameters((("model", str(path)),))
    (result,) = bench.run(vmfb["weights"], inputs, tmp_path / "o.npz", parameters=parameters)
    assert np.array_equal(result, arrays(inputs)[0] + weights)
    assert isinstance(bench.time(vmfb["weights"], inputs, parameters=parameters), Measurement)
    failure = bench.run(vmfb["weights"], inputs, tmp_path / "o.npz")
    assert isinstance(failure, WorkerFailure)


def test_parameters_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        Parameters((("model", str(tmp_path / "missing.irpa")),))
    (tmp_path / "w.zip").write_text("")
    with pytest.raises(UserError, match=r"allowed: \.irpa"):
        Parameters((("", str(tmp_path / "w.zip")),))


def test_a_hang_ends_and_inputs_come_back_by_themselves(bench, vmfb, inputs, tmp_path):
    forever = InputSet("forever", (ScalarInput(-1, ArgumentType("i64", None)),))
    failure = bench.time(vmfb["spin"], forever, timeout_s=0.5)
    assert isinstance(failure, WorkerFailure)
    assert failure.kind == "timeout"
    (result,) = bench.run(vmfb["add"], inputs, tmp_path / "out.npz")
    assert np.array_equal(result, sum(arrays(inputs)))


@pytest.mark.parametrize("content", [b"", b"garbage" * 1000])
def test_a_file_that_is_no_program_is_an_error(bench, inputs, tmp_path, content):
    path = tmp_path / "bad.vmfb"
    path.write_bytes(content)
    failure = bench.time(str(path), inputs)
    assert isinstance(failure, WorkerFailure)
    assert failure.kind == "error"
    assert "\n" not in failure.message


def test_wrong_shapes_are_an_error(bench, vmfb, tmp_path):
    wrong = random_inputs(tmp_path / "in", [ArgumentType("f32", (3, 8)), MATRIX])
    failure = bench.time(vmfb["add"], wrong)
    assert isinstance(failure, WorkerFailure)
    assert "shape" in failure.message


def test_verification_runs_on_fresh_inputs(vmfb, inputs, tmp_path):
    """A candidate that overwrote the kept inputs does not spoil, or save, another's verdict."""
    state = WorkerState()
    benchmark_worker.setup(state, DeviceOptions.cpu(1))
    kept = benchmark_worker._arguments(state, inputs)
    kept[0] = kept[1]
    request = benchmark_worker.RunRequest(vmfb["add"], inputs, str(tmp_path / "o.npz"))
    (result,) = benchmark_worker._run_once(state, request)
    assert np.array_equal(result, sum(arrays(inputs)))


def test_verification_compares_each_result_with_its_tolerance(vmfb, inputs, tmp_path, monkeypatch):
    """The comparison itself has tests of its own; this is what it is given."""
    calls = []
    monkeypatch.setattr(
        "tilewright.measure.verify.compare",
        lambda *arguments: calls.append(arguments) or "verdict",
    )
    state = WorkerState()
    benchmark_worker.setup(state, DeviceOptions.cpu(1))
    expected = sum(arrays(inputs))
    write_outputs(tmp_path / "e.npz", [expected])
    for kinds in (None, ("bf16",)):
        request = benchmark_worker.VerifyRequest(
            vmfb["add"], inputs, str(tmp_path / "e.npz"), 17, kinds
        )
        assert benchmark_worker.verify(state, request) == ["verdict"]
    write_outputs(tmp_path / "s.npz", [expected])
    request = benchmark_worker.VerifyRequest(
        vmfb["add"],
        inputs,
        str(tmp_path / "e.npz"),
        17,
        accumulation_type="f16",
        integer_slack=1,
        sensitivity=str(tmp_path / "s.npz"),
    )
    assert benchmark_worker.verify(state, request) == ["verdict"]
    (actual, wanted, *limits), (_, _, narrow, *_), (*_, accumulation, slack, moves, size) = calls
    assert np.array_equal(actual, expected)
    assert np.array_equal(wanted, expected)
    assert limits == ["f32", 17, None, 0, None, reference_size(expected, "f32")]
    assert size == limits[-1] > 0
    assert (narrow, accumulation, slack) == ("bf16", "f16", 1)
    assert np.array_equal(moves, expected)
    write_outputs(tmp_path / "e.npz", [expected, expected])
    with pytest.raises(ValueError, match="1 results, 2 are expected"):
        benchmark_worker.verify(state, request)


def test_unknown_device_is_the_users_to_mend(inputs, vmfb):
    with (
        Benchmark(DeviceOptions("no-such-driver")) as bench,
        pytest.raises(UserError, match=r"device 'no-such-driver'.*local-task"),
    ):
        bench.time(vmfb["add"], inputs)
    with (
        Benchmark(DeviceOptions(flags=("--no_such_flag=1",))) as bench,
        pytest.raises(UserError, match="no_such_flag"),
    ):
        bench.time(vmfb["add"], inputs)
    with pytest.raises(UserError, match="--threads 0"):
        DeviceOptions(threads=0)


def process_id(state, request):
    return os.getpid()


def test_the_number_of_threads_is_as_asked():
    def threads(count):
        with Benchmark(DeviceOptions("local-task", count)) as bench:
            pid = bench.ask(process_id, None)
            with open(f"/proc/{pid}/status") as file:
                (line,) = [x for x in file if x.startswith("Threads:")]
            return int(line.split()[1])

    assert threads(4) - threads(1) == 3


def environment(state, request):
    return dict(os.environ)


def test_a_program_runs_in_huge_pages(inputs, vmfb, tmp_path):
    options = DeviceOptions.cpu(2)
    assert options.environment == {}
    huge = replace(options, huge_pages=True)
    with Benchmark(huge) as bench:
        assert bench.ask(environment, None).items() >= huge.environment.items()
        (result,) = bench.run(vmfb["add"], inputs, tmp_path / "out.npz")
    a, b = arrays(inputs)
    assert np.array_equal(result, a + b)


def policy(state, request):
    return os.sched_getscheduler(0)


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="a kind of process that Linux has")
def test_programs_run_in_batch_processes_where_threads_wait():
    before = os.sched_getscheduler(0)
    found = {}
    for options in (DeviceOptions.cpu(2), replace(DeviceOptions.cpu(2), batch=False)):
        with Benchmark(options) as bench:
            found[options.batch] = bench.ask(policy, None)
    assert found == {True: os.SCHED_BATCH, False: os.SCHED_OTHER}
    assert os.sched_getscheduler(0) == before, "this process is the user's"


def places(state, _):
    """Task: where each worker of the runtime may run."""
    found = []
    for thread in Path("/proc/self/task").iterdir():
        if (thread / "comm").read_text().startswith("iree-worker"):
            found.append(sorted(os.sched_getaffinity(int(thread.name))))
    return sorted(found)


@pytest.mark.skipif(device_options.physical_cores() < 2, reason="no core for each")
def test_workers_have_cores_of_their_own():
    with Benchmark(DeviceOptions.cpu(2)) as bench:
        one, other = bench.ask(places, None)
    assert not set(one) & set(other)
    with Benchmark(replace(DeviceOptions.cpu(2), pinned=False)) as bench:
        assert bench.ask(places, None) == [sorted(os.sched_getaffinity(0))] * 2


def test_what_is_refused_is_left_as_it_is(monkeypatch):
    def refused(*_):
        raise PermissionError("no")

    assert DeviceOptions.cpu(2).schedules_batch is hasattr(os, "SCHED_BATCH")
    monkeypatch.setattr(os, "sched_setscheduler", refused, raising=False)
    device_options.schedule_as_batch(True)
    assert not DeviceOptions.cpu(2).schedules_batch
    assert DeviceOptions.cpu(2).tool_prefix == []
