"""TVM: MetaSchedule's search, with the budget that the other tuners have.

Candidates are built and run in the provider's own worker: TVM's own build workers spend longer on
importing it than on a whole search. One that is far behind the best is timed once only. What the
search found is measured again before it is believed: the best of a hundred single measurements is
mostly the luckiest.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from importlib import metadata
from statistics import median
from typing import Any

import numpy as np

from tilewright.compare.comparison_options import Budget, Place
from tilewright.compare.providers.interface import (
    Built,
    PreparedTask,
    PrepareRequest,
    Provider,
    SearchPoint,
    Threads,
)
from tilewright.compare.workloads import ComparedWorkload
from tilewright.kernels.contractions import Contraction, SplitKMatmul
from tilewright.kernels.operation import Operation, OperationKind
from tilewright.target import Target

# TVM asks for no version of its foreign functions; with another (0.1.15, say) it crashes.
_VERSION, _FFI_VERSION = "0.27.0.post1", "0.1.14.post1"
_DEFAULT_TRIALS = 64
_FINALISTS = 5
_FINAL_ROUNDS = 7
# Per candidate: enough to rank it, and one run of what is far behind.
_REPEATS, _HOPELESS = 3, 3.0
_MIN_REPEAT_S = 0.005
_TYPES = {"f32": "float32", "f64": "float64"}


class Tvm(Provider):
    """A tensor expression tuned by MetaSchedule. Without a budget: 64 trials."""

    name = "tvm"
    about = "TVM with MetaSchedule, within --budget"
    modules = ("tvm", "cloudpickle", "psutil", "tornado", "xgboost")
    pip = (
        f"apache-tvm=={_VERSION} apache-tvm-ffi=={_FFI_VERSION} cloudpickle psutil tornado xgboost"
    )
    searches = True

    @classmethod
    def absent(cls) -> str:
        line = super().absent()
        if line or _installed("apache-tvm") != _VERSION:
            return line
        return "" if _installed("apache-tvm-ffi") == _FFI_VERSION else f"pip install {cls.pip}"

    def reason_against(self, workload: ComparedWorkload, target: Target) -> str:
        operation = workload.operation
        if operation is None:
            return "TVM is compared on single operations only"
        if not _has_program(operation.kind):
            return f"no TVM expression is written here for {operation.kind.name}"
        if operation.types.name not in ("f32", "f64"):
            return "the TVM expressions here are written for f32 and f64"
        return ""

    def prepare_s(self, budget: Budget) -> float:
        # What one trial takes at most is known only afterwards; a search that hangs must end.
        return 600.0 + 2 * (budget.seconds or 0.0) + 20.0 * (budget.trials or _DEFAULT_TRIALS)

    def open(self, place: Place) -> None:
        import tvm

        self._tvm: Any = tvm
        self._count = place.threads
        processor = tvm.target.codegen.llvm_get_system_cpu()
        self._target: Any = tvm.target.Target(
            {"kind": "llvm", "mcpu": processor, "num-cores": place.threads}
        )

    def version(self) -> str:
        return f"tvm {self._tvm.__version__} (MetaSchedule, {self._target.attrs['mcpu']})"

    def threads(self) -> Threads:
        told = os.environ.get("TVM_NUM_THREADS", "")
        return Threads(int(told) if told.isdigit() else None, "TVM_NUM_THREADS")

    def prepare(self, request: PrepareRequest, arguments: Sequence[Any]) -> PreparedTask:
        operation = request.operation
        tvm = self._tvm
        function = _tensor_program(tvm, operation)
        module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
        arrays = [tvm.runtime.tensor(np.array(a)) for a in arguments]
        shape, dtype = operation.result.shape or (), operation.result.dtype
        arrays.append(tvm.runtime.tensor(np.zeros(shape, dtype)))
        search = _Search(tvm, self._target, self._count, arrays, request.budget)
        compiled, note = search.run(module)
        main = compiled["main"]
        return PreparedTask(
            lambda: main(*arrays),
            lambda _: [arrays[-1].numpy()],
            Built(None, note, tuple(search.progress)),
            kept=(compiled, arrays),
        )


def _installed(distribution: str) -> str:
    """Its version; '' where it was not installed by pip."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


