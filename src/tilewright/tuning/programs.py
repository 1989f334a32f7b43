"""Whole programs: compiling them with a variant and a spec, running, checking, comparing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright.ir.program import choose_function
from tilewright.ir.session import CONFIGURED_PHASE
from tilewright.ir.signature import Signature
from tilewright.measure.benchmark import Benchmark
from tilewright.measure.comparison import ComparisonPolicy, Finalist
from tilewright.measure.device_options import Parameters
from tilewright.measure.input_syntax import parse_input, resolve_inputs
from tilewright.measure.inputs import (
    InputSet,
    index_bounds,
    turned_inputs,
    write_inputs,
)
from tilewright.measure.pool import WorkerFailure
from tilewright.measure.timing import TimingPolicy
from tilewright.toolchain import UNVERIFIED
from tilewright.tuning.builds import (
    COMPILE_TIMEOUT_S,
    Build,
    compile_program,
    programs_folder,
)
from tilewright.tuning.candidate_trial import NOT_VERIFIED, CandidateTester, Reference, Tested
from tilewright.tuning.context import RunContext
from tilewright.tuning.estimates import (
    COMPARING,
    RUNNING,
    comparing_s,
    comparison_s,
    with_kernels_s,
)
from tilewright.tuning.exact_results import ExactResults
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.roundings import Roundings

# A program is a chain of many roundings; its outputs are compared as one sum of this many terms.
PROGRAM_REDUCTION_LENGTH = 1 << 16
# For a run of it, for timing it and for comparing several.
RUN_TIMEOUT_S = 900.0
# Programs that differ by more need no more rounds than it takes to be sure of it.
CLEAR = 0.05
# Seconds of a turn in a comparison, in which there are as many calls as a turn has parts: those of
# a millisecond and less need no more calls than that.
_FILLED_S = 0.02
# For a run of a tuned program: seconds, and times what the untuned one takes.
_RUN_LEAST_S, _RUN_TIMES = 60.0, 100.0
# Of the seconds of samples at a first look, from when on a call is not warmed up.
_LONG_OF_SAMPLES = 0.3


class Programs:
    """Builds and measures the program of a run, all of its variants on the same inputs.

    The outputs of the program that the plain compiler makes are what the others must equal.
    `seconds_each` says what compiling one took of the run's time.
    """

    def __init__(
        self,
        context: RunContext,
        function: str,
        signature: Signature,
        inputs: InputSet,
        parameters: Parameters,
        compile_timeout_s: float = COMPILE_TIMEOUT_S,
    ) -> None:
        self.context = context
        self.program = context.program
        self.toolchain = context.toolchain
        self.folder = programs_folder(context)
        self.function = function
        self.signature = signature
        self.inputs = inputs
        self.parameters = parameters
        self.compile_timeout_s = compile_timeout_s
        self.expected = self.folder / "expected.npz"
        # Other data, and what the compiler's own program makes of them; None where there are none.
        self.others: tuple[InputSet, Path] | None = None
        # What judges results that differ, of a quantised program; `exact` those of others.
        self.roundings: Roundings | None = None
        self.exact = ExactResults(
            context, self.folder, self.keep_outputs, function, parameters, PROGRAM_REDUCTION_LENGTH
        )
        self.seconds_each = 0.0

    @property
    def benchmark(self) -> Benchmark:
        """What measures: the run's."""
        return self.context.benchmark

    @property
    def each_s(self) -> float:
        """What compiling one of several programs takes of the run's time, kernels and all."""
        known = with_kernels_s(self.context, 0.0)
        return max(self.seconds_each, known / max(1, self.context.target.cores))

    @property
    def comparing_s(self) -> float:
        """What comparing programs takes of the run's time, once."""
        return comparing_s(self.context)

    def build(self, wanted: Build, alone: bool = True) -> Build:
        """Compile the program; a failure is in the result.

        Args:
            wanted: what to compile.
            alone: nothing else is compiled meanwhile. What it takes beside others says what
                compiling takes only where nothing else does.

        Returns:
            The program, or why there is none.
        """
        made = compile_program(self.context, wanted, alone, self.compile_timeout_s)
        self.seconds_each = self.seconds_each or made.seconds
        return made

    def build_all(self, wanted: Sequence[Build]) -> list[Build]:
        """Compile several at a time, as many as there are cores.

        `seconds_each` afterwards says what one of them took of the run's time.

        Args:
            wanted: with different names.

        Returns:
            What became of each, in their order.
        """
        begin = time.monotonic()
        count = max(1, self.context.target.cores)
        alone = min(count, len(wanted)) == 1
        with ThreadPoolExecutor(max_workers=count) as threads:
            made = threads.map(lambda one: self.build(one, alone), wanted)
            configured = None
            if self.roundings is not None and count > 1:
                # They will be judged, and that takes a compile of its own.
                self.roundings.prepare()
            elif count > 1 and len(wanted) == 1 and wanted[0].preprocessing is not None:
                # It most likely is what is handed back, and proven.
                configured = threads.submit(self._configured, wanted[0])
            builds = list(made)
            if configured is not None:
                builds = [replace(one, configured=configured.result()) for one in builds]
        if builds:
            self.seconds_each = (time.monotonic() - begin) / len(builds)
        return builds

    def _configured(self, wanted: Build) -> Path | None:
        """The program of a build at the executable-configurations phase; None where it fails."""
        context, place = self.context, self.folder / f"{wanted.name}.configured.mlir"
        flags = context.flags(wanted.as_compiled(context.options.iree_flags), wanted.spec)
        to_phase = (*flags, f"--compile-to={CONFIGURED_PHASE}")
        outcome = self.toolchain.compile(
            self.program.path,
            place,
            to_phase,
            timeout_s=self.compile_timeout_s,
            extra=(UNVERIFIED,),
        )
        return place if outcome.ok else None

    def make_reference(self, build: Build, timing: TimingPolicy | None = None) -> str:
        """Keep the outputs of a build for the others to be compared with; '' or what failed.

        Args:
            build: a program that compiled.
            timing: how it is timed next: where a round is larger than 1, in the same one.
        """
        assert build.vmfb is not None
        other = turned_inputs(self.folder / "others", self.inputs)
        place = self.folder / "others.npz"
        if self.benchmark.round_size > 1:
            with self.benchmark.ahead("the program's results"):
                self.keep_outputs(build.vmfb, self.inputs, self.expected)
                self.keep_outputs(build.vmfb, other, place)
                if timing is not None:
                    self.time(build, timing)
        failed = self.keep_outputs(build.vmfb, self.inputs, self.expected)
        if not failed and other.key != self.inputs.key:
            # A program need not take them: the user's inputs can be all that it is for.
            self.others = None if self.keep_outputs(build.vmfb, other, place) else (other, place)
        return failed

    def keep_outputs(self, vmfb: Path, inputs: InputSet, place: Path) -> str:
        """Run a program once and keep its results; '' or what failed.

        Args:
            vmfb: the program.
            inputs: its arguments.
            place: the .npz file of its results.
        """
        outputs = self.benchmark.run(
            str(vmfb),
            inputs,
            place,
            function=self.function,
            parameters=self.parameters,
            timeout_s=RUN_TIMEOUT_S,
        )
        return outputs.message if isinstance(outputs, WorkerFailure) else ""

    def _tester(self, others: bool = False) -> CandidateTester:
        inputs, expected = self.inputs, self.expected
        if others and self.others is not None:
            inputs, expected = self.others
        reference = Reference(
            inputs,
            expected,
            reduction_length=PROGRAM_REDUCTION_LENGTH,
            method=NOT_VERIFIED if self.context.options.no_verify else "",
        )
        return CandidateTester(
            self.benchmark,
            reference,
            timeout_s=self._checked_within_s,
            function=self.function,
            parameters=self.parameters,
        )

    @property
    def _checked_within_s(self) -> float:
        """Seconds for a run that is checked: kernels that no trial ran may never end."""
        default_s = self.context.deadlines.each(RUNNING, RUN_TIMEOUT_S)
        return min(RUN_TIMEOUT_S, _RUN_LEAST_S + _RUN_TIMES * default_s)

    def check(self, build: Build) -> str:
        """'' when the build's outputs equal the reference's, else what is wrong.

        Args:
            build: a program that compiled.
        """
        return self.compare_outputs(build).message

    def check_all(self, builds: Sequence[Build]) -> list[str]:
        """What is wrong with each: why it did not compile, or as `check`. Where a round is larger
        than 1 they are run in one.

        Args:
            builds: of programs, also such as did not compile.
        """
        if self.benchmark.round_size > 1:
            with self.benchmark.ahead("the programs' results"):
                for build in builds:
                    if build.vmfb is not None:
                        self._tester().check(build.vmfb)
        return [self.check(build) if build.ok else build.error for build in builds]

    def compare_outputs(self, build: Build) -> Tested:
        """Compare the build's outputs with the reference's.

        Args:
            build: a program that compiled.

        Returns:
            How the comparison of each output went, or how the program failed.
        """
        return self._tested(build)

    def _tested(self, build: Build, others: bool = False) -> Tested:
        assert build.vmfb is not None
        tester = self._tester(others)
        tested = tester.check(build.vmfb)
        if self.roundings is not None:
            self.roundings.prepare()
        if tested.ok:
            return tested
        expected, judge = tester.reference.expected, self.roundings or self.exact
        assert expected is not None
        return judge.judge(build.vmfb, tester.reference.inputs, expected, tested)

    def compare_all_outputs(self, build: Build) -> Tested:
        """As `compare_outputs`, and with other data: what is handed back must not be right for the
        one set of inputs alone that it was chosen with.

        Args:
            build: a program that compiled.

        Returns:
            Of both where they are right, of the one that is not.
        """
        assert build.vmfb is not None
        if self.benchmark.round_size > 1:
            with self.benchmark.ahead("the tuned program's results"):
                for others in (False, True):
                    self._tester(others).check(build.vmfb)
        tested = self._tested(build)
        if not tested.ok or self.others is None:
            return tested
        again = self._tested(build, others=True)
        if again.ok:
            return replace(again, comparisons=(*tested.comparisons, *again.comparisons))
        return replace(again, message=f"with other inputs: {again.message}")

    def time(self, build: Build, policy: TimingPolicy) -> float | str:
        """Median seconds of one run, or what failed.

        Args:
            build: a program that compiled.
            policy: how many samples are taken.
        """
        assert build.vmfb is not None
        timed = self._tester().time(build.vmfb, policy)
        return timed.message if timed.measurement is None else timed.measurement.median_s

    def compare(
        self,
        builds: Sequence[Build],
        max_s: float,
        rounds: int | None = None,
        **policy: Any,
    ) -> list[Finalist] | str:
        """Builds against the first of them in interleaved rounds, or what failed.

        Args:
            builds: programs that compiled, the one that the others are judged against first.
            max_s: seconds for all of it, where rounds take long.
            rounds: of all programs; None: as many as the effort has for programs.
            policy: other fields of the :class:`ComparisonPolicy`.

        Returns:
            A verdict on each, in their order.
        """
        options = self.context.options
        max_s = min(max_s, comparison_s(self.context))
        rounds = options.effort_preset.program_rounds if rounds is None else rounds
        begin = time.monotonic()
        result = self.benchmark.compare_interleaved(
            [str(b.vmfb) for b in builds],
            self.inputs,
            policy=ComparisonPolicy(
                rounds=rounds,
                max_s=max_s,
                filled_s=_FILLED_S,
                seed=options.seed,
                **{"clear": CLEAR, **policy},
            ),
            parameters=self.parameters,
            function=self.function,
            timeout_s=RUN_TIMEOUT_S,
        )
        self.context.deadlines.took(COMPARING, time.monotonic() - begin)
        return result.message if isinstance(result, WorkerFailure) else result


