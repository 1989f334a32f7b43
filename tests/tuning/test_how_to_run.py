"""How to run the program that is handed back: what rounds say of the choices, and their lines."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright.argument import ArgumentType
from tilewright.cluster.handing_out import ClusterBenchmark
from tilewright.measure.benchmark import Benchmark
from tilewright.measure.comparison import ComparisonPolicy
from tilewright.measure.device_options import DeviceOptions, Parameters
from tilewright.measure.inputs import InputFile, InputSet, ScalarInput
from tilewright.measure.jobs import WorkerFailure
from tilewright.measure.ways import WaysRequest, WayTimes, takes_fences, time_ways
from tilewright.store import RunRecord
from tilewright.target import Target, parse_target
from tilewright.tuning import how_to_run
from tilewright.tuning.builds import Build
from tilewright.tuning.context import MORE_THREADS
from tilewright.tuning.how_to_run import leave_workers_out, lines, measure_ways, summarised
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.variants import DEFAULT_VARIANT

POLICY = ComparisonPolicy()
# Before the tool where threads wait for each other.
BATCH = ["chrt", "--batch", "0"] if hasattr(os, "SCHED_BATCH") else []


@pytest.fixture(autouse=True)
def no_cores_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whatever this machine offers, nothing."""
    monkeypatch.setattr("tilewright.measure.device_options.physical_cores", lambda: 0)


def advised(*samples: list[float]) -> dict[tuple[str, int], bool]:
    ways = [DeviceOptions.cpu(2), DeviceOptions.cpu(1), DeviceOptions.cpu(4)][: len(samples)]
    found = summarised(ways, ["line"] * len(ways), samples, POLICY)
    assert [one.ms for one in found] == sorted(one.ms for one in found)
    return {(one.device, one.threads): one.advised for one in found}


def test_what_is_faster_beyond_the_noise_is_advised() -> None:
    found = advised([2.0] * 9, [1.0] * 9, [1.5] * 9)
    assert found == {("local-sync", 1): True, ("local-task", 2): False, ("local-task", 4): False}


def test_within_the_noise_what_was_tuned_for_stays() -> None:
    noisy = [0.9, 1.2, 0.8, 1.3, 0.95, 1.1, 0.85, 1.25, 0.97]
    assert advised([1.0] * 9, noisy)["local-task", 2]
    assert advised([1.0], [0.5])["local-task", 2], "one round says nothing"


def test_a_way_that_fails_does_not_count() -> None:
    assert set(advised([1.0] * 9, [0.5] * 3, [2.0] * 9)) == {("local-task", 2), ("local-task", 4)}
    assert advised([1.0] * 9, [0.5] * 3) == {}


class Worker(Benchmark):
    """A benchmark whose programs take what is said of each way, or that fails."""

    def __init__(self, device: DeviceOptions) -> None:
        self.device = device
        self.asked: list[WaysRequest] = []
        self.fences: bool | WorkerFailure = False
        self.seconds: dict[DeviceOptions, list[float]] | WorkerFailure = {
            DeviceOptions.cpu(2): [2e-3] * 9,
            DeviceOptions.cpu(1): [1e-3] * 9,
        }

    def ask(self, task: object, request: object, timeout_s: float | None = None) -> object:
        if task is takes_fences:
            assert request == ("tuned.vmfb", "net")
            return self.fences
        assert task is time_ways
        self.asked.append(request)  # type: ignore[arg-type]
        if isinstance(self.seconds, WorkerFailure):
            return self.seconds
        return [WayTimes(way, tuple(samples)) for way, samples in self.seconds.items()]

    def close(self) -> None:
        pass


def programs(
    folder: Path, device: DeviceOptions, cores: int = 2, left_s: float | None = None
) -> SimpleNamespace:
    """As much of a run's programs as is used."""
    weights = folder / "own.irpa"
    weights.touch()
    given = SimpleNamespace(scope="model", path=str(weights))
    options = SimpleNamespace(inputs=(), parameters=(given,), output=folder / "out")
    context = SimpleNamespace(
        target=SimpleNamespace(cores=cores),
        left_s=left_s,
        more_threads=0,
        options=options,
        program=SimpleNamespace(parameters=(("imported", "/tmp/x/imported.irpa"),)),
        note=lambda text, warning: pytest.fail(text),
    )
    tensor = InputFile("a.npy", ArgumentType("f32", (4, 5)))
    inputs = InputSet("k", (tensor, ScalarInput(3, ArgumentType("i32", None))))
    return SimpleNamespace(
        context=context,
        benchmark=Worker(device),
        inputs=inputs,
        parameters=Parameters(),
        function="net",
    )


