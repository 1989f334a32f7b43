"""A tuning session with compile, measure and confirm stages of one's own, or with one stage alone.

Each stage here does most of its work by the built-in one, and changes what it is about: candidates
with tiles narrower than a vector are not compiled, times are the least of several instead of their
median, and only what is a tenth faster is kept.

python examples/session_stages.py examples/matmul.mlir
python examples/session_stages.py examples/matmul.mlir --only compile
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.trial import Configuration, Status, Trial
from tilewright.tuning.compile_only import CompileOnlyResult
from tilewright.tuning.confirm import Confirmed
from tilewright.tuning.context import RunContext
from tilewright.tuning.request import make_request
from tilewright.tuning.session import TuningSession
from tilewright.tuning.session_stages import (
    CompileCandidates,
    ConfirmFinalists,
    MeasureCandidates,
    SessionStage,
)
from tilewright.tuning.stages import CompiledCandidate, CompileStage, MeasureStage
from tilewright.tuning.task import DispatchTask

HERE = Path(__file__).resolve().parent


@dataclass
class WideTiles:
    """Compiles candidates whose tiles are as wide as a vector; the others are invalid trials."""

    inner: CompileStage
    lanes: int

    def compile(self, configurations: Sequence[Configuration]) -> list[CompiledCandidate]:
        good = [one for one in configurations if self.fits(one)]
        compiled = {one.configuration: one for one in self.inner.compile(good)}
        return [compiled.get(one) or self.refused(one) for one in configurations]

    def fits(self, configuration: Configuration) -> bool:
        return all(
            int(value) >= self.lanes
            for name, value in configuration.items
            if name == "vector_common_parallel_n"
        )

    def refused(self, configuration: Configuration) -> CompiledCandidate:
        message = f"its tiles are narrower than {self.lanes} elements"
        return CompiledCandidate(configuration, Status.INVALID, message=message)


class OwnCompile:
    """A stage has what its method says: here, what compiles the candidates of a task."""

    def compiler(self, context: RunContext, task: DispatchTask) -> CompileStage:
        inner = CompileCandidates().compiler(context, task)
        return WideTiles(inner, context.target.vector_bytes // 4)


@dataclass
class Least:
    """Measures as the stage inside does, and takes the least of its samples."""

    inner: MeasureStage

    def measure(self, compiled: CompiledCandidate, best_s: float | None) -> Trial:
        trial = self.inner.measure(compiled, best_s)
        return replace(trial, time_s=min(trial.samples)) if trial.ok else trial


class OwnMeasure:
    def measurer(self, context: RunContext, task: DispatchTask) -> MeasureStage:
        return Least(MeasureCandidates().measurer(context, task))


class OwnConfirm:
    """Keeps what is a tenth faster than the compiler's choice."""

    def confirm(
        self, context: RunContext, tasks: Sequence[DispatchTask], variants: int
    ) -> list[Confirmed]:
        found = ConfirmFinalists().confirm(context, tasks, variants)
        for one in found:
            one.faster = [c for c in one.faster if c.finalist and c.finalist.speedup.low > 1.1]
        return found


STAGES: dict[str, SessionStage] = {
    "compile": OwnCompile(),
    "measure": OwnMeasure(),
    "confirm": OwnConfirm(),
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", nargs="?", type=Path, default=HERE / "matmul.mlir")
    parser.add_argument("--only", choices=list(STAGES), action="append", help="default: all")
    parser.add_argument("--max-trials", type=int, default=16)
    parser.add_argument("--output", default="tuned-by-stages")
    options = parser.parse_args(arguments)
    given = {
        "effort": "quick",
        "kernels": "off",
        "variants": "default",
        "max_trials": options.max_trials,
        "output": options.output,
    }
    request = make_request(options.program, given)
    stages = [STAGES[name] for name in options.only or STAGES]
    result = TuningSession(request.program, request.options, stages=stages).run()
    if isinstance(result, CompileOnlyResult):
        for dispatch in result.dispatches:
            print(f"{dispatch.name}: {dispatch.compiled} of {dispatch.sampled} compiled")
        return
    for row in result.dispatches:
        print(f"{row.name}: {row.trials} trials, {row.failed_trials} failed, {row.status}")
    print(f"the program is {result.program.speedup:.2f} times as fast")


if __name__ == "__main__":
    main()
