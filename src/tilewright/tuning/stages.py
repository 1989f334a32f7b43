"""The stages of a search, each an interface that a client can replace.

A search asks a *source* for configurations, has a *compiler* make programs of them, a *measurer*
run those, and a *selector* pick the finalists. `search_loop.SearchLoop` drives the stages and
keeps the promises that hold for any of them: every trial is stored before the next is asked for,
nothing is tried twice, budgets are kept, failures are data.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, Self

from tilewright.ir.session import CONFIGURED_PHASE
from tilewright.measure.compile_worker import SETTING_UP_S
from tilewright.measure.inputs import InputSet
from tilewright.measure.jobs import Job, JobRunner, Result
from tilewright.measure.timing import InterleavedBaseline, TimingPolicy
from tilewright.schedule.errors import ScheduleError
from tilewright.site import KernelChoice
from tilewright.sketch.candidate import CompiledKernel
from tilewright.sketch.candidate_tasks import compile_flags, compile_kernel, compile_kernels
from tilewright.trial import Configuration, Status, Trial
from tilewright.tuning.candidate_trial import NOT_VERIFIED, CandidateTester
from tilewright.tuning.task import DispatchTask
from tilewright.tuning.worker_tasks import compile_candidate


@dataclass(frozen=True)
class CompiledCandidate:
    """A candidate as the compile stage leaves it.

    `status` is `ok` or says why there is no program; `artifact` is what the measure stage needs
    (here the path of a vmfb, which need not exist when the digest is that of an earlier candidate);
    `digest` is equal for equal programs. `inputs`: its own arguments, of a kernel that takes them
    packed; None: those of its task.
    """

    configuration: Configuration
    status: Status
    artifact: Any = None
    digest: str = ""
    message: str = ""
    seconds: float = 0.0
    inputs: InputSet | None = None

    @classmethod
    def of(cls, result: Result[Any], artifact: Any = None, digest: str = "") -> Self:
        """A candidate as the worker that compiled it left it.

        Args:
            result: of a job whose tag is the configuration.
            artifact: what is to be measured, if the job did not fail.
            digest: of the program, if the job did not fail.

        Returns:
            The candidate; a job that failed is a status.
        """
        failure = result.failure
        if failure is None:
            return cls(result.job.tag, Status.OK, artifact, digest, seconds=result.seconds)
        status, message = failure.compile_status, failure.message
        return cls(result.job.tag, status, message=message, seconds=result.seconds)


class Source(Protocol):
    """Where candidates come from. Every `search.Strategy` is one."""

    def ask(self, n: int) -> list[Configuration]:
        """Up to `n` configurations, none of them twice; fewer or none when there are no more.

        Args:
            n: how many are wanted.

        Returns:
            Configurations of the space.
        """

    def tell(self, trials: Sequence[Trial]) -> None:
        """What became of candidates, failures included.

        Args:
            trials: what was asked for, or what was known before.
        """


class CompileStage(Protocol):
    """Makes programs of configurations."""

    def compile(self, configurations: Sequence[Configuration]) -> list[CompiledCandidate]:
        """A program for each configuration, in their order; failures are statuses.

        Args:
            configurations: different ones.

        Returns:
            One candidate for each.
        """


class MeasureStage(Protocol):
    """May also have `prepare(compiled, best_s)`: told the programs of a batch before they are
    measured one by one."""

    def measure(self, compiled: CompiledCandidate, best_s: float | None) -> Trial:
        """Run one compiled candidate. `best_s` is the best time so far.

        Args:
            compiled: a candidate that compiled.
            best_s: seconds of the best so far, None while there is none.

        Returns:
            What became of it.
        """


class Selector(Protocol):
    """Picks the trials that are measured again with more care."""

    def select(self, trials: Sequence[Trial], count: int) -> list[Trial]:
        """The finalists, best first.

        Args:
            trials: all of a task, failures included.
            count: how many at most.

        Returns:
            Trials that are `ok`.
        """


@dataclass
class Stages:
    """The stages of one search."""

    source: Source
    compiler: CompileStage
    measurer: MeasureStage


class Exhausted:
    """A source that has nothing more."""

    def ask(self, n: int) -> list[Configuration]:
        """See :meth:`Source.ask`.

        Args:
            n: how many are wanted.
        """
        return []

    def tell(self, trials: Sequence[Trial]) -> None:
        """See :meth:`Source.tell`.

        Args:
            trials: none.
        """


class OpeningFirst:
    """A source that begins with given configurations, and goes on with a source that is made when
    these have been tried.

    What each sketch of a kernel takes for best is tried before any model has a say: how sketches
    compare with each other and with the compiler's pipelines, no prior tells.
    """

    def __init__(
        self, opening: Sequence[Configuration], make: Callable[[Sequence[Trial]], Source]
    ) -> None:
        """A source that begins with an opening.

        Args:
            opening: different configurations.
            make: the source that goes on, of the trials that the opening became.
        """
        self._opening = list(opening)
        self._make = make
        self._told: list[Trial] = []
        self._waiting = False
        self._source: Source | None = None

    def ask(self, n: int) -> list[Configuration]:
        """See :meth:`Source.ask`. What goes on is asked when the opening has been told.

        Args:
            n: how many are wanted.
        """
        first, self._opening = self._opening[:n], self._opening[n:]
        waiting, self._waiting = self._waiting, bool(first)
        if first or waiting:
            return first
        return self._going_on().ask(n)

    def tell(self, trials: Sequence[Trial]) -> None:
        """See :meth:`Source.tell`.

        Args:
            trials: what became of what was asked for.
        """
        self._waiting = False
        if self._source is None:
            self._told += trials
        else:
            self._source.tell(trials)

    def _going_on(self) -> Source:
        if self._source is None:
            self._source = self._make(self._told)
        return self._source


class FastestFirst:
    """Selects the fastest trials with different programs."""

    def select(self, trials: Sequence[Trial], count: int) -> list[Trial]:
        """The fastest trials that are `ok`, of each program one.

        Args:
            trials: all of a task, failures included.
            count: how many at most.

        Returns:
            The fastest first.
        """
        done = sorted((t for t in trials if t.ok), key=lambda t: t.time_s or float("inf"))
        chosen: list[Trial] = []
        binaries: set[str] = set()
        for trial in done:
            if trial.binary and trial.binary in binaries:
                continue
            binaries.add(trial.binary)
            chosen.append(trial)
            if len(chosen) == count:
                break
        return chosen


def discard(compiled: CompiledCandidate) -> None:
    """Remove a candidate's program: thousands of them would fill the disk.

    Args:
        compiled: the candidate; nothing is done for one without a program.
    """
    if compiled.artifact is not None:
        compiled.artifact.unlink(missing_ok=True)


@dataclass
class DispatchCompiler:
    """Compiles configurations of a dispatch in a pool of warm workers.

    `keep` is a folder for every candidate's MLIR and
    compile command. Candidates are numbered on from the task's trials, so that a resumed run does
    not write over those that were kept.
    """

    task: DispatchTask
    pool: JobRunner
    keep: Path | None = None
    timeout_s: float = 30.0
    _count: int = field(default=0, init=False)
    _stems: dict[Configuration, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._count = len(self.task.trials)

    def compile(self, configurations: Sequence[Configuration]) -> list[CompiledCandidate]:
        """Compile configurations, as many at a time as there are workers.

        Args:
            configurations: different ones of the task's space.

        Returns:
            A candidate for each, in their order. Of several that become the same program all have
            the path of the one that was written.
        """
        jobs = self.jobs(configurations)
        # What takes longest first, so that no worker is left with it at the end: the compiler's own
        # pipelines take several times what kernels take.
        first = sorted(range(len(jobs)), key=lambda at: jobs[at].task is compile_kernel)
        results = dict(zip(first, self.pool.run([jobs[at] for at in first]), strict=True))
        return self.compiled([results[at] for at in range(len(jobs))])

    def jobs(self, configurations: Sequence[Configuration]) -> list[Job[Any, Any]]:
        """What the pool is asked, for who asks it for several dispatches at once.

        Args:
            configurations: different ones of the task's space.

        Returns:
            A job for each, in their order.
        """
        jobs: list[Job[Any, Any]] = []
        for configuration in configurations:
            self._count += 1
            self._stems[configuration] = f"candidate_{self._count:05d}"
            job = self._job(configuration, self._stems[configuration])
            jobs.append(replace(job, tag=configuration, processor_time=True, first_s=SETTING_UP_S))
        return jobs

    def command(self, configuration: Configuration) -> str:
        """The line of `iree-compile` that makes the program of a configuration.

        Args:
            configuration: one that was compiled.

        Returns:
            The line, with the file's place where candidates are kept.
        """
        stem = self._stems.get(configuration, "candidate")
        folder = self._kept_folder()
        return self._command(stem if folder is None else str(folder / stem), configuration)

    def _command(self, stem: str, configuration: Configuration) -> str:
        flags: Sequence[str] = (f"--compile-from={CONFIGURED_PHASE}", *self.task.flags)
        if self.task.kernel(configuration) is not None:
            flags = compile_flags(self.task.flags)
        return f"iree-compile {stem}.mlir {' '.join(flags)} -o {stem}.vmfb"

    def compiled(self, results: Sequence[Result[Any]]) -> list[CompiledCandidate]:
        """The candidates that the pool made.

        Args:
            results: of the jobs, in their order.

        Returns:
            As `compile`.
        """
        outcomes = [_compiled(result) for result in results]
        # Of those that become the same program only one is written: the first to be compiled, which
        # need not be the first in the batch.
        written = {
            one.digest: one.artifact
            for one in outcomes
            if one.status is Status.OK and one.artifact.exists()
        }
        return [replace(one, artifact=written.get(one.digest, one.artifact)) for one in outcomes]

    def _job(self, configuration: Configuration, stem: str) -> Job[Any, Any]:
        """What makes a program of a configuration: of a kernel or of the compiler's code."""
        vmfb, programs = self.task.folder / f"{stem}.vmfb", self.task.folder / "programs"
        kernel = self.task.kernel(configuration)
        if kernel is not None:
            asked = self.task.kernel_request(
                vmfb, kernel, self._kept_kernel(stem, configuration, kernel), programs
            )
            # Executables for a GPU stay apart.
            together = None if asked.target.is_gpu else compile_kernels
            return Job(compile_kernel, asked, self.timeout_s, together=together)
        request = self.task.request(
            vmfb,
            self.task.lower(configuration),
            keep=self._kept_path(stem, configuration),
            splice=True,
            programs=programs,
        )
        return Job(compile_candidate, request, self.timeout_s)

    def _kept_kernel(
        self, stem: str, configuration: Configuration, choice: KernelChoice
    ) -> Path | None:
        """Where a kernel's code goes; beside it are its loops and the calls that schedule them."""
        folder = self._kept_folder()
        if folder is None or self.task.site is None:
            return None
        with contextlib.suppress(ScheduleError):
            made = self.task.site.kernel(choice)
            (folder / f"{stem}.loops").write_text(made.lower().text)
            (folder / f"{stem}.py").write_text(made.schedule.trace().to_python())
        (folder / f"{stem}.txt").write_text(self._command(stem, configuration) + "\n")
        return folder / f"{stem}.mlir"

    def _kept_folder(self) -> Path | None:
        if self.keep is None:
            return None
        folder = self.keep / self.task.variant / self.task.name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _kept_path(self, stem: str, configuration: Configuration) -> Path | None:
        folder = self._kept_folder()
        if folder is None:
            return None
        (folder / f"{stem}.txt").write_text(self._command(stem, configuration) + "\n")
        return folder / f"{stem}.mlir"