BUILD = Build("tuned", DEFAULT_VARIANT, vmfb=Path("tuned.vmfb"))


def test_each_way_is_timed_and_has_its_line(tmp_path: Path) -> None:
    run = programs(tmp_path, DeviceOptions.cpu(2))
    first, second = measure_ways(run, BUILD, tmp_path / "out" / "program.vmfb", 5e-3)
    assert (first.device, first.threads, first.ms, first.advised) == ("local-sync", 1, 1.0, True)
    assert (second.device, second.threads, second.ms, second.advised) == (
        "local-task", 2, 2.0, False,
    )  # fmt: skip
    assert second.ratio_ci == (1.0, 1.0)
    assert first.ratio_ci == pytest.approx((0.5, 0.5))
    assert shlex.split(second.command) == [
        *BATCH,
        "iree-benchmark-module",
        f"--module={tmp_path}/out/program.vmfb",
        "--device=local-task",
        "--task_topology_group_count=2",
        f"--parameters=imported={tmp_path}/out/imported.irpa",
        f"--parameters=model={tmp_path}/own.irpa",
        "--function=net",
        "--input=4x5xf32",
        "--input=3",
    ]
    assert "--task_topology_group_count" not in first.command
    assert lines([first])[0] == f"1.00 ms, local-sync, 1 thread (advised): {first.command}"
    (asked,) = run.benchmark.asked
    assert (asked.vmfb, asked.threads) == ("tuned.vmfb", 2)


def test_workers_that_stay_awake_have_a_line_and_words(tmp_path: Path) -> None:
    run = programs(tmp_path, DeviceOptions.cpu(2))
    run.benchmark.seconds[replace(DeviceOptions.cpu(2), spin_us=10)] = [0.5e-3] * 9
    found = measure_ways(run, BUILD, tmp_path / "p.vmfb", 5e-3)
    (awake,) = [one for one in found if one.spin_us]
    assert awake.advised
    assert "awake for 10 us" in awake.words
    assert "--task_worker_spin_us=10" in shlex.split(awake.command)
    assert not any("spin" in one.command for one in found if one is not awake)


@pytest.mark.parametrize("fences", [True, False, WorkerFailure("crashed", "gone")])
def test_who_may_wait_awake_is_told(tmp_path: Path, fences: bool | WorkerFailure) -> None:
    run = programs(tmp_path, DeviceOptions.cpu(2))
    run.benchmark.fences = fences
    pinned = replace(DeviceOptions.cpu(2), pinned=True)
    sleeping = replace(pinned, polls=False)
    run.benchmark.seconds = {
        way: [ms * 1e-3] * 9 for way, ms in ((pinned, 2), (DeviceOptions.cpu(1), 1), (sleeping, 3))
    }
    found = measure_ways(run, BUILD, tmp_path / "p.vmfb", 5e-3)
    assert run.benchmark.asked[0].polls is (fences is True)
    shown = {(one.device, one.ms): "polls" in one.words for one in found}
    expected = {("local-sync", 1.0): False, ("local-task", 2.0): fences is True}
    assert shown == {**expected, ("local-task", 3.0): False}


def test_the_line_with_huge_pages_is_one_that_a_shell_runs(tmp_path: Path) -> None:
    run = programs(tmp_path, DeviceOptions.cpu(2))
    run.benchmark.seconds[replace(DeviceOptions.cpu(2), huge_pages=True)] = [1.5e-3] * 9
    found = measure_ways(run, BUILD, tmp_path / "p.vmfb", 5e-3)
    (huge,) = [one for one in found if one.huge_pages]
    env, variable, *rest = shlex.split(huge.command)
    assert (env, rest[: len(BATCH) + 1]) == ("env", [*BATCH, "iree-benchmark-module"])
    assert variable.startswith("GLIBC_TUNABLES=glibc.malloc.hugetlb=1:")
    assert f", huge pages{', batch' if BATCH else ''}: env GLIBC_TUNABLES=" in lines([huge])[0]
    assert not any("GLIBC" in one.command for one in found if one is not huge)