class _Search:
    """One run of MetaSchedule, in this process."""

    def __init__(
        self, tvm: Any, target: Any, threads: int, arrays: Sequence[Any], budget: Budget
    ) -> None:
        self._tvm = tvm
        self._target = target
        self._threads = threads
        self._arrays = arrays
        self._trials = budget.trials or (10_000 if budget.seconds else _DEFAULT_TRIALS)
        self._deadline_s = budget.seconds or math.inf
        self._start = time.perf_counter()
        self._best_s = math.inf
        self._done = 0
        self._built: dict[str, Any] = {}
        self.progress: list[SearchPoint] = []

    def run(self, module: Any) -> tuple[Any, str]:
        """The fastest compiled module found, and a line on the search."""
        from tvm.s_tir import meta_schedule as ms

        folder = tempfile.mkdtemp(prefix="metaschedule-")
        try:
            database = ms.database.MemoryDatabase()
            ms.tune_tir(
                module,
                self._target,
                folder,
                self._trials,
                num_trials_per_iter=min(64, self._trials),
                builder=self._builder(ms),
                runner=self._runner(ms),
                database=database,
                # The usual ones also remove the builder's files; here there are none.
                measure_callbacks=[
                    ms.measure_callback.AddToDatabase(),
                    ms.measure_callback.UpdateCostModel(),
                ],
                num_tuning_cores=self._threads,
                seed=0,
            )
            records = database.get_top_k(database.commit_workload(module), _FINALISTS)
            if not records:
                raise RuntimeError("MetaSchedule found no schedule that runs")
            best = self._confirmed(module, records)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        seconds = time.perf_counter() - self._start
        return best, f"{self._done} trials in {seconds:.0f} s"

    def _compile(self, module: Any) -> Any:
        return self._tvm.compile(module, target=self._target)

    def _confirmed(self, module: Any, records: Sequence[Any]) -> Any:
        """The fastest of the best few, timed again in interleaved rounds."""
        from tvm.s_tir import Schedule

        compiled = []
        for record in records:
            schedule = Schedule(module)
            record.trace.apply_to_schedule(schedule, remove_postproc=False)
            compiled.append(self._compile(schedule.mod))
        times: list[list[float]] = [[] for _ in compiled]
        for _ in range(_FINAL_ROUNDS):
            for one, samples in zip(compiled, times, strict=True):
                one["main"](*self._arrays)
                samples.append(self._timed(one, 3 * _MIN_REPEAT_S))
        order = sorted(range(len(compiled)), key=lambda i: median(times[i]))
        return compiled[order[0]]

    def _timed(self, compiled: Any, least_s: float) -> float:
        main, calls = compiled["main"], 0
        begin = time.perf_counter()
        while True:
            main(*self._arrays)
            calls += 1
            passed = time.perf_counter() - begin
            if passed >= least_s:
                return passed / calls

    def _expired(self) -> bool:
        return time.perf_counter() - self._start > self._deadline_s

    def _measure(self, compiled: Any) -> list[float]:
        compiled["main"](*self._arrays)
        first = self._timed(compiled, 0.0)
        if first > _HOPELESS * self._best_s:
            return [first]
        return [self._timed(compiled, _MIN_REPEAT_S) for _ in range(_REPEATS)]

    def _builder(self, ms: Any) -> Any:
        from tvm.ir.utils import derived_object

        search = self

        @derived_object
        class InProcessBuilder(ms.builder.PyBuilder):  # type: ignore[misc]
            def build(self, build_inputs: Sequence[Any]) -> list[Any]:
                results = []
                for one in build_inputs:
                    if search._expired():
                        results.append(ms.builder.BuilderResult(None, "out of time"))
                        continue
                    try:
                        name = f"candidate-{len(search._built)}"
                        search._built[name] = search._compile(one.mod)
                        results.append(ms.builder.BuilderResult(name, None))
                    except Exception as error:
                        results.append(ms.builder.BuilderResult(None, str(error)[:500]))
                return results

        return InProcessBuilder()

    def _runner(self, ms: Any) -> Any:
        from tvm.ir.utils import derived_object

        search = self

        @derived_object
        class Ready(ms.runner.PyRunnerFuture):  # type: ignore[misc]
            def __init__(self, times: list[float] | None, error: str | None) -> None:
                super().__init__()
                self._result = ms.runner.RunnerResult(times, error)

            def done(self) -> bool:
                return True

            def result(self) -> Any:
                return self._result

        @derived_object
        class InProcessRunner(ms.runner.PyRunner):  # type: ignore[misc]
            def run(self, runner_inputs: Sequence[Any]) -> list[Any]:
                found = []
                for one in runner_inputs:
                    compiled = search._built.pop(str(one.artifact_path))
                    if search._expired():
                        found.append(Ready(None, "out of time"))
                        continue
                    try:
                        found.append(Ready(search._tell(search._measure(compiled)), None))
                    except Exception as error:
                        found.append(Ready(None, str(error)[:500]))
                return found

        return InProcessRunner()

    def _tell(self, times: list[float]) -> list[float]:
        self._done += 1
        self._best_s = min(self._best_s, median(times))
        wall = time.perf_counter() - self._start
        self.progress.append(SearchPoint(wall, self._done, self._best_s))
        return times