def _compiled(result: Result[Any]) -> CompiledCandidate:
    """A candidate of a job that made a program of the compiler's code, or of a kernel."""
    vmfb = result.job.request.vmfb
    if result.failure is not None:
        return CompiledCandidate.of(result)
    if result.job.task is not compile_kernel:
        return CompiledCandidate.of(result, vmfb, result.value)
    made: CompiledKernel = result.value
    return replace(CompiledCandidate.of(result, vmfb, made.digest), inputs=made.inputs)


@dataclass
class CandidateMeasurer:
    """Runs compiled candidates: times them, and checks their results.

    Only a candidate whose results equal the reference's has a time, so that one that computes
    garbage fast is never taken for a good one. `kernels` runs candidates that have inputs of their
    own.
    """

    tester: CandidateTester
    policy: TimingPolicy
    baseline: InterleavedBaseline | None = None
    name: str = ""
    kernels: CandidateTester | None = None
    _best_s: float | None = field(default=None, init=False)

    def measure(self, compiled: CompiledCandidate, best_s: float | None) -> Trial:
        """Run one candidate.

        Args:
            compiled: the candidate; its artifact is the path of a vmfb.
            best_s: the best time so far.

        Returns:
            What became of it.
        """
        # A round is measured by what was best when it began.
        best_s = best_s if self.tester.benchmark.round_size == 1 else self._best_s
        tester = self.tester
        if compiled.inputs is not None and self.kernels is not None:
            reference = replace(self.kernels.reference, inputs=compiled.inputs)
            tester = replace(self.kernels, reference=reference)
        tested = tester.test(compiled.artifact, self.policy, best_s, self.baseline)
        trial = Trial(
            compiled.configuration,
            tested.status,
            message=tested.message,
            binary=compiled.digest,
            phase_s={"compile": compiled.seconds},
        )
        if tested.ok and tester.reference.method == NOT_VERIFIED:
            trial = replace(trial, message=f"{tested.message}; not verified".lstrip("; "))
        found = tested.measurement
        if found is None:
            return trial
        seconds = sum(found.samples) * max(1, found.executions_per_sample)
        trial = replace(trial, phase_s={**trial.phase_s, "measure": seconds})
        return replace(trial, time_s=found.time_s, samples=found.samples) if tested.ok else trial

    def prepare(self, compiled: Sequence[CompiledCandidate], best_s: float | None) -> None:
        """Measure many together, where that is how the benchmark does it.

        Args:
            compiled: the candidates of a batch that are new programs.
            best_s: the best time when the batch began.
        """
        benchmark = self.tester.benchmark
        if benchmark.round_size > 1:
            self._best_s = best_s
            with benchmark.ahead(f"{len(compiled)} candidates of {self.name}"):
                for one in compiled:
                    self.measure(one, best_s)