@pytest.mark.skipif(not BATCH, reason="a kind of process that Linux has")
def test_a_batch_process_is_one_by_its_line(tmp_path: Path) -> None:
    run = programs(tmp_path, DeviceOptions.cpu(2))
    plain = replace(DeviceOptions.cpu(2), batch=False)
    run.benchmark.seconds = {DeviceOptions.cpu(2): [2e-3] * 9, plain: [3e-3] * 9}
    first, second = measure_ways(run, BUILD, tmp_path / "p.vmfb", 5e-3)
    assert (first.batch, first.words, first.advised) == (True, ["batch"], True)
    assert shlex.split(first.command)[:4] == [*BATCH, "iree-benchmark-module"]
    assert (second.words, second.command.split()[0]) == ([], "iree-benchmark-module")
    assert subprocess.run([*BATCH, "true"], check=False).returncode == 0


def test_what_a_user_gives_is_in_the_line(tmp_path: Path) -> None:
    run = programs(tmp_path, DeviceOptions.cpu(2))
    run.context.options.inputs = ("4x5xf32=1", "i32=2")
    (first, _) = measure_ways(run, BUILD, tmp_path / "p.vmfb", 5e-3)
    assert shlex.split(first.command)[-2:] == ["--input=4x5xf32=1", "--input=i32=2"]


def test_a_program_that_runs_in_one_way_alone_has_no_choice(tmp_path: Path) -> None:
    run = programs(tmp_path, DeviceOptions.cpu(2))
    run.benchmark.seconds[DeviceOptions.cpu(1)] = []
    assert measure_ways(run, BUILD, tmp_path, 5e-3) == ()


def test_what_cannot_be_measured_is_told(tmp_path: Path) -> None:
    said: list[str] = []
    run = programs(tmp_path, DeviceOptions.cpu(2))
    run.context.note = lambda text, warning: said.append(text)
    run.benchmark.seconds = WorkerFailure("error", "no such device")
    assert measure_ways(run, BUILD, tmp_path, 5e-3) == ()
    assert said == ["how to run the program was not measured: no such device"]


@pytest.mark.parametrize(
    "change",
    [
        lambda run: setattr(run.benchmark, "device", DeviceOptions("cuda://0")),
        lambda run: setattr(run.benchmark, "device", DeviceOptions.cpu(1)),
    ],
    ids=["a GPU", "other threads"],
)
def test_where_there_is_nothing_to_measure(
    tmp_path: Path, change: Callable[[SimpleNamespace], None]
) -> None:
    run = programs(tmp_path, DeviceOptions.cpu(2))
    change(run)
    assert measure_ways(run, BUILD, tmp_path, 5e-3) == ()
    assert run.benchmark.asked == []


def test_without_time_for_others_there_is_the_line_that_was_tuned_for(tmp_path: Path) -> None:
    run = programs(tmp_path, DeviceOptions.cpu(2), left_s=1.0)
    (only,) = measure_ways(run, BUILD, tmp_path / "p.vmfb", 5e-3)
    assert (only.device, only.threads, only.ms, only.advised) == ("local-task", 2, 5.0, True)
    assert shlex.split(only.command)[: len(BATCH) + 1] == [*BATCH, "iree-benchmark-module"]
    assert run.benchmark.asked == []


def test_what_was_tuned_for_fewer_threads_is_timed_with_all(tmp_path: Path) -> None:
    run = programs(tmp_path, DeviceOptions.cpu(1), cores=1)
    run.context.more_threads = 2
    assert len(measure_ways(run, BUILD, tmp_path, 5e-3)) == 2
    (asked,) = run.benchmark.asked
    assert (asked.threads, asked.tuned_for) == (2, 1)


