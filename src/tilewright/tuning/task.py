"""One thing to tune: a dispatch, or several together, with space, inputs, reference, history."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tilewright.measure.benchmark import Benchmark
from tilewright.measure.device_options import NO_PARAMETERS, Parameters
from tilewright.measure.inputs import InputSet
from tilewright.measure.timing import InterleavedBaseline
from tilewright.site import KernelChoice
from tilewright.sketch.candidate import KernelRequest, stored
from tilewright.space.generators import DispatchSpace
from tilewright.space.interface import Space
from tilewright.store import TaskKey
from tilewright.target import Target
from tilewright.tiling import CompilationInfo, DispatchTemplate
from tilewright.trial import Configuration, Trial
from tilewright.tuning.candidate_trial import CandidateTester, Reference
from tilewright.tuning.extract_tasks import ExtractedDispatch
from tilewright.tuning.kernel_sites import TunableSite
from tilewright.tuning.reference_tasks import SiteData, SiteProgramRequest
from tilewright.tuning.worker_tasks import CandidateRequest
from tilewright.words import plural
from tilewright.workload import Workload

MAX_REPEATS = 256
MAX_ROTATIONS = 16
_AIM_S = 1.5e-3


@dataclass
class DispatchTask:
    """All dispatches of a program with one workload; `names` lists them, most frequent first.

    `dispatch` is the first of them, which is tuned for all. `count`: executions in one run of the
    program, over all of `names`. `restricted` is the space that is searched (narrowed by a
    configuration file), `space` the whole one. `repeats`: executions in one submission when it is
    timed, `rotations`: on this many sets of operands. `beside`: bytes of constants that a call of
    the whole program reads, or one time around its loop. `key` is the database's: results are
    reused only where all of it is equal.
    `uncompilable`: the compiler's own code for it does not compile, so that something has to take
    its place.
    Times are seconds of one execution: `default_s` as the compiler makes it, `assumed_s` what is
    taken for that where it was not timed.

    `site`: that kernels of our own are tried for, with its `data`; None where there are none. A
    task without a `template` is a site of several dispatches: `dispatch` is then the site's module,
    and what candidates are compared with is all that the compiler makes of it.
    """

    names: list[str]
    dispatch: ExtractedDispatch
    count: int
    workload: Workload
    template: DispatchTemplate | None
    space: DispatchSpace
    restricted: Space
    variant: str
    flags: tuple[str, ...]
    target: Target
    key: TaskKey
    repeats: int = 1
    rotations: int = 1
    beside: int = 0
    reference: Reference | None = None
    baseline: InterleavedBaseline | None = None
    default_s: float | None = None
    assumed_s: float = 0.0
    compile_s: float = 0.0
    share: float = 0.0
    store_id: int = -1
    trials: list[Trial] = field(default_factory=list)
    reused_trials: int = 0
    failure: str = ""
    uncompilable: bool = False
    site: TunableSite | None = None
    data: SiteData | None = None
    parameters: Parameters = NO_PARAMETERS

    @cached_property
    def space_points(self) -> float:
        """Configurations of the space that is searched, about: estimated when it is asked for,
        since many of a network's dispatches stay as the compiler makes them."""
        return self.restricted.size_estimate(np.random.default_rng(0)).points

    @property
    def own_s(self) -> float:
        """Seconds of one execution as the compiler makes it, as far as that is known."""
        return self.assumed_s if self.default_s is None else self.default_s

    @property
    def identity(self) -> str:
        """No other task of the variant has it."""
        return identity(self.workload, self.site)

    @property
    def is_chain(self) -> bool:
        """Whether it is a site of several dispatches."""
        return self.template is None

    @property
    def name(self) -> str:
        """The most frequent of its dispatches."""
        return self.names[0]

    @property
    def folder(self) -> Path:
        """Where its data and its candidates are."""
        return self.dispatch.file.with_suffix("")

    @property
    def best(self) -> Trial | None:
        """The fastest trial so far that gave right results."""
        done = [t for t in self.trials if t.ok]
        return min(done, key=lambda t: t.time_s or float("inf")) if done else None

    @property
    def reused(self) -> bool:
        """Whether an earlier run's result was taken over instead of searching again."""
        return self.reused_trials > 0

    @property
    def inputs(self) -> InputSet:
        """The arguments that it is tuned with, once there are some."""
        assert self.reference is not None
        return self.reference.inputs

    def tester(self, benchmark: Benchmark, timeout_s: float) -> CandidateTester:
        """What runs candidates of this task, once it has a reference.

        Args:
            benchmark: where they run.
            timeout_s: for each check and each timing.
        """
        assert self.reference is not None
        reference, parameters = self.reference, self.parameters
        return CandidateTester(benchmark, reference, self.repeats, timeout_s, parameters=parameters)

    def kernel_tester(self, benchmark: Benchmark, timeout_s: float) -> CandidateTester | None:
        """What runs kernels of this task, each on its own packing of the site's inputs; None for a
        task without a site.

        Args:
            benchmark: where they run.
            timeout_s: for each check and each timing.
        """
        if self.data is None:
            return None
        return CandidateTester(benchmark, self.data.reference, self.repeats, timeout_s)

    def finalist_tester(
        self, benchmark: Benchmark, timeout_s: float, configuration: Configuration
    ) -> CandidateTester:
        """What runs a configuration that was compiled through a spec.

        Args:
            benchmark: where it runs.
            timeout_s: for each check and each timing.
            configuration: of the task's space; for a kernel the program is the site's.
        """
        if self.data is None or self.kernel(configuration) is None:
            return self.tester(benchmark, timeout_s)
        reference = replace(self.data.reference, inputs=self.data.inputs)
        return CandidateTester(
            benchmark, reference, self.repeats, timeout_s, parameters=self.data.parameters
        )

    def request(
        self, vmfb: Path, configuration: CompilationInfo | None = None, **further: Any
    ) -> CandidateRequest:
        """What a worker is asked to make a candidate of this task.

        Args:
            vmfb: where the program goes.
            configuration: None: the compiler's own.
            further: other fields of the request, in place of the task's.
        """
        made = CandidateRequest(
            configured=self.dispatch.configured,
            executable=self.dispatch.executable,
            entry=self.name,
            configuration=configuration,
            repeats=self.repeats,
            rotations=self.rotations,
            flags=self.flags,
            vmfb=vmfb,
        )
        return replace(made, **further)

    def kernel_request(
        self, vmfb: Path, choice: KernelChoice, keep: Path | None, programs: Path
    ) -> KernelRequest:
        """What a worker is asked to make a kernel for the task's site.

        Args:
            vmfb: where the program goes.
            choice: the kernel.
            keep: where its code goes, if it is kept.
            programs: a folder for what is known of programs.
        """
        assert self.site is not None
        return KernelRequest(
            stored(self.site.expression),
            choice,
            self.target,
            self.flags,
            self.repeats,
            vmfb,
            keep=keep,
            programs=programs,
            inputs=self.data.reference.inputs if self.data is not None else None,
            packed=self.folder / "packed",
            beside=self.beside,
            site=self.site.site,
        )

    def site_request(self, vmfb: Path) -> SiteProgramRequest:
        """What a worker is asked to make a program of the task's site, as the compiler does.

        Args:
            vmfb: where the program goes.
        """
        assert self.data is not None
        return SiteProgramRequest(self.data.program, self.flags, vmfb, self.repeats)

    @property
    def verified_against(self) -> str:
        """What the results of candidates are compared with."""
        return self.reference.method if self.reference is not None else ""

    def lower(self, configuration: Configuration) -> CompilationInfo:
        """What the compiler is told for a configuration of the space that is no kernel."""
        return self.space.lower(configuration)

    def kernel(self, configuration: Configuration) -> KernelChoice | None:
        """The kernel that a configuration of the space stands for, None for one of a pipeline."""
        return self.space.kernel(configuration)

    def describe(self, configuration: Configuration) -> str:
        """A configuration in words.

        Args:
            configuration: of the task's space.
        """
        kernel = self.kernel(configuration)
        if kernel is not None:
            return kernel.describe()
        assert self.template is not None
        return self.lower(configuration).describe(self.template.root)

    @property
    def own_choice(self) -> str:
        """What the compiler does by itself, in words."""
        if self.template is None:
            parts = self.site.site.dispatches if self.site is not None else self.names
            count = plural(len(parts), "dispatch", "dispatches")
            return f"{count}, as the compiler configures {'it' if len(parts) == 1 else 'them'}"
        return self.template.default.describe(self.template.root)

    @property
    def guessed_s(self) -> float:
        """What it is guessed to take of a run of the program, in seconds."""
        return self.count * guessed_s(self.workload, self.target.cores, self.target.is_gpu)

    def gflops(self, seconds: float | None) -> float | None:
        """10^9 operations a second; None where none are counted.

        Args:
            seconds: of one execution, None where it is not known.
        """
        return self.workload.flops / seconds / 1e9 if seconds and self.workload.flops else None


