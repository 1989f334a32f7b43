"""`profile compile`: every dispatch that changed, on all cores, one failure never another's."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.errors import UserError
from tilewright.files import write_whole
from tilewright.gpu import EXPLICIT, GpuCompilationInfo
from tilewright.ir.session import CONFIGURED_PHASE, CompileError
from tilewright.kernels.operation import Operation
from tilewright.measure import machine
from tilewright.measure.compile_worker import compile_pool, session
from tilewright.measure.jobs import RecentlyUsed, WorkerState
from tilewright.measure.pool import Job, Result
from tilewright.profiler.folder import (
    FORMAT,
    CompileRecord,
    GeneratedFolder,
    Selected,
    TunedConfiguration,
)
from tilewright.target import Target, usable_cores
from tilewright.toolchain import installed_version
from tilewright.trial import Status
from tilewright.tuning.task import repeats_for

# Outcomes that another attempt may change.
_WORTH_REPEATING = (Status.COMPILE_TIMEOUT, Status.CRASHED)


@dataclass(frozen=True)
class CompileOptions:
    """How to compile: `jobs` workers, each with a single-threaded compiler; `force`: everything
    anew."""

    target: Target
    iree_flags: tuple[str, ...] = ()
    jobs: int = 1
    timeout_s: float = 60.0
    force: bool = False

    def flags(self, operation: Operation | None = None) -> tuple[str, ...]:
        """Of iree-compile, with those that the operation needs.

        Args:
            operation: None: none's own.
        """
        own = operation.flags if operation is not None else ()
        return (*self.target.flags, *own, *self.iree_flags)


@dataclass
class CompileSummary:
    """How many dispatches were compiled, failed now or before, and were up to date."""

    compiled: int = 0
    failed: int = 0
    kept: int = 0


def compile_dispatches(
    generated: GeneratedFolder,
    selected: Sequence[Selected],
    options: CompileOptions,
    on_done: Callable[[Selected, CompileRecord], object] = lambda dispatch, compiled: None,
) -> CompileSummary:
    """Compile what has changed; every outcome is in its manifest before the next is waited for.

    Args:
        generated: the folder, which is locked meanwhile.
        selected: dispatches in it.
        options: how to compile.
        on_done: is told each dispatch as it is done.

    Returns:
        How many were compiled, failed, and were up to date.

    Raises:
        UserError: another process holds the folder, or it cannot be written.
    """
    summary = CompileSummary()
    with generated.locked():
        _tidy(selected)
        jobs = []
        for dispatch in selected:
            key = dispatch_key(dispatch, options)
            if not options.force and is_current(dispatch, key):
                summary.kept += 1
                compiled = dispatch.entry.compiled
                summary.failed += int(compiled is not None and not compiled.ok)
                continue
            jobs.append(Job(compile_dispatch, _request(dispatch, options), tag=(dispatch, key)))
        if not jobs:
            return summary

        def record(result: Result[CompileAnswer]) -> None:
            dispatch, key = result.job.tag
            compiled = _outcome(result, key)
            if not compiled.ok:
                # What was compiled before stays until here: flags that the compiler does not take
                # and a Ctrl-C lose nothing.
                dispatch.vmfb.unlink(missing_ok=True)
            dispatch.entry.compiled = compiled
            _log(dispatch, result, compiled)
            dispatch.folder.save()
            summary.compiled += 1
            summary.failed += int(not compiled.ok)
            on_done(dispatch, compiled)

        workers = min(options.jobs, len(jobs))
        with compile_pool(workers, flags=(options.flags(),), timeout_s=options.timeout_s) as pool:
            pool.run(jobs, on_result=record)
    return summary


def dispatch_key(dispatch: Selected, options: CompileOptions) -> str:
    """A digest of all that decides what a compile makes: program, configuration, flags, compiler,
    and for `host` the processor.

    Args:
        dispatch: which.
        options: how it would be compiled.

    Returns:
        Hexadecimal.
    """
    entry = dispatch.entry
    decides = {
        "format": FORMAT,
        "program": hashlib.sha256(_content(dispatch.folder.program)).hexdigest(),
        "configuration": entry.tuned and entry.tuned.to_json(),
        "repeats": _repeats(dispatch, options.target),
        "flags": options.flags(dispatch.folder.operation),
        "compiler": installed_version("iree-base-compiler"),
        "processor": _processor() if options.target.cpu == "host" else "",
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def is_current(dispatch: Selected, key: str) -> bool:
    """Whether the last compile still stands. What timed out or crashed is tried again.

    Args:
        dispatch: which.
        key: of a compile now.
    """
    compiled = dispatch.entry.compiled
    if compiled is None or compiled.key != key or compiled.status in _WORTH_REPEATING:
        return False
    return not compiled.ok or dispatch.vmfb.is_file()


def _content(program: Path) -> bytes:
    try:
        return program.read_bytes()
    except OSError:
        # A program that is gone is a compile error of its own, which the worker reports.
        return b""


@functools.cache
def _processor() -> str:
    facts = machine.describe()
    return f"{facts.cpu} {' '.join(facts.features)}"


def _repeats(dispatch: Selected, target: Target) -> int:
    return repeats_for(dispatch.folder.operation, usable_cores(), target.is_gpu)


def _request(dispatch: Selected, options: CompileOptions) -> DispatchRequest:
    return DispatchRequest(
        dispatch.folder.program,
        options.flags(dispatch.folder.operation),
        dispatch.entry.tuned,
        _repeats(dispatch, options.target),
        dispatch.vmfb,
        dispatch.configured,
    )


def _outcome(result: Result[CompileAnswer], key: str) -> CompileRecord:
    request: DispatchRequest = result.job.request
    if result.failure is not None:
        status, message = result.failure.compile_status, result.failure.message
        if status is Status.COMPILE_ERROR:
            # What the compiler says comes as an answer: this was something else, a full disk say.
            status = Status.CRASHED
    else:
        message = result.value.message
        status = Status.COMPILE_ERROR if message else Status.OK
    seconds = round(result.seconds, 4)
    return CompileRecord(key, status, message, seconds, request.repeats, request.flags)


def _log(dispatch: Selected, result: Result[CompileAnswer], compiled: CompileRecord) -> None:
    """Add what the compiler said to the operation's log."""
    said = result.failure.log if result.failure is not None else result.value.log
    lines = [
        f"== {dispatch.name}: {compiled.status}, {compiled.seconds:.2f} s",
        f"flags: {' '.join(result.job.request.flags)}",
        *([compiled.message] if compiled.message else []),
        *([said.rstrip()] if said.strip() else []),
    ]
    path = dispatch.folder.log
    try:
        with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write("\n".join(lines) + "\n\n")
    except OSError as error:
        raise UserError(f"{path}: cannot write it ({error.strerror})") from error


