"""How to run the program that is handed back: which choices there are, what rounds say of them."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tilewright.argument import ArgumentType
from tilewright.measure import benchmark_worker as tasks
from tilewright.measure.benchmark import Benchmark
from tilewright.measure.comparison import ComparisonPolicy
from tilewright.measure.device_options import DeviceOptions, Parameters
from tilewright.measure.inputs import InputFile, InputSet, ScalarInput
from tilewright.measure.jobs import WorkerFailure
from tilewright.measure.timing import Repetition
from tilewright.tuning import how_to_run
from tilewright.tuning.how_to_run import lines, measure_ways, summarised, ways_to_run
from tilewright.tuning.programs import Build
from tilewright.tuning.variants import DEFAULT_VARIANT

POLICY = ComparisonPolicy()


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whatever this machine offers, nothing."""
    monkeypatch.setattr(how_to_run, "huge_pages_on_request", lambda: False)
    monkeypatch.setattr("psutil.cpu_count", lambda logical: 1)


def test_ways_are_the_calling_thread_and_workers() -> None:
    def shown(threads: int) -> list[tuple[str, int | None]]:
        return [(one.uri, one.threads) for one in ways_to_run(threads)]

    alone = ("local-sync", None)
    assert shown(1) == [alone]
    assert shown(2) == [alone, ("local-task", 2)]
    assert shown(6) == [alone, *(("local-task", n) for n in (2, 4, 6))]
    assert shown(8) == [alone, *(("local-task", n) for n in (2, 4, 8))]


def test_all_threads_are_tried_with_huge_pages_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(how_to_run, "huge_pages_on_request", lambda: True)
    assert ways_to_run(1)[1:] == [DeviceOptions("local-sync", huge_pages=True)]
    assert [one.huge_pages for one in ways_to_run(8)] == [False] * 4 + [True]
    assert ways_to_run(8)[-1].threads == 8


def test_as_many_workers_as_cores_are_tried_on_cores_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("psutil.cpu_count", lambda logical: 16 if logical else 4)
    assert [one.pinned for one in ways_to_run(4)] == [False] * 3 + [True]
    (*_, flag) = ways_to_run(4)[-1].tool_flags
    assert flag == "--task_topology_max_group_count=4"
    assert not any(one.pinned for n in (1, 8) for one in ways_to_run(n)), "no core for each"
    monkeypatch.setattr(how_to_run, "huge_pages_on_request", lambda: True)
    last = [(one.huge_pages, one.pinned) for one in ways_to_run(4)[2:]]
    assert last == [(False, False), (True, False), (False, True), (True, True)]


def test_the_line_with_huge_pages_is_one_that_a_shell_runs(
    worker: type[Worker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(how_to_run, "huge_pages_on_request", lambda: True)
    found = measure_ways(programs(tmp_path, DeviceOptions.cpu(2)), BUILD, tmp_path / "p.vmfb")
    (huge,) = [one for one in found if one.huge_pages]
    env, variable, tool, *_ = shlex.split(huge.command)
    assert (env, tool) == ("env", "iree-benchmark-module")
    assert variable.startswith("GLIBC_TUNABLES=glibc.malloc.hugetlb=1:")
    assert ", huge pages: env GLIBC_TUNABLES=" in lines([huge])[0]
    assert not any("GLIBC" in one.command for one in found if one is not huge)


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
    """A benchmark whose programs take what is said of its device, or fail."""

    seconds: dict[str, float | None]
    asked: list[tuple[str, int | None]]

    def __init__(self, device: DeviceOptions) -> None:
        self.device = device

    def ask(self, task: object, request: object, timeout_s: float | None = None) -> object:
        assert task is tasks.repeat
        self.asked.append((self.device.uri, request.iterations))  # type: ignore[attr-defined]
        seconds = self.seconds[self.device.uri]
        return WorkerFailure("crashed", "gone") if seconds is None else Repetition(7, seconds, 0)

    def close(self) -> None:
        pass


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> type[Worker]:
    monkeypatch.setattr(how_to_run, "Benchmark", Worker)
    Worker.seconds, Worker.asked = {"local-sync": 1e-3, "local-task": 2e-3}, []
    return Worker


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


def test_each_way_is_timed_and_has_its_line(worker: type[Worker], tmp_path: Path) -> None:
    run = programs(tmp_path, DeviceOptions.cpu(2))
    first, second = measure_ways(run, BUILD, tmp_path / "out" / "program.vmfb")
    assert (first.device, first.threads, first.ms, first.advised) == ("local-sync", 1, 1.0, True)
    assert (second.device, second.threads, second.ms, second.advised) == (
        "local-task", 2, 2.0, False,
    )  # fmt: skip
    assert second.ratio_ci == (1.0, 1.0)
    assert first.ratio_ci == pytest.approx((0.5, 0.5))
    assert shlex.split(second.command) == [
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
    counts = [n for uri, n in worker.asked if uri == "local-sync"]
    assert counts[0] is None
    assert set(counts[1:]) == {7}, "as many iterations in each round"


def test_what_a_user_gives_is_in_the_line(worker: type[Worker], tmp_path: Path) -> None:
    run = programs(tmp_path, DeviceOptions.cpu(2))
    run.context.options.inputs = ("4x5xf32=1", "i32=2")
    (first, _) = measure_ways(run, BUILD, tmp_path / "p.vmfb")
    assert shlex.split(first.command)[-2:] == ["--input=4x5xf32=1", "--input=i32=2"]


def test_a_program_that_fails_on_one_device_has_no_choice(
    worker: type[Worker], tmp_path: Path
) -> None:
    worker.seconds["local-sync"] = None
    assert measure_ways(programs(tmp_path, DeviceOptions.cpu(2)), BUILD, tmp_path) == ()


@pytest.mark.parametrize(
    "change",
    [
        lambda run: setattr(run, "benchmark", Worker(DeviceOptions("cuda://0"))),
        lambda run: setattr(run, "benchmark", type("Remote", (Worker,), {})(DeviceOptions.cpu(2))),
        lambda run: setattr(run.context, "left_s", 0.0),
    ],
    ids=["a GPU", "another machine", "no time left"],
)
def test_where_there_is_nothing_to_measure(
    worker: type[Worker], tmp_path: Path, change: Callable[[SimpleNamespace], None]
) -> None:
    run = programs(tmp_path, DeviceOptions.cpu(2))
    change(run)
    assert measure_ways(run, BUILD, tmp_path) == ()
    assert worker.asked == []