def open_programs(
    context: RunContext,
    signatures: Mapping[str, Signature],
    limits: Mapping[int, int],
    rounds: bool = False,
) -> Programs:
    """The program of a run with its arguments and weights. Raises UserError.

    Args:
        context: the run; its options say which function, with what.
        signatures: of the program's functions.
        limits: as :func:`program_inputs` takes them.
        rounds: whether it rounds numbers to integers.

    Returns:
        What builds and measures it.
    """
    function = choose_function(signatures, context.options.function)
    signature = signatures[function]
    inputs = program_inputs(context.options, signature, limits, programs_folder(context))
    archives = [(scope, str(path)) for scope, path in context.program.parameters]
    archives += [(p.scope, str(p.path)) for p in context.options.parameters]
    made = Programs(context, function, signature, inputs, Parameters(tuple(archives)))
    context.rounds = rounds
    if rounds:
        made.roundings = Roundings(
            context, made.folder, made.keep_outputs, lambda: made.seconds_each
        )
    return made


def program_inputs(
    options: TuneOptions, signature: Signature, limits: Mapping[int, int], folder: Path
) -> InputSet:
    """The program's arguments as the options give them, stored in a folder. Raises UserError.

    `limits`: by position those that are used as indices, which random data must stay below.

    Args:
        options: `inputs` and `seed` count.
        signature: the function's.
        limits: as above; {} for none.
        folder: where the data goes.

    Returns:
        The arguments, in files.
    """
    given = [one for text in options.inputs for one in parse_input(text)]
    bounds = index_bounds(limits)
    values = resolve_inputs(given, signature.inputs, seed=options.seed, bounds=bounds)
    return write_inputs(folder, signature.inputs, values)


def quick_timing(seconds: float) -> TimingPolicy:
    """A policy for a first look at a program: about `seconds` of samples.

    Args:
        seconds: for all samples.
    """
    long_s = _LONG_OF_SAMPLES * seconds
    return TimingPolicy(
        max_s=seconds, min_samples=5, max_samples=200, drop_factor=None, long_s=long_s
    )