def _tidy(selected: Sequence[Selected]) -> None:
    """Remove what a killed compile was writing."""
    for path in {dispatch.folder.path for dispatch in selected}:
        for partial in path.glob("*.part"):
            with contextlib.suppress(OSError):
                partial.unlink()


# -- in workers ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DispatchRequest:
    """Compile a program in one configuration.

    tuned: None for the compiler's own. repeats: above 1 the result has a function `bench` too,
    which runs the whole program this often. configured: where to keep the configured program that
    code is generated from.
    """

    program: Path
    flags: tuple[str, ...]
    tuned: TunedConfiguration | None
    repeats: int
    vmfb: Path
    configured: Path

    @property
    def is_made_by_compiler(self) -> bool:
        """Whether the compiler makes the configuration's attributes, from values of its knobs."""
        own = self.tuned.configuration if self.tuned is not None else None
        return isinstance(own, GpuCompilationInfo) and own.ordinal != EXPLICIT


@dataclass(frozen=True)
class CompileAnswer:
    """message: the first error, '' when the vmfb was written. log: all that the compiler said."""

    message: str = ""
    log: str = ""


def compile_dispatch(state: WorkerState, request: DispatchRequest) -> CompileAnswer:
    """Task: see DispatchRequest. Files appear whole, the vmfb only when the compile succeeds.

    Args:
        state: the worker's.
        request: what to compile.

    Returns:
        What the compiler said.
    """
    from tilewright.ir.candidate import make_candidate
    from tilewright.ir.lowering import UnreadableConfiguration

    try:
        compiler = session(state, request.flags)
        tuned = request.tuned
        module = make_candidate(
            _template(state, request),
            compiler.context,
            tuned.executable if tuned else "",
            tuned.entry if tuned else "",
            tuned.configuration if tuned else None,
            request.repeats,
            whole=True,
        )
        write_whole(request.configured, module.operation.get_asm().encode())
        vmfb = compiler.compile(module.operation, compile_from=CONFIGURED_PHASE)
    except CompileError as error:
        return CompileAnswer(str(error), error.log)
    except (UnreadableConfiguration, ValueError) as error:
        return CompileAnswer(f"the configuration is not for this program: {error}")
    write_whole(request.vmfb, vmfb)
    return CompileAnswer()


class _Templates(RecentlyUsed[tuple[str, tuple[str, ...], bool], bytes]):
    """Programs as the compiler configures them, by a digest and the flags, with constraints or
    without."""

    def __init__(self) -> None:
        super().__init__(16)


def _template(state: WorkerState, request: DispatchRequest) -> bytes:
    """The program as the compiler configures it, kept between its configurations."""
    from tilewright.ir.gpu_constraints import EMIT_CONSTRAINTS

    source = request.program.read_bytes()
    key = (hashlib.sha256(source).hexdigest(), request.flags, request.is_made_by_compiler)
    compiler = session(state, request.flags)
    if request.is_made_by_compiler:
        # From its constraints, which it states where it is asked to.
        compiler = session(state, (*request.flags, EMIT_CONSTRAINTS))
    return state.get(_Templates).get(
        key,
        lambda: compiler.compile(source, compile_to=CONFIGURED_PHASE, name=request.program.name),
    )
