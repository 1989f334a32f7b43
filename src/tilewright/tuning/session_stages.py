"""The stages of a session: candidates compiled, measured, confirmed; each can be replaced.

A session takes a sequence of stages, any of them or all; what is left out is not done. A stage is
whatever has one of three methods, `compiler`, `measurer` or `confirm`; a class with two of them is
both stages in one. The stages that a session has when it is given none are the classes of this
module, made of the same methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar, runtime_checkable

from tilewright.errors import UserError
from tilewright.measure.timing import TimingPolicy
from tilewright.trial import Status, Trial
from tilewright.tuning.confirm import Confirmed, confirm
from tilewright.tuning.context import RunContext
from tilewright.tuning.stages import (
    CandidateMeasurer,
    CompiledCandidate,
    CompileStage,
    DispatchCompiler,
    MeasureStage,
    Selector,
)
from tilewright.tuning.task import DispatchTask

# What a trial is compiled and measured with; finalists are measured again with more care.
SEARCH_TIMING = TimingPolicy(
    warmup_max_s=0.02,
    warmup_max_calls=3,
    min_samples=5,
    max_samples=20,
    target=0.02,
    max_s=0.045,
    min_sample_s=500e-6,
    drop_factor=2.0,
    hopeless_factor=1.2,
    long_s=0.03,
)
# A candidate that takes this much longer to compile than the default has bodies unrolled beyond
# what caches and registers hold; it gets no more time than many others need together.
_COMPILE_LEAST_S, _COMPILE_MOST_S = 1.0, 60.0
_COMPILE_FACTOR = 4.0
# Where nothing is run: this tells whether candidates compile, not whether they do so soon.
_PATIENT_S = 300.0
RUN_TIMEOUT_S = 60.0


@runtime_checkable
class Compiling(Protocol):
    """The stage that makes programs of candidates."""

    def compiler(self, context: RunContext, task: DispatchTask) -> CompileStage:
        """What compiles the candidates of a task.

        Args:
            context: the run, with its workers and options.
            task: whose configurations are compiled.

        Returns:
            It is asked for a batch at a time, for as long as the task is searched.
        """


@runtime_checkable
class Measuring(Protocol):
    """The stage that runs compiled candidates."""

    def measurer(self, context: RunContext, task: DispatchTask) -> MeasureStage:
        """What runs the candidates of a task.

        Args:
            context: the run, with its device.
            task: whose candidates are run; its default has been measured.

        Returns:
            It is asked for one candidate at a time. A trial that is `ok` and has a time can become
            what is handed back, so it answers for the results being right.
        """


@runtime_checkable
class Confirming(Protocol):
    """The stage that compares the best candidates with the compiler's own choice."""

    def confirm(
        self, context: RunContext, tasks: Sequence[DispatchTask], variants: int
    ) -> list[Confirmed]:
        """Find what is faster than the default, beyond the noise.

        Args:
            context: the run.
            tasks: of one variant, with their trials.
            variants: how many still share the time that there is for confirming.

        Returns:
            For each task that has trials the candidates that are faster, the best first.
        """


SessionStage = Compiling | Measuring | Confirming


@dataclass(frozen=True)
class CompileCandidates:
    """The built-in compile stage: warm workers, each candidate's executable alone.

    timeout_s: of each candidate, in processor time; by default what its task's default suggests.
    """

    timeout_s: float | None = None

    def compiler(self, context: RunContext, task: DispatchTask) -> CompileStage:
        """See :meth:`Compiling.compiler`."""
        limit_s = _PATIENT_S if context.options.compile_only else compile_limit_s(task)
        limit_s = limit_s if self.timeout_s is None else self.timeout_s
        return DispatchCompiler(
            task, context.compilers, context.options.keep_candidates, timeout_s=limit_s
        )


@dataclass(frozen=True)
class MeasureCandidates:
    """The built-in measure stage: results checked, times corrected for drift.

    timing: how many samples are taken, and when a slow candidate is given up.
    """

    timing: TimingPolicy = SEARCH_TIMING

    def measurer(self, context: RunContext, task: DispatchTask) -> MeasureStage:
        """See :meth:`Measuring.measurer`."""
        return CandidateMeasurer(
            task.tester(context.benchmark, RUN_TIMEOUT_S),
            replace(self.timing, prime=context.target.is_gpu),
            task.baseline,
            task.name,
            task.kernel_tester(context.benchmark, RUN_TIMEOUT_S),
        )


@dataclass(frozen=True)
class ConfirmFinalists:
    """The built-in confirm stage: finalists through the spec that would be shipped, in interleaved
    rounds with the default.

    selector: picks the finalists of each task (default: the fastest different programs).
    """

    selector: Selector | None = None

    def confirm(
        self, context: RunContext, tasks: Sequence[DispatchTask], variants: int
    ) -> list[Confirmed]:
        """See :meth:`Confirming.confirm`."""
        return confirm(context, tasks, self.selector, variants)


@dataclass(frozen=True)
class SessionStages:
    """The stages of a session by what they do; None for one that is left out."""

    compiling: Compiling | None = None
    measuring: Measuring | None = None
    confirming: Confirming | None = None

    @staticmethod
    def of(stages: Sequence[SessionStage]) -> SessionStages:
        """Sort stages by their methods.

        Args:
            stages: in any order.

        Returns:
            What each of them is for.

        Raises:
            UserError: there is none, one has none of the methods, or two have the same.
        """
        for one in stages:
            if not isinstance(one, Compiling | Measuring | Confirming):
                raise UserError(
                    f"stages: {one!r} is no stage; give it a method compiler, measurer or confirm"
                )
        found = SessionStages(
            _only([one for one in stages if isinstance(one, Compiling)], "compiling"),
            _only([one for one in stages if isinstance(one, Measuring)], "measuring"),
            _only([one for one in stages if isinstance(one, Confirming)], "confirming"),
        )
        if found == SessionStages():
            raise UserError("stages: there is none; a session needs at least one")
        return found

    @property
    def runs(self) -> bool:
        """Whether anything is run, so that there must be a device."""
        return self.measuring is not None or self.confirming is not None

    @property
    def searches(self) -> bool:
        """Whether candidates are tried: compiled and measured."""
        return self.compiling is not None and self.measuring is not None


_Kind = TypeVar("_Kind")


def _only(found: Sequence[_Kind], what: str) -> _Kind | None:
    """The one stage of a kind. Raises UserError where there are two."""
    if len(found) > 1:
        names = " and ".join(type(one).__name__ for one in found)
        raise UserError(f"stages: {names} are all for {what}; give one of them")
    return found[0] if found else None


ALL_STAGES: tuple[SessionStage, ...] = (
    CompileCandidates(),
    MeasureCandidates(),
    ConfirmFinalists(),
)
"""What a session does when it is given no stages."""


class NotMeasured:
    """A measure stage for sessions without one: what compiles is `ok`, and has no time."""

    def measure(self, compiled: CompiledCandidate, best_s: float | None) -> Trial:
        """See :meth:`MeasureStage.measure`.

        Args:
            compiled: a candidate that compiled.
            best_s: not looked at.
        """
        phase_s = {"compile": compiled.seconds}
        return Trial(compiled.configuration, Status.OK, binary=compiled.digest, phase_s=phase_s)


def compile_limit_s(task: DispatchTask) -> float:
    """How long a candidate may take to compile, by how long its default takes.

    Args:
        task: its default has been compiled.

    Returns:
        Seconds of processor time.
    """
    return min(_COMPILE_MOST_S, max(_COMPILE_LEAST_S, _COMPILE_FACTOR * task.compile_s))
