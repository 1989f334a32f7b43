"""A run that is played: tasks of one knob, workers and a device that answer at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tilewright.argument import ArgumentType
from tilewright.measure.jobs import Result, WorkerFailure
from tilewright.measure.statistics import Measurement
from tilewright.measure.verify import Comparison
from tilewright.space.knobs import TileKnob
from tilewright.space.search_space import SearchSpace
from tilewright.store import Database, TaskKey
from tilewright.target import parse_target
from tilewright.tiling import CompilationInfo, Translation
from tilewright.toolchain import installed_version
from tilewright.trial import Configuration
from tilewright.tuning.candidate_trial import Reference
from tilewright.tuning.context import RunContext
from tilewright.tuning.extract_tasks import ExtractedDispatch
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.prepared_variant import PreparedVariant
from tilewright.tuning.reference_tasks import make_reference
from tilewright.tuning.task import DispatchTask
from tilewright.tuning.variants import DEFAULT_VARIANT
from tilewright.workload import Dim, Workload

TARGET = parse_target("cpu", 2)
RIGHT = Comparison(True, (), 0.0, 0.0, 0.0, 0.0)
WRONG = Comparison(False, (3,), 1.0, 2.0, 1.0, 0.1, "1 of 8 elements differs")


class PlayedPool:
    """Makes references and compiles candidates without doing either.

    `failures`: by name of the dispatch, what becomes of its default.
    """

    def __init__(self, failures: dict[str, WorkerFailure] | None = None) -> None:
        self.failures = failures or {}
        self.jobs: list[Any] = []

    def run(self, jobs: Any) -> list[Result[Any]]:
        wanted = list(jobs)
        self.jobs += wanted
        return [Result(job, self._outcome(job), 0.5) for job in wanted]

    def ask(self, task: Any, request: Any, timeout_s: float | None = None) -> Any:
        self.jobs.append(SimpleNamespace(task=task, request=request))
        return self._outcome(self.jobs[-1])

    def _outcome(self, job: Any) -> Any:
        if job.task is make_reference:
            method = "float64 NumPy" + (", sensitive" if job.request.with_sensitivity else "")
            return Reference("inputs", Path("expected.npz"), ("f32",), method=method)  # type: ignore[arg-type]
        configuration = job.request.configuration
        if configuration is None:
            return self.failures.get(job.request.entry, "default")
        return f"{job.request.entry} {configuration.translation.pipeline}"


class PlayedBenchmark:
    """A device whose times and verdicts are functions of the program's path."""

    round_size = 1

    def __init__(self, time: Any = lambda path: 1e-3, verify: Any = lambda path: [RIGHT]) -> None:
        self._time, self._verify = time, verify
        self.timed: list[str] = []
        self.checked: list[str] = []

    def time(self, vmfb: str, inputs: Any, **more: Any) -> Any:
        self.timed.append(vmfb)
        found = self._time(vmfb)
        return found if isinstance(found, WorkerFailure) else Measurement((found,) * 5)

    def verify(self, request: Any, **more: Any) -> Any:
        self.checked.append(request.vmfb)
        return self._verify(request.vmfb)


def played_task(
    folder: Path, name: str, default_s: float | None = None, share: float = 0.0, sizes: int = 16
) -> DispatchTask:
    """A dispatch with a knob of so many values, the compiler's own being the first."""
    knob = TileKnob("tile", tuple(range(1, sizes + 1)), limit=sizes)
    space = SearchSpace("Played", [knob], [], Configuration.of({"tile": 1}))
    made = SimpleNamespace(
        space=space,
        own="Played",
        default=space.default,
        kernel=lambda one: None,
        lower=lambda one: CompilationInfo(Translation(f"tile {one['tile']}"), ()),
    )
    template = SimpleNamespace(to_json=dict, translation=Translation("Played"))
    dims = (Dim("m", 8), Dim("k", 24, True))
    workload = Workload("contraction", dims, ("f32", "f32", "f32"), (), body=name)
    task = DispatchTask(
        names=[name],
        dispatch=ExtractedDispatch(
            name, name, 1, folder / f"{name}.mlir", outputs=(ArgumentType("f32", (8,)),)
        ),
        count=1,
        workload=workload,
        template=template,  # type: ignore[arg-type]
        space=made,  # type: ignore[arg-type]
        restricted=space,
        variant="default",
        flags=(),
        target=TARGET,
        key=TaskKey(workload, TARGET.key, installed_version("iree-base-compiler")),
        share=share,
        default_s=default_s,
    )
    task.space_points = float(sizes)
    task.folder.mkdir()
    if default_s is not None:
        task.reference = Reference("inputs", Path("expected.npz"))  # type: ignore[arg-type]
    return task


def played_context(
    folder: Path,
    store: Database,
    benchmark: Any = None,
    pool: Any = None,
    **options: Any,
) -> tuple[RunContext, list[Any]]:
    """A run with this device and these workers, and the events that it emits."""
    events: list[Any] = []
    context = RunContext(
        program=SimpleNamespace(source=folder / "p.mlir", digest="digest"),  # type: ignore[arg-type]
        target=options.pop("target", TARGET),
        options=replace(TuneOptions(strategy="random", effort="quick"), **options),
        toolchain=SimpleNamespace(),  # type: ignore[arg-type]
        compilers=pool or PlayedPool(),
        work=folder,
        listener=events.append,
        benchmark=benchmark or PlayedBenchmark(),
        store=store,
    )
    return context, events


def played_variant(*tasks: DispatchTask) -> PreparedVariant:
    """The tasks as those of the compiler's own variant."""
    return PreparedVariant(DEFAULT_VARIANT, (), list(tasks))
