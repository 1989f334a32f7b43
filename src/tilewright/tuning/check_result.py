"""Whether a result still holds: with this compiler, on this machine, for this program.

A spec that matches nothing is silent, so what each entry reached is read off the program compiled
with it; what was fastest once is timed again beside the compiler's own choices.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from tilewright import scratch, words
from tilewright.errors import UserError
from tilewright.ir.session import CONFIGURED_PHASE
from tilewright.measure import machine
from tilewright.measure.compile_worker import session
from tilewright.measure.inputs import argument_sizes
from tilewright.measure.jobs import WorkerState
from tilewright.measure.measurement_key import MeasurementKey, compare_measured, why_other
from tilewright.store import Database
from tilewright.target import parse_target
from tilewright.toolchain import check_versions, installed_version
from tilewright.tuning.apply import prove_tuned, read_tuned
from tilewright.tuning.builds import Build
from tilewright.tuning.context import RunContext
from tilewright.tuning.events import Listener, ignore
from tilewright.tuning.extraction import extract
from tilewright.tuning.opening import open_benchmark, open_program
from tilewright.tuning.programs import Programs, open_programs
from tilewright.tuning.proof import Proof
from tilewright.tuning.recorded import RecordedResult, read_recorded
from tilewright.tuning.variants import DEFAULT_VARIANT, without_kernels, without_preprocessing
from tilewright.tuning.worker_tasks import parse_module

DEFAULT_TOLERANCE = 0.1
"""How much of the recorded gain may be gone: times of two days differ."""

_READ_TIMEOUT_S = 300.0
_COMPILE_TIMEOUT_S = 1800.0
_COMPARE_S = 90.0


class CaseStatus(StrEnum):
    """What became of one thing that was looked at."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class CheckedCase:
    """One thing that was looked at: `kind` is program, entry, variant, numbers or speed."""

    kind: str
    name: str
    status: CaseStatus
    message: str = ""


@dataclass(frozen=True)
class ResultCheck:
    """What a check of a result folder found.

    made_with, checked_with: versions of IREE. target_key, cpu: of this machine; `other_machine`
    says what differs from that of the result, '' where nothing does. default_ms, tuned_ms, speedup:
    of interleaved rounds, None where nothing was timed; those that begin with `recorded` are of the
    result's summary.
    """

    folder: Path
    program: Path
    made_with: str
    checked_with: str
    date: str
    target_key: str
    cpu: str
    other_machine: str
    recorded: float
    recorded_ci: tuple[float, float]
    recorded_default_ms: float
    recorded_tuned_ms: float
    tolerance: float
    cases: tuple[CheckedCase, ...]
    default_ms: float | None = None
    tuned_ms: float | None = None
    speedup: float | None = None
    speedup_ci: tuple[float, float] | None = None
    notes: tuple[str, ...] = ()

    @property
    def failed(self) -> tuple[CheckedCase, ...]:
        """What no longer holds."""
        return tuple(one for one in self.cases if one.status is CaseStatus.FAILED)

    @property
    def ok(self) -> bool:
        """Whether the result still holds."""
        return not self.failed


def check_result(
    folder: Path,
    *,
    program: Path | None = None,
    tolerance: float = DEFAULT_TOLERANCE,
    compile_only: bool = False,
    listener: Listener = ignore,
    **given: Any,
) -> ResultCheck:
    """See whether a result folder still holds with the IREE of this environment.

    Args:
        folder: as `tilewright tune` wrote it, with any supported version of IREE.
        program: in the place of the program that it was made of.
        tolerance: the part of the recorded speed-up that may be gone.
        compile_only: only see whether the entries apply; run nothing.
        listener: told what is noted on the way.
        given: fields of the options that take the place of the recorded ones.

    Returns:
        What was found, of which what no longer holds is a part and no exception.

    Raises:
        UserError: the folder, its program or an option is not as it should be.
    """
    check_versions()
    recorded = read_recorded(folder, program, **given)
    options = replace(recorded.options, compile_only=compile_only)
    target = parse_target(options.target, options.threads)
    found = _Findings(recorded, tolerance)
    with (
        scratch.folder() as own,
        Database.open(own / "unused.db") as store,
        contextlib.ExitStack() as stack,
    ):
        with found.case("program", recorded.program.name, "it compiles"):
            opened = stack.enter_context(
                open_program(recorded.program, target, options, listener=listener)
            )
            benchmark = stack.enter_context(
                contextlib.closing(open_benchmark(opened.target, options))
            )
            context = RunContext(**vars(opened), benchmark=benchmark, store=store)
            programs = _programs(context)
            default = programs.build(Build("default", DEFAULT_VARIANT))
            if not default.ok:
                raise UserError(default.error)
            if context.program.digest != recorded.digest:
                found.notes.append("the program is not the one that the result was made of")
            tuned = _check_entries(found, programs)
            if tuned is not None and not compile_only:
                _check_running(found, programs, default, tuned)
            found.target_key = context.target.key
            found.measured_on = benchmark.measurement_key(context.target)
        return found.result()