# -- operations as tensor expressions --------------------------------------------------------------


def _has_program(kind: OperationKind) -> bool:
    """Whether an expression is written here for the kind."""
    if not isinstance(kind, Contraction) or isinstance(kind, SplitKMatmul):
        return False
    return kind.steps in ((), ("add",), ("add", "relu"))


def _tensor_program(tvm: Any, operation: Operation) -> Any:
    """An operation as a tensor expression, of a kind that `_has_program`, in f32 or f64: a function
    over the operation's arguments and, last, its result."""
    from tvm import te, topi

    o, kind = operation, operation.kind
    assert isinstance(kind, Contraction)
    arguments = [
        te.placeholder(a.shape or (), name=f"in{i}", dtype=_TYPES[a.element_type])
        for i, a in enumerate(o.arguments)
    ]
    operands, padding = arguments[:2], kind.padding(o)
    if any(padding):
        operands[0] = topi.nn.pad(operands[0], padding, padding, name="padded")
    *stored, result = o.axes
    sums = {a: te.reduce_axis((0, kind.extent(o, a)), name=a) for a in kind.reduced(o)}

    def term(*place: Any) -> Any:
        at = dict(zip(result, place, strict=True)) | sums
        for axis, w in kind.windows.items():
            at[axis] = at[w.result] * o[w.stride] + at[w.window] * o[w.dilation]
        lhs, rhs = (
            operand(*(at[axis] for axis in axes))
            for operand, axes in zip(operands, stored, strict=True)
        )
        return te.sum(lhs * rhs, axis=list(sums.values()))

    value = te.compute(o.result.shape or (), term, name="product")
    if kind.steps:
        value = _with_bias(te, kind, o, value, arguments[2])
    return te.create_prim_func([*arguments, value])


def _with_bias(te: Any, kind: Contraction, operation: Operation, value: Any, bias: Any) -> Any:
    from tvm import tirx

    channel = operation.axes[-1].index(kind.channel)

    def finish(*place: Any) -> Any:
        total = value(*place) + bias(place[channel])
        return tirx.max(total, tirx.const(0.0, bias.dtype)) if "relu" in kind.steps else total

    return te.compute(operation.result.shape or (), finish, name="finished")


PROVIDERS: tuple[type[Provider], ...] = (Tvm,)