def identity(workload: Workload, site: TunableSite | None) -> str:
    """What tells a task from the others of a variant: what it computes, and of what kernels.

    Args:
        workload: what it computes.
        site: that kernels are tried for, if there are some.
    """
    return workload.key if site is None else f"{workload.key}/{site.digest}"


class Work(Protocol):
    """How much a program does: arithmetic operations, and bytes read or written."""

    @property
    def flops(self) -> int: ...

    @property
    def bytes(self) -> int: ...


def guessed_s(work: Work, cores: int, gpu: bool = False) -> float:
    """What an execution takes, in seconds, guessed from the work done.

    Args:
        work: of one execution.
        cores: that it runs on, of a CPU.
        gpu: whether it runs on a GPU.
    """
    flops, rate, least = (10e12, 500e9, 5e-6) if gpu else (60e9 * cores, 20e9, 3e-6)
    return max(work.flops / flops, work.bytes / rate, least)


def repeats_for(work: Work, cores: int, gpu: bool = False) -> int:
    """Executions in one submission so that it lasts about 1.5 ms, by `guessed_s`.

    A submission costs some 20 to 50 us in the runtime; that must stay small beside what is timed.

    Args:
        work: of one execution.
        cores: that it runs on, of a CPU.
        gpu: whether it runs on a GPU.

    Returns:
        1 to `MAX_REPEATS`.
    """
    return max(1, min(MAX_REPEATS, round(_AIM_S / guessed_s(work, cores, gpu))))


def rotations_for(bytes_: int, cache_bytes: int, repeats: int) -> int:
    """Sets of operands that together are twice as large as a cache; 1 where one set is enough.

    Args:
        bytes_: of one set of operands.
        cache_bytes: of the cache.
        repeats: executions in one submission, more sets than which are of no use.

    Returns:
        1 to `MAX_ROTATIONS`.
    """
    if repeats == 1 or bytes_ <= 0 or bytes_ >= cache_bytes:
        return 1
    return min(repeats, MAX_ROTATIONS, -(-2 * cache_bytes // bytes_))