def _programs(context: RunContext) -> Programs:
    """The program with its arguments; its target learns what the processor is."""
    extraction = extract(context)
    programs = open_programs(context, extraction.signatures, extraction.limits, extraction.rounds)
    if any(-1 in (kind.shape or ()) for kind in programs.signature.inputs):
        context.arguments = argument_sizes(programs.inputs)
    return programs


class _Findings:
    """What is found, as it is found."""

    def __init__(self, recorded: RecordedResult, tolerance: float) -> None:
        self.recorded = recorded
        self.tolerance = tolerance
        self.cases: list[CheckedCase] = []
        self.notes: list[str] = []
        self.target_key = ""
        self.measured_on: MeasurementKey | None = None
        self.timed: dict[str, Any] = {}
        self.machine = machine.describe()

    def add(self, kind: str, name: str, wrong: str, message: str = "") -> None:
        """A case that failed with what is wrong, or passed where that is ''."""
        status = CaseStatus.FAILED if wrong else CaseStatus.PASSED
        self.cases.append(CheckedCase(kind, name, status, wrong or message))

    def skip(self, kind: str, name: str, why: str) -> None:
        """A case that was not looked at."""
        self.cases.append(CheckedCase(kind, name, CaseStatus.SKIPPED, why))

    @contextlib.contextmanager
    def case(self, kind: str, name: str, message: str) -> Iterator[None]:
        """A case that fails with what the user would be told of what is done inside."""
        place = len(self.cases)
        try:
            yield
        except UserError as error:
            self.cases.insert(place, CheckedCase(kind, name, CaseStatus.FAILED, str(error)))
        else:
            self.cases.insert(place, CheckedCase(kind, name, CaseStatus.PASSED, message))

    @property
    def other_machine(self) -> str:
        """In what the machine differs from that of the recorded times. That IREE does is asked."""
        if self.target_key != self.recorded.target_key:
            return f"target {self.recorded.target_key}, here {self.target_key}"
        pair = (self.recorded.measured_on, self.measured_on)
        return why_other(compare_measured(*pair, apart_from=("compiler",)))

    def result(self) -> ResultCheck:
        """All of it."""
        recorded = self.recorded
        return ResultCheck(
            folder=recorded.folder,
            program=recorded.program,
            made_with=recorded.made_with,
            checked_with=installed_version("iree-base-compiler"),
            date=recorded.date,
            target_key=self.target_key,
            cpu=self.machine.cpu,
            other_machine=self.other_machine,
            recorded=recorded.speedup,
            recorded_ci=recorded.speedup_ci,
            recorded_default_ms=recorded.default_ms,
            recorded_tuned_ms=recorded.tuned_ms,
            tolerance=self.tolerance,
            cases=tuple(self.cases),
            notes=tuple(self.notes),
            **self.timed,
        )


# Entries


def _check_entries(found: _Findings, programs: Programs) -> Build | None:
    """See what each entry reaches; the tuned program, None where it does not compile."""
    context, made = programs.context, programs.folder / "tuned.vmfb"
    place = f"the specs of {found.recorded.folder.name}"
    try:
        tuned, report = read_tuned(context, found.recorded.tuned)
        proof = prove_tuned(context, tuned, vmfb=made)
    except UserError as error:
        found.add("program", place, str(error))
        return None
    found.add("program", place, "", "the program compiles with them")
    reached = {change.entry for change in proof.changes}
    reached |= {name for name, places in proof.reached.items() if places}
    for entry in report.entries:
        where = proof.reached.get(entry.name, ())
        if entry.name in reached:
            number = words.plural(max(1, len(where)), "place")
            found.add("entry", entry.name, "", f"applies to {number}: {entry.matches}")
        elif entry.pipeline != _IM2COL and entry.name not in found.recorded.entries:
            found.skip("entry", entry.name, "applied to nothing when the result was made")
        else:
            found.add(
                "entry",
                entry.name,
                f"no longer applies: the program has nothing that it matches ({entry.matches})",
            )
    _check_variant(found, programs, proof, tuned.kernels is not None)
    return Build("tuned", tuned.variant, tuned.spec, made)


_IM2COL = "im2col"