class Short:
    """As much of a run as is asked when it is found how its program is best run."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, alone: float | str, device: DeviceOptions
    ) -> None:
        self.open = [device]
        self.program, self.compiler_version = SimpleNamespace(digest="p"), "3.13.0"
        self.runs: list[RunRecord] = []
        self.store = SimpleNamespace(last_run=self._last_run)
        self.said: list[str] = []
        self.target = parse_target("cpu", 2)
        self.options = TuneOptions(threads=2)
        self.more_threads = 0
        self.benchmark: Any = self._device(device)
        self._alone = alone
        monkeypatch.setattr(how_to_run, "open_benchmark", self._opened)

    @property
    def context(self) -> Short:
        return self

    def _opened(self, target: Target, options: TuneOptions) -> object:
        self.open.append(DeviceOptions.cpu(target.cores))
        return self._device(DeviceOptions.cpu(target.cores))

    def _device(self, device: DeviceOptions) -> object:
        return SimpleNamespace(
            close=lambda: self.open.remove(device),
            runs_on=lambda threads: device == DeviceOptions.cpu(threads),
            device=device,
        )

    def _last_run(self, digest: str, targets: tuple[str, ...], compiler: str) -> RunRecord | None:
        fitting = (
            run for run in self.runs if (run.program_digest, run.compiler) == (digest, compiler)
        )
        return next((run for run in fitting if run.target in targets), None)

    def time(self, build: Build, policy: object) -> float | str:
        assert self.benchmark.device == DeviceOptions.cpu(1)
        return self._alone

    def note(self, text: str) -> None:
        self.said.append(text)

    def decided(
        self, default_s: float, dispatches: int = 1, guessed_s: float = 1.0
    ) -> tuple[float, int]:
        found = leave_workers_out(self, BUILD, default_s, dispatches, guessed_s)  # type: ignore[arg-type]
        # Nothing is left open but what measures from here on.
        assert self.open == [self.benchmark.device]
        return found, self.target.cores


def test_a_short_program_that_needs_no_workers_is_tuned_for_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Short(monkeypatch, 3e-5, DeviceOptions.cpu(2))
    assert run.decided(1e-4) == (3e-5, 1)
    assert (run.options.threads, run.more_threads) == (1, 2)
    assert run.benchmark.device == DeviceOptions.cpu(1)
    (said,) = run.said
    assert "0.0300 ms in the calling thread alone, 0.100 ms with 2 threads" in said


@pytest.mark.parametrize(
    ("alone", "default_s", "cores"),
    [(2.27e-4, 1.85e-4, 1), (0.95e-4, 1e-4, 1), (2.9e-4, 1.85e-4, 2), (6e-4, 5.5e-4, 2)],
    ids=["half is shared", "hardly any is shared", "most is shared", "more than waking takes"],
)
def test_what_is_saved_once_it_is_tuned_is_weighed_against_waking_workers(
    monkeypatch: pytest.MonkeyPatch, alone: float, default_s: float, cores: int
) -> None:
    run = Short(monkeypatch, alone, DeviceOptions.cpu(2))
    assert run.decided(default_s) == (alone if cores == 1 else default_s, cores)


@pytest.mark.parametrize(
    ("alone", "dispatches", "guessed_s", "cores"),
    [
        (1.02e-3, 40, 1e-4, 1),
        (1.02e-3, 10, 1e-4, 2),
        (1.2e-3, 40, 1e-4, 2),
        (1.02e-3, 40, 5e-4, 2),
    ],
    ids=["as fast", "of longer dispatches", "slower", "much to compute"],
)
def test_a_program_of_many_short_dispatches_that_workers_do_not_speed_up_is_for_one_thread(
    monkeypatch: pytest.MonkeyPatch, alone: float, dispatches: int, guessed_s: float, cores: int
) -> None:
    run = Short(monkeypatch, alone, DeviceOptions.cpu(2))
    assert run.decided(1e-3, dispatches, guessed_s) == (alone if cores == 1 else 1e-3, cores)


@pytest.mark.parametrize(("guessed_s", "cores"), [(5e-5, 1), (5e-4, 2)], ids=["little", "much"])
def test_what_gains_more_than_usual_may_need_no_workers_once_it_is_tuned(
    monkeypatch: pytest.MonkeyPatch, guessed_s: float, cores: int
) -> None:
    run = Short(monkeypatch, 1.4e-3, DeviceOptions.cpu(2))
    assert run.decided(9e-4, 12, guessed_s) == (1.4e-3 if cores == 1 else 9e-4, cores)


def earlier(
    run: Short, cores: int, more: int | None, program: str = "p", **given: str | None
) -> None:
    """A run that was tuned for some cores, of more that there were; None: it does not say."""
    options = {"device": None, **given} | ({} if more is None else {MORE_THREADS: more})
    key = parse_target("cpu", cores).key
    run.runs.append(RunRecord("p.mlir", program, key, "3.13.0", options))


@pytest.mark.parametrize("alone", [1e-5, 0.95e-4, 4e-4], ids=["faster", "hardly", "slower"])
def test_what_the_run_before_decided_holds(monkeypatch: pytest.MonkeyPatch, alone: float) -> None:
    # However much longer the default takes by now.
    for default_s in (1e-4, 1.0):
        run = Short(monkeypatch, alone, DeviceOptions.cpu(2))
        earlier(run, 1, 2)
        assert run.decided(default_s) == (alone, 1)
        assert "as the run before" in run.said[0]
    run = Short(monkeypatch, alone, DeviceOptions.cpu(2))
    earlier(run, 2, 0)
    assert run.decided(1e-4) == (1e-4, 2)
    assert run.said == []


def test_one_thread_after_all_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Short(monkeypatch, "it crashed", DeviceOptions.cpu(2))
    earlier(run, 1, 2)
    assert run.decided(1e-4) == (1e-4, 2)


@pytest.mark.parametrize(
    ("cores", "more", "others"),
    [
        (1, 0, {}),
        (1, None, {}),
        (2, None, {}),
        (2, 0, {"device": "local-task"}),
        (2, 0, {"runner": "server"}),
        (2, 0, {"cluster": "server"}),
        (1, 4, {}),
        (4, 0, {}),
        (2, 0, {"program": "q"}),
    ],
    ids=[
        "one thread was asked for",
        "it does not say",
        "nor that",
        "a device was asked for",
        "measured elsewhere",
        "by others",
        "of others",
        "for others",
        "another program",
    ],
)
def test_what_decided_nothing_is_no_decision(
    monkeypatch: pytest.MonkeyPatch, cores: int, more: int | None, others: dict[str, Any]
) -> None:
    for alone, found in ((3e-5, (3e-5, 1)), (1.9e-4, (1e-4, 2))):
        run = Short(monkeypatch, alone, DeviceOptions.cpu(2))
        earlier(run, cores, more, **others)
        assert run.decided(1e-4) == found


def test_what_is_tuned_anew_is_decided_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Short(monkeypatch, 1.9e-4, DeviceOptions.cpu(2))
    earlier(run, 1, 2)
    run.options = replace(run.options, fresh=True)
    assert run.decided(1e-4) == (1e-4, 2)


def test_what_is_measured_elsewhere_keeps_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Short(monkeypatch, 1e-5, DeviceOptions.cpu(2))
    elsewhere = ClusterBenchmark.__new__(ClusterBenchmark)
    elsewhere.device, elsewhere._threads = DeviceOptions.cpu(2), 2
    run.benchmark = elsewhere
    assert elsewhere.runs_on(2)
    assert run.decided(1e-4) == (1e-4, 2)


@pytest.mark.parametrize(
    ("alone", "device", "default_s"),
    [
        (1.9e-4, DeviceOptions.cpu(2), 1e-4),
        (3e-4, DeviceOptions.cpu(2), 6e-4),
        ("it crashed", DeviceOptions.cpu(2), 1e-4),
        (1e-5, DeviceOptions.cpu(2), 2e-2),
        (1e-5, DeviceOptions("local-task"), 1e-4),
        (1e-5, DeviceOptions("cuda://0"), 1e-4),
    ],
    ids=[
        "hardly faster",
        "enough to share",
        "fails",
        "long",
        "a device that was asked for",
        "a GPU",
    ],
)
def test_others_keep_their_workers(
    monkeypatch: pytest.MonkeyPatch, alone: float | str, device: DeviceOptions, default_s: float
) -> None:
    run = Short(monkeypatch, alone, device)
    assert run.decided(default_s) == (default_s, 2)
    assert (run.options.threads, run.more_threads, run.said) == (2, 0, [])
    assert run.benchmark.device == device