def _check_variant(found: _Findings, programs: Programs, proof: Proof, has_kernels: bool) -> None:
    """See whether the flags of the variant still change the program: a layout that does nothing is
    as silent as a spec. What kernels are joined with, these show."""
    context, variant = programs.context, found.recorded.tuned.variant
    flags = without_kernels(variant.flags) if has_kernels else variant.flags
    if not flags:
        return
    plain, changed = context.work / "plain.mlir", context.work / "variant.mlir"
    for path, given in ((plain, ()), (changed, flags)):
        outcome = programs.toolchain.compile(
            programs.program.path,
            path,
            (*context.flags(), *given, f"--compile-to={CONFIGURED_PHASE}"),
            timeout_s=_COMPILE_TIMEOUT_S,
        )
        if not outcome.ok:
            found.add("variant", variant.name, outcome.error)
            return
    request = OtherCodeRequest(plain, changed, context.flags())
    number = context.run(count_other_code, request, _READ_TIMEOUT_S)
    found.add(
        "variant",
        variant.name,
        "" if number else f"its flags change no dispatch any more: {' '.join(flags)}",
        f"changes {words.plural(number, 'dispatch', 'dispatches')}",
    )


# Running


def _check_running(found: _Findings, programs: Programs, default: Build, tuned: Build) -> None:
    """See whether the tuned program computes the same, and how fast it is."""
    failure = programs.make_reference(default)
    if failure:
        found.add("numbers", "outputs", f"the untuned program does not run: {failure}")
        return
    tested = programs.compare_outputs(tuned)
    worst = max(tested.comparisons, key=lambda one: one.share_of_bound, default=None)
    bound = f": largest error {worst.error:.2g}, allowed {worst.tolerance:.2g}" if worst else ""
    right = "equal those of the untuned program"
    if by := next((one.against for one in tested.comparisons if one.against), ""):
        right = f"are as right as the untuned program's, by {by}"
    found.add("numbers", "outputs", tested.message, f"{right}{bound}")
    if not tested.ok:
        return
    _check_speed(found, programs, default, tuned)


def _check_speed(found: _Findings, programs: Programs, default: Build, tuned: Build) -> None:
    recorded = found.recorded
    rounds = 2 * programs.context.options.effort_preset.program_rounds
    judged = programs.compare([default, tuned], _COMPARE_S, rounds, margin=0.0)
    if isinstance(judged, str):
        found.add("speed", "against the default", judged)
        return
    speedup = judged[1].speedup
    found.timed = {
        "default_ms": judged[0].measurement.median_s * 1e3,
        "tuned_ms": judged[1].measurement.median_s * 1e3,
        "speedup": speedup.value,
        "speedup_ci": (speedup.low, speedup.high),
    }
    found.notes += machine.warnings(found.machine)
    measured = f"{words.times(speedup.value)} ({words.interval(speedup.low, speedup.high)})"
    slower = f"slower than the untuned program: {measured} its speed"
    found.add(
        "speed",
        "against the default",
        slower if speedup.high < 1.0 and not _are_same(default, tuned) else "",
        f"{measured} the untuned program's speed",
    )
    context = programs.context
    found.target_key = context.target.key
    found.measured_on = context.benchmark.measurement_key(context.target)
    was, name = words.times(recorded.speedup), "against the recorded ratio"
    if found.other_machine:
        found.skip("speed", name, f"{was} was measured on another machine: {found.other_machine}")
        return
    least = recorded.speedup * (1 - found.tolerance)
    found.add(
        "speed",
        name,
        f"{measured} where {was} was recorded, with a tolerance of {words.share(found.tolerance)}"
        if speedup.high < least
        else "",
        f"{measured}, recorded {was}",
    )


def _are_same(one: Build, other: Build) -> bool:
    """Whether programs are equal, of which one may seem slower by the noise: where a run has found
    nothing better, what it hands back is the untuned one."""
    assert one.vmfb is not None
    assert other.vmfb is not None
    return one.vmfb.read_bytes() == other.vmfb.read_bytes()


# In the workers


@dataclass(frozen=True)
class OtherCodeRequest:
    """Two compiles of a program to the executable-configurations phase, and flags for a session."""

    one: Path
    other: Path
    flags: tuple[str, ...]


def count_other_code(state: WorkerState, request: OtherCodeRequest) -> int:
    """Task: how many dispatches of the one program have code that the other has not.

    Args:
        state: the worker's.
        request: the programs.

    Returns:
        Their number in `other`.
    """
    compiler = session(state, without_preprocessing(request.flags))

    def codes(path: Path) -> Sequence[str]:
        from iree.compiler import ir

        from tilewright.ir.template import dispatch_functions

        module = parse_module(compiler, path.read_bytes())
        with compiler.context:
            found = []
            for function in dispatch_functions(module).values():
                # Names number the dispatches of a program.
                function.attributes["sym_name"] = ir.StringAttr.get("dispatch")
                found.append(str(function))
            return found

    known = set(codes(request.one))
    return sum(1 for code in codes(request.other) if code not in known)
